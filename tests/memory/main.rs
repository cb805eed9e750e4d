//! Tests of allocations, with a counting allocator.

mod allocations;
mod capacity;
mod frugal;

use model::counting::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
