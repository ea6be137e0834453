//! One field of a configured agent, as it is written, and as a JSON Schema.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::base::expr::Language;
use crate::base::invalid::ValidationErrors;
use crate::base::json::schema::JsonSchema;
use crate::base::words::words;

/// Longest text of a field that says nothing else, in characters.
pub const LONGEST_TEXT: u64 = 10_000;
/// Longest description of a field, and longest text among its choices, in characters.
const EXPLANATION: usize = 1_000;
/// The argument that is not a field.
pub const TASK_INSTRUCTION: &str = "task_instruction";
/// The variable of validators.
pub const VALUE: &str = "value";

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
    /// CEL over `value` that is true for valid values.
    #[serde(default)]
    pub validator: Option<String>,
    /// The validator's demand, in words.
    #[serde(default)]
    pub validator_description: Option<String>,
}

impl AgentField {
    /// JSON Schema of its value.
    pub fn schema(&self) -> Value {
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
    pub fn description_with(&self, notes: &[&str]) -> String {
        let hints: Vec<&str> = self.validator_description.as_deref().into_iter().chain(notes.iter().copied()).collect();
        match (self.description.trim(), hints.join("; ")) {
            (text, hints) if hints.is_empty() => text.to_owned(),
            ("", hints) => hints,
            (text, hints) => format!("{text} ({hints})"),
        }
    }

    /// Adds what is wrong with the field; pointers begin with `place`.
    pub fn check(&self, place: &str, faults: &mut ValidationErrors) {
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
            && let Err(why) = JsonSchema::read(&json!({ "type": "string", "pattern": pattern }))
        {
            faults.add(format!("{place}/pattern"), why);
        }
        let choices = self.choices.iter().flatten().map(|choice| ("choices", choice));
        let texts =
            [("description", Some(&self.description)), ("validator_description", self.validator_description.as_ref())];
        let texts = texts.into_iter().filter_map(|(key, text)| Some((key, text?))).chain(choices);
        for (key, _) in texts.filter(|(_, text)| text.chars().count() > EXPLANATION) {
            faults.add(format!("{place}/{key}"), format!("must have at most {EXPLANATION} characters"));
        }
        if let Some(Err(fault)) = self.validator.as_ref().map(|text| Language::default().read(text, &[VALUE])) {
            faults.add(format!("{place}/validator"), fault.to_string());
        }
    }
}
