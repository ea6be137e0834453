//! JSON to CEL values and back.

use std::collections::HashMap;
use std::sync::Arc;

use cel::objects::Key;
use serde_json::Value;

use crate::base::expr::ExpressionError;

/// Whole numbers become `int` (the crate's own conversion makes them `uint`, so that `n + 1` fails), others `double`.
pub fn to_cel(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(b) => cel::Value::Bool(*b),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(whole), _) => cel::Value::Int(whole),
            (None, Some(double)) => cel::Value::Float(double),
            (None, None) => cel::Value::Null,
        },
        Value::String(text) => cel::Value::String(Arc::new(text.clone())),
        Value::Array(items) => cel::Value::List(Arc::new(items.iter().map(to_cel).collect())),
        Value::Object(fields) => {
            let fields = fields.iter().map(|(key, value)| (Key::String(Arc::new(key.clone())), to_cel(value)));
            cel::Value::Map(fields.collect::<HashMap<_, _>>().into())
        }
    }
}

/// The JSON form of a CEL value. Fails for values without one, such as types.
pub fn to_json(value: &cel::Value) -> Result<Value, ExpressionError> {
    value.json().map_err(|_| ExpressionError::Failed(format!("a {} has no form in JSON", value.type_of())))
}
