//! Recipients: put whole, shown without their secrets.

use reveille::base::id::Scope;
use reveille::domain::notification::verification::{PURPOSE, Proof};
use serde_json::{Value, json};

use super::service::{ADMIN, Api};

const SECRET: &str = "whsec_c2VjcmV0IGNhbmFyeSBvZiB0aGUgdGVzdHMgMDEyMzQ1Njc=";

/// Of RFC 8291, appendix A.
const P256DH: &str = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
const AUTH: &str = "BTBZMqHH6r4Tts7J_aSIgg";

#[tokio::test]
async fn recipient_is_shown_without_its_secret_and_can_be_put_back() {
    let api = Api::new().await;
    let put = json!({
        "timezone": "Europe/Berlin", "locale": "de",
        "addresses": { "email": "ann@example.org", "webhook": { "url": "https://example.org/in", "secret": SECRET } },
        "fallback": ["webhook", "email"],
    });
    let shown = api.admin("PUT", "/v1/recipients/ann", Some(put)).await.expect(200);
    assert_eq!(
        shown,
        json!({
            "tenant_id": "ann", "timezone": "Europe/Berlin", "locale": "de",
            "addresses": { "email": "ann@example.org",
                "webhook": { "url": "https://example.org/in", "secret_set": true } },
            "fallback": ["webhook", "email"], "quiet_hours": [], "digest": null, "budget": null, "verified": {},
            "version": 1, "updated_at": "2026-11-21T00:00:00Z",
        })
    );
    assert_eq!(api.admin("GET", "/v1/recipients/ann", None).await.expect(200), shown);

    let back = api.admin("PUT", "/v1/recipients/ann", Some(shown.clone())).await.expect(200);
    assert_eq!(back["version"], 2, "what is shown can be put back as it is");
    let back = json!({ "timezone": "UTC", "addresses": shown["addresses"] });
    let again = api.admin("PUT", "/v1/recipients/ann", Some(back)).await.expect(200);
    assert_eq!((&again["version"], &again["addresses"]), (&json!(3), &shown["addresses"]), "the secret is kept");
    assert_eq!(again["fallback"], json!([]), "what is left out has its default");
}

#[tokio::test]
async fn recipients_are_listed_in_pages_and_gone_once_they_are_deleted() {
    let api = Api::new().await;
    let put = json!({ "addresses": { "webhook": { "url": "https://example.org/in", "secret": SECRET } } });
    for tenant in ["cid", "ann", "bob"] {
        api.admin("PUT", &format!("/v1/recipients/{tenant}"), Some(put.clone())).await.expect(200);
    }
    let first = api.admin("GET", "/v1/recipients?limit=2", None).await.expect(200);
    let ann = api.admin("GET", "/v1/recipients/ann", None).await.expect(200);
    assert_eq!((&first["items"][0], &first["items"][1]["tenant_id"]), (&ann, &json!("bob")));
    assert!(!first.to_string().contains(SECRET), "{first}");
    let cursor = first["next_cursor"].as_str().unwrap();
    let rest = api.admin("GET", &format!("/v1/recipients?limit=2&cursor={cursor}"), None).await.expect(200);
    assert_eq!((&rest["items"][0]["tenant_id"], &rest["next_cursor"]), (&json!("cid"), &json!(null)));
    let own = api.token("bob", &["recipients:read", "recipients:write"]).await;
    let seen = api.ask("GET", "/v1/recipients", Some(&own), None).await.expect(200);
    assert_eq!((seen["items"].as_array().unwrap().len(), &seen["items"][0]["tenant_id"]), (1, &json!("bob")));

    let task = json!({ "tenant_id": "bob", "name": "Tells bob", "trigger": { "type": "schedule", "cron": "@yearly" },
        "action": { "instruction": "Say hello." }, "output": { "channel": "webhook" } });
    let task = api.admin("POST", "/v1/tasks", Some(task)).await.expect(201)["id"].as_str().unwrap().to_owned();
    api.ask("DELETE", "/v1/recipients/bob", Some(&own), None).await.expect(204);
    api.ask("DELETE", "/v1/recipients/bob", Some(&own), None).await.expect(404);
    api.ask("DELETE", "/v1/recipients/ann", Some(&own), None).await.expect(404);
    api.admin("GET", "/v1/recipients/bob", None).await.expect(404);
    // what names it is as it was
    let kept = api.admin("GET", &format!("/v1/tasks/{task}"), None).await.expect(200);
    assert_eq!((&kept["status"], &kept["output"]), (&json!("active"), &json!({ "channel": "webhook" })));
    let acts = api.admin("GET", "/v1/audit?action=recipient.deleted", None).await.expect(200);
    assert_eq!((&acts["items"][0]["tenant_id"], &acts["items"][0]["body"]), (&json!("bob"), &json!({})));
}

#[tokio::test]
async fn recipient_faults_have_their_place() {
    let api = Api::new().await;
    let put = json!({
        "timezone": "Europe/Berln", "addresses": { "emial": "x", "webhook": { "url": "ftp://x" } }, "fallback": ["email"],
    });
    let problem = api.admin("PUT", "/v1/recipients/ann", Some(put)).await.expect(422);
    let mut places: Vec<&str> =
        problem["errors"].as_array().unwrap().iter().map(|fault| fault["pointer"].as_str().unwrap()).collect();
    places.sort();
    assert_eq!(places, ["/addresses/emial", "/addresses/webhook/url", "/fallback/0", "/timezone"]);
    let put = json!({ "addresses": { "webhook": { "url": "https://example.org/in" } } });
    let problem = api.admin("PUT", "/v1/recipients/ann", Some(put)).await.expect(422);
    assert_eq!(problem["errors"][0]["pointer"], "/addresses/webhook/secret");
    api.admin("GET", "/v1/recipients/ann", None).await.expect(404);
}

#[tokio::test]
async fn no_answer_and_no_file_of_the_database_holds_the_secret() {
    let api = Api::new().await;
    let put = json!({ "addresses": {
        "webhook": { "url": "https://example.org/in", "secret": SECRET },
        "push": { "endpoint": "https://push.example.org/x", "keys": { "p256dh": P256DH, "auth": AUTH } },
        "slack": { "webhook_url": "https://hooks.slack.com/services/T0/B0/canaryOfSlack" },
    } });
    let shown = api.admin("PUT", "/v1/recipients/ann", Some(put)).await.expect(200);
    let listed = api.admin("GET", "/v1/recipients/ann", None).await.expect(200);
    let again = api.admin("PUT", "/v1/recipients/ann", Some(listed.clone())).await.expect(200);
    assert_eq!(again["addresses"], shown["addresses"]);
    for canary in [SECRET.trim_start_matches("whsec_"), AUTH, "canaryOfSlack"] {
        for answer in [&shown, &listed, &again] {
            assert!(!Value::to_string(answer).contains(canary));
        }
        for file in std::fs::read_dir(api.dir.path()).unwrap() {
            let bytes = std::fs::read(file.unwrap().path()).unwrap();
            assert!(!String::from_utf8_lossy(&bytes).contains(canary));
        }
    }
}

#[tokio::test]
async fn test_message_is_sent_once_for_a_key_and_only_where_there_is_an_address() {
    let api = Api::new().await;
    let place = "/v1/recipients/ann/test";
    api.admin("POST", place, None).await.expect(404);
    let put = json!({ "addresses": { "email": "ann@example.org" } });
    api.admin("PUT", "/v1/recipients/ann", Some(put)).await.expect(200);
    let problem = api.admin("POST", place, Some(json!({ "channel": "emial" }))).await.expect(422);
    assert_eq!(
        problem["errors"],
        json!([{ "pointer": "/channel", "message": "there is no channel `emial`; did you mean `email`?" }])
    );
    let problem = api.admin("POST", place, Some(json!({ "channel": "slack" }))).await.expect(422);
    let said = "the recipient has no address for `slack`; it has one for `email`";
    assert_eq!(problem["errors"], json!([{ "pointer": "/channel", "message": said }]));
    let ask = async |key| {
        let body = Some(json!({ "channel": "email" }));
        api.ask_with("POST", place, Some(ADMIN), body, &[("idempotency-key", key)]).await.expect(202)
    };
    let (first, again, other) = (ask("k1").await, ask("k1").await, ask("k2").await);
    assert_eq!(first, again);
    assert_ne!(first["id"], other["id"]);
    let unlike = Some(json!({}));
    api.ask_with("POST", place, Some(ADMIN), unlike, &[("idempotency-key", "k1")]).await.expect(422);
    assert_eq!(
        (&first["channel"], &first["kind"], &first["state"], &first["subject"]),
        (&json!("email"), &json!("test"), &json!("pending"), &json!("Reveille can reach you"))
    );
    let id = first["id"].as_str().unwrap();
    assert_eq!(api.admin("GET", &format!("/v1/deliveries/{id}"), None).await.expect(200), first);
    // a key stands for its request for a day, and for another one after that
    api.advance(24 * 3600);
    assert_ne!(ask("k1").await["id"], first["id"]);
}

#[tokio::test]
async fn address_is_proved_by_a_code_that_stands_nowhere() {
    let api = Api::new().await;
    let place = "/v1/recipients/ann/verify";
    api.admin("POST", place, Some(json!({ "channel": "email" }))).await.expect(404);
    let put = json!({ "addresses": { "email": "ann@example.org", "sms": "+4915123456789", "live": true } });
    api.admin("PUT", "/v1/recipients/ann", Some(put)).await.expect(200);
    let fault = async |body: Value| {
        let problem = api.admin("POST", place, Some(body)).await.expect(422);
        format!(
            "{}: {}",
            problem["errors"][0]["pointer"].as_str().unwrap(),
            problem["errors"][0]["message"].as_str().unwrap()
        )
    };
    assert_eq!(fault(json!({})).await, "/channel: is missing");
    assert_eq!(
        fault(json!({ "channel": "slack", "code": "123456" })).await,
        "/channel: the recipient has no address for `slack`; it has one for `email`, `sms`, `live`"
    );
    assert_eq!(fault(json!({ "channel": "sms" })).await, "/channel: the channel `sms` is not configured here");
    assert_eq!(fault(json!({ "channel": "email", "code": 123456 })).await, "/code: must be a text, such as `123456`");
    assert_eq!(fault(json!({ "channel": "email", "code": "12345" })).await, "/code: must be 6 digits");
    let none = "/code: no code is open for this address; ask for one with `channel` alone";
    assert_eq!(fault(json!({ "channel": "email", "code": "123456" })).await, none);

    let ask = async |key| {
        let body = Some(json!({ "channel": "email" }));
        api.ask_with("POST", place, Some(ADMIN), body, &[("idempotency-key", key)]).await
    };
    let sent = ask("k1").await.expect(202);
    assert_eq!(ask("k1").await.expect(202), sent, "the same is sent once");
    ask("k2").await.expect(409);
    let unlike = Some(json!({ "channel": "sms" }));
    api.ask_with("POST", place, Some(ADMIN), unlike, &[("idempotency-key", "k1")]).await.expect(422);
    assert_eq!((&sent["kind"], &sent["subject"], &sent["text"]), (&json!("code"), &Value::Null, &Value::Null));
    assert!(fault(json!({ "channel": "email", "code": "000 000" })).await.starts_with("/code: is wrong; 4 more"));
    // a day later the key stands for another code
    api.advance(24 * 3600);
    assert_ne!(ask("k1").await.expect(202)["id"], sent["id"]);
}

#[tokio::test]
async fn key_of_a_verification_stands_for_one_request_and_its_answer() {
    let api = Api::new().await;
    let addresses =
        json!({ "email": "ann@example.org", "webhook": { "url": "https://example.org/in", "secret": SECRET } });
    api.admin("PUT", "/v1/recipients/ann", Some(json!({ "addresses": addresses }))).await.expect(200);
    let ask = async |key: &str, body: Value| {
        api.ask_with("POST", "/v1/recipients/ann/verify", Some(ADMIN), Some(body), &[("idempotency-key", key)]).await
    };
    let used = json!([{ "pointer": "", "message": "this Idempotency-Key was used for another request within the last 24 hours" }]);
    let sent = ask("k1", json!({ "channel": "email" })).await.expect(202);
    assert_eq!(ask("k1", json!({ "channel": "email" })).await.expect(202), sent, "the same code is on its way");
    // each of these would be taken under a key of its own
    let code = code_of(&api, sent["id"].as_str().unwrap()).await;
    let proof = json!({ "channel": "email", "code": code });
    for other in [json!({ "channel": "webhook" }), proof.clone()] {
        assert_eq!(ask("k1", other).await.expect(422)["errors"], used);
    }
    let deliveries = api.admin("GET", "/v1/deliveries", None).await.expect(200);
    assert_eq!(deliveries["items"].as_array().unwrap().len(), 1, "one code was sent");

    let first = ask("k2", proof.clone()).await;
    let again = ask("k2", proof.clone()).await;
    assert_eq!((first.header("idempotency-replayed"), again.header("idempotency-replayed")), ("", "true"));
    let (first, again) = (first.expect(200), again.expect(200));
    assert!(first["verified"]["email"].is_string(), "{first}");
    assert_eq!(first, again, "a code that was right is not asked for again");
    assert_eq!(ask("k2", json!({ "channel": "webhook" })).await.expect(422)["errors"], used);
    ask("k3", json!({ "channel": "webhook" })).await.expect(202);
    let gone = ask("k4", proof).await.expect(422);
    assert_eq!(gone["errors"][0]["pointer"], "/code", "the code was good once: {gone}");
}

/// The code of a delivery, as the message has it.
async fn code_of(api: &Api, delivery: &str) -> String {
    let delivery = api.store.get_delivery(&Scope::Every, delivery.parse().unwrap()).await.unwrap();
    let stored = api.store.get_recipient(&Scope::Every, "ann").await.unwrap();
    let proof = Proof::of("ann", delivery.subject_ref.as_ref(), &stored.recipient.addresses).unwrap();
    proof.code(&api.vault.tag(PURPOSE, &proof.subject())).expose().to_owned()
}
