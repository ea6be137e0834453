//! Events become runs: what matched is recorded, collected or skipped, in one transaction per batch of events.
//!
//! Once `fire_events` has returned `Done`, each match has its record: a run, a place in a window, or a reason. If it
//! has not returned, asking again is safe: everything is unique by task and event, but for matches that are skipped for
//! a quota or a halt, or while their tenant has stored all that it may. Those are counted together and then count
//! twice. Nothing was written where it is `Stale`.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::domain::halt::Halts;
use crate::domain::quota::REASON_QUOTA;
use crate::domain::trigger::event::EventVerdict;
use crate::store::batches::record_guarded;
use crate::store::db::flow::QueueFlow;
use crate::store::db::{Db, engine_connection, fault};
use crate::store::events::matches::{EventsRecorded, LockedTask, Match, MatchGuard};
use crate::store::events::recording::{BatchEffects, Recording, write_recording};
use crate::store::runs::starting::immediate_start::{ImmediateStart, LeaseTerms, RemainingCapacity};
use crate::store::tx::Tx;
use crate::store::{Store, StoreError, Topic};

/// Matches to record.
pub struct FireEvents<'a> {
    /// The present.
    pub now: DateTime<Utc>,
    /// The shards of the events' tenants, each with the version of the index by which they were matched.
    pub shards: &'a [(i32, i64)],
    /// Matches to record, in order.
    pub matches: &'a [Match],
    /// New runs are leased to this worker as far as it has room.
    pub worker: Uuid,
    /// Most runs to claim at once.
    pub room: usize,
    /// Of those, as many as there are slots start at once, unless they are of a window; `None`: none does.
    pub start: Option<&'a ImmediateStart>,
    /// Few matches of each tenant: at SQLite's writer, and at the engine's connections to Postgres, they do not stand
    /// behind writes of many.
    pub few: bool,
}

impl FireEvents<'_> {
    fn flow(&self) -> QueueFlow {
        if self.few { QueueFlow::Engine("few matches") } else { QueueFlow::of(None) }
    }

    pub(in crate::store) fn terms(&self) -> LeaseTerms {
        LeaseTerms { now: self.now, worker: self.worker, started_until: self.start.map(|start| start.lease_until) }
    }
}

/// A batch that is written: its result, and what is left to do for it.
type RecordedBatch = (EventsRecorded, BatchEffects);

/// Result of recording events.
#[derive(Debug, Clone, PartialEq)]
pub enum EventsFired {
    /// The index is older than the tasks: read what is newer and match again. Nothing was written.
    Stale,
    /// The batch is written.
    Done(EventsRecorded),
}

/// Fires of a tenant in one batch, and how many of them it may have.
struct Fires {
    count: usize,
    allowed: usize,
}

/// The matches, those of halted tenants as skipped. Nothing is copied where nothing is halted.
pub(in crate::store) fn not_halted<'a>(matches: &'a [Match], halts: &Halts) -> Cow<'a, [Match]> {
    if halts.is_empty() {
        return Cow::Borrowed(matches);
    }
    let mut kept = matches.to_vec();
    for matched in kept.iter_mut().filter(|matched| matched.is_fire()) {
        if let Some(halt) = halts.halt_of(matched.arrival.event.tenant.as_str()) {
            matched.verdict = EventVerdict::Skipped(halt.as_str().into());
        }
    }
    Cow::Owned(kept)
}

impl Store {
    /// Records what became of a batch of events, and starts the runs that find a slot. On Postgres a batch whose
    /// events all [go straight](Match::is_stateless) takes one statement.
    ///
    /// Matches of halted tenants, and those beyond the fires that their tenant may have in this minute, are recorded as
    /// skipped, those of a task, an hour and a reason together. So are those of tenants that have stored all that they
    /// may, whatever their reason. An event counts for each task that it fires, also where a window collects it.
    pub async fn fire_events(&self, ask: &FireEvents<'_>) -> Result<EventsFired, StoreError> {
        let halts = self.halts().await?;
        let matches = not_halted(ask.matches, &halts);
        let counted = self.count_fires(&matches).await?;
        let kept = self.within_quota(&matches, &counted);
        let ask = FireEvents { matches: &kept, ..*ask };
        let recorded = match self.record_matches(&ask).await {
            // somebody else records one of these fires just now, whose run had its task's slot here: none starts then
            Err(StoreError::Conflict(_)) if ask.start.is_some() => {
                self.record_matches(&FireEvents { start: None, ..ask }).await
            }
            recorded => recorded,
        };
        if !matches!(recorded, Ok(Some(_))) {
            counted.iter().for_each(|(tenant, fires)| self.give_fires_back(tenant, fires.allowed));
        }
        let Some((mut recorded, effects)) = recorded? else { return Ok(EventsFired::Stale) };
        self.notify_recorded(&recorded, &effects);
        if let Some(start) = ask.start {
            recorded.started = self.read_committed_starts(effects.started, start.lease_until).await;
        }
        Ok(EventsFired::Done(recorded))
    }

    /// The fires of each tenant among these matches, and how many of them it may have.
    async fn count_fires(&self, matches: &[Match]) -> Result<HashMap<String, Fires>, StoreError> {
        let mut counted: HashMap<String, Fires> = HashMap::new();
        for matched in matches.iter().filter(|matched| matched.is_fire()) {
            match counted.get_mut(matched.subject().tenant) {
                Some(fires) => fires.count += 1,
                None => drop(counted.insert(matched.subject().tenant.to_owned(), Fires { count: 1, allowed: 0 })),
            }
        }
        for (tenant, fires) in &mut counted {
            fires.allowed = self.take_fires(tenant, fires.count).await?;
        }
        Ok(counted)
    }

    /// The matches, those that are too many as skipped. Nothing is copied where none is.
    fn within_quota<'a>(&self, matches: &'a [Match], counted: &HashMap<String, Fires>) -> Cow<'a, [Match]> {
        if counted.values().all(|fires| fires.allowed == fires.count) {
            return Cow::Borrowed(matches);
        }
        let mut left: HashMap<&str, usize> =
            counted.iter().map(|(tenant, fires)| (tenant.as_str(), fires.allowed)).collect();
        let mut kept = matches.to_vec();
        for matched in kept.iter_mut().filter(|matched| matched.is_fire()) {
            match left.get_mut(matched.arrival.event.tenant.as_str()) {
                Some(left) if *left > 0 => *left -= 1,
                _ => matched.verdict = EventVerdict::Skipped(REASON_QUOTA.into()),
            }
        }
        Cow::Owned(kept)
    }

    /// `None`: the index is older than the tasks, and nothing was written.
    async fn record_matches(&self, ask: &FireEvents<'_>) -> Result<Option<RecordedBatch>, StoreError> {
        match &self.db {
            Db::Postgres { engine, waits, .. } if ask.matches.iter().all(Match::is_stateless) => {
                let mut held = engine_connection(engine, waits, ask.flow()).await?;
                let began = Instant::now();
                let fired = self.fire_stateless(&mut held, ask).await?;
                // while others wait for the connection
                self.learn(&self.paces.events, ask.matches.len(), began);
                drop(held);
                fault()?;
                Ok(fired)
            }
            _ => self.fire_by_rules(ask).await,
        }
    }

    async fn fire_stateless(
        &self,
        conn: &mut PgConnection,
        ask: &FireEvents<'_>,
    ) -> Result<Option<RecordedBatch>, StoreError> {
        if ask.matches.is_empty() {
            let holds = Tx::Postgres(conn).versions(ask.shards).await? == ask.shards;
            return Ok(holds.then(RecordedBatch::default));
        }
        let mut tasks: Vec<(Uuid, i64)> = ask.matches.iter().map(|matched| (matched.task_id, matched.epoch)).collect();
        tasks.sort_unstable();
        tasks.dedup();
        let capacity = RemainingCapacity::new(ask.room, ask.start);
        let mut recording = Recording::new(ask.now, capacity, HashMap::new(), &self.unreadable);
        for matched in ask.matches {
            recording.run_stateless(matched)?;
        }
        let guard = MatchGuard { tasks, shards: ask.shards };
        let written = record_guarded(conn, &recording.batch, &guard, &ask.terms()).await?;
        Ok(written.map(|written| recording.summary(written)))
    }

    async fn fire_by_rules(&self, ask: &FireEvents<'_>) -> Result<Option<RecordedBatch>, StoreError> {
        let may_be_skipped = ask.matches.iter().filter(|matched| !matched.is_stateless());
        let tenants: BTreeSet<&str> = may_be_skipped.map(|matched| matched.subject().tenant).collect();
        // read before the rows are locked
        let full = self.full_tenants(tenants).await?;
        let mut write = self.db.write_for_engine(ask.flow()).await?;
        let tx = &mut write.tx();
        let began = Instant::now();
        if tx.versions(ask.shards).await? != ask.shards {
            return Ok(None);
        }
        let mut tasks: Vec<Uuid> = ask.matches.iter().map(|matched| matched.task_id).collect();
        tasks.sort_unstable();
        tasks.dedup();
        let locked = match tx.lock_tasks(&tasks).await {
            Err(error @ StoreError::Corrupt(_)) => {
                drop(write);
                // the others are matched anew, by an index without it
                return match self.disable_unreadable_event_tasks(&tasks).await? {
                    0 => Err(error),
                    _ => Ok(None),
                };
            }
            locked => locked?,
        };
        let locked: HashMap<Uuid, LockedTask> = locked.into_iter().map(|row| (row.task_id, row)).collect();
        if ask.matches.iter().any(|matched| locked.get(&matched.task_id).is_none_or(|at| at.epoch != matched.epoch)) {
            return Ok(None);
        }
        let capacity = RemainingCapacity::new(ask.room, ask.start);
        let mut recording = Recording::new(ask.now, capacity, locked, &self.unreadable);
        let windowed: Vec<&Match> = ask.matches.iter().filter(|matched| matched.may_be_in_window()).collect();
        recording.set_known_events(tx.in_windows(&windowed).await?);
        recording.set_full_tenants(full);
        for matched in ask.matches {
            recording.apply_match(tx, matched).await?;
        }
        let recorded = write_recording(tx, recording, &ask.terms()).await?;
        self.learn(&self.paces.events, ask.matches.len(), began);
        write.commit().await?;
        Ok(Some(recorded))
    }

    /// Wakes those who go on with what was recorded.
    pub(in crate::store) fn notify_recorded(&self, recorded: &EventsRecorded, effects: &BatchEffects) {
        self.counts.each_skipped(&effects.skipped);
        if recorded.recorded > recorded.claims.len() + effects.started.rows.len() {
            self.notify_all_instances(Topic::Queue);
        }
        if effects.opened {
            self.notify(Topic::Windows);
        }
    }
}
