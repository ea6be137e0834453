//! Memory: facts are found, noted, corrected, exported and deleted.

use serde_json::{Value, json};

use super::visitor::{admin, visitor};
use crate::api::service::{Api, on_both};

on_both! {
    fact_is_noted_corrected_and_deleted_with_its_earlier_versions_shown
    facts_are_filtered_by_collection_and_words
    facts_are_exported_whole
    facts_of_another_tenant_are_not_there
}

const HOSTILE: &str = "<script>alert(1)</script>\u{202e}";
const HARMLESS: &str = "&lt;script&gt;alert(1)&lt;/script&gt;\u{27e6}U+202E\u{27e7}";

async fn note(api: &Api, tenant: &str, text: &str, collection: &str) -> String {
    let fact = json!({ "tenant_id": tenant, "text": text, "collection": collection });
    api.admin("POST", "/v1/facts", Some(fact)).await.expect(201)["id"].as_str().expect("an id").to_owned()
}

async fn fact_is_noted_corrected_and_deleted_with_its_earlier_versions_shown(api: Api) {
    let ann = visitor(&api, "ann", &["facts:read", "facts:write"]).await;
    ann.get("/ui/memory").await.has("/ui/memory/new");
    let add = async |text: &str, collection: &str| {
        ann.post("/ui/memory/new", "/ui/memory/new", &[("text", text), ("collection", collection)]).await
    };
    let refused = add("Prefers window seats.", "No path").await;
    assert_eq!(refused.status, 422);
    refused.has("Prefers window seats.");
    refused.has("value=\"No path\"");
    refused.has("<code>/collection</code>");
    let added = add("Prefers window seats.", "preferences/travel").await;
    assert_eq!(added.status, 303, "{}", added.text);
    let page = added.location.expect("the fact").replace("?done=added", "");
    ann.get("/ui/memory").await.has("Prefers window seats.");

    let correct = format!("{page}/correct");
    let change =
        async |text: &str| ann.post(&page, &correct, &[("text", text), ("collection", "preferences/travel")]).await;
    assert_eq!(change("Prefers window seats.").await.status, 422, "nothing was changed");
    let done = change("Prefers aisle seats.").await;
    assert_eq!(done.location, Some(format!("{page}?done=corrected")), "{}", done.text);
    let shown = ann.get(&page).await;
    for text in ["Prefers aisle seats.", "Prefers window seats.", "Earlier versions", "preferences/travel"] {
        shown.has(text);
    }
    note(&api, "ann", "Likes tea.", "").await;
    let conflict = change("Likes tea.").await;
    assert_eq!(conflict.status, 409);
    conflict.has("says the same");

    let delete = format!("{page}/delete");
    ann.get(&delete).await.has("Delete this fact?");
    assert_eq!(ann.post(&page, &delete, &[("form_token", "another")]).await.status, 403);
    assert_eq!(ann.get(&page).await.status, 200);
    assert_eq!(ann.post(&delete, &delete, &[]).await.status, 303);
    assert_eq!(ann.get(&page).await.status, 404);
}

async fn facts_are_filtered_by_collection_and_words(api: Api) {
    note(&api, "ann", "Prefers window seats.", "preferences/travel").await;
    note(&api, "ann", "Likes TEA.", "preferences").await;
    note(&api, "ann", HOSTILE, "").await;
    note(&api, "bob", "Owns a boat.", "").await;
    let ann = visitor(&api, "ann", &["facts:read"]).await;
    let all = ann.get("/ui/memory").await;
    all.has(HARMLESS);
    all.lacks("<script>alert");
    all.lacks("Owns a boat.");
    all.lacks("/ui/memory/new");
    let of = ann.get("/ui/memory?collection=preferences%2Ftravel&q=").await;
    of.has("Prefers window seats.");
    of.lacks("Likes TEA.");
    ann.get("/ui/memory?q=tea").await.has("Likes TEA.");
    ann.get("/ui/memory?q=coffee").await.has("Nothing fits these filters.");
    ann.get("/ui/memory?collection=A").await.has("/collection");
    // an admin searches one tenant at a time, and is told so
    let admin = admin(&api).await;
    admin.get("/ui/memory").await.has("Owns a boat.");
    let refused = admin.get("/ui/memory?q=boat").await;
    assert_eq!(refused.status, 200);
    refused.has("/tenant_id");
    admin.get("/ui/memory?q=boat&tenant_id=bob").await.has("Owns a boat.");
}

async fn facts_are_exported_whole(api: Api) {
    for number in 0..201 {
        note(&api, "ann", &format!("Fact {number}."), "").await;
    }
    note(&api, "bob", "Owns a boat.", "").await;
    let ann = visitor(&api, "ann", &["facts:read"]).await;
    ann.get("/ui/memory").await.has("/ui/memory/export");
    let export = async |query: &str| {
        let file = ann.get(&format!("/ui/memory/export{query}")).await;
        assert_eq!(file.status, 200);
        serde_json::from_str::<Vec<Value>>(&file.text).expect("a list")
    };
    let facts = export("").await;
    assert_eq!(facts.len(), 201);
    assert!(facts.iter().all(|fact| fact["tenant_id"] == "ann"));
    assert_eq!(export("?q=Fact%20200").await[0]["text"], "Fact 200.");
    assert_eq!(export("?q=nothing").await, Vec::<Value>::new());
    let admin = admin(&api).await;
    assert_eq!(admin.get("/ui/memory/export").await.status, 422, "it names a tenant");
    admin.get("/ui/memory/export?tenant_id=bob").await.has("Owns a boat.");
    let other = visitor(&api, "ann", &["runs:read"]).await;
    assert_eq!(other.get("/ui/memory/export").await.status, 403);
}

async fn facts_of_another_tenant_are_not_there(api: Api) {
    let id = note(&api, "ann", "Prefers window seats.", "").await;
    let bob = visitor(&api, "bob", &["*"]).await;
    for path in [format!("/ui/memory/{id}"), format!("/ui/memory/{id}/delete"), "/ui/memory/none".into()] {
        assert_eq!(bob.get(&path).await.status, 404, "{path}");
    }
    let acts: [(&str, &[(&str, &str)]); 2] = [("correct", &[("text", "Mine.")]), ("delete", &[])];
    for (act, fields) in acts {
        let action = format!("/ui/memory/{id}/{act}");
        assert_eq!(bob.post("/ui/memory", &action, fields).await.status, 404, "{act}");
    }
    let reader = visitor(&api, "ann", &["facts:read"]).await;
    let page = format!("/ui/memory/{id}");
    reader.get(&page).await.lacks("/correct");
    assert_eq!(reader.post(&page, &format!("{page}/correct"), &[("text", "Mine.")]).await.status, 403);
    reader.get("/ui/memory/new").await.has("facts:write");
    assert_eq!(visitor(&api, "ann", &["runs:read"]).await.get("/ui/memory").await.status, 403);
    let fact = api.admin("GET", &format!("/v1/facts/{id}"), None).await.expect(200);
    assert_eq!((&fact["text"], &fact["version"]), (&json!("Prefers window seats."), &json!(1)));
}
