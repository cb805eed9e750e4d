//! Lines that wait until standard error takes them.
//!
//! A program that reads the log may stop reading. A write to the full pipe then blocks its thread:
//! that of a task, or the one that handles signals. So a thread of its own writes. Lines for which
//! there is no room are left out and counted.
//!
//! This is not `tracing-appender`: when the program ends and not everything could be written, that
//! says so on standard error, and so blocks there.

use std::io::{self, Write};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TryRecvError, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use tracing::warn;

/// How many lines may wait. They have up to 2 KB each, and a burst of clients that come is shorter.
const ROOM: usize = 1_024;

/// How long the end of the program waits for a reader that is slow.
const PATIENCE: Duration = Duration::from_secs(1);

/// Between two attempts to find room at the end.
const PAUSE: Duration = Duration::from_millis(10);

static QUEUE: OnceLock<SyncSender<Entry>> = OnceLock::new();
static LEFT_OUT: AtomicU64 = AtomicU64::new(0);

enum Entry {
    Line(Vec<u8>),
    /// All lines before it are written: say so.
    End(Sender<()>),
}

/// The end of the queue. Each call of `write` is a line.
pub struct Queue;

impl Write for Queue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let entry = Entry::Line(line.to_vec());
        if QUEUE.get().is_none_or(|queue| queue.try_send(entry).is_err()) {
            LEFT_OUT.fetch_add(1, Relaxed);
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Starts the thread. Called before there are clients, who may use up what a thread needs.
pub fn start() -> io::Result<()> {
    let (queue, lines) = sync_channel(ROOM);
    thread::Builder::new().name("log".to_owned()).spawn(move || write_all(&lines))?;
    QUEUE.get_or_init(|| queue);
    Ok(())
}

fn write_all(lines: &Receiver<Entry>) {
    let mut to = io::stderr();
    loop {
        let entry = match lines.try_recv() {
            Ok(entry) => entry,
            Err(TryRecvError::Disconnected) => return,
            Err(TryRecvError::Empty) => {
                let count = LEFT_OUT.swap(0, Relaxed);
                if count > 0 {
                    warn!(count, "lines were left out: the log was not read");
                    continue;
                }
                let Ok(entry) = lines.recv() else { return };
                entry
            }
        };
        // It fails if standard error is closed, or the end of the program has waited too long.
        match entry {
            Entry::Line(line) => {
                let _ = to.write_all(&line);
            }
            Entry::End(written) => {
                let _ = written.send(());
            }
        }
    }
}

/// Waits until the lines so far are written, but not for a reader that does not read.
pub fn finish() {
    let Some(queue) = QUEUE.get() else { return };
    let end = Instant::now() + PATIENCE;
    let (written, is_written) = channel();
    while queue.try_send(Entry::End(written.clone())).is_err() {
        if Instant::now() >= end {
            return;
        }
        thread::sleep(PAUSE);
    }
    let _ = is_written.recv_timeout(end.saturating_duration_since(Instant::now()));
}
