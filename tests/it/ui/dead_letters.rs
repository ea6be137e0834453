//! The pages of dead letters: why they died, and replay and drop of one and of many.

use serde_json::json;

use super::visitor::{Visitor, served};
use crate::api::service::{ADMIN, Api, on_both};

on_both! {
    letters_are_shown_by_their_filters_and_to_their_tenant_alone
    letter_is_replayed_or_after_a_question_dropped
    all_that_the_filters_show_are_dealt_with_after_a_page_that_counts_them
}

/// How many letters there are.
async fn left(api: &Api) -> usize {
    let letters = api.admin("GET", "/v1/dead-letters", None).await.expect(200);
    letters["items"].as_array().unwrap().len()
}

async fn letters_are_shown_by_their_filters_and_to_their_tenant_alone(api: Api) {
    let id = api.dead_letter("ann", "the filter broke <script>alert(1)</script>").await;
    let of_bob = api.dead_letter("bob", "no such thing").await;
    let base = served(&api).await;
    let ann = Visitor::signed_in(&base, &api.token("ann", &["dead_letters:read"]).await).await;
    let page = ann.get("/ui/dead-letters").await;
    page.has(&format!("/ui/dead-letters/{id}"));
    page.has("the filter broke &lt;script&gt;");
    page.lacks("<script>alert");
    page.lacks("no such thing");
    page.lacks("Replay");
    ann.get("/ui/dead-letters?error=timed").await.has("Nothing fits these filters.");
    let one = ann.get(&format!("/ui/dead-letters/{id}")).await;
    assert_eq!(one.status, 200);
    for text in ["the filter broke", "mail.new", "&quot;n&quot;: 1", "/ui/events/"] {
        one.has(text);
    }
    for path in [of_bob.as_str(), "none"] {
        assert_eq!(ann.get(&format!("/ui/dead-letters/{path}")).await.status, 404);
    }
    Visitor::signed_in(&base, ADMIN).await.get("/ui/dead-letters?tenant_id=bob").await.lacks("the filter broke");
    let other = Visitor::signed_in(&base, &api.token("ann", &["events:read"]).await).await;
    assert_eq!(other.get("/ui/dead-letters").await.status, 403);
}

async fn letter_is_replayed_or_after_a_question_dropped(api: Api) {
    let (first, second) = (api.dead_letter("ann", "a").await, api.dead_letter("ann", "b").await);
    let base = served(&api).await;
    let scopes = ["dead_letters:read", "dead_letters:write"];
    let ann = Visitor::signed_in(&base, &api.token("ann", &scopes).await).await;
    let reader = Visitor::signed_in(&base, &api.token("ann", &["dead_letters:read"]).await).await;
    let path = |id: &str, action: &str| format!("/ui/dead-letters/{id}/{action}");
    assert_eq!(reader.post("/ui/dead-letters", &path(&first, "replay"), &[]).await.status, 403);
    let bob = Visitor::signed_in(&base, &api.token("bob", &scopes).await).await;
    assert_eq!(bob.post("/ui/dead-letters", &path(&first, "replay"), &[]).await.status, 404);
    assert_eq!(left(&api).await, 2);
    let replayed = ann.post("/ui/dead-letters", &path(&first, "replay"), &[]).await;
    assert_eq!(replayed.location.as_deref(), Some("/ui/dead-letters?done=replayed"));
    assert_eq!((left(&api).await, api.store.event_backlog().await.unwrap().unread), (1, 1));
    let question = ann.get(&path(&second, "drop")).await;
    question.has("Drop this dead letter?");
    assert_eq!(left(&api).await, 1, "the question drops nothing");
    let dropped = ann.post(&path(&second, "drop"), &path(&second, "drop"), &[]).await;
    assert_eq!(dropped.location.as_deref(), Some("/ui/dead-letters?done=dropped"));
    assert_eq!((left(&api).await, api.store.event_backlog().await.unwrap().unread), (0, 1));
    ann.get("/ui/dead-letters").await.has("There are no dead letters.");
}

async fn all_that_the_filters_show_are_dealt_with_after_a_page_that_counts_them(api: Api) {
    for error in ["timed out", "timed out", "no such thing"] {
        api.dead_letter("ann", error).await;
    }
    api.dead_letter("bob", "timed out").await;
    let base = served(&api).await;
    let scopes = ["dead_letters:read", "dead_letters:write"];
    let ann = Visitor::signed_in(&base, &api.token("ann", &scopes).await).await;
    ann.get("/ui/dead-letters?error=timed").await.has("/ui/dead-letters/replay?error=timed");
    let question = ann.get("/ui/dead-letters/replay?error=timed").await;
    question.has("<b>2</b> dead letters");
    question.has("name=\"error\" value=\"timed\"");
    assert_eq!(left(&api).await, 4, "the question replays nothing");
    let fields = [("error", "timed"), ("count", "2")];
    let replayed = ann.post("/ui/dead-letters/replay?error=timed", "/ui/dead-letters/replay", &fields).await;
    assert_eq!(replayed.location.as_deref(), Some("/ui/dead-letters?done=all_replayed"));
    assert_eq!((left(&api).await, api.store.event_backlog().await.unwrap().unread), (2, 2));
    ann.get("/ui/dead-letters/replay?error=timed").await.has("No dead letter fits.");

    let admin = Visitor::signed_in(&base, ADMIN).await;
    let question = admin.get("/ui/dead-letters/drop?tenant_id=bob").await;
    question.has("<b>1</b> dead letter");
    let dropped = admin.post("/ui/dead-letters/drop", "/ui/dead-letters/drop", &[("tenant_id", "bob"), ("count", "1")]);
    assert_eq!(dropped.await.location.as_deref(), Some("/ui/dead-letters?done=all_dropped"));
    let letters = api.admin("GET", "/v1/dead-letters", None).await.expect(200);
    assert_eq!(letters["items"][0]["tenant_id"], json!("ann"));
    assert_eq!(left(&api).await, 1);
}
