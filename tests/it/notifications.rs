//! Telling people through real protocols: what each channel sends, and what it makes of every answer.

mod email;
mod webhook;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use reveille::channel::{Channel, ChannelError, Message, Receipt};
use reveille::notification::wording::Words;
use reveille::notification::{Addresses, Recipient, Urgency};
use uuid::Uuid;

const DELIVERY: Uuid = Uuid::from_u128(0x0193_f7a2_0000_7000_8000_0000_0000_0042);

fn created_at() -> DateTime<Utc> {
    "2026-12-24T07:00:09.250Z".parse().unwrap()
}

fn words() -> Words {
    Words {
        subject: "Morgenpost – 2 Mails".into(),
        text: "Grüße!\n.\n..dots stay\nEnd.".into(),
        html: None,
        link: None,
        thread: None,
        event: "run.finished",
        data: serde_json::json!({ "id": "r1", "output": "Grüße!" }),
    }
}

pub fn recipient(addresses: Addresses) -> Recipient {
    Recipient { timezone: Tz::UTC, locale: "en".into(), addresses, ..Recipient::default() }
}

/// One attempt at `now`.
async fn deliver_at(channel: &dyn Channel, recipient: &Recipient, now: DateTime<Utc>) -> Result<Receipt, ChannelError> {
    let words = words();
    let message = Message {
        id: DELIVERY,
        recipient_id: "ann",
        created_at: created_at(),
        now,
        recipient,
        words: &words,
        urgency: Urgency::Normal,
    };
    channel.deliver(&message).await
}

pub async fn deliver(channel: &dyn Channel, recipient: &Recipient) -> Result<Receipt, ChannelError> {
    deliver_at(channel, recipient, created_at()).await
}
