//! The keys that a client may read, and for how long: tokens signed with `--read-key`.

use std::time::{Duration, SystemTime};

use axum::http::{HeaderMap, StatusCode, Uri};
use hmac::{Hmac, Mac};
use jsonwebtoken::crypto::{CryptoProvider, JwkUtils, JwtVerifier};
use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::signature::{self, Verifier};
use jsonwebtoken::{Algorithm, DecodingKey, Validation, decode};
use serde::Deserialize;
use sha2::Sha256;
use tokio::time::Instant;

use crate::access::{bearer, unauthorized};
use crate::http::Refusal;

/// Only HS256 is compiled in: a token that names another algorithm is invalid.
static HS256: CryptoProvider = CryptoProvider {
    signer_factory: |_, _| Err(ErrorKind::InvalidAlgorithm.into()),
    verifier_factory: |_, key| {
        let mac = Hmac::new_from_slice(key.try_get_hmac_secret()?);
        Ok(Box::new(Hs256(mac.map_err(|_| ErrorKind::InvalidKeyFormat)?)))
    },
    jwk_utils: JwkUtils::new_unimplemented(),
};

struct Hs256(Hmac<Sha256>);

impl Verifier<Vec<u8>> for Hs256 {
    fn verify(&self, message: &[u8], tag: &Vec<u8>) -> Result<(), signature::Error> {
        let mac = self.0.clone().chain_update(message);
        mac.verify_slice(tag).map_err(signature::Error::from_source) // in constant time
    }
}

impl JwtVerifier for Hs256 {
    fn algorithm(&self) -> Algorithm {
        Algorithm::HS256
    }
}

#[derive(Deserialize)]
struct Claims {
    exp: f64,
    keys: Vec<String>,
}

/// What a token allows.
pub struct Reader {
    keys: Vec<String>,
    pub until: Instant,
}

impl Reader {
    /// Checks the token in `Authorization: Bearer TOKEN` or `?token=TOKEN`; browsers cannot set
    /// headers.
    pub fn check(key: &str, headers: &HeaderMap, uri: &Uri) -> Result<Self, Refusal> {
        let mut queries = uri.query().unwrap_or_default().split('&');
        let query = queries.find_map(|query| query.strip_prefix("token="));
        let Some(token) = bearer(headers).or(query.map(str::as_bytes)) else {
            let what = "a reader must send Authorization: Bearer TOKEN, or ?token=TOKEN";
            return Err(unauthorized(what));
        };
        let _ = HS256.install_default(); // later calls fail, harmlessly
        let mut rules = Validation::new(Algorithm::HS256); // requires `exp`
        (rules.leeway, rules.validate_nbf, rules.validate_aud) = (0, true, false);
        let key = DecodingKey::from_secret(key.as_bytes());
        let expired =
            || Refusal::new(StatusCode::UNAUTHORIZED, "token_expired", "the token has expired");
        let token = decode::<Claims>(token, &key, &rules).map_err(|error| match error.kind() {
            ErrorKind::ExpiredSignature => expired(),
            _ => unauthorized(format!("the token is not valid: {error}")),
        })?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        // Caps `exp`, so that the addition does not overflow.
        let never = Duration::from_secs(30 * 365 * 86_400);
        let exp = Duration::try_from_secs_f64(token.claims.exp).unwrap_or(Duration::MAX);
        let left = exp.saturating_sub(now).min(never);
        if left.is_zero() {
            return Err(expired()); // it expires within this second
        }
        let keys = token.claims.keys;
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
