//! ntfy: messages as its JSON publishing takes them, to the operator's server and to those of recipients.

use chrono::{DateTime, Utc};
use reveille::domain::notification::Recipient;
use reveille::domain::notification::rendered_message::RenderedMessage;
use reveille::domain::notification::text::Link;
use reveille::domain::task::Urgency;
use reveille::ports::channel::push::PushChannel;
use reveille::ports::channel::{Channel, ChannelError, OutgoingMessage, Receipt};
use serde_json::{Value, json};
use uuid::Uuid;
use wiremock::matchers::method;
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::{ann, answering, deliver, delivered, misconfigured, opened, push, rejected, settings, topic, transient};
use crate::notifications::{DELIVERY, created_at, words};
use crate::support::broken_servers::BrokenServers;

async fn say(
    channel: &PushChannel,
    to: &Recipient,
    words: &RenderedMessage,
    urgency: Urgency,
) -> Result<Receipt, ChannelError> {
    say_as(channel, DELIVERY, to, words, urgency).await
}

async fn say_as(
    channel: &PushChannel,
    id: Uuid,
    to: &Recipient,
    words: &RenderedMessage,
    urgency: Urgency,
) -> Result<Receipt, ChannelError> {
    let now: DateTime<Utc> = created_at();
    let message = OutgoingMessage { id, recipient_id: "ann", created_at: now, now, recipient: to, words, urgency };
    channel.deliver(&message).await
}

fn question() -> RenderedMessage {
    RenderedMessage {
        subject: "May I send it?".into(),
        text: "To team@example.org".into(),
        link: Some(Link { label: "Decide".into(), url: "https://wake.example.org/approve/x".into() }),
        thread: Some("0193f7a2".into()),
        event: "input.requested",
        asks: true,
        ..words()
    }
}

async fn sent(server: &MockServer) -> Vec<(Option<String>, Value)> {
    let read = |request: &wiremock::Request| {
        assert_eq!((request.url.path(), &request.headers["content-type"]), ("/", &"application/json".parse().unwrap()));
        let login = request.headers.get("authorization").map(|login| login.to_str().unwrap().to_owned());
        (login, serde_json::from_slice(&request.body).unwrap())
    };
    server.received_requests().await.unwrap().iter().map(read).collect()
}

#[tokio::test]
async fn message_is_published_as_json_with_the_operators_token() {
    let server = answering(200, r#"{"id":"sPs71M8A2T28","event":"message"}"#).await;
    let channel = push(&settings(&format!("ntfy = {{ url = \"{}\", token = \"tk_canary\" }}", server.uri())));
    let to = ann(vec![topic("phone", None)]);
    assert_eq!(deliver(&channel, &to).await, delivered(Some("sPs71M8A2T28")));
    let [(login, body)] = sent(&server).await.try_into().expect("one request");
    assert_eq!(login.as_deref(), Some("Bearer tk_canary"));
    let sequence = body["sequence_id"].as_str().unwrap().to_owned();
    assert_eq!(
        body,
        json!({
            "topic": "phone", "sequence_id": sequence, "title": "Morgenpost – 2 Mails",
            "message": "Grüße!\n.\n..dots stay\nEnd.", "priority": 3,
        })
    );
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    assert!((1..=64).contains(&sequence.len()) && sequence.chars().all(plain), "{sequence}");
}

#[tokio::test]
async fn question_has_a_button_presses_and_is_replaced_by_its_reminder() {
    let server = answering(200, r#"{"id":"m"}"#).await;
    let channel =
        push(&settings(&format!("ntfy = {{ url = \"{}\", user = \"ann\", password = \"pä:ss\" }}", server.uri())));
    let to = ann(vec![topic("phone", None)]);
    let reminder = RenderedMessage { event: "input.reminder", ..question() };
    let result = RenderedMessage { event: "run.finished", asks: false, ..question() };
    say(&channel, &to, &question(), Urgency::High).await.unwrap();
    for (n, words) in [(1, &reminder), (2, &result), (3, &result), (3, &result)] {
        say_as(&channel, Uuid::from_u128(n), &to, words, Urgency::Urgent).await.unwrap();
    }
    let sent = sent(&server).await;
    assert_eq!(sent[0].0.as_deref(), Some("Basic YW5uOnDDpDpzcw=="));
    let url = "https://wake.example.org/approve/x";
    assert_eq!(
        sent[0].1,
        json!({
            "topic": "phone", "sequence_id": sent[0].1["sequence_id"], "title": "May I send it?",
            "message": "To team@example.org", "priority": 4, "tags": ["raised_hand"], "click": url,
            "actions": [{ "action": "view", "label": "Decide", "url": url, "clear": true }],
        })
    );
    assert_eq!(sent[1].1["priority"], 5);
    let sequence = |index: usize| sent[index].1["sequence_id"].as_str().unwrap();
    assert_eq!(sequence(0), sequence(1), "a reminder stands where its question stood");
    assert_ne!(sequence(2), sequence(3), "results of one task stand beside each other");
    assert_eq!(sequence(3), sequence(4), "a repetition stands where the message stood");
}

#[tokio::test]
async fn long_text_is_cut_to_what_ntfy_shows() {
    let server = answering(200, r#"{"id":"m"}"#).await;
    let long = RenderedMessage { text: "ü".repeat(3000), ..words() };
    say(&push(&settings("")), &ann(vec![topic("t", Some(&server.uri()))]), &long, Urgency::Low).await.unwrap();
    let body = &sent(&server).await[0].1;
    let text = body["message"].as_str().unwrap();
    assert_eq!((text.len(), text.ends_with("ü…"), body["priority"].as_i64()), (4095, true, Some(2)));
}

#[tokio::test]
async fn recipients_own_server_gets_no_login_and_must_be_public() {
    let (own, operators) = (answering(200, r#"{"id":"m"}"#).await, answering(200, "").await);
    let settings = settings(&format!("ntfy = {{ url = \"{}\", token = \"tk_canary\" }}", operators.uri()));
    let to = ann(vec![topic("phone", Some(&own.uri()))]);
    assert_eq!(deliver(&push(&settings), &to).await, delivered(Some("m")));
    assert_eq!(sent(&own).await[0].0, None);
    match deliver(&opened(&settings, &[]), &to).await {
        Err(ChannelError::Unsendable { why }) => assert!(why.contains("127.0.0.1 is loopback"), "{why}"),
        other => panic!("{other:?}"),
    }
    assert_eq!((sent(&own).await.len(), sent(&operators).await.len()), (1, 0));
}

#[tokio::test]
async fn ntfy_topic_needs_a_server() {
    let why = "there is no ntfy server for topics without one: channels.push.ntfy.url is not set";
    assert_eq!(deliver(&push(&settings("")), &ann(vec![topic("phone", None)])).await, misconfigured(why));
}

#[tokio::test]
async fn server_answer_decides_and_is_passed_on() {
    let forbidden = r#"{"code":40301,"http":403,"error":"forbidden","link":"https://ntfy.sh/docs"}"#;
    let said = async |status: u16, body: &str| {
        let server = answering(status, body).await;
        let operators = push(&settings(&format!("ntfy = {{ url = \"{}\" }}", server.uri())));
        let at_operators = deliver(&operators, &ann(vec![topic("t", None)])).await;
        (at_operators, deliver(&operators, &ann(vec![topic("t", Some(&server.uri()))])).await)
    };
    let both = |answer: Result<Receipt, ChannelError>| (answer.clone(), answer);
    let why = "the ntfy server answered 403 Forbidden: forbidden";
    assert_eq!(said(403, forbidden).await, (misconfigured(why), rejected(why)));
    let why = "the ntfy server answered 400 Bad Request: topic invalid";
    assert_eq!(said(400, r#"{"error":"topic invalid"}"#).await, both(rejected(why)));
    let why = "the ntfy server answered 413 Payload Too Large";
    assert_eq!(said(413, "").await, both(rejected(why)));
    let why = "the ntfy server answered 500 Internal Server Error";
    assert_eq!(said(500, "oops").await, both(transient(why, None)));
    let why = "the ntfy server answered 200 OK, but not as ntfy does: there is something else at this address";
    assert_eq!(said(200, "<html>welcome</html>").await, (misconfigured(why), rejected(why)));
}

#[tokio::test]
async fn busy_server_is_asked_again_when_it_wants_to_be() {
    let server = MockServer::start().await;
    let answer =
        ResponseTemplate::new(429).insert_header("retry-after", "90").set_body_string(r#"{"error":"limit reached"}"#);
    Mock::given(method("POST")).respond_with(answer).mount(&server).await;
    let channel = push(&settings(&format!("ntfy = {{ url = \"{}\" }}", server.uri())));
    let busy = transient("the ntfy server answered 429 Too Many Requests: limit reached", Some(90));
    assert_eq!(deliver(&channel, &ann(vec![topic("t", None)])).await, busy);
    assert_eq!(deliver(&channel, &ann(vec![topic("t", Some(&server.uri()))])).await, busy);
}

#[tokio::test]
async fn hanging_receiver_leaves_the_outcome_unknown_and_an_absent_one_does_not() {
    let broken = BrokenServers::start().await;
    for (url, operators_unknown) in [(&broken.hangs(), true), (&broken.closes(), true), (&broken.absent(), false)] {
        let channel = push(&settings(&format!("ntfy = {{ url = \"{url}\" }}")));
        for to in [topic("t", None), topic("t", Some(url))] {
            match (deliver(&channel, &ann(vec![to])).await, operators_unknown) {
                (Err(ChannelError::Unknown { .. }), true) => {}
                (Err(ChannelError::Transient { retry_after: None, .. }), false) => {}
                (other, _) => panic!("{url}: {other:?}"),
            }
        }
    }
}
