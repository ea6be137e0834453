//! Where faults happen: real binaries on one database, tasks that are due all the time, and the other side of their
//! webhooks. It knows when nobody was there, so that the judge can tell what had to be late.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::clock::{MEASUREMENT_ERROR, machine_now, pause, to_delta};
use serde_json::{Value, json};

use crate::support::binary::Service;
use crate::support::checker::{CheckerFacts, Records, Source, Verdict, judge};
use crate::support::effects::Effects;
use crate::support::world::MASTER_KEY;

/// How long anything may take on a loaded machine with two cores.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// Between two looks at something that comes by itself.
const LOOK: Duration = Duration::from_millis(50);
const TOKEN: &str = "the admin token of the fault tests";
/// A signing secret, as webhook tasks must have one.
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// A lease is so short that runs of the dead go on within a few seconds.
const LEASE_SECONDS: f64 = 2.0;
/// Where another length is set.
pub const LEASE_VARIABLE: &str = "REVEILLE_ENGINE__LEASE_SECONDS";

/// The identity of an event, computed apart from the product: `sha256(tenantid, 0, source, 0, id)` in hexadecimal.
fn event_key(tenant: &str, source: &str, id: &str) -> String {
    let text = [tenant, source, id].join("\0");
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Services on one database.
pub struct FaultHarness {
    pub effects: Effects,
    pub source: Source,
    pub known: CheckerFacts,
    services: Vec<Service>,
    alive: Vec<bool>,
    /// Since when nobody is there.
    down_since: Option<DateTime<Utc>>,
    client: reqwest::Client,
    /// Every task that was made.
    pub tasks: Vec<String>,
    /// Events that were accepted, by their ids.
    pub accepted: Vec<String>,
}

impl FaultHarness {
    /// One instance on SQLite, which is not running yet.
    pub async fn sqlite() -> FaultHarness {
        let service = Service::new();
        let source = Source::Sqlite(service.dir.path().join("data/reveille.db"));
        FaultHarness::of(vec![service], source).await
    }

    /// So many instances on this Postgres database, which they may reach by another address than the judge.
    pub async fn postgres(instances: usize, direct: &str, by: &str) -> FaultHarness {
        let keys = json!([MASTER_KEY]).to_string();
        let service = || {
            let service = Service::new().with("REVEILLE_DATABASE__URL", by);
            service.with("REVEILLE_VAULT__MASTER_KEYS", keys.clone())
        };
        let services = (0..instances).map(|_| service()).collect();
        FaultHarness::of(services, Source::Postgres(direct.to_owned())).await
    }

    async fn of(services: Vec<Service>, source: Source) -> FaultHarness {
        let alive = vec![false; services.len()];
        let services = services.into_iter().map(|service| {
            let service = service.with("REVEILLE_SERVER__ADMIN_TOKEN", TOKEN);
            service.with(LEASE_VARIABLE, LEASE_SECONDS.to_string())
        });
        FaultHarness {
            effects: Effects::start().await,
            source,
            known: CheckerFacts::default(),
            services: services.collect(),
            alive,
            down_since: Some(machine_now()),
            client: reveille::ports::egress::operator_client(Duration::from_secs(10)),
            tasks: Vec::new(),
            accepted: Vec::new(),
        }
        .with("REVEILLE_EGRESS__ALLOW", r#"["127.0.0.1:*"]"#)
    }

    /// Sets an environment variable of every instance, from its next start on.
    pub fn with(mut self, name: &str, value: &str) -> FaultHarness {
        self.services = self.services.into_iter().map(|service| service.with(name, value)).collect();
        self
    }

    /// The text of every instance's `reveille.toml`.
    pub fn with_config(mut self, toml: &str) -> FaultHarness {
        self.services = self.services.into_iter().map(|service| service.with_config(toml)).collect();
        self
    }

    /// Sets an environment variable while others use the harness: no service of it is running.
    pub fn set(&mut self, name: &str, value: &str) {
        let services = std::mem::take(&mut self.services);
        self.services = services.into_iter().map(|service| service.with(name, value)).collect();
    }

    /// Sets one of one instance.
    #[cfg(feature = "failpoints")]
    pub fn with_of(mut self, number: usize, name: &str, value: &str) -> FaultHarness {
        let of = |(at, service): (usize, Service)| if at == number { service.with(name, value) } else { service };
        self.services = self.services.into_iter().enumerate().map(of).collect();
        self
    }

    pub fn service(&self, number: usize) -> &Service {
        &self.services[number]
    }

    pub async fn start(&mut self, number: usize) {
        self.services[number].start().await;
        self.alive[number] = true;
        if let Some(since) = self.down_since.take() {
            self.known.outages.push((since, machine_now()));
        }
    }

    /// Starts all of them.
    pub async fn start_all(&mut self) {
        for number in 0..self.services.len() {
            self.start(number).await;
        }
    }

    /// `kill -9`.
    pub async fn kill(&mut self, number: usize) {
        self.services[number].kill().await;
        self.known.crashes += 1;
        self.gone(number);
    }

    /// SIGTERM, and waits for its end; it was in order if this says so.
    pub async fn terminate(&mut self, number: usize) -> bool {
        self.known.hands_back = true;
        let ended = self.services[number].terminate().await;
        self.gone(number);
        ended.success()
    }

    /// Waits for an end that comes by itself.
    pub async fn ended(&mut self, number: usize) -> std::process::ExitStatus {
        let ended = self.services[number].ended().await;
        self.gone(number);
        ended
    }

    fn gone(&mut self, number: usize) {
        self.alive[number] = false;
        if !self.alive.contains(&true) {
            self.down_since = Some(machine_now());
        }
    }

    /// There was an outage since then, which is over: instances find the database again within a while. Leases may have
    /// run out in it, any number of times for a run that was taken over meanwhile.
    pub async fn may_lose_leases(&mut self, from: DateTime<Utc>) {
        self.known.crashes += 3;
        for number in (0..self.services.len()).filter(|number| self.alive[*number]) {
            let begun = Instant::now();
            while self.status(number, "/readyz").await != Some(200) {
                assert!(begun.elapsed() < PATIENCE, "instance {number} is not ready again\n{}", self.logs());
                pause(LOOK).await;
            }
        }
        self.known.outages.push((from, machine_now()));
    }

    /// # Panics
    /// If no instance has logged it: then the test has not met what it is for.
    pub fn must_say(&self, text: &str) {
        assert!(self.services.iter().any(|service| service.log().contains(text)), "no log has {text:?}");
    }

    fn url(&self) -> String {
        let at = self.alive.iter().position(|alive| *alive).expect("a living instance");
        self.services[at].url().to_owned()
    }

    /// Asks the first living instance, again and again while it says that it can't now.
    pub async fn post(&self, path: &str, body: &Value) -> Value {
        self.until_answered(path, async || self.try_post(path, body).await).await
    }

    /// As [`FaultHarness::post`], under an idempotency key: a run that is asked for so is ready, where another would start
    /// with its record.
    #[cfg(feature = "failpoints")]
    pub async fn post_with_key(&self, path: &str, body: &Value) -> Value {
        let key = format!("{:016x}", fastrand::u64(..));
        let ask = async || {
            let request = self.client.post(format!("{}{path}", self.url()));
            answer(request.header("idempotency-key", &key).json(body)).await
        };
        self.until_answered(path, ask).await
    }

    pub async fn get(&self, path: &str) -> Value {
        self.until_answered(path, async || answer(self.client.get(format!("{}{path}", self.url()))).await).await
    }

    async fn until_answered(&self, path: &str, ask: impl AsyncFn() -> Result<Value, String>) -> Value {
        let begun = Instant::now();
        loop {
            match ask().await {
                Ok(answer) => return answer,
                Err(failed) => assert!(begun.elapsed() < PATIENCE, "{path}: {failed}"),
            }
            pause(LOOK).await;
        }
    }

    async fn try_post(&self, path: &str, body: &Value) -> Result<Value, String> {
        answer(self.client.post(format!("{}{path}", self.url())).json(body)).await
    }

    /// The status of a request without a token.
    pub async fn status(&self, number: usize, path: &str) -> Option<u16> {
        let request = self.client.get(format!("{}{path}", self.services[number].url()));
        request.send().await.ok().map(|answer| answer.status().as_u16())
    }

    /// A task whose runs go to the other side. Its creation is repeated under one key until it is acknowledged.
    pub async fn task(&mut self, trigger: Value) -> String {
        self.task_unless_past(trigger).await.unwrap_or_else(|why| panic!("the task was not made: {why}"))
    }

    /// Makes a task; an error says why, where it is refused for good.
    async fn task_unless_past(&mut self, trigger: Value) -> Result<String, String> {
        let config = json!({ "url": self.effects.url(), "secret": SECRET });
        self.task_of("webhook", config, trigger).await
    }

    /// A pipeline that computes, pays, and computes.
    pub async fn paying(&mut self, trigger: Value) -> String {
        let pay = json!({ "method": "POST", "url": self.effects.url(), "body": { "pays": "{{ run.id }}" } });
        let steps =
            json!([{ "name": "before", "map": "1" }, { "name": "pay", "http": pay }, { "name": "after", "map": "2" }]);
        let made = self.task_of("pipeline", json!({ "steps": steps }), trigger).await;
        made.unwrap_or_else(|why| panic!("the task was not made: {why}"))
    }

    /// An agent that may use one tool: to send something.
    pub async fn paying_by_agent(&mut self, trigger: Value) -> String {
        self.agent_with(&["http_send"], trigger).await
    }

    /// An agent that may use this tool.
    pub async fn agent_with(&mut self, tools: &[&str], trigger: Value) -> String {
        let made = self.task_of("orchestrator", json!({ "tools": tools }), trigger).await;
        made.unwrap_or_else(|why| panic!("the task was not made: {why}"))
    }

    /// A pipeline of one step, the agent of which may use these tools.
    pub async fn agent_step_with(&mut self, tools: &[&str], trigger: Value) -> String {
        let steps = json!([{ "name": "step", "agent": { "instruction": "go", "tools": tools } }]);
        let made = self.task_of("pipeline", json!({ "steps": steps }), trigger).await;
        made.unwrap_or_else(|why| panic!("the task was not made: {why}"))
    }

    /// A pipeline that reserves, which may be done twice, and pays.
    pub async fn reserving(&mut self, trigger: Value) -> String {
        let request = |method: &str, what: &str| json!({ "method": method, "url": self.effects.url(), "body": { what: "{{ run.id }}" } });
        let steps = json!([
            { "name": "reserve", "http": request("PUT", "reserves") },
            { "name": "pay", "http": request("POST", "pays") },
        ]);
        let made = self.task_of("pipeline", json!({ "steps": steps }), trigger).await;
        made.unwrap_or_else(|why| panic!("the task was not made: {why}"))
    }

    async fn task_of(&mut self, executor: &str, config: Value, trigger: Value) -> Result<String, String> {
        let key = format!("{:016x}", fastrand::u64(..));
        let body = json!({
            "tenant_id": "ann", "name": "due", "trigger": trigger, "executor": executor,
            "action": { "instruction": "go", "config": config },
            "retry": { "max_attempts": 10, "backoff_seconds": 1 },
        });
        let begun = Instant::now();
        loop {
            let request = self.client.post(format!("{}/v1/tasks", self.url())).bearer_auth(TOKEN);
            let failed = match request.header("idempotency-key", &key).json(&body).send().await {
                Ok(answer) if answer.status().is_success() => {
                    let task: Value = answer.json().await.expect("a task");
                    let id = task["id"].as_str().expect("an id").to_owned();
                    self.tasks.push(id.clone());
                    return Ok(id);
                }
                Ok(answer) if answer.status().as_u16() == 422 => return Err(answer.text().await.unwrap_or_default()),
                Ok(answer) => format!("{}: {}", answer.status(), answer.text().await.unwrap_or_default()),
                Err(error) => error.to_string(),
            };
            assert!(begun.elapsed() < PATIENCE, "the task {body} was not made: {failed}");
            pause(LOOK).await;
        }
    }

    /// Tasks that are due all the time, with every policy of overlap and of catching up; and one for events.
    pub async fn busy(&mut self) {
        for trigger in [
            json!({ "interval": "1s", "overlap": "allow" }),
            json!({ "interval": "1s", "overlap": "queue_all", "catch_up": "all" }),
            json!({ "cron": "* * * * * *", "overlap": "skip" }),
            json!({ "cron": "* * * * * *", "overlap": "skip", "catch_up": "skip" }),
            json!({ "cron": "*/2 * * * * *", "overlap": "queue_one" }),
            json!({ "cron": "*/3 * * * * *", "overlap": "cancel_previous", "catch_up": "all" }),
            json!({ "cron": "* * * * * *", "timezone": "Asia/Kathmandu", "exclude": ["*/4 */2 * * * *"], "overlap": "allow" }),
            json!({ "cron": "* * * * * *", "exclude": ["*/3 * * * * *"], "overlap": "skip", "catch_up": "all" }),
            json!({ "interval": "3s", "jitter": "2s", "overlap": "allow", "catch_up": "all" }),
        ] {
            let mut trigger = trigger;
            trigger["type"] = json!("schedule");
            self.task(trigger).await;
        }
        self.task(json!({ "type": "event", "source": "shop" })).await;
    }

    /// A task for one instant within the next seconds.
    pub async fn once(&mut self) {
        loop {
            let at = machine_now() + TimeDelta::milliseconds(fastrand::i64(500..4000));
            match self.task_unless_past(json!({ "type": "schedule", "at": at.to_rfc3339(), "overlap": "allow" })).await
            {
                Ok(_) => return,
                // it has passed while the service was away, by a clock that may be ahead
                Err(why) if machine_now() + to_delta(MEASUREMENT_ERROR) >= at => drop(why),
                Err(why) => panic!("the task was not made: {why}"),
            }
        }
    }

    /// Publishes one event, which an instance that is about to die may refuse; an accepted one is remembered.
    pub async fn publish(&mut self) {
        self.publish_as(&format!("{:016x}", fastrand::u64(..))).await;
    }

    /// Publishes an event under an id of its own.
    pub async fn publish_as(&mut self, id: &str) {
        let event = json!({
            "specversion": "1.0", "source": "shop", "type": "order", "tenantid": "ann", "id": id,
            "data": { "text": "x".repeat(2000) },
        });
        let request = self.client.post(format!("{}/v1/events", self.url())).bearer_auth(TOKEN).json(&event);
        if request.send().await.is_ok_and(|answer| answer.status().is_success()) {
            self.accepted.push(id.to_owned());
        }
    }

    /// Pauses every task, and waits until nothing is on its way any more.
    pub async fn settle(&mut self) {
        let begun = Instant::now();
        // events on a bus besides the database are not seen in it: accepted ones have to arrive
        while self.lost_events(&self.source.read().await).next().is_some() && begun.elapsed() < PATIENCE {
            pause(LOOK * 10).await;
        }
        for task in &self.tasks {
            let path = format!("/v1/tasks/{task}");
            // it may complete between the two
            while self.get(&path).await["status"] == "active" {
                match self.try_post(&format!("{path}/pause"), &json!({})).await {
                    Ok(_) => break,
                    Err(failed) => assert!(begun.elapsed() < PATIENCE * 2, "{path}: {failed}"),
                }
                pause(LOOK).await;
            }
        }
        loop {
            match self.source.unfinished().await {
                Ok(0) => break,
                left => assert!(begun.elapsed() < PATIENCE * 2, "it does not come to rest: {left:?}\n{}", self.logs()),
            }
            pause(LOOK).await;
        }
        self.known.ended = true;
    }

    /// Waits until so many runs have succeeded: what is recorded ahead of its instant has not been fired yet.
    pub async fn ran(&self, count: i64) {
        self.until_number("select count(*) from runs where state = 'succeeded'", count).await;
    }

    /// Waits until a query counts so many.
    pub async fn until_number(&self, query: &'static str, count: i64) {
        let begun = Instant::now();
        while self.source.number(query).await.unwrap() < count {
            assert!(begun.elapsed() < PATIENCE, "fewer than {count}: {query}\n{}", self.logs());
            pause(LOOK).await;
        }
    }

    /// The output of the last run of each of these tasks.
    pub async fn last_outputs(&self, tasks: &[String]) -> Vec<String> {
        let runs = self.source.read().await.runs;
        let of = |task: &String| runs.iter().rfind(|run| run.task_id.is_some_and(|id| id.to_string() == *task));
        tasks.iter().map(|task| of(task).and_then(|run| run.output.clone()).unwrap_or_default()).collect()
    }

    /// The last lines of every log.
    pub fn logs(&self) -> String {
        let last = |(number, service): (usize, &Service)| {
            let log = service.log();
            let lines: Vec<&str> = log.lines().rev().take(30).collect();
            format!("-- instance {number}\n{}", lines.into_iter().rev().collect::<Vec<_>>().join("\n"))
        };
        self.services.iter().enumerate().map(last).collect::<Vec<_>>().join("\n")
    }

    /// The judge's findings now, and whether each event that was accepted is there.
    pub async fn verdict(&mut self) -> Verdict {
        let seen_before = self.effects.journal().len();
        let records = self.source.read().await;
        self.known.effects = self.effects.journal();
        self.known.payments = self.effects.payments();
        self.known.newer = self.known.effects.len() - seen_before;
        let mut verdict = judge(&records, &self.known);
        for id in self.lost_events(&records).filter(|_| self.known.ended) {
            verdict.violated("accepted", format!("the event {id} was accepted, and nothing came of it"));
        }
        for task in self.tasks.iter().filter(|id| !records.tasks.iter().any(|task| task.id.to_string() == **id)) {
            verdict.violated("accepted", format!("the task {task} was made, and is not there"));
        }
        verdict
    }

    /// Events that were accepted and of which no run tells.
    fn lost_events<'a>(&'a self, records: &Records) -> impl Iterator<Item = &'a String> {
        let keys = records.runs.iter().filter_map(|run| run.fire_key.strip_prefix("e:"));
        let keys: HashSet<String> = keys.map(|key| key.split('#').next().unwrap_or_default().to_owned()).collect();
        self.accepted.iter().filter(move |id| !keys.contains(&event_key("ann", "shop", id)))
    }

    /// Comes to rest, and holds what is there against the judge; says what was judged.
    pub async fn must_hold(&mut self, what: &str) -> Verdict {
        self.settle().await;
        let verdict = self.verdict().await;
        println!("{what}: {verdict}");
        if !verdict.violations.is_empty() {
            println!("{}", self.logs());
        }
        verdict.must_hold();
        verdict
    }
}

/// The answer of an instance; an error says why, where there was none or it was a problem.
async fn answer(request: reqwest::RequestBuilder) -> Result<Value, String> {
    match request.bearer_auth(TOKEN).send().await {
        Ok(answer) if answer.status().is_success() => Ok(answer.json().await.unwrap_or(Value::Null)),
        Ok(answer) => Err(format!("{}: {}", answer.status(), answer.text().await.unwrap_or_default())),
        Err(error) => Err(error.to_string()),
    }
}
