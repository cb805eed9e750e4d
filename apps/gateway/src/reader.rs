//! The keys that a client may read, and for how long: tokens signed with `--read-key`.
//!
//! Tokens are JWTs (RFC 7519), and HS256 is the only algorithm. They are verified here and not by the
//! crate `jsonwebtoken`, which also parses claims and fields of the header that nothing depends on: a
//! token was refused for `"sub":[]`.

use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, StatusCode, Uri};
use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use hmac::{Hmac, Mac};
use serde::Deserialize;
use serde::de::IgnoredAny;
use sha2::Sha256;
use tokio::time::Instant;

use crate::access::{bad_request, bearer, unauthorized};
use crate::http::Refusal;
use crate::json;

/// The fields of the header that matter; others are ignored.
#[derive(Deserialize)]
struct Header {
    alg: String,
    /// Extensions that a recipient must understand (RFC 7515, 4.1.11): none is known here.
    #[serde(default, deserialize_with = "json::present")]
    crit: Option<IgnoredAny>,
}

/// The claims that matter; others are ignored.
#[derive(Deserialize)]
struct Claims {
    exp: f64,
    nbf: Option<f64>,
    keys: Vec<String>,
}

/// What a token allows.
pub struct Reader {
    keys: Vec<String>,
    pub until: Instant,
}

impl Reader {
    /// Checks the token in `Authorization: Bearer TOKEN` or `?token=TOKEN`; browsers cannot set
    /// headers. A request with several tokens is refused, as RFC 6750 says (section 3.1).
    pub fn check(key: &str, headers: &HeaderMap, uri: &Uri) -> Result<Self, Refusal> {
        let queries = uri.query().unwrap_or_default().split('&');
        let queries = queries.filter_map(|query| query.strip_prefix("token="));
        let mut tokens = bearer(headers).into_iter().chain(queries.map(str::as_bytes));
        let Some(token) = tokens.next() else {
            let what = "a reader must send Authorization: Bearer TOKEN, or ?token=TOKEN";
            return Err(unauthorized(what));
        };
        if tokens.next().is_some() {
            return Err(bad_request("there is more than one token"));
        }
        let Claims { exp, nbf, keys } = verify(token, key)
            .map_err(|what| unauthorized(format!("the token is not valid: {what}")))?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        if nbf.is_some_and(|nbf| nbf > now.as_secs_f64()) {
            return Err(unauthorized("the token is not valid yet"));
        }
        // Caps `exp`, so that the addition does not overflow.
        let never = Duration::from_secs(30 * 365 * 86_400);
        let exp = Duration::try_from_secs_f64(exp.max(0.0)).unwrap_or(Duration::MAX);
        let left = exp.saturating_sub(now).min(never);
        if left.is_zero() {
            let what = "the token has expired";
            return Err(Refusal::new(StatusCode::UNAUTHORIZED, "token_expired", what));
        }
        Ok(Self { keys, until: Instant::now() + left })
    }

    /// Returns `true` if a pattern matches the key. A pattern ending in `*` is a prefix.
    pub fn may_read(&self, key: &str) -> bool {
        self.keys.iter().any(|allowed| match allowed.strip_suffix('*') {
            Some(prefix) => key.starts_with(prefix),
            None => key == allowed,
        })
    }
}

/// Returns the claims of a token that is signed with this key, or what is wrong with it. The claims
/// are read after the signature is verified.
fn verify(token: &[u8], key: &str) -> Result<Claims, String> {
    const PARTS: &str = "it is not three parts in base64url, separated by dots";
    let token = str::from_utf8(token).map_err(|_| PARTS)?;
    let (signed, signature) = token.rsplit_once('.').ok_or(PARTS)?;
    let (header, claims) = signed.split_once('.').ok_or(PARTS)?;
    let decode = |part: &str| BASE64_URL_SAFE_NO_PAD.decode(part).map_err(|_| PARTS);
    let (header, claims, signature) = (decode(header)?, decode(claims)?, decode(signature)?);
    let header: Header = json::object(&header).map_err(|error| format!("its header: {error}"))?;
    if header.alg != "HS256" {
        return Err("its algorithm is not HS256".to_owned());
    }
    if header.crit.is_some() {
        return Err("its header has critical extensions".to_owned());
    }
    let mac = Hmac::<Sha256>::new_from_slice(key.as_bytes());
    let mac = mac.map_err(|error| error.to_string())?.chain_update(signed);
    // In constant time.
    mac.verify_slice(&signature).map_err(|_| "its signature is wrong")?;
    json::object(&claims).map_err(|error| format!("its claims: {error}"))
}
