//! Pins of the tools of MCP servers: the definition of each tool that is accepted, and the one that waits for the
//! operator. Decided purely.
//!
//! A tool is known by the names of its server and its own. The tools of a server's first list are accepted as they are;
//! another definition of one of them waits, and so does a tool that appears later. A tool that is gone keeps its pin.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, TimeDelta, Utc};

use crate::base::words::words;
use crate::domain::approval::tool_difference::difference;

/// Pins of one server that are kept.
pub const PINS: usize = 512;
/// How old the note may be that a definition that waits was seen.
const SEEN_EVERY: TimeDelta = TimeDelta::minutes(10);
/// A definition that waits goes once nobody has seen it for so long, and the accepted one is back.
const UNSEEN_FOR: TimeDelta = TimeDelta::hours(1);

/// A definition as a server lists it now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenDefinition {
    /// Name of the tool at its server.
    pub tool: String,
    /// SHA-256 of `text`, hexadecimal.
    pub hash: String,
    /// The definition as canonical JSON (RFC 8785).
    pub text: String,
}

words! {
    /// Where a pin stands.
    #[derive(utoipa::ToSchema)]
    pub enum PinState {
        /// Its accepted definition is the last one that was seen.
        Accepted = "accepted",
        /// Another definition waits to be accepted.
        Changed = "changed",
        /// The tool is new, and its definition waits to be accepted.
        New = "new",
    }
}

/// The fate of a definition that a server lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PinVerdict {
    /// It may be used.
    Accepted,
    /// It is kept, and shown to the operator.
    Waiting,
    /// It waits, and there was no room to keep it.
    Unrecorded,
}

/// A pin as it is stored, whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolPin {
    /// Name of the server as it is configured.
    pub server: String,
    /// Name of the tool at its server.
    pub tool: String,
    /// The accepted definition; `None`: the tool is new.
    pub accepted: Option<PinnedDefinition>,
    /// The token that has accepted it; `None`: the first list of the server had it.
    pub accepted_by: Option<String>,
    /// The definition that waits.
    pub waiting: Option<PinnedDefinition>,
}

/// A definition of a pin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedDefinition {
    /// SHA-256 of `text`, hexadecimal.
    pub hash: String,
    /// The definition as canonical JSON (RFC 8785).
    pub text: String,
    /// The instant at which it was accepted, or first seen where it waits.
    pub at: DateTime<Utc>,
}

/// A pin without its texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinHead {
    /// Name of the tool at its server.
    pub tool: String,
    /// Hash of the accepted definition.
    pub accepted_hash: Option<String>,
    /// Hash of the definition that waits.
    pub waiting_hash: Option<String>,
    /// About when the one that waits was seen last.
    pub waiting_seen_at: Option<DateTime<Utc>>,
}

/// A change of the stored pins of a server.
#[derive(Debug, PartialEq, Eq)]
pub enum PinWrite<'a> {
    /// A new pin whose definition is accepted.
    Accept(&'a SeenDefinition),
    /// The definition waits, in a new pin or in the place of another one that waited.
    Wait(&'a SeenDefinition),
    /// The definition of this tool that waits was seen.
    Seen(&'a str),
    /// Nothing of this tool waits any more.
    Clear(&'a str),
    /// The pin of this tool, of which nothing was ever accepted, makes room.
    Forget(String),
}

/// The verdicts on the definitions of a list, and the changes that they make.
#[derive(Debug, PartialEq, Eq)]
pub struct PinJudgement<'a> {
    /// In the order of the list.
    pub verdicts: Vec<PinVerdict>,
    /// In the order in which they are to be made.
    pub writes: Vec<PinWrite<'a>>,
}

/// The places of a server's pins that are free, or may be.
struct PinRoom {
    free: usize,
    /// Pins of which nothing was ever accepted and that the list does not have: the one that was seen longest ago last.
    forgettable: Vec<String>,
}

impl ToolPin {
    /// Where it stands.
    pub fn state(&self) -> PinState {
        match (&self.accepted, &self.waiting) {
            (None, _) => PinState::New,
            (Some(_), Some(_)) => PinState::Changed,
            (Some(_), None) => PinState::Accepted,
        }
    }

    /// Name of the tool here, with that of its server.
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.server, self.tool)
    }

    /// Lines in which the definition that waits differs from the accepted one; none where nothing waits. They take
    /// milliseconds.
    pub fn difference(&self) -> Vec<String> {
        let accepted = self.accepted.as_ref().map(|accepted| accepted.text.as_str());
        self.waiting.as_ref().map_or_else(Vec::new, |waiting| difference(accepted, &waiting.text))
    }
}

/// Judges the definitions that a server lists by the pins that are kept of it. Those of its first list are accepted.
pub fn judge<'a>(is_first: bool, kept: &[PinHead], seen: &'a [SeenDefinition], now: DateTime<Utc>) -> PinJudgement<'a> {
    let heads: HashMap<&str, &PinHead> = kept.iter().map(|head| (head.tool.as_str(), head)).collect();
    let mut room = PinRoom::of(kept, seen);
    let mut judgement = PinJudgement { verdicts: Vec::with_capacity(seen.len()), writes: Vec::new() };
    for definition in seen {
        let verdict = match heads.get(definition.tool.as_str()) {
            Some(head) => judgement.judge_known(head, definition, now),
            None => judgement.judge_unknown(is_first, definition, &mut room),
        };
        judgement.verdicts.push(verdict);
    }
    judgement
}

impl<'a> PinJudgement<'a> {
    fn judge_known(&mut self, head: &PinHead, definition: &'a SeenDefinition, now: DateTime<Utc>) -> PinVerdict {
        let has_hash = |kept: &Option<String>| kept.as_deref() == Some(definition.hash.as_str());
        // an instant that can't be read is long ago
        let is_unseen_for = |limit: TimeDelta| head.waiting_seen_at.is_none_or(|at| now - at >= limit);
        if has_hash(&head.accepted_hash) {
            // another instance may list a server that has the one that waits
            if head.waiting_hash.is_some() && is_unseen_for(UNSEEN_FOR) {
                self.writes.push(PinWrite::Clear(&definition.tool));
            }
            return PinVerdict::Accepted;
        }
        if !has_hash(&head.waiting_hash) {
            self.writes.push(PinWrite::Wait(definition));
        } else if is_unseen_for(SEEN_EVERY) {
            self.writes.push(PinWrite::Seen(&definition.tool));
        }
        PinVerdict::Waiting
    }

    fn judge_unknown(&mut self, is_first: bool, definition: &'a SeenDefinition, room: &mut PinRoom) -> PinVerdict {
        if room.free > 0 {
            room.free -= 1;
        } else {
            let Some(oldest) = room.forgettable.pop() else { return PinVerdict::Unrecorded };
            self.writes.push(PinWrite::Forget(oldest));
        }
        if is_first {
            self.writes.push(PinWrite::Accept(definition));
            return PinVerdict::Accepted;
        }
        self.writes.push(PinWrite::Wait(definition));
        PinVerdict::Waiting
    }
}

impl PinRoom {
    fn of(kept: &[PinHead], seen: &[SeenDefinition]) -> PinRoom {
        let listed: HashSet<&str> = seen.iter().map(|definition| definition.tool.as_str()).collect();
        let is_forgettable = |head: &&PinHead| head.accepted_hash.is_none() && !listed.contains(head.tool.as_str());
        let mut forgettable: Vec<&PinHead> = kept.iter().filter(is_forgettable).collect();
        // none comes before each instant, so it is last
        forgettable.sort_by_key(|head| std::cmp::Reverse(head.waiting_seen_at));
        let forgettable = forgettable.into_iter().map(|head| head.tool.clone()).collect();
        PinRoom { free: PINS.saturating_sub(kept.len()), forgettable }
    }
}

#[cfg(test)]
mod tests {
    use super::PinVerdict::{Accepted, Unrecorded, Waiting};
    use super::*;

    fn at(minute: i64) -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::minutes(minute)
    }

    fn seen(tool: &str, hash: &str) -> SeenDefinition {
        SeenDefinition { tool: tool.into(), hash: hash.into(), text: format!("{{\"description\":\"{hash}\"}}") }
    }

    fn head(tool: &str, accepted: Option<&str>, waiting: Option<(&str, i64)>) -> PinHead {
        PinHead {
            tool: tool.into(),
            accepted_hash: accepted.map(str::to_owned),
            waiting_hash: waiting.map(|(hash, _)| hash.to_owned()),
            waiting_seen_at: waiting.map(|(_, minute)| at(minute)),
        }
    }

    /// The one verdict and the changes of a tool that is listed.
    fn judged<'a>(kept: &PinHead, seen: &'a SeenDefinition, minute: i64) -> (PinVerdict, Vec<PinWrite<'a>>) {
        let judgement = judge(false, std::slice::from_ref(kept), std::slice::from_ref(seen), at(minute));
        assert_eq!(judgement.verdicts.len(), 1);
        (judgement.verdicts[0], judgement.writes)
    }

    #[test]
    fn first_list_is_accepted_as_it_is_and_an_empty_one_changes_nothing() {
        let listed = [seen("a", "1"), seen("b", "2")];
        let judgement = judge(true, &[], &listed, at(0));
        assert_eq!(judgement.verdicts, [Accepted, Accepted]);
        assert_eq!(judgement.writes, [PinWrite::Accept(&listed[0]), PinWrite::Accept(&listed[1])]);
        assert_eq!(judge(true, &[], &[], at(0)), PinJudgement { verdicts: vec![], writes: vec![] });
    }

    #[test]
    fn equal_definition_is_accepted_and_another_or_a_new_one_waits() {
        let kept = head("a", Some("1"), None);
        assert_eq!(judged(&kept, &seen("a", "1"), 0), (Accepted, vec![]));
        let changed = seen("a", "2");
        assert_eq!(judged(&kept, &changed, 0), (Waiting, vec![PinWrite::Wait(&changed)]));
        let new = seen("b", "1");
        assert_eq!(judged(&kept, &new, 0), (Waiting, vec![PinWrite::Wait(&new)]));
    }

    #[test]
    fn definition_that_waits_goes_on_waiting_and_is_noted_once_in_ten_minutes() {
        for accepted in [None, Some("1")] {
            let (kept, listed) = (head("a", accepted, Some(("2", 0))), seen("a", "2"));
            assert_eq!(judged(&kept, &listed, 9), (Waiting, vec![]));
            assert_eq!(judged(&kept, &listed, 10), (Waiting, vec![PinWrite::Seen("a")]));
            let third = seen("a", "3");
            assert_eq!(judged(&kept, &third, 0), (Waiting, vec![PinWrite::Wait(&third)]));
        }
    }

    #[test]
    fn accepted_definition_that_comes_back_is_accepted_and_what_waited_goes_an_hour_later() {
        let (kept, listed) = (head("a", Some("1"), Some(("2", 0))), seen("a", "1"));
        assert_eq!(judged(&kept, &listed, 59), (Accepted, vec![]));
        assert_eq!(judged(&kept, &listed, 60), (Accepted, vec![PinWrite::Clear("a")]));
    }

    #[test]
    fn pin_that_cannot_be_read_waits() {
        let (kept, listed) = (head("a", None, None), seen("a", "1"));
        assert_eq!(judged(&kept, &listed, 0), (Waiting, vec![PinWrite::Wait(&listed)]));
        let without_instant = PinHead { waiting_hash: Some("1".into()), ..kept };
        assert_eq!(judged(&without_instant, &listed, 0), (Waiting, vec![PinWrite::Seen("a")]));
    }

    /// Accepted pins, as many as leave so much room.
    fn all_but(room: usize) -> Vec<PinHead> {
        (0..PINS - room).map(|n| head(&format!("kept-{n}"), Some("1"), None)).collect()
    }

    #[test]
    fn pins_are_kept_up_to_the_most_and_a_tool_beyond_them_is_not_recorded() {
        let listed = [seen("a", "1"), seen("b", "1")];
        let judgement = judge(false, &all_but(1), &listed, at(0));
        assert_eq!(judgement.verdicts, [Waiting, Unrecorded]);
        assert_eq!(judgement.writes, [PinWrite::Wait(&listed[0])]);
        let first: Vec<SeenDefinition> = (0..=PINS).map(|n| seen(&format!("t{n}"), "1")).collect();
        let judgement = judge(true, &[], &first, at(0));
        assert_eq!((judgement.verdicts[PINS - 1], judgement.verdicts[PINS]), (Accepted, Unrecorded));
        assert_eq!(judgement.writes.len(), PINS);
    }

    #[test]
    fn pins_that_were_never_accepted_make_room_the_one_seen_longest_ago_first() {
        let mut kept = all_but(4);
        kept.extend([
            head("late", None, Some(("1", 9))),
            head("early", None, Some(("1", 5))),
            head("listed", None, Some(("1", 1))),
            head("gone", Some("1"), Some(("2", 2))),
        ]);
        let listed = [seen("listed", "1"), seen("a", "1"), seen("b", "1"), seen("c", "1")];
        let judgement = judge(false, &kept, &listed, at(9));
        assert_eq!(judgement.verdicts, [Waiting, Waiting, Waiting, Unrecorded]);
        let expected = [
            PinWrite::Forget("early".into()),
            PinWrite::Wait(&listed[1]),
            PinWrite::Forget("late".into()),
            PinWrite::Wait(&listed[2]),
        ];
        assert_eq!(judgement.writes, expected);
    }

    #[test]
    fn pin_says_where_it_stands_and_how_the_definition_that_waits_differs() {
        let definition = |text: &str| {
            let SeenDefinition { hash, text, .. } = seen("search", text);
            Some(PinnedDefinition { hash, text, at: at(0) })
        };
        let pin = |accepted, waiting| ToolPin {
            server: "github".into(),
            tool: "search".into(),
            accepted,
            accepted_by: None,
            waiting,
        };
        let accepted = pin(definition("one"), None);
        assert_eq!((accepted.state(), accepted.full_name().as_str()), (PinState::Accepted, "github.search"));
        assert!(accepted.difference().is_empty());
        let changed = pin(definition("one"), definition("two"));
        assert_eq!(changed.state(), PinState::Changed);
        assert_eq!(changed.difference(), ["description:", "- one", "+ two"]);
        let new = pin(None, definition("two"));
        assert_eq!((new.state(), new.difference()), (PinState::New, vec!["description:".into(), "+ two".into()]));
    }
}
