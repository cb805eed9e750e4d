//! What the Thrift compiler made of `idl/demo.thrift`.
//!
//! The structs of arguments and results that it makes are private to their file. So that file is
//! included, and what makes frames of them is a module within.

// Lints judge what is written here by hand, in `calls` and `service`; they say so themselves.
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
