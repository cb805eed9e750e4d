//! Frames: four bytes of length, then so many bytes.
//!
//! tokio-util's `LengthDelimitedCodec` does the same, but makes room for a frame as soon as it has read
//! the length: a peer that sends four bytes and waits would hold a whole frame's memory. This one grows
//! with what has arrived.

use std::io;

use tokio_util::bytes::{Buf, BufMut, Bytes, BytesMut};
use tokio_util::codec::{Decoder, Encoder};

const HEADER: usize = 4;

/// Cuts bytes into frames of at most `longest` bytes, and puts frames together.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Frames {
    pub(crate) longest: usize,
}

fn wrong(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

impl Frames {
    fn check(self, length: usize) -> io::Result<()> {
        if length > self.longest {
            return Err(wrong(format!("a frame of {length} bytes, more than {}", self.longest)));
        }
        Ok(())
    }
}

impl Decoder for Frames {
    type Item = Bytes;
    type Error = io::Error;

    fn decode(&mut self, bytes: &mut BytesMut) -> io::Result<Option<Bytes>> {
        let Some(header) = bytes.first_chunk::<HEADER>() else { return Ok(None) };
        let length = u32::from_be_bytes(*header) as usize;
        self.check(length)?;
        if bytes.len() < HEADER + length {
            return Ok(None);
        }
        bytes.advance(HEADER);
        Ok(Some(bytes.split_to(length).freeze()))
    }

    fn decode_eof(&mut self, bytes: &mut BytesMut) -> io::Result<Option<Bytes>> {
        let frame = self.decode(bytes)?;
        if frame.is_none() && !bytes.is_empty() {
            let what = format!("the connection ended within a frame, after {} bytes", bytes.len());
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        Ok(frame)
    }
}

impl Encoder<Bytes> for Frames {
    type Error = io::Error;

    fn encode(&mut self, frame: Bytes, bytes: &mut BytesMut) -> io::Result<()> {
        self.check(frame.len())?;
        let length = u32::try_from(frame.len()).map_err(|error| wrong(error.to_string()))?;
        bytes.reserve(HEADER + frame.len());
        bytes.put_u32(length);
        bytes.put_slice(&frame);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forged_length_is_an_error_and_a_large_one_reserves_nothing() {
        let mut frames = Frames { longest: 1 << 24 };
        let mut bytes = BytesMut::from(&[0xff, 0xff, 0xff, 0xff, 1][..]);
        let error = frames.decode(&mut bytes).unwrap_err();
        assert_eq!(error.to_string(), "a frame of 4294967295 bytes, more than 16777216");

        let mut bytes = BytesMut::from(&[0x01, 0, 0, 0, 1][..]);
        assert!(frames.decode(&mut bytes).unwrap().is_none());
        assert!(bytes.capacity() < 1024, "{} bytes of room for one that came", bytes.capacity());
    }

    #[test]
    fn frames_arrive_however_they_are_cut() {
        let mut frames = Frames { longest: 16 };
        let mut sent = BytesMut::new();
        let texts = [&b"one"[..], b"", b"a third, longest"];
        for text in texts {
            frames.encode(Bytes::from_static(text), &mut sent).unwrap();
        }
        for cut in 1..sent.len() {
            let (mut bytes, mut received) = (BytesMut::new(), Vec::new());
            for part in sent.chunks(cut) {
                bytes.extend_from_slice(part);
                while let Some(frame) = frames.decode(&mut bytes).unwrap() {
                    received.push(frame);
                }
            }
            assert_eq!(received, texts, "cut every {cut} bytes");
        }
        assert!(frames.encode(Bytes::from_static(&[0; 17]), &mut sent).is_err());
    }

    #[test]
    fn an_end_within_a_frame_is_an_error() {
        let mut bytes = BytesMut::from(&[0, 0, 0, 9, 1][..]);
        let error = Frames { longest: 16 }.decode_eof(&mut bytes).unwrap_err();
        assert_eq!(error.to_string(), "the connection ended within a frame, after 5 bytes");
    }
}
