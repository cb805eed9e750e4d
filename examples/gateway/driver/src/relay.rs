//! A TCP relay that delays the traffic, or goes silent.

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

/// Listens on the given port, or a free one, and forwards everything after this delay.
pub async fn start(port: u16, target: String, delay: Duration) -> io::Result<(u16, Freezer)> {
    let listener = TcpListener::bind(("127.0.0.1", port)).await?;
    let port = listener.local_addr()?.port();
    let freezer = Freezer(watch::Sender::new(0));
    let receiver = freezer.0.clone();
    tokio::spawn(async move {
        while let Ok((near, _)) = listener.accept().await {
            let (target, frozen) = (target.clone(), receiver.subscribe());
            tokio::spawn(async move {
                let Ok(far) = TcpStream::connect(&target).await else { return };
                let _ = (near.set_nodelay(true), far.set_nodelay(true));
                let ((near_in, near_out), (far_in, far_out)) =
                    (near.into_split(), far.into_split());
                let back = pass(far_in, near_out, delay, frozen.clone());
                tokio::join!(pass(near_in, far_out, delay, frozen), back);
            });
        }
    });
    Ok((port, freezer))
}

/// Makes the open connections silent for good.
pub struct Freezer(watch::Sender<u32>);

/// Runs a relay in this process; SIGUSR1 freezes its open connections.
pub async fn run(port: u16, target: String) -> Result<(), String> {
    let mut freeze = signal(SignalKind::user_defined1()).map_err(|error| error.to_string())?;
    let (_, freezer) =
        start(port, target, Duration::ZERO).await.map_err(|error| error.to_string())?;
    println!("@ready");
    while freeze.recv().await.is_some() {
        freezer.0.send_modify(|count| *count += 1);
    }
    Ok(())
}

async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    delay: Duration,
    mut frozen: watch::Receiver<u32>,
) {
    let (chunks, mut due) = mpsc::channel::<(Instant, Vec<u8>)>(WINDOW);
    let reading = async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let chunk = (Instant::now() + delay, buffer[..count].to_vec());
            if chunks.send(chunk).await.is_err() {
                break;
            }
        }
    };
    let writing = async move {
        while let Some((when, chunk)) = due.recv().await {
            sleep_until(when).await;
            if to.write_all(&chunk).await.is_err() {
                break;
            }
        }
    };
    let mut passing = std::pin::pin!(async { tokio::join!(reading, writing) });
    tokio::select! {
        _ = &mut passing => {}
        // Keep both sockets open, but neither read nor write any more.
        _ = frozen.changed() => std::future::pending().await,
    }
}
