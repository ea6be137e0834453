//! A task's own rules of consent, as they stand in `action.config.approvals`: checked when it is saved, and read for
//! each run. One that can't be read any more asks a person: were it left out, a call that it is about might run
//! unasked.

use std::sync::Arc;

use serde_json::{Map, Value};

use crate::base::compute::{Compute, steps_to_read};
use crate::base::invalid::{NAMED, ValidationErrors, did_you_mean, escape, is_known_name};
use crate::domain::approval::PolicyRules;
use crate::domain::approval::policy::task_rules_hold;
use crate::domain::task::Task;
use crate::executor::Job;

/// The key of the rules in `action.config`.
pub const TASK_RULES_KEY: &str = "approvals";

/// Adds what is wrong with the rules of a task, whose configuration stands at `pointer`. `known`: names that its rules
/// may be for; `server.*` stands for every name below it.
pub fn check_task_rules(config: &Map<String, Value>, pointer: &str, known: &[&str], faults: &mut ValidationErrors) {
    let Some(written) = written_rules(config) else { return };
    let place = &format!("{pointer}/{TASK_RULES_KEY}");
    let named = written.as_object().into_iter().flat_map(Map::keys);
    for tool in named.filter(|tool| !is_known_name(tool, known)).take(NAMED) {
        let hint = did_you_mean(tool, known.iter().copied());
        faults.add(format!("{place}/{}", escape(tool)), format!("unknown tool `{tool}`{hint}"));
    }
    let mut of_rules = ValidationErrors::new();
    PolicyRules::read(written, place, &mut of_rules);
    faults.0.extend(of_rules.0.into_iter().take(NAMED));
}

/// The task's own rules for a run that is executed now, read on a computing thread where that may take long; `None`: it
/// has none, or they hold no more. What can't be read of them is told to the log once in a run.
pub async fn rules_of_run(job: &Job, task: &Task, compute: &Compute) -> Option<Arc<PolicyRules>> {
    let written = written_rules(&task.spec.action.config)?;
    if !task_rules_hold(task.updated_at, job.clock.now()) {
        return None;
    }
    let place = "/action/config/approvals";
    let (steps, written) = (steps_to_read(written), written.clone());
    let read = move || {
        let mut faults = ValidationErrors::new();
        (PolicyRules::read(&written, place, &mut faults), faults)
    };
    let read = compute.run_if_costly(&job.run.tenant_id, steps, read).await;
    let (rules, faults) = read.unwrap_or_else(|panicked| {
        let why = panicked.to_string();
        (PolicyRules::unreadable(&why), ValidationErrors::one(place, &why))
    });
    if let Some(first) = faults.0.first().filter(|_| job.is_first) {
        let (count, pointer, why) = (faults.0.len(), &first.pointer, &first.message);
        tracing::warn!(count, %pointer, %why, "rules of a task can't be read, so a person is asked about their calls");
    }
    Some(Arc::new(rules))
}

/// The rules as they are written; `None`: there are none.
fn written_rules(config: &Map<String, Value>) -> Option<&Value> {
    config.get(TASK_RULES_KEY).filter(|value| !value.is_null())
}
