//! [`Queues`]: how many items wait in the queues of all slots together.

/// Kept up to date by the methods that change a queue, in `slot/queue`.
#[derive(Debug)]
pub(super) struct Queues {
    items: u64,
}

impl Queues {
    pub(super) fn new() -> Self {
        Self { items: 0 }
    }

    pub(super) fn items(&self) -> u64 {
        self.items
    }

    pub(super) fn add(&mut self, items: usize) {
        self.items += items as u64;
    }

    pub(super) fn subtract(&mut self, items: usize) {
        self.items -= items as u64;
    }
}
