//! Changing a task: edits, pauses, resumes.
//!
//! A change of trigger, policies or status bumps the epoch and, in the same transaction, takes back the fires that
//! were recorded ahead of their instant; what is already due stays and runs.
//!
//! The task is read without a lock, and the change is planned on threads of its own: what a tenant wrote is never
//! computed inside a transaction. Then the task is locked, and the change is written if the task is still as it was
//! read; else it is planned anew.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::types::Json;
use uuid::Uuid;

use crate::base::id::{Scope, first_id};
use crate::base::json::length::bytes_of;
use crate::domain::credential::CredentialIssue;
use crate::domain::notification::NewDelivery;
use crate::domain::run::MissedInstants;
use crate::domain::task::change::{ChangedTask, FaultyPart, PlannedChange, TaskChange};
use crate::domain::task::{Task, TaskStatus, named_by};
use crate::domain::trigger::zone_database_version;
use crate::store::credentials::credential_status::is_resolved;
use crate::store::credentials::{lock_reference, name_credentials};
use crate::store::db::text::{document, optional, text};
use crate::store::events::closing::RELEASE;
use crate::store::events::due_windows::EventRelease;
use crate::store::events::event_index::{index_event_task, is_indexed};
use crate::store::runs::overlap::previous::LOCK_WAITING;
use crate::store::runs::slots::{free, hand_over};
use crate::store::runs::{NewRun, enqueue, insert_run, key_instant};
use crate::store::sql::sql;
use crate::store::tasks::conditions::{invalidates_state, reset_condition_state};
use crate::store::tasks::row::TaskRow;
use crate::store::tasks::task_order::TaskOrder;
use crate::store::tasks::{SELECT_TASK, lock_task};
use crate::store::tx::Tx;
use crate::store::{Split, Store, StoreError, Topic};

/// How often a change is planned for a task that others change meanwhile.
pub(in crate::store) const PLANS: usize = 20;

/// Runs, each with the instant that it is scheduled for.
type ChangedInstants = Vec<(Uuid, DateTime<Utc>)>;

/// Instants that are recorded as skipped, each as one of its own or as many together.
type SkippedInstants = Vec<(Uuid, DateTime<Utc>, Option<Json<MissedInstants>>)>;

/// The instants of a task that are recorded ahead.
pub(in crate::store) struct InstantsAhead {
    fires: ChangedInstants,
    skips: ChangedInstants,
}

/// The instants of a task that are recorded ahead, the fires by the statement `fires`; and the first instant that is
/// not considered for good.
async fn recorded_ahead(
    tx: &mut Tx<'_>,
    fires: impl Into<Split>,
    row: &TaskRow,
    now: DateTime<Utc>,
) -> Result<(InstantsAhead, Option<DateTime<Utc>>), StoreError> {
    let fires: ChangedInstants = tx.query(fires).bind(row.id).bind(now).all().await?;
    let since = first_id(now - RECORDED_LATELY);
    let skipped: SkippedInstants = tx.query(SKIPPED_AHEAD).bind(row.id).bind(now).bind(since).all().await?;
    let is_of_one = |missed: Option<Json<MissedInstants>>| missed.is_none_or(|missed| missed.is_single_instant());
    let skips: ChangedInstants =
        skipped.into_iter().filter_map(|(id, at, missed)| is_of_one(missed).then_some((id, at))).collect();
    let considered = row.nominal_at.filter(|_| row.spec.0.trigger.fires_by_the_clock());
    let unconsidered = fires.iter().chain(&skips).map(|(_, nominal)| *nominal).chain(considered).min();
    Ok((InstantsAhead { fires, skips }, unconsidered))
}

/// A task whose `due` row is locked, and what is recorded ahead of it, if it is still as a change was planned for it.
pub(in crate::store) async fn as_planned(
    tx: &mut Tx<'_>,
    row: TaskRow,
    planned: &PlannedChange,
) -> Result<Option<(Task, InstantsAhead)>, StoreError> {
    let (ahead, unconsidered) = recorded_ahead(tx, LOCK_AHEAD, &row, planned.now).await?;
    let task = row.task()?;
    Ok(planned.is_of(&task, unconsidered).then_some((task, ahead)))
}

/// Makes a change of a task that is locked and [`as_planned`], as [`Store::change_task`] says; the task as it is then,
/// and why instants were recorded as skipped, if any were: to be counted after the commit. The caller has seen that no
/// instant is due that has to be fired first.
pub(in crate::store) async fn change_locked(
    tx: &mut Tx<'_>,
    (mut before, ahead): (Task, InstantsAhead),
    change: &TaskChange,
    scope: &Scope,
    planned: &PlannedChange,
) -> Result<(Task, Option<&'static str>), StoreError> {
    let now = planned.now;
    let taken_back = ahead.fires.len() as i64;
    before.fire_count -= taken_back;
    before.run_count -= taken_back;
    let mut changed = before.change(change, scope, planned).map_err(|error| StoreError::Conflict(error.to_string()))?;
    if changed.replanned {
        reschedule(tx, &changed, &ahead).await?;
    } else {
        changed.task.fire_count += taken_back;
        changed.task.run_count += taken_back;
    }
    if before.spec.overlap_counts_waiting() && !changed.task.spec.overlap_counts_waiting() {
        release_slots(tx, before.id, now).await?;
    }
    if invalidates_state(&before.spec.trigger, &changed.task.spec.trigger) {
        reset_condition_state(tx, before.id, now).await?;
    }
    if let Some(skip) = &changed.skipped {
        insert_run(tx, &NewRun::skipped(&changed.task, &skip.missed, skip.reason, now)).await?;
    }
    if let Some(nominal) = changed.fires_now {
        let run = NewRun::queued(&changed.task, format!("s:{}", key_instant(nominal)), nominal, now);
        if insert_run(tx, &run).await? == 1 {
            enqueue(tx, &run, changed.task.epoch, now, 0, None).await?;
        }
    }
    write_task(tx, &changed.task, now).await?;
    update_related(tx, &before, &changed.task, change, now).await?;
    Ok((changed.task, changed.skipped.map(|skip| skip.reason)))
}

/// Takes back what is recorded ahead, and writes the `due` row.
async fn reschedule(tx: &mut Tx<'_>, changed: &ChangedTask, ahead: &InstantsAhead) -> Result<(), StoreError> {
    for (run_id, _) in &ahead.fires {
        tx.query("delete from queue where run_id = $1").bind(run_id).execute().await?;
    }
    for (run_id, _) in ahead.fires.iter().chain(&ahead.skips) {
        tx.query("delete from runs where id = $1").bind(run_id).execute().await?;
    }
    tx.query(
        "update due set next_at = $2, nominal_at = $3, epoch = $4, fire_count = $5, run_count = $6, kind = $7,
                        claimed_until = null
          where task_id = $1",
    )
    .bind(changed.task.id)
    .bind(changed.task.next_fire_at)
    .bind(changed.nominal_at)
    .bind(changed.task.epoch)
    .bind(changed.task.fire_count)
    .bind(changed.task.run_count)
    .bind(changed.task.spec.trigger.kind())
    .execute()
    .await?;
    Ok(())
}

/// Runs of the task that wait for people or a completion do not count as running any more.
async fn release_slots(tx: &mut Tx<'_>, id: Uuid, now: DateTime<Utc>) -> Result<(), StoreError> {
    let waiting: Vec<Uuid> = tx.query(LOCK_WAITING).bind(id).scalars().await?;
    for run_id in waiting {
        if free(tx, id, run_id).await? > 0 {
            hand_over(tx, id, now).await?;
        }
    }
    Ok(())
}

async fn write_task(tx: &mut Tx<'_>, task: &Task, now: DateTime<Utc>) -> Result<(), StoreError> {
    tx.query(
        "update tasks set name = $2, trigger_type = $3, spec = $4, status = $5, status_reason = $6, epoch = $7,
                version = $8, anchor_at = $9, active_since = $10, zone_database = $11, updated_at = $12,
                faulty_part = $13, awaited_service = $14, awaited_account = $15, disabled_by = $16
          where id = $1",
    )
    .bind(task.id)
    .bind(text(&task.name))
    .bind(task.spec.trigger.kind())
    .bind(document(&task.spec)?)
    .bind(task.status.as_str())
    .bind(optional(task.status_reason.as_deref()))
    .bind(task.epoch)
    .bind(task.version)
    .bind(task.anchor_at)
    .bind(task.active_since)
    .bind(zone_database_version())
    .bind(now)
    .bind(task.faulty_part.map(FaultyPart::as_str))
    .bind(optional(task.awaited_credential.as_ref().map(|credential| credential.service.as_str())))
    .bind(optional(task.awaited_credential.as_ref().map(|credential| credential.account.as_str())))
    .bind(optional(task.disabled_by.as_deref()))
    .execute()
    .await?;
    Ok(())
}

/// Writes what follows from a change for what is stored beside the task.
async fn update_related(
    tx: &mut Tx<'_>,
    before: &Task,
    after: &Task,
    change: &TaskChange,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    let id = after.id;
    if (before.status, &before.awaited_credential) != (after.status, &after.awaited_credential) {
        tx.query("delete from resumptions where task_id = $1").bind(id).execute().await?;
    }
    if named_by(&before.spec) != named_by(&after.spec) {
        name_credentials(tx, after).await?;
    }
    let (was, is) = (is_indexed(before), is_indexed(after));
    let resumed = before.status != TaskStatus::Active && after.status == TaskStatus::Active;
    if is && resumed {
        let release = if *change == TaskChange::ResumeDropping { EventRelease::Drop } else { EventRelease::Run };
        tx.query(RELEASE).bind(id).bind(release.as_str()).bind(now).execute().await?;
    }
    if was || is {
        index_event_task(tx, id, &after.tenant_id, is, now).await?;
    }
    Ok(())
}

/// A change to a task, and its conditions.
#[derive(Clone, Copy)]
pub(in crate::store) struct ChangeRequest<'a> {
    pub change: &'a TaskChange,
    /// Told in the same transaction.
    pub notice: Option<&'a NewDelivery>,
    /// The issue of the task's credential: where it is resolved by now, nothing is changed.
    pub unless_resolved: Option<(&'a str, &'a CredentialIssue)>,
    /// An order of the operator, recorded in the same transaction.
    pub order: Option<&'a TaskOrder<'a>>,
}

/// Result of one try.
enum ChangeAttempt {
    Changed(Box<Task>),
    /// The issue of the task's credential is resolved.
    Resolved,
    /// An instant is due that has to be fired first.
    Due,
    /// The task is not as the plan has it.
    Moved,
}

impl Store {
    /// Changes a task and plans it anew: fires and skips that are recorded ahead are taken back, the next instant is
    /// counted from now, and what was missed while it was paused is recorded as skipped (unless the trigger catches
    /// up).
    ///
    /// An instant that is due and not recorded yet is fired first, so that a change never loses it. One that waits out
    /// its jitter stays the next one, or is recorded as skipped where an edited trigger lacks it.
    ///
    /// Where runs that wait do not count as running any more, one that waits gives its slot up.
    pub async fn change_task(&self, scope: &Scope, id: Uuid, change: &TaskChange) -> Result<Task, StoreError> {
        if let TaskChange::Edit { spec, .. } = change {
            let tenant = self.tenant_of_task(scope, id).await?;
            self.admit_bytes(&tenant, bytes_of(spec)).await?;
        }
        let changed = self
            .change_planned(scope, id, ChangeRequest { change, notice: None, unless_resolved: None, order: None })
            .await;
        let task = self.refusal(changed)?.ok_or(StoreError::NotFound)?;
        self.notify(Topic::Queue);
        self.notify(Topic::Windows);
        Ok(task)
    }

    /// Plans a change on a computing thread and writes it, as often as the task is another by then; `None` where the
    /// issue of its credential is resolved. An instant that is due is fired first.
    pub(in crate::store) async fn change_planned(
        &self,
        scope: &Scope,
        id: Uuid,
        request: ChangeRequest<'_>,
    ) -> Result<Option<Task>, StoreError> {
        let mut plans = 0;
        while plans < PLANS {
            let now = self.clock.now();
            let tried = match self.plan_change(scope, id, request.change, now).await? {
                Some(planned) => self.try_change(scope, id, request, &planned).await?,
                None => ChangeAttempt::Due,
            };
            match tried {
                ChangeAttempt::Changed(task) => {
                    self.notify(Topic::Due);
                    return Ok(Some(*task));
                }
                ChangeAttempt::Resolved => return Ok(None),
                ChangeAttempt::Due => self.fire_task(id, now).await?,
                ChangeAttempt::Moved => plans += 1,
            }
        }
        Err(StoreError::Conflict("the task is being changed by others all the time; try again".into()))
    }

    /// Reads a task and asks its triggers what the change needs, on a computing thread; `None` where an instant is due
    /// that has to be fired first.
    pub(in crate::store) async fn plan_change(
        &self,
        scope: &Scope,
        id: Uuid,
        change: &TaskChange,
        now: DateTime<Utc>,
    ) -> Result<Option<PlannedChange>, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let tx = &mut read.tx();
        let row: Option<TaskRow> = tx
            .query(sql!(SELECT_TASK, "where t.id = $1 and ($2 is null or t.tenant_id = $2)"))
            .bind(id)
            .bind(scope.tenant())
            .optional()
            .await?;
        let row = row.ok_or(StoreError::NotFound)?;
        let planned_for = match row.is_due(now) {
            true => None,
            false => {
                let (_, unconsidered) = recorded_ahead(tx, AHEAD, &row, now).await?;
                Some((row, unconsidered))
            }
        };
        read.end().await?;
        let Some((row, unconsidered)) = planned_for else { return Ok(None) };
        let (task, change, scope) = (row.task()?, change.clone(), scope.clone());
        let tenant = task.tenant_id.clone();
        self.compute(&tenant, move || Some(task.plan_change(&change, &scope, unconsidered, now))).await
    }

    /// One try to write a change that was planned.
    async fn try_change(
        &self,
        scope: &Scope,
        id: Uuid,
        request: ChangeRequest<'_>,
        planned: &PlannedChange,
    ) -> Result<ChangeAttempt, StoreError> {
        let mut write = self.db.write(scope).await?;
        let tx = &mut write.tx();
        if let Some((tenant, issue)) = request.unless_resolved {
            lock_reference(tx, tenant, &issue.credential.service, &issue.credential.account).await?;
        }
        let row = lock_task(tx, id, scope).await?;
        if row.is_due(planned.now) {
            return Ok(ChangeAttempt::Due);
        }
        if let Some((_, issue)) = request.unless_resolved
            && is_resolved(tx, &row.tenant_id, issue).await?
        {
            return Ok(ChangeAttempt::Resolved);
        }
        let Some((task, ahead)) = as_planned(tx, row, planned).await? else { return Ok(ChangeAttempt::Moved) };
        let (changed, missed) = change_locked(tx, (task, ahead), request.change, scope, planned).await?;
        if let Some(notice) = request.notice {
            tx.post(&[notice], planned.now).await?;
        }
        if let Some(order) = request.order {
            order.record(tx, &changed, planned.now).await?;
        }
        write.commit().await?;
        self.counts.each_skipped(missed.as_slice());
        Ok(ChangeAttempt::Changed(Box::new(changed)))
    }
}

/// Instants to come that are recorded as skipped already: a change takes them back, too. Those that were recorded
/// longer ago than [`RECORDED_LATELY`] are not looked at, so that the history of a task is not walked.
const SKIPPED_AHEAD: &str = "
    select id, scheduled_for, missed from runs
     where task_id = $1 and scheduled_for > $2 and id >= $3 and state = 'skipped' and origin = 'trigger'
       and trigger_type = 'schedule'
     order by id";

/// Longer than the horizon within which instants are recorded ahead, by more than clocks differ.
const RECORDED_LATELY: TimeDelta = TimeDelta::seconds(10);

/// Automatic fires that are recorded, not started, and not due: a change takes them back. One that has its task's slot
/// was due: it has waited, and whoever handed the slot to it may be a little ahead of this clock.
const LOCK_AHEAD: Split = Split { postgres: sql!(AHEAD.postgres, " for update of q"), sqlite: AHEAD.sqlite };

const AHEAD: Split = Split {
    postgres: sql!(RUNS_AHEAD; "{its}" = "= any (array[q.run_id])"),
    sqlite: sql!(RUNS_AHEAD; "{its}" = "= q.run_id"),
};
const RUNS_AHEAD: &str = "
    select q.run_id, r.scheduled_for
      from queue q join runs r on r.id {its}
     where q.task_id = $1 and q.state <> 'started' and q.run_at > $2 and r.attempt = 0
       and r.started_at is null and r.origin = 'trigger' and r.trigger_type = 'schedule'
       and not exists (select 1 from slots s where s.task_id = q.task_id and s.run_id = q.run_id)
     order by q.run_id";
