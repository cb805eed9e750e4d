//! What a call can come to, if not to its answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thrift::ApplicationErrorKind;

/// Why a call has no answer.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// There is no connection, or none any more: the reason.
    Closed(Arc<str>),
    /// No answer in time. It may still come, and then reaches nobody.
    Deadline(Duration),
    /// The server answered that it cannot answer.
    Refused(ApplicationErrorKind, String),
    /// The server answered with an exception that the IDL declares for this method.
    Declared(Arc<dyn std::error::Error + Send + Sync>),
    /// An answer, or a request, that is not what the protocol or the IDL says.
    Malformed(String),
    /// A request beyond the limits: it was not sent.
    TooLarge(String),
    /// Every sequence id of this connection has been used: connect anew.
    Exhausted,
}

impl Error {
    /// The exception that the IDL declares, if it is one of this type.
    #[must_use]
    pub fn declared<E: std::error::Error + 'static>(&self) -> Option<&E> {
        match self {
            Self::Declared(exception) => exception.downcast_ref(),
            _ => None,
        }
    }

    /// Whether another server, or another connection, may well answer.
    #[must_use]
    pub fn is_of_the_connection(&self) -> bool {
        matches!(self, Self::Closed(_) | Self::Deadline(_) | Self::Exhausted)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Closed(reason) => write!(f, "no connection: {reason}"),
            Self::Deadline(after) => write!(f, "no answer within {after:?}"),
            Self::Refused(kind, why) => write!(f, "refused by the server: {why} ({kind:?})"),
            Self::Declared(exception) => write!(f, "exception: {exception}"),
            Self::Malformed(what) => write!(f, "malformed: {what}"),
            Self::TooLarge(what) => write!(f, "too large: {what}"),
            Self::Exhausted => f.write_str("no sequence id is left on this connection"),
        }
    }
}

impl std::error::Error for Error {}

impl From<thrift::Error> for Error {
    fn from(error: thrift::Error) -> Self {
        match error {
            thrift::Error::Application(error) => Self::Refused(error.kind, error.message),
            thrift::Error::User(exception) => Self::Declared(exception.into()),
            thrift::Error::Protocol(error) => Self::Malformed(error.message),
            // All reading is from a slice: this is its end.
            thrift::Error::Transport(error) => Self::Malformed(error.message),
        }
    }
}
