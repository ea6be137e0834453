//! Questions of MCP servers over the API: what is shown of them, and each answer that a token may give.

use reveille::domain::approval::{ApprovalChoice, Proposal, ServerAnswer, ServerQuestion};
use reveille::domain::run::RunState;
use serde_json::{Value, json};

use super::harness::{ask, note};
use super::servers::survey;
use crate::api::service::{Api, on_both};

on_both! {
    question_of_a_server_is_shown_with_its_words_and_nothing_of_how_the_call_goes_on
    server_is_answered_with_fields_that_are_what_it_asks_for
    server_is_told_no_and_its_call_is_stopped_by_an_action
    page_is_seen_to_by_an_action_alone
    decision_tells_a_server_no_and_no_other_question
    question_of_a_server_is_there_for_its_tenant_alone
}

/// Base64 of the server's state.
const STATE: &str = "cy1wcm9k";

/// Sends a person to a page.
pub fn visit() -> Proposal {
    let server = json!({
        "server": "github",
        "parts": [{
            "key": "k-page", "message": "Log in there.", "mode": "url", "url": "https://login.example.org/device",
            "host": "login.example.org",
        }],
        "continuation": { "kind": "continue", "round": 1, "request_state": STATE },
    });
    let server: ServerQuestion = serde_json::from_value(server).expect("a question");
    let parameters = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    Proposal { server: Some(server), parameters, ..survey() }
}

async fn question_of_a_server_is_shown_with_its_words_and_nothing_of_how_the_call_goes_on(api: Api) {
    let asked = ask(&api, "ann", vec![visit()]).await;
    let token = api.token("ann", &["approvals:read", "runs:read"]).await;
    let read = async |path: &str| api.ask("GET", path, Some(&token), None).await.expect(200);
    let approval = read(&format!("/v1/approvals/{}", asked.approvals[0].id)).await;
    let run = read(&format!("/v1/runs/{}", asked.run)).await;
    let link = json!({
        "url": "https://login.example.org/device", "host": "login.example.org", "message": "Log in there.",
    });
    let server = json!({
        "server": "github", "tool": "send_note", "round": 1, "messages": [], "links": [link], "may_decline": true,
    });
    assert_eq!((&approval["server"], &run["inputs"][0]["server"]), (&server, &server), "{run:#}");
    assert_eq!((&approval["options"], &approval["answer"]), (&json!(["edit", "cancel", "decline"]), &Value::Null));
    for shown in [approval, run, read(&format!("/v1/approvals?run_id={}", asked.run)).await] {
        let shown = shown.to_string();
        assert!(!shown.contains(STATE) && !shown.contains("k-page") && !shown.contains("request_state"), "{shown}");
    }
    let plain = ask(&api, "ann", vec![note()]).await;
    let approval = read(&format!("/v1/approvals/{}", plain.approvals[0].id)).await;
    assert_eq!((&approval["server"], &approval["answer"]), (&Value::Null, &Value::Null));
}

async fn server_is_answered_with_fields_that_are_what_it_asks_for(api: Api) {
    let asked = ask(&api, "ann", vec![survey()]).await;
    let token = api.token("ann", &["runs:input"]).await;
    let answer = async |body: Value| {
        let path = format!("/v1/runs/{}/input", asked.run);
        api.ask("POST", &path, Some(&token), Some(body)).await
    };
    for (body, pointer) in [
        (json!({ "fields": { "to": "ann", "branch": "m" } }), "/fields/to"),
        (json!({ "fields": { "to": "ann@example.org", "branch": "x" } }), "/fields/branch"),
        (json!({ "action": "accept" }), ""),
        (json!({ "action": "decline", "fields": {} }), "/action"),
        (json!({ "action": "cancel", "message": "no" }), "/action"),
        (json!({ "action": "perhaps" }), "/action"),
    ] {
        let problem = answer(body.clone()).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{body}: {problem}");
        assert_eq!(asked.statuses(&api).await, ["pending"], "{body}");
    }
    answer(json!({ "message": "to: ann@example.org\nbranch: m", "action": "accept" })).await.expect(200);
    let given = json!({ "to": "ann@example.org", "branch": "m" });
    assert_eq!(asked.only(&api).await.server_answer(), Some(ServerAnswer::Accept(given)));
    assert_eq!(asked.run_state(&api).await, RunState::Queued);
}

async fn server_is_told_no_and_its_call_is_stopped_by_an_action(api: Api) {
    let token = api.token("ann", &["runs:input"]).await;
    for (action, status, answer) in
        [("decline", "approved", Some(ServerAnswer::Decline)), ("cancel", "cancelled", None)]
    {
        let asked = ask(&api, "ann", vec![survey()]).await;
        let path = format!("/v1/runs/{}/input", asked.run);
        api.ask("POST", &path, Some(&token), Some(json!({ "action": action }))).await.expect(200);
        let decided = asked.only(&api).await;
        assert_eq!((decided.status.as_str(), decided.server_answer()), (status, answer), "{action}");
        assert_eq!(decided.modifications, None, "{action}");
        assert_eq!(asked.run_state(&api).await, RunState::Queued, "{action}");
        api.ask("POST", &path, Some(&token), Some(json!({ "action": action }))).await.expect(409);
    }
    let plain = Proposal { server: None, ..survey() };
    let asked = ask(&api, "ann", vec![plain]).await;
    let path = format!("/v1/runs/{}/input", asked.run);
    let problem = api.ask("POST", &path, Some(&token), Some(json!({ "action": "decline" }))).await.expect(422);
    assert_eq!(problem["errors"][0]["pointer"], "/action", "no server asks: {problem}");
    api.ask("POST", &path, Some(&token), Some(json!({ "action": "cancel" }))).await.expect(200);
    assert_eq!(asked.statuses(&api).await, ["cancelled"]);
}

async fn page_is_seen_to_by_an_action_alone(api: Api) {
    let asked = ask(&api, "ann", vec![visit()]).await;
    let token = api.token("ann", &["runs:input"]).await;
    let path = format!("/v1/runs/{}/input", asked.run);
    api.ask("POST", &path, Some(&token), Some(json!({}))).await.expect(422);
    api.ask("POST", &path, Some(&token), Some(json!({ "message": "I have done it" }))).await.expect(422);
    assert_eq!(asked.statuses(&api).await, ["pending"]);
    api.ask("POST", &path, Some(&token), Some(json!({ "action": "accept" }))).await.expect(200);
    assert_eq!(asked.only(&api).await.server_answer(), Some(ServerAnswer::Accept(json!({}))));
}

async fn decision_tells_a_server_no_and_no_other_question(api: Api) {
    let token = api.token("ann", &["approvals:decide"]).await;
    for (proposal, status) in [(survey(), 200), (Proposal { server: None, ..survey() }, 422), (note(), 422)] {
        let asked = ask(&api, "ann", vec![proposal]).await;
        let approval = &asked.approvals[0];
        assert!(!approval.proposal.options.contains(&ApprovalChoice::Decline), "it is in no stored options");
        let path = format!("/v1/approvals/{}/decision", approval.id);
        let body = json!({ "decision": "decline", "digest": approval.digest });
        let answer = api.ask("POST", &path, Some(&token), Some(body)).await.expect(status);
        match status {
            200 => assert_eq!((&answer["status"], &answer["answer"]), (&json!("approved"), &json!("decline"))),
            _ => assert_eq!(answer["errors"][0]["pointer"], "/decision", "{answer}"),
        }
    }
    let actions = api.admin("GET", "/v1/audit?tenant_id=ann", None).await.expect(200);
    let declined = |entry: &&Value| entry["action"] == "approval.declined";
    assert_eq!(actions["items"].as_array().expect("entries").iter().filter(declined).count(), 1, "{actions:#}");
}

async fn question_of_a_server_is_there_for_its_tenant_alone(api: Api) {
    let asked = ask(&api, "ann", vec![survey()]).await;
    let bob = api.token("bob", &["*"]).await;
    let path = format!("/v1/runs/{}/input", asked.run);
    for action in ["accept", "decline", "cancel"] {
        api.ask("POST", &path, Some(&bob), Some(json!({ "action": action }))).await.expect(404);
    }
    api.ask("GET", &format!("/v1/approvals/{}", asked.approvals[0].id), Some(&bob), None).await.expect(404);
    assert_eq!(asked.statuses(&api).await, ["pending"]);
}
