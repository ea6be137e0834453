//! A collector of spans of the measurement's own, over OTLP: it counts requests, and keeps nothing.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http::Response;

use crate::bench::servers::{LoopbackServer, ServerCall};

/// Listens until it is dropped.
pub struct Collector {
    server: LoopbackServer,
    received: Arc<AtomicUsize>,
}

impl Collector {
    /// Takes whatever comes.
    pub async fn open() -> anyhow::Result<Collector> {
        let received = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&received);
        let answer = move |_: ServerCall| {
            counted.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::ready(Response::new(String::new()))) as futures::future::BoxFuture<'static, _>
        };
        Ok(Collector { server: LoopbackServer::open(Arc::new(answer)).await?, received })
    }

    /// Where its paths begin.
    pub fn base_url(&self) -> String {
        self.server.url("")
    }

    /// Requests that have come.
    pub fn received(&self) -> usize {
        self.received.load(Ordering::Relaxed)
    }
}
