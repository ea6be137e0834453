//! A stored task that exceeds a bound is disabled with its reason, and its owner is told once.

use reveille::base::id::{Scope, Tenant};
use reveille::domain::task::TaskStatus;
use reveille::domain::task::change::{FaultyPart, TaskChange};
use reveille::store::{SeenTask, event_shard};
use serde_json::json;
use uuid::Uuid;

use super::world::{StoreHarness, spec};

on_both!(
    event_task_beyond_a_bound_is_disabled_leaves_the_index_and_its_owner_is_told_once,
    task_whose_action_is_beyond_a_bound_is_disabled_until_its_action_is_edited,
);

const TOLD: &str = "select count(*) from deliveries where kind = 'notice' and dedupe_key like 'notice:disabled:%'";

async fn event_task_beyond_a_bound_is_disabled_leaves_the_index_and_its_owner_is_told_once(world: &StoreHarness) {
    let trigger = json!({"type": "event", "source": "shop"});
    let task = world.task_with("a", trigger, json!({"output": {"channel": "email"}})).await;
    let known = world.store.event_tasks(event_shard("a"), 0, 9, false).await.unwrap();
    assert_eq!(known.live.len(), 1);
    let disable =
        async |seen, why: &str| world.store.disable_task(task.id, seen, FaultyPart::Trigger, why).await.unwrap();
    assert!(!disable(SeenTask::Epoch(task.epoch + 1), "of an earlier trigger").await);
    assert!(disable(SeenTask::Epoch(task.epoch), "/trigger/filter: is too large").await);
    assert!(!disable(SeenTask::Epoch(task.epoch), "again").await);
    let after = world.get_task(task.id).await;
    assert_eq!((after.status, after.version), (TaskStatus::Disabled, 2));
    assert_eq!(after.status_reason.as_deref(), Some("/trigger/filter: is too large"));
    assert_eq!(world.count(TOLD).await, 1);
    let changes = world.store.event_tasks(event_shard("a"), known.version, 9, false).await.unwrap();
    assert_eq!((changes.live.len(), changes.gone), (0, vec![task.id]));
    assert!(!world.store.disable_task(Uuid::nil(), SeenTask::Version(1), FaultyPart::Trigger, "nobody").await.unwrap());
}

async fn task_whose_action_is_beyond_a_bound_is_disabled_until_its_action_is_edited(world: &StoreHarness) {
    let task = world.task_with("a", json!({"interval": "1m"}), json!({"output": {"channel": "email"}})).await;
    // in whichever words, and however they begin
    let why = "/trigger: die Aktion ist zu lang";
    assert!(!world.store.disable_task(task.id, SeenTask::Version(2), FaultyPart::Action, why).await.unwrap());
    assert!(world.store.disable_task(task.id, SeenTask::Version(1), FaultyPart::Action, why).await.unwrap());
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
        "select count(*) from deliveries where body like '%can''t be run any more%once its action is corrected%'";
    assert_eq!(world.count(text).await, 1);
}
