//! A message: what a frame holds, in one of two protocols.

use thrift::protocol::{
    TBinaryInputProtocol, TBinaryOutputProtocol, TCompactInputProtocol, TCompactOutputProtocol,
    TInputProtocol, TMessageIdentifier, TMessageType, TOutputProtocol,
};
use thrift::{ApplicationError, TConfiguration};
use tokio_util::bytes::Bytes;

use crate::error::Error;
use crate::guard::{Guard, Source};

/// No method has a longer name.
const LONGEST_NAME: usize = 1024;

/// A struct that a message can hold. The compiler of Thrift makes these two methods for each, but
/// only for those named in the IDL an `impl` of its `TSerializable`.
pub trait Wire: Sized {
    /// Reads the struct.
    fn read(from: &mut dyn TInputProtocol) -> thrift::Result<Self>;
    /// Writes the struct.
    fn write(&self, to: &mut dyn TOutputProtocol) -> thrift::Result<()>;
}

/// How a message is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// Apache Thrift's strict binary protocol.
    #[default]
    Binary,
    /// Its compact protocol.
    Compact,
}

/// How much one message may hold.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of a frame.
    pub frame: usize,
    /// Elements of a list, set or map.
    pub container: usize,
    /// Bytes of a string or binary.
    pub string: usize,
}

impl Default for Limits {
    /// A frame of 16,384,000 bytes, as everywhere in Apache Thrift; a string may fill it, and a
    /// container have 65,536 elements.
    fn default() -> Self {
        let frame = TConfiguration::DEFAULT_MAX_FRAME_SIZE;
        Self { frame, container: 1 << 16, string: frame }
    }
}

/// A message whose envelope has been read, and whose struct has not.
#[derive(Debug, Clone)]
pub struct Message {
    /// How it is written.
    pub protocol: Protocol,
    /// The method.
    pub name: String,
    /// Call, one-way call, reply or exception.
    pub kind: TMessageType,
    /// The sequence id: an answer has that of its call.
    pub id: i32,
    body: Bytes,
}

/// Bytes that a frame may have room for and not use.
const SLACK: usize = 1024;

impl Message {
    /// Reads the envelope. The first byte tells the protocols apart.
    pub fn open(frame: &Bytes, limits: &Limits) -> Result<Self, Error> {
        let protocol = match frame.first() {
            Some(0x80) => Protocol::Binary,
            Some(0x82) => Protocol::Compact,
            Some(other) => {
                let what = format!("neither binary nor compact: its first byte is {other:#04x}");
                return Err(Error::Malformed(what));
            }
            None => return Err(Error::Malformed("an empty frame".to_owned())),
        };
        let source = Source::new(frame);
        let config = TConfiguration::builder()
            .max_string_size(Some(LONGEST_NAME.min(limits.string).min(frame.len())))
            .build()?;
        let head = match protocol {
            Protocol::Binary => {
                TBinaryInputProtocol::with_config(&source, true, config).read_message_begin()
            }
            Protocol::Compact => {
                TCompactInputProtocol::with_config(&source, config).read_message_begin()
            }
        }
        .map_err(|error| match error.into() {
            Error::Malformed(what) => Error::Malformed(format!("its envelope: {what}")),
            other => Error::Malformed(format!("its envelope: {other}")),
        })?;
        let body = frame.slice(frame.len() - source.len()..);
        let (name, kind, id) = (head.name, head.message_type, head.sequence_number);
        Ok(Self { protocol, name, kind, id, body })
    }

    /// Reads the struct, within limits.
    pub fn read<T: Wire>(&self, limits: &Limits) -> Result<T, Error> {
        Ok(self.with(limits, |from| T::read(from))?)
    }

    /// The envelope alone.
    pub(crate) fn head(&self) -> Self {
        let Self { protocol, ref name, kind, id, .. } = *self;
        Self { protocol, name: name.clone(), kind, id, body: Bytes::new() }
    }

    /// Takes the struct out: reading that frees its frame.
    pub(crate) fn take(&mut self) -> Self {
        let head = self.head();
        std::mem::replace(self, head)
    }

    /// Writes a message: its frame, without the length.
    pub fn write(
        protocol: Protocol,
        name: &str,
        kind: TMessageType,
        id: i32,
        value: &impl Wire,
    ) -> Result<Bytes, Error> {
        write(protocol, name, kind, id, |to| value.write(to))
    }

    /// Writes the exception with which a server says that it cannot answer this.
    pub(crate) fn refuse(&self, error: &ApplicationError) -> Result<Bytes, Error> {
        write(self.protocol, &self.name, TMessageType::Exception, self.id, |to| {
            thrift::Error::write_application_error_to_out_protocol(error, to)
        })
    }

    /// Reads the exception that a server answers with when it cannot answer.
    pub(crate) fn read_refusal(&self, limits: &Limits) -> Error {
        match self.with(limits, |from| thrift::Error::read_application_error_from_in_protocol(from))
        {
            Ok(error) => Error::Refused(error.kind, error.message),
            Err(error) => error.into(),
        }
    }

    fn with<T>(
        &self,
        limits: &Limits,
        read: impl FnOnce(&mut dyn TInputProtocol) -> thrift::Result<T>,
    ) -> thrift::Result<T> {
        let source = Source::new(&self.body);
        let config = TConfiguration::default();
        match self.protocol {
            Protocol::Binary => {
                let inner = TBinaryInputProtocol::with_config(&source, true, config);
                let mut guard = Guard::new(inner, &source, self.protocol, *limits);
                read(&mut guard)
            }
            Protocol::Compact => {
                let inner = TCompactInputProtocol::with_config(&source, config);
                let mut guard = Guard::new(inner, &source, self.protocol, *limits);
                read(&mut guard)
            }
        }
    }
}

fn write(
    protocol: Protocol,
    name: &str,
    kind: TMessageType,
    id: i32,
    body: impl FnOnce(&mut dyn TOutputProtocol) -> thrift::Result<()>,
) -> Result<Bytes, Error> {
    let mut frame = Vec::with_capacity(128);
    let head = TMessageIdentifier::new(name, kind, id);
    let write = |out: &mut dyn TOutputProtocol| {
        out.write_message_begin(&head)?;
        body(out)?;
        out.write_message_end()
    };
    match protocol {
        Protocol::Binary => write(&mut TBinaryOutputProtocol::new(&mut frame, true))?,
        Protocol::Compact => write(&mut TCompactOutputProtocol::new(&mut frame))?,
    }
    if frame.capacity() - frame.len() > SLACK {
        frame.shrink_to_fit(); // it may wait long for a slow client
    }
    Ok(frame.into())
}
