//! Telegram: what the Bot API is sent, and what is made of every answer.

use std::time::Duration;

use reveille::base::secret::Secret;
use reveille::domain::notification::rendered_message::RenderedMessage;
use reveille::domain::notification::text::Link;
use reveille::domain::notification::{Addresses, Recipient};
use reveille::domain::task::Urgency;
use reveille::ports::channel::telegram::{Settings, TelegramChannel};
use reveille::ports::channel::{Channel, ChannelError, Login, OutgoingMessage, Receipt, ReceiptLevel};
use serde_json::{Value, json};
use tracing::Level;
use wiremock::ResponseTemplate;

use super::{
    ANSWER_SECONDS, DELIVERY, answering, created_at, deliver, deliver_words, header, only_request, outcome, recipient,
    words,
};
use crate::support::broken_servers::BrokenServers;
use crate::support::log::logged;

const TOKEN: &str = "123456:canary-of-the-token";

fn telegram(base: &str) -> TelegramChannel {
    let settings = Settings { token: Some(Secret::new(TOKEN)), base_url: base.into(), timeout_seconds: ANSWER_SECONDS };
    TelegramChannel::new(&settings).unwrap().expect("a configured channel")
}

fn ann() -> Recipient {
    recipient(Addresses { telegram: Some("-1001234567890".into()), ..Addresses::default() })
}

fn ok() -> ResponseTemplate {
    ResponseTemplate::new(200).set_body_json(json!({ "ok": true, "result": { "message_id": 4711, "text": "…" } }))
}

fn asked(url: &str) -> RenderedMessage {
    RenderedMessage {
        text: "<b>Morgenpost</b>\n\nGrüße &amp; mehr".into(),
        link: Some(Link { label: "Decide".into(), url: url.into() }),
        event: "input.requested",
        asks: true,
        ..words()
    }
}

async fn sent(told: &RenderedMessage) -> Value {
    let server = answering(ok()).await;
    deliver_words(&telegram(&server.uri()), &ann(), told, created_at()).await.unwrap();
    serde_json::from_slice(&only_request(&server).await.body).unwrap()
}

#[tokio::test]
async fn question_is_sent_with_a_button_and_can_t_be_forwarded() {
    let server = answering(ok()).await;
    let told = asked("https://wake.example.org/approvals/1");
    let receipt = deliver_words(&telegram(&server.uri()), &ann(), &told, created_at()).await;
    assert_eq!(receipt, Ok(Receipt { provider_id: Some("4711".into()), confirmed: ReceiptLevel::Delivered }));
    let request = only_request(&server).await;
    assert_eq!(request.url.path(), format!("/bot{TOKEN}/sendMessage"));
    assert_eq!(header(&request, "content-type"), "application/json");
    assert_eq!(
        serde_json::from_slice::<Value>(&request.body).unwrap(),
        json!({
            "chat_id": "-1001234567890", "text": "<b>Morgenpost</b>\n\nGrüße &amp; mehr", "parse_mode": "HTML",
            "link_preview_options": { "is_disabled": true }, "protect_content": true,
            "reply_markup": { "inline_keyboard": [[
                { "text": "Decide", "url": "https://wake.example.org/approvals/1" },
            ]] },
        })
    );
}

#[tokio::test]
async fn result_may_be_forwarded_and_what_does_not_press_makes_no_sound() {
    let plain = sent(&words()).await;
    assert_eq!(
        (plain.get("protect_content"), plain.get("reply_markup"), plain.get("disable_notification")),
        (None, None, None)
    );
    let server = answering(ok()).await;
    let (ann, words) = (ann(), words());
    let message = OutgoingMessage {
        id: DELIVERY,
        recipient_id: "ann",
        created_at: created_at(),
        now: created_at(),
        recipient: &ann,
        words: &words,
        urgency: Urgency::Low,
    };
    telegram(&server.uri()).deliver(&message).await.unwrap();
    let quiet: Value = serde_json::from_slice(&only_request(&server).await.body).unwrap();
    assert_eq!(quiet["disable_notification"], true);
}

#[tokio::test]
async fn link_that_telegram_would_refuse_is_no_button() {
    for private in
        ["http://localhost:7700/approvals/1", "http://192.168.1.5/approvals/1", "https://nas/x", "ftp://a.org"]
    {
        assert_eq!(sent(&asked(private)).await.get("reply_markup"), None, "{private}");
    }
}

#[tokio::test]
async fn text_is_no_longer_than_telegram_takes_and_its_tags_are_closed() {
    let long = sent(&RenderedMessage { text: format!("<b>{}</b>", "Grüße &amp; 😀 ".repeat(700)), ..words() }).await;
    let text = long["text"].as_str().unwrap();
    let shown = text.replace("<b>", "").replace("</b>", "").replace("&amp;", "&");
    assert!(shown.encode_utf16().count() <= 4096, "{}", shown.encode_utf16().count());
    assert!(text.starts_with("<b>Grüße &amp; 😀") && text.ends_with("</b>…"), "{text}");
}

#[tokio::test]
async fn every_answer_has_its_meaning_and_none_repeats_the_token() {
    let cases = [
        (400, "Bad Request: chat not found", "rejected"),
        (400, "Bad Request: can't parse entities: Unsupported start tag \"x\"", "rejected"),
        (403, "Forbidden: bot was blocked by the user", "rejected"),
        (403, "Forbidden: bot is not a member of the channel chat", "rejected"),
        (401, "Unauthorized", "misconfigured"),
        (404, "Not Found", "misconfigured"),
        (409, "Conflict", "rejected"),
        (429, "Too Many Requests: retry after 5", "busy"),
        (500, "Internal Server Error", "transient"),
        (502, "Bad Gateway", "transient"),
    ];
    for (status, description, word) in cases {
        let body = json!({ "ok": false, "error_code": status, "description": format!("{description} /bot{TOKEN}/") });
        let server = answering(ResponseTemplate::new(status).set_body_json(body)).await;
        let (found, why) = outcome(deliver(&telegram(&server.uri()), &ann()).await);
        let said = format!("Telegram answered {status}: {description} /bot[redacted]/");
        assert_eq!((found, why), (word, said), "{status}");
    }
    for (status, word) in [(200, "unknown"), (403, "rejected"), (503, "transient")] {
        let server = answering(ResponseTemplate::new(status).set_body_string("<html>")).await;
        assert_eq!(outcome(deliver(&telegram(&server.uri()), &ann()).await).0, word, "{status}");
    }
}

#[tokio::test]
async fn telegram_retry_after_is_read_from_its_parameters() {
    let busy = json!({
        "ok": false, "error_code": 429, "description": "Too Many Requests", "parameters": { "retry_after": 35 },
    });
    let server = answering(ResponseTemplate::new(429).set_body_json(busy)).await;
    match deliver(&telegram(&server.uri()), &ann()).await {
        Err(ChannelError::Transient { retry_after, .. }) => assert_eq!(retry_after, Some(Duration::from_secs(35))),
        other => panic!("{other:?}"),
    }
    let moved = json!({
        "ok": false, "error_code": 400, "description": "Bad Request: group chat was upgraded to a supergroup chat",
        "parameters": { "migrate_to_chat_id": -1009876 },
    });
    let server = answering(ResponseTemplate::new(400).set_body_json(moved)).await;
    let (word, why) = outcome(deliver(&telegram(&server.uri()), &ann()).await);
    assert!(word == "rejected" && why.ends_with("the group's chat id is now -1009876"), "{word}: {why}");
}

#[tokio::test]
async fn unanswered_message_is_unknown_and_an_unsent_one_is_retried() {
    let broken = BrokenServers::start().await;
    for (line, base) in broken.each() {
        let (word, why) = outcome(deliver(&telegram(&base), &ann()).await);
        let expected = if line == "absent" { "transient" } else { "unknown" };
        assert!(word == expected && !why.contains("canary"), "{line}: {word}: {why}");
    }
    assert!(!telegram("http://127.0.0.1:1").capabilities().deduplicates);
    let nowhere = deliver(&telegram("http://127.0.0.1:1"), &recipient(Addresses::default())).await;
    assert_eq!(outcome(nowhere), ("unsendable", "the recipient has no Telegram chat".into()));
}

#[tokio::test]
async fn token_is_in_no_log_though_it_is_in_the_address() {
    let deliveries = async {
        let server = answering(ok()).await;
        tracing::trace!("begin");
        deliver(&telegram(&server.uri()), &ann()).await.unwrap();
        let broken = BrokenServers::start().await;
        for (_, base) in broken.each() {
            let _ = deliver(&telegram(&base), &ann()).await;
        }
    };
    let ((), text) = logged(Level::TRACE, deliveries).await;
    let ours: Vec<&str> = text.lines().filter(|line| !line.contains("wiremock")).collect();
    assert!(ours.iter().any(|line| line.contains("begin")) && ours.len() > 5, "{text}");
    let told: Vec<&&str> = ours.iter().filter(|line| line.contains("canary")).collect();
    assert!(told.is_empty(), "{told:#?}");
}

#[tokio::test]
async fn look_at_the_login_asks_who_the_bot_is() {
    let me =
        json!({ "ok": true, "result": { "id": 123456, "is_bot": true, "first_name": "R", "username": "wake_bot" } });
    let server = answering(ResponseTemplate::new(200).set_body_json(me)).await;
    assert_eq!(telegram(&server.uri()).login().await, Login::Fine("Telegram knows the bot @wake_bot".into()));
    assert_eq!(only_request(&server).await.url.path(), format!("/bot{TOKEN}/getMe"));
    let refusal = json!({ "ok": false, "error_code": 401, "description": format!("Unauthorized {TOKEN}") });
    for (answer, why) in [
        (ResponseTemplate::new(401).set_body_json(refusal), "Telegram answered 401: Unauthorized [redacted]"),
        (ResponseTemplate::new(200).set_body_string("hello"), "Telegram's answer can't be read"),
    ] {
        let server = answering(answer).await;
        assert_eq!(telegram(&server.uri()).login().await, Login::Wrong(why.into()));
    }
    let broken = BrokenServers::start().await;
    for (line, address) in broken.each() {
        let Login::Wrong(why) = telegram(&address).login().await else { panic!("{line} is not wrong") };
        assert!(why.starts_with("Telegram ") && !why.contains("canary"), "{line}: {why}");
    }
}
