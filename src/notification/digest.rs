//! A digest: messages that were held, told together.

use chrono::{DateTime, SecondsFormat, Utc};
use chrono_tz::Tz;
use serde_json::{Value, json};

use crate::notification::wording::cut;

/// The least room for one of its messages, in characters.
const LEAST: usize = 80;

/// One message of a digest, in its own words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Item {
    pub subject: String,
    pub text: String,
    /// When it would have been told.
    pub created_at: DateTime<Utc>,
}

/// The messages of a digest, oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digest {
    pub items: Vec<Item>,
    /// Those that there is no room for.
    pub more: u64,
}

impl Digest {
    /// One line.
    pub fn subject(&self) -> String {
        match self.items.len() as u64 + self.more {
            1 => "1 message that was held for you".into(),
            count => format!("{count} messages that were held for you"),
        }
    }

    /// Each with its time and subject, within `limit` characters; none is left out for another's length.
    pub fn text(&self, timezone: Tz, limit: usize) -> String {
        let end = match self.more {
            0 => String::new(),
            more => format!("\n\n… and {more} more, which `reveille delivery list` shows"),
        };
        let room = limit.saturating_sub(end.chars().count()) / self.items.len().max(1);
        let item = |item: &Item| {
            let head = format!("{} {}", item.created_at.with_timezone(&timezone).format("%m-%d %H:%M"), item.subject);
            // the empty line between two of them
            cut(&format!("{head}\n{}", item.text), room.max(LEAST).saturating_sub(2), None)
        };
        let items: Vec<String> = self.items.iter().map(item).collect();
        cut(&(items.join("\n\n") + &end), limit, None)
    }

    /// The same for programs.
    pub fn data(&self, tenant_id: &str) -> Value {
        let item = |item: &Item| {
            let at = item.created_at.to_rfc3339_opts(SecondsFormat::Millis, true);
            json!({ "subject": item.subject, "text": item.text, "created_at": at })
        };
        json!({
            "tenant_id": tenant_id, "items": self.items.iter().map(item).collect::<Vec<_>>(), "more": self.more,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(texts: &[&str], more: u64) -> Digest {
        let item = |(n, text): (usize, &&str)| Item {
            subject: format!("Task {n}"),
            text: (*text).to_owned(),
            created_at: format!("2027-03-01T2{n}:15:00Z").parse().unwrap(),
        };
        Digest { items: texts.iter().enumerate().map(item).collect(), more }
    }

    #[test]
    fn each_message_stands_with_its_time_and_subject() {
        let two = digest(&["Two mails.", "Milk is out."], 3);
        assert_eq!(two.subject(), "5 messages that were held for you");
        assert_eq!(
            two.text(Tz::Europe__Berlin, 1000),
            "03-01 21:15 Task 0\nTwo mails.\n\n03-01 22:15 Task 1\nMilk is out.\n\n… and 3 more, which `reveille \
             delivery list` shows"
        );
        assert_eq!(
            two.data("ann")["items"][1],
            json!({ "subject": "Task 1", "text": "Milk is out.", "created_at": "2027-03-01T21:15:00.000Z" })
        );
    }

    #[test]
    fn a_long_one_does_not_push_out_the_others() {
        let long = "x".repeat(5000);
        let text = digest(&[&long, "Milk is out."], 0).text(Tz::UTC, 400);
        assert!(text.chars().count() <= 400 && text.ends_with("03-01 21:15 Task 1\nMilk is out."), "{text}");
        assert!(text.contains("[cut: "), "{text}");
    }
}
