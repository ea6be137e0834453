//! The address of the page that shows what came of an answer: good for looking, for nothing else, and not for ever.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::ports::vault::Vault;
use crate::store::ApprovalLink;

/// Purpose of the tag of a ticket.
const PURPOSE: &str = "approval-outcome";

/// Permission to look at the outcome of a question, with its reader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ticket {
    /// The questions that are shown.
    pub batch_id: Uuid,
    /// The reader.
    pub recipient: String,
    /// From then on it shows nothing.
    pub expires_at: DateTime<Utc>,
}

impl Ticket {
    /// For whoever has answered by this link; it ends when the link does.
    pub fn of(link: &ApprovalLink) -> Ticket {
        Ticket { batch_id: link.batch_id, recipient: link.recipient.clone(), expires_at: link.expires_at }
    }

    /// Where the page is.
    pub fn address(&self, vault: &Vault) -> String {
        let text = self.text();
        format!("/approvals/outcome/{text}.{}", vault.tag(PURPOSE, &text))
    }

    /// Reads the last part of an address that [`Ticket::address`] made.
    pub fn read(vault: &Vault, written: &str) -> Option<Ticket> {
        let (text, tag) = written.rsplit_once('.')?;
        if !vault.is_tag(PURPOSE, text, tag) {
            return None;
        }
        let mut parts = text.split('.');
        let (batch, until, recipient) = (parts.next()?, parts.next()?, parts.next()?);
        let ticket = Ticket {
            batch_id: Uuid::try_parse(batch).ok()?,
            recipient: String::from_utf8(hex::decode(recipient).ok()?).ok()?,
            expires_at: DateTime::from_timestamp_millis(until.parse().ok()?)?,
        };
        parts.next().is_none().then_some(ticket)
    }

    fn text(&self) -> String {
        let Ticket { batch_id, recipient, expires_at } = self;
        format!("{}.{}.{}", batch_id.simple(), expires_at.timestamp_millis(), hex::encode(recipient))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::vault::fixture::{OLD, vault};

    #[test]
    fn ticket_is_read_back_and_none_can_be_made_up() {
        let vault = vault(&[OLD]);
        let ticket = Ticket {
            batch_id: Uuid::from_u128(7),
            recipient: "änn.b".into(),
            expires_at: "2026-11-21T00:00:00Z".parse().unwrap(),
        };
        let address = ticket.address(&vault);
        let written = address.strip_prefix("/approvals/outcome/").unwrap();
        assert_eq!(Ticket::read(&vault, written), Some(ticket));
        let other = written.replacen("0007.", "0008.", 1);
        assert_ne!(other, written);
        for made_up in [other.as_str(), "", ".", "a.b.c.d", written.strip_suffix(|_: char| true).unwrap()] {
            assert_eq!(Ticket::read(&vault, made_up), None, "{made_up}");
        }
    }
}
