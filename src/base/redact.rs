//! Known secrets found and taken out of texts that come from outside, in whatever encoding they come back.
//!
//! A server may echo what it was sent: as it was or in other letters' case, escaped for JSON, HTML or a URL, as base64
//! or as hexadecimal. A secret that is found is replaced by [`REDACTED`]. It guards against echoes, not against a
//! server that hides a secret on purpose. It keeps nothing but the secrets that it was made with, and those are zeroed
//! when it is dropped.

mod needles;
mod reading;
mod steps;

use std::borrow::Cow;
use std::ops::Range;

use serde_json::Value;
use zeroize::Zeroizing;

use crate::base::redact::needles::{Needle, needles};
use crate::base::redact::reading::{ByteReading, MOST_READINGS, readings};
use crate::base::redact::steps::RedactionSteps;
use crate::base::secret::REDACTED;

pub use crate::base::redact::steps::JointRedaction;

/// The shortest text that is looked for, in bytes: anything shorter is everywhere.
pub const SHORTEST: usize = 4;
/// The shortest leaf of a document that counts as a secret without having been sent, in characters.
pub const SHORTEST_LEAF: usize = 8;
/// The first so many bytes of a long secret give it away; what follows is taken out as far as it is the secret's.
const TELLING: usize = 64;
/// Readings that are looked into besides the first, from one place on.
const BRANCHES: usize = 1024;
/// So many secrets that begin alike take one more step to look at.
const SECRETS_OF_A_STEP: usize = 8;
/// Steps of [`Compute`](crate::base::compute::Compute) to make the forms of a secret and to put them in order, and
/// those for each of its bytes.
const BUILD: (u64, u64) = (10_000, 100);
/// Leaves under these names are known to be no secrets.
const PLAIN: [&str; 24] = [
    "account",
    "audience",
    "auth_uri",
    "auth_url",
    "authorization_url",
    "authorize_url",
    "client_auth",
    "client_id",
    "email",
    "expires",
    "expires_at",
    "expires_in",
    "expiry",
    "grant_type",
    "issuer",
    "login",
    "provider",
    "scope",
    "scopes",
    "token_type",
    "token_uri",
    "token_url",
    "user",
    "username",
];

/// Finds known secrets. Made for one exchange, and dropped after it.
pub struct Redactor {
    /// Sorted, so that those with a common beginning are neighbours.
    needles: Vec<Needle>,
    /// Where those that begin with a byte lie.
    beginnings: Box<[Range<u32>; 256]>,
    /// It does not know all secrets that there are.
    hides_all: bool,
}

/// The texts of a secret document that count as secrets: every text of at least [`SHORTEST_LEAF`] characters, but those
/// right under names that tell that they are none (`client_id`, `token_url`, `scope`, `expires_at`, `username`, …).
/// What lies deeper goes by its own name: `login` may be a user's name, or hold one beside a password.
pub fn secrets_of(document: &Value) -> Vec<&str> {
    let mut found = Vec::new();
    let mut leaf = |value: &Value| matches!(value, Value::String(text) if text.chars().count() >= SHORTEST_LEAF);
    collect(document, false, &mut leaf, &mut found);
    found.into_iter().filter_map(Value::as_str).collect()
}

/// The texts and numbers of a secret document that count as secrets once the document is in the hands of code: those of
/// at least [`SHORTEST`] bytes, but those right under names that tell that they are none.
pub fn all_secrets_of(document: &Value) -> Vec<Zeroizing<String>> {
    let text_of = |value: &Value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let mut found = Vec::new();
    let mut leaf = |value: &Value| match value {
        Value::String(text) => text.len() >= SHORTEST,
        Value::Number(number) => number.to_string().len() >= SHORTEST,
        _ => false,
    };
    collect(document, false, &mut leaf, &mut found);
    found.into_iter().map(|value| Zeroizing::new(text_of(value))).collect()
}

/// `plain`: it is a text, or a list of texts, under a name that tells that it is no secret.
fn collect<'a>(value: &'a Value, plain: bool, is_secret: &mut dyn FnMut(&Value) -> bool, found: &mut Vec<&'a Value>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| collect(item, plain, is_secret, found)),
        Value::Object(fields) => {
            fields.iter().for_each(|(name, value)| collect(value, is_plain(name), is_secret, found));
        }
        leaf if !plain && is_secret(leaf) => found.push(leaf),
        _ => {}
    }
}

fn is_plain(name: &str) -> bool {
    PLAIN.contains(&name.to_lowercase().replace('-', "_").as_str())
}

impl Redactor {
    /// Looks for these; those shorter than [`SHORTEST`] are left out.
    pub fn new<'a>(secrets: impl IntoIterator<Item = &'a str>) -> Redactor {
        let needles = needles(secrets);
        let mut beginnings = Box::new(std::array::from_fn(|_| 0..0));
        for (needle, at) in needles.iter().zip(0_u32..) {
            let range: &mut Range<u32> = &mut beginnings[usize::from(needle.text[0])];
            *range = if range.start == range.end { at..at + 1 } else { range.start..at + 1 };
        }
        Redactor { needles, beginnings, hides_all: false }
    }

    /// Takes every text as a whole: there are more secrets than are looked for.
    pub fn hiding_all() -> Redactor {
        Redactor { hides_all: true, ..Redactor::new([]) }
    }

    /// The steps that it takes at most to make one that looks for so many secrets of so many bytes together, as
    /// [`Compute::run_if_costly`](crate::base::compute::Compute::run_if_costly) counts them.
    pub fn steps_to_build(secrets: usize, bytes: usize) -> u64 {
        let (of_a_secret, of_a_byte) = BUILD;
        (secrets as u64).saturating_mul(of_a_secret).saturating_add((bytes as u64).saturating_mul(of_a_byte))
    }

    /// Whether one of the secrets is in there, or may be: a text that takes too many steps is not read to its end.
    pub fn contains_secret(&self, bytes: &[u8]) -> bool {
        self.contains_within(bytes, &mut RedactionSteps::of(bytes))
    }

    fn contains_within(&self, bytes: &[u8], steps: &mut RedactionSteps) -> bool {
        if self.hides_all || bytes.is_empty() {
            return !bytes.is_empty();
        }
        (0..bytes.len()).any(|at| self.match_at(bytes, at, steps).is_some()) || steps.is_exhausted()
    }

    /// The text without the secrets. One that takes too many steps goes as a whole.
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        shown(text, self.bytes(text.as_bytes()))
    }

    /// The bytes without the secrets, whatever they hold.
    pub fn bytes<'a>(&self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        self.bytes_within(bytes, &mut RedactionSteps::of(bytes))
    }

    fn bytes_within<'a>(&self, bytes: &'a [u8], steps: &mut RedactionSteps) -> Cow<'a, [u8]> {
        let places = if self.hides_all { Vec::new() } else { self.secret_ranges(bytes, steps) };
        if !bytes.is_empty() && (self.hides_all || steps.is_exhausted()) {
            return Cow::Owned(REDACTED.into());
        }
        if places.is_empty() {
            return Cow::Borrowed(bytes);
        }
        let mut clean = Vec::with_capacity(bytes.len());
        let mut done = 0;
        for place in places {
            clean.extend_from_slice(&bytes[done..place.start]);
            clean.extend_from_slice(REDACTED.as_bytes());
            done = place.end;
        }
        clean.extend_from_slice(&bytes[done..]);
        Cow::Owned(clean)
    }

    /// Where secrets lie, in order, as far as the steps go; those that overlap are one.
    fn secret_ranges(&self, bytes: &[u8], steps: &mut RedactionSteps) -> Vec<Range<usize>> {
        let mut places: Vec<Range<usize>> = Vec::new();
        let mut inside_steps = RedactionSteps::inside(bytes);
        let mut at = 0;
        while at < bytes.len() {
            let inside = places.last().map(|last| last.end).filter(|end| at < *end);
            let found = match inside {
                // what was found goes in any case, so one that repeats itself does not use up the steps of the others
                Some(end) if inside_steps.is_exhausted() => {
                    at = end;
                    continue;
                }
                Some(_) => self.match_at(bytes, at, &mut inside_steps),
                None => self.match_at(bytes, at, steps),
            };
            match (found, places.last_mut()) {
                (Some(found), Some(last)) if found.start < last.end => last.end = last.end.max(found.end),
                (Some(found), _) => places.push(found),
                (None, _) => {}
            }
            at += 1;
        }
        places
    }

    /// The longest secret that begins here, as far as the steps go.
    fn match_at(&self, bytes: &[u8], at: usize, steps: &mut RedactionSteps) -> Option<Range<usize>> {
        let mut todo: Vec<Path> = Vec::new();
        let mut branches = 0;
        let mut found: Option<Range<usize>> = None;
        let whole = 0..self.needles.len() as u32;
        let mut next = Some(Path { among: whole, depth: 0, at, read: [0; TELLING] });
        while let Some(path) = next.take().or_else(|| todo.pop()) {
            if !steps.take(Redactor::weight(&path)) {
                break;
            }
            for needle in self.complete_matches(&path) {
                let end = if needle.trails && needle.text.len() == path.depth {
                    trailing_chars(bytes, path.at)
                } else {
                    path.at
                };
                let start = if needle.leads { leading_char(bytes, at) } else { at };
                let known = found.clone().unwrap_or(start..end);
                found = Some(known.start.min(start)..known.end.max(end));
            }
            let mut read = [ByteReading::NONE; MOST_READINGS];
            let count = readings(bytes, path.at, &mut read);
            for reading in &read[..count] {
                let Some(further) = self.follow(&path, reading) else { continue };
                match next {
                    None => next = Some(further),
                    Some(_) if branches < BRANCHES => {
                        branches += 1;
                        todo.push(further);
                    }
                    Some(_) => {}
                }
            }
        }
        found
    }

    /// The steps that this one takes: once they are given away, all secrets that begin so are looked at.
    fn weight(path: &Path) -> usize {
        if path.depth < TELLING { 1 } else { 1 + path.among.len() / SECRETS_OF_A_STEP }
    }

    /// The secrets that have been read to their ends, or so far that they are given away. Those of one length come
    /// first among those that begin alike.
    fn complete_matches<'a>(&'a self, path: &'a Path) -> impl Iterator<Item = &'a Needle> {
        let among = match path.depth {
            0 => &[],
            _ => &self.needles[path.among.start as usize..path.among.end as usize],
        };
        let is_read = |needle: &&Needle| path.depth >= TELLING || needle.text.len() == path.depth;
        let read = &path.read[..path.depth.min(TELLING)];
        among.iter().take_while(is_read).filter(move |needle| needle.is(read))
    }

    /// The path with a reading put to it, if a secret goes on so.
    fn follow(&self, path: &Path, reading: &ByteReading) -> Option<Path> {
        // a line break may be put into anything long; a secret does not begin with one
        if reading.is_empty() && path.depth == 0 {
            return None;
        }
        let mut among = path.among.clone();
        let mut depth = path.depth;
        for byte in reading.bytes() {
            let folded = byte.to_ascii_lowercase();
            among = match depth {
                0 => self.beginnings[usize::from(folded)].clone(),
                _ => self.narrow(among, depth, folded),
            };
            if among.is_empty() {
                return None;
            }
            depth += 1;
        }
        let mut read = path.read;
        for (place, byte) in read.iter_mut().skip(path.depth).zip(reading.bytes()) {
            *place = *byte;
        }
        Some(Path { among, depth, at: path.at + reading.length, read })
    }

    /// Of these, which have `byte` at `depth`; they have all that is before it in common.
    fn narrow(&self, among: Range<u32>, depth: usize, byte: u8) -> Range<u32> {
        let slice = &self.needles[among.start as usize..among.end as usize];
        let (from, to) = match slice {
            [only] => (0, u32::from(only.text.get(depth) == Some(&byte))),
            _ => (
                slice.partition_point(|needle| needle.text.get(depth) < Some(&byte)) as u32,
                slice.partition_point(|needle| needle.text.get(depth) <= Some(&byte)) as u32,
            ),
        };
        among.start + from..among.start + to
    }
}

/// Not even their number.
impl std::fmt::Debug for Redactor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Redactor")
    }
}

/// How far one way of reading the text has come.
#[derive(Clone)]
struct Path {
    /// The secrets that begin so.
    among: Range<u32>,
    /// Bytes of them that have been read.
    depth: usize,
    at: usize,
    /// The first of these bytes, in the case in which they stand.
    read: [u8; TELLING],
}

/// A text as its bytes are shown.
fn shown<'a>(text: &'a str, bytes: Cow<'_, [u8]>) -> Cow<'a, str> {
    match bytes {
        Cow::Borrowed(_) => Cow::Borrowed(text),
        Cow::Owned(bytes) => Cow::Owned(String::from_utf8_lossy(&bytes).into_owned()),
    }
}

fn is_base64(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"+/-_".contains(&byte)
}

/// With the character before, which holds bits of the secret.
fn leading_char(bytes: &[u8], at: usize) -> usize {
    match at.checked_sub(1) {
        Some(before) if is_base64(bytes[before]) => before,
        _ => at,
    }
}

/// With the character after, which holds bits of the secret, and the padding.
fn trailing_chars(bytes: &[u8], mut at: usize) -> usize {
    let mut read = [ByteReading::NONE; MOST_READINGS];
    let step = |at: usize, read: &mut [ByteReading; MOST_READINGS], fits: fn(u8) -> bool| {
        let count = readings(bytes, at, read);
        read[..count].iter().find(|reading| matches!(reading.bytes(), [byte] if fits(*byte))).map(|read| read.length)
    };
    at += step(at, &mut read, is_base64).unwrap_or(0);
    for _ in 0..2 {
        at += step(at, &mut read, |byte| byte == b'=').unwrap_or(0);
    }
    at
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE, URL_SAFE_NO_PAD};
    use serde_json::json;

    use super::*;
    use crate::base::compute::IN_PLACE;

    /// Odd in shape: every escape has something to do in one of them.
    const CANARIES: [&str; 50] = [
        "canary-7",
        "tiny",
        "1234567890",
        "k&y=v+w/x",
        "50%25-off",
        "100%",
        "a b c d",
        " led and trailed ",
        "tab\tbed",
        "two\nlines",
        "carriage\r\nreturn",
        "\"quoted\"",
        "'single'",
        "back\\slash",
        "<b>bold</b>",
        "&amp;twice",
        "%2B%2F",
        "\\u0041bc",
        "++plus++",
        "==pads==",
        "/slashes//",
        "?query=1#frag",
        "user:password",
        "ann@example.org:pä$$",
        "schlüssel-größe",
        "ключ-секрет",
        "密钥密钥",
        "🔑🔑🔑",
        "e\u{301}gal-combining",
        "\u{202e}odd-bidi",
        "nul\u{0}byte",
        "bell\u{7}bell",
        "del\u{7f}del",
        "zero\u{200b}width",
        "{json}",
        "[list]",
        "{{ template }}",
        "${shell}",
        "`ticks`",
        "a,b;c|d",
        "aaaaaaaaaaaaaaaaaaaaaaaa",
        "ABABABABABAB",
        "00ff00ff00ff",
        "deadBEEF",
        "YWJjZGVmZ2g=",
        "-_-_-_-_",
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.dGVzdC1zaWduYXR1cmU",
        "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
        "-----BEGIN KEY-----\nMIIBVQIBADANBgkqhkiG9w0BAQEFAASCAT8wggE7AgEAAkEAq7BFUpkGp3+LQmlQ\nYx2eqzDV+xeG8kx/sQFV18S5JhzGeIJN\n-----END KEY-----\n",
        "^[0-9]+$",
    ];

    fn json_ascii(text: &str) -> String {
        text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect()
    }

    fn percent(text: &str, upper: bool) -> String {
        text.bytes().map(|byte| if upper { format!("%{byte:02X}") } else { format!("%{byte:02x}") }).collect()
    }

    fn form(text: &str) -> String {
        url::form_urlencoded::byte_serialize(text.as_bytes()).collect()
    }

    /// As it stands within the quotes of JSON.
    fn in_json(text: &str) -> String {
        let quoted = serde_json::to_string(text).unwrap();
        quoted[1..quoted.len() - 1].to_owned()
    }

    /// Name of the encoding, and the secret in it.
    fn encodings(secret: &str) -> Vec<(String, Vec<u8>)> {
        let inner = &in_json(secret);
        let number = |format: fn(u32) -> String| secret.chars().map(|c| format(c as u32)).collect::<String>();
        let mut all = vec![
            ("raw", secret.to_owned()),
            ("json", inner.to_owned()),
            ("json with escaped slashes", inner.replace('/', "\\/")),
            ("json in ASCII", json_ascii(secret)),
            ("json in capitals", json_ascii(secret).to_uppercase().replace("\\U", "\\u")),
            ("json in json", in_json(inner)),
            ("json in ASCII in json", json_ascii(secret).replace('\\', "\\\\")),
            (
                "json in capital ASCII in json",
                json_ascii(secret).to_uppercase().replace("\\U", "\\u").replace('\\', "\\\\"),
            ),
            ("json where it is not ASCII, in json", {
                let one = |c: char| if c.is_ascii() { c.to_string() } else { json_ascii(&c.to_string()) };
                inner.chars().map(one).collect::<String>().replace('\\', "\\\\").replace('"', "\\\"")
            }),
            ("json in json in json", in_json(&in_json(inner))),
            ("json in ASCII, in json in json", in_json(&in_json(&json_ascii(secret)))),
            ("percent", percent(secret, true)),
            ("percent in small letters", percent(secret, false)),
            ("form", form(secret)),
            ("form twice", form(&form(secret).replace('+', "%20"))),
            ("html", secret.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")),
            ("html, quotes as numbers", secret.replace('&', "&amp;").replace('\'', "&#39;").replace('<', "&#x3C;")),
            ("html in numbers", number(|code| format!("&#{code};"))),
            ("html in hexadecimal numbers", number(|code| format!("&#x{code:x};"))),
            ("hex", hex::encode(secret)),
            ("hex in capitals", hex::encode_upper(secret)),
        ]
        .into_iter()
        .map(|(name, text)| (name.to_owned(), text.into_bytes()))
        .collect::<Vec<_>>();
        for before in 0..4 {
            for after in 0..3 {
                let text = [&b"xyz1"[..before], secret.as_bytes(), &b"end"[..after]].concat();
                for (name, engine) in [("standard", STANDARD), ("no padding", STANDARD_NO_PAD)] {
                    all.push((format!("base64, {name}, {before} before, {after} after"), engine.encode(&text).into()));
                }
                for (name, engine) in [("url", URL_SAFE), ("url, no padding", URL_SAFE_NO_PAD)] {
                    all.push((format!("base64, {name}, {before} before, {after} after"), engine.encode(&text).into()));
                }
                let wrapped = STANDARD.encode(&text).into_bytes().chunks(16).collect::<Vec<_>>().join(&b"\r\n"[..]);
                all.push((format!("base64 in lines, {before} before, {after} after"), wrapped));
                let escaped = form(&STANDARD.encode(&text)).into_bytes();
                all.push((format!("base64 as a form, {before} before, {after} after"), escaped));
            }
        }
        all
    }

    #[test]
    fn each_of_fifty_odd_secrets_is_found_in_every_encoding_and_nothing_of_it_is_left() {
        for secret in CANARIES {
            let redactor = Redactor::new([secret]);
            for (name, encoded) in encodings(secret) {
                let around = [&b"{\"error\": \"["[..], &encoded, &b"]\"}"[..]].concat();
                let clean = redactor.bytes(&around);
                let shown = String::from_utf8_lossy(&clean).into_owned();
                assert!(
                    redactor.contains_secret(&around),
                    "{secret:?} as {name}: {}",
                    String::from_utf8_lossy(&around)
                );
                assert!(!redactor.contains_secret(&clean), "{secret:?} as {name}: {shown}");
                // of base64, whole characters of what stands around it may stay; of all else nothing but the frame
                let most = if name.starts_with("base64") { 8 } else { secret.len() - secret.trim().len() };
                let left = shown.replacen(REDACTED, "", 1).len() - "{\"error\": \"[]\"}".len();
                assert!(left <= most * 12, "{secret:?} as {name}: {shown}");
                assert!(shown.contains(REDACTED), "{secret:?} as {name}: {shown}");
            }
        }
    }

    #[test]
    fn secret_in_other_letter_case_is_found_in_every_escape_and_base64_in_its_own_alone() {
        let redactor = Redactor::new(["9f8e7d6cAbCd", "user:Password"]);
        for echoed in [
            "9F8E7D6CABCD",
            "9f8e7d6cabcd",
            "9f8E7d6CaBcD",
            "%39%46%38E7D6CABCD",
            "\\u0039F8E7D6CABCD",
            "&#57;F8E7D6CABCD",
            "396638653764366341624364",
            "396638653764366341624364",
            "394638453744364341424344",
            "USER:PASSWORD",
            "USER%3APASSWORD",
            "User%3apassword",
        ] {
            assert_eq!(redactor.text(&format!("<{echoed}>")), "<[redacted]>", "{echoed}");
        }
        let encoded = STANDARD.encode("user:Password");
        assert_eq!(redactor.text(&encoded), REDACTED);
        assert!(!redactor.contains_secret(encoded.to_lowercase().as_bytes()), "that is another text");
    }

    #[test]
    fn base64_leaves_no_bits_of_the_secret_and_its_padding_goes_too() {
        let redactor = Redactor::new(["user:password"]);
        assert_eq!(redactor.text("Basic dXNlcjpwYXNzd29yZA=="), "Basic [redacted]");
        assert_eq!(redactor.text("Basic dXNlcjpwYXNzd29yZA%3D%3D."), "Basic [redacted].");
        let shifted = STANDARD.encode("xuser:password");
        assert_eq!(redactor.text(&shifted), "e[redacted]");
    }

    #[test]
    fn text_without_a_secret_is_unchanged() {
        let redactor = Redactor::new(CANARIES);
        for text in
            ["", "%", "\\", "&", "&;", "\\u12", "&#xffffffff;", "tin", "a perfectly usual answer: 100 %", "\r\n\r\n"]
        {
            assert!(matches!(redactor.text(text), Cow::Borrowed(same) if same == text), "{text}");
        }
        assert_eq!(Redactor::new(["abc", "", "  x  "]).text("abc x"), "abc x");
    }

    #[test]
    fn secrets_that_overlap_or_lie_side_by_side_all_go() {
        let redactor = Redactor::new(["abcdefgh", "efghijkl", "abcd"]);
        assert_eq!(redactor.text("<abcdefghijkl>"), "<[redacted]>");
        assert_eq!(redactor.text("<abcdxefghijkl>"), "<[redacted]x[redacted]>");
        assert_eq!(redactor.text("<abcdabcd>"), "<[redacted][redacted]>");
    }

    #[test]
    fn long_secret_is_taken_out_as_far_as_it_was_sent_back() {
        let secret: String = (0..9_000).map(|n| char::from(b'a' + (n * n % 23) as u8)).collect();
        let redactor = Redactor::new([secret.as_str()]);
        assert_eq!(redactor.text(&format!("[{secret}]")), "[[redacted]]");
        assert_eq!(redactor.text(&format!("[{}…]", &secret[..300])), "[[redacted]…]");
    }

    #[test]
    fn neither_a_long_secret_nor_an_answer_made_for_it_takes_long() {
        let secret = "a".repeat(30_000) + "b";
        let text = "a".repeat(100_000);
        assert!(Redactor::new([secret.as_str()]).contains_secret(text.as_bytes()));
        let odd = ["%25", "%2525", "\\\\", "++++", "%%%%"].map(|part| part.repeat(40));
        let redactor = Redactor::new(odd.iter().map(String::as_str));
        let mean = "%25".repeat(10_000) + &"\\".repeat(10_000) + &"+".repeat(10_000);
        assert!(redactor.text(&mean).contains(REDACTED));
    }

    #[test]
    fn answer_made_to_take_long_is_not_read_to_its_end_and_goes_as_a_whole() {
        // each place may be read in two ways, and no way comes to its end
        let leaves: Vec<String> = (0..200)
            .map(|n: usize| (0..60).map(|bit| if (n * 7919) >> (bit % 16) & 1 == 0 { '+' } else { ' ' }).collect())
            .map(|leaf: String| format!("+{leaf}x"))
            .collect();
        let redactor = Redactor::new(leaves.iter().map(String::as_str));
        let mean = "+".repeat(50_000);
        let mut steps = RedactionSteps::of(mean.as_bytes());
        let most = steps.left;
        assert_eq!(most, 5 * 50_000 + 500_000);
        redactor.secret_ranges(mean.as_bytes(), &mut steps);
        assert!(steps.is_exhausted(), "{} of {most} steps are left", steps.left);
        assert_eq!(redactor.text(&mean), REDACTED);
        assert!(redactor.contains_secret(mean.as_bytes()), "what is not read may hold one");
    }

    #[test]
    fn secrets_that_begin_alike_take_more_steps_and_none_goes_unseen() {
        let text = "a".repeat(100);
        let taken = |count: usize| {
            let secrets: Vec<String> = (0..count).map(|n| format!("{text}{n:04}")).collect();
            let mut steps = RedactionSteps::of(text.as_bytes());
            let most = steps.left;
            let redactor = Redactor::new(secrets.iter().map(String::as_str));
            assert_eq!(redactor.secret_ranges(text.as_bytes(), &mut steps).first(), Some(&(0..100)));
            most - steps.left
        };
        let (one, many) = (taken(1), taken(200));
        assert!(many > 5 * one, "{one} and {many}");
    }

    #[test]
    fn redactor_that_does_not_know_all_secrets_shows_nothing() {
        let redactor = Redactor::hiding_all();
        assert_eq!((redactor.text("plain"), redactor.text("")), (REDACTED.into(), "".into()));
        assert!(redactor.contains_secret(b"plain") && !redactor.contains_secret(b""));
        assert_eq!((redactor.in_place().text("plain"), redactor.together().text("")), (REDACTED.into(), "".into()));
    }

    #[test]
    fn few_secrets_are_made_ready_in_place_and_many_or_long_ones_on_a_thread() {
        assert!(Redactor::steps_to_build(5, 4 * 1024) <= IN_PLACE, "a credential with its tokens");
        for (secrets, bytes) in [(200, 4 * 1024), (1, 64 * 1024)] {
            assert!(Redactor::steps_to_build(secrets, bytes) > IN_PLACE, "{secrets} of {bytes} bytes");
        }
    }

    #[test]
    fn every_encoding_of_fifty_secrets_is_found_in_a_mebibyte_of_an_ordinary_answer() {
        let redactor = Redactor::new(CANARIES);
        let all: Vec<Vec<u8>> = CANARIES.iter().flat_map(|secret| encodings(secret)).map(|(_, text)| text).collect();
        let mut body = Vec::new();
        for (n, encoded) in all.iter().enumerate() {
            let item = json!({ "id": n, "name": "Größe & more", "price": "100 %", "url": "https://example.org/a?b=c%20d&e=f+g",
                "query": form("密钥的说明 ключ schlüssel-größ 100%+") });
            body.extend(format!("{item},\n\t").repeat(2).into_bytes());
            body.extend_from_slice(encoded);
            body.extend_from_slice(b",\n");
        }
        assert!(body.len() > 1 << 20, "{}", body.len());
        let mut steps = RedactionSteps::of(&body);
        let most = steps.left;
        let places = redactor.secret_ranges(&body, &mut steps);
        assert!(places.len() >= all.len(), "{} of {}", places.len(), all.len());
        let taken = most - steps.left;
        assert!(taken * 2 < most, "{taken} of {most} steps for {} bytes", body.len());
        let clean = redactor.bytes(&body);
        assert!(!redactor.contains_secret(&clean));
        assert!(clean.windows(13).any(|part| part == b"example.org/a"), "what is no secret is there");
    }

    #[test]
    fn usual_answers_take_few_of_their_steps() {
        let redactor = Redactor::new(CANARIES);
        let usual =
            json!({ "items": vec![json!({ "a&b": "x+y %20 \n \"said\"", "price": "100 %" }); 500] }).to_string();
        let mut steps = RedactionSteps::of(usual.as_bytes());
        assert!(redactor.secret_ranges(usual.as_bytes(), &mut steps).is_empty());
        let taken = RedactionSteps::of(usual.as_bytes()).left - steps.left;
        assert!(taken < usual.len() * 3, "{taken} for {} bytes", usual.len());
    }

    #[test]
    fn texts_of_a_document_are_secrets_unless_their_name_says_otherwise_or_they_are_short() {
        let document = json!({
            "access_token": "a-long-token", "refresh_token": "another-token", "client_id": "not-a-secret", "n": 12_345_678,
            "token_url": "https://accounts.example.org/token", "Scopes": ["mail.read.all"], "keys": ["key-number-1", "short"],
            "nested": { "client-secret": "deep-secret", "expires-at": "2027-01-01T00:00:00Z" },
        });
        assert_eq!(secrets_of(&document), ["a-long-token", "key-number-1", "deep-secret", "another-token"]);
        assert_eq!(secrets_of(&json!("the-whole-document")), ["the-whole-document"]);
        // a plain name is that of a text, and of a list of texts, not of what is deeper
        let deep = json!({
            "login": { "username": "ann-the-user", "password": "pass-of-login" }, "account": [["list-of-a-list", { "pin": "pin-of-account" }]],
            "user": "ann-the-user", "provider": { "key": { "id": "key-of-provider" } }, "scopes": ["calendar.read"],
        });
        assert_eq!(secrets_of(&deep), ["pin-of-account", "pass-of-login", "key-of-provider"]);
    }
}
