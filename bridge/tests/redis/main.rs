//! Bridges and a real Redis server: what is lost, who is told, and when a join is true.

#[path = "../scenarios/common.rs"]
mod common;
mod engine;
#[path = "../scenarios/joins.rs"]
mod joins;
mod only_redis;
#[path = "../scenarios/outages.rs"]
mod outages;
#[path = "../scenarios/random.rs"]
mod random;
#[path = "../scenarios/server.rs"]
mod server;
