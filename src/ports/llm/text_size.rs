//! How long texts are: as counts of tokens see it, and in bytes.

use crate::base::compute::JSON_IN_PLACE;
use crate::base::json::length::estimated_bytes;
use crate::domain::run::TranscriptMessage;

/// Characters of a text, by how many of them are a token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TextSize {
    /// Of Chinese, Japanese and Korean.
    pub wide: u64,
    /// Of all other scripts.
    pub narrow: u64,
}

impl TextSize {
    /// Counts the characters of all these texts.
    pub fn of<'a>(texts: impl IntoIterator<Item = &'a str>) -> TextSize {
        let mut size = TextSize::default();
        for c in texts.into_iter().flat_map(str::chars) {
            if is_cjk(c) { size.wide += 1 } else { size.narrow += 1 }
        }
        size
    }
}

/// About how many bytes a message of a conversation has in a request. Of long arguments of a call the beginning counts.
pub fn message_bytes(message: &TranscriptMessage) -> usize {
    match message {
        TranscriptMessage::System { text, .. } | TranscriptMessage::User { text, .. } => text.len(),
        TranscriptMessage::Assistant { text, tool_calls, provider_message, .. } => {
            let kept = provider_message.as_ref().map_or(0, |kept| kept.raw.len());
            let calls: usize = tool_calls.iter().map(|call| estimated_bytes(&call.args, 4 * JSON_IN_PLACE)).sum();
            text.as_ref().map_or(0, String::len) + kept + calls
        }
        TranscriptMessage::Tool { content, .. } => content.len(),
        _ => 0,
    }
}

/// Han, kana, hangul, and the full-width forms.
fn is_cjk(c: char) -> bool {
    matches!(c,
        '\u{1100}'..='\u{11ff}' | '\u{2e80}'..='\u{9fff}' | '\u{a960}'..='\u{a97f}' | '\u{ac00}'..='\u{d7ff}'
        | '\u{f900}'..='\u{faff}' | '\u{fe30}'..='\u{fe4f}' | '\u{ff00}'..='\u{ffef}' | '\u{20000}'..='\u{3ffff}')
}
