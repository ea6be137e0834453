//! Records of a task around an instant of its schedule, found by the keys of its fires; and the records of an event.
//!
//! This module writes nothing. It does not find a record that retention has deleted.

use std::collections::HashMap;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::event::Event;
use crate::domain::run::skip_tally::{TALLY_KEY, next_hour_of};
use crate::domain::run::{MissedInstants, Run, RunState};
use crate::domain::trigger::event::reason;
use crate::store::runs::{SELECT_RUN, key_instant, tally_hour_key};
use crate::store::sql::sql;
use crate::store::{Store, StoreError};

/// The first and the last key of an instant.
const KEYS: (&str, &str) = ("s:0001-01-01T00:00:00.000Z", "s:9999-12-31T23:59:59.999Z");
/// The first key of a range.
const FIRST_RANGE: &str = "r:0001-01-01T00:00:00.000Z";
/// The last hour of a tally.
const LAST_HOUR: &str = "9999-12-31T23:59:59.999Z";

/// The records of a task around an instant.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SurroundingRuns {
    /// The record of the instant itself.
    pub at: Option<Run>,
    /// The record of a range that covers the instant: a run that stands for the range, or one record of many skipped
    /// instants. A tally covers all instants from its first to its last fire, even those between that have records of
    /// their own.
    pub covering: Option<Run>,
    /// The record of the nearest earlier instant that has one of its own.
    pub before: Option<Run>,
    /// The record of the nearest later instant that has one of its own.
    pub after: Option<Run>,
}

/// The run of a task ($1) with a key ($2), in a scope ($3). The two statements that follow read the nearest run before
/// and behind the key, as far as another key ($4).
const OWN: &str =
    sql!(SELECT_RUN, "where r.task_id = $1 and r.fire_key = $2 and ($3 is null or r.tenant_id = $3) and $4 = $4");
const BEFORE: &str = sql!(
    SELECT_RUN,
    "where r.task_id = $1 and r.fire_key < $2 and ($3 is null or r.tenant_id = $3) and r.fire_key >= $4
     order by r.fire_key desc limit 1"
);
const AFTER: &str = sql!(
    SELECT_RUN,
    "where r.task_id = $1 and r.fire_key > $2 and ($3 is null or r.tenant_id = $3) and r.fire_key <= $4
     order by r.fire_key limit 1"
);

/// The runs of a task ($1) between two keys ($2 and $4), in a scope ($3): the tallies of an hour, one for each reason.
const BETWEEN: &str = sql!(
    SELECT_RUN,
    "where r.task_id = $1 and r.fire_key > $2 and ($3 is null or r.tenant_id = $3) and r.fire_key < $4
     order by r.fire_key"
);

/// The reads of the tallies that may cover an instant: the tallies of its hour, and the first one of a later hour. The
/// span of that one begins before its own hour where one of its fires stands for missed instants.
fn tallies_around(at: DateTime<Utc>) -> [(&'static str, String, String); 2] {
    let (hour, next) = (tally_hour_key(at), tally_hour_key(next_hour_of(at)));
    [(BETWEEN, hour, next.clone()), (AFTER, next, format!("{TALLY_KEY}{LAST_HOUR}"))]
}

/// Whether the fires of a tally may include that of an event which its trigger matches.
fn may_hold_match(tally: &Run) -> bool {
    let is_verdict = |why: &str| [reason::TOO_OLD, reason::FILTER_ERROR].contains(&why);
    !tally.reason.as_deref().is_some_and(is_verdict)
}

fn length(missed: &MissedInstants) -> TimeDelta {
    missed.to - missed.from
}

/// The instant at which an event came, if the log in the database has the event.
const LOGGED: &str = "select created_at from events where event_key = $1";

impl Store {
    /// The records of a task around an instant of its schedule.
    pub async fn recorded_around(
        &self,
        scope: &Scope,
        task_id: Uuid,
        at: DateTime<Utc>,
    ) -> Result<SurroundingRuns, StoreError> {
        let (key, next) = (format!("s:{}", key_instant(at)), at + TimeDelta::milliseconds(1));
        let range = format!("r:{}", key_instant(next));
        let mut read = self.db.read_unconfined(scope.tenant()).await?;
        let mut found: [Option<Run>; 4] = [None, None, None, None];
        let asked = [
            (OWN, key.as_str(), ""),
            (BEFORE, key.as_str(), KEYS.0),
            (AFTER, key.as_str(), KEYS.1),
            (BEFORE, range.as_str(), FIRST_RANGE),
        ];
        for (found, (statement, key, end)) in found.iter_mut().zip(asked) {
            *found = read.query(statement).bind(task_id).bind(key).bind(scope.tenant()).bind(end).optional().await?;
        }
        let mut tallies: Vec<Run> = Vec::new();
        for (statement, key, end) in tallies_around(at) {
            let query = read.query(statement).bind(task_id).bind(key).bind(scope.tenant()).bind(end);
            tallies.extend(query.all::<Run>().await?);
        }
        read.end().await?;
        let [own, before, after, range] = found;
        let covers = |run: &&Run| run.missed.as_ref().is_some_and(|missed| missed.from <= at && at <= missed.to);
        let narrowest = tallies.iter().filter(covers).min_by_key(|tally| tally.missed.as_ref().map(length));
        let covering = [&range, &after].into_iter().flatten().find(covers).or(narrowest).cloned();
        Ok(SurroundingRuns { at: own, covering, before, after })
    }

    /// The record that each of these tasks has of an event: its run, or its skip.
    pub async fn runs_of_event(
        &self,
        scope: &Scope,
        event: &Event,
        tasks: &[Uuid],
    ) -> Result<HashMap<Uuid, (Uuid, RunState, Option<String>)>, StoreError> {
        if tasks.is_empty() {
            return Ok(HashMap::new());
        }
        let mut read = self.db.read_unconfined(scope.tenant()).await?;
        let mut query = read.build("select task_id, id, state, reason from runs where fire_key = ");
        query.push_bind(format!("e:{}", event.key()));
        if let Some(tenant) = scope.tenant() {
            query.push(" and tenant_id = ").push_bind(tenant.to_owned());
        }
        query.push(" and task_id in (");
        query.list(tasks.iter()).push(")");
        let rows: Vec<(Uuid, Uuid, String, Option<String>)> = query.finish().all().await?;
        read.end().await?;
        let known = |(task, id, state, reason): (Uuid, Uuid, String, Option<String>)| {
            Some((task, (id, RunState::parse(&state)?, reason)))
        };
        Ok(rows.into_iter().filter_map(known).collect())
    }

    /// For each of these tasks the tally that may count the fire of an event which its trigger matches. It is the first
    /// tally, of the hour in which the event came or of the next hour, to which a fire was added since. The bus in the
    /// database knows when an event came; on another bus the time that its source gave stands for it.
    pub async fn skip_tallies_of_event(
        &self,
        scope: &Scope,
        event: &Event,
        tasks: &[Uuid],
    ) -> Result<HashMap<Uuid, Run>, StoreError> {
        if tasks.is_empty() {
            return Ok(HashMap::new());
        }
        let mut read = self.db.read_unconfined(scope.tenant()).await?;
        let logged: Option<DateTime<Utc>> = read.query(LOGGED).bind(event.key()).optional_scalar().await?;
        let Some(came) = logged.or(event.time) else { return Ok(HashMap::new()) };
        let (first, behind) = (tally_hour_key(came), tally_hour_key(next_hour_of(next_hour_of(came))));
        let mut query = read.build(SELECT_RUN);
        query.push("where r.task_id in (").list(tasks.iter()).push(")");
        query.push(" and r.fire_key > ").push_bind(first).push(" and r.fire_key < ").push_bind(behind);
        if let Some(tenant) = scope.tenant() {
            query.push(" and r.tenant_id = ").push_bind(tenant.to_owned());
        }
        query.push(" and r.scheduled_for >= ").push_bind(came).push(" order by r.fire_key");
        let rows = query.finish().rows().await?;
        read.end().await?;
        let (found, _) = self.unreadable.partition_readable::<Run, _, Uuid>("runs", &rows, Ok);
        let mut tallies = HashMap::new();
        for tally in found.into_iter().filter(may_hold_match) {
            if let Some(task_id) = tally.task_id {
                tallies.entry(task_id).or_insert(tally);
            }
        }
        Ok(tallies)
    }
}
