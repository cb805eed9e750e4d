//! Accepts connections, and speaks HTTP on them.

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
use crate::http::{Refusal, answer, router};
use crate::patient::Patient;

/// Connections that have not said yet what they want: beyond that, who comes waits.
pub const NEW: usize = 256;
/// Of what a client sends, and of what it is sent, in bytes: no request is longer without its body.
const BUFFER: usize = 16 * 1024;
/// With a client that is to say what it wants.
const PATIENCE: Duration = Duration::from_secs(10);

/// Until `gone`; then completes when all requests are answered. WebSockets are on their own.
pub async fn serve(listener: TcpListener, gateway: Arc<Gateway>, gone: CancellationToken) {
    // As many again for all other requests: one more is answered that there are too many.
    let most = gateway.config.max_connections as usize;
    let sockets = Arc::new(Semaphore::new(2 * most + NEW));
    let plain = Arc::new(Semaphore::new(most));
    let connections = TaskTracker::new();
    let app = router(Arc::clone(&gateway));
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &sockets) => accepted,
            () = gone.cancelled() => break,
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
                connections.spawn(own.answer(socket, gone.clone()));
            }
            Err(error) => {
                warn!(%error, "cannot accept a client");
                sleep(Duration::from_millis(100)).await; // by then somebody may have left
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
    let place = Arc::clone(places).acquire_owned().await.expect("it is never closed");
    let (socket, address) = listener.accept().await?;
    Ok((socket, address, place))
}

/// One that was accepted.
struct Connection {
    gateway: Arc<Gateway>,
    app: Router,
    address: SocketAddr,
    /// A WebSocket keeps it, and so outlives its request with it.
    socket: Arc<OwnedSemaphorePermit>,
    plain: Arc<Semaphore>,
}

impl Connection {
    async fn answer(self, socket: TcpStream, gone: CancellationToken) {
        let _ = socket.set_nodelay(true); // what is flushed goes out
        let (address, is_upgraded) = (self.address, Arc::new(AtomicBool::new(false)));
        let socket = Patient::new(socket, Arc::clone(&is_upgraded));
        let shared = socket.share();
        // Kept until the connection ends: it is then that its answers need no memory any more.
        let place = OnceLock::new();
        let service = service_fn(|request: hyper::Request<Incoming>| {
            let done = self.call(request.map(Body::new), &place);
            let is_upgraded = &is_upgraded;
            async move {
                let answer = done.await;
                is_upgraded.store(answer.status() == StatusCode::SWITCHING_PROTOCOLS, Relaxed);
                Ok::<_, Infallible>(answer)
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .half_close(true) // one that has said all is answered all the same
            .max_buf_size(BUFFER)
            // Not `pipeline_flush`: it would keep all answers in memory for as long as there are requests,
            // 12 kB for one of 40 bytes, and lose hyper's answer to what is no request. `Patient` collects
            // a bounded part of them.
            .serve_connection(TokioIo::new(socket), service)
            .with_upgrades();
        let done = shared.run(async {
            let mut connection = std::pin::pin!(connection);
            tokio::select! {
                done = &mut connection => done,
                () = gone.cancelled() => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        });
        if let Err(error) = done.await {
            debug!(%address, %error, "a connection is broken");
        }
    }

    async fn call(&self, mut request: Request, place: &OnceLock<OwnedSemaphorePermit>) -> Response {
        let admitted = access::check_request(&mut request).and_then(|()| {
            if request.uri().path() == "/ws" || place.get().is_some() {
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
        // A request that should have been a WebSocket has no place of its own.
        let has_no_place = place.get().is_none();
        let mut answer = match admitted {
            Ok(()) => {
                request.extensions_mut().insert(ConnectInfo(self.address));
                request.extensions_mut().insert(Arc::clone(&self.socket));
                answer(&self.gateway, &self.app, request).await
            }
            Err(refusal) => refusal.into_response(),
        };
        let is_last = has_no_place || self.gateway.board.is_draining();
        if is_last && answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        answer
    }
}
