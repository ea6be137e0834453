//! Several messages that are told together.

use chrono::{DateTime, SecondsFormat, Utc};
use chrono_tz::Tz;
use serde::Serialize;
use serde_json::{Value, json};

use crate::domain::notification::text::instant;

/// One of several messages that are told together.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DigestItem {
    /// Subject of the message.
    pub subject: String,
    /// Text of the message.
    pub text: String,
    /// When it would have been told, in the recipient's zone.
    pub at: String,
    /// The instant for programs.
    pub created_at: DateTime<Utc>,
}

impl DigestItem {
    /// An item of a message that would have been told `at` this instant.
    pub fn new(subject: &str, text: &str, at: DateTime<Utc>, timezone: Tz) -> DigestItem {
        DigestItem { subject: subject.to_owned(), text: text.to_owned(), at: instant(at, timezone), created_at: at }
    }
}

/// The messages of a digest for programs.
pub(super) fn digest_data(tenant_id: &str, items: &[DigestItem], more: usize) -> Value {
    let item = |item: &DigestItem| {
        let at = item.created_at.to_rfc3339_opts(SecondsFormat::Millis, true);
        json!({ "subject": item.subject, "text": item.text, "created_at": at })
    };
    json!({ "tenant_id": tenant_id, "items": items.iter().map(item).collect::<Vec<_>>(), "more": more })
}
