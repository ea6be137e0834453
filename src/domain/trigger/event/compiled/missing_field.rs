//! A field that an expression of an event trigger looks for in vain: in an event that has come, or in all of those that
//! a new trigger is held against.

use std::sync::Arc;

use crate::base::expr::{Expression, MissingField, Variables};
use crate::domain::trigger::event::arrival::Arrival;
use crate::domain::trigger::event::compiled::CompiledEventTrigger;

/// Steps in which all expressions of a trigger are evaluated over the events that it is held against.
const HELD_STEPS: u64 = 10_000_000;

/// A field that an expression of a trigger looked for in an event that does not have it.
#[derive(Debug, Clone)]
pub struct MissedEventField {
    /// The expression that looked for it.
    pub(super) expression: Expression,
    /// Name of the field.
    pub(super) name: String,
}

impl CompiledEventTrigger {
    /// The missing field with its place.
    pub fn missing_field(&self, missed: &MissedEventField, arrival: &Arrival) -> MissingField {
        missed.expression.missing(&missed.name, &self.variables(arrival))
    }

    /// A field that an expression looks for in one of these events and that none of them has: `filter` in those that
    /// meet all else, keys in those that it lets through. `None` as well where evaluating all of it could take more
    /// than 10,000,000 steps.
    pub fn missing_in_all(&self, arrivals: &[Arrival]) -> Option<MissingField> {
        let fitting = arrivals.iter().filter(|arrival| self.fits(arrival));
        let mut samples: Vec<Variables> = fitting.map(|arrival| self.variables(arrival)).collect();
        if self.steps_over(&samples) > HELD_STEPS {
            return None;
        }
        if let Some(filter) = &self.filter {
            let filter = self.expression(filter).ok()?;
            if let Some(missing) = filter.missing_in_all(&samples) {
                return Some(missing);
            }
            samples.retain(|sample| filter.is_true(sample) == Ok(true));
        }
        self.keys().find_map(|key| self.expression(key).ok()?.missing_in_all(&samples))
    }

    /// The steps that it takes at most to evaluate each expression over each sample.
    fn steps_over(&self, samples: &[Variables]) -> u64 {
        let expressions = self.filter.iter().chain(self.keys()).filter_map(|text| self.expression(text).ok());
        let steps = expressions.map(|expression| {
            samples.iter().fold(0, |steps: u64, sample| steps.saturating_add(expression.cost(sample)))
        });
        steps.fold(0, u64::saturating_add)
    }

    /// The expressions of its rules' keys.
    pub(super) fn keys(&self) -> impl Iterator<Item = &Arc<str>> {
        let dedup = self.dedup.iter().map(|(key, _)| key);
        let throttle = self.throttle.iter().filter_map(|(key, ..)| key.as_ref());
        let window = self.window.iter().filter_map(|(key, _)| key.as_ref());
        dedup.chain(throttle).chain(window)
    }

    /// The event and the task for its expressions.
    pub(super) fn variables(&self, arrival: &Arrival) -> Variables {
        arrival.read().variables().and(&self.task_variables())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};
    use uuid::Uuid;

    use super::*;
    use crate::base::expr::Language;
    use crate::domain::event::Event;

    fn compiled(trigger: Value) -> CompiledEventTrigger {
        let trigger = serde_json::from_value(trigger).unwrap();
        let metadata = Map::from_iter([("least".to_owned(), json!(50))]);
        let task = (Uuid::from_u128(1), "a task", &metadata);
        CompiledEventTrigger::compile(&trigger, task, &Language::default()).unwrap()
    }

    fn arrival(data: &Value) -> Arrival {
        let event = json!({ "specversion": "1.0", "id": "1", "source": "shop", "type": "order", "tenantid": "ann",
            "data": data });
        Arrival::new(Event::try_from(event).unwrap())
    }

    fn missing(trigger: Value, data: &[Value]) -> Option<String> {
        let arrivals: Vec<Arrival> = data.iter().map(arrival).collect();
        compiled(trigger).missing_in_all(&arrivals).map(|missing| missing.field)
    }

    #[test]
    fn filter_is_held_against_those_events_that_meet_all_else() {
        let slip = "event.data.amuont > task.metadata.least";
        let orders = [json!({ "amount": 120 }), json!({ "amount": 30, "vip": true })];
        let found = missing(json!({ "source": "shop", "filter": slip }), &orders);
        assert_eq!(found.as_deref(), Some("event.data.amuont"));
        assert_eq!(missing(json!({ "source": "shop", "filter": "event.data.vip" }), &orders), None);
        assert_eq!(missing(json!({ "source": "shop" }), &orders), None);
        assert_eq!(missing(json!({ "source": "mail", "filter": slip }), &orders), None);
        assert_eq!(missing(json!({ "event_type": "new", "filter": slip }), &orders), None);
        assert_eq!(missing(json!({ "filters": { "amount": 7 }, "filter": slip }), &orders), None);
    }

    #[test]
    fn keys_are_held_against_those_events_that_the_filter_lets_through() {
        let orders = [json!({ "amount": 120 }), json!({ "amount": 30, "vpi": true })];
        let key = "event.data.vpi";
        let rules = [
            ("dedup", json!({ "key": key, "window": "1h" })),
            ("throttle", json!({ "limit": 3, "per": "1m", "key": key })),
            ("debounce", json!({ "quiet": "30s", "key": key })),
            ("batch", json!({ "size": 2, "wait": "30s", "key": key })),
        ];
        for (name, rule) in rules {
            let found = |filter: &str| missing(json!({ "source": "shop", "filter": filter, name: rule }), &orders);
            assert_eq!(found("event.data.amount > 100").as_deref(), Some(key), "{name}");
            assert_eq!(found("event.data.amount > 10"), None, "{name}: one of them has it");
            assert_eq!(found("event.data.amount > 500"), None, "{name}: none of them is let through");
        }
    }

    #[test]
    fn trigger_is_held_against_events_up_to_its_steps_and_not_beyond_them() {
        let filter = "event.data.l.all(a, event.data.l.all(b, a != b)) || event.data.totl > 5";
        let costly = compiled(json!({ "source": "shop", "filter": filter }));
        let events = |length: usize| [(); 2].map(|()| arrival(&json!({ "l": vec![0; length] })));
        let steps = |length: usize| {
            let samples = events(length).map(|arrival| costly.variables(&arrival));
            costly.steps_over(&samples)
        };
        let most = (1..).find(|length| steps(length + 1) > HELD_STEPS).unwrap();
        assert!((10..200).contains(&most), "{most}");
        let field = |length: usize| costly.missing_in_all(&events(length)).map(|missing| missing.field);
        assert_eq!(field(most).as_deref(), Some("event.data.totl"));
        assert_eq!(field(most + 1), None);
    }
}
