//! A server as a pool sees it: its connection, its places, and when it is left alone.
//!
//! ```text
//!             a call needs it            connected
//!     Idle ───────────────────▶ Connecting ──────▶ Open
//!      ▲                             │ failed        │
//!      │       the rest is over      ▼               │ failed
//!      ├────────────────────────── Resting ◀─────────┤
//!      └─────────────────────────────────────────────┘ closed: no call was lost, or
//!                                                        calls may have been the cause
//! ```
//!
//! 1. One task runs a connection, from the attempt to the rest that follows it. All calls that need
//!    the server wait for the same attempt, which goes on if they are cancelled.
//! 2. The lock guards the state only. It is never held over an await, and wakers and handles are
//!    woken and dropped after it is released.
//! 3. A change of the state wakes the callers (`News`) and the sink of the server (`turns`).

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::client::{Client, Connection, Options};
use crate::connect::{self, Lookup};
use crate::error::Error;
use crate::health::Health;
use crate::panics::contain;
use crate::unpolled::{CallerToPoll, Unpolled};

/// How long a server is left alone after its first failure. Each further failure in a row doubles
/// it. It is longer than a reconnection takes, and short enough for a call to wait for it.
const FIRST_REST: Duration = Duration::from_millis(100);

/// How long a server is left alone at most. A server that fails each time costs one call per rest,
/// and one that is up again is used after that time.
const LONGEST_REST: Duration = Duration::from_secs(5);

/// For how long it counts that a server has answered. A pool whose servers begin to close all
/// connections, as after a bad release, leaves them alone after this time. With less, a method that
/// takes longer would not count as answered while other calls close the connections.
const RECENT: Duration = Duration::from_secs(10);

/// After this time, a lost connection counts half. It is as long as the longest rest: a server that is
/// connected to once in that time, and loses each connection, counts about two, and is left alone beside
/// one that has lost none. Half a minute after a restart, the losses of a well server do not matter.
const HALF_LIFE: Duration = Duration::from_secs(5);

/// How often a connection is replaced at once: not before it, and what follows it, have taken this
/// time. If all servers close each connection after an answer, callers that try again at once would
/// open thousands in a second. Few callers gather in so short a time.
const REPLACED: Duration = Duration::from_millis(20);

/// Why there is no connection if nothing runs the attempts any more.
pub(crate) const SHUT_DOWN: &str = "the runtime of the pool has shut down";

/// What an answer usually takes, from when its call has got a place: the mean, in which each answer
/// counts a sixteenth.
#[derive(Debug, Default)]
pub(crate) struct Usual(AtomicU64);

impl Usual {
    pub(crate) fn note(&self, took: Duration) {
        let took = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let before = self.0.load(Relaxed);
        let mean = if before == 0 { took } else { before - before / 16 + took / 16 };
        self.0.store(mean, Relaxed); // if another one comes between, one of them does not count
    }

    pub(crate) fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Relaxed))
    }
}

/// What all servers of a pool tell its callers.
#[derive(Debug, Default)]
pub(crate) struct News {
    pub(crate) usual: Arc<Usual>,
    /// Counts failures, so that a caller can tell those that happened since it began.
    failures: AtomicU64,
    changed: Notify,
    servers: OnceLock<Vec<Weak<Upstream>>>,
    /// The sinks of servers that get no call while others can.
    withheld: Mutex<Vec<Waker>>,
    /// There are some. Each call asks, and nearly always there are none.
    has_withheld: AtomicBool,
}

impl News {
    /// Called once, with the servers of the pool.
    pub(crate) fn set_servers(&self, servers: &[Arc<Upstream>]) {
        self.servers.get_or_init(|| servers.iter().map(Arc::downgrade).collect());
    }

    fn withhold(&self, sink: &Waker) {
        let mut withheld = self.withheld.lock().unwrap_or_else(PoisonError::into_inner);
        if !withheld.iter().any(|other| other.will_wake(sink)) {
            withheld.push(sink.clone());
        }
        self.has_withheld.store(true, Relaxed);
    }

    /// Called when a server may no longer be able to take a call, after its state was changed.
    ///
    /// The lock of that state orders the accesses to `has_withheld`: a sink sets it before it locks
    /// the state to look at it. If it has not seen the change, it was first, and this sees what it set.
    fn wake_withheld(&self) {
        if !self.has_withheld.load(Relaxed) {
            return;
        }
        let mut withheld = self.withheld.lock().unwrap_or_else(PoisonError::into_inner);
        self.has_withheld.store(false, Relaxed);
        let sinks = mem::take(&mut *withheld);
        drop(withheld);
        sinks.into_iter().for_each(Waker::wake);
    }

    /// Returns the number of the last failure.
    pub(crate) fn failures(&self) -> u64 {
        self.failures.load(Relaxed)
    }

    /// Waits until `look` returns a value. Looks again after each change.
    pub(crate) async fn wait_for<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable(); // register first, look second
            if let Some(found) = look() {
                return found;
            }
            changed.await;
        }
    }
}

/// The connection to a server.
#[derive(Debug)]
enum Link {
    /// There is none, and the next call that needs one connects.
    Idle,
    Connecting,
    Open(Client, Used),
    /// The server is left alone, because it failed.
    Resting,
    /// The pool was dropped, or its runtime has shut down.
    Gone,
}

/// Places on a connection.
#[derive(Debug, Default)]
struct Used {
    held: usize,
    /// Those of them whose calls run, or are about to begin.
    occupied: usize,
    /// When a place was taken last.
    since: Option<Instant>,
}

#[derive(Debug)]
struct State {
    link: Link,
    /// Runs the connection.
    task: Option<AbortHandle>,
    /// Failures in a row, of attempts and of connections. One that answered more calls than it lost
    /// begins a new row: it is worth to be used again soon. So does one that calls may have closed.
    failures: u32,
    /// Why it failed last.
    reason: Arc<str>,
    /// Connections that were closed while calls were with the server.
    losses: Losses,
    /// When the last connection ended that had answered a call.
    answered: Option<Instant>,
    /// The sink of the server, which waits for a free place.
    sink: Option<Waker>,
}

/// What a caller does if the server is left alone.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Resting {
    /// It returns the reason.
    Fails,
    /// It waits for the next attempt.
    Waits,
}

/// Why a caller gets no connection.
#[derive(Debug)]
pub(crate) enum Unusable {
    /// The server is left alone, and the caller does not wait.
    Resting(Error),
    /// It was tried, and failed.
    Failed(Error),
}

impl From<Unusable> for Error {
    fn from(why: Unusable) -> Self {
        match why {
            Unusable::Resting(error) | Unusable::Failed(error) => error,
        }
    }
}

/// A server of a pool.
pub(crate) struct Upstream {
    pub(crate) address: String,
    options: Options,
    /// That of the pool: a caller's may end, or run only while it calls.
    runtime: Handle,
    news: Arc<News>,
    health: Arc<Health>,
    lookup: Lookup,
    /// The number of the last failure to get any answer from the server. Changed with the state,
    /// and read without it, because each call asks.
    failed: AtomicU64,
    /// It gets no more calls from `turns`.
    is_retired: AtomicBool,
    state: Mutex<State>,
}

impl Upstream {
    pub(crate) fn new(address: String, options: Options, news: Arc<News>) -> Self {
        let state = State {
            link: Link::Idle,
            task: None,
            failures: 0,
            reason: "not connected yet".into(),
            losses: Losses::default(),
            answered: None,
            sink: None,
        };
        let (runtime, state) = (Handle::current(), Mutex::new(state));
        let (health, lookup, failed, is_retired) = Default::default();
        Self { address, options, runtime, news, health, lookup, failed, is_retired, state }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and wakes all that wait for a change.
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        self.wake(state);
        contain(|| self.news.changed.notify_waiters());
    }

    /// Sets the link, unless the pool was dropped. The previous client is dropped after the lock is
    /// released, because that may close its connection.
    fn set(&self, link: Link, also: impl FnOnce(&mut State)) {
        let mut previous = link;
        self.change(|state| {
            also(state);
            if !matches!(state.link, Link::Gone) {
                mem::swap(&mut state.link, &mut previous);
            }
        });
    }

    /// Starts an attempt to connect. An attempt that runs cannot have ended here, because it needs the
    /// state, which is locked: one that has ended never ran.
    fn connect(self: &Arc<Self>, state: &mut State) {
        let task = self.runtime.spawn(run(Arc::clone(self)));
        state.link = Link::Connecting;
        if task.is_finished() {
            state.link = Link::Gone;
            state.reason = SHUT_DOWN.into();
        }
        state.task = Some(task.abort_handle());
    }

    /// Returns the connection. Connects if there is none: all callers wait for the same attempt, at
    /// most for one deadline.
    ///
    /// Cancel safe: the attempt goes on for other callers.
    pub(crate) async fn client(self: &Arc<Self>, resting: Resting) -> Result<Client, Unusable> {
        let since = self.news.failures();
        if let Some(found) = self.look(since, resting) {
            return found;
        }
        let found = self.news.wait_for(|| self.look(since, resting));
        let deadline = self.options.deadline;
        timeout(deadline, found).await.unwrap_or_else(|_| {
            let what = format!("{}: not connected within {deadline:?}", self.address);
            Err(Unusable::Failed(Error::Closed(what.into())))
        })
    }

    fn look(self: &Arc<Self>, since: u64, resting: Resting) -> Option<Result<Client, Unusable>> {
        let mut state = self.lock();
        match &state.link {
            Link::Open(client, _) => client.is_open().then(|| Ok(client.clone())),
            _ if self.failed.load(Relaxed) > since => {
                Some(Err(Unusable::Failed(self.error(&state))))
            }
            Link::Resting if resting == Resting::Fails => {
                Some(Err(Unusable::Resting(self.error(&state))))
            }
            Link::Connecting | Link::Resting => None,
            Link::Idle => {
                self.connect(&mut state);
                let is_gone = matches!(state.link, Link::Gone);
                is_gone.then(|| Err(Unusable::Failed(self.error(&state))))
            }
            Link::Gone => Some(Err(Unusable::Failed(self.error(&state)))),
        }
    }

    fn error(&self, state: &State) -> Error {
        Error::Closed(format!("{}: {}", self.address, state.reason).into())
    }

    /// Returns a connection with a free place. Connects if there is none. If there is no place, the
    /// waker is woken when there may be one.
    ///
    /// A server that answers no calls would be free all the time. Therefore `Health` limits its
    /// places, and after a failure it has one until it has answered. It also has one while it is silent
    /// and another server is well; whether this has changed is looked at again after a while. A call that was dropped by its
    /// caller takes one until it is answered or its deadline has passed. With one place, it gets no
    /// further call while a request waits to be written: a one-way call holds no place meanwhile.
    ///
    /// A closure that has a place may do other things before it calls, between two calls, or for ever.
    /// While another server can take calls, such a place counts for a deadline: otherwise a bad server
    /// would get all closures that prepare something. It does not count for longer, nor while no other
    /// server can: it might wait for a call of another closure, and only answers open further places.
    /// Neither does a place count for long whose caller is not polled, such as one of several in
    /// `Buffered`: `look_again` is set to when one may no longer count.
    pub(crate) fn poll_place(
        self: &Arc<Self>,
        places: usize,
        look_again: &mut Option<Instant>,
        cx: &mut Context<'_>,
    ) -> Poll<Client> {
        let is_suspect = self.health.is_silent() && {
            self.news.withhold(cx.waker()); // before the others are asked: see `wake_withheld`
            self.others().any(|other| other.is_well())
        };
        let after_a_while = || Some(Instant::now() + self.options.unpolled());
        if is_suspect {
            *look_again = after_a_while();
        }
        let mut state = self.lock();
        let mut on_trial = None;
        match &state.link {
            Link::Open(client, on_this) if client.is_open() => {
                let open = if is_suspect { 1 } else { self.open_places(&state, client) };
                let is_free_without = |unpolled| {
                    on_this.occupied.saturating_sub(unpolled) < open
                        && on_this.held.saturating_sub(unpolled) < places
                };
                let mut is_free = is_free_without(0);
                if !is_free {
                    is_free = is_free_without(client.connection().unpolled.count_long());
                    if !is_free {
                        *look_again = after_a_while();
                    }
                }
                if is_free && on_this.held < open && open > 1 {
                    return Poll::Ready(client.clone());
                }
                let passed = on_this.since.map_or(Duration::MAX, |since| since.elapsed());
                let is_recent = passed < self.options.deadline;
                on_trial = is_free.then(|| (client.clone(), on_this.held >= open && is_recent));
            }
            Link::Idle => self.connect(&mut state),
            // The task of the connection is about to change the state.
            Link::Open(..) | Link::Connecting | Link::Resting | Link::Gone => {}
        }
        let previous = state.sink.replace(cx.waker().clone());
        drop(state);
        drop(previous);
        let Some((client, has_idle)) = on_trial else { return Poll::Pending };
        if has_idle {
            self.news.withhold(cx.waker()); // before the others are asked: see `wake_withheld`
            if self.others().any(|other| other.can_take(places)) {
                return Poll::Pending;
            }
        }
        client.connection().outbox.poll_written(cx).map(|()| client)
    }

    /// Returns `true` if there are callers that are not polled, and that it has not reported before.
    pub(crate) fn has_callers_not_polled(&self) -> bool {
        match &self.lock().link {
            Link::Open(client, _) => client.connection().unpolled.report_long(),
            _ => false,
        }
    }

    /// How many calls the server may get at a time.
    fn open_places(&self, state: &State, client: &Client) -> usize {
        let is_proven = state.failures == 0 || client.connection().has_answered();
        if is_proven { self.health.open_places() } else { 1 }
    }

    /// The other servers of the pool.
    fn others(self: &Arc<Self>) -> impl Iterator<Item = Arc<Self>> {
        let servers = self.news.servers.get().into_iter().flatten().filter_map(Weak::upgrade);
        servers.filter(|other| !Arc::ptr_eq(other, self))
    }

    /// Returns `true` if it answers calls, as far as is known.
    fn is_well(&self) -> bool {
        self.usable(&self.lock()).is_some()
    }

    /// Returns `true` if it is well and can take a call.
    fn can_take(&self, places: usize) -> bool {
        let state = self.lock();
        self.usable(&state).is_some_and(|(on_this, open)| on_this.held < places.min(open))
    }

    /// Returns its places, and how many of them are open, if it is not tried with a single call.
    fn usable<'a>(&self, state: &'a State) -> Option<(&'a Used, usize)> {
        let Link::Open(client, on_this) = &state.link else { return None };
        let open = self.open_places(state, client);
        let is_usable = client.is_open() && !self.is_retired() && open > 1;
        (is_usable && !self.health.is_silent()).then_some((on_this, open))
    }

    /// Takes a place on a connection, for the calls of the handle that it returns.
    pub(crate) fn take_place(self: &Arc<Self>, client: Client) -> Granted {
        let connection = client.connection();
        let unpolled = Arc::clone(&connection.unpolled);
        let (server, connection) = (Arc::clone(self), Arc::downgrade(connection));
        let (holders, calls) = Default::default();
        let place = Arc::new(Place { connection, server, unpolled, holders, calls });
        let (occupied, unpolled) = (place.occupy(), place.unpolled.add());
        self.news.wake_withheld();
        Granted { client: client.at(place), occupied, _unpolled: unpolled }
    }

    /// Wakes the sink of the server, as a place may be free, and those that are withheld.
    fn wake(&self, mut state: MutexGuard<'_, State>) {
        let sink = state.sink.take();
        drop(state);
        if let Some(sink) = sink {
            sink.wake();
        }
        self.news.wake_withheld();
    }

    /// Returns `true` if `Health` lets the server have another call now.
    pub(crate) fn has_free_place(&self) -> bool {
        self.health.has_free_place()
    }

    /// Returns `true` if the server has been tried since the failure number `since`, and it did not
    /// answer.
    pub(crate) fn has_failed(&self, since: u64) -> bool {
        self.failed.load(Relaxed) > since && !self.is_open()
    }

    pub(crate) fn is_open(&self) -> bool {
        matches!(self.lock().link, Link::Open(..))
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.is_retired.load(Relaxed)
    }

    /// Returns the address, and why the last attempt or connection failed.
    pub(crate) fn reason(&self) -> String {
        let state = self.lock();
        let now = if matches!(state.link, Link::Connecting) { "connecting; before: " } else { "" };
        format!("{}: {now}{}", self.address, state.reason)
    }

    pub(crate) fn set_retired(&self, is_retired: bool) {
        self.change(|_| self.is_retired.store(is_retired, Relaxed));
    }

    /// Closes the connection when its calls have ended. There is no further one.
    pub(crate) fn end(&self) {
        let mut task = None;
        self.set(Link::Gone, |state| task = state.task.take());
        if let Some(task) = task {
            task.abort();
        }
    }
}

impl fmt::Debug for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Upstream")
            .field("address", &self.address)
            .field("link", &state.link)
            .field("failures", &state.failures)
            .field("health", &self.health)
            .field("reason", &state.reason)
            .finish_non_exhaustive()
    }
}

/// Makes a server idle when its task ends, also if the task is aborted.
struct End(Arc<Upstream>);

impl Drop for End {
    fn drop(&mut self) {
        self.0.set(Link::Idle, |_| {});
    }
}

/// Connects to a server, waits until the connection ends, and lets the server rest if it failed.
async fn run(server: Arc<Upstream>) {
    let end = End(server);
    let server = &end.0;
    let health = Arc::clone(&server.health);
    let failures = server.lock().failures;
    let found = server.lookup.run(connect::addresses_of_server(server.address.clone()));
    let addresses = async { Ok(connect::in_turn(found.await?, failures)) };
    let connected = Client::connect_to(addresses, server.options, health).await;
    let (reason, is_answering) = match connected {
        Ok(client) => {
            let connection = Arc::clone(client.connection());
            let begun = Instant::now();
            server.set(Link::Open(client, Used::default()), |_| {});
            connection.ended().await;
            server.note_end(&connection);
            if connection.was_closed_with_calls() && server.may_blame_calls() {
                server.set(Link::Resting, |state| {
                    state.failures = 0; // the next connection is not on trial
                    state.reason = connection.reason();
                });
                sleep(REPLACED.saturating_sub(begun.elapsed())).await;
                return;
            }
            if connection.was_useful() {
                server.lock().failures = 0;
            } else {
                server.health.close_places();
            }
            let Some(reason) = connection.failure() else { return };
            (reason, connection.has_answered())
        }
        Err(Error::Closed(reason)) => (reason, false),
        Err(Error::Deadline(after)) => (format!("not connected within {after:?}").into(), false),
        Err(error) => (error.to_string().into(), false),
    };
    let mut rest = Duration::ZERO;
    server.set(Link::Resting, |state| {
        rest = server.rest(state.failures);
        state.failures += 1;
        state.reason = reason;
        if !is_answering {
            let number = server.news.failures.fetch_add(1, Relaxed) + 1;
            server.failed.store(number, Relaxed);
        }
    });
    sleep(rest).await;
}

/// A number that decays.
#[derive(Debug, Default)]
struct Losses {
    number: f64,
    since: Option<Instant>,
}

impl Losses {
    fn number(&self, now: Instant) -> f64 {
        let passed =
            self.since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since));
        self.number * 0.5_f64.powf(passed.div_duration_f64(HALF_LIFE))
    }

    fn add(&mut self, now: Instant) {
        self.number = self.number(now) + 1.0;
        self.since = Some(now);
    }
}

impl Upstream {
    fn note_end(&self, connection: &Connection) {
        let (now, mut state) = (Instant::now(), self.lock());
        if connection.was_closed_with_calls() {
            state.losses.add(now);
        }
        if connection.has_answered() {
            state.answered = Some(now);
        }
    }

    /// Returns `true` if calls may be the reason why this server has closed its connection: servers of
    /// the pool answer calls, and none of the others is well and has lost less than half as many
    /// connections lately.
    ///
    /// Then a pause helps nobody. The calls that made the server close, such as those whose handler
    /// fails, come again after it, perhaps first; all other callers would have gathered meanwhile, and
    /// the next loss would be theirs. With ten callers of each kind and three servers, others made an
    /// eighth of their calls, and a quarter of these failed.
    fn may_blame_calls(self: &Arc<Self>) -> bool {
        let now = Instant::now();
        let losses = |server: &Self| server.lock().losses.number(now);
        let own = losses(self);
        let is_better = |other: Arc<Self>| other.is_well() && own > 2.0 * losses(&other);
        !self.others().any(is_better)
            && (self.answers() || self.others().any(|other| other.answers()))
    }

    /// Returns `true` if it has answered a call on this connection, or lately on another one.
    fn answers(&self) -> bool {
        let state = self.lock();
        match &state.link {
            Link::Open(client, _) if client.connection().has_answered() => true,
            _ => state.answered.is_some_and(|at| at.elapsed() < RECENT),
        }
    }

    /// How long the server is left alone after so many failures in a row. A call that has no other
    /// server shall see an attempt and have time left: at most half a deadline.
    fn rest(&self, failures: u32) -> Duration {
        let growing = FIRST_REST.saturating_mul(2_u32.saturating_pow(failures));
        growing.min(LONGEST_REST).min(self.options.deadline / 2)
    }
}

/// A place at a server, on this connection. It is held by the closure that has got it, and by the calls
/// of its handle. It is no handle to the connection, because that may keep the place of a call
/// (`unanswered`).
pub(crate) struct Place {
    connection: Weak<Connection>,
    server: Arc<Upstream>,
    /// That of the connection.
    pub(crate) unpolled: Arc<Unpolled>,
    /// The closure and its calls. Changed between zero and one with the state of the server only.
    holders: AtomicUsize,
    /// Calls that run, or are about to begin. Changed in the same way.
    calls: AtomicUsize,
}

impl Place {
    fn hold(self: &Arc<Self>) -> Held {
        if !add_another(&self.holders) {
            let mut state = self.server.lock();
            if self.holders.fetch_add(1, Relaxed) == 0 {
                self.on_this(&mut state, |on_this| {
                    on_this.held += 1;
                    on_this.since = Some(Instant::now());
                });
            }
        }
        Held(Arc::clone(self))
    }

    pub(crate) fn occupy(self: &Arc<Self>) -> Occupied {
        let held = self.hold();
        if !add_another(&self.calls) {
            let mut state = self.server.lock();
            if self.calls.fetch_add(1, Relaxed) == 0 {
                self.on_this(&mut state, |on_this| on_this.occupied += 1);
            }
        }
        Occupied { held }
    }

    /// Changes the counts, if the connection is still that of the server.
    fn on_this(&self, state: &mut State, change: impl FnOnce(&mut Used)) {
        if let Link::Open(open, on_this) = &mut state.link
            && Arc::as_ptr(open.connection()) == self.connection.as_ptr()
        {
            change(on_this);
        }
    }
}

/// A place that a caller gets.
pub(crate) struct Granted {
    client: Client,
    occupied: Occupied,
    _unpolled: CallerToPoll,
}

impl Granted {
    /// Called by the caller.
    pub(crate) fn claim(self) -> (Client, Occupied) {
        (self.client, self.occupied)
    }
}

/// Counts another one, unless it is the first.
fn add_another(count: &AtomicUsize) -> bool {
    let more = |count: usize| (count > 0).then_some(count + 1);
    count.fetch_update(Relaxed, Relaxed, more).is_ok()
}

/// Counts one fewer, unless it is the last.
fn remove_another(count: &AtomicUsize) -> bool {
    let fewer = |count: usize| (count > 1).then_some(count - 1);
    count.fetch_update(Relaxed, Relaxed, fewer).is_ok()
}

/// Holds a place.
pub(crate) struct Held(Arc<Place>);

impl Drop for Held {
    fn drop(&mut self) {
        let place = &self.0;
        if !remove_another(&place.holders) {
            let mut state = place.server.lock();
            if place.holders.fetch_sub(1, Relaxed) == 1 {
                place.on_this(&mut state, |on_this| on_this.held -= 1);
            }
            place.server.wake(state);
        }
    }
}

/// A call of a place runs, or is about to begin.
pub(crate) struct Occupied {
    held: Held,
}

impl Occupied {
    /// Notes how long the answer to a call has taken.
    pub(crate) fn note_answer(&self, took: Duration) {
        self.held.0.server.news.usual.note(took);
    }

    /// Holds the place also when the call has ended.
    pub(crate) fn hold(&self) -> Held {
        self.held.0.hold()
    }
}

impl Clone for Occupied {
    fn clone(&self) -> Self {
        self.held.0.occupy()
    }
}

impl Drop for Occupied {
    fn drop(&mut self) {
        let place = &self.held.0;
        if !remove_another(&place.calls) {
            let mut state = place.server.lock();
            if place.calls.fetch_sub(1, Relaxed) == 1 {
                place.on_this(&mut state, |on_this| on_this.occupied -= 1);
            }
            place.server.wake(state);
        }
    }
}
