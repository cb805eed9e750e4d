//! What a scripted sink remembers, how it answers, and what it objects to.

use std::fmt;
use std::task::Waker;

use super::super::{Action, Log};
use super::{Answer, Call, Op};

/// How far the life of the sink has come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    Open,
    Closing,
    Closed,
    Failed,
}

/// One operation: what the test wants of it, and who waits for it.
#[derive(Default)]
pub struct Script {
    pub held: bool,
    pub fails: bool,
    pub stutters: usize,
    pub action: Option<Action>,
    pub calls: usize,
    /// Of the last Pending answer, until this operation is released.
    pub waiting: Option<Waker>,
    /// `wakes` and `taken` when it last answered Pending.
    pub pending_since: Option<(usize, usize)>,
}

pub struct State<V> {
    pub name: String,
    pub log: Option<Log>,
    pub lenient: bool,
    pub scripts: [Script; 4],
    /// Sends still to be promised by `poll_ready`; `None`: no bound.
    pub permits: Option<usize>,
    /// `poll_ready` said yes and no send has followed. A promise is kept even if the gate shuts.
    pub promised: bool,
    pub stage: Stage,
    pub dropped: bool,
    pub items: Vec<V>,
    pub taken: usize,
    pub flush_asked: usize,
    pub flushed: usize,
    pub wakes: usize,
    pub last_waker: Option<Waker>,
    pub calls: Vec<Call>,
    pub breaches: Vec<String>,
}

impl<V> State<V> {
    pub fn new(name: String) -> Self {
        Self {
            name,
            log: None,
            lenient: false,
            scripts: Default::default(),
            permits: None,
            promised: false,
            stage: Stage::Open,
            dropped: false,
            items: Vec::new(),
            taken: 0,
            flush_asked: 0,
            flushed: 0,
            wakes: 0,
            last_waker: None,
            calls: Vec::new(),
            breaches: Vec::new(),
        }
    }

    pub fn script(&mut self, op: Op) -> &mut Script {
        &mut self.scripts[op as usize]
    }

    pub fn log(&self, event: fmt::Arguments<'_>) {
        if let Some(log) = &self.log {
            log.push(format!("{} {event}", self.name));
        }
    }

    /// What is wrong with calling `op` now.
    pub fn breach(&mut self, op: Op) -> Option<&'static str> {
        match self.stage {
            Stage::Closed => return Some("after poll_close completed"),
            Stage::Failed => return Some("after an error"),
            Stage::Closing if op != Op::Close => return Some("after poll_close was called"),
            Stage::Open if op == Op::Send && !self.promised => {
                return Some("without a Ready(Ok) of poll_ready since the last send");
            }
            Stage::Open | Stage::Closing => {}
        }
        let (lenient, wakes, taken) = (self.lenient, self.wakes, self.taken);
        let (wakes_then, taken_then) = self.script(op).pending_since?;
        let excused = lenient || wakes > wakes_then || (op == Op::Flush && taken > taken_then);
        (!excused).then_some("asked again before its waker fired")
    }

    /// Answers `op`, and says whether the sink has to wake its caller inside this very call.
    pub fn answer(&mut self, op: Op) -> (Answer, bool) {
        let now = (self.wakes, self.taken);
        let shut = op == Op::Ready && self.permits == Some(0) && !self.promised;
        let script = self.script(op);
        let wakes_itself = script.stutters > 0;
        let answer = if wakes_itself {
            Answer::Pending
        } else if script.fails {
            Answer::Failed
        } else if script.held || shut {
            Answer::Pending
        } else {
            Answer::Done
        };
        script.stutters = script.stutters.saturating_sub(1);
        script.pending_since = (answer == Answer::Pending).then_some(now);
        self.wakes += usize::from(wakes_itself);
        self.settle(op, answer);
        (answer, wakes_itself)
    }

    /// What an answer means for the rest of the sink.
    fn settle(&mut self, op: Op, answer: Answer) {
        self.script(op).calls += 1;
        self.calls.push(match op {
            Op::Ready => Call::Ready(answer),
            Op::Send => Call::Send(answer),
            Op::Flush => Call::Flush(answer),
            Op::Close => Call::Close(answer),
        });
        if matches!(op, Op::Flush | Op::Close) {
            self.flush_asked = self.taken;
        }
        if op == Op::Close {
            self.stage = Stage::Closing;
        }
        match (op, answer) {
            (_, Answer::Pending) => {}
            (_, Answer::Failed) => {
                self.stage = Stage::Failed;
                self.log(format_args!("failed in {}", op.name()));
            }
            (Op::Ready, Answer::Done) if self.promised => {}
            (Op::Ready, Answer::Done) => {
                self.promised = true;
                self.permits = self.permits.map(|permits| permits - 1);
            }
            (Op::Send, Answer::Done) => {
                self.promised = false;
                self.taken += 1;
            }
            (Op::Flush, Answer::Done) => {
                self.flushed = self.taken;
                self.log(format_args!("flushed"));
            }
            (Op::Close, Answer::Done) => {
                self.flushed = self.taken;
                self.stage = Stage::Closed;
                self.log(format_args!("closed"));
            }
        }
    }
}
