//! The loops whose instructions are counted, and the parts that other benchmarks use as well.
//!
//! They are a package of their own, with few dependencies, so that `benches/instructions` builds
//! quickly.

pub mod alloc;
pub mod measure;
pub mod parts;
pub mod route;
pub mod scale;
