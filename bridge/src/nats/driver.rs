//! [`Driver`]: reads and writes a connection to a NATS server.

use std::collections::{HashMap, VecDeque};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split};
use tokio::sync::{Notify, mpsc, oneshot};

use crate::arrivals::Arrival;
use crate::engine::{Claim, Failure, Subscriber};
use crate::event::Key;
use crate::lock::lock;
use crate::nats::wire::{Info, Said, parse};
use crate::table::shrink;

/// A command, and who waits for its answer.
pub(crate) struct Request {
    pub(crate) command: Command,
    pub(crate) answer: oneshot::Sender<Result<(), Failure>>,
}

pub(crate) enum Command {
    Subscribe { key: Key, subject: String },
    Unsubscribe { key: Key },
    Publish { subject: String, item: Bytes, claim: Claim },
    Ping,
}

/// A connection that is open.
pub(crate) struct Driver {
    subscriber: Option<Subscriber>,
    state: Mutex<State>,
    /// The server waits for a `PONG`.
    is_asked: Notify,
}

struct State {
    /// The commands that the server has not confirmed, the oldest first.
    sent: VecDeque<Sent>,
    /// The numbers of the subscriptions, and their keys.
    numbers: HashMap<Key, u64>,
    keys: HashMap<u64, Key>,
    last_number: u64,
    largest_item: usize,
}

struct Sent {
    about: About,
    answer: oneshot::Sender<Result<(), Failure>>,
    /// The server has said this against it.
    refusal: Option<Arc<str>>,
}

enum About {
    Subscribe { key: Key, subject: String },
    Unsubscribe { key: Key },
    Publish { subject: String },
    Ping,
}

/// Commands are taken as long as fewer bytes than this wait to be written.
const WRITTEN_AT_ONCE: usize = 64 * 1_024;

/// Room to read into. Items are copied out of it, so that a small one does not keep all of it.
const READ_AT_ONCE: usize = 16 * 1_024;

/// A buffer that was larger because of a large item is given back.
const LARGEST_KEPT: usize = 128 * 1_024;

impl Driver {
    pub(crate) fn new(subscriber: Option<Subscriber>, info: Info) -> Self {
        let state = State {
            sent: VecDeque::new(),
            numbers: HashMap::new(),
            keys: HashMap::new(),
            last_number: 0,
            largest_item: info.largest_item,
        };
        Self { subscriber, state: Mutex::new(state), is_asked: Notify::new() }
    }

    /// Completes when the connection is broken, and returns why. `rest` is what has been read.
    pub(crate) async fn run<S: AsyncRead + AsyncWrite>(
        self,
        socket: S,
        mut requests: mpsc::Receiver<Request>,
        rest: BytesMut,
    ) -> Arc<str> {
        let (reader, writer) = split(socket);
        let reason: Arc<str> = tokio::select! {
            reason = self.read(reader, rest) => reason.into(),
            reason = self.write(writer, &mut requests) => reason.into(),
        };
        requests.close();
        let sent = std::mem::take(&mut lock(&self.state).sent);
        for sent in sent {
            let _ = sent.answer.send(Err(Failure::Broken(Arc::clone(&reason))));
        }
        while let Ok(request) = requests.try_recv() {
            let _ = request.answer.send(Err(Failure::Broken(Arc::clone(&reason))));
        }
        reason
    }

    async fn read<S: AsyncRead>(&self, mut reader: ReadHalf<S>, mut bytes: BytesMut) -> String {
        loop {
            loop {
                let length = match parse(&bytes) {
                    Ok(Some((said, length))) => match self.hear(said) {
                        Ok(()) => length,
                        Err(reason) => return reason,
                    },
                    Ok(None) => break,
                    Err(reason) => return reason,
                };
                bytes.advance(length);
            }
            // Moves what is left to the front, or to a larger place if it fills this one.
            bytes.reserve(READ_AT_ONCE);
            if bytes.is_empty() && bytes.capacity() > LARGEST_KEPT {
                bytes = BytesMut::with_capacity(READ_AT_ONCE);
            }
            match reader.read_buf(&mut bytes).await {
                Ok(0) => return "the engine has closed the connection".to_owned(),
                Ok(_) => {}
                Err(error) => return format!("the connection to the engine broke: {error}"),
            }
        }
    }

    /// Does what the server has said. Returns an error if that ends the connection.
    fn hear(&self, said: Said<'_>) -> Result<(), String> {
        match said {
            Said::Item { subscription, item } => {
                let key = lock(&self.state).keys.get(&subscription).cloned();
                if let Some(key) = key {
                    self.arrive(&key, Arrival::Item(Bytes::copy_from_slice(item)));
                }
            }
            Said::Ping => self.is_asked.notify_one(),
            Said::Pong => self.confirm()?,
            Said::Info(info) => lock(&self.state).largest_item = info.largest_item,
            Said::Ok => {}
            Said::Error(reason) => lock(&self.state).refuse(reason)?,
        }
        Ok(())
    }

    /// The server has done what it was told longest ago, or has refused.
    fn confirm(&self) -> Result<(), String> {
        let mut state = lock(&self.state);
        let Some(Sent { about, answer, refusal }) = state.sent.pop_front() else {
            return Err("the engine has confirmed what it was not told".to_owned());
        };
        let arrival = match about {
            About::Subscribe { key, .. } if refusal.is_some() => {
                state.forget(&key);
                None
            }
            About::Subscribe { key, .. } => Some((key, Arrival::Subscribed)),
            About::Unsubscribe { key } => {
                state.forget(&key);
                Some((key, Arrival::Unsubscribed))
            }
            About::Publish { .. } | About::Ping => None,
        };
        drop(state);
        if let Some((key, arrival)) = arrival {
            self.arrive(&key, arrival);
        }
        let _ = answer.send(match refusal {
            Some(reason) => Err(Failure::Refused(reason)),
            None => Ok(()),
        });
        Ok(())
    }

    fn arrive(&self, key: &Key, arrival: Arrival) {
        if let Some(Subscriber { arrivals, epoch }) = &self.subscriber {
            arrivals.push(*epoch, key.as_bytes().to_vec(), arrival);
        }
    }

    async fn write<S: AsyncWrite>(
        &self,
        mut writer: WriteHalf<S>,
        requests: &mut mpsc::Receiver<Request>,
    ) -> String {
        let mut bytes = BytesMut::new();
        loop {
            tokio::select! {
                request = requests.recv() => {
                    let Some(request) = request else { return "it is not used any more".to_owned() };
                    lock(&self.state).encode(request, &mut bytes);
                }
                () = self.is_asked.notified() => bytes.extend_from_slice(b"PONG\r\n"),
            }
            while bytes.len() < WRITTEN_AT_ONCE {
                let Ok(request) = requests.try_recv() else { break };
                lock(&self.state).encode(request, &mut bytes);
            }
            let written = writer.write_all(&bytes).await;
            if let Err(error) = written {
                return format!("the connection to the engine broke: {error}");
            }
            bytes.clear();
            if bytes.capacity() > LARGEST_KEPT {
                bytes = BytesMut::new();
            }
        }
    }
}

impl State {
    /// Appends a command to what is written, with the `PING` that asks the server to confirm it.
    fn encode(&mut self, request: Request, bytes: &mut BytesMut) {
        let Request { command, answer } = request;
        // A publisher that has given up, for example. What the table asks for is always waited for.
        if answer.is_closed() {
            return;
        }
        // Writing into a buffer in memory does not fail.
        let about = match command {
            Command::Subscribe { key, subject } => {
                self.last_number += 1;
                let _ = write!(bytes, "SUB {subject} {}\r\n", self.last_number);
                self.keys.insert(self.last_number, Arc::clone(&key));
                self.numbers.insert(Arc::clone(&key), self.last_number);
                About::Subscribe { key, subject }
            }
            Command::Unsubscribe { key } => {
                if let Some(number) = self.numbers.get(&key) {
                    let _ = write!(bytes, "UNSUB {number}\r\n");
                }
                About::Unsubscribe { key }
            }
            Command::Publish { subject, item, claim } => {
                let size = item.len();
                let most = self.largest_item;
                if size > most {
                    // The server would close the connection.
                    let reason = format!("the item has {size} bytes, and the engine takes {most}");
                    let _ = answer.send(Err(Failure::Refused(reason.into())));
                    return;
                }
                if !claim.take() {
                    return;
                }
                let _ = write!(bytes, "PUB {subject} {size}\r\n");
                bytes.extend_from_slice(&item);
                bytes.extend_from_slice(b"\r\n");
                About::Publish { subject }
            }
            Command::Ping => About::Ping,
        };
        bytes.extend_from_slice(b"PING\r\n");
        self.sent.push_back(Sent { about, answer, refusal: None });
    }

    /// The server has an objection. If it is not against the command that it is at, the connection
    /// ends: a subscription may have been revoked, and a new connection finds out which.
    fn refuse(&mut self, reason: String) -> Result<(), String> {
        let Some(sent) = self.sent.front_mut() else { return Err(reason) };
        let is_meant = match &sent.about {
            About::Subscribe { subject, .. } => {
                names(&reason, subject) || reason.eq_ignore_ascii_case(TOO_MANY_SUBSCRIPTIONS)
            }
            About::Publish { subject } => names(&reason, subject),
            About::Unsubscribe { .. } | About::Ping => false,
        };
        if !is_meant {
            return Err(reason);
        }
        sent.refusal = Some(reason.into());
        Ok(())
    }

    fn forget(&mut self, key: &Key) {
        if let Some(number) = self.numbers.remove(key) {
            self.keys.remove(&number);
        }
        shrink(&mut self.numbers);
        shrink(&mut self.keys);
    }
}

/// What a server says about the limit `max_subscriptions` of a connection.
const TOO_MANY_SUBSCRIPTIONS: &str = "maximum subscriptions exceeded";

/// Returns `true` for `Permissions Violation for Publish to "tea"`, for example.
fn names(reason: &str, subject: &str) -> bool {
    reason.contains(&format!("\"{subject}\""))
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::io::{DuplexStream, duplex};
    use tokio::task::JoinHandle;
    use tokio::time::timeout;

    use super::*;
    use crate::arrivals::Arrivals;

    /// A driver, and the test as its server.
    struct Test {
        server: DuplexStream,
        requests: mpsc::Sender<Request>,
        arrivals: Arc<Arrivals>,
        driver: JoinHandle<Arc<str>>,
    }

    type Answer = oneshot::Receiver<Result<(), Failure>>;

    impl Test {
        fn new() -> Self {
            let arrivals = Arrivals::new(1_000_000);
            let epoch = arrivals.begin();
            let subscriber = Subscriber { arrivals: Arc::clone(&arrivals), epoch };
            let info = Info { largest_item: 5, requires_tls: false };
            let (server, socket) = duplex(1_000_000);
            let (requests, receiver) = mpsc::channel(64);
            let driver = Driver::new(Some(subscriber), info);
            let driver = tokio::spawn(driver.run(socket, receiver, BytesMut::new()));
            Self { server, requests, arrivals, driver }
        }

        async fn ask(&self, command: Command) -> Answer {
            let (sender, answer) = oneshot::channel();
            assert!(self.requests.send(Request { command, answer: sender }).await.is_ok());
            answer
        }

        async fn hears(&mut self, expected: &str) {
            let mut bytes = vec![0; expected.len()];
            let reading = self.server.read_exact(&mut bytes);
            timeout(Duration::from_secs(60), reading).await.expect("it writes").unwrap();
            assert_eq!(String::from_utf8(bytes).unwrap(), expected);
        }

        async fn says(&mut self, text: &str) {
            self.server.write_all(text.as_bytes()).await.unwrap();
        }

        fn arrived(&self) -> Vec<(String, Arrival)> {
            let next = || poll_fn(|cx| self.arrivals.poll_pop(cx)).now_or_never().flatten();
            std::iter::from_fn(next)
                .map(|arrived| (String::from_utf8(arrived.key).unwrap(), arrived.arrival))
                .collect()
        }
    }

    fn subscribe(key: &str) -> Command {
        Command::Subscribe { key: key.into(), subject: key.to_owned() }
    }

    fn publish(subject: &str, item: &'static str) -> Command {
        publish_unless(subject, item, &Claim::default())
    }

    fn publish_unless(subject: &str, item: &'static str, claim: &Claim) -> Command {
        let claim = claim.clone();
        Command::Publish { subject: subject.to_owned(), item: item.into(), claim }
    }

    fn refused(reason: &str) -> Result<(), Failure> {
        Err(Failure::Refused(reason.into()))
    }

    #[tokio::test(start_paused = true)]
    async fn confirmation_comes_in_its_place_among_the_items() {
        let mut test = Test::new();
        let tea = test.ask(subscribe("tea")).await;
        let coffee = test.ask(subscribe("coffee")).await;
        test.hears("SUB tea 1\r\nPING\r\nSUB coffee 2\r\nPING\r\n").await;
        test.says("PONG\r\nMSG tea 1 1\r\na\r\nPONG\r\nMSG tea 1 1\r\nb\r\n").await;
        assert_eq!((tea.await, coffee.await), (Ok(Ok(())), Ok(Ok(()))));
        let left = test.ask(Command::Unsubscribe { key: "tea".into() }).await;
        test.hears("UNSUB 1\r\nPING\r\n").await;
        // The last items before the end, and one that no server sends after it.
        test.says("MSG tea 1 1\r\nc\r\nPONG\r\nMSG tea 1 1\r\nd\r\n").await;
        assert_eq!(left.await, Ok(Ok(())));
        let item = |item: &'static str| ("tea".to_owned(), Arrival::Item(item.into()));
        let expected = [
            ("tea".to_owned(), Arrival::Subscribed),
            item("a"),
            ("coffee".to_owned(), Arrival::Subscribed),
            item("b"),
            item("c"),
            ("tea".to_owned(), Arrival::Unsubscribed),
        ];
        assert_eq!(test.arrived(), expected);
    }

    #[tokio::test(start_paused = true)]
    async fn item_whose_publisher_has_given_up_is_not_sent() {
        let mut test = Test::new();
        let given_up = Claim::default();
        assert!(given_up.take());
        let late = test.ask(publish_unless("tea", "late", &given_up)).await;
        let claim = Claim::default();
        let _said = test.ask(publish_unless("tea", "hello", &claim)).await;
        test.hears("PUB tea 5\r\nhello\r\nPING\r\n").await;
        assert!(!claim.take());
        assert!(late.await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn refusal_is_that_of_the_command_which_the_server_is_at() {
        let mut test = Test::new();
        let tea = test.ask(subscribe("tea")).await;
        let coffee = test.ask(subscribe("coffee")).await;
        let water = test.ask(subscribe("water")).await;
        let said = test.ask(publish("tea", "hello")).await;
        test.hears("SUB tea 1\r\nPING\r\nSUB coffee 2\r\nPING\r\nSUB water 3\r\nPING\r\n").await;
        test.hears("PUB tea 5\r\nhello\r\nPING\r\n").await;
        let violation = "Permissions Violation for Subscription to \"coffee\"";
        test.says(&format!("PONG\r\n-ERR '{violation}'\r\nPONG\r\n")).await;
        test.says("-ERR 'maximum subscriptions exceeded'\r\nPONG\r\n").await;
        let denied = "Permissions Violation for Publish to \"tea\"";
        test.says(&format!("-ERR '{denied}'\r\nPONG\r\n")).await;
        assert_eq!(tea.await.unwrap(), Ok(()));
        assert_eq!(coffee.await.unwrap(), refused(violation));
        assert_eq!(water.await.unwrap(), refused("maximum subscriptions exceeded"));
        assert_eq!(said.await.unwrap(), refused(denied));
        assert_eq!(test.arrived(), [("tea".to_owned(), Arrival::Subscribed)]);
    }

    #[tokio::test(start_paused = true)]
    async fn objection_to_something_else_breaks_the_connection_and_all_are_told() {
        let revoked = "Permissions Violation for Subscription to \"tea\"";
        for reason in [revoked, "Slow Consumer", "Authorization Violation"] {
            let mut test = Test::new();
            let coffee = test.ask(subscribe("coffee")).await;
            let ping = test.ask(Command::Ping).await;
            test.hears("SUB coffee 1\r\nPING\r\nPING\r\n").await;
            test.says(&format!("-ERR '{reason}'\r\n")).await;
            assert_eq!(&*test.driver.await.unwrap(), reason);
            for answer in [coffee, ping] {
                assert_eq!(answer.await.unwrap(), Err(Failure::Broken(reason.into())));
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn item_that_is_too_large_is_refused_and_not_sent() {
        let mut test = Test::new();
        let large = test.ask(publish("tea", "too large")).await;
        assert_eq!(large.await.unwrap(), refused("the item has 9 bytes, and the engine takes 5"));
        // The limit may change.
        test.says("INFO {\"max_payload\":9}\r\nPING\r\n").await;
        test.hears("PONG\r\n").await;
        let large = test.ask(publish("tea", "too large")).await;
        test.hears("PUB tea 9\r\ntoo large\r\nPING\r\n").await;
        test.says("PONG\r\n").await;
        assert_eq!(large.await.unwrap(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_given_up_before_it_is_written_is_not_written() {
        let mut test = Test::new();
        drop(test.ask(publish("tea", "late")).await);
        let heard = test.ask(publish("tea", "heard")).await;
        test.hears("PUB tea 5\r\nheard\r\nPING\r\n").await;
        test.says("PONG\r\n").await;
        assert_eq!(heard.await.unwrap(), Ok(()));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_kept_of_keys_that_were_left() {
        let mut test = Driver::new(None, Info { largest_item: 5, requires_tls: false });
        let mut bytes = BytesMut::new();
        for n in 0..10_000 {
            let key = Key::from(format!("room {n}"));
            for command in [subscribe(&key), Command::Unsubscribe { key: Arc::clone(&key) }] {
                let (sender, _answer) = oneshot::channel();
                test.state
                    .get_mut()
                    .unwrap()
                    .encode(Request { command, answer: sender }, &mut bytes);
                bytes.clear();
            }
        }
        for _ in 0..20_000 {
            test.confirm().unwrap();
        }
        let state = test.state.get_mut().unwrap();
        assert_eq!((state.keys.len(), state.numbers.len(), state.sent.len()), (0, 0, 0));
        assert!(state.keys.capacity() < 1_000);
    }

    #[tokio::test(start_paused = true)]
    async fn server_that_says_nonsense_or_confirms_too_much_is_left() {
        for nonsense in ["HELLO\r\n", "PONG\r\n"] {
            let mut test = Test::new();
            test.says(nonsense).await;
            let reason = test.driver.await.unwrap();
            assert!(reason.starts_with("the engine has "), "{reason}");
        }
    }
}
