//! Tenants in turn: what is due of a quiet tenant is found within a counted number of batches, whatever is due of others.

use chrono::{DateTime, TimeDelta, Utc};
use reveille::event::Event;
use reveille::run::RunState;
use reveille::store::{EventFilter, Finish, FireDue, Park};
use serde_json::{Value, json};
use uuid::Uuid;

use super::asked::{LIMIT, asked};
use super::world::{START, World, end_of, new_task, only};

on_both!(
    due_tasks_of_a_quiet_tenant_fire_in_the_second_batch_beside_thousands_of_others,
    tenants_with_nothing_due_take_no_turn_from_those_that_have,
    run_of_a_quiet_tenant_that_waits_for_people_is_in_the_first_look_beside_others,
    overdue_completion_of_a_quiet_tenant_is_in_the_first_look_beside_others,
    short_write_stands_behind_one_large_write_of_a_caller_at_most,
);

/// Their names stand before and behind that of the quiet tenant.
const LOUD: [&str; 2] = ["a-loud", "z-loud"];
const QUIET: &str = "quiet";

fn at(millis: i64) -> DateTime<Utc> {
    START + TimeDelta::milliseconds(millis)
}

/// So many tasks of a tenant that are due once.
async fn due_once(world: &World, tenant: &str, count: usize, due: DateTime<Utc>) -> Vec<Uuid> {
    let trigger: Value = json!({ "at": due.to_rfc3339() });
    let tasks: Vec<_> = (0..count).map(|_| new_task(tenant, trigger.clone(), json!({}), world.now())).collect();
    for stored in world.store.create_tasks(&tasks).await.unwrap() {
        assert!(stored);
    }
    tasks.into_iter().map(|(task, _)| task.id).collect()
}

async fn runs_of_tenant(world: &World, tenant: &str) -> i64 {
    world.count(&format!("select count(*) from runs where tenant_id = '{tenant}'")).await
}

/// Neither the earliest nor the latest that are due are the quiet tenant's.
async fn due_tasks_of_a_quiet_tenant_fire_in_the_second_batch_beside_thousands_of_others(world: &World) {
    const EACH: usize = 800;
    for tenant in LOUD {
        due_once(world, tenant, EACH, at(1_000)).await;
        due_once(world, tenant, EACH, at(3_000)).await;
    }
    due_once(world, QUIET, 3, at(2_000)).await;
    world.pass(10);
    let ask = FireDue { limit: 100, ..world.ask(0, 10_000) };
    for _ in 0..2 {
        let fired = world.store.fire_due(&ask).await.unwrap();
        assert!(
            fired.tasks <= 120,
            "a batch has a tenth more of those due last, and a tenth more of turns: {}",
            fired.tasks
        );
    }
    assert_eq!(runs_of_tenant(world, QUIET).await, 3);
    for tenant in LOUD {
        assert!(runs_of_tenant(world, tenant).await > 0);
    }
    let mut batches = 2;
    while world.store.fire_due(&ask).await.unwrap().tasks > 0 {
        batches += 1;
        assert!(batches <= 33, "all is done in as many batches as it fills");
    }
    for tenant in LOUD {
        assert_eq!(runs_of_tenant(world, tenant).await, 2 * EACH as i64, "each once");
    }
    assert_eq!(runs_of_tenant(world, QUIET).await, 3);
}

async fn tenants_with_nothing_due_take_no_turn_from_those_that_have(world: &World) {
    for number in 0..30 {
        due_once(world, &format!("idle-{number:02}"), 1, at(3_600_000)).await;
    }
    due_once(world, LOUD[0], 60, at(1_000)).await;
    due_once(world, LOUD[0], 60, at(3_000)).await;
    due_once(world, QUIET, 1, at(2_000)).await;
    world.pass(10);
    let ask = FireDue { limit: 20, ..world.ask(0, 1_000) };
    for _ in 0..2 {
        world.store.fire_due(&ask).await.unwrap();
    }
    assert_eq!(runs_of_tenant(world, QUIET).await, 1);
    while world.store.fire_due(&ask).await.unwrap().tasks > 0 {}
}

async fn run_of_a_quiet_tenant_that_waits_for_people_is_in_the_first_look_beside_others(world: &World) {
    for number in 0..9 {
        let (_, started, _) = asked(world, &["c1"]).await;
        let (tenant, later) = if number == 8 { (QUIET, 60) } else { (LOUD[number % 2], 0) };
        let id = world.id(started.run.id);
        world.plant(&format!("update parked set tenant_id = '{tenant}' where run_id = {id}")).await;
        if later > 0 {
            let wake = (world.now() + TimeDelta::seconds(LIMIT / 2 + later)).to_rfc3339();
            world.plant(&format!("update parked set wake_at = '{wake}' where run_id = {id}")).await;
        }
    }
    world.pass(LIMIT / 2 + 61);
    let quiet = "select count(*) from parked where tenant_id = 'quiet'";
    assert_eq!(world.count(quiet).await, 1);
    let looked_at = world.store.waiting_for_people(world.now(), 4).await.unwrap();
    let mut found = Vec::new();
    for waiting in &looked_at {
        let of =
            format!("select count(*) from parked where tenant_id = 'quiet' and run_id = {}", world.id(waiting.run.id));
        found.push(world.count(&of).await);
    }
    assert_eq!((found.len(), found.iter().sum::<i64>()), (3, 1), "one of each tenant");
    assert_eq!(world.store.waiting_for_people(world.now(), 100).await.unwrap().len(), 9, "all, where all fit");
}

async fn overdue_completion_of_a_quiet_tenant_is_in_the_first_look_beside_others(world: &World) {
    for (tenant, runs, seconds) in [(LOUD[0], 6, 10), (LOUD[1], 6, 10), (QUIET, 1, 20)] {
        let task = world.task_with(tenant, json!({ "interval": "1h" }), json!({})).await;
        for _ in 0..runs {
            let started = world.started(&task).await;
            let park = Some(Park::Completion { until: world.now() + TimeDelta::seconds(seconds) });
            let end = Finish { park, ..end_of(&started, RunState::WaitingForCompletion) };
            assert_eq!(world.store.finish_runs(&[end]).await.unwrap(), Vec::<Uuid>::new());
        }
    }
    world.pass(60);
    let overdue = world.store.overdue_completions(world.now(), 6).await.unwrap();
    let tenants: Vec<&str> = overdue.iter().map(|(run, _)| run.tenant_id.as_str()).collect();
    assert_eq!(tenants.len(), 5, "two of each that has so many: {tenants:?}");
    assert_eq!(tenants.iter().filter(|tenant| **tenant == QUIET).count(), 1);
    assert_eq!(world.store.overdue_completions(world.now(), 100).await.unwrap().len(), 13, "all, where all fit");
}

/// Where each event stands in the log says in which order they were written.
async fn short_write_stands_behind_one_large_write_of_a_caller_at_most(world: &World) {
    const LARGE: usize = 200;
    if world.is_postgres() {
        return; // each caller has a connection there
    }
    let events = |tenant: &str, id: &str, count: usize| -> Vec<Event> {
        let event = |number: usize| {
            let id = format!("{id}-{number}");
            json!({ "specversion": "1.0", "id": id, "source": "s", "type": "t", "tenantid": tenant })
        };
        (0..count).map(|number| Event::try_from(event(number)).expect("an event")).collect()
    };
    let large: Vec<Vec<Event>> = (0..5).map(|number| events(LOUD[number % 2], &number.to_string(), LARGE)).collect();
    let short = events(QUIET, "quiet", 1);
    let loud = futures::future::join_all(large.iter().map(|events| world.store.publish_events(events)));
    // the large ones have all asked before the short one does
    let (written, quiet) = futures::future::join(loud, world.store.publish_events(&short)).await;
    assert!(written.into_iter().all(|written| written.unwrap() == LARGE as u64));
    assert_eq!(quiet.unwrap(), 1);
    let filter = EventFilter { limit: 9, ..EventFilter::default() };
    let found = world.store.read_events(&only(QUIET), &filter).await.unwrap();
    assert!(found[0].0 <= LARGE as i64 + 1, "{} were written before it", found[0].0 - 1);
}
