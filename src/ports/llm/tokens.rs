//! How many tokens a conversation is, estimated without a provider's table and on the safe side.
//!
//! For the context guard, and for what is reserved in budgets; accounts use what the provider counted. What providers
//! count corrects the estimate of their models: see [`calibration`]. An embedder may have encoders count: see
//! [`exact`].

pub mod calibration;
pub mod encoders;
pub mod exact;

use crate::domain::run::{ResultNotice, TranscriptMessage};
use crate::ports::llm::text_size::TextSize;
use crate::ports::llm::{ModelRequest, OfferedTools};

/// Characters a token in alphabetic scripts.
pub const CHARS_PER_TOKEN: f64 = 4.0;
/// Characters a token in Chinese, Japanese and Korean.
pub const CJK_CHARS_PER_TOKEN: f64 = 1.5;
/// Tokens for the frame of a message or a tool, besides its text.
const FRAME: u64 = 4;
/// Tokens of the tags around a result of a tool.
const TAGS: u64 = 16;

/// Counts for one model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TokenCounter {
    /// The estimate is multiplied by it.
    pub margin: f64,
    /// Characters of a token in alphabetic scripts.
    pub chars_per_token: f64,
    /// Characters of a token in Chinese, Japanese and Korean.
    pub cjk_chars_per_token: f64,
}

impl TokenCounter {
    /// The safety margin of the family that a model's name shows it to be of.
    pub fn of(model: &str) -> TokenCounter {
        let name = model.to_lowercase();
        let begins_like_openai_s = ["o1", "o3", "o4"].iter().any(|prefix| name.starts_with(prefix));
        let margin = match () {
            () if name.contains("gpt") || begins_like_openai_s => 1.0,
            () if name.contains("claude") => 1.15,
            () if name.contains("glm") => 1.25,
            () => 1.2, // gemini, qwen and all others
        };
        TokenCounter { margin, chars_per_token: CHARS_PER_TOKEN, cjk_chars_per_token: CJK_CHARS_PER_TOKEN }
    }

    /// Tokens of a text.
    pub fn text(self, text: &str) -> u64 {
        self.size(TextSize::of([text]))
    }

    fn size(self, size: TextSize) -> u64 {
        (self.without_margin(size) * self.margin).ceil() as u64
    }

    fn without_margin(self, size: TextSize) -> f64 {
        size.wide as f64 / self.cjk_chars_per_token + size.narrow as f64 / self.chars_per_token
    }

    /// Tokens of a message, with its frame.
    pub fn message(self, message: &TranscriptMessage) -> u64 {
        let mut words = 0;
        let around = each_text(message, |text| words += self.text(text));
        around + words
    }

    /// Tokens of a conversation.
    pub fn messages(self, messages: &[TranscriptMessage]) -> u64 {
        messages.iter().map(|message| self.message(message)).sum()
    }

    /// Tokens of the definitions of tools.
    pub fn tools(self, tools: &OfferedTools) -> u64 {
        FRAME * tools.len() as u64 + self.size(tools.size())
    }

    /// Tokens of a whole request.
    pub fn request(self, request: &ModelRequest) -> u64 {
        self.messages(&request.messages) + self.tools(&request.tools)
    }
}

/// Gives `take` each text of a message that a model reads; answers the tokens of what stands around them.
fn each_text(message: &TranscriptMessage, mut take: impl FnMut(&str)) -> u64 {
    let around = match message {
        TranscriptMessage::System { text, .. } | TranscriptMessage::User { text, .. } => {
            take(text);
            0
        }
        TranscriptMessage::Unusable { .. }
        | TranscriptMessage::Verdict { .. }
        | TranscriptMessage::Compaction(_)
        | TranscriptMessage::Pipeline { .. }
        | TranscriptMessage::Step { .. }
        | TranscriptMessage::StepResult { .. } => 0,
        TranscriptMessage::Tool { content, name, notices, .. } => {
            if !notices.is_empty() {
                take(&ResultNotice::joined(notices));
            }
            take(content);
            take(name);
            TAGS
        }
        // the message of the provider is sent, thinking included
        TranscriptMessage::Assistant { provider_message: Some(provider_message), .. } => {
            take(&provider_message.raw);
            0
        }
        TranscriptMessage::Assistant { text, tool_calls, provider_message: None, .. } => {
            if let Some(text) = text {
                take(text);
            }
            for call in tool_calls {
                take(&call.name);
                take(&call.args.to_string());
            }
            FRAME * tool_calls.len() as u64
        }
    };
    FRAME + around
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_has_its_margin() {
        let text = "x".repeat(4000);
        let counted = |model| TokenCounter::of(model).text(&text);
        let names = ["gpt-5", "o3-mini", "claude-opus-4", "gemini-3", "qwen3:8b", "glm-4.6", "llama3"];
        assert_eq!(names.map(counted), [1000, 1000, 1150, 1200, 1200, 1250, 1200]);
    }

    #[test]
    fn chinese_japanese_and_korean_take_more_tokens_a_character() {
        let gpt = TokenCounter::of("gpt");
        assert_eq!(gpt.text("早上好世界吗"), 4);
        assert_eq!(gpt.text("좋은아침입니다요하"), 6);
        assert_eq!(gpt.text("good morning"), 3);
        assert_eq!(gpt.text(""), 0);
    }

    #[test]
    fn request_counts_frames_calls_and_tools() {
        let gpt = TokenCounter::of("gpt");
        let calls = vec![crate::domain::run::transcript::ToolCall::new("1", "abcd", serde_json::json!({}))];
        let assistant = TranscriptMessage::Assistant {
            text: Some("abcdefgh".into()),
            tool_calls: calls,
            provider_message: None,
            finish: None,
        };
        assert_eq!(gpt.message(&assistant), 4 + 2 + 4 + 1 + 1);
        let tool = crate::ports::llm::ToolSchema {
            name: "abcd".into(),
            description: "abcd".into(),
            parameters: serde_json::json!({}).into(),
        };
        assert_eq!(gpt.tools(&vec![tool].into()), 4 + 1 + 1 + 1);
    }
}
