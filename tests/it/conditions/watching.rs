//! The watcher and failing polls: it never takes them for an answer, comes less often, tells the owner once.

use reveille::base::id::new_id;
use reveille::domain::task::Task;
use reveille::engine::service::{NextTick, ServiceLoop};
use serde_json::{Value, json};
use wiremock::ResponseTemplate;

use super::{Shop, next_poll, watching};
use crate::support::world::{World, on_both};

/// How long anything may take on a loaded machine with two cores.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

on_both! {
    polls_that_fail_are_told_once_and_so_is_their_recovery
    missing_field_of_a_poll_is_told_once
    failing_poll_is_never_false
    slow_host_does_not_hold_up_others
    watcher_wakes_for_what_follows_from_a_poll
    condition_of_another_release_is_disabled_and_harms_no_other
    tenant_whose_polls_hang_has_its_share_of_the_places_and_another_s_poll_is_made_in_the_same_tick
}

async fn polls_that_fail_are_told_once_and_so_is_their_recovery(mut world: World) {
    let shop = Shop::open(&mut world).await;
    let instance = world.instance();
    instance.recipient().await;
    let mut task = watching(&shop, json!({ "failure_notice_after": 2 }));
    task["name"] = json!("Cheap flight");
    task["output"] = Value::Null;
    let task = instance.task(task).await;
    shop.answers(ResponseTemplate::new(500)).await;
    let mut waits = Vec::new();
    for count in 1..=4 {
        let before = world.clock.now();
        let known = next_poll(&world, &instance, &task).await;
        waits.push((world.clock.now() - before).num_seconds());
        assert_eq!(known.failing.unwrap().count, count);
        assert_eq!(instance.deliveries().await.len(), usize::from(count >= 2), "after {count}");
    }
    assert!((60..=72).contains(&waits[1]) && (120..=144).contains(&waits[2]), "{waits:?}");
    assert!((240..=288).contains(&waits[3]), "{waits:?}");
    shop.sells_at(600).await;
    for _ in 0..3 {
        next_poll(&world, &instance, &task).await;
    }
    shop.answers(ResponseTemplate::new(500)).await;
    for _ in 0..2 {
        next_poll(&world, &instance, &task).await;
    }
    let told: Vec<_> = instance.deliveries().await.into_iter().map(|told| (told.subject, told.channel)).collect();
    let notice = |subject: &str| (Some(subject.to_owned()), "email".to_owned());
    let expected =
        [notice("Failing: Cheap flight"), notice("Well again: Cheap flight"), notice("Failing: Cheap flight")];
    assert_eq!(told, expected, "though its results are told to nobody");
    instance.finish(&world).await;
}

async fn missing_field_of_a_poll_is_told_once(mut world: World) {
    let shop = Shop::open(&mut world).await;
    let instance = world.instance();
    instance.recipient().await;
    let mut task = watching(&shop, json!({ "expression": "value.prise < 500" }));
    task["name"] = json!("Cheap flight");
    let task = instance.task(task).await;
    shop.sells_at(400).await;
    for _ in 0..3 {
        let known = next_poll(&world, &instance, &task).await;
        assert_eq!((known.verdict, known.failing), (Some(false), None), "what is missing is no");
        let told: Vec<_> = instance.deliveries().await.into_iter().map(|told| (told.subject, told.text)).collect();
        let [(Some(subject), Some(text))] = told.as_slice() else { panic!("{told:?}") };
        assert_eq!(subject, "A field is missing: Cheap flight");
        assert!(text.contains("no `value.prise`") && text.contains("Did you mean `price`?"), "{text}");
    }
    instance.finish(&world).await;
}

async fn failing_poll_is_never_false(mut world: World) {
    let shop = Shop::open(&mut world).await;
    let instance = world.instance();
    let task = instance.task(watching(&shop, json!({}))).await;
    shop.sells_at(400).await;
    next_poll(&world, &instance, &task).await;
    for answer in [
        ResponseTemplate::new(500),
        ResponseTemplate::new(404),
        ResponseTemplate::new(200).set_body_json(json!({ "price": "cheap" })),
        ResponseTemplate::new(302).insert_header("Location", "http://10.0.0.1/"),
    ] {
        shop.answers(answer).await;
        let known = next_poll(&world, &instance, &task).await;
        assert_eq!(
            (known.verdict, known.value),
            (Some(true), json!({ "price": 400 })),
            "as the last good poll left it"
        );
        assert!(known.failing.is_some());
    }
    shop.sells_at(450).await;
    let known = next_poll(&world, &instance, &task).await;
    assert_eq!((known.edges, known.failing), (1, None), "it was never false in between");
    instance.settle(0).await;
    instance.finish(&world).await;
}

async fn slow_host_does_not_hold_up_others(mut world: World) {
    let slow = Shop::open(&mut world).await;
    slow.answers(ResponseTemplate::new(200).set_delay(std::time::Duration::from_secs(60))).await;
    // a third of which one tenant may have
    world.poll.max_concurrent = 9;
    world.poll.per_host_concurrent = 2;
    let instance = world.instance();
    for _ in 0..4 {
        instance.task(watching(&slow, json!({ "timeout": "30s" }))).await;
    }
    world.advance(15.0);
    let task = instance
        .task(json!({ "trigger": {
        "type": "condition", "poll": { "tool": { "name": "current_time" } }, "interval": "1m",
        "expression": "value != null && task.name == 'a task'",
    } }))
        .await;
    world.advance(15.0);
    // two of the slow ones are under way; the others were put off, and what is behind them has its turn
    for round in 0.. {
        instance.tick(&instance.engine().watcher).await.expect("a tick");
        reveille::base::clock::pause(std::time::Duration::from_millis(50)).await;
        if instance.condition(&task).await.edges == 1 {
            break;
        }
        assert!(round < 600, "it never has its turn");
        // it is claimed within four rounds; after that only its record is waited for
        world.advance(if round < 4 { 2.0 } else { 0.0 });
    }
    let began = std::time::Instant::now();
    while slow.asked().await.len() < 2 {
        assert!(began.elapsed() < PATIENCE, "the slow ones are not asked");
        reveille::base::clock::pause(std::time::Duration::from_millis(20)).await;
    }
    // those that were put off come again
    for _ in 0..2 {
        world.advance(2.0);
        instance.tick(&instance.engine().watcher).await.expect("a tick");
        reveille::base::clock::pause(std::time::Duration::from_millis(50)).await;
    }
    assert_eq!(slow.asked().await.len(), 2, "no more than two at once");
    instance.crash();
}

async fn watcher_wakes_for_what_follows_from_a_poll(mut world: World) {
    let shop = Shop::open(&mut world).await;
    shop.sells_at(600).await;
    let instance = world.instance();
    let task = instance.task(watching(&shop, json!({ "interval": "1s" }))).await;
    world.advance(1.0);
    // while the poll is under way nobody knows when the next one comes
    let hint = instance.engine().watcher.wakeup();
    instance.tick(&instance.engine().watcher).await.expect("a tick");
    tokio::time::timeout(std::time::Duration::from_secs(30), hint).await.expect("it is told when the poll is recorded");
    let next = instance.tick(&instance.engine().watcher).await.expect("a tick");
    assert_eq!(next, NextTick::At(instance.stored(&task).await.next_fire_at.unwrap()));
    instance.finish(&world).await;
}

async fn condition_of_another_release_is_disabled_and_harms_no_other(mut world: World) {
    let shop = Shop::open(&mut world).await;
    shop.sells_at(400).await;
    let instance = world.instance();
    let broken = instance.task(watching(&shop, json!({ "expression": "value.price < 123456" }))).await;
    let sound = instance.task(watching(&shop, json!({}))).await;
    let sqlite = "update tasks set spec = replace(spec, 'value.price < 123456', 'value.price <')";
    let postgres = "update tasks set spec = replace(spec::text, 'value.price < 123456', 'value.price <')::jsonb";
    world.execute(sqlite, postgres).await;
    world.advance(20.0);
    instance.poll().await;
    let broken = instance.stored(&broken).await;
    assert_eq!(broken.status, reveille::domain::task::TaskStatus::Disabled);
    assert!(broken.status_reason.unwrap().starts_with("/trigger/expression: "), "says where");
    assert_eq!(instance.condition(&sound).await.edges, 1);
    instance.settle(0).await;
    instance.finish(&world).await;
}

async fn tenant_whose_polls_hang_has_its_share_of_the_places_and_another_s_poll_is_made_in_the_same_tick(
    mut world: World,
) {
    let (slow, shop) = (Shop::open(&mut world).await, Shop::open(&mut world).await);
    slow.answers(ResponseTemplate::new(200).set_delay(std::time::Duration::from_secs(60))).await;
    shop.sells_at(400).await;
    world.poll.per_host_concurrent = 1000;
    let instance = world.instance();
    let now = world.clock.now();
    let hanging = (0..1000).map(|_| {
        let mut task = watching(&slow, json!({ "timeout": "30s" }));
        task["tenant"] = json!("many");
        let (task, next) = Task::new(new_id(now), instance.draft(task), now).expect("a condition");
        (task, next.map(|next| next.nominal))
    });
    let hanging: Vec<_> = hanging.collect();
    instance.on(|store| async move { store.create_tasks(&hanging).await }).await.expect("stored tasks");
    world.advance(60.0);
    let one = instance.task(watching(&shop, json!({}))).await;
    world.advance(60.0);
    let next = instance.tick(&instance.engine().watcher).await.expect("a tick");
    assert!(matches!(next, NextTick::OnWake), "nothing falls due behind those that wait: {next:?}");
    let under_way = "select count(*) from due where tenant_id = 'many' and claimed_until is not null";
    assert_eq!(world.number(under_way).await, 22, "of 64 places");
    let began = std::time::Instant::now();
    while instance.condition(&one).await.edges == 0 {
        assert!(began.elapsed() < PATIENCE, "it is not polled");
        reveille::base::clock::pause(std::time::Duration::from_millis(20)).await;
    }
    instance.crash();
}
