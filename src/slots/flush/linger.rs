//! [`Linger`]: flushes that wait for ticks when the input has nothing ready.

#[derive(Debug, Default)]
pub(super) struct Linger {
    /// After how many ticks all that is listed is due; 0 for at once.
    ticks: u32,
    /// How many of these ticks are left, while they are counted.
    left: u32,
}

impl Linger {
    pub(super) fn set(&mut self, ticks: u32) {
        self.ticks = ticks;
    }

    pub(super) fn is_set(&self) -> bool {
        self.ticks > 0
    }

    /// Counts ticks from now on, unless they are counted already.
    pub(super) fn start(&mut self) {
        if self.left == 0 {
            self.left = self.ticks;
        }
    }

    pub(super) fn stop(&mut self) {
        self.left = 0;
    }

    pub(super) fn is_counting(&self) -> bool {
        self.left > 0
    }

    /// Counts a tick. Returns `true` if it was the last one.
    pub(super) fn count(&mut self) -> bool {
        if self.left == 0 {
            return false;
        }
        self.left -= 1;
        self.left == 0
    }
}
