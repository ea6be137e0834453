//! The scope after a step.

use std::sync::Arc;

use serde_json::Value;

use crate::executor::pipeline::context::StepContext;
use crate::executor::pipeline::scope::{StepScope, bytes};
use crate::executor::pipeline::spec::{StepSpec, StepWork};

impl StepContext {
    /// The scope after a step: what it gave, for those behind it, and (where it did not fail) what it stored.
    pub async fn after_step(&self, scope: StepScope, step: &StepSpec, done: bool, value: Value) -> StepScope {
        let kind = match &step.what {
            StepWork::One(kind) if done => Some(Arc::clone(kind)),
            _ => None,
        };
        let name = step.name.clone();
        self.with(scope, bytes(&value), move |scope| {
            if let Some(kind) = kind {
                kind.record_outcome(&value, scope);
            }
            scope.step(&name, value);
        })
        .await
    }
}
