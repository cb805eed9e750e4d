//! An allocator that counts. The binary that wants it declares it:
//!
//! ```ignore
//! #[global_allocator]
//! static ALLOCATOR: CountingAllocator = CountingAllocator;
//! ```
//!
//! It counts per thread, because tests run side by side: what one thread allocates and another
//! frees stays live for the first and goes negative for the second.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;

/// What one thread allocated, or what a closure did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Blocks asked for; one that is resized counts again.
    pub allocations: u64,
    /// Bytes not given back.
    pub live: i64,
    /// The most bytes that were live at once.
    pub peak: i64,
}

thread_local! {
    // Const and without drop: the allocator must not allocate, nor outlive its counters.
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

/// A layout is never larger than `isize::MAX`.
fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// The system's allocator, counted.
pub struct CountingAllocator;

// SAFETY: every call goes to `System` as it came; the counters touch no memory that is handed out.
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

/// What this thread has allocated since it began.
pub fn usage() -> Usage {
    USAGE.get()
}

/// Runs `f`, and returns what it allocated on this thread beyond what was there before. Calls may
/// nest.
///
/// # Panics
///
/// If the counting allocator is not the global one: everything would seem to allocate nothing.
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
