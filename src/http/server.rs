//! The accept loop: who may connect, for how long, and how the server stops.
//!
//! `axum::serve` has no time limit for headers, so connections are served by hyper directly, HTTP/1.1 only (a proxy
//! that speaks HTTP/2 outside speaks 1.1 to us). Nothing in here knows a route. Nothing survives: a connection that is
//! cut is the client's to repeat, and `Idempotency-Key` makes that safe.

pub mod connection_limiter;
pub mod gauges;
pub mod health;
pub mod proxies;
pub mod socket;
pub mod stats;
pub mod system;
pub mod unread_body;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;
use tower::ServiceExt;

use crate::base::clock;
use crate::base::metrics::{Metrics, OpenConnection};
use crate::http::error::{ApiError, PROBLEM_JSON, ProblemDetails};
use crate::http::request::host;
use crate::http::server::connection_limiter::{ConnectionLimiter, ConnectionPermit, ConnectionRefusal};
use crate::http::server::proxies::TrustedProxies;
use crate::http::server::socket::Socket;
use crate::http::server::unread_body::TrackedBody;

/// Limits on the requests and connections of a client. Tests use smaller ones than the defaults.
#[derive(Debug, Clone, Copy)]
pub struct ServerLimits {
    /// Until a request's header is complete, from the connection or the answer before it.
    pub header_time: Duration,
    /// Headers of one request.
    pub header_count: usize,
    /// Their size in bytes, request line included.
    pub header_bytes: usize,
    /// Until a request's body is complete, from when it is asked for.
    pub body_time: Duration,
    /// Its size in bytes.
    pub body_bytes: usize,
    /// The size of an import in bytes. It is never held whole; each of its lines may have [`ServerLimits::body_bytes`].
    pub import_bytes: usize,
    /// Until an answer begins.
    pub request_time: Duration,
    /// Until a message of a chat is answered by what is known of its run by then.
    pub answer_time: Duration,
    /// Until an import's answer begins.
    pub import_time: Duration,
    /// How long a client may take no byte of an answer.
    pub write_stall: Duration,
    /// Connections in all.
    pub connections: usize,
    /// Connections of one address, and requests at once of one for which trusted proxies ask.
    pub connections_per_address: usize,
    /// Open streams in all: fewer than connections, so that there is always one for a probe, a page or a request.
    pub streams: usize,
    /// Open streams of one address: fewer than its connections.
    pub streams_per_address: usize,
    /// Wrong tokens of one address within a minute.
    pub wrong_tokens: u32,
    /// Between comments on a stream that has nothing to say.
    pub keep_alive: Duration,
    /// How long open connections may take to end when the server stops.
    pub drain: Duration,
}

impl Default for ServerLimits {
    fn default() -> ServerLimits {
        ServerLimits {
            header_time: Duration::from_secs(10),
            header_count: 100,
            header_bytes: 64 * 1024,
            body_time: Duration::from_secs(15),
            body_bytes: 1024 * 1024,
            import_bytes: 64 * 1024 * 1024,
            request_time: Duration::from_secs(30),
            answer_time: Duration::from_secs(25),
            import_time: Duration::from_secs(600),
            write_stall: Duration::from_secs(30),
            connections: 1024,
            connections_per_address: 64,
            streams: 768,
            streams_per_address: 48,
            wrong_tokens: 20,
            keep_alive: Duration::from_secs(15),
            drain: Duration::from_secs(10),
        }
    }
}

/// Connections that are being told that there is no room; more are dropped without a word.
const REFUSALS: usize = 32;
/// Until one of them must be gone.
const REFUSAL_TIME: Duration = Duration::from_secs(2);
/// After an error that a wait may cure, as with too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The address of who asks, as every request carries it: the other side of the connection, or whom a trusted proxy
/// speaks for.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub IpAddr);

/// The place of an open connection: with a clone of it, a task that goes on with the connection keeps it counted.
#[derive(Clone)]
pub struct Hold(
    #[expect(dead_code, reason = "held, and given back when the last clone is dropped")] Arc<ConnectionGuards>,
);

type ConnectionGuards = (ConnectionPermit, OpenConnection, TaskTrackerToken);

/// Serves `app` until `stop`, then lets what is open end for at most [`ServerLimits::drain`].
///
/// Streams must end on `stop` by themselves. Returns when every connection is gone or cut.
pub async fn serve(
    listener: TcpListener,
    app: Router,
    limits: ServerLimits,
    proxies: TrustedProxies,
    metrics: Metrics,
    stop: CancellationToken,
) {
    let cut = CancellationToken::new();
    let server = Arc::new(HttpServer {
        app,
        limits,
        proxies,
        metrics,
        connections: ConnectionLimiter::new(limits.connections, limits.connections_per_address),
        refusals: Semaphore::new(REFUSALS),
        stop: stop.clone(),
        cut: cut.clone(),
    });
    let open = TaskTracker::new();
    while let Some(accepted) = stop.run_until_cancelled(listener.accept()).await {
        match accepted {
            Ok((stream, peer)) => server.clone().admit(stream, peer, &open),
            Err(error) => accept_failed(error).await,
        }
    }
    drop(listener);
    open.close();
    if timeout(limits.drain, open.wait()).await.is_err() {
        tracing::warn!(connections = open.len(), "open connections were cut");
        cut.cancel();
        open.wait().await;
    }
}

/// An error of one connection is nothing; an error of the machine is waited out.
async fn accept_failed(error: std::io::Error) {
    use std::io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    if !matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset) {
        tracing::error!(%error, "can't accept connections");
        clock::pause(ACCEPT_PAUSE).await;
    }
}

struct HttpServer {
    app: Router,
    limits: ServerLimits,
    proxies: TrustedProxies,
    metrics: Metrics,
    connections: ConnectionLimiter,
    refusals: Semaphore,
    /// Accept no more, finish what is open.
    stop: CancellationToken,
    /// Finish nothing.
    cut: CancellationToken,
}

impl HttpServer {
    /// Serves a connection if there is room, else says so.
    fn admit(self: Arc<HttpServer>, stream: TcpStream, peer: SocketAddr, open: &TaskTracker) {
        let permit = match self.proxies.trusts(peer.ip()) {
            true => self.connections.acquire_for_proxy(),
            false => self.connections.acquire(peer.ip()),
        };
        match permit {
            Ok(permit) => {
                let hold = Hold(Arc::new((permit, self.metrics.connection(), open.token())));
                open.spawn(async move {
                    let _ = self.cut.run_until_cancelled(self.serve_connection(stream, peer.ip(), hold)).await;
                });
            }
            Err(why) => {
                self.metrics.connection_refused();
                open.spawn(async move {
                    if let Ok(_few) = self.refusals.try_acquire() {
                        let _ = timeout(REFUSAL_TIME, refuse(stream, why)).await;
                    }
                });
            }
        }
    }

    /// Serves the requests of one connection, one after the other.
    async fn serve_connection(&self, stream: TcpStream, peer: IpAddr, hold: Hold) {
        let _ = stream.set_nodelay(true);
        let service = service_fn(|request| self.answer(request, peer, &hold));
        let socket = TokioIo::new(Socket::new(stream, self.limits.write_stall));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.header_time)
            .max_headers(self.limits.header_count)
            .max_header_size(self.limits.header_bytes)
            .serve_connection(socket, service)
            .with_upgrades();
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
        };
        if let Err(error) = ended {
            tracing::debug!(%error, %peer, "connection ended early");
        }
    }

    /// Answers one request of a connection. The rest of a body that is not read by then is read before the answer, or
    /// the answer closes the connection and the rest is read behind it.
    async fn answer(&self, request: Request<Incoming>, peer: IpAddr, hold: &Hold) -> Result<Response, Infallible> {
        let (request, mut unread) = TrackedBody::of(request);
        let mut response = self.respond(request, peer, hold).await?;
        // an upgraded connection speaks HTTP no more
        let is_http = response.status() != StatusCode::SWITCHING_PROTOCOLS;
        if let Ok(mut body) = unread.try_recv()
            && is_http
            && !body.read_short().await
        {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            let hold = hold.clone();
            tokio::spawn(async move {
                body.read_behind().await;
                drop(hold);
            });
        }
        Ok(response)
    }

    /// Has a request answered by the service, where its host and its client are admitted.
    async fn respond(&self, request: Request<TrackedBody>, peer: IpAddr, hold: &Hold) -> Result<Response, Infallible> {
        let client = self.proxies.client(peer, request.headers());
        // a proxy's connections are no one client's, so the requests of each client are counted in their place
        let permit = match self.proxies.trusts(peer) {
            true => Some(self.connections.acquire_behind_proxy(client)),
            false => None,
        };
        match (host::check(&request), permit) {
            (Err(error), _) => Ok(error.into_response()),
            (_, Some(Err(_))) => {
                let detail = "this address has too many requests under way";
                Ok(ApiError::TooManyRequests { detail, retry_after: Duration::from_secs(1) }.into_response())
            }
            (Ok(()), _seat) => {
                let mut request = request;
                request.extensions_mut().insert(Peer(client));
                request.extensions_mut().insert(hold.clone());
                self.app.clone().oneshot(request).await
            }
        }
    }
}

/// Tells a client that there is no room, without having read a byte of what it wants.
async fn refuse(mut stream: TcpStream, why: ConnectionRefusal) -> std::io::Result<()> {
    let (status, line, kind, detail) = match why {
        ConnectionRefusal::All => (503, "503 Service Unavailable", "unavailable", "all connections are taken"),
        ConnectionRefusal::Key(_) => {
            (429, "429 Too Many Requests", "too-many-requests", "this address has too many connections")
        }
    };
    let title = match why {
        ConnectionRefusal::All => "The service can't do this now",
        ConnectionRefusal::Key(_) => "Too many requests",
    };
    let problem = ProblemDetails {
        kind: format!("urn:reveille:problem:{kind}").into(),
        title: title.into(),
        status,
        detail: detail.into(),
        errors: Vec::new(),
        quota: None,
        limit: None,
        usage: None,
        error: None,
    };
    let body = serde_json::to_string(&problem).expect("a problem is plain text and numbers");
    let head = format!(
        "HTTP/1.1 {line}\r\ncontent-type: {PROBLEM_JSON}\r\ncontent-length: {}\r\nretry-after: 1\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await?;
    stream.shutdown().await?;
    // what the client has sent must be read, or the reset that follows may swallow the answer
    let mut rest = [0; 1024];
    while stream.read(&mut rest).await? > 0 {}
    Ok(())
}
