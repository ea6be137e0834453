//! Records of an instant of a task, found by the keys of its fires; and of an event.
//!
//! Reads only. A record that was forgotten by age is not found.

use std::collections::HashMap;

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::event::Event;
use crate::domain::run::{Run, RunState};
use crate::store::runs::{SELECT_RUN, key_instant};
use crate::store::sql::sql;
use crate::store::{Store, StoreError};

/// The first and the last key of an instant.
const KEYS: (&str, &str) = ("s:0001-01-01T00:00:00.000Z", "s:9999-12-31T23:59:59.999Z");
/// The first key of a range.
const FIRST_RANGE: &str = "r:0001-01-01T00:00:00.000Z";

/// The records of a task around an instant.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SurroundingRuns {
    /// Of the instant itself.
    pub at: Option<Run>,
    /// Of a range that covers the instant; a run that stands for it, or one record of many that were skipped.
    pub covering: Option<Run>,
    /// Of the nearest instants before and after it that have a record of their own.
    pub before: Option<Run>,
    /// The first run after the instant.
    pub after: Option<Run>,
}

/// A run of a task ($1) by its key ($2), and those next to it as far as a key ($4), in a scope ($3).
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
        read.end().await?;
        let [own, before, after, range] = found;
        let covers = |run: &Run| run.missed.as_ref().is_some_and(|missed| missed.from <= at && at <= missed.to);
        let covering = [&range, &after].into_iter().flatten().find(|run| covers(run)).cloned();
        Ok(SurroundingRuns { at: own, covering, before, after })
    }

    /// The run, or the record of the skip, that each of these tasks has of an event.
    pub async fn recorded_of_event(
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
}
