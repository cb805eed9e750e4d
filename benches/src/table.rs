//! The table of figures.

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

    fn cells(&self) -> [String; 5] {
        let figure = self.figure.map(|figure| format!("{figure:.*}", self.decimals));
        [
            self.what.clone(),
            self.ours.clone(),
            self.rival.clone(),
            figure.unwrap_or_default(),
            self.note.clone().unwrap_or_default(),
        ]
    }
}

impl fmt::Display for Row {
    /// The figure, its rival and the limit, for a row that is beyond it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, against {}: ", self.what, self.rival)?;
        match self.figure {
            Some(figure) => write!(f, "{figure:.*}", self.decimals)?,
            None => f.write_str("not measured")?,
        }
        self.limit.map_or(Ok(()), |limit| write!(f, ", limit {limit}"))
    }
}

/// Renders the rows as an aligned Markdown table.
#[must_use]
pub fn render(rows: &[Row]) -> String {
    let headers = ["what", "ours", "rival", "ratio", "note"].map(str::to_owned);
    render_table([headers].into_iter().chain(rows.iter().map(Row::cells)).collect())
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
