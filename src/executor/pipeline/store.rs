//! `store`: a value under a name, kept for later runs of the task. Written twice it is the same value.

use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::executor::pipeline::kind::{Act, Done, Effect, StepError, StepFault, StepKind};
use crate::executor::pipeline::reading::{Reading, given};
use crate::executor::pipeline::scope::Scope;
use crate::expr::Expression;
use crate::template::Tree;

/// Largest value, in bytes of JSON.
const VALUE_BYTES: usize = 64 * 1024;
/// Longest name, in characters.
const NAME_LENGTH: usize = 64;

#[derive(Clone)]
struct Store {
    name: String,
    what: What,
}

#[derive(Clone)]
enum What {
    Template(Tree),
    Expression(Expression),
    Delete,
}

/// `{"name": …}` with one of `"value"` (a template), `"expression"` (CEL) and `"delete": true`.
pub fn read(value: &Value, reading: &mut Reading) -> Option<Box<dyn StepKind>> {
    let fields = reading.object(value, &["name", "value", "expression", "delete"])?;
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
        (Some(_), None, false) => What::Template(reading.tree(fields, "value")?),
        (None | Some(Value::Null), Some(text), false) => {
            What::Expression(reading.below("expression").expression(text)?)
        }
        (None | Some(Value::Null), None, true) => What::Delete,
        _ => {
            reading.fault("needs exactly one of `value`, `expression` and `\"delete\": true`");
            return None;
        }
    };
    Some(Box::new(Store { name, what }))
}

impl Store {
    fn value(&self, scope: &Scope) -> Result<Option<Value>, StepFault> {
        let value = match &self.what {
            What::Template(tree) => tree.value(&scope.template)?,
            What::Expression(expression) => expression.value(&scope.cel)?,
            What::Delete => return Ok(None),
        };
        bounded(value).map(Some)
    }

    async fn write(&self, act: &Act<'_>) -> Result<Done, StepFault> {
        let (world, this, steps) = (act.world, self.clone(), self.steps(act.scope));
        let value = match &self.what {
            What::Expression(expression) => Some(bounded(world.value_of(expression, act.step, act.scope).await?)?),
            What::Template(_) | What::Delete => act.compute(steps, move |scope| this.value(scope)).await?,
        };
        world.host.put_task_state(&world.tenant, world.task_id, &self.name, value.clone()).await?;
        Ok(Done::plain(value.unwrap_or_default()))
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

impl StepKind for Store {
    fn effect(&self) -> Effect {
        Effect::Repeatable
    }

    fn steps(&self, scope: &Scope) -> u64 {
        match &self.what {
            What::Template(tree) => tree.steps(&scope.template),
            What::Expression(expression) => expression.cost(&scope.cel),
            What::Delete => 0,
        }
    }

    fn shown(&self, scope: &Scope) -> Result<Value, StepFault> {
        Ok(match self.value(scope)? {
            Some(value) => json!({ "name": self.name, "value": value }),
            None => json!({ "name": self.name, "delete": true }),
        })
    }

    fn perform<'a>(&'a self, act: &'a Act<'a>) -> BoxFuture<'a, Result<Done, StepError>> {
        Box::pin(async move { Ok(self.write(act).await?) })
    }

    fn settle(&self, value: &Value, scope: &mut Scope) {
        let value = (!matches!(self.what, What::Delete)).then(|| value.clone());
        scope.stored(&self.name, value);
    }
}
