//! The part of a conversation that the model is shown: it must fit, and a call stays together with its result.
//!
//! Works on a copy for one request; the transcript keeps everything.

use std::collections::HashSet;

use crate::agent::settings::Settings;
use crate::domain::run::TranscriptMessage;
use crate::ports::llm::OfferedTools;
use crate::ports::llm::tokens::{CHARS_PER_TOKEN, TokenCounter};

/// Messages that a forced trim keeps.
const FORCED: usize = 5;
/// A tool result is never cut shorter than this, in characters.
const LEAST_RESULT: usize = 2000;
/// The part of the window from which on results are brief, where neither the call nor its tool has a level.
const FULL: f64 = 0.8;
/// The end of a result that was cut.
const CUT_MARK: &str = "\n[...truncated]";

/// The measures of one conversation with one model.
#[derive(Debug, Clone, Copy)]
pub struct ContextWindow {
    /// In tokens.
    limit: u64,
    counter: TokenCounter,
    trim_threshold: f64,
    history: usize,
    result_share: f64,
    result_chars: usize,
}

impl ContextWindow {
    /// `limit`: the model's own, where its settings name one.
    pub fn new(settings: &Settings, counter: TokenCounter, limit: Option<u64>) -> ContextWindow {
        ContextWindow {
            limit: limit.unwrap_or(settings.context_token_limit),
            counter,
            trim_threshold: settings.context_trim_threshold,
            history: settings.max_history_messages,
            result_share: settings.max_tool_result_share,
            result_chars: settings.max_tool_result_chars,
        }
    }

    /// Before each turn: shortens what is too long. To the last messages first; if that is not enough, to very few.
    pub fn guard(&self, messages: &mut Vec<TranscriptMessage>, tools: &OfferedTools) {
        let tools = self.counter.tools(tools);
        let full = |messages: &[TranscriptMessage]| {
            (self.counter.messages(messages) + tools) as f64 > self.limit as f64 * self.trim_threshold
        };
        for keep in [self.history, FORCED] {
            if full(messages) {
                *messages = trim(messages, keep);
            }
        }
    }

    /// Whether so much is in the window that results are brief.
    pub fn is_full(&self, messages: &[TranscriptMessage], tools: &OfferedTools) -> bool {
        (self.counter.messages(messages) + self.counter.tools(tools)) as f64 > self.limit as f64 * FULL
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

    /// Makes a conversation shorter that the model found too long, by one step of three: the first that still
    /// changes something, from `step` (0, 1, 2) on. Answers the step to go on with; `None`: nothing is left to do.
    pub fn recover(&self, messages: &mut Vec<TranscriptMessage>, step: u32) -> Option<u32> {
        (step..3).find_map(|step| {
            let shorter = match step {
                0 => trim(messages, self.history),
                1 => messages.iter().map(with_short_result).collect(),
                _ => trim(messages, FORCED),
            };
            if shorter == *messages {
                return None;
            }
            *messages = shorter;
            Some(step + 1)
        })
    }
}

/// The system messages, the last `keep` others, and the user message that these follow; a tool result never without its
/// call, even where that keeps more. Without the message that is answered the agent would not know its task, and some
/// providers refuse a conversation that a user did not begin.
fn trim(messages: &[TranscriptMessage], keep: usize) -> Vec<TranscriptMessage> {
    let spoken: Vec<usize> =
        (0..messages.len()).filter(|&i| !matches!(messages[i], TranscriptMessage::System { .. })).collect();
    let mut start = spoken.len().saturating_sub(keep);
    while start > 0 && matches!(messages[spoken[start]], TranscriptMessage::Tool { .. }) {
        start -= 1;
    }
    let first = spoken.get(start).copied().unwrap_or_default();
    let followed =
        messages.iter().take(first + 1).rposition(|message| matches!(message, TranscriptMessage::User { .. }));
    let kept: HashSet<usize> = spoken[start..].iter().copied().chain(followed).collect();
    let stays = |(index, message): (usize, &TranscriptMessage)| {
        (kept.contains(&index) || matches!(message, TranscriptMessage::System { .. })).then(|| message.clone())
    };
    messages.iter().enumerate().filter_map(stays).collect()
}

fn with_short_result(message: &TranscriptMessage) -> TranscriptMessage {
    let mut message = message.clone();
    if let TranscriptMessage::Tool { content, .. } = &mut message {
        let whole = content.strip_suffix(CUT_MARK).unwrap_or(content);
        if whole.chars().count() > LEAST_RESULT {
            *content = cut(whole, LEAST_RESULT);
        }
    }
    message
}

/// At most `limit` characters, cut at the last line break if that lies past the half and leaves enough.
fn cut(text: &str, limit: usize) -> String {
    let Some((end, _)) = text.char_indices().nth(limit) else { return text.to_owned() };
    let kept = &text[..end];
    let at_line = kept.rfind('\n').map(|at| &kept[..at]).filter(|lines| {
        let length = lines.chars().count();
        length > limit / 2 && length >= LEAST_RESULT
    });
    format!("{}{CUT_MARK}", at_line.unwrap_or(kept))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
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
            content: content.into(),
            is_error: false,
            reasons: vec![],
            fetched_at: None,
        }
    }

    /// One letter a message, for whole conversations at a glance: `S` system, `u` user, `a` assistant, `t` tool.
    fn shape(messages: &[TranscriptMessage]) -> String {
        let letter = |message: &TranscriptMessage| match message {
            TranscriptMessage::Unusable { .. }
            | TranscriptMessage::Verdict { .. }
            | TranscriptMessage::Pipeline { .. }
            | TranscriptMessage::Step { .. }
            | TranscriptMessage::StepResult { .. } => 'p',
            TranscriptMessage::System { .. } => 'S',
            TranscriptMessage::User { .. } => 'u',
            TranscriptMessage::Assistant { .. } => 'a',
            TranscriptMessage::Tool { .. } => 't',
        };
        messages.iter().map(letter).collect()
    }

    /// `S`, `u`, then `turns` times a call of two tools and its results.
    fn conversation(turns: usize, result_length: usize) -> Vec<TranscriptMessage> {
        let mut messages = vec![TranscriptMessage::system("be kind"), TranscriptMessage::user("do it")];
        for turn in 0..turns {
            let ids = [format!("{turn}a"), format!("{turn}b")];
            messages.push(assistant("reading", &[&ids[0], &ids[1]]));
            messages.extend(ids.iter().map(|id| result(id, &"x".repeat(result_length))));
        }
        messages
    }

    fn window(limit: u64) -> ContextWindow {
        ContextWindow::new(&Settings::default(), TokenCounter::of("gpt"), Some(limit))
    }

    #[test]
    fn trim_keeps_system_task_and_the_last_with_calls_and_results_together() {
        // the fifth from the end is a result: its call and its sibling stay, too
        assert_eq!(shape(&trim(&conversation(4, 1), 5)), "Suattatt");
        assert_eq!(shape(&trim(&conversation(4, 1), 3)), "Suatt");
        assert_eq!(shape(&trim(&conversation(4, 1), 40)), shape(&conversation(4, 1)));
        let mut chat = vec![TranscriptMessage::system("s")];
        for _ in 0..5 {
            chat.extend([TranscriptMessage::user("question"), assistant("answer", &[])]);
        }
        chat.push(TranscriptMessage::user("the last"));
        assert_eq!(shape(&trim(&chat, 4)), "Suauau", "the question before the first answer stays with it");
    }

    #[test]
    fn guard_trims_at_its_threshold_and_no_earlier() {
        let conversation = conversation(20, 400); // 62 messages, about 5000 tokens
        let guarded = |limit| {
            let mut messages = conversation.clone();
            window(limit).guard(&mut messages, &OfferedTools::default());
            messages.len()
        };
        let tokens = TokenCounter::of("gpt").messages(&conversation);
        assert_eq!(guarded(tokens * 10 / 8 + 10), 62, "just under 80 %");
        assert_eq!(guarded(tokens * 10 / 8 - 10), 2 + 42, "40, and the call that the first result belongs to");
        assert_eq!(guarded(1000), 2 + 6, "not enough: the last 5, pairs whole");
    }

    #[test]
    fn window_is_full_beyond_eighty_hundredths_and_a_result_is_cut_beyond_its_length() {
        let conversation = conversation(20, 400);
        let tokens = TokenCounter::of("gpt").messages(&conversation);
        let full = |limit| window(limit).is_full(&conversation, &OfferedTools::default());
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
        let mut messages = conversation(20, 4);
        window(10_000).guard(&mut messages, &vec![tool].into());
        assert_eq!(messages.len(), 8);
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
    fn cut_is_made_at_the_last_line_break_past_the_half() {
        let lines = |first: usize| format!("{}\n{}", "a".repeat(first), "b".repeat(10_000));
        assert_eq!(cut(&lines(3000), 5000), format!("{}\n[...truncated]", "a".repeat(3000)));
        let early = lines(2400);
        assert_eq!(cut(&early, 5000), format!("{}\n[...truncated]", &early[..5000]));
        let short = lines(1500);
        assert_eq!(cut(&short, 2000), format!("{}\n[...truncated]", &short[..2000]), "at least 2000 are kept");
    }

    #[test]
    fn cut_counts_characters_and_never_splits_one() {
        assert_eq!(cut(&"é".repeat(2001), 2000), format!("{}\n[...truncated]", "é".repeat(2000)));
    }

    #[test]
    fn recovery_has_three_steps_and_passes_over_those_that_change_nothing() {
        let mut messages = conversation(20, 5000);
        let window = window(128_000);
        assert_eq!(window.recover(&mut messages, 0), Some(1));
        assert_eq!(messages.len(), 44);
        assert_eq!(window.recover(&mut messages, 1), Some(2));
        let lengths = messages.iter().filter_map(|message| match message {
            TranscriptMessage::Tool { content, .. } => Some(content.len()),
            _ => None,
        });
        assert!(lengths.clone().all(|length| length == 2000 + CUT_MARK.len()), "{:?}", lengths.collect::<Vec<_>>());
        assert_eq!(window.recover(&mut messages, 2), Some(3));
        assert_eq!(shape(&messages), "Suattatt");
        assert_eq!(window.recover(&mut messages, 3), None);

        let mut short = conversation(1, 10);
        assert_eq!(window.recover(&mut short, 0), None, "nothing to trim, nothing to cut");
        let mut one_long = conversation(1, 9000);
        assert_eq!(window.recover(&mut one_long, 0), Some(2), "straight to the results");
        assert_eq!(window.recover(&mut one_long, 1), None, "cut results are not cut again");
    }
}
