//! One event of the log, by its id.

use crate::base::id::{Scope, Tenant};
use crate::base::invalid::ValidationErrors;
use crate::base::token::Permission;
use crate::domain::event::{CloudEvent, Event};
use crate::http::HttpState;
use crate::http::api::events::of_bus;
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::{AuthenticatedCaller, Call, Id, Json, Query};

/// Read an event
///
/// The newest event of a tenant with this id, for as long as it is kept (`bus.retention`).
#[utoipa::path(get, path = "/v1/events/{id}", tag = "events", security(("bearer" = ["events:read"])),
    params(("id" = String, Path, description = "The id of the event, or as much of its beginning as no other has"),
        ("source" = Option<String>, Query, description = "Its source; else it may be of any"),
        ("tenant_id" = Option<String>, Query, description = "Tenant of the event; an admin token names it")),
    responses((status = 200, body = CloudEvent<'static>),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json",
            description = "Several events have an id that begins so")))]
pub async fn get_event(Call(state, caller): Call, id: Id, mut query: Query) -> Result<Json<Event>, ApiError> {
    caller.may(Permission::EventsRead)?;
    let (source, named) = (query.text("source"), query.text("tenant_id"));
    query.done()?;
    let tenant = owner(&caller, named.as_deref())?;
    find_event(&state, &tenant, source.as_deref(), &id.0).await.map(Json)
}

/// The tenant whose event a caller asks for: an admin names it.
pub fn owner(caller: &AuthenticatedCaller, named: Option<&str>) -> Result<Tenant, ApiError> {
    match caller.narrow_scope(named)? {
        Scope::Only(tenant) => Ok(tenant),
        Scope::Every => Err(ApiError::Query(ValidationErrors::one("/tenant_id", "name the tenant whose event it is"))),
    }
}

/// The event with this id, else the only one of the newest whose id begins so.
pub async fn find_event(state: &HttpState, tenant: &Tenant, source: Option<&str>, id: &str) -> Result<Event, ApiError> {
    let broken = |error| of_bus(error, "event");
    if let Some(event) = state.bus.find(tenant, source, id).await.map_err(broken)? {
        return Ok(event);
    }
    let found = match state.bus.ids(tenant, source, id).await.map_err(broken)?.as_slice() {
        [one] => state.bus.find(tenant, source, one).await.map_err(broken)?,
        [] => None,
        _ => return Err(ApiError::Conflict("several events have an id that begins so: give more of it".into())),
    };
    found.ok_or(ApiError::NotFound("event"))
}
