//! The check of sinks that wrap another sink, with a scripted inner sink.

use std::fmt;

use futures_sink::Sink;

use super::{Report, SinkCheck};
use crate::{Op, ScriptedSink, SinkHandle, scripted_sink};

/// How many items the inner sink accepts while the receiver takes none: more than one, so that some
/// are queued, and few, so that it is often full.
const INSIDE: usize = 2;

type Behaviour = fn(&SinkHandle<usize>);

/// Behaviours of the inner sink. All cases run with each of them.
const BEHAVIOURS: [(&str, Behaviour); 3] = [
    ("", |_| {}),
    ("the inner sink is slow to flush and close", |inside| {
        inside.hold(Op::Flush);
        inside.hold(Op::Close);
    }),
    ("the inner sink yields", |inside| {
        for op in [Op::Ready, Op::Flush, Op::Close] {
            inside.stutter(op, 2);
        }
    }),
];

/// Checks a sink that wraps another, such as a buffer or a filter: [`SinkCheck::adapter`] and
/// [`SinkCheck::run`] in one.
///
/// # Panics
///
/// Panics if the adapter breaks a [rule](super::Rule). The message names the rule and lists the
/// calls.
///
/// # Examples
///
/// ```
/// use futures::SinkExt;
/// use sink_test::check_adapter;
///
/// check_adapter(|inside| inside.buffer(5));
/// check_adapter(|inside| inside.sink_map_err(|error| error.to_string()));
/// ```
#[track_caller]
pub fn check_adapter<S>(wrap: impl FnMut(ScriptedSink<usize>) -> S) -> Report
where
    S: Sink<usize, Error: fmt::Debug>,
{
    SinkCheck::adapter(wrap).run()
}

impl<'a, S> SinkCheck<'a, S, SinkHandle<usize>, usize>
where
    S: Sink<usize, Error: fmt::Debug>,
{
    /// Creates a check of an adapter: `wrap` wraps a [scripted sink](crate::scripted_sink), which
    /// has room for two items and panics if it is misused.
    ///
    /// In addition to the other rules, this detects an adapter that sends although the inner sink
    /// is not ready, completes a flush or close without that of the inner sink, or uses the inner
    /// sink after an error. Items are numbers, and must reach the inner sink unchanged.
    ///
    /// # Examples
    ///
    /// ```
    /// use futures::SinkExt;
    /// use sink_test::SinkCheck;
    ///
    /// let report = SinkCheck::adapter(|inside| inside.buffer(5)).capacity(5 + 2).run();
    /// assert!(report.gaps().is_empty());
    /// ```
    pub fn adapter(mut wrap: impl FnMut(ScriptedSink<usize>) -> S + 'a) -> Self {
        let make = move |variant: usize| {
            let (sink, handle) = scripted_sink("inside");
            handle.serve_check();
            handle.park();
            handle.allow(INSIDE);
            BEHAVIOURS[variant].1(&handle);
            (wrap(sink), handle)
        };
        let mut check = Self::with_variants(make, |n| n, receive);
        check.variants = BEHAVIOURS.map(|(name, _)| name).into();
        check.breach = Box::new(|inside| inside.breaches().pop());
        let check = check
            .flushed(|inside| inside.flushed() == inside.taken())
            .closed(|inside| inside.is_closed())
            .disconnect(|inside| inside.fail(Op::Ready));
        // Operations that fail one by one. Pending operations resume, and meet the failure later.
        [Op::Send, Op::Flush].into_iter().fold(check, |check, op| {
            check.disconnect(move |inside| {
                inside.fail(op);
                inside.open();
            })
        })
    }
}

/// Takes an item out of the inner sink, which makes room for another.
fn receive(inside: &mut SinkHandle<usize>) -> Option<usize> {
    inside.release(Op::Flush);
    inside.release(Op::Close);
    let item = inside.take_item()?;
    inside.allow(1);
    Some(item)
}
