//! The numbers that decide when sinks are flushed. They are not promised; tests that depend on them
//! take them from here.

use crate::slots::flush::tuning as numbers;

pub const PER_SINK: u64 = numbers::PER_SINK;
pub const LEAST: u64 = numbers::LEAST;
pub const NANOS_PER_ITEM: u64 = numbers::NANOS_PER_ITEM;
pub const FLUSH_EVERY: u64 = numbers::FLUSH_EVERY;
pub const FLUSHED_AT_ONCE: usize = numbers::FLUSHED_AT_ONCE;
pub const LONGEST_WAIT: u32 = numbers::LONGEST_WAIT;
pub const TURNS_PER_ITEM: u64 = numbers::TURNS_PER_ITEM;
pub const MAX_BATCHES: u32 = numbers::MAX_BATCHES;
pub const WAITED_FOR: u32 = numbers::WAITED_FOR;
pub const MAX_FAILURES: u32 = numbers::MAX_FAILURES;
