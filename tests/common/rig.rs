//! The rig that most tests of the contract use: a demux over scripted input and orders, with one
//! log for its sinks and hooks. It checks the totals after every poll.
//!
//! Test modules that need more add methods in an `impl Rig`.

use std::fmt::{Debug, Display};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use stream_demux::{
    Attach, ByValue, Demux, DemuxStreamExt, Detached, Discarded, Hooks, Order, Recipient, Totals,
};

use super::{Broken, Log, ScriptedSink, ScriptedStream, SinkHandle, StreamHandle, Task};
use super::{lock, scripted_sink, scripted_stream};

/// Maximal number of polls of `run`.
const LIMIT: usize = 10_000;

pub type Orders<V = u32> = Order<u32, ScriptedSink<V>>;
pub type Terms<V = u32> = Attach<u32, ScriptedSink<V>>;
pub type Split<V = u32> =
    Demux<ScriptedStream<V>, ByValue<fn(&V) -> u32>, ScriptedStream<Orders<V>>, Recorder<V>>;

type Rule<V> = Box<dyn FnMut(Recipient<'_, u32>, &V) -> bool + Send>;

/// Hooks that log every call: `attached 1`, `admit 101 to 1`, `unmatched 201`, `discarded 101 of 1
/// Evicted`, `blocked 1`, `unblocked 1`, `detached 1 Evicted`, `key 1 attached`, `key 1 detached`.
/// A recipient is shown as its key, followed by its tag if that is not 0: `1#7` has the tag 7.
pub struct Recorder<V = u32> {
    log: Log,
    rule: Arc<Mutex<Rule<V>>>,
}

impl<V> Recorder<V> {
    /// Creates hooks that admit the items for which `rule` returns `true`.
    pub fn new(
        log: &Log,
        rule: impl FnMut(Recipient<'_, u32>, &V) -> bool + Send + 'static,
    ) -> Self {
        Self { log: log.clone(), rule: Arc::new(Mutex::new(Box::new(rule))) }
    }
}

impl<V: Debug> Hooks<u32, V, Broken> for Recorder<V> {
    fn admit(&mut self, to: Recipient<'_, u32>, item: &V) -> bool {
        self.log.push(format!("admit {item:?} to {}", named(to)));
        lock(&self.rule)(to, item)
    }
    fn attached(&mut self, to: Recipient<'_, u32>) {
        self.log.push(format!("attached {}", named(to)));
    }
    fn detached(&mut self, to: Recipient<'_, u32>, why: Detached<Broken>) {
        self.log.push(format!("detached {} {why:?}", named(to)));
    }
    fn unmatched(&mut self, item: V) {
        self.log.push(format!("unmatched {item:?}"));
    }
    fn discarded(&mut self, to: Recipient<'_, u32>, item: V, why: Discarded) {
        self.log.push(format!("discarded {item:?} of {} {why:?}", named(to)));
    }
    fn key_attached(&mut self, key: &u32) {
        self.log.push(format!("key {key} attached"));
    }
    fn key_detached(&mut self, key: &u32) {
        self.log.push(format!("key {key} detached"));
    }
    fn blocked(&mut self, on: Recipient<'_, u32>) {
        self.log.push(format!("blocked {}", named(on)));
    }
    fn unblocked(&mut self, on: Recipient<'_, u32>) {
        self.log.push(format!("unblocked {}", named(on)));
    }
}

fn named(to: Recipient<'_, u32>) -> String {
    if to.tag == 0 { to.key.to_string() } else { format!("{}#{}", to.key, to.tag) }
}

/// Returns the lines of hooks, without those of sinks.
pub fn hooks(mut lines: Vec<String>) -> Vec<String> {
    let hooks = ["attached", "detached", "unmatched", "discarded", "blocked", "unblocked"];
    lines.retain(|line| hooks.iter().any(|hook| line.starts_with(hook)));
    lines
}

/// A demux and all its handles. Its items are `V`; the test chooses keys and names of sinks.
pub struct Rig<V = u32> {
    pub task: Task<Split<V>>,
    pub input: StreamHandle<V>,
    pub orders: StreamHandle<Orders<V>>,
    pub log: Log,
    /// Whether sinks write to the log.
    sinks_log: bool,
    rule: Arc<Mutex<Rule<V>>>,
}

/// Items are numbers. The key of item `n` is `n / 100`.
impl Rig {
    pub fn new() -> Self {
        Self::with(|demux| demux)
    }

    pub fn with(settings: impl FnOnce(Split) -> Split) -> Self {
        Self::keyed(|n| n / 100, settings)
    }
}

/// Constructors. By default, the rig admits every item, and logs all hooks except `admit` and those
/// for keys.
impl<V: Debug + 'static> Rig<V> {
    pub fn keyed(key: fn(&V) -> u32, settings: impl FnOnce(Split<V>) -> Split<V>) -> Self {
        let (input, input_handle) = scripted_stream("input");
        let (orders, orders_handle) = scripted_stream("orders");
        let log = Log::new();
        let hooks = Recorder::new(&log, |_, _| true);
        let rule = Arc::clone(&hooks.rule);
        let task = Task::new(settings(input.demux_by(key, orders).hooks(hooks)));
        Self { task, input: input_handle, orders: orders_handle, log, sinks_log: true, rule }
            .logging_only(|line| !line.starts_with("admit ") && !line.starts_with("key "))
    }

    /// Admits only the items for which `rule` returns `true`.
    pub fn admitting(
        self,
        rule: impl FnMut(Recipient<'_, u32>, &V) -> bool + Send + 'static,
    ) -> Self {
        *lock(&self.rule) = Box::new(rule);
        self
    }

    /// Sinks log nothing. For tests about hooks, or with many items.
    pub fn with_silent_sinks(self) -> Self {
        Self { sinks_log: false, ..self }
    }

    /// Logs only lines for which `matter` returns `true`.
    pub fn logging_only(self, matter: fn(&str) -> bool) -> Self {
        self.log.keep_only(matter);
        self
    }
}

/// Orders and items.
impl<V: Debug + 'static> Rig<V> {
    /// Creates a sink that writes to the log, unless sinks are silent.
    pub fn sink(&self, name: impl Display) -> (ScriptedSink<V>, SinkHandle<V>) {
        let (sink, handle) = scripted_sink(name);
        if self.sinks_log {
            handle.log_to(&self.log);
        }
        (sink, handle)
    }

    /// Returns the order to attach such a sink, with the settings that `terms` adds.
    pub fn attachment(
        &self,
        key: u32,
        name: impl Display,
        terms: impl FnOnce(Terms<V>) -> Terms<V>,
    ) -> (Orders<V>, SinkHandle<V>) {
        let (sink, handle) = self.sink(name);
        (terms(Attach::new(key, sink)).into(), handle)
    }

    /// Sends such an order without polling the demux.
    pub fn order(
        &self,
        key: u32,
        name: impl Display,
        terms: impl FnOnce(Terms<V>) -> Terms<V>,
    ) -> SinkHandle<V> {
        let (order, handle) = self.attachment(key, name, terms);
        self.orders.push(order);
        handle
    }

    /// Attaches a sink with default settings, and clears the log.
    #[track_caller]
    pub fn attach(&mut self, key: u32, name: impl Display) -> SinkHandle<V> {
        self.attach_on(key, name, |attach| attach)
    }

    /// Like `attach`, with the settings that `terms` adds.
    #[track_caller]
    pub fn attach_on(
        &mut self,
        key: u32,
        name: impl Display,
        terms: impl FnOnce(Terms<V>) -> Terms<V>,
    ) -> SinkHandle<V> {
        let handle = self.order(key, name, terms);
        self.lines();
        handle
    }

    /// Attaches a sink with default settings for each key.
    #[track_caller]
    pub fn attach_each(&mut self, keys: impl IntoIterator<Item = u32>) -> Vec<SinkHandle<V>> {
        let sinks = keys.into_iter().map(|key| self.order(key, key, |attach| attach)).collect();
        self.lines();
        sinks
    }

    /// Applies an order. Returns the log.
    #[track_caller]
    pub fn apply(&mut self, order: impl Into<Orders<V>>) -> Vec<String> {
        self.orders.push(order.into());
        self.lines()
    }

    /// Sends items. Returns the log.
    #[track_caller]
    pub fn send(&mut self, items: impl IntoIterator<Item = V>) -> Vec<String> {
        self.input.extend(items);
        self.lines()
    }
}

/// Turns. The totals must add up after each.
impl<V: Debug + 'static> Rig<V> {
    /// Runs one turn, which must not complete the demux.
    #[track_caller]
    pub fn poll(&mut self) {
        assert!(self.task.poll().is_pending(), "the demux completed");
        self.balance();
    }

    /// Polls until `done` returns `true`, for at most `limit` turns, which must not complete the
    /// demux. Returns the number of turns.
    #[track_caller]
    pub fn turns_until(&mut self, limit: usize, done: impl Fn(&Self) -> bool) -> usize {
        for turns in 0..=limit {
            if done(self) {
                return turns;
            }
            self.poll();
        }
        panic!("the condition is not met after {limit} turns: {:?}", self.task.get_ref());
    }

    /// Runs until the task parks.
    #[track_caller]
    pub fn sleep(&mut self) {
        assert!(self.run().is_pending(), "the demux completed");
    }

    /// Runs until the task parks. Returns the log.
    #[track_caller]
    pub fn lines(&mut self) -> Vec<String> {
        self.sleep();
        self.log.take()
    }

    /// Runs until the demux completes. Returns the log.
    #[track_caller]
    pub fn last_lines(&mut self) -> Vec<String> {
        assert!(self.run().is_ready(), "the task parked");
        self.log.take()
    }

    /// Runs until the task parks or the demux completes.
    #[track_caller]
    pub fn run(&mut self) -> Poll<Totals> {
        for _ in 0..LIMIT {
            let output = self.task.turns(1);
            self.balance();
            if let Poll::Ready(totals) = output {
                assert_eq!(totals, self.totals());
                assert_eq!(
                    (totals.queued, totals.attached),
                    (0, totals.detached),
                    "after completion"
                );
                return output;
            }
            if !self.task.woken() {
                return output;
            }
        }
        panic!("still awake after {LIMIT} polls");
    }

    /// Checks that the totals add up.
    #[track_caller]
    pub fn balance(&self) {
        let all = self.totals();
        let fates = all.unmatched + all.delivered + all.discarded + all.lost + all.queued;
        assert_eq!(all.received + all.copies, fates, "{all:?}");
    }

    pub fn totals(&self) -> Totals {
        self.task.get_ref().totals()
    }

    /// Returns the number of attachments that receive items.
    pub fn len(&self) -> usize {
        self.task.get_ref().len()
    }
}
