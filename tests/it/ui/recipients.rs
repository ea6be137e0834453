//! Recipients: shown without their secrets, edited as JSON, tested, proved and deleted.

use serde_json::{Value, json};

use super::visitor::{admin, visitor};
use crate::api::service::{Api, on_both};

on_both! {
    recipient_is_shown_without_its_secret_and_edited_with_faults_by_field
    recipient_that_is_not_there_is_written_by_those_who_may
    test_message_and_code_are_sent_once_the_channel_is_right
    recipient_of_another_tenant_is_not_there
}

const SECRET: &str = "whsec_c2VjcmV0IGNhbmFyeSBvZiB0aGUgdGVzdHMgMDEyMzQ1Njc=";
const PAGE: &str = "/ui/recipients/ann";

fn recipient() -> Value {
    json!({
        "timezone": "Europe/Berlin", "locale": "de",
        "addresses": { "email": "ann@example.org", "webhook": { "url": "https://example.org/in", "secret": SECRET } },
        "fallback": ["webhook", "email"], "quiet_hours": [{ "from": "22:00", "to": "07:00" }],
    })
}

async fn recipient_is_shown_without_its_secret_and_edited_with_faults_by_field(api: Api) {
    api.admin("PUT", "/v1/recipients/ann", Some(recipient())).await.expect(200);
    let ann = visitor(&api, "ann", &["recipients:read", "recipients:write"]).await;
    let list = ann.get("/ui/recipients").await;
    let shown = ann.get(PAGE).await;
    for page in [&list, &shown] {
        page.has("Europe/Berlin");
        page.has("22:00–07:00");
        page.lacks(SECRET.trim_start_matches("whsec_"));
    }
    list.has(PAGE);
    for text in ["ann@example.org", "webhook, then email", "not verified", "secret_set"] {
        shown.has(text);
    }
    let edit = async |document: &str| ann.post(PAGE, &format!("{PAGE}/edit"), &[("document", document)]).await;
    for (document, place) in [
        ("{ \"timezone\": \"Europe/Berln\" }", "<code>/timezone</code>"),
        ("{ \"addresses\": { \"emial\": \"x\" } }", "<code>/addresses/emial</code>"),
        ("{ \"fallback\": ", "is no JSON"),
    ] {
        let refused = edit(document).await;
        assert_eq!(refused.status, 422, "{document}");
        refused.has(place);
        refused.has(&document.replace('"', "&quot;"));
    }
    // what is shown can be put back, and keeps the secret
    let put_back = json!({ "timezone": "UTC", "addresses": {
        "webhook": { "url": "https://example.org/in", "secret_set": true } } });
    let saved = edit(&put_back.to_string()).await;
    assert_eq!(saved.location.as_deref(), Some("/ui/recipients/ann?done=saved"), "{}", saved.text);
    let stored = api.admin("GET", "/v1/recipients/ann", None).await.expect(200);
    assert_eq!((&stored["timezone"], &stored["addresses"]["webhook"]["secret_set"]), (&json!("UTC"), &json!(true)));
    assert_eq!(stored["addresses"]["email"], Value::Null);

    let delete = format!("{PAGE}/delete");
    ann.get(&delete).await.has("Delete this recipient?");
    assert_eq!(ann.post(PAGE, &delete, &[("form_token", "another")]).await.status, 403);
    assert_eq!(ann.post(&delete, &delete, &[]).await.status, 303);
    api.admin("GET", "/v1/recipients/ann", None).await.expect(404);
}

async fn recipient_that_is_not_there_is_written_by_those_who_may(api: Api) {
    let ann = visitor(&api, "ann", &["recipients:read", "recipients:write"]).await;
    ann.get("/ui/recipients").await.has(PAGE);
    let page = ann.get(PAGE).await;
    assert_eq!(page.status, 200);
    page.has("ann has no recipient yet");
    let document = json!({ "addresses": { "email": "ann@example.org" } }).to_string();
    assert_eq!(ann.post(PAGE, &format!("{PAGE}/edit"), &[("document", document.as_str())]).await.status, 303);
    ann.get(PAGE).await.has("ann@example.org");
    let reader = visitor(&api, "cid", &["recipients:read"]).await;
    assert_eq!(reader.get("/ui/recipients/cid").await.status, 404);
    let admin = admin(&api).await;
    admin.get("/ui/recipients?tenant_id=cid").await.has("/ui/recipients/cid");
    let odd = "/ui/recipients/a%2Fb";
    assert_eq!(admin.post(odd, &format!("{odd}/edit"), &[("document", document.as_str())]).await.status, 303);
    admin.get("/ui/recipients").await.has(odd);
}

async fn test_message_and_code_are_sent_once_the_channel_is_right(api: Api) {
    api.admin("PUT", "/v1/recipients/ann", Some(recipient())).await.expect(200);
    let scopes = ["recipients:read", "recipients:write", "deliveries:read", "deliveries:write"];
    let ann = visitor(&api, "ann", &scopes).await;
    let sent = ann.post(PAGE, &format!("{PAGE}/test"), &[("channel", "email")]).await;
    let [delivery] = deliveries(&api).await.try_into().expect("one delivery");
    let page = format!("/ui/deliveries/{}?done=tested", delivery["id"].as_str().expect("an id"));
    assert_eq!((&delivery["kind"], sent.location), (&json!("test"), Some(page)));
    let refused = ann.post(PAGE, &format!("{PAGE}/test"), &[("channel", "slack")]).await;
    assert_eq!(refused.status, 422);
    refused.has("<code>/channel</code>");
    let verify = format!("{PAGE}/verify");
    let wrong = ann.post(PAGE, &verify, &[("channel", "email"), ("code", "12345")]).await;
    assert_eq!(wrong.status, 422);
    wrong.has("must be 6 digits");
    assert_eq!(ann.post(PAGE, &verify, &[("channel", "email")]).await.status, 303);
    let soon = ann.post(PAGE, &verify, &[("channel", "email")]).await;
    assert_eq!(soon.status, 409, "a code was just sent");
    assert_eq!(deliveries(&api).await.len(), 2);
    let reader = visitor(&api, "ann", &["recipients:read"]).await;
    reader.get(PAGE).await.lacks("/test");
    assert_eq!(reader.post(PAGE, &format!("{PAGE}/test"), &[]).await.status, 403);
}

async fn deliveries(api: &Api) -> Vec<Value> {
    let list = api.admin("GET", "/v1/deliveries", None).await.expect(200);
    list["items"].as_array().expect("deliveries").clone()
}

async fn recipient_of_another_tenant_is_not_there(api: Api) {
    api.admin("PUT", "/v1/recipients/ann", Some(recipient())).await.expect(200);
    let bob = visitor(&api, "bob", &["*"]).await;
    for path in [PAGE, "/ui/recipients/ann/delete", "/ui/recipients/cid"] {
        assert_eq!(bob.get(path).await.status, 404, "{path}");
    }
    bob.get("/ui/recipients").await.lacks("ann@example.org");
    let acts: [(&str, &[(&str, &str)]); 4] =
        [("edit", &[("document", "{}")]), ("test", &[]), ("verify", &[("channel", "email")]), ("delete", &[])];
    for (act, fields) in acts {
        let action = format!("{PAGE}/{act}");
        assert_eq!(bob.post("/ui/recipients", &action, fields).await.status, 404, "{act}");
    }
    assert_eq!(visitor(&api, "ann", &["runs:read"]).await.get("/ui/recipients").await.status, 403);
    let stored = api.admin("GET", "/v1/recipients/ann", None).await.expect(200);
    assert_eq!((&stored["version"], deliveries(&api).await.len()), (&json!(1), 0));
}
