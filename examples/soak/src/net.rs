//! Connections to the server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

/// Nobody who behaves has to wait so long for anything.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The server inherits it.
pub fn raise_limit_of_descriptors() -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    if hard < 4096 {
        return Err(io::Error::other(format!("{hard} descriptors are not enough: ulimit -n 4096")));
    }
    Ok(())
}

/// Connects from one of many loopback addresses: from a single one, thousands of short connections
/// would run out of ports, which are held for a minute after each.
pub async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    socket()?.connect(to).await
}

/// As `connect`, by one who means to read little: with a receive buffer so small that the server
/// soon has to wait.
pub async fn connect_narrow(to: SocketAddr) -> io::Result<TcpStream> {
    let socket = socket()?;
    socket.set_recv_buffer_size(4096)?;
    socket.connect(to).await
}

fn socket() -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::new(127, 0, fastrand::u8(..), fastrand::u8(1..255)), 0).into())?;
    Ok(socket)
}

/// Reads and writes of one who behaves.
pub async fn connect_politely(to: SocketAddr) -> io::Result<(Reader, OwnedWriteHalf)> {
    // The queue of connections to be accepted may be full: no fault of the server.
    let mut tries = 0;
    let stream = loop {
        match timeout(PATIENCE, connect(to)).await {
            Ok(Ok(stream)) => break stream,
            Ok(Err(wrong)) if tries > 20 => return Err(wrong),
            Ok(Err(_)) => sleep(Duration::from_millis(50)).await,
            Err(_) => return Err(late("a connection")),
        }
        tries += 1;
    };
    stream.set_nodelay(true)?;
    Ok(Reader::split(stream))
}

pub struct Reader {
    from: BufReader<OwnedReadHalf>,
    line: Vec<u8>,
}

impl Reader {
    pub fn split(stream: TcpStream) -> (Self, OwnedWriteHalf) {
        let (reader, writer) = stream.into_split();
        (Self { from: BufReader::new(reader), line: Vec::new() }, writer)
    }

    /// The next line, or `None` at the end. It is an error to wait longer than anybody should have
    /// to.
    pub async fn line(&mut self) -> io::Result<Option<&str>> {
        self.line.clear();
        let read = self.from.read_until(b'\n', &mut self.line);
        let length = timeout(PATIENCE, read).await.map_err(|_| late("a line"))??;
        if length == 0 {
            return Ok(None);
        }
        let Some((b'\n', line)) = self.line.split_last() else {
            let broken = format!("the last line ends in the middle: {}", self.line.escape_ascii());
            return Err(io::Error::other(broken));
        };
        str::from_utf8(line).map(Some).map_err(io::Error::other)
    }

    /// Waits for the end, and expects nothing before it.
    pub async fn end(&mut self) -> io::Result<()> {
        match self.line().await? {
            None => Ok(()),
            Some(line) => Err(io::Error::other(format!("a line that is for others: {line:.60}"))),
        }
    }
}

fn late(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("waited {PATIENCE:?} for {what}"))
}

/// Comes, says goodbye, and waits until the server says so too.
pub async fn visit(to: SocketAddr) -> io::Result<()> {
    let mut stream = connect(to).await?;
    stream.write_all(b"quit\n").await?;
    let mut said = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut said)).await.map_err(|_| late("the end"))??;
    Ok(())
}
