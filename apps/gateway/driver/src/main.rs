//! Publishers and clients for testing the gateway, with an account of every message.
//!
//! `apps/gateway/check` starts gateways and a broker, and runs this against them. Lines that
//! begin with `@` are read by that script.

mod abuse;
mod churn;
mod client;
mod confirm;
mod flow;
mod gap;
mod ledger;
mod loss;
mod message;
mod operate;
mod patience;
mod plan;
mod publish;
mod raw;
mod relay;
mod script;
mod stalled;
mod stats;

use std::net::TcpListener;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::abuse::Abuse;
use crate::churn::Churn;
use crate::confirm::Confirm;
use crate::flow::Flow;
use crate::gap::Gap;
use crate::loss::Loss;
use crate::operate::Operate;
use crate::patience::Patience;
use crate::plan::Plan;
use crate::publish::{Broker, Pace};
use crate::stalled::{Stalled, Stuck};

#[derive(Parser)]
#[command(about = "The test driver of the gateway's check.")]
enum Command {
    /// Sends messages to many clients; all of them must arrive, in order
    Flow(Flow),
    /// Runs one client that does not read, beside others that must not be affected
    Stalled(Stalled),
    /// One client that never reads; prints @held once more was posted than its buffers hold, and
    /// stays
    Hold { gateway: String },
    /// Posts on a broker: what is stored must be what was answered 202
    Confirm(Confirm),
    /// Messages that a client cannot get; prints @WORDS to have processes stopped and started
    Gap(Gap),
    /// Random kills, while clients come and go: each missing message is reported to its clients
    Loss(Loss),
    /// Clients that come and go while connections are closed; the bindings match in the end
    Churn(Churn),
    /// Operations of publishers and operators on a broker
    Operate(Operate),
    /// A client that reads slowly, on a broker that waits only a short time for acknowledgements
    Patience(Patience),
    /// Misbehaving clients; prints the gateway's resources before and after
    Abuse(Abuse),
    #[command(flatten)]
    Help(Help),
}

#[derive(Subcommand)]
enum Help {
    /// Prints numbers of free ports
    Ports { count: usize },
    /// Forwards connections to HOST:PORT; SIGUSR1 makes the open ones silent, SIGUSR2 keeps back
    /// what is sent to it, or sends that
    Relay { port: u16, target: String },
    /// Waits until a broker answers, for at most this number of seconds
    Await { uri: String, seconds: u64 },
}

fn main() -> ExitCode {
    let command = Command::parse();
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    message::now(); // the clock starts
    let done = runtime.block_on(async {
        match command {
            Command::Flow(flow) => flow.run().await,
            Command::Stalled(stalled) => stalled.run().await,
            Command::Hold { gateway } => hold(&gateway).await.map_err(|error| vec![error]),
            Command::Help(Help::Ports { count }) => {
                ports(count).map_err(|error| vec![error.to_string()])
            }
            Command::Confirm(confirm) => confirm.run().await,
            Command::Gap(gap) => gap.run().await.map_err(|error| vec![error]),
            Command::Loss(loss) => loss.run().await,
            Command::Churn(churn) => churn.run().await.map_err(|error| vec![error]),
            Command::Operate(operate) => operate.run().await.map_err(|error| vec![error]),
            Command::Patience(patience) => patience.run().await.map_err(|error| vec![error]),
            Command::Abuse(abuse) => abuse.run().await.map_err(|error| vec![error]),
            Command::Help(Help::Relay { port, target }) => {
                relay::run(port, target).await.map_err(|error| vec![error])
            }
            Command::Help(Help::Await { uri, seconds }) => {
                let limit = Duration::from_secs(seconds);
                Broker::new(&uri, "").connect(limit).await.map_err(|error| vec![error])
            }
        }
    });
    let Err(faults) = done else { return ExitCode::SUCCESS };
    // A broken gateway causes the same fault in a thousand clients.
    for fault in faults.iter().take(10) {
        eprintln!("  FAULT: {fault}");
    }
    if faults.len() > 10 {
        eprintln!("  FAULT: and {} more", faults.len() - 10);
    }
    ExitCode::FAILURE
}

/// Prints ports below the range from which the kernel takes those of outgoing connections. A server
/// that is restarted on a port of that range may find it taken by a client.
fn ports(count: usize) -> std::io::Result<()> {
    let mut listeners = Vec::new();
    let range = 12_000..first_source_port().min(32_000);
    for _ in 0..1_000 {
        if listeners.len() == count || range.is_empty() {
            break;
        }
        listeners.extend(TcpListener::bind(("127.0.0.1", fastrand::u16(range.clone()))).ok());
    }
    for listener in listeners {
        println!("{}", listener.local_addr()?.port()); // all held at once, so that they differ
    }
    Ok(())
}

/// Returns the first port that the kernel takes for an outgoing connection; Linux's default if it
/// cannot be read.
fn first_source_port() -> u16 {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let first = range.ok().and_then(|range| range.split_whitespace().next()?.parse().ok());
    first.unwrap_or(32_768)
}

async fn hold(gateway: &str) -> Result<(), String> {
    let plan = Plan::new(8, 400, 60_000, 5); // 24 MB
    let stuck = Stuck::subscribe(gateway, &plan).await?;
    let gateways = [gateway.to_owned()];
    publish::post(&gateways, &plan, &Pace::new(0), false).await?;
    let socket = stuck.into_socket();
    println!("@held");
    tokio::time::sleep(Duration::from_secs(600)).await; // the script ends it
    drop(socket);
    Ok(())
}
