//! How long texts are: as counts of tokens see it, and in bytes.

use crate::base::compute::JSON_IN_PLACE;
use crate::base::json::length::estimated_bytes;
use crate::domain::run::TranscriptMessage;

/// The least byte with which UTF-8 begins one of the characters that [`is_cjk`] names: U+1100 is `e1 84 80`.
const FIRST_WIDE_BYTE: u8 = 0xe1;

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
        for text in texts {
            let wide = wide_chars(text);
            size.wide += wide;
            size.narrow += text.chars().count() as u64 - wide;
        }
        size
    }
}

/// Characters of Chinese, Japanese and Korean. A conversation is counted in each of its turns, so texts without any are
/// looked at by their bytes.
fn wide_chars(text: &str) -> u64 {
    match text.bytes().any(|byte| byte >= FIRST_WIDE_BYTE) {
        true => text.chars().filter(|c| is_cjk(*c)).count() as u64,
        false => 0,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn characters_are_counted_by_script_whatever_their_bytes() {
        let size = |text: &str| (TextSize::of([text]).wide, TextSize::of([text]).narrow);
        assert_eq!(size(""), (0, 0));
        assert_eq!(size("plain"), (0, 5));
        assert_eq!(size("Grüße, Ζεύς"), (0, 11));
        assert_eq!(size("日本 and 한국"), (4, 5));
        assert_eq!(size("😀 “quoted”"), (0, 10));
        let both = TextSize::of(["日本", "ab"]);
        assert_eq!((both.wide, both.narrow), (2, 2));
    }

    #[test]
    fn no_wide_character_begins_below_the_first_byte() {
        let mut bytes = [0; 4];
        let mut wide = ('\0'..=char::MAX).filter(|c| is_cjk(*c));
        assert!(wide.all(|c| c.encode_utf8(&mut bytes).as_bytes()[0] >= FIRST_WIDE_BYTE));
    }
}
