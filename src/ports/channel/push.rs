//! Push: a message to each device and topic of a recipient, through ntfy and Web Push.
//!
//! All are attempted at once, and the message has arrived when one of them took it; what the others said is in the log.
//! `delivered` means that the ntfy server or the browser's push service took it, which is all that they ever say.
//! Nobody's secret is sent to anybody else's server.

mod encryption;
mod ntfy;
mod vapid;
mod web_push;

use std::borrow::Cow;
use std::path::PathBuf;
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use futures::future::{BoxFuture, join_all};
use serde::{Deserialize, Serialize};

pub use self::vapid::Vapid;
pub use self::web_push::check_keys;

use self::ntfy::NtfyClient;
use self::web_push::{PushSubscription, WebPush};
use crate::base::invalid::ValidationErrors;
use crate::base::secret::Secret;
use crate::domain::notification::PushAddress;
use crate::ports::channel::{Capabilities, Channel, ChannelError, OutgoingMessage, Receipt};
use crate::ports::egress::Egress;
use crate::ports::vault::{SealedPlace, Vault, VaultError, WithoutKeys};

/// How long an attempt may take, in seconds.
const TIMEOUT_RANGE: std::ops::RangeInclusive<u64> = 1..=50;
/// Largest answer that is read, in bytes.
const ANSWER_LIMIT: usize = 64 * 1024;
/// Mark at the end of a text that was cut.
const ELLIPSIS: &str = "…";
/// Characters of base64url that a topic of Web Push may have (RFC 8030, section 5.4).
const TOPIC_LENGTH: usize = 32;

/// `[channels.push]`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// For one attempt, 1 to 50.
    pub timeout_seconds: u64,
    /// Settings of ntfy.
    pub ntfy: ntfy::Settings,
    /// Settings of the Web Push identity.
    pub vapid: vapid::Settings,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { timeout_seconds: 15, ntfy: ntfy::Settings::default(), vapid: vapid::Settings::default() }
    }
}

impl Settings {
    /// The VAPID identity of this service, and the path of a key file that was made. Push services may write to
    /// `public_url` where no other subject is set and it is one.
    pub fn vapid(
        &self,
        without: WithoutKeys,
        public_url: &str,
    ) -> Result<(Option<Vapid>, Option<PathBuf>), ValidationErrors> {
        let mut settings = self.vapid.clone();
        let subject = public_url.starts_with("https://").then(|| public_url.to_owned());
        settings.subject = settings.subject.or(subject);
        Vapid::open(&settings, without)
    }

    /// Judges the settings and makes nothing. The public key, where there is one already.
    pub fn check(&self, without: WithoutKeys) -> Result<Option<String>, ValidationErrors> {
        let egress = Egress::new(&crate::ports::egress::Settings::default())?;
        NtfyClient::new(&self.ntfy, self.timeout()?, egress)?;
        let vapid = Vapid::read_existing(&self.vapid, without)?;
        Ok(vapid.map(|vapid| vapid.public_key().to_owned()))
    }

    fn timeout(&self) -> Result<Duration, ValidationErrors> {
        match TIMEOUT_RANGE.contains(&self.timeout_seconds) {
            true => Ok(Duration::from_secs(self.timeout_seconds)),
            false => Err(ValidationErrors::one("/channels/push/timeout_seconds", "must be 1 to 50")),
        }
    }
}

/// The channel.
pub struct PushChannel {
    ntfy: NtfyClient,
    web_push: WebPush,
    vault: Vault,
}

impl PushChannel {
    /// Without `vapid` there is no Web Push, and ntfy alone.
    pub fn new(
        settings: &Settings,
        vapid: Option<Vapid>,
        egress: Egress,
        vault: Vault,
    ) -> Result<PushChannel, ValidationErrors> {
        let timeout = settings.timeout()?;
        let ntfy = NtfyClient::new(&settings.ntfy, timeout, egress.clone())?;
        Ok(PushChannel { ntfy, web_push: WebPush::new(vapid, timeout, egress), vault })
    }

    async fn send(&self, message: &OutgoingMessage<'_>) -> Result<Receipt, ChannelError> {
        let replaced = topic_of(message);
        let addresses = &message.recipient.addresses.push;
        let attempts = addresses.iter().map(|address| self.send_to(address, &replaced, message));
        judge(join_all(attempts).await)
    }

    async fn send_to(
        &self,
        to: &PushAddress,
        replaced: &str,
        message: &OutgoingMessage<'_>,
    ) -> Result<Receipt, ChannelError> {
        match to {
            PushAddress::Ntfy { topic, server } => self.ntfy.publish(topic, server.as_deref(), replaced, message).await,
            PushAddress::WebPush { endpoint, p256dh, sealed_auth } => {
                let auth = unseal_auth(&self.vault, message.recipient_id, endpoint, sealed_auth).map_err(|error| {
                    ChannelError::Misconfigured { why: format!("the subscription's secret {error}") }
                })?;
                self.web_push.send(&PushSubscription { endpoint, p256dh, auth }, replaced, message).await
            }
        }
    }
}

impl Channel for PushChannel {
    fn name(&self) -> &'static str {
        "push"
    }

    fn capabilities(&self) -> Capabilities {
        // a thousand characters of any script fit in what ntfy and Web Push carry
        Capabilities { supported_formats: &["plain"], max_response_length: 1000, deduplicates: false }
    }

    fn deliver<'a>(&'a self, message: &'a OutgoingMessage<'a>) -> BoxFuture<'a, Result<Receipt, ChannelError>> {
        Box::pin(self.send(message))
    }
}

/// Seals the `auth` of a recipient's subscription as this channel will look for it: good for this endpoint only.
pub fn seal_auth(vault: &Vault, recipient_id: &str, endpoint: &str, auth: &Secret) -> Result<String, VaultError> {
    vault.seal(&SealedPlace::push(recipient_id, endpoint).context(), auth)
}

fn unseal_auth(vault: &Vault, recipient_id: &str, endpoint: &str, sealed: &str) -> Result<Secret, VaultError> {
    vault.unseal(&SealedPlace::push(recipient_id, endpoint).context(), sealed)
}

/// The key of messages that take each other's place: a question and its reminders, or a message and its repetition.
fn topic_of(message: &OutgoingMessage) -> String {
    let thread = message.words.thread.as_deref().filter(|_| message.words.asks);
    let named = thread.map_or_else(|| message.id.to_string(), str::to_owned);
    let mut hash = URL_SAFE_NO_PAD.encode(digest(&SHA256, named.as_bytes()));
    hash.truncate(TOPIC_LENGTH);
    hash
}

/// The text, cut to so many bytes with an ellipsis at its end, never within a character.
fn cut(text: &str, limit: usize) -> Cow<'_, str> {
    if text.len() <= limit {
        return Cow::Borrowed(text);
    }
    match limit.checked_sub(ELLIPSIS.len()) {
        Some(room) => Cow::Owned(format!("{}{ELLIPSIS}", &text[..text.floor_char_boundary(room)])),
        None => Cow::Borrowed(""),
    }
}

/// Judges the answers of all addresses together. One that took the message is enough. Else, where one may have taken
/// it, the outcome is unknown; where one may take it later, it is sent again, to all; else all have refused it.
fn judge(answers: Vec<Result<Receipt, ChannelError>>) -> Result<Receipt, ChannelError> {
    let several = answers.len() > 1;
    let (mut taken, mut whys, mut worst, mut wait) = (None, Vec::new(), None, None);
    for (index, answer) in answers.into_iter().enumerate() {
        match answer {
            Ok(receipt) => taken = taken.or(Some(receipt)),
            Err(error) => {
                whys.push(if several { format!("address {}: {error}", index + 1) } else { error.to_string() });
                if let ChannelError::Transient { retry_after, .. } = &error {
                    wait = wait.max(*retry_after);
                }
                worst = match worst {
                    Some(worst) if uncertainty(&worst) >= uncertainty(&error) => Some(worst),
                    _ => Some(error),
                };
            }
        }
    }
    let why = whys.join("; ");
    match (taken, worst) {
        (Some(receipt), None) => Ok(receipt),
        (Some(receipt), Some(_)) => {
            tracing::warn!(why, "some addresses of a recipient did not take a push message, another did");
            Ok(receipt)
        }
        (None, Some(ChannelError::Unknown { .. })) => Err(ChannelError::Unknown { why }),
        (None, Some(ChannelError::Transient { .. })) => Err(ChannelError::Transient { why, retry_after: wait }),
        (None, Some(ChannelError::Busy { .. })) => Err(ChannelError::Busy { why }),
        (None, Some(ChannelError::Misconfigured { .. })) => Err(ChannelError::Misconfigured { why }),
        (None, Some(ChannelError::Rejected { .. })) => Err(ChannelError::Rejected { why }),
        (None, Some(ChannelError::Unsendable { .. })) => Err(ChannelError::Unsendable { why }),
        (None, None) => Err(ChannelError::Unsendable { why: "the recipient has no push address".into() }),
    }
}

fn uncertainty(error: &ChannelError) -> u8 {
    match error {
        ChannelError::Unknown { .. } => 5,
        ChannelError::Transient { .. } => 4,
        ChannelError::Busy { .. } => 3,
        ChannelError::Misconfigured { .. } => 2,
        ChannelError::Rejected { .. } => 1,
        ChannelError::Unsendable { .. } => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::channel::ReceiptLevel;

    #[test]
    fn text_is_cut_between_characters_within_its_bytes() {
        assert_eq!(cut("größer", 8), "größer");
        assert_eq!(cut("größer", 7), "grö…");
        assert_eq!(cut("größer", 6), "gr…");
        assert_eq!((cut("größer", 3), cut("größer", 2), cut("", 0)), ("…".into(), "".into(), "".into()));
    }

    #[test]
    fn push_succeeds_with_one_address_and_else_takes_the_greatest_doubt() {
        let taken = || Ok(Receipt { provider_id: None, confirmed: ReceiptLevel::Delivered });
        let rejected = || Err(ChannelError::Rejected { why: "gone".into() });
        let wrong = || Err(ChannelError::Misconfigured { why: "no key".into() });
        let later = |seconds: Option<u64>| {
            Err(ChannelError::Transient { why: "busy".into(), retry_after: seconds.map(Duration::from_secs) })
        };
        let unknown = || Err(ChannelError::Unknown { why: "no answer".into() });
        assert_eq!(judge(vec![rejected(), later(None), unknown(), taken(), wrong()]), taken());
        let why = |text: &str| text.to_owned();
        assert_eq!(
            judge(vec![rejected(), unknown(), later(None)]),
            Err(ChannelError::Unknown { why: why("address 1: gone; address 2: no answer; address 3: busy") })
        );
        assert_eq!(
            judge(vec![wrong(), later(Some(9)), later(Some(70)), later(None), rejected()]),
            Err(ChannelError::Transient {
                why: why("address 1: no key; address 2: busy; address 3: busy; address 4: busy; address 5: gone"),
                retry_after: Some(Duration::from_secs(70)),
            })
        );
        let both = why("address 1: gone; address 2: no key");
        assert_eq!(judge(vec![rejected(), wrong()]), Err(ChannelError::Misconfigured { why: both }));
        assert_eq!(judge(vec![rejected()]), rejected());
        let denied = || Err(ChannelError::Unsendable { why: "private".into() });
        assert_eq!(judge(vec![denied()]), denied());
        let of_both = why("address 1: private; address 2: gone");
        assert_eq!(judge(vec![denied(), rejected()]), Err(ChannelError::Rejected { why: of_both }));
        assert_eq!(judge(vec![]), Err(ChannelError::Unsendable { why: why("the recipient has no push address") }));
    }
}
