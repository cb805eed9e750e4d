//! A counting allocator. A test binary declares it as follows:
//!
//! ```ignore
//! #[global_allocator]
//! static ALLOCATOR: CountingAllocator = CountingAllocator;
//! ```
//!
//! It counts per thread, because tests run in parallel. A block that one thread allocates and
//! another frees remains live for the first and makes the count of the second negative.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

/// Allocations of a thread or of a closure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Number of allocated blocks. A resized block counts again.
    pub allocations: u64,
    /// Bytes that are allocated now.
    pub live: i64,
    /// Peak of the bytes allocated at the same time.
    pub peak: i64,
}

thread_local! {
    // Const and without destructor: the allocator must not allocate or outlive its counters.
    static USAGE: Cell<Usage> = const {
        Cell::new(Usage { allocations: 0, live: 0, peak: 0 })
    };
}

fn count(allocations: u64, bytes: i64) {
    let mut usage = USAGE.get();
    usage.allocations += allocations;
    usage.live += bytes;
    usage.peak = usage.peak.max(usage.live);
    USAGE.set(usage);
}

/// The size of a layout is at most `isize::MAX`.
fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The system allocator with counters.
pub struct CountingAllocator;

// SAFETY: every call is forwarded to `System` unchanged; the counters do not touch the allocated
// memory.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(1, signed(layout.size()));
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(1, signed(layout.size()));
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(0, -signed(layout.size()));
        unsafe { System.dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(1, signed(size) - signed(layout.size()));
        unsafe { System.realloc(block, layout, size) }
    }
}

/// Returns the allocations of this thread since it started.
pub fn usage() -> Usage {
    USAGE.get()
}

/// Runs `f` and returns its allocations on this thread. Calls may be nested.
///
/// # Panics
///
/// Panics if the counting allocator is not the global allocator.
#[track_caller]
pub fn allocations_during<R>(f: impl FnOnce() -> R) -> (R, Usage) {
    let idle = usage().allocations;
    drop(black_box(Box::new(0_u8)));
    assert!(
        usage().allocations > idle,
        "CountingAllocator is not the #[global_allocator] of this binary"
    );

    let before = usage();
    USAGE.set(Usage { peak: before.live, ..before });
    let result = f();
    let after = usage();
    USAGE.set(Usage { peak: before.peak.max(after.peak), ..after });
    let during = Usage {
        allocations: after.allocations - before.allocations,
        live: after.live - before.live,
        peak: after.peak - before.live,
    };
    (result, during)
}
