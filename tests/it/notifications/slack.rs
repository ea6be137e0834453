//! Slack: what its Web API and its incoming webhooks are sent, and what is made of every answer.

use std::time::Duration;

use reveille::base::secret::Secret;
use reveille::domain::notification::rendered_message::RenderedMessage;
use reveille::domain::notification::text::Link;
use reveille::domain::notification::{Addresses, Recipient, SlackAddress};
use reveille::ports::channel::slack::{Settings, SlackChannel, seal_url};
use reveille::ports::channel::{Channel, ChannelError, Login, Receipt, ReceiptLevel};
use reveille::ports::egress::{self, Egress};
use serde_json::{Value, json};
use wiremock::ResponseTemplate;

use super::webhook::vault;
use super::{
    ANSWER_SECONDS, answering, created_at, deliver, deliver_words, header, only_request, outcome, recipient, words,
};
use crate::support::broken_servers::BrokenServers;

const TOKEN: &str = "xoxb-canary-of-the-token";
const PLACE: &str = "/services/T0/B0/canary-of-the-webhook";

fn slack(base: &str, token: Option<&str>) -> SlackChannel {
    let egress = egress::Settings { allow: vec!["127.0.0.1:*".into()], ..egress::Settings::default() };
    let settings = Settings {
        token: token.map(Secret::new),
        base_url: format!("{base}/api"),
        webhook_hosts: vec!["hooks.slack.com".into(), base.into()],
        timeout_seconds: ANSWER_SECONDS,
    };
    SlackChannel::new(&settings, Egress::new(&egress).unwrap(), vault()).unwrap()
}

fn member() -> Recipient {
    let slack = Some(SlackAddress::Channel { channel: "C024BE91L".into() });
    recipient(Addresses { slack, ..Addresses::default() })
}

fn hooked(url: &str) -> Recipient {
    let sealed_url = seal_url(&vault(), "ann", &Secret::new(url)).unwrap();
    recipient(Addresses { slack: Some(SlackAddress::Webhook { sealed_url }), ..Addresses::default() })
}

fn sample_message() -> RenderedMessage {
    RenderedMessage {
        text: "*Morgenpost*\n\nGrüße &amp; <https://example.org|mehr>".into(),
        link: Some(Link { label: "Decide".into(), url: "https://wake.example.org/approvals/1".into() }),
        thread: Some("batch 7".into()),
        ..words()
    }
}

/// The request that is sent for [`sample_message`].
fn expected() -> Value {
    let text = "*Morgenpost*\n\nGrüße &amp; <https://example.org|mehr>";
    json!({
        "text": text,
        "blocks": [
            { "type": "section", "text": { "type": "mrkdwn", "text": text } },
            { "type": "actions", "elements": [{
                "type": "button", "action_id": "open", "text": { "type": "plain_text", "text": "Decide" },
                "url": "https://wake.example.org/approvals/1",
            }] },
        ],
        "unfurl_links": false, "unfurl_media": false,
    })
}

fn ok() -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_json(json!({ "ok": true, "channel": "C024BE91L", "ts": "1503435956.000247" }))
}

fn body(request: &wiremock::Request) -> Value {
    serde_json::from_slice(&request.body).unwrap()
}

#[tokio::test]
async fn message_is_written_with_the_operator_s_token_in_blocks() {
    let server = answering(ok()).await;
    let receipt = deliver_words(&slack(&server.uri(), Some(TOKEN)), &member(), &sample_message(), created_at()).await;
    let provider_id = Some("1503435956.000247".to_owned());
    assert_eq!(receipt, Ok(Receipt { provider_id, confirmed: ReceiptLevel::Delivered }));
    let request = only_request(&server).await;
    assert_eq!(request.url.path(), "/api/chat.postMessage");
    assert_eq!(header(&request, "authorization"), format!("Bearer {TOKEN}"));
    assert_eq!(header(&request, "content-type"), "application/json; charset=utf-8");
    let mut expected = expected();
    expected["channel"] = json!("C024BE91L");
    assert_eq!(body(&request), expected);
}

#[tokio::test]
async fn webhook_of_the_recipient_s_own_needs_no_token() {
    let server = answering(ResponseTemplate::new(200).set_body_string("ok")).await;
    let slack = slack(&server.uri(), None);
    let receipt =
        deliver_words(&slack, &hooked(&format!("{}{PLACE}", server.uri())), &sample_message(), created_at()).await;
    assert_eq!(receipt, Ok(Receipt { provider_id: None, confirmed: ReceiptLevel::Delivered }));
    let request = only_request(&server).await;
    assert_eq!((request.url.path(), body(&request)), (PLACE, expected()));
    assert!(request.headers.get("authorization").is_none());
    let why = "channels.slack.token is not set, so only incoming webhooks can be written to".into();
    assert_eq!(outcome(deliver(&slack, &member()).await), ("misconfigured", why));
}

#[tokio::test]
async fn long_text_is_several_sections_within_slack_s_limits() {
    let server = answering(ok()).await;
    let slack = slack(&server.uri(), Some(TOKEN));
    let text = "Ein Satz mit &amp; und Grüßen.\n".repeat(1300);
    let long: String = text.chars().take(slack.capabilities().max_response_length).collect();
    deliver_words(&slack, &member(), &RenderedMessage { text: long.clone(), ..sample_message() }, created_at())
        .await
        .unwrap();
    let sent = body(&only_request(&server).await);
    let blocks = sent["blocks"].as_array().unwrap();
    let sections: Vec<&str> = blocks.iter().filter_map(|block| block["text"]["text"].as_str()).collect();
    assert!(blocks.len() <= 50 && sections.len() == blocks.len() - 1, "{} blocks", blocks.len());
    assert!(sections.iter().all(|section| section.chars().count() <= 3000));
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(words(&sections.join("\n")), words(&long), "nothing is lost");
    assert!(sent["text"].as_str().unwrap().chars().count() < 4000);
}

#[tokio::test]
async fn link_that_is_no_web_address_is_no_button() {
    let server = answering(ok()).await;
    let link = Some(Link { label: "Open".into(), url: "javascript:alert(1)".into() });
    deliver_words(&slack(&server.uri(), Some(TOKEN)), &member(), &RenderedMessage { link, ..words() }, created_at())
        .await
        .unwrap();
    assert_eq!(body(&only_request(&server).await)["blocks"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn every_answer_of_the_web_api_has_its_meaning() {
    let cases = [
        ("channel_not_found", "rejected"),
        ("is_archived", "rejected"),
        ("not_in_channel", "rejected"),
        ("msg_too_long", "rejected"),
        ("invalid_blocks", "rejected"),
        ("something_new", "rejected"),
        ("invalid_auth", "misconfigured"),
        ("token_revoked", "misconfigured"),
        ("account_inactive", "misconfigured"),
        ("missing_scope", "misconfigured"),
        ("ratelimited", "busy"),
        ("service_unavailable", "transient"),
        ("internal_error", "unknown"),
        ("fatal_error", "unknown"),
    ];
    for (code, word) in cases {
        let server = answering(ResponseTemplate::new(200).set_body_json(json!({ "ok": false, "error": code }))).await;
        let (found, why) = outcome(deliver(&slack(&server.uri(), Some(TOKEN)), &member()).await);
        assert!(found == word && why.starts_with(&format!("Slack refused: {code}")), "{code}: {found}: {why}");
    }
    for (status, word) in [(500, "transient"), (503, "transient"), (200, "unknown"), (404, "misconfigured")] {
        let server = answering(ResponseTemplate::new(status).set_body_string("<html>")).await;
        assert_eq!(outcome(deliver(&slack(&server.uri(), Some(TOKEN)), &member()).await).0, word, "{status}");
    }
    let scope = json!({ "ok": false, "error": "missing_scope", "needed": "chat:write" });
    let server = answering(ResponseTemplate::new(200).set_body_json(scope)).await;
    let why = "Slack refused: missing_scope; the app needs the scope chat:write".into();
    assert_eq!(outcome(deliver(&slack(&server.uri(), Some(TOKEN)), &member()).await), ("misconfigured", why));
}

#[tokio::test]
async fn every_answer_of_a_webhook_has_its_meaning() {
    let cases = [
        (400, "no_text", "rejected"),
        (403, "action_prohibited", "rejected"),
        (404, "no_service", "rejected"),
        (410, "channel_is_archived", "rejected"),
        (302, "moved", "rejected"),
        (429, "rate_limited", "busy"),
        (500, "rollup_error", "transient"),
    ];
    for (status, said, word) in cases {
        let server = answering(ResponseTemplate::new(status).set_body_string(said)).await;
        let ann = hooked(&format!("{}{PLACE}", server.uri()));
        let (found, why) = outcome(deliver(&slack(&server.uri(), None), &ann).await);
        assert!(found == word && why.contains(said) && !why.contains("canary"), "{status}: {found}: {why}");
    }
}

#[tokio::test]
async fn busy_slack_is_asked_again_when_it_wants_to_be() {
    let body = json!({ "ok": false, "error": "ratelimited" });
    let busy = ResponseTemplate::new(429).insert_header("retry-after", "30").set_body_json(body);
    let server = answering(busy).await;
    let base = server.uri();
    for ann in [member(), hooked(&format!("{base}{PLACE}"))] {
        match deliver(&slack(&base, Some(TOKEN)), &ann).await {
            Err(ChannelError::Transient { retry_after, .. }) => assert_eq!(retry_after, Some(Duration::from_secs(30))),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn unanswered_message_is_unknown_and_an_unsent_one_is_retried() {
    let broken = BrokenServers::start().await;
    for (line, base) in broken.each() {
        for ann in [member(), hooked(&format!("{base}{PLACE}"))] {
            let (word, why) = outcome(deliver(&slack(&base, Some(TOKEN)), &ann).await);
            let expected = if line == "absent" { "transient" } else { "unknown" };
            assert!(word == expected && !why.contains("canary"), "{line}: {word}: {why}");
        }
    }
    assert!(!slack("http://127.0.0.1:1", None).capabilities().deduplicates);
}

#[tokio::test]
async fn webhook_elsewhere_and_one_of_another_tenant_are_not_written_to() {
    let server = answering(ok()).await;
    let slack = slack(&server.uri(), None);
    for elsewhere in ["http://127.0.0.1:1/services/x", "https://evil.example/services/x", "http://hooks.slack.com/x"] {
        let (word, why) = outcome(deliver(&slack, &hooked(elsewhere)).await);
        assert!(word == "unsendable" && why.contains("channels.slack.webhook_hosts"), "{elsewhere}: {word}: {why}");
    }
    let sealed_url = seal_url(&vault(), "bob", &Secret::new(format!("{}{PLACE}", server.uri()))).unwrap();
    let stolen = Some(SlackAddress::Webhook { sealed_url });
    let (word, why) = outcome(deliver(&slack, &recipient(Addresses { slack: stolen, ..Addresses::default() })).await);
    assert!(word == "misconfigured" && why.contains("moved from where it belongs"), "{word}: {why}");
    let nowhere = deliver(&slack, &recipient(Addresses::default())).await;
    assert_eq!(outcome(nowhere), ("unsendable", "the recipient has no Slack address".into()));
    assert_eq!(server.received_requests().await.unwrap().len(), 0);
}

async fn login(base: &str, token: Option<&str>) -> Option<Login> {
    let settings = Settings {
        token: token.map(Secret::new),
        base_url: format!("{base}/api"),
        timeout_seconds: ANSWER_SECONDS,
        ..Settings::default()
    };
    settings.login().await.expect("settings that are right")
}

#[tokio::test]
async fn look_at_the_login_asks_whom_the_token_is_of() {
    let me = json!({ "ok": true, "url": "https://t.slack.com/", "team": "Team", "user": "wake", "team_id": "T1" });
    let server = answering(ResponseTemplate::new(200).set_body_json(me)).await;
    let fine = Login::Fine("Slack knows the app as wake of Team".into());
    assert_eq!(login(&server.uri(), Some(TOKEN)).await, Some(fine));
    let request = only_request(&server).await;
    assert_eq!(
        (request.url.path(), header(&request, "authorization")),
        ("/api/auth.test", format!("Bearer {TOKEN}").as_str())
    );
    assert_eq!(login(&server.uri(), None).await, None, "without a token there is nothing to look at");
    let refused = json!({ "ok": false, "error": "invalid_auth" });
    for (answer, why) in [
        (ResponseTemplate::new(200).set_body_json(refused), "Slack refused: invalid_auth"),
        (ResponseTemplate::new(200).set_body_string("hello"), "Slack's answer can't be read"),
        (ResponseTemplate::new(500), "Slack answered 500 Internal Server Error"),
    ] {
        let server = answering(answer).await;
        assert_eq!(login(&server.uri(), Some(TOKEN)).await, Some(Login::Wrong(why.into())));
    }
    let broken = BrokenServers::start().await;
    for (line, address) in broken.each() {
        let Some(Login::Wrong(why)) = login(&address, Some(TOKEN)).await else { panic!("{line} is not wrong") };
        assert!(why.starts_with("Slack ") && !why.contains("canary"), "{line}: {why}");
    }
}
