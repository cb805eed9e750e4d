//! A demux on a microcontroller. Interrupts produce samples and orders; tasks sleep until they are
//! woken.
//!
//! | channel | measured by | goes to |
//! | --- | --- | --- |
//! | temperature | the tick, sometimes eight at once | a UART that is too slow for eight: the input waits |
//! | current | the sampler | a control loop, replaced by another while it runs |
//! | vibration | the sampler | a radio that is stuck after three samples; its queue drops the oldest |
//! | pressure | the sampler | a display whose lease an interrupt drops |
//! | humidity | the sampler | no sink |
//!
//! An interrupt sends `Finish` while the input goes on; the stuck radio is evicted after that. The
//! program then accounts for every sample and every byte of the heap. Exit status 0 if all are
//! found.
#![no_std]
#![no_main]

extern crate alloc;

mod board;
mod executor;
mod heap;
mod inbox;
mod ports;

use alloc::boxed::Box;
use core::cell::RefCell;
use core::future::poll_fn;
use core::pin::pin;
use core::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering::Relaxed};
use core::task::Poll;

use atomic_waker::AtomicWaker;
use cortex_m_rt::{entry, exception};
use cortex_m_semihosting::{debug, hprintln};
use critical_section::Mutex;
use futures_sink::Sink;
use panic_semihosting as _;
use stream_demux::{
    Attach, DemuxStreamExt, Detached, Discarded, Hooks, Lease, Order, Overflow, Recipient, Totals,
};

use board::Irq;
use executor::Task;
use inbox::Inbox;
use ports::{CHANNELS, Channel, Loop, OutOfOrder, Radio, Record, Sample, Uart};

type Port = Box<dyn Sink<Sample, Error = OutOfOrder> + Send + Unpin>;

static SAMPLES: Inbox<Sample, 64> = Inbox::new();
static ORDERS: Inbox<Order<Channel, Port>, 8> = Inbox::new();

/// Samples accepted by the inbox, and samples refused because it was full, by channel.
static ACCEPTED: [AtomicU32; CHANNELS] = [const { AtomicU32::new(0) }; CHANNELS];
static REFUSED: [AtomicU32; CHANNELS] = [const { AtomicU32::new(0) }; CHANNELS];

static TICKS: AtomicU32 = AtomicU32::new(0);
static TICK: AtomicWaker = AtomicWaker::new();

static LEASE: Mutex<RefCell<Option<Lease>>> = Mutex::new(RefCell::new(None));
static OVER: AtomicBool = AtomicBool::new(false);

static UART: Record = Record::new();
static FIRST_LOOP: Record = Record::new();
static SECOND_LOOP: Record = Record::new();
static RADIO: Record = Record::new();
static DISPLAY: Record = Record::new();

/// What the radio accepts before it is stuck, and the capacity of its queue.
const CREDIT: u32 = 3;
const BUFFER: usize = 4;

/// The schedule, in milliseconds.
const REPLACED_AT: u32 = 250;
const STEADY: core::ops::Range<u32> = 300..480;
const UNPLUGGED_AT: u32 = 500;
const FINISHED_AT: u32 = 1000;
const TOO_LATE: u32 = 4000;

/// Called by interrupts only.
fn measure(channel: Channel) {
    let (accepted, refused) = (&ACCEPTED[channel as usize], &REFUSED[channel as usize]);
    let number = accepted.load(Relaxed);
    let value = i16::try_from(number % 2000).unwrap_or(0) - 1000;
    match SAMPLES.push(Sample { channel, number, value }) {
        Ok(()) => accepted.store(number + 1, Relaxed),
        Err(_) => refused.store(refused.load(Relaxed) + 1, Relaxed),
    }
}

#[exception]
fn SysTick() {
    let now = TICKS.load(Relaxed) + 1;
    TICKS.store(now, Relaxed);
    if now.is_multiple_of(2) {
        measure(Channel::Temperature);
    }
    if now.is_multiple_of(64) {
        (0..8).for_each(|_| measure(Channel::Temperature));
    }
    assert!(now < TOO_LATE, "the demux has not completed after {now} ms: a wake-up was lost");
    TICK.wake();
}

#[exception]
unsafe fn DefaultHandler(number: i16) {
    static ROUND: AtomicUsize = AtomicUsize::new(0);
    const TURN: [Channel; 5] = [
        Channel::Current,
        Channel::Vibration,
        Channel::Current,
        Channel::Pressure,
        Channel::Humidity,
    ];
    match Irq::from_number(number).expect("an interrupt that was not enabled") {
        Irq::Sampler => {
            board::SAMPLER.acknowledge();
            measure(TURN[ROUND.fetch_add(1, Relaxed) % TURN.len()]);
        }
        Irq::Transmitter => {
            board::TRANSMITTER.acknowledge();
            ports::transmit();
        }
        Irq::Unplugged => drop(critical_section::with(|cs| LEASE.take(cs))),
        Irq::Button => order(Order::Finish),
    }
}

fn order(order: impl Into<Order<Channel, Port>>) {
    assert!(ORDERS.push(order.into()).is_ok(), "no room for an order");
}

/// Waits for a condition, checking it once per tick.
async fn until(condition: impl Fn() -> bool) {
    poll_fn(|cx| {
        TICK.register(cx.waker());
        if condition() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

async fn at(tick: u32) {
    until(|| TICKS.load(Relaxed) >= tick).await;
}

/// Attaches the initial sinks.
fn attach_ports() {
    let mut lease = Lease::new();
    let uart: Port = Box::new(Uart { record: &UART, next: 0 });
    let first: Port = Box::new(Loop { record: &FIRST_LOOP, next: Some(0) });
    let radio: Port = Box::new(Radio { record: &RADIO, credit: CREDIT });
    let display: Port = Box::new(Loop { record: &DISPLAY, next: Some(0) });
    order((Channel::Temperature, uart));
    order((Channel::Current, first));
    let radio = Attach::new(Channel::Vibration, radio);
    order(radio.buffer(BUFFER).overflow(Overflow::DropOldest));
    order(Attach::new(Channel::Pressure, display).leased(&mut lease));
    critical_section::with(|cs| LEASE.replace(cs, Some(lease)));
}

/// Changes the sinks while samples flow.
async fn supervise() {
    at(REPLACED_AT).await;
    let second: Port = Box::new(Loop { record: &SECOND_LOOP, next: None });
    order(Attach::new(Channel::Current, second).tag(2));

    at(STEADY.start).await;
    let allocations = heap::allocations();
    at(STEADY.end).await;
    assert_eq!(heap::allocations(), allocations, "samples cause allocations");

    at(UNPLUGGED_AT).await;
    Irq::Unplugged.pend();
    at(FINISHED_AT).await;
    Irq::Button.pend();

    until(|| UART.read().1 == 1).await;
    let closed = TICKS.load(Relaxed);
    at(closed + 50).await;
    assert!(!OVER.load(Relaxed), "it completed without closing the radio");
    order(Order::Evict(Channel::Vibration));
}

/// What the hooks have observed.
#[derive(Default)]
struct Observed {
    detached: heapless::Vec<(Channel, u64, Detached<OutOfOrder>), 8>,
    unmatched: [u32; CHANNELS],
    overflowed: [u32; CHANNELS],
    evicted: [u32; CHANNELS],
    blocked: u32,
    unblocked: u32,
}

impl Hooks<Channel, Sample, OutOfOrder> for Observed {
    fn detached(&mut self, to: Recipient<'_, Channel>, why: Detached<OutOfOrder>) {
        self.detached.push((*to.key, to.tag, why)).expect("five attachments end once each");
    }

    fn unmatched(&mut self, sample: Sample) {
        self.unmatched[sample.channel as usize] += 1;
    }

    fn discarded(&mut self, to: Recipient<'_, Channel>, sample: Sample, why: Discarded) {
        assert_eq!(*to.key, sample.channel);
        match why {
            Discarded::Overflowed => self.overflowed[sample.channel as usize] += 1,
            Discarded::Evicted => self.evicted[sample.channel as usize] += 1,
            why => panic!("{sample:?} discarded: {why:?}"),
        }
    }

    fn blocked(&mut self, on: Recipient<'_, Channel>) {
        assert_eq!(*on.key, Channel::Temperature);
        self.blocked += 1;
    }

    fn unblocked(&mut self, _: Recipient<'_, Channel>) {
        self.unblocked += 1;
    }
}

/// Accounts for every sample. The input is no longer read, but still filled.
fn check(totals: &Totals, observed: &Observed) {
    let received = critical_section::with(|_| {
        let mut received = ACCEPTED.each_ref().map(|accepted| accepted.load(Relaxed));
        SAMPLES.drain(|left| received[left.channel as usize] -= 1);
        received
    });
    let [temperature, current, vibration, pressure, humidity] = received;
    assert_eq!(totals.received, received.iter().copied().map(u64::from).sum::<u64>());

    assert_eq!(UART.read(), (temperature, 1, 1));
    let (first, second) = (FIRST_LOOP.read(), SECOND_LOOP.read());
    assert_eq!((first.1, first.2, second.1, second.2), (1, 1, 1, 1));
    assert_eq!(first.0 + second.0, current);
    assert_eq!(RADIO.read(), (CREDIT, 0, 1));
    let (shown, closed, dropped) = DISPLAY.read();
    assert_eq!((closed, dropped), (0, 1));
    assert!(first.0 > 0 && second.0 > 0 && shown > 0);

    let buffer = u32::try_from(BUFFER).expect("it fits into 32 bits");
    assert_eq!(observed.evicted, [0, 0, buffer, 0, 0]);
    assert_eq!(observed.overflowed, [0, 0, vibration - CREDIT - buffer, 0, 0]);
    assert_eq!(observed.unmatched, [0, 0, 0, pressure - shown, humidity]);
    assert!(pressure > shown && humidity > 0, "nothing was unmatched");
    assert!(
        observed.blocked > 0 && observed.blocked == observed.unblocked,
        "the UART never blocked the input"
    );
    let (first, at_the_end) = observed.detached.split_at(2);
    assert_eq!(
        first,
        [(Channel::Current, 0, Detached::Replaced), (Channel::Pressure, 0, Detached::Evicted)]
    );
    // In real time, the UART and the second loop may finish in either order. `run` checks the order
    // where the clock counts instructions.
    assert_eq!(at_the_end.len(), 3);
    for ended in [
        (Channel::Current, 2, Detached::Finished),
        (Channel::Temperature, 0, Detached::Finished),
        (Channel::Vibration, 0, Detached::Evicted),
    ] {
        assert!(at_the_end.contains(&ended), "{at_the_end:?} lacks {ended:?}");
    }

    let unmatched = u64::from(pressure - shown + humidity);
    let discarded = u64::from(vibration - CREDIT);
    assert_eq!((totals.unmatched, totals.discarded), (unmatched, discarded));
    assert_eq!(totals.delivered, totals.received - unmatched - discarded);
    assert_eq!((totals.lost, totals.queued, totals.copies), (0, 0, 0));
    assert_eq!((totals.attached, totals.detached), (5, 5));
}

/// Wakes the wakers that outlived the demux, which must only free their memory.
fn wake_stale_wakers() {
    SAMPLES.wake();
    ORDERS.wake();
    ports::wake();
    TICK.wake();
}

/// Returns the maximum stack usage. The start-up code has painted the stack.
fn stack() -> usize {
    unsafe extern "C" {
        static _stack_start: u32;
        static _stack_end: u32;
    }
    let (top, mut low) = (&raw const _stack_start, &raw const _stack_end);
    // Safety: the stack lies between these two; the loop ends at the current frame at the latest.
    while unsafe { low.read_volatile() } == cortex_m_rt::STACK_PAINT_VALUE {
        low = low.wrapping_add(1);
    }
    top.addr() - low.addr()
}

#[entry]
fn main() -> ! {
    heap::start();
    let mut totals = None;
    let mut observed = Observed::default();
    attach_ports();
    let polls = {
        let demux = (&SAMPLES).demux_by(|sample| sample.channel, &ORDERS).hooks(&mut observed);
        let run = pin!(async {
            totals = Some(demux.await);
            OVER.store(true, Relaxed);
        });
        let supervisor = pin!(supervise());
        let mut tasks = [Task::new(run), Task::new(supervisor)];
        board::start();
        executor::run(&mut tasks);
        tasks[0].polls
    };
    let totals = totals.expect("the executor ran the demux to completion");
    check(&totals, &observed);
    let refused = REFUSED.each_ref().map(|refused| refused.load(Relaxed));
    let slept = executor::SLEPT.load(Relaxed);
    wake_stale_wakers();
    assert_eq!(heap::used(), 0, "the heap is not empty");
    assert!(slept > 0, "the processor never slept");

    hprintln!("{:?}", totals);
    hprintln!("refused by a full inbox, by channel: {:?}", refused);
    hprintln!("the UART blocked the input {} times", observed.blocked);
    hprintln!("lines sent: {}", UART.read().0);
    for (channel, _, _) in &observed.detached {
        hprintln!("detached: {:?}", channel);
    }
    hprintln!("polls of the demux: {}; the processor slept {} times", polls, slept);
    hprintln!("heap, at most: {} bytes; {} allocations", heap::peak(), heap::allocations());
    hprintln!("stack, at most: {} bytes", stack());
    debug::exit(debug::EXIT_SUCCESS);
    unreachable!("the emulator has exited");
}
