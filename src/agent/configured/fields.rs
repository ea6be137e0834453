//! The fields of a configured agent: the arguments that a calling agent supplies. A person is asked for those that are
//! missing or invalid.

use serde_json::{Map, Value, json};

use crate::agent::configured::agent_field::{AgentField, FieldType, LONGEST_TEXT, TASK_INSTRUCTION, VALUE};
use crate::base::expr::{Expression, Language, Variables};
use crate::base::invalid::ValidationErrors;
use crate::base::json::schema::JsonSchema;
use crate::domain::approval::arguments::faults_of;
use crate::domain::approval::proposal::canonical_hash;
use crate::domain::approval::reply::typed_value;
use crate::domain::approval::{ArgumentFault, FieldFault};

/// Fields of an agent, at most.
const MOST_FIELDS: usize = 50;

/// The fields of one agent, compiled.
pub struct FieldRules {
    fields: Vec<AgentField>,
    validators: Vec<Option<Expression>>,
    schemas: Vec<Option<JsonSchema>>,
}

/// The valid values of fields, and what is wrong with the others.
#[derive(Debug, Clone, PartialEq)]
pub struct CollectedFields {
    /// Valid values, and defaults.
    pub values: Map<String, Value>,
    /// Fields that a person has to supply, each with what is wrong.
    pub missing: Vec<FieldFault>,
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
        if faults.0.len() > before {
            return;
        }
        if let Err(why) = JsonSchema::read(&FieldRules::offered_schema(fields)) {
            faults.add(place, format!("are too many together: {why}"));
            return;
        }
        FieldRules::new(fields).check_defaults(place, faults);
    }

    /// The rules of fields that were checked.
    pub fn new(fields: &[AgentField]) -> FieldRules {
        let language = Language::default();
        let read = |field: &AgentField| field.validator.as_ref().and_then(|text| language.read(text, &[VALUE]).ok());
        FieldRules {
            validators: fields.iter().map(read).collect(),
            schemas: fields.iter().map(|field| JsonSchema::read(&field.schema()).ok()).collect(),
            fields: fields.to_vec(),
        }
    }

    fn check_defaults(&self, place: &str, faults: &mut ValidationErrors) {
        for (index, field) in self.fields.iter().enumerate() {
            let Some(default) = &field.default else { continue };
            if let Err(fault) = self.judge(index, default) {
                faults.add(format!("{place}/{index}/default"), fault.message);
            }
        }
    }

    /// Hash of the fields: with others, what was collected is of another form.
    pub fn version(&self) -> String {
        canonical_hash(&json!(self.fields))[..16].to_owned()
    }

    /// JSON Schema of the arguments of a call, as a model is shown it. It may leave out what it does not know.
    pub fn offered_schema(fields: &[AgentField]) -> Value {
        let mut schema = schema_of(fields, |_| false);
        for field in fields.iter().filter(|field| field.required) {
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

    /// The values that these arguments give, and defaults. Text is converted to the type of its field where it is such
    /// a value; whether a value is valid is not judged.
    pub fn values(&self, arguments: &Value) -> Map<String, Value> {
        let value = |field: &AgentField| Some((field.name.clone(), given(field, arguments).or(field.default.clone())?));
        self.fields.iter().filter_map(value).collect()
    }

    /// The valid values among those that these arguments give, and defaults, and what is wrong with the others.
    pub fn collect(&self, arguments: &Value) -> CollectedFields {
        let mut collected = CollectedFields { values: Map::new(), missing: Vec::new() };
        for (index, field) in self.fields.iter().enumerate() {
            let value = match (given(field, arguments), &field.default) {
                (Some(value), _) => self.judge(index, &value).map(|()| Some(value)),
                (None, Some(default)) => Ok(Some(default.clone())),
                (None, None) if field.required => Err(ArgumentFault::with("", "is missing", "fault_required", &[])),
                (None, None) => Ok(None),
            };
            match value {
                Ok(value) => collected.values.extend(value.map(|value| (field.name.clone(), value))),
                Err(fault) => collected.missing.push(FieldFault::new(&field.name, fault)),
            }
        }
        collected
    }

    /// JSON Schema of the arguments as they have to be.
    pub fn schema(fields: &[AgentField]) -> Value {
        schema_of(fields, |field| field.required)
    }

    /// JSON Schema of what a person has to supply: every field, and those that are missing are required.
    pub fn asked_schema(&self, missing: &[FieldFault]) -> Value {
        let is_missing = |field: &AgentField| missing.iter().any(|one| one.name == field.name);
        schema_of(&self.fields, |field| field.required || is_missing(field))
    }

    /// The steps that [`FieldRules::collect`] takes at most.
    pub fn steps(&self, arguments: &Value) -> u64 {
        let of_field = |(index, field): (usize, &AgentField)| {
            let value = given(field, arguments).unwrap_or_default();
            let schema = self.schemas[index].as_ref().map_or(0, |schema| schema.steps(&value));
            let cost = |validator: &Expression| validator.cost(&Variables::new().with(VALUE, &value));
            schema.saturating_add(self.validators[index].as_ref().map_or(0, cost))
        };
        self.fields.iter().enumerate().map(of_field).fold(0, u64::saturating_add)
    }

    /// Whether a value of a field is valid; else what is wrong with it.
    fn judge(&self, index: usize, value: &Value) -> Result<(), ArgumentFault> {
        if let Some(schema) = &self.schemas[index]
            && let Some(error) = schema.faults(value).map_err(|why| ArgumentFault::untranslated("", why))?.next()
        {
            let found = faults_of(&error, "").into_iter().next();
            return Err(
                found.unwrap_or_else(|| ArgumentFault::untranslated("", error.masked_with("the value").to_string()))
            );
        }
        let Some(validator) = &self.validators[index] else { return Ok(()) };
        match (validator.is_true(&Variables::new().with(VALUE, value)), &self.fields[index].validator_description) {
            (Ok(true), _) => Ok(()),
            (Ok(false) | Err(_), Some(description)) => Err(ArgumentFault::untranslated("", description)),
            (Ok(false) | Err(_), None) => {
                let rule = validator.text().to_owned();
                Err(ArgumentFault::with("", format!("must satisfy {rule}"), "fault_rule", &[("rule", rule)]))
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

/// The value that arguments give for a field, converted to its type where it is written as text.
fn given(field: &AgentField, arguments: &Value) -> Option<Value> {
    match arguments.get(&field.name).filter(|value| !is_blank(value))? {
        Value::String(text) if field.kind != FieldType::String => Some(typed_value(text.trim(), &field.schema())),
        other => Some(other.clone()),
    }
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
    fn valid_values_are_taken_and_the_others_asked_for_with_what_is_wrong() {
        let rules = FieldRules::new(&table());
        let collected =
            rules.collect(&json!({ "party": "4", "email": "ann", "outside": "yes", "dates": "Monday, Tuesday" }));
        assert_eq!(
            Value::Object(collected.values),
            json!({ "party": 4, "outside": true, "room": "hall", "dates": ["Monday", "Tuesday"] })
        );
        assert_eq!(collected.missing, [FieldFault::new("email", ArgumentFault::untranslated("", "must contain @"))]);
        let collected = rules.collect(&json!({ "party": 13, "email": " ", "room": "attic", "outside": null }));
        let missing: Vec<&str> = collected.missing.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(missing, ["party", "email", "room"], "one that is optional and wrong is asked for, too");
        let phrases: Vec<&str> = collected.missing.iter().map(|one| &*one.fault.phrase).collect();
        assert_eq!(phrases, ["fault_maximum", "fault_required", "fault_one_of"], "each has its phrase");
        let schema = rules.asked_schema(&collected.missing);
        assert_eq!(schema["required"], json!(["party", "email", "room"]));
        let whole = rules.collect(&json!({ "party": 4, "email": "ann@example.org" }));
        assert_eq!(whole.missing, []);
    }

    #[test]
    fn model_is_shown_what_validators_ask_for_and_may_leave_out_what_it_does_not_know() {
        let schema = FieldRules::offered_schema(&table());
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
    fn fields_and_their_texts_are_taken_at_their_most_and_refused_one_beyond_it() {
        let many = |count: usize| {
            let one = |number: usize| json!({ "name": format!("f{number}"), "type": "string" });
            fields((0..count).map(one).collect())
        };
        let described = |length: usize| {
            fields(
                json!([{ "name": "n", "type": "string", "description": "x".repeat(length), "choices": ["x".repeat(length)] }]),
            )
        };
        for (most, beyond, count) in
            [(many(MOST_FIELDS), many(MOST_FIELDS + 1), 1), (described(1_000), described(1_001), 2)]
        {
            let mut faults = ValidationErrors::new();
            FieldRules::check(&most, "/f", &mut faults);
            assert_eq!(faults, ValidationErrors::new());
            FieldRules::check(&beyond, "/f", &mut faults);
            assert_eq!(faults.0.len(), count, "{faults}");
        }
    }

    #[test]
    fn steps_are_those_of_the_value_that_a_text_becomes() {
        let rules = FieldRules::new(&fields(json!([
            { "name": "dates", "type": "list", "validator": "value.all(x, x.matches('[a-z]+'))" },
        ])));
        let (list, text) = (json!({ "dates": vec!["a"; 50] }), json!({ "dates": vec!["a"; 50].join(",") }));
        assert_eq!(rules.steps(&list), rules.steps(&text));
        assert!(rules.steps(&text) > 10 * rules.steps(&json!({ "dates": "a" })));
    }

    #[test]
    fn version_changes_with_the_fields() {
        let (one, mut other) = (table(), table());
        other[0].max = Some(13.0);
        assert_eq!(FieldRules::new(&one).version(), FieldRules::new(&table()).version());
        assert_ne!(FieldRules::new(&one).version(), FieldRules::new(&other).version());
    }
}
