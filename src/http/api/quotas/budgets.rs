//! Budgets over HTTP: what the runs of a tenant may spend on models, what they have spent today, and what an admin says
//! for one tenant, or for one task.

use axum::http::StatusCode;
use chrono::NaiveDate;
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::base::id::{Scope, Tenant};
use crate::base::invalid::ValidationErrors;
use crate::base::json::typed;
use crate::base::token::Permission;
use crate::domain::budget::{Budgets, TaskBudget, day_of};
use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::request::{AuthenticatedCaller, Call, Id, Json, JsonBody, Pair, Query};
use crate::store::{LedgerStanding, StoreError};

/// Tokens and money of a day.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct DaySpending {
    /// Tokens that models read and wrote.
    pub tokens: i64,
    /// Their cost, in dollars.
    pub cost_usd: f64,
    /// Tokens that are reserved for calls under way.
    pub reserved_tokens: i64,
    /// Dollars that are reserved for calls under way.
    pub reserved_cost_usd: f64,
}

/// Tokens and money of one task in a day.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct TaskSpending {
    /// The task.
    pub task_id: Uuid,
    /// Its spending.
    #[serde(flatten)]
    pub spending: DaySpending,
}

/// The limits that an admin has said for one task.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct TaskBudgetOverride {
    /// The task.
    pub task_id: Uuid,
    /// They stand in place of those of its tenant's tasks and runs; a null is as for these.
    pub budget: TaskBudget,
}

/// The budgets of a tenant as they are answered.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct BudgetsView {
    /// The tenant with these budgets.
    pub tenant_id: String,
    /// The day, in UTC.
    pub day: NaiveDate,
    /// Limits of its runs, its tasks and the tenant. An absent limit is none; a task may say less for itself.
    pub limits: Budgets,
    /// Limits of this tenant alone; an absent one is as `[budgets]` has it.
    pub overrides: Budgets,
    /// Spending of all its runs today. Counted where a budget of a day holds.
    pub today: DaySpending,
    /// Of this, the spending of each task that has any; up to 200.
    pub tasks: Vec<TaskSpending>,
    /// Limits of single tasks that an admin has said.
    pub task_overrides: Vec<TaskBudgetOverride>,
}

impl From<LedgerStanding> for DaySpending {
    fn from(standing: LedgerStanding) -> DaySpending {
        DaySpending {
            tokens: standing.used.tokens,
            cost_usd: standing.used.cost_micros as f64 / 1e6,
            reserved_tokens: standing.reserved.tokens,
            reserved_cost_usd: standing.reserved.cost_micros as f64 / 1e6,
        }
    }
}

/// Read budgets
///
/// Answers what the runs of a tenant may spend on models, and what they have spent today. An admin token names the
/// tenant.
#[utoipa::path(get, path = "/v1/budgets", tag = "operations", security(("bearer" = ["stats:read"])),
    params(("tenant_id" = Option<String>, Query, description = "The tenant; a token of a tenant has its own")),
    responses((status = 200, body = BudgetsView)))]
pub async fn get_budgets(Call(state, caller): Call, mut query: Query) -> Result<Json<BudgetsView>, ApiError> {
    caller.may(Permission::StatsRead)?;
    let named = query.text("tenant_id");
    query.done()?;
    let scope = caller.narrow_scope(named.as_deref())?;
    let tenant = scope.tenant().ok_or_else(|| ApiError::invalid("/tenant_id", "is missing: whose budgets"))?;
    Ok(Json(view(&state, tenant).await?))
}

/// Say what the runs of a tenant may spend
///
/// For an admin token. Replaces the limits of this tenant; one that is left out is as `[budgets]` has it. What was said
/// for its tasks stays. It holds for runs that begin after it, on every instance within a second.
#[utoipa::path(put, path = "/v1/budgets/{tenant_id}", tag = "operations", security(("bearer" = ["*"])),
    params(("tenant_id" = String, Path)), request_body = Budgets,
    responses((status = 200, body = BudgetsView)))]
pub async fn put_budgets(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Json<BudgetsView>, ApiError> {
    let tenant = of_an_admin(&caller, &id.0)?;
    let read = |mut body: Value| {
        let mut faults = ValidationErrors::new();
        if let Some(fields) = body.as_object_mut() {
            fields.retain(|_, value| !value.is_null());
        }
        let said: Budgets = typed::read(&body, "", &mut faults).unwrap_or_default();
        said.check("", &mut faults);
        faults.into_result(said)
    };
    let said = body.read_with(read).await?;
    state.store.put_budgets(tenant.as_str(), &said, &caller.name()).await?;
    Ok(Json(view(&state, tenant.as_str()).await?))
}

/// Let the runs of a tenant spend what everybody's may
///
/// For an admin token. The budgets of this tenant alone are removed, with those of its tasks.
#[utoipa::path(delete, path = "/v1/budgets/{tenant_id}", tag = "operations", security(("bearer" = ["*"])),
    params(("tenant_id" = String, Path)), responses((status = 204)))]
pub async fn reset_budgets(Call(state, caller): Call, id: Id) -> Result<StatusCode, ApiError> {
    let tenant = of_an_admin(&caller, &id.0)?;
    state.store.reset_budgets(tenant.as_str(), &caller.name()).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Say what the runs of one task may spend
///
/// For an admin token. Replaces what was said for this task. It stands in place of what holds for its tenant's tasks,
/// also where it is more; the task may say less for itself. It holds for runs that begin after it, on every instance
/// within a second.
#[utoipa::path(put, path = "/v1/budgets/{tenant_id}/tasks/{task_id}", tag = "operations", security(("bearer" = ["*"])),
    params(("tenant_id" = String, Path), ("task_id" = Uuid, Path)), request_body = TaskBudget,
    responses((status = 200, body = BudgetsView)))]
pub async fn put_task_budget(
    Call(state, caller): Call,
    Pair(tenant, task): Pair,
    body: JsonBody,
) -> Result<Json<BudgetsView>, ApiError> {
    let (tenant, task_id) = task_of_an_admin(&caller, &tenant, &task)?;
    let read = |body: Value| {
        let mut faults = ValidationErrors::new();
        let said: TaskBudget = typed::read(&body, "", &mut faults).unwrap_or_default();
        said.check("", &mut faults);
        faults.into_result(said)
    };
    let said = body.read_with(read).await?;
    let scope = Scope::Only(tenant.clone());
    state.store.get_task(&scope, task_id).await.map_err(|error| ApiError::of_store(error, "task"))?;
    let set = state.store.set_task_budget(tenant.as_str(), task_id, Some(&said), &caller.name()).await;
    set.map_err(|error| match error {
        StoreError::Conflict(why) => ApiError::invalid("/task_id", why),
        other => ApiError::of_store(other, "task"),
    })?;
    Ok(Json(view(&state, tenant.as_str()).await?))
}

/// Let the runs of one task spend what those of others may
///
/// For an admin token. The budget that was said for this task is removed, also where the task is gone.
#[utoipa::path(delete, path = "/v1/budgets/{tenant_id}/tasks/{task_id}", tag = "operations",
    security(("bearer" = ["*"])), params(("tenant_id" = String, Path), ("task_id" = Uuid, Path)),
    responses((status = 204)))]
pub async fn reset_task_budget(Call(state, caller): Call, Pair(tenant, task): Pair) -> Result<StatusCode, ApiError> {
    let (tenant, task_id) = task_of_an_admin(&caller, &tenant, &task)?;
    state.store.set_task_budget(tenant.as_str(), task_id, None, &caller.name()).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn view(state: &HttpState, tenant: &str) -> Result<BudgetsView, ApiError> {
    let day = day_of(state.clock.now());
    let usage = state.store.budget_usage(tenant, day).await?;
    let said = |(task_id, budget)| TaskBudgetOverride { task_id, budget };
    let of_task = |(task_id, standing)| TaskSpending { task_id, spending: DaySpending::from(standing) };
    Ok(BudgetsView {
        tenant_id: tenant.to_owned(),
        day,
        limits: usage.limits,
        overrides: usage.overrides,
        today: usage.tenant.into(),
        tasks: usage.tasks.into_iter().map(of_task).collect(),
        task_overrides: usage.task_overrides.into_iter().map(said).collect(),
    })
}

/// The tenant that is named; a tenant's own token has no say in its budgets.
fn of_an_admin(caller: &AuthenticatedCaller, named: &str) -> Result<Tenant, ApiError> {
    caller.may(Permission::All)?;
    let tenant = caller.sees(named)?;
    caller.is_operator()?;
    Ok(tenant)
}

/// The tenant that is named, and the id of its task.
fn task_of_an_admin(caller: &AuthenticatedCaller, tenant: &str, task: &str) -> Result<(Tenant, Uuid), ApiError> {
    let tenant = of_an_admin(caller, tenant)?;
    Ok((tenant, Uuid::try_parse(task).map_err(|_| ApiError::NotFound("task"))?))
}
