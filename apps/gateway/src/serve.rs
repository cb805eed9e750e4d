//! Accepts connections and serves HTTP on them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, warn};

use crate::access;
use crate::gateway::Gateway;
use crate::http::{Refusal, answer, hardened, router};
use crate::log::NOT_ACCEPTED;
use crate::timed_socket::{Peer, TimedSocket};

/// Connections that have not sent a request yet. Further ones wait to be accepted.
pub const NEW: usize = 256;
/// Maximum bytes buffered per direction, and so of a request without its body.
const BUFFER: usize = 16 * 1024;
/// Timeout for the headers of a request.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Serves until `stop` is cancelled, and completes when all requests are answered. WebSockets are
/// separate.
pub async fn serve(listener: TcpListener, gateway: Arc<Gateway>, stop: CancellationToken) {
    // Twice the limit: as many plain connections as WebSockets. Beyond that, an error is returned.
    let most = gateway.config.max_connections as usize;
    let sockets = Arc::new(Semaphore::new(2 * most + NEW));
    let plain = Arc::new(Semaphore::new(most));
    let connections = TaskTracker::new();
    let app = router(Arc::clone(&gateway));
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &sockets) => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((socket, address, place)) => {
                let own = Connection {
                    gateway: Arc::clone(&gateway),
                    app: app.clone(),
                    address,
                    socket: Arc::new(place),
                    plain: Arc::clone(&plain),
                };
                connections.spawn(own.answer(socket, stop.clone()));
            }
            Err(error) => {
                if NOT_ACCEPTED.allows() {
                    warn!(%error, "cannot accept a client");
                }
                sleep(Duration::from_millis(100)).await; // a connection may have closed by then
            }
        }
    }
    drop(listener);
    connections.close();
    connections.wait().await;
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, SocketAddr, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.expect("the semaphore is never closed");
    let (socket, address) = listener.accept().await?;
    Ok((socket, address, place))
}

/// An accepted connection.
struct Connection {
    gateway: Arc<Gateway>,
    app: Router,
    address: SocketAddr,
    /// Shared with a WebSocket, which outlives its request.
    socket: Arc<OwnedSemaphorePermit>,
    plain: Arc<Semaphore>,
}

impl Connection {
    async fn answer(self, socket: TcpStream, stop: CancellationToken) {
        let _ = socket.set_nodelay(true); // flush means send
        let (address, is_upgraded) = (self.address, Arc::new(AtomicBool::new(false)));
        let socket = TimedSocket::new(socket, Arc::clone(&is_upgraded));
        let (shared, peer) = (socket.share(), socket.peer());
        // Kept until the connection ends, as its responses use memory until then.
        let place = OnceLock::new();
        let service = service_fn(|request: hyper::Request<Incoming>| {
            let done = self.call(request.map(Body::new), &place, &peer);
            let is_upgraded = &is_upgraded;
            async move {
                let answer = done.await;
                is_upgraded.store(answer.status() == StatusCode::SWITCHING_PROTOCOLS, Relaxed);
                Ok::<_, Infallible>(answer)
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(TIMEOUT)
            .half_close(true) // answer clients that have shut down their writing half
            .max_buf_size(BUFFER)
            // Not `pipeline_flush`: it buffers the responses of all pipelined requests, 12 kB for a
            // request of 40 bytes, and loses hyper's response to invalid requests. `TimedSocket`
            // buffers a bounded amount.
            .serve_connection(TokioIo::new(socket), service)
            .with_upgrades();
        let done = shared.run(async {
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                done = &mut connection => done,
                () = stop.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        });
        if let Err(error) = done.await {
            debug!(%address, %error, "a connection is broken");
        }
    }

    async fn call(
        &self,
        mut request: Request,
        place: &OnceLock<OwnedSemaphorePermit>,
        peer: &Peer,
    ) -> Response {
        let is_socket = request.uri().path() == "/ws";
        let admitted = access::check_request(&mut request).and_then(|()| {
            if is_socket || place.get().is_some() {
                return Ok(());
            }
            let free = Arc::clone(&self.plain).try_acquire_owned().map_err(|_| {
                let most = self.gateway.config.max_connections;
                let message = format!("{most} connections beside the WebSockets are open");
                Refusal::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_connections", message)
            })?;
            let _ = place.set(free);
            Ok(())
        });
        // A request to `/ws` that is not a valid handshake has no place.
        let has_no_place = place.get().is_none();
        // A proxy may see another end of such a request, so the bytes after it are not read.
        let is_refused = admitted.is_err();
        let mut answer = match admitted {
            Ok(()) => {
                if is_socket {
                    request.extensions_mut().insert(ConnectInfo(self.address));
                    request.extensions_mut().insert(Arc::clone(&self.socket));
                    request.extensions_mut().insert(peer.clone());
                }
                answer(&self.gateway, &self.app, request).await
            }
            Err(refusal) => hardened(refusal.into_response()),
        };
        let is_last = has_no_place || is_refused || self.gateway.board.is_draining();
        if is_last && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}
