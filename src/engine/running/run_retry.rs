//! The delay before a run is tried again: by the retry policy of its task, by what the other side asked for, or after
//! an outage of the infrastructure.

use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::base::backoff::full_jitter;
use crate::base::clock::{to_delta, truncate_millis};
use crate::domain::task::RetryPolicy;
use crate::engine::running::ending::RunEnding;

/// The longest wait between two attempts.
const LONGEST_BACK_OFF: Duration = Duration::from_secs(3600);
/// The longest wait that is asked for by the other side, or by the executor.
const LONGEST_ASKED_WAIT: Duration = Duration::from_secs(24 * 3600);
/// The first and the longest wait for it to be mended.
const INFRA_BACK_OFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));

impl RunEnding<'_> {
    /// When the next attempt follows; `None` when there is none left.
    pub fn next_attempt_at(&self, after: Option<Duration>) -> Option<DateTime<Utc>> {
        if self.attempts_left() == 0 {
            return None;
        }
        let first = Duration::from_secs(self.retry().backoff_seconds);
        let tries = self.run.attempt.max(1) as u32;
        let own = full_jitter(first, tries, LONGEST_BACK_OFF, self.random);
        Some(truncate_millis(self.now + to_delta(own.max(after.unwrap_or_default().min(LONGEST_ASKED_WAIT)))))
    }

    /// When a run follows that the infrastructure held up.
    pub fn retry_after_outage(&self) -> DateTime<Utc> {
        let tries = self.run.infra_retries.max(0) as u32 + 1;
        truncate_millis(self.now + to_delta(full_jitter(INFRA_BACK_OFF.0, tries, INFRA_BACK_OFF.1, self.random)))
    }

    /// Attempts that the policy of its task leaves it.
    pub fn attempts_left(&self) -> u32 {
        self.retry().max_attempts.saturating_sub(self.run.attempt.max(0) as u32)
    }

    fn retry(&self) -> RetryPolicy {
        self.task.map(|task| task.spec.retry.clone()).unwrap_or_default()
    }
}
