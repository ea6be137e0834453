//! Instants in answers of the API.

use chrono::{DateTime, Utc};
use serde_json::Value;

/// An instant of the API; `None` of what is none.
pub fn instant(value: &Value) -> Option<DateTime<Utc>> {
    value.as_str()?.parse().ok()
}
