//! Push: what ntfy and push services are sent, read as they read it, and every answer has its meaning.

mod ntfy;
mod web_push;

use std::time::Duration;

use reveille::base::secret::Secret;
use reveille::domain::notification::{Addresses, PushAddress, Recipient};
use reveille::ports::channel::push::{PushChannel, Settings, Vapid, seal_auth};
use reveille::ports::channel::{Channel, ChannelError, Receipt, ReceiptLevel};
use reveille::ports::egress::Egress;
use reveille::ports::vault::{Vault, WithoutKeys};
use wiremock::matchers::method;
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::{ANSWER_SECONDS, deliver, recipient};
use crate::support::broken_servers::BrokenServers;

/// The key pair of the server in RFC 8291, appendix A.
const VAPID_PRIVATE: &str = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw";
/// The subscription of the browser there, with its private key.
const P256DH: &str = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
const BROWSER_PRIVATE: &str = "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94";
const AUTH: &str = "BTBZMqHH6r4Tts7J_aSIgg";

fn vault() -> Vault {
    let settings = reveille::ports::vault::Settings {
        master_keys: vec![reveille::ports::vault::KeySource::value("k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")],
        accept_lost_keys: false,
    };
    Vault::open(&settings, WithoutKeys::Refuse).unwrap().0
}

/// As `[channels.push]` says it.
fn settings(toml: &str) -> Settings {
    toml::from_str(&format!("timeout_seconds = {ANSWER_SECONDS}\n{toml}")).unwrap()
}

fn with_vapid() -> Settings {
    settings(&format!("vapid = {{ private_key = \"{VAPID_PRIVATE}\", subject = \"mailto:ops@example.org\" }}"))
}

/// The channel; user-given addresses may be on this machine.
fn push(settings: &Settings) -> PushChannel {
    opened(settings, &["127.0.0.1:*"])
}

fn opened(settings: &Settings, allow: &[&str]) -> PushChannel {
    let egress = reveille::ports::egress::Settings {
        allow: allow.iter().map(|entry| (*entry).to_owned()).collect(),
        ..reveille::ports::egress::Settings::default()
    };
    let vapid: Option<Vapid> = settings.vapid(WithoutKeys::Refuse, "http://127.0.0.1").unwrap().0;
    PushChannel::new(settings, vapid, Egress::new(&egress).unwrap(), vault()).unwrap()
}

fn topic(topic: &str, server: Option<&str>) -> PushAddress {
    PushAddress::Ntfy { topic: topic.into(), server: server.map(str::to_owned) }
}

fn browser(endpoint: impl Into<String>) -> PushAddress {
    let endpoint = endpoint.into();
    let sealed_auth = seal_auth(&vault(), "ann", &endpoint, &Secret::new(AUTH)).unwrap();
    PushAddress::WebPush { endpoint, p256dh: P256DH.into(), sealed_auth }
}

fn ann(push: Vec<PushAddress>) -> Recipient {
    recipient(Addresses { push, ..Addresses::default() })
}

async fn answering(status: u16, body: &str) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(ResponseTemplate::new(status).set_body_string(body)).mount(&server).await;
    server
}

fn delivered(provider_id: Option<&str>) -> Result<Receipt, ChannelError> {
    Ok(Receipt { provider_id: provider_id.map(str::to_owned), confirmed: ReceiptLevel::Delivered })
}

fn rejected(why: &str) -> Result<Receipt, ChannelError> {
    Err(ChannelError::Rejected { why: why.into() })
}

fn misconfigured(why: &str) -> Result<Receipt, ChannelError> {
    Err(ChannelError::Misconfigured { why: why.into() })
}

fn transient(why: &str, seconds: Option<u64>) -> Result<Receipt, ChannelError> {
    Err(ChannelError::Transient { why: why.into(), retry_after: seconds.map(Duration::from_secs) })
}

#[tokio::test]
async fn every_address_is_sent_to_and_one_that_takes_it_is_enough() {
    let (own, service, gone) =
        (answering(200, r#"{"id":"m1"}"#).await, answering(201, "").await, answering(410, "").await);
    let ann = ann(vec![browser(gone.uri()), browser(service.uri()), topic("phone", Some(&own.uri()))]);
    assert_eq!(deliver(&push(&with_vapid()), &ann).await, delivered(None));
    for server in [&own, &service, &gone] {
        assert_eq!(server.received_requests().await.unwrap().len(), 1);
    }
}

#[tokio::test]
async fn push_failure_lists_the_reasons_of_all_addresses() {
    let (gone, busy) = (answering(410, "").await, answering(503, "").await);
    let broken = BrokenServers::start().await;
    let gone = || browser(gone.uri());
    let why = "the push service answered 410 Gone: the subscription is gone; the page has to subscribe again";
    let channel = push(&with_vapid());
    assert_eq!(
        deliver(&channel, &ann(vec![gone(), gone()])).await,
        rejected(&format!("address 1: {why}; address 2: {why}"))
    );
    assert_eq!(
        deliver(&channel, &ann(vec![gone(), browser(busy.uri())])).await,
        transient(&format!("address 1: {why}; address 2: the push service answered 503 Service Unavailable"), None)
    );
    match deliver(&channel, &ann(vec![browser(busy.uri()), browser(broken.hangs())])).await {
        Err(ChannelError::Unknown { why }) => {
            assert!(why.contains("address 2: the push service was sent the message: no complete"), "{why}")
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(
        deliver(&channel, &ann(vec![])).await,
        Err(ChannelError::Unsendable { why: "the recipient has no push address".into() })
    );
    assert!(!channel.capabilities().deduplicates, "neither ntfy nor a push service drops repeats");
}
