//! Samples the server's resources every second.

use std::fmt;
use std::io;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::report::{Counter, Report};
use crate::server::{Sample, Server};

const MIB: f64 = 1024.0 * 1024.0;
/// Rows of the table that is printed during the test.
const ROWS: u64 = 20;

pub struct Watch {
    baseline: usize,
    samples: Vec<Sample>,
    last: Option<Sample>,
}

impl Watch {
    pub fn new(baseline: usize) -> Self {
        Self { baseline, samples: Vec::new(), last: None }
    }

    /// The number of descriptors before the first client.
    pub fn baseline(&self) -> usize {
        self.baseline
    }

    /// Samples the server every second. Returns an error if it has exited.
    pub async fn watch(
        &mut self,
        server: &Server,
        report: &Report,
        seconds: u64,
    ) -> io::Result<()> {
        println!(
            "\n{:>7} {:>11} {:>12} {:>8} {:>7} {:>13} {:>13}",
            "second", "memory MiB", "descriptors", "threads", "cpu %", "churn/s", "slowest line"
        );
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        let every = (seconds / ROWS).max(1);
        let (mut since, mut busy, mut churned) = (Instant::now(), server.sample()?.busy, 0);
        for second in 1..=seconds {
            ticks.tick().await;
            let sample = server.sample()?;
            self.samples.push(sample);
            if second % every != 0 && second != seconds {
                continue;
            }
            let passed = since.elapsed().as_secs_f64();
            let counters =
                [Counter::Reset, Counter::Churn, Counter::Herd, Counter::Visit, Counter::Mute];
            let now: u64 = counters.iter().map(|&counter| report.counted(counter)).sum();
            #[expect(clippy::cast_precision_loss, reason = "for display")]
            let (memory, rate, slowest) = (
                sample.memory as f64 / MIB,
                (now - churned) as f64 / passed,
                report.take_slowest() as f64 / 1000.0,
            );
            println!(
                "{second:>7} {memory:>11.1} {:>12} {:>8} {:>7.0} {rate:>13.0} {slowest:>10.1} ms",
                sample.descriptors,
                sample.threads,
                (sample.busy - busy) / passed * 100.0,
            );
            (since, busy, churned) = (Instant::now(), sample.busy, now);
        }
        Ok(())
    }

    /// Takes the last sample, after all clients have disconnected.
    pub fn last(&mut self, server: &Server) -> io::Result<()> {
        self.last = Some(server.sample()?);
        Ok(())
    }

    /// Returns the samples of both halves, without the first tenth, in which the server warms up.
    fn halves(&self) -> (&[Sample], &[Sample]) {
        let warm = &self.samples[self.samples.len() / 10..];
        warm.split_at(warm.len() / 2)
    }

    pub fn judge(&self, report: &Report) {
        let (first, second) = self.halves();
        if first.is_empty() {
            return report.violation("there are no samples");
        }
        let ((before, highest), (after, peak)) = (spread(first, memory), spread(second, memory));
        if after > before * 1.1 + 4.0 {
            report
                .violation(format!("the median of memory grew from {before:.1} to {after:.1} MiB"));
        }
        if peak > highest * 1.25 + 8.0 {
            report.violation(format!("the peak of memory grew from {highest:.1} to {peak:.1} MiB"));
        }
        // The maximum depends on the attacks of many clients at once. A leak raises the minimum.
        let (before, after) = (least(first), least(second));
        if after > before + before / 5 + 20 {
            report.violation(format!("the minimum of descriptors grew from {before} to {after}"));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "the comparison is approximate")]
fn memory(sample: &Sample) -> f64 {
    sample.memory as f64 / MIB
}

fn least(samples: &[Sample]) -> usize {
    samples.iter().map(|sample| sample.descriptors).min().unwrap_or(0)
}

fn most(samples: &[Sample]) -> usize {
    samples.iter().map(|sample| sample.descriptors).max().unwrap_or(0)
}

/// Returns the median and the maximum.
fn spread(samples: &[Sample], of: fn(&Sample) -> f64) -> (f64, f64) {
    let mut values = samples.iter().map(of).collect::<Vec<_>>();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[values.len() - 1])
}

impl fmt::Display for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, second) = self.halves();
        if first.is_empty() {
            return writeln!(f, "there are no samples");
        }
        writeln!(f, "{:>28} {:>12} {:>12}", "", "first half", "second half")?;
        let ((before, highest), (after, peak)) = (spread(first, memory), spread(second, memory));
        writeln!(f, "{:>28} {before:>12.1} {after:>12.1}", "memory MiB, median")?;
        writeln!(f, "{:>28} {highest:>12.1} {peak:>12.1}", "memory MiB, maximum")?;
        writeln!(f, "{:>28} {:>12} {:>12}", "descriptors, minimum", least(first), least(second))?;
        writeln!(f, "{:>28} {:>12} {:>12}", "descriptors, maximum", most(first), most(second))?;
        if let Some(last) = &self.last {
            let (memory, now, baseline) = (memory(last), last.descriptors, self.baseline);
            writeln!(
                f,
                "after all clients had disconnected: {memory:.1} MiB, {now} descriptors ({baseline} before)"
            )?;
        }
        Ok(())
    }
}
