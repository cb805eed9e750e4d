//! What several modules use.

/// Random numbers, the same in each run.
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// Returns a number below `n`.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from((self.0 >> 16) % n as u64).expect("less than a usize")
    }
}

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
