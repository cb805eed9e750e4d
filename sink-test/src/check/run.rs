//! Runs all cases with new sinks.

use std::any::Any;
use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};

use futures_sink::Sink;

use super::SinkCheck;
use super::cases::Terms;
use super::fault::{Fault, Report, Rule};
use super::probe::{Hook, Probe, Step};

/// Disconnects the receiver.
pub(super) type Disconnect<'d, R> = &'d mut dyn FnMut(&mut R);

type Case<S, R, T> = fn(&mut Probe<'_, '_, S, R, T>, Terms) -> Step;
type GoneCase<S, R, T> = fn(&mut Probe<'_, '_, S, R, T>, Disconnect<'_, R>, Terms) -> Step;

impl<S, R, T> SinkCheck<'_, S, R, T>
where
    S: Sink<T, Error: Debug>,
    T: PartialEq + Debug,
{
    /// Checks the sink. Returns a report of what could not be checked.
    ///
    /// # Panics
    ///
    /// Panics if the sink breaks a [rule](Rule). The message names the rule and lists the calls.
    #[track_caller]
    pub fn run(self) -> Report {
        match self.try_run() {
            Ok(report) => report,
            Err(fault) => panic!("{fault}"),
        }
    }

    /// Checks the sink. The same as [`run`](Self::run), but returns the fault.
    ///
    /// A panic of the sink is caught, and is a fault, too.
    ///
    /// # Errors
    ///
    /// Returns the first [`Fault`] that is found.
    pub fn try_run(mut self) -> Result<Report, Fault> {
        let mut disconnects = std::mem::take(&mut self.disconnects);
        for variant in 0..self.variants.len() {
            self.check_variant(variant, &mut disconnects)?;
        }
        let mut gaps = Vec::new();
        if (self.closures.item)(0) == (self.closures.item)(1) {
            gaps.push("which item arrives: `item` returns equal items");
        }
        if self.terms.capacity.is_none() {
            gaps.push("a full sink: it is `unbounded`");
        }
        if disconnects.is_empty() {
            gaps.push("a sink without its receiver: there is no `disconnect`");
        }
        Ok(Report { gaps })
    }

    fn check_variant(&mut self, variant: usize, disconnects: &mut [Hook<'_, R>]) -> Step {
        let cases: [(&'static str, Case<S, R, T>); 12] = [
            ("an unused sink is flushed and closed", |p, _| p.unused()),
            ("each item is flushed", |p, _| p.one_by_one()),
            ("a few items share a flush", |p, _| p.few_per_flush()),
            ("poll_ready is called again and again", |p, _| p.ready_again()),
            ("the sink is full, and the receiver makes room", |p, terms| p.full(terms)),
            ("a full sink is flushed", |p, terms| p.full_then_flush(terms)),
            ("a full sink is closed", |p, terms| p.full_then_close(terms)),
            ("many items are sent without a flush", |p, _| p.many()),
            ("the task changes while poll_ready is pending", |p, terms| p.ready_moves(terms)),
            ("the task changes while poll_flush is pending", |p, terms| p.flush_moves(terms)),
            ("the task changes while poll_close is pending", |p, terms| p.close_moves(terms)),
            ("the sink is used after it was closed", |p, _| p.after_close()),
        ];
        for (name, case) in cases {
            self.check(variant, name, case)?;
        }
        let gone: [(&'static str, GoneCase<S, R, T>); 4] = [
            ("the receiver disconnects before an item is sent", |p, go, _| p.gone_at_once(go)),
            ("the receiver disconnects between two items", |p, go, _| p.gone_later(go)),
            ("the receiver disconnects while an item is not flushed", |p, go, _| {
                p.gone_unflushed(go)
            }),
            ("the receiver disconnects while the sink is full", |p, go, terms| {
                p.gone_while_full(go, terms)
            }),
        ];
        for disconnect in disconnects {
            for (name, case) in gone {
                self.check(variant, name, |probe, terms| case(probe, disconnect, terms))?;
            }
        }
        Ok(())
    }

    /// Runs `case` with a new sink.
    fn check(
        &mut self,
        variant: usize,
        name: &'static str,
        case: impl FnOnce(&mut Probe<'_, '_, S, R, T>, Terms) -> Step,
    ) -> Step {
        let mut probe = Probe::new((self.make)(variant), &mut self.closures);
        let result = match catch_unwind(AssertUnwindSafe(|| case(&mut probe, self.terms))) {
            Ok(result) => result,
            Err(panic) => Err(match (self.breach)(&mut probe.receiver) {
                Some(breach) => Fault::new(Rule::InnerContract, breach),
                None => Fault::new(Rule::NoPanic, message_of(&*panic)),
            }),
        };
        match result {
            Err(fault) if !self.excepted.contains(&fault.rule()) => {
                let variant = self.variants[variant];
                let case = if variant.is_empty() { name } else { &format!("{name}; {variant}") };
                Err(fault.found(case, &probe.trace))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

fn message_of(panic: &(dyn Any + Send)) -> String {
    let literal = panic.downcast_ref::<&str>().map(ToString::to_string);
    let message = literal.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("the sink panicked: {}", message.as_deref().unwrap_or("without a message"))
}
