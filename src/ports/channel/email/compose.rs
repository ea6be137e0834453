//! A mail as it is written: its headers, and the message as text, and as HTML beside it where there is one.
//!
//! The Message-ID is made from the delivery's id, so that a repeat is recognisable. What belongs to one conversation
//! refers to an id that is made from it, so that mail programs show it together (RFC 5322, section 3.6.4). Where a
//! recipient can ask for no more mails stands in `List-Unsubscribe` (RFC 2369); `List-Unsubscribe-Post` (RFC 8058) does
//! not, because nobody here takes such a request.

use std::time::SystemTime;

use aws_lc_rs::digest::{SHA256, digest};
use lettre::message::header::{HeaderName, HeaderValue};
use lettre::message::{Mailbox, MultiPart, SinglePart};
use url::Url;

use crate::ports::channel::{ChannelError, OutgoingMessage};

/// Parts that are equal in every mail.
pub(super) struct Composer {
    from: Mailbox,
    /// A `mailto:` or `https:` address, ASCII.
    unsubscribe: String,
}

impl Composer {
    /// Without an address of its own, one unsubscribes by a mail to the sender.
    ///
    /// # Errors
    /// What is wrong with the address.
    pub fn new(from: Mailbox, unsubscribe: Option<&str>) -> Result<Composer, String> {
        let to_sender = || format!("mailto:{}?subject=unsubscribe", from.email);
        let written = unsubscribe.map_or_else(to_sender, str::to_owned);
        let address = Url::parse(&written).ok().filter(|url| matches!(url.scheme(), "mailto" | "https"));
        let expected =
            "expected an address such as `mailto:unsubscribe@example.org` or `https://example.org/unsubscribe`";
        let address = address.filter(|url| url.path().contains('@') || url.has_host()).ok_or(expected)?;
        Ok(Composer { from, unsubscribe: address.into() })
    }

    /// The mail that carries this message to `address`.
    pub fn compose(&self, message: &OutgoingMessage, address: &str) -> Result<lettre::Message, ChannelError> {
        let unsendable = |why: String| ChannelError::Unsendable { why: format!("the email can't be written: {why}") };
        let to: lettre::Address = address.parse().map_err(|error| unsendable(format!("{error}")))?;
        let domain = self.from.email.domain();
        let words = message.words;
        let mut mail = lettre::Message::builder()
            .from(self.from.clone())
            .to(Mailbox::new(None, to))
            .subject(words.subject.as_str())
            .message_id(Some(format!("<{}@{domain}>", message.id)))
            .date(SystemTime::from(message.now))
            .raw_header(header("Auto-Submitted", "auto-generated"))
            .raw_header(header("List-Unsubscribe", &format!("<{}>", self.unsubscribe)));
        if let Some(thread) = &words.thread {
            let root = format!("<{}@{domain}>", thread_id(thread));
            mail = mail.in_reply_to(root.clone()).references(root);
        }
        let written = match &words.html {
            Some(html) => mail.multipart(MultiPart::alternative_plain_html(words.text.clone(), html.clone())),
            None => mail.singlepart(SinglePart::plain(words.text.clone())),
        };
        written.map_err(|error| unsendable(error.to_string()))
    }
}

/// The left side of the id that the mails of a conversation refer to; no mail has it.
fn thread_id(thread: &str) -> String {
    format!("thread.{}", hex::encode(&digest(&SHA256, thread.as_bytes()).as_ref()[..16]))
}

fn header(name: &'static str, value: &str) -> HeaderValue {
    HeaderValue::new(HeaderName::new_from_ascii_str(name), value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unsubscribe(address: Option<&str>) -> Option<String> {
        Some(Composer::new("Jörg <jörg@example.org>".parse().unwrap(), address).ok()?.unsubscribe)
    }

    #[test]
    fn one_unsubscribes_by_mail_to_the_sender_or_where_the_operator_says() {
        assert_eq!(unsubscribe(None).as_deref(), Some("mailto:j%C3%B6rg@example.org?subject=unsubscribe"));
        for good in ["mailto:no@example.org?subject=stop", "https://example.org/stop?who=ann"] {
            assert_eq!(unsubscribe(Some(good)).as_deref(), Some(good));
        }
        for bad in ["", "no@example.org", "mailto:", "mailto:nobody", "http://example.org/stop", "ftp://example.org"] {
            assert_eq!(unsubscribe(Some(bad)), None, "{bad}");
        }
    }

    #[test]
    fn conversation_has_one_id_and_another_has_another() {
        assert_eq!(thread_id("task 7"), thread_id("task 7"));
        assert_ne!(thread_id("task 7"), thread_id("task 8"));
        assert_eq!(thread_id("task 7").len(), "thread.".len() + 32);
    }
}
