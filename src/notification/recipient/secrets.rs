//! The secrets among a recipient's addresses: which there are, and how each is called where it is sealed.
//!
//! They are write-only: sealed before they are stored, shown by no view, kept where a PUT repeats what GET showed.

use crate::invalid::Faults;
use crate::secret::Secret;

/// Which secret of a recipient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretPlace {
    /// What messages to its webhook are signed with.
    Webhook,
    /// The authentication secret of the browser at this place among its `push` addresses, counted from 0.
    Push(usize),
    /// The address of its incoming webhook of Slack.
    Slack,
}

impl SecretPlace {
    /// The account that it is sealed for: `webhook`, `push/0`, `slack`.
    pub fn account(self) -> String {
        match self {
            SecretPlace::Webhook => "webhook".into(),
            SecretPlace::Push(n) => format!("push/{n}"),
            SecretPlace::Slack => "slack".into(),
        }
    }

    /// The field that it is sealed for.
    pub fn field(self) -> &'static str {
        match self {
            SecretPlace::Webhook => "secret",
            SecretPlace::Push(_) => "auth",
            SecretPlace::Slack => "webhook_url",
        }
    }
}

/// Seals the secrets of one recipient.
pub trait Seal {
    type Error: From<Faults>;

    /// For its place only.
    fn seal(&self, place: SecretPlace, secret: &Secret) -> Result<String, Self::Error>;

    /// What was sealed for one place, sealed for another: an address has moved within its list.
    fn moved(&self, from: SecretPlace, to: SecretPlace, sealed: &str) -> Result<String, Self::Error>;
}
