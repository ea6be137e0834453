//! The mail server: where it is, how the connection to it is encrypted, who logs in.
//!
//! A password is never sent in clear unless that was asked for. Nothing is kept between two messages.

use std::net::IpAddr;
use std::path::Path;

use lettre::transport::smtp::authentication::{Credentials, Mechanism};
use lettre::transport::smtp::client::{AsyncSmtpConnection, Certificate, TlsParameters};
use lettre::transport::smtp::extension::ClientId;
use serde::{Deserialize, Serialize};
use url::{Host, Url};

use super::{error_text, judge_refused};
use crate::base::secret::Secret;
use crate::ports::channel::ChannelError;

/// Whether a connection that begins in clear is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum StartTls {
    /// The connection has to switch to TLS.
    Required,
    /// Where the server offers it.
    Opportunistic,
    /// The connection stays plain.
    Never,
}

/// Where mails are handed over.
pub(super) struct MailServer {
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

impl MailServer {
    pub(super) fn read(url: &Secret, starttls: Option<StartTls>) -> Result<MailServer, String> {
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
        Ok(MailServer { host, port: url.port().unwrap_or(port), security, credentials, certificates: vec![] })
    }

    /// Certificates that are trusted besides the platform's.
    pub(super) fn trusting(self, certificates: Vec<Certificate>) -> MailServer {
        MailServer { certificates, ..self }
    }

    fn tls(&self) -> Result<TlsParameters, lettre::transport::smtp::Error> {
        let builder = TlsParameters::builder(self.host.clone());
        self.certificates
            .iter()
            .cloned()
            .fold(builder, |builder, trusted| builder.add_root_certificate(trusted))
            .build()
    }

    /// Greets the server, encrypted as it has to be.
    pub(super) async fn connect(&self) -> Result<AsyncSmtpConnection, lettre::transport::smtp::Error> {
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
    pub(super) async fn authenticate(&self, connection: &mut AsyncSmtpConnection) -> Result<(), ChannelError> {
        let Some(credentials) = &self.credentials else { return Ok(()) };
        let mechanisms = [Mechanism::Plain, Mechanism::Login];
        match connection.auth(&mechanisms, credentials).await {
            Ok(_) => Ok(()),
            Err(error) if error.is_permanent() || error.is_client() => Err(ChannelError::Misconfigured {
                why: format!("the mail server refused the login: {}", error_text(&error)),
            }),
            Err(error) => Err(judge_refused(&error)),
        }
    }
}

/// Every certificate in a PEM file.
pub(super) fn read_certificates(path: &Path) -> Result<Vec<Certificate>, String> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE-----";
    let text = std::fs::read_to_string(path).map_err(|error| format!("{} can't be read: {error}", path.display()))?;
    let blocks = text.split(BEGIN).skip(1).map(|block| Certificate::from_pem(format!("{BEGIN}{block}").as_bytes()));
    match blocks.collect::<Result<Vec<_>, _>>() {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(format!("{} holds no certificates in PEM", path.display())),
    }
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
        let server = MailServer::read(&Secret::new(url), starttls)?;
        Ok((server.host, server.port, server.security, server.credentials.is_some()))
    }

    fn starttls(mode: StartTls) -> Security {
        Security::StartTls(mode)
    }

    #[test]
    fn password_is_never_sent_in_clear_unless_that_is_asked_for() {
        let host = || "mail.example.org".to_owned();
        let with = "smtp://ann:p%40ss@mail.example.org";
        assert_eq!(server(with, None), Ok((host(), 587, starttls(StartTls::Required), true)));
        assert_eq!(server(with, Some(StartTls::Never)), Ok((host(), 587, starttls(StartTls::Never), true)));
        assert_eq!(server("smtp://mail.example.org", None), Ok((host(), 25, starttls(StartTls::Opportunistic), false)));
        assert_eq!(server("smtps://ann:p@mail.example.org", None), Ok((host(), 465, Security::Wrapped, true)));
        assert_eq!(server("smtps://mail.example.org:2465", None), Ok((host(), 2465, Security::Wrapped, false)));
    }

    #[test]
    fn server_on_this_machine_is_spoken_to_in_clear() {
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
}
