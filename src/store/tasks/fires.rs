//! Firing: due tasks become runs, and their next instants move on, in one transaction.
//!
//! Due rows are read without a lock, and planned on threads of their own: what a tenant wrote is never computed inside
//! a transaction. A plan is written where the rows are still as they were read, and belong to nobody else; the
//! others are left out, and read anew.
//!
//! Once `fire_due` has returned, every instant that it recorded has moved its task on. If it has not returned, asking
//! again is safe: fire keys are unique, and the `due` row moves only from the state that was read.

mod batch;
mod batch_offsets;
mod due_row;
mod halted;
mod planning_pieces;
mod quota;
mod request;

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::clock::to_delta;
use crate::base::compute::{Compute, ENGINE};
use crate::base::id::Scope;
use crate::domain::task::change::FaultyPart;
use crate::domain::trigger::zone::{self, ZoneRelease};
use crate::store::db::flow::QueueFlow;
use crate::store::db::text::document;
use crate::store::ops::rates::take_fires;
use crate::store::runs::lease::{RunClaim, StartedRow, StartedRows};
use crate::store::runs::requests::LOCK_DUE;
use crate::store::runs::shares::count_by_tenant;
use crate::store::runs::starting::StartedRun;
use crate::store::runs::starting::immediate_start::{ImmediateStart, WrittenRows};
use crate::store::sql::sql;
use crate::store::tasks::disabling::{UNREADABLE, stop_and_disable};
use crate::store::tasks::tenant_turns::{self, TENANTS_WITH_DUE};
use crate::store::tasks::zones::may_plan;
use crate::store::{Split, Store, StoreError, Topic, split};
use batch::UnplannableTask;
pub(in crate::store) use batch::{DueSnapshot, DueUpdate, FireBatch, all_moved};
pub(in crate::store) use batch_offsets::BatchOffsets;
use due_row::DueRow;
use planning_pieces::PlanningPieces;
pub use request::FireDue;

/// Result of a fire.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FireResult {
    /// Tasks that were due, and are recorded.
    pub tasks: usize,
    /// Tasks that were due, and that somebody else changed, moved or held meanwhile.
    pub lost: usize,
    /// Tasks that were read as due, and are left to the next batch.
    pub left: usize,
    /// Runs that were recorded to be executed, and instants that were recorded as skipped.
    pub recorded: usize,
    /// Instants that were recorded as skipped, those that have one record together each for itself.
    pub skipped: usize,
    /// Runs leased to the worker that asked, that are due later or found their task's slot taken.
    pub claims: Vec<RunClaim>,
    /// Runs that were started.
    pub started: Vec<StartedRun>,
    /// Fires that had their record already; stays 0 unless an answer of the database was lost.
    pub conflicts: usize,
    /// Nothing was fired: instances plan by other rules of time zones than this one, or what earlier ones have planned
    /// is still to be planned anew.
    pub other_zones: bool,
    /// Tasks whose trigger can't be read any more; they are disabled.
    pub disabled: Vec<(Uuid, String)>,
}

impl FireResult {
    /// Adds what another piece of the same batch came to.
    fn add(&mut self, piece: FireResult) {
        self.tasks += piece.tasks;
        self.lost += piece.lost;
        self.recorded += piece.recorded;
        self.skipped += piece.skipped;
        self.claims.extend(piece.claims);
        self.started.extend(piece.started);
        self.conflicts += piece.conflicts;
        self.other_zones |= piece.other_zones;
        self.disabled.extend(piece.disabled);
    }
}

/// Pieces of one batch. Runs that start begin after the last of them; rows that are left are read again.
const PIECES: usize = 16;
/// Beside the earliest that are due, one for so many of them is of those that are due last, and one of the tenants that
/// have their turn.
const BESIDE: i64 = 10;

const DUE: Split = split!("due");
const TENANTS: Split = Split {
    postgres: sql!(SCHEDULES_IN_TURN; "{index}" = ""),
    sqlite: sql!(SCHEDULES_IN_TURN; "{index}" = "indexed by due_of_tenant"),
};
const SCHEDULES_IN_TURN: &str = sql!(
    TENANTS_WITH_DUE; "{table}" = "due"; "{having}" = "d.kind = 'schedule' and d.next_at is not null";
    "{due}" = "d.next_at <= $3"; "{order}" = "d.next_at"
);
const DUE_TASK: Split = split!("due_task");

impl Store {
    /// Records every fire that falls due until `now + horizon`, of at most `limit` tasks, earliest first; and of some
    /// that are due after those, latest first, so that they need not wait until the late ones are done. While more is
    /// due than a batch has, each batch has some of tenants in turn, too, so that none waits until the due ones of
    /// another are done.
    pub async fn fire_due(&self, ask: &FireDue) -> Result<FireResult, StoreError> {
        self.fire_due_with(ask, |_| (ask.room, ask.start.clone())).await
    }

    /// As [`Store::fire_due`], with room that is asked for once it is known how many tasks of each tenant are due, by
    /// its hash: `reserve` answers how many runs may be leased, and how some of them start.
    pub async fn fire_due_with(
        &self,
        ask: &FireDue,
        reserve: impl FnOnce(HashMap<u32, usize>) -> (usize, Option<ImmediateStart>),
    ) -> Result<FireResult, StoreError> {
        let until = ask.now + to_delta(ask.horizon);
        let batch = self.batch_offsets.begin(ask.limit);
        let tenants = match batch.takes_turns {
            true => self.next_turn(self.batch_offsets.tenants(), TENANTS, until, ask.limit / BESIDE).await?,
            false => Vec::new(),
        };
        let due = self.read_due(until, ask.limit, batch.offset, &tenants).await?;
        let read = due.len();
        let (room, start) = reserve(count_by_tenant(due.iter().map(DueRow::tenant)));
        let ask = &FireDue { room, start, ..ask.clone() };
        let zones = zone::current().release().clone();
        let mut pieces = PlanningPieces::new(due, ask.clone());
        let (mut fired, mut started) = RecordedFires::default();
        let mut left = read;
        for _ in 0..PIECES {
            if left == 0 || fired.other_zones {
                break;
            }
            match self.fire_piece(pieces, ask, &zones).await {
                // what was recorded before is good, and is to be answered
                Ok((_, (piece, _))) if piece.other_zones && fired.tasks > 0 => break,
                Ok((rest, piece)) => {
                    left = rest.len();
                    pieces = rest;
                    fired.add(piece.0);
                    started.extend(piece.1);
                }
                Err(error) if fired.tasks > 0 => {
                    tracing::warn!(%error, "the rest of a batch was not recorded, it is read again");
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        if !fired.other_zones {
            fired.lost = read - left - fired.tasks;
            fired.left = left;
            batch.settle(read, fired.tasks + left);
        }
        if let Some(start) = &ask.start {
            let started = StartedRows { rows: started, ..StartedRows::default() };
            fired.started = self.read_committed_starts(started, start.lease_until).await;
        }
        Ok(fired)
    }

    /// Records what is due of one task, for a change that must not lose it. Where somebody else moves it meanwhile,
    /// nothing.
    pub(in crate::store) async fn fire_task(&self, task_id: Uuid, now: DateTime<Utc>) -> Result<(), StoreError> {
        let ask = FireDue { now, limit: 1, ..FireDue::default() };
        let due: Vec<DueRow> = self.db.read().await?.query(DUE_TASK).bind(now).bind(task_id).all().await?;
        if let Some(tenant) = due.first().map(|row| row.tenant().to_owned()) {
            // a change that follows moves the task on: what is not recorded now would be lost
            let (_, batch) = self.planned(&tenant, PlanningPieces::new(due, ask.clone())).await?;
            self.record(batch, &ask, None).await?;
        }
        self.notify(Topic::Queue);
        Ok(())
    }

    /// Reads the due rows as they are now, without keeping anybody from them. What their tasks say is read along unless
    /// it is known, as it was of the tasks before.
    async fn read_due(
        &self,
        until: DateTime<Utc>,
        limit: i64,
        offset: i64,
        tenants: &[String],
    ) -> Result<Vec<DueRow>, StoreError> {
        if self.task_cache.covers_due() {
            let due = self.read_due_rows(until, limit, offset, tenants, false).await?;
            if due.iter().all(DueRow::is_known) {
                return Ok(due);
            }
        }
        let due = self.read_due_rows(until, limit, offset, tenants, true).await?;
        if !due.is_empty() {
            self.task_cache.set_covers_due(due.iter().all(DueRow::is_known));
        }
        Ok(due)
    }

    async fn read_due_rows(
        &self,
        until: DateTime<Utc>,
        limit: i64,
        offset: i64,
        tenants: &[String],
        with_specs: bool,
    ) -> Result<Vec<DueRow>, StoreError> {
        let beside = limit / BESIDE;
        let mut read = self.db.read_quick().await?;
        let rows = read
            .query(DUE)
            .bind(until)
            .bind(limit)
            .bind(beside)
            .bind(offset)
            .bind(document(tenants)?)
            .bind(tenant_turns::rows_per_tenant(beside, tenants.len()))
            .bind(with_specs)
            .rows()
            .await?;
        let (mut due, others) = self.unreadable.partition_readable("tasks", &rows, |row: DueRow| Ok(row));
        read.end().await?;
        if !others.is_empty() {
            self.disable_unreadable(&others, until).await?;
        }
        let mut known = self.task_cache.known(due.iter().map(DueRow::version));
        due.iter_mut().for_each(|row| row.set_known(known.remove(&row.version().0)));
        Ok(due)
    }

    /// Disables tasks that were due and can't be read, as far as they still are and can't: none of them may stand
    /// before the others, and an edit may have mended one since.
    async fn disable_unreadable(&self, tasks: &[Uuid], until: DateTime<Utc>) -> Result<(), StoreError> {
        let now = self.clock.now();
        // rows are locked in the order of their ids, as everywhere
        let mut by_id = tasks.to_vec();
        by_id.sort();
        let mut write = self.db.write(&Scope::Every).await?;
        let tx = &mut write.tx();
        for task_id in &by_id {
            tx.query(LOCK_DUE).bind(task_id).execute().await?;
            let still = tx.query(DUE_TASK).bind(until).bind(task_id).rows().await?;
            for id in self.unreadable.partition_readable("tasks", &still, |row: DueRow| Ok(row)).1 {
                stop_and_disable(tx, id, (FaultyPart::Trigger, UNREADABLE), now).await?;
            }
        }
        write.commit().await?;
        Ok(())
    }

    /// Plans and records one piece of a batch; the computing threads and the writer are others' until the next.
    async fn fire_piece(
        &self,
        pieces: PlanningPieces,
        ask: &FireDue,
        zones: &ZoneRelease,
    ) -> Result<(PlanningPieces, RecordedFires), StoreError> {
        let (rest, batch) = self.planned(ENGINE, pieces).await?;
        Ok((rest, self.record(batch, ask, Some(zones)).await?))
    }

    /// Plans the next piece on a computing thread, in the turn of `name`; with it, the notices to the owners of tasks
    /// that can't be scheduled.
    async fn planned(&self, name: &str, mut pieces: PlanningPieces) -> Result<(PlanningPieces, FireBatch), StoreError> {
        let (pieces, (mut batch, unplannable)) = self
            .compute(name, move || {
                let piece = pieces.piece();
                (pieces, piece)
            })
            .await?;
        if !unplannable.is_empty() {
            let tenants: BTreeSet<&str> = unplannable.iter().map(|task| task.tenant_id.as_str()).collect();
            let recipients = self.recipients_by_tenant(&tenants.into_iter().collect::<Vec<_>>()).await?;
            let notice = |task: &UnplannableTask| Some((task.task_id, task.notice(recipients.get(&task.tenant_id))?));
            batch.notices = unplannable.iter().filter_map(notice).collect();
        }
        self.task_cache.keep(std::mem::take(&mut batch.read_tasks));
        Ok((pieces, batch))
    }

    /// Writes what is still as it was read, unless another release of the zone rules plans than `zones`; those who wait
    /// for it are told after the commit.
    async fn record(
        &self,
        mut batch: FireBatch,
        ask: &FireDue,
        zones: Option<&ZoneRelease>,
    ) -> Result<RecordedFires, StoreError> {
        let ids: Vec<Uuid> = batch.read.iter().map(|row| row.task_id).collect();
        let halts = self.halts().await?;
        batch.skip_halted(&halts);
        let tenants = batch.fires();
        let allowances = self.allowances(&tenants.keys().map(String::as_str).collect::<Vec<_>>()).await?;
        let mut write = self.db.write_for_engine(QueueFlow::of(None)).await?;
        let tx = &mut write.tx();
        let began = Instant::now();
        if let Some(zones) = zones
            && !may_plan(tx, zones).await?
        {
            return Ok((FireResult { other_zones: true, ..FireResult::default() }, Vec::new()));
        }
        if !failpoint!("no_compare_and_set") {
            batch.keep(tx.lock_due(&ids).await?);
        }
        let mut fires = batch.fires();
        take_fires(self, tx, &mut fires, &allowances, ask.now).await?;
        batch.skip_over_quota(fires);
        let mut written = tx.fire(&batch, ask).await?;
        if !batch.notices.is_empty() {
            tx.post(&batch.notices.iter().map(|(_, notice)| notice).collect::<Vec<_>>(), ask.now).await?;
        }
        let started = std::mem::take(&mut written.started.rows);
        let missed = batch.skip_reasons();
        self.learn(&self.paces.fires, batch.read.len(), began);
        let fired = summary(batch, written);
        write.commit().await?;
        self.counts.each_skipped(&missed);
        if fired.recorded > fired.claims.len() + started.len() {
            self.notify_all_instances(Topic::Queue);
        }
        if !fired.disabled.is_empty() {
            self.notify(Topic::Outbox);
        }
        Ok((fired, started))
    }

    /// Computes what a tenant wrote, when it is its turn, away from the threads that serve others.
    pub async fn compute<T: Send + 'static>(
        &self,
        tenant: &str,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        self.computing.run(tenant, work).await.map_err(|panicked| StoreError::Corrupt(panicked.to_string()))
    }

    /// The threads that compute what tenants wrote: all of the process compute there.
    pub fn computing(&self) -> &Compute {
        &self.computing
    }

    /// The earliest instant that any task waits for; `None` where none does.
    pub async fn next_due(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        self.past_unreadable(|| self.read_next_due()).await
    }

    async fn read_next_due(&self) -> Result<Option<DateTime<Utc>>, StoreError> {
        let mut read = self.db.read_quick().await?;
        Ok(read
            .query("select next_at from due where kind = 'schedule' and next_at is not null order by next_at limit 1")
            .optional_scalar()
            .await?)
    }
}

/// The fires, and the runs that start.
type RecordedFires = (FireResult, Vec<StartedRow>);

fn summary(batch: FireBatch, written: WrittenRows) -> FireResult {
    FireResult {
        tasks: batch.read.len(),
        lost: 0,
        left: 0,
        conflicts: batch.all_fires() - (written.recorded + written.skipped),
        recorded: written.recorded,
        skipped: written.skipped,
        claims: written.claims,
        started: Vec::new(),
        other_zones: false,
        disabled: batch.disabled,
    }
}
