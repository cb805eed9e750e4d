//! A message: the content of a frame, in the binary or the compact protocol.

use thrift::protocol::{
    TBinaryInputProtocol, TBinaryOutputProtocol, TCompactInputProtocol, TCompactOutputProtocol,
    TInputProtocol, TMessageIdentifier, TMessageType, TOutputProtocol, TType,
};
use thrift::{ApplicationError, ProtocolErrorKind, TConfiguration};
use tokio_util::bytes::Bytes;

use crate::error::Error;
use crate::guard::{Guard, Source};
use crate::limited::Limited;

/// Maximal length of a method name, with the name of its service.
const LONGEST_NAME: usize = 1024;

fn longest_name(limits: &Limits) -> usize {
    LONGEST_NAME.min(limits.string)
}

/// A struct that a message can hold. The Thrift compiler generates both methods for each struct,
/// but implements `TSerializable` only for those named in the IDL.
pub trait Wire: Sized {
    /// Reads the struct.
    fn read(from: &mut dyn TInputProtocol) -> thrift::Result<Self>;
    /// Writes the struct.
    fn write(&self, to: &mut dyn TOutputProtocol) -> thrift::Result<()>;
}

/// The protocol that a message is written in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// Apache Thrift's strict binary protocol.
    #[default]
    Binary,
    /// Apache Thrift's compact protocol.
    Compact,
}

/// Size limits of a message. A client checks its requests and the answers, a server the requests
/// and the frames of its answers.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Bytes of a frame.
    pub frame: usize,
    /// Elements of a list, set or map.
    pub container: usize,
    /// Bytes of a string or binary. The name of a method, with that of its service, may have as many, and
    /// at most 1,024.
    pub string: usize,
}

impl Default for Limits {
    /// Frames and strings of 16,384,000 bytes, which is Apache Thrift's default frame size, and
    /// containers of 65,536 elements.
    fn default() -> Self {
        let frame = TConfiguration::DEFAULT_MAX_FRAME_SIZE;
        Self { frame, container: 1 << 16, string: frame }
    }
}

/// A message of which only the envelope has been decoded.
#[derive(Debug, Clone)]
pub struct Message {
    /// The protocol it is written in.
    pub protocol: Protocol,
    /// The name of the method.
    pub name: String,
    /// Call, one-way call, reply or exception.
    pub kind: TMessageType,
    /// The sequence id. An answer has the id of its call.
    pub id: i32,
    body: Bytes,
}

/// Spare capacity that a frame may keep.
const SLACK: usize = 1024;

impl Message {
    /// Decodes the envelope. The first byte identifies the protocol.
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
            .max_string_size(Some(longest_name(limits).min(frame.len())))
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

    /// Decodes the struct, within `limits`.
    pub fn read<T: Wire>(&self, limits: &Limits) -> Result<T, Error> {
        Ok(self.with(limits, |from| T::read(from))?)
    }

    /// Returns `true` if it is an answer whose body is a struct, whatever its fields are. Its strings and
    /// containers may be longer than a reader takes.
    pub(crate) fn is_well_formed(&self) -> bool {
        let limits = Limits { frame: usize::MAX, container: usize::MAX, string: usize::MAX };
        matches!(self.kind, TMessageType::Reply | TMessageType::Exception)
            && self.with(&limits, |from| from.skip(TType::Struct)).is_ok()
    }

    /// Returns the envelope, with an empty body.
    pub(crate) fn head(&self) -> Self {
        let Self { protocol, ref name, kind, id, .. } = *self;
        Self { protocol, name: name.clone(), kind, id, body: Bytes::new() }
    }

    /// Moves the body out, so that the frame is freed once the body has been decoded.
    pub(crate) fn take(&mut self) -> Self {
        let head = self.head();
        std::mem::replace(self, head)
    }

    /// Encodes a message as a frame without its length.
    pub fn write(
        protocol: Protocol,
        name: &str,
        kind: TMessageType,
        id: i32,
        value: &impl Wire,
    ) -> Result<Bytes, Error> {
        Ok(encode(protocol, name, kind, id, |to| value.write(to))?)
    }

    /// Encodes a message that is within the limits.
    pub(crate) fn write_within(
        limits: &Limits,
        protocol: Protocol,
        name: &str,
        kind: TMessageType,
        id: i32,
        value: &impl Wire,
    ) -> Result<Bytes, Error> {
        let longest = longest_name(limits);
        if name.len() > longest {
            let what = format!("a method name of {} bytes, more than {longest}", name.len());
            return Err(Error::TooLarge(what));
        }
        let within = |to: &mut dyn TOutputProtocol| value.write(&mut Limited::new(to, *limits));
        let frame = encode(protocol, name, kind, id, within).map_err(|error| match error {
            thrift::Error::Protocol(error) if error.kind == ProtocolErrorKind::SizeLimit => {
                Error::TooLarge(format!("{name}: {}", error.message))
            }
            error => error.into(),
        })?;
        if frame.len() > limits.frame {
            let (length, most) = (frame.len(), limits.frame);
            return Err(Error::TooLarge(format!("{name}: {length} bytes, more than {most}")));
        }
        Ok(frame)
    }

    /// Encodes the application exception that answers this message.
    pub(crate) fn refuse(&self, error: &ApplicationError) -> Result<Bytes, Error> {
        Ok(encode(self.protocol, &self.name, TMessageType::Exception, self.id, |to| {
            thrift::Error::write_application_error_to_out_protocol(error, to)
        })?)
    }

    /// Decodes the application exception that a server answered with.
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

fn encode(
    protocol: Protocol,
    name: &str,
    kind: TMessageType,
    id: i32,
    body: impl FnOnce(&mut dyn TOutputProtocol) -> thrift::Result<()>,
) -> thrift::Result<Bytes> {
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
        frame.shrink_to_fit(); // a frame for a slow client may be kept for long
    }
    Ok(frame.into())
}
