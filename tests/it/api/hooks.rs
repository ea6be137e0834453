//! Webhooks of foreign services: who is let in, and what comes of it. The schemes themselves are proved beside them.

use axum::body::Body;
use axum::http::Request;
use serde_json::{Value, json};

use super::service::{ADMIN, Api, Reply};

/// Sends a webhook as it is.
async fn post(api: &Api, path: &str, headers: &[(&str, &str)], body: &str) -> Reply {
    let mut request = Request::post(format!("/v1/hooks/{path}")).header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    api.send(request.body(Body::from(body.to_owned())).unwrap()).await
}

async fn log(api: &Api) -> Vec<Value> {
    let page = api.admin("GET", "/v1/events", None).await.expect(200);
    page["items"].as_array().unwrap().clone()
}

fn hmac(secret: &[u8], text: &str) -> Vec<u8> {
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, secret);
    aws_lc_rs::hmac::sign(&key, text.as_bytes()).as_ref().to_vec()
}

#[tokio::test]
async fn signed_webhook_is_an_event_of_its_source_once() {
    let api = Api::new().await;
    let body = r#"{"action":"opened","number":7}"#;
    let signature = format!("sha256={}", hex::encode(hmac(b"It's a Secret to Everybody", body)));
    let headers = [
        ("x-hub-signature-256", signature.as_str()),
        ("x-github-event", "pull_request"),
        ("x-github-delivery", "72d3162e"),
    ];
    for _ in 0..2 {
        assert_eq!(post(&api, "github", &headers, body).await.expect(202), json!({ "ids": ["72d3162e"] }));
    }
    assert_eq!(
        log(&api).await,
        [
            json!({ "specversion": "1.0", "tenantid": "ann", "id": "72d3162e", "source": "github", "type": "pull_request",
            "time": "2026-11-21T00:00:00.000Z", "datacontenttype": "application/json",
            "data": { "action": "opened", "number": 7 } })
        ]
    );
    let older = format!("sha256={}", hex::encode(hmac(b"an-older-secret", body)));
    post(&api, "github", &[("x-hub-signature-256", &older)], body).await.expect(202);
}

#[tokio::test]
async fn each_sender_s_own_id_and_type_are_taken() {
    let api = Api::new().await;
    let now = api.clock.now().timestamp().to_string();
    let body = r#"{"id":"evt_1","type":"invoice.paid"}"#;
    let stripe = format!("t={now},v1={}", hex::encode(hmac(b"whsec_test_secret_1", &format!("{now}.{body}"))));
    post(&api, "stripe", &[("stripe-signature", &stripe)], body).await.expect(202);

    use base64::Engine;
    let base64 = base64::engine::general_purpose::STANDARD;
    let key = base64.decode("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
    let signature = format!("v1,{}", base64.encode(hmac(&key, &format!("msg_1.{now}.{body}"))));
    let standard = [("webhook-id", "msg_1"), ("webhook-timestamp", now.as_str()), ("webhook-signature", &signature)];
    post(&api, "standard", &standard, body).await.expect(202);

    let slack = async |body: &str| {
        let signature =
            format!("v0={}", hex::encode(hmac(b"8f742231b10e8888abcd99yyyzzz85a5", &format!("v0:{now}:{body}"))));
        post(&api, "slack", &[("x-slack-request-timestamp", &now), ("x-slack-signature", &signature)], body).await
    };
    slack(r#"{"type":"event_callback","event_id":"Ev1","event":{"type":"app_mention"}}"#).await.expect(202);
    let challenge = slack(r#"{"type":"url_verification","challenge":"3eZbrw1a"}"#).await.expect(200);
    assert_eq!(challenge, json!({ "challenge": "3eZbrw1a" }));

    let door = [("x-door", "a-shared-token"), ("webhook-id", "ring-1")];
    post(&api, "door", &door, r#"{"what":{"happened":"bell"}}"#).await.expect(202);
    post(&api, "door", &door[..1], "[1]").await.expect(202);

    let told: Vec<String> = log(&api)
        .await
        .iter()
        .map(|event| {
            let id = event["id"].as_str().unwrap();
            let id = if id.len() == 36 { "made" } else { id };
            format!("{} {} {id}", event["source"].as_str().unwrap(), event["type"].as_str().unwrap())
        })
        .collect();
    assert_eq!(
        told,
        [
            "stripe invoice.paid evt_1",
            "standard invoice.paid msg_1",
            "slack app_mention Ev1",
            "door bell ring-1",
            "door hook made"
        ]
    );
}

#[tokio::test]
async fn hook_with_a_wrong_signature_is_always_refused_in_the_same_words() {
    let api = Api::new().await;
    let now = api.clock.now().timestamp();
    let body = r#"{"type":"url_verification","challenge":"x"}"#;
    let signed_at =
        |at: i64| format!("v0={}", hex::encode(hmac(b"8f742231b10e8888abcd99yyyzzz85a5", &format!("v0:{at}:{body}"))));
    let (old, stale) = ((now - 301).to_string(), signed_at(now - 301));
    let (present, wrong) = (now.to_string(), signed_at(now + 1));
    let admin = format!("Bearer {ADMIN}");
    let mut answers = Vec::new();
    for (path, headers) in [
        ("slack", vec![]),
        ("slack", vec![("x-slack-request-timestamp", old.as_str()), ("x-slack-signature", &stale)]),
        ("slack", vec![("x-slack-request-timestamp", &present), ("x-slack-signature", &wrong)]),
        ("github", vec![("x-hub-signature-256", "sha256=00")]),
        ("door", vec![("x-door", "a-shared-toke")]),
        ("door", vec![("x-hook-token", "a-shared-token")]),
        // a bearer token is no signature where one is wanted
        ("github", vec![("authorization", &admin)]),
    ] {
        answers.push(post(&api, path, &headers, body).await.expect(401));
    }
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(log(&api).await, [Value::Null; 0]);
}

#[tokio::test]
async fn hook_without_a_secret_exists_for_publishers_only() {
    let api = Api::new().await;
    let body = r#"{"type":"t"}"#;
    for path in ["nowhere", "bare"] {
        assert_eq!(post(&api, path, &[], body).await.expect(404)["detail"], "there is no such hook");
    }
    let bearer = async |path: &str, token: &str, status: u16| {
        post(&api, path, &[("authorization", &format!("Bearer {token}"))], body).await.expect(status)
    };
    let ann = api.token("ann", &["events:publish"]).await;
    bearer("nowhere", &ann, 202).await;
    bearer("bare", &ann, 202).await;
    bearer("bare?tenant_id=bob", &ann, 404).await;
    bearer("bare?tenant_id=bob", ADMIN, 202).await;
    bearer("bare", ADMIN, 400).await;
    bearer("bare", &api.token("ann", &["events:read"]).await, 403).await;
    bearer("bare", "nonsense", 401).await;
    let told: Vec<String> = log(&api)
        .await
        .iter()
        .map(|event| {
            format!(
                "{}/{}/{}",
                event["tenantid"].as_str().unwrap(),
                event["source"].as_str().unwrap(),
                event["type"].as_str().unwrap()
            )
        })
        .collect();
    assert_eq!(told, ["ann/nowhere/t", "ann/bare/rang", "bob/bare/rang"]);
}

#[tokio::test]
async fn body_that_is_no_json_or_too_large_is_refused_after_its_signature() {
    let api = Api::new().await;
    let token = [("x-door", "a-shared-token")];
    post(&api, "door", &token, "{").await.expect(400);
    post(&api, "door", &[], "{").await.expect(401);
    let large = json!({ "x": "x".repeat(262_144) }).to_string();
    post(&api, "door", &token, &large).await.expect(413);
    assert_eq!(log(&api).await, [Value::Null; 0]);
}
