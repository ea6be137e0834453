//! The words of a question to a person: what is about to be done, until when there is to answer, and the one link.
//!
//! They are made when a message is sent and stored nowhere: the link lets whoever has it decide.

use std::borrow::Cow;

use chrono::{DateTime, SecondsFormat, Utc};
use chrono_tz::Tz;
use serde::Serialize;
use serde::ser::SerializeStruct;
use serde_json::{Value, json};

use crate::base::secret::Secret;
use crate::base::unicode_safety::on_one_line;
use crate::domain::approval::{Approval, ApprovalStatus, Proposal};
use crate::domain::notification::text::instant;
use crate::domain::notification::{Link, MessageKind, MessageLanguage};

/// Things that a message names; the page shows all.
const NAMED: usize = 20;
/// Longest sentence about one of them, in characters.
const SUMMARY_LENGTH: usize = 300;

/// Calls that a person is asked about, and where they are answered.
#[derive(Debug, Clone)]
pub struct ApprovalQuestion {
    /// Calls that wait for an answer, or may still be stopped; never empty.
    pub items: Vec<Approval>,
    /// Address of the approval page.
    pub link: Secret,
}

/// The part of a batch that is worth a message at `now`: calls that wait for an answer, and held ones that may still be
/// stopped.
pub fn still_open(batch: Vec<Approval>, now: DateTime<Utc>) -> Vec<Approval> {
    let waits = |item: &Approval| item.status == ApprovalStatus::Pending && item.expires_at > now;
    batch.into_iter().filter(|item| waits(item) || is_held(item, now)).collect()
}

fn is_held(item: &Approval, now: DateTime<Utc>) -> bool {
    item.status.allows() && item.execution_started_at.is_none() && item.hold_until.is_some_and(|until| until > now)
}

/// A question as the templates see it.
#[derive(Debug, Clone)]
pub struct QuestionContext {
    /// `1 thing`, `3 things`.
    pub things: String,
    /// How much is done besides without asking, unless it is stopped: `1 thing`. `None`: nothing.
    pub undoable: Option<String>,
    /// A sentence each.
    pub items: Vec<String>,
    /// How many are not named; the page shows them.
    pub more: usize,
    /// Until when it can be answered, or stopped, in the recipient's zone.
    pub until: String,
    /// Address of the approval page.
    pub link: Secret,
}

impl QuestionContext {
    /// The question with at most about `room` characters of sentences, the others counted.
    pub fn within(&self, room: usize) -> QuestionContext {
        let mut left = room;
        let fits = |item: &&String| {
            let length = item.chars().count() + 5;
            let fits = length <= left;
            left = left.saturating_sub(length);
            fits
        };
        let items: Vec<String> = self.items.iter().take_while(fits).cloned().collect();
        QuestionContext { more: self.more + self.items.len() - items.len(), items, ..self.clone() }
    }
}

/// For the templates alone, which have to show the link: a [`Secret`] serialises as redacted.
impl Serialize for QuestionContext {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("question", 6)?;
        fields.serialize_field("things", &self.things)?;
        fields.serialize_field("undoable", &self.undoable)?;
        fields.serialize_field("items", &self.items)?;
        fields.serialize_field("more", &self.more)?;
        fields.serialize_field("until", &self.until)?;
        fields.serialize_field("link", self.link.expose())?;
        fields.end()
    }
}

impl ApprovalQuestion {
    /// Which templates tell it.
    pub fn purpose(&self, kind: MessageKind) -> &'static str {
        match (self.is_waiting(), kind) {
            (false, _) => "undo_window",
            (true, _) if self.is_for_input() => "input",
            (true, MessageKind::Reminder) => "reminder",
            (true, _) => "ask",
        }
    }

    /// Where it is answered, as a button.
    pub fn link(&self, language: MessageLanguage) -> Link {
        let label = match self.is_waiting() {
            true if self.is_for_input() => language.pick("Answer", "Antworten"),
            true => language.pick("Decide", "Entscheiden"),
            false => language.pick("Stop it", "Aufhalten"),
        };
        Link { label: label.into(), url: self.link.expose().to_owned() }
    }

    /// The data for its templates, every sentence on one line and with nothing hidden in it.
    pub fn template_data(&self, timezone: Tz, language: MessageLanguage) -> QuestionContext {
        let several = self.items.len() > 1;
        let sentence = |item: &Approval| {
            let summary = short(&on_one_line(&summary_in(&item.proposal, language)), language);
            let Some(until) = item.hold_until.filter(|_| several && item.status.allows()) else { return summary };
            let until = instant(until, timezone);
            match language {
                MessageLanguage::English => format!("{summary} (done at {until} unless you stop it)"),
                MessageLanguage::German => format!("{summary} (geschieht am {until}, wenn Sie es nicht aufhalten)"),
            }
        };
        let items: Vec<String> = self.items.iter().take(NAMED).map(sentence).collect();
        let (counted, all) = (self.counted(), self.items.len());
        QuestionContext {
            things: count_text(counted, language),
            undoable: (counted < all).then(|| count_text(all - counted, language)),
            more: self.items.len() - items.len(),
            items,
            until: instant(self.until(), timezone),
            link: Secret::new(self.link.expose()),
        }
    }

    /// The question as data for programs.
    pub fn data(&self, tenant_id: &str, task_name: Option<&str>) -> Value {
        let time = |at: DateTime<Utc>| at.to_rfc3339_opts(SecondsFormat::Millis, true);
        let item = |item: &Approval| {
            json!({
                "id": item.id, "kind": item.proposal.kind, "tool": item.proposal.tool, "summary": item.proposal.summary, "digest": item.digest,
                "status": item.status, "expires_at": time(item.expires_at), "hold_until": item.hold_until.map(time),
                "server": item.proposal.server.as_ref().map(|server| &server.server), "hosts": hosts(&item.proposal),
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
    pub fn event(&self, kind: MessageKind) -> &'static str {
        match (self.is_waiting(), kind) {
            (false, _) => "approval.undo_window",
            (true, MessageKind::Reminder) if self.is_for_input() => "input.reminder",
            (true, _) if self.is_for_input() => "input.requested",
            (true, MessageKind::Reminder) => "approval.reminder",
            (true, _) => "approval.requested",
        }
    }

    fn is_waiting(&self) -> bool {
        self.items.iter().any(|item| item.status == ApprovalStatus::Pending)
    }

    /// Whether all that waits for an answer is what calls lack.
    fn is_for_input(&self) -> bool {
        let mut waiting = self.items.iter().filter(|item| item.status == ApprovalStatus::Pending);
        waiting.all(|item| item.proposal.is_input())
    }

    /// How many things the message is about first: those that are asked, or where none is, those that are held.
    fn counted(&self) -> usize {
        match self.is_waiting() {
            true => self.items.iter().filter(|item| item.status == ApprovalStatus::Pending).count(),
            false => self.items.len(),
        }
    }

    /// Until when it can be answered, or stopped: the earliest instant of any.
    pub fn until(&self) -> DateTime<Utc> {
        let waits = self.is_waiting();
        let items = self.items.iter().filter(|item| !waits || item.status == ApprovalStatus::Pending);
        let instants =
            items.map(|item| if waits { item.expires_at } else { item.hold_until.unwrap_or(item.expires_at) });
        instants.min().unwrap_or_default()
    }
}

/// The question in a sentence. The fields that a call lacks are asked for in the language of the message, and a server
/// that asks is named before its words.
fn summary_in(proposal: &Proposal, language: MessageLanguage) -> Cow<'_, str> {
    if let Some(asked) = &proposal.server {
        let asks = language.pick("asks", "fragt");
        return Cow::Owned(format!("{} {asks}: {}", asked.server, without_addresses(&proposal.summary, language)));
    }
    match language {
        MessageLanguage::German if !proposal.lacks.is_empty() => {
            let names: Vec<&str> = proposal.lacks.iter().map(|one| one.name.as_str()).collect();
            Cow::Owned(format!("{} muss noch wissen: {}", proposal.tool, names.join(", ")))
        }
        MessageLanguage::English | MessageLanguage::German => Cow::Borrowed(&proposal.summary),
    }
}

/// The words of a server without the addresses in them: the page shows where it sends a person, and a message does not.
fn without_addresses(text: &str, language: MessageLanguage) -> String {
    let is_address = |word: &str| word.contains("://") || word.to_ascii_lowercase().contains("www.");
    let address = language.pick("[address]", "[Adresse]");
    let shown = |word| if is_address(word) { address } else { word };
    text.split_whitespace().map(shown).collect::<Vec<_>>().join(" ")
}

/// Hosts to which a server sends the person.
fn hosts(proposal: &Proposal) -> Vec<&str> {
    let asked = proposal.server.as_ref();
    asked.into_iter().flat_map(|asked| asked.links()).map(|(_, host)| host).collect()
}

fn count_text(count: usize, language: MessageLanguage) -> String {
    match count {
        1 => language.pick("1 thing", "1 Sache").into(),
        count => format!("{count} {}", language.pick("things", "Sachen")),
    }
}

fn short(sentence: &str, language: MessageLanguage) -> String {
    let note = language.pick("(the page shows all of it)", "(die Seite zeigt es ganz)");
    match sentence.char_indices().nth(SUMMARY_LENGTH) {
        Some((end, _)) => format!("{}… {note}", &sentence[..end]),
        None => sentence.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::approval::{ArgumentFault, FieldFault, test_question as question};

    const LINK: &str = "https://wake.example.org/approvals/0123456789abcdef";

    fn at(text: &str) -> DateTime<Utc> {
        format!("2027-03-01T{text}:00Z").parse().unwrap()
    }

    fn asking(summaries: &[&str]) -> ApprovalQuestion {
        let item = |summary: &&str| question(summary, at("08:00"), at("08:30"));
        ApprovalQuestion { items: summaries.iter().map(item).collect(), link: Secret::new(LINK) }
    }

    #[test]
    fn message_tells_asked_calls_apart_from_held_ones() {
        let mut both = asking(&["Pay 5 to bob", "Pay 7 to carl"]);
        both.items[1].status = ApprovalStatus::Approved;
        both.items[1].hold_until = Some(at("08:05"));
        let context = both.template_data(Tz::UTC, MessageLanguage::English);
        assert_eq!((context.things.as_str(), context.undoable.as_deref()), ("1 thing", Some("1 thing")));
        assert_eq!(context.items, ["Pay 5 to bob", "Pay 7 to carl (done at 2027-03-01 08:05 UTC unless you stop it)"]);
        assert_eq!((both.purpose(MessageKind::Ask), context.until.as_str()), ("ask", "2027-03-01 08:30 UTC"));
        both.items[0].status = ApprovalStatus::Approved;
        both.items[0].hold_until = Some(at("08:04"));
        let context = both.template_data(Tz::UTC, MessageLanguage::English);
        assert_eq!(
            (context.things.as_str(), context.undoable, context.until.as_str()),
            ("2 things", None, "2027-03-01 08:04 UTC")
        );
        assert_eq!(both.purpose(MessageKind::Ask), "undo_window");
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
                    "id": item.id, "kind": "approval", "tool": "pay", "summary": "Pay 5 to bob", "digest": item.digest,
                    "status": "pending", "expires_at": "2027-03-01T08:30:00.000Z", "hold_until": null,
                    "server": null, "hosts": [],
                }],
            })
        );
        assert_eq!(
            (one.event(MessageKind::Ask), one.event(MessageKind::Reminder)),
            ("approval.requested", "approval.reminder")
        );
        assert!(!format!("{one:?}").contains("0123456789abcdef"), "the link is shown to nobody who prints it");
    }

    #[test]
    fn message_that_asks_for_input_alone_says_so() {
        let mut asked = asking(&["How many?", "Pay 5 to bob"]);
        asked.items[0].proposal.kind = crate::domain::approval::QuestionKind::Input;
        assert_eq!((asked.purpose(MessageKind::Ask), asked.event(MessageKind::Ask)), ("ask", "approval.requested"));
        asked.items[1].status = ApprovalStatus::Cancelled;
        assert_eq!(
            (asked.purpose(MessageKind::Reminder), asked.event(MessageKind::Reminder)),
            ("input", "input.reminder")
        );
        assert_eq!(asked.link(MessageLanguage::German).label, "Antworten");
        let fault = ArgumentFault::with("", "is missing", "fault_required", &[]);
        asked.items[0].proposal.lacks = vec![FieldFault::new("party", fault)];
        let told = |language| asked.template_data(Tz::UTC, language).items.remove(0);
        assert_eq!(told(MessageLanguage::English), "How many?", "as it was put");
        assert_eq!(told(MessageLanguage::German), "pay muss noch wissen: party");
    }

    #[test]
    fn question_of_a_server_names_it_and_no_address_of_it_is_sent() {
        let url = "https://login.example.org/device?code=8";
        let mut asked = asking(&["Log in at https://evil.example/ or WWW.evil.example,\nplease"]);
        asked.items[0].proposal.kind = crate::domain::approval::QuestionKind::Input;
        asked.items[0].proposal.server = serde_json::from_value(json!({
            "server": "github",
            "parts": [{ "key": "k", "message": "Log in", "mode": "url", "url": url, "host": "login.example.org" }],
            "continuation": { "kind": "continue", "round": 1, "request_state": "cy1wcm9k" },
        }))
        .unwrap();
        let told = |language| asked.template_data(Tz::UTC, language).items.remove(0);
        assert_eq!(told(MessageLanguage::English), "github asks: Log in at [address] or [address] please");
        assert_eq!(told(MessageLanguage::German), "github fragt: Log in at [Adresse] or [Adresse] please");
        let data = asked.data("ann", None);
        let item = &data["items"][0];
        assert_eq!((&item["server"], &item["hosts"]), (&json!("github"), &json!(["login.example.org"])));
        for hidden in ["device", "cy1wcm9k"] {
            assert!(!data.to_string().contains(hidden), "{data}");
        }
        assert_eq!(asked.purpose(MessageKind::Ask), "input");
    }

    #[test]
    fn question_lists_only_what_can_be_answered_or_stopped() {
        let batch = || asking(&["one", "two", "three", "four"]).items;
        assert_eq!(still_open(batch(), at("08:29")).len(), 4);
        assert_eq!(still_open(batch(), at("08:30")).len(), 0);
        let mut settled = batch();
        settled[0].status = ApprovalStatus::Cancelled;
        settled[1].status = ApprovalStatus::Approved;
        settled[2] = Approval { status: ApprovalStatus::Approved, hold_until: Some(at("08:20")), ..settled[2].clone() };
        settled[3] = Approval { execution_started_at: Some(at("08:10")), ..settled[2].clone() };
        let open = |now| still_open(settled.clone(), at(now)).into_iter().map(|item| item.proposal.summary).collect();
        assert_eq!((open("08:10"), open("08:20")), (vec!["three".to_owned()], vec![]));
    }
}
