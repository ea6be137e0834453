//! `map`: the value of a CEL expression.

use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::executor::pipeline::kind::{Act, Done, Effect, StepError, StepFault, StepKind};
use crate::executor::pipeline::reading::Reading;
use crate::executor::pipeline::scope::Scope;
use crate::expr::{Expression, MissingField};

struct Map(Expression);

pub fn read(value: &Value, reading: &mut Reading) -> Option<Box<dyn StepKind>> {
    Some(Box::new(Map(reading.expression(value)?)))
}

impl StepKind for Map {
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
        Box::pin(async move { Ok(Done::plain(act.world.value_of(&self.0, act.step, act.scope).await?)) })
    }
}
