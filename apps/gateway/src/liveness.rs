//! Whether a client is alive, judged by its answers to pings.
//!
//! Not by the time since it was heard: if the process is stopped, or the machine is, all clients have
//! been silent for as long, and on resume the timers fire before the answers that have arrived are
//! read. So only a ping counts that was sent while the gateway ran, and a tick that is late is not made
//! up for. After the last ping the client gets [a part](CHANCE) of an interval more, and what has
//! arrived by then is read before it is judged ([`crate::client`]).

use std::pin::Pin;
use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, Sleep, interval_at, sleep};

/// A client is gone when it has left so many pings in a row unanswered. A single one may be lost with
/// a mobile network for some seconds; TCP repeats it until then.
const PINGS: u32 = 3;
/// The answer to the last ping may take this part of an interval: by default 5 s, more than the round
/// trip of any network that is usable.
const CHANCE: u32 = 3;

pub struct Liveness {
    period: Duration,
    tick: Interval,
    unanswered: u32,
    /// When to judge, once all pings are sent.
    end: Option<Pin<Box<Sleep>>>,
}

/// What is to be done.
#[derive(Debug, PartialEq)]
pub enum Next {
    Ping,
    Judge,
}

impl Liveness {
    pub fn new(period: Duration) -> Self {
        let mut tick = interval_at(Instant::now() + period, period);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { period, tick, unanswered: 0, end: None }
    }

    /// The client has answered, or has sent or taken something else.
    pub fn heard(&mut self) {
        self.unanswered = 0;
        self.end = None;
    }

    /// Returns what is to be done next, when it is time. Dropping the future has no effect.
    pub async fn next(&mut self) -> Next {
        if let Some(end) = &mut self.end {
            end.await;
            // Stays due until the client is heard.
            return Next::Judge;
        }
        self.tick.tick().await;
        Next::Ping
    }

    /// Counts a ping that is sent, or that cannot be sent because the client takes nothing.
    pub fn pinged(&mut self) {
        self.unanswered += 1;
        if self.unanswered >= PINGS {
            self.end = Some(Box::pin(sleep(self.period / CHANCE)));
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::time::{advance, pause};

    use super::*;

    const PERIOD: Duration = Duration::from_secs(15);

    #[tokio::test]
    async fn a_silent_client_is_judged_after_three_pings_and_a_part_of_an_interval() {
        pause();
        let mut liveness = Liveness::new(PERIOD);
        let start = Instant::now();
        for _ in 0..PINGS {
            assert_eq!(liveness.next().await, Next::Ping);
            liveness.pinged();
        }
        assert_eq!(liveness.next().await, Next::Judge);
        assert_eq!(start.elapsed().as_secs(), 50);
        liveness.heard();
        assert_eq!(liveness.next().await, Next::Ping);
    }

    #[tokio::test]
    async fn a_pause_of_the_process_is_one_ping_however_long_it_was() {
        pause();
        let mut liveness = Liveness::new(PERIOD);
        advance(100 * PERIOD).await;
        assert_eq!(liveness.next().await, Next::Ping);
        liveness.pinged();
        assert_eq!(liveness.next().now_or_never(), None, "the client gets time to answer");
        liveness.heard();
        advance(PERIOD).await;
        assert_eq!(liveness.next().await, Next::Ping);
    }
}
