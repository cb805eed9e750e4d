//! Checks what a request contains against the limits, as `guard` checks what is read.
//!
//! A peer with the same limits would refuse such a request, after it has been sent.

use thrift::protocol::{
    TFieldIdentifier, TListIdentifier, TMapIdentifier, TMessageIdentifier, TOutputProtocol,
    TSetIdentifier, TStructIdentifier,
};
use thrift::{ProtocolError, ProtocolErrorKind, Result};

use crate::message::Limits;

/// Writes to `to` what is within the limits.
pub(crate) struct Limited<'a> {
    to: &'a mut dyn TOutputProtocol,
    limits: Limits,
}

fn check(what: &str, size: usize, most: usize) -> Result<()> {
    if size <= most {
        return Ok(());
    }
    let what = format!("{what} of {size}, more than {most}");
    Err(thrift::Error::Protocol(ProtocolError::new(ProtocolErrorKind::SizeLimit, what)))
}

impl<'a> Limited<'a> {
    pub(crate) fn new(to: &'a mut dyn TOutputProtocol, limits: Limits) -> Self {
        Self { to, limits }
    }

    fn string(&self, bytes: &[u8]) -> Result<()> {
        check("bytes or a string", bytes.len(), self.limits.string)
    }

    fn container(&self, size: i32) -> Result<()> {
        // The generated code casts the length of a container, so it may be negative here.
        let size = usize::try_from(size).unwrap_or(usize::MAX);
        check("a container", size, self.limits.container)
    }
}

impl TOutputProtocol for Limited<'_> {
    fn write_message_begin(&mut self, identifier: &TMessageIdentifier) -> Result<()> {
        self.to.write_message_begin(identifier)
    }
    fn write_message_end(&mut self) -> Result<()> {
        self.to.write_message_end()
    }
    fn write_struct_begin(&mut self, identifier: &TStructIdentifier) -> Result<()> {
        self.to.write_struct_begin(identifier)
    }
    fn write_struct_end(&mut self) -> Result<()> {
        self.to.write_struct_end()
    }
    fn write_field_begin(&mut self, identifier: &TFieldIdentifier) -> Result<()> {
        self.to.write_field_begin(identifier)
    }
    fn write_field_end(&mut self) -> Result<()> {
        self.to.write_field_end()
    }
    fn write_field_stop(&mut self) -> Result<()> {
        self.to.write_field_stop()
    }
    fn write_bool(&mut self, value: bool) -> Result<()> {
        self.to.write_bool(value)
    }
    fn write_bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.string(bytes)?;
        self.to.write_bytes(bytes)
    }
    fn write_i8(&mut self, value: i8) -> Result<()> {
        self.to.write_i8(value)
    }
    fn write_i16(&mut self, value: i16) -> Result<()> {
        self.to.write_i16(value)
    }
    fn write_i32(&mut self, value: i32) -> Result<()> {
        self.to.write_i32(value)
    }
    fn write_i64(&mut self, value: i64) -> Result<()> {
        self.to.write_i64(value)
    }
    fn write_double(&mut self, value: f64) -> Result<()> {
        self.to.write_double(value)
    }
    fn write_uuid(&mut self, value: &uuid::Uuid) -> Result<()> {
        self.to.write_uuid(value)
    }
    fn write_string(&mut self, text: &str) -> Result<()> {
        self.string(text.as_bytes())?;
        self.to.write_string(text)
    }
    fn write_list_begin(&mut self, identifier: &TListIdentifier) -> Result<()> {
        self.container(identifier.size)?;
        self.to.write_list_begin(identifier)
    }
    fn write_list_end(&mut self) -> Result<()> {
        self.to.write_list_end()
    }
    fn write_set_begin(&mut self, identifier: &TSetIdentifier) -> Result<()> {
        self.container(identifier.size)?;
        self.to.write_set_begin(identifier)
    }
    fn write_set_end(&mut self) -> Result<()> {
        self.to.write_set_end()
    }
    fn write_map_begin(&mut self, identifier: &TMapIdentifier) -> Result<()> {
        self.container(identifier.size)?;
        self.to.write_map_begin(identifier)
    }
    fn write_map_end(&mut self) -> Result<()> {
        self.to.write_map_end()
    }
    fn flush(&mut self) -> Result<()> {
        self.to.flush()
    }
    fn write_byte(&mut self, byte: u8) -> Result<()> {
        self.to.write_byte(byte)
    }
}
