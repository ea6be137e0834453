//! The hostile tenants of `neighbours`: what a tenant may ask for at the most, all of it at once, until they are
//! stopped.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::base::clock::pause;
use crate::bench::figures::neighbours::events::PreparedEvents;
use crate::bench::figures::neighbours::query::SlowQuery;
use crate::bench::figures::neighbours::sink::MessageSink;
use crate::bench::figures::neighbours::streams::HostileStream;
use crate::bench::figures::neighbours::tasks::{
    COMPARED, FLOOD, HostileTasks, QUERY_NAME, SEARCHED, compared, dear_schedule, searched,
};
use crate::bench::figures::neighbours::work::{HostileWork, WorkCounts, WorkDone};
use crate::bench::process::service::{BenchService, BenchTenant};

pub const NAMES: [&str; 2] = ["a-hostile", "z-hostile"];
/// Events of a request. They are judged in their order, so they come in rounds of every kind: some that fire many
/// tasks, one that filters compare and one that they search. A round fires as many runs as are recorded at once, so
/// that none waits for those behind it.
const EVENTS: usize = 500;
const FLOODS: usize = 4;
const RECORDED: usize = 500;
/// Bytes of an import that is nothing but empty lines.
const NEWLINES: usize = 4 * 1024 * 1024;
/// Calls that each loop makes at most.
const CALLS: usize = 100_000;
/// The longest that a loop rests when it is refused: as one that heeds nothing.
const REST: Duration = Duration::from_secs(1);
/// How often it is asked what the service counts, where others have the service to themselves, and the wait between.
const ASKED: usize = 60;
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// The load of the hostile tenants, which goes on until it is stopped or dropped.
pub struct HostileLoad {
    loops: JoinSet<()>,
    stop: CancellationToken,
    work: Arc<WorkCounts>,
    operator: BenchTenant,
}

/// The request that one loop makes again and again, of bodies that were made before.
type HostileCall = dyn Fn(&BenchTenant) -> RequestBuilder + Send + Sync;

impl HostileLoad {
    /// Makes their tasks, `crowd` of a kind, and begins, on threads of their own.
    pub async fn start(
        service: &BenchService,
        sink: &MessageSink,
        query: &SlowQuery,
        (crowd, clients): (usize, &Handle),
    ) -> anyhow::Result<HostileLoad> {
        let mut hostile = HostileLoad {
            loops: JoinSet::new(),
            stop: CancellationToken::new(),
            work: Arc::clone(sink.work()),
            operator: service.operator().clone(),
        };
        for (number, name) in NAMES.into_iter().enumerate() {
            let own = number + 1;
            let tenant = service.tenant_with_webhook(name, &sink.url(own, 0, "/told/3")).await?;
            tenant.import(&HostileTasks { sink, own, crowd, query }.all()).await?;
            // connections that their own threads open, and no others have
            let tokens = [tenant, service.tenant(name).await?].map(|token| token.with_own_connections());
            for (kind, ask) in request_loops(name, crowd) {
                hostile.repeat(tokens[0].clone(), kind, ask, clients);
            }
            for stream in HostileStream::all(tokens, own, crowd, &hostile.work) {
                let stop = hostile.stop.clone();
                let open = async move {
                    stop.run_until_cancelled(stream.keep_open()).await;
                };
                hostile.loops.spawn_on(open, clients);
            }
        }
        Ok(hostile)
    }

    fn repeat(&mut self, tenant: BenchTenant, kind: HostileWork, ask: Box<HostileCall>, clients: &Handle) {
        let (stop, work) = (self.stop.clone(), Arc::clone(&self.work));
        let calls = async move {
            for _ in 0..CALLS {
                let Some(called) = stop.run_until_cancelled(tenant.call(ask(&tenant))).await else { return };
                work.add(kind);
                // a call that took too long, or was cut off, is one that was refused
                let refused = !called.as_ref().is_ok_and(|(status, _)| status.is_success());
                if refused {
                    work.add(HostileWork::RefusedCall);
                    let asked = called.ok().and_then(|(_, wait)| wait).map_or(Duration::ZERO, Duration::from_secs);
                    stop.run_until_cancelled(pause(asked.min(REST))).await;
                }
            }
        };
        self.loops.spawn_on(calls, clients);
    }

    /// Their work so far.
    pub async fn done(&self) -> anyhow::Result<WorkDone> {
        let mut queries = 0;
        for name in NAMES {
            queries += self.queries(name).await?;
        }
        Ok(self.work.done(queries))
    }

    /// Whether they have done something of each kind since then.
    pub fn has_done_each_since(&self, before: &WorkDone) -> bool {
        self.work.has_each_since(before)
    }

    /// Polls by a query of a tenant that were broken off at their time limit, as its conditions tell.
    async fn queries(&self, tenant: &str) -> anyhow::Result<u64> {
        let path = format!("/v1/tasks?tenant_id={tenant}&q={QUERY_NAME}&limit=200");
        let mut asked = self.operator.get(&path).await;
        for _ in 1..ASKED {
            if asked.is_ok() {
                break;
            }
            pause(ASK_AGAIN).await;
            asked = self.operator.get(&path).await;
        }
        let page = asked.context("the service does not tell of the hostile tenants' conditions")?;
        let tasks = page["items"].as_array().context("a page has items")?;
        let failing = tasks.iter().map(|task| &task["condition"]["failing"]);
        let broken_off = failing.filter(|failing| failing["error"]["kind"] == "timeout");
        Ok(broken_off.filter_map(|failing| failing["count"].as_u64()).sum())
    }

    pub async fn stop(mut self) {
        self.stop.cancel();
        while self.loops.join_next().await.is_some() {}
    }
}

/// The requests of a hostile tenant, each in a loop of its own.
fn request_loops(name: &str, crowd: usize) -> Vec<(HostileWork, Box<HostileCall>)> {
    let newlines = Bytes::from(vec![b'\n'; NEWLINES]);
    let preview = Bytes::from(json!({ "trigger": dear_schedule() }).to_string());
    let events = PreparedEvents::of(batch(name, crowd));
    let post = |path: &'static str, kind: &'static str, body: Box<dyn Fn() -> Bytes + Send + Sync>| {
        let ask =
            move |tenant: &BenchTenant| tenant.request(Method::POST, path).header("content-type", kind).body(body());
        Box::new(ask) as Box<HostileCall>
    };
    let list = |path: &'static str| {
        let ask = move |tenant: &BenchTenant| tenant.request(Method::GET, path);
        Box::new(ask) as Box<HostileCall>
    };
    let published = Box::new(move || Bytes::from(events.body()));
    vec![
        (HostileWork::EventBatch, post("/v1/events", "application/cloudevents-batch+json", published)),
        (HostileWork::Import, post("/v1/tasks/import", "application/x-ndjson", Box::new(move || newlines.clone()))),
        (HostileWork::Preview, post("/v1/schedules/preview", "application/json", Box::new(move || preview.clone()))),
        (HostileWork::List, list("/v1/tasks?limit=200")),
        (HostileWork::List, list("/v1/runs?limit=200")),
    ]
}

/// A batch of all kinds of events, without ids; of the first kind each fires `crowd` tasks.
fn batch(tenant_id: &str, crowd: usize) -> Vec<Value> {
    let event = |source: &str, data: &Value| {
        let (version, kind) = ("1.0", "t");
        json!({ "specversion": version, "source": source, "type": kind, "tenantid": tenant_id, "data": data })
    };
    let (flood, compared, searched) = (json!({ "n": 1 }), compared(), searched());
    let dear = [(COMPARED, &compared), (SEARCHED, &searched)];
    let floods = (RECORDED / crowd.max(1)).clamp(FLOODS, EVENTS - dear.len());
    let round = [vec![(FLOOD, &flood); floods], dear.to_vec()].concat();
    (0..EVENTS / round.len()).flat_map(|_| &round).map(|(source, data)| event(source, data)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::server::ServerLimits;

    #[test]
    fn batch_of_events_fits_in_a_request() {
        for crowd in [1, 10, 300, 1_000] {
            let events = batch(NAMES[0], crowd);
            let of = |source: &str| events.iter().filter(|event| event["source"] == source).count();
            assert!(events.len() <= EVENTS && of(FLOOD) >= FLOODS * of(SEARCHED), "{crowd}");
            assert!(of(SEARCHED) > 0 && of(SEARCHED) == of(COMPARED), "{crowd}");
            let body = PreparedEvents::of(events).body();
            assert!(body.len() <= ServerLimits::default().body_bytes, "{crowd}: {}", body.len());
        }
    }
}
