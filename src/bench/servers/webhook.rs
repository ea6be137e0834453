//! An agent runtime of the measurement's own: it notes when the request of a run has come, and answers at once.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{Response, StatusCode};

use crate::bench::servers::{LoopbackServer, ServerCall};

/// When the first request of each run came, by its `webhook-id`.
type Arrivals = Arc<Mutex<HashMap<String, Duration>>>;

/// Listens until it is dropped.
pub struct WebhookServer {
    server: LoopbackServer,
    arrivals: Arrivals,
}

impl WebhookServer {
    /// Notes each request from now on.
    pub async fn open() -> anyhow::Result<WebhookServer> {
        let arrivals = Arrivals::default();
        let noting = Arc::clone(&arrivals);
        let answer = move |call: ServerCall| {
            note(&noting, &call);
            let mut response = Response::new(String::new());
            *response.status_mut() = StatusCode::NO_CONTENT;
            Box::pin(std::future::ready(response)) as futures::future::BoxFuture<'static, _>
        };
        Ok(WebhookServer { server: LoopbackServer::open(Arc::new(answer)).await?, arrivals })
    }

    /// Where runs are sent.
    pub fn url(&self) -> String {
        self.server.url("/runs")
    }

    /// How many runs have come.
    pub fn received(&self) -> usize {
        self.arrivals.lock().expect("bench lock").len()
    }

    /// When each of the runs came, by [`crate::base::clock::Clock::elapsed`]; notes others from now on.
    pub fn take_arrivals(&self) -> Vec<Duration> {
        std::mem::take(&mut *self.arrivals.lock().expect("bench lock")).into_values().collect()
    }
}

fn note(arrivals: &Arrivals, call: &ServerCall) {
    let id = call.headers.get("webhook-id").and_then(|id| id.to_str().ok()).unwrap_or_default();
    arrivals.lock().expect("bench lock").entry(id.to_owned()).or_insert(call.at);
}
