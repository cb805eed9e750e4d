//! The rules that sinks are checked for, and how a breach is reported.

use std::fmt;

/// A rule that [`SinkCheck`](super::SinkCheck) checks. `Display` prints it as a sentence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rule {
    /// Every item that `start_send` accepts arrives once, and in order.
    Delivers,
    /// When `poll_ready` returns `Ready(Ok(()))`, the sink has room: `start_send` succeeds and the
    /// item is not lost, and the sink does not accept more than its
    /// [capacity](super::SinkCheck::capacity) while the receiver takes nothing.
    Room,
    /// When `poll_flush` returns `Ready(Ok(()))`, all items have arrived.
    Flushes,
    /// When `poll_close` returns `Ready(Ok(()))`, all items have arrived, and the receiver is
    /// [closed](super::SinkCheck::closed).
    Closes,
    /// An operation that returned `Pending` wakes its caller when it can progress or fail.
    Wakes,
    /// If an operation was polled with several wakers, the last of them is woken.
    LastWaker,
    /// No operation stays pending when the receiver has taken everything, or wakes its caller
    /// endlessly. See [`SinkCheck`](super::SinkCheck) about tasks of tokio.
    Progresses,
    /// After `poll_close` has completed, the sink accepts no items.
    EndsWithClose,
    /// The sink fails if the receiver is [disconnected](super::SinkCheck::disconnect), and not
    /// otherwise. After an error it accepts no items.
    EndsWithError,
    /// A sink that wraps another keeps the contract of the inner sink: see
    /// [`check_adapter`](super::check_adapter).
    InnerContract,
    /// The sink does not panic while it is used correctly.
    NoPanic,
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Delivers => "every accepted item arrives once, and in order",
            Self::Room => "when `poll_ready` is ready, the sink has room",
            Self::Flushes => "when `poll_flush` is ready, all items have arrived",
            Self::Closes => "when `poll_close` is ready, all items have arrived, and the end",
            Self::Wakes => "a pending operation wakes its caller when it can progress",
            Self::LastWaker => "the waker of the last poll is woken",
            Self::Progresses => "no operation is pending forever",
            Self::EndsWithClose => "a closed sink accepts no items",
            Self::EndsWithError => "a sink fails with its receiver only, and then accepts no items",
            Self::InnerContract => "an adapter keeps the contract of the inner sink",
            Self::NoPanic => "a sink does not panic",
        })
    }
}

/// A rule that the sink has broken, and the calls that led to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    rule: Rule,
    what: String,
    case: String,
    trace: String,
}

impl Fault {
    pub(super) fn new(rule: Rule, what: String) -> Self {
        Self { rule, what, case: String::new(), trace: String::new() }
    }

    /// Adds the case in which it was found.
    pub(super) fn found(self, case: &str, trace: &Trace) -> Self {
        Self { case: case.to_owned(), trace: trace.to_string(), ..self }
    }

    /// Returns the rule that the sink has broken.
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// Returns what the sink did.
    pub fn what(&self) -> &str {
        &self.what
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rule, what, case, trace } = self;
        write!(f, "{what}\nrule: {rule} ({rule:?})\nwhile checking: {case}\ncalls:{trace}")
    }
}

impl std::error::Error for Fault {}

/// The result of a check that found no fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub(super) gaps: Vec<&'static str>,
}

impl Report {
    /// Returns what was not checked, and why. A test that should check everything asserts that this
    /// is empty.
    pub fn gaps(&self) -> &[&'static str] {
        &self.gaps
    }
}

/// The calls that were made, with repetitions counted.
#[derive(Debug, Default)]
pub(super) struct Trace(Vec<(String, usize)>);

/// Enough to see the cause of a fault; earlier calls are mostly repetitions.
const SHOWN: usize = 24;

impl Trace {
    pub(super) fn push(&mut self, line: impl Into<String>) {
        let line = line.into();
        match self.0.last_mut() {
            Some((last, times)) if *last == line => *times += 1,
            _ => self.0.push((line, 1)),
        }
    }

    /// Replaces the last line, whose call has returned.
    pub(super) fn amend(&mut self, line: impl Into<String>) {
        self.0.pop();
        self.push(line);
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = self.0.len().saturating_sub(SHOWN);
        if hidden > 0 {
            write!(f, "\n  ({hidden} earlier lines)")?;
        }
        for (line, times) in &self.0[hidden..] {
            write!(f, "\n  {line}")?;
            if *times > 1 {
                write!(f, ", {times} times")?;
            }
        }
        Ok(())
    }
}
