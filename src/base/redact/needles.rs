//! The forms in which a secret is looked for, besides what `reading` undoes on its way.

use base64::Engine;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

use crate::base::redact::{SHORTEST, TELLING};
use crate::base::template::html::{MarkupPlace, escape_html};

/// One text that is looked for.
pub struct Needle {
    /// Without line breaks, its letters of ASCII in lower case: keys in hexadecimal come back in either, and header
    /// names do.
    pub text: Zeroizing<Vec<u8>>,
    /// How it begins where its case matters: another one is another text.
    pub cased: Option<Zeroizing<Vec<u8>>>,
    /// The character before it is of base64 and holds bits of the secret.
    pub leads: bool,
    /// So does the character after it; padding may follow.
    pub trails: bool,
}

impl Needle {
    /// Whether what was read of it, which is this text but for the case, is this text: `read` is how it begins, as it
    /// stands.
    pub fn is(&self, read: &[u8]) -> bool {
        self.cased.as_ref().is_none_or(|cased| read.starts_with(cased))
    }
}

/// All forms of all secrets, sorted, each once.
pub fn needles<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Vec<Needle> {
    let mut needles = Vec::new();
    for secret in secrets {
        forms(secret, &mut needles);
    }
    needles.retain(|needle| needle.text.len() >= SHORTEST);
    needles.sort_unstable_by(|one, other| (&*one.text, cased(one)).cmp(&(&*other.text, cased(other))));
    needles.dedup_by(|later, kept| {
        let same = (&later.text, cased(later)) == (&kept.text, cased(kept));
        if same {
            kept.leads |= later.leads;
            kept.trails |= later.trails;
        }
        same
    });
    needles
}

fn cased(needle: &Needle) -> Option<&[u8]> {
    needle.cased.as_ref().map(|cased| cased.as_slice())
}

fn forms(secret: &str, needles: &mut Vec<Needle>) {
    // whoever carries a text in a header drops the space around it
    let trimmed = secret.trim();
    if trimmed.len() < SHORTEST {
        return;
    }
    let is_trimmed = secret.len() == trimmed.len();
    for text in [trimmed, secret].into_iter().take(if is_trimmed { 1 } else { 2 }) {
        plain(text.as_bytes(), needles);
        // what was escaped twice: `reading` undoes the outer escape
        plain(json(text).as_bytes(), needles);
        plain(percent(text).as_bytes(), needles);
        plain(Zeroizing::new(escape_html(text, MarkupPlace::Quoted)).as_bytes(), needles);
        // hexadecimal digits of a letter differ by its case
        for cased in [text.to_owned(), text.to_ascii_lowercase(), text.to_ascii_uppercase()].map(Zeroizing::new) {
            plain(hex::encode(&*cased).as_bytes(), needles);
        }
        for offset in 0..3 {
            base64(text.as_bytes(), offset, needles);
        }
    }
    if !secret.is_ascii() {
        // its bytes taken for Latin-1
        let mistaken: String = trimmed.bytes().map(char::from).collect();
        plain(mistaken.as_bytes(), needles);
    }
}

fn plain(text: &[u8], needles: &mut Vec<Needle>) {
    // one that does not grow leaves no copy behind
    let mut folded = Zeroizing::new(Vec::with_capacity(text.len()));
    folded.extend(text.iter().filter(|byte| !b"\r\n".contains(byte)).map(u8::to_ascii_lowercase));
    needles.push(Needle { text: folded, cased: None, leads: false, trails: false });
}

/// As it stands within the quotes of JSON.
fn json(text: &str) -> Zeroizing<String> {
    let quoted = Zeroizing::new(serde_json::to_string(text).unwrap_or_default());
    let inner = quoted.strip_prefix('"').and_then(|text| text.strip_suffix('"'));
    Zeroizing::new(inner.unwrap_or_default().to_owned())
}

fn percent(text: &str) -> Zeroizing<String> {
    let mut escaped = Zeroizing::new(String::with_capacity(text.len()));
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            true => escaped.push(char::from(byte)),
            false => {
                escaped.push('%');
                escaped.push(digit(byte >> 4));
                escaped.push(digit(byte & 15));
            }
        }
    }
    escaped
}

fn digit(value: u8) -> char {
    char::from(b"0123456789ABCDEF"[usize::from(value)])
}

/// The characters of base64 that hold bits of the secret alone, where it begins `offset` bytes after a group of three.
fn base64(secret: &[u8], offset: usize, needles: &mut Vec<Needle>) {
    let mut shifted = Zeroizing::new(vec![0; offset]);
    shifted.extend_from_slice(secret);
    let bits = shifted.len() * 8;
    // a character that begins with bits of what stands before is not the secret's own
    let own = (offset * 8).div_ceil(6)..bits / 6;
    for engine in [STANDARD_NO_PAD, URL_SAFE_NO_PAD] {
        let encoded = Zeroizing::new(engine.encode(&shifted));
        let own = &encoded.as_bytes()[own.clone()];
        let text = Zeroizing::new(own.to_ascii_lowercase());
        let cased = Some(Zeroizing::new(own[..own.len().min(TELLING)].to_vec()));
        needles.push(Needle { text, cased, leads: offset > 0, trails: !bits.is_multiple_of(6) });
    }
}
