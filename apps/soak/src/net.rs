//! Connections to the server.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{sleep, timeout};

/// Time limit for each operation of a well-behaved client.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Raises the limit of file descriptors, which the server inherits.
pub fn raise_limit_of_descriptors() -> io::Result<()> {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)?;
    if hard < 4096 {
        return Err(io::Error::other(format!("{hard} descriptors are not enough: ulimit -n 4096")));
    }
    Ok(())
}

/// Connects from a random loopback address. With a single address, thousands of short connections
/// would use up the ports, each of which is reserved for a minute after use.
pub async fn connect(to: SocketAddr) -> io::Result<TcpStream> {
    socket()?.connect(to).await
}

/// Like `connect`, but with a small receive buffer, so that the server soon has to wait if the
/// client does not read.
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

/// Connects, and tries again if that fails, as well-behaved clients do.
pub async fn connect_with_retry(to: SocketAddr) -> io::Result<(Reader, OwnedWriteHalf)> {
    // The backlog of the listening socket may be full, which is not a fault of the server.
    let mut tries = 0;
    let stream = loop {
        match timeout(PATIENCE, connect(to)).await {
            Ok(Ok(stream)) => break stream,
            Ok(Err(error)) if tries > 20 => return Err(error),
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

    /// Reads the next line. Returns `None` at the end, and an error after [`PATIENCE`].
    pub async fn line(&mut self) -> io::Result<Option<&str>> {
        self.line.clear();
        let read = self.from.read_until(b'\n', &mut self.line);
        let length = timeout(PATIENCE, read).await.map_err(|_| late("a line"))??;
        if length == 0 {
            return Ok(None);
        }
        let Some((b'\n', line)) = self.line.split_last() else {
            let broken = format!("the last line is incomplete: {}", self.line.escape_ascii());
            return Err(io::Error::other(broken));
        };
        str::from_utf8(line).map(Some).map_err(io::Error::other)
    }

    /// Waits for the end of the input. Returns an error if there is another line.
    pub async fn end(&mut self) -> io::Result<()> {
        match self.line().await? {
            None => Ok(()),
            Some(line) => Err(io::Error::other(format!("unexpected line: {line:.60}"))),
        }
    }
}

fn late(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("waited {PATIENCE:?} for {what}"))
}

/// Connects, sends `quit`, and waits until the server closes the connection.
pub async fn visit(to: SocketAddr) -> io::Result<()> {
    let mut stream = connect(to).await?;
    stream.write_all(b"quit\n").await?;
    let mut rest = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut rest)).await.map_err(|_| late("the end"))??;
    Ok(())
}
