//! Servers of the measurement's own, which the service calls: they speak HTTP on this machine, and answer at once.

mod collector;
mod model;
mod webhook;

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, Request, Response};
use hyper::body::{Body, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::base::clock::Clock;

pub use collector::Collector;
pub use model::{ModelServer, TURNS, set_model};
pub use webhook::WebhookServer;

/// A request, whole.
pub struct ServerCall {
    pub headers: HeaderMap,
    pub body: Bytes,
    /// When its head had come, by [`Clock::elapsed`].
    pub at: Duration,
}

/// Answers each call.
type Answer = Arc<dyn Fn(ServerCall) -> BoxFuture<'static, Response<String>> + Send + Sync>;

/// Listens until it is dropped.
struct LoopbackServer {
    address: SocketAddr,
    _listening: JoinSet<()>,
}

impl LoopbackServer {
    /// On a free port.
    async fn open(answer: Answer) -> anyhow::Result<LoopbackServer> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let mut listening = JoinSet::new();
        listening.spawn(listen(listener, answer));
        Ok(LoopbackServer { address, _listening: listening })
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

async fn listen(listener: TcpListener, answer: Answer) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(serve(stream, Arc::clone(&answer)));
        while connections.try_join_next().is_some() {}
    }
}

/// The requests of one connection, one after the other.
async fn serve(stream: TcpStream, answer: Answer) {
    let _ = stream.set_nodelay(true);
    let clock = Clock::system();
    let service = service_fn(|request: Request<Incoming>| {
        let (at, answer) = (clock.elapsed(), Arc::clone(&answer));
        async move {
            let (head, body) = request.into_parts();
            let body = read(body).await.unwrap_or_default();
            let answered = answer(ServerCall { headers: head.headers, body, at }).await;
            Ok::<_, Infallible>(answered.map(reqwest::Body::from))
        }
    });
    // a caller that leaves needs no answer
    let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
}

async fn read(mut body: Incoming) -> Result<Bytes, hyper::Error> {
    let mut whole = Vec::new();
    while let Some(frame) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
        if let Ok(data) = frame?.into_data() {
            whole.extend_from_slice(&data);
        }
    }
    Ok(whole.into())
}
