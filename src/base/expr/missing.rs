//! A field that an expression looked for and that is not there, as a person is told of it.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::base::expr::{Expression, ExpressionError, Variables, failure, parts};
use crate::base::invalid::nearest_name;

/// In the place of a name, where an element of a list, or anything inside of null, is asked for: these are no fields.
pub const ELEMENT: &str = "element at this index";
/// Name of a look-up in a null, in place of the field's.
pub const IN_NULL: &str = "field of null";
/// Names beside the one that is missing that are compared with it.
const COMPARED: usize = 1_000;

/// A field that is not there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct MissingField {
    /// The expression that looks for it.
    #[schema(example = "event.data.totl > 100")]
    pub expression: String,
    /// As it stands there.
    #[schema(example = "event.data.totl")]
    pub field: String,
    /// A field that is there and that may be meant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false, example = "total")]
    pub did_you_mean: Option<String>,
}

impl fmt::Display for MissingField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not there", self.field)?;
        match &self.did_you_mean {
            Some(name) => write!(f, "; did you mean `{name}`?"),
            None => Ok(()),
        }
    }
}

/// Whether an expression is true, or what it missed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Evaluation {
    /// The expression has a truth value.
    Holds(bool),
    /// A field of this name is not there: it is taken for false.
    Misses(String),
}

impl ExpressionError {
    /// The name of the field that is missing, where that is why there is no value.
    pub fn missing_field(&self) -> Option<&str> {
        match self {
            ExpressionError::Missing(name) if name != ELEMENT && name != IN_NULL => Some(name),
            _ => None,
        }
    }
}

impl Expression {
    /// Whether it is true, or the field that it missed. A guard, as `has(value.price)` or `'price' in value`, lets it
    /// miss nothing.
    pub fn judge(&self, variables: &Variables) -> Result<Evaluation, ExpressionError> {
        let value = match self.evaluate(variables) {
            Err(error) if error.missing_field().is_some() => {
                return Ok(Evaluation::Misses(error.missing_field().unwrap_or_default().to_owned()));
            }
            Err(ExpressionError::Missing(_)) => return Ok(Evaluation::Holds(false)),
            value => value?,
        };
        match value {
            cel::Value::Bool(holds) => Ok(Evaluation::Holds(holds)),
            other => Err(ExpressionError::Failed(format!("must be true or false, is {}", other.type_of()))),
        }
    }

    /// The field that the value misses, if it misses one.
    pub fn missing_in(&self, variables: &Variables) -> Option<MissingField> {
        let error = self.value(variables).err()?;
        Some(self.missing(error.missing_field()?, variables))
    }

    /// The first field that the value misses in one of these samples and that none of the others has. Evaluates over
    /// each of them more than once.
    pub fn missing_in_all(&self, samples: &[Variables]) -> Option<MissingField> {
        let missed: Vec<Option<MissingField>> = samples.iter().map(|sample| self.missing_in(sample)).collect();
        let is_in_none = |field: &str| {
            samples.iter().zip(&missed).all(|(sample, missed)| {
                missed.as_ref().is_some_and(|missed| missed.field == field) || self.lacks(field, sample)
            })
        };
        missed.iter().flatten().find(|missing| is_in_none(&missing.field)).cloned()
    }

    /// Whether there is a part with this text, and what it looks for is not there.
    fn lacks(&self, part: &str, variables: &Variables) -> bool {
        let Some(node) = parts::node(self.text(), &self.0.program, part) else { return false };
        if variables.check_limits().is_err() || self.cost_of(node, variables).check_budget().is_err() {
            return false;
        }
        let is_missing = self.in_context(variables, |context| {
            matches!(cel::Value::resolve(node, context).map_err(failure), Err(ExpressionError::Missing(_)))
        });
        is_missing == Ok(true)
    }

    /// The missing field of this name with its place, and what may be meant by it. Takes as long as an evaluation.
    pub fn missing(&self, name: &str, variables: &Variables) -> MissingField {
        let parts = self.parts(variables);
        let why = ExpressionError::Missing(name.to_owned()).to_string();
        let endings = [format!(".{name}"), format!("['{name}']"), format!("[\"{name}\"]")];
        let of = |text: &str| endings.iter().find_map(|ending| text.strip_suffix(ending.as_str()).map(str::to_owned));
        let found = parts.iter().filter(|part| part.value.as_ref().is_err_and(|error| *error == why));
        let found = found.filter_map(|part| Some((part.text.as_str(), of(&part.text)?)));
        // what is around it misses it as well
        let Some((field, within)) = found.min_by_key(|(text, _)| text.len()) else {
            return MissingField { expression: self.text().to_owned(), field: name.to_owned(), did_you_mean: None };
        };
        let within = parts.iter().find(|part| part.text == within).and_then(|part| part.value.as_ref().ok());
        let names = within.and_then(Value::as_object).into_iter().flat_map(|fields| fields.keys());
        let did_you_mean = nearest_name(name, names.map(String::as_str).take(COMPARED)).map(str::to_owned);
        MissingField { expression: self.text().to_owned(), field: field.to_owned(), did_you_mean }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::base::expr::Language;

    fn missed(text: &str) -> Option<(String, Option<String>)> {
        let expression = Language::default().read(text, &["event"]).unwrap();
        let data = json!({ "total": 7, "customer": { "name": "Ann" }, "items": [{ "price": 1 }], "nothing": null });
        let variables = Variables::new().with("event", &json!({ "type": "order", "data": data }));
        match expression.judge(&variables).unwrap() {
            Evaluation::Holds(_) => None,
            Evaluation::Misses(name) => {
                let missing = expression.missing(&name, &variables);
                assert_eq!(missing.expression, text);
                Some((missing.field, missing.did_you_mean))
            }
        }
    }

    #[test]
    fn missing_field_is_named_with_its_place_and_what_may_be_meant() {
        let field = |field: &str, near: Option<&str>| Some((field.to_owned(), near.map(str::to_owned)));
        assert_eq!(missed("event.data.totl > 5"), field("event.data.totl", Some("total")));
        assert_eq!(missed("event.dta.total > 5"), field("event.dta", Some("data")));
        assert_eq!(missed("event.data.total > 5 && event.data.customer.vip"), field("event.data.customer.vip", None));
        assert_eq!(missed("event.data['totl'] > 5"), field("event.data['totl']", Some("total")));
        assert_eq!(missed("event.data.items.exists(i, i.prce > 3)"), field("prce", None));
    }

    #[test]
    fn field_is_missing_in_all_samples_where_none_of_them_has_it() {
        let missed = |text: &str, samples: &[Value]| {
            let expression = Language::default().read(text, &["event"]).unwrap();
            let event = |data: &Value| Variables::new().with("event", &json!({ "data": data }));
            let samples: Vec<Variables> = samples.iter().map(event).collect();
            expression.missing_in_all(&samples).map(|missing| missing.field)
        };
        let total = Some("event.data.totl".to_owned());
        let slip = "event.data.totl > 5";
        assert_eq!(missed(slip, &[]), None);
        assert_eq!(missed(slip, &[json!({ "total": 7 }), json!({ "total": 1 })]), total);
        assert_eq!(missed(slip, &[json!({ "total": 7 }), json!({ "totl": 1 })]), None, "one of them has it");
        assert_eq!(missed("has(event.data.totl) && event.data.totl > 5", &[json!({})]), None, "it is asked for first");
        // a sample that is decided before the field is looked for has it, or has it not
        let behind = "event.data.kind == 'paid' && event.data.totl > 5";
        let paid = json!({ "kind": "paid", "total": 7 });
        assert_eq!(missed(behind, &[json!({ "kind": "open" }), paid.clone()]), total);
        assert_eq!(missed(behind, &[json!({ "kind": "open", "totl": 7 }), paid]), None);
        // where each misses another one, either may come
        let two = "event.data.a == 1 && event.data.b == 1";
        assert_eq!(missed(two, &[json!({ "b": 1 }), json!({ "a": 1 })]), None);
        let both = Some("event.data.b".to_owned());
        assert_eq!(missed(two, &[json!({}), json!({ "a": 1 })]), both, "the first of them is in the other");
        // what is looked for in each element has no place of its own
        let items = "event.data.items.exists(i, i.prce > 3)";
        let (priced, empty) = (json!({ "items": [{ "price": 1 }] }), json!({ "items": [] }));
        assert_eq!(missed(items, &[priced.clone(), priced.clone()]), Some("prce".to_owned()));
        assert_eq!(missed(items, &[priced, empty]), None);
    }

    #[test]
    fn guarded_fields_elements_and_what_is_in_null_are_no_missing_fields() {
        for text in [
            "has(event.data.totl) && event.data.totl > 5",
            "'totl' in event.data && event.data.totl > 5",
            "event.data.total > 5 || event.data.totl > 5",
            "event.data.items[3] == 1",
            "event.data.nothing.at == 1",
            "event.data.total > 100",
        ] {
            assert_eq!(missed(text), None, "{text}");
        }
    }
}
