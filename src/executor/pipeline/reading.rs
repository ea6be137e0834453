//! Reading the fields of a step: each value is checked at its place, and all faults are told at once.

use std::cell::Cell;
use std::time::Duration;

use serde_json::{Map, Value};
use utoipa::PartialSchema;

use crate::base::expr::{Expression, NamedMember};
use crate::base::invalid::{ValidationErrors, did_you_mean, escape, unknown_fields};
use crate::base::json::typed::field_names;
use crate::base::template::{Template, TemplateNames, Tree};
use crate::domain::event::impossible_member;
use crate::executor::pipeline::parts::StepParts;
use crate::executor::pipeline::scope::{NAMES, NAMES_OF_EACH, RUN_MEMBERS, TASK_MEMBERS};

/// The text that is read, its place, and the names that it may use.
pub struct StepReader<'a> {
    pub parts: &'a StepParts,
    pub faults: &'a mut ValidationErrors,
    /// The pointer of what is being read.
    pub pointer: String,
    /// The names of the steps before.
    pub steps: &'a [String],
    /// Inside of a `for_each`.
    pub in_each: bool,
    /// The steps are to be saved or tried out, and not run.
    pub is_saved: bool,
    /// Set where a text can't be read, or exceeds a bound, whatever is configured.
    pub unreadable: &'a Cell<bool>,
}

impl StepReader<'_> {
    /// The reading of `key`, one level below.
    pub fn below(&mut self, key: &str) -> StepReader<'_> {
        StepReader {
            parts: self.parts,
            faults: &mut *self.faults,
            pointer: format!("{}/{}", self.pointer, escape(key)),
            steps: self.steps,
            in_each: self.in_each,
            is_saved: self.is_saved,
            unreadable: self.unreadable,
        }
    }

    /// A fault of what is being read that no configuration mends.
    pub fn unreadable(&mut self, why: impl Into<String>) {
        self.unreadable.set(true);
        self.fault(why);
    }

    /// A fault of what is being read.
    pub fn fault(&mut self, message: impl Into<String>) {
        let place = self.pointer.clone();
        self.faults.add(place, message);
    }

    /// An object with the fields that are published of a `T` and no others.
    pub fn object<'v, T: PartialSchema + 'static>(&mut self, value: &'v Value) -> Option<&'v Map<String, Value>> {
        let known = field_names::<T>();
        let Some(fields) = value.as_object() else {
            self.fault(format!("must be an object; its fields are {}", known.join(", ")));
            return None;
        };
        for key in unknown_fields(fields, known) {
            let hint = did_you_mean(key, known.iter().copied());
            self.below(key).fault(format!("unknown field{hint}; known: {}", known.join(", ")));
        }
        Some(fields)
    }

    /// A text that is not blank.
    pub fn text(&mut self, fields: &Map<String, Value>, key: &str) -> Option<String> {
        match given(fields, key)? {
            Value::String(text) if !text.trim().is_empty() => Some(text.clone()),
            _ => {
                self.below(key).fault("must be a text that is not empty");
                None
            }
        }
    }

    /// As [`StepReader::text`], with a fault where the field is missing.
    pub fn needed_text(&mut self, fields: &Map<String, Value>, key: &str) -> Option<String> {
        self.need(fields, key).and_then(|_| self.text(fields, key))
    }

    /// Adds a fault where the field is missing.
    pub fn need<'v>(&mut self, fields: &'v Map<String, Value>, key: &str) -> Option<&'v Value> {
        let value = given(fields, key);
        if value.is_none() {
            self.below(key).fault("is missing");
        }
        value
    }

    /// A whole number within these bounds.
    pub fn number(
        &mut self,
        fields: &Map<String, Value>,
        key: &str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Option<u64> {
        let number = given(fields, key)?.as_u64().filter(|number| range.contains(number));
        if number.is_none() {
            self.below(key).fault(format!("must be a whole number from {} to {}", range.start(), range.end()));
        }
        number
    }

    /// A span of whole seconds within these bounds.
    pub fn seconds(
        &mut self,
        fields: &Map<String, Value>,
        key: &str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Option<Duration> {
        self.number(fields, key, range).map(Duration::from_secs)
    }

    /// One of these words.
    pub fn word(&mut self, fields: &Map<String, Value>, key: &str, known: &[&str]) -> Option<String> {
        let word = self.text(fields, key)?;
        if !known.contains(&word.as_str()) {
            let hint = did_you_mean(&word, known.iter().copied());
            self.below(key).fault(format!("must be one of {}{hint}", known.join(", ")));
            return None;
        }
        Some(word)
    }

    /// The names that templates and expressions may use here.
    pub fn names(&self) -> TemplateNames<'_> {
        TemplateNames { variables: if self.in_each { &NAMES_OF_EACH } else { &NAMES }, steps: self.steps }
    }

    /// A template of a text.
    pub fn template(&mut self, fields: &Map<String, Value>, key: &str) -> Option<Template> {
        let text = self.text(fields, key)?;
        match self.parts.templates.read(&text, self.names()) {
            Ok(template) => Some(template),
            Err(fault) => {
                self.below(key).unreadable(fault.to_string());
                None
            }
        }
    }

    /// A template of any form; `null` is one.
    pub fn tree(&mut self, fields: &Map<String, Value>, key: &str) -> Option<Tree> {
        let value = fields.get(key)?;
        let pointer = format!("{}/{}", self.pointer, escape(key));
        let names = TemplateNames { variables: if self.in_each { &NAMES_OF_EACH } else { &NAMES }, steps: self.steps };
        let before = self.faults.0.len();
        let tree = Tree::read(value, &pointer, &self.parts.templates, names, self.faults);
        if self.faults.0.len() > before {
            self.unreadable.set(true);
        }
        Some(tree)
    }

    /// A CEL expression that stands where the reading is.
    pub fn expression(&mut self, value: &Value) -> Option<Expression> {
        let Some(text) = value.as_str() else {
            self.fault("must be a CEL expression, as a text");
            return None;
        };
        let read = self.parts.expressions.read(text, self.names().variables);
        let expression = match read {
            Ok(expression) => expression,
            Err(fault) => {
                self.unreadable(fault.to_string());
                return None;
            }
        };
        for NamedMember { name, position, .. } in expression.members_of("steps") {
            if let Some(why) = self.names().no_step(&name) {
                self.fault(format!("{why} (at character {position})"));
                return None;
            }
        }
        let of_task = expression.unknown_member("task", &TASK_MEMBERS);
        if let Some(why) = impossible_member(&expression).or(of_task).or(expression.unknown_member("run", &RUN_MEMBERS))
        {
            self.fault(why);
            return None;
        }
        Some(expression)
    }
}

/// A field that is there and not null.
pub fn given<'v>(fields: &'v Map<String, Value>, key: &str) -> Option<&'v Value> {
    fields.get(key).filter(|value| !value.is_null())
}
