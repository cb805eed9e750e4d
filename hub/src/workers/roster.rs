//! [`Roster`]: the workers of all keys, from the first item of a key to the end of its worker.
//!
//! An entry is a mail and the task that reads it. Its life:
//!
//! 1. The demux enters it for an item whose key has no sink. If the key has an older entry, the new
//!    one follows it, and waits until the older one is gone.
//! 2. Otherwise it needs a place, of which there are as many as `Workers::max_workers` says. If
//!    there is none, it waits for one, and its items in the backlog.
//! 3. With a place it waits until the [`Router`](super::router::Router) has spawned its task. The
//!    router does so because what frees a place may run in no task at all.
//! 4. It leaves with its [`Departure`], whatever has ended the task; or without a task, when it is
//!    revoked or everything is aborted.
//!
//! Only the first entry of a key has a place. Foreign code (wakers, drops, callbacks) runs after the
//! lock is released, in [`After::happen`]; `Hash`, `Eq` and `Clone` of a key run under it.

use std::any::Any;
use std::collections::{BTreeSet, HashMap};
use std::error::Error;
use std::fmt;
use std::hash::Hash;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use stream_demux::{Attach, Lease};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use super::guard::{discard, discard_panic};
use super::mail::{Killed, Mail, MailSink, Office};
use super::outcome::{BoxError, WorkerError};
use super::summary::Summary;

pub(super) type OnPanic<K> = Arc<dyn Fn(&K, &str) + Send + Sync>;
pub(super) type OnError<K> = Arc<dyn Fn(&K, &(dyn Error + Send + Sync + 'static)) + Send + Sync>;

pub(super) struct Roster<K, T> {
    /// How many workers there may be.
    max: usize,
    pub(super) office: Arc<Office>,
    /// Items that were read from the input.
    received: AtomicU64,
    is_stopping: AtomicBool,
    pub(super) on_panic: Option<OnPanic<K>>,
    pub(super) on_error: Option<OnError<K>>,
    state: Mutex<State<K, T>>,
}

struct State<K, T> {
    entries: HashMap<u64, Entry<K, T>>,
    keys: HashMap<K, Chain>,
    /// Entries that wait for a place. The oldest is next.
    waiting: BTreeSet<u64>,
    /// Entries that have a place, and no task yet.
    starting: BTreeSet<u64>,
    /// How many entries have a place.
    places_taken: usize,
    /// How many of them were asked to end, so that another gets their place.
    ending: usize,
    made: u64,
    /// Items that were taken by workers that are gone.
    taken: u64,
    panics: u64,
    errors: u64,
    first_error: Option<WorkerError<K>>,
    is_aborted: bool,
    /// The panic of the input or of the key function, until the handle takes it.
    failure: Option<Box<dyn Any + Send>>,
    router: Option<Waker>,
    /// The task that waits for the end.
    owner: Option<Waker>,
}

/// The entries of a key: each follows the one before it.
struct Chain {
    first: u64,
    last: u64,
}

struct Entry<K, T> {
    key: K,
    /// The key for its worker, until that is spawned.
    start: Option<K>,
    mail: Arc<Mail<T>>,
    /// The attachment of the mail. Ending it frees the key for another entry.
    lease: Option<Lease>,
    stage: Stage,
    next: Option<u64>,
    /// It was asked to end, so that another gets its place.
    is_ending: bool,
    /// Those who revoke it wait until this is dropped.
    gone: Option<watch::Sender<()>>,
}

enum Stage {
    /// Behind an older entry of the key.
    Following,
    /// Waits for a place.
    Waiting,
    /// Has a place, and no task yet.
    Starting,
    /// Its task is being spawned.
    Spawning,
    /// Its task is being spawned, and is to be aborted.
    Aborting,
    Running(AbortHandle),
}

impl Stage {
    fn has_task(&self) -> bool {
        matches!(self, Self::Spawning | Self::Aborting | Self::Running(_))
    }
}

/// An entry whose task is to be spawned.
pub(super) struct Start<K: Hash + Eq, T> {
    pub(super) key: K,
    pub(super) mail: Arc<Mail<T>>,
    pub(super) departure: Departure<K, T>,
}

/// The keys whose workers did not end in time.
pub(super) struct Unfinished<K> {
    /// Their workers were busy.
    pub(super) hung: Vec<K>,
    /// Their items waited for a worker, or for its turn.
    pub(super) waiting: Vec<K>,
}

impl<K> Unfinished<K> {
    pub(super) fn none() -> Self {
        Self { hung: Vec::new(), waiting: Vec::new() }
    }
}

/// What a change of the state leads to, outside of the lock.
#[must_use = "it is to happen"]
struct After<K, T> {
    wakers: Vec<Waker>,
    tasks: Vec<AbortHandle>,
    /// No worker is to read them any more.
    killed: Vec<Arc<Mail<T>>>,
    /// They have got a place.
    opened: Vec<Arc<Mail<T>>>,
    /// They are gone.
    removed: Vec<Entry<K, T>>,
    keys: Vec<K>,
}

impl<K, T> After<K, T> {
    fn new() -> Self {
        Self {
            wakers: Vec::new(),
            tasks: Vec::new(),
            killed: Vec::new(),
            opened: Vec::new(),
            removed: Vec::new(),
            keys: Vec::new(),
        }
    }

    fn happen(self) {
        for mail in &self.opened {
            mail.open();
        }
        // First, so that a task that is running makes no further worker.
        for mail in &self.killed {
            mail.kill();
        }
        for task in &self.tasks {
            task.abort();
        }
        for entry in &self.removed {
            entry.mail.kill();
        }
        self.wakers.into_iter().for_each(Waker::wake);
        // Last, because it tells the watchers that all this has happened.
        discard(self.removed);
        discard(self.keys);
    }
}

impl<K: Hash + Eq, T> State<K, T> {
    /// Gives the places that are free to those that wait for one.
    fn fill_places(&mut self, max: usize, after: &mut After<K, T>) {
        while self.places_taken < max && !self.is_aborted {
            let Some(id) = self.waiting.pop_first() else { break };
            let Some(entry) = self.entries.get_mut(&id) else { continue };
            entry.stage = Stage::Starting;
            self.starting.insert(id);
            self.places_taken += 1;
            after.opened.push(Arc::clone(&entry.mail));
        }
    }

    /// Removes an entry, which is the first of its key. The one that follows it is next.
    fn remove_first(&mut self, id: u64, after: &mut After<K, T>) {
        let Some(entry) = self.entries.remove(&id) else { return };
        self.leave(id, &entry);
        if let Some(next) = entry.next {
            if let Some(chain) = self.keys.get_mut(&entry.key) {
                chain.first = next;
            }
            if let Some(next_entry) = self.entries.get_mut(&next) {
                next_entry.stage = Stage::Waiting;
                self.waiting.insert(next);
            }
        } else if let Some((key, _)) = self.keys.remove_entry(&entry.key) {
            after.keys.push(key);
        }
        after.removed.push(entry);
    }

    /// Corrects the counts for an entry that was removed.
    fn leave(&mut self, id: u64, entry: &Entry<K, T>) {
        self.taken += entry.mail.taken();
        match entry.stage {
            Stage::Following => {}
            Stage::Waiting => {
                self.waiting.remove(&id);
            }
            Stage::Starting => {
                self.starting.remove(&id);
                self.places_taken -= 1;
            }
            Stage::Spawning | Stage::Aborting | Stage::Running(_) => self.places_taken -= 1,
        }
        if entry.is_ending {
            self.ending -= 1;
        }
    }

    /// Removes the entries that follow one.
    fn remove_followers(&mut self, first: u64, after: &mut After<K, T>) {
        let Some(entry) = self.entries.get_mut(&first) else { return };
        let mut next = entry.next.take();
        if let Some(chain) = self.keys.get_mut(&entry.key) {
            chain.last = first;
        }
        while let Some(id) = next {
            let Some(entry) = self.entries.remove(&id) else { break };
            self.leave(id, &entry);
            next = entry.next;
            after.removed.push(entry);
        }
    }

    /// Ends the task of an entry. Returns `false` if it has none.
    fn abort_task(&mut self, id: u64, after: &mut After<K, T>) -> bool {
        let Some(entry) = self.entries.get_mut(&id) else { return false };
        match &entry.stage {
            Stage::Running(task) => after.tasks.push(task.clone()),
            Stage::Spawning => entry.stage = Stage::Aborting,
            Stage::Aborting => {}
            Stage::Following | Stage::Waiting | Stage::Starting => return false,
        }
        after.killed.push(Arc::clone(&entry.mail));
        true
    }

    /// The first entry of each key.
    fn firsts(&self) -> Vec<u64> {
        self.keys.values().map(|chain| chain.first).collect()
    }

    /// Wakes those that wait for what has changed.
    fn rouse(&mut self, after: &mut After<K, T>) {
        if self.entries.is_empty() {
            after.wakers.extend(self.owner.take());
        }
        if self.entries.is_empty() || !self.starting.is_empty() {
            after.wakers.extend(self.router.take());
        }
    }
}

impl<K: Hash + Eq, T> Roster<K, T> {
    pub(super) fn new(
        max: usize,
        office: Arc<Office>,
        on_panic: Option<OnPanic<K>>,
        on_error: Option<OnError<K>>,
    ) -> Arc<Self> {
        let state = State {
            entries: HashMap::new(),
            keys: HashMap::new(),
            waiting: BTreeSet::new(),
            starting: BTreeSet::new(),
            places_taken: 0,
            ending: 0,
            made: 0,
            taken: 0,
            panics: 0,
            errors: 0,
            first_error: None,
            is_aborted: false,
            failure: None,
            router: None,
            owner: None,
        };
        Arc::new(Self {
            max: max.max(1),
            office,
            received: AtomicU64::new(0),
            is_stopping: AtomicBool::new(false),
            on_panic,
            on_error,
            state: Mutex::new(state),
        })
    }

    /// Enters a mail for a key that has no sink. Returns `None` if everything was aborted.
    pub(super) fn enter(&self, key: &K) -> Option<Attach<K, MailSink<T>>>
    where
        K: Clone,
    {
        let mail = Mail::new(&self.office);
        let mut lease = Lease::new();
        let sink = MailSink::new(Arc::clone(&mail));
        let attach = Attach::new(key.clone(), sink).leased(&mut lease);
        let mut entry = Entry {
            key: key.clone(),
            start: Some(key.clone()),
            mail,
            lease: Some(lease),
            stage: Stage::Following,
            next: None,
            is_ending: false,
            gone: None,
        };
        let of_chain = key.clone();
        let mut after = After::new();
        let mut state = self.lock();
        if state.is_aborted {
            drop(state);
            return None;
        }
        let id = state.made;
        state.made += 1;
        if let Some(chain) = state.keys.get_mut(key) {
            let before = std::mem::replace(&mut chain.last, id);
            if let Some(before) = state.entries.get_mut(&before) {
                before.next = Some(id);
            }
        } else {
            entry.stage = Stage::Waiting;
            state.keys.insert(of_chain, Chain { first: id, last: id });
            state.waiting.insert(id);
        }
        state.entries.insert(id, entry);
        state.fill_places(self.max, &mut after);
        drop(state);
        after.happen();
        Some(attach)
    }

    /// Drops an item whose mail was entered, but has ended before its sink was attached: another
    /// thread has revoked the key in the meantime, or everything was aborted.
    pub(super) fn drop_unattached(&self, item: T) {
        let is_revoked = !self.lock().is_aborted;
        let count = discard([item]);
        if is_revoked {
            self.office.revoked.fetch_add(count, Relaxed);
        }
    }

    /// Returns the next entry whose task is to be spawned.
    pub(super) fn next_start(self: &Arc<Self>) -> Option<Start<K, T>> {
        let mut state = self.lock();
        let id = state.starting.pop_first()?;
        let entry = state.entries.get_mut(&id)?;
        let key = entry.start.take()?;
        let mail = Arc::clone(&entry.mail);
        entry.stage = Stage::Spawning;
        drop(state);
        let departure = Departure { roster: Arc::clone(self), id };
        Some(Start { key, mail, departure })
    }

    /// Notes the task of an entry, which may be gone by now.
    pub(super) fn set_task(&self, id: u64, task: &AbortHandle) {
        let mut state = self.lock();
        let Some(entry) = state.entries.get_mut(&id) else { return };
        let is_aborted = matches!(entry.stage, Stage::Aborting);
        entry.stage = Stage::Running(task.clone());
        drop(state);
        if is_aborted {
            task.abort();
        }
    }

    /// Returns how many entries wait for a place that no worker was asked to leave yet.
    pub(super) fn places_wanted(&self) -> usize {
        let state = self.lock();
        state.waiting.len().saturating_sub(state.ending)
    }

    /// Returns the workers that wait for an item: since when, and their numbers.
    pub(super) fn idle_workers(&self) -> Vec<(u64, u64)> {
        let state = self.lock();
        let mut idle = Vec::new();
        for (&id, entry) in &state.entries {
            if !entry.is_ending && entry.stage.has_task() {
                idle.extend(entry.mail.idle_since().map(|since| (since, id)));
            }
        }
        idle
    }

    /// Ends a worker, unless it has had an item since then. Returns `true` if it ends.
    pub(super) fn end_idle(&self, id: u64, since: u64) -> bool {
        let mut state = self.lock();
        let Some(entry) = state.entries.get_mut(&id) else { return false };
        if entry.is_ending || entry.mail.idle_since() != Some(since) {
            return false;
        }
        let lease = entry.lease.take();
        entry.is_ending = true;
        state.ending += 1;
        drop(state);
        // What comes before the key is free still arrives.
        lease.into_iter().for_each(Lease::detach);
        true
    }

    /// Drops what waits for a key, and ends its worker. Returns what waits until that is gone.
    pub(super) fn revoke(&self, key: &K) -> Revoked<T> {
        let mut after = After::new();
        let mut state = self.lock();
        let Some(chain) = state.keys.get(key) else {
            return Revoked { mails: Vec::new(), gone: None };
        };
        let first = chain.first;
        state.remove_followers(first, &mut after);
        let mut leases = Vec::new();
        let mut gone = None;
        let mut mails = Vec::new();
        if state.abort_task(first, &mut after) {
            if let Some(entry) = state.entries.get_mut(&first) {
                let sender = entry.gone.get_or_insert_with(|| watch::channel(()).0);
                gone = Some(sender.subscribe());
                leases.extend(entry.lease.take());
                mails.push(Arc::clone(&entry.mail));
            }
        } else {
            state.remove_first(first, &mut after);
            state.fill_places(self.max, &mut after);
        }
        state.rouse(&mut after);
        mails.extend(after.removed.iter().map(|entry| Arc::clone(&entry.mail)));
        // Under the lock: when an entry is gone, its items are counted, so the counts at the end are
        // the last ones.
        let killed = mails.iter().map(|mail| mail.revoke()).collect::<Vec<_>>();
        drop(state);
        // The key is free before the first await, so what is read from now on is for the next
        // worker.
        drop(leases);
        killed.into_iter().for_each(Killed::happen);
        after.happen();
        Revoked { mails, gone }
    }

    /// Ends all workers at their next `await`, and starts no more of them.
    pub(super) fn abort(&self) {
        let mut after = After::new();
        let mut state = self.lock();
        state.is_aborted = true;
        for first in state.firsts() {
            state.remove_followers(first, &mut after);
            if !state.abort_task(first, &mut after) {
                state.remove_first(first, &mut after);
            }
        }
        state.rouse(&mut after);
        drop(state);
        after.happen();
    }

    /// Starts no more workers. Those that are alive go on.
    pub(super) fn start_no_more(&self) {
        let mut after = After::new();
        let mut state = self.lock();
        state.is_aborted = true;
        for first in state.firsts() {
            state.remove_followers(first, &mut after);
            if !state.entries.get(&first).is_some_and(|entry| entry.stage.has_task()) {
                state.remove_first(first, &mut after);
            }
        }
        state.rouse(&mut after);
        drop(state);
        after.happen();
    }

    /// Waits until no entry is left.
    pub(super) fn poll_over(&self, cx: &Context<'_>) -> Poll<()> {
        let waker = cx.waker().clone();
        let mut state = self.lock();
        if state.entries.is_empty() {
            return Poll::Ready(());
        }
        let replaced = state.owner.replace(waker);
        drop(state);
        drop(replaced);
        Poll::Pending
    }

    /// The panic of the input or of the key function, if there was one. Registers the owner.
    pub(super) fn take_failure(&self, cx: &Context<'_>) -> Option<Box<dyn Any + Send>> {
        let waker = cx.waker().clone();
        let mut state = self.lock();
        let replaced = state.owner.replace(waker);
        let failure = state.failure.take();
        drop(state);
        drop(replaced);
        failure
    }

    /// Tells the owner of a panic.
    pub(super) fn fail(&self, panic: Box<dyn Any + Send>) {
        let mut state = self.lock();
        let mut unused = None;
        if state.failure.is_none() {
            state.failure = Some(panic);
        } else {
            unused = Some(panic);
        }
        let owner = state.owner.take();
        drop(state);
        owner.into_iter().for_each(Waker::wake);
        unused.into_iter().for_each(discard_panic);
    }

    pub(super) fn register_router(&self, cx: &Context<'_>) {
        let mut state = self.lock();
        if state.router.as_ref().is_some_and(|router| router.will_wake(cx.waker())) {
            return;
        }
        let replaced = state.router.replace(cx.waker().clone());
        drop(state);
        drop(replaced);
    }

    /// Returns the number of workers that are alive, or wait for the one before them.
    pub(super) fn len(&self) -> usize {
        let state = self.lock();
        state.entries.len() - state.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().entries.is_empty()
    }

    pub(super) fn keys(&self) -> Vec<K>
    where
        K: Clone,
    {
        self.lock().keys.keys().cloned().collect()
    }

    /// The keys that have a worker or wait for one.
    pub(super) fn unfinished(&self) -> Unfinished<K>
    where
        K: Clone,
    {
        let state = self.lock();
        let mut hung = Vec::new();
        let mut waiting = Vec::new();
        for (key, chain) in &state.keys {
            let is_busy = state
                .entries
                .get(&chain.first)
                .is_some_and(|entry| entry.stage.has_task() && !entry.mail.is_in_line());
            let list = if is_busy { &mut hung } else { &mut waiting };
            list.push(key.clone());
        }
        Unfinished { hung, waiting }
    }

    /// How many items wait for each key, for those that have any.
    pub(super) fn queues(&self) -> Vec<(K, usize)>
    where
        K: Clone,
    {
        let state = self.lock();
        let mut queues = Vec::new();
        for (key, chain) in &state.keys {
            let mut items = 0;
            let mut id = Some(chain.first);
            while let Some(entry) = id.and_then(|id| state.entries.get(&id)) {
                items += entry.mail.len();
                id = entry.next;
            }
            if items > 0 {
                queues.push((key.clone(), items));
            }
        }
        queues
    }

    pub(super) fn panicked(&self, key: &K, message: &str) {
        self.lock().panics += 1;
        if let Some(call) = &self.on_panic {
            call(key, message);
        }
    }

    pub(super) fn failed(&self, key: &K, error: BoxError)
    where
        K: Clone,
    {
        let error = Arc::<dyn Error + Send + Sync>::from(error);
        let first = WorkerError { key: key.clone(), error: Arc::clone(&error) };
        let mut state = self.lock();
        state.errors += 1;
        let mut unused = None;
        if state.first_error.is_none() {
            state.first_error = Some(first);
        } else {
            unused = Some(first);
        }
        drop(state);
        drop(unused);
        if let Some(call) = &self.on_error {
            call(key, &*error);
        }
    }

    pub(super) fn summary(&self, unfinished: &Unfinished<K>) -> Summary<K>
    where
        K: Clone,
    {
        let state = self.lock();
        let taken = state.entries.values().map(|entry| entry.mail.taken()).sum::<u64>();
        Summary {
            received: self.received.load(Relaxed),
            taken: state.taken + taken,
            workers: state.made,
            panics: state.panics,
            errors: state.errors,
            first_error: state.first_error.clone(),
            revoked: self.office.revoked.load(Relaxed),
            backlog: self.office.backlog.used(),
            most_backlog: self.office.backlog.most(),
            input_waits: self.office.backlog.waits(),
            hung: unfinished.hung.clone(),
            waiting: unfinished.waiting.clone(),
        }
    }
}

impl<K, T> Roster<K, T> {
    /// A panic of foreign code under the lock leaves at most a key without an entry, so a poisoned
    /// lock is used on.
    fn lock(&self) -> MutexGuard<'_, State<K, T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an item that was read from the input. Only the router does so.
    #[inline]
    pub(super) fn count_received(&self) {
        self.received.store(self.received.load(Relaxed) + 1, Relaxed);
    }

    /// Reads no more from the input.
    pub(super) fn stop(&self) {
        self.is_stopping.store(true, Release);
        // The router registers before it looks, so one of both sees the other.
        let router = self.lock().router.take();
        router.into_iter().for_each(Waker::wake);
    }

    #[inline]
    pub(super) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Acquire)
    }
}

impl<K, T> fmt::Debug for Roster<K, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.lock();
        f.debug_struct("Roster")
            .field("alive", &(state.entries.len() - state.waiting.len()))
            .field("waiting", &state.waiting.len())
            .field("made", &state.made)
            .field("received", &self.received.load(Relaxed))
            .field("backlog", &self.office.backlog.used())
            .field("panics", &state.panics)
            .field("errors", &state.errors)
            .field("is_stopping", &self.is_stopping.load(Relaxed))
            .field("is_aborted", &state.is_aborted)
            .finish_non_exhaustive()
    }
}

/// What a revocation waits for, and what it has dropped.
pub(super) struct Revoked<T> {
    mails: Vec<Arc<Mail<T>>>,
    gone: Option<watch::Receiver<()>>,
}

impl<T> Revoked<T> {
    /// Waits until the worker is gone. Returns how many items were dropped.
    pub(super) async fn gone(self) -> u64 {
        if let Some(mut gone) = self.gone {
            // It fails when the sender is dropped; nothing is ever sent.
            drop(gone.changed().await);
        }
        self.mails.iter().map(|mail| mail.revoked()).sum()
    }
}

/// Removes an entry when it is dropped, whatever has ended its task.
pub(super) struct Departure<K: Hash + Eq, T> {
    pub(super) roster: Arc<Roster<K, T>>,
    pub(super) id: u64,
}

impl<K: Hash + Eq, T> Drop for Departure<K, T> {
    fn drop(&mut self) {
        let mut after = After::new();
        let mut state = self.roster.lock();
        if std::thread::panicking() {
            // The drop of a worker that was aborted.
            state.panics += 1;
        }
        state.remove_first(self.id, &mut after);
        state.fill_places(self.roster.max, &mut after);
        state.rouse(&mut after);
        drop(state);
        after.happen();
    }
}
