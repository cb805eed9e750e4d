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
    /// Returns the answer, made with [`Request::answer`], or `None` for a one-way method: Apache's Go
    /// library sends its calls like any others, and reads no answer. If the answer is empty, the client
    /// gets an exception.
    ///
    /// If the client disconnects, this future is dropped, except for a one-way call. It is dropped, too,
    /// when it has held much memory for ten seconds that others need (see the README).
    ///
    /// A call that computes delays others on the threads of the runtime. Connections take turns, of at
    /// most eight calls each that have not waited for anything yet, and a call of another connection
    /// waits for such turns a few times. What computes for milliseconds should run on a blocking thread.
    ///
    /// If the message has more than 4 KiB, the future is polled for the first time on one of a few threads
    /// for such calls, because decoding its arguments may take long. To block or to compute there delays
    /// these calls.
    fn call(&self, request: Request) -> impl Future<Output = Result<Option<Bytes>, Error>> + Send;
}

/// A service that returns an error instead of an empty answer, for which the client would close the
/// connection.
#[derive(Debug)]
pub(crate) struct Answering<S>(pub(crate) S);

impl<S: Service> Service for Answering<S> {
    async fn call(&self, request: Request) -> Result<Option<Bytes>, Error> {
        let answer = self.0.call(request).await?;
        if answer.as_ref().is_some_and(Bytes::is_empty) {
            let what = "the service returned an empty answer".to_owned();
            return Err(Error::Refused(ApplicationErrorKind::MissingResult, what));
        }
        Ok(answer)
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
