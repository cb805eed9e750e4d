//! Guarantees 1 and 4 for the orders stream.

/// The orders stream.
#[derive(Default)]
pub(super) struct Orders {
    pub(super) sent: usize,
    read: usize,
    pub(super) last_answer: LastAnswer,
    /// Whether its waker has fired since it was last polled.
    pub(super) woken: bool,
    /// The number of turns in a row in which it woke itself and returned no order.
    yields: u32,
    /// An item that was read and is not yet routed, and the number of orders that come before it.
    pub(super) before_item: Option<(u32, usize)>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum LastAnswer {
    #[default]
    Order,
    /// `Pending`; with `denied`, although orders are left.
    Pending {
        denied: bool,
    },
    /// `Pending` in the given turn, and the stream woke itself.
    Yielded(u32),
    End,
}

impl Orders {
    /// Checks guarantee 4 for the orders stream.
    pub(super) fn asked(&mut self, turn: u32) -> Result<(), String> {
        let woken = std::mem::take(&mut self.woken);
        match self.last_answer {
            LastAnswer::Pending { .. } if !woken => {
                Err("polled again before the waker of the orders fired".into())
            }
            LastAnswer::Yielded(then) if then == turn && !woken => {
                Err("polled again in the turn in which the orders stream woke itself".into())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn gave_order(&mut self) {
        self.read += 1;
        self.yields = 0;
        self.last_answer = LastAnswer::Order;
    }

    pub(super) fn answered_pending(&mut self, yields: bool, turn: u32) {
        let yields = yields || std::mem::take(&mut self.woken);
        self.last_answer = if yields {
            LastAnswer::Yielded(turn)
        } else {
            LastAnswer::Pending { denied: self.read < self.sent }
        };
        self.yields = if yields { self.yields + 1 } else { 0 };
    }

    /// Returns `true` if the stream returns no order until its waker fires, or never again.
    pub(super) fn has_none(&self) -> bool {
        match self.last_answer {
            LastAnswer::Pending { denied } => denied && !self.woken,
            LastAnswer::End => true,
            LastAnswer::Order | LastAnswer::Yielded(_) => false,
        }
    }

    pub(super) fn item_read(&mut self, seq: u32) {
        let first = if self.has_none() { self.read } else { self.sent };
        self.before_item = Some((seq, first));
    }

    /// Checks guarantee 1 for an item that is routed.
    pub(super) fn item_routed(&mut self, seq: u32, turn: u32) -> Result<(), String> {
        let Some((_, orders)) = self.before_item.take_if(|(item, _)| *item == seq) else {
            return Ok(());
        };
        if self.read < orders && !self.has_none() && self.yields < 2 {
            let unread = orders - self.read;
            return Err(format!("{unread} orders were ready before this item and are not applied"));
        }
        if self.yields == 1 && self.last_answer == LastAnswer::Yielded(turn) {
            return Err("routed in the turn in which the orders stream woke itself".into());
        }
        Ok(())
    }
}
