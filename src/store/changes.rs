//! Changing a task: edits, pauses, resumes.
//!
//! A change of trigger, policies or status bumps the epoch and, in the same transaction, takes back the fires that
//! were recorded ahead of their instant; what is already due stays and runs.
//!
//! The task is read without a lock, and the change is planned on threads of its own: what a tenant wrote is never computed
//! inside a transaction. Then the task is locked, and the change is written if the task is still as it was read; else it is
//! planned anew.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::credential::Lack;
use crate::id::Scope;
use crate::json_length::bytes_of;
use crate::notification::NewDelivery;
use crate::store::credentials::in_turn;
use crate::store::failing::is_mended;
use crate::store::hot::Hot;
use crate::store::tasks::{TaskRow, lock_task, select_task};
use crate::store::{Split, Store, StoreError, Topic};
use crate::task::Task;
use crate::task::change::{PlannedChange, TaskChange};

/// How often a change is planned for a task that others change meanwhile.
pub(super) const PLANS: usize = 20;

macro_rules! recorded_ahead {
    () => {
        "select q.run_id, r.scheduled_for
           from queue q join runs r on r.id = q.run_id
          where q.task_id = $1 and q.state <> 'started' and q.run_at > $2 and r.attempt = 0
            and r.started_at is null and r.fire_key like 's:%'
            and not exists (select 1 from slots s where s.task_id = q.task_id and s.run_id = q.run_id)
          order by q.run_id"
    };
}

/// The instants of a locked task that are recorded ahead, as fires by the statement `$fires` and as skips; and the
/// first instant that is not considered for good.
macro_rules! ahead {
    ($conn:ident, $fires:expr, $row:expr, $now:expr) => {{
        use $crate::store::changes::{RECORDED_LATELY, SKIPPED_AHEAD};
        let row: &$crate::store::tasks::TaskRow = $row;
        let now: chrono::DateTime<chrono::Utc> = $now;
        let fires: Vec<(uuid::Uuid, chrono::DateTime<chrono::Utc>)> =
            sqlx::query_as($fires).bind(row.id).bind(now).fetch_all(&mut *$conn).await?;
        let skips: Vec<(uuid::Uuid, chrono::DateTime<chrono::Utc>)> = sqlx::query_as(SKIPPED_AHEAD)
            .bind(row.id)
            .bind(now)
            .bind($crate::id::first_id(now - RECORDED_LATELY))
            .fetch_all(&mut *$conn)
            .await?;
        let considered = row.nominal_at.filter(|_| row.spec.0.trigger.fires_by_the_clock());
        let unconsidered = fires.iter().chain(&skips).map(|(_, nominal)| *nominal).chain(considered).min();
        (fires, skips, unconsidered)
    }};
}
pub(super) use ahead;

/// A task whose `due` row is locked, and what is recorded ahead of it, if it is still as a change was planned for it.
macro_rules! as_planned {
    ($store:ident, $conn:ident, $row:expr, $planned:expr) => {{
        use $crate::store::changes::RECORDED_AHEAD;
        let row: $crate::store::tasks::TaskRow = $row;
        let planned: &$crate::task::change::PlannedChange = $planned;
        let (fires, skips, unconsidered) =
            $crate::store::changes::ahead!($conn, $store.db.text(RECORDED_AHEAD), &row, planned.now);
        let task = row.task()?;
        planned.is_of(&task, unconsidered).then_some((task, (fires, skips)))
    }};
}
pub(super) use as_planned;

/// Makes a change of a task that is locked and [`as_planned`], as [`Store::change_task`] says; the task as it is then, and
/// why instants were recorded as skipped, if any were: to be counted after the commit. The caller has seen that no instant
/// is due that has to be fired first.
macro_rules! change_locked {
    ($store:ident, $conn:ident, $before:expr, $ahead:expr, $change:expr, $scope:expr, $planned:expr) => {{
        use $crate::store::closing::{RELEASE, Release};
        use $crate::store::conditions::{asks_anew, begin_anew};
        use $crate::store::credentials::name_credentials;
        use $crate::store::event_index::{index_event_task, is_indexed};
        use $crate::store::requests::enqueue;
        use $crate::store::runs::{NewRun, insert_run, key_instant};
        use $crate::store::slots::previous::LOCK_WAITING;
        use $crate::store::slots::{free, hand_over};
        use $crate::store::text::{document, optional, text};
        let change: &$crate::task::change::TaskChange = $change;
        let mut before: $crate::task::Task = $before;
        let (taken_back, skipped_ahead) = $ahead;
        let planned: &$crate::task::change::PlannedChange = $planned;
        let (id, now) = (before.id, planned.now);
        before.fired -= taken_back.len() as i64;
        before.run_count -= taken_back.len() as i64;
        let mut changed =
            before.change(change, $scope, planned).map_err(|e| $crate::store::StoreError::Conflict(e.to_string()))?;
        if changed.replanned {
            for (run_id, _) in &taken_back {
                sqlx::query("delete from queue where run_id = $1").bind(run_id).execute(&mut *$conn).await?;
            }
            for (run_id, _) in taken_back.iter().chain(&skipped_ahead) {
                sqlx::query("delete from runs where id = $1").bind(run_id).execute(&mut *$conn).await?;
            }
            sqlx::query(
                "update due set next_at = $2, nominal_at = $3, epoch = $4, fired = $5, run_count = $6, kind = $7,
                                claimed_until = null
                  where task_id = $1",
            )
            .bind(id)
            .bind(changed.task.next_fire_at)
            .bind(changed.nominal_at)
            .bind(changed.task.epoch)
            .bind(changed.task.fired)
            .bind(changed.task.run_count)
            .bind(changed.task.spec.trigger.kind())
            .execute(&mut *$conn)
            .await?;
        } else {
            changed.task.fired += taken_back.len() as i64;
            changed.task.run_count += taken_back.len() as i64;
        }
        if before.spec.trigger.waiting_counts() && !changed.task.spec.trigger.waiting_counts() {
            let waiting: Vec<uuid::Uuid> =
                sqlx::query_scalar($store.db.text(LOCK_WAITING)).bind(id).fetch_all(&mut *$conn).await?;
            for run_id in waiting {
                if free!($conn, id, run_id) > 0 {
                    hand_over!($conn, id, now);
                }
            }
        }
        if asks_anew(&before.spec.trigger, &changed.task.spec.trigger) {
            begin_anew!($conn, id, now);
        }
        if let Some(skip) = &changed.skipped {
            let skipped = NewRun::skipped(&changed.task, &skip.missed, skip.reason, now);
            insert_run!($conn, skipped);
        }
        if let Some(nominal) = changed.fires_now {
            let run = NewRun::queued(&changed.task, format!("s:{}", key_instant(nominal)), nominal, now);
            if insert_run!($conn, run) == 1 {
                enqueue!($conn, run, changed.task.epoch, now, 0_i32, None);
            }
        }
        sqlx::query(
            "update tasks set name = $2, trigger_type = $3, spec = $4, status = $5, status_reason = $6, epoch = $7,
                    version = $8, anchor_at = $9, active_since = $10, zone_database = $11, updated_at = $12, faulty_part = $13
              where id = $1",
        )
        .bind(id)
        .bind(text(&changed.task.name))
        .bind(changed.task.spec.trigger.kind())
        .bind(document(&changed.task.spec)?)
        .bind(changed.task.status.as_str())
        .bind(optional(changed.task.status_reason.as_deref()))
        .bind(changed.task.epoch)
        .bind(changed.task.version)
        .bind(changed.task.anchor_at)
        .bind(changed.task.active_since)
        .bind($crate::trigger::zone_database_version())
        .bind(now)
        .bind(changed.task.faulty_part.map($crate::task::change::FaultyPart::as_str))
        .execute(&mut *$conn)
        .await?;
        if (before.status, &before.status_reason) != (changed.task.status, &changed.task.status_reason) {
            sqlx::query("delete from resumptions where task_id = $1").bind(id).execute(&mut *$conn).await?;
        }
        if $crate::task::named_by(&before.spec) != $crate::task::named_by(&changed.task.spec) {
            name_credentials!($conn, changed.task);
        }
        let (was, is) = (is_indexed(&before), is_indexed(&changed.task));
        let resumed = before.status != $crate::task::TaskStatus::Active
            && changed.task.status == $crate::task::TaskStatus::Active;
        if is && resumed {
            let release =
                if *change == $crate::task::change::TaskChange::ResumeDropping { Release::Drop } else { Release::Run };
            sqlx::query(RELEASE).bind(id).bind(release.as_str()).bind(now).execute(&mut *$conn).await?;
        }
        if was || is {
            index_event_task!($conn, id, &changed.task.tenant_id, is, now);
        }
        (changed.task, changed.skipped.map(|skip| skip.reason))
    }};
}
pub(super) use change_locked;

/// A change to a task, and its conditions.
#[derive(Clone, Copy)]
pub(super) struct ChangeRequest<'a> {
    pub change: &'a TaskChange,
    /// Told in the same transaction.
    pub notice: Option<&'a NewDelivery>,
    /// The issue of the task's credential: where it is mended by now, nothing is changed.
    pub unless_mended: Option<(&'a str, &'a Lack)>,
}

/// Result of one try.
enum Tried {
    Changed(Box<Task>),
    Mended,
    /// An instant is due that has to be fired first.
    Due,
    /// The task is not as the plan has it.
    Moved,
}

impl Store {
    /// Changes a task and plans it anew: fires and skips that are recorded ahead are taken back, the next instant is counted
    /// from now, and what was missed while it was paused is recorded as skipped (unless the trigger catches up).
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
        let changed = self.change_planned(scope, id, ChangeRequest { change, notice: None, unless_mended: None }).await;
        let task = self.refusal(changed)?.ok_or(StoreError::NotFound)?;
        self.hint(Topic::Queue);
        self.hint(Topic::Windows);
        Ok(task)
    }

    /// Plans a change aside and writes it, as often as the task is another by then; `None` where what the task lacked is
    /// mended. An instant that is due is fired first.
    pub(super) async fn change_planned(
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
                None => Tried::Due,
            };
            match tried {
                Tried::Changed(task) => {
                    self.hint(Topic::Due);
                    return Ok(Some(*task));
                }
                Tried::Mended => return Ok(None),
                Tried::Due => self.fire_task(id, now).await?,
                Tried::Moved => plans += 1,
            }
        }
        Err(StoreError::Conflict("the task is being changed by others all the time; try again".into()))
    }

    /// Reads a task and asks its triggers what the change needs, aside; `None` where an instant is due that has to be fired
    /// first.
    pub(super) async fn plan_change(
        &self,
        scope: &Scope,
        id: Uuid,
        change: &TaskChange,
        now: DateTime<Utc>,
    ) -> Result<Option<PlannedChange>, StoreError> {
        let read = on_read!(self.db, scope, |conn| {
            let row: Option<TaskRow> =
                sqlx::query_as(select_task!("where t.id = $1 and ($2 is null or t.tenant_id = $2)"))
                    .bind(id)
                    .bind(scope.tenant())
                    .fetch_optional(&mut *conn)
                    .await?;
            let row = row.ok_or(StoreError::NotFound)?;
            match row.is_due(now) {
                true => None,
                false => {
                    let (_, _, unconsidered) = ahead!(conn, recorded_ahead!(), &row, now);
                    Some((row, unconsidered))
                }
            }
        });
        let Some((row, unconsidered)) = read else { return Ok(None) };
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
    ) -> Result<Tried, StoreError> {
        let (changed, missed) = on_write!(self.db, scope, |conn| {
            if let Some((tenant, lack)) = request.unless_mended {
                in_turn!(self, conn, tenant, &lack.credential.service, &lack.credential.account);
            }
            let row = lock_task!(self.db, conn, id, scope);
            if row.is_due(planned.now) {
                return Ok(Tried::Due);
            }
            if let Some((_, lack)) = request.unless_mended
                && is_mended!(conn, &row.tenant_id, lack)
            {
                return Ok(Tried::Mended);
            }
            let Some((task, ahead)) = as_planned!(self, conn, row, planned) else { return Ok(Tried::Moved) };
            let changed = change_locked!(self, conn, task, ahead, request.change, scope, planned);
            if let Some(notice) = request.notice {
                conn.post(&[notice], planned.now).await?;
            }
            changed
        });
        self.counts.each_skipped(missed.as_slice());
        Ok(Tried::Changed(Box::new(changed)))
    }
}

/// Instants to come that are recorded as skipped already: a change takes them back, too. What was recorded longer ago
/// than [`RECORDED_LATELY`] is not looked at, so that the history of a task is not walked.
pub(super) const SKIPPED_AHEAD: &str = "
    select id, scheduled_for from runs
     where task_id = $1 and scheduled_for > $2 and id >= $3 and state = 'skipped' and fire_key like 's:%'
     order by id";

/// Longer than the horizon within which instants are recorded ahead, by more than clocks differ.
pub(super) const RECORDED_LATELY: TimeDelta = TimeDelta::seconds(10);

/// Automatic fires that are recorded, not started, and not due: a change takes them back. One that has its task's slot was
/// due: it has waited, and whoever handed the slot to it may be a little ahead of this clock.
pub(super) const RECORDED_AHEAD: Split =
    Split { postgres: concat!(recorded_ahead!(), " for update of q"), sqlite: recorded_ahead!() };
