//! Bare client: the requests of a run to its model, by the service's own HTTP client, with nothing of the service
//! around them.

use std::time::{Duration, Instant};

use anyhow::ensure;
use bytes::Bytes;
use futures::future::try_join_all;
use http::header;

use crate::bench::env::{on_bare, random_id};
use crate::bench::limits::{commits, millis};
use crate::bench::{DirectPool, Rate, Samples, Watch};
use crate::ports::egress;

/// The longest that a request may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Sends what the service has sent.
#[derive(Clone)]
pub struct BareClient {
    client: reqwest::Client,
    url: String,
    requests: Vec<Bytes>,
}

/// Times of bare runs, in milliseconds.
pub struct BareTimes {
    pub runs: Samples,
    /// The commits within them: so a disk that is busy for a while counts for both alike.
    pub commits: Samples,
}

impl BareClient {
    /// `requests` are the bodies of one run, in order.
    pub fn new(base_url: &str, requests: Vec<Bytes>) -> BareClient {
        let url = format!("{base_url}/chat/completions");
        BareClient { client: egress::operator_client(PATIENCE), url, requests }
    }

    /// How long each of so many runs takes, one after the other: its requests, and a one-row commit after each.
    pub async fn times(&self, bare: &DirectPool, runs: usize) -> anyhow::Result<BareTimes> {
        commits::prepare(bare).await?;
        let (mut took, mut committed) = (Vec::with_capacity(runs), Vec::new());
        on_bare!(bare, |pool| {
            let mut connection = pool.acquire().await?;
            for _ in 0..runs {
                let began = Instant::now();
                for request in &self.requests {
                    self.ask(request).await?;
                    let asked = Instant::now();
                    let insert = sqlx::query(commits::INSERT).bind(random_id()).bind(commits::BODY);
                    insert.execute(&mut *connection).await?;
                    committed.push(millis(asked));
                }
                took.push(millis(began));
            }
        });
        Ok(BareTimes { runs: Samples::new(took), commits: Samples::new(committed) })
    }

    /// Runs a second by so many clients at once, without a commit.
    pub async fn rate(&self, runs: usize, clients: usize) -> anyhow::Result<Rate> {
        let watch = Watch::start();
        let each = runs.div_ceil(clients);
        for asked in try_join_all((0..clients).map(|_| tokio::spawn(self.clone().ask_all(each)))).await? {
            asked?;
        }
        Ok(watch.rate(each * clients))
    }

    /// The requests of so many runs, one after the other.
    async fn ask_all(self, runs: usize) -> anyhow::Result<()> {
        for request in (0..runs).flat_map(|_| &self.requests) {
            self.ask(request).await?;
        }
        Ok(())
    }

    async fn ask(&self, request: &Bytes) -> anyhow::Result<()> {
        let post = self.client.post(&self.url).header(header::CONTENT_TYPE, "application/json");
        let response = post.body(request.clone()).send().await?;
        ensure!(response.status().is_success(), "the model answered {}", response.status());
        response.bytes().await?;
        Ok(())
    }
}
