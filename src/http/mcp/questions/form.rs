//! The form with which an MCP client asks its person: a field for each thing that a call lacks or that a server asks for,
//! or one field for an answer in words.

use serde_json::{Map, Value, json};

use crate::domain::approval::reply::awaited_fields;
use crate::domain::approval::{Approval, Proposal};
use crate::http::api::runs::input::asked_back;

/// Longest text of a request that comes from an agent or a tool, in characters.
pub const TEXT_CHARS: usize = 1_000;
/// The field of a form that takes the answer in words.
pub const ANSWER: &str = "answer";
/// Formats of texts that a form may name.
const FORMATS: [&str; 4] = ["email", "uri", "date", "date-time"];

/// Fields of a form by their names, and the names of those that have to be there.
struct FormSchema {
    properties: Map<String, Value>,
    required: Vec<String>,
}

/// The schema of the form for a question.
pub fn schema_of(question: &Approval) -> Value {
    let FormSchema { properties, required } = fields(&question.proposal).unwrap_or_else(|| in_words(question));
    json!({ "type": "object", "properties": properties, "required": required })
}

/// Whether the form of a question has a field for each thing that is awaited, and none for an answer in words.
pub fn has_fields(proposal: &Proposal) -> bool {
    fields(proposal).is_some()
}

/// At most [`TEXT_CHARS`] characters of a text.
pub fn cut(text: &str) -> String {
    match text.char_indices().nth(TEXT_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A field for each that is awaited, and of a server's question for each that it names. `None`: one that is awaited has
/// no simple form, or no server asks and none is awaited by its name.
fn fields(proposal: &Proposal) -> Option<FormSchema> {
    let awaited = awaited_fields(&proposal.parameters, &proposal.arguments);
    let names: Vec<&str> = match &proposal.server {
        Some(asked) => asked.field_names().collect(),
        None => awaited.clone(),
    };
    let mut properties = Map::new();
    for name in names {
        match field(&proposal.parameters["properties"][name]) {
            Some(field) => properties.insert(name.to_owned(), field),
            None if awaited.contains(&name) => return None,
            None => None,
        };
    }
    let has_all = awaited.iter().all(|name| properties.contains_key(*name));
    let is_fit = has_all && (proposal.is_of_server() || !properties.is_empty());
    is_fit.then(|| FormSchema { properties, required: awaited.into_iter().map(str::to_owned).collect() })
}

/// The one field that takes the answer in words.
fn in_words(question: &Approval) -> FormSchema {
    let field = json!({ "type": "string", "title": "Answer", "description": cut(&asked_back(question)) });
    FormSchema { properties: Map::from_iter([(ANSWER.to_owned(), field)]), required: vec![ANSWER.to_owned()] }
}

/// The schema of a field as forms have it: a text, a number, yes or no, or one or several of some texts.
fn field(schema: &Value) -> Option<Value> {
    let has_choices = ["enum", "oneOf"].iter().any(|name| schema.get(*name).is_some());
    let mut field = match schema["type"].as_str() {
        None | Some("string") if has_choices => one_of(schema)?,
        Some("array") => several_of(schema)?,
        Some(kind @ ("string" | "number" | "integer" | "boolean")) if !has_choices => plain(kind, schema),
        _ => return None,
    };
    for text in ["title", "description"] {
        let words = schema[text].as_str().filter(|words| !words.is_empty());
        field.extend(words.map(|words| (text.to_owned(), cut(words).into())));
    }
    let default = schema.get("default").filter(|default| is_default(&field, default));
    field.extend(default.map(|default| ("default".to_owned(), default.clone())));
    Some(field.into())
}

fn plain(kind: &str, schema: &Value) -> Map<String, Value> {
    let mut field = Map::from_iter([("type".to_owned(), kind.into())]);
    let format = schema["format"].as_str().filter(|format| kind == "string" && FORMATS.contains(format));
    field.extend(format.map(|format| ("format".to_owned(), format.into())));
    field
}

fn one_of(schema: &Value) -> Option<Map<String, Value>> {
    Some(Map::from_iter([("type".to_owned(), "string".into()), choices(schema, "oneOf")?]))
}

fn several_of(schema: &Value) -> Option<Map<String, Value>> {
    let items = schema.get("items")?;
    let mut of_items = Map::from_iter([choices(items, "anyOf")?]);
    if of_items.contains_key("enum") {
        of_items.insert("type".to_owned(), "string".into());
    }
    let mut field = Map::from_iter([("type".to_owned(), "array".into()), ("items".to_owned(), of_items.into())]);
    for bound in ["minItems", "maxItems"] {
        field.extend(schema[bound].as_u64().map(|count| (bound.to_owned(), count.into())));
    }
    Some(field)
}

/// The texts among which one is chosen, under the name by which a form has them: plain, or each with a title. `None`:
/// there are none, or one of them is no short text.
fn choices(schema: &Value, titled: &str) -> Option<(String, Value)> {
    if let Some(plain) = schema.get("enum") {
        let is_plain = plain.as_array().is_some_and(|texts| !texts.is_empty() && texts.iter().all(is_short));
        return is_plain.then(|| ("enum".to_owned(), plain.clone()));
    }
    let listed = schema.get(titled)?.as_array().filter(|listed| !listed.is_empty())?;
    let choice = |choice: &Value| {
        let value = choice.get("const").filter(|value| is_short(value))?;
        let title = choice["title"].as_str().or_else(|| value.as_str())?;
        Some(json!({ "const": value, "title": cut(title) }))
    };
    Some((titled.to_owned(), listed.iter().map(choice).collect::<Option<Vec<Value>>>()?.into()))
}

/// Whether a field may begin with this value.
fn is_default(field: &Map<String, Value>, default: &Value) -> bool {
    match field.get("type").and_then(Value::as_str) {
        Some("string") => is_short(default),
        Some("number" | "integer") => default.is_number(),
        Some("boolean") => default.is_boolean(),
        Some("array") => default.as_array().is_some_and(|values| values.iter().all(is_short)),
        _ => false,
    }
}

fn is_short(value: &Value) -> bool {
    value.as_str().is_some_and(|text| text.char_indices().nth(TEXT_CHARS).is_none())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_with_titles_defaults_and_lists_are_fields_of_a_form() {
        let titled = json!([{ "const": "m", "title": "main" }, { "const": "d" }]);
        let told = json!([{ "const": "m", "title": "main" }, { "const": "d", "title": "d" }]);
        assert_eq!(
            field(&json!({ "type": "string", "oneOf": titled, "default": "m" })),
            Some(json!({ "type": "string", "oneOf": told, "default": "m" }))
        );
        assert_eq!(
            field(&json!({ "type": "array", "items": { "anyOf": titled }, "minItems": 1, "default": ["d"] })),
            Some(json!({ "type": "array", "items": { "anyOf": told }, "minItems": 1, "default": ["d"] }))
        );
        assert_eq!(
            field(&json!({ "type": "array", "items": { "type": "string", "enum": ["a"] }, "maxItems": 1 })),
            Some(json!({ "type": "array", "items": { "type": "string", "enum": ["a"] }, "maxItems": 1 }))
        );
        for (kind, default) in [("integer", json!(7)), ("number", json!(0.5)), ("boolean", json!(false))] {
            let whole = json!({ "type": kind, "default": default });
            assert_eq!(field(&whole), Some(whole));
            assert_eq!(
                field(&json!({ "type": kind, "default": "x" })),
                Some(json!({ "type": kind })),
                "no value of it"
            );
        }
    }

    #[test]
    fn choice_that_is_no_short_text_has_no_field() {
        let (longest, longer) = ("x".repeat(TEXT_CHARS), "x".repeat(TEXT_CHARS + 1));
        assert!(field(&json!({ "oneOf": [{ "const": longest, "title": longer }] })).is_some());
        for odd in [
            json!({ "oneOf": [] }),
            json!({ "oneOf": [{ "const": 1 }] }),
            json!({ "oneOf": [{ "title": "a" }] }),
            json!({ "oneOf": [{ "const": longer }] }),
            json!({ "type": "integer", "oneOf": [{ "const": "1" }] }),
            json!({ "type": "array", "items": { "anyOf": [{ "type": "string" }] } }),
            json!({ "type": "array" }),
        ] {
            assert_eq!(field(&odd), None, "{odd}");
        }
        let plain = field(&json!({ "type": "string", "default": longer }));
        assert_eq!(plain, Some(json!({ "type": "string" })), "a default is short, too");
    }
}
