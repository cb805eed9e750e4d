//! The service that a server runs, and its requests.

use thrift::ApplicationErrorKind;
use thrift::protocol::TMessageType;
use tokio_util::bytes::Bytes;

use crate::error::Error;
use crate::message::{Limits, Message, Wire};

/// Separates the service name from the method name, as in Apache Thrift's `TMultiplexedProtocol`.
pub(crate) const SEPARATOR: char = ':';

/// Answers requests. [`demo::Serve`](crate::demo::Serve) implements it for the service of the IDL.
pub trait Service: Send + Sync + 'static {
    /// Returns the answer, made with [`Request::answer`], or `None` for a one-way call. If a call
    /// gets no answer, or an empty one, the client gets an exception.
    ///
    /// If the client disconnects, this future is dropped, except for a one-way call.
    fn call(&self, request: Request) -> impl Future<Output = Result<Option<Bytes>, Error>> + Send;
}

/// A service that returns an error if there is no answer to a call. The client would wait for one
/// until its deadline, or close the connection because of an empty frame.
#[derive(Debug)]
pub(crate) struct Answering<S>(pub(crate) S);

impl<S: Service> Service for Answering<S> {
    async fn call(&self, request: Request) -> Result<Option<Bytes>, Error> {
        let is_call = request.message.kind == TMessageType::Call;
        let name = request.message.name.clone();
        let answer = self.0.call(request).await?;
        let missing = match &answer {
            None if is_call => format!("{name:.64} gives no answer; is it a one-way method?"),
            Some(frame) if frame.is_empty() => format!("the answer of {name:.64} is empty"),
            _ => return Ok(answer),
        };
        Err(Error::Refused(ApplicationErrorKind::MissingResult, missing))
    }
}

/// A received call.
#[derive(Debug, Clone)]
pub struct Request {
    /// The service name, if the client is multiplexed and sent `Service:method`.
    pub service: Option<String>,
    /// The message. Its name, and that of the answer, is the method name without the service.
    pub message: Message,
    pub(crate) limits: Limits,
}

impl Request {
    pub(crate) fn new(mut message: Message, limits: Limits) -> Self {
        let split = message.name.split_once(SEPARATOR);
        let split = split.map(|(service, method)| (service.to_owned(), method.to_owned()));
        let service = split.map(|(service, method)| {
            message.name = method;
            service
        });
        Self { service, message, limits }
    }

    /// Decodes the arguments. This can be done once, because it frees the frame.
    pub fn args<A: Wire>(&mut self) -> Result<A, Error> {
        self.message.take().read(&self.limits)
    }

    /// Encodes an answer. Returns `None` for a one-way call.
    pub fn answer<R: Wire>(&self, result: &R) -> Result<Option<Bytes>, Error> {
        let Message { protocol, name, kind, id, .. } = &self.message;
        if *kind == TMessageType::OneWay {
            return Ok(None);
        }
        Message::write(*protocol, name, TMessageType::Reply, *id, result).map(Some)
    }

    /// Returns `true` if the request names this service or no service.
    #[must_use]
    pub fn is_for(&self, service: &str) -> bool {
        self.service.as_deref().is_none_or(|named| named == service)
    }

    /// Returns the error for an unknown service or method.
    pub fn unknown(&self) -> Result<Option<Bytes>, Error> {
        let method = &self.message.name;
        let what = match &self.service {
            Some(service) => format!("there is no method {method:.64} of a service {service:.64}"),
            None => format!("there is no method {method:.64}"),
        };
        Err(Error::Refused(ApplicationErrorKind::UnknownMethod, what))
    }
}
