//! Memory in a run: the facts that it is told before its first turn, and whether those that it notes are a person's word.

use crate::agent::context::ContextWindow;
use crate::agent::request::{AgentRequest, CHAT};
use crate::base::template::untrusted;
use crate::domain::conversation::HAS_OUTSIDE_TEXT;
use crate::domain::memory::FactOrigin;
use crate::domain::memory::recall::told;
use crate::domain::run::TranscriptMessage;
use crate::domain::run::transcript::TranscriptEntry;
use crate::ports::tool::builtin::ask_user::ASK_USER;
use crate::ports::tool::builtin::memory::{FORGET, REMEMBER};
use crate::ports::tool::builtin::skills::SKILL_TOOLS;
use crate::ports::tool::builtin::time::CURRENT_TIME;

/// Tools whose results are words of the service, of the operator or of a person.
const INSIDE: [&str; 4] = [REMEMBER, FORGET, ASK_USER, CURRENT_TIME];

/// The words that tell a run of the facts that it may need. Where they can't be had, it goes on without.
pub(in crate::agent) async fn recalled(incoming: &AgentRequest, window: &ContextWindow) -> Option<String> {
    match incoming.host.facts_for(&incoming.tenant, &incoming.text, window.recalled_chars()).await {
        Ok(facts) => told(&facts),
        Err(error) => {
            tracing::warn!(run_id = %incoming.run_id, %error, "a run begins without the facts that were noted");
            None
        }
    }
}

/// Whether a run with these instructions and entries has read nothing but words of persons: those of a chat, and of its earlier
/// messages, if no tool and no event had a part in them.
pub(in crate::agent) fn origin(incoming: &AgentRequest, system: &str, entries: &[TranscriptEntry]) -> FactOrigin {
    let is_chat = incoming.delegation.is_none() && incoming.asking.as_ref().is_some_and(|asking| asking.source == CHAT);
    match is_chat && !untrusted::is_in(system) && !entries.iter().any(|entry| is_from_outside(&entry.message)) {
        true => FactOrigin::Person,
        false => FactOrigin::Outside,
    }
}

fn is_from_outside(message: &TranscriptMessage) -> bool {
    match message {
        TranscriptMessage::User { text, metadata } => {
            untrusted::is_in(text) || metadata.get(HAS_OUTSIDE_TEXT).is_some_and(|has| has == true)
        }
        TranscriptMessage::Tool { name, .. } => {
            !INSIDE.contains(&name.as_str()) && !SKILL_TOOLS.contains(&name.as_str())
        }
        _ => false,
    }
}
