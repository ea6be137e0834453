//! Polls of an address: asking only for what is newer, coming again when asked to, and never where it may not.

use chrono::TimeDelta;
use serde_json::{Value, json};
use wiremock::ResponseTemplate;

use super::{Shop, next_poll, watching};
use crate::support::world::{World, on_both};

on_both! {
    answer_that_did_not_change_is_not_sent_again_and_counts_as_the_same
    server_that_asks_for_a_pause_gets_it
    host_is_not_polled_more_often_than_allowed
    private_address_is_a_failing_poll_with_its_reason
    answer_that_is_too_large_is_a_failing_poll
    head_sees_status_and_headers
}

async fn answer_that_did_not_change_is_not_sent_again_and_counts_as_the_same(mut world: World) {
    let shop = Shop::open(&mut world).await;
    let instance = world.instance();
    let task = instance.task(watching(&shop, json!({ "fire": "every_time", "overlap": "queue_all" }))).await;
    let answer = ResponseTemplate::new(200).insert_header("ETag", "\"v1\"").set_body_json(json!({ "price": 400 }));
    shop.answers(answer.insert_header("Last-Modified", "Mon, 01 Mar 2027 07:00:00 GMT")).await;
    next_poll(&world, &instance, &task).await;
    assert!(!shop.asked().await[0].headers.contains_key("if-none-match"), "nothing was known");
    instance.crash();

    shop.answers(ResponseTemplate::new(304)).await;
    let instance = world.instance();
    let known = next_poll(&world, &instance, &task).await;
    let asked = &shop.asked().await[0].headers;
    assert_eq!(asked["if-none-match"], "\"v1\"");
    assert_eq!(asked["if-modified-since"], "Mon, 01 Mar 2027 07:00:00 GMT");
    assert_eq!((known.value, known.failing, known.edges), (json!({ "price": 400 }), None, 2));
    next_poll(&world, &instance, &task).await;
    assert_eq!(shop.asked().await[1].headers["if-none-match"], "\"v1\"", "it is known for good");

    instance
        .edit(&task, json!({ "trigger": watching(&shop, json!({ "expression": "value.price < 1" }))["trigger"] }))
        .await;
    shop.sells_at(400).await;
    next_poll(&world, &instance, &task).await;
    assert!(!shop.asked().await[0].headers.contains_key("if-none-match"), "another question begins anew");
    instance.settle(0).await;
    instance.finish(&world).await;
}

async fn server_that_asks_for_a_pause_gets_it(mut world: World) {
    let shop = Shop::open(&mut world).await;
    let instance = world.instance();
    let task = instance.task(watching(&shop, json!({}))).await;
    for (status, kind) in [(429, "http_429"), (503, "http_503")] {
        shop.answers(ResponseTemplate::new(status).insert_header("Retry-After", "1800")).await;
        let known = next_poll(&world, &instance, &task).await;
        assert_eq!(known.failing.unwrap().error.kind, kind);
        let next = instance.stored(&task).await.next_fire_at.unwrap();
        assert_eq!(next - world.clock.now(), TimeDelta::seconds(1800));
    }
    instance.finish(&world).await;
}

async fn host_is_not_polled_more_often_than_allowed(mut world: World) {
    let shop = Shop::open(&mut world).await;
    world.poll.per_host_per_second = 2.0;
    shop.sells_at(600).await;
    let instance = world.instance();
    for _ in 0..10 {
        instance.task(watching(&shop, json!({ "interval": "1h" }))).await;
    }
    world.advance(10.0);
    let mut asked = Vec::new();
    for _ in 0..60 {
        instance.poll().await;
        asked.push(shop.asked().await.len());
        world.advance(0.5);
    }
    assert_eq!(asked[0], 2, "a second's worth at once");
    assert!(asked.windows(3).all(|polls| polls[2] - polls[0] <= 3), "two in a second: {asked:?}");
    assert_eq!(asked.last(), Some(&10), "and each has its turn");
    assert_eq!(world.number("select count(*) from condition_state").await, 10);
    instance.finish(&world).await;
}

async fn private_address_is_a_failing_poll_with_its_reason(mut world: World) {
    let shop = Shop::open(&mut world).await;
    shop.sells_at(400).await;
    let allowed = world.instance();
    let task = allowed.task(watching(&shop, json!({}))).await;
    allowed.crash();
    // the operator takes it back; what was saved before fails then, and says why
    world.egress.allow.clear();
    let instance = world.instance();
    let known = next_poll(&world, &instance, &task).await;
    let error = known.failing.unwrap().error;
    assert_eq!(error.kind, "denied");
    assert!(error.message.contains("loopback") && error.message.contains("egress.allow"), "{}", error.message);
    assert_eq!((known.verdict, shop.asked().await.len()), (None, 0));
    instance.finish(&world).await;
}

async fn answer_that_is_too_large_is_a_failing_poll(mut world: World) {
    let shop = Shop::open(&mut world).await;
    let instance = world.instance();
    let task = instance.task(watching(&shop, json!({}))).await;
    for bytes in [70_000, 2_000_000] {
        shop.answers(ResponseTemplate::new(200).set_body_string("x".repeat(bytes))).await;
        let known = next_poll(&world, &instance, &task).await;
        assert_eq!((known.failing.unwrap().error.kind.as_str(), known.value), ("too_large", Value::Null), "{bytes}");
    }
    instance.finish(&world).await;
}

async fn head_sees_status_and_headers(mut world: World) {
    let shop = Shop::open(&mut world).await;
    let instance = world.instance();
    let poll = json!({ "http": { "url": shop.url(), "method": "HEAD", "headers": { "X-From": "reveille" } } });
    let rules = json!({ "poll": poll, "expression": "value.headers['x-version'] == '7'" });
    let task = instance.task(watching(&shop, rules)).await;
    shop.answers(ResponseTemplate::new(200).insert_header("X-Version", "7")).await;
    let known = next_poll(&world, &instance, &task).await;
    assert_eq!((known.verdict, known.edges), (Some(true), 1), "{known:?}");
    let asked = &shop.asked().await[0];
    assert_eq!((asked.method.as_str(), asked.headers["x-from"].to_str().unwrap()), ("HEAD", "reveille"));
    instance.settle(0).await;
    instance.finish(&world).await;
}
