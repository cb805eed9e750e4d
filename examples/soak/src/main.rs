//! A soak: the `lines` example against clients that misbehave in every way a client can.
//!
//! `cargo run --release -p soak -- --seconds 600` builds the server, starts it, and attacks it:
//! clients that are reset, stopped, killed, that never read, send garbage or a byte at a time,
//! thousands of subscriptions a second. Meanwhile others behave, and check that they receive every
//! line in order but those the server says they lost. Every second the server's memory and
//! descriptors are looked at.
//!
//! It prints what it saw and exits with 1 if the server grew, kept a descriptor, lost a line
//! without saying so, made a client wait, or ended with totals that do not add up; with 2 if it
//! could not run.

mod account;
mod args;
mod attack;
mod behave;
mod check;
mod convict;
mod net;
mod report;
mod stoppable;
mod victim;
mod watch;

use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use crate::account::Account;
use crate::args::Mode;
use crate::attack::Attackers;
use crate::behave::Citizens;
use crate::report::Report;
use crate::victim::Victim;
use crate::watch::Watch;

/// In which everybody who left is gone: longer than the server's patience with who reads too
/// slowly.
const LEAVING: Duration = Duration::from_secs(20);

fn main() -> ExitCode {
    let done = match args::parse(std::env::args().skip(1)) {
        Ok(Mode::Help) => {
            print!("{}", args::USAGE);
            return ExitCode::SUCCESS;
        }
        Ok(Mode::Client { address, key }) => return stoppable::run(&address, &key),
        Ok(Mode::Soak(options)) => runtime().and_then(|runtime| runtime.block_on(soak(&options))),
        Err(wrong) => {
            eprint!("soak: {wrong}\n\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(wrong) => {
            eprintln!("soak: {wrong}");
            ExitCode::from(2)
        }
    }
}

fn runtime() -> io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()
}

/// Whether the server stood it.
async fn soak(options: &args::Options) -> io::Result<bool> {
    net::raise_limit_of_descriptors()?;
    let mut victim = Victim::start(options.victim.clone()).await?;
    let report = Arc::new(Report::new(victim.address()));
    victim.listen_for_complaints(&report);
    println!("{} listens on {}", victim.path().display(), victim.address());

    // What the server opens with its first client and keeps is no leak.
    net::visit(victim.address()).await?;
    let baseline = victim.settled_descriptors(LEAVING).await?;
    println!("{baseline} descriptors before the first client; {} seconds to go", options.seconds);

    let mut watch = Watch::new(baseline);
    let account = match attack(options, victim, &report, &mut watch).await {
        Ok(account) => account,
        Err(wrong) => {
            report.violation(wrong);
            Account::new()
        }
    };
    Ok(report.print(&watch, &account))
}

/// What the server counted. An error if it did not live to tell.
async fn attack(
    options: &args::Options,
    victim: Victim,
    report: &Arc<Report>,
    watch: &mut Watch,
) -> io::Result<Account> {
    let (citizens, attackers) = (Citizens::spawn(report), Attackers::spawn(report));
    tokio::select! {
        seen = watch.watch(&victim, report, options.seconds) => seen?,
        _ = tokio::signal::ctrl_c() => println!("interrupted: what was seen until now is judged"),
    }
    attackers.stop().await;
    let published = timeout(LEAVING * 2, citizens.retire()).await.unwrap_or_else(|_| {
        report.violation("those who behave did not see the end of their lines");
        0
    });
    let after = victim.settles_at(watch.baseline(), LEAVING).await?;
    if after != watch.baseline() {
        let before = watch.baseline();
        report.violation(format!("{after} descriptors when all had left, {before} before"));
    }
    watch.last(&victim)?;
    let (status, said) = victim.interrupt(LEAVING).await?;
    if !status.success() {
        report.violation(format!("the server ended with {status}"));
    }
    let account = account::parse(&said);
    report.judge(&account, published);
    watch.judge(report);
    Ok(account)
}
