//! Reading a condition from JSON: every fault in one answer, each with its place and what would be right.
//!
//! Whether the polled source is there, and whether this tenant may poll it, is judged by `crate::ports::poll`.

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use serde_json::{Map, Value, json};

use crate::base::expr::Language;
use crate::base::invalid::{ValidationErrors, bounded, did_you_mean, escape, unknown_fields};
use crate::domain::credential::{Reference, SECRET_HEADERS};
use crate::domain::trigger::condition::poll::{HttpPoll, PollSpec};
use crate::domain::trigger::condition::question::VARIABLES;
use crate::domain::trigger::condition::{Condition, DEFAULT_NOTICE, FireOn, LONGEST_TIMEOUT};
use crate::domain::trigger::event::TASK_MEMBERS;
use crate::domain::trigger::form::{TriggerForm, kind};
use crate::domain::trigger::interval::parse_length;
use crate::domain::trigger::policy::Overlap;

/// Headers that a poll may carry.
const MOST_HEADERS: usize = 30;
/// Longest query, in bytes.
pub const QUERY_BYTES: usize = 16 * 1024;
/// Longest key, in bytes.
const KEY_BYTES: usize = 1024;
/// Longest text that may stand for an instant, in bytes.
const INSTANT_BYTES: usize = 100;
/// Failing polls after which the owner may be told.
const NOTICES: std::ops::RangeInclusive<u64> = 1..=1_000;
const ONE_OF_FOUR: &str = "names what is polled with one of `http`, `tool`, `sql`, `redis`";

/// Reads the fields of a condition that stands at `pointer`, as received at `now`. `None` exactly when a fault was
/// added.
pub fn read(
    fields: &Map<String, Value>,
    pointer: &str,
    now: DateTime<Utc>,
    faults: &mut ValidationErrors,
) -> Option<Condition> {
    let known = faults.0.len();
    let mut form = TriggerForm::new(fields, pointer, faults);
    form.given("type");
    let poll = form.poll();
    let interval = form.length("interval");
    if form.given("interval").is_none() {
        form.fault("interval", "is missing; write how often it is polled, such as `5m`");
    }
    let fire = form.word("fire", FireOn::parse, &FireOn::WORDS);
    let language = Language::default();
    let expression = form.expression("expression", &language);
    let watch = form.expression("watch", &language);
    let reset = form.expression("reset", &language);
    let hold_for = form.length("hold_for");
    let cooldown = form.length("cooldown");
    let timeout = form.length("timeout");
    let (start_at, end_at) = form.bounds(now);
    let failure_notice_after = form.notice();
    let overlap = form.word_or("overlap", Overlap::parse, &Overlap::WORDS, Overlap::QueueOne);
    let overlap_counts_waiting = form.flag("overlap_counts_waiting");
    form.check_combinations(fire);
    form.refuse_unknown();
    if timeout.as_deref().is_some_and(|text| parse_length(text).is_ok_and(|limit| limit > LONGEST_TIMEOUT)) {
        form.fault("timeout", format!("a poll may take {} s at most", LONGEST_TIMEOUT.num_seconds()));
    }
    if faults.0.len() > known {
        return None;
    }
    Some(Condition {
        poll: poll?,
        interval: interval?,
        expression,
        fire,
        watch,
        reset,
        hold_for,
        cooldown,
        timeout,
        failure_notice_after,
        start_at,
        end_at,
        overlap,
        overlap_counts_waiting,
    })
}

impl TriggerForm<'_> {
    /// The one of the four that is given.
    fn poll(&mut self) -> Option<PollSpec> {
        let place = format!("{}/poll", self.pointer);
        let polls = match self.given("poll") {
            None => {
                self.faults.add(place, format!("is missing; it {ONE_OF_FOUR}"));
                return None;
            }
            Some(Value::Object(polls)) => polls,
            Some(other) => {
                let message = format!("is an object that {ONE_OF_FOUR}, not {}", kind(other));
                self.faults.add(place, message);
                return None;
            }
        };
        let known = self.faults.0.len();
        for name in unknown_fields(polls, &PollSpec::FIELDS) {
            let hint = did_you_mean(name, PollSpec::FIELDS);
            self.faults
                .add(format!("{place}/{}", escape(name)), format!("unknown field `{name}`; it {ONE_OF_FOUR}{hint}"));
        }
        let given: Vec<(&String, &Value)> = polls
            .iter()
            .filter(|(name, value)| PollSpec::FIELDS.contains(&name.as_str()) && !value.is_null())
            .collect();
        match given.as_slice() {
            [] if self.faults.0.len() == known => {
                self.faults.add(place, ONE_OF_FOUR);
                None
            }
            [] => None,
            [(name, value)] => self.one_poll(&place, name, value),
            [(first, _), others @ ..] => {
                for (name, _) in others {
                    self.faults.add(
                        format!("{place}/{name}"),
                        format!("can't stand beside `{first}`; a condition polls one thing"),
                    );
                }
                None
            }
        }
    }

    fn one_poll(&mut self, place: &str, name: &str, value: &Value) -> Option<PollSpec> {
        let known = self.faults.0.len();
        let poll: PollSpec = self.faults.read(&json!({ name: value }), place)?;
        let place = &format!("{place}/{name}");
        match &poll {
            PollSpec::Http(http) => {
                self.headers(http, place);
                if let Some(Err(why)) = http.credential.as_deref().map(Reference::parse) {
                    self.faults.add(format!("{place}/credential"), why);
                }
            }
            PollSpec::Sql(sql) if sql.query.len() > QUERY_BYTES => {
                self.faults.add(format!("{place}/query"), format!("must have at most {QUERY_BYTES} bytes"));
            }
            PollSpec::Redis(redis) if redis.key.is_empty() || redis.key.len() > KEY_BYTES => {
                self.faults.add(format!("{place}/key"), format!("must have 1 to {KEY_BYTES} bytes"));
            }
            _ => {}
        }
        (self.faults.0.len() == known).then_some(poll)
    }

    fn headers(&mut self, http: &HttpPoll, place: &str) {
        if http.headers.len() > MOST_HEADERS {
            self.faults.add(format!("{place}/headers"), format!("must be at most {MOST_HEADERS}"));
        }
        for (name, value) in &http.headers {
            let at = format!("{place}/headers/{}", escape(name));
            let lower = name.to_ascii_lowercase();
            if SECRET_HEADERS.contains(&lower.as_str()) {
                self.faults.add(
                    at,
                    "holds a secret, which a task can't keep; save it as a credential and name that in `credential`",
                );
            } else if ["if-none-match", "if-modified-since", "host"].contains(&lower.as_str()) {
                self.faults.add(at, "is ours to write");
            } else if name.parse::<http::HeaderName>().is_err() || http::HeaderValue::from_str(value).is_err() {
                self.faults.add(at, "is no header with a value that it can carry");
            }
        }
    }

    fn length(&mut self, name: &'static str) -> Option<String> {
        let text = self.text(name)?;
        match parse_length(&text) {
            Ok(_) => Some(text),
            Err(why) => {
                self.fault(name, why);
                None
            }
        }
    }

    fn expression(&mut self, name: &'static str, language: &Language) -> Option<String> {
        let text = self.text(name)?;
        let read = language.read(&text, &VARIABLES).map_err(|fault| fault.to_string()).and_then(|expression| {
            let unknown = expression.unknown_member("task", TASK_MEMBERS).or(expression.unknown_member("now", &[]));
            unknown.map_or(Ok(()), Err)
        });
        match read {
            Ok(()) => Some(text),
            Err(why) => {
                self.fault(name, why);
                None
            }
        }
    }

    fn notice(&mut self) -> u32 {
        let number = match self.given("failure_notice_after") {
            None => return DEFAULT_NOTICE,
            Some(value) => value.as_u64().filter(|number| NOTICES.contains(number)),
        };
        if number.is_none() {
            let message = format!("must be a whole number from {} to {}", NOTICES.start(), NOTICES.end());
            self.fault("failure_notice_after", message);
        }
        number.map_or(DEFAULT_NOTICE, |number| number as u32)
    }

    fn instant(&mut self, name: &'static str) -> Option<DateTime<Utc>> {
        let text = self.text(name)?;
        let short = bounded(&text, INSTANT_BYTES).ok();
        let read = short.and_then(|text| DateTime::parse_from_rfc3339(text).ok()).map(|instant| instant.to_utc());
        if read.is_none() {
            self.fault(
                name,
                format!("`{text}` is no instant; write it with its offset, such as `2027-01-01T09:00:00Z`"),
            );
        }
        read
    }

    fn bounds(&mut self, now: DateTime<Utc>) -> (Option<DateTime<Utc>>, Option<DateTime<Utc>>) {
        let (start, end) = (self.instant("start_at"), self.instant("end_at"));
        // the first poll comes a few seconds after the beginning
        let begins = start.unwrap_or(now).max(now) + TimeDelta::seconds(10);
        if end.is_some_and(|end| end < begins) {
            let begins = begins.to_rfc3339_opts(SecondsFormat::Secs, true);
            self.fault("end_at", format!("leaves no time for a poll; the first comes by {begins}"));
        }
        (start, end)
    }

    fn check_combinations(&mut self, fire: FireOn) {
        if fire != FireOn::OnChange && self.given("expression").is_none() {
            self.fault("expression", "is missing; write what must be true, such as `value.price < 500`");
        }
        for (name, allowed, where_to) in [
            ("watch", fire == FireOn::OnChange, "`fire` is `on_change`"),
            ("reset", fire == FireOn::OnTrue, "`fire` is `on_true`"),
            ("hold_for", fire != FireOn::OnChange, "`fire` is `on_true` or `every_time`"),
        ] {
            if !allowed && self.given(name).is_some() {
                self.fault(name, format!("means something only where {where_to}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::base::invalid::ValidationErrors;
    use crate::domain::trigger::Trigger;

    use super::*;

    fn read_with(more: Value) -> Result<Value, Vec<(String, String)>> {
        let mut trigger = json!({
            "type": "condition", "poll": {"http": {"url": "https://example.org/price"}}, "interval": "5m",
            "expression": "value.price < 500",
        });
        for (name, value) in more.as_object().unwrap() {
            trigger[name] = value.clone();
        }
        let mut faults = ValidationErrors::new();
        let now = "2026-11-20T12:00:00Z".parse().unwrap();
        match Trigger::parse(&trigger, "/trigger", now, &mut faults) {
            Some(trigger) => Ok(serde_json::to_value(trigger).unwrap()),
            None => Err(faults.0.into_iter().map(|fault| (fault.pointer, fault.message)).collect()),
        }
    }

    fn fault(more: Value) -> (String, String) {
        let faults = read_with(more.clone()).unwrap_err();
        assert_eq!(faults.len(), 1, "{more}: {faults:?}");
        faults[0].clone()
    }

    #[test]
    fn least_that_is_said_is_stored_with_what_the_database_has_to_know() {
        assert_eq!(
            read_with(json!({})),
            Ok(json!({
                "type": "condition", "poll": {"http": {"url": "https://example.org/price"}}, "interval": "5m",
                "expression": "value.price < 500", "fire": "on_true", "failure_notice_after": 3, "overlap": "queue_one",
            }))
        );
    }

    #[test]
    fn all_that_can_be_said_reads_back() {
        let all = json!({
            "poll": {"sql": {"source": "shop", "query": "select 1"}}, "interval": "PT30S", "fire": "on_true",
            "expression": "value.scalar > 3", "reset": "value.scalar < 2", "hold_for": "10m", "cooldown": "6h",
            "timeout": "20s", "failure_notice_after": 7, "start_at": "2027-01-01T00:00:00Z",
            "end_at": "2028-01-01T00:00:00Z", "overlap": "skip", "overlap_counts_waiting": true,
        });
        let mut expected = all.clone();
        expected["type"] = json!("condition");
        assert_eq!(read_with(all), Ok(expected));
        let watched = json!({"expression": null, "fire": "on_change", "watch": "value.status"});
        assert!(read_with(watched).is_ok());
    }

    #[test]
    fn fault_names_its_place_and_what_would_be_right() {
        for (more, pointer, part) in [
            (json!({"interval": "500ms"}), "/interval", "can't read"),
            (json!({"interval": 5}), "/interval", "\"5s\""),
            (json!({"interval": null}), "/interval", "is missing"),
            (json!({"expression": "value.price <"}), "/expression", "(at character"),
            (json!({"expression": "valu.price < 5"}), "/expression", "did you mean `value`?"),
            (
                json!({"expression": "task.metdata.max < value"}),
                "/expression",
                "no `task.metdata`; did you mean `metadata`?",
            ),
            (
                json!({"reset": "now.hour > 3"}),
                "/reset",
                "there is no `now.hour`; `now` has no fields (at character 1)",
            ),
            (json!({"expression": null}), "/expression", "is missing"),
            (json!({"fire": "once"}), "/fire", "`on_true`, `every_time`, `on_change`"),
            (json!({"watch": "value"}), "/watch", "only where `fire` is `on_change`"),
            (json!({"fire": "every_time", "reset": "true"}), "/reset", "only where `fire` is `on_true`"),
            (json!({"fire": "on_change", "hold_for": "1m"}), "/hold_for", "only where"),
            (json!({"timeout": "31s"}), "/timeout", "30 s at most"),
            (json!({"failure_notice_after": 0}), "/failure_notice_after", "from 1 to 1000"),
            (json!({"end_at": "2026-11-20T11:00:00Z"}), "/end_at", "leaves no time"),
            (json!({"start_at": "tomorrow"}), "/start_at", "with its offset"),
            (json!({"cooldwn": "1h"}), "/cooldwn", "did you mean `cooldown`?"),
            (json!({"max_runs": 1}), "/max_runs", "a field of the task"),
            (json!({"poll": null}), "/poll", "one of `http`, `tool`, `sql`, `redis`"),
            (json!({"poll": {}}), "/poll", "one of"),
            (json!({"poll": {"htp": {}}}), "/poll/htp", "did you mean `http`?"),
            (
                json!({"poll": {"http": {"url": "https://a"}, "redis": {"source": "s", "key": "k"}}}),
                "/poll/redis",
                "can't stand beside `http`",
            ),
            (
                json!({"poll": {"http": {"url": "https://a", "credential": "a b"}}}),
                "/poll/http/credential",
                "`service/account`",
            ),
            (json!({"poll": {"http": {"uri": "https://a"}}}), "/poll/http/uri", "unknown field"),
            (json!({"poll": {"http": {"url": "https://a", "method": "POST"}}}), "/poll/http/method", "GET"),
            (
                json!({"poll": {"http": {"url": "https://a", "headers": {"Authorization": "Bearer x"}}}}),
                "/poll/http/headers/Authorization",
                "secret",
            ),
            (json!({"poll": {"redis": {"source": "s", "key": ""}}}), "/poll/redis/key", "1 to 1024"),
        ] {
            let (found, message) = fault(more.clone());
            assert_eq!(found, format!("/trigger{pointer}"), "{more}: {message}");
            assert!(message.contains(part), "{more}: {message}");
        }
    }

    #[test]
    fn key_in_redis_is_taken_up_to_its_length_and_refused_one_byte_beyond_it() {
        let polled = |bytes: usize| {
            let redis = json!({ "source": "prices", "key": "k".repeat(bytes), "read": "get" });
            json!({ "poll": { "redis": redis } })
        };
        assert!(read_with(polled(KEY_BYTES)).is_ok());
        let (place, why) = fault(polled(KEY_BYTES + 1));
        assert!(place.ends_with("/poll/redis/key") && why == "must have 1 to 1024 bytes", "{place}: {why}");
    }

    #[test]
    fn headers_of_a_poll_are_taken_up_to_their_number_and_refused_one_beyond_it() {
        let headers = |count: usize| {
            let headers: Map<String, Value> = (0..count).map(|n| (format!("x-{n}"), json!("v"))).collect();
            json!({ "poll": { "http": { "url": "https://example.org", "headers": headers } } })
        };
        assert!(read_with(headers(MOST_HEADERS)).is_ok());
        let (place, why) = fault(headers(MOST_HEADERS + 1));
        assert_eq!((place.as_str(), why.as_str()), ("/trigger/poll/http/headers", "must be at most 30"));
    }

    #[test]
    fn query_is_taken_at_its_longest_and_refused_one_beyond_it() {
        let query = |bytes: usize| {
            let query = format!("select 1{}", " ".repeat(bytes - "select 1".len()));
            json!({ "poll": { "sql": { "source": "shop", "query": query } } })
        };
        assert!(read_with(query(QUERY_BYTES)).is_ok());
        let (place, why) = fault(query(QUERY_BYTES + 1));
        assert_eq!((place.as_str(), why.as_str()), ("/trigger/poll/sql/query", "must have at most 16384 bytes"));
    }
}
