//! The state of a scripted sink: its behaviour, and which calls are breaches.

use std::cell::Cell;
use std::fmt;
use std::task::Waker;

use super::{Answer, Call, Op};
use crate::coop::{Deferred, Grant, PollCount, Waiting};
use crate::{Action, CoopBudget, Log};

/// The stage of a sink.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Open,
    Closing,
    Closed,
    Failed,
}

/// When a pending operation may be called again, other than after a wake.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Repeats {
    Never,
    /// `poll_ready`, once, at the start of a later poll of the task.
    InDoubt,
    Always,
}

thread_local! {
    /// The last poll of a task in which something other than sinks in doubt was polled.
    static UNDER_WAY: Cell<u64> = const { Cell::new(0) };
}

/// Notes that the current poll of a task no longer is at its start.
pub(crate) fn note_under_way() {
    UNDER_WAY.set(PollCount::now().poll);
}

/// An operation: its behaviour, and the waker that waits for it.
#[derive(Default)]
pub(super) struct Script {
    pub(super) held: bool,
    pub(super) fails: bool,
    pub(super) stutters: usize,
    pub(super) action: Option<Action>,
    pub(super) calls: usize,
    /// Set by `Pending`, until this operation is released.
    pub(super) waiting: Option<Waiting>,
    /// The counts when it last returned `Pending`.
    pub(super) pending_since: Option<Since>,
}

/// The source of the wake after `Pending`.
pub(super) enum Wake {
    /// The sink itself, inside the call.
    AtOnce,
    /// The handle, or a cooperative budget.
    Later(Option<Deferred>),
}

#[derive(Clone, Copy)]
pub(super) struct Since {
    wakes: usize,
    taken: usize,
    /// The poll of the task.
    poll: u64,
    /// The call repeated another one that had returned `Pending`, without a wake in between.
    is_repeat: bool,
}

pub(super) struct State<V> {
    pub(super) name: String,
    pub(super) log: Option<Log>,
    pub(super) repeats: Repeats,
    pub(super) budget: Option<CoopBudget>,
    /// Wakers that are held by budgets, also of operations that were called again since.
    pub(super) deferred: Vec<Deferred>,
    pub(super) scripts: [Script; 4],
    /// How often `poll_ready` may still return ready; `None` if there is no bound.
    pub(super) permits: Option<usize>,
    /// `poll_ready` returned `Ready(Ok(()))` and no send has followed. It remains valid after
    /// `park`.
    pub(super) promised: bool,
    pub(super) stage: Stage,
    pub(super) dropped: bool,
    pub(super) items: Vec<V>,
    pub(super) taken: usize,
    pub(super) flush_asked: usize,
    pub(super) flushed: usize,
    pub(super) wakes: usize,
    /// The last poll of a task in which `poll_ready` was called after it had been pending.
    pub(super) resumed_in: u64,
    pub(super) last_waker: Option<Waker>,
    pub(super) calls: Vec<Call>,
    pub(super) breaches: Vec<String>,
    /// The sink is part of a check of adapters: see [`SinkHandle::serve_check`](super::SinkHandle).
    pub(super) is_checked: bool,
}

impl<V> State<V> {
    pub(super) fn new(name: String) -> Self {
        Self {
            name,
            log: None,
            repeats: Repeats::Always,
            budget: None,
            deferred: Vec::new(),
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
            resumed_in: 0,
            last_waker: None,
            calls: Vec::new(),
            breaches: Vec::new(),
            is_checked: false,
        }
    }

    pub(super) fn script(&mut self, op: Op) -> &mut Script {
        &mut self.scripts[op as usize]
    }

    pub(super) fn log(&self, event: fmt::Arguments<'_>) {
        if let Some(log) = &self.log {
            log.push(format!("{} {event}", self.name));
        }
    }

    /// Returns why a call of `op` would be a breach, if it would.
    pub(super) fn breach(&mut self, op: Op) -> Option<&'static str> {
        match self.stage {
            Stage::Closed => return Some("after poll_close completed"),
            Stage::Failed => return Some("after an error"),
            Stage::Closing if self.is_checked && op != Op::Send => {}
            Stage::Closing if op != Op::Close => return Some("after poll_close was called"),
            Stage::Open if op == Op::Send && !self.promised => {
                return Some("without a Ready(Ok) of poll_ready since the last send");
            }
            Stage::Open | Stage::Closing => {}
        }
        let since = self.script(op).pending_since?;
        let poll = PollCount::now().poll;
        let in_doubt = op == Op::Ready
            && self.repeats == Repeats::InDoubt
            && !since.is_repeat
            && poll > since.poll
            && UNDER_WAY.get() != poll;
        let woken = self.wakes > since.wakes;
        let more_to_flush = op == Op::Flush && self.taken > since.taken;
        let always = self.repeats == Repeats::Always;
        let excused = always || woken || more_to_flush || in_doubt;
        (!excused).then_some("called again before its waker fired")
    }

    /// Notes a call of `op`, for other sinks in doubt.
    fn note_call(&mut self, op: Op, now: Since) {
        let was_pending = self.script(op).pending_since.is_some_and(|since| since.poll < now.poll);
        match op {
            Op::Send => {}
            Op::Ready if was_pending => self.resumed_in = now.poll,
            Op::Ready if self.resumed_in == now.poll => {}
            Op::Ready | Op::Flush | Op::Close => note_under_way(),
        }
    }

    /// The counts at a call of `op`.
    fn now(&mut self, op: Op) -> Since {
        let (wakes, taken) = (self.wakes, self.taken);
        let is_repeat = self.script(op).pending_since.is_some_and(|since| since.wakes == wakes);
        Since { wakes, taken, poll: PollCount::now().poll, is_repeat }
    }

    /// Counts the wakes by a cooperative budget.
    pub(super) fn hear_deferred(&mut self) {
        let deferred = self.deferred.len();
        self.deferred.retain(|deferred| !deferred.has_fired());
        self.wakes += deferred - self.deferred.len();
        for script in &mut self.scripts {
            // Dropped under the lock, which is harmless: `last_waker` is a clone of it.
            drop(script.waiting.take_if(|waiting| waiting.has_fired()));
        }
    }

    /// Returns the result of `op` and, for `Pending`, the source of the wake.
    pub(super) fn answer(&mut self, op: Op, waker: &Waker) -> (Answer, Option<Wake>) {
        let now = self.now(op);
        self.note_call(op, now);
        let shut = op == Op::Ready && self.permits == Some(0) && !self.promised;
        let stutters = self.script(op).stutters > 0;
        let free = op == Op::Send || (op == Op::Ready && self.promised) || stutters;
        let budget = self.budget.clone().filter(|_| !free);
        let grant = budget.as_ref().map(|budget| budget.ask(waker));
        let script = self.script(op);
        let pending = |wake| (Answer::Pending, Some(wake));
        let (answer, wake) = if stutters {
            script.stutters -= 1;
            pending(Wake::AtOnce)
        } else {
            match grant {
                Some(Grant::DeniedAndWoken) => pending(Wake::AtOnce),
                Some(Grant::Deferred(deferred)) => pending(Wake::Later(Some(deferred))),
                _ if script.fails => (Answer::Failed, None),
                _ if script.held || shut => pending(Wake::Later(None)),
                _ => (Answer::Done, None),
            }
        };
        script.pending_since = (answer == Answer::Pending).then_some(now);
        self.wakes += usize::from(matches!(wake, Some(Wake::AtOnce)));
        if let Some(Wake::Later(Some(deferred))) = &wake {
            self.deferred.push(deferred.clone());
        }
        if let Some(budget) = budget.filter(|_| answer != Answer::Pending) {
            budget.take();
        }
        self.record(op, answer);
        (answer, wake)
    }

    /// Records the result of `op` and its consequences.
    fn record(&mut self, op: Op, answer: Answer) {
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
        if answer == Answer::Done && op != Op::Ready {
            PollCount::count_one();
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
