//! The part of a task that can't go on as it is stored.

use crate::base::words::words;

words! {
    /// The part of a task for which it is disabled; another one in its place mends the task.
    pub enum FaultyPart {
        /// Its trigger can't be computed.
        Trigger = "trigger",
        /// Its action can't be executed.
        Action = "action",
    }
}
