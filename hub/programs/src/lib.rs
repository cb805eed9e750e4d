//! Programs with a hub, each beside a plain one that does the same without.
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
pub mod partitions {
    use futures::future::BoxFuture;

    pub mod hub;
    pub mod plain;

    /// Handles an order: takes its customer and its offset.
    pub type Handle = fn(u64, u64) -> BoxFuture<'static, ()>;

    /// Takes a partition, and the position up to which everything in it is done.
    pub type Commit = fn((u32, u64));
}
pub mod prices {
    pub mod hub;
    pub mod plain;

    pub const SYMBOLS: u32 = 5_000;

    /// Returns the 50 symbols of a client. Of 300 clients, three have the same.
    pub fn symbols(client: u32) -> impl Iterator<Item = u32> {
        (0..50).map(move |n| client % 100 + n * 100)
    }
}
