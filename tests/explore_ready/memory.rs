//! A memory for a handful of atomics and three threads, in which a thread may read what is out of date.
//!
//! Each location has its writes in order. Each thread has a view: for each location, the oldest write
//! it may still read. A read moves the view on; a write carries along the view of its thread if it is
//! a release, and an acquire that reads it takes that view over. A read-modify-write reads the last
//! write, and hands on what that carried: a release sequence. This is the release-acquire fragment of
//! C++20 as view machines have it (Kang et al., *A promising semantics*, POPL 2017, without promises).
//!
//! What it cannot show: a read that is overtaken by a later write of its own thread (no promises), and
//! a plain store that is put in order before a write that its thread has not seen.

/// Locations.
pub const HEAD: usize = 0;
pub const BELL: usize = 1;
/// The state of the `AtomicWaker`, and the waker in it, which is no atomic.
pub const TASK: usize = 2;
pub const CELL: usize = 3;
/// The executor was asked to poll the task again.
pub const NOTE: usize = 4;
/// What the orders stream, the leases and the sinks have to tell: foreign memory, written before the
/// wake, read by the poll after it. A bit for each piece of news.
pub const ORDERS: usize = 5;
pub const WISHES: usize = 6;
pub const BITS: [usize; 2] = [7, 8];
pub const NEXT: [usize; 2] = [9, 10];
pub const NEWS: [usize; 2] = [11, 12];
pub const LOCATIONS: usize = 13;

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

#[derive(Clone, Copy)]
struct Write {
    value: u8,
    carries: View,
}

#[derive(Clone)]
pub struct Memory {
    /// Is what is out of date still readable? If not, this is an interleaving of steps and no more.
    weak: bool,
    writes: [Vec<Write>; LOCATIONS],
    views: [View; 3],
}

impl Memory {
    pub fn new(weak: bool, initially: impl Fn(usize) -> u8) -> Self {
        let write = |location| vec![Write { value: initially(location), carries: View::default() }];
        Self { weak, writes: std::array::from_fn(write), views: Default::default() }
    }

    /// What is last in the order of writes, whoever may know of it.
    pub fn last(&self, at: usize) -> u8 {
        self.writes[at].last().map_or(0, |write| write.value)
    }

    /// What `thread` may read there: numbers of writes, for `read`.
    pub fn readable(&self, thread: usize, at: usize) -> std::ops::Range<usize> {
        usize::from(self.views[thread][at])..self.writes[at].len()
    }

    pub fn read(&mut self, thread: usize, at: usize, which: usize, order: Order) -> u8 {
        let Write { value, carries } = self.writes[at][which];
        self.views[thread][at] = index(which);
        if order.acquires() {
            self.join(thread, &carries);
        }
        value
    }

    pub fn store(&mut self, thread: usize, at: usize, value: u8, order: Order) {
        self.write(thread, at, value, order, View::default());
    }

    /// A read-modify-write: `change` makes the new value of the last one, which is returned.
    pub fn update(
        &mut self,
        thread: usize,
        at: usize,
        order: Order,
        change: impl FnOnce(u8) -> u8,
    ) -> u8 {
        let last = self.writes[at].len() - 1;
        let carried = self.writes[at][last].carries;
        let old = self.read(thread, at, last, order);
        self.write(thread, at, change(old), order, carried);
        old
    }

    /// An access that is no atomic one. `None`: it would be a data race, as its thread has not seen
    /// the last write.
    pub fn access(&mut self, thread: usize, at: usize, value: u8) -> Option<u8> {
        let last = self.writes[at].len() - 1;
        if self.weak && usize::from(self.views[thread][at]) != last {
            return None;
        }
        Some(self.update(thread, at, Order::Relaxed, |_| value))
    }

    /// `thread` learns all that `from` knows: they met elsewhere.
    pub fn meet(&mut self, thread: usize, from: usize) {
        let view = self.views[from];
        self.join(thread, &view);
    }

    fn join(&mut self, thread: usize, other: &View) {
        for (own, &other) in self.views[thread].iter_mut().zip(other) {
            *own = (*own).max(other);
        }
    }

    fn write(&mut self, thread: usize, at: usize, value: u8, order: Order, carried: View) {
        if !self.weak {
            self.writes[at][0].value = value;
            return;
        }
        let mut carries = carried;
        self.views[thread][at] = index(self.writes[at].len());
        if order.releases() {
            for (carries, &known) in carries.iter_mut().zip(&self.views[thread]) {
                *carries = (*carries).max(known);
            }
        }
        carries[at] = self.views[thread][at];
        self.writes[at].push(Write { value, carries });
    }

    /// Forgets what nobody can read any more, so that equal states look equal. `alive`: who goes on.
    pub fn forget(&mut self, alive: [bool; 3]) {
        if !self.weak {
            return;
        }
        for (thread, alive) in alive.into_iter().enumerate() {
            if !alive {
                self.views[thread] = std::array::from_fn(|at| index(self.writes[at].len() - 1));
            }
        }
        for at in 0..LOCATIONS {
            let oldest = self.views.iter().map(|view| view[at]).min().unwrap_or(0);
            if oldest == 0 {
                continue;
            }
            self.writes[at].drain(..usize::from(oldest));
            let carried = self.writes.iter_mut().flatten().map(|write| &mut write.carries);
            for view in carried.chain(&mut self.views) {
                view[at] = view[at].saturating_sub(oldest);
            }
        }
    }

    /// All there is to it.
    pub fn encode(&self, to: &mut Vec<u8>) {
        for writes in &self.writes {
            if self.weak {
                to.push(index(writes.len()));
            }
            for write in writes {
                to.push(write.value);
                if self.weak {
                    to.extend(write.carries);
                }
            }
        }
        if self.weak {
            to.extend(self.views.as_flattened());
        }
    }
}

fn index(of: usize) -> u8 {
    u8::try_from(of).expect("more writes than a scenario has")
}
