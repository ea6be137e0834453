//! Pages: parts of a text by bytes, cut where a character begins.

/// The bytes of a text that lie in `content`, which begins at byte `start` of it, from byte `from` on and at most
/// `limit` of them, without the halves of characters at both ends. Answers the byte at which the page begins, and the
/// page.
pub fn page(content: &[u8], start: u64, from: u64, limit: usize) -> (u64, &str) {
    let mut first = usize::try_from(from.saturating_sub(start)).map_or(content.len(), |first| first.min(content.len()));
    while content.get(first).is_some_and(|byte| is_continuation(*byte)) {
        first += 1;
    }
    let mut end = first.saturating_add(limit).min(content.len());
    while end > first && content.get(end).is_some_and(|byte| is_continuation(*byte)) {
        end -= 1;
    }
    let text = match std::str::from_utf8(&content[first..end]) {
        Ok(text) => text,
        // the last character goes on in the next chunk
        Err(error) => std::str::from_utf8(&content[first..first + error.valid_up_to()]).unwrap_or_default(),
    };
    (start + first as u64, text)
}

fn is_continuation(byte: u8) -> bool {
    byte & 0b1100_0000 == 0b1000_0000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_join_to_the_text_whatever_its_characters() {
        let text = "aé€😀\nend".repeat(7);
        for limit in 4..20 {
            let (mut joined, mut at) = (String::new(), 0);
            while at < text.len() as u64 {
                let (begins, part) = page(text.as_bytes(), 0, at, limit);
                assert!(begins == at && part.len() <= limit && !part.is_empty(), "{limit} at {at}");
                joined.push_str(part);
                at += part.len() as u64;
            }
            assert_eq!(joined, text, "{limit}");
        }
    }

    #[test]
    fn page_begins_at_the_next_character_and_ends_with_the_content() {
        let text = "é€x";
        assert_eq!(page(text.as_bytes(), 0, 1, 9), (2, "€x"));
        assert_eq!(page(text.as_bytes(), 100, 102, 3), (102, "€"));
        assert_eq!(page(text.as_bytes(), 100, 0, 2), (100, "é"));
        assert_eq!(page(text.as_bytes(), 0, 99, 3), (6, ""));
        assert_eq!(page(&text.as_bytes()[..4], 0, 0, 9), (0, "é"), "half a character at the end");
    }
}
