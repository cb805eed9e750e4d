//! Bridges and a real NATS server: what is lost, who is told, and when a join is true.
//!
//! Without `nats-server`, the tests are skipped. `bridge/check` gets one. If the environment variable
//! `NATS_SERVER` names one, it has to be there.

#[path = "../scenarios/common.rs"]
mod common;
mod engine;
#[path = "../scenarios/joins.rs"]
mod joins;
mod only_nats;
#[path = "../scenarios/outages.rs"]
mod outages;
#[path = "../scenarios/random.rs"]
mod random;
#[path = "../scenarios/server.rs"]
mod server;
