//! A minimal executor that sleeps: one flag per task, and `wfi` while no flag is set.

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

/// A future that is polled only after its waker fired.
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

    /// Polls the task if it was woken. Returns whether it was.
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

/// Sleeps until the next interrupt, unless a task has been woken. Interrupts are masked between
/// that check and `wfi`, which a pending masked interrupt ends as well.
fn sleep<const N: usize>(tasks: &[Task<'_>; N]) {
    cortex_m::interrupt::free(|_| {
        if !tasks.iter().any(|task| task.flag.0.load(Acquire)) {
            SLEPT.fetch_add(1, Relaxed);
            cortex_m::asm::wfi();
        }
    });
}
