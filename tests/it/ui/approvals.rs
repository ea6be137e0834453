//! The pages of approvals: the queue, a question with its form, and what is allowed for good.

use reveille::base::id::Scope;
use reveille::domain::approval::{ApprovalChoice, Proposal, QuestionKind};
use serde_json::json;

use super::visitor::{Shown, Visitor, served};
use crate::api::service::{ADMIN, Api, on_both};
use crate::approvals::harness::{AskingRun, TIME, ask, note, note_of};

on_both! {
    queue_shows_those_that_wait_and_then_who_decided_when_and_how
    question_is_approved_and_the_record_names_the_token
    grave_call_takes_the_typed_code_here_too
    changed_call_is_looked_at_before_it_runs
    all_of_a_batch_are_decided_at_once
    answer_that_comes_second_is_told_who_was_first
    answer_to_another_page_decides_nothing
    reader_without_the_permission_sees_no_form_and_decides_nothing
    question_for_input_is_answered_and_a_held_call_stopped
    grants_and_overrides_are_listed_and_revoked
}

const SCOPES: [&str; 3] = ["approvals:read", "approvals:decide", "deliveries:read"];

async fn visitor(api: &Api, base: &str, tenant: &str, scopes: &[&str]) -> Visitor {
    Visitor::signed_in(base, &api.token(tenant, scopes).await).await
}

/// The page of the first question of a run.
fn path(asked: &AskingRun) -> String {
    format!("/ui/approvals/{}", asked.approvals[0].id)
}

/// The text by which the form of a page is known; empty where it has no form.
fn nonce_of(page: &Shown) -> String {
    page.hidden("nonce").unwrap_or_default()
}

/// Sends the form of a page with these fields.
async fn send(visitor: &Visitor, asked: &AskingRun, fields: &[(&str, &str)]) -> Shown {
    let nonce = nonce_of(&visitor.get(&path(asked)).await);
    let fields: Vec<(&str, &str)> = [("nonce", nonce.as_str())].into_iter().chain(fields.iter().copied()).collect();
    visitor.post(&path(asked), &format!("{}/decision", path(asked)), &fields).await
}

async fn queue_shows_those_that_wait_and_then_who_decided_when_and_how(api: Api) {
    let summary = |text: &str| Proposal { summary: text.into(), ..note() };
    let decided = ask(&api, "ann", vec![summary("Decided by link")]).await;
    decided.send(&api, &[("do", "cancel:0"), ("0.comment", "Not today")]).await.expect(303);
    ask(&api, "ann", vec![summary("Waits <script>alert(1)</script>\u{202e}")]).await;
    let of_bob = ask(&api, "bob", vec![summary("Asked of bob")]).await;
    let base = served(&api).await;
    let ann = visitor(&api, &base, "ann", &SCOPES).await;
    let page = ann.get("/ui/approvals").await;
    assert_eq!(page.status, 200);
    let place = |text: &str| page.text.find(text).unwrap_or_else(|| panic!("{text} is not in {}", page.text));
    assert!(place("Waits &lt;script&gt;") < place("Decided by link"), "those that wait are first");
    for text in ["recipient:ann", "by link", "Not today", "cancelled"] {
        page.has(text);
    }
    page.lacks("<script>alert");
    page.lacks("\u{202e}");
    page.lacks("Asked of bob");
    ann.get("/ui/approvals?status=pending").await.lacks("Decided by link");
    ann.get("/ui/approvals?status=cancelled").await.lacks("Waits");
    ann.get("/ui/approvals?status=expired").await.has("Nothing fits these filters.");
    for path in [path(&of_bob), "/ui/approvals/none".to_owned()] {
        assert_eq!(ann.get(&path).await.status, 404, "{path}");
    }
    let admin = Visitor::signed_in(&base, ADMIN).await;
    admin.get("/ui/approvals").await.has("Asked of bob");
    admin.get("/ui/approvals?tenant_id=ann").await.lacks("Asked of bob");
    let other = visitor(&api, &base, "ann", &["runs:read"]).await;
    assert_eq!(other.get("/ui/approvals").await.status, 403);
    assert_eq!(other.get(&path(&decided)).await.status, 403);
}

async fn question_is_approved_and_the_record_names_the_token(api: Api) {
    let hostile = "<script>alert(1)</script>\u{202e}";
    let mut proposal = note_of(json!({ "room": "lobby", "text": "The build is broken", "more": hostile }));
    proposal.delegation_chain = vec!["helper".into()];
    let asked = ask(&api, "ann", vec![proposal]).await;
    let base = served(&api).await;
    let ann = visitor(&api, &base, "ann", &SCOPES).await;
    let page = ann.get(&path(&asked)).await;
    assert_eq!(page.status, 200);
    for text in [
        "The build is broken",
        "lobby",
        "helper",
        asked.approvals[0].digest.as_str(),
        "&lt;script&gt;",
        "Technical details",
    ] {
        page.has(text);
    }
    page.has(&format!("/ui/runs/{}", asked.run));
    page.lacks("<script>alert");
    let done = send(&ann, &asked, &[("do", "approve:0"), ("0.comment", "Go ahead")]).await;
    assert_eq!((done.status, done.location), (303, Some(format!("{}?done=decided", path(&asked)))));
    let now = asked.only(&api).await;
    assert_eq!((now.status.as_str(), now.decided_via.unwrap().as_str()), ("approved", "api"));
    assert_eq!(now.comment.as_deref(), Some("Go ahead"));
    let by = now.decided_by.unwrap();
    assert!(by.starts_with("token:"), "{by}");
    let page = ann.get(&path(&asked)).await;
    page.has(&by);
    page.has("Go ahead");
    page.lacks("value=\"approve:0\"");
}

async fn grave_call_takes_the_typed_code_here_too(api: Api) {
    let asked = ask(&api, "ann", vec![Proposal { confirmation: Some("SEND".into()), ..note() }]).await;
    let base = served(&api).await;
    let ann = visitor(&api, &base, "ann", &SCOPES).await;
    for code in ["", "send"] {
        let refused = send(&ann, &asked, &[("do", "approve:0"), ("0.confirmation", code)]).await;
        assert_eq!((refused.status, asked.statuses(&api).await), (422, vec!["pending"]), "{code}");
        refused.has("Nothing was decided yet");
    }
    assert_eq!(send(&ann, &asked, &[("do", "approve:0"), ("0.confirmation", "SEND")]).await.status, 303);
    assert_eq!(asked.statuses(&api).await, ["approved"]);
}

async fn changed_call_is_looked_at_before_it_runs(api: Api) {
    let asked = ask(&api, "ann", vec![note()]).await;
    let base = served(&api).await;
    let ann = visitor(&api, &base, "ann", &SCOPES).await;
    let long = "x".repeat(31);
    let wrong = send(&ann, &asked, &[("do", "approve:0"), ("0.f1", long.as_str()), ("0.comment", "mine")]).await;
    assert_eq!(wrong.status, 422);
    wrong.has("the value is longer than 30 characters");
    wrong.has(&long);
    wrong.has("mine");
    let changed = [("do", "approve:0"), ("0.f1", "The build is green")];
    let look = send(&ann, &asked, &changed).await;
    assert_eq!((look.status, asked.statuses(&api).await), (200, vec!["pending"]));
    look.has("look at what you changed");
    let reviewed = look.hidden("0.reviewed").expect("the call as it was shown");
    let fields: Vec<_> = changed.into_iter().chain([("0.reviewed", reviewed.as_str())]).collect();
    assert_eq!(send(&ann, &asked, &fields).await.status, 303);
    let now = asked.only(&api).await;
    assert_eq!(now.status.as_str(), "edited");
    assert_eq!(now.modifications, Some(json!({ "room": "lobby", "text": "The build is green" })));
    assert_eq!(now.decided_digest.as_deref(), Some(reviewed.as_str()), "what was shown is what runs");
}

async fn all_of_a_batch_are_decided_at_once(api: Api) {
    let asked = ask(&api, "ann", vec![note(), note_of(json!({ "room": "attic", "text": "two" }))]).await;
    let base = served(&api).await;
    let ann = visitor(&api, &base, "ann", &SCOPES).await;
    let page = ann.get(&path(&asked)).await;
    page.has("attic");
    page.has(&format!("/ui/approvals/{}", asked.approvals[1].id));
    page.has("asked together");
    assert_eq!(send(&ann, &asked, &[("do", "approve:all")]).await.status, 303);
    assert_eq!(asked.statuses(&api).await, ["approved", "approved"]);
}

async fn answer_that_comes_second_is_told_who_was_first(api: Api) {
    let asked = ask(&api, "ann", vec![note()]).await;
    let base = served(&api).await;
    let ann = visitor(&api, &base, "ann", &SCOPES).await;
    let nonce = nonce_of(&ann.get(&path(&asked)).await);
    asked.send(&api, &[("do", "cancel:0")]).await.expect(303);
    let fields = [("nonce", nonce.as_str()), ("do", "approve:0")];
    let late = ann.post(&path(&asked), &format!("{}/decision", path(&asked)), &fields).await;
    assert_eq!((late.status, asked.statuses(&api).await), (409, vec!["cancelled"]));
    late.has("recipient:ann was first, by link");
    api.clock.advance(TIME);
    let expired = ask(&api, "ann", vec![note()]).await;
    let nonce = nonce_of(&ann.get(&path(&expired)).await);
    api.clock.advance(TIME);
    let fields = [("nonce", nonce.as_str()), ("do", "approve:0")];
    let late = ann.post("/ui/approvals", &format!("{}/decision", path(&expired)), &fields).await;
    assert_eq!((late.status, expired.statuses(&api).await), (409, vec!["pending"]));
}

async fn answer_to_another_page_decides_nothing(api: Api) {
    let (asked, other) = (ask(&api, "ann", vec![note()]).await, ask(&api, "ann", vec![note()]).await);
    let base = served(&api).await;
    let ann = visitor(&api, &base, "ann", &SCOPES).await;
    let foreign = nonce_of(&ann.get(&path(&other)).await);
    for nonce in [foreign.as_str(), "", "x"] {
        let fields = [("nonce", nonce), ("do", "approve:0")];
        let refused = ann.post(&path(&asked), &format!("{}/decision", path(&asked)), &fields).await;
        assert_eq!(refused.status, 409, "{nonce}");
        refused.has("did not come from the page as it is now");
    }
    // nor is that of another session one
    let again = visitor(&api, &base, "ann", &SCOPES).await;
    let own = nonce_of(&ann.get(&path(&asked)).await);
    let fields = [("nonce", own.as_str()), ("do", "approve:0")];
    assert_eq!(again.post(&path(&asked), &format!("{}/decision", path(&asked)), &fields).await.status, 409);
    assert_eq!(send(&ann, &asked, &[]).await.status, 422, "no button was pressed");
    assert_eq!(asked.statuses(&api).await, ["pending"]);
    let bob = visitor(&api, &base, "bob", &SCOPES).await;
    let fields = [("nonce", own.as_str()), ("do", "approve:0")];
    assert_eq!(bob.post("/ui/approvals", &format!("{}/decision", path(&asked)), &fields).await.status, 404);
    assert_eq!(asked.statuses(&api).await, ["pending"]);
}

async fn reader_without_the_permission_sees_no_form_and_decides_nothing(api: Api) {
    let asked = ask(&api, "ann", vec![note()]).await;
    let base = served(&api).await;
    let reader = visitor(&api, &base, "ann", &["approvals:read"]).await;
    let page = reader.get(&path(&asked)).await;
    page.has("The build is broken");
    page.has("approvals:decide");
    page.lacks("value=\"approve:0\"");
    page.has("deliveries:read");
    let fields = [("do", "approve:0")];
    let refused = reader.post("/ui/approvals", &format!("{}/decision", path(&asked)), &fields).await;
    assert_eq!((refused.status, asked.statuses(&api).await), (403, vec!["pending"]));
}

async fn question_for_input_is_answered_and_a_held_call_stopped(api: Api) {
    let options = vec![ApprovalChoice::Edit, ApprovalChoice::Cancel];
    let arguments = json!({ "room": "lobby" });
    let input = ask(&api, "ann", vec![Proposal { kind: QuestionKind::Input, options, arguments, ..note() }]).await;
    let held = ask(&api, "ann", vec![Proposal { undo_seconds: Some(60), ..note() }]).await;
    let base = served(&api).await;
    let ann = visitor(&api, &base, "ann", &SCOPES).await;
    let missing = send(&ann, &input, &[("do", "answer:0"), ("0.f0", "lobby"), ("0.f3", "")]).await;
    assert_eq!((missing.status, input.statuses(&api).await), (422, vec!["pending"]));
    let given = [("do", "answer:0"), ("0.f0", "lobby"), ("0.f3", "The build is green")];
    let fields = ann.get(&path(&input)).await;
    fields.has("name=\"0.f3\"");
    assert_eq!(send(&ann, &input, &given).await.status, 303);
    let answered = input.only(&api).await;
    assert_eq!(answered.modifications, Some(json!({ "room": "lobby", "text": "The build is green" })));
    assert_eq!(send(&ann, &held, &[("do", "approve:0")]).await.status, 303);
    ann.get(&path(&held)).await.has("value=\"cancel:0\"");
    assert_eq!(send(&ann, &held, &[("do", "cancel:0")]).await.status, 303);
    assert_eq!(held.statuses(&api).await, ["cancelled"]);
}

async fn grants_and_overrides_are_listed_and_revoked(api: Api) {
    let asked = ask(&api, "ann", vec![note()]).await;
    let base = served(&api).await;
    let ann = visitor(&api, &base, "ann", &SCOPES).await;
    ann.get("/ui/approvals/grants").await.has("Nothing is allowed for good.");
    let granted = [("do", "approve:0"), ("0.grant", "yes"), ("0.g0", "yes"), ("0.days", "7")];
    assert_eq!(send(&ann, &asked, &granted).await.status, 303);
    let override_of = json!({ "tenant_id": "ann", "tool": "http_send", "gate": "confirm" });
    let set = api.admin("POST", "/v1/approval-overrides", Some(override_of)).await.expect(201);
    let grants = api.admin("GET", "/v1/grants", None).await.expect(200);
    let grant = grants["items"][0]["id"].as_str().unwrap();
    let (of_grant, set) = (format!("/ui/approvals/grants/{grant}/revoke"), set["id"].as_str().unwrap().to_owned());
    let of_override = format!("/ui/approvals/overrides/{set}/revoke");
    let page = ann.get("/ui/approvals/grants").await;
    page.has("send_note");
    page.has("&quot;room&quot;:&quot;lobby&quot;");
    page.has(&of_grant);
    let overrides = ann.get("/ui/approvals/overrides").await;
    overrides.has("http_send");
    overrides.has(&of_override);

    let bob = visitor(&api, &base, "bob", &SCOPES).await;
    bob.get("/ui/approvals/grants").await.lacks("send_note");
    bob.get("/ui/approvals/overrides").await.lacks("http_send");
    let reader = visitor(&api, &base, "ann", &["approvals:read"]).await;
    reader.get("/ui/approvals/grants").await.lacks(&of_grant);
    for action in [&of_grant, &of_override] {
        assert_eq!(bob.post("/ui/approvals/grants", action, &[]).await.status, 404, "{action}");
        assert_eq!(reader.post("/ui/approvals/grants", action, &[]).await.status, 403, "{action}");
    }
    let revoked = ann.post("/ui/approvals/grants", &of_grant, &[]).await;
    assert_eq!(revoked.location.as_deref(), Some("/ui/approvals/grants?done=revoked"));
    let page = ann.get("/ui/approvals/grants").await;
    page.has("revoked");
    page.lacks(&of_grant);
    let removed = ann.post("/ui/approvals/overrides", &of_override, &[]).await;
    assert_eq!(removed.location.as_deref(), Some("/ui/approvals/overrides?done=revoked"));
    ann.get("/ui/approvals/overrides").await.lacks("http_send");
    assert_eq!(api.store.list_grants(&Scope::Every, None, None, 9).await.unwrap().rows.len(), 1);
}
