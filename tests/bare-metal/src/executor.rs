//! The smallest executor that really sleeps: a flag for each task, and `wfi` when none is up.

use alloc::sync::Arc;
use alloc::task::Wake;
use core::future::Future;
use core::pin::Pin;
use core::sync::atomic::{
    AtomicBool, AtomicU32,
    Ordering::{Acquire, Relaxed, Release},
};
use core::task::{Context, Waker};

/// How often the processor was put to sleep.
pub static SLEPT: AtomicU32 = AtomicU32::new(0);

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Release);
    }
}

/// A future that is polled when its waker fired, and not otherwise.
pub struct Task<'a> {
    future: Option<Pin<&'a mut dyn Future<Output = ()>>>,
    flag: Arc<Flag>,
    waker: Waker,
    pub polls: u32,
}

impl<'a> Task<'a> {
    pub fn new(future: Pin<&'a mut dyn Future<Output = ()>>) -> Self {
        let flag = Arc::new(Flag(AtomicBool::new(true)));
        let waker = Waker::from(Arc::clone(&flag));
        Self { future: Some(future), flag, waker, polls: 0 }
    }

    /// Polls it if it was woken, and whether it was.
    fn run(&mut self) -> bool {
        let woken = self.flag.0.swap(false, Acquire);
        if let Some(future) = self.future.as_mut().filter(|_| woken) {
            self.polls += 1;
            if future.as_mut().poll(&mut Context::from_waker(&self.waker)).is_ready() {
                self.future = None;
            }
        }
        woken
    }
}

/// Runs the tasks until all are done.
pub fn run<const N: usize>(tasks: &mut [Task<'_>; N]) {
    while tasks.iter().any(|task| task.future.is_some()) {
        let ran = tasks.iter_mut().fold(false, |ran, task| task.run() | ran);
        if !ran {
            sleep(tasks);
        }
    }
}

/// Sleeps until the next interrupt, unless one has woken a task just now: interrupts are held off
/// between that look and `wfi`, which a held-off one ends all the same.
fn sleep<const N: usize>(tasks: &[Task<'_>; N]) {
    cortex_m::interrupt::free(|_| {
        if !tasks.iter().any(|task| task.flag.0.load(Acquire)) {
            SLEPT.fetch_add(1, Relaxed);
            cortex_m::asm::wfi();
        }
    });
}
