//! An event: a fact on the bus, shaped as CloudEvents 1.0 has it (<https://github.com/cloudevents/spec>, version
//! 1.0.2).
//!
//! Pure data. Its identity is tenant + source + id; what has the same identity is the same event, however often it
//! comes.

pub mod short;
pub mod written;

use aws_lc_rs::digest::{Context, SHA256};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value};

use crate::base::expr::{Expression, NamedMember};
use crate::base::id::Tenant;
use crate::base::invalid::{ValidationErrors, did_you_mean, escape};
use crate::base::json::length::bytes_of;

/// The only version of CloudEvents that is read and written.
pub const SPEC_VERSION: &str = "1.0";
/// Longest `id`, `source`, `type`, `subject`, in characters.
pub const ATTRIBUTE_LENGTH: usize = 512;
/// Largest event as JSON, in bytes.
pub const EVENT_BYTES: usize = 256 * 1024;
/// The extension attribute that names the tenant.
pub const TENANT: &str = "tenantid";

/// The attributes that are no extensions.
const ATTRIBUTES: [&str; 11] = [
    "specversion",
    "id",
    "source",
    "type",
    TENANT,
    "subject",
    "time",
    "datacontenttype",
    "dataschema",
    "data",
    "data_base64",
];

fn may_be_extension(name: &str) -> bool {
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    (1..=64).contains(&name.len()) && name.chars().all(lower)
}

/// The fault that an expression names a member of `event` that no event can have, as a sentence.
pub fn impossible_member(expression: &Expression) -> Option<String> {
    let unknown = |member: &NamedMember| !ATTRIBUTES.contains(&member.name.as_str());
    expression.members_of("event").into_iter().filter(unknown).find_map(
        |NamedMember { name, position, has_members }| {
            let what = match (may_be_extension(&name), has_members) {
                // extensions are texts, numbers, true and false
                (true, true) => {
                    format!("an event has no `{name}` with something in it{}", did_you_mean(&name, ATTRIBUTES))
                }
                (false, _) => {
                    format!("an event can't have `{name}`; names of extensions are lower-case letters and digits")
                }
                (true, false) => return None,
            };
            Some(format!("{what} (at character {position})"))
        },
    )
}

/// A fact that was published.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(try_from = "Value")]
pub struct Event {
    /// The tenant that owns the event: attribute `tenantid`.
    pub tenant: Tenant,
    /// Unique within tenant and source.
    pub id: String,
    /// Source of the event, a URI reference (CloudEvents `source`).
    pub source: String,
    /// `type`.
    pub kind: String,
    /// Subject within the source (CloudEvents `subject`).
    pub subject: Option<String>,
    /// When it happened, as its source says.
    pub time: Option<DateTime<Utc>>,
    /// Media type of the data; absent for JSON.
    pub datacontenttype: Option<String>,
    /// URI of the data's schema.
    pub dataschema: Option<String>,
    /// The data itself.
    pub data: Data,
    /// Extension attributes but `tenantid`: text, numbers, true and false.
    pub extensions: Map<String, Value>,
}

/// The data of an event.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Data {
    /// The event has no data.
    #[default]
    Nothing,
    /// JSON data.
    Json(Value),
    /// Bytes that are no JSON, in base64.
    Base64(String),
}

impl Event {
    /// Reads the structured JSON form that stands at `pointer`; `tenantid` has to be there, in the one form in which
    /// tenants are named. All that is wrong is added to `faults`; `None` exactly when something was.
    pub fn parse(value: &Value, pointer: &str, faults: &mut ValidationErrors) -> Option<Event> {
        Event::parse_with(value, pointer, Tenant::new, faults)
    }

    /// Like [`Event::parse`], for an event whose tenant is stored already, as a token, a run or an entry of the bus has
    /// it: that may have been before tenants had one form.
    pub fn parse_of_stored_tenant(value: &Value, pointer: &str, faults: &mut ValidationErrors) -> Option<Event> {
        Event::parse_with(value, pointer, Tenant::stored, faults)
    }

    fn parse_with(
        value: &Value,
        pointer: &str,
        read_tenant: fn(String) -> Result<Tenant, String>,
        faults: &mut ValidationErrors,
    ) -> Option<Event> {
        let Some(fields) = value.as_object() else {
            faults.add(pointer, "an event is a JSON object in the structured form of CloudEvents 1.0");
            return None;
        };
        let before = faults.0.len();
        let mut reader = EventFieldReader { fields, pointer, faults };
        reader.version();
        let tenant = reader.required(TENANT).and_then(|name| match read_tenant(name) {
            Ok(tenant) => Some(tenant),
            Err(why) => {
                reader.fault(TENANT, why);
                None
            }
        });
        let (id, source, kind) = (reader.required("id"), reader.required("source"), reader.required("type"));
        let (subject, content) = (reader.text("subject"), reader.text("datacontenttype"));
        let (schema, time, data) = (reader.text("dataschema"), reader.time(), reader.data());
        let extensions = reader.extensions();
        if faults.0.len() > before {
            return None;
        }
        Some(Event {
            tenant: tenant?,
            id: id?,
            source: source?,
            kind: kind?,
            subject,
            time,
            datacontenttype: content,
            dataschema: schema,
            data,
            extensions,
        })
    }

    /// The structured JSON form, with `tenantid`.
    pub fn to_value(&self) -> Value {
        // texts and JSON can always be written as JSON
        serde_json::to_value(self).unwrap_or_default()
    }

    fn structured(&self) -> CloudEvent<'_> {
        let (data, data_base64) = match &self.data {
            Data::Nothing => (None, None),
            Data::Json(value) => (Some(value), None),
            Data::Base64(text) => (None, Some(text.as_str())),
        };
        CloudEvent {
            specversion: SPEC_VERSION,
            id: &self.id,
            source: &self.source,
            r#type: &self.kind,
            tenantid: self.tenant.as_str(),
            data,
            data_base64,
            time: self.time.map(|time| time.to_rfc3339_opts(chrono::SecondsFormat::Millis, true)),
            subject: self.subject.as_deref(),
            datacontenttype: self.datacontenttype.as_deref(),
            dataschema: self.dataschema.as_deref(),
            extensions: &self.extensions,
        }
    }

    /// How long it is as JSON. Nothing is copied: the data may be large.
    pub fn bytes(&self) -> usize {
        bytes_of(self)
    }

    /// The identity that makes it fire a task at most once.
    pub fn key(&self) -> String {
        event_key(&self.tenant, &self.source, &self.id)
    }
}

/// An event as CloudEvents 1.0 has it, in the structured form.
#[derive(Serialize, utoipa::ToSchema)]
#[schema(example = json!({"specversion": "1.0", "id": "evt-1", "source": "email", "type": "new_email",
    "tenantid": "user_123", "data": {"from": "ship-confirm@amazon.com"}}))]
pub struct CloudEvent<'a> {
    #[schema(example = "1.0")]
    specversion: &'static str,
    id: &'a str,
    source: &'a str,
    r#type: &'a str,
    /// The extension attribute that names the tenant.
    #[schema(required = false)]
    tenantid: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<&'a Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_base64: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(format = DateTime)]
    time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    datacontenttype: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dataschema: Option<&'a str>,
    /// Extension attributes: texts, numbers, true and false.
    #[serde(flatten)]
    #[schema(value_type = Map<String, Value>)]
    extensions: &'a Map<String, Value>,
}

impl Serialize for Event {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        self.structured().serialize(to)
    }
}

/// `sha256(tenantid ‖ 0 ‖ source ‖ 0 ‖ id)`, in hexadecimal: `docs/keys.md`, "Fires".
pub fn event_key(tenant: &Tenant, source: &str, id: &str) -> String {
    let mut digest = Context::new(&SHA256);
    for (index, part) in [tenant.as_str(), source, id].into_iter().enumerate() {
        if index > 0 {
            digest.update(b"\0");
        }
        digest.update(part.as_bytes());
    }
    hex::encode(digest.finish())
}

/// Where a tenant's events are on a bus of `partitions`: CRC-32 (IEEE) of the UTF-8 tenant id, mod partitions.
pub fn partition(tenant: &str, partitions: u32) -> u32 {
    crc32fast::hash(tenant.as_bytes()) % partitions.max(1)
}

/// Reads an event back that was stored or is on the bus.
impl TryFrom<Value> for Event {
    type Error = ValidationErrors;

    fn try_from(mut value: Value) -> Result<Event, ValidationErrors> {
        let mut faults = ValidationErrors::new();
        // the data may be large, and is moved rather than copied
        let both = value.get("data_base64").is_some_and(|base64| !base64.is_null());
        let data = value.as_object_mut().filter(|_| !both).and_then(|fields| fields.remove("data"));
        let event = Event::parse_of_stored_tenant(&value, "", &mut faults).ok_or(faults)?;
        Ok(match data {
            Some(data) => Event { data: Data::Json(data), ..event },
            None => event,
        })
    }
}

struct EventFieldReader<'a> {
    fields: &'a Map<String, Value>,
    pointer: &'a str,
    faults: &'a mut ValidationErrors,
}

impl EventFieldReader<'_> {
    fn fault(&mut self, field: &str, why: impl Into<String>) {
        self.faults.add(format!("{}/{}", self.pointer, escape(field)), why);
    }

    fn version(&mut self) {
        match self.fields.get("specversion").map(Value::as_str) {
            Some(Some(SPEC_VERSION)) => {}
            Some(_) => self.fault("specversion", "must be \"1.0\""),
            None => self.fault("specversion", "is missing; it is \"1.0\""),
        }
    }

    fn required(&mut self, field: &str) -> Option<String> {
        if !self.fields.contains_key(field) || self.fields[field].is_null() {
            self.fault(field, "is missing");
            return None;
        }
        self.text(field)
    }

    fn text(&mut self, field: &str) -> Option<String> {
        let value = self.fields.get(field).filter(|value| !value.is_null())?;
        match value.as_str() {
            Some("") => self.fault(field, "must not be empty"),
            Some(text) if text.chars().count() > ATTRIBUTE_LENGTH => {
                self.fault(field, format!("must be at most {ATTRIBUTE_LENGTH} characters"));
            }
            Some(text) if text.chars().any(char::is_control) => self.fault(field, "must not have control characters"),
            Some(text) => return Some(text.to_owned()),
            None => self.fault(field, "must be a text"),
        }
        None
    }

    fn time(&mut self) -> Option<DateTime<Utc>> {
        let text = self.text("time")?;
        match DateTime::parse_from_rfc3339(&text) {
            Ok(time) => Some(crate::base::clock::truncate_millis(time.to_utc())),
            Err(_) => {
                self.fault("time", "must be an instant as RFC 3339 has it, such as \"2026-12-24T15:00:00Z\"");
                None
            }
        }
    }

    fn data(&mut self) -> Data {
        // beside the other, null is as good as absent; alone, `data` may be null
        let base64 = self.fields.get("data_base64").filter(|base64| !base64.is_null());
        let data = self.fields.get("data").filter(|data| base64.is_none() || !data.is_null());
        match (data, base64) {
            (Some(_), Some(_)) => self.fault("data_base64", "an event has `data` or `data_base64`, not both"),
            (Some(value), None) => return Data::Json(value.clone()),
            (None, Some(Value::String(text))) => {
                use base64::Engine;
                if base64::engine::general_purpose::STANDARD.decode(text).is_ok() {
                    return Data::Base64(text.clone());
                }
                self.fault("data_base64", "is not base64 (RFC 4648, section 4)");
            }
            (None, Some(_)) => self.fault("data_base64", "must be a text"),
            (None, None) => {}
        }
        Data::Nothing
    }

    /// Attribute names are lower-case letters and digits; values are simple.
    fn extensions(&mut self) -> Map<String, Value> {
        let mut kept = Map::new();
        for (name, value) in self.fields.iter().filter(|(name, _)| !ATTRIBUTES.contains(&name.as_str())) {
            if !may_be_extension(name) {
                self.fault(name, "the name of an extension attribute has lower-case letters and digits only");
            } else if !matches!(value, Value::String(_) | Value::Number(_) | Value::Bool(_) | Value::Null) {
                self.fault(name, "an extension attribute is a text, a number, true or false; put the rest into `data`");
            } else if !value.is_null() {
                kept.insert(name.clone(), value.clone());
            }
        }
        kept
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use utoipa::PartialSchema;

    use super::*;

    #[test]
    fn event_is_read_and_written_without_loss() {
        let value = json!({
            "specversion": "1.0", "id": "1", "source": "email", "type": "new_email", "tenantid": "ann",
            "subject": "inbox", "time": "2026-12-24T15:00:00.000Z", "datacontenttype": "application/json",
            "dataschema": "https://example.org/s", "data": {"from": "x"}, "traceparent": "00-1", "priority": 3,
        });
        let event = Event::try_from(value.clone()).unwrap();
        assert_eq!((event.kind.as_str(), event.tenant.as_str()), ("new_email", "ann"));
        assert_eq!(event.to_value(), value);
    }

    #[test]
    fn attributes_that_are_read_are_those_that_are_written_and_described() {
        let schema = serde_json::to_value(CloudEvent::schema()).unwrap();
        let mut described: Vec<&str> = schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        let mut read = ATTRIBUTES.to_vec();
        described.sort_unstable();
        read.sort_unstable();
        assert_eq!(read, described);
    }

    #[test]
    fn event_is_as_long_as_what_is_written_of_it() {
        let least = json!({ "specversion": "1.0", "id": "1", "source": "é\"", "type": "t", "tenantid": "ann" });
        for more in [
            json!({}),
            json!({ "data": null }),
            json!({ "data": { "deep": [1.5, "\u{1}ü", { "x": null }] }, "subject": "s", "priority": 3, "urgent": true }),
            json!({ "data_base64": "AA==", "time": "2026-12-24T16:00:00+01:00", "dataschema": "https://example.org/s" }),
        ] {
            let mut value = least.clone();
            value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let event = Event::try_from(value).unwrap();
            assert_eq!(event.bytes(), event.to_value().to_string().len(), "{event:?}");
        }
    }

    #[test]
    fn everything_that_is_wrong_is_told_with_its_place() {
        let value = json!({
            "specversion": "0.3", "id": 7, "source": "", "time": "yesterday", "data": 1, "data_base64": "AA==",
            "Bad": 1, "deep": {"x": 1},
        });
        let faults = Event::try_from(value).unwrap_err();
        let places: Vec<&str> = faults.0.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(
            places,
            ["/specversion", "/tenantid", "/id", "/source", "/type", "/time", "/data_base64", "/Bad", "/deep"]
        );
    }

    #[test]
    fn event_of_a_tenant_of_an_older_form_is_read_back_and_no_such_tenant_is_named_anew() {
        for tenant in [" ta", "t\u{200b}a", "o\u{308}", "*"] {
            let value = json!({
                "specversion": "1.0", "id": "1", "source": "email", "type": "new_email", "tenantid": tenant,
            });
            let mut faults = ValidationErrors::new();
            assert_eq!(Event::parse(&value, "/0", &mut faults), None);
            assert_eq!(faults.0[0].pointer, "/0/tenantid", "{tenant:?}");
            let read_back = Event::try_from(value.clone()).map(|event| event.to_value());
            assert_eq!(read_back.ok(), (tenant != "*").then_some(value), "{tenant:?}");
        }
    }

    #[test]
    fn attributes_are_taken_at_their_longest_and_refused_one_beyond_it() {
        for name in ["id", "source", "type", "subject"] {
            let of = |length: usize| {
                let mut value = json!({
                    "specversion": "1.0", "id": "1", "source": "email", "type": "new_email", "tenantid": "ann",
                });
                value[name] = json!("é".repeat(length));
                Event::try_from(value).map(drop).map_err(|faults| faults.0[0].pointer.clone())
            };
            assert_eq!((of(ATTRIBUTE_LENGTH), of(ATTRIBUTE_LENGTH + 1)), (Ok(()), Err(format!("/{name}"))));
        }
    }

    #[test]
    fn key_tells_apart_what_a_plain_join_would_mix_up() {
        let ann = Tenant::new("ann").unwrap();
        assert_eq!(event_key(&ann, "a", "b").len(), 64);
        assert_ne!(event_key(&ann, "ab", "c"), event_key(&ann, "a", "bc"));
        // printf 'ann\0email\0evt-1' | sha256sum
        assert_eq!(
            event_key(&ann, "email", "evt-1"),
            "94b8eb77e555a2e0ba0b64e1d0f213847ea09d8d25cc4a03448747752669dec9"
        );
    }

    #[test]
    fn partition_is_the_crc_32_of_zlib() {
        // python3 -c 'import zlib; print(zlib.crc32(b"user_123"), zlib.crc32("münchen".encode()))'
        assert_eq!(partition("user_123", u32::MAX), 1667105369);
        assert_eq!(partition("münchen", u32::MAX), 1172628735);
        assert_eq!(partition("user_123", 16), 1667105369 % 16);
    }
}
