//! The conversation as a model is shown it: what was said, and less of it where compactions say so.
//!
//! A function of the transcript alone. A run that goes on after a crash or a suspension, wherever, has the same conversation.

use serde_json::{Map, json};

use crate::agent::context::cut::cut_short;
use crate::agent::context::importance::extract;
use crate::agent::verify::is_asked_again;
use crate::base::template::untrusted::fenced;
use crate::domain::run::TranscriptMessage;
use crate::domain::run::transcript::{Compaction, CompactionKind};

/// The source of messages that take the place of others.
const SOURCE: &str = "compaction";
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
    /// A summary of several messages.
    Summary(String),
}

impl ShownMessage {
    /// A message as it was said.
    pub fn said(seq: i64, message: TranscriptMessage) -> ShownMessage {
        ShownMessage { seq, content: ShownContent::Said(message) }
    }

    /// Whether it is an instruction.
    pub fn is_system(&self) -> bool {
        matches!(self.content, ShownContent::Said(TranscriptMessage::System { .. }))
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
            ShownContent::Extract(_) | ShownContent::Summary(_) => false,
        }
    }

    /// Whether it is a summary of others.
    pub fn is_summary(&self) -> bool {
        matches!(self.content, ShownContent::Summary(_))
    }

    /// The error of a call, in words.
    pub fn error(&self) -> Option<String> {
        match &self.content {
            ShownContent::Said(message @ TranscriptMessage::Tool { is_error: true, .. }) => extract(message),
            _ => None,
        }
    }

    /// The message as it is sent.
    pub fn into_message(self) -> TranscriptMessage {
        match self.content {
            ShownContent::Said(message) => message,
            ShownContent::Extract(parts) => in_place(EXTRACT, &parts.join("\n")),
            ShownContent::Summary(text) => in_place(SUMMARY, &text),
        }
    }

    /// The message with long results cut.
    fn cut(mut self) -> ShownMessage {
        match &mut self.content {
            ShownContent::Said(TranscriptMessage::Tool { content, .. }) => cut_in_place(content),
            ShownContent::Extract(parts) => parts.iter_mut().for_each(cut_in_place),
            ShownContent::Said(_) | ShownContent::Summary(_) => {}
        }
        self
    }

    /// Its words, where it is shown no more by itself.
    pub fn parts(&self) -> Vec<String> {
        match &self.content {
            ShownContent::Said(message) => extract(message).into_iter().collect(),
            ShownContent::Extract(parts) => parts.clone(),
            ShownContent::Summary(text) => vec![text.clone()],
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
    let at = shown.iter().position(is_in).unwrap_or(shown.len());
    let (inside, mut kept): (Vec<_>, Vec<_>) = shown.into_iter().partition(is_in);
    let (put_back, replaced): (Vec<_>, Vec<_>) = inside.into_iter().partition(|message| pinned.contains(&message.seq));
    let content = match by {
        CompactionKind::Dropped | CompactionKind::Cut => None,
        CompactionKind::Extracted => {
            Some(ShownContent::Extract(replaced.iter().flat_map(ShownMessage::parts).collect()))
        }
        CompactionKind::Summarised { summary } => Some(ShownContent::Summary(summary.clone())),
    };
    let in_their_place = content.map(|content| ShownMessage { seq: *to, content });
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
    let metadata = Map::from_iter([("source".to_owned(), json!(SOURCE))]);
    TranscriptMessage::User { text: words.to_owned() + &fenced("conversation", text), metadata }
}
