//! The cause of a fire, as the run keeps it: the bus forgets an event long before its run is forgotten.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Cause of a fire. Schedules, run now and backfills have none: the run's own instant says all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Cause {
    /// Of an event trigger.
    Event {
        /// In the structured form of CloudEvents; of a debounced or batched fire the last one.
        event: Value,
        /// All of a debounced or batched fire, in the order in which they came; else empty.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        events: Vec<Value>,
    },
    /// Of a condition.
    Condition {
        /// The expression that became true, or was watched.
        expression: String,
        /// Value of the poll.
        value: Value,
        /// Value of the poll before; null at the first.
        #[serde(default)]
        previous: Value,
    },
}
