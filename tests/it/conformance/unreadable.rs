//! A row that can't be read holds up no other: it is left out, set aside, and not found again at once.

use chrono::TimeDelta;
use reveille::id::{Scope, Tenant};
use reveille::notification::{Kind, NewDelivery};
use reveille::run::RunState;
use reveille::store::{
    AuditEntry, DeliveryFilter, Finish, Limits, Park, RunFilter, SeenTask, Take, TaskFilter, event_shard,
};
use reveille::task::TaskStatus;
use reveille::task::change::TaskChange;
use serde_json::json;
use uuid::Uuid;

use super::asked::{LIMIT, asked};
use super::matching;
use super::world::{LEASE, WORKER, World, end_of, spec};
use crate::support::outbox::claim_due;

on_both!(
    an_unreadable_delivery_is_not_claimed_and_those_beside_it_are,
    an_unreadable_question_keeps_no_other_run_waiting,
    an_unreadable_run_that_waits_for_a_completion_lets_the_others_expire,
    an_unreadable_event_task_is_out_of_the_index_and_the_others_of_its_shard_are_in_it,
    an_unreadable_time_limit_starts_with_the_usual_one_and_the_others_start_beside_it,
    an_unreadable_audit_entry_is_passed_over_and_those_behind_it_are_sealed,
    an_unreadable_window_is_set_aside,
    an_event_task_beyond_a_bound_is_disabled_leaves_the_index_and_its_owner_is_told_once,
    a_task_whose_action_is_beyond_a_bound_is_disabled_until_its_action_is_edited,
    an_unreadable_task_is_out_of_the_list_and_hides_no_other,
    unreadable_runs_and_deliveries_are_out_of_their_lists_and_hide_no_others,
);

const TOLD: &str = "select count(*) from deliveries where kind = 'notice' and dedupe_key like 'notice:disabled:%'";

async fn an_event_task_beyond_a_bound_is_disabled_leaves_the_index_and_its_owner_is_told_once(world: &World) {
    let trigger = json!({"type": "event", "source": "shop"});
    let task = world.task_with("a", trigger, json!({"output": {"channel": "email"}})).await;
    let known = world.store.event_tasks(event_shard("a"), 0, 9, false).await.unwrap();
    assert_eq!(known.live.len(), 1);
    let disable = async |seen, why: &str| world.store.disable_task(task.id, seen, why).await.unwrap();
    assert!(!disable(SeenTask::Epoch(task.epoch + 1), "of an earlier trigger").await);
    assert!(disable(SeenTask::Epoch(task.epoch), "/trigger/filter: is too large").await);
    assert!(!disable(SeenTask::Epoch(task.epoch), "again").await);
    let after = world.get_task(task.id).await;
    assert_eq!((after.status, after.version), (TaskStatus::Disabled, 2));
    assert_eq!(after.status_reason.as_deref(), Some("/trigger/filter: is too large"));
    assert_eq!(world.count(TOLD).await, 1);
    let changes = world.store.event_tasks(event_shard("a"), known.version, 9, false).await.unwrap();
    assert_eq!((changes.live.len(), changes.gone), (0, vec![task.id]));
    assert!(!world.store.disable_task(Uuid::nil(), SeenTask::Version(1), "nobody").await.unwrap());
}

async fn a_task_whose_action_is_beyond_a_bound_is_disabled_until_its_action_is_edited(world: &World) {
    let task = world.task_with("a", json!({"interval": "1m"}), json!({"output": {"channel": "email"}})).await;
    let why = "/action/config/steps: must be a list of 1 to 50 steps";
    assert!(!world.store.disable_task(task.id, SeenTask::Version(2), why).await.unwrap());
    assert!(world.store.disable_task(task.id, SeenTask::Version(1), why).await.unwrap());
    world.pass(120);
    assert_eq!(world.fire().await.tasks, 0);
    let edit = async |version, trigger, more| {
        let spec = Box::new(spec(trigger, more));
        let edit = TaskChange::Edit { version, name: "edited".into(), spec };
        world.store.change_task(&Scope::Only(Tenant::new("a").unwrap()), task.id, &edit).await.unwrap()
    };
    let other_trigger = edit(2, json!({"interval": "2m"}), json!({})).await;
    assert_eq!(other_trigger.status, TaskStatus::Disabled, "its action is the same");
    let mended = edit(3, json!({"interval": "2m"}), json!({"action": {"instruction": "other"}})).await;
    assert_eq!((mended.status, mended.status_reason), (TaskStatus::Active, None));
    assert_eq!(world.count(TOLD).await, 1);
    let text =
        "select count(*) from deliveries where text like '%can''t be run any more%once its action is corrected%'";
    assert_eq!(world.count(text).await, 1);
}

async fn unreadable_runs_and_deliveries_are_out_of_their_lists_and_hide_no_others(world: &World) {
    let tasks = [world.task(json!({ "interval": "1h" })).await, world.task(json!({ "interval": "1h" })).await];
    let mut runs = Vec::new();
    for task in &tasks {
        runs.push(world.run_now(task).await);
    }
    world.plant(&format!("update runs set missed = '7' where id = {}", world.id(runs[1]))).await;
    let page = async |limit: i64| {
        let filter = RunFilter { limit, ..RunFilter::default() };
        let page = world.store.run_summaries(&Scope::Every, &filter).await.unwrap();
        (page.rows.into_iter().map(|summary| summary.run.id).collect::<Vec<_>>(), page.behind)
    };
    assert_eq!((page(9).await, page(1).await), ((vec![runs[0]], None), (vec![], Some(runs[1]))));
    // the list of tasks has their last runs with it
    let last = world.store.last_runs(&Scope::Every, &tasks.each_ref().map(|task| task.id)).await.unwrap();
    assert_eq!(last.into_iter().map(|run| run.id).collect::<Vec<_>>(), [runs[0]]);

    for key in ["a", "b"] {
        let message = NewDelivery {
            tenant_id: "a".into(),
            recipient: "a".into(),
            channel: "email".into(),
            fallback: Vec::new(),
            dedupe_key: key.into(),
            run_id: None,
            kind: Kind::Message,
            urgency: Kind::Message.urgency(),
            subject: None,
            text: Some(key.into()),
        };
        world.store.post_delivery(&message).await.unwrap();
    }
    world.plant("update deliveries set kind = 'telepathy' where dedupe_key = 'b'").await;
    let filter = DeliveryFilter { limit: 9, ..DeliveryFilter::default() };
    let listed = world.store.delivery_summaries(&Scope::Every, &filter).await.unwrap().rows;
    assert_eq!(listed.iter().map(|summary| summary.delivery.dedupe_key.as_str()).collect::<Vec<_>>(), ["a"]);
    world.plant("update runs set missed = null").await;
}

async fn an_unreadable_task_is_out_of_the_list_and_hides_no_other(world: &World) {
    let mut tasks = Vec::new();
    for _ in 0..6 {
        tasks.push(world.task(json!({ "interval": "1h" })).await.id);
    }
    let mut spec = serde_json::to_value(&world.get_task(tasks[0]).await.spec).unwrap();
    spec["executor"] = json!(7);
    world.plant(&format!("update tasks set spec = '{spec}' where id = {}", world.id(tasks[4]))).await;
    world.plant(&format!("update tasks set status = 'perhaps' where id = {}", world.id(tasks[2]))).await;
    let page = async |before: Option<Uuid>, limit: i64| {
        let filter = TaskFilter { before, limit, ..TaskFilter::default() };
        let page = world.store.tasks_page(&Scope::Every, &filter).await.unwrap();
        (page.rows.into_iter().map(|task| task.id).collect::<Vec<_>>(), page.behind)
    };
    assert_eq!(page(None, 9).await, (vec![tasks[5], tasks[3], tasks[1], tasks[0]], None));
    assert_eq!(page(None, 2).await, (vec![tasks[5]], Some(tasks[4])), "the list goes on behind it");
    assert_eq!(page(Some(tasks[4]), 1).await, (vec![tasks[3]], None));
    assert_eq!(page(Some(tasks[3]), 1).await, (vec![], Some(tasks[2])), "a page of others ends no list");
    let whole = world.store.list_tasks(&Scope::Every, &TaskFilter { limit: 9, ..TaskFilter::default() }).await;
    assert_eq!(whole.unwrap().len(), 4);
    world.plant("update tasks set status = 'active' where status = 'perhaps'").await;
}

async fn an_unreadable_delivery_is_not_claimed_and_those_beside_it_are(world: &World) {
    for key in ["a", "b", "c"] {
        let message = NewDelivery {
            tenant_id: "a".into(),
            recipient: "a".into(),
            channel: "email".into(),
            fallback: Vec::new(),
            dedupe_key: key.into(),
            run_id: None,
            kind: Kind::Message,
            urgency: Kind::Message.urgency(),
            subject: None,
            text: Some(key.into()),
        };
        world.store.post_delivery(&message).await.unwrap();
    }
    world.plant("update deliveries set kind = 'telepathy' where dedupe_key = 'a'").await;
    world.plant(r#"update deliveries set fallback = '{"no": "list"}' where dedupe_key = 'b'"#).await;
    let claimed = claim_due(&world.store, world.now() + TimeDelta::seconds(60), 100).await.unwrap();
    let keys: Vec<_> = claimed.iter().map(|claim| claim.delivery.dedupe_key.as_str()).collect();
    assert_eq!(keys, ["c"]);
    assert_eq!(world.store.due_deliveries(9).await.unwrap(), []);
    world.pass(3600);
    assert_eq!(world.store.due_deliveries(9).await.unwrap().len(), 3, "a newer release may read them");
}

async fn an_unreadable_question_keeps_no_other_run_waiting(world: &World) {
    let (_, bad, broken) = asked(world, &["c1"]).await;
    let (_, good, _) = asked(world, &["c1"]).await;
    let (_, lost, _) = asked(world, &["c1"]).await;
    let status = format!("update approvals set status = 'perhaps' where id = {}", world.id(broken[0].id));
    world.plant(&status).await;
    world.plant(&format!("update runs set missed = '7' where id = {}", world.id(lost.run.id))).await;
    world.pass(LIMIT);
    let waiting = world.store.waiting_for_people(world.now(), 1).await.unwrap();
    assert!(waiting.is_empty(), "the first is set aside");
    let waiting = world.store.waiting_for_people(world.now(), 9).await.unwrap();
    assert_eq!(waiting.iter().map(|waiting| waiting.run.id).collect::<Vec<_>>(), [good.run.id]);
    let again = world.store.waiting_for_people(world.now(), 1).await.unwrap();
    assert_eq!(again.len(), 1, "the others do not stand before it any more");
    world.plant(&status.replace("perhaps", "pending")).await;
    world.plant("update runs set missed = null").await;
    for started in [bad, good, lost] {
        world.store.cancel_run(&Scope::Every, started.run.id, "no").await.unwrap();
    }
}

async fn an_unreadable_run_that_waits_for_a_completion_lets_the_others_expire(world: &World) {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let task = world.task(json!({ "interval": "1h" })).await;
        let started = world.started(&task).await;
        let park = Some(Park::Completion { until: world.now() + TimeDelta::seconds(60) });
        let end = Finish { park, ..end_of(&started, RunState::WaitingForCompletion) };
        assert!(world.store.finish_runs(&[end]).await.unwrap().is_empty());
        runs.push(started.run.id);
        world.pass(1);
    }
    world.plant(&format!("update runs set missed = '7' where id = {}", world.id(runs[0]))).await;
    world.pass(60);
    assert_eq!(world.store.overdue_completions(world.now(), 1).await.unwrap(), []);
    let overdue = world.store.overdue_completions(world.now(), 1).await.unwrap();
    assert_eq!(overdue[0].0.id, runs[1], "the first does not stand before it");
    // so it is with a run that was read, and that nobody can look after
    world.store.set_aside_parked(runs[1], &"it can't be ended").await.unwrap();
    assert_eq!(world.store.overdue_completions(world.now(), 1).await.unwrap(), []);
    world.plant("update runs set missed = null").await;
}

async fn an_unreadable_event_task_is_out_of_the_index_and_the_others_of_its_shard_are_in_it(world: &World) {
    let mut tasks = Vec::new();
    for _ in 0..3 {
        tasks.push(matching::task(world, json!({})).await);
    }
    for (task, field, value) in [(&tasks[0], "metadata", json!(7)), (&tasks[1], "max_runs", json!("many"))] {
        let mut spec = serde_json::to_value(&task.spec).unwrap();
        spec[field] = value;
        world.plant(&format!("update tasks set spec = '{spec}' where id = {}", world.id(task.id))).await;
    }
    let changes = world.store.event_tasks(event_shard("a"), 0, 10, false).await.unwrap();
    assert_eq!(changes.live.iter().map(|task| task.task_id).collect::<Vec<_>>(), [tasks[2].id]);
    assert_eq!((changes.gone, changes.more), (vec![tasks[0].id, tasks[1].id], false));
    let page = world.store.event_tasks(event_shard("a"), 0, 2, false).await.unwrap();
    assert!(page.live.is_empty() && page.more, "a page of others ends no reading");
}

async fn an_unreadable_time_limit_starts_with_the_usual_one_and_the_others_start_beside_it(world: &World) {
    let bad = world.task(json!({ "interval": "1h" })).await;
    let good = world.task(json!({ "interval": "1h" })).await;
    for task in [&bad, &good] {
        world.run_now(task).await;
    }
    let mut spec = serde_json::to_value(&bad.spec).unwrap();
    spec["timeout_seconds"] = json!("soon");
    world.plant(&format!("update tasks set spec = '{spec}' where id = {}", world.id(bad.id))).await;
    let now = world.now();
    let take = Take {
        worker: WORKER,
        now,
        ahead: now,
        lease_until: now + LEASE,
        limit: 9,
        fair: None,
        limits: Limits::default(),
        shares: None,
    };
    let taken = world.store.take_runs(&take).await.unwrap();
    let started: Vec<Option<Uuid>> = taken.starts.started.iter().map(|started| started.run.task_id).collect();
    assert!(started.contains(&Some(good.id)), "{started:?}");
    for started in &taken.starts.started {
        world.succeed(started).await;
    }
}

async fn an_unreadable_audit_entry_is_passed_over_and_those_behind_it_are_sealed(world: &World) {
    if world.is_postgres() {
        return; // the types of its columns let nothing in that can't be read
    }
    let (_, started, _) = asked(world, &["c1", "c2", "c3"]).await;
    world.plant("update audit set body = 'no document' where id in (select id from audit order by id limit 2)").await;
    let hash = |before: &str, entry: &AuditEntry| format!("{}+{}", before.len(), entry.action);
    assert_eq!(world.store.seal_audit(&hash, 2).await.unwrap(), 1, "behind a page of two");
    assert_eq!(world.store.seal_audit(&hash, 2).await.unwrap(), 0);
    let (position, _, unsealed) = world.store.audit_end().await.unwrap();
    assert_eq!((position, unsealed), (1, 2));
    world.store.cancel_run(&Scope::Every, started.run.id, "no").await.unwrap();
}

async fn an_unreadable_window_is_set_aside(world: &World) {
    let task = matching::task(world, json!({ "batch": { "size": 5, "wait": "1m" } })).await;
    matching::publish(world, vec![matching::event("e1")]).await;
    world.pass(60);
    let due = world.store.due_windows(world.now(), 9).await.unwrap();
    assert_eq!(due.iter().map(|window| window.task_id).collect::<Vec<_>>(), [task.id]);
    world.store.set_aside_window(due[0].id, &"it can't be read").await.unwrap();
    assert_eq!(world.store.due_windows(world.now(), 9).await.unwrap(), []);
    world.pass(3600);
    assert_eq!(world.store.due_windows(world.now(), 9).await.unwrap().len(), 1);
}
