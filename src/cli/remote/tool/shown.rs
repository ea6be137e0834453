//! Pins of tools, as a person is shown them.

use serde_json::Value;

use crate::base::unicode_safety::on_one_line;
use crate::cli::screen::{text_of, time_of};
use crate::cli::{Screen, Tone};

/// The hash of a definition, and since when it stands so.
pub fn told_of(pin: &Value, hash: &str, since: &str) -> String {
    match &pin[hash] {
        Value::Null => String::new(),
        hash => format!("{} since {}", text_of(hash), time_of(&pin[since])),
    }
}

/// Prints the lines in which a definition that waits differs from the accepted one, below an empty one.
pub fn show_difference(pin: &Value, screen: &mut Screen) -> anyhow::Result<()> {
    for (index, line) in pin["difference"].as_array().into_iter().flatten().enumerate() {
        if index == 0 {
            screen.line("")?;
        }
        // the service has made it safe to show; another one may not have
        let line = on_one_line(&text_of(line));
        let tone = match line.get(..2) {
            Some("- ") => Tone::Bad,
            Some("+ ") => Tone::Good,
            _ => Tone::Plain,
        };
        screen.line(screen.tone(tone, line))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::screen::TextPage;

    #[test]
    fn difference_stands_below_an_empty_line_and_moves_no_cursor() {
        let page = TextPage::default();
        let mut screen = Screen::plain(page.clone());
        show_difference(&json!({}), &mut screen).unwrap();
        assert_eq!(page.text(), "");
        let pin = json!({ "difference": ["description:", "- one", "+ t\u{1b}[2Jw\no"] });
        show_difference(&pin, &mut screen).unwrap();
        assert_eq!(page.text(), "\ndescription:\n- one\n+ t␛[2Jw o\n");
    }

    #[test]
    fn definition_is_told_with_its_hash_and_since_when() {
        let pin = json!({ "accepted": "5f2c", "accepted_at": "2026-11-21T00:00:00Z" });
        assert_eq!(told_of(&pin, "accepted", "accepted_at"), "5f2c since 2026-11-21 00:00:00Z");
        assert_eq!(told_of(&pin, "waiting", "waiting_since"), "");
    }
}
