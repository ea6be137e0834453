//! Pipelines over a whole service: what is recorded, told and kept, on both databases.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reveille::agent::AgentDefinition;
use reveille::base::clock::pause;
use reveille::domain::approval::matrix::Category;
use reveille::domain::run::{RunFinish, RunState};
use reveille::domain::task::TaskStatus;
use reveille::ports::tool::{Tool, ToolOutput};
use serde_json::{Value, json};
use uuid::Uuid;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::agent::harness::FakeTool;
use crate::support::app::Instance;
use crate::support::smtp::MailServer;
use crate::support::world::{ADMIN, World, on_both};

on_both! {
    filtered_run_succeeds_and_nobody_is_told
    attempt_that_follows_goes_on_with_what_the_one_before_gave
    run_says_that_the_agent_of_a_step_was_stopped_and_so_does_its_message
    quiet_run_says_that_the_agent_of_a_step_was_stopped
    ledger_that_the_database_refuses_fails_its_run_alone
    run_that_is_cancelled_keeps_what_its_steps_gave
    run_that_fails_keeps_what_its_steps_gave_and_used
    values_and_events_of_a_run_are_there_afterwards
    agent_s_own_rules_decide_in_a_step_and_are_told_as_the_reason
    stored_pipeline_beyond_a_bound_disables_its_task_and_tells_its_owner_once
    missing_field_of_a_step_is_told_to_its_owner_once_for_each_version_of_the_steps
}

async fn missing_field_of_a_step_is_told_to_its_owner_once_for_each_version_of_the_steps(world: World) {
    let instance = world.instance();
    instance.recipient().await;
    let action = |filter: &str| {
        let steps = json!([{ "name": "got", "map": "{'amount': 500}" }, { "name": "large", "filter": filter }]);
        json!({ "config": { "steps": steps } })
    };
    let action_of = |filter: &str| json!({ "action": action(filter) });
    let first = action("steps.got.amuont > 100");
    let task = instance.task(json!({ "name": "Large orders", "executor": "pipeline", "action": first })).await;
    let run = async |instance: &Instance| {
        let id = instance.run_now(&task).await;
        instance.settle(0).await;
        let run = instance.until(id, |run| run.state.is_final()).await;
        assert_eq!((run.state, run.reason.as_deref()), (RunState::Succeeded, Some("filtered")));
        instance.deliveries().await
    };
    let told = run(&instance).await;
    let [told] = told.as_slice() else { panic!("{told:?}") };
    assert_eq!(told.subject.as_deref(), Some("A field is missing: Large orders"));
    let text = told.text.as_deref().unwrap();
    assert!(text.contains("The step `large`") && text.contains("`steps.got.amuont`"), "{text}");
    assert!(text.contains("`steps.got.amuont > 100`") && text.contains("Did you mean `amount`?"), "{text}");
    assert_eq!(run(&instance).await.len(), 1, "not again");
    // neither by another instance, nor once the message is forgotten
    instance.crash();
    world.execute("delete from deliveries", "delete from deliveries").await;
    let instance = world.instance();
    assert_eq!(run(&instance).await, []);
    let edited = instance.edit(&instance.stored(&task).await, action_of("steps.got.amount > 1000")).await;
    assert_eq!(run(&instance).await, [], "nothing is missing");
    instance.edit(&edited, action_of("steps.got.amt > 100")).await;
    for _ in 0..2 {
        assert_eq!(run(&instance).await.len(), 1, "of the new steps");
    }
    instance.finish(&world).await;
}

async fn stored_pipeline_beyond_a_bound_disables_its_task_and_tells_its_owner_once(world: World) {
    let instance = world.instance();
    instance.recipient().await;
    let steps = |text: &str| json!([{ "name": "a", "map": text }]);
    let action = |text: &str| json!({ "action": { "config": { "steps": steps(text) } } });
    let task = instance.task(json!({ "name": "old", "executor": "pipeline", "action": action("1")["action"] })).await;
    // as it was stored before there was a bound
    let stored = json!({ "steps": steps(&format!("1{}", " ".repeat(2_000))) }).to_string();
    world
        .define(
            &format!("update tasks set spec = json_set(spec, '$.action.config', json('{stored}')) where name = 'old'"),
            &format!(
                "set reveille.tenant = '*';
                 update tasks set spec = jsonb_set(spec, '{{action,config}}', '{stored}') where name = 'old'"
            ),
        )
        .await;
    let id = instance.run_now(&task).await;
    instance.settle(0).await;
    let run = instance.until(id, |run| run.state.is_final()).await;
    let error = run.error.unwrap();
    assert_eq!((run.state, error.code.as_str()), (RunState::Failed, "unreadable_action"));
    let disabled = instance.stored(&task).await;
    assert_eq!((disabled.status, disabled.next_fire_at), (TaskStatus::Disabled, None));
    let reason = disabled.status_reason.clone().unwrap();
    assert!(reason.starts_with("/action/config/steps/0/map: an expression has at most 1024 bytes"), "{reason}");
    let told: Vec<_> = instance.deliveries().await.into_iter().map(|delivery| delivery.dedupe_key).collect();
    let kind = |key: &String| key.rsplit_once(':').unwrap().0.to_owned();
    assert_eq!(told.iter().map(kind).collect::<Vec<_>>(), [format!("notice:disabled:{}", task.id)], "{told:?}");
    let mended = instance.edit(&disabled, action("2")).await;
    assert_eq!(mended.status, TaskStatus::Active);
    instance.finish(&world).await;
}

async fn filtered_run_succeeds_and_nobody_is_told(world: World) {
    let instance = world.instance();
    instance.recipient().await;
    let steps = json!([{ "name": "never", "filter": "1 > 2" }, { "name": "tell", "notify": { "message": "no" } }]);
    let task = instance.task(json!({ "executor": "pipeline", "action": { "config": { "steps": steps } } })).await;
    let id = instance.run_now(&task).await;
    instance.settle(0).await;
    let run = instance.until(id, |run| run.state.is_final()).await;
    assert_eq!((run.state, run.reason.as_deref(), run.output), (RunState::Succeeded, Some("filtered"), None));
    assert_eq!(instance.deliveries().await, []);
    instance.finish(&world).await;
}

async fn values_and_events_of_a_run_are_there_afterwards(world: World) {
    let instance = world.instance();
    let steps = json!([
        { "name": "count", "store": { "name": "n", "expression": "has(state.n) ? state.n + 1 : 1" } },
        { "name": "spread", "publish": { "type": "counted", "data": { "n": "{{ steps.count }}" } } },
        { "name": "said", "map": "state.n" },
    ]);
    let config = json!({ "config": { "steps": steps } });
    let task = instance.task(json!({ "executor": "pipeline", "action": config, "output": null })).await;
    for expected in ["1", "2"] {
        let id = instance.run_now(&task).await;
        instance.settle(0).await;
        let run = instance.until(id, |run| run.state.is_final()).await;
        assert_eq!((run.state, run.output.as_deref()), (RunState::Succeeded, Some(expected)), "{:?}", run.error);
    }
    let (status, events) = instance.ask("GET", "/v1/events?tenant_id=ann", ADMIN, None).await;
    assert_eq!(status, 200, "{events}");
    let published: Vec<_> =
        events["items"].as_array().unwrap().iter().map(|event| event["data"]["n"].clone()).collect();
    assert!(published.len() == 2 && published.contains(&json!(1)) && published.contains(&json!(2)), "{events}");
    // a step that can't be is refused over HTTP as well, at its place
    let body = json!({
        "tenant_id": "ann", "name": "x", "trigger": { "type": "schedule", "interval": "1h" }, "executor": "pipeline",
        "action": { "config": { "steps": [{ "name": "a", "map": "1 +" }] } },
    });
    let (status, told) = instance.ask("POST", "/v1/tasks", ADMIN, Some(body)).await;
    assert_eq!((status, &told["errors"][0]["pointer"]), (422, &json!("/action/config/steps/0/map")));
    instance.finish(&world).await;
}

async fn agent_s_own_rules_decide_in_a_step_and_are_told_as_the_reason(mut world: World) {
    let deeds: Arc<Mutex<Vec<Value>>> = Arc::default();
    let noted = deeds.clone();
    let file = FakeTool::new("file", move |_, arguments| {
        noted.lock().unwrap().push(arguments);
        async move { Ok(ToolOutput::text("filed")) }
    });
    let file = file.with(|tool| tool.category = Category::SideEffect);
    world.tools = vec![Arc::new(file) as Arc<dyn Tool>, Arc::new(FakeTool::echo("look"))];
    let clerk = json!({
        "name": "clerk", "instruction": "You file notes.",
        "approvals": { "file": { "gate": "auto", "when": "args.note == 'one'" }, "look": { "gate": "confirm" } },
    });
    let clerk: AgentDefinition = serde_json::from_value(clerk).unwrap();
    world.agents = vec![clerk];
    let call = |tool: &str, note: &str| json!({ "tool": tool, "args": { "note": note } });
    world.follows(&json!({ "steps": [
        { "turn": 1, "calls": [call("file", "one"), call("file", "two"), call("look", "up")] },
        { "turn": 2, "text": "done" },
    ] }));
    let instance = world.instance();
    // the tool of each call that somebody is asked about, and its reasons
    let asked = async |agent: Value| {
        let config = json!({ "config": { "steps": [{ "name": "clerk", "agent": agent }] } });
        let task = json!({ "executor": "pipeline", "action": config, "output": null });
        let id = instance.run_now(&instance.task(task).await).await;
        instance.settle(0).await;
        instance.until(id, |run| run.state == RunState::PendingApproval).await;
        let (status, asked) = instance.ask("GET", &format!("/v1/approvals?run_id={id}"), ADMIN, None).await;
        assert_eq!(status, 200, "{asked}");
        let line = |question: &Value| format!("{} {}", question["details"]["note"], question["reasons"]);
        let mut lines: Vec<String> = asked["items"].as_array().unwrap().iter().map(line).collect();
        lines.sort();
        let (status, cancelled) = instance.ask("POST", &format!("/v1/runs/{id}/cancel"), ADMIN, None).await;
        assert_eq!(status, 200, "{cancelled}");
        lines
    };
    let matrix = r#""the matrix says confirm for side_effect of low consequence""#;
    assert_eq!(
        asked(json!({ "name": "clerk", "instruction": "File the notes" })).await,
        [
            format!(r#""two" [{matrix}]"#),
            r#""up" ["the matrix says auto for read of low consequence","the agent says confirm for `look`"]"#
                .to_owned(),
        ]
    );
    assert_eq!(*deeds.lock().unwrap(), [json!({ "note": "one" })]);
    // without these rules it is as the matrix says
    assert_eq!(
        asked(json!({ "instruction": "File the notes" })).await,
        [format!(r#""one" [{matrix}]"#), format!(r#""two" [{matrix}]"#)]
    );
    assert_eq!(deeds.lock().unwrap().len(), 1);
    instance.finish(&world).await;
}

/// The names and outcomes of a run's steps, as the API shows them.
async fn steps_of(instance: &Instance, id: Uuid) -> Vec<String> {
    let (status, page) = instance.ask("GET", &format!("/v1/runs/{id}/transcript"), ADMIN, None).await;
    assert_eq!(status, 200, "{page}");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let line = |entry: &Value| format!("{} {}", text(&entry["name"]), text(&entry["outcome"]["status"]));
    page["items"].as_array().expect("entries").iter().map(line).collect()
}

async fn run_that_is_cancelled_keeps_what_its_steps_gave(mut world: World) {
    let deaf = FakeTool::new("deaf", |_, _| async move {
        std::future::pending::<()>().await;
        Ok(ToolOutput::text(""))
    });
    world.tools = vec![Arc::new(deaf) as Arc<dyn Tool>];
    let instance = world.instance();
    let steps = json!([{ "name": "one", "map": "1" }, { "name": "two", "tool": { "name": "deaf" } }]);
    let task = instance.task(json!({ "executor": "pipeline", "action": { "config": { "steps": steps } } })).await;
    let id = instance.run_now(&task).await;
    instance.settle(1).await;
    pause(Duration::from_millis(50)).await;
    assert_eq!(steps_of(&instance, id).await, [""; 0], "what waits is not stored");
    instance.cancel(id).await;
    instance.work().await;
    let run = instance.until(id, |run| run.state.is_final()).await;
    assert_eq!(run.state, RunState::Cancelled);
    assert_eq!(steps_of(&instance, id).await, [" ", "one done", "two "]);
    instance.finish(&world).await;
}

async fn run_that_fails_keeps_what_its_steps_gave_and_used(mut world: World) {
    world.follows(&json!({ "steps": [{ "turn": 1, "text": "done" }] }));
    let instance = world.instance();
    let steps = json!([{ "name": "ask", "llm": { "prompt": "Well?" } }, { "name": "bad", "map": "1 / 0" }]);
    let task = instance.task(json!({ "executor": "pipeline", "action": { "config": { "steps": steps } } })).await;
    let id = instance.run_now(&task).await;
    instance.settle(0).await;
    let run = instance.until(id, |run| run.state.is_final()).await;
    assert_eq!((run.state, run.usage.turns), (RunState::Failed, 1), "what the model cost is counted");
    assert_eq!(steps_of(&instance, id).await, [" ", "ask ", "ask done", "bad failed"]);
    instance.finish(&world).await;
}

/// A server that is there from the second request on.
async fn late_server() -> MockServer {
    let (first, server) = (Arc::new(AtomicBool::new(true)), MockServer::start().await);
    let answer = move |_: &wiremock::Request| match first.swap(false, Ordering::Relaxed) {
        true => ResponseTemplate::new(503),
        false => ResponseTemplate::new(200),
    };
    Mock::given(wiremock::matchers::any()).respond_with(answer).mount(&server).await;
    server
}

/// The run ends in an attempt that reads what the agent gave in the one before.
async fn run_says_that_the_agent_of_a_step_was_stopped_and_so_does_its_message(mut world: World) {
    world.egress.allow = vec!["127.0.0.1:*".into()];
    let (server, mail) = (late_server().await, MailServer::start().await);
    world.mail_by(&mail);
    world.tools = vec![Arc::new(FakeTool::echo("look")) as Arc<dyn Tool>];
    world.follows(&json!({ "steps": [
        { "turn": 1, "calls": [{ "tool": "look", "args": {} }] },
        { "text": "Two mails so far." },
    ] }));
    let instance = world.instance();
    instance.recipient().await;
    let steps = json!([
        { "name": "count", "agent": { "instruction": "Count the mails.", "max_turns": 1 } },
        { "name": "look", "http": { "url": server.uri() } },
        { "name": "said", "map": "steps.count" },
    ]);
    let task = instance
        .task(json!({
            "executor": "pipeline", "action": { "config": { "steps": steps } }, "output": { "channel": "email" },
            "retry": { "max_attempts": 2, "backoff_seconds": 1 },
        }))
        .await;
    let id = instance.run_now(&task).await;
    instance.settle(0).await;
    assert_eq!(instance.run(id).await.state, RunState::Queued);
    world.advance(1.0);
    instance.settle(0).await;
    let run = instance.until(id, |run| run.state.is_final()).await;
    assert_eq!((run.state, run.attempt, run.finish), (RunState::Succeeded, 2, Some(RunFinish::MaxTurns)));
    instance.notify().await;
    let [message] = mail.messages().try_into().expect("one message");
    let told = "The agent was stopped at its limit of turns. This is as far as it came:\n\nTwo mails so far.";
    let text = message.text.replace("\r\n", "\n");
    assert!(text.contains(told), "{text}");
    instance.finish(&world).await;
}

async fn quiet_run_says_that_the_agent_of_a_step_was_stopped(mut world: World) {
    world.tools = vec![Arc::new(FakeTool::echo("look")) as Arc<dyn Tool>];
    world.follows(&json!({ "steps": [
        { "turn": 1, "calls": [{ "tool": "look", "args": {} }] },
        { "text": "Two mails so far." },
    ] }));
    let instance = world.instance();
    let steps = json!([
        { "name": "count", "agent": { "instruction": "Count the mails.", "max_turns": 1 } },
        { "name": "never", "filter": "1 > 2" },
    ]);
    let task = instance.task(json!({ "executor": "pipeline", "action": { "config": { "steps": steps } } })).await;
    let id = instance.run_now(&task).await;
    instance.settle(0).await;
    let run = instance.until(id, |run| run.state.is_final()).await;
    let expected = (RunState::Succeeded, Some("filtered"), Some(RunFinish::MaxTurns));
    assert_eq!((run.state, run.reason.as_deref(), run.finish), expected);
    instance.finish(&world).await;
}

async fn attempt_that_follows_goes_on_with_what_the_one_before_gave(mut world: World) {
    world.egress.allow = vec!["127.0.0.1:*".into()];
    let server = late_server().await;
    let instance = world.instance();
    let steps = json!([{ "name": "one", "map": "1" }, { "name": "two", "http": { "url": server.uri() } }]);
    let retry = json!({ "max_attempts": 2, "backoff_seconds": 1 });
    let action = json!({ "config": { "steps": steps } });
    let task = instance.task(json!({ "executor": "pipeline", "action": action, "retry": retry })).await;
    let id = instance.run_now(&task).await;
    instance.settle(0).await;
    assert_eq!(instance.run(id).await.state, RunState::Queued);
    let tried = [" ", "one done", "two ", "two again"];
    assert_eq!(steps_of(&instance, id).await, tried);
    world.advance(1.0);
    instance.settle(0).await;
    let run = instance.until(id, |run| run.state.is_final()).await;
    assert_eq!((run.state, run.attempt), (RunState::Succeeded, 2));
    assert_eq!(steps_of(&instance, id).await, [&tried[..], &["two ", "two done"]].concat());
    instance.finish(&world).await;
}

async fn ledger_that_the_database_refuses_fails_its_run_alone(world: World) {
    let index = "create unique index planted on turns (run_id) where turn = 3";
    let instance = world.instance();
    world.define(index, index).await;
    let mut runs = Vec::new();
    for count in [2, 3] {
        let step = |n: i64| json!({ "name": format!("s{n}"), "tool": { "name": "current_time" } });
        let config = json!({ "steps": (0..count).map(step).collect::<Vec<_>>() });
        let task = instance.task(json!({ "executor": "pipeline", "action": { "config": config } })).await;
        runs.push(instance.run_now(&task).await);
    }
    instance.settle(0).await;
    let sound = instance.until(runs[0], |run| run.state.is_final()).await;
    let refused = instance.until(runs[1], |run| run.state.is_final()).await;
    assert_eq!((sound.state, refused.state), (RunState::Succeeded, RunState::Failed));
    assert_eq!(refused.error.unwrap().code, "unrecordable");
    assert_eq!((steps_of(&instance, runs[0]).await.len(), steps_of(&instance, runs[1]).await.len()), (5, 0));
    instance.finish(&world).await;
}
