//! A demux without `std`: an allocator, a panic handler and a polling loop. Exit status 0 if its
//! items arrived.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::rc::Rc;
use core::alloc::{GlobalAlloc, Layout};
use core::cell::Cell;
use core::convert::Infallible;
use core::ffi::{c_int, c_void};
use core::future::Future;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};

use futures_core::Stream;
use futures_sink::Sink;
use stream_demux::DemuxStreamExt;

unsafe extern "C" {
    fn malloc(size: usize) -> *mut c_void;
    fn free(block: *mut c_void);
    fn abort() -> !;
}

struct Malloc;

// The C library aligns to 16 bytes, and nothing here needs more.
unsafe impl GlobalAlloc for Malloc {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        assert!(layout.align() <= 16);
        unsafe { malloc(layout.size()).cast() }
    }
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        unsafe { free(block.cast()) }
    }
}

#[global_allocator]
static ALLOCATOR: Malloc = Malloc;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    unsafe { abort() }
}

/// `core` was built with unwinding and refers to this symbol; it is never called.
#[unsafe(no_mangle)]
extern "C" fn rust_eh_personality() {}

/// Counts up to the end of the range.
struct Numbers(core::ops::Range<u32>);

impl Stream for Numbers {
    type Item = u32;
    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u32>> {
        Poll::Ready(self.0.next())
    }
}

/// Attaches three sinks.
struct Orders(core::ops::Range<u32>, Rc<Cell<u32>>);

impl Stream for Orders {
    type Item = (u32, Sum);
    fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<(u32, Sum)>> {
        let sum = Sum(Rc::clone(&self.1));
        Poll::Ready(self.0.next().map(|key| (key, sum)))
    }
}

struct Sum(Rc<Cell<u32>>);

impl Sink<u32> for Sum {
    type Error = Infallible;
    fn poll_ready(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }
    fn start_send(self: Pin<&mut Self>, item: u32) -> Result<(), Infallible> {
        self.0.set(self.0.get() + item);
        Ok(())
    }
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }
    fn poll_close(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }
}

#[unsafe(no_mangle)]
extern "C" fn main() -> c_int {
    let sum = Rc::new(Cell::new(0));
    let mut demux = pin!(Numbers(0..1000).demux_by(|n| n % 4, Orders(0..3, Rc::clone(&sum))));
    let mut cx = Context::from_waker(Waker::noop());
    let totals = loop {
        if let Poll::Ready(totals) = demux.as_mut().poll(&mut cx) {
            break totals;
        }
    };
    let expected: u32 = (0..1000).filter(|n| n % 4 < 3).sum();
    let counts = (totals.received, totals.delivered, totals.unmatched, totals.detached);
    c_int::from(sum.get() != expected || counts != (1000, 750, 250, 3))
}
