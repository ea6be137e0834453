//! The address to which a provider reports how a message went: whoever has it may report on that one delivery.
//!
//! It is made when a message is sent, and stored nowhere: the tag in it, which the vault makes, says that it is ours.

use uuid::Uuid;

use crate::ports::vault::Vault;

/// Purpose of the tag of a ticket.
const PURPOSE: &str = "receipt";

/// A ticket for reports on a delivery through this channel.
pub fn issue(vault: &Vault, channel: &str, delivery: Uuid) -> String {
    format!("{}.{}", delivery.simple(), vault.tag(PURPOSE, &subject(channel, delivery)))
}

/// Where such reports go.
pub fn address(public_url: &str, channel: &str, ticket: &str) -> String {
    format!("{}/v1/receipts/{channel}/{ticket}", public_url.trim_end_matches('/'))
}

/// The delivery that a ticket is for.
pub fn read(vault: &Vault, channel: &str, ticket: &str) -> Option<Uuid> {
    let (id, tag) = ticket.split_once('.')?;
    let delivery = Uuid::try_parse(id).ok()?;
    vault.is_tag(PURPOSE, &subject(channel, delivery), tag).then_some(delivery)
}

fn subject(channel: &str, delivery: Uuid) -> String {
    format!("{channel}/{}", delivery.simple())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::vault::WithoutKeys;

    #[test]
    fn ticket_is_good_for_its_channel_and_delivery_alone() {
        let vault = |letter: &str| {
            let key = format!("k:{letter}AECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
            let settings = serde_json::from_value(serde_json::json!({ "master_keys": [key] })).unwrap();
            Vault::open(&settings, WithoutKeys::Refuse).unwrap().0
        };
        let (ours, id) = (vault("A"), Uuid::from_u128(7));
        let issued = issue(&ours, "sms", id);
        let ticket = issued.as_str();
        assert_eq!(read(&ours, "sms", ticket), Some(id));
        let place = format!("https://wake.example.org/v1/receipts/sms/{ticket}");
        assert_eq!(address("https://wake.example.org/", "sms", ticket), place);
        assert_eq!(read(&ours, "push", ticket), None);
        assert_eq!(read(&vault("B"), "sms", ticket), None);
        let other = ticket.replacen("07.", "08.", 1);
        for made_up in [other.as_str(), "", ".", "a.b", &ticket[..ticket.len() - 1]] {
            assert_eq!(read(&ours, "sms", made_up), None, "{made_up}");
        }
    }
}
