//! `map`: the value of a CEL expression.

use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::base::expr::{Expression, MissingField};
use crate::executor::pipeline::kind::{Effect, StepAction, StepError, StepFault, StepKind, StepResult};
use crate::executor::pipeline::reading::StepReader;
use crate::executor::pipeline::scope::StepScope;

struct Map(Expression);

/// Reads a step of this kind.
pub fn read(value: &Value, reading: &mut StepReader) -> Option<Box<dyn StepKind>> {
    Some(Box::new(Map(reading.expression(value)?)))
}

impl StepKind for Map {
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
        Box::pin(async move { Ok(StepResult::plain(act.world.value_of(&self.0, act.step, act.scope).await?)) })
    }
}
