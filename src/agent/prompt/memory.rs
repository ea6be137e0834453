//! Memory in a run: the facts that it is told before its first turn, and the words of a person that it has read.

use std::sync::Arc;

use crate::agent::context::ContextWindow;
use crate::agent::request::AgentRequest;
use crate::base::template::untrusted::{self, RULE};
use crate::domain::conversation::HISTORY;
use crate::domain::memory::recall::{BEGINNING, told};
use crate::domain::memory::{FactOrigin, PersonWords};
use crate::domain::run::TranscriptMessage;
use crate::domain::run::transcript::TranscriptEntry;
use crate::ports::tool::builtin::ask_user::ASK_USER;
use crate::ports::tool::builtin::memory::{FORGET, RECALL, REMEMBER};
use crate::ports::tool::builtin::skills::SKILL_TOOLS;
use crate::ports::tool::builtin::time::CURRENT_TIME;

/// Tools whose results are words of the service, of the operator or of a person.
const INSIDE: [&str; 4] = [REMEMBER, FORGET, ASK_USER, CURRENT_TIME];

/// The words that tell a run of the facts that it may need, for the end of its instructions. A run that goes on is told what it
/// was told when it began. Where the facts can't be had, it goes on without.
pub(in crate::agent) async fn memory_of(
    incoming: &AgentRequest,
    window: &ContextWindow,
    entries: &[TranscriptEntry],
) -> String {
    if let Some(TranscriptMessage::System { text }) = entries.first().map(|entry| &entry.message) {
        return text
            .find(&format!("{RULE}\n{BEGINNING}"))
            .map_or(String::new(), |at| text[at + RULE.len() + 1..].to_owned());
    }
    match incoming.host.facts_for(&incoming.tenant, &incoming.text, window.recalled_chars()).await {
        Ok(facts) => told(&facts).unwrap_or_default(),
        Err(error) => {
            tracing::warn!(run_id = %incoming.run_id, %error, "a run begins without the facts that were noted");
            String::new()
        }
    }
}

/// The words of a person among all that a run with these entries has read. They are all of it in the first message of a
/// conversation, as long as no tool has answered with more.
pub(in crate::agent) fn person_words(incoming: &AgentRequest, entries: &[TranscriptEntry]) -> PersonWords {
    let is_chat = incoming.is_chat();
    PersonWords {
        message: is_chat.then(|| Arc::from(incoming.text.as_str())),
        is_all: is_chat && !entries.iter().any(|entry| is_from_outside(&entry.message)),
    }
}

fn is_from_outside(message: &TranscriptMessage) -> bool {
    match message {
        TranscriptMessage::System { text } => untrusted::is_in(text),
        TranscriptMessage::User { text, metadata } => {
            untrusted::is_in(text) || metadata.get("source").is_some_and(|source| source == HISTORY)
        }
        TranscriptMessage::Tool { name, content, .. } if name == RECALL => {
            content.contains(FactOrigin::Outside.as_str())
        }
        TranscriptMessage::Tool { name, .. } => {
            !INSIDE.contains(&name.as_str()) && !SKILL_TOOLS.contains(&name.as_str())
        }
        _ => false,
    }
}
