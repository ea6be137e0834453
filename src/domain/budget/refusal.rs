//! A budget that has not as much left: the spender with it, the quantity, and the end of the run that meets it.

use crate::base::words::words;
use crate::domain::run::RunFault;
use crate::domain::run::outcome::BUDGET_CODES;

words! {
    /// The spender that a budget limits.
    #[derive(PartialOrd, Ord, utoipa::ToSchema)]
    pub enum BudgetScope {
        /// One run.
        Run = "run",
        /// All runs of a task in a day.
        Task = "task",
        /// All runs of a tenant in a day.
        Tenant = "tenant",
    }
}

words! {
    /// The quantity that a budget limits.
    #[derive(PartialOrd, Ord, utoipa::ToSchema)]
    pub enum BudgetQuantity {
        /// Turns of models.
        Turns = "turns",
        /// Time of execution.
        WallTime = "wall_time",
        /// Tokens that models read and wrote.
        Tokens = "tokens",
        /// Money.
        Cost = "cost_usd",
    }
}

/// A limit that the next call of a model may not fit under, or that is used up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetRefusal {
    /// The spender with the budget.
    pub scope: BudgetScope,
    /// The quantity that it limits.
    pub quantity: BudgetQuantity,
}

impl BudgetRefusal {
    /// The fault of a run that ends so. Its code says whose budget it is, and of what.
    pub fn fault(self) -> RunFault {
        let code = format!("{BUDGET_CODES}{}_{}", self.scope.as_str(), self.quantity.as_str());
        let whose = match self.scope {
            BudgetScope::Run => "the run's budget",
            BudgetScope::Task => "the task's budget of the day",
            BudgetScope::Tenant => "the tenant's budget of the day",
        };
        let message = match self.quantity {
            BudgetQuantity::Turns => format!("{whose} of turns is used up"),
            BudgetQuantity::WallTime => format!("{whose} of time is used up"),
            BudgetQuantity::Tokens => {
                format!("{whose} does not have the tokens that the next call of a model may take")
            }
            BudgetQuantity::Cost => format!("{whose} does not have the money that the next call of a model may cost"),
        };
        RunFault::new(code, message)
    }
}
