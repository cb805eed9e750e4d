//! The table of figures, with their limits and goals.

use std::fmt::{self, Write};

/// A bound of a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// The figure is this or more.
    AtLeast(f64),
    /// The figure is this or less.
    AtMost(f64),
}

impl Bound {
    fn holds(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(min) => figure >= min,
            Self::AtMost(max) => figure <= max,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtLeast(min) => write!(f, "≥ {min}"),
            Self::AtMost(max) => write!(f, "≤ {max}"),
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
    limit: Option<Bound>,
    goal: Option<Bound>,
    note: Option<String>,
}

impl Row {
    /// Creates a row: what was measured, the result of the demux, that of the other program.
    pub fn new(what: impl Into<String>, ours: impl Into<String>, rival: impl Into<String>) -> Self {
        Self { what: what.into(), ours: ours.into(), rival: rival.into(), ..Self::default() }
    }

    /// Sets the figure that the bounds apply to: a ratio, or a count. It is rounded to `decimals`
    /// decimals, also for the bounds.
    #[must_use]
    pub fn figure(self, figure: f64, decimals: usize) -> Self {
        let unit = 10f64.powi(decimals as i32);
        Self { figure: Some((figure * unit).round() / unit), decimals, ..self }
    }

    /// Sets the limit. The summary fails if the figure is beyond it.
    #[must_use]
    pub fn limit(self, limit: Bound) -> Self {
        Self { limit: Some(limit), ..self }
    }

    /// Sets the goal.
    #[must_use]
    pub fn goal(self, goal: Bound) -> Self {
        Self { goal: Some(goal), ..self }
    }

    /// Adds a note.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    /// Returns `true` if there is a limit, and the figure is beyond it or missing.
    #[must_use]
    pub fn fails(&self) -> bool {
        self.limit.is_some_and(|limit| !self.figure.is_some_and(|figure| limit.holds(figure)))
    }

    fn verdict(&self) -> String {
        let holds = |bound: Option<Bound>| match (bound, self.figure) {
            (Some(bound), Some(figure)) => Some(bound.holds(figure)),
            _ => None,
        };
        let verdict = match (self.fails(), self.limit, holds(self.goal)) {
            (true, ..) if self.figure.is_none() => "NOT MEASURED",
            (true, ..) => "NOT MET",
            (false, _, Some(true)) => "goal met",
            (false, Some(_), _) => "limit met",
            (false, None, Some(false)) => "goal not met",
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
            bound(self.limit),
            bound(self.goal),
            self.verdict(),
        ]
    }
}

const HEADERS: [&str; 7] = ["what", "ours", "rival", "ratio", "limit", "goal", "verdict"];

/// Renders the rows as an aligned Markdown table, with limits and goals.
#[must_use]
pub fn render(rows: &[Row]) -> String {
    let headers = HEADERS.map(str::to_owned);
    render_table([headers].into_iter().chain(rows.iter().map(Row::cells)).collect())
}

/// Renders the rows without limits and goals.
#[must_use]
pub fn render_for_users(rows: &[Row]) -> String {
    let headers = ["what", "ours", "rival", "ratio", "note"].map(str::to_owned);
    let cells = |row: &Row| {
        let [what, ours, rival, figure, ..] = row.cells();
        [what, ours, rival, figure, row.note.clone().unwrap_or_default()]
    };
    render_table([headers].into_iter().chain(rows.iter().map(cells)).collect())
}

fn render_table<const COLUMNS: usize>(lines: Vec<[String; COLUMNS]>) -> String {
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
