//! [`Patience`]: whether to flush now, or to wait for the next batch of items.
//!
//! Many sinks take few items each from a small batch, and to flush each of them for a line or two
//! is most of the cost. A producer on the same runtime fills a bounded channel and waits, or has
//! used up its cooperative budget: tokio then runs it again only when its thread has nothing else
//! to do, or after 61 polls of other tasks (`event_interval`). To let other tasks run once is not
//! enough then. So if many sinks are to be flushed while the input has nothing ready, the demux
//! waits, for as long as waiting has paid.

use core::mem;

use super::tuning::{
    FLUSHED_AT_ONCE, LONGEST_WAIT, MAX_BATCHES, MAX_FAILURES, TURNS_PER_ITEM, WAITED_FOR,
};

/// Why no item is read at the end of a turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    /// The turn has done enough: there may be more.
    Enough,
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
    /// How many batches were read since all sinks were flushed, with those that count for several.
    batches: u32,
    /// How many more items and copies the last wait has to bring, to have paid.
    owed: u64,
    /// How many waits in a row have failed, up to `MAX_FAILURES`.
    failures: u32,
    /// How many lulls are to be flushed without waiting.
    skipped: u32,
}

impl Patience {
    /// A turn ends that has handled this number of items and copies, and `listed` sinks are to be
    /// flushed. Returns `true` if they are to be flushed now.
    pub(crate) fn ends(&mut self, listed: usize, handled: u64, pause: Pause) -> bool {
        let waited = if handled > 0 { mem::take(&mut self.waited) } else { 0 };
        if waited > 0 {
            self.owed = u64::from(waited).div_ceil(TURNS_PER_ITEM);
        }
        self.judge(handled, pause);
        let ends = listed > 0
            && match pause {
                Pause::Walk => return false,
                Pause::Dry if listed <= FLUSHED_AT_ONCE => true,
                Pause::Dry if handled > 0 => self.ends_with_batch(waited > 0),
                Pause::Dry => self.ends_wait(),
                Pause::Enough => handled == 0,
                Pause::Blocked => handled == 0 || listed <= FLUSHED_AT_ONCE,
                Pause::Over => true,
            };
        if ends || listed == 0 {
            self.batches = 0;
            self.waited = 0;
        }
        ends
    }

    /// A turn has read a batch. Returns `true` if it was the last one for now.
    fn ends_with_batch(&mut self, was_waited_for: bool) -> bool {
        self.batches += if was_waited_for { WAITED_FOR } else { 1 };
        self.batches >= MAX_BATCHES
    }

    /// A turn has read nothing. Returns `true` if the demux waits no longer.
    fn ends_wait(&mut self) -> bool {
        if self.skipped > 0 {
            self.skipped -= 1;
            return true;
        }
        self.waited += 1;
        if self.waited == LONGEST_WAIT {
            self.fail();
        }
        self.waited == LONGEST_WAIT
    }

    /// A turn ends that has handled this number of items and copies: has the last wait paid?
    fn judge(&mut self, handled: u64, pause: Pause) {
        let owed = mem::take(&mut self.owed);
        if owed > 0 && handled >= owed {
            self.failures = 0;
            self.skipped = 0;
        } else if owed > 0 && handled == 0 && pause != Pause::Walk {
            self.fail();
        } else {
            self.owed = owed.saturating_sub(handled);
        }
    }

    fn fail(&mut self) {
        self.skipped = 1 << self.failures;
        self.failures = (self.failures + 1).min(MAX_FAILURES);
    }
}

#[cfg(test)]
mod tests {
    use alloc::rc::Rc;
    use alloc::vec::Vec;
    use core::cell::Cell;
    use core::pin::Pin;
    use core::task::{Context, Poll, Waker};

    use futures::stream;
    use futures_sink::Sink;

    use super::*;
    use crate::DemuxStreamExt;

    /// More sinks than are flushed at once.
    const MANY: usize = FLUSHED_AT_ONCE + 1;

    /// Ends turns in which the input has nothing ready. Returns how many end until all is flushed.
    fn turns_until_flush(patience: &mut Patience) -> u32 {
        let is_pending = |patience: &mut Patience| !patience.ends(MANY, 0, Pause::Dry);
        let mut turns = 1;
        while is_pending(patience) {
            turns += 1;
            assert!(turns <= 2 * LONGEST_WAIT, "the demux waits forever");
        }
        turns
    }

    /// A turn handles this many items and copies, and the input has nothing ready.
    fn handle(patience: &mut Patience, handled: u64) -> bool {
        patience.ends(MANY, handled, Pause::Dry)
    }

    #[test]
    fn a_wait_ends_after_64_turns_in_which_nothing_is_read() {
        let mut patience = Patience::default();
        assert!(!handle(&mut patience, 17));
        assert_eq!(turns_until_flush(&mut patience), 64);
    }

    #[test]
    fn all_is_flushed_after_512_batches() {
        for handled in [1, 16, 1_000] {
            let mut patience = Patience::default();
            let flushed = (1..=512).position(|_| handle(&mut patience, handled));
            assert_eq!(flushed, Some(511), "{handled} in each turn");
        }
    }

    #[test]
    fn a_batch_that_was_waited_for_counts_for_six_and_the_last_one_is_no_failure() {
        for turns in [1, 63] {
            let mut patience = Patience::default();
            for batch in 1..=86 {
                (0..turns).for_each(|_| assert!(!handle(&mut patience, 0)));
                assert_eq!(handle(&mut patience, 16), batch == 86);
            }
            assert_eq!(turns_until_flush(&mut patience), 64);
        }
    }

    #[test]
    fn after_failed_waits_one_lull_of_65_is_waited_in() {
        let mut patience = Patience::default();
        for skipped in [1, 2, 4, 8, 16, 32, 64, 64, 64] {
            assert_eq!(turns_until_flush(&mut patience), 64);
            for _ in 0..skipped {
                assert!(!handle(&mut patience, 17));
                assert_eq!(turns_until_flush(&mut patience), 1, "{skipped} lulls are skipped");
            }
        }
    }

    #[test]
    fn a_wait_pays_if_it_takes_at_most_four_turns_for_each_item_and_copy_until_nothing_is_read() {
        for (waited, handled, turns) in
            [(4, 1, 64), (5, 1, 1), (60, 15, 64), (61, 15, 1), (63, 16, 64)]
        {
            for batches in [[handled, 0], [1, handled - 1]] {
                let mut patience = Patience::default();
                (0..waited).for_each(|_| assert!(!handle(&mut patience, 0)));
                for handled in batches.into_iter().filter(|handled| *handled > 0) {
                    assert!(!handle(&mut patience, handled));
                }
                assert_eq!(turns_until_flush(&mut patience), turns, "{batches:?} end the wait");
            }
        }
    }

    #[test]
    fn a_wait_that_did_not_pay_has_failed_although_all_was_flushed_before() {
        let mut patience = Patience::default();
        (0..5).for_each(|_| assert!(!handle(&mut patience, 0)));
        assert!(patience.ends(MANY, 1, Pause::Over));
        assert!(patience.ends(1, 0, Pause::Dry));
        assert_eq!(turns_until_flush(&mut patience), 1);
    }

    #[test]
    fn a_wait_that_pays_makes_failures_forgotten() {
        let mut patience = Patience::default();
        assert_eq!(turns_until_flush(&mut patience), 64);
        assert_eq!(turns_until_flush(&mut patience), 1);
        assert_eq!((handle(&mut patience, 0), handle(&mut patience, 1)), (false, false));
        assert_eq!([(); 3].map(|()| turns_until_flush(&mut patience)), [64, 1, 64]);
    }

    #[test]
    fn up_to_16_sinks_are_flushed_without_waiting() {
        for handled in [0, 1, 1_000] {
            assert!(Patience::default().ends(16, handled, Pause::Dry), "{handled} were handled");
            assert!(!Patience::default().ends(17, handled, Pause::Dry), "{handled} were handled");
        }
    }

    #[test]
    fn a_blocked_input_is_not_waited_for() {
        for (listed, handled, ends) in [(17, 0, true), (17, 1, false), (16, 1, true)] {
            let mut patience = Patience::default();
            assert_eq!(patience.ends(listed, handled, Pause::Blocked), ends);
        }
    }

    #[test]
    fn the_end_of_the_input_is_not_waited_for() {
        for handled in [0, 1_000] {
            assert!(Patience::default().ends(MANY, handled, Pause::Over));
        }
    }

    #[test]
    fn a_wait_that_the_input_is_blocked_in_is_over_and_has_not_failed() {
        let mut patience = Patience::default();
        (0..63).for_each(|_| assert!(!handle(&mut patience, 0)));
        assert!(patience.ends(MANY, 0, Pause::Blocked));
        assert_eq!(turns_until_flush(&mut patience), 64);
    }

    #[test]
    fn neither_a_walk_nor_a_full_turn_flushes() {
        let mut patience = Patience::default();
        for pause in [Pause::Walk, Pause::Enough] {
            assert!(!patience.ends(MANY, 1, pause));
        }
        assert!(patience.ends(MANY, 0, Pause::Enough), "a turn that could read and did not");
        assert!(!patience.ends(0, 0, Pause::Over), "nothing is listed");
    }

    #[test]
    fn an_unfinished_walk_ends_no_wait_and_makes_none_fail() {
        let mut patience = Patience::default();
        assert!(!handle(&mut patience, 0));
        assert!(!patience.ends(MANY, 0, Pause::Walk));
        assert_eq!(turns_until_flush(&mut patience), 63);

        let mut patience = Patience::default();
        (0..5).for_each(|_| assert!(!handle(&mut patience, 0)));
        for handled in [1, 0, 1] {
            assert!(!patience.ends(MANY, handled, Pause::Walk));
        }
        assert_eq!(turns_until_flush(&mut patience), 64);
    }

    /// A sink that counts its flushes.
    struct CountFlushes(Rc<Cell<usize>>);

    impl Sink<()> for CountFlushes {
        type Error = ();

        fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
            Poll::Ready(Ok(()))
        }

        fn start_send(self: Pin<&mut Self>, (): ()) -> Result<(), ()> {
            Ok(())
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
            self.0.set(self.0.get() + 1);
            Poll::Ready(Ok(()))
        }

        fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[test]
    fn the_copies_of_one_item_end_a_wait_that_pays() {
        let flushes = Rc::new(Cell::new(0));
        let sinks = (0..MANY).map(|_| ((), CountFlushes(Rc::clone(&flushes)))).collect::<Vec<_>>();
        // An item for each member, a lull of two turns, an item that ends the wait, a lull.
        let polls = [true, false, false, true, false];
        let mut polls = polls.into_iter();
        let is_over = Cell::new(false);
        let input = stream::poll_fn(|_| match polls.next() {
            Some(true) => Poll::Ready(Some(())),
            _ if is_over.get() => Poll::Ready(None),
            _ => Poll::Pending,
        });
        let mut demux = core::pin::pin!(input.demux_by(|()| (), stream::iter(sinks)).multicast());
        let mut cx = Context::from_waker(Waker::noop());
        for turn in 1..=67 {
            assert!(demux.as_mut().poll(&mut cx).is_pending());
            let expected = if turn < 67 { 0 } else { MANY };
            assert_eq!(flushes.get(), expected, "turn {turn}");
        }
        is_over.set(true);
        assert!(demux.as_mut().poll(&mut cx).is_ready());
    }
}
