//! A call of a model that is about to be made, and whether budgets have as much left.

use std::sync::Arc;

use chrono::NaiveDate;
use uuid::Uuid;

use crate::domain::budget::notice::BudgetNotice;
use crate::domain::budget::{BudgetRefusal, DayLimits, Spend};
use crate::store::runs::lease::Lease;

/// Calls of models that are about to be made: one, or several that come after one another.
#[derive(Debug, Clone)]
pub struct Reservation {
    /// Id of the reservation.
    pub id: Uuid,
    /// Lease of the run.
    pub lease: Lease,
    /// The run's tenant.
    pub tenant: String,
    /// The run's task.
    pub task_id: Option<Uuid>,
    /// The day that pays.
    pub day: NaiveDate,
    /// The worst that they may come to.
    pub most: Spend,
    /// Their usage stands in the run's entries from this number on, if the worker does not come to tell it.
    pub from: i64,
    /// Whether no more than half of a day may be used with it.
    pub within_half: bool,
    /// Limits of the tenant's day.
    pub tenant_limits: DayLimits,
    /// Limits of the task's day.
    pub task_limits: DayLimits,
    /// The notices to the owner.
    pub notice: Option<Arc<BudgetNotice>>,
}

/// How a reservation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReservationOutcome {
    /// The call may be made.
    Granted,
    /// Calls under way have reserved what may be left.
    NotNow,
    /// The call would come to more than is left.
    Refused(BudgetRefusal),
}
