//! How late something happened, judged from outside: by the database's clock, which is the service's truth, asked here
//! anew and as exactly as it answers. So a service that has the time wrong is late, or early, in its figures, too.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use crate::base::clock::{Clock, machine_now, to_delta};
use crate::bench::{BenchEnv, DirectPool};

/// Questions to the database; the one that was answered soonest counts.
const QUESTIONS: usize = 100;
/// Changes of the machine's clock that are looked at; the one that was seen soonest counts.
const CHANGES: usize = 10;

/// The database's time on the scale of [`Clock::elapsed`].
pub struct Scale {
    now: DateTime<Utc>,
    at: Duration,
}

impl Scale {
    /// Asks for the time.
    pub async fn of(place: &BenchEnv) -> anyhow::Result<Scale> {
        let clock = Clock::system();
        let DirectPool::Postgres(pool) = &place.bare else { return Ok(of_machine(&clock)) };
        let mut connection = pool.acquire().await?;
        let mut best: Option<(Duration, Scale)> = None;
        for _ in 0..QUESTIONS {
            let before = clock.elapsed();
            let now: DateTime<Utc> = sqlx::query_scalar("select clock_timestamp()").fetch_one(&mut *connection).await?;
            let took = clock.elapsed().saturating_sub(before);
            if best.as_ref().is_none_or(|(soonest, _)| took < *soonest) {
                best = Some((took, Scale { now, at: before + took / 2 }));
            }
        }
        Ok(best.map_or_else(|| of_machine(&clock), |(_, scale)| scale))
    }

    /// How much later than an instant something happened, in milliseconds; less than nothing if it was before.
    pub fn late(&self, at: Duration, instant: DateTime<Utc>) -> f64 {
        let since: TimeDelta = to_delta(at) - to_delta(self.at) - (instant - self.now);
        since.num_nanoseconds().unwrap_or(i64::MAX) as f64 / 1e6
    }
}

/// The machine's clock, which SQLite's is, at the moment that it goes on to its next millisecond.
fn of_machine(clock: &Clock) -> Scale {
    let (mut now, mut at) = (machine_now(), clock.elapsed());
    let (mut soonest, mut best) = (Duration::MAX, Scale { now, at });
    let mut changes = 0;
    while changes < CHANGES {
        let (before, since) = (now, at);
        (now, at) = (machine_now(), clock.elapsed());
        // it may be stepped back meanwhile: any change is good
        if now != before {
            changes += 1;
            if at - since < soonest {
                (soonest, best) = (at - since, Scale { now, at });
            }
        }
        std::hint::spin_loop();
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lateness_is_told_finer_than_the_clock_tells_time() {
        let now = DateTime::UNIX_EPOCH + TimeDelta::seconds(100);
        let scale = Scale { now, at: Duration::from_millis(5000) };
        let late = |micros, ahead| scale.late(Duration::from_micros(micros), now + TimeDelta::milliseconds(ahead));
        assert_eq!(late(5_000_250, 0), 0.25);
        assert_eq!(late(7_001_500, 2000), 1.5);
        assert_eq!(late(5_000_000, 3), -3.0);
        let clock = Clock::system();
        let scale = of_machine(&clock);
        // whatever passes between the two looks, the instant lies between these
        let (before, elapsed, after) = (machine_now(), clock.elapsed(), machine_now());
        assert!(scale.late(elapsed, before) > -1.0 && scale.late(elapsed, after) < 2.0);
    }
}
