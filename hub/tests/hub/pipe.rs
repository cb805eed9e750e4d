//! [`Pipe`]: a writer that takes as many bytes as the test allows.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use tokio::io::AsyncWrite;

/// The writing end, and a handle to it.
#[derive(Clone, Default)]
pub(crate) struct Pipe(Arc<Mutex<State>>);

#[derive(Default)]
pub(crate) struct State {
    /// How many bytes it takes before it is full, and with one call at most.
    pub(crate) room: usize,
    pub(crate) most: usize,
    pub(crate) is_vectored: bool,
    pub(crate) error: Option<ErrorKind>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) writes: usize,
    pub(crate) flushes: usize,
    pub(crate) is_shut_down: bool,
    /// The shutdown does not complete.
    pub(crate) hangs_at_shutdown: bool,
    waker: Option<Waker>,
}

impl Pipe {
    /// It takes this many bytes.
    pub(crate) fn new(room: usize) -> Self {
        let pipe = Self::default();
        pipe.set(|state| {
            state.room = room;
            state.most = usize::MAX;
            state.is_vectored = true;
        });
        pipe
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    /// Changes the state, and wakes the writer if it waits.
    pub(crate) fn set(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// It takes this many bytes more.
    pub(crate) fn allow(&self, bytes: usize) {
        self.set(|state| state.room = state.room.saturating_add(bytes));
    }

    /// Returns how often it was written to and flushed.
    pub(crate) fn calls(&self) -> (usize, usize) {
        let state = self.state();
        (state.writes, state.flushes)
    }

    /// Returns what was written since the last call.
    pub(crate) fn take(&self) -> String {
        String::from_utf8(std::mem::take(&mut self.state().bytes)).unwrap()
    }
}

impl State {
    fn poll(&mut self, cx: &mut Context<'_>, slices: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        if let Some(error) = self.error {
            return Poll::Ready(Err(error.into()));
        }
        if self.room == 0 {
            self.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        self.writes += 1;
        let mut written = 0;
        for slice in slices {
            let bytes = slice.len().min(self.room).min(self.most - written);
            self.bytes.extend_from_slice(&slice[..bytes]);
            self.room -= bytes;
            written += bytes;
        }
        Poll::Ready(Ok(written))
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.state().poll(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut state = self.state();
        let taken = if state.is_vectored { slices.len() } else { 1 };
        state.poll(cx, &slices[..taken])
    }

    fn is_write_vectored(&self) -> bool {
        self.state().is_vectored
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.state().flushes += 1;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.state();
        if state.hangs_at_shutdown {
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        state.is_shut_down = true;
        Poll::Ready(Ok(()))
    }
}
