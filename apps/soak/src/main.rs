//! A soak test of the `lines` example with misbehaving clients.
//!
//! `cargo run --release -p soak -- --seconds 600` builds and starts the server, and attacks it with
//! clients that reset their connections, are suspended or killed, never read, send garbage or
//! single bytes, and with thousands of subscriptions per second. Meanwhile, well-behaved clients
//! check that they receive every line in order, except those that the server reports as lost. The
//! server's memory and descriptors are sampled every second.
//!
//! It prints a report. The exit status is 1 if the server's memory grew, it leaked a descriptor,
//! lost a line without reporting it, made a client wait too long, or printed totals that do not add
//! up; it is 2 if the test could not run.

mod args;
mod attack;
mod check;
mod clients;
mod counts;
mod net;
mod report;
mod server;
mod subscriber;
mod suspend;
mod watch;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::args::Mode;
use crate::attack::Attackers;
use crate::clients::Clients;
use crate::counts::Counts;
use crate::report::Report;
use crate::server::Server;
use crate::watch::Watch;

/// Time for all closed connections to end. It is longer than the server's time-out for slow
/// readers.
const LEAVING: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let done = match args::parse(std::env::args().skip(1)) {
        Ok(Mode::Help) => {
            print!("{}", args::USAGE);
            return ExitCode::SUCCESS;
        }
        Ok(Mode::Client { address, key }) => return subscriber::run(&address, &key),
        Ok(Mode::Soak(options)) => runtime().and_then(|runtime| runtime.block_on(soak(&options))),
        Err(error) => {
            eprint!("soak: {error}\n\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("soak: {error}");
            ExitCode::from(2)
        }
    }
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

/// Runs the soak. Returns `true` if there was no violation.
async fn soak(options: &args::Options) -> io::Result<bool> {
    net::raise_limit_of_descriptors()?;
    let mut server = Server::start(options.server.clone()).await?;
    let report = Arc::new(Report::new(server.address()));
    server.watch_stderr(&report);
    println!("{} listens on {}", server.path().display(), server.address());

    // Descriptors that the server opens with its first client and keeps are not leaks.
    net::visit(server.address()).await?;
    let baseline = server.settled_descriptors(LEAVING).await?;
    println!("{baseline} descriptors before the attack, which takes {} seconds", options.seconds);

    let mut watch = Watch::new(baseline);
    let counts = match attack(options, server, &report, &mut watch).await {
        Ok(counts) => counts,
        Err(error) => {
            report.violation(error);
            Counts::new()
        }
    };
    Ok(report.print(&watch, &counts))
}

/// Attacks the server and stops it. Returns its counts, or an error if it has crashed.
async fn attack(
    options: &args::Options,
    server: Server,
    report: &Arc<Report>,
    watch: &mut Watch,
) -> io::Result<Counts> {
    let (clients, attackers) = (Clients::spawn(report), Attackers::spawn(report));
    tokio::select! {
        seen = watch.watch(&server, report, options.seconds) => seen?,
        _ = tokio::signal::ctrl_c() => println!("interrupted: evaluating the samples so far"),
    }
    attackers.stop().await;
    let published = timeout(LEAVING * 2, clients.finish()).await.unwrap_or_else(|_| {
        report.violation("well-behaved clients did not receive their last lines");
        0
    });
    let after = server.settles_at(watch.baseline(), LEAVING).await?;
    if after != watch.baseline() {
        let before = watch.baseline();
        report.violation(format!(
            "{after} descriptors after all clients had disconnected, {before} before"
        ));
    }
    watch.last(&server)?;
    let (status, stdout) = server.interrupt(LEAVING).await?;
    if !status.success() {
        report.violation(format!("the server exited with {status}"));
    }
    let counts = counts::parse(&stdout);
    report.judge(&counts, published);
    watch.judge(report);
    Ok(counts)
}
