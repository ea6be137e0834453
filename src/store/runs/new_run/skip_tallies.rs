//! Fires that are skipped together, while a batch is decided: those of a task, an hour and a reason are one record.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::domain::run::skip_tally::{TALLY_KEY, hour_of, word_of};
use crate::domain::run::{MissedInstants, RunState};
use crate::store::runs::{NewRun, key_instant};

/// Skipped fires that are recorded together: by their task and the key of the record, in the order in which these are
/// written.
#[derive(Debug, Default)]
pub(in crate::store) struct SkipTallies(BTreeMap<(Uuid, String), SkipTally>);

/// Skipped fires of one record.
#[derive(Debug)]
pub(in crate::store) struct SkipTally {
    /// The record, as it is where there is none yet.
    pub record: NewRun,
    /// The instants of the fires, and those that they would have stood for.
    pub span: MissedInstants,
    fires: usize,
}

impl SkipTallies {
    /// Counts a fire that is skipped for this reason, by its word. It has no record of its own, nor an input, a cause
    /// or events.
    pub fn add(&mut self, fire: NewRun, reason: &str) {
        let reason = word_of(reason);
        let (span, fire_key) = (span_of(&fire), tally_key(fire.scheduled_for, reason));
        match self.0.entry((fire.task_id, fire_key)) {
            Entry::Occupied(mut known) => known.get_mut().extend_by(&span),
            Entry::Vacant(place) => {
                let record = record_of(fire, place.key().1.clone(), reason);
                place.insert(SkipTally { record, span, fires: 1 });
            }
        }
    }

    /// Leaves out the fires of other tasks.
    pub fn keep_tasks(&mut self, keeps: impl Fn(Uuid) -> bool) {
        self.0.retain(|(task_id, _), _| keeps(*task_id));
    }

    /// How many fires there are.
    pub fn fires(&self) -> usize {
        self.0.values().map(|tally| tally.fires).sum()
    }

    /// The reason of each fire.
    pub fn reasons(&self) -> impl Iterator<Item = &str> {
        self.0.values().flat_map(|tally| std::iter::repeat_n(tally.reason(), tally.fires))
    }

    /// The records, in their order.
    pub fn rows(&self) -> Vec<&SkipTally> {
        self.0.values().collect()
    }
}

impl SkipTally {
    fn reason(&self) -> &str {
        self.record.reason.as_deref().unwrap_or_default()
    }

    fn extend_by(&mut self, span: &MissedInstants) {
        self.span.extend_by(span);
        self.fires += 1;
    }
}

/// The beginning of the fire keys of an hour's tallies; they are behind it, and before that of the next hour.
pub(in crate::store) fn tally_hour_key(at: DateTime<Utc>) -> String {
    format!("{TALLY_KEY}{}", key_instant(hour_of(at)))
}

/// The fire key of a tally: of an hour and a reason.
fn tally_key(at: DateTime<Utc>, reason: &str) -> String {
    format!("{}/{reason}", tally_hour_key(at))
}

fn span_of(fire: &NewRun) -> MissedInstants {
    let mut span = MissedInstants { from: fire.scheduled_for, to: fire.scheduled_for, count: Some(1) };
    if let Some(missed) = &fire.missed {
        span.extend_by(missed);
    }
    span
}

fn record_of(fire: NewRun, fire_key: String, reason: &str) -> NewRun {
    NewRun {
        state: RunState::Skipped,
        reason: Some(reason.to_owned()),
        fire_key,
        missed: None,
        event_ids: Vec::new(),
        cause: None,
        input: None,
        ..fire
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fire(task: u128, at: &str) -> NewRun {
        let at: DateTime<Utc> = at.parse().expect("an instant");
        NewRun::of(Uuid::from_u128(task), "ann", "schedule", format!("s:{at}"), at, at)
    }

    #[test]
    fn fires_of_a_task_an_hour_and_a_reason_are_one_record_that_counts_them() {
        let mut tallies = SkipTallies::default();
        for (task, at, reason) in [
            (1, "2027-03-01T08:00:07Z", "quota"),
            (1, "2027-03-01T08:00:05Z", "quota"),
            (1, "2027-03-01T08:59:59Z", "quota"),
            (1, "2027-03-01T08:30:00Z", "stopped"),
            (1, "2027-03-01T09:00:00Z", "quota"),
            (2, "2027-03-01T08:00:00Z", "quota"),
        ] {
            tallies.add(fire(task, at), reason);
        }
        let told = |tally: &&SkipTally| {
            let (record, span) = (&tally.record, &tally.span);
            assert_eq!((record.state, record.missed.as_ref()), (RunState::Skipped, None));
            (record.task_id.as_u128(), record.fire_key.clone(), span.count, span.to - span.from)
        };
        let hour = |hour: &str, reason: &str| format!("h:2027-03-01T{hour}:00:00.000Z/{reason}");
        let seconds = chrono::TimeDelta::seconds;
        assert_eq!(
            tallies.rows().iter().map(told).collect::<Vec<_>>(),
            [
                (1, hour("08", "quota"), Some(3), seconds(3594)),
                (1, hour("08", "stopped"), Some(1), seconds(0)),
                (1, hour("09", "quota"), Some(1), seconds(0)),
                (2, hour("08", "quota"), Some(1), seconds(0)),
            ]
        );
        assert_eq!((tallies.fires(), tallies.reasons().filter(|reason| *reason == "quota").count()), (6, 5));
        tallies.keep_tasks(|task_id| task_id == Uuid::from_u128(2));
        assert_eq!(tallies.fires(), 1);
    }

    #[test]
    fn fires_of_one_word_are_one_record_whatever_their_faults_say() {
        let mut tallies = SkipTallies::default();
        for reason in ["filter_error: there is no `x`", "filter_error: division by zero", "filter_error"] {
            tallies.add(fire(1, "2027-03-01T08:00:00Z"), reason);
        }
        let [tally] = tallies.rows()[..] else { panic!("one record") };
        assert_eq!(tally.record.fire_key, "h:2027-03-01T08:00:00.000Z/filter_error");
        assert_eq!((tally.reason(), tally.span.count), ("filter_error", Some(3)));
    }

    #[test]
    fn fire_that_stands_for_missed_instants_brings_them_along() {
        let missed = fire(1, "2027-03-01T07:10:00Z").scheduled_for;
        let coalesced = NewRun {
            missed: Some(MissedInstants { from: missed, to: missed, count: Some(1) }),
            ..fire(1, "2027-03-01T08:00:00Z")
        };
        let mut tallies = SkipTallies::default();
        tallies.add(coalesced.clone(), "quota");
        let [tally] = tallies.rows()[..] else { panic!("one record") };
        assert_eq!(tally.record.fire_key, "h:2027-03-01T08:00:00.000Z/quota");
        let span = MissedInstants { from: missed, to: coalesced.scheduled_for, count: Some(2) };
        assert_eq!((&tally.span, tallies.fires()), (&span, 1), "one fire, and two instants");
    }
}
