//! JSON Schemas with bounds: how large one may be, and what holding a value against it takes, known before it is done.
//!
//! Patterns are searched in linear time and nothing is fetched. A schema that names itself is refused: what it takes
//! could double with each level of a value.

use jsonschema::{PatternOptions, ValidationError, Validator};
use serde_json::Value;

/// Most subschemas of a schema, those counted again that are named by a `$ref`.
pub const SCHEMAS: u64 = 2_000;
/// Most lists and objects of a schema inside each other, a `$ref` counted as what it names.
pub const SCHEMA_DEPTH: usize = 64;
/// Most steps of one check, of about a nanosecond.
pub const MOST_STEPS: u64 = 50_000_000;
/// The largest compiled pattern of a schema, in bytes.
const PATTERN_BYTES: usize = 64 * 1024;
/// One subschema held against one value, and against one byte of a text.
const EACH: u64 = 40;

/// A schema that was read.
pub struct JsonSchema {
    validator: Validator,
    /// Subschemas and values that a value is compared with.
    parts: u64,
    /// Patterns, and lists whose elements have to differ.
    heavy: u64,
}

impl JsonSchema {
    /// # Errors
    /// It is no schema, or a larger one than can be checked.
    pub fn read(schema: &Value) -> Result<JsonSchema, String> {
        let mut count = Count { root: schema, parts: 0, heavy: 0, named: Vec::new() };
        count.walk(schema, 0)?;
        let patterns = PatternOptions::regex().size_limit(PATTERN_BYTES);
        let validator = jsonschema::options().with_pattern_options(patterns).offline().build(schema);
        let validator = validator.map_err(|error| error.to_string())?;
        Ok(JsonSchema { validator, parts: count.parts, heavy: count.heavy })
    }

    /// The steps that a check of the value takes at most.
    pub fn steps(&self, value: &Value) -> u64 {
        let (values, bytes) = size(value);
        let looks = self.parts.saturating_mul(values).saturating_mul(EACH);
        looks.saturating_add(self.heavy.saturating_mul(bytes).saturating_mul(EACH)).saturating_add(bytes)
    }

    /// Faults of the value. Refuses a value that would take too much.
    ///
    /// # Errors
    /// It takes more than [`MOST_STEPS`].
    pub fn faults<'a>(&'a self, value: &'a Value) -> Result<impl Iterator<Item = ValidationError<'a>>, String> {
        match self.steps(value) {
            ..=MOST_STEPS => Ok(self.validator.iter_errors(value)),
            steps => Err(format!("is too large to be held against its schema: {steps} steps, at most {MOST_STEPS}")),
        }
    }
}

struct Count<'a> {
    root: &'a Value,
    parts: u64,
    heavy: u64,
    /// Schemas that are being walked by way of a `$ref`.
    named: Vec<&'a str>,
}

impl<'a> Count<'a> {
    fn walk(&mut self, schema: &'a Value, depth: usize) -> Result<(), String> {
        self.parts += 1;
        if self.parts > SCHEMAS {
            return Err(format!("has more than {SCHEMAS} parts"));
        }
        if depth > SCHEMA_DEPTH {
            return Err(format!("is more than {SCHEMA_DEPTH} levels deep"));
        }
        match schema {
            Value::Array(items) => items.iter().try_for_each(|item| self.walk(item, depth + 1)),
            Value::Object(fields) => {
                let heavy = ["pattern", "patternProperties", "uniqueItems", "format"];
                self.heavy += heavy.iter().filter(|name| fields.contains_key(**name)).count() as u64;
                for (name, field) in fields {
                    match (name.as_str(), field) {
                        ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(target)) => {
                            self.named(target, depth)?
                        }
                        // what nothing names is not looked at
                        ("$defs" | "definitions", _) if depth == 0 => {}
                        _ => self.walk(field, depth + 1)?,
                    }
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn named(&mut self, target: &'a str, depth: usize) -> Result<(), String> {
        if self.named.contains(&target) || target == "#" {
            return Err(format!("names itself by `{target}`, so that a check of it has no bound"));
        }
        let root = self.root;
        let Some(found) = target.strip_prefix('#').and_then(|pointer| root.pointer(pointer)) else {
            // what the schema does not have itself can't be read, and is told so when it is built
            return Ok(());
        };
        self.named.push(target);
        self.walk(found, depth + 1)?;
        self.named.pop();
        Ok(())
    }
}

/// Values at any depth, and bytes of texts and keys.
fn size(value: &Value) -> (u64, u64) {
    let both = |(values, bytes): (u64, u64), (more, longer): (u64, u64)| (values + more, bytes + longer);
    match value {
        Value::String(text) => (1, text.len() as u64),
        Value::Array(items) => items.iter().map(size).fold((1, 0), both),
        Value::Object(fields) => {
            let of = fields.iter().map(|(name, field)| both(size(field), (0, name.len() as u64)));
            of.fold((1, 0), both)
        }
        _ => (1, 0),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn refusal(schema: &Value) -> String {
        JsonSchema::read(schema).err().unwrap_or_default()
    }

    #[test]
    fn schema_has_so_many_parts_and_levels_and_does_not_name_itself() {
        // `enum`, its list and the schema are three
        let options = |count: u64| json!({ "enum": (0..count).collect::<Vec<_>>() });
        assert_eq!(refusal(&options(SCHEMAS - 2)), "");
        assert!(refusal(&options(SCHEMAS - 1)).contains("more than 2000 parts"));
        let deep = |levels: usize| (0..levels).fold(json!(true), |inside, _| json!({ "not": inside }));
        assert_eq!(refusal(&deep(SCHEMA_DEPTH)), "");
        assert!(refusal(&deep(SCHEMA_DEPTH + 1)).contains("64 levels"));
        let tree =
            json!({ "$ref": "#/$defs/a", "$defs": { "a": { "anyOf": [{ "items": { "$ref": "#/$defs/a" } }] } } });
        assert!(refusal(&tree).contains("names itself by `#/$defs/a`"), "{}", refusal(&tree));
        assert!(refusal(&json!({ "not": { "$ref": "#" } })).contains("names itself"));
        // each name doubles what there is
        let defs: serde_json::Map<String, Value> = (0..20)
            .map(|n| (format!("d{n}"), json!({ "anyOf": [{ "$ref": format!("#/$defs/d{}", n + 1) }, { "$ref": format!("#/$defs/d{}", n + 1) }] })))
            .chain([("d20".to_owned(), json!({ "type": "string" }))])
            .collect();
        assert!(refusal(&json!({ "$ref": "#/$defs/d0", "$defs": defs })).contains("more than"));
    }

    #[test]
    fn check_is_refused_by_steps_before_it_is_done() {
        let schema =
            JsonSchema::read(&json!({ "items": { "anyOf": [{ "pattern": "^(a|b)*c$" }, { "maxLength": 3 }] } }));
        let schema = schema.unwrap();
        let honest = json!(vec!["abc"; 500]);
        assert_eq!(schema.faults(&honest).unwrap().count(), 0);
        let steps = |count: usize| schema.steps(&json!(vec!["abc"; count]));
        // each element takes as many steps as the one before it
        let (first, each) = (steps(1), steps(2) - steps(1));
        let most = ((MOST_STEPS - first) / each) as usize + 2;
        assert!(steps(most - 1) <= MOST_STEPS && steps(most) > MOST_STEPS);
        assert!(schema.faults(&json!(vec!["abc"; most - 1])).is_ok());
        let refused = schema.faults(&json!(vec!["abc"; most])).err().unwrap();
        assert!(refused.starts_with("is too large to be held against its schema"), "{refused}");
    }
}
