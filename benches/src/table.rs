//! The table: what was measured, what it must be, what we want it to be.

use std::fmt::{self, Write};

/// What a figure must be, or is wanted to be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// This or more.
    AtLeast(f64),
    /// This or less.
    AtMost(f64),
}

impl Bound {
    fn holds(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(least) => figure >= least,
            Self::AtMost(most) => figure <= most,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(least) => write!(f, "≥ {least}"),
            Self::AtMost(most) => write!(f, "≤ {most}"),
        }
    }
}

/// A line of the table.
#[derive(Debug, Clone, Default)]
pub struct Row {
    what: String,
    ours: String,
    rival: String,
    figure: Option<f64>,
    decimals: usize,
    must: Option<Bound>,
    aim: Option<Bound>,
    note: Option<String>,
}

impl Row {
    /// What was measured, ours, whom it was measured against.
    pub fn new(what: impl Into<String>, ours: impl Into<String>, rival: impl Into<String>) -> Self {
        Self { what: what.into(), ours: ours.into(), rival: rival.into(), ..Self::default() }
    }

    /// The figure that is judged, to so many decimals: the ratio of the two, or what there is only
    /// one of. It is judged as it is shown.
    #[must_use]
    pub fn figure(self, figure: f64, decimals: usize) -> Self {
        let unit = 10f64.powi(decimals as i32);
        Self { figure: Some((figure * unit).round() / unit), decimals, ..self }
    }

    /// What it must be, or the table is not met.
    #[must_use]
    pub fn must(self, must: Bound) -> Self {
        Self { must: Some(must), ..self }
    }

    /// What it is wanted to be.
    #[must_use]
    pub fn aim(self, aim: Bound) -> Self {
        Self { aim: Some(aim), ..self }
    }

    /// Says something in place of met or not met.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    /// Is there something that it must be, and is not?
    #[must_use]
    pub fn fails(&self) -> bool {
        self.must.is_some_and(|must| !self.figure.is_some_and(|figure| must.holds(figure)))
    }

    fn verdict(&self) -> String {
        let holds = |bound: Option<Bound>| match (bound, self.figure) {
            (Some(bound), Some(figure)) => Some(bound.holds(figure)),
            _ => None,
        };
        let verdict = match (self.fails(), self.must, holds(self.aim)) {
            (true, ..) if self.figure.is_none() => "NOT MEASURED",
            (true, ..) => "NOT MET",
            (false, _, Some(true)) => "aim",
            (false, Some(_), _) => "must",
            (false, None, Some(false)) => "below its aim",
            (false, None, None) => "",
        };
        match &self.note {
            None => verdict.to_owned(),
            Some(note) if verdict.is_empty() => note.clone(),
            Some(note) => format!("{verdict}; {note}"),
        }
    }

    fn cells(&self) -> [String; 7] {
        let bound = |bound: Option<Bound>| bound.map(|bound| bound.to_string()).unwrap_or_default();
        let figure = self.figure.map(|figure| format!("{figure:.*}", self.decimals));
        [
            self.what.clone(),
            self.ours.clone(),
            self.rival.clone(),
            figure.unwrap_or_default(),
            bound(self.must),
            bound(self.aim),
            self.verdict(),
        ]
    }
}

const HEADS: [&str; 7] = ["what", "ours", "rival", "ratio", "must", "aim", "met"];

/// The rows as a Markdown table that can be read as text as well, with what they must be.
#[must_use]
pub fn render(rows: &[Row]) -> String {
    let heads = HEADS.map(str::to_owned);
    lay_out([heads].into_iter().chain(rows.iter().map(Row::cells)).collect())
}

/// The same for those who want to know what they get: without what the figures are wanted to be.
#[must_use]
pub fn render_for_users(rows: &[Row]) -> String {
    let heads = ["what", "ours", "rival", "ratio", "note"].map(str::to_owned);
    let cells = |row: &Row| {
        let [what, ours, rival, figure, ..] = row.cells();
        [what, ours, rival, figure, row.note.clone().unwrap_or_default()]
    };
    lay_out([heads].into_iter().chain(rows.iter().map(cells)).collect())
}

fn lay_out<const COLUMNS: usize>(lines: Vec<[String; COLUMNS]>) -> String {
    let mut widths = [0; COLUMNS];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut table = String::new();
    for (number, line) in lines.iter().enumerate() {
        for (width, cell) in widths.iter().zip(line) {
            let _ = write!(table, "| {cell:width$} ");
        }
        table.push_str("|\n");
        if number == 0 {
            for width in widths {
                let _ = write!(table, "| {:-<width$} ", "");
            }
            table.push_str("|\n");
        }
    }
    table
}
