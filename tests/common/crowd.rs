//! Many sinks with random events, for properties that must hold in every situation.

use stream_demux::{Attach, Lease, Order, Overflow};

use super::{Op, Rig, SinkHandle, scripted_sink};

/// Reproducible pseudo-random numbers: xorshift64 (Marsaglia, 2003).
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed * 0x9E37_79B9)
    }

    pub fn below(&mut self, bound: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from(self.0 % u64::from(bound)).unwrap()
    }

    /// Returns a random element of `all`.
    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(u32::try_from(all.len()).unwrap()) as usize]
    }
}

/// Sinks under the keys 0 to 4, which are attached, yield, stall, fail and are detached.
#[derive(Default)]
pub struct Crowd {
    pub sinks: Vec<SinkHandle<u32>>,
    leases: Vec<Lease>,
}

impl Crowd {
    /// Sends an item or an order, ends a lease, or changes what a sink returns. Returns how often
    /// the demux should be polled now.
    pub fn act(&mut self, rig: &mut Rig, dice: &mut Dice, step: u32) -> u32 {
        let key = dice.below(5);
        match dice.below(16) {
            0..=4 => rig.input.push(key * 100 + step % 100),
            5 | 6 => self.attach(rig, dice, key),
            7 => rig.orders.push(Order::Detach(key)),
            8 => rig.orders.push(Order::Tick),
            9 if dice.below(3) == 0 => rig.orders.push(Order::Evict(key)),
            10 if dice.below(2) == 0 => drop(self.leases.pop()),
            10 => drop(self.leases.pop().map(Lease::detach)),
            11 | 12 if !self.sinks.is_empty() => self.disturb(dice),
            _ => return dice.below(4),
        }
        0
    }

    fn attach(&mut self, rig: &Rig, dice: &mut Dice, key: u32) {
        const POLICIES: [Overflow; 5] = [
            Overflow::Wait,
            Overflow::DropNewest,
            Overflow::DropOldest,
            Overflow::Evict,
            Overflow::Conflate,
        ];
        let (sink, handle) = scripted_sink(self.sinks.len());
        handle.lenient(); // slots and their wakers are reused
        let terms = Attach::new(key, sink).buffer(dice.below(4) as usize);
        let terms = terms.overflow(dice.pick(&POLICIES));
        let mut terms = match dice.below(10) {
            0 | 1 => terms.limit(u64::from(dice.below(4))),
            2 => terms.catch_all(),
            3 => terms.keep_existing(),
            4 => terms.stall_timeout(2),
            5 => terms.idle_timeout(2),
            _ => terms,
        };
        if dice.below(3) == 0 {
            let mut lease = Lease::new();
            terms = terms.leased(&mut lease);
            self.leases.push(lease);
        }
        if dice.below(2) == 0 {
            handle.park();
        }
        rig.orders.push(terms.into());
        self.sinks.push(handle);
    }

    fn disturb(&self, dice: &mut Dice) {
        let sink = &self.sinks[dice.below(u32::try_from(self.sinks.len()).unwrap()) as usize];
        let op = dice.pick(&[Op::Ready, Op::Flush, Op::Close]);
        match dice.below(7) {
            0 => sink.open(),
            1 => sink.allow(2),
            2 => sink.hold(op),
            3 => sink.release(op),
            4 => sink.stutter(op, 2),
            5 => sink.fail(op),
            _ => sink.fail(Op::Send),
        }
    }

    /// Lets all pending operations complete.
    pub fn release(&self) {
        for sink in &self.sinks {
            sink.open();
            sink.release(Op::Flush);
            sink.release(Op::Close);
        }
    }

    /// Returns `true` if all sinks were dropped and none was misused.
    pub fn is_gone(&self) -> bool {
        self.sinks.iter().all(|sink| sink.is_dropped() && sink.breaches().is_empty())
    }
}
