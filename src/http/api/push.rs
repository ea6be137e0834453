//! The key that browsers subscribe to.

use serde::Serialize;

use crate::base::token::Permission;
use crate::http::error::ApiError;
use crate::http::request::{Call, Json, Query};

/// The key that a page needs to subscribe to Web Push.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct PushKey {
    /// The public key of VAPID in base64url, for `applicationServerKey`; `null` where Web Push has no key.
    #[schema(example = "BP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A8")]
    pub public_key: Option<String>,
}

/// Read the key of Web Push
///
/// A page gives it to `pushManager.subscribe` as `applicationServerKey`; what that answers is an address for `push` in
/// the recipient.
#[utoipa::path(get, path = "/v1/push/key", tag = "notifications", security(("bearer" = ["recipients:read"])),
    responses((status = 200, body = PushKey)))]
pub async fn get_push_key(Call(state, caller): Call, query: Query) -> Result<Json<PushKey>, ApiError> {
    caller.may(Permission::RecipientsRead)?;
    query.done()?;
    Ok(Json(PushKey { public_key: state.push_key.clone() }))
}
