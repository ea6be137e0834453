//! Orders of an agent to tasks of its tenant, by the real store: what they change, and what they are refused.

use std::sync::Arc;

use chrono::TimeDelta;
use reveille::base::id::{Scope, Tenant, new_id};
use reveille::domain::task::{Task, TaskStatus};
use reveille::executor::host::StoreHost;
use reveille::ports::tool::access::ToolLimits;
use reveille::ports::tool::{HostError, TaskQuery, ToolHost};
use reveille::store::{NewTask, SCANNED_TASKS};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::app::Instance;
use crate::support::world::{ADMIN, World, on_both};

on_both! {
    agent_changes_what_it_gives_and_the_rest_of_the_task_stays
    agent_with_few_tools_gives_no_more_to_a_task_that_it_writes_for
    agent_does_not_touch_tasks_with_more_rights_than_its_own
    task_that_an_agent_paused_is_resumed_and_that_of_a_person_is_not
    run_of_an_agent_is_one_for_one_call
    list_of_an_agent_has_what_is_behind_the_tasks_that_one_page_looks_through
}

fn host(instance: &Instance) -> StoreHost {
    let http = instance.http();
    StoreHost::new(instance.store.clone(), http.validator.clone(), Arc::clone(&http.bus))
}

/// The answer of the host, asked in the runtime of the instance.
async fn told<F>(instance: &Instance, ask: impl FnOnce(StoreHost) -> F) -> Result<Value, HostError>
where
    F: Future<Output = Result<Value, HostError>> + Send + 'static,
{
    let host = host(instance);
    instance.on(|_| ask(host)).await
}

fn ann() -> Tenant {
    Tenant::new("ann").unwrap()
}

async fn made(instance: &Instance, fields: Value) -> Uuid {
    let mut task = json!({
        "tenant_id": "ann", "name": "Mail",
        "trigger": { "type": "schedule", "cron": "0 8 * * *", "timezone": "Europe/Berlin", "overlap": "queue_one" },
        "action": { "instruction": "Read it", "config": { "max_turns": 3 } },
    });
    task.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let (status, made) = instance.ask("POST", "/v1/tasks", ADMIN, Some(task)).await;
    assert_eq!(status, 201, "{made}");
    made["id"].as_str().unwrap().parse().unwrap()
}

async fn read(instance: &Instance, id: Uuid) -> Task {
    instance.on(move |store| async move { store.get_task(&Scope::Every, id).await }).await.unwrap()
}

async fn agent_changes_what_it_gives_and_the_rest_of_the_task_stays(world: World) {
    let instance = world.instance();
    let id = made(&instance, json!({})).await;
    let changes = json!({ "instruction": "Sort it", "trigger": { "type": "schedule", "interval": "2h" } });
    let brief =
        told(&instance, move |host| async move { host.update_task(&ann(), id, changes, &ToolLimits::default()).await })
            .await
            .unwrap();
    assert_eq!((&brief["instruction"], &brief["name"]), (&json!("Sort it"), &json!("Mail")));
    let task = read(&instance, id).await;
    assert_eq!((task.version, task.spec.action.config["max_turns"].as_i64()), (2, Some(3)));
    let trigger = serde_json::to_value(&task.spec.trigger).unwrap();
    assert_eq!(
        (&trigger["interval"], &trigger["cron"], &trigger["overlap"]),
        (&json!("2h"), &Value::Null, &json!("queue_one"))
    );
    // another kind of trigger takes the place of the whole
    let event = json!({ "trigger": { "type": "event", "source": "email" } });
    told(&instance, move |host| async move { host.update_task(&ann(), id, event, &ToolLimits::default()).await })
        .await
        .unwrap();
    assert_eq!(read(&instance, id).await.spec.trigger.kind(), "event");
    let odd = json!({ "trigger": { "type": "schedule", "cron": "not one" } });
    assert!(matches!(
        told(&instance, move |host| async move { host.update_task(&ann(), id, odd, &ToolLimits::default()).await })
            .await,
        Err(HostError::Invalid(_))
    ));
    let bob = Tenant::new("bob").unwrap();
    assert_eq!(
        told(&instance, move |host| async move {
            host.update_task(&bob, id, json!({ "name": "x" }), &ToolLimits::default()).await
        })
        .await,
        Err(HostError::NotFound)
    );
    instance.finish(&world).await;
}

async fn agent_does_not_touch_tasks_with_more_rights_than_its_own(world: World) {
    let instance = world.instance();
    let with = |config: Value| json!({ "action": { "instruction": "Pay", "config": config } });
    for fields in [
        with(json!({ "credentials": ["bank"] })),
        with(json!({ "approvals": { "send_notification": { "gate": "auto" } } })),
        json!({ "output": { "urgency": "urgent" } }),
    ] {
        let id = made(&instance, fields.clone()).await;
        let refused = told(&instance, move |host| async move {
            host.update_task(&ann(), id, json!({ "instruction": "Pay me" }), &ToolLimits::default()).await
        })
        .await;
        assert!(matches!(refused, Err(HostError::Invalid(_))), "{fields}: {refused:?}");
        assert_eq!(read(&instance, id).await.version, 1, "{fields}");
    }
    let id = made(&instance, json!({})).await;
    let poll = json!({ "http": { "url": "https://example.org/", "method": "POST" } });
    let trigger = json!({ "type": "condition", "poll": poll, "interval": "1h", "expression": "value == 1" });
    let refused = told(&instance, move |host| async move {
        host.update_task(&ann(), id, json!({ "trigger": trigger }), &ToolLimits::default()).await
    })
    .await;
    assert!(matches!(refused, Err(HostError::Invalid(_))), "{refused:?}");
    instance.finish(&world).await;
}

async fn task_that_an_agent_paused_is_resumed_and_that_of_a_person_is_not(world: World) {
    let instance = world.instance();
    let id = made(&instance, json!({})).await;
    told(&instance, move |host| async move { host.pause_task(&ann(), id).await }).await.unwrap();
    assert_eq!(read(&instance, id).await.status, TaskStatus::Paused);
    for _ in 0..2 {
        let brief = told(&instance, move |host| async move { host.resume_task(&ann(), id).await }).await.unwrap();
        assert_eq!(brief["status"], "active");
    }
    let (status, answer) = instance.ask("POST", &format!("/v1/tasks/{id}/pause"), ADMIN, None).await;
    assert_eq!(status, 200, "{answer}");
    let Err(HostError::Conflict(why)) =
        told(&instance, move |host| async move { host.resume_task(&ann(), id).await }).await
    else {
        panic!("it was resumed")
    };
    assert_eq!(why, "the task was not paused by an agent, so only a person may resume it");
    // and by pausing it once more an agent does not make it its own
    told(&instance, move |host| async move { host.pause_task(&ann(), id).await }).await.unwrap();
    assert!(told(&instance, move |host| async move { host.resume_task(&ann(), id).await }).await.is_err());
    assert_eq!(read(&instance, id).await.status, TaskStatus::Paused);
    instance.finish(&world).await;
}

async fn run_of_an_agent_is_one_for_one_call(world: World) {
    let instance = world.instance();
    let id = made(&instance, json!({})).await;
    let first = told(&instance, move |host| async move { host.run_task(&ann(), id, Some(json!([1])), "k").await })
        .await
        .unwrap();
    assert_eq!(first["task_id"], json!(id));
    assert_eq!(
        told(&instance, move |host| async move { host.run_task(&ann(), id, Some(json!([1])), "k").await })
            .await
            .unwrap(),
        first
    );
    assert!(matches!(
        told(&instance, move |host| async move { host.run_task(&ann(), id, Some(json!([2])), "k").await }).await,
        Err(HostError::Conflict(_))
    ));
    assert_ne!(
        told(&instance, move |host| async move { host.run_task(&ann(), id, None, "l").await }).await.unwrap(),
        first
    );
    let (status, runs) = instance.ask("GET", &format!("/v1/runs?task_id={id}"), ADMIN, None).await;
    assert_eq!((status, runs["items"].as_array().map(Vec::len)), (200, Some(2)), "{runs}");
    assert_eq!(
        told(&instance, move |host| async move { host.run_task(&Tenant::new("bob").unwrap(), id, None, "m").await })
            .await,
        Err(HostError::NotFound)
    );
    // the runs themselves are not what this is about
    instance.crash();
}

async fn list_of_an_agent_has_what_is_behind_the_tasks_that_one_page_looks_through(world: World) {
    let instance = world.instance();
    let id = made(&instance, json!({ "name": "Rare" })).await;
    let rare = read(&instance, id).await;
    let newer = (0..=SCANNED_TASKS).map(|_| {
        let mut task = rare.clone();
        task.id = new_id(rare.created_at + TimeDelta::seconds(1));
        task.name = "Mail".into();
        (task, None)
    });
    let newer: Vec<NewTask> = newer.collect();
    instance
        .on(move |store| async move {
            for some in newer.chunks(1_000) {
                store.create_tasks(some).await.unwrap();
            }
        })
        .await;
    let listed = async |q: &str, limit: u32| {
        let query = TaskQuery { status: None, q: Some(q.into()), limit };
        let list = told(&instance, move |host| async move { host.list_tasks(&ann(), query).await }).await.unwrap();
        list["items"].as_array().unwrap().iter().map(|task| task["name"].clone()).collect::<Vec<_>>()
    };
    assert_eq!(listed("rare", 20).await, ["Rare"]);
    assert_eq!(listed("mail", 2).await, ["Mail", "Mail"]);
    assert_eq!(listed("none", 20).await, [""; 0]);
    instance.crash();
}

async fn agent_with_few_tools_gives_no_more_to_a_task_that_it_writes_for(world: World) {
    let instance = world.instance();
    let limits = || ToolLimits {
        allow: Some(vec!["current_time".into(), "send_notification".into()]),
        deny: vec!["http_send".into()],
    };
    let of = |task: &Task| {
        (task.spec.action.config.get("tools").cloned(), task.spec.action.config.get("deny_tools").cloned())
    };
    let own =
        json!({ "action": { "instruction": "Read it", "config": { "tools": ["current_time", "http_request"] } } });
    let id = made(&instance, own).await;
    let update = async |id: Uuid, changes: Value, limits: ToolLimits| {
        told(&instance, move |host| async move { host.update_task(&ann(), id, changes, &limits).await }).await.unwrap();
        read(&instance, id).await
    };
    // when it fires is nothing that its agent is told
    let task = update(id, json!({ "max_runs": 3 }), limits()).await;
    assert_eq!(of(&task), (Some(json!(["current_time", "http_request"])), None));
    let task = update(id, json!({ "instruction": "Sort it" }), ToolLimits::default()).await;
    assert_eq!(of(&task), (Some(json!(["current_time", "http_request"])), None));
    for changes in [json!({ "instruction": "Send it" }), json!({ "name": "Send it" })] {
        let id = made(&instance, json!({})).await;
        let task = update(id, changes, limits()).await;
        assert_eq!(of(&task), (Some(json!(["current_time", "send_notification"])), Some(json!(["http_send"]))));
        assert_eq!(task.spec.action.config["max_turns"], 3, "the rest stays");
    }
    let task = update(id, json!({ "instruction": "Send it" }), limits()).await;
    assert_eq!(of(&task), (Some(json!(["current_time"])), Some(json!(["http_send"]))));
    instance.finish(&world).await;
}
