//! Events become runs: what matched is recorded, collected or skipped, in one transaction per batch of events.
//!
//! Once `fire_events` has returned `Done`, each match has its record: a run, a place in a window, or a reason. If it has
//! not returned, asking again is safe: everything is unique by task and event. Nothing was written where it is `Stale`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::domain::quota::REASON_QUOTA;
use crate::domain::task::{FIRST_EPOCH, TaskStatus};
use crate::domain::trigger::event::{Arrival, EventVerdict};
use crate::store::db::flow::QueueFlow;
use crate::store::db::{Db, connection, fault};
use crate::store::events::recording::{Aside, Locked, RecordedSubject, Recording, write_recording};
use crate::store::hot::{GuardedEvents, HotEvents};
use crate::store::runs::lease::RunClaim;
use crate::store::{Store, StoreError, Topic};

/// An event that a task was found to be fired by, or skipped for.
#[derive(Clone)]
pub struct Match {
    /// The task that matched.
    pub task_id: Uuid,
    /// Epoch of the task as it was judged.
    pub epoch: i64,
    /// Status of the task as it was judged.
    pub status: TaskStatus,
    /// Whether the task, paused, collects.
    pub hold: bool,
    /// Automatic fires that the task may have in all.
    pub max_runs: Option<i64>,
    /// The event.
    pub arrival: Arc<Arrival>,
    /// Never `No`.
    pub verdict: EventVerdict,
}

impl Match {
    pub(in crate::store) fn subject(&self) -> RecordedSubject<'_> {
        let tenant = self.arrival.event.tenant.as_str();
        RecordedSubject { task_id: self.task_id, tenant, epoch: self.epoch, max_runs: self.max_runs }
    }

    /// Whether it becomes a run whatever the task's other events did: no rule with a memory is asked.
    pub fn goes_straight(&self) -> bool {
        let plain = matches!(&self.verdict, EventVerdict::Fires(way) if way.is_plain());
        plain && self.status != TaskStatus::Paused && self.max_runs.is_none()
    }

    /// Whether it fires its task now, straight or through a window.
    fn is_fire(&self) -> bool {
        matches!(self.verdict, EventVerdict::Fires(_)) && self.status != TaskStatus::Paused
    }

    /// Whether the event may have a place in a window of its task: not where the task never had one.
    fn may_be_in_window(&self) -> bool {
        self.epoch > FIRST_EPOCH || !matches!(&self.verdict, EventVerdict::Fires(way) if way.is_plain())
    }
}

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
    /// Few matches of each tenant: at SQLite's writer they do not stand behind writes of many.
    pub few: bool,
}

impl FireEvents<'_> {
    fn flow(&self) -> QueueFlow {
        if self.few { QueueFlow::Engine("few matches") } else { QueueFlow::of(None) }
    }
}

/// Result of recording events.
#[derive(Debug, Clone, PartialEq)]
pub enum EventsFired {
    /// The index is older than the tasks: read what is newer and match again. Nothing was written.
    Stale,
    /// The batch is written.
    Done(EventsRecorded),
}

/// Counts of a written batch of events.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct EventsRecorded {
    /// Runs that were recorded to be executed, and matches that were recorded as skipped.
    pub recorded: usize,
    /// Events that were recorded as skipped.
    pub skipped: usize,
    /// Matches that wait in a window.
    pub collected: usize,
    /// Matches that had their record already.
    pub duplicates: usize,
    /// Runs leased to the worker that asked.
    pub claims: Vec<RunClaim>,
}

/// Fires of a tenant in one batch, and how many of them it may have.
struct Fires {
    count: usize,
    allowed: usize,
}

/// Conditions that must still hold when a batch is written.
#[derive(Default)]
pub(in crate::store) struct MatchGuard<'a> {
    /// Tasks with their epochs; in the order of the ids, in which they are locked.
    pub tasks: Vec<(Uuid, i64)>,
    /// Shards with the versions of the index.
    pub shards: &'a [(i32, i64)],
}

impl Store {
    /// Records what became of a batch of events. On Postgres a batch whose events all [go straight](Match::goes_straight)
    /// takes one statement.
    ///
    /// Matches beyond the fires that their tenant may have in this minute are recorded as skipped. An event counts for each
    /// task that it fires, also where a window collects it.
    pub async fn fire_events(&self, ask: &FireEvents<'_>) -> Result<EventsFired, StoreError> {
        let counted = self.count_fires(ask.matches).await?;
        let kept = self.within_quota(ask.matches, &counted);
        let fired = self.record_matches(&FireEvents { matches: &kept, ..*ask }).await;
        if !matches!(fired, Ok(EventsFired::Done(_))) {
            counted.iter().for_each(|(tenant, fires)| self.give_fires_back(tenant, fires.allowed));
        }
        fired
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

    async fn record_matches(&self, ask: &FireEvents<'_>) -> Result<EventsFired, StoreError> {
        match &self.db {
            Db::Postgres { hot, waits, .. } if ask.matches.iter().all(Match::goes_straight) => {
                let fired = self.fire_straight(&mut *connection("hot", hot, waits).await?, ask).await?;
                fault()?;
                Ok(fired)
            }
            _ => self.fire_by_rules(ask).await,
        }
    }

    async fn fire_straight(&self, conn: &mut PgConnection, ask: &FireEvents<'_>) -> Result<EventsFired, StoreError> {
        if ask.matches.is_empty() {
            let holds = conn.versions(ask.shards).await? == ask.shards;
            return Ok(if holds { EventsFired::Done(EventsRecorded::default()) } else { EventsFired::Stale });
        }
        let mut tasks: Vec<(Uuid, i64)> = ask.matches.iter().map(|matched| (matched.task_id, matched.epoch)).collect();
        tasks.sort_unstable();
        tasks.dedup();
        let mut recording = Recording::new(ask.now, ask.room, HashMap::new());
        for matched in ask.matches {
            recording.run_event(matched)?;
        }
        let guard = MatchGuard { tasks, shards: ask.shards };
        let Some(written) = conn.record_guarded(&recording.batch, &guard, ask.now, ask.worker).await? else {
            return Ok(EventsFired::Stale);
        };
        let (fired, aside) = recording.summary(written);
        Ok(EventsFired::Done(self.told_of(fired, aside)))
    }

    async fn fire_by_rules(&self, ask: &FireEvents<'_>) -> Result<EventsFired, StoreError> {
        let mut write = self.db.write_hot(ask.flow()).await?;
        let tx = &mut write.tx();
        let began = Instant::now();
        if tx.versions(ask.shards).await? != ask.shards {
            return Ok(EventsFired::Stale);
        }
        let mut tasks: Vec<Uuid> = ask.matches.iter().map(|matched| matched.task_id).collect();
        tasks.sort_unstable();
        tasks.dedup();
        let locked: HashMap<Uuid, Locked> =
            tx.lock_tasks(&tasks).await?.into_iter().map(|row| (row.task_id, row)).collect();
        if ask.matches.iter().any(|matched| locked.get(&matched.task_id).is_none_or(|at| at.epoch != matched.epoch)) {
            return Ok(EventsFired::Stale);
        }
        let mut recording = Recording::new(ask.now, ask.room, locked);
        let windowed: Vec<&Match> = ask.matches.iter().filter(|matched| matched.may_be_in_window()).collect();
        recording.collected_before(tx.in_windows(&windowed).await?);
        for matched in ask.matches {
            recording.take(tx, matched).await?;
        }
        let (fired, opened) = write_recording(tx, recording, ask.now, ask.worker).await?;
        self.learn(&self.paces.events, ask.matches.len(), began);
        write.commit().await?;
        Ok(EventsFired::Done(self.told_of(fired, opened)))
    }

    /// Wakes those who go on with what was recorded.
    pub(in crate::store) fn told_of(&self, recorded: EventsRecorded, aside: Aside) -> EventsRecorded {
        self.counts.each_skipped(&aside.skipped);
        if recorded.recorded > recorded.claims.len() {
            self.hint_everybody(Topic::Queue);
        }
        if aside.opened {
            self.hint(Topic::Windows);
        }
        recorded
    }
}
