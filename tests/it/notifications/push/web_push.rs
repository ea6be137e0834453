//! Web Push: a push service's checks and a browser's decryption, made by Node's own cryptography.

use std::io::Write;
use std::process::{Command, Stdio};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, Utc};
use reveille::base::secret::Secret;
use reveille::domain::notification::PushAddress;
use reveille::domain::notification::rendered_message::RenderedMessage;
use reveille::domain::notification::text::Link;
use reveille::domain::task::Urgency;
use reveille::ports::channel::push::{PushChannel, seal_auth};
use reveille::ports::channel::{Channel, ChannelError, OutgoingMessage, Receipt};
use serde_json::{Value, json};
use wiremock::matchers::method;
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::{
    AUTH, BROWSER_PRIVATE, P256DH, ann, answering, browser, deliver, delivered, misconfigured, opened, push, rejected,
    settings, transient, vault, with_vapid,
};
use crate::notifications::{DELIVERY, created_at, words};
use crate::support::broken_servers::BrokenServers;

/// The part of the other side, by the words of RFC 8188, 8291 and 8292.
const OTHER_SIDE: &str = r#"
const crypto = require('node:crypto');
const given = JSON.parse(require('node:fs').readFileSync(0, 'utf8'));
const bytes = (text) => Buffer.from(text, 'base64url');
const body = bytes(given.body);
const [salt, size, length] = [body.subarray(0, 16), body.readUInt32BE(16), body[20]];
const sender = body.subarray(21, 21 + length);
const record = body.subarray(21 + length);
if (record.length > size) throw new Error('more than one record');
const ecdh = crypto.createECDH('prime256v1');
ecdh.setPrivateKey(bytes(given.privateKey));
const derive = (key, salt, info, length) => Buffer.from(crypto.hkdfSync('sha256', key, salt, info, length));
const info = Buffer.concat([Buffer.from('WebPush: info\0'), ecdh.getPublicKey(), sender]);
const keying = derive(ecdh.computeSecret(sender), bytes(given.auth), info, 32);
const key = derive(keying, salt, 'Content-Encoding: aes128gcm\0', 16);
const nonce = derive(keying, salt, 'Content-Encoding: nonce\0', 12);
const decipher = crypto.createDecipheriv('aes-128-gcm', key, nonce);
decipher.setAuthTag(record.subarray(-16));
const padded = Buffer.concat([decipher.update(record.subarray(0, -16)), decipher.final()]);
const end = padded.lastIndexOf(2);
if (padded.subarray(end + 1).some((byte) => byte !== 0)) throw new Error('no delimiter');
const [, token, point] = given.authorization.match(/^vapid t=([^,]+), k=(.+)$/);
const [header, claims, signature] = token.split('.');
const [x, y] = [bytes(point).subarray(1, 33), bytes(point).subarray(33)].map((c) => c.toString('base64url'));
const publicKey = crypto.createPublicKey({ key: { kty: 'EC', crv: 'P-256', x, y }, format: 'jwk' });
const signed = Buffer.from(header + '.' + claims);
const good = crypto.verify('sha256', signed, { key: publicKey, dsaEncoding: 'ieee-p1363' }, bytes(signature));
if (!good) throw new Error('the signature is wrong');
process.stdout.write(JSON.stringify({
  size, message: JSON.parse(padded.subarray(0, end)), header: JSON.parse(bytes(header)), claims: JSON.parse(bytes(claims)),
}));
"#;

fn read_by_the_other_side(request: &wiremock::Request) -> Value {
    let given = json!({
        "privateKey": BROWSER_PRIVATE, "auth": AUTH, "body": URL_SAFE_NO_PAD.encode(&request.body),
        "authorization": request.headers["authorization"].to_str().unwrap(),
    });
    let mut node = Command::new("node")
        .args(["-e", OTHER_SIDE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("node");
    node.stdin.take().unwrap().write_all(given.to_string().as_bytes()).unwrap();
    let output = node.wait_with_output().unwrap();
    assert!(output.status.success(), "node failed");
    serde_json::from_slice(&output.stdout).unwrap()
}

async fn say(
    channel: &PushChannel,
    endpoint: &str,
    words: &RenderedMessage,
    urgency: Urgency,
) -> Result<Receipt, ChannelError> {
    let now: DateTime<Utc> = created_at();
    let recipient = &ann(vec![browser(endpoint)]);
    let message =
        OutgoingMessage { id: DELIVERY, recipient_id: "ann", created_at: now, now, recipient, words, urgency };
    channel.deliver(&message).await
}

async fn sent(server: &MockServer) -> Vec<wiremock::Request> {
    server.received_requests().await.unwrap()
}

#[tokio::test]
async fn message_is_encrypted_for_the_browser_and_signed_for_the_push_service() {
    let server = answering(201, "").await;
    let question = RenderedMessage {
        link: Some(Link { label: "Decide".into(), url: "https://wake.example.org/approve/x".into() }),
        thread: Some("0193f7a2".into()),
        event: "approval.requested",
        asks: true,
        ..words()
    };
    let endpoint = format!("{}/wpush/v2/token?a=1", server.uri());
    assert_eq!(say(&push(&with_vapid()), &endpoint, &question, Urgency::High).await, delivered(None));
    let [request] = sent(&server).await.try_into().expect("one request");
    assert_eq!((request.url.path(), request.url.query()), ("/wpush/v2/token", Some("a=1")));
    let header = |name: &str| request.headers[name].to_str().unwrap().to_owned();
    let topic = header("topic");
    assert_eq!(
        ["content-encoding", "content-type", "ttl", "urgency"].map(header),
        ["aes128gcm", "application/octet-stream", "86400", "high"]
    );
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    assert!(topic.len() == 32 && topic.chars().all(plain), "{topic}");
    assert_eq!(
        read_by_the_other_side(&request),
        json!({
            "size": 4096,
            "message": {
                "title": "Morgenpost – 2 Mails", "body": "Grüße!\n.\n..dots stay\nEnd.",
                "url": "https://wake.example.org/approve/x", "tag": topic, "urgency": "high",
            },
            "header": { "typ": "JWT", "alg": "ES256" },
            "claims": {
                "aud": server.uri(), "exp": created_at().timestamp() + 12 * 3600, "sub": "mailto:ops@example.org",
            },
        })
    );
}

#[tokio::test]
async fn long_text_is_cut_until_the_message_fits() {
    let server = answering(201, "").await;
    for text in ["ü".repeat(5000), "\u{1}".repeat(5000), "\"\\😀".repeat(1500)] {
        let long = RenderedMessage { text: text.clone(), ..words() };
        say(&push(&with_vapid()), &server.uri(), &long, Urgency::Normal).await.unwrap();
        let request = sent(&server).await.pop().unwrap();
        assert!((4000..=4096).contains(&request.body.len()), "{}", request.body.len());
        let message = read_by_the_other_side(&request)["message"].clone();
        let body = message["body"].as_str().unwrap();
        let kept = body.strip_suffix('…').expect("an ellipsis");
        assert!(text.starts_with(kept), "{body}");
        assert_eq!((&message["url"], &message["title"]), (&Value::Null, &json!("Morgenpost – 2 Mails")));
    }
}

#[tokio::test]
async fn every_answer_of_a_push_service_has_its_meaning() {
    let channel = push(&with_vapid());
    let said = async |status: u16| deliver(&channel, &ann(vec![browser(answering(status, "").await.uri())])).await;
    assert_eq!(said(201).await, delivered(None));
    assert_eq!(said(202).await, delivered(None));
    let gone = "the subscription is gone; the page has to subscribe again";
    assert_eq!(said(404).await, rejected(&format!("the push service answered 404 Not Found: {gone}")));
    assert_eq!(said(410).await, rejected(&format!("the push service answered 410 Gone: {gone}")));
    let long = "the push service answered 413 Payload Too Large: the message is too long";
    assert_eq!(said(413).await, rejected(long));
    assert_eq!(said(400).await, rejected("the push service answered 400 Bad Request"));
    assert_eq!(said(307).await, rejected("the push service answered 307 Temporary Redirect"));
    let key = "it refuses our VAPID key; is it the one that the browser subscribed to?";
    assert_eq!(said(403).await, misconfigured(&format!("the push service answered 403 Forbidden: {key}")));
    assert_eq!(said(500).await, transient("the push service answered 500 Internal Server Error", None));
    let server = MockServer::start().await;
    let answer = ResponseTemplate::new(429).insert_header("retry-after", "30");
    Mock::given(method("POST")).respond_with(answer).mount(&server).await;
    let busy = transient("the push service answered 429 Too Many Requests", Some(30));
    assert_eq!(deliver(&channel, &ann(vec![browser(server.uri())])).await, busy);
}

#[tokio::test]
async fn hanging_receiver_leaves_the_outcome_unknown_and_an_absent_one_does_not() {
    let (broken, channel) = (BrokenServers::start().await, push(&with_vapid()));
    for (endpoint, unknown) in [(&broken.hangs(), true), (&broken.closes(), true), (&broken.absent(), false)] {
        match (deliver(&channel, &ann(vec![browser(endpoint)])).await, unknown) {
            (Err(ChannelError::Unknown { .. }), true) => {}
            (Err(ChannelError::Transient { retry_after: None, .. }), false) => {}
            (other, _) => panic!("{endpoint}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn endpoint_that_is_not_public_is_refused_without_a_connection() {
    let server = answering(201, "").await;
    match deliver(&opened(&with_vapid(), &[]), &ann(vec![browser(server.uri())])).await {
        Err(ChannelError::Unsendable { why }) => assert!(why.contains("127.0.0.1 is loopback"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(sent(&server).await.len(), 0);
}

#[tokio::test]
async fn webhook_without_its_own_key_sends_nothing() {
    let server = answering(201, "").await;
    let why = "Web Push has no key: channels.push.vapid.private_key is not set";
    assert_eq!(deliver(&push(&settings("")), &ann(vec![browser(server.uri())])).await, misconfigured(why));
    let seal = |tenant: &str, endpoint: &str| seal_auth(&vault(), tenant, endpoint, &Secret::new(AUTH)).unwrap();
    let elsewhere = format!("{}/else", server.uri());
    for sealed_auth in [seal("bob", &server.uri()), seal("ann", &elsewhere)] {
        let moved = PushAddress::WebPush { endpoint: server.uri(), p256dh: P256DH.into(), sealed_auth };
        match deliver(&push(&with_vapid()), &ann(vec![moved])).await {
            Err(ChannelError::Misconfigured { why }) => assert!(why.contains("moved from where it belongs"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(sent(&server).await.len(), 0);
}

#[tokio::test]
async fn subscription_with_broken_keys_is_refused() {
    let server = answering(201, "").await;
    let PushAddress::WebPush { endpoint, sealed_auth, .. } = browser(server.uri()) else { unreachable!() };
    let broken = PushAddress::WebPush { endpoint, p256dh: P256DH.replace('B', "C"), sealed_auth };
    let why = "the subscription's `p256dh` is not a public key of P-256 in base64url";
    assert_eq!(
        deliver(&push(&with_vapid()), &ann(vec![broken])).await,
        Err(ChannelError::Unsendable { why: why.into() })
    );
    assert_eq!(sent(&server).await.len(), 0);
}
