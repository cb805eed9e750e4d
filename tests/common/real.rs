//! Real channels and runtimes, for tests that need tokio.
//!
//! Nothing here sleeps. Each program runs in a separate thread; if it takes more than a minute, the
//! test fails.

use std::future::Future;
use std::pin::Pin;
use std::sync::mpsc::{self as std_mpsc, RecvTimeoutError};
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use futures::Stream;
use stream_demux::Totals;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio_util::sync::PollSender;

/// Time limit of a program.
const PATIENCE: Duration = Duration::from_secs(60);

/// Tokio's cooperative budget of a task for one poll.
pub const COOP: usize = 128;

/// Runs `program` in a separate thread.
///
/// # Panics
///
/// Panics if it panics or does not finish within a minute.
#[track_caller]
pub fn within_a_minute<T: Send + 'static>(program: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, output) = std_mpsc::channel();
    let runner = thread::spawn(move || drop(done.send(program())));
    match output.recv_timeout(PATIENCE) {
        Ok(output) => output,
        Err(RecvTimeoutError::Disconnected) => {
            drop(runner.join());
            panic!("the program panicked")
        }
        Err(RecvTimeoutError::Timeout) => panic!("the program did not finish"),
    }
}

/// The runtimes of tokio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    CurrentThread,
    MultiThread,
}

pub const FLAVORS: [Flavor; 2] = [Flavor::CurrentThread, Flavor::MultiThread];

impl Flavor {
    fn runtime(self) -> Runtime {
        match self {
            Self::CurrentThread => Builder::new_current_thread().build(),
            Self::MultiThread => Builder::new_multi_thread().worker_threads(2).build(),
        }
        .expect("cannot build a runtime")
    }

    /// Runs `program` to completion on this runtime.
    #[track_caller]
    pub fn run<F>(self, program: F) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        within_a_minute(move || self.runtime().block_on(program))
    }
}

/// A tokio receiver as a stream.
pub struct Receiving<T>(pub mpsc::Receiver<T>);

impl<T> Stream for Receiving<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(cx)
    }
}

/// Creates a bounded channel of tokio. Returns its sender as a sink, and its receiver.
pub fn tokio_channel<T: Send + 'static>(room: usize) -> (PollSender<T>, mpsc::Receiver<T>) {
    let (sender, receiver) = mpsc::channel(room);
    (PollSender::new(sender), receiver)
}

/// Spawns a task that reads until the channel is closed, and returns the items.
pub fn reader<T: Send + 'static>(mut receiver: mpsc::Receiver<T>) -> JoinHandle<Vec<T>> {
    tokio::spawn(async move {
        let mut items = Vec::new();
        while let Some(item) = receiver.recv().await {
            items.push(item);
        }
        items
    })
}

/// Asserts that the totals of a completed demux add up.
#[track_caller]
pub fn assert_settled(totals: Totals) {
    let Totals { received, copies, unmatched, delivered, discarded, lost, queued, .. } = totals;
    assert_eq!(received + copies, unmatched + delivered + discarded + lost, "{totals:?}");
    assert_eq!((queued, totals.attached), (0, totals.detached));
}
