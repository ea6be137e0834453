//! One tenant's flood of events beside a quiet tenant: what it takes of each round, and what becomes of it.

use std::time::Duration;

use reveille::base::clock::pause;
use reveille::base::id::Scope;
use reveille::domain::quota::Overrides;
use reveille::ports::bus::{BusBacklog, DeadLetterFilter};
use serde_json::{Value, json};

use super::{on, recorded};
use crate::support::app::Instance;
use crate::support::computing::{HeldThreads, until_waiting};
use crate::support::world::World;

/// Between two looks at the database.
const LOOK: Duration = Duration::from_millis(10);
/// Tasks of the flood, and events: 1,800 matches, which are more than three writes.
const TASKS: usize = 6;
const EVENTS: usize = 300;
/// Matches of one write at most.
const WRITE: usize = 500;

on_each_bus! {
    quiet_tenant_has_its_turn_beside_a_flood_before_its_third_write
    dense_events_of_a_tenant_keep_no_other_event_waiting
    event_that_is_cheap_to_judge_waits_for_no_computing_thread
    flood_is_recorded_once_though_its_instance_dies_halfway
    entries_beyond_a_quota_are_recorded_as_skipped_and_none_is_lost
}

/// Postgres alone writes for two tenants at once.
mod few_matches_of_a_tenant_are_recorded_beside_a_write_of_many {
    use crate::support::world::World;

    #[tokio::test]
    async fn embedded_on_postgres() {
        super::few_matches_of_a_tenant_are_recorded_beside_a_write_of_many(World::postgres().await).await;
    }

    #[tokio::test]
    async fn redis() {
        super::few_matches_of_a_tenant_are_recorded_beside_a_write_of_many(World::redis().await).await;
    }
}

async fn flooded(instance: &Instance) -> Vec<reveille::domain::task::Task> {
    let mut tasks = Vec::new();
    for _ in 0..TASKS {
        tasks.push(instance.task(loud_events(on(json!({ "filter": "event.data.n >= 0" })))).await);
    }
    let event = |n: usize| json!({ "id": format!("{n:03}"), "tenantid": "loud", "data": { "n": n } });
    instance.publish(&(0..EVENTS).map(event).collect::<Vec<_>>()).await;
    tasks
}

fn loud_events(mut task: Value) -> Value {
    task["tenant_id"] = "loud".into();
    task
}

async fn quiet_tenant_has_its_turn_beside_a_flood_before_its_third_write(world: World) {
    let instance = world.instance();
    let loud = flooded(&instance).await;
    let quiet = instance.task(on(json!({}))).await;
    instance.publish(&[json!({ "id": "1" })]).await;
    // rounds are not counted: on a busy machine one may end before anything is judged
    while instance.runs(&quiet).await.is_empty() {
        let mut recorded = 0;
        for task in &loud {
            recorded += instance.runs(task).await.len();
        }
        assert!(recorded <= 2 * WRITE, "its one event waits behind {recorded} of the flood");
        instance.match_round().await;
    }
    instance.match_events().await;
    for task in &loud {
        assert_eq!(instance.runs(task).await.len(), EVENTS, "each match has its record");
    }
    assert_eq!(instance.bus().backlog().await.unwrap(), BusBacklog::default(), "everything is acknowledged");
    instance.crash();
}

/// Events of one tenant that have more bytes together than an instance holds of it.
async fn dense_events_of_a_tenant_keep_no_other_event_waiting(world: World) {
    const DENSE: usize = 90;
    let instance = world.instance();
    let loud = instance.task(loud_events(on(json!({ "filter": "event.data.n >= 0" })))).await;
    let quiet = instance.task(on(json!({}))).await;
    let data = json!({ "zeros": vec![0; 1_000], "text": "x".repeat(220_000) });
    let dense = |n: usize| {
        let mut data = data.clone();
        data["n"] = n.into();
        json!({ "id": format!("{n:03}"), "tenantid": "loud", "data": data })
    };
    for ids in (0..DENSE).collect::<Vec<_>>().chunks(10) {
        instance.publish(&ids.iter().map(|n| dense(*n)).collect::<Vec<_>>()).await;
    }
    // the instance has begun with the flood
    instance.match_round().await;
    instance.publish(&[json!({ "id": "1" })]).await;
    while instance.runs(&quiet).await.is_empty() {
        assert!(instance.runs(&loud).await.len() < DENSE, "its one event waits behind the whole flood");
        instance.match_round().await;
    }
    instance.match_events().await;
    assert_eq!(instance.runs(&loud).await.len(), DENSE, "each match has its record");
    assert_eq!(instance.bus().backlog().await.unwrap(), BusBacklog::default(), "everything is acknowledged");
    instance.crash();
}

/// Other tenants compute for as long as they like.
async fn event_that_is_cheap_to_judge_waits_for_no_computing_thread(world: World) {
    let instance = world.instance();
    let cheap = instance.task(on(json!({ "filter": "event.data.n >= 0" }))).await;
    let dear = instance.task(loud_events(on(json!({ "filter": "event.data.t.matches('x')" })))).await;
    let loud = |id: &str| json!({ "id": id, "tenantid": "loud", "data": { "t": id } });
    // the tasks of both are compiled
    instance.publish(&[loud("y"), json!({ "id": "1", "data": { "n": 1 } })]).await;
    instance.match_events().await;
    assert_eq!(recorded(&instance, &cheap).await, ["1"]);
    let compute = instance.store.computing().clone();
    let threads = HeldThreads::all(&compute).await;
    instance.publish(&[loud("x"), json!({ "id": "2", "data": { "n": 2 } })]).await;
    while recorded(&instance, &cheap).await.len() < 2 {
        instance.match_round().await;
    }
    until_waiting(&compute, 1).await;
    assert!(recorded(&instance, &dear).await.is_empty(), "a pattern is searched for on a thread");
    drop(threads);
    instance.match_events().await;
    assert_eq!((recorded(&instance, &cheap).await.len(), recorded(&instance, &dear).await.len()), (2, 1));
    assert_eq!(instance.bus().backlog().await.unwrap(), BusBacklog::default(), "everything is acknowledged");
    instance.crash();
}

/// When the write began that waits for a row which another transaction has; 0: none waits.
const WAITING_SINCE: &str = "select coalesce((extract(epoch from min(query_start)) * 1000000)::bigint, 0)
                               from pg_stat_activity
                              where datname = current_database() and wait_event in ('transactionid', 'tuple')";

async fn few_matches_of_a_tenant_are_recorded_beside_a_write_of_many(world: World) {
    let instance = world.instance();
    flooded(&instance).await;
    let quiet = instance.task(on(json!({}))).await;
    let of_loud = "select 1 from due d join tasks t on t.id = d.task_id where t.tenant_id = 'loud' for update of d";
    let held = world.begin(of_loud).await;
    let published = async {
        let since = loop {
            match world.number(WAITING_SINCE).await {
                0 => pause(LOOK).await,
                since => break since,
            }
        };
        instance.publish(&[json!({ "id": "1" })]).await;
        while instance.runs(&quiet).await.is_empty() {
            pause(LOOK).await;
        }
        assert_eq!(world.number(WAITING_SINCE).await, since, "the flood's first write is still under way");
        drop(held);
    };
    tokio::join!(instance.match_events(), published);
    instance.match_events().await;
    assert_eq!(instance.bus().backlog().await.unwrap(), BusBacklog::default(), "everything is acknowledged");
    instance.crash();
}

/// Entries that come by the bus itself ask no quota on their way in, as those that other services add to a stream.
async fn entries_beyond_a_quota_are_recorded_as_skipped_and_none_is_lost(world: World) {
    let instance = world.instance();
    let of = |tenant: &str| {
        let mut task = on(json!({}));
        task["tenant_id"] = tenant.into();
        task
    };
    let (loud, full) = (instance.task(of("loud")).await, instance.task(of("full")).await);
    let quiet = instance.task(on(json!({}))).await;
    let few = Overrides { fires_per_minute: Some(3), ..Overrides::default() };
    let little = Overrides { stored_bytes: Some(1), ..Overrides::default() };
    instance
        .on(|store| async move {
            while store.count_stored_bytes(100).await? > 0 {}
            store.put_quotas("loud", &few, "token:admin").await?;
            store.put_quotas("full", &little, "token:admin").await
        })
        .await
        .expect("quotas");
    let event = |tenant: &str, n: usize| json!({ "id": format!("{n}"), "tenantid": tenant });
    let mut events: Vec<Value> = (0..10).map(|n| event("loud", n)).collect();
    events.extend((0..5).map(|n| event("full", n)));
    events.push(json!({ "id": "1" }));
    instance.publish(&events).await;
    instance.match_events().await;
    for (task, fired, skipped) in [(&loud, 3, 7), (&full, 0, 5), (&quiet, 1, 0)] {
        let runs = instance.runs(task).await;
        let quota = runs.iter().filter(|run| run.reason.as_deref() == Some("quota"));
        let over: u64 = quota.filter_map(|run| run.tallied_fires()?.count).sum();
        let made = runs.iter().filter(|run| run.reason.is_none()).count();
        let records = fired + usize::from(skipped > 0);
        assert_eq!((made, over, runs.len()), (fired, skipped, records), "{}", task.tenant_id);
    }
    assert_eq!(instance.bus().backlog().await.unwrap(), BusBacklog::default(), "everything is acknowledged");
    instance.crash();
}

async fn flood_is_recorded_once_though_its_instance_dies_halfway(world: World) {
    let first = world.instance();
    let loud = flooded(&first).await;
    for _ in 0..3 {
        first.match_round().await;
    }
    first.crash();
    world.stall().await;
    let second = world.instance();
    second.match_events().await;
    for task in &loud {
        assert_eq!(second.runs(task).await.len(), EVENTS);
    }
    assert_eq!(second.bus().backlog().await.unwrap(), BusBacklog::default());
    second.crash();
}

/// Postgres gives up every statement that records more than 20 runs, and every one that records an event `poison`.
const GIVE_UP: &str = "
    create function give_up() returns trigger language plpgsql as $$
    begin
        if (select count(*) from made) > 20 or exists (select from made where event_ids::text like '%poison%') then
            raise exception 'canceling statement due to statement timeout' using errcode = '57014';
        end if;
        return null;
    end $$;
    create trigger give_up after insert on runs referencing new table as made
        for each statement execute function give_up()";

/// In place of a slow machine: which statement takes too long is told by how much it records.
async fn write_that_times_out_is_halved_and_an_event_that_does_so_alone_becomes_a_dead_letter(world: World) {
    let instance = world.instance();
    let loud = flooded(&instance).await;
    let quiet = instance.task(on(json!({}))).await;
    world.define("", GIVE_UP).await;
    instance.publish(&[json!({ "id": "1" }), json!({ "id": "poison" }), json!({ "id": "2" })]).await;
    for _ in 1..=5 {
        instance.match_events().await;
        assert_eq!(recorded(&instance, &quiet).await, ["1", "2"]);
        world.stall().await;
    }
    instance.match_events().await;
    for task in &loud {
        assert_eq!(instance.runs(task).await.len(), EVENTS, "each match has its record");
    }
    let all = DeadLetterFilter { limit: 9, ..DeadLetterFilter::default() };
    let letters = instance.bus().dead_letters(&Scope::Every, &all).await.unwrap().letters;
    assert_eq!(letters.len(), 1, "{letters:?}");
    assert_eq!((letters[0].tenant.as_deref(), letters[0].deliveries), (Some("ann"), 5));
    assert!(letters[0].error.contains("took too long"), "{}", letters[0].error);
    assert_eq!(instance.bus().backlog().await.unwrap(), BusBacklog::default());
    instance.crash();
}

#[tokio::test]
async fn write_that_times_out_on_the_embedded_bus() {
    write_that_times_out_is_halved_and_an_event_that_does_so_alone_becomes_a_dead_letter(World::postgres().await).await;
}

#[tokio::test]
async fn write_that_times_out_on_redis() {
    write_that_times_out_is_halved_and_an_event_that_does_so_alone_becomes_a_dead_letter(World::redis().await).await;
}
