//! What made a task fire, as its run keeps it: the bus forgets an event long before its run is forgotten.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What made the task fire. Schedules, run now and backfills have none: the run's own instant says all.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Cause {
    Event {
        /// In the structured form of CloudEvents; of a debounced or batched fire the last one.
        event: Value,
        /// All of a debounced or batched fire, in the order in which they came; else empty.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        events: Vec<Value>,
    },
    Condition {
        /// What became true, or was watched.
        expression: String,
        /// What the poll saw.
        value: Value,
        /// What the poll before saw; null at the first.
        #[serde(default)]
        previous: Value,
    },
}
