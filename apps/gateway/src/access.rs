//! Checks of requests: valid headers, allowed origin, token of a publisher.

use axum::extract::Request;
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, Version, header};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use subtle::ConstantTimeEq;

use crate::gateway::Gateway;
use crate::http::Refusal;

/// The headers that have one value, of those that are read here or by axum. (hyper refuses two values
/// of `Content-Length`.) Another program on the way may read another value than the first, which
/// is checked here.
const SINGLE: [HeaderName; 6] = [
    header::HOST,
    header::ORIGIN,
    header::AUTHORIZATION,
    header::CONTENT_TYPE,
    header::SEC_WEBSOCKET_KEY,
    header::SEC_WEBSOCKET_VERSION,
];

/// Checks that there is a `Host` (HTTP/1.0: or none), that the body can be decoded, and that no header
/// is repeated of which only the first is read. Joins several `Connection` headers, which are one list,
/// with commas.
pub fn check_request(request: &mut Request) -> Result<(), Refusal> {
    let is_old = request.version() == Version::HTTP_10;
    let headers = request.headers_mut();
    if !is_old && !headers.contains_key(header::HOST) {
        return Err(bad_request("there is no Host"));
    }
    check_codings(headers)?;
    if headers.len() == headers.keys_len() {
        return Ok(()); // none is repeated
    }
    for name in SINGLE {
        if headers.get_all(&name).iter().nth(1).is_some() {
            return Err(bad_request(&format!("there is more than one header `{name}`")));
        }
    }
    let lines: Vec<_> =
        headers.get_all(header::CONNECTION).iter().map(HeaderValue::as_bytes).collect();
    if lines.len() > 1
        && let Ok(joined) = HeaderValue::from_bytes(&lines.join(&b", "[..]))
    {
        headers.insert(header::CONNECTION, joined);
    }
    Ok(())
}

/// Checks that the body has no transfer coding but `chunked`, once. hyper checks that this is the last
/// one, and decodes no other: `gzip, chunked` would be published as it was compressed.
fn check_codings(headers: &HeaderMap) -> Result<(), Refusal> {
    let lines = headers.get_all(header::TRANSFER_ENCODING).iter();
    let codings = lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    let mut count = 0;
    for coding in codings.map(<[u8]>::trim_ascii).filter(|coding| !coding.is_empty()) {
        if !coding.eq_ignore_ascii_case(b"chunked") {
            let what = "the only transfer coding that the gateway decodes is chunked";
            return Err(Refusal::new(StatusCode::NOT_IMPLEMENTED, "not_implemented", what));
        }
        count += 1;
    }
    if count > 1 { Err(bad_request("the body is chunked more than once")) } else { Ok(()) }
}

/// Checks that the key of a WebSocket handshake is 16 bytes in base64.
pub fn check_websocket_key(headers: &HeaderMap) -> Result<(), Refusal> {
    let key = headers.get(header::SEC_WEBSOCKET_KEY);
    let key = key.and_then(|key| BASE64_STANDARD.decode(key).ok());
    if key.is_some_and(|key| key.len() == 16) {
        return Ok(());
    }
    Err(bad_request("Sec-WebSocket-Key is not 16 bytes in base64"))
}

pub fn bad_request(what: &str) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, "bad_request", what)
}

/// Checks the origin of a WebSocket or a post. Browsers let any page open a WebSocket or post to
/// any site, and send the page's origin; other programs send none.
pub fn check_origin(gateway: &Gateway, headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    if is_allowed(gateway, origin) {
        return Ok(());
    }
    let origin = String::from_utf8_lossy(origin.as_bytes()).to_lowercase();
    if is_own(&origin, headers, gateway.is_local) {
        return Ok(());
    }
    let message = format!(
        "pages of {origin} may not connect; start the gateway with --allow-origin {origin}"
    );
    Err(Refusal::new(StatusCode::FORBIDDEN, "bad_origin", message))
}

/// Returns `true` if pages of this origin may connect.
pub fn is_allowed(gateway: &Gateway, origin: &HeaderValue) -> bool {
    let mut allowed = gateway.config.allow_origin.iter();
    allowed
        .any(|allowed| allowed == "*" || origin.as_bytes().eq_ignore_ascii_case(allowed.as_bytes()))
}

/// Checks `Host`, because browsers send no `Origin` with same-origin requests: an attacker's DNS
/// name may resolve to this machine.
pub fn check_host(gateway: &Gateway, headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(host) = headers.get(header::HOST) else { return Ok(()) };
    let host = String::from_utf8_lossy(host.as_bytes()).to_lowercase();
    let is_named = |allowed: &String| {
        allowed == "*" || allowed.split_once("://").is_some_and(|(_, named)| named == host)
    };
    if !gateway.is_local
        || host.parse::<Authority>().is_ok_and(|host| is_loopback(host.host()))
        || gateway.config.allow_origin.iter().any(is_named)
    {
        return Ok(());
    }
    let message = format!(
        "requests for {host} are not allowed; start the gateway with --allow-origin https://{host}"
    );
    Err(Refusal::new(StatusCode::FORBIDDEN, "bad_origin", message))
}

/// Returns `true` if the origin is the page of this gateway.
fn is_own(origin: &str, headers: &HeaderMap, is_local: bool) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).map(str::to_lowercase);
    let own = host.as_deref().and_then(|host| host.parse::<Authority>().ok());
    let theirs = origin.split_once("://").map(|(_, host)| host);
    match (own, theirs) {
        // On a local address, only local names count: any other name may be an attacker's.
        (Some(own), Some(theirs)) => {
            own.as_str() == theirs && (!is_local || is_loopback(own.host()))
        }
        _ => false,
    }
}

fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost"
        || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

pub fn check_token(gateway: &Gateway, headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(token) = &gateway.config.token else { return Ok(()) };
    match bearer(headers) {
        // In constant time, so that the duration does not reveal how much of a wrong token is
        // right.
        Some(given) if bool::from(given.ct_eq(token.as_bytes())) => Ok(()),
        Some(_) => Err(unauthorized("the token is wrong")),
        None => Err(unauthorized("a publisher must send Authorization: Bearer TOKEN")),
    }
}

pub fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, token) = value.split_at_checked("Bearer ".len())?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(token)
}

pub fn unauthorized(what: impl Into<String>) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", what)
}
