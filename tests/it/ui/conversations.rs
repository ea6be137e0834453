//! Conversations: listed, read page by page, and deleted once somebody has said so twice.

use reveille::domain::run::RunState;
use reveille::store::Finish;
use serde_json::{Value, json};
use uuid::Uuid;

use super::visitor::visitor;
use crate::api::service::{Api, on_both};
use crate::support::world::claim_ready;

on_both! {
    conversation_is_listed_and_shows_each_message_with_its_answer
    messages_are_read_page_by_page
    conversation_is_deleted_by_the_form_of_its_page_alone
    conversation_of_another_tenant_is_not_there
}

const HOSTILE: &str = "<script>alert(1)</script>\u{202e}";
const HARMLESS: &str = "&lt;script&gt;alert(1)&lt;/script&gt;\u{27e6}U+202E\u{27e7}";

/// Says something; the ids of the conversation and of the run.
async fn say(api: &Api, tenant: &str, message: &str, conversation: Option<&str>) -> (String, String) {
    let body = json!({ "tenant_id": tenant, "message": message, "conversation_id": conversation });
    let said = api.admin("POST", "/v1/chat", Some(body)).await.expect(202);
    let text = |value: &Value| value.as_str().expect("an id").to_owned();
    (text(&said["conversation_id"]), text(&said["run_id"]))
}

/// Answers the message that waits.
async fn answer(api: &Api, text: &str) {
    let now = api.clock.now();
    let claim = claim_ready(&api.store, Uuid::from_u128(1), now, 1).await.pop().expect("a run that is ready");
    let started = api.store.start_runs(&[claim.lease], now + chrono::TimeDelta::minutes(1)).await.unwrap().started;
    let end = Finish::of(started[0].lease, started[0].run.task_id, RunState::Succeeded);
    let end = Finish { output: Some(text.into()), ..end };
    assert_eq!(api.store.finish_runs(&[end]).await.unwrap(), [] as [Uuid; 0]);
}

async fn conversation_is_listed_and_shows_each_message_with_its_answer(api: Api) {
    let (id, run) = say(&api, "ann", HOSTILE, None).await;
    answer(&api, &format!("{HOSTILE}{}", "x".repeat(1_000))).await;
    let (_, waiting) = say(&api, "ann", "And you?", Some(&id)).await;
    let ann = visitor(&api, "ann", &["runs:read"]).await;
    let page = format!("/ui/conversations/{id}");
    let list = ann.get("/ui/conversations").await;
    list.has(&page);
    list.has(HARMLESS);
    list.lacks("<script>alert");
    let shown = ann.get(&page).await;
    assert_eq!(shown.status, 200);
    assert!(shown.text.matches(HARMLESS).count() >= 2, "{}", shown.text);
    for (text, is_there) in [("<script>alert", false), ("\u{202e}", false), ("/delete", false), ("And you?", true)] {
        assert_eq!(shown.text.contains(text), is_there, "{text}");
    }
    shown.has("All of it is in the run");
    for run in [run, waiting] {
        shown.has(&format!("/ui/runs/{run}"));
    }
}

async fn messages_are_read_page_by_page(api: Api) {
    let (id, first) = say(&api, "ann", "message 0", None).await;
    for number in 1..=50 {
        say(&api, "ann", &format!("message {number}"), Some(&id)).await;
    }
    let ann = visitor(&api, "ann", &["runs:read"]).await;
    let page = ann.get(&format!("/ui/conversations/{id}")).await;
    page.has("message 50");
    page.lacks(&first);
    let (_, rest) = page.text.split_once(&format!("href=\"/ui/conversations/{id}?cursor=")).expect("the next page");
    let cursor = rest.split_once('"').expect("a link").0;
    let next = ann.get(&format!("/ui/conversations/{id}?cursor={cursor}")).await;
    next.has(&first);
    next.lacks("message 50");
}

async fn conversation_is_deleted_by_the_form_of_its_page_alone(api: Api) {
    let (id, _) = say(&api, "ann", "Hello", None).await;
    let ann = visitor(&api, "ann", &["runs:read", "runs:write"]).await;
    let page = format!("/ui/conversations/{id}");
    let asked = format!("{page}/delete");
    ann.get(&page).await.has(&asked);
    ann.get(&asked).await.has("Delete this conversation?");
    assert_eq!(ann.post(&page, &asked, &[("form_token", "another")]).await.status, 403);
    assert_eq!(ann.get(&page).await.status, 200, "to look changes nothing");
    let reader = visitor(&api, "ann", &["runs:read"]).await;
    assert_eq!(reader.post(&page, &asked, &[]).await.status, 403);
    let done = ann.post(&asked, &asked, &[]).await;
    assert_eq!((done.status, done.location.as_deref()), (303, Some("/ui/conversations?done=deleted")));
    assert_eq!(ann.get(&page).await.status, 404);
    ann.get("/ui/conversations").await.has("Nobody has said anything yet.");
}

async fn conversation_of_another_tenant_is_not_there(api: Api) {
    let (id, _) = say(&api, "ann", "Hello", None).await;
    let bob = visitor(&api, "bob", &["*"]).await;
    for path in
        [format!("/ui/conversations/{id}"), format!("/ui/conversations/{id}/delete"), "/ui/conversations/x".into()]
    {
        assert_eq!(bob.get(&path).await.status, 404, "{path}");
    }
    bob.get("/ui/conversations").await.lacks(&id);
    let action = format!("/ui/conversations/{id}/delete");
    assert_eq!(bob.post("/ui/conversations", &action, &[]).await.status, 404);
    let none = visitor(&api, "ann", &["facts:read"]).await;
    let refused = none.get("/ui/conversations").await;
    assert_eq!(refused.status, 403);
    refused.has("runs:read");
    api.admin("GET", &format!("/v1/conversations/{id}"), None).await.expect(200);
}
