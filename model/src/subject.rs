//! What a script is played on: the demux of the crate or the reference, in a world of its own.

use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::Poll;
use std::time::Duration;

use futures::future::FusedFuture;
use sink_test::{CoopBudget, scripted_stream};
use stream_demux::{Demux, DemuxStreamExt, Order, Recipient, Totals};

use crate::event::{Event, Seen, Tape};
use crate::reference::{Reference, Signals};
use crate::script::{Hashing, Settings};
use crate::watched::{Item, Key, Offer, Pool, Recorder, SentOrder, WatchedSink, WatchedStream};
use crate::world::World;

type Watched<F> = Demux<WatchedStream<Item>, F, WatchedStream<SentOrder>, Recorder, Hashing>;
pub type Subject = Pin<Box<dyn Look<Output = Totals>>>;

pub fn abort() -> Order<Key, WatchedSink> {
    Order::Abort
}

/// What can be done with a demux between two polls. The getters return the same whatever is played.
pub trait Look: Future {
    /// Returns what is visible. Keys below `keys` are looked up. If it is 0, the lists are empty.
    fn look(&self, keys: u16) -> Seen;
    fn elapse(self: Pin<&mut Self>, time: Duration);
}

impl<F> Look for Watched<F>
where
    Self: FusedFuture,
{
    fn look(&self, keys: u16) -> Seen {
        let id = |to: Recipient<'_, Key>| usize::try_from(to.tag).unwrap();
        let attached = (0..keys).filter(|&key| self.contains_key(&Key(key)));
        let all = if keys > 0 { usize::MAX } else { 0 };
        Seen {
            totals: self.totals(),
            len: self.len(),
            draining: self.draining(),
            recipients: self.recipients().take(all).map(id).collect(),
            leaving: self.leaving().take(all).map(id).collect(),
            keys: attached
                .map(|key| (key, self.receivers(&Key(key)), self.queue_len(&Key(key))))
                .collect(),
            blocked_on: self.blocked_on().map(id),
            terminated: self.is_terminated(),
            ..Seen::default()
        }
    }

    fn elapse(self: Pin<&mut Self>, time: Duration) {
        Demux::elapse(self, time);
    }
}

/// Creates the demux of the crate or, with `signals`, the reference, and the world around it.
pub fn setup(
    settings: Settings,
    signals: Option<Arc<Signals>>,
) -> (Subject, Arc<Mutex<World>>, Tape) {
    let tape = Tape::default();
    let (input, input_handle) = scripted_stream("input");
    let (orders, orders_handle) = scripted_stream("orders");
    let coop = settings.coop.map(|operations| {
        let defers = settings.coop_delay.is_some();
        let new = if defers { CoopBudget::deferred } else { CoopBudget::new };
        let budget = new(operations);
        budget.fire_after(settings.coop_delay.unwrap_or(0));
        budget.leave(settings.coop_left);
        if settings.coop_for_streams {
            input_handle.share(&budget);
            orders_handle.share(&budget);
        }
        budget
    });
    let world = Arc::new_cyclic(|me| {
        Mutex::new(World {
            tape: tape.clone(),
            live: Arc::default(),
            input: Some(input_handle),
            orders: orders_handle,
            sinks: Vec::new(),
            terms: Vec::new(),
            leases: Default::default(),
            requests: Vec::new(),
            signals: signals.clone(),
            seq: 0,
            input_ended: false,
            orders_ended: false,
            in_hook: None,
            parks: settings.parks,
            coop: coop.clone(),
            budgets: coop.into_iter().collect(),
            pool: Arc::new(Mutex::new(Pool::new(settings.pool))),
            over: false,
            me: me.clone(),
        })
    });
    let input = WatchedStream {
        stream: input,
        wakes: None,
        event: |answer| match answer {
            Poll::Ready(Some(Item { seq, key, .. })) => Event::Read(*seq, *key),
            Poll::Ready(None) => Event::InputEnd,
            Poll::Pending => Event::InputPending,
        },
        tape: tape.clone(),
    };
    let orders = WatchedStream {
        stream: orders,
        wakes: Some(Event::OrdersWoken),
        event: |answer| match answer {
            Poll::Ready(Some(SentOrder { kind, .. })) => Event::Order(*kind),
            Poll::Ready(None) => Event::OrdersEnd,
            Poll::Pending => Event::OrdersPending,
        },
        tape: tape.clone(),
    };
    let hooks = || Recorder { tape: tape.clone(), world: Arc::downgrade(&world), settings };
    let (maker, key) = (hooks(), (|item: &Item| Key(item.key)) as fn(&Item) -> Key);
    let subject: Subject = if let Some(signals) = signals {
        Box::pin(Reference::new(settings, input, orders, hooks(), signals))
    } else if settings.on_demand == 0 {
        Box::pin(with_settings(input.demux_by(key, orders), settings, hooks()))
    } else {
        let attach = move |item: &Item| match maker.make_on_demand(item)? {
            Offer::Crate(attach) => Some(attach),
            Offer::Plain(_) => None,
        };
        let demux = input.demux_by(key, orders).or_attach_with(attach);
        Box::pin(with_settings(demux, settings, hooks()))
    };
    (subject, world, tape)
}

fn with_settings<F>(
    demux: Demux<WatchedStream<Item>, F, WatchedStream<SentOrder>>,
    settings: Settings,
    hooks: Recorder,
) -> Watched<F> {
    let mut demux = demux
        .hooks(hooks)
        .with_hasher(settings.hashing)
        .budget(settings.budget)
        .overflow(settings.overflow)
        .flush_every(settings.flush_every)
        .stall_timeout(settings.stall_timeout)
        .idle_timeout(settings.idle_timeout)
        .linger(settings.linger);
    demux = settings.buffer.into_iter().fold(demux, Demux::buffer);
    demux = if settings.multicast { demux.multicast() } else { demux };
    if settings.balance { demux.balance() } else { demux }
}
