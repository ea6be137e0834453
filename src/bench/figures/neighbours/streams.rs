//! Streams of a hostile tenant, half of them of events and half of runs. Half of each are held open as long as they go
//! on; the others are opened anew each second, and those of events then ask for all events since the first one that
//! they saw.
//!
//! All that comes is read and dropped, by bare sockets: a client of HTTP would take as much of the processors as the
//! service.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::Mutex;
use tokio::time::timeout;

use crate::base::clock::pause;
use crate::bench::figures::neighbours::work::{HostileWork, WorkCounts};
use crate::bench::process::held_stream::open_stream;
use crate::bench::process::service::BenchTenant;

/// Streams that a tenant may have by its quota; a token half of them.
const STREAMS: usize = 50;
/// How long those are open that are opened anew.
const OPEN_FOR: Duration = Duration::from_secs(1);
/// The wait after a refusal, and while no run goes on.
const REST: Duration = Duration::from_secs(1);
/// How long the runs that go on are taken for those that still do.
const KNOWN_FOR: Duration = Duration::from_secs(1);
const BUFFER: usize = 16 * 1024;

/// One of the streams, or those that follow it.
pub struct HostileStream {
    number: usize,
    tenant: BenchTenant,
    /// Where it comes from: one address has fewer connections than a tenant has streams.
    from: Ipv4Addr,
    runs: Arc<RunningRuns>,
    work: Arc<WorkCounts>,
}

/// The runs of a tenant that go on, asked for once a second by all streams together.
struct RunningRuns {
    tenant: BenchTenant,
    known: Mutex<(Option<Instant>, Vec<String>)>,
}

impl HostileStream {
    /// The streams of a tenant with two tokens, each from an address of its own: `count` together, or as many as it may
    /// have.
    pub fn all(tokens: [BenchTenant; 2], own: usize, count: usize, work: &Arc<WorkCounts>) -> Vec<HostileStream> {
        let runs = Arc::new(RunningRuns { tenant: tokens[0].clone(), known: Mutex::default() });
        let stream = |number: usize| {
            let token = number % 2;
            let from = Ipv4Addr::new(127, 1, own as u8, token as u8 + 1);
            let (tenant, runs) = (tokens[token].clone(), Arc::clone(&runs));
            HostileStream { number: number / 2, tenant, from, runs, work: Arc::clone(work) }
        };
        (0..count.min(STREAMS)).map(stream).collect()
    }

    /// Opens one stream after the other, without an end.
    pub async fn keep_open(self) {
        let mut first_seen: Option<String> = None;
        loop {
            let (kind, opened) = match self.is_of_events() {
                true => (HostileWork::EventStream, self.open("/v1/events/stream", first_seen.as_deref()).await),
                false => {
                    let Some(run) = self.runs.one(self.number).await else {
                        pause(REST).await;
                        continue;
                    };
                    (HostileWork::RunStream, self.open(&format!("/v1/runs/{run}/stream"), None).await)
                }
            };
            let Ok(mut stream) = opened else {
                self.work.add(HostileWork::RefusedStream);
                pause(REST).await;
                continue;
            };
            let _open = self.work.open_stream(kind);
            let reading = read(&mut stream, &mut first_seen);
            match self.is_held() {
                true => reading.await,
                // its time is over, which is no fault
                false => drop(timeout(OPEN_FOR, reading).await),
            }
        }
    }

    fn is_of_events(&self) -> bool {
        self.number.is_multiple_of(2)
    }

    fn is_held(&self) -> bool {
        self.number % 4 < 2
    }

    /// A stream that has begun; it ends with its connection.
    async fn open(&self, path: &str, last_seen: Option<&str>) -> anyhow::Result<TcpStream> {
        let token = format!("authorization: Bearer {}", self.tenant.token());
        let last_seen = last_seen.map(|id| format!("last-event-id: {id}"));
        let headers: Vec<String> = [token].into_iter().chain(last_seen).collect();
        open_stream(self.tenant.address(), self.from, path, &headers).await
    }
}

impl RunningRuns {
    /// One of the runs; `None`: there is none, or they can't be asked for.
    async fn one(&self, number: usize) -> Option<String> {
        let mut known = self.known.lock().await;
        if known.0.is_none_or(|asked_at| asked_at.elapsed() >= KNOWN_FOR) {
            let page = self.tenant.get("/v1/runs?state=running&limit=25").await.ok()?;
            let ids = page["items"].as_array()?.iter().filter_map(|run| Some(run["id"].as_str()?.to_owned()));
            *known = (Some(Instant::now()), ids.collect());
        }
        let runs = &known.1;
        runs.get(number.checked_rem(runs.len())?).cloned()
    }
}

/// Reads to the end, and notes the id of the first event where none is known.
async fn read(stream: &mut TcpStream, first_seen: &mut Option<String>) {
    let mut buffer = vec![0; BUFFER];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        if first_seen.is_none() {
            *first_seen = event_id(&buffer[..count]);
        }
    }
}

/// The first id of an event that stands whole in a part of a stream.
fn event_id(part: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(part);
    let (_, behind) = text.split_once("\nid:")?;
    let (id, _) = behind.split_once('\n')?;
    Some(id.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_id_is_found_where_it_is_whole() {
        let head = "ntent-type: text/event-stream\r\n\r\n2c\r\n";
        let event = |id: &str| format!("event: event\nid: {id}\ndata: {{}}\n\n\r\n");
        let found = |text: String| event_id(text.as_bytes());
        assert_eq!(found(format!("{head}{}{}", event("17"), event("18"))).as_deref(), Some("17"));
        assert_eq!(found(format!("{head}event: event\nid: 1")), None);
        assert_eq!(found(head.to_owned()), None);
    }
}
