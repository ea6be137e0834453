//! Reading a schedule from JSON: every fault in one answer, each with its place and what would be right.
//!
//! The only way in for what people write. What it lets through compiles, and has at least one instant to come.

use std::cell::RefCell;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use crate::base::invalid::{ValidationErrors, did_you_mean, escape, unknown_fields};
use crate::domain::trigger::policy::{CatchUp, DstFold, DstGap, OnResume, Overlap};
use crate::domain::trigger::schedule::{Schedule, When};
use crate::domain::trigger::steps::ADMITTED;
use crate::domain::trigger::timetable::Timetable;
use crate::domain::trigger::zone::{self, is_local};

/// Fields that hold a length, in schedules and other triggers alike.
const LENGTHS: &[&str] = &[
    "interval",
    "jitter",
    "catch_up_window",
    "max_age",
    "quiet",
    "max_wait",
    "per",
    "wait",
    "window",
    "cooldown",
    "hold_for",
    "timeout",
];
/// Reads the fields of a schedule that stands at `pointer`, as received at `now`. `None` exactly when a fault was
/// added.
pub fn read(
    fields: &Map<String, Value>,
    pointer: &str,
    now: DateTime<Utc>,
    faults: &mut ValidationErrors,
) -> Option<Schedule> {
    let known = faults.0.len();
    let mut form = TriggerForm::new(fields, pointer, faults);
    form.given("type");
    let when = form.when();
    let mut schedule = Schedule::new(when.clone().unwrap_or_else(|| When::Cron("@daily".into())));
    schedule.timezone = form.text("timezone");
    schedule.start_at = form.text("start_at");
    schedule.end_at = form.text("end_at");
    schedule.jitter = form.text("jitter");
    schedule.exclude = form.texts("exclude");
    schedule.catch_up_window = form.text("catch_up_window");
    schedule.catch_up = form.word("catch_up", CatchUp::parse, &CatchUp::WORDS);
    schedule.overlap = form.word("overlap", Overlap::parse, &Overlap::WORDS);
    schedule.dst_gap = form.word("dst_gap", DstGap::parse, &DstGap::WORDS);
    schedule.dst_fold = form.word("dst_fold", DstFold::parse, &DstFold::WORDS);
    schedule.on_resume = form.word("on_resume", OnResume::parse, &OnResume::WORDS);
    schedule.overlap_counts_waiting = form.flag("overlap_counts_waiting");
    form.refuse_unknown();
    if schedule.timezone.is_none() && needs_zone(&schedule) {
        schedule.timezone = Some("UTC".into());
    }
    let timetable = Timetable::compile(&schedule, &zone::current(), now, pointer, faults);
    if faults.0.len() == known
        && let Some(timetable) = timetable
    {
        if timetable.is_counted() && schedule.start_at.is_none() {
            let example = now.to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
            let message = format!("is needed where an rrule has a COUNT, which counts from it; write `{example}`");
            faults.add(format!("{pointer}/start_at"), message);
        }
        let timetable = timetable.with_budget(ADMITTED);
        let past = past(&schedule, &timetable, now);
        let excluded = past.is_none() && timetable.excludes_all(now);
        if past.is_none() && !excluded && timetable.is_intricate() {
            timetable.charge_worst_case(now);
        }
        let costly = timetable.exceeded().map(|part| schedule.too_costly(part));
        let excludes_all = || {
            let message = "excludes every instant of the schedule, so that it never fires; leave out what is too wide";
            excluded.then(|| ("exclude", message.to_owned()))
        };
        if let Some((field, message)) = costly.or(past).or_else(excludes_all) {
            faults.add(format!("{pointer}/{field}"), message);
        }
    }
    (faults.0.len() == known).then_some(schedule)
}

/// Whether wall time plays a part, so that a reader would ask of which zone.
fn needs_zone(schedule: &Schedule) -> bool {
    match &schedule.when {
        When::Cron(_) | When::Rrule(_) => true,
        When::At(text) => is_local(text),
        When::Interval(_) => !schedule.exclude.is_empty(),
    }
}

/// The field by which a schedule has nothing to come, and why; `None`: it has.
fn past(schedule: &Schedule, timetable: &Timetable, now: DateTime<Utc>) -> Option<(&'static str, String)> {
    if timetable.first(uuid::Uuid::nil(), now).is_some() {
        return None;
    }
    let is_past = || format!("is in the past: it is {} now", now.to_rfc3339_opts(chrono::SecondsFormat::Secs, true));
    if timetable.end().is_some_and(|end| end <= now) && schedule.end_at.is_some() {
        return Some(("end_at", is_past()));
    }
    let message = match &schedule.when {
        When::At(_) if schedule.start_at.is_none() && schedule.end_at.is_none() => is_past(),
        _ if schedule.start_at.is_some() || schedule.end_at.is_some() => {
            "never fires: nothing lies between now or `start_at`, and `end_at`".into()
        }
        _ => "never fires: there is no such date within 40 years".into(),
    };
    Some((schedule.when.field(), message))
}

/// The fields at one place, and where their faults go.
pub(super) struct TriggerForm<'a> {
    /// The fields of the object.
    pub fields: &'a Map<String, Value>,
    /// JSON pointer to the object.
    pub pointer: &'a str,
    /// Faults that were found so far.
    pub faults: &'a mut ValidationErrors,
    /// Fields that were asked for: there are no others.
    asked: RefCell<Vec<&'static str>>,
    /// Faults that were there before.
    before: usize,
}

impl<'a> TriggerForm<'a> {
    /// Reads the fields of an object that stands at `pointer`.
    pub fn new(fields: &'a Map<String, Value>, pointer: &'a str, faults: &'a mut ValidationErrors) -> TriggerForm<'a> {
        let before = faults.0.len();
        TriggerForm { fields, pointer, faults, asked: RefCell::default(), before }
    }

    /// Adds a fault of a field.
    pub fn fault(&mut self, field: &str, message: impl Into<String>) {
        self.faults.add(format!("{}/{field}", self.pointer), message);
    }

    /// Every field that was not asked for is a fault, which is told before the others. Called once everything is read.
    pub fn refuse_unknown(&mut self) {
        let known = self.known();
        let told = self.faults.0.split_off(self.before);
        for name in unknown_fields(self.fields, &known) {
            let message = match name.as_str() {
                "max_runs" => "`max_runs` is a field of the task, beside `trigger`".to_owned(),
                _ => format!("unknown field `{name}`{}", did_you_mean(name, known.iter().copied())),
            };
            self.fault(&escape(name), message);
        }
        self.faults.0.extend(told);
    }

    /// The fields that were asked for so far.
    pub fn known(&self) -> Vec<&'static str> {
        self.asked.borrow().clone()
    }

    /// The one of the four that is given.
    fn when(&mut self) -> Option<When> {
        let given: Vec<&'static str> = When::FIELDS.into_iter().filter(|name| self.given(name).is_some()).collect();
        match given.as_slice() {
            [] => {
                self.faults.add(self.pointer, "a schedule needs one of `cron`, `interval`, `at`, `rrule`");
                None
            }
            [name] => {
                let text = self.text(name)?;
                Some(match *name {
                    "cron" => When::Cron(text),
                    "interval" => When::Interval(text),
                    "at" => When::At(text),
                    _ => When::Rrule(text),
                })
            }
            [first, others @ ..] => {
                for name in others {
                    self.fault(
                        name,
                        format!(
                            "can't stand beside `{first}`; a schedule has one of `cron`, `interval`, `at`, `rrule`"
                        ),
                    );
                }
                None
            }
        }
    }

    /// A field that is there and not null.
    pub fn given(&self, name: &'static str) -> Option<&'a Value> {
        let mut asked = self.asked.borrow_mut();
        if !asked.contains(&name) {
            asked.push(name);
        }
        self.fields.get(name).filter(|value| !value.is_null())
    }

    /// Reads a text; a number in place of a length of time is a fault that shows the right form.
    pub fn text(&mut self, name: &'static str) -> Option<String> {
        match self.given(name)? {
            Value::String(text) => Some(text.trim().to_owned()),
            Value::Number(number) if LENGTHS.contains(&name) => {
                let message = format!("must be a text with a unit, such as \"{number}s\"");
                self.fault(name, message);
                None
            }
            other => {
                let message = format!("must be a text, not {}", kind(other));
                self.fault(name, message);
                None
            }
        }
    }

    fn texts(&mut self, name: &'static str) -> Vec<String> {
        let items = match self.given(name) {
            None => return Vec::new(),
            Some(Value::Array(items)) => items,
            Some(other) => {
                let message = format!("must be a list of texts, not {}", kind(other));
                self.fault(name, message);
                return Vec::new();
            }
        };
        let mut texts = Vec::new();
        for (index, item) in items.iter().enumerate() {
            match item {
                Value::String(text) => texts.push(text.trim().to_owned()),
                other => self.fault(&format!("{name}/{index}"), format!("must be a text, not {}", kind(other))),
            }
        }
        texts
    }

    /// Reads one of some words; the default where it is absent or wrong.
    pub fn word<T: Default>(&mut self, name: &'static str, parse: fn(&str) -> Option<T>, words: &[&str]) -> T {
        self.word_or(name, parse, words, T::default())
    }

    /// Reads a word, with a default of its own.
    pub fn word_or<T>(&mut self, name: &'static str, parse: fn(&str) -> Option<T>, words: &[&str], default: T) -> T {
        let Some(text) = self.text(name) else { return default };
        parse(&text).unwrap_or_else(|| {
            let all = words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ");
            let hint = did_you_mean(&text, words.iter().copied());
            self.fault(name, format!("`{text}` is not one of {all}{hint}"));
            default
        })
    }

    /// Reads a boolean; false where it is absent or wrong.
    pub fn flag(&mut self, name: &'static str) -> bool {
        match self.given(name) {
            None => false,
            Some(Value::Bool(flag)) => *flag,
            Some(other) => {
                let message = format!("must be true or false, not {}", kind(other));
                self.fault(name, message);
                false
            }
        }
    }
}

/// The JSON type of a value, in words.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::trigger::Trigger;

    fn now() -> DateTime<Utc> {
        "2026-11-20T12:00:00Z".parse().unwrap()
    }

    fn faults(trigger: Value) -> Vec<(String, String)> {
        let mut faults = ValidationErrors::new();
        let read = Trigger::parse(&trigger, "/trigger", now(), &mut faults);
        assert_eq!(read.is_none(), !faults.is_empty(), "a trigger or a fault, never both: {trigger}");
        faults.0.into_iter().map(|fault| (fault.pointer, fault.message)).collect()
    }

    fn fault(trigger: Value) -> (String, String) {
        let mut all = faults(trigger.clone());
        assert_eq!(all.len(), 1, "{trigger}: {all:?}");
        all.remove(0)
    }

    fn stored(trigger: Value) -> Value {
        let mut faults = ValidationErrors::new();
        let read = Trigger::parse(&trigger, "/trigger", now(), &mut faults).expect("a valid trigger");
        let stored = serde_json::to_value(&read).unwrap();
        assert_eq!(serde_json::from_value::<Trigger>(stored.clone()).unwrap(), read, "what is stored reads back");
        stored
    }

    #[test]
    fn written_trigger_is_given_back_with_the_defaults_that_matter() {
        assert_eq!(
            stored(json!({"type": "schedule", "cron": " 0 8 * * * "})),
            json!({"type": "schedule", "cron": "0 8 * * *", "timezone": "UTC", "catch_up": "latest", "overlap": "skip"})
        );
        assert_eq!(
            stored(json!({"type": "schedule", "interval": "5m", "timezone": null})),
            json!({"type": "schedule", "interval": "5m", "catch_up": "latest", "overlap": "skip"})
        );
        let whole = json!({
            "type": "schedule", "rrule": "FREQ=MONTHLY;BYDAY=-1FR", "timezone": "Europe/Berlin",
            "start_at": "2027-01-01T09:00:00", "end_at": "2028-01-01T00:00:00Z", "jitter": "30s",
            "exclude": ["2027-12-31", "* * * 8 *"], "catch_up": "all", "catch_up_window": "P1D",
            "overlap": "queue_one", "dst_gap": "skip", "dst_fold": "both", "on_resume": "catch_up",
            "overlap_counts_waiting": true
        });
        assert_eq!(stored(whole.clone()), whole);
    }

    #[test]
    fn all_faults_come_in_one_answer_each_with_its_place() {
        let trigger = json!({
            "type": "schedule", "cron": "0 25 * * *", "timezone": "Europe/Berln", "start_at": "soon",
            "jitter": "1mo", "exclude": ["2026-02-30", 7], "catch_up": "lates", "overlap": 1, "dst_gap": "jump",
            "overlap_counts_waiting": "yes", "catch_up_window": 3600, "over_lap": "skip", "max_runs": 3
        });
        let mut places: Vec<String> = faults(trigger).into_iter().map(|(pointer, _)| pointer).collect();
        places.sort();
        let expected = [
            "/trigger/catch_up",
            "/trigger/catch_up_window",
            "/trigger/cron",
            "/trigger/dst_gap",
            "/trigger/exclude/0",
            "/trigger/exclude/1",
            "/trigger/jitter",
            "/trigger/max_runs",
            "/trigger/over_lap",
            "/trigger/overlap",
            "/trigger/overlap_counts_waiting",
            "/trigger/start_at",
            "/trigger/timezone",
        ];
        assert_eq!(places, expected);
    }

    #[test]
    fn schedule_that_costs_too_much_names_the_field_that_does() {
        let crons: Vec<String> = (0..199).map(|n| format!("{} 0 1 1 *", n % 60)).chain(["* * * * *".into()]).collect();
        let costly = json!({"type": "schedule", "cron": "* * * * * *", "exclude": crons});
        let message = "takes too many steps to compute; write dates, or fewer cron expressions";
        assert_eq!(fault(costly), ("/trigger/exclude".into(), message.into()));
        let list = |to: u32| (1..=to).map(|n| n.to_string()).collect::<Vec<_>>().join(",");
        let rule = format!("FREQ=YEARLY;BYDAY=MO,TU,WE,TH,FR,SA,SU,1MO;BYSETPOS={}", list(255));
        let intricate = json!({"type": "schedule", "rrule": rule, "catch_up": "all", "catch_up_window": "366d"});
        assert_eq!(
            faults(intricate),
            [],
            "months are stepped over, so that no rule of 1,000 characters costs too much"
        );
        let asked = Schedule::new(When::Rrule(rule)).ask(now(), 100, |timetable| timetable.charge_worst_case(now()));
        let message = "takes too many steps to compute; write a rule of fewer values and positions";
        assert_eq!(
            asked,
            Err(crate::base::invalid::FieldError { pointer: "/trigger/rrule".into(), message: message.into() })
        );
    }

    #[test]
    fn schedule_at_its_bounds_is_taken_and_beyond_them_it_is_refused() {
        let dates = |count: usize| -> Vec<String> {
            (0..count).map(|n| format!("2027-{:02}-{:02}", n / 28 + 1, n % 28 + 1)).collect()
        };
        let crons = |count: usize, length: usize| vec![format!("* * * * {}", "0".repeat(length - 8)); count];
        let rule = |length: usize| format!("FREQ=DAILY;BYHOUR={}", "0,".repeat((length - 18) / 2) + "0");
        let values = |count: usize| format!("FREQ=DAILY;BYHOUR={}", vec!["0"; count].join(","));
        let padded = |length: usize| format!("{:0>length$}", "5m");
        let daily = |field: &str, value: Value| {
            let mut trigger = json!({"type": "schedule", "cron": "0 8 * * *"});
            trigger[field] = value;
            trigger
        };
        let rrule = |text: String| json!({"type": "schedule", "rrule": text});
        for (trigger, place) in [
            (daily("exclude", json!(dates(201))), "/trigger/exclude"),
            (daily("exclude", json!(crons(1, 1001))), "/trigger/exclude/0"),
            (
                daily("exclude", json!(crons(20, 1000).into_iter().chain(["2027-01-01".into()]).collect::<Vec<_>>())),
                "/trigger/exclude",
            ),
            (daily("jitter", json!(padded(1001))), "/trigger/jitter"),
            (daily("timezone", json!("x".repeat(1001))), "/trigger/timezone"),
            (daily("start_at", json!("1".repeat(1001))), "/trigger/start_at"),
            (json!({"type": "schedule", "cron": "0".repeat(1001)}), "/trigger/cron"),
            (rrule(rule(1002)), "/trigger/rrule"),
            (rrule(values(367)), "/trigger/rrule"),
        ] {
            let (pointer, message) = fault(trigger);
            assert!(pointer == place && !message.contains("000000"), "{pointer}: {message}");
        }
        for trigger in [
            daily("exclude", json!(dates(200))),
            rrule(values(366)),
            json!({"type": "schedule", "cron": "* * * * * *", "exclude": ["* 1 * * *", "2027-01-01"], "catch_up": "all",
                   "catch_up_window": "366d"}),
            json!({"type": "schedule", "rrule": "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1", "catch_up": "all",
                   "catch_up_window": "366d"}),
            json!({"type": "schedule", "rrule": "FREQ=YEARLY;BYYEARDAY=100", "catch_up_window": "366d"}),
            json!({"type": "schedule", "rrule": "FREQ=YEARLY;BYDAY=20MO;COUNT=100", "start_at": "2026-01-01T00:00:00Z"}),
        ] {
            assert_eq!(faults(trigger), []);
        }
    }

    #[test]
    fn each_fault_says_what_would_be_right() {
        let place = |field: &str, why: &str| (format!("/trigger{field}"), why.to_owned());
        for (trigger, expected) in [
            (json!({"type": "schedule"}), place("", "a schedule needs one of `cron`, `interval`, `at`, `rrule`")),
            (
                json!({"type": "schedul", "cron": "@daily"}),
                place(
                    "/type",
                    "unknown trigger type `schedul`; supported: `schedule`, `event`, `condition`; did you mean `schedule`?",
                ),
            ),
            (json!({"cron": "@daily"}), place("/type", "is missing; supported: `schedule`, `event`, `condition`")),
            (json!({"type": 5}), place("/type", "must be a text, one of `schedule`, `event`, `condition`")),
            (
                json!({"type": "schedule", "cron": "@daily", "interval": "5m"}),
                place(
                    "/interval",
                    "can't stand beside `cron`; a schedule has one of `cron`, `interval`, `at`, `rrule`",
                ),
            ),
            (
                json!({"type": "schedule", "cron": "@daily", "timezone": "Europe/Berln"}),
                place("/timezone", "unknown time zone `Europe/Berln`; did you mean `Europe/Berlin`?"),
            ),
            (
                json!({"type": "schedule", "cron": "@daily", "timezon": "UTC"}),
                place("/timezon", "unknown field `timezon`; did you mean `timezone`?"),
            ),
            (
                json!({"type": "schedule", "interval": 300}),
                place("/interval", "must be a text with a unit, such as \"300s\""),
            ),
            (json!({"type": "schedule", "cron": 5}), place("/cron", "must be a text, not a number")),
            (
                json!({"type": "schedule", "cron": "0 0 30 2 *"}),
                place("/cron", "never fires: there is no such date within 40 years"),
            ),
            (
                json!({"type": "schedule", "at": "2026-11-20T11:59:59Z"}),
                place("/at", "is in the past: it is 2026-11-20T12:00:00Z now"),
            ),
            (
                json!({"type": "schedule", "interval": "1h", "end_at": "2026-11-20T11:00:00Z"}),
                place("/end_at", "is in the past: it is 2026-11-20T12:00:00Z now"),
            ),
            (
                json!({"type": "schedule", "interval": "1h", "end_at": "2026-11-20T12:30:00Z"}),
                place("/interval", "never fires: nothing lies between now or `start_at`, and `end_at`"),
            ),
            (
                json!({"type": "schedule", "interval": "1h", "jitter": "25h"}),
                place("/jitter", "is longer than 24 hours"),
            ),
            (
                json!({"type": "schedule", "cron": "@daily", "overlap": "queue"}),
                place("/overlap", "`queue` is not one of `skip`, `queue_one`, `queue_all`, `allow`, `cancel_previous`"),
            ),
            (
                json!({"type": "schedule", "at": "2027-03-28T02:30:00", "timezone": "Europe/Berlin", "dst_gap": "skip"}),
                place("/at", "`2027-03-28T02:30:00` does not exist in Europe/Berlin: the clock is put forward past it"),
            ),
        ] {
            assert_eq!(fault(trigger.clone()), expected, "{trigger}");
        }
        assert_eq!(fault(json!("@daily")).0, "/trigger");
    }

    #[test]
    fn rule_that_counts_says_where_it_begins() {
        let counted = json!({"type": "schedule", "rrule": "FREQ=DAILY;COUNT=3"});
        let why = "is needed where an rrule has a COUNT, which counts from it; write `2026-11-20T12:00:00Z`";
        assert_eq!(fault(counted.clone()), ("/trigger/start_at".into(), why.into()));
        let mut begun = counted;
        begun["start_at"] = json!("2026-11-21T08:00:00Z");
        stored(begun);
        stored(json!({"type": "schedule", "rrule": "FREQ=DAILY;UNTIL=20261201"}));
    }

    #[test]
    fn schedule_that_excludes_all_of_itself_is_refused() {
        let with = |when: &str, exclude: &[&str]| {
            let field = if when.contains(' ') { "cron" } else { "interval" };
            json!({"type": "schedule", field: when, "timezone": "UTC", "exclude": exclude})
        };
        let why = "excludes every instant of the schedule, so that it never fires; leave out what is too wide";
        for (when, exclude) in [
            ("* * * * *", &["* * * * *"][..]),
            ("1s", &["* * * * *"]),
            ("0 8 * * *", &["* 8 * * *"]),
            ("0 8 * * MON", &["* * * * MON"]),
        ] {
            assert_eq!(fault(with(when, exclude)), ("/trigger/exclude".into(), why.into()), "{when}");
        }
        let ends = json!({"type": "schedule", "at": "2026-12-25T08:00:00Z", "exclude": ["2026-12-25"]});
        assert_eq!(fault(ends).0, "/trigger/exclude");
        // the next thousand are excluded, later ones are not
        for (when, exclude) in [
            ("1s", &["* 12-22 * * *"][..]),
            ("1s", &["2026-11-20", "2026-11-21", "2026-11-22"]),
            ("1s", &["* * 20-30 11 *", "* * * 12 *"]),
            ("* * * * *", &["* 0-22 * * *", "0-58 23 * * *"]),
        ] {
            stored(with(when, exclude));
        }
    }

    #[test]
    fn instant_of_this_very_moment_is_not_past() {
        stored(json!({"type": "schedule", "at": "2026-11-20T12:00:00Z"}));
        stored(json!({"type": "schedule", "at": "2026-11-20T13:00:00", "timezone": "Europe/Berlin"}));
    }

    #[test]
    fn stored_trigger_that_can_t_be_read_any_more_is_a_fault_only_when_it_is_asked() {
        let stored = json!({"type": "schedule", "cron": "gone", "timezone": "Mars/Olympus"});
        let Trigger::Schedule(schedule) = serde_json::from_value(stored).unwrap() else { panic!("a schedule") };
        let fault = schedule.next_after(now(), now()).unwrap_err();
        assert_eq!(fault.pointer, "/trigger/timezone");
    }
}
