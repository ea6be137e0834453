//! The whole way with the real binary: a run asks about two calls at once, a person answers, what was agreed to is done
//! once and nothing else, whichever instance goes on and whatever dies in between.

use std::time::Duration;

use serde_json::{Value, json};
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use super::browser::drive;
use crate::support::api::Api;
use crate::support::binary::Service;
use crate::support::postgres::Database;
use crate::support::servers::chromium;
use crate::support::smtp::{Mail, MailServer};

const PATIENCE: Duration = Duration::from_secs(60);

/// An order is placed and a room is told, both after a person's consent; then the answer.
const SCENARIO: &str = r#"
[[steps]]
when = "place the order"
turn = 1
text = "I order, and tell the room."
[[steps.calls]]
tool = "http_send"
args = { url = "SINK/orders", method = "POST", body = { amount = 5 } }
[[steps.calls]]
tool = "http_send"
args = { url = "SINK/rooms", method = "POST", body = { text = "ordered" } }

[[steps]]
when = "place the order"
turn = 2
text = "Done what was allowed."

[[steps]]
text = "yes, approve everything"
"#;

/// Takes whatever is sent.
async fn sink() -> MockServer {
    let sink = MockServer::start().await;
    for place in ["/orders", "/rooms"] {
        let taken = ResponseTemplate::new(200).set_body_json(json!({ "taken": place }));
        Mock::given(method("POST")).and(path(place)).respond_with(taken).mount(&sink).await;
    }
    sink
}

/// Requests that came, the path and the body.
async fn sent(sink: &MockServer) -> Vec<(String, Value)> {
    let of = |request: Request| (request.url.path().to_owned(), request.body_json().unwrap());
    sink.received_requests().await.unwrap().into_iter().map(of).collect()
}

fn service(sink: &MockServer) -> Service {
    let service = Service::new().with_config(
        "[llm.models.main]\nprovider = \"scripted\"\nscenario = \"scenario.toml\"\n\
         [egress]\nallow = [\"127.0.0.1:*\"]\n\
         [engine]\nlease_seconds = 2.0\n",
    );
    let scenario = SCENARIO.replace("SINK", &sink.uri());
    std::fs::write(service.dir.path().join("scenario.toml"), scenario).expect("write the scenario");
    service
}

fn on_postgres(service: Service, database: &Database) -> Service {
    service
        .with("REVEILLE_DATABASE__URL", &database.url)
        .with("REVEILLE_VAULT__MASTER_KEYS", "[\"first:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=\"]")
}

fn task(instruction: &str) -> Value {
    json!({
        "tenant_id": "ann", "name": "Orders", "output": null, "action": { "instruction": instruction },
        "trigger": { "type": "schedule", "interval": "1h" },
    })
}

/// Runs a task of this instruction now; answers its id.
async fn run_now(api: &Api, instruction: &str) -> String {
    run_of(api, &task(instruction)).await
}

async fn run_of(api: &Api, task: &Value) -> String {
    let task = api.post("/v1/tasks", task).await;
    let id = task["id"].as_str().unwrap().to_owned();
    api.post(&format!("/v1/tasks/{id}/run"), &json!({})).await;
    id
}

/// The questions of a run, in the order of its calls.
async fn questions(api: &Api, task_id: &str) -> Vec<Value> {
    api.until_run(task_id, "pending_approval", PATIENCE).await;
    let asked = api.get(&format!("/v1/approvals?task_id={task_id}&status=pending")).await;
    let mut asked = asked["items"].as_array().unwrap().clone();
    asked.sort_by_key(|approval| approval["details"]["url"].as_str().unwrap().to_owned());
    asked
}

async fn decide(api: &Api, approval: &Value, mut decision: Value) -> Value {
    decision["digest"] = approval["digest"].clone();
    api.post(&format!("/v1/approvals/{}/decision", approval["id"].as_str().unwrap()), &decision).await
}

#[tokio::test]
async fn one_call_is_edited_one_is_cancelled_and_the_run_goes_on_with_both_answers() {
    let sink = sink().await;
    let mut service = service(&sink);
    service.start().await;
    let api = Api::of(&service);
    let task = run_now(&api, "Place the order").await;
    let asked = questions(&api, &task).await;
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0]["batch_id"], asked[1]["batch_id"]);
    assert_eq!(asked[0]["action_summary"], format!("POST to {}/orders", sink.uri()));
    assert!(sent(&sink).await.is_empty());
    let mut other = asked[0]["details"].clone();
    other["body"] = json!({ "amount": 3 });
    let edited = decide(&api, &asked[0], json!({ "decision": "edit", "modifications": other })).await;
    assert_eq!(edited["status"], "edited");
    decide(&api, &asked[1], json!({ "decision": "cancel", "comment": "not that room" })).await;
    let run = api.until_run(&task, "succeeded", PATIENCE).await;
    assert_eq!(run["output"], "Done what was allowed.");
    assert_eq!(sent(&sink).await, [("/orders".to_owned(), json!({ "amount": 3 }))]);
    let transcript = api.get(&format!("/v1/runs/{}/transcript", run["id"].as_str().unwrap())).await;
    let results = || transcript["items"].as_array().unwrap().iter().filter(|entry| entry["role"] == "tool");
    let notices = results().filter_map(|entry| entry["notices"].as_array()).flatten().map(|notice| &notice["text"]);
    let told: Vec<&str> = notices.chain(results().map(|entry| &entry["content"])).filter_map(Value::as_str).collect();
    assert_eq!(told.len(), 3);
    assert!(told.iter().any(|text| text.starts_with("The user changed the arguments before approving: ")), "{told:?}");
    assert!(told.contains(&"User cancelled this action.\nTheir comment: not that room"), "{told:?}");
    assert!(service.terminate().await.success());
}

/// The newest mail with this subject, once it is there.
async fn mail(server: &MailServer, subject: &str) -> Mail {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        let mails = server.messages();
        let subjects: Vec<String> = mails.iter().map(|mail| mail.header("Subject").to_owned()).collect();
        if let Some(found) = mails.into_iter().find(|mail| mail.header("Subject") == subject) {
            return found;
        }
        assert!(std::time::Instant::now() < deadline, "no mail `{subject}` among {subjects:?}");
        reveille::base::clock::pause(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn link_of_a_received_mail_is_opened_on_a_phone_and_the_answer_is_mailed() {
    let (sink, server) = (sink().await, MailServer::start().await);
    let mut service = service(&sink)
        .with("REVEILLE_CHANNELS__EMAIL__URL", format!("smtp://{}", server.address()))
        .with("REVEILLE_CHANNELS__EMAIL__FROM", "reveille@example.org");
    service.start().await;
    let api = Api::of(&service);
    let recipient = json!({ "timezone": "Europe/Berlin", "addresses": { "email": "ann@example.org" } });
    api.put("/v1/recipients/ann", &recipient).await;
    let mut wanted = task("Place the order");
    wanted.as_object_mut().unwrap().remove("output");
    let id = run_of(&api, &wanted).await;

    let question = mail(&server, "Orders asks for your approval of 2 things").await;
    assert_eq!(question.header("To"), "ann@example.org");
    let link =
        question.text.lines().find_map(|line| line.split_once("/approvals/")).expect("a link").1.trim().to_owned();
    // as mail scanners do, before the person comes
    let scanner = reveille::ports::egress::operator_client(Duration::from_secs(5));
    for _ in 0..20 {
        let place = format!("{}/approvals/{link}", service.url());
        assert!(scanner.get(&place).send().await.unwrap().status().is_success());
        assert!(scanner.head(&place).send().await.unwrap().status().is_success());
    }
    assert_eq!(questions(&api, &id).await.len(), 2, "looking decides nothing");
    let images = service.dir.path().join("images").display().to_string();
    let pages = json!({ "link": format!("/approvals/{link}"), "field": "#i0f0", "typed": "3" });
    let with = json!({ "chromium": chromium(), "images": images, "base": service.url(), "pages": pages });
    assert_eq!(drive("story.mjs", &with).await, Ok(()));

    let run = api.until_run(&id, "succeeded", PATIENCE).await;
    let answer = mail(&server, "Orders").await;
    assert_eq!(answer.text.trim(), "Done what was allowed.");
    assert_eq!(sent(&sink).await, [("/orders".to_owned(), json!({ "amount": 3 }))]);
    let audit = api.get("/v1/audit?tenant_id=ann").await;
    let by: Vec<(&str, &str)> = audit["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| (entry["action"].as_str().unwrap(), entry["actor"].as_str().unwrap()))
        .collect();
    assert_eq!(
        by,
        [
            ("approval.cancelled", "recipient:ann"),
            ("approval.edited", "recipient:ann"),
            ("approval.asked", "service"),
            ("approval.asked", "service"),
        ]
    );
    assert_eq!(run["output"], "Done what was allowed.");
    assert!(service.terminate().await.success());
}

#[tokio::test]
async fn completion_token_of_another_run_decides_nothing() {
    let sink = sink().await;
    let mut service = service(&sink);
    service.start().await;
    let api = Api::of(&service);
    let task = run_now(&api, "Place the order").await;
    assert_eq!(questions(&api, &task).await.len(), 2);
    let other = run_now(&api, "yes, approve everything").await;
    api.until_run(&other, "succeeded", PATIENCE).await;
    assert_eq!(questions(&api, &task).await.len(), 2, "both are open still");
    assert!(sent(&sink).await.is_empty());
    assert!(service.terminate().await.success());
}

#[tokio::test]
async fn one_instance_asks_and_dies_and_another_goes_on() {
    let sink = sink().await;
    let database = Database::empty().await;
    let mut first = on_postgres(service(&sink), &database);
    first.start().await;
    let token = first.admin_token().expect("the first start makes an admin token").to_owned();
    let api = Api::new(first.url(), &token);
    let task = run_now(&api, "Place the order").await;
    let asked = questions(&api, &task).await;
    first.kill().await;
    let mut second = on_postgres(service(&sink), &database);
    second.start().await;
    let api = Api::new(second.url(), &token);
    for approval in &asked {
        decide(&api, approval, json!({ "decision": "approve" })).await;
    }
    api.until_run(&task, "succeeded", PATIENCE).await;
    let mut places: Vec<String> = sent(&sink).await.into_iter().map(|(place, _)| place).collect();
    places.sort();
    assert_eq!(places, ["/orders", "/rooms"], "each once");
    assert!(second.terminate().await.success());
}

#[tokio::test]
async fn decision_outlives_the_process_that_took_it_and_nothing_is_done_twice() {
    let sink = sink().await;
    let mut service = service(&sink);
    service.start().await;
    let token = service.admin_token().expect("the first start makes an admin token").to_owned();
    let api = Api::new(service.url(), &token);
    let task = run_now(&api, "Place the order").await;
    let asked = questions(&api, &task).await;
    decide(&api, &asked[0], json!({ "decision": "approve" })).await;
    decide(&api, &asked[1], json!({ "decision": "approve" })).await;
    service.kill().await;
    service.start().await;
    let api = Api::new(service.url(), &token);
    api.until_run(&task, "succeeded", PATIENCE).await;
    let mut places: Vec<String> = sent(&sink).await.into_iter().map(|(place, _)| place).collect();
    places.sort();
    // what had begun when the process died is called unknown, and not repeated
    assert!(places.windows(2).all(|pair| pair[0] != pair[1]), "{places:?}");
    let asked = api.get(&format!("/v1/approvals?task_id={task}")).await;
    assert!(asked["items"].as_array().unwrap().iter().all(|approval| approval["status"] == "approved"));
    assert!(service.terminate().await.success());
}
