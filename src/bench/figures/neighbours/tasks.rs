//! The tasks of a hostile tenant, of every kind that is computed or waited for later: each as dear as it may be.

use serde_json::{Value, json};

use crate::bench::figures::neighbours::query::SlowQuery;
use crate::bench::figures::neighbours::sink::{LONG_MARK, MessageSink};

/// Sources of its events: those that fire many tasks, those whose filters compare, and those whose filters search.
pub const FLOOD: &str = "flood";
pub const COMPARED: &str = "compared";
pub const SEARCHED: &str = "searched";
/// A filter that compares each of so many numbers with each other one; a few more are refused.
const FILTER: &str = "event.data.l.all(a, event.data.l.all(b, a <= b || a >= b))";
const NUMBERS: usize = 200;
/// Part of the name of each condition that polls by a query.
pub const QUERY_NAME: &str = "slow-query";
/// The most of these: as many as a page of tasks.
const QUERIES: usize = 200;
/// Some instants of each minute of each day, written out.
const RULE: &str = "FREQ=YEARLY;BYMONTHDAY=1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,\
    30,31;BYHOUR=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23;BYMINUTE=0,1,2,3,4,5,6,7,8,9,10,11,12,13,\
    14,15,16,17,18,19,20,21,22,23,24,25,26,27,28,29,30,31,32,33,34,35,36,37,38,39,40,41,42,43,44,45,46,47,48,49,50,51,52,\
    53,54,55,56,57,58,59;BYSECOND=0,10,20,30,40,50";
/// Bytes of each row of a long list.
const WIDE: usize = 15_000;
/// How long a slow address takes to answer, to polls and to steps of runs, in seconds.
const SLOW_POLL: u64 = 8;
const SLOW_RUN: u64 = 20;
/// Bytes of Markdown in a message: nearly as many as a template may give, and more than a webhook has room for, so that
/// the room is looked for.
const MARKDOWN: usize = 250_000;
/// Lists inside each other, and columns and rows of a table.
const LEVELS: usize = 12;
const COLUMNS: usize = 50;
const ROWS: usize = 20;

/// A text that is searched, and a pattern. Their lengths together take nearly all steps that a search may have; few
/// places of the text lead to one state of a search, so that none is remembered; and the pattern is found at the text's
/// end alone.
struct LongSearch {
    bytes: usize,
    /// Letters between the first class and the last.
    letters: usize,
}

/// As many positions as a pattern may have, for events.
const OF_EVENTS: LongSearch = LongSearch { bytes: 5_000, letters: 990 };
/// As long a text as a poll may give, for conditions.
const OF_POLLS: LongSearch = LongSearch { bytes: 60_000, letters: 79 };

impl LongSearch {
    fn pattern(&self) -> String {
        format!("[a-m][a-z]{{{}}}[0-9A-F]", self.letters)
    }

    /// Letters of which the first class has nine of ten, in no order that comes again, and the end of the pattern.
    fn text(&self) -> String {
        let mut state: u32 = 1;
        let letter = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            if (state >> 16).is_multiple_of(10) { 'z' } else { 'a' }
        };
        let mut text: String = std::iter::repeat_with(letter).take(self.bytes - self.letters - 2).collect();
        let found = format!("{}A", "a".repeat(self.letters + 1));
        text.push_str(&found);
        text
    }
}

/// The data of an event whose filter compares.
pub fn compared() -> Value {
    json!({ "l": (0..NUMBERS).collect::<Vec<usize>>() })
}

/// The data of an event whose filter searches.
pub fn searched() -> Value {
    json!({ "t": OF_EVENTS.text() })
}

/// The text that a polled address gives to conditions which search.
pub fn polled_text() -> String {
    OF_POLLS.text()
}

/// The trigger of a schedule whose instants are dear to find.
pub fn dear_schedule() -> Value {
    json!({ "type": "schedule", "rrule": RULE, "start_at": "2026-01-01T00:00:00Z" })
}

/// The tasks of one tenant.
pub struct HostileTasks<'a> {
    pub sink: &'a MessageSink,
    /// The tenant's number at the sink.
    pub own: usize,
    /// How many there are of the kinds that there are most of.
    pub crowd: usize,
    pub query: &'a SlowQuery,
}

impl HostileTasks<'_> {
    /// Tasks of every kind.
    pub fn all(&self) -> Vec<Value> {
        let kinds: [Vec<Value>; 11] = [
            many(self.crowd, |_| without_output(pipeline("Flooded", on(FLOOD, "event.data.n >= 0"), one_step()))),
            many(self.part(60), |_| without_output(pipeline("Dear filter", on(COMPARED, FILTER), one_step()))),
            many(self.part(150), |number| self.searching_filter(number)),
            many(self.part(10), |number| self.searching_condition(number)),
            many(self.crowd, |_| without_output(pipeline("Dear rule", dear_schedule(), one_step()))),
            many(self.part(15), |_| dear_template()),
            many(self.part(30), |_| long_markdown()),
            many(self.part(2), |number| self.slow_condition(number)),
            many(self.part(2).min(QUERIES), |_| self.slow_query()),
            many(self.part(4), |number| self.slow_run(number)),
            many(self.part(2), |_| wide_row()),
        ];
        kinds.concat()
    }

    fn part(&self, of: usize) -> usize {
        (self.crowd / of).max(1)
    }

    /// Each searches the whole text; the first one also fires, and its run tells so.
    fn searching_filter(&self, number: usize) -> Value {
        let pattern = OF_EVENTS.pattern();
        let (filter, steps) = match number {
            0 => (format!("event.data.t.matches('{pattern}')"), self.asking_step(0, "/searched/filter")),
            _ => (format!("!event.data.t.matches('{pattern}')"), one_step()),
        };
        without_output(pipeline("Searching filter", on(SEARCHED, &filter), steps))
    }

    /// Each poll searches the whole text and fires; the run tells so.
    fn searching_condition(&self, number: usize) -> Value {
        let poll = json!({ "http": { "url": self.sink.url(self.own, number, "/text/long") } });
        let expression = format!("value.text.matches('{}')", OF_POLLS.pattern());
        let trigger = json!({ "type": "condition", "poll": poll, "interval": "2s", "expression": expression,
                              "fire": "every_time" });
        let steps = self.asking_step(number, "/searched/condition");
        without_output(pipeline("Searching condition", trigger, steps))
    }

    fn slow_condition(&self, number: usize) -> Value {
        let http = json!({ "http": { "url": self.sink.url(self.own, number, &format!("/poll/{SLOW_POLL}")) } });
        let trigger = json!({ "type": "condition", "poll": http, "interval": "1s", "expression": "value.price < 0" });
        without_output(pipeline("Slow condition", trigger, one_step()))
    }

    fn slow_query(&self) -> Value {
        without_output(pipeline(QUERY_NAME, self.query.trigger(), one_step()))
    }

    fn slow_run(&self, number: usize) -> Value {
        let steps = self.asking_step(number, &format!("/wait/{SLOW_RUN}"));
        without_output(pipeline("Slow run", interval("5s"), steps))
    }

    /// A step that asks one of the tenant's addresses.
    fn asking_step(&self, host: usize, path: &str) -> Value {
        let args = json!({ "url": self.sink.url(self.own, host, path) });
        json!({ "steps": [{ "name": "ask", "tool": { "name": "http_request", "args": args } }] })
    }
}

fn many(count: usize, task: impl Fn(usize) -> Value) -> Vec<Value> {
    (0..count).map(task).collect()
}

fn pipeline(name: &str, trigger: Value, config: Value) -> Value {
    json!({ "name": name, "trigger": trigger, "executor": "pipeline", "action": { "config": config } })
}

/// Tells nobody of its runs.
fn without_output(mut task: Value) -> Value {
    task["output"] = Value::Null;
    task
}

fn one_step() -> Value {
    json!({ "steps": [{ "name": "one", "map": "1 + 1" }] })
}

/// A step whose value is a list of so many numbers.
fn listing_step(numbers: usize) -> Value {
    let numbers: Vec<String> = (0..numbers).map(|number| number.to_string()).collect();
    json!([{ "name": "list", "map": format!("[{}]", numbers.join(", ")) }])
}

fn interval(length: &str) -> Value {
    json!({ "type": "schedule", "interval": length })
}

fn on(source: &str, filter: &str) -> Value {
    json!({ "type": "event", "source": source, "filter": filter })
}

fn dear_template() -> Value {
    let template =
        "{% for a in steps.list %}{% for b in steps.list %}{% if a > b %}.{% endif %}{% endfor %}{% endfor %}";
    pipeline("Dear template", interval("1s"), json!({ "steps": listing_step(40), "output": template }))
}

fn long_markdown() -> Value {
    let (part, count) = markdown();
    let config = json!({ "steps": listing_step(count), "output": repeated(&part) });
    pipeline("Long Markdown", interval("2s"), config)
}

/// A template that gives this part for each number of the list.
fn repeated(part: &str) -> String {
    format!("{{% for number in steps.list %}}{part}{{% endfor %}}")
}

/// Lists inside each other and a table, and how often that fits in a message.
fn markdown() -> (String, usize) {
    let item = |level: usize| format!("{}- **a** _b_ `c` [d](https://e.example)\n", "  ".repeat(level));
    let row = |cell: &str| format!("|{}\n", format!("{cell}|").repeat(COLUMNS));
    let list: String = (0..LEVELS).map(item).collect();
    let table = format!("{}{}{}", row("h"), row("-"), row("c").repeat(ROWS));
    let part = format!("# {LONG_MARK}\n\n{list}\n{table}\n");
    let count = MARKDOWN / part.len();
    (part, count)
}

fn wide_row() -> Value {
    let mut task = without_output(pipeline("Wide row", interval("24h"), one_step()));
    task["metadata"] = json!({ "text": "x".repeat(WIDE) });
    task
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::expr::{Language, MOST_STEPS, Variables};
    use crate::base::template::{OUTPUT_BYTES, TemplateNames, TextTemplates, Values};

    /// The share of the steps that may be, of an expression that is admitted, and whether it holds.
    fn cost(expression: &str, name: &'static str, value: &Value) -> (f64, bool) {
        let read = Language::default().read(expression, &[name]).unwrap();
        let variables = Variables::new().with(name, value);
        (read.cost(&variables) as f64 / MOST_STEPS as f64, read.is_true(&variables).unwrap())
    }

    #[test]
    fn searches_are_as_dear_as_they_may_be_and_find_the_end_of_the_text() {
        let (event, value) = (json!({ "data": searched() }), json!({ "text": polled_text() }));
        for (expression, name, value) in [
            (format!("event.data.t.matches('{}')", OF_EVENTS.pattern()), "event", event),
            (format!("value.text.matches('{}')", OF_POLLS.pattern()), "value", value),
        ] {
            let (share, holds) = cost(&expression, name, &value);
            assert!((0.95..=1.0).contains(&share) && holds, "{expression}: {share}");
        }
        let cut = json!({ "data": { "t": OF_EVENTS.text().trim_end_matches('A') } });
        assert!(!cost(&format!("event.data.t.matches('{}')", OF_EVENTS.pattern()), "event", &cut).1);
    }

    #[test]
    fn comparisons_are_as_dear_as_they_may_be() {
        let (share, holds) = cost(FILTER, "event", &json!({ "data": compared() }));
        assert!((0.8..=1.0).contains(&share) && holds, "{share}");
    }

    #[test]
    fn markdown_is_as_long_as_a_template_may_give_it() {
        let (part, count) = markdown();
        let names = TemplateNames { variables: &["steps"], steps: &["list".to_owned()] };
        let template = TextTemplates::default().read(&repeated(&part), names).unwrap();
        let mut values = Values::default();
        values.set("steps", &json!({ "list": (0..count).collect::<Vec<usize>>() }));
        let text = template.text(&values).unwrap();
        assert!((OUTPUT_BYTES * 9 / 10..=OUTPUT_BYTES).contains(&text.len()), "{}", text.len());
        assert!(text.contains(LONG_MARK));
    }
}
