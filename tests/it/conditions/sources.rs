//! Databases and a Redis as sources: real ones, read, and never written.

use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use futures::FutureExt;
use redis::AsyncCommands;
use reveille::base::clock::Clock;
use reveille::base::compute::Compute;
use reveille::base::id::Tenant;
use reveille::base::invalid::ValidationErrors;
use reveille::domain::task::TaskValidator;
use reveille::domain::trigger::condition::{PollResult, PollSpec};
use reveille::executor::host::StoreHost;
use reveille::ports::bus;
use reveille::ports::egress::{self, Egress};
use reveille::ports::poll::{PollFailure, Settings, Sources};
use reveille::ports::tool;
use reveille::store::{self, Store};
use serde_json::{Value, json};
use sqlx::{Connection, Executor, SqliteConnection};
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::support::binary::TempDir;
use crate::support::computing::{HeldThreads, until_waiting};
use crate::support::postgres::Database;
use crate::support::servers;

/// Sources and a poller, for looks as the tenant ann.
struct PollHarness {
    sources: std::sync::Arc<Sources>,
    poller: reveille::ports::poll::Poller,
    compute: Compute,
}

impl PollHarness {
    async fn at(settings: Value, dir: &Path) -> PollHarness {
        let settings: Settings = serde_json::from_value(settings).expect("settings");
        let opened = egress::Settings { allow: vec!["127.0.0.1:*".into()], ..egress::Settings::default() };
        let egress = Egress::new(&opened).expect("an egress");
        let credentials = reveille::ports::vault::credentials::Credentials::none(egress);
        let tools = tool::ToolRegistry::new(tool::builtin::all(&credentials)).expect("tools");
        let sources = Sources::new(&settings, &credentials, std::sync::Arc::new(tools), dir).expect("sources");
        let sources = std::sync::Arc::new(sources);
        let store = Store::open(&store::Settings::default(), dir, Clock::system(), |_| {}).await.expect("a store");
        let bus = bus::open(&bus::Settings::default(), &store).expect("a bus");
        let validator = TaskValidator {
            channels: vec![],
            check: std::sync::Arc::new(|_, _, _| {}),
            poll: std::sync::Arc::new(|_, _, _, _| {}),
            seal: std::sync::Arc::new(|_, _, _, _| Ok(())),
        };
        let compute = store.computing().clone();
        let host = std::sync::Arc::new(StoreHost::new(store, validator, bus));
        let poller = reveille::ports::poll::Poller::new(sources.clone(), host, Clock::system(), compute.clone());
        PollHarness { poller, sources, compute }
    }

    /// The fault of such a poll, by its place.
    fn fault(&self, tenant: &str, poll: &Value) -> Option<String> {
        let mut faults = ValidationErrors::new();
        let poll: PollSpec = serde_json::from_value(poll.clone()).expect("a poll");
        self.sources.check(&Tenant::new(tenant).unwrap(), &poll, "/poll", &mut faults);
        faults.0.into_iter().next().map(|fault| format!("{}: {}", fault.pointer, fault.message))
    }

    fn ask(tenant: &str, query: &str) -> Ask {
        Ask {
            tenant: Tenant::new(tenant).unwrap(),
            trial: false,
            poll: serde_json::from_value(sql(query)).expect("a poll"),
            time_limit: Duration::from_secs(2),
        }
    }

    async fn poll(&self, Ask { tenant, trial, poll, time_limit }: Ask) -> Result<PollResult, PollFailure> {
        let id = uuid::Uuid::from_u128(7);
        let ask =
            reveille::ports::poll::PollRequest { tenant: &tenant, id, trial, poll: &poll, known: None, time_limit };
        match trial {
            true => self.poller.try_out(&ask).await,
            false => self.poller.poll(&ask).await,
        }
    }

    /// The value that is seen, or the kind of the fault.
    async fn poll_value(&self, poll: &Value) -> Result<Value, String> {
        let poll: PollSpec = serde_json::from_value(poll.clone()).expect("a poll");
        match self.poll(Ask { poll, ..PollHarness::ask("ann", "") }).await {
            Ok(PollResult::Value { value, .. }) => Ok(value),
            Ok(other) => panic!("{other:?}"),
            Err(PollFailure::Fault(fault)) => Err(fault.to_string()),
            Err(busy) => panic!("{busy:?}"),
        }
    }
}

/// A poll of a test.
#[derive(Clone)]
struct Ask {
    tenant: Tenant,
    trial: bool,
    poll: PollSpec,
    time_limit: Duration,
}

fn sql(query: &str) -> Value {
    json!({ "sql": { "source": "shop", "query": query } })
}

/// Tries every write: no source may do one, whatever else it can.
async fn nothing_is_written(looking: &PollHarness, count: impl AsyncFn() -> i64) {
    for query in [
        "insert into orders values (9, 'x')",
        "delete from orders",
        "drop table orders",
        "create table t (n int)",
        "select 1; delete from orders",
        "select 1) polled; delete from orders; select * from (select 1",
        "with gone as (delete from orders returning id) select * from gone",
        "with made as (insert into orders values (9, 'x') returning id) select * from made",
        "commit",
        "pragma query_only = off",
        "attach 'other.db' as other",
        "vacuum into 'copy.db'",
        "set transaction read write",
        "select set_config('transaction_read_only', 'off', false), nothing()",
    ] {
        let seen = looking.poll_value(&sql(query)).await;
        assert!(seen.is_err(), "{query}: {seen:?}");
        assert_eq!(count().await, 2, "{query}");
    }
}

#[tokio::test]
async fn postgres_is_read_and_never_written() {
    let database = Database::empty().await;
    let mut owner = database.connect().await;
    owner
        .execute("create table orders (id int, state text); insert into orders values (1, 'open'), (2, 'done')")
        .await
        .unwrap();
    let dir = TempDir::new();
    let looking =
        PollHarness::at(json!({ "sql": { "shop": { "url": database.url, "tenants": ["ann"] } } }), dir.path()).await;
    let seen = looking.poll_value(&sql("select count(*) as open from orders where state = 'open'; -- those")).await;
    assert_eq!(seen, Ok(json!({ "rows": [{ "open": 1 }], "count": 1, "scalar": 1 })));
    let seen = looking.poll_value(&sql("select id, state, now() is null as never from orders order by id")).await;
    let rows = json!([{ "id": 1, "state": "open", "never": false }, { "id": 2, "state": "done", "never": false }]);
    assert_eq!(seen, Ok(json!({ "rows": rows, "count": 2, "scalar": null })));
    nothing_is_written(&looking, async || {
        let mut look = database.connect().await;
        sqlx::query_scalar("select count(*) from orders").fetch_one(&mut look).await.unwrap()
    })
    .await;
    // a setting of one poll is never another's, though they share a connection
    for _ in 0..8 {
        looking.poll_value(&sql("select set_config('search_path', 'nowhere', false) as s")).await.unwrap();
    }
    assert!(looking.poll_value(&sql("select count(*) from orders")).await.is_ok());
    let endless = looking.poll_value(&sql("select pg_sleep(60)")).await.unwrap_err();
    assert!(endless.starts_with("timeout: "), "the server's limit or ours, whichever is first: {endless}");
    let many = looking.poll_value(&sql("select generate_series(1, 1001) as n")).await.unwrap_err();
    assert!(many.starts_with("too_large: "), "{many}");
    let long = looking.poll_value(&sql("select repeat('x', 1000000) as n")).await.unwrap_err();
    assert!(long.starts_with("too_large: "), "{long}");
    let whole = looking.poll_value(&sql("select repeat('x', 32000) as n")).await.unwrap();
    assert_eq!(whole["scalar"].as_str().unwrap().len(), 32_000);
    let together = "select repeat('x', 33000) as n from generate_series(1, 2)";
    let together = looking.poll_value(&sql(together)).await.unwrap_err();
    assert!(together.starts_with("too_large: "), "{together}");
    let wrong = looking.poll_value(&sql("select nothing from orders")).await.unwrap_err();
    assert!(wrong.starts_with("sql: column \"nothing\""), "{wrong}");
}

#[tokio::test]
async fn one_tenant_never_holds_all_connections_of_a_database() {
    let database = Database::empty().await;
    let dir = TempDir::new();
    let settings = json!({ "sql": { "shop": { "url": database.url, "tenants": ["*"] } } });
    let looking = PollHarness::at(settings, dir.path()).await;
    let slow = Ask { time_limit: Duration::from_secs(60), ..PollHarness::ask("ann", "select pg_sleep(600)") };
    let trial = Ask { trial: true, ..slow.clone() };
    let mut held = Vec::new();
    // a poll that is put off answers at once, one that is made holds its connection
    let mut refused = 0;
    for _ in 0..4 {
        let mut poll = Box::pin(looking.poll(slow.clone()));
        match (&mut poll).now_or_never() {
            None => held.push(poll),
            Some(missed) => {
                assert!(matches!(missed, Err(PollFailure::Busy(_))), "{missed:?}");
                refused += 1;
            }
        }
    }
    assert_eq!((held.len(), refused), (2, 2));
    let mut tried = Box::pin(looking.poll(trial.clone()));
    assert!((&mut tried).now_or_never().is_none());
    let again = looking.poll(Ask { tenant: Tenant::new("bob").unwrap(), ..trial }).await;
    assert!(matches!(again, Err(PollFailure::Busy(_))), "trials have one connection: {again:?}");
    // the queries of the one are under way, and the other is answered
    let under_way = "select count(*) from pg_stat_activity where query like '%pg_sleep(600)%' and state = 'active'
                        and datname = current_database() and pid <> pg_backend_pid()";
    let mut look = database.connect().await;
    let mut all = futures::future::join_all(held.into_iter().chain([tried]));
    loop {
        assert!((&mut all).now_or_never().is_none());
        let count: i64 = sqlx::query_scalar(under_way).fetch_one(&mut look).await.unwrap();
        if count == 3 {
            break;
        }
    }
    // its connection is made meanwhile
    let quick = Ask { time_limit: Duration::from_secs(60), ..PollHarness::ask("bob", "select 1 as n") };
    let seen = looking.poll(quick).await;
    assert!(matches!(&seen, Ok(PollResult::Value { value, .. }) if value["scalar"] == 1), "{seen:?}");
}

#[tokio::test]
async fn sqlite_file_is_read_and_never_written() {
    let dir = TempDir::new();
    let file = dir.path().join("shop.db");
    let url = format!("sqlite://{}", file.display());
    let options = sqlx::sqlite::SqliteConnectOptions::from_str(&url).unwrap().create_if_missing(true);
    let mut owner = SqliteConnection::connect_with(&options).await.unwrap();
    owner
        .execute("create table orders (id integer, state text); insert into orders values (1, 'open'), (2, 'done')")
        .await
        .unwrap();
    let settings = json!({ "sql": { "shop": { "url": "sqlite://{data_dir}/shop.db", "tenants": ["*"] } } });
    let looking = PollHarness::at(settings, dir.path()).await;
    let seen = looking.poll_value(&sql("select count(*) as open from orders where state = 'open'")).await;
    assert_eq!(seen, Ok(json!({ "rows": [{ "open": 1 }], "count": 1, "scalar": 1 })));
    let seen = looking.poll_value(&sql("select 1.5 as r, 'a' as t, x'00ff' as b, null as n")).await.unwrap();
    assert_eq!(seen["rows"], json!([{ "r": 1.5, "t": "a", "b": "00ff", "n": null }]));
    nothing_is_written(&looking, async || {
        let mut look = SqliteConnection::connect(&url).await.unwrap();
        sqlx::query_scalar("select count(*) from orders").fetch_one(&mut look).await.unwrap()
    })
    .await;
    assert!(!dir.path().join("other.db").exists() && !dir.path().join("copy.db").exists());
    let endless = "with recursive n (i) as (select 1 union all select i + 1 from n) select max(i) from n";
    assert!(looking.poll_value(&sql(endless)).await.unwrap_err().starts_with("timeout: "));
    assert!(looking.poll_value(&sql("select 1 as n")).await.is_ok(), "the connection is of use again");
    let endless_rows = "with recursive n (i) as (select 1 union all select i + 1 from n) select i from n";
    assert!(looking.poll_value(&sql(endless_rows)).await.unwrap_err().starts_with("too_large: "));
}

#[tokio::test]
async fn redis_is_read_by_type_and_only_where_it_is_opened() {
    let client = redis::Client::open(servers::redis_url()).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    let prefix = format!("t{:016x}:", fastrand::u64(..));
    let key = |name: &str| format!("{prefix}{name}");
    let _: () = redis.set(key("number"), "480").await.unwrap();
    let _: () = redis.set(key("json"), r#"{"price": 480}"#).await.unwrap();
    let _: () = redis.set(key("text"), "up").await.unwrap();
    let _: () = redis.set(key("large"), "x".repeat(70_000)).await.unwrap();
    let _: () = redis.hset_multiple(key("hash"), &[("a", "1"), ("b", "x")]).await.unwrap();
    let _: () = redis.rpush(key("list"), &[1, 2, 3]).await.unwrap();
    let _: () = redis.sadd(key("set"), &[1, 2]).await.unwrap();
    let _: () = redis.zadd(key("zset"), "m", 1).await.unwrap();
    let _: String = redis.xadd(key("stream"), "*", &[("f", "v")]).await.unwrap();
    let dir = TempDir::new();
    let settings =
        json!({ "redis": { "prices": { "url": servers::redis_url(), "prefixes": [prefix], "tenants": ["*"] } } });
    let looking = PollHarness::at(settings, dir.path()).await;
    let poll = |name: &str| json!({ "redis": { "source": "prices", "key": key(name) } });
    for (name, expected) in [
        ("number", json!(480)),
        ("json", json!({ "price": 480 })),
        ("text", json!("up")),
        ("hash", json!({ "a": 1, "b": "x" })),
        ("list", json!(3)),
        ("set", json!(2)),
        ("zset", json!(1)),
        ("stream", json!(1)),
        ("nothing", Value::Null),
    ] {
        assert_eq!(looking.poll_value(&poll(name)).await, Ok(expected), "{name}");
    }
    let with = |name: &str, read: &str| json!({ "redis": { "source": "prices", "key": key(name), "read": read } });
    assert_eq!(looking.poll_value(&with("text", "exists")).await, Ok(json!(true)));
    assert_eq!(looking.poll_value(&with("nothing", "exists")).await, Ok(json!(false)));
    assert_eq!(looking.poll_value(&with("text", "llen")).await, Err("redis: redis: WRONGTYPE".into()));
    assert!(looking.poll_value(&poll("large")).await.unwrap_err().starts_with("too_large: "));
    let elsewhere = json!({ "redis": { "source": "prices", "key": "reveille:events:0" } });
    assert!(looking.poll_value(&elsewhere).await.unwrap_err().starts_with("denied: must begin with"));
    let keys: Vec<String> = redis.keys(format!("{prefix}*")).await.unwrap();
    assert_eq!(keys.len(), 9, "nothing was made");
    let _: () = redis.del(keys).await.unwrap();
}

#[tokio::test]
async fn source_is_used_only_by_whom_it_is_opened_to() {
    let dir = TempDir::new();
    let looking = PollHarness::at(
        json!({
            "sql": { "shop": { "url": "postgres://reader:canary@127.0.0.1:9/shop" } },
            "redis": { "prices": { "url": "redis://:canary@127.0.0.1:9", "prefixes": ["p:"], "tenants": ["bob"] } },
        }),
        dir.path(),
    )
    .await;
    let shut = looking.fault("ann", &sql("select 1")).unwrap();
    assert_eq!(shut, "/poll/sql/source: there is no source `shop`; the operator has opened none to this tenant");
    assert!(looking.poll_value(&sql("select 1")).await.unwrap_err().starts_with("denied: "));
    let redis = json!({ "redis": { "source": "prices", "key": "p:1" } });
    assert!(looking.fault("ann", &redis).unwrap().starts_with("/poll/redis/source: "));
    assert_eq!(looking.fault("bob", &redis), None);
    let elsewhere = json!({ "redis": { "source": "prices", "key": "q:1" } });
    assert_eq!(looking.fault("bob", &elsewhere).unwrap(), "/poll/redis/key: must begin with one of: p:");
}

#[tokio::test]
async fn source_that_is_away_says_so_and_not_its_password() {
    let dir = TempDir::new();
    let looking = PollHarness::at(
        json!({
            "sql": { "shop": { "url": "postgres://reader:canary@127.0.0.1:9/shop", "tenants": ["ann"] } },
            "redis": { "prices": { "url": "redis://:canary@127.0.0.1:9", "prefixes": [""], "tenants": ["ann"] } },
        }),
        dir.path(),
    )
    .await;
    for poll in [sql("select 1"), json!({ "redis": { "source": "prices", "key": "k" } })] {
        let away = looking.poll_value(&poll).await.unwrap_err();
        assert!(away.starts_with("connect: ") || away.starts_with("timeout: "), "{away}");
        assert!(!away.contains("canary"), "{away}");
    }
}

#[tokio::test]
async fn tool_is_polled_only_where_it_reads() {
    let dir = TempDir::new();
    let looking = PollHarness::at(json!({}), dir.path()).await;
    let tool = |name: &str, args: Value| json!({ "tool": { "name": name, "args": args } });
    let berlin = tool("current_time", json!({ "timezone": "Europe/Berlin" }));
    assert_eq!(looking.fault("ann", &berlin), None);
    assert!(looking.poll_value(&berlin).await.unwrap().is_object());
    assert!(
        looking.fault("ann", &tool("current_time", json!({ "zone": 1 }))).unwrap().starts_with("/poll/tool/args: ")
    );
    for acts in ["create_task", "delete_task", "send_notification"] {
        let told = looking.fault("ann", &tool(acts, json!({}))).unwrap();
        assert!(told.starts_with("/poll/tool/name: "), "{told}");
        assert!(looking.poll_value(&tool(acts, json!({}))).await.is_err(), "{acts}");
    }
    assert!(looking.fault("ann", &tool("curent_time", json!({}))).unwrap().contains("did you mean `current_time`?"));
}

#[tokio::test]
async fn long_arguments_of_a_polled_tool_are_held_against_its_schema_on_a_computing_thread() {
    let dir = TempDir::new();
    let looking = PollHarness::at(json!({}), dir.path()).await;
    let poll = json!({ "tool": { "name": "current_time", "args": { "timezone": "x".repeat(600_000) } } });
    let poll: PollSpec = serde_json::from_value(poll).expect("a poll");
    let threads = HeldThreads::all(&looking.compute).await;
    let meanwhile = async {
        until_waiting(&looking.compute, 1).await;
        drop(threads);
    };
    let time_limit = Duration::from_secs(600);
    let (seen, ()) = tokio::join!(looking.poll(Ask { poll, time_limit, ..PollHarness::ask("ann", "") }), meanwhile);
    assert!(matches!(&seen, Err(PollFailure::Fault(fault)) if fault.kind != "timeout"), "{seen:?}");
}

#[tokio::test]
async fn long_answer_of_a_polled_address_is_read_on_a_computing_thread() {
    let page = json!({ "text": "x".repeat(20_000) });
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(ResponseTemplate::new(200).set_body_json(&page)).mount(&server).await;
    let dir = TempDir::new();
    let looking = PollHarness::at(json!({}), dir.path()).await;
    let poll: PollSpec = serde_json::from_value(json!({ "http": { "url": server.uri() } })).expect("a poll");
    let threads = HeldThreads::all(&looking.compute).await;
    let meanwhile = async {
        until_waiting(&looking.compute, 1).await;
        drop(threads);
    };
    let time_limit = Duration::from_secs(600);
    let (seen, ()) = tokio::join!(looking.poll(Ask { poll, time_limit, ..PollHarness::ask("ann", "") }), meanwhile);
    assert!(matches!(&seen, Ok(PollResult::Value { value, .. }) if *value == page), "{seen:?}");
}

#[tokio::test]
async fn redis_hashes_and_texts_are_read_at_their_bounds_and_too_large_one_beyond_them() {
    let client = redis::Client::open(servers::redis_url()).unwrap();
    let mut redis = client.get_multiplexed_async_connection().await.unwrap();
    let prefix = format!("t{:016x}:", fastrand::u64(..));
    let key = |name: &str| format!("{prefix}{name}");
    for (name, fields) in [("most fields", 1_000), ("more fields", 1_001)] {
        let fields: Vec<(String, u32)> = (0..fields).map(|n| (format!("f{n}"), n)).collect();
        let _: () = redis.hset_multiple(key(name), &fields).await.unwrap();
    }
    // as JSON it has two quotes
    for (name, bytes) in [("longest text", 65_534), ("longer text", 65_535)] {
        let _: () = redis.set(key(name), "x".repeat(bytes)).await.unwrap();
    }
    let dir = TempDir::new();
    let settings =
        json!({ "redis": { "prices": { "url": servers::redis_url(), "prefixes": [prefix], "tenants": ["*"] } } });
    let looking = PollHarness::at(settings, dir.path()).await;
    let look = async |name: &str| {
        let poll = json!({ "redis": { "source": "prices", "key": key(name) } });
        let poll = serde_json::from_value(poll).expect("a poll");
        looking.poll(Ask { poll, time_limit: Duration::from_secs(60), ..PollHarness::ask("ann", "") }).await
    };
    let seen = async |name: &str| match look(name).await {
        Ok(PollResult::Value { value, .. }) => value,
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(seen("most fields").await.as_object().unwrap().len(), 1_000);
    assert_eq!(seen("longest text").await.as_str().unwrap().len(), 65_534);
    for beyond in ["more fields", "longer text"] {
        let refused = look(beyond).await;
        assert!(
            matches!(&refused, Err(PollFailure::Fault(fault)) if fault.kind == "too_large"),
            "{beyond}: {refused:?}"
        );
    }
    let keys: Vec<String> = redis.keys(format!("{prefix}*")).await.unwrap();
    let _: () = redis.del(keys).await.unwrap();
}
