//! Every public name and signature, used from outside with explicit types, and the table of auto
//! traits. Code that does not compile here would not compile for users.
//!
//! Of the guarantees, only those visible in types: 10 (`FusedFuture`) and 12 (`K` need not be
//! `Clone`).

use std::cell::Cell;
use std::fmt::{Debug, Display};
use std::hash::{BuildHasher, Hash, RandomState};
use std::marker::{PhantomData, PhantomPinned};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::MutexGuard;
use std::task::{Context, Poll, Waker};

use futures::channel::mpsc;
use futures::executor::block_on;
use futures::future::FusedFuture;
use futures::{FutureExt, Sink, Stream, StreamExt, sink, stream};
use stream_demux::{
    Attach, Attachable, ByRef, ByValue, Callbacks, DefaultHashBuilder, Demux, DemuxStreamExt,
    Detached, Discarded, Hooks, IntoOrder, Lease, OrAttach, Order, Overflow, Recipient, Totals,
};

// Auto traits

/// Evaluates to `true` if a type implements a trait: an inherent constant takes precedence if it
/// exists.
macro_rules! implements {
    ($type:ty: $($bound:tt)+) => {{
        #[allow(dead_code, reason = "one of the two is not used")]
        trait No {
            const ANSWER: bool = false;
        }
        struct Ask<T: ?Sized>(PhantomData<T>);
        impl<T: ?Sized> No for Ask<T> {}
        #[allow(dead_code, reason = "one of the two is not used")]
        impl<T: ?Sized + $($bound)+> Ask<T> {
            const ANSWER: bool = true;
        }
        <Ask<$type>>::ANSWER
    }};
}

/// Asserts that each of these types is `Send`, `Sync` and `Unpin`, or not, in this order.
macro_rules! auto_traits {
    ($expected:expr; $($type:ty),+ $(,)?) => {$(
        let found = (implements!($type: Send), implements!($type: Sync), implements!($type: Unpin));
        assert_eq!(found, $expected, stringify!($type));
    )+};
}

/// Neither `Send` nor `Sync`.
type Local = Rc<()>;
/// `Send`, but not `Sync`.
type Lone = Cell<()>;
/// `Sync`, but not `Send`.
type Bound = MutexGuard<'static, ()>;

/// A stream of `T` with the auto traits of `M`.
struct Parts<T, M = ()>(PhantomData<fn() -> T>, M);

impl<T, M> Stream for Parts<T, M> {
    type Item = T;
    fn poll_next(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<T>> {
        Poll::Ready(None)
    }
}

/// A sink with the auto traits of `M`, but always `Unpin`.
struct Drain<M = ()>(M);

impl<M> Unpin for Drain<M> {}

impl<M, V> Sink<V> for Drain<M> {
    type Error = ();
    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }
    fn start_send(self: Pin<&mut Self>, _: V) -> Result<(), ()> {
        Ok(())
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }
    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), ()>> {
        Poll::Ready(Ok(()))
    }
}

/// A demux of these types: item, key, sink, and the auto traits of input, orders, key function,
/// hooks and hasher.
type Made<V, K, S, In = (), Or = (), F = (), H = (), B = ()> =
    Demux<Parts<V, In>, ByValue<F>, Parts<(K, S), Or>, H, B>;

#[test]
fn types_are_send_sync_and_unpin_as_their_parts_are() {
    // Items, keys and sinks are never pinned, and the borrowed type is not a part of the demux.
    auto_traits!((true, true, true);
        Made<u8, u8, Drain>, Made<PhantomPinned, PhantomPinned, Drain>,
        Demux<Parts<u8>, ByRef<(), str>, Parts<(String, Drain)>>,
        ByRef<(), Local>, ByRef<(), Lone>, ByRef<(), dyn Debug>, OrAttach<ByValue<()>, ()>,
        Lease, Totals, Overflow, Discarded, DefaultHashBuilder, Callbacks, Detached<u8>,
        Recipient<'static, u8>, Attach<u8, Drain>, Order<u8, Drain>,
    );
    auto_traits!((false, false, true);
        Made<u8, u8, Drain, Local>, Made<u8, u8, Drain, (), Local>, Made<Local, u8, Drain>,
        Made<u8, Local, Drain>, Made<u8, u8, Drain<Local>>, Made<u8, u8, Drain, (), (), Local>,
        Made<u8, u8, Drain, (), (), (), Local>, Made<u8, u8, Drain, (), (), (), (), Local>,
        ByRef<Local, u8>, OrAttach<ByValue<Local>, ()>, Callbacks<Local>,
        Recipient<'static, Lone>, Attach<Local, Drain>, Order<u8, Drain<Local>>,
    );
    auto_traits!((true, false, true);
        Made<u8, u8, Drain, Lone>, Made<u8, u8, Drain, (), Lone>, Made<Lone, u8, Drain>,
        Made<u8, Lone, Drain>, Made<u8, u8, Drain<Lone>>, Made<u8, u8, Drain, (), (), Lone>,
        Made<u8, u8, Drain, (), (), (), Lone>, Made<u8, u8, Drain, (), (), (), (), Lone>,
        ByValue<Lone>, OrAttach<ByValue<()>, Lone>, Callbacks<(), (), (), Lone>,
        Detached<Lone>, Attach<u8, Drain<Lone>>, Order<Lone, Drain>,
    );
    auto_traits!((false, true, true);
        Made<u8, u8, Drain, Bound>, Made<u8, u8, Drain, (), Bound>, Made<Bound, u8, Drain>,
        Made<u8, Bound, Drain>, Made<u8, u8, Drain<Bound>>,
    );
    auto_traits!((true, true, false);
        Made<u8, u8, Drain, PhantomPinned>, Made<u8, u8, Drain, (), PhantomPinned>,
    );
}

// Derives

#[test]
fn small_types_have_the_documented_traits() {
    fn copy<T: Copy + Clone + Debug>() {}
    fn equal<T: Clone + Debug + PartialEq + Eq>() {}
    fn shown<T: Display + Hash>() {}
    fn hashed<T: Copy + Clone + Debug + PartialEq + Eq + Hash>() {}
    hashed::<Overflow>();
    hashed::<Discarded>();
    equal::<Detached<u8>>();
    equal::<Detached<String>>();
    shown::<Detached<String>>();
    shown::<Discarded>();
    copy::<Recipient<'_, String>>();
    copy::<Totals>();
    equal::<Totals>();
    assert_eq!(Overflow::default(), Overflow::Wait);
    assert_eq!(Totals::default().received, 0);
    assert!(implements!(Lease: Default) && implements!(Lease: Debug));
    assert!(implements!(DefaultHashBuilder: Default) && implements!(DefaultHashBuilder: Clone));
    assert!(implements!(DefaultHashBuilder: BuildHasher) && implements!(DefaultHashBuilder: Debug));
    assert!(implements!(Callbacks: Default) && implements!(Callbacks: Debug));
}

// Inference

#[test]
fn key_and_sink_are_inferred_from_pairs() {
    let (send, orders) = mpsc::unbounded();
    let demux = stream::iter([(1, 'a'), (2, 'b')]).demux_by(|m| m.0, orders);
    send.unbounded_send((1, sink::drain())).unwrap();
    drop(send);
    assert_eq!(block_on(demux).delivered, 1);
}

struct Message {
    topic: String,
    id: u64,
}

fn message(topic: &str, id: u64) -> Message {
    Message { topic: topic.to_owned(), id }
}

#[test]
fn borrowed_key_is_inferred_as_str_and_as_a_whole() {
    let input = || stream::iter([message("sea", 1), message("sky", 2)]);
    let orders = || stream::iter([("sky".to_owned(), sink::drain())]);
    assert_eq!(block_on(input().demux_by_ref(|m| m.topic.as_str(), orders())).delivered, 1);
    assert_eq!(block_on(input().demux_by_ref(|m| &m.topic, orders())).delivered, 1);
    let orders = stream::iter([("sky", sink::drain())]);
    assert_eq!(
        block_on(input().demux_by(|m| m.id, stream::iter([(2, sink::drain())]))).delivered,
        1
    );
    assert_eq!(block_on(stream::iter(["sky"]).demux_by_ref(|m| m, orders)).delivered, 1);
}

/// Keys need only `Hash` and `Eq`.
#[test]
fn key_need_not_be_clone_nor_anything_else() {
    #[derive(PartialEq, Eq, Hash)]
    struct Key(u64);
    let orders = stream::iter([(Key(1), sink::drain())]);
    let demux = stream::iter([message("a", 1), message("b", 2)]).demux_by(|m| Key(m.id), orders);
    assert!(demux.is_empty());
    assert_eq!(block_on(demux).delivered, 1);
}

#[test]
fn input_and_orders_need_not_be_unpin() {
    let orders =
        stream::unfold(0, |n| async move { (n < 2).then_some(((n, sink::drain()), n + 1)) });
    let input = stream::unfold(0, |n| async move { (n < 3).then_some((n, n + 1)) });
    assert_eq!(block_on(input.demux_by(|&n: &i32| n, orders)).delivered, 2);
}

// Names and signatures

type In = stream::Iter<std::vec::IntoIter<Message>>;
type Key = fn(&Message) -> u64;
type KeyRef = fn(&Message) -> &u64;
type Or = stream::Iter<std::vec::IntoIter<Order<u64, Drain>>>;

fn by_id(m: &Message) -> u64 {
    m.id
}

fn parts() -> (In, Or) {
    let orders = vec![Order::Attach(Attach::new(1, Drain(()))), Order::Detach(2)];
    (stream::iter(vec![message("a", 1), message("b", 2)]), stream::iter(orders))
}

/// A demux in a struct, with and without default type parameters.
struct Holder {
    plain: Demux<In, ByValue<Key>, Or>,
    hooked: Demux<In, ByValue<Key>, Or, Recorder>,
    hashed: Demux<In, ByValue<Key>, Or, Callbacks, RandomState>,
    borrowed: Demux<In, ByRef<KeyRef, u64>, Or>,
    closures: Demux<In, ByValue<Key>, Or, Callbacks<OnError>, DefaultHashBuilder>,
    four: Demux<In, ByValue<Key>, Or, Callbacks<OnError, OnUnmatched, OnDiscarded, Admit>>,
}

type OnError = fn(Recipient<'_, u64>, ());
type OnUnmatched = fn(Message);
type OnDiscarded = fn(Recipient<'_, u64>, Message, Discarded);
type Admit = fn(Recipient<'_, u64>, &Message) -> bool;

/// Hooks for any key, item and error.
#[derive(Default)]
struct Recorder(Vec<&'static str>);

impl<K, V, E> Hooks<K, V, E> for Recorder {
    fn admit(&mut self, _to: Recipient<'_, K>, _item: &V) -> bool {
        true
    }
    fn attached(&mut self, _to: Recipient<'_, K>) {
        self.0.push("attached");
    }
    fn detached(&mut self, _to: Recipient<'_, K>, _why: Detached<E>) {
        self.0.push("detached");
    }
    fn unmatched(&mut self, _item: V) {
        self.0.push("unmatched");
    }
    fn discarded(&mut self, _to: Recipient<'_, K>, _item: V, _why: Discarded) {}
    fn blocked(&mut self, _on: Recipient<'_, K>) {}
    fn unblocked(&mut self, _on: Recipient<'_, K>) {}
}

fn demux() -> Demux<In, ByValue<Key>, Or> {
    let (input, orders) = parts();
    input.demux_by(by_id as Key, orders)
}

#[test]
fn types_can_be_named_with_and_without_their_defaults() {
    let (input, orders) = parts();
    let mut holder = Holder {
        plain: demux(),
        hooked: demux().hooks(Recorder::default()),
        hashed: demux().with_hasher(RandomState::new()),
        borrowed: input.demux_by_ref((|m| &m.id) as KeyRef, orders),
        closures: demux().on_error((|_, ()| ()) as OnError),
        four: demux()
            .on_error((|_, ()| ()) as OnError)
            .on_unmatched(drop as OnUnmatched)
            .on_discarded((|_, _, _| ()) as OnDiscarded)
            .admit((|_, _| true) as Admit),
    };
    let totals = [
        block_on(&mut holder.plain),
        block_on(&mut holder.hooked),
        block_on(&mut holder.hashed),
        block_on(&mut holder.borrowed),
        block_on(&mut holder.closures),
        block_on(&mut holder.four),
    ];
    assert!(totals.iter().all(|totals| (totals.delivered, totals.unmatched) == (1, 1)));
}

/// A generic function that creates a demux for any type of order.
fn split<St, O>(input: St, orders: O) -> impl Future<Output = Totals>
where
    St: Stream<Item = u32>,
    O: Stream<Item: IntoOrder<Key = u32, Sink: Attachable<u32>>>,
{
    input.demux_by(|&n: &u32| n, orders)
}

#[test]
fn generic_code_can_make_a_demux_of_any_kind_of_order() {
    let input = || stream::iter([1, 2]);
    assert_eq!(block_on(split(input(), stream::iter([(1, Drain(()))]))).delivered, 1);
    let attaches = stream::iter([Attach::new(1, Drain(()))]);
    assert_eq!(block_on(split(input(), attaches)).delivered, 1);
    let orders = stream::iter([Order::Attach(Attach::new(2, Drain(())))]);
    assert_eq!(block_on(split(input(), orders)).delivered, 1);
}

#[test]
fn order_may_be_a_user_defined_type() {
    struct Subscriber(u32, Drain);
    impl IntoOrder for Subscriber {
        type Key = u32;
        type Sink = Drain;
        fn into_order(self) -> Order<Self::Key, Self::Sink> {
            Order::from((self.0, self.1))
        }
    }
    let subscribers = stream::iter([Subscriber(1, Drain(()))]);
    assert_eq!(block_on(split(stream::iter([1]), subscribers)).delivered, 1);
}

#[test]
fn contains_key_takes_a_borrowed_form_of_the_key() {
    let input = stream::pending::<Message>();
    let orders = stream::iter([("a".to_owned(), Drain(()))]).chain(stream::pending());
    let mut demux = pin!(input.demux_by_ref(|m| m.topic.as_str(), orders));
    assert!(demux.as_mut().now_or_never().is_none());
    assert!(demux.contains_key("a") && demux.contains_key(&"a".to_owned()));
    assert!(!demux.contains_key("b") && demux.len() == 1 && !demux.is_empty());
}

// Attachable

#[test]
fn attachable_is_every_sink_that_is_unpin() {
    fn takes<V, S: Attachable<V> + ?Sized>(_: &S) {}
    let pinned = sink::unfold((), |(), _: u8| async { Ok::<_, ()>(()) });
    takes::<u8, _>(&Drain(()));
    takes::<u8, _>(&mpsc::unbounded::<u8>().0);
    takes::<u8, _>(&Vec::new());
    takes::<u8, Pin<Box<dyn Sink<u8, Error = ()> + Send>>>(&(Box::pin(Drain(())) as Pin<Box<_>>));
    takes::<u8, dyn Sink<u8, Error = ()> + Unpin>(&Drain(()));
    assert!(!implements!(u8: Attachable<u8>));
    takes::<u8, _>(&Box::pin(pinned));
}

// The future

#[test]
fn demux_is_a_future_of_totals_and_fused() {
    fn fused<F: FusedFuture<Output = Totals>>(_: &F) {}
    let mut demux = pin!(demux());
    fused(&*demux);
    assert!(!demux.is_terminated());
    let cx = &mut Context::from_waker(Waker::noop());
    let Poll::Ready(totals) = demux.as_mut().poll(cx) else { panic!("the demux did not complete") };
    assert_eq!(totals.received, 2);
    assert!(demux.is_terminated());
}

// Borrowing

#[test]
fn everything_may_borrow_from_its_surroundings() {
    let (topic, mut got, mut unmatched) = (String::from("a"), Vec::new(), 0);
    let texts = [String::from("a"), String::from("b")];
    let orders = stream::iter([(topic.as_str(), &mut got)]);
    let input = stream::iter(texts.iter());
    let demux = input.demux_by(|text| text.as_str(), orders).on_unmatched(|_| unmatched += 1);
    block_on(demux);
    assert_eq!((got, unmatched), (vec![&texts[0]], 1));
}

/// A nameable type for the closure of `or_attach_with`.
type Make = fn(&Message) -> Option<Attach<u64, Drain>>;

#[test]
fn demux_that_attaches_on_demand_has_a_name() {
    let make: Make = |message| Some(Attach::new(message.id, Drain(())));
    let demux: Demux<In, OrAttach<ByValue<Key>, Make>, Or> = demux().or_attach_with(make);
    assert!(format!("{demux:?}").starts_with("Demux"));
    assert_eq!(block_on(demux).delivered, 2);
    let (input, orders) = parts();
    let demux: Demux<In, OrAttach<ByRef<KeyRef, u64>, Make>, Or> =
        input.demux_by_ref((|m| &m.id) as KeyRef, orders).or_attach_with(make);
    assert_eq!(block_on(demux).delivered, 2);
}
