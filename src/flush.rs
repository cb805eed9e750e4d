//! Which sinks are to be flushed, and when.
//!
//! A sink enters the list with the first item it took since its last flush, stamped with the number
//! of items the input had given by then. It leaves when it is flushed: at the latest after so many
//! further items, or as soon as the input has nothing ready. So a busy input costs each busy sink one
//! flush a window, and an idle one costs it no delay. Where a window would not make items share a flush,
//! it is a short one.
//!
//! 1. Stamps never decrease from front to back.
//! 2. An index is in the list at most once, whoever its tenant is: the list cannot outgrow the slots,
//!    however fast they are attached and detached. A tenant knows whether it is listed; of one that
//!    leaves, that is remembered here, for the next to inherit.

use alloc::vec::Vec;

/// How far a busy input is read on before a sink that took an item is flushed, in items.
///
/// A window bounds what the last item before a lull of *its* key may wait while other keys stay busy,
/// and decides how many items share a flush: with `n` busy sinks, `window / n`. On loopback TCP with
/// a line codec a flush is a system call of some microseconds and an item some tens of nanoseconds,
/// so a flush wants to be shared by a hundred items; 16,384 gives that to a hundred and sixty busy
/// clients, and is read in about a millisecond. It is a compromise: more busy sinks want a larger
/// window, and pay for it with delay.
pub(crate) const FLUSH_EVERY: usize = 16_384;

/// The window while waiting does not pay, in items.
///
/// With many more busy sinks than a window has items, nearly every flush is for one item, however long
/// it waits; but after 16,384 items the sink has left the processor's nearer caches, and is fetched once
/// more. A hundred are still in the nearest, and a turn of the default budget flushes what the one before
/// it sent: with 100,000 keys an item costs a tenth less, and its sink is flushed a hundred times sooner.
const SHORT: u64 = 128;

/// Waiting pays if it spares at least one flush in four. Otherwise the window is short while so many
/// full ones would have passed, and then tried again at its full length.
///
/// What is listed in that trial is flushed late: one time in 16 that does not show. And traffic that
/// has changed has each item flushed by itself for 16 x 16,384 items at most.
const SHORT_FOR: u8 = 15;

#[derive(Debug)]
pub(crate) struct Flushes {
    /// A ring: the list is what lies between `next` and `end`, which count on and are wrapped when
    /// they are used. Its length is a power of two.
    ring: Vec<Entry>,
    next: usize,
    end: usize,
    /// So many, from the front, are due whatever their stamps say.
    owed: usize,
    every: u64,
    /// The window: `every`, or on its way to [`SHORT`].
    window: u64,
    /// So many windows' length it is short.
    short_for: u8,
    /// When it was last asked whether waiting pays.
    reviewed: Mark,
    /// When it was last told how far to read.
    paused: Mark,
    many: bool,
    /// Where the list ended in each of the last turns in which the input ran dry; the first is the
    /// `dry_turn`th.
    dry_ends: [usize; DRY_TURNS],
    dry_turn: usize,
    /// The length that the ring does not fall below.
    least: usize,
    /// A bit for each slot index that is in the list and vacant.
    vacated: Vec<u64>,
}

/// In how many turns the input may run dry before all that is listed is flushed, whatever was read
/// meanwhile.
///
/// With many sinks to flush it pays to let other tasks run first, as one of them may be about to feed
/// the input. An input that has a little in each turn would put the flush off for ever. Sixteen turns of
/// an otherwise idle runtime are some microseconds; beside a task that runs for a millisecond at a time
/// they are what an item may wait for its flush, and less than people notice.
const DRY_TURNS: usize = 16;

/// How far things were at some time.
#[derive(Debug, Clone, Copy, Default)]
struct Mark {
    /// The items that the input had given, and those that sinks had taken.
    now: u64,
    sent: u64,
    /// Where the list ended.
    end: usize,
}

#[derive(Debug, Clone, Copy, Default)]
struct Entry {
    slot: u32,
    /// The lower half: an entry is due, and is gone, long before the upper half counts.
    stamp: u32,
}

impl Flushes {
    pub(crate) fn new() -> Self {
        Self {
            ring: Vec::new(),
            next: 0,
            end: 0,
            owed: 0,
            every: FLUSH_EVERY as u64,
            window: FLUSH_EVERY as u64,
            short_for: 0,
            reviewed: Mark::default(),
            paused: Mark::default(),
            many: false,
            dry_ends: [0; DRY_TURNS],
            dry_turn: 0,
            least: 0,
            vacated: Vec::new(),
        }
    }

    pub(crate) fn set_every(&mut self, items: usize) {
        // Stamps are compared by their lower half, so no window is longer than that can tell.
        self.every = (items as u64).min(1 << 31);
        self.window = self.every;
    }

    /// Makes room for `slots` slots.
    pub(crate) fn reserve(&mut self, slots: usize) {
        self.least = slots.next_power_of_two();
        if self.ring.len() < self.least {
            self.grow(self.least);
        }
        self.vacated.reserve(slots.div_ceil(64).saturating_sub(self.vacated.len()));
    }

    /// How far a turn with this budget may look ahead: what falls due within it is flushed with what is
    /// due. Otherwise each of many sinks would interrupt the reading at its own time. More than a
    /// quarter of the window would leave too little of a small one for items to share a flush.
    pub(crate) fn look_ahead(&self, budget: usize) -> u64 {
        (budget as u64).min(self.every / 4)
    }

    /// How many are listed.
    pub(crate) fn len(&self) -> usize {
        self.end.wrapping_sub(self.next)
    }

    /// Slot `slot` took an item when the input had given `now`; it joins the list if it is `new` there.
    ///
    /// With many keys it is hard to predict who is new, and a branch that was predicted wrongly is
    /// found out only when the slot has come from memory. `MANY` does without the branch, and writes to
    /// the place after the last in either case: 100,000 keys cost a fifth less, 3 would cost a fifth more.
    #[inline]
    pub(crate) fn note<const MANY: bool>(&mut self, slot: usize, now: u64, new: bool) {
        let note = if MANY { Self::note_anyway } else { Self::note_if_new };
        note(self, slot, now, new);
    }

    #[inline]
    fn note_if_new(&mut self, slot: usize, now: u64, new: bool) {
        if new {
            self.add(slot, now);
        }
    }

    #[inline]
    fn note_anyway(&mut self, slot: usize, now: u64, new: bool) {
        if self.len() == self.ring.len() {
            return self.note_beyond(slot, now, new);
        }
        let end = self.place(self.end);
        self.ring[end] = Entry { slot: low(slot as u64), stamp: low(now) };
        self.end = self.end.wrapping_add(usize::from(new));
    }

    // Not inlined: it would cost the loop around it more in registers than it saves.
    #[inline(never)]
    fn add(&mut self, slot: usize, now: u64) {
        self.note_anyway(slot, now, true);
    }

    /// The same when the ring is full.
    #[cold]
    #[inline(never)]
    fn note_beyond(&mut self, slot: usize, now: u64, new: bool) {
        if new {
            self.grow((self.ring.len() * 2).max(4));
            self.note_anyway(slot, now, new);
        }
    }

    fn grow(&mut self, len: usize) {
        self.rewind();
        self.ring.resize(len, Entry::default());
    }

    /// Lets the list begin where the ring does.
    fn rewind(&mut self) {
        let next = self.place(self.next);
        self.ring.rotate_left(next);
        let ends = [&mut self.paused.end, &mut self.reviewed.end, &mut self.end];
        for end in ends.into_iter().chain(&mut self.dry_ends) {
            *end = end.wrapping_sub(self.next);
        }
        self.next = 0;
    }

    /// Where in the ring a position is.
    fn place(&self, position: usize) -> usize {
        position & self.ring.len().wrapping_sub(1)
    }

    /// The tenant of `slot` is gone, and was listed.
    #[cold]
    pub(crate) fn vacate(&mut self, slot: usize) {
        let (word, bit) = bit(slot);
        if word >= self.vacated.len() {
            self.vacated.resize(word + 1, 0);
        }
        self.vacated[word] |= bit;
    }

    /// Was the last tenant of `slot` listed? Its successor is, or the entry is used up now.
    pub(crate) fn inherit(&mut self, slot: usize) -> bool {
        let (word, bit) = bit(slot);
        let Some(word) = self.vacated.get_mut(word) else { return false };
        let listed = *word & bit != 0;
        *word &= !bit;
        listed
    }

    /// The input has nothing ready: all that is listed now is due. By now it gave `now` items, and
    /// sinks took `sent`.
    pub(crate) fn owe_all(&mut self, now: u64, sent: u64) {
        self.owed = self.len();
        // What a lull cuts short says nothing of how long it would pay to wait.
        (self.window, self.short_for) = (self.every, 0);
        self.reviewed = Mark { now, sent, end: self.end };
    }

    /// The input ran dry in this turn. Returns `true` if that has happened often enough since the first
    /// entry was listed.
    pub(crate) fn dry_turn(&mut self) -> bool {
        self.dry_ends[self.dry_turn] = self.end;
        self.dry_turn = (self.dry_turn + 1) % DRY_TURNS;
        let listed_by_then = self.dry_ends[self.dry_turn].wrapping_sub(self.next);
        (1..=self.len()).contains(&listed_by_then)
    }

    /// Is something due by the time the input will have given `by`?
    pub(crate) fn is_due(&self, by: u64) -> bool {
        self.front().is_some_and(|front| self.owed > 0 || self.left(front, by) == 0)
    }

    /// How many items may be read before something is due; asked before each run of items. By now the
    /// input gave `now` items, and sinks took `sent`.
    pub(crate) fn due_in(&mut self, now: u64, sent: u64) -> u64 {
        let read = now - self.paused.now;
        // Of those that were read meanwhile, was one in 32 the first for its sink? Fewer wrong
        // predictions than that cost less than it does to go without.
        self.many = self.listed_since(self.paused) * 32 > read;
        self.paused = Mark { now, sent, end: self.end };
        if self.short_for > 0 {
            // As fast as items are read: all at once, what is listed would be due before any of them.
            self.window = self.window.saturating_sub(read).max(SHORT.min(self.every));
        }
        if now - self.reviewed.now >= self.every {
            self.review(now, sent);
        }
        // What is read next can only be due later than the window.
        self.front().map_or(self.window, |front| self.left(front, now))
    }

    /// Once in a window: does it pay to wait for its end?
    #[cold]
    fn review(&mut self, now: u64, sent: u64) {
        let (flushes, sent_since) = (self.listed_since(self.reviewed), sent - self.reviewed.sent);
        self.short_for = match self.short_for {
            _ if flushes * 4 <= sent_since * 3 => 0,
            0 => SHORT_FOR,
            left => left - 1,
        };
        if self.short_for == 0 {
            self.window = self.every;
        } else if self.len() < self.ring.len() / 8 {
            // A short list that goes round a large ring is seldom in the cache.
            self.rewind();
            self.ring.truncate((self.len().next_power_of_two() * 2).max(self.least));
        }
        self.reviewed = Mark { now, sent, end: self.end };
    }

    /// How many have joined the list since.
    fn listed_since(&self, mark: Mark) -> u64 {
        self.end.wrapping_sub(mark.end) as u64
    }

    /// Were many of the items that were read last the first for their sinks?
    pub(crate) fn has_many(&self) -> bool {
        self.many
    }

    /// The next one that is due by the time the input will have given `by`; it is no longer listed.
    #[inline]
    pub(crate) fn next(&mut self, by: u64) -> Option<usize> {
        let front = self.front()?;
        if self.owed > 0 {
            self.owed -= 1;
        } else if self.left(front, by) > 0 {
            return None;
        }
        self.next = self.next.wrapping_add(1);
        Some(front.slot as usize)
    }

    fn front(&self) -> Option<Entry> {
        (self.next != self.end).then(|| self.ring[self.place(self.next)])
    }

    /// How many items more than `now` the input may give before an entry is due.
    fn left(&self, entry: Entry, now: u64) -> u64 {
        self.window.saturating_sub(u64::from(low(now).wrapping_sub(entry.stamp)))
    }

    /// Frees what grew with the number of slots.
    pub(crate) fn clear(&mut self) {
        *self = Self::new();
    }
}

/// The lower half. Of a slot index it is all of it: `Ready::seat` refuses more.
#[expect(clippy::cast_possible_truncation, reason = "it is what is wanted")]
fn low(number: u64) -> u32 {
    number as u32
}

/// Which word, and which bit of it, is for a slot.
fn bit(slot: usize) -> (usize, u64) {
    (slot / 64, 1 << (slot % 64))
}

#[cfg(test)]
mod tests {
    use alloc::collections::VecDeque;

    use super::*;

    fn every(items: usize) -> Flushes {
        let mut flushes = Flushes::new();
        flushes.set_every(items);
        flushes
    }

    /// A busy input, each item of which one sink takes: read in runs, as far as nothing is due.
    struct Busy {
        flushes: Flushes,
        now: u64,
        slot: usize,
        /// When those that are listed took their first item.
        listed: VecDeque<u64>,
        /// How many items were read from then to their flush, of those that were flushed since the last
        /// look.
        waited: Vec<u64>,
    }

    impl Busy {
        fn with(every_items: usize) -> Self {
            let (flushes, listed) = (every(every_items), VecDeque::new());
            Self { flushes, now: 0, slot: 0, listed, waited: Vec::new() }
        }

        /// Reads items of which one in `shared` goes to a sink that is listed; the others are for a new
        /// one each.
        fn read(&mut self, items: u64, shared: u64) {
            let until = self.now + items;
            while self.now < until {
                let run = self.flushes.due_in(self.now, self.now).min(10).min(until - self.now);
                for _ in 0..run {
                    self.now += 1;
                    let new = self.now % shared > 0;
                    self.flushes.note::<true>(self.slot, self.now, new);
                    if new {
                        self.listed.push_back(self.now);
                        self.slot += 1;
                    }
                }
                self.flush();
            }
        }

        fn flush(&mut self) {
            while let Some(slot) = self.flushes.next(self.now) {
                assert_eq!(slot + self.listed.len(), self.slot);
                let first = self.listed.pop_front().unwrap();
                self.waited.push(self.now - first);
            }
        }

        /// The input has nothing ready.
        fn lull(&mut self) {
            self.flushes.owe_all(self.now, self.now);
            self.flush();
        }

        fn waited(&mut self) -> (usize, u64, u64) {
            let waited = core::mem::take(&mut self.waited);
            let (least, most) = (waited.iter().min(), waited.iter().max());
            (waited.len(), least.copied().unwrap_or(0), most.copied().unwrap_or(0))
        }
    }

    const NEVER: u64 = u64::MAX;

    #[test]
    fn where_items_do_not_share_a_flush_it_waits_less_and_one_time_in_sixteen_as_long_as_ever() {
        let mut busy = Busy::with(1_000);
        let read = |busy: &mut Busy| {
            busy.read(500, NEVER);
            busy.waited()
        };
        assert_eq!((read(&mut busy), read(&mut busy)), ((0, 0, 0), (0, 0, 0)));
        for _ in 0..3 {
            // It closes as fast as items are read: two are flushed for each.
            assert_eq!(read(&mut busy), (999, 501, 1_000));
            assert_eq!(read(&mut busy), (873, 128, 500));
            for _ in 0..28 {
                assert_eq!(read(&mut busy), (500, 128, 128));
            }
            assert_eq!(busy.flushes.ring.len(), 1_024, "small enough for 128");
            // It is tried again.
            assert_eq!(read(&mut busy), (0, 0, 0));
            assert_eq!(read(&mut busy), (128, 1_000, 1_000));
        }
    }

    #[test]
    fn where_one_item_in_four_shares_a_flush_all_wait_to_the_end() {
        let mut busy = Busy::with(1_000);
        busy.read(2_000, 5);
        assert_eq!(busy.waited(), (1_498, 128, 1_000), "one in five is not enough");
        let mut busy = Busy::with(1_000);
        busy.read(1_900, 4);
        assert_eq!(busy.waited(), (675, 1_000, 1_000));
    }

    #[test]
    fn as_soon_as_items_share_a_flush_again_they_wait_to_the_end() {
        let mut busy = Busy::with(1_000);
        busy.read(3_000, NEVER);
        busy.waited();
        busy.read(1_000, 2);
        assert_eq!(busy.waited(), (564, 128, 128));
        busy.read(871, 2);
        assert_eq!(busy.waited(), (0, 0, 0));
        busy.read(3_000, 2);
        assert_eq!(busy.waited(), (1_500, 1_000, 1_000));
    }

    #[test]
    fn a_lull_says_nothing_of_how_long_it_would_pay_to_wait() {
        let mut busy = Busy::with(1_000);
        for _ in 0..10 {
            busy.read(999, NEVER);
            busy.lull();
            assert_eq!(busy.waited(), (999, 0, 998));
        }
        busy.read(3_000, NEVER);
        busy.lull();
        busy.waited();
        busy.read(1_000, NEVER);
        assert_eq!(busy.waited(), (0, 0, 0));
    }

    #[test]
    fn a_window_that_is_short_by_itself_gets_no_shorter() {
        let mut busy = Busy::with(100);
        busy.read(1_000, NEVER);
        assert_eq!(busy.waited(), (900, 100, 100));
    }

    #[test]
    fn a_list_that_became_short_goes_round_a_small_ring() {
        let mut busy = Busy::with(4_000);
        busy.read(4_000, NEVER);
        assert_eq!(busy.flushes.ring.len(), 4_096);
        busy.read(10_000, NEVER);
        assert_eq!((busy.flushes.len(), busy.flushes.ring.len()), (128, 256));
        busy.read(100_000, NEVER);
        assert_eq!(busy.slot, 114_000);
    }

    /// Beside the obvious list.
    #[test]
    fn whatever_is_listed_and_whenever_it_is_looked_at_each_is_flushed_once_and_in_time() {
        let (mut flushes, mut list) = (every(40), VecDeque::new());
        let (mut now, mut by, mut slot, mut dice) = (u64::from(u32::MAX) - 5_000, 0, 0_u32, 1_u64);
        for _ in 0..10_000 {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let run = flushes.due_in(now, now).min(dice >> 60);
            for item in 0..run {
                now += 1;
                let new = dice >> (item + 8) & 1 == 0;
                if item % 2 == 0 {
                    flushes.note::<true>(slot as usize, now, new);
                } else {
                    flushes.note::<false>(slot as usize, now, new);
                }
                if new {
                    list.push_back((slot, now));
                    slot += 1;
                }
            }
            // What was due by then is due, though this time we look less far ahead.
            by = by.max(now + (dice >> 30) % 8);
            for _ in 0..(dice >> 40) % 20 {
                let due = list.front().is_some_and(|(_, stamp)| stamp + 40 <= by);
                let expected = due.then(|| list.pop_front().unwrap().0 as usize);
                assert_eq!(flushes.next(by), expected);
            }
            assert_eq!(flushes.len(), list.len());
        }
        assert!(slot > 1_000);
    }

    #[test]
    fn more_than_one_in_thirty_two_that_are_the_first_for_their_sink_are_many() {
        let mut flushes = every(1_000);
        let mut read = |items: u64, new: u64| {
            let start = flushes.paused.now;
            for item in 0..items {
                flushes.note::<false>(0, start + item, item < new);
            }
            flushes.due_in(start + items, 0);
            flushes.has_many()
        };
        assert!(!read(64, 0) && !read(64, 2) && read(64, 3) && read(64, 64) && !read(64, 1));
        assert!(!read(0, 0) && read(31, 1) && !read(32, 1) && !read(33, 1));
    }

    #[test]
    fn a_slot_is_due_so_many_items_after_the_first_it_took() {
        let mut flushes = every(10);
        flushes.note::<false>(3, 1, true);
        flushes.note::<true>(4, 2, true);
        flushes.note::<true>(4, 3, false);
        assert_eq!(flushes.due_in(5, 5), 6);
        assert_eq!(flushes.next(10), None);
        assert_eq!(flushes.next(11), Some(3));
        assert_eq!(flushes.next(11), None);
        assert_eq!(flushes.due_in(12, 12), 0);
        assert_eq!(flushes.next(12), Some(4));
        assert_eq!(flushes.len(), 0);
    }

    #[test]
    fn what_is_owed_is_due_at_once_and_what_comes_after_is_not() {
        let mut flushes = every(100);
        flushes.note::<true>(0, 1, true);
        flushes.owe_all(1, 1);
        flushes.note::<false>(1, 1, true);
        assert_eq!(flushes.next(1), Some(0));
        assert_eq!(flushes.next(1), None);
    }

    #[test]
    fn an_entry_is_handed_on_to_the_next_tenant_and_to_no_other() {
        let mut flushes = every(10);
        flushes.note::<false>(70, 1, true);
        flushes.vacate(70);
        assert_eq!(flushes.vacated.len(), 2, "a bit for each");
        assert!(!flushes.inherit(6) && !flushes.inherit(700));
        assert!(flushes.inherit(70));
        assert!(!flushes.inherit(70));
        assert_eq!(flushes.next(11), Some(70));
    }

    #[test]
    fn a_window_without_end_is_one_of_two_thousand_million_items() {
        let mut flushes = every(usize::MAX);
        let start = u64::from(u32::MAX) - 7;
        flushes.note::<false>(1, start, true);
        assert_eq!(flushes.due_in(start + 9, 0), (1 << 31) - 9);
        assert!(!flushes.is_due(start + (1 << 31) - 1));
        assert!(flushes.is_due(start + (1 << 31)));
    }
}
