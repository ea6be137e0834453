//! Sessions and the channel `live`: a message that is delivered on one instance is told on any, to every session, and
//! taken once.

mod socket;

use std::time::{Duration, Instant};

use axum::body::{Body, BodyDataStream};
use axum::http::Request;
use chrono::{DateTime, TimeDelta, Utc};
use chrono_tz::Tz;
use futures::{FutureExt, StreamExt};
use reveille::base::id::Tenant;
use reveille::domain::notification::rendered_message::RenderedMessage;
use reveille::domain::notification::text::Link;
use reveille::domain::notification::{Addresses, Recipient};
use reveille::domain::task::Urgency;
use reveille::ports::channel::live::{LiveChannel, Settings};
use reveille::ports::channel::{Channel, ChannelError, OutgoingMessage, Receipt, ReceiptLevel};
use serde_json::{Value, json};
use tokio::time::timeout;
use tower::ServiceExt;
use uuid::Uuid;

use super::service::{ADMIN, Api, on_both};
use crate::support::sse::{EVENT_STREAM, HeldStream};

const URL: &str = "https://wake.example.org/approve/canary-link";

/// A client with a session over server-sent events.
struct Client {
    body: BodyDataStream,
    stream: HeldStream,
}

impl Client {
    /// Opens a session, and waits until it is open.
    async fn open(api: &Api, token: &str, last_event_id: Option<Uuid>) -> Client {
        Client::open_at(api, "/v1/live", token, last_event_id).await
    }

    async fn open_at(api: &Api, path: &str, token: &str, last_event_id: Option<Uuid>) -> Client {
        let mut request = Request::get(path).header("authorization", format!("Bearer {token}"));
        if let Some(id) = last_event_id {
            request = request.header("last-event-id", id.to_string());
        }
        let response = api.app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(
            (response.status().as_u16(), &response.headers()["content-type"]),
            (200, &EVENT_STREAM.parse().unwrap())
        );
        let mut client = Client { body: response.into_body().into_data_stream(), stream: HeldStream::of("GET", path) };
        let (name, _, data) = client.next().await.expect("an event");
        assert_eq!((name.as_str(), data), ("session", json!({ "event": "session", "tenant_id": "ann" })));
        client
    }

    /// The next event: name, id, data. Comments are passed over; `None` at the end.
    async fn next(&mut self) -> Option<(String, String, Value)> {
        loop {
            if let Some(event) = self.stream.next() {
                let data = event.json();
                return Some((event.name, event.id, data));
            }
            let part = timeout(Duration::from_secs(20), self.body.next()).await.expect("something is told");
            self.stream.push(&part?.unwrap());
        }
    }

    /// The id of the next message.
    async fn id(&mut self) -> Uuid {
        let (name, id, data) = self.next().await.expect("a message");
        assert_eq!((name.as_str(), &data["id"]), ("message", &json!(id)));
        id.parse().unwrap()
    }

    /// Nothing more comes, as far as can be seen now.
    fn assert_silent(&mut self) {
        assert!(self.body.next().now_or_never().is_none(), "something was told");
    }
}

fn id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

fn recipient(live: bool) -> Recipient {
    let addresses = Addresses { live, ..Addresses::default() };
    Recipient {
        timezone: Tz::UTC,
        locale: "en".into(),
        addresses,
        fallback: vec![],
        quiet: Default::default(),
        verified: Default::default(),
    }
}

/// One attempt through the channel of this instance.
async fn deliver(api: &Api, id: Uuid) -> Result<Receipt, ChannelError> {
    deliver_to(api, id, &recipient(true)).await
}

async fn deliver_to(api: &Api, id: Uuid, recipient: &Recipient) -> Result<Receipt, ChannelError> {
    // an instance without a session must not make a test slow, and one with a session must not make it fail
    let live = LiveChannel::new(&Settings { wait_seconds: 10 }, api.store.clone(), api.vault.clone());
    offer(&live, (id, "approval.requested"), recipient, api.clock.now()).await
}

/// A question, through this channel.
async fn offer(
    live: &LiveChannel,
    (id, event): (Uuid, &'static str),
    recipient: &Recipient,
    now: DateTime<Utc>,
) -> Result<Receipt, ChannelError> {
    let words = RenderedMessage {
        subject: "May I send it?".into(),
        text: "To team@example.org – now".into(),
        html: None,
        link: Some(Link { label: "Decide".into(), url: URL.into() }),
        thread: None,
        event,
        asks: true,
        data: json!({ "batch_id": "b1" }),
    };
    let (recipient_id, words, urgency) = ("ann", &words, Urgency::High);
    let message = OutgoingMessage { id, recipient_id, created_at: now, now, recipient, words, urgency };
    live.deliver(&message).await
}

fn told(id: Uuid) -> Value {
    json!({
        "id": id, "event": "approval.requested", "created_at": "2026-11-21T00:00:00.000Z", "urgency": "high",
        "subject": "May I send it?", "text": "To team@example.org – now",
        "link": { "label": "Decide", "url": URL }, "data": { "batch_id": "b1" },
    })
}

fn delivered() -> Result<Receipt, ChannelError> {
    Ok(Receipt { provider_id: None, confirmed: ReceiptLevel::Delivered })
}

on_both!(
    message_is_told_to_every_session_of_its_tenant_and_is_delivered
    session_goes_on_where_an_earlier_one_was_left
    attempt_that_was_broken_off_is_gone_on_with
);

async fn message_is_told_to_every_session_of_its_tenant_and_is_delivered(api: Api) {
    let token = api.token("ann", &["deliveries:read", "approvals:decide"]).await;
    let mut first = Client::open(&api, &token, None).await;
    let mut second = Client::open_at(&api, "/v1/live?tenant_id=ann", ADMIN, None).await;
    let bobs = api.token("bob", &["deliveries:read", "approvals:decide"]).await;
    let request = Request::get("/v1/live").header("authorization", format!("Bearer {bobs}"));
    let others = api.app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
    let mut others = others.into_body().into_data_stream();
    let opened = others.next().await.unwrap().unwrap();
    assert_eq!(opened, "event: session\ndata: {\"event\":\"session\",\"tenant_id\":\"bob\"}\n\n");

    let (answer, seen) = tokio::join!(deliver(&api, id(7)), first.next());
    assert_eq!(answer, delivered());
    assert_eq!(seen, Some(("message".into(), id(7).to_string(), told(id(7)))));
    assert_eq!(second.id().await, id(7));
    // what comes after it is told after it, and nothing twice
    let (answer, seen) = tokio::join!(deliver(&api, id(3)), second.id());
    assert_eq!((answer, seen, first.id().await), (delivered(), id(3), id(3)));
    for stream in [&mut first.body, &mut second.body, &mut others] {
        assert!(stream.next().now_or_never().is_none(), "something more was told");
    }
}

async fn session_goes_on_where_an_earlier_one_was_left(api: Api) {
    let token = api.token("ann", &["deliveries:read", "approvals:decide"]).await;
    let mut client = Client::open(&api, &token, None).await;
    // ids are those of deliveries, which may be older than what was told before
    for n in [50, 20, 90] {
        let (answer, seen) = tokio::join!(deliver(&api, id(n)), client.id());
        assert_eq!((answer, seen), (delivered(), id(n)));
        api.clock.advance(TimeDelta::seconds(7));
    }
    drop(client);
    let mut again = Client::open(&api, &token, Some(id(50))).await;
    assert_eq!((again.id().await, again.id().await), (id(20), id(90)));
    let mut late = Client::open(&api, &token, Some(id(90))).await;
    let mut unknown = Client::open(&api, &token, Some(id(1))).await;
    let mut new = Client::open(&api, &token, None).await;
    let (answer, seen) = tokio::join!(deliver(&api, id(60)), again.id());
    assert_eq!((answer, seen), (delivered(), id(60)));
    for client in [&mut late, &mut unknown, &mut new] {
        assert_eq!(client.id().await, id(60), "nothing older is told");
    }
    // a look that has begun holds a connection to the database until it is followed, so this comes last
    for mut client in [again, late, unknown, new] {
        client.assert_silent();
    }
}

async fn attempt_that_was_broken_off_is_gone_on_with(api: Api) {
    let token = api.token("ann", &["deliveries:read", "approvals:decide"]).await;
    // the process died while it waited; the row is there, and older than any look would go back for what was taken
    assert!(deliver(&api, id(7)).now_or_never().is_none());
    let ann = Tenant::new("ann").unwrap();
    while api.store.live_message(&ann, id(7)).await.unwrap().is_none() {
        let _ = timeout(Duration::from_millis(200), deliver(&api, id(7))).await;
    }
    api.clock.advance(TimeDelta::minutes(2));
    let mut client = Client::open(&api, &token, None).await;
    assert_eq!(client.id().await, id(7));
    assert_eq!(deliver(&api, id(7)).await, delivered());
    client.assert_silent();
    let sealed = api.store.take_live_message(&ann, id(7)).await.unwrap().expect("the message");
    assert!(sealed.starts_with("v1:") && !sealed.contains("canary"), "{sealed}");
    assert_eq!(
        reveille::ports::channel::live::open(&api.vault, &ann, id(7), &sealed).unwrap().expose(),
        message_text()
    );
}

/// With the instant at which the delivery was made, which an attempt does not change.
fn message_text() -> String {
    told(id(7)).to_string()
}

#[tokio::test]
async fn delivery_on_one_instance_is_told_on_another() {
    let here = Api::on_postgres().await;
    let there = here.beside().await;
    let token = here.token("ann", &["deliveries:read", "approvals:decide"]).await;
    let mut client = Client::open(&there, &token, None).await;
    let (answer, seen) = tokio::join!(deliver(&here, id(7)), client.next());
    assert_eq!((answer, seen), (delivered(), Some(("message".into(), id(7).to_string(), told(id(7))))));
}

#[tokio::test]
async fn live_message_without_a_session_is_withdrawn_for_the_next_channel() {
    let api = Api::new().await;
    let began = Instant::now();
    let words = RenderedMessage {
        subject: "s".into(),
        text: "t".into(),
        html: None,
        link: None,
        thread: None,
        event: "message",
        asks: false,
        data: json!({}),
    };
    let (now, recipient) = (api.clock.now(), recipient(true));
    let message = OutgoingMessage {
        id: id(7),
        recipient_id: "ann",
        created_at: now,
        now,
        recipient: &recipient,
        words: &words,
        urgency: Urgency::Normal,
    };
    let live = LiveChannel::new(&Settings { wait_seconds: 1 }, api.store.clone(), api.vault.clone());
    let why = "no session is open".to_owned();
    assert_eq!(live.deliver(&message).await, Err(ChannelError::Rejected { why }));
    assert!((1..10).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    assert_eq!(api.store.live_message(&Tenant::new("ann").unwrap(), id(7)).await.unwrap(), None);
    assert!(live.capabilities().deduplicates && live.renders_markdown());
    let why = "the recipient has no live address".to_owned();
    assert_eq!(deliver_to(&api, id(8), &self::recipient(false)).await, Err(ChannelError::Unsendable { why }));
}

#[tokio::test]
async fn question_is_neither_shown_to_nor_taken_by_a_session_that_may_not_decide() {
    let api = Api::new().await;
    let reader = api.token("ann", &["deliveries:read"]).await;
    let mut watches = Client::open(&api, &reader, None).await;
    let live = LiveChannel::new(&Settings { wait_seconds: 1 }, api.store.clone(), api.vault.clone());
    for (number, event) in [(9, "approval.requested"), (10, "input.requested"), (11, "input.reminder")] {
        let asked = offer(&live, (id(number), event), &recipient(true), api.clock.now()).await;
        let why = "no session is open".to_owned();
        assert_eq!(asked, Err(ChannelError::Rejected { why }), "{event}");
    }
    watches.assert_silent();
}

#[tokio::test]
async fn link_that_only_reads_is_shown_to_a_session_that_may_not_decide() {
    let api = Api::new().await;
    let reader = api.token("ann", &["deliveries:read"]).await;
    let mut watches = Client::open(&api, &reader, None).await;
    let words = RenderedMessage {
        subject: "Mail".into(),
        text: "two mails…".into(),
        html: None,
        link: Some(Link { label: "Open".into(), url: URL.into() }),
        thread: None,
        event: "run.finished",
        asks: false,
        data: json!({}),
    };
    let (now, recipient) = (api.clock.now(), recipient(true));
    let (recipient, words, urgency) = (&recipient, &words, Urgency::Normal);
    let message = OutgoingMessage { id: id(9), recipient_id: "ann", created_at: now, now, recipient, words, urgency };
    let live = LiveChannel::new(&Settings { wait_seconds: 10 }, api.store.clone(), api.vault.clone());
    let (answer, seen) = tokio::join!(live.deliver(&message), watches.next());
    assert_eq!(answer, delivered());
    assert_eq!(seen.expect("the message").2["link"], json!({ "label": "Open", "url": URL }));
}

#[tokio::test]
async fn session_ends_with_its_token_and_with_the_service() {
    let api = Api::new().await;
    let (token_id, token) = api.token_until("ann", &["deliveries:read", "approvals:decide"], None).await;
    let mut revoked = Client::open(&api, &token, None).await;
    let mut stopped = Client::open_at(&api, "/v1/live?tenant_id=ann", ADMIN, None).await;
    api.admin("DELETE", &format!("/v1/tokens/{token_id}"), None).await.expect(204);
    let began = Instant::now();
    assert_eq!(revoked.next().await, None);
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    stopped.assert_silent();
    api.stop.cancel();
    assert_eq!(stopped.next().await, None);
}

#[tokio::test]
async fn tenant_has_so_many_sessions_and_an_admin_names_one() {
    let api = Api::new().await;
    api.streams_per_tenant(1).await;
    let token = api.token("ann", &["deliveries:read", "approvals:decide"]).await;
    let client = Client::open(&api, &token, None).await;
    let full = api.ask("GET", "/v1/live", Some(&token), None).await;
    assert_eq!(full.header("retry-after"), "5");
    let quota =
        "the quota `streams` is 1, and 1 are used: close streams that nobody reads, or ask the operator for more";
    assert_eq!(full.expect(429)["detail"], quota);
    drop(client);
    drop(Client::open(&api, &token, None).await);
    let nobody = api.admin("GET", "/v1/live", None).await.expect(400);
    assert_eq!(nobody["errors"][0]["message"], "is missing: an admin token names the tenant");
    let headers = [("last-event-id", "7")];
    let wrong = api.ask_with("GET", "/v1/live", Some(&token), None, &headers).await.expect(400);
    assert_eq!(wrong["detail"], "Last-Event-ID must be an id of this stream");
}
