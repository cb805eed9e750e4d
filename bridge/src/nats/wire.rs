//! What a NATS server says ([`parse`]), and how a client introduces itself ([`connect`]).

use serde_json::{Value, json};

use crate::nats::address::{Address, Login};

/// Something that the server has said.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Said<'a> {
    Info(Info),
    /// An item, for the subscription with this number.
    Item {
        subscription: u64,
        item: &'a [u8],
    },
    Ping,
    Pong,
    Ok,
    Error(String),
}

/// What the server says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) largest_item: usize,
    pub(crate) requires_tls: bool,
}

/// A line is at most this long. An `INFO` that names a thousand servers is.
const LONGEST_LINE: usize = 256 * 1_024;

/// No server allows larger items than this (`max_payload`).
const LARGEST_ITEM: usize = 64 * 1_024 * 1_024;

/// Parses what the server has said first. Returns it with its length, or `None` if it is not there
/// as a whole.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Said<'_>, usize)>, String> {
    let head = &bytes[..bytes.len().min(LONGEST_LINE)];
    let Some(end) = head.windows(2).position(|pair| pair == b"\r\n") else {
        if bytes.len() >= LONGEST_LINE {
            return Err("the engine has sent a line without an end".to_owned());
        }
        return Ok(None);
    };
    let rest = &bytes[end + 2..];
    let length = end + 2;
    let line = &bytes[..end];
    let unknown = || format!("the engine has said {:?}", String::from_utf8_lossy(line));
    let text = std::str::from_utf8(line).map_err(|_| unknown())?;
    let (verb, arguments) = text.split_once([' ', '\t']).unwrap_or((text, ""));
    let said = match verb.to_ascii_uppercase().as_str() {
        "MSG" => {
            // `MSG subject subscription [reply] length`
            let mut words = arguments.split_ascii_whitespace().skip(1);
            let subscription = words.next().and_then(|word| word.parse().ok());
            let size = words.last().and_then(|word| word.parse::<usize>().ok());
            let (Some(subscription), Some(size)) = (subscription, size) else {
                return Err(unknown());
            };
            if size > LARGEST_ITEM {
                return Err(unknown());
            }
            let Some(item) = rest.get(..size + 2) else { return Ok(None) };
            let Some(item) = item.strip_suffix(b"\r\n") else { return Err(unknown()) };
            return Ok(Some((Said::Item { subscription, item }, length + size + 2)));
        }
        "INFO" => Said::Info(info(arguments).ok_or_else(unknown)?),
        "PING" => Said::Ping,
        "PONG" => Said::Pong,
        "+OK" => Said::Ok,
        "-ERR" => Said::Error(arguments.trim().trim_matches('\'').to_owned()),
        _ => return Err(unknown()),
    };
    Ok(Some((said, length)))
}

fn info(text: &str) -> Option<Info> {
    let value: Value = serde_json::from_str(text).ok()?;
    let largest_item = value.get("max_payload").and_then(Value::as_u64);
    let requires_tls = value.get("tls_required").and_then(Value::as_bool);
    Some(Info {
        largest_item: largest_item.and_then(|size| usize::try_from(size).ok())?,
        requires_tls: requires_tls.unwrap_or(false),
    })
}

/// Returns the commands by which a client introduces itself.
///
/// The server is to confirm nothing (`verbose`), to send the client what it has published itself
/// (`echo`), and to leave out headers, which a bridge has no place for.
pub(crate) fn connect(address: &Address) -> Vec<u8> {
    let mut options = json!({
        "verbose": false,
        "pedantic": false,
        "echo": true,
        "headers": false,
        "protocol": 1,
        "lang": "rust",
        "name": env!("CARGO_PKG_NAME"),
        "version": env!("CARGO_PKG_VERSION"),
    });
    match &address.login {
        Some(Login::Token(token)) => options["auth_token"] = json!(token),
        Some(Login::User { name, password }) => {
            options["user"] = json!(name);
            options["pass"] = json!(password);
        }
        None => {}
    }
    format!("CONNECT {options}\r\nPING\r\n").into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_that_a_server_says_is_understood() {
        let item = |subscription, item| Said::Item { subscription, item };
        let info = Info { largest_item: 1_048_576, requires_tls: true };
        for (bytes, expected) in [
            ("MSG tea 7 5\r\nhello\r\n", item(7, b"hello")),
            ("MSG tea 7 reply.to 0\r\n\r\n", item(7, b"")),
            ("msg\ttea\t7  2\r\n\r\n\r\n", item(7, b"\r\n")),
            ("PING\r\n", Said::Ping),
            ("PONG\r\n", Said::Pong),
            ("+OK\r\n", Said::Ok),
            ("-ERR 'Stale Connection'\r\n", Said::Error("Stale Connection".to_owned())),
            ("INFO {\"max_payload\":1048576,\"tls_required\":true}\r\n", Said::Info(info)),
            ("INFO {\"max_payload\":1048576,\"tls_required\":true} \r\n", Said::Info(info)),
        ] {
            let bytes = bytes.as_bytes();
            assert_eq!(parse(bytes), Ok(Some((expected, bytes.len()))));
            // Whatever follows does not matter, and a part is not taken for the whole.
            let followed = [bytes, b"PONG\r\n"].concat();
            assert_eq!(parse(&followed).unwrap().unwrap().1, bytes.len());
            for length in 0..bytes.len() {
                assert_eq!(parse(&bytes[..length]), Ok(None), "{length} bytes");
            }
        }
    }

    #[test]
    fn nonsense_is_an_error() {
        for bytes in [
            "HTTP/1.1 400 Bad Request\r\n",
            "-DENIED Redis\r\n",
            "MSG tea 7\r\n",
            "MSG tea x 5\r\nhello\r\n",
            "MSG tea 7 4\r\nhello\r\n",
            "MSG tea 7 99999999999\r\n",
            "INFO {}\r\n",
            "INFO hello\r\n",
        ] {
            assert!(parse(bytes.as_bytes()).is_err(), "{bytes:?}");
        }
        assert!(parse(&vec![b'x'; LONGEST_LINE]).is_err());
    }
}
