//! Fields that a server asks for, each as a schema of known keywords alone.

use serde_json::{Map, Value, json};

use crate::base::unicode_safety::{escape_hidden, is_traceless, on_one_line};

/// Most fields of a question.
pub const FIELDS: usize = 32;
/// Longest name of a field, in bytes.
pub const FIELD_NAME_BYTES: usize = 64;
/// Most choices of a field.
pub const CHOICES: usize = 100;
/// Longest choice, and longest title of one, in characters.
pub const CHOICE_CHARS: usize = 200;
/// Longest text that is answered, in characters.
pub const ANSWER_CHARS: u64 = 10_000;
/// Longest title of a field, in characters.
const TITLE_CHARS: usize = 200;
/// Longest description of a field, in characters.
const DESCRIPTION_CHARS: usize = 500;

/// Whether a text may be a name, or a key: it reads as it is, and is told from any other.
pub fn is_plain(text: &str) -> bool {
    !text.chars().any(|c| is_traceless(c) || c.is_control())
}

/// The schema of a field, by the definition that a server gives of it.
///
/// # Errors
/// Why the field can't be asked for, in a clause.
pub fn field(definition: &Value) -> Result<Value, String> {
    let mut schema = match definition["type"].as_str() {
        Some("boolean") => Map::new(),
        Some("number" | "integer") => range(definition, ["minimum", "maximum"])?,
        Some("array") => several(definition)?,
        Some("string") => match listed(definition)? {
            Some(choices) => choices,
            None => free_text(definition)?,
        },
        _ => return Err("is of a type that is not known here".to_owned()),
    };
    schema.insert("type".to_owned(), definition["type"].clone());
    for (name, most) in [("title", TITLE_CHARS), ("description", DESCRIPTION_CHARS)] {
        if let Some(text) = told(definition, name, most)? {
            schema.insert(name.to_owned(), json!(text));
        }
    }
    let schema_so_far = Value::Object(schema.clone());
    if let Some(default) = definition.get("default").filter(|default| is_default_of(&schema_so_far, default)) {
        schema.insert("default".to_owned(), default.clone());
    }
    Ok(Value::Object(schema))
}

/// The choices of all fields of a form.
pub fn choices(parameters: &Value) -> Vec<&str> {
    let properties = parameters["properties"].as_object();
    properties.into_iter().flatten().flat_map(|(_, field)| choices_of(field)).collect()
}

/// Whether a person writes what they like into a field.
pub fn is_free_text(field: &Value) -> bool {
    let is_limited = ["enum", "oneOf", "format"].iter().any(|name| field.get(*name).is_some());
    field["type"] == "string" && !is_limited
}

/// The choices of one field; none: it has none.
fn choices_of(field: &Value) -> Vec<&str> {
    let lists = [&field["enum"], &field["items"]["enum"]];
    let titled = [&field["oneOf"], &field["items"]["anyOf"]];
    let plain = lists.into_iter().filter_map(Value::as_array).flatten().filter_map(Value::as_str);
    let named = titled.into_iter().filter_map(Value::as_array).flatten().filter_map(|choice| choice["const"].as_str());
    plain.chain(named).collect()
}

fn free_text(definition: &Value) -> Result<Map<String, Value>, String> {
    let (shortest, longest) = (definition["minLength"].as_u64(), definition["maxLength"].as_u64());
    let longest = longest.unwrap_or(ANSWER_CHARS).min(ANSWER_CHARS);
    let mut schema = Map::from_iter([("maxLength".to_owned(), json!(longest))]);
    if let Some(shortest) = shortest {
        if shortest > longest {
            return Err(format!("takes no text of up to {longest} characters"));
        }
        schema.insert("minLength".to_owned(), json!(shortest));
    }
    if let Some(format) = definition.get("format").filter(|format| format.is_string()) {
        schema.insert("format".to_owned(), format.clone());
    }
    Ok(schema)
}

/// The least and the most of a field.
fn range(definition: &Value, [least, most]: [&str; 2]) -> Result<Map<String, Value>, String> {
    let bound = |name: &str| definition.get(name).filter(|bound| bound.is_number());
    if let (Some(lower), Some(upper)) = (bound(least), bound(most))
        && lower.as_f64() > upper.as_f64()
    {
        return Err(format!("has a `{least}` above its `{most}`"));
    }
    let bounds = [least, most].into_iter().filter_map(|name| Some((name.to_owned(), bound(name)?.clone())));
    Ok(bounds.collect())
}

/// One choice of several; `None`: there are no choices.
fn listed(definition: &Value) -> Result<Option<Map<String, Value>>, String> {
    if let Some(titled) = definition["oneOf"].as_array() {
        return Ok(Some(Map::from_iter([("oneOf".to_owned(), titled_choices(titled)?)])));
    }
    let Some(plain) = definition["enum"].as_array() else { return Ok(None) };
    let Some(names) = definition["enumNames"].as_array() else {
        return Ok(Some(Map::from_iter([("enum".to_owned(), plain_choices(plain)?)])));
    };
    let titled = plain.iter().enumerate().map(|(at, choice)| json!({ "const": choice, "title": names.get(at) }));
    let titled: Vec<Value> = titled.collect();
    Ok(Some(Map::from_iter([("oneOf".to_owned(), titled_choices(&titled)?)])))
}

/// Any number of choices.
fn several(definition: &Value) -> Result<Map<String, Value>, String> {
    let items = &definition["items"];
    let (items, count) = match (items["enum"].as_array(), items["anyOf"].as_array()) {
        (Some(plain), _) => (json!({ "type": "string", "enum": plain_choices(plain)? }), plain.len()),
        (None, Some(titled)) => (json!({ "anyOf": titled_choices(titled)? }), titled.len()),
        (None, None) => return Err("is a list of what is not known here".to_owned()),
    };
    let mut schema = range(definition, ["minItems", "maxItems"])?;
    if schema.get("minItems").and_then(Value::as_u64).is_some_and(|least| least > count as u64) {
        return Err(format!("takes more than the {count} choices that there are"));
    }
    schema.insert("items".to_owned(), items);
    Ok(schema)
}

fn plain_choices(choices: &[Value]) -> Result<Value, String> {
    let sound: Vec<&str> = choices.iter().map(choice).collect::<Result<_, _>>()?;
    check_choices(&sound)?;
    Ok(json!(sound))
}

fn titled_choices(choices: &[Value]) -> Result<Value, String> {
    let sound: Vec<&str> = choices.iter().map(|titled| choice(&titled["const"])).collect::<Result<_, _>>()?;
    check_choices(&sound)?;
    let titles = sound.iter().zip(choices).map(|(choice, written)| {
        let title = told(written, "title", CHOICE_CHARS)?;
        Ok(title.unwrap_or_else(|| (*choice).to_owned()))
    });
    let titles: Vec<String> = titles.collect::<Result<_, String>>()?;
    // a person is shown the titles, and has to tell one choice from another
    check_choices(&titles.iter().map(String::as_str).collect::<Vec<_>>())?;
    let titled = sound.iter().zip(&titles).map(|(choice, title)| json!({ "const": choice, "title": title }));
    Ok(titled.collect())
}

fn check_choices(choices: &[&str]) -> Result<(), String> {
    let mut sorted = choices.to_vec();
    sorted.sort_unstable();
    match choices.len() {
        0 => Err("has no choices".to_owned()),
        1..=CHOICES if sorted.windows(2).any(|two| two[0] == two[1]) => Err("has a choice twice".to_owned()),
        1..=CHOICES => Ok(()),
        _ => Err(format!("has more than {CHOICES} choices")),
    }
}

/// A choice as it is: it stands on one line, and nothing is hidden in it.
fn choice(written: &Value) -> Result<&str, String> {
    let text = written.as_str().filter(|text| !text.trim().is_empty()).ok_or("has a choice that is no text")?;
    if text.chars().count() > CHOICE_CHARS {
        return Err(format!("has a choice of more than {CHOICE_CHARS} characters"));
    }
    match on_one_line(text) == text {
        true => Ok(text),
        false => Err("has a choice with a hidden character, or of several lines".to_owned()),
    }
}

/// A text about a field, on one line, with hidden characters shown; `None`: there is none.
fn told(definition: &Value, name: &str, most: usize) -> Result<Option<String>, String> {
    let text = on_one_line(definition[name].as_str().unwrap_or_default().trim());
    match text.chars().count() {
        0 => Ok(None),
        count if count > most => Err(format!("has a {name} of more than {most} characters")),
        _ => Ok(Some(text)),
    }
}

/// Whether a default is an answer to a field that a person sees as it is.
fn is_default_of(field: &Value, default: &Value) -> bool {
    let choices = choices_of(field);
    let is_choice = |value: &Value| value.as_str().is_some_and(|text| choices.contains(&text));
    match (field["type"].as_str(), default) {
        (Some("boolean"), Value::Bool(_)) => true,
        (Some("number" | "integer"), Value::Number(_)) => true,
        (Some("array"), Value::Array(values)) => values.len() <= CHOICES && values.iter().all(is_choice),
        (Some("string"), Value::String(text)) if choices.is_empty() => {
            let is_short = text.chars().count() as u64 <= field["maxLength"].as_u64().unwrap_or(ANSWER_CHARS);
            is_short && escape_hidden(text) == *text
        }
        (Some("string"), _) => is_choice(default),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(definition: Value) -> String {
        field(&definition).unwrap_err()
    }

    #[test]
    fn each_kind_of_field_has_the_keywords_that_are_known_and_no_others() {
        for (written, read) in [
            (
                json!({ "type": "string", "title": " Name ", "description": "A\nb", "minLength": 1, "not": {} }),
                json!({ "type": "string", "title": "Name", "description": "A b", "minLength": 1, "maxLength": 10_000 }),
            ),
            (
                json!({ "type": "string", "format": "date", "maxLength": 20_000, "default": "2026-07-28" }),
                json!({ "type": "string", "format": "date", "maxLength": 10_000, "default": "2026-07-28" }),
            ),
            (
                json!({ "type": "integer", "minimum": 1, "maximum": 9, "default": 3, "multipleOf": 2 }),
                json!({ "type": "integer", "minimum": 1, "maximum": 9, "default": 3 }),
            ),
            (json!({ "type": "number", "maximum": 1.5 }), json!({ "type": "number", "maximum": 1.5 })),
            (json!({ "type": "boolean", "default": true }), json!({ "type": "boolean", "default": true })),
            (
                json!({ "type": "string", "enum": ["a", "b"], "default": "b" }),
                json!({ "type": "string", "enum": ["a", "b"], "default": "b" }),
            ),
            (
                json!({ "type": "string", "enum": ["a", "b"], "enumNames": ["A"] }),
                json!({ "type": "string", "oneOf": [{ "const": "a", "title": "A" }, { "const": "b", "title": "b" }] }),
            ),
            (
                json!({ "type": "string", "oneOf": [{ "const": "a", "title": "A", "more": 1 }] }),
                json!({ "type": "string", "oneOf": [{ "const": "a", "title": "A" }] }),
            ),
            (
                json!({ "type": "array", "items": { "type": "string", "enum": ["a"] }, "minItems": 1 }),
                json!({ "type": "array", "items": { "type": "string", "enum": ["a"] }, "minItems": 1 }),
            ),
            (
                json!({ "type": "array", "items": { "anyOf": [{ "const": "a", "title": "A" }] }, "maxItems": 1 }),
                json!({ "type": "array", "items": { "anyOf": [{ "const": "a", "title": "A" }] }, "maxItems": 1 }),
            ),
        ] {
            assert_eq!(field(&written).unwrap(), read, "{written}");
        }
    }

    #[test]
    fn default_that_is_no_answer_or_hides_something_is_left_out() {
        for written in [
            json!({ "type": "string", "default": "a\u{200b}b" }),
            json!({ "type": "string", "maxLength": 2, "default": "abc" }),
            json!({ "type": "string", "enum": ["a"], "default": "b" }),
            json!({ "type": "boolean", "default": "yes" }),
            json!({ "type": "integer", "default": "1" }),
            json!({ "type": "array", "items": { "enum": ["a"] }, "default": ["b"] }),
        ] {
            assert_eq!(field(&written).unwrap().get("default"), None, "{written}");
        }
    }

    #[test]
    fn hidden_characters_are_shown_in_what_is_told_of_a_field() {
        let read = field(&json!({ "type": "string", "title": "a\u{202e}b", "description": "c\u{200b}d" })).unwrap();
        assert_eq!((&read["title"], &read["description"]), (&json!("a⟦U+202E⟧b"), &json!("c⟦U+200B⟧d")));
    }

    #[test]
    fn choices_are_taken_at_their_bounds_and_refused_beyond_them() {
        let choices = |count: usize| (0..count).map(|n| format!("c{n}")).collect::<Vec<_>>();
        let of = |choices: Vec<String>| json!({ "type": "string", "enum": choices });
        field(&of(choices(CHOICES))).unwrap();
        assert_eq!(refused(of(choices(CHOICES + 1))), "has more than 100 choices");
        field(&of(vec!["é".repeat(CHOICE_CHARS)])).unwrap();
        assert_eq!(refused(of(vec!["é".repeat(CHOICE_CHARS + 1)])), "has a choice of more than 200 characters");
        let titled = |title: String| json!({ "type": "string", "oneOf": [{ "const": "a", "title": title }] });
        field(&titled("é".repeat(CHOICE_CHARS))).unwrap();
        assert_eq!(refused(titled("é".repeat(CHOICE_CHARS + 1))), "has a title of more than 200 characters");
    }

    #[test]
    fn choice_that_a_person_would_not_see_as_it_is_is_refused() {
        let of = |choices: Value| json!({ "type": "string", "enum": choices });
        assert_eq!(refused(of(json!([]))), "has no choices");
        assert_eq!(refused(of(json!(["a", "b", "a"]))), "has a choice twice");
        assert_eq!(refused(of(json!(["a", " "]))), "has a choice that is no text");
        let alike = json!([{ "const": "a", "title": "All" }, { "const": "b", "title": "All" }]);
        assert_eq!(refused(json!({ "type": "string", "oneOf": alike })), "has a choice twice");
        for hidden in ["a\u{200b}", "a\nb", "\ta", "a\0"] {
            assert_eq!(refused(of(json!([hidden]))), "has a choice with a hidden character, or of several lines");
        }
    }

    #[test]
    fn text_is_answered_up_to_its_bound_alone() {
        assert_eq!(field(&json!({ "type": "string", "maxLength": 5 })).unwrap()["maxLength"], 5);
        assert_eq!(field(&json!({ "type": "string", "minLength": ANSWER_CHARS })).unwrap()["minLength"], ANSWER_CHARS);
        let none = refused(json!({ "type": "string", "minLength": ANSWER_CHARS + 1 }));
        assert_eq!(none, "takes no text of up to 10000 characters");
    }

    #[test]
    fn field_that_no_answer_fits_is_refused() {
        for (written, why) in [
            (json!({ "type": "string", "minLength": 3, "maxLength": 2 }), "takes no text of up to 2 characters"),
            (json!({ "type": "integer", "minimum": 3, "maximum": 2 }), "has a `minimum` above its `maximum`"),
            (
                json!({ "type": "array", "items": { "enum": ["a"] }, "minItems": 2 }),
                "takes more than the 1 choices that there are",
            ),
            (json!({ "type": "array", "items": { "type": "number" } }), "is a list of what is not known here"),
            (json!({ "type": "object" }), "is of a type that is not known here"),
        ] {
            assert_eq!(refused(written), why);
        }
    }

    #[test]
    fn title_and_description_are_taken_at_their_longest_and_refused_one_beyond_it() {
        for (name, most) in [("title", TITLE_CHARS), ("description", DESCRIPTION_CHARS)] {
            let of = |chars: usize| json!({ "type": "boolean", name: "é".repeat(chars) });
            field(&of(most)).unwrap();
            assert_eq!(refused(of(most + 1)), format!("has a {name} of more than {most} characters"));
        }
    }
}
