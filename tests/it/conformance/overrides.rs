//! Overrides of the approval matrix: for whom each holds, and what ends it.

use chrono::TimeDelta;
use reveille::base::id::{Scope, new_id};
use reveille::domain::approval::stored_override::MOST_OVERRIDES;
use reveille::domain::approval::{ApprovalLevel, ApprovalOverride};
use reveille::domain::task::change::TaskChange;
use reveille::store::{AuditFilter, OverrideFilter, StoreError, StoredAnswer};
use serde_json::json;
use uuid::Uuid;

use super::world::{START, StoreHarness, only, spec};

on_both!(
    override_holds_for_its_tenant_agent_or_task_and_nobody_else,
    override_takes_the_place_of_the_one_before,
    override_ends_by_itself_when_taken_back_and_with_its_task,
    edit_of_a_task_ends_what_lets_its_calls_through_and_nothing_else,
    overrides_are_listed_by_task_agent_and_tenant,
    override_of_a_task_that_is_not_there_is_refused,
    overrides_of_a_tenant_are_bounded,
);

const EVERY: &Scope = &Scope::Every;
const NONE: [Uuid; 0] = [];

/// An override of the tool `mail`.
pub fn sample(world: &StoreHarness, tenant: &str) -> ApprovalOverride {
    ApprovalOverride {
        id: new_id(world.now()),
        tenant_id: tenant.into(),
        task_id: None,
        agent: None,
        tool: "mail".into(),
        gate: ApprovalLevel::Auto,
        when: Some("args.amount < 9".into()),
        created_at: world.now(),
        created_by: "token:t".into(),
        expires_at: world.now() + TimeDelta::days(30),
    }
}

async fn set(world: &StoreHarness, wanted: &ApprovalOverride) {
    assert_eq!(world.store.set_approval_override(wanted, None).await.unwrap(), StoredAnswer::Done(()));
}

async fn of_call(world: &StoreHarness, tenant: &str, agent: Option<&str>, task: Option<Uuid>, tool: &str) -> Vec<Uuid> {
    let found = world.store.approval_overrides_of_calls(tenant, agent, task, &[tool]).await.unwrap();
    let mut ids: Vec<Uuid> = found.into_iter().map(|stored| stored.id).collect();
    ids.sort();
    ids
}

async fn listed(world: &StoreHarness, scope: &Scope, filter: OverrideFilter) -> Vec<Uuid> {
    let filter = OverrideFilter { limit: 50, ..filter };
    let page = world.store.list_approval_overrides(scope, &filter).await.unwrap();
    page.rows.into_iter().map(|stored| stored.id).collect()
}

async fn override_holds_for_its_tenant_agent_or_task_and_nobody_else(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h" })).await;
    assert_eq!(of_call(world, "a", None, None, "mail").await, NONE, "it is remembered that there are none");
    let tenant = sample(world, "a");
    let agent = ApprovalOverride { agent: Some("booker".into()), ..sample(world, "a") };
    let own = ApprovalOverride { task_id: Some(task.id), ..sample(world, "a") };
    for wanted in [&tenant, &agent, &own] {
        set(world, wanted).await;
    }
    assert_eq!(of_call(world, "a", None, None, "mail").await, [tenant.id], "where it was set it holds at once");
    assert_eq!(of_call(world, "a", Some("booker"), None, "mail").await, [tenant.id, agent.id]);
    assert_eq!(of_call(world, "a", Some("booker"), Some(task.id), "mail").await, [tenant.id, agent.id, own.id]);
    assert_eq!(of_call(world, "a", Some("other"), Some(new_id(START)), "mail").await, [tenant.id]);
    assert_eq!(of_call(world, "a", None, None, "note").await, NONE);
    assert_eq!(of_call(world, "b", Some("booker"), Some(task.id), "mail").await, NONE);
    let stored = world.store.approval_overrides_of_calls("a", None, None, &["mail"]).await.unwrap();
    assert_eq!(stored, [tenant], "as it was set");
    let pay = ApprovalOverride { tool: "pay".into(), ..sample(world, "a") };
    set(world, &pay).await;
    for (tools, both) in [(&["mail", "pay"][..], true), (&["pay", "note"], false), (&[], false)] {
        let found = world.store.approval_overrides_of_calls("a", None, None, tools).await.unwrap();
        let named: Vec<&str> = found.iter().map(|stored| stored.tool.as_str()).collect();
        let expected: Vec<&str> = tools.iter().copied().filter(|tool| both || *tool == "pay").collect();
        assert_eq!(named, expected, "those of several tools at once");
    }
}

async fn override_takes_the_place_of_the_one_before(world: &StoreHarness) {
    let first = sample(world, "a");
    set(world, &first).await;
    let second = ApprovalOverride { gate: ApprovalLevel::Confirm, when: None, ..sample(world, "a") };
    set(world, &second).await;
    assert_eq!(of_call(world, "a", None, None, "mail").await, [second.id]);
    assert_eq!(listed(world, EVERY, OverrideFilter::default()).await, [second.id]);
}

async fn override_ends_by_itself_when_taken_back_and_with_its_task(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h" })).await;
    let short = ApprovalOverride { expires_at: world.now() + TimeDelta::seconds(60), ..sample(world, "a") };
    let own = ApprovalOverride { task_id: Some(task.id), ..sample(world, "a") };
    set(world, &short).await;
    set(world, &own).await;
    world.pass(59);
    assert_eq!(of_call(world, "a", None, Some(task.id), "mail").await, [short.id, own.id]);
    world.pass(1);
    assert_eq!(of_call(world, "a", None, Some(task.id), "mail").await, [own.id]);
    assert_eq!(listed(world, EVERY, OverrideFilter::default()).await, [own.id]);
    world.store.delete_task(EVERY, task.id).await.unwrap();
    assert_eq!(of_call(world, "a", None, Some(task.id), "mail").await, NONE);

    let agent = ApprovalOverride { agent: Some("booker".into()), ..sample(world, "a") };
    set(world, &agent).await;
    let foreign = world.store.remove_approval_override(&only("b"), agent.id, "token:b").await;
    assert!(matches!(foreign, Err(StoreError::NotFound)), "{foreign:?}");
    world.store.remove_approval_override(&only("a"), agent.id, "token:u").await.unwrap();
    assert_eq!(of_call(world, "a", Some("booker"), None, "mail").await, NONE);
    let again = world.store.remove_approval_override(&only("a"), agent.id, "token:u").await;
    assert!(matches!(again, Err(StoreError::NotFound)), "{again:?}");
    let filter = AuditFilter { subject_id: Some(agent.id), limit: 9, ..AuditFilter::default() };
    let entries = world.store.audit_page(EVERY, &filter).await.unwrap().rows;
    let acts: Vec<String> = entries.iter().rev().map(|entry| format!("{}: {}", entry.actor, entry.action)).collect();
    assert_eq!(acts, ["token:t: override.set", "token:u: override.removed"]);
}

async fn edit_of_a_task_ends_what_lets_its_calls_through_and_nothing_else(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h" })).await;
    let lets = ApprovalOverride { task_id: Some(task.id), ..sample(world, "a") };
    let asks = ApprovalOverride {
        tool: "pay".into(),
        gate: ApprovalLevel::Confirm,
        task_id: Some(task.id),
        ..sample(world, "a")
    };
    let tenant = sample(world, "a");
    for wanted in [&lets, &asks, &tenant] {
        set(world, wanted).await;
    }
    let spec = Box::new(spec(json!({ "interval": "2h" }), json!({})));
    let edit = TaskChange::Edit { version: task.version, name: "n".into(), spec };
    world.store.change_task(EVERY, task.id, &edit).await.unwrap();
    assert_eq!(of_call(world, "a", None, Some(task.id), "mail").await, [tenant.id]);
    assert_eq!(of_call(world, "a", None, Some(task.id), "pay").await, [asks.id]);
    assert_eq!(listed(world, EVERY, OverrideFilter::default()).await, [tenant.id, asks.id]);
}

async fn overrides_are_listed_by_task_agent_and_tenant(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h" })).await;
    let own = ApprovalOverride { task_id: Some(task.id), ..sample(world, "a") };
    let agent = ApprovalOverride { agent: Some("booker".into()), ..sample(world, "a") };
    let foreign = sample(world, "b");
    for wanted in [&own, &agent, &foreign] {
        set(world, wanted).await;
    }
    assert_eq!(listed(world, EVERY, OverrideFilter::default()).await, [foreign.id, agent.id, own.id]);
    assert_eq!(listed(world, &only("a"), OverrideFilter::default()).await, [agent.id, own.id]);
    let of_task = OverrideFilter { task_id: Some(task.id), ..OverrideFilter::default() };
    assert_eq!(listed(world, &only("a"), of_task).await, [own.id]);
    let of_agent = OverrideFilter { agent: Some("booker".into()), ..OverrideFilter::default() };
    assert_eq!(listed(world, EVERY, of_agent).await, [agent.id]);
    let behind = OverrideFilter { before: Some(agent.id), ..OverrideFilter::default() };
    assert_eq!(listed(world, EVERY, behind).await, [own.id]);
}

async fn override_of_a_task_that_is_not_there_is_refused(world: &StoreHarness) {
    let task = world.task_with("b", json!({ "interval": "1h" }), json!({})).await;
    for id in [task.id, new_id(START)] {
        let wanted = ApprovalOverride { task_id: Some(id), ..sample(world, "a") };
        let refused = world.store.set_approval_override(&wanted, None).await;
        assert!(matches!(refused, Err(StoreError::NotFound)), "{refused:?}");
    }
}

async fn overrides_of_a_tenant_are_bounded(world: &StoreHarness) {
    for number in 0..MOST_OVERRIDES {
        set(world, &ApprovalOverride { tool: format!("tool{number}"), ..sample(world, "a") }).await;
    }
    let refused = world.store.set_approval_override(&sample(world, "a"), None).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    set(world, &sample(world, "b")).await;
    set(world, &ApprovalOverride { tool: "tool7".into(), ..sample(world, "a") }).await;
    world.clock.advance(TimeDelta::days(30));
    set(world, &sample(world, "a")).await;
}
