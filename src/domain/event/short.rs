//! The short form of an event: what people write by hand, and what a tool or a pipeline publishes.
//!
//! `{"tenant_id"?, "source", "type", "id"?, "data"?, "time"?, "subject"?}`; who reads it knows whose it is.

use chrono::{DateTime, SecondsFormat, Utc};
use serde_json::{Map, Value};

use crate::base::id::Tenant;
use crate::base::invalid::{ValidationErrors, did_you_mean, escape, unknown_fields};
use crate::domain::event::{EVENT_BYTES, Event, SPEC_VERSION, TENANT};

/// The fields that there are.
pub const FIELDS: [&str; 7] = ["tenant_id", "source", "type", "id", "data", "time", "subject"];

impl Event {
    /// Reads the short form that stands at `pointer` as an event of `tenant`; `made_id` is its id and `now` its time
    /// where it names none. All that is wrong is added to `faults`; `None` exactly when something was.
    pub fn read_short(
        value: &Value,
        pointer: &str,
        tenant: &Tenant,
        made_id: &str,
        now: DateTime<Utc>,
        faults: &mut ValidationErrors,
    ) -> Option<Event> {
        let Some(fields) = value.as_object() else {
            faults.add(pointer, "an event is a JSON object with `source` and `type`");
            return None;
        };
        let before = faults.0.len();
        for field in unknown_fields(fields, &FIELDS) {
            let near = did_you_mean(field, FIELDS);
            faults.add(format!("{pointer}/{}", escape(field)), format!("unknown field{near}"));
        }
        let mut structured: Map<String, Value> = fields
            .iter()
            .filter(|(name, value)| *name != "tenant_id" && !value.is_null())
            .map(|(n, v)| (n.clone(), v.clone()))
            .collect();
        structured.insert("specversion".into(), SPEC_VERSION.into());
        structured.insert(TENANT.into(), tenant.as_str().into());
        structured.entry("id").or_insert_with(|| made_id.into());
        structured.entry("time").or_insert_with(|| now.to_rfc3339_opts(SecondsFormat::Millis, true).into());
        // extensions are unknown fields here, and were told as such
        structured.retain(|name, _| FIELDS.contains(&name.as_str()) || name == "specversion" || name == TENANT);
        let event = Event::parse_of_stored_tenant(&Value::Object(structured), pointer, faults);
        event.filter(|event| event.is_small_enough(pointer, faults) && faults.0.len() == before)
    }

    /// Adds a fault where the event is larger than any may be.
    pub fn is_small_enough(&self, pointer: &str, faults: &mut ValidationErrors) -> bool {
        let bytes = self.bytes();
        if bytes > EVENT_BYTES {
            faults.add(pointer, format!("has {bytes} bytes as JSON, and an event at most {EVENT_BYTES}"));
        }
        bytes <= EVENT_BYTES
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(value: &Value) -> Result<Event, ValidationErrors> {
        let (mut faults, tenant) = (ValidationErrors::new(), Tenant::new("ann").unwrap());
        let now = DateTime::from_timestamp_millis(1_795_000_000_123).unwrap();
        let event = Event::read_short(value, "/0", &tenant, "made", now, &mut faults);
        assert_eq!(event.is_none(), !faults.is_empty());
        event.ok_or(faults)
    }

    #[test]
    fn absent_attributes_get_their_defaults() {
        assert_eq!(
            read(&json!({"source": "mail", "type": "new", "data": {"n": 1}})).unwrap().to_value(),
            json!({"specversion": "1.0", "tenantid": "ann", "id": "made", "source": "mail", "type": "new", "data": {"n": 1},
                "time": "2026-11-18T11:06:40.123Z"})
        );
        let full = json!({"tenant_id": "ann", "source": "mail", "type": "new", "id": "7", "time": "2026-01-01T00:00:00.000Z", "subject": "x", "data": null});
        assert_eq!(
            read(&full).unwrap().to_value(),
            json!({"specversion": "1.0", "tenantid": "ann", "id": "7", "source": "mail", "type": "new",
                "time": "2026-01-01T00:00:00.000Z", "subject": "x"})
        );
    }

    #[test]
    fn event_of_a_tenant_of_an_older_form_is_taken_and_read_back() {
        let (mut faults, tenant) = (ValidationErrors::new(), Tenant::stored("o\u{308}").unwrap());
        let value = json!({"source": "mail", "type": "new"});
        let event = Event::read_short(&value, "", &tenant, "made", DateTime::UNIX_EPOCH, &mut faults);
        let event = event.unwrap_or_else(|| panic!("{faults}"));
        assert_eq!(event.tenant, tenant);
        assert_eq!(Event::try_from(event.to_value()).unwrap(), event);
    }

    #[test]
    fn every_fault_has_its_place() {
        let places = |value: Value| -> Vec<String> {
            read(&value).unwrap_err().0.into_iter().map(|fault| fault.pointer).collect()
        };
        assert_eq!(places(json!([])), ["/0"]);
        assert_eq!(places(json!({"sorce": "mail", "id": 7})), ["/0/sorce", "/0/id", "/0/source", "/0/type"]);
        let large = json!({"source": "mail", "type": "new", "data": "x".repeat(EVENT_BYTES)});
        assert_eq!(places(large), ["/0"]);
    }

    #[test]
    fn event_is_taken_at_its_largest_and_refused_one_byte_beyond_it() {
        let of = |data: usize| json!({ "source": "mail", "type": "new", "data": "x".repeat(data) });
        let rest = read(&of(0)).unwrap().bytes();
        assert_eq!(read(&of(EVENT_BYTES - rest)).unwrap().bytes(), EVENT_BYTES);
        let faults = read(&of(EVENT_BYTES - rest + 1)).unwrap_err();
        assert_eq!(faults.0[0].pointer, "/0");
        assert_eq!(faults.0[0].message, "has 262145 bytes as JSON, and an event at most 262144");
    }
}
