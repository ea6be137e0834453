//! Tasks that are known here in their version are not read again, and a change of one is seen by the next run.

use reveille::base::id::Scope;
use reveille::domain::notification::Recipient;
use reveille::domain::task::Task;
use reveille::domain::task::change::TaskChange;
use reveille::store::{FireDue, ImmediateStart, RunLimits, StartedRun, TakeRequest};
use serde_json::json;

use super::world::{LEASE, StoreHarness, WORKER, open_postgres, spec};
use crate::support::gate::Gate;

on_both!(
    edit_between_two_fires_is_seen_by_the_next,
    edit_between_two_takes_is_seen_by_the_next,
    known_task_is_not_read_again,
    known_tasks_of_two_tenants_go_with_their_own_runs,
    known_task_that_is_deleted_starts_nothing,
    recipient_is_as_it_was_written_last,
);

/// Starts what is due, with the commit that records it.
async fn fire(world: &StoreHarness) -> StartedRun {
    world.pass(60);
    let start = ImmediateStart { slots: 9, lease_until: world.now() + LEASE, shares: None };
    let fired = world.store.fire_due(&FireDue { start: Some(start), ..world.ask(0, 100) }).await.expect("a fire");
    one(fired.started)
}

fn one(started: Vec<StartedRun>) -> StartedRun {
    let [started] = <[StartedRun; 1]>::try_from(started).expect("one run that starts");
    started
}

/// Asks for a run of the task, and takes it.
async fn take(world: &StoreHarness, task: &Task) -> StartedRun {
    world.run_now(task).await;
    one(take_ready(world).await)
}

async fn take_ready(world: &StoreHarness) -> Vec<StartedRun> {
    let (now, limits) = (world.now(), RunLimits::default());
    let lease_until = now + LEASE;
    let take =
        TakeRequest { worker: WORKER, now, ahead: now, lease_until, limit: 100, fair: None, limits, shares: None };
    world.store.take_runs(&take).await.expect("a take").starts.started
}

/// As a claim that waited for its instant does.
async fn start(world: &StoreHarness) -> StartedRun {
    world.pass(60);
    let fired = world.fire().await;
    let leases: Vec<_> = fired.claims.iter().map(|claim| claim.lease).collect();
    one(world.store.start_runs(&leases, world.now() + LEASE).await.expect("a start").started)
}

/// The instruction, name and version with which a run has started; the run ends.
async fn brought(world: &StoreHarness, started: StartedRun) -> (String, String, i64) {
    world.succeed(&started).await;
    let task = started.task.expect("its task");
    (task.spec.action.instruction.clone(), task.name.clone(), task.version)
}

async fn edit(world: &StoreHarness, task: &Task, instruction: &str) {
    let version = world.get_task(task.id).await.version;
    let spec = spec(json!({"interval": "1m"}), json!({"action": {"instruction": instruction}}));
    let edit = TaskChange::Edit { version, name: format!("to {instruction}"), spec: Box::new(spec) };
    world.store.change_task(&Scope::Every, task.id, &edit).await.expect("edited");
}

fn told(instruction: &str, name: &str, version: i64) -> (String, String, i64) {
    (instruction.into(), name.into(), version)
}

async fn edit_between_two_fires_is_seen_by_the_next(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m"})).await;
    for _ in 0..3 {
        let started = fire(world).await;
        assert_eq!(brought(world, started).await, told("say hello", "Morning mail", 1));
    }
    edit(world, &task, "write").await;
    let started = fire(world).await;
    assert_eq!(brought(world, started).await, told("write", "to write", 2));
    edit(world, &task, "read").await;
    let started = start(world).await;
    assert_eq!(brought(world, started).await, told("read", "to read", 3), "one that was claimed ahead");
}

async fn edit_between_two_takes_is_seen_by_the_next(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m"})).await;
    for _ in 0..2 {
        let started = take(world, &task).await;
        assert_eq!(brought(world, started).await, told("say hello", "Morning mail", 1));
    }
    world.run_now(&task).await;
    edit(world, &task, "write").await;
    let started = one(take_ready(world).await);
    assert_eq!(
        brought(world, started).await,
        told("write", "to write", 2),
        "what was asked for before runs as it is now"
    );
}

/// A row that changes without its version, as no release does it, shows whether it was read.
async fn known_task_is_not_read_again(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m"})).await;
    let started = take(world, &task).await;
    assert_eq!(brought(world, started).await, told("say hello", "Morning mail", 1));
    let other = r#"replace(cast(spec as text), 'say hello', 'nobody reads this')"#;
    let other = if world.is_postgres() { format!("cast({other} as jsonb)") } else { other.to_owned() };
    world.plant(&format!("update tasks set name = 'other', spec = {other}")).await;
    let started = take(world, &task).await;
    assert_eq!(brought(world, started).await, told("say hello", "Morning mail", 1), "taken");
    for _ in 0..3 {
        let started = fire(world).await;
        assert_eq!(brought(world, started).await, told("say hello", "Morning mail", 1), "fired");
    }
    let started = start(world).await;
    assert_eq!(brought(world, started).await, told("say hello", "Morning mail", 1), "claimed, and started");
    world.plant("update tasks set version = version + 1").await;
    let started = fire(world).await;
    assert_eq!(brought(world, started).await, told("nobody reads this", "other", 2));
}

async fn known_tasks_of_two_tenants_go_with_their_own_runs(world: &StoreHarness) {
    let tasks = ["a", "b"].map(|tenant| {
        world.task_with(tenant, json!({"interval": "1m"}), json!({"action": {"instruction": format!("for {tenant}")}}))
    });
    let tasks = futures::future::join_all(tasks).await;
    let recipient = Recipient { locale: "de".into(), ..Recipient::default() };
    world.store.put_recipient(&Scope::Every, "b", &recipient, None).await.expect("written");
    for _ in 0..3 {
        for task in &tasks {
            world.run_now(task).await;
        }
        let mut taken = take_ready(world).await;
        taken.sort_by(|a, b| a.run.tenant_id.cmp(&b.run.tenant_id));
        let brought: Vec<_> = taken
            .iter()
            .map(|started| {
                let task = started.task.as_ref().expect("its task");
                let locale = started.recipient.as_ref().map(|recipient| recipient.locale.as_str());
                (started.run.tenant_id.as_str(), task.tenant_id.as_str(), task.spec.action.instruction.as_str(), locale)
            })
            .collect();
        assert_eq!(brought, [("a", "a", "for a", None), ("b", "b", "for b", Some("de"))]);
        for started in &taken {
            world.succeed(started).await;
        }
    }
}

async fn known_task_that_is_deleted_starts_nothing(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m"})).await;
    for _ in 0..2 {
        let started = fire(world).await;
        world.succeed(&started).await;
    }
    world.pass(60);
    let leases: Vec<_> = world.fire().await.claims.iter().map(|claim| claim.lease).collect();
    assert_eq!(leases.len(), 1);
    world.store.delete_task(&Scope::Every, task.id).await.expect("deleted");
    assert_eq!(world.store.start_runs(&leases, world.now() + LEASE).await.expect("a start").started, []);
    world.pass(60);
    assert_eq!(world.fire().await.claims, []);
    assert_eq!(take_ready(world).await, []);
}

async fn recipient_is_as_it_was_written_last(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m"})).await;
    let mut read = None;
    for locale in ["de", "fr", "it"] {
        let recipient = Recipient { locale: locale.into(), ..Recipient::default() };
        read = Some(world.store.put_recipient(&Scope::Every, "a", &recipient, read.as_ref()).await.expect("written"));
        for way in 0..3 {
            let started = match way {
                0 => take(world, &task).await,
                1 => start(world).await,
                _ => fire(world).await,
            };
            assert_eq!(started.recipient.as_deref(), Some(&recipient));
            world.succeed(&started).await;
        }
    }
    world.store.delete_recipient(&Scope::Every, "a", "somebody").await.expect("deleted");
    let started = take(world, &task).await;
    assert_eq!(started.recipient, None);
    world.succeed(&started).await;
}

#[tokio::test]
async fn runs_of_known_tasks_are_taken_and_started_by_one_statement() {
    let mut world = StoreHarness::postgres().await;
    world.store.close().await;
    let gate = Gate::before(&world.url()).await;
    gate.open().await;
    world.store = open_postgres(&gate.url(&world.url()), &world.clock).await;
    let tasks = [world.task(json!({"interval": "1m"})).await, world.task(json!({"interval": "1m"})).await];
    let recipient = Recipient { locale: "de".into(), ..Recipient::default() };
    world.store.put_recipient(&Scope::Every, "a", &recipient, None).await.expect("written");
    let mut counted = Vec::new();
    for _ in 0..3 {
        for task in &tasks {
            world.run_now(task).await;
        }
        let before = gate.requests();
        let taken = take_ready(&world).await;
        let after = gate.requests();
        assert_eq!(taken.len(), 2);
        for started in &taken {
            assert_eq!(started.recipient.as_deref(), Some(&recipient));
            world.succeed(started).await;
        }
        world.pass(60);
        let leases: Vec<_> = world.fire().await.claims.iter().map(|claim| claim.lease).collect();
        let before_start = gate.requests();
        let starts = world.store.start_runs(&leases, world.now() + LEASE).await.expect("a start");
        counted.push((after - before, gate.requests() - before_start));
        assert_eq!(starts.started.len(), 2);
        for started in &starts.started {
            world.succeed(started).await;
        }
    }
    // a statement is prepared on each of its connections, and a task read, once
    assert_eq!(counted.last(), Some(&(1, 1)), "{counted:?}");
    world.store.close().await;
}
