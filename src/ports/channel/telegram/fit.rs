//! A text in Telegram's HTML within the length of one message.
//!
//! Telegram counts what is shown: tags have no length, `&amp;` has that of one sign, and a sign beyond 16 bits that of
//! two. A text that is too long loses its end, never a part of a tag; a tag that was opened is closed. A link that
//! stands in the text stays.

use crate::base::template::html::{MarkupPlace, escape_html};

/// Longest text, counted as Telegram does.
pub const MOST_CHARACTERS: usize = 4096;
/// Mark at the end of a text that was cut.
const CUT: &str = "…";

/// A tag, a reference, or one sign.
struct FitPiece<'a> {
    text: &'a str,
    /// As Telegram counts it.
    length: usize,
}

/// The text, cut where it has to be. `keep` is a link that is shown in it as it stands.
pub fn fit(html: &str, keep: Option<&str>) -> String {
    let pieces: Vec<FitPiece> = pieces(html).collect();
    if pieces.iter().map(|piece| piece.length).sum::<usize>() <= MOST_CHARACTERS {
        return html.to_owned();
    }
    let written = keep.map(|keep| escape_html(keep, MarkupPlace::Text)).filter(|keep| html.contains(keep.as_str()));
    let tail = written.map_or_else(|| CUT.to_owned(), |keep| format!("{CUT}\n{keep}"));
    let mut room = MOST_CHARACTERS.saturating_sub(self::pieces(&tail).map(|piece| piece.length).sum());
    let (mut fitted, mut open) = (String::new(), Vec::new());
    for piece in pieces {
        let Some(left) = room.checked_sub(piece.length) else { break };
        room = left;
        fitted.push_str(piece.text);
        match name_of(piece.text) {
            Some((name, false)) => open.push(name),
            Some((_, true)) => drop(open.pop()),
            None => {}
        }
    }
    fitted.truncate(fitted.trim_end().len());
    for name in open.iter().rev() {
        fitted.push_str(&format!("</{name}>"));
    }
    fitted + &tail
}

fn pieces(html: &str) -> impl Iterator<Item = FitPiece<'_>> {
    let mut rest = html;
    std::iter::from_fn(move || {
        let first = rest.chars().next()?;
        let (end, length) = match first {
            '<' => (rest.find('>').map_or(rest.len(), |end| end + 1), 0),
            '&' => match rest.find(';').filter(|end| *end < 10 && !rest[..*end].contains(char::is_whitespace)) {
                Some(end) => (end + 1, 1),
                None => (1, 1),
            },
            sign => (sign.len_utf8(), sign.len_utf16()),
        };
        let (text, after) = rest.split_at(end);
        rest = after;
        Some(FitPiece { text, length })
    })
}

/// The name of a tag, and whether it closes.
fn name_of(piece: &str) -> Option<(&str, bool)> {
    let inner = piece.strip_prefix('<')?.strip_suffix('>')?;
    let (inner, closes) = inner.strip_prefix('/').map_or((inner, false), |inner| (inner, true));
    Some((inner.split_whitespace().next().unwrap_or_default(), closes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn length(html: &str) -> usize {
        pieces(html).map(|piece| piece.length).sum()
    }

    #[test]
    fn length_counts_shown_characters() {
        assert_eq!(length("a<b>b</b>&amp;&lt;c"), 5);
        assert_eq!(length("😀é漢"), 4);
        assert_eq!((length("a & b;"), length("&"), length("<b")), (6, 1, 0));
    }

    #[test]
    fn text_that_fits_stays_as_it_is() {
        let full = format!("<b>{}</b>", "&amp;".repeat(MOST_CHARACTERS));
        assert_eq!(fit(&full, None), full);
    }

    #[test]
    fn text_that_is_too_long_loses_its_end_and_its_tags_are_closed() {
        let long = format!("<b>Title</b>\n<i>one <code>{}</code></i> end", "😀".repeat(MOST_CHARACTERS));
        let fitted = fit(&long, None);
        assert!(fitted.starts_with("<b>Title</b>\n<i>one <code>😀") && fitted.ends_with("😀</code></i>…"), "{fitted}");
        assert_eq!(length(&fitted), MOST_CHARACTERS - 1, "two do not fit where one is left");
    }

    #[test]
    fn link_stays_though_the_text_is_cut() {
        let link = "https://wake.example.org/approvals/0123?a=1&b=2";
        let written = link.replace('&', "&amp;");
        let long = format!("<b>{}</b>\n\nLook at it and decide:\n{written}", "word ".repeat(2000));
        let fitted = fit(&long, Some(link));
        assert!(fitted.ends_with(&format!("</b>…\n{written}")), "{fitted}");
        assert!(length(&fitted) <= MOST_CHARACTERS && length(&fitted) > MOST_CHARACTERS - 3, "{}", length(&fitted));
        assert!(!fit(&"x".repeat(5000), Some(link)).contains("https"), "what is not in it is not put there");
    }
}
