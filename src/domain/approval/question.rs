//! Kinds of questions to people, and what a run waits for.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::base::words::words;
use crate::domain::approval::{ArgumentFault, ArgumentPart};

/// Longest text that is put into the phrase of a fault, in characters.
const LONGEST_PART: usize = 1_000;

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
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct InputForm {
    /// The question, in a sentence.
    pub question: String,
    /// Each thing that is missing and why, on a line of its own; empty: the question says it all.
    pub description: String,
    /// JSON Schema of the arguments as they have to be.
    pub parameters: Value,
    /// The arguments that are there.
    pub values: Value,
    /// Fields that are missing or invalid, where the question and the description say nothing else. Each reader is told
    /// of them in their own language.
    pub lacks: Vec<FieldFault>,
}

/// A field that a person has to supply, and what is wrong with it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldFault {
    /// Name of the field.
    pub name: String,
    /// The fault. Its place is the field.
    pub fault: ArgumentFault,
}

impl FieldFault {
    /// The fault of a field. Long texts in it are cut for its phrase.
    pub fn new(name: &str, fault: ArgumentFault) -> FieldFault {
        let mut fault = ArgumentFault { pointer: String::new(), ..fault };
        for (_, part) in &mut fault.parts {
            if let ArgumentPart::Text(text) = part
                && let Some((end, _)) = text.char_indices().nth(LONGEST_PART)
            {
                text.truncate(end);
                text.push('…');
            }
        }
        FieldFault { name: name.to_owned(), fault }
    }
}
