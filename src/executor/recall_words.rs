//! Words by which facts are looked for before the first turn of a fire's run: those of what set it off, and its
//! instruction.
//!
//! Ids, instants and numbers are left out. They differ from run to run, no fact is about them, and without them runs of
//! a task that mean the same look for the same.

use serde_json::Value;

use crate::domain::memory::MESSAGE_READ;
use crate::domain::run::{Cause, Run};

/// Characters of what set a run off; the instruction has the rest of what is read.
const LONGEST_CAUSE: usize = MESSAGE_READ / 2;
/// Attributes of an event that say what it is about. The others name it and where it comes from.
const TELLING: [&str; 3] = ["type", "subject", "data"];

/// The words for a run with this instruction.
pub fn recall_words(run: &Run, instruction: &str) -> String {
    let mut words = CauseWords { text: String::new(), left: LONGEST_CAUSE };
    run.input.iter().for_each(|input| words.add(input));
    match &run.cause {
        None => {}
        Some(Cause::Event { event, events }) => {
            let all = if events.is_empty() { std::slice::from_ref(event) } else { events.as_slice() };
            for event in all {
                TELLING.iter().for_each(|attribute| words.add(&event[*attribute]));
            }
        }
        Some(Cause::Condition { expression, value, .. }) => {
            words.push(expression);
            words.add(value);
        }
    }
    words.text + instruction
}

/// Words that were found, and how many characters more may be.
struct CauseWords {
    text: String,
    left: usize,
}

impl CauseWords {
    /// Adds the texts in a value, and the names of what is none.
    fn add(&mut self, value: &Value) {
        if self.left == 0 {
            return;
        }
        match value {
            Value::String(text) => self.push(text),
            Value::Array(items) => items.iter().for_each(|item| self.add(item)),
            Value::Object(fields) => {
                for (name, field) in fields {
                    if field.is_number() || field.is_boolean() {
                        self.push(name);
                    }
                    self.add(field);
                }
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn push(&mut self, text: &str) {
        let text = text.trim();
        if text.is_empty() || is_name(text) {
            return;
        }
        let before = self.text.len();
        self.text.extend(text.chars().take(self.left));
        self.left -= self.text[before..].chars().count();
        self.text.push('\n');
    }
}

/// Whether a text is an id, an instant or another name of one thing: a single word with a digit in it.
fn is_name(text: &str) -> bool {
    !text.contains(char::is_whitespace) && text.contains(|c: char| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::domain::memory::recall::terms;

    fn run(number: u128, cause: Option<Cause>, input: Option<Value>) -> Run {
        let at = DateTime::from_timestamp(number as i64, 0).expect("an instant");
        Run { cause, input, ..Run::queued(Uuid::nil(), Uuid::from_u128(number), "ann", "s:1", "schedule", at, at) }
    }

    fn event(id: &str, data: Value) -> Value {
        json!({
            "specversion": "1.0", "id": id, "time": "2026-12-24T08:00:00Z", "source": "shop", "tenantid": "ann",
            "type": "order.created", "subject": "orders/8317", "data": data,
        })
    }

    #[test]
    fn runs_of_a_task_look_for_the_same_whichever_run_it_is_and_whenever() {
        let words = [1, 2].map(|number| recall_words(&run(number, None, None), "Say what time it is."));
        assert_eq!(words, ["Say what time it is."; 2]);
        let caused = |id: &str, order: &str| {
            let data = json!({ "order": order, "placed_at": "2026-12-24", "buyer": { "name": "Ann Lee" }, "amount": 12.5, "paid": true,
                               "note": null, "items": ["a red scarf", "018f2e5a-0000-7000-8000-000000000000"] });
            let cause = Cause::Event { event: event(id, data), events: vec![] };
            recall_words(&run(1, Some(cause), None), "Thank the buyer.")
        };
        let first = caused("1", "A-17");
        assert_eq!(first, "order.created\namount\nAnn Lee\na red scarf\npaid\nThank the buyer.");
        assert_eq!(first, caused("2", "B-18"));
    }

    #[test]
    fn cause_of_a_run_is_looked_for_beside_its_instruction_however_long_either_is() {
        let both = Cause::Event {
            event: event("2", json!("a later one")),
            events: vec![event("1", json!("a scarf")), event("2", json!("a later one"))],
        };
        let words = recall_words(&run(1, Some(both), Some(json!({ "only": "gifts" }))), "Go.");
        assert_eq!(words, "gifts\norder.created\na scarf\norder.created\na later one\nGo.");
        let condition = Cause::Condition {
            expression: "value.price < 500".into(),
            value: json!({ "price": 480 }),
            previous: json!(null),
        };
        assert_eq!(recall_words(&run(1, Some(condition), None), "Buy."), "value.price < 500\nprice\nBuy.");
        let long = json!(["é".repeat(LONGEST_CAUSE - 1), "scarf", "mittens"]);
        let words = recall_words(&run(1, None, Some(long)), &format!("{}gloves", "x ".repeat(9)));
        assert_eq!(words.lines().map(|line| line.chars().count()).collect::<Vec<_>>(), [LONGEST_CAUSE - 1, 1, 24]);
        assert!(terms(&words).contains(&"gloves".to_owned()), "{words}");
    }
}
