//! Safe deserialization of untrusted input: no length is trusted before the bytes are there.
//!
//! The readers of the `thrift` crate allocate what a length announces before they read: `vec![0;
//! length]` for a string and, in generated code, `Vec::with_capacity(size)` for a list, whatever
//! element type the wire announces. [`Guard`] sits between the reader and the generated code. It
//! reads strings itself, and passes on the size of a container only if the remaining bytes can hold
//! that many elements. Thus a frame can cause the allocation, in one container, of at most one
//! element per byte of the frame, and of at most `Limits::container` elements.

use std::cell::Cell;
use std::io::{self, Read};

use thrift::protocol::{
    TFieldIdentifier, TInputProtocol, TListIdentifier, TMapIdentifier, TMessageIdentifier,
    TSetIdentifier, TStructIdentifier, TType,
};
use thrift::{ProtocolError, ProtocolErrorKind, Result};

use crate::message::{Limits, Protocol};

/// A frame that is being read. The protocol reads through one reference, and the guard checks the
/// number of remaining bytes through another.
pub(crate) struct Source<'a> {
    left: Cell<&'a [u8]>,
}

impl<'a> Source<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { left: Cell::new(bytes) }
    }

    pub(crate) fn len(&self) -> usize {
        self.left.get().len()
    }

    fn split(&self, length: usize) -> Option<&'a [u8]> {
        let (taken, left) = self.left.get().split_at_checked(length)?;
        self.left.set(left);
        Some(taken)
    }
}

impl Read for &Source<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut left = self.left.get();
        let read = left.read(into)?;
        self.left.set(left);
        Ok(read)
    }

    fn read_exact(&mut self, into: &mut [u8]) -> io::Result<()> {
        let taken = self.split(into.len()).ok_or_else(|| {
            let what = format!("{} bytes expected, {} left", into.len(), self.len());
            io::Error::new(io::ErrorKind::UnexpectedEof, what)
        })?;
        into.copy_from_slice(taken);
        Ok(())
    }
}

/// Checks what `inner` reads from `source` against the limits.
pub(crate) struct Guard<'a, P> {
    inner: P,
    source: &'a Source<'a>,
    protocol: Protocol,
    limits: Limits,
}

fn wrong<T>(kind: ProtocolErrorKind, what: String) -> Result<T> {
    Err(thrift::Error::Protocol(ProtocolError::new(kind, what)))
}

impl<'a, P: TInputProtocol> Guard<'a, P> {
    pub(crate) fn new(
        inner: P,
        source: &'a Source<'a>,
        protocol: Protocol,
        limits: Limits,
    ) -> Self {
        Self { inner, source, protocol, limits }
    }

    /// Returns the next string as a slice of the frame.
    fn string(&mut self) -> Result<&'a [u8]> {
        let length = match self.protocol {
            Protocol::Binary => i64::from(self.inner.read_i32()?),
            Protocol::Compact => i64::from(self.varint()?),
        };
        let Ok(length) = usize::try_from(length) else {
            return wrong(ProtocolErrorKind::NegativeSize, format!("a string of {length} bytes"));
        };
        if length > self.limits.string {
            let what = format!("a string of {length} bytes, more than {}", self.limits.string);
            return wrong(ProtocolErrorKind::SizeLimit, what);
        }
        if let Some(bytes) = self.source.split(length) {
            return Ok(bytes);
        }
        let what = format!("a string of {length} bytes, with {} left", self.source.len());
        wrong(ProtocolErrorKind::InvalidData, what)
    }

    fn varint(&mut self) -> Result<u32> {
        let mut value = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.inner.read_byte()?;
            let bits = u32::from(byte & 0x7f);
            if shift == 28 && bits > 0xf {
                break;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Ok(value);
            }
        }
        wrong(ProtocolErrorKind::InvalidData, "a length exceeds 32 bits".to_owned())
    }

    /// Returns an error if `size` elements of at least `bytes_each` bytes exceed the remaining
    /// bytes or the limit.
    fn container(&self, size: i32, bytes_each: usize) -> Result<()> {
        let Ok(size) = usize::try_from(size) else {
            return wrong(ProtocolErrorKind::NegativeSize, format!("a container of {size}"));
        };
        if size > self.limits.container {
            let what = format!("a container of {size}, more than {}", self.limits.container);
            return wrong(ProtocolErrorKind::SizeLimit, what);
        }
        if size.saturating_mul(bytes_each) > self.source.len() {
            let what = format!("a container of {size}, with {} bytes left", self.source.len());
            return wrong(ProtocolErrorKind::InvalidData, what);
        }
        Ok(())
    }

    fn bytes_each(&self, element: Option<TType>) -> usize {
        element.map_or(1, |element| self.inner.min_serialized_size(element).max(1))
    }
}

impl<P: TInputProtocol> TInputProtocol for Guard<'_, P> {
    fn read_message_begin(&mut self) -> Result<TMessageIdentifier> {
        self.inner.read_message_begin()
    }
    fn read_message_end(&mut self) -> Result<()> {
        self.inner.read_message_end()
    }
    fn read_struct_begin(&mut self) -> Result<Option<TStructIdentifier>> {
        self.inner.read_struct_begin()
    }
    fn read_struct_end(&mut self) -> Result<()> {
        self.inner.read_struct_end()
    }
    fn read_field_begin(&mut self) -> Result<TFieldIdentifier> {
        self.inner.read_field_begin()
    }
    fn read_field_end(&mut self) -> Result<()> {
        self.inner.read_field_end()
    }
    fn read_bool(&mut self) -> Result<bool> {
        self.inner.read_bool()
    }
    fn read_bytes(&mut self) -> Result<Vec<u8>> {
        self.string().map(<[u8]>::to_vec)
    }
    fn read_i8(&mut self) -> Result<i8> {
        self.inner.read_i8()
    }
    fn read_i16(&mut self) -> Result<i16> {
        self.inner.read_i16()
    }
    fn read_i32(&mut self) -> Result<i32> {
        self.inner.read_i32()
    }
    fn read_i64(&mut self) -> Result<i64> {
        self.inner.read_i64()
    }
    fn read_double(&mut self) -> Result<f64> {
        self.inner.read_double()
    }
    fn read_uuid(&mut self) -> Result<uuid::Uuid> {
        self.inner.read_uuid()
    }
    fn read_string(&mut self) -> Result<String> {
        // Validated in place, so that invalid UTF-8 is not copied first.
        match str::from_utf8(self.string()?) {
            Ok(string) => Ok(string.to_owned()),
            Err(error) => wrong(ProtocolErrorKind::InvalidData, format!("a string: {error}")),
        }
    }
    fn read_list_begin(&mut self) -> Result<TListIdentifier> {
        let list = self.inner.read_list_begin()?;
        self.container(list.size, self.bytes_each(Some(list.element_type)))?;
        Ok(list)
    }
    fn read_list_end(&mut self) -> Result<()> {
        self.inner.read_list_end()
    }
    fn read_set_begin(&mut self) -> Result<TSetIdentifier> {
        let set = self.inner.read_set_begin()?;
        self.container(set.size, self.bytes_each(Some(set.element_type)))?;
        Ok(set)
    }
    fn read_set_end(&mut self) -> Result<()> {
        self.inner.read_set_end()
    }
    fn read_map_begin(&mut self) -> Result<TMapIdentifier> {
        let map = self.inner.read_map_begin()?;
        let bytes_each = self.bytes_each(map.key_type) + self.bytes_each(map.value_type);
        self.container(map.size, bytes_each)?;
        Ok(map)
    }
    fn read_map_end(&mut self) -> Result<()> {
        self.inner.read_map_end()
    }
    fn skip_binary(&mut self) -> Result<()> {
        self.string().map(drop)
    }
    fn read_byte(&mut self) -> Result<u8> {
        self.inner.read_byte()
    }
    fn min_serialized_size(&self, field_type: TType) -> usize {
        self.inner.min_serialized_size(field_type)
    }
}
