//! How many parts a text message has, and how a text is made to fit.
//!
//! A message goes out in 7 bits where all of it is in the GSM alphabet (3GPP TS 23.038, section 6.2.1), 160 to a part,
//! else in 16 bits, 70 to a part. Of several parts each gives up room for the header that joins them (3GPP TS 23.040,
//! section 9.2.3.24.1), and none begins with the second half of a character.

/// The basic alphabet: one septet each.
const BASIC: &str = "@£$¥èéùìòÇ\nØø\rÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ !\"#¤%&'()*+,-./0123456789:;<=>?¡ABCDEFGHIJKLMNOPQRSTUVWXYZÄÖÑÜ§¿\
                     abcdefghijklmnopqrstuvwxyzäöñüà";
/// The extension: an escape, and one septet more.
const EXTENSION: &str = "\u{c}^{}\\[~]|€";
/// Mark at the end of a text that was cut.
const CUT: &str = "...";

/// How a text goes over the air.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Alphabet {
    Gsm,
    Ucs2,
}

impl Alphabet {
    fn of(text: &str) -> Alphabet {
        match text.chars().all(|c| BASIC.contains(c) || EXTENSION.contains(c)) {
            true => Alphabet::Gsm,
            false => Alphabet::Ucs2,
        }
    }

    /// Room in a message of one part, and in each of several.
    fn capacity(self) -> (usize, usize) {
        match self {
            Alphabet::Gsm => (160, 153),
            Alphabet::Ucs2 => (70, 67),
        }
    }

    /// Septets, or units of UTF-16.
    fn width(self, c: char) -> usize {
        match self {
            Alphabet::Gsm => 1 + usize::from(EXTENSION.contains(c)),
            Alphabet::Ucs2 => c.len_utf16(),
        }
    }
}

/// How many parts the text has.
pub fn segments(text: &str) -> usize {
    let alphabet = Alphabet::of(text);
    let (alone, joined) = alphabet.capacity();
    if text.chars().map(|c| alphabet.width(c)).sum::<usize>() <= alone {
        return 1;
    }
    let (mut parts, mut free) = (1, joined);
    for width in text.chars().map(|c| alphabet.width(c)) {
        if width > free {
            (parts, free) = (parts + 1, joined);
        }
        free -= width;
    }
    parts
}

/// Most characters that so many parts can hold.
pub fn most_characters(parts: usize) -> usize {
    let (alone, joined) = Alphabet::Gsm.capacity();
    if parts == 1 { alone } else { parts * joined }
}

/// Whether the text has room in `most` parts, in the alphabet in which it is sent.
pub fn fits(text: &str, most: usize) -> bool {
    segments(&to_gsm_text(text)) <= most
}

/// The text within `most` parts. What looks the same in the GSM alphabet is written in it where that is enough to save
/// the others. Where there is not room for all, the end is given up, but for `keep`, which stands in it; `None` where
/// even that has no room.
pub fn fit(text: &str, keep: Option<&str>, most: usize) -> Option<String> {
    let text = to_gsm_text(text);
    if segments(&text) <= most {
        return Some(text);
    }
    let kept = keep.and_then(|keep| Some((text.rfind(keep)?, keep)));
    let (head, tail) = match kept {
        Some((at, keep)) => (text[..at].trim_end(), format!("{CUT}\n{keep}")),
        None => (text.as_str(), CUT.to_owned()),
    };
    let ends: Vec<usize> = head.char_indices().map(|(at, _)| at).collect();
    let shortened = |end: usize| format!("{}{tail}", head[..end].trim_end());
    // a shorter beginning never needs more parts, so the longest that fits can be searched for
    let fitting = ends.partition_point(|end| segments(&shortened(*end)) <= most);
    match fitting.checked_sub(1) {
        Some(last) => Some(shortened(ends[last])),
        None => keep.filter(|keep| segments(keep) <= most).map(str::to_owned),
    }
}

/// The text with typographic signs as a typewriter has them, if then all of it is in the GSM alphabet.
fn to_gsm_text(text: &str) -> String {
    let text = text.replace("\r\n", "\n");
    let mut plain = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '‘' | '’' | '‚' | '‛' | '′' | '`' | '´' => plain.push('\''),
            '“' | '”' | '„' | '‟' | '″' | '«' | '»' => plain.push('"'),
            '‐' | '‑' | '‒' | '–' | '—' | '−' | '•' => plain.push('-'),
            '…' => plain.push_str("..."),
            '\u{a0}' | '\u{2009}' | '\u{202f}' | '\t' => plain.push(' '),
            '\u{200b}' | '\u{2060}' | '\u{feff}' => {}
            c => plain.push(c),
        }
    }
    if Alphabet::of(&plain) == Alphabet::Gsm { plain } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_counted_as_phones_do() {
        let of = |text: &str, times: usize| segments(&text.repeat(times));
        assert_eq!((of("", 1), of("a", 160), of("a", 161), of("a", 306), of("a", 307)), (1, 1, 2, 2, 3));
        // an escape counts: 80 of them fill a message
        assert_eq!((of("€", 80), of("€", 81)), (1, 2));
        // 153 is odd, so the 77th would be cut in two and begins the next part
        assert_eq!((of("€", 152), of("€", 153)), (2, 3));
        assert_eq!((of("я", 70), of("я", 71), of("я", 134), of("я", 135)), (1, 2, 2, 3));
        // two units each, and 67 is odd
        assert_eq!((of("😀", 35), of("😀", 36), of("😀", 66), of("😀", 67)), (1, 2, 2, 3));
        assert_eq!(segments(&format!("{}я", "a".repeat(70))), 2, "one sign makes all of it wide");
        assert_eq!(segments(&format!("{BASIC}\n{}", "ÄÖÜßà")), 1);
    }

    #[test]
    fn alphabet_is_the_standard_s() {
        assert_eq!((BASIC.chars().count(), EXTENSION.chars().count()), (127, 10), "without the escape itself");
        for outside in ['ç', 'á', 'ő', '`', '“', '\t', 'я', '漢'] {
            assert_eq!(Alphabet::of(&outside.to_string()), Alphabet::Ucs2, "{outside}");
        }
    }

    #[test]
    fn text_is_written_plainly_where_that_saves_parts_and_only_there() {
        assert_eq!(fit("“Done” – it’s fine…", None, 1).as_deref(), Some("\"Done\" - it's fine..."));
        assert_eq!(fit("“Готово”", None, 1).as_deref(), Some("“Готово”"));
    }

    #[test]
    fn text_that_is_too_long_loses_its_end_and_keeps_the_link() {
        let link = "https://wake.example.org/approvals/0123456789abcdef";
        let long = format!("{}\n\nDecide:\n{link}\nbye", "word ".repeat(200));
        let fitted = fit(&long, Some(link), 2).unwrap();
        assert!(fitted.starts_with("word word") && fitted.ends_with(&format!("...\n{link}")), "{fitted}");
        assert_eq!((segments(&fitted), fitted.chars().count()), (2, 306));
        let wide = fit(&long.replace("word", "слово"), Some(link), 2).unwrap();
        assert!(segments(&wide) == 2 && wide.ends_with(link), "{wide}");
        assert_eq!(fit(&"a".repeat(500), None, 3), Some(format!("{}...", "a".repeat(456))));
        assert_eq!(fit(&format!("x {link}"), Some(link), 1), Some(format!("x {link}")));
    }

    #[test]
    fn link_that_has_no_room_is_not_cut() {
        let link = format!("https://wake.example.org/{}", "x".repeat(134));
        assert_eq!(link.len(), 159);
        assert_eq!(fit(&format!("Look at this: {link}"), Some(&link), 1), Some(link.clone()));
        assert_eq!(fit(&format!("{link}xx"), Some(&format!("{link}xx")), 1), None);
    }

    #[test]
    fn room_is_what_the_alphabet_leaves() {
        assert!(fits(&"a".repeat(459), 3) && !fits(&"a".repeat(460), 3));
        assert!(fits(&"漢".repeat(201), 3) && !fits(&"漢".repeat(202), 3));
        assert!(fits(&"😀".repeat(99), 3) && !fits(&"😀".repeat(100), 3), "two units each, and 67 is odd");
        assert!(fits(&format!("{}…", "a".repeat(456)), 3), "it is sent as three dots");
    }

    #[test]
    fn longest_text_that_fits_has_the_length_that_is_told() {
        assert_eq!((most_characters(1), most_characters(3)), (160, 459));
        assert_eq!((segments(&"a".repeat(459)), segments(&"a".repeat(460))), (3, 4));
    }
}
