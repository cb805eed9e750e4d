//! One message of a batch: a JSON object on a line.

use std::borrow::Cow;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::json;
use crate::message::check_json;

/// A message to publish.
#[derive(Debug, PartialEq)]
pub struct Line<'a> {
    pub key: Cow<'a, str>,
    pub body: Cow<'a, [u8]>,
    /// The body is JSON, [checked](check_json).
    pub is_json: bool,
}

/// An error in a line: the code and the message.
#[derive(Debug, PartialEq)]
pub struct LineError(pub &'static str, pub String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields<'a> {
    #[serde(borrow)]
    key: Cow<'a, str>,
    #[serde(borrow)]
    body: Option<Cow<'a, str>>,
    #[serde(borrow)]
    base64: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "json::present")]
    json: Option<&'a RawValue>,
}

impl<'a> Line<'a> {
    pub fn parse(line: &'a [u8]) -> Result<Self, LineError> {
        let Fields { key, body, base64, json } =
            json::object(line).map_err(|error| parse_error(&error))?;
        let is_json = json.is_some();
        let body = match (body, base64, json) {
            (Some(Cow::Borrowed(text)), None, None) => Cow::Borrowed(text.as_bytes()),
            (Some(Cow::Owned(text)), None, None) => Cow::Owned(text.into_bytes()),
            (None, Some(base64), None) => match BASE64_STANDARD.decode(&*base64) {
                Ok(bytes) => Cow::Owned(bytes),
                Err(error) => return Err(LineError("bad_request", format!("base64: {error}"))),
            },
            (None, None, Some(json)) => {
                let json = json.get().as_bytes();
                check_json(json)
                    .map_err(|error| LineError("bad_json", format!("json: {error}")))?;
                Cow::Borrowed(json)
            }
            (None, None, None) => {
                return Err(LineError("bad_request", "no body, json or base64".into()));
            }
            _ => {
                let what = "more than one of body, json and base64";
                return Err(LineError("bad_request", what.into()));
            }
        };
        Ok(Self { key, body, is_json })
    }
}

/// Removes the line number from serde's message: it counts within the line.
fn parse_error(error: &serde_json::Error) -> LineError {
    let code = if error.is_data() { "bad_request" } else { "bad_json" };
    let (place, text) = (format!(" at line {} column ", error.line()), error.to_string());
    let what = text.split(&place).next().unwrap_or_default();
    LineError(code, format!("{what} (column {})", error.column()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_key_and_a_body_in_one_of_three_ways() {
        for (line, key, body) in [
            (r#"{"key":"tea","body":"hello"}"#, "tea", &b"hello"[..]),
            (r#" { "body": "a\n\u00e9", "key": "\"" } "#, "\"", "a\né".as_bytes()),
            (r#"{"key":"tea","base64":"/wA="}"#, "tea", &[0xff, 0]),
            (r#"{"key":"tea","body":""}"#, "tea", b""),
            (r#"{"key":"tea","json": {"a":[1, null]} }"#, "tea", br#"{"a":[1, null]}"#),
            (r#"{"key":"tea","json":null}"#, "tea", b"null"),
        ] {
            let is_json = line.contains("json");
            let expected = Line { key: key.into(), body: body.into(), is_json };
            assert_eq!(Line::parse(line.as_bytes()), Ok(expected), "{line}");
        }
    }

    #[test]
    fn errors_in_a_line_are_described() {
        for (line, code, what) in [
            (&b"tea hello"[..], "bad_json", "expected ident (column 2)"),
            (b"{\"key\":\"tea\",\"body\":\"hel", "bad_json", "EOF while parsing a string"),
            (b"{\"key\":\"tea\",\"body\":\"\xff\"}", "bad_json", "invalid unicode code point"),
            (b"{\"key\":\"a\",\"body\":\"b\"}{}", "bad_json", "trailing characters (column 23)"),
            (b"[]", "bad_request", "expected an object"),
            (b"[\"key\",\"body\",null,null]", "bad_request", "expected an object"),
            (b"7", "bad_request", "invalid type: integer `7`"),
            (b"{\"key\":7,\"body\":}", "bad_json", "expected value (column 17)"),
            (b"{\"body\":\"x\"}", "bad_request", "missing field `key`"),
            (b"{\"key\":7,\"body\":\"x\"}", "bad_request", "invalid type: integer `7`"),
            (b"{\"key\":\"a\",\"rate\":1}", "bad_request", "unknown field `rate`"),
            (b"{\"key\":\"a\"}", "bad_request", "no body"),
            (b"{\"key\":\"a\",\"json\":1e999}", "bad_json", "json: number out of range"),
            (b"{\"key\":\"a\",\"json\":1,\"body\":\"x\"}", "bad_request", "more than one of"),
            (b"{\"key\":\"a\",\"json\":null,\"body\":\"\"}", "bad_request", "more than one of"),
            (b"{\"key\":\"a\",\"body\":\"x\",\"base64\":\"\"}", "bad_request", "more than one of"),
            (b"{\"key\":\"a\",\"base64\":\"?\"}", "bad_request", "base64: Invalid symbol"),
            (
                b"{\"key\":\"a\",\"key\":\"b\",\"body\":\"\"}",
                "bad_request",
                "duplicate field `key`",
            ),
        ] {
            let text = String::from_utf8_lossy(line);
            let Err(LineError(got, message)) = Line::parse(line) else {
                panic!("{text} is accepted")
            };
            assert_eq!(got, code, "{text}: {message}");
            assert!(message.contains(what), "{text}: {message}");
        }
    }
}
