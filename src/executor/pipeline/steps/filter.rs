//! `filter`: a CEL expression; false ends the run as succeeded, and nobody is told.

use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::base::expr::{Evaluation, Expression, MissingField};
use crate::executor::pipeline::kind::{Effect, StepAction, StepError, StepFault, StepKind, StepResult};
use crate::executor::pipeline::reading::StepReader;
use crate::executor::pipeline::scope::StepScope;

struct Filter(Expression);

/// Reads a step of this kind.
pub fn read(value: &Value, reading: &mut StepReader) -> Option<Box<dyn StepKind>> {
    Some(Box::new(Filter(reading.expression(value)?)))
}

impl StepKind for Filter {
    fn effect(&self) -> Effect {
        Effect::Nothing
    }

    fn shown(&self, _: &StepScope) -> Result<Value, StepFault> {
        Ok(json!({ "expression": self.0.text() }))
    }

    fn missing(&self, scope: &StepScope) -> Option<MissingField> {
        self.0.missing_in(&scope.cel)
    }

    fn perform<'a>(&'a self, act: &'a StepAction<'a>) -> BoxFuture<'a, Result<StepResult, StepError>> {
        Box::pin(async move {
            let expression = self.0.clone();
            let steps = expression.cost(&act.scope.cel);
            // what is missing makes it false
            let holds = match act.compute(steps, move |scope| Ok(expression.judge(&scope.cel)?)).await? {
                Evaluation::Holds(holds) => holds,
                Evaluation::Misses(name) => {
                    act.world.tell_missing(&self.0, &name, act.step, act.scope).await;
                    false
                }
            };
            Ok(StepResult::plain(Value::Bool(holds)))
        })
    }

    fn ends_run(&self, value: &Value) -> bool {
        *value == Value::Bool(false)
    }
}
