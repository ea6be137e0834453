//! How a value is edited and shown: a text as a text wherever it stands, a list of texts one a line, and JSON only
//! where nothing else says it all.

use serde_json::Value;

use crate::base::unicode_safety::is_hidden;

/// Texts longer than this get more than one line.
const LINE: usize = 60;

/// How a field is shown and read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallKind {
    Line,
    Lines,
    Number,
    YesNo,
    OneOf(Vec<String>),
    /// One of these values, each with the words for it.
    Choice(Vec<(String, String)>),
    /// Any of these values, each with the words for it; its text has those that are chosen, one a line.
    Several(Vec<(String, String)>),
    /// Texts, one a line.
    List,
    /// Whatever has no form of its own, as JSON.
    Json,
}

/// Types that the schema allows here; `None`: it names none.
fn types(schema: &Value) -> Option<Vec<&str>> {
    match schema.get("type")? {
        Value::String(one) => Some(vec![one]),
        Value::Array(several) => {
            Some(several.iter().filter_map(Value::as_str).filter(|word| *word != "null").collect())
        }
        _ => None,
    }
}

/// How a value is edited: by what is proposed, as far as the schema allows that; where nothing is, by the schema.
pub fn kind(schema: &Value, proposed: Option<&Value>) -> CallKind {
    let types = types(schema);
    let may_be = |words: &[&str]| types.as_ref().is_none_or(|types| types.iter().any(|word| words.contains(word)));
    let choices = schema.get("enum").and_then(Value::as_array).map(|words| words.iter().map(Value::as_str).collect());
    match proposed {
        Some(Value::String(text)) if may_be(&["string"]) && !text.chars().any(is_hidden) => {
            text_kind(schema, choices, Some(text))
        }
        Some(Value::Array(items)) if may_be(&["array"]) && are_lines(items) && has_texts(schema) => CallKind::List,
        _ if choices.is_some() && (proposed.is_some() || types.as_deref() != Some(&["string"][..])) => CallKind::Json,
        Some(Value::Number(_)) if may_be(&["integer", "number"]) => CallKind::Number,
        Some(Value::Bool(_)) if may_be(&["boolean"]) => CallKind::YesNo,
        Some(_) => CallKind::Json,
        None => match types.as_deref() {
            Some(["string"]) => text_kind(schema, choices, None),
            Some(["integer" | "number"]) => CallKind::Number,
            Some(["boolean"]) => CallKind::YesNo,
            Some(["array"]) if schema["items"]["type"] == "string" && has_texts(schema) => CallKind::List,
            _ => CallKind::Json,
        },
    }
}

/// How a field is edited that a server asks for: by its choices, else by its type.
pub fn kind_of_server(schema: &Value) -> CallKind {
    let items = &schema["items"];
    if schema["type"] == "array" {
        let plain: Option<Vec<(String, String)>> =
            items["enum"].as_array().map(|words| words.iter().filter_map(of_word).collect());
        let several = plain.or_else(|| titled(&items["anyOf"]));
        return several.map_or(CallKind::Json, CallKind::Several);
    }
    match titled(&schema["oneOf"]) {
        Some(choices) => CallKind::Choice(choices),
        // e-mail addresses, dates and the like have no lines
        None if schema.get("format").is_some() => CallKind::Line,
        None => kind(schema, None),
    }
}

/// The choices of a list of constants with their titles; `None`: it is none.
fn titled(choices: &Value) -> Option<Vec<(String, String)>> {
    let choice = |one: &Value| {
        let value = one["const"].as_str()?;
        Some((value.to_owned(), one["title"].as_str().unwrap_or(value).to_owned()))
    };
    Some(choices.as_array()?.iter().filter_map(choice).collect())
}

fn of_word(word: &Value) -> Option<(String, String)> {
    let word = word.as_str()?;
    Some((word.to_owned(), word.to_owned()))
}

/// How a text is edited: as a text.
fn text_kind(schema: &Value, choices: Option<Option<Vec<&str>>>, text: Option<&str>) -> CallKind {
    if let Some(words) = choices {
        return one_of(words, text);
    }
    let most = schema.get("maxLength").and_then(Value::as_u64);
    let long = text.is_some_and(|text| text.contains('\n') || text.chars().count() > LINE);
    if long || most.is_some_and(|most| most > 2 * LINE as u64) { CallKind::Lines } else { CallKind::Line }
}

/// A list to choose from; an odd one is JSON.
fn one_of(words: Option<Vec<&str>>, proposed: Option<&str>) -> CallKind {
    match words {
        Some(words)
            if words.iter().all(|word| !word.is_empty() && !word.chars().any(is_hidden))
                && proposed.is_none_or(|proposed| words.contains(&proposed)) =>
        {
            CallKind::OneOf(words.into_iter().map(str::to_owned).collect())
        }
        _ => CallKind::Json,
    }
}

/// Whether these can stand one a line, and come back as they were.
fn are_lines(items: &[Value]) -> bool {
    let is_line = |text: &str| !text.is_empty() && !text.chars().any(|c| c == '\n' || c == '\r' || is_hidden(c));
    !items.is_empty() && items.iter().all(|item| item.as_str().is_some_and(is_line))
}

/// Whether the items of a list may be any texts.
fn has_texts(schema: &Value) -> bool {
    let items = schema.get("items").unwrap_or(&Value::Null);
    items.get("enum").is_none() && types(items).is_none_or(|types| types.contains(&"string"))
}

/// A value as its field holds it.
pub fn as_text(kind: &CallKind, value: &Value) -> String {
    match (kind, value) {
        (CallKind::Json, value) => json(value),
        (CallKind::List | CallKind::Several(_), Value::Array(items)) => {
            items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n")
        }
        (_, Value::String(text)) => text.clone(),
        (_, value) => value.to_string(),
    }
}

/// A value for people: texts without quotes, lists of them one a line, JSON where it is anything else.
pub fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) if are_lines(items) => as_text(&CallKind::List, value),
        value => json(value),
    }
}

/// JSON for people, every hidden character in it written as an escape.
pub fn json(value: &Value) -> String {
    let pretty = serde_json::to_string_pretty(value).expect("a JSON value is JSON");
    let mut shown = String::with_capacity(pretty.len());
    for c in pretty.chars() {
        if is_hidden(c) {
            let mut units = [0; 2];
            c.encode_utf16(&mut units).iter().for_each(|unit| shown.push_str(&format!("\\u{unit:04x}")));
        } else {
            shown.push(c);
        }
    }
    shown
}
