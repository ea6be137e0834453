//! Variables of expressions and templates of a pipeline: the fire, the results of earlier steps, stored values.

use std::sync::Arc;

use serde_json::{Map, Value, json};

use crate::base::expr::Variables;
use crate::base::template::Values;
use crate::domain::run::{Cause, Run};
use crate::domain::task::Task;
use crate::executor::pipeline::context::StepContext;

/// The extension attribute that counts through how many pipelines an event came.
pub const HOPS: &str = "reveillehops";

/// The names outside of a `for_each`.
pub const NAMES: [&str; 9] = ["event", "events", "value", "previous", "input", "run", "task", "steps", "state"];
/// The names inside of one.
pub const NAMES_OF_EACH: [&str; 11] =
    ["event", "events", "value", "previous", "input", "run", "task", "steps", "state", "item", "index"];

/// The names whose values nobody outside has written: a prompt may say them in its own words.
pub const OWN_NAMES: [&str; 3] = ["task", "run", "index"];

/// Members of `run`, see [`run_value`].
pub const RUN_MEMBERS: [&str; 8] =
    ["id", "task_id", "tenant_id", "fire_key", "trigger_type", "scheduled_for", "missed", "event_ids"];
/// Members of `task`, see [`task_value`].
pub const TASK_MEMBERS: [&str; 5] = ["id", "name", "tenant_id", "metadata", "instruction"];

/// Steps that converting one byte of JSON takes at most.
const STEPS_A_BYTE: u64 = 40;
/// Bytes of the values of all steps of a run together: behind each step all of them are converted anew.
pub const RESULTS_BYTES: usize = 4 * 1024 * 1024;

/// The values of all names, for both languages. What a fire has not is null. Cheap to clone.
#[derive(Clone, Default)]
pub struct StepScope {
    pub cel: Variables,
    pub template: Values,
    steps: Arc<Map<String, Value>>,
    state: Arc<Map<String, Value>>,
    /// Bytes of all values together, about.
    bytes: usize,
    /// Through how many pipelines the events came.
    hops: i64,
}

/// The cause of a fire, for expressions and templates.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FireScope {
    pub event: Value,
    pub events: Vec<Value>,
    pub value: Value,
    pub previous: Value,
    pub input: Value,
}

impl FireScope {
    /// The values of a run's fire.
    pub fn of(run: &Run) -> FireScope {
        let mut fire = FireScope { input: run.input.clone().unwrap_or_default(), ..FireScope::default() };
        match &run.cause {
            None => {}
            Some(Cause::Event { event, events }) => {
                fire.event = event.clone();
                fire.events = if events.is_empty() { vec![event.clone()] } else { events.clone() };
            }
            Some(Cause::Condition { value, previous, .. }) => {
                fire.value = value.clone();
                fire.previous = previous.clone();
            }
        }
        fire
    }
}

/// The variable `run`: all members that are equal at each attempt.
pub fn run_value(run: &Run) -> Value {
    json!({
        "id": run.id, "task_id": run.task_id, "tenant_id": run.tenant_id, "fire_key": run.fire_key,
        "trigger_type": run.trigger_type, "scheduled_for": run.scheduled_for, "missed": run.missed,
        "event_ids": run.event_ids,
    })
}

/// The variable `task`.
pub fn task_value(task: &Task) -> Value {
    json!({
        "id": task.id, "name": task.name, "tenant_id": task.tenant_id, "metadata": task.spec.metadata,
        "instruction": task.spec.action.instruction,
    })
}

impl StepScope {
    /// The values that a pipeline begins with.
    pub async fn new(
        world: &StepContext,
        fire: FireScope,
        run: Value,
        task: Value,
        state: Map<String, Value>,
    ) -> StepScope {
        let parts = [&fire.event, &fire.value, &fire.previous, &fire.input, &run, &task];
        let bytes = parts.into_iter().chain(&fire.events).chain(state.values()).map(bytes).sum();
        world.with(StepScope::default(), bytes, move |scope| *scope = StepScope::of(&fire, &run, &task, state)).await
    }

    fn of(fire: &FireScope, run: &Value, task: &Value, state: Map<String, Value>) -> StepScope {
        let mut scope = StepScope::default();
        scope.set("event", &fire.event);
        scope.set("events", &json!(fire.events));
        scope.set("value", &fire.value);
        scope.set("previous", &fire.previous);
        scope.set("input", &fire.input);
        scope.set("run", run);
        scope.set("task", task);
        scope.set("steps", &json!({}));
        scope.set("state", &Value::Object(state.clone()));
        scope.state = Arc::new(state);
        let events = fire.events.iter().chain([&fire.event]);
        scope.hops = events.filter_map(|event| event[HOPS].as_i64()).max().unwrap_or(0);
        scope
    }

    /// Steps that it takes to take in so many bytes more: all results are converted again.
    pub fn steps_to_add(&self, bytes: usize) -> u64 {
        (self.bytes + bytes) as u64 * STEPS_A_BYTE
    }

    /// Whether the value of one more step has room beside the others.
    pub fn has_room(&self, bytes: usize) -> bool {
        self.bytes + bytes <= RESULTS_BYTES
    }

    fn set(&mut self, name: &'static str, value: &Value) {
        self.cel.set(name, value);
        self.template.set(name, value);
    }

    /// Through how many pipelines the events came that made the task fire.
    pub fn hops(&self) -> i64 {
        self.hops
    }

    /// Adds the result of a step, for those behind it.
    pub fn step(&mut self, name: &str, value: Value) {
        self.bytes += bytes(&value);
        Arc::make_mut(&mut self.steps).insert(name.to_owned(), value);
        self.set("steps", &Value::Object((*self.steps).clone()));
    }

    /// Sets or removes a value that the pipeline has stored.
    pub fn stored(&mut self, name: &str, value: Option<Value>) {
        match value {
            Some(value) => Arc::make_mut(&mut self.state).insert(name.to_owned(), value),
            None => Arc::make_mut(&mut self.state).remove(name),
        };
        self.set("state", &Value::Object((*self.state).clone()));
    }

    /// The scope inside of a `for_each`.
    pub fn with_item(&self, index: u32, item: &Value) -> StepScope {
        let mut scope = self.clone();
        scope.set("item", item);
        scope.set("index", &json!(index));
        scope
    }
}

/// Bytes of a value, about: as many as its JSON has at least.
pub(super) fn bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(items) => items.iter().map(|item| bytes(item) + 1).sum::<usize>() + 2,
        Value::Object(fields) => fields.iter().map(|(name, field)| name.len() + 4 + bytes(field)).sum::<usize>() + 2,
        _ => 4,
    }
}
