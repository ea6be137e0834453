//! Where a run stands that is not over, and what has to happen before it goes on. A function over what was read.

use chrono::{DateTime, Utc};
use serde_json::{Map, Value};

use crate::domain::run::{Run, RunState};
use crate::domain::task::Task;
use crate::http::api::explain::rfc3339;
use crate::store::{Holder, ParkedRun, QueuedPlace, RunLimits, RunLocation};

/// Facts that were read about a run.
pub struct StandingFacts<'a> {
    /// The run.
    pub run: &'a Run,
    /// `None`: it is gone, or there was none.
    pub task: Option<&'a Task>,
    /// The queue row or the parked row of the run.
    pub place: &'a RunLocation,
    /// Limits on runs under way.
    pub limits: RunLimits,
    /// The present.
    pub now: DateTime<Utc>,
}

/// How late it started, how often it was tried, and who has it.
pub fn history_sentences(facts: &StandingFacts) -> Vec<String> {
    let StandingFacts { run, task, place, .. } = facts;
    let mut sentences = Vec::new();
    if let Some(started) = run.started_at {
        sentences.push(match (started - run.scheduled_for).num_milliseconds() {
            ..=0 => "It started at its instant.".into(),
            late => format!("It started {} after its instant.", length(late)),
        });
    }
    let most = task.map_or(1, |task| task.spec.retry.max_attempts);
    if run.attempt > 1 || (run.attempt == 1 && run.state == RunState::Queued) {
        sentences.push(format!("It has had {} of {most} attempts.", run.attempt));
    }
    if run.reason.as_deref() == Some("filtered") {
        let filters = task.map(|task| filters(&task.spec.action.config)).unwrap_or_default();
        sentences.extend(filters.iter().map(|filter| format!("Its filter, as it is now: `{filter}`.")));
    }
    if run.crashes > 0 {
        sentences.push(format!("The process that executed it died {}.", times(run.crashes.into())));
    }
    if let Some(QueuedPlace { state, worker: Some(worker), lease_until: Some(until), deadline_at, .. }) = &place.queued
    {
        match (state.as_str(), deadline_at) {
            ("started", Some(deadline)) => sentences.push(format!(
                "The worker {worker} has it, by a lease until {} that it renews; its time is over at {}.",
                rfc3339(*until),
                rfc3339(*deadline)
            )),
            _ => sentences.push(format!("The worker {worker} has claimed it until {}.", rfc3339(*until))),
        }
    }
    sentences
}

/// Conditions before it goes on; empty where it is over, or is being executed and nothing is in its way.
pub fn pending_conditions(facts: &StandingFacts) -> Vec<String> {
    let StandingFacts { run, task, place, limits, now } = facts;
    if run.state.is_final() {
        return Vec::new();
    }
    let mut sentences = Vec::new();
    match (&place.queued, &place.parked) {
        (Some(QueuedPlace { cancel_reason: Some(reason), .. }), _) => {
            sentences.push(format!("Its end was asked for ({reason}); the worker that has it ends it."));
        }
        (Some(queued), _) if queued.state == "started" => {}
        (Some(queued), _) if queued.run_at > *now => {
            let what = if run.attempt > 0 { "its next attempt is due" } else { "its instant comes" };
            sentences.push(format!("It starts when {what}, at {}.", rfc3339(queued.run_at)));
        }
        (Some(_), _) => {
            sentences.push(format!("It starts as soon as a worker has a free slot{}.", limits_text(limits)))
        }
        (None, Some(ParkedRun { paused_until: Some(until), .. })) => {
            sentences.push(format!(
                "It is paused: until somebody resumes it, or until {}, its time stands still and no answer is taken.",
                rfc3339(*until)
            ));
        }
        (None, Some(ParkedRun { reason, wake_at, .. })) => sentences.push(match reason.as_str() {
            "completion" => format!("The foreign runtime reports by {}, or it fails.", rfc3339(*wake_at)),
            "approval" => "People decide, or the time of what they were asked is over.".into(),
            _ => "The run that has its task's slot comes to its end.".into(),
        }),
        (None, None) => sentences.push("It is just being moved; ask again.".into()),
    }
    if place.queued.as_ref().is_none_or(|queued| queued.state != "started")
        && let Some(Holder { run_id, state, started_at }) = &place.holder
        && *run_id != run.id
    {
        let since = started_at.map_or(String::new(), |at| format!(" since {}", rfc3339(at)));
        let rule = task.map_or("skip", overlap);
        sentences.push(format!(
            "The run {run_id} ({state}) has its task's slot{since}; the task's overlap rule is `{rule}`."
        ));
    }
    sentences
}

fn limits_text(limits: &RunLimits) -> String {
    match (limits.per_tenant, limits.total) {
        (None, None) => String::new(),
        (Some(each), None) => format!(", and its tenant has fewer than {each} runs under way"),
        (None, Some(all)) => format!(", and fewer than {all} runs are under way in all"),
        (Some(each), Some(all)) => {
            format!(", its tenant has fewer than {each} runs under way, and all tenants together fewer than {all}")
        }
    }
}

/// The task's rule for runs that would overlap.
pub fn overlap(task: &Task) -> &'static str {
    task.spec.trigger.overlap().as_str()
}

/// The filters among the steps of a pipeline.
fn filters(config: &Map<String, Value>) -> Vec<String> {
    let steps = config.get("steps").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    steps.iter().filter_map(|step| step["filter"].as_str()).map(str::to_owned).collect()
}

fn times(count: i64) -> String {
    match count {
        1 => "once".into(),
        2 => "twice".into(),
        count => format!("{count} times"),
    }
}

/// `340 ms`, `3.2 s`, `7 min`, `2 h 5 min`, `3 d`.
fn length(millis: i64) -> String {
    match millis {
        ..1_000 => format!("{millis} ms"),
        1_000..60_000 => format!("{:.1} s", millis as f64 / 1000.0),
        60_000..3_600_000 => format!("{} min", millis / 60_000),
        3_600_000..86_400_000 => format!("{} h {} min", millis / 3_600_000, millis / 60_000 % 60),
        _ => format!("{} d", millis / 86_400_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_at_a_glance() {
        let millis = [340, 3_240, 420_000, 7_500_000, 260_000_000];
        assert_eq!(millis.map(length), ["340 ms", "3.2 s", "7 min", "2 h 5 min", "3 d"]);
    }
}
