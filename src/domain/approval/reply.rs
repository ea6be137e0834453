//! Reads a person's message as values of the fields that a question asks for.

use serde_json::{Map, Number, Value};

/// Items of a list that a text is split into, at most.
const MOST_ITEMS: usize = 1_000;
/// Words for yes and no.
const YES: [&str; 4] = ["yes", "true", "ja", "y"];
const NO: [&str; 4] = ["no", "false", "nein", "n"];

/// The fields for which an answer is awaited: those that have to be there and are not.
pub fn awaited_fields<'a>(parameters: &'a Value, values: &Value) -> Vec<&'a str> {
    let required = parameters["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    required.filter(|name| values.get(name).is_none()).collect()
}

/// The values that a message gives: as [`named_reply`], or, where one field is awaited, its value alone. `None`: the
/// message has neither form, or names an unknown field. The values are not validated.
pub fn read_reply(message: &str, parameters: &Value, values: &Value) -> Option<Map<String, Value>> {
    let message = message.trim();
    if let Some(given) = named_reply(message, parameters) {
        return Some(given);
    }
    let is_object = serde_json::from_str::<Map<String, Value>>(message).is_ok();
    match awaited_fields(parameters, values)[..] {
        [one] if !is_object => {
            Some(Map::from_iter([(one.to_owned(), typed_value(message, &parameters["properties"][one]))]))
        }
        _ => None,
    }
}

/// The values of fields that a message names: as a JSON object, or with a line `name: value` for each.
pub fn named_reply(message: &str, parameters: &Value) -> Option<Map<String, Value>> {
    let fields = parameters["properties"].as_object()?;
    match serde_json::from_str(message.trim()) {
        Ok(Value::Object(given)) => given.keys().all(|name| fields.contains_key(name)).then_some(given),
        _ => lines(message, fields),
    }
}

/// Fields that are named each on a line of its own.
fn lines(message: &str, fields: &Map<String, Value>) -> Option<Map<String, Value>> {
    let mut given = Map::new();
    for line in message.lines().filter(|line| !line.trim().is_empty()) {
        let (name, text) = line.split_once([':', '='])?;
        let named = fields.iter().find(|(field, _)| field.eq_ignore_ascii_case(name.trim()))?;
        if given.contains_key(named.0) {
            return None;
        }
        given.insert(named.0.clone(), typed_value(text.trim(), named.1));
    }
    (!given.is_empty()).then_some(given)
}

/// A text as a value of the type that the field has; a text that is none of it stays a text.
pub fn typed_value(text: &str, field: &Value) -> Value {
    let as_written = || Value::String(text.to_owned());
    if let Some(choices) = field["enum"].as_array() {
        let chosen = choices.iter().find(|choice| choice.as_str().is_some_and(|word| same_word(word, text)));
        return chosen.cloned().unwrap_or_else(as_written);
    }
    if let Some(chosen) = titled_choice(text, field) {
        return Value::String(chosen.to_owned());
    }
    match field["type"].as_str() {
        Some("integer" | "number") => serde_json::from_str::<Number>(text).map_or_else(|_| as_written(), Value::Number),
        Some("boolean") if YES.iter().any(|word| same_word(word, text)) => Value::Bool(true),
        Some("boolean") if NO.iter().any(|word| same_word(word, text)) => Value::Bool(false),
        Some("array") => {
            // one more than it may have is enough to be refused
            let most = field["maxItems"].as_u64().map_or(MOST_ITEMS, |most| most as usize).min(MOST_ITEMS);
            let parts = text.split([',', '\n']).map(str::trim).filter(|part| !part.is_empty()).take(most + 1);
            parts.map(|part| typed_value(part, &field["items"])).collect()
        }
        _ => as_written(),
    }
}

/// The one choice of those with titles that a text names, by its value or by its title; `None`: it names none, or more
/// than one.
fn titled_choice<'a>(text: &str, field: &'a Value) -> Option<&'a str> {
    let lists = ["oneOf", "anyOf"].into_iter().filter_map(|name| field[name].as_array());
    let choices: Vec<&'a Value> = lists.flatten().collect();
    let named = |name: &str| {
        let mut found = choices.iter().filter(|choice| choice[name].as_str().is_some_and(|word| same_word(word, text)));
        found.next().filter(|_| found.next().is_none())
    };
    let written = choices.iter().find(|choice| choice["const"].as_str() == Some(text));
    written.or_else(|| named("const")).or_else(|| named("title"))?["const"].as_str()
}

fn same_word(one: &str, other: &str) -> bool {
    let other = other.trim();
    // lowercase letters take three times the bytes at the most
    other.len() <= 3 * one.len() && one.to_lowercase() == other.to_lowercase()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parameters() -> Value {
        json!({
            "type": "object", "required": ["party", "name"], "properties": {
                "party": { "type": "integer" }, "name": { "type": "string" }, "outside": { "type": "boolean" },
                "room": { "type": "string", "enum": ["Garden", "Hall"] },
                "dates": { "type": "array", "items": { "type": "string" } },
            },
        })
    }

    fn read(message: &str, values: Value) -> Option<Value> {
        read_reply(message, &parameters(), &values).map(Value::Object)
    }

    #[test]
    fn one_awaited_field_takes_the_whole_message_and_several_take_named_lines() {
        assert_eq!(read(" 4 ", json!({ "name": "Ann" })), Some(json!({ "party": 4 })));
        assert_eq!(read("Ann: the elder", json!({ "party": 4 })), Some(json!({ "name": "Ann: the elder" })));
        assert_eq!(read("4", json!({})), None, "of which field it is nobody knows");
        let lines = "Party: 4\nname = Ann\n\noutside: Ja\nroom: garden\ndates: Monday, Tuesday";
        let given =
            json!({ "party": 4, "name": "Ann", "outside": true, "room": "Garden", "dates": ["Monday", "Tuesday"] });
        assert_eq!(read(lines, json!({})), Some(given));
        assert_eq!(read("{\"party\": 4}", json!({})), Some(json!({ "party": 4 })));
    }

    #[test]
    fn message_that_names_no_field_is_no_answer() {
        assert_eq!(read("What for?", json!({})), None);
        assert_eq!(read("{\"guests\": 4}", json!({})), None);
        assert_eq!(read("guests: 4", json!({})), None);
        assert_eq!(read("party: 4\nparty: 5", json!({})), None, "which one is meant nobody knows");
        assert_eq!(read("anything", json!({ "party": 4, "name": "Ann" })), None, "nothing is awaited");
        assert_eq!(read_reply("4", &json!({}), &json!({})), None);
        assert_eq!(named_reply("4", &parameters()), None);
        assert_eq!(named_reply("party: 4", &parameters()), read_reply("party: 4", &parameters(), &json!({})));
    }

    #[test]
    fn text_that_is_none_of_its_type_stays_a_text_and_is_found_fault_with() {
        assert_eq!(read("many", json!({ "name": "Ann" })), Some(json!({ "party": "many" })));
        assert_eq!(typed_value("perhaps", &json!({ "type": "boolean" })), json!("perhaps"));
        let items = |schema: Value| typed_value(&"a,".repeat(5_000), &schema).as_array().unwrap().len();
        assert_eq!(items(json!({ "type": "array", "maxItems": 100 })), 101);
        assert_eq!(items(json!({ "type": "array" })), 1_001);
        assert_eq!(typed_value("cellar", &json!({ "enum": ["Hall"] })), json!("cellar"));
    }

    #[test]
    fn choice_with_a_title_is_named_by_its_value_or_its_title() {
        let choice = |value: &str, title: &str| json!({ "const": value, "title": title });
        let choices = json!([choice("r", "Red"), choice("b", "Blue"), choice("B", "Black"), choice("x", "red ")]);
        let one = json!({ "type": "string", "oneOf": choices });
        for (text, read) in [("r", "r"), ("R", "r"), ("blue", "b"), ("B", "B"), ("Black", "B"), ("green", "green")] {
            assert_eq!(typed_value(text, &one), json!(read), "{text}");
        }
        let several = json!({ "type": "array", "items": { "anyOf": choices } });
        assert_eq!(typed_value("Blue, r", &several), json!(["b", "r"]));
        let alike = json!({ "oneOf": [choice("1", "All"), choice("2", "all")] });
        assert_eq!(typed_value("ALL", &alike), json!("ALL"), "which one is meant nobody knows");
    }
}
