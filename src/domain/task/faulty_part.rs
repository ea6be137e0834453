//! The part of a task that can't go on as it is stored.

/// The part of a task for which it is disabled; another one in its place mends the task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FaultyPart {
    /// Its trigger can't be computed.
    Trigger,
    /// Its action can't be executed.
    Action,
}

impl FaultyPart {
    /// The word in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            FaultyPart::Trigger => "trigger",
            FaultyPart::Action => "action",
        }
    }

    /// The part of this word; `None` where there is none.
    pub fn parse(word: &str) -> Option<FaultyPart> {
        [FaultyPart::Trigger, FaultyPart::Action].into_iter().find(|part| part.as_str() == word)
    }
}
