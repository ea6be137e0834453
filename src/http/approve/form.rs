//! Arguments as fields of a form, and back: from the tool's JSON Schema to fields, from what was sent to arguments.
//!
//! A field that comes back as it was shown leaves the proposed value as it is, to the byte: approving without a change
//! is never an edit, whatever browsers do to line ends.

use std::collections::HashMap;

use serde_json::{Map, Value};

use crate::approval::{Choice, Proposal};
use crate::visible::is_hidden;

/// Texts longer than this get more than one line.
const LINE: usize = 60;

/// How a field is shown and read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    Line,
    Lines,
    Number,
    YesNo,
    OneOf(Vec<String>),
    /// Whatever has no form of its own, as JSON.
    Json,
}

/// One argument as a field.
#[derive(Debug, Clone, PartialEq)]
pub struct Field {
    /// The argument's name.
    pub name: String,
    pub description: Option<String>,
    pub kind: Kind,
    pub required: bool,
    pub proposed: Option<Value>,
    /// The proposed value as the field holds it.
    pub shown: String,
}

/// What was sent: the first value of each name.
#[derive(Debug, Default)]
pub struct Sent(HashMap<String, String>);

impl Sent {
    /// Reads `application/x-www-form-urlencoded`.
    pub fn parse(body: &[u8]) -> Sent {
        let mut sent = HashMap::new();
        for (name, value) in url::form_urlencoded::parse(body) {
            sent.entry(name.into_owned()).or_insert_with(|| lines(&value));
        }
        Sent(sent)
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// The arguments that may be changed, as fields: the proposed ones first, then what else the schema knows.
pub fn fields(proposal: &Proposal) -> Vec<Field> {
    let may = proposal.allow_modification && proposal.options.contains(&Choice::Edit);
    let Some(arguments) = proposal.arguments.as_object().filter(|_| may) else { return Vec::new() };
    let properties = proposal.parameters.get("properties").and_then(Value::as_object);
    let required: Vec<&str> = match proposal.parameters.get("required").and_then(Value::as_array) {
        Some(names) => names.iter().filter_map(Value::as_str).collect(),
        None => Vec::new(),
    };
    let known = properties.map(Map::keys).into_iter().flatten();
    let names = arguments.keys().chain(known.filter(|name| !arguments.contains_key(*name)));
    let field = |name: &String| {
        let schema = properties.and_then(|properties| properties.get(name)).unwrap_or(&Value::Null);
        Field::of(name, schema, arguments.get(name), required.contains(&name.as_str()))
    };
    names.map(field).collect()
}

/// The arguments that were sent for these fields; `texts` has one for each. The faults carry the field's number.
pub fn arguments(fields: &[Field], texts: &[String]) -> Result<Value, Vec<(usize, String)>> {
    let (mut arguments, mut faults) = (Map::new(), Vec::new());
    for (number, (field, text)) in fields.iter().zip(texts).enumerate() {
        match field.read(text) {
            Ok(Some(value)) => drop(arguments.insert(field.name.clone(), value)),
            Ok(None) => {}
            Err(fault) => faults.push((number, fault)),
        }
    }
    if faults.is_empty() { Ok(Value::Object(arguments)) } else { Err(faults) }
}

impl Field {
    fn of(name: &str, schema: &Value, proposed: Option<&Value>, required: bool) -> Field {
        let kind = kind(schema, proposed);
        Field {
            name: name.to_owned(),
            description: schema.get("description").and_then(Value::as_str).map(str::to_owned),
            shown: proposed.map_or(String::new(), |value| as_text(&kind, value)),
            kind,
            required,
            proposed: proposed.cloned(),
        }
    }

    /// The value of what was sent; `None`: the argument is left out.
    fn read(&self, text: &str) -> Result<Option<Value>, String> {
        if text == self.shown {
            return Ok(self.proposed.clone());
        }
        let empty = text.trim().is_empty();
        match &self.kind {
            Kind::Line | Kind::Lines if text.is_empty() && !self.required => Ok(None),
            Kind::Line | Kind::Lines => Ok(Some(Value::String(text.to_owned()))),
            _ if empty && self.required => Err("is required".into()),
            _ if empty => Ok(None),
            Kind::Number => match serde_json::from_str::<serde_json::Number>(text.trim()) {
                Ok(number) => Ok(Some(Value::Number(number))),
                Err(_) => Err("must be a number such as 12 or 12.5".into()),
            },
            Kind::YesNo => match text {
                "true" => Ok(Some(Value::Bool(true))),
                "false" => Ok(Some(Value::Bool(false))),
                _ => Err("must be yes or no".into()),
            },
            Kind::OneOf(words) => match words.iter().any(|word| word == text) {
                true => Ok(Some(Value::String(text.to_owned()))),
                false => Err(format!("must be one of {}", words.join(", "))),
            },
            Kind::Json => match serde_json::from_str(text) {
                Ok(value) => Ok(Some(value)),
                Err(error) => Err(format!("must be JSON: {error}")),
            },
        }
    }
}

fn kind(schema: &Value, proposed: Option<&Value>) -> Kind {
    let text = proposed.and_then(Value::as_str);
    let fits = match schema.get("type").and_then(Value::as_str) {
        Some("string") => proposed.is_none() || text.is_some_and(|text| !text.chars().any(is_hidden)),
        Some("integer" | "number") => proposed.is_none_or(Value::is_number),
        Some("boolean") => proposed.is_none_or(Value::is_boolean),
        _ => false,
    };
    if !fits {
        return Kind::Json;
    }
    let words = schema.get("enum").and_then(Value::as_array).map(|words| words.iter().map(Value::as_str).collect());
    match (schema["type"].as_str(), words) {
        (Some("string"), Some(words)) => one_of(words, text),
        (_, Some(_)) => Kind::Json,
        (Some("boolean"), None) => Kind::YesNo,
        (Some("integer" | "number"), None) => Kind::Number,
        _ => {
            let most = schema.get("maxLength").and_then(Value::as_u64);
            let long = text.is_some_and(|text| text.contains('\n') || text.chars().count() > LINE);
            if long || most.is_some_and(|most| most > 2 * LINE as u64) { Kind::Lines } else { Kind::Line }
        }
    }
}

/// A list to choose from; an odd one is JSON.
fn one_of(words: Option<Vec<&str>>, proposed: Option<&str>) -> Kind {
    match words {
        Some(words)
            if words.iter().all(|word| !word.is_empty() && !word.chars().any(is_hidden))
                && proposed.is_none_or(|proposed| words.contains(&proposed)) =>
        {
            Kind::OneOf(words.into_iter().map(str::to_owned).collect())
        }
        _ => Kind::Json,
    }
}

fn as_text(kind: &Kind, value: &Value) -> String {
    match (kind, value) {
        (Kind::Json, value) => json(value),
        (_, Value::String(text)) => text.clone(),
        (_, value) => value.to_string(),
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

/// Line ends as forms have them become those of texts.
fn lines(text: &str) -> String {
    text.replace("\r\n", "\n").replace('\r', "\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::approval::OnExpiry;
    use crate::approval::matrix::{Category, Consequence};

    fn proposal(parameters: Value, arguments: Value) -> Proposal {
        Proposal {
            tool: "send".into(),
            version: "1".into(),
            definition: "d".into(),
            summary: String::new(),
            description: String::new(),
            arguments,
            parameters,
            category: Category::SideEffect,
            consequence: Consequence::Low,
            reasons: vec![],
            options: vec![Choice::Approve, Choice::Edit, Choice::Cancel],
            allow_modification: true,
            source: "trigger".into(),
            delegation_chain: vec![],
            on_expiry: OnExpiry::Expire,
            approvers: 1,
            barred: None,
            confirmation: None,
            undo_seconds: None,
            precheck: None,
            timeout_seconds: 1800,
        }
    }

    fn odd() -> Proposal {
        let schema = json!({
            "type": "object", "required": ["to", "count"],
            "properties": {
                "to": { "type": "string" }, "text": { "type": "string" }, "count": { "type": "integer" },
                "loud": { "type": "boolean" }, "how": { "type": "string", "enum": ["mail", "fax"] },
                "tags": { "type": "array" }, "cc": { "type": "string" }, "odd": { "type": "string" },
            },
        });
        let text = "first\nsecond";
        proposal(
            schema,
            json!({
                "to": "ann", "text": text, "count": 18446744073709551615_u64, "loud": true, "how": "fax", "tags": ["a\u{202e}"],
                "odd": "a\r\nb\u{0}", "more": 1.10,
            }),
        )
    }

    fn texts(fields: &[Field]) -> Vec<String> {
        fields.iter().map(|field| field.shown.clone()).collect()
    }

    #[test]
    fn each_argument_has_the_field_of_its_type() {
        let kinds: Vec<String> = fields(&odd()).iter().map(|f| format!("{} {:?}", f.name, f.kind)).collect();
        let mut kinds = kinds;
        kinds.sort();
        assert_eq!(
            kinds,
            [
                "cc Line",
                "count Number",
                "how OneOf([\"mail\", \"fax\"])",
                "loud YesNo",
                "more Json",
                "odd Json",
                "tags Json",
                "text Lines",
                "to Line",
            ]
        );
    }

    #[test]
    fn a_form_that_comes_back_as_it_was_is_what_was_proposed_to_the_byte() {
        let proposal = odd();
        let fields = fields(&proposal);
        let mut form = url::form_urlencoded::Serializer::new(String::new());
        for (number, text) in texts(&fields).iter().enumerate() {
            form.append_pair(&number.to_string(), &text.replace('\n', "\r\n"));
        }
        let sent = Sent::parse(form.finish().as_bytes());
        let sent: Vec<String> = (0..fields.len()).map(|n| sent.get(&n.to_string()).unwrap().to_owned()).collect();
        assert_eq!(arguments(&fields, &sent).unwrap(), proposal.arguments);
    }

    #[test]
    fn what_is_changed_is_read_by_its_type_and_what_is_emptied_is_left_out() {
        let fields = fields(&odd());
        let mut sent = texts(&fields);
        let at = |name: &str| fields.iter().position(|field| field.name == name).unwrap();
        for (name, text) in
            [("count", " 7 "), ("loud", "false"), ("tags", "[1]"), ("cc", "bob"), ("more", ""), ("text", "")]
        {
            sent[at(name)] = text.into();
        }
        assert_eq!(
            arguments(&fields, &sent).unwrap(),
            json!({ "to": "ann", "count": 7, "loud": false, "how": "fax", "tags": [1], "cc": "bob", "odd": "a\r\nb\u{0}" })
        );
        sent[at("count")] = "many".into();
        sent[at("tags")] = "[1".into();
        sent[at("how")] = "pigeon".into();
        let faults = arguments(&fields, &sent).unwrap_err();
        let mut numbers: Vec<usize> = faults.iter().map(|(number, _)| *number).collect();
        numbers.sort();
        let mut expected = vec![at("count"), at("tags"), at("how")];
        expected.sort();
        assert_eq!(numbers, expected);
    }

    #[test]
    fn where_nothing_may_be_changed_there_are_no_fields() {
        let fixed = Proposal { allow_modification: false, ..odd() };
        assert_eq!(fields(&fixed), []);
        let unoffered = Proposal { options: vec![Choice::Approve, Choice::Cancel], ..odd() };
        assert_eq!(fields(&unoffered), []);
    }
}
