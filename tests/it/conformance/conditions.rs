//! Polls of conditions: claimed once, recorded with what they caused in one transaction, void where the task changed.

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::expr::Language;
use reveille::base::id::Scope;
use reveille::domain::notification::{MessageKind, NewDelivery};
use reveille::domain::quota::Quotas;
use reveille::domain::run::RunState;
use reveille::domain::run::cause::Cause;
use reveille::domain::task::change::TaskChange;
use reveille::domain::task::{Task, TaskStatus};
use reveille::domain::trigger::Trigger;
use reveille::domain::trigger::condition::{ConditionState, ConditionStep, PollFault, PollResult, Validators};
use reveille::store::{DeliveryFilter, PendingWork, PollClaim, RecordedPoll, Store};
use serde_json::{Value, json};
use uuid::Uuid;

use super::world::{StoreHarness, new_task, only, spec};

on_both!(
    poll_is_claimed_by_one_and_again_when_the_claim_ran_out,
    edge_its_run_and_the_next_poll_are_recorded_together,
    two_who_polled_at_once_count_one_edge,
    poll_result_from_before_a_change_is_void,
    pause_keeps_what_is_known_and_another_question_forgets_it,
    edge_within_a_cooldown_is_a_skipped_run,
    edge_beyond_the_fires_of_a_minute_is_a_skipped_run,
    condition_completes_with_its_last_run,
    condition_that_has_ended_is_completed,
    poll_without_room_is_put_off,
    condition_that_can_not_be_read_is_disabled_and_its_owner_is_told_once,
    notice_is_stored_with_the_poll,
    states_are_seen_by_their_tenant_alone,
    change_does_not_wait_for_a_poll_that_is_due,
    condition_and_a_schedule_may_take_each_other_s_place,
    tenant_with_a_thousand_polls_hides_no_other_tenant_s,
    search_goes_from_tenant_to_tenant_and_passes_over_claimed_polls,
    unreadable_task_is_disabled_and_the_polls_beside_it_are_claimed,
    tenant_of_a_poll_that_an_older_release_stored_is_written_when_it_is_polled,
);

pub(super) fn condition(more: Value) -> Value {
    let mut trigger = json!({
        "type": "condition", "poll": {"redis": {"source": "s", "key": "k"}}, "interval": "1m",
        "expression": "value < 500", "fire": "on_true", "overlap": "queue_one",
    });
    trigger.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    trigger
}

async fn claim_from(store: &Store, now: DateTime<Utc>) -> Vec<PollClaim> {
    let due = store.due_polls(now, 10).await.unwrap();
    let tasks: Vec<Uuid> = due.iter().map(|poll| poll.task_id).collect();
    store.claim_polls(&tasks, now, now + TimeDelta::seconds(45)).await.unwrap()
}

/// The one poll that is due once its first seconds have passed.
async fn due(world: &StoreHarness) -> PollClaim {
    world.pass(600);
    let mut claims = claim_from(&world.store, world.now()).await;
    assert_eq!(claims.len(), 1);
    claims.remove(0)
}

pub(super) fn step(claim: &PollClaim, polled: Result<Value, &str>, now: DateTime<Utc>) -> ConditionStep {
    let trigger: Trigger = serde_json::from_value(claim.trigger.clone()).unwrap();
    let question = trigger.condition().unwrap().compile(&Language::default()).unwrap();
    let polled = match polled {
        Ok(value) => Ok(PollResult::Value { value, validators: Validators::default() }),
        Err(why) => Err(PollFault::new("connect", why)),
    };
    claim.state.on_poll(&question, &claim.subject, polled, now, 0.0)
}

async fn record(world: &StoreHarness, claim: &PollClaim, value: i64) -> RecordedPoll {
    let step = step(claim, Ok(json!(value)), world.now());
    let next = Some(step.next_poll_at);
    world.store.record_poll(claim, &step, next, None, world.now()).await.unwrap()
}

async fn state(world: &StoreHarness, task: &Task) -> ConditionState {
    let states = world.store.condition_states(&Scope::Every, &[task.id]).await.unwrap();
    states.get(&task.id).cloned().unwrap_or_default()
}

/// Each run as its key, state and reason.
async fn fires(world: &StoreHarness, task: &Task) -> Vec<String> {
    let shown = |run: &reveille::domain::run::Run| {
        format!("{} {} {}", run.fire_key, run.state.as_str(), run.reason.as_deref().unwrap_or_default())
            .trim_end()
            .into()
    };
    world.runs_of(task).await.iter().map(shown).collect()
}

async fn edit(world: &StoreHarness, task: &Task, trigger: Value) -> Task {
    let stored = world.get_task(task.id).await;
    let edit =
        TaskChange::Edit { version: stored.version, name: stored.name, spec: Box::new(spec(trigger, json!({}))) };
    world.store.change_task(&Scope::Every, task.id, &edit).await.unwrap()
}

async fn poll_is_claimed_by_one_and_again_when_the_claim_ran_out(world: &StoreHarness) {
    let task = world.task(condition(json!({}))).await;
    let first = world.store.next_poll().await.unwrap().unwrap();
    assert!(first >= world.now() && first < world.now() + TimeDelta::seconds(10), "soon");
    assert_eq!(world.store.next_due().await.unwrap(), None, "no schedule waits for it");
    assert_eq!(world.pending_work().await, PendingWork { poll: Some(first), ..PendingWork::default() });
    let claim = due(world).await;
    assert_eq!((claim.subject.id, claim.state.clone()), (task.id, ConditionState::default()));
    assert_eq!(claim_from(&world.store, world.now()).await, [], "another's now");
    assert_eq!(world.store.next_poll().await.unwrap(), None);
    world.pass(45);
    assert_eq!(claim_from(&world.other_instance().await, world.now()).await.len(), 1, "who had it is gone");
    assert_eq!(world.fire().await.tasks, 0, "a poll is no fire of a schedule");
}

async fn edge_its_run_and_the_next_poll_are_recorded_together(world: &StoreHarness) {
    let task = world.task(condition(json!({}))).await;
    let claim = due(world).await;
    assert_eq!(record(world, &claim, 600).await, RecordedPoll::Quiet);
    let claim = due(world).await;
    let RecordedPoll::Fired(run_id) = record(world, &claim, 480).await else { panic!("an edge") };
    let run = world.get_run(run_id).await;
    assert_eq!((run.fire_key.as_str(), run.state, run.trigger_type.as_str()), ("c:1", RunState::Queued, "condition"));
    assert_eq!(run.scheduled_for, world.now());
    let cause = Cause::Condition { expression: "value < 500".into(), value: json!(480), previous: json!(600) };
    assert_eq!(run.cause, Some(cause));
    let known = state(world, &task).await;
    assert_eq!((known.edges, known.verdict, known.value), (1, Some(true), json!(480)));
    let task = world.get_task(task.id).await;
    assert_eq!((task.fire_count, task.run_count), (1, 1));
    assert!(task.next_fire_at.is_some_and(|next| next > world.now()), "the next poll");
    assert_eq!(world.claim().await.len(), 1, "it is ready");
}

async fn two_who_polled_at_once_count_one_edge(world: &StoreHarness) {
    let task = world.task(condition(json!({}))).await;
    let slow = due(world).await;
    world.pass(46);
    let quick = claim_from(&world.other_instance().await, world.now()).await.remove(0);
    assert!(matches!(record(world, &quick, 400).await, RecordedPoll::Fired(_)));
    assert_eq!(record(world, &slow, 400).await, RecordedPoll::Void);
    assert_eq!(record(world, &quick, 400).await, RecordedPoll::Void, "not even itself a second time");
    assert_eq!(fires(world, &task).await, ["c:1 queued"]);
    assert_eq!(world.get_task(task.id).await.fire_count, 1);
}

async fn poll_result_from_before_a_change_is_void(world: &StoreHarness) {
    let task = world.task(condition(json!({}))).await;
    for change in ["edit", "pause", "delete"] {
        let claim = due(world).await;
        match change {
            "edit" => drop(edit(world, &task, condition(json!({"interval": "2m"}))).await),
            "pause" => {
                let pause = TaskChange::Pause { reason: None };
                world.store.change_task(&Scope::Every, task.id, &pause).await.unwrap();
            }
            _ => world.store.delete_task(&Scope::Every, task.id).await.unwrap(),
        }
        assert_eq!(record(world, &claim, 400).await, RecordedPoll::Void, "{change}");
        assert!(!world.store.postpone_poll(&claim, world.now()).await.unwrap(), "{change}");
        assert_eq!(world.count("select count(*) from runs").await, 0, "{change}");
        if change == "pause" {
            world.store.change_task(&Scope::Every, task.id, &TaskChange::Resume).await.unwrap();
        }
    }
    assert_eq!(world.count("select count(*) from condition_state").await, 0, "nothing is left of a deleted task");
}

async fn pause_keeps_what_is_known_and_another_question_forgets_it(world: &StoreHarness) {
    let task = world.task(condition(json!({}))).await;
    record(world, &due(world).await, 400).await;
    let pause = TaskChange::Pause { reason: None };
    let paused = world.store.change_task(&Scope::Every, task.id, &pause).await.unwrap();
    assert_eq!(paused.next_fire_at, None);
    world.pass(3600);
    assert_eq!(claim_from(&world.store, world.now()).await, [], "a paused condition is not polled");
    world.store.change_task(&Scope::Every, task.id, &TaskChange::Resume).await.unwrap();
    assert_eq!(
        record(world, &due(world).await, 410).await,
        RecordedPoll::Quiet,
        "it has fired, and was not false since"
    );
    edit(world, &task, condition(json!({"cooldown": "1s"}))).await;
    assert_eq!(record(world, &due(world).await, 410).await, RecordedPoll::Quiet, "the same question");
    edit(world, &task, condition(json!({"expression": "value < 450"}))).await;
    let known = state(world, &task).await;
    assert_eq!((known.verdict, known.value, known.edges), (None, Value::Null, 1));
    assert!(matches!(record(world, &due(world).await, 410).await, RecordedPoll::Fired(_)), "another question");
    assert_eq!(fires(world, &task).await, ["c:1 queued", "c:2 queued"], "numbers go on");
}

async fn edge_beyond_the_fires_of_a_minute_is_a_skipped_run(world: &StoreHarness) {
    world.store.set_default_quotas(&Quotas { fires_per_minute: 1, ..Quotas::default() }).await.unwrap();
    let task = world.task(condition(json!({}))).await;
    record(world, &due(world).await, 900).await;
    let claim = due(world).await;
    assert_eq!(world.store.take_fires("a", 1).await.unwrap(), 1);
    let RecordedPoll::Skipped(run_id) = record(world, &claim, 100).await else { panic!("skipped") };
    assert_eq!(world.get_run(run_id).await.reason.as_deref(), Some("quota"));
    assert_eq!(fires(world, &task).await, ["h:2026-03-01T08:00:00.000Z/quota skipped quota"]);
    // the next edge, in another minute, fires
    record(world, &due(world).await, 900).await;
    assert!(matches!(record(world, &due(world).await, 100).await, RecordedPoll::Fired(_)));
}

async fn edge_within_a_cooldown_is_a_skipped_run(world: &StoreHarness) {
    let task = world.task(condition(json!({"cooldown": "6h"}))).await;
    record(world, &due(world).await, 400).await;
    record(world, &due(world).await, 600).await;
    let RecordedPoll::Skipped(run_id) = record(world, &due(world).await, 400).await else { panic!("skipped") };
    let run = world.get_run(run_id).await;
    assert_eq!((run.state, run.finished_at), (RunState::Skipped, Some(world.now())));
    assert_eq!(fires(world, &task).await, ["c:1 queued", "c:2 skipped cooldown"]);
    let task = world.get_task(task.id).await;
    assert_eq!((task.fire_count, task.run_count), (1, 1), "what is skipped does not count");
}

async fn condition_completes_with_its_last_run(world: &StoreHarness) {
    let task = world.task_with("a", condition(json!({"fire": "every_time"})), json!({"max_runs": 2})).await;
    record(world, &due(world).await, 400).await;
    assert_eq!(world.get_task(task.id).await.status, TaskStatus::Active);
    record(world, &due(world).await, 400).await;
    let after = world.get_task(task.id).await;
    assert_eq!((after.status, after.status_reason.as_deref()), (TaskStatus::Completed, Some("max_runs")));
    assert_eq!(after.next_fire_at, None);
    world.pass(3600);
    assert_eq!(claim_from(&world.store, world.now()).await, []);
    assert_eq!(fires(world, &task).await, ["c:1 queued", "c:2 queued"]);
}

async fn condition_that_has_ended_is_completed(world: &StoreHarness) {
    let task = world.task(condition(json!({}))).await;
    let claim = due(world).await;
    let step = step(&claim, Ok(json!(600)), world.now());
    world.store.record_poll(&claim, &step, None, None, world.now()).await.unwrap();
    let after = world.get_task(task.id).await;
    assert_eq!((after.status, after.status_reason.as_deref()), (TaskStatus::Completed, Some("ended")));
}

async fn poll_without_room_is_put_off(world: &StoreHarness) {
    let task = world.task(condition(json!({}))).await;
    let claim = due(world).await;
    let later = world.now() + TimeDelta::seconds(3);
    assert!(world.store.postpone_poll(&claim, later).await.unwrap());
    assert_eq!(world.store.next_poll().await.unwrap(), Some(later));
    assert_eq!(state(world, &task).await, ConditionState::default(), "nothing was seen");
    world.pass(3);
    assert_eq!(claim_from(&world.store, world.now()).await.len(), 1);
}

async fn condition_that_can_not_be_read_is_disabled_and_its_owner_is_told_once(world: &StoreHarness) {
    let task = world.task_with("a", condition(json!({})), json!({"output": {"channel": "email"}})).await;
    let claim = due(world).await;
    assert!(world.store.disable_condition(&claim, "/trigger/expression: of a later release").await.unwrap());
    assert!(!world.store.disable_condition(&claim, "again").await.unwrap());
    let after = world.get_task(task.id).await;
    assert_eq!((after.status, after.next_fire_at), (TaskStatus::Disabled, None));
    assert_eq!(after.status_reason.as_deref(), Some("/trigger/expression: of a later release"));
    let told = "select count(*) from deliveries where kind = 'notice' and dedupe_key like 'notice:disabled:%'";
    assert_eq!(world.count(told).await, 1);
    let mended = edit(world, &task, condition(json!({"expression": "value < 1"}))).await;
    assert_eq!(mended.status, TaskStatus::Active);
}

async fn notice_is_stored_with_the_poll(world: &StoreHarness) {
    let task = world.task(condition(json!({}))).await;
    let claim = due(world).await;
    let step = step(&claim, Err("nobody there"), world.now());
    let notice = NewDelivery {
        tenant_id: "a".into(),
        recipient: "a".into(),
        channel: "email".into(),
        fallback: Vec::new(),
        dedupe_key: format!("notice:poll_failing:{}:1", task.id),
        run_id: None,
        subject_ref: None,
        kind: MessageKind::Notice,
        urgency: MessageKind::Notice.urgency(),
        subject: Some("Failing".into()),
        text: Some("It fails".into()),
    };
    let next = Some(step.next_poll_at);
    let recorded = world.store.record_poll(&claim, &step, next, Some(&notice), world.now()).await.unwrap();
    assert_eq!(recorded, RecordedPoll::Quiet);
    // a second one who polled as well has nothing to tell
    let void = world.store.record_poll(&claim, &step, next, Some(&notice), world.now()).await.unwrap();
    assert_eq!(void, RecordedPoll::Void);
    let filter = DeliveryFilter { limit: 10, ..DeliveryFilter::default() };
    assert_eq!(world.store.list_deliveries(&Scope::Every, &filter).await.unwrap().len(), 1);
    let failing = state(world, &task).await.failing.unwrap();
    assert_eq!((failing.count, failing.error), (1, PollFault::new("connect", "nobody there")));
}

async fn states_are_seen_by_their_tenant_alone(world: &StoreHarness) {
    let task = world.task(condition(json!({}))).await;
    record(world, &due(world).await, 400).await;
    let seen = |tenant: &'static str| async move {
        world.store.condition_states(&only(tenant), &[task.id]).await.unwrap().len()
    };
    assert_eq!((seen("a").await, seen("b").await), (1, 0));
    assert_eq!(world.store.condition_states(&Scope::Every, &[]).await.unwrap().len(), 0);
}

async fn change_does_not_wait_for_a_poll_that_is_due(world: &StoreHarness) {
    let task = world.task(condition(json!({}))).await;
    world.pass(3600);
    let paused = world.store.change_task(&Scope::Every, task.id, &TaskChange::Pause { reason: None }).await.unwrap();
    assert_eq!(paused.status, TaskStatus::Paused);
    assert_eq!(fires(world, &task).await, [""; 0], "a poll that was not made is no fire that is missed");
    let resumed = world.store.change_task(&Scope::Every, task.id, &TaskChange::Resume).await.unwrap();
    assert!(resumed.next_fire_at.is_some_and(|next| next < world.now() + TimeDelta::seconds(10)), "polled soon again");
    assert_eq!(fires(world, &task).await, [""; 0]);
}

async fn condition_and_a_schedule_may_take_each_other_s_place(world: &StoreHarness) {
    let task = world.task(condition(json!({}))).await;
    record(world, &due(world).await, 400).await;
    edit(world, &task, json!({"type": "schedule", "interval": "1m"})).await;
    assert_eq!(world.store.next_poll().await.unwrap(), None);
    world.pass(60);
    assert_eq!(world.fire().await.recorded, 1);
    edit(world, &task, condition(json!({}))).await;
    assert_eq!(world.store.next_due().await.unwrap(), None);
    assert!(matches!(record(world, &due(world).await, 400).await, RecordedPoll::Fired(_)));
    let keys: Vec<String> = world.runs_of(&task).await.iter().map(|run| run.fire_key.clone()).collect();
    assert_eq!((keys[0].as_str(), keys[2].as_str()), ("c:1", "c:2"), "{keys:?}");
}

async fn conditions_of(world: &StoreHarness, tenant: &str, count: usize) -> Vec<Task> {
    let mut tasks = Vec::new();
    for _ in 0..count {
        tasks.push(world.task_with(tenant, condition(json!({})), json!({})).await);
    }
    tasks
}

async fn tenant_with_a_thousand_polls_hides_no_other_tenant_s(world: &StoreHarness) {
    let many: Vec<_> = (0..1000).map(|_| new_task("many", condition(json!({})), json!({}), world.now())).collect();
    world.store.create_tasks(&many).await.unwrap();
    world.pass(600);
    let one = conditions_of(world, "one", 1).await.remove(0);
    world.pass(600);
    let now = world.now();
    let earliest = world.store.due_polls(now, 256).await.unwrap();
    assert!(earliest.len() == 256 && earliest.iter().all(|poll| poll.tenant_id == "many"));
    let (polls, last) = world.store.polls_in_turn(now, "", 1000).await.unwrap();
    let found: Vec<_> = polls.iter().map(|poll| poll.tenant_id.as_str()).collect();
    assert_eq!((found, polls[1].task_id, last), (vec!["many", "one"], one.id, None));
    for (task, _) in &many {
        world.store.delete_task(&Scope::Every, task.id).await.unwrap();
    }
}

async fn search_goes_from_tenant_to_tenant_and_passes_over_claimed_polls(world: &StoreHarness) {
    for tenant in ["a", "b", "c"] {
        conditions_of(world, tenant, 2).await;
    }
    assert_eq!(world.store.next_poll_after(world.now()).await.unwrap(), world.store.next_poll().await.unwrap());
    let search = async |after: &str, limit: i64| {
        let (polls, last) = world.store.polls_in_turn(world.now(), after, limit).await.unwrap();
        (polls.into_iter().map(|poll| poll.tenant_id).collect::<Vec<_>>().join(""), last.unwrap_or_default())
    };
    assert_eq!(search("", 9).await, ("".into(), "".into()), "nothing is due");
    world.pass(600);
    assert_eq!(world.store.next_poll_after(world.now()).await.unwrap(), None);
    assert_eq!(search("", 2).await, ("ab".into(), "b".into()));
    assert_eq!(search("b", 2).await, ("c".into(), "".into()));
    for left in ["abc", "", ""] {
        let (polls, _) = world.store.polls_in_turn(world.now(), "", 9).await.unwrap();
        let tasks: Vec<Uuid> = polls.iter().map(|poll| poll.task_id).collect();
        let until = world.now() + TimeDelta::seconds(45);
        let claimed = world.store.claim_polls(&tasks, world.now(), until).await.unwrap();
        assert_eq!(claimed.len(), tasks.len());
        assert_eq!(search("", 9).await.0, left);
    }
    world.pass(45);
    assert_eq!(search("", 9).await.0, "abc", "the claims ran out");
}

async fn unreadable_task_is_disabled_and_the_polls_beside_it_are_claimed(world: &StoreHarness) {
    let tasks = conditions_of(world, "a", 3).await;
    let bad = &tasks[1];
    let spec = serde_json::to_string(&json!({"trigger": bad.spec.trigger, "metadata": 7})).unwrap();
    world.plant(&format!("update tasks set spec = '{spec}' where id = {}", world.id(bad.id))).await;
    world.pass(600);
    let claimed = claim_from(&world.store, world.now()).await;
    let mut polled: Vec<Uuid> = claimed.iter().map(|claim| claim.subject.id).collect();
    polled.sort_unstable();
    assert_eq!(polled, [tasks[0].id, tasks[2].id]);
    let disabled = "select count(*) from tasks t join due d on d.task_id = t.id
                     where t.status = 'disabled' and t.status_reason = 'the stored task can''t be read'
                       and d.next_at is null";
    assert_eq!(world.count(disabled).await, 1);
}

async fn tenant_of_a_poll_that_an_older_release_stored_is_written_when_it_is_polled(world: &StoreHarness) {
    conditions_of(world, "a", 1).await;
    world.plant("update due set tenant_id = ''").await;
    let claim = due(world).await;
    assert_eq!(claim.tenant_id, "a");
    record(world, &claim, 600).await;
    assert_eq!(world.count("select count(*) from due where tenant_id = 'a'").await, 1);
}
