//! What a worker returns: [`WorkerOutput`] and [`WorkerError`].

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// What a worker of [`for_each_by_key`](super::for_each_by_key) may return: nothing, or a `Result`.
///
/// The error may be anything that a `Box<dyn Error + Send + Sync>` can be made of: each type that
/// implements [`Error`], a `String`, a `&str`, or the error of `anyhow`.
///
/// The trait is sealed.
#[diagnostic::on_unimplemented(
    message = "a worker returns `()` or a `Result<(), E>`, not `{Self}`",
    note = "`E` is anything that converts into `Box<dyn Error + Send + Sync>`"
)]
pub trait WorkerOutput: sealed::IntoResult + Send {}

impl WorkerOutput for () {}

impl<E> WorkerOutput for Result<(), E> where E: Into<BoxError> + Send {}

pub(super) type BoxError = Box<dyn Error + Send + Sync>;

pub(super) mod sealed {
    use super::BoxError;

    pub trait IntoResult {
        fn into_result(self) -> Result<(), BoxError>;
    }

    impl IntoResult for () {
        fn into_result(self) -> Result<(), BoxError> {
            Ok(())
        }
    }

    impl<E: Into<BoxError>> IntoResult for Result<(), E> {
        fn into_result(self) -> Result<(), BoxError> {
            self.map_err(Into::into)
        }
    }
}

/// The first error that a worker returned, and its key.
///
/// A clone refers to the same error. Two are equal if they do so.
#[derive(Clone)]
#[non_exhaustive]
pub struct WorkerError<K> {
    /// The key of the worker.
    pub key: K,
    /// What it returned.
    pub error: Arc<dyn Error + Send + Sync>,
}

impl<K: PartialEq> PartialEq for WorkerError<K> {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && Arc::ptr_eq(&self.error, &other.error)
    }
}

impl<K: Eq> Eq for WorkerError<K> {}

impl<K: fmt::Debug> fmt::Debug for WorkerError<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WorkerError").field("key", &self.key).field("error", &self.error).finish()
    }
}

impl<K: fmt::Debug> fmt::Display for WorkerError<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "worker of {:?}: {}", self.key, self.error)
    }
}

impl<K: fmt::Debug> Error for WorkerError<K> {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.error)
    }
}
