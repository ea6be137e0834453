//! A message in Slack's blocks: sections of its markup, and a button.
//! <https://docs.slack.dev/reference/block-kit/blocks>

use serde_json::{Value, json};
use url::Url;

use crate::base::template::html::{MarkupPlace, escape_html};
use crate::domain::notification::{Link, RenderedMessage};

/// Longest text of a section, in characters.
const SECTION_LENGTH: usize = 3000;
/// Most blocks of a message.
const MOST_BLOCKS: usize = 50;
/// Longest text of a button.
const LABEL_LENGTH: usize = 75;
/// Longest address of a button.
const URL_LENGTH: usize = 3000;
/// Longest text that is shown where blocks can't be: notifications, screen readers.
const FALLBACK_LENGTH: usize = 3900;
/// A text of this length fits into the sections of one message, wherever it has to be parted.
pub const MOST_CHARACTERS: usize = 40_000;

/// The body of the request for a message, but for its channel.
pub fn body(words: &RenderedMessage) -> Value {
    let button = words.link.as_ref().and_then(button);
    let room = MOST_BLOCKS - usize::from(button.is_some());
    let section = |text: &String| json!({ "type": "section", "text": { "type": "mrkdwn", "text": text } });
    let mut blocks: Vec<Value> = split_text(&words.text, SECTION_LENGTH).iter().take(room).map(section).collect();
    blocks.extend(button);
    let fallback = split_text(&words.text, FALLBACK_LENGTH).into_iter().next();
    // Slack reads three signs as markup: https://docs.slack.dev/messaging/formatting-message-text#escaping
    let fallback = fallback.unwrap_or_else(|| escape_html(&words.subject, MarkupPlace::Text));
    if blocks.is_empty() {
        blocks.push(section(&fallback));
    }
    json!({ "text": fallback, "blocks": blocks, "unfurl_links": false, "unfurl_media": false })
}

fn button(link: &Link) -> Option<Value> {
    let web = Url::parse(&link.url).is_ok_and(|url| matches!(url.scheme(), "http" | "https"));
    (web && link.url.len() <= URL_LENGTH).then(|| {
        let label: String = link.label.chars().take(LABEL_LENGTH).collect();
        let text = json!({ "type": "plain_text", "text": label });
        let button = json!({ "type": "button", "action_id": "open", "text": text, "url": link.url });
        json!({ "type": "actions", "elements": [button] })
    })
}

/// The text in pieces of at most `length` characters, parted at the end of a line or a word where one is near, and
/// never within `&amp;` or `<https://…>`. No piece is empty.
fn split_text(text: &str, length: usize) -> Vec<String> {
    let mut pieces = vec![];
    let mut rest = text.trim();
    while let Some((end, _)) = rest.char_indices().nth(length) {
        let cut = split_point(rest, end);
        pieces.push(rest[..cut].trim_end().to_owned());
        rest = rest[cut..].trim_start();
    }
    if !rest.is_empty() {
        pieces.push(rest.to_owned());
    }
    pieces
}

/// Where to part `text`, at `end` or before it.
fn split_point(text: &str, end: usize) -> usize {
    let head = &text[..end];
    let near = |place: &usize| *place > end / 2;
    let at_line = head.rfind('\n').filter(near);
    if let Some(place) = at_line.or_else(|| head.rfind(' ').filter(near)) {
        return before_markup(head, place);
    }
    before_markup(head, end)
}

/// The place, or the beginning of the reference or link that it stands in.
fn before_markup(head: &str, place: usize) -> usize {
    let opened = |open: char, close: char| {
        let start = head[..place].rfind(open)?;
        (!head[start..place].contains(close)).then_some(start)
    };
    // `&` is never plain in Slack's markup, but a text that is not ours may have one: a reference is short
    let reference = opened('&', ';').filter(|start| place - start < 6);
    let start = opened('<', '>').or(reference).unwrap_or(place);
    if start == 0 { place } else { start }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_parted_at_lines_and_words_and_nothing_is_lost() {
        assert_eq!(split_text("", 10), [""; 0]);
        assert_eq!(split_text("short", 10), ["short"]);
        assert_eq!(split_text("one two\nthree four", 10), ["one two", "three four"]);
        assert_eq!(split_text("one two three", 9), ["one two", "three"]);
        assert_eq!(split_text(&"é".repeat(25), 10), ["é".repeat(10), "é".repeat(10), "é".repeat(5)]);
    }

    #[test]
    fn split_keeps_references_and_links_whole() {
        assert_eq!(split_text("12345678&amp;9", 10), ["12345678", "&amp;9"]);
        assert_eq!(split_text("12345 <https://a.org|a b> x", 20), ["12345", "<https://a.org|a b>", "x"]);
        assert_eq!(split_text("a&b c d e f g h", 8), ["a&b c d", "e f g h"]);
    }

    #[test]
    fn longest_text_that_is_told_fits_into_one_message() {
        for line in ["word ".repeat(310) + "\n", "x".repeat(1501) + "\n", "&amp;".to_owned(), "é".to_owned()] {
            let text: String = line.chars().cycle().take(MOST_CHARACTERS).collect();
            let pieces = split_text(&text, SECTION_LENGTH);
            assert!(pieces.len() < MOST_BLOCKS, "{} pieces", pieces.len());
            assert!(pieces.iter().all(|piece| (1..=SECTION_LENGTH).contains(&piece.chars().count())));
        }
    }
}
