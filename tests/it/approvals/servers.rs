//! Questions of MCP servers on the page behind a link: each answer that a person may give, and what becomes of the run.

use reveille::domain::approval::{ApprovalChoice, Proposal, QuestionKind, ServerAnswer, ServerQuestion};
use reveille::domain::run::RunState;
use serde_json::{Value, json};

use super::harness::{ask, note};
use crate::api::service::{Api, on_both};

on_both! {
    server_is_answered_with_the_fields_of_its_form_once_they_are_what_it_asks_for
    server_is_told_no_by_a_button_of_its_own
    call_of_a_server_that_is_stopped_is_not_made_again
    server_that_sends_a_person_to_a_page_is_answered_without_fields
    nobody_is_told_no_where_no_server_asks
}

/// Base64 of `s-prod`, which is the server's own and shown to nobody.
const STATE: &str = "cy1wcm9k";

fn of_server(parts: Value, parameters: Value) -> Proposal {
    let server = json!({
        "server": "github", "parts": parts,
        "continuation": { "kind": "continue", "round": 1, "request_state": STATE },
    });
    let server: ServerQuestion = serde_json::from_value(server).expect("a question");
    Proposal {
        kind: QuestionKind::Input,
        version: "mcp:1".into(),
        summary: "Which branch?".into(),
        description: String::new(),
        server: Some(server),
        options: vec![ApprovalChoice::Edit, ApprovalChoice::Cancel],
        arguments: json!({}),
        parameters,
        ..note()
    }
}

/// Asks for a branch, the mail address of a person and checks.
pub fn survey() -> Proposal {
    let fields = ["to", "branch", "checks"].map(|name| json!({ "name": name, "field": name }));
    let parts = json!([{ "key": "k", "message": "Which branch?", "mode": "form", "fields": fields }]);
    let titled = json!([{ "const": "m", "title": "main" }, { "const": "d", "title": "dev" }]);
    let parameters = json!({
        "type": "object", "required": ["to", "branch"], "additionalProperties": false,
        "properties": {
            "to": { "type": "string", "format": "email", "maxLength": 10_000 },
            "branch": { "type": "string", "oneOf": titled, "default": "m" },
            "checks": { "type": "array", "items": { "type": "string", "enum": ["units", "lints"] }, "maxItems": 1 },
        },
    });
    of_server(parts, parameters)
}

async fn server_is_answered_with_the_fields_of_its_form_once_they_are_what_it_asks_for(api: Api) {
    let asked = ask(&api, "ann", vec![survey()]).await;
    for _ in 0..2 {
        let page = asked.open(&api).await.expect(200);
        page.shows("<bdi>github</bdi> asks you something");
        page.shows("<code>send_note</code>");
        page.shows("<option value=\"m\" selected>main</option>");
        page.hides(STATE);
    }
    let answer = |to: &'static str, ticked: &[&'static str]| {
        let mut fields = vec![("do", "answer:0"), ("0.f0", to), ("0.f1", "d")];
        fields.extend(ticked.iter().map(|name| (*name, "yes")));
        fields
    };
    let page = asked.send(&api, &answer("ann", &[])).await.expect(422);
    page.shows("id=\"i0f0e\">must be an e-mail address</p>");
    let page = asked.send(&api, &answer("", &[])).await.expect(422);
    page.shows("id=\"i0f0e\">is required</p>");
    let page = asked.send(&api, &answer("ann@example.org", &["0.f2.0", "0.f2.1"])).await.expect(422);
    page.shows("id=\"i0f2e\">must have 1 elements or fewer</p>");
    assert_eq!(asked.only(&api).await.modifications, None);
    assert_eq!((asked.statuses(&api).await, asked.run_state(&api).await), (vec!["pending"], RunState::PendingApproval));
    asked.send(&api, &answer("ann@example.org", &["0.f2.1"])).await.expect(303);
    let answered = asked.only(&api).await;
    let given = json!({ "to": "ann@example.org", "branch": "d", "checks": ["lints"] });
    assert_eq!(answered.server_answer(), Some(ServerAnswer::Accept(given)));
    assert_eq!((answered.status.as_str(), asked.run_state(&api).await), ("edited", RunState::Queued));
    asked.open(&api).await.expect(200).shows("The server is told, and the call goes on.");
}

async fn server_is_told_no_by_a_button_of_its_own(api: Api) {
    let asked = ask(&api, "ann", vec![survey()]).await;
    asked.open(&api).await.expect(200).shows("value=\"decline:0\"");
    // faults of fields that are not sent are of no matter
    asked.send(&api, &[("do", "decline:0"), ("0.f0", "ann"), ("0.f1", "x")]).await.expect(303);
    let declined = asked.only(&api).await;
    assert_eq!((declined.status.as_str(), &declined.modifications), ("approved", &None));
    assert_eq!(declined.server_answer(), Some(ServerAnswer::Decline));
    assert_eq!(asked.run_state(&api).await, RunState::Queued);
    asked.open(&api).await.expect(200).shows("<p class=\"state bad\">Declined</p>");
}

async fn call_of_a_server_that_is_stopped_is_not_made_again(api: Api) {
    let asked = ask(&api, "ann", vec![survey()]).await;
    asked.send(&api, &[("do", "approve:0")]).await.expect(422);
    assert_eq!(asked.statuses(&api).await, ["pending"]);
    asked.send(&api, &[("do", "cancel:0"), ("0.comment", "Ask bob")]).await.expect(303);
    let stopped = asked.only(&api).await;
    assert_eq!((stopped.status.as_str(), stopped.comment.as_deref()), ("cancelled", Some("Ask bob")));
    assert_eq!(stopped.server_answer(), None);
    asked.open(&api).await.expect(200).shows("The call is not made again.");
}

async fn server_that_sends_a_person_to_a_page_is_answered_without_fields(api: Api) {
    let parts = json!([{
        "key": "k", "message": "Log in, please.", "mode": "url",
        "url": "https://login.example.org/device", "host": "login.example.org",
    }]);
    let parameters = json!({ "type": "object", "properties": {}, "required": [], "additionalProperties": false });
    let asked = ask(&api, "ann", vec![of_server(parts, parameters)]).await;
    let page = asked.open(&api).await.expect(200);
    page.shows("<strong><bdi>login.example.org</bdi></strong>");
    page.shows("<a href=\"https://login.example.org/device\" rel=\"noopener noreferrer external\" target=\"_blank\">");
    let policy = page.header("content-security-policy");
    assert!(policy.contains("base-uri 'none'") && policy.contains("form-action 'self'"), "{policy}");
    assert!(!policy.contains("navigate-to") && !policy.contains("sandbox"), "the link may be followed: {policy}");
    asked.send(&api, &[("do", "answer:0")]).await.expect(303);
    assert_eq!(asked.only(&api).await.server_answer(), Some(ServerAnswer::Accept(json!({}))));
}

async fn nobody_is_told_no_where_no_server_asks(api: Api) {
    let asked = ask(&api, "ann", vec![note()]).await;
    asked.open(&api).await.expect(200).hides("value=\"decline:0\"");
    asked.send(&api, &[("do", "decline:0")]).await;
    assert_eq!(asked.statuses(&api).await, ["pending"]);
}
