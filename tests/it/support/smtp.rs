//! A real mail server of one test: aiosmtpd, which keeps what it takes in a Maildir.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};

use super::binary::TempDir;

/// How long a start may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(60);

/// Takes a port that the system chooses and prints it. A port that a test chose and let go could be another test's by
/// the time the server binds it, and its mail would go there.
const SERVER: &str = r#"
import asyncio, ssl, sys
from aiosmtpd.handlers import Mailbox
from aiosmtpd.smtp import SMTP

maildir, tls, *files = sys.argv[1:]

async def serve():
    context = None
    if files:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(*files)
    later = context if tls == "starttls" else None
    def session():
        return SMTP(mailbox, enable_SMTPUTF8=True, tls_context=later, require_starttls=later is not None)
    at_once = context if tls == "tls" else None
    server = await asyncio.get_running_loop().create_server(session, "127.0.0.1", 0, ssl=at_once)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()

mailbox = Mailbox(maildir)
asyncio.run(serve())
"#;

/// Killed when dropped.
pub struct MailServer {
    address: SocketAddr,
    dir: TempDir,
    certificate_dir: Option<TempDir>,
    _child: Child,
}

impl MailServer {
    /// A server that takes every message in clear.
    pub async fn start() -> MailServer {
        MailServer::start_with(&["clear"]).await
    }

    /// A server that wants STARTTLS, with a certificate for `localhost` that nobody has signed: [`Self::certificate`].
    pub async fn start_with_starttls() -> MailServer {
        let (dir, key, certificate) = self_signed().await;
        let server = MailServer::start_with(&["starttls", &certificate, &key]).await;
        MailServer { certificate_dir: Some(dir), ..server }
    }

    /// Starts the server with TLS from the first byte.
    pub async fn start_with_tls() -> MailServer {
        let (dir, key, certificate) = self_signed().await;
        let server = MailServer::start_with(&["tls", &certificate, &key]).await;
        MailServer { certificate_dir: Some(dir), ..server }
    }

    /// The certificate of its own, in PEM.
    pub fn certificate(&self) -> PathBuf {
        self.certificate_dir.as_ref().expect("a server with TLS").path().join("certificate.pem")
    }

    async fn start_with(tls: &[&str]) -> MailServer {
        let dir = TempDir::new();
        let mut child = Command::new("/usr/bin/python3")
            .args(["-c", SERVER])
            .arg(dir.path().join("mail"))
            .args(tls)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("start python3 with aiosmtpd (apt-get install python3-aiosmtpd)");
        let port = tokio::time::timeout(PATIENCE, printed_port(&mut child)).await.expect("the mail server listens");
        MailServer { address: SocketAddr::from(([127, 0, 0, 1], port)), dir, certificate_dir: None, _child: child }
    }

    /// `127.0.0.1:port`.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The messages that it took, headers unfolded, in no order.
    pub fn messages(&self) -> Vec<Mail> {
        let taken = std::fs::read_dir(self.dir.path().join("mail/new")).expect("the Maildir");
        let paths: Vec<PathBuf> = taken.map(|entry| entry.expect("a message").path()).collect();
        paths.iter().map(|path| Mail::read(&std::fs::read_to_string(path).expect("a readable message"))).collect()
    }
}

async fn self_signed() -> (TempDir, String, String) {
    let dir = TempDir::new();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let (key, certificate) = (path("key.pem"), path("certificate.pem"));
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", &key, "-out", &certificate])
        .stderr(Stdio::null())
        .status();
    assert!(made.await.expect("run openssl").success(), "openssl made no certificate");
    (dir, key, certificate)
}

/// Waits until it listens.
async fn printed_port(child: &mut Child) -> u16 {
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let line = lines.next_line().await.expect("its output").expect("the mail server ended before it listened");
    line.parse().expect("a port")
}

/// A message as it was taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Mail {
    headers: Vec<(String, String)>,
    /// Decoded, where it is in quoted-printable or base64; of several alternatives the plain one.
    pub text: String,
    /// The last of several alternatives, the richest, if it is HTML.
    pub html: Option<String>,
}

impl Mail {
    /// The value of a header that stands there once.
    pub fn header(&self, name: &str) -> &str {
        let mut found = self.headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name));
        let (_, value) = found.next().unwrap_or_else(|| panic!("no header {name} in {:?}", self.headers));
        assert!(found.next().is_none(), "the header {name} stands there twice");
        value
    }

    /// How often a header stands there.
    pub fn count(&self, name: &str) -> usize {
        self.headers.iter().filter(|(known, _)| known.eq_ignore_ascii_case(name)).count()
    }

    fn read(raw: &str) -> Mail {
        let raw = raw.replace("\r\n", "\n");
        let (headers, body) = headers_and_body(&raw);
        let mut mail = Mail { headers, text: String::new(), html: None };
        let Some(boundary) = mail.header("content-type").strip_prefix("multipart/alternative; boundary=") else {
            mail.text = decoded(&mail, body);
            return mail;
        };
        let boundary = format!("--{}", boundary.trim_matches('"'));
        let mut pieces = body.split(boundary.as_str()).skip(1);
        let part = |piece: &str| {
            let (headers, body) = headers_and_body(piece.strip_prefix('\n').expect("a line of its own"));
            let part = Mail { headers, text: String::new(), html: None };
            (part.header("content-type").to_owned(), decoded(&part, body))
        };
        let (plain, html) = (part(pieces.next().expect("a part")), part(pieces.next().expect("another")));
        assert_eq!((plain.0.as_str(), html.0.as_str()), ("text/plain; charset=utf-8", "text/html; charset=utf-8"));
        assert_eq!((pieces.next().map(str::trim_end), pieces.next()), (Some("--"), None), "two alternatives");
        (mail.text, mail.html) = (plain.1, Some(html.1));
        mail
    }
}

fn headers_and_body(raw: &str) -> (Vec<(String, String)>, &str) {
    let (head, body) = raw.split_once("\n\n").expect("a head and a body");
    let unfolded = head.replace("\n ", " ").replace("\n\t", " ");
    let header = |line: &str| line.split_once(':').map(|(name, value)| (name.to_owned(), value.trim().to_owned()));
    (unfolded.lines().filter_map(header).collect(), body)
}

fn decoded(part: &Mail, body: &str) -> String {
    match part.header("content-transfer-encoding") {
        "quoted-printable" => quoted_printable(body),
        "base64" => base64(body),
        _ => body.trim_end_matches('\n').to_owned(),
    }
}

fn quoted_printable(body: &str) -> String {
    let joined = body.replace("=\n", "");
    let mut bytes = vec![];
    let mut rest = joined.trim_end_matches('\n').bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'=' => {
                let digits = [rest.next().unwrap(), rest.next().unwrap()];
                u8::from_str_radix(std::str::from_utf8(&digits).unwrap(), 16).unwrap()
            }
            other => other,
        });
    }
    String::from_utf8(bytes).expect("UTF-8")
}

fn base64(body: &str) -> String {
    use ::base64::Engine;
    let joined: String = body.split_whitespace().collect();
    let bytes = ::base64::engine::general_purpose::STANDARD.decode(joined).expect("base64");
    String::from_utf8(bytes).expect("UTF-8")
}
