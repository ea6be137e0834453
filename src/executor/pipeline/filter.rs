//! `filter`: a CEL expression; false ends the run as succeeded, and nobody is told.

use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::executor::pipeline::kind::{Act, Done, Effect, StepError, StepFault, StepKind};
use crate::executor::pipeline::reading::Reading;
use crate::executor::pipeline::scope::Scope;
use crate::expr::{Asked, Expression, MissingField};

struct Filter(Expression);

pub fn read(value: &Value, reading: &mut Reading) -> Option<Box<dyn StepKind>> {
    Some(Box::new(Filter(reading.expression(value)?)))
}

impl StepKind for Filter {
    fn effect(&self) -> Effect {
        Effect::Nothing
    }

    fn shown(&self, _: &Scope) -> Result<Value, StepFault> {
        Ok(json!({ "expression": self.0.text() }))
    }

    fn missing(&self, scope: &Scope) -> Option<MissingField> {
        let error = self.0.value(&scope.cel).err()?;
        Some(self.0.missing(error.missing_field()?, &scope.cel))
    }

    fn perform<'a>(&'a self, act: &'a Act<'a>) -> BoxFuture<'a, Result<Done, StepError>> {
        Box::pin(async move {
            let expression = self.0.clone();
            let steps = expression.cost(&act.scope.cel);
            // what is missing makes it false
            let holds = match act.compute(steps, move |scope| Ok(expression.asked(&scope.cel)?)).await? {
                Asked::Holds(holds) => holds,
                Asked::Misses(name) => {
                    act.world.tell_missing(&self.0, &name, act.step, act.scope).await;
                    false
                }
            };
            Ok(Done::plain(Value::Bool(holds)))
        })
    }

    fn ends_run(&self, value: &Value) -> bool {
        *value == Value::Bool(false)
    }
}
