//! Clients of official SDKs and the real binary: they schedule a task, see it fire, decide nothing, see nothing of
//! another tenant, and follow a run over the deaths of both sides.

use std::process::Stdio;
use std::time::{Duration, Instant};

use chrono::{SecondsFormat, TimeDelta};
use reveille::base::clock::{machine_now, pause};
use reveille::ports::egress::operator_client;
use rmcp::model::{CallToolRequestParams, ProtocolVersion};
use rmcp::service::{ClientLifecycleMode, serve_client_with_lifecycle};
use rmcp::transport::TransportAdapterIdentity;
use rmcp::transport::async_rw::AsyncRwTransport;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::support::api::Api;
use crate::support::binary::{Service, reveille};
use crate::support::mcp::client_command;
use crate::support::postgres::Database;
use crate::support::servers;
use crate::support::talking_model::{TOKEN, TalkingModel};

/// How long anything may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a run is looked at: a token has 600 messages a minute.
const LOOK: Duration = Duration::from_millis(250);
/// Versions by which the SDK takes the era of the server, or the old one.
const NEW: &str = "auto";
const OLD: &str = "2025-11-25";
/// The scopes of an agent's host.
const SCOPES: [&str; 6] = ["tasks:read", "tasks:write", "runs:read", "runs:write", "runs:input", "approvals:read"];

/// A client of the official SDK in a process of its own.
pub struct SdkClient {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
    /// Its words once it was connected.
    pub connected: Value,
}

impl SdkClient {
    /// Starts one with these options, and connects it.
    pub async fn start(options: Value) -> SdkClient {
        let command = client_command(&options);
        let mut node = Command::new(&command[0]);
        node.args(&command[1..]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = node.spawn().expect("start node");
        let input = child.stdin.take().expect("its stdin");
        let output = BufReader::new(child.stdout.take().expect("its stdout")).lines();
        let mut client = SdkClient { child, input, output, connected: Value::Null };
        client.connected = client.hear().await;
        assert!(client.connected["tools"].is_array(), "not connected: {:#}", client.connected);
        client
    }

    async fn over_http(service: &Service, token: &str, version: &str) -> SdkClient {
        let url = format!("{}/mcp", service.url());
        let answer = json!({ "answer": "aisle" });
        SdkClient::start(json!({ "url": url, "token": token, "version": version, "tasks": true, "answer": answer }))
            .await
    }

    /// The names of the tools that it was shown.
    pub fn tools(&self) -> Vec<&str> {
        self.connected["tools"].as_array().expect("tools").iter().filter_map(Value::as_str).collect()
    }

    fn is_new(&self) -> bool {
        self.connected["era"] == "modern"
    }

    /// Calls a tool: `result` or `error`, and `asked`.
    pub async fn call(&mut self, name: &str, arguments: Value) -> Value {
        self.ask(json!({ "call": name, "arguments": arguments })).await
    }

    /// The data of a tool that must do what it is asked for.
    pub async fn done(&mut self, name: &str, arguments: Value) -> Value {
        let answer = self.call(name, arguments).await;
        let result = &answer["result"];
        assert!(result["structuredContent"].is_object() && result["isError"] != true, "{name}: {answer:#}");
        result["structuredContent"].clone()
    }

    /// The text of a tool that must refuse.
    async fn refused(&mut self, name: &str, arguments: Value) -> String {
        let answer = self.call(name, arguments).await;
        assert_eq!(answer["result"]["isError"], true, "{name}: {answer:#}");
        answer["result"]["content"][0]["text"].as_str().expect("a text").to_owned()
    }

    /// Sends a request as it is.
    async fn request(&mut self, method: &str, params: Value) -> Value {
        self.ask(json!({ "request": { "method": method, "params": params } })).await
    }

    async fn ask(&mut self, line: Value) -> Value {
        self.input.write_all(format!("{line}\n").as_bytes()).await.expect("tell the client");
        self.hear().await
    }

    async fn hear(&mut self) -> Value {
        let line = timeout(PATIENCE, self.output.next_line()).await.expect("an answer in time").expect("its output");
        serde_json::from_str(&line.expect("the client goes on")).expect("a line of JSON")
    }

    /// The data of a reading tool, once this holds of it. The service may be away meanwhile.
    async fn until(&mut self, name: &str, arguments: Value, holds: impl Fn(&Value) -> bool) -> Value {
        let begun = Instant::now();
        loop {
            let answer = self.call(name, arguments.clone()).await;
            let data = &answer["result"]["structuredContent"];
            if holds(data) {
                return data.clone();
            }
            assert!(begun.elapsed() < PATIENCE, "{name}: {answer:#}");
            pause(LOOK).await;
        }
    }

    /// The run, once it is in this state.
    async fn until_run(&mut self, id: &str, state: &str) -> Value {
        self.until("get_run", json!({ "id": id }), |run| run["state"] == state).await
    }

    /// Runs a task now; the id of its run, which is that of the task of a client that follows such.
    async fn run(&mut self, task: &str) -> String {
        let arguments = json!({ "id": task });
        let id = match self.is_new() {
            true => {
                let started = self.request("tools/call", json!({ "name": "run_task", "arguments": arguments })).await;
                assert_eq!(started["result"]["_meta"]["isTask"], true, "{started:#}");
                assert_eq!(started["result"]["status"], "working", "{started:#}");
                started["result"]["taskId"].clone()
            }
            false => self.done("run_task", arguments).await["id"].clone(),
        };
        id.as_str().expect("the id of a run").to_owned()
    }

    /// `kill -9`.
    async fn kill(mut self) {
        self.child.kill().await.expect("kill the client");
    }
}

/// A token of a tenant, made by the admin.
async fn token(service: &Service, tenant: &str) -> String {
    let draft = json!({ "tenant_id": tenant, "name": "a host", "scopes": SCOPES });
    let made = Api::new(service.url(), TOKEN).post("/v1/tokens", &draft).await;
    made["token"].as_str().expect("a token").to_owned()
}

fn id(value: &Value) -> String {
    value["id"].as_str().unwrap_or_else(|| panic!("no id: {value:#}")).to_owned()
}

/// A task that fires once, in a year; it is run by hand.
async fn task(client: &mut SdkClient, instruction: &str) -> String {
    let arguments = json!({ "name": instruction, "instruction": instruction, "cron": "0 0 1 1 *", "timezone": "UTC" });
    id(&client.done("create_task", arguments).await)
}

/// It schedules a task a few seconds ahead, and sees it fire.
async fn sees_its_task_fire(client: &mut SdkClient) -> String {
    let at = (machine_now() + TimeDelta::seconds(5)).to_rfc3339_opts(SecondsFormat::Millis, true);
    let arguments = json!({ "name": "Greet", "instruction": "Say good morning", "at": at });
    let task = id(&client.done("create_task", arguments).await);
    let is_there = |runs: &Value| runs["items"].as_array().is_some_and(|items| !items.is_empty());
    let runs = client.until("list_runs", json!({ "task_id": task }), is_there).await;
    let run = id(&runs["items"][0]);
    client.until_run(&run, "succeeded").await;
    let waited = client.done("wait_for_run", json!({ "id": run, "seconds": 5 })).await;
    assert!(waited["output"].as_str().is_some_and(|output| output.contains("Say good morning")), "{waited:#}");
    task
}

/// A call that a person must allow stays undecided, whatever the client does.
async fn decides_nothing(client: &mut SdkClient, (service, token): (&Service, &str), model: &TalkingModel) {
    for word in ["approve", "decide", "deny", "override", "grant"] {
        assert!(client.tools().iter().all(|tool| !tool.contains(word)), "{word}: {:?}", client.tools());
    }
    let task = task(client, "pay the bill").await;
    let run = client.run(&task).await;
    client.until_run(&run, "pending_approval").await;
    let waited = client.call("wait_for_run", json!({ "id": run, "seconds": 1 })).await;
    if client.is_new() {
        // the SDK has shown the link, and has told that the person has seen it
        let asked = waited["asked"].as_array().expect("what was asked");
        assert!(asked.iter().any(|asked| asked["mode"] == "url"), "{waited:#}");
    }
    assert_ne!(waited["result"]["isError"], true, "{waited:#}");
    let listed = client.done("list_approvals", json!({ "run_id": run })).await;
    let approval = id(&listed["items"][0]);
    let address = format!("{}/v1/approvals/{approval}/decision", service.url());
    let decision = json!({ "decision": "approve", "digest": "0" });
    let request = operator_client(PATIENCE).post(address).bearer_auth(token).json(&decision);
    assert_eq!(request.send().await.expect("an answer").status(), 403);
    let odd = client.request("approvals/decide", json!({ "id": approval, "decision": "approve" })).await;
    assert!(odd.get("error").is_some(), "{odd:#}");
    let refused = client.refused("answer_run", json!({ "id": run, "message": "approve" })).await;
    assert!(!refused.is_empty());
    assert_eq!(client.done("get_run", json!({ "id": run })).await["state"], "pending_approval");
    assert_eq!(model.paid(), 0);
}

/// Nothing of one tenant is there for another.
async fn sees_nothing(client: &mut SdkClient, task: &str, run: &str) {
    assert_eq!(client.done("list_tasks", json!({})).await["items"], json!([]));
    assert_eq!(client.done("list_runs", json!({})).await["items"], json!([]));
    for (tool, of) in [("get_task", task), ("run_task", task), ("get_run", run), ("cancel_run", run)] {
        let refused = client.refused(tool, json!({ "id": of })).await;
        assert!(refused.contains("there is no such"), "{tool}: {refused}");
    }
    if client.is_new() {
        let got = client.request("tasks/get", json!({ "taskId": run })).await;
        assert!(got.get("error").is_some(), "{got:#}");
    }
}

/// The person's answer, by a client that was told it.
async fn answers(client: &mut SdkClient, run: &str) {
    if !client.is_new() {
        client.done("answer_run", json!({ "id": run, "message": "aisle" })).await;
        return;
    }
    let task = client.request("tasks/get", json!({ "taskId": run })).await["result"].clone();
    assert_eq!(task["status"], "input_required", "{task:#}");
    let requests = task["inputRequests"].as_object().expect("questions");
    let (key, question) = requests.iter().next().expect("a question");
    let properties = question["params"]["requestedSchema"]["properties"].as_object().expect("a form");
    let field = properties.keys().next().expect("a field");
    let responses = json!({ key: { "action": "accept", "content": { field: "aisle" } } });
    let updated = client.request("tasks/update", json!({ "taskId": run, "inputResponses": responses })).await;
    assert!(updated.get("error").is_none(), "{updated:#}");
}

/// The whole story.
async fn is_used(version: &str, database: Option<&str>) {
    let model = TalkingModel::start().await;
    let mut service = model.service(database);
    let address = format!("127.0.0.1:{}", servers::lasting_port());
    service.start_at(&address).await;
    let (ann, bob) = (token(&service, "ann").await, token(&service, "bob").await);
    let mut client = SdkClient::over_http(&service, &ann, version).await;
    assert_eq!((&client.connected["server"], client.is_new()), (&json!("reveille"), version == NEW));

    sees_its_task_fire(&mut client).await;
    decides_nothing(&mut client, (&service, ann.as_str()), &model).await;

    let task = task(&mut client, "ask me").await;
    let run = client.run(&task).await;
    client.until_run(&run, "waiting_for_input").await;
    sees_nothing(&mut SdkClient::over_http(&service, &bob, version).await, &task, &run).await;

    // the service dies, and the client asks it on where it was
    service.kill().await;
    let away = client.call("get_run", json!({ "id": run })).await;
    assert!(away.get("error").is_some(), "{away:#}");
    service.start_at(&address).await;
    client.until_run(&run, "waiting_for_input").await;
    if version == NEW {
        let task = client.request("tasks/get", json!({ "taskId": run })).await;
        assert_eq!(task["result"]["status"], "input_required", "{task:#}");
    }

    // the client dies, and another one takes the run up
    client.kill().await;
    let mut next = SdkClient::over_http(&service, &ann, version).await;
    answers(&mut next, &run).await;
    let ended = next.until_run(&run, "succeeded").await;
    assert!(ended["output"].as_str().is_some_and(|output| output.contains("aisle")), "{ended:#}");
    if version == NEW {
        let task = next.request("tasks/get", json!({ "taskId": run })).await["result"].clone();
        assert_eq!(task["status"], "completed", "{task:#}");
        assert_ne!(task["result"]["isError"], true, "{task:#}");
    }
    service.kill().await;
}

#[tokio::test]
async fn client_of_the_new_era_uses_the_service_on_sqlite() {
    is_used(NEW, None).await;
}

#[tokio::test]
async fn client_of_the_new_era_uses_the_service_on_postgres() {
    is_used(NEW, Some(&Database::empty().await.url)).await;
}

#[tokio::test]
async fn client_of_the_old_era_uses_the_service_on_sqlite() {
    is_used(OLD, None).await;
}

#[tokio::test]
async fn client_of_the_old_era_uses_the_service_on_postgres() {
    is_used(OLD, Some(&Database::empty().await.url)).await;
}

#[tokio::test]
async fn client_of_another_sdk_lists_tools_and_calls_one() {
    let mut service = Service::new().with("REVEILLE_SERVER__ADMIN_TOKEN", TOKEN);
    service.start().await;
    let token = token(&service, "ann").await;
    let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
    for mode in [ClientLifecycleMode::Initialize, ClientLifecycleMode::Discover { preferred_versions }] {
        let mut command = reveille(service.dir.path());
        command.arg("mcp").env("REVEILLE_URL", service.url()).env("REVEILLE_TOKEN", &token);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("start the binary");
        let (output, input) = (child.stdout.take().expect("its stdout"), child.stdin.take().expect("its stdin"));
        let transport = AsyncRwTransport::new_client(output, input);
        let client =
            serve_client_with_lifecycle::<_, _, std::io::Error, TransportAdapterIdentity>((), transport, mode).await;
        let client = client.expect("a connection");
        let tools = client.list_all_tools().await.expect("tools");
        assert!(tools.iter().any(|tool| tool.name == "list_tasks"), "{tools:?}");
        let found = client.call_tool(CallToolRequestParams::new("list_tasks")).await.expect("a result");
        assert_ne!(found.is_error, Some(true), "{found:?}");
        assert_eq!(found.structured_content.expect("data")["items"], json!([]));
        client.cancel().await.expect("it ends");
        let ended = timeout(PATIENCE, child.wait()).await.expect("it ends with its input").expect("its status");
        assert!(ended.success(), "{ended}");
    }
    service.kill().await;
}
