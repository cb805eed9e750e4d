//! Those who behave: they publish numbered lines and check what they receive, whatever the others
//! do.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::io::AsyncWriteExt;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep};

use crate::check::{Checker, Seen};
use crate::net::{Reader, connect_narrow, connect_politely};
use crate::report::{Deed, Report};

/// Long lines in quick succession: the key that attackers subscribe to and do not read.
pub const HOSE: &str = "hose";

/// A key with numbered lines.
struct Feed {
    key: String,
    /// How its lines are written, and how often.
    manner: Manner,
    /// Before the next ones, so that a slow reader must lose some.
    tick: Duration,
    lines: u64,
    padding: usize,
    /// The number of the last line, once that is known.
    last: AtomicU64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    AtOnce,
    ByteByByte,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pace {
    Prompt,
    /// Reads one line in so long.
    Slow(Duration),
}

pub struct Citizens {
    publishers: JoinSet<u64>,
    subscribers: JoinSet<()>,
    stop: watch::Sender<bool>,
}

impl Citizens {
    pub fn spawn(report: &Arc<Report>) -> Self {
        let (stop, stopped) = watch::channel(false);
        let mut citizens = Self { publishers: JoinSet::new(), subscribers: JoinSet::new(), stop };
        let feed = |key: String, manner, tick, lines, padding| {
            let (tick, last) = (Duration::from_millis(tick), AtomicU64::new(u64::MAX));
            Arc::new(Feed { key, manner, tick, lines, padding, last })
        };
        let slow = Pace::Slow(Duration::from_millis(5));
        for n in 0..4 {
            let feed = feed(format!("feed{n}"), Manner::AtOnce, 20, 5, 20);
            citizens.add(report, &feed, &stopped, &[Pace::Prompt; 8]);
        }
        for n in 0..8 {
            let feed = feed(format!("drip{n}"), Manner::ByteByByte, 100, 1, 0);
            citizens.add(report, &feed, &stopped, &[Pace::Prompt; 2]);
        }
        let paces = [Pace::Prompt, Pace::Prompt, Pace::Prompt, slow, slow, slow, slow];
        let hose = feed(HOSE.to_owned(), Manner::AtOnce, 10, 10, 1000);
        citizens.add(report, &hose, &stopped, &paces);
        citizens
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
                if let Err(wrong) = subscribe(&feed, &report, pace).await {
                    report.violation(format!("subscriber of {}: {wrong}", feed.key));
                }
            });
        }
        let (report, feed, stopped) = (Arc::clone(report), Arc::clone(feed), stopped.clone());
        self.publishers.spawn(async move {
            match publish(&feed, &report, stopped).await {
                Ok(count) => count,
                Err(wrong) => {
                    report.violation(format!("publisher of {}: {wrong}", feed.key));
                    0
                }
            }
        });
    }

    /// Ends the feeds, and waits until every subscriber has seen the end of its own. How many lines
    /// were published.
    pub async fn retire(self) -> u64 {
        let Self { publishers, subscribers, stop } = self;
        stop.send_replace(true);
        let published = publishers.join_all().await.iter().sum();
        subscribers.join_all().await;
        published
    }
}

/// Publishes until it is to stop, and leaves in good order.
async fn publish(feed: &Feed, report: &Report, stopped: watch::Receiver<bool>) -> io::Result<u64> {
    let (mut reader, mut writer) = connect_politely(report.address()).await?;
    let mut ticks = interval(feed.tick);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut number, mut over) = (0, false);
    while !over {
        ticks.tick().await;
        over = *stopped.borrow();
        let mut text = Vec::new();
        for _ in 0..feed.lines {
            number += 1;
            let (key, now, padding) = (&feed.key, report.now(), "x".repeat(feed.padding));
            writeln!(text, "pub {key} {number} {now} {padding}")?;
        }
        if over {
            feed.last.store(number, Relaxed); // before it is on its way
            writeln!(text, "quit")?;
        }
        match feed.manner {
            Manner::AtOnce => writer.write_all(&text).await?,
            Manner::ByteByByte => {
                for byte in text {
                    writer.write_all(&[byte]).await?;
                    sleep(Duration::from_millis(2)).await;
                }
                report.count(Deed::Dripped, feed.lines);
            }
        }
        report.count(Deed::Published, feed.lines);
    }
    reader.end().await?;
    Ok(number)
}

async fn subscribe(feed: &Feed, report: &Report, pace: Pace) -> io::Result<()> {
    let (mut reader, mut writer) = match pace {
        Pace::Prompt => connect_politely(report.address()).await?,
        Pace::Slow(_) => Reader::split(connect_narrow(report.address()).await?),
    };
    writer.write_all(format!("sub {}\n", feed.key).as_bytes()).await?;
    let mut checker = Checker::default();
    loop {
        let line = reader.line().await?;
        let line = line.ok_or_else(|| io::Error::other("the server ended the connection"))?;
        let seen = checker.look(&feed.key, line).map_err(io::Error::other)?;
        let Seen::Number(number, rest) = seen else { continue };
        let last = feed.last.load(Relaxed);
        match pace {
            Pace::Prompt => {
                let then = rest.split_once(' ').and_then(|(then, _)| then.parse().ok());
                let then = then.ok_or_else(|| io::Error::other(format!("not as sent: {rest}")))?;
                if feed.manner == Manner::AtOnce {
                    report.arrived(then);
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
    report.count(Deed::Checked, checker.seen);
    report.count(Deed::Lost, checker.lost);
    Ok(())
}
