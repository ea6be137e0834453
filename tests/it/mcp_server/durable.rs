//! Long work of MCP clients: runs as tasks, and what needs a person.

use reveille::domain::approval::{ApprovalChoice, Proposal, QuestionKind, ServerAnswer};
use reveille::domain::run::RunState;
use serde_json::{Value, json};
use uuid::Uuid;

use super::harness::McpHost;
use crate::api::service::{Api, daily_of};
use crate::approvals::harness::{AskingRun, ask, fetch, note, note_of, post};
use crate::approvals::server_answers::visit;
use crate::approvals::servers::survey;
use crate::support::app::Instance;
use crate::support::world::{ADMIN, World};

crate::api::service::on_both! {
    started_run_is_a_task_until_it_is_cancelled
    client_that_follows_no_tasks_gets_the_run
    question_is_a_form_for_a_client_that_may_answer_it
    answers_to_several_questions_come_one_by_one
    answer_that_is_not_taken_now_is_refused
    question_without_a_simple_form_is_answered_in_words
    run_with_many_questions_shows_the_first_twenty
    question_of_a_server_is_a_form_that_says_who_asks
    page_of_a_server_is_a_link_that_no_client_accepts
    server_is_told_no_by_a_client_that_declines
    approval_is_a_link_that_only_shows
    waiting_call_asks_and_goes_on_with_its_state
    approvals_are_looked_at_and_never_decided
}

crate::support::world::on_both! {
    run_is_followed_from_one_instance_to_the_next
}

/// A question for the text of a note, or for the room as well.
fn input(arguments: Value) -> Proposal {
    let options = vec![ApprovalChoice::Edit, ApprovalChoice::Cancel];
    Proposal { kind: QuestionKind::Input, options, summary: "Which text?".into(), ..note_of(arguments) }
}

fn lobby() -> Value {
    json!({ "room": "lobby" })
}

/// A client with a token of ann's that may do this.
async fn host(api: &Api, scopes: &[&str]) -> McpHost {
    McpHost::new(api.app.clone(), &api.token("ann", scopes).await)
}

async fn task_of(host: &McpHost, run: Uuid) -> Value {
    host.result("tasks/get", json!({ "taskId": run })).await
}

async fn update(host: &McpHost, run: Uuid, responses: Value) {
    let answer = host.result("tasks/update", json!({ "taskId": run, "inputResponses": responses })).await;
    assert_eq!(answer, json!({ "resultType": "complete" }));
}

/// The key of the request for the question at this place.
fn key(kind: &str, asked: &AskingRun, index: usize) -> String {
    format!("{kind}:{}", asked.approvals[index].id)
}

fn keys(requests: &Value) -> Vec<&str> {
    requests.as_object().map(|requests| requests.keys().map(String::as_str).collect()).unwrap_or_default()
}

fn accept(content: Value) -> Value {
    json!({ "action": "accept", "content": content })
}

fn text_of(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text in {result:#}"))
}

async fn started_run_is_a_task_until_it_is_cancelled(api: Api) {
    let task = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    let host = host(&api, &["tasks:write", "runs:read", "runs:write"]).await.with_tasks();
    let started = host.tool("run_task", json!({ "id": task["id"] })).await;
    let mut fields = keys(&started);
    fields.retain(|field| *field != "statusMessage" && *field != "_meta");
    fields.sort_unstable();
    let expected = ["createdAt", "lastUpdatedAt", "pollIntervalMs", "resultType", "status", "taskId", "ttlMs"];
    assert_eq!(fields, expected, "{started:#}");
    assert_eq!((&started["resultType"], &started["status"]), (&json!("task"), &json!("working")));
    assert!(started["ttlMs"].as_i64().unwrap() > 0 && started["pollIntervalMs"].as_i64().unwrap() > 0);
    let run: Uuid = started["taskId"].as_str().unwrap().parse().unwrap();

    let working = task_of(&host, run).await;
    assert_eq!((&working["resultType"], &working["status"]), (&json!("complete"), &json!("working")), "{working:#}");
    for odd in ["result", "error", "inputRequests", "requestState"] {
        assert!(working.get(odd).is_none(), "{working:#}");
    }
    let bob = McpHost::new(api.app.clone(), &api.token("bob", &["*"]).await).with_tasks();
    for method in ["tasks/get", "tasks/cancel", "tasks/update"] {
        for (host, id) in [(&bob, run.to_string()), (&host, Uuid::from_u128(7).to_string()), (&host, "7".into())] {
            let (_, code, error) = host.error(method, json!({ "taskId": id, "inputResponses": {} })).await;
            assert_eq!(code, -32602, "{method} {id}: {error}");
        }
    }
    let reader = self::host(&api, &["runs:read"]).await.with_tasks();
    let (_, code, error) = reader.error("tasks/cancel", json!({ "taskId": run })).await;
    assert!(code == -32000 && error["message"].as_str().unwrap().contains("runs:write"), "{error}");
    for _ in 0..2 {
        let cancelled = host.result("tasks/cancel", json!({ "taskId": run })).await;
        assert_eq!(cancelled, json!({ "resultType": "complete" }));
        assert_eq!(task_of(&host, run).await["status"], "cancelled");
    }
}

async fn client_that_follows_no_tasks_gets_the_run(api: Api) {
    let task = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    let plain = host(&api, &["tasks:write", "runs:read", "runs:write"]).await;
    for method in ["tasks/get", "tasks/update", "tasks/cancel"] {
        let (status, code, error) = plain.error(method, json!({ "taskId": "7", "inputResponses": {} })).await;
        assert_eq!((status, code), (400, -32021), "{error}");
        let required = &error["data"]["requiredCapabilities"]["extensions"];
        assert_eq!(*required, json!({ "io.modelcontextprotocol/tasks": {} }));
    }
    let started = plain.tool("run_task", json!({ "id": task["id"] })).await;
    let run = started["structuredContent"]["id"].as_str().expect("the run").to_owned();
    assert!(text_of(&started).contains("wait_for_run") && text_of(&started).contains(&run), "{started:#}");
    let waited = plain.done("wait_for_run", json!({ "id": run, "seconds": 1 })).await;
    assert_eq!(waited["state"], "queued", "{waited:#}");
    for seconds in [0, 26] {
        let refused = plain.refused("wait_for_run", json!({ "id": run, "seconds": seconds })).await;
        assert!(refused.contains("seconds"), "{refused}");
    }

    // a token that can't read runs could not follow the task
    let blind = host(&api, &["tasks:write"]).await.with_tasks();
    let started = blind.tool("run_task", json!({ "id": task["id"] })).await;
    assert!(started["structuredContent"]["id"].is_string() && text_of(&started).contains("runs:read"), "{started:#}");
}

async fn question_is_a_form_for_a_client_that_may_answer_it(api: Api) {
    let asked = ask(&api, "ann", vec![input(lobby())]).await;
    let run = asked.run;
    let may = ["runs:read", "runs:input"];
    for other in [
        host(&api, &["runs:read"]).await.with_tasks().with_forms(),
        host(&api, &may).await.with_tasks(),
        host(&api, &may).await.with_tasks().with_links(),
    ] {
        let task = task_of(&other, run).await;
        assert_eq!(task["status"], "working", "{task:#}");
        assert!(task.get("inputRequests").is_none() && task["statusMessage"].is_string(), "{task:#}");
    }
    let host = host(&api, &may).await.with_tasks().with_forms();
    let task = task_of(&host, run).await;
    assert_eq!(task["status"], "input_required");
    let key = key("input", &asked, 0);
    assert_eq!(keys(&task["inputRequests"]), [key.as_str()]);
    let request = &task["inputRequests"][&key];
    assert_eq!((&request["method"], &request["params"]["mode"]), (&json!("elicitation/create"), &json!("form")));
    assert!(request["params"]["message"].as_str().unwrap().starts_with("Which text?"), "{request:#}");
    let schema = &request["params"]["requestedSchema"];
    assert_eq!(
        *schema,
        json!({ "type": "object", "properties": { "text": { "type": "string" } }, "required": ["text"] })
    );

    update(&host, run, json!({ &key: { "action": "decline" }, "other": { "action": "accept" } })).await;
    update(&host, run, json!({ &key: { "action": "cancel" } })).await;
    assert_eq!(asked.statuses(&api).await, ["pending"], "it stays with the person");
    for (odd, path) in [(accept(json!({ "text": "x".repeat(31) })), Some("/fields/text")), (json!("yes"), None)] {
        let params = json!({ "taskId": run, "inputResponses": { &key: odd } });
        let (_, code, error) = host.error("tasks/update", params).await;
        assert_eq!((code, error["data"]["errors"][0]["pointer"].as_str()), (-32602, path), "{error}");
    }
    for missing in [json!({ "taskId": run }), json!({ "taskId": run, "inputResponses": null })] {
        assert_eq!(host.error("tasks/update", missing).await.1, -32602);
    }
    let reader = self::host(&api, &["runs:read"]).await.with_tasks().with_forms();
    let answers = json!({ &key: accept(json!({ "text": "It is green" })) });
    let (_, code, error) = reader.error("tasks/update", json!({ "taskId": run, "inputResponses": answers })).await;
    assert!(code == -32000 && error["message"].as_str().unwrap().contains("runs:input"), "{error}");
    assert_eq!(asked.statuses(&api).await, ["pending"]);

    update(&host, run, answers.clone()).await;
    let answered = asked.only(&api).await;
    assert_eq!(answered.modifications, Some(json!({ "room": "lobby", "text": "It is green" })));
    assert!(answered.decided_by.unwrap().starts_with("token:"));
    assert_eq!(asked.run_state(&api).await, RunState::Queued);
    assert_eq!(task_of(&host, run).await["status"], "working");
    update(&host, run, answers).await;
}

async fn answers_to_several_questions_come_one_by_one(api: Api) {
    let asked = ask(&api, "ann", vec![input(lobby()), input(lobby())]).await;
    let host = host(&api, &["runs:read", "runs:input"]).await.with_tasks().with_forms();
    let (first, second) = (key("input", &asked, 0), key("input", &asked, 1));
    assert_eq!(keys(&task_of(&host, asked.run).await["inputRequests"]).len(), 2);
    update(&host, asked.run, json!({ &second: accept(json!({ "text": "two" })) })).await;
    assert_eq!(asked.statuses(&api).await, ["pending", "edited"]);
    // the run goes on with the answer, and comes to the other question again
    assert_eq!(task_of(&host, asked.run).await["status"], "working");
    update(&host, asked.run, json!({ &first: accept(json!({ "text": "one" })) })).await;
    assert_eq!((asked.statuses(&api).await, asked.run_state(&api).await), (vec!["edited"; 2], RunState::Queued));
}

async fn answer_that_is_not_taken_now_is_refused(api: Api) {
    let asked = ask(&api, "ann", vec![input(lobby())]).await;
    let host = host(&api, &["runs:read", "runs:input"]).await.with_tasks().with_forms();
    let answers = json!({ key("input", &asked, 0): accept(json!({ "text": "It is green" })) });
    let of_run = |act: &str| format!("/v1/agents/suspended/{}/{act}", asked.run);
    api.admin("POST", &of_run("pause"), None).await.expect(200);
    let params = json!({ "taskId": asked.run, "inputResponses": answers });
    let (_, code, error) = host.error("tasks/update", params).await;
    assert!(code == -32000 && error["message"].as_str().unwrap().contains("is paused"), "{error}");
    assert_eq!(asked.statuses(&api).await, ["pending"]);
    api.admin("POST", &of_run("resume"), None).await.expect(200);
    update(&host, asked.run, answers).await;
    assert_eq!(asked.statuses(&api).await, ["edited"]);
}

async fn question_without_a_simple_form_is_answered_in_words(api: Api) {
    let parameters = json!({
        "type": "object", "required": ["rooms"],
        "properties": { "rooms": { "type": "array", "items": { "type": "string" } } },
    });
    let asked = ask(&api, "ann", vec![Proposal { parameters, ..input(json!({})) }]).await;
    let host = host(&api, &["runs:read", "runs:input"]).await.with_tasks().with_forms();
    let key = key("input", &asked, 0);
    let task = task_of(&host, asked.run).await;
    assert_eq!(keys(&task["inputRequests"][&key]["params"]["requestedSchema"]["properties"]), ["answer"]);
    let params = json!({ "taskId": asked.run, "inputResponses": { &key: accept(json!({ "rooms": ["lobby"] })) } });
    assert_eq!(host.error("tasks/update", params).await.1, -32602);
    update(&host, asked.run, json!({ &key: accept(json!({ "answer": "lobby, hall" })) })).await;
    assert_eq!(asked.only(&api).await.modifications, Some(json!({ "rooms": ["lobby", "hall"] })));
}

async fn run_with_many_questions_shows_the_first_twenty(api: Api) {
    const MOST: usize = 20;
    let asked = ask(&api, "ann", (0..=MOST).map(|_| input(lobby())).collect()).await;
    let host = host(&api, &["runs:read", "runs:input"]).await.with_tasks().with_forms();
    let task = task_of(&host, asked.run).await;
    let mut expected: Vec<String> = (0..=MOST).map(|index| key("input", &asked, index)).collect();
    // their ids say which came first
    expected.sort_unstable();
    expected.truncate(MOST);
    let mut shown = keys(&task["inputRequests"]);
    shown.sort_unstable();
    assert_eq!(shown, expected);
}

async fn question_of_a_server_is_a_form_that_says_who_asks(api: Api) {
    let asked = ask(&api, "ann", vec![survey()]).await;
    let host = host(&api, &["runs:read", "runs:input"]).await.with_tasks().with_forms();
    let key = key("input", &asked, 0);
    let task = task_of(&host, asked.run).await;
    let params = &task["inputRequests"][&key]["params"];
    assert_eq!(params["message"], "github (send_note) asks: Which branch?", "{task:#}");
    let titled = json!([{ "const": "m", "title": "main" }, { "const": "d", "title": "dev" }]);
    let properties = json!({
        "to": { "type": "string", "format": "email" },
        "branch": { "type": "string", "oneOf": titled, "default": "m" },
        "checks": { "type": "array", "items": { "type": "string", "enum": ["units", "lints"] }, "maxItems": 1 },
    });
    assert_eq!(params["requestedSchema"]["properties"], properties, "{task:#}");
    assert_eq!(params["requestedSchema"]["required"], json!(["to", "branch"]));
    let told = host.done("get_run", json!({ "id": asked.run })).await;
    assert_eq!(told["waits_for"][0]["summary"], "github (send_note) asks: Which branch?", "{told:#}");
    let given = json!({ "to": "ann@example.org", "branch": "d", "checks": ["lints"] });
    update(&host, asked.run, json!({ &key: accept(given.clone()) })).await;
    assert_eq!(asked.only(&api).await.server_answer(), Some(ServerAnswer::Accept(given)));
}

/// A question for fields and to go to a page, of one server.
fn mixed() -> Proposal {
    let mut proposal = survey();
    let pages = visit().server.expect("a server").parts;
    proposal.server.as_mut().expect("a server").parts.extend(pages);
    proposal
}

async fn page_of_a_server_is_a_link_that_no_client_accepts(api: Api) {
    let able = ["runs:read", "runs:input", "approvals:read"];
    for (proposal, content) in
        [(visit(), json!({ "answer": "done" })), (mixed(), json!({ "to": "ann@example.org", "branch": "m" }))]
    {
        let asked = ask(&api, "ann", vec![proposal]).await;
        let (key, run) = (key("input", &asked, 0), asked.run);
        // as for approvals: without a look at them there is no link, and a form is never shown
        for other in
            [host(&api, &able[..2]).await.with_tasks().with_links(), host(&api, &able).await.with_tasks().with_forms()]
        {
            let task = task_of(&other, run).await;
            assert_eq!((&task["status"], task.get("inputRequests")), (&json!("working"), None), "{task:#}");
        }
        let host = host(&api, &able).await.with_tasks().with_links();
        let task = task_of(&host, run).await;
        let params = &task["inputRequests"][&key]["params"];
        assert_eq!((&params["mode"], params.get("requestedSchema")), (&json!("url"), None), "{task:#}");
        assert!(params["message"].as_str().unwrap().starts_with("github (send_note) asks: "), "{task:#}");
        let url = params["url"].as_str().unwrap();
        let path = &url[url.find("/approvals/outcome/").expect("the page that only shows")..];
        fetch(&api, "GET", path).await.expect(200).hides("<form");

        update(&host, run, json!({ &key: { "action": "accept" } })).await;
        update(&host, run, json!({ &key: { "action": "cancel" } })).await;
        let sent = json!({ "taskId": run, "inputResponses": { &key: accept(content.clone()) } });
        assert_eq!(host.error("tasks/update", sent).await.1, -32602);
        for given in [json!({ "fields": content }), json!({ "message": "done" }), json!({ "fields": {} })] {
            let mut arguments = given;
            arguments["id"] = json!(run);
            let refused = host.refused("answer_run", arguments).await;
            assert!(refused.contains("nobody has seen"), "{refused}");
        }
        let told = host.done("get_run", json!({ "id": run })).await;
        assert_eq!(told["waits_for"][0]["sends_to"], json!(["login.example.org"]), "{told:#}");
        assert_eq!(asked.only(&api).await.server_answer(), None, "no server hears that a page was seen");

        host.done("answer_run", json!({ "id": run, "action": "decline" })).await;
        assert_eq!(asked.only(&api).await.server_answer(), Some(ServerAnswer::Decline));
    }
}

async fn server_is_told_no_by_a_client_that_declines(api: Api) {
    let host = host(&api, &["runs:read", "runs:input"]).await.with_tasks().with_forms();
    let asked = ask(&api, "ann", vec![survey()]).await;
    let key_of = |asked: &AskingRun| key("input", asked, 0);
    update(&host, asked.run, json!({ key_of(&asked): { "action": "cancel" } })).await;
    assert_eq!(asked.statuses(&api).await, ["pending"], "nothing is decided");
    update(&host, asked.run, json!({ key_of(&asked): { "action": "decline" } })).await;
    assert_eq!(asked.only(&api).await.server_answer(), Some(ServerAnswer::Decline));

    // a model hands on what the person wants by an action
    let stopped = ask(&api, "ann", vec![survey()]).await;
    for odd in [
        json!({ "action": "accept" }),
        json!({ "action": "perhaps" }),
        json!({ "action": "decline", "message": "no" }),
        json!({ "action": "cancel", "fields": {} }),
        json!({}),
    ] {
        let mut arguments = odd;
        arguments["id"] = json!(stopped.run);
        let refused = host.refused("answer_run", arguments).await;
        assert!(refused.contains("`action` (`decline` or `cancel`)"), "{refused}");
    }
    host.done("answer_run", json!({ "id": stopped.run, "action": "cancel" })).await;
    assert_eq!(stopped.statuses(&api).await, ["cancelled"]);
    let plain = ask(&api, "ann", vec![input(lobby())]).await;
    let refused = host.refused("answer_run", json!({ "id": plain.run, "action": "decline" })).await;
    assert!(refused.contains("`action`") && refused.contains("MCP servers"), "{refused}");
}

async fn approval_is_a_link_that_only_shows(api: Api) {
    let asked = ask(&api, "ann", vec![note()]).await;
    let run = asked.run;
    // without a look at approvals there is no link, and a form is never one
    for other in [
        host(&api, &["runs:read", "runs:input"]).await.with_tasks().with_links(),
        host(&api, &["runs:read", "runs:input", "approvals:read"]).await.with_tasks().with_forms(),
    ] {
        assert_eq!(task_of(&other, run).await["status"], "working");
    }
    let host = host(&api, &["*"]).await.with_tasks().with_links();
    let task = task_of(&host, run).await;
    let key = key("approval", &asked, 0);
    assert_eq!((&task["status"], keys(&task["inputRequests"])), (&json!("input_required"), vec![key.as_str()]));
    let params = &task["inputRequests"][&key]["params"];
    assert_eq!((&params["mode"], &params["elicitationId"]), (&json!("url"), &json!(asked.approvals[0].id)));
    let url = params["url"].as_str().unwrap();
    let path = &url[url.find("/approvals/").unwrap()..];
    assert!(!task.to_string().contains(&asked.token) && !task.to_string().contains(&asked.approvals[0].digest));

    let page = fetch(&api, "GET", path).await.expect(200);
    page.shows("Send a note to the room lobby");
    page.shows("This page only shows.");
    for way in ["<form", "<button", "name=\"nonce\"", asked.token.as_str()] {
        page.hides(way);
    }
    for fields in [vec![("do", "approve:0")], vec![("do", "approve:0"), ("nonce", "x")]] {
        let refused = post(&api, path, &fields, &[("sec-fetch-site", "same-origin")]).await;
        assert!(refused.status >= 400, "{}", refused.html);
    }
    for action in ["accept", "decline", "cancel"] {
        update(&host, run, json!({ &key: { "action": action } })).await;
        let as_input = key.replace("approval:", "input:");
        update(&host, run, json!({ as_input: { "action": action, "content": { "text": "x" } } })).await;
        assert_eq!(asked.statuses(&api).await, ["pending"], "no client decides");
    }
    let refused = host.refused("answer_run", json!({ "id": run, "fields": { "text": "x" } })).await;
    assert!(refused.contains("waits for no input"), "{refused}");
    asked.send(&api, &[("do", "approve:0")]).await.expect(303);
    assert_eq!(asked.statuses(&api).await, ["approved"], "the link of the message is the way");
    fetch(&api, "GET", path).await.expect(200).hides("This page only shows.");
}

async fn waiting_call_asks_and_goes_on_with_its_state(api: Api) {
    let asked = ask(&api, "ann", vec![input(lobby()), note()]).await;
    let host = host(&api, &["runs:read", "runs:input"]).await.with_forms();
    let (key, run) = (key("input", &asked, 0), asked.run);
    let call = |more: Value| {
        let mut params = json!({ "name": "wait_for_run", "arguments": { "id": run, "seconds": 1 } });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        params
    };
    let first = host.result("tools/call", call(json!({}))).await;
    assert_eq!((&first["resultType"], keys(&first["inputRequests"])), (&json!("input_required"), vec![key.as_str()]));
    let state = first["requestState"].as_str().expect("a state");
    let retry = |answer: Value| call(json!({ "requestState": state, "inputResponses": { &key: answer } }));

    // what was asked is not asked again, and the answer says what to do
    let declined = host.result("tools/call", retry(json!({ "action": "decline" }))).await;
    assert_eq!(declined["isError"], false, "{declined:#}");
    assert_eq!(declined["structuredContent"]["waits_for"].as_array().unwrap().len(), 2, "{declined:#}");
    let anew = host.result("tools/call", call(json!({}))).await;
    assert_eq!(anew["resultType"], "input_required", "without its state it begins anew");

    let other = McpHost::new(api.app.clone(), &api.token("ann", &["runs:read", "runs:input"]).await);
    assert_eq!(other.error("tools/call", retry(json!({ "action": "decline" }))).await.1, -32602, "another's state");
    let other_run = ask(&api, "ann", vec![input(lobby())]).await.run;
    let mut elsewhere = retry(json!({ "action": "decline" }));
    elsewhere["arguments"]["id"] = json!(other_run);
    assert_eq!(host.error("tools/call", elsewhere).await.1, -32602, "another run's state");
    for tampered in [format!("{state}0"), state.replace("input:", "approval:"), String::new(), "x".repeat(3_000)] {
        let params =
            call(json!({ "requestState": tampered, "inputResponses": { &key: accept(json!({ "text": "x" })) } }));
        assert_eq!(host.error("tools/call", params).await.1, -32602, "{tampered}");
    }
    assert_eq!(asked.statuses(&api).await, ["pending"; 2], "nothing was answered by any of these");

    let answered = host.result("tools/call", retry(accept(json!({ "text": "It is green" })))).await;
    assert_eq!(asked.statuses(&api).await, ["edited", "pending"]);
    assert_eq!(answered["structuredContent"]["waits_for"][0]["kind"], "approval", "{answered:#}");
    // of the old era nobody is asked, and the run is told
    let told = host.old().done("wait_for_run", json!({ "id": other_run, "seconds": 1 })).await;
    assert_eq!(told["waits_for"][0]["summary"], "Which text?", "{told:#}");
}

async fn approvals_are_looked_at_and_never_decided(api: Api) {
    let asked = ask(&api, "ann", vec![note()]).await;
    let (id, digest) = (asked.approvals[0].id, &asked.approvals[0].digest);
    let host = host(&api, &["*"]).await;
    let listed = host.tool("list_approvals", json!({ "run_id": asked.run, "status": "pending" })).await;
    let alone = host.tool("get_approval", json!({ "id": id })).await;
    for (result, approval) in
        [(&listed, &listed["structuredContent"]["items"][0]), (&alone, &alone["structuredContent"])]
    {
        assert_eq!((&approval["id"], &approval["tool"]), (&json!(id), &json!("send_note")), "{result:#}");
        assert!(approval["url"].as_str().unwrap().contains("/approvals/outcome/"), "{result:#}");
        assert!(text_of(result).contains("Only the person decides"), "{result:#}");
        let told = result.to_string();
        assert!(!told.contains(digest.as_str()) && !told.contains(&asked.token), "{result:#}");
    }
    assert_eq!(alone["structuredContent"]["arguments"], json!({ "room": "lobby", "text": "The build is broken" }));
    let bob = McpHost::new(api.app.clone(), &api.token("bob", &["*"]).await);
    bob.refused("get_approval", json!({ "id": id })).await;
    assert_eq!(bob.done("list_approvals", json!({})).await["items"], json!([]));
    assert_eq!(asked.statuses(&api).await, ["pending"]);
}

/// The answer to a request of a client that follows tasks, made where the instance runs.
async fn asked_of(instance: &Instance, token: &str, method: &'static str, params: Value) -> Value {
    let host = McpHost::new(instance.router(), token).with_tasks();
    instance.on(|_| async move { host.result(method, params).await }).await
}

async fn run_is_followed_from_one_instance_to_the_next(world: World) {
    let first = world.instance();
    let scopes = ["tasks:write", "runs:read", "runs:write"];
    let token = json!({ "tenant_id": "ann", "name": "host", "scopes": scopes });
    let (status, token) = first.ask("POST", "/v1/tokens", ADMIN, Some(token)).await;
    assert_eq!(status, 201, "{token}");
    let token = token["token"].as_str().expect("a token").to_owned();
    let never = json!({ "type": "schedule", "at": "2027-03-09T08:00:00Z" });
    let mut runs = Vec::new();
    for act in ["say:All is done", "fail"] {
        let task = first.task(json!({ "trigger": never, "acts": [act], "output": null })).await;
        let call = json!({ "name": "run_task", "arguments": { "id": task.id } });
        runs.push(asked_of(&first, &token, "tools/call", call).await["taskId"].clone());
    }
    first.crash();

    let second = world.instance();
    for run in &runs {
        let task = asked_of(&second, &token, "tasks/get", json!({ "taskId": run })).await;
        assert_eq!((&task["status"], &task["taskId"]), (&json!("working"), run), "{task:#}");
    }
    second.settle(0).await;
    for (run, is_error) in runs.iter().zip([false, true]) {
        let task = asked_of(&second, &token, "tasks/get", json!({ "taskId": run })).await;
        assert_eq!((&task["status"], &task["result"]["isError"]), (&json!("completed"), &json!(is_error)), "{task:#}");
        assert!(task.get("error").is_none() && !text_of(&task["result"]).is_empty(), "{task:#}");
        assert_eq!(text_of(&task["result"]).contains("All is done"), !is_error, "{task:#}");
        // what has ended stays as it is
        let cancelled = asked_of(&second, &token, "tasks/cancel", json!({ "taskId": run })).await;
        assert_eq!(cancelled, json!({ "resultType": "complete" }));
        let again = asked_of(&second, &token, "tasks/get", json!({ "taskId": run })).await;
        assert_eq!(again["status"], "completed");
    }
    second.finish(&world).await;
}
