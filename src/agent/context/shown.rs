//! The conversation as a model is shown it: what was said, and less of it where compactions say so.
//!
//! A function of the transcript alone. A run that goes on after a crash or a suspension, wherever, has the same
//! conversation.

use serde_json::{Map, json};

use crate::agent::context::cut::cut_short;
use crate::agent::context::importance::extract;
use crate::agent::context::lasting_notices::{LastingNotice, bounded, lasting_notices_of, lasting_notices_text};
use crate::agent::verify::is_asked_again;
use crate::base::template::untrusted::fenced;
use crate::domain::run::TranscriptMessage;
use crate::domain::run::transcript::{Compaction, CompactionKind};

/// The source of messages that take the place of others.
const SOURCE: &str = "compaction";
/// The source of the message with instructions of skills.
const SKILLS: &str = "skills";
/// The words before a summary.
const SUMMARY: &str = "[Earlier in this conversation] A summary of your turns so far, and the errors among them:\n";
/// The words before what was extracted.
const EXTRACT: &str =
    "[Earlier in this conversation] Your turns so far in short, with the results of your calls as they were:\n";

/// One message of the conversation, and the entry of the transcript from which it comes.
#[derive(Debug, Clone, PartialEq)]
pub struct ShownMessage {
    /// Of what takes the place of several entries, the last one.
    pub seq: i64,
    /// Its words.
    pub content: ShownContent,
}

/// The words of a message.
#[derive(Debug, Clone, PartialEq)]
pub enum ShownContent {
    /// As it was said.
    Said(TranscriptMessage),
    /// Several messages in short, one after the other.
    Extract(Vec<String>),
    /// A summary of several messages, and the errors among them.
    Summary {
        /// The summary.
        text: String,
        /// Errors of calls among them, in words.
        errors: Vec<String>,
    },
    /// Notices on results, and words of a person, that are shown no more. No compaction replaces them.
    LastingNotices(Vec<LastingNotice>),
    /// Instructions of skills whose entries are shown no more. No compaction replaces them.
    Instructions(String),
}

impl ShownMessage {
    /// A message as it was said.
    pub fn verbatim(seq: i64, message: TranscriptMessage) -> ShownMessage {
        ShownMessage { seq, content: ShownContent::Said(message) }
    }

    /// Instructions of skills, which stand before what was said.
    pub fn instructions(text: String) -> ShownMessage {
        ShownMessage { seq: 0, content: ShownContent::Instructions(text) }
    }

    /// Whether it is an instruction.
    pub fn is_system(&self) -> bool {
        matches!(self.content, ShownContent::Said(TranscriptMessage::System { .. }) | ShownContent::Instructions(_))
    }

    /// Whether it is the result of a call.
    pub fn is_result(&self) -> bool {
        matches!(self.content, ShownContent::Said(TranscriptMessage::Tool { .. }))
    }

    /// Whether it is a message of the model.
    pub fn is_answer(&self) -> bool {
        matches!(self.content, ShownContent::Said(TranscriptMessage::Assistant { .. }))
    }

    /// Whether it is what the model has to answer: of a person, or of the service in a person's place.
    pub fn is_question(&self) -> bool {
        match &self.content {
            ShownContent::Said(message) => {
                matches!(message, TranscriptMessage::User { .. }) && !is_asked_again(message)
            }
            ShownContent::Extract(_)
            | ShownContent::Summary { .. }
            | ShownContent::LastingNotices(_)
            | ShownContent::Instructions(_) => false,
        }
    }

    /// Whether it is a summary of others.
    pub fn is_summary(&self) -> bool {
        matches!(self.content, ShownContent::Summary { .. })
    }

    /// Whether it is of notices that hold on.
    pub fn is_lasting_notices(&self) -> bool {
        matches!(self.content, ShownContent::LastingNotices(_))
    }

    /// The errors of calls in it, in words.
    pub fn errors(&self) -> Vec<String> {
        match &self.content {
            ShownContent::Said(message @ TranscriptMessage::Tool { is_error: true, .. }) => {
                extract(message).into_iter().collect()
            }
            ShownContent::Summary { errors, .. } => errors.clone(),
            ShownContent::Said(_)
            | ShownContent::Extract(_)
            | ShownContent::LastingNotices(_)
            | ShownContent::Instructions(_) => Vec::new(),
        }
    }

    /// The notices in it that hold on.
    fn lasting_notices(&self) -> Vec<LastingNotice> {
        match &self.content {
            ShownContent::Said(message) => lasting_notices_of(message),
            ShownContent::LastingNotices(notices) => notices.clone(),
            ShownContent::Extract(_) | ShownContent::Summary { .. } | ShownContent::Instructions(_) => Vec::new(),
        }
    }

    /// The message as it is sent.
    pub fn into_message(self) -> TranscriptMessage {
        match self.content {
            ShownContent::Said(message) => message,
            ShownContent::Extract(parts) => in_place(EXTRACT, &parts.join("\n")),
            ShownContent::Summary { text, errors } => in_place(SUMMARY, &[vec![text], errors].concat().join("\n")),
            ShownContent::LastingNotices(notices) => of_source(SOURCE, lasting_notices_text(&notices)),
            ShownContent::Instructions(text) => of_source(SKILLS, text),
        }
    }

    /// The message with long results cut.
    fn cut(mut self) -> ShownMessage {
        match &mut self.content {
            ShownContent::Said(TranscriptMessage::Tool { content, .. }) => cut_in_place(content),
            ShownContent::Extract(parts) => parts.iter_mut().for_each(cut_in_place),
            ShownContent::Said(_)
            | ShownContent::Summary { .. }
            | ShownContent::LastingNotices(_)
            | ShownContent::Instructions(_) => {}
        }
        self
    }

    /// Its words, where it is shown no more by itself.
    pub fn parts(&self) -> Vec<String> {
        match &self.content {
            ShownContent::Said(message) => extract(message).into_iter().collect(),
            ShownContent::Extract(parts) => parts.clone(),
            ShownContent::Summary { text, errors } => std::iter::once(text).chain(errors).cloned().collect(),
            ShownContent::LastingNotices(_) | ShownContent::Instructions(_) => Vec::new(),
        }
    }
}

/// The conversation behind a compaction.
pub fn compacted(shown: Vec<ShownMessage>, compaction: &Compaction) -> Vec<ShownMessage> {
    let Compaction { from, to, pinned, by } = compaction;
    let is_in = |message: &ShownMessage| (*from..=*to).contains(&message.seq) && !message.is_system();
    if *by == CompactionKind::Cut {
        return shown.into_iter().map(|message| if is_in(&message) { message.cut() } else { message }).collect();
    }
    // there is one message of notices: those of before go into the new one
    let is_earlier = |message: &ShownMessage| message.is_lasting_notices() && message.seq <= *to;
    let (earlier, shown): (Vec<_>, Vec<_>) = shown.into_iter().partition(is_earlier);
    let at = shown.iter().position(is_in).unwrap_or(shown.len());
    let (inside, mut kept): (Vec<_>, Vec<_>) = shown.into_iter().partition(is_in);
    let (put_back, replaced): (Vec<_>, Vec<_>) = inside.into_iter().partition(|message| pinned.contains(&message.seq));
    let content = match by {
        CompactionKind::Dropped | CompactionKind::Cut => None,
        CompactionKind::Extracted => {
            Some(ShownContent::Extract(replaced.iter().flat_map(ShownMessage::parts).collect()))
        }
        CompactionKind::Summarised { summary, errors } => {
            Some(ShownContent::Summary { text: summary.clone(), errors: errors.clone() })
        }
    };
    let notices = bounded(earlier.iter().chain(&replaced).flat_map(ShownMessage::lasting_notices).collect());
    let notices = (!notices.is_empty()).then_some(ShownContent::LastingNotices(notices));
    let in_their_place = notices.into_iter().chain(content).map(|content| ShownMessage { seq: *to, content });
    kept.splice(at..at, put_back.into_iter().chain(in_their_place));
    kept
}

fn cut_in_place(text: &mut String) {
    if let Some(short) = cut_short(text) {
        *text = short;
    }
}

/// The message that stands in the place of others.
fn in_place(words: &str, text: &str) -> TranscriptMessage {
    of_source(SOURCE, words.to_owned() + &fenced("conversation", text))
}

fn of_source(source: &str, text: String) -> TranscriptMessage {
    TranscriptMessage::User { text, metadata: Map::from_iter([("source".to_owned(), json!(source))]) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::calls::notice::data_file_notice;
    use crate::domain::run::ResultNotice;

    fn result(seq: i64, notices: Vec<ResultNotice>, is_error: bool) -> ShownMessage {
        let message = TranscriptMessage::Tool {
            call_id: seq.to_string(),
            name: "look".into(),
            notices,
            content: format!("result {seq}"),
            is_error,
            reasons: vec![],
            fetched_at: None,
        };
        ShownMessage::verbatim(seq, message)
    }

    fn file(number: u128) -> ResultNotice {
        data_file_notice(uuid::Uuid::from_u128(number), 7, "text/plain")
    }

    fn texts(shown: &[ShownMessage]) -> Vec<String> {
        let text = |message: &ShownMessage| match message.clone().into_message() {
            TranscriptMessage::User { text, .. } => text,
            TranscriptMessage::Tool { content, .. } => content,
            other => panic!("{other:?}"),
        };
        shown.iter().map(text).collect()
    }

    #[test]
    fn references_of_results_that_are_shown_no_more_are_put_back_once() {
        let shown = vec![
            ShownMessage::verbatim(0, TranscriptMessage::user("question")),
            result(1, vec![file(1)], false),
            result(2, vec![ResultNotice::other("[Data file none.\n\n"), file(2)], false),
            result(3, vec![file(3)], false),
        ];
        let summary = || CompactionKind::Summarised { summary: "s".into(), errors: vec![] };
        let compaction = |from, to, by| Compaction { from, to, pinned: vec![], by };
        let steps = [(1, 1, CompactionKind::Extracted), (1, 2, summary()), (3, 3, CompactionKind::Dropped)];
        let shown = steps.into_iter().fold(shown, |shown, (from, to, by)| compacted(shown, &compaction(from, to, by)));
        let [question, summary, notices] = &texts(&shown)[..] else { panic!("{shown:?}") };
        assert!(question == "question" && summary.starts_with(SUMMARY), "{summary}");
        let lines: Vec<&str> = notices.lines().skip(1).collect();
        let expected = [1, 2, 3].map(|number| format!("- look: {}", file(number).text.trim_end()));
        assert_eq!(lines, expected, "all of them, and no other notice");
    }

    #[test]
    fn summary_of_a_summary_has_the_errors_of_both() {
        let by = CompactionKind::Summarised { summary: "first".into(), errors: vec!["Error of look: early".into()] };
        let shown = compacted(vec![result(1, vec![], false)], &Compaction { from: 1, to: 1, pinned: vec![], by });
        let errors: Vec<String> =
            [&shown[..], &[result(2, vec![], true)]].concat().iter().flat_map(ShownMessage::errors).collect();
        assert_eq!(errors, ["Error of look: early", "Error of look: result 2"]);
        assert!(texts(&shown)[0].contains("first\nError of look: early"), "{:?}", texts(&shown));
    }
}
