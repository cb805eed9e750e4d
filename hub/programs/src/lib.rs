//! Four programs with a hub, each beside a plain one that does the same without.
//!
//! `hub/examples/` runs them, `hub/tests/hub/programs.rs` tests them, and
//! `hub/benches/figures/programs.rs` counts their lines and measures them.

pub mod calls {
    pub mod hub;
    pub mod plain;
}
pub mod chat {
    pub mod hub;
    pub mod plain;
}
pub mod customers {
    pub mod hub;
    pub mod plain;
}
pub mod fanout {
    pub mod hub;
    pub mod plain;
}
