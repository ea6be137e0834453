//! Many tenants on one engine: limits on what is under way, and nobody kept waiting by a crowd.

use std::time::{Duration, Instant};

use reveille::domain::run::RunState;
use serde_json::{Value, json};

use crate::support::app::Instance;
use crate::support::world::{ADMIN, World, on_both};

on_both! {
    limit_holds_for_what_is_asked_for_and_for_what_falls_due
    no_more_runs_are_under_way_than_there_are_places
    crowd_of_one_tenant_delays_anothers_run_by_less_than_two_seconds
    where_places_come_one_by_one_tenants_have_them_in_turn
    tenants_own_limit_holds_on_an_instance_without_limits
    tenants_own_limit_holds_for_events_that_end_the_rest_of_an_instance
}

async fn limit_holds_for_what_is_asked_for_and_for_what_falls_due(mut world: World) {
    world.settings.max_runs_per_tenant = 3;
    let mut instance = world.instance();
    let trigger = json!({ "type": "schedule", "interval": "1m", "overlap": "allow" });
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(instance.task(json!({ "acts": ["wait"], "trigger": trigger })).await);
    }
    world.advance(60.0);
    let running = instance.start().await;
    let asked = instance.run_now(&tasks[0]).await;
    let began = Instant::now();
    while world.journal.begun().len() < 3 {
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", world.journal.begun());
        reveille::base::clock::pause(Duration::from_millis(5)).await;
    }
    reveille::base::clock::pause(Duration::from_millis(200)).await;
    assert_eq!(
        instance.queue().await,
        [("ready".into(), 3), ("started".into(), 3)],
        "five that were due, and one asked for"
    );
    world.journal.open_gate();
    for task in &tasks {
        for run in instance.runs(task).await {
            instance.until(run.id, |run| run.state == RunState::Succeeded).await;
        }
    }
    assert_eq!(instance.run(asked).await.state, RunState::Succeeded);
    instance.on(|_| async move { running.stop().await }).await;
    instance.finish(&world).await;
}

async fn no_more_runs_are_under_way_than_there_are_places(mut world: World) {
    (world.settings.max_concurrent_runs, world.settings.prefetch) = (3, 2);
    let mut instance = world.instance();
    let trigger = json!({ "type": "schedule", "interval": "1m", "overlap": "allow" });
    let mut tasks = Vec::new();
    for _ in 0..12 {
        tasks.push(instance.task(json!({ "acts": ["wait"], "trigger": trigger })).await);
    }
    let running = instance.start().await;
    world.advance_to("08:00:59.500");
    futures::join!(futures::future::join_all(tasks.iter().map(|task| instance.run_now(task))), async {
        reveille::base::clock::pause(Duration::from_millis(10)).await;
        world.advance_to("08:01");
    });
    let (mut most, began) = (0, Instant::now());
    while most < 3 || began.elapsed() < Duration::from_secs(1) {
        most = most.max(world.journal.begun().len());
        assert!(most <= 3 && began.elapsed() < Duration::from_secs(30), "{:?}", world.journal.begun());
        reveille::base::clock::pause(Duration::from_millis(5)).await;
    }
    world.journal.open_gate();
    for task in &tasks {
        for run in instance.runs(task).await {
            instance.until(run.id, |run| run.state == RunState::Succeeded).await;
        }
    }
    instance.on(|_| async move { running.stop().await }).await;
    instance.finish(&world).await;
}

async fn where_places_come_one_by_one_tenants_have_them_in_turn(mut world: World) {
    (world.settings.max_concurrent_runs, world.settings.prefetch) = (1, 0);
    let instance = world.instance();
    for (tenant, runs) in [("ann", 6), ("bob", 2), ("cleo", 1)] {
        let task = task_that(&instance, tenant, "wait").await;
        for _ in 0..runs {
            let (status, made) = instance.ask("POST", &format!("/v1/tasks/{task}/run"), ADMIN, None).await;
            assert_eq!(status, 201, "{made}");
        }
    }
    instance.work().await;
    assert_eq!(instance.queue().await, [("ready".into(), 8), ("started".into(), 1)]);
    // a look that finds no slot changes nobody's turn
    instance.work().await;
    world.journal.open_gate();
    instance.settle(0).await;
    let mut order = Vec::new();
    for begun in world.journal.begun() {
        order.push(instance.run(begun.run_id).await.tenant_id);
    }
    assert_eq!(order.len(), 9);
    let place = |tenant: &str| order.iter().position(|one| one == tenant).expect("it ran");
    assert!(place("bob") <= 3 && place("cleo") <= 4, "whose runs are many comes first: {order:?}");
    instance.finish(&world).await;
}

async fn tenants_own_limit_holds_on_an_instance_without_limits(mut world: World) {
    (world.settings.max_concurrent_runs, world.settings.prefetch) = (8, 8);
    let instance = world.instance();
    let trigger = json!({ "type": "schedule", "interval": "1m", "overlap": "allow" });
    for (tenant, tasks) in [("ann", 4), ("bob", 2)] {
        for _ in 0..tasks {
            instance.task(json!({ "tenant": tenant, "acts": ["wait"], "trigger": trigger })).await;
        }
    }
    let asked = task_that(&instance, "ann", "wait").await;
    let quotas = "/v1/tenants/ann/quotas";
    let (status, said) = instance.ask("PUT", quotas, ADMIN, Some(json!({ "concurrent_runs": 2 }))).await;
    assert_eq!((status, &said["quotas"]["concurrent_runs"]["limit"]), (200, &json!(2)));
    world.advance(60.0);
    instance.fire().await;
    let (status, made) = instance.ask("POST", &format!("/v1/tasks/{asked}/run"), ADMIN, None).await;
    assert_eq!(status, 201, "{made}");
    instance.settle(4).await;
    let of = async |tenant: &str| {
        let (_, stats) = instance.ask("GET", &format!("/v1/stats?tenant_id={tenant}"), ADMIN, None).await;
        (stats["runs"]["started"].clone(), stats["runs"]["ready"].clone(), stats["quotas"]["concurrent_runs"].clone())
    };
    assert_eq!(of("ann").await, (json!(2), json!(3), json!({ "limit": 2, "usage": 2 })));
    assert_eq!(of("bob").await, (json!(2), Value::Null, json!({ "limit": null, "usage": 2 })));
    // with the number gone, what waits starts
    let (status, _) = instance.ask("DELETE", quotas, ADMIN, None).await;
    assert_eq!(status, 204);
    // five seconds, after which figures are counted again
    world.advance(5.0);
    instance.settle(7).await;
    assert_eq!(of("ann").await.2, json!({ "limit": null, "usage": 5 }));
    world.journal.open_gate();
    instance.settle(0).await;
    instance.finish(&world).await;
}

async fn tenants_own_limit_holds_for_events_that_end_the_rest_of_an_instance(mut world: World) {
    (world.settings.max_concurrent_runs, world.settings.prefetch) = (8, 8);
    let instance = world.instance();
    let trigger = json!({ "type": "event", "source": "shop" });
    instance.task(json!({ "acts": ["wait"], "trigger": trigger })).await;
    let few = json!({ "concurrent_runs": 2 });
    let (status, said) = instance.ask("PUT", "/v1/tenants/ann/quotas", ADMIN, Some(few)).await;
    assert_eq!(status, 200, "{said}");
    instance.publish(&["1", "2", "3"].map(|id| json!({ "id": id }))).await;
    instance.match_events().await;
    assert_eq!(instance.queue().await, [("ready".to_owned(), 3)], "no other service has looked before");
    instance.settle(2).await;
    world.journal.open_gate();
    instance.settle(0).await;
    instance.finish(&world).await;
}

async fn task_of(instance: &Instance, tenant: &str) -> String {
    task_that(instance, tenant, "succeed").await
}

async fn task_that(instance: &Instance, tenant: &str, act: &str) -> String {
    let task = json!({ "tenant_id": tenant, "name": "a task", "executor": "test",
        "action": { "config": { "acts": [act] } },
        "trigger": { "type": "schedule", "interval": "1h", "overlap": "allow" } });
    let (status, made): (u16, Value) = instance.ask("POST", "/v1/tasks", ADMIN, Some(task)).await;
    assert_eq!(status, 201, "{made}");
    made["id"].as_str().expect("an id").to_owned()
}

async fn crowd_of_one_tenant_delays_anothers_run_by_less_than_two_seconds(world: World) {
    let mut instance = world.instance();
    let (crowd, one) = (task_of(&instance, "ann").await, task_of(&instance, "bob").await);
    let (status, made) = instance.ask("POST", &format!("/v1/tasks/{crowd}/run"), ADMIN, None).await;
    assert_eq!(status, 201, "{made}");
    world
        .execute(
            "with recursive n (i) as (select 1 union all select i + 1 from n where i < 9999)
             insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, created_at)
             select randomblob(16), task_id, tenant_id, 'm:p' || i, trigger_type, scheduled_for, state, created_at
               from runs, n",
            "insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, created_at)
             select gen_random_uuid(), task_id, tenant_id, 'm:p' || i, trigger_type, scheduled_for, state, created_at
               from runs, generate_series(1, 9999) i",
        )
        .await;
    let queue = "insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state)
        select r.id, r.task_id, r.tenant_id, q.epoch, q.run_at, q.priority, 'ready' from runs r, queue q
         where r.fire_key like 'm:p%'";
    world.execute(queue, queue).await;
    let running = instance.start().await;
    let began = Instant::now();
    while world.journal.begun().len() < 64 {
        assert!(began.elapsed() < Duration::from_secs(30), "the crowd does not begin");
        reveille::base::clock::pause(Duration::from_millis(1)).await;
    }
    let asked = Instant::now();
    let (status, made) = instance.ask("POST", &format!("/v1/tasks/{one}/run"), ADMIN, None).await;
    assert_eq!(status, 201, "{made}");
    let run = made["id"].as_str().expect("an id").to_owned();
    let has_begun = || world.journal.begun().iter().any(|begun| begun.run_id.to_string() == run);
    while !has_begun() {
        assert!(asked.elapsed() < Duration::from_secs(2), "the other tenant's run waits behind the crowd");
        reveille::base::clock::pause(Duration::from_millis(1)).await;
    }
    let left = world.number("select count(*) from queue where state = 'ready'").await;
    assert!(left > 1_000, "the crowd was still there: {left}");
    drop(running);
    instance.crash();
}
