//! The skills that are active in a conversation: a function of its transcript, so that a run that goes on elsewhere has
//! the same. Their instructions stay in the conversation whatever is shown no more; their limits hold until they are
//! left.

use std::borrow::Cow;
use std::sync::Arc;

use crate::agent::context::shown::ShownMessage;
use crate::domain::run::ResultNotice;
use crate::domain::run::transcript::{ToolCall, TranscriptEntry, TranscriptMessage};
use crate::ports::skill::{SkillSet, unknown_skill};
use crate::ports::tool::builtin::skills::{LEAVE_SKILL, READ_SKILL_FILE, SKILL_TOOLS, USE_SKILL};
use crate::ports::tool::{ToolError, ToolFailure};

/// Skills that are active at once, at most.
pub const MOST_ACTIVE: usize = 3;
/// Characters of the catalogue; other skills are counted.
const CATALOGUE: usize = 16_000;

/// The skills that an agent may use.
#[derive(Clone, Default)]
pub struct SkillScope {
    set: Arc<SkillSet>,
    /// The only ones; `None`: all.
    only: Option<Vec<String>>,
}

/// A skill that is active.
struct ActiveSkill<'a> {
    name: &'a str,
    /// The entry that has its instructions.
    seq: i64,
    instructions: Cow<'a, str>,
}

/// The active skills, the first one first, and what they ask for.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SkillStack {
    names: Vec<String>,
    /// The only tools that may be called; `None`: all.
    tools: Option<Vec<String>>,
    /// The model that answers.
    pub model: Option<String>,
    /// All that may be used.
    known: Vec<String>,
}

impl SkillScope {
    /// These skills, or those of them that are named.
    pub fn new(set: Arc<SkillSet>, only: Option<Vec<String>>) -> SkillScope {
        SkillScope { set, only }
    }

    fn names(&self) -> impl Iterator<Item = &str> {
        let may = |name: &&str| self.only.as_ref().is_none_or(|only| only.iter().any(|one| one == name));
        self.set.names().filter(may)
    }

    /// The skills as the instructions of an agent name them; `None`: there are none.
    pub fn catalogue(&self) -> Option<String> {
        let (mut text, mut more) = (String::new(), 0);
        for skill in self.names().filter_map(|name| self.set.find(name)) {
            let line = format!("- {}: {}\n", skill.document.name, skill.document.description.replace('\n', " "));
            match text.chars().count() + line.chars().count() <= CATALOGUE {
                true => text += &line,
                false => more += 1,
            }
        }
        if more > 0 {
            text += &format!("- … and {more} more\n");
        }
        (!text.is_empty()).then(|| format!("Your skills, whose instructions {USE_SKILL} shows:\n{text}"))
    }

    /// The skills that are active behind these entries.
    pub fn stack(&self, entries: &[TranscriptEntry]) -> SkillStack {
        let mut stack = SkillStack { known: self.names().map(str::to_owned).collect(), ..SkillStack::default() };
        for active in active(entries) {
            match self.set.find(active.name).map(|skill| &skill.document) {
                Some(document) => {
                    stack.tools = match (stack.tools.take(), &document.allowed_tools) {
                        (Some(before), Some(own)) => {
                            Some(before.into_iter().filter(|tool| own.contains(tool)).collect())
                        }
                        (before, own) => before.or_else(|| own.clone()),
                    };
                    stack.model = document.model().map(str::to_owned).or(stack.model.take());
                }
                // what it allowed can't be read any more: nothing, until it is left
                None => stack.tools = Some(Vec::new()),
            }
            stack.names.push(active.name.to_owned());
        }
        stack
    }
}

impl SkillStack {
    /// Whether a tool may be called while these are active.
    pub fn allows(&self, tool: &str) -> bool {
        SKILL_TOOLS.contains(&tool) || self.tools.as_ref().is_none_or(|tools| tools.iter().any(|name| name == tool))
    }

    /// Refuses a call that the active skills do not allow, and a skill that can't be activated. `has_one_change`: no
    /// other call of the turn changes which skills are active.
    pub fn admit(&self, call: &ToolCall, has_one_change: bool) -> Result<(), ToolError> {
        if !self.allows(&call.name) {
            let skills = self.names.join(" → ");
            let tools = match self.tools.as_deref().unwrap_or_default() {
                [] => "no tools but those for skills".to_owned(),
                tools => format!("only: {}", tools.join(", ")),
            };
            let message = format!(
                "the active skills ({skills}) allow {tools}; leave one with {LEAVE_SKILL} if you are done with it"
            );
            return Err(ToolError::for_model(ToolFailure::PermissionDenied, "skill_limits", message));
        }
        let refuse =
            |message: String| Err(ToolError::for_model(ToolFailure::ValidationError, "skill_refused", message));
        let unknown = |name: &str| refuse(unknown_skill(name, self.known.iter().map(String::as_str)));
        if call.name == READ_SKILL_FILE {
            let of = call.args["skill"].as_str().unwrap_or_default();
            return if self.known.iter().any(|known| known == of) { Ok(()) } else { unknown(of) };
        }
        if !changes_stack(call) {
            return Ok(());
        }
        if !has_one_change {
            return refuse("activate or leave one skill a turn".into());
        }
        let name = call.args["name"].as_str().unwrap_or_default();
        let active = self.names.iter().position(|active| active == name);
        match (call.name == USE_SKILL, active) {
            (true, Some(last)) if last + 1 == self.names.len() => {
                refuse(format!("the skill {name} is active already, and its instructions stand above"))
            }
            (true, Some(first)) => {
                let way = self.names[first..].iter().map(String::as_str).chain([name]).collect::<Vec<_>>().join(" → ");
                refuse(format!("skills use each other in a circle: {way}"))
            }
            (true, None) if !self.known.iter().any(|known| known == name) => unknown(name),
            (true, None) if self.names.len() >= MOST_ACTIVE => refuse(format!(
                "at most {MOST_ACTIVE} skills are active at once: {}; leave one with {LEAVE_SKILL}",
                self.names.join(" → ")
            )),
            (true, None) | (false, Some(_)) => Ok(()),
            (false, None) => refuse(format!("the skill `{name}` is not active")),
        }
    }
}

/// Whether a call activates or ends a skill.
pub fn changes_stack(call: &ToolCall) -> bool {
    call.name == USE_SKILL || call.name == LEAVE_SKILL
}

/// The skills that are active behind these entries, the first one first. One that is left takes those with it that came
/// after.
fn active(entries: &[TranscriptEntry]) -> Vec<ActiveSkill<'_>> {
    let mut active: Vec<ActiveSkill> = Vec::new();
    for (index, entry) in entries.iter().enumerate().filter(|(_, entry)| entry.turn > 0) {
        let TranscriptMessage::Tool { call_id, name: tool, notices, is_error: false, .. } = &entry.message else {
            continue;
        };
        if tool != USE_SKILL && tool != LEAVE_SKILL {
            continue;
        }
        let Some(name) = called_skill(&entries[..index], entry.turn, call_id) else { continue };
        match tool == USE_SKILL {
            true => active.push(ActiveSkill { name, seq: entry.seq, instructions: ResultNotice::joined(notices) }),
            false => {
                let left = active.iter().position(|skill| skill.name == name).unwrap_or(active.len());
                active.truncate(left);
            }
        }
    }
    active
}

/// The skill that a call names, which stands close before its result.
fn called_skill<'a>(before: &'a [TranscriptEntry], turn: i64, call_id: &str) -> Option<&'a str> {
    before.iter().rev().take_while(|entry| entry.turn == turn).find_map(|entry| match &entry.message {
        TranscriptMessage::Assistant { tool_calls, .. } => {
            tool_calls.iter().find(|call| call.id == call_id)?.args["name"].as_str()
        }
        _ => None,
    })
}

/// The instructions of active skills whose entries are shown no more; `None`: all are shown.
pub fn hidden_instructions(entries: &[TranscriptEntry], shown: &[ShownMessage]) -> Option<String> {
    let is_shown = |skill: &ActiveSkill| shown.iter().any(|message| message.is_result() && message.seq == skill.seq);
    let hidden: Vec<String> = active(entries)
        .into_iter()
        .filter(|skill| !is_shown(skill))
        .map(|skill| skill.instructions.trim().to_owned())
        .collect();
    (!hidden.is_empty()).then(|| hidden.join("\n\n"))
}
