//! The compiled form of an event trigger: whether an event fires the task, and which way it goes.

mod judging_steps;
mod missing_field;

use std::sync::{Arc, OnceLock};

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::base::expr::{Evaluation, Expression, ExpressionError, Language, Variables};
use crate::base::words::words;
use crate::domain::event::Data;
use crate::domain::trigger::event::arrival::Arrival;
use crate::domain::trigger::event::form::{FILTER_BYTES, is_long_filter};
use crate::domain::trigger::event::{EventTrigger, VARIABLES, WINDOW_EVENTS};
use crate::domain::trigger::interval::parse_length;

pub use missing_field::MissedEventField;

/// Why a matched event does not run.
pub mod reason {
    /// The event is older than `max_age`.
    pub const TOO_OLD: &str = "too_old";
    /// The task has used up its rate.
    pub const THROTTLED: &str = "throttled";
    /// An event with this `dedup` key came before.
    pub const DUPLICATE: &str = "duplicate";
    /// The task has buffered as many events as it may.
    pub const BUFFER_FULL: &str = "buffer_full";
    /// The owner dropped the buffered events at the resume.
    pub const DROPPED: &str = "dropped";
    /// The event has fired as many tasks as one event may.
    pub const FAN_OUT: &str = "fan_out";
    /// With what went wrong behind a colon.
    pub const FILTER_ERROR: &str = "filter_error";
}
/// Longest key that is kept, in bytes; a longer one is kept as its digest.
const KEY_BYTES: usize = 200;
/// Characters of an error that are recorded: it may name a key of an event, which is as long as its publisher likes.
const ERROR_CHARACTERS: usize = 300;
/// Where `max_wait` is absent.
const LONGEST_QUIETS: i32 = 10;

/// The trigger's verdict on an event.
#[derive(Debug, Clone, PartialEq)]
pub enum EventVerdict {
    /// It is none of the task's events.
    No,
    /// It is, and goes this way.
    Fires(MatchPath),
    /// It is, or may be, and does not run: the reason is recorded.
    Skipped(String),
}

/// How a matched event becomes a run. An absent rule is not asked.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct MatchPath {
    /// Key, and how long it is remembered.
    pub dedup: Option<(String, TimeDelta)>,
    /// Key, fires, and the length that they are spread over.
    pub throttle: Option<(String, u64, TimeDelta)>,
    /// The window that it waits in; `None`: it runs at once.
    pub window: Option<EventWindow>,
}

impl MatchPath {
    /// Straight to a run.
    pub fn is_plain(&self) -> bool {
        *self == MatchPath::default()
    }
}

/// A window that collects events.
#[derive(Debug, Clone, PartialEq)]
pub struct EventWindow {
    /// The rule that opens the window.
    pub kind: WindowKind,
    /// Key that events of one window share.
    pub key: String,
    /// It closes with this many.
    pub size: u64,
    /// It closes this long after its first event.
    pub longest: TimeDelta,
    /// And this long after its last, where that is sooner.
    pub quiet: Option<TimeDelta>,
}

words! {
    /// Rules that collect events in a window.
    pub enum WindowKind {
        /// The window ends after a pause between events.
        Debounce = "debounce",
        /// The window ends after a number of events or a time.
        Batch = "batch",
        /// Of a paused task.
        Buffer = "buffer",
    }
}

/// Why a key has no value, with its expression where that could be read.
type KeyError = (Option<Expression>, ExpressionError);

/// An event trigger, ready to judge. Made once for many events. It has its expressions as texts: their trees are
/// compiled again where the language does not keep them any more, for all that a tenant may have would take many times
/// the room.
#[derive(Debug)]
pub struct CompiledEventTrigger {
    source: Pattern,
    kind: Pattern,
    filters: Vec<(Vec<String>, Value)>,
    filter: Option<Arc<str>>,
    dedup: Option<(Arc<str>, TimeDelta)>,
    throttle: Option<(Option<Arc<str>>, u64, TimeDelta)>,
    window: Option<(Option<Arc<str>>, EventWindow)>,
    max_age: Option<TimeDelta>,
    /// `task` as JSON, where an expression may name it: as values of expressions it would take many times the room.
    task: Option<Box<str>>,
    language: Language,
}

/// An exact text, or the beginning of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    /// The text, without the final `*`.
    pub text: String,
    /// The pattern ends with `*`: any rest fits.
    pub is_prefix: bool,
}

impl Pattern {
    /// Absent is any text.
    pub fn new(text: Option<&str>) -> Pattern {
        let text = text.unwrap_or("*");
        match text.strip_suffix('*') {
            Some(prefix) => Pattern { text: prefix.to_owned(), is_prefix: true },
            None => Pattern { text: text.to_owned(), is_prefix: false },
        }
    }

    /// Whether a text fits.
    pub fn matches(&self, text: &str) -> bool {
        if self.is_prefix { text.starts_with(&self.text) } else { text == self.text }
    }
}

impl CompiledEventTrigger {
    /// Compiles a stored trigger; the error says what can't be read any more. Its expressions are kept with those of
    /// the language's tenant.
    pub fn compile(
        trigger: &EventTrigger,
        task: (Uuid, &str, &Map<String, Value>),
        language: &Language,
    ) -> Result<CompiledEventTrigger, String> {
        let read = |text: &String| {
            let text: Arc<str> = text.as_str().into();
            let expression = language.read_kept(&text, VARIABLES).map_err(|fault| fault.to_string());
            expression.map(|expression| expression.shared_text())
        };
        let key = |text: &Option<String>| text.as_ref().map(read).transpose();
        let window = match (&trigger.debounce, &trigger.batch) {
            (Some(debounce), _) => {
                let quiet = parse_length(&debounce.quiet)?;
                let longest = debounce.max_wait.as_deref().map(parse_length).transpose()?;
                let window = EventWindow {
                    kind: WindowKind::Debounce,
                    key: String::new(),
                    size: WINDOW_EVENTS,
                    longest: longest.unwrap_or(quiet * LONGEST_QUIETS),
                    quiet: Some(quiet),
                };
                Some((key(&debounce.key)?, window))
            }
            (None, Some(batch)) => {
                let window = EventWindow {
                    kind: WindowKind::Batch,
                    key: String::new(),
                    size: batch.size,
                    longest: parse_length(&batch.wait)?,
                    quiet: None,
                };
                Some((key(&batch.key)?, window))
            }
            (None, None) => None,
        };
        let throttle = match &trigger.throttle {
            Some(throttle) => Some((key(&throttle.key)?, throttle.limit.max(1), parse_length(&throttle.per)?)),
            None => None,
        };
        let dedup = match &trigger.dedup {
            Some(dedup) => Some((read(&dedup.key)?, parse_length(&dedup.window)?)),
            None => None,
        };
        if trigger.filters.iter().any(|(key, value)| is_long_filter(key, value)) {
            return Err(format!("a filter has a name, or looks for a text, of more than {FILTER_BYTES} bytes"));
        }
        let mut compiled = CompiledEventTrigger {
            source: Pattern::new(trigger.source.as_deref()),
            kind: Pattern::new(trigger.event_type.as_deref()),
            filters: trigger.filters.iter().map(|(key, value)| (path(key), value.clone())).collect(),
            filter: key(&trigger.filter)?,
            dedup,
            throttle,
            window,
            max_age: trigger.max_age.as_deref().map(parse_length).transpose()?,
            task: None,
            language: language.clone(),
        };
        let may_name_task = |expression: &Arc<str>| expression.contains("task");
        if compiled.filter.iter().chain(compiled.keys()).any(may_name_task) {
            let (id, name, metadata) = task;
            compiled.task = Some(json!({ "id": id, "name": name, "metadata": metadata }).to_string().into());
        }
        Ok(compiled)
    }

    /// The variable `task`; none where no expression names it.
    fn task_variables(&self) -> Variables {
        let task = self.task.as_deref().and_then(|text| serde_json::from_str::<Value>(text).ok());
        task.map_or_else(Variables::new, |task| Variables::new().with("task", &task))
    }

    /// The compiled expression of a text that was read before.
    pub(super) fn expression(&self, text: &Arc<str>) -> Result<Expression, ExpressionError> {
        self.language.read_kept(text, VARIABLES).map_err(|fault| ExpressionError::Failed(fault.to_string()))
    }

    /// The pattern of sources.
    pub fn source(&self) -> &Pattern {
        &self.source
    }

    /// The pattern of types.
    pub fn kind(&self) -> &Pattern {
        &self.kind
    }

    /// Judges an event of the task's tenant, at `now`.
    pub fn judge(&self, arrival: &Arrival, now: DateTime<Utc>) -> EventVerdict {
        self.judge_noting(arrival, now, &mut None)
    }

    /// As [`CompiledEventTrigger::judge`], with the field that was missing, where one was.
    pub fn judge_noting(
        &self,
        arrival: &Arrival,
        now: DateTime<Utc>,
        missed: &mut Option<MissedEventField>,
    ) -> EventVerdict {
        if !self.fits(arrival) {
            return EventVerdict::No;
        }
        let variables = LazyVariables::new(arrival, self);
        if let Some(filter) = &self.filter {
            let judge = |filter: Expression| filter.judge(variables.get()).map(|found| (found, filter));
            match self.expression(filter).and_then(judge) {
                Ok((Evaluation::Holds(true), _)) => {}
                Ok((Evaluation::Holds(false), _)) => return EventVerdict::No,
                Ok((Evaluation::Misses(name), expression)) => {
                    *missed = Some(MissedEventField { expression, name });
                    return EventVerdict::No;
                }
                Err(error) => return failed(&error),
            }
        }
        let too_old = |most: TimeDelta| arrival.read().event.time.is_some_and(|time| time < now - most);
        if self.max_age.is_some_and(too_old) {
            return EventVerdict::Skipped(reason::TOO_OLD.into());
        }
        match self.way(&variables) {
            Ok(way) => EventVerdict::Fires(way),
            Err((expression, error)) => {
                let name = error.missing_field().map(str::to_owned);
                *missed = expression.zip(name).map(|(expression, name)| MissedEventField { expression, name });
                failed(&error)
            }
        }
    }

    /// Whether an event meets everything but `filter` and `max_age`.
    fn fits(&self, arrival: &Arrival) -> bool {
        let event = &arrival.event;
        self.source.matches(&event.source) && self.kind.matches(&event.kind) && self.passes(arrival)
    }

    fn passes(&self, arrival: &Arrival) -> bool {
        if self.filters.is_empty() {
            return true;
        }
        let read = arrival.read();
        let Data::Json(data) = &read.event.data else { return false };
        self.filters.iter().all(|(path, wanted)| {
            let found = path.iter().try_fold(data, |value, key| value.get(key));
            found.is_some_and(|found| equals_or_contains(found, wanted))
        })
    }

    fn way(&self, variables: &LazyVariables) -> Result<MatchPath, KeyError> {
        let key = |text: Option<&Arc<str>>| text.map_or(Ok(String::new()), |text| self.key(text, variables));
        Ok(MatchPath {
            dedup: match &self.dedup {
                Some((expression, window)) => Some((key(Some(expression))?, *window)),
                None => None,
            },
            throttle: match &self.throttle {
                Some((expression, limit, per)) => Some((key(expression.as_ref())?, *limit, *per)),
                None => None,
            },
            window: match &self.window {
                Some((expression, window)) => Some(EventWindow { key: key(expression.as_ref())?, ..window.clone() }),
                None => None,
            },
        })
    }

    fn key(&self, text: &Arc<str>, variables: &LazyVariables) -> Result<String, KeyError> {
        let expression = self.expression(text).map_err(|error| (None, error))?;
        expression.key(variables.get()).map(short).map_err(|error| (Some(expression), error))
    }
}

/// The variables of one event and one task, joined when an expression asks for them.
struct LazyVariables<'a> {
    arrival: &'a Arrival,
    trigger: &'a CompiledEventTrigger,
    joined: OnceLock<Variables>,
}

impl<'a> LazyVariables<'a> {
    fn new(arrival: &'a Arrival, trigger: &'a CompiledEventTrigger) -> LazyVariables<'a> {
        LazyVariables { arrival, trigger, joined: OnceLock::new() }
    }

    fn get(&self) -> &Variables {
        self.joined.get_or_init(|| self.arrival.read().variables().and(&self.trigger.task_variables()))
    }
}

fn failed(error: &ExpressionError) -> EventVerdict {
    let said: String = error.to_string().chars().take(ERROR_CHARACTERS).collect();
    EventVerdict::Skipped(format!("{}: {said}", reason::FILTER_ERROR))
}

pub(super) fn path(key: &str) -> Vec<String> {
    key.split('.').map(str::to_owned).collect()
}

/// Texts contain what is wanted, whatever the case; all else is equal, numbers by their value.
pub(super) fn equals_or_contains(found: &Value, wanted: &Value) -> bool {
    match (found, wanted) {
        (Value::String(found), Value::String(wanted)) => found.to_lowercase().contains(&wanted.to_lowercase()),
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (found, wanted) => found == wanted,
    }
}

/// A key as it is stored.
fn short(key: String) -> String {
    if key.len() <= KEY_BYTES {
        return key;
    }
    format!("sha256:{}", hex::encode(aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, key.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::event::Event;

    fn now() -> DateTime<Utc> {
        "2027-03-01T08:00:00Z".parse().unwrap()
    }

    fn matcher(trigger: Value) -> CompiledEventTrigger {
        let trigger: EventTrigger = serde_json::from_value(trigger).unwrap();
        let metadata = Map::from_iter([("least".to_owned(), json!(50))]);
        CompiledEventTrigger::compile(&trigger, (Uuid::from_u128(1), "a task", &metadata), &Language::default())
            .unwrap()
    }

    fn arrival(more: Value) -> Arrival {
        let mut event = json!({
            "specversion": "1.0", "id": "1", "source": "shop", "type": "order.paid", "tenantid": "ann",
            "data": {"from": "ship@Amazon.com", "order": {"id": 7, "paid": true}, "amount": 120},
        });
        event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        Arrival::new(Event::try_from(event).unwrap())
    }

    fn judge(trigger: Value) -> EventVerdict {
        matcher(trigger).judge(&arrival(json!({})), now())
    }

    fn fires(trigger: Value) -> bool {
        match judge(trigger) {
            EventVerdict::Fires(_) => true,
            EventVerdict::No => false,
            EventVerdict::Skipped(why) => panic!("{why}"),
        }
    }

    #[test]
    fn source_and_type_are_exact_or_begin_alike() {
        for (source, event_type, expected) in [
            ("shop", "order.paid", true),
            ("shop", "order.*", true),
            ("*", "order.paid", true),
            ("sh*", "*", true),
            ("shop", "order", false),
            ("shops", "*", false),
            ("SHOP", "*", false),
        ] {
            assert_eq!(fires(json!({"source": source, "event_type": event_type})), expected, "{source} {event_type}");
        }
        assert!(fires(json!({"event_type": "order.paid"})) && fires(json!({"source": "shop"})));
    }

    #[test]
    fn filters_contain_texts_and_equal_all_else_and_what_is_missing_does_not_match() {
        for (filters, expected) in [
            (json!({"from": "amazon"}), true),
            (json!({"from": "AMAZON", "amount": 120}), true),
            (json!({"amount": 120.0}), true),
            (json!({"amount": "120"}), false),
            (json!({"order.id": 7, "order.paid": true}), true),
            (json!({"order.id": 8}), false),
            (json!({"nothing": null}), false),
            (json!({"order.id.deep": 7}), false),
        ] {
            assert_eq!(fires(json!({"source": "shop", "filters": filters})), expected, "{filters}");
        }
        let empty = arrival(json!({"data": null}));
        let filtered = matcher(json!({"source": "shop", "filters": {"from": "amazon"}}));
        assert_eq!(filtered.judge(&empty, now()), EventVerdict::No, "no data, no match");
    }

    #[test]
    fn expression_sees_the_event_and_the_task() {
        assert!(fires(json!({"source": "shop", "filter": "event.data.amount > task.metadata.least"})));
        assert!(!fires(json!({"source": "shop", "filter": "event.data.amount > 200"})));
        assert!(!fires(json!({"source": "shop", "filter": "event.data.nothing.at.all"})), "what is missing is no");
        assert!(!fires(json!({"source": "post", "filter": "1 / 0 == 1"})), "it is not even asked");
        let EventVerdict::Skipped(why) = judge(json!({"source": "shop", "filter": "event.data.from > 3"})) else {
            panic!()
        };
        assert!(why.starts_with("filter_error: "), "{why}");
        assert_eq!(
            judge(json!({"source": "shop", "filter": "event.data.amount"})),
            EventVerdict::Skipped("filter_error: must be true or false, is int".into())
        );
    }

    #[test]
    fn old_event_is_skipped_and_one_without_a_time_is_new() {
        let matcher = matcher(json!({"source": "shop", "max_age": "1h"}));
        let at = |time: &str| matcher.judge(&arrival(json!({"time": time})), now());
        assert_eq!(at("2027-03-01T06:59:59Z"), EventVerdict::Skipped("too_old".into()));
        assert_eq!(at("2027-03-01T07:00:00Z"), EventVerdict::Fires(MatchPath::default()));
        assert_eq!(matcher.judge(&arrival(json!({})), now()), EventVerdict::Fires(MatchPath::default()));
    }

    #[test]
    fn way_names_the_keys() {
        let EventVerdict::Fires(way) = judge(json!({
            "source": "shop", "dedup": {"key": "event.data.order.id", "window": "1h"},
            "throttle": {"limit": 3, "per": "1m", "key": "event.source"}, "debounce": {"quiet": "30s"},
        })) else {
            panic!()
        };
        assert_eq!(
            way,
            MatchPath {
                dedup: Some(("7".into(), TimeDelta::hours(1))),
                throttle: Some(("shop".into(), 3, TimeDelta::minutes(1))),
                window: Some(EventWindow {
                    kind: WindowKind::Debounce,
                    key: String::new(),
                    size: WINDOW_EVENTS,
                    longest: TimeDelta::minutes(5),
                    quiet: Some(TimeDelta::seconds(30)),
                }),
            }
        );
        let missing = judge(json!({"source": "shop", "dedup": {"key": "event.data.nothing", "window": "1h"}}));
        assert_eq!(missing, EventVerdict::Skipped("filter_error: there is no `nothing`".into()));
    }

    #[test]
    fn task_is_kept_for_expressions_that_name_it_alone_and_long_filters_are_unreadable() {
        let kept = |trigger: Value| matcher(trigger).task.is_some();
        assert!(!kept(json!({"source": "shop", "filter": "event.data.amount > 100"})));
        assert!(kept(json!({"source": "shop", "filter": "event.data.amount > task.metadata.least"})));
        assert!(kept(json!({"source": "shop", "dedup": {"key": "task.name", "window": "1h"}})));
        assert!(kept(json!({"source": "shop", "batch": {"size": 2, "wait": "1h", "key": "task.name"}})));
        let compiled = |bytes: usize| {
            let trigger = json!({"source": "shop", "filters": {"from": "x".repeat(bytes)}});
            let trigger: EventTrigger = serde_json::from_value(trigger).unwrap();
            CompiledEventTrigger::compile(&trigger, (Uuid::nil(), "a task", &Map::new()), &Language::default())
        };
        assert!(compiled(FILTER_BYTES).is_ok());
        assert!(compiled(FILTER_BYTES + 1).unwrap_err().contains("more than 1024 bytes"));
    }

    #[test]
    fn error_is_recorded_up_to_its_longest_however_long_the_key_that_it_names() {
        let dedup = json!({"key": "event.data.order[event.data.by]", "window": "1h"});
        let keyed = matcher(json!({"source": "shop", "dedup": dedup}));
        for (length, expected) in [(10, 10 + "there is no ``".len()), (2 * ERROR_CHARACTERS, ERROR_CHARACTERS)] {
            let event = arrival(json!({"data": {"order": {"id": 7}, "by": "é".repeat(length)}}));
            let EventVerdict::Skipped(why) = keyed.judge(&event, now()) else { panic!("there is no such key") };
            let said = why.strip_prefix("filter_error: ").expect("the word");
            assert_eq!(said.chars().count(), expected, "{why}");
        }
    }

    #[test]
    fn event_is_judged_alike_from_its_text_and_what_was_read_of_it_is_forgotten() {
        let filtered = matcher(json!({"source": "shop", "filter": "event.data.amount > 100"}));
        let whole = arrival(json!({}));
        let arrival = Arrival::of_text(whole.event.clone());
        let none = matcher(json!({"source": "post", "filter": "event.data.amount > 100"}));
        assert_eq!(none.judge(&arrival, now()), EventVerdict::No);
        assert!(!arrival.is_read(), "its source alone says that it is none of these");
        assert_eq!(filtered.judge(&arrival, now()), filtered.judge(&whole, now()));
        assert_eq!(arrival.bytes(), arrival.event.bytes());
        arrival.prepare();
        assert!(arrival.is_read());
        arrival.forget_read();
        assert_eq!((arrival.cause().get(), arrival.key()), (whole.cause().get(), whole.key()));
        let document: Value = serde_json::from_str(arrival.document().get()).unwrap();
        assert_eq!(document, whole.event.event().to_value());
        assert_eq!(arrival.bytes(), arrival.event.bytes() + arrival.cause().get().len());
        assert!(!arrival.is_read(), "all that its recording asks for are texts");
        assert_eq!(filtered.judge(&arrival, now()), EventVerdict::Fires(MatchPath::default()), "judged anew");
    }

    #[test]
    fn key_is_kept_at_its_longest_and_as_its_hash_beyond_it() {
        let keyed = matcher(json!({"source": "shop", "dedup": {"key": "event.data.id", "window": "1h"}}));
        let key = |bytes: usize| {
            let arrival = arrival(json!({"data": {"id": "x".repeat(bytes)}}));
            match keyed.judge(&arrival, now()) {
                EventVerdict::Fires(MatchPath { dedup: Some((key, _)), .. }) => key,
                verdict => panic!("{verdict:?}"),
            }
        };
        assert_eq!(key(KEY_BYTES), "x".repeat(KEY_BYTES));
        for beyond in [KEY_BYTES + 1, 5_000] {
            assert!(key(beyond).starts_with("sha256:") && key(beyond).len() == 71);
        }
    }
}
