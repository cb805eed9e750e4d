//! Well-behaved clients. They publish numbered lines and check what they receive during the
//! attacks.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::check::{Checker, Seen};
use crate::net::{Reader, connect_narrow, connect_with_retry};
use crate::report::{Counter, Report};

/// A key with long lines at a high rate. Attackers subscribe to it and do not read.
pub const HOSE: &str = "hose";

/// A key with numbered lines.
struct Feed {
    key: String,
    /// How lines are written.
    style: WriteStyle,
    /// Interval between two batches.
    tick: Duration,
    /// Lines per batch.
    lines: u64,
    padding: usize,
    /// The number of the last line, or `u64::MAX` until it is known.
    last: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteStyle {
    Batch,
    ByteByByte,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    Prompt,
    /// Pauses after each line.
    Slow(Duration),
}

pub struct Clients {
    publishers: JoinSet<u64>,
    subscribers: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Clients {
    pub fn spawn(report: &Arc<Report>) -> Self {
        let (stop, stopped) = watch::channel(false);
        let mut clients = Self { publishers: JoinSet::new(), subscribers: JoinSet::new(), stop };
        let feed = |key: String, style, tick, lines, padding| {
            let (tick, last) = (Duration::from_millis(tick), AtomicU64::new(u64::MAX));
            Arc::new(Feed { key, style, tick, lines, padding, last })
        };
        let slow = Pace::Slow(Duration::from_millis(5));
        for n in 0..4 {
            let feed = feed(format!("feed{n}"), WriteStyle::Batch, 20, 5, 20);
            clients.add(report, &feed, &stopped, &[Pace::Prompt; 8]);
        }
        for n in 0..8 {
            let feed = feed(format!("drip{n}"), WriteStyle::ByteByByte, 100, 1, 0);
            clients.add(report, &feed, &stopped, &[Pace::Prompt; 2]);
        }
        let paces = [Pace::Prompt, Pace::Prompt, Pace::Prompt, slow, slow, slow, slow];
        let hose = feed(HOSE.to_owned(), WriteStyle::Batch, 10, 10, 1000);
        clients.add(report, &hose, &stopped, &paces);
        clients
    }

    fn add(
        &mut self,
        report: &Arc<Report>,
        feed: &Arc<Feed>,
        stopped: &watch::Receiver<bool>,
        paces: &[Pace],
    ) {
        for &pace in paces {
            let (report, feed) = (Arc::clone(report), Arc::clone(feed));
            self.subscribers.spawn(async move {
                if let Err(error) = subscribe(&feed, &report, pace).await {
                    report.violation(format!("subscriber of {}: {error}", feed.key));
                }
            });
        }
        let (report, feed, stopped) = (Arc::clone(report), Arc::clone(feed), stopped.clone());
        self.publishers.spawn(async move {
            match publish(&feed, &report, stopped).await {
                Ok(count) => count,
                Err(error) => {
                    report.violation(format!("publisher of {}: {error}", feed.key));
                    0
                }
            }
        });
    }

    /// Ends the feeds and waits until every subscriber has received its last line. Returns the
    /// number of published lines.
    pub async fn finish(self) -> u64 {
        let Self { publishers, subscribers, stop } = self;
        stop.send_replace(true);
        let published = publishers.join_all().await.iter().sum();
        subscribers.join_all().await;
        published
    }
}

/// Publishes until `stopped` is set, then disconnects with `quit`.
async fn publish(feed: &Feed, report: &Report, stopped: watch::Receiver<bool>) -> io::Result<u64> {
    let (mut reader, mut writer) = connect_with_retry(report.address()).await?;
    let mut ticks = interval(feed.tick);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut number, mut last) = (0, false);
    while !last {
        ticks.tick().await;
        last = *stopped.borrow();
        let mut text = Vec::new();
        for _ in 0..feed.lines {
            number += 1;
            let (key, now, padding) = (&feed.key, report.now(), "x".repeat(feed.padding));
            writeln!(text, "pub {key} {number} {now} {padding}")?;
        }
        if last {
            feed.last.store(number, Relaxed); // before the line is sent
            writeln!(text, "quit")?;
        }
        match feed.style {
            WriteStyle::Batch => writer.write_all(&text).await?,
            WriteStyle::ByteByByte => {
                for byte in text {
                    writer.write_all(&[byte]).await?;
                    sleep(Duration::from_millis(2)).await;
                }
                report.count(Counter::Dripped, feed.lines);
            }
        }
        report.count(Counter::Published, feed.lines);
    }
    reader.end().await?;
    Ok(number)
}

async fn subscribe(feed: &Feed, report: &Report, pace: Pace) -> io::Result<()> {
    let (mut reader, mut writer) = match pace {
        Pace::Prompt => connect_with_retry(report.address()).await?,
        Pace::Slow(_) => Reader::split(connect_narrow(report.address()).await?),
    };
    writer.write_all(format!("sub {}\n", feed.key).as_bytes()).await?;
    let mut checker = Checker::default();
    loop {
        let line = reader.line().await?;
        let line = line.ok_or_else(|| io::Error::other("the server closed the connection"))?;
        let seen = checker.look(&feed.key, line).map_err(io::Error::other)?;
        let Seen::Number(number, rest) = seen else { continue };
        let last = feed.last.load(Relaxed);
        match pace {
            Pace::Prompt => {
                let then = rest.split_once(' ').and_then(|(then, _)| then.parse().ok());
                let then = then.ok_or_else(|| {
                    io::Error::other(format!("not the line that was sent: {rest}"))
                })?;
                if feed.style == WriteStyle::Batch {
                    report.record_latency(then);
                }
            }
            Pace::Slow(pause) if last == u64::MAX => sleep(pause).await,
            Pace::Slow(_) => {}
        }
        if number == last {
            break;
        }
    }
    writer.write_all(b"quit\n").await?;
    reader.end().await?;
    report.count(Counter::Checked, checker.seen);
    report.count(Counter::Lost, checker.lost);
    Ok(())
}
