//! The clients: a thread of their own reads all sockets and checks each byte.

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cpu_time::{ProcessTime, ThreadTime};
use futures::channel::oneshot;
use futures::future::join_all;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

use crate::sockets::{self, LINE_LENGTH, Line};
use crate::threads::Threads;

/// The longest time for all lines. A program that forgets a flush would wait forever.
const TIMEOUT: Duration = Duration::from_secs(60);

pub(super) struct Clients {
    thread: JoinHandle<()>,
    arrived: oneshot::Receiver<Arrived>,
}

/// The moment when the last line has arrived.
pub(super) struct Arrived {
    pub(super) at: Instant,
    pub(super) process: ProcessTime,
    /// The processor time of the clients.
    pub(super) clients: Duration,
}

impl Clients {
    /// Starts the clients, which expect `lines` lines together, and waits until they are ready.
    pub(super) fn start(sockets: Vec<TcpStream>, lines: u64) -> Self {
        let (all_arrived, arrived) = oneshot::channel();
        let (ready, is_ready) = mpsc::channel();
        let thread = thread::spawn(move || {
            LocalSet::new().block_on(&Threads::One.runtime(), async {
                let sockets = sockets.into_iter().map(sockets::on_tokio).collect::<Vec<_>>();
                ready.send(()).expect("the program waits for its clients");
                let count = Rc::new(Count::new(lines, all_arrived));
                let readers = sockets.into_iter().enumerate();
                let readers =
                    readers.map(|(key, socket)| spawn_local(read(key, socket, Rc::clone(&count))));
                for reader in timeout(TIMEOUT, join_all(readers)).await.expect("lines are missing")
                {
                    reader.expect("each client received its lines");
                }
                assert_eq!(count.left.get(), 0, "some lines arrived twice");
            });
        });
        is_ready.recv().expect("the clients start");
        Self { thread, arrived }
    }

    pub(super) async fn all_arrived(&mut self) -> Arrived {
        (&mut self.arrived).await.expect("each client received its lines")
    }

    /// Waits for the clients, whose sockets were closed by the program.
    pub(super) fn join(self) {
        self.thread.join().expect("each client received its lines");
    }
}

/// Counts the bytes for all clients.
struct Count {
    left: Cell<u64>,
    start: ThreadTime,
    all_arrived: RefCell<Option<oneshot::Sender<Arrived>>>,
}

impl Count {
    fn new(lines: u64, all_arrived: oneshot::Sender<Arrived>) -> Self {
        Self {
            left: Cell::new(lines * LINE_LENGTH as u64),
            start: ThreadTime::now(),
            all_arrived: RefCell::new(Some(all_arrived)),
        }
    }

    fn add(&self, bytes: usize) {
        let left = self.left.get().checked_sub(bytes as u64).expect("some lines arrived twice");
        self.left.set(left);
        if left == 0
            && let Some(all_arrived) = self.all_arrived.take()
        {
            let (process, clients) = (ProcessTime::now(), self.start.elapsed());
            let _ = all_arrived.send(Arrived { at: Instant::now(), process, clients });
        }
    }
}

thread_local! {
    /// A buffer for all clients: it holds no data across an await.
    static SCRATCH: RefCell<Vec<u8>> = RefCell::new(vec![0; 1 << 16]);
}

async fn read(key: usize, socket: tokio::net::TcpStream, count: Rc<Count>) {
    let pattern = Line::new(key).bytes().repeat(64);
    let mut total = 0;
    loop {
        socket.readable().await.expect("the socket is open");
        let read = SCRATCH.with_borrow_mut(|scratch| {
            let read = socket.try_read(scratch);
            if let Ok(read) = read {
                check(&scratch[..read], &pattern, total);
            }
            read
        });
        match read {
            Ok(0) => return,
            Ok(read) => {
                total += read;
                count.add(read);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => panic!("client {key}: {error}"),
        }
    }
}

/// Panics if `received` does not continue the repeated line at this position.
fn check(mut received: &[u8], pattern: &[u8], position: usize) {
    let mut at = position % LINE_LENGTH;
    while !received.is_empty() {
        let (chunk, rest) = received.split_at(received.len().min(pattern.len() - at));
        assert!(chunk == &pattern[at..at + chunk.len()], "a line went to the wrong client");
        (received, at) = (rest, 0);
    }
}
