//! JSON pointers (RFC 6901) into a text: the value is found while the text is read, and nothing else of it is kept.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// Longest pointer, in bytes.
pub const POINTER_BYTES: usize = 512;

/// The value at a pointer, as it stands in the text; `None`: there is none.
///
/// # Errors
/// The pointer is none, or the text is no JSON; a sentence says which.
pub fn value_at<'t>(text: &'t str, pointer: &str) -> Result<Option<&'t str>, String> {
    if pointer.len() > POINTER_BYTES {
        return Err(format!("a pointer has at most {POINTER_BYTES} bytes"));
    }
    if !pointer.is_empty() && !pointer.starts_with('/') {
        return Err("a pointer is empty, or begins with `/`".into());
    }
    let parts: Vec<String> =
        pointer.split('/').skip(1).map(|part| part.replace("~1", "/").replace("~0", "~")).collect();
    let mut reader = serde_json::Deserializer::from_str(text);
    let found = Descent(&parts).deserialize(&mut reader).map_err(|error| format!("the file is no JSON: {error}"))?;
    Ok(found.map(RawValue::get))
}

/// The way that is left to the value.
struct Descent<'p>(&'p [String]);

impl<'de> DeserializeSeed<'de> for Descent<'_> {
    type Value = Option<&'de RawValue>;

    fn deserialize<D: Deserializer<'de>>(self, reader: D) -> Result<Self::Value, D::Error> {
        match self.0 {
            [] => <&RawValue as serde::Deserialize>::deserialize(reader).map(Some),
            _ => reader.deserialize_any(self),
        }
    }
}

impl<'de> Visitor<'de> for Descent<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Self::Value, M::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            match key == self.0[0] {
                true => found = map.next_value_seed(Descent(&self.0[1..]))?,
                false => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(found)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut items: S) -> Result<Self::Value, S::Error> {
        // `01` and `+1` name no item
        let wanted = self.0[0].parse::<usize>().ok().filter(|index| index.to_string() == self.0[0]);
        let (mut found, mut at) = (None, 0);
        loop {
            let is_wanted = wanted == Some(at);
            let more = match is_wanted {
                true => items.next_element_seed(Descent(&self.0[1..]))?.map(|value| found = value).is_some(),
                false => items.next_element::<IgnoredAny>()?.is_some(),
            };
            if !more {
                return Ok(found);
            }
            at += 1;
        }
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"{"a": [1, {"b/c": "x", "~d": null}, [2.5]], "": true, "e": {"f": {}}}"#;

    #[test]
    fn value_is_found_as_serde_json_finds_it() {
        let value: serde_json::Value = serde_json::from_str(TEXT).unwrap();
        let pointers = [
            "",
            "/",
            "/a",
            "/a/0",
            "/a/1",
            "/a/1/b~1c",
            "/a/1/~0d",
            "/a/2/0",
            "/e/f",
            "/a/3",
            "/a/-",
            "/a/01",
            "/x",
            "/a/0/x",
            "/a/1/b~1c/x",
            "/e/f/g",
        ];
        for pointer in pointers {
            let found = value_at(TEXT, pointer).unwrap().map(|text| serde_json::from_str(text).unwrap());
            assert_eq!(found.as_ref(), value.pointer(pointer), "{pointer}");
        }
    }

    #[test]
    fn pointer_is_taken_at_its_longest_and_refused_one_byte_beyond_it() {
        let of_bytes = |bytes: usize| format!("/{}", "x".repeat(bytes - 1));
        assert_eq!(value_at(TEXT, &of_bytes(POINTER_BYTES)), Ok(None));
        assert_eq!(value_at(TEXT, &of_bytes(POINTER_BYTES + 1)), Err("a pointer has at most 512 bytes".into()));
        assert_eq!(value_at(TEXT, "a"), Err("a pointer is empty, or begins with `/`".into()));
        assert!(value_at("no json", "/a").unwrap_err().starts_with("the file is no JSON: "));
    }
}
