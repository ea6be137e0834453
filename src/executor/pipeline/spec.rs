//! A pipeline as it was written: steps in order, each of one kind, with its limits.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};

use crate::base::expr::Expression;
use crate::base::invalid::{NAMED, ValidationErrors, did_you_mean};
use crate::base::template::Tree;
use crate::domain::budget::{TASK_KEY, TaskBudget};
use crate::executor::pipeline::kind::StepKind;
use crate::executor::pipeline::kinds::KINDS;
use crate::executor::pipeline::parts::StepParts;
use crate::executor::pipeline::reading::{StepReader, given};
use crate::executor::task_rules::{TASK_RULES_KEY, check_task_rules};

/// Most steps of a pipeline.
const STEPS: usize = 50;
/// Longest name of a step.
const NAME_LENGTH: usize = 64;
/// Time limits that may be asked for, in seconds.
const TIMEOUTS: std::ops::RangeInclusive<u64> = 1..=3_600;
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(30);
/// A model takes longer; for an agent its entry says, or `[react]`.
const MODEL_TIMEOUT: Duration = Duration::from_secs(300);
/// Repetitions that may be asked for.
const RETRIES: std::ops::RangeInclusive<u64> = 0..=10;
/// First waits that may be asked for, in seconds.
const BACK_OFFS: std::ops::RangeInclusive<u64> = 0..=60;
const DEFAULT_BACK_OFF: Duration = Duration::from_secs(1);
/// Fields of a step besides its kind.
const FIELDS: [&str; 4] = ["name", "timeout_seconds", "retry", "on_error"];
const FOR_EACH: &str = "for_each";

/// Steps, and what the run answers.
pub struct PipelineSpec {
    pub steps: Vec<StepSpec>,
    pub output: Option<Tree>,
}

pub struct StepSpec {
    pub name: String,
    pub kind: &'static str,
    pub what: StepWork,
    pub timeout: Duration,
    pub retry: StepRetry,
    pub on_error: OnError,
}

pub enum StepWork {
    One(Arc<dyn StepKind>),
    Each(Box<ForEach>),
}

/// `for_each`: a step that is executed for each item of a list.
pub struct ForEach {
    /// The list.
    pub items: Expression,
    /// Executed for each item; its name is the outer step's.
    pub step: StepSpec,
    pub concurrency: usize,
}

/// How often a failure that time may heal is tried again within the run, and how soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRetry {
    pub count: u32,
    /// The first wait; doubled each time up to a minute, with full jitter.
    pub back_off: Duration,
}

/// The effect of a step's failure on the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// It fails, or is tried again where time may heal it.
    Fail,
    /// It goes on; the step's value is `{"error": {"code", "message"}}`.
    Continue,
    /// It ends here, succeeded, and nobody is told.
    Stop,
}

impl PipelineSpec {
    /// Reads `action.config`; adds all that is wrong, with pointers below `pointer`.
    pub fn read(
        config: &Map<String, Value>,
        pointer: &str,
        parts: &StepParts,
        faults: &mut ValidationErrors,
    ) -> Option<PipelineSpec> {
        let callable: Vec<&str> = parts.tools().names().chain(parts.agents.hidden_names()).collect();
        check_task_rules(config, pointer, &callable, faults);
        PipelineSpec::read_steps(config, (pointer, true), parts, faults, &Cell::default())
    }

    /// As [`PipelineSpec::read`], for a run, which asks a person for fields of agents that are missing or invalid.
    /// `unreadable` is set where a text is at fault whatever is configured: such a pipeline never runs.
    pub fn read_stored(
        config: &Map<String, Value>,
        pointer: &str,
        parts: &StepParts,
        faults: &mut ValidationErrors,
        unreadable: &Cell<bool>,
    ) -> Option<PipelineSpec> {
        PipelineSpec::read_steps(config, (pointer, false), parts, faults, unreadable)
    }

    fn read_steps(
        config: &Map<String, Value>,
        (pointer, is_saved): (&str, bool),
        parts: &StepParts,
        faults: &mut ValidationErrors,
        unreadable: &Cell<bool>,
    ) -> Option<PipelineSpec> {
        let before = faults.0.len();
        let mut names: Vec<String> = Vec::new();
        let mut reading =
            StepReader { parts, faults, pointer: pointer.to_owned(), steps: &[], in_each: false, is_saved, unreadable };
        let whole = Value::Object(config.clone());
        reading.object(&whole, &["steps", "output", TASK_RULES_KEY, TASK_KEY])?;
        TaskBudget::read(config, pointer, reading.faults);
        let written = match reading.need(config, "steps")?.as_array() {
            Some(steps) if (1..=STEPS).contains(&steps.len()) => steps,
            _ => {
                reading.below("steps").unreadable(format!("must be a list of 1 to {STEPS} steps"));
                return None;
            }
        };
        let mut steps: Vec<StepSpec> = Vec::new();
        for (index, value) in written.iter().enumerate() {
            let pointer = format!("{pointer}/steps/{index}");
            let mut reading =
                StepReader { parts, faults, pointer, steps: &names, in_each: false, is_saved, unreadable };
            let name = name_of(value, &mut reading);
            if let Some(step) = name.clone().and_then(|name| StepSpec::read(name, value, &FIELDS, &mut reading)) {
                if step.kind == "llm" && steps.iter().any(|other| other.kind == "llm") {
                    reading.below("llm").fault("there is one `llm` step in a pipeline at most; use `agent` for more");
                }
                steps.push(step);
            }
            names.extend(name);
        }
        let pointer = pointer.to_owned();
        let mut reading = StepReader { parts, faults, pointer, steps: &names, in_each: false, is_saved, unreadable };
        let output = reading.tree(config, "output");
        (faults.0.len() == before).then_some(PipelineSpec { steps, output })
    }
}

fn name_of(step: &Value, reading: &mut StepReader) -> Option<String> {
    let Some(fields) = step.as_object() else {
        reading.fault("a step is an object with a name and one kind");
        return None;
    };
    let name = reading.needed_text(fields, "name")?;
    let fine = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    if name.len() > NAME_LENGTH || !begins || !name.chars().all(fine) {
        let message = format!("must be at most {NAME_LENGTH} letters, digits and `_`, and not begin with a digit");
        reading.below("name").fault(message);
        return None;
    }
    if reading.steps.contains(&name) {
        reading.below("name").fault(format!("another step is named `{name}`"));
        return None;
    }
    Some(name)
}

impl StepSpec {
    /// Reads a step of this name; `fields` are what it may have besides its kind.
    pub fn read(name: String, value: &Value, fields: &[&str], reading: &mut StepReader) -> Option<StepSpec> {
        let written = value.as_object()?;
        let kinds: Vec<&str> = KINDS.iter().map(|(kind, _)| *kind).chain([FOR_EACH]).collect();
        let mut named: Vec<&str> = Vec::new();
        for key in written.keys().map(String::as_str).filter(|key| !fields.contains(key)).take(NAMED + kinds.len()) {
            match kinds.iter().find(|kind| **kind == key) {
                Some(kind) if given(written, kind).is_some() => named.push(kind),
                // null is as good as absent
                Some(_) => {}
                None => {
                    let hint = did_you_mean(key, kinds.iter().chain(fields).copied());
                    let known = kinds.join(", ");
                    reading.below(key).fault(format!("unknown kind of step `{key}`{hint}; there are {known}"));
                }
            }
        }
        let timeout = reading.seconds(written, "timeout_seconds", TIMEOUTS);
        let retry = retry(written, reading);
        let on_error = on_error(written, reading);
        let kind = match named.as_slice() {
            [one] => *one,
            [] => {
                reading.fault(format!("has no kind; there are {}", kinds.join(", ")));
                return None;
            }
            [_, more @ ..] => {
                reading.below(more[0]).fault(format!("can't stand beside `{}`: a step has one kind", named[0]));
                return None;
            }
        };
        let what = match KINDS.iter().find(|(known, _)| *known == kind) {
            Some((_, read)) => StepWork::One(Arc::from(read(&written[kind], &mut reading.below(kind))?)),
            None => StepWork::Each(Box::new(ForEach::read(&name, &written[kind], &mut reading.below(kind))?)),
        };
        let own = match &what {
            StepWork::One(kind) => kind.time_limit(),
            StepWork::Each(_) => None,
        };
        let (kind, usual) = match KINDS.iter().find(|(known, _)| *known == kind) {
            Some((kind @ "agent", _)) => (*kind, reading.parts.agent.settings.agent_limit()),
            Some((kind @ "llm", _)) => (*kind, MODEL_TIMEOUT),
            Some((kind, _)) => (*kind, DEFAULT_TIMEOUT),
            None => (FOR_EACH, DEFAULT_TIMEOUT),
        };
        Some(StepSpec { name, kind, what, timeout: timeout.or(own).unwrap_or(usual), retry, on_error })
    }
}

/// `2`, or `{"count": 2, "backoff_seconds": 5}`.
fn retry(fields: &Map<String, Value>, reading: &mut StepReader) -> StepRetry {
    let mut retry = StepRetry { count: 0, back_off: DEFAULT_BACK_OFF };
    match given(fields, "retry") {
        None => {}
        Some(Value::Number(_)) => retry.count = reading.number(fields, "retry", RETRIES).unwrap_or(0) as u32,
        Some(value) => {
            let mut reading = reading.below("retry");
            if let Some(fields) = reading.object(value, &["count", "backoff_seconds"]) {
                retry.count = reading.number(fields, "count", RETRIES).unwrap_or(0) as u32;
                retry.back_off = reading.seconds(fields, "backoff_seconds", BACK_OFFS).unwrap_or(DEFAULT_BACK_OFF);
            }
        }
    }
    retry
}

fn on_error(fields: &Map<String, Value>, reading: &mut StepReader) -> OnError {
    match reading.word(fields, "on_error", &["fail", "continue", "stop"]).as_deref() {
        Some("continue") => OnError::Continue,
        Some("stop") => OnError::Stop,
        _ => OnError::Fail,
    }
}
