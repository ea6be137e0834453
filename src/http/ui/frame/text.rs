//! Texts as far as a page shows them.

use serde_json::Value;

/// The first characters of a text, `most` of them, and whether there are more.
pub fn beginning_of(text: &str, most: usize) -> (&str, bool) {
    match text.char_indices().nth(most) {
        Some((end, _)) => (&text[..end], true),
        None => (text, false),
    }
}

/// JSON as a person reads it: a text as it is, nothing for `null`, all else over several lines.
pub fn readable(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        value => serde_json::to_string_pretty(value).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn beginning_is_whole_at_its_bound_and_cut_between_characters_beyond_it() {
        assert_eq!(beginning_of("éé", 2), ("éé", false));
        assert_eq!(beginning_of("ééx", 2), ("éé", true));
        assert_eq!(beginning_of("x", usize::MAX), ("x", false));
    }

    #[test]
    fn text_is_shown_as_it_is_and_other_values_as_json() {
        assert_eq!(readable(&json!("a\nb")), "a\nb");
        assert_eq!(readable(&json!({ "a": 1 })), "{\n  \"a\": 1\n}");
        assert_eq!(readable(&Value::Null), "");
    }
}
