//! The next instant of a schedule.

use chrono::{DateTime, Utc};

/// An instant to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NextFire {
    /// The instant by the schedule.
    pub nominal: DateTime<Utc>,
    /// The instant at which it runs, its jitter included.
    pub run_at: DateTime<Utc>,
}
