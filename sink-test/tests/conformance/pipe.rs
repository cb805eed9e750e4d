//! A correct sink, to which a fault can be added: a buffer of two items before a channel for two.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use futures::Sink;
use sink_test::SinkCheck;

/// Capacity of the buffer and of the channel.
const SIZE: usize = 2;

/// The fault of a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    Nothing,
    ForgetsItsWaker,
    KeepsTheFirstWaker,
    ForgetsWhenItsTaskChanges,
    NeverWakes,
    IsNotWokenByTheEnd,
    IsReadyWithoutRoom,
    DropsWithoutRoom,
    DropsTheOldest,
    HasNoBound,
    LosesOnFlush,
    LosesOnClose,
    FlushesWithoutProgress,
    ClosesWithoutProgress,
    DoesNotTellTheEnd,
    AcceptsAfterClose,
    WorksAfterAnError,
    HidesErrors,
    FailsForNoReason,
    UsesUpReadiness,
    SendsTwice,
    Invents,
    Reorders,
    WakesItselfWithoutEnd,
    IsStuckWhenFull,
    IsWokenForNothing,
    FlushesInStepsWithoutAWake,
    Panics,
}

#[derive(Debug, Default)]
struct State {
    items: VecDeque<usize>,
    waker: Option<Waker>,
    gone: bool,
    closed: bool,
}

impl State {
    fn wake(&mut self, wrong: Wrong) {
        let waker = self.waker.take();
        if wrong == Wrong::KeepsTheFirstWaker {
            self.waker.clone_from(&waker);
        }
        if let Some(waker) = waker.filter(|_| wrong != Wrong::NeverWakes) {
            waker.wake();
        }
    }
}

#[derive(Debug)]
pub(crate) struct Pipe {
    wrong: Wrong,
    buffer: VecDeque<usize>,
    channel: Arc<Mutex<State>>,
    /// How often `poll_ready` returned ready.
    readied: usize,
    closed: bool,
    failed: bool,
    stuck: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Gone;

pub(crate) struct Receiver {
    wrong: Wrong,
    channel: Arc<Mutex<State>>,
}

pub(crate) fn pipe(wrong: Wrong) -> (Pipe, Receiver) {
    let channel = Arc::<Mutex<State>>::default();
    let receiver = Receiver { wrong, channel: Arc::clone(&channel) };
    let buffer = VecDeque::new();
    let (readied, closed, failed, stuck) = (0, false, false, false);
    (Pipe { wrong, buffer, channel, readied, closed, failed, stuck }, receiver)
}

/// Creates a check of pipes, with all settings.
pub(crate) fn check(wrong: Wrong) -> SinkCheck<'static, Pipe, Receiver, usize> {
    SinkCheck::new(move || pipe(wrong), |n| n, Receiver::receive)
        .capacity(2 * SIZE)
        .disconnect(Receiver::go)
        .closed(|receiver| receiver.lock().closed)
}

impl Receiver {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.channel.lock().unwrap()
    }

    fn receive(&mut self) -> Option<usize> {
        let mut channel = self.lock();
        let item = channel.items.pop_front();
        if item.is_some() || self.wrong == Wrong::IsWokenForNothing {
            channel.wake(self.wrong);
        }
        item
    }

    fn go(&mut self) {
        let mut channel = self.lock();
        channel.gone = true;
        if self.wrong != Wrong::IsNotWokenByTheEnd {
            channel.wake(self.wrong);
        }
    }
}

impl Pipe {
    /// Moves the buffer into the channel: ready when it is empty.
    fn advance(&mut self, cx: &Context<'_>) -> Poll<Result<(), Gone>> {
        let mut channel = self.channel.lock().unwrap();
        if self.closed || self.failed && self.wrong != Wrong::WorksAfterAnError {
            return Poll::Ready(Err(Gone));
        }
        if channel.gone && !self.failed && self.wrong != Wrong::HidesErrors {
            self.failed = true;
            return Poll::Ready(Err(Gone));
        }
        if channel.gone {
            self.buffer.clear();
        }
        while channel.items.len() < SIZE && !self.stuck {
            let Some(item) = self.buffer.pop_front() else {
                return Poll::Ready(Ok(()));
            };
            if self.wrong == Wrong::Invents && item == 3 {
                channel.items.push_back(999);
            }
            channel.items.push_back(item);
            if self.wrong == Wrong::SendsTwice && item == 3 {
                channel.items.push_back(item);
            }
        }
        if self.buffer.is_empty() {
            return Poll::Ready(Ok(()));
        }
        match self.wrong {
            Wrong::ForgetsItsWaker => {}
            Wrong::KeepsTheFirstWaker => {
                channel.waker.get_or_insert_with(|| cx.waker().clone());
            }
            Wrong::ForgetsWhenItsTaskChanges => {
                let moved = channel.waker.take().is_some_and(|waker| !waker.will_wake(cx.waker()));
                channel.waker = (!moved).then(|| cx.waker().clone());
            }
            Wrong::WakesItselfWithoutEnd => cx.waker().wake_by_ref(),
            _ => channel.waker = Some(cx.waker().clone()),
        }
        Poll::Pending
    }
}

impl Sink<usize> for Pipe {
    type Error = Gone;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        if self.wrong == Wrong::AcceptsAfterClose && self.closed {
            return Poll::Ready(Ok(()));
        }
        let empty = self.advance(cx)?;
        self.readied += 1;
        if self.wrong == Wrong::UsesUpReadiness && self.readied > 50 {
            return Poll::Pending;
        }
        let sticks = [Wrong::IsStuckWhenFull, Wrong::IsWokenForNothing].contains(&self.wrong);
        self.stuck |= sticks && self.buffer.len() == SIZE;
        let always = [
            Wrong::IsReadyWithoutRoom,
            Wrong::DropsWithoutRoom,
            Wrong::DropsTheOldest,
            Wrong::HasNoBound,
        ];
        if empty.is_ready() || self.buffer.len() < SIZE || always.contains(&self.wrong) {
            return Poll::Ready(Ok(()));
        }
        Poll::Pending
    }

    fn start_send(mut self: Pin<&mut Self>, item: usize) -> Result<(), Gone> {
        if self.wrong == Wrong::DropsTheOldest && self.buffer.len() >= SIZE {
            self.buffer.pop_front();
        }
        match self.wrong {
            Wrong::IsReadyWithoutRoom if self.buffer.len() >= SIZE => return Err(Gone),
            Wrong::DropsWithoutRoom if self.buffer.len() >= SIZE => return Ok(()),
            Wrong::FailsForNoReason if item == 5 => return Err(Gone),
            Wrong::Panics if item == 5 => panic!("five is too much"),
            Wrong::Reorders if self.buffer.len() == 1 => self.buffer.push_front(item),
            _ => self.buffer.push_back(item),
        }
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        match self.wrong {
            Wrong::AcceptsAfterClose if self.closed => return Poll::Ready(Ok(())),
            Wrong::LosesOnFlush => self.buffer.clear(),
            Wrong::FlushesWithoutProgress => return Poll::Ready(Ok(())),
            Wrong::FlushesInStepsWithoutAWake if self.buffer.len() > 1 => {
                let channel = Arc::clone(&self.channel);
                let mut channel = channel.lock().unwrap();
                if channel.items.len() < SIZE {
                    channel.items.extend(self.buffer.pop_front());
                }
                return Poll::Pending;
            }
            _ => {}
        }
        self.advance(cx)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<(), Gone>> {
        match self.wrong {
            Wrong::LosesOnClose => self.buffer.clear(),
            Wrong::ClosesWithoutProgress => return Poll::Ready(Ok(())),
            _ => {}
        }
        let done = self.advance(cx);
        if done == Poll::Ready(Ok(())) {
            self.closed = true;
            let mut channel = self.channel.lock().unwrap();
            channel.closed = self.wrong != Wrong::DoesNotTellTheEnd;
        }
        done
    }
}
