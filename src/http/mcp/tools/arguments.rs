//! Arguments of tools: read with words for a model, and described by schemas.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::base::invalid::{ValidationErrors, did_you_mean, escape, shorten_middle, unknown_fields};
use crate::http::mcp::outcome::ToolRefusal;
use crate::http::mcp::tools::ToolInput;

/// The most items of a list.
pub const LISTED: u32 = 50;
/// Items of a list where no number is asked for.
const LISTED_BY_DEFAULT: u32 = 20;
/// Longest argument that a refusal quotes, in bytes.
const QUOTED: usize = 100;
/// Longest key that makes a repetition safe, in bytes.
const KEY_BYTES: usize = 200;

/// Refuses arguments that a schema does not have, and those it misses; `also` may be there too.
pub fn check(arguments: &Map<String, Value>, schema: &Value, also: &[&str]) -> Result<(), ToolRefusal> {
    let described: Vec<&str> =
        schema["properties"].as_object().into_iter().flat_map(Map::keys).map(String::as_str).collect();
    let known = [&described[..], also].concat();
    let mut faults = ValidationErrors::new();
    for name in unknown_fields(arguments, &known) {
        let near = did_you_mean(name, described.iter().copied());
        faults.add(format!("/{}", escape(name)), format!("there is no such argument{near}"));
    }
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    for name in required.filter(|name| arguments.get(*name).is_none_or(Value::is_null)) {
        faults.add(format!("/{name}"), "is missing");
    }
    faults.into_result(()).map_err(|faults| ToolRefusal::of_faults(faults.0))
}

/// The arguments as a tool's own type; a fault names its argument.
pub fn read<T: DeserializeOwned>(input: &ToolInput) -> Result<T, ToolRefusal> {
    serde_path_to_error::deserialize(&input.arguments).map_err(|error| {
        let place = error.path().to_string();
        let mut faults = ValidationErrors::new();
        let pointer = if place == "." { String::new() } else { format!("/{}", escape(&place)) };
        faults.add(pointer, error.inner().to_string());
        ToolRefusal::of_faults(faults.0)
    })
}

/// An id; `of` is the kind of thing that it must be of.
pub fn id(given: &str, of: &str) -> Result<Uuid, ToolRefusal> {
    Uuid::try_parse(given).map_err(|_| {
        let given = shorten_middle(given.to_owned(), QUOTED);
        ToolRefusal::new(format!("`{given}` is no id of a {of}; a tool that lists shows the ids. Call again with one."))
    })
}

/// The schema of an object with these properties and no others.
pub fn object(properties: Value, required: &[&str]) -> Value {
    let mut schema = json!({ "type": "object", "properties": properties, "additionalProperties": false });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

/// The number of items that a list is asked for.
pub fn limit(given: Option<u32>) -> String {
    given.unwrap_or(LISTED_BY_DEFAULT).min(LISTED).to_string()
}

/// The schema of [`limit`].
pub fn limit_schema() -> Value {
    json!({ "type": "integer", "minimum": 1, "description": "How many at most; 20 where it is absent" })
}

/// The schema of the place at which a list goes on.
pub fn cursor_schema() -> Value {
    json!({ "type": "string", "description": "`next_cursor` of the page before" })
}

/// The schema of [`key`].
pub fn key_schema() -> Value {
    json!({
        "type": "string", "minLength": 1, "maxLength": KEY_BYTES,
        "description": "Any text of your own that makes a repetition safe: a call with a text that was used before \
                        does nothing anew, and has the result of the first",
    })
}

/// A key that makes a repetition safe.
pub fn key(given: Option<String>) -> Result<Option<String>, ToolRefusal> {
    let is_plain = |key: &str| key.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    match given {
        Some(key) if !(1..=KEY_BYTES).contains(&key.len()) || !is_plain(&key) => {
            let why = format!("`idempotency_key` must be 1 to {KEY_BYTES} ASCII characters. Mend this and call again.");
            Err(ToolRefusal::new(why))
        }
        given => Ok(given),
    }
}

/// A query of these fields, without those that are absent.
pub fn query<const N: usize>(fields: [(&'static str, Option<String>); N]) -> Vec<(&'static str, String)> {
    fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// An object of these fields, without those that are absent.
pub fn fields<const N: usize>(fields: [(&str, Option<Value>); N]) -> Map<String, Value> {
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Looked {
        name: String,
        limit: Option<u32>,
    }

    fn input(arguments: Value) -> ToolInput {
        let Value::Object(arguments) = arguments else { unreachable!() };
        ToolInput { arguments, ..ToolInput::default() }
    }

    #[test]
    fn argument_at_fault_is_named() {
        let looked: Looked = read(&input(json!({ "name": "a", "limit": null }))).unwrap();
        assert_eq!((looked.name.as_str(), looked.limit), ("a", None));
        let why = read::<Looked>(&input(json!({ "name": "a", "limit": "ten" }))).unwrap_err().message;
        assert!(why.starts_with("`limit`: invalid type") && why.ends_with("call again."), "{why}");
        let long = read::<Looked>(&input(json!({ "name": "a", "limit": "x".repeat(100_000) }))).unwrap_err().message;
        assert!(long.len() < 2_000, "{}", long.len());
    }

    #[test]
    fn unknown_and_missing_arguments_are_told_together() {
        let schema = object(json!({ "name": {}, "limit": {} }), &["name"]);
        let of = |arguments: Value| check(&input(arguments).arguments, &schema, &["tenant_id"]);
        assert_eq!(of(json!({ "name": "a", "tenant_id": "ann" })), Ok(()));
        let why = of(json!({ "limits": 7, "name": null })).unwrap_err().message;
        let expected =
            "`limits`: there is no such argument; did you mean `limit`?\n`name`: is missing\nMend this and call again.";
        assert_eq!(why, expected);
    }

    #[test]
    fn list_has_as_many_items_as_may_be_asked_for() {
        assert_eq!(limit(None), LISTED_BY_DEFAULT.to_string());
        assert_eq!(limit(Some(LISTED)), LISTED.to_string());
        assert_eq!(limit(Some(LISTED + 1)), LISTED.to_string());
        assert_eq!(limit(Some(1)), "1");
    }

    #[test]
    fn id_and_key_are_read_or_refused_with_what_would_be_right() {
        let given = Uuid::from_u128(7);
        assert_eq!(id(&given.to_string(), "task"), Ok(given));
        let why = id(&"x".repeat(100_000), "task").unwrap_err().message;
        assert!(why.contains("is no id of a task") && why.len() < 500, "{why}");
        assert_eq!(key(None), Ok(None));
        let longest = "k".repeat(KEY_BYTES);
        assert_eq!(key(Some(longest.clone())), Ok(Some(longest)));
        for wrong in ["".to_owned(), "ä".to_owned(), "a\nb".to_owned(), "k".repeat(KEY_BYTES + 1)] {
            assert!(key(Some(wrong)).unwrap_err().message.contains("`idempotency_key`"));
        }
    }

    #[test]
    fn schema_requires_nothing_where_nothing_is_required() {
        assert_eq!(object(json!({}), &[]).get("required"), None);
        assert_eq!(object(json!({ "a": {} }), &["a"])["required"], json!(["a"]));
    }
}
