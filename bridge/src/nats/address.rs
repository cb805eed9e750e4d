//! [`Address`]: where a NATS server is, and as whom to use it.

use std::fmt;

use crate::url::UrlError;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) login: Option<Login>,
}

#[derive(PartialEq, Eq)]
pub(crate) enum Login {
    Token(String),
    User { name: String, password: String },
}

/// Without the secret.
impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Token(_) => f.write_str("Token"),
            Self::User { name, .. } => f.debug_tuple("User").field(name).finish(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)
        } else {
            write!(f, "{}:{}", self.host, self.port)
        }
    }
}

const DEFAULT_PORT: u16 = 4_222;

impl Address {
    /// Parses `nats://[user:password@ | token@]host[:port]`.
    pub(crate) fn parse(url: &str) -> Result<Self, UrlError> {
        let error = |reason: &str| UrlError(reason.to_owned());
        if url.starts_with("tls:") || url.starts_with("wss:") {
            return Err(error("TLS is not supported; use nats://, for example by a tunnel"));
        }
        let Some(rest) = url.strip_prefix("nats://") else {
            return Err(error("it does not begin with nats://"));
        };
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (login, server) = match rest.rsplit_once('@') {
            Some((login, server)) => (Some(Login::parse(login)?), server),
            None => (None, rest),
        };
        if server.contains(',') {
            return Err(error("it names several servers, and a bridge uses one"));
        }
        if server.contains(['/', '?', '#']) {
            return Err(error("it has a path, and NATS has none"));
        }
        let (host, port) = match server.strip_prefix('[') {
            Some(server) => {
                let Some((host, port)) = server.split_once(']') else {
                    return Err(error("a `]` is missing"));
                };
                (host, port.strip_prefix(':'))
            }
            None => match server.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (server, None),
            },
        };
        if host.is_empty() {
            return Err(error("it has no host"));
        }
        let port = match port {
            Some(port) => port.parse().map_err(|_| error("its port is not a number"))?,
            None => DEFAULT_PORT,
        };
        Ok(Self { host: host.to_owned(), port, login })
    }
}

impl Login {
    fn parse(login: &str) -> Result<Self, UrlError> {
        match login.split_once(':') {
            Some((name, password)) => {
                Ok(Self::User { name: decode(name)?, password: decode(password)? })
            }
            None => Ok(Self::Token(decode(login)?)),
        }
    }
}

/// Replaces `%40` by `@`, and so on.
fn decode(text: &str) -> Result<String, UrlError> {
    let error = || UrlError("a `%` in it is not followed by the two digits of a byte".to_owned());
    let mut bytes = Vec::with_capacity(text.len());
    let mut parts = text.split('%');
    bytes.extend_from_slice(parts.next().unwrap_or_default().as_bytes());
    for part in parts {
        let (digits, rest) = part.split_at_checked(2).ok_or_else(error)?;
        if !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(error());
        }
        bytes.push(u8::from_str_radix(digits, 16).map_err(|_| error())?);
        bytes.extend_from_slice(rest.as_bytes());
    }
    String::from_utf8(bytes).map_err(|_| UrlError("its login is not UTF-8".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(host: &str, port: u16, login: Option<Login>) -> Address {
        Address { host: host.to_owned(), port, login }
    }

    #[test]
    fn url_names_a_server_and_a_login() {
        let user = |name: &str, password: &str| {
            Some(Login::User { name: name.to_owned(), password: password.to_owned() })
        };
        for (url, expected) in [
            ("nats://localhost", address("localhost", 4_222, None)),
            ("nats://10.0.0.1:5000/", address("10.0.0.1", 5_000, None)),
            ("nats://[::1]:5000", address("::1", 5_000, None)),
            ("nats://[::1]", address("::1", 4_222, None)),
            ("nats://ann:tea@host", address("host", 4_222, user("ann", "tea"))),
            ("nats://a%3an:p%40%25@host", address("host", 4_222, user("a:n", "p@%"))),
            ("nats://s3cret@host", address("host", 4_222, Some(Login::Token("s3cret".to_owned())))),
        ] {
            assert_eq!(Address::parse(url), Ok(expected), "{url}");
        }
    }

    #[test]
    fn url_that_cannot_be_used_says_why() {
        for (url, reason) in [
            ("tls://host", "TLS is not supported"),
            ("redis://host", "nats://"),
            ("host:4222", "nats://"),
            ("nats://", "no host"),
            ("nats://:4222", "no host"),
            ("nats://a,b", "several servers"),
            ("nats://host:port", "port is not a number"),
            ("nats://host:70000", "port is not a number"),
            ("nats://host/subject", "path"),
            ("nats://[::1", "`]` is missing"),
            ("nats://a%4:b@host", "two digits"),
            ("nats://a%+1:b@host", "two digits"),
            ("nats://%ff@host", "not UTF-8"),
        ] {
            let error = Address::parse(url).unwrap_err().to_string();
            assert!(error.contains(reason), "{url}: {error}");
        }
    }

    #[test]
    fn secrets_are_not_shown() {
        for url in ["nats://ann:s3cret@host", "nats://s3cret@host"] {
            let address = Address::parse(url).unwrap();
            assert!(!format!("{address:?} {address}").contains("s3cret"));
        }
    }
}
