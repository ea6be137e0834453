//! Polls of conditions: claimed one by one, and recorded with all that follows in one transaction.
//!
//! A claim is a note in `due`, never a lock: the poll itself takes place between two transactions. Once `record_poll`
//! has returned, the state, the fire that it counted, and the next poll are there together. If it has not returned, the
//! claim runs out and somebody polls again; the version of the state keeps two who polled at once from both counting.

use std::collections::HashMap;

use chrono::{DateTime, Utc};
use serde_json::Value;
use sqlx::types::Json;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::notification::NewDelivery;
use crate::domain::quota::REASON_QUOTA;
use crate::domain::run::RunState;
use crate::domain::task::change::{FaultyPart, REASON_ENDED, REASON_MAX_RUNS};
use crate::domain::trigger::Trigger;
use crate::domain::trigger::condition::{ConditionFire, ConditionState, ConditionStep, ConditionSubject};
use crate::store::db::text::{StoredJson, document, text};
use crate::store::runs::{NewRun, SkipTallies, enqueue, insert_run};
use crate::store::tx::Tx;
use crate::store::{Split, Store, StoreError, Topic};

mod claiming;

pub use claiming::DuePoll;

/// A poll that one worker may now make.
#[derive(Debug, Clone, PartialEq)]
pub struct PollClaim {
    /// The task, for its expressions.
    pub subject: ConditionSubject,
    /// The tenant that owns the task.
    pub tenant_id: String,
    /// As it is stored: it may be unreadable by now, and that must harm no other poll.
    pub trigger: Value,
    /// State of the condition before the poll.
    pub state: ConditionState,
    /// Until when nobody else makes it.
    pub until: DateTime<Utc>,
    epoch: i64,
    version: i64,
    max_runs: Option<i64>,
}

/// Result of recording a poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordedPoll {
    /// There was no fire.
    Quiet,
    /// A fire, to be run.
    Fired(Uuid),
    /// A fire, skipped; its record may stand for others, too.
    Skipped(Uuid),
    /// The task was changed, paused or deleted meanwhile, or somebody else has recorded a poll: nothing was written.
    Void,
}

impl PollClaim {
    /// The fire as a run.
    fn run(&self, fire: &ConditionFire, now: DateTime<Utc>) -> Result<NewRun, StoreError> {
        let (task_id, key) = (self.subject.id, format!("c:{}", fire.number));
        Ok(NewRun {
            state: if fire.skipped.is_some() { RunState::Skipped } else { RunState::Queued },
            reason: fire.skipped.map(str::to_owned),
            // whole values for each poll that a cooldown lets pass would fill the disk
            cause: fire.skipped.is_none().then(|| StoredJson::of(&fire.cause)).transpose()?,
            ..NewRun::of(task_id, &self.tenant_id, "condition", key, now, now)
        })
    }
}

const LOCK_DUE: Split = Split {
    postgres: "select epoch, fire_count from due where task_id = $1 for update",
    sqlite: "select epoch, fire_count from due where task_id = $1",
};

/// Completes a task that fires no more, for this reason.
pub(in crate::store) async fn complete_task(
    tx: &mut Tx<'_>,
    task_id: Uuid,
    reason: &'static str,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    tx.query(
        "update tasks set status = 'completed', status_reason = $2, version = version + 1, updated_at = $3
          where id = $1 and status = 'active'",
    )
    .bind(task_id)
    .bind(reason)
    .bind(now)
    .execute()
    .await?;
    Ok(())
}

/// Disables a task for a part of it that can't be read. Its `due` row stands still already.
pub(in crate::store) async fn disable(
    tx: &mut Tx<'_>,
    task_id: Uuid,
    (part, why): (FaultyPart, &str),
    now: DateTime<Utc>,
) -> Result<u64, StoreError> {
    Ok(tx
        .query(
            "update tasks set status = 'disabled', status_reason = $2, version = version + 1, updated_at = $3,
                    faulty_part = $4, awaited_service = null, awaited_account = null
              where id = $1 and status in ('active', 'paused')",
        )
        .bind(task_id)
        .bind(text(why))
        .bind(now)
        .bind(part.as_str())
        .execute()
        .await?)
}

/// Writes a state over the version that was read (0: none was there), and over no other.
const WRITE_STATE: &str = "
    insert into condition_state (task_id, version, edges, body, updated_at) values ($1, $2 + 1, $3, $4, $5)
    on conflict (task_id) do update
       set version = excluded.version, edges = excluded.edges, body = excluded.body, updated_at = excluded.updated_at
     where condition_state.version = $2";

/// Records a fire as it is; one that is `refused`, with those of its hour that were skipped for that reason.
async fn record_fire(
    tx: &mut Tx<'_>,
    run: &NewRun,
    refused: Option<&str>,
    epoch: i64,
) -> Result<RecordedPoll, StoreError> {
    if let Some(reason) = refused {
        let mut tallies = SkipTallies::default();
        tallies.add(run.clone(), reason);
        let records = tx.tally_skips(&tallies).await?;
        return Ok(RecordedPoll::Skipped(records.first().copied().unwrap_or(run.id)));
    }
    insert_run(tx, run).await?;
    if run.state != RunState::Queued {
        return Ok(RecordedPoll::Skipped(run.id));
    }
    enqueue(tx, run, epoch, run.created_at, 0, None).await?;
    Ok(RecordedPoll::Fired(run.id))
}

impl Store {
    /// Records what a poll came to: the state, its fire, the notice, and `next_at` (`None`: the condition has ended),
    /// together or not at all. With the last of its `max_runs` the task is completed.
    pub async fn record_poll(
        &self,
        claim: &PollClaim,
        step: &ConditionStep,
        next_at: Option<DateTime<Utc>>,
        notice: Option<&NewDelivery>,
        now: DateTime<Utc>,
    ) -> Result<RecordedPoll, StoreError> {
        let task_id = claim.subject.id;
        let run = step.fire.as_ref().map(|fire| claim.run(fire, now)).transpose()?;
        let wants = run.as_ref().is_some_and(|run| run.state == RunState::Queued);
        let refused = if wants { self.refuses_fire(&claim.tenant_id).await? } else { None };
        let fires = wants && refused.is_none();
        let mut write = self.db.write_unconfined(Some(&claim.tenant_id)).await?;
        let tx = &mut write.tx();
        let due: Option<(i64, i64)> = tx.query(LOCK_DUE).bind(task_id).optional().await?;
        let Some((_, fired)) = due.filter(|(epoch, _)| *epoch == claim.epoch) else {
            return Ok(RecordedPoll::Void);
        };
        let written = tx
            .query(WRITE_STATE)
            .bind(task_id)
            .bind(claim.version)
            .bind(step.state.edges)
            .bind(document(&step.state)?)
            .bind(now)
            .execute()
            .await?;
        if written == 0 {
            return Ok(RecordedPoll::Void);
        }
        let recorded = match &run {
            Some(run) => record_fire(tx, run, refused, claim.epoch).await?,
            None => RecordedPoll::Quiet,
        };
        let fired = fired + i64::from(fires);
        let spent = claim.max_runs.is_some_and(|most| fired >= most);
        let next_at = next_at.filter(|_| !spent);
        tx.query(
            "update due set next_at = $2, nominal_at = $2, claimed_until = null, fire_count = $3, run_count = run_count + $4,
                            tenant_id = $5
              where task_id = $1",
        )
        .bind(task_id)
        .bind(next_at)
        .bind(fired)
        .bind(i64::from(fires))
        .bind(&claim.tenant_id)
        .execute()
        .await?;
        if next_at.is_none() {
            complete_task(tx, task_id, if spent { REASON_MAX_RUNS } else { REASON_ENDED }, now).await?;
        }
        if let Some(notice) = notice {
            tx.post(&[notice], now).await?;
        }
        write.commit().await?;
        if fires {
            self.notify(Topic::Queue);
        }
        if notice.is_some() {
            self.notify(Topic::Outbox);
        }
        let skipped = step.fire.as_ref().and_then(|fire| fire.skipped).or(refused);
        if let Some(reason) = skipped {
            self.counts.skipped(reason, 1);
        }
        Ok(recorded)
    }

    /// Why a tenant may not have one more fire; `None`: it may, and the fire is counted.
    async fn refuses_fire(&self, tenant: &str) -> Result<Option<&'static str>, StoreError> {
        if let Some(halt) = self.halts().await?.halt_of(tenant) {
            return Ok(Some(halt.as_str()));
        }
        Ok((self.take_fires(tenant, 1).await? == 0).then_some(REASON_QUOTA))
    }

    /// Gives a claim back unused, to be polled at `at`: there was no room for it. Answers whether it was still held.
    pub async fn postpone_poll(&self, claim: &PollClaim, at: DateTime<Utc>) -> Result<bool, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let given_back = write
            .query(
                "update due set next_at = $4, nominal_at = $4, claimed_until = null
                  where task_id = $1 and epoch = $2 and claimed_until = $3",
            )
            .bind(claim.subject.id)
            .bind(claim.epoch)
            .bind(claim.until)
            .bind(at)
            .execute()
            .await?;
        write.commit().await?;
        Ok(given_back == 1)
    }

    /// Disables a task whose condition can't be read any more, as schedules are, and tells its owner: an edit of its
    /// trigger mends it. Answers whether the claim was still held.
    pub async fn disable_condition(&self, claim: &PollClaim, why: &str) -> Result<bool, StoreError> {
        let now = self.clock.now();
        let notice = self.disabled_notice(claim.subject.id, why).await?;
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        let stopped = tx
            .query(
                "update due set next_at = null, claimed_until = null
                  where task_id = $1 and epoch = $2 and claimed_until = $3",
            )
            .bind(claim.subject.id)
            .bind(claim.epoch)
            .bind(claim.until)
            .execute()
            .await?;
        if stopped == 0 {
            return Ok(false);
        }
        disable(tx, claim.subject.id, (FaultyPart::Trigger, why), now).await?;
        if let Some(notice) = &notice {
            tx.post(&[notice], now).await?;
        }
        write.commit().await?;
        self.notify(Topic::Outbox);
        Ok(true)
    }

    /// Where the conditions of these tasks stand, as far as they were polled, can be read and lie within the scope.
    pub async fn condition_states(
        &self,
        scope: &Scope,
        ids: &[Uuid],
    ) -> Result<HashMap<Uuid, ConditionState>, StoreError> {
        let mut states = HashMap::new();
        if ids.is_empty() {
            return Ok(states);
        }
        let mut read = self.db.read_in(scope).await?;
        let mut query = read.build(
            "select c.task_id, c.edges, c.body from condition_state c join tasks t on t.id = c.task_id where t.id in (",
        );
        query.list(ids.iter()).push(")");
        if let Some(tenant) = scope.tenant() {
            query.push(" and t.tenant_id = ").push_bind(tenant.to_owned());
        }
        let rows = query.finish().rows().await?;
        read.end().await?;
        let (rows, _) =
            self.unreadable.partition_readable::<(Uuid, i64, Json<Value>), _, Uuid>("condition_state", &rows, Ok);
        states.extend(rows.into_iter().map(|(id, edges, body)| (id, ConditionState::read(&body.0, edges))));
        Ok(states)
    }
}

/// Whether what is known of a condition says nothing about what it asks now.
pub(in crate::store) fn invalidates_state(before: &Trigger, after: &Trigger) -> bool {
    match (before.condition(), after.condition()) {
        (Some(before), Some(after)) => !before.is_same_question(after),
        (before, after) => before.is_some() != after.is_some(),
    }
}

/// Forgets what is known of a task's condition, but for the number of its fires; its `due` row is locked. What can't be
/// read is forgotten like any other.
pub(in crate::store) async fn reset_condition_state(
    tx: &mut Tx<'_>,
    task_id: Uuid,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let known: Option<(i64, String)> = tx
        .query("select edges, cast(body as text) from condition_state where task_id = $1")
        .bind(task_id)
        .optional()
        .await?;
    if let Some((edges, body)) = known {
        let body: Value = serde_json::from_str(&body).unwrap_or_default();
        let state = ConditionState::read(&body, edges).reset();
        tx.query("update condition_state set version = version + 1, body = $2, updated_at = $3 where task_id = $1")
            .bind(task_id)
            .bind(document(&state)?)
            .bind(now)
            .execute()
            .await?;
    }
    Ok(())
}
