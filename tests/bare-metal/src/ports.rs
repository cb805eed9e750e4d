//! Three kinds of sink, and records of what they did.

use core::cell::RefCell;
use core::fmt::Write;
use core::pin::Pin;
use core::sync::atomic::{AtomicU32, Ordering::Relaxed};
use core::task::{Context, Poll};

use atomic_waker::AtomicWaker;
use critical_section::Mutex;
use futures_sink::Sink;
use heapless::{Deque, String};

use crate::board;

/// What a sensor measured.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    pub channel: Channel,
    /// The number of the sample among those of the channel that the inbox accepted, from 0.
    pub number: u32,
    pub value: i16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Channel {
    Temperature,
    Current,
    Vibration,
    Pressure,
    Humidity,
}

pub const CHANNELS: usize = 5;

/// The error of a port that receives a sample out of order: the demux has broken its guarantee.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutOfOrder;

/// The history of a sink, to be checked when it is gone.
pub struct Record {
    pub taken: AtomicU32,
    pub flushed: AtomicU32,
    pub closed: AtomicU32,
    pub dropped: AtomicU32,
}

impl Record {
    pub const fn new() -> Self {
        let [taken, flushed, closed, dropped] = [const { AtomicU32::new(0) }; 4];
        Self { taken, flushed, closed, dropped }
    }

    /// Returns how many samples it took, and how often it was closed and dropped.
    pub fn read(&self) -> (u32, u32, u32) {
        (self.taken.load(Relaxed), self.closed.load(Relaxed), self.dropped.load(Relaxed))
    }
}

type Done = Result<(), OutOfOrder>;

/// Accepts every sample at once, like a control loop.
pub struct Loop {
    pub record: &'static Record,
    /// The number of the next sample; `None` accepts any first number.
    pub next: Option<u32>,
}

impl Sink<Sample> for Loop {
    type Error = OutOfOrder;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Done> {
        Poll::Ready(Ok(()))
    }

    fn start_send(mut self: Pin<&mut Self>, sample: Sample) -> Done {
        if self.next.is_some_and(|next| next != sample.number) {
            return Err(OutOfOrder);
        }
        self.next = Some(sample.number + 1);
        self.record.taken.fetch_add(1, Relaxed);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Done> {
        self.record.flushed.fetch_add(1, Relaxed);
        Poll::Ready(Ok(()))
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Done> {
        self.record.closed.fetch_add(1, Relaxed);
        Poll::Ready(Ok(()))
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        self.record.dropped.fetch_add(1, Relaxed);
    }
}

/// Writes lines to the UART through a buffer that an interrupt empties byte by byte.
pub struct Uart {
    pub record: &'static Record,
    pub next: u32,
}

/// The longest line: a channel's letter, two numbers, two spaces, the end of the line.
const LINE: usize = 1 + 1 + 10 + 1 + 6 + 1;

static UNSENT: Mutex<RefCell<Deque<u8, 64>>> = Mutex::new(RefCell::new(Deque::new()));
static WRITER: AtomicWaker = AtomicWaker::new();

fn unsent() -> usize {
    critical_section::with(|cs| UNSENT.borrow_ref(cs).len())
}

/// Ready when at most `bytes` bytes are unsent. The sink has one waker for all three operations.
fn at_most(bytes: usize, cx: &mut Context<'_>) -> Poll<Done> {
    WRITER.register(cx.waker());
    if unsent() <= bytes { Poll::Ready(Ok(())) } else { Poll::Pending }
}

/// The interrupt of the transmitter.
pub fn transmit() {
    let (byte, left) = critical_section::with(|cs| {
        let mut unsent = UNSENT.borrow_ref_mut(cs);
        (unsent.pop_front(), unsent.len())
    });
    if let Some(byte) = byte {
        board::transmit(byte);
        if left == 64 - LINE || left == 0 {
            wake();
        }
    }
}

pub fn wake() {
    WRITER.wake();
}

impl Sink<Sample> for Uart {
    type Error = OutOfOrder;

    fn poll_ready(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done> {
        at_most(64 - LINE, cx)
    }

    fn start_send(mut self: Pin<&mut Self>, sample: Sample) -> Done {
        if self.next != sample.number {
            return Err(OutOfOrder);
        }
        self.next += 1;
        let mut line = String::<LINE>::new();
        writeln!(line, "t {} {}", sample.number, sample.value)
            .expect("a line fits into its buffer");
        critical_section::with(|cs| {
            let mut unsent = UNSENT.borrow_ref_mut(cs);
            line.bytes().try_for_each(|byte| unsent.push_back(byte))
        })
        .expect("`poll_ready` has checked for room");
        self.record.taken.fetch_add(1, Relaxed);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done> {
        self.record.flushed.fetch_add(1, Relaxed);
        at_most(0, cx)
    }

    fn poll_close(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Done> {
        let empty = at_most(0, cx);
        if empty.is_ready() {
            self.record.closed.fetch_add(1, Relaxed);
        }
        empty
    }
}

impl Drop for Uart {
    fn drop(&mut self) {
        self.record.dropped.fetch_add(1, Relaxed);
    }
}

/// A radio that loses its peer: it takes a few samples, and then neither becomes ready nor
/// completes a flush or a close.
pub struct Radio {
    pub record: &'static Record,
    pub credit: u32,
}

impl Radio {
    fn poll(&self) -> Poll<Done> {
        if self.credit > 0 { Poll::Ready(Ok(())) } else { Poll::Pending }
    }
}

impl Sink<Sample> for Radio {
    type Error = OutOfOrder;

    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Done> {
        self.poll()
    }

    fn start_send(mut self: Pin<&mut Self>, _: Sample) -> Done {
        self.credit -= 1;
        self.record.taken.fetch_add(1, Relaxed);
        Ok(())
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Done> {
        self.poll()
    }

    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Done> {
        self.poll()
    }
}

impl Drop for Radio {
    fn drop(&mut self) {
        self.record.dropped.fetch_add(1, Relaxed);
    }
}
