//! A counting allocator, for the figures of memory.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering::Relaxed};

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static LIVE: AtomicI64 = AtomicI64::new(0);

/// The system allocator. Counts while [`count`] runs.
pub struct Counting;

// SAFETY: all calls are passed on to `System`.
unsafe impl GlobalAlloc for Counting {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        record(0, layout.size());
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.alloc(layout) }
    }

    #[inline]
    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        record(layout.size(), 0);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.dealloc(memory, layout) }
    }

    #[inline]
    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        record(layout.size(), size);
        // SAFETY: the caller upholds the contract of `GlobalAlloc`.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[inline]
fn record(freed: usize, allocated: usize) {
    if COUNTING.load(Relaxed) {
        ALLOCATIONS.fetch_add(u64::from(allocated > 0), Relaxed);
        LIVE.fetch_add(footprint(allocated) - footprint(freed), Relaxed);
    }
}

/// Returns the bytes that an allocation of `size` takes in glibc's heap: with a header of 8 bytes,
/// rounded up to a multiple of 16. Large allocations take whole pages.
fn footprint(size: usize) -> i64 {
    let allocated = match size {
        0 => 0,
        1..0x2_0000 => (size + 8).next_multiple_of(16).max(32),
        _ => (size + 16).next_multiple_of(4096),
    };
    i64::try_from(allocated).unwrap_or(i64::MAX)
}

/// Returns the number of allocations that were counted.
#[must_use]
pub fn allocations() -> u64 {
    ALLOCATIONS.load(Relaxed)
}

/// Runs `work`. Returns its result, the number of allocations, and the growth of the heap in bytes.
pub fn count<T>(work: impl FnOnce() -> T) -> (T, u64, i64) {
    let before = (allocations(), LIVE.load(Relaxed));
    COUNTING.store(true, Relaxed);
    let result = work();
    COUNTING.store(false, Relaxed);
    (result, allocations() - before.0, LIVE.load(Relaxed) - before.1)
}
