//! How a value is put into a text, a path or a query, and the filters that there are.

use std::fmt::Write;

use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value, filters, tests};

use crate::template::guard::{FUEL, OUTPUT_BYTES};

/// The filters that there are.
pub const FILTERS: [&str; 16] = [
    "abs",
    "default",
    "first",
    "float",
    "int",
    "join",
    "last",
    "length",
    "lower",
    "replace",
    "round",
    "string",
    "tojson",
    "trim",
    "upper",
    "urlencode",
];

/// Where values are put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Insert {
    /// Texts as they are, all else as JSON.
    Text,
    /// Percent-encoded, so that it stays within its segment; never empty.
    Path,
    /// Percent-encoded, so that it stays within its value.
    Query,
}

/// The language with its filters, for one way of inserting.
pub fn engine(insert: Insert) -> Environment<'static> {
    let mut engine = Environment::empty();
    engine.set_undefined_behavior(UndefinedBehavior::Strict);
    engine.set_fuel(Some(FUEL));
    engine.set_recursion_limit(50);
    engine.add_filter("abs", filters::abs);
    engine.add_filter("default", filters::default);
    engine.add_filter("first", filters::first);
    engine.add_filter("float", filters::float);
    engine.add_filter("int", filters::int);
    engine.add_filter("join", join);
    engine.add_filter("last", filters::last);
    engine.add_filter("length", filters::length);
    engine.add_filter("lower", filters::lower);
    engine.add_filter("replace", replace);
    engine.add_filter("round", filters::round);
    engine.add_filter("string", filters::string);
    engine.add_filter("tojson", tojson);
    engine.add_filter("trim", filters::trim);
    engine.add_filter("upper", filters::upper);
    engine.add_filter("urlencode", filters::urlencode);
    engine.add_test("defined", tests::is_defined);
    engine.add_test("none", tests::is_none);
    engine.add_test("number", tests::is_number);
    engine.add_test("string", tests::is_string);
    engine.add_test("in", tests::is_in);
    engine.set_formatter(move |out, _, value| {
        let text = shown(value)?;
        match insert {
            Insert::Text => out.write_str(&text)?,
            Insert::Path if text.is_empty() => {
                let why = "a value in the path of a URL is empty";
                return Err(Error::new(ErrorKind::InvalidOperation, why));
            }
            Insert::Path | Insert::Query => out.write_str(&encoded(&text))?,
        }
        Ok(())
    });
    engine
}

/// A JSON value as the language has it.
pub fn from_json(value: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match value {
        Json::Null => Value::from(()),
        Json::Bool(truth) => Value::from(*truth),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(whole), _) => Value::from(whole),
            (None, Some(whole)) => Value::from(whole),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => items.iter().map(from_json).collect(),
        Json::Object(fields) => Value::from_pairs(fields.iter().map(|(key, field)| (key.clone(), from_json(field)))),
    }
}

fn shown(value: &Value) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    match value.as_str() {
        Some(text) => Ok(text.to_owned()),
        None => serde_json::to_string(value).map_err(|_| Error::from(ErrorKind::BadSerialization)),
    }
}

/// Plain JSON: no page is made of it.
fn tojson(value: &Value) -> Result<String, Error> {
    serde_json::to_string(value).map_err(|_| Error::from(ErrorKind::BadSerialization))
}

/// All but unreserved characters percent-encoded (RFC 3986, section 2.3).
fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            _ => {
                let _ = write!(encoded, "%{byte:02X}"); // writing to a text can't fail
            }
        }
    }
    encoded
}

/// Like Jinja's, and never longer than a template may give.
fn replace(text: String, from: String, to: String) -> Result<String, Error> {
    let found = if from.is_empty() { text.chars().count() + 1 } else { text.matches(&from).count() };
    bounded(text.len().saturating_add(found.saturating_mul(to.len())))?;
    Ok(text.replace(&from, &to))
}

fn join(list: &Value, joiner: Option<String>) -> Result<String, Error> {
    let joiner = joiner.unwrap_or_default();
    let mut joined = String::new();
    for (index, item) in list.try_iter()?.enumerate() {
        if index > 0 {
            joined.push_str(&joiner);
        }
        joined.push_str(&shown(&item)?);
        bounded(joined.len())?;
    }
    Ok(joined)
}

fn bounded(length: usize) -> Result<(), Error> {
    match length <= OUTPUT_BYTES {
        true => Ok(()),
        false => Err(Error::from(ErrorKind::WriteFailure)),
    }
}
