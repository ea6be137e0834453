//! Explanations of one instant of a task: each outcome, in words.

use reveille::domain::task::Task;
use reveille::domain::task::change::TaskChange;
use serde_json::{Value, json};

use crate::support::app::Instance;
use crate::support::world::{ADMIN, World, on_both};

on_both! {
    instant_says_what_was_recorded_of_it
    instant_that_another_run_stands_for_says_which
    instant_of_a_paused_task_says_so
    instant_of_a_task_without_a_schedule_names_the_last_run
    instant_that_was_skipped_with_others_says_with_how_many
}

async fn asked(instance: &Instance, task: &Task, at: &str) -> Value {
    let place = format!("/v1/tasks/{}/explain?at={at}", task.id);
    let (status, body) = instance.ask("GET", &place, ADMIN, None).await;
    assert_eq!(status, 200, "{body}");
    body["instant"].clone()
}

/// The outcome, after all of `wanted` was found in the sentences.
async fn outcome(instance: &Instance, task: &Task, at: &str, wanted: &[&str]) -> String {
    let instant = asked(instance, task, at).await;
    let said = instant["sentences"].to_string();
    for wanted in wanted {
        assert!(said.contains(wanted), "no `{wanted}` in {instant:#}");
    }
    instant["outcome"].as_str().expect("an outcome").to_owned()
}

async fn instant_says_what_was_recorded_of_it(world: World) {
    let instance = world.instance();
    let schedule = json!({ "type": "schedule", "interval": "10m", "timezone": "Europe/Berlin",
                           "exclude": ["30 * * * *"] });
    let task = instance.task(json!({ "trigger": schedule, "acts": ["wait"], "timeout_seconds": 86_400 })).await;
    for _ in 0..3 {
        world.advance(600.0);
        instance.live(1).await;
    }
    let run = instance.runs(&task).await[0].id.to_string();
    let at = async |text: &str, wanted: &[&str]| outcome(&instance, &task, text, wanted).await;
    assert_eq!(at("2027-03-01T08:10:00Z", &["It has the run", &run]).await, "run");
    // local time of the task's zone
    assert_eq!(at("2027-03-01T09:20:00", &["skipped", "`overlap`"]).await, "skipped");
    assert_eq!(at("2027-03-01T08:30:00Z", &["exclude"]).await, "excluded");
    let beside = ["no instant", "2027-03-01T08:10:00Z", "2027-03-01T08:20:00Z", "there is the run"];
    assert_eq!(at("2027-03-01T08:15:00Z", &beside).await, "no_instant");
    assert_eq!(at("2027-03-01T07:50:00Z", &["was created at 2027-03-01T08:00:00Z"]).await, "before_creation");
    assert_eq!(at("2027-03-01T09:10:00Z", &["lies ahead"]).await, "ahead");
    let near = asked(&instance, &task, "2027-03-01T08:15:00Z").await;
    assert_eq!(
        (&near["local"], &near["before"]["local"], &near["after"]["at"]),
        (&json!("2027-03-01T09:15:00+01:00"), &json!("2027-03-01T09:10:00+01:00"), &json!("2027-03-01T08:20:00Z"))
    );
    for (bad, why) in [("yesterday", "can't read"), (&"1".repeat(65), "at most 64 characters")] {
        let place = format!("/v1/tasks/{}/explain?at={bad}", task.id);
        let (status, body) = instance.ask("GET", &place, ADMIN, None).await;
        assert_eq!((status, body["errors"][0]["pointer"].as_str()), (400, Some("/at")), "{body}");
        assert!(body["errors"][0]["message"].as_str().is_some_and(|said| said.contains(why)), "{body}");
    }
    instance.crash();
}

async fn instant_that_another_run_stands_for_says_which(world: World) {
    let instance = world.instance();
    let task = instance.task(json!({ "trigger": { "type": "schedule", "interval": "10m" } })).await;
    // the service was away meanwhile
    world.advance(3000.0);
    instance.live(0).await;
    let stands: Vec<_> = instance.runs(&task).await.into_iter().filter(|run| run.missed.is_some()).collect();
    let [run] = &stands[..] else { panic!("{stands:?}") };
    let wanted = ["from 2027-03-01T08:10:00Z", &run.id.to_string()];
    assert_eq!(outcome(&instance, &task, "2027-03-01T08:20:00Z", &wanted).await, "coalesced");
    instance.finish(&world).await;
}

async fn instant_of_a_paused_task_says_so(world: World) {
    let instance = world.instance();
    let task = instance.task(json!({ "trigger": { "type": "schedule", "interval": "10m" } })).await;
    instance.change(&task, TaskChange::Pause { reason: Some("holiday".into()) }).await;
    world.advance(700.0);
    instance.live(0).await;
    let at = "2027-03-01T08:10:00Z";
    assert_eq!(outcome(&instance, &task, at, &["paused", "holiday"]).await, "not_active");
    instance.change(&task, TaskChange::Resume).await;
    assert_eq!(outcome(&instance, &task, at, &["`paused`", "since 2027-03-01T08:11:40Z"]).await, "skipped");
    instance.finish(&world).await;
}

async fn instant_of_a_task_without_a_schedule_names_the_last_run(world: World) {
    let instance = world.instance();
    let task = instance.task(json!({ "trigger": { "type": "event", "source": "shop" } })).await;
    instance.publish(&[json!({ "id": "1" })]).await;
    instance.match_events().await;
    instance.settle(0).await;
    world.advance(60.0);
    let said = ["goes by events", "its last run before, for 2027-03-01T08:00:00Z"];
    assert_eq!(outcome(&instance, &task, "2027-03-01T08:00:30Z", &said).await, "no_instant");
    instance.finish(&world).await;
}

async fn instant_that_was_skipped_with_others_says_with_how_many(world: World) {
    let instance = world.instance();
    let task = instance.task(json!({ "trigger": { "type": "schedule", "interval": "10m" } })).await;
    let listener = instance.task(json!({ "trigger": { "type": "event", "source": "shop" } })).await;
    let (status, told) = instance.ask("POST", "/v1/stop", ADMIN, Some(json!({ "tenant_id": "ann" }))).await;
    assert_eq!(status, 200, "{told}");
    for minute in 1..=3 {
        world.advance(600.0);
        instance.fire().await;
        instance.publish(&[json!({ "id": minute.to_string() })]).await;
        instance.match_events().await;
    }
    let [tally] = &instance.runs(&task).await[..] else { panic!("one record") };
    let at = async |task: &Task, time: &str, wanted: &[&str]| {
        outcome(&instance, task, &format!("2027-03-01T{time}:00Z"), wanted).await
    };
    let among = ["as one of 3 fires between 2027-03-01T08:10:00Z and 2027-03-01T08:30:00Z", "`stopped`"];
    for due in ["08:10", "08:20", "08:30"] {
        assert_eq!(at(&task, due, &among).await, "skipped");
    }
    // what lies between was not due
    let beside = format!("3 fires between 2027-03-01T08:10:00Z and 2027-03-01T08:30:00Z were skipped ({})", tally.id);
    assert_eq!(at(&task, "08:15", &["no instant", &beside]).await, "no_instant");
    let of_events = ["goes by events", "3 fires between 2027-03-01T08:10:00Z and 2027-03-01T08:30:00Z were skipped"];
    assert_eq!(at(&listener, "08:25", &of_events).await, "no_instant");
    let (_, explained) = instance.ask("GET", &format!("/v1/runs/{}/explain", tally.id), ADMIN, None).await;
    let said = explained["sentences"].to_string();
    assert!(said.contains("3 fires between 2027-03-01T08:10:00Z and 2027-03-01T08:30:00Z were skipped"), "{said}");
    assert!(said.contains("`stopped`") && !said.contains("missed"), "{said}");
    instance.settle(0).await;
    instance.finish(&world).await;
}
