//! The clients of a program that writes lines: a thread of their own reads all sockets and checks
//! each byte.

use std::cell::{Cell, RefCell};
use std::io::ErrorKind;
use std::net::TcpStream;
use std::rc::Rc;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use cpu_time::{ProcessTime, ThreadTime};
use futures::StreamExt;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::future::join_all;
use tokio::task::{LocalSet, spawn_local};
use tokio::time::timeout;

use crate::sockets::{LINE_LENGTH, Line, on_tokio};
use crate::threads::Threads;

/// The longest time for all lines. A program that forgets a flush would wait forever.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The clients.
#[derive(Debug)]
pub(crate) struct Clients {
    thread: JoinHandle<()>,
    arrived: UnboundedReceiver<Arrived>,
}

/// The moment when the last line of a burst has arrived.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) at: Instant,
    pub(crate) process: ProcessTime,
    /// The processor time of the clients since they were started.
    pub(crate) clients: Duration,
}

impl Clients {
    /// Starts a client for each key, and waits until they are ready. They expect `bursts` bursts of
    /// `lines` lines together.
    pub(crate) fn start(clients: Vec<(usize, TcpStream)>, lines: u64, bursts: u64) -> Self {
        let (sender, arrived) = unbounded();
        let (ready, is_ready) = mpsc::channel();
        let thread = thread::Builder::new().name("clients".to_owned()).spawn(move || {
            LocalSet::new().block_on(&Threads::One.runtime(), async {
                let clients = clients.into_iter().map(|(key, socket)| (key, on_tokio(socket)));
                let clients = clients.collect::<Vec<_>>();
                ready.send(()).expect("the program waits for its clients");
                let count = Rc::new(Count::new(lines, bursts, sender));
                let readers = clients.into_iter();
                let readers =
                    readers.map(|(key, socket)| spawn_local(read(key, socket, Rc::clone(&count))));
                for reader in timeout(TIMEOUT, join_all(readers)).await.expect("lines are missing")
                {
                    reader.expect("each client received its lines");
                }
                assert_eq!(count.bursts.get(), 0, "lines are missing");
            });
        });
        let thread = thread.expect("the system has a thread left");
        is_ready.recv().expect("the clients start");
        Self { thread, arrived }
    }

    /// Waits for the last line of the next burst.
    pub(crate) async fn burst_arrived(&mut self) -> Arrived {
        self.arrived.next().await.expect("each client received its lines")
    }

    /// Waits for the clients, whose sockets were closed by the program.
    pub(crate) fn join(self) {
        self.thread.join().expect("each client received its lines");
    }
}

/// Counts the bytes for all clients.
struct Count {
    /// The bytes of a burst that are missing.
    left: Cell<u64>,
    /// The bursts that are missing, with this one.
    bursts: Cell<u64>,
    burst: u64,
    start: ThreadTime,
    arrived: UnboundedSender<Arrived>,
}

impl Count {
    fn new(lines: u64, bursts: u64, arrived: UnboundedSender<Arrived>) -> Self {
        let burst = lines * LINE_LENGTH as u64;
        let (left, bursts) = (Cell::new(burst), Cell::new(bursts));
        Self { left, bursts, burst, start: ThreadTime::now(), arrived }
    }

    fn add(&self, bytes: usize) {
        let left = self.left.get().checked_sub(bytes as u64).expect("some lines arrived twice");
        self.left.set(left);
        if left == 0 {
            let (process, clients) = (ProcessTime::now(), self.start.elapsed());
            let arrived = Arrived { at: Instant::now(), process, clients };
            let _ = self.arrived.unbounded_send(arrived);
            let bursts = self.bursts.get() - 1;
            self.bursts.set(bursts);
            self.left.set(if bursts == 0 { 0 } else { self.burst });
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
