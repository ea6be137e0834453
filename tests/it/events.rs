//! Events from the bus to runs: the matcher ticked by hand, instances that come and go.

mod storm;

use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use reveille::base::compute::Compute;
use reveille::base::id::{Scope, Tenant};
use reveille::base::metrics::Metrics;
use reveille::domain::event::Event;
use reveille::domain::task::TaskStatus;
use reveille::domain::task::change::TaskChange;
use reveille::engine::events::matcher::EventMatcher;
use reveille::engine::scheduling::run_starter::RunStarter;
use reveille::ports::bus::{
    Bus, BusBacklog, BusDeadLetter, BusEntry, BusError, DeadLetterFilter, DeadLetterPage, Log, LogFilter, NewestFilter,
};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::app::Instance;
use crate::support::world::World;

/// Runs each case on every pair of bus and database that is told apart by what it does.
macro_rules! on_each_bus {
    ($($case:ident)*) => { $(
        mod $case {
            #[tokio::test]
            async fn embedded_on_sqlite() {
                super::$case($crate::support::world::World::sqlite()).await;
            }

            #[tokio::test]
            async fn embedded_on_postgres() {
                super::$case($crate::support::world::World::postgres().await).await;
            }

            #[tokio::test]
            async fn redis() {
                super::$case($crate::support::world::World::redis().await).await;
            }
        }
    )* };
}

mod explain;
mod fair;
mod starts;

on_each_bus! {
    event_runs_the_tasks_that_it_matches_and_no_other
    task_that_was_created_before_an_event_sees_it
    instance_that_dies_before_it_acknowledges_leaves_no_second_run
    one_event_that_can_not_be_recorded_holds_up_no_other_and_becomes_a_dead_letter
    stored_filter_beyond_a_bound_disables_its_task_and_tells_its_owner_once
    task_that_can_not_be_read_holds_up_no_events
    paused_task_holds_its_events_and_runs_them_when_it_is_resumed
    held_events_go_through_the_rules_of_their_task
    held_events_are_dropped_where_that_is_wanted
    window_closes_though_the_instance_that_opened_it_is_gone
    window_that_can_not_be_recorded_holds_up_no_other
    two_instances_share_the_bus
    missing_field_of_a_filter_is_told_to_its_owner_once
}

fn on(trigger: Value) -> Value {
    let mut event = json!({ "type": "event", "source": "shop" });
    event.as_object_mut().unwrap().extend(trigger.as_object().unwrap().clone());
    json!({ "trigger": event })
}

/// The ids of the events of each run of a task, in the order of the ids, with what became of it.
async fn told(instance: &Instance, task: &reveille::domain::task::Task) -> Vec<String> {
    let runs = instance.runs(task).await;
    let mut told: Vec<String> = runs
        .into_iter()
        .map(|run| format!("{} {}", run.event_ids.join("+"), run.reason.unwrap_or(run.state.as_str().into())))
        .collect();
    told.sort();
    told
}

/// The ids of the events that a task has runs of, in their order; nothing is recorded as skipped.
async fn recorded(instance: &Instance, task: &reveille::domain::task::Task) -> Vec<String> {
    let runs = instance.runs(task).await;
    assert!(runs.iter().all(|run| run.reason.is_none()), "{runs:?}");
    let mut recorded: Vec<String> = runs.into_iter().map(|run| run.event_ids.join("+")).collect();
    recorded.sort();
    recorded
}

async fn event_runs_the_tasks_that_it_matches_and_no_other(world: World) {
    let instance = world.instance();
    let large = instance.task(on(json!({ "filter": "event.data.amount > 100" }))).await;
    let all = instance.task(on(json!({ "event_type": "ord*" }))).await;
    let other = instance.task(on(json!({ "event_type": "refund" }))).await;
    let amounts = [(1, 50), (2, 150)];
    instance.publish(&amounts.map(|(id, amount)| json!({ "id": id.to_string(), "data": { "amount": amount } }))).await;
    instance.match_events().await;
    instance.settle(0).await;
    assert_eq!(told(&instance, &large).await, ["2 succeeded"]);
    assert_eq!(told(&instance, &all).await, ["1 succeeded", "2 succeeded"]);
    assert_eq!(told(&instance, &other).await, [""; 0]);
    assert_eq!(instance.bus().backlog().await.unwrap(), BusBacklog::default(), "everything is acknowledged");
    instance.finish(&world).await;
}

async fn missing_field_of_a_filter_is_told_to_its_owner_once(world: World) {
    let instance = world.instance();
    instance.recipient().await;
    let named = |name: &str, trigger: Value| {
        let mut task = on(trigger);
        task["name"] = json!(name);
        task
    };
    let slipped = instance.task(named("Large orders", json!({ "filter": "event.data.amuont > 100" }))).await;
    let guarded = "has(event.data.vip) && event.data.vip";
    let guarded = instance.task(named("Guarded", json!({ "filter": guarded }))).await;
    let keyed = json!({ "dedup": { "key": "event.data.order", "window": "1h" } });
    instance.task(named("Orders", keyed)).await;
    let publish = async |instance: &Instance, ids: std::ops::Range<i32>| {
        let events: Vec<Value> = ids.map(|id| json!({ "id": id.to_string(), "data": { "amount": 500 } })).collect();
        instance.publish(&events).await;
        instance.match_events().await;
        let mut told: Vec<_> = instance.deliveries().await.into_iter().filter_map(|told| told.subject).collect();
        told.sort();
        told
    };
    let expected = ["A field is missing: Large orders", "A field is missing: Orders"];
    assert_eq!(publish(&instance, 0..5).await, expected);
    let message = instance.deliveries().await.into_iter().find(|told| told.subject.as_deref() == Some(expected[0]));
    let message = message.and_then(|message| message.text).expect("a text");
    assert!(message.contains("no `event.data.amuont`") && message.contains("`event.data.amuont > 100`"), "{message}");
    assert!(message.contains("Did you mean `amount`?"), "{message}");
    assert_eq!(publish(&instance, 5..9).await, expected, "not again");
    instance.crash();
    let instance = world.instance();
    assert_eq!(publish(&instance, 9..12).await, expected, "not by another instance either");
    // another expression is told of for itself
    let edited = json!({ "trigger": { "type": "event", "source": "shop", "filter": "event.data.amnt > 100" } });
    instance.edit(&slipped, edited).await;
    assert_eq!(publish(&instance, 12..14).await, [expected[0], expected[0], expected[1]]);
    assert_eq!(told(&instance, &guarded).await, [""; 0]);
    instance.finish(&world).await;
}

async fn task_that_was_created_before_an_event_sees_it(world: World) {
    let first = world.instance();
    let second = if world.is_postgres() { Some(world.instance()) } else { None };
    let matching = second.as_ref().unwrap_or(&first);
    // its index knows a shard without tasks
    matching.publish(&[json!({ "id": "0" })]).await;
    matching.match_events().await;
    let mut tasks = Vec::new();
    for id in 1..=5 {
        tasks.push(first.task(on(json!({}))).await);
        first.publish(&[json!({ "id": id.to_string() })]).await;
        matching.match_events().await;
    }
    matching.settle(0).await;
    for (made, task) in tasks.iter().enumerate() {
        let expected: Vec<String> = (made + 1..=5).map(|id| format!("{id} succeeded")).collect();
        assert_eq!(told(&first, task).await, expected);
    }
    for instance in [Some(first), second].into_iter().flatten() {
        instance.finish(&world).await;
    }
}

/// A bus whose acknowledgements get lost.
struct AckLosingBus(Arc<dyn Bus>);

impl Bus for AckLosingBus {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn publish<'a>(&'a self, events: &'a [Event]) -> BoxFuture<'a, Result<(), BusError>> {
        self.0.publish(events)
    }

    fn read_except<'a>(
        &'a self,
        full: &'a [Tenant],
        limit: usize,
        wait: Duration,
    ) -> BoxFuture<'a, Result<Vec<BusEntry>, BusError>> {
        self.0.read_except(full, limit, wait)
    }

    fn acknowledge<'a>(&'a self, _: &'a [String]) -> BoxFuture<'a, Result<(), BusError>> {
        Box::pin(async { Err(BusError::Unavailable { why: "the wire is cut".into() }) })
    }

    fn dead_letter_entry<'a>(&'a self, entry: &'a BusEntry, error: &'a str) -> BoxFuture<'a, Result<(), BusError>> {
        self.0.dead_letter_entry(entry, error)
    }

    fn log<'a>(&'a self, scope: &'a Scope, filter: &'a LogFilter) -> BoxFuture<'a, Result<Log, BusError>> {
        self.0.log(scope, filter)
    }

    fn find<'a>(
        &'a self,
        tenant: &'a Tenant,
        source: Option<&'a str>,
        id: &'a str,
    ) -> BoxFuture<'a, Result<Option<Event>, BusError>> {
        self.0.find(tenant, source, id)
    }

    fn ids<'a>(
        &'a self,
        tenant: &'a Tenant,
        source: Option<&'a str>,
        beginning: &'a str,
    ) -> BoxFuture<'a, Result<Vec<String>, BusError>> {
        self.0.ids(tenant, source, beginning)
    }

    fn newest<'a>(
        &'a self,
        tenant: &'a Tenant,
        filter: &'a NewestFilter,
    ) -> BoxFuture<'a, Result<Vec<Event>, BusError>> {
        self.0.newest(tenant, filter)
    }

    fn end<'a>(&'a self, scope: &'a Scope) -> BoxFuture<'a, Result<String, BusError>> {
        self.0.end(scope)
    }

    fn dead_letters<'a>(
        &'a self,
        scope: &'a Scope,
        filter: &'a DeadLetterFilter,
    ) -> BoxFuture<'a, Result<DeadLetterPage, BusError>> {
        self.0.dead_letters(scope, filter)
    }

    fn dead_letter<'a>(&'a self, scope: &'a Scope, id: &'a str) -> BoxFuture<'a, Result<BusDeadLetter, BusError>> {
        self.0.dead_letter(scope, id)
    }

    fn replay<'a>(&'a self, scope: &'a Scope, id: &'a str) -> BoxFuture<'a, Result<(), BusError>> {
        self.0.replay(scope, id)
    }

    fn drop_dead_letter<'a>(&'a self, scope: &'a Scope, id: &'a str) -> BoxFuture<'a, Result<(), BusError>> {
        self.0.drop_dead_letter(scope, id)
    }

    fn trim(&self, now: DateTime<Utc>) -> BoxFuture<'_, Result<u64, BusError>> {
        self.0.trim(now)
    }

    fn backlog(&self) -> BoxFuture<'_, Result<BusBacklog, BusError>> {
        self.0.backlog()
    }

    fn concerns(&self) -> BoxFuture<'_, Result<Vec<String>, BusError>> {
        self.0.concerns()
    }
}

async fn instance_that_dies_before_it_acknowledges_leaves_no_second_run(world: World) {
    let first = world.instance();
    let task = first.task(on(json!({}))).await;
    let throttled = first.task(on(json!({ "throttle": { "limit": 1, "per": "1h" } }))).await;
    first.publish(&[json!({ "id": "1" }), json!({ "id": "2" })]).await;
    let bus = Arc::new(AckLosingBus(first.bus()));
    let died = first
        .on(|store| async move {
            let starter = RunStarter::recording_only(store.clone(), Uuid::from_u128(1));
            let matcher = EventMatcher::new(store, bus, starter, Compute::of_machine(), 5, &Metrics::new());
            matcher.process(Duration::ZERO).await
        })
        .await;
    assert!(died.unwrap_err().to_string().contains("the wire is cut"));
    first.crash();
    let second = world.instance();
    second.match_events().await;
    if world.is_postgres() && world.bus.is_embedded() {
        assert_eq!(second.bus().backlog().await.unwrap().pending, 2, "they are still the dead one's");
    }
    world.stall().await;
    second.match_events().await;
    second.settle(0).await;
    assert_eq!(told(&second, &task).await, ["1 succeeded", "2 succeeded"]);
    assert_eq!(told(&second, &throttled).await, ["1 succeeded", "2 throttled"]);
    assert_eq!(second.bus().backlog().await.unwrap(), BusBacklog::default());
    second.finish(&world).await;
}

async fn one_event_that_can_not_be_recorded_holds_up_no_other_and_becomes_a_dead_letter(world: World) {
    let instance = world.instance();
    let task = instance.task(on(json!({}))).await;
    world
        .define(
            "create trigger poison before insert on runs when new.event_ids like '%poison%'
             begin select raise(abort, 'as planted'); end",
            "alter table runs add constraint poison check (event_ids::text not like '%poison%')",
        )
        .await;
    instance.publish(&["1", "poison", "2"].map(|id| json!({ "id": id }))).await;
    for delivery in 1..=5 {
        instance.match_events().await;
        assert_eq!(recorded(&instance, &task).await, ["1", "2"]);
        // time passes in Redis by itself
        if world.bus.is_embedded() {
            assert_eq!(instance.bus().backlog().await.unwrap().pending, u64::from(delivery < 5));
        }
        world.stall().await;
    }
    let all = DeadLetterFilter { limit: 9, ..DeadLetterFilter::default() };
    let letters = instance.bus().dead_letters(&Scope::Every, &all).await.unwrap().letters;
    let [letter] = <[BusDeadLetter; 1]>::try_from(letters).unwrap();
    assert_eq!((letter.tenant.as_deref(), letter.deliveries), (Some("ann"), 5));
    assert!(letter.error.contains("poison") || letter.error.contains("as planted"), "{}", letter.error);
    instance.live(0).await;
    instance.finish(&world).await;
}

async fn stored_filter_beyond_a_bound_disables_its_task_and_tells_its_owner_once(world: World) {
    let instance = world.instance();
    let task = instance.task(on(json!({}))).await;
    let filter = |text: &str| json!({ "type": "event", "source": "shop", "filter": text });
    instance.recipient().await;
    let old = instance.task(json!({ "name": "old", "trigger": filter("event.id != ''") })).await;
    // as it was stored before there was a bound
    let long = format!("event.id != '{}'", "x".repeat(2_000));
    world
        .define(
            &format!(
                "update tasks set spec = json_set(spec, '$.trigger.filter', '{}') where name = 'old'",
                long.replace('\'', "''")
            ),
            &format!(
                "set reveille.tenant = '*';
                 update tasks set spec = jsonb_set(spec, '{{trigger,filter}}', '{}') where name = 'old'",
                json!(long).to_string().replace('\'', "''")
            ),
        )
        .await;
    for id in ["1", "2"] {
        instance.publish(&[json!({ "id": id })]).await;
        instance.match_events().await;
        instance.live(0).await;
    }
    assert_eq!(told(&instance, &task).await, ["1 succeeded", "2 succeeded"]);
    let after = instance.stored(&old).await;
    assert_eq!(after.status, TaskStatus::Disabled);
    let reason = after.status_reason.unwrap();
    assert!(reason.contains("an expression has at most 1024 bytes"), "{reason}");
    let notices = async |instance: &Instance| {
        let all = instance.deliveries().await;
        all.iter().filter(|delivery| delivery.dedupe_key.starts_with("notice:disabled:")).count()
    };
    assert_eq!(notices(&instance).await, 1);
    // nor is it read again after a restart
    instance.crash();
    let second = world.instance();
    second.publish(&[json!({ "id": "3" })]).await;
    second.match_events().await;
    second.live(0).await;
    assert_eq!(told(&second, &task).await, ["1 succeeded", "2 succeeded", "3 succeeded"]);
    assert_eq!((notices(&second).await, second.stored(&old).await.version), (1, after.version));
    second.finish(&world).await;
}

async fn task_that_can_not_be_read_holds_up_no_events(world: World) {
    let instance = world.instance();
    let task = instance.task(on(json!({}))).await;
    instance.task(json!({ "name": "broken", "trigger": { "type": "event", "source": "shop" } })).await;
    // in a shard of its own
    world
        .define(
            "update tasks set tenant_id = 'bob', spec = json_set(spec, '$.max_runs', 'many') where name = 'broken';
             update event_tasks set shard = 0 where task_id in (select id from tasks where name = 'broken');
             insert into event_index (shard, version) values (0, 9)",
            "set reveille.tenant = '*';
             update tasks set tenant_id = 'bob', spec = jsonb_set(spec, '{max_runs}', '\"many\"') where name = 'broken';
             update event_tasks set shard = 0 where task_id in (select id from tasks where name = 'broken');
             insert into event_index (shard, version) values (0, 9)",
        )
        .await;
    instance.publish(&[json!({ "id": "1", "tenantid": "bob" }), json!({ "id": "2" })]).await;
    for _ in 1..=5 {
        instance.match_events().await;
        assert_eq!(recorded(&instance, &task).await, ["2"]);
        world.stall().await;
    }
    // the task alone is left out: events of its tenant are handled as well
    let all = DeadLetterFilter { limit: 9, ..DeadLetterFilter::default() };
    let letters = instance.bus().dead_letters(&Scope::Every, &all).await.unwrap().letters;
    assert!(letters.is_empty(), "{letters:?}");
    assert_eq!(instance.bus().backlog().await.unwrap(), BusBacklog::default());
    world
        .define(
            "delete from tasks where name = 'broken'",
            "set reveille.tenant = '*'; delete from tasks where name = 'broken'",
        )
        .await;
    instance.live(0).await;
    instance.finish(&world).await;
}

#[tokio::test]
async fn events_wait_while_the_database_is_away() {
    let world = World::redis().await;
    let instance = world.instance();
    let task = instance.task(on(json!({}))).await;
    instance.publish(&[json!({ "id": "1" })]).await;
    instance.match_events().await;
    instance.publish(&["2", "3"].map(|id| json!({ "id": id }))).await;
    world.take_away().await;
    assert!(instance.match_once().await.is_err());
    instance.publish(&[json!({ "id": "4" })]).await;
    assert!(instance.match_once().await.is_err());
    assert_eq!(instance.bus().backlog().await.unwrap(), BusBacklog { unread: 1, pending: 2 });
    world.give_back().await;
    instance.match_events().await;
    instance.live(0).await;
    assert_eq!(told(&instance, &task).await, ["1 succeeded", "2 succeeded", "3 succeeded", "4 succeeded"]);
    assert_eq!(instance.bus().backlog().await.unwrap(), BusBacklog::default());
    instance.finish(&world).await;
}

async fn paused_task_holds_its_events_and_runs_them_when_it_is_resumed(world: World) {
    let first = world.instance();
    let task = first.task(on(json!({ "buffer_while_paused": true }))).await;
    first.change(&task, TaskChange::Pause { reason: None }).await;
    first.publish(&(0..250).map(|id| json!({ "id": format!("{id:03}") })).collect::<Vec<_>>()).await;
    first.match_events().await;
    assert_eq!(told(&first, &task).await, [""; 0]);
    first.crash();
    let second = world.instance();
    second.change(&task, TaskChange::Resume).await;
    second.close_windows().await;
    second.settle(0).await;
    assert_eq!(told(&second, &task).await, (0..250).map(|id| format!("{id:03} succeeded")).collect::<Vec<_>>());
    second.finish(&world).await;
}

async fn held_events_go_through_the_rules_of_their_task(world: World) {
    let instance = world.instance();
    let task = instance
        .task(on(json!({ "buffer_while_paused": true, "dedup": { "key": "event.data.order", "window": "1h" },
            "filter": "event.data.order > 0" })))
        .await;
    instance.change(&task, TaskChange::Pause { reason: None }).await;
    let order = |id: &str, order: i64| json!({ "id": id, "data": { "order": order } });
    instance.publish(&[order("1", 7), order("2", 7), order("3", 8), order("4", 0)]).await;
    instance.match_events().await;
    instance.change(&task, TaskChange::Resume).await;
    instance.close_windows().await;
    instance.settle(0).await;
    assert_eq!(told(&instance, &task).await, ["1 succeeded", "2 duplicate", "3 succeeded"]);
    instance.finish(&world).await;
}

async fn held_events_are_dropped_where_that_is_wanted(world: World) {
    let instance = world.instance();
    let task = instance.task(on(json!({ "buffer_while_paused": true }))).await;
    instance.change(&task, TaskChange::Pause { reason: None }).await;
    instance.publish(&[json!({ "id": "1" }), json!({ "id": "2" })]).await;
    instance.match_events().await;
    instance.change(&task, TaskChange::ResumeDropping).await;
    instance.close_windows().await;
    instance.publish(&[json!({ "id": "2" }), json!({ "id": "3" })]).await;
    instance.match_events().await;
    instance.settle(0).await;
    assert_eq!(told(&instance, &task).await, ["1 dropped", "2 dropped", "3 succeeded"]);
    instance.finish(&world).await;
}

async fn window_closes_though_the_instance_that_opened_it_is_gone(world: World) {
    let first = world.instance();
    let debounced = first.task(on(json!({ "debounce": "30s" }))).await;
    let batched = first.task(on(json!({ "batch": { "size": 2, "wait": "1m" } }))).await;
    first.publish(&["1", "2", "3"].map(|id| json!({ "id": id }))).await;
    first.match_events().await;
    first.crash();
    let second = world.instance();
    second.close_windows().await;
    world.advance(20.0); // what the dead one had claimed is given up
    second.live(0).await;
    assert_eq!(
        (told(&second, &debounced).await, told(&second, &batched).await),
        (vec![], vec!["1+2 succeeded".into()])
    );
    world.advance(10.0);
    second.close_windows().await;
    world.advance(30.0);
    second.close_windows().await;
    second.live(0).await;
    assert_eq!(told(&second, &debounced).await, ["1+2+3 succeeded"]);
    assert_eq!(told(&second, &batched).await, ["1+2 succeeded", "3 succeeded"]);
    second.finish(&world).await;
}

async fn window_that_can_not_be_recorded_holds_up_no_other(world: World) {
    let instance = world.instance();
    let keyed = json!({ "debounce": { "quiet": "30s", "key": "event.id" } });
    let task = instance.task(on(keyed)).await;
    world
        .define(
            "create trigger poison before insert on runs when new.event_ids like '%poison%'
             begin select raise(abort, 'as planted'); end",
            "alter table runs add constraint poison check (event_ids::text not like '%poison%')",
        )
        .await;
    instance.publish(&["poison", "1", "2"].map(|id| json!({ "id": id }))).await;
    instance.match_events().await;
    world.advance(30.0);
    instance.close_windows().await;
    instance.settle(0).await;
    assert_eq!(told(&instance, &task).await, ["1 succeeded", "2 succeeded"]);
    assert_eq!(world.number("select count(*) from event_windows").await, 1, "it is tried again");
    instance.finish(&world).await;
}

async fn two_instances_share_the_bus(world: World) {
    if !world.is_postgres() {
        // one process alone may have the file; two matchers of it are two threads
        let instance = world.instance();
        let task = instance.task(on(json!({}))).await;
        instance.publish(&(0..600).map(|id| json!({ "id": format!("{id:03}") })).collect::<Vec<_>>()).await;
        let (one, two) = tokio::join!(instance.match_events(), instance.match_events());
        assert_eq!((one, two), ((), ()));
        instance.settle(0).await;
        assert_eq!(instance.runs(&task).await.len(), 600);
        instance.finish(&world).await;
        return;
    }
    let (first, second) = (world.instance(), world.instance());
    let task = first.task(on(json!({}))).await;
    first.publish(&(0..600).map(|id| json!({ "id": format!("{id:03}") })).collect::<Vec<_>>()).await;
    tokio::join!(first.match_shared(), second.match_shared());
    tokio::join!(first.settle_shared(), second.settle_shared());
    assert_eq!(told(&first, &task).await, (0..600).map(|id| format!("{id:03} succeeded")).collect::<Vec<_>>());
    first.finish(&world).await;
    second.finish(&world).await;
}
