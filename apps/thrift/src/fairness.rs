//! How the calls of all connections share the processors.
//!
//! A call decodes its arguments, and may compute, when it is polled for the first time. The runtime takes
//! turns by tasks: a client that sends a thousand calls at once would get a thousand turns before the next
//! client gets one, and a call of a few megabytes would hold a thread for a tenth of a second.
//!
//! 1. Connections take turns: so many calls of one are polled for the first time, and then as many of
//!    another one. Longer calls count as several, so that a turn has 4 KiB at most.
//! 2. A call that is longer than a turn is polled for the first time on another thread, which the system
//!    schedules beside those of the runtime. There is one such thread less than there are processors. They
//!    are not the runtime's threads for blocking work, because a service may use all of those.
//! 3. Answers take turns, too: a call has its turn until its answer has room in the queue of all
//!    connections, or takes another one if it has waited. Otherwise, a client whose calls do not wait
//!    would have as many answers in line for that queue as it may have calls in flight.
//! 4. The next long call is that of the connection which has used these threads least, counting what the
//!    call is expected to take. So a connection with few calls, or quick ones, waits for those that are
//!    running, and not for all that wait. This is fair queueing as in Demers, Keshav and Shenker,
//!    "Analysis and Simulation of a Fair Queueing Algorithm" (1989), except that the time which a call has
//!    taken replaces the expected one when it is known.

use std::collections::BTreeMap;
use std::future::{self, Future};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::JoinSet;

use crate::panics::contain;

/// How many short calls of a connection are started at a time. With fewer than eight, a connection whose
/// calls are short is woken for nearly each of them.
const STARTED: usize = 8;

/// The bytes of a turn. Decoding took 20 ns for a byte of empty maps, and a call of `count` 170 ns for a
/// byte of words of three letters, so this is half a millisecond or so. To pass a call to another thread
/// and back takes some ten microseconds, which is more than shorter calls should pay.
const TURN: usize = 4 << 10;

/// The bytes of a call that counts as one of `STARTED`.
const SHORT: usize = TURN / STARTED;

/// What a byte of a long call is expected to take.
const EXPECTED: Duration = Duration::from_nanos(40);

fn expected(bytes: usize) -> Duration {
    EXPECTED.saturating_mul(u32::try_from(bytes).unwrap_or(u32::MAX))
}

/// A long call that is to be polled for the first time.
struct Job {
    /// What its connection has used before.
    start: Duration,
    expected: Duration,
    used: Arc<Used>,
    begin: Begin,
}

/// Polls a call for the first time. It drops what it gets before it passes the result on, so that the
/// next call of the connection comes after what this one has taken.
type Begin = Box<dyn FnOnce(Running) + Send>;

/// How much the long calls of a connection have used, on the clock of `Line::now`.
#[derive(Debug, Default)]
struct Used(Mutex<Duration>);

impl Used {
    fn lock(&self) -> MutexGuard<'_, Duration> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// When a job is next: what its connection will have used, and a number, because others may be equal.
type Order = (Duration, u64);

/// Long calls that wait for a thread.
#[derive(Default)]
struct Line {
    jobs: BTreeMap<Order, Job>,
    numbers: u64,
    running: u32,
    /// What a connection would have used that had always had its share. Otherwise one that had no calls
    /// for a while, or is new, could keep the others out.
    ///
    /// It counts expected times: if it counted what calls have taken, those that take longer than
    /// expected, and have waited, would soon be before a short one that has just come.
    now: Duration,
    /// How many threads there are, and how many of them wait.
    threads: usize,
    idle: usize,
    is_closed: bool,
}

impl Line {
    fn push(&mut self, bytes: usize, used: &Arc<Used>, begin: Begin) -> Order {
        let expected = expected(bytes);
        let start = {
            let mut used = used.lock();
            let start = (*used).max(self.now);
            *used = start + expected;
            start
        };
        self.numbers += 1;
        let order = (start + expected, self.numbers);
        self.jobs.insert(order, Job { start, expected, used: Arc::clone(used), begin });
        order
    }

    fn pop(&mut self) -> Option<Job> {
        let (_, job) = self.jobs.pop_first()?;
        self.now = self.now.max(job.start); // no connection that waits has used less
        self.running += 1;
        Some(job)
    }

    /// Notes how long a job has taken.
    fn done(&mut self, expected: Duration, used: &Used, taken: Duration) {
        let waiting = u32::try_from(self.jobs.len()).unwrap_or(u32::MAX);
        self.now += taken.min(expected) / self.running.saturating_add(waiting).max(1);
        self.running = self.running.saturating_sub(1);
        let mut used = used.lock();
        *used = used.saturating_sub(expected) + taken;
    }
}

/// What the threads share.
struct Shared {
    line: Mutex<Line>,
    has_work: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a job.
    fn run(self: &Arc<Self>, Job { expected, used, begin, .. }: Job) {
        let running = Running { shared: Arc::clone(self), expected, used, since: Instant::now() };
        contain(|| begin(running)); // a panic ends this call only
    }

    /// Runs jobs until the server has ended.
    fn work(self: &Arc<Self>) {
        loop {
            let mut line = self.lock();
            let job = loop {
                if line.is_closed {
                    return;
                }
                if let Some(job) = line.pop() {
                    break job;
                }
                line.idle += 1;
                line = self.has_work.wait(line).unwrap_or_else(PoisonError::into_inner);
                line.idle -= 1;
            };
            drop(line);
            self.run(job);
        }
    }
}

/// A job that runs. It has ended when this is dropped, also if it panics.
struct Running {
    shared: Arc<Shared>,
    expected: Duration,
    used: Arc<Used>,
    since: Instant,
}

impl Drop for Running {
    fn drop(&mut self) {
        let taken = self.since.elapsed();
        self.shared.lock().done(self.expected, &self.used, taken);
    }
}

/// Dropped when nothing can add a long call any more.
struct Open(Arc<Shared>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.has_work.notify_all();
    }
}

/// The threads for the long calls of a server. They are started when they are needed, and end with it.
#[derive(Clone)]
pub(crate) struct Threads {
    most: usize,
    runtime: Handle,
    open: Arc<Open>,
}

impl Threads {
    /// One thread less than there are processors, and at least one.
    pub(crate) fn new() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self::of((processors - 1).clamp(1, Semaphore::MAX_PERMITS))
    }

    fn of(most: usize) -> Self {
        let shared = Shared { line: Mutex::default(), has_work: Condvar::new() };
        Self { most, runtime: Handle::current(), open: Arc::new(Open(Arc::new(shared))) }
    }

    /// Adds a job. It is removed when the returned value is dropped, unless it has begun.
    fn add(&self, bytes: usize, used: &Arc<Used>, begin: Begin) -> Waiting {
        let shared = &self.open.0;
        let mut line = shared.lock();
        let order = line.push(bytes, used, begin);
        let waiting = Waiting { threads: self.clone(), order };
        if line.jobs.len() <= line.idle || line.threads >= self.most {
            drop(line);
            shared.has_work.notify_one();
            return waiting;
        }
        line.threads += 1;
        drop(line);
        let (runtime, work) = (self.runtime.clone(), Arc::clone(shared));
        let thread = thread::Builder::new().name("thrift-long-calls".to_owned()).spawn(move || {
            let _entered = runtime.enter(); // calls may spawn tasks and create timers
            work.work();
        });
        if thread.is_err() {
            // The system has no more threads. If there is none at all, this one does the work.
            let mut line = shared.lock();
            line.threads -= 1;
            let job = if line.threads == 0 { line.pop() } else { None };
            drop(line);
            if let Some(job) = job {
                shared.run(job);
            }
        }
        waiting
    }
}

/// A job that may still wait for a thread.
struct Waiting {
    threads: Threads,
    order: Order,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let job = self.threads.open.0.lock().jobs.remove(&self.order);
        drop(job); // when the lock is released
    }
}

/// Held by a call that is in its turn.
pub(crate) type Permit = OwnedSemaphorePermit;

/// The turns of a connection.
#[derive(Clone)]
pub(crate) struct Turns {
    started: Arc<Semaphore>,
    long: Arc<Long>,
}

/// The long calls of a connection.
pub(crate) struct Long {
    threads: Threads,
    used: Arc<Used>,
    /// Permits for those that are running, or may be next. If no other connection has long calls, they
    /// may use all threads.
    turns: Semaphore,
}

impl Turns {
    pub(crate) fn new(threads: &Threads) -> Self {
        let (threads, turns) = (threads.clone(), Semaphore::new(threads.most));
        let long = Arc::new(Long { threads, used: Arc::default(), turns });
        Self { started: Arc::new(Semaphore::new(STARTED)), long }
    }

    /// Waits for the turn of a call of so many bytes. A long call waits when it is spawned, so that the
    /// calls behind it do not wait for it.
    pub(crate) async fn next(&self, bytes: usize) -> Turn {
        if bytes > TURN {
            return Turn::Long { bytes, of: Arc::clone(&self.long) };
        }
        // At most `STARTED`. The semaphore is never closed.
        let count = u32::try_from(bytes.div_ceil(SHORT).max(1)).unwrap_or(u32::MAX);
        Turn::Short(Arc::clone(&self.started).acquire_many_owned(count).await.ok())
    }

    /// Waits for a turn to pass an answer on.
    pub(crate) async fn answer(&self) -> Option<Permit> {
        Arc::clone(&self.started).acquire_owned().await.ok()
    }
}

/// The turn of a call.
pub(crate) enum Turn {
    Short(Option<Permit>),
    Long { bytes: usize, of: Arc<Long> },
}

impl Turn {
    /// Spawns a call.
    pub(crate) fn spawn(
        self,
        calls: &mut JoinSet<()>,
        dropped: impl Future<Output = ()> + Send + 'static,
        call: impl Future<Output = ()> + Send + 'static,
    ) {
        calls.spawn(async move {
            self.run(dropped, call).await;
        });
    }

    /// Runs a call, whose turn ends when it waits for the first time. If it never waits, its turn is
    /// returned with its result. A long call that has not begun when `dropped` completes is dropped.
    pub(crate) async fn run<T: Send + 'static>(
        self,
        dropped: impl Future<Output = ()>,
        call: impl Future<Output = T> + Send + 'static,
    ) -> Option<(T, Option<Permit>)> {
        match self {
            Self::Short(turn) => Some(in_turn(turn, call).await),
            Self::Long { bytes, of } => {
                let result = of.run(bytes, dropped, Box::pin(call)).await?;
                Some((result, None))
            }
        }
    }
}

async fn in_turn<T>(
    mut turn: Option<Permit>,
    call: impl Future<Output = T>,
) -> (T, Option<Permit>) {
    let mut call = std::pin::pin!(call);
    future::poll_fn(|cx| match call.as_mut().poll(cx) {
        Poll::Ready(result) => Poll::Ready((result, turn.take())),
        Poll::Pending => {
            turn = None;
            Poll::Pending
        }
    })
    .await
}

impl Long {
    async fn run<T: Send + 'static>(
        self: Arc<Self>,
        bytes: usize,
        dropped: impl Future<Output = ()>,
        call: Pin<Box<impl Future<Output = T> + Send + 'static>>,
    ) -> Option<T> {
        let begun = tokio::select! {
            biased;
            () = dropped => return None,
            begun = self.begin(bytes, call) => begun?,
        };
        Some(match begun {
            Begun::Done(result) => result,
            Begun::Waits(call) => call.await,
        })
    }

    /// Polls the call for the first time.
    async fn begin<F>(&self, bytes: usize, mut call: Pin<Box<F>>) -> Option<Begun<F>>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let _turn = self.turns.acquire().await;
        let task = future::poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
        let (done, result) = oneshot::channel();
        let begin = move |running| {
            let polled = call.as_mut().poll(&mut Context::from_waker(&task));
            drop(running);
            let _ = done.send(match polled {
                Poll::Ready(result) => Begun::Done(result),
                Poll::Pending => Begun::Waits(call),
            });
        };
        let _waiting = self.threads.add(bytes, &self.used, Box::new(begin));
        result.await.ok()
    }
}

/// A long call that was polled.
enum Begun<F: Future> {
    Done(F::Output),
    Waits(Pin<Box<F>>),
}

#[cfg(test)]
mod tests {
    use std::panic::panic_any;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use futures::FutureExt;
    use tokio::task::yield_now;
    use tokio_util::sync::CancellationToken;

    use super::*;

    const LONG: usize = TURN + 1;
    const MIB: usize = 1 << 20;

    fn is_ready(turn: impl Future<Output = Turn>) -> Option<Turn> {
        turn.now_or_never()
    }

    #[tokio::test]
    async fn a_turn_has_eight_short_calls_or_fewer_longer_ones() {
        let turns = Turns::new(&Threads::of(1));
        let mut short: Vec<_> = (0..8).map(|_| is_ready(turns.next(SHORT)).unwrap()).collect();
        assert!(is_ready(turns.next(0)).is_none());
        short.truncate(5);
        assert!(is_ready(turns.next(3 * SHORT + 1)).is_none());
        assert!(is_ready(turns.next(3 * SHORT)).is_some());
        assert!(is_ready(turns.next(TURN)).is_none());
        drop(short);
        assert!(is_ready(turns.next(TURN)).is_some());
    }

    /// Long calls that block their threads until they are released.
    struct Calls {
        tasks: JoinSet<()>,
        begun: Sender<&'static str>,
        begins: Receiver<&'static str>,
        held: Vec<(&'static str, Sender<()>)>,
    }

    impl Calls {
        fn new() -> Self {
            let (begun, begins) = channel();
            Self { tasks: JoinSet::new(), begun, begins, held: Vec::new() }
        }

        async fn spawn(&mut self, name: &'static str, bytes: usize, turns: &Turns) {
            let (release, released) = channel();
            let begun = self.begun.clone();
            let call = async move {
                let _ = begun.send(name);
                let _ = released.recv();
            };
            turns.next(bytes).await.spawn(&mut self.tasks, future::pending(), call);
            self.held.push((name, release));
            for _ in 0..10 {
                yield_now().await; // it waits for its turn now
            }
        }

        /// Waits until a call has begun.
        async fn next(&mut self) -> &'static str {
            loop {
                if let Ok(name) = self.begins.try_recv() {
                    return name;
                }
                yield_now().await;
            }
        }

        fn release(&mut self, name: &str) {
            self.held.retain(|(held, _)| *held != name);
        }

        /// Releases the calls as they begin. Returns their order.
        async fn order(mut self) -> Vec<&'static str> {
            let mut order = Vec::new();
            while !self.held.is_empty() {
                let name = self.next().await;
                assert!(self.begins.try_recv().is_err(), "there is one thread");
                self.release(name);
                order.push(name);
            }
            while self.tasks.join_next().await.is_some() {}
            order
        }
    }

    #[tokio::test]
    async fn connections_take_turns_with_long_calls() {
        let threads = Threads::of(1);
        let (one, other) = (Turns::new(&threads), Turns::new(&threads));
        let mut calls = Calls::new();
        for (name, turns) in [("a", &one), ("b", &one), ("c", &one), ("d", &other)] {
            calls.spawn(name, LONG, turns).await;
        }
        // Calls that are short do not wait for them.
        assert!(is_ready(one.next(TURN)).is_some());
        assert_eq!(calls.order().await, ["a", "d", "b", "c"]);
    }

    #[tokio::test]
    async fn a_call_does_not_wait_for_longer_ones_of_many_connections() {
        let threads = Threads::of(1);
        let many = [(); 5].map(|()| Turns::new(&threads));
        let mut calls = Calls::new();
        calls.spawn("a", MIB, &many[0]).await;
        assert_eq!(calls.next().await, "a");
        for (name, turns) in ["b", "c", "d"].into_iter().zip(&many[1..]) {
            calls.spawn(name, MIB, turns).await;
        }
        calls.spawn("short", 2 * LONG, &many[4]).await;
        calls.release("a");
        assert_eq!(calls.order().await, ["short", "b", "c", "d"]);
    }

    #[tokio::test]
    async fn a_connection_may_use_all_threads() {
        let turns = Turns::new(&Threads::of(2));
        let mut calls = Calls::new();
        calls.spawn("a", LONG, &turns).await;
        calls.spawn("b", LONG, &turns).await;
        let mut both = [calls.next().await, calls.next().await];
        both.sort_unstable();
        assert_eq!(both, ["a", "b"]);
    }

    /// Adds a job, as a connection would that has used so much.
    fn push(line: &mut Line, bytes: usize, used: &Arc<Used>) -> Order {
        line.push(bytes, used, Box::new(drop))
    }

    /// Runs the next job. Returns its order.
    fn run(line: &mut Line, taken: Duration) -> Order {
        let order = *line.jobs.first_key_value().unwrap().0;
        let Job { expected, used, .. } = line.pop().unwrap();
        line.done(expected, &used, taken);
        order
    }

    #[test]
    fn a_connection_whose_calls_take_longer_than_expected_has_fewer_of_them() {
        let mut line = Line::default();
        let (slow, fast) = (Arc::<Used>::default(), Arc::<Used>::default());
        let expected = expected(LONG);
        let (mut calls_of_slow, mut order_of_slow) = (0, push(&mut line, LONG, &slow));
        push(&mut line, LONG, &fast);
        for _ in 0..1000 {
            let is_slow = *line.jobs.first_key_value().unwrap().0 == order_of_slow;
            if is_slow {
                run(&mut line, expected * 10);
                order_of_slow = push(&mut line, LONG, &slow);
                calls_of_slow += 1;
            } else {
                run(&mut line, expected);
                push(&mut line, LONG, &fast);
            }
        }
        assert!((80..=100).contains(&calls_of_slow), "{calls_of_slow} of 1000");
    }

    #[test]
    fn a_short_call_does_not_wait_for_those_of_many_connections_that_take_longer_than_expected() {
        let mut line = Line::default();
        let many = [(); 100].map(|()| Arc::<Used>::default());
        let mut order: Vec<_> = many.iter().map(|used| push(&mut line, MIB, used)).collect();
        let short = Arc::default();
        let mut waited = Vec::new();
        for _ in 0..3 * many.len() {
            let of_short = push(&mut line, LONG, &short);
            for overtaken in 0.. {
                let next = *line.jobs.first_key_value().unwrap().0;
                if next == of_short {
                    run(&mut line, expected(LONG));
                    waited.push(overtaken);
                    break;
                }
                let index = order.iter().position(|order| *order == next).unwrap();
                run(&mut line, expected(MIB) * 4);
                order[index] = push(&mut line, MIB, &many[index]);
            }
            let next = *line.jobs.first_key_value().unwrap().0;
            let index = order.iter().position(|order| *order == next).unwrap();
            run(&mut line, expected(MIB) * 4);
            order[index] = push(&mut line, MIB, &many[index]);
        }
        let most = waited.iter().max().unwrap();
        assert!(*most <= 2, "it has waited for {most} calls");
    }

    #[test]
    fn a_long_call_is_not_overtaken_for_ever_by_shorter_ones_of_new_connections() {
        let mut line = Line::default();
        let long = push(&mut line, MIB, &Arc::default());
        let mut overtaken = 0;
        loop {
            push(&mut line, LONG, &Arc::default());
            if run(&mut line, expected(LONG)) == long {
                break;
            }
            overtaken += 1;
        }
        // The two connections that have calls at any time share the thread.
        let share = 2 * MIB / LONG;
        assert!((share / 2..=share + 2).contains(&overtaken), "{overtaken}");
    }

    #[test]
    fn a_connection_that_had_no_calls_for_long_has_no_claim_for_that_time() {
        let mut line = Line::default();
        let (busy, idle) = (Arc::<Used>::default(), Arc::<Used>::default());
        for _ in 0..100 {
            push(&mut line, MIB, &busy);
            run(&mut line, expected(MIB));
        }
        for _ in 0..2 {
            push(&mut line, LONG, &idle);
        }
        let of_busy = push(&mut line, LONG, &busy);
        run(&mut line, expected(LONG));
        assert_eq!(run(&mut line, expected(LONG)), of_busy);
    }

    #[test]
    fn a_connection_that_was_alone_does_not_make_up_for_what_it_has_used() {
        let mut line = Line::default();
        let (busy, new) = (Arc::<Used>::default(), Arc::<Used>::default());
        for _ in 0..100 {
            push(&mut line, MIB, &busy);
            run(&mut line, expected(MIB) * 10);
        }
        let of_busy = push(&mut line, MIB, &busy);
        let mut overtaken = 0;
        push(&mut line, MIB, &new);
        while run(&mut line, expected(MIB)) != of_busy {
            push(&mut line, MIB, &new);
            overtaken += 1;
        }
        assert!(overtaken <= 10, "{overtaken}"); // as much as its last call has taken
    }

    #[tokio::test]
    async fn a_long_call_goes_on_after_it_has_waited() {
        let turns = Turns::new(&Threads::of(1));
        let (mut calls, (answer, answered)) = (JoinSet::new(), oneshot::channel());
        let (begun, begins) = oneshot::channel();
        let call = async move {
            begun.send(()).unwrap();
            answered.await.unwrap();
        };
        turns.next(LONG).await.spawn(&mut calls, future::pending(), call);
        begins.await.unwrap();
        // Its turn ends.
        turns.next(LONG).await.spawn(&mut calls, future::pending(), future::ready(()));
        calls.join_next().await.unwrap().unwrap();
        assert!(calls.join_next().now_or_never().is_none());
        answer.send(()).unwrap();
        calls.join_next().await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_long_call_of_a_client_that_is_gone_does_not_begin() {
        let threads = Threads::of(1);
        let [one, other] = [(); 2].map(|()| Turns::new(&threads));
        let (mut first, mut calls, gone) = (Calls::new(), JoinSet::new(), CancellationToken::new());
        first.spawn("first", LONG, &one).await;
        first.next().await;
        for turns in [&one, &other] {
            let call = async { unreachable!("it begins") };
            turns.next(LONG).await.spawn(&mut calls, gone.clone().cancelled_owned(), call);
        }
        for _ in 0..10 {
            yield_now().await;
        }
        assert_eq!(threads.open.0.lock().jobs.len(), 1);
        gone.cancel();
        while let Some(ended) = calls.join_next().await {
            ended.unwrap();
        }
        assert!(threads.open.0.lock().jobs.is_empty());
        first.release("first");
        first.tasks.join_next().await.unwrap().unwrap();
    }

    /// Panics when it is dropped.
    struct Panics;

    impl Drop for Panics {
        fn drop(&mut self) {
            panic!("a test");
        }
    }

    #[tokio::test]
    async fn a_long_call_that_panics_ends_no_thread() {
        let turns = Turns::new(&Threads::of(1));
        let mut calls = JoinSet::new();
        turns.next(LONG).await.spawn(&mut calls, future::pending(), async { panic_any(Panics) });
        calls.join_next().await.unwrap().unwrap();
        let mut next = Calls::new();
        next.spawn("next", LONG, &turns).await;
        assert_eq!(next.order().await, ["next"]);
    }

    #[tokio::test]
    async fn long_calls_may_use_the_runtime_when_they_begin() {
        let turns = Turns::new(&Threads::of(1));
        let mut calls = JoinSet::new();
        let call = async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            tokio::spawn(yield_now()).await.unwrap();
        };
        turns.next(LONG).await.spawn(&mut calls, future::pending(), call);
        calls.join_next().await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn the_threads_end_with_the_server() {
        let threads = Threads::of(2);
        let shared = Arc::downgrade(&threads.open.0);
        let turns = Turns::new(&threads);
        let mut calls = Calls::new();
        for name in ["a", "b"] {
            calls.spawn(name, LONG, &turns).await;
            calls.next().await;
        }
        assert_eq!(threads.open.0.lock().threads, 2);
        calls.held.clear();
        while calls.tasks.join_next().await.is_some() {}
        drop((threads, turns));
        while shared.strong_count() > 0 {
            thread::yield_now();
        }
    }
}
