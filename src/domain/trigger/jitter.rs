//! Spreading fires that fall on one instant, so that ten thousand tasks at 08:00 do not stampede.
//!
//! The spread follows from the task's id and the instant alone, so every instance, before and after any crash, computes
//! the same one. The hash is part of what is promised to stay: it must never change for stored tasks.

use aws_lc_rs::digest::{SHA256, digest};
use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

/// The longest spread, in hours.
pub const LONGEST_HOURS: i64 = 24;

/// How long after its nominal instant a fire of a task runs: at least zero, less than `bound`, in whole milliseconds.
pub fn spread(task_id: Uuid, nominal: DateTime<Utc>, bound: TimeDelta) -> TimeDelta {
    let Ok(bound @ 1..) = u64::try_from(bound.num_milliseconds()) else {
        return TimeDelta::zero();
    };
    let mut identity = [0_u8; 24];
    identity[..16].copy_from_slice(task_id.as_bytes());
    identity[16..].copy_from_slice(&nominal.timestamp_millis().to_be_bytes());
    let hash = digest(&SHA256, &identity);
    let first = hash.as_ref().iter().take(8).fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    TimeDelta::milliseconds((first % bound) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    #[test]
    fn spread_of_a_task_and_an_instant_never_changes() {
        let id = Uuid::from_u128(0x0192_0000_0000_7000_8000_0000_0000_0001);
        let minute = TimeDelta::minutes(1);
        assert_eq!(spread(id, at("2026-11-20T08:00:00Z"), minute).num_milliseconds(), KNOWN[0]);
        assert_eq!(spread(id, at("2026-11-21T08:00:00Z"), minute).num_milliseconds(), KNOWN[1]);
        assert_eq!(spread(Uuid::nil(), at("2026-11-20T08:00:00Z"), minute).num_milliseconds(), KNOWN[2]);
    }

    /// Computed apart from this code: SHA-256 of id and milliseconds, first eight bytes, modulo 60,000.
    const KNOWN: [i64; 3] = [6757, 37213, 52625];

    #[test]
    fn ten_thousand_tasks_fill_the_spread_evenly() {
        let mut buckets = [0_u32; 10];
        for task in 0..10_000_u128 {
            let offset = spread(Uuid::from_u128(task), at("2026-11-20T08:00:00Z"), TimeDelta::seconds(10));
            buckets[offset.num_seconds() as usize] += 1;
        }
        assert!(buckets.iter().all(|n| (850..1150).contains(n)), "{buckets:?}");
    }

    #[test]
    fn jitter_of_zero_moves_nothing() {
        for bound in [TimeDelta::zero(), TimeDelta::milliseconds(-5), TimeDelta::milliseconds(1)] {
            assert_eq!(spread(Uuid::nil(), at("2026-11-20T08:00:00Z"), bound), TimeDelta::zero());
        }
    }
}
