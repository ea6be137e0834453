//! Models over the wire: whole request bodies, answers in one piece and in the oddest pieces, what thinking models want
//! back, and every way to fail.

mod anthropic;
mod any_history;
mod embedding;
pub mod fakes;
mod histories;
mod mail_request;
mod openai;
mod responses;
mod rules;
mod scenarios;
mod server;
mod thinking;
mod tool_names;
mod vendors;

use reveille::ports::llm::{LlmError, ModelAnswer};

/// The answer, if it can be used.
fn usable(answer: ModelAnswer) -> Result<ModelAnswer, LlmError> {
    match answer.failure {
        None => Ok(answer),
        Some(failure) => Err(failure.error),
    }
}
