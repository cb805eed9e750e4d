//! Makes many concurrent calls and checks each answer against the arguments of its call.

use std::pin::pin;
use std::process::ExitCode;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use futures::{StreamExt, poll, stream};
use thrift_demux::demo::one_of_each;
use thrift_demux::{Client, Error, Limits, Options, Transport};
use tokio::net::TcpStream;

use crate::LoadArguments;

/// The outcome of a call.
enum Fate {
    Answered,
    Mismatched(String),
    Lost(Error),
    Cancelled,
}

impl From<Result<bool, Error>> for Fate {
    fn from(done: Result<bool, Error>) -> Self {
        match done {
            Ok(true) => Self::Answered,
            Ok(false) => Self::Mismatched("the answer is wrong, or belongs to another call".into()),
            Err(error) => Self::Lost(error),
        }
    }
}

async fn connect(arguments: &LoadArguments) -> Result<Client, String> {
    let (protocol, limits) = (arguments.protocol.into(), Limits::default());
    let deadline = Duration::from_secs(arguments.deadline);
    let service = arguments.multiplexed.then_some("Demo");
    let options = Options { protocol, limits, service, deadline };
    let server = &arguments.server;
    let refused = |error: &dyn std::fmt::Display| format!("cannot connect to {server}: {error}");
    if !arguments.zlib {
        return Client::connect(server, options).await.map_err(|error| match error {
            Error::Closed(reason) => refused(&reason),
            other => refused(&other),
        });
    }
    let socket = TcpStream::connect(server).await.map_err(|error| refused(&error))?;
    socket.set_nodelay(true).map_err(|error| refused(&error))?;
    let (from, to) = socket.into_split();
    Ok(Client::over(Transport::zlib(from, to, &limits), options))
}

/// Makes a call with arguments that differ from those of all other calls.
async fn call(client: &Client, n: u32) -> Result<bool, Error> {
    let number = i64::from(n);
    Ok(match n % 5 {
        0 => client.add(number, 1_000_000).await? == number + 1_000_000,
        1 => {
            let text = format!("call {n} ").repeat(1 + n as usize % 50);
            client.echo(text.clone()).await? == text
        }
        2 => {
            let mut value = one_of_each();
            value.integer64 = number;
            client.each(value.clone()).await? == value
        }
        3 => client.sum(vec![number; 1 + n as usize % 40]).await? == number * (1 + number % 40),
        _ => {
            let words = vec![n.to_string(), "word".into(), n.to_string()];
            let counts = client.count(words).await?;
            counts.len() == 2 && counts.get(&n.to_string()) == Some(&2)
        }
    })
}

/// Makes a call with a delay of up to `most` milliseconds, and records it in `highest` when it is
/// answered.
async fn shuffled(client: &Client, n: u32, most: u32, highest: &AtomicU32) -> Result<bool, Error> {
    // Successive calls have different delays, unless `most` is 1 or 7.
    let millis = (n.wrapping_mul(7) % most.max(1)).try_into().unwrap_or(0);
    let text = format!("later {n}");
    let answer = client.later(text.clone(), millis).await?;
    highest.fetch_max(n, Relaxed);
    Ok(answer == text)
}

pub(crate) async fn run(arguments: &LoadArguments) -> Result<ExitCode, String> {
    let client = connect(arguments).await?;
    let &LoadArguments { calls, in_flight, cancel_every, shuffle, .. } = arguments;
    let (highest, overtaken) = (AtomicU32::new(0), AtomicU32::new(0));
    let one = async |n: u32| {
        if cancel_every > 0 && n % cancel_every == cancel_every - 1 {
            // The first poll attaches the call and queues its request. The future is dropped after
            // one to eight polls: before the request is written, or before it is answered.
            let mut cancelled = pin!(call(&client, n));
            for _ in 0..=n % 8 {
                if let std::task::Poll::Ready(done) = poll!(&mut cancelled) {
                    return Fate::from(done); // answered before it was cancelled
                }
                tokio::task::yield_now().await;
            }
            Fate::Cancelled
        } else if shuffle > 0 {
            let done = shuffled(&client, n, shuffle, &highest).await;
            overtaken.fetch_add(u32::from(highest.load(Relaxed) > n), Relaxed);
            Fate::from(done)
        } else {
            Fate::from(call(&client, n).await)
        }
    };
    let mut fates = pin!(stream::iter(0..calls).map(one).buffer_unordered(in_flight as usize));
    let (mut answered, mut mismatched, mut lost, mut cancelled) = (0, 0, 0, 0);
    while let Some(fate) = fates.next().await {
        match fate {
            Fate::Answered => answered += 1,
            Fate::Cancelled => cancelled += 1,
            Fate::Mismatched(why) => {
                mismatched += 1;
                eprintln!("mismatched: {why}");
            }
            Fate::Lost(error) => {
                lost += 1;
                if lost <= 5 {
                    eprintln!("lost: {error}");
                }
            }
        }
    }
    // All calls are over and their leases dropped, but the demux may not have processed that yet.
    for _ in 0..1000 {
        if client.counts().waiting == 0 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let (expected, waiting) = (calls - cancelled, client.counts().waiting);
    let overtaken = overtaken.load(Relaxed);
    println!(
        "expected {expected}, answered {answered}, mismatched {mismatched}, lost {lost}, \
         cancelled {cancelled}, left attached {waiting}, overtaken {overtaken}"
    );
    let ordered = shuffle > 0 && overtaken == 0;
    if ordered {
        eprintln!("no answer overtook another: the answers were not shuffled");
    }
    let right = answered == expected && mismatched == 0 && lost == 0 && waiting == 0 && !ordered;
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
