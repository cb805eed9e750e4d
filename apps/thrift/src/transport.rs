//! The way between a socket and a demux: frames, and the stages they pass through.
//!
//! A stage is an adapter of bytes below the frames (zlib) or of frames (a tee). Each stage works on
//! either side of a demux: a client's `incoming` is the input of a demux, a server's `outgoing` is
//! a sink attached to one.

use std::io;
use std::ops::Deref;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use async_compression::tokio::bufread::ZlibDecoder;
use async_compression::tokio::write::ZlibEncoder;
use futures::{Sink, SinkExt, Stream, StreamExt, TryStreamExt, future, stream};
use tokio::io::{AsyncRead, AsyncWrite, BufReader, ReadBuf};
use tokio::sync::Semaphore;
use tokio::task::coop;
use tokio::time::{Instant, timeout};
use tokio_util::bytes::Bytes;
use tokio_util::codec::FramedRead;

use crate::connection::Owed;
use crate::frame::{Frames, Part, Writer};
use crate::memory::{Account, Held, LITTLE, PAUSE};
use crate::message::Limits;
use crate::pace::Pace;

/// A frame, with what a server holds for it until it is answered or written.
#[derive(Debug)]
pub struct Frame {
    bytes: Bytes,
    held: Option<Held>,
    _owed: Option<Owed>,
}

impl Frame {
    /// Creates an answer that holds the memory and the place of its call.
    pub(crate) fn holding(bytes: Bytes, held: Option<Held>, owed: Owed) -> Self {
        Self { bytes, held, _owed: Some(owed) }
    }

    pub(crate) fn into_held(self) -> Option<Held> {
        self.held
    }
}

impl From<Bytes> for Frame {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, held: None, _owed: None }
    }
}

impl Deref for Frame {
    type Target = Bytes;

    fn deref(&self) -> &Bytes {
        &self.bytes
    }
}

/// Limits of frames. A client creates it from its [`Limits`]; a server adds a memory account, a time
/// limit for each frame, and for clients that do not read, and the line of those that compress.
#[derive(Debug, Clone)]
pub struct Framing {
    longest: usize,
    account: Option<(Account, Duration)>,
    line: Option<Arc<Semaphore>>,
}

impl Framing {
    /// Frames of at most `longest` bytes. Each is read as far as `account` has room for it, and must
    /// arrive `within` this time. Those who compress long ones do so in the turns of `line`.
    pub(crate) fn held(
        longest: usize,
        account: Account,
        within: Duration,
        line: Arc<Semaphore>,
    ) -> Self {
        Self { longest, account: Some((account, within)), line: Some(line) }
    }
}

impl From<&Limits> for Framing {
    fn from(limits: &Limits) -> Self {
        Self { longest: limits.frame, account: None, line: None }
    }
}

impl From<&Framing> for Framing {
    fn from(framing: &Framing) -> Self {
        framing.clone()
    }
}

/// A stream of received frames.
pub type Incoming = Pin<Box<dyn Stream<Item = io::Result<Frame>> + Send>>;

/// A sink for frames to send.
pub type Outgoing = Pin<Box<dyn Sink<Frame, Error = io::Error> + Send>>;

/// The direction of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Received.
    In,
    /// Sent.
    Out,
}

/// Both directions of a connection.
#[allow(missing_debug_implementations, reason = "the trait objects are not Debug")]
pub struct Transport {
    /// Received frames.
    pub incoming: Incoming,
    /// Frames to send.
    pub outgoing: Outgoing,
}

/// How much compressed input is read, and how much output is compressed, before others get their turn: as
/// much as `BufReader` reads at once. A block with a table of its own takes microseconds for ten bytes of
/// input, and may inflate to one byte, or to nothing. To compress so much output takes up to 0.3 ms.
pub(crate) const QUANTUM: usize = 8 << 10;

/// Compressed bytes.
///
/// Turns a read error into the end of the input, because `ZlibDecoder` discards inflated bytes if
/// its reader fails, but not if it ends.
struct Deflated<R> {
    from: Pin<Box<R>>,
    /// Bytes since other tasks had their turn.
    taken: usize,
    ended: bool,
    failed: Option<io::Error>,
}

impl<R: AsyncRead> Deflated<R> {
    fn new(from: R) -> Self {
        Self { from: Box::pin(from), taken: 0, ended: false, failed: None }
    }
}

/// Uses up the budget of the task, so that it yields whatever else it could do. Returns `false` if it has
/// no budget, because it must not yield (`unconstrained`). Tokio's budget is 128.
fn use_up_budget(cx: &mut Context<'_>) -> bool {
    (0..1024).any(|_| coop::poll_proceed(cx).map(|budget| budget.made_progress()).is_pending())
}

impl<R: AsyncRead> AsyncRead for Deflated<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ended {
            return Poll::Ready(Ok(()));
        }
        if self.taken >= QUANTUM {
            self.taken = 0;
            if use_up_budget(cx) {
                return Poll::Pending;
            }
        }
        let before = into.filled().len();
        let done = ready!(self.from.as_mut().poll_read(cx, into));
        let read = into.filled().len() - before;
        self.taken += read;
        self.failed = done.err();
        self.ended = read == 0;
        Poll::Ready(Ok(()))
    }
}

/// Inflated bytes. `TZlibTransport` closes the socket without ending its zlib stream. This is not
/// an error here: a truncated frame is detected by its length.
struct Inflated<R>(ZlibDecoder<BufReader<Deflated<R>>>);

impl<R: AsyncRead> AsyncRead for Inflated<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        // A few bytes of input may inflate to a thousand times as many. The task yields after some,
        // as it does when it reads from a socket.
        let budget = ready!(coop::poll_proceed(cx));
        let done = ready!(Pin::new(&mut self.0).poll_read(cx, into));
        budget.made_progress();
        let deflated = self.0.get_mut().get_mut();
        match done {
            Err(_) if deflated.ended => Poll::Ready(deflated.failed.take().map_or(Ok(()), Err)),
            done => Poll::Ready(done),
        }
    }
}

/// Runs `work` for at most what is left of a time limit, and subtracts what it took, in steps of at most
/// a [`PAUSE`]. A step that took longer counts as one.
async fn spend<T>(left: &mut Duration, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    loop {
        let (start, step) = (Instant::now(), PAUSE.min(*left));
        let done = timeout(step, &mut work).await;
        *left -= start.elapsed().min(step);
        match done {
            Ok(done) => return Some(done),
            Err(_) if left.is_zero() => return None,
            Err(_) => {}
        }
    }
}

/// Reads the next part of a frame, and notes when little of it arrives.
async fn next_part<R: AsyncRead + Unpin>(
    parts: &mut FramedRead<R, Frames>,
    account: &Account,
) -> io::Result<Option<Part>> {
    let mut pauses = 0;
    loop {
        let before = parts.decoder().received();
        let part = timeout(PAUSE, parts.try_next()).await;
        let is_little = part.is_err() && parts.decoder().received() < before + LITTLE;
        pauses = if is_little { pauses + 1 } else { 0 };
        account.set_awaited(pauses >= 2);
        if let Ok(part) = part {
            return part;
        }
    }
}

fn too_slow(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, what)
}

/// Reads the next frame, without limits of memory and time if there is no account.
///
/// The time limit of a frame counts while its bytes are awaited. It counts once more, separately,
/// while the frame holds memory that others may need and waits for more of it.
async fn next_frame<R: AsyncRead + Unpin>(
    parts: &mut FramedRead<R, Frames>,
    account: Option<&(Account, Duration)>,
) -> io::Result<Option<Frame>> {
    let length = match parts.try_next().await? {
        Some(Part::Length(length)) => length,
        // The first part of a frame is its length.
        Some(Part::Full | Part::Frame(_)) | None => return Ok(None),
    };
    let Some((account, within)) = account else {
        parts.decoder_mut().make_room(length);
        return Ok(match parts.try_next().await? {
            Some(Part::Frame(bytes)) => Some(bytes.into()),
            Some(Part::Full | Part::Length(_)) | None => None,
        });
    };
    let mut held = account.hold(length).await;
    let mut for_bytes = *within;
    let mut for_memory = *within;
    loop {
        parts.decoder_mut().make_room(held.room());
        let part = spend(&mut for_bytes, next_part(parts, account)).await.ok_or_else(|| {
            too_slow(format!("a frame of {length} bytes took longer than {within:?}"))
        })?;
        match part? {
            Some(Part::Full) if held.is_shared() => {
                spend(&mut for_memory, held.grow()).await.ok_or_else(|| {
                    let what = format!("no memory was left for a frame of {length} bytes");
                    too_slow(format!("{what} within {within:?}"))
                })?;
            }
            Some(Part::Full) => held.grow().await,
            Some(Part::Frame(bytes)) => {
                return Ok(Some(Frame { held: Some(held), ..bytes.into() }));
            }
            Some(Part::Length(_)) | None => return Ok(None),
        }
    }
}

impl Transport {
    /// Frames without compression, like Apache Thrift's `TFramedTransport`.
    pub fn framed<R, W>(from: R, to: W, framing: impl Into<Framing>) -> Self
    where
        R: AsyncRead + Send + 'static,
        W: AsyncWrite + Send + 'static,
    {
        let framing = framing.into();
        let writer = Writer::new(to, framing.longest);
        Self::new(from, writer, framing)
    }

    fn new<R, W>(from: R, mut writer: Writer<W>, framing: Framing) -> Self
    where
        R: AsyncRead + Send + 'static,
        W: AsyncWrite + Send + 'static,
    {
        let Framing { longest, account, .. } = framing;
        let parts = FramedRead::new(Box::pin(from), Frames::new(longest));
        if let Some((account, within)) = &account {
            writer = writer.watch(account.clone(), *within);
        }
        let incoming = stream::try_unfold((parts, account), async |(mut parts, account)| {
            let Some((of, _)) = &account else {
                let frame = next_frame(&mut parts, None).await?;
                return Ok(frame.map(|frame| (frame, (parts, account))));
            };
            let frame = tokio::select! {
                biased;
                () = of.ended().cancelled() => return Err(of.end_error()),
                frame = next_frame(&mut parts, account.as_ref()) => frame?,
            };
            Ok(frame.map(|frame| (frame, (parts, account))))
        });
        Self { incoming: incoming.boxed(), outgoing: Box::pin(writer) }
    }

    /// Frames over one zlib stream per direction, like `TFramedTransport` over `TZlibTransport`.
    /// The peer can read all flushed frames at once. The limits apply to the inflated bytes, so a
    /// zip bomb is rejected.
    pub fn zlib<R, W>(from: R, to: W, framing: impl Into<Framing>) -> Self
    where
        R: AsyncRead + Send + 'static,
        W: AsyncWrite + Send + 'static,
    {
        let deflated = Deflated::new(from);
        let inflated = Inflated(ZlibDecoder::new(BufReader::new(deflated)));
        let framing = framing.into();
        let pace = Pace::new(framing.line.clone());
        let writer = Writer::new(ZlibEncoder::new(to), framing.longest).paced(pace);
        Self::new(inflated, writer, framing)
    }

    /// Adds a wire tap: calls `log` with every frame, without changing it. `log` must not block: it is
    /// called on a thread of the runtime.
    #[must_use]
    pub fn tee(self, log: impl Fn(Way, &Bytes) + Send + Sync + 'static) -> Self {
        let log = Arc::new(log);
        let incoming = self.incoming.inspect({
            let log = Arc::clone(&log);
            move |frame| {
                if let Ok(frame) = frame {
                    log(Way::In, frame);
                }
            }
        });
        let outgoing = self.outgoing.with(move |frame: Frame| {
            log(Way::Out, &frame);
            future::ready(Ok(frame))
        });
        Self { incoming: incoming.boxed(), outgoing: Box::pin(outgoing) }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::unconstrained;
    use tokio::time::advance;

    use super::*;
    use crate::connection::Activity;
    use crate::memory::Memory;

    /// The rest of a frame arrives while the process is stopped.
    #[tokio::test(start_paused = true)]
    async fn only_the_time_that_a_connection_has_tried_to_read_counts() {
        const WITHIN: Duration = Duration::from_secs(30);

        let account = Memory::new(1 << 20, 1 << 22, 1 << 20).account(Activity::default());
        let framing = Framing::held(1 << 20, account.clone(), WITHIN, Arc::new(Semaphore::new(1)));
        let (mut client, socket) = tokio::io::duplex(64 * 1024);
        let mut incoming = Transport::framed(socket, Vec::new(), framing).incoming;
        let bytes = vec![1; 200_000];
        let frame = [&200_000_u32.to_be_bytes()[..], &bytes].concat();
        for _ in 0..10 {
            // The clock does not go on by itself while the client has something to do.
            for part in frame.chunks(50_000) {
                assert!(incoming.next().now_or_never().is_none());
                client.write_all(part).await.unwrap();
                advance(2 * WITHIN).await;
            }
            let received = incoming.next().await.unwrap().unwrap();
            assert_eq!(received[..], bytes);
            assert!(!account.is_paused());
        }
        client.write_all(&frame[..50_000]).await.unwrap();
        let begin = Instant::now();
        let error = incoming.next().await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "a frame of 200000 bytes took longer than 30s");
        assert!(account.is_paused());
        assert_eq!(begin.elapsed().as_secs(), WITHIN.as_secs());
    }

    /// What inflates well costs little to send, and must not hold a thread.
    #[tokio::test]
    async fn inflating_yields_to_other_tasks() {
        let mut encoder = ZlibEncoder::new(Vec::new());
        encoder.write_all(&vec![0; 64 << 20]).await.unwrap();
        encoder.shutdown().await.unwrap();
        let deflated = Deflated::new(&encoder.get_ref()[..]);
        let mut inflated = Inflated(ZlibDecoder::new(BufReader::new(deflated)));
        let mut part = vec![0; 8 << 10];
        let mut at_once = 0;
        while let Some(read) = inflated.read(&mut part).now_or_never() {
            let read = read.unwrap();
            assert!(read > 0, "all of it without a pause");
            at_once += read;
        }
        assert!(at_once < 4 << 20, "{at_once} bytes without a pause");
        tokio::task::yield_now().await;
        assert!(inflated.read(&mut part).await.unwrap() > 0);
    }

    /// Reads all of this input, and returns the largest part that is read without a pause.
    async fn most_at_once(blocks: &[u8]) -> usize {
        let input = [&[0x78, 1][..], &blocks.repeat(40_000)].concat();
        let mut inflated = Inflated(ZlibDecoder::new(BufReader::new(Deflated::new(&input[..]))));
        let left = |inflated: &Inflated<&[u8]>| inflated.0.get_ref().get_ref().from.len();
        let mut most = 0;
        while left(&inflated) > 0 {
            let before = left(&inflated);
            while inflated
                .read(&mut [0; 1 << 13])
                .now_or_never()
                .is_some_and(|read| read.unwrap() > 0)
            {}
            most = most.max(before - left(&inflated));
            tokio::task::yield_now().await;
        }
        most
    }

    #[tokio::test]
    async fn input_that_inflates_to_little_yields_to_other_tasks() {
        // Four blocks of ten bits: not the last one, a fixed code, the end of the block.
        let empty = [0b0000_0010, 0b0000_1000, 0b0010_0000, 0b1000_0000, 0];
        // The same with a zero in each, of 18 bits.
        let zeros =
            [0b0110_0010, 0, 0b1000_1000, 1, 0b0010_0000, 0b0000_0110, 0b1000_0000, 0b0001_1000, 0];
        for blocks in [&empty[..], &zeros] {
            let most = most_at_once(blocks).await;
            assert!((1..=2 * QUANTUM).contains(&most), "{most} bytes");
            let all = unconstrained(most_at_once(blocks)).await;
            assert!(all > 40_000 * blocks.len(), "{all} bytes: it has yielded");
        }
    }
}
