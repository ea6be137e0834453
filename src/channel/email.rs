//! Email over SMTP: one connection for each message, driven step by step, so that what is known at each step is known.
//!
//! `delivered` means that the mail server took the message (its 250 after the text); what mail servers do later is not
//! ours to see. Until the text is on its way, a failure is safe to repeat. After that, without an answer, the outcome is
//! unknown and the message is not sent again. The Message-ID is made from the delivery's id, so a repeat asked for by
//! a person is recognisable.

use std::error::Error;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use futures::future::BoxFuture;
use lettre::address::Envelope;
use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Mailbox, SinglePart};
use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::{AsyncSmtpConnection, Certificate, TlsParameters};
use lettre::transport::smtp::commands::{Data, Mail, Rcpt};
use lettre::transport::smtp::extension::{ClientId, Extension, MailParameter};
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use crate::channel::{Capabilities, Channel, ChannelError, Confirmed, Message, Receipt};
use crate::invalid::Faults;
use crate::secret::Secret;

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
    /// For `smtp://`; absent: `required` with a password, `never` on this machine, else `opportunistic`.
    pub starttls: Option<StartTls>,
    /// A PEM file of certificates that are trusted besides the platform's: a mail server of one's own, a private CA.
    pub ca_file: Option<PathBuf>,
    /// For each half of an attempt, until the server wants the message and until it has taken it: 1 to 25.
    pub timeout_seconds: u64,
}

/// Whether a connection that begins in clear is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StartTls {
    Required,
    /// Where the server offers it.
    Opportunistic,
    Never,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { url: None, from: None, starttls: None, ca_file: None, timeout_seconds: 25 }
    }
}

/// The channel.
pub struct Email {
    server: Server,
    from: Mailbox,
    timeout: Duration,
}

struct Server {
    host: String,
    port: u16,
    security: Security,
    credentials: Option<Credentials>,
    /// Trusted besides the platform's.
    certificates: Vec<Certificate>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Security {
    /// TLS from the first byte.
    Wrapped,
    StartTls(StartTls),
}

impl Email {
    /// `None` where no server is configured.
    pub fn new(settings: &Settings) -> Result<Option<Email>, Faults> {
        let Some(url) = &settings.url else { return Ok(None) };
        let mut faults = Faults::new();
        let server = Server::read(url, settings.starttls)
            .map_err(|why| faults.add("/channels/email/url", format!("{why}; expected smtp://user:password@host:587")));
        let from = settings.from.as_deref().unwrap_or_default().parse::<Mailbox>().map_err(|_| {
            faults.add("/channels/email/from", "is needed: an address such as `Reveille <reveille@example.org>`");
        });
        if !TIMEOUT_RANGE.contains(&settings.timeout_seconds) {
            faults.add("/channels/email/timeout_seconds", "must be 1 to 25");
        }
        let certificates = settings.ca_file.as_deref().map(read_certificates).transpose().unwrap_or_else(|why| {
            faults.add("/channels/email/ca_file", why);
            None
        });
        match (server, from, faults.is_empty()) {
            (Ok(server), Ok(from), true) => {
                let server = Server { certificates: certificates.unwrap_or_default(), ..server };
                Ok(Some(Email { server, from, timeout: Duration::from_secs(settings.timeout_seconds) }))
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

    async fn send(&self, message: &Message<'_>) -> Result<Receipt, ChannelError> {
        let Some(address) = &message.recipient.addresses.email else {
            return Err(ChannelError::Rejected { why: "the recipient has no email address".into() });
        };
        let mail = self.compose(message, address)?;
        let (envelope, text) = (mail.envelope(), mail.formatted());
        let late = |_| Err(transient("the mail server took too long"));
        let mut connection = tokio::time::timeout(self.timeout, self.prepare(envelope)).await.unwrap_or_else(late)?;
        let answer = tokio::time::timeout(self.timeout, connection.message(&text)).await;
        let receipt = judge_taken(answer);
        let _ = tokio::time::timeout(QUIT_TIMEOUT, connection.quit()).await;
        receipt
    }

    fn compose(&self, message: &Message, address: &str) -> Result<lettre::Message, ChannelError> {
        let rejected = |why: String| ChannelError::Rejected { why: format!("the email can't be written: {why}") };
        let to: lettre::Address = address.parse().map_err(|error| rejected(format!("{error}")))?;
        let automatic = HeaderValue::new(HeaderName::new_from_ascii_str("Auto-Submitted"), "auto-generated".into());
        lettre::Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to))
            .subject(message.words.subject.as_str())
            .message_id(Some(format!("<{}@{}>", message.id, self.from.email.domain())))
            .date(SystemTime::from(message.created_at))
            .raw_header(automatic)
            .singlepart(SinglePart::plain(message.words.text.clone()))
            .map_err(|error| rejected(error.to_string()))
    }

    /// Everything up to the point where the server waits for the text. Nothing of it needs to be undone.
    async fn prepare(&self, envelope: &Envelope) -> Result<AsyncSmtpConnection, ChannelError> {
        let mut connection = self.server.connect().await.map_err(|error| judge_refused(&error))?;
        self.server.authenticate(&mut connection).await?;
        let mut parameters = vec![];
        if !envelope.to().iter().chain(envelope.from()).all(|address| address.to_string().is_ascii()) {
            if !connection.server_info().supports_feature(Extension::SmtpUtfEight) {
                return Err(ChannelError::Rejected { why: "the mail server takes ASCII addresses only".into() });
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

impl Channel for Email {
    fn name(&self) -> &'static str {
        "email"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { supported_formats: &["plain"], max_response_length: 100_000, deduplicates: false }
    }

    fn deliver<'a>(&'a self, message: &'a Message<'a>) -> BoxFuture<'a, Result<Receipt, ChannelError>> {
        Box::pin(self.send(message))
    }
}

impl Server {
    fn read(url: &Secret, starttls: Option<StartTls>) -> Result<Server, String> {
        let url = Url::parse(url.expose()).map_err(|error| format!("is not a URL: {error}"))?;
        let host = url.host().ok_or("has no host")?.to_owned();
        let password = url.password().map(decode).transpose()?;
        let credentials = password.map(|password| Ok::<_, String>(Credentials::new(decode(url.username())?, password)));
        let credentials = credentials.transpose()?;
        let (security, port) = match url.scheme() {
            "smtps" => (Security::Wrapped, 465),
            "smtp" => {
                let unasked = match (&credentials, is_this_machine(&host)) {
                    (_, true) => StartTls::Never,
                    (Some(_), false) => StartTls::Required,
                    (None, false) => StartTls::Opportunistic,
                };
                (Security::StartTls(starttls.unwrap_or(unasked)), if credentials.is_some() { 587 } else { 25 })
            }
            other => return Err(format!("has the scheme `{other}`")),
        };
        let host = match host {
            Host::Ipv6(ip) => ip.to_string(),
            host => host.to_string(),
        };
        Ok(Server { host, port: url.port().unwrap_or(port), security, credentials, certificates: vec![] })
    }

    fn tls(&self) -> Result<TlsParameters, lettre::transport::smtp::Error> {
        let builder = TlsParameters::builder(self.host.clone());
        self.certificates
            .iter()
            .cloned()
            .fold(builder, |builder, trusted| builder.add_root_certificate(trusted))
            .build()
    }

    async fn connect(&self) -> Result<AsyncSmtpConnection, lettre::transport::smtp::Error> {
        let hello = ClientId::default();
        let wrapped = matches!(self.security, Security::Wrapped).then(|| self.tls()).transpose()?;
        let there = (self.host.as_str(), self.port);
        let mut connection = AsyncSmtpConnection::connect_tokio1(there, None, &hello, wrapped, None).await?;
        match self.security {
            Security::StartTls(StartTls::Required) => connection.starttls(self.tls()?, &hello).await?,
            Security::StartTls(StartTls::Opportunistic) if connection.can_starttls() => {
                connection.starttls(self.tls()?, &hello).await?;
            }
            _ => {}
        }
        Ok(connection)
    }

    /// A refused password is the operator's to mend, not the recipient's fault.
    async fn authenticate(&self, connection: &mut AsyncSmtpConnection) -> Result<(), ChannelError> {
        let Some(credentials) = &self.credentials else { return Ok(()) };
        let mechanisms = [Mechanism::Plain, Mechanism::Login];
        match connection.auth(&mechanisms, credentials).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_permanent() || error.is_client() => {
                Err(ChannelError::Misconfigured { why: format!("the mail server refused the login: {}", said(&error)) })
            }
            Err(error) => Err(judge_refused(&error)),
        }
    }
}

/// Every certificate in a PEM file.
fn read_certificates(path: &Path) -> Result<Vec<Certificate>, String> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    let text = std::fs::read_to_string(path).map_err(|error| format!("{} can't be read: {error}", path.display()))?;
    let blocks = text.split(BEGIN).skip(1).map(|block| Certificate::from_pem(format!("{BEGIN}{block}").as_bytes()));
    match blocks.collect::<Result<Vec<_>, _>>() {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(format!("{} holds no certificates in PEM", path.display())),
    }
}

/// What an answer to the text, or its absence, means.
fn judge_taken(
    answer: Result<Result<lettre::transport::smtp::response::Response, lettre::transport::smtp::Error>, impl Sized>,
) -> Result<Receipt, ChannelError> {
    match answer {
        Ok(Ok(response)) => {
            let said = response.first_line().map(|line| line.chars().take(ANSWER_LENGTH).collect());
            Ok(Receipt { provider_id: said, confirmed: Confirmed::Delivered })
        }
        Ok(Err(error)) if error.is_transient() || error.is_permanent() => Err(judge_refused(&error)),
        Ok(Err(error)) => Err(ChannelError::Unknown {
            why: format!("the connection broke while the mail server had the message: {}", said(&error)),
        }),
        Err(_) => Err(ChannelError::Unknown {
            why: "the mail server had the message and did not say whether it took it".into(),
        }),
    }
}

/// What a refusal before or after the text means. Codes: RFC 5321, section 4.2; 530 and 538 ask for what is not set up.
fn judge_refused(error: &lettre::transport::smtp::Error) -> ChannelError {
    let code = error.status().map(|code| code.to_string());
    let why = match code {
        Some(_) => format!("the mail server refused: {}", said(error)),
        None => format!("the mail server can't be used: {}", said(error)),
    };
    match code.as_deref() {
        Some("530" | "534" | "538") => ChannelError::Misconfigured { why },
        _ if error.is_permanent() => ChannelError::Rejected { why },
        _ if error.is_tls() || error.is_client() || is_handshake(error) => ChannelError::Misconfigured { why },
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

/// What the server or the network said, in one line.
fn said(error: &lettre::transport::smtp::Error) -> String {
    let text = match error.status() {
        Some(_) => error.to_string(),
        None => causes(error).last().map(ToString::to_string).unwrap_or_default(),
    };
    text.split_whitespace().collect::<Vec<_>>().join(" ").chars().take(ANSWER_LENGTH).collect()
}

fn is_this_machine(host: &Host) -> bool {
    match host {
        Host::Domain(name) => name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback()),
        Host::Ipv4(ip) => ip.is_loopback(),
        Host::Ipv6(ip) => ip.is_loopback(),
    }
}

/// `%40` to `@`, as users and passwords stand in a URL.
fn decode(text: &str) -> Result<String, String> {
    let mut bytes = vec![];
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let hex = |digit: Option<u8>| char::from(digit?).to_digit(16);
        bytes.push(match byte {
            b'%' => match (hex(rest.next()), hex(rest.next())) {
                (Some(high), Some(low)) => (high * 16 + low) as u8,
                _ => return Err("has a % that stands for nothing (write %25)".into()),
            },
            other => other,
        });
    }
    String::from_utf8(bytes).map_err(|_| "has a user or password that is not UTF-8".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(url: &str, starttls: Option<StartTls>) -> Result<(String, u16, Security, bool), String> {
        let server = Server::read(&Secret::new(url), starttls)?;
        Ok((server.host, server.port, server.security, server.credentials.is_some()))
    }

    fn starttls(mode: StartTls) -> Security {
        Security::StartTls(mode)
    }

    #[test]
    fn a_password_is_never_sent_in_clear_unless_that_is_asked_for() {
        let host = || "mail.example.org".to_owned();
        let with = "smtp://ann:p%40ss@mail.example.org";
        assert_eq!(server(with, None), Ok((host(), 587, starttls(StartTls::Required), true)));
        assert_eq!(server(with, Some(StartTls::Never)), Ok((host(), 587, starttls(StartTls::Never), true)));
        assert_eq!(server("smtp://mail.example.org", None), Ok((host(), 25, starttls(StartTls::Opportunistic), false)));
        assert_eq!(server("smtps://ann:p@mail.example.org", None), Ok((host(), 465, Security::Wrapped, true)));
        assert_eq!(server("smtps://mail.example.org:2465", None), Ok((host(), 2465, Security::Wrapped, false)));
    }

    #[test]
    fn a_server_on_this_machine_is_spoken_to_in_clear() {
        for (url, host) in [("localhost", "localhost"), ("127.0.0.1:2525", "127.0.0.1"), ("[::1]", "::1")] {
            let (read, _, security, _) = server(&format!("smtp://{url}"), None).unwrap();
            assert_eq!((read.as_str(), security), (host, starttls(StartTls::Never)));
        }
    }

    #[test]
    fn users_and_passwords_are_decoded() {
        assert_eq!(decode("ann%40example.org"), Ok("ann@example.org".into()));
        assert_eq!(decode("%C3%A9+"), Ok("é+".into()));
        assert!(decode("100%").is_err() && decode("%zz").is_err() && decode("%ff").is_err());
    }

    #[test]
    fn faults_in_the_settings_are_named_together_and_hold_no_password() {
        assert!(Email::new(&Settings::default()).unwrap().is_none(), "no url, no email");
        let settings = Settings {
            url: Some(Secret::new("http://ann:canary@mail.example.org")),
            ca_file: Some("/nowhere/ca.pem".into()),
            timeout_seconds: 0,
            ..Settings::default()
        };
        let faults = Email::new(&settings).err().unwrap();
        assert_eq!(
            faults.to_string(),
            "/channels/email/url: has the scheme `http`; expected smtp://user:password@host:587; \
             /channels/email/from: is needed: an address such as `Reveille <reveille@example.org>`; \
             /channels/email/timeout_seconds: must be 1 to 25; \
             /channels/email/ca_file: /nowhere/ca.pem can't be read: No such file or directory (os error 2)"
        );
    }
}
