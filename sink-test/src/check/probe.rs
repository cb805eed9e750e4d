//! A sink under check: polls it, counts its wakes, and compares received with sent items.

use std::fmt::Debug;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_sink::Sink;

use super::fault::{Fault, Rule, Trace};
use crate::Op;
use crate::wakes::WakeCounter;

/// Number of polls of an operation that always fires its own waker, after which it counts as
/// endless. A sink that yields does so once or twice in a row.
const SELF_WAKES: usize = 1_000;

/// In the trace, separates the calls that are made after a fault to classify it.
const LOOKS_ON: &str = "(a fault; the following calls classify it)";

pub(super) type Step<V = ()> = Result<V, Fault>;

/// A user's closure for a receiver.
pub(super) type Hook<'a, R, V = ()> = Box<dyn FnMut(&mut R) -> V + 'a>;

/// The parts of a check that each probe uses.
pub(super) struct Closures<'a, R, T> {
    pub(super) item: Box<dyn FnMut(usize) -> T + 'a>,
    pub(super) receive: Hook<'a, R, Option<T>>,
    pub(super) flushed: Hook<'a, R, bool>,
    pub(super) closed: Hook<'a, R, bool>,
}

pub(super) struct Probe<'c, 'a, S, R, T> {
    pub(super) sink: Pin<Box<S>>,
    pub(super) receiver: R,
    pub(super) trace: Trace,
    /// The rule that the loss of an item breaks.
    pub(super) loss: Rule,
    pub(super) sent: usize,
    closures: &'c mut Closures<'a, R, T>,
    received: usize,
    wakes: Arc<WakeCounter>,
    /// The count of `wakes` when the last poll began.
    seen: usize,
}

impl<'c, 'a, S, R, T> Probe<'c, 'a, S, R, T> {
    pub(super) fn new((sink, receiver): (S, R), closures: &'c mut Closures<'a, R, T>) -> Self {
        Self {
            sink: Box::pin(sink),
            receiver,
            trace: Trace::default(),
            loss: Rule::Delivers,
            sent: 0,
            closures,
            received: 0,
            wakes: Arc::default(),
            seen: 0,
        }
    }

    /// Returns `true` if the present waker has fired since the last poll began.
    pub(super) fn woken(&self) -> bool {
        self.wakes.count() > self.seen
    }

    /// Uses another waker from now on. Returns the former one.
    pub(super) fn renew_waker(&mut self) -> Arc<WakeCounter> {
        self.trace.push("another waker");
        self.seen = 0;
        std::mem::take(&mut self.wakes)
    }
}

/// Single calls.
impl<S: Sink<T, Error: Debug>, R, T: PartialEq + Debug> Probe<'_, '_, S, R, T> {
    pub(super) fn poll(&mut self, op: Op) -> Poll<Result<(), S::Error>> {
        self.seen = self.wakes.count();
        let waker = self.wakes.waker();
        let cx = &mut Context::from_waker(&waker);
        let sink = self.sink.as_mut();
        self.trace.push(format!("{}: no return", op.name()));
        let answer = match op {
            Op::Ready => sink.poll_ready(cx),
            Op::Flush => sink.poll_flush(cx),
            Op::Close => sink.poll_close(cx),
            Op::Send => unreachable!("start_send is not polled"),
        };
        let woken = if self.woken() { ", woken inside" } else { "" };
        self.trace.amend(format!("{}: {answer:?}{woken}", op.name()));
        answer
    }

    /// Sends the next item.
    pub(super) fn start_send(&mut self) -> Result<(), S::Error> {
        let n = self.sent;
        let item = (self.closures.item)(n);
        self.trace.push(format!("start_send of item {n}: no return"));
        let answer = self.sink.as_mut().start_send(item);
        self.trace.amend(format!("start_send of item {n}: {answer:?}"));
        self.sent += usize::from(answer.is_ok());
        answer
    }

    /// Receives all items that have arrived. Returns their number.
    pub(super) fn drain(&mut self) -> Step<usize> {
        let before = self.received;
        while let Some(found) = (self.closures.receive)(&mut self.receiver) {
            let n = self.received;
            if n == self.sent || found != (self.closures.item)(n) {
                return Err(self.misplaced(&found));
            }
            self.received += 1;
        }
        match self.received - before {
            0 => self.trace.push("received nothing"),
            1 => self.trace.push(format!("received item {before}")),
            _ => self.trace.push(format!("received items {before} to {}", self.received - 1)),
        }
        Ok(self.received - before)
    }

    /// Returns the fault for `found`, which has arrived instead of the expected item.
    fn misplaced(&mut self, found: &T) -> Fault {
        self.trace.push(format!("received {found:?}"));
        let (due, item) = (self.received, &mut self.closures.item);
        let Some(n) = (0..self.sent).find(|&n| item(n) == *found) else {
            return Fault::new(Rule::Delivers, format!("{found:?} arrived, which was not sent"));
        };
        if n < due {
            return Fault::new(Rule::Delivers, format!("item {n} arrived twice"));
        }
        // A gap: missing items were lost, or come later.
        self.trace.push(LOOKS_ON);
        let late = (0..SELF_WAKES).any(|_| {
            let item = (self.closures.receive)(&mut self.receiver);
            // The result of the flush does not matter; it may forward items.
            let _ = item.is_none() && self.poll(Op::Flush).is_ready();
            item == Some((self.closures.item)(due))
        });
        if late {
            Fault::new(Rule::Delivers, format!("item {n} arrived before item {due}"))
        } else {
            Fault::new(self.loss, format!("item {due} was accepted, and item {n} arrived instead"))
        }
    }
}

/// Operations from their first poll to their end.
impl<S: Sink<T, Error: Debug>, R, T: PartialEq + Debug> Probe<'_, '_, S, R, T> {
    /// Polls `op` until it is neither ready nor woken. Returns `true` if it is ready.
    pub(super) fn try_op(&mut self, op: Op) -> Step<Result<bool, S::Error>> {
        for _ in 0..SELF_WAKES {
            match self.poll(op) {
                Poll::Ready(result) => return Ok(result.map(|()| true)),
                Poll::Pending if self.woken() => {}
                Poll::Pending => return Ok(Ok(false)),
            }
        }
        let what = format!("{} fired its own waker {SELF_WAKES} times in a row", op.name());
        Err(Fault::new(Rule::Progresses, what))
    }

    /// The same for a sink that must not fail.
    pub(super) fn settle(&mut self, op: Op) -> Step<bool> {
        self.try_op(op)?.map_err(|error| {
            let what =
                format!("{} failed, although the receiver is connected: {error:?}", op.name());
            Fault::new(Rule::EndsWithError, what)
        })
    }

    /// Completes `op`. Whenever it is pending, the receiver takes everything.
    pub(super) fn complete(&mut self, op: Op) -> Step {
        let mut idle = 0;
        while !self.settle(op)? {
            idle = if self.drain()? > 0 { 0 } else { idle + 1 };
            if !self.woken() {
                return Err(self.not_woken(op));
            }
            if idle == SELF_WAKES {
                let what = format!("{} was woken {idle} times, and is still pending", op.name());
                return Err(Fault::new(Rule::Progresses, what));
            }
        }
        Ok(())
    }

    /// Sends the next item as soon as the sink is ready.
    pub(super) fn send(&mut self) -> Step {
        self.complete(Op::Ready)?;
        self.send_ready()
    }

    /// Sends the next item after `poll_ready` has returned `Ready(Ok(()))`.
    pub(super) fn send_ready(&mut self) -> Step {
        self.start_send().map_err(|error| {
            let what = format!("start_send failed after poll_ready was ready: {error:?}");
            Fault::new(Rule::Room, what)
        })
    }

    /// Returns the fault for `op`, which was not woken although the receiver took all items.
    pub(super) fn not_woken(&mut self, op: Op) -> Fault {
        let name = op.name();
        self.trace.push(LOOKS_ON);
        let again = self.poll(op);
        let moves = !again.is_pending() || self.drain().is_ok_and(|items| items > 0);
        if moves || self.woken() {
            let what = format!("{name} can progress, but the waker of its last poll was not woken");
            Fault::new(Rule::Wakes, what)
        } else {
            let what = format!("{name} is pending, although the receiver has taken everything");
            Fault::new(Rule::Progresses, what)
        }
    }

    /// Completes a flush or close, after which all items must have arrived.
    pub(super) fn deliver_by(&mut self, op: Op) -> Step {
        self.complete(op)?;
        self.has_delivered(op)
    }

    /// Checks that all items have arrived, now that `op` is ready.
    pub(super) fn has_delivered(&mut self, op: Op) -> Step {
        let rule = if op == Op::Flush { Rule::Flushes } else { Rule::Closes };
        let flushed = (self.closures.flushed)(&mut self.receiver);
        let closed = op == Op::Flush || (self.closures.closed)(&mut self.receiver);
        self.drain()?;
        if self.received < self.sent {
            return Err(self.missing(op, rule));
        }
        let name = op.name();
        if !flushed {
            return Err(Fault::new(
                rule,
                format!("{name} is ready before the receiver is flushed"),
            ));
        }
        if !closed {
            return Err(Fault::new(rule, format!("{name} is ready before the receiver is closed")));
        }
        Ok(())
    }

    /// Returns the fault for missing items: they are late or lost.
    fn missing(&mut self, op: Op, rule: Rule) -> Fault {
        let (n, name) = (self.received, op.name());
        self.trace.push(LOOKS_ON);
        // Failures here are caused by the fault that was already found.
        let _ = self.complete(Op::Flush).and_then(|()| self.drain());
        let _ = self.complete(Op::Close).and_then(|()| self.drain());
        if self.received == self.sent {
            Fault::new(rule, format!("{name} was ready before item {n} had arrived"))
        } else {
            let n = self.received;
            let what = format!("item {n} was accepted and never arrived, although {name} is ready");
            Fault::new(self.loss, what)
        }
    }
}
