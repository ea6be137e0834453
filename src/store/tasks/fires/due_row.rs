//! A due task as it is read, and the plan of it: which runs are recorded, what is skipped, and when it is due next.
//! Pure but for the ids.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::Value;
use sqlx::types::Json;
use uuid::Uuid;

use super::batch::{DueSnapshot, DueUpdate, FireBatch, UnplannableTask};
use super::request::FireDue;
use crate::base::clock::to_delta;
use crate::domain::run::{MissedInstants, RunState};
use crate::domain::task::change::{REASON_ENDED, REASON_MAX_RUNS};
use crate::domain::task::{Output, Spec, Task};
use crate::domain::trigger::catch_up::MISFIRE_GRACE;
use crate::domain::trigger::steps::PLANNED;
use crate::domain::trigger::{DueSchedule, FirePlan, PlannedFire, Trigger};
use crate::store::runs::lease::CLAIM_MARGIN;
use crate::store::runs::overlap::rule::EACH_IN_TURN;
use crate::store::runs::starting::immediate_start::{PlannedRun, RemainingCapacity};
use crate::store::runs::{NewRun, key_instant, missed_key};
use crate::store::tasks::row::TaskRow;
use crate::store::tasks::task_cache::CachedTask;

/// A due task as its row has it.
#[derive(sqlx_macros::FromRow)]
pub(super) struct DueRow {
    /// Read by [`DueRow::read`]: one that can't be read must not keep the other tasks from firing. Without a nominal
    /// instant the last fire is recorded, and its instant has come by now.
    /// Without what it is told to do where that is long: then its trigger stands by itself.
    #[sqlx(flatten)]
    task: TaskRow<Option<String>>,
    trigger: Option<String>,
    trigger_type: String,
    /// As they are written.
    max_runs: Option<String>,
    timeout_seconds: Option<String>,
    /// The task as it is known in the version of the row: then nothing else needs to be read.
    #[sqlx(skip)]
    known: Option<Arc<Task>>,
}

/// A task, as far as it could be read.
enum ReadTask {
    Whole(Arc<Task>),
    Trigger(Box<Trigger>),
}

impl ReadTask {
    fn trigger(&self) -> &Trigger {
        match self {
            ReadTask::Whole(task) => &task.spec.trigger,
            ReadTask::Trigger(trigger) => trigger,
        }
    }

    fn whole(&self) -> Option<&Arc<Task>> {
        match self {
            ReadTask::Whole(task) => Some(task),
            ReadTask::Trigger(_) => None,
        }
    }
}

/// Bytes of a specification that are read in a step.
const READ_BYTES: u64 = 16;
/// Seconds that a run may take where its task does not say.
const USUAL_LIMIT: i64 = 600;

impl DueRow {
    /// The tenant of the task.
    pub fn tenant(&self) -> &str {
        &self.task.tenant_id
    }

    /// The task and its version.
    pub fn version(&self) -> (Uuid, i64) {
        (self.task.id, self.task.version)
    }

    /// From now on the row goes by what is known of its task, if that is there.
    pub fn set_known(&mut self, known: Option<Arc<Task>>) {
        self.known = known;
    }

    /// Whether the row goes by a definition that was known before.
    pub fn is_known(&self) -> bool {
        self.known.is_some()
    }

    /// Adds what is to be recorded of this task to the batch, or to those that can't be planned; answers how many steps
    /// that took.
    pub fn plan_into(
        self,
        ask: &FireDue,
        left: &mut RemainingCapacity,
        batch: &mut FireBatch,
        unplannable: &mut Vec<UnplannableTask>,
    ) -> u64 {
        batch.read.push(self.as_read());
        let Some(nominal) = self.task.nominal_at else {
            batch.moves.push(self.unchanged_update());
            batch.completed.push((self.task.id, self.completion_reason(0)));
            return 0;
        };
        let mut steps = self.bytes() / READ_BYTES;
        let planned = self.read(&mut batch.read_tasks).and_then(|task| {
            let (plan, taken) = self.plan(task.trigger(), nominal, ask);
            steps += taken;
            Ok((plan?, task))
        });
        match planned {
            Ok((plan, task)) => self.record_plan(plan, &task, ask, left, batch),
            Err(why) => {
                batch.moves.push(self.unchanged_update());
                batch.disabled.push((self.task.id, why.clone()));
                unplannable.push(self.unplannable(why));
            }
        }
        steps
    }

    /// The bytes that there are to read of it.
    fn bytes(&self) -> u64 {
        if self.is_known() {
            return 0;
        }
        self.task.spec.as_ref().or(self.trigger.as_ref()).map_or(0, |written| written.len() as u64)
    }

    /// The whole task if it is known or can be read, and else its trigger; or why not. What was read as a whole is
    /// added to `read`.
    fn read(&self, read: &mut Vec<CachedTask>) -> Result<ReadTask, String> {
        if let Some(known) = &self.known {
            return Ok(ReadTask::Whole(Arc::clone(known)));
        }
        let unreadable = |error| format!("the trigger can't be read: {error}");
        let trigger = |trigger| ReadTask::Trigger(Box::new(trigger));
        let Some(written) = &self.task.spec else {
            let Some(written) = &self.trigger else { return Err("the trigger is longer than 64 KiB".into()) };
            return serde_json::from_str(written).map(trigger).map_err(unreadable);
        };
        if let Ok(spec) = serde_json::from_str::<Spec>(written)
            && let Ok(task) = self.task.with(Json(spec)).task()
        {
            let task = CachedTask::new(task, written.len());
            let whole = ReadTask::Whole(Arc::clone(task.task()));
            read.push(task);
            return Ok(whole);
        }
        let written: Value = serde_json::from_str(written).unwrap_or_default();
        Trigger::deserialize(&written["trigger"]).map(trigger).map_err(unreadable)
    }

    /// How often it may run; unreadable it must not become as often as it likes.
    fn max_runs(&self) -> Result<Option<u64>, String> {
        if let Some(known) = &self.known {
            return Ok(known.spec.max_runs);
        }
        let written = self.max_runs.as_deref().unwrap_or("null");
        serde_json::from_str(written).map_err(|error| format!("`max_runs` can't be read: {error}"))
    }

    /// Its time limit; one that can't be read is the usual one, as where a run starts.
    fn timeout_seconds(&self) -> i64 {
        if let Some(known) = &self.known {
            return i64::try_from(known.spec.timeout_seconds).unwrap_or(USUAL_LIMIT);
        }
        let written = self.timeout_seconds.as_deref().and_then(|written| serde_json::from_str::<u32>(written).ok());
        written.map_or(USUAL_LIMIT, i64::from)
    }

    fn as_read(&self) -> DueSnapshot {
        let TaskRow { id, epoch, next_at, nominal_at, fire_count, version, .. } = &self.task;
        DueSnapshot {
            task_id: *id,
            epoch: *epoch,
            next_at: *next_at,
            nominal_at: *nominal_at,
            fire_count: *fire_count,
            version: *version,
        }
    }

    fn unplannable(self, why: String) -> UnplannableTask {
        let TaskRow { id: task_id, tenant_id, name, version, spec, .. } = self.task;
        let written = || -> Option<Output> {
            let written: Value = serde_json::from_str(&spec?).ok()?;
            Output::deserialize(&written["output"]).ok()
        };
        let output = self.known.map_or_else(|| written().unwrap_or_default(), |known| known.spec.output.clone());
        UnplannableTask { task_id, tenant_id, name, version, output, why }
    }

    /// The records to make, or why this task can't be scheduled any more; and how many steps that took. A fault of one
    /// task, even a panic of the code that plans it, stays its own.
    fn plan(&self, trigger: &Trigger, nominal: DateTime<Utc>, ask: &FireDue) -> (Result<FirePlan, String>, u64) {
        let max_runs = match self.max_runs() {
            Ok(max_runs) => max_runs,
            Err(why) => return (Err(why), 0),
        };
        let due = DueSchedule {
            task_id: self.task.id,
            anchor: self.task.anchor_at,
            active_since: self.task.active_since,
            nominal,
            fire_count: self.task.fire_count.max(0) as u64,
            max_runs,
        };
        let until = ask.now + to_delta(ask.horizon);
        let planned = catch_unwind(AssertUnwindSafe(|| trigger.plan(&due, ask.now, until)));
        match planned {
            Ok((planned, steps)) => (planned.map_err(|fault| format!("{}: {}", fault.pointer, fault.message)), steps),
            Err(_) => (Err("planning the trigger panicked".into()), PLANNED),
        }
    }

    /// Adds the runs, the skipped instants and the next instant of a plan to the batch.
    fn record_plan(
        &self,
        plan: FirePlan,
        task: &ReadTask,
        ask: &FireDue,
        left: &mut RemainingCapacity,
        batch: &mut FireBatch,
    ) {
        let trigger = task.trigger();
        let fired = plan.fires.len() as i64;
        let last_ahead = last_instant(&plan).filter(|last| *last > ask.now);
        // runs that are caught up would be skipped or superseded by those that are caught up with them
        let passed = plan.fires.iter().filter(|fire| fire.run_at <= ask.now).count();
        let in_turn = |fire: &PlannedFire| {
            let late = passed > 1 || fire.run_at < ask.now - MISFIRE_GRACE;
            (trigger.catches_all_up() && late && fire.run_at <= ask.now).then_some(EACH_IN_TURN)
        };
        for fire in plan.fires {
            // the lease of a run that is claimed ahead is short, so that a crash costs little
            let (leased, starts) = left.take_share(&self.task.tenant_id, fire.run_at <= ask.now);
            let lease_until = leased.then(|| fire.run_at.max(ask.now) + CLAIM_MARGIN);
            let key = format!("s:{}", key_instant(fire.nominal));
            let overlap = in_turn(&fire);
            let run = NewRun { missed: fire.missed, ..self.run(key, fire.nominal, ask.now) };
            batch.runs.push(PlannedRun {
                run,
                epoch: self.task.epoch,
                run_at: fire.run_at,
                lease_until,
                overlap,
                starts,
                needs_slot: !failpoint!("no_slot") && (overlap.is_some() || !trigger.may_overlap()),
                timeout_seconds: self.timeout_seconds(),
                task_version: None,
                task: task.whole().filter(|_| starts).cloned(),
            });
        }
        for skip in plan.skips.into_iter().filter(|_| !failpoint!("silent_miss")) {
            batch.skipped.push(self.skipped(&skip.missed, skip.reason, ask.now));
        }
        let next_at = match (plan.next, last_ahead) {
            (Some(next), _) => Some(next.run_at),
            // until its last instant has come a task is active, so that it can be paused and edited; it is looked at
            // again a horizon ahead of this, which is then
            (None, Some(last)) => Some(last + to_delta(ask.horizon)),
            (None, None) => {
                batch.completed.push((self.task.id, self.completion_reason(fired)));
                None
            }
        };
        let nominal_at = plan.next.map(|next| next.nominal);
        batch.moves.push(DueUpdate { next_at, nominal_at, fires: fired, ..self.unchanged_update() });
    }

    fn completion_reason(&self, fired: i64) -> &'static str {
        let most = self.max_runs().ok().flatten();
        let spent = most.is_some_and(|most| (self.task.fire_count + fired).max(0) as u64 >= most);
        if spent { REASON_MAX_RUNS } else { REASON_ENDED }
    }

    fn unchanged_update(&self) -> DueUpdate {
        DueUpdate {
            task_id: self.task.id,
            epoch: self.task.epoch,
            next_at: None,
            nominal_at: self.task.nominal_at,
            fires: 0,
        }
    }

    fn run(&self, fire_key: String, scheduled_for: DateTime<Utc>, now: DateTime<Utc>) -> NewRun {
        NewRun::of(self.task.id, &self.task.tenant_id, &self.trigger_type, fire_key, scheduled_for, now)
    }

    fn skipped(&self, missed: &MissedInstants, reason: &str, now: DateTime<Utc>) -> NewRun {
        NewRun {
            state: RunState::Skipped,
            reason: Some(reason.to_owned()),
            missed: Some(missed.clone()),
            ..self.run(missed_key(missed), missed.to, now)
        }
    }
}

/// When the last of what is planned has come.
fn last_instant(plan: &FirePlan) -> Option<DateTime<Utc>> {
    let fires = plan.fires.iter().map(|fire| fire.run_at);
    fires.chain(plan.skips.iter().map(|skip| skip.missed.to)).max()
}
