//! Memory in a run: the facts that it is told before its first turn, and the words of a person that it has read.

use std::sync::Arc;

use crate::agent::context::ContextWindow;
use crate::agent::prompt::RECIPIENT;
use crate::agent::request::AgentRequest;
use crate::base::template::untrusted::{self, RULE};
use crate::domain::conversation::HISTORY;
use crate::domain::memory::recall::{BEGINNING, told};
use crate::domain::memory::{FactOrigin, PersonWords};
use crate::domain::run::TranscriptMessage;
use crate::domain::run::transcript::TranscriptEntry;
use crate::ports::tool::ToolRegistry;
use crate::ports::tool::builtin::ask_user::ASK_USER;
use crate::ports::tool::builtin::memory::{FORGET, RECALL, REMEMBER};
use crate::ports::tool::builtin::skills::SKILL_TOOLS;
use crate::ports::tool::builtin::time::CURRENT_TIME;
use crate::ports::tool::offer::NotOffered;

/// Tools whose results are words of the service, of the operator or of a person.
const INSIDE: [&str; 4] = [REMEMBER, FORGET, ASK_USER, CURRENT_TIME];

/// The words that tell a run of the facts that it may need, for the end of its instructions. A run that goes on is told what it
/// was told when it began. Where the facts can't be had, it goes on without.
pub(in crate::agent) async fn memory_of(
    incoming: &AgentRequest,
    tools: &ToolRegistry,
    window: &ContextWindow,
    entries: &[TranscriptEntry],
) -> String {
    let Some(message) = recalled_by(incoming, tools) else { return String::new() };
    if let Some(TranscriptMessage::System { text }) = entries.first().map(|entry| &entry.message) {
        return told_in(text).to_owned();
    }
    match incoming.host.facts_for(&incoming.tenant, message, window.recalled_chars()).await {
        Ok(facts) => told(&facts).unwrap_or_default(),
        Err(error) => {
            tracing::warn!(run_id = %incoming.run_id, %error, "a run begins without the facts that were noted");
            String::new()
        }
    }
}

/// The message by which facts are looked for. It is empty where the agent's tools do not name `recall`: the profile is told to it all the
/// same. `None`: memory is off, because the operator or the agent denies it `recall`.
fn recalled_by<'a>(incoming: &'a AgentRequest, tools: &ToolRegistry) -> Option<&'a str> {
    let (tenant, limits) = (incoming.tenant.as_str(), &incoming.wishes.tools);
    let recall = tools.find(RECALL).filter(|_| !limits.deny.iter().any(|name| name == RECALL))?;
    match tools.offer(Some(tenant), limits, recall.definition()) {
        Ok(()) => Some(incoming.text.as_str()),
        Err(NotOffered::DeniedByLimits | NotOffered::Deprecated) => Some(""),
        Err(NotOffered::Removed | NotOffered::DeniedByOperator | NotOffered::DeniedForTenant) => None,
    }
}

/// The facts in instructions: behind the lines about the recipient, or behind the rule where an earlier release has stored them.
fn told_in(instructions: &str) -> &str {
    let is_end = |before: &str| {
        let last = before.strip_suffix('\n').map(|before| before.rsplit('\n').next().unwrap_or_default());
        last.is_some_and(|line| line.starts_with(RECIPIENT) || line == RULE)
    };
    let at = instructions.match_indices(BEGINNING).map(|(at, _)| at).find(|at| is_end(&instructions[..*at]));
    at.map_or("", |at| &instructions[at..])
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_are_found_again_in_stored_instructions_of_this_release_and_of_earlier_ones() {
        let facts = "Noted of the person you work for, in earlier runs:\n- Noted for tea.\n";
        let recipient = "The recipient's time zone: Europe/Berlin.\nThe recipient's locale: de.\n";
        let persona = "Noted for brevity.\nNoted as a poet.\n\nYour tools: recall.\n";
        let now = format!("{persona}{RULE}\n\nThis run:\nCurrent time: noon.\n{recipient}");
        let before = format!("{persona}Current time: noon.\n{recipient}{RULE}\n");
        for instructions in [now, before] {
            assert_eq!(told_in(&instructions), "");
            assert_eq!(told_in(&format!("{instructions}{facts}")), facts);
        }
    }
}
