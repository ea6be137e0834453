//! The hostile tenants of `neighbours`: what a tenant may ask for at the most, all of it at once, until they are stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::base::clock::pause;
use crate::base::threads::LowRuntime;
use crate::bench::BenchFigure;
use crate::bench::figures::neighbours::sink::MessageSink;
use crate::bench::process::service::{BenchService, BenchTenant};

const NAMES: [&str; 2] = ["a-hostile", "z-hostile"];
/// Events of one request of a flood, and of one whose filter is dear.
const FLOOD: usize = 500;
const DEAR: usize = 20;
/// Numbers that a dear filter compares with each other; a few more are refused.
const NUMBERS: usize = 200;
/// Bytes of an import that is nothing but empty lines.
const NEWLINES: usize = 4 * 1024 * 1024;
/// Bytes of each row of a long list.
const WIDE: usize = 15_000;
/// How long a slow address takes to answer, to polls and to steps of runs, in seconds.
const SLOW_POLL: u64 = 8;
const SLOW_RUN: u64 = 20;
/// Calls that each loop makes at most.
const CALLS: usize = 100_000;
/// The longest that a loop rests when it is refused: as one that heeds nothing.
const REST: Duration = Duration::from_secs(1);
/// Some instants of each minute of each day, written out.
const RULE: &str = "FREQ=YEARLY;BYMONTHDAY=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,\
    30,31;BYHOUR=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23;BYMINUTE=0,1,2,3,4,5,6,7,8,9,10,11,12,13,\
    14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,\
    53,54,55,56,57,58,59;BYSECOND=0,10,20,30,40,50";

/// Counts of the calls of hostile tenants.
pub struct HostileCounts {
    calls: u64,
    refused: u64,
}

/// How often they have called.
#[derive(Default)]
struct CallCounts {
    calls: AtomicU64,
    refused: AtomicU64,
}

/// The load of the hostile tenants, which goes on until it is stopped or dropped.
pub struct HostileLoad {
    loops: JoinSet<()>,
    stop: CancellationToken,
    counts: Arc<CallCounts>,
    /// Their own work is not to hold up the quiet tenant's clocks: elsewhere they have machines of their own.
    threads: LowRuntime,
}

/// The request that one loop makes again and again.
type HostileCall = dyn Fn(&BenchTenant) -> RequestBuilder + Send + Sync;

impl HostileLoad {
    /// Makes their tasks, `crowd` of a kind, and begins.
    pub async fn start(service: &BenchService, sink: &MessageSink, crowd: usize) -> anyhow::Result<HostileLoad> {
        let (loops, stop, threads) = (JoinSet::new(), CancellationToken::new(), LowRuntime::start()?);
        let mut hostile = HostileLoad { loops, stop, counts: Arc::default(), threads };
        for (number, name) in NAMES.into_iter().enumerate() {
            let tenant = service.tenant_with_webhook(name, &sink.url(number + 1, 0, "/slow/3")).await?;
            tenant.import(&tasks(sink, number + 1, crowd)).await?;
            for ask in request_loops(name) {
                hostile.repeat(tenant.clone(), ask);
            }
        }
        Ok(hostile)
    }

    fn repeat(&mut self, tenant: BenchTenant, ask: Box<HostileCall>) {
        let (stop, counts) = (self.stop.clone(), Arc::clone(&self.counts));
        let calls = async move {
            for _ in 0..CALLS {
                let Some(called) = stop.run_until_cancelled(tenant.call(ask(&tenant))).await else { return };
                counts.calls.fetch_add(1, Ordering::Relaxed);
                // a call that took too long, or was cut off, is one that was refused
                let refused = !called.as_ref().is_ok_and(|(status, _)| status.is_success());
                if refused {
                    counts.refused.fetch_add(1, Ordering::Relaxed);
                    let asked = called.ok().and_then(|(_, wait)| wait).map_or(Duration::ZERO, Duration::from_secs);
                    stop.run_until_cancelled(pause(asked.min(REST))).await;
                }
            }
        };
        self.loops.spawn_on(calls, self.threads.handle());
    }

    pub async fn stop(mut self) -> HostileCounts {
        self.stop.cancel();
        while self.loops.join_next().await.is_some() {}
        let counts = &self.counts;
        HostileCounts { calls: counts.calls.load(Ordering::Relaxed), refused: counts.refused.load(Ordering::Relaxed) }
    }
}

impl HostileCounts {
    /// Tells it beside a figure.
    pub fn annotate(&self, figure: BenchFigure) -> BenchFigure {
        let figure = figure.with_part("calls of the hostile tenants", "", self.calls as f64);
        figure.with_part("of which refused", "", self.refused as f64)
    }
}

fn pipeline(name: &str, trigger: Value, config: Value) -> Value {
    json!({ "name": name, "trigger": trigger, "executor": "pipeline", "action": { "config": config } })
}

/// Tells nobody of its runs.
fn without_output(mut task: Value) -> Value {
    task["output"] = Value::Null;
    task
}

fn interval(length: &str) -> Value {
    json!({ "type": "schedule", "interval": length })
}

/// Tasks of every kind.
fn tasks(sink: &MessageSink, own: usize, crowd: usize) -> Vec<Value> {
    let part = |of: usize| (crowd / of).max(1);
    let one = || json!({ "steps": [{ "name": "one", "map": "1 + 1" }] });
    let on = |source: &str, filter: &str| json!({ "type": "event", "source": source, "filter": filter });
    let dear = "event.data.l.all(a, event.data.l.all(b, a <= b || a >= b))";
    let slow = |host: usize, seconds: u64| sink.url(own, host, &format!("/slow/{seconds}"));
    let run = |number: usize| {
        let args = json!({ "url": slow(number, SLOW_RUN) });
        let steps = json!([{ "name": "wait", "tool": { "name": "http_request", "args": args } }]);
        without_output(pipeline("Slow run", interval("5s"), json!({ "steps": steps })))
    };
    let poll = |number: usize| {
        let http = json!({ "http": { "url": slow(number, SLOW_POLL) } });
        let trigger = json!({ "type": "condition", "poll": http, "interval": "1s", "expression": "value.price < 0" });
        without_output(pipeline("Slow condition", trigger, one()))
    };
    let template =
        "{% for a in steps.list %}{% for b in steps.list %}{% if a > b %}.{% endif %}{% endfor %}{% endfor %}";
    let list: Vec<String> = (0..40).map(|number| number.to_string()).collect();
    let steps = json!([{ "name": "list", "map": format!("[{}]", list.join(", ")) }]);
    let templates = || pipeline("Dear template", interval("1s"), json!({ "steps": steps, "output": template }));
    let rule = json!({ "type": "schedule", "rrule": RULE, "start_at": "2026-01-01T00:00:00Z" });
    let wide = || {
        let mut task = without_output(pipeline("Wide row", interval("24h"), one()));
        task["metadata"] = json!({ "text": "x".repeat(WIDE) });
        task
    };
    let flood = (0..crowd).map(|_| without_output(pipeline("Flooded", on("flood", "event.data.n >= 0"), one())));
    flood
        .chain((0..part(60)).map(|_| without_output(pipeline("Dear filter", on("dear", dear), one()))))
        .chain((0..crowd).map(|_| without_output(pipeline("Dear rule", rule.clone(), one()))))
        .chain((0..part(15)).map(|_| templates()))
        .chain((0..part(2)).map(poll))
        .chain((0..part(4)).map(run))
        .chain((0..part(2)).map(|_| wide()))
        .collect()
}

/// The requests of a hostile tenant, each in a loop of its own.
fn request_loops(name: &'static str) -> Vec<Box<HostileCall>> {
    let numbers: Vec<usize> = (0..NUMBERS).collect();
    let newlines = Bytes::from(vec![b'\n'; NEWLINES]);
    let preview = json!({ "trigger": { "type": "schedule", "rrule": RULE, "start_at": "2026-01-01T00:00:00Z" } });
    let list = |path: &'static str| -> Box<HostileCall> { Box::new(move |tenant| tenant.request(Method::GET, path)) };
    vec![
        events(name, "flood", FLOOD, json!({ "n": 1 })),
        events(name, "dear", DEAR, json!({ "l": numbers })),
        Box::new(move |tenant| {
            let request = tenant.request(Method::POST, "/v1/tasks/import");
            request.header("content-type", "application/x-ndjson").body(newlines.clone())
        }),
        Box::new(move |tenant| tenant.request(Method::POST, "/v1/schedules/preview").json(&preview)),
        list("/v1/tasks?limit=200"),
        list("/v1/runs?limit=200"),
    ]
}

/// New events in each request.
fn events(tenant_id: &'static str, source: &'static str, count: usize, data: Value) -> Box<HostileCall> {
    Box::new(move |tenant| {
        let event = || {
            json!({ "specversion": "1.0", "id": crate::bench::env::random_id(), "source": source, "type": "t",
                    "tenantid": tenant_id, "data": data })
        };
        let batch = Value::from_iter((0..count).map(|_| event()));
        let request = tenant.request(Method::POST, "/v1/events");
        request.header("content-type", "application/cloudevents-batch+json").body(batch.to_string())
    })
}
