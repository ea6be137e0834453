//! All that the operator and the tenant have put down for agents, over MCP: skills, credentials and facts.

use std::time::Duration;

use reveille::base::clock::pause;
use serde_json::{Value, json};

use super::harness::McpHost;
use crate::api::service::{ADMIN, Api, on_both};

on_both! {
    credentials_are_listed_and_connected_and_never_shown
    facts_are_noted_found_and_deleted_for_their_tenant_alone
}

const CANARY: &str = "canary-7c2e";
/// How long a look at the folders may take.
const LOOKS: usize = 1_000;

fn write(api: &Api, path: &str, text: &str) {
    let file = api.dir.path().join("skills").join(path);
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, text).unwrap();
}

/// Has the folders looked at until there are so many skills.
async fn until_there_are(api: &Api, count: usize) {
    api.advance(11);
    for _ in 0..LOOKS {
        let listed = api.admin("GET", "/v1/skills", None).await.expect(200);
        if listed["items"].as_array().unwrap().len() == count {
            return;
        }
        pause(Duration::from_millis(10)).await;
    }
    panic!("there are not {count} skills");
}

fn simple(name: &str) -> String {
    format!("---\nname: {name}\ndescription: Does {name}.\n---\nDo it.")
}

async fn host(api: &Api, tenant: &str, scopes: &[&str]) -> McpHost {
    McpHost::new(api.app.clone(), &api.token(tenant, scopes).await)
}

const TRIP: &str = "---\nname: trip\ndescription: Plans trips.\nx-team: [ops, 7]\nmetadata:\n  version: 2\n---\n\n\
                    Read [the table](references/table.md).\n";

#[tokio::test]
async fn skills_are_listed_with_their_properties_and_their_files_are_read() {
    let api = Api::new().await;
    write(&api, "trip/SKILL.md", TRIP);
    write(&api, "trip/references/table.md", "| a |\n");
    write(&api, "trip/two words.txt", "x\n");
    write(&api, "broken/SKILL.md", "no properties");
    write(&api, "secret.txt", CANARY);
    until_there_are(&api, 2).await;
    let host = host(&api, "ann", &["tasks:read"]).await;

    let entry = json!({
        "uri": "skill://trip/SKILL.md", "resources": "dynamic",
        "frontmatter": {
            "name": "trip", "description": "Plans trips.", "x-team": ["ops", 7], "metadata": { "version": 2 },
        },
    });
    let kept = json!({ "ttlMs": 60000, "cacheScope": "private", "resultType": "complete" });
    let with = |name: &str, value: Value| {
        let mut expected = kept.clone();
        expected[name] = value;
        expected
    };
    assert_eq!(host.result("skills/list", json!({})).await, with("skills", json!([entry])));
    let got = host.result("skills/get", json!({ "uri": "skill://trip/SKILL.md" })).await;
    assert_eq!(got, with("skill", entry));
    let resource = json!({
        "uri": "skill://trip/SKILL.md", "name": "trip", "description": "Plans trips.", "mimeType": "text/markdown",
    });
    assert_eq!(host.result("resources/list", json!({})).await, with("resources", json!([resource])));
    assert_eq!(host.result("resources/templates/list", json!({})).await, with("resourceTemplates", json!([])));

    for (uri, media_type, text) in [
        ("skill://trip/SKILL.md", "text/markdown", TRIP),
        ("skill://trip/references/table.md", "text/markdown", "| a |\n"),
        ("skill://trip/two%20words.txt", "text/plain", "x\n"),
    ] {
        let read = host.result("resources/read", json!({ "uri": uri })).await;
        let contents = json!([{ "uri": uri, "mimeType": media_type, "text": text }]);
        assert_eq!(read, with("contents", contents), "{uri}");
    }
}

#[tokio::test]
async fn address_of_nothing_is_an_error_that_names_it() {
    let api = Api::new().await;
    write(&api, "trip/SKILL.md", TRIP);
    write(&api, "broken/SKILL.md", "no properties");
    write(&api, "secret.txt", CANARY);
    std::os::unix::fs::symlink(api.dir.path().join("skills/secret.txt"), api.dir.path().join("skills/trip/link"))
        .unwrap();
    until_there_are(&api, 2).await;
    let token = api.token("ann", &["tasks:read"]).await;
    let host = McpHost::new(api.app.clone(), &token);
    for uri in [
        "skill://trip/none.md",
        "skill://trip/link",
        "skill://trip/../secret.txt",
        "skill://trip/%2E%2E/secret.txt",
        "skill://trip//etc/passwd",
        "skill://trips/SKILL.md",
        "skill://broken/SKILL.md",
        "skill://../SKILL.md",
        "skill://trip",
        "test://nonexistent-resource-for-conformance-testing",
    ] {
        let (_, code, error) = host.error("resources/read", json!({ "uri": uri })).await;
        assert_eq!((code, &error["data"]), (-32602, &json!({ "uri": uri })), "{error}");
        assert!(!error.to_string().contains(CANARY));
    }
    for uri in ["skill://trip/references/table.md", "skill://trips/SKILL.md", "test://x"] {
        let (_, code, error) = host.error("skills/get", json!({ "uri": uri })).await;
        assert_eq!((code, &error["data"]["uri"]), (-32602, &json!(uri)), "{error}");
    }
    for method in ["skills/list", "resources/list", "resources/templates/list"] {
        assert_eq!(host.error(method, json!({ "cursor": 7 })).await.1, -32602, "{method}");
    }

    let old = McpHost::new(api.app.clone(), &token).old();
    let (_, code, error) = old.error("resources/read", json!({ "uri": "test://x" })).await;
    assert_eq!((code, &error["data"]["uri"]), (-32002, &json!("test://x")));
    let listed = old.result("resources/list", json!({})).await;
    assert_eq!((listed["resources"].as_array().unwrap().len(), listed.as_object().unwrap().len()), (1, 1), "{listed}");
}

#[tokio::test]
async fn list_of_skills_goes_on_at_its_cursor_until_the_last() {
    let api = Api::new().await;
    for number in 0..60 {
        write(&api, &format!("s{number:02}/SKILL.md"), &simple(&format!("s{number:02}")));
    }
    until_there_are(&api, 60).await;
    let host = host(&api, "ann", &["tasks:read"]).await;
    for (method, list) in [("skills/list", "skills"), ("resources/list", "resources")] {
        let first = host.result(method, json!({})).await;
        assert_eq!(first[list].as_array().unwrap().len(), 50);
        let second = host.result(method, json!({ "cursor": first["nextCursor"] })).await;
        assert_eq!((second[list].as_array().unwrap().len(), second.get("nextCursor")), (10, None));
        assert_eq!(second[list][0]["uri"], "skill://s50/SKILL.md");
    }
}

#[tokio::test]
async fn skills_are_for_tokens_that_may_read_tasks() {
    let api = Api::new().await;
    write(&api, "trip/SKILL.md", TRIP);
    until_there_are(&api, 1).await;
    let other = host(&api, "ann", &["runs:read", "facts:read"]).await;
    let uri = json!({ "uri": "skill://trip/SKILL.md" });
    for (method, params) in [
        ("skills/list", json!({})),
        ("skills/get", uri.clone()),
        ("resources/list", json!({})),
        ("resources/read", uri),
    ] {
        let (_, code, error) = other.error(method, params).await;
        assert!(code == -32000 && error["message"].as_str().unwrap().contains("`tasks:read`"), "{method}: {error}");
    }
}

async fn credentials_are_listed_and_connected_and_never_shown(api: Api) {
    let scopes = ["credentials:read", "credentials:write"];
    let ann = api.token("ann", &scopes).await;
    let body = json!({
        "document": { "key": CANARY }, "hosts": ["api.example.org"], "inject": { "as": "bearer", "from": "/key" },
    });
    for account in ["primary", "work"] {
        let place = format!("/v1/credentials/google/{account}");
        api.ask("PUT", &place, Some(&ann), Some(body.clone())).await.expect(200);
        api.advance(1);
    }
    let host = McpHost::new(api.app.clone(), &ann);
    let listed = host.tool("list_credentials", json!({})).await;
    assert!(!listed.to_string().contains(CANARY), "{listed:#}");
    let shown = |reference: &str| json!({ "reference": reference, "status": "active", "hosts": ["api.example.org"] });
    let items = &listed["structuredContent"]["items"];
    assert_eq!(*items, json!([shown("google/work"), shown("google")]), "{listed:#}");
    let none = host.done("list_credentials", json!({ "service": "mail" })).await;
    assert_eq!(none["items"], json!([]));

    let link = host.tool("connect_credential", json!({ "reference": "google/home" })).await;
    let url = link["structuredContent"]["url"].as_str().unwrap_or_else(|| panic!("no link in {link:#}"));
    assert!(url.starts_with("https://id.example.org/authorize?"), "{url}");
    assert!(link["content"].to_string().contains("owner of the account"), "{link:#}");
    let after = host.done("list_credentials", json!({})).await;
    assert_eq!(after["items"].as_array().unwrap().len(), 2, "a link stores nothing");
    host.refused("connect_credential", json!({ "reference": "mail" })).await;
    let odd = host.refused("connect_credential", json!({ "reference": "a/../b" })).await;
    assert!(odd.contains("`reference`"), "{odd}");
    let document = host.refused("connect_credential", json!({ "reference": "google", "document": CANARY })).await;
    assert!(document.contains("document"), "{document}");

    let bob = self::host(&api, "bob", &scopes).await;
    assert_eq!(bob.done("list_credentials", json!({})).await["items"], json!([]));
    let admin = McpHost::new(api.app.clone(), ADMIN);
    let of_ann = admin.done("list_credentials", json!({ "tenant_id": "ann" })).await;
    assert_eq!(of_ann["items"].as_array().unwrap().len(), 2);
    assert!(admin.refused("connect_credential", json!({ "reference": "google" })).await.contains("tenant_id"));
}

async fn facts_are_noted_found_and_deleted_for_their_tenant_alone(api: Api) {
    let scopes = ["facts:read", "facts:write"];
    let host = host(&api, "ann", &scopes).await;
    let tea = host.done("remember", json!({ "text": "Likes tea.", "collection": "preferences/food" })).await;
    assert_eq!((&tea["text"], &tea["origin"]), (&json!("Likes tea."), &json!("person")));
    api.advance(1);
    host.done("remember", json!({ "text": "Has a dog." })).await;
    let found = host.done("recall", json!({ "q": "TEA" })).await;
    assert_eq!(found["items"], json!([tea]));
    let listed = host.done("list_facts", json!({})).await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 2);
    let below = host.done("list_facts", json!({ "collection": "preferences" })).await;
    assert_eq!(below["items"], json!([tea]));
    let first = host.tool("list_facts", json!({ "limit": 1 })).await;
    let cursor = &first["structuredContent"]["next_cursor"];
    assert!(first["content"].to_string().contains("next_cursor"), "{first:#}");
    let second = host.done("list_facts", json!({ "limit": 1, "cursor": cursor })).await;
    assert_eq!(second["items"], json!([tea]));
    for (text, field) in [(json!({ "text": "" }), "text"), (json!({ "text": "x", "collection": "A b" }), "collection")]
    {
        let refused = host.refused("remember", text).await;
        assert!(refused.contains(field), "{refused}");
    }
    host.refused("recall", json!({ "q": "x".repeat(201) })).await;

    let bob = self::host(&api, "bob", &scopes).await;
    assert_eq!(bob.done("recall", json!({ "q": "tea" })).await["items"], json!([]));
    bob.refused("forget", json!({ "id": tea["id"] })).await;
    let reader = self::host(&api, "ann", &["facts:read"]).await;
    assert!(reader.refused("forget", json!({ "id": tea["id"] })).await.contains("facts:write"));
    let gone = host.done("forget", json!({ "id": tea["id"] })).await;
    assert_eq!(gone, json!({ "id": tea["id"], "deleted": true }));
    assert_eq!(host.done("recall", json!({ "q": "tea" })).await["items"], json!([]));
    host.refused("forget", json!({ "id": tea["id"] })).await;
}
