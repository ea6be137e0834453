//! HTML that is written piece by piece: markup is ours and fixed, every text from outside goes through [`Html::text`].
//!
//! What can't be seen on a page is made visible first: control characters, and those that turn the direction of a text
//! or have no width, so that nothing runs that a person could not read.

use std::fmt::Write;

use crate::channel::templates::phrases::{Piece, pieces};
use crate::visible::visible;

/// A page in the making.
#[derive(Debug, Default)]
pub struct Html(String);

impl Html {
    /// Markup of our own.
    pub fn raw(&mut self, markup: &'static str) -> &mut Html {
        self.0.push_str(markup);
        self
    }

    /// Markup that was made from pieces by another [`Html`].
    pub fn markup(&mut self, made: &str) -> &mut Html {
        self.0.push_str(made);
        self
    }

    /// A text, escaped, everything in it visible.
    pub fn text(&mut self, text: &str) -> &mut Html {
        self.exact(&visible(text))
    }

    /// A text, escaped and otherwise as it is: the value of a form field, which comes back.
    pub fn exact(&mut self, text: &str) -> &mut Html {
        for c in text.chars() {
            match c {
                '&' => self.0.push_str("&amp;"),
                '<' => self.0.push_str("&lt;"),
                '>' => self.0.push_str("&gt;"),
                '"' => self.0.push_str("&quot;"),
                '\'' => self.0.push_str("&#39;"),
                c => self.0.push(c),
            }
        }
        self
    }

    /// A phrase of a catalogue, with pieces of markup in the places that it has for them.
    pub fn say(&mut self, phrase: &str, parts: &[(&str, String)]) -> &mut Html {
        for piece in pieces(phrase) {
            match piece {
                Piece::Words(words) => drop(self.exact(words)),
                Piece::Insert(name) => {
                    self.0.push_str(parts.iter().find(|(part, _)| *part == name).map_or("", |(_, made)| made))
                }
            }
        }
        self
    }

    /// A number.
    pub fn number(&mut self, number: impl Into<i64>) -> &mut Html {
        let _ = write!(self.0, "{}", number.into());
        self
    }

    pub fn into_string(self) -> String {
        self.0
    }
}

/// A text between two pieces of markup, for [`Html::say`].
pub fn around(open: &'static str, text: &str, close: &'static str) -> String {
    let mut html = Html::default();
    html.raw(open).text(text).raw(close);
    html.into_string()
}

/// A text whose direction is its own, for [`Html::say`].
pub fn apart(text: &str) -> String {
    around("<bdi>", text, "</bdi>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phrase_is_escaped_around_what_is_put_in() {
        let mut html = Html::default();
        html.say("{who} <3 {what} {nothing", &[("who", apart("<b>")), ("what", "<hr>".into())]);
        assert_eq!(html.into_string(), "<bdi>&lt;b&gt;</bdi> &lt;3 <hr> {nothing");
    }

    #[test]
    fn text_from_outside_is_never_markup() {
        let mut html = Html::default();
        html.raw("<p>").text("<script>alert('a\"&b')</script>").raw("</p>");
        assert_eq!(html.into_string(), "<p>&lt;script&gt;alert(&#39;a&quot;&amp;b&#39;)&lt;/script&gt;</p>");
    }
}
