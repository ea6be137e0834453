//! Events: each match has one record, whatever happens how often, and rules with a memory decide about each event once.

use std::collections::BTreeMap;
use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::expr::Language;
use reveille::base::id::{Scope, new_id};
use reveille::base::metrics::Metrics;
use reveille::domain::event::written::WrittenEvent;
use reveille::domain::event::{EVENT_BYTES, Event};
use reveille::domain::run::cause::Cause;
use reveille::domain::run::{Run, RunState};
use reveille::domain::task::change::TaskChange;
use reveille::domain::task::{Task, TaskStatus};
use reveille::domain::trigger::event::{Arrival, EventVerdict, HELD_EVENTS, WINDOW_BYTES, reason};
use reveille::engine::events::matcher::index::{Index, compile};
use reveille::engine::events::matcher::matched;
use reveille::store::{
    DueRelease, EventsFired, EventsRecorded, FireEvents, ImmediateStart, Match, Store, StoreError, event_shard,
};
use serde_json::{Value, json};

use super::world::{START, StoreHarness, WORKER, only, open_postgres};
use crate::support::gate::Gate;

on_both!(
    event_becomes_one_leased_run_that_keeps_it,
    event_that_comes_again_changes_nothing,
    event_that_stands_in_a_batch_twice_is_one_for_every_rule,
    event_of_a_window_fires_no_second_time_when_the_window_is_edited_away,
    same_id_of_another_source_or_tenant_is_another_event,
    task_of_another_tenant_is_not_fired,
    event_run_without_room_is_ready_for_anyone,
    only_tasks_that_an_event_leads_to_are_asked,
    index_that_is_older_than_a_task_is_stale,
    only_what_has_changed_is_read_again,
    reader_that_knows_too_little_reads_its_shard_anew,
    pause_between_matching_and_recording_is_seen,
    paused_task_records_its_events_as_skipped,
    max_runs_completes_the_task_and_the_rest_is_skipped,
    error_of_the_filter_is_recorded_and_counted_without_what_it_says,
    key_fires_once_within_its_window,
    throttle_lets_a_burst_through_and_then_one_at_a_time,
    quiet_closes_a_debounce_and_the_last_event_fires,
    debounce_that_is_never_quiet_closes_at_its_longest,
    keys_have_windows_of_their_own,
    batch_closes_when_it_is_full_or_its_time_is_over,
    window_that_would_grow_too_large_closes_first,
    window_of_a_task_that_was_paused_is_recorded_as_skipped,
    window_that_is_set_aside_is_due_an_hour_later,
    event_that_comes_between_the_look_and_the_close_is_in_its_window,
    event_in_a_window_that_comes_again_is_not_counted_twice,
    held_event_waits_for_the_resume,
    held_events_can_be_dropped,
    held_events_that_come_again_are_one,
    held_events_are_read_up_to_their_bytes_and_in_their_order,
    short_held_events_are_read_up_to_their_number_in_one_piece,
    pause_during_the_release_keeps_the_rest,
    full_hold_says_so,
    deleting_a_task_forgets_its_events,
    rules_are_forgotten_when_their_time_is_over,
    retry_of_an_event_run_has_the_event,
);

fn at(seconds: i64) -> DateTime<Utc> {
    START + TimeDelta::seconds(seconds)
}

pub(super) async fn task(world: &StoreHarness, trigger: Value) -> Task {
    task_with(world, trigger, json!({})).await
}

pub(super) async fn task_with(world: &StoreHarness, trigger: Value, more: Value) -> Task {
    let mut event = json!({"type": "event", "source": "shop"});
    event.as_object_mut().unwrap().extend(trigger.as_object().unwrap().clone());
    world.task_with("a", event, more).await
}

pub(super) fn event(id: &str) -> Event {
    event_with(id, json!({}))
}

pub(super) fn event_with(id: &str, more: Value) -> Event {
    let mut value = json!({
        "specversion": "1.0", "id": id, "source": "shop", "type": "order", "tenantid": "a", "data": {"n": id},
    });
    value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Event::try_from(value).unwrap()
}

/// Takes in what is newer in a shard; answers its version.
async fn refresh(index: &mut Index, world: &StoreHarness, shard: i32) -> i64 {
    let known = index.version(shard).unwrap_or(0);
    let changes = world.store.event_tasks(shard, known, 1000, false).await.unwrap();
    let compiled = compile(&changes.live, &Language::default()).into_iter().flatten().collect();
    index.take_in(shard, &changes, compiled);
    changes.version
}

/// The engine's matcher, step by step.
pub(super) struct MatcherHarness {
    index: Index,
    matches: Vec<Match>,
    shards: Vec<(i32, i64)>,
}

impl MatcherHarness {
    pub(super) async fn of(world: &StoreHarness, events: Vec<Event>) -> MatcherHarness {
        let mut index = Index::default();
        let mut shards = BTreeMap::new();
        for shard in events.iter().map(|event| event_shard(event.tenant.as_str())) {
            shards.insert(shard, refresh(&mut index, world, shard).await);
        }
        let shards = shards.into_iter().collect();
        let arrivals = events.into_iter().map(|event| Arc::new(Arrival::new(event)));
        let judge = |arrival: Arc<Arrival>| -> Vec<Match> {
            index.candidates(&arrival.event).filter_map(|task| matched(task, &arrival, world.now())).collect()
        };
        let matches = arrivals.flat_map(judge).collect();
        MatcherHarness { index, matches, shards }
    }

    async fn record(&self, world: &StoreHarness, room: usize) -> EventsFired {
        self.record_by(&world.store, room, None).await
    }

    /// As `record`, by this instance, where so many runs of it may start.
    pub(super) async fn record_by(&self, store: &Store, room: usize, start: Option<&ImmediateStart>) -> EventsFired {
        store.fire_events(&FireEvents { room, start, ..self.ask(store) }).await.unwrap()
    }

    /// Records them as few matches of their tenant, or as many; the runs are ready. The database may not answer.
    pub(super) async fn try_record(&self, store: &Store, few: bool) -> Result<EventsFired, StoreError> {
        store.fire_events(&FireEvents { few, ..self.ask(store) }).await
    }

    fn ask(&self, store: &Store) -> FireEvents<'_> {
        FireEvents {
            now: store.clock().now(),
            shards: &self.shards,
            matches: &self.matches,
            worker: WORKER,
            room: 0,
            start: None,
            few: false,
        }
    }
}

pub(super) async fn publish(world: &StoreHarness, events: Vec<Event>) -> EventsRecorded {
    match MatcherHarness::of(world, events).await.record(world, 100).await {
        EventsFired::Done(recorded) => recorded,
        EventsFired::Stale => panic!("nothing has changed meanwhile"),
    }
}

/// Records events as the engine does: matched anew where the index was older than the tasks.
pub(super) async fn publish_anew(world: &StoreHarness, events: Vec<Event>) -> EventsRecorded {
    for _ in 0..3 {
        if let EventsFired::Done(recorded) = MatcherHarness::of(world, events.clone()).await.record(world, 100).await {
            return recorded;
        }
    }
    panic!("the index stays older than the tasks");
}

async fn close(world: &StoreHarness) -> EventsRecorded {
    let due = world.store.due_windows(world.now(), 100).await.unwrap();
    world.store.close_windows(&due, world.now(), WORKER, 100).await.unwrap()
}

/// Fire key, state and reason of each run, oldest first.
async fn run_outcomes(world: &StoreHarness, task: &Task) -> Vec<(String, String)> {
    let runs = world.runs_of(task).await;
    runs.into_iter()
        .map(|run| (run.event_ids.join("+"), run.reason.unwrap_or_else(|| run.state.as_str().to_owned())))
        .collect()
}

fn pairs(expected: &[(&str, &str)]) -> Vec<(String, String)> {
    expected.iter().map(|(ids, state)| ((*ids).to_owned(), (*state).to_owned())).collect()
}

async fn event_becomes_one_leased_run_that_keeps_it(world: &StoreHarness) {
    let task = task(world, json!({"filter": "event.data.n == 'e1'"})).await;
    assert_eq!(task.next_fire_at, None);
    world.pass(5);
    let recorded = publish(world, vec![event("e1"), event("e2")]).await;
    let [run] = <[Run; 1]>::try_from(world.runs_of(&task).await).unwrap();
    assert_eq!((recorded.recorded, recorded.claims.len(), recorded.claims[0].lease.run_id), (1, 1, run.id));
    assert_eq!(
        (run.fire_key, run.trigger_type.as_str(), run.scheduled_for, run.event_ids),
        (format!("e:{}", event("e1").key()), "event", at(5), vec!["e1".to_owned()])
    );
    let whole = world.get_run(run.id).await;
    assert_eq!(whole.cause, Some(Cause::Event { event: event("e1").to_value(), events: vec![] }));
    let after = world.get_task(task.id).await;
    assert_eq!((after.fire_count, after.run_count, after.status), (1, 1, TaskStatus::Active));
    let leases: Vec<_> = recorded.claims.iter().map(|claim| claim.lease).collect();
    let starts = world.store.start_runs(&leases, world.now() + TimeDelta::seconds(45)).await.unwrap();
    assert_eq!(starts.started[0].run.cause, whole.cause, "who executes it is told");
}

async fn event_that_comes_again_changes_nothing(world: &StoreHarness) {
    let task = task(world, json!({})).await;
    publish(world, vec![event("e1")]).await;
    let again = publish(world, vec![event("e1"), event("e1")]).await;
    assert_eq!((again.recorded, again.duplicates), (0, 2));
    assert_eq!(run_outcomes(world, &task).await, pairs(&[("e1", "queued")]));
    let after = world.get_task(task.id).await;
    assert_eq!((after.fire_count, after.run_count), (1, 1), "it is counted once");
}

async fn event_that_stands_in_a_batch_twice_is_one_for_every_rule(world: &StoreHarness) {
    let rules = [
        (json!({}), json!({})),
        (json!({"dedup": {"key": "event.id", "window": "1h"}}), json!({})),
        (json!({"throttle": {"limit": 2, "per": "1m"}}), json!({})),
        (json!({}), json!({"max_runs": 2})),
        (json!({"batch": {"size": 2, "wait": "1m"}}), json!({})),
    ];
    let mut tasks = Vec::new();
    for (trigger, more) in rules {
        tasks.push(task_with(world, trigger, more).await);
    }
    let recorded = publish(world, vec![event("e1"), event("e1"), event("e2")]).await;
    assert_eq!(recorded.duplicates, 5);
    for task in &tasks[..4] {
        assert_eq!(run_outcomes(world, task).await, pairs(&[("e1", "queued"), ("e2", "queued")]));
    }
    assert_eq!(run_outcomes(world, &tasks[4]).await, pairs(&[("e1+e2", "queued")]));
    assert_eq!(world.get_task(tasks[3].id).await.status, TaskStatus::Completed);
}

async fn event_of_a_window_fires_no_second_time_when_the_window_is_edited_away(world: &StoreHarness) {
    let task = task(world, json!({"batch": {"size": 2, "wait": "1m"}})).await;
    publish(world, vec![event("e1"), event("e2")]).await;
    let mut spec = task.spec.clone();
    spec.trigger = serde_json::from_value(json!({"type": "event", "source": "shop"})).unwrap();
    let edit = TaskChange::Edit { version: task.version, name: task.name.clone(), spec: Box::new(spec) };
    world.store.change_task(&Scope::Every, task.id, &edit).await.unwrap();
    let again = publish(world, vec![event("e1"), event("e3")]).await;
    assert_eq!((again.recorded, again.duplicates), (1, 1));
    assert_eq!(run_outcomes(world, &task).await, pairs(&[("e1+e2", "queued"), ("e3", "queued")]));
}

async fn same_id_of_another_source_or_tenant_is_another_event(world: &StoreHarness) {
    let task = task(world, json!({"source": "*"})).await;
    let others = [json!({}), json!({"source": "post"}), json!({"tenantid": "b"})];
    publish(world, others.map(|more| event_with("e1", more)).to_vec()).await;
    assert_eq!(run_outcomes(world, &task).await, pairs(&[("e1", "queued"), ("e1", "queued")]));
}

async fn task_of_another_tenant_is_not_fired(world: &StoreHarness) {
    let task = task(world, json!({})).await;
    let recorded = publish(world, vec![event_with("e1", json!({"tenantid": "b"}))]).await;
    assert_eq!((recorded, world.runs_of(&task).await.len()), (EventsRecorded::default(), 0));
}

async fn event_run_without_room_is_ready_for_anyone(world: &StoreHarness) {
    task(world, json!({})).await;
    let matching = MatcherHarness::of(world, vec![event("e1"), event("e2")]).await;
    let EventsFired::Done(recorded) = matching.record(world, 1).await else { panic!("stale") };
    assert_eq!((recorded.recorded, recorded.claims.len()), (2, 1));
    assert_eq!(world.claim().await.len(), 1);
}

async fn only_tasks_that_an_event_leads_to_are_asked(world: &StoreHarness) {
    let exact = task(world, json!({"event_type": "order"})).await;
    let prefix = task(world, json!({"source": "sh*", "event_type": "or*"})).await;
    for other in [json!({"event_type": "orders"}), json!({"source": "shops"}), json!({"source": "p*"})] {
        task(world, other).await;
    }
    let index = MatcherHarness::of(world, vec![event("e1")]).await.index;
    let event = event("e1");
    let mut asked: Vec<_> = index.candidates(&WrittenEvent::of(&event)).map(|task| task.task_id).collect();
    asked.sort();
    assert_eq!((index.len(), asked), (5, vec![exact.id, prefix.id]));
}

async fn index_that_is_older_than_a_task_is_stale(world: &StoreHarness) {
    let early = MatcherHarness::of(world, vec![event("e1")]).await;
    let task = task(world, json!({})).await;
    assert_eq!(early.record(world, 9).await, EventsFired::Stale);
    assert_eq!(publish(world, vec![event("e1")]).await.recorded, 1);
    assert_eq!(world.runs_of(&task).await.len(), 1);
}

async fn only_what_has_changed_is_read_again(world: &StoreHarness) {
    let shard = event_shard("a");
    let first = task(world, json!({})).await;
    let second = task(world, json!({})).await;
    world.task(json!({"interval": "1m"})).await;
    let all = world.store.event_tasks(shard, 0, 10, false).await.unwrap();
    assert_eq!((all.live.len(), all.version, all.more, all.anew), (2, 2, false, false));
    let page = world.store.event_tasks(shard, 0, 1, false).await.unwrap();
    assert_eq!((page.live[0].task_id, page.version, page.more), (first.id, 1, true));
    world.store.change_task(&Scope::Every, first.id, &TaskChange::Pause { reason: None }).await.unwrap();
    world.store.delete_task(&Scope::Every, second.id).await.unwrap();
    let newer = world.store.event_tasks(shard, all.version, 10, false).await.unwrap();
    let live: Vec<_> = newer.live.iter().map(|task| (task.task_id, task.status)).collect();
    assert_eq!((live, newer.gone, newer.version), (vec![(first.id, TaskStatus::Paused)], vec![second.id], 4));
    let other = world.store.event_tasks((shard + 1) % 16, 0, 10, false).await.unwrap();
    assert_eq!((other.live.len(), other.version), (0, 0));
}

async fn reader_that_knows_too_little_reads_its_shard_anew(world: &StoreHarness) {
    let shard = event_shard("a");
    let gone = task(world, json!({})).await;
    let known = world.store.event_tasks(shard, 0, 10, false).await.unwrap().version;
    world.store.delete_task(&Scope::Every, gone.id).await.unwrap();
    let stays = task(world, json!({})).await;
    let other = task(world, json!({})).await;
    world.pass(100);
    assert_eq!(world.store.forget_event_tasks(at(0), 9).await.unwrap(), 0, "not yet");
    assert_eq!(world.store.forget_event_tasks(at(50), 9).await.unwrap(), 1);
    let anew = world.store.event_tasks(shard, known, 10, false).await.unwrap();
    assert!(anew.anew);
    assert_eq!(anew.live.iter().map(|task| task.task_id).collect::<Vec<_>>(), [stays.id, other.id]);
    // page by page it comes to an end, though the first page ends below what was forgotten
    world.plant("update event_index set pruned_version = version").await;
    let first = world.store.event_tasks(shard, known, 1, false).await.unwrap();
    assert!(first.anew && first.more);
    let second = world.store.event_tasks(shard, first.version, 1, true).await.unwrap();
    assert!(!second.anew, "it goes on");
    assert_eq!(second.live[0].task_id, other.id);
    let mut index = Index::default();
    refresh(&mut index, world, shard).await;
    assert_eq!(index.len(), 2);
    assert!(!world.store.event_tasks(shard, anew.version, 10, false).await.unwrap().anew);
}

async fn pause_between_matching_and_recording_is_seen(world: &StoreHarness) {
    let task = task(world, json!({})).await;
    let matching = MatcherHarness::of(world, vec![event("e1")]).await;
    assert_eq!(matching.index.len(), 1);
    world.store.change_task(&Scope::Every, task.id, &TaskChange::Pause { reason: None }).await.unwrap();
    assert_eq!(matching.record(world, 9).await, EventsFired::Stale);
    let deleted = MatcherHarness::of(world, vec![event("e1")]).await;
    world.store.delete_task(&Scope::Every, task.id).await.unwrap();
    assert_eq!(deleted.record(world, 9).await, EventsFired::Stale);
    assert_eq!(world.count("select count(*) from runs").await, 0);
}

async fn paused_task_records_its_events_as_skipped(world: &StoreHarness) {
    let task = task(world, json!({})).await;
    world.store.change_task(&Scope::Every, task.id, &TaskChange::Pause { reason: None }).await.unwrap();
    publish(world, vec![event("e1")]).await;
    world.store.change_task(&Scope::Every, task.id, &TaskChange::Resume).await.unwrap();
    publish(world, vec![event("e1"), event("e2")]).await;
    assert_eq!(run_outcomes(world, &task).await, pairs(&[("e1", "paused"), ("e2", "queued")]));
}

async fn max_runs_completes_the_task_and_the_rest_is_skipped(world: &StoreHarness) {
    let task = task_with(world, json!({}), json!({"max_runs": 2})).await;
    publish(world, vec![event("e1")]).await;
    publish(world, vec![event("e1")]).await;
    assert_eq!(world.get_task(task.id).await.status, TaskStatus::Active, "one that came again does not count");
    publish(world, vec![event("e2"), event("e3")]).await;
    assert_eq!(run_outcomes(world, &task).await, pairs(&[("e1", "queued"), ("e2", "queued"), ("e3", "max_runs")]));
    let after = world.get_task(task.id).await;
    assert_eq!(
        (after.status, after.status_reason.as_deref(), after.fire_count),
        (TaskStatus::Completed, Some("max_runs"), 2)
    );
    assert_eq!(publish(world, vec![event("e4")]).await, EventsRecorded::default(), "it is in no index any more");
}

async fn error_of_the_filter_is_recorded_and_counted_without_what_it_says(world: &StoreHarness) {
    let metrics = Metrics::new();
    world.store.show_counts(&metrics);
    let task = task(world, json!({"filter": "event.data.n > 3"})).await;
    publish(world, vec![event("e1")]).await;
    let [(ids, why)] = <[(String, String); 1]>::try_from(run_outcomes(world, &task).await).unwrap();
    assert!(ids == "e1" && why.starts_with("filter_error: "), "{why}");
    let counted = metrics.text();
    assert!(counted.contains("reveille_skips_total{reason=\"filter_error\"} 1"), "{counted}");
}

async fn key_fires_once_within_its_window(world: &StoreHarness) {
    let task = task(world, json!({"dedup": {"key": "event.data.order", "window": "1h"}})).await;
    let order = |id: &str, order: i64| event_with(id, json!({"data": {"order": order}}));
    publish(world, vec![order("e1", 1), order("e2", 1), order("e3", 2)]).await;
    publish(world, vec![order("e1", 1)]).await;
    world.pass(3599);
    publish(world, vec![order("e4", 1)]).await;
    world.pass(1);
    publish(world, vec![order("e5", 1)]).await;
    let mut told = run_outcomes(world, &task).await;
    told.sort();
    let expected = [("e1", "queued"), ("e2", "duplicate"), ("e3", "queued"), ("e4", "duplicate"), ("e5", "queued")];
    assert_eq!(told, pairs(&expected));
}

async fn throttle_lets_a_burst_through_and_then_one_at_a_time(world: &StoreHarness) {
    let task = task(world, json!({"throttle": {"limit": 2, "per": "1m"}})).await;
    let send = async |ids: &[&str]| publish(world, ids.iter().map(|id| event(id)).collect()).await;
    send(&["e1", "e2", "e3"]).await;
    send(&["e1", "e2"]).await;
    world.pass(30);
    send(&["e4", "e5"]).await;
    world.pass(60);
    send(&["e6", "e7", "e8"]).await;
    let mut told = run_outcomes(world, &task).await;
    told.sort();
    let expected = [
        ("e1", "queued"),
        ("e2", "queued"),
        ("e3", "throttled"),
        ("e4", "queued"),
        ("e5", "throttled"),
        ("e6", "queued"),
        ("e7", "queued"),
        ("e8", "throttled"),
    ];
    assert_eq!(told, pairs(&expected));
}

async fn quiet_closes_a_debounce_and_the_last_event_fires(world: &StoreHarness) {
    let task = task(world, json!({"debounce": {"quiet": "30s"}})).await;
    assert_eq!(publish(world, vec![event("e1")]).await.collected, 1);
    assert_eq!(world.store.next_window().await.unwrap(), Some(at(30)));
    assert_eq!(world.pending_work().await.window, Some(at(30)));
    world.pass(20);
    publish(world, vec![event("e2")]).await;
    world.pass(20);
    assert_eq!(close(world).await, EventsRecorded::default(), "it is quiet for 20 s only");
    world.pass(10);
    assert_eq!(close(world).await.recorded, 1);
    let [run] = <[Run; 1]>::try_from(world.runs_of(&task).await).unwrap();
    assert!(run.fire_key.starts_with("w:") && run.event_ids == ["e1", "e2"], "{run:?}");
    let all = vec![event("e1").to_value(), event("e2").to_value()];
    assert_eq!(world.get_run(run.id).await.cause, Some(Cause::Event { event: all[1].clone(), events: all }));
    assert_eq!(world.store.next_window().await.unwrap(), None);
    assert_eq!(publish(world, vec![event("e2")]).await.duplicates, 1, "it is known as long as the run");
    publish(world, vec![event("e3")]).await;
    world.pass(30);
    close(world).await;
    assert_eq!(run_outcomes(world, &task).await, pairs(&[("e1+e2", "queued"), ("e3", "queued")]));
}

async fn debounce_that_is_never_quiet_closes_at_its_longest(world: &StoreHarness) {
    let task = task(world, json!({"debounce": {"quiet": "30s", "max_wait": "1m"}})).await;
    for id in ["e1", "e2", "e3"] {
        publish(world, vec![event(id)]).await;
        world.pass(20);
    }
    assert_eq!(close(world).await.recorded, 1);
    assert_eq!(run_outcomes(world, &task).await, pairs(&[("e1+e2+e3", "queued")]));
}

async fn keys_have_windows_of_their_own(world: &StoreHarness) {
    let task = task(world, json!({"debounce": {"quiet": "30s", "key": "event.data.who"}})).await;
    let of = |id: &str, who: &str| event_with(id, json!({"data": {"who": who}}));
    publish(world, vec![of("e1", "x"), of("e2", "y"), of("e3", "x")]).await;
    world.pass(30);
    close(world).await;
    let mut told = run_outcomes(world, &task).await;
    told.sort();
    assert_eq!(told, pairs(&[("e1+e3", "queued"), ("e2", "queued")]));
}

async fn batch_closes_when_it_is_full_or_its_time_is_over(world: &StoreHarness) {
    let task = task(world, json!({"batch": {"size": 3, "wait": "1m"}})).await;
    let send = async |ids: &[&str]| publish(world, ids.iter().map(|id| event(id)).collect()).await;
    let recorded = send(&["e1", "e2", "e3", "e4"]).await;
    assert_eq!((recorded.recorded, recorded.collected), (1, 3));
    world.pass(60);
    assert_eq!(close(world).await.recorded, 1);
    assert_eq!(run_outcomes(world, &task).await, pairs(&[("e1+e2+e3", "queued"), ("e4", "queued")]));
    let after = world.get_task(task.id).await;
    assert_eq!((after.fire_count, after.run_count), (2, 2));
}

async fn window_that_would_grow_too_large_closes_first(world: &StoreHarness) {
    let task = task(world, json!({"debounce": {"quiet": "30s"}})).await;
    // two fill the window to its last byte
    let large = |id: &str, more: usize| event_with(id, json!({"data": {"text": "x".repeat(more)}}));
    let bare = large("e1", 0).to_value().to_string().len();
    let half = WINDOW_BYTES / 2 - bare;
    publish(world, vec![large("e1", half), large("e2", half)]).await;
    assert_eq!(run_outcomes(world, &task).await, pairs(&[]));
    publish(world, vec![event("e3")]).await;
    assert_eq!(run_outcomes(world, &task).await, pairs(&[("e1+e2", "queued")]));
    world.pass(30);
    close(world).await;
    assert_eq!(run_outcomes(world, &task).await, pairs(&[("e1+e2", "queued"), ("e3", "queued")]));
}

async fn window_of_a_task_that_was_paused_is_recorded_as_skipped(world: &StoreHarness) {
    let task = task(world, json!({"debounce": {"quiet": "30s"}})).await;
    publish(world, vec![event("e1")]).await;
    world.store.change_task(&Scope::Every, task.id, &TaskChange::Pause { reason: None }).await.unwrap();
    world.pass(30);
    assert_eq!(close(world).await.skipped, 1);
    assert_eq!(run_outcomes(world, &task).await, pairs(&[("e1", "paused")]));
}

async fn window_that_is_set_aside_is_due_an_hour_later(world: &StoreHarness) {
    let task = task(world, json!({"debounce": {"quiet": "30s"}})).await;
    publish(world, vec![event("e1")]).await;
    world.pass(30);
    let [due] = <[_; 1]>::try_from(world.store.due_windows(world.now(), 9).await.unwrap()).unwrap();
    world.store.set_aside_window(due.id, &"it can't be closed").await.unwrap();
    assert_eq!(world.store.due_windows(world.now(), 9).await.unwrap(), []);
    let none = world.store.close_windows(&[due], world.now(), WORKER, 9).await.unwrap();
    assert_eq!(none, EventsRecorded::default(), "it is not due any more");
    world.pass(3600);
    close(world).await;
    assert_eq!(run_outcomes(world, &task).await, pairs(&[("e1", "queued")]));
}

async fn event_that_comes_between_the_look_and_the_close_is_in_its_window(world: &StoreHarness) {
    let task = task(world, json!({"batch": {"size": 9, "wait": "1m"}})).await;
    publish(world, vec![event("e1")]).await;
    world.pass(60);
    let due = world.store.due_windows(world.now(), 9).await.unwrap();
    publish(world, vec![event("e2")]).await;
    world.store.close_windows(&due, world.now(), WORKER, 9).await.unwrap();
    let [run] = <[Run; 1]>::try_from(world.runs_of(&task).await).unwrap();
    assert_eq!(run.event_ids, ["e1", "e2"]);
    let run = world.store.find_run(&only("a"), run.id).await.unwrap().unwrap();
    let values = [event("e1"), event("e2")].map(|event| event.to_value());
    assert_eq!(run.cause, Some(Cause::Event { event: values[1].clone(), events: values.to_vec() }));
    assert_eq!(close(world).await, EventsRecorded::default());
}

async fn event_in_a_window_that_comes_again_is_not_counted_twice(world: &StoreHarness) {
    let task = task(world, json!({"batch": {"size": 2, "wait": "1m"}})).await;
    assert_eq!(publish(world, vec![event("e1")]).await.collected, 1);
    assert_eq!(publish(world, vec![event("e1")]).await.duplicates, 1);
    assert_eq!(world.runs_of(&task).await.len(), 0);
    publish(world, vec![event("e2")]).await;
    assert_eq!(run_outcomes(world, &task).await, pairs(&[("e1+e2", "queued")]));
}

pub async fn paused(world: &StoreHarness, trigger: Value) -> Task {
    let task = task(world, trigger).await;
    world.store.change_task(&Scope::Every, task.id, &TaskChange::Pause { reason: None }).await.unwrap();
    task
}

/// Releases what is due as the engine does, each event running straight; answers what was recorded.
pub async fn release(world: &StoreHarness, verdict: Option<EventVerdict>) -> Vec<EventsRecorded> {
    let mut recorded = Vec::new();
    for due in world.store.due_releases(world.now(), 10).await.unwrap() {
        let Some(held) = world.store.held_events(&due, 2).await.unwrap() else { continue };
        let task = world.get_task(held.task_id).await;
        let matches: Vec<Match> = held
            .events
            .iter()
            .map(|event| Match {
                task_id: task.id,
                epoch: task.epoch,
                status: task.status,
                buffer_while_paused: true,
                max_runs: None,
                arrival: Arc::new(Arrival::new(event.clone())),
                verdict: verdict.clone().unwrap_or(EventVerdict::Fires(Default::default())),
            })
            .collect();
        let (now, room) = (world.now(), 9);
        let ask = FireEvents { now, shards: &[], matches: &matches, worker: WORKER, room, start: None, few: false };
        match world.store.release_events(held.window_id, held.task_id, &ask).await.unwrap() {
            EventsFired::Done(done) => recorded.push(done),
            EventsFired::Stale => panic!("stale"),
        }
    }
    recorded
}

async fn held_event_waits_for_the_resume(world: &StoreHarness) {
    let task = paused(world, json!({"buffer_while_paused": true})).await;
    assert_eq!(publish(world, vec![event("e1"), event("e2"), event("e3")]).await.collected, 3);
    assert_eq!(release(world, None).await, [], "nothing is released while it is paused");
    world.pass(100);
    world.store.change_task(&Scope::Every, task.id, &TaskChange::Resume).await.unwrap();
    assert_eq!(world.store.next_window().await.unwrap(), Some(at(100)));
    let recorded: Vec<usize> = release(world, None).await.iter().map(|recorded| recorded.recorded).collect();
    assert_eq!(recorded, [2], "a part at a time");
    assert_eq!(release(world, None).await[0].recorded, 1);
    assert_eq!(release(world, None).await, [EventsRecorded::default()]);
    assert_eq!(release(world, None).await, []);
    assert_eq!(run_outcomes(world, &task).await, pairs(&[("e1", "queued"), ("e2", "queued"), ("e3", "queued")]));
    assert_eq!(publish(world, vec![event("e1")]).await.duplicates, 1);
    assert_eq!(world.count("select count(*) from event_windows").await, 0);
}

async fn held_events_can_be_dropped(world: &StoreHarness) {
    let task = paused(world, json!({"buffer_while_paused": true})).await;
    publish(world, vec![event("e1")]).await;
    world.store.change_task(&Scope::Every, task.id, &TaskChange::ResumeDropping).await.unwrap();
    let [due] = <[_; 1]>::try_from(world.store.due_releases(world.now(), 10).await.unwrap()).unwrap();
    let held = world.store.held_events(&due, 10).await.unwrap().unwrap();
    assert_eq!((held.release, held.events.len()), (reveille::store::EventRelease::Drop, 1));
    release(world, Some(EventVerdict::Skipped(reason::DROPPED.into()))).await;
    assert_eq!(run_outcomes(world, &task).await, pairs(&[("e1", "dropped")]));
}

async fn held_events_that_come_again_are_one(world: &StoreHarness) {
    paused(world, json!({"buffer_while_paused": true})).await;
    publish(world, vec![event("e1")]).await;
    assert_eq!(publish(world, vec![event("e1")]).await.duplicates, 1);
    assert_eq!(world.count("select cast(events as bigint) from event_windows").await, 1);
}

async fn held_events_are_read_up_to_their_bytes_and_in_their_order(world: &StoreHarness) {
    // the bound is `RELEASED_BYTES`
    // with what stands around it four are longer than 1 MiB; a few bytes less each, and a fifth one fits
    for (length, expected) in [(EVENT_BYTES, 4), (EVENT_BYTES - 1_000, 5)] {
        let task = paused(world, json!({"buffer_while_paused": true, "source": length.to_string()})).await;
        let text = "x".repeat(length);
        let more = json!({"source": length.to_string(), "data": {"text": text}});
        let ids = ["e1", "e2", "e3", "e4", "e5", "e6", "e7"];
        publish(world, ids.iter().map(|id| event_with(id, more.clone())).collect()).await;
        world.store.change_task(&Scope::Every, task.id, &TaskChange::Resume).await.unwrap();
        let [due] = <[_; 1]>::try_from(world.store.due_releases(world.now(), 10).await.unwrap()).unwrap();
        let held = world.store.held_events(&due, 100).await.unwrap().unwrap();
        let read: Vec<&str> = held.events.iter().map(|event| event.id.as_str()).collect();
        assert_eq!(read, ids[..expected], "of {length} bytes each");
        while !release(world, None).await.is_empty() {}
        assert_eq!(run_outcomes(world, &task).await, pairs(&ids.map(|id| (id, "queued"))));
    }
}

/// A task that is resumed, with so many short events that it has held.
async fn released(world: &StoreHarness, count: usize) -> (DueRelease, Vec<String>) {
    let task = paused(world, json!({"buffer_while_paused": true})).await;
    let ids: Vec<String> = (0..count).map(|number| format!("e{number:03}")).collect();
    publish(world, ids.iter().map(|id| event(id)).collect()).await;
    world.store.change_task(&Scope::Every, task.id, &TaskChange::Resume).await.unwrap();
    let [due] = <[_; 1]>::try_from(world.store.due_releases(world.now(), 10).await.unwrap()).unwrap();
    (due, ids)
}

async fn short_held_events_are_read_up_to_their_number_in_one_piece(world: &StoreHarness) {
    let (due, ids) = released(world, 30).await;
    for (limit, expected) in [(25, 25), (30, 30), (100, 30)] {
        let held = world.store.held_events(&due, limit).await.unwrap().unwrap();
        let read: Vec<&str> = held.events.iter().map(|event| event.id.as_str()).collect();
        assert_eq!(read, ids[..expected]);
    }
}

/// Each is sent once its statement was prepared on its connection.
#[tokio::test]
async fn held_events_are_read_by_one_statement_however_many_they_are() {
    let mut world = StoreHarness::postgres().await;
    world.store.close().await;
    let gate = Gate::before(&world.url()).await;
    gate.open().await;
    world.store = open_postgres(&gate.url(&world.url()), &world.clock).await;
    let (due, _) = released(&world, 30).await;
    let mut counted = Vec::new();
    for _ in 0..5 {
        let before = gate.requests();
        let held = world.store.held_events(&due, 30).await.unwrap().unwrap();
        counted.push(gate.requests() - before);
        assert_eq!(held.events.len(), 30);
    }
    assert_eq!(counted.iter().min(), Some(&1), "{counted:?}");
    world.store.close().await;
}

async fn pause_during_the_release_keeps_the_rest(world: &StoreHarness) {
    let task = paused(world, json!({"buffer_while_paused": true})).await;
    publish(world, vec![event("e1"), event("e2"), event("e3")]).await;
    world.store.change_task(&Scope::Every, task.id, &TaskChange::Resume).await.unwrap();
    release(world, None).await;
    world.store.change_task(&Scope::Every, task.id, &TaskChange::Pause { reason: None }).await.unwrap();
    assert_eq!(release(world, None).await, [EventsRecorded::default()]);
    assert_eq!(release(world, None).await, [], "it is held again");
    publish(world, vec![event("e4")]).await;
    world.store.change_task(&Scope::Every, task.id, &TaskChange::Resume).await.unwrap();
    while !release(world, None).await.is_empty() {}
    assert_eq!(run_outcomes(world, &task).await, pairs(&["e1", "e2", "e3", "e4"].map(|id| (id, "queued"))));
}

async fn full_hold_says_so(world: &StoreHarness) {
    let task = paused(world, json!({"buffer_while_paused": true})).await;
    publish(world, vec![event("e1")]).await;
    world.plant(&format!("update event_windows set events = {}", HELD_EVENTS - 1)).await;
    publish(world, vec![event("e2")]).await;
    assert_eq!(run_outcomes(world, &task).await, pairs(&[]), "it is the last for which there is room");
    publish(world, vec![event("e3")]).await;
    assert_eq!(run_outcomes(world, &task).await, pairs(&[("e3", "buffer_full")]));
}

async fn deleting_a_task_forgets_its_events(world: &StoreHarness) {
    let trigger = json!({
        "debounce": {"quiet": "30s"}, "dedup": {"key": "event.id", "window": "1h"}, "throttle": {"limit": 5, "per": "1m"},
    });
    let task = task(world, trigger).await;
    publish(world, vec![event("e1")]).await;
    assert_eq!(world.count("select count(*) from window_events").await, 1);
    world.store.delete_task(&only("a"), task.id).await.unwrap();
    for table in ["event_windows", "window_events", "throttles", "dedups"] {
        assert_eq!(world.count(&format!("select count(*) from {table}")).await, 0, "{table}");
    }
    world.pass(30);
    assert_eq!(close(world).await, EventsRecorded::default());
}

async fn rules_are_forgotten_when_their_time_is_over(world: &StoreHarness) {
    let trigger = json!({
        "debounce": {"quiet": "30s"}, "dedup": {"key": "event.id", "window": "1h"}, "throttle": {"limit": 5, "per": "1m"},
    });
    task(world, trigger).await;
    publish(world, vec![event("e1")]).await;
    world.pass(3599);
    close(world).await;
    assert_eq!(world.store.forget_event_rules(world.now(), START, 10).await.unwrap(), 1, "the rate");
    world.pass(1);
    assert_eq!(world.store.forget_event_rules(world.now(), START, 10).await.unwrap(), 1, "the key");
    let later = START + TimeDelta::days(2);
    assert_eq!(
        world.store.forget_event_rules(world.now(), later, 10).await.unwrap(),
        1,
        "the event of a forgotten run"
    );
}

async fn retry_of_an_event_run_has_the_event(world: &StoreHarness) {
    let task = task(world, json!({})).await;
    publish(world, vec![event("e1")]).await;
    let first = world.runs_of(&task).await[0].id;
    world.store.cancel_run(&Scope::Every, first, "no").await.unwrap();
    let retry = new_id(world.now());
    world.store.retry_run(&Scope::Every, first, retry, world.now(), |_| Ok(None), None).await.unwrap();
    let run = world.get_run(retry).await;
    assert_eq!((run.event_ids, run.state), (vec!["e1".to_owned()], RunState::Queued));
    assert_eq!(run.cause, Some(Cause::Event { event: event("e1").to_value(), events: vec![] }));
}
