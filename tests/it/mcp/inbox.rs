//! Questions of MCP servers, the whole way with the real binary: a server asks in the middle of a call, nobody is there,
//! and the call goes on with a person's answer, however long that takes and whichever process is there by then.

use std::time::Duration;

use chrono::{Datelike, TimeDelta, Timelike};
use reveille::base::clock::{machine_now, pause};
use serde_json::{Value, json};
use tokio::time::timeout;
use wiremock::matchers::method;
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use super::harness::{LOOK, PATIENCE};
use crate::agent::wire::fakes::{Wire, calling, said};
use crate::support::api::Api;
use crate::support::binary::{Service, TempDir};
use crate::support::mcp::McpFixture;
use crate::support::postgres_server::PostgresServer;
use crate::support::smtp::{Mail, MailServer};
use crate::support::stepped_clock::{by_the_clock_in, step};
use crate::support::world::MASTER_KEY;

const TOKEN: &str = "the-admin-token-of-the-inbox-tests";
const DAY: i64 = 24 * 3600;
/// The state that the server has its call go on with: as it is, and in base64.
const STATES: [&str; 2] = ["s-prod", "cy1wcm9k"];

/// A model that calls this tool and then says `done`, where the result has it.
async fn model(tool: &'static str, arguments: &'static str, done: &'static str) -> MockServer {
    let server = MockServer::start().await;
    let answer = move |request: &Request| {
        let body: Value = request.body_json().expect("a JSON body");
        let results = Wire::Chat.results(&body);
        let reply = match results.last() {
            None => calling(&[("c1", tool, arguments)]),
            Some((_, told)) if told.contains(done) => said(done),
            Some(_) => said("It came to nothing."),
        };
        ResponseTemplate::new(200).set_body_raw(reply.events(Wire::Chat), "text/event-stream")
    };
    Mock::given(method("POST")).respond_with(answer).mount(&server).await;
    server
}

/// A configuration with the model, and with a server `one` about whose calls nobody is asked beforehand.
fn config(model: &MockServer, fixture: &McpFixture) -> String {
    let free = ["confirm", "visit", "steps", "survey", "pry", "shed"];
    let rules: String =
        free.iter().map(|tool| format!("[approvals.tools.\"one.{tool}\"]\ngate = \"auto\"\n")).collect();
    format!(
        "[llm.models.main]\nprovider = \"openai\"\nbase_url = \"{}/v1\"\nmodel = \"model-7\"\napi_key = \"sk-test-0123456789\"\n\
         [[mcp_servers]]\nname = \"one\"\ncommand = {}\n[approvals]\ntimeout_minutes = 2880\n{rules}",
        model.uri(),
        json!(fixture.command()),
    )
}

/// A task whose agent may use this tool of the server.
fn task(tool: &str, trigger: Value) -> Value {
    json!({
        "tenant_id": "ann", "name": "Deploy", "trigger": trigger,
        "action": { "instruction": "Deploy to prod.", "config": { "tools": [tool] } },
    })
}

fn never() -> Value {
    json!({ "type": "schedule", "cron": "0 0 1 1 *" })
}

/// The requests to a tool of the fixture that asks, without their other fields.
fn rounds(fixture: &McpFixture, tool: &str) -> Vec<Value> {
    fixture.journal().into_iter().filter(|line| line.get(tool).is_some()).collect()
}

fn id_of(value: &Value) -> String {
    value["id"].as_str().unwrap_or_else(|| panic!("no id: {value}")).to_owned()
}

/// Of the mails with these words the one of this number, 0 for the first, once it is there.
async fn mailed(mail: &MailServer, words: &str, number: usize) -> Mail {
    let found = async {
        loop {
            match mail.messages().into_iter().filter(|one| one.text.contains(words)).nth(number) {
                Some(found) => return found,
                None => pause(LOOK).await,
            }
        }
    };
    timeout(PATIENCE, found).await.unwrap_or_else(|_| panic!("no mail {number} with {words}"))
}

/// A page of a service: its status and its text.
async fn page(service: &Service, path: &str) -> (u16, String) {
    let client = reveille::ports::egress::operator_client(Duration::from_secs(30));
    let request = client.get(format!("{}{path}", service.url())).bearer_auth(TOKEN);
    let answer = request.send().await.expect("an answer");
    (answer.status().as_u16(), answer.text().await.expect("a page"))
}

/// Sends the form of a page with its nonce and these fields, as a browser does. Answers the status.
async fn send(service: &Service, path: &str, fields: &[(&str, &str)]) -> u16 {
    let (_, shown) = page(service, path).await;
    let nonce = shown.split_once("name=\"nonce\" value=\"").expect("a form").1;
    let nonce = nonce.split_once('"').expect("its nonce").0;
    let mut form = url::form_urlencoded::Serializer::new(String::new());
    form.append_pair("nonce", nonce).extend_pairs(fields);
    let client = reveille::ports::egress::operator_client(Duration::from_secs(30));
    let request = client.post(format!("{}{path}", service.url())).body(form.finish());
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    let request = request.header("origin", "null").header("sec-fetch-site", "same-origin");
    request.send().await.expect("an answer").status().as_u16()
}

/// The output of a command beside a service, as its admin.
async fn printed(service: &Service, arguments: &[&str]) -> String {
    let mut command = crate::support::binary::reveille(service.dir.path());
    command.args(arguments).env("REVEILLE_URL", service.url()).env("REVEILLE_TOKEN", TOKEN);
    let done = command.output().await.expect("run the binary");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{arguments:?}: {said}");
    String::from_utf8(done.stdout).expect("UTF-8")
}

/// Nothing that is shown of a run has the state of the server in it.
async fn assert_state_is_hidden(service: &Service, run: &str) {
    let places = [
        format!("/v1/runs/{run}"),
        format!("/v1/runs/{run}/transcript"),
        format!("/v1/runs/{run}/explain"),
        format!("/v1/approvals?run_id={run}"),
        "/v1/audit?tenant_id=ann".to_owned(),
        "/v1/deliveries".to_owned(),
    ];
    for place in places {
        let (status, shown) = page(service, &place).await;
        assert_eq!(status, 200, "{place}: {shown}");
        assert!(STATES.iter().all(|state| !shown.contains(state)), "{place}: {shown}");
    }
    assert!(STATES.iter().all(|state| !service.log().contains(state)), "{}", service.log());
}

/// A trigger for an instant in two hours, and the instant.
fn in_two_hours() -> (Value, chrono::DateTime<chrono::Utc>) {
    let at = machine_now() + TimeDelta::hours(2);
    let at = at.with_second(0).and_then(|at| at.with_nanosecond(0)).expect("a full minute");
    let cron = format!("{} {} {} {} *", at.minute(), at.hour(), at.day(), at.month());
    (json!({ "type": "schedule", "cron": cron, "timezone": "UTC" }), at)
}

#[tokio::test]
async fn person_answers_a_server_a_day_later_after_both_instances_were_started_anew() {
    let clock = TempDir::new();
    let file = clock.path().join("clock");
    step(&file, 0);
    let database = PostgresServer::start_with(&by_the_clock_in(&file)).await;
    let (model, fixture) = (model("one__confirm", r#"{"env":"prod"}"#, "deployed to prod").await, McpFixture::new());
    let mail = MailServer::start().await;
    let instance = || {
        let service = Service::new()
            .with("REVEILLE_DATABASE__URL", database.url())
            .with("REVEILLE_VAULT__MASTER_KEYS", json!([MASTER_KEY]).to_string())
            .with("REVEILLE_SERVER__ADMIN_TOKEN", TOKEN)
            .with("REVEILLE_ENGINE__LEASE_SECONDS", "2")
            .with("REVEILLE_CHANNELS__EMAIL__URL", format!("smtp://{}", mail.address()))
            .with("REVEILLE_CHANNELS__EMAIL__FROM", "reveille@example.org")
            .with_config(&config(&model, &fixture));
        by_the_clock_in(&file).into_iter().fold(service, |service, (name, value)| service.with(name, value))
    };
    let mut instances = [instance(), instance()];
    for one in &mut instances {
        one.start().await;
    }
    let api = Api::new(instances[0].url(), TOKEN);
    let recipient = json!({ "timezone": "UTC", "addresses": { "email": "ann@example.org" } });
    api.put("/v1/recipients/ann", &recipient).await;
    let (trigger, at) = in_two_hours();
    let task = id_of(&api.post("/v1/tasks", &task("one.confirm", trigger)).await);
    let ahead = (at - machine_now()).num_seconds() + 1;
    step(&file, ahead);

    // the server asks, and the person is told by whom and where to answer
    let run = id_of(&api.until_run(&task, "waiting_for_input", PATIENCE).await);
    let told = mailed(&mail, "/approvals/", 0).await;
    assert!(told.text.contains("one asks: Deploy to prod?"), "{}", told.text);
    assert!(STATES.iter().all(|state| !told.text.contains(state)), "{}", told.text);
    let link = told.text.split_once("/approvals/").expect("a link").1;
    let link = format!("/approvals/{}", link.split_whitespace().next().expect("its token"));
    let input = api.get(&format!("/v1/runs/{run}")).await["inputs"][0].clone();
    assert_eq!(
        input["server"],
        json!({ "server": "one", "tool": "confirm", "round": 1, "messages": ["Deploy to prod?"], "links": [], "may_decline": true })
    );
    assert_eq!(input["awaited"], json!(["sure"]));
    for arguments in [["run", "show", run.as_str()], ["run", "answer", run.as_str()]] {
        let shown = printed(&instances[1], &arguments).await;
        for part in ["one (confirm) asks:", "Deploy to prod?", "--set sure=…", "--decline"] {
            assert!(shown.contains(part), "{arguments:?} lacks {part}: {shown}");
        }
    }
    assert_state_is_hidden(&instances[0], &run).await;

    // both processes end, and others go on, and a day passes
    for one in &mut instances {
        assert!(one.terminate().await.success());
    }
    for one in &mut instances {
        one.start().await;
    }
    step(&file, ahead + DAY);
    let reminder = mailed(&mail, "/approvals/", 1).await;
    assert!(reminder.text.contains("one asks: Deploy to prod?"), "half of the time is over: {}", reminder.text);
    assert!(STATES.iter().all(|state| !reminder.text.contains(state)), "{}", reminder.text);
    for _ in 0..2 {
        let (status, shown) = page(&instances[1], &link).await;
        assert!(status == 200 && shown.contains("Deploy to prod?"), "{status}: {shown}");
        assert!(STATES.iter().all(|state| !shown.contains(state)), "{shown}");
    }
    assert_eq!(rounds(&fixture, "confirm").len(), 1, "looking answers nothing");
    let status = send(&instances[1], &link, &[("do", "answer:0"), ("0.f0", "true")]).await;
    assert!(matches!(status, 200 | 303), "{status}");

    let api = Api::new(instances[0].url(), TOKEN);
    let ended = api.until_run(&task, "succeeded", PATIENCE).await;
    assert_eq!((id_of(&ended), &ended["output"]), (run.clone(), &json!("deployed to prod")), "{ended:#}");
    let result = mailed(&mail, "deployed to prod", 0).await;
    assert_eq!((result.header("To"), result.header("Subject")), ("ann@example.org", "Deploy"));
    let rounds = rounds(&fixture, "confirm");
    assert_eq!(rounds.len(), 2, "asked, and answered: {rounds:#?}");
    assert_eq!((&rounds[0]["answer"], &rounds[0]["state"]), (&Value::Null, &Value::Null));
    assert_eq!((&rounds[1]["answer"], &rounds[1]["state"]), (&json!({ "sure": true }), &json!("s-prod")));
    assert!(rounds.iter().all(|round| round["key"].is_string()) && rounds[0]["key"] != rounds[1]["key"], "{rounds:#?}");
    let approvals = api.get(&format!("/v1/approvals?run_id={run}")).await;
    let [asked] = approvals["items"].as_array().expect("questions").as_slice() else { panic!("{approvals:#}") };
    assert_eq!((&asked["status"], &asked["answer"]), (&json!("edited"), &json!("accept")), "{asked:#}");
    assert_eq!((&asked["kind"], &asked["decided_via"]), (&json!("input"), &json!("link")), "{asked:#}");
    assert_state_is_hidden(&instances[1], &run).await;
    for one in &mut instances {
        assert!(one.terminate().await.success());
    }
}

/// One instance on SQLite, whose model calls this tool once.
struct Inbox {
    service: Service,
    fixture: McpFixture,
    tool: &'static str,
    _model: MockServer,
}

impl Inbox {
    async fn start(tool: &'static str, name: &'static str, arguments: &'static str, done: &'static str) -> Inbox {
        let (model, fixture) = (model(name, arguments, done).await, McpFixture::new());
        let mut service =
            Service::new().with("REVEILLE_SERVER__ADMIN_TOKEN", TOKEN).with_config(&config(&model, &fixture));
        service.start().await;
        Inbox { service, fixture, tool, _model: model }
    }

    fn api(&self) -> Api {
        Api::new(self.service.url(), TOKEN)
    }

    /// Starts a run, and answers its task once a person is asked.
    async fn ask(&self) -> (String, String) {
        let made = id_of(&self.api().post("/v1/tasks", &task(&format!("one.{}", self.tool), never())).await);
        let run = id_of(&self.api().post(&format!("/v1/tasks/{made}/run"), &json!({})).await);
        self.api().until_run(&made, "waiting_for_input", PATIENCE).await;
        (made, run)
    }

    async fn answer(&self, run: &str, answer: Value) {
        self.api().post(&format!("/v1/runs/{run}/input"), &answer).await;
    }

    /// The output of the task's run, once it has succeeded.
    async fn output(&self, task: &str) -> String {
        let ended = self.api().until_run(task, "succeeded", PATIENCE).await;
        ended["output"].as_str().expect("an output").to_owned()
    }
}

#[tokio::test]
async fn server_is_answered_declined_and_left_alone_over_the_api() {
    let mut inbox = Inbox::start("confirm", "one__confirm", r#"{"env":"prod"}"#, "deployed to prod").await;
    let (task, run) = inbox.ask().await;
    inbox.answer(&run, json!({ "fields": { "sure": true } })).await;
    assert_eq!(inbox.output(&task).await, "deployed to prod");
    let answered = rounds(&inbox.fixture, "confirm");
    assert_eq!(answered.len(), 2, "{answered:#?}");
    assert_ne!(answered[0]["id"], answered[1]["id"], "another request of one connection");

    // a no goes to the server, which asks again; what is stopped goes nowhere
    let (task, run) = inbox.ask().await;
    printed(&inbox.service, &["run", "answer", &run, "--decline"]).await;
    let asked_again = async {
        while rounds(&inbox.fixture, "confirm").len() < 4 {
            pause(LOOK).await;
        }
    };
    timeout(PATIENCE, asked_again).await.expect("the server hears of it");
    inbox.api().until_run(&task, "waiting_for_input", PATIENCE).await;
    let again = rounds(&inbox.fixture, "confirm").pop().expect("a request");
    assert_eq!((&again["answer"], &again["state"]), (&Value::Null, &json!("s-prod")));
    printed(&inbox.service, &["run", "answer", &run, "--cancel"]).await;
    assert_eq!(inbox.output(&task).await, "It came to nothing.");
    assert_eq!(rounds(&inbox.fixture, "confirm").len(), 4, "the call is not made again");
    let approvals = inbox.api().get(&format!("/v1/approvals?run_id={run}")).await;
    let told: Vec<(&Value, &Value, &Value)> = approvals["items"]
        .as_array()
        .expect("questions")
        .iter()
        .map(|one| (&one["status"], &one["answer"], &one["server"]["round"]))
        .collect();
    let (no, stopped) = (json!("approved"), json!("cancelled"));
    assert_eq!(told, [(&stopped, &Value::Null, &json!(2)), (&no, &json!("decline"), &json!(1))]);
    assert!(inbox.service.terminate().await.success());
}

#[tokio::test]
async fn page_of_a_server_is_answered_without_fields_and_never_fetched() {
    let mut inbox = Inbox::start("visit", "one__visit", "{}", "visited").await;
    let (task, run) = inbox.ask().await;
    let input = inbox.api().get(&format!("/v1/runs/{run}")).await["inputs"][0].clone();
    let link = json!({
        "url": "https://login.example.org/device?code=42", "host": "login.example.org", "message": "Log in there.",
    });
    assert_eq!(input["server"]["links"], json!([link]), "{input:#}");
    let shown = printed(&inbox.service, &["run", "answer", &run]).await;
    assert!(shown.contains("login.example.org (not opened): https://login.example.org/device?code=42"), "{shown}");
    printed(&inbox.service, &["run", "answer", &run, "--done"]).await;
    assert_eq!(inbox.output(&task).await, "visited");
    let actions: Vec<Value> = rounds(&inbox.fixture, "visit").iter().map(|round| round["visit"].clone()).collect();
    assert_eq!(actions, [Value::Null, json!("accept")]);
    assert!(inbox.service.terminate().await.success());
}

#[tokio::test]
async fn server_that_asks_twice_is_answered_twice_each_time_with_its_own_state() {
    let mut inbox = Inbox::start("steps", "one__steps", "{}", "s-2 a, b").await;
    let (task, run) = inbox.ask().await;
    inbox.answer(&run, json!({ "message": "a" })).await;
    let second = async {
        loop {
            let run = inbox.api().get(&format!("/v1/runs/{run}")).await;
            match &run["inputs"][0]["server"]["round"] {
                round if *round == 2 => return,
                _ => pause(LOOK).await,
            }
        }
    };
    timeout(PATIENCE, second).await.expect("the second question");
    inbox.answer(&run, json!({ "fields": { "second": "b" } })).await;
    assert_eq!(inbox.output(&task).await, "s-2 a, b");
    let rounds = rounds(&inbox.fixture, "steps");
    let states: Vec<&Value> = rounds.iter().map(|round| &round["state"]).collect();
    assert_eq!(states, [&Value::Null, &json!("s-1"), &json!("s-2 a")]);
    let keys: std::collections::BTreeSet<&str> = rounds.iter().filter_map(|round| round["key"].as_str()).collect();
    assert_eq!(keys.len(), 3, "each round has a key of its own: {rounds:#?}");
    assert!(inbox.service.terminate().await.success());
}

#[tokio::test]
async fn server_that_asks_for_all_kinds_of_fields_in_two_requests_gets_each_under_its_key() {
    let mut inbox = Inbox::start("survey", "one__survey", "{}", "ann@example.org").await;
    let (task, run) = inbox.ask().await;
    let fields = json!({
        "name": "Ann", "email": "ann@example.org", "age": 44, "days": ["mon", "tue"], "color": "r", "loud": false,
        "weight": 1.5, "from": "2026-07-28", "site": "https://example.org/",
    });
    inbox.answer(&run, json!({ "fields": fields })).await;
    assert_eq!(inbox.output(&task).await, "ann@example.org");
    let answered = rounds(&inbox.fixture, "survey").pop().expect("a request");
    let who = json!({ "name": "Ann", "email": "ann@example.org", "age": 44, "days": ["mon", "tue"] });
    let how = json!({
        "color": "r", "loud": false, "weight": 1.5, "from": "2026-07-28", "site": "https://example.org/",
    });
    let accepted = |content: Value| json!({ "action": "accept", "content": content });
    assert_eq!(answered["survey"], json!({ "who": accepted(who), "how": accepted(how) }));
    assert!(inbox.service.terminate().await.success());
}

#[tokio::test]
async fn nobody_is_asked_for_a_password_or_for_a_server_that_only_has_no_time() {
    let mut inbox = Inbox::start("pry", "one__pry", "{}", "mcp_needs_input").await;
    let made = id_of(&inbox.api().post("/v1/tasks", &task("one.pry", never())).await);
    let run = id_of(&inbox.api().post(&format!("/v1/tasks/{made}/run"), &json!({})).await);
    assert_eq!(inbox.output(&made).await, "mcp_needs_input");
    let approvals = inbox.api().get(&format!("/v1/approvals?run_id={run}")).await;
    assert_eq!(approvals["items"], json!([]), "a secret is never asked for in a form");
    assert!(inbox.service.terminate().await.success());

    let mut inbox = Inbox::start("shed", "one__shed", "{}", "done now").await;
    let made = id_of(&inbox.api().post("/v1/tasks", &task("one.shed", never())).await);
    inbox.api().post(&format!("/v1/tasks/{made}/run"), &json!({})).await;
    assert_eq!(inbox.output(&made).await, "done now");
    let rounds = rounds(&inbox.fixture, "shed");
    assert_eq!((rounds.len(), &rounds[1]["state"]), (2, &json!("s-shed")));
    assert_eq!(rounds[0]["key"], rounds[1]["key"], "the server asked for the same request");
    assert!(inbox.service.terminate().await.success());
}
