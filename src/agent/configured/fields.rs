//! The fields of a configured agent: what it needs to be told, by whom it calls or, where that does not know, by a person.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::base::expr::{Expression, Language, Variables};
use crate::base::invalid::ValidationErrors;
use crate::base::words::words;
use crate::domain::approval::arguments::misfits;
use crate::domain::approval::proposal::canonical_hash;
use crate::domain::approval::reply::typed_value;

/// Fields of an agent, at most.
const MOST_FIELDS: usize = 50;
/// Longest text of a field that says nothing else, in characters.
pub const LONGEST_TEXT: u64 = 10_000;
/// The argument that is not a field.
pub const TASK_INSTRUCTION: &str = "task_instruction";
/// The variable of validators.
const VALUE: &str = "value";

words! {
    /// Type of a field.
    pub enum FieldType {
        /// A text.
        String = "string",
        /// A whole number.
        Integer = "integer",
        /// A number.
        Number = "number",
        /// Yes or no.
        Boolean = "boolean",
        /// A list of texts.
        List = "list",
    }
}

/// One entry of `fields` in `[[agents]]`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct AgentField {
    /// Name of the field.
    pub name: String,
    /// Type of its value.
    #[serde(rename = "type")]
    pub kind: FieldType,
    /// Whether the agent can't do without it: a person is asked for one that is missing.
    #[serde(default)]
    pub required: bool,
    /// The value of one that is not given.
    #[serde(default)]
    pub default: Option<Value>,
    /// Its meaning, for the model and for people.
    #[serde(default)]
    pub description: String,
    /// Smallest number.
    #[serde(default)]
    pub min: Option<f64>,
    /// Largest number.
    #[serde(default)]
    pub max: Option<f64>,
    /// Longest text, in characters.
    #[serde(default)]
    pub max_length: Option<u64>,
    /// Regular expression that a text matches.
    #[serde(default)]
    pub pattern: Option<String>,
    /// The only texts that are taken.
    #[serde(default)]
    pub choices: Option<Vec<String>>,
    /// CEL over `value` that is true for values that will do.
    #[serde(default)]
    pub validator: Option<String>,
    /// The validator's demand, in words.
    #[serde(default)]
    pub validator_description: Option<String>,
}

/// The fields of one agent, compiled.
pub struct FieldRules {
    fields: Vec<AgentField>,
    validators: Vec<Option<Expression>>,
    /// JSON Schema of the arguments as they have to be.
    schema: Value,
}

/// The values of fields, as far as they will do.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectedFields {
    /// Values that will do, and defaults.
    pub values: Map<String, Value>,
    /// Fields that a person has to supply, each with what is wrong.
    pub missing: Vec<(String, String)>,
}

impl AgentField {
    /// JSON Schema of its value.
    fn schema(&self) -> Value {
        let number =
            |limit: f64| if limit.fract() == 0.0 && limit.abs() < 1e15 { json!(limit as i64) } else { json!(limit) };
        let mut schema = match self.kind {
            FieldType::List => {
                json!({ "type": "array", "maxItems": 100, "items": { "type": "string", "maxLength": LONGEST_TEXT } })
            }
            other => json!({ "type": other.as_str() }),
        };
        if self.kind == FieldType::String {
            schema["maxLength"] = json!(self.max_length.unwrap_or(LONGEST_TEXT));
            if self.required {
                schema["minLength"] = json!(1);
            }
        }
        let mut set = |name: &str, value: Option<Value>| value.into_iter().for_each(|value| schema[name] = value);
        set("minimum", self.min.map(number));
        set("maximum", self.max.map(number));
        set("pattern", self.pattern.as_ref().map(|pattern| json!(pattern)));
        set("enum", self.choices.as_ref().map(|choices| json!(choices)));
        set("default", self.default.clone());
        set("description", Some(self.description_with(&[])).filter(|text| !text.is_empty()).map(Value::String));
        schema
    }

    /// Its description, with what its validator and these notes ask for.
    fn description_with(&self, notes: &[&str]) -> String {
        let hints: Vec<&str> = self.validator_description.as_deref().into_iter().chain(notes.iter().copied()).collect();
        match (self.description.trim(), hints.join("; ")) {
            (text, hints) if hints.is_empty() => text.to_owned(),
            ("", hints) => hints,
            (text, hints) => format!("{text} ({hints})"),
        }
    }

    fn check(&self, place: &str, faults: &mut ValidationErrors) {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if self.name.is_empty() || self.name.len() > 64 || !self.name.chars().all(is_word) {
            faults.add(format!("{place}/name"), "must be 1 to 64 letters, digits or `_`");
        }
        if self.name == TASK_INSTRUCTION {
            faults.add(format!("{place}/name"), format!("`{TASK_INSTRUCTION}` is an argument of every agent"));
        }
        let is_number = matches!(self.kind, FieldType::Integer | FieldType::Number);
        for (key, limit) in [("min", self.min), ("max", self.max)] {
            if limit.is_some_and(|limit| !limit.is_finite() || !is_number) {
                faults.add(format!("{place}/{key}"), "goes with `integer` and `number`, and is a number");
            }
        }
        if self.min.zip(self.max).is_some_and(|(min, max)| min > max) {
            faults.add(format!("{place}/min"), "must not be above `max`");
        }
        let is_text = self.kind == FieldType::String;
        let texts = [
            ("max_length", self.max_length.is_some()),
            ("pattern", self.pattern.is_some()),
            ("choices", self.choices.is_some()),
        ];
        for (key, _) in texts.into_iter().filter(|(_, is_given)| *is_given && !is_text) {
            faults.add(format!("{place}/{key}"), "goes with `string`");
        }
        if self.max_length.is_some_and(|length| !(1..=1_000_000).contains(&length)) {
            faults.add(format!("{place}/max_length"), "must be from 1 to 1000000 characters");
        }
        if self.choices.as_ref().is_some_and(|choices| choices.is_empty() || choices.len() > 100) {
            faults.add(format!("{place}/choices"), "must have 1 to 100 texts");
        }
        if let Some(pattern) = &self.pattern
            && let Err(error) = regex::Regex::new(pattern)
        {
            let why = error.to_string();
            faults.add(format!("{place}/pattern"), why.lines().last().unwrap_or("is no pattern").trim().to_owned());
        }
        if let Some(Err(fault)) = self.validator.as_ref().map(|text| Language::default().read(text, &[VALUE])) {
            faults.add(format!("{place}/validator"), fault.to_string());
        }
    }
}

impl FieldRules {
    /// Adds what is wrong with the fields of an agent, below `place`.
    pub fn check(fields: &[AgentField], place: &str, faults: &mut ValidationErrors) {
        if fields.len() > MOST_FIELDS {
            faults.add(place, format!("must be at most {MOST_FIELDS}"));
        }
        let before = faults.0.len();
        for (index, field) in fields.iter().enumerate() {
            let place = format!("{place}/{index}");
            field.check(&place, faults);
            if fields[..index].iter().any(|other| other.name == field.name) {
                faults.add(format!("{place}/name"), format!("two fields are named `{}`", field.name));
            }
        }
        if faults.0.len() == before {
            FieldRules::new(fields).check_defaults(place, faults);
        }
    }

    /// The rules of fields that were checked.
    pub fn new(fields: &[AgentField]) -> FieldRules {
        let language = Language::default();
        let read = |field: &AgentField| field.validator.as_ref().and_then(|text| language.read(text, &[VALUE]).ok());
        FieldRules {
            validators: fields.iter().map(read).collect(),
            schema: schema_of(fields, |field| field.required),
            fields: fields.to_vec(),
        }
    }

    fn check_defaults(&self, place: &str, faults: &mut ValidationErrors) {
        for (index, field) in self.fields.iter().enumerate() {
            let Some(default) = &field.default else { continue };
            if let Err(why) = self.judge(index, default) {
                faults.add(format!("{place}/{index}/default"), why);
            }
        }
    }

    /// Hash of the fields: with others, what was collected is of another form.
    pub fn version(&self) -> String {
        canonical_hash(&json!(self.fields))[..16].to_owned()
    }

    /// JSON Schema of the arguments of a call, as a model is shown it. It may leave out what it does not know.
    pub fn offered_schema(&self) -> Value {
        let mut schema = schema_of(&self.fields, |_| false);
        for field in self.fields.iter().filter(|field| field.required) {
            let note = "required; leave it out if you do not know it, and the person is asked";
            schema["properties"][&field.name]["description"] = json!(field.description_with(&[note]));
        }
        schema["properties"][TASK_INSTRUCTION] = json!({
            "type": "string", "maxLength": LONGEST_TEXT,
            "description": "What else the agent has to know or to heed, in plain words, such as \"a quiet table, it is a birthday\"",
        });
        if let Some(schema) = schema.as_object_mut() {
            schema.remove("required");
        }
        schema
    }

    /// The values among these arguments that will do. Texts are taken for numbers and the like where they are such.
    pub fn collect(&self, arguments: &Value) -> CollectedFields {
        let mut collected = CollectedFields { values: Map::new(), missing: Vec::new() };
        for (index, field) in self.fields.iter().enumerate() {
            let given = arguments.get(&field.name).filter(|value| !is_blank(value));
            let given = given.map(|value| match value {
                Value::String(text) if field.kind != FieldType::String => typed_value(text.trim(), &field.schema()),
                other => other.clone(),
            });
            let value = match (given, &field.default) {
                (Some(value), _) => self.judge(index, &value).map(|()| Some(value)),
                (None, Some(default)) => Ok(Some(default.clone())),
                (None, None) if field.required => Err("is missing".to_owned()),
                (None, None) => Ok(None),
            };
            match value {
                Ok(value) => collected.values.extend(value.map(|value| (field.name.clone(), value))),
                Err(why) => collected.missing.push((field.name.clone(), why)),
            }
        }
        collected
    }

    /// JSON Schema of what a person has to supply: every field, and those that are missing are required.
    pub fn asked_schema(&self, missing: &[(String, String)]) -> Value {
        let is_missing = |field: &AgentField| missing.iter().any(|(name, _)| *name == field.name);
        schema_of(&self.fields, |field| field.required || is_missing(field))
    }

    /// The steps that [`FieldRules::collect`] takes at most.
    pub fn steps(&self, arguments: &Value) -> u64 {
        let cost = |(field, validator): (&AgentField, &Option<Expression>)| {
            let value = arguments.get(&field.name).unwrap_or(&Value::Null);
            validator.as_ref().map_or(0, |validator| validator.cost(&Variables::new().with(VALUE, value)))
        };
        self.fields.iter().zip(&self.validators).map(cost).sum()
    }

    /// Whether a value of a field will do; else what is wrong with it.
    fn judge(&self, index: usize, value: &Value) -> Result<(), String> {
        let field = &self.fields[index];
        let schema = json!({ "type": "object", "properties": { "value": self.schema["properties"][&field.name] } });
        if let Some(misfit) = misfits(&schema, &json!({ "value": value }), "").into_iter().next() {
            return Err(misfit.message);
        }
        let Some(validator) = &self.validators[index] else { return Ok(()) };
        match validator.is_true(&Variables::new().with(VALUE, value)) {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => {
                Err(field.validator_description.clone().unwrap_or_else(|| format!("must satisfy {}", validator.text())))
            }
        }
    }

    /// Names of the fields.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields.iter().map(|field| field.name.as_str())
    }
}

fn schema_of(fields: &[AgentField], is_required: impl Fn(&AgentField) -> bool) -> Value {
    let properties: Map<String, Value> = fields.iter().map(|field| (field.name.clone(), field.schema())).collect();
    let required: Vec<&str> =
        fields.iter().filter(|field| is_required(field)).map(|field| field.name.as_str()).collect();
    json!({ "type": "object", "properties": properties, "required": required, "additionalProperties": false })
}

/// Whether a value says nothing.
fn is_blank(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.trim().is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(written: Value) -> Vec<AgentField> {
        serde_json::from_value(written).unwrap()
    }

    fn table() -> Vec<AgentField> {
        fields(json!([
            { "name": "party", "type": "integer", "required": true, "min": 1, "max": 12, "description": "How many people" },
            { "name": "email", "type": "string", "required": true, "validator": "value.contains('@')",
              "validator_description": "must contain @" },
            { "name": "room", "type": "string", "choices": ["garden", "hall"], "default": "hall" },
            { "name": "outside", "type": "boolean" },
            { "name": "dates", "type": "list" },
        ]))
    }

    #[test]
    fn values_that_will_do_are_taken_and_the_others_asked_for_with_what_is_wrong() {
        let rules = FieldRules::new(&table());
        let collected =
            rules.collect(&json!({ "party": "4", "email": "ann", "outside": "yes", "dates": "Monday, Tuesday" }));
        assert_eq!(
            Value::Object(collected.values),
            json!({ "party": 4, "outside": true, "room": "hall", "dates": ["Monday", "Tuesday"] })
        );
        assert_eq!(collected.missing, [("email".to_owned(), "must contain @".to_owned())]);
        let collected = rules.collect(&json!({ "party": 13, "email": " ", "room": "attic", "outside": null }));
        let missing: Vec<&str> = collected.missing.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(missing, ["party", "email", "room"], "one that is optional and wrong is asked for, too");
        let schema = rules.asked_schema(&collected.missing);
        assert_eq!(schema["required"], json!(["party", "email", "room"]));
        let whole = rules.collect(&json!({ "party": 4, "email": "ann@example.org" }));
        assert_eq!(whole.missing, []);
    }

    #[test]
    fn model_is_shown_what_validators_ask_for_and_may_leave_out_what_it_does_not_know() {
        let schema = FieldRules::new(&table()).offered_schema();
        assert_eq!(schema.get("required"), None);
        let note = "required; leave it out if you do not know it, and the person is asked";
        assert_eq!(schema["properties"]["email"]["description"], format!("must contain @; {note}"));
        assert_eq!(schema["properties"]["party"]["description"], format!("How many people ({note})"));
        assert_eq!(schema["properties"]["party"]["maximum"], 12);
        assert!(schema["properties"][TASK_INSTRUCTION].is_object());
    }

    #[test]
    fn fields_that_make_no_sense_are_refused_with_their_places() {
        let odd = fields(json!([
            { "name": "a b", "type": "string", "min": 1 },
            { "name": "x", "type": "integer", "min": 2, "max": 1, "pattern": "a" },
            { "name": "x", "type": "string", "pattern": "(", "choices": [], "max_length": 0, "validator": "value +" },
            { "name": "task_instruction", "type": "string" },
        ]));
        let mut faults = ValidationErrors::new();
        FieldRules::check(&odd, "/agents/0/fields", &mut faults);
        let places: Vec<&str> = faults.0.iter().map(|fault| &fault.pointer["/agents/0/fields/".len()..]).collect();
        let expected = [
            "0/name",
            "0/min",
            "1/min",
            "1/pattern",
            "2/max_length",
            "2/choices",
            "2/pattern",
            "2/validator",
            "2/name",
            "3/name",
        ];
        assert_eq!(places, expected);
        let mut faults = ValidationErrors::new();
        let unfit = fields(json!([{ "name": "n", "type": "integer", "default": "many" }]));
        FieldRules::check(&unfit, "/f", &mut faults);
        assert_eq!(faults.0[0].pointer, "/f/0/default");
        let mut faults = ValidationErrors::new();
        FieldRules::check(&table(), "/f", &mut faults);
        assert_eq!(faults, ValidationErrors::new());
    }

    #[test]
    fn version_changes_with_the_fields() {
        let (one, mut other) = (table(), table());
        other[0].max = Some(13.0);
        assert_eq!(FieldRules::new(&one).version(), FieldRules::new(&table()).version());
        assert_ne!(FieldRules::new(&one).version(), FieldRules::new(&other).version());
    }
}
