//! Tests of allocations, with a counting allocator.

#[path = "../common/mod.rs"]
mod common;

mod allocations;
mod capacity;

use common::alloc::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
