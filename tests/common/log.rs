//! One list of events that sinks, streams and hooks share, so that a test can assert their order.

use std::sync::{Arc, Mutex};

/// A shared list of lines. Clones write to the same list.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    lines: Vec<String>,
    /// Which lines are logged; `None`: all.
    matter: Option<fn(&str) -> bool>,
}

impl Log {
    pub fn new() -> Self {
        Self::default()
    }

    /// Logs only lines that `matter` from now on.
    pub fn keep_only(&self, matter: fn(&str) -> bool) {
        super::lock(&self.0).matter = Some(matter);
    }

    pub fn push(&self, line: impl Into<String>) {
        let line = line.into();
        let mut state = super::lock(&self.0);
        if state.matter.is_none_or(|matter| matter(&line)) {
            state.lines.push(line);
        }
    }

    /// All lines so far.
    pub fn lines(&self) -> Vec<String> {
        super::lock(&self.0).lines.clone()
    }

    /// The lines since the last `take`.
    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut super::lock(&self.0).lines)
    }
}
