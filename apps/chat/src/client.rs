//! One client: a WebSocket, and the rooms that it is in.
//!
//! Two halves run side by side. One reads what the client asks for, and changes its rooms. The other
//! writes what is said in them. When the client reads slowly, the second waits; the first goes on,
//! so a room that the client leaves is left at once, and what it says is heard. Meanwhile lines wait
//! in the buffer of the subscription; the oldest make room, and the client is told how many.

use std::io;
use std::pin::pin;
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use futures::stream::SplitSink;
use futures::{SinkExt, Stream, StreamExt};
use stream_demux_bridge::{Bridge, Keys, Received, Subscription, Terms};
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::{MissedTickBehavior, interval, timeout};

/// Lines that may wait for a slow client: a few seconds of a busy room.
const LINES: usize = 256;
/// Keeps clients from what else uses the server: its own channels have names, too.
const PREFIX: &str = "chat:";
/// Each room takes memory here and a subscription of the engine.
const ROOMS: usize = 100;
pub(crate) const LONGEST_MESSAGE: usize = 4_096;
/// A client that takes nothing for this long is gone. The client is also sent a ping this often.
const PATIENCE: Duration = Duration::from_secs(30);
/// A client from which nothing comes for this long is gone: it has answered neither of two pings.
const SILENCE: Duration = PATIENCE.saturating_mul(2);

pub(crate) async fn talk(socket: WebSocket, chat: Bridge) {
    let said = chat.subscription(Terms::new().buffer(LINES));
    let rooms = said.keys();
    let (writer, reader) = socket.split();
    let (errors, error) = mpsc::channel(1);
    // The first half that ends ends the client.
    tokio::select! {
        _ = listen(reader, rooms, chat, errors) => {}
        _ = speak(writer, said, error) => {}
    }
}

/// Does what the client asks for: `join ROOM`, `leave ROOM`, `say ROOM TEXT`.
async fn listen(
    mut reader: impl Stream<Item = Result<Message, axum::Error>> + Unpin,
    rooms: Keys,
    chat: Bridge,
    errors: Sender<String>,
) -> Result<(), axum::Error> {
    // The answers to pings are messages, too.
    while let Some(message) = within(SILENCE, reader.next()).await? {
        let Message::Text(message) = message? else { continue };
        let mut words = message.splitn(3, ' ');
        let answer = match (words.next(), words.next(), words.next()) {
            (Some("join"), Some(room), None) if rooms.len() < ROOMS => {
                rooms.add(format!("{PREFIX}{room}"));
                Ok(())
            }
            (Some("join"), Some(_), None) => Err(format!("no more than {ROOMS} rooms at once")),
            (Some("leave"), Some(room), None) => {
                rooms.remove(&format!("{PREFIX}{room}"));
                Ok(())
            }
            (Some("say"), Some(room), Some(text)) => {
                let said = chat.publish(&format!("{PREFIX}{room}"), text.to_owned()).await;
                said.map_err(|error| format!("{room}: {error}"))
            }
            _ => Err("say `join ROOM`, `leave ROOM` or `say ROOM TEXT`".to_owned()),
        };
        if let Err(error) = answer {
            // A client that asks for errors and does not read them is not listened to meanwhile.
            if errors.send(error).await.is_err() {
                break;
            }
        }
    }
    Ok(())
}

/// Tells the client what is said in its rooms, and what went wrong.
async fn speak(
    mut writer: SplitSink<WebSocket, Message>,
    mut said: Subscription,
    mut errors: Receiver<String>,
) -> Result<(), axum::Error> {
    let mut batch = Vec::new();
    let mut pings = interval(PATIENCE);
    pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            count = said.recv_many(&mut batch, LINES) => {
                if count == 0 {
                    return writer.close().await;
                }
            }
            Some(error) = errors.recv() => {
                write(&mut writer, [format!("error {error}").into()]).await?;
            }
            _ = pings.tick() => write(&mut writer, [Message::Ping("".into())]).await?,
        }
        write(&mut writer, batch.drain(..).map(|received| text(received).into())).await?;
    }
}

fn text(received: Received) -> String {
    let name = |key: &str| key.strip_prefix(PREFIX).unwrap_or(key).to_owned();
    match received {
        Received::Item { key, item } => {
            format!("said {} {}", name(&key), String::from_utf8_lossy(&item))
        }
        Received::Joined(room) => format!("joined {}", name(&room)),
        Received::Gap(room) => format!("missed {}", name(&room)),
        Received::Lagged(lines) => format!("lost {lines}"),
        Received::Refused { key, reason } => format!("refused {} {reason}", name(&key)),
        other => format!("error {other:?}"),
    }
}

/// Writes messages, with one flush for all.
async fn write(
    writer: &mut SplitSink<WebSocket, Message>,
    messages: impl IntoIterator<Item = Message>,
) -> Result<(), axum::Error> {
    let all = async {
        for message in messages {
            writer.feed(message).await?;
        }
        writer.flush().await
    };
    within(PATIENCE, all).await?
}

/// Waits for something that a client does, for this long at most.
///
/// The time is counted in tenths. A process that was stopped finds one of them over, however long
/// that was, and has the rest to look at its sockets.
async fn within<T>(time: Duration, event: impl Future<Output = T>) -> Result<T, axum::Error> {
    const PARTS: u32 = 10;
    let mut event = pin!(event);
    for _ in 0..PARTS {
        if let Ok(done) = timeout(time / PARTS, &mut event).await {
            return Ok(done);
        }
    }
    Err(axum::Error::new(io::Error::from(io::ErrorKind::TimedOut)))
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures::channel::mpsc::{UnboundedSender, unbounded};
    use tokio::task::JoinHandle;
    use tokio::time::{Instant, advance, sleep};

    use super::*;

    type Frames = UnboundedSender<Result<Message, axum::Error>>;

    fn pong() -> Message {
        Message::Pong("".into())
    }

    /// The half of a client that reads, and what it reads.
    fn listening() -> (Frames, JoinHandle<Result<(), axum::Error>>) {
        let (frames, reader) = unbounded();
        let chat = Bridge::local();
        let rooms = chat.subscription(Terms::new()).keys();
        let (errors, _) = mpsc::channel(1);
        (frames, tokio::spawn(listen(reader, rooms, chat, errors)))
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_vanishes_from_a_silent_room_is_given_up() {
        let (frames, client) = listening();
        for _ in 0..100 {
            frames.unbounded_send(Ok(pong())).unwrap();
            sleep(PATIENCE).await;
        }
        assert!(!client.is_finished(), "it answers");
        let last = Instant::now();
        let end = timeout(2 * SILENCE, client).await.expect("it ends");
        assert!(end.unwrap().is_err());
        assert!(last.elapsed() <= SILENCE, "{:?}", last.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn process_that_was_stopped_reads_before_it_gives_a_client_up() {
        let (frames, client) = listening();
        frames.unbounded_send(Ok(pong())).unwrap();
        sleep(PATIENCE).await;
        // The time is over before anything is read.
        advance(100 * SILENCE).await;
        sleep(Duration::from_secs(1)).await;
        assert!(!client.is_finished());
        frames.unbounded_send(Ok(pong())).unwrap();
        sleep(PATIENCE).await;
        assert!(!client.is_finished());
    }

    #[tokio::test(start_paused = true)]
    async fn time_that_a_process_is_stopped_for_does_not_run() {
        let waiting = tokio::spawn(within(PATIENCE, pending::<()>()));
        sleep(PATIENCE / 2).await;
        advance(100 * PATIENCE).await;
        sleep(PATIENCE / 4).await;
        assert!(!waiting.is_finished());
        sleep(PATIENCE / 2).await;
        assert!(waiting.is_finished());
    }
}
