//! The whole way through, with the real binary: a schedule fires, the model calls a tool over its own wire format, the
//! answer arrives at a real mail server. Then the same with `kill -9` in the middle, and with two instances.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::clock::{Clock, machine_now, pause};
use reveille::base::id::{Scope, Tenant, new_id};
use reveille::domain::task::{Draft, Task};
use reveille::store::{RunFilter, Store};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::support::api::Api;
use crate::support::binary::Service;
use crate::support::model::{AnthropicFormat, ModelServer, OpenAiFormat, ResponsesFormat, WireFormat};
use crate::support::postgres::Database;
use crate::support::smtp::MailServer;

/// How long anything may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(60);

/// A service that speaks to this model and this mail server, on SQLite unless told otherwise.
fn service(model: &ModelServer, mail: Option<&MailServer>) -> Service {
    let channels = mail.map_or(String::new(), |mail| {
        format!("[channels.email]\nurl = \"smtp://{}\"\nfrom = \"reveille@example.org\"\n", mail.address())
    });
    Service::new().with_config(&format!(
        "[llm.models.main]\nprovider = \"{}\"\nbase_url = \"{}\"\nmodel = \"test-model\"\napi_key = \"sk-test-0123456789\"\n\
         [react]\nsystem_prompt = \"Be brief.\"\n\
         [engine]\nlease_seconds = 6.0\n\
         {channels}",
        model.provider(),
        model.url(),
    ))
}

fn every_second_once(instruction: &str) -> Value {
    json!({
        "tenant_id": "ann", "name": "Morning mail",
        "trigger": { "type": "schedule", "cron": "* * * * * *" }, "max_runs": 1,
        "action": { "instruction": instruction, "config": { "tools": ["current_time"] } },
    })
}

/// The cron task fires, the model asks for the time, and its answer is mailed; answers what the model was asked.
async fn fires_calls_a_tool_and_mails<F: WireFormat>() -> Vec<Value> {
    let model = ModelServer::start::<F>().await;
    let mail = MailServer::start().await;
    let mut service = service(&model, Some(&mail));
    service.start().await;
    let api = Api::of(&service);
    let recipient = json!({ "timezone": "Europe/Berlin", "addresses": { "email": "ann@example.org" } });
    api.put("/v1/recipients/ann", &recipient).await;
    let task = api.post("/v1/tasks", &every_second_once("Say what time it is.")).await;
    let run = api.until_run(task["id"].as_str().unwrap(), "succeeded", PATIENCE).await;
    assert_eq!(run["output"], "It is late.");
    assert_eq!(run["usage"]["turns"], 2);
    assert_eq!(run["usage"]["tool_calls"], 1);
    let delivery = api.until_delivery(run["id"].as_str().unwrap(), "delivered", PATIENCE).await;
    assert_eq!(delivery["channel"], "email");
    let mails = mail.messages();
    assert_eq!(mails.len(), 1, "one answer, one mail");
    assert_eq!(mails[0].header("To"), "ann@example.org");
    assert_eq!(mails[0].header("Subject"), "Morning mail");
    assert_eq!(mails[0].text.trim(), "It is late.");
    let task = api.get(&format!("/v1/tasks/{}", task["id"].as_str().unwrap())).await;
    assert_eq!((task["status"].as_str(), task["run_count"].as_i64()), (Some("completed"), Some(1)));
    assert!(service.terminate().await.success());
    let due: DateTime<Utc> = run["scheduled_for"].as_str().unwrap().parse().unwrap();
    let due = due.with_timezone(&chrono_tz::Europe::Berlin).to_rfc3339_opts(chrono::SecondsFormat::Secs, false);
    model
        .requests()
        .iter()
        .map(|body| steady(body, &[(run["id"].as_str().unwrap(), "<run>"), (&due, "<due>")]))
        .collect()
}

/// The one turn is used up by the call, and all who hear of the answer hear of that.
#[tokio::test]
async fn answer_at_the_limit_of_turns_is_told_as_one() {
    let model = ModelServer::start::<OpenAiFormat>().await;
    let mail = MailServer::start().await;
    let mut service = service(&model, Some(&mail));
    service.start().await;
    let api = Api::of(&service);
    let recipient = json!({ "timezone": "Europe/Berlin", "addresses": { "email": "ann@example.org" } });
    api.put("/v1/recipients/ann", &recipient).await;
    let mut task = every_second_once("Say what time it is.");
    task["action"]["config"]["max_turns"] = json!(1);
    let task = api.post("/v1/tasks", &task).await;
    let run = api.until_run(task["id"].as_str().unwrap(), "succeeded", PATIENCE).await;
    let id = run["id"].as_str().unwrap();
    assert_eq!(run["finish"], "max_turns");
    assert_eq!(api.get(&format!("/v1/runs/{id}")).await["finish"], "max_turns");
    let transcript = api.get(&format!("/v1/runs/{id}/transcript")).await;
    assert_eq!(transcript["items"].as_array().unwrap().last().unwrap()["finish"], "max_turns");
    api.until_delivery(id, "delivered", PATIENCE).await;
    let text = mail.messages()[0].text.replace("\r\n", "\n");
    assert_eq!(text.trim(), "The agent was stopped at its limit of turns. This is as far as it came:\n\nIt is late.");
    let token = service.admin_token().expect("the first start makes an admin token");
    let mut show = service.command();
    show.args(["run", "show", id]).env("REVEILLE_URL", service.url()).env("REVEILLE_TOKEN", token);
    let shown = String::from_utf8(show.output().await.unwrap().stdout).unwrap();
    let finish = shown.lines().find(|line| line.starts_with("finish ")).unwrap_or_else(|| panic!("{shown}"));
    assert!(finish.ends_with("max_turns"), "{finish}");
    assert!(service.terminate().await.success());
}

/// The beginning of a result as it is sent.
const SHAPE: &str = "{\"tool\":\"current_time\",\"fetched_at\"";

/// The body with what differs from run to run replaced.
fn steady(body: &Value, replace: &[(&str, &str)]) -> Value {
    match body {
        Value::String(text) => {
            let text = replace.iter().fold(text.clone(), |text, (from, to)| text.replace(from, to));
            let lines = text.split('\n').map(|line| {
                let told = [SHAPE, "Current time", "  \"local\"", "  \"utc\"", "  \"weekday\""];
                match told.iter().find(|name| line.starts_with(**name)) {
                    Some(name) => format!("{name}: <now>"),
                    // the tags around a result go by what it says
                    None if line.starts_with("<untrusted-") => "<untrusted-… from=\"tool\">".into(),
                    None if line.starts_with("</untrusted-") => "</untrusted-…>".into(),
                    None => line.to_owned(),
                }
            });
            Value::String(lines.collect::<Vec<_>>().join("\n"))
        }
        Value::Array(items) => items.iter().map(|item| steady(item, replace)).collect(),
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), steady(value, replace)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => other.clone(),
    }
}

#[tokio::test]
async fn cron_task_calls_a_tool_over_the_openai_format_and_mails_its_answer() {
    insta::assert_json_snapshot!(fires_calls_a_tool_and_mails::<OpenAiFormat>().await);
}

#[tokio::test]
async fn cron_task_calls_a_tool_over_anthropics_format_and_mails_its_answer() {
    insta::assert_json_snapshot!(fires_calls_a_tool_and_mails::<AnthropicFormat>().await);
}

/// `kill -9` while the model is thinking about its second turn; after the restart the run goes on behind the first.
#[tokio::test]
async fn cron_task_calls_a_tool_over_the_responses_format_and_mails_its_answer() {
    insta::assert_json_snapshot!(fires_calls_a_tool_and_mails::<ResponsesFormat>().await);
}

async fn survives_kill_9(mut service: Service, model: &ModelServer) {
    model.hold_answers_after_a_tool();
    service.start().await;
    let token = service.admin_token().expect("the first start makes an admin token").to_owned();
    let api = Api::new(service.url(), &token);
    let task = api.post("/v1/tasks", &every_second_once("Say what time it is.")).await;
    let task_id = task["id"].as_str().unwrap().to_owned();
    model.until_holding(PATIENCE).await;
    service.kill().await;
    model.answer_again();
    service.start().await;
    let api = Api::new(service.url(), &token);
    let run = api.until_run(&task_id, "succeeded", PATIENCE).await;
    assert_eq!(run["output"], "It is late.");
    assert_eq!(run["attempt"], 2, "the crash counts as an attempt");
    let runs = api.get(&format!("/v1/runs?task_id={task_id}")).await;
    assert_eq!(runs["items"].as_array().unwrap().len(), 1, "one fire, one run: {runs:#}");
    assert_eq!(model.first_turns(), 1, "the finished turn is not asked for again");
    let transcript = api.get(&format!("/v1/runs/{}/transcript", run["id"].as_str().unwrap())).await;
    let roles: Vec<&str> =
        transcript["items"].as_array().unwrap().iter().map(|entry| entry["role"].as_str().unwrap()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant"]);
    assert!(service.terminate().await.success());
}

#[tokio::test]
async fn run_survives_kill_9_on_sqlite() {
    let model = ModelServer::start::<OpenAiFormat>().await;
    survives_kill_9(service(&model, None), &model).await;
}

#[tokio::test]
async fn run_survives_kill_9_on_postgres() {
    let model = ModelServer::start::<OpenAiFormat>().await;
    let database = Database::empty().await;
    survives_kill_9(on_postgres(service(&model, None), &database), &model).await;
}

fn on_postgres(service: Service, database: &Database) -> Service {
    service
        .with("REVEILLE_DATABASE__URL", &database.url)
        .with("REVEILLE_VAULT__MASTER_KEYS", "[\"first:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\"]")
}

/// How many tasks fall due in the same second.
const AT_ONCE: usize = 1000;

#[tokio::test]
async fn two_instances_share_a_thousand_tasks_of_one_second_and_run_none_twice() {
    let database = Database::empty().await;
    let mut first = on_postgres(scripted(), &database);
    let mut second = on_postgres(scripted(), &database);
    first.start().await;
    let token = first.admin_token().expect("the first start makes an admin token").to_owned();
    second.start().await;
    let store = open(&database).await;
    create_tasks(&store, machine_now() + TimeDelta::seconds(12)).await;
    let runs = until_all_ended(&store).await;
    assert_eq!(runs.len(), AT_ONCE);
    assert!(runs.iter().all(|run| run.1 == "succeeded"), "{:?}", runs.iter().find(|run| run.1 != "succeeded"));
    let tasks: std::collections::HashSet<Uuid> = runs.iter().map(|run| run.0).collect();
    assert_eq!(tasks.len(), AT_ONCE, "one run for each task");
    let started = [
        Api::new(first.url(), &token).metric("reveille_run_starts_total").await,
        Api::new(second.url(), &token).metric("reveille_run_starts_total").await,
    ];
    assert_eq!(started.iter().sum::<f64>(), AT_ONCE as f64, "none started twice: {started:?}");
    assert!(started.iter().all(|count| *count > 0.0), "both had a part: {started:?}");
    assert!(first.terminate().await.success());
    assert!(second.terminate().await.success());
}

/// A service whose model says hello, and that takes few runs at once, so that one instance can't take them all.
fn scripted() -> Service {
    let service = Service::new().with_config(
        "[llm.models.main]\nprovider = \"scripted\"\nscenario = \"hello.toml\"\n\
         [engine]\nmax_concurrent_runs = 40\nprefetch = 40\n",
    );
    std::fs::write(service.dir.path().join("hello.toml"), "[[steps]]\ntext = \"Hello.\"\n").expect("write hello.toml");
    service
}

async fn open(database: &Database) -> Store {
    let settings: reveille::store::Settings =
        serde_json::from_value(json!({ "url": database.url, "max_connections": 8 })).unwrap();
    Store::open(&settings, std::path::Path::new("."), Clock::system(), |_| {}).await.expect("open the store")
}

async fn create_tasks(store: &Store, at: DateTime<Utc>) {
    let validator = reveille::domain::task::TaskValidator {
        channels: vec![],
        check: std::sync::Arc::new(|_, _, _| {}),
        poll: std::sync::Arc::new(|_, _, _, _| {}),
        seal: std::sync::Arc::new(|_, _, _, _| Ok(())),
    };
    let body = json!({
        "name": "at once", "trigger": { "type": "schedule", "at": at.to_rfc3339() },
        "action": { "instruction": "Say hello." }, "output": null,
    });
    let now = store.clock().now();
    let made = (0..AT_ONCE).map(|n| {
        let tenant = Ok(Tenant::new(format!("tenant-{}", n % 7)).unwrap());
        let draft = Draft::parse(tenant, &body, &validator, now).expect("a good draft");
        let (task, next) = Task::new(new_id(now), draft, now).expect("a good task");
        (task, next.map(|next| next.nominal))
    });
    store.create_tasks(&made.collect::<Vec<_>>()).await.expect("create the tasks");
    assert!(store.clock().now() < at, "all tasks are there before they fall due");
}

async fn until_all_ended(store: &Store) -> Vec<(Uuid, &'static str)> {
    let deadline = std::time::Instant::now() + PATIENCE * 2;
    loop {
        let filter = RunFilter { limit: 2 * AT_ONCE as i64, ..RunFilter::default() };
        let runs = store.list_runs(&Scope::Every, &filter).await.expect("list runs");
        if runs.len() >= AT_ONCE && runs.iter().all(|run| run.state.is_final()) {
            return runs.iter().map(|run| (run.task_id.unwrap(), run.state.as_str())).collect();
        }
        assert!(std::time::Instant::now() < deadline, "{} runs are there", runs.len());
        pause(Duration::from_millis(200)).await;
    }
}
