//! [`Budget`]: how much work one turn may do.
//!
//! A turn is one `poll`. Each kind of work has an allowance of its own, of one budget in each turn,
//! and never takes from that of another: so none can starve another, and each is bounded.

/// What is left in this turn of the allowance of each kind of work.
#[derive(Debug)]
pub(crate) struct Budget {
    limit: usize,
    /// Orders that are read, and attachments that orders and leases end.
    pub(crate) orders: Allowance,
    /// Woken sinks, and the items that they take from queues.
    pub(crate) sinks: Allowance,
    pub(crate) flushes: Allowance,
    /// Orders to tick that count: one in a turn.
    pub(crate) tick_orders: Allowance,
    /// Attachments that a tick is applied to.
    pub(crate) ticks: Allowance,
    /// Attachments that end because the input is over.
    pub(crate) closes: Allowance,
    /// Items that are read, and their copies.
    pub(crate) items: Allowance,
}

/// How much of one kind of work may still be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowance(usize);

impl Budget {
    pub(crate) fn new(limit: usize) -> Self {
        let full = Allowance(limit);
        Self {
            limit,
            orders: full,
            tick_orders: Allowance(1),
            sinks: full,
            flushes: full,
            ticks: full,
            closes: full,
            items: full,
        }
    }

    pub(crate) fn limit(&self) -> usize {
        self.limit
    }

    pub(crate) fn begin_turn(&mut self) {
        *self = Self::new(self.limit);
    }
}

impl Allowance {
    pub(super) fn new(units: usize) -> Self {
        Self(units)
    }

    pub(crate) fn left(self) -> usize {
        self.0
    }

    pub(crate) fn is_spent(self) -> bool {
        self.0 == 0
    }

    /// Spends one unit. Returns `false` if there is none left.
    #[inline]
    pub(crate) fn spend(&mut self) -> bool {
        let left = self.0.checked_sub(1);
        self.0 = left.unwrap_or(0);
        left.is_some()
    }

    /// Adds a unit for work that was paid for in another way.
    pub(super) fn refund(&mut self) {
        self.0 = self.0.saturating_add(1); // a whole budget may be `usize::MAX`
    }

    /// Spends this many units, or all if there are fewer.
    pub(crate) fn spend_up_to(&mut self, units: usize) {
        self.0 = self.0.saturating_sub(units);
    }
}
