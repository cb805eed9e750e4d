//! What several modules use.

use futures::FutureExt;
pub(crate) use model::dice::Dice;

pub(crate) const SECOND: std::time::Duration = std::time::Duration::from_secs(1);

/// What workers have said, in its order.
#[derive(Clone, Default)]
pub(crate) struct Log(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn say(&self, text: impl Into<String>) {
        self.0.lock().unwrap().push(text.into());
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// Lets all other tasks run until they wait.
pub(crate) async fn settle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Runs a task that computes for `turn` whenever it is polled, and takes turns with all others. With
/// `yield_now`, it would let another task go on until that one waits.
pub(crate) fn compute_in_each_turn(turn: std::time::Duration) -> tokio::task::JoinHandle<()> {
    tokio::spawn(std::future::poll_fn(move |cx| {
        // The first poll lets the time pass.
        let _ = tokio::time::advance(turn).now_or_never();
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    }))
}

/// Counts what is alive, and the most that ever was.
#[derive(Clone, Default)]
pub(crate) struct Alive(std::sync::Arc<std::sync::Mutex<(usize, usize)>>);

impl Alive {
    /// Counts one until it is dropped.
    pub(crate) fn enter(&self) -> Presence {
        let mut counts = self.0.lock().unwrap();
        counts.0 += 1;
        counts.1 = counts.1.max(counts.0);
        Presence(self.clone())
    }

    pub(crate) fn now(&self) -> usize {
        self.0.lock().unwrap().0
    }

    pub(crate) fn most(&self) -> usize {
        self.0.lock().unwrap().1
    }
}

pub(crate) struct Presence(Alive);

impl Drop for Presence {
    fn drop(&mut self) {
        self.0.0.lock().unwrap().0 -= 1;
    }
}
