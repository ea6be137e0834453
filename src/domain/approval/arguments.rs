//! Arguments as a person changes them: put together with the proposed ones, and held against the tool's schema.

use std::borrow::Cow;

use jsonschema::error::{TypeKind, ValidationErrorKind};
use jsonschema::{JsonType, ValidationError};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::base::invalid::{ValidationErrors, escape};
use crate::base::json::schema::JsonSchema;

/// At most this many faults are told.
const FAULTS_TOLD: usize = 20;

/// The proposed arguments with changes: each field of `changes` takes the place of the proposed one, `null` takes it
/// away, and the others stay as they are.
pub fn changed(proposed: &Value, changes: &Map<String, Value>) -> Value {
    let mut arguments = proposed.as_object().cloned().unwrap_or_default();
    for (name, value) in changes {
        match value {
            Value::Null => drop(arguments.remove(name)),
            value => drop(arguments.insert(name.clone(), value.clone())),
        }
    }
    Value::Object(arguments)
}

/// A fault of an argument or of another part of an answer, for programs and, by the name of a phrase, for people.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArgumentFault {
    /// JSON pointer to the part at fault.
    pub pointer: String,
    /// In English.
    pub message: String,
    /// Name of the phrase that tells the fault.
    pub phrase: Cow<'static, str>,
    /// Values for the placeholders of the phrase, by name.
    pub parts: Vec<(Cow<'static, str>, ArgumentPart)>,
}

/// A value for a placeholder of a phrase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArgumentPart {
    /// A text, shown as it is.
    Text(String),
    /// One of these, each the name of a phrase.
    OneOf(Vec<String>),
}

impl ArgumentFault {
    /// One that is told in these words in every language.
    pub fn untranslated(pointer: impl Into<String>, message: impl Into<String>) -> ArgumentFault {
        let message = message.into();
        ArgumentFault::with(pointer, message.clone(), "fault_other", &[("why", message)])
    }

    /// One for which there is a phrase.
    pub fn with(
        pointer: impl Into<String>,
        message: impl Into<String>,
        phrase: &'static str,
        parts: &[(&'static str, String)],
    ) -> ArgumentFault {
        let part = |(name, text): &(&'static str, String)| (Cow::Borrowed(*name), ArgumentPart::Text(text.clone()));
        let parts = parts.iter().map(part).collect();
        ArgumentFault { pointer: pointer.into(), message: message.into(), phrase: phrase.into(), parts }
    }

    /// All of them as faults of a request.
    pub fn faults(found: Vec<ArgumentFault>) -> Result<(), ValidationErrors> {
        let mut faults = ValidationErrors::new();
        found.into_iter().for_each(|fault| faults.add(fault.pointer, fault.message));
        faults.into_result(())
    }
}

/// Whether the arguments fit the tool's schema; each fault stands at its place below `pointer`.
pub fn check(parameters: &Value, arguments: &Value, pointer: &str) -> Result<(), ValidationErrors> {
    ArgumentFault::faults(faults(parameters, arguments, pointer))
}

/// Every fault that the tool's schema finds with the arguments, each at its place below `pointer`.
pub fn faults(parameters: &Value, arguments: &Value, pointer: &str) -> Vec<ArgumentFault> {
    if !arguments.is_object() {
        return vec![ArgumentFault::untranslated(pointer, "must be a JSON object")];
    }
    let Ok(schema) = JsonSchema::read(parameters) else {
        return vec![ArgumentFault::untranslated(
            pointer,
            "can't be checked: the tool's parameters are no JSON Schema",
        )];
    };
    match schema.faults(arguments) {
        Ok(found) => found.take(FAULTS_TOLD).flat_map(|error| faults_of(&error, pointer)).collect(),
        Err(why) => vec![ArgumentFault::untranslated(pointer, why)],
    }
}

/// The faults that an error of a schema stands for. A missing or surplus field is told at its own place, not at that of
/// the object around it.
pub fn faults_of(error: &ValidationError, pointer: &str) -> Vec<ArgumentFault> {
    let place = format!("{pointer}{}", error.instance_path());
    let below = |name: &str| format!("{place}/{}", escape(name));
    // the sentence would repeat the value, which may be long
    let message = error.masked_with("the value").to_string();
    let one =
        |phrase, name, part: String| vec![ArgumentFault::with(place.clone(), message.clone(), phrase, &[(name, part)])];
    let plainly = |phrase| vec![ArgumentFault::with(place.clone(), message.clone(), phrase, &[])];
    match error.kind() {
        ValidationErrorKind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            vec![ArgumentFault::with(below(name), "is required", "fault_required", &[])]
        }
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            let unknown = |name: &String| {
                ArgumentFault::with(below(name), "is no argument of this tool", "fault_unknown_arg", &[])
            };
            unexpected.iter().map(unknown).collect()
        }
        ValidationErrorKind::Type { kind } => {
            let mut types: Vec<JsonType> = match kind {
                TypeKind::Single(one) => vec![*one],
                TypeKind::Multiple(several) => several.iter().collect(),
            };
            types.sort_by_key(|one| matches!(one, JsonType::Null));
            let types = types.into_iter().map(|one| format!("type_{one}")).collect();
            vec![ArgumentFault {
                pointer: place,
                message,
                phrase: "fault_type".into(),
                parts: vec![("types".into(), ArgumentPart::OneOf(types))],
            }]
        }
        ValidationErrorKind::Minimum { limit } => one("fault_minimum", "limit", limit.to_string()),
        ValidationErrorKind::Maximum { limit } => one("fault_maximum", "limit", limit.to_string()),
        ValidationErrorKind::ExclusiveMinimum { limit } => one("fault_above", "limit", limit.to_string()),
        ValidationErrorKind::ExclusiveMaximum { limit } => one("fault_below", "limit", limit.to_string()),
        ValidationErrorKind::MinLength { limit } => one("fault_min_length", "limit", limit.to_string()),
        ValidationErrorKind::MaxLength { limit } => one("fault_max_length", "limit", limit.to_string()),
        ValidationErrorKind::MinItems { limit } => one("fault_min_items", "limit", limit.to_string()),
        ValidationErrorKind::MaxItems { limit } => one("fault_max_items", "limit", limit.to_string()),
        ValidationErrorKind::AdditionalItems { limit } => one("fault_max_items", "limit", limit.to_string()),
        ValidationErrorKind::MinProperties { limit } => one("fault_min_fields", "limit", limit.to_string()),
        ValidationErrorKind::MaxProperties { limit } => one("fault_max_fields", "limit", limit.to_string()),
        ValidationErrorKind::MultipleOf { multiple_of } => one("fault_multiple", "step", multiple_of.to_string()),
        ValidationErrorKind::PropertyNames { error } => {
            one("fault_field_name", "name", error.instance().as_str().unwrap_or_default().to_owned())
        }
        ValidationErrorKind::UnevaluatedItems { unexpected } => one("fault_surplus", "names", unexpected.join(", ")),
        ValidationErrorKind::UnevaluatedProperties { unexpected } => {
            one("fault_surplus", "names", unexpected.join(", "))
        }
        ValidationErrorKind::Contains => plainly("fault_contains"),
        ValidationErrorKind::FalseSchema => plainly("fault_never"),
        ValidationErrorKind::Not { .. } => plainly("fault_not"),
        ValidationErrorKind::AnyOf { .. } | ValidationErrorKind::OneOfNotValid { .. } => plainly("fault_none_of"),
        ValidationErrorKind::OneOfMultipleValid { .. } => plainly("fault_several_of"),
        ValidationErrorKind::UniqueItems => plainly("fault_unique"),
        ValidationErrorKind::Pattern { pattern } => one("fault_pattern", "pattern", pattern.clone()),
        ValidationErrorKind::Format { format } => one("fault_format", "format", format.clone()),
        ValidationErrorKind::Constant { expected_value } => one("fault_one_of", "words", plain_text(expected_value)),
        ValidationErrorKind::Enum { options } => {
            let options =
                options.as_array().map(|options| options.iter().map(plain_text).collect::<Vec<_>>().join(", "));
            one("fault_one_of", "words", options.unwrap_or_default())
        }
        _ => vec![ArgumentFault::untranslated(place, message)],
    }
}

/// A text as it is, all else as JSON.
fn plain_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn changes_replace_add_and_take_away_and_leave_the_rest() {
        let changes = json!({ "text": "other", "cc": null, "count": 2 });
        let changed = changed(&json!({ "room": "a", "text": "one", "cc": "b" }), changes.as_object().unwrap());
        assert_eq!(changed, json!({ "room": "a", "text": "other", "count": 2 }));
    }

    #[test]
    fn each_fault_stands_at_its_own_place() {
        let schema = json!({
            "type": "object", "required": ["to", "text"], "additionalProperties": false,
            "properties": { "to": { "type": "string" }, "text": { "type": "string", "maxLength": 3 },
                "tags": { "type": "array", "items": { "type": "string" } } },
        });
        assert_eq!(check(&schema, &json!({ "to": "ann", "text": "hi" }), "/modifications"), Ok(()));
        let faults = check(&schema, &json!({ "text": "long", "tags": ["a", 1], "x/y": 1 }), "/modifications");
        let mut faults: Vec<String> =
            faults.unwrap_err().0.into_iter().map(|f| format!("{} {}", f.pointer, f.message)).collect();
        faults.sort();
        assert_eq!(
            faults,
            [
                "/modifications/tags/1 the value is not of type \"string\"",
                "/modifications/text the value is longer than 3 characters",
                "/modifications/to is required",
                "/modifications/x~1y is no argument of this tool",
            ]
        );
        assert_eq!(check(&schema, &json!([]), "/m").unwrap_err(), ValidationErrors::one("/m", "must be a JSON object"));
    }
}
