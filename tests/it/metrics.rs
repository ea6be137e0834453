//! Metrics: every one has its line in docs/metrics.md, every alert its metric, and the figures are right.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use reveille::base::metrics::MetricDescription;
use reveille::domain::run::RunState;
use reveille::domain::task::change::TaskChange;
use serde_json::json;

use crate::support::world::{World, on_both};

on_both! {
    starts_ends_and_what_was_missed_are_measured
    writes_of_a_lost_lease_are_counted
}

/// Facts about a metric that no code knows: its name, its labels, its unit, and what a person does about it.
const MEANINGS: &[(&str, &[&str], &str, &str)] = &[
    (
        "approvals_open",
        &[],
        "questions",
        "People are asked more than they answer: `reveille approval list`; `[approvals]` has reminders and escalation.",
    ),
    ("build", &["version"], "", "Compare over instances: during an upgrade there are two."),
    (
        "channel_breakers_open",
        &["channel"],
        "places",
        "A provider fails and is left alone for a while: `reveille check`, and the `last_error` of its deliveries.",
    ),
    ("condition_fires", &[], "fires", "Nothing; the pace of condition tasks."),
    ("condition_fires_skipped", &[], "fires", "Edges within a cooldown: lengthen `hold_for` if a condition flaps."),
    (
        "deliveries",
        &["channel", "state"],
        "attempts",
        "`failed` or `unknown` that grow: `reveille delivery list --state failed`. `pending` is one that is tried again.",
    ),
    ("deliveries_pending", &[], "messages", "Grows: a channel is slower than what it gets, or is left alone."),
    ("event_fires", &[], "runs", "Nothing; the pace of event tasks."),
    ("event_fires_skipped", &[], "matches", "See `reveille_skips_total` for the reasons."),
    ("events_acknowledged", &[], "entries", "Nothing; should follow `reveille_events_read_total`."),
    ("events_dead_lettered", &[], "entries", "Any: `reveille dead-letter list` says what can't be handled and why."),
    ("events_matched", &[], "events", "Nothing; what the matcher gets through."),
    (
        "data_file_bytes_written",
        &[],
        "bytes",
        "Nothing; how much of results is kept in files. `[data_files]` says how much may be kept at once.",
    ),
    (
        "data_files_removed",
        &["reason"],
        "files",
        "`quota`: a tenant's new files take the place of its own; `reveille quota show` has `data_file_bytes`. `size`: raise `[data_files] max_bytes`, or leave it. `age`: as it should be.",
    ),
    ("data_files_written", &[], "files", "Nothing; results that were too long to be shown whole."),
    (
        "events_pending",
        &[],
        "entries",
        "Stays high: an instance holds entries it does not finish; they come again by themselves.",
    ),
    ("events_published", &[], "events", "Nothing; what comes in here."),
    (
        "events_read",
        &[],
        "entries",
        "Much more than is acknowledged: entries come again and again; look at the warnings of the matcher.",
    ),
    ("budget_cost_micros", &[], "micro-dollars", "Nothing; what calls of models under budgets of a day cost."),
    (
        "budget_refusals",
        &["scope", "quantity"],
        "calls",
        "Runs end by their budget: `reveille budget show` says whose day is used up; raise it, or leave it.",
    ),
    ("budget_tokens", &[], "tokens", "Nothing; what calls of models under budgets of a day take."),
    ("events_unread", &[], "entries", "Grows: the matcher does not keep up; add an instance, or look at `/readyz`."),
    (
        "embedded_facts",
        &[],
        "facts",
        "Nothing; the pace at which vectors of facts are made (`[memory] embedding_model`).",
    ),
    (
        "embedding_failures",
        &[],
        "batches",
        "Grows: the endpoint of `[memory] embedding_model` does not answer, or not in time; the log says why. Facts are found by their words.",
    ),
    ("extractions", &[], "runs", "Nothing; the pace at which ended runs are read for facts (`[memory] model`)."),
    (
        "extraction_failures",
        &[],
        "attempts",
        "Grows: the model of `[memory]` does not answer, or not in time; the log says why. Runs are not touched by it.",
    ),
    (
        "extractions_dropped",
        &[],
        "runs",
        "Grows: runs of a tenant end faster than `[memory] model` reads them. `reveille_extraction_failures_total` says whether it answers; if it does, name a quicker one, or add an instance.",
    ),
    (
        "extractions_skipped",
        &[],
        "runs",
        "Tenants have spent what `[memory] max_usd_per_hour` or their budget allows; raise it, or name a cheaper model.",
    ),
    ("extracted_facts", &[], "facts", "Nothing; how many facts are found in ended runs."),
    ("fire_conflicts", &[], "fires", "Stays 0 unless an answer of the database was lost; nothing ran twice."),
    (
        "fair_queue_wait_seconds",
        &["resource"],
        "seconds",
        "p99 beyond half a second: too many want the same. `connections`: raise `[database] max_connections`. `engine_connections`: the server is too slow for the engine's batches: give it more processors, or a machine of its own. `writer`, `readers` (SQLite): move to Postgres. `large_writes`: on SQLite the same. `compute`: more processors, or another instance.",
    ),
    (
        "fair_queue_waiting",
        &["resource"],
        "calls",
        "Above 0 for long: as for `reveille_fair_queue_wait_seconds`. Tenants are served in turn, so a quiet one does not notice; `reveille quota show` says who asks for much.",
    ),
    (
        "fire_lag_seconds",
        &[],
        "seconds",
        "p99 beyond a second: no free slot (`max_concurrent_runs`), a limit, a slow database, or a burst that `jitter` would spread. What was missed in an outage is in it.",
    ),
    ("fires", &[], "fires", "Nothing; the pace of scheduled tasks."),
    (
        "skips",
        &["reason"],
        "fires",
        "`missed_window` and `catch_up_limit`: the service was down or behind for longer than a task allows. `overlap`: a task takes longer than its interval. `reveille run explain` says it of one run.",
    ),
    ("fires_skipped", &[], "fires", "See `reveille_skips_total` for the reasons."),
    (
        "halts",
        &["kind"],
        "halts",
        "`all` at 1: an operator has stopped everything; `reveille tenant list` has by whom and why, `reveille start --all` goes on.",
    ),
    ("http_connections", &[], "connections", "Near the limit of the server: somebody holds connections open."),
    ("http_connections_refused", &[], "connections", "Any: clients are turned away; find who opens so many."),
    ("http_request_seconds", &["method", "route"], "seconds", "p99 grows: see the pools, then the database."),
    ("http_requests", &["method", "route", "status"], "requests", "5xx: look for the request's id in the log."),
    (
        "mcp_call_seconds",
        &["server"],
        "seconds",
        "p99 near the time limit of calls: the server is slow; ask the person who runs it, or raise its `timeout_seconds`.",
    ),
    (
        "mcp_calls",
        &["server", "outcome"],
        "calls",
        "`ok` and `tool_error` are answers, `asked` are questions to a person. `away`, `broken` or `slow` that grow: `/readyz` and `reveille check` say how the server stands, the log says why. `credential`, `scope` or `unauthorized`: a tenant has to connect its account.",
    ),
    (
        "mcp_connections",
        &["server", "outcome"],
        "connections",
        "`opened` that grows steadily: the server ends again and again; the log has its last words. `failed`: as for `reveille_mcp_server_up`.",
    ),
    (
        "mcp_questions",
        &["server", "outcome"],
        "questions",
        "`asked` waits for people. `refused`: the server asks for a secret in a form, for what is not offered here, or beyond a bound; the run's transcript says which. `unplaced`: it asked in the middle of one of several calls without saying of which; `repeats_for_input` or streamable HTTP mends it.",
    ),
    (
        "mcp_requests",
        &["method", "outcome"],
        "messages",
        "`ok`, `task` and `input_required` are answers; `tool_error` is one that tells a model what to mend. `error` that grows: a client speaks the protocol wrongly, or calls what is not there.",
    ),
    (
        "mcp_server_up",
        &["server"],
        "0 or 1",
        "0 for long: `/readyz` and `reveille check` say why; the server's tools stay, and their calls say that it is away.",
    ),
    (
        "mcp_tools",
        &["server", "state"],
        "tools",
        "`set_aside` above 0: `reveille check` and the log name them, and why. `waiting` above 0: `reveille tool list` names them.",
    ),
    (
        "model_cost_micros",
        &["model"],
        "micro-dollars",
        "Grows faster than usual: `reveille stats --by task` and `--by tenant` say whose runs cost it.",
    ),
    (
        "model_tokens",
        &["model", "kind"],
        "tokens",
        "Nothing; the pace of models. `reveille stats --by model` adds it up.",
    ),
    ("model_turns", &["model"], "turns", "Nothing; how often models answer."),
    (
        "pool_connections",
        &["pool", "state"],
        "connections",
        "`in_use` at `max` for long: raise `[database] max_connections`.",
    ),
    (
        "pool_waits",
        &["pool"],
        "waits",
        "Steadily more than one a second on `shared`, `engine` or `quick`: raise `[database] max_connections`. On `tenant_readers` (SQLite has one for each processor, and one more) tenants read much at once, and share them. On `writer` (SQLite has one) it is the load; past hundreds a second move to Postgres.",
    ),
    ("polls", &[], "polls", "Nothing; the pace of condition tasks."),
    (
        "poll_failures",
        &[],
        "polls",
        "Grows: what conditions watch does not answer; `reveille task show` has the error.",
    ),
    ("polls_postponed", &[], "polls", "Many conditions watch one host; lengthen their intervals."),
    ("process_cpu_seconds", &[], "seconds", "As much as there are processors: add an instance."),
    ("process_max_fds", &[], "files", "The limit of `process_open_fds`; `LimitNOFILE` in the unit of systemd."),
    ("process_open_fds", &[], "files", "Near `process_max_fds`: raise that, or find who holds connections open."),
    (
        "process_resident_memory_bytes",
        &[],
        "bytes",
        "Grows without end: tell us. Steps with the number of runs under way are as they should be.",
    ),
    ("process_start_time_seconds", &[], "unix seconds", "Changes: the process was started again; its log says why."),
    ("process_threads", &[], "threads", "Nothing; some dozens."),
    (
        "queue_runs",
        &["state"],
        "runs",
        "`ready` that grows: no slot is free, or a limit holds them back: raise `max_concurrent_runs`, add an instance. `parked` wait for people, a completion or a run before them.",
    ),
    (
        "runs_under_way",
        &["phase"],
        "runs",
        "`computing` at `max_concurrent_runs` for long: add an instance, or raise it. `waiting` at `max_waiting_runs`: raise that, or runs keep their slots while they wait. `returning` above 0 for long: as for `computing`.",
    ),
    ("run_queue_seconds", &[], "seconds", "p95 beyond a few seconds: as for `ready` runs in `reveille_queue_runs`."),
    (
        "quota_refusals",
        &["quota"],
        "refusals",
        "A tenant asks for more than its quota: `reveille quota show` and the log of requests say whose; raise it for that tenant, or leave it.",
    ),
    (
        "run_seconds",
        &["executor", "state"],
        "seconds",
        "`failed`: `reveille run list --state failed`. `queued` is one that is tried again.",
    ),
    (
        "run_claims",
        &[],
        "statements",
        "As many as `reveille_run_starts_total` under load: runs are claimed one by one.",
    ),
    ("run_starts", &[], "runs", "Nothing; an instance that starts none while others do is worth a look."),
    (
        "service_last_success_seconds",
        &["service"],
        "unix seconds",
        "Older than two minutes: the service stalls; `/readyz` names it, its warnings are in the log.",
    ),
    (
        "service_ticks",
        &["service", "result"],
        "ticks",
        "`error` that grows: its warnings in the log say why; mostly the database is away.",
    ),
    (
        "spans",
        &["outcome"],
        "spans",
        "`lost` that grows: the collector of `[telemetry] otlp_endpoint` is away or too slow, the log says why; or lower `trace_sampling`.",
    ),
    ("tasks_late", &[], "tasks", "Above 0 for a minute: nobody fires; look at `/readyz`, the database and its locks."),
    (
        "unreadable_rows",
        &["table"],
        "rows",
        "Any: the log names each once, with its table and id; mostly a newer release wrote it, or somebody changed the database by hand. `table=\"zone_releases\"`: the newest rules of time zones that are stored, in whose place older ones plan; `reveille check` names them.",
    ),
    (
        "writes_fenced",
        &["write"],
        "writes",
        "A few after an instance died: as it should be. Many: instances are starved, suspended or far from the database; raise `lease_seconds`.",
    ),
    (
        "zone_database",
        &["release", "source"],
        "always 1",
        "Instances with different releases: update tzdata, or Reveille, on the older ones. `reveille check` says when it is old.",
    ),
    (
        "tool_calls",
        &["tool", "result"],
        "calls",
        "`error` of one tool that grows: what it reaches is away, or a model calls it wrongly; `reveille run show` has the calls.",
    ),
    ("zone_moves", &[], "tasks", "Nothing; a government has changed its clocks, and the owners are told."),
];

const HEAD: &str = "# Metrics

`GET /metrics` answers in the OpenMetrics text format. Generated by a test from what the service registers; alerts that
use these names are in `deploy/prometheus/reveille.rules.yml`. Counters are of one instance since its start; what is said
to be over all instances is counted in the database, at most every 15 seconds, by an index and to 10,000 at most, so that
looking costs nothing however much waits.

| name | type | labels | unit | what it is | what to do |
|---|---|---|---|---|---|
";

fn meaning(name: &str) -> Option<&'static (&'static str, &'static [&'static str], &'static str, &'static str)> {
    let bare = name.strip_prefix("reveille_").unwrap_or(name);
    let bare = ["_total", "_info"].iter().find_map(|suffix| bare.strip_suffix(suffix)).unwrap_or(bare);
    MEANINGS.iter().find(|(known, ..)| *known == bare)
}

fn reference(described: &[MetricDescription]) -> String {
    let mut text = HEAD.to_owned();
    for MetricDescription { name, kind, help } in described {
        let (_, labels, unit, act) = meaning(name).unwrap_or_else(|| panic!("{name} has no line in MEANINGS"));
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        writeln!(text, "| `{name}` | {kind} | {} | {unit} | {help} | {act} |", labels.join(", ")).expect("a String");
    }
    text
}

fn file(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// All that a whole service registers.
async fn registered() -> Vec<MetricDescription> {
    let world = World::sqlite();
    let instance = world.instance();
    let mut described = instance.http().metrics.descriptions();
    // the same counter, of the bus and of the matcher
    described.dedup_by(|a, b| a.name == b.name);
    instance.finish(&world).await;
    described
}

#[tokio::test]
async fn reference_of_metrics_is_what_is_registered() {
    let described = registered().await;
    let fresh = reference(&described);
    let known: Vec<&str> = described.iter().filter_map(|one| meaning(&one.name)).map(|(name, ..)| *name).collect();
    let gone: Vec<&str> = MEANINGS.iter().map(|(name, ..)| *name).filter(|name| !known.contains(name)).collect();
    assert_eq!(gone, [""; 0], "described, and not registered");
    if std::env::var_os("INSTA_UPDATE").is_some_and(|update| update == "always") {
        std::fs::write(file("docs/metrics.md"), &fresh).expect("written");
    }
    let committed = std::fs::read_to_string(file("docs/metrics.md")).expect("docs/metrics.md");
    assert_eq!(committed, fresh, "renew it: INSTA_UPDATE=always");
}

#[tokio::test]
async fn every_alert_is_about_a_metric_that_there_is() {
    let rules = std::fs::read_to_string(file("deploy/prometheus/reveille.rules.yml")).expect("the rules");
    let described = registered().await;
    let mut found = 0;
    for word in rules.split(|letter: char| !letter.is_ascii_lowercase() && letter != '_') {
        if !word.starts_with("reveille_") {
            continue;
        }
        let is_it = |one: &MetricDescription| match one.kind.as_str() {
            "histogram" => ["_bucket", "_sum", "_count"].iter().any(|part| word == format!("{}{part}", one.name)),
            _ => word == one.name,
        };
        assert!(described.iter().any(is_it), "{word} is no metric");
        found += 1;
    }
    assert!(found >= 10, "only {found} names were found");
}

/// The labels of every line are those that are described.
fn check_labels(text: &str) {
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (name, labels) = line.split_once(['{', ' ']).expect("a value");
        let labels = if line.contains('{') { labels.split_once('}').expect("labels").0 } else { "" };
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name);
        let (_, known, ..) = meaning(base).or(meaning(name)).unwrap_or_else(|| panic!("{name} is not described"));
        let mut given: Vec<&str> = labels.split("\",").filter_map(|label| label.split_once('=')).map(|l| l.0).collect();
        given.retain(|label| *label != "le");
        given.sort_unstable();
        let mut known = known.to_vec();
        known.sort_unstable();
        assert_eq!(given, known, "{line}");
    }
}

fn has(text: &str, line: &str) {
    assert!(text.lines().any(|found| found == line), "no `{line}` in:\n{text}");
}

async fn starts_ends_and_what_was_missed_are_measured(world: World) {
    let instance = world.instance();
    let trigger = json!({ "type": "schedule", "interval": "10m", "catch_up": "latest", "catch_up_window": "1h" });
    instance.task(json!({ "trigger": trigger })).await;
    world.advance(600.0);
    instance.live(0).await;
    let asked = instance.task(json!({ "acts": ["fail"], "trigger": { "type": "schedule", "interval": "30d" } })).await;
    let asked = instance.run_now(&asked).await;
    instance.settle(0).await;
    instance.until(asked, |run| run.state == RunState::Failed).await;
    // two hours away: of twelve instants the last runs three minutes late, those beyond the window are missed
    world.advance(2.0 * 3600.0 + 180.0);
    instance.live(0).await;
    let text = instance.page("/metrics").await;
    check_labels(&text);
    has(&text, "reveille_fire_lag_seconds_count 2");
    has(&text, "reveille_fire_lag_seconds_sum 180.0");
    has(&text, r#"reveille_fire_lag_seconds_bucket{le="0.001"} 1"#);
    has(&text, r#"reveille_fire_lag_seconds_bucket{le="60.0"} 1"#);
    has(&text, "reveille_run_queue_seconds_count 3");
    has(&text, r#"reveille_run_seconds_count{executor="test",state="succeeded"} 2"#);
    has(&text, r#"reveille_run_seconds_count{executor="test",state="failed"} 1"#);
    has(&text, r#"reveille_skips_total{reason="missed_window"} 1"#);
    // what a pause has cost is counted when it ends
    let paused = instance.task(json!({ "trigger": { "type": "schedule", "interval": "10m" } })).await;
    instance.change(&paused, TaskChange::Pause { reason: None }).await;
    world.advance(1800.0);
    instance.change(&paused, TaskChange::Resume).await;
    has(&instance.page("/metrics").await, r#"reveille_skips_total{reason="paused"} 1"#);
    has(&text, r#"reveille_queue_runs{state="ready"} 0"#);
    has(&text, "reveille_tasks_late 0");
    let pool = if world.is_postgres() { "engine" } else { "writer" };
    let most = if world.is_postgres() { 2 } else { 1 };
    has(&text, &format!(r#"reveille_pool_connections{{pool="{pool}",state="max"}} {most}"#));
    instance.finish(&world).await;
}

async fn writes_of_a_lost_lease_are_counted(world: World) {
    let instance = world.instance();
    let task = instance.task(json!({ "acts": ["wait"] })).await;
    let run = instance.run_now(&task).await;
    instance.settle(1).await;
    instance.until(run, |run| run.state == RunState::Running).await;
    let stolen = "update queue set lease_token = lease_token + 1000";
    world.execute(stolen, stolen).await;
    instance.beat().await;
    let text = instance.page("/metrics").await;
    has(&text, r#"reveille_writes_fenced_total{write="heartbeat"} 1"#);
    check_labels(&text);
    instance.crash();
}
