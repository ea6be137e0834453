//! Retention: what has ended and is old goes, with what belongs to it; what has not ended stays, however old.

use chrono::TimeDelta;
use reveille::id::Scope;
use reveille::notification::{Kind, Mark, NewDelivery};
use reveille::run::transcript::{Entry, Message};
use reveille::run::{RunState, Usage};
use reveille::store::{DeliveryFilter, Finish, StartedRun, StoreError};
use serde_json::json;
use uuid::Uuid;

use super::world::{START, World, end_of};
use crate::support::outbox::claim_due;

on_both!(
    a_run_goes_with_its_transcript_and_its_deliveries,
    runs_that_have_not_ended_stay,
    a_message_that_waits_outlives_its_run,
    the_oldest_go_first_in_small_batches,
    messages_without_a_run_are_forgotten_once_they_have_ended,
);

fn message(run_id: Option<Uuid>, key: &str) -> NewDelivery {
    NewDelivery {
        tenant_id: "a".into(),
        recipient: "a".into(),
        channel: "email".into(),
        fallback: vec![],
        dedupe_key: key.into(),
        run_id,
        kind: Kind::Result,
        urgency: Kind::Result.urgency(),
        subject: None,
        text: None,
    }
}

/// A run with a transcript and a message, ended now.
async fn ended(world: &World, state: RunState) -> StartedRun {
    let started = world.started(&world.task(json!({"interval": "1h"})).await).await;
    let (message, id) = (Message::user("hello"), started.run.id);
    let entry = Entry { seq: 0, turn: 0, at: START, message, usage: Usage::default(), duration_ms: None };
    world.store.append(started.lease, started.lease_until, &[entry]).await.unwrap();
    let deliveries = vec![self::message(Some(id), &id.to_string())];
    world.store.finish_runs(&[Finish { deliveries, ..end_of(&started, state) }]).await.unwrap();
    started
}

async fn deliver_all(world: &World) {
    for claim in claim_due(&world.store, world.now() + TimeDelta::seconds(60), 9).await.unwrap() {
        world.store.mark_delivery(&claim, &Mark::Delivered { provider_id: None }).await.unwrap();
    }
}

const LEFT: &str =
    "select (select count(*) from runs) + (select count(*) from turns) + (select count(*) from deliveries)";

async fn a_run_goes_with_its_transcript_and_its_deliveries(world: &World) {
    let old = ended(world, RunState::Succeeded).await;
    deliver_all(world).await;
    world.pass(10);
    let young = ended(world, RunState::Failed).await;
    deliver_all(world).await;
    assert_eq!(world.store.forget_runs(START, 9).await.unwrap(), 0);
    assert_eq!(world.store.forget_runs(world.now(), 9).await.unwrap(), 1);
    let gone = world.store.get_run(&Scope::Every, old.run.id).await;
    assert!(matches!(gone, Err(StoreError::NotFound)), "{gone:?}");
    assert_eq!(world.store.transcript(&Scope::Every, young.run.id, 0, 9).await.unwrap().len(), 1);
    assert_eq!(world.count(LEFT).await, 3);
    assert_eq!(world.store.forget_runs(world.now() + TimeDelta::milliseconds(1), 9).await.unwrap(), 1);
    assert_eq!(world.count(LEFT).await, 0);
}

async fn runs_that_have_not_ended_stay(world: &World) {
    let task = world.task(json!({"interval": "1h", "overlap": "allow"})).await;
    world.started(&task).await;
    world.run_now(&task).await;
    world.pass(10_000_000);
    assert_eq!(world.store.forget_runs(world.now(), 9).await.unwrap(), 0);
    assert_eq!(world.runs_of(&task).await.len(), 2);
}

async fn a_message_that_waits_outlives_its_run(world: &World) {
    let run = ended(world, RunState::Succeeded).await;
    world.pass(10);
    assert_eq!(world.store.forget_runs(world.now(), 9).await.unwrap(), 1);
    let left = world.store.list_deliveries(&Scope::Every, &DeliveryFilter { limit: 9, ..Default::default() }).await;
    assert_eq!(left.unwrap()[0].run_id, Some(run.run.id));
    deliver_all(world).await;
    assert_eq!(world.store.forget_deliveries(world.now(), 9).await.unwrap(), 1);
    assert_eq!(world.count(LEFT).await, 0);
}

async fn the_oldest_go_first_in_small_batches(world: &World) {
    let mut runs = Vec::new();
    for _ in 0..5 {
        runs.push(ended(world, RunState::Skipped).await.run.id);
        world.pass(1);
    }
    for left in [3, 1, 0, 0] {
        world.store.forget_runs(world.now(), 2).await.unwrap();
        assert_eq!(world.count("select count(*) from runs").await, left);
        if let Some(last) = runs.last().filter(|_| left > 0) {
            world.get_run(*last).await;
        }
    }
}

async fn messages_without_a_run_are_forgotten_once_they_have_ended(world: &World) {
    world.store.post_delivery(&message(None, "notice:paused:1:1")).await.unwrap();
    world.pass(1);
    assert_eq!(world.store.forget_deliveries(world.now(), 9).await.unwrap(), 0);
    deliver_all(world).await;
    assert_eq!(world.store.forget_deliveries(START, 9).await.unwrap(), 0);
    assert_eq!(world.store.forget_deliveries(world.now(), 9).await.unwrap(), 1);
    assert_eq!(world.count(LEFT).await, 0);
    // those of a run that is kept go with it
    ended(world, RunState::Succeeded).await;
    deliver_all(world).await;
    world.pass(1);
    assert_eq!(world.store.forget_deliveries(world.now(), 9).await.unwrap(), 0);
}
