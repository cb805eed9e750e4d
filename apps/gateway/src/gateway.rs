//! The state that all parts share, and their startup and shutdown.

use std::collections::HashMap;
use std::io::{self, Write};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures::future::{self, OptionFuture};
use tokio::net::{TcpListener, TcpSocket};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use crate::amqp::{Broker, Overdue};
use crate::batch::Batches;
use crate::board::Board;
use crate::budget::Budget;
use crate::config::Config;
use crate::demo;
use crate::hooks::GatewayHooks;
use crate::interest::Interest;
use crate::link::Channels;
use crate::log;
use crate::publisher::Publisher;
use crate::router::{self, Input, Orders};
use crate::serve::{NEW, serve};
use crate::shutdown::Signals;
use crate::source::Source;
use crate::subscription::Registry;

pub struct Gateway {
    pub config: Config,
    pub board: Arc<Board>,
    pub registry: Arc<Registry>,
    pub orders: Orders,
    pub source: Source,
    pub budget: Arc<Budget>,
    /// One permit for each WebSocket that may be open.
    pub places: Arc<Semaphore>,
    pub batches: Batches,
    pub clients: TaskTracker,
    /// Posts that were received and are not answered.
    pub posts: TaskTracker,
    /// `true` if it listens on a loopback address.
    pub is_local: bool,
    /// Cancelled when all messages are delivered: clients are then disconnected.
    pub routed: CancellationToken,
    /// Clients that were cut off at shutdown because they did not read.
    pub stuck: AtomicU64,
}

/// Descriptors for the runtime, the broker and the log.
const OTHER_DESCRIPTORS: u64 = 64;
/// The maximum length of a key, which is that of a short string in AMQP.
const LONGEST_KEY: usize = 255;
/// Timeout for each shutdown step after `--drain` has expired.
const TIMEOUT: Duration = Duration::from_millis(500);

impl Gateway {
    /// Returns an error if this key cannot be published or subscribed to.
    pub fn check_key(key: &str) -> Result<(), &'static str> {
        let is_wild = |word| word == "*" || word == "#";
        if key.is_empty() {
            return Err("the key is empty");
        }
        if key.len() > LONGEST_KEY {
            return Err("the key is longer than 255 bytes");
        }
        if key.chars().any(char::is_control) {
            return Err("the key has a control character");
        }
        // There is no wildcard matching: such a subscription would never receive anything.
        if key.split(['.', '/']).any(is_wild) {
            return Err("the key has a wildcard, * or #: there are none, keys are equal or not");
        }
        Ok(())
    }
}

/// Runs until a signal arrives. Returns an error if it cannot start, or fails.
pub async fn run(config: Config) -> Result<(), String> {
    if config.amqp.is_some() && config.broker.exchange == config.broker.queue() {
        // It is the name of the mark, too: see `amqp`.
        return Err(format!("--exchange must not be {}, as the queue", config.broker.queue()));
    }
    let mut signals =
        Signals::new().map_err(|error| format!("cannot install signal handlers: {error}"))?;
    let listener =
        listen(&config).map_err(|error| format!("cannot listen on {}: {error}", config.listen))?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    raise_descriptor_limit(&config);

    let board = Arc::new(Board::new(&config));
    let registry = Arc::new(Registry::default());
    let (interruptions, interruptions_in) = mpsc::unbounded_channel();
    let interest = Arc::new(Interest::new(&config.broker, Arc::clone(&board), interruptions));
    let hooks = GatewayHooks {
        board: Arc::clone(&board),
        registry: Arc::clone(&registry),
        attached: HashMap::new(),
        interest: config.amqp.is_some().then(|| Arc::clone(&interest)),
    };
    let budget = Arc::new(Budget::new(config.max_queued));
    let (input, orders, mut routing) =
        router::start(&config, hooks, interruptions_in, Arc::clone(&budget));
    let stop = CancellationToken::new();
    let (source, mut consuming) = match &config.amqp {
        None => (Source::Embedded(input.clone()), None),
        Some(uri) => {
            let broker = Arc::new(Broker {
                posted: CancellationToken::new(),
                uri: uri.clone(),
                config: config.broker.clone(),
                interest,
                board: Arc::clone(&board),
                publisher: Publisher::default(),
                channels: Arc::new(Channels::new()),
                max_body: config.max_body,
                overdue: Overdue::new(config.broker.ack_timeout, config.drops()),
            });
            let (running, input, stop) = (Arc::clone(&broker), input.clone(), stop.clone());
            let consuming = tokio::spawn(async move { running.run(input, stop).await });
            (Source::Amqp(broker), Some(consuming))
        }
    };
    let gateway = Arc::new(Gateway {
        places: Arc::new(Semaphore::new(config.max_connections as usize)),
        batches: Batches::new(config.max_batch, config.max_body),
        clients: TaskTracker::new(),
        posts: TaskTracker::new(),
        is_local: address.ip().is_loopback(),
        routed: CancellationToken::new(),
        stuck: AtomicU64::new(0),
        config,
        board,
        registry,
        orders,
        source,
        budget,
    });

    let stop_serving = CancellationToken::new();
    let mut serving = tokio::spawn(serve(listener, Arc::clone(&gateway), stop_serving.clone()));
    let demo = gateway.config.demo.map(|rate| demo::publish(gateway.source.clone(), rate.get()));
    let mut demo = pin!(async {
        match demo {
            Some(demo) => demo.await,
            None => future::pending().await,
        }
    });
    // A reader needs a token that this program cannot sign.
    let has_readers = gateway.config.demo.is_some() && gateway.config.read_key.is_none();
    let readers = has_readers.then(|| tokio::spawn(demo::readers(address)));
    writeln!(io::stdout(), "listening on {address}").map_err(|error| error.to_string())?;
    info!(%address, overflow = ?gateway.config.overflow, "started");

    tokio::select! {
        () = signals.next() => {}
        () = &mut demo => {}
        // None of them ends by itself, except by a panic. A gateway that goes on without one would look
        // healthy and do nothing.
        died = &mut routing => return Err(failed(&gateway, "routing", &died)),
        died = &mut serving => return Err(failed(&gateway, "serving", &died)),
        Some(died) = OptionFuture::from(consuming.as_mut()) => {
            return Err(failed(&gateway, "consuming", &died));
        }
    }

    info!("draining");
    if let Some(readers) = readers {
        readers.abort(); // nothing waits for the one that does not read
    }
    gateway.board.drain();
    stop.cancel();
    let leaving = leave(&gateway, &input, routing, consuming);
    let leaving = async {
        leaving.await;
        stop_serving.cancel();
        let _ = timeout(TIMEOUT, serving).await;
    };
    tokio::select! {
        () = leaving => {}
        () = signals.next() => return Err("stopped at once, by a second signal".to_owned()),
    }
    log_totals(&gateway);
    Ok(())
}

/// Returns the error of a part that has ended. Clients are disconnected next, because of the gateway:
/// what they have not got is requeued, as when it is told to stop.
fn failed(gateway: &Gateway, part: &str, died: &Result<(), JoinError>) -> String {
    gateway.board.drain();
    format!("{part} has ended: {died:?}")
}

/// Writes the last line, after what was left out before it.
fn log_totals(gateway: &Gateway) {
    log::renew_limits();
    let totals = gateway.board.totals();
    info!(
        received = totals.received,
        delivered = totals.delivered,
        unmatched = totals.unmatched,
        discarded = totals.discarded,
        stuck = gateway.stuck.load(Relaxed),
        "stopped"
    );
}

/// Ends the input, waits until the demux has delivered what is queued, and then disconnects all
/// clients. Until they have left, requests are answered, most of them with 503.
async fn leave(
    gateway: &Gateway,
    input: &Input,
    mut routing: JoinHandle<()>,
    consuming: Option<JoinHandle<()>>,
) {
    let deadline = Instant::now() + gateway.config.drain;
    let drained = timeout_at(deadline, future::join(input.end(), &mut routing)).await;
    if drained.is_err() {
        warn!("clients did not take their messages in time and are cut off");
        routing.abort(); // its messages are not settled
        let _ = timeout(TIMEOUT, &mut routing).await;
    } else if let Ok(((), Err(panicked))) = drained {
        error!(%panicked, "routing has ended");
    }
    gateway.routed.cancel();
    gateway.clients.close();
    gateway.clients.wait().await; // each takes no longer than the close timeout
    // The broker confirms the posts under way.
    gateway.posts.close();
    let _ = timeout_at(deadline, gateway.posts.wait()).await;
    if let Source::Amqp(broker) = &gateway.source {
        broker.posted.cancel();
    }
    if let Some(mut consuming) = consuming {
        // Send the remaining acknowledgements before the connection is closed.
        if timeout(2 * TIMEOUT, &mut consuming).await.is_err() {
            consuming.abort(); // which answers the posts that the broker does not confirm
        }
    }
}

/// Raises the soft limit of open files to what all connections need.
fn raise_descriptor_limit(config: &Config) {
    let wanted = 2 * u64::from(config.max_connections) + NEW as u64 + OTHER_DESCRIPTORS;
    match rlimit::increase_nofile_limit(wanted) {
        Ok(limit) if limit >= wanted => {}
        Ok(limit) => warn!(
            limit,
            wanted, "--max-connections needs more open files than are allowed: see ulimit -Hn"
        ),
        Err(error) => warn!(%error, "cannot raise the limit of open files"),
    }
}

fn listen(config: &Config) -> io::Result<TcpListener> {
    let socket = if config.listen.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    if config.send_buffer > 0 {
        socket.set_send_buffer_size(config.send_buffer)?; // accepted sockets inherit it
    }
    socket.bind(config.listen)?;
    socket.listen(1024)
}
