//! Faults in what a caller sent: all of them in one answer, each with the place and what would be right.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One fault: an RFC 6901 JSON pointer into the request, and a sentence that helps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct InvalidSpec {
    /// RFC 6901 pointer to the value at fault; empty for the whole document.
    #[schema(example = "/trigger/timezone")]
    pub pointer: String,
    /// What is wrong, and what would be right.
    #[schema(example = "unknown time zone `Europe/Berln`; did you mean `Europe/Berlin`?")]
    pub message: String,
}

/// Everything that is wrong with a request. Never empty when it is an error.
#[derive(Debug, Clone, Default, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.sentence())]
pub struct Faults(pub Vec<InvalidSpec>);

impl Faults {
    pub fn new() -> Faults {
        Faults::default()
    }

    /// A single fault, as an error.
    pub fn one(pointer: impl Into<String>, message: impl Into<String>) -> Faults {
        let mut faults = Faults::new();
        faults.add(pointer, message);
        faults
    }

    pub fn add(&mut self, pointer: impl Into<String>, message: impl Into<String>) {
        self.0.push(InvalidSpec { pointer: pointer.into(), message: message.into() });
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `value`, unless a fault was found.
    pub fn or<T>(self, value: T) -> Result<T, Faults> {
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

    fn sentence(&self) -> String {
        let each = |f: &InvalidSpec| match f.pointer.as_str() {
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

/// ` did you mean …?` where a known name is near enough to what was written, else nothing.
pub fn did_you_mean<'a>(written: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    let lower = written.to_lowercase();
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&lower, &name.to_lowercase()), name))
        .filter(|(distance, name)| *distance <= 1 + name.len() / 5)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| format!("; did you mean `{name}`?"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_names_the_exact_place_below_the_pointer() {
        #[derive(Debug, serde::Deserialize)]
        #[serde(deny_unknown_fields)]
        #[allow(dead_code)]
        struct Inner {
            count: u32,
        }
        let mut faults = Faults::new();
        let read = faults.read::<Vec<Inner>>(&serde_json::json!([{ "count": 1 }, { "count": "two" }]), "/list");
        assert!(read.is_none());
        assert_eq!(faults.0[0].pointer, "/list/1/count");
        assert!(faults.0[0].message.contains("invalid type"), "{}", faults.0[0].message);
    }

    #[test]
    fn a_near_name_is_offered_and_a_far_one_is_not() {
        let zones = ["Europe/Berlin", "Asia/Shanghai"];
        assert_eq!(did_you_mean("Europe/Berln", zones), "; did you mean `Europe/Berlin`?");
        assert_eq!(did_you_mean("Moon/Crater", zones), "");
    }
}
