//! Lines for standard error, written by a thread of their own: if they are not read, a write blocks,
//! and no task of the server may wait for it.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Lines that wait to be written. Further ones are left out, and counted.
const WAITING: usize = 1024;

/// Bytes of a line that are written: the name of a method may be as long as a frame.
const LONGEST: usize = 1024;

/// Lines about closed connections in a second: clients can cause thousands, and fill a disk.
const CLOSED: u32 = 10;

/// How long the last lines of the program may take to be written.
const LAST: Duration = Duration::from_secs(1);

static LOG: LazyLock<Log> = LazyLock::new(Log::new);

struct Log {
    lines: SyncSender<Line>,
    left_out: Arc<AtomicU64>,
    /// The beginning of the second, and the lines about closed connections in it.
    closed: Mutex<(Instant, u32)>,
}

/// What the thread gets.
enum Line {
    Text(String),
    /// All before is to be written, which is noted here.
    Flush(SyncSender<()>),
}

impl Log {
    fn new() -> Self {
        let (lines, received) = sync_channel(WAITING);
        let left_out = Arc::<AtomicU64>::default();
        thread::spawn({
            let left_out = Arc::clone(&left_out);
            move || run(&received, &left_out)
        });
        Self { lines, left_out, closed: Mutex::new((Instant::now(), 0)) }
    }

    fn leave_out(&self) {
        self.left_out.fetch_add(1, Relaxed);
    }

    fn may_write_closed(&self) -> bool {
        let (second, count) = &mut *self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if second.elapsed() >= Duration::from_secs(1) {
            (*second, *count) = (Instant::now(), 0);
        }
        *count += 1;
        *count <= CLOSED
    }
}

/// Writes the lines. Nothing can be done about an error: there is no other place to report it.
fn run(lines: &Receiver<Line>, left_out: &AtomicU64) {
    loop {
        let line = lines.recv_timeout(Duration::from_secs(1));
        if matches!(line, Err(RecvTimeoutError::Disconnected)) {
            return;
        }
        let count = left_out.swap(0, Relaxed);
        if count > 0 {
            let _ = writeln!(io::stderr(), "{count} lines are left out");
        }
        match line {
            Ok(Line::Text(text)) => {
                let _ = writeln!(io::stderr(), "{text}");
            }
            Ok(Line::Flush(written)) => {
                let _ = written.try_send(());
            }
            Err(_) => {}
        }
    }
}

/// Writes a line when there is time.
pub(crate) fn line(mut text: String) {
    if text.len() > LONGEST {
        let end = (0..=LONGEST).rfind(|&end| text.is_char_boundary(end));
        text.truncate(end.unwrap_or(0));
        text.push('…');
    }
    if LOG.lines.try_send(Line::Text(text)).is_err() {
        LOG.leave_out();
    }
}

/// Writes a line about a connection that is closed, unless there were many in this second.
pub(crate) fn closed(text: String) {
    if LOG.may_write_closed() {
        line(text);
    } else {
        LOG.leave_out();
    }
}

/// Called at the end of the program. Waits until the lines are written, but not for long: they may
/// not be read.
pub(crate) fn flush() {
    let (written, is_written) = sync_channel(1);
    if LOG.lines.try_send(Line::Flush(written)).is_ok() {
        let _ = is_written.recv_timeout(LAST);
    }
}
