//! Everything outside the demux.

use std::sync::{Arc, Mutex, Weak};

use stream_demux::{Attach, Lease, Order};

use super::super::{CoopBudget, Op, SinkHandle, StreamHandle, lock, scripted_sink};
use super::event::{Command, Cue, Event, Id, OrderKind, Place, Request, Tape, Terms};
use super::script::Wakes;
use super::watched::{Item, Key, SentOrder, WatchedSink};
use super::{KEYS, MAX_ITEMS, MAX_SINKS};

/// Everything outside the demux.
pub(super) struct World {
    pub(super) tape: Tape,
    pub(super) live: Arc<()>,
    pub(super) input: Option<StreamHandle<Item>>,
    pub(super) orders: StreamHandle<SentOrder>,
    pub(super) sinks: Vec<SinkHandle<Item>>,
    pub(super) keys: Vec<u8>,
    pub(super) leases: [(Option<Lease>, Vec<Id>); 4],
    pub(super) seq: u32,
    pub(super) input_ended: bool,
    pub(super) orders_ended: bool,
    pub(super) in_hook: Option<Command>,
    /// The cooperative budget of the task.
    pub(super) budget: Option<(CoopBudget, Wakes)>,
    /// The cooperative budgets that sinks have for themselves.
    pub(super) sink_budgets: Vec<CoopBudget>,
    /// Whether the script is over. Planned commands are then no longer executed.
    pub(super) over: bool,
    pub(super) me: Weak<Mutex<World>>,
}

impl World {
    /// Executes a command inside a poll.
    pub(super) fn act(&mut self, cmd: Command) {
        if !self.over {
            self.tape.push(Event::Do(cmd));
            self.exec(cmd);
        }
    }

    pub(super) fn exec(&mut self, cmd: Command) {
        match cmd {
            Command::Items { key, count } => {
                for _ in 0..count {
                    if self.seq >= MAX_ITEMS || self.input_ended {
                        return;
                    }
                    let (tape, live) = (self.tape.clone(), Arc::clone(&self.live));
                    let item = Item { seq: self.seq, key, tape, live };
                    self.seq += 1;
                    if let Some(input) = &self.input {
                        input.push(item);
                    }
                }
            }
            Command::Attach { terms, leases, cue } => self.attach(terms, leases, cue),
            Command::Order(kind) => {
                let order = match kind {
                    OrderKind::Attach(_) => return,
                    OrderKind::Detach(key) => Order::Detach(Key(key)),
                    OrderKind::Evict(key) => Order::Evict(Key(key)),
                    OrderKind::Finish => Order::Finish,
                    OrderKind::Tick => Order::Tick,
                };
                self.send(kind, order);
            }
            Command::EndOrders if !self.orders_ended => {
                self.tape.push(Event::OrdersWoken);
                self.orders_ended = true;
                self.orders.end();
            }
            Command::EndInput if !self.input_ended => {
                self.input_ended = true;
                if let Some(input) = &self.input {
                    input.end();
                }
            }
            Command::YieldOrders if !self.orders_ended => {
                self.tape.push(Event::OrdersWoken);
                self.orders.stutter();
            }
            Command::YieldInput => {
                if let Some(input) = &self.input {
                    input.stutter();
                }
            }
            Command::WakeOrders => {
                self.tape.push(Event::OrdersWoken);
                self.orders.wake();
            }
            Command::WakeInput => drop(self.input.as_ref().map(StreamHandle::wake)),
            Command::Lease(lease, request) => drop(self.end_lease(lease, request)),
            Command::Reconnect(lease, request) => {
                let held = self.end_lease(lease, request);
                if let Some(&old) = held.last() {
                    let terms = Terms { keep_existing: lease == 3, ..Terms::of(self.keys[old]) };
                    self.attach(terms, [Some(lease), None], None);
                }
            }
            Command::Cue(sink, cue) => {
                if !self.sinks.is_empty() {
                    // Sinks are counted from the newest, so that a script can refer to the one it
                    // has just created.
                    let sink = self.sinks.len() - 1 - sink % self.sinks.len();
                    self.cue(sink, cue);
                }
            }
            Command::EndOrders | Command::EndInput | Command::YieldOrders | Command::Nothing => {}
        }
    }

    /// Ends a lease. Returns the attachments that it held.
    fn end_lease(&mut self, lease: usize, request: Option<Request>) -> Vec<Id> {
        let (lease, held) = std::mem::take(&mut self.leases[lease % 4]);
        let Some(lease) = lease else { return Vec::new() };
        self.tape.push(Event::LeaseEnded(held.clone(), request.unwrap_or(Request::Stay)));
        match request {
            None => lease.disarm(),
            Some(Request::Detach) => lease.detach(),
            Some(_) => drop(lease),
        }
        held
    }

    fn attach(&mut self, terms: Terms, leases: [Option<usize>; 2], cue: Option<Cue>) {
        if self.orders_ended {
            return;
        }
        if let Some((id, attach)) = self.make(terms, leases, cue) {
            self.send(OrderKind::Attach(id), attach.into());
        }
    }

    /// Creates what is attached for an item that matches no key: an attachment under the key of the
    /// item, unless no attachment can have this key. For some items, returns `None` or an
    /// attachment that takes no key.
    pub(super) fn make_on_demand(
        &mut self,
        seq: u32,
        key: u8,
        variety: u8,
    ) -> Option<(Id, Attach<Key, WatchedSink>)> {
        let which = if variety < 2 { 0 } else { seq % 8 };
        let key = match key {
            KEYS => 0,
            key if key > KEYS => return None,
            key if which == 1 => (key + 1) % KEYS,
            key => key,
        };
        let limit = match which {
            2 => Some(0),
            3 | 4 => Some(1),
            _ => None,
        };
        let terms = Terms { limit, catch_all: which == 1, ..Terms::of(key) };
        let lease = (variety == 3).then_some(seq as usize % 4);
        let cue = if variety == 3 && which == 5 { Some(Cue::Allow(1)) } else { None };
        if which == 6 { None } else { self.make(terms, [lease, None], cue) }
    }

    fn make(
        &mut self,
        terms: Terms,
        leases: [Option<usize>; 2],
        cue: Option<Cue>,
    ) -> Option<(Id, Attach<Key, WatchedSink>)> {
        if self.sinks.len() == MAX_SINKS {
            return None;
        }
        let id = self.sinks.len();
        let (sink, handle) = scripted_sink(id);
        handle.lenient(); // the model knows better when it may be polled again
        let sink = WatchedSink { id, sink, handle: handle.clone(), tape: self.tape.clone() };
        let key = terms.key;
        let mut attach = attach_on(terms, sink).tag(id as u64);
        for lease in leases.into_iter().flatten() {
            let (lease, held) = &mut self.leases[lease % 4];
            attach = attach.leased(lease.get_or_insert_with(Lease::new));
            held.push(id);
        }
        if let Some((budget, _)) = &self.budget {
            handle.share(budget);
        }
        self.sinks.push(handle);
        self.keys.push(key);
        self.tape.push(Event::Born(id, terms));
        if let Some(cue) = cue.filter(|_| !self.over) {
            self.cue(id, cue);
        }
        Some((id, attach))
    }

    fn send(&mut self, kind: OrderKind, order: Order<Key, WatchedSink>) {
        if !self.orders_ended {
            self.tape.push(Event::Sent(kind));
            self.tape.push(Event::OrdersWoken);
            self.orders.push(SentOrder { kind, order });
        }
    }

    pub(super) fn cue(&mut self, id: Id, cue: Cue) {
        let sink = &self.sinks[id];
        let waiting = [Op::Ready, Op::Flush, Op::Close].map(|op| sink.is_waiting(op));
        // The event is recorded before the waker fires.
        let event = if sink.is_dropped() { Event::Stale } else { Event::Woken(id) };
        let wakes = match cue {
            Cue::Park
            | Cue::Hold(_)
            | Cue::FailQuietly(_)
            | Cue::Yield(..)
            | Cue::Budget { .. }
            | Cue::Release(Op::Send)
            | Cue::Fail(Op::Send) => false,
            Cue::Open | Cue::Allow(_) | Cue::Release(Op::Ready) | Cue::Fail(Op::Ready) => {
                waiting[0]
            }
            Cue::Release(Op::Flush) | Cue::Fail(Op::Flush) => waiting[1],
            Cue::Release(Op::Close) | Cue::Fail(Op::Close) => waiting[2],
            Cue::Wake => sink.waker().is_some(),
        };
        if wakes {
            self.tape.push(event);
        }
        match cue {
            Cue::Park => sink.park(),
            Cue::Open => sink.open(),
            Cue::Allow(sends) => sink.allow(sends),
            Cue::Hold(op) => sink.hold(op),
            Cue::Release(op) => sink.release(op),
            Cue::Fail(op) => sink.fail(op),
            Cue::FailQuietly(op) => sink.fail_quietly(op),
            Cue::Yield(op, calls) => sink.stutter(op, calls),
            Cue::Budget { operations, defers } => {
                let new = if defers { CoopBudget::deferred } else { CoopBudget::new };
                let budget = new(operations);
                sink.share(&budget);
                self.sink_budgets.push(budget);
            }
            Cue::Wake => drop(sink.wake()),
        }
    }

    /// Fires the wakers of operations that cooperative budgets have denied, after a poll or, if
    /// `parked`, when the task is not woken otherwise.
    pub(super) fn fire_deferred(&mut self, parked: bool) {
        let task_budget =
            self.budget.iter().filter(|(_, wakes)| parked || *wakes == Wakes::AfterPoll);
        let own_budgets = self.sink_budgets.iter().filter(|_| parked);
        let budgets: Vec<_> = task_budget.map(|(budget, _)| budget).chain(own_budgets).collect();
        if budgets.iter().all(|budget| budget.deferred_wakers() == 0) {
            return;
        }
        let before: Vec<_> = self.sinks.iter().map(SinkHandle::deferred_wakers).collect();
        let orders_before = self.orders.deferred_wakers();
        for budget in budgets {
            budget.fire_deferred();
        }
        for (id, (sink, before)) in self.sinks.iter().zip(before).enumerate() {
            if sink.deferred_wakers() < before {
                self.tape.push(if sink.is_dropped() { Event::Stale } else { Event::Woken(id) });
            }
        }
        if self.orders.deferred_wakers() < orders_before {
            self.tape.push(Event::OrdersWoken);
        }
    }

    /// Removes all cooperative budgets: from now on no operation is denied.
    pub(super) fn lift_budgets(&mut self) {
        self.fire_deferred(true);
        let task_budget = self.budget.iter().map(|(budget, _)| budget);
        task_budget.chain(&self.sink_budgets).for_each(CoopBudget::lift);
    }

    pub(super) fn plan(&mut self, place: Place, cmd: Command) {
        let me = self.me.clone();
        let action = move || {
            if let Some(world) = me.upgrade() {
                lock(&world).act(cmd);
            }
        };
        match place {
            Place::Input => {
                if let Some(input) = &self.input {
                    input.action(action);
                }
            }
            Place::Orders => {
                self.tape.push(Event::OrdersWoken);
                self.orders.action(action);
            }
            Place::Hook => self.in_hook = Some(cmd),
            Place::Sink(sink, op) => {
                if !self.sinks.is_empty() {
                    let sink = self.sinks.len() - 1 - sink % self.sinks.len();
                    self.sinks[sink].during(op, action);
                }
            }
        }
    }
}

/// Returns an attachment with these terms.
fn attach_on(terms: Terms, sink: WatchedSink) -> Attach<Key, WatchedSink> {
    let Terms {
        key,
        buffer,
        overflow,
        limit,
        keep_existing,
        catch_all,
        stall_timeout,
        idle_timeout,
    } = terms;
    let mut attach = Attach::new(Key(key), sink);
    if let Some(buffer) = buffer {
        attach = attach.buffer(buffer);
    }
    if let Some(overflow) = overflow {
        attach = attach.overflow(overflow);
    }
    if let Some(limit) = limit {
        attach = attach.limit(limit);
    }
    if let Some(ticks) = stall_timeout {
        attach = attach.stall_timeout(ticks);
    }
    if let Some(ticks) = idle_timeout {
        attach = attach.idle_timeout(ticks);
    }
    if keep_existing {
        attach = attach.keep_existing();
    }
    if catch_all { attach.catch_all() } else { attach }
}
