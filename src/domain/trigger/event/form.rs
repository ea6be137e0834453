//! Reading an event trigger from JSON: every fault in one answer, each with its place and what would be right.

use serde_json::{Map, Value};

use crate::base::expr::Language;
use crate::base::invalid::{ValidationErrors, escape};
use crate::domain::event::impossible_member;
use crate::domain::trigger::event::{
    BatchOptions, Debounce, Dedup, EventTrigger, TASK_MEMBERS, Throttle, VARIABLES, WINDOW_EVENTS,
};
use crate::domain::trigger::form::{TriggerForm, kind};
use crate::domain::trigger::interval::parse_length;
use crate::domain::trigger::policy::Overlap;

/// Longest `source` and `event_type`, in characters.
const PATTERN_LENGTH: usize = crate::domain::event::ATTRIBUTE_LENGTH;
/// Most filters.
const FILTERS: usize = 20;
/// Longest name of a filter, and longest text that one looks for, in bytes: each instance keeps them in memory.
pub(super) const FILTER_BYTES: usize = 1_024;
/// Most fires that a throttle may let through.
const THROTTLE: std::ops::RangeInclusive<u64> = 1..=1_000_000;

/// Reads the fields of an event trigger that stands at `pointer`. `None` exactly when a fault was added.
pub fn read(fields: &Map<String, Value>, pointer: &str, faults: &mut ValidationErrors) -> Option<EventTrigger> {
    let known = faults.0.len();
    let mut form = TriggerForm::new(fields, pointer, faults);
    form.given("type");
    let (source, event_type) = (pattern(&mut form, "source"), pattern(&mut form, "event_type"));
    if source.is_none() && event_type.is_none() && form.given("source").or(form.given("event_type")).is_none() {
        form.faults.add(pointer, "an event trigger needs a `source`, an `event_type`, or both; `*` is any");
    }
    let trigger = EventTrigger {
        source,
        event_type,
        filters: filters(&mut form),
        filter: expression(&mut form, "filter"),
        debounce: part(&mut form, "debounce", "quiet", debounce),
        batch: part(&mut form, "batch", "", batch),
        throttle: part(&mut form, "throttle", "", throttle),
        dedup: part(&mut form, "dedup", "", dedup),
        max_age: length(&mut form, "max_age"),
        buffer_while_paused: form.flag("buffer_while_paused"),
        overlap: form.word_or("overlap", Overlap::parse, &Overlap::WORDS, Overlap::Allow),
        overlap_counts_waiting: form.flag("overlap_counts_waiting"),
    };
    form.refuse_unknown();
    if trigger.debounce.is_some() && trigger.batch.is_some() {
        form.fault("batch", "can't stand beside `debounce`; a window has one of them");
    }
    (faults.0.len() == known).then_some(trigger)
}

/// A text that is exact, or ends in `*`.
fn pattern(form: &mut TriggerForm, name: &'static str) -> Option<String> {
    let text = form.text(name)?;
    let star = text.find('*');
    if text.is_empty() {
        form.fault(name, "must not be empty; leave it out, or write `*`, for any");
    } else if text.chars().count() > PATTERN_LENGTH {
        form.fault(name, format!("must be at most {PATTERN_LENGTH} characters"));
    } else if star.is_some_and(|at| at + 1 != text.len()) {
        form.fault(name, "may have one `*`, and only at its end");
    } else {
        return Some(text);
    }
    None
}

fn filters(form: &mut TriggerForm) -> Map<String, Value> {
    match form.given("filters") {
        None => Map::new(),
        Some(Value::Object(filters)) if filters.len() > FILTERS => {
            form.fault("filters", format!("must be at most {FILTERS}; `filter` is an expression that can say more"));
            Map::new()
        }
        Some(Value::Object(filters)) => {
            let filters = filters.clone();
            for (key, value) in &filters {
                if matches!(value, Value::Object(_) | Value::Array(_)) {
                    let message = "must be a text, a number, true, false or null; for more there is `filter`";
                    form.fault(&format!("filters/{}", escape(key)), message);
                }
                if is_long_filter(key, value) {
                    let message = format!("must have at most {FILTER_BYTES} bytes, and so must its name");
                    form.fault(&format!("filters/{}", escape(key)), message);
                }
                if key.split('.').any(str::is_empty) {
                    form.fault(
                        &format!("filters/{}", escape(key)),
                        "must name a key of the data, such as `from` or `order.id`",
                    );
                }
            }
            filters
        }
        Some(other) => {
            let message = format!("must be an object, such as {{\"from\": \"amazon\"}}, not {}", kind(other));
            form.fault("filters", message);
            Map::new()
        }
    }
}

/// Whether a filter has a longer name, or looks for a longer text, than it may.
pub(super) fn is_long_filter(key: &str, value: &Value) -> bool {
    key.len().max(value.as_str().map_or(0, str::len)) > FILTER_BYTES
}

/// A CEL expression over what event triggers know.
fn expression(form: &mut TriggerForm, name: &'static str) -> Option<String> {
    let text = form.text(name)?;
    match Language::default().read(&text, VARIABLES) {
        Ok(expression) => match impossible_member(&expression).or(expression.unknown_member("task", TASK_MEMBERS)) {
            None => Some(text),
            Some(why) => {
                form.fault(name, why);
                None
            }
        },
        Err(fault) => {
            form.fault(name, fault.to_string());
            None
        }
    }
}

fn length(form: &mut TriggerForm, name: &'static str) -> Option<String> {
    let text = form.text(name)?;
    match parse_length(&text) {
        Ok(_) => Some(text),
        Err(why) => {
            form.fault(name, why);
            None
        }
    }
}

/// An option that is an object, or (where `short` names a field) that field alone.
fn part<T>(
    form: &mut TriggerForm,
    name: &'static str,
    short: &str,
    read: impl Fn(&mut TriggerForm) -> Option<T>,
) -> Option<T> {
    let alone;
    let fields = match form.given(name)? {
        Value::Object(fields) => fields,
        Value::String(text) if !short.is_empty() => {
            alone = Map::from_iter([(short.to_owned(), Value::from(text.as_str()))]);
            &alone
        }
        other => {
            let (nothing, mut faults) = (Map::new(), ValidationErrors::new());
            let mut empty = TriggerForm::new(&nothing, "", &mut faults);
            read(&mut empty);
            let message = format!("must be an object with `{}`, not {}", empty.known().join("`, `"), kind(other));
            form.fault(name, message);
            return None;
        }
    };
    let pointer = format!("{}/{name}", form.pointer);
    let mut inner = TriggerForm::new(fields, &pointer, form.faults);
    let part = read(&mut inner);
    inner.refuse_unknown();
    part
}

fn needed<T>(
    form: &mut TriggerForm,
    name: &'static str,
    read: impl Fn(&mut TriggerForm, &'static str) -> Option<T>,
) -> Option<T> {
    if form.given(name).is_none() {
        form.fault(name, "is missing");
        return None;
    }
    read(form, name)
}

fn number(form: &mut TriggerForm, name: &'static str, range: std::ops::RangeInclusive<u64>) -> Option<u64> {
    let number = form.given(name).and_then(Value::as_u64).filter(|number| range.contains(number));
    if number.is_none() {
        form.fault(name, format!("must be a whole number from {} to {}", range.start(), range.end()));
    }
    number
}

fn debounce(form: &mut TriggerForm) -> Option<Debounce> {
    let quiet = needed(form, "quiet", length);
    let (max_wait, key) = (length(form, "max_wait"), expression(form, "key"));
    let quiet = quiet?;
    if let (Ok(quiet), Some(Ok(most))) = (parse_length(&quiet), max_wait.as_deref().map(parse_length))
        && most < quiet
    {
        form.fault("max_wait", "must not be shorter than `quiet`");
    }
    Some(Debounce { quiet, max_wait, key })
}

fn batch(form: &mut TriggerForm) -> Option<BatchOptions> {
    let size = needed(form, "size", |form, name| number(form, name, 2..=WINDOW_EVENTS));
    let wait = needed(form, "wait", length);
    let key = expression(form, "key");
    Some(BatchOptions { size: size?, wait: wait?, key })
}

fn throttle(form: &mut TriggerForm) -> Option<Throttle> {
    let limit = needed(form, "limit", |form, name| number(form, name, THROTTLE));
    let per = needed(form, "per", length);
    let key = expression(form, "key");
    Some(Throttle { limit: limit?, per: per?, key })
}

fn dedup(form: &mut TriggerForm) -> Option<Dedup> {
    let key = needed(form, "key", expression);
    let window = needed(form, "window", length);
    Some(Dedup { key: key?, window: window? })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(trigger: Value) -> Vec<(String, String)> {
        let mut faults = ValidationErrors::new();
        let read = read(trigger.as_object().unwrap(), "/trigger", &mut faults);
        assert_eq!(read.is_none(), !faults.is_empty());
        faults.0.into_iter().map(|fault| (fault.pointer, fault.message)).collect()
    }

    #[test]
    fn written_event_trigger_is_given_back() {
        let written = json!({
            "source": "shop", "event_type": "order.*", "filters": {"from": "amazon", "order.paid": true},
            "filter": "event.data.amount > 100", "debounce": {"quiet": "30s", "max_wait": "5m", "key": "event.data.id"},
            "throttle": {"limit": 5, "per": "1m"}, "dedup": {"key": "event.data.id", "window": "P1D"}, "max_age": "1h",
            "buffer_while_paused": true, "overlap": "queue_all",
        });
        let mut faults = ValidationErrors::new();
        let read = read(written.as_object().unwrap(), "/trigger", &mut faults).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), written);
        let mut faults = ValidationErrors::new();
        let short = json!({"type": "event", "source": "email", "debounce": "30s"});
        let short = super::read(short.as_object().unwrap(), "/trigger", &mut faults).unwrap();
        assert_eq!((short.overlap, short.debounce.unwrap().quiet.as_str()), (Overlap::Allow, "30s"));
    }

    #[test]
    fn filters_have_names_and_texts_up_to_their_bytes_and_none_beyond_them() {
        let filtered = |name: usize, text: usize| {
            let filters = Map::from_iter([("n".repeat(name), json!("x".repeat(text)))]);
            faults(json!({ "type": "event", "source": "shop", "filters": filters }))
        };
        assert_eq!(filtered(FILTER_BYTES, FILTER_BYTES), []);
        for (name, text) in [(FILTER_BYTES + 1, 1), (1, FILTER_BYTES + 1)] {
            let told = filtered(name, text);
            assert!(told[0].1.starts_with("must have at most 1024 bytes"), "{told:?}");
        }
    }

    #[test]
    fn batch_is_taken_at_its_largest_and_refused_one_beyond_it() {
        let places = |size: u64| {
            let found = faults(json!({ "source": "shop", "batch": { "size": size, "wait": "1m" } }));
            found.into_iter().map(|(place, _)| place).collect::<Vec<_>>()
        };
        assert_eq!(places(WINDOW_EVENTS), [""; 0]);
        assert_eq!(places(WINDOW_EVENTS + 1), ["/trigger/batch/size"]);
    }

    #[test]
    fn every_fault_has_its_place() {
        let found = faults(json!({
            "source": "a*b", "filters": {"x": [1], "..": 1}, "filter": "evnt.data == 1", "debounce": {"quit": "3s"},
            "batch": {"size": 1, "wait": "0s"}, "throttle": 5, "dedup": {"key": "event.data.id +"}, "max_age": 5,
            "overlap": "never", "sauce": 1,
        }));
        let places: Vec<&str> = found.iter().map(|(place, _)| place.as_str()).collect();
        assert_eq!(
            places,
            [
                "/trigger/sauce",
                "/trigger/source",
                "/trigger/filters/..",
                "/trigger/filters/x",
                "/trigger/filter",
                "/trigger/debounce/quit",
                "/trigger/debounce/quiet",
                "/trigger/batch/size",
                "/trigger/batch/wait",
                "/trigger/throttle",
                "/trigger/dedup/key",
                "/trigger/dedup/window",
                "/trigger/max_age",
                "/trigger/overlap",
            ]
        );
        for (filter, why) in [
            (
                "event.dta.amount > 3",
                "an event has no `dta` with something in it; did you mean `data`? (at character 1)",
            ),
            (
                "event.data.x == 1 && event.order_id == 7",
                "an event can't have `order_id`; names of extensions are lower-case letters and digits (at character 22)",
            ),
            (
                "task.nam == 'x'",
                "there is no `task.nam`; did you mean `name`?; `task` has `id`, `name`, `metadata` (at character 1)",
            ),
        ] {
            let found = faults(json!({ "source": "shop", "filter": filter }));
            assert_eq!(found, [("/trigger/filter".to_owned(), why.to_owned())]);
        }
        assert_eq!(faults(json!({ "source": "shop", "filter": "event.region == 'eu' && event.data.a.b == 1" })), []);
        let of = |place: &str| found.iter().find(|(at, _)| at == place).unwrap().1.as_str();
        assert_eq!(
            of("/trigger/filter"),
            "unknown name `evnt`; did you mean `event`?; there are `event`, `task` (at character 1)"
        );
        assert!(of("/trigger/dedup/key").ends_with("(at character 16)"), "{}", of("/trigger/dedup/key"));
        assert_eq!(
            faults(json!({})),
            [(
                "/trigger".to_owned(),
                "an event trigger needs a `source`, an `event_type`, or both; `*` is any".to_owned()
            )]
        );
    }
}
