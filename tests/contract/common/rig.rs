//! The rig that most tests of the contract use: a demux over scripted input and scripted orders,
//! with one log for its sinks and hooks. It checks the totals after every poll.

use std::fmt::{self, Debug, Display};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use stream_demux::{
    Attach, ByValue, Demux, DemuxStreamExt, Detached, Discarded, Hooks, Order, Recipient, Totals,
};

use super::{Log, ScriptedSink, ScriptedStream, SinkHandle, StreamHandle, Task};
use super::{lock, scripted_sink, scripted_stream};

/// Maximal number of polls of `run`.
const LIMIT: usize = 10_000;

pub type Orders<V = u32> = Order<u32, ScriptedSink<V>>;
pub type Terms<V = u32> = Attach<u32, ScriptedSink<V>>;
pub type Key<V = u32> = ByValue<fn(&V) -> u32>;
pub type Split<V = u32, F = Key<V>> =
    Demux<ScriptedStream<V>, F, ScriptedStream<Orders<V>>, Recorder<V>>;

type Rule<V> = Box<dyn FnMut(Recipient<'_, u32>, &V) -> bool + Send>;

/// Hooks that log every call: `attached 1`, `admit 101 to 1`, `unmatched 201`, `discarded 101 of 1
/// Evicted`, `blocked 1`, `unblocked 1`, `detached 1 Evicted`, `key 1 attached`, `key 1 detached`.
/// A recipient is shown as its key, followed by its tag if that is not 0: `1#7` has the tag 7.
/// `102 for 101?` is a call of `supersedes`.
pub struct Recorder<V = u32> {
    pub log: Log,
    rule: Arc<Mutex<Rule<V>>>,
    /// Returns `true` if the second item, which is new, supersedes the first, which waits.
    pub supersedes: fn(&V, &V) -> bool,
}

impl<V> Recorder<V> {
    /// Creates hooks that admit the items for which `rule` returns `true`.
    pub fn new(
        log: &Log,
        rule: impl FnMut(Recipient<'_, u32>, &V) -> bool + Send + 'static,
    ) -> Self {
        let rule = Arc::new(Mutex::new(Box::new(rule) as Rule<V>));
        Self { log: log.clone(), rule, supersedes: |_, _| true }
    }

    /// Creates hooks that admit all items. The log keeps what it keeps of a rig by default.
    pub fn of_events(log: &Log) -> Self {
        log.keep_only(is_kept);
        Self::new(log, |_, _| true)
    }
}

/// Returns `false` for calls of `admit`, `supersedes` and the hooks for keys.
fn is_kept(line: &str) -> bool {
    !line.starts_with("admit ") && !line.starts_with("key ") && !line.ends_with('?')
}

impl<V: Debug, E: Debug> Hooks<u32, V, E> for Recorder<V> {
    fn admit(&mut self, to: Recipient<'_, u32>, item: &V) -> bool {
        self.log.push(format!("admit {item:?} to {}", named(to)));
        lock(&self.rule)(to, item)
    }
    fn attached(&mut self, to: Recipient<'_, u32>) {
        self.log.push(format!("attached {}", named(to)));
    }
    fn detached(&mut self, to: Recipient<'_, u32>, why: Detached<E>) {
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
    fn supersedes(&mut self, _: Recipient<'_, u32>, waiting: &V, new: &V) -> bool {
        self.log.push(format!("{new:?} for {waiting:?}?"));
        (self.supersedes)(waiting, new)
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

/// Returns `true` if a hook has logged this line, and not a sink.
pub fn is_hook(line: &str) -> bool {
    let hooks = ["attached", "detached", "unmatched", "discarded", "blocked", "unblocked"];
    hooks.iter().any(|hook| line.starts_with(hook))
}

/// Returns the lines of hooks, without those of sinks.
pub fn hooks(mut lines: Vec<String>) -> Vec<String> {
    lines.retain(|line| is_hook(line));
    lines
}

/// An item that differs from its clones: 101 is shown as `101`, a clone of it as `101'`.
#[derive(PartialEq, Eq)]
pub struct Note {
    pub n: u32,
    is_clone: bool,
}

impl From<u32> for Note {
    fn from(n: u32) -> Self {
        Self { n, is_clone: false }
    }
}

impl Clone for Note {
    fn clone(&self) -> Self {
        Self { n: self.n, is_clone: true }
    }
}

impl Debug for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.n, if self.is_clone { "'" } else { "" })
    }
}

/// A demux and all its handles. The key of item `n` is `n / 100`, unless the test chooses another
/// rule.
pub struct Rig<V = u32, F = Key<V>> {
    pub task: Task<Split<V, F>>,
    pub input: StreamHandle<V>,
    pub orders: StreamHandle<Orders<V>>,
    pub log: Log,
    rule: Arc<Mutex<Rule<V>>>,
}

impl Rig {
    pub fn new() -> Self {
        Self::with(|demux| demux)
    }

    pub fn with(settings: impl FnOnce(Split) -> Split) -> Self {
        Self::keyed(|n| n / 100, settings)
    }
}

impl Rig<Note> {
    /// A rig with `multicast`.
    pub fn group(settings: impl FnOnce(Split<Note>) -> Split<Note>) -> Self {
        Self::keyed(|note| note.n / 100, |demux| settings(demux.multicast()))
    }
}

/// Constructors. By default, the rig admits every item, and logs all calls but those of `admit`,
/// `supersedes` and the hooks for keys.
impl<V: Debug + 'static> Rig<V> {
    pub fn keyed<F>(key: fn(&V) -> u32, settings: impl FnOnce(Split<V>) -> Split<V, F>) -> Rig<V, F>
    where
        Split<V, F>: Future<Output = Totals>,
    {
        let (input, input_handle) = scripted_stream("input");
        let (orders, orders_handle) = scripted_stream("orders");
        let log = Log::new();
        let hooks = Recorder::new(&log, |_, _| true);
        let rule = Arc::clone(&hooks.rule);
        let task = Task::new(settings(input.demux_by(key, orders).hooks(hooks)));
        Rig { task, input: input_handle, orders: orders_handle, log, rule }.logging(is_kept)
    }
}

impl<V: Debug + 'static, F> Rig<V, F> {
    /// Admits only the items for which `rule` returns `true`.
    pub fn admitting(
        self,
        rule: impl FnMut(Recipient<'_, u32>, &V) -> bool + Send + 'static,
    ) -> Self {
        *lock(&self.rule) = Box::new(rule);
        self
    }

    /// Logs only the calls of hooks that are logged by default.
    pub fn with_silent_sinks(self) -> Self {
        self.logging(is_hook)
    }

    /// Logs only the lines for which `matters` returns `true`.
    pub fn logging(self, matters: fn(&str) -> bool) -> Self {
        self.log.keep_only(matters);
        self
    }
}

/// Orders and items.
impl<V: Debug + From<u32> + 'static, F> Rig<V, F>
where
    Split<V, F>: Future<Output = Totals>,
{
    /// Creates a sink that writes to the log.
    pub fn sink(&self, name: impl Display) -> (ScriptedSink<V>, SinkHandle<V>) {
        let (sink, handle) = scripted_sink(name);
        handle.log_to(&self.log);
        (sink, handle)
    }

    /// Returns the order to attach a sink that writes to the log, with the settings that `terms`
    /// adds, and the handle of the sink.
    ///
    /// Under a policy that discards, the sink may be polled once more while it is in doubt. (An
    /// `Attach` shows its policy only in its `Debug`.)
    pub fn attachment(
        &self,
        key: u32,
        name: impl Display,
        terms: impl FnOnce(Terms<V>) -> Terms<V>,
    ) -> (Orders<V>, SinkHandle<V>) {
        let (sink, handle) = self.sink(name);
        let attach = terms(Attach::new(key, sink));
        let shown = format!("{attach:?}");
        if shown.contains("overflow: Some(") && !shown.contains("overflow: Some(Wait)") {
            handle.strict_unless_in_doubt();
        }
        (attach.into(), handle)
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

    /// Attaches a sink with the settings that `terms` adds, and clears the log.
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

    /// Attaches a sink under each key that has the name of the key, and clears the log.
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

    /// Queues items without polling the demux.
    pub fn push(&self, items: impl IntoIterator<Item = u32>) {
        self.input.extend(items.into_iter().map(V::from));
    }

    /// Sends items. Returns the log.
    #[track_caller]
    pub fn send(&mut self, items: impl IntoIterator<Item = u32>) -> Vec<String> {
        self.push(items);
        self.lines()
    }
}

/// Turns. The totals must add up after each.
impl<V: Debug + 'static, F> Rig<V, F>
where
    Split<V, F>: Future<Output = Totals>,
{
    /// Runs one turn, which must not complete the demux. Returns the log.
    #[track_caller]
    pub fn turn(&mut self) -> Vec<String> {
        self.poll();
        self.log.take()
    }

    /// Runs one turn, which must not complete the demux.
    #[track_caller]
    pub fn poll(&mut self) {
        assert!(self.task.poll().is_pending(), "the demux completed");
        self.check_totals();
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
            self.check_totals();
            if let Poll::Ready(totals) = output {
                assert_eq!(totals, self.totals());
                assert_eq!(totals.queued, 0, "after completion");
                return output;
            }
            if !self.task.woken() {
                return output;
            }
        }
        panic!("still awake after {LIMIT} polls");
    }

    /// Checks that every item has one fate, and that every attachment is receiving, leaving or
    /// gone.
    #[track_caller]
    pub fn check_totals(&self) {
        let all = self.totals();
        let fates = all.unmatched + all.delivered + all.discarded + all.lost + all.queued;
        assert_eq!(all.received + all.copies, fates, "{all:?}");
        let present = self.demux().len() + self.demux().draining();
        assert_eq!(all.attached - all.detached, present as u64, "{all:?}");
    }
}

/// Getters.
impl<V: Debug + 'static, F> Rig<V, F>
where
    Split<V, F>: Future<Output = Totals>,
{
    pub fn demux(&self) -> &Split<V, F> {
        self.task.get_ref()
    }

    pub fn totals(&self) -> Totals {
        self.demux().totals()
    }

    /// Returns the number of attachments that receive items.
    pub fn len(&self) -> usize {
        self.demux().len()
    }

    /// Returns the tag of the recipient that the input waits for.
    pub fn blocked_on(&self) -> Option<u64> {
        self.demux().blocked_on().map(|on| on.tag)
    }
}
