//! Email over SMTP: one connection for each message, driven step by step, so that it is known how far each message
//! came.
//!
//! `delivered` means that the mail server took the message (its 250 after the text); what mail servers do later is not
//! ours to see. Until the text is on its way, a failure is safe to repeat. After that, without an answer, the outcome
//! is unknown and the message is not sent again. `compose` writes the mail, `server` knows the way there.

mod compose;
mod server;

use std::error::Error;
use std::path::PathBuf;
use std::time::Duration;

use futures::future::BoxFuture;
use lettre::address::Envelope;
use lettre::message::Mailbox;
use lettre::transport::smtp::client::AsyncSmtpConnection;
use lettre::transport::smtp::commands::{Data, Mail, Rcpt};
use lettre::transport::smtp::extension::{Extension, MailParameter};
use serde::{Deserialize, Serialize};

use self::compose::Composer;
use self::server::{MailServer, read_certificates};
use crate::base::invalid::ValidationErrors;
use crate::base::secret::Secret;
use crate::ports::channel::{Capabilities, Channel, ChannelError, OutgoingMessage, Receipt, ReceiptLevel};

pub use self::server::StartTls;

/// How long each half of an attempt may take, in seconds.
const TIMEOUT_RANGE: std::ops::RangeInclusive<u64> = 1..=25;
/// How long the goodbye may take; nothing depends on it.
const QUIT_TIMEOUT: Duration = Duration::from_secs(2);
/// How much of what a server says is kept, in characters.
const ANSWER_LENGTH: usize = 200;

/// `[channels.email]`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// `smtp://user:password@host:587`, `smtps://…` for TLS from the first byte; absent: no email.
    pub url: Option<Secret>,
    /// `Reveille <reveille@example.org>`.
    pub from: Option<String>,
    /// Where a recipient asks for no more mails, a `mailto:` or `https:` address; absent: a mail to `from`.
    pub unsubscribe: Option<String>,
    /// For `smtp://`; absent: `required` with a password, `never` on this machine, else `opportunistic`.
    pub starttls: Option<StartTls>,
    /// A PEM file of certificates that are trusted besides the platform's: a mail server of one's own, a private CA.
    pub ca_file: Option<PathBuf>,
    /// For each half of an attempt, until the server wants the message and until it has taken it: 1 to 25.
    pub timeout_seconds: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { url: None, from: None, unsubscribe: None, starttls: None, ca_file: None, timeout_seconds: 25 }
    }
}

/// The channel.
pub struct EmailChannel {
    server: MailServer,
    composer: Composer,
    timeout: Duration,
}

impl EmailChannel {
    /// `None` where no server is configured.
    pub fn new(settings: &Settings) -> Result<Option<EmailChannel>, ValidationErrors> {
        let Some(url) = &settings.url else { return Ok(None) };
        let mut faults = ValidationErrors::new();
        let server = MailServer::read(url, settings.starttls)
            .map_err(|why| faults.add("/channels/email/url", format!("{why}; expected smtp://user:password@host:587")));
        let from = settings.from.as_deref().unwrap_or_default().parse::<Mailbox>().map_err(|_| {
            faults.add("/channels/email/from", "is needed: an address such as `Reveille <reveille@example.org>`");
        });
        let composer = from.and_then(|from| {
            let composer = Composer::new(from, settings.unsubscribe.as_deref());
            composer.map_err(|why| faults.add("/channels/email/unsubscribe", why))
        });
        if !TIMEOUT_RANGE.contains(&settings.timeout_seconds) {
            faults.add("/channels/email/timeout_seconds", "must be 1 to 25");
        }
        let certificates = settings.ca_file.as_deref().map(read_certificates).transpose().unwrap_or_else(|why| {
            faults.add("/channels/email/ca_file", why);
            None
        });
        match (server, composer, faults.is_empty()) {
            (Ok(server), Ok(composer), true) => {
                let server = server.trusting(certificates.unwrap_or_default());
                Ok(Some(EmailChannel { server, composer, timeout: Duration::from_secs(settings.timeout_seconds) }))
            }
            _ => Err(faults),
        }
    }

    /// Greets the server, encrypts and logs in as for a mail, and leaves.
    pub async fn check(&self) -> Result<(), ChannelError> {
        let greeted = async {
            let mut connection = self.server.connect().await.map_err(|error| judge_refused(&error))?;
            self.server.authenticate(&mut connection).await?;
            let _ = tokio::time::timeout(QUIT_TIMEOUT, connection.quit()).await;
            Ok(())
        };
        let late = |_| Err(transient("the mail server took too long"));
        tokio::time::timeout(self.timeout, greeted).await.unwrap_or_else(late)
    }

    async fn send(&self, message: &OutgoingMessage<'_>) -> Result<Receipt, ChannelError> {
        let Some(address) = &message.recipient.addresses.email else {
            return Err(ChannelError::Unsendable { why: "the recipient has no email address".into() });
        };
        let mail = self.composer.compose(message, address)?;
        let (envelope, text) = (mail.envelope(), mail.formatted());
        let late = |_| Err(transient("the mail server took too long"));
        let mut connection = tokio::time::timeout(self.timeout, self.prepare(envelope)).await.unwrap_or_else(late)?;
        let answer = tokio::time::timeout(self.timeout, connection.message(&text)).await;
        let receipt = judge_accepted(answer);
        let _ = tokio::time::timeout(QUIT_TIMEOUT, connection.quit()).await;
        receipt
    }

    /// Everything up to the point where the server waits for the text. Nothing of it needs to be undone.
    async fn prepare(&self, envelope: &Envelope) -> Result<AsyncSmtpConnection, ChannelError> {
        let mut connection = self.server.connect().await.map_err(|error| judge_refused(&error))?;
        self.server.authenticate(&mut connection).await?;
        let mut parameters = vec![];
        if !envelope.to().iter().chain(envelope.from()).all(|address| address.to_string().is_ascii()) {
            if !connection.server_info().supports_feature(Extension::SmtpUtfEight) {
                return Err(ChannelError::Unsendable { why: "the mail server takes ASCII addresses only".into() });
            }
            parameters.push(MailParameter::SmtpUtfEight);
        }
        let mail = Mail::new(envelope.from().cloned(), parameters);
        connection.command(mail).await.map_err(|error| judge_refused(&error))?;
        for to in envelope.to() {
            connection.command(Rcpt::new(to.clone(), vec![])).await.map_err(|error| judge_refused(&error))?;
        }
        connection.command(Data).await.map_err(|error| judge_refused(&error))?;
        Ok(connection)
    }
}

impl Channel for EmailChannel {
    fn name(&self) -> &'static str {
        "email"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { supported_formats: &["plain", "html"], max_response_length: 100_000, deduplicates: false }
    }

    fn deliver<'a>(&'a self, message: &'a OutgoingMessage<'a>) -> BoxFuture<'a, Result<Receipt, ChannelError>> {
        Box::pin(self.send(message))
    }
}

/// Judges an answer to the text, or its absence.
fn judge_accepted(
    answer: Result<Result<lettre::transport::smtp::response::Response, lettre::transport::smtp::Error>, impl Sized>,
) -> Result<Receipt, ChannelError> {
    match answer {
        Ok(Ok(response)) => {
            let response_line = response.first_line().map(|line| line.chars().take(ANSWER_LENGTH).collect());
            Ok(Receipt { provider_id: response_line, confirmed: ReceiptLevel::Delivered })
        }
        Ok(Err(error)) if error.is_transient() || error.is_permanent() => Err(judge_refused(&error)),
        Ok(Err(error)) => Err(ChannelError::Unknown {
            why: format!("the connection broke while the mail server had the message: {}", error_text(&error)),
        }),
        Err(_) => Err(ChannelError::Unknown {
            why: "the mail server had the message and did not say whether it took it".into(),
        }),
    }
}

/// Judges a refusal before or after the text. Codes: RFC 5321, section 4.2; 530 and 538 ask for TLS or a login that is
/// not set up.
fn judge_refused(error: &lettre::transport::smtp::Error) -> ChannelError {
    let code = error.status().map(|code| code.to_string());
    let why = match code {
        Some(_) => format!("the mail server refused: {}", error_text(error)),
        None => format!("the mail server can't be used: {}", error_text(error)),
    };
    match code.as_deref() {
        Some("530" | "534" | "538") => ChannelError::Misconfigured { why },
        _ if error.is_permanent() => ChannelError::Rejected { why },
        _ if error.is_tls() || error.is_client() || is_handshake(error) => ChannelError::Misconfigured { why },
        // 4yz: this mailbox, this sender, too much at once; at 421 the server itself goes away
        Some(code) if code != "421" => ChannelError::Busy { why },
        _ => ChannelError::Transient { why, retry_after: None },
    }
}

/// Whether TLS could not be agreed upon: lettre tells it as any other failure of the connection.
fn is_handshake(error: &lettre::transport::smtp::Error) -> bool {
    let io = causes(error).find_map(|cause| cause.downcast_ref::<std::io::Error>());
    io.and_then(std::io::Error::get_ref).is_some_and(|inner| inner.is::<rustls::Error>())
}

fn causes<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&cause| cause.source())
}

fn transient(why: &str) -> ChannelError {
    ChannelError::Transient { why: why.into(), retry_after: None }
}

/// The words of the server or the network, in one line.
fn error_text(error: &lettre::transport::smtp::Error) -> String {
    let text = match error.status() {
        Some(_) => error.to_string(),
        None => causes(error).last().map(ToString::to_string).unwrap_or_default(),
    };
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(ANSWER_LENGTH).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_in_the_settings_are_named_together_and_hold_no_password() {
        assert!(EmailChannel::new(&Settings::default()).unwrap().is_none(), "no url, no email");
        let settings = Settings {
            url: Some(Secret::new("http://ann:canary@mail.example.org")),
            ca_file: Some("/nowhere/ca.pem".into()),
            unsubscribe: Some("nowhere".into()),
            timeout_seconds: 0,
            ..Settings::default()
        };
        let faults = EmailChannel::new(&settings).err().unwrap();
        assert_eq!(
            faults.to_string(),
            "/channels/email/url: has the scheme `http`; expected smtp://user:password@host:587; \
             /channels/email/from: is needed: an address such as `Reveille <reveille@example.org>`; \
             /channels/email/timeout_seconds: must be 1 to 25; \
             /channels/email/ca_file: /nowhere/ca.pem can't be read: No such file or directory (os error 2)"
        );
    }
}
