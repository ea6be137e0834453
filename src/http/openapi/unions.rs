//! Objects that are made of several, and unions that a field tells apart.
//!
//! An object whose fields come from two types (`flatten`) is published as one object. A union whose variants each have
//! their own word in one field (`tag`) is published as named variants, that word a `const`, with a discriminator.

use serde_json::{Map, Value, json};

use crate::http::openapi::SCHEMAS;

/// The words of a schema behind which a value stands, and no schema.
const VALUES: [&str; 5] = ["const", "default", "enum", "example", "examples"];

/// Makes one object of each `allOf` whose parts are objects.
pub fn merge(schemas: &mut Map<String, Value>) {
    let written = schemas.clone();
    schemas.values_mut().for_each(|schema| merge_within(schema, &written));
}

fn merge_within(schema: &mut Value, schemas: &Map<String, Value>) {
    if schema.get("allOf").is_some()
        && let Some(whole) = as_object(schema, schemas).or_else(|| as_union(schema, schemas))
    {
        *schema = Value::Object(whole);
    }
    match schema {
        Value::Array(items) => items.iter_mut().for_each(|item| merge_within(item, schemas)),
        Value::Object(fields) => fields.values_mut().for_each(|field| merge_within(field, schemas)),
        _ => {}
    }
}

/// The schema of an object of which one part is a union: each variant with the other parts. `None` where it is none.
fn as_union(schema: &Value, schemas: &Map<String, Value>) -> Option<Map<String, Value>> {
    let variants_of = |part: &Value| {
        let part = match part["$ref"].as_str() {
            Some(name) => schemas.get(name.strip_prefix(SCHEMAS)?)?,
            None => part,
        };
        part["oneOf"].as_array().cloned()
    };
    let mut whole = schema.as_object()?.clone();
    let Some(Value::Array(mut parts)) = whole.remove("allOf") else { return None };
    let union = parts.iter().position(|part| variants_of(part).is_some())?;
    let variants = variants_of(&parts.remove(union))?;
    let with_rest = |variant: Value| {
        let parts: Vec<Value> = [variant].into_iter().chain(parts.iter().cloned()).collect();
        as_object(&json!({ "allOf": parts }), schemas).map(Value::Object)
    };
    let variants: Vec<Value> = variants.into_iter().map(with_rest).collect::<Option<_>>()?;
    whole.insert("oneOf".into(), variants.into());
    Some(whole)
}

/// The schema of an object, its parts put together; `None` where one of them is no object.
fn as_object(schema: &Value, schemas: &Map<String, Value>) -> Option<Map<String, Value>> {
    if let Some(name) = schema["$ref"].as_str() {
        return as_object(schemas.get(name.strip_prefix(SCHEMAS)?)?, schemas);
    }
    let mut whole = schema.as_object()?.clone();
    let Some(Value::Array(parts)) = whole.remove("allOf") else {
        return (schema["type"] == "object").then_some(whole);
    };
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for part in &parts {
        let mut part = as_object(part, schemas)?;
        if let Some(Value::Object(fields)) = part.remove("properties") {
            properties.extend(fields);
        }
        if let Some(Value::Array(fields)) = part.remove("required") {
            required.extend(fields);
        }
        // the first part says what it is, where the whole does not
        for (word, value) in part {
            whole.entry(word).or_insert(value);
        }
    }
    whole.insert("properties".into(), properties.into());
    if !required.is_empty() {
        whole.insert("required".into(), required.into());
    }
    Some(whole)
}

/// Leaves out the variant of a union whose tag has this word.
pub fn remove_variant(schemas: &mut Map<String, Value>, union: &str, word: &str) {
    let variants = schemas.get_mut(union).and_then(|union| union["oneOf"].as_array_mut());
    let is_it = |variant: &Value| {
        let fields = variant["properties"].as_object().into_iter().flat_map(Map::values);
        fields.into_iter().any(|field| field["enum"] == json!([word]))
    };
    variants.into_iter().for_each(|variants| variants.retain(|variant| !is_it(variant)));
}

/// Gives the variants of tagged unions names: `schedule` of `Trigger` becomes `ScheduleTrigger`.
///
/// A type of that name which is only a part of the variant gives way to it.
pub fn name_variants(schemas: &mut Map<String, Value>) {
    let names: Vec<String> = schemas.keys().cloned().collect();
    for name in names {
        let variants = schemas[&name]["oneOf"].as_array().cloned().unwrap_or_default();
        let Some(tag) = tag_of(&variants) else { continue };
        let (mut references, mut mapping) = (Vec::new(), Map::new());
        for mut variant in variants {
            let word = variant["properties"][&tag]["enum"][0].as_str().unwrap_or_default().to_owned();
            variant["properties"][&tag] = json!({ "type": "string", "const": word });
            let variant_name = format!("{}{name}", capitalised(&word));
            let place = format!("{SCHEMAS}{variant_name}");
            references.push(json!({ "$ref": place }));
            mapping.insert(word, place.into());
            schemas.insert(variant_name, variant);
        }
        schemas[&name]["oneOf"] = references.into();
        schemas[&name]["discriminator"] = json!({ "propertyName": tag, "mapping": mapping });
    }
}

/// The field that has one word in each variant.
fn tag_of(variants: &[Value]) -> Option<String> {
    let is_tag = |variant: &Value, field: &str| {
        let words = variant["properties"][field]["enum"].as_array();
        let is_needed = variant["required"].as_array().is_some_and(|fields| fields.iter().any(|one| one == field));
        is_needed && words.is_some_and(|words| words.len() == 1 && words[0].is_string())
    };
    let fields = variants.first()?["properties"].as_object()?.keys();
    let mut tags = fields.filter(|field| variants.iter().all(|variant| is_tag(variant, field)));
    tags.next().filter(|_| variants.len() > 1).cloned()
}

/// Says an enum of one word as a `const`, in a schema and in all that it is made of: generators make a type of each
/// enum.
pub fn say_single_words(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(say_single_words),
        Value::Object(fields) => {
            if let Some([word]) = fields.get("enum").and_then(Value::as_array).map(Vec::as_slice) {
                let word = word.clone();
                fields.remove("enum");
                fields.insert("const".into(), word);
            }
            let parts = fields.iter_mut().filter(|(name, _)| !VALUES.contains(&name.as_str()));
            parts.for_each(|(_, part)| say_single_words(part));
        }
        _ => {}
    }
}

/// `step_result` as it stands in the name of a type: `StepResult`. Words may be put together by dots as well.
fn capitalised(word: &str) -> String {
    let part = |part: &str| {
        let (first, rest) = part.split_at_checked(1).unwrap_or((part, ""));
        first.to_uppercase() + rest
    };
    word.split(['_', '.']).map(part).collect()
}
