//! Why runs ran, or did not, and tasks fire, or do not: each reason in a sentence, with what would have to hold.

use reveille::domain::run::RunState;
use reveille::domain::task::Task;
use reveille::domain::task::change::{FaultyPart, TaskChange};
use reveille::store::SeenTask;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::app::Instance;
use crate::support::world::{ADMIN, World, on_both};

on_both! {
    run_says_why_it_ran_or_was_skipped_and_what_it_waits_for
    task_says_what_holds_it_back_and_when_it_is_next
    task_that_waits_for_an_event_or_a_condition_says_for_what
}

async fn explained(instance: &Instance, what: &str, id: Uuid) -> Value {
    let (status, body) = instance.ask("GET", &format!("/v1/{what}/{id}/explain"), ADMIN, None).await;
    assert_eq!(status, 200, "{body}");
    body
}

/// Each of these is in one of the sentences of `part`.
fn says(body: &Value, part: &str, wanted: &[&str]) {
    let said: Vec<&str> = body[part].as_array().expect("sentences").iter().filter_map(Value::as_str).collect();
    for wanted in wanted {
        assert!(said.iter().any(|sentence| sentence.contains(wanted)), "no `{wanted}` in {part} of {body:#}");
    }
}

fn schedule(more: Value) -> Value {
    let mut trigger = json!({ "type": "schedule", "interval": "10m" });
    trigger.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
    json!({ "trigger": trigger, "acts": ["wait"], "timeout_seconds": 86_400 })
}

async fn last(instance: &Instance, task: &Task) -> Uuid {
    instance.runs(task).await.last().expect("a run").id
}

async fn run_says_why_it_ran_or_was_skipped_and_what_it_waits_for(mut world: World) {
    world.settings.max_concurrent_runs = 3;
    let instance = world.instance();
    let skips = instance.task(schedule(json!({}))).await;
    let queues = instance.task(schedule(json!({ "overlap": "queue_all" }))).await;
    let window = instance.task(schedule(json!({ "catch_up_window": "5m", "interval": "1h" }))).await;
    world.advance(600.0);
    instance.live(2).await;
    let running = explained(&instance, "runs", last(&instance, &skips).await).await;
    says(
        &running,
        "sentences",
        &["was due at 2027-03-01T08:10:00Z", "It started at its instant", "by a lease until", "its time is over at"],
    );
    assert_eq!(running["needs"], json!([]));

    world.advance(600.0);
    instance.live(2).await;
    let skipped = explained(&instance, "runs", last(&instance, &skips).await).await;
    says(&skipped, "sentences", &["overlap rule says to skip", "was in the way"]);
    let behind = explained(&instance, "runs", last(&instance, &queues).await).await;
    says(&behind, "needs", &["comes to its end", "the task's overlap rule is `queue_all`"]);

    let filler = instance.task(schedule(json!({ "overlap": "allow", "interval": "30d" }))).await;
    let (_first, full) = (instance.run_now(&filler).await, instance.run_now(&filler).await);
    instance.settle(3).await;
    let full = explained(&instance, "runs", full).await;
    says(&full, "needs", &["as soon as a worker has a free slot"]);

    world.advance_to("10:30");
    instance.live(3).await;
    let missed = explained(&instance, "runs", last(&instance, &window).await).await;
    says(&missed, "sentences", &["catch-up window", "that were missed"]);
    assert_eq!(missed["needs"], json!([]));
    instance.crash();
}

async fn task_says_what_holds_it_back_and_when_it_is_next(world: World) {
    let instance = world.instance();
    let cron =
        json!({ "trigger": { "type": "schedule", "cron": "0 9 * * *", "timezone": "Asia/Shanghai" }, "max_runs": 3 });
    let daily = instance.task(cron).await;
    let active = explained(&instance, "tasks", daily.id).await;
    says(
        &active,
        "sentences",
        &["It is active since", "due next at 2027-03-02T01:00:00Z", "Of its 3 runs it has had 0"],
    );
    assert_eq!((&active["needs"], active["next"].as_array().map(Vec::len)), (&json!([]), Some(3)));
    let first =
        json!({ "at": "2027-03-02T01:00:00Z", "local": "2027-03-02T09:00:00+08:00", "timezone": "Asia/Shanghai" });
    assert_eq!((&active["next"][0], &active["last_run"]), (&first, &Value::Null));

    instance.change(&daily, TaskChange::Pause { reason: None }).await;
    let paused = explained(&instance, "tasks", daily.id).await;
    says(&paused, "sentences", &["It is paused"]);
    says(&paused, "needs", &["resumes it"]);
    assert_eq!(
        (&paused["next"], &paused["if_resumed"]),
        (&json!([]), &active["next"]),
        "nothing fires while it is paused"
    );
    assert_eq!(active.get("if_resumed"), None);

    let busy = instance.task(schedule(json!({}))).await;
    let run = instance.run_now(&busy).await;
    instance.settle(1).await;
    instance.until(run, |run| run.state == RunState::Running).await;
    let busy = explained(&instance, "tasks", busy.id).await;
    says(&busy, "sentences", &[&format!("The run {run} (running) has its slot since"), "Its last run"]);
    says(&busy, "needs", &["recorded as skipped"]);
    assert_eq!(busy["last_run"]["id"], run.to_string());

    for (part, advice) in
        [(FaultyPart::Action, "Its action is corrected"), (FaultyPart::Trigger, "Its trigger is corrected")]
    {
        let task = instance.task(schedule(json!({}))).await;
        let seen = SeenTask::Version(task.version);
        assert!(instance.store.disable_task(task.id, seen, part, "it is too large").await.unwrap());
        let disabled = explained(&instance, "tasks", task.id).await;
        says(&disabled, "sentences", &["It is disabled: it is too large."]);
        assert_eq!(disabled["needs"], json!([format!("{advice}; it is active again then.")]));
    }

    let spent = instance.task(json!({ "trigger": { "type": "schedule", "at": "2027-03-01T08:05:00Z" } })).await;
    world.advance(300.0);
    instance.live(1).await;
    let spent = explained(&instance, "tasks", spent.id).await;
    says(&spent, "sentences", &["It is completed: its trigger has ended"]);
    assert_eq!((&spent["next"], spent.get("if_resumed")), (&json!([]), None));
    instance.crash();
}

async fn task_that_waits_for_an_event_or_a_condition_says_for_what(world: World) {
    let instance = world.instance();
    let trigger = json!({ "type": "event", "source": "shop", "event_type": "order.*", "filters": { "from": "amazon" },
        "filter": "event.data.total > 100" });
    let event = instance.task(json!({ "trigger": trigger })).await;
    let event = explained(&instance, "tasks", event.id).await;
    says(&event, "sentences", &["events of `shop` with the type `order.*`", "leave no record"]);
    says(&event, "needs", &["whose `from` is, or has in it, \"amazon\"", "for which `event.data.total > 100` is true"]);

    // nobody is there
    let poll = json!({ "http": { "url": "https://nobody.invalid/" } });
    let trigger = json!({ "type": "condition", "poll": poll, "interval": "1m", "expression": "value.price < 5" });
    let condition = instance.task(json!({ "trigger": trigger })).await;
    let before = explained(&instance, "tasks", condition.id).await;
    says(&before, "sentences", &["It has not been polled yet"]);
    says(&before, "needs", &["`value.price < 5` becomes true"]);
    world.advance(61.0);
    instance.poll().await;
    let failing = explained(&instance, "tasks", condition.id).await;
    says(&failing, "sentences", &["It was polled last at", "polls failed", "never taken for false"]);
    says(&failing, "needs", &["answers again"]);
    instance.crash();
}
