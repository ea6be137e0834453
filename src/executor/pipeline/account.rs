//! The account of one execution of a step: the call of a model or of a tool that it took, as its entry in the ledger
//! keeps it.

use crate::domain::run::transcript::ModelCall;
use crate::domain::run::{ToolRecord, Usage};

/// The calls that a step took.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct StepAccount {
    /// Their usage.
    pub usage: Usage,
    /// The call of a model.
    pub model_call: Option<Box<ModelCall>>,
    /// The call of a tool.
    pub tool_record: Option<Box<ToolRecord>>,
}

impl StepAccount {
    /// A call of a tool.
    pub fn of_tool(record: ToolRecord) -> StepAccount {
        let usage = Usage { tool_calls: 1, ..Usage::default() };
        StepAccount { usage, model_call: None, tool_record: Some(Box::new(record)) }
    }

    /// Usage of a call of a model, and which one answered, if any did.
    pub fn of_model(usage: Usage, model_call: Option<ModelCall>) -> StepAccount {
        StepAccount { usage, model_call: model_call.map(Box::new), tool_record: None }
    }
}
