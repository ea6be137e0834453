//! Reading the fields of a task one by one.

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use crate::base::invalid::ValidationErrors;
use crate::domain::task::TaskValidator;

/// Reads field by field and collects the faults. A reading of one field is `None` exactly when a fault was added.
pub(super) struct DraftReader<'a> {
    pub(super) fields: &'a Map<String, Value>,
    pub(super) validator: &'a TaskValidator,
    pub(super) now: DateTime<Utc>,
    pub(super) faults: ValidationErrors,
}

impl DraftReader<'_> {
    /// A field that is there, or what it was, or its default. Null is the default; without one the field must be there.
    pub(super) fn field<T: Clone>(
        &mut self,
        field: &str,
        read: impl Fn(&mut Self, &str, &Value) -> Option<T>,
        was: Option<&T>,
        default: Option<T>,
    ) -> Option<T> {
        let at = format!("/{field}");
        match (self.fields.get(field), default) {
            (Some(Value::Null), Some(default)) => Some(default),
            (Some(value), _) => read(self, &at, value),
            (None, default) => was.cloned().or(default).or_else(|| {
                self.faults.add(at, "is missing");
                None
            }),
        }
    }

    pub(super) fn text(&mut self, at: &str, value: &Value) -> Option<String> {
        if value.as_str().is_none() {
            self.faults.add(at, "must be a text");
        }
        value.as_str().map(str::to_owned)
    }

    pub(super) fn number(&mut self, at: &str, value: &Value, range: std::ops::RangeInclusive<u64>) -> Option<u64> {
        let number = value.as_u64().filter(|n| range.contains(n));
        if number.is_none() {
            self.faults.add(at, format!("must be a whole number from {} to {}", range.start(), range.end()));
        }
        number
    }
}
