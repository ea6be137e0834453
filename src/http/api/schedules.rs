//! Trying a schedule before a task is made of it.

use axum::Json;
use axum::extract::State;
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;

use crate::base::invalid::ValidationErrors;
use crate::base::token::Permission;
use crate::domain::trigger::{InstantListing, Trigger};
use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::request::auth::AuthenticatedCaller;
use crate::http::request::body::{JsonBody, only};
use crate::http::schema;

/// Instants where no `count` is given.
const COUNT: u64 = 5;
/// Instants that may be asked for.
const COUNTS: std::ops::RangeInclusive<u64> = 1..=1_000;

/// When a trigger would fire.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Preview {
    /// Oldest first; fewer than asked for where the schedule ends. Jitter is not counted in: it depends on the task.
    pub fires: Vec<DateTime<Utc>>,
    /// Whether there are fewer than asked for though the schedule may go on: what follows takes too many steps to compute.
    pub truncated: bool,
}

/// Preview a schedule
///
/// The next instants after `from` (now, where it is left out) at which a task with this trigger would fire.
#[utoipa::path(post, path = "/v1/schedules/preview", tag = "tasks", security(("bearer" = ["tasks:read"])),
    request_body = schema::PreviewRequest, responses((status = 200, body = Preview)))]
pub async fn preview_schedule(
    State(state): State<HttpState>,
    caller: AuthenticatedCaller,
    body: JsonBody,
) -> Result<Json<Preview>, ApiError> {
    caller.may(Permission::TasksRead)?;
    let value = body.json()?;
    only(&value, &["trigger", "count", "from"])?;
    let now = state.clock.now();
    let InstantListing { instants, truncated } =
        state.computed(caller.computes_for(), move || fires(&value, now)).await??;
    Ok(Json(Preview { fires: instants, truncated }))
}

fn fires(value: &Value, now: DateTime<Utc>) -> Result<InstantListing, ValidationErrors> {
    let mut faults = ValidationErrors::new();
    let trigger = match value.get("trigger") {
        Some(trigger) => Trigger::parse(trigger, "/trigger", now, &mut faults),
        None => {
            faults.add("/trigger", "is missing");
            None
        }
    };
    let count = count(value, &mut faults);
    let from = match value.get("from").filter(|from| !from.is_null()) {
        None => Some(now),
        Some(from) => faults.read_instant(from, "/from"),
    };
    let (Some(trigger), Some(from), true) = (trigger, from, faults.is_empty()) else { return Err(faults) };
    trigger
        .anchor(from)
        .and_then(|anchor| trigger.preview(from, anchor, count))
        .map_err(|fault| ValidationErrors(vec![fault]))
}

fn count(value: &Value, faults: &mut ValidationErrors) -> usize {
    let count = match value.get("count").filter(|count| !count.is_null()) {
        None => Some(COUNT),
        Some(count) => count.as_u64().filter(|count| COUNTS.contains(count)),
    };
    if count.is_none() {
        faults.add("/count", format!("must be a whole number from {} to {}", COUNTS.start(), COUNTS.end()));
    }
    count.unwrap_or(COUNT) as usize
}
