//! An allocator with statistics.

use core::alloc::{GlobalAlloc, Layout};
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use embedded_alloc::LlffHeap;

const SIZE: usize = 8 * 1024;

static MEMORY: Memory = Memory(core::cell::UnsafeCell::new([MaybeUninit::uninit(); SIZE]));

#[repr(align(8))]
struct Memory(core::cell::UnsafeCell<[MaybeUninit<u8>; SIZE]>);

// Safety: only the allocator uses it.
unsafe impl Sync for Memory {}

struct Counted(LlffHeap);

#[global_allocator]
static HEAP: Counted = Counted(LlffHeap::empty());

static USED: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// Safety: all calls are forwarded to an allocator.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let used = USED.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(used, Relaxed);
        ALLOCATIONS.fetch_add(1, Relaxed);
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        USED.fetch_sub(layout.size(), Relaxed);
        unsafe { self.0.dealloc(block, layout) }
    }
}

/// Must be called once, before the first allocation.
pub fn start() {
    // Safety: called first and once, with memory that nothing else uses.
    unsafe { HEAP.0.init(MEMORY.0.get() as usize, SIZE) }
}

/// Bytes in use.
pub fn used() -> usize {
    USED.load(Relaxed)
}

/// Maximum of the bytes in use.
pub fn peak() -> usize {
    PEAK.load(Relaxed)
}

/// Number of allocations.
pub fn allocations() -> usize {
    ALLOCATIONS.load(Relaxed)
}
