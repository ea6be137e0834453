//! Proving an address over HTTP: a code is sent to it, and given back.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use uuid::Uuid;

use crate::base::id::{Tenant, new_id};
use crate::base::invalid::ValidationErrors;
use crate::base::secret::Secret;
use crate::base::token::Permission;
use crate::domain::notification::verification::{PURPOSE, STORED, address_subject, code_subject, parse_code};
use crate::domain::notification::{Addresses, Delivery, MessageKind, NewDelivery, Proof, Recipient};
use crate::http::api::recipients::{RecipientView, WRITES};
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::{AuthenticatedCaller, Call, EarlyResponse, Id, Json, JsonBody};
use crate::http::{HttpState, schema};
use crate::ports::vault::Vault;
use crate::store::{CodeCheck, StoreError, StoredRecipient, Verification};

/// Prove an address
///
/// With `channel` alone a code of 6 digits is sent to the address of that channel; the answer is the delivery, which is
/// on its way. With `code` as well the address is verified, and the answer is the recipient. A code is good for 10
/// minutes and 5 tries; the next may be asked for after a minute, ten within a day. An address that changes has to be
/// proved again.
#[utoipa::path(post, path = "/v1/recipients/{tenant_id}/verify", tag = "notifications",
    security(("bearer" = ["recipients:write"])),
    params(("tenant_id" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    request_body = schema::Verify,
    responses((status = 200, body = schema::RecipientSchema, description = "The code was right"),
        (status = 202, body = Delivery, description = "A code is on its way"),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json",
            description = "A code was sent less than a minute ago, or ten within a day")))]
pub async fn verify_recipient(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Response, EarlyResponse> {
    caller.may(Permission::RecipientsWrite)?;
    let tenant = caller.sees(&id.0)?;
    let schema::Verify { channel, code } = body.read().await?;
    match code {
        None => {
            let delivery = send(&state, &caller, &tenant, &channel, &body).await?;
            Ok((StatusCode::ACCEPTED, Json(delivery)).into_response())
        }
        Some(code) => {
            // a code is good once: what it was answered must not be asked of it again
            body.key.replay_if_repeated(&state, &caller).await?;
            let stored = verify_code(&state, &caller, &tenant, &channel, &code).await?;
            body.key.remember_answer(&state, &caller, StatusCode::OK, RecipientView::of(tenant.as_str(), &stored)).await
        }
    }
}

async fn send(
    state: &HttpState,
    caller: &AuthenticatedCaller,
    tenant: &Tenant,
    channel: &str,
    body: &JsonBody,
) -> Result<Delivery, ApiError> {
    let stored = read(state, caller, tenant).await?;
    if !state.validator.channels.iter().any(|known| known == channel) {
        return Err(ValidationErrors::one("/channel", format!("the channel `{channel}` is not configured here")).into());
    }
    let fresh = new_id(state.clock.now());
    let of = |id: Uuid| proof(tenant, channel, id, &stored.recipient);
    of(fresh)?;
    let proof = of(body.key.identity_if_kept(state, caller, fresh).await?.id)?;
    let message = NewDelivery {
        tenant_id: tenant.as_str().to_owned(),
        recipient: tenant.as_str().to_owned(),
        channel: channel.to_owned(),
        // a code that arrives elsewhere proves nothing
        fallback: vec![],
        dedupe_key: proof.dedupe_key(),
        run_id: None,
        subject_ref: Some(proof.subject_ref()),
        kind: MessageKind::Code,
        urgency: MessageKind::Code.urgency(),
        subject: None,
        text: None,
    };
    let code = proof.code(&state.vault.tag(PURPOSE, &proof.subject()));
    let asked = hashed(&state.vault, tenant, channel, &stored.recipient.addresses, &code)?;
    state.store.ask_verification(&caller.scope, &asked, &message).await?;
    Ok(state.store.find_delivery(&caller.scope, tenant.as_str(), &message.dedupe_key).await?)
}

async fn verify_code(
    state: &HttpState,
    caller: &AuthenticatedCaller,
    tenant: &Tenant,
    channel: &str,
    code: &str,
) -> Result<StoredRecipient, ApiError> {
    let wrong = |message: String| Err(ValidationErrors::one("/code", message).into());
    let Some(code) = parse_code(code).map(Secret::new) else { return wrong("must be 6 digits".into()) };
    for _ in 0..WRITES {
        let stored = read(state, caller, tenant).await?;
        let mut recipient = stored.recipient.clone();
        proof(tenant, channel, Uuid::nil(), &recipient)?;
        let given = hashed(&state.vault, tenant, channel, &recipient.addresses, &code)?;
        recipient.verified.insert(channel.to_owned(), state.clock.now());
        match state.store.try_verification(&caller.scope, &given, &recipient, &stored).await {
            Ok(CodeCheck::Yes(stored)) => return Ok(*stored),
            Ok(CodeCheck::Wrong { left: 0 }) => return wrong("is wrong, and was the last try; ask for another".into()),
            Ok(CodeCheck::Wrong { left }) => return wrong(format!("is wrong; {left} more tries")),
            Ok(CodeCheck::Gone) => {
                return wrong("no code is open for this address; ask for one with `channel` alone".into());
            }
            Err(StoreError::Conflict(_)) => continue,
            Err(error) => return Err(error.into()),
        }
    }
    Err(ApiError::Conflict("the recipient is being changed by others all the time; try again".into()))
}

async fn read(state: &HttpState, caller: &AuthenticatedCaller, tenant: &Tenant) -> Result<StoredRecipient, ApiError> {
    let stored = state.store.get_recipient(&caller.scope, tenant.as_str()).await;
    stored.map_err(|error| ApiError::of_store(error, "recipient"))
}

fn proof(tenant: &Tenant, channel: &str, id: Uuid, recipient: &Recipient) -> Result<Proof, ValidationErrors> {
    Proof::new(tenant.as_str(), channel, id, &recipient.addresses).ok_or_else(|| {
        let why = match channel {
            "live" => "sessions have shown a token; there is nothing to be proved".to_owned(),
            name => recipient.addresses.missing_address(name),
        };
        ValidationErrors::one("/channel", why)
    })
}

/// The stored hashes of a code and its address: tags that nobody can make, or try codes against, without the master
/// key.
fn hashed(
    vault: &Vault,
    tenant: &Tenant,
    channel: &str,
    addresses: &Addresses,
    code: &Secret,
) -> Result<Verification, ApiError> {
    let internal = |log: &str| ApiError::Internal { log: log.into() };
    let subject = address_subject(tenant.as_str(), channel, addresses).ok_or_else(|| internal("no address"))?;
    let bytes =
        |subject: &str| hex::decode(vault.tag(STORED, subject)).map_err(|_| internal("a tag is no hexadecimal"));
    Ok(Verification {
        recipient: tenant.as_str().to_owned(),
        channel: channel.to_owned(),
        address_hash: bytes(&subject)?,
        code_hash: bytes(&code_subject(tenant.as_str(), channel, code.expose()))?,
    })
}
