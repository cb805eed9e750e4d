//! Frames: a length of four bytes, then as many bytes.
//!
//! tokio-util's `LengthDelimitedCodec` does the same, but reserves memory for a frame as soon as it
//! has read the length, so a peer could send four bytes and make the server hold a whole frame's
//! memory. This decoder grows its buffer with the bytes that have arrived. It also returns the
//! length before the frame, and says when it has as much of a frame as it may keep, so that the
//! reader can wait for memory. Each frame is a separate allocation of its exact length, so dropping
//! the frame frees it.

use std::io;
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::Sink;
use tokio::io::AsyncWrite;
use tokio::time::{Instant, Sleep, sleep};
use tokio_util::bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio_util::codec::Decoder;
use tokio_util::io::poll_write_buf;
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::memory::{Account, LITTLE, PAUSE};
use crate::pace::Pace;
use crate::transport::Frame;

const HEADER: usize = 4;

/// Frames are collected up to this size, or until a flush, and written together. A longer frame is
/// written from its own buffer.
const BATCH: usize = 64 * 1024;

/// Capacity of the write buffer that an idle connection keeps.
const KEPT: usize = 4 * 1024;

fn wrong(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

fn check(length: usize, longest: usize) -> io::Result<()> {
    if length > longest {
        return Err(wrong(format!("a frame of {length} bytes, more than {longest}")));
    }
    Ok(())
}

/// What the decoder returns.
#[derive(Debug, PartialEq)]
pub(crate) enum Part {
    /// The length of a frame of which no byte has been read yet.
    Length(usize),
    /// More of the frame has arrived than there is room for.
    Full,
    /// The frame.
    Frame(Bytes),
}

/// Decodes frames of at most `longest` bytes.
#[derive(Debug)]
pub(crate) struct Frames {
    longest: usize,
    /// The length of the frame that is being read.
    length: Option<usize>,
    /// How many bytes of it may be kept.
    room: usize,
    frame: Vec<u8>,
}

impl Frames {
    pub(crate) fn new(longest: usize) -> Self {
        Self { longest, length: None, room: 0, frame: Vec::new() }
    }

    /// Returns how much has been received of the frame.
    pub(crate) fn received(&self) -> usize {
        self.frame.len()
    }

    /// Makes room for so many bytes of the frame whose length was returned.
    pub(crate) fn make_room(&mut self, bytes: usize) {
        self.room = bytes;
    }
}

impl Decoder for Frames {
    type Item = Part;
    type Error = io::Error;

    fn decode(&mut self, bytes: &mut BytesMut) -> io::Result<Option<Part>> {
        let Some(length) = self.length else {
            let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
            let length = u32::from_be_bytes(*header) as usize;
            check(length, self.longest)?;
            bytes.advance(HEADER);
            self.length = Some(length);
            self.room = 0;
            return Ok(Some(Part::Length(length)));
        };
        let frame = &mut self.frame;
        let room = self.room.min(length);
        let count = bytes.len().min(room - frame.len());
        let filled = frame.len() + count;
        if filled > frame.capacity() {
            // Doubles the capacity, so that few copies are needed, but never exceeds the room.
            frame.reserve_exact(room.min(2 * filled) - frame.len());
        }
        frame.extend_from_slice(&bytes[..count]);
        bytes.advance(count);
        if filled < length {
            return Ok((!bytes.is_empty()).then_some(Part::Full));
        }
        self.length = None;
        Ok(Some(Part::Frame(mem::take(frame).into())))
    }

    fn decode_eof(&mut self, bytes: &mut BytesMut) -> io::Result<Option<Part>> {
        let part = self.decode(bytes)?;
        let received = self.length.map_or(bytes.len(), |_| HEADER + self.frame.len());
        if part.is_none() && received > 0 {
            let what = format!("the connection ended within a frame, after {received} bytes");
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        Ok(part)
    }
}

/// The time since not all could be written, in steps of at most a [`PAUSE`].
#[derive(Debug)]
struct Unwritten {
    /// How long nothing may be written.
    left: Duration,
    step: Duration,
    timer: Pin<Box<Sleep>>,
    /// Bytes that were written in this step.
    written: usize,
    /// How many steps in a row had little.
    little: u32,
    /// Since when the writer gives way to others.
    paused: Option<Instant>,
}

impl Unwritten {
    /// Has the step end later by the time that the writer gave way: the client was not to read meanwhile.
    fn resume(&mut self) {
        if let Some(since) = self.paused.take() {
            let end = self.timer.deadline() + since.elapsed();
            self.timer.as_mut().reset(end);
        }
    }
}

/// Ends a connection whose client does not read: after a time-out, or when others need its memory.
#[derive(Debug)]
struct Reader {
    account: Account,
    within: Duration,
    unwritten: Option<Unwritten>,
    ended: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl Reader {
    fn new(account: Account, within: Duration) -> Self {
        let ended = Box::pin(account.ended().clone().cancelled_owned());
        Self { account, within, unwritten: None, ended }
    }

    /// Notes that bytes were written.
    fn note_written(&mut self, count: usize) {
        if let Some(unwritten) = &mut self.unwritten {
            unwritten.resume();
            unwritten.written += count;
            if unwritten.written >= LITTLE {
                self.account.set_blocked(false);
            }
        }
    }

    /// Notes that the writer gives way to others.
    fn note_pause(&mut self) {
        if let Some(unwritten) = &mut self.unwritten {
            unwritten.paused.get_or_insert_with(Instant::now);
        }
    }

    /// Notes that all was written.
    fn note_end(&mut self) {
        if self.unwritten.take().is_some() {
            self.account.set_blocked(false);
        }
    }

    /// Called when no more can be written at the moment. Returns the reason when the connection ends.
    fn poll_unwritten(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        let Self { account, within, unwritten, ended } = self;
        let unwritten = unwritten.get_or_insert_with(|| {
            let step = PAUSE.min(*within);
            let timer = Box::pin(sleep(step));
            Unwritten { left: *within, step, timer, written: 0, little: 0, paused: None }
        });
        unwritten.resume();
        while !unwritten.left.is_zero() && unwritten.timer.as_mut().poll(cx).is_ready() {
            // A step counts once, however long it took.
            let written = mem::take(&mut unwritten.written);
            let left = unwritten.left.saturating_sub(unwritten.step);
            unwritten.left = if written == 0 { left } else { *within };
            unwritten.little = if written < LITTLE { unwritten.little + 1 } else { 0 };
            account.set_blocked(written == 0 || unwritten.little >= 2);
            unwritten.step = PAUSE.min(unwritten.left);
            unwritten.timer.as_mut().reset(Instant::now() + unwritten.step);
        }
        if unwritten.left.is_zero() {
            account.end_stalled(*within);
        }
        ended.as_mut().poll(cx).map(|()| account.end_error())
    }
}

/// Writes frames. Short frames are copied into one buffer; a long frame is kept, with the memory
/// and the permit that it holds, until it is written.
#[derive(Debug)]
pub(crate) struct Writer<W> {
    to: Pin<Box<W>>,
    longest: usize,
    together: BytesMut,
    /// Written after `together`.
    long: Option<Frame>,
    /// How many bytes of `long` are written.
    written: usize,
    reader: Option<Reader>,
    /// If `to` compresses.
    pace: Option<Pace>,
}

impl<W: AsyncWrite> Writer<W> {
    pub(crate) fn new(to: W, longest: usize) -> Self {
        let (to, together) = (Box::pin(to), BytesMut::new());
        Self { to, longest, together, long: None, written: 0, reader: None, pace: None }
    }

    /// Gives way to others while it writes much, because `to` compresses it.
    pub(crate) fn paced(mut self, pace: Pace) -> Self {
        self.pace = Some(pace);
        self
    }

    /// Fails if the client reads nothing `within` this time, or while others need the memory of its
    /// answers.
    pub(crate) fn watch(mut self, account: Account, within: Duration) -> Self {
        self.reader = Some(Reader::new(account, within));
        self
    }

    /// Returns `true` if it stopped only to give way to others.
    pub(crate) fn gives_way(&self) -> bool {
        self.pace.as_ref().is_some_and(Pace::gives_way)
    }

    fn poll_write_all(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let done = self.poll_write_on(cx);
        if let Some(pace) = &mut self.pace {
            pace.stop();
        }
        done
    }

    fn poll_write_on(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { to, together, long, written, reader, pace, .. } = self;
        let long_bytes: &[u8] = long.as_ref().map_or(&[], |frame| frame);
        loop {
            let before = together.len();
            let mut left = (&mut *together).chain(&long_bytes[*written..]);
            if !left.has_remaining() {
                break;
            }
            let done = match pace.as_mut().map(|pace| pace.poll_room(cx)) {
                None => poll_write_buf(to.as_mut(), cx, &mut left),
                Some(Poll::Ready(room)) => poll_write_buf(to.as_mut(), cx, &mut left.take(room)),
                Some(Poll::Pending) => {
                    reader.iter_mut().for_each(Reader::note_pause);
                    return Poll::Pending;
                }
            };
            let count = match (done, &mut *reader) {
                (Poll::Ready(count), _) => count?,
                (Poll::Pending, Some(reader)) => return reader.poll_unwritten(cx).map(Err),
                (Poll::Pending, None) => return Poll::Pending,
            };
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            if let Some(reader) = reader {
                reader.note_written(count);
            }
            if let Some(pace) = pace {
                pace.note_written(count);
            }
            *written += count.saturating_sub(before);
        }
        (*long, *written) = (None, 0);
        if together.capacity() > KEPT {
            *together = BytesMut::new();
        }
        Poll::Ready(Ok(()))
    }
}

impl<W: AsyncWrite> Sink<Frame> for Writer<W> {
    type Error = io::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // One that gives way goes on first: it may have the permit that others wait for.
        if self.long.is_none() && self.together.len() < BATCH && !self.gives_way() {
            return Poll::Ready(Ok(()));
        }
        self.poll_write_all(cx)
    }

    fn start_send(mut self: Pin<&mut Self>, frame: Frame) -> io::Result<()> {
        check(frame.len(), self.longest)?;
        let length = u32::try_from(frame.len()).map_err(|error| wrong(error.to_string()))?;
        self.together.put_u32(length);
        if frame.len() < BATCH {
            self.together.put_slice(&frame);
        } else {
            self.long = Some(frame);
        }
        Ok(())
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_all(cx))?;
        let Self { to, reader, .. } = &mut *self;
        match (to.as_mut().poll_flush(cx), reader) {
            (Poll::Ready(flushed), Some(reader)) => {
                reader.note_end();
                Poll::Ready(flushed)
            }
            (Poll::Pending, Some(reader)) => reader.poll_unwritten(cx).map(Err),
            (flushed, None) => flushed,
        }
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_write_all(cx))?;
        self.to.as_mut().poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use futures::{FutureExt, SinkExt};
    use tokio::io::AsyncReadExt;
    use tokio::task::yield_now;
    use tokio::time::advance;
    use tokio_util::sync::CancellationToken;
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::connection::{Activity, Owed, Peer};
    use crate::memory::Memory;

    /// Decodes all frames of `sent`, which arrives in chunks of `cut` bytes.
    fn read(longest: usize, sent: &[u8], cut: usize) -> Vec<Bytes> {
        let (mut frames, mut bytes, mut received) =
            (Frames::new(longest), BytesMut::new(), Vec::new());
        for part in sent.chunks(cut) {
            bytes.extend_from_slice(part);
            while let Some(part) = frames.decode(&mut bytes).unwrap() {
                match part {
                    Part::Length(length) => {
                        assert!(length <= longest);
                        frames.make_room(length / 3);
                    }
                    Part::Full => frames.make_room(frames.room + longest / 3 + 1),
                    Part::Frame(frame) => received.push(frame),
                }
            }
            assert!(bytes.len() < HEADER, "{} bytes are left in the input buffer", bytes.len());
        }
        assert_eq!(frames.decode_eof(&mut bytes).unwrap(), None);
        received
    }

    #[test]
    fn memory_is_not_reserved_before_the_bytes_arrive() {
        let mut frames = Frames::new(1 << 24);
        let mut bytes = BytesMut::from(&[0x01, 0, 0, 1][..]);
        let error = frames.decode(&mut bytes).unwrap_err();
        assert_eq!(error.to_string(), "a frame of 16777217 bytes, more than 16777216");

        let mut bytes = BytesMut::from(&[0x01, 0, 0, 0, 1][..]);
        assert_eq!(frames.decode(&mut bytes).unwrap(), Some(Part::Length(1 << 24)));
        assert_eq!(frames.decode(&mut bytes).unwrap(), Some(Part::Full));
        frames.make_room(1 << 24);
        assert_eq!(frames.decode(&mut bytes).unwrap(), None);
        let room = bytes.capacity() + frames.frame.capacity();
        assert!(room < 1024, "{room} bytes reserved for one byte received");
    }

    #[test]
    fn a_frame_takes_no_more_memory_than_its_length() {
        let mut frames = Frames::new(1 << 20);
        let mut bytes = BytesMut::from(&1_000_000_u32.to_be_bytes()[..]);
        assert_eq!(frames.decode(&mut bytes).unwrap(), Some(Part::Length(1_000_000)));
        frames.make_room(15_000);
        for _ in 0..99 {
            bytes.extend_from_slice(&[1; 10_000]);
            while let Some(part) = frames.decode(&mut bytes).unwrap() {
                assert_eq!(part, Part::Full);
                assert!(frames.frame.capacity() <= frames.room);
                frames.make_room(1_000_000.min(2 * frames.room));
            }
            assert!(frames.frame.capacity() <= frames.room.min(2 * frames.frame.len()));
        }
        assert!(bytes.capacity() < 100_000, "{} bytes in addition to the frame", bytes.capacity());
    }

    #[tokio::test]
    async fn frames_are_decoded_from_chunks_of_any_size() {
        let long = "long".repeat(BATCH / 4);
        let texts = [&b"one"[..], b"", b"a third", long.as_bytes(), b"", long.as_bytes(), b"last"];
        let (to, mut from) = tokio::io::duplex(1000);
        let writing = async {
            let mut writer = Writer::new(to, BATCH);
            for text in texts {
                writer.feed(Bytes::new().into()).await.unwrap();
                writer.feed(Bytes::copy_from_slice(text).into()).await.unwrap();
            }
            writer.close().await.unwrap();
            let error = writer.feed(Bytes::from(vec![0; BATCH + 1]).into()).now_or_never().unwrap();
            assert_eq!(error.unwrap_err().to_string(), "a frame of 65537 bytes, more than 65536");
        };
        let mut sent = Vec::new();
        let ((), read_all) = futures::join!(writing, from.read_to_end(&mut sent));
        read_all.unwrap();
        let expected = texts.iter().flat_map(|text| [&b""[..], text]).collect::<Vec<_>>();
        for cut in (1..50).chain([4096, sent.len()]) {
            assert_eq!(read(BATCH, &sent, cut), expected, "chunks of {cut} bytes");
        }
    }

    #[tokio::test]
    async fn a_long_frame_is_freed_when_it_is_written_and_not_before() {
        let (to, mut from) = tokio::io::duplex(1000);
        let mut writer = Writer::new(to, 1 << 20);
        let permits = std::sync::Arc::new(tokio::sync::Semaphore::new(1));
        let permit = permits.clone().try_acquire_owned().unwrap();
        let owed = Owed::new(permit, &Peer::new(CancellationToken::new(), 1), &TaskTracker::new());
        let frame = Frame::holding(vec![1; 1 << 18].into(), None, owed);
        writer.feed(frame).await.unwrap();
        assert!(writer.flush().now_or_never().is_none());
        assert_eq!(permits.available_permits(), 0);
        let mut sent = vec![0; HEADER + (1 << 18)];
        let (flushed, read) = futures::join!(writer.flush(), from.read_exact(&mut sent));
        flushed.unwrap();
        read.unwrap();
        assert_eq!(permits.available_permits(), 1);
        assert_eq!(sent[HEADER..], vec![1; 1 << 18]);
        assert!(writer.together.capacity() <= KEPT);
    }

    /// Lets time pass in one go, as if the process had been stopped, and runs what is woken.
    async fn stop_for(time: Duration) {
        advance(time).await;
        for _ in 0..5 {
            yield_now().await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn only_the_time_that_a_connection_has_tried_to_write_counts() {
        const WITHIN: Duration = Duration::from_secs(30);

        let account = Memory::new(1 << 20, 1 << 22, 1 << 20).account(Activity::default());
        let (to, mut from) = tokio::io::duplex(64 * 1024);
        let mut writer = Writer::new(to, 1 << 20).watch(account.clone(), WITHIN);
        writer.feed(Bytes::from(vec![1; 1 << 20]).into()).await.unwrap();
        let writing = tokio::spawn(async move { writer.flush().await });
        // A client that reads.
        let mut part = vec![0; LITTLE];
        for _ in 0..10 {
            stop_for(PAUSE / 2).await;
            from.read_exact(&mut part).await.unwrap();
            stop_for(2 * WITHIN).await;
            assert!(!account.is_paused());
        }
        // One that reads too little, but has not stalled.
        for step in 1..10 {
            from.read_exact(&mut part[1..]).await.unwrap();
            stop_for(WITHIN).await;
            assert_eq!(account.is_paused(), step >= 2);
        }
        from.read_exact(&mut part).await.unwrap();
        stop_for(Duration::ZERO).await;
        assert!(!account.is_paused());
        // Now it reads nothing.
        stop_for(PAUSE).await;
        for _ in 0..3 {
            stop_for(2 * WITHIN).await;
            assert!(account.is_paused() && !account.ended().is_cancelled());
        }
        from.read_exact(&mut part).await.unwrap();
        stop_for(Duration::ZERO).await;
        assert!(!account.is_paused());
        stop_for(PAUSE).await;
        let mut steps = 0;
        while !account.ended().is_cancelled() {
            stop_for(PAUSE).await;
            steps += 1;
        }
        assert_eq!(steps * PAUSE, WITHIN);
        let error = writing.await.unwrap().unwrap_err();
        assert_eq!(error.to_string(), "the client read no answers for 30s");
    }

    #[test]
    fn an_end_within_a_frame_is_an_error() {
        for received in 1..=12 {
            let mut bytes = BytesMut::from(&[0, 0, 0, 9, 1, 2, 3, 4, 5, 6, 7, 8][..received]);
            let mut frames = Frames::new(16);
            let _ = frames.decode(&mut bytes).unwrap();
            let error = loop {
                match frames.decode_eof(&mut bytes) {
                    Ok(Some(Part::Full)) => frames.make_room(9),
                    Ok(part) => assert_eq!(part, Some(Part::Length(9))),
                    Err(error) => break error,
                }
            };
            let expected = format!("the connection ended within a frame, after {received} bytes");
            assert_eq!(error.to_string(), expected);
        }
    }
}
