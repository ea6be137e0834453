//! The secrets among a recipient's addresses: which there are, and how each is called where it is sealed.
//!
//! They are write-only: sealed before they are stored, shown by no view, kept where a PUT repeats what GET showed.

use crate::base::invalid::ValidationErrors;
use crate::base::secret::Secret;

/// Which secret of a recipient.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretPlace<'a> {
    /// Signing secret of messages to the webhook.
    Webhook,
    /// The authentication secret of the browser with this endpoint.
    Push(&'a str),
    /// The address of its incoming webhook of Slack.
    Slack,
}

/// Seals the secrets of one recipient.
pub trait Seal {
    /// Error of the sealing, which may be a fault of the draft.
    type Error: From<ValidationErrors>;

    /// For its place only, as the channel will look for it.
    fn seal(&self, place: SecretPlace, secret: &Secret) -> Result<String, Self::Error>;
}
