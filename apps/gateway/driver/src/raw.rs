//! A minimal AMQP client, for messages that no client library would send.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use lapin::uri::AMQPUri;

const METHOD: u8 = 1;
const HEADER: u8 = 2;
const BODY: u8 = 3;
/// The broker's default.
const LARGEST_FRAME: usize = 128 * 1024;

/// For an answer of the broker. For headers that are nested thousands of times it needs 13 s to more
/// than 20 s on two cores with much other work (load 20).
const TIMEOUT: Duration = Duration::from_secs(300);

pub struct Raw {
    socket: TcpStream,
    published: u64,
}

/// A message whose property flags and properties are sent as they are.
pub struct Forged {
    pub key: Vec<u8>,
    pub flags: u16,
    pub properties: Vec<u8>,
    pub body: Vec<u8>,
}

impl Raw {
    pub fn connect(uri: &str) -> Result<Self, String> {
        let uri: AMQPUri = uri.parse()?;
        let authority = uri.authority;
        let socket = TcpStream::connect((authority.host.as_str(), authority.port));
        let socket = socket.map_err(|error| error.to_string())?;
        socket.set_read_timeout(Some(TIMEOUT)).map_err(|error| error.to_string())?;
        let mut raw = Self { socket, published: 0 };
        raw.send(b"AMQP\0\0\x09\x01")?;
        raw.expect(10, 10)?;
        let userinfo = authority.userinfo;
        let login = format!("\0{}\0{}", userinfo.username, userinfo.password);
        let start = [&[0; 4], &short(b"PLAIN")[..], &long(login.as_bytes()), &short(b"en_US")];
        raw.method(0, 10, 11, &start.concat())?;
        raw.expect(10, 30)?;
        let frame_max = u32::try_from(LARGEST_FRAME).expect("it is small").to_be_bytes();
        raw.method(0, 10, 31, &[&[0, 1][..], &frame_max, &[0, 0]].concat())?;
        raw.method(0, 10, 40, &[&short(uri.vhost.as_bytes())[..], &[0, 0]].concat())?;
        raw.expect(10, 41)?;
        raw.method(1, 20, 10, &[0])?;
        raw.expect(20, 11)?;
        raw.method(1, 85, 10, &[0])?; // confirms
        raw.expect(85, 11)?;
        Ok(raw)
    }

    /// Publishes a message and waits for its confirm.
    pub fn publish(&mut self, exchange: &str, message: &Forged) -> Result<(), String> {
        let arguments = [&[0, 0][..], &short(exchange.as_bytes()), &short(&message.key), &[0]];
        self.method(1, 60, 40, &arguments.concat())?;
        let size = (message.body.len() as u64).to_be_bytes();
        let flags = message.flags.to_be_bytes();
        let header = [&[0, 60, 0, 0][..], &size, &flags, &message.properties].concat();
        self.frame(HEADER, 1, &header)?;
        for chunk in message.body.chunks(LARGEST_FRAME - 8) {
            self.frame(BODY, 1, chunk)?;
        }
        self.published += 1;
        let confirmed = self.expect(60, 80)?;
        if confirmed.get(..8) != Some(&self.published.to_be_bytes()) {
            return Err(format!("confirmed out of order: {confirmed:?}"));
        }
        Ok(())
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), String> {
        self.socket.write_all(bytes).map_err(|error| format!("to the broker: {error}"))
    }

    fn frame(&mut self, kind: u8, channel: u16, payload: &[u8]) -> Result<(), String> {
        let [a, b] = channel.to_be_bytes();
        self.send(&[&[kind, a, b][..], &long(payload), &[0xce]].concat())
    }

    fn method(&mut self, channel: u16, class: u8, id: u8, rest: &[u8]) -> Result<(), String> {
        self.frame(METHOD, channel, &[&[0, class, 0, id], rest].concat())
    }

    /// Reads the arguments of this method, which must come next.
    fn expect(&mut self, class: u8, id: u8) -> Result<Vec<u8>, String> {
        let mut opening = [0; 7];
        self.read(&mut opening)?;
        let size = u32::from_be_bytes([opening[3], opening[4], opening[5], opening[6]]);
        let mut payload = vec![0; size as usize + 1];
        self.read(&mut payload)?;
        match payload.strip_prefix(&[0, class, 0, id]) {
            Some(arguments) if opening[0] == METHOD => Ok(arguments.to_vec()),
            _ => Err(format!(
                "unexpected frame from the broker: {}",
                String::from_utf8_lossy(&payload)
            )),
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> Result<(), String> {
        self.socket.read_exact(buffer).map_err(|error| format!("from the broker: {error}"))
    }
}

pub fn short(bytes: &[u8]) -> Vec<u8> {
    let length = u8::try_from(bytes.len()).expect("a short string is short");
    [&[length], bytes].concat()
}

pub fn long(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).expect("a long string is not that long");
    [&length.to_be_bytes(), bytes].concat()
}
