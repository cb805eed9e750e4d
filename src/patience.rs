//! [`Patience`]: whether to flush now, or to wait for the next batch of items.
//!
//! Many sinks take few items each from a small batch, and to flush each of them for a line or two is
//! most of the cost. A producer on the same runtime fills a bounded channel and waits, or has used
//! up its cooperative budget: tokio then runs it again only when its thread has nothing else to do,
//! or after 61 polls of other tasks (`event_interval`). To let other tasks run once is not enough
//! then. So if many sinks are to be flushed while the input has nothing ready, the demux waits, for
//! as long as waiting has paid.

/// Up to this many sinks are flushed as soon as the input has nothing ready.
///
/// Over TCP a flush takes about 2 µs, and a further turn a tenth of that. Up to 16 flushes cost no
/// more than a turn of a busy runtime, and are not worth the delay.
const FLUSHED_AT_ONCE: usize = 16;

/// For how many turns in a row the demux waits for an item.
///
/// More than the 61 polls after which tokio runs a task again that has used up its cooperative
/// budget. On an otherwise idle runtime so many turns take some microseconds.
const LONGEST_WAIT: u32 = 64;

/// In how many turns the input may have nothing ready before all sinks are flushed, whatever was
/// read meanwhile.
///
/// An input that returns a little in each turn would otherwise delay the flush forever. Beside a
/// task that runs for 20 µs at a time so many turns take 20 ms, which people do not notice.
const MAX_DRY_TURNS: u32 = 1_024;

/// How many items and copies the turn that ends a wait has to handle for the wait to have paid.
///
/// As many as the flushes that would not be worth a wait.
const PAYS: u64 = 16;

/// After a wait that failed, how many lulls are flushed without waiting, as a power of two: 1, and
/// twice as many each time, up to 64. So if waiting never pays, it is tried in one lull of 65.
const MAX_FAILURES: u32 = 6;

/// Why no item is read at the end of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    /// The turn has done enough: there may be more.
    Full,
    /// An item is on its way through a group.
    Walk,
    /// The input has nothing ready.
    Dry,
    /// The input waits for a sink.
    Blocked,
    /// The input is over.
    Over,
}

#[derive(Debug, Default)]
pub(crate) struct Patience {
    /// For how many turns in a row the demux has waited for an item.
    waited: u32,
    /// In how many turns the input had nothing ready since all sinks were flushed.
    dry_turns: u32,
    /// How many waits in a row have failed, up to `MAX_FAILURES`.
    failures: u32,
    /// How many lulls are to be flushed without waiting.
    skipped: u32,
}

impl Patience {
    /// A turn ends that has handled this number of items and copies, and `listed` sinks are to be
    /// flushed. Returns `true` if they are to be flushed now.
    pub(crate) fn ends(&mut self, listed: usize, handled: u64, pause: Pause) -> bool {
        if handled > 0 && self.waited > 0 {
            self.end_wait(handled >= PAYS);
        }
        let ends = listed > 0
            && match pause {
                Pause::Walk => return false,
                Pause::Dry => self.ends_when_dry(listed, handled),
                Pause::Full => handled == 0,
                Pause::Blocked => handled == 0 || listed <= FLUSHED_AT_ONCE,
                Pause::Over => true,
            };
        if ends || listed == 0 {
            self.dry_turns = 0;
        }
        if ends || listed == 0 || pause != Pause::Dry {
            self.waited = 0;
        }
        ends
    }

    fn ends_when_dry(&mut self, listed: usize, handled: u64) -> bool {
        self.dry_turns += 1;
        if listed <= FLUSHED_AT_ONCE {
            return true;
        }
        let is_late = self.dry_turns >= MAX_DRY_TURNS;
        if handled > 0 {
            return is_late;
        }
        if self.skipped > 0 {
            self.skipped -= 1;
            return true;
        }
        self.waited += 1;
        let fails = is_late || self.waited == LONGEST_WAIT;
        if fails {
            self.end_wait(false);
        }
        fails
    }

    fn end_wait(&mut self, paid: bool) {
        self.waited = 0;
        if paid {
            (self.failures, self.skipped) = (0, 0);
        } else {
            self.skipped = 1 << self.failures;
            self.failures = (self.failures + 1).min(MAX_FAILURES);
        }
    }
}
