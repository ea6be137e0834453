//! The inbox: questions for input are listed, answered with faults beside their fields, and told no; the agents that
//! wait are paused, resumed and cancelled.

use reveille::domain::approval::{ApprovalChoice, Proposal, QuestionKind, ServerAnswer};
use reveille::domain::run::RunState;
use serde_json::json;

use super::visitor::{Shown, visitor};
use crate::api::service::{Api, on_both};
use crate::approvals::harness::{AskingRun, ask, note};
use crate::approvals::servers::survey;

on_both! {
    question_is_listed_and_answered_once_its_fields_are_right
    question_of_a_server_is_told_no_or_its_call_is_stopped
    question_of_another_tenant_is_not_there
    reader_sees_and_does_what_the_token_permits
    text_of_a_question_is_text
    suspended_agent_is_paused_resumed_and_cancelled
    form_that_is_not_of_the_session_answers_nothing
}

const ALL: [&str; 5] = ["approvals:read", "runs:read", "runs:input", "runs:write", "tasks:read"];

/// A question for the text of a note.
fn input() -> Proposal {
    let options = vec![ApprovalChoice::Edit, ApprovalChoice::Cancel];
    let summary = "send_note needs to know: text".into();
    Proposal { kind: QuestionKind::Input, options, arguments: json!({ "room": "lobby" }), summary, ..note() }
}

fn page_of(asked: &AskingRun) -> String {
    format!("/ui/inbox/{}", asked.approvals[0].id)
}

/// The name of the field with this label.
#[track_caller]
fn field(page: &Shown, label: &str) -> String {
    let (before, _) = page.text.split_once(&format!("\">{label}</label>")).expect("the label");
    let number = before.rsplit_once("for=\"i0f").expect("the id of the field").1;
    format!("0.f{number}")
}

async fn question_is_listed_and_answered_once_its_fields_are_right(api: Api) {
    let asked = ask(&api, "ann", vec![input()]).await;
    ask(&api, "ann", vec![note()]).await;
    let ann = visitor(&api, "ann", &ALL).await;
    let page = page_of(&asked);
    let inbox = ann.get("/ui/inbox").await;
    inbox.has("send_note needs to know: text");
    inbox.has(&page);
    inbox.has("Morning mail");
    inbox.lacks("Send a note to the room lobby");
    let shown = ann.get(&page).await;
    shown.has("Where to");
    // the run leads to its one open question
    ann.get(&format!("/ui/inbox/{}", asked.run)).await.has(&asked.approvals[0].id.to_string());

    let (text, copies) = (field(&shown, "text"), field(&shown, "copies"));
    let id = asked.approvals[0].id.to_string();
    let answer = async |given: &str, many: &str| {
        let fields = [("input_id", id.as_str()), ("do", "answer"), (text.as_str(), given), (copies.as_str(), many)];
        ann.post(&page, &format!("{page}/answer"), &fields).await
    };
    let long = "x".repeat(31);
    for (given, many) in [(long.as_str(), "1"), ("The build is green", "many"), ("The build is green", "0")] {
        let refused = answer(given, many).await;
        assert_eq!(refused.status, 422, "{}", refused.text);
        refused.has("aria-invalid=\"true\"");
        refused.has(&format!("value=\"{given}\""));
        refused.has(&format!("value=\"{many}\""));
        assert_eq!(asked.statuses(&api).await, ["pending"]);
    }
    let taken = answer("The build is green", "2").await;
    assert_eq!((taken.status, taken.location.as_deref()), (303, Some("/ui/inbox?done=answered")), "{}", taken.text);
    let given = json!({ "room": "lobby", "text": "The build is green", "copies": 2 });
    assert_eq!(asked.only(&api).await.modifications, Some(given));
    assert_eq!(asked.run_state(&api).await, RunState::Queued);
    ann.get("/ui/inbox?done=answered").await.has("Your answer was recorded.");
    ann.get("/ui/inbox").await.lacks(&page);
    let settled = ann.get(&page).await;
    settled.has("The build is green");
    settled.lacks("value=\"answer\"");
    assert_eq!(answer("again", "1").await.status, 409);
}

async fn question_of_a_server_is_told_no_or_its_call_is_stopped(api: Api) {
    let ann = visitor(&api, "ann", &ALL).await;
    for (press, status, told) in [("decline", "approved", Some(ServerAnswer::Decline)), ("cancel", "cancelled", None)] {
        let asked = ask(&api, "ann", vec![survey()]).await;
        let (page, id) = (page_of(&asked), asked.approvals[0].id.to_string());
        let shown = ann.get(&page).await;
        shown.has("Tell github no");
        shown.has("<option value=\"m\" selected>main</option>");
        shown.lacks("cy1wcm9k");
        let fields = [("input_id", id.as_str()), ("do", press), ("0.f0", "no address")];
        let done = ann.post(&page, &format!("{page}/answer"), &fields).await;
        assert_eq!(done.status, 303, "{}", done.text);
        let decided = asked.only(&api).await;
        assert_eq!((decided.status.as_str(), decided.server_answer()), (status, told), "{press}");
    }
}

async fn question_of_another_tenant_is_not_there(api: Api) {
    let asked = ask(&api, "ann", vec![input()]).await;
    let bob = visitor(&api, "bob", &["*"]).await;
    let (page, id) = (page_of(&asked), asked.approvals[0].id.to_string());
    let run = format!("/ui/inbox/{}", asked.run);
    for path in [page.as_str(), &run, "/ui/inbox/none", &format!("/ui/inbox/agents/{}/cancel", asked.run)] {
        assert_eq!(bob.get(path).await.status, 404, "{path}");
    }
    let inbox = bob.get("/ui/inbox").await;
    inbox.has("No agent asks for anything.");
    inbox.lacks(&id);
    inbox.lacks(&asked.run.to_string());
    let fields = [("input_id", id.as_str()), ("do", "cancel")];
    assert_eq!(bob.post("/ui/inbox", &format!("{page}/answer"), &fields).await.status, 404);
    for act in ["pause", "resume", "cancel"] {
        let action = format!("/ui/inbox/agents/{}/{act}", asked.run);
        assert_eq!(bob.post("/ui/inbox", &action, &[]).await.status, 404, "{act}");
    }
    assert_eq!(asked.statuses(&api).await, ["pending"]);
}

async fn reader_sees_and_does_what_the_token_permits(api: Api) {
    let asked = ask(&api, "ann", vec![input()]).await;
    let (page, id) = (page_of(&asked), asked.approvals[0].id.to_string());
    let reader = visitor(&api, "ann", &["approvals:read"]).await;
    let shown = reader.get(&page).await;
    shown.has("runs:input");
    shown.lacks("value=\"answer\"");
    let fields = [("input_id", id.as_str()), ("do", "cancel")];
    assert_eq!(reader.post(&page, &format!("{page}/answer"), &fields).await.status, 403);
    // each part of the inbox has its own permission
    let inbox = reader.get("/ui/inbox").await;
    assert_eq!(inbox.status, 200);
    inbox.has("send_note needs to know: text");
    inbox.has("runs:read");
    let other = visitor(&api, "ann", &["runs:read"]).await;
    let inbox = other.get("/ui/inbox").await;
    inbox.has("approvals:read");
    inbox.has(&asked.run.to_string());
    inbox.lacks("/pause");
    assert_eq!(other.get(&page).await.status, 403);
    assert_eq!(asked.statuses(&api).await, ["pending"]);
}

async fn text_of_a_question_is_text(api: Api) {
    let hostile = "<script>alert(1)</script>\u{202e}";
    let asked = ask(
        &api,
        "ann",
        vec![Proposal {
            summary: hostile.into(),
            description: hostile.into(),
            arguments: json!({ "room": "</textarea><script>alert(1)</script>\u{202e}" }),
            ..input()
        }],
    )
    .await;
    let ann = visitor(&api, "ann", &ALL).await;
    for path in ["/ui/inbox".to_owned(), page_of(&asked)] {
        let shown = ann.get(&path).await;
        shown.has("&lt;script&gt;alert(1)&lt;/script&gt;\u{27e6}U+202E\u{27e7}");
        shown.lacks("<script>alert");
        shown.lacks("\u{202e}");
    }
}

async fn suspended_agent_is_paused_resumed_and_cancelled(api: Api) {
    let asked = ask(&api, "ann", vec![input()]).await;
    let ann = visitor(&api, "ann", &ALL).await;
    let (page, id) = (page_of(&asked), asked.approvals[0].id.to_string());
    let action = |act: &str| format!("/ui/inbox/agents/{}/{act}", asked.run);
    ann.get("/ui/inbox").await.has(&action("pause"));
    let paused = ann.post("/ui/inbox", &action("pause"), &[]).await;
    assert_eq!((paused.status, paused.location.as_deref()), (303, Some("/ui/inbox/agents?done=paused")));
    let list = ann.get("/ui/inbox/agents").await;
    list.has(&action("resume"));
    list.lacks(&action("pause"));
    // no answer is taken meanwhile, and what was typed stays
    let shown = ann.get(&page).await;
    let text = field(&shown, "text");
    let fields = [("input_id", id.as_str()), ("do", "answer"), (text.as_str(), "The build is green")];
    let late = ann.post(&page, &format!("{page}/answer"), &fields).await;
    assert_eq!(late.status, 409);
    late.has("it has to be resumed first");
    late.has("value=\"The build is green\"");
    assert_eq!(ann.post("/ui/inbox", &action("resume"), &[]).await.status, 303);
    ann.get(&action("cancel")).await.has("Cancel this agent?");
    assert_eq!(asked.run_state(&api).await, RunState::PendingApproval, "to look changes nothing");
    let done = ann.post(&action("cancel"), &action("cancel"), &[]).await;
    assert_eq!((done.status, asked.run_state(&api).await), (303, RunState::Cancelled));
    ann.get("/ui/inbox/agents").await.has("No agent waits for a person.");
    assert_eq!(ann.post("/ui/inbox", &action("pause"), &[]).await.status, 409);
}

async fn form_that_is_not_of_the_session_answers_nothing(api: Api) {
    let asked = ask(&api, "ann", vec![input()]).await;
    let ann = visitor(&api, "ann", &ALL).await;
    let (page, id) = (page_of(&asked), asked.approvals[0].id.to_string());
    let fields = [("form_token", "another"), ("input_id", id.as_str()), ("do", "cancel")];
    assert_eq!(ann.post(&page, &format!("{page}/answer"), &fields).await.status, 403);
    // a form about another question than the one that its address means
    let other = ask(&api, "ann", vec![input()]).await.approvals[0].id.to_string();
    let fields = [("input_id", other.as_str()), ("do", "cancel")];
    assert_eq!(ann.post(&page, &format!("{page}/answer"), &fields).await.status, 409);
    assert_eq!(asked.statuses(&api).await, ["pending"]);
}
