//! `for_each`: one step for each item of a list, several at once, each with its own entry in the ledger.

use std::sync::Arc;

use serde_json::Value;

use crate::executor::pipeline::context::StepContext;
use crate::executor::pipeline::kind::{StepFault, StepKind};
use crate::executor::pipeline::reading::StepReader;
use crate::executor::pipeline::schema::{ForEachStep, ItemStep, OnError};
use crate::executor::pipeline::scope::StepScope;
use crate::executor::pipeline::spec::{ForEach, StepSpec, StepWork};

/// Most items of a list.
pub const ITEMS: usize = 1_000;
/// Most items that are executed at once.
const CONCURRENCY: std::ops::RangeInclusive<u64> = 1..=10;
/// Kinds that the inner step may have: a model is not asked once per item, a stored value has one name, and no item may
/// wait for people, because the others would ask beside it.
const KINDS: [&str; 5] = ["http", "tool", "map", "publish", "notify"];

impl ForEach {
    /// `{"items": CEL, "do": {<kind>: …, timeout_seconds?, retry?, on_error?}, "concurrency"?}`.
    pub fn read(name: &str, value: &Value, reading: &mut StepReader) -> Option<ForEach> {
        if reading.in_each {
            reading.fault("a `for_each` can't stand inside of another one");
            return None;
        }
        let fields = reading.object::<ForEachStep>(value)?;
        let items = reading.need(fields, "items").and_then(|items| reading.below("items").expression(items));
        let concurrency = reading.number(fields, "concurrency", CONCURRENCY).unwrap_or(1) as usize;
        let inner = reading.need(fields, "do")?;
        let mut reading = reading.below("do");
        reading.in_each = true;
        if !inner.is_object() {
            reading.fault("must be a step without a name, such as {\"http\": {…}}");
            return None;
        }
        let step = StepSpec::read::<ItemStep>(name.to_owned(), inner, &mut reading)?;
        if !KINDS.contains(&step.kind) {
            reading
                .below(step.kind)
                .fault(format!("can't stand inside of a `for_each`; there can {}", KINDS.join(", ")));
            return None;
        }
        if step.on_error == OnError::Stop {
            reading.below("on_error").fault("an item can't stop the run; say it of the `for_each`");
        }
        Some(ForEach { items: items?, step, concurrency })
    }

    /// The list, as it is now.
    pub async fn list(&self, world: &StepContext, scope: &StepScope) -> Result<Vec<Value>, StepFault> {
        match world.value_of(&self.items, &self.step.name, scope).await? {
            Value::Array(items) if items.len() <= ITEMS => Ok(items),
            Value::Array(items) => {
                let message = format!("the list has {} items, at most {ITEMS} can be gone through", items.len());
                Err(StepFault::new("too_many_items", message))
            }
            _ => Err(StepFault::new("no_list", "`items` gives no list")),
        }
    }

    /// The work that is done for each item.
    pub fn kind(&self) -> &Arc<dyn StepKind> {
        match &self.step.what {
            StepWork::One(kind) => kind,
            StepWork::Each(_) => unreachable!("refused when it was read"),
        }
    }
}
