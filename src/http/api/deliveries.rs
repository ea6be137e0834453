//! Deliveries over HTTP: what was sent to whom, how it went, and once more.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};

use crate::base::token::Permission;
use crate::domain::notification::{Delivery, DeliveryState};
use crate::http::api::runs::response_not_serializable;
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::idempotency::replayed_or;
use crate::http::request::{Call, EarlyResponse, Id, Items, Json, JsonBody, ListPage, Query};
use crate::store::{DeliveryFilter, DeliverySummary, StoreError};

/// List deliveries
///
/// With the first 1,000 characters of each text; the whole is in the delivery itself. A page ends early where it is
/// large.
#[utoipa::path(get, path = "/v1/deliveries", tag = "notifications", security(("bearer" = ["deliveries:read"])),
    params(
        ("tenant_id" = Option<String>, Query, description = "This tenant's only"),
        ("run_id" = Option<Uuid>, Query), ("state" = Option<DeliveryState>, Query),
        ("channel" = Option<String>, Query, example = "email"),
        ("digest_id" = Option<Uuid>, Query, description = "Those that this digest tells"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<DeliverySummary>)))]
pub async fn list_deliveries(
    Call(state, caller): Call,
    mut query: Query,
) -> Result<Json<Items<DeliverySummary>>, ApiError> {
    caller.may(Permission::DeliveriesRead)?;
    let tenant = query.text("tenant_id");
    let page = ListPage::of(&mut query);
    let filter = DeliveryFilter {
        tenant: None,
        run_id: query.id("run_id"),
        state: query.word("state", &DeliveryState::ALL.map(|state| (state.as_str(), state))),
        channel: query.text("channel"),
        digest_id: query.id("digest_id"),
        before: page.before,
        limit: page.fetch(),
    };
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    let found = state.store.delivery_summaries(&scope, &filter).await?;
    Ok(Json(page.within(found, |summary| summary.delivery.id)))
}

/// Read a delivery
#[utoipa::path(get, path = "/v1/deliveries/{id}", tag = "notifications", security(("bearer" = ["deliveries:read"])),
    params(("id" = Uuid, Path)), responses((status = 200, body = Delivery)))]
pub async fn get_delivery(Call(state, caller): Call, id: Id, query: Query) -> Result<Json<Delivery>, ApiError> {
    caller.may(Permission::DeliveriesRead)?;
    query.done()?;
    let delivery = state.store.get_delivery(&caller.scope, id.of("delivery")?).await.map_err(missing)?;
    Ok(Json(delivery))
}

/// Send a delivery again
///
/// One that failed, or whose outcome is unknown, gets all its attempts anew. One that is pending is left as it is.
#[utoipa::path(post, path = "/v1/deliveries/{id}/retry", tag = "notifications",
    security(("bearer" = ["deliveries:write"])),
    params(("id" = Uuid, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    responses((status = 202, body = Delivery), (status = 409, body = ProblemDetails,
        content_type = "application/problem+json", description = "It was delivered, or is on its way")))]
pub async fn retry_delivery(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Response, EarlyResponse> {
    let id = body.key.begin(&state, &caller, Permission::DeliveriesWrite, id.of("delivery")).await?;
    body.refuse_fields().await?;
    let delivery = state.store.get_delivery(&caller.scope, id).await.map_err(missing)?;
    if delivery.state == DeliveryState::Pending {
        return body.key.remember_answer(&state, &caller, StatusCode::ACCEPTED, delivery).await;
    }
    let told = |again: &Delivery| {
        body.key.idempotency_in_place(&caller, StatusCode::ACCEPTED, again).map_err(response_not_serializable)
    };
    let answer = state.store.retry_delivery(&caller.scope, id, told).await.map_err(missing)?;
    replayed_or(answer, |again| (StatusCode::ACCEPTED, Json(again)).into_response())
}

fn missing(error: StoreError) -> ApiError {
    ApiError::of_store(error, "delivery")
}
