//! The quiet tenant of `neighbours`: a little of everything, timed.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use chrono::{DateTime, TimeDelta, Utc};
use reqwest::{Method, RequestBuilder};
use serde_json::{Value, json};

use crate::base::clock::{machine_now, pause};
use crate::bench::Samples;
use crate::bench::figures::neighbours::sink::{MARK, MessageSink};
use crate::bench::process::service::{BenchService, BenchTenant};

const NAME: &str = "quiet";
/// Where its requests go.
const OWN: usize = 0;
/// Tasks that are due each second, and conditions that are polled each second.
const TASKS: u64 = 2;
/// Between two events, and between two calls of the API.
const BETWEEN_EVENTS: Duration = Duration::from_millis(250);
const BETWEEN_CALLS: Duration = Duration::from_millis(50);
/// The least samples of each kind, however slow the machine is.
const LEAST: usize = 5;
/// The longest that is waited for those, and for the end of what has begun.
const PATIENCE: Duration = Duration::from_secs(120);

/// Times that a tenant saw, in milliseconds.
pub struct QuietTimes {
    /// Lateness of its schedules.
    pub schedule: Samples,
    /// From an event to the first step of its run.
    pub events: Samples,
    /// From one poll to the next of a condition.
    pub polls: Samples,
    pub api: Samples,
    /// From the step to the message that the run has ended.
    pub notifications: Samples,
    /// Instants of its schedules that no run was started for.
    pub missed: usize,
    /// Why calls were refused or not answered, one entry each; an event is published again until it is taken.
    pub refused: Vec<String>,
}

pub struct QuietTenant<'a> {
    tenant: BenchTenant,
    sink: &'a MessageSink,
    scheduled: Vec<String>,
    /// Events that were published, and when.
    published: Vec<Instant>,
    refused: Vec<String>,
}

impl QuietTenant<'_> {
    /// Makes its tasks.
    pub async fn start<'a>(service: &BenchService, sink: &'a MessageSink) -> anyhow::Result<QuietTenant<'a>> {
        let began = Instant::now();
        let tenant = service.tenant_with_webhook(NAME, &sink.url(OWN, 0, "/hook/quiet")).await?.with_own_connections();
        let step = sink.url(OWN, 1, "/step/{{ event.id }}");
        let look = json!({ "name": "look", "tool": { "name": "http_request", "args": { "url": step } } });
        let said = json!({ "name": "said", "map": format!("'{MARK}' + event.id + '.'") });
        let on_event = json!({
            "name": "On an event", "trigger": { "type": "event", "source": "quiet", "event_type": "happened" },
            "executor": "pipeline", "action": { "config": { "steps": [look, said] } },
        });
        tenant.import(&[on_event]).await?;
        let mut scheduled = Vec::new();
        for number in 0..TASKS {
            let steps = json!([{ "name": "one", "map": "1 + 1" }]);
            let due = json!({
                "name": "Each second", "trigger": { "type": "schedule", "interval": "1s", "overlap": "allow" },
                "executor": "pipeline", "action": { "config": { "steps": steps } }, "output": null,
            });
            let made = tenant.post("/v1/tasks", &due).await?;
            scheduled.push(made["id"].as_str().context("a task has an id")?.to_owned());
            let url = sink.url(OWN, 2 + number as usize, &format!("/value/{number}"));
            let watched = json!({
                "name": "A price", "executor": "pipeline", "action": { "config": { "steps": steps } }, "output": null,
                "trigger": { "type": "condition", "poll": { "http": { "url": url } }, "interval": "1s",
                             "expression": "value.price < 0" },
            });
            tenant.post("/v1/tasks", &watched).await?;
        }
        let quiet = QuietTenant { tenant, sink, scheduled, published: Vec::new(), refused: Vec::new() };
        quiet.wait_until("its tasks have begun", async || Ok(quiet.polls_since(began).len() >= 2)).await?;
        Ok(quiet)
    }

    /// Lives for so long, and until a few of everything were seen, and `is_enough` says so, too, if it ever does.
    pub async fn live(&mut self, long: Duration, is_enough: impl Fn() -> bool) -> anyhow::Result<QuietTimes> {
        let (from, began) = (Instant::now(), machine_now());
        let first = self.published.len();
        let mut calls = Vec::new();
        self.refused.clear();
        let mut published_at = from;
        loop {
            if published_at <= Instant::now() {
                published_at = Instant::now() + BETWEEN_EVENTS;
                self.publish().await?;
            }
            calls.push(self.call(calls.len()).await);
            let enough = self.published.len() - first >= LEAST && self.polls_since(from).len() >= LEAST;
            let patient = from.elapsed() < long + PATIENCE;
            if from.elapsed() >= long && enough && (is_enough() || !patient) {
                break;
            }
            ensure!(patient, "too few polls were made within {PATIENCE:?}");
            pause(BETWEEN_CALLS).await;
        }
        let (polls, ended) = (self.polls_since(from), machine_now().max(began + TimeDelta::seconds(LEAST as i64)));
        let (events, notifications) = self.events(first).await?;
        let (schedule, missed) = self.fires(began, ended).await?;
        Ok(QuietTimes {
            schedule: Samples::new(schedule),
            events: Samples::new(events),
            polls: Samples::new(polls),
            api: Samples::new(calls),
            notifications: Samples::new(notifications),
            missed,
            refused: std::mem::take(&mut self.refused),
        })
    }

    /// Publishes an event; its time begins with the first try.
    async fn publish(&mut self) -> anyhow::Result<()> {
        let (number, began) = (self.published.len(), Instant::now());
        let event =
            json!({ "tenant_id": NAME, "source": "quiet", "type": "happened", "id": number.to_string(), "data": {} });
        self.published.push(began);
        while !self.succeeded("an event", self.tenant.request(Method::POST, "/v1/events").json(&event)).await {
            ensure!(began.elapsed() < PATIENCE, "an event of the quiet tenant is not taken within {PATIENCE:?}");
            pause(BETWEEN_CALLS).await;
        }
        Ok(())
    }

    /// A call of the API, of several kinds in turn; how long it took.
    async fn call(&mut self, number: usize) -> f64 {
        let one = format!("/v1/tasks/{}", self.scheduled[0]);
        let path = ["/v1/tasks?limit=20", &one, "/v1/runs?limit=20", "/v1/stats"][number % 4];
        let began = Instant::now();
        self.succeeded(path, self.tenant.request(Method::GET, path)).await;
        millis(began, Instant::now())
    }

    /// Whether a call was answered well; where not, it is noted why, and after how long.
    async fn succeeded(&mut self, call: &str, request: RequestBuilder) -> bool {
        let began = Instant::now();
        let Some(why) = self.tenant.refusal(request).await else { return true };
        self.refused.push(format!("{call}, after {:.0} ms: {why}", millis(began, Instant::now())));
        false
    }

    /// From each poll to the one before it.
    fn polls_since(&self, from: Instant) -> Vec<f64> {
        let gaps = |number| {
            let polls: Vec<Instant> = self.sink.polls(number).into_iter().filter(|at| *at >= from).collect();
            polls.windows(2).map(|pair| millis(pair[0], pair[1])).collect::<Vec<f64>>()
        };
        (0..TASKS).flat_map(gaps).collect()
    }

    /// Waits for the message of each event since `first`: from events to steps, and from steps to messages.
    async fn events(&self, first: usize) -> anyhow::Result<(Vec<f64>, Vec<f64>)> {
        let told = |number: usize| self.sink.of_event(number as u64).1.is_some();
        self.wait_until("each event's message has come", async || Ok((first..self.published.len()).all(told))).await?;
        let seen = (first..self.published.len()).filter_map(|number| {
            let (step, message) = self.sink.of_event(number as u64);
            Some((millis(self.published[number], step?), millis(step?, message?)))
        });
        Ok(seen.unzip())
    }

    /// How late the runs of these instants started, and how many instants no run was started for.
    async fn fires(&self, began: DateTime<Utc>, ended: DateTime<Utc>) -> anyhow::Result<(Vec<f64>, usize)> {
        let (mut late, mut missed) = (Vec::new(), 0);
        for task in &self.scheduled {
            let runs = self.runs(task, began, ended).await?;
            let started = runs.iter().filter_map(|run| Some((time(&run["scheduled_for"])?, time(&run["started_at"])?)));
            let of_task: Vec<f64> =
                started.map(|(due, at)| (at - due).num_microseconds().unwrap_or(i64::MAX) as f64 / 1000.0).collect();
            let instants = (ended - began).num_seconds() as usize;
            missed += instants.saturating_sub(of_task.len());
            late.extend(of_task);
        }
        Ok((late, missed))
    }

    /// The runs of a task that were due in this time, once its next one has started.
    async fn runs(&self, task: &str, began: DateTime<Utc>, ended: DateTime<Utc>) -> anyhow::Result<Vec<Value>> {
        let path = format!("/v1/runs?task_id={task}&limit=200");
        let later = |run: &Value| time(&run["scheduled_for"]).is_some_and(|due| due >= ended);
        self.wait_until("the schedules have fired", async || {
            let page = self.tenant.get(&path).await?;
            Ok(page["items"]
                .as_array()
                .is_some_and(|runs| runs.iter().any(|run| later(run) && !run["started_at"].is_null())))
        })
        .await?;
        let (mut found, mut cursor) = (Vec::new(), String::new());
        loop {
            let page = self.get_with_retry(&format!("{path}{cursor}")).await?;
            let runs = page["items"].as_array().cloned().unwrap_or_default();
            let past = runs.iter().any(|run| time(&run["scheduled_for"]).is_some_and(|due| due < began));
            found.extend(runs);
            match page["next_cursor"].as_str().filter(|_| !past) {
                Some(next) => cursor = format!("&cursor={next}"),
                None => break,
            }
        }
        found.retain(|run| time(&run["scheduled_for"]).is_some_and(|due| due >= began && due < ended));
        Ok(found)
    }

    /// Returns once it is so. Requests that are refused meanwhile, because others have the service to themselves, are
    /// made again.
    async fn wait_until(&self, what: &str, holds: impl AsyncFn() -> anyhow::Result<bool>) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let held = holds().await;
            if let Ok(true) = held {
                return Ok(());
            }
            if began.elapsed() >= PATIENCE {
                held.with_context(|| format!("while it was waited for that {what}"))?;
                bail!("it is not so within {PATIENCE:?} that {what}");
            }
            pause(Duration::from_millis(100)).await;
        }
    }

    /// The answer, asked for again where it is refused.
    async fn get_with_retry(&self, path: &str) -> anyhow::Result<Value> {
        let answer = Mutex::new(Value::Null);
        let asked = async || {
            *answer.lock().expect("answer lock") = self.tenant.get(path).await?;
            Ok(true)
        };
        self.wait_until("the service answers", asked).await?;
        Ok(answer.into_inner().expect("answer lock"))
    }
}

fn millis(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64() * 1000.0
}

fn time(value: &Value) -> Option<DateTime<Utc>> {
    value.as_str()?.parse().ok()
}
