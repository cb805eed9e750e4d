//! Bridges and real servers, Redis and NATS: what is lost, who is told, and when a join is true.
//!
//! Without `nats-server`, those with NATS are skipped. `bridge/check` gets one. If the environment variable
//! `NATS_SERVER` names one, it has to be there.

mod common;
mod engine;
mod joins;
mod only_nats;
mod only_redis;
mod outages;
mod random;
