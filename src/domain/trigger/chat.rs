//! The trigger of a conversation: a person's message, and nothing else, makes a run.

use serde::{Deserialize, Serialize};

use crate::domain::trigger::Overlap;

/// Nobody writes it: a conversation is made by its first message.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ChatTrigger {
    /// Each message waits for the answer to the one before.
    pub overlap: Overlap,
}

impl ChatTrigger {
    /// The word in `type`, which is also the `trigger_type` of its runs.
    pub const KIND: &str = "chat";
}

impl Default for ChatTrigger {
    fn default() -> ChatTrigger {
        ChatTrigger { overlap: Overlap::QueueAll }
    }
}
