//! Calls that wait for people.

use uuid::Uuid;

use crate::domain::approval::{Approval, OpenQuestion};

/// A call that waits for a person.
pub enum PendingCall {
    /// The question is to be put, in the place of an earlier one.
    Ask(Box<Approval>, Option<Uuid>),
    /// It was put.
    Put(OpenQuestion),
    /// Calls of the agent that is called.
    Delegated(Vec<PendingCall>),
}

impl PendingCall {
    /// Each question by itself.
    pub fn each(self) -> Vec<PendingCall> {
        match self {
            PendingCall::Delegated(calls) => calls.into_iter().flat_map(PendingCall::each).collect(),
            one => vec![one],
        }
    }
}
