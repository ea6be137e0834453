//! A field that an expression looked for and that is not there, as a person is told of it.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::base::expr::{Expression, ExpressionError, Variables};
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
    /// Whether it is true, or the field that it missed. A guard, as `has(value.price)` or `'price' in value`, lets it miss
    /// nothing.
    pub fn asked(&self, variables: &Variables) -> Result<Evaluation, ExpressionError> {
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
        match expression.asked(&variables).unwrap() {
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
