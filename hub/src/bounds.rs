//! Traits that every suitable type implements. They exist so that the compiler can say what to write
//! instead of a type that does not fit.
//!
//! `do_not_recommend` keeps rustc from reporting the unmet bounds of the implementations instead,
//! with lists of types of which none is meant.

use std::time::Duration;

use futures_core::Stream;
use futures_sink::Sink;

use crate::SinkError;

/// What a [`Hub`](crate::Hub) can publish: any type that is `Clone + Send + 'static`.
///
/// Implemented for all such types. The trait exists so that the compiler can explain what to do with
/// another one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be published: write `#[derive(Clone)]` for it, or publish an `Arc<{Self}>`",
    label = "an item of a hub must be `Clone + Send + 'static`"
)]
pub trait HubItem: Clone + Send + 'static {}

#[diagnostic::do_not_recommend]
impl<V: Clone + Send + 'static> HubItem for V {}

/// A sink that can be [attached](crate::Hub::attach) to a hub: any `Sink<V>` whose error converts
/// into a [`SinkError`].
///
/// Implemented for all such types. The trait exists so that the compiler can explain why another
/// type cannot be attached.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be attached to a hub of `{V}`: write `MpscSink::new(sender)` for the \
        sender of a tokio channel, `write_sink(..)` for a socket or file",
    label = "this must implement `Sink<{V}, Error = E>`",
    note = "the items must have the type that the sink takes; use `SinkExt::with` to convert them",
    note = "`E` must convert into `Box<dyn Error + Send + Sync>`; use `SinkExt::sink_map_err`"
)]
pub trait AttachableSink<V>: Sink<V, Error: Into<SinkError>> {}

#[diagnostic::do_not_recommend]
impl<V, S: Sink<V, Error: Into<SinkError>> + ?Sized> AttachableSink<V> for S {}

/// A stream of items, such as the input of [`for_each_by_key`](crate::for_each_by_key): any `Stream`.
///
/// Implemented for every stream. The trait exists so that the compiler can explain what to do with
/// a type that is not a stream.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a stream: write `ReceiverStream::new(receiver)` for the receiver of a \
        tokio channel, `stream::iter(items)` for a `Vec`",
    label = "the input must be a `Stream`",
    note = "`tokio_stream::wrappers` has `ReceiverStream`, `UnboundedReceiverStream` and others"
)]
pub trait InputStream: Stream<Item = Self::Input> {
    /// What the stream yields.
    type Input;
}

#[diagnostic::do_not_recommend]
impl<St: Stream + ?Sized> InputStream for St {
    type Input = St::Item;
}

/// The argument of [`Workers::idle_timeout`](crate::Workers::idle_timeout): a `Duration`, or an
/// `Option` of one.
///
/// Implemented for everything that converts into `Option<Duration>`. The trait exists so that the
/// compiler can explain what to write instead of a number.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a time: write `Duration::from_secs(60)`, or `None` for no time-out",
    label = "this must be a `Duration` or an `Option<Duration>`"
)]
pub trait IdleTimeout: Into<Option<Duration>> {}

#[diagnostic::do_not_recommend]
impl<T: Into<Option<Duration>>> IdleTimeout for T {}
