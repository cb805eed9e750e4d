//! Creates the demux that a script is played on, and the world around it.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;

use futures::future::FusedFuture;
use stream_demux::{Demux, DemuxStreamExt, Totals};

use super::super::{CoopBudget, scripted_stream};
use super::KEYS;
use super::event::{Event, Id, Tape};
use super::script::{Settings, Wakes};
use super::watched::{Item, Key, Recorder, SentOrder, WatchedStream, attach_on_demand, key_of};
use super::world::World;

/// A demux, with or without a closure that attaches on demand.
pub(super) type Subject = Pin<Box<dyn Look<Output = Totals>>>;

/// What the getters return between two polls.
pub(super) struct Seen {
    pub(super) totals: Totals,
    pub(super) len: usize,
    pub(super) draining: usize,
    /// The attachments that are receiving.
    pub(super) recipients: Vec<Id>,
    pub(super) keys: [bool; KEYS as usize],
    pub(super) blocked_on: Option<Id>,
    pub(super) terminated: bool,
}

pub(super) trait Look: Future {
    fn look(&self) -> Seen;
}

impl<F> Look for Demux<WatchedStream<Item>, F, WatchedStream<SentOrder>, Recorder>
where
    Self: FusedFuture,
{
    fn look(&self) -> Seen {
        let id = |tag| usize::try_from(tag).unwrap_or(usize::MAX);
        Seen {
            totals: self.totals(),
            len: self.len(),
            draining: self.draining(),
            recipients: self.recipients().map(|to| id(to.tag)).collect(),
            keys: std::array::from_fn(|key| self.contains_key(&Key(u8::try_from(key).unwrap()))),
            blocked_on: self.blocked_on().map(|on| id(on.tag)),
            terminated: self.is_terminated(),
        }
    }
}

pub(super) fn setup(settings: Settings, tape: &Tape) -> (Subject, Arc<Mutex<World>>) {
    let (input, input_handle) = scripted_stream("input");
    let (orders, orders_handle) = scripted_stream("orders");
    let budget = settings.coop.map(|coop| {
        let new = match coop.wakes {
            Wakes::AtOnce => CoopBudget::new,
            Wakes::AfterPoll | Wakes::WhenParked => CoopBudget::deferred,
        };
        let budget = new(coop.operations);
        if coop.streams {
            input_handle.share(&budget);
            orders_handle.share(&budget);
        }
        (budget, coop.wakes)
    });
    let world = Arc::new_cyclic(|me| {
        Mutex::new(World {
            tape: tape.clone(),
            live: Arc::default(),
            input: Some(input_handle),
            orders: orders_handle.clone(),
            sinks: Vec::new(),
            keys: Vec::new(),
            leases: Default::default(),
            seq: 0,
            input_ended: false,
            orders_ended: false,
            in_hook: None,
            budget,
            sink_budgets: Vec::new(),
            over: false,
            me: me.clone(),
        })
    });
    let input = WatchedStream {
        stream: input,
        asks: None,
        event: Box::new(|answer| match answer {
            Poll::Ready(Some(Item { seq, key, .. })) => Event::Read(*seq, *key),
            Poll::Ready(None) => Event::InputEnd,
            Poll::Pending => Event::InputPending,
        }),
        tape: tape.clone(),
    };
    let orders = WatchedStream {
        stream: orders,
        asks: Some(Event::AskOrders),
        event: Box::new(move |answer| match answer {
            Poll::Ready(Some(order)) => Event::Order(order.kind),
            Poll::Ready(None) => Event::OrdersEnd,
            Poll::Pending => Event::OrdersPending { yields: !orders_handle.is_waiting() },
        }),
        tape: tape.clone(),
    };
    let recorder = Recorder {
        tape: tape.clone(),
        world: Arc::downgrade(&world),
        refuses: settings.refuses,
        supersedes: settings.supersedes,
    };
    let mut demux = input
        .demux_by(key_of as fn(&Item) -> Key, orders)
        .hooks(recorder)
        .budget(settings.budget)
        .buffer(settings.buffer)
        .overflow(settings.overflow)
        .flush_every(settings.flush_every)
        .stall_timeout(settings.stall_timeout)
        .idle_timeout(settings.idle_timeout)
        .linger(settings.linger);
    if settings.multicast {
        demux = demux.multicast();
    }
    if settings.balance {
        demux = demux.balance();
    }
    if settings.on_demand == 0 {
        return (Box::pin(demux), world);
    }
    let attach = attach_on_demand(Arc::downgrade(&world), tape.clone(), settings.on_demand);
    (Box::pin(demux.or_attach_with(attach)), world)
}
