//! The conformance check: broken sinks are found, and real sinks pass.

mod adapters;
mod broken;
mod pipe;
mod real;
