//! A conformance check: exercises a sink in all ways that the contract of `Sink` allows, and
//! reports the rule that it breaks.

mod adapter;
mod cases;
mod fault;
mod probe;
mod run;

use std::fmt;

use futures_sink::Sink;

pub use adapter::check_adapter;
use cases::Terms;
pub use fault::{Fault, Report, Rule};
use probe::{Closures, Hook};

/// Default for how many items a sink may accept while the receiver takes none: more than most
/// buffers hold, and few enough that an unbounded sink is found at once.
const CAPACITY: usize = 1_000;

/// Checks a sink: [`SinkCheck::new`] and [`SinkCheck::run`] in one.
///
/// # Panics
///
/// Panics if the sink breaks a [rule](Rule). The message names the rule and lists the calls.
///
/// # Examples
///
/// ```
/// use futures::{FutureExt, StreamExt, channel::mpsc};
/// use sink_test::check_sink;
///
/// check_sink(|| mpsc::channel(2), |n| n, |receiver| receiver.next().now_or_never()?);
/// ```
#[track_caller]
pub fn check_sink<S, R, T>(
    make: impl FnMut() -> (S, R),
    item: impl FnMut(usize) -> T,
    receive: impl FnMut(&mut R) -> Option<T>,
) -> Report
where
    S: Sink<T, Error: fmt::Debug>,
    T: PartialEq + fmt::Debug,
{
    SinkCheck::new(make, item, receive).run()
}

/// A conformance check for sinks, with its settings.
///
/// The check creates many sinks, each with a receiver, and runs one case with each: single items, a
/// full sink, a flush, a close, a task that changes its waker, a receiver that disconnects. It
/// polls an operation again only after a wake, so a missing wake is found. [`Rule`] lists the rules
/// that it checks.
///
/// It is single-threaded and has no clock. The receiver takes items only in `receive`, and sinks
/// must make progress by these calls and by their own polls. A sink that needs a runtime, a thread
/// or a timer to make progress cannot be checked.
///
/// Inside a task of tokio, sinks of tokio soon return `Pending` because the cooperative budget of
/// the task is spent, which the check reports as a fault. Use it in a plain `#[test]`, or in
/// `tokio::task::unconstrained`.
///
/// # Examples
///
/// ```
/// use futures::{FutureExt, StreamExt, channel::mpsc};
/// use sink_test::SinkCheck;
///
/// let make = || mpsc::channel(2);
/// let report = SinkCheck::new(make, |n| n, |receiver| receiver.next().now_or_never()?)
///     .capacity(3) // the channel adds one for each sender
///     .disconnect(|receiver| receiver.close())
///     .run();
/// assert!(report.gaps().is_empty());
/// ```
#[must_use = "nothing is checked before `run` or `try_run`"]
pub struct SinkCheck<'a, S, R, T> {
    /// Makes a sink of the variant with this index.
    make: Box<dyn FnMut(usize) -> (S, R) + 'a>,
    /// A description of each variant.
    variants: Vec<&'static str>,
    closures: Closures<'a, R, T>,
    disconnects: Vec<Hook<'a, R>>,
    /// The message of the last panic of the inner sink, for adapters.
    breach: Hook<'a, R, Option<String>>,
    terms: Terms,
    excepted: Vec<Rule>,
}

/// Settings.
impl<'a, S, R, T> SinkCheck<'a, S, R, T>
where
    S: Sink<T, Error: fmt::Debug>,
    T: PartialEq + fmt::Debug,
{
    /// Creates a check of the sinks that `make` returns.
    ///
    /// * `make` returns a new sink and the receiver of its items.
    /// * `item` creates the items that are sent, from 0, 1, 2 and so on. It is called several times
    ///   for each number and must return equal items. Items of different numbers should differ.
    /// * `receive` takes the next item that has arrived, in the form in which it was sent, or
    ///   returns `None` if there is none. It must not block.
    pub fn new(
        mut make: impl FnMut() -> (S, R) + 'a,
        item: impl FnMut(usize) -> T + 'a,
        receive: impl FnMut(&mut R) -> Option<T> + 'a,
    ) -> Self {
        Self::with_variants(move |_| make(), item, receive)
    }

    fn with_variants(
        make: impl FnMut(usize) -> (S, R) + 'a,
        item: impl FnMut(usize) -> T + 'a,
        receive: impl FnMut(&mut R) -> Option<T> + 'a,
    ) -> Self {
        Self {
            make: Box::new(make),
            variants: vec![""],
            closures: Closures {
                item: Box::new(item),
                receive: Box::new(receive),
                flushed: Box::new(|_| true),
                closed: Box::new(|_| true),
            },
            disconnects: Vec::new(),
            breach: Box::new(|_| None),
            terms: Terms { capacity: Some(CAPACITY) },
            excepted: Vec::new(),
        }
    }

    /// The sink accepts at most `items` items while the receiver takes none. By default 1,000.
    pub fn capacity(mut self, items: usize) -> Self {
        self.terms.capacity = Some(items);
        self
    }

    /// The sink accepts any number of items while the receiver takes none. Then the behaviour of a
    /// full sink is not checked, which is noted in the [report](Report::gaps).
    pub fn unbounded(mut self) -> Self {
        self.terms.capacity = None;
        self
    }

    /// `disconnect` disconnects the receiver, as in a lost connection: from then on, the sink must
    /// fail when items are sent and flushed. May be called several times, for several ways to
    /// disconnect.
    pub fn disconnect(mut self, disconnect: impl FnMut(&mut R) + 'a) -> Self {
        self.disconnects.push(Box::new(disconnect));
        self
    }

    /// `flushed` returns `true` if all that has reached the receiver was flushed. By default, items
    /// that can be received count as flushed.
    pub fn flushed(mut self, flushed: impl FnMut(&mut R) -> bool + 'a) -> Self {
        self.closures.flushed = Box::new(flushed);
        self
    }

    /// `closed` returns `true` if the receiver has seen the end of the items. By default, this is
    /// not checked.
    pub fn closed(mut self, closed: impl FnMut(&mut R) -> bool + 'a) -> Self {
        self.closures.closed = Box::new(closed);
        self
    }

    /// The sink may break `rule`. A case ends at the first breach.
    ///
    /// # Examples
    ///
    /// A sink made by `unfold` can be used after it was closed:
    ///
    /// ```
    /// use futures::{FutureExt, SinkExt, StreamExt, channel::mpsc, sink};
    /// use sink_test::{Rule, SinkCheck};
    ///
    /// let make = || {
    ///     let (sender, receiver) = mpsc::channel(1);
    ///     let sink = sink::unfold(sender, |mut sender, item| async move {
    ///         sender.send(item).await.map(|()| sender)
    ///     });
    ///     (sink, receiver)
    /// };
    /// SinkCheck::new(make, |n| n, |receiver| receiver.next().now_or_never()?)
    ///     .disconnect(|receiver| receiver.close())
    ///     .except(Rule::EndsWithClose)
    ///     .run();
    /// ```
    pub fn except(mut self, rule: Rule) -> Self {
        self.excepted.push(rule);
        self
    }
}

impl<S, R, T> fmt::Debug for SinkCheck<'_, S, R, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkCheck")
            .field("capacity", &self.terms.capacity)
            .field("disconnects", &self.disconnects.len())
            .field("excepted", &self.excepted)
            .finish_non_exhaustive()
    }
}
