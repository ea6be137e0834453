//! Texts for people: cut to the room that there is, on one line, with instants and links as people read them.

use chrono::{DateTime, Utc};
use chrono_tz::Tz;

use crate::domain::notification::MessageLanguage;
use crate::domain::trigger::zone::{abbreviation, shown_in};

/// Longest subject, in characters.
const SUBJECT_LENGTH: usize = 200;

/// A link to be shown as a button. Anybody who has the address may decide, or read, so it is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Link {
    /// `Decide`, `Stop it`; `Open` to read what was cut.
    pub label: String,
    /// Address of the link.
    pub url: String,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("label", &self.label).finish_non_exhaustive()
    }
}

/// An instant as people read it: `2026-12-24 08:00 CET`.
pub(super) fn instant(at: DateTime<Utc>, timezone: Tz) -> String {
    format!("{} {}", shown_in(at, timezone).format("%Y-%m-%d %H:%M"), abbreviation(at, timezone))
}

/// `text` within `limit` characters, its end given up for a note where it is longer.
pub fn cut(text: &str, limit: usize, whole: Option<&str>) -> String {
    cut_in(MessageLanguage::English, text, limit, whole)
}

/// A text cut to `limit` characters, with a note in this language at its end.
pub fn cut_in(language: MessageLanguage, text: &str, limit: usize, whole: Option<&str>) -> String {
    let length = text.chars().count();
    if length <= limit {
        return text.to_owned();
    }
    let whole = whole.map(|place| format!("; {place}")).unwrap_or_default();
    let note = match language {
        MessageLanguage::English => format!("\n\n[cut: {length} characters, {limit} at most{whole}]"),
        MessageLanguage::German => format!("\n\n[gekürzt: {length} Zeichen, höchstens {limit}{whole}]"),
    };
    match limit.checked_sub(note.chars().count()) {
        Some(room) => format!("{}{note}", beginning(text, room)),
        None => shortened(text, limit),
    }
}

/// A text within so many characters; where its end is given up, an ellipsis says so.
pub(super) fn shortened(text: &str, limit: usize) -> String {
    if text.chars().count() <= limit {
        return text.to_owned();
    }
    let ellipsis = if limit == 0 { "" } else { "…" };
    format!("{}{ellipsis}", beginning(text, limit.saturating_sub(1)))
}

/// The first characters of a text. A whole line looks better, where that does not cost half of what there is room for.
fn beginning(text: &str, room: usize) -> &str {
    let end = text.char_indices().nth(room).map_or(text.len(), |(end, _)| end);
    let head = &text[..end];
    head[..head.rfind('\n').filter(|end| *end > head.len() / 2).unwrap_or(head.len())].trim_end()
}

/// A text as a subject: one line, without control characters, not too long.
pub fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line: String = line.chars().filter(|c| !c.is_control()).collect();
    match line.chars().count() {
        n if n > SUBJECT_LENGTH => line.chars().take(SUBJECT_LENGTH - 1).chain(['…']).collect(),
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_text_is_cut_at_a_line_with_a_note_and_stays_within_the_limit() {
        assert_eq!(cut("short", 5, None), "short");
        let text = "0123456789\n".repeat(30);
        let cut_text = cut(&text, 200, Some("the whole is in run 42"));
        assert!(cut_text.chars().count() <= 200, "{}", cut_text.chars().count());
        assert!(
            cut_text.ends_with("0123456789\n\n[cut: 330 characters, 200 at most; the whole is in run 42]"),
            "{cut_text}"
        );
        let wide = cut(&"é".repeat(500), 100, None);
        assert_eq!(wide.chars().count(), 100);
        assert!(wide.ends_with("[cut: 500 characters, 100 at most]"), "{wide}");
        assert_eq!(cut("0123456789", 4, None).chars().count(), 4);
    }

    #[test]
    fn subject_is_one_line_without_control_characters() {
        assert_eq!(one_line("a\r\nBcc: b@c\u{7}  d"), "a Bcc: b@c d");
        assert_eq!(one_line(&"x".repeat(300)).chars().count(), 200);
    }

    #[test]
    fn note_of_a_cut_text_is_written_in_the_language_of_its_reader() {
        let cut_text = cut_in(MessageLanguage::German, &"é".repeat(500), 100, None);
        assert!(cut_text.ends_with("[gekürzt: 500 Zeichen, höchstens 100]"), "{cut_text}");
        assert_eq!(cut_text.chars().count(), 100);
    }
}
