//! [`UrlError`]: the URL of an engine cannot be used.

use std::error::Error;
use std::fmt;

/// The URL of an engine cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UrlError(pub(crate) String);

impl fmt::Display for UrlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the URL of the engine cannot be used: {}", self.0)
    }
}

impl Error for UrlError {}
