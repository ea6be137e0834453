//! The address of the page that shows the whole of one message, for one that was cut: whoever has it may read that one.
//!
//! It is made when a message is sent, and stored nowhere: what it is about and until when stands in it, and the tag,
//! which the vault makes, says that it is ours. It is short, because text messages carry it.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::base::secret::Secret;
use crate::domain::notification::Delivery;
use crate::ports::vault::{SHORT_TAG, Vault};

/// Purpose of the tag of an address.
const PURPOSE: &str = "whole-message";
/// For how long after a message was to be sent its page can be opened.
const SHOWS_FOR: TimeDelta = TimeDelta::days(30);
/// Bytes of the delivery's id, and of the minute (counted from 1970) at which the address ends.
const ID: usize = 16;
const UNTIL: usize = 4;

/// Where the whole of what this delivery tells can be read; the same at each attempt.
pub fn full_text_url(vault: &Vault, public_url: &str, delivery: &Delivery) -> Secret {
    let until = (delivery.due_since() + SHOWS_FOR).timestamp() / 60;
    let until = u32::try_from(until).unwrap_or_default();
    let tag = vault.short_tag(PURPOSE, &subject(delivery.id, until));
    let token = [delivery.id.as_bytes().as_slice(), &until.to_be_bytes(), &tag].concat();
    Secret::new(format!("{}/messages/{}", public_url.trim_end_matches('/'), URL_SAFE_NO_PAD.encode(token)))
}

/// The delivery that a token is for; `None` where it is none of ours, or its time is over.
pub fn read(vault: &Vault, token: &str, now: DateTime<Utc>) -> Option<Uuid> {
    let token: [u8; ID + UNTIL + SHORT_TAG] = URL_SAFE_NO_PAD.decode(token).ok()?.try_into().ok()?;
    let (id, rest) = token.split_first_chunk::<ID>()?;
    let (until, tag) = rest.split_first_chunk::<UNTIL>()?;
    let (id, until) = (Uuid::from_bytes(*id), u32::from_be_bytes(*until));
    let is_ours = vault.is_short_tag(PURPOSE, &subject(id, until), tag);
    (is_ours && now.timestamp() / 60 < i64::from(until)).then_some(id)
}

fn subject(delivery: Uuid, until: u32) -> String {
    format!("{}/{until}", delivery.simple())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::notification::MessageKind;
    use crate::ports::vault::WithoutKeys;

    #[test]
    fn address_is_good_for_its_delivery_and_thirty_days_and_none_can_be_made_up() {
        let vault = |letter: &str| {
            let key = format!("k:{letter}AECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
            let settings = serde_json::from_value(serde_json::json!({ "master_keys": [key] })).unwrap();
            Vault::open(&settings, WithoutKeys::Refuse).unwrap().0
        };
        let at = |text: &str| text.parse::<DateTime<Utc>>().unwrap();
        let (ours, made) = (vault("A"), at("2027-03-01T08:00:30Z"));
        let delivery = Delivery { created_at: made, ..Delivery::sample(MessageKind::Message) };
        let secret = full_text_url(&ours, "https://wake.example.org/", &delivery);
        let token = secret.expose().strip_prefix("https://wake.example.org/messages/").unwrap();
        assert_eq!(token.len(), 48, "it has to be short: {token}");
        assert_eq!(read(&ours, token, made), Some(delivery.id));
        assert_eq!(read(&ours, token, at("2027-03-31T07:59:59Z")), Some(delivery.id));
        assert_eq!(read(&ours, token, at("2027-03-31T08:00:00Z")), None, "its time is over");
        assert_eq!(read(&vault("B"), token, made), None);
        for at in 0..token.len() {
            let mut forged = token.to_owned();
            let other = if token[at..].starts_with('A') { "B" } else { "A" };
            forged.replace_range(at..=at, other);
            assert_eq!(read(&ours, &forged, made), None, "{forged}");
        }
        for made_up in ["", "a", &token[1..], &format!("{token}A"), "not base64 at all!"] {
            assert_eq!(read(&ours, made_up, made), None, "{made_up}");
        }
    }
}
