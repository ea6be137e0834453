//! `store`: a value under a name, kept for later runs of the task. Written twice it is the same value.

use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::base::expr::Expression;
use crate::base::template::Tree;
use crate::executor::pipeline::kind::{Effect, StepAction, StepError, StepFault, StepKind, StepResult};
use crate::executor::pipeline::reading::{StepReader, given};
use crate::executor::pipeline::schema::StoreStep;
use crate::executor::pipeline::scope::StepScope;

/// Largest value, in bytes of JSON.
const VALUE_BYTES: usize = 64 * 1024;
/// Longest name, in characters.
const NAME_LENGTH: usize = 64;

#[derive(Clone)]
struct StoreExecution {
    name: String,
    what: StoreOperation,
}

#[derive(Clone)]
enum StoreOperation {
    Template(Tree),
    Expression(Expression),
    Delete,
}

/// `{"name": …}` with one of `"value"` (a template), `"expression"` (CEL) and `"delete": true`.
pub fn read(value: &Value, reading: &mut StepReader) -> Option<Box<dyn StepKind>> {
    let fields = reading.object::<StoreStep>(value)?;
    let name = reading.needed_text(fields, "name")?;
    if name.chars().count() > NAME_LENGTH || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
        reading.below("name").fault(format!("must be at most {NAME_LENGTH} letters, digits and `_`"));
        return None;
    }
    let delete = match given(fields, "delete") {
        None => false,
        Some(Value::Bool(delete)) => *delete,
        Some(_) => {
            reading.below("delete").fault("must be true or false");
            return None;
        }
    };
    // by itself null is a value, beside another field it is as good as absent
    let what = match (fields.get("value"), given(fields, "expression"), delete) {
        (Some(_), None, false) => StoreOperation::Template(reading.tree(fields, "value")?),
        (None | Some(Value::Null), Some(text), false) => {
            StoreOperation::Expression(reading.below("expression").expression(text)?)
        }
        (None | Some(Value::Null), None, true) => StoreOperation::Delete,
        _ => {
            reading.fault("needs exactly one of `value`, `expression` and `\"delete\": true`");
            return None;
        }
    };
    Some(Box::new(StoreExecution { name, what }))
}

impl StoreExecution {
    fn value(&self, scope: &StepScope) -> Result<Option<Value>, StepFault> {
        let value = match &self.what {
            StoreOperation::Template(tree) => tree.value(&scope.template)?,
            StoreOperation::Expression(expression) => expression.value(&scope.cel)?,
            StoreOperation::Delete => return Ok(None),
        };
        bounded(value).map(Some)
    }

    async fn write(&self, act: &StepAction<'_>) -> Result<StepResult, StepFault> {
        let (world, this, steps) = (act.world, self.clone(), self.steps(act.scope));
        let value = match &self.what {
            StoreOperation::Expression(expression) => {
                Some(bounded(world.value_of(expression, act.step, act.scope).await?)?)
            }
            StoreOperation::Template(_) | StoreOperation::Delete => {
                act.compute(steps, move |scope| this.value(scope)).await?
            }
        };
        world.host.put_task_state(&world.tenant, world.task_id, &self.name, value.clone()).await?;
        Ok(StepResult::plain(value.unwrap_or_default()))
    }
}

fn bounded(value: Value) -> Result<Value, StepFault> {
    match value.to_string().len() {
        ..=VALUE_BYTES => Ok(value),
        length => {
            let message = format!("a stored value has at most {VALUE_BYTES} bytes, this one {length}");
            Err(StepFault::new("value_too_large", message))
        }
    }
}

impl StepKind for StoreExecution {
    fn effect(&self) -> Effect {
        Effect::Repeatable
    }

    fn steps(&self, scope: &StepScope) -> u64 {
        match &self.what {
            StoreOperation::Template(tree) => tree.steps(&scope.template),
            StoreOperation::Expression(expression) => expression.cost(&scope.cel),
            StoreOperation::Delete => 0,
        }
    }

    fn shown(&self, scope: &StepScope) -> Result<Value, StepFault> {
        Ok(match self.value(scope)? {
            Some(value) => json!({ "name": self.name, "value": value }),
            None => json!({ "name": self.name, "delete": true }),
        })
    }

    fn perform<'a>(&'a self, act: &'a StepAction<'a>) -> BoxFuture<'a, Result<StepResult, StepError>> {
        Box::pin(async move { Ok(self.write(act).await?) })
    }

    fn record_outcome(&self, value: &Value, scope: &mut StepScope) {
        let value = (!matches!(self.what, StoreOperation::Delete)).then(|| value.clone());
        scope.stored(&self.name, value);
    }
}
