//! Requests that are read by the schema that is published of them: the type of a request is its one description.
//!
//! All that a schema says of a field is held, and each fault has its place. A field that refers to the schema of
//! another type is left to that type.

use std::any::TypeId;
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use utoipa::PartialSchema;
use utoipa::openapi::{RefOr, Schema};

use crate::base::invalid::{NAMED, ValidationErrors, did_you_mean, escape, unknown_fields};

/// Reads a body as a `T`.
pub fn body<T: PartialSchema + DeserializeOwned>(value: &Value) -> Result<T, ValidationErrors> {
    let mut faults = ValidationErrors::new();
    match read(value, "", &mut faults) {
        Some(read) => faults.into_result(read),
        None => Err(faults),
    }
}

/// Reads the object that stands at `pointer` as a `T`. Null is as good as absent, and so is a field at fault, so that
/// what the other fields mean can be judged with it; `None`: there is a fault without which nothing can be read.
pub fn read<T: PartialSchema + DeserializeOwned>(
    value: &Value,
    pointer: &str,
    faults: &mut ValidationErrors,
) -> Option<T> {
    let Some(fields) = value.as_object() else {
        faults.add(pointer, if pointer.is_empty() { "the body is a JSON object" } else { "must be an object" });
        return None;
    };
    let before = faults.0.len();
    let mut schema = serde_json::to_value(T::schema()).unwrap_or_default();
    let Value::Object(described) = schema["properties"].take() else { return faults.read(value, pointer) };
    let known: Vec<&str> = described.keys().map(String::as_str).collect();
    for field in unknown_fields(fields, &known) {
        let near = did_you_mean(field, known.iter().copied());
        faults.add(format!("{pointer}/{}", escape(field)), format!("unknown field{near}"));
    }
    let required: Vec<&str> = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let mut given = Map::new();
    for (name, schema) in &described {
        let place = format!("{pointer}/{name}");
        match fields.get(name).filter(|value| !value.is_null()) {
            None if required.contains(&name.as_str()) => faults.add(place, "is missing"),
            None => {}
            Some(value) => {
                let before = faults.0.len();
                judge(schema, value, &place, faults);
                if faults.0.len() == before {
                    given.insert(name.clone(), value.clone());
                }
            }
        }
    }
    match faults.0.len() == before {
        true => faults.read(&Value::Object(given), pointer),
        false => serde_json::from_value(Value::Object(given)).ok(),
    }
}

/// The names of the fields of each type that a reader has asked for. A schema is part of the program and never changes,
/// so the process derives the names once.
static FIELD_NAMES: RwLock<BTreeMap<TypeId, &'static [&'static str]>> = RwLock::new(BTreeMap::new());

/// The names of the fields that are published of a `T`, which is an object, in the order of the alphabet: a reader of
/// its own takes these, and no others. Of a type that is no object there are none.
pub fn field_names<T: PartialSchema + 'static>() -> &'static [&'static str] {
    let known = FIELD_NAMES.read().unwrap_or_else(PoisonError::into_inner).get(&TypeId::of::<T>()).copied();
    known.unwrap_or_else(|| {
        let mut known = FIELD_NAMES.write().unwrap_or_else(PoisonError::into_inner);
        *known.entry(TypeId::of::<T>()).or_insert_with(|| published_names::<T>().leak())
    })
}

fn published_names<T: PartialSchema>() -> Vec<&'static str> {
    match T::schema() {
        RefOr::T(Schema::Object(object)) => object.properties.into_keys().map(|name| &*name.leak()).collect(),
        _ => Vec::new(),
    }
}

/// Adds a fault where a value is not as its schema says.
fn judge(schema: &Value, value: &Value, place: &str, faults: &mut ValidationErrors) {
    let kinds = schema["type"].as_array().map_or_else(|| vec![&schema["type"]], |kinds| kinds.iter().collect());
    let wanted = match kinds.into_iter().filter_map(Value::as_str).find(|kind| *kind != "null") {
        Some("string") if schema["format"] == "date-time" => {
            faults.read_instant(value, place);
            None
        }
        Some("string") => {
            let length = value.as_str().map(|text| text.chars().count() as u64);
            let (fits, bounds) = within(length, &schema["minLength"], &schema["maxLength"]);
            let unit = if bounds.is_empty() { "" } else { " characters" };
            (!fits).then(|| format!("a text{bounds}{unit}"))
        }
        Some("array") => {
            let items = value.as_array();
            let (fits, bounds) =
                within(items.map(|items| items.len() as u64), &schema["minItems"], &schema["maxItems"]);
            let told = faults.0.len() + NAMED;
            for (index, item) in items.filter(|_| fits).into_iter().flatten().enumerate() {
                judge(&schema["items"], item, &format!("{place}/{index}"), faults);
                // a list of a million wrong items is answered by as few faults as any other
                if faults.0.len() >= told {
                    break;
                }
            }
            (!fits).then(|| format!("a list{bounds}"))
        }
        Some("integer") => {
            let (least, most) = (schema["minimum"].as_i64(), schema["maximum"].as_i64());
            let number = value.as_i64();
            let fits = number.is_some_and(|number| {
                least.is_none_or(|least| number >= least) && most.is_none_or(|most| number <= most)
            });
            let bounds = least.zip(most).map(|(least, most)| format!(" from {least} to {most}")).unwrap_or_default();
            (!fits).then(|| format!("a whole number{bounds}"))
        }
        Some("boolean") => (!value.is_boolean()).then(|| "true or false".to_owned()),
        Some("object") => (!value.is_object()).then(|| "an object".to_owned()),
        _ => None,
    };
    if let Some(wanted) = wanted {
        let example = schema["example"].as_str().map(|example| format!(", such as `{example}`")).unwrap_or_default();
        faults.add(place, format!("must be {wanted}{example}"));
    }
}

/// Whether a length, where there is one, lies within its bounds, and how they are said.
fn within(length: Option<u64>, least: &Value, most: &Value) -> (bool, String) {
    let (least, most) = (least.as_u64().unwrap_or(0), most.as_u64());
    let fits = length.is_some_and(|length| length >= least && most.is_none_or(|most| length <= most));
    let said = match (least, most) {
        (0, None) => String::new(),
        (0, Some(most)) => format!(" of at most {most}"),
        (least, None) => format!(" of at least {least}"),
        (least, Some(most)) => format!(" of {least} to {most}"),
    };
    (fits, said)
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Debug, PartialEq, Deserialize, utoipa::ToSchema)]
    #[serde(deny_unknown_fields)]
    struct Letter {
        /// Also the name of a place.
        #[schema(min_length = 1, max_length = 3, example = "ann")]
        to: String,
        at: DateTime<Utc>,
        #[serde(default = "five")]
        #[schema(default = five, minimum = 1, maximum = 9)]
        copies: u32,
        #[schema(max_items = 2)]
        words: Option<Vec<String>>,
        #[serde(default)]
        anything: Value,
        #[serde(default)]
        is_sealed: bool,
        #[serde(default)]
        more: Map<String, Value>,
    }

    fn five() -> u32 {
        5
    }

    #[test]
    fn request_is_read_with_its_defaults_and_null_is_as_good_as_absent() {
        let letter = |more: Value| {
            let mut letter = json!({ "to": "ann", "at": "2027-01-01T00:00:00Z", "anything": 1 });
            letter.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            body::<Letter>(&letter)
        };
        let plain = letter(json!({})).unwrap();
        assert_eq!((plain.copies, &plain.words, plain.is_sealed), (5, &None, false));
        let nothing = json!({ "copies": null, "words": null, "is_sealed": null, "more": null });
        assert_eq!(letter(nothing), Ok(plain));
        let full =
            letter(json!({ "to": "äöü", "copies": 9, "words": ["a", "b"], "is_sealed": true, "more": {"a": 1} }));
        assert_eq!(full.map(|full| (full.copies, full.words.unwrap().len(), full.is_sealed)), Ok((9, 2, true)));
    }

    #[test]
    fn names_of_fields_are_those_that_are_published() {
        let names = ["anything", "at", "copies", "is_sealed", "more", "to", "words"];
        assert_eq!(field_names::<Letter>(), names);
        assert!(std::ptr::eq(field_names::<Letter>(), field_names::<Letter>()), "they are derived once");
        assert!(field_names::<String>().is_empty());
    }

    #[test]
    fn wrong_items_of_a_long_list_are_told_up_to_a_number() {
        #[derive(Debug, Deserialize, utoipa::ToSchema)]
        struct Names {
            #[serde(rename = "names")]
            _names: Vec<String>,
        }
        let found = body::<Names>(&json!({ "names": vec![1; 10_000] })).unwrap_err();
        assert_eq!(found.0.len(), NAMED);
    }

    #[test]
    fn every_fault_of_a_request_is_told_at_its_place() {
        let said = |value: Value| -> Vec<String> {
            let faults = body::<Letter>(&value).unwrap_err();
            faults.0.into_iter().map(|fault| format!("{} {}", fault.pointer, fault.message)).collect()
        };
        let wrong = json!({
            "to": "anna", "at": "soon", "copies": 10, "words": ["a", 1], "is_sealed": "no", "more": [], "word": 1, "x/y": 2
        });
        let mut found = said(wrong);
        found.sort();
        assert_eq!(
            found,
            [
                "/at must be a time such as `2026-12-24T15:00:00Z`, as RFC 3339 has it",
                "/copies must be a whole number from 1 to 9",
                "/is_sealed must be true or false",
                "/more must be an object",
                "/to must be a text of 1 to 3 characters, such as `ann`",
                "/word unknown field; did you mean `words`?",
                "/words/1 must be a text",
                "/x~1y unknown field",
            ]
        );
        let few = json!({ "to": "", "at": "2027-01-01T00:00:00Z", "copies": 0, "words": ["a", "b", "c"] });
        assert_eq!(
            said(few),
            [
                "/copies must be a whole number from 1 to 9",
                "/to must be a text of 1 to 3 characters, such as `ann`",
                "/words must be a list of at most 2",
            ]
        );
        assert_eq!(said(json!({ "to": null })), ["/at is missing", "/to is missing"]);
        assert_eq!(said(json!([])), [" the body is a JSON object"]);
    }
}
