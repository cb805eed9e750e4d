//! Pages about choices that the documentation of a type has no room for. This module contains
//! documentation only.
//!
//! | page | about |
//! | --- | --- |
//! | [`trouble`] | where items are that did not arrive, and why items arrive late |
//! | [`state`] | when a table of the newest values is better than a stream of changes |

// The module exists only for rustdoc: the library has no item here.

#[doc = include_str!("guide/state.md")]
pub mod state {}

#[doc = include_str!("guide/trouble.md")]
pub mod trouble {}
