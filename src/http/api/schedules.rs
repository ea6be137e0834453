//! Trying a schedule before a task is made of it, and the fires that come next.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;

use crate::base::invalid::ValidationErrors;
use crate::base::json::typed;
use crate::base::token::Permission;
use crate::domain::trigger::{InstantListing, Trigger};
use crate::http::error::ApiError;
use crate::http::request::page::limit;
use crate::http::request::{Call, Items, Json, JsonBody, Query};
use crate::http::schema;
use crate::store::UpcomingFire;

/// When a trigger would fire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Preview {
    /// Oldest first; fewer than asked for where the schedule ends. Jitter is not counted in: it depends on the task.
    pub fires: Vec<DateTime<Utc>>,
    /// Whether there are fewer than asked for though the schedule may go on: what follows takes too many steps to
    /// compute.
    pub truncated: bool,
}

/// Preview a schedule
///
/// The next instants after `from` (now, where it is left out) at which a task with this trigger would fire.
#[utoipa::path(post, path = "/v1/schedules/preview", tag = "tasks", security(("bearer" = ["tasks:read"])),
    request_body = schema::PreviewRequest, responses((status = 200, body = Preview)))]
pub async fn preview_schedule(Call(state, caller): Call, body: JsonBody) -> Result<Json<Preview>, ApiError> {
    caller.may(Permission::TasksRead)?;
    let (value, now) = (body.json().await?, state.clock.now());
    let InstantListing { instants, truncated } =
        state.compute_for(caller.computes_for(), move || fires(&value, now)).await??;
    Ok(Json(Preview { fires: instants, truncated }))
}

/// List the fires that come next
///
/// The earliest first, one of each scheduled task: later fires of a task come with its preview.
#[utoipa::path(get, path = "/v1/schedules/upcoming", tag = "tasks", security(("bearer" = ["tasks:read"])),
    params(("tenant_id" = Option<String>, Query, description = "This tenant's only"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200)),
    responses((status = 200, body = Items<UpcomingFire>)))]
pub async fn list_upcoming_fires(
    Call(state, caller): Call,
    mut query: Query,
) -> Result<Json<Items<UpcomingFire>>, ApiError> {
    caller.may(Permission::TasksRead)?;
    let tenant = query.text("tenant_id");
    let limit = limit(&mut query);
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    Ok(Json(Items::whole(state.store.upcoming_fires(&scope, limit as i64).await?)))
}

fn fires(value: &Value, now: DateTime<Utc>) -> Result<InstantListing, ValidationErrors> {
    let mut faults = ValidationErrors::new();
    let Some(asked) = typed::read::<schema::PreviewRequest>(value, "", &mut faults) else { return Err(faults) };
    let trigger = Trigger::parse(&asked.trigger, "/trigger", now, &mut faults);
    let (Some(trigger), true) = (trigger, faults.is_empty()) else { return Err(faults) };
    let from = asked.from.unwrap_or(now);
    let listed = trigger.anchor(from).and_then(|anchor| trigger.preview(from, anchor, asked.count as usize));
    listed.map_err(|fault| ValidationErrors(vec![fault]))
}
