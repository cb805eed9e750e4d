//! The errors of a call.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thrift::ApplicationErrorKind;

/// Why a call has no answer.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Error {
    /// The connection failed or was closed, with the reason.
    Closed(Arc<str>),
    /// The deadline passed. A later answer is discarded.
    Deadline(Duration),
    /// The server answered with a Thrift application exception.
    Refused(ApplicationErrorKind, String),
    /// The server answered with an exception that the IDL declares for this method.
    Declared(Arc<dyn std::error::Error + Send + Sync>),
    /// An answer or a request violates the protocol or the IDL, or an answer has no result.
    Malformed(String),
    /// The request exceeds the [`Limits`](crate::Limits) and was not sent.
    TooLarge(String),
    /// All sequence ids of this connection have been used. A new connection is needed.
    Exhausted,
}

impl Error {
    /// Returns the declared exception if it has the type `E`.
    #[must_use]
    pub fn declared<E: std::error::Error + 'static>(&self) -> Option<&E> {
        match self {
            Self::Declared(exception) => exception.downcast_ref(),
            _ => None,
        }
    }

    /// Returns `true` if the call may succeed on another server or another connection.
    #[must_use]
    pub fn is_connection_error(&self) -> bool {
        matches!(self, Self::Closed(_) | Self::Deadline(_) | Self::Exhausted)
    }

    /// Returns `true` if the answer could not be read. Another server may answer better.
    pub(crate) fn is_malformed(&self) -> bool {
        matches!(self, Self::Malformed(_))
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
            // All reading is from a slice, so this is an unexpected end of the frame.
            thrift::Error::Transport(error) => Self::Malformed(error.message),
        }
    }
}
