//! Email: against a real mail server, and against one that says what a test wants it to say.

use std::sync::{Arc, Mutex};

use reveille::base::secret::Secret;
use reveille::domain::notification::rendered_message::RenderedMessage;
use reveille::domain::notification::{Addresses, Recipient};
use reveille::ports::channel::email::{EmailChannel, Settings, StartTls};
use reveille::ports::channel::{Channel, ReceiptLevel};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;

use super::{DELIVERY, created_at, deliver, deliver_words, outcome, recipient, words};
use crate::support::broken_servers::ClosedPort;
use crate::support::smtp::MailServer;

fn settings(url: impl Into<String>) -> Settings {
    Settings {
        url: Some(Secret::new(url)),
        from: Some("Reveille <reveille@wake.example.org>".into()),
        timeout_seconds: 5,
        ..Settings::default()
    }
}

fn email(url: impl Into<String>) -> EmailChannel {
    EmailChannel::new(&settings(url)).unwrap().expect("a configured channel")
}

fn ann() -> Recipient {
    to("ann@example.org")
}

fn to(address: &str) -> Recipient {
    recipient(Addresses { email: Some(address.into()), ..Addresses::default() })
}

/// An SMTP server that answers each command with `250 ok`, but for those for which a test has another answer.
struct ScriptedSmtp {
    url: String,
    heard: Arc<Mutex<Vec<String>>>,
}

/// `(what the client's line begins with, the answer)`; `""` is the greeting, `.` the end of the text. The answer `hang`
/// says nothing for ever, `close` ends the connection.
type Answers = &'static [(&'static str, &'static str)];

async fn scripted(answers: Answers) -> ScriptedSmtp {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("smtp://{}", listener.local_addr().unwrap());
    let heard = Arc::<Mutex<Vec<String>>>::default();
    let lines = Arc::clone(&heard);
    tokio::spawn(async move {
        let (socket, _) = listener.accept().await.unwrap();
        let (read, mut write) = socket.into_split();
        let mut commands = BufReader::new(read).lines();
        let mut line = String::new();
        loop {
            let answer = answers.iter().find(|(begin, _)| match *begin {
                "" => line.is_empty(),
                begin => line.starts_with(begin),
            });
            let answer = match (answer, line.as_str()) {
                (Some((_, answer)), _) => *answer,
                (None, "") => "220 ready",
                (None, "DATA") => "354 go on",
                (None, _) => "250 ok",
            };
            match answer {
                "hang" => std::future::pending::<()>().await,
                "close" => return,
                answer => write.write_all(format!("{answer}\r\n").as_bytes()).await.unwrap_or_default(),
            }
            let in_text = line == "DATA" && answer.starts_with('3');
            loop {
                let Ok(Some(next)) = commands.next_line().await else { return };
                lines.lock().unwrap().push(next.clone());
                if !in_text || next == "." {
                    line = next;
                    break;
                }
            }
        }
    });
    ScriptedSmtp { url, heard }
}

impl ScriptedSmtp {
    fn received_commands(&self, begin: &str) -> bool {
        self.heard.lock().unwrap().iter().any(|line| line.starts_with(begin))
    }
}

#[tokio::test]
async fn real_mail_server_takes_the_message_as_it_was_meant() {
    let server = MailServer::start().await;
    // it waited for the morning, and is dated when it is sent
    let later = created_at() + chrono::TimeDelta::hours(9);
    let channel = email(format!("smtp://{}", server.address()));
    let receipt = deliver_words(&channel, &ann(), &words(), later).await.unwrap();
    assert_eq!(receipt.confirmed, ReceiptLevel::Delivered);
    let [mail] = server.messages().try_into().expect("one message");
    assert_eq!(mail.text, "Grüße!\n.\n..dots stay\nEnd.");
    let headers = ["from", "to", "subject", "message-id", "date", "auto-submitted", "list-unsubscribe", "x-rcptto"]
        .map(|name| mail.header(name));
    assert_eq!(
        headers,
        [
            "Reveille <reveille@wake.example.org>",
            "ann@example.org",
            "Morgenpost =?utf-8?b?4oCT?= 2 Mails",
            "<0193f7a2-0000-7000-8000-000000000042@wake.example.org>",
            "Thu, 24 Dec 2026 16:00:09 +0000",
            "auto-generated",
            "<mailto:reveille@wake.example.org?subject=unsubscribe>",
            "ann@example.org",
        ]
    );
    let absent = ["list-unsubscribe-post", "in-reply-to", "references"].map(|name| mail.count(name));
    assert_eq!((absent, mail.html), ([0; 3], None), "what nobody takes is not offered");
}

#[tokio::test]
async fn mail_with_html_has_a_text_alternative() {
    let server = MailServer::start().await;
    let html = format!("<p>Grüße &amp; mehr</p>\n.\n<p>{}</p>\n", "long ".repeat(300));
    let told = RenderedMessage { html: Some(html.clone()), ..words() };
    deliver_words(&email(format!("smtp://{}", server.address())), &ann(), &told, created_at()).await.unwrap();
    let [mail] = server.messages().try_into().expect("one message");
    assert_eq!((mail.text.as_str(), mail.html.as_deref()), (told.text.as_str(), Some(html.trim_end())));
    assert_eq!(mail.header("mime-version"), "1.0");
}

#[tokio::test]
async fn mails_of_one_conversation_refer_to_the_same_id_and_have_their_own() {
    let server = MailServer::start().await;
    let email = email(format!("smtp://{}", server.address()));
    let about = |thread: &str| RenderedMessage { thread: Some(thread.into()), ..words() };
    for thread in ["batch 7", "batch 7", "batch 8"] {
        deliver_words(&email, &ann(), &about(thread), created_at()).await.unwrap();
    }
    let mut roots: Vec<String> = server.messages().iter().map(|mail| mail.header("references").to_owned()).collect();
    roots.sort();
    roots.dedup();
    assert_eq!(roots.len(), 2, "{roots:?}");
    for mail in server.messages() {
        assert_eq!(mail.header("in-reply-to"), mail.header("references"));
        assert_eq!(mail.header("message-id"), format!("<{DELIVERY}@wake.example.org>"));
    }
    assert!(roots.iter().all(|root| root.starts_with("<thread.") && root.ends_with("@wake.example.org>")));
}

#[tokio::test]
async fn one_unsubscribes_where_the_operator_says() {
    let server = MailServer::start().await;
    let place = "https://wake.example.org/unsubscribe";
    let settings = Settings { unsubscribe: Some(place.into()), ..settings(format!("smtp://{}", server.address())) };
    deliver(&EmailChannel::new(&settings).unwrap().unwrap(), &ann()).await.unwrap();
    let [mail] = server.messages().try_into().expect("one message");
    assert_eq!(mail.header("list-unsubscribe"), format!("<{place}>"));
}

#[tokio::test]
async fn repeat_has_the_same_message_id() {
    let server = MailServer::start().await;
    let email = email(format!("smtp://{}", server.address()));
    for _ in 0..2 {
        deliver(&email, &ann()).await.unwrap();
    }
    let ids: Vec<String> = server.messages().iter().map(|mail| mail.header("message-id").to_owned()).collect();
    let id = format!("<{DELIVERY}@wake.example.org>");
    assert_eq!(ids, [id.clone(), id]);
}

#[tokio::test]
async fn address_beyond_ascii_goes_where_the_server_takes_it() {
    let server = MailServer::start().await;
    deliver(&email(format!("smtp://{}", server.address())), &to("jörg@example.org")).await.unwrap();
    assert_eq!(server.messages().len(), 1);

    let plain = scripted(&[]).await;
    let refused = outcome(deliver(&email(&plain.url), &to("jörg@example.org")).await);
    assert_eq!(refused, ("unsendable", "the mail server takes ASCII addresses only".into()));
    assert!(!plain.received_commands("MAIL"));
}

#[tokio::test]
async fn encrypted_line_is_used_where_its_end_is_trusted() {
    let wants_starttls = MailServer::start_with_starttls().await;
    let speaks_tls = MailServer::start_with_tls().await;
    let ways = [
        (&wants_starttls, "smtp", StartTls::Required),
        (&wants_starttls, "smtp", StartTls::Opportunistic),
        (&speaks_tls, "smtps", StartTls::Required),
    ];
    for (server, scheme, starttls) in ways {
        let before = server.messages().len();
        let url = format!("{scheme}://localhost:{}", server.address().port());
        let trusting =
            Settings { starttls: Some(starttls), ca_file: Some(server.certificate()), ..settings(url.as_str()) };
        let answer = outcome(deliver(&EmailChannel::new(&trusting).unwrap().unwrap(), &ann()).await);
        assert_eq!((answer.0, server.messages().len()), ("delivered", before + 1), "{scheme}: {answer:?}");
        // this server takes nothing in clear, and without its certificate nothing is sent to it
        let untrusting = EmailChannel::new(&Settings { ca_file: None, ..trusting }).unwrap().unwrap();
        assert_eq!(outcome(deliver(&untrusting, &ann()).await).0, "misconfigured", "{scheme}");
        assert_eq!(server.messages().len(), before + 1);
    }
}

#[tokio::test]
async fn tls_with_a_wrong_certificate_sends_nothing() {
    let server = MailServer::start_with_starttls().await;
    let url = format!("smtp://ann:canary@localhost:{}", server.address().port());
    for starttls in [StartTls::Required, StartTls::Opportunistic] {
        let email =
            EmailChannel::new(&Settings { starttls: Some(starttls), ..settings(url.as_str()) }).unwrap().unwrap();
        let (word, why) = outcome(deliver(&email, &ann()).await);
        assert!(
            word == "misconfigured" && why.contains("invalid peer certificate") && !why.contains("canary"),
            "{word}: {why}"
        );
    }
    assert_eq!(server.messages(), []);
}

#[tokio::test]
async fn line_that_must_be_encrypted_is_not_used_in_clear() {
    let server = scripted(&[("EHLO", "250 no-extensions")]).await;
    let url = server.url.replace("smtp://", "smtp://ann:canary@");
    let required = Settings { starttls: Some(StartTls::Required), ..settings(url) };
    let (word, why) = outcome(deliver(&EmailChannel::new(&required).unwrap().unwrap(), &ann()).await);
    assert!(word == "misconfigured" && why.contains("STARTTLS is not supported"), "{word}: {why}");
    assert!(!server.received_commands("AUTH") && !server.received_commands("MAIL"));
}

#[tokio::test]
async fn delivered_means_the_server_took_the_text() {
    let server = scripted(&[(".", "250 2.0.0 Ok: queued as 4F2A")]).await;
    let answer = outcome(deliver(&email(&server.url), &ann()).await);
    assert_eq!(answer, ("delivered", "2.0.0 Ok: queued as 4F2A".into()));
    assert!(server.received_commands("QUIT"));
}

#[tokio::test]
async fn every_answer_has_its_meaning_at_every_step() {
    let cases: [(Answers, &str, &str); 14] = [
        (&[("", "421 too busy")], "transient", "421"),
        (&[("", "554 no service for you")], "rejected", "no service for you"),
        (&[("", "close")], "transient", ""),
        (&[("EHLO", "close")], "transient", ""),
        (&[("MAIL", "530 5.7.0 authentication required")], "misconfigured", "authentication required"),
        (&[("MAIL", "451 try again")], "busy", "try again"),
        (&[("RCPT", "550 5.1.1 no such user")], "rejected", "no such user"),
        (&[("RCPT", "450 4.2.0 greylisted")], "busy", "greylisted"),
        (&[("RCPT", "close")], "transient", ""),
        (&[("DATA", "452 disk full")], "busy", "disk full"),
        (&[("DATA", "554 no valid recipients")], "rejected", "no valid recipients"),
        (&[(".", "451 later")], "busy", "later"),
        (&[(".", "552 message too large")], "rejected", "message too large"),
        (&[(".", "close")], "unknown", "while the mail server had the message"),
    ];
    for (answers, word, said) in cases {
        let server = scripted(answers).await;
        let (found, why) = outcome(deliver(&email(&server.url), &ann()).await);
        assert!(found == word && why.contains(said), "{answers:?}: {found}: {why}");
    }
}

#[tokio::test]
async fn silence_before_the_text_is_tried_again_and_silence_after_it_is_unknown() {
    let cases: [(Answers, &str); 4] = [
        (&[("", "hang")], "transient"),
        (&[("RCPT", "hang")], "transient"),
        (&[("DATA", "hang")], "transient"),
        (&[(".", "hang")], "unknown"),
    ];
    for (answers, word) in cases {
        let server = scripted(answers).await;
        let quick = Settings { timeout_seconds: 1, ..settings(&server.url) };
        let (found, why) = outcome(deliver(&EmailChannel::new(&quick).unwrap().unwrap(), &ann()).await);
        assert_eq!(found, word, "{answers:?}: {why}");
    }
}

#[tokio::test]
async fn refused_login_is_the_operators_to_mend_and_the_password_is_not_repeated() {
    let server = scripted(&[("EHLO", "250 AUTH PLAIN"), ("AUTH", "535 5.7.8 bad credentials")]).await;
    let url = server.url.replace("smtp://", "smtp://ann:canary@");
    let (word, why) = outcome(deliver(&email(url), &ann()).await);
    assert!(word == "misconfigured" && why.contains("bad credentials") && !why.contains("canary"), "{word}: {why}");
    assert!(server.received_commands("AUTH PLAIN AGFubgBjYW5hcnk="));
}

#[tokio::test]
async fn refused_connection_is_retried() {
    let closed = ClosedPort::bind();
    let url = format!("smtp://{}", closed.address());
    assert_eq!(outcome(deliver(&email(url), &ann()).await).0, "transient");
    assert_eq!(outcome(deliver(&email("smtp://mail.invalid:2525"), &ann()).await).0, "transient");
}

#[tokio::test]
async fn recipient_without_an_address_is_said_to_have_none() {
    let email = email("smtp://127.0.0.1:1");
    let none = recipient(Addresses::default());
    assert_eq!(outcome(deliver(&email, &none).await), ("unsendable", "the recipient has no email address".into()));
    assert!(!email.capabilities().deduplicates, "a mail server does not drop repeats");
}
