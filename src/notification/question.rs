//! The words of a question to a person: what is about to be done, until when there is to answer, and the one link.
//!
//! They are made when a message is sent and stored nowhere: the link lets whoever has it decide.

use chrono::{DateTime, SecondsFormat, Utc};
use chrono_tz::Tz;
use serde_json::{Value, json};

use crate::approval::{Approval, ApprovalStatus};
use crate::notification::Kind;
use crate::notification::wording::cut;
use crate::secret::Secret;
use crate::visible::on_one_line;

/// Things that a message names; the page shows all.
const NAMED: usize = 20;
/// Longest sentence about one of them, in characters.
const SUMMARY_LENGTH: usize = 300;

/// What is asked of a person, and where it is answered.
#[derive(Debug, Clone)]
pub struct Question {
    /// What waits for an answer, or may still be stopped; never empty.
    pub items: Vec<Approval>,
    pub link: Secret,
}

/// What of a batch is worth a message at `now`: what waits for an answer, and what is held and may still be stopped.
pub fn still_open(batch: Vec<Approval>, now: DateTime<Utc>) -> Vec<Approval> {
    let waits = |item: &Approval| item.status == ApprovalStatus::Pending && item.expires_at > now;
    batch.into_iter().filter(|item| waits(item) || is_held(item, now)).collect()
}

fn is_held(item: &Approval, now: DateTime<Utc>) -> bool {
    item.status.allows() && item.began_at.is_none() && item.hold_until.is_some_and(|until| until > now)
}

impl Question {
    /// One line. A name that comes from outside can't turn the direction of what follows it.
    pub fn subject(&self, kind: Kind, task_name: &str) -> String {
        let name = on_one_line(task_name);
        let things = things(self.items.len());
        match (self.waits(), kind) {
            (false, _) => format!("{name} is about to act: {things} may still be stopped"),
            (true, Kind::Reminder) => format!("Reminder: {name} waits for your approval of {things}"),
            (true, _) => format!("{name} asks for your approval of {things}"),
        }
    }

    /// At most `limit` characters; where there is not room for all, the link stays.
    pub fn text(&self, task_name: &str, timezone: Tz, limit: usize) -> String {
        let (name, things) = (on_one_line(task_name), things(self.items.len()));
        let until = self.until().with_timezone(&timezone).format("%Y-%m-%d %H:%M %Z");
        let (opening, closing, call) = match self.waits() {
            true => (
                format!("\"{name}\" wants to do {things} and asks you first:"),
                format!("There is time to answer until {until}. Without an answer nothing of it is done."),
                "Look at it and decide:",
            ),
            false => (
                format!("\"{name}\" is about to do {things}:"),
                format!("It is done at {until} unless you stop it."),
                "Look at it and stop it:",
            ),
        };
        let end = format!("\n\n{closing}\n\n{call}\n{}", self.link.expose());
        let room = limit.saturating_sub(end.chars().count());
        let head = cut(&format!("{opening}\n\n{}", self.list()), room, Some("the page shows all"));
        match room {
            0 => self.link.expose().to_owned(),
            _ => head + &end,
        }
    }

    fn list(&self) -> String {
        let sentence = |item: &Approval| short(&on_one_line(&item.proposal.summary));
        let named = self.items.iter().take(NAMED).enumerate();
        let mut lines: Vec<String> = named.map(|(n, item)| format!("{}. {}", n + 1, sentence(item))).collect();
        if self.items.len() > NAMED {
            lines.push(format!("… and {} more, which the page shows", self.items.len() - NAMED));
        }
        lines.join("\n")
    }

    /// The same for programs.
    pub fn data(&self, tenant_id: &str, task_name: Option<&str>) -> Value {
        let time = |at: DateTime<Utc>| at.to_rfc3339_opts(SecondsFormat::Millis, true);
        let item = |item: &Approval| {
            json!({
                "id": item.id, "tool": item.proposal.tool, "summary": item.proposal.summary, "digest": item.digest,
                "status": item.status, "expires_at": time(item.expires_at), "hold_until": item.hold_until.map(time),
            })
        };
        json!({
            "tenant_id": tenant_id, "task_name": task_name,
            "task_id": self.items.first().and_then(|item| item.task_id),
            "run_id": self.items.first().map(|item| item.run_id),
            "batch_id": self.items.first().map(|item| item.batch_id),
            "link": self.link.expose(), "expires_at": time(self.until()),
            "items": self.items.iter().map(item).collect::<Vec<_>>(),
        })
    }

    /// For programs, what this is.
    pub fn event(&self, kind: Kind) -> &'static str {
        match (self.waits(), kind) {
            (false, _) => "approval.held",
            (true, Kind::Reminder) => "approval.reminder",
            (true, _) => "approval.requested",
        }
    }

    fn waits(&self) -> bool {
        self.items.iter().any(|item| item.status == ApprovalStatus::Pending)
    }

    /// Until when it can be answered, or stopped: the earliest instant of any.
    pub fn until(&self) -> DateTime<Utc> {
        let waits = self.waits();
        let items = self.items.iter().filter(|item| !waits || item.status == ApprovalStatus::Pending);
        let instants =
            items.map(|item| if waits { item.expires_at } else { item.hold_until.unwrap_or(item.expires_at) });
        instants.min().unwrap_or_default()
    }
}

fn things(count: usize) -> String {
    match count {
        1 => "1 thing".into(),
        count => format!("{count} things"),
    }
}

fn short(sentence: &str) -> String {
    match sentence.char_indices().nth(SUMMARY_LENGTH) {
        Some((end, _)) => format!("{}… (the page shows all of it)", &sentence[..end]),
        None => sentence.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::approval::test_question as question;

    const LINK: &str = "https://wake.example.org/approvals/0123456789abcdef";

    fn at(text: &str) -> DateTime<Utc> {
        format!("2027-03-01T{text}:00Z").parse().unwrap()
    }

    fn asking(summaries: &[&str]) -> Question {
        let item = |summary: &&str| question(summary, at("08:00"), at("08:30"));
        Question { items: summaries.iter().map(item).collect(), link: Secret::new(LINK) }
    }

    #[test]
    fn a_question_names_the_task_what_waits_until_when_and_the_link() {
        let two = asking(&["Send email to team@company.com", "Pay 5 to bob"]);
        assert_eq!(two.subject(Kind::Ask, "Morning mail"), "Morning mail asks for your approval of 2 things");
        assert_eq!(two.subject(Kind::Reminder, "M"), "Reminder: M waits for your approval of 2 things");
        assert_eq!(
            two.text("Morning mail", Tz::Europe__Berlin, 10_000),
            "\"Morning mail\" wants to do 2 things and asks you first:\n\n\
             1. Send email to team@company.com\n2. Pay 5 to bob\n\n\
             There is time to answer until 2027-03-01 09:30 CET. Without an answer nothing of it is done.\n\n\
             Look at it and decide:\nhttps://wake.example.org/approvals/0123456789abcdef"
        );
    }

    #[test]
    fn what_is_held_is_told_with_the_instant_until_which_it_can_be_stopped() {
        let mut one = asking(&["Pay 5 to bob"]);
        one.items[0].status = ApprovalStatus::Approved;
        one.items[0].hold_until = Some(at("08:05"));
        assert_eq!(one.subject(Kind::Ask, "Pay"), "Pay is about to act: 1 thing may still be stopped");
        let text = one.text("Pay", Tz::UTC, 10_000);
        assert!(text.contains("It is done at 2027-03-01 08:05 UTC unless you stop it."), "{text}");
        assert_eq!(one.event(Kind::Ask), "approval.held");
    }

    #[test]
    fn hidden_characters_are_shown_and_a_long_sentence_is_cut_with_a_note() {
        let text = asking(&["pay\u{202e}gnp.exe\u{7}\nnow", &"x".repeat(400)]).text("a\u{202e}b", Tz::UTC, 10_000);
        assert!(text.starts_with("\"a⟦U+202E⟧b\" wants"), "{text}");
        assert!(text.contains("1. pay⟦U+202E⟧gnp.exe␇ now\n"), "{text}");
        assert!(text.contains(&format!("2. {}… (the page shows all of it)\n", "x".repeat(300))), "{text}");
    }

    #[test]
    fn many_things_are_counted_and_the_link_stays_however_little_room_there_is() {
        let many = asking(&["Pay 5 to bob"; 25]);
        assert!(many.text("Pay", Tz::UTC, 10_000).contains("20. Pay 5 to bob\n… and 5 more, which the page shows"));
        for limit in [60, 160, 200, 300, 500] {
            let text = many.text("Pay", Tz::UTC, limit);
            assert!(text.ends_with(LINK) && text.chars().count() <= limit, "{limit}: {text}");
        }
    }

    #[test]
    fn programs_are_given_the_link_and_each_thing_with_its_digest() {
        let one = asking(&["Pay 5 to bob"]);
        let item = &one.items[0];
        assert_eq!(
            one.data("ann", Some("Pay")),
            json!({
                "tenant_id": "ann", "task_name": "Pay", "task_id": null, "run_id": item.run_id,
                "batch_id": item.batch_id, "link": LINK, "expires_at": "2027-03-01T08:30:00.000Z",
                "items": [{
                    "id": item.id, "tool": "pay", "summary": "Pay 5 to bob", "digest": item.digest,
                    "status": "pending", "expires_at": "2027-03-01T08:30:00.000Z", "hold_until": null,
                }],
            })
        );
        assert_eq!((one.event(Kind::Ask), one.event(Kind::Reminder)), ("approval.requested", "approval.reminder"));
        assert!(!format!("{one:?}").contains("0123456789abcdef"), "the link is shown to nobody who prints it");
    }

    #[test]
    fn only_what_can_still_be_answered_or_stopped_is_worth_a_message() {
        let batch = || asking(&["one", "two", "three", "four"]).items;
        assert_eq!(still_open(batch(), at("08:29")).len(), 4);
        assert_eq!(still_open(batch(), at("08:30")).len(), 0);
        let mut settled = batch();
        settled[0].status = ApprovalStatus::Cancelled;
        settled[1].status = ApprovalStatus::Approved;
        settled[2] = Approval { status: ApprovalStatus::Approved, hold_until: Some(at("08:20")), ..settled[2].clone() };
        settled[3] = Approval { began_at: Some(at("08:10")), ..settled[2].clone() };
        let open = |now| still_open(settled.clone(), at(now)).into_iter().map(|item| item.proposal.summary).collect();
        assert_eq!((open("08:10"), open("08:20")), (vec!["three".to_owned()], vec![]));
    }
}
