//! Links to questions: a token of 256 bits for one recipient and one message, known to the database by its hash only.
//!
//! A token is made when its message is sent. The same delivery makes the same one at each attempt, so an attempt that
//! is repeated gives out no second link; without the master key nobody can make one.

use chrono::TimeDelta;
use uuid::Uuid;

/// For how long after its questions have expired a link still shows what came of them.
pub const SHOWS_FOR: TimeDelta = TimeDelta::days(30);
/// The purpose of link tokens among the tags of the vault.
pub const PURPOSE: &str = "approval";

/// The subject of the tag that is the token of a message.
pub fn subject(batch: Uuid, recipient: &str, delivery: Uuid) -> String {
    format!("{batch}|{recipient}|{delivery}")
}

/// Where the page of a token is.
pub fn address(public_url: &str, token: &str) -> String {
    format!("{}/approvals/{token}", public_url.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_leads_to_the_page_of_its_token() {
        assert_eq!(address("https://wake.example.org/", "ab"), "https://wake.example.org/approvals/ab");
        assert_eq!(address("https://example.org/wake", "ab"), "https://example.org/wake/approvals/ab");
    }

    #[test]
    fn every_recipient_and_message_has_a_token_of_its_own() {
        let id = Uuid::from_u128;
        let one = subject(id(1), "ann", id(2));
        let others = [subject(id(3), "ann", id(2)), subject(id(1), "bob", id(2)), subject(id(1), "ann", id(4))];
        assert!(others.iter().all(|other| *other != one));
    }
}
