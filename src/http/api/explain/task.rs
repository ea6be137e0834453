//! Why a task fires, or does not, and what would have to hold. [`explained`] is a function over what was read.

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use serde::Serialize;
use uuid::Uuid;

use crate::base::token::Permission;
use crate::domain::halt::HaltKind;
use crate::domain::run::Run;
use crate::domain::task::change::FaultyPart;
use crate::domain::task::{LastRun, Task, TaskStatus};
use crate::domain::trigger::Trigger;
use crate::domain::trigger::condition::ConditionState;
use crate::http::HttpState;
use crate::http::api::explain::instant::{InstantExplanation, NextInstant, shown};
use crate::http::api::explain::rules::{self, RuleExplanation};
use crate::http::api::explain::{instant, rfc3339, unfinished_run, why};
use crate::http::api::tasks::missing;
use crate::http::error::ApiError;
use crate::http::request::{AuthenticatedCaller, Call, Id, Json, Query};
use crate::store::{Holder, RunFilter, SurroundingRuns};

/// Instants that are told ahead.
const AHEAD: usize = 5;
/// Runs that are looked at for the last one before an instant: tallies may be newer, one for each reason of a skip.
const LOOKED_AT: i64 = 10;

/// Why a task fires, or does not.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct TaskExplanation {
    /// Id of the task.
    pub task_id: Uuid,
    /// Whether the task fires.
    pub status: TaskStatus,
    /// The instant it waits for and the reasons that hold it back, one sentence each.
    pub sentences: Vec<String>,
    /// Conditions that would have to hold, or happen, before it fires; empty: it fires by itself.
    pub needs: Vec<String>,
    /// The next instants at which it fires, soonest first; none while it is not active. Jitter is not counted in.
    pub next: Vec<NextInstant>,
    /// Of a task that is paused or disabled: the next instants that it would have if it were resumed now.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub if_resumed: Vec<NextInstant>,
    /// The last run; `null`: there was none, or it is forgotten.
    #[schema(required)]
    pub last_run: Option<LastRun>,
    /// Outcome of the instant that was asked about with `at`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub instant: Option<InstantExplanation>,
}

/// Facts that were read about a task.
pub struct TaskFacts {
    /// The task.
    pub task: Task,
    /// The run that has the task's slot.
    pub holder: Option<Holder>,
    /// State of the condition, if the task has one.
    pub condition: Option<ConditionState>,
    /// The run with the latest instant.
    pub last_run: Option<Run>,
    /// The next instants of its schedule, whether it is active or not.
    pub ahead: Vec<DateTime<Utc>>,
    /// Why nothing of its tenant may begin.
    pub halt: Option<HaltKind>,
    /// The present.
    pub now: DateTime<Utc>,
}

/// Explain a task
///
/// Its status and why, its next instants, what holds it back, and what would have to hold for it to fire. With `at`
/// also what became of that instant: the run, the skip and its reason, the run that stands for it, or why there was
/// nothing to fire, with the instants beside it.
#[utoipa::path(get, path = "/v1/tasks/{id}/explain", tag = "tasks", security(("bearer" = ["tasks:read"])),
    params(("id" = Uuid, Path),
        ("at" = Option<String>, Query, description = "An instant, RFC 3339 or local time in the task's zone",
            example = "2027-03-01T08:00:00")),
    responses((status = 200, body = TaskExplanation)))]
pub async fn explain_task(
    Call(state, caller): Call,
    id: Id,
    mut query: Query,
) -> Result<Json<TaskExplanation>, ApiError> {
    caller.may(Permission::TasksRead)?;
    let asked = query.text("at");
    query.done()?;
    let (store, scope) = (&state.store, &caller.scope);
    let task = store.get_task(scope, id.of("task")?).await.map_err(missing)?;
    let condition = match task.spec.trigger.condition() {
        Some(_) => Some(store.condition_states(scope, &[task.id]).await?.remove(&task.id).unwrap_or_default()),
        None => None,
    };
    let last = RunFilter { task_id: Some(task.id), limit: 1, ..RunFilter::default() };
    let last_run = store.run_summaries(scope, &last).await?.rows.pop().map(|summary| summary.run);
    let holder = store.slot_holder(scope, task.id).await?;
    let instant = match asked {
        Some(text) => Some(at_instant(&state, &caller, &task, &text).await?),
        None => None,
    };
    let now = state.clock.now();
    let ahead = next_instants(&state, &task, now).await;
    let halt = store.halts().await?.halt_of(&task.tenant_id);
    let facts = TaskFacts { task, holder, condition, last_run, ahead, halt, now };
    Ok(Json(TaskExplanation { instant, ..explained(&facts) }))
}

/// The next instants of a schedule, asked where tenants' rules are computed.
async fn next_instants(state: &HttpState, task: &Task, now: DateTime<Utc>) -> Vec<DateTime<Utc>> {
    let Trigger::Schedule(schedule) = task.spec.trigger.clone() else { return Vec::new() };
    let left = task.spec.max_runs.map_or(AHEAD, |most| (most as i64 - task.fire_count).clamp(0, AHEAD as i64) as usize);
    let anchor = task.anchor_at;
    let asked = state.compute.run(&task.tenant_id, move || schedule.preview(now, anchor, left));
    asked.await.ok().and_then(Result::ok).unwrap_or_default().instants
}

async fn at_instant(
    state: &HttpState,
    caller: &AuthenticatedCaller,
    task: &Task,
    text: &str,
) -> Result<InstantExplanation, ApiError> {
    let at = instant::read(text, task)?;
    let place = instant::locate(&state.compute, task, at).await;
    let recorded = match &task.spec.trigger {
        Trigger::Schedule(_) => state.store.recorded_around(&caller.scope, task.id, at).await?,
        _ => {
            let newest =
                RunFilter { task_id: Some(task.id), until: Some(at), limit: LOOKED_AT, ..RunFilter::default() };
            let newest = state.store.list_runs(&caller.scope, &newest).await?;
            let around = state.store.recorded_around(&caller.scope, task.id, at).await?;
            SurroundingRuns {
                before: last_before(newest, at),
                covering: around.covering.filter(|run| run.tallied_fires().is_some()),
                ..SurroundingRuns::default()
            }
        }
    };
    let facts = instant::InstantFacts { task, at, place, recorded: &recorded, now: state.clock.now() };
    Ok(instant::explained(&facts))
}

/// The first of the newest runs that is for no later instant: a tally stands at its first fire, and is for its latest.
fn last_before(newest: Vec<Run>, at: DateTime<Utc>) -> Option<Run> {
    newest.into_iter().find(|run| run.scheduled_for <= at)
}

/// Composes what there is to say.
pub fn explained(facts: &TaskFacts) -> TaskExplanation {
    let TaskFacts { task, last_run, .. } = facts;
    let mut rules = RuleExplanation { sentences: vec![status(task)], needs: advice(task) };
    let ahead = shown_ahead(facts);
    let (next, if_resumed) = match task.status {
        TaskStatus::Active => (ahead, Vec::new()),
        TaskStatus::Paused | TaskStatus::Disabled => (Vec::new(), ahead),
        TaskStatus::Completed => (Vec::new(), Vec::new()),
    };
    if let (Trigger::Schedule(_), TaskStatus::Active) = (&task.spec.trigger, task.status) {
        rules.sentences.push(match next.first() {
            Some(first) => {
                format!("It is due next at {} ({}, {}).", rfc3339(first.at), first.local, first.timezone)
            }
            None => "Its last instant is behind it.".into(),
        });
    }
    rules::of(task, facts.condition.as_ref(), facts.now, &mut rules);
    let RuleExplanation { mut sentences, mut needs } = rules;
    if let Some(halt) = facts.halt {
        let (sentence, need) = halted(halt);
        sentences.push(sentence.into());
        needs.push(need.into());
    }
    if let Some(most) = task.spec.max_runs {
        sentences.push(format!("Of its {most} runs it has had {}.", task.fire_count));
    }
    if let Some(Holder { run_id, state, started_at }) = &facts.holder {
        let since = started_at.map_or(String::new(), |at| format!(" since {}", rfc3339(at)));
        let rule = unfinished_run::overlap(task);
        sentences.push(format!(
            "The run {run_id} ({state}) has its slot{since}; what fires meanwhile goes by `overlap`: {rule}."
        ));
        if rule == "skip" {
            needs.push(format!("The run {run_id} ends; what falls due before is recorded as skipped."));
        }
    }
    if let Some(run) = last_run {
        let reason = run.reason.as_deref().map_or(String::new(), |reason| format!(" {}", why(run.state, reason)));
        sentences.push(format!("Its last run, for {}, is {}.{reason}", rfc3339(run.scheduled_for), run.state.as_str()));
    }
    let last_run = last_run.as_ref().map(LastRun::of);
    TaskExplanation {
        task_id: task.id,
        status: task.status,
        sentences,
        needs,
        next,
        if_resumed,
        last_run,
        instant: None,
    }
}

fn status(task: &Task) -> String {
    let reason = task.status_reason.as_deref();
    match (task.status, reason) {
        (TaskStatus::Active, _) => format!("It is active since {}.", rfc3339(task.active_since)),
        (TaskStatus::Paused, None) => "It is paused: somebody asked for it.".into(),
        (TaskStatus::Paused, Some(reason)) => format!("It is paused: {}.", reason.trim_end_matches('.')),
        (TaskStatus::Disabled, None) if task.disabled_by.is_some() => "The operator has disabled it.".into(),
        (TaskStatus::Disabled, Some(reason)) if task.disabled_by.is_some() => {
            format!("The operator has disabled it: {}.", reason.trim_end_matches('.'))
        }
        (TaskStatus::Disabled, reason) => {
            format!("It is disabled: {}.", reason.unwrap_or("no reason is recorded").trim_end_matches('.'))
        }
        (TaskStatus::Completed, Some("max_runs")) => "It is completed: it has had all its runs.".into(),
        (TaskStatus::Completed, _) => "It is completed: its trigger has ended.".into(),
    }
}

/// Advice on a task that is not active.
fn advice(task: &Task) -> Vec<String> {
    match task.status {
        TaskStatus::Active => Vec::new(),
        TaskStatus::Paused => vec![match &task.awaited_credential {
            Some(credential) => format!("Its owner saves or connects the credential `{credential}`; it goes on then."),
            None => "Somebody resumes it.".into(),
        }],
        TaskStatus::Disabled => vec![match task.faulty_part {
            _ if task.disabled_by.is_some() => "The operator enables it.".into(),
            Some(FaultyPart::Action) => "Its action is corrected; it is active again then.".into(),
            Some(FaultyPart::Trigger) | None => "Its trigger is corrected; it is active again then.".into(),
        }],
        TaskStatus::Completed => {
            vec!["Its `max_runs` is raised, or its trigger is given instants that lie ahead.".into()]
        }
    }
}

/// A halt of the task's tenant, and its end.
fn halted(halt: HaltKind) -> (&'static str, &'static str) {
    match halt {
        HaltKind::Stopped => (
            "The operator has stopped the work of its tenant, or of all: what fires is recorded as skipped, and no run begins.",
            "The operator starts it again.",
        ),
        HaltKind::TenantDisabled => (
            "The operator has disabled its tenant: what fires is recorded as skipped, and no run begins.",
            "The operator enables the tenant.",
        ),
    }
}

fn shown_ahead(facts: &TaskFacts) -> Vec<NextInstant> {
    let Trigger::Schedule(schedule) = &facts.task.spec.trigger else { return Vec::new() };
    let zone = schedule.timezone.as_deref().unwrap_or("UTC");
    let clock = zone.parse().unwrap_or(Tz::UTC);
    facts.ahead.iter().map(|at| shown(*at, zone, clock)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn last_run_before_an_instant_stands_behind_tallies_that_go_on_beyond_it() {
        let at = |minute: u32| format!("2027-03-01T08:{minute:02}:00Z").parse().expect("an instant");
        let run =
            |key: &str, minute: u32| Run::queued(Uuid::nil(), Uuid::nil(), "ann", key, "event", at(minute), at(0));
        let newest = || vec![run("h:2", 50), run("h:1", 40), run("e:2", 7), run("e:1", 3)];
        let found = |minute: u32| last_before(newest(), at(minute)).map(|run| run.fire_key);
        assert_eq!(found(30).as_deref(), Some("e:2"));
        assert_eq!(found(45).as_deref(), Some("h:1"));
        assert_eq!(found(1), None);
    }
}
