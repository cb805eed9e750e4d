//! [`Settings`]: the times and bounds of a bridge.

use std::time::Duration;

/// Longer times are cut to this, thirty years, so that points in time and multiples of a time can be
/// calculated. Not every clock shows a hundred.
pub(crate) const LONGEST_TIME: Duration = Duration::from_secs(30 * 365 * 24 * 60 * 60);

/// No time is longer than [`LONGEST_TIME`].
#[derive(Debug, Clone)]
pub(crate) struct Settings {
    pub(crate) publish_timeout: Duration,
    /// How many publishers may wait for an answer of the engine at once.
    pub(crate) window: usize,
    pub(crate) connect_timeout: Duration,
    pub(crate) heartbeat: Duration,
    pub(crate) shortest_delay: Duration,
    pub(crate) longest_delay: Duration,
    /// How many bytes of arrivals may wait for the hub.
    pub(crate) arrivals: usize,
}

/// * `publish_timeout`: long enough for a restart of the engine (Redis: a second or two) and the
///   reconnection after it, short enough for a person who waits for it.
/// * `window`: more than any engine needs to be busy (a round trip of 10 ms and 100,000 items a
///   second), and little memory if the items are small.
/// * `heartbeat`: a silent connection is replaced after four of them, so a pause of the engine of
///   less than six seconds breaks nothing, and a cut is noticed within eight.
/// * `connect_timeout`: two packets may be lost and sent again (1 s, 3 s).
/// * `longest_delay`: less than half of `publish_timeout`, so that an item that is published when the
///   engine is there again finds a connection in time.
/// * `arrivals`: what a connection brings in a few milliseconds.
impl Default for Settings {
    fn default() -> Self {
        Self {
            publish_timeout: Duration::from_secs(5),
            window: 1_024,
            connect_timeout: Duration::from_secs(5),
            heartbeat: Duration::from_secs(2),
            shortest_delay: Duration::from_millis(100),
            longest_delay: Duration::from_secs(2),
            arrivals: 256 * 1_024,
        }
    }
}
