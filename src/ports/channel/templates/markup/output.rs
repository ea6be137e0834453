//! Markup as it is written: no longer than a message may be, and closed wherever it ends.

/// Most bytes of markup that one text becomes. The rest of the text is not shown.
pub const MARKUP_BYTES: usize = 512 * 1024;
/// Lists, quotations, emphasis and links inside each other. A deeper part stands as plain text in the deepest.
pub const NESTING: usize = 12;
/// Stands where a text was cut off.
const CUT: &str = "…";

/// The text that has been written, and the tags that have to be closed.
#[derive(Default)]
pub struct MarkupOutput {
    text: String,
    /// The closing of each part that is open; `None` where its opening was not written.
    open: Vec<Option<&'static str>>,
    /// Parts that are open and were written.
    depth: usize,
    full: bool,
}

impl MarkupOutput {
    /// Writes all of it, or nothing from now on.
    pub fn push(&mut self, text: &str) {
        if self.full || self.text.len() + text.len() > MARKUP_BYTES {
            self.full = true;
            return;
        }
        self.text.push_str(text);
    }

    /// Opens a part; `write` says whether it has a sign of its own.
    pub fn open(&mut self, opening: &str, closing: &'static str) -> bool {
        let written = self.depth < NESTING && !self.full;
        if written {
            self.push(opening);
            self.depth += 1;
        }
        self.open.push((written && !self.full).then_some(closing));
        written
    }

    /// Closes the part that was opened last.
    pub fn close(&mut self) {
        if let Some(Some(closing)) = self.open.pop() {
            self.depth -= 1;
            self.push(closing);
            if self.full {
                self.open.push(Some(closing));
                self.depth += 1;
            }
        }
    }

    /// Whether something found no room.
    pub fn is_full(&self) -> bool {
        self.full
    }

    /// Whether nothing is written.
    pub fn is_empty(&self) -> bool {
        self.text.is_empty()
    }

    /// Bytes that are written.
    pub fn len(&self) -> usize {
        self.text.len()
    }

    /// The text so far.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The line breaks at the end.
    pub fn breaks(&self) -> usize {
        self.text.len() - self.text.trim_end_matches('\n').len()
    }

    /// All of it, closed.
    pub fn finish(mut self) -> String {
        if self.full {
            self.text.push_str(CUT);
        }
        while let Some(closing) = self.open.pop() {
            self.text.push_str(closing.unwrap_or_default());
        }
        self.text.trim().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_is_whole_at_its_bound_and_cut_one_beyond_it() {
        let written = |bytes: usize| {
            let mut out = MarkupOutput::default();
            out.push(&"x".repeat(MARKUP_BYTES - 1));
            out.push(&"y".repeat(bytes + 1 - MARKUP_BYTES));
            (out.is_full(), out.finish())
        };
        let (full, whole) = written(MARKUP_BYTES);
        assert!(!full && whole.len() == MARKUP_BYTES && whole.ends_with('y'));
        let (full, cut) = written(MARKUP_BYTES + 1);
        assert!(full && cut == format!("{}{CUT}", "x".repeat(MARKUP_BYTES - 1)), "{}", cut.len());
    }

    #[test]
    fn parts_open_down_to_the_deepest_and_stand_in_it_beyond() {
        let mut out = MarkupOutput::default();
        let opened = (0..=NESTING).filter(|_| out.open("<b>", "</b>")).count();
        assert_eq!(opened, NESTING);
        out.push("x");
        assert_eq!(out.finish(), format!("{}x{}", "<b>".repeat(NESTING), "</b>".repeat(NESTING)));
    }
}
