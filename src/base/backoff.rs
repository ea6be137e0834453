//! How long is waited before something is tried again.

use std::time::Duration;

/// Exponential with full jitter: a random share of `first` × 2^(`tries` − 1), which is capped at `longest`.
/// `tries` counts from 1; `random` lies in 0..1. Source: Brooker, "Exponential Backoff And Jitter", 2015.
pub fn full_jitter(first: Duration, tries: u32, longest: Duration, random: f64) -> Duration {
    exponential(first, tries.saturating_sub(1), longest).mul_f64(random.clamp(0.0, 1.0))
}

/// After so many looks that found nothing, each further wait is twice as long.
pub const IDLE_AFTER: u32 = 10;

/// The wait after so many looks, one after the other, that found nothing: `first` for a while, in the end `longest`.
pub fn idle_wait(first: Duration, empty: u32, longest: Duration) -> Duration {
    exponential(first, empty.saturating_sub(IDLE_AFTER), longest)
}

fn exponential(first: Duration, times: u32, longest: Duration) -> Duration {
    first.saturating_mul(1_u32.checked_shl(times).unwrap_or(u32::MAX)).min(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_chance_shares_them_out() {
        let wait = |tries, random| full_jitter(Duration::from_secs(10), tries, Duration::from_secs(60), random);
        assert_eq!([wait(1, 1.0), wait(2, 1.0), wait(3, 1.0)].map(|w| w.as_secs()), [10, 20, 40]);
        assert_eq!(wait(4, 1.0), Duration::from_secs(60));
        assert_eq!(wait(u32::MAX, 1.0), Duration::from_secs(60));
        assert_eq!(wait(2, 0.5), Duration::from_secs(10));
        assert_eq!(wait(9, 0.0), Duration::ZERO);
    }

    #[test]
    fn looks_that_find_nothing_become_rare_and_no_rarer_than_the_longest_wait() {
        let wait = |empty| idle_wait(Duration::from_secs(1), empty, Duration::from_secs(8)).as_secs();
        assert_eq!(
            [0, IDLE_AFTER, IDLE_AFTER + 1, IDLE_AFTER + 2, IDLE_AFTER + 3, IDLE_AFTER + 4, u32::MAX].map(wait),
            [1, 1, 2, 4, 8, 8, 8]
        );
    }
}
