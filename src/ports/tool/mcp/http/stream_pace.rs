//! How often a server's streams of events are opened: a server says itself when its client comes back.

use std::sync::Mutex;
use std::time::Duration;

use tokio::time::Instant;

/// The least time between two streams of a connection that go on behind an event. Each stream may be a use of a
/// credential on the record.
const RESUMED_PACE: Duration = Duration::from_secs(1);
/// The least time between two that begin anew: a server that ends each at once would have them opened without an end.
const FRESH_PACE: Duration = Duration::from_secs(30);

/// The turns of a connection's streams.
#[derive(Default)]
pub struct StreamPace {
    resumed: Mutex<Option<Instant>>,
    fresh: Mutex<Option<Instant>>,
}

impl StreamPace {
    /// Takes the next turn, of a stream that goes on behind an event or of one that begins anew; answers how long that
    /// is from now.
    pub fn take_turn(&self, now: Instant, is_resumed: bool) -> Duration {
        let (next, pace) = match is_resumed {
            true => (&self.resumed, RESUMED_PACE),
            false => (&self.fresh, FRESH_PACE),
        };
        let mut next = next.lock().expect("the lock of turns");
        let turn = next.map_or(now, |next| next.max(now));
        *next = Some(turn + pace);
        turn - now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_that_go_on_are_opened_once_a_second_at_most() {
        let (pace, start) = (StreamPace::default(), Instant::now());
        let at = |millis| pace.take_turn(start + Duration::from_millis(millis), true).as_millis();
        assert_eq!([at(0), at(0), at(500), at(3_000), at(4_000), at(4_001)], [0, 1_000, 1_500, 0, 0, 999]);
    }

    #[test]
    fn streams_that_begin_anew_are_opened_once_in_thirty_seconds_and_hold_up_no_other() {
        let (pace, start) = (StreamPace::default(), Instant::now());
        let at = |seconds, is_resumed| pace.take_turn(start + Duration::from_secs(seconds), is_resumed).as_secs();
        assert_eq!([at(0, false), at(1, false), at(90, false), at(119, false)], [0, 29, 0, 1]);
        assert_eq!([at(1, true), at(1, true)], [0, 1]);
    }
}
