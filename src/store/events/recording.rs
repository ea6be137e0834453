//! A batch of events while it is decided: which match becomes a run, waits in a window, or is skipped and why.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::id::new_id;
use crate::domain::quota::REASON_QUOTA;
use crate::domain::run::RunState;
use crate::domain::run::skip_tally::is_tallied;
use crate::domain::task::TaskStatus;
use crate::domain::task::change::{REASON_MAX_RUNS, REASON_PAUSED};
use crate::domain::trigger::event::{Arrival, EventVerdict, reason};
use crate::store::StoreError;
use crate::store::db::text::StoredJson;
use crate::store::events::event_index::index_event_task;
use crate::store::events::matches::{EventBatch, EventRun, EventsRecorded, LockedTask, Match, RecordedSubject};
use crate::store::events::windows::{self, CollectedCause, CollectedEvent, WindowOutcome};
use crate::store::ops::unreadable::UnreadableRow;
use crate::store::runs::NewRun;
use crate::store::runs::lease::StartedRows;
use crate::store::runs::starting::immediate_start::{LeaseTerms, RemainingCapacity, WrittenRows};
use crate::store::tasks::conditions::complete_task;
use crate::store::tx::Tx;

/// Writes a batch that is decided, and completes the tasks that have had all their runs.
pub(in crate::store) async fn write_recording(
    tx: &mut Tx<'_>,
    recording: Recording,
    terms: &LeaseTerms,
) -> Result<(EventsRecorded, BatchEffects), StoreError> {
    let written = tx.record_events(&recording.batch, terms).await?;
    for (task_id, tenant) in recording.completed() {
        complete_task(tx, task_id, REASON_MAX_RUNS, terms.now).await?;
        index_event_task(tx, task_id, tenant, false, terms.now).await?;
    }
    Ok(recording.summary(written))
}

/// Effects of a batch that is written.
#[derive(Default)]
pub(in crate::store) struct BatchEffects {
    /// A window was opened.
    pub opened: bool,
    /// Why each was skipped that was.
    pub skipped: Vec<String>,
    /// Runs that have started.
    pub started: StartedRows,
}

/// A batch while it is decided.
pub(in crate::store) struct Recording {
    now: DateTime<Utc>,
    capacity: RemainingCapacity,
    tasks: HashMap<Uuid, LockedTask>,
    /// Tasks with a limit, and their tenants.
    limited: BTreeMap<Uuid, (i64, String)>,
    pub batch: EventBatch,
    collected: usize,
    duplicates: usize,
    opened: bool,
    /// Events that have their record, or their place in a window, already.
    known: HashSet<(Uuid, String)>,
    /// Tenants that have stored all that they may.
    full: HashSet<String>,
    unreadable: UnreadableRow,
}

impl Recording {
    /// A batch in which nothing is recorded yet, of these locked tasks.
    pub fn new(
        now: DateTime<Utc>,
        capacity: RemainingCapacity,
        tasks: HashMap<Uuid, LockedTask>,
        unreadable: &UnreadableRow,
    ) -> Recording {
        Recording {
            now,
            capacity,
            tasks,
            limited: BTreeMap::new(),
            batch: EventBatch::default(),
            collected: 0,
            duplicates: 0,
            opened: false,
            known: HashSet::new(),
            full: HashSet::new(),
            unreadable: unreadable.clone(),
        }
    }

    /// Events that windows have had: a rule that was edited away must not make them fire once more.
    pub fn set_known_events(&mut self, known: Vec<(Uuid, String)>) {
        self.known.extend(known);
    }

    /// Tenants that have stored all that they may: no event of theirs is buffered, and those that are skipped are
    /// tallied.
    pub fn set_full_tenants(&mut self, full: HashSet<String>) {
        self.full = full;
    }

    /// Whether the task has, or is about to have, its record of the event; from now on it is so.
    fn is_known(&mut self, matched: &Match) -> bool {
        let is_known = !self.known.insert((matched.task_id, matched.arrival.key().to_owned()));
        self.duplicates += usize::from(is_known);
        is_known
    }

    /// Decides one match; asks the database only where a rule needs its memory.
    pub(super) async fn apply_match(&mut self, tx: &mut Tx<'_>, matched: &Match) -> Result<(), StoreError> {
        if matched.verdict != EventVerdict::No && self.is_known(matched) {
            return Ok(());
        }
        let way = match &matched.verdict {
            EventVerdict::No => return Ok(()),
            EventVerdict::Skipped(reason) => {
                self.skip(matched, reason);
                return Ok(());
            }
            EventVerdict::Fires(way) => way,
        };
        let paused = matched.status == TaskStatus::Paused;
        if paused && !matched.buffer_while_paused {
            self.skip(matched, REASON_PAUSED);
            return Ok(());
        }
        if !paused && way.is_plain() && matched.max_runs.is_none() {
            return self.run_event(matched);
        }
        // rules with a memory must not count an event twice
        if windows::is_recorded(tx, matched.task_id, matched.arrival.key()).await? {
            self.duplicates += 1;
            return Ok(());
        }
        if paused {
            return self.hold(tx, matched).await;
        }
        if self.is_spent(matched.subject()) {
            self.skip(matched, REASON_MAX_RUNS);
            return Ok(());
        }
        if let Some((key, window)) = &way.dedup
            && !windows::is_first(tx, matched.task_id, key, matched.arrival.key(), self.now, self.now + *window).await?
        {
            self.skip(matched, reason::DUPLICATE);
            return Ok(());
        }
        if let Some((key, limit, per)) = &way.throttle
            && !windows::try_throttle(tx, matched.task_id, key, *limit, *per, self.now, &self.unreadable).await?
        {
            self.skip(matched, reason::THROTTLED);
            return Ok(());
        }
        let Some(window) = &way.window else {
            return self.run_event(matched);
        };
        let subject = matched.subject();
        let RecordedSubject { task_id, tenant, .. } = subject;
        let collected =
            windows::collect(tx, task_id, tenant, window, &matched.arrival, self.now, &self.unreadable).await?;
        match collected {
            WindowOutcome::Waits { before } => {
                self.collected += 1;
                self.opened = true;
                if let Some((id, events)) = before {
                    self.close_window(subject, id, &events, None)?;
                }
            }
            WindowOutcome::Full { id, events } => self.close_window(subject, id, &events, None)?,
        }
        Ok(())
    }

    async fn hold(&mut self, tx: &mut Tx<'_>, matched: &Match) -> Result<(), StoreError> {
        let tenant = matched.arrival.event.tenant.as_str();
        if self.full.contains(tenant) {
            self.skip(matched, REASON_QUOTA);
            return Ok(());
        }
        match windows::buffer_while_paused(tx, matched.task_id, tenant, &matched.arrival, self.now).await? {
            true => self.collected += 1,
            false => self.skip(matched, reason::BUFFER_FULL),
        }
        Ok(())
    }

    /// Whether the task has had all its runs, those of this batch included.
    fn is_spent(&mut self, of: RecordedSubject) -> bool {
        let Some(most) = of.max_runs else { return false };
        self.limited.entry(of.task_id).or_insert_with(|| (most, of.tenant.to_owned()));
        self.fired(of.task_id) >= most
    }

    fn fired(&self, task_id: Uuid) -> i64 {
        let before = self.tasks.get(&task_id).map_or(0, |task| task.fire_count);
        before + self.batch.runs.iter().filter(|ready| ready.run.task_id == task_id).count() as i64
    }

    /// Decides a match that becomes a run whatever there was before; one that stands in the batch twice is one.
    pub fn run_stateless(&mut self, matched: &Match) -> Result<(), StoreError> {
        match self.is_known(matched) {
            true => Ok(()),
            false => self.run_event(matched),
        }
    }

    fn run_event(&mut self, matched: &Match) -> Result<(), StoreError> {
        let cause = StoredJson::from_raw(matched.arrival.cause())?;
        let run = NewRun { cause: Some(cause), ..self.of_event(matched) };
        self.queue(matched.epoch, run, Some(Arc::clone(&matched.arrival)));
        Ok(())
    }

    /// Records what a closed window held: a run, or `why` there is none.
    pub fn close_window(
        &mut self,
        of: RecordedSubject,
        id: Uuid,
        events: &[CollectedEvent],
        why: Option<&str>,
    ) -> Result<(), StoreError> {
        let run = of_window(of, id, events, self.now)?;
        let spent = self.is_spent(of).then_some(REASON_MAX_RUNS);
        match why.or(spent) {
            None => self.queue(of.epoch, run, None),
            Some(reason) => self.skip_run(run, reason),
        }
        Ok(())
    }

    /// A run of a window starts by its claim.
    fn queue(&mut self, epoch: i64, run: NewRun, arrival: Option<Arc<Arrival>>) {
        let (claimed, may_start) = self.capacity.take(&run.tenant_id, arrival.is_some());
        self.batch.runs.push(EventRun { run, epoch, claimed, may_start, arrival });
    }

    fn skip(&mut self, matched: &Match, reason: &str) {
        self.skip_run(self.of_event(matched), reason);
    }

    /// A fire that is tallied leaves no record of its event. An event beyond a quota fires if it comes again while
    /// there is room, and counts once more if it comes again while there is none.
    fn skip_run(&mut self, run: NewRun, reason: &str) {
        if is_tallied(reason) || self.full.contains(&run.tenant_id) {
            self.batch.tallies.add(run, reason);
            return;
        }
        let reason = Some(reason.to_owned());
        self.batch.skipped.push(NewRun { state: RunState::Skipped, reason, cause: None, ..run });
    }

    fn of_event(&self, matched: &Match) -> NewRun {
        let arrival = &matched.arrival;
        let run = new_run(matched.task_id, arrival.event.tenant.as_str(), format!("e:{}", arrival.key()), self.now);
        NewRun { event_ids: vec![arrival.event.id.clone()], ..run }
    }

    /// Tasks that have come to their limit, with their tenants.
    pub fn completed(&self) -> impl Iterator<Item = (Uuid, &str)> {
        let spent = self.limited.iter().filter(|(task_id, (most, _))| self.fired(**task_id) >= *most);
        spent.map(|(task_id, (_, tenant))| (*task_id, tenant.as_str()))
    }

    /// Result of a batch that is written; the runs that have started are among its effects, and not read yet.
    pub fn summary(self, written: WrittenRows) -> (EventsRecorded, BatchEffects) {
        let EventBatch { runs, skipped, tallies } = self.batch;
        let asked = runs.len() + skipped.len() + tallies.fires();
        let recorded = EventsRecorded {
            recorded: written.recorded,
            skipped: written.skipped,
            collected: self.collected,
            duplicates: self.duplicates + asked - written.recorded - written.skipped,
            claims: written.claims,
            started: Vec::new(),
        };
        let single = skipped.into_iter().filter_map(|run| run.reason);
        let skipped = single.chain(tallies.reasons().map(str::to_owned)).collect();
        (recorded, BatchEffects { opened: self.opened, skipped, started: written.started })
    }
}

/// The run of a closed window: of one event, or of many with the last as the one that fires.
fn of_window(
    of: RecordedSubject,
    window: Uuid,
    events: &[CollectedEvent],
    now: DateTime<Utc>,
) -> Result<NewRun, StoreError> {
    let event_ids = events.iter().map(|event| event.id.clone()).collect();
    let cause = CollectedCause::of(events).map(|cause| StoredJson::of(&cause)).transpose()?;
    Ok(NewRun { event_ids, cause, ..new_run(of.task_id, of.tenant, format!("w:{window}"), now) })
}

fn new_run(task_id: Uuid, tenant: &str, fire_key: String, now: DateTime<Utc>) -> NewRun {
    let fire_key = if failpoint!("no_unique_key") { format!("{fire_key}#{}", new_id(now)) } else { fire_key };
    NewRun::of(task_id, tenant, "event", fire_key, now, now)
}
