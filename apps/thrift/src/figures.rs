//! Measures calls per second by the number of calls in flight, and reads and writes of a struct.

use std::net::TcpStream;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::{StreamExt, stream};
use thrift::protocol::{TBinaryInputProtocol, TBinaryOutputProtocol, TMessageType, TSerializable};
use thrift::transport::{TFramedReadTransport, TFramedWriteTransport, TIoChannel, TTcpChannel};
use thrift_demux::demo::{DemoSyncClient, Example, OneOfEach, Serve, TDemoSyncClient, one_of_each};
use thrift_demux::{Client, Limits, Message, Options, Protocol, Settings, serve};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const ROUNDS: usize = 3;
const ROUND: Duration = Duration::from_millis(700);

/// Returns the median rate per second of a few rounds. `work` runs until the given time and returns
/// how often it did its work.
fn rate(mut work: impl FnMut(Instant) -> u64) -> f64 {
    let mut rates = [0.0; ROUNDS];
    for rate in &mut rates {
        let start = Instant::now();
        #[allow(clippy::cast_precision_loss, reason = "a few million at most")]
        let done = work(start + ROUND) as f64;
        *rate = done / start.elapsed().as_secs_f64();
    }
    rates.sort_by(f64::total_cmp);
    rates[ROUNDS / 2]
}

/// One call at a time, with the generated client, which blocks until the answer arrives.
fn one_at_a_time(address: &str) -> thrift::Result<f64> {
    let socket = TcpStream::connect(address)?;
    socket.set_nodelay(true)?;
    let (from, to) = TTcpChannel::with_stream(socket).split()?;
    let from = TBinaryInputProtocol::new(TFramedReadTransport::new(from), true);
    let to = TBinaryOutputProtocol::new(TFramedWriteTransport::new(to), true);
    let mut client = DemoSyncClient::new(from, to);
    let mut failure = None;
    let rate = rate(|end| {
        let mut calls = 0;
        while Instant::now() < end && failure.is_none() {
            failure = client.add(calls, 1).err();
            calls += 1;
        }
        calls.unsigned_abs()
    });
    failure.map_or(Ok(rate), Err)
}

async fn in_flight(client: &Client, at_once: usize) -> f64 {
    let mut rates = [0.0; ROUNDS];
    for rate in &mut rates {
        let start = Instant::now();
        let end = start + ROUND;
        let calls = stream::iter(0..)
            .take_while(|_| std::future::ready(Instant::now() < end))
            .map(|n| client.add(n, 1))
            .buffer_unordered(at_once)
            .filter(|answer| std::future::ready(answer.is_ok()))
            .count()
            .await;
        #[allow(clippy::cast_precision_loss, reason = "a few million at most")]
        let calls = calls as f64;
        *rate = calls / start.elapsed().as_secs_f64();
    }
    rates.sort_by(f64::total_cmp);
    rates[ROUNDS / 2]
}

async fn calls() -> Result<(), String> {
    let listener = TcpListener::bind("127.0.0.1:0").await.map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?.to_string();
    let stop = CancellationToken::new();
    let settings = Settings { in_flight: 4096, ..Settings::default() };
    let service = Serve(Arc::new(Example::default()));
    let server = tokio::spawn(serve(listener, service, settings, stop.clone()));

    println!("| calls in flight | calls per second | relative to one at a time |");
    println!("| --- | ---: | ---: |");
    let to = address.clone();
    let blocking = tokio::task::spawn_blocking(move || one_at_a_time(&to)).await;
    let blocking =
        blocking.map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    println!("| one at a time, blocking client of the compiler | {blocking:.0} | 1.0 |");
    let connected = Client::connect(&address, Options::default()).await;
    let client = connected.map_err(|error| error.to_string())?;
    for at_once in [1, 16, 256, 4096] {
        let rate = in_flight(&client, at_once).await;
        println!("| {at_once} | {rate:.0} | {:.1} |", rate / blocking);
    }
    drop(client);
    stop.cancel();
    server.await.map_err(|error| error.to_string())?;
    Ok(())
}

fn write(protocol: Protocol, value: &OneOfEach) -> f64 {
    rate(|end| {
        let mut done = 0;
        while Instant::now() < end {
            for id in 0..100 {
                let frame = Message::write(protocol, "each", TMessageType::Call, id, value);
                std::hint::black_box(frame.is_ok());
            }
            done += 100;
        }
        done
    })
}

fn read(protocol: Protocol, value: &OneOfEach) -> Result<f64, String> {
    let limits = Limits::default();
    let frame = Message::write(protocol, "each", TMessageType::Call, 1, value);
    let frame = frame.map_err(|error| error.to_string())?;
    let open = || Message::open(&frame, &limits).and_then(|each| each.read(&limits));
    if open().as_ref().ok() != Some(value) {
        return Err("the value read differs from the value written".to_owned());
    }
    Ok(rate(|end| {
        let mut done = 0;
        while Instant::now() < end {
            for _ in 0..100 {
                let value: Result<OneOfEach, _> = open();
                std::hint::black_box(value.is_ok());
            }
            done += 100;
        }
        done
    }))
}

/// The reader of the `thrift` crate without the guard, which shows what the guard costs.
fn read_unguarded(value: &OneOfEach) -> Result<f64, String> {
    let mut bytes = Vec::new();
    let written = value.write_to_out_protocol(&mut TBinaryOutputProtocol::new(&mut bytes, true));
    written.map_err(|error| error.to_string())?;
    Ok(rate(|end| {
        let mut done = 0;
        while Instant::now() < end {
            for _ in 0..100 {
                let mut from = TBinaryInputProtocol::new(bytes.as_slice(), true);
                std::hint::black_box(OneOfEach::read_from_in_protocol(&mut from).is_ok());
            }
            done += 100;
        }
        done
    }))
}

pub(crate) async fn run() -> Result<ExitCode, String> {
    calls().await?;
    let value = one_of_each();
    println!("\n| OneOfEach | writing, kHz | reading, kHz |");
    println!("| --- | ---: | ---: |");
    for (name, protocol) in [("binary", Protocol::Binary), ("compact", Protocol::Compact)] {
        let (writing, reading) = (write(protocol, &value), read(protocol, &value)?);
        println!("| {name} | {:.0} | {:.0} |", writing / 1e3, reading / 1e3);
    }
    let unguarded = read_unguarded(&value)?;
    println!("| binary, without envelope and guard | | {:.0} |", unguarded / 1e3);
    Ok(ExitCode::SUCCESS)
}
