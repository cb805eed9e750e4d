//! The commands `serve`, `load` and `figures`; see the README or `--help`.

mod figures;
mod load;
mod log;

use std::io::{self, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use thrift_demux::demo::{Example, Serve};
use thrift_demux::{Message, Protocol, Settings, Transport, Way, serve};
use tokio::net::TcpListener;
use tokio_util::bytes::Bytes;
use tokio_util::sync::CancellationToken;

#[derive(Parser)]
#[command(about = "An asynchronous Apache Thrift client and server, each built on a demux.")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Serve idl/demo.thrift with the binary and the compact protocol until Ctrl-C.
    Serve(ServeArguments),
    /// Make many concurrent calls to a server and check every answer.
    Load(LoadArguments),
    /// Measure calls per second, and how fast a struct is read and written.
    Figures,
}

#[derive(Args)]
struct ServeArguments {
    /// Address to listen on; with port 0, the system chooses a free port.
    #[arg(long, default_value = "127.0.0.1:9090")]
    listen: String,
    /// Compress each direction as one zlib stream.
    #[arg(long)]
    zlib: bool,
    /// Log every request and answer to standard error.
    #[arg(long)]
    tee: bool,
    /// Memory limit for the calls and answers of all connections, in MiB.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    memory: u32,
    /// Memory limit for each connection, in MiB.
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    memory_each: u32,
    /// Concurrent connections; another one replaces the one that has been idle for longest.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Seconds that a frame may take to arrive, or an answer to be read by the client.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..))]
    stall_timeout: u64,
    /// Seconds that a connection may be without a call; 0 if all clients are known.
    #[arg(long, default_value_t = 300)]
    idle_timeout: u64,
}

#[derive(Args)]
pub(crate) struct LoadArguments {
    /// Address of the server.
    #[arg(long, default_value = "127.0.0.1:9090")]
    server: String,
    #[arg(long, value_enum, default_value = "binary")]
    protocol: Written,
    /// Compress each direction as one zlib stream.
    #[arg(long)]
    zlib: bool,
    /// Prepend the service name to each method name, for servers with several services.
    #[arg(long)]
    multiplexed: bool,
    /// Number of calls.
    #[arg(long, default_value_t = 10_000)]
    calls: u32,
    /// Number of concurrent calls.
    #[arg(long, default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..))]
    in_flight: u32,
    /// Cancel every N-th call, before or after its request is sent; 0 cancels none.
    #[arg(long, default_value_t = 0)]
    cancel_every: u32,
    /// Delay each call on the server by up to N milliseconds, so that answers arrive out of order;
    /// fail if none overtakes another.
    #[arg(long, default_value_t = 0)]
    shuffle: u32,
    /// Time limit of a call, in seconds.
    #[arg(long, default_value_t = 30)]
    deadline: u64,
}

#[derive(Clone, Copy, ValueEnum)]
enum Written {
    Binary,
    Compact,
}

impl From<Written> for Protocol {
    fn from(written: Written) -> Self {
        match written {
            Written::Binary => Self::Binary,
            Written::Compact => Self::Compact,
        }
    }
}

/// Prints one line of the wire tap, such as `in Call echo #7, 42 bytes`.
fn tap(way: Way, frame: &Bytes, settings: &Settings) {
    let (way, length) = (if way == Way::In { "in " } else { "out" }, frame.len());
    match Message::open(frame, &settings.limits) {
        Ok(Message { name, kind, id, .. }) => {
            log::line(format!("{way} {kind} {name} #{id}, {length} bytes"));
        }
        Err(error) => log::line(format!("{way} {error}, {length} bytes")),
    }
}

fn settings(arguments: &ServeArguments) -> Settings {
    let &ServeArguments { zlib, tee, memory, memory_each, connections, stall_timeout, .. } =
        arguments;
    let plain = Settings::default();
    Settings {
        wrap: Arc::new(move |from, to, framing| {
            let transport = if zlib {
                Transport::zlib(from, to, framing)
            } else {
                Transport::framed(from, to, framing)
            };
            let plain = plain.clone();
            if tee { transport.tee(move |way, frame| tap(way, frame, &plain)) } else { transport }
        }),
        on_closed: Arc::new(|peer, reason| log::closed(format!("closed {peer}: {reason}"))),
        on_accept_error: Arc::new(|error| {
            log::line(format!("cannot accept a connection: {error}"));
        }),
        memory: (memory as usize) << 20,
        memory_each: (memory_each as usize) << 20,
        connections: connections as usize,
        stall_timeout: Duration::from_secs(stall_timeout),
        idle_timeout: (arguments.idle_timeout > 0)
            .then(|| Duration::from_secs(arguments.idle_timeout)),
        ..Settings::default()
    }
}

/// Waits for Ctrl-C.
async fn interrupt() {
    if tokio::signal::ctrl_c().await.is_err() {
        std::future::pending::<()>().await; // it ends the process, as nothing handles it
    }
}

async fn run_server(arguments: &ServeArguments) -> Result<ExitCode, String> {
    let at = &arguments.listen;
    let listener = TcpListener::bind(at).await;
    let listener = listener.map_err(|error| format!("cannot listen on {at}: {error}"))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    println!("listening on {address}");
    let stop = CancellationToken::new();
    let service = Serve(Arc::new(Example::default()));
    let served = serve(listener, service, settings(arguments), stop.clone());
    let interrupted = async {
        interrupt().await;
        stop.cancel();
        interrupt().await;
    };
    let report = tokio::select! {
        report = served => report,
        () = interrupted => return Err("stopped at once, by a second Ctrl-C".to_owned()),
    };
    // The reader of standard output may have exited. This is not an error.
    let _ = writeln!(io::stdout(), "{report:?}");
    Ok(ExitCode::SUCCESS)
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Serve(arguments) => run_server(&arguments).await,
        Command::Load(arguments) => load::run(&arguments).await,
        Command::Figures => figures::run().await,
    };
    let code = done.unwrap_or_else(|error| {
        log::line(format!("thrift-demux: {error}"));
        ExitCode::FAILURE
    });
    log::flush();
    code
}
