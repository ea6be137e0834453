//! Webhooks: what is posted can be verified as the standard says, and every answer has its meaning.

use std::time::Duration;

use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::TimeDelta;
use reveille::base::secret::Secret;
use reveille::domain::notification::{Addresses, Recipient, WebhookAddress};
use reveille::ports::channel::webhook::{Settings, WebhookChannel, seal_secret};
use reveille::ports::channel::{Channel, ChannelError, Receipt, ReceiptLevel};
use reveille::ports::egress::Egress;
use reveille::ports::vault::{Vault, WithoutKeys};
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::{ANSWER_SECONDS, DELIVERY, created_at, deliver, deliver_at, recipient};
use crate::support::broken_servers::BrokenServers;

const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

pub fn vault() -> Vault {
    let settings = reveille::ports::vault::Settings {
        master_keys: vec![reveille::ports::vault::KeySource::value("k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")],
        accept_lost_keys: false,
    };
    Vault::open(&settings, WithoutKeys::Refuse).unwrap().0
}

fn webhook(allow: &[&str]) -> WebhookChannel {
    let egress = reveille::ports::egress::Settings {
        allow: allow.iter().map(|entry| (*entry).to_owned()).collect(),
        ..reveille::ports::egress::Settings::default()
    };
    WebhookChannel::new(&Settings { timeout_seconds: ANSWER_SECONDS }, Egress::new(&egress).unwrap(), vault()).unwrap()
}

fn local() -> WebhookChannel {
    webhook(&["127.0.0.1:*"])
}

fn ann(url: impl Into<String>) -> Recipient {
    let sealed_secret = seal_secret(&vault(), "ann", &Secret::new(format!("{NEW} {OLD}"))).unwrap();
    let webhook = Some(WebhookAddress { url: url.into(), sealed_secret });
    recipient(Addresses { webhook, ..Addresses::default() })
}

async fn answering(status: u16) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(status)).mount(&server).await;
    server
}

fn delivered() -> Result<Receipt, ChannelError> {
    Ok(Receipt { provider_id: None, confirmed: ReceiptLevel::Delivered })
}

/// Verifies as a receiver does: it recomputes the signature over the raw body, and compares it with each that was sent.
fn verifies(request: &wiremock::Request, secret: &str) -> bool {
    let header = |name: &str| request.headers[name].to_str().unwrap();
    let key = STANDARD.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let signed =
        [header("webhook-id").as_bytes(), b".", header("webhook-timestamp").as_bytes(), b".", &request.body].concat();
    header("webhook-signature").split(' ').any(|signature| {
        let tag = STANDARD.decode(signature.strip_prefix("v1,").unwrap()).unwrap();
        hmac::verify(&hmac::Key::new(hmac::HMAC_SHA256, &key), &signed, &tag).is_ok()
    })
}

#[tokio::test]
async fn message_is_posted_as_the_standard_says_and_each_secret_verifies_it() {
    let server = answering(204).await;
    assert_eq!(deliver(&local(), &ann(format!("{}/hook?a=1", server.uri()))).await, delivered());
    let [request] = server.received_requests().await.unwrap().try_into().expect("one request");
    assert_eq!(request.url.path(), "/hook");
    assert_eq!(
        std::str::from_utf8(&request.body).unwrap(),
        r#"{"data":{"id":"r1","output":"Grüße!"},"timestamp":"2026-12-24T07:00:09.250Z","type":"run.finished"}"#
    );
    let header = |name: &str| request.headers[name].to_str().unwrap().to_owned();
    let id = DELIVERY.to_string();
    assert_eq!(
        ["content-type", "webhook-id", "idempotency-key", "webhook-timestamp"].map(header),
        ["application/json".to_owned(), id.clone(), id, created_at().timestamp().to_string()]
    );
    assert!(verifies(&request, NEW) && verifies(&request, OLD));
    assert!(!verifies(&request, "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"));
}

#[tokio::test]
async fn repeat_has_the_same_id_and_body_and_a_new_time() {
    let server = answering(500).await;
    let ann = ann(server.uri());
    for minutes in [0, 5] {
        let _ = deliver_at(&local(), &ann, created_at() + TimeDelta::minutes(minutes)).await;
    }
    let [first, second] = server.received_requests().await.unwrap().try_into().expect("two requests");
    assert_eq!((&first.headers["webhook-id"], &first.body), (&second.headers["webhook-id"], &second.body));
    assert_ne!(first.headers["webhook-timestamp"], second.headers["webhook-timestamp"]);
    assert!(verifies(&first, OLD) && verifies(&second, OLD));
}

#[tokio::test]
async fn busy_receiver_is_asked_again_when_it_wants_to_be() {
    let server = MockServer::start().await;
    let answer = ResponseTemplate::new(429).insert_header("retry-after", "90");
    Mock::given(method("POST")).respond_with(answer).mount(&server).await;
    assert_eq!(
        deliver(&local(), &ann(server.uri())).await,
        Err(ChannelError::Transient {
            why: "the webhook answered 429 Too Many Requests".into(),
            retry_after: Some(Duration::from_secs(90)),
        })
    );
}

#[tokio::test]
async fn broken_receiver_is_asked_again_and_one_that_refuses_is_not() {
    let transient = |why: &str| Err(ChannelError::Transient { why: why.into(), retry_after: None });
    let rejected = |why: &str| Err(ChannelError::Rejected { why: why.into() });
    let answer = async |status| deliver(&local(), &ann(answering(status).await.uri())).await;
    assert_eq!(answer(500).await, transient("the webhook answered 500 Internal Server Error"));
    assert_eq!(answer(503).await, transient("the webhook answered 503 Service Unavailable"));
    let busy = ChannelError::Busy { why: "the webhook answered 429 Too Many Requests".into() };
    assert_eq!(answer(429).await, Err(busy), "it may mean this recipient alone");
    assert_eq!(answer(404).await, rejected("the webhook answered 404 Not Found"));
    assert_eq!(answer(410).await, rejected("the webhook answered 410 Gone: it wants no more messages"));
}

#[tokio::test]
async fn redirect_is_not_followed_anywhere() {
    let (server, other) = (MockServer::start().await, answering(200).await);
    for (from, to) in [("/other", other.uri()), ("/same", "/hook".to_owned())] {
        let answer = ResponseTemplate::new(307).insert_header("location", to.as_str());
        Mock::given(path(from)).respond_with(answer).mount(&server).await;
        assert_eq!(
            deliver(&local(), &ann(format!("{}{from}", server.uri()))).await,
            Err(ChannelError::Rejected {
                why: "the webhook answered 307 Temporary Redirect; redirects are not followed, set the new address"
                    .into()
            })
        );
    }
    assert_eq!(other.received_requests().await.unwrap().len(), 0);
    assert_eq!(server.received_requests().await.unwrap().len(), 2);
}

#[tokio::test]
async fn hanging_receiver_leaves_the_outcome_unknown_and_an_absent_one_does_not() {
    let broken = BrokenServers::start().await;
    for (address, said, sent) in [
        (broken.hangs(), &*format!("within {ANSWER_SECONDS} s"), true),
        (broken.closes(), "broke off", true),
        (broken.absent(), "can't connect", false),
    ] {
        match (deliver(&local(), &ann(format!("{address}/"))).await, sent) {
            (Err(ChannelError::Unknown { why }), true) if why.contains(said) => {}
            (Err(ChannelError::Transient { why, retry_after: None }), false) if why.contains(said) => {}
            (other, _) => panic!("{said}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn address_that_is_not_public_is_refused_without_a_connection() {
    let server = answering(200).await;
    match deliver(&webhook(&[]), &ann(server.uri())).await {
        Err(ChannelError::Unsendable { why }) => assert!(why.contains("127.0.0.1 is loopback"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(server.received_requests().await.unwrap().len(), 0);
}

#[tokio::test]
async fn secret_of_another_tenant_signs_nothing() {
    let server = answering(200).await;
    let mut stolen = ann(server.uri());
    stolen.addresses.webhook.as_mut().unwrap().sealed_secret = seal_secret(&vault(), "bob", &Secret::new(OLD)).unwrap();
    match deliver(&local(), &stolen).await {
        Err(ChannelError::Misconfigured { why }) => assert!(why.contains("moved from where it belongs"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(server.received_requests().await.unwrap().len(), 0);
}

#[tokio::test]
async fn recipient_without_an_address_is_said_to_have_none() {
    let none = recipient(Addresses::default());
    let why = "the recipient has no webhook address".into();
    assert_eq!(deliver(&local(), &none).await, Err(ChannelError::Unsendable { why }));
    assert!(local().capabilities().deduplicates, "a receiver knows a repeat by its id");
}
