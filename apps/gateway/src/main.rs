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
mod deliveries;
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
mod pending;
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
mod waiting;
mod wire;

use std::io::{self, Write};
use std::panic;
use std::process::ExitCode;

use tokio::runtime::{Builder, Runtime};

use crate::config::Config;

/// mimalloc, because messages are allocated in one task and freed in another: glibc takes a lock
/// each time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let config = Config::read();
    let runtime = match start(&config) {
        Ok(runtime) => runtime,
        Err(error) => {
            // It fails if standard error is closed.
            let _ = writeln!(io::stderr(), "gateway: {error}");
            return ExitCode::FAILURE;
        }
    };
    runtime.block_on(run(config))
}

async fn run(config: Config) -> ExitCode {
    tokio::spawn(log::keep_limits());
    let ended = gateway::run(config).await;
    log::end(ended.as_ref().err().map(String::as_str));
    if ended.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Starts the runtime and the log.
fn start(config: &Config) -> Result<Runtime, String> {
    // tokio returns an error if it may open no more files, or panics, depending on what for.
    panic::set_hook(Box::new(|_| {}));
    let built = panic::catch_unwind(|| Builder::new_multi_thread().enable_all().build());
    let _ = panic::take_hook();
    let runtime = match built {
        Ok(built) => built.map_err(|error| error.to_string()),
        Err(payload) => Err(log::panic_text(&*payload).to_owned()),
    };
    let runtime = runtime.map_err(|why| format!("cannot start the runtime: {why}"))?;
    let started = log::start(config.log.clone(), config.log_json);
    started.map_err(|error| format!("cannot start the log: {error}"))?;
    Ok(runtime)
}
