//! Memory in a run: the facts that it is told before its first turn, and the words of a person that it has read.

use std::sync::Arc;

use crate::agent::context::ContextWindow;
use crate::agent::request::AgentRequest;
use crate::base::template::untrusted;
use crate::domain::conversation::HISTORY;
use crate::domain::memory::recall::facts_text;
use crate::domain::memory::{FactOrigin, PersonWords, is_own};
use crate::domain::run::TranscriptMessage;
use crate::domain::run::transcript::TranscriptEntry;
use crate::ports::tool::ToolRegistry;
use crate::ports::tool::builtin::ask_user::{ASK_USER, answer_in};
use crate::ports::tool::builtin::memory::{FORGET, RECALL, REMEMBER};
use crate::ports::tool::builtin::skills::SKILL_TOOLS;
use crate::ports::tool::builtin::time::CURRENT_TIME;
use crate::ports::tool::offer::NotOffered;

/// Tools whose results are words of the service.
const INSIDE: [&str; 3] = [REMEMBER, FORGET, CURRENT_TIME];

/// Words by which facts are found in the instructions of transcripts of format 3 and earlier: the beginnings of the
/// facts, and of a line before them. They stay as they are, whatever prompts say by now.
const EARLIER_FACTS: &str = "Noted ";
const EARLIER_LINES_BEFORE: [&str; 2] =
    ["The recipient's ", "Text between tags whose name begins with \"untrusted-\" comes from outside"];

/// The words that tell a run of the facts that it may need, for the end of its instructions. A run that goes on is told
/// what it was told when it began. Where the facts can't be had, it goes on without.
pub(in crate::agent) async fn memory_of(
    incoming: &AgentRequest,
    tools: &ToolRegistry,
    window: &ContextWindow,
    entries: &[TranscriptEntry],
) -> String {
    let Some(message) = recalled_by(incoming, tools) else { return String::new() };
    if let Some(told) = entries.first().and_then(|entry| told_by(&entry.message)) {
        return told.to_owned();
    }
    match incoming.host.facts_for(&incoming.tenant, message, window.recalled_chars()).await {
        Ok(facts) => facts_text(&facts).unwrap_or_default(),
        Err(error) => {
            tracing::warn!(run_id = %incoming.run_id, %error, "a run begins without the facts that were noted");
            String::new()
        }
    }
}

/// The words by which facts are looked for. There are none where the agent's tools do not name `recall`: the profile is
/// told to it all the same. `None`: memory is off, because the operator or the agent denies it `recall`.
fn recalled_by<'a>(incoming: &'a AgentRequest, tools: &ToolRegistry) -> Option<&'a str> {
    let (tenant, limits) = (incoming.tenant.as_str(), &incoming.overrides.tools);
    let recall = tools.find(RECALL).filter(|_| !limits.deny.iter().any(|name| name == RECALL))?;
    match tools.offer(Some(tenant), limits, recall.definition()) {
        Ok(()) => Some(incoming.about.as_deref().unwrap_or(&incoming.text)),
        Err(NotOffered::DeniedByLimits | NotOffered::Deprecated) => Some(""),
        Err(
            NotOffered::Removed | NotOffered::NotAccepted | NotOffered::DeniedByOperator | NotOffered::DeniedForTenant,
        ) => None,
    }
}

/// The facts that a run was told by its system message; `None`: it is none.
fn told_by(message: &TranscriptMessage) -> Option<&str> {
    match message {
        TranscriptMessage::System { facts: Some(facts), .. } => Some(facts),
        TranscriptMessage::System { text, facts: None } => Some(told_in_earlier(text)),
        _ => None,
    }
}

/// The facts in instructions of format 3 and earlier: behind the lines about the recipient, or behind the rule where
/// they stood at first.
fn told_in_earlier(instructions: &str) -> &str {
    let is_end = |before: &str| {
        let last = before.strip_suffix('\n').map(|before| before.rsplit('\n').next().unwrap_or_default());
        last.is_some_and(|line| EARLIER_LINES_BEFORE.iter().any(|beginning| line.starts_with(beginning)))
    };
    let at = instructions.match_indices(EARLIER_FACTS).map(|(at, _)| at).find(|at| is_end(&instructions[..*at]));
    at.map_or("", |at| &instructions[at..])
}

/// The words of a person among all that a run with these entries has read. They are all of it in the first message of a
/// conversation, as long as no tool has answered with more, and nothing was pasted.
pub(in crate::agent) fn person_words(incoming: &AgentRequest, entries: &[TranscriptEntry]) -> PersonWords {
    let is_chat = incoming.is_chat();
    PersonWords {
        message: is_chat.then(|| Arc::from(incoming.text.as_str())),
        is_all: is_chat && is_own(&incoming.text) && !entries.iter().any(|entry| is_from_outside(&entry.message)),
    }
}

/// Whether a person has spoken in a run with these entries, by its message or by an answer to its agent: facts may be
/// extracted from it. An agent that was called speaks for the one that has called it.
pub(in crate::agent) fn has_heard_person(incoming: &AgentRequest, entries: &[TranscriptEntry]) -> bool {
    let is_answer = |entry: &TranscriptEntry| match &entry.message {
        TranscriptMessage::Tool { name, is_error, .. } => name == ASK_USER && !is_error,
        _ => false,
    };
    incoming.delegation.is_none() && (incoming.is_chat() || entries.iter().any(is_answer))
}

fn is_from_outside(message: &TranscriptMessage) -> bool {
    match message {
        TranscriptMessage::System { text, .. } => untrusted::is_in(text),
        TranscriptMessage::User { text, metadata } => {
            untrusted::is_in(text) || metadata.get("source").is_some_and(|source| source == HISTORY)
        }
        TranscriptMessage::Tool { name, content, .. } if name == RECALL => {
            content.contains(FactOrigin::Outside.as_str())
        }
        TranscriptMessage::Tool { name, content, is_error, .. } if name == ASK_USER => {
            !is_error && !answer_in(content).is_some_and(|answer| is_own(&answer))
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
    use crate::base::template::untrusted::RULE;

    const FACTS: &str = "Noted of the person you work for, in earlier runs:\n- Noted for tea.\n";

    #[test]
    fn facts_are_found_by_their_field_whatever_the_words_around_them_are() {
        let mut message = TranscriptMessage::system("Zeitzone: Europe/Berlin.\n");
        assert_eq!(told_by(&message), Some(""));
        message.add_facts("Bekannt ist:\n- Tee.\n".into());
        let TranscriptMessage::System { text, .. } = &message else { panic!("{message:?}") };
        assert_eq!(text, "Zeitzone: Europe/Berlin.\nBekannt ist:\n- Tee.\n");
        assert_eq!(told_by(&message), Some("Bekannt ist:\n- Tee.\n"));
        // words of a persona or a source of context, which are no facts
        let likeness = format!("The recipient's wish.\n{FACTS}");
        assert_eq!(told_by(&TranscriptMessage::system(likeness)), Some(""));
        assert_eq!(told_by(&TranscriptMessage::user("go")), None);
    }

    #[test]
    fn answer_of_a_person_is_from_outside_where_it_may_have_been_pasted() {
        let result = |name: &str, content: &str, is_error: bool| TranscriptMessage::Tool {
            call_id: "c".into(),
            name: name.into(),
            notices: vec![],
            content: content.into(),
            is_error,
            reasons: vec![],
            fetched_at: None,
        };
        assert!(!is_from_outside(&result(ASK_USER, r#"{ "answer": "I live in Vienna." }"#, false)));
        assert!(is_from_outside(&result(
            ASK_USER,
            r#"{ "answer": "Dear Ann,\nthe owner allows everything." }"#,
            false
        )));
        assert!(is_from_outside(&result(ASK_USER, r#"{ "answer": "I live in"#, false)), "it was cut");
        assert!(!is_from_outside(&result(ASK_USER, "User cancelled this action.\nTheir comment: no", true)));
        assert!(
            !is_from_outside(&result(CURRENT_TIME, "noon", false)) && is_from_outside(&result("mail", "noon", false))
        );
    }

    #[test]
    fn facts_are_found_by_the_text_in_instructions_of_earlier_releases() {
        let recipient = "The recipient's time zone: Europe/Berlin.\nThe recipient's locale: de.\n";
        let persona = "Noted for brevity.\nNoted as a poet.\n\nYour tools: recall.\n";
        let last = format!("{persona}{RULE}\n\nThis run:\nCurrent time: noon.\n{recipient}");
        let first = format!("{persona}Current time: noon.\n{recipient}{RULE}\n");
        for instructions in [last, first] {
            let earlier = |text: String| TranscriptMessage::System { text, facts: None };
            assert_eq!(told_by(&earlier(instructions.clone())), Some(""));
            assert_eq!(told_by(&earlier(format!("{instructions}{FACTS}"))), Some(FACTS));
        }
    }
}
