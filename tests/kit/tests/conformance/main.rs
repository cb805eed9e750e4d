//! The conformance check: it finds broken sinks, and passes real ones.

mod adapters;
mod broken;
mod pipe;
mod real;
