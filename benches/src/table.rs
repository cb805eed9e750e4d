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
    is_count: bool,
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

    /// Adds a note about the result of the other program or, if there is none, of the demux.
    #[must_use]
    pub fn note(self, note: impl Into<String>) -> Self {
        Self { note: Some(note.into()), ..self }
    }

    /// Returns `true` if there is a limit, and the figure is beyond it or missing.
    #[must_use]
    pub fn fails(&self) -> bool {
        self.limit.is_some_and(|limit| !self.figure.is_some_and(|figure| limit.holds(figure)))
    }

    /// Sets the figure as [`figure`](Self::figure) does, if it is the result of the demux in other
    /// units: it is not printed.
    #[must_use]
    pub fn count(self, figure: f64, decimals: usize) -> Self {
        Self { is_count: true, ..self.figure(figure, decimals) }
    }

    /// Returns the name of the rival, and what its cell says: its result and, in brackets, the figure
    /// and the note.
    fn rival(&self) -> Option<(&str, String)> {
        let (name, result) = self.rival.rsplit_once(": ")?;
        let figure = self.figure.filter(|_| !self.is_count);
        let figure = figure.map(|figure| format!("{figure:.*}", self.decimals));
        let details = figure.into_iter().chain(self.note.clone()).collect::<Vec<_>>();
        if details.is_empty() {
            return Some((name, result.to_owned()));
        }
        Some((name, format!("{result} ({})", details.join("; "))))
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

/// What was measured in one go: a row of the demux and each of its rivals.
struct Case<'a> {
    what: &'a str,
    ours: &'a str,
    rivals: Vec<(&'a str, String)>,
    note: String,
}

impl<'a> Case<'a> {
    /// Collects the rows of each case, which follow each other.
    fn all(rows: &'a [Row]) -> Vec<Self> {
        let mut cases = Vec::<Self>::new();
        for row in rows {
            let rival = row.rival();
            match cases.last_mut() {
                Some(case) if case.what == row.what && case.ours == row.ours => {
                    case.rivals.extend(rival);
                }
                _ => {
                    let note = match (&rival, &row.note) {
                        (Some(_), _) => String::new(),
                        (None, Some(note)) => note.clone(),
                        (None, None) => row.rival.clone(),
                    };
                    let rivals = rival.into_iter().collect();
                    cases.push(Self { what: &row.what, ours: &row.ours, rivals, note });
                }
            }
        }
        cases
    }

    fn names(&self) -> Vec<&'a str> {
        self.rivals.iter().map(|(name, _)| *name).collect()
    }
}

/// Cases with the same rivals, which have a column each.
struct Table<'a> {
    /// If there are none, each case has at most one rival, whose name is in its cell.
    columns: Vec<&'a str>,
    cases: Vec<Case<'a>>,
}

impl<'a> Table<'a> {
    /// Adds a case that has no other rivals, or more of them behind the same ones. Returns others.
    fn add(&mut self, case: Case<'a>) -> Option<Case<'a>> {
        let names = case.names();
        if self.columns.is_empty() {
            if names.len() > 1 {
                return Some(case);
            }
        } else if names.starts_with(&self.columns) {
            self.columns = names;
        } else if names.is_empty() || names.iter().any(|name| !self.columns.contains(name)) {
            return Some(case);
        }
        self.cases.push(case);
        None
    }

    fn new(case: Case<'a>) -> Self {
        let columns = if case.rivals.len() > 1 { case.names() } else { Vec::new() };
        Self { columns, cases: vec![case] }
    }

    fn render(&self) -> String {
        let mut header = vec!["what".to_owned(), "ours".to_owned()];
        if self.columns.is_empty() {
            header.extend(["rival".to_owned(), "note".to_owned()]);
        } else {
            header.extend(self.columns.iter().map(|&name| name.to_owned()));
        }
        let mut lines = vec![header];
        for case in &self.cases {
            let mut line = vec![case.what.to_owned(), case.ours.to_owned()];
            if self.columns.is_empty() {
                let rival = case.rivals.first().map(|(name, cell)| format!("{name}: {cell}"));
                line.extend([rival.unwrap_or_default(), case.note.clone()]);
            } else {
                for column in &self.columns {
                    let cell = case.rivals.iter().find(|(name, _)| name == column);
                    line.push(cell.map(|(_, cell)| cell.clone()).unwrap_or_default());
                }
            }
            lines.push(line);
        }
        render_table(&lines)
    }
}

/// Renders the rows as aligned Markdown tables: a row for each case, and a column for each rival.
#[must_use]
pub fn render(rows: &[Row]) -> String {
    let mut tables = Vec::<Table<'_>>::new();
    for case in Case::all(rows) {
        let rest = match tables.last_mut() {
            Some(table) => table.add(case),
            None => Some(case),
        };
        tables.extend(rest.map(Table::new));
    }
    tables.iter().map(Table::render).collect::<Vec<_>>().join("\n")
}

fn render_table(lines: &[Vec<String>]) -> String {
    let mut widths = vec![0; lines.first().map_or(0, Vec::len)];
    for line in lines {
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
            for &width in &widths {
                let _ = write!(table, "| {:-<width$} ", "");
            }
            table.push_str("|\n");
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rivals_are_columns() {
        let rows = [
            Row::new("10 keys", "1 ns", "loop: 2 ns").figure(2.0, 2).note("by the clock"),
            Row::new("10 keys", "1 ns", "task: 3 ns").figure(3.0, 2),
            Row::new("20 keys", "2 ns", "task: 3 ns").figure(1.5, 1),
            Row::new("turns", "7", "").figure(7.0, 0),
            Row::new("memory", "8 bytes", "worst of three").figure(8.0, 0),
            Row::new("instructions", "5.4", "loop: 2.0").count(5.4, 0),
        ];
        assert_eq!(
            render(&rows),
            "\
| what    | ours | loop                      | task        |
| ------- | ---- | ------------------------- | ----------- |
| 10 keys | 1 ns | 2 ns (2.00; by the clock) | 3 ns (3.00) |
| 20 keys | 2 ns |                           | 3 ns (1.5)  |

| what         | ours    | rival     | note           |
| ------------ | ------- | --------- | -------------- |
| turns        | 7       |           |                |
| memory       | 8 bytes |           | worst of three |
| instructions | 5.4     | loop: 2.0 |                |
"
        );
    }
}
