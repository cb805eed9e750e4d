//! The rows that were measured, and the files that they are written to.

use std::process::Command;
use std::time::Instant;
use std::{fs, io};

use figures::measure::{Group, Measured};
use figures::plot;
use figures::table::{self, Row};

const FOLDER: &str = env!("CARGO_MANIFEST_DIR");

pub(crate) struct Report {
    started: Instant,
    rows: Vec<Row>,
    plotted: Vec<Measured>,
}

impl Default for Report {
    fn default() -> Self {
        Self { started: Instant::now(), rows: Vec::new(), plotted: Vec::new() }
    }
}

impl Report {
    pub(crate) fn begin(&self, section: &str) {
        eprintln!("{:4} s  {section}", self.started.elapsed().as_secs());
    }

    pub(crate) fn add(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Measures a group and prints its times.
    pub(crate) fn measure(&self, group: &mut Group, rounds: usize) -> Measured {
        let measured = group.measure(rounds);
        eprintln!("        {}", measured.name);
        for member in &measured.members {
            let lost = match member.sent - member.arrived {
                0 => String::new(),
                lost => format!(", {lost} of {} lost", member.sent),
            };
            eprintln!("          {:24}{:>9}{lost}", member.name, plot::nanoseconds(member.ns()));
        }
        measured
    }

    /// Adds a group to the plot.
    pub(crate) fn plot(&mut self, measured: Measured) {
        self.plotted.push(measured);
    }

    pub(crate) fn table(&self) -> String {
        table::render(&self.rows)
    }

    pub(crate) fn meets_limits(&self) -> bool {
        !self.rows.iter().any(Row::fails)
    }

    /// The rows that are beyond their limits.
    pub(crate) fn summary(&self) -> String {
        let failed = self.rows.iter().filter(|row| row.fails());
        let failed = failed.map(|row| format!("Beyond its limit: {row}.\n")).collect::<String>();
        if failed.is_empty() { "All limits are met.\n".to_owned() } else { failed }
    }

    /// Writes the table into the README of this package, and the plot beside it.
    pub(crate) fn write(&self) -> io::Result<()> {
        let page = format!("{}\n{}\n", self.table(), machine());
        embed(&format!("{FOLDER}/README.md"), &page)?;
        fs::write(format!("{FOLDER}/figures.svg"), plot::render(&self.plotted))
    }
}

/// The lines of the README that the table is between.
const MARKERS: [&str; 2] = ["<!-- figures -->\n", "<!-- end of figures -->\n"];

/// Replaces the table in a README.
fn embed(path: &str, table: &str) -> io::Result<()> {
    let text = fs::read_to_string(path)?;
    let parts = text.split_once(MARKERS[0]).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(MARKERS[1])?;
        Some((before, after))
    });
    let Some((before, after)) = parts else {
        let error = format!("{path}: no place for the table, which must be between {MARKERS:?}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, error));
    };
    fs::write(path, format!("{before}{}{table}{}{after}", MARKERS[0], MARKERS[1]))
}

/// Describes the machine and the compiler.
fn machine() -> String {
    let cpus = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpus.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let model = model.map_or("unknown processor", |(_, model)| model);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let rustc = Command::new("rustc").arg("--version").output().ok();
    let rustc = rustc.and_then(|output| String::from_utf8(output.stdout).ok());
    let rustc = rustc.as_deref().map_or("rustc unknown", str::trim);
    let plural = if cores == 1 { "" } else { "s" };
    format!("Measured on {model}, {cores} core{plural}, {}, {rustc}.", std::env::consts::OS)
}
