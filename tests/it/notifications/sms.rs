//! Text messages: what Twilio and SignalWire are sent, and what is made of every answer.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reveille::base::secret::Secret;
use reveille::domain::notification::rendered_message::RenderedMessage;
use reveille::domain::notification::text::Link;
use reveille::domain::notification::{Addresses, Recipient};
use reveille::ports::channel::sms::segments::segments;
use reveille::ports::channel::sms::{Settings, SmsChannel, SmsProvider};
use reveille::ports::channel::{Channel, ChannelError, Login, Receipt, ReceiptLevel, report_url};
use serde_json::{Value, json};
use wiremock::matchers::{method, path, query_param};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::webhook::vault;
use super::{
    ANSWER_SECONDS, DELIVERY, answering, created_at, deliver, deliver_words, header, only_request, outcome, recipient,
    words,
};
use crate::support::broken_servers::BrokenServers;

const TOKEN: &str = "canary-of-the-token";

fn settings(base: &str) -> Settings {
    Settings {
        account: Some("AC7f00".into()),
        token: Some(Secret::new(TOKEN)),
        from: Some("+14155550100".into()),
        base_url: Some(base.into()),
        timeout_seconds: ANSWER_SECONDS,
        ..Settings::default()
    }
}

fn sms_at(settings: &Settings, public_url: Option<&str>) -> SmsChannel {
    SmsChannel::new(settings, vault(), public_url).unwrap().expect("a configured channel")
}

fn sms(base: &str) -> SmsChannel {
    sms_at(&settings(base), None)
}

fn ann() -> Recipient {
    recipient(Addresses { sms: Some("+4915112345678".into()), ..Addresses::default() })
}

fn taken() -> ResponseTemplate {
    ResponseTemplate::new(201).set_body_json(json!({ "sid": "SM42", "status": "queued", "error_code": null }))
}

/// The fields of a form in the order in which they were sent.
fn form(request: &wiremock::Request) -> Vec<(String, String)> {
    url::form_urlencoded::parse(&request.body).into_owned().collect()
}

fn pairs(fields: &[(&str, &str)]) -> Vec<(String, String)> {
    fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

#[tokio::test]
async fn twilio_is_asked_as_its_interface_says_and_what_it_took_is_sent_not_delivered() {
    let server = answering(taken()).await;
    let receipt = deliver(&sms(&server.uri()), &ann()).await;
    assert_eq!(receipt, Ok(Receipt { provider_id: Some("SM42".into()), confirmed: ReceiptLevel::Sent }));
    let request = only_request(&server).await;
    assert_eq!(request.url.path(), "/2010-04-01/Accounts/AC7f00/Messages.json");
    assert_eq!(header(&request, "content-type"), "application/x-www-form-urlencoded");
    assert_eq!(header(&request, "authorization"), format!("Basic {}", STANDARD.encode(format!("AC7f00:{TOKEN}"))));
    let text = words().text;
    let fields = [("To", "+4915112345678"), ("Body", text.as_str()), ("From", "+14155550100")];
    assert_eq!(form(&request), pairs(&fields));
}

#[tokio::test]
async fn signalwire_and_a_key_and_a_messaging_service_are_used_where_they_are_set() {
    let server = answering(taken()).await;
    let signalwire = Settings {
        provider: SmsProvider::Signalwire,
        account: Some("5f1c-22".into()),
        from: None,
        messaging_service: Some("MG1".into()),
        api_key: Some("SK1".into()),
        base_url: Some(format!("{}/api/laml/", server.uri())),
        ..settings("")
    };
    deliver(&sms_at(&signalwire, None), &ann()).await.unwrap();
    let request = only_request(&server).await;
    assert_eq!(request.url.path(), "/api/laml/2010-04-01/Accounts/5f1c-22/Messages.json");
    assert_eq!(header(&request, "authorization"), format!("Basic {}", STANDARD.encode(format!("SK1:{TOKEN}"))));
    assert_eq!(form(&request)[2], ("MessagingServiceSid".to_owned(), "MG1".to_owned()));
}

#[tokio::test]
async fn report_is_asked_for_at_an_address_of_this_delivery_s_own() {
    let server = answering(taken()).await;
    let sms = sms_at(&settings(&server.uri()), Some("https://wake.example.org/"));
    deliver(&sms, &ann()).await.unwrap();
    let fields = form(&only_request(&server).await);
    let (_, address) = fields.iter().find(|(name, _)| name == "StatusCallback").expect("an address");
    let ticket = address.strip_prefix("https://wake.example.org/v1/receipts/sms/").expect("ours");
    assert_eq!(report_url::read(&vault(), "sms", ticket), Some(DELIVERY));
}

#[tokio::test]
async fn no_report_is_asked_for_at_an_address_that_the_provider_can_t_reach() {
    for private in ["http://127.0.0.1:7700", "http://localhost:7700", "https://nas.local"] {
        let server = answering(taken()).await;
        deliver(&sms_at(&settings(&server.uri()), Some(private)), &ann()).await.unwrap();
        assert!(form(&only_request(&server).await).iter().all(|(name, _)| name != "StatusCallback"), "{private}");
    }
}

#[tokio::test]
async fn text_has_no_more_parts_than_it_may_and_keeps_its_link() {
    let link = "https://wake.example.org/approvals/0123456789abcdefghij";
    let long = RenderedMessage {
        text: format!("{}\n\nLook at it and decide:\n{link}", "Ein Satz – „überall“ 😀. ".repeat(40)),
        link: Some(Link { label: "Decide".into(), url: link.into() }),
        ..words()
    };
    for (max_segments, least) in [(2, 1), (3, 2)] {
        let server = answering(taken()).await;
        let sms = sms_at(&Settings { max_segments, ..settings(&server.uri()) }, None);
        assert_eq!(sms.capabilities().max_response_length, max_segments * 153);
        deliver_words(&sms, &ann(), &long, created_at()).await.unwrap();
        let (_, text) = form(&only_request(&server).await).swap_remove(1);
        assert!(text.starts_with("Ein Satz – „überall“ 😀.") && text.ends_with(&format!("...\n{link}")), "{text}");
        assert!((least..=max_segments).contains(&segments(&text)), "{}: {text}", segments(&text));
    }
    let server = answering(taken()).await;
    let one = sms_at(&Settings { max_segments: 1, ..settings(&server.uri()) }, None);
    let endless = format!("https://wake.example.org/{}", "x".repeat(200));
    let told =
        RenderedMessage { text: endless.clone(), link: Some(Link { label: "Open".into(), url: endless }), ..words() };
    let refused = outcome(deliver_words(&one, &ann(), &told, created_at()).await);
    let why = "the link alone is longer than channels.sms.max_segments = 1 allows";
    assert_eq!((refused, server.received_requests().await.unwrap().len()), (("unsendable", why.into()), 0));
}

fn refusal(status: u16, code: Value) -> ResponseTemplate {
    let more_info = "https://www.twilio.com/docs/errors/1";
    let message = format!("the provider's words, {TOKEN}");
    ResponseTemplate::new(status)
        .set_body_json(json!({ "code": code, "message": message, "more_info": more_info, "status": status }))
}

#[tokio::test]
async fn every_answer_has_its_meaning_and_none_repeats_the_token() {
    let cases = [
        (400, 21211, "rejected"),
        (400, 21614, "rejected"),
        (400, 21610, "rejected"),
        (400, 21612, "rejected"),
        (400, 21617, "rejected"),
        (400, 99999, "rejected"),
        (401, 20003, "misconfigured"),
        (403, 20003, "misconfigured"),
        (404, 20404, "misconfigured"),
        (400, 21606, "misconfigured"),
        (400, 21608, "misconfigured"),
        (400, 21408, "misconfigured"),
        (400, 21609, "misconfigured"),
        (429, 20429, "busy"),
        (400, 30001, "busy"),
        (429, 63038, "busy"),
        (500, 20500, "transient"),
        (503, 20503, "transient"),
        (302, 1, "misconfigured"),
    ];
    for (status, code, word) in cases {
        for code in [json!(code), json!(code.to_string())] {
            let server = answering(refusal(status, code.clone())).await;
            let (found, why) = outcome(deliver(&sms(&server.uri()), &ann()).await);
            let code = code.as_str().map_or(code.to_string(), str::to_owned);
            let said = format!("Twilio answered {status}: error {code}: the provider's words, [redacted]");
            assert_eq!((found, why), (word, said), "{status} {code}");
        }
    }
}

#[tokio::test]
async fn answer_that_is_no_json_is_judged_by_its_status() {
    for (status, word) in [(201, "sent"), (400, "rejected"), (401, "misconfigured"), (502, "transient")] {
        let server = answering(ResponseTemplate::new(status).set_body_string("<html>")).await;
        assert_eq!(outcome(deliver(&sms(&server.uri()), &ann()).await).0, word, "{status}");
    }
}

#[tokio::test]
async fn message_refused_in_the_accepting_answer_is_refused() {
    let failed = json!({ "sid": "SM1", "status": "failed", "error_code": 30005, "error_message": null });
    let server = answering(ResponseTemplate::new(201).set_body_json(failed)).await;
    let why = "the message did not arrive: the number is not known (error 30005)";
    assert_eq!(outcome(deliver(&sms(&server.uri()), &ann()).await), ("rejected", why.into()));
}

#[tokio::test]
async fn busy_provider_is_asked_again_when_it_wants_to_be() {
    let server = answering(refusal(429, json!(20429)).insert_header("retry-after", "7")).await;
    match deliver(&sms(&server.uri()), &ann()).await {
        Err(ChannelError::Transient { retry_after, .. }) => assert_eq!(retry_after, Some(Duration::from_secs(7))),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn unanswered_message_is_unknown_and_an_unsent_one_is_retried() {
    let broken = BrokenServers::start().await;
    for (line, base) in broken.each() {
        let (word, why) = outcome(deliver(&sms(&base), &ann()).await);
        let expected = if line == "absent" { "transient" } else { "unknown" };
        assert!(word == expected && !why.contains(TOKEN), "{line}: {word}: {why}");
    }
    let slow = MockServer::start().await;
    wiremock::Mock::given(wiremock::matchers::any())
        .respond_with(taken().set_delay(Duration::from_secs(4 * ANSWER_SECONDS)))
        .mount(&slow)
        .await;
    let late = outcome(deliver(&sms(&slow.uri()), &ann()).await);
    assert_eq!(late, ("unknown", "Twilio was sent the message and did not answer in time".into()));
    assert!(!sms(&slow.uri()).capabilities().deduplicates, "there is no key that would make a repeat safe");
}

#[tokio::test]
async fn recipient_without_a_number_is_said_to_have_none() {
    let none = recipient(Addresses::default());
    let why = "the recipient has no number for text messages".into();
    assert_eq!(outcome(deliver(&sms("http://127.0.0.1:1"), &none).await), ("unsendable", why));
}

async fn login(settings: &Settings) -> Login {
    settings.login().await.expect("settings that are right").expect("an account")
}

#[tokio::test]
async fn look_at_the_login_asks_for_the_account_and_sends_nothing() {
    let server = MockServer::start().await;
    let account = json!({ "sid": "AC7f00", "status": "active", "type": "Full" });
    let answer = ResponseTemplate::new(200).set_body_json(account);
    Mock::given(method("GET")).and(path("/2010-04-01/Accounts/AC7f00.json")).respond_with(answer).mount(&server).await;
    assert_eq!(login(&settings(&server.uri())).await, Login::Fine("Twilio takes the login of AC7f00".into()));
    let request = only_request(&server).await;
    assert_eq!(header(&request, "authorization"), format!("Basic {}", STANDARD.encode(format!("AC7f00:{TOKEN}"))));
    assert!(request.body.is_empty());
    assert_eq!(Settings::default().login().await, Ok(None));
    assert!(Settings { from: None, ..settings(&server.uri()) }.login().await.is_err(), "what is wrong is said first");
}

#[tokio::test]
async fn key_is_looked_at_by_what_it_may_see() {
    let server = MockServer::start().await;
    let path_of_messages = "/2010-04-01/Accounts/AC7f00/Messages.json";
    let page = ResponseTemplate::new(200).set_body_json(json!({ "messages": [] }));
    let mock = Mock::given(method("GET")).and(path(path_of_messages)).and(query_param("PageSize", "1"));
    let seen = mock.respond_with(page).up_to_n_times(1).mount_as_scoped(&server).await;
    let with_key = Settings { api_key: Some("SK1".into()), ..settings(&server.uri()) };
    assert_eq!(login(&with_key).await, Login::Fine("Twilio takes the login of SK1".into()));
    drop(seen);
    let denied = ResponseTemplate::new(403).set_body_json(json!({ "code": 70051, "message": "Authorization failed" }));
    Mock::given(method("GET")).and(path(path_of_messages)).respond_with(denied).mount(&server).await;
    let odd = "Twilio does not let the key SK1 look at messages; it may send some all the same";
    assert_eq!(login(&with_key).await, Login::Odd(odd.into()));
}

#[tokio::test]
async fn login_that_is_not_taken_and_an_account_that_is_closed_are_wrong() {
    let said = |status: u16, body: Value| ResponseTemplate::new(status).set_body_json(body);
    for (answer, why) in [
        (said(401, json!({ "code": 20003, "message": format!("no {TOKEN}") })), "Twilio answered 401: no [redacted]"),
        (said(200, json!({ "status": "suspended" })), "the account AC7f00 at Twilio is suspended"),
        (ResponseTemplate::new(200).set_body_string("hello"), "Twilio's answer can't be read"),
        (ResponseTemplate::new(503), "Twilio answered 503 Service Unavailable"),
    ] {
        let server = MockServer::start().await;
        Mock::given(method("GET")).respond_with(answer).mount(&server).await;
        assert_eq!(login(&settings(&server.uri())).await, Login::Wrong(why.into()));
    }
    let broken = BrokenServers::start().await;
    for (line, address) in broken.each() {
        let Login::Wrong(why) = login(&settings(&address)).await else { panic!("{line} is not wrong") };
        let expected = if line == "absent" { "Twilio can't be reached: " } else { "Twilio does not answer" };
        assert!(why.starts_with(expected) && !why.contains("message"), "{line}: {why}");
    }
}
