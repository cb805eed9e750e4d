//! Accepts connections, and speaks HTTP on them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{ConnectInfo, Request};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower_service::Service;
use tracing::{debug, warn};

use crate::gateway::Gateway;
use crate::http::router;

/// Connections beside the WebSockets: beyond that, who comes waits until somebody has left.
const BESIDE: usize = 256;
/// With a client that is to say what it wants.
const PATIENCE: Duration = Duration::from_secs(10);

/// Until it is told to stop; then completes when all requests are answered. WebSockets are on their own.
pub async fn serve(listener: TcpListener, gateway: Arc<Gateway>, stop: CancellationToken) {
    let places = Arc::new(Semaphore::new(gateway.config.max_connections as usize + BESIDE));
    let connections = TaskTracker::new();
    let app = router(Arc::clone(&gateway));
    loop {
        let accepted = tokio::select! {
            accepted = accept(&listener, &places) => accepted,
            () = stop.cancelled() => break,
        };
        match accepted {
            Ok((socket, address, place)) => {
                let (app, stop) = (app.clone(), stop.clone());
                connections.spawn(async move {
                    answer(socket, address, app, place, stop).await;
                });
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

type Place = Arc<tokio::sync::OwnedSemaphorePermit>;

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> std::io::Result<(TcpStream, SocketAddr, Place)> {
    let place = Arc::clone(places).acquire_owned().await.expect("it is never closed");
    let (socket, address) = listener.accept().await?;
    Ok((socket, address, Arc::new(place)))
}

async fn answer(
    socket: TcpStream,
    address: SocketAddr,
    app: Router,
    place: Place,
    stop: CancellationToken,
) {
    let _ = socket.set_nodelay(true); // what is flushed goes out
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request: Request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(address));
        // A WebSocket keeps the place, which outlives the request with it.
        request.extensions_mut().insert(Arc::clone(&place));
        let mut app = app.clone();
        async move {
            Ok::<_, Infallible>(app.call(request).await.unwrap_or_else(|never| match never {}))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .half_close(true) // one that has said all is answered all the same
        .serve_connection(TokioIo::new(socket), service)
        .with_upgrades();
    let mut connection = std::pin::pin!(connection);
    let done = tokio::select! {
        done = &mut connection => done,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = done {
        debug!(%address, %error, "a connection is broken");
    }
}
