//! How the calls of all connections share the processors.
//!
//! A call decodes its arguments, and may compute, when it is polled for the first time. The runtime takes
//! turns by tasks: a client that sends a thousand calls at once would get a thousand turns before the next
//! client gets one, and a call of a few megabytes would hold a thread for a tenth of a second.
//!
//! 1. Connections take turns: so many calls of one are polled for the first time, and then as many of
//!    another one. Longer calls count as several, so that a turn has 16 KiB at most.
//! 2. A call that is longer than a turn is polled for the first time on a blocking thread, which the
//!    system schedules beside those of the runtime. There is one less at a time than there are
//!    processors. Connections take turns at them, too.

use std::future::{self, Future};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinSet, spawn_blocking};
use tokio_util::sync::CancellationToken;

/// How many short calls of a connection are started at a time. With fewer than eight, a connection whose
/// calls are short is woken for nearly each of them.
const STARTED: usize = 8;

/// The bytes of a turn. Decoding took 20 to 40 ns for a byte of many small elements, so this is half a
/// millisecond or so. To pass a call to another thread and back takes some ten microseconds.
const TURN: usize = 16 << 10;

/// The bytes of a call that counts as one of `STARTED`.
const SHORT: usize = TURN / STARTED;

/// The blocking threads that the long calls of a server may use at a time.
#[derive(Debug, Clone)]
pub(crate) struct Threads {
    count: usize,
    free: Arc<Semaphore>,
}

impl Threads {
    /// One less than there are processors, and at least one.
    pub(crate) fn new() -> Self {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        Self::of((processors - 1).clamp(1, Semaphore::MAX_PERMITS))
    }

    fn of(count: usize) -> Self {
        Self { count, free: Arc::new(Semaphore::new(count)) }
    }
}

/// The turns of a connection.
pub(crate) struct Turns {
    started: Arc<Semaphore>,
    /// Long calls of the connection that use a thread, or are next. If no other connection has long
    /// calls, they may use all threads.
    long: Arc<Semaphore>,
    threads: Threads,
}

impl Turns {
    pub(crate) fn new(threads: &Threads) -> Self {
        let started = Arc::new(Semaphore::new(STARTED));
        let long = Arc::new(Semaphore::new(threads.count));
        Self { started, long, threads: threads.clone() }
    }

    /// Waits for the turn of a call of so many bytes. A long call waits when it is spawned, so that the
    /// calls behind it do not wait for it.
    pub(crate) async fn next(&self, bytes: usize) -> Turn {
        if bytes > TURN {
            let [own, all] = [&self.long, &self.threads.free].map(Arc::clone);
            return Turn::Long { own, all };
        }
        // At most `STARTED`. The semaphore is never closed.
        let count = u32::try_from(bytes.div_ceil(SHORT).max(1)).unwrap_or(u32::MAX);
        Turn::Short(Arc::clone(&self.started).acquire_many_owned(count).await.ok())
    }
}

/// The turn of a call.
pub(crate) enum Turn {
    Short(Option<OwnedSemaphorePermit>),
    Long { own: Arc<Semaphore>, all: Arc<Semaphore> },
}

impl Turn {
    /// Spawns the call, whose turn ends when it waits for the first time. A long call does not begin
    /// when `gone` is cancelled.
    pub(crate) fn spawn(
        self,
        calls: &mut JoinSet<()>,
        gone: Option<CancellationToken>,
        call: impl Future<Output = ()> + Send + 'static,
    ) {
        match self {
            Self::Short(turn) => calls.spawn(in_turn(turn, call)),
            Self::Long { own, all } => calls.spawn(begin_on_thread(own, all, gone, Box::pin(call))),
        };
    }
}

async fn in_turn<T>(turn: T, call: impl Future<Output = ()>) {
    let (mut turn, mut call) = (Some(turn), std::pin::pin!(call));
    future::poll_fn(|cx| {
        let polled = call.as_mut().poll(cx);
        turn = None;
        polled
    })
    .await;
}

async fn begin_on_thread(
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
    gone: Option<CancellationToken>,
    mut call: Pin<Box<impl Future<Output = ()> + Send + 'static>>,
) {
    let turn = async {
        let own = own.acquire_owned().await;
        (own, all.acquire_owned().await)
    };
    let gone = async {
        match &gone {
            Some(gone) => gone.cancelled().await,
            None => future::pending().await,
        }
    };
    let turn = tokio::select! {
        biased;
        () = gone => return,
        turn = turn => turn,
    };
    let task = future::poll_fn(|cx| Poll::Ready(cx.waker().clone())).await;
    let begun = spawn_blocking(move || {
        let polled = call.as_mut().poll(&mut Context::from_waker(&task));
        drop(turn);
        polled.is_pending().then_some(call)
    });
    if let Ok(Some(call)) = begun.await {
        call.await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use futures::FutureExt;
    use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
    use tokio::sync::oneshot;
    use tokio::task::yield_now;

    use super::*;

    fn is_ready(turn: impl Future<Output = Turn>) -> Option<Turn> {
        turn.now_or_never()
    }

    #[test]
    fn a_turn_has_eight_short_calls_or_fewer_longer_ones() {
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

    /// Spawns a long call that sends its name, and then blocks its thread until it is released.
    async fn spawn(
        name: &'static str,
        turns: &Turns,
        calls: &mut JoinSet<()>,
        begun: &UnboundedSender<&'static str>,
    ) -> Sender<()> {
        let (release, released) = channel();
        let begun = begun.clone();
        let call = async move {
            let _ = begun.send(name);
            let _ = released.recv();
        };
        turns.next(TURN + 1).await.spawn(calls, None, call);
        for _ in 0..10 {
            yield_now().await; // it waits for its turn now
        }
        release
    }

    #[tokio::test]
    async fn connections_take_turns_with_long_calls() {
        let threads = Threads::of(1);
        let (one, other) = (Turns::new(&threads), Turns::new(&threads));
        let (mut calls, (begun, mut begins)) = (JoinSet::new(), unbounded_channel());
        let mut held = Vec::new();
        for (name, turns) in [("a", &one), ("b", &one), ("c", &one), ("d", &other)] {
            held.push((name, spawn(name, turns, &mut calls, &begun).await));
        }
        for expected in ["a", "d", "b", "c"] {
            assert_eq!(begins.recv().await, Some(expected));
            assert!(begins.try_recv().is_err(), "there is one thread");
            // Calls that are short do not wait for them.
            assert!(is_ready(one.next(TURN)).is_some());
            held.retain(|(name, _)| *name != expected);
        }
        while calls.join_next().await.is_some() {}
    }

    #[tokio::test]
    async fn a_connection_may_use_all_threads() {
        let turns = Turns::new(&Threads::of(2));
        let (mut calls, (begun, mut begins)) = (JoinSet::new(), unbounded_channel());
        let _first = spawn("first", &turns, &mut calls, &begun).await;
        let _second = spawn("second", &turns, &mut calls, &begun).await;
        assert!(begins.recv().await.is_some() && begins.recv().await.is_some());
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
        turns.next(TURN + 1).await.spawn(&mut calls, None, call);
        begins.await.unwrap();
        // Its turn ends.
        turns.next(TURN + 1).await.spawn(&mut calls, None, future::ready(()));
        calls.join_next().await.unwrap().unwrap();
        assert!(calls.join_next().now_or_never().is_none());
        answer.send(()).unwrap();
        calls.join_next().await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn a_long_call_of_a_client_that_is_gone_does_not_begin() {
        let turns = Turns::new(&Threads::of(1));
        let (mut calls, gone) = (JoinSet::new(), CancellationToken::new());
        let (begun, mut begins) = unbounded_channel();
        let first = spawn("first", &turns, &mut calls, &begun).await;
        assert_eq!(begins.recv().await, Some("first"));
        let call = async { unreachable!("it begins") };
        turns.next(TURN + 1).await.spawn(&mut calls, Some(gone.clone()), call);
        gone.cancel();
        calls.join_next().await.unwrap().unwrap();
        drop(first);
        calls.join_next().await.unwrap().unwrap();
    }
}
