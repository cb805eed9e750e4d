//! Bridges and a real Redis server: what is lost, who is told, and when a join is true.

mod common;
mod joins;
mod outages;
mod random;
mod server;
