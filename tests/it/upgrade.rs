//! A database of every released schema, with what a service of that time had in it, opened by this one: it is brought
//! up to date, everything in it can be read, what was going on goes on, and what is due fires.
//!
//! `upgrade/NNNN.sql` adds what came with schema N: a database of version N is filled with all files up to N. They are
//! written once for both databases: `id(7)`, `bytes(0a)`, `shard(ann)` and `token_hash()` become what each understands.
//! A database of a schema that has renamed columns of theirs was filled before, and upgraded.

mod awaited_credentials;
mod counted_rows;
mod kept_bytes;
mod renames;
mod run_origins;
mod run_rows;
mod stored_terms;
mod zones_set_aside;

use std::borrow::Cow;
use std::path::Path;
use std::str::FromStr;

use regex::{Captures, Regex};
use reveille::base::clock::Clock;
use reveille::base::id::{Scope, Tenant};
use reveille::base::token::{TokenKind, TokenText};
use reveille::domain::run::RunState;
use reveille::store::{OpenError, Settings, Store, TaskFilter, event_shard};
use serde_json::{Value, json};
use sqlx::migrate::Migrator;
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection, SqliteConnection};
use uuid::Uuid;

use crate::conformance::world::STORED_BYTES;
use crate::support::app::Instance;
use crate::support::world::{ADMIN, World, at};

/// A migrator that knows nothing newer than this version.
fn up_to(all: Migrator, version: i64) -> Migrator {
    Migrator::with_migrations(all.iter().filter(|migration| migration.version <= version).cloned().collect())
}

fn versions() -> Vec<i64> {
    sqlx_macros::migrate!("migrations/sqlite").iter().map(|migration| migration.version).collect()
}

/// The rows that a service of this version had stored, in the words of a database.
fn rows(version: i64, postgres: bool, token: &TokenText) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/upgrade");
    let files = (1..=version).filter_map(|n| std::fs::read_to_string(folder.join(format!("{n:04}.sql"))).ok());
    let text: String = files.collect();
    assert!(!text.is_empty());
    in_words(&text, postgres, token)
}

/// Statements that are written for both databases, in the words of one.
fn in_words(text: &str, postgres: bool, token: &TokenText) -> String {
    let bytes = |hex: &str| if postgres { format!("'\\x{hex}'::bytea") } else { format!("x'{hex}'") };
    let words = Regex::new(r"\b(id|bytes|shard|token_hash)\(([0-9a-z]*)\)").unwrap();
    let written = |found: &Captures| match (&found[1], postgres) {
        ("id", true) => format!("'{}'::uuid", id(&found[2])),
        ("id", false) => format!("x'{}'", id(&found[2]).simple()),
        ("bytes", _) => bytes(&found[2]),
        ("shard", _) => event_shard(&found[2]).to_string(),
        _ => bytes(&hex::encode(token.hash().as_bytes())),
    };
    match words.replace_all(text, written) {
        Cow::Owned(text) => text,
        Cow::Borrowed(_) => panic!("there are no ids in {text}"),
    }
}

fn id(digits: &str) -> Uuid {
    Uuid::parse_str(&format!("{digits:0>32}")).expect("an id")
}

/// The first schema in which columns have other names than in the files.
const RENAMED: i64 = 31;

/// A world whose database was left by a service of this version.
async fn left_by(version: i64, postgres: bool, token: &TokenText) -> World {
    let filled = version.min(RENAMED - 1);
    let rows = AssertSqlSafe(rows(filled, postgres, token));
    if postgres {
        let world = World::on_empty_postgres().await;
        let mut connection = PgConnection::connect(&world.url()).await.expect("Postgres");
        up_to(sqlx_macros::migrate!("migrations/postgres"), filled).run(&mut connection).await.expect("migrated");
        sqlx::raw_sql("set reveille.tenant = '*'").execute(&mut connection).await.expect("a setting");
        sqlx::raw_sql(rows).execute(&mut connection).await.unwrap_or_else(|error| panic!("{version}: {error}"));
        up_to(sqlx_macros::migrate!("migrations/postgres"), version).run(&mut connection).await.expect("migrated");
        connection.close().await.expect("closed");
        return world;
    }
    let world = World::on_empty_sqlite();
    let options = SqliteConnectOptions::from_str(&world.url()).expect("a path").create_if_missing(true);
    let mut connection = SqliteConnection::connect_with(&options).await.expect("SQLite");
    up_to(sqlx_macros::migrate!("migrations/sqlite"), filled).run(&mut connection).await.expect("migrated");
    sqlx::raw_sql(rows).execute(&mut connection).await.unwrap_or_else(|error| panic!("{version}: {error}"));
    up_to(sqlx_macros::migrate!("migrations/sqlite"), version).run(&mut connection).await.expect("migrated");
    connection.close().await.expect("closed");
    world
}

async fn items(instance: &Instance, path: &str) -> Vec<Value> {
    let (status, answer) = instance.ask("GET", path, ADMIN, None).await;
    assert_eq!(status, 200, "{path}: {answer}");
    answer["items"].as_array().expect("a list").clone()
}

async fn state(instance: &Instance, run: &str) -> RunState {
    instance.run(id(run)).await.state
}

async fn database_of_every_version_is_taken_over(postgres: bool) {
    let all = versions();
    assert!(all.len() >= 9, "{all:?}");
    for version in all {
        let token = TokenText::new(TokenKind::Tenant);
        let world = left_by(version, postgres, &token).await;
        let instance = world.instance();
        let since = |first: i64| usize::from(version >= first);

        // everything that was stored is read
        let tasks = items(&instance, "/v1/tasks?limit=200").await;
        assert_eq!(tasks.len(), 7 + 2 * since(2) + since(3) + since(10), "{version}");
        let keys: Vec<&Value> = tasks.iter().map(|task| &task["key"]).filter(|key| !key.is_null()).collect();
        assert_eq!(keys.len(), since(10), "{version}: {keys:?}");
        for task in &tasks {
            let path = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
            assert_eq!(instance.ask("GET", &path, ADMIN, None).await.0, 200, "{version}: {path}");
        }
        let mut states: Vec<String> = items(&instance, "/v1/runs?limit=200")
            .await
            .iter()
            .map(|run| run["state"].as_str().unwrap().to_owned())
            .collect();
        states.sort();
        let mut expected =
            vec!["cancelled", "expired", "failed", "queued", "queued", "running", "skipped", "succeeded"];
        expected.extend(std::iter::repeat_n("succeeded", since(2)));
        expected.extend(std::iter::repeat_n("pending_approval", since(3)));
        expected.sort_unstable();
        assert_eq!(states, expected, "{version}");
        let transcript = format!("/v1/runs/{}/transcript", id("101"));
        let (status, transcript) = instance.ask("GET", &transcript, ADMIN, None).await;
        assert_eq!(status, 200, "{version}: {transcript}");
        assert!(transcript.to_string().contains("It is late."), "{version}: {transcript}");
        let deliveries = items(&instance, "/v1/deliveries?limit=200").await;
        assert_eq!(deliveries.len(), 3 + since(5) + since(6) + since(7), "{version}");
        assert_eq!(items(&instance, "/v1/approvals?limit=200").await.len(), 2 * since(3), "{version}");
        assert_eq!(items(&instance, "/v1/audit?limit=200").await.len(), since(3), "{version}");
        assert_eq!(items(&instance, "/v1/dead-letters?limit=200").await.len(), since(2), "{version}");
        assert_eq!(items(&instance, "/v1/credentials?tenant_id=ann").await.len(), since(4), "{version}");
        let (status, recipient) = instance.ask("GET", "/v1/recipients/ann", ADMIN, None).await;
        assert_eq!((status, &recipient["addresses"]["email"]), (200, &json!("ann@example.org")), "{version}");
        // a token that was given out then lets in now, and shows what is its tenant's
        let (status, seen) = instance.ask("GET", "/v1/tasks?limit=200", token.expose(), None).await;
        assert_eq!(status, 200, "{version}: {seen}");
        assert_eq!(seen["items"].as_array().unwrap().len(), tasks.len() - 1, "{version}");

        // what was going on goes on: what waits is started, what a dead process had is taken over, and the next in line
        if version >= 3 {
            // a link's vote and a vote of the same tenant's token become one person's
            let (_, asked) = instance.ask("GET", &format!("/v1/approvals/{}", id("501")), ADMIN, None).await;
            let agreed = if version < 28 { 1 } else { 2 };
            assert_eq!(
                json!([asked["votes"].as_array().map(Vec::len), asked["agreed"]]),
                json!([2, agreed]),
                "{version}"
            );
            let decision = json!({ "decision": "approve", "digest": "d1" });
            let place = format!("/v1/approvals/{}/decision", id("501"));
            let (status, answer) = instance.ask("POST", &place, ADMIN, Some(decision)).await;
            assert_eq!((status, &answer["status"]), (200, &json!("approved")), "{version}: {answer}");
        }
        for _ in 0..3 {
            instance.live(0).await;
            world.advance(60.0);
        }
        for run in ["106", "107", "108"] {
            assert_eq!(state(&instance, run).await, RunState::Succeeded, "{version}: {run}");
        }
        if version >= 3 {
            assert_eq!(state(&instance, "121").await, RunState::Succeeded, "{version}");
        }

        // what is due fires, each kind of task by its own rule
        world.advance_to("08:30");
        if version >= 2 {
            instance.poll().await;
            instance.publish(&[json!({ "id": "order-2" })]).await;
            instance.match_events().await;
        }
        instance.live(0).await;
        let due = if version >= 2 { vec!["1", "2", "3", "4", "11", "12"] } else { vec!["1", "2", "3", "4"] };
        for task in due {
            let runs = items(&instance, &format!("/v1/runs?task_id={}&since=2027-03-01T08:20:00Z", id(task))).await;
            let ended: Vec<&Value> = runs.iter().map(|run| &run["state"]).collect();
            assert_eq!(ended, [&json!("succeeded")], "{version}: {task}");
        }
        let (_, once) = instance.ask("GET", &format!("/v1/tasks/{}", id("3")), ADMIN, None).await;
        assert_eq!((&once["status"], &once["next_fire_at"]), (&json!("completed"), &Value::Null), "{version}");
        let (_, hourly) = instance.ask("GET", &format!("/v1/tasks/{}", id("1")), ADMIN, None).await;
        assert_eq!(hourly["next_fire_at"], "2027-03-01T09:30:00Z", "{version}");
        assert_eq!(hourly["metadata"], json!({ "team": "home" }), "{version}");

        // a task of that time is changed like any other
        let place = format!("/v1/tasks/{}/resume", id("5"));
        let (status, resumed) = instance.ask("POST", &place, ADMIN, Some(json!({}))).await;
        assert_eq!((status, &resumed["status"]), (200, &json!("active")), "{version}: {resumed}");
        instance.finish(&world).await;

        // and the next start finds it as it is
        let again = world.instance();
        assert_eq!(items(&again, "/v1/tasks?limit=200").await.len(), tasks.len(), "{version}");
        again.finish(&world).await;
    }
}

#[tokio::test]
async fn database_of_every_version_is_taken_over_on_sqlite() {
    database_of_every_version_is_taken_over(false).await;
}

#[tokio::test]
async fn database_of_every_version_is_taken_over_on_postgres() {
    database_of_every_version_is_taken_over(true).await;
}

/// A pipeline of the time when its tool steps said `arguments`.
async fn stored_tool_step_says_args_after_the_upgrade(postgres: bool) {
    const BEFORE: i64 = 17;
    let older = versions().into_iter().filter(|version| *version < BEFORE).max().expect("an older version");
    let world = left_by(older, postgres, &TokenText::new(TokenKind::Tenant)).await;
    let call = json!({ "name": "current_time", "arguments": { "timezone": "Asia/Tokyo", "arguments": [1] } });
    let steps = json!([
        { "name": "first", "tool": call },
        { "name": "each", "for_each": { "items": "[1]", "do": { "tool": call } } },
        { "name": "bare", "tool": { "name": "current_time" } },
        { "name": "last", "map": { "arguments": "1" } },
    ]);
    let spec = json!({
        "trigger": { "type": "schedule", "interval": "1h" }, "executor": "pipeline",
        "action": { "instruction": "", "config": { "steps": steps } }, "max_runs": null, "timeout_seconds": 600,
        "retry": { "max_attempts": 1, "backoff_seconds": 0 }, "pause_after_failures": null, "metadata": {},
    });
    let row = |id: &str| {
        format!(
            "insert into tasks (id, tenant_id, name, trigger_type, spec, status, epoch, version, anchor_at, active_since,
                                zone_database, created_at, updated_at)
             values ({id}, 'ann', 'calls', 'schedule', '{spec}', 'paused', 1, 1, '2027-02-01T00:30:00+00:00',
                     '2027-02-01T00:30:00+00:00', '2026a', '2027-02-01T00:30:00+00:00', '2027-02-01T00:30:00+00:00');
             insert into due (task_id, kind, epoch, fired, run_count) values ({id}, 'schedule', 1, 0, 0);"
        )
    };
    if postgres {
        let mut connection = PgConnection::connect(&world.url()).await.expect("Postgres");
        sqlx::raw_sql("set reveille.tenant = '*'").execute(&mut connection).await.expect("a setting");
        let row = row(&format!("'{}'::uuid", id("901")));
        sqlx::raw_sql(AssertSqlSafe(row)).execute(&mut connection).await.expect("a task");
        connection.close().await.expect("closed");
    } else {
        let options = SqliteConnectOptions::from_str(&world.url()).expect("a path");
        let mut connection = SqliteConnection::connect_with(&options).await.expect("SQLite");
        let row = row(&format!("x'{}'", id("901").simple()));
        sqlx::raw_sql(AssertSqlSafe(row)).execute(&mut connection).await.expect("a task");
        connection.close().await.expect("closed");
    }
    let instance = world.instance();
    let (status, task) = instance.ask("GET", &format!("/v1/tasks/{}", id("901")), ADMIN, None).await;
    assert_eq!(status, 200, "{task}");
    let call = json!({ "name": "current_time", "args": { "timezone": "Asia/Tokyo", "arguments": [1] } });
    let expected = json!([
        { "name": "first", "tool": call },
        { "name": "each", "for_each": { "items": "[1]", "do": { "tool": call } } },
        { "name": "bare", "tool": { "name": "current_time" } },
        { "name": "last", "map": { "arguments": "1" } },
    ]);
    assert_eq!(task["action"]["config"]["steps"], expected);
    // what others left is not this test's
    instance.crash();
}

#[tokio::test]
async fn stored_tool_step_says_args_after_the_upgrade_on_sqlite() {
    stored_tool_step_says_args_after_the_upgrade(false).await;
}

#[tokio::test]
async fn stored_tool_step_says_args_after_the_upgrade_on_postgres() {
    stored_tool_step_says_args_after_the_upgrade(true).await;
}

/// Deliveries of before say what they are about by their keys, and notices about credentials by their subjects.
async fn older_deliveries_say_what_they_are_about_after_the_upgrade(postgres: bool) {
    const BEFORE: i64 = 30;
    let older = versions().into_iter().filter(|version| *version < BEFORE).max().expect("an older version");
    let world = left_by(older, postgres, &TokenText::new(TokenKind::Tenant)).await;
    let (task, credential, gone) = (id("1"), id("701"), id("999"));
    let of_task = |credential: &str, issue: &str, task_id: Uuid| json!({ "type": "credential", "credential": credential, "issue": issue, "task_id": task_id });
    let cases = [
        ("ask", format!("batch:{task}:ask"), None, json!({ "type": "questions", "batch_id": task })),
        ("reminder", format!("batch:{task}:reminder:2"), None, json!({ "type": "questions", "batch_id": task })),
        (
            "digest",
            "digest:sms:2027-03-02T07:00:00.000Z".to_owned(),
            None,
            json!({ "type": "digest", "due_at": "2027-03-02T07:00:00Z" }),
        ),
        ("code", format!("code:sms:{task}"), None, json!({ "type": "code", "channel": "sms", "id": task })),
        (
            "notice",
            format!("notice:poll_failing:{task}:7"),
            Some("Failing: mail"),
            json!({ "type": "notice", "notice": "poll_failing", "task_id": task }),
        ),
        (
            "notice",
            format!("notice:credential:{task}:7"),
            Some("Please connect google"),
            of_task("google", "missing", task),
        ),
        (
            "notice",
            format!("notice:credential:{task}:8"),
            Some("Please connect shop/work again"),
            of_task("shop/work", "needs_consent", task),
        ),
        (
            "notice",
            format!("notice:credential:{task}:9"),
            Some("Bitte verbinden Sie shop noch einmal"),
            of_task("shop", "needs_consent", task),
        ),
        (
            "notice",
            format!("notice:credential:{gone}:9"),
            Some("shop/work wird nicht angenommen"),
            of_task("shop/work", "refused", gone),
        ),
        ("notice", format!("notice:credential:{gone}:1"), Some("shop is refused"), of_task("shop", "refused", gone)),
        (
            "notice",
            format!("notice:credential:{credential}:7"),
            Some("Please connect shop/work again"),
            json!({ "type": "credential", "credential": "shop/work", "issue": "needs_consent", "credential_id": credential }),
        ),
        (
            "message",
            "notice:credential:google/work:7".to_owned(),
            Some("Bitte verbinden Sie google/work"),
            json!({ "type": "credential", "credential": "google/work", "issue": "missing" }),
        ),
        // whatever else there is says nothing
        ("notice", format!("notice:credential:{task}:6"), Some("It is refused by all"), Value::Null),
        ("notice", format!("notice:unheard_of:{task}:7"), Some("x"), Value::Null),
        ("test", format!("notice:test:{task}:1"), Some("x"), Value::Null),
        ("ask", "batch:odd:ask".to_owned(), None, Value::Null),
        ("result", format!("run:{task}:result"), None, Value::Null),
        ("message", format!("call:{task}:3:call_9"), Some("Please connect google"), Value::Null),
        ("message", format!("step:{task}:batch:0"), Some("x"), Value::Null),
    ];
    let row = |(n, (kind, key, subject, _)): (usize, &(&str, String, Option<&str>, Value))| {
        let id = id(&format!("{}", 800 + n));
        let id = if postgres { format!("'{id}'::uuid") } else { format!("x'{}'", id.simple()) };
        let subject = subject.map_or("null".to_owned(), |subject| format!("'{subject}'"));
        format!(
            "({id}, 'upgraded', 'upgraded', 'email', '{key}', '{kind}', {subject}, '[]', 'failed',
              '2027-03-01T03:00:00+00:00', 'low')"
        )
    };
    let rows = format!(
        "insert into deliveries (id, tenant_id, recipient, channel, dedupe_key, kind, subject, fallback, state,
                                 created_at, urgency) values {}",
        cases.iter().enumerate().map(row).collect::<Vec<_>>().join(", ")
    );
    world.execute(&rows, &rows).await;
    let unfit = |path: &str, task: &str| {
        let id = id(task);
        let id = if postgres { format!("'{id}'") } else { format!("x'{}'", id.simple()) };
        format!("update tasks set status = 'disabled', status_reason = '{path}: is too long' where id = {id}")
    };
    for (path, task) in [("/action/config", "1"), ("/trigger/cron", "2")] {
        world.execute(&unfit(path, task), &unfit(path, task)).await;
    }
    let instance = world.instance();
    assert_eq!(world.number(OF_ACTIONS).await, 1);
    let deliveries = instance.deliveries().await.into_iter().filter(|delivery| &*delivery.tenant_id == "upgraded");
    let about = deliveries.map(|delivery| serde_json::to_value(delivery.subject_ref).expect("JSON"));
    let expected: Vec<Value> = cases.iter().map(|(.., expected)| expected.clone()).collect();
    assert_eq!(about.collect::<Vec<_>>(), expected);
    // what others left is not this test's
    instance.crash();
}

/// Tasks that are disabled for their action.
const OF_ACTIONS: &str = "select count(*) from tasks where faulty_part = 'action'";

#[tokio::test]
async fn older_deliveries_say_what_they_are_about_after_the_upgrade_on_sqlite() {
    older_deliveries_say_what_they_are_about_after_the_upgrade(false).await;
}

#[tokio::test]
async fn older_deliveries_say_what_they_are_about_after_the_upgrade_on_postgres() {
    older_deliveries_say_what_they_are_about_after_the_upgrade(true).await;
}

/// Rows from before the quota of stored bytes are counted: by the upgrade itself on SQLite, a little at a time on
/// Postgres.
async fn rows_of_before_are_counted_after_the_upgrade(postgres: bool) {
    const COUNTED_SINCE: i64 = 24;
    let older = versions().into_iter().filter(|version| *version < COUNTED_SINCE).max().expect("an older version");
    let world = left_by(older, postgres, &TokenText::new(TokenKind::Tenant)).await;
    let instance = world.instance();
    let uncounted = async || world.number(UNCOUNTED).await;
    assert_eq!(uncounted().await > 0, postgres);
    for _ in 0..20 {
        let counter = &instance.engine().byte_counter;
        instance.tick(counter).await.expect("a tick");
        assert_eq!(world.number(STORED_BYTES).await, 0, "tenants whose number is not what is counted");
    }
    assert_eq!(uncounted().await, 0);
    assert_eq!(world.number("select count(*) from stored_byte_scans").await, 0);
    let ann = world.number("select stored_bytes from tenant_usage where tenant_id = 'ann'").await;
    let bob = world.number("select stored_bytes from tenant_usage where tenant_id = 'bob'").await;
    assert!(ann > bob && bob > 100, "{ann} and {bob}");
    instance.crash();
}

/// Rows that hold something and count nothing.
const UNCOUNTED: &str = "
    select (select count(*) from tasks where stored_bytes = 0)
         + (select count(*) from runs where stored_bytes = 0 and (input is not null or cause is not null
                                                                  or output is not null or error is not null))
         + (select count(*) from turns where stored_bytes = 0)
         + (select count(*) from events where stored_bytes = 0)
         + (select count(*) from window_events where stored_bytes = 0 and body is not null)
         + (select count(*) from dead_letters where stored_bytes = 0)
         + (select count(*) from deliveries where stored_bytes = 0 and body is not null)
         + (select count(*) from credentials where stored_bytes = 0)
         + (select count(*) from task_state where stored_bytes = 0)
         + (select count(*) from approvals where stored_bytes = 0)";

#[tokio::test]
async fn rows_of_before_are_counted_after_the_upgrade_on_sqlite() {
    rows_of_before_are_counted_after_the_upgrade(false).await;
}

#[tokio::test]
async fn rows_of_before_are_counted_after_the_upgrade_on_postgres() {
    rows_of_before_are_counted_after_the_upgrade(true).await;
}

async fn first_start_makes_everything_that_is_needed(world: World) {
    let instance = world.instance();
    assert_eq!(items(&instance, "/v1/tasks").await, Vec::<Value>::new());
    let task = instance.task(json!({ "trigger": { "type": "schedule", "interval": "1m" } })).await;
    world.advance_to("08:01");
    instance.live(0).await;
    assert_eq!(instance.lines(&task).await, ["08:01 succeeded"]);
    assert_eq!(world.number("select count(*) from _sqlx_migrations").await as usize, versions().len());
    instance.finish(&world).await;
}

#[tokio::test]
async fn first_start_on_an_empty_directory_makes_everything_that_is_needed() {
    first_start_makes_everything_that_is_needed(World::on_empty_sqlite()).await;
}

#[tokio::test]
async fn first_start_on_an_empty_postgres_makes_everything_that_is_needed() {
    first_start_makes_everything_that_is_needed(World::on_empty_postgres().await).await;
}

/// A later release has been at this database: it has a migration that we do not know.
const LATER: &str = "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
                     values (999999, 'of a later release', true, ";

#[tokio::test]
async fn older_instance_goes_on_beside_a_newer_one_on_postgres() {
    let world = World::on_empty_postgres().await;
    let first = world.instance();
    let task = first.task(json!({ "trigger": { "type": "schedule", "interval": "1m" } })).await;
    first.finish(&world).await;
    world.execute("", &format!("{LATER} '', 0)")).await;
    let older = world.instance();
    world.advance_to("08:01");
    older.live(0).await;
    assert_eq!(older.lines(&task).await, ["08:01 succeeded"]);
    older.finish(&world).await;
}

#[tokio::test]
async fn sqlite_file_of_a_later_release_is_refused_and_left_as_it_is() {
    let world = World::on_empty_sqlite();
    let open = async || Store::open(&Settings::default(), world.dir(), Clock::manual(at("08:00")), |_| {}).await;
    open().await.expect("a store").close().await;
    world.execute(&format!("{LATER} x'', 0)"), "").await;
    let refused = open().await.err().expect("a refusal");
    assert!(matches!(&refused, OpenError::Migration(why) if why.contains("999999")), "{refused:?}");
    world.execute("delete from _sqlx_migrations where version = 999999", "").await;
    let store = open().await.expect("it is as it was");
    let ann = Scope::Only(Tenant::new("ann").unwrap());
    assert_eq!(store.list_tasks(&ann, &TaskFilter { limit: 9, ..TaskFilter::default() }).await.unwrap(), []);
}

/// Of each released schema the beginning of its checksum, SHA-384: on SQLite, and on Postgres.
const RELEASED: [(i64, &str, &str); 8] = [
    (1, "7384ecf420514372", "0b80719ac23f036d"),
    (2, "4079c642b475ebc4", "e197711dde8156b6"),
    (3, "457c2fd09daa112b", "3455b664b1d2a8a8"),
    (4, "a047611ffb562644", "c78568cc435d1589"),
    (5, "38a3588cb3c2f77c", "47688d2431453545"),
    (6, "63af8a3d03c4c754", "9089186977661663"),
    (7, "46debff74205ac9f", "46debff74205ac9f"),
    (9, "5b8d82f0760e6a5e", "5b8d82f0760e6a5e"),
];

#[test]
fn schema_that_was_released_is_never_changed() {
    // an instance whose database was brought up to date by another text would not start any more
    let sums = |migrator: Migrator| -> Vec<(i64, String)> {
        migrator.iter().map(|one| (one.version, hex::encode(&one.checksum[..8]))).collect()
    };
    let (sqlite, postgres) =
        (sums(sqlx_macros::migrate!("migrations/sqlite")), sums(sqlx_macros::migrate!("migrations/postgres")));
    for (version, on_sqlite, on_postgres) in RELEASED {
        assert!(sqlite.contains(&(version, on_sqlite.to_owned())), "{version} on SQLite");
        assert!(postgres.contains(&(version, on_postgres.to_owned())), "{version} on Postgres");
    }
}
