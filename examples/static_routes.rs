//! Routes that are known when the program is written: an enum of messages, and for each variant a
//! sink with a different type. A key function and a list of routes replace a macro.
//!
//! ```sh
//! cargo run --release --example static_routes                  # with some sample messages
//! printf 'log hi\nmetric load 0.5\n' | cargo run --release --example static_routes -- -
//! cargo run --release --example static_routes -- FILE
//! ```
//!
//! ```text
//!                                   ┌─ Log ────▶ lines of text, to standard output
//! lines ─▶ messages ─▶ demux by kind┼─ Metric ─▶ a map that adds up values
//!                                   ├─ Alarm ──▶ a channel, whose receiver counts to three
//!                                   └─ Trace ──▶ no sink: printed, counted, dropped
//! ```
//!
//! The input is fallible: it ends at its first error. The items before the error are delivered, and
//! the program fails with the error.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Write};
use std::pin::Pin;
use std::process::ExitCode;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use futures::channel::mpsc;
use futures::{Sink, SinkExt, Stream, StreamExt, TryStreamExt, future, sink, stream};
use stream_demux::DemuxStreamExt;
use tokio::fs::File;
use tokio::io::{AsyncRead, stdin, stdout};
use tokio_util::codec::{FramedRead, FramedWrite, LinesCodec};

#[derive(Debug)]
enum Message {
    Log(String),
    Metric { name: String, value: f64 },
    Alarm { level: u8, text: String },
    Trace(String),
}

/// The variant of a message, which is its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Log,
    Metric,
    Alarm,
    Trace,
}

impl Message {
    /// A variant that is missing here does not compile.
    fn kind(&self) -> Kind {
        match self {
            Self::Log(_) => Kind::Log,
            Self::Metric { .. } => Kind::Metric,
            Self::Alarm { .. } => Kind::Alarm,
            Self::Trace(_) => Kind::Trace,
        }
    }
}

impl FromStr for Message {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        let two =
            || rest.split_once(' ').ok_or_else(|| format!("`{kind}` needs two words: {line}"));
        match kind {
            "log" => Ok(Self::Log(rest.to_owned())),
            "trace" => Ok(Self::Trace(rest.to_owned())),
            "metric" => {
                let (name, value) = two()?;
                let value = value.trim().parse().map_err(|error| format!("`{value}`: {error}"))?;
                Ok(Self::Metric { name: name.to_owned(), value })
            }
            "alarm" => {
                let (level, text) = two()?;
                let level = level.parse().map_err(|error| format!("`{level}`: {error}"))?;
                Ok(Self::Alarm { level, text: text.to_owned() })
            }
            _ => Err(format!("neither log, metric, alarm nor trace: `{kind:.20}`")),
        }
    }
}

/// The common type of the sinks, when boxed: they accept messages, and their error is a text.
type Route = Pin<Box<dyn Sink<Message, Error = String> + Send>>;

/// Makes a route of a sink for one variant: `pick` extracts the value of that variant. Messages of
/// other variants do not reach it, because the variant is the key; if one did, only this sink would
/// fail.
fn route<T: Send + 'static, S>(sink: S, pick: fn(Message) -> Result<T, Message>) -> Route
where
    S: Sink<T, Error: fmt::Display> + Send + 'static,
{
    let sink = sink.sink_map_err(|error| error.to_string());
    Box::pin(sink.with(move |message| {
        future::ready(pick(message).map_err(|message| format!("not for this route: {message:?}")))
    }))
}

/// The count and the sum of the values of each name.
type Sums = Arc<Mutex<BTreeMap<String, (u64, f64)>>>;

/// A sink that adds up values.
fn add_up(sums: Sums) -> impl Sink<(String, f64), Error = io::Error> + Send {
    sink::unfold(sums, |sums: Sums, (name, value)| {
        let mut all = sums.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, sum) = all.entry(name).or_default();
        (*count, *sum) = (*count + 1, *sum + value);
        drop(all);
        future::ok(sums)
    })
}

/// Reads messages from a file or another reader. An error names the line.
fn messages(from: impl AsyncRead + Unpin) -> impl Stream<Item = Result<Message, String>> {
    let lines = FramedRead::new(from, LinesCodec::new_with_max_length(64 * 1024));
    let lines = lines.map_err(|error| error.to_string()).enumerate();
    lines.map(|(n, line)| {
        let message = line.and_then(|line| line.parse());
        message.map_err(|error| format!("line {}: {error}", n + 1))
    })
}

const TRY: &str = "log started
metric load 0.25
alarm 1 the disk is nearly full
trace no sink for this
metric load 0.75
metric users 12
alarm 3 the disk is full
log stopped
";

async fn run(from: impl AsyncRead + Unpin) -> Result<(), String> {
    let sums = Sums::default();
    let (alarms, mut alarmed) = mpsc::channel(16);
    // The routes.
    let routes = stream::iter([
        (
            Kind::Log,
            route(FramedWrite::new(stdout(), LinesCodec::new()), |message| match message {
                Message::Log(text) => Ok(text),
                other => Err(other),
            }),
        ),
        (
            Kind::Metric,
            route(add_up(Arc::clone(&sums)), |message| match message {
                Message::Metric { name, value } => Ok((name, value)),
                other => Err(other),
            }),
        ),
        (
            Kind::Alarm,
            route(alarms, |message| match message {
                Message::Alarm { level, text } => Ok((level, text)),
                other => Err(other),
            }),
        ),
    ]);

    let (mut wrong, mut failed) = (None, Vec::new());
    let input = messages(from).scan(&mut wrong, |wrong, message| {
        future::ready(message.map_err(|error| **wrong = Some(error)).ok())
    });
    let demux = input
        .demux_by(Message::kind, routes)
        .on_unmatched(|message| {
            if let Message::Trace(text) = message {
                eprintln!("static_routes: no sink for `{text}`");
            }
        })
        .on_error(|to, error| failed.push(format!("{:?}: {error}", to.key)));
    // The reader of a channel runs concurrently with the demux, not after it.
    let count = async {
        let mut levels = [0; 3];
        while let Some((level, _text)) = alarmed.next().await {
            levels[usize::from(level.clamp(1, 3) - 1)] += 1;
        }
        levels
    };
    let (totals, alarms) = future::join(demux, count).await;

    let mut out = io::stdout().lock();
    let mut report = || {
        for (name, (count, sum)) in &*sums.lock().unwrap_or_else(PoisonError::into_inner) {
            writeln!(out, "metric {name}: {count} values, sum {sum}")?;
        }
        writeln!(out, "alarms of level 1, 2 and 3: {alarms:?}")?;
        let (received, delivered) = (totals.received, totals.delivered);
        writeln!(out, "{received} messages, {delivered} delivered, {} unmatched", totals.unmatched)
    };
    report().map_err(|error| format!("cannot print: {error}"))?;
    match failed.into_iter().chain(wrong).next() {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

const USAGE: &str = "usage: static_routes [FILE | -]

  FILE  lines of `log TEXT`, `metric NAME VALUE`, `alarm LEVEL TEXT` and `trace TEXT`; - is standard
        input; without, some lines to try it with";

enum Origin {
    Here,
    Stdin,
    File(String),
}

/// Returns `None` if help was requested.
fn from_arguments() -> Result<Option<Origin>, lexopt::Error> {
    use lexopt::prelude::{Long, Value, ValueExt};
    let (mut arguments, mut from) = (lexopt::Parser::from_env(), Origin::Here);
    while let Some(argument) = arguments.next()? {
        match argument {
            Value(name) if name == "-" => from = Origin::Stdin,
            Value(name) if matches!(from, Origin::Here) => from = Origin::File(name.string()?),
            Long("help") => return Ok(None),
            _ => return Err(argument.unexpected()),
        }
    }
    Ok(Some(from))
}

// One thread is enough, because nothing here takes long.
#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let from = match from_arguments() {
        Ok(Some(from)) => from,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("static_routes: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let done = match from {
        Origin::Here => run(TRY.as_bytes()).await,
        Origin::Stdin => run(stdin()).await.map_err(|error| format!("standard input: {error}")),
        Origin::File(name) => match File::open(&name).await {
            Ok(file) => run(file).await.map_err(|error| format!("{name}: {error}")),
            Err(error) => Err(format!("cannot open {name}: {error}")),
        },
    };
    let Err(error) = done else { return ExitCode::SUCCESS };
    eprintln!("static_routes: {error}");
    ExitCode::FAILURE
}
