//! How reservations end: with what a call has come to, or with the execution of their run.

use std::sync::Arc;

use uuid::Uuid;

use crate::domain::budget::Spend;
use crate::domain::budget::notice::BudgetNotice;

/// The spending of a call, in place of what was reserved for it. Settling it twice changes nothing.
#[derive(Debug, Clone)]
pub struct Settlement {
    /// Id of the reservation.
    pub id: Uuid,
    /// Tokens and money of the call.
    pub spent: Spend,
    /// The notices to the owner.
    pub notice: Option<Arc<BudgetNotice>>,
}

/// Reservations with which the end of an execution is done: some are settled, all others of the run are taken back.
#[derive(Debug, Clone, Default)]
pub struct BudgetEnd {
    /// Calls whose entries are stored with the end.
    pub settlements: Vec<Settlement>,
}

impl PartialEq for BudgetEnd {
    fn eq(&self, other: &BudgetEnd) -> bool {
        let ids = |end: &BudgetEnd| end.settlements.iter().map(|one| (one.id, one.spent)).collect::<Vec<_>>();
        ids(self) == ids(other)
    }
}
