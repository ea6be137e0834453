//! Kinds of questions to people, and what a run waits for.

use serde_json::Value;
use uuid::Uuid;

use crate::base::words::words;

words! {
    /// Kind of a question.
    #[derive(Default, utoipa::ToSchema)]
    pub enum QuestionKind {
        /// Whether a call may be executed.
        #[default]
        Approval = "approval",
        /// For arguments that a call lacks.
        Input = "input",
    }
}

/// A question that was put and is open, or whose call is held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenQuestion {
    /// Id of the question.
    pub id: Uuid,
    /// The turn whose call it is about.
    pub turn: i64,
    /// Its kind.
    pub kind: QuestionKind,
}

/// The part of a call that only a person can supply.
#[derive(Debug, Clone, PartialEq)]
pub struct InputForm {
    /// The question, in a sentence.
    pub question: String,
    /// Each thing that is missing and why, on a line of its own; empty: the question says it all.
    pub description: String,
    /// JSON Schema of the arguments as they have to be.
    pub parameters: Value,
    /// The arguments that are there.
    pub values: Value,
}
