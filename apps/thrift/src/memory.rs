//! Limits of the memory that clients hold in a server, in bytes, for each connection and for all.
//!
//! 1. Memory is acquired before the bytes are read, and only for bytes that have arrived: the first
//!    30 KiB of a frame come from its connection's own room, then each step doubles what may be
//!    read. A step has room for its part of the frame and for as much of an answer. Thus a length
//!    that is announced costs the other connections nothing.
//! 2. Memory is released when the bytes are freed, not earlier: a [`Held`] is dropped with them.
//! 3. A connection may hold half as much of the shared room as it leaves free (`shares`). Thus
//!    connections that take all they can get leave room for others.
//! 4. There are no deadlocks. A connection waits for its own room while it holds nothing for this
//!    call. A frame that does not fit into the share of its connection waits for the turn, whose
//!    holder uses a reserve that is enough for any frame. A frame that holds shared room does not
//!    wait for longer than the stall time-out (`transport`).
//! 5. An answer that is longer than its call never waits, because it exists already: it gets room
//!    from a part reserved for answers, which is shared by rule 3, or the call is refused.
//! 6. Before an answer is refused, and while a frame waits for room, connections that hold more are
//!    closed if they wait for their clients: the client has read nothing for one [`PAUSE`], or next to
//!    nothing in two, or has sent next to nothing of a frame in two. The greediest is first. A connection notes this itself, when
//!    it has tried once more, so that it does not matter how long the process was stopped.
//!    If there is none, and the one that needs room would hold no more than an equal part of the memory,
//!    a connection is closed that holds more than that for calls that have run for [`LONG`]. Thus calls
//!    that take long do not keep calls of others out for as long. Envoy resets the streams that hold most
//!    in the same way (`reset_high_memory_stream` of its
//!    [overload manager](https://www.envoyproxy.io/docs/envoy/latest/configuration/operations/overload_manager/overload_manager)).
//! 7. Each connection has [`OWN`] bytes that no other connection can use. Small calls continue when
//!    the shared room is used up.

use std::collections::HashMap;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore, SemaphorePermit};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::connection::Activity;
use crate::shares::Shares;

/// Overhead of a call beside its bytes: a task, its envelope (a name of up to a KiB is copied), and
/// an answer that is a little longer than its call. A call of `later` without a text was measured
/// at 1.3 KiB without optimisation.
pub(crate) const CALL: usize = 4 * 1024;

/// Overhead of an answer beside its bytes until it is written. Measured: about 700 bytes.
const ANSWER: usize = 1024;

/// Bytes that are reserved for each connection: enough for sixteen small calls. They amount to 64
/// MiB for a thousand connections.
pub(crate) const OWN: usize = 64 * 1024;

/// How much of a frame must arrive in a [`PAUSE`], and how much of the answers must be read: 64 KB in a
/// second.
pub(crate) const LITTLE: usize = 16 * 1024;

/// How long a client must have read nothing before its connection is closed in favour of others. A
/// client that reads makes progress once in a round trip, which is rarely as long. Time limits for clients
/// are counted in these steps: if a step took longer than it should, because the process was stopped or
/// is very busy, the client is not to blame.
pub(crate) const PAUSE: Duration = Duration::from_millis(250);

/// How long calls may hold more than an equal part of the memory that others need, in [`Memory::tick`]s of
/// 100 ms: ten seconds. Most calls are answered sooner, and most clients wait longer. What is held by
/// calls that are as old is closed at once, so others rarely wait for as long.
const LONG: u64 = 100;

/// Returns what a call of `length` bytes is charged: for itself and an answer of the same length.
const fn charge(length: usize) -> usize {
    length.saturating_mul(2).saturating_add(CALL)
}

/// Divides an amount of memory into a part for calls and, a quarter, one reserved for answers that
/// are longer than their calls.
fn divide(bytes: usize) -> (usize, usize) {
    let answers = bytes / 4;
    let calls = (bytes - answers).min(Semaphore::MAX_PERMITS).min(u32::MAX as usize);
    (calls, answers)
}

/// The memory of all connections.
#[derive(Debug, Clone)]
pub(crate) struct Memory {
    all: Arc<All>,
    each: usize,
    longest: usize,
}

#[derive(Debug)]
struct All {
    calls: Shares,
    answers: Shares,
    /// The holder of the only permit has the reserve of calls, which is not part of `calls`.
    turn: Arc<Semaphore>,
    accounts: AtomicU64,
    /// How often `Memory::tick` was called.
    ticks: AtomicU64,
    clients: Mutex<HashMap<u64, Arc<Client>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl All {
    fn clients(&self) -> MutexGuard<'_, HashMap<u64, Arc<Client>>> {
        lock(&self.clients)
    }

    fn now(&self) -> u64 {
        self.ticks.load(Relaxed)
    }

    /// Takes room for an answer. If there is none, makes room.
    fn try_answer(&self, id: u64, more: usize, since: u64) -> bool {
        while !self.answers.try_take(id, more, since) {
            if !self.make_room(&self.answers, id, more) {
                return false;
            }
        }
        true
    }

    /// Waits for room for a part of a frame, and makes room when it is possible.
    async fn take_calls(&self, id: u64, more: usize, since: u64) {
        if self.calls.try_take(id, more, since) {
            return;
        }
        let mut taken = pin!(self.calls.take(id, more, since));
        self.make_room(&self.calls, id, more);
        while timeout(PAUSE, &mut taken).await.is_err() {
            self.make_room(&self.calls, id, more);
        }
    }

    /// Closes a connection, by the sixth rule. What it holds is about to be freed.
    fn make_room(&self, shares: &Shares, id: u64, more: usize) -> bool {
        for other in shares.greedier(id, more) {
            let client = self.clients().get(&other).cloned();
            let Some(client) = client else { continue };
            if let Some(reason) = client.paused() {
                self.close(other, &client, reason);
                return true;
            }
        }
        let long = shares.long(id, more, self.now().saturating_sub(LONG));
        let client = long.and_then(|other| self.clients().get(&other).cloned());
        let (Some(other), Some(client)) = (long, client) else { return false };
        self.close(other, &client, "its calls held memory for long while others needed it");
        true
    }

    fn close(&self, id: u64, client: &Client, reason: &str) {
        client.end(io::ErrorKind::QuotaExceeded, reason.to_owned());
        client.evicted.cancel();
        self.calls.write_off(id);
        self.answers.write_off(id);
    }
}

/// What a connection waits for its client to do.
#[derive(Debug, Default)]
struct Client {
    /// It has read nothing for a pause, or little for two, while something is to be written.
    blocked: AtomicBool,
    /// It has sent little for two pauses, of a frame that has arrived in part.
    awaited: AtomicBool,
    /// Why the connection is to be closed.
    reason: OnceLock<(io::ErrorKind, String)>,
    /// Cancelled when there is a reason.
    ended: CancellationToken,
    /// Cancelled when others need its memory.
    evicted: CancellationToken,
}

impl Client {
    /// Returns what the connection has been waiting for, as the reason to close it.
    fn paused(&self) -> Option<&'static str> {
        if self.blocked.load(Relaxed) {
            Some("the client read hardly any of its answers while others needed their memory")
        } else if self.awaited.load(Relaxed) {
            Some("the client sent hardly any of a frame while others needed its memory")
        } else {
            None
        }
    }

    /// Closes the connection, unless it is being closed for another reason.
    fn end(&self, kind: io::ErrorKind, reason: String) {
        self.reason.get_or_init(|| (kind, reason));
        self.ended.cancel();
    }
}

/// The memory of a connection.
#[derive(Debug, Clone)]
pub(crate) struct Account(Arc<Rooms>);

#[derive(Debug)]
struct Rooms {
    id: u64,
    own: Semaphore,
    calls: Semaphore,
    answers: AtomicUsize,
    all: Arc<All>,
    client: Arc<Client>,
    activity: Activity,
}

impl Drop for Rooms {
    fn drop(&mut self) {
        self.all.clients().remove(&self.id);
        self.all.calls.forget(self.id);
        self.all.answers.forget(self.id);
    }
}

impl Memory {
    /// Limits each connection to `each` bytes and all connections to `all` bytes. Frames have at
    /// most `frame` bytes.
    pub(crate) fn new(each: usize, all: usize, frame: usize) -> Self {
        let (calls, answers) = divide(all);
        // A frame that exceeds the room for calls would wait forever. At least a quarter of it is
        // left to shares.
        let most = divide(each).0.min(calls - calls / 4);
        let longest = most.saturating_sub(CALL) / 2;
        let reserve = charge(longest.min(frame)).min(calls);
        let all = All {
            calls: Shares::new(calls - reserve),
            answers: Shares::new(answers),
            turn: Arc::new(Semaphore::new(1)),
            accounts: AtomicU64::new(0),
            ticks: AtomicU64::new(0),
            clients: Mutex::default(),
        };
        Self { all: Arc::new(all), each, longest }
    }

    /// Returns the length of the longest frame that there can be room for.
    pub(crate) fn longest(&self) -> usize {
        self.longest
    }

    /// Notes that time has passed: to be called every 100 ms. After a pause of the process, it is called
    /// once.
    pub(crate) fn tick(&self) {
        self.all.ticks.fetch_add(1, Relaxed);
    }

    /// Creates the account of a connection, which notes in `activity` when it waits for memory.
    pub(crate) fn account(&self, activity: Activity) -> Account {
        let (calls, answers) = divide(self.each);
        let id = self.all.accounts.fetch_add(1, Relaxed);
        let client = Arc::<Client>::default();
        self.all.clients().insert(id, Arc::clone(&client));
        Account(Arc::new(Rooms {
            id,
            own: Semaphore::new(OWN),
            calls: Semaphore::new(calls),
            answers: AtomicUsize::new(answers),
            all: Arc::clone(&self.all),
            client,
            activity,
        }))
    }
}

impl Account {
    /// Notes whether bytes are to be written to the client, but none could be for a [`PAUSE`], or few for
    /// two.
    pub(crate) fn set_blocked(&self, is_blocked: bool) {
        self.0.client.blocked.store(is_blocked, Relaxed);
    }

    /// Notes whether more of a frame is awaited, but little of it has arrived in two [`PAUSE`]s.
    pub(crate) fn set_awaited(&self, is_awaited: bool) {
        self.0.client.awaited.store(is_awaited, Relaxed);
    }

    #[cfg(test)]
    pub(crate) fn is_paused(&self) -> bool {
        self.0.client.paused().is_some()
    }

    /// Closes the connection because its client has read nothing `within` this time.
    pub(crate) fn end_stalled(&self, within: Duration) {
        let reason = format!("the client read no answers for {within:?}");
        self.0.client.end(io::ErrorKind::TimedOut, reason);
    }

    /// Is cancelled when all that the connection holds is to be dropped, because others need its memory.
    pub(crate) fn evicted(&self) -> &CancellationToken {
        &self.0.client.evicted
    }

    /// Is cancelled when the connection is to be closed because the client does not read, or because
    /// others need its memory.
    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.0.client.ended
    }

    /// Returns the reason as an error, after [`Self::ended`] was cancelled.
    pub(crate) fn end_error(&self) -> io::Error {
        match self.0.client.reason.get() {
            Some((kind, reason)) => io::Error::new(*kind, reason.clone()),
            None => io::ErrorKind::Other.into(),
        }
    }

    /// Waits until there is room for the first step of a call of `length` bytes.
    pub(crate) async fn hold(&self, length: usize) -> Held {
        let Rooms { id, own, calls, all, activity, .. } = &*self.0;
        let _waiting = activity.wait_for_memory();
        let (whole, since) = (charge(length), all.now());
        let mine = calls.acquire_many(permits(whole)).await;
        let first = whole.min(OWN);
        let (of_own, of_all) = tokio::select! {
            biased;
            permit = own.acquire_many(permits(first)) => {
                keep(permit);
                (first, 0)
            }
            () = all.take_calls(*id, first, since) => (0, first),
        };
        keep(mine);
        let rooms = Arc::clone(&self.0);
        Held {
            rooms,
            since,
            length,
            of_each: whole,
            of_own,
            of_all,
            turn: None,
            of_turn: 0,
            of_answers: 0,
            answered: 0,
        }
    }
}

fn permits(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Forgets the permits; a [`Held`] returns them. The semaphores are never closed.
fn keep(permits: Result<SemaphorePermit<'_>, AcquireError>) {
    if let Ok(permits) = permits {
        permits.forget();
    }
}

/// Memory that is held for a call, and then for its answer.
#[derive(Debug)]
pub(crate) struct Held {
    rooms: Arc<Rooms>,
    /// When it began, in ticks.
    since: u64,
    /// The length of the call's frame.
    length: usize,
    /// Held of the limit of the connection, for the whole call from the beginning.
    of_each: usize,
    of_own: usize,
    of_all: usize,
    turn: Option<OwnedSemaphorePermit>,
    /// Held of the reserve, by the holder of the turn.
    of_turn: usize,
    of_answers: usize,
    /// When there was an answer, in ticks.
    answered: u64,
}

impl Held {
    fn held(&self) -> usize {
        self.of_own + self.of_all + self.of_turn
    }

    /// Returns how many bytes of the frame there is room for.
    pub(crate) fn room(&self) -> usize {
        (self.held().saturating_sub(CALL) / 2).min(self.length)
    }

    /// Returns `true` if others may wait for what is held.
    pub(crate) fn is_shared(&self) -> bool {
        self.of_all > 0
    }

    /// Waits until there is room for twice as much of the frame.
    pub(crate) async fn grow(&mut self) {
        let step = charge((2 * self.room()).min(self.length));
        let Rooms { id, own, all, activity, .. } = &*self.rooms;
        let _waiting = activity.wait_for_memory();
        // The connection's own room is for small calls, so the first step is charged once more.
        let more = step - self.of_all;
        tokio::select! {
            biased;
            () = all.take_calls(*id, more, self.since) => {
                self.of_all += more;
                own.add_permits(self.of_own);
                self.of_own = 0;
            }
            turn = Arc::clone(&all.turn).acquire_owned() => {
                self.turn = turn.ok();
                self.of_turn = charge(self.length) - self.held();
            }
        }
    }

    /// Replaces the room held for the call by room for an answer of `length` bytes. Returns `false`
    /// if there is not enough.
    pub(crate) fn answer(&mut self, length: usize) -> bool {
        let held = self.held();
        let bytes = length.saturating_add(ANSWER);
        let Some(more) = bytes.checked_sub(held) else {
            self.give_back(held - bytes);
            return true;
        };
        let Rooms { id, answers, all, .. } = &*self.rooms;
        let less = |left: usize| left.checked_sub(more);
        if answers.fetch_update(Relaxed, Relaxed, less).is_err() {
            return false;
        }
        if self.of_answers == 0 {
            self.answered = all.now();
        }
        if !all.try_answer(*id, more, self.answered) {
            answers.fetch_add(more, Relaxed);
            return false;
        }
        self.of_answers += more;
        true
    }

    /// Gives the turn back first, which others can only wait for, and the own room last.
    fn give_back(&mut self, bytes: usize) {
        let of_turn = bytes.min(self.of_turn);
        let of_all = (bytes - of_turn).min(self.of_all);
        let of_own = bytes - of_turn - of_all;
        self.of_turn -= of_turn;
        self.of_all -= of_all;
        self.of_own -= of_own;
        self.of_each -= bytes;
        if self.of_turn == 0 {
            self.turn = None;
        }
        let Rooms { id, own, calls, all, .. } = &*self.rooms;
        own.add_permits(of_own);
        all.calls.release(*id, of_all, self.since);
        calls.add_permits(bytes);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.give_back(self.held());
        let Rooms { id, calls, answers, all, .. } = &*self.rooms;
        calls.add_permits(self.of_each); // of a frame that has not arrived completely
        answers.fetch_add(self.of_answers, Relaxed);
        all.answers.release(*id, self.of_answers, self.answered);
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const EACH: usize = 1 << 20;
    const ALL: usize = 4 << 20;

    /// For its timers. Nothing runs on it, so that no future yields because of a budget.
    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap()
    }

    fn memory() -> Memory {
        Memory::new(EACH, ALL, usize::MAX)
    }

    fn all_released(account: &Account) -> bool {
        let Rooms { own, calls, answers, all, .. } = &*account.0;
        let each = divide(EACH);
        let rest = divide(ALL).0 - charge(memory().longest());
        own.available_permits() == OWN
            && (calls.available_permits(), answers.load(Relaxed)) == each
            && all.calls.is_unused(rest)
            && all.answers.is_unused(divide(ALL).1)
            && all.turn.available_permits() == 1
    }

    /// Holds room for a whole call.
    async fn whole(account: &Account, length: usize) -> Held {
        let mut held = account.hold(length).await;
        while held.room() < length {
            held.grow().await;
        }
        held
    }

    #[test]
    fn the_longest_frame_has_room_and_a_second_waits_for_it() {
        let runtime = runtime();
        let _timers = runtime.enter();
        let (memory, activity) = (memory(), Activity::default());
        let account = memory.account(activity.clone());
        let first = whole(&account, memory.longest())
            .now_or_never()
            .expect("there is no room for the first frame");
        assert!(account.hold(memory.longest()).now_or_never().is_none());
        assert!(!activity.needs_memory());
        let mut second = Box::pin(whole(&account, memory.longest()));
        assert!((&mut second).now_or_never().is_none());
        assert!(activity.needs_memory());
        drop(first);
        drop(second.now_or_never().expect("the room of the first frame was not released"));
        assert!(all_released(&account));
    }

    #[test]
    fn a_cancelled_wait_holds_nothing() {
        let runtime = runtime();
        let _timers = runtime.enter();
        let memory = memory();
        let accounts = [(); 8].map(|()| memory.account(Activity::default()));
        let held = accounts.each_ref().map(|of| whole(of, memory.longest()).now_or_never());
        let served = held.iter().map(Option::is_some).collect::<Vec<_>>();
        // The first has a share, the second the turn.
        assert_eq!(served, [true, true, false, false, false, false, false, false]);
        for account in &accounts {
            let mut next = Box::pin(whole(account, memory.longest()));
            assert!((&mut next).now_or_never().is_none());
            assert!(account.0.activity.needs_memory());
            drop(next);
            assert!(!account.0.activity.needs_memory());
        }
        drop(held);
        assert!(accounts.iter().all(all_released));
    }

    #[test]
    fn an_announced_length_holds_only_room_of_its_connection() {
        let runtime = runtime();
        let _timers = runtime.enter();
        let memory = memory();
        let accounts = [(); 100].map(|()| memory.account(Activity::default()));
        let announced = accounts.each_ref().map(|of| of.hold(memory.longest()).now_or_never());
        assert!(announced.iter().flatten().all(|held| !held.is_shared()));
        assert_eq!(announced.iter().flatten().count(), 100);
        let next = memory.account(Activity::default());
        assert!(whole(&next, memory.longest()).now_or_never().is_some());
        drop(announced);
        assert!(all_released(&next));
    }

    /// Each has read a part of a frame. Those that do not fit into their share finish one after
    /// another.
    #[test]
    fn half_read_frames_finish_in_turn() {
        let runtime = runtime();
        let _timers = runtime.enter();
        let memory = memory();
        let accounts = [(); 20].map(|()| memory.account(Activity::default()));
        let frames = accounts.each_ref().map(|of| Box::pin(whole(of, memory.longest())));
        let mut frames = Vec::from(frames);
        let mut done = 0;
        while done < accounts.len() {
            let before = done;
            frames.retain_mut(|frame| match frame.now_or_never() {
                Some(held) => {
                    assert_eq!(held.room(), memory.longest());
                    done += 1;
                    false
                }
                None => true,
            });
            assert!(done > before, "{done} have finished, and the others wait for each other");
        }
        drop(frames);
        assert!(accounts.iter().all(all_released));
    }

    #[test]
    fn small_calls_continue_when_the_shared_room_is_used_up() {
        let runtime = runtime();
        let _timers = runtime.enter();
        let memory = memory();
        let mut greedy = Vec::new();
        for _ in 0..40 {
            let account = memory.account(Activity::default());
            for length in [60_000, 1_000, 0] {
                greedy.extend(std::iter::from_fn(|| whole(&account, length).now_or_never()));
            }
        }
        let account = memory.account(Activity::default());
        let small = std::iter::from_fn(|| account.hold(100).now_or_never()).collect::<Vec<_>>();
        assert_eq!(small.len(), OWN / (CALL + 200));
        assert!(whole(&account, 60_000).now_or_never().is_none());
        drop((greedy, small));
        assert!(all_released(&account));
    }

    #[test]
    fn an_answer_holds_its_length_instead_of_its_call() {
        let runtime = runtime();
        let _timers = runtime.enter();
        let memory = memory();
        let account = memory.account(Activity::default());
        let mut held = whole(&account, 100_000).now_or_never().unwrap();
        assert!(held.answer(1_000));
        assert_eq!((held.of_own, held.of_all, held.of_answers), (0, 1_000 + ANSWER, 0));
        assert!(held.answer(151_000), "longer than its call");
        assert_eq!(held.of_answers, 150_000);

        let mut small = account.hold(1).now_or_never().unwrap();
        assert!(!small.answer(EACH), "an answer of {EACH} bytes got room");
        assert!(small.answer(100), "no room for the exception that replaces it");
        drop((held, small));
        assert!(all_released(&account));
    }

    /// The turn is given back as soon as an answer needs less.
    #[test]
    fn a_short_answer_gives_the_turn_back() {
        let runtime = runtime();
        let _timers = runtime.enter();
        let memory = memory();
        let first = memory.account(Activity::default());
        let share = whole(&first, memory.longest()).now_or_never().unwrap();
        let second = memory.account(Activity::default());
        let mut held = whole(&second, memory.longest()).now_or_never().unwrap();
        assert!(held.of_turn > 0);
        assert!(held.answer(1_000));
        assert_eq!((held.of_turn, held.held()), (0, 1_000 + ANSWER));
        let third = memory.account(Activity::default());
        drop(whole(&third, memory.longest()).now_or_never().expect("the turn is still taken"));
        drop((share, held));
        assert!(all_released(&third));
    }

    /// A waiting frame takes all released room for calls, but none of the room reserved for
    /// answers.
    #[test]
    fn a_waiting_frame_takes_no_room_from_answers() {
        let runtime = runtime();
        let _timers = runtime.enter();
        let memory = memory();
        let account = memory.account(Activity::default());
        let mut held = whole(&account, memory.longest()).now_or_never().unwrap();
        let mut waits = Box::pin(account.hold(memory.longest()));
        assert!((&mut waits).now_or_never().is_none());
        assert!(held.answer(2 * memory.longest() + EACH / 8));
        drop((waits, held));
        assert!(all_released(&account));
    }

    #[test]
    fn a_greedy_client_that_does_not_read_makes_room_for_an_answer() {
        let runtime = runtime();
        let _timers = runtime.enter();
        let memory = memory();
        let accounts = [(); 30].map(|()| memory.account(Activity::default()));
        let mut greedy = Vec::new();
        for account in &accounts {
            while let Some(mut held) = account.hold(1).now_or_never() {
                if !held.answer(50_000) {
                    break;
                }
                greedy.push(held);
            }
        }
        let next = memory.account(Activity::default());
        let mut held = next.hold(1).now_or_never().unwrap();
        assert!(!held.answer(60_000), "there is room anyway");
        // This client reads.
        accounts[1].set_blocked(true);
        accounts[1].set_blocked(false);
        assert!(!held.answer(60_000));
        for account in &accounts[3..5] {
            account.set_blocked(true);
        }
        assert!(
            held.answer(60_000),
            "there is no room in the place of a client that does not read"
        );
        let closed = accounts.each_ref().map(|of| of.ended().is_cancelled());
        assert!(closed[3] != closed[4], "one is enough, and both hold as much");
        assert_eq!(closed.iter().filter(|closed| **closed).count(), 1);
        drop((greedy, held));
        let last = accounts.into_iter().last().unwrap(); // the others are dropped
        assert!(all_released(&last));
    }

    #[test]
    fn calls_that_take_long_make_room_for_those_that_need_less() {
        let runtime = runtime();
        let _timers = runtime.enter();
        let memory = memory();
        let accounts = [(); 4].map(|()| memory.account(Activity::default()));
        let greedy = accounts
            .each_ref()
            .map(|of| std::iter::from_fn(|| whole(of, 60_000).now_or_never()).collect::<Vec<_>>());
        let next = memory.account(Activity::default());
        while memory.all.now() < LONG {
            assert!(whole(&next, 150_000).now_or_never().is_none(), "there is room anyway");
            memory.tick();
        }
        assert!(whole(&next, 150_000).now_or_never().is_none(), "it may be answered just now");
        memory.tick();
        let large = whole(&next, 500_000).now_or_never();
        assert!(large.is_none(), "it is more than an equal part");
        let held = whole(&next, 150_000).now_or_never().expect("they keep it out");
        let evicted = accounts.each_ref().map(|of| of.evicted().is_cancelled());
        assert_eq!(evicted, [true, false, false, false], "one is enough, and the first holds most");
        assert!(accounts[0].ended().is_cancelled());
        drop((greedy, held));
        let last = accounts.into_iter().last().unwrap(); // the others are dropped
        assert!(all_released(&last));
    }

    #[test]
    fn a_greedy_client_that_does_not_send_makes_room_for_a_frame() {
        let runtime = runtime();
        let _timers = runtime.enter();
        let memory = memory();
        let accounts = [(); 30].map(|()| memory.account(Activity::default()));
        let greedy = [200_000, 60_000]
            .map(|length| accounts.each_ref().map(|of| whole(of, length).now_or_never()));
        assert!(greedy[1][29].is_none());
        let next = memory.account(Activity::default());
        for account in &accounts {
            account.set_awaited(true);
            account.set_awaited(false);
        }
        assert!(whole(&next, 100_000).now_or_never().is_none());
        accounts[0].set_awaited(true);
        let held = whole(&next, 100_000).now_or_never().expect("it waits for the first");
        let closed = accounts.iter().filter(|of| of.ended().is_cancelled()).count();
        assert_eq!(closed, 1);
        assert!(accounts[0].ended().is_cancelled());
        drop((greedy, held));
        let last = accounts.into_iter().last().unwrap(); // the others are dropped
        assert!(all_released(&last));
    }
}
