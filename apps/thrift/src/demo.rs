//! The code that the Thrift compiler generates from `idl/demo.thrift`.
//!
//! The generated structs for arguments and results are private to their file. Therefore the file is
//! included here, and the modules that serialize these structs are its children.

// For the generated code. `calls` and `service` are written by hand and enable the lints again.
#![allow(
    unused,
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::all,
    clippy::pedantic
)]

mod calls;
mod service;

pub use self::calls::{Demo, Serve};
pub use self::service::{Example, one_of_each};

include!("../idl/demo.rs");
