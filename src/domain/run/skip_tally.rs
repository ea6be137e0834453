//! Skip tallies: the fires of a task that are skipped for a quota or a halt have one record together for each hour and
//! reason. While its tenant has stored all that it may, so have its events that are skipped for any reason.
//!
//! A record each would let a tenant beyond its quota store without end, for it is skipped as often as it fires.

use chrono::{DateTime, Utc};

use crate::domain::halt::HaltKind;
use crate::domain::quota::REASON_QUOTA;
use crate::domain::run::{MissedInstants, Run};

/// The beginning of the fire keys of tallies, which go on with the hour and the reason.
pub const TALLY_KEY: &str = "h:";
/// Seconds for which a tally stands.
const HOUR: i64 = 3600;

/// Whether fires that are skipped for this reason are tallied, however much room their tenant has.
pub fn is_tallied(reason: &str) -> bool {
    reason == REASON_QUOTA || HaltKind::WORDS.contains(&reason)
}

/// The word of a reason. The words are a closed set of the service's; what a fault says behind a colon has names that a
/// tenant gave.
pub fn word_of(reason: &str) -> &str {
    reason.split_once(':').map_or(reason, |(word, _)| word)
}

/// The beginning of an instant's hour.
pub fn hour_of(at: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp(at.timestamp() - at.timestamp().rem_euclid(HOUR), 0).unwrap_or(at)
}

/// The beginning of the hour after an instant's hour.
pub fn next_hour_of(at: DateTime<Utc>) -> DateTime<Utc> {
    DateTime::from_timestamp(hour_of(at).timestamp() + HOUR, 0).unwrap_or(at)
}

impl MissedInstants {
    /// Takes further ones in.
    pub fn extend_by(&mut self, more: &MissedInstants) {
        self.from = self.from.min(more.from);
        self.to = self.to.max(more.to);
        self.count = self.count.zip(more.count).map(|(count, more)| count.saturating_add(more));
    }
}

impl Run {
    /// The fires for which it stands as a tally; `None`: it is no tally.
    pub fn tallied_fires(&self) -> Option<&MissedInstants> {
        self.missed.as_ref().filter(|_| self.fire_key.starts_with(TALLY_KEY))
    }

    /// The instants for which a retry of it stands besides its own: of a tally all but the latest.
    pub fn earlier_instants(&self) -> Option<MissedInstants> {
        let Some(fires) = self.tallied_fires() else { return self.missed.clone() };
        let count = fires.count.map(|count| count.saturating_sub(1));
        Some(MissedInstants { count, ..fires.clone() }).filter(|earlier| earlier.count != Some(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().expect("an instant")
    }

    #[test]
    fn quota_and_each_kind_of_halt_are_tallied_and_rules_of_the_task_are_not() {
        for reason in ["quota", "stopped", "tenant_disabled"] {
            assert!(is_tallied(reason), "{reason}");
        }
        for reason in ["overlap", "throttled", "paused", "quotas", ""] {
            assert!(!is_tallied(reason), "{reason}");
        }
    }

    #[test]
    fn word_of_a_reason_ends_before_what_a_fault_says() {
        let words = ["filter_error: there is no `a: b`", "filter_error", "too_old", ""].map(word_of);
        assert_eq!(words, ["filter_error", "filter_error", "too_old", ""]);
    }

    #[test]
    fn hour_begins_at_its_first_instant_and_ends_before_that_of_the_next() {
        let hour = at("2027-03-01T08:00:00Z");
        for inside in ["2027-03-01T08:00:00Z", "2027-03-01T08:30:00.5Z", "2027-03-01T08:59:59.999Z"] {
            assert_eq!((hour_of(at(inside)), next_hour_of(at(inside))), (hour, at("2027-03-01T09:00:00Z")), "{inside}");
        }
        assert_eq!(hour_of(at("2027-03-01T09:00:00Z")), at("2027-03-01T09:00:00Z"));
        assert_eq!(hour_of(at("1969-12-31T23:59:59Z")), at("1969-12-31T23:00:00Z"));
    }

    #[test]
    fn retry_of_a_tally_stands_for_all_its_fires_but_the_latest_beside_its_own() {
        let of = |key: &str, count| {
            let (from, to) = (at("2027-03-01T08:00:00Z"), at("2027-03-01T08:10:00Z"));
            let run = Run::queued(uuid::Uuid::nil(), uuid::Uuid::nil(), "ann", key, "schedule", to, to);
            let run = Run { missed: Some(MissedInstants { from, to, count }), ..run };
            (run.tallied_fires().is_some(), run.earlier_instants().map(|earlier| earlier.count))
        };
        assert_eq!(of("h:2027-03-01T08:00:00.000Z/quota", Some(3)), (true, Some(Some(2))));
        assert_eq!(of("h:2027-03-01T08:00:00.000Z/quota", Some(1)), (true, None));
        assert_eq!(of("h:2027-03-01T08:00:00.000Z/quota", None), (true, Some(None)));
        assert_eq!(of("s:2027-03-01T08:10:00.000Z", Some(1)), (false, Some(Some(1))));
    }

    #[test]
    fn further_instants_widen_a_span_and_are_counted_with_it() {
        let span = |from: &str, to: &str, count| MissedInstants { from: at(from), to: at(to), count };
        let mut whole = span("2027-03-01T08:10:00Z", "2027-03-01T08:20:00Z", Some(3));
        whole.extend_by(&span("2027-03-01T08:15:00Z", "2027-03-01T08:40:00Z", Some(2)));
        assert_eq!(whole, span("2027-03-01T08:10:00Z", "2027-03-01T08:40:00Z", Some(5)));
        whole.extend_by(&span("2027-03-01T08:00:00Z", "2027-03-01T08:05:00Z", None));
        assert_eq!(whole, span("2027-03-01T08:00:00Z", "2027-03-01T08:40:00Z", None), "too many to count");
    }
}
