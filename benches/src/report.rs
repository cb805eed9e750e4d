//! What was found, and where it is written.

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

    /// Measures a group and says how it went.
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

    /// Shows it in the plot.
    pub(crate) fn plot(&mut self, measured: Measured) {
        self.plotted.push(measured);
    }

    pub(crate) fn table(&self) -> String {
        table::render(&self.rows)
    }

    pub(crate) fn is_met(&self) -> bool {
        !self.rows.iter().any(Row::fails)
    }

    pub(crate) fn summary(&self) -> String {
        let failed = self.rows.iter().filter(|row| row.fails()).count();
        let met = match failed {
            0 => "Every must is met.".to_owned(),
            1 => "One must is not met.".to_owned(),
            failed => format!("{failed} musts are not met."),
        };
        format!("{met} {}\n", machine())
    }

    /// Writes the table and the plot beside this package's sources, and puts the table into its
    /// README.
    pub(crate) fn write(&self) -> io::Result<()> {
        let page = format!("{}\n{}", self.table(), self.summary());
        fs::write(format!("{FOLDER}/figures.md"), page)?;
        let page = format!("{}\n{}\n", table::render_for_users(&self.rows), machine());
        embed(&format!("{FOLDER}/README.md"), &page)?;
        fs::write(format!("{FOLDER}/figures.svg"), plot::render(&self.plotted))
    }
}

/// Between which lines of a README the table stands.
const MARKS: [&str; 2] = ["<!-- figures -->\n", "<!-- end of figures -->\n"];

/// Puts the table where it belongs in a README.
fn embed(path: &str, table: &str) -> io::Result<()> {
    let text = fs::read_to_string(path)?;
    let parts = text.split_once(MARKS[0]).and_then(|(before, rest)| {
        let (_, after) = rest.split_once(MARKS[1])?;
        Some((before, after))
    });
    let Some((before, after)) = parts else {
        let error = format!("{path}: no place for the table; it is between {MARKS:?}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, error));
    };
    fs::write(path, format!("{before}{}{table}{}{after}", MARKS[0], MARKS[1]))
}

/// What it was measured on.
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
