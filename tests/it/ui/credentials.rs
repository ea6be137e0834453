//! Credentials: shown without their documents, with their tasks and uses; connected by a link; deleted.

use reveille::domain::credential::CredentialUse;
use serde_json::{Value, json};

use super::visitor::{admin, visitor};
use crate::api::credentials::use_of;
use crate::api::service::{Api, on_both};

on_both! {
    credential_is_shown_with_its_uses_and_never_with_its_document
    account_is_connected_by_a_link_to_the_provider
    credential_is_deleted_by_the_form_of_its_page_alone
    credential_of_another_tenant_is_not_there
}

const CANARY: &str = "canary-6f1d";
const PAGE: &str = "/ui/credentials/google/work";
const CONNECT: &str = "/ui/credentials/connect";
const PLACE: &str = "/v1/credentials/google/work?tenant_id=ann";

async fn put(api: &Api) {
    let credential = json!({
        "document": { "id": 7, "key": CANARY }, "hosts": ["api.example.org"],
        "inject": { "as": "header", "name": "X-Key", "from": "/key" },
    });
    api.admin("PUT", PLACE, Some(credential)).await.expect(200);
}

async fn used(api: &Api, host: &str, outcome: &str) {
    let used = use_of(api, host, outcome);
    api.store.note_credential_use(&used).await.expect("noted");
}

async fn credential_is_shown_with_its_uses_and_never_with_its_document(api: Api) {
    put(&api).await;
    for number in 0..50 {
        used(&api, &format!("host{number}.example.org"), CredentialUse::USED).await;
    }
    used(&api, "<script>alert(1)</script>\u{202e}", "not_for_host").await;
    let ann = visitor(&api, "ann", &["credentials:read"]).await;
    let list = ann.get("/ui/credentials").await;
    let shown = ann.get(PAGE).await;
    for page in [&list, &shown] {
        page.has("google/work");
        page.has("api.example.org");
        page.has("<span class=\"badge good\">active</span>");
        page.lacks(CANARY);
    }
    list.has(PAGE);
    list.lacks("/ui/credentials/connect");
    for text in ["X-Key", "not for host", "&lt;script&gt;alert(1)&lt;/script&gt;\u{27e6}U+202E\u{27e7}", "Next 50"] {
        shown.has(text);
    }
    for text in ["<script>alert", "name=\"document\"", "/delete", "host0.example.org"] {
        shown.lacks(text);
    }
    ann.get("/ui/credentials?service=shop").await.has("Nothing fits these filters.");
    // an admin names the tenant in each address
    let admin = admin(&api).await;
    admin.get("/ui/credentials").await.has("/ui/credentials/google/work?tenant_id=ann");
    let shown = admin.get("/ui/credentials/google/work?tenant_id=ann").await;
    shown.has("/ui/credentials/google/work/delete?tenant_id=ann");
    assert_eq!(admin.get(PAGE).await.status, 400);
}

async fn account_is_connected_by_a_link_to_the_provider(api: Api) {
    let ann = visitor(&api, "ann", &["credentials:write"]).await;
    let before = api.written().await;
    ann.get("/ui/credentials/connect").await.has("name=\"service\"");
    // a provider may be asked for the link, so it is made by a form alone
    let named = ann.get("/ui/credentials/connect?service=google&account_name=work").await;
    named.has("value=\"google\"");
    named.lacks("https://id.example.org");
    let page = ann.post(CONNECT, CONNECT, &[("service", "google"), ("account_name", "work")]).await;
    assert_eq!(page.status, 200);
    page.has("href=\"https://id.example.org/authorize?");
    page.has("rel=\"noreferrer noopener external\"");
    assert_eq!(ann.post(CONNECT, CONNECT, &[("service", "google"), ("form_token", "another")]).await.status, 403);
    assert_eq!(ann.post(CONNECT, CONNECT, &[]).await.status, 422);
    let unknown = ann.post(CONNECT, CONNECT, &[("service", "nothing")]).await;
    assert_eq!(unknown.status, 404);
    unknown.has("reveille credential set");
    unknown.has("value=\"nothing\"");
    let reader = visitor(&api, "ann", &["credentials:read"]).await;
    assert_eq!(reader.post("/ui/credentials", CONNECT, &[("service", "google")]).await.status, 403);
    reader.get(CONNECT).await.has("credentials:write");
    let of_credentials = |written: Vec<(String, String)>| {
        written.into_iter().filter(|(table, _)| table.starts_with("credential")).collect::<Vec<_>>()
    };
    assert_eq!(of_credentials(api.written().await), of_credentials(before), "to look stores nothing");
    let admin = admin(&api).await;
    let nobody = admin.post(CONNECT, CONNECT, &[("service", "google")]).await;
    assert_eq!(nobody.status, 400);
    nobody.has("/tenant_id");
    let of_ann = [("service", "google"), ("tenant_id", "ann")];
    admin.post(CONNECT, CONNECT, &of_ann).await.has("https://id.example.org/authorize?");
    api.admin("POST", "/v1/tenants/ann/disable", None).await.expect(200);
    assert_eq!(ann.post(CONNECT, CONNECT, &of_ann[..1]).await.status, 403, "a disabled tenant connects nothing");
}

async fn credential_is_deleted_by_the_form_of_its_page_alone(api: Api) {
    put(&api).await;
    let task = json!({
        "tenant_id": "ann", "name": "Reads <b>mail</b>", "output": null,
        "trigger": { "type": "schedule", "cron": "@yearly" },
        "action": { "instruction": "Read my mail.", "config": { "credentials": ["google/work"] } },
    });
    api.admin("POST", "/v1/tasks", Some(task)).await.expect(201);
    let ann = visitor(&api, "ann", &["credentials:read", "credentials:write"]).await;
    let delete = format!("{PAGE}/delete");
    let shown = ann.get(PAGE).await;
    shown.has(&delete);
    shown.has("Reads &lt;b&gt;mail&lt;/b&gt;");
    ann.get(&delete).await.has("Delete this credential?");
    assert_eq!(ann.post(PAGE, &delete, &[("form_token", "another")]).await.status, 403);
    let reader = visitor(&api, "ann", &["credentials:read"]).await;
    assert_eq!(reader.post(PAGE, &delete, &[]).await.status, 403);
    api.admin("GET", PLACE, None).await.expect(200);
    let done = ann.post(&delete, &delete, &[]).await;
    assert_eq!((done.status, done.location.as_deref()), (303, Some("/ui/credentials?done=deleted")));
    api.admin("GET", PLACE, None).await.expect(404);
    put(&api).await;
    let admin = admin(&api).await;
    let of_ann = format!("{delete}?tenant_id=ann");
    assert_eq!(admin.post(&of_ann, &of_ann, &[]).await.status, 303);
    api.admin("GET", PLACE, None).await.expect(404);
}

async fn credential_of_another_tenant_is_not_there(api: Api) {
    put(&api).await;
    let bob = visitor(&api, "bob", &["*"]).await;
    let delete = format!("{PAGE}/delete");
    let named = format!("{PAGE}?tenant_id=ann");
    for path in [PAGE, &named, &delete] {
        assert_eq!(bob.get(path).await.status, 404, "{path}");
    }
    let of_ann = [("service", "google"), ("tenant_id", "ann")];
    assert_eq!(bob.post("/ui/credentials", CONNECT, &of_ann).await.status, 404);
    bob.get("/ui/credentials").await.lacks("google/work");
    for action in [delete.clone(), format!("{delete}?tenant_id=ann")] {
        assert_eq!(bob.post("/ui/credentials", &action, &[]).await.status, 404, "{action}");
    }
    assert_eq!(visitor(&api, "ann", &["runs:read"]).await.get("/ui/credentials").await.status, 403);
    let kept: Value = api.admin("GET", PLACE, None).await.expect(200);
    assert_eq!(kept["version"], 1);
}
