//! The server as it is seen from outside, second by second.

use std::fmt;
use std::io;
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::report::{Deed, Report};
use crate::victim::{Sample, Victim};

const MIB: f64 = 1024.0 * 1024.0;
/// Rows of the table that is printed on the way.
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

    /// How many descriptors it had before the first client.
    pub fn baseline(&self) -> usize {
        self.baseline
    }

    /// Looks at the server every second for so many. An error if it is gone.
    pub async fn watch(
        &mut self,
        victim: &Victim,
        report: &Report,
        seconds: u64,
    ) -> io::Result<()> {
        println!(
            "\n{:>7} {:>11} {:>12} {:>8} {:>7} {:>13} {:>13}",
            "second",
            "memory MiB",
            "descriptors",
            "threads",
            "cpu %",
            "come and go/s",
            "slowest line"
        );
        let mut ticks = interval(Duration::from_secs(1));
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        let every = (seconds / ROWS).max(1);
        let (mut since, mut busy, mut came) = (Instant::now(), victim.sample()?.busy, 0);
        for second in 1..=seconds {
            ticks.tick().await;
            let sample = victim.sample()?;
            self.samples.push(sample);
            if second % every != 0 && second != seconds {
                continue;
            }
            let passed = since.elapsed().as_secs_f64();
            let deeds = [Deed::Reset, Deed::Churn, Deed::Herd, Deed::Visit, Deed::Mute];
            let now: u64 = deeds.iter().map(|&deed| report.counted(deed)).sum();
            #[expect(clippy::cast_precision_loss, reason = "it is for reading")]
            let (memory, rate, slowest) = (
                sample.memory as f64 / MIB,
                (now - came) as f64 / passed,
                report.take_slowest() as f64 / 1000.0,
            );
            println!(
                "{second:>7} {memory:>11.1} {:>12} {:>8} {:>7.0} {rate:>13.0} {slowest:>10.1} ms",
                sample.descriptors,
                sample.threads,
                (sample.busy - busy) / passed * 100.0,
            );
            (since, busy, came) = (Instant::now(), sample.busy, now);
        }
        Ok(())
    }

    /// Looks at it once more, when everybody has left.
    pub fn last(&mut self, victim: &Victim) -> io::Result<()> {
        self.last = Some(victim.sample()?);
        Ok(())
    }

    /// The samples of both halves; what comes first, while it warms up, is left out.
    fn halves(&self) -> (&[Sample], &[Sample]) {
        let warm = &self.samples[self.samples.len() / 10..];
        warm.split_at(warm.len() / 2)
    }

    pub fn judge(&self, report: &Report) {
        let (first, second) = self.halves();
        if first.is_empty() {
            return report.violation("nothing was watched");
        }
        let ((before, highest), (after, peak)) = (spread(first, memory), spread(second, memory));
        if after > before * 1.1 + 4.0 {
            report.violation(format!("memory grew from {before:.1} to {after:.1} MiB, by median"));
        }
        if peak > highest * 1.25 + 8.0 {
            report.violation(format!("memory peaked at {peak:.1} MiB, at {highest:.1} before"));
        }
        // How many there are at most, and for how long, is the doing of those who come in herds. A
        // leak raises what there is at least.
        let (before, after) = (least(first), least(second));
        if after > before + before / 5 + 20 {
            report.violation(format!("descriptors grew from {before} to {after}, at least"));
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "it is compared roughly")]
fn memory(sample: &Sample) -> f64 {
    sample.memory as f64 / MIB
}

fn least(samples: &[Sample]) -> usize {
    samples.iter().map(|sample| sample.descriptors).min().unwrap_or(0)
}

fn most(samples: &[Sample]) -> usize {
    samples.iter().map(|sample| sample.descriptors).max().unwrap_or(0)
}

/// Median and maximum.
fn spread(samples: &[Sample], of: fn(&Sample) -> f64) -> (f64, f64) {
    let mut values = samples.iter().map(of).collect::<Vec<_>>();
    values.sort_by(f64::total_cmp);
    (values[values.len() / 2], values[values.len() - 1])
}

impl fmt::Display for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (first, second) = self.halves();
        if first.is_empty() {
            return writeln!(f, "nothing was watched");
        }
        writeln!(f, "{:>28} {:>12} {:>12}", "", "first half", "second half")?;
        let ((before, highest), (after, peak)) = (spread(first, memory), spread(second, memory));
        writeln!(f, "{:>28} {before:>12.1} {after:>12.1}", "memory MiB, median")?;
        writeln!(f, "{:>28} {highest:>12.1} {peak:>12.1}", "memory MiB, most")?;
        writeln!(f, "{:>28} {:>12} {:>12}", "descriptors, least", least(first), least(second))?;
        writeln!(f, "{:>28} {:>12} {:>12}", "descriptors, most", most(first), most(second))?;
        if let Some(last) = &self.last {
            let (memory, now, baseline) = (memory(last), last.descriptors, self.baseline);
            writeln!(
                f,
                "when all had left: {memory:.1} MiB, {now} descriptors ({baseline} before)"
            )?;
        }
        Ok(())
    }
}
