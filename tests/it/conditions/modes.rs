//! Each mode over a series of prices, with the instance dying after every poll, and at the worst moments.

use serde_json::{Value, json};

use super::{Shop, next_poll, watching};
use crate::support::world::{World, on_both};

on_both! {
    edge_fires_once_though_every_poll_is_made_by_another_instance
    level_fires_at_each_poll
    change_fires_when_what_is_watched_changes
    hold_counts_over_restarts
    hysteresis_and_cooldown_survive_restarts
    poll_that_was_not_recorded_is_made_again
    two_instances_make_a_poll_once
    run_knows_what_it_fired_for
}

/// Polls these prices, a new instance for each; answers the runs as lines of key, state and reason.
async fn script(mut world: World, more: Value, prices: &[i64]) -> Vec<String> {
    let shop = Shop::open(&mut world).await;
    let first = world.instance();
    let task = first.task(watching(&shop, more)).await;
    first.crash();
    for price in prices {
        shop.sells_at(*price).await;
        let instance = world.instance();
        next_poll(&world, &instance, &task).await;
        instance.crash();
    }
    let last = world.instance();
    last.settle(0).await;
    let fires = last.runs(&task).await;
    let lines = fires.iter().map(|run| {
        format!("{} {} {}", run.fire_key, run.state.as_str(), run.reason.as_deref().unwrap_or_default())
            .trim_end()
            .to_owned()
    });
    let lines = lines.collect();
    last.finish(&world).await;
    lines
}

async fn edge_fires_once_though_every_poll_is_made_by_another_instance(world: World) {
    let lines = script(world, json!({}), &[600, 499, 480, 510, 490]).await;
    assert_eq!(lines, ["c:1 succeeded", "c:2 succeeded"]);
}

async fn level_fires_at_each_poll(world: World) {
    let lines = script(world, json!({"fire": "every_time", "overlap": "queue_all"}), &[600, 499, 480, 510]).await;
    assert_eq!(lines, ["c:1 succeeded", "c:2 succeeded"]);
}

async fn change_fires_when_what_is_watched_changes(world: World) {
    let watch = json!({"fire": "on_change", "expression": null, "watch": "value.price > 500"});
    assert_eq!(script(world, watch, &[600, 601, 400, 401, 700]).await, ["c:1 succeeded", "c:2 succeeded"]);
}

async fn hold_counts_over_restarts(world: World) {
    let lines = script(world, json!({"hold_for": "2m"}), &[400, 600, 400, 400, 400, 400, 400]).await;
    assert_eq!(lines, ["c:1 succeeded"]);
}

async fn hysteresis_and_cooldown_survive_restarts(world: World) {
    let rules = json!({"reset": "value.price > 550", "cooldown": "1h"});
    let lines = script(world, rules, &[499, 510, 490, 560, 480]).await;
    assert_eq!(lines, ["c:1 succeeded", "c:2 skipped cooldown"]);
}

async fn poll_that_was_not_recorded_is_made_again(mut world: World) {
    let shop = Shop::open(&mut world).await;
    shop.sells_at(400).await;
    let dying = world.instance();
    let task = dying.task(watching(&shop, json!({}))).await;
    world.advance(60.0);
    let (now, until) = (world.clock.now(), world.clock.now() + chrono::TimeDelta::seconds(45));
    let id = task.id;
    let claimed = dying.on(move |store| async move { store.claim_polls(&[id], now, until).await }).await.unwrap();
    assert_eq!(claimed.len(), 1);
    dying.crash();
    let other = world.instance();
    other.poll().await;
    assert_eq!((other.runs(&task).await.len(), shop.asked().await.len()), (0, 0), "the claim still stands");
    world.advance(45.0);
    other.poll().await;
    assert_eq!(shop.asked().await.len(), 1);
    other.settle(0).await;
    assert_eq!(other.lines(&task).await.len(), 1);
    other.finish(&world).await;
}

async fn two_instances_make_a_poll_once(mut world: World) {
    if !world.is_postgres() {
        return; // SQLite has one process
    }
    let shop = Shop::open(&mut world).await;
    world.poll.per_host_concurrent = 64;
    shop.sells_at(400).await;
    let (one, other) = (world.instance(), world.instance());
    for _ in 0..20 {
        one.task(watching(&shop, json!({}))).await;
    }
    world.advance(20.0);
    tokio::join!(one.poll(), other.poll());
    one.poll().await;
    assert_eq!(shop.asked().await.len(), 20);
    assert_eq!(world.number("select count(*) from runs").await, 20);
    one.settle_shared().await;
    one.finish(&world).await;
    other.crash();
}

async fn run_knows_what_it_fired_for(mut world: World) {
    let shop = Shop::open(&mut world).await;
    let instance = world.instance();
    let task = instance.task(watching(&shop, json!({}))).await;
    for price in [600, 480] {
        shop.sells_at(price).await;
        next_poll(&world, &instance, &task).await;
    }
    instance.settle(0).await;
    let run = instance.run(instance.runs(&task).await[0].id).await;
    assert_eq!(run.trigger_type, "condition");
    assert_eq!(
        serde_json::to_value(&run.cause).unwrap(),
        json!({
            "type": "condition", "expression": "value.price < 500", "value": { "price": 480 },
            "previous": { "price": 600 },
        })
    );
    instance.finish(&world).await;
}
