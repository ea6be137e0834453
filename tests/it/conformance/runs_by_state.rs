//! Lists of runs by state: those that are not over at once, however old they are, and of all others so many rows a
//! page.

use std::collections::BTreeSet;

use reveille::base::id::Scope;
use reveille::domain::run::RunState;
use reveille::store::{RunFilter, RunOverview, SCANNED};
use serde_json::json;
use uuid::Uuid;

use super::completions::park_for_completion;
use super::world::{StoreHarness, only};

on_both!(
    unfinished_runs_are_on_the_first_page_however_old_they_are,
    page_by_a_rare_state_goes_on_behind_the_rows_that_it_has_read,
    runs_of_a_long_queue_are_listed_each_once,
);

async fn unfinished_runs_are_on_the_first_page_however_old_they_are(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1h", "overlap": "queue_all"})).await;
    let running = world.started(&task).await.run.id;
    let blocked = world.run_now(&task).await;
    let claims = world.claim().await;
    world.store.start_runs(&super::world::leases(&claims), world.now() + super::world::LEASE).await.unwrap();
    assert_eq!(world.count("select count(*) from parked where reason = 'overlap'").await, 1);
    let other = world.task(json!({"interval": "1h"})).await;
    let waiting = world.started(&other).await;
    park_for_completion(world, &waiting, 600).await;
    let ready = world.run_now(&world.task(json!({"interval": "1h"})).await).await;
    plant_newer(world, "succeeded", SCANNED as usize + 500).await;
    for scope in [Scope::Every, only("a")] {
        for (state, expected) in [
            (RunState::Running, vec![running]),
            (RunState::Queued, vec![ready, blocked]),
            (RunState::WaitingForCompletion, vec![waiting.run.id]),
            (RunState::PendingApproval, vec![]),
            (RunState::WaitingForInput, vec![]),
        ] {
            let found = world.store.run_summaries(&scope, &in_state(state, 9)).await.unwrap();
            assert_eq!((ids(&found.rows), found.behind), (expected, None), "{state:?} of {scope:?}");
        }
    }
    let of_task = RunFilter { task_id: Some(other.id), ..in_state(RunState::WaitingForCompletion, 9) };
    assert_eq!(ids(&world.store.run_summaries(&only("a"), &of_task).await.unwrap().rows), [waiting.run.id]);
    assert_eq!(world.store.run_summaries(&only("b"), &of_task).await.unwrap().rows, []);
    world.plant("delete from runs where fire_key like 'm:p%'").await;
}

async fn page_by_a_rare_state_goes_on_behind_the_rows_that_it_has_read(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1h"})).await;
    let rare = world.run_now(&task).await;
    world.store.cancel_run(&Scope::Every, rare, "no").await.unwrap();
    plant_newer(world, "succeeded", SCANNED as usize - 1).await;
    for scope in [Scope::Every, only("a")] {
        let page = world.store.run_summaries(&scope, &in_state(RunState::Cancelled, 9)).await.unwrap();
        assert_eq!(ids(&page.rows), [rare], "it is the last row that a page reads");
    }
    world.plant("delete from runs where fire_key like 'm:p%'").await;
    plant_newer(world, "succeeded", SCANNED as usize).await;
    for scope in [Scope::Every, only("a")] {
        let mut filter = in_state(RunState::Cancelled, 9);
        let first = world.store.run_summaries(&scope, &filter).await.unwrap();
        assert_eq!(first.rows, [], "it is one row behind what a page reads");
        filter.before = first.behind;
        assert!(filter.before.is_some(), "the list is not over");
        let second = world.store.run_summaries(&scope, &filter).await.unwrap();
        assert_eq!((ids(&second.rows), second.behind), (vec![rare], None));
    }
    world.plant("delete from runs where fire_key like 'm:p%'").await;
}

async fn runs_of_a_long_queue_are_listed_each_once(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1h", "overlap": "allow"})).await;
    let oldest = world.run_now(&task).await;
    plant_newer(world, "queued", 2_500).await;
    world
        .plant(
            "insert into queue (run_id, task_id, tenant_id, epoch, run_at, state)
             select r.id, r.task_id, r.tenant_id, q.epoch, q.run_at, 'ready' from runs r, queue q
              where r.fire_key like 'm:p%'",
        )
        .await;
    let mut filter = in_state(RunState::Queued, 1_000);
    let mut listed = Vec::new();
    loop {
        let page = world.store.run_summaries(&only("a"), &filter).await.unwrap();
        listed.extend(ids(&page.rows));
        filter.before = match page.rows.last().filter(|_| page.rows.len() == 1_000) {
            Some(last) => Some(last.run.id),
            None => page.behind,
        };
        if filter.before.is_none() {
            break;
        }
    }
    assert_eq!(listed.last(), Some(&oldest));
    assert_eq!(listed.iter().collect::<BTreeSet<_>>().len(), 2_501);
    assert_eq!(listed.len(), 2_501);
    world.plant("delete from queue where run_id in (select id from runs where fire_key like 'm:p%')").await;
    world.plant("delete from runs where fire_key like 'm:p%'").await;
}

fn in_state(state: RunState, limit: i64) -> RunFilter {
    RunFilter { state: Some(state), limit, ..RunFilter::default() }
}

fn ids(runs: &[RunOverview]) -> Vec<Uuid> {
    runs.iter().map(|summary| summary.run.id).collect()
}

/// Runs in this state like one that is there, with ids that come behind all others.
async fn plant_newer(world: &StoreHarness, state: &str, count: usize) {
    let numbers = match world.is_postgres() {
        true => format!("with n (i) as (select generate_series(1, {count}))"),
        false => format!("with recursive n (i) as (select 1 union all select i + 1 from n where i < {count})"),
    };
    let id = match world.is_postgres() {
        true => "overlay(lpad(to_hex(i), 32, '0') placing 'ff' from 1)::uuid",
        false => "unhex('ff' || printf('%030x', i))",
    };
    world
        .plant(&format!(
            "{numbers} insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, created_at)
             select {id}, r.task_id, r.tenant_id, 'm:p' || i, r.trigger_type, r.scheduled_for, '{state}', r.created_at
               from (select * from runs where tenant_id = 'a' limit 1) r, n"
        ))
        .await;
}
