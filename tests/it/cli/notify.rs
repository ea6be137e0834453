//! `reveille notify test` through every channel, each to a server that speaks its protocol.

use serde_json::json;
use wiremock::matchers::{method, path_regex};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::Shell;
use crate::support::binary::Service;
use crate::support::sink::Sink;
use crate::support::smtp::MailServer;
use crate::support::websocket::{Frame, WebSocket};

const SUBJECT: &str = "Reveille can reach you";

/// Twilio, ntfy, Slack and Telegram, told apart by their paths.
async fn providers() -> MockServer {
    let server = MockServer::start().await;
    let answers = [
        ("^/2010-04-01/Accounts/AC7f00/Messages.json$", 201, json!({ "sid": "SM1", "status": "queued" })),
        ("^/ntfy/?$", 200, json!({ "id": "n1", "event": "message" })),
        ("^/slack/chat.postMessage$", 200, json!({ "ok": true, "channel": "C1", "ts": "1.2" })),
        ("^/bot[^/]+/sendMessage$", 200, json!({ "ok": true, "result": { "message_id": 4711 } })),
    ];
    for (place, status, body) in answers {
        let answer = ResponseTemplate::new(status).set_body_json(body);
        Mock::given(method("POST")).and(path_regex(place)).respond_with(answer).mount(&server).await;
    }
    server
}

fn config(mail: &MailServer, providers: &str) -> String {
    format!(
        "[egress]
         allow = [\"127.0.0.1:*\"]
         [channels.email]
         url = \"smtp://{}\"
         from = \"reveille@example.org\"
         [channels.sms]
         account = \"AC7f00\"
         token = \"t\"
         from = \"+15550100\"
         base_url = \"{providers}\"
         [channels.push.ntfy]
         url = \"{providers}/ntfy\"
         [channels.slack]
         token = \"xoxb-1\"
         base_url = \"{providers}/slack\"
         [channels.telegram]
         token = \"123456:made-up-for-this-test\"
         base_url = \"{providers}\"\n",
        mail.address()
    )
}

#[tokio::test]
async fn test_message_goes_through_each_channel() {
    let (mail, providers, sink) = (MailServer::start().await, providers().await, Sink::start().await);
    let mut service = Service::new().with_config(&config(&mail, &providers.uri()));
    service.start().await;
    let shell = Shell::beside(&service);
    let ann = json!({ "addresses": {
        "email": "ann@example.org", "sms": "+4915123456789", "push": [{ "topic": "ann" }],
        "webhook": { "url": sink.url(), "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" },
        "slack": { "channel": "C1" }, "telegram": "42", "live": true,
    } });
    let set = shell.fed(&["recipient", "set", "ann", "--file", "-"], &ann.to_string()).await;
    assert_eq!(set.code, 0, "{}", set.err);
    let address = service.url().trim_start_matches("http://").parse().expect("an address");
    let login = format!("authorization: Bearer {}\r\n", service.admin_token().expect("a token"));
    let mut session = WebSocket::open(address, "/v1/live/ws?tenant_id=ann", &login).await.expect("a session");
    assert!(matches!(session.next().await, Frame::Text(hello) if hello["event"] == "session"));

    let taken = json!({
        "email": "delivered", "sms": "sent", "push": "delivered", "webhook": "delivered", "slack": "delivered",
        "telegram": "delivered", "live": "delivered",
    });
    for (channel, state) in taken.as_object().expect("channels") {
        let told = shell.json(&["notify", "test", "--tenant", "ann", "--channel", channel]).await;
        assert_eq!((&told["channel"], &told["state"]), (&json!(channel), state), "{told}");
    }
    assert_eq!(mail.messages()[0].header("Subject"), SUBJECT);
    assert_eq!(sink.taken()[0].event, "test");
    assert!(matches!(session.next().await, Frame::Text(frame) if frame.to_string().contains(SUBJECT)));
    let asked = providers.received_requests().await.expect("recorded");
    let said = |part: &str| {
        let of_it: Vec<_> = asked.iter().filter(|request| request.url.path().contains(part)).collect();
        assert_eq!(of_it.len(), 1, "{part}");
        String::from_utf8_lossy(&of_it[0].body).replace('+', " ")
    };
    for part in ["Messages.json", "/ntfy", "chat.postMessage", "sendMessage"] {
        assert!(said(part).contains("This is a test message"), "{part}: {}", said(part));
    }
}
