//! Long texts, cut: at a line break where one is near, with a mark at the end.

/// A tool result is never cut shorter than this, in characters.
pub const LEAST_RESULT: usize = 2000;
/// The end of a text that was cut.
pub const CUT_MARK: &str = "\n[...truncated]";

/// At most `limit` characters, cut at the last line break if that lies past the half and leaves enough.
pub fn cut(text: &str, limit: usize) -> String {
    let Some((end, _)) = text.char_indices().nth(limit) else { return text.to_owned() };
    let kept = &text[..end];
    let at_line = kept.rfind('\n').map(|at| &kept[..at]).filter(|lines| {
        let length = lines.chars().count();
        length > limit / 2 && length >= LEAST_RESULT
    });
    format!("{}{CUT_MARK}", at_line.unwrap_or(kept))
}

/// A text of at most [`LEAST_RESULT`] characters; `None`: it is no longer.
pub fn cut_short(text: &str) -> Option<String> {
    let whole = text.strip_suffix(CUT_MARK).unwrap_or(text);
    (whole.chars().count() > LEAST_RESULT).then(|| cut(whole, LEAST_RESULT))
}

/// The beginning of a text on one line; `…` stands for the rest.
pub fn beginning(text: &str, limit: usize) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(beginning("é \n é é", 3), "é é…");
        assert_eq!(beginning("short\ttext", 10), "short text");
    }

    #[test]
    fn text_that_was_cut_short_is_not_cut_again() {
        let short = cut_short(&"x".repeat(5000)).unwrap();
        assert_eq!((short.len(), cut_short(&short)), (LEAST_RESULT + CUT_MARK.len(), None));
        assert_eq!(cut_short(&"x".repeat(LEAST_RESULT)), None);
    }
}
