//! Skip tallies: fires beyond a quota, those of halted tenants, and all of full tenants that are skipped have one
//! record for each task, hour and reason.

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::id::Scope;
use reveille::base::metrics::Metrics;
use reveille::domain::event::Event;
use reveille::domain::halt::HaltKind;
use reveille::domain::quota::{Overrides, Quota, Quotas};
use reveille::domain::run::{MissedInstants, Run, RunState};
use reveille::domain::task::Task;
use reveille::domain::task::change::TaskChange;
use reveille::domain::trigger::event::{EventVerdict, reason};
use serde_json::{Value, json};

use super::matching::{self, event, event_with};
use super::world::{START, StoreHarness, WORKER, only};

on_both!(
    burst_beyond_a_quota_is_one_record_that_counts_it_until_the_hour_is_over,
    each_task_has_a_tally_of_its_own,
    reasons_of_one_hour_have_a_tally_each,
    schedule_beyond_a_quota_is_tallied_and_its_instants_are_found,
    tally_stands_for_missed_instants_of_the_hour_before,
    window_that_closes_while_its_tenant_is_halted_is_tallied,
    events_of_a_full_tenant_are_tallied_whatever_they_are_skipped_for,
    windows_and_dropped_events_of_a_full_tenant_are_tallied,
    paused_task_of_a_full_tenant_buffers_no_more,
    tally_is_taken_back_by_a_change_while_its_one_instant_is_to_come,
    event_that_was_tallied_fires_once_when_it_comes_again,
    tally_of_an_event_is_that_of_the_hour_in_which_it_came_or_of_the_next,
    event_that_matches_is_in_no_tally_of_those_that_do_not,
    tally_that_can_t_be_read_keeps_no_other_fire_from_being_recorded,
    listed_tallies_keep_their_place_while_they_count,
);

const BY: &str = "token:admin";
const STOPPED: HaltKind = HaltKind::Stopped;

fn at(seconds: i64) -> DateTime<Utc> {
    START + TimeDelta::seconds(seconds)
}

async fn limit(world: &StoreHarness, fires_per_minute: u64) {
    world.store.set_default_quotas(&Quotas { fires_per_minute, ..Quotas::default() }).await.unwrap();
}

async fn stop(world: &StoreHarness) {
    world.store.halt(STOPPED, Some("a"), None, BY).await.unwrap();
}

/// Counted bytes of tenant `a` now.
async fn stored(world: &StoreHarness) -> Option<u64> {
    while world.store.count_stored_bytes(1_000).await.unwrap() > 0 {}
    world.store.quota_usage("a").await.unwrap().standings[&Quota::StoredBytes].usage
}

/// Lets tenant `a` store no more than it has.
async fn fill(world: &StoreHarness) {
    let overrides = Overrides { stored_bytes: stored(world).await, ..Overrides::default() };
    world.store.put_quotas("a", &overrides, BY).await.unwrap();
}

fn events(from: usize, count: usize) -> Vec<Event> {
    (from..from + count).map(|n| event(&format!("e{n}"))).collect()
}

/// The tallies of a task, by their keys: these, the first and the last instant as seconds from the start, and the
/// count.
async fn tallies(world: &StoreHarness, task: &Task) -> Vec<(String, i64, i64, Option<u64>)> {
    let told = |run: Run| {
        let MissedInstants { from, to, count } = run.tallied_fires()?.clone();
        assert_eq!((run.state, run.scheduled_for), (RunState::Skipped, to));
        assert_eq!((run.cause, run.input, run.event_ids.len()), (None, None, 0), "the record is small");
        Some((run.fire_key, (from - START).num_seconds(), (to - START).num_seconds(), count))
    };
    let mut tallies: Vec<_> = world.runs_of(task).await.into_iter().filter_map(told).collect();
    tallies.sort();
    tallies
}

fn key(hour: &str, reason: &str) -> String {
    format!("h:2026-03-01T{hour}:00:00.000Z/{reason}")
}

async fn burst_beyond_a_quota_is_one_record_that_counts_it_until_the_hour_is_over(world: &StoreHarness) {
    limit(world, 3).await;
    let metrics = Metrics::new();
    world.store.show_counts(&metrics);
    let task = matching::task(world, json!({})).await;
    let burst = matching::publish(world, events(0, 1_203)).await;
    assert_eq!((burst.recorded, burst.skipped, burst.duplicates), (3, 1_200, 0), "fires are counted");
    assert_eq!(world.runs_of(&task).await.len(), 3 + 1, "and have one record");
    assert_eq!(tallies(world, &task).await, [(key("08", "quota"), 0, 0, Some(1_200))]);
    world.pass(20);
    assert_eq!(matching::publish(world, events(2_000, 10)).await.skipped, 10);
    assert_eq!(tallies(world, &task).await, [(key("08", "quota"), 0, 20, Some(1_210))]);
    assert!(metrics.text().contains("reveille_skips_total{reason=\"quota\"} 1210"), "{}", metrics.text());
    world.pass(3_600);
    let next = matching::publish(world, events(3_000, 5)).await;
    assert_eq!((next.recorded, next.skipped), (3, 2), "another minute has its own");
    let hours = [(key("08", "quota"), 0, 20, Some(1_210)), (key("09", "quota"), 3_620, 3_620, Some(2))];
    assert_eq!(tallies(world, &task).await, hours);
    assert_eq!(world.get_task(task.id).await.fire_count, 6, "what is skipped of an event counts for no limit");
}

async fn each_task_has_a_tally_of_its_own(world: &StoreHarness) {
    limit(world, 1).await;
    let straight = matching::task(world, json!({})).await;
    let by_rules = matching::task_with(world, json!({}), json!({ "max_runs": 100 })).await;
    let recorded = matching::publish(world, events(0, 50)).await;
    assert_eq!((recorded.recorded, recorded.skipped), (1, 99));
    let mut counted = 0;
    for task in [&straight, &by_rules] {
        let [(_, _, _, count)] = &tallies(world, task).await[..] else { panic!("one tally") };
        counted += count.expect("a count");
    }
    assert_eq!(counted, 99);
}

async fn reasons_of_one_hour_have_a_tally_each(world: &StoreHarness) {
    limit(world, 1).await;
    let task = matching::task(world, json!({})).await;
    let other = world.task_with("b", json!({ "type": "event", "source": "shop" }), json!({})).await;
    matching::publish(world, events(0, 3)).await;
    stop(world).await;
    matching::publish(world, events(10, 4)).await;
    world.store.lift_halt(STOPPED, Some("a"), BY).await.unwrap();
    world.store.halt(HaltKind::TenantDisabled, Some("a"), None, BY).await.unwrap();
    let both = [events(20, 2), vec![event_with("e1", json!({ "tenantid": "b" }))]].concat();
    assert_eq!(matching::publish(world, both).await.skipped, 2);
    let reasons = [("quota", 2), ("stopped", 4), ("tenant_disabled", 2)];
    assert_eq!(tallies(world, &task).await, reasons.map(|(reason, count)| (key("08", reason), 0, 0, Some(count))));
    assert_eq!((tallies(world, &other).await.len(), world.runs_of(&other).await.len()), (0, 1), "others fire");
}

async fn schedule_beyond_a_quota_is_tallied_and_its_instants_are_found(world: &StoreHarness) {
    limit(world, 1).await;
    let task = world.task(json!({ "interval": "10s", "overlap": "allow" })).await;
    for tick in 1..=5 {
        world.pass(10);
        let fired = world.fire().await;
        let expected = if tick == 1 { (1, 0, 0) } else { (0, 1, 0) };
        assert_eq!((fired.recorded, fired.skipped, fired.conflicts), expected, "tick {tick}");
    }
    assert_eq!(tallies(world, &task).await, [(key("08", "quota"), 20, 50, Some(4))]);
    assert_eq!(world.get_task(task.id).await.fire_count, 5, "as what is skipped for overlap does");
    let [fired, tally] = &world.runs_of(&task).await[..] else { panic!("a run and a tally") };
    let around = async |scope: &Scope, seconds: i64| {
        let found = world.store.recorded_around(scope, task.id, at(seconds)).await.unwrap();
        (found.at.map(|run| run.id), found.covering.map(|run| run.id))
    };
    for scope in [Scope::Every, only("a")] {
        assert_eq!(around(&scope, 10).await, (Some(fired.id), None));
        for skipped in [20, 30, 50] {
            assert_eq!(around(&scope, skipped).await, (None, Some(tally.id)), "{skipped}");
        }
        assert_eq!(around(&scope, 60).await, (None, None));
    }
    assert_eq!(around(&only("b"), 30).await, (None, None));
}

async fn tally_stands_for_missed_instants_of_the_hour_before(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "10m" })).await;
    stop(world).await;
    world.pass(65 * 60);
    assert_eq!(world.fire().await.skipped, 1, "one run would stand for all of them");
    assert_eq!(tallies(world, &task).await, [(key("09", "stopped"), 600, 3_600, Some(6))]);
    let covering = async |seconds| {
        let found = world.store.recorded_around(&Scope::Every, task.id, at(seconds)).await.unwrap();
        found.covering.map(|run| run.fire_key)
    };
    for missed in [600, 1_200, 3_600] {
        assert_eq!(covering(missed).await, Some(key("09", "stopped")), "{missed}");
    }
    assert_eq!(covering(0).await, None);
    assert_eq!(covering(4_200).await, None);
}

async fn window_that_closes_while_its_tenant_is_halted_is_tallied(world: &StoreHarness) {
    let task = matching::task(world, json!({ "batch": { "size": 9, "wait": "10s" } })).await;
    matching::publish(world, events(0, 2)).await;
    stop(world).await;
    world.pass(11);
    let due = world.store.due_windows(world.now(), 9).await.unwrap();
    let closed = world.store.close_windows(&due, world.now(), WORKER, 9).await.unwrap();
    assert_eq!((closed.recorded, closed.skipped), (0, 1));
    assert_eq!(matching::publish(world, events(5, 2)).await.skipped, 2);
    assert_eq!(tallies(world, &task).await, [(key("08", "stopped"), 11, 11, Some(3))]);
}

fn old_event(tenant: &str, n: usize) -> Event {
    event_with(&format!("e{n}"), json!({ "tenantid": tenant, "time": at(-7_200).to_rfc3339() }))
}

async fn events_of_a_full_tenant_are_tallied_whatever_they_are_skipped_for(world: &StoreHarness) {
    let old = matching::task(world, json!({ "max_age": "1h" })).await;
    let faulty = matching::task(world, json!({ "filter": "event.data.n > 3" })).await;
    let paused = matching::paused(world, json!({})).await;
    let other = world.task_with("b", json!({ "type": "event", "source": "shop", "max_age": "1h" }), json!({})).await;
    let sent = async |from: usize| {
        let of_both = |n: usize| ["a", "b"].map(|tenant| old_event(tenant, n));
        matching::publish(world, (from..from + 3).flat_map(of_both).collect()).await
    };
    let records = async || {
        let mut records = Vec::new();
        for task in [&old, &faulty, &paused, &other] {
            records.push((world.runs_of(task).await.len(), tallies(world, task).await));
        }
        records
    };
    assert_eq!(sent(0).await.skipped, 4 * 3);
    assert_eq!(records().await, [3; 4].map(|rows| (rows, vec![])), "while there is room each has its record");
    fill(world).await;
    let full = stored(world).await.unwrap();
    for from in [10, 20] {
        let skipped = sent(from).await;
        assert_eq!((skipped.recorded, skipped.skipped, skipped.duplicates), (0, 4 * 3, 0));
        assert_eq!(stored(world).await, Some(full + 3 * 300), "a row for each task, which counts what follows");
    }
    let tally = |reason| (3 + 1, vec![(key("08", reason), 0, 0, Some(6))]);
    let expected = [tally("too_old"), tally("filter_error"), tally("paused"), (9, vec![])];
    assert_eq!(records().await, expected, "and the other tenant has room");
    let around = world.store.recorded_around(&only("a"), old.id, START).await.unwrap();
    assert_eq!(around.covering.map(|tally| tally.fire_key), Some(key("08", "too_old")));
    world.store.reset_quotas("a", BY).await.unwrap();
    assert_eq!(sent(30).await.skipped, 4 * 3);
    assert_eq!(world.runs_of(&old).await.len(), 3 + 1 + 3, "once there is room each has its record again");
}

async fn windows_and_dropped_events_of_a_full_tenant_are_tallied(world: &StoreHarness) {
    let windowed = matching::task(world, json!({ "debounce": { "quiet": "30s" } })).await;
    let holding = matching::paused(world, json!({ "buffer_while_paused": true })).await;
    assert_eq!(matching::publish(world, events(0, 2)).await.collected, 4);
    fill(world).await;
    world.store.change_task(&Scope::Every, windowed.id, &TaskChange::Pause { reason: None }).await.unwrap();
    world.pass(30);
    let due = world.store.due_windows(world.now(), 9).await.unwrap();
    assert_eq!(world.store.close_windows(&due, world.now(), WORKER, 9).await.unwrap().skipped, 1);
    assert_eq!(tallies(world, &windowed).await, [(key("08", "paused"), 30, 30, Some(1))]);
    world.store.change_task(&Scope::Every, holding.id, &TaskChange::ResumeDropping).await.unwrap();
    let dropped = matching::release(world, Some(EventVerdict::Skipped(reason::DROPPED.into()))).await;
    assert_eq!(dropped.iter().map(|recorded| recorded.skipped).sum::<usize>(), 2);
    assert_eq!(tallies(world, &holding).await, [(key("08", "dropped"), 30, 30, Some(2))]);
    assert_eq!((world.runs_of(&windowed).await.len(), world.runs_of(&holding).await.len()), (1, 1));
}

async fn paused_task_of_a_full_tenant_buffers_no_more(world: &StoreHarness) {
    let task = matching::paused(world, json!({ "buffer_while_paused": true })).await;
    assert_eq!(matching::publish(world, events(0, 2)).await.collected, 2);
    fill(world).await;
    let beyond = matching::publish(world, events(10, 5)).await;
    assert_eq!((beyond.collected, beyond.skipped), (0, 5));
    assert_eq!(matching::publish(world, events(1, 1)).await.duplicates, 1, "it is buffered already");
    assert_eq!(tallies(world, &task).await, [(key("08", "quota"), 0, 0, Some(5))]);
    // what it has buffered fires
    world.store.change_task(&Scope::Every, task.id, &TaskChange::Resume).await.unwrap();
    let released = matching::release(world, None).await;
    assert_eq!(released.iter().map(|recorded| recorded.recorded).sum::<usize>(), 2);
    assert_eq!(world.count("select count(*) from window_events").await, 0);
}

/// Instants are recorded a little ahead, and a change takes back those that have not come.
async fn tally_is_taken_back_by_a_change_while_its_one_instant_is_to_come(world: &StoreHarness) {
    stop(world).await;
    for seconds in [&[4][..], &[4, 5]] {
        let task = world.task(json!({ "interval": "5s" })).await;
        for passed in seconds {
            world.pass(*passed);
            assert_eq!(world.store.fire_due(&world.ask(2, 0)).await.unwrap().skipped, 1);
        }
        world.store.change_task(&Scope::Every, task.id, &TaskChange::Pause { reason: None }).await.unwrap();
        let counted: Vec<Option<u64>> = tallies(world, &task).await.into_iter().map(|tally| tally.3).collect();
        match seconds.len() {
            1 => assert!(counted.is_empty(), "{counted:?}"),
            _ => assert_eq!(counted, [Some(2)], "of its instants one has come"),
        }
    }
}

async fn event_that_was_tallied_fires_once_when_it_comes_again(world: &StoreHarness) {
    limit(world, 1).await;
    let task = matching::task(world, json!({})).await;
    assert_eq!(matching::publish(world, events(0, 2)).await.skipped, 1);
    assert_eq!(matching::publish(world, events(1, 1)).await.skipped, 1, "while there is no room it counts again");
    assert_eq!(tallies(world, &task).await, [(key("08", "quota"), 0, 0, Some(2))]);
    world.pass(60);
    for (recorded, duplicates) in [(1, 0), (0, 1)] {
        world.pass(60);
        let again = matching::publish(world, events(1, 1)).await;
        assert_eq!((again.recorded, again.skipped, again.duplicates), (recorded, 0, duplicates));
    }
    assert_eq!(world.get_task(task.id).await.fire_count, 2);
}

async fn tally_of_an_event_is_that_of_the_hour_in_which_it_came_or_of_the_next(world: &StoreHarness) {
    limit(world, 1).await;
    let task = matching::task(world, json!({})).await;
    let of = async |scope: &Scope, event: &Event| {
        let mut found = world.store.skip_tallies_of_event(scope, event, &[task.id]).await.unwrap();
        found.remove(&task.id).map(|tally| (tally.fire_key, tally.missed.unwrap().count))
    };
    world.pass(3_599);
    let (fired, skipped, late) = (event("e0"), event("e1"), event("e2"));
    world.store.publish_events(&[fired.clone(), skipped.clone(), late.clone()]).await.unwrap();
    matching::publish(world, vec![fired, skipped.clone()]).await;
    let tally = Some((key("08", "quota"), Some(1)));
    assert_eq!(of(&Scope::Every, &skipped).await, tally);
    assert_eq!(of(&only("a"), &skipped).await, tally);
    assert_eq!(of(&only("b"), &skipped).await, None);
    assert!(world.store.skip_tallies_of_event(&Scope::Every, &skipped, &[]).await.unwrap().is_empty());
    // one that is handled when the next hour has begun, and one that comes when the tally has had its last fire
    world.pass(61);
    world.store.publish_events(&[event("e3")]).await.unwrap();
    assert_eq!(of(&Scope::Every, &event("e3")).await, None);
    matching::publish(world, vec![event("e3"), event("e4")]).await;
    assert_eq!(of(&Scope::Every, &event("e3")).await, Some((key("09", "quota"), Some(1))));
    assert_eq!(of(&Scope::Every, &late).await, tally, "the first that it may be in");
    world.pass(3_600);
    world.store.publish_events(&[event("e6")]).await.unwrap();
    assert_eq!(of(&Scope::Every, &event("e6")).await, None, "no hour of it has one");
    // one of another bus says itself when it happened, or nothing is known
    let happened = event_with("e7", json!({ "time": at(3_599).to_rfc3339() }));
    assert_eq!(of(&Scope::Every, &happened).await, tally);
    assert_eq!(of(&Scope::Every, &event("e8")).await, None);
}

async fn event_that_matches_is_in_no_tally_of_those_that_do_not(world: &StoreHarness) {
    let task = matching::paused(world, json!({ "filter": "event.data.n > 3" })).await;
    fill(world).await;
    let of = |id: &str, n: Value| event_with(id, json!({ "time": START.to_rfc3339(), "data": { "n": n } }));
    let found = async || {
        let matching = of("e2", json!(7));
        let mut found = world.store.skip_tallies_of_event(&only("a"), &matching, &[task.id]).await.unwrap();
        found.remove(&task.id).map(|tally| tally.fire_key)
    };
    matching::publish(world, vec![of("e1", json!("x"))]).await;
    assert_eq!(tallies(world, &task).await, [(key("08", "filter_error"), 0, 0, Some(1))]);
    assert_eq!(found().await, None);
    matching::publish(world, vec![of("e2", json!(7))]).await;
    assert_eq!(found().await, Some(key("08", "paused")));
}

async fn tally_that_can_t_be_read_keeps_no_other_fire_from_being_recorded(world: &StoreHarness) {
    stop(world).await;
    let (damaged, sound) = (matching::task(world, json!({})).await, matching::task(world, json!({})).await);
    matching::publish(world, events(0, 2)).await;
    let damages = match world.is_postgres() {
        true => ["'[7]'", "'{\"count\": \"x\", \"from\": {}, \"to\": 7}'", "null"],
        false => ["'{'", "x'00ff'", "null"],
    };
    for (place, damage) in damages.iter().enumerate() {
        world.plant(&format!("update runs set missed = {damage} where task_id = {}", world.id(damaged.id))).await;
        let recorded = matching::publish(world, events(10 * (place + 1), 3)).await;
        assert_eq!((recorded.recorded, recorded.skipped), (0, 6), "{damage}");
    }
    assert_eq!(tallies(world, &sound).await, [(key("08", "stopped"), 0, 0, Some(2 + 9))]);
    let rows = format!("select count(*) from runs where task_id = {}", world.id(damaged.id));
    assert_eq!(world.count(&rows).await, 1);
}

async fn listed_tallies_keep_their_place_while_they_count(world: &StoreHarness) {
    stop(world).await;
    let task = matching::task(world, json!({})).await;
    matching::publish(world, events(0, 1)).await;
    let first = world.runs_of(&task).await.remove(0);
    assert_eq!((first.created_at, first.finished_at), (START, Some(START)));
    world.pass(600);
    let asked = world.run_now(&task).await;
    world.pass(600);
    matching::publish(world, events(1, 1)).await;
    let [tally, run] = &world.runs_of(&task).await[..] else { panic!("a tally and a run") };
    assert_eq!((tally.id, run.id), (first.id, asked), "its id has the time of its first fire");
    assert_eq!((tally.created_at, tally.finished_at), (START, Some(at(1_200))));
    // it is forgotten by that time
    assert_eq!(world.store.forget_runs(at(300), 9).await.unwrap(), 1);
    assert!(tallies(world, &task).await.is_empty());
}
