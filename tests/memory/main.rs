//! What is allocated, counted by an allocator of its own.

#[path = "../common/mod.rs"]
mod common;

mod allocations;
mod capacity;

use common::alloc::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;
