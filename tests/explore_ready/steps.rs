//! The steps of each thread, in the order of `src/ready.rs`, `src/demux/poll.rs` and
//! `atomic-waker`.

use crate::memory::Order::{AcqRel, Acquire, Relaxed, Release};
use crate::memory::{
    BITS, CELL, DATA, ENDED, ENDED_HEAD, HEAD, NEXT, NEXT_ENDED, NOTE, ORDERS, OWNER, Order,
    REQUESTS, SIGNALS, TASK,
};
use crate::model::{
    Act, BY_LEASE, BY_SINK, END, Extra, Flaw, LEASES_RAISED, LISTED, Label, ORDERS_RAISED,
    OWN_DATA, Pc, Protocol, Scenario, State, Step, Thread,
};

/// States of the `AtomicWaker`.
const WAITING: u8 = 0;
const REGISTERING: u8 = 1;
const WAKING: u8 = 2;

/// A thread that is about to take a step.
pub struct Stepping<'a> {
    pub protocol: &'a Protocol,
    pub scenario: &'a Scenario,
    pub thread: usize,
    pub steps: &'a mut Vec<Step>,
}

impl Stepping<'_> {
    fn has(&self, flaw: Flaw) -> bool {
        self.protocol.flaw == Some(flaw)
    }

    fn push(&mut self, value: u8, before: &State, after: State) {
        self.steps.push(Ok((self.label(value, before), after)));
    }

    fn label(&self, value: u8, before: &State) -> Label {
        let Thread { pc, slot, .. } = before.threads[self.thread];
        let slot = match pc {
            Pc::Pop => before.owner.taken,
            Pc::PopEnded => before.owner.ended,
            _ => slot,
        };
        let thread = u8::try_from(self.thread).unwrap_or(u8::MAX);
        Label { thread, pc, slot, value }
    }

    /// A load, which may return any of several values.
    fn load(
        &mut self,
        state: &State,
        at: usize,
        order: Order,
        then: impl Fn(&Self, &mut State, u8),
    ) {
        for which in state.memory.readable(self.thread, at) {
            let mut after = state.clone();
            let value = after.memory.read(self.thread, at, which, order);
            then(self, &mut after, value);
            self.push(value, state, after);
        }
    }

    /// A read-modify-write.
    fn update(
        &mut self,
        state: &State,
        at: usize,
        order: Order,
        change: impl FnOnce(u8) -> u8,
        then: impl FnOnce(&Self, &mut State, u8),
    ) {
        let mut after = state.clone();
        let old = after.memory.update(self.thread, at, order, change);
        then(self, &mut after, old);
        self.push(old, state, after);
    }

    /// A step of the `AtomicWaker` that owns its cell: replaces the waker, then updates the state.
    fn locked(
        &mut self,
        state: &State,
        cell: u8,
        order: Order,
        change: impl FnOnce(u8) -> u8,
        then: impl FnOnce(&Self, &mut State, u8),
    ) {
        let mut after = state.clone();
        let Some(old) = after.memory.access(self.thread, CELL, cell) else {
            let label = self.label(state.memory.last(CELL), state);
            return self.steps.push(Err((label, "a data race on the waker of the task")));
        };
        after.memory.update(self.thread, TASK, order, change);
        then(self, &mut after, old);
        self.push(old, state, after);
    }

    fn go(&self, state: &mut State, pc: Pc) {
        let thread = &mut state.threads[self.thread];
        thread.pc = pc;
        if pc == Pc::NextAct {
            let act = thread.act + 1;
            state.next_act(self.scenario, self.thread, act);
        }
        self.skip(state);
    }

    pub fn step(&mut self, state: &State) {
        match state.threads[self.thread].pc {
            Pc::Start | Pc::NextAct | Pc::Done => {}
            Pc::Publish | Pc::Raise => self.act(state),
            Pc::Claim | Pc::ClaimStore | Pc::LoadHead | Pc::StoreNext | Pc::Link => {
                self.list(state);
            }
            Pc::TaskLock | Pc::TaskUnlock | Pc::TaskFire => self.wake(state),
            Pc::Parked | Pc::AwakeLock | Pc::AwakeUnlock | Pc::Take => self.begin(state),
            Pc::PollLeases
            | Pc::LowerLeases
            | Pc::TakeEnded
            | Pc::PopEnded
            | Pc::ClearEnded
            | Pc::ReadRequest => self.end_leases(state),
            Pc::PollOrders | Pc::LowerOrders | Pc::ReadOrders => self.poll_orders(state),
            Pc::EarlyPoll | Pc::EarlyClear | Pc::EarlyRead => self.early_poll(state),
            Pc::Pop | Pc::PopBits | Pc::ReadData => self.poll_woken(state),
            _ => self.sleep(state),
        }
    }

    /// `Node::wake_by_ref`, `LeaseWaker::wake_by_ref`, `Shared::wake_by_ref`: writes data, then
    /// `list`, a signal, or both, then `wake`.
    fn act(&mut self, state: &State) {
        let thread = state.threads[self.thread];
        if thread.pc == Pc::Raise {
            let by_lease = thread.why == BY_LEASE;
            let signal = if by_lease { LEASES_RAISED } else { ORDERS_RAISED };
            let lists_next = by_lease && self.has(Flaw::RaiseBeforeList);
            let then = if lists_next { Pc::Claim } else { Pc::TaskLock };
            if self.has(Flaw::RaiseByStore) {
                let mut after = state.clone();
                after.memory.store(self.thread, SIGNALS, signal, self.protocol.raise);
                self.go(&mut after, then);
                return self.push(signal, state, after);
            }
            return self.update(
                state,
                SIGNALS,
                self.protocol.raise,
                |raised| raised | signal,
                |this, state, _| {
                    this.go(state, then);
                },
            );
        }
        let Some(act) = self.scenario.act(self.thread, thread.act) else { return };
        let (at, slot, why, pc) = match act {
            Act::Wake(slot) | Act::Stale(slot) => {
                (DATA[usize::from(slot)], slot, BY_SINK, Pc::Claim)
            }
            Act::End(slot) => {
                let first = self.has(Flaw::RaiseBeforeList);
                (REQUESTS, slot, BY_LEASE, if first { Pc::Raise } else { Pc::Claim })
            }
            Act::SendOrder => (ORDERS, 0, 0, Pc::Raise),
        };
        let bit =
            if matches!(act, Act::Stale(_)) { 0 } else { Scenario::bit(self.thread, thread.act) };
        let mut state_then = state.clone();
        if self.scenario.extra == Extra::Replace && self.thread == 1 && thread.act == 0 {
            state_then.memory.synchronize_with(1, OWNER); // it got its waker from the owner
        }
        // A channel of orders synchronises its sender with its receiver; elsewhere, only the signal
        // does.
        let order = if at == ORDERS { self.channel() } else { Relaxed };
        self.update(
            &state_then,
            at,
            order,
            |data| data | bit,
            |this, state, _| {
                let early = this.has(Flaw::WakeBeforeList) && pc == Pc::Claim;
                let raises = why == BY_LEASE && !this.has(Flaw::RaiseBeforeList);
                let own = &mut state.threads[this.thread];
                (own.slot, own.why) = (slot, why);
                (own.listed, own.woke) = match (early, raises) {
                    (true, _) => (Pc::NextAct, Pc::Claim),
                    (false, true) => (Pc::Raise, Pc::NextAct),
                    (false, false) => (Pc::TaskLock, Pc::NextAct),
                };
                own.pc = if early { Pc::TaskLock } else { pc };
            },
        );
    }

    /// The ordering of the channel of orders.
    fn channel(&self) -> Order {
        if self.scenario.has_leases() { AcqRel } else { Relaxed }
    }

    /// `Node::list`, and the same for the list of ended leases.
    fn list(&mut self, state: &State) {
        let Thread { pc, listed, slot, why, head, .. } = state.threads[self.thread];
        let at = usize::from(slot);
        let (top, bits, next) = match why {
            BY_LEASE => (ENDED_HEAD, ENDED[at], NEXT_ENDED[at]),
            _ => (HEAD, BITS[at], NEXT[at]),
        };
        // The flag of the other list is a boolean.
        let why = why & BY_SINK;
        let done = move |this: &Self, state: &mut State, old: u8, then: Pc| {
            this.go(state, if old & LISTED != 0 { listed } else { then });
        };
        match pc {
            // bits.fetch_or(LISTED | why, AcqRel) & LISTED != 0
            Pc::Claim if self.has(Flaw::ClaimByLoad) => {
                self.load(state, bits, Acquire, |this, state, old| {
                    state.threads[this.thread].head = old;
                    done(this, state, old, Pc::ClaimStore);
                });
            }
            Pc::ClaimStore => {
                let mut after = state.clone();
                after.memory.store(self.thread, bits, head | LISTED | why, Release);
                self.go(&mut after, Pc::LoadHead);
                self.push(head | LISTED | why, state, after);
            }
            Pc::Claim => {
                let keeps_reason = self.has(Flaw::ClaimWithoutReason);
                let change =
                    |old| if keeps_reason && old & LISTED != 0 { old } else { old | LISTED | why };
                self.update(state, bits, self.protocol.claim, change, |this, state, old| {
                    done(this, state, old, Pc::LoadHead);
                });
            }
            // head.load(Relaxed)
            Pc::LoadHead => self.load(state, top, Relaxed, |this, state, head| {
                state.threads[this.thread].head = head;
                this.go(state, Pc::StoreNext);
            }),
            // next.store(head, Relaxed)
            Pc::StoreNext => {
                let mut after = state.clone();
                after.memory.store(self.thread, next, head, Relaxed);
                self.go(&mut after, Pc::Link);
                self.push(head, state, after);
            }
            // head.compare_exchange_weak(head, id, Release, Relaxed) A spurious failure repeats the
            // previous step with the same value.
            _ => {
                if state.memory.last(top) == head || self.has(Flaw::LinkByStore) {
                    self.update(
                        state,
                        top,
                        self.protocol.link,
                        |_| slot,
                        |this, state, _| {
                            this.go(state, listed);
                        },
                    );
                    if self.has(Flaw::LinkByStore) {
                        return;
                    }
                }
                let others = |now: u8| now != head;
                for which in state.memory.readable(self.thread, top) {
                    let mut after = state.clone();
                    let now = after.memory.read(self.thread, top, which, Relaxed);
                    if others(now) {
                        after.threads[self.thread].head = now;
                        self.go(&mut after, Pc::StoreNext);
                        self.push(now, state, after);
                    }
                }
            }
        }
    }

    /// `AtomicWaker::wake`
    fn wake(&mut self, state: &State) {
        let Thread { pc, woke, .. } = state.threads[self.thread];
        match pc {
            Pc::TaskLock => {
                self.update(
                    state,
                    TASK,
                    self.protocol.task,
                    |old| old | WAKING,
                    |this, state, old| {
                        this.go(state, if old == WAITING { Pc::TaskUnlock } else { woke });
                    },
                );
            }
            Pc::TaskUnlock => {
                self.locked(
                    state,
                    0,
                    Release,
                    |old| old & !WAKING,
                    |this, state, waker| {
                        this.go(state, if waker == 1 { Pc::TaskFire } else { woke });
                    },
                );
            }
            _ => self.notify(state, woke),
        }
    }

    /// Notifies the executor, and synchronises with it.
    fn notify(&mut self, state: &State, then: Pc) {
        self.update(state, NOTE, AcqRel, |_| 1, |this, state, _| this.go(state, then));
    }

    /// `Demux::begin`
    fn begin(&mut self, state: &State) {
        match state.threads[OWNER].pc {
            Pc::Parked => self.update(
                state,
                NOTE,
                AcqRel,
                |_| 0,
                |this, state, _| {
                    let owner = &mut state.owner;
                    (owner.left, owner.popped) = (this.scenario.budget, 0);
                    owner.alone += 1;
                    this.go(state, Pc::AwakeLock);
                },
            ),
            // self.shared.task.take()
            Pc::AwakeLock => {
                self.update(
                    state,
                    TASK,
                    self.protocol.task,
                    |old| old | WAKING,
                    |this, state, old| {
                        let next = if old == WAITING { Pc::AwakeUnlock } else { Pc::Take };
                        this.go(state, next);
                    },
                );
            }
            Pc::AwakeUnlock => {
                self.locked(
                    state,
                    0,
                    Release,
                    |old| old & !WAKING,
                    |this, state, _| {
                        this.go(state, Pc::Take);
                    },
                );
            }
            // if self.woken == END { self.woken = self.shared.woken.swap(END, Acquire) }
            _ if state.owner.taken == END || self.has(Flaw::TakeOverTaken) => {
                self.update(
                    state,
                    HEAD,
                    self.protocol.take,
                    |_| END,
                    |this, state, head| {
                        state.owner.taken = head;
                        this.go(state, Pc::PollLeases);
                    },
                );
            }
            _ => {
                let mut after = state.clone();
                self.go(&mut after, Pc::PollLeases);
                self.push(state.owner.taken, state, after);
            }
        }
    }

    /// `Router::has_ended_leases`, `Router::end_leases`, `Ready::pop_ended`
    fn end_leases(&mut self, state: &State) {
        let late = self.has(Flaw::LowerAfterTake);
        let early = self.has(Flaw::ClearEndedBeforeNext);
        let after_read = self.has(Flaw::ClearEndedAfterRead);
        let Thread { pc, slot, .. } = state.threads[OWNER];
        match pc {
            // self.ended != END || self.signals() & LEASES != 0
            Pc::PollLeases => {
                self.load(state, SIGNALS, self.protocol.signals, |this, state, raised| {
                    let first = if late { Pc::TakeEnded } else { Pc::LowerLeases };
                    this.go(
                        state,
                        if raised & LEASES_RAISED != 0 { first } else { Pc::PollOrders },
                    );
                });
            }
            // self.shared.signals.fetch_and(!LEASES, Acquire)
            Pc::LowerLeases => {
                let change = |raised| raised & !LEASES_RAISED;
                self.update(state, SIGNALS, self.protocol.lower, change, |this, state, _| {
                    this.go(state, if late { Pc::PollLeases } else { Pc::TakeEnded });
                });
            }
            // self.shared.ended.swap(END, Acquire)
            Pc::TakeEnded => {
                let then = if late { Pc::LowerLeases } else { Pc::PollLeases };
                let change = |_| END;
                self.update(state, ENDED_HEAD, self.protocol.take, change, |this, state, head| {
                    state.owner.ended = head;
                    this.go(state, then);
                });
            }
            Pc::PopEnded if early && !state.owner.cleared_ended => {
                let at = ENDED[usize::from(state.owner.ended)];
                self.update(
                    state,
                    at,
                    self.protocol.clear,
                    |_| 0,
                    |_, state, _| {
                        state.owner.cleared_ended = true;
                    },
                );
            }
            // node.next_ended.load(Relaxed)
            Pc::PopEnded => {
                let slot = state.owner.ended;
                let at = NEXT_ENDED[usize::from(slot)];
                self.load(state, at, Relaxed, |this, state, next| {
                    state.owner.ended = next;
                    state.owner.cleared_ended = false;
                    state.threads[OWNER].slot = slot;
                    this.go(
                        state,
                        if early || after_read { Pc::ReadRequest } else { Pc::ClearEnded },
                    );
                });
            }
            // node.ended.swap(false, AcqRel)
            Pc::ClearEnded => {
                let at = ENDED[usize::from(slot)];
                self.update(
                    state,
                    at,
                    self.protocol.clear,
                    |_| 0,
                    |this, state, _| {
                        this.go(state, if after_read { Pc::PollLeases } else { Pc::ReadRequest });
                    },
                );
            }
            // Claim::request; there is a bit for each end, which determines the slot
            _ => self.load(state, REQUESTS, Relaxed, |this, state, requests| {
                state.owner.seen.requests |= requests & this.scenario.ends_of(slot);
                this.go(state, if after_read { Pc::ClearEnded } else { Pc::PollLeases });
            }),
        }
    }

    /// Applies the orders that were read. The leases that had ended before must have taken effect.
    fn apply(&self, state: &mut State) -> Result<(), &'static str> {
        let orders = std::mem::take(&mut state.owner.kept);
        let before = self.scenario.requests_before(orders & !state.owner.seen.orders);
        state.owner.seen.orders |= orders;
        if orders != 0 && self.scenario.extra == Extra::Replace {
            state.owner.replaced = true;
        }
        let seen = state.owner.seen.requests;
        if before & !seen == 0 {
            Ok(())
        } else {
            Err("an order is applied before a lease that had ended")
        }
    }

    /// `Demux::poll_orders`
    fn poll_orders(&mut self, state: &State) {
        let late = self.has(Flaw::LowerAfterPoll);
        match state.threads[OWNER].pc {
            // the order that was read is applied, because no lease has ended
            Pc::PollOrders if state.owner.kept != 0 => {
                let mut after = state.clone();
                if let Err(what) = self.apply(&mut after) {
                    return self.steps.push(Err((self.label(state.owner.kept, state), what)));
                }
                self.go(&mut after, Pc::PollLeases);
                self.push(state.owner.kept, state, after);
            }
            // self.signals() & ORDERS
            Pc::PollOrders => {
                self.load(state, SIGNALS, self.protocol.signals, |this, state, raised| {
                    let first = if late { Pc::ReadOrders } else { Pc::LowerOrders };
                    this.go(state, if raised & ORDERS_RAISED != 0 { first } else { Pc::EarlyPoll });
                });
            }
            // self.shared.signals.fetch_and(!ORDERS, Acquire)
            Pc::LowerOrders => self.update(
                state,
                SIGNALS,
                self.protocol.lower,
                |raised| raised & !ORDERS_RAISED,
                |this, state, _| {
                    this.go(state, if late { Pc::PollLeases } else { Pc::ReadOrders });
                },
            ),
            _ => {
                let at_once = self.has(Flaw::ApplyAtOnce);
                let order = self.channel();
                let next = if late { Pc::LowerOrders } else { Pc::PollLeases };
                let next = if at_once { Pc::PollOrders } else { next };
                self.load(state, ORDERS, order, |this, state, orders| {
                    state.owner.kept = orders & !state.owner.seen.orders;
                    this.go(state, next);
                });
            }
        }
    }

    /// Skips steps that this scenario does not have.
    fn skip(&self, state: &mut State) {
        let owner = &mut state.owner;
        let pc = &mut state.threads[OWNER].pc;
        if *pc == Pc::EarlyPoll {
            match self.scenario.extra {
                Extra::TakeFired | Extra::PollUnlessListed if owner.extras > 0 => {
                    owner.extras -= 1;
                    state.threads[OWNER].slot = 0;
                    if self.has(Flaw::ClearFiredAfterPoll) {
                        state.threads[OWNER].pc = Pc::EarlyRead;
                    }
                    return;
                }
                _ => *pc = Pc::Pop,
            }
        }
        if *pc == Pc::Pop && (owner.taken == END || owner.left == 0) {
            *pc = Pc::SleepSignals;
        }
        if *pc == Pc::PollLeases && owner.ended != END {
            *pc = Pc::PopEnded;
        }
    }

    /// Polls of a slot before it is popped: `take_fired`, then the poll; or `is_listed`.
    fn early_poll(&mut self, state: &State) {
        let late = self.has(Flaw::ClearFiredAfterPoll);
        match state.threads[OWNER].pc {
            // bits.load(Relaxed) & LISTED
            Pc::EarlyPoll if self.scenario.extra == Extra::PollUnlessListed => {
                self.load(state, BITS[0], Relaxed, |this, state, bits| {
                    if bits & LISTED != 0 {
                        state.owner.pending = true;
                        this.go(state, Pc::Pop);
                    } else {
                        this.go(state, Pc::EarlyRead);
                    }
                });
            }
            // bits.load(Acquire) & BY_SINK; the model shows that Relaxed is enough
            Pc::EarlyPoll => self.load(state, BITS[0], Relaxed, |this, state, bits| {
                let then = if late { Pc::Pop } else { Pc::EarlyRead };
                this.go(state, if bits & BY_SINK != 0 { Pc::EarlyClear } else { then });
            }),
            // bits.fetch_and(!BY_SINK, AcqRel)
            Pc::EarlyClear => {
                let change = |bits| bits & !BY_SINK;
                self.update(state, BITS[0], self.protocol.take_fired, change, |this, state, _| {
                    this.go(state, if late { Pc::Pop } else { Pc::EarlyRead });
                });
            }
            _ => self.load(state, DATA[0], Relaxed, |this, state, data| {
                state.owner.seen.data[0] |= data;
                if late {
                    state.threads[OWNER].pc = Pc::EarlyPoll;
                } else {
                    this.go(state, Pc::Pop);
                }
            }),
        }
    }

    /// `Router::poll_woken`: `Ready::pop`, then polls the sink.
    fn poll_woken(&mut self, state: &State) {
        let early = self.has(Flaw::ClearBeforeNext);
        let Thread { pc, slot, .. } = state.threads[OWNER];
        let slot = if pc == Pc::Pop { state.owner.taken } else { slot };
        let at = usize::from(slot);
        let polling = Pc::ReadData;
        match state.threads[OWNER].pc {
            Pc::Pop if early && !state.owner.cleared => {
                self.clear(state, slot, |_, state| state.owner.cleared = true);
            }
            // node.next.load(Relaxed)
            Pc::Pop => self.load(state, NEXT[at], Relaxed, |this, state, next| {
                state.owner.taken = next;
                state.owner.cleared = false;
                let own = &mut state.threads[OWNER];
                own.slot = slot;
                own.pc =
                    if early || this.has(Flaw::ClearAfterPoll) { polling } else { Pc::PopBits };
                if early {
                    this.unless_by_sink(state);
                }
            }),
            // node.bits.swap(0, AcqRel)
            Pc::PopBits => {
                let after_poll = self.has(Flaw::ClearAfterPoll);
                self.clear(state, slot, |this, state| {
                    if after_poll {
                        this.go(state, Pc::Pop);
                    } else {
                        this.go(state, polling);
                        this.unless_by_sink(state);
                    }
                });
            }
            _ => self.load(state, DATA[at], Relaxed, |this, state, data| {
                state.owner.seen.data[at] |= data;
                this.polled(state, slot);
            }),
        }
    }

    fn clear(&mut self, state: &State, slot: u8, then: impl FnOnce(&Self, &mut State)) {
        if state.owner.popped & 1 << slot != 0 {
            let label = self.label(state.memory.last(BITS[usize::from(slot)]), state);
            return self.steps.push(Err((label, "a slot is popped twice in one turn")));
        }
        let order = self.protocol.clear;
        self.update(
            state,
            BITS[usize::from(slot)],
            order,
            |_| 0,
            |this, state, bits| {
                let owner = &mut state.owner;
                owner.by_sink = bits & BY_SINK != 0;
                owner.popped |= 1 << slot;
                owner.left -= 1;
                owner.pending &= slot != 0;
                then(this, state);
            },
        );
    }

    /// A sink that has not woken is not polled.
    fn unless_by_sink(&self, state: &mut State) {
        let knows = state.owner.by_sink || self.has(Flaw::ClearAfterPoll);
        if state.threads[OWNER].pc == Pc::ReadData && !knows {
            let slot = state.threads[OWNER].slot;
            self.polled(state, slot);
        }
    }

    fn polled(&self, state: &mut State, slot: u8) {
        let (owner, own) = (&mut state.owner, &mut state.threads[OWNER]);
        if self.has(Flaw::ClearAfterPoll) {
            own.pc = Pc::PopBits;
            return;
        }
        if slot == 0 && owner.extras > 0 {
            match self.scenario.extra {
                Extra::Relist => {
                    owner.extras -= 1;
                    owner.pending = true;
                    (own.pc, own.listed, own.why) = (Pc::Claim, Pc::Pop, 0);
                    return;
                }
                Extra::WakesItself => {
                    owner.extras -= 1;
                    state.memory.update(OWNER, DATA[0], Relaxed, |data| data | OWN_DATA);
                    (own.pc, own.listed, own.woke) = (Pc::Claim, Pc::TaskLock, Pc::Pop);
                    own.why = BY_SINK;
                    return;
                }
                _ => {}
            }
        }
        self.go(state, Pc::Pop);
    }

    /// `Demux::sleep` and `Ready::sleep`
    fn sleep(&mut self, state: &State) {
        let ignores = self.has(Flaw::SleepOnTaken);
        let park = |this: &Self, state: &mut State| this.go(state, Pc::Parked);
        match state.threads[OWNER].pc {
            // has_orders, has_work: if work is left, the task wakes itself
            Pc::SleepSignals => {
                self.load(state, SIGNALS, self.protocol.signals, move |this, state, raised| {
                    let more = raised != 0 || state.owner.taken != END && !ignores;
                    then_after_wake(state, Pc::Parked);
                    this.go(state, if more { Pc::RegisterFire } else { Pc::SleepHead });
                });
            }
            // has_work: if `any()`, the task wakes itself
            Pc::SleepHead => self.load(state, HEAD, self.protocol.any, |this, state, head| {
                this.go(state, if head == END { Pc::Register } else { Pc::RegisterFire });
            }),
            // self.shared.task.register(task)
            Pc::Register if state.memory.last(TASK) == WAITING => {
                let order = self.protocol.task;
                let mut locked = state.clone();
                locked.memory.update(OWNER, TASK, order, |_| REGISTERING);
                let Some(old) = locked.memory.access(OWNER, CELL, 1) else {
                    let label = self.label(0, state);
                    return self.steps.push(Err((label, "a data race on the waker of the task")));
                };
                self.go(&mut locked, Pc::Registered);
                self.push(old, state, locked);
            }
            Pc::Register => {
                // A wake is in progress, which may be too early, so the task wakes itself.
                let mut after = state.clone();
                let value = after.memory.read_last(OWNER, TASK, self.protocol.task);
                then_after_wake(&mut after, self.after_register());
                self.go(&mut after, Pc::RegisterFire);
                self.push(value, state, after);
            }
            Pc::Registered if state.memory.last(TASK) == REGISTERING => {
                let then = self.after_register();
                self.update(
                    state,
                    TASK,
                    self.protocol.task,
                    |_| WAITING,
                    |this, state, _| {
                        this.go(state, then);
                    },
                );
            }
            Pc::Registered => {
                let mut after = state.clone();
                let value = after.memory.read_last(OWNER, TASK, self.protocol.task);
                self.go(&mut after, Pc::RegisterLate);
                self.push(value, state, after);
            }
            Pc::RegisterLate => {
                let then = self.after_register();
                self.locked(
                    state,
                    0,
                    self.protocol.task,
                    |_| WAITING,
                    |this, state, _| {
                        then_after_wake(state, then);
                        this.go(state, Pc::RegisterFire);
                    },
                );
            }
            Pc::RegisterFire => self.notify(state, state.threads[OWNER].woke),
            // if self.any() || self.ended != END || self.signals() != 0 { self.shared.task.wake() }
            Pc::CheckHead => self.load(state, HEAD, self.protocol.any, |this, state, head| {
                then_after_wake(state, Pc::Parked);
                let next =
                    if this.has(Flaw::CheckHeadOnly) { Pc::Parked } else { Pc::CheckSignals };
                this.go(state, if head == END { next } else { Pc::TaskLock });
            }),
            _ => self.load(state, SIGNALS, self.protocol.signals, |this, state, raised| {
                then_after_wake(state, Pc::Parked);
                if raised != 0 {
                    this.go(state, Pc::TaskLock);
                } else {
                    park(this, state);
                }
            }),
        }
    }

    fn after_register(&self) -> Pc {
        match self.protocol.flaw {
            Some(Flaw::RegisterAfterCheck) => Pc::Parked,
            Some(Flaw::CheckSignalsOnly) => Pc::CheckSignals,
            _ => Pc::CheckHead,
        }
    }
}

/// Sets the step of the owner after it has woken the task.
fn then_after_wake(state: &mut State, then: Pc) {
    state.threads[OWNER].woke = then;
}
