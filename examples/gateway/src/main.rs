//! A message gateway: from RabbitMQ, or what is posted to it, to WebSockets by key. See the README.
//!
//! ```text
//! config      the command line
//! gateway     what all parts share; how it starts and stops
//! serve       accepts connections        http      routes and refusals       access   who may
//! reader      what a token lets read
//! patient     a deadline for answers     budget    bytes that may wait
//! source      where publishing goes      message   and its fate
//! amqp        RabbitMQ                   rewriter  what lapin may parse      wire, publisher, interest
//! router      the demux                  hooks     what it tells and asks    board    the counters
//! client      one WebSocket              outlet    its writing half          subscription
//! history     the last messages of a key
//! ```

mod access;
mod amqp;
mod batch;
mod board;
mod budget;
mod client;
mod config;
mod gateway;
mod history;
mod hooks;
mod http;
mod interest;
mod line;
mod message;
mod outlet;
mod page;
mod patient;
mod publisher;
mod reader;
mod rewriter;
mod router;
mod serve;
mod settle;
mod shutdown;
mod source;
mod subscription;
mod wire;

use std::io;
use std::process::ExitCode;

use clap::Parser;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{Layer, fmt};

use crate::config::Config;

#[tokio::main]
async fn main() -> ExitCode {
    let config = Config::parse();
    let lines = fmt::layer().with_writer(io::stderr).with_target(false);
    let layer = if config.log_json { lines.json().boxed() } else { lines.with_ansi(false).boxed() };
    tracing_subscriber::registry().with(layer.with_filter(config.log.clone())).init();
    match gateway::run(config).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(wrong) => {
            eprintln!("gateway: {wrong}");
            ExitCode::FAILURE
        }
    }
}
