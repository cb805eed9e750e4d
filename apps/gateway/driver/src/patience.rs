//! A client that reads so slowly that messages wait for it for longer than the broker waits for
//! acknowledgements, beside one that reads.

use std::time::Duration;

use reqwest::Client as Http;
use tokio::io::AsyncReadExt;
use tokio::time::{interval, sleep, timeout};

use crate::client::{self, Socket, next};
use crate::publish;
use crate::stats;

/// The slow client takes so many bytes at a time, ten times a second.
const TAKEN: usize = 60;
/// Bytes of a message, and messages a second.
const SIZE: usize = 1_000;
const RATE: u32 = 20;
/// How long the slow client may take to be disconnected: the time-out, and the close.
const ENDED: Duration = Duration::from_secs(60);

#[derive(Debug, clap::Args)]
pub struct Patience {
    /// HOST:PORT of the gateway
    #[arg(long)]
    gateway: String,
    #[arg(long)]
    seconds: u32,
    /// The gateway may lose the connection to the broker so often: it learns the time-out from that
    #[arg(long, default_value_t = 0)]
    reconnects: u64,
    /// The slow client is to be disconnected.
    #[arg(long)]
    waits: bool,
}

impl Patience {
    pub async fn run(self) -> Result<(), String> {
        let mut slow = client::subscriber(&self.gateway, Some(4096), ["tea"]).await?;
        client::subscribed(&mut slow, 1).await?;
        let mut healthy = client::subscriber(&self.gateway, None, ["tea"]).await?;
        client::subscribed(&mut healthy, 1).await?;
        let slow = tokio::spawn(read_slowly(slow));
        let count = self.seconds * RATE;
        let gateway = self.gateway.clone();
        let waits = self.waits;
        let publishing = tokio::spawn(async move {
            let (http, mut tick) = (Http::new(), interval(Duration::from_secs(1) / RATE));
            for number in 0..count {
                tick.tick().await;
                let body = format!("{number} {}", "x".repeat(SIZE)).into_bytes();
                publish::post_one(&http, &gateway, "tea", body, true).await?;
            }
            Ok::<_, String>(())
        });
        let (mut heard, mut again) = (0, 0);
        while heard < count {
            let value = next(&mut healthy).await?;
            let number: Option<u32> =
                value["body"].as_str().and_then(|body| body.split(' ').next()?.parse().ok());
            match number {
                Some(number) if number == heard => heard += 1,
                // Without the mark, it was posted again after a 503, while the broker was lost.
                Some(number)
                    if number < heard && (value["redelivered"] == true || self.reconnects > 0) =>
                {
                    again += 1;
                }
                _ => return Err(format!("expected message {heard}, got {value:.100}")),
            }
        }
        publishing.await.map_err(|error| error.to_string())??;
        let reconnects = stats::counter(&self.gateway, "gateway_reconnects_total").await?;
        println!(
            "  the client that reads hears {heard} messages, and {again} of them again; the broker closed \
             {reconnects} times"
        );
        if reconnects > self.reconnects {
            return Err("the broker has closed the connection too often".into());
        }
        if again > 0 && self.reconnects == 0 {
            Err("messages are repeated".into())
        } else if waits {
            let ended = timeout(ENDED, slow).await;
            ended
                .map_err(|_| "the slow client is still connected".to_owned())?
                .map_err(|error| error.to_string())
        } else if slow.is_finished() {
            Err("the slow client is disconnected".into())
        } else {
            slow.abort();
            Ok(())
        }
    }
}

/// Reads below the WebSocket until the connection ends.
async fn read_slowly(mut socket: Socket) {
    let mut bytes = [0; TAKEN];
    while socket.get_mut().read(&mut bytes).await.is_ok_and(|count| count > 0) {
        sleep(Duration::from_millis(100)).await;
    }
}
