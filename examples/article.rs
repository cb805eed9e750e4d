//! The program that the crate grew from: a stream of messages for three clients, which are attached
//! and detached by orders from a channel. Their sinks are `Vec`s. Run it with
//!
//! ```sh
//! cargo run --release --example article -- --messages 100000000
//! cargo run --release --example article -- --messages 100000000 --variant biased
//! ```
//!
//! `--variant` runs a hand-written program instead: `select` and `biased` (a loop around
//! `futures::select!` or `select_biased!`), `select-all` (both streams boxed and merged into one),
//! and `lossy` (a loop that checks for orders once in a hundred messages).
//!
//! The input sends the order to detach client 1 half-way through, and the order to attach it again
//! after three quarters, each time just before it returns a message. Thus the number of messages
//! that each client has to receive is known.

use std::cell::Cell;
use std::collections::HashMap;
use std::pin::Pin;
use std::process::ExitCode;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures::executor::block_on;
use futures::future::Either;
use futures::{Sink, SinkExt, Stream, StreamExt, select, select_biased, stream};
use stream_demux::{DemuxStreamExt, IntoOrder, Order};

const CLIENTS: usize = 3;
const VARIANTS: [&str; 5] = ["demux", "select", "biased", "select-all", "lossy"];
const USAGE: &str =
    "usage: article [--messages N] [--variant demux|select|biased|select-all|lossy]";

#[derive(Clone)]
struct Message {
    id: usize,
    text: String,
}

/// How many messages each client received, and how many were unmatched.
#[derive(Default)]
struct Report {
    received: [Cell<u64>; CLIENTS],
    unmatched: Cell<u64>,
}

/// A client's sink: keeps what it receives, and reports on drop how many messages that was.
struct Client {
    id: usize,
    kept: Vec<Message>,
    received: u64,
    report: Rc<Report>,
}

impl Client {
    fn new(id: usize, report: &Rc<Report>) -> Self {
        Self { id, kept: Vec::new(), received: 0, report: Rc::clone(report) }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        println!("client {} received {}", self.id, self.received);
        let received = &self.report.received[self.id];
        received.set(received.get() + self.received);
    }
}

impl Sink<Message> for Client {
    type Error = std::convert::Infallible;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn start_send(mut self: Pin<&mut Self>, message: Message) -> Result<(), Self::Error> {
        // A hundred million messages do not fit into memory, so the sink is cleared now and then.
        if self.kept.len() == 10_000 {
            self.kept.clear();
        }
        self.received += u64::from(!message.text.is_empty());
        self.kept.push(message);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }
}

enum Change {
    Join(Client),
    Leave(usize),
}

impl IntoOrder for Change {
    type Key = usize;
    type Sink = Client;

    fn into_order(self) -> Order<usize, Client> {
        match self {
            Change::Join(client) => (client.id, client).into(),
            Change::Leave(id) => Order::Detach(id),
        }
    }
}

/// The input, and the orders, some of which are sent while the input is read.
fn streams(
    messages: u64,
    report: &Rc<Report>,
) -> (impl Stream<Item = Message>, flume::Receiver<Change>) {
    let (orders, changes) = flume::unbounded();
    let order = move |change| orders.send(change).expect("the receiver outlives the input");
    for id in 0..CLIENTS {
        order(Change::Join(Client::new(id, report)));
    }
    let models = [0, 1, 2].map(|id| Message { id, text: format!("message for client {id}") });
    let report = Rc::clone(report);
    let input =
        stream::iter((0..messages).zip(models.into_iter().cycle()).map(move |(n, message)| {
            if n == messages / 2 {
                order(Change::Leave(1));
            }
            if n == messages / 4 * 3 {
                order(Change::Join(Client::new(1, &report)));
            }
            message
        }));
    (input, changes)
}

/// How many messages each client has to receive.
fn expected(messages: u64) -> [u64; CLIENTS] {
    let up_to = |n: u64, id: u64| (n + 2 - id) / 3;
    let away = up_to(messages / 4 * 3, 1) - up_to(messages / 2, 1);
    [up_to(messages, 0), up_to(messages, 1) - away, up_to(messages, 2)]
}

async fn demux(
    input: impl Stream<Item = Message>,
    changes: flume::Receiver<Change>,
    report: &Report,
) {
    let totals = input.demux_by(|message| message.id, changes.into_stream()).await;
    report.unmatched.set(totals.unmatched);
}

/// The common part of the hand-written loops.
struct ByHand<'a>(HashMap<usize, Client>, &'a Report);

impl ByHand<'_> {
    fn apply(&mut self, change: Change) {
        match change {
            Change::Join(client) => self.0.insert(client.id, client),
            Change::Leave(id) => self.0.remove(&id),
        };
    }

    async fn route(&mut self, message: Message) {
        match self.0.get_mut(&message.id) {
            Some(client) => client.send(message).await.expect("infallible"),
            None => self.1.unmatched.set(self.1.unmatched.get() + 1),
        }
    }
}

macro_rules! select_loop {
    ($select:ident, $input:expr, $changes:expr, $report:expr) => {{
        let mut by_hand = ByHand(HashMap::new(), $report);
        let (mut input, mut changes) = (std::pin::pin!($input.fuse()), $changes.into_stream().fuse());
        loop {
            $select! {
                change = changes.next() => change.into_iter().for_each(|change| by_hand.apply(change)),
                message = input.next() => match message {
                    Some(message) => by_hand.route(message).await,
                    None => break,
                },
            }
        }
    }};
}

async fn select_all(
    input: impl Stream<Item = Message>,
    changes: flume::Receiver<Change>,
    report: &Report,
) {
    let mut by_hand = ByHand(HashMap::new(), report);
    let input = input.map(|message| Either::Right(Some(message)));
    let input = input.chain(stream::once(async { Either::Right(None) }));
    let changes = changes.into_stream().map(Either::Left);
    let mut both = stream::select_all([changes.boxed_local(), input.boxed_local()]);
    while let Some(next) = both.next().await {
        match next {
            Either::Left(change) => by_hand.apply(change),
            Either::Right(Some(message)) => by_hand.route(message).await,
            Either::Right(None) => break,
        }
    }
}

async fn lossy(
    input: impl Stream<Item = Message>,
    changes: flume::Receiver<Change>,
    report: &Report,
) {
    let mut by_hand = ByHand(HashMap::new(), report);
    let mut input = std::pin::pin!(input);
    let mut until_orders = 100;
    while let Some(message) = input.next().await {
        until_orders -= 1;
        if until_orders == 0 {
            until_orders = 100;
            changes.try_iter().for_each(|change| by_hand.apply(change));
        }
        by_hand.route(message).await;
    }
}

fn run(variant: &str, messages: u64) -> Result<(), String> {
    let report = Rc::new(Report::default());
    let (input, changes) = streams(messages, &report);
    let start = Instant::now();
    block_on(async {
        match variant {
            "demux" => demux(input, changes, &report).await,
            "select" => select_loop!(select, input, changes, &report),
            "biased" => select_loop!(select_biased, input, changes, &report),
            "select-all" => select_all(input, changes, &report).await,
            _ => lossy(input, changes, &report).await,
        }
    });
    let elapsed = start.elapsed();
    let tenths = elapsed.as_nanos() * 10 / u128::from(messages.max(1));

    let received = report.received.each_ref().map(Cell::get);
    let (expected, unmatched) = (expected(messages), report.unmatched.get());
    let missed = expected.iter().zip(&received).map(|(e, r)| e.saturating_sub(*r)).sum::<u64>();
    println!(
        "{variant}: {messages} messages in {:.2} s, {}.{} ns each; received {received:?}, expected {expected:?}, \
         unmatched {unmatched}, lost {missed}",
        elapsed.as_secs_f64(),
        tenths / 10,
        tenths % 10,
    );
    let total = received.iter().sum::<u64>() + unmatched;
    if total != messages {
        return Err(format!("{messages} messages were sent, but {total} accounted for"));
    }
    if variant == "demux" && received != expected {
        return Err(format!(
            "the clients should have received {expected:?}, but received {received:?}"
        ));
    }
    Ok(())
}

fn arguments() -> Result<(String, u64), String> {
    let (mut variant, mut messages) = (VARIANTS[0].to_owned(), 10_000_000);
    let mut arguments =
        std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned());
    while let Some(name) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("`{name}` needs a value"));
        match name.as_str() {
            "--messages" => {
                let value = value()?;
                messages =
                    value.parse().map_err(|error| format!("`--messages {value}`: {error}"))?;
            }
            "--variant" => variant = value()?,
            _ => return Err(format!("unknown option `{name}`")),
        }
    }
    if !VARIANTS.contains(&variant.as_str()) {
        return Err(format!("unknown variant `{variant}`"));
    }
    Ok((variant, messages))
}

fn main() -> ExitCode {
    if std::env::args_os().any(|argument| argument == "--help") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let (variant, messages) = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("article: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&variant, messages) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("article: {error}");
            ExitCode::FAILURE
        }
    }
}
