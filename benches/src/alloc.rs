//! An allocator that counts, for the figures of memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicI64 = AtomicI64::new(0);

/// The system's allocator, which counts while it is told to.
pub struct Counting;

// SAFETY: `System` does it all.
unsafe impl GlobalAlloc for Counting {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(0, layout.size());
        // SAFETY: as required of our caller.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        note(layout.size(), 0);
        // SAFETY: as required of our caller.
        unsafe { System.dealloc(memory, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(layout.size(), size);
        // SAFETY: as required of our caller.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[inline]
fn note(freed: usize, taken: usize) {
    if COUNTING.load(Relaxed) {
        ALLOCATIONS.fetch_add(u64::from(taken > 0), Relaxed);
        LIVE.fetch_add(footprint(taken) - footprint(freed), Relaxed);
    }
}

/// What so many bytes take of the heap, by the rules of glibc: a header of 8 bytes and a multiple
/// of 16; large ones have pages of their own.
fn footprint(size: usize) -> i64 {
    let taken = match size {
        0 => 0,
        1..0x2_0000 => (size + 8).next_multiple_of(16).max(32),
        _ => (size + 16).next_multiple_of(4096),
    };
    i64::try_from(taken).unwrap_or(i64::MAX)
}

/// How often memory was allocated while it was counted.
#[must_use]
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Relaxed)
}

/// Counts while `job` runs: the allocations, and the bytes by which the heap has grown.
pub fn count<T>(job: impl FnOnce() -> T) -> (T, u64, i64) {
    let before = (allocations(), LIVE.load(Relaxed));
    COUNTING.store(true, Relaxed);
    let result = job();
    COUNTING.store(false, Relaxed);
    (result, allocations() - before.0, LIVE.load(Relaxed) - before.1)
}
