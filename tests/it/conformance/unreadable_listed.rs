//! Lists leave out a row that can't be read, and go on behind it.

use reveille::base::id::Scope;
use reveille::domain::notification::{MessageKind, NewDelivery};
use reveille::store::{DeliveryFilter, RunFilter, SuspendedFilter, SuspendedRun, TaskFilter};
use serde_json::json;
use uuid::Uuid;

use super::asked::asked;
use super::world::StoreHarness;

on_both!(
    unreadable_task_is_out_of_the_list_and_hides_no_other,
    unreadable_runs_and_deliveries_are_out_of_their_lists_and_hide_no_others,
    unreadable_run_that_waits_is_out_of_the_list_and_hides_no_other,
);

async fn unreadable_run_that_waits_is_out_of_the_list_and_hides_no_other(world: &StoreHarness) {
    let mut runs = Vec::new();
    for chain in [json!(["A"]), json!(7), json!(["B"])] {
        let (_, started, asked) = asked(world, &["c1"]).await;
        let proposal = json!({ "delegation_chain": chain });
        world
            .plant(&format!("update approvals set proposal = '{proposal}' where id = {}", world.id(asked[0].id)))
            .await;
        runs.push(started.run.id);
    }
    world.plant(&format!("update runs set state = 'afloat' where id = {}", world.id(runs[2]))).await;
    let page = async |limit: i64| {
        let filter = SuspendedFilter { limit, ..SuspendedFilter::default() };
        let page = world.store.list_suspended(&Scope::Every, &filter).await.unwrap();
        let chains = |run: &SuspendedRun| run.agents.iter().map(|agent| agent.delegation_chain.join(">")).collect();
        let rows: Vec<(Uuid, Vec<String>)> = page.rows.iter().map(|run| (run.run_id, chains(run))).collect();
        (rows, page.behind)
    };
    let readable = vec![(runs[1], vec![String::new()]), (runs[0], vec!["A".to_owned()])];
    assert_eq!((page(9).await, page(1).await), ((readable, None), (vec![], Some(runs[2]))));
}

async fn unreadable_runs_and_deliveries_are_out_of_their_lists_and_hide_no_others(world: &StoreHarness) {
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
            subject_ref: None,
            kind: MessageKind::Message,
            urgency: MessageKind::Message.urgency(),
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

async fn unreadable_task_is_out_of_the_list_and_hides_no_other(world: &StoreHarness) {
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
