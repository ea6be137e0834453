//! Tasks that name credentials: which do is known, and one whose credential is missing waits for its owner, who is told
//! once.

use reveille::base::id::Scope;
use reveille::domain::credential::Reference;
use reveille::domain::run::RunState;
use reveille::domain::task::change::TaskChange;
use reveille::domain::task::{Task, TaskStatus};
use serde_json::{Value, json};
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::{echo, open, received, save, sent};
use crate::support::app::Instance;
use crate::support::world::{ADMIN, World, on_both};

on_both! {
    which_tasks_name_a_credential_is_written_with_them
    task_whose_tool_is_sent_with_a_credential_depends_on_it
    run_that_lacks_its_credential_is_not_repeated_and_its_task_waits_for_the_owner
    poll_that_lacks_its_credential_pauses_its_task
    task_goes_on_with_what_is_saved
    agent_is_told_what_to_connect_and_its_owner_once
    refused_credential_pauses_tasks_that_need_it_and_an_agent_is_told
}

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// Runs of it may go on at the same time.
fn overlapping() -> Value {
    json!({ "type": "schedule", "interval": "1h", "overlap": "allow" })
}

fn pipeline(server: &MockServer, credential: &str) -> Value {
    let steps = json!([{ "name": "look", "http": { "url": format!("{}/echo", server.uri()), "credential": credential }, "retry": 3 }]);
    json!({ "executor": "pipeline", "action": { "config": { "steps": steps } }, "retry": { "max_attempts": 5 }, "trigger": overlapping() })
}

fn webhook(server: &MockServer, credential: &str) -> Value {
    let config = json!({ "url": format!("{}/hook", server.uri()), "secret": SECRET, "credential": credential });
    json!({ "executor": "webhook", "action": { "config": config }, "retry": { "max_attempts": 5 }, "trigger": overlapping() })
}

fn condition(server: &MockServer, credential: &str) -> Value {
    json!({ "trigger": {
        "type": "condition", "interval": "1m", "expression": "value.status == 'ok'", "failure_notice_after": 1,
        "poll": { "http": { "url": format!("{}/echo", server.uri()), "credential": credential } },
    } })
}

async fn naming(instance: &Instance, reference: &str) -> Vec<String> {
    let reference = Reference::parse(reference).unwrap();
    let tasks = instance
        .on(move |store| async move { store.tasks_of_credential(&Scope::Every, "ann", &reference, &[]).await })
        .await;
    tasks.expect("tasks").into_iter().map(|task| task.name).collect()
}

/// The task's run now, once it has ended.
async fn run(instance: &Instance, task: &Task) -> reveille::domain::run::Run {
    let id = instance.run_now(task).await;
    instance.settle(0).await;
    instance.until(id, |run| run.state.is_final()).await
}

async fn subjects(instance: &Instance) -> Vec<String> {
    instance.deliveries().await.into_iter().filter_map(|delivery| delivery.subject).collect()
}

async fn which_tasks_name_a_credential_is_written_with_them(world: World) {
    let world = open(world);
    let (instance, server) = (world.instance(), echo("").await);
    let mut named = pipeline(&server, "shop/ann");
    named["name"] = json!("steps");
    let steps = instance.task(named).await;
    let mut named = condition(&server, "shop/ann");
    named["name"] = json!("watches");
    instance.task(named).await;
    assert_eq!(naming(&instance, "shop/ann").await, ["steps", "watches"]);
    let config = pipeline(&server, "shop/bob")["action"].clone();
    instance.edit(&steps, json!({ "action": config })).await;
    assert_eq!(naming(&instance, "shop/ann").await, ["watches"]);
    assert_eq!(naming(&instance, "shop/bob").await, ["steps"]);
    let id = steps.id;
    instance.on(move |store| async move { store.delete_task(&Scope::Every, id).await }).await.unwrap();
    assert_eq!(naming(&instance, "shop/bob").await, Vec::<String>::new());
    assert_eq!(world.number("select count(*) from task_credentials").await, 1);
    instance.finish(&world).await;
}

async fn run_that_lacks_its_credential_is_not_repeated_and_its_task_waits_for_the_owner(world: World) {
    let world = open(world);
    let (instance, server) = (world.instance(), echo("").await);
    instance.recipient().await;
    for task in [pipeline(&server, "google/work"), webhook(&server, "google/work")] {
        let task = instance.task(task).await;
        let before = instance.deliveries().await.len();
        // two at once: the second finds the task paused, and nobody is told again
        let first = instance.run_now(&task).await;
        let second = instance.run_now(&task).await;
        instance.settle(0).await;
        for id in [first, second] {
            let run = instance.until(id, |run| run.state.is_final()).await;
            let fault = run.error.unwrap();
            assert_eq!((run.state, run.attempt, fault.code.as_str()), (RunState::Failed, 1, "credential_missing"));
            assert!(fault.message.contains("Please connect google/work: "), "{}", fault.message);
        }
        let stored = instance.stored(&task).await;
        assert_eq!(stored.status, TaskStatus::Paused);
        assert_eq!(stored.status_reason.as_deref(), Some("credential:google/work"));
        let told = instance.deliveries().await.split_off(before);
        assert_eq!(told.len(), 1, "{told:#?}");
        assert_eq!(told[0].subject.as_deref(), Some("Please connect google/work"));
        assert!(told[0].text.as_deref().unwrap().contains("The task \"a task\" is paused until then"), "{told:?}");
    }
    assert!(received(&server).await.is_empty());
    instance.finish(&world).await;
}

async fn poll_that_lacks_its_credential_pauses_its_task(world: World) {
    let world = open(world);
    let (instance, server) = (world.instance(), echo("").await);
    instance.recipient().await;
    let task = instance.task(condition(&server, "flights")).await;
    world.advance(60.0);
    for _ in 0..3 {
        instance.poll().await;
        world.advance(600.0);
    }
    let stored = instance.stored(&task).await;
    assert_eq!((stored.status, stored.status_reason.as_deref()), (TaskStatus::Paused, Some("credential:flights")));
    let failing = instance.condition(&task).await.failing.expect("a failing poll");
    assert_eq!((failing.count, failing.error.kind.as_str()), (1, "credential_missing"));
    assert_eq!(subjects(&instance).await, ["Please connect flights"]);
    // resumed without it: it waits again, and that is told again
    instance.change(&task, TaskChange::Resume).await;
    world.advance(120.0);
    instance.poll().await;
    assert_eq!(instance.stored(&task).await.status, TaskStatus::Paused);
    assert_eq!(subjects(&instance).await, ["Please connect flights", "Please connect flights"]);
    assert!(received(&server).await.is_empty());
    instance.finish(&world).await;
}

async fn task_goes_on_with_what_is_saved(world: World) {
    let world = open(world);
    let (instance, server) = (world.instance(), echo("").await);
    let bearer = json!({ "as": "bearer", "from": "/key" });
    let tasks = [pipeline(&server, "shop"), webhook(&server, "shop"), condition(&server, "shop")];
    for task in tasks {
        let of_poll = task["trigger"]["type"] == "condition";
        let task = instance.task(task).await;
        if of_poll {
            world.advance(60.0);
            instance.poll().await;
        } else {
            run(&instance, &task).await;
        }
        assert_eq!(instance.stored(&task).await.status, TaskStatus::Paused);
        let path = format!("/v1/tasks/{}/explain", task.id);
        let needs = instance.page(&path).await;
        assert!(needs.contains("Its owner saves or connects the credential `shop`; it goes on then."), "{needs}");
        let body = json!({ "hosts": ["127.0.0.1"], "inject": bearer, "document": { "key": "the-shops-key" } });
        let (status, saved) =
            instance.ask("PUT", "/v1/credentials/shop/primary?tenant_id=ann", ADMIN, Some(body)).await;
        assert_eq!((status, &saved["resumed"][0]["id"]), (200, &json!(task.id)), "{saved}");
        assert_eq!((&saved["tasks"][0]["id"], &saved["tasks"][0]["status"]), (&json!(task.id), &json!("active")));
        assert_eq!(instance.stored(&task).await.status, TaskStatus::Active);
        let before = received(&server).await.len();
        let ended = if of_poll {
            world.advance(120.0);
            instance.poll().await;
            instance.settle(0).await;
            instance.runs(&task).await.pop().expect("a fire")
        } else {
            run(&instance, &task).await
        };
        assert_eq!(ended.state, RunState::Succeeded, "{:?}", ended.error);
        let asked = received(&server).await.split_off(before);
        assert_eq!(asked.iter().map(sent).collect::<Vec<_>>(), ["the-shops-key"]);
        if asked[0].url.path() == "/hook" {
            assert!(asked[0].headers.contains_key("webhook-signature"));
        }
        let deleted = instance.on(|store| async move {
            store.delete_credential(&Scope::Every, "ann", "shop", "primary", "service").await
        });
        deleted.await.unwrap();
        let id = task.id;
        instance.on(move |store| async move { store.delete_task(&Scope::Every, id).await }).await.unwrap();
    }
    instance.finish(&world).await;
}

async fn agent_is_told_what_to_connect_and_its_owner_once(world: World) {
    let mut world = open(world);
    let server = echo("").await;
    let scenario = format!(
        "[[steps]]\nturn = 1\ntext = \"I look.\"\n[[steps.calls]]\ntool = \"http_request\"\n\
         args = {{ url = \"{}/echo\", credential = \"google/work\" }}\n[[steps]]\ntext = \"Could not.\"\n",
        server.uri()
    );
    let path = world.dir().join("scenario.toml");
    std::fs::write(&path, scenario).unwrap();
    let model = json!({ "models": { "main": { "provider": "scripted", "scenario": path } } });
    world.llm = serde_json::from_value(model).unwrap();
    let instance = world.instance();
    instance.recipient().await;
    let action = json!({ "instruction": "Look.", "config": { "credentials": ["google/work"] } });
    let agent = json!({ "executor": "orchestrator", "action": action, "output": null });
    let task = instance.task(agent).await;
    for _ in 0..2 {
        let run = run(&instance, &task).await;
        assert_eq!((run.state, run.output.as_deref()), (RunState::Succeeded, Some("Could not.")), "{:?}", run.error);
        let transcript = instance.page(&format!("/v1/runs/{}/transcript", run.id)).await;
        assert!(transcript.contains("code: credential_missing"), "{transcript}");
        assert!(transcript.contains("Please connect google/work: there is no such credential"), "{transcript}");
    }
    assert_eq!(instance.stored(&task).await.status, TaskStatus::Active);
    assert_eq!(subjects(&instance).await, ["Please connect google/work"]);
    // mended, used, and lost again: that is another time
    save(
        &world,
        &instance,
        "google/work",
        json!({ "as": "bearer", "from": "/key" }),
        json!({ "key": "k3y-of-google" }),
    )
    .await;
    world.advance(1.0);
    run(&instance, &task).await;
    assert_eq!(received(&server).await.iter().map(sent).collect::<Vec<_>>(), ["k3y-of-google"]);
    instance
        .on(|store| async move { store.delete_credential(&Scope::Every, "ann", "google", "work", "service").await })
        .await
        .unwrap();
    run(&instance, &task).await;
    assert_eq!(subjects(&instance).await.len(), 2);
    instance.finish(&world).await;
}

async fn refused_credential_pauses_tasks_that_need_it_and_an_agent_is_told(world: World) {
    let mut world = open(world);
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(ResponseTemplate::new(401).set_body_string("no such key")).mount(&server).await;
    let look = json!({ "url": server.uri(), "credential": "shop" });
    world.follows(&json!({ "steps": [
        { "turn": 1, "text": "I look.", "calls": [{ "tool": "http_request", "args": look }] },
        { "text": "Could not." },
    ] }));
    let instance = world.instance();
    instance.recipient().await;
    let bearer = json!({ "as": "bearer", "from": "/key" });
    save(&world, &instance, "shop", bearer.clone(), json!({ "key": "a-revoked-key" })).await;
    world.advance(1.0);
    let call = json!([{ "name": "look", "tool": { "name": "http_request", "args": look } }]);
    let steps = json!({ "executor": "pipeline", "action": { "config": { "steps": call } }, "trigger": overlapping() });
    for task in [pipeline(&server, "shop"), webhook(&server, "shop"), steps, condition(&server, "shop")] {
        let of_poll = task["trigger"]["type"] == "condition";
        let before = subjects(&instance).await.len();
        let task = instance.task(task).await;
        if of_poll {
            world.advance(60.0);
            instance.poll().await;
        } else {
            for _ in 0..2 {
                let fault = run(&instance, &task).await.error.expect("a fault");
                assert_eq!(fault.code, "credential_refused", "{}", fault.message);
                assert!(fault.message.contains("The credential shop is refused: 127.0.0.1:"), "{}", fault.message);
            }
        }
        let stored = instance.stored(&task).await;
        assert_eq!((stored.status, stored.status_reason.as_deref()), (TaskStatus::Paused, Some("credential:shop")));
        assert_eq!(subjects(&instance).await.split_off(before), ["shop is refused"]);
        // saved anew it goes on; with the same key it comes to the same
        save(&world, &instance, "shop", bearer.clone(), json!({ "key": "a-revoked-key" })).await;
        assert_eq!(instance.stored(&task).await.status, TaskStatus::Active);
        world.advance(1.0);
        let id = task.id;
        instance.on(move |store| async move { store.delete_task(&Scope::Every, id).await }).await.unwrap();
    }
    // who accepts the status has an answer
    let mut accepts = pipeline(&server, "shop");
    accepts["action"]["config"]["steps"][0]["http"]["accept_status"] = json!([401]);
    let accepts = instance.task(accepts).await;
    assert_eq!(run(&instance, &accepts).await.state, RunState::Succeeded);
    let action = json!({ "instruction": "Look.", "config": { "credentials": ["shop"] } });
    let agent = instance.task(json!({ "executor": "orchestrator", "action": action, "output": null })).await;
    let ended = run(&instance, &agent).await;
    assert_eq!((ended.state, ended.output.as_deref()), (RunState::Succeeded, Some("Could not.")), "{:?}", ended.error);
    let transcript = instance.page(&format!("/v1/runs/{}/transcript", ended.id)).await;
    assert!(transcript.contains("code: credential_refused"), "{transcript}");
    assert_eq!(instance.stored(&agent).await.status, TaskStatus::Active);
    instance.finish(&world).await;
}

async fn task_whose_tool_is_sent_with_a_credential_depends_on_it(world: World) {
    let mut world = open(world);
    let tool = |name: &str, credential: &str| {
        json!({
            "name": name, "description": "Looks something up.", "category": "read", "consequence": "low",
            "http": { "method": "GET", "url": "http://127.0.0.1:9/", "credential": credential },
        })
    };
    world.declared = serde_json::from_value(json!([tool("look_up", "shop/primary"), tool("other", "mail")])).unwrap();
    let instance = world.instance();
    let bearer = json!({ "as": "bearer", "from": "/key" });
    save(&world, &instance, "shop", bearer, json!({ "key": "the-shops-key" })).await;
    for (name, called) in [("steps", "look_up"), ("steps of another", "other")] {
        let steps = json!([{ "name": "look", "tool": { "name": called } }]);
        let task = json!({ "name": name, "executor": "pipeline", "action": { "config": { "steps": steps } } });
        instance.task(task).await;
    }
    let poll = json!({ "tool": { "name": "look_up", "args": {} } });
    let trigger = json!({ "type": "condition", "interval": "1m", "expression": "value != null", "poll": poll });
    instance.task(json!({ "name": "watches", "trigger": trigger })).await;
    let (status, shown) = instance.ask("GET", "/v1/credentials/shop/primary?tenant_id=ann", ADMIN, None).await;
    let names: Vec<&str> =
        shown["tasks"].as_array().unwrap().iter().map(|task| task["name"].as_str().unwrap()).collect();
    assert_eq!((status, names), (200, vec!["steps", "watches"]));
    instance.finish(&world).await;
}
