//! How many steps it takes at most to judge an event by a trigger, known before it is judged: so what is cheap needs no
//! thread of its own.

use crate::base::compute::{steps_to_parse, steps_to_read_text};
use crate::domain::trigger::event::arrival::Arrival;
use crate::domain::trigger::event::compiled::CompiledEventTrigger;
use crate::domain::trigger::event::form::FILTER_BYTES;

/// Steps of a judgement without filters and expressions, and of what is kept of it.
const PLAIN: u64 = 2_000;

impl CompiledEventTrigger {
    /// The steps that it takes at most to judge this event, its reading not counted. Expressions count as if they had to
    /// be compiled first. More steps than `most` are not told apart: then nothing is compiled to count them.
    pub fn judging_steps(&self, arrival: &Arrival, most: u64) -> u64 {
        let expressions = || self.filter.iter().chain(self.keys());
        let of_filter = steps_to_parse(arrival.event.bytes() + FILTER_BYTES);
        let filters = of_filter.saturating_mul(self.filters.len() as u64);
        // read, and converted for expressions
        let task = self.task.as_deref().map_or(0, |task| steps_to_parse(2 * task.len()));
        let compiled = expressions().map(|text| steps_to_read_text(text)).fold(0, u64::saturating_add);
        let before = [PLAIN, filters, task, compiled].into_iter().fold(0, u64::saturating_add);
        if before > most || expressions().next().is_none() {
            return before;
        }
        let variables = self.variables(arrival);
        // one that can't be compiled any more takes no step beyond that
        let evaluated = expressions().filter_map(|text| self.expression(text).ok());
        evaluated.map(|expression| expression.cost(&variables)).fold(before, u64::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};
    use uuid::Uuid;

    use super::*;
    use crate::base::compute::IN_PLACE;
    use crate::base::expr::Language;
    use crate::domain::event::Event;

    /// The steps to judge an event with this data by this trigger.
    fn steps(trigger: Value, data: Value) -> u64 {
        let trigger = serde_json::from_value(trigger).unwrap();
        let metadata = Map::from_iter([("text".to_owned(), "x".repeat(10_000).into())]);
        let task = (Uuid::from_u128(1), "a task", &metadata);
        let compiled = CompiledEventTrigger::compile(&trigger, task, &Language::default()).unwrap();
        let event = json!({ "specversion": "1.0", "id": "1", "source": "shop", "type": "order", "tenantid": "ann",
            "data": data });
        compiled.judging_steps(&Arrival::new(Event::try_from(event).unwrap()), IN_PLACE)
    }

    #[test]
    fn plain_trigger_takes_few_steps_whatever_the_data() {
        for data in [json!({}), json!({ "l": vec![0; 10_000] })] {
            assert_eq!(steps(json!({ "source": "shop" }), data), PLAIN);
        }
    }

    #[test]
    fn short_expression_over_few_values_may_be_judged_in_place() {
        let filter =
            json!({ "filter": "event.data.amount > 100", "dedup": { "key": "event.data.id", "window": "1h" } });
        let found = steps(filter, json!({ "amount": 120, "id": 7 }));
        assert!(found > PLAIN && found <= IN_PLACE, "{found}");
    }

    #[test]
    fn steps_grow_with_the_values_that_are_evaluated_over() {
        let filter = json!({ "filter": "event.data.l.all(a, event.data.l.all(b, a <= b || a >= b))" });
        let of = |numbers: usize| steps(filter.clone(), json!({ "l": (0..numbers).collect::<Vec<usize>>() }));
        assert!(of(2) <= IN_PLACE && of(200) > IN_PLACE, "{} and {}", of(2), of(200));
    }

    #[test]
    fn long_expressions_patterns_and_long_tasks_may_not_be_judged_in_place() {
        let long = format!("event.data.name == '{}'", "x".repeat(500));
        assert!(steps(json!({ "filter": long }), json!({})) > IN_PLACE);
        assert_eq!(steps(json!({ "filter": "event.data.t.matches('a')" }), json!({})), u64::MAX);
        let of_task = steps(json!({ "filter": "event.data.amount > 1 && task.name != ''" }), json!({ "amount": 2 }));
        assert!(of_task > IN_PLACE, "{of_task}: its metadata are read");
    }

    #[test]
    fn each_filter_takes_steps_for_the_bytes_of_the_event() {
        let filters = json!({ "filters": { "from": "ann", "to": "bob" } });
        let of = |bytes: usize| steps(filters.clone(), json!({ "from": "x".repeat(bytes) }));
        let each = |bytes: usize| of(bytes) - PLAIN;
        assert!(each(10) > 0 && each(10_000) > 2 * each(10), "{} and {}", each(10), each(10_000));
    }
}
