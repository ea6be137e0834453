//! Opening the store, and a database that is late, refuses, lies about durability, or goes away.

use std::path::Path;
use std::sync::Mutex;
use std::time::Duration;

use chrono::TimeDelta;
use futures::future::join_all;
use reveille::base::clock::{self, Clock};
use reveille::base::id::{Scope, new_id};
use reveille::base::secret::SecretUrl;
use reveille::store::{Idempotency, OpenError, Settings, Store, StoreError, StoredAnswer, Topic};
use serde_json::json;
use sqlx::postgres::PgListener;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::timeout;

use super::world::{LEASE, START, StoreHarness, WORKER, leases, never_waits, new_task, open_postgres};
use crate::support::binary::TempDir;
use crate::support::gate::Gate;
use crate::support::postgres::Database;
use crate::support::servers;
use crate::support::world::claim_ready;

on_both!(store_answers_and_says_what_it_stands_on, databases_clock_is_measured,);

async fn store_answers_and_says_what_it_stands_on(world: &StoreHarness) {
    world.store.ping().await.unwrap();
    let facts = world.store.facts().await.unwrap();
    assert_eq!(
        (facts.kind, facts.above_row_security),
        (if world.is_postgres() { "postgres" } else { "sqlite" }, false)
    );
    let version: Vec<u32> = facts.version.split(['.', ' ']).map_while(|part| part.parse().ok()).collect();
    assert!(version >= if world.is_postgres() { vec![13] } else { vec![3, 51, 3] }, "{}", facts.version);
    // one that is closed answers that it is away
    world.store.close().await;
    let away = world.store.ping().await;
    assert!(matches!(away, Err(StoreError::Unavailable(_))), "{away:?}");
}

async fn databases_clock_is_measured(world: &StoreHarness) {
    let before = clock::machine_now();
    let measured = world.store.measure_clock().await.unwrap();
    assert!(
        measured.database_now >= before - TimeDelta::milliseconds(1)
            && measured.database_now <= clock::machine_now() + TimeDelta::milliseconds(1)
    );
    assert_eq!(world.store.clock().now(), START, "a manual clock stays as it is");
}

#[tokio::test]
async fn run_that_is_asked_for_is_told_of_by_its_own_commit() {
    const RUNS: usize = 20;
    let world = StoreHarness::postgres().await;
    let task = world.task(json!({ "interval": "1h", "overlap": "allow" })).await;
    let mut listener = PgListener::connect(&world.url()).await.unwrap();
    listener.listen("reveille_public").await.unwrap();
    let other = world.other_instance().await;
    let heard_by_others = other.listen(Topic::Queue);
    for _ in 0..RUNS {
        world.run_now(&task).await;
    }
    // gathered and sent by a statement of its own, most of them would be one
    for _ in 0..RUNS {
        timeout(Duration::from_secs(10), listener.recv()).await.expect("a notification for each").unwrap();
    }
    assert!(heard_by_others.has_changed().unwrap());
}

fn sqlite_settings(url: &str) -> Settings {
    Settings { url: SecretUrl::new(url), ..Settings::default() }
}

async fn open_sqlite(dir: &Path) -> Result<Store, OpenError> {
    Store::open(&Settings::default(), dir, Clock::manual(START), never_waits).await
}

#[tokio::test]
async fn second_one_on_the_same_sqlite_file_is_refused_and_a_later_one_finds_everything() {
    let dir = TempDir::new();
    let store = open_sqlite(dir.path()).await.unwrap();
    let refused = open_sqlite(dir.path()).await.err().unwrap();
    assert!(matches!(refused, OpenError::InUse(_)), "{refused:?}");
    let told = refused.to_string();
    assert!(told.contains("another process uses") && told.contains("reveille.db") && told.contains("hint:"), "{told}");

    let (task, nominal) = new_task("a", json!({"interval": "1h"}), json!({}), START);
    store.create_task(&task, nominal, None).await.unwrap();
    store.close().await;
    drop(store);
    let store = open_sqlite(dir.path()).await.unwrap();
    assert_eq!(store.get_task(&Scope::Every, task.id).await.unwrap(), task);
}

#[tokio::test]
async fn read_only_store_reads_beside_a_service_and_changes_nothing() {
    let dir = TempDir::new();
    let (nothing, clock) = (Settings::default(), Clock::manual(START));
    let refused = Store::open_read_only(&nothing, dir.path(), clock.clone(), never_waits).await.err();
    assert!(matches!(refused, Some(OpenError::Refused(_))), "{refused:?}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);

    let service = open_sqlite(dir.path()).await.unwrap();
    let (task, nominal) = new_task("a", json!({"interval": "1h"}), json!({}), START);
    service.create_task(&task, nominal, None).await.unwrap();
    let look = Store::open_read_only(&nothing, dir.path(), clock.clone(), never_waits).await.unwrap();
    assert_eq!(look.get_task(&Scope::Every, task.id).await.unwrap(), task);
    let (other, nominal) = new_task("a", json!({"interval": "1h"}), json!({}), START);
    assert!(look.create_task(&other, nominal, None).await.is_err());
    service.create_task(&other, nominal, None).await.unwrap();
    assert_eq!(look.get_task(&Scope::Every, other.id).await.unwrap(), other);

    // nor is a service needed
    service.close().await;
    drop((service, look));
    let look = Store::open_read_only(&nothing, dir.path(), clock, never_waits).await.unwrap();
    assert_eq!(look.get_task(&Scope::Every, task.id).await.unwrap(), task);
    open_sqlite(dir.path()).await.expect("who looks locks nobody out").close().await;
}

#[tokio::test]
async fn data_directory_may_have_any_name() {
    let dir = TempDir::new();
    for name in ["what?", "100%25", "a#b c"] {
        let data_dir = dir.path().join(name);
        let store = open_sqlite(&data_dir).await.unwrap();
        store.close().await;
        assert!(data_dir.join("reveille.db").exists(), "{name}");
    }
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 3);
}

#[tokio::test]
async fn second_name_of_the_same_sqlite_file_is_the_same_file() {
    let dir = TempDir::new();
    let store = open_sqlite(dir.path()).await.unwrap();
    std::os::unix::fs::symlink(dir.path().join("reveille.db"), dir.path().join("other.db")).unwrap();
    let url = format!("sqlite://{}/other.db", dir.path().display());
    let refused = Store::open(&sqlite_settings(&url), dir.path(), Clock::manual(START), never_waits).await.err();
    assert!(matches!(refused, Some(OpenError::InUse(_))), "{refused:?}");
    store.close().await;
}

#[tokio::test]
async fn leases_of_a_dead_process_are_free_when_its_sqlite_file_is_opened_again() {
    let dir = TempDir::new();
    let store = open_sqlite(dir.path()).await.unwrap();
    let (task, nominal) = new_task("a", json!({"interval": "1h", "overlap": "allow"}), json!({}), START);
    store.create_task(&task, nominal, None).await.unwrap();
    for n in [1, 2] {
        store.run_now(&Scope::Every, task.id, uuid::Uuid::from_u128(n), None, START, None).await.unwrap();
    }
    let claims = leases(&claim_ready(&store, WORKER, START, 9).await);
    store.start_runs(&claims[..1], START + LEASE).await.unwrap();
    store.close().await;
    drop(store);

    let store = open_sqlite(dir.path()).await.unwrap();
    let soon = START + TimeDelta::milliseconds(1);
    assert_eq!(store.requeue_expired_claims(soon).await.unwrap(), 1);
    let stranded = store.take_over_expired(soon, TimeDelta::seconds(10), soon + LEASE, 9).await.unwrap();
    assert_eq!(stranded.len(), 1);
    assert!(stranded[0].crashed);
}

#[tokio::test]
async fn address_that_can_not_be_meant_is_refused() {
    let dir = TempDir::new();
    for url in
        ["mysql://localhost/x", "reveille.db", "sqlite::memory:", "sqlite://x.db?mode=memory", "postgres://:bad:port/"]
    {
        let refused = Store::open(&sqlite_settings(url), dir.path(), Clock::manual(START), never_waits).await.err();
        assert!(matches!(refused, Some(OpenError::Url(_))), "{url}: {refused:?}");
    }
    std::fs::write(dir.path().join("text.db"), "this is no database, and long enough to be looked at as one").unwrap();
    let url = format!("sqlite://{}/text.db", dir.path().display());
    let refused = Store::open(&sqlite_settings(&url), dir.path(), Clock::manual(START), never_waits).await.err();
    assert!(matches!(refused, Some(OpenError::Refused(_))), "{refused:?}");
}

async fn refusal(url: &str) -> OpenError {
    let settings = Settings { url: SecretUrl::new(url), max_connections: 2 };
    Store::open(&settings, Path::new("/nowhere"), Clock::manual(START), never_waits).await.err().expect("a refusal")
}

#[tokio::test]
async fn postgres_that_refuses_us_is_not_waited_for() {
    let database = Database::empty().await;
    let with = |change: &dyn Fn(&mut url::Url)| {
        let mut url = url::Url::parse(&database.url).unwrap();
        change(&mut url);
        String::from(url)
    };
    for url in [
        with(&|url| url.set_password(Some("wrong")).unwrap()),
        with(&|url| url.set_username("nobody_like_this").unwrap()),
        with(&|url| url.set_path("/no_such_database")),
    ] {
        let refused = refusal(&url).await;
        assert!(matches!(refused, OpenError::Refused(_)), "{refused:?}");
        assert!(!refused.to_string().contains("wrong"), "the password is not told: {refused}");
    }
}

#[tokio::test]
async fn postgres_that_may_lose_what_it_has_confirmed_is_refused_with_a_hint() {
    let database = Database::empty().await;
    let mut connection = database.connect().await;
    let setting = format!("alter database {} set synchronous_commit = off", database.name);
    sqlx::query(AssertSqlSafe(setting)).execute(&mut connection).await.unwrap();
    let refused = refusal(&database.url).await;
    assert!(matches!(refused, OpenError::Unfit(_)), "{refused:?}");
    let told = refused.to_string();
    assert!(told.contains("synchronous_commit = off") && told.contains("hint: set synchronous_commit = on"), "{told}");
}

#[tokio::test]
async fn role_that_sees_through_row_level_security_is_told() {
    let database = Database::empty().await;
    let owner = url::Url::parse(&servers::postgres_owner_url()).unwrap();
    let mut url = url::Url::parse(&database.url).unwrap();
    url.set_username(owner.username()).unwrap();
    url.set_password(owner.password()).unwrap();
    let store = open_postgres(url.as_str(), &Clock::manual(START)).await;
    assert!(store.facts().await.unwrap().above_row_security);
    store.close().await;
}

#[tokio::test]
async fn two_instances_that_start_at_once_migrate_once() {
    let database = Database::empty().await;
    let clock = Clock::manual(START);
    let stores = join_all((0..3).map(|_| open_postgres(&database.url, &clock))).await;
    let mut connection = database.connect().await;
    let applied: i64 =
        sqlx::query_scalar("select count(*) from _sqlx_migrations").fetch_one(&mut connection).await.unwrap();
    assert_eq!(applied as usize, sqlx_macros::migrate!("migrations/postgres").iter().count());
    for store in stores {
        store.close().await;
    }
}

#[tokio::test]
async fn instance_older_than_the_tables_goes_on() {
    let world = StoreHarness::postgres().await;
    world
        .plant(
            "insert into _sqlx_migrations (version, description, success, checksum, execution_time)
             values (999999, 'of a later release', true, '', 0)",
        )
        .await;
    world.other_instance().await.ping().await.unwrap();
    world.leave().await;
}

#[tokio::test]
async fn every_session_is_guarded_against_hanging() {
    let world = StoreHarness::postgres().await;
    // one that waits for a lock gives up, and says so, instead of holding its connection
    let task = world.task(json!({"interval": "1h"})).await;
    let mut other = PgConnection::connect(&world.url()).await.unwrap();
    let mut transaction = other.begin().await.unwrap();
    let lock = "select 1 from due where task_id = $1 for update";
    sqlx::query(lock).bind(task.id).execute(&mut *transaction).await.unwrap();
    let waited = world.store.delete_task(&Scope::Every, task.id).await;
    assert!(matches!(&waited, Err(StoreError::Unavailable(why)) if why.contains("lock")), "{waited:?}");
    transaction.rollback().await.unwrap();
    world.store.delete_task(&Scope::Every, task.id).await.unwrap();
    world.leave().await;
}

#[tokio::test]
async fn connections_are_checked_after_the_server_ended_one() {
    let world = StoreHarness::postgres().await;
    let task = world.task(json!({"interval": "1h", "overlap": "allow"})).await;
    let (scope, ask) = (Scope::Every, world.ask(0, 100));
    let each_kind = async || {
        let look = async || world.store.get_task(&scope, task.id).await.map(drop);
        let fire = async || world.store.fire_due(&ask).await.map(drop);
        let run = async || {
            let now = world.now();
            world.store.run_now(&scope, task.id, new_id(now), None, now, None).await.map(drop)
        };
        let (looks, fires, runs) =
            tokio::join!(join_all([look(), look(), look()]), join_all([fire(), fire()]), join_all([run(), run()]));
        looks.into_iter().chain(fires).chain(runs)
    };
    for done in each_kind().await {
        done.expect("done");
    }
    let end = "select count(*) filter (where pg_terminate_backend(pid, 5000)) from pg_stat_activity
                where datname = current_database() and usename = current_user and pid <> pg_backend_pid()";
    let mut other = PgConnection::connect(&world.url()).await.unwrap();
    let ended: i64 = sqlx::query_scalar(end).fetch_one(&mut other).await.unwrap();
    assert!(ended >= 4, "{ended} were connected");
    // who hears the other instances may have noticed by itself
    let _ = world.store.get_task(&scope, task.id).await;
    for done in each_kind().await {
        done.expect("done at once");
    }
    world.leave().await;
}

#[tokio::test]
async fn database_that_is_down_at_start_is_waited_for_and_that_is_told() {
    let database = Database::empty().await;
    let gate = Gate::before(&database.url).await;
    let told = Mutex::new(Vec::<String>::new());
    let (bell, mut rung) = tokio::sync::mpsc::unbounded_channel();
    let waiting = |why: &str| {
        told.lock().unwrap().push(why.to_owned());
        let _ = bell.send(());
    };
    let settings = Settings { url: SecretUrl::new(gate.url(&database.url)), max_connections: 2 };
    let opening = Store::open(&settings, Path::new("/nowhere"), Clock::manual(START), waiting);
    let let_in = async {
        rung.recv().await.expect("it says that it waits");
        gate.open().await;
    };
    let (opened, ()) = tokio::join!(opening, let_in);
    let store = opened.unwrap();
    store.ping().await.unwrap();
    let told = told.lock().unwrap().clone();
    assert!(told[0].starts_with("the database is not up yet, looking again every 2 s: "), "{told:?}");
    store.close().await;
}

#[tokio::test]
async fn database_that_goes_away_is_survived() {
    let world = StoreHarness::postgres().await;
    let gate = Gate::before(&world.url()).await;
    gate.open().await;
    let store = open_postgres(&gate.url(&world.url()), &world.clock).await;
    let task = world.task(json!({"interval": "1h"})).await;
    store.get_task(&Scope::Every, task.id).await.unwrap();

    gate.cut().await;
    let read = store.get_task(&Scope::Every, task.id);
    let ask = world.ask(0, 9);
    let (read, write, beat) = tokio::join!(read, store.fire_due(&ask), store.measure_clock());
    assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
    assert!(matches!(write, Err(StoreError::Unavailable(_))), "{write:?}");
    assert!(matches!(beat, Err(StoreError::Unavailable(_))), "{beat:?}");

    gate.open().await;
    assert_eq!(store.get_task(&Scope::Every, task.id).await.unwrap(), task);
    store.delete_task(&Scope::Every, task.id).await.unwrap();
    store.close().await;
    world.leave().await;
}

#[tokio::test]
async fn read_for_all_tenants_is_one_way_to_the_server() {
    let world = StoreHarness::postgres().await;
    let gate = Gate::before(&world.url()).await;
    gate.open().await;
    let store = open_postgres(&gate.url(&world.url()), &world.clock).await;
    let task = world.task(json!({"interval": "1h"})).await;
    let mut counted = Vec::new();
    for _ in 0..4 {
        let before = gate.requests();
        assert_eq!(store.get_task(&Scope::Every, task.id).await.unwrap(), task);
        counted.push(gate.requests() - before);
    }
    // a statement is prepared on each of its connections once
    assert_eq!(counted.last(), Some(&1), "{counted:?}");
    store.close().await;
    world.leave().await;
}

#[tokio::test]
async fn transaction_whose_wire_is_cut_leaves_nothing_half_done() {
    let world = StoreHarness::postgres().await;
    let gate = Gate::before(&world.url()).await;
    gate.open().await;
    let store = open_postgres(&gate.url(&world.url()), &world.clock).await;
    // while there is work here other instances are told nothing: only the transaction goes over the wire
    store.begin_work();
    for pass in 0.. {
        let (task, nominal) = new_task("a", json!({"interval": "1h"}), json!({}), START);
        let key = format!("pass {pass}");
        let once = Idempotency { tenant: "a".into(), key, digest: vec![1], status: 201, body: json!({}).into() };
        gate.hold_after(pass);
        let creating = store.create_task(&task, nominal, Some(&once));
        let answered = tokio::select! {
            answer = creating => Some(answer),
            () = gate.held() => None,
        };
        if answered.is_some() {
            assert!(pass >= 5, "begin, three inserts and a commit can be held: {pass}");
            break;
        }
        gate.cut().await;
        gate.release();
        let rows = format!("select count(*) from tasks where id = '{}'", task.id);
        assert_eq!(world.count(&rows).await, 0);
        // whatever lock it had goes with its session
        let again = world.store.create_task(&task, nominal, Some(&once));
        let again = tokio::time::timeout(Duration::from_secs(10), again).await.unwrap().unwrap();
        assert_eq!(again, StoredAnswer::Done(()), "nothing is remembered of what did not happen");
        gate.open().await;
        // other connections were cut with it, and one question at most fails for them
        if store.ping().await.is_err() {
            store.ping().await.unwrap();
        }
    }
    gate.release();
    store.close().await;
    world.leave().await;
}
