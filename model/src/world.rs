//! Everything outside the demux.

use std::sync::{Arc, Mutex, Weak};
use std::task::Waker;

use sink_test::{CoopBudget, Op, SinkHandle, StreamHandle};
use stream_demux::{Attach, Lease};

use crate::event::{Command, Cue, Event, Id, Knob, OrderKind, Place, Request, Tape, Terms};
use crate::reference::Signals;
use crate::script::OPS;
use crate::watched::{Item, Key, Made, Offer, Pool, SentOrder, WatchedSink};
use crate::{ITEM_KEYS, KEYS, MAX_CROWD, MAX_ITEMS, MAX_SINKS, lock, scripted_sink};

pub struct World {
    pub tape: Tape,
    pub live: Arc<()>,
    pub input: Option<StreamHandle<Item>>,
    pub orders: StreamHandle<SentOrder>,
    pub sinks: Vec<SinkHandle<Item>>,
    pub terms: Vec<Terms>,
    /// The attachments that each lease holds. In the run of the crate, also its leases.
    pub leases: [(Vec<Id>, Option<Lease>); 4],
    /// What ended leases request of each attachment.
    pub requests: Vec<Request>,
    /// Set in the run of the reference.
    pub signals: Option<Arc<Signals>>,
    pub seq: u32,
    pub input_ended: bool,
    pub orders_ended: bool,
    pub in_hook: Option<Command>,
    /// New sinks are not ready.
    pub parks: bool,
    /// The cooperative budget of the task. Then all budgets: also those of single sinks.
    pub coop: Option<CoopBudget>,
    pub budgets: Vec<CoopBudget>,
    pub pool: Arc<Mutex<Pool>>,
    /// Whether the script is over. Planned commands are then no longer executed.
    pub over: bool,
    pub me: Weak<Mutex<World>>,
}

impl World {
    /// Executes a command inside a poll.
    pub fn act(&mut self, command: Command) {
        if !self.over {
            self.tape.push(Event::Do(command));
            self.exec(command);
        }
    }

    pub fn exec(&mut self, command: Command) {
        match command {
            Command::Items { key, count, stride } => self.send_items(key, count, stride),
            Command::Attach { terms, count, stride, leases, pooled } => {
                let most = if count == 1 { MAX_SINKS } else { MAX_CROWD };
                for n in 0..count {
                    if self.sinks.len() < most && !self.orders_ended {
                        let key = terms.key + stride * n;
                        let (id, offer) = self.make(Terms { key, ..terms }, leases, pooled);
                        self.send(OrderKind::Attach(id), Some(offer));
                    }
                }
            }
            Command::Order(kind) => self.send(kind, None),
            Command::Input(Knob::End) if self.input_ended => {}
            Command::Input(knob) => {
                self.input_ended |= knob == Knob::End;
                self.input.iter().for_each(|input| turn(input, knob));
            }
            Command::Orders(knob) if !self.orders_ended => {
                self.orders_ended = knob == Knob::End;
                turn(&self.orders, knob);
            }
            Command::Orders(_) => {}
            Command::Lease(lease, request, reconnects) => {
                let held = self.end_lease(lease, request);
                if let Some(&old) = held.last().filter(|_| reconnects) {
                    let (key, keep_existing) = (self.terms[old].key, lease == 3);
                    let terms = Terms { key, keep_existing, ..Terms::default() };
                    let leases = [Some(lease), None];
                    let (count, stride, pooled) = (1, 0, false);
                    self.exec(Command::Attach { terms, count, stride, leases, pooled });
                }
            }
            Command::Cue(sink, cue) => {
                let id = self.newest(sink);
                id.into_iter().for_each(|id| self.cue(id, cue));
            }
            Command::Receive(places) => {
                let woken = lock(&self.pool).release(places);
                woken.into_iter().for_each(Waker::wake);
            }
            Command::Leave(units) => self.coop.iter().for_each(|budget| budget.leave(units)),
        }
    }

    fn send_items(&mut self, key: u16, count: u16, stride: u16) {
        // Those of a burst are the keys of a crowd.
        let crowd = u16::try_from(self.sinks.len()).unwrap_or(u16::MAX);
        let keys = if stride > 0 { crowd.max(ITEM_KEYS) } else { ITEM_KEYS };
        let mut items = Vec::new();
        for n in 0..count {
            if self.seq < MAX_ITEMS && !self.input_ended {
                let (tape, live) = (self.tape.clone(), Arc::clone(&self.live));
                items.push(Item { seq: self.seq, key: (key + stride * n) % keys, tape, live });
                self.seq += 1;
            }
        }
        self.input.iter().for_each(|input| input.extend(items.drain(..)));
    }

    fn send(&mut self, kind: OrderKind, offer: Option<Offer>) {
        if !self.orders_ended {
            self.tape.push(Event::Sent(kind));
            self.orders.push(SentOrder { kind, offer });
        }
    }

    /// Ends a lease. Returns the attachments that it held.
    fn end_lease(&mut self, lease: usize, request: Request) -> Vec<Id> {
        let (held, of_crate) = std::mem::take(&mut self.leases[lease]);
        if !held.is_empty() {
            self.tape.push(Event::LeaseEnded(held.clone(), request));
        }
        match (of_crate, request) {
            (Some(lease), Request::Stay) => lease.disarm(),
            (Some(lease), Request::Detach) => lease.detach(),
            (lease, _) => drop(lease),
        }
        for &id in &held {
            if request > Request::Stay {
                self.requests[id] =
                    if request > self.requests[id] { request } else { self.requests[id] };
                self.signals.iter().for_each(|signals| signals.lease_ended(id, request));
            }
        }
        held
    }

    /// Creates what is attached for an item that matches no key: an attachment under the key of the
    /// item, unless no attachment can have this key. For some items, returns `None` or an
    /// attachment that takes no key.
    pub fn make_on_demand(&mut self, seq: u32, key: u16, variety: u8) -> Option<(Id, Offer)> {
        let which = if variety < 2 { 0 } else { seq % 8 };
        if which == 6 || key > KEYS || self.sinks.len() >= MAX_SINKS {
            return None;
        }
        let key = if which == 1 { key + 1 } else { key } % KEYS;
        let limit = [None, None, Some(0), Some(1), Some(1), None, None, None][which as usize];
        let lease = (variety == 3).then_some(seq as usize % 4);
        let terms = Terms { key, limit, catch_all: which == 1, ..Terms::default() };
        Some(self.make(terms, [lease, None], false))
    }

    fn make(&mut self, terms: Terms, leases: [Option<usize>; 2], pooled: bool) -> (Id, Offer) {
        let id = self.sinks.len();
        let (sink, handle) = scripted_sink(id);
        handle.lenient(); // the monitor knows better when it may be polled again
        if self.parks {
            handle.park();
        }
        self.coop.iter().for_each(|budget| handle.share(budget));
        self.sinks.push(handle);
        self.terms.push(terms);
        self.requests.push(Request::Stay);
        self.tape.push(Event::Born(id, terms));
        let pool = pooled.then(|| Arc::clone(&self.pool));
        let made =
            Made { id, terms, sink: WatchedSink { id, sink, pool, tape: self.tape.clone() } };
        let leases = leases.into_iter().flatten();
        leases.clone().for_each(|lease| self.leases[lease].0.push(id));
        if self.signals.is_some() {
            return (id, Offer::Plain(made));
        }
        let attach = leases.fold(attach_of(made), |attach, lease| {
            attach.leased(self.leases[lease].1.get_or_insert_default())
        });
        (id, Offer::Crate(attach))
    }

    /// Returns a sink, counted from the newest, so that a script can refer to the one that it has
    /// just created.
    fn newest(&self, sink: usize) -> Option<Id> {
        let back = sink.checked_rem(self.sinks.len())?;
        Some(self.sinks.len() - 1 - back)
    }

    fn cue(&mut self, id: Id, cue: Cue) {
        let sink = &self.sinks[id];
        match cue {
            Cue::Park => sink.park(),
            Cue::Open => sink.open(),
            Cue::Allow(sends) => sink.allow(sends),
            Cue::Hold(op) => sink.hold(op),
            Cue::Release(op) => sink.release(op),
            Cue::Fail(op) => sink.fail(op),
            Cue::FailQuietly(op) => sink.fail_quietly(op),
            Cue::Yield(op, calls) => sink.stutter(op, calls),
            Cue::Budget(operations, defers) => {
                let new = if defers { CoopBudget::deferred } else { CoopBudget::new };
                self.budgets.push(new(operations));
                self.budgets.last().into_iter().for_each(|budget| sink.share(budget));
            }
            Cue::Wake => drop(sink.wake()),
        }
    }

    /// Records that the task was polled or, if `parked`, that nothing wakes it. Both may fire the
    /// wakers of operations that cooperative budgets have denied.
    pub fn fire_deferred(&mut self, parked: bool) {
        for budget in &self.budgets {
            if parked {
                budget.fire_deferred()
            } else {
                budget.count_poll()
            };
        }
    }

    /// Ends the script: opens all sinks, lifts all budgets, and forgets what was planned.
    pub fn wind_up(&mut self) {
        (self.over, self.in_hook, self.parks) = (true, None, false);
        for sink in &self.sinks {
            OPS.into_iter().for_each(|op| sink.during(op, || {}));
            for op in [Op::Ready, Op::Flush, Op::Close] {
                sink.stutter(op, 0);
                sink.release(op);
            }
        }
        self.budgets.iter().for_each(CoopBudget::lift);
        self.exec(Command::Receive(1_000_000));
        self.exec(Command::Input(Knob::End));
    }

    /// Plans a command for the next call of this kind.
    pub fn plan(&mut self, place: Place, command: Command) {
        let me = self.me.clone();
        let action = move || {
            me.upgrade().into_iter().for_each(|world| lock(&world).act(command));
        };
        match place {
            Place::Input => self.input.iter().for_each(|input| input.action(action.clone())),
            Place::Orders => self.orders.action(action),
            Place::Hook => self.in_hook = Some(command),
            Place::Sink(sink, op) => {
                let id = self.newest(sink);
                id.into_iter().for_each(|id| self.sinks[id].during(op, action.clone()));
            }
        }
    }
}

fn turn<T>(stream: &StreamHandle<T>, knob: Knob) {
    match knob {
        Knob::End => stream.end(),
        Knob::Yield => stream.stutter(),
        Knob::Wake => drop(stream.wake()),
    }
}

/// Returns the order of the crate.
fn attach_of(Made { id, terms, sink }: Made) -> Attach<Key, WatchedSink> {
    let mut attach = Attach::new(Key(terms.key), sink).tag(id as u64);
    attach = terms.buffer.into_iter().fold(attach, Attach::buffer);
    attach = terms.overflow.into_iter().fold(attach, Attach::overflow);
    attach = terms.limit.into_iter().fold(attach, Attach::limit);
    attach = terms.stall_timeout.into_iter().fold(attach, Attach::stall_timeout);
    attach = terms.idle_timeout.into_iter().fold(attach, Attach::idle_timeout);
    attach = if terms.keep_existing { attach.keep_existing() } else { attach };
    if terms.catch_all { attach.catch_all() } else { attach }
}
