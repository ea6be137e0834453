//! Values that pipelines of a task keep between runs.

use reveille::base::id::Scope;
use reveille::store::{STATE_NAMES, StoreError};
use serde_json::{Value, json};
use uuid::Uuid;

use super::world::{StoreHarness, tenant_of};

on_both!(task_state_is_read_by_its_tenant_and_written_over, task_has_so_many_names_and_no_more, it_goes_with_its_task,);

async fn task_state_is_read_by_its_tenant_and_written_over(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h" })).await;
    let (a, b) = (tenant_of("a"), tenant_of("b"));
    let put = |name: &'static str, value: Value| {
        let a = a.clone();
        async move { world.store.put_task_state(&a, task.id, name, &value, world.now()).await }
    };
    put("seen", json!(1)).await.unwrap();
    put("text", json!("a\0b")).await.unwrap();
    put("seen", json!({ "n": [2, null] })).await.unwrap();
    let state = world.store.task_state(&a, task.id).await.unwrap();
    assert_eq!((state.len(), &state["seen"]), (2, &json!({ "n": [2, null] })));
    assert_eq!(world.store.task_state(&b, task.id).await.unwrap().len(), 0);
    let other = world.store.put_task_state(&b, task.id, "seen", &json!(0), world.now()).await;
    assert!(matches!(other, Err(StoreError::NotFound)), "{other:?}");
    world.store.delete_task_state(&b, task.id, "seen").await.unwrap();
    assert_eq!(world.store.task_state(&a, task.id).await.unwrap().len(), 2);
    for _ in 0..2 {
        world.store.delete_task_state(&a, task.id, "seen").await.unwrap();
    }
    assert_eq!(world.store.task_state(&a, task.id).await.unwrap().len(), 1);
}

async fn task_has_so_many_names_and_no_more(world: &StoreHarness) {
    let (task, a) = (world.task(json!({ "interval": "1h" })).await, tenant_of("a"));
    for n in 0..STATE_NAMES {
        world.store.put_task_state(&a, task.id, &format!("n{n}"), &json!(n), world.now()).await.unwrap();
    }
    let one_more = world.store.put_task_state(&a, task.id, "more", &json!(1), world.now()).await;
    assert!(matches!(one_more, Err(StoreError::Conflict(_))), "{one_more:?}");
    world.store.put_task_state(&a, task.id, "n7", &json!("again"), world.now()).await.unwrap();
    assert_eq!(world.store.task_state(&a, task.id).await.unwrap()["n7"], json!("again"));
}

async fn it_goes_with_its_task(world: &StoreHarness) {
    let (task, a) = (world.task(json!({ "interval": "1h" })).await, tenant_of("a"));
    world.store.put_task_state(&a, task.id, "seen", &json!(1), world.now()).await.unwrap();
    world.store.delete_task(&Scope::Every, task.id).await.unwrap();
    assert_eq!(world.count("select count(*) from task_state").await, 0);
    let late = world.store.put_task_state(&a, task.id, "seen", &json!(1), world.now()).await;
    assert!(matches!(late, Err(StoreError::NotFound)), "{late:?}");
    let never = world.store.put_task_state(&a, Uuid::from_u128(9), "seen", &json!(1), world.now()).await;
    assert!(matches!(never, Err(StoreError::NotFound)), "{never:?}");
}
