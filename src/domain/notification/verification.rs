//! Proof that an address is the tenant's own: a code that is sent to it and given back.
//!
//! The code is made from a key outside the database, the address and an id, at the moment it is sent, and stored
//! nowhere: a tag over it is stored. It is bound to the address, so one that was asked for another address
//! proves nothing.

use std::time::Duration;

use uuid::Uuid;

use crate::base::secret::Secret;
use crate::domain::notification::{Addresses, SubjectRef, dedupe};

/// Purpose of the vault's tag over a [`Proof`], from which the code comes.
pub const PURPOSE: &str = "verification code";
/// Purpose of the vault's tag over a code, which is stored.
pub const STORED: &str = "verification";
/// How long a code is good.
pub const LIFETIME: Duration = Duration::from_secs(600);
/// How long after one code the next may be asked for.
pub const BETWEEN: Duration = Duration::from_secs(60);
/// Wrong codes, after which it is good for nothing.
pub const TRIES: i64 = 5;
/// Codes for the addresses of a channel within a day: a chance of one in 20,000 to guess one, and nobody is flooded.
pub const PER_DAY: i64 = 10;
/// Digits of a code.
const DIGITS: usize = 6;

/// One code for one address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof {
    recipient: String,
    channel: String,
    id: Uuid,
    /// The address as it stands.
    address: String,
}

impl Proof {
    /// For an address of this kind; `None` where there is none, or none that has to be proved.
    pub fn new(recipient: &str, channel: &str, id: Uuid, addresses: &Addresses) -> Option<Proof> {
        let address = addresses.identity(channel).filter(|_| channel != "live")?;
        Some(Proof { recipient: recipient.to_owned(), channel: channel.to_owned(), id, address })
    }

    /// The proof that a delivery carries which is about `subject_ref`.
    pub fn of(recipient: &str, subject_ref: Option<&SubjectRef>, addresses: &Addresses) -> Option<Proof> {
        let Some(SubjectRef::Code { channel, id }) = subject_ref else { return None };
        Proof::new(recipient, channel, *id, addresses)
    }

    /// The subject of its delivery.
    pub fn subject_ref(&self) -> SubjectRef {
        SubjectRef::Code { channel: self.channel.clone(), id: self.id }
    }

    /// The key of its delivery.
    pub fn dedupe_key(&self) -> String {
        dedupe::code(&self.channel, self.id)
    }

    /// The subject of the tag for [`PURPOSE`].
    pub fn subject(&self) -> String {
        [&self.recipient, &self.channel, &self.id.to_string(), &self.address]
            .map(|part| part.replace('|', "||"))
            .join(" | ")
    }

    /// The code from the hexadecimal tag over [`Proof::subject`].
    pub fn code(&self, tag: &str) -> Secret {
        let number = u64::from_str_radix(tag.get(..15).unwrap_or("0"), 16).unwrap_or_default();
        Secret::new(format!("{:0width$}", number % 10_u64.pow(DIGITS as u32), width = DIGITS))
    }
}

/// The subject of an address's tag for [`STORED`].
pub fn address_subject(recipient: &str, channel: &str, addresses: &Addresses) -> Option<String> {
    Proof::new(recipient, channel, Uuid::nil(), addresses).map(|proof| format!("address | {}", proof.subject()))
}

/// The subject of a code's tag for [`STORED`].
pub fn code_subject(recipient: &str, channel: &str, code: &str) -> String {
    format!("code | {recipient} | {channel} | {code}")
}

/// The digits of a code as somebody typed it; `None` where it can't be one.
pub fn parse_code(code: &str) -> Option<String> {
    let digits: String = code.chars().filter(|c| !c.is_whitespace() && *c != '-').collect();
    (digits.len() == DIGITS && digits.chars().all(|c| c.is_ascii_digit())).then_some(digits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(email: &str) -> Addresses {
        Addresses { email: Some(email.into()), live: true, ..Addresses::default() }
    }

    #[test]
    fn proof_is_bound_to_recipient_channel_id_and_address() {
        let id = Uuid::from_u128(7);
        let proof = Proof::new("ann", "email", id, &addresses("a@b.org")).unwrap();
        assert_eq!(Proof::of("ann", Some(&proof.subject_ref()), &addresses("a@b.org")), Some(proof.clone()));
        let others = [
            Proof::new("bob", "email", id, &addresses("a@b.org")),
            Proof::new("ann", "email", Uuid::from_u128(8), &addresses("a@b.org")),
            Proof::new("ann", "email", id, &addresses("b@b.org")),
        ];
        for other in others {
            assert_ne!(other.unwrap().subject(), proof.subject());
        }
        assert_eq!(Proof::new("ann", "sms", id, &addresses("a@b.org")), None);
        assert_eq!(Proof::new("ann", "live", id, &addresses("a@b.org")), None, "whoever has a session has a token");
        let questions = SubjectRef::Questions { batch_id: id };
        for subject_ref in [None, Some(&questions)] {
            assert_eq!(Proof::of("ann", subject_ref, &addresses("a@b.org")), None);
        }
    }

    #[test]
    fn code_has_six_digits_and_is_read_as_people_type_it() {
        let proof = Proof::new("ann", "email", Uuid::nil(), &addresses("a@b.org")).unwrap();
        for (tag, code) in
            [("ffffffffffffffffffff", "846975"), ("000000000000001", "000001"), ("0000000000f423f00", "999999")]
        {
            assert_eq!(proof.code(tag).expose(), code);
        }
        assert_eq!(parse_code(" 123 456 ").as_deref(), Some("123456"));
        assert_eq!(parse_code("123-456").as_deref(), Some("123456"));
        assert_eq!(
            [parse_code("12345"), parse_code("1234567"), parse_code("12345x"), parse_code("")],
            [const { None }; 4]
        );
    }
}
