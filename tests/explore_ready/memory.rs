//! A memory for a handful of atomics and three threads, in which a thread may read what is out of
//! date.
//!
//! Each location has its writes in order. Each thread has a view: for each location, the oldest
//! write it may still read. A read moves the view on; a write carries along the view of its thread
//! if it is a release, and an acquire that reads it takes that view over. A read-modify-write reads
//! the last write, and hands on what that carried: a release sequence. This is the release-acquire
//! fragment of C++20 as view machines have it (Kang et al., *A promising semantics*, POPL 2017,
//! without promises).
//!
//! What it cannot show: a read that is overtaken by a later write of its own thread (no promises),
//! and a plain store that is put in order before a write that its thread has not seen.

use std::ops::RangeInclusive;

/// Locations.
pub const HEAD: usize = 0;
/// What the orders and the leases have raised: `ORDERS_RAISED`, `LEASES_RAISED`.
pub const SIGNALS: usize = 1;
/// The state of the `AtomicWaker`, and the waker in it, which is no atomic.
pub const TASK: usize = 2;
pub const CELL: usize = 3;
/// The executor was asked to poll the task again.
pub const NOTE: usize = 4;
/// What the orders stream, the leases and the sinks have to tell: foreign memory, written before
/// the wake, read by the poll after it. A bit for each piece of news.
pub const ORDERS: usize = 5;
pub const WISHES: usize = 6;
pub const BITS: [usize; 2] = [7, 8];
pub const NEXT: [usize; 2] = [9, 10];
pub const NEWS: [usize; 2] = [11, 12];
/// The list of ended leases: its top, and for each slot the flag and the link.
pub const ENDED_HEAD: usize = 13;
pub const ENDED: [usize; 2] = [14, 15];
pub const NEXT_ENDED: [usize; 2] = [16, 17];
pub const LOCATIONS: usize = 18;

/// The one of the three threads that reads; the others wake it.
pub const OWNER: usize = 2;

/// For each location the number of a write in it.
type View = [u8; LOCATIONS];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    Relaxed,
    Acquire,
    Release,
    AcqRel,
}

impl Order {
    fn acquires(self) -> bool {
        matches!(self, Self::Acquire | Self::AcqRel)
    }
    fn releases(self) -> bool {
        matches!(self, Self::Release | Self::AcqRel)
    }
}

/// What is known to who reads it, if both sides say so; and, behind that, the value.
type Write = [u8; LOCATIONS + 1];
const VALUE: usize = LOCATIONS;

#[derive(Clone)]
pub struct Memory {
    /// Is what is out of date still readable? If not, this is an interleaving of steps and no more.
    weak: bool,
    /// All writes, by location and in order; and where those of each location begin.
    writes: Vec<Write>,
    begin: [u8; LOCATIONS + 1],
    views: [View; 3],
}

impl Memory {
    pub fn new(weak: bool, initially: impl Fn(usize) -> u8) -> Self {
        let write = |at| {
            let mut write = Write::default();
            write[VALUE] = initially(at);
            write
        };
        let writes = (0..LOCATIONS).map(write).collect();
        Self { weak, writes, begin: std::array::from_fn(index), views: Default::default() }
    }

    fn of(&self, at: usize) -> &[Write] {
        &self.writes[usize::from(self.begin[at])..usize::from(self.begin[at + 1])]
    }

    /// The number of the last write.
    fn newest(&self, at: usize) -> usize {
        usize::from(self.begin[at + 1] - self.begin[at]) - 1
    }

    /// The last value in the order of writes, whether or not any thread has seen it.
    pub fn last(&self, at: usize) -> u8 {
        self.of(at)[self.newest(at)][VALUE]
    }

    /// What `thread` may read there: numbers of writes, for `read`.
    pub fn readable(&self, thread: usize, at: usize) -> RangeInclusive<usize> {
        usize::from(self.views[thread][at])..=self.newest(at)
    }

    pub fn read(&mut self, thread: usize, at: usize, which: usize, order: Order) -> u8 {
        let write = self.of(at)[which];
        self.views[thread][at] = index(which);
        if order.acquires() {
            self.join(thread, &write);
        }
        write[VALUE]
    }

    /// Reads the last write.
    pub fn read_last(&mut self, thread: usize, at: usize, order: Order) -> u8 {
        self.read(thread, at, self.newest(at), order)
    }

    pub fn store(&mut self, thread: usize, at: usize, value: u8, order: Order) {
        self.write(thread, at, value, order, Write::default());
    }

    /// A read-modify-write: `change` makes the new value of the last one, which is returned.
    pub fn update(
        &mut self,
        thread: usize,
        at: usize,
        order: Order,
        change: impl FnOnce(u8) -> u8,
    ) -> u8 {
        let carried = self.of(at)[self.newest(at)];
        let old = self.read_last(thread, at, order);
        self.write(thread, at, change(old), order, carried);
        old
    }

    /// An access that is no atomic one. `None`: it would be a data race, as its thread has not seen
    /// the last write.
    pub fn access(&mut self, thread: usize, at: usize, value: u8) -> Option<u8> {
        let seen = usize::from(self.views[thread][at]) == self.newest(at);
        seen.then(|| self.update(thread, at, Order::Relaxed, |_| value))
    }

    /// `thread` learns all that `from` knows: they met elsewhere.
    pub fn meet(&mut self, thread: usize, from: usize) {
        let view = self.views[from];
        self.join(thread, &view);
    }

    fn join(&mut self, thread: usize, other: &[u8]) {
        join(&mut self.views[thread], other);
    }

    fn write(&mut self, thread: usize, at: usize, value: u8, order: Order, mut write: Write) {
        write[VALUE] = value;
        if !self.weak {
            self.writes[at] = write;
            return;
        }
        self.views[thread][at] = index(self.newest(at) + 1);
        if order.releases() {
            join(&mut write[..LOCATIONS], &self.views[thread]);
        }
        write[at] = self.views[thread][at];
        self.writes.insert(usize::from(self.begin[at + 1]), write);
        self.begin[at + 1..].iter_mut().for_each(|begin| *begin += 1);
    }

    /// Forgets what makes no difference any more, so that states that are equal look equal, and a
    /// task that polls itself while a waker is preempted does not make ever new ones. `alive`: who
    /// goes on.
    pub fn forget(&mut self, alive: [bool; 3]) {
        if !self.weak {
            return;
        }
        for (view, _) in self.views.iter_mut().zip(alive).filter(|&(_, alive)| !alive) {
            *view = View::default();
        }
        let oldest: [usize; LOCATIONS] = std::array::from_fn(|at| match at {
            // Only ever updated, which reads the last write.
            TASK | NOTE => self.newest(at),
            _ if ENDED.contains(&at) => self.newest(at),
            // Not atomic: who has not seen the last write may not touch it.
            CELL => self.newest(at).saturating_sub(1),
            HEAD | ENDED_HEAD => {
                let views = self.views.iter().zip(alive);
                let views = views.filter_map(|(view, alive)| alive.then_some(view[at]));
                usize::from(views.min().unwrap_or(0))
            }
            // Only the owner loads it.
            _ => usize::from(self.views[OWNER][at]),
        });
        for (at, oldest) in oldest.into_iter().enumerate() {
            (0..oldest).for_each(|_| self.remove(at, 0));
        }
        // Wakers take no more from the top of the stack than its value, the owner does not read
        // what is older than its own last write: to them, two equal ones in a row are one.
        for head in [HEAD, ENDED_HEAD] {
            let mut at = 0;
            while at < usize::from(self.views[OWNER][head]).min(self.newest(head)) {
                if self.of(head)[at][VALUE] == self.of(head)[at + 1][VALUE] {
                    self.remove(head, at);
                } else {
                    at += 1;
                }
            }
        }
    }

    /// Removes a write. For who knew it, it is as if they knew the one after it.
    fn remove(&mut self, at: usize, which: usize) {
        self.writes.remove(usize::from(self.begin[at]) + which);
        self.begin[at + 1..].iter_mut().for_each(|begin| *begin -= 1);
        let carried = self.writes.iter_mut().map(|write| &mut write[at]);
        for known in carried.chain(self.views.iter_mut().map(|view| &mut view[at])) {
            *known -= u8::from(usize::from(*known) > which);
        }
    }

    /// All there is to it.
    pub fn encode(&self, to: &mut Vec<u8>) {
        to.extend_from_slice(self.writes.as_flattened());
        to.extend_from_slice(&self.begin);
        to.extend_from_slice(self.views.as_flattened());
    }
}

fn join(view: &mut [u8], other: &[u8]) {
    for (own, &other) in view.iter_mut().zip(other) {
        *own = (*own).max(other);
    }
}

fn index(of: usize) -> u8 {
    u8::try_from(of).expect("more writes than a scenario has")
}
