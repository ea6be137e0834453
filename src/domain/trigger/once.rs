//! A single instant. It is considered once, whether it could be fired in time or not, and then the schedule is over.

use chrono::{DateTime, Utc};

use crate::domain::trigger::zone::{WallClock, parse_instant};

/// The instant of an `at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Once(pub DateTime<Utc>);

impl Once {
    /// Reads RFC 3339, or wall time of the zone under its rule for clock changes.
    pub fn parse(text: &str, wall: &WallClock) -> Result<Once, String> {
        parse_instant(text, wall).map(Once)
    }

    /// The instant, if it is strictly after `after`.
    pub fn next_after(&self, after: DateTime<Utc>) -> Option<DateTime<Utc>> {
        (self.0 > after).then_some(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_trigger_fires_once() {
        let at: DateTime<Utc> = "2026-12-24T15:00:00Z".parse().unwrap();
        assert_eq!(Once(at).next_after(at - chrono::TimeDelta::milliseconds(1)), Some(at));
        assert_eq!(Once(at).next_after(at), None);
    }
}
