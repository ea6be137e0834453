//! The fields of a task that stand beside what fires and what is done: each described once.
//!
//! A description says how its field is read, documented and typed. The spec that is stored, the reader of drafts, the
//! schema of the API and the flags of the command line follow from the list; none of them names a field of it.

use std::ops::RangeInclusive;

use serde::Serialize;
use serde_json::{Map, Value};
use utoipa::openapi::{Object, RefOr, Schema};

use super::reader::DraftReader;
use super::{DEFAULT_TIMEOUT, RetryPolicy, TIMEOUT_RANGE};
use crate::base::field::{Flag, FlagValue};
use crate::base::invalid::did_you_mean;
use crate::base::json::typed;
use crate::domain::task::Notify;

/// Failures after which a task may be paused.
const FAILURES: RangeInclusive<u64> = 1..=1_000;
/// Runs that a task may be limited to.
const RUNS: RangeInclusive<u64> = 1..=1_000_000_000;
/// Largest metadata, in bytes of JSON.
const METADATA_BYTES: usize = 16 * 1024;

task_fields! {
    /// Which ends of its runs are told: `on_change`, results that differ from the one told last, and failures. A
    /// failure is told once for its cause; the same again is counted and summed up once a day, and the next success
    /// says so. Absent: `always`.
    #[serde(default, skip_serializing_if = "Notify::is_always")]
    notify: Notify = NotifyField,
    /// Automatic fires at most, one included that is skipped for overlap; null is no limit.
    #[schema(required)]
    max_runs: Option<u64> = MaxRuns,
    /// Of running, not of waiting.
    timeout_seconds: u64 = Timeout,
    /// Attempts of a run and the waits between them.
    retry: RetryPolicy = RetryField,
    /// Pause after this many failed runs in a row, retries used up; null never.
    #[schema(required)]
    pause_after_failures: Option<u32> = PauseAfterFailures,
    /// Free data of the owner, at hand in expressions and templates: at most 16 KiB.
    metadata: Map<String, Value> = Metadata,
}

/// Says of a field within which bounds it is written, and its default.
fn describe(object: &mut Object, field: &str, range: Option<RangeInclusive<u64>>, default: impl Serialize) {
    let Some(RefOr::T(Schema::Object(field))) = object.properties.get_mut(field) else { return };
    if let Some(range) = range {
        (field.minimum, field.maximum) = (Some((*range.start()).into()), Some((*range.end()).into()));
    }
    field.default = serde_json::to_value(default).ok().filter(|default| !default.is_null());
}

/// The description of a field.
pub(super) trait TaskField {
    /// The field in a spec.
    type Value: Clone + Serialize;

    /// Numbers that may be written.
    const RANGE: Option<RangeInclusive<u64>> = None;
    /// Flags of `reveille task create` and `update`.
    const FLAGS: &'static [Flag];

    /// The field of a task that says nothing of it, or `null`.
    fn default() -> Self::Value;

    /// Reads what stands at `at`. `None` exactly when a fault was added, with what would be right.
    fn read(reader: &mut DraftReader<'_>, at: &str, value: &Value) -> Option<Self::Value>;
}

struct NotifyField;

impl TaskField for NotifyField {
    type Value = Notify;

    const FLAGS: &'static [Flag] = &[Flag {
        name: "--notify",
        takes: FlagValue::Text("WHEN"),
        field: "notify",
        help: "Which ends of runs are told: always, on_change, on_failure or never",
    }];

    fn default() -> Notify {
        Notify::Always
    }

    fn read(reader: &mut DraftReader<'_>, at: &str, value: &Value) -> Option<Notify> {
        let word = reader.text(at, value)?;
        let read = Notify::ALL.into_iter().find(|notify| notify.as_str() == word);
        if read.is_none() {
            let words = Notify::ALL.map(Notify::as_str);
            let message = format!("must be one of {}{}", words.join(", "), did_you_mean(&word, words));
            reader.faults.add(at, message);
        }
        read
    }
}

struct MaxRuns;

impl TaskField for MaxRuns {
    type Value = Option<u64>;

    const RANGE: Option<RangeInclusive<u64>> = Some(RUNS);
    const FLAGS: &'static [Flag] = &[Flag {
        name: "--max-runs",
        takes: FlagValue::Number("N"),
        field: "max_runs",
        help: "Stop after so many fires",
    }];

    fn default() -> Option<u64> {
        None
    }

    fn read(reader: &mut DraftReader<'_>, at: &str, value: &Value) -> Option<Option<u64>> {
        reader.number(at, value, RUNS).map(Some)
    }
}

struct Timeout;

impl TaskField for Timeout {
    type Value = u64;

    const RANGE: Option<RangeInclusive<u64>> = Some(TIMEOUT_RANGE);
    const FLAGS: &'static [Flag] = &[Flag {
        name: "--timeout",
        takes: FlagValue::Seconds("LENGTH"),
        field: "timeout_seconds",
        help: "Longest running time of a run, such as `10m`",
    }];

    fn default() -> u64 {
        DEFAULT_TIMEOUT
    }

    fn read(reader: &mut DraftReader<'_>, at: &str, value: &Value) -> Option<u64> {
        reader.number(at, value, TIMEOUT_RANGE)
    }
}

struct RetryField;

impl TaskField for RetryField {
    type Value = RetryPolicy;

    const FLAGS: &'static [Flag] = &[
        Flag {
            name: "--max-attempts",
            takes: FlagValue::Number("N"),
            field: "retry.max_attempts",
            help: "Attempts at a run in all",
        },
        Flag {
            name: "--backoff",
            takes: FlagValue::Seconds("LENGTH"),
            field: "retry.backoff_seconds",
            help: "First wait between attempts, doubled each time",
        },
    ];

    fn default() -> RetryPolicy {
        RetryPolicy::default()
    }

    fn read(reader: &mut DraftReader<'_>, at: &str, value: &Value) -> Option<RetryPolicy> {
        if !value.is_object() {
            reader.faults.add(at, "must be an object, such as {\"max_attempts\": 3, \"backoff_seconds\": 10}");
            return None;
        }
        let before = reader.faults.0.len();
        let retry = typed::read(value, at, &mut reader.faults);
        retry.filter(|_| reader.faults.0.len() == before)
    }
}

struct PauseAfterFailures;

impl TaskField for PauseAfterFailures {
    type Value = Option<u32>;

    const RANGE: Option<RangeInclusive<u64>> = Some(FAILURES);
    const FLAGS: &'static [Flag] = &[Flag {
        name: "--pause-after-failures",
        takes: FlagValue::Number("N"),
        field: "pause_after_failures",
        help: "Pause the task after so many failed runs in a row",
    }];

    fn default() -> Option<u32> {
        None
    }

    fn read(reader: &mut DraftReader<'_>, at: &str, value: &Value) -> Option<Option<u32>> {
        reader.number(at, value, FAILURES).map(|n| u32::try_from(n).ok())
    }
}

struct Metadata;

impl TaskField for Metadata {
    type Value = Map<String, Value>;

    /// Typed key by key: the flag is one of its own.
    const FLAGS: &'static [Flag] = &[];

    fn default() -> Map<String, Value> {
        Map::new()
    }

    fn read(reader: &mut DraftReader<'_>, at: &str, value: &Value) -> Option<Map<String, Value>> {
        let Some(metadata) = value.as_object() else {
            reader.faults.add(at, "must be an object");
            return None;
        };
        let bytes = value.to_string().len();
        if bytes > METADATA_BYTES {
            reader.faults.add(at, format!("must be at most {METADATA_BYTES} bytes of JSON, is {bytes}"));
            return None;
        }
        Some(metadata.clone())
    }
}
