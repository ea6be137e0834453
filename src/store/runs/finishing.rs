//! Heartbeats and ends of runs, each fenced by a lease token that is never reused.
//!
//! A write whose token is not the run's any more changes nothing. What `start` has returned is running on the record
//! and may have effects; what `finish` has returned has ended, with its deliveries in the outbox.

use std::collections::{BTreeSet, HashMap, HashSet};

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::notification::NewDelivery;
use crate::store::approvals::unpark;
use crate::store::batches::finish_alone;
use crate::store::db::flow::QueueFlow;
use crate::store::db::{Db, engine_connection, fault};
use crate::store::memory::extractions::queue_extractions;
use crate::store::ops::budgets::ledger_batch::update_ledgers;
use crate::store::ops::budgets::ledgers::warn_owners;
use crate::store::ops::usage::counting::count_usage;
use crate::store::runs::alerts::notifications_for;
use crate::store::runs::lease::{Finish, FinishedRow, Lease, RenewedLease};
use crate::store::runs::new_entry::ended_ledgers;
use crate::store::runs::settle_park::{log_cancelled_parks, log_refused_parks, settle_park};
use crate::store::runs::slots::hand_over;
use crate::store::tx::Tx;
use crate::store::{Settlement, Split, Store, StoreError, Topic, split};

/// Heartbeats have their turn beside ends, which are written here, too: no lease runs out behind a burst of these.
const HEARTBEATS: QueueFlow = QueueFlow::Engine("heartbeats");

/// Follows ends (run, state, attempt, whether the run goes on): the runs of which the record has another end, or none.
/// One that was written has left the queue, or is ready there and was not claimed since. An execution that took the run
/// over is another attempt.
const STILL_LOST: &str = ")
    select e.run_id
      from ends e
     where (select true
              from runs r
             where r.id = e.run_id and r.state = e.state and r.attempt = e.attempt
               and case when e.goes_on
                        then (select q.state = 'ready' and q.lease_token = 0 from queue q where q.run_id = r.id)
                        else (select true from queue q where q.run_id = r.id) is null
                   end) is null";

impl Store {
    /// Renews these leases in one statement. A lease that is not in the answer is lost.
    pub async fn heartbeat(
        &self,
        leases: &[Lease],
        lease_until: DateTime<Utc>,
    ) -> Result<Vec<RenewedLease>, StoreError> {
        if leases.is_empty() {
            return Ok(Vec::new());
        }
        let mut write = self.db.write_for_engine(HEARTBEATS).await?;
        let tx = &mut write.tx();
        let held = tx.beat(leases, lease_until).await?;
        write.commit().await?;
        self.counts.fenced("heartbeat", leases.len() - held.len());
        Ok(held)
    }

    /// Runs of this worker whose end was asked for. A narrow index makes it cost nothing while there are none.
    pub async fn cancels_asked(&self, worker: Uuid) -> Result<Vec<RenewedLease>, StoreError> {
        let mut read = self.db.read_quick().await?;
        let asked = read
            .query("select run_id, cancel_reason from queue where worker = $1 and cancel_reason is not null")
            .bind(worker)
            .rows()
            .await?;
        read.end().await?;
        Ok(self.unreadable.partition_readable::<RenewedLease, _, Uuid>("queue", &asked, Ok).0)
    }

    /// Records ends in one batch; answers the runs whose lease was lost, of which nothing was written.
    pub async fn finish_runs(&self, ends: &[Finish]) -> Result<Vec<Uuid>, StoreError> {
        let lost = self.write_ends(ends).await?;
        let lost = lost.iter().map(|end| end.lease.run_id).collect();
        Ok(self.count_lost(lost))
    }

    /// As [`Store::finish_runs`], after a try that was not answered: that may have been committed, and an end that it
    /// wrote is not lost.
    pub async fn finish_runs_again(&self, ends: &[Finish]) -> Result<Vec<Uuid>, StoreError> {
        let lost = self.write_ends(ends).await?;
        let lost = self.still_lost(&lost).await?;
        Ok(self.count_lost(lost))
    }

    fn count_lost(&self, lost: Vec<Uuid>) -> Vec<Uuid> {
        self.counts.fenced("end", lost.len());
        lost
    }

    /// Writes ends in one batch; answers those whose lease was lost.
    async fn write_ends<'e>(&self, ends: &'e [Finish]) -> Result<Vec<&'e Finish>, StoreError> {
        let held = match self.finish_at_once(ends).await? {
            Some(held) => held,
            None => self.finish_in_transaction(ends).await?,
        };
        let written: HashSet<Uuid> = held.iter().map(|lease| lease.run_id).collect();
        Ok(ends.iter().filter(|end| !written.contains(&end.lease.run_id)).collect())
    }

    /// The runs among those of these ends, whose leases are lost, that have no such end on their record.
    async fn still_lost(&self, ends: &[&Finish]) -> Result<Vec<Uuid>, StoreError> {
        if ends.is_empty() {
            return Ok(Vec::new());
        }
        let mut read = self.db.read_quick().await?;
        let mut select = read.build("with ends (run_id, state, attempt, goes_on) as (");
        select.push_values(ends.iter(), |row, end| {
            let attempt = end.attempt - end.attempts_back();
            row.push_bind(end.lease.run_id).push_bind(end.state.as_str());
            row.push_bind(attempt).push_bind(end.again.is_some());
        });
        select.push(STILL_LOST);
        let lost = select.finish().persistent(false).scalars().await?;
        read.end().await?;
        Ok(lost)
    }

    /// Records ends from which nothing else follows, on Postgres: by one statement, which is its own transaction.
    /// Answers the leases that were held. `None`: nothing was written, and they take a transaction of several steps.
    async fn finish_at_once(&self, ends: &[Finish]) -> Result<Option<HashSet<Lease>>, StoreError> {
        let Db::Postgres { engine, waits, .. } = &self.db else { return Ok(None) };
        if ends.is_empty() || !ends.iter().all(Finish::stands_alone) {
            return Ok(None);
        }
        let mut engine = engine_connection(engine, waits, QueueFlow::of(None)).await?;
        let finished = finish_alone(&mut engine, ends, self.clock.now()).await?;
        drop(engine);
        fault()?;
        let Some((held, ledgers)) = finished else { return Ok(None) };
        let written: Vec<&Finish> = ends.iter().filter(|end| held.contains(&end.lease)).collect();
        self.counts.used(written.iter().flat_map(|end| &end.entries));
        let budgets = written.iter().filter_map(|end| end.budget.as_ref());
        let settled: Vec<&Settlement> = budgets.flat_map(|end| &end.settlements).collect();
        self.publish_updates(&ledgers, settled.into_iter()).await;
        if ends.iter().any(|end| end.again.is_some()) {
            self.notify(Topic::Queue);
        }
        Ok(Some(held))
    }

    /// Records ends, and does in the same transaction what follows from them. Answers the leases that were held.
    async fn finish_in_transaction(&self, ends: &[Finish]) -> Result<HashSet<Lease>, StoreError> {
        let limits = self.suspension_limits(ends).await?;
        let mut write = self.db.write_for_engine(QueueFlow::of(None)).await?;
        let tx = &mut write.tx();
        // asked once there is a connection: an end is not older than what others recorded while it waited for one
        let now = self.clock.now();
        let taken = tx.finish(ends, now).await?;
        let by_lease: HashMap<Lease, &FinishedRow> = taken.iter().map(|taken| (taken.lease, taken)).collect();
        let ended: Vec<(&Finish, &FinishedRow)> =
            ends.iter().filter_map(|end| Some((end, *by_lease.get(&end.lease)?))).collect();
        let is_waited_for = |end: &Finish, taken: &FinishedRow| end.again.is_none() && taken.is_waited_for;
        let waited_for = ended.iter().filter(|(end, taken)| is_waited_for(end, taken));
        let mut tasks: Vec<Uuid> = waited_for.filter_map(|(end, _)| end.task_id).collect();
        tasks.sort();
        tasks.dedup();
        // asked after the slots were freed: who was just being parked behind one is seen
        let mut queued = ends.iter().any(|end| end.again.is_some());
        for task_id in tx.waited_for(&tasks).await? {
            queued |= hand_over(tx, task_id, now).await?;
        }
        let refused = limits.refused(tx, &ended).await?;
        for (end, taken) in &ended {
            queued |= match refused.contains(&end.lease.run_id) {
                true => unpark(tx, end.lease.run_id, now).await?,
                false => settle_park(self, tx, end, taken, now).await?,
            };
        }
        let is_told = |end: &Finish, taken: &FinishedRow| !taken.must_end(end) && !refused.contains(&end.lease.run_id);
        let told: Vec<&Finish> = ended.iter().filter(|(end, taken)| is_told(end, taken)).map(|(end, _)| *end).collect();
        let measured =
            notifications_for(self, tx, told.iter().filter_map(|end| end.tells.as_ref()).collect(), now).await?;
        let deliveries: Vec<&NewDelivery> = told.iter().flat_map(|end| &end.deliveries).chain(&measured).collect();
        if !deliveries.is_empty() {
            tx.post(&deliveries, now).await?;
        }
        let extractions = queue_extractions(tx, &told, now).await?;
        let is_use = |end: &Finish| end.in_conversation && end.again.is_none();
        let used: BTreeSet<Uuid> =
            ended.iter().filter(|(end, _)| is_use(end)).filter_map(|(end, _)| end.task_id).collect();
        tx.use_conversations(&used.into_iter().collect::<Vec<_>>(), now).await?;
        let warned = end_budgets(self, tx, &ended, now).await?;
        count_usage(tx, &ended.iter().map(|(end, _)| *end).collect::<Vec<_>>()).await?;
        write.commit().await?;
        log_cancelled_parks(&ended);
        log_refused_parks(&refused);
        self.counts.used(ended.iter().flat_map(|(end, _)| &end.entries));
        if queued {
            self.notify(Topic::Queue);
        }
        self.count_dropped(&extractions);
        if extractions.is_any {
            self.notify(Topic::Extractions);
        }
        if warned || ends.iter().any(|end| !end.deliveries.is_empty() || end.tells.is_some()) {
            self.notify(Topic::Outbox);
        }
        Ok(taken.iter().map(|taken| taken.lease).collect())
    }

    /// Gives back what this worker has claimed and not started; answers how many.
    pub async fn release_claims(&self, worker: Uuid) -> Result<u64, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let released = write.query(RELEASE).bind(worker).execute().await?;
        write.commit().await?;
        if released > 0 {
            self.notify(Topic::Queue);
        }
        Ok(released)
    }
}

/// Settles the calls whose entries came with these ends, and takes back what their runs have reserved besides. Answers
/// whether somebody is told something.
async fn end_budgets(
    store: &Store,
    tx: &mut Tx<'_>,
    ended: &[(&Finish, &FinishedRow)],
    now: DateTime<Utc>,
) -> Result<bool, StoreError> {
    let batch = ended_ledgers(ended.iter().map(|(end, _)| *end));
    if batch.is_empty() {
        return Ok(false);
    }
    let updated = update_ledgers(tx, &batch).await?.updated;
    store.count_spent(&updated);
    let settled = ended.iter().filter_map(|(end, _)| end.budget.as_ref()).flat_map(|end| &end.settlements);
    let notices: Vec<_> = settled.filter_map(|one| one.notice.clone()).collect();
    warn_owners(tx, &updated, &notices, now).await
}

const RELEASE: Split = split!("release");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::scratch::{Scratch, asked};

    #[tokio::test]
    async fn heartbeat_waits_for_the_write_that_is_under_way_and_for_no_end_behind_it() {
        let scratch = Scratch::open().await;
        // an end that is written has the flow of this file
        let under_way = scratch.writer().begin(QueueFlow::of(None)).await.expect("a turn");
        let next_end = asked(scratch.writer().begin(QueueFlow::of(None)));
        let lost = [Lease { run_id: Uuid::from_u128(1), token: 1 }];
        let heartbeat = asked(scratch.store.heartbeat(&lost, scratch.clock.now()));
        drop(under_way);
        tokio::select! {
            biased;
            held = heartbeat => assert!(held.expect("written").is_empty()),
            _ = next_end => panic!("it has waited for the end behind"),
        }
    }
}
