//! The effect of a change on a task: decided purely here, written by `store::change_task`.

use chrono::{DateTime, TimeDelta, Utc};

use crate::base::id::Scope;
use crate::base::invalid::FieldError;
use crate::domain::credential::Reference;
use crate::domain::run::MissedInstants;
use crate::domain::task::{Spec, Task, TaskStatus};
use crate::domain::trigger::catch_up::reason;
use crate::domain::trigger::{NextFire, Skip};

pub use crate::domain::task::change_error::ChangeError;
pub use crate::domain::task::faulty_part::FaultyPart;

/// Why a completed task has ended.
pub const REASON_ENDED: &str = "ended";
/// Reason of a task whose `max_runs` is used up.
pub const REASON_MAX_RUNS: &str = reason::MAX_RUNS;
/// Why an instant was skipped: it fell due while the task was paused or disabled, and is not caught up.
pub const REASON_PAUSED: &str = "paused";
/// Why an instant was skipped: it waited out its jitter when an edit took it out of the schedule.
pub const REASON_EDITED: &str = "edited";

/// Why a task is paused that an agent of its tenant has paused.
pub const REASON_PAUSED_BY_AGENT: &str = "paused_by_agent";

/// Changes to a task.
#[derive(Debug, Clone, PartialEq)]
pub enum TaskChange {
    /// Name and spec as given, if the task still has this version.
    Edit {
        /// The version that was read before the edit.
        version: i64,
        /// The new name.
        name: String,
        /// The new spec, whole.
        spec: Box<Spec>,
    },
    /// Stops firing until it is resumed.
    Pause {
        /// Reason for the record and for the owner.
        reason: Option<String>,
    },
    /// Stops firing, for an agent of the tenant. One that is paused stays as it is, with its reason.
    PauseByAgent,
    /// Resumes what an agent has paused, for an agent of the tenant. One that is active stays so.
    ResumeByAgent,
    /// Stops firing until this credential is saved.
    AwaitCredential(Reference),
    /// Resumes; held events run.
    Resume,
    /// Resumes; held events are recorded as skipped.
    ResumeDropping,
    /// Stops firing until the operator enables it.
    Disable {
        /// Reason for the record and for the owner.
        reason: Option<String>,
        /// The operator's name on the record.
        by: String,
    },
    /// Fires again from now on, and catches nothing up.
    Enable,
}

/// A task after a change, and what its `due` row says then.
#[derive(Debug, Clone, PartialEq)]
pub struct ChangedTask {
    /// The task after the change.
    pub task: Task,
    /// Fires recorded ahead are void, and the `due` row is written anew.
    pub replanned: bool,
    /// The first instant that has not been considered; kept while the task is paused.
    pub nominal_at: Option<DateTime<Utc>>,
    /// Instants that are never fired because of this change: those that fell due while the task was paused and are not
    /// caught up, or an instant that the edited trigger lacks.
    pub skipped: Option<Skip>,
    /// An instant to record and to run in the same transaction: it waited out a jitter that the edit took away. It is
    /// counted in the task already.
    pub fires_now: Option<DateTime<Utc>>,
}

/// The fate of an instant that waited out its jitter when the trigger was edited: exactly one of these.
#[derive(Default)]
struct PendingInstant {
    /// The new trigger has it, too, and its time to run is still to come.
    stays: Option<NextFire>,
    /// The new trigger has it, and would have run it by now.
    fires_now: Option<DateTime<Utc>>,
    skipped: Option<Skip>,
}

/// Flags of a change, by which it bears on what the task fires.
struct ChangeFlags {
    edited: bool,
    /// The task did not fire before.
    waited: bool,
    resumed: bool,
    catches_up: bool,
    reopened: bool,
}

/// A change of a task as it was read, with all that its triggers have to be asked for it. Asking takes time, so that it
/// is done before the task is locked; to make the change of it is arithmetic.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedChange {
    /// At this instant the change is made.
    pub now: DateTime<Utc>,
    version: i64,
    epoch: i64,
    unconsidered: Option<DateTime<Utc>>,
    answers: Result<ChangeAnswers, ChangeError>,
}

/// Answers of the triggers.
#[derive(Debug, Clone, Default, PartialEq)]
struct ChangeAnswers {
    /// Where the instants of an edited trigger are counted from.
    anchor: Option<DateTime<Utc>>,
    /// Instants that fell due while the task did not fire, and are not caught up.
    missed: Option<MissedInstants>,
    /// The instant that waits out its jitter, as an edited trigger has it, and whether it is excluded.
    waiting: Option<(NextFire, bool)>,
    next: Option<NextFire>,
}

impl PlannedChange {
    /// Whether the task is still as it was when this was planned.
    pub fn is_of(&self, task: &Task, unconsidered: Option<DateTime<Utc>>) -> bool {
        (self.version, self.epoch, self.unconsidered) == (task.version, task.epoch, unconsidered)
    }

    /// Whether the change can't be made.
    pub fn is_refused(&self) -> bool {
        self.answers.is_err()
    }
}

impl Task {
    /// Asks the triggers what `change` needs, asked for within `scope`, at `now`. `unconsidered` is the first nominal
    /// instant that has not become a fire, the ones that are taken back included.
    pub fn plan_change(
        &self,
        change: &TaskChange,
        scope: &Scope,
        unconsidered: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> PlannedChange {
        let (version, epoch) = (self.version, self.epoch);
        let answers = self.after(change, scope, now).and_then(|task| match self.differs_in_firing(&task) {
            true => self.evaluate(&task, unconsidered, now).map_err(ChangeError::Trigger),
            false => Ok(ChangeAnswers::default()),
        });
        PlannedChange { now, version, epoch, unconsidered, answers }
    }

    /// This task after `change`, which was planned for it as it is. `fire_count` and `run_count` of `self` must be
    /// without the fires that are taken back.
    pub fn change(
        &self,
        change: &TaskChange,
        scope: &Scope,
        planned: &PlannedChange,
    ) -> Result<ChangedTask, ChangeError> {
        let answers = planned.answers.as_ref().map_err(Clone::clone)?;
        let mut task = self.after(change, scope, planned.now)?;
        if !self.differs_in_firing(&task) {
            let nominal_at = planned.unconsidered;
            return Ok(ChangedTask { task, replanned: false, nominal_at, skipped: None, fires_now: None });
        }
        task.epoch += 1;
        Ok(self.replan(task, answers, planned.unconsidered, planned.now))
    }

    /// This task with another name, spec or status, its instants aside.
    fn after(&self, change: &TaskChange, scope: &Scope, now: DateTime<Utc>) -> Result<Task, ChangeError> {
        // disabled is for the operator to lift; who could pause such a task could resume it then
        let barred = self.status == TaskStatus::Disabled && *scope != Scope::Every;
        let mut task = self.clone();
        task.version += 1;
        task.updated_at = now;
        match change {
            TaskChange::Edit { version, .. } if *version != self.version => {
                return Err(ChangeError::Version(self.version));
            }
            TaskChange::Edit { name, spec, .. } => {
                task.name.clone_from(name);
                task.spec = (**spec).clone();
            }
            TaskChange::Pause { .. } | TaskChange::PauseByAgent | TaskChange::AwaitCredential(_)
                if self.status == TaskStatus::Completed =>
            {
                return Err(ChangeError::Completed("paused"));
            }
            TaskChange::Pause { .. } | TaskChange::PauseByAgent | TaskChange::AwaitCredential(_)
                if self.disabled_by.is_some() =>
            {
                return Err(ChangeError::DisabledByOperator("paused"));
            }
            TaskChange::Pause { .. } | TaskChange::PauseByAgent | TaskChange::AwaitCredential(_) if barred => {
                return Err(ChangeError::Disabled("paused"));
            }
            TaskChange::PauseByAgent if self.status == TaskStatus::Paused => {}
            TaskChange::PauseByAgent => task.set_status(TaskStatus::Paused, Some(REASON_PAUSED_BY_AGENT.into())),
            TaskChange::Pause { reason } => task.set_status(TaskStatus::Paused, reason.clone()),
            TaskChange::AwaitCredential(credential) => {
                task.set_status(TaskStatus::Paused, Some(format!("credential:{credential}")));
                task.awaited_credential = Some(credential.clone());
            }
            TaskChange::Resume | TaskChange::ResumeDropping | TaskChange::ResumeByAgent
                if self.status == TaskStatus::Completed =>
            {
                return Err(ChangeError::Completed("resumed"));
            }
            TaskChange::Resume | TaskChange::ResumeDropping | TaskChange::ResumeByAgent
                if self.disabled_by.is_some() =>
            {
                return Err(ChangeError::DisabledByOperator("resumed"));
            }
            TaskChange::Resume | TaskChange::ResumeDropping | TaskChange::ResumeByAgent if barred => {
                return Err(ChangeError::Disabled("resumed"));
            }
            TaskChange::ResumeByAgent if self.status == TaskStatus::Active => {}
            TaskChange::ResumeByAgent if self.status_reason.as_deref() != Some(REASON_PAUSED_BY_AGENT) => {
                return Err(ChangeError::PausedByPerson);
            }
            TaskChange::Resume | TaskChange::ResumeDropping | TaskChange::ResumeByAgent | TaskChange::Enable => {
                task.set_status(TaskStatus::Active, None);
            }
            TaskChange::Disable { .. } if self.status == TaskStatus::Completed => {
                return Err(ChangeError::Completed("disabled"));
            }
            TaskChange::Disable { reason, by } => {
                task.set_status(TaskStatus::Disabled, reason.clone());
                task.disabled_by = Some(by.clone());
            }
        }
        if self.status == TaskStatus::Disabled && self.is_repaired_by(&task.spec) {
            task.set_status(TaskStatus::Active, None);
        }
        Ok(task)
    }

    /// Whether a spec is another in what could not be read.
    fn is_repaired_by(&self, spec: &Spec) -> bool {
        match self.faulty_part {
            _ if self.disabled_by.is_some() => false,
            Some(FaultyPart::Action) => self.spec.action != spec.action,
            Some(FaultyPart::Trigger) | None => self.spec.trigger != spec.trigger,
        }
    }

    /// Whether a change moves what is to be fired: its trigger, its limit, or its status.
    fn differs_in_firing(&self, other: &Task) -> bool {
        self.status != other.status
            || self.spec.trigger != other.spec.trigger
            || self.spec.max_runs != other.spec.max_runs
    }

    /// How the change to `task` stands to what this one fires.
    fn effect_on_runs(&self, task: &Task) -> ChangeFlags {
        let edited = self.spec.trigger != task.spec.trigger;
        let waited = matches!(self.status, TaskStatus::Paused | TaskStatus::Disabled);
        let resumed = waited && task.status == TaskStatus::Active;
        let catches_up = resumed && !edited && self.disabled_by.is_none() && task.spec.trigger.catches_up_on_resume();
        let reopened = task.status == TaskStatus::Completed;
        ChangeFlags { edited, waited, resumed, catches_up, reopened }
    }

    /// Asks the triggers about the change to `task`: all of it that computes.
    fn evaluate(
        &self,
        task: &Task,
        unconsidered: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> Result<ChangeAnswers, FieldError> {
        let ChangeFlags { edited, waited, resumed, catches_up, .. } = self.effect_on_runs(task);
        let trigger = &task.spec.trigger;
        let anchor = if edited { Some(trigger.anchor(task.created_at)?) } else { None };
        let counted_from = anchor.unwrap_or(task.anchor_at);
        let missed = match unconsidered {
            Some(from) if waited && (edited || resumed) && !catches_up => {
                match self.spec.trigger.instants_before(from, self.anchor_at, now) {
                    // nobody can say any more what came after the one that is known
                    Err(_) if edited => (from < now).then_some(MissedInstants { from, to: from, count: Some(1) }),
                    found => found?,
                }
            }
            _ => None,
        };
        let waiting = match self.missed_instant(task, unconsidered, now) {
            Some(nominal) => trigger.instant(task.id, counted_from, nominal)?,
            None => None,
        };
        let next = match unconsidered {
            Some(nominal) if catches_up => Some(NextFire { nominal, run_at: nominal }),
            // jitter may have put its time to run after now, though its nominal instant is past: it is not lost
            Some(nominal) if !edited && self.status == TaskStatus::Active => {
                trigger.first(task.id, counted_from, nominal - TimeDelta::milliseconds(1))?
            }
            _ => trigger.first(task.id, counted_from, now)?,
        };
        Ok(ChangeAnswers { anchor, missed, waiting, next })
    }

    /// The instant that is past, its time to run not, where the trigger is edited under it.
    fn missed_instant(
        &self,
        task: &Task,
        unconsidered: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> Option<DateTime<Utc>> {
        let ChangeFlags { edited, waited, reopened, .. } = self.effect_on_runs(task);
        unconsidered.filter(|nominal| edited && !waited && !reopened && *nominal <= now)
    }

    /// Counts the next instant of `task` from now, or keeps the place of a task that does not fire.
    fn replan(
        &self,
        mut task: Task,
        answers: &ChangeAnswers,
        unconsidered: Option<DateTime<Utc>>,
        now: DateTime<Utc>,
    ) -> ChangedTask {
        let ChangeFlags { edited, resumed, catches_up, reopened, .. } = self.effect_on_runs(&task);
        if let Some(anchor) = answers.anchor {
            task.anchor_at = anchor;
            task.active_since = now;
        }
        let mut skipped = answers.missed.clone().map(|missed| Skip { missed, reason: REASON_PAUSED });
        let mut waiting = PendingInstant::default();
        if let Some(nominal) = self.missed_instant(&task, unconsidered, now) {
            waiting = task.waiting(nominal, answers.waiting, now);
        }
        if let Some(stays) = waiting.stays {
            task.active_since = stays.nominal;
        }
        if waiting.fires_now.is_some() {
            task.fire_count += 1;
            task.run_count += 1;
        }
        skipped = skipped.or(waiting.skipped);
        let next = waiting.stays.or(answers.next);
        if resumed && !catches_up {
            task.active_since = now;
        }
        match task.end_of_firing(next) {
            Some(reason) if reopened || task.status == TaskStatus::Active => {
                task.set_status(TaskStatus::Completed, Some(reason.into()));
            }
            None if reopened => task.set_status(TaskStatus::Active, None),
            _ => {}
        }
        let fires = task.status == TaskStatus::Active;
        task.next_fire_at = if fires { next.map(|n| n.run_at) } else { None };
        let keeps_place = !fires && !edited && task.status != TaskStatus::Completed;
        let nominal_at = if keeps_place { unconsidered } else { next.map(|n| n.nominal) };
        ChangedTask { task, replanned: true, nominal_at, skipped, fires_now: waiting.fires_now }
    }

    /// The fate of an instant that is past, its time to run not, as `found` by the trigger that `self` has now.
    fn waiting(&self, nominal: DateTime<Utc>, found: Option<(NextFire, bool)>, now: DateTime<Utc>) -> PendingInstant {
        let skip = |reason| {
            let missed = MissedInstants { from: nominal, to: nominal, count: Some(1) };
            PendingInstant { skipped: Some(Skip { missed, reason }), ..PendingInstant::default() }
        };
        let spent = self.spec.max_runs.is_some_and(|most| self.fire_count >= most as i64);
        match found {
            None => skip(REASON_EDITED),
            Some(_) if spent => skip(REASON_MAX_RUNS),
            Some((next, _)) if next.run_at > now => PendingInstant { stays: Some(next), ..PendingInstant::default() },
            Some((_, true)) => skip(reason::EXCLUDED),
            Some(_) => PendingInstant { fires_now: Some(nominal), ..PendingInstant::default() },
        }
    }

    /// Why the task will not fire again by itself, if so. Event tasks wait without an instant, and do not end by it.
    fn end_of_firing(&self, next: Option<NextFire>) -> Option<&'static str> {
        if self.spec.max_runs.is_some_and(|most| self.fire_count >= most as i64) {
            return Some(REASON_MAX_RUNS);
        }
        (next.is_none() && self.spec.trigger.ends_without_instant()).then_some(REASON_ENDED)
    }

    fn set_status(&mut self, status: TaskStatus, reason: Option<String>) {
        self.status = status;
        self.status_reason = reason;
        self.faulty_part = None;
        self.disabled_by = None;
        self.awaited_credential = None;
    }
}
