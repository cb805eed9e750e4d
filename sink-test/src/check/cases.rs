//! The cases of the check. Each case has a new sink; later cases rely on the results of earlier
//! ones.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Poll;

use futures_sink::Sink;

use super::fault::{Fault, Rule};
use super::probe::{Probe, Step};
use super::run::Disconnect;
use crate::Op;

/// More than most buffers hold, so that a case that sends this many items meets a full sink.
const BURST: usize = 100;

/// Settings of the cases.
#[derive(Clone, Copy)]
pub(super) struct Terms {
    /// How many items the sink accepts at most while the receiver takes none; `None` if there is no
    /// bound.
    pub(super) capacity: Option<usize>,
}

/// Cases in which the receiver stays connected.
impl<S: Sink<T, Error: Debug>, R, T: PartialEq + Debug> Probe<'_, '_, S, R, T> {
    /// A sink that was never used can be flushed and closed.
    pub(super) fn unused(&mut self) -> Step {
        self.deliver_by(Op::Flush)?;
        self.deliver_by(Op::Close)
    }

    /// Each item is flushed, and must then have arrived.
    pub(super) fn one_by_one(&mut self) -> Step {
        for _ in 0..8 {
            self.send()?;
            self.deliver_by(Op::Flush)?;
        }
        self.deliver_by(Op::Close)
    }

    /// Several items share a flush. The receiver takes each as soon as it has arrived.
    pub(super) fn few_per_flush(&mut self) -> Step {
        for items in 2..5 {
            for _ in 0..items {
                self.send()?;
                self.drain()?;
            }
            self.deliver_by(Op::Flush)?;
        }
        self.deliver_by(Op::Close)
    }

    /// `poll_ready` may be called any number of times for an item.
    pub(super) fn ready_again(&mut self) -> Step {
        for _ in 0..4 {
            for _ in 0..BURST {
                self.complete(Op::Ready)?;
            }
            self.send_ready()?;
            self.drain()?;
        }
        self.deliver_by(Op::Flush)
    }

    /// The receiver takes nothing until the sink is full. Then the sink is woken for each item
    /// taken.
    pub(super) fn full(&mut self, terms: Terms) -> Step {
        self.loss = Rule::Room;
        for _ in 0..4 {
            self.fill(terms)?;
            self.complete(Op::Ready)?;
        }
        self.deliver_by(Op::Flush)?;
        self.deliver_by(Op::Close)
    }

    /// A full sink is flushed.
    pub(super) fn full_then_flush(&mut self, terms: Terms) -> Step {
        for _ in 0..2 {
            self.fill(terms)?;
            self.deliver_by(Op::Flush)?;
        }
        Ok(())
    }

    /// A full sink is closed.
    pub(super) fn full_then_close(&mut self, terms: Terms) -> Step {
        self.fill(terms)?;
        self.deliver_by(Op::Close)
    }

    /// Many items, without a flush.
    pub(super) fn many(&mut self) -> Step {
        for _ in 0..BURST {
            self.send()?;
        }
        self.deliver_by(Op::Flush)?;
        for _ in 0..BURST {
            self.send()?;
        }
        self.deliver_by(Op::Close)
    }

    /// The task of a full sink changes while `poll_ready` is pending.
    pub(super) fn ready_moves(&mut self, terms: Terms) -> Step {
        self.moves(Op::Ready, terms)
    }

    /// The same for `poll_flush`.
    pub(super) fn flush_moves(&mut self, terms: Terms) -> Step {
        self.moves(Op::Flush, terms)
    }

    /// The same for `poll_close`.
    pub(super) fn close_moves(&mut self, terms: Terms) -> Step {
        self.moves(Op::Close, terms)
    }

    /// A closed sink accepts no items.
    pub(super) fn after_close(&mut self) -> Step {
        self.send()?;
        self.deliver_by(Op::Close)?;
        self.refuses(Rule::EndsWithClose, "after poll_close had completed")
    }

    /// Sends until `poll_ready` is pending.
    fn fill(&mut self, terms: Terms) -> Step {
        let before = self.sent;
        let limit = terms.capacity.unwrap_or(BURST);
        while self.settle(Op::Ready)? {
            if self.sent - before == limit {
                return match terms.capacity {
                    None => Ok(()),
                    Some(_) => Err(Fault::new(Rule::Room, too_many(limit))),
                };
            }
            self.send_ready()?;
        }
        Ok(())
    }

    fn moves(&mut self, op: Op, terms: Terms) -> Step {
        self.fill(terms)?;
        if self.settle(op)? {
            return Ok(());
        }
        let former = self.renew_waker();
        if self.settle(op)? {
            return Ok(());
        }
        let before = former.count();
        self.drain()?;
        if !self.woken() && former.count() > before {
            let what = format!("{} woke the task that had polled it before the last", op.name());
            return Err(Fault::new(Rule::LastWaker, what));
        }
        if !self.woken() {
            return Err(self.not_woken(op));
        }
        self.complete(op)
    }

    /// Checks that the sink accepts no item. An error, `Pending` and a panic are all valid, because
    /// no methods should be called any more, so there is no rule for what they return.
    fn refuses(&mut self, rule: Rule, when: &str) -> Step {
        self.trace.push("now the sink should accept no items");
        let accepts = |probe: &mut Self| {
            let ready = |answer| matches!(answer, Poll::Ready(Ok(())));
            ready(probe.poll(Op::Ready).map_err(drop))
                && probe.start_send().is_ok()
                && ready(probe.poll(Op::Flush).map_err(drop))
        };
        match catch_unwind(AssertUnwindSafe(|| accepts(self))) {
            Ok(true) => Err(Fault::new(rule, format!("an item was accepted and flushed {when}"))),
            Ok(false) | Err(_) => Ok(()),
        }
    }
}

fn too_many(limit: usize) -> String {
    format!(
        "the sink took {limit} items and was ready for more, while the receiver took none. If it \
         has no bound, use `unbounded`; if it holds more, use `capacity`"
    )
}

/// Cases in which the receiver disconnects.
impl<S: Sink<T, Error: Debug>, R, T: PartialEq + Debug> Probe<'_, '_, S, R, T> {
    /// The receiver disconnects before an item is sent.
    pub(super) fn gone_at_once(&mut self, disconnect: Disconnect<'_, R>) -> Step {
        self.disconnect(disconnect);
        self.fails()
    }

    /// The receiver disconnects between two items.
    pub(super) fn gone_later(&mut self, disconnect: Disconnect<'_, R>) -> Step {
        self.send()?;
        self.deliver_by(Op::Flush)?;
        self.disconnect(disconnect);
        self.fails()
    }

    /// The receiver disconnects while an item is not flushed.
    pub(super) fn gone_unflushed(&mut self, disconnect: Disconnect<'_, R>) -> Step {
        self.send()?;
        self.disconnect(disconnect);
        self.fails()
    }

    /// The receiver disconnects while `poll_ready` is pending, which must wake the caller.
    pub(super) fn gone_while_full(&mut self, disconnect: Disconnect<'_, R>, terms: Terms) -> Step {
        self.fill(terms)?;
        if self.settle(Op::Ready)? {
            return Ok(()); // unbounded
        }
        self.disconnect(disconnect);
        if !self.woken() {
            let what =
                "poll_ready was pending, and was not woken when the receiver had disconnected";
            return Err(Fault::new(Rule::Wakes, what.to_owned()));
        }
        self.fails()
    }

    fn disconnect(&mut self, disconnect: Disconnect<'_, R>) {
        self.trace.push("the receiver disconnects");
        disconnect(&mut self.receiver);
    }

    /// Uses the sink until it fails; then it must accept no items.
    fn fails(&mut self) -> Step {
        // Some sinks notice it only in a flush, some only in `poll_ready`.
        for _ in 0..BURST {
            let failed =
                self.tries(Op::Ready)? || self.start_send().is_err() || self.tries(Op::Flush)?;
            if failed {
                return self.refuses(Rule::EndsWithError, "after an error");
            }
        }
        let what = format!(
            "{BURST} items were flushed without an error after the receiver had disconnected"
        );
        Err(Fault::new(Rule::EndsWithError, what))
    }

    /// Returns `true` if `op` fails.
    fn tries(&mut self, op: Op) -> Step<bool> {
        match self.try_op(op)? {
            Ok(true) => Ok(false),
            Err(_) => Ok(true),
            Ok(false) => {
                let what =
                    format!("{} is pending, although the receiver has disconnected", op.name());
                Err(Fault::new(Rule::EndsWithError, what))
            }
        }
    }
}
