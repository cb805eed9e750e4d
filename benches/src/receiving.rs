//! A tokio channel as an input.

use std::pin::Pin;
use std::task::{Context, Poll};

use futures::Stream;
use tokio::sync::mpsc;

/// A receiver of a tokio channel as a stream.
#[derive(Debug)]
pub(crate) struct Receiving<T>(pub(crate) mpsc::Receiver<T>);

impl<T> Stream for Receiving<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(cx)
    }
}
