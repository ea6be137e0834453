//! Faults in what a caller sent: all of them in one answer, each with the place and what would be right.

pub mod hinted;

use chrono::{DateTime, Utc};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

/// Longest sentence of a fault, in bytes: a longer one is cut in its middle, so that what it quotes is never echoed
/// whole.
const MESSAGE_BYTES: usize = 1_000;
/// Longest pointer of a fault, in bytes.
const POINTER_BYTES: usize = 500;
/// Longest text that a hint is looked for, in bytes: no known name is longer.
const HINT_BYTES: usize = 64;
/// Unknown names of one object, or wrong items of one list, that are told.
pub const NAMED: usize = 20;

/// One fault: an RFC 6901 JSON pointer into the request, and a sentence that helps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct FieldError {
    /// RFC 6901 pointer to the value at fault; empty for the whole document.
    #[schema(example = "/trigger/timezone")]
    pub pointer: String,
    /// The fault, and an advice.
    #[schema(example = "unknown time zone `Europe/Berln`; did you mean `Europe/Berlin`?")]
    pub message: String,
}

/// Everything that is wrong with a request. Never empty when it is an error.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.sentence())]
pub struct ValidationErrors(pub Vec<FieldError>);

/// Reads a field in which null is as good as absent: `#[serde(default, deserialize_with = "null_is_absent")]`.
pub fn null_is_absent<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

impl ValidationErrors {
    /// No faults.
    pub fn new() -> ValidationErrors {
        ValidationErrors::default()
    }

    /// A single fault, as an error.
    pub fn one(pointer: impl Into<String>, message: impl Into<String>) -> ValidationErrors {
        let mut faults = ValidationErrors::new();
        faults.add(pointer, message);
        faults
    }

    /// Adds a fault at a JSON pointer. Both are shortened where they are long.
    pub fn add(&mut self, pointer: impl Into<String>, message: impl Into<String>) {
        let (pointer, message) =
            (shorten_middle(pointer.into(), POINTER_BYTES), shorten_middle(message.into(), MESSAGE_BYTES));
        self.0.push(FieldError { pointer, message });
    }

    /// Whether there is no fault.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `value`, unless a fault was found.
    pub fn into_result<T>(self, value: T) -> Result<T, ValidationErrors> {
        if self.is_empty() { Ok(value) } else { Err(self) }
    }

    /// Reads `value`, which stands at `pointer`, as a `T`; a fault names the exact place below it.
    pub fn read<T: DeserializeOwned>(&mut self, value: &Value, pointer: &str) -> Option<T> {
        match serde_path_to_error::deserialize(value) {
            Ok(read) => Some(read),
            Err(error) => {
                let place = below(pointer, error.path());
                self.add(place, error.into_inner().to_string());
                None
            }
        }
    }

    /// Reads an instant.
    pub fn read_instant(&mut self, value: &Value, pointer: &str) -> Option<DateTime<Utc>> {
        let instant = value.as_str().and_then(|text| text.parse().ok());
        if instant.is_none() {
            self.add(pointer, "must be a time such as `2026-12-24T15:00:00Z`, as RFC 3339 has it");
        }
        instant
    }

    fn sentence(&self) -> String {
        let each = |f: &FieldError| match f.pointer.as_str() {
            "" => f.message.clone(),
            pointer => format!("{pointer}: {}", f.message),
        };
        self.0.iter().map(each).collect::<Vec<_>>().join("; ")
    }
}

/// The pointer of a path below another pointer.
fn below(pointer: &str, path: &serde_path_to_error::Path) -> String {
    use serde_path_to_error::Segment;
    let mut place = pointer.to_owned();
    for segment in path {
        match segment {
            Segment::Seq { index } => place.push_str(&format!("/{index}")),
            Segment::Map { key } | Segment::Enum { variant: key } => {
                place.push_str(&format!("/{}", escape(key)));
            }
            Segment::Unknown => {}
        }
    }
    place
}

/// A key as it stands in an RFC 6901 pointer.
pub fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// A text of at most `most` bytes: the middle of a longer one is left out, since a sentence that quotes what was
/// written ends with what would be right.
pub fn shorten_middle(text: String, most: usize) -> String {
    if text.len() <= most {
        return text;
    }
    let begin = text.floor_char_boundary(most * 2 / 3);
    let end = text.ceil_char_boundary(text.len() - most / 4);
    // a text of its own: the long one would go on holding its memory
    format!("{} … {}", &text[..begin], &text[end..])
}

/// A text that is not longer than any that means something, or a sentence that says so. Asked before anything else
/// looks at a text.
pub fn bounded(text: &str, most: usize) -> Result<&str, String> {
    match text.len() <= most {
        true => Ok(text),
        false => Err(format!("must be at most {most} bytes, has {}", text.len())),
    }
}

/// The first [`NAMED`] fields of an object that are not `known`.
pub fn unknown_fields<'a>(fields: &'a Map<String, Value>, known: &[&str]) -> impl Iterator<Item = &'a String> {
    fields.keys().filter(move |field| !known.contains(&field.as_str())).take(NAMED)
}

/// Whether a name is among those that are known. `x.*` among these stands for every name that begins with `x.`, but for
/// one that is itself such a pattern.
pub fn is_known_name(name: &str, known: &[&str]) -> bool {
    known.iter().any(|one| match one.strip_suffix('*') {
        Some(beginning) if beginning.ends_with('.') => {
            name.len() > beginning.len() && name.starts_with(beginning) && !name.ends_with('*')
        }
        _ => *one == name,
    })
}

/// ` did you mean …?` where a known name is near enough to what was written, else nothing. A text that is longer than
/// any name has no hint and is not looked at.
pub fn did_you_mean<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    nearest_name(written, known).map(|name| format!("; did you mean `{name}`?")).unwrap_or_default()
}

/// The known name that is most like what was written and is not that itself.
pub fn nearest_name<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    if written.len() > HINT_BYTES {
        return None;
    }
    let lower = written.to_lowercase();
    let length = lower.chars().count();
    known
        .into_iter()
        // as far apart as their lengths they are at least: most names need no closer look
        .filter(|name| name.chars().count().abs_diff(length) <= 1 + name.len() / 5)
        .map(|name| (strsim::damerau_levenshtein(&lower, &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= 1 + name.len() / 5)
        .min_by_key(|(distance, _)| *distance)
        // a known name is not misspelt: its fault is another
        .filter(|(_, name)| *name != written)
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_names_the_exact_place_below_the_pointer() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)]
        struct Inner {
            count: u32,
        }
        let mut faults = ValidationErrors::new();
        let read = faults.read::<Vec<Inner>>(&serde_json::json!([{ "count": 1 }, { "count": "two" }]), "/list");
        assert!(read.is_none());
        assert_eq!(faults.0[0].pointer, "/list/1/count");
        assert!(faults.0[0].message.contains("invalid type"), "{}", faults.0[0].message);
    }

    #[test]
    fn near_name_is_offered_and_a_far_one_is_not() {
        let zones = ["Europe/Berlin", "Asia/Shanghai"];
        assert_eq!(did_you_mean("Europe/Berln", zones), "; did you mean `Europe/Berlin`?");
        assert_eq!(did_you_mean("Moon/Crater", zones), "");
        assert_eq!(did_you_mean("Europe/Berlin", zones), "", "nobody is asked whether they mean what they wrote");
        assert_eq!(did_you_mean("europe/berlin", zones), "; did you mean `Europe/Berlin`?");
    }

    #[test]
    fn known_name_is_one_of_the_list_or_below_one_that_ends_in_a_star() {
        let is_known = |name: &str| is_known_name(name, &["look", "github.*", "odd*"]);
        for name in ["look", "github.search", "github.a.b", "github..", "odd*"] {
            assert!(is_known(name), "{name}");
        }
        for name in ["lookk", "github", "github.", "github.*", "github.search_*", "gitlab.search", "x.look", "oddly"] {
            assert!(!is_known(name), "{name}");
        }
    }

    #[test]
    fn hint_is_not_looked_for_beyond_the_longest_name() {
        let known = "a".repeat(HINT_BYTES);
        let hint = |length: usize| did_you_mean(&"A".repeat(length), [known.as_str()]);
        assert_eq!(hint(HINT_BYTES), format!("; did you mean `{known}`?"));
        assert_eq!(hint(HINT_BYTES + 1), "");
        assert_eq!(hint(1_000_000), "");
    }

    #[test]
    fn fault_echoes_no_long_text_and_keeps_what_would_be_right() {
        let long = "ü".repeat(500_000);
        let faults = ValidationErrors::one(format!("/{long}"), format!("unknown zone `{long}`; write `Europe/Berlin`"));
        let fault = &faults.0[0];
        assert!(fault.pointer.len() <= POINTER_BYTES && fault.message.len() <= MESSAGE_BYTES, "{fault:?}");
        assert!(fault.message.starts_with("unknown zone `üü"), "{fault:?}");
        assert!(fault.message.ends_with("ü`; write `Europe/Berlin`"), "{fault:?}");
        let read = serde_json::json!({ "tenant_id": long });
        let mut faults = ValidationErrors::new();
        assert!(faults.read::<std::collections::HashMap<String, crate::domain::task::Urgency>>(&read, "").is_none());
        assert!(faults.0[0].message.len() <= MESSAGE_BYTES);
    }

    #[test]
    fn unknown_fields_are_named_up_to_a_number() {
        let fields: Map<String, Value> = (0..100_000).map(|n| (format!("f{n}"), Value::Null)).collect();
        assert_eq!(unknown_fields(&fields, &["f0"]).count(), NAMED);
        let first = |count: usize| fields.clone().into_iter().take(count).collect::<Map<String, Value>>();
        let named = |count: usize| unknown_fields(&first(count), &[]).count();
        assert_eq!((named(NAMED), named(NAMED + 1)), (NAMED, NAMED));
        assert!(unknown_fields(&fields, &["f0"]).all(|field| field != "f0"));
    }

    #[test]
    fn fault_is_whole_up_to_each_bound_and_cut_one_beyond_it() {
        let fault = |pointer: usize, message: usize| {
            let faults = ValidationErrors::one("p".repeat(pointer), "m".repeat(message));
            (faults.0[0].pointer.clone(), faults.0[0].message.clone())
        };
        let (pointer, message) = fault(POINTER_BYTES, MESSAGE_BYTES);
        assert_eq!((pointer.len(), message.len()), (POINTER_BYTES, MESSAGE_BYTES));
        assert!(!pointer.contains('…') && !message.contains('…'));
        for (part, most) in
            [(fault(POINTER_BYTES + 1, 1).0, POINTER_BYTES), (fault(1, MESSAGE_BYTES + 1).1, MESSAGE_BYTES)]
        {
            assert!(part.contains('…') && part.len() <= most, "{}", part.len());
        }
    }
}
