//! Why an event fired which tasks and not others, by each bus.

use serde_json::{Value, json};

use super::on;
use crate::support::app::Instance;
use crate::support::world::{ADMIN, World};

on_each_bus! {
    event_says_which_part_of_each_trigger_failed
    event_that_was_skipped_with_others_says_among_how_many
    triggers_that_are_not_told_are_counted
}

async fn asked(instance: &Instance, query: &str) -> (u16, Value) {
    instance.ask("GET", &format!("/v1/events/e1/explain{query}"), ADMIN, None).await
}

fn named(name: &str, trigger: Value) -> Value {
    let mut task = on(trigger);
    task["name"] = name.into();
    task
}

async fn event_says_which_part_of_each_trigger_failed(world: World) {
    let instance = world.instance();
    let fires = instance.task(named("fires", json!({ "event_type": "ord*" }))).await;
    instance.task(named("skips", json!({ "filter": "event.data.amount > 'a'" }))).await;
    instance.task(named("asks", json!({ "filter": "event.data.amount > 100 && event.type == 'order'" }))).await;
    instance.task(named("filters", json!({ "filters": { "from": "ebay", "amount": 50 } }))).await;
    instance.task(named("refunds", json!({ "event_type": "refund" }))).await;
    instance
        .task(json!({ "name": "far", "trigger": { "type": "event", "source": "mail", "event_type": "new" } }))
        .await;
    let mut other = named("other", json!({}));
    other["tenant_id"] = "bob".into();
    instance.task(other).await;
    instance.publish(&[json!({ "id": "e1", "data": { "from": "amazon", "amount": 50 } })]).await;
    instance.match_events().await;
    instance.settle(0).await;
    let run = instance.runs(&fires).await[0].id;

    let (status, body) = asked(&instance, "?tenant_id=ann&source=shop").await;
    assert_eq!(status, 200, "{body}");
    assert_eq!(body, asked(&instance, "?tenant_id=ann").await.1, "the source may be left out");
    let told: Vec<&Value> = body["triggers"].as_array().unwrap().iter().collect();
    let mut names: Vec<&str> = told.iter().map(|told| told["name"].as_str().unwrap()).collect();
    assert_eq!(names[0], "fires", "the closest is first");
    names.sort_unstable();
    assert_eq!(
        names,
        ["asks", "filters", "fires", "refunds", "skips"],
        "those of others and those far off are not told"
    );
    let of = |name: &str| *told.iter().find(|told| told["name"] == name).unwrap();
    assert_eq!((&of("fires")["matches"], &of("fires")["run_id"]), (&json!(true), &json!(run)));
    assert!(of("skips")["sentence"].as_str().unwrap().contains("recorded as skipped"), "{body:#}");
    assert_eq!(of("filters")["sentence"], "It does not match: filters/from.");
    assert_eq!(of("refunds")["sentence"], "It does not match: event_type.");
    let filter = of("asks")["parts"].as_array().unwrap().iter().find(|part| part["part"] == "filter").unwrap();
    assert!(filter["detail"].as_str().unwrap().contains("`event.data.amount` is 50"), "{filter}");
    assert_eq!((&body["examined_count"], &body["truncated"]), (&json!(6), &json!(false)));

    assert_eq!(asked(&instance, "?tenant_id=bob").await.0, 404, "it is another's");
    assert_eq!(asked(&instance, "?tenant_id=ann&source=mail").await.0, 404);
    let (status, body) = asked(&instance, "").await;
    assert_eq!((status, body["errors"][0]["pointer"].as_str()), (400, Some("/tenant_id")), "{body}");
    instance.finish(&world).await;
}

async fn event_that_was_skipped_with_others_says_among_how_many(world: World) {
    let instance = world.instance();
    let fires = instance.task(named("fires", json!({}))).await;
    instance.task(named("refunds", json!({ "event_type": "refund" }))).await;
    let (status, told) = instance.ask("POST", "/v1/stop", ADMIN, Some(json!({ "tenant_id": "ann" }))).await;
    assert_eq!(status, 200, "{told}");
    // a bus elsewhere does not say when an event came
    let at = |id: &str| json!({ "id": id, "time": "2027-03-01T08:00:00Z" });
    instance.publish(&[at("e1"), at("e2"), at("e3")]).await;
    instance.match_events().await;
    let [tally] = &instance.runs(&fires).await[..] else { panic!("one record") };

    let (status, body) = asked(&instance, "?tenant_id=ann").await;
    assert_eq!(status, 200, "{body}");
    let of = |name: &str| body["triggers"].as_array().unwrap().iter().find(|told| told["name"] == name).unwrap();
    let sentence = of("fires")["sentence"].as_str().unwrap();
    let among = "it was probably one of the 3 fires at 2027-03-01T08:00:00Z that were skipped";
    assert!(sentence.contains(among) && sentence.contains("`stopped`"), "{sentence}");
    assert!(sentence.contains(&tally.id.to_string()), "{sentence}");
    assert_eq!(of("fires")["run_id"], Value::Null, "the record is not of this event alone");
    assert_eq!(of("refunds")["sentence"], "It does not match: event_type.");
    instance.settle(0).await;
    instance.finish(&world).await;
}

async fn triggers_that_are_not_told_are_counted(world: World) {
    let instance = world.instance();
    let task = async |number: usize| {
        instance.task(named(&format!("no. {number}"), json!({ "filter": "event.data.amount > 100" }))).await;
    };
    for number in 0..50 {
        task(number).await;
    }
    instance.publish(&[json!({ "id": "e1", "data": { "amount": 50 } })]).await;
    instance.match_events().await;
    let (status, body) = asked(&instance, "?tenant_id=ann&source=shop").await;
    let triggers = body["triggers"].as_array().unwrap();
    assert_eq!((status, triggers.len(), &body["truncated"]), (200, 50, &json!(false)), "{body}");
    let apart = triggers.iter().filter(|told| told["parts"].to_string().contains("`event.data.amount` is 50"));
    assert_eq!(apart.count(), 10, "the filters of so many are taken apart");
    for number in 50..52 {
        task(number).await;
    }
    let (status, body) = asked(&instance, "?tenant_id=ann&source=shop").await;
    assert_eq!((status, body["triggers"].as_array().unwrap().len()), (200, 50), "{body}");
    assert_eq!(body["sentences"][1], "Of 52 event tasks, 52 wait for its source or its type.");
    assert_eq!(body["truncated"], true);
    instance.settle(0).await;
    instance.finish(&world).await;
}
