//! The room of a page: how much it shows of its questions, and how much their forms hold.
//!
//! A person agrees to what they can see. So a question is shown whole; where there is no room for that, it is shown by
//! its beginning and can only be rejected here. The open ones have room first.

use std::io::{self, Write};
use std::sync::Arc;

use serde_json::Value;

use crate::base::unicode_safety::is_hidden;
use crate::domain::approval::{Approval, ApprovalStatus, Proposal, ServerQuestion};
use crate::http::pages::approve::form::{FormField, fields, flatten_arguments};
use crate::http::pages::approve::kind::CallKind;
use crate::ports::channel::templates::phrases::Phrases;
use crate::store::BatchQuestion;

/// Bytes that a page shows of all of its questions.
const SHOWN_BYTES: usize = 262_144;
/// Bytes of all forms of a page besides the values in them: names, descriptions, choices and markup.
const FORM_BYTES: usize = 1_048_576;
/// Bytes of markup around a value that is shown, and around a field, roughly.
const ROW: usize = 64;
const FIELD: usize = 512;
/// Characters that are shown of each text of a question that is not whole; the store leaves as many.
pub(super) const BEGINNING: usize = 1_000;

/// A question as a page has room for it.
#[derive(Debug, Clone)]
pub struct PageQuestion {
    /// The question, or the beginnings of its texts.
    pub approval: Arc<Approval>,
    /// Bytes as JSON of its arguments, where they are not whole.
    pub left_out: Option<u64>,
    /// There is room for the fields in which its arguments are changed or given.
    pub has_fields: bool,
}

impl PageQuestion {
    /// A question for which there is room.
    pub fn whole(approval: Approval) -> PageQuestion {
        PageQuestion { approval: Arc::new(approval), left_out: None, has_fields: true }
    }

    /// The question in the language of its reader, where it asks for fields.
    pub fn in_language_of(mut self, words: &Phrases) -> PageQuestion {
        if let Some((summary, description)) = words.lacks(&self.approval.proposal) {
            let proposal = &mut Arc::make_mut(&mut self.approval).proposal;
            (proposal.summary, proposal.description) = (summary, description);
            if self.left_out.is_some() {
                cut_texts(proposal);
            }
        }
        self
    }

    fn is_open(&self) -> bool {
        self.approval.status == ApprovalStatus::Pending
    }

    /// Takes the room that the question needs, or leaves the beginnings of its texts.
    fn take(&mut self, shown: &mut ByteRoom, forms: &mut ByteRoom) {
        let is_whole = self.left_out.is_none() && shown.reserve(|room| room.question(&self.approval));
        let is_open = self.is_open();
        let proposal = &self.approval.proposal;
        self.has_fields = is_whole && is_open && forms.reserve(|room| room.fields(&fields(proposal)));
        // nobody could give what it asks for
        let is_unanswerable = is_open && proposal.is_input() && !self.has_fields;
        if self.left_out.is_none() && (!is_whole || is_unanswerable) {
            self.trim();
        }
    }

    fn trim(&mut self) {
        let approval = Arc::make_mut(&mut self.approval);
        self.left_out = Some(approval.arguments().to_string().len() as u64);
        approval.modifications = approval.modifications.as_ref().map(beginning);
        let proposal = &mut approval.proposal;
        proposal.arguments = beginning(&proposal.arguments);
        (proposal.parameters, proposal.precheck) = (Value::Null, None);
        cut_texts(proposal);
    }
}

impl From<BatchQuestion> for PageQuestion {
    fn from(read: BatchQuestion) -> PageQuestion {
        let left_out = read.left_out.map(|bytes| bytes.max(0) as u64);
        let mut approval = read.approval;
        if left_out.is_some() {
            cut_texts(&mut approval.proposal);
        }
        PageQuestion { left_out, ..PageQuestion::whole(approval) }
    }
}

/// Leaves the beginnings of the texts of a question that is not whole. Of what a server asks, the first part is left.
fn cut_texts(proposal: &mut Proposal) {
    let parts = proposal.server.as_mut().map(|server| &mut server.parts);
    let first = parts.and_then(|parts| {
        parts.truncate(1);
        parts.first_mut()
    });
    let message = first.map(|part| &mut part.message);
    for text in [&mut proposal.summary, &mut proposal.description].into_iter().chain(message) {
        let end = text.char_indices().nth(BEGINNING).map_or(text.len(), |(end, _)| end);
        text.truncate(end);
    }
}

/// The beginning of the text of arguments, in their place.
fn beginning(arguments: &Value) -> Value {
    Value::String(arguments.to_string().chars().take(BEGINNING).collect())
}

/// The questions of a page in their order, each with as much of it as there is room for.
pub fn fit(questions: &[PageQuestion]) -> Vec<PageQuestion> {
    let (mut shown, mut forms) = (ByteRoom(SHOWN_BYTES), ByteRoom(FORM_BYTES));
    let mut fitted = questions.to_vec();
    for is_open in [true, false] {
        for question in fitted.iter_mut().filter(|question| question.is_open() == is_open) {
            question.take(&mut shown, &mut forms);
        }
    }
    fitted
}

/// The questions of a page with their digests, in order: what an answer to the page is about.
pub fn digests(questions: &[PageQuestion]) -> String {
    questions.iter().map(|question| format!("|{}:{}", question.approval.id, question.approval.digest)).collect()
}

/// Bytes for which there is room.
struct ByteRoom(usize);

impl ByteRoom {
    /// Takes what `content` takes, all of it or nothing.
    fn reserve(&mut self, content: impl FnOnce(&mut ByteRoom) -> Option<()>) -> bool {
        let mut left = ByteRoom(self.0);
        let fits = content(&mut left).is_some();
        if fits {
            *self = left;
        }
        fits
    }

    fn take(&mut self, bytes: usize) -> Option<()> {
        self.0 = self.0.checked_sub(bytes)?;
        Some(())
    }

    fn question(&mut self, approval: &Approval) -> Option<()> {
        let proposal = &approval.proposal;
        self.text(&proposal.summary)?;
        self.text(&proposal.description)?;
        proposal.server.as_ref().map_or(Some(()), |server| self.server(server))?;
        self.arguments(&proposal.arguments)?;
        approval.modifications.as_ref().map_or(Some(()), |decided| self.arguments(decided))?;
        proposal.precheck.as_ref().map_or(Some(()), |found| self.value(found))
    }

    /// The question of a server, in its words.
    fn server(&mut self, server: &ServerQuestion) -> Option<()> {
        for part in &server.parts {
            self.take(ROW)?;
            self.text(&part.message)?;
        }
        for (url, host) in server.links() {
            // it is shown, and is where the link leads
            self.take(FIELD + 2 * url.len() + host.len())?;
        }
        Some(())
    }

    /// A text. A form sends the end of a line as two characters, and a text with hidden ones as JSON, in which they and
    /// those that JSON uses itself are escaped.
    fn text(&mut self, text: &str) -> Option<()> {
        let is_json = text.chars().any(is_hidden);
        let more = |c: char| match c {
            '\n' => 1,
            '"' | '\\' if is_json => 1,
            c if is_json && is_hidden(c) => 2,
            _ => 0,
        };
        self.take(text.len() + text.chars().map(more).sum::<usize>())
    }

    fn value(&mut self, value: &Value) -> Option<()> {
        match value {
            Value::String(text) => self.text(text),
            value => serde_json::to_writer_pretty(self, value).ok(),
        }
    }

    fn arguments(&mut self, arguments: &Value) -> Option<()> {
        let Some(fields) = arguments.as_object() else { return self.value(arguments) };
        // no name of much that has no room is made
        serde_json::to_writer(ByteRoom(self.0), arguments).ok()?;
        for (name, value) in flatten_arguments(fields) {
            self.take(ROW + name.len())?;
            self.value(value)?;
        }
        Some(())
    }

    fn fields(&mut self, fields: &[FormField]) -> Option<()> {
        for field in fields {
            let choices: usize = match &field.kind {
                CallKind::OneOf(words) => words.iter().map(|word| ROW + 2 * word.len()).sum(),
                CallKind::Choice(choices) | CallKind::Several(choices) => {
                    choices.iter().map(|(value, title)| 2 * ROW + value.len() + title.len()).sum()
                }
                _ => 0,
            };
            let description = field.description.as_ref().map_or(0, String::len);
            self.take(FIELD + field.label().len() + description + choices)?;
        }
        Some(())
    }
}

impl Write for ByteRoom {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let lines = bytes.iter().filter(|byte| **byte == b'\n').count();
        let taken = self.take(bytes.len() + lines);
        taken.map(|()| bytes.len()).ok_or_else(|| io::Error::other("there is no room"))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use serde_json::{Map, json};
    use uuid::Uuid;

    use super::*;
    use crate::domain::approval::{ProposalIdentity, QuestionKind};
    use crate::http::pages::approve::fixture::proposal;

    fn question(parameters: Value, arguments: Value) -> PageQuestion {
        let of = ProposalIdentity { tenant: "ann", run_id: Uuid::nil(), turn: 0, call_id: "c" };
        let ids = (Uuid::nil(), Uuid::nil());
        PageQuestion::whole(Approval::asked(ids, of, None, proposal(parameters, arguments), DateTime::UNIX_EPOCH))
    }

    /// A question of which a page shows so many bytes.
    fn of_bytes(bytes: usize) -> PageQuestion {
        question(Value::Null, json!({ "a": "x".repeat(bytes - ROW - 1) }))
    }

    fn settled(mut question: PageQuestion) -> PageQuestion {
        Arc::make_mut(&mut question.approval).status = ApprovalStatus::Approved;
        question
    }

    fn are_whole(questions: &[PageQuestion]) -> Vec<bool> {
        fit(questions).iter().map(|question| question.left_out.is_none()).collect()
    }

    #[test]
    fn question_is_shown_whole_at_the_bound_and_by_its_beginning_one_byte_beyond_it() {
        assert_eq!(are_whole(&[of_bytes(SHOWN_BYTES)]), [true]);
        let beyond = of_bytes(SHOWN_BYTES + 1);
        let fitted = fit(std::slice::from_ref(&beyond));
        let length = beyond.approval.proposal.arguments.to_string().len();
        assert_eq!((fitted[0].left_out, fitted[0].has_fields), (Some(length as u64), false));
        let shown = fitted[0].approval.proposal.arguments.as_str().unwrap();
        assert_eq!((shown.len(), &shown[..8]), (BEGINNING, "{\"a\":\"xx"));
        assert_eq!(fitted[0].approval.digest, beyond.approval.digest);
        assert_eq!(beyond.approval.proposal.arguments["a"].as_str().unwrap().len(), SHOWN_BYTES - ROW, "as it was");
    }

    #[test]
    fn open_questions_have_room_first_and_each_that_fits_is_whole() {
        let half = SHOWN_BYTES / 2;
        assert_eq!(are_whole(&[of_bytes(half), of_bytes(half)]), [true, true]);
        assert_eq!(are_whole(&[of_bytes(half), of_bytes(half + 1), of_bytes(half)]), [true, false, true]);
        assert_eq!(are_whole(&[settled(of_bytes(half)), of_bytes(half), of_bytes(half)]), [false, true, true]);
        let read = BatchQuestion { approval: (*of_bytes(100).approval).clone(), left_out: Some(7) };
        let fitted = fit(&[PageQuestion::from(read)]);
        assert_eq!((fitted[0].left_out, fitted[0].has_fields), (Some(7), false));
    }

    #[test]
    fn lines_values_and_changes_take_room_by_what_is_shown_of_them() {
        let left = |question: &PageQuestion| {
            let mut room = ByteRoom(10_000);
            room.question(&question.approval).map(|()| 10_000 - room.0)
        };
        assert_eq!(left(&question(Value::Null, json!({}))), Some(0));
        assert_eq!(
            left(&question(Value::Null, json!({ "a": "x\ny", "b": { "c": "z" } }))),
            Some(2 * ROW + 1 + 4 + 7 + 1)
        );
        assert_eq!(left(&question(Value::Null, json!({ "a": "\"" }))), Some(ROW + 1 + 1));
        let hidden = json!({ "a": "\u{7}\"\u{ad}" });
        assert_eq!(left(&question(Value::Null, hidden)), Some(ROW + 1 + 3 + 2 + 4), "it is sent as JSON");
        // `[`, an element on a line of its own, `]`
        assert_eq!(left(&question(Value::Null, json!({ "a": [1] }))), Some(ROW + 1 + "[\n  1\n]".len() + 2));
        let nested = (0..100).fold(json!(vec![1; 200]), |inside, _| json!([inside]));
        assert_eq!(left(&question(Value::Null, nested)), None, "what is indented takes more than it is");
        let mut edited = question(Value::Null, json!({ "a": "x" }));
        Arc::make_mut(&mut edited.approval).modifications = Some(json!({ "a": "yy" }));
        Arc::make_mut(&mut edited.approval).proposal.precheck = Some(json!("found"));
        assert_eq!(left(&edited), Some((ROW + 2) + (ROW + 3) + 5));
    }

    #[test]
    fn words_and_pages_of_a_server_take_room_and_of_one_without_room_the_first_is_left() {
        let of_server = |message: &str| {
            let mut asked = question(Value::Null, json!({}));
            let page = json!({ "key": "b", "message": "y", "mode": "url", "url": "https://b.org/", "host": "b.org" });
            let form = json!({ "key": "a", "message": message, "mode": "form", "fields": [] });
            let server = json!({
                "server": "github", "parts": [form, page], "continuation": { "kind": "continue", "round": 1 },
            });
            let proposal = &mut Arc::make_mut(&mut asked.approval).proposal;
            proposal.server = Some(serde_json::from_value(server).unwrap());
            proposal.kind = QuestionKind::Input;
            asked
        };
        let mut room = ByteRoom(10_000);
        assert_eq!(room.question(&of_server("xyz").approval), Some(()));
        assert_eq!(10_000 - room.0, (ROW + 3) + (ROW + 1) + (FIELD + 2 * 14 + 5));
        let fitted = fit(&[of_server(&"x".repeat(SHOWN_BYTES))]).remove(0);
        let parts = &fitted.approval.proposal.server.as_ref().unwrap().parts;
        assert_eq!((fitted.left_out.is_some(), parts.len(), parts[0].message.len()), (true, 1, BEGINNING));
    }

    #[test]
    fn form_has_as_many_bytes_as_it_may_and_a_question_for_input_needs_one() {
        let of_fields = |bytes: usize| {
            let names = Map::from_iter([("a".to_owned(), json!({ "description": "x".repeat(bytes - FIELD - 1) }))]);
            question(json!({ "type": "object", "properties": names }), json!({}))
        };
        let fitted = |question: PageQuestion| {
            let fitted = fit(&[question]).remove(0);
            (fitted.has_fields, fitted.left_out.is_none())
        };
        assert_eq!(fitted(of_fields(FORM_BYTES)), (true, true));
        assert_eq!(fitted(of_fields(FORM_BYTES + 1)), (false, true), "it is approved as it is, or rejected");
        let input = |mut question: PageQuestion| {
            Arc::make_mut(&mut question.approval).proposal.kind = QuestionKind::Input;
            question
        };
        assert_eq!(fitted(input(of_fields(FORM_BYTES))), (true, true));
        assert_eq!(fitted(input(of_fields(FORM_BYTES + 1))), (false, false));
        assert_eq!(fitted(settled(of_fields(1_000))), (false, true), "nothing is changed in it any more");
    }
}
