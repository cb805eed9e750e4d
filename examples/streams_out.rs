//! Subscribers that prefer a `Stream` over a `Sink`: a channel for each subscription, whose
//! receiver ends the attachment when it is dropped; and groups, a stream for each new key.
//!
//! ```sh
//! cargo run --release --example streams_out
//! cargo run --release --example streams_out -- --readings 5000000 --sensors 100
//! ```
//!
//! ```text
//!                        ┌─▶ subscription to sensor 0       detaches gracefully, and misses nothing
//! readings ─▶ demux ─────┼─▶ subscription to sensor 1       is dropped, with the items on their way
//!                        │
//!                        └─ catch-all ─▶ demux ─┬─▶ group of sensor 0, 1, 2, …
//!                          (backpressure)       └─▶ created by the first reading of the sensor
//! ```
//!
//! Every reading is checked: it arrives once, in order, in one of the streams. You can copy
//! [`subscribe`], [`Subscription`] and [`Groups`]. On tokio you need none of it: the package
//! `stream-demux-hub` in the repository has a `Subscription`, and a worker per key.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::num::{NonZeroU32, NonZeroU64};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};

use futures::channel::mpsc::{self, Receiver, Sender, UnboundedSender};
use futures::{Stream, StreamExt, stream};
use stream_demux::{Attach, DemuxStreamExt, Discarded, Hooks, Lease, Order};
use tokio::task::JoinSet;

/// How many readings may wait for a subscriber before the input waits.
const ROOM: usize = 16;

// ---- subscriptions ------------------------------------------------------------------------------

type Orders<T> = UnboundedSender<Order<u32, Sender<T>>>;

/// A stream of the items of a key. When it is dropped, it is detached at once, and the items that
/// waited in it are dropped as well.
struct Subscription<T> {
    items: Receiver<T>,
    lease: Lease,
}

/// The demux gets the other end. If the demux has already been dropped, the stream ends at once.
fn subscribe<T>(orders: &Orders<T>, key: u32) -> Subscription<T> {
    let (sender, items) = mpsc::channel(ROOM);
    let mut lease = Lease::new();
    // This replaces an earlier subscriber, if there is one; with `Demux::multicast`, both receive
    // the items.
    let attach = Attach::new(key, sender).leased(&mut lease);
    let _ = orders.unbounded_send(attach.into());
    Subscription { items, lease }
}

impl<T> Subscription<T> {
    /// Stops getting new items. The stream ends after the items that are on their way.
    fn end(self) -> impl Stream<Item = T> {
        let Self { items, lease } = self;
        lease.detach();
        items
    }
}

impl<T> Stream for Subscription<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.items.poll_next_unpin(cx)
    }
}

// ---- groups -------------------------------------------------------------------------------------

/// Hooks that create a group for each unmatched key: an unmatched item opens a subscription for its
/// key and is the first item in it. The order to attach is sent before the next item is read and
/// therefore applies to it, so no item is lost and none is sent twice.
///
/// A group that is dropped ends; the next item of its key creates a new one. If the keys are
/// untrusted, bound `made - ended`, and decide what happens to the items beyond that.
struct Groups<T> {
    orders: Orders<T>,
    key: fn(&T) -> u32,
    /// Receives each new group.
    opened: UnboundedSender<(u32, Subscription<T>)>,
}

impl<T, E> Hooks<u32, T, E> for Groups<T> {
    fn unmatched(&mut self, item: T) {
        let key = (self.key)(&item);
        let (mut sender, items) = mpsc::channel(ROOM);
        let mut lease = Lease::new();
        // The channel is new, so there is room.
        let _ = sender.try_send(item);
        let _ = self.orders.unbounded_send(Attach::new(key, sender).leased(&mut lease).into());
        let _ = self.opened.unbounded_send((key, Subscription { items, lease }));
    }
}

// ---- the readings -------------------------------------------------------------------------------

#[derive(Debug, Clone, Copy)]
struct Reading {
    sensor: u32,
    /// From 0, for each sensor.
    number: u64,
}

/// This many readings, of each sensor in turn. Counts those that were read and not yet consumed.
fn readings(settings: Settings, under_way: Arc<UnderWay>) -> impl Stream<Item = Reading> {
    let sensors = settings.sensors.get();
    stream::iter((0..settings.readings.get()).map(move |n| {
        under_way.enter();
        let sensor = u32::try_from(n % u64::from(sensors)).expect("less than there are sensors");
        Reading { sensor, number: n / u64::from(sensors) }
    }))
}

/// How many readings are between the input and their consumers, now and at most.
#[derive(Default)]
struct UnderWay {
    now: AtomicU64,
    most: AtomicU64,
}

impl UnderWay {
    fn enter(&self) {
        let now = self.now.fetch_add(1, Relaxed) + 1;
        self.most.fetch_max(now, Relaxed);
    }

    fn leave(&self) {
        self.now.fetch_sub(1, Relaxed);
    }
}

/// The range of readings of a sensor that one stream saw; the end is exclusive.
type Seen = (u32, u64, u64);

/// Reads a stream. Returns an error if a reading is missing, or is of another sensor.
async fn read(
    sensor: u32,
    readings: &mut (impl Stream<Item = Reading> + Unpin),
    under_way: &UnderWay,
    seen: &mut Option<Seen>,
) -> Result<(), String> {
    while let Some(reading) = readings.next().await {
        under_way.leave();
        let (of, _, next) = seen.get_or_insert((sensor, reading.number, reading.number));
        if (reading.sensor, reading.number) != (*of, *next) {
            return Err(format!("expected {next} of sensor {of}, received {reading:?}"));
        }
        *next += 1;
    }
    Ok(())
}

/// Sensors with a subscriber. After this many readings, one subscriber detaches gracefully, the
/// other is dropped.
const POLITE: u32 = 0;
const IMPOLITE: u32 = 1;
const ENOUGH: usize = 1_000;

/// Takes this many readings, then ends the subscription gracefully or drops it.
async fn subscriber(
    sensor: u32,
    mut subscription: Subscription<Reading>,
    under_way: Arc<UnderWay>,
) -> Result<Option<Seen>, String> {
    let mut seen = None;
    read(sensor, &mut subscription.by_ref().take(ENOUGH), &under_way, &mut seen).await?;
    if sensor == POLITE {
        read(sensor, &mut subscription.end(), &under_way, &mut seen).await?;
    }
    Ok(seen)
}

async fn run(settings: Settings) -> Result<String, String> {
    let under_way = Arc::new(UnderWay::default());
    let mut readers = JoinSet::new();

    // The first demux: the subscribers, and a catch-all for all other readings.
    let (orders, orders_in) = mpsc::unbounded();
    for sensor in [POLITE, IMPOLITE] {
        let subscription = subscribe(&orders, sensor);
        let under_way = Arc::clone(&under_way);
        readers.spawn(subscriber(sensor, subscription, under_way));
    }
    let (strays, strays_in) = mpsc::channel(ROOM);
    let no_sensor = u32::MAX; // no sensor has this key
    let _ = orders.unbounded_send(Attach::new(no_sensor, strays).catch_all().into());
    let mut evicted = 0;
    let first = readings(settings, Arc::clone(&under_way))
        .demux_by(|reading| reading.sensor, orders_in)
        .on_discarded(|_, _, why| evicted += u64::from(why == Discarded::Evicted));

    // The second demux: a group for each key that is left.
    let (orders, orders_in) = mpsc::unbounded();
    let (opened, mut groups) = mpsc::unbounded();
    let second = strays_in.demux_by(|reading| reading.sensor, orders_in).hooks(Groups {
        orders,
        key: |reading| reading.sensor,
        opened,
    });

    // The readers run concurrently with them.
    let shared = Arc::clone(&under_way);
    let reading = async move {
        while let Some((sensor, mut group)) = groups.next().await {
            let under_way = Arc::clone(&shared);
            readers.spawn(async move {
                let mut seen = None;
                read(sensor, &mut group, &under_way, &mut seen).await?;
                Ok(seen)
            });
        }
        readers.join_all().await
    };
    // `join!` drops each future when it is done. The hooks of the second demux are dropped with it,
    // which ends the stream of new groups.
    let (first, second, seen) = futures::join!(first, second, reading);

    let mut parts = BTreeMap::<u32, Vec<(u64, u64)>>::new();
    for seen in seen {
        if let Some((sensor, from, to)) = seen? {
            parts.entry(sensor).or_default().push((from, to));
        }
    }
    let (mut missing, readings, sensors) = (0, settings.readings.get(), settings.sensors.get());
    for sensor in 0..sensors {
        let mut parts = parts.remove(&sensor).unwrap_or_default();
        let end = (readings + u64::from(sensors - 1 - sensor)) / u64::from(sensors);
        parts.push((end, end));
        parts.sort_unstable();
        let mut next = 0;
        for (from, to) in parts {
            if from < next || (from > next && sensor != IMPOLITE) {
                return Err(format!("sensor {sensor}: expected reading {next}, received {from}"));
            }
            (missing, next) = (missing + from - next, to);
        }
    }
    if first.received != readings || missing < evicted {
        return Err(format!("{missing} readings are missing, {evicted} discarded, of {first:?}"));
    }
    Ok(format!(
        "{readings} readings of {sensors} sensors: {} to subscribers, {} to {} groups\n\
         {missing} were lost with the subscriber that was dropped\n\
         between input and consumers, at most: {} readings",
        first.delivered - second.received,
        second.received,
        second.attached,
        under_way.most.load(Relaxed),
    ))
}

// ---- the command line ---------------------------------------------------------------------------

const USAGE: &str = "usage: streams_out [--readings N] [--sensors N]

  --readings N  how many there are (1000000)
  --sensors N   how many sensors they are of, in turn (10)";

#[derive(Clone, Copy)]
struct Settings {
    readings: NonZeroU64,
    sensors: NonZeroU32,
}

impl Settings {
    /// Returns `None` if help was requested.
    fn from_arguments() -> Result<Option<Self>, lexopt::Error> {
        use lexopt::prelude::{Long, ValueExt};
        let mut settings = Self {
            readings: const { NonZeroU64::new(1_000_000).unwrap() },
            sensors: const { NonZeroU32::new(10).unwrap() },
        };
        let mut arguments = lexopt::Parser::from_env();
        while let Some(argument) = arguments.next()? {
            match argument {
                Long("readings") => settings.readings = arguments.value()?.parse()?,
                Long("sensors") => settings.sensors = arguments.value()?.parse()?,
                Long("help") => return Ok(None),
                _ => return Err(argument.unexpected()),
            }
        }
        Ok(Some(settings))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let settings = match Settings::from_arguments() {
        Ok(Some(settings)) => settings,
        Ok(None) => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprintln!("streams_out: {error}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let done = run(settings).await.and_then(|report| {
        writeln!(io::stdout(), "{report}").map_err(|error| format!("cannot print: {error}"))
    });
    let Err(error) = done else { return ExitCode::SUCCESS };
    eprintln!("streams_out: {error}");
    ExitCode::FAILURE
}
