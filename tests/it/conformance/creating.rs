//! New tasks: a batch has the effects of its tasks one by one, and a key stands for one task of its tenant.

use futures::future::join_all;
use reveille::base::id::Scope;
use reveille::domain::credential::Reference;
use reveille::domain::task::{Task, exported_key};
use reveille::store::{NewTask, StoreError, StoredAnswer, TaskFilter, event_shard};
use serde_json::{Value, json};

use super::world::{START, StoreHarness, new_task, only};

on_both!(
    batch_is_stored_as_its_tasks_would_be_one_by_one,
    key_that_is_taken_leaves_its_task_out_with_all_that_belongs_to_it,
    key_stands_for_one_task_of_its_tenant,
    exported_key_stands_for_the_task_with_its_id,
    batch_with_a_fault_stores_nothing,
    batches_that_meet_make_each_task_once,
    tasks_that_are_made_at_once_have_each_its_own_answer,
);

const EVERY: &Scope = &Scope::Every;

fn task(tenant: &str, key: Option<&str>, trigger: Value, more: Value) -> NewTask {
    let (task, nominal) = new_task(tenant, trigger, more, START);
    (Task { key: key.map(str::to_owned), ..task }, nominal)
}

fn hourly(tenant: &str, key: Option<&str>) -> NewTask {
    task(tenant, key, json!({"interval": "1h"}), json!({}))
}

fn on_orders(tenant: &str, key: Option<&str>) -> NewTask {
    task(tenant, key, json!({"type": "event", "source": "shop"}), json!({}))
}

async fn batch_is_stored_as_its_tasks_would_be_one_by_one(world: &StoreHarness) {
    let condition = json!({"type": "condition", "poll": {"tool": {"name": "current_time"}}, "interval": "1m", "expression": "true"});
    let sends = json!({"action": {"instruction": "", "config": {"credentials": ["google/work", "github"]}}});
    let name = "it's \"quoted\", {braced}, NULL and \\ back";
    let batch = [
        hourly("a", Some("x/hourly")),
        on_orders("a", None),
        task("b", None, json!({"at": "2026-03-01T09:00:00Z"}), sends),
        on_orders("b", Some("x/hourly")),
        task("a", None, condition, json!({"metadata": {"ü": [1, 2.5, null, "a\u{0}b"]}})),
        on_orders("a", Some("orders")),
    ];
    let mut batch = batch.to_vec();
    batch[0].0.name = name.into();
    assert_eq!(world.store.create_tasks(&batch).await.unwrap(), [true; 6]);
    for (task, _) in &batch {
        let mut task = task.clone();
        if let Some(text) = task.spec.metadata.get_mut("ü") {
            *text = json!([1, 2.5, null, "a\u{FFFD}b"]);
        }
        assert_eq!(world.get_task(task.id).await, task);
    }
    let zones = format!(
        "select count(*) from tasks where zone_database = '{}'",
        reveille::domain::trigger::zone_database_version()
    );
    assert_eq!(world.count(&zones).await, 6);
    // the same rows as of one that is stored alone
    let (alone, nominal) = on_orders("a", None);
    assert_eq!(world.store.create_task(&alone, nominal, None).await.unwrap(), StoredAnswer::Done(()));
    let mut versions = Vec::new();
    for (tenant, ids) in [("a", vec![batch[1].0.id, batch[5].0.id, alone.id]), ("b", vec![batch[3].0.id])] {
        let known = world.store.event_tasks(event_shard(tenant), 0, 10, false).await.unwrap();
        let mut live: Vec<_> = known.live.iter().map(|task| task.task_id).collect();
        live.sort();
        assert_eq!((live, known.version), (ids.clone(), ids.len() as i64));
        // whoever reads page by page misses none
        let mut from = 0;
        while from < known.version {
            let page = world.store.event_tasks(event_shard(tenant), from, 1, true).await.unwrap();
            assert_eq!((page.live.len(), page.version), (1, from + 1));
            from = page.version;
        }
        versions.push(from);
    }
    assert_eq!(versions, [3, 1]);
    for (name, found) in [("google/work", 1), ("github", 1), ("google", 0)] {
        let tasks = world.store.tasks_of_credential(EVERY, "b", &Reference::parse(name).unwrap(), &[]).await.unwrap();
        assert_eq!(tasks.len(), found, "{name}");
    }
    world.pass(3600);
    assert_eq!(world.fire().await.recorded, 2, "what is due fires");
}

async fn key_that_is_taken_leaves_its_task_out_with_all_that_belongs_to_it(world: &StoreHarness) {
    let first = hourly("a", Some("k"));
    assert_eq!(world.store.create_tasks(std::slice::from_ref(&first)).await.unwrap(), [true]);
    let names = json!({"action": {"instruction": "", "config": {"credential": "github"}}});
    let batch = [
        task("a", Some("k"), json!({"type": "event", "source": "shop"}), names),
        hourly("a", Some("new")),
        hourly("a", Some("new")),
        hourly("b", Some("k")),
        hourly("a", None),
        hourly("a", None),
    ];
    assert_eq!(world.store.create_tasks(&batch).await.unwrap(), [false, true, false, true, true, true]);
    assert_eq!(world.get_task(first.0.id).await, first.0);
    for table in ["tasks", "due"] {
        assert_eq!(world.count(&format!("select count(*) from {table}")).await, 5, "{table}");
    }
    for table in ["task_credentials", "event_tasks", "event_index"] {
        assert_eq!(world.count(&format!("select count(*) from {table}")).await, 0, "{table}");
    }
    assert_eq!(world.store.create_tasks(&[]).await.unwrap(), Vec::<bool>::new());
}

async fn key_stands_for_one_task_of_its_tenant(world: &StoreHarness) {
    let (first, nominal) = hourly("a", Some("reports/daily"));
    world.store.create_task(&first, nominal, None).await.unwrap();
    for again in [hourly("a", Some("reports/daily")), on_orders("a", Some("reports/daily"))] {
        let refused = world.store.create_task(&again.0, again.1, None).await;
        let said = "there is a task with the key `reports/daily`";
        assert!(matches!(&refused, Err(StoreError::Conflict(why)) if why == said), "{refused:?}");
    }
    let (other, nominal) = hourly("b", Some("reports/daily"));
    world.store.create_task(&other, nominal, None).await.unwrap();
    let with = async |tenant: Option<&str>, key: &str| {
        let filter =
            TaskFilter { tenant: tenant.map(str::to_owned), key: Some(key.into()), limit: 9, ..TaskFilter::default() };
        world.store.list_tasks(EVERY, &filter).await.unwrap()
    };
    assert_eq!(with(Some("a"), "reports/daily").await, std::slice::from_ref(&first));
    assert_eq!(with(None, "reports/daily").await.len(), 2);
    assert_eq!(with(None, "reports").await, []);
    // it is free again when its task is gone
    world.store.delete_task(EVERY, first.id).await.unwrap();
    assert_eq!(world.store.create_tasks(&[hourly("a", Some("reports/daily"))]).await.unwrap(), [true]);
}

async fn exported_key_stands_for_the_task_with_its_id(world: &StoreHarness) {
    let nameless = [hourly("a", None), on_orders("a", None)];
    assert_eq!(world.store.create_tasks(&nameless).await.unwrap(), [true; 2]);
    let keys = nameless.each_ref().map(|(task, _)| exported_key(task.id));
    let again = || {
        [
            hourly("a", Some(&keys[0])),
            hourly("a", Some("another")),
            on_orders("a", Some(&keys[1])),
            // elsewhere it is a key like any other
            hourly("b", Some(&keys[0])),
            hourly("b", Some(&keys[0])),
        ]
    };
    let imported = again();
    assert_eq!(world.store.create_tasks(&imported).await.unwrap(), [false, true, false, true, false]);
    assert_eq!(world.store.create_tasks(&again()).await.unwrap(), [false; 5]);
    assert_eq!(world.count("select count(*) from tasks").await, 4);

    let alone = hourly("a", Some(&keys[0]));
    let refused = world.store.create_task(&alone.0, alone.1, None).await;
    assert!(matches!(&refused, Err(StoreError::Conflict(why)) if why.contains(&keys[0])), "{refused:?}");
    let found = async |scope: &Scope| {
        let filter = TaskFilter { key: Some(keys[0].clone()), limit: 10, ..TaskFilter::default() };
        let tasks = world.store.list_tasks(scope, &filter).await.unwrap();
        tasks.into_iter().map(|task| task.id).collect::<Vec<_>>()
    };
    assert_eq!(found(&only("a")).await, [nameless[0].0.id]);
    assert_eq!(found(&only("b")).await, [imported[3].0.id]);

    // what was deleted is made again, under the key
    world.store.delete_task(EVERY, nameless[0].0.id).await.unwrap();
    assert_eq!(world.store.create_tasks(&again()[..1]).await.unwrap(), [true]);
    assert_eq!(world.store.create_tasks(&again()[..1]).await.unwrap(), [false]);
}

async fn batch_with_a_fault_stores_nothing(world: &StoreHarness) {
    let stored = hourly("a", None);
    world.store.create_tasks(std::slice::from_ref(&stored)).await.unwrap();
    let refused = world.store.create_tasks(&[hourly("a", None), on_orders("a", None), stored]).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    assert_eq!(world.count("select count(*) from tasks").await, 1);
    assert_eq!(world.count("select count(*) from event_tasks").await, 0);
}

async fn batches_that_meet_make_each_task_once(world: &StoreHarness) {
    let other = world.other_instance().await;
    for round in 0..10 {
        let key = |number: usize| format!("{round}/{number}");
        let there: Vec<_> = (0..20).map(|n| on_orders(if n % 2 == 0 { "a" } else { "b" }, Some(&key(n)))).collect();
        let back: Vec<_> =
            (0..20).rev().map(|n| on_orders(if n % 2 == 0 { "a" } else { "b" }, Some(&key(n)))).collect();
        let (first, second) = tokio::join!(world.store.create_tasks(&there), other.create_tasks(&back));
        let made = [first.unwrap(), second.unwrap()].concat().iter().filter(|stored| **stored).count();
        assert_eq!(made, 20);
    }
    assert_eq!(world.count("select count(*) from tasks").await, 200);
    assert_eq!(world.count("select count(*) from event_tasks").await, 200);
    if world.is_postgres() {
        other.close().await;
    }
}

async fn tasks_that_are_made_at_once_have_each_its_own_answer(world: &StoreHarness) {
    let (stored, nominal) = hourly("a", None);
    world.store.create_task(&stored, nominal, None).await.unwrap();
    for round in 0..5 {
        let mut tasks: Vec<NewTask> =
            (0..60).map(|n| hourly(if n % 2 == 0 { "a" } else { "b" }, Some(&format!("{round}/{}", n / 4)))).collect();
        // one at fault among them harms nobody else
        tasks.push((stored.clone(), nominal));
        tasks.extend((0..20).map(|_| hourly("a", None)));
        let made = join_all(tasks.iter().map(|(task, nominal)| world.store.create_task(task, *nominal, None))).await;
        let keyed = made[..60].iter().filter(|made| made.is_ok()).count();
        assert_eq!(keyed, 30, "each of 15 keys once for each of two tenants");
        for (refused, (task, _)) in made.iter().zip(&tasks).take(60).filter(|(made, _)| made.is_err()) {
            let said = format!("there is a task with the key `{}`", task.key.as_deref().unwrap());
            assert!(matches!(refused, Err(StoreError::Conflict(why)) if *why == said), "{refused:?}");
        }
        assert!(made[60].is_err());
        assert!(made[61..].iter().all(Result::is_ok));
        for (made, (task, _)) in made.iter().zip(&tasks).filter(|(_, (task, _))| task.id != stored.id) {
            assert_eq!(world.store.get_task(EVERY, task.id).await.is_ok(), made.is_ok());
        }
    }
}
