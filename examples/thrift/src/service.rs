//! What a server is asked to do.

use thrift::ApplicationErrorKind;
use thrift::protocol::TMessageType;
use tokio_util::bytes::Bytes;

use crate::error::Error;
use crate::message::{Limits, Message, Wire};

/// Between the names of a service and of its method, as in Apache Thrift's `TMultiplexedProtocol`.
pub(crate) const SEPARATOR: char = ':';

/// Answers a request. [`demo::Serve`](crate::demo::Serve) makes one of a service of the IDL.
pub trait Service: Send + Sync + 'static {
    /// The answer, made with [`Request::answer`]; none to a one-way call.
    ///
    /// If the client is gone, the future of a call is dropped where it waits; that of a one-way
    /// call is not.
    fn call(&self, request: Request) -> impl Future<Output = Result<Option<Bytes>, Error>> + Send;
}

/// A call that came.
#[derive(Debug, Clone)]
pub struct Request {
    /// The service that was named, if one was: `Service:method` of a multiplexed client.
    pub service: Option<String>,
    /// What was sent. The name is that of the method alone, and so is that in the answer.
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

    /// The arguments. They can be read once: the frame is then freed.
    pub fn args<A: Wire>(&mut self) -> Result<A, Error> {
        self.message.take().read(&self.limits)
    }

    /// The frame of an answer.
    pub fn answer<R: Wire>(&self, result: &R) -> Result<Option<Bytes>, Error> {
        let Message { protocol, name, kind, id, .. } = &self.message;
        if *kind == TMessageType::OneWay {
            return Ok(None);
        }
        Message::write(*protocol, name, TMessageType::Reply, *id, result).map(Some)
    }

    /// Whether this is for a service of this name: it is if no service was named.
    #[must_use]
    pub fn is_for(&self, service: &str) -> bool {
        self.service.as_deref().is_none_or(|named| named == service)
    }

    /// That there is no such service or method.
    pub fn unknown(&self) -> Result<Option<Bytes>, Error> {
        let method = &self.message.name;
        let what = match &self.service {
            Some(service) => format!("there is no method {method:.64} of a service {service:.64}"),
            None => format!("there is no method {method:.64}"),
        };
        Err(Error::Refused(ApplicationErrorKind::UnknownMethod, what))
    }
}
