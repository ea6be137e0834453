//! Arguments as a person changes them: put together with the proposed ones, and held against the tool's schema.

use jsonschema::ValidationError;
use jsonschema::error::ValidationErrorKind;
use serde_json::{Map, Value};

use crate::invalid::{Faults, escape};
use crate::json_schema::JsonSchema;

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

/// Whether the arguments fit the tool's schema; each fault stands at its place below `pointer`.
pub fn check(parameters: &Value, arguments: &Value, pointer: &str) -> Result<(), Faults> {
    if !arguments.is_object() {
        return Err(Faults::one(pointer, "must be a JSON object"));
    }
    let Ok(schema) = JsonSchema::read(parameters) else {
        return Err(Faults::one(pointer, "can't be checked: the tool's parameters are no JSON Schema"));
    };
    let mut faults = Faults::new();
    let found = schema.faults(arguments).map_err(|why| Faults::one(pointer, why))?;
    for error in found.take(FAULTS_TOLD) {
        add(&error, pointer, &mut faults);
    }
    faults.or(())
}

/// What is missing or too much is told at its own place, not at that of the object around it.
fn add(error: &ValidationError, pointer: &str, faults: &mut Faults) {
    let place = format!("{pointer}{}", error.instance_path());
    match error.kind() {
        ValidationErrorKind::Required { property } => {
            let name = property.as_str().unwrap_or_default();
            faults.add(format!("{place}/{}", escape(name)), "is required");
        }
        ValidationErrorKind::AdditionalProperties { unexpected } => {
            for name in unexpected {
                faults.add(format!("{place}/{}", escape(name)), "is no argument of this tool");
            }
        }
        // the sentence would repeat the value, which may be long
        _ => faults.add(place, error.masked_with("the value").to_string()),
    }
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
        assert_eq!(check(&schema, &json!([]), "/m").unwrap_err(), Faults::one("/m", "must be a JSON object"));
    }
}
