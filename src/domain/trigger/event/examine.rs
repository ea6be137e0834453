//! Why an event fires a task or does not: each part of the trigger, whether it holds, and what was found.
//!
//! For people who ask about one event. Events are judged as they come by
//! [`CompiledEventTrigger`](super::CompiledEventTrigger).

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::base::expr::{Language, MOST_STEPS, Variables};
use crate::domain::event::Data;
use crate::domain::trigger::event::compiled::{equals_or_contains, path};
use crate::domain::trigger::event::{Arrival, EventTrigger, Pattern, VARIABLES};
use crate::domain::trigger::interval::parse_length;

/// Parts of an expression that are told, and characters of what is found.
const TOLD: usize = 10;
const CHARACTERS: usize = 120;

/// One part of a trigger, beside an event.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ExaminedPart {
    /// `source`, `event_type`, `filters/<key>`, `filter`, `max_age`.
    #[schema(example = "filters/from")]
    pub part: String,
    /// The event meets the part.
    pub matched: bool,
    /// The trigger's demand, and the finding.
    pub detail: String,
}

/// Effort of an examination: the steps that it may still take, and whether the parts of an expression's text are told.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Steps that it may still take.
    pub steps: u64,
    /// The truth of each part is told.
    pub with_parts: bool,
}

/// Steps in which the text of a filter is read.
const READ_STEPS: u64 = 20_000;

impl Effort {
    /// Takes so many steps off; `false` where fewer are left.
    fn spend(&mut self, steps: u64) -> bool {
        let left = self.steps.checked_sub(steps);
        self.steps = left.unwrap_or(self.steps);
        left.is_some()
    }
}

/// All parts of a trigger beside an event, in the order in which they are asked. A filter that would take more than the
/// rest of `effort` is not evaluated, and its part says so.
pub fn examine(
    trigger: &EventTrigger,
    task: (Uuid, &str, &Map<String, Value>),
    arrival: &Arrival,
    now: DateTime<Utc>,
    effort: &mut Effort,
) -> Vec<ExaminedPart> {
    let read = arrival.read();
    let event = &read.event;
    let mut parts = Vec::new();
    for (part, wanted, is) in
        [("source", &trigger.source, &event.source), ("event_type", &trigger.event_type, &event.kind)]
    {
        let asked = wanted.as_deref().unwrap_or("*");
        let holds = Pattern::new(wanted.as_deref()).matches(is);
        parts.push(ExaminedPart::new(part, holds, format!("wants `{}`, is `{}`", cut(asked), cut(is))));
    }
    for (key, wanted) in &trigger.filters {
        let data = match &event.data {
            Data::Json(data) => Some(data),
            _ => None,
        };
        let found = data.and_then(|data| path(key).iter().try_fold(data, |value, key| value.get(key)));
        let holds = found.is_some_and(|found| equals_or_contains(found, wanted));
        let is = found.map_or("is not there".into(), |found| format!("is {}", cut(&found.to_string())));
        let explanation = format!("wants {}, {is}", cut(&wanted.to_string()));
        parts.push(ExaminedPart::new(format!("filters/{}", cut(key)), holds, explanation));
    }
    if let Some(filter) = &trigger.filter {
        parts.push(of_filter(filter, task, arrival, effort));
    }
    if let (Some(age), Some(time)) = (&trigger.max_age, event.time) {
        let holds = parse_length(age).is_ok_and(|most| time >= now - most);
        parts.push(ExaminedPart::new("max_age", holds, format!("wants {age} at most, happened at {time}")));
    }
    parts
}

impl ExaminedPart {
    fn new(part: impl Into<String>, matched: bool, detail: String) -> ExaminedPart {
        ExaminedPart { part: part.into(), matched, detail }
    }
}

fn of_filter(
    filter: &str,
    (id, name, metadata): (Uuid, &str, &Map<String, Value>),
    arrival: &Arrival,
    effort: &mut Effort,
) -> ExaminedPart {
    let too_much = || ExaminedPart::new("filter", false, format!("`{}` is not evaluated: too much work", cut(filter)));
    if !effort.spend(READ_STEPS) {
        return too_much();
    }
    let expression = match Language::default().read(filter, VARIABLES) {
        Ok(expression) => expression,
        Err(fault) => return ExaminedPart::new("filter", false, format!("can't be read: {fault}")),
    };
    let task = json!({ "id": id, "name": name, "metadata": metadata });
    let variables: Variables = arrival.read().variables().and(&Variables::new().with("task", &task));
    if !effort.spend(expression.cost(&variables).min(MOST_STEPS)) {
        return too_much();
    }
    let held = expression.is_true(&variables);
    let mut explanation = match &held {
        Ok(holds) => format!("`{}` is {holds}", cut(filter)),
        Err(error) => format!("`{}`: {error}", cut(filter)),
    };
    if effort.with_parts && held != Ok(true) {
        for part in expression.parts(&variables).into_iter().skip(1).take(TOLD) {
            let value = match part.value {
                Ok(value) => format!("is {}", cut(&value.to_string())),
                Err(error) => cut(&error),
            };
            explanation.push_str(&format!("; `{}` {value}", cut(&part.text)));
        }
    }
    ExaminedPart::new("filter", held == Ok(true), explanation)
}

/// A text of a length that a sentence bears.
fn cut(text: &str) -> String {
    match text.char_indices().nth(CHARACTERS) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::event::Event;

    #[test]
    fn every_part_says_what_it_wants_and_what_it_found() {
        let trigger: EventTrigger = serde_json::from_value(json!({
            "source": "shop", "event_type": "order.*", "filters": {"from": "amazon", "order.id": 8, "no": 1},
            "filter": "event.data.amount > 100 && event.source == 'shop'", "max_age": "1h",
        }))
        .unwrap();
        let event = json!({ "specversion": "1.0", "id": "1", "source": "shop", "type": "refund", "tenantid": "ann",
            "time": "2027-03-01T06:00:00Z", "data": {"from": "ship@Amazon.com", "order": {"id": 7}, "amount": 50} });
        let arrival = Arrival::new(Event::try_from(event).unwrap());
        let now = "2027-03-01T08:00:00Z".parse().unwrap();
        let mut effort = Effort { steps: MOST_STEPS, with_parts: true };
        let parts = examine(&trigger, (Uuid::nil(), "t", &Map::new()), &arrival, now, &mut effort);
        let told: Vec<(String, bool, String)> =
            parts.into_iter().map(|part| (part.part, part.matched, part.detail)).collect();
        let expected = [
            ("source", true, "wants `shop`, is `shop`"),
            ("event_type", false, "wants `order.*`, is `refund`"),
            ("filters/from", true, "wants \"amazon\", is \"ship@Amazon.com\""),
            ("filters/no", false, "wants 1, is not there"),
            ("filters/order.id", false, "wants 8, is 7"),
        ];
        for (told, (part, holds, found)) in told.iter().zip(expected) {
            assert_eq!((told.0.as_str(), told.1, told.2.as_str()), (part, holds, found));
        }
        let (filter, age) = (&told[5], &told[6]);
        assert!(filter.2.starts_with("`event.data.amount > 100 && event.source == 'shop'` is false; "), "{filter:?}");
        assert!(filter.2.contains("`event.data.amount` is 50") && !filter.1, "{filter:?}");
        assert_eq!((age.0.as_str(), age.1), ("max_age", false));
    }

    #[test]
    fn filter_beyond_the_effort_is_not_evaluated() {
        let trigger: EventTrigger = serde_json::from_value(json!({ "filter": "event.data.amount > 100" })).unwrap();
        let event = json!({ "specversion": "1.0", "id": "1", "source": "shop", "type": "refund", "tenantid": "ann",
            "data": {"amount": 50} });
        let arrival = Arrival::new(Event::try_from(event).unwrap());
        let now = "2027-03-01T08:00:00Z".parse().unwrap();
        let found = |effort: &mut Effort| {
            examine(&trigger, (Uuid::nil(), "t", &Map::new()), &arrival, now, effort).pop().unwrap().detail
        };
        let mut effort = Effort { steps: MOST_STEPS, with_parts: false };
        assert_eq!(found(&mut effort), "`event.data.amount > 100` is false");
        let took = MOST_STEPS - effort.steps;
        assert_eq!(found(&mut Effort { steps: took, with_parts: false }), "`event.data.amount > 100` is false");
        for steps in [took - 1, READ_STEPS - 1, 0] {
            let mut effort = Effort { steps, with_parts: false };
            assert_eq!(found(&mut effort), "`event.data.amount > 100` is not evaluated: too much work");
        }
    }
}
