//! The tables of measurements, and the cases in which a rival is better than the gateway.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use crate::measure::{Case, Figures, Sample};

const BEGIN: &str = "<!-- compare: begin -->\n";
const END: &str = "<!-- compare: end -->\n";

/// The name of a rival, its row, and whether it belongs to the table with the broker.
const RIVALS: [(&str, &str, bool); 10] = [
    ("gateway", "this gateway", false),
    ("nats", "NATS with WebSockets, published to over its own TCP protocol", false),
    ("centrifuge", "`centrifuge` 0.15 (the library, of 2021), with HTTP in front", false),
    ("nchan", "Nchan (nginx)", false),
    ("axum", "axum with `tokio::sync::broadcast`, 100 lines", false),
    ("node", "Node `ws`, 40 lines", false),
    ("mosquitto", "mosquitto with WebSockets, published to over MQTT", false),
    ("gateway-rabbitmq", "this gateway", true),
    ("web-stomp", "web-stomp", true),
    ("web-mqtt", "web-mqtt", true),
];

const COLUMNS: [(Case, &str); 6] = [
    (Case::One, "1 key, 1,000 subscribers: deliveries/s; CPU s"),
    (Case::Eight, "8 keys, 1,000 subscribers"),
    (Case::Thousand, "1,000 keys, one subscriber each"),
    (Case::Batch, "the same, in batches"),
    (Case::Idle, "KiB for an idle WebSocket"),
    (Case::Stalled, "1 client stalled: p99 of the others, ms"),
];
const BROKER_COLUMNS: [(Case, &str); 3] = [
    (Case::Thousand, "1,000 keys, transient: messages/s; CPU s"),
    (Case::Persistent, "the same, persistent"),
    (Case::One, "1 key, 1,000 subscribers"),
];

#[derive(Debug, clap::Args)]
pub struct Table {
    /// The measurements, in lines of JSON
    samples: PathBuf,
    /// The text above the tables
    about: PathBuf,
    /// Writes the tables into this file, between the two marks
    #[arg(long, value_name = "FILE")]
    into: Option<PathBuf>,
}

impl Table {
    /// Prints the tables. Returns `false` if a rival takes less processor time than the gateway.
    pub fn run(&self) -> Result<bool, String> {
        let samples = read(&self.samples)?
            .lines()
            .map(serde_json::from_str)
            .collect::<Result<Vec<Sample>, _>>()
            .map_err(|error| format!("{}: {error}", self.samples.display()))?;
        let about = read(&self.about)?;
        let text = format!(
            "{about}\n{}\nWith RabbitMQ, the processor time of the broker and the gateway:\n\n{}",
            table(&samples, false, &COLUMNS),
            table(&samples, true, &BROKER_COLUMNS)
        );
        println!("{text}");
        if let Some(path) = &self.into {
            let old = read(path)?;
            let between = old.split_once(BEGIN).and_then(|(head, rest)| {
                let (_, tail) = rest.split_once(END)?;
                Some(format!("{head}{BEGIN}\n{text}\n{END}{tail}"))
            });
            let new =
                between.ok_or_else(|| format!("{}: the two marks are missing", path.display()))?;
            fs::write(path, new).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        let ahead = ahead(&samples);
        for line in &ahead {
            println!("{line}");
        }
        Ok(ahead.is_empty() && samples.iter().all(|sample| sample.result.is_ok()))
    }
}

fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The median of each figure over the rounds, and the range of the latency.
struct Cell {
    median: Figures,
    p99: (f64, f64),
    failure: Option<String>,
    rounds: usize,
}

fn cell(samples: &[Sample], rival: &str, case: Case) -> Option<Cell> {
    let own: Vec<_> =
        samples.iter().filter(|sample| sample.rival == rival && sample.case == case).collect();
    let good: Vec<_> = own.iter().filter_map(|sample| sample.result.as_ref().ok()).collect();
    let failure = own.iter().find_map(|sample| sample.result.as_ref().err()).map(|why| {
        let line = why.lines().next().unwrap_or_default();
        format!("{} of {} rounds: {line}", own.len() - good.len(), own.len())
    });
    let sorted = |of: fn(&Figures) -> f64| {
        let mut all: Vec<f64> = good.iter().map(|figures| of(figures)).collect();
        all.sort_by(f64::total_cmp);
        all
    };
    // Of an even number of rounds, the mean of the two in the middle.
    let median = |of| match &sorted(of)[..] {
        [] => 0.0,
        all => f64::midpoint(all[(all.len() - 1) / 2], all[all.len() / 2]),
    };
    let p99 = sorted(|figures| figures.p99);
    (!own.is_empty()).then(|| Cell {
        median: Figures {
            rate: median(|figures| figures.rate),
            cpu: median(|figures| figures.cpu),
            p99: median(|figures| figures.p99),
            memory: median(|figures| figures.memory),
        },
        p99: (p99.first().copied().unwrap_or_default(), p99.last().copied().unwrap_or_default()),
        failure,
        rounds: good.len(),
    })
}

impl Cell {
    fn show(&self, case: Case) -> String {
        let mut shown = self.median.show(case);
        if case == Case::Stalled && self.p99.0 < self.p99.1 {
            shown = format!("{:.1}-{:.1}", self.p99.0, self.p99.1);
        }
        match &self.failure {
            None => shown,
            Some(failure) if self.rounds == 0 => failure.clone(),
            Some(failure) => format!("{shown} ({failure})"),
        }
    }
}

fn table(samples: &[Sample], broker: bool, columns: &[(Case, &str)]) -> String {
    let mut text = "| |".to_owned();
    for (_, title) in columns {
        let _ = write!(text, " {title} |");
    }
    let _ = write!(text, "\n|{}\n", " --- |".repeat(columns.len() + 1));
    for (rival, title, _) in RIVALS.iter().filter(|(.., is_broker)| *is_broker == broker) {
        if !samples.iter().any(|sample| sample.rival == *rival) {
            continue;
        }
        let _ = write!(text, "| {title} |");
        for (case, _) in columns {
            let shown = cell(samples, rival, *case).map(|cell| cell.show(*case));
            let _ = write!(text, " {} |", shown.unwrap_or_else(|| "-".to_owned()));
        }
        text.push('\n');
    }
    text
}

/// Lists the columns in which a rival takes less processor time, or which failed.
fn ahead(samples: &[Sample]) -> Vec<String> {
    let mut lines = Vec::new();
    let all = [(false, "gateway", &COLUMNS[..4]), (true, "gateway-rabbitmq", &BROKER_COLUMNS[..])];
    for (broker, gateway, columns) in all {
        for (case, title) in columns {
            let Some(own) = cell(samples, gateway, *case).filter(|own| own.rounds > 0) else {
                continue;
            };
            for (rival, ..) in RIVALS.iter().filter(|(.., is_broker)| *is_broker == broker) {
                let other = cell(samples, rival, *case).filter(|other| other.rounds > 0);
                let Some(other) = other.filter(|_| *rival != gateway) else { continue };
                if other.median.cpu < own.median.cpu {
                    let (own, other) = (own.median.cpu, other.median.cpu);
                    let title = title.split(": ").next().unwrap_or(title);
                    lines.push(format!(
                        "{rival} takes {other:.2} CPU s, {gateway} {own:.2}: {title}"
                    ));
                }
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(rival: &str, case: Case, cpu: f64) -> Sample {
        let figures = Figures { rate: 1_234_567.0, cpu, p99: cpu, memory: 10.4 };
        Sample { rival: rival.to_owned(), case, result: Ok(figures) }
    }

    #[test]
    fn a_rival_is_ahead_only_where_its_median_is_lower() {
        let mut samples = Vec::new();
        for cpu in [9.0, 1.0, 2.0] {
            samples.push(sample("gateway", Case::One, cpu));
            samples.push(sample("nats", Case::One, cpu + 0.1));
            samples.push(sample("nats", Case::Batch, 0.1)); // the gateway has no such column
        }
        assert_eq!(ahead(&samples), [""; 0]);
        samples.push(sample("axum", Case::One, 1.99));
        assert_eq!(ahead(&samples).len(), 1);
        assert!(ahead(&samples)[0].starts_with("axum takes 1.99 CPU s, gateway 2.00: 1 key"));
    }

    #[test]
    fn a_cell_has_the_median_and_the_failures() {
        let mut samples = vec![sample("web-mqtt", Case::One, 12.34)];
        let shown =
            |samples: &[Sample]| cell(samples, "web-mqtt", Case::One).unwrap().show(Case::One);
        assert_eq!(shown(&samples), "1,235,000; 12.3");
        let failed = Err("3 lost\nmore".to_owned());
        samples.push(Sample { rival: "web-mqtt".to_owned(), case: Case::One, result: failed });
        assert_eq!(shown(&samples), "1,235,000; 12.3 (1 of 2 rounds: 3 lost)");
        samples.remove(0);
        assert_eq!(shown(&samples), "1 of 1 rounds: 3 lost");
    }
}
