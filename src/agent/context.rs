//! The part of a conversation that the model is shown: it must fit, and a call stays together with its result.
//!
//! Decides what is shown no more, as compactions; the transcript keeps everything, and them as well. Stores nothing
//! itself.

pub mod active_skills;
mod cut;
pub mod importance;
mod lasting_notices;
pub mod refocus;
pub mod settings;
pub mod shown;
pub mod summary;
pub mod view;

use crate::agent::context::cut::{LEAST_RESULT, cut};
use crate::agent::context::settings::{ContextSettings, Strategy};
use crate::agent::context::shown::{ShownMessage, compacted};
use crate::agent::settings::Settings;
use crate::domain::run::TranscriptMessage;
use crate::domain::run::transcript::{Compaction, CompactionKind};
use crate::ports::llm::OfferedTools;
use crate::ports::llm::tokens::{CHARS_PER_TOKEN, TokenCounter};

/// Messages that a forced trim keeps.
const FORCED: usize = 5;
/// The part of the window from which on results are brief, where neither the call nor its tool has a level.
const BRIEF_FROM: f64 = 0.8;
/// Turns of the model that are not extracted.
const RECENT_TURNS: usize = 5;
/// An extract that leaves more of a conversation than this is not worth it.
const WORTH: f64 = 0.8;

/// One way to show less.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shortening {
    /// Earlier turns in short, without what is important.
    Extract,
    /// The last messages alone.
    Trim,
    /// Long results cut.
    Cut,
    /// Very few messages.
    TrimHard,
}

/// The ways that are gone before a call, each while the window is still full.
const GUARD: [Shortening; 3] = [Shortening::Extract, Shortening::Trim, Shortening::TrimHard];
/// The ways that are gone once a model has found a conversation too long.
const RECOVERY: [Shortening; 3] = [Shortening::Trim, Shortening::Cut, Shortening::TrimHard];

/// The part of summaries in a trim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Summaries {
    Stay,
    Go,
}

/// The limits of one conversation with one model.
#[derive(Debug, Clone, Copy)]
pub struct ContextWindow {
    /// In tokens.
    limit: u64,
    counter: TokenCounter,
    trim_threshold: f64,
    history: usize,
    result_share: f64,
    result_chars: usize,
    strategy: Strategy,
}

impl ContextWindow {
    /// `limit`: the model's own, where its settings name one.
    pub fn new(
        settings: &Settings,
        context: &ContextSettings,
        counter: TokenCounter,
        limit: Option<u64>,
    ) -> ContextWindow {
        ContextWindow {
            limit: limit.unwrap_or(settings.context_token_limit),
            counter,
            trim_threshold: settings.context_trim_threshold,
            history: settings.max_history_messages,
            result_share: settings.max_tool_result_share,
            result_chars: settings.max_tool_result_chars,
            strategy: context.strategy,
        }
    }

    /// This window, counted as is known of the model by now.
    pub fn counted_by(self, counter: TokenCounter) -> ContextWindow {
        ContextWindow { counter, ..self }
    }

    /// Characters of the facts that a run is told: a twentieth of the window, counted as two characters a token.
    pub fn recalled_chars(&self) -> usize {
        usize::try_from(self.limit / 10).unwrap_or(usize::MAX)
    }

    /// Whether the conversation fills the part of the window from which on it is shortened.
    pub fn is_full(&self, messages: &[TranscriptMessage], tools: &OfferedTools) -> bool {
        self.is_filled(self.trim_threshold, messages, tools)
    }

    /// Whether so much is in the window that results are brief.
    pub fn shows_briefly(&self, messages: &[TranscriptMessage], tools: &OfferedTools) -> bool {
        self.is_filled(BRIEF_FROM, messages, tools)
    }

    fn is_filled(&self, share: f64, messages: &[TranscriptMessage], tools: &OfferedTools) -> bool {
        (self.counter.messages(messages) + self.counter.tools(tools)) as f64 > self.limit as f64 * share
    }

    /// Before a call: the compactions after which the conversation fits, as far as there are any.
    pub fn guard(&self, mut shown: Vec<ShownMessage>, tools: &OfferedTools) -> Vec<Compaction> {
        let mut compactions = Vec::new();
        for way in GUARD {
            if !self.is_full(&messages_of(&shown), tools) {
                break;
            }
            if let Some(compaction) = self.shorten(&shown, way) {
                shown = compacted(shown, &compaction);
                compactions.push(compaction);
            }
        }
        compactions
    }

    /// Once the model has found a conversation too long: a compaction by one step of three, the first that still
    /// changes something, from `step` (0, 1, 2) on, and the step to go on with. `None`: nothing is left to do.
    pub fn recover(&self, shown: &[ShownMessage], step: u32) -> Option<(Compaction, u32)> {
        let steps = (0..).zip(RECOVERY).skip(step as usize);
        steps.into_iter().find_map(|(step, way)| Some((self.shorten(shown, way)?, step + 1)))
    }

    /// Whether a text alone leaves the model no room.
    pub fn overflows_with(&self, text: &str) -> bool {
        self.counter.text(text) > self.limit
    }

    /// A tool result as it enters the conversation.
    pub fn cut_result(&self, text: &str) -> String {
        cut(text, self.longest_result())
    }

    /// Whether a tool result is longer than what enters the conversation.
    pub fn cuts(&self, text: &str) -> bool {
        text.char_indices().nth(self.longest_result()).is_some()
    }

    /// In characters.
    fn longest_result(&self) -> usize {
        let share = (self.result_share * self.limit as f64 * CHARS_PER_TOKEN) as usize;
        share.min(self.result_chars).max(LEAST_RESULT)
    }

    /// The compaction by which a conversation gets shorter in this way; `None`: it does not.
    fn shorten(&self, shown: &[ShownMessage], way: Shortening) -> Option<Compaction> {
        match way {
            Shortening::Extract => self.extract(shown),
            Shortening::Trim => trim(shown, self.history, Summaries::Stay),
            Shortening::Cut => cut_results(shown),
            Shortening::TrimHard => trim(shown, FORCED, Summaries::Go),
        }
    }

    /// All but questions and the last turns in short, if that is worth it.
    fn extract(&self, shown: &[ShownMessage]) -> Option<Compaction> {
        if self.strategy != Strategy::Extract {
            return None;
        }
        let turns: Vec<usize> = (0..shown.len()).filter(|&index| shown[index].is_answer()).collect();
        let start = *turns.get(turns.len().checked_sub(RECENT_TURNS)?)?;
        let is_pinned = |index: usize| shown[index].is_question() || shown[index].is_summary();
        let compaction = compaction_before(shown, start, is_pinned, CompactionKind::Extracted)?;
        let tokens = |shown: &[ShownMessage]| self.counter.messages(&messages_of(shown)) as f64;
        let is_worth_it = tokens(&compacted(shown.to_vec(), &compaction)) < WORTH * tokens(shown);
        is_worth_it.then_some(compaction)
    }
}

/// The system messages, the last `keep` others, and the question that these follow; a tool result never without its
/// call, even where that keeps more. Without the message that is answered the agent would not know its task, and some
/// providers refuse a conversation that a user did not begin.
fn trim(shown: &[ShownMessage], keep: usize, summaries: Summaries) -> Option<Compaction> {
    let spoken: Vec<usize> = (0..shown.len()).filter(|&index| !shown[index].is_system()).collect();
    let mut start = spoken.len().saturating_sub(keep);
    while start > 0 && shown[spoken[start]].is_result() {
        start -= 1;
    }
    let start = *spoken.get(start)?;
    let followed = shown.iter().take(start + 1).rposition(ShownMessage::is_question);
    let stays = |index: usize| summaries == Summaries::Stay && shown[index].is_summary();
    compaction_before(shown, start, |index| Some(index) == followed || stays(index), CompactionKind::Dropped)
}

fn cut_results(shown: &[ShownMessage]) -> Option<Compaction> {
    let seqs = || shown.iter().map(|message| message.seq);
    let compaction = Compaction { from: seqs().min()?, to: seqs().max()?, pinned: vec![], by: CompactionKind::Cut };
    (compacted(shown.to_vec(), &compaction) != shown).then_some(compaction)
}

/// The compaction of everything before a place, where a turn begins, but for what is pinned; `None`: there is nothing
/// else.
fn compaction_before(
    shown: &[ShownMessage],
    start: usize,
    is_pinned: impl Fn(usize) -> bool,
    by: CompactionKind,
) -> Option<Compaction> {
    let before = (0..start).filter(|&index| !shown[index].is_system() && !shown[index].is_lasting_notices());
    let (pinned, replaced): (Vec<usize>, Vec<usize>) = before.partition(|&index| is_pinned(index));
    let seqs = |indices: &[usize]| indices.iter().map(|&index| shown[index].seq).collect::<Vec<_>>();
    let (replaced, mut pinned) = (seqs(&replaced), seqs(&pinned));
    let (from, to) = (*replaced.iter().min()?, *replaced.iter().max()?);
    pinned.retain(|seq| (from..=to).contains(seq));
    Some(Compaction { from, to, pinned, by })
}

fn messages_of(shown: &[ShownMessage]) -> Vec<TranscriptMessage> {
    shown.iter().cloned().map(ShownMessage::into_message).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::agent::context::cut::CUT_MARK;
    use crate::domain::run::ToolCall;
    use crate::ports::llm::ToolSchema;

    fn assistant(text: &str, calls: &[&str]) -> TranscriptMessage {
        let call = |id: &&str| ToolCall::new(*id, "read", json!({}));
        TranscriptMessage::Assistant {
            text: Some(text.into()),
            tool_calls: calls.iter().map(call).collect(),
            provider_message: None,
            finish: None,
        }
    }

    fn result(id: &str, content: &str) -> TranscriptMessage {
        TranscriptMessage::Tool {
            call_id: id.into(),
            name: "read".into(),
            notices: vec![],
            content: content.into(),
            is_error: false,
            reasons: vec![],
            fetched_at: None,
        }
    }

    fn shown(messages: Vec<TranscriptMessage>) -> Vec<ShownMessage> {
        (0..).zip(messages).map(|(seq, message)| ShownMessage::verbatim(seq, message)).collect()
    }

    /// One letter a message, for whole conversations at a glance: `S` system, `u` user, `a` assistant, `t` tool, `e`
    /// extract.
    fn shape(shown: &[ShownMessage]) -> String {
        let letter = |message: &ShownMessage| match message.clone().into_message() {
            TranscriptMessage::System { .. } => 'S',
            TranscriptMessage::User { metadata, .. } if !metadata.is_empty() => 'e',
            TranscriptMessage::User { .. } => 'u',
            TranscriptMessage::Assistant { .. } => 'a',
            TranscriptMessage::Tool { .. } => 't',
            other => panic!("{other:?}"),
        };
        shown.iter().map(letter).collect()
    }

    /// `S`, `u`, then `turns` times a call of two tools and its results.
    fn conversation(turns: usize, result_length: usize) -> Vec<ShownMessage> {
        let mut messages = vec![TranscriptMessage::system("be kind"), TranscriptMessage::user("do it")];
        for turn in 0..turns {
            let ids = [format!("{turn}a"), format!("{turn}b")];
            messages.push(assistant("reading", &[&ids[0], &ids[1]]));
            messages.extend(ids.iter().map(|id| result(id, &"x".repeat(result_length))));
        }
        shown(messages)
    }

    fn window(limit: u64) -> ContextWindow {
        let (settings, context) = (Settings::default(), ContextSettings::default());
        ContextWindow::new(&settings, &context, TokenCounter::of("gpt"), Some(limit))
    }

    fn after(shown: &[ShownMessage], compactions: &[Compaction]) -> Vec<ShownMessage> {
        compactions.iter().fold(shown.to_vec(), compacted)
    }

    fn trimmed(shown: &[ShownMessage], keep: usize) -> String {
        shape(&after(shown, trim(shown, keep, Summaries::Stay).as_slice()))
    }

    #[test]
    fn trim_keeps_system_task_and_the_last_with_calls_and_results_together() {
        // the fifth from the end is a result: its call and its sibling stay, too
        assert_eq!(trimmed(&conversation(4, 1), 5), "Suattatt");
        assert_eq!(trimmed(&conversation(4, 1), 3), "Suatt");
        assert_eq!(trim(&conversation(4, 1), 40, Summaries::Stay), None);
        let mut chat = vec![TranscriptMessage::system("s")];
        for _ in 0..5 {
            chat.extend([TranscriptMessage::user("question"), assistant("answer", &[])]);
        }
        chat.push(TranscriptMessage::user("the last"));
        assert_eq!(trimmed(&shown(chat), 4), "Suauau", "the question before the first answer stays with it");
    }

    #[test]
    fn guard_trims_at_its_threshold_and_no_earlier() {
        let conversation = conversation(20, 400); // 62 messages, about 5000 tokens
        let guarded = |limit| {
            let compactions = window(limit).guard(conversation.clone(), &OfferedTools::default());
            after(&conversation, &compactions).len()
        };
        let tokens = TokenCounter::of("gpt").messages(&messages_of(&conversation));
        assert_eq!(guarded(tokens * 10 / 8 + 10), 62, "just under 80 %");
        assert_eq!(guarded(tokens * 10 / 8 - 10), 2 + 42, "40, and the call that the first result belongs to");
        assert_eq!(guarded(1000), 2 + 6, "not enough: the last 5, pairs whole");
    }

    #[test]
    fn results_are_brief_beyond_eighty_hundredths_and_a_result_is_cut_beyond_its_length() {
        let conversation = messages_of(&conversation(20, 400));
        let tokens = TokenCounter::of("gpt").messages(&conversation);
        let full = |limit| window(limit).shows_briefly(&conversation, &OfferedTools::default());
        assert!(!full(tokens * 10 / 8 + 10) && full(tokens * 10 / 8 - 10));
        assert_eq!([2000, 2001].map(|length| window(1000).cuts(&"x".repeat(length))), [false, true]);
    }

    #[test]
    fn tools_count_towards_the_window() {
        let tool = ToolSchema {
            name: "t".into(),
            description: "d".repeat(40_000),
            parameters: json!({ "type": "object" }).into(),
        };
        let conversation = conversation(20, 4);
        let compactions = window(10_000).guard(conversation.clone(), &vec![tool].into());
        assert_eq!(after(&conversation, &compactions).len(), 8);
    }

    #[test]
    fn extract_goes_before_a_trim_and_leaves_questions_and_the_last_turns_as_they_are() {
        let thought = "thinking ".repeat(400);
        let mut messages = vec![TranscriptMessage::system("s"), TranscriptMessage::user("first")];
        messages.extend([assistant(&thought, &["a"]), result("a", "found"), assistant("done", &[])]);
        messages.push(TranscriptMessage::user("second"));
        for turn in 0..8 {
            let id = turn.to_string();
            messages.extend([assistant(&thought, &[&id]), result(&id, &format!("result {id}"))]);
        }
        let conversation = shown(messages);
        let tokens = TokenCounter::of("gpt").messages(&messages_of(&conversation));
        let guarded = |window: ContextWindow| {
            let compactions = window.guard(conversation.clone(), &OfferedTools::default());
            after(&conversation, &compactions)
        };
        let shorter = guarded(window(tokens * 10 / 8 - 10));
        assert_eq!(shape(&shorter), "Suueatatatatat");
        let TranscriptMessage::User { text, .. } = shorter[3].clone().into_message() else { panic!("no extract") };
        for part in ["found", "result 0", "result 1", "result 2", "You said: done"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        assert!(!text.contains("result 3") && text.chars().count() < 1200, "{text}");
        // full again: what was extracted goes in one piece
        assert_eq!(shape(&after(&shorter, trim(&shorter, 5, Summaries::Stay).as_slice())), "Suatatat");
        let truncating = ContextWindow { strategy: Strategy::Truncate, ..window(1000) };
        assert_eq!(shape(&guarded(truncating)), "Suatatat", "as it is configured");
    }

    #[test]
    fn summary_outlives_a_trim_and_an_extract_but_not_a_hard_trim() {
        let conversation = conversation(30, 4); // S, u, and three messages a turn
        let by = CompactionKind::Summarised { summary: "Two pages were read.".into(), errors: vec![] };
        let summarised = compacted(conversation, &Compaction { from: 2, to: 7, pinned: vec![], by });
        assert_eq!(shape(&summarised)[..9], *"Sueattatt");
        let trimmed = after(&summarised, trim(&summarised, 6, Summaries::Stay).as_slice());
        assert_eq!(shape(&trimmed), "Sueattatt");
        assert!(trimmed[2].is_summary());
        let extracted = after(&summarised, window(1000).extract(&summarised).as_slice());
        assert_eq!(shape(&extracted), "Sueeattattattattatt");
        let hard = after(&trimmed, trim(&trimmed, 3, Summaries::Go).as_slice());
        assert_eq!(shape(&hard), "Suatt");
    }

    #[test]
    fn words_of_a_person_outlive_every_trim_in_one_message() {
        let said = |text: &str| TranscriptMessage::User {
            text: text.into(),
            metadata: [("trigger_type".to_owned(), json!("chat"))].into_iter().collect(),
        };
        let mut messages = vec![TranscriptMessage::system("s"), said("For two."), assistant("Done.", &[])];
        messages.extend([said("No, for three."), assistant("Done.", &[])]);
        for thanks in ["Thanks.", "Fine.", "And where?", "Why?"] {
            messages.extend([said(thanks), assistant("So.", &[])]);
        }
        messages.push(TranscriptMessage::user("the last"));
        let conversation = shown(messages);
        let told = |shown: &[ShownMessage]| {
            let notices = shown.iter().filter(|message| message.is_lasting_notices()).cloned();
            let [notices] = notices.collect::<Vec<_>>().try_into().expect("one message");
            let TranscriptMessage::User { text, .. } = notices.into_message() else { panic!("no message") };
            text.lines().skip(1).map(str::to_owned).collect::<Vec<_>>()
        };
        let trimmed = after(&conversation, trim(&conversation, 5, Summaries::Stay).as_slice());
        let of_trimmed = ["- For two.", "- No, for three.", "- Thanks.", "- Fine."];
        assert_eq!((told(&trimmed), trimmed.len()), (of_trimmed.map(str::to_owned).to_vec(), 7));
        let hard = after(&trimmed, trim(&trimmed, 3, Summaries::Go).as_slice());
        assert_eq!(told(&hard), [&of_trimmed[..], &["- And where?"]].concat());
        assert_eq!(trim(&hard, 3, Summaries::Go), None, "they are replaced by nothing");
    }

    #[test]
    fn result_is_cut_at_the_smaller_of_its_share_and_the_fixed_limit() {
        let long = "x".repeat(500_000);
        let kept = |limit| window(limit).cut_result(&long).len() - CUT_MARK.len();
        assert_eq!(kept(128_000), 153_600);
        assert_eq!(kept(1_000_000), 400_000);
        assert_eq!(kept(1000), 2000, "never shorter than this");
        assert_eq!(window(1000).cut_result(&"y".repeat(2000)), "y".repeat(2000));
    }

    #[test]
    fn recovery_has_three_steps_and_passes_over_those_that_change_nothing() {
        let window = window(128_000);
        let step = |shown: &mut Vec<ShownMessage>, step| {
            let (compaction, next) = window.recover(shown, step)?;
            *shown = after(shown, &[compaction]);
            Some(next)
        };
        let mut messages = conversation(20, 5000);
        assert_eq!(step(&mut messages, 0), Some(1));
        assert_eq!(messages.len(), 44);
        assert_eq!(step(&mut messages, 1), Some(2));
        let lengths = messages.iter().filter_map(|message| match message.clone().into_message() {
            TranscriptMessage::Tool { content, .. } => Some(content.len()),
            _ => None,
        });
        assert!(lengths.clone().all(|length| length == 2000 + CUT_MARK.len()), "{:?}", lengths.collect::<Vec<_>>());
        assert_eq!(step(&mut messages, 2), Some(3));
        assert_eq!(shape(&messages), "Suattatt");
        assert_eq!(step(&mut messages, 3), None);

        assert_eq!(step(&mut conversation(1, 10), 0), None, "nothing to trim, nothing to cut");
        let mut one_long = conversation(1, 9000);
        assert_eq!(step(&mut one_long, 0), Some(2), "straight to the results");
        assert_eq!(step(&mut one_long, 1), None, "cut results are not cut again");
    }
}
