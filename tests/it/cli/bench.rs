//! `reveille bench`: what it prints, that what it measured was done right, and that it leaves nothing. Never how fast.

use std::process::Stdio;
use std::time::Duration;

use reveille::base::clock::pause;
use serde_json::Value;
use sqlx::Executor;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::timeout;

use super::Shell;
use crate::support::binary::{TempDir, signal};
use crate::support::postgres::Database;

const PATIENCE: Duration = Duration::from_secs(300);
const STEP_DONE: &str = "p99 until its step is done";
const ON_SQLITE: [&str; 3] = ["sqlite_fire", "sqlite_enqueue", "next_fire"];
const NEIGHBOURS: [&str; 5] =
    ["neighbours.schedule", "neighbours.events", "neighbours.polls", "neighbours.api", "neighbours.notifications"];
/// Work of the hostile tenants that is done while the quiet one is watched beside them.
const HOSTILE: [&str; 12] = [
    "batches of events",
    "imports of empty lines",
    "previews of a dear rule",
    "lists",
    "events whose text a filter has searched with `matches`",
    "polls whose text a condition has searched with `matches`",
    "messages with long Markdown",
    "slow polls of an address",
    "slow steps of runs",
    "streams of events opened",
    "streams of runs opened",
    "polls by a query that took all of their time",
];
/// Figures of the service's own executors and lists, on whichever database there is.
const OF_USERS: [&str; 14] = [
    "agent_1",
    "agent_32",
    "agent_wait_1000",
    "pipeline_fire",
    "pipeline_fire_1000",
    "everything_on.agent_1",
    "everything_on.agent_32",
    "everything_on.pipeline_fire",
    "webhook_fire",
    "list_runs_1m",
    "stats_1m",
    "dashboard_1m",
    "live_tails_200",
    "recall_1m",
];
const ON_POSTGRES: [&str; 19] = [
    "fire",
    "drain",
    "drain_100k",
    "start_local",
    "start_remote",
    "burst_100",
    "burst_1000",
    "burst_10000",
    "lone",
    "rest_1m",
    "herd",
    "create_batch",
    "create_single",
    "instances_2",
    "instances_4",
    "sqlite_fire",
    "sqlite_enqueue",
    "next_fire",
    "events.matched",
];

async fn schemas(database: &Database) -> i64 {
    let left = "select count(*) from pg_namespace where nspname like 'reveille_bench_%'";
    sqlx::query_scalar(left).fetch_one(&mut database.connect().await).await.expect("a number")
}

/// The figure, whole: its value and its limit are numbers, and its ratio is theirs.
fn figure<'a>(report: &'a Value, name: &str) -> &'a Value {
    let figures = report["figures"].as_array().expect("figures");
    let figure =
        figures.iter().find(|figure| figure["name"] == name).unwrap_or_else(|| panic!("no {name}: {report:#}"));
    let number = |field: &str| figure[field].as_f64().unwrap_or_else(|| panic!("{name} has no {field}: {figure:#}"));
    assert!(number("of") > 0.0, "{figure:#}");
    assert!((number("value") / number("limit") - number("ratio")).abs() < 1e-6 * number("ratio").abs(), "{figure:#}");
    for field in ["unit", "what", "against"] {
        assert!(figure[field].as_str().is_some_and(|text| !text.is_empty()), "{name} has no {field}");
    }
    figure
}

/// Greatest and least of its distribution, after a look that it grows.
fn spread(figure: &Value) -> (f64, f64) {
    let quantiles = figure["distribution"]["quantiles"].as_array().expect("a distribution");
    let values: Vec<f64> = quantiles.iter().map(|quantile| quantile[1].as_f64().expect("a number")).collect();
    assert!(values.windows(2).all(|pair| pair[0] <= pair[1]), "{values:?}");
    (values[0], values[values.len() - 1])
}

fn part(figure: &Value, name: &str) -> f64 {
    let parts = figure["parts"].as_array().expect("parts");
    let part = parts.iter().find(|part| part["name"] == name).unwrap_or_else(|| panic!("no {name}: {figure:#}"));
    part["value"].as_f64().expect("a number")
}

/// Each is whole, and all of what it says that it measured was there.
fn check_figures_of_users(report: &Value) {
    for name in OF_USERS {
        figure(report, name);
    }
    // a run has to wait for its requests: it can't be faster than they are
    let (one, many) = (figure(report, "agent_1"), figure(report, "agent_32"));
    assert!(one["ratio"].as_f64() > Some(1.0) && spread(one).0 > 0.0, "{one:#}");
    // the commits are those of the limit: three of them can't take longer than it
    let commit = part(one, "a one-row commit, p50");
    assert!(commit > 0.0 && commit < one["limit"].as_f64().expect("a limit"), "{one:#}");
    assert!(many["of"] == 64 && many["ratio"].as_f64() < Some(1.0), "{many:#}");
    let wait = figure(report, "agent_wait_1000");
    assert_eq!(part(wait, "runs under way"), 50.0, "{wait:#}");
    let (half, last) = (part(wait, "until half of them had"), part(wait, "until the last had asked its model"));
    assert!(half > 0.0 && half <= last, "{wait:#}");
    assert!(part(wait, "memory of the service before") > 1.0, "{wait:#}");
    let (rate, late) = (figure(report, "pipeline_fire"), figure(report, "pipeline_fire_1000"));
    assert_eq!((&rate["of"], &late["of"]), (&Value::from(500), &Value::from(50)));
    for figure in [rate, late] {
        assert!(part(figure, STEP_DONE) > part(figure, "earliest"), "{figure:#}");
    }
    let webhook = figure(report, "webhook_fire");
    assert_eq!(webhook["of"], 50, "each request is timed once");
    assert!(part(webhook, "p99") >= part(webhook, "p50") && part(webhook, "p50") > 0.0, "{webhook:#}");
    // every filter was asked for more than once
    let lists = figure(report, "list_runs_1m");
    assert!(lists["of"].as_u64() >= Some(3 * 16), "{lists:#}");
    let slowest = lists["parts"]
        .as_array()
        .expect("parts")
        .iter()
        .any(|part| part["name"].as_str().is_some_and(|name| name.starts_with("p50 of the slowest filter, `")));
    assert!(slowest, "{lists:#}");
    for of in ["all tenants", "this tenant", "a tenant with a hundredth of the runs"] {
        assert!(part(lists, &format!("the operator's, of {of}, p99")) > 0.0, "{lists:#}");
    }
    assert!(part(lists, "a bare select of as many rows by the index, p99") > 0.0, "{lists:#}");
    // none of them is an answer that was kept
    let stats = figure(report, "stats_1m");
    assert!(stats["of"].as_u64() >= Some(2), "{stats:#}");
    assert!(part(stats, "the operator's, of all tenants, p99") > 0.0, "{stats:#}");
    assert_eq!(part(stats, "tasks of all tenants"), 300.0, "{stats:#}");
    // both readers have opened every page, each more than once
    let pages = figure(report, "dashboard_1m");
    assert!(pages["of"].as_u64() >= Some(36 * 2 * 3), "{pages:#}");
    for page in ["/ui", "/ui/runs", "/ui/runs/{id}", "/ui/runs/{id}, 5,000 entries", "/ui/system"] {
        assert!(part(pages, &format!("`{page}`, p99")) > 0.0, "{page}: {pages:#}");
    }
    assert!(part(pages, "the largest page") > 1.0, "{pages:#}");
    let tails = figure(report, "live_tails_200");
    assert_eq!((&tails["of"], part(tails, "open streams")), (&Value::from(500), 20.0), "{tails:#}");
    let recall = figure(report, "recall_1m");
    assert_eq!(recall["of"], 20, "one of each tenant: {recall:#}");
    for name in ["p50", "a bare full-text query over as many, p99", "of a tenant with 500 facts beside them, p99"] {
        assert!(part(recall, name) > 0.0, "{recall:#}");
    }
}

/// Each kind of hostile work was done, and the wait for a processor is told of threads that the service has.
fn check_neighbours(report: &Value, threads: &[&str]) {
    for name in NEIGHBOURS {
        figure(report, name);
    }
    let plain = |name: &str| {
        let figures = report["figures"].as_array().expect("figures");
        let figure = figures.iter().find(|figure| figure["name"] == name);
        figure.unwrap_or_else(|| panic!("no {name}: {report:#}"))
    };
    let hostile = plain("neighbours.hostile");
    assert!(hostile["value"].as_f64() > Some(0.0) && hostile["limit"].is_null(), "{hostile:#}");
    assert_eq!((&hostile["reach"], &hostile["met"]), (&Value::from("each kind is done"), &Value::Bool(true)));
    for kind in HOSTILE {
        assert!(part(hostile, kind) > 0.0, "{kind}: {hostile:#}");
    }
    assert!(part(hostile, "streams that were refused") >= 0.0 && part(hostile, "calls that were refused") >= 0.0);
    if !std::path::Path::new("/proc/self/schedstat").exists() {
        return;
    }
    let processor = plain("neighbours.processor");
    assert_eq!(part(processor, "beside, all: waited"), processor["value"].as_f64().expect("a value"));
    for phase in ["alone", "beside"] {
        let value = |of: &str| part(processor, &format!("{phase}, {of}"));
        assert!(value("all: processor time") > 0.0 && value("all: waited") >= 0.0, "{processor:#}");
        assert!(value("all: wait of each turn, mean") >= 0.0, "{processor:#}");
        assert!(threads.iter().all(|name| value(&format!("threads `{name}`: processor time")) > 0.0), "{processor:#}");
    }
    let clients = part(processor, "beside, the hostile tenants' own programs: processor time");
    assert!(clients > 0.0, "{processor:#}");
}

#[tokio::test]
async fn every_figure_is_measured_on_postgres_and_nothing_is_left_there() {
    let database = Database::empty().await;
    let dir = TempDir::new();
    let report = Shell::in_dir(&dir).json(&["bench", "--quick", "--database-url", &database.url]).await;
    for name in ON_POSTGRES {
        figure(&report, name);
    }
    check_figures_of_users(&report);
    check_neighbours(&report, &["tokio-rt-worker", "requests"]);
    let limits: Vec<&str> = report["limits"].as_array().unwrap().iter().filter_map(|l| l["name"].as_str()).collect();
    for name in [
        "commits_1",
        "commits_16",
        "insert_100",
        "update_100",
        "bare_fire",
        "bare_drain",
        "bare_notify",
        "bare_agent_1",
        "bare_agent_32",
        "bare_pipeline_fire",
        "timer_burst_1000",
        "timer_alone",
        "sqlite_insert_100",
        "sqlite_commits",
    ] {
        assert!(limits.contains(&name), "{name} is not among {limits:?}");
    }
    assert_eq!((&report["quick"], &report["machine"]["fsync"]), (&Value::Bool(true), &Value::from("on")));
    // each start of a burst was timed, none was thought to be there before its time by more than clocks differ
    let burst = figure(&report, "burst_10000");
    assert_eq!(burst["of"], 500);
    assert!(spread(burst).1 >= part(burst, "p99") && part(burst, "p99") >= part(burst, "p50"), "{burst:#}");
    // its pipelines are begun before their step is done
    assert!(part(burst, STEP_DONE) > part(burst, "earliest"), "{burst:#}");
    for name in ["instances_2", "instances_4"] {
        let shared = figure(&report, name);
        assert_eq!((part(shared, "lost"), part(shared, "doubled")), (0.0, 0.0), "{shared:#}");
    }
    let series = figure(&report, "drain_100k")["series"].as_array().expect("a series").clone();
    assert_eq!(series.iter().map(|point| point["size"].as_u64().unwrap()).collect::<Vec<_>>(), [250, 500, 2500]);
    assert!(part(figure(&report, "next_fire"), "memory of a task that is claimed ahead") <= 256.0);
    assert!(part(figure(&report, "start_remote"), "asked of an instance that is being stopped, p50") > 0.0);
    let events = figure(&report, "events.start.p50");
    assert_eq!(
        (&events["against"], &events["reach"]),
        (&Value::from("bare notify"), &Value::from("≤ 1.5 × the limit")),
        "{events:#}"
    );
    assert_eq!(schemas(&database).await, 0, "schemas are left");
}

#[tokio::test]
async fn bench_without_postgres_measures_sqlite_and_writes_a_page() {
    let dir = TempDir::new();
    let shell = Shell::in_dir(&dir).with("TMPDIR", dir.path().display().to_string());
    let of_users = OF_USERS.map(|name| name.split_once('.').map_or(name, |(whole, _)| whole));
    let names = [&["bench", "--quick", "neighbours"], &ON_SQLITE[..], &of_users[..]].concat();
    let report = shell.json(&names).await;
    check_figures_of_users(&report);
    check_neighbours(&report, &["tokio-rt-worker", "requests", "sqlite-writer", "tenant-reader"]);
    for name in ON_SQLITE {
        figure(&report, name);
    }
    let left = || std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect::<Vec<_>>();
    assert_eq!(left(), Vec::<std::ffi::OsString>::new(), "files are left");

    std::fs::write(dir.path().join("run.json"), report.to_string()).unwrap();
    let shown = shell.ok(&["bench", "--from", "run.json", "--markdown", "page.md", "--plots", "plots"]).await;
    let page = std::fs::read_to_string(dir.path().join("page.md")).expect("a page");
    for name in ON_SQLITE {
        assert!(shown.contains(name) && page.contains(&format!("| `{name}` |")), "{shown}\n{page}");
    }
    let hostile =
        page.lines().find(|line| line.starts_with("- `neighbours.hostile`: batches of events ")).expect(&page);
    assert!(hostile.contains(", polls by a query that took all of their time "), "{hostile}");
    assert!(
        page.contains("Not to be judged by") && page.contains("are measured with the default configuration"),
        "{page}"
    );
    assert!(dir.path().join("plots").is_dir());
    let refused = shell.refused(&["bench", "--from", "page.md"]).await;
    assert!(refused.contains("is not what `reveille bench --json` prints"), "{refused}");
}

#[tokio::test]
async fn database_that_does_not_wait_for_its_disk_is_not_measured() {
    let database = Database::empty().await;
    let off = format!("alter database {} set synchronous_commit = off", database.name);
    database.connect().await.execute(sqlx::AssertSqlSafe(off)).await.expect("set it off");
    let dir = TempDir::new();
    let refused = Shell::in_dir(&dir).refused(&["bench", "fire", "--quick", "--database-url", &database.url]).await;
    assert!(refused.contains("synchronous_commit = off") && refused.contains("hint:"), "{refused}");
    assert_eq!(schemas(&database).await, 0);
}

#[tokio::test]
async fn interruption_removes_what_was_made() {
    let database = Database::empty().await;
    let dir = TempDir::new();
    let shell = Shell::in_dir(&dir).with("TMPDIR", dir.path().display().to_string());
    let mut command = shell.command(&["bench", "fire", "--fires", "500000", "--database-url", &database.url]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("run the binary");
    let mut told = BufReader::new(child.stderr.take().expect("its stderr")).lines();
    for expected in [
        "the quotas of tenants are raised but where the configuration is the default one",
        "fire: 500000 tasks, round 1",
    ] {
        let line = timeout(PATIENCE, told.next_line()).await.expect("a word").expect("a line");
        assert_eq!(line.as_deref(), Some(expected));
    }
    while schemas(&database).await == 0 {
        pause(Duration::from_millis(20)).await;
    }
    signal("INT", child.id().expect("a running process")).await;
    let status = timeout(PATIENCE, child.wait()).await.expect("it ends").expect("its status");
    assert_eq!(status.code(), Some(1));
    let last = told.next_line().await.expect("a line");
    assert_eq!(last.as_deref(), Some("error: stopped; everything that was made is removed"));
    assert_eq!(schemas(&database).await, 0, "a schema is left");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "files are left");
}
