//! Who may connect, and who may publish.

use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use subtle::ConstantTimeEq;

use crate::gateway::Gateway;
use crate::http::Refusal;

/// Browsers let a page of any site open a WebSocket, or post, to anywhere, and say which site it was.
/// Other programs say nothing.
pub fn check_origin(gateway: &Gateway, headers: &HeaderMap) -> Result<(), Refusal> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let origin = String::from_utf8_lossy(origin.as_bytes()).to_lowercase();
    let allowed = &gateway.config.allow_origin;
    if allowed.iter().any(|allowed| allowed == "*" || *allowed == origin)
        || is_own(&origin, headers, gateway.is_local)
    {
        return Ok(());
    }
    let message = format!(
        "pages of {origin} may not connect; start the gateway with --allow-origin {origin}"
    );
    Err(Refusal::new(StatusCode::FORBIDDEN, "bad_origin", message))
}

/// Is it the page of this gateway itself?
fn is_own(origin: &str, headers: &HeaderMap, is_local: bool) -> bool {
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok()).map(str::to_lowercase);
    let own = host.as_deref().and_then(|host| host.parse::<Authority>().ok());
    let theirs = origin.split_once("://").map(|(_, host)| host);
    match (own, theirs) {
        // A stranger's name may be made to mean this machine, while its page is open.
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
    let given = headers.get(header::AUTHORIZATION).map(HeaderValue::as_bytes);
    let given = given.and_then(|value| match value.split_at_checked("Bearer ".len()) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(b"Bearer ") => Some(token),
        _ => None,
    });
    match given {
        // How long it takes says nothing about how much of it is right.
        Some(given) if bool::from(given.ct_eq(token.as_bytes())) => Ok(()),
        Some(_) => Err(unauthorized("the token is wrong")),
        None => Err(unauthorized("who publishes says Authorization: Bearer TOKEN")),
    }
}

fn unauthorized(what: &str) -> Refusal {
    Refusal::new(StatusCode::UNAUTHORIZED, "unauthorized", what)
}
