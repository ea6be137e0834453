//! The forms in which events are posted: CloudEvents 1.0 structured, batched and binary, and the short form.
//!
//! Source: CloudEvents HTTP protocol binding 1.0.2 (<https://github.com/cloudevents/spec>), JSON event format 1.0.2.

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use crate::base::id::Scope;
use crate::base::invalid::{ValidationErrors, escape};
use crate::domain::event::{Event, TENANT};
use crate::http::error::ApiError;
use crate::http::request::{AuthenticatedCaller, RawBody};

/// Events that one request may carry.
pub const MOST_EVENTS: usize = 500;
/// Prefix of headers of the binary form.
const PREFIX: &str = "ce-";

/// Reader of events: it names their tenant, and makes the attributes that are absent.
pub struct EventReader<'a> {
    pub caller: &'a AuthenticatedCaller,
    /// The id of the event at this place, where it has none.
    pub made_id: &'a dyn Fn(usize) -> String,
    pub now: DateTime<Utc>,
}

impl EventReader<'_> {
    /// Reads all events of a request; everything that is wrong with any of them is told at once.
    pub fn read(&self, headers: &HeaderMap, body: &RawBody) -> Result<Vec<Event>, ApiError> {
        let kind = media_type(headers);
        let mut faults = ValidationErrors::new();
        let events = match kind.as_str() {
            "application/cloudevents+json" => vec![self.structured(body.parsed()?, "", &mut faults)],
            "application/cloudevents-batch+json" => {
                self.each(&body.parsed()?, &mut faults, |value, place, _, faults| {
                    self.structured(value.clone(), place, faults)
                })
            }
            // an unknown format of the structured form is not the binary form
            _ if kind.starts_with("application/cloudevents") => {
                return Err(ApiError::UnsupportedMediaType(format!("`{kind}` is not taken; send CloudEvents as JSON")));
            }
            _ if headers.keys().any(|name| name.as_str().starts_with(PREFIX)) => {
                vec![self.binary(headers, &kind, body, &mut faults)?]
            }
            _ => match body.json()? {
                Value::Array(values) => self.each(&Value::Array(values), &mut faults, |value, place, index, faults| {
                    self.plain(value, place, index, faults)
                }),
                value => vec![self.plain(&value, "", 0, &mut faults)],
            },
        };
        faults.into_result(())?;
        Ok(events.into_iter().flatten().collect())
    }

    fn each(
        &self,
        value: &Value,
        faults: &mut ValidationErrors,
        read: impl Fn(&Value, &str, usize, &mut ValidationErrors) -> Option<Event>,
    ) -> Vec<Option<Event>> {
        match value.as_array() {
            Some(values) if (1..=MOST_EVENTS).contains(&values.len()) => values
                .iter()
                .enumerate()
                .map(|(index, value)| read(value, &format!("/{index}"), index, faults))
                .collect(),
            Some(values) => {
                faults.add("", format!("must have 1 to {MOST_EVENTS} events, has {}", values.len()));
                Vec::new()
            }
            None => {
                faults.add("", "a batch is a JSON array of events");
                Vec::new()
            }
        }
    }

    /// `application/json`: the short form, or a CloudEvent whose sender has named the wrong type.
    fn plain(&self, value: &Value, place: &str, index: usize, faults: &mut ValidationErrors) -> Option<Event> {
        if value.get("specversion").is_some() {
            return self.structured(value.clone(), place, faults);
        }
        if !value.is_object() {
            faults.add(place, "an event is a JSON object with `source` and `type`");
            return None;
        }
        let tenant = match self.caller.acts_for(value) {
            Ok(tenant) => tenant,
            Err(found) => {
                found.0.into_iter().for_each(|fault| faults.add(format!("{place}{}", fault.pointer), fault.message));
                return None;
            }
        };
        Event::read_short(value, place, &tenant, &(self.made_id)(index), self.now, faults)
    }

    fn structured(&self, mut value: Value, place: &str, faults: &mut ValidationErrors) -> Option<Event> {
        if let (Some(fields), Scope::Only(own)) = (value.as_object_mut(), &self.caller.scope) {
            match fields.get(TENANT) {
                None | Some(Value::Null) => drop(fields.insert(TENANT.into(), own.as_str().into())),
                Some(named) if named.as_str() == Some(own.as_str()) => {}
                Some(_) => {
                    let why = format!("this token acts for its own tenant only; leave `{TENANT}` out");
                    faults.add(format!("{place}/{TENANT}"), why);
                    return None;
                }
            }
        }
        let event = match self.caller.scope {
            Scope::Only(_) => Event::parse_of_stored_tenant(&value, place, faults)?,
            Scope::Every => Event::parse(&value, place, faults)?,
        };
        event.is_small_enough(place, faults).then_some(event)
    }

    /// Attributes in headers, the data in the body.
    fn binary(
        &self,
        headers: &HeaderMap,
        kind: &str,
        body: &RawBody,
        faults: &mut ValidationErrors,
    ) -> Result<Option<Event>, ApiError> {
        let mut fields = Map::new();
        for name in headers.keys().filter(|name| name.as_str().starts_with(PREFIX)) {
            let attribute = &name.as_str()[PREFIX.len()..];
            let mut values = headers.get_all(name).iter();
            match (values.next().and_then(|value| decoded(value.as_bytes())), values.next()) {
                (Some(value), None) => drop(fields.insert(attribute.to_owned(), value.into())),
                (_, Some(_)) => faults.add(format!("/{}", escape(attribute)), format!("`{name}` must be given once")),
                (None, _) => faults.add(
                    format!("/{}", escape(attribute)),
                    format!("`{name}` must be UTF-8, what is no ASCII written as %XX"),
                ),
            }
        }
        for reserved in ["data", "data_base64", "datacontenttype"] {
            if fields.remove(reserved).is_some() {
                faults.add(format!("/{reserved}"), "comes as the body and its Content-Type, not as a header");
            }
        }
        if let Some(content) = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()) {
            fields.insert("datacontenttype".into(), content.into());
        }
        match body.bytes() {
            [] => {}
            _ if kind == "application/json" || kind.ends_with("+json") => {
                drop(fields.insert("data".into(), body.parsed()?))
            }
            bytes => drop(fields.insert("data_base64".into(), STANDARD.encode(bytes).into())),
        }
        Ok(self.structured(Value::Object(fields), "", faults))
    }
}

/// The media type without its parameters.
pub fn media_type(headers: &HeaderMap) -> String {
    let text = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// A header's value: percent-encoded UTF-8, in quotes or not (section 3.1.3.2 of the binding).
fn decoded(bytes: &[u8]) -> Option<String> {
    let bytes = bytes.strip_prefix(b"\"").and_then(|inner| inner.strip_suffix(b"\"")).unwrap_or(bytes);
    let mut plain = Vec::with_capacity(bytes.len());
    let mut rest = bytes.iter();
    while let Some(byte) = rest.next() {
        let hex = |byte: Option<&u8>| char::from(*byte?).to_digit(16);
        match byte {
            b'%' => plain.push((hex(rest.next())? * 16 + hex(rest.next())?) as u8),
            _ => plain.push(*byte),
        }
    }
    String::from_utf8(plain).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_values_are_decoded_as_the_binding_says() {
        assert_eq!(decoded(b"plain text").as_deref(), Some("plain text"));
        assert_eq!(decoded(b"Euro%20%E2%82%AC%20%F0%9F%98%80").as_deref(), Some("Euro € 😀"));
        assert_eq!(decoded(b"\"quoted %22\"").as_deref(), Some("quoted \""));
        for bad in [&b"%4"[..], b"%zz", b"%ff", b"\xff", b"%"] {
            assert_eq!(decoded(bad), None, "{bad:?}");
        }
    }
}
