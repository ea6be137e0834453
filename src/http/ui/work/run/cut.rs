//! Texts of a run, cut by their bytes or to one line.

use crate::http::ui::frame::text::beginning_of;

/// Bytes of a text that a page shows; the rest is loaded on demand.
pub const SHOWN_BYTES: usize = 4_096;

/// A text that may be cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CutText<'a> {
    /// Its beginning, or all of it.
    pub shown: &'a str,
    /// Whether there is more.
    pub is_cut: bool,
}

/// The beginning of a text, `most` bytes at most, between two characters.
pub fn cut_text(text: &str, most: usize) -> CutText<'_> {
    CutText { shown: &text[..text.floor_char_boundary(most)], is_cut: text.len() > most }
}

/// The first characters of a text, on one line.
pub fn one_line(text: &str, most: usize) -> String {
    // no more is looked at than can be shown, however long a line of a tool is
    let beginning = cut_text(text, most.saturating_mul(8));
    let words = beginning.shown.split_whitespace().collect::<Vec<_>>().join(" ");
    match beginning_of(&words, most) {
        (shown, true) => format!("{shown}…"),
        _ if beginning.is_cut => words + "…",
        _ => words,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_whole_at_its_bound_and_cut_between_characters_beyond_it() {
        let whole = "x".repeat(SHOWN_BYTES);
        assert_eq!(cut_text(&whole, SHOWN_BYTES), CutText { shown: &whole, is_cut: false });
        let longer = whole[1..].to_owned() + "é";
        assert_eq!(cut_text(&longer, SHOWN_BYTES), CutText { shown: &whole[1..], is_cut: true });
    }

    #[test]
    fn line_is_short_however_long_the_text_is() {
        assert_eq!(one_line("a\n  b\tc", 10), "a b c");
        assert_eq!(one_line("one two three", 7), "one two…");
        let long = "é".repeat(1 << 20);
        assert_eq!(one_line(&long, 5), "ééééé…");
        assert_eq!(one_line(&" ".repeat(1_000), 5), "…");
    }
}
