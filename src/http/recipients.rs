//! Recipients over HTTP: where a tenant is reached. Secrets go in, and never come out.

use axum::Json;
use axum::extract::State as Held;
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::channel::webhook;
use crate::http::State;
use crate::http::auth::Caller;
use crate::http::body::Body;
use crate::http::error::ApiError;
use crate::http::path::Id;
use crate::http::query::Query;
use crate::http::schema;
use crate::invalid::Faults;
use crate::notification::{Recipient, RecipientDraft};
use crate::secret::Secret;
use crate::store::{StoreError, StoredRecipient};
use crate::token::Permission;
use crate::vault::VaultError;

/// How often a write is tried against writes of others.
const WRITES: usize = 5;

/// A recipient as it is answered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecipientView {
    pub tenant_id: String,
    /// What was put, the secrets replaced by whether there is one.
    #[serde(flatten)]
    pub public: Map<String, Value>,
    pub version: i64,
    pub updated_at: DateTime<Utc>,
}

impl RecipientView {
    fn of(tenant_id: &str, stored: &StoredRecipient) -> RecipientView {
        let public = match stored.recipient.public() {
            Value::Object(public) => public,
            _ => Map::new(),
        };
        RecipientView {
            tenant_id: tenant_id.to_owned(),
            public,
            version: stored.version,
            updated_at: stored.updated_at,
        }
    }
}

/// Read a recipient
#[utoipa::path(get, path = "/v1/recipients/{tenant_id}", tag = "notifications",
    security(("bearer" = ["recipients:read"])), params(("tenant_id" = String, Path)),
    responses((status = 200, body = schema::Recipient)))]
pub async fn get_recipient(
    Held(state): Held<State>,
    caller: Caller,
    id: Id,
    query: Query,
) -> Result<Json<RecipientView>, ApiError> {
    caller.may(Permission::RecipientsRead)?;
    query.done()?;
    let tenant = caller.sees(&id.0)?;
    let stored = state.store.get_recipient(&caller.scope, tenant.as_str()).await;
    let stored = stored.map_err(|error| ApiError::of_store(error, "recipient"))?;
    Ok(Json(RecipientView::of(tenant.as_str(), &stored)))
}

/// Write a recipient
///
/// Replaces it whole; a webhook's secret that is left out is kept.
#[utoipa::path(put, path = "/v1/recipients/{tenant_id}", tag = "notifications",
    security(("bearer" = ["recipients:write"])), params(("tenant_id" = String, Path)),
    request_body = schema::NewRecipient, responses((status = 200, body = schema::Recipient)))]
pub async fn put_recipient(
    Held(state): Held<State>,
    caller: Caller,
    id: Id,
    body: Body,
) -> Result<Json<RecipientView>, ApiError> {
    caller.may(Permission::RecipientsWrite)?;
    let tenant = caller.sees(&id.0)?;
    let draft = RecipientDraft::parse(&body.json()?)?;
    let seal = |secret: &Secret| -> Result<String, Refused> {
        Ok(webhook::seal_secret(&state.vault, tenant.as_str(), secret)?)
    };
    for _ in 0..WRITES {
        let old = match state.store.get_recipient(&caller.scope, tenant.as_str()).await {
            Ok(old) => Some(old),
            Err(StoreError::NotFound) => None,
            Err(error) => return Err(error.into()),
        };
        let version = old.as_ref().map_or(0, |old| old.version);
        let recipient: Recipient = draft.clone().settle(old.as_ref().map(|old| &old.recipient), seal)?;
        match state.store.put_recipient(&caller.scope, tenant.as_str(), &recipient, version).await {
            // somebody else was faster; the last one wins
            Err(StoreError::Conflict(_)) => continue,
            Err(error) => return Err(error.into()),
            Ok(stored) => return Ok(Json(RecipientView::of(tenant.as_str(), &stored))),
        }
    }
    Err(ApiError::Conflict("the recipient is being changed by others all the time; try again".into()))
}

/// Why a recipient could not be made ready to be stored.
enum Refused {
    Faults(Faults),
    Vault(VaultError),
}

impl From<Faults> for Refused {
    fn from(faults: Faults) -> Refused {
        Refused::Faults(faults)
    }
}

impl From<VaultError> for Refused {
    fn from(error: VaultError) -> Refused {
        Refused::Vault(error)
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> ApiError {
        match refused {
            Refused::Faults(faults) => faults.into(),
            Refused::Vault(error) => ApiError::Internal { log: error.to_string() },
        }
    }
}
