//! Recipients over HTTP: where a tenant is reached. Secrets go in, and never come out.

pub(in crate::http) mod verify;

use axum::http::StatusCode;
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::base::id::new_id;
use crate::base::invalid::ValidationErrors;
use crate::base::secret::Secret;
use crate::base::token::Permission;
use crate::domain::notification::recipient::{Seal, SecretPlace};
use crate::domain::notification::{Delivery, MessageKind, NewDelivery, Recipient, RecipientDraft, dedupe};
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::{Call, Id, Items, Json, JsonBody, NamePage, Query};
use crate::http::schema;
use crate::ports::channel::{push, slack, webhook};
use crate::ports::vault::{Vault, VaultError};
use crate::store::{ListedRecipient, RecipientFilter, StoreError, StoredRecipient};

/// Subject of a test message.
const TEST_SUBJECT: &str = "Reveille can reach you";
const TEST_TEXT: &str = "This is a test message. Nothing needs to be done: that you read it shows that it arrives.";
/// How often a write is tried against writes of others.
pub(in crate::http) const WRITES: usize = 5;

/// A recipient as it is answered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RecipientView {
    /// Id of the recipient, which is its tenant's.
    pub tenant_id: String,
    /// The address that was put, the secrets replaced by whether there is one.
    #[serde(flatten)]
    pub public: Map<String, Value>,
    /// Version of the recipient, which grows with each change.
    pub version: i64,
    /// The instant of the last change.
    pub updated_at: DateTime<Utc>,
}

impl RecipientView {
    pub(in crate::http) fn of(tenant_id: &str, stored: &StoredRecipient) -> RecipientView {
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

/// List recipients
///
/// In the order of their tenants.
#[utoipa::path(get, path = "/v1/recipients", tag = "notifications", security(("bearer" = ["recipients:read"])),
    params(
        ("tenant_id" = Option<String>, Query, description = "This tenant's only"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<schema::RecipientSchema>)))]
pub async fn list_recipients(
    Call(state, caller): Call,
    mut query: Query,
) -> Result<Json<Items<RecipientView>>, ApiError> {
    caller.may(Permission::RecipientsRead)?;
    let tenant = query.text("tenant_id");
    let page = NamePage::of(&mut query);
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    let filter = RecipientFilter { after: page.after.clone(), limit: page.fetch() };
    let found = state.store.list_recipients(&scope, &filter).await?;
    let Items { items, next_cursor } = page.items(found, |listed| &listed.tenant_id);
    // one that is damaged is as good as none, here as where people are told
    let shown = |listed: ListedRecipient| Some(RecipientView::of(&listed.tenant_id, &listed.stored?));
    Ok(Json(Items { items: items.into_iter().filter_map(shown).collect(), next_cursor }))
}

/// Read a recipient
#[utoipa::path(get, path = "/v1/recipients/{tenant_id}", tag = "notifications",
    security(("bearer" = ["recipients:read"])), params(("tenant_id" = String, Path)),
    responses((status = 200, body = schema::RecipientSchema)))]
pub async fn get_recipient(Call(state, caller): Call, id: Id, query: Query) -> Result<Json<RecipientView>, ApiError> {
    caller.may(Permission::RecipientsRead)?;
    query.done()?;
    let tenant = caller.sees(&id.0)?;
    let stored = state.store.get_recipient(&caller.scope, tenant.as_str()).await;
    let stored = stored.map_err(|error| ApiError::of_store(error, "recipient"))?;
    Ok(Json(RecipientView::of(tenant.as_str(), &stored)))
}

/// Write a recipient
///
/// Replaces it whole, and takes what `GET` shows: secrets that are left out are kept for the address that they were
/// given for.
#[utoipa::path(put, path = "/v1/recipients/{tenant_id}", tag = "notifications",
    security(("bearer" = ["recipients:write"])), params(("tenant_id" = String, Path)),
    request_body = schema::NewRecipient,
    responses((status = 200, body = schema::RecipientSchema),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json",
            description = "It is being changed by others all the time")))]
pub async fn put_recipient(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Json<RecipientView>, ApiError> {
    caller.may(Permission::RecipientsWrite)?;
    let tenant = caller.makes_for(&id.0)?;
    let draft = body.read_with(|value| RecipientDraft::parse(&value)).await?;
    let seal = RecipientSealer { vault: &state.vault, recipient_id: tenant.as_str() };
    for _ in 0..WRITES {
        let old = state.store.find_recipient(&caller.scope, tenant.as_str()).await?;
        let recipient: Recipient = draft.clone().settle(old.as_ref().map(|old| &old.recipient), &seal)?;
        match state.store.put_recipient(&caller.scope, tenant.as_str(), &recipient, old.as_ref()).await {
            // somebody else was faster; the last one wins
            Err(StoreError::Conflict(_)) => continue,
            Err(error) => return Err(error.into()),
            Ok(stored) => return Ok(Json(RecipientView::of(tenant.as_str(), &stored))),
        }
    }
    Err(ApiError::Conflict("the recipient is being changed by others all the time; try again".into()))
}

/// Delete a recipient
///
/// For good: addresses, their secrets and subscriptions, what was proved of them, and the links to questions that were
/// sent there, which lead nowhere from now on. Tasks and questions that name it stay and find nobody to tell, until it
/// is written again. The record of what was sent stays as long as runs are kept.
#[utoipa::path(delete, path = "/v1/recipients/{tenant_id}", tag = "notifications",
    security(("bearer" = ["recipients:write"])), params(("tenant_id" = String, Path)), responses((status = 204)))]
pub async fn delete_recipient(Call(state, caller): Call, id: Id) -> Result<StatusCode, ApiError> {
    caller.may(Permission::RecipientsWrite)?;
    let tenant = caller.sees(&id.0)?;
    let deleted = state.store.delete_recipient(&caller.scope, tenant.as_str(), &caller.name()).await;
    deleted.map_err(|error| ApiError::of_store(error, "recipient"))?;
    Ok(StatusCode::NO_CONTENT)
}

/// Send a test message
///
/// Through `channel`, else through the recipient's channels in their order. The answer is the delivery, which is on its
/// way; read it again to see how it went.
#[utoipa::path(post, path = "/v1/recipients/{tenant_id}/test", tag = "notifications",
    security(("bearer" = ["deliveries:write"])),
    params(("tenant_id" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    request_body = schema::TestMessage, responses((status = 202, body = Delivery)))]
pub async fn test_recipient(
    Call(state, caller): Call,
    id: Id,
    body: JsonBody,
) -> Result<(StatusCode, Json<Delivery>), ApiError> {
    caller.may(Permission::DeliveriesWrite)?;
    let tenant = caller.sees(&id.0)?;
    let schema::TestMessage { channel } = body.read_or_empty().await?;
    let stored = state.store.get_recipient(&caller.scope, tenant.as_str()).await;
    let recipient = stored.map_err(|error| ApiError::of_store(error, "recipient"))?.recipient;
    let order = channels_to_test(channel.as_deref(), &recipient, &state.validator.channels)?;
    let made = body.key.identity_if_kept(&state, &caller, new_id(state.clock.now())).await?;
    let key = dedupe::test(made.id);
    let message = NewDelivery {
        tenant_id: tenant.as_str().to_owned(),
        recipient: tenant.as_str().to_owned(),
        channel: order[0].clone(),
        fallback: order[1..].to_vec(),
        dedupe_key: key.clone(),
        run_id: None,
        subject_ref: None,
        kind: MessageKind::Test,
        urgency: MessageKind::Test.urgency(),
        subject: Some(TEST_SUBJECT.into()),
        text: Some(TEST_TEXT.into()),
    };
    state.store.post_delivery(&message).await?;
    let delivery = state.store.find_delivery(&caller.scope, tenant.as_str(), &key).await?;
    Ok((StatusCode::ACCEPTED, Json(delivery)))
}

/// At least one channel, each configured and with an address.
fn channels_to_test(
    channel: Option<&str>,
    recipient: &Recipient,
    known: &[String],
) -> Result<Vec<String>, ValidationErrors> {
    let order = match channel {
        // of the recipient's order what is configured here: the rest is passed over as well when something is told
        None => {
            let order = recipient.order();
            let (here, elsewhere): (Vec<_>, Vec<_>) = order.into_iter().partition(|name| known.contains(name));
            if here.is_empty() { elsewhere } else { here }
        }
        Some(name) if recipient.addresses.has(name) => vec![name.to_owned()],
        Some(name) => return Err(ValidationErrors::one("/channel", recipient.addresses.missing_address(name))),
    };
    match order.iter().find(|name| !known.contains(name)) {
        Some(unknown) => {
            Err(ValidationErrors::one("/channel", format!("the channel `{unknown}` is not configured here")))
        }
        None if order.is_empty() => Err(ValidationErrors::one("", "the recipient has no address")),
        None => Ok(order),
    }
}

/// Seals the secrets of one recipient.
struct RecipientSealer<'a> {
    vault: &'a Vault,
    recipient_id: &'a str,
}

impl Seal for RecipientSealer<'_> {
    type Error = RecipientFault;

    fn seal(&self, place: SecretPlace, secret: &Secret) -> Result<String, RecipientFault> {
        Ok(match place {
            SecretPlace::Webhook => webhook::seal_secret(self.vault, self.recipient_id, secret)?,
            SecretPlace::Push(endpoint) => push::seal_auth(self.vault, self.recipient_id, endpoint, secret)?,
            SecretPlace::Slack => slack::seal_url(self.vault, self.recipient_id, secret)?,
        })
    }
}

/// Why a recipient could not be made ready to be stored.
enum RecipientFault {
    Faults(ValidationErrors),
    Vault(VaultError),
}

impl From<ValidationErrors> for RecipientFault {
    fn from(faults: ValidationErrors) -> RecipientFault {
        RecipientFault::Faults(faults)
    }
}

impl From<VaultError> for RecipientFault {
    fn from(error: VaultError) -> RecipientFault {
        RecipientFault::Vault(error)
    }
}

impl From<RecipientFault> for ApiError {
    fn from(refused: RecipientFault) -> ApiError {
        match refused {
            RecipientFault::Faults(faults) => faults.into(),
            RecipientFault::Vault(error) => ApiError::Internal { log: error.to_string() },
        }
    }
}
