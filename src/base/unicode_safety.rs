//! Characters that people would not see, or that turn others: shown for what they are wherever consent is asked for.

use std::fmt::Write;

/// Whether nothing, or something else than it is, would be seen of a character.
pub fn is_hidden(c: char) -> bool {
    match c {
        '\n' | '\t' => false,
        // directions, joiners, fillers, tags: Unicode's Default_Ignorable_Code_Point and Bidi_Control, the parts in use
        '\u{ad}'
        | '\u{34f}'
        | '\u{61c}'
        | '\u{115f}'
        | '\u{1160}'
        | '\u{17b4}'
        | '\u{17b5}'
        | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}'
        | '\u{3164}'
        | '\u{feff}'
        | '\u{ffa0}'
        | '\u{fff0}'..='\u{fffb}'
        | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}' => true,
        c => c.is_control(),
    }
}

/// Whether a character leaves no trace of its own in a name: what is hidden, what chooses between forms of the
/// character before it, and blanks that are no spaces. Texts may have the last two, and names by which things are told
/// apart may not.
pub fn is_traceless(c: char) -> bool {
    is_hidden(c) || matches!(c, '\u{fe00}'..='\u{fe0f}' | '\u{2800}')
}

/// The text with a sign in the place of each hidden character: `␀` for C0, else `⟦U+202E⟧`.
pub fn escape_hidden(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    let mut before = None;
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            // between letters that need them (Persian, Indic scripts, emoji) joiners are spelling
            '\u{200c}' | '\u{200d}' if needs_joiner(before) && needs_joiner(rest.peek().copied()) => shown.push(c),
            c if !is_hidden(c) => shown.push(c),
            c @ '\0'..='\u{1f}' => shown.push(char::from_u32(0x2400 + c as u32).unwrap_or('\u{fffd}')),
            '\u{7f}' => shown.push('\u{2421}'),
            c => drop(write!(shown, "\u{27e6}U+{:04X}\u{27e7}", c as u32)),
        }
        before = Some(c);
    }
    shown
}

fn needs_joiner(c: Option<char>) -> bool {
    c.is_some_and(|c| c >= '\u{600}' && !is_hidden(c))
}

/// The text with hidden characters shown, on one line.
pub fn on_one_line(text: &str) -> String {
    escape_hidden(&text.replace(['\n', '\r', '\t'], " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invisible_characters_are_shown() {
        assert_eq!(
            escape_hidden("pay\u{202e}gnp.exe\0 a\u{200b}b\r\n\u{1b}[0m\u{7f}\u{e0041}"),
            concat!(
                "pay\u{27e6}U+202E\u{27e7}gnp.exe\u{2400} a\u{27e6}U+200B\u{27e7}b\u{240d}\n\u{241b}[0m\u{2421}",
                "\u{27e6}U+E0041\u{27e7}"
            )
        );
        for whole in ["שלום", "می\u{200c}خواهم", "👩\u{200d}👧", "line\n\tnext"] {
            assert_eq!(escape_hidden(whole), whole);
        }
        assert_eq!(escape_hidden("a\u{200d}b"), "a\u{27e6}U+200D\u{27e7}b");
    }

    #[test]
    fn forms_of_characters_are_spelling_in_texts_and_traceless_in_names() {
        assert_eq!(escape_hidden("\u{2714}\u{fe0f}"), "\u{2714}\u{fe0f}");
        assert!(['\u{fe00}', '\u{fe0f}', '\u{2800}', '\u{200b}', '\u{e0100}'].into_iter().all(is_traceless));
        assert!(['a', ' ', 'é', '東', '👩'].into_iter().all(|c| !is_traceless(c)));
    }
}
