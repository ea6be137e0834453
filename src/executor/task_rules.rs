//! A task's own rules of consent, as they stand in `action.config.approvals`.

use serde_json::{Map, Value};

use crate::base::invalid::{NAMED, ValidationErrors, did_you_mean, escape};
use crate::domain::approval::policy::task_rules_hold;
use crate::domain::approval::{PolicyRules, TaskRules};
use crate::domain::task::Task;
use crate::executor::Job;
use crate::ports::tool::registry::ToolRegistry;

/// The key of the rules in `action.config`.
pub const TASK_RULES_KEY: &str = "approvals";

/// Reads the rules of a task, whose configuration stands at `pointer`; adds what is wrong with them.
pub fn read_task_rules(
    config: &Map<String, Value>,
    pointer: &str,
    tools: &ToolRegistry,
    faults: &mut ValidationErrors,
) -> Option<PolicyRules> {
    let value = config.get(TASK_RULES_KEY).filter(|value| !value.is_null())?;
    let place = &format!("{pointer}/{TASK_RULES_KEY}");
    let TaskRules(written) = faults.read(value, place)?;
    let is_known = |tool: &str| tools.names().any(|known| known == tool);
    for tool in written.keys().filter(|tool| !is_known(tool)).take(NAMED) {
        let hint = did_you_mean(tool, tools.names());
        faults.add(format!("{place}/{}", escape(tool)), format!("unknown tool `{tool}`{hint}"));
    }
    Some(PolicyRules::compile(&written, place, faults))
}

/// Whether the task's own rules hold for a run that is executed now.
pub fn rules_hold(job: &Job, task: &Task) -> bool {
    task_rules_hold(task.updated_at, job.clock.now())
}
