//! Texts in HTML, and in the markup of channels that is made like it.

/// The place of a text in markup, which says which characters would be read as markup there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MarkupPlace {
    /// Between tags: `&`, `<` and `>`. Slack and Telegram know the entities of these three only.
    Text,
    /// Between tags, or in the value of an attribute between double quotes: `"` as well.
    DoubleQuoted,
    /// Between tags, or in the value of an attribute between quotes of either kind: `'` as well.
    Quoted,
}

/// The text with an entity for each character that would be read as markup in this place.
pub fn escape_html(text: &str, place: MarkupPlace) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' if place != MarkupPlace::Text => escaped.push_str("&quot;"),
            '\'' if place == MarkupPlace::Quoted => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_escaped_as_far_as_its_place_reads_markup() {
        let escaped = |place| escape_html("<a b=\"c\" d='e'>&amp;", place);
        assert_eq!(escaped(MarkupPlace::Text), "&lt;a b=\"c\" d='e'&gt;&amp;amp;");
        assert_eq!(escaped(MarkupPlace::DoubleQuoted), "&lt;a b=&quot;c&quot; d='e'&gt;&amp;amp;");
        assert_eq!(escaped(MarkupPlace::Quoted), "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;amp;");
    }
}
