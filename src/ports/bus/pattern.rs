//! Patterns of the types of events.

/// Whether `text` is `pattern`, or begins with it where it ends in `*`.
pub fn fits(pattern: &str, text: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => text.starts_with(beginning),
        None => pattern == text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_is_the_text_or_its_beginning() {
        assert!(fits("mail.*", "mail.new") && fits("*", "") && fits("mail", "mail"));
        assert!(!fits("mail", "mail.new") && !fits("mail.*", "mail"));
    }
}
