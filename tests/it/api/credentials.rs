//! Credentials over HTTP: put, shown without their documents, held against how they are used.

use reveille::base::id::{Scope, new_id};
use reveille::domain::credential::CredentialUse;
use reveille::ports::vault::{self, Vault, WithoutKeys};
use serde_json::{Value, json};

use super::service::{Api, on_both, only};

const CANARY: &str = "canary-6f1d";

on_both! {
    credential_is_put_shown_kept_and_deleted
    uses_of_a_credential_and_its_tasks_are_shown
    admin_puts_everything_under_the_first_key_and_is_told_what_is_needed
    document_that_is_kept_goes_nowhere_that_its_owner_has_not_bound_it_to
    of_those_who_keep_a_document_at_once_the_late_ones_are_told_that_it_was_written_meanwhile
}

fn body() -> Value {
    json!({
        "document": { "id": 7, "key": CANARY }, "hosts": ["API.example.org", "*.example.net:8443"],
        "inject": { "as": "header", "name": "X-Key", "from": "/key" },
    })
}

async fn credential_is_put_shown_kept_and_deleted(api: Api) {
    let ann = api.token("ann", &["credentials:read", "credentials:write"]).await;
    let place = "/v1/credentials/google/work";
    let made = api.ask("PUT", place, Some(&ann), Some(body())).await.expect(200);
    let expected = json!({
        "id": made["id"], "tenant_id": "ann", "service": "google", "account_name": "work",
        "hosts": ["api.example.org", "*.example.net:8443"],
        "inject": { "as": "header", "name": "X-Key", "from": "/key" }, "oauth": null, "status": "active",
        "status_reason": null, "expires_at": null, "version": 1, "created_at": "2026-11-21T00:00:00Z",
        "updated_at": "2026-11-21T00:00:00Z", "last_used_at": null, "tasks": [],
    });
    let mut saved = expected.clone();
    saved["resumed"] = json!([]);
    assert_eq!(made, saved);
    assert_eq!(api.ask("GET", place, Some(&ann), None).await.expect(200), expected);
    let as_admin = format!("{place}?tenant_id=ann");
    assert_eq!(api.admin("GET", &as_admin, None).await.expect(200), expected);
    let nobody = api.admin("GET", place, None).await.expect(400);
    assert_eq!(nobody["errors"][0]["message"], "is missing: an admin token names the tenant");

    // a field that is left out is kept, if it is fit for the new way of use
    let narrow = json!({ "hosts": ["b.example.net:8443"], "inject": { "as": "bearer", "from": "/key" } });
    let narrow = api.ask("PUT", place, Some(&ann), Some(narrow)).await.expect(200);
    assert_eq!((&narrow["version"], &narrow["hosts"]), (&json!(2), &json!(["b.example.net:8443"])));
    let unfit = json!({ "inject": { "as": "bearer", "from": "/token" } });
    let problem = api.ask("PUT", place, Some(&ann), Some(unfit)).await.expect(422);
    assert_eq!(problem["errors"][0]["pointer"], "/inject/from");
    let stored = api.store.get_credential(&only("ann"), "ann", "google", "work").await.unwrap();
    let (vault, _) = Vault::open(&vault::Settings::default(), WithoutKeys::KeyFile(api.dir.path())).unwrap();
    let document = vault.open_document(&stored).unwrap();
    assert_eq!(serde_json::from_str::<Value>(document.expose()).unwrap(), body()["document"]);

    let list = api.ask("GET", "/v1/credentials?service=google", Some(&ann), None).await.expect(200);
    assert_eq!((list["items"].as_array().unwrap().len(), &list["items"][0]["version"]), (1, &json!(2)));
    assert!(!list.to_string().contains(CANARY) && !list.to_string().contains("v1:"));
    assert_eq!(api.ask("DELETE", place, Some(&ann), None).await.status, 204);
    for method in ["GET", "DELETE"] {
        let gone = api.ask(method, place, Some(&ann), None).await.expect(404);
        assert_eq!(gone["detail"], "there is no such credential");
    }
    let acts = api.admin("GET", "/v1/audit?tenant_id=ann", None).await.expect(200);
    let acts: Vec<&Value> = acts["items"].as_array().unwrap().iter().map(|act| &act["action"]).collect();
    assert_eq!(acts, ["credential.deleted", "credential.put", "credential.put"]);
}

async fn document_that_is_kept_goes_nowhere_that_its_owner_has_not_bound_it_to(api: Api) {
    let thief = api.token("ann", &["credentials:write"]).await;
    let place = "/v1/credentials/google/work";
    let own = json!({ "token_url": "https://id.example.org/token", "client_id": "c" });
    let whole = json!({ "document": { "access_token": CANARY }, "hosts": ["*.example.org"], "oauth": own });
    api.ask("PUT", place, Some(&thief), Some(whole.clone())).await.expect(200);
    let put = async |change: Value| {
        let mut body = json!({ "hosts": ["*.example.org"], "oauth": own });
        body.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        api.ask("PUT", place, Some(&thief), Some(body)).await
    };
    let hosts = "send the document again: without it hosts can be taken away, and none be added";
    let oauth =
        "send the document again: without it `provider`, `issuer`, `token_url` and `client_id` stay as they are";
    for (change, pointer, message) in [
        (json!({ "hosts": ["evil.example"] }), "/hosts", hosts),
        (json!({ "hosts": ["a.example.org", "example.org"] }), "/hosts", hosts),
        (json!({ "oauth": { "token_url": "https://evil.example/", "client_id": "c" } }), "/oauth", oauth),
        (json!({ "oauth": { "token_url": own["token_url"], "client_id": "evil" } }), "/oauth", oauth),
        (json!({ "oauth": { "provider": "google" } }), "/oauth", oauth),
    ] {
        let refused = put(change.clone()).await.expect(422);
        assert_eq!(refused["errors"], json!([{ "pointer": pointer, "message": message }]), "{change}");
    }
    let stored = api.store.get_credential(&only("ann"), "ann", "google", "work").await.unwrap().credential;
    assert_eq!((stored.version, stored.hosts), (1, vec!["*.example.org".into()]));
    // whoever knows the document may take it anywhere
    let mut elsewhere = whole;
    elsewhere["hosts"] = json!(["b.example.net"]);
    assert_eq!(api.ask("PUT", place, Some(&thief), Some(elsewhere)).await.expect(200)["version"], 2);
    // less is always possible
    let less = put(json!({ "hosts": [], "oauth": null })).await.expect(200);
    assert_eq!((&less["hosts"], &less["oauth"], &less["version"]), (&json!([]), &Value::Null, &json!(3)));
    let back = put(json!({ "hosts": [] })).await.expect(422);
    assert_eq!(back["errors"], json!([{ "pointer": "/oauth", "message": oauth }]));
}

async fn of_those_who_keep_a_document_at_once_the_late_ones_are_told_that_it_was_written_meanwhile(api: Api) {
    let place = "/v1/credentials/google/work?tenant_id=ann";
    let mut version = api.admin("PUT", place, Some(body())).await.expect(200)["version"].as_i64().unwrap();
    for round in 0.. {
        let kept = json!({ "hosts": ["api.example.org"], "inject": body()["inject"] });
        let puts = (0..8).map(|_| api.admin("PUT", place, Some(kept.clone())));
        let (written, refused): (Vec<_>, Vec<_>) =
            futures::future::join_all(puts).await.into_iter().partition(|reply| reply.status == 200);
        version += i64::try_from(written.len()).unwrap();
        assert_eq!(api.admin("GET", place, None).await.expect(200)["version"], version);
        let is_over = !refused.is_empty();
        for late in refused {
            let why = "the credential was written meanwhile; read it and try again";
            assert_eq!(late.expect(409)["detail"], why);
        }
        if is_over {
            return;
        }
        assert!(round < 50, "nobody was late");
    }
}

/// A use of ann's `google/work` by a poll, now.
pub fn use_of(api: &Api, host: &str, outcome: &str) -> CredentialUse {
    CredentialUse {
        id: new_id(api.clock.now()),
        tenant_id: "ann".into(),
        service: "google".into(),
        account_name: "work".into(),
        at: api.clock.now(),
        run_id: None,
        task_id: None,
        used_by: "poll".into(),
        host: host.into(),
        outcome: outcome.into(),
    }
}

async fn uses_of_a_credential_and_its_tasks_are_shown(api: Api) {
    let ann = api.token("ann", &["credentials:read", "credentials:write"]).await;
    let place = "/v1/credentials/google/work";
    api.ask("PUT", place, Some(&ann), Some(body())).await.expect(200);
    let mut made = vec![];
    for host in ["a.example.org", "b.example.org", "c.example.org"] {
        let used = use_of(&api, host, CredentialUse::USED);
        api.store.note_credential_use(&used).await.unwrap();
        made.insert(0, json!(used));
    }
    let first = api.ask("GET", &format!("{place}/uses?limit=2"), Some(&ann), None).await.expect(200);
    assert_eq!(first["items"], json!(made[..2]));
    let next = format!("{place}/uses?limit=2&cursor={}", first["next_cursor"].as_str().unwrap());
    let second = api.ask("GET", &next, Some(&ann), None).await.expect(200);
    assert_eq!(second, json!({ "items": made[2..], "next_cursor": null }));
    let shown = api.ask("GET", place, Some(&ann), None).await.expect(200);
    assert_eq!(shown["last_used_at"], "2026-11-21T00:00:00Z");
    // of another name there are none, and the record outlives the credential
    let other = api.ask("GET", "/v1/credentials/google/home/uses", Some(&ann), None).await.expect(200);
    assert_eq!(other["items"], json!([]));
    api.ask("DELETE", place, Some(&ann), None).await;
    let kept = api.ask("GET", &format!("{place}/uses"), Some(&ann), None).await.expect(200);
    assert_eq!(kept["items"].as_array().unwrap().len(), 3);
}

async fn admin_puts_everything_under_the_first_key_and_is_told_what_is_needed(api: Api) {
    let place = "/v1/credentials/google/work?tenant_id=ann";
    api.admin("PUT", place, Some(body())).await.expect(200);
    let done = api.admin("POST", "/v1/credentials/rotate-key", None).await.expect(200);
    let none = json!({ "credentials": 0, "recipients": 0, "tasks": 0, "messages": 0 });
    let one = json!({ "credentials": 1, "recipients": 0, "tasks": 0, "messages": 0 });
    let key = done["key"].clone();
    assert_eq!(
        done,
        json!({
            "key": key, "rewrapped": none, "failed": none, "failures": [], "next_cursor": null,
            "keys": [{ "id": key, "configured": true, "unused": false, "sealed": one }],
        })
    );
    // a credential under a key that nobody has is told, and left as it is
    let lost = reveille::store::CredentialRowDraft {
        tenant_id: "ann".into(),
        service: "lost".into(),
        account_name: "primary".into(),
        hosts: vec![],
        inject: None,
        oauth: None,
        document: Some(reveille::store::SealedDocument {
            sealed: "v1:gone:AA:AA".into(),
            generation: 1,
            key_id: "gone".into(),
            expires_at: None,
        }),
        by: "token:t".into(),
    };
    let stored = api.store.put_credential(&Scope::Every, &lost, 0).await.unwrap().stored;
    let done = api.admin("POST", "/v1/credentials/rotate-key", Some(json!({}))).await.expect(200);
    assert_eq!(done["failed"], one);
    let why = "sealed with the master key `gone`, which is not in vault.master_keys";
    assert_eq!(done["failures"], json!([{ "subject": "credential lost", "tenant_id": "ann", "reason": why }]));
    assert_eq!(done["keys"][1], json!({ "id": "gone", "configured": false, "unused": false, "sealed": one }));
    assert_eq!(api.store.get_credential(&Scope::Every, "ann", "lost", "primary").await.unwrap(), stored);
    let acts = api.admin("GET", "/v1/audit?action=master_key.rotated", None).await.expect(200);
    assert_eq!(acts["items"].as_array().unwrap().len(), 2);

    let ann = api.token("ann", &["*"]).await;
    let refused = api.ask("POST", "/v1/credentials/rotate-key", Some(&ann), None).await.expect(403);
    assert_eq!(refused["detail"], "this needs an admin token: it concerns every tenant");
    let nonsense = api.admin("POST", "/v1/credentials/rotate-key", Some(json!({ "cursor": "x" }))).await.expect(422);
    assert_eq!(nonsense["errors"][0]["pointer"], "/cursor");
}

#[tokio::test]
async fn accounts_may_be_called_like_the_last_part_of_any_address() {
    let api = Api::new().await;
    for account in ["connect", "uses", "rotate-key", "credentials", "primary"] {
        for service in ["google", "rotate-key", "connect"] {
            let path = format!("/v1/credentials/{service}/{account}?tenant_id=ann");
            let put = api.admin("PUT", &path, Some(body())).await.expect(200);
            assert_eq!((&put["service"], &put["account_name"]), (&json!(service), &json!(account)));
            let shown = api.admin("GET", &path, None).await.expect(200);
            assert_eq!((&shown["service"], &shown["account_name"]), (&json!(service), &json!(account)));
            let uses = format!("/v1/credentials/{service}/{account}/uses?tenant_id=ann");
            assert_eq!(api.admin("GET", &uses, None).await.expect(200)["items"], json!([]));
            api.admin("DELETE", &path, None).await.expect(204);
            api.admin("GET", &path, None).await.expect(404);
        }
    }
}

#[tokio::test]
async fn credential_faults_have_their_place_and_repeat_no_secret() {
    let api = Api::new().await;
    let put = async |name: &str, body: Value| {
        let path = format!("/v1/credentials/{name}?tenant_id=ann");
        let problem = api.admin("PUT", &path, Some(body)).await.expect(422);
        assert!(!problem.to_string().contains(CANARY), "{problem}");
        let places = problem["errors"].as_array().unwrap().iter().map(|fault| fault["pointer"].as_str().unwrap());
        places.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(put("goo%20gle/a%2Fb", body()).await, ["/service", "/account_name"]);
    assert_eq!(put("google/work", json!({ "hosts": ["a.example.org"] })).await, ["/document"]);
    let wrong = json!({
        "document": CANARY, "hosts": ["*", format!("https://{CANARY}/")], "inject": { "as": CANARY }, "oauth": CANARY,
        CANARY: 1,
    });
    let mut wrong = wrong;
    wrong.as_object_mut().unwrap().remove(CANARY);
    assert_eq!(put("google/work", wrong).await, ["/hosts/0", "/hosts/1", "/inject/as", "/oauth"]);
    let large = json!({ "document": CANARY.repeat(10_000) });
    assert_eq!(put("google/work", large).await, ["/document"]);
    let huge = json!({ "document": CANARY.repeat(200_000) });
    api.admin("PUT", "/v1/credentials/google/work?tenant_id=ann", Some(huge)).await.expect(413);
    assert_eq!(api.admin("GET", "/v1/credentials", None).await.expect(200)["items"], json!([]));
}

#[tokio::test]
async fn no_answer_and_no_file_of_the_database_holds_the_document() {
    let api = Api::new().await;
    let shown = api.admin("PUT", "/v1/credentials/google/work?tenant_id=ann", Some(body())).await.expect(200);
    assert!(!shown.to_string().contains(CANARY));
    api.store.close().await;
    for entry in std::fs::read_dir(api.dir.path()).unwrap() {
        let path = entry.unwrap().path();
        let bytes = std::fs::read(&path).unwrap();
        let found = bytes.windows(CANARY.len()).any(|window| window == CANARY.as_bytes());
        assert!(!found, "{}", path.display());
    }
}
