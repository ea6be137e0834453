//! How long is waited before something is tried again.

use std::time::Duration;

/// Exponential with full jitter: a random share of `first` × 2^(`tries` − 1), which is capped at `longest`.
/// `tries` counts from 1; `random` lies in 0..1. Source: Brooker, "Exponential Backoff And Jitter", 2015.
pub fn full_jitter(first: Duration, tries: u32, longest: Duration, random: f64) -> Duration {
    let doubled = first.saturating_mul(1_u32.checked_shl(tries.saturating_sub(1)).unwrap_or(u32::MAX));
    doubled.min(longest).mul_f64(random.clamp(0.0, 1.0))
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
}
