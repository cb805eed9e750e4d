//! A memory model for a few atomics and three threads, in which a thread may read stale values.
//!
//! Each location has an ordered list of writes. Each thread has a view: for each location, the
//! oldest write that it may still read. A read advances the view. A release write carries the view
//! of its thread, and an acquire read of that write joins it. A read-modify-write reads the last
//! write and keeps the view that it carried: a release sequence. This is the release-acquire
//! fragment of C++20, in the form of a view machine (Kang et al., *A promising semantics*, POPL
//! 2017, without promises).
//!
//! It does not model reads that are overtaken by a later write of the same thread (no promises),
//! and plain stores that are ordered before a write that their thread has not seen.

use std::ops::RangeInclusive;

/// Locations.
pub const HEAD: usize = 0;
/// The signals: `ORDERS_RAISED`, `LEASES_RAISED`.
pub const SIGNALS: usize = 1;
/// The state of the `AtomicWaker`, and the waker in it, which is not atomic.
pub const TASK: usize = 2;
pub const CELL: usize = 3;
/// The task was woken and must be polled.
pub const NOTE: usize = 4;
/// Data of the orders stream, the leases and the sinks: memory of user code, written before a wake
/// and read by the poll after it. One bit for each write.
pub const ORDERS: usize = 5;
pub const REQUESTS: usize = 6;
pub const BITS: [usize; 2] = [7, 8];
pub const NEXT: [usize; 2] = [9, 10];
pub const DATA: [usize; 2] = [11, 12];
/// The list of ended leases: its top, and for each slot the flag and the link.
pub const ENDED_HEAD: usize = 13;
pub const ENDED: [usize; 2] = [14, 15];
pub const NEXT_ENDED: [usize; 2] = [16, 17];
pub const LOCATIONS: usize = 18;

/// The thread that polls. The other two are wakers.
pub const OWNER: usize = 2;

/// For each location, the index of a write.
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

/// The view that a write carries, followed by its value.
type Write = [u8; LOCATIONS + 1];
const VALUE: usize = LOCATIONS;

#[derive(Clone)]
pub struct Memory {
    /// Whether stale values can be read. If not, the memory is sequentially consistent.
    weak: bool,
    /// All writes, by location and in order, and the index of the first write of each location.
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

    /// Returns the index of the last write.
    fn newest(&self, at: usize) -> usize {
        usize::from(self.begin[at + 1] - self.begin[at]) - 1
    }

    /// Returns the last written value, even if no thread has seen it.
    pub fn last(&self, at: usize) -> u8 {
        self.of(at)[self.newest(at)][VALUE]
    }

    /// Returns the indices of the writes that `thread` may read, for `read`.
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

    /// A read-modify-write: `change` computes the new value from the old one, which is returned.
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

    /// A non-atomic access. Returns `None` for a data race: the thread has not seen the last write.
    pub fn access(&mut self, thread: usize, at: usize, value: u8) -> Option<u8> {
        let seen = usize::from(self.views[thread][at]) == self.newest(at);
        seen.then(|| self.update(thread, at, Order::Relaxed, |_| value))
    }

    /// Joins the view of `from` into that of `thread`, for synchronisation outside of the model.
    pub fn synchronize_with(&mut self, thread: usize, from: usize) {
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

    /// Removes irrelevant data, so that equivalent states are equal, and a task that polls itself
    /// while a waker is preempted does not create new states forever. `running` are the threads
    /// that are not done.
    pub fn prune(&mut self, running: [bool; 3]) {
        if !self.weak {
            return;
        }
        for (view, _) in self.views.iter_mut().zip(running).filter(|&(_, running)| !running) {
            *view = View::default();
        }
        let oldest: [usize; LOCATIONS] = std::array::from_fn(|at| match at {
            // Only updated, which reads the last write.
            TASK | NOTE => self.newest(at),
            _ if ENDED.contains(&at) => self.newest(at),
            // Not atomic: a thread that has not seen the last write must not access it.
            CELL => self.newest(at).saturating_sub(1),
            HEAD | ENDED_HEAD => {
                let views = self.views.iter().zip(running);
                let views = views.filter_map(|(view, running)| running.then_some(view[at]));
                usize::from(views.min().unwrap_or(0))
            }
            // Only the owner loads it.
            _ => usize::from(self.views[OWNER][at]),
        });
        for (at, oldest) in oldest.into_iter().enumerate() {
            (0..oldest).for_each(|_| self.remove(at, 0));
        }
        // Wakers use only the value of the top of the stack, and the owner does not read writes
        // before its own last write, so consecutive writes of equal values are equivalent.
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

    /// Removes a write. Views that contained it contain the next one instead.
    fn remove(&mut self, at: usize, which: usize) {
        self.writes.remove(usize::from(self.begin[at]) + which);
        self.begin[at + 1..].iter_mut().for_each(|begin| *begin -= 1);
        let carried = self.writes.iter_mut().map(|write| &mut write[at]);
        for known in carried.chain(self.views.iter_mut().map(|view| &mut view[at])) {
            *known -= u8::from(usize::from(*known) > which);
        }
    }

    /// Appends the whole memory.
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
