//! Sockets over loopback, and the lines that are sent to them.

use std::net::{TcpListener, TcpStream};
use std::sync::LazyLock;

use tokio_util::codec::{FramedWrite, LinesCodec};

/// The largest number of clients or topics.
pub const MAX_KEYS: usize = 1_000;

/// The length of a line with its end.
pub const LINE_LENGTH: usize = 37;

/// The lines, with their ends.
static TEXTS: LazyLock<Vec<String>> = LazyLock::new(|| {
    (0..MAX_KEYS).map(|key| format!("{key:03} 0123456789abcdef0123456789abcdef\n")).collect()
});

/// A line for the clients with this key. It is always the same for one key.
#[derive(Debug, Clone, Copy)]
pub struct Line {
    /// The key.
    pub key: usize,
    text: &'static str,
}

impl Line {
    /// Returns the line for a key.
    #[must_use]
    pub fn new(key: usize) -> Self {
        Self { key, text: &TEXTS[key] }
    }

    /// Returns the line with its end.
    #[must_use]
    pub fn bytes(self) -> &'static [u8] {
        self.text.as_bytes()
    }
}

/// The line without its end, for `LinesCodec`.
impl AsRef<str> for Line {
    fn as_ref(&self) -> &str {
        &self.text[..LINE_LENGTH - 1]
    }
}

/// Connects pairs of sockets: the first ones are for the program, the second ones for its clients.
///
/// # Panics
///
/// Panics if the system has no descriptors left.
#[must_use]
pub fn connect(pairs: usize) -> (Vec<TcpStream>, Vec<TcpStream>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback is available");
    let address = listener.local_addr().expect("the listener is bound");
    let connect = |_| {
        let client = TcpStream::connect(address).expect("a descriptor is available");
        let (socket, _) = listener.accept().expect("a descriptor is available");
        socket.set_nodelay(true).expect("the socket is open");
        (socket, client)
    };
    (0..pairs).map(connect).unzip()
}

/// Makes a socket one of the runtime that this is called on.
///
/// # Panics
///
/// Panics if it is called outside of a runtime.
#[must_use]
pub fn on_tokio(socket: TcpStream) -> tokio::net::TcpStream {
    socket.set_nonblocking(true).expect("the socket is open");
    tokio::net::TcpStream::from_std(socket).expect("the runtime has a driver")
}

/// The sink of a client.
pub type Client = FramedWrite<tokio::net::TcpStream, LinesCodec>;

/// Makes a socket the sink of a client, on the runtime that this is called on.
///
/// # Panics
///
/// Panics if it is called outside of a runtime.
#[must_use]
pub fn framed(socket: TcpStream) -> Client {
    FramedWrite::new(on_tokio(socket), LinesCodec::new())
}
