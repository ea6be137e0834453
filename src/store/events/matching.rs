//! Events become runs: what matched is recorded, collected or skipped, in one transaction per batch of events.
//!
//! Once `fire_events` has returned `Done`, each match has its record: a run, a place in a window, or a reason. If it has
//! not returned, asking again is safe: everything is unique by task and event. Nothing was written where it is `Stale`.

use std::borrow::Cow;
use std::collections::HashMap;
use std::time::Instant;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use uuid::Uuid;

use crate::domain::halt::Halts;
use crate::domain::quota::REASON_QUOTA;
use crate::domain::trigger::event::EventVerdict;
use crate::store::batches::record_guarded;
use crate::store::db::flow::QueueFlow;
use crate::store::db::{Db, connection, fault};
use crate::store::events::matches::{EventsRecorded, LockedTask, Match, MatchGuard};
use crate::store::events::recording::{BatchEffects, Recording, write_recording};
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
    /// Records what became of a batch of events. On Postgres a batch whose events all [go straight](Match::is_stateless)
    /// takes one statement.
    ///
    /// Matches of halted tenants, and those beyond the fires that their tenant may have in this minute, are recorded as skipped. An event counts for each
    /// task that it fires, also where a window collects it.
    pub async fn fire_events(&self, ask: &FireEvents<'_>) -> Result<EventsFired, StoreError> {
        let halts = self.halts().await?;
        let matches = not_halted(ask.matches, &halts);
        let counted = self.count_fires(&matches).await?;
        let kept = self.within_quota(&matches, &counted);
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
            Db::Postgres { engine, waits, .. } if ask.matches.iter().all(Match::is_stateless) => {
                let fired = self.fire_stateless(&mut *connection("engine", engine, waits).await?, ask).await?;
                fault()?;
                Ok(fired)
            }
            _ => self.fire_by_rules(ask).await,
        }
    }

    async fn fire_stateless(&self, conn: &mut PgConnection, ask: &FireEvents<'_>) -> Result<EventsFired, StoreError> {
        if ask.matches.is_empty() {
            let holds = Tx::Postgres(conn).versions(ask.shards).await? == ask.shards;
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
        let Some(written) = record_guarded(conn, &recording.batch, &guard, ask.now, ask.worker).await? else {
            return Ok(EventsFired::Stale);
        };
        let (fired, aside) = recording.summary(written);
        Ok(EventsFired::Done(self.notify_recorded(fired, aside)))
    }

    async fn fire_by_rules(&self, ask: &FireEvents<'_>) -> Result<EventsFired, StoreError> {
        let mut write = self.db.write_for_engine(ask.flow()).await?;
        let tx = &mut write.tx();
        let began = Instant::now();
        if tx.versions(ask.shards).await? != ask.shards {
            return Ok(EventsFired::Stale);
        }
        let mut tasks: Vec<Uuid> = ask.matches.iter().map(|matched| matched.task_id).collect();
        tasks.sort_unstable();
        tasks.dedup();
        let locked: HashMap<Uuid, LockedTask> =
            tx.lock_tasks(&tasks).await?.into_iter().map(|row| (row.task_id, row)).collect();
        if ask.matches.iter().any(|matched| locked.get(&matched.task_id).is_none_or(|at| at.epoch != matched.epoch)) {
            return Ok(EventsFired::Stale);
        }
        let mut recording = Recording::new(ask.now, ask.room, locked);
        let windowed: Vec<&Match> = ask.matches.iter().filter(|matched| matched.may_be_in_window()).collect();
        recording.set_known_events(tx.in_windows(&windowed).await?);
        for matched in ask.matches {
            recording.apply_match(tx, matched).await?;
        }
        let (fired, opened) = write_recording(tx, recording, ask.now, ask.worker).await?;
        self.learn(&self.paces.events, ask.matches.len(), began);
        write.commit().await?;
        Ok(EventsFired::Done(self.notify_recorded(fired, opened)))
    }

    /// Wakes those who go on with what was recorded.
    pub(in crate::store) fn notify_recorded(&self, recorded: EventsRecorded, aside: BatchEffects) -> EventsRecorded {
        self.counts.each_skipped(&aside.skipped);
        if recorded.recorded > recorded.claims.len() {
            self.notify_all_instances(Topic::Queue);
        }
        if aside.opened {
            self.notify(Topic::Windows);
        }
        recorded
    }
}
