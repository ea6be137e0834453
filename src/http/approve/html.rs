//! HTML that is written piece by piece: markup is ours and fixed, every text from outside goes through [`Html::text`].
//!
//! What can't be seen on a page is made visible first: control characters, and those that turn the direction of a text
//! or have no width, so that nothing runs that a person could not read.

use std::fmt::Write;

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

    /// A number.
    pub fn number(&mut self, number: impl Into<i64>) -> &mut Html {
        let _ = write!(self.0, "{}", number.into());
        self
    }

    pub fn into_string(self) -> String {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_from_outside_is_never_markup() {
        let mut html = Html::default();
        html.raw("<p>").text("<script>alert('a\"&b')</script>").raw("</p>");
        assert_eq!(html.into_string(), "<p>&lt;script&gt;alert(&#39;a&quot;&amp;b&#39;)&lt;/script&gt;</p>");
    }
}
