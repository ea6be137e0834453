//! Arguments as fields of a form, and back: from the tool's JSON Schema to fields, from what was sent to arguments.
//!
//! A field that comes back as it was shown leaves the proposed value as it is, to the byte: approving without a change
//! is never an edit, whatever browsers do to line ends.

use serde_json::{Map, Value};

use crate::domain::approval::{ApprovalChoice, Proposal, ServerQuestion};
use crate::http::pages::approve::kind::{CallKind, as_text, kind, kind_of_server};

/// Between the name of an argument and that of a part of it.
const INSIDE: &str = " › ";
/// Objects inside each other whose fields are fields of the form; deeper ones are JSON.
const DEPTH: usize = 4;
/// Fields of a form. Where an object would make more, it is JSON.
const MOST: usize = 100;

/// One argument as a field, or a part of one.
#[derive(Debug, Clone, PartialEq)]
pub struct FormField {
    /// The argument's name, and those of the parts that lead to this one.
    pub path: Vec<String>,
    /// The words of a server for it.
    pub title: Option<String>,
    pub description: Option<String>,
    pub kind: CallKind,
    pub required: bool,
    pub proposed: Option<Value>,
    /// The proposed value as the field holds it.
    pub shown: String,
    /// The text of the field at first: what is proposed, else what a server suggests. It is no answer until it is sent.
    pub initial: String,
}

/// A fault of a field: a phrase and the values for its placeholders.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FormFault {
    pub phrase: &'static str,
    pub part: Option<(&'static str, String)>,
}

/// The arguments that may be changed, as fields: the proposed ones first, then what else the schema knows.
pub fn fields(proposal: &Proposal) -> Vec<FormField> {
    let may = proposal.allow_modification && proposal.options.contains(&ApprovalChoice::Edit);
    let Some(arguments) = proposal.arguments.as_object().filter(|_| may) else { return Vec::new() };
    if let Some(server) = &proposal.server {
        return fields_of_server(server, &proposal.parameters);
    }
    let mut fields = Vec::new();
    add(&mut fields, &[], &proposal.parameters, arguments);
    fields
}

/// The fields that a server asks for, in its order.
fn fields_of_server(server: &ServerQuestion, parameters: &Value) -> Vec<FormField> {
    let required = parameters["required"].as_array();
    let field = |name: &str| {
        let is_required = required.is_some_and(|names| names.iter().any(|required| required == name));
        Some(FormField::of_server(name, parameters["properties"].get(name)?, is_required))
    };
    server.field_names().filter_map(field).collect()
}

/// Adds the fields of an object, those of the objects in it among them.
fn add(fields: &mut Vec<FormField>, path: &[String], schema: &Value, object: &Map<String, Value>) {
    let properties = schema.get("properties").and_then(Value::as_object);
    let required = schema.get("required").and_then(Value::as_array);
    let known = properties.map(Map::keys).into_iter().flatten();
    let names = object.keys().chain(known.filter(|name| !object.contains_key(*name)));
    for name in names {
        let part = properties.and_then(|properties| properties.get(name)).unwrap_or(&Value::Null);
        let path: Vec<String> = path.iter().chain([name]).cloned().collect();
        let inner = object.get(name).and_then(Value::as_object).filter(|inner| !inner.is_empty());
        match inner.filter(|inner| path.len() < DEPTH && fields.len() + inner.len() <= MOST) {
            Some(inner) => add(fields, &path, part, inner),
            None => {
                // what no schema speaks of is not taken for optional, or a text that is emptied would be left out
                let is_required = match required {
                    Some(names) => names.iter().any(|required| required == name),
                    None => path.len() > 1 && properties.is_none(),
                };
                fields.push(FormField::of(path, part, object.get(name), is_required));
            }
        }
    }
}

/// The arguments that were sent for these fields; `texts` has one for each. The faults carry the field's number.
pub fn arguments(fields: &[FormField], texts: &[String]) -> Result<Value, Vec<(usize, FormFault)>> {
    let (mut arguments, mut faults) = (Map::new(), Vec::new());
    for (number, (field, text)) in fields.iter().zip(texts).enumerate() {
        match field.read(text) {
            Ok(value) => put(&mut arguments, &field.path, value),
            Err(fault) => faults.push((number, fault)),
        }
    }
    if faults.is_empty() { Ok(Value::Object(arguments)) } else { Err(faults) }
}

/// Puts a value at its place. The objects on the way to it are there even where it is left out.
fn put(object: &mut Map<String, Value>, path: &[String], value: Option<Value>) {
    match (path, value) {
        ([name], Some(value)) => drop(object.insert(name.clone(), value)),
        ([_], None) | ([], _) => {}
        ([name, rest @ ..], value) => {
            let inner = object.entry(name.clone()).or_insert_with(|| Value::Object(Map::new()));
            if let Value::Object(inner) = inner {
                put(inner, rest, value);
            }
        }
    }
}

impl FormFault {
    fn of(phrase: &'static str) -> FormFault {
        FormFault { phrase, part: None }
    }
}

impl FormField {
    fn of(path: Vec<String>, schema: &Value, proposed: Option<&Value>, required: bool) -> FormField {
        let kind = kind(schema, proposed);
        let shown = proposed.map_or(String::new(), |value| as_text(&kind, value));
        FormField {
            path,
            title: None,
            description: text_of(schema, "description"),
            initial: shown.clone(),
            shown,
            kind,
            required,
            proposed: proposed.cloned(),
        }
    }

    fn of_server(name: &str, schema: &Value, required: bool) -> FormField {
        let kind = kind_of_server(schema);
        FormField {
            path: vec![name.to_owned()],
            title: text_of(schema, "title"),
            description: text_of(schema, "description"),
            initial: schema.get("default").map_or(String::new(), |value| as_text(&kind, value)),
            shown: String::new(),
            kind,
            required,
            proposed: None,
        }
    }

    /// How it is called: `body › text`, or in the words of the server that asks for it.
    pub fn label(&self) -> String {
        self.title.clone().unwrap_or_else(|| self.path.join(INSIDE))
    }

    /// The text of the field as it was sent; one that was not is as it was proposed.
    pub fn sent<'a>(&self, name: &str, get: impl Fn(&str) -> Option<&'a str>) -> String {
        match &self.kind {
            CallKind::Several(choices) => {
                let is_ticked = |(index, _): &(usize, _)| get(&format!("{name}.{index}")).is_some();
                let ticked = choices.iter().enumerate().filter(is_ticked).map(|(_, (value, _))| value.as_str());
                ticked.collect::<Vec<_>>().join("\n")
            }
            _ => get(name).unwrap_or(&self.shown).to_owned(),
        }
    }

    /// The value of what was sent; `None`: the argument is left out.
    fn read(&self, text: &str) -> Result<Option<Value>, FormFault> {
        if let CallKind::Several(choices) = &self.kind {
            return self.read_several(choices, text);
        }
        if text == self.shown {
            return Ok(self.proposed.clone());
        }
        let empty = text.trim().is_empty();
        match &self.kind {
            CallKind::Line | CallKind::Lines if text.is_empty() && !self.required => Ok(None),
            CallKind::Line | CallKind::Lines => Ok(Some(Value::String(text.to_owned()))),
            _ if empty && self.required => Err(FormFault::of("fault_required")),
            _ if empty => Ok(None),
            CallKind::Number => match serde_json::from_str::<serde_json::Number>(text.trim()) {
                Ok(number) => Ok(Some(Value::Number(number))),
                Err(_) => Err(FormFault::of("fault_number")),
            },
            CallKind::YesNo => match text {
                "true" => Ok(Some(Value::Bool(true))),
                "false" => Ok(Some(Value::Bool(false))),
                _ => Err(FormFault::of("fault_yes_no")),
            },
            CallKind::OneOf(words) => match words.iter().any(|word| word == text) {
                true => Ok(Some(Value::String(text.to_owned()))),
                false => Err(FormFault { phrase: "fault_one_of", part: Some(("words", words.join(", "))) }),
            },
            CallKind::Choice(choices) => match is_choice(choices, text) {
                true => Ok(Some(Value::String(text.to_owned()))),
                false => Err(fault_of_choices(choices)),
            },
            CallKind::List | CallKind::Several(_) => Ok(Some(text.lines().filter(|line| !line.is_empty()).collect())),
            CallKind::Json => match serde_json::from_str(text) {
                Ok(value) => Ok(Some(value)),
                Err(error) => Err(FormFault { phrase: "fault_json", part: Some(("why", error.to_string())) }),
            },
        }
    }

    /// The choices of several that are in the text. None of them is an answer only where one has to be given.
    fn read_several(&self, choices: &[(String, String)], text: &str) -> Result<Option<Value>, FormFault> {
        let chosen: Vec<&str> = text.lines().collect();
        if chosen.iter().any(|value| !is_choice(choices, value)) {
            return Err(fault_of_choices(choices));
        }
        Ok((self.required || !chosen.is_empty()).then(|| chosen.into_iter().collect()))
    }
}

fn is_choice(choices: &[(String, String)], text: &str) -> bool {
    choices.iter().any(|(value, _)| value == text)
}

fn fault_of_choices(choices: &[(String, String)]) -> FormFault {
    let titles: Vec<&str> = choices.iter().map(|(_, title)| title.as_str()).collect();
    FormFault { phrase: "fault_one_of", part: Some(("words", titles.join(", "))) }
}

/// A text of a schema about its field.
fn text_of(schema: &Value, name: &str) -> Option<String> {
    schema.get(name).and_then(Value::as_str).map(str::to_owned)
}

/// The arguments for people, each with the names that lead to it, those of objects in objects among them.
pub fn flatten_arguments(arguments: &Map<String, Value>) -> Vec<(String, &Value)> {
    let mut leaves = Vec::new();
    gather(&mut leaves, &[], arguments);
    leaves
}

fn gather<'a>(leaves: &mut Vec<(String, &'a Value)>, path: &[&str], object: &'a Map<String, Value>) {
    for (name, value) in object {
        let path: Vec<&str> = path.iter().copied().chain([name.as_str()]).collect();
        let inner = value.as_object().filter(|inner| !inner.is_empty() && path.len() < DEPTH);
        match inner.filter(|inner| leaves.len() + inner.len() <= MOST) {
            Some(inner) => gather(leaves, &path, inner),
            None => leaves.push((path.join(INSIDE), value)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::http::pages::approve::fixture::proposal;
    use crate::http::pages::approve::submitted_fields::SubmittedFields;

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

    fn texts(fields: &[FormField]) -> Vec<String> {
        fields.iter().map(|field| field.shown.clone()).collect()
    }

    #[test]
    fn each_argument_has_the_field_of_its_type() {
        let kinds: Vec<String> = fields(&odd()).iter().map(|f| format!("{} {:?}", f.label(), f.kind)).collect();
        let mut kinds = kinds;
        kinds.sort();
        assert_eq!(
            kinds,
            [
                "cc Line",
                "count Number",
                "how OneOf([\"mail\", \"fax\"])",
                "loud YesNo",
                "more Number",
                "odd Json",
                "tags Json",
                "text Lines",
                "to Line",
            ]
        );
    }

    #[test]
    fn form_that_comes_back_as_it_was_is_what_was_proposed_to_the_byte() {
        let proposal = odd();
        let fields = fields(&proposal);
        let mut form = url::form_urlencoded::Serializer::new(String::new());
        for (number, text) in texts(&fields).iter().enumerate() {
            form.append_pair(&number.to_string(), &text.replace('\n', "\r\n"));
        }
        let sent = SubmittedFields::parse(form.finish().as_bytes());
        let sent: Vec<String> = (0..fields.len()).map(|n| sent.get(&n.to_string()).unwrap().to_owned()).collect();
        assert_eq!(arguments(&fields, &sent).unwrap(), proposal.arguments);
    }

    #[test]
    fn changed_field_is_read_by_its_type_and_an_emptied_one_is_left_out() {
        let fields = fields(&odd());
        let mut sent = texts(&fields);
        let at = |name: &str| fields.iter().position(|field| field.label() == name).unwrap();
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
    fn texts_are_edited_as_texts_wherever_they_stand() {
        let schema = json!({
            "type": "object", "required": ["url", "body"],
            "properties": {
                "url": { "type": ["string", "null"] }, "body": {}, "to": { "type": "array", "items": { "type": "string" } },
                "how": { "type": "object", "required": ["loud"], "properties": {
                    "loud": { "type": "boolean" }, "note": { "type": "string" } } },
            },
        });
        let proposed = json!({
            "url": "https://example.org", "to": ["ann", "bob"], "how": { "loud": true },
            "body": { "text": "The \"build\" is red", "who": { "name": "ann" }, "n": 1, "empty": {}, "mixed": [1, "x"] },
        });
        let fields = fields(&proposal(schema, proposed.clone()));
        let kinds: Vec<String> = fields.iter().map(|f| format!("{} {:?} {}", f.label(), f.kind, f.shown)).collect();
        let expected = [
            "body › empty Json {}",
            "body › mixed Json [\n  1,\n  \"x\"\n]",
            "body › n Number 1",
            "body › text Line The \"build\" is red",
            "body › who › name Line ann",
            "how › loud YesNo true",
            "how › note Line ",
            "to List ann\nbob",
            "url Line https://example.org",
        ];
        assert_eq!(kinds, expected);
        let mut sent = texts(&fields);
        assert_eq!(arguments(&fields, &sent), Ok(proposed.clone()), "what comes back as it was is what was proposed");
        let at = |name: &str| fields.iter().position(|field| field.label() == name).unwrap();
        sent[at("body › text")] = "It is \"green\"".into();
        sent[at("body › who › name")] = String::new();
        sent[at("to")] = "carl\n\n".into();
        let mut expected = proposed;
        expected["body"]["text"] = json!("It is \"green\"");
        expected["body"]["who"]["name"] = json!("");
        expected["to"] = json!(["carl"]);
        assert_eq!(arguments(&fields, &sent), Ok(expected));
    }

    #[test]
    fn read_only_arguments_have_no_fields() {
        let fixed = Proposal { allow_modification: false, ..odd() };
        assert_eq!(fields(&fixed), []);
        let unoffered = Proposal { options: vec![ApprovalChoice::Approve, ApprovalChoice::Cancel], ..odd() };
        assert_eq!(fields(&unoffered), []);
    }

    #[test]
    fn form_has_as_many_fields_and_levels_as_it_may_and_the_rest_is_json() {
        let fields_of = |arguments: Value| fields(&proposal(json!({ "type": "object" }), arguments));
        let wide = |count: usize| {
            let inner: Map<String, Value> = (0..count).map(|n| (format!("f{n}"), json!(n))).collect();
            fields_of(json!({ "inner": inner })).len()
        };
        assert_eq!((wide(MOST), wide(MOST + 1)), (MOST, 1));
        let deep = |levels: usize| fields_of((0..levels).fold(json!(7), |inside, _| json!({ "a": inside }))).remove(0);
        let (deepest, beyond) = (deep(DEPTH), deep(DEPTH + 1));
        assert_eq!((deepest.path.len(), deepest.shown.as_str()), (DEPTH, "7"));
        assert_eq!(beyond.path.len(), DEPTH);
        assert_eq!(serde_json::from_str::<Value>(&beyond.shown).unwrap(), json!({ "a": 7 }));
    }
}
