//! Names that a task may use, and the checks of its parts: filled from the registries, so that reading a draft knows
//! none of them.

use std::sync::Arc;

use crate::base::id::Tenant;
use crate::base::invalid::ValidationErrors;
use crate::domain::task::Action;
use crate::domain::trigger::Trigger;
use crate::domain::trigger::condition::PollSpec;

/// Adds what is wrong with an executor's name, or with an action that is meant for it.
pub type ActionCheck = Arc<dyn Fn(&str, &Action, &mut ValidationErrors) + Send + Sync>;

/// Adds what is wrong with what a tenant's condition polls; pointers begin with the one given.
pub type PollCheck = Arc<dyn Fn(&Tenant, &PollSpec, &str, &mut ValidationErrors) + Send + Sync>;
/// Seals what is secret in an action of this executor and tenant; the last is what is stored, where it is of the same
/// executor.
pub type ActionSeal =
    Arc<dyn Fn(&str, &Tenant, &mut Action, Option<&Action>) -> Result<(), ValidationErrors> + Send + Sync>;

/// Names that a draft may use; filled from the registries.
#[derive(Clone)]
pub struct TaskValidator {
    /// The channels that are configured.
    pub channels: Vec<String>,
    /// The executors, and what each asks of its action.
    pub check: ActionCheck,
    /// The check of polls.
    pub poll: PollCheck,
    /// How they make it ready to be stored.
    pub seal: ActionSeal,
}

impl TaskValidator {
    /// Faults of a condition's poll.
    pub(super) fn check_poll(&self, tenant: &Tenant, trigger: &Trigger) -> Result<(), ValidationErrors> {
        let mut faults = ValidationErrors::new();
        if let Some(condition) = trigger.condition() {
            (self.poll)(tenant, &condition.poll, "/trigger/poll", &mut faults);
        }
        faults.into_result(())
    }
}
