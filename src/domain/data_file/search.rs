//! Searches for the lines of a text that match a pattern, over one chunk of the text after the other.
//!
//! A line that is longer than `LINE_BYTES` is searched in pieces. A search ends with [`FOUND`] lines.

use regex::Regex;
use serde::Serialize;

use crate::base::expr::pattern_of_data;

/// Lines that a search finds at most; the next one goes on behind them.
pub const FOUND: usize = 50;
/// Longest line that is searched as one, in bytes.
const LINE_BYTES: usize = 65_536;
/// As much of a line that matches as is shown, in characters.
const SHOWN: usize = 300;

/// A line that matches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FoundLine {
    /// The byte of the text at which it begins.
    pub offset: u64,
    /// Its beginning.
    pub text: String,
}

/// A search as far as it has come.
#[derive(Debug)]
pub struct LineSearch {
    pattern: Regex,
    /// The last line, of which the end is yet to come.
    rest: Vec<u8>,
    /// The byte of the text at which the rest begins.
    at: u64,
    found: Vec<FoundLine>,
}

impl LineSearch {
    /// A search from a byte of the text on, at which a line begins.
    ///
    /// # Errors
    /// The pattern is none, or too large; a sentence says why.
    pub fn new(pattern: &str, from: u64) -> Result<LineSearch, String> {
        Ok(LineSearch { pattern: pattern_of_data(pattern)?, rest: Vec::new(), at: from, found: Vec::new() })
    }

    /// Searches the next part of the text.
    pub fn feed(&mut self, content: &[u8]) {
        for line in content.split_inclusive(|byte| *byte == b'\n') {
            self.rest.extend_from_slice(line);
            while self.rest.len() > LINE_BYTES && !self.is_done() {
                let mut end = LINE_BYTES;
                while end > 0 && self.rest[end] & 0b1100_0000 == 0b1000_0000 {
                    end -= 1;
                }
                self.search(if end == 0 { LINE_BYTES } else { end });
            }
            if line.ends_with(b"\n") && !self.is_done() {
                self.search(self.rest.len());
            }
            if self.is_done() {
                return;
            }
        }
    }

    /// The lines, and where the next search goes on; `None`: nothing is left. `is_whole`: all of the text was fed.
    pub fn end(mut self, is_whole: bool) -> (Vec<FoundLine>, Option<u64>) {
        if is_whole && !self.is_done() && !self.rest.is_empty() {
            self.search(self.rest.len());
            return (self.found, None);
        }
        let next = (self.is_done() || !is_whole).then_some(self.at);
        (self.found, next)
    }

    /// Whether there are as many lines as there may be.
    pub fn is_done(&self) -> bool {
        self.found.len() == FOUND
    }

    /// Searches the first bytes of the rest.
    fn search(&mut self, bytes: usize) {
        let line = String::from_utf8_lossy(&self.rest[..bytes]);
        let line = line.trim_end_matches(['\n', '\r']);
        if self.pattern.is_match(line) {
            let text = match line.char_indices().nth(SHOWN) {
                Some((end, _)) => format!("{}…", &line[..end]),
                None => line.to_owned(),
            };
            self.found.push(FoundLine { offset: self.at, text });
        }
        self.rest.drain(..bytes);
        self.at += bytes as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str, pattern: &str, chunk: usize) -> (Vec<(u64, String)>, Option<u64>) {
        let mut search = LineSearch::new(pattern, 0).unwrap();
        text.as_bytes().chunks(chunk).for_each(|part| search.feed(part));
        let (lines, next) = search.end(true);
        (lines.into_iter().map(|line| (line.offset, line.text)).collect(), next)
    }

    #[test]
    fn lines_are_found_whole_wherever_the_text_is_cut() {
        let text = "one\ntwö 2\r\n\nthree 3\nfour 4";
        let expected = vec![(4, "twö 2".to_owned()), (13, "three 3".into()), (21, "four 4".into())];
        for chunk in 1..text.len() + 1 {
            assert_eq!(found(text, r"\d$", chunk), (expected.clone(), None), "{chunk}");
        }
        assert_eq!(found(text, "none", 5), (vec![], None));
        assert!(LineSearch::new("(", 0).is_err());
    }

    #[test]
    fn search_ends_with_as_many_lines_as_it_may_and_says_where_to_go_on() {
        let text = |lines: usize| "x\n".repeat(lines);
        assert_eq!(found(&text(FOUND - 1), "x", 7).1, None);
        let (lines, next) = found(&text(FOUND + 1), "x", 7);
        assert_eq!((lines.len(), next), (FOUND, Some(2 * FOUND as u64)));
    }

    #[test]
    fn long_line_is_searched_in_pieces_and_shown_by_its_beginning() {
        let line = format!("{}end", "é".repeat(LINE_BYTES));
        let (lines, next) = found(&line, "end", 1000);
        assert_eq!((lines.len(), next), (1, None));
        assert_eq!(lines[0].0, 2 * LINE_BYTES as u64, "the third piece");
        let (lines, _) = found(&line, "^é", 1000);
        assert_eq!(lines[0].1, format!("{}…", "é".repeat(SHOWN)));
    }

    #[test]
    fn search_that_was_broken_off_says_where_to_go_on() {
        let mut search = LineSearch::new("x", 100).unwrap();
        search.feed(b"ax\nb");
        let (lines, next) = search.end(false);
        assert_eq!((lines[0].offset, lines.len(), next), (100, 1, Some(103)));
    }
}
