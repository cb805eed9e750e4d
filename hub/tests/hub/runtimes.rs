//! Tokio's runtimes, for tests that need real threads. Nothing sleeps; a program that does not
//! finish within a minute fails.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use futures::executor::block_on;
use stream_demux_hub::{Hub, Workers, for_each_by_key};
use tokio::runtime::{Builder, Runtime};

use crate::common::SECOND;

/// Numbers of worker threads; 0 is the current-thread runtime.
pub(crate) const RUNTIMES: [usize; 3] = [0, 1, 2];

pub(crate) fn runtime(workers: usize) -> Runtime {
    let mut builder = match workers {
        0 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    builder.worker_threads(workers.max(1)).enable_all().build().expect("a runtime starts")
}

/// Runs a program to its end.
///
/// # Panics
///
/// Panics if it panics or does not finish within a minute.
#[track_caller]
pub(crate) fn run<F>(workers: usize, program: F) -> F::Output
where
    F: Future<Output: Send> + Send + 'static,
{
    within_a_minute(move || runtime(workers).block_on(async { tokio::spawn(program).await }))
        .expect("the program does not panic")
}

/// Runs a program to its end.
///
/// # Panics
///
/// Panics if it panics or does not finish within a minute.
#[track_caller]
pub(crate) fn within_a_minute<T: Send + 'static>(
    program: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (done, output) = channel();
    let runner = thread::spawn(move || drop(done.send(program())));
    output.recv_timeout(Duration::from_secs(60)).unwrap_or_else(|error| match error {
        RecvTimeoutError::Timeout => panic!("the program did not finish"),
        RecvTimeoutError::Disconnected => match runner.join() {
            Err(panic) => std::panic::resume_unwind(panic),
            Ok(()) => unreachable!("it sends its output"),
        },
    })
}

#[test]
fn shutdown_after_the_end_needs_no_runtime() {
    within_a_minute(|| {
        let runtime = runtime(0);
        let (hub, mut run) = runtime.block_on(async {
            let hub = Hub::<u32, u32>::new();
            hub.shutdown(SECOND).await;
            let input = futures::stream::iter([1, 2]);
            let mut run = for_each_by_key(
                input,
                |n| *n,
                Workers::new(),
                async |_, mut mailbox| {
                    while mailbox.recv().await.is_some() {}
                },
            );
            assert_eq!((&mut run).await.taken, 2);
            (hub, run)
        });
        drop(runtime);
        assert!(block_on(hub.shutdown(SECOND)).hung.is_empty());
        assert_eq!(block_on(run.shutdown(SECOND)).taken, 2);
    });
}
