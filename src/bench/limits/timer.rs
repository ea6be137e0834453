//! How late the runtime's own timer is: many sleeps that end at once, and one alone.

use std::time::Duration;

use futures::future::join_all;
use tokio::time::{Instant, sleep_until};

use crate::bench::Samples;

/// How far ahead sleeps are begun.
const AHEAD: Duration = Duration::from_millis(300);

/// So many tasks sleep until the same instant; how late each wakes, in milliseconds.
pub async fn concurrent(count: usize) -> Samples {
    // so that the last is asleep before the first wakes
    let at = Instant::now() + AHEAD + Duration::from_micros(20) * count as u32;
    let sleepers: Vec<_> = (0..count).map(|_| tokio::spawn(lateness(at))).collect();
    let woken = join_all(sleepers).await;
    Samples::new(woken.into_iter().filter_map(Result::ok).collect())
}

/// One sleep after the other.
pub async fn sequential(count: usize, gap: Duration) -> Samples {
    let mut woken = Vec::with_capacity(count);
    for _ in 0..count {
        woken.push(lateness(Instant::now() + gap).await);
    }
    Samples::new(woken)
}

async fn lateness(at: Instant) -> f64 {
    sleep_until(at).await;
    at.elapsed().as_secs_f64() * 1000.0
}
