//! Retention: what has ended and is old goes, with what belongs to it; what has not ended stays, however old.

use chrono::{DateTime, TimeDelta};
use reveille::base::id::Scope;
use reveille::domain::notification::{Mark, MessageKind, NewDelivery};
use reveille::domain::run::RunState;
use reveille::domain::run::transcript::{TranscriptEntry, TranscriptMessage};
use reveille::store::{DeliveryFilter, Finish, StartedRun, StoreError};
use serde_json::json;
use uuid::Uuid;

use super::world::{START, StoreHarness, end_of};
use crate::support::outbox::claim_due;

on_both!(
    run_goes_with_its_transcript_and_its_deliveries,
    runs_that_have_not_ended_stay,
    message_that_waits_outlives_its_run,
    oldest_go_first_in_small_batches,
    messages_without_a_run_are_forgotten_once_they_have_ended,
    batch_is_bounded_by_the_rows_that_it_deletes,
    links_whose_time_is_over_are_forgotten,
);

pub(super) fn message(run_id: Option<Uuid>, key: &str) -> NewDelivery {
    NewDelivery {
        tenant_id: "a".into(),
        recipient: "a".into(),
        channel: "email".into(),
        fallback: vec![],
        dedupe_key: key.into(),
        run_id,
        subject_ref: None,
        kind: MessageKind::Result,
        urgency: MessageKind::Result.urgency(),
        subject: None,
        text: None,
    }
}

/// A run with a transcript and a message, ended now.
async fn ended(world: &StoreHarness, state: RunState) -> StartedRun {
    let started = world.started(&world.task(json!({"interval": "1h"})).await).await;
    let (message, id) = (TranscriptMessage::user("hello"), started.run.id);
    let entry = TranscriptEntry::new(0, 0, START, message);
    world.store.append("a", started.lease, &[entry]).await.unwrap();
    let deliveries = vec![self::message(Some(id), &id.to_string())];
    world.store.finish_runs(&[Finish { deliveries, ..end_of(&started, state) }]).await.unwrap();
    started
}

async fn deliver_all(world: &StoreHarness) {
    for claim in claim_due(&world.store, world.now() + TimeDelta::seconds(60), 9).await.unwrap() {
        world.store.mark_delivery(&claim, &Mark::Delivered { provider_id: None }).await.unwrap();
    }
}

const LEFT: &str =
    "select (select count(*) from runs) + (select count(*) from turns) + (select count(*) from deliveries)";

async fn run_goes_with_its_transcript_and_its_deliveries(world: &StoreHarness) {
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

async fn runs_that_have_not_ended_stay(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1h", "overlap": "allow"})).await;
    world.started(&task).await;
    world.run_now(&task).await;
    world.pass(10_000_000);
    assert_eq!(world.store.forget_runs(world.now(), 9).await.unwrap(), 0);
    assert_eq!(world.runs_of(&task).await.len(), 2);
}

async fn message_that_waits_outlives_its_run(world: &StoreHarness) {
    let run = ended(world, RunState::Succeeded).await;
    world.pass(10);
    assert_eq!(world.store.forget_runs(world.now(), 9).await.unwrap(), 1);
    let left = world.store.list_deliveries(&Scope::Every, &DeliveryFilter { limit: 9, ..Default::default() }).await;
    assert_eq!(left.unwrap()[0].run_id, Some(run.run.id));
    deliver_all(world).await;
    assert_eq!(world.store.forget_deliveries(world.now(), 9).await.unwrap(), 1);
    assert_eq!(world.count(LEFT).await, 0);
}

async fn oldest_go_first_in_small_batches(world: &StoreHarness) {
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

async fn messages_without_a_run_are_forgotten_once_they_have_ended(world: &StoreHarness) {
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

/// Runs of 1970 that have ended, each with so many turns.
async fn old_runs(world: &StoreHarness, runs: usize, turns: usize) {
    let (made, written) = match world.is_postgres() {
        true => (
            format!(
                "insert into runs (id, tenant_id, fire_key, trigger_type, scheduled_for, state, created_at, finished_at)
                 select ('0000' || substr(replace(gen_random_uuid()::text, '-', ''), 5))::uuid, 'a', 'p:{turns}:' || i,
                        'schedule', 'epoch', 'succeeded', 'epoch', 'epoch'
                   from generate_series(1, {runs}) i"
            ),
            format!(
                "insert into turns (run_id, seq, turn, format, body, created_at)
                 select r.id, i, i, 1, '{{}}', r.created_at from runs r, generate_series(1, {turns}) i
                  where r.fire_key like 'p:{turns}:%'"
            ),
        ),
        false => (
            format!(
                "with recursive n (i) as (select 1 union all select i + 1 from n where i < {runs})
                 insert into runs (id, tenant_id, fire_key, trigger_type, scheduled_for, state, created_at, finished_at)
                 select unhex('0000' || hex(randomblob(14))), 'a', 'p:{turns}:' || i, 'schedule',
                        '1970-01-01T00:00:00+00:00', 'succeeded', '1970-01-01T00:00:00+00:00',
                        '1970-01-01T00:00:00+00:00' from n"
            ),
            format!(
                "with recursive n (i) as (select 1 union all select i + 1 from n where i < {turns})
                 insert into turns (run_id, seq, turn, format, body, created_at)
                 select r.id, i, i, 1, '{{}}', r.created_at from runs r, n where r.fire_key like 'p:{turns}:%'"
            ),
        ),
    };
    world.plant(&made).await;
    world.plant(&written).await;
}

async fn batch_is_bounded_by_the_rows_that_it_deletes(world: &StoreHarness) {
    old_runs(world, 20, 300).await;
    let (mut batches, mut before) = (Vec::new(), world.count(LEFT).await);
    assert_eq!(before, 20 * 301);
    loop {
        let runs = world.store.forget_runs(START, 200).await.unwrap();
        let left = world.count(LEFT).await;
        assert!(before - left <= 2_000, "{} rows in one batch", before - left);
        before = left;
        if runs == 0 {
            break;
        }
        batches.push(runs);
    }
    assert_eq!((batches, before), (vec![6, 6, 6, 2], 0));
    // one that has more than a batch by itself goes alone, and not never
    old_runs(world, 2, 2_500).await;
    assert_eq!(world.store.forget_runs(START, 200).await.unwrap(), 1);
    assert_eq!(world.store.forget_runs(START, 200).await.unwrap(), 1);
    assert_eq!(world.count(LEFT).await, 0);
}

async fn links_whose_time_is_over_are_forgotten(world: &StoreHarness) {
    for hash in ["h1", "h2", "h3"] {
        let (id, past) = match world.is_postgres() {
            true => ("gen_random_uuid()", "'epoch'"),
            false => ("randomblob(16)", "'1970-01-01T00:00:00+00:00'"),
        };
        let link = format!(
            "insert into approval_links (token_hash, batch_id, tenant_id, recipient, channel, expires_at)
             values ('{hash}', {id}, 'a', 'a', 'email', {past})"
        );
        world.plant(&link).await;
    }
    assert_eq!(world.store.forget_links(DateTime::UNIX_EPOCH - TimeDelta::days(1), 9).await.unwrap(), 0);
    assert_eq!(world.store.forget_links(START, 2).await.unwrap(), 2);
    assert_eq!(world.store.forget_links(START, 2).await.unwrap(), 1);
}
