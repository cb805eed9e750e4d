//! A TCP relay that delays the traffic, goes silent, or keeps back what is sent to the target.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};

/// Chunks in flight in each direction.
const WINDOW: usize = 64;
/// The class and the method of `queue.unbind` in AMQP.
const UNBIND: [u8; 4] = [0, 50, 0, 50];

/// Listens on the given port, or a free one, and forwards everything after this delay.
pub async fn start(port: u16, target: String, delay: Duration) -> io::Result<(u16, Switches)> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let port = listener.local_addr()?.port();
    let switches = Switches { silence: watch::Sender::new(()), is_held: watch::Sender::new(false) };
    let (silence, is_held) = (switches.silence.clone(), switches.is_held.clone());
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let target = target.clone();
            let mut silenced = silence.subscribe();
            let is_held = is_held.subscribe();
            tokio::spawn(async move {
                let Ok(far) = TcpStream::connect(&target).await else { return };
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                let ((near_in, near_out), (far_in, far_out)) =
                    (near.into_split(), far.into_split());
                let there = pass(near_in, far_out, delay, Some(is_held));
                let back = pass(far_in, near_out, delay, None);
                let mut passing = std::pin::pin!(async { tokio::join!(there, back) });
                tokio::select! {
                    _ = &mut passing => {}
                    // Keep both sockets open, but neither read nor write any more.
                    _ = silenced.changed() => std::future::pending().await,
                }
            });
        }
    });
    Ok((port, switches))
}

/// Changes what the relay does with its connections.
pub struct Switches {
    /// The open connections go silent for good.
    silence: watch::Sender<()>,
    /// What is sent to the target is kept back.
    is_held: watch::Sender<bool>,
}

/// Runs a relay in this process. SIGUSR1 makes its open connections silent. SIGUSR2 makes it keep
/// back what is sent to the target, and the next one sends that, even if the sender has gone by
/// then. It prints `@unbind` when it keeps back a `queue.unbind` of AMQP.
pub async fn run(port: u16, target: String) -> Result<(), String> {
    let listen = |kind| signal(kind).map_err(|error: io::Error| error.to_string());
    let mut silence = listen(SignalKind::user_defined1())?;
    let mut hold = listen(SignalKind::user_defined2())?;
    let (_, switches) =
        start(port, target, Duration::ZERO).await.map_err(|error| error.to_string())?;
    println!("@ready");
    loop {
        tokio::select! {
            Some(()) = silence.recv() => switches.silence.send_replace(()),
            Some(()) = hold.recv() => {
                switches.is_held.send_modify(|is_held| *is_held = !*is_held);
                println!("@held {}", *switches.is_held.borrow());
            }
            else => return Ok(()),
        }
    }
}

/// Forwards one direction, until it ends.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    delay: Duration,
    mut is_held: Option<watch::Receiver<bool>>,
) {
    let (chunks, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(WINDOW);
    let held = is_held.clone();
    let reading = async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let bytes = &buffer[..count];
            let is_held = held.as_ref().is_some_and(|is_held| *is_held.borrow());
            if is_held && bytes.windows(UNBIND.len()).any(|some| some == UNBIND) {
                println!("@unbind");
            }
            if chunks.send((Instant::now() + delay, bytes.to_vec())).await.is_err() {
                break;
            }
        }
    };
    let writing = async move {
        while let Some((when, chunk)) = due.recv().await {
            sleep_until(when).await;
            if let Some(is_held) = &mut is_held {
                let _ = is_held.wait_for(|is_held| !is_held).await;
            }
            if to.write_all(&chunk).await.is_err() {
                break;
            }
        }
    };
    tokio::join!(reading, writing);
}
