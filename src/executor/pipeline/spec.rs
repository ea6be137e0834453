//! A pipeline as it was written: steps in order, each of one kind, with its limits.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use utoipa::PartialSchema;

use crate::base::expr::Expression;
use crate::base::invalid::{NAMED, ValidationErrors, did_you_mean};
use crate::base::json::typed::field_names;
use crate::base::template::{Tree, inserting_texts};
use crate::domain::budget::TaskBudget;
use crate::executor::pipeline::kind::StepKind;
use crate::executor::pipeline::kinds::KINDS;
use crate::executor::pipeline::parts::StepParts;
use crate::executor::pipeline::reading::{StepReader, given};
use crate::executor::pipeline::schema::{OnError, PacedRetries, PipelineConfig, PipelineStep};
use crate::executor::task_rules::check_task_rules;

/// Most steps of a pipeline.
const STEPS: usize = 50;
/// Most texts of a pipeline that insert something: each is read at every run.
const TEMPLATES: usize = 1_000;
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
const FOR_EACH: &str = "for_each";

/// Steps, and what the run answers.
pub struct PipelineSpec {
    /// In the order in which they are executed.
    pub steps: Vec<StepSpec>,
    /// The template of the answer; `None`: the value of the last step.
    pub output: Option<Tree>,
}

/// One step, read and checked: its work, and what holds for all kinds.
pub struct StepSpec {
    /// Unique within the pipeline.
    pub name: String,
    /// As it is written: `http`, `for_each`, …
    pub kind: &'static str,
    /// The effect that the step has.
    pub what: StepWork,
    /// How long one execution may take.
    pub timeout: Duration,
    /// How often a failure is tried again within the run.
    pub retry: StepRetry,
    /// The effect of a failure on the run.
    pub on_error: OnError,
}

/// The work of a step: done once, or for each item of a list.
pub enum StepWork {
    /// The work of any kind but `for_each`.
    One(Arc<dyn StepKind>),
    /// The work of `for_each`.
    Each(Box<ForEach>),
}

/// `for_each`: a step that is executed for each item of a list.
pub struct ForEach {
    /// The list.
    pub items: Expression,
    /// Executed for each item; its name is the outer step's.
    pub step: StepSpec,
    /// Items that are executed at once.
    pub concurrency: usize,
}

/// How often a failure that time may heal is tried again within the run, and how soon.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepRetry {
    /// Executions after the first.
    pub count: u32,
    /// The first wait; doubled each time up to a minute, with full jitter.
    pub back_off: Duration,
}

impl PipelineSpec {
    /// Reads `action.config`; adds all that is wrong, with pointers below `pointer`.
    pub fn read(
        config: &Map<String, Value>,
        pointer: &str,
        parts: &StepParts,
        faults: &mut ValidationErrors,
    ) -> Option<PipelineSpec> {
        let tools = parts.tools();
        let callable: Vec<&str> = tools.known_names().chain(parts.agents.hidden_names()).collect();
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
        reading.object::<PipelineConfig>(&whole)?;
        let inserting = inserting_texts(&whole);
        if inserting > TEMPLATES {
            let why = format!("at most {TEMPLATES} texts of a pipeline may insert something, here {inserting} do");
            reading.unreadable(why);
            return None;
        }
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
            let step = name.clone().and_then(|name| StepSpec::read::<PipelineStep>(name, value, &mut reading));
            if let Some(step) = step {
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

/// The kinds that a step may be of.
fn all_kinds() -> impl Iterator<Item = &'static str> {
    KINDS.into_iter().map(|(kind, _)| kind).chain([FOR_EACH])
}

impl StepSpec {
    /// Reads a step of this name; a `T` is published of it. Which of all kinds may stand here is for the caller to say.
    pub fn read<T: PartialSchema + 'static>(name: String, value: &Value, reading: &mut StepReader) -> Option<StepSpec> {
        let written = value.as_object()?;
        let named = named_kinds::<T>(written, reading);
        let timeout = reading.seconds(written, "timeout_seconds", TIMEOUTS);
        let retry = retry(written, reading);
        let on_error = on_error(written, reading);
        let kind = only_kind(&named, reading)?;
        let what = StepWork::read(kind, &name, &written[kind], &mut reading.below(kind))?;
        let timeout = timeout.or(what.time_limit()).unwrap_or_else(|| usual_time_limit(kind, reading.parts));
        Some(StepSpec { name, kind, what, timeout, retry, on_error })
    }
}

impl StepWork {
    /// Reads what stands under a kind in the step of this name.
    fn read(kind: &str, name: &str, value: &Value, reading: &mut StepReader) -> Option<StepWork> {
        Some(match KINDS.iter().find(|(known, _)| *known == kind) {
            Some((_, read)) => StepWork::One(Arc::from(read(value, reading)?)),
            None => StepWork::Each(Box::new(ForEach::read(name, value, reading)?)),
        })
    }

    /// The time limit that the work itself asks for.
    fn time_limit(&self) -> Option<Duration> {
        match self {
            StepWork::One(kind) => kind.time_limit(),
            StepWork::Each(_) => None,
        }
    }
}

/// The kinds that a step has, with a fault for each field that is neither a kind nor one of a `T`.
fn named_kinds<T: PartialSchema + 'static>(
    written: &Map<String, Value>,
    reading: &mut StepReader,
) -> Vec<&'static str> {
    let kinds: Vec<&'static str> = all_kinds().collect();
    let fields: Vec<&str> = field_names::<T>().iter().copied().filter(|field| !kinds.contains(field)).collect();
    let mut named: Vec<&'static str> = Vec::new();
    for key in written.keys().map(String::as_str).filter(|key| !fields.contains(key)).take(NAMED + kinds.len()) {
        match kinds.iter().find(|kind| **kind == key) {
            Some(kind) if given(written, kind).is_some() => named.push(kind),
            // null is as good as absent
            Some(_) => {}
            None => {
                let hint = did_you_mean(key, kinds.iter().chain(&fields).copied());
                let known = kinds.join(", ");
                reading.below(key).fault(format!("unknown kind of step `{key}`{hint}; there are {known}"));
            }
        }
    }
    named
}

/// The one kind that a step has; `None`, with a fault, where it has none or several.
fn only_kind(named: &[&'static str], reading: &mut StepReader) -> Option<&'static str> {
    match named {
        [one] => Some(*one),
        [] => {
            reading.fault(format!("has no kind; there are {}", all_kinds().collect::<Vec<_>>().join(", ")));
            None
        }
        [first, more, ..] => {
            reading.below(more).fault(format!("can't stand beside `{first}`: a step has one kind"));
            None
        }
    }
}

/// How long a step of a kind may take where neither the step nor its work says.
fn usual_time_limit(kind: &str, parts: &StepParts) -> Duration {
    match kind {
        "agent" => parts.agent.settings.agent_limit(),
        "llm" => MODEL_TIMEOUT,
        _ => DEFAULT_TIMEOUT,
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
            if let Some(fields) = reading.object::<PacedRetries>(value) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::budget::TASK_KEY;
    use crate::executor::pipeline::schema::ItemStep;
    use crate::executor::task_rules::TASK_RULES_KEY;

    #[test]
    fn published_fields_of_a_step_are_its_kinds_and_those_of_all_kinds() {
        let besides = |fields: &[&'static str]| -> Vec<&'static str> {
            fields.iter().copied().filter(|field| !all_kinds().any(|kind| kind == *field)).collect()
        };
        let step = field_names::<PipelineStep>();
        assert_eq!(all_kinds().filter(|kind| !step.contains(kind)).count(), 0, "each kind is published");
        assert_eq!(besides(step), ["name", "on_error", "retry", "timeout_seconds"]);
        assert_eq!(besides(field_names::<ItemStep>()), ["on_error", "retry", "timeout_seconds"]);
    }

    #[test]
    fn published_fields_of_a_pipeline_are_those_that_are_read_of_it() {
        let mut read = ["steps", "output", TASK_RULES_KEY, TASK_KEY];
        read.sort_unstable();
        assert_eq!(field_names::<PipelineConfig>(), read);
    }
}
