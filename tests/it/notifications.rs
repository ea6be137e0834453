//! Telling people through real protocols: what each channel sends, and what it makes of every answer.

mod channel_markup;
mod email;
mod push;
mod receipts;
mod slack;
mod sms;
mod subjects;
mod telegram;
mod webhook;
mod whole;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use reveille::domain::notification::rendered_message::RenderedMessage;
use reveille::domain::notification::{Addresses, Recipient};
use reveille::domain::task::Urgency;
use reveille::ports::channel::{Channel, ChannelError, OutgoingMessage, Receipt, ReceiptLevel};
use uuid::Uuid;
use wiremock::matchers::method;
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

/// How long an answer may take: what hangs is waited for, and the machine may hold up what does not.
const ANSWER_SECONDS: u64 = 5;
const DELIVERY: Uuid = Uuid::from_u128(0x0193_f7a2_0000_7000_8000_0000_0000_0042);

fn created_at() -> DateTime<Utc> {
    "2026-12-24T07:00:09.250Z".parse().unwrap()
}

fn words() -> RenderedMessage {
    RenderedMessage {
        subject: "Morgenpost – 2 Mails".into(),
        text: "Grüße!\n.\n..dots stay\nEnd.".into(),
        html: None,
        link: None,
        thread: None,
        event: "run.finished",
        asks: false,
        data: serde_json::json!({ "id": "r1", "output": "Grüße!" }),
    }
}

pub fn recipient(addresses: Addresses) -> Recipient {
    Recipient { timezone: Tz::UTC, locale: "en".into(), addresses, ..Recipient::default() }
}

/// One attempt at `now`.
async fn deliver_at(channel: &dyn Channel, recipient: &Recipient, now: DateTime<Utc>) -> Result<Receipt, ChannelError> {
    deliver_words(channel, recipient, &words(), now).await
}

/// One attempt at `now` to say this.
async fn deliver_words(
    channel: &dyn Channel,
    recipient: &Recipient,
    words: &RenderedMessage,
    now: DateTime<Utc>,
) -> Result<Receipt, ChannelError> {
    let message = OutgoingMessage {
        id: DELIVERY,
        recipient_id: "ann",
        created_at: created_at(),
        now,
        recipient,
        words,
        urgency: Urgency::Normal,
    };
    channel.deliver(&message).await
}

pub async fn deliver(channel: &dyn Channel, recipient: &Recipient) -> Result<Receipt, ChannelError> {
    deliver_at(channel, recipient, created_at()).await
}

/// The outcome of an attempt, in a word, and the words for it.
fn outcome(answer: Result<Receipt, ChannelError>) -> (&'static str, String) {
    match answer {
        Ok(Receipt { confirmed: ReceiptLevel::Delivered, provider_id }) => {
            ("delivered", provider_id.unwrap_or_default())
        }
        Ok(Receipt { confirmed: ReceiptLevel::Sent, provider_id }) => ("sent", provider_id.unwrap_or_default()),
        Err(ChannelError::Transient { why, .. }) => ("transient", why),
        Err(ChannelError::Busy { why }) => ("busy", why),
        Err(ChannelError::Rejected { why }) => ("rejected", why),
        Err(ChannelError::Unsendable { why }) => ("unsendable", why),
        Err(ChannelError::Misconfigured { why }) => ("misconfigured", why),
        Err(ChannelError::Unknown { why }) => ("unknown", why),
    }
}

/// A server that answers every POST so.
async fn answering(answer: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(answer).mount(&server).await;
    server
}

/// The one request that a server got.
async fn only_request(server: &MockServer) -> Request {
    let [request] = server.received_requests().await.unwrap().try_into().expect("one request");
    request
}

fn header<'a>(request: &'a Request, name: &str) -> &'a str {
    request.headers[name].to_str().unwrap()
}
