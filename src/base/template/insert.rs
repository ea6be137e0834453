//! How a value is put into a text, a path or a query, and the filters that there are.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;

use minijinja::value::{Enumerator, Kwargs, Object, ObjectExt, ObjectRepr, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, UndefinedBehavior, Value, filters, tests};

use crate::base::template::limits::{FUEL, OUTPUT_BYTES};
use crate::base::template::meter;
use crate::base::template::untrusted::fenced;

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
    /// As text, between tags that label it as data from outside; numbers and truths as they are.
    Data,
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
    engine.add_filter("float", |state: &State, value: &Value, default: Option<Value>, more: Kwargs| {
        meter::spend(length(value))?;
        filters::float(state, value, default, more)
    });
    engine.add_filter(
        "int",
        |state: &State, value: &Value, default: Option<Value>, base: Option<u32>, more: Kwargs| {
            meter::spend(length(value))?;
            filters::int(state, value, default, base, more)
        },
    );
    engine.add_filter("join", join);
    engine.add_filter("last", filters::last);
    engine.add_filter("length", |value: &Value| {
        meter::spend(length(value))?;
        filters::length(value)
    });
    engine.add_filter("lower", |text: String| meter::spend(text.len()).map(|()| text.to_lowercase()));
    engine.add_filter("replace", replace);
    engine.add_filter("round", filters::round);
    engine.add_filter("string", |value: &Value| shown(value));
    engine.add_filter("tojson", tojson);
    engine.add_filter("trim", trim);
    engine.add_filter("upper", |text: String| meter::spend(text.len()).map(|()| text.to_uppercase()));
    engine.add_filter("urlencode", |value: &Value| {
        meter::spend(length(value))?;
        filters::urlencode(value)
    });
    engine.add_test("defined", tests::is_defined);
    engine.add_test("none", tests::is_none);
    engine.add_test("number", tests::is_number);
    engine.add_test("string", tests::is_string);
    engine.add_test("in", tests::is_in);
    engine.set_formatter(move |out, _, value| {
        let text = shown(value)?;
        match insert {
            Insert::Data if may_have_words(value) => out.write_str(&fenced("value", &text))?,
            Insert::Text | Insert::Data => out.write_str(&text)?,
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
        Json::Array(items) => Value::from_object(List(items.iter().map(from_json).collect())),
        Json::Object(fields) => Value::from_object(InsertedFields(
            fields.iter().map(|(key, field)| (key.clone(), from_json(field))).collect(),
        )),
    }
}

/// Steps that one look at an element or a field counts for, in bytes.
const LOOK: usize = 64;

/// A list of data. Each look at an element counts, also in comparisons, which call no filter.
#[derive(Debug)]
struct List(Vec<Value>);

/// An object of data, as [`List`].
#[derive(Debug)]
struct InsertedFields(BTreeMap<String, Value>);

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        meter::spend(LOOK).ok()?;
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match meter::spend(LOOK) {
            Ok(()) => Enumerator::Seq(self.0.len()),
            Err(_) => Enumerator::Empty,
        }
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }
}

impl Object for InsertedFields {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        meter::spend(LOOK).ok()?;
        self.0.get(key.as_str()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match meter::spend(LOOK) {
            Ok(()) => self.mapped_enumerator(|fields| Box::new(fields.0.keys().map(|key| Value::from(key.as_str())))),
            Err(_) => Enumerator::Empty,
        }
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }
}

fn shown(value: &Value) -> Result<String, Error> {
    if value.is_undefined() {
        return Err(Error::from(ErrorKind::UndefinedError));
    }
    match value.as_str() {
        Some(text) => meter::spend(text.len()).map(|()| text.to_owned()),
        None => tojson(value),
    }
}

fn may_have_words(value: &Value) -> bool {
    !matches!(value.kind(), ValueKind::Undefined | ValueKind::None | ValueKind::Bool | ValueKind::Number)
}

/// The bytes of a text; of anything else nothing, its parts are counted where they are looked at.
fn length(value: &Value) -> usize {
    value.as_str().map_or(0, str::len)
}

fn trim(text: String, chars: Option<String>) -> Result<String, Error> {
    let Some(chars) = chars else { return meter::spend(text.len()).map(|()| text.trim().to_owned()) };
    meter::spend(text.len().saturating_mul(chars.len() + 1))?;
    let chars: Vec<char> = chars.chars().collect();
    Ok(text.trim_matches(&chars[..]).to_owned())
}

/// Plain JSON: no page is made of it.
fn tojson(value: &Value) -> Result<String, Error> {
    let json = serde_json::to_string(value).map_err(|_| Error::from(ErrorKind::BadSerialization))?;
    meter::spend(json.len())?;
    Ok(json)
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
    meter::spend(text.len().saturating_add(from.len()))?;
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
        meter::spend(joiner.len())?;
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
