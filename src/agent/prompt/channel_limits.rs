//! Limits of what carries an answer.

use std::sync::LazyLock;

/// Limits of the channel that will carry the answer; the model is told of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChannelLimits {
    /// Name of the channel, such as `sms`.
    pub name: String,
    /// `plain`, `markdown`, `html`, …
    pub supported_formats: Vec<String>,
    /// Markdown is shown as such, whether the channel carries it or turns it into its own marks.
    pub renders_markdown: bool,
    /// In characters.
    pub max_response_length: Option<usize>,
}

impl ChannelLimits {
    /// Those of a chat, whose answer goes back to who asks.
    pub fn chat() -> ChannelLimits {
        ChannelLimits {
            name: "chat".into(),
            supported_formats: vec!["markdown".into()],
            renders_markdown: true,
            max_response_length: None,
        }
    }

    /// Those of a chat, which all messages of persons share.
    pub fn of_chat() -> &'static ChannelLimits {
        static CHAT: LazyLock<ChannelLimits> = LazyLock::new(ChannelLimits::chat);
        &CHAT
    }
}
