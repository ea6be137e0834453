//! 40,000 events, or as many as `scripts/drills.sh` asks for, over real Redis and Postgres, through three instances
//! that are killed (`kill -9`) and started again all the while: each match has one run.

use std::time::{Duration, Instant};

use reveille::base::clock::pause;
use reveille::ports::egress::operator_client;
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use crate::support::api::Api;
use crate::support::binary::Service;
use crate::support::postgres::Database;
use crate::support::servers;

/// Events of one request.
const BATCH: usize = 500;
/// One instance dies after so many requests.
const DEATH: usize = 16;
/// One in so many events matches a task.
const MATCHING: usize = 20;
/// How long it may take on a loaded machine with two cores until so many events are recorded and executed.
const PATIENCE: Duration = Duration::from_secs(240);
const OF_PATIENCE: usize = 100_000;

fn instance(database: &Database, prefix: &str) -> Service {
    Service::new()
        .with("REVEILLE_DATABASE__URL", &database.url)
        .with("REVEILLE_DATABASE__MAX_CONNECTIONS", "8")
        .with("REVEILLE_VAULT__MASTER_KEYS", "[\"first:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\"]")
        .with("REVEILLE_BUS__URL", servers::redis_url())
        .with("REVEILLE_BUS__STREAM_PREFIX", prefix)
        .with("REVEILLE_BUS__STALLED_AFTER_SECONDS", "2.0")
        .with("REVEILLE_TELEMETRY__LOG_LEVEL", "error")
        // a hundred thousand in a minute or two is what the default is there to refuse
        .with("REVEILLE_QUOTAS__EVENTS_PER_MINUTE", "1000000")
}

fn task(name: &str, filter: &str, more: Value) -> Value {
    let mut trigger = json!({ "type": "event", "source": "storm", "filter": filter });
    trigger.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({
        "tenant_id": "ann", "name": name, "trigger": trigger, "executor": "pipeline", "output": null,
        "action": { "config": { "steps": [{ "name": "done", "map": "'done'" }] } },
        "retry": { "max_attempts": 20, "backoff_seconds": 0 },
    })
}

/// The answer of a query over the runs of a task, once it is the wanted one, or at the end of all patience.
async fn until(connection: &mut PgConnection, query: &'static str, task_id: &str, expected: i64, end: Instant) -> i64 {
    loop {
        let found: i64 = sqlx::query_scalar(query).bind(task_id).fetch_one(&mut *connection).await.expect("a number");
        if found >= expected || Instant::now() > end {
            return found;
        }
        pause(Duration::from_millis(200)).await;
    }
}

#[tokio::test]
async fn events_through_three_instances_that_are_killed_make_one_run_for_each_match() {
    let count = servers::drill_events();
    assert_eq!(count % BATCH, 0, "whole requests");
    let end = Instant::now() + PATIENCE * count.div_ceil(OF_PATIENCE) as u32;
    let (database, prefix) = (Database::empty().await, format!("s{:016x}", fastrand::u64(..)));
    let mut instances = [(); 3].map(|()| instance(&database, &prefix));
    instances[0].start().await;
    let token = instances[0].admin_token().expect("the first start makes an admin token").to_owned();
    for instance in &mut instances[1..] {
        instance.start().await;
    }
    let api = Api::new(instances[0].url(), &token);
    let id_of = |task: Value| task["id"].as_str().expect("an id").to_owned();
    let each = id_of(api.post("/v1/tasks", &task("each", "event.data.n % 20 == 0", json!({}))).await);
    let window = json!({ "batch": { "size": 50, "wait": "3s" } });
    let many = id_of(api.post("/v1/tasks", &task("many", "event.data.n % 20 == 1", window)).await);

    let http = operator_client(Duration::from_secs(10));
    let mut deaths = 0;
    for (request, first) in (0..count).step_by(BATCH).enumerate() {
        let event = |n: usize| {
            json!({ "specversion": "1.0", "id": n.to_string(), "source": "storm", "type": "drop", "tenantid": "ann",
                    "data": { "n": n } })
        };
        let body = Value::Array((first..first + BATCH).map(event).collect()).to_string();
        // who was asked may have died over it, having published or not: asking another one is safe
        for turn in 0.. {
            assert!(turn < 100, "nobody takes events");
            let sent = http
                .post(format!("{}/v1/events", instances[(request + turn) % 3].url()))
                .bearer_auth(&token)
                .header("content-type", "application/cloudevents-batch+json")
                .body(body.clone())
                .send()
                .await;
            match sent.map(|answer| answer.status().as_u16()) {
                Ok(202) => break,
                Ok(400..=499) => panic!("the events are refused"),
                _ => pause(Duration::from_millis(50)).await,
            }
        }
        if request % DEATH == DEATH - 1 {
            let victim = &mut instances[deaths % 3];
            victim.kill().await;
            victim.start().await;
            deaths += 1;
        }
    }
    assert_eq!(deaths, count / BATCH / DEATH);

    let mut connection = database.connect().await;
    sqlx::query("select set_config('reveille.tenant', '*', false)").execute(&mut connection).await.unwrap();
    let expected = (count / MATCHING) as i64;
    let ended = "select count(*) from runs where task_id = $1::uuid and state = 'succeeded'";
    assert_eq!(until(&mut connection, ended, &each, expected, end).await, expected, "runs that succeeded");
    let counted = "select coalesce(sum(jsonb_array_length(event_ids)), 0)::bigint from runs
                    where task_id = $1::uuid and state = 'succeeded'";
    assert_eq!(until(&mut connection, counted, &many, expected, end).await, expected, "events in windows");
    for task in [&each, &many] {
        let (all, distinct): (i64, i64) = sqlx::query_as(
            "select count(*), count(distinct e.event) from runs, jsonb_array_elements_text(event_ids) as e (event)
              where task_id = $1::uuid",
        )
        .bind(task)
        .fetch_one(&mut connection)
        .await
        .unwrap();
        assert_eq!((all, distinct), (expected, expected), "one record for each match");
    }
    connection.close().await.unwrap();
    for mut instance in instances {
        assert!(instance.terminate().await.success());
    }
}
