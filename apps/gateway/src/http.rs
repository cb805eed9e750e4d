//! The routes, and an error response for everything else.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::{ConnectInfo, Extension, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, middleware};
use futures::StreamExt;
use hyper::body::Body as _;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use std::net::SocketAddr;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, timeout_at};
use tower_http::cors::{AllowOrigin, CorsLayer};
use tower_service::Service;

use crate::access;
use crate::batch::{self, Room};
use crate::client;
use crate::gateway::Gateway;
use crate::message::{check_json, is_json_type, is_plain};
use crate::page;
use crate::reader::Reader;
use crate::source::PublishError;
use crate::timed_socket::Peer;

/// The path before the key.
const PUBLISH: &str = "/publish/";
/// Timeout for receiving a body.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that are buffered per client before a write: one system call for many messages.
pub const WRITE_BUFFER: usize = 16 * 1024;
/// Allocated for each client. Requests of clients are short.
const READ_BUFFER: usize = 1024;

type Shared = State<Arc<Gateway>>;

/// An error response.
#[derive(Debug)]
pub struct Refusal {
    pub status: StatusCode,
    pub code: &'static str,
    pub message: String,
}

impl Refusal {
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into() }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        self.respond(json!({}))
    }
}

impl Refusal {
    /// Builds the response, with more fields beside the error.
    pub fn respond(self, mut body: Value) -> Response {
        body["error"] = self.code.into();
        body["message"] = self.message.into();
        let mut response = (self.status, Json(body)).into_response();
        let headers = response.headers_mut();
        match self.status {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::UPGRADE_REQUIRED => {
                headers.insert(header::UPGRADE, HeaderValue::from_static("websocket"));
            }
            StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

pub fn router(gateway: Arc<Gateway>) -> Router {
    Router::new()
        .merge(page::routes())
        .route("/ws", get(connect))
        .route("/publish", post(batch::publish))
        .route(PUBLISH, post(publish_by_page))
        .route("/publish/{*key}", post(publish_by_page))
        .route("/stats", get(stats))
        .route("/metrics", get(metrics))
        .route("/healthz", get(health))
        .fallback(async || Refusal::new(StatusCode::NOT_FOUND, "not_found", "no such path"))
        .method_not_allowed_fallback(async || {
            let what = "no such method for this path, see Allow";
            Refusal::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", what)
        })
        .layer(cors(Arc::clone(&gateway)))
        .layer(middleware::map_response(async |response: Response| hardened(response)))
        .with_state(gateway)
}

pub fn hardened(mut response: Response) -> Response {
    let headers = response.headers_mut();
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Lets pages of allowed origins read the responses, and send requests with a token.
fn cors(gateway: Arc<Gateway>) -> CorsLayer {
    let is_allowed = move |origin: &HeaderValue, _: &Parts| access::is_allowed(&gateway, origin);
    CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(is_allowed))
        .allow_methods([Method::GET, Method::POST])
        .allow_headers([header::AUTHORIZATION, header::CONTENT_TYPE])
        .max_age(Duration::from_secs(600))
}

async fn connect(
    State(gateway): Shared,
    uri: Uri,
    headers: HeaderMap,
    ConnectInfo(address): ConnectInfo<SocketAddr>,
    Extension(place): Extension<Arc<OwnedSemaphorePermit>>,
    Extension(peer): Extension<Peer>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Refusal> {
    use WebSocketUpgradeRejection as Rejection;
    access::check_origin(&gateway, &headers)?;
    refuse_if_draining(&gateway)?;
    let key = gateway.config.read_key.as_ref();
    let reader = key.map(|key| Reader::check(key, &headers, &uri)).transpose()?;
    let upgrade = upgrade.map_err(|rejection| match rejection {
        Rejection::InvalidConnectionHeader(_) | Rejection::InvalidUpgradeHeader(_) => Refusal::new(
            StatusCode::UPGRADE_REQUIRED,
            "upgrade_required",
            "this is a WebSocket: connect with a WebSocket client",
        ),
        rejection => Refusal::new(StatusCode::BAD_REQUEST, "bad_request", rejection.body_text()),
    })?;
    access::check_websocket_key(&headers)?;
    let permit = Arc::clone(&gateway.places).try_acquire_owned().map_err(|_| {
        let message =
            format!("the maximum of {} connections is reached", gateway.config.max_connections);
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_connections", message)
    })?;
    let token = gateway.clients.token();
    Ok(upgrade
        .max_message_size(client::LONGEST)
        .max_frame_size(client::LONGEST)
        .read_buffer_size(READ_BUFFER)
        .write_buffer_size(WRITE_BUFFER)
        .on_upgrade(async move |socket| {
            let _until_it_has_left = (permit, place, token);
            client::serve(socket, gateway, address, peer, reader).await;
        }))
}

/// Answers a request. The frequent case, a post by a program, skips the router; CORS applies to
/// pages only, which send an `Origin`.
pub async fn answer(gateway: &Gateway, app: &Router, request: Request) -> Response {
    let is_post = request.method() == Method::POST && request.uri().path().starts_with(PUBLISH);
    if is_post && !request.headers().contains_key(header::ORIGIN) {
        return hardened(publish(gateway, request).await);
    }
    let routed = Box::pin(app.clone().call(request)); // so that the future of a post is small
    routed.await.unwrap_or_else(|never| match never {})
}

async fn publish(gateway: &Gateway, request: Request) -> Response {
    let _until_it_is_answered = gateway.posts.token();
    let published = try_publish(gateway, request).await;
    match &published {
        Ok(_) => gateway.board.taken.inc(),
        Err(refusal) => gateway.board.published.with_label_values(&[refusal.code]).inc(),
    }
    published.into_response()
}

async fn try_publish(gateway: &Gateway, request: Request) -> Result<Response, Refusal> {
    let (Parts { headers, uri, .. }, body) = request.into_parts();
    access::check_origin(gateway, &headers)?;
    access::check_token(gateway, &headers)?;
    // The decoder would take an invalid escape literally.
    let key = uri.path().strip_prefix(PUBLISH).filter(|key| has_valid_escapes(key));
    let key = key.and_then(|key| percent_decode_str(key).decode_utf8().ok());
    let key = key.ok_or_else(|| bad_key("the key is not UTF-8, percent-encoded"))?;
    Gateway::check_key(&key).map_err(bad_key)?;
    refuse_if_draining(gateway)?;
    let most = gateway.config.max_body;
    let what = || format!("a message has at most {most} bytes");
    let body = read(body, most, what, headers.contains_key(header::EXPECT), None).await?;
    let is_json =
        headers.get(header::CONTENT_TYPE).is_some_and(|kind| is_json_type(kind.as_bytes()));
    if is_json {
        check_json(&body).map_err(|error| {
            let message = format!("the body is not JSON, although its Content-Type is: {error}");
            Refusal::new(StatusCode::BAD_REQUEST, "bad_json", message)
        })?;
    }
    gateway.source.publish(&key, &body, is_json).await?;
    Ok(taken(&key, body.len()))
}

/// Returns the response to a post.
fn taken(key: &str, bytes: usize) -> Response {
    let body = if is_plain(key.as_bytes()) {
        format!(r#"{{"key":"{key}","bytes":{bytes}}}"#) // several times as fast as the other
    } else {
        format!(r#"{{"key":{},"bytes":{bytes}}}"#, Value::from(key))
    };
    let mut response = Response::new(body.into());
    *response.status_mut() = StatusCode::ACCEPTED;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}

impl From<PublishError> for Refusal {
    fn from(error: PublishError) -> Self {
        match error {
            PublishError::Blocked => timed_out("the gateway waits for a slow client"),
            PublishError::Draining => draining(),
            PublishError::Away => {
                let what = "the broker is not connected, or far behind; it has not got the message";
                Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "source_down", what)
            }
            PublishError::Down => {
                let what = "the broker did not confirm the message; it may or may not have it";
                Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "source_down", what)
            }
            PublishError::Alarm => {
                let what = "the broker is short of memory or disk and accepts no messages";
                Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "source_down", what)
            }
            PublishError::Rejected => {
                let what = "a queue of the broker rejected the message; other queues may have it";
                Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "rejected", what)
            }
            PublishError::Forbidden => {
                let what = "the broker does not let the gateway publish this key";
                Refusal::new(StatusCode::FORBIDDEN, "forbidden", what)
            }
            PublishError::TooLarge => {
                let what = "the message is larger than the broker accepts";
                Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", what)
            }
        }
    }
}

/// Reads a body of at most `most` bytes. If it is larger, the rest is read and discarded within the
/// timeout: a client that is still sending when the connection closes may never see the response.
/// Waits until there is room for more bytes.
pub async fn read(
    body: Body,
    most: usize,
    what: impl Fn() -> String,
    waits: bool,
    mut room: Option<&mut Room<'_>>,
) -> Result<Bytes, Refusal> {
    let too_large = || too_large(&what());
    let mut is_too_large = body.size_hint().lower() > most as u64;
    if is_too_large && waits {
        return Err(too_large()); // before the body is sent
    }
    let (mut chunks, mut all) = (body.into_data_stream(), Vec::new());
    let end = Instant::now() + TIMEOUT;
    loop {
        let Ok(chunk) = timeout_at(end, chunks.next()).await else {
            let late = timed_out("the body did not come within 10 s");
            return Err(if is_too_large { too_large() } else { late });
        };
        match chunk {
            None | Some(Err(_)) if is_too_large => return Err(too_large()),
            None => return Ok(all.into()),
            Some(Err(error)) => {
                let message = format!("the body broke off: {error}");
                return Err(Refusal::new(StatusCode::BAD_REQUEST, "bad_request", message));
            }
            Some(Ok(chunk)) if is_too_large || all.len() + chunk.len() > most => {
                (is_too_large, all) = (true, Vec::new());
            }
            Some(Ok(chunk)) => {
                if let Some(room) = &mut room
                    && timeout_at(end, room.take(chunk.len())).await.is_err()
                {
                    return Err(timed_out("too many batches are in progress"));
                }
                all.extend_from_slice(&chunk);
            }
        }
    }
}

fn has_valid_escapes(path: &str) -> bool {
    let is_hex = |two: &str| two.bytes().all(|byte| byte.is_ascii_hexdigit());
    path.split('%').skip(1).all(|rest| rest.get(..2).is_some_and(is_hex))
}

async fn publish_by_page(State(gateway): Shared, request: Request) -> Response {
    publish(&gateway, request).await
}

fn bad_key(what: &str) -> Refusal {
    Refusal::new(StatusCode::BAD_REQUEST, "bad_key", what)
}

pub fn too_large(what: &str) -> Refusal {
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, "too_large", what)
}

pub fn timed_out(what: &str) -> Refusal {
    Refusal::new(StatusCode::REQUEST_TIMEOUT, "timeout", what)
}

fn draining() -> Refusal {
    Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "draining", "the gateway is about to stop")
}

pub fn refuse_if_draining(gateway: &Gateway) -> Result<(), Refusal> {
    if gateway.board.is_draining() { Err(draining()) } else { Ok(()) }
}

async fn stats(State(gateway): Shared, headers: HeaderMap) -> Result<Response, Refusal> {
    access::check_host(&gateway, &headers)?;
    let json = [(header::CONTENT_TYPE, "application/json")];
    Ok((json, gateway.board.stats()).into_response())
}

async fn metrics(State(gateway): Shared, headers: HeaderMap) -> Result<Response, Refusal> {
    access::check_host(&gateway, &headers)?;
    let text = gateway.board.metrics().map_err(|error| {
        Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, "no_metrics", error.to_string())
    })?;
    Ok(([(header::CONTENT_TYPE, prometheus::TEXT_FORMAT)], text).into_response())
}

async fn health(State(gateway): Shared) -> Response {
    let draining = gateway.board.is_draining();
    let status = if draining { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    (status, Json(gateway.board.health())).into_response()
}
