//! A message gateway that routes messages from RabbitMQ or HTTP to WebSockets by key. See the
//! README.
//!
//! ```text
//! config        the command line
//! gateway       shared state, startup and shutdown
//! serve         accepts connections        http      routes and errors  access  origins, tokens
//! reader        keys that a token allows   page      the page
//! timed_socket  write timeout              budget    bytes that may wait
//! source        where messages go          message   and when it is settled  batch, line
//! lock          a mutex without poison     log       lines that no text can forge  json  objects only
//! amqp          RabbitMQ                   rewriter  makes input safe   wire, publisher, link, interest,
//!                                                                     permissions, refusals, settle
//! router        the demux                  hooks     of the demux       board   the counters
//! client        one WebSocket              outlet    its writing half   subscription
//! history       the last messages of a key                liveness  of a client
//! ```

mod access;
mod amqp;
mod batch;
mod board;
mod budget;
mod client;
mod config;
mod demo;
mod gateway;
mod history;
mod hooks;
mod http;
mod interest;
mod json;
mod line;
mod link;
mod liveness;
mod lock;
mod log;
mod message;
mod outlet;
mod page;
mod permissions;
mod publisher;
mod reader;
mod refusals;
mod rewriter;
mod router;
mod serve;
mod settle;
mod shutdown;
mod source;
mod subscription;
mod timed_socket;
mod wire;

use std::process::ExitCode;

use clap::Parser;

use crate::config::Config;

/// mimalloc, because messages are allocated in one task and freed in another: glibc takes a lock
/// each time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let config = Config::parse();
    log::start(config.log.clone(), config.log_json);
    tokio::spawn(log::keep_limits());
    let ended = gateway::run(config).await;
    log::end(ended.as_ref().err().map(String::as_str));
    if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
