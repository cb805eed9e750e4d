//! Remembers what the broker has refused.

use std::num::NonZeroUsize;
use std::time::Duration;

use lru::LruCache;
use tokio::time::Instant;

/// How long a refused key is refused without asking the broker, which would close a channel each
/// time. After an operator has granted the permission, the key is refused for as long.
const REFUSED_FOR: Duration = Duration::from_secs(10);
/// Refused keys that are remembered: at most 3 MB.
const REFUSED: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// The keys that the broker has refused most recently.
pub struct Refusals(LruCache<String, Instant>);

impl Refusals {
    pub fn new() -> Self {
        Self(LruCache::new(REFUSED))
    }

    pub fn add(&mut self, key: &str) {
        self.0.put(key.to_owned(), Instant::now());
    }

    /// Returns `true` if the broker would probably refuse the key again.
    pub fn contains(&mut self, key: &str) -> bool {
        self.0.get(key).is_some_and(|since| since.elapsed() < REFUSED_FOR)
    }
}
