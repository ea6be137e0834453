//! The budgets of one execution: what holds for its run, read at its start, and when its time is used up.

use chrono::{DateTime, Utc};

use crate::agent::checkpoint::STORE_UNAVAILABLE;
use crate::base::clock::{self, Clock};
use crate::base::invalid::ValidationErrors;
use crate::domain::budget::notice::BudgetNotice;
use crate::domain::budget::{BudgetQuantity, BudgetRefusal, BudgetScope, TaskBudget};
use crate::domain::run::{RunError, RunFault};
use crate::executor::run_spending::RunSpending;
use crate::store::{StartedRun, Store, with_timeout};

/// A run's budget of time is used up.
pub const NO_TIME_LEFT: BudgetRefusal = BudgetRefusal { scope: BudgetScope::Run, quantity: BudgetQuantity::WallTime };

/// The budgets of one execution.
pub struct ExecutionBudget {
    /// Reserves its calls of models; `None`: no budget holds.
    pub spending: Option<RunSpending>,
    /// When its budget of time is used up; an error where budgets can't be read.
    pub until: Result<Option<DateTime<Utc>>, RunError>,
}

impl ExecutionBudget {
    /// Those of a run that was just started. Where none holds, nothing is asked.
    pub async fn of(store: &Store, started: &StartedRun) -> ExecutionBudget {
        let own = started.task.as_ref().and_then(|task| {
            // what is wrong with it was said when the task was saved
            TaskBudget::read(&task.spec.action.config, "", &mut ValidationErrors::new())
        });
        let budgets = match store.budgets_of_task(&started.run.tenant_id, started.run.task_id).await {
            Ok(budgets) => own.map_or(budgets, |own| budgets.narrowed(&own)),
            Err(error) => {
                let fault = RunFault::new(STORE_UNAVAILABLE, format!("budgets can't be read: {error}"));
                return ExecutionBudget { spending: None, until: Err(RunError::Infrastructure { fault }) };
            }
        };
        if budgets.is_empty() {
            return ExecutionBudget { spending: None, until: Ok(None) };
        }
        if !started.is_first
            && budgets.has_days()
            && let Err(error) =
                with_timeout(store.settle_lost_reservations(&started.run.tenant_id, started.lease)).await
        {
            let fault = RunFault::new(STORE_UNAVAILABLE, format!("budgets can't be settled: {error}"));
            return ExecutionBudget { spending: None, until: Err(RunError::Infrastructure { fault }) };
        }
        let notice = started.task.as_ref().map(|task| BudgetNotice::new(task, started.recipient.clone()));
        // the time of earlier executions is what is missing of the run's own limit
        let begun = started.deadline_at - clock::to_delta(started.time_limit());
        let until = budgets.run.wall_time().and_then(|time| begun.checked_add_signed(clock::to_delta(time)));
        let spending = RunSpending::new(store.clone(), started.lease, &started.run, budgets, notice).since(begun);
        ExecutionBudget { spending: Some(spending), until: Ok(until) }
    }
}

/// Returns when a run's budget of time is used up.
pub async fn time_is_used_up(clock: &Clock, until: Option<DateTime<Utc>>) {
    match until {
        Some(until) => clock.sleep_until(until).await,
        None => std::future::pending().await,
    }
}
