//! Webhooks of foreign services: any JSON body, once its signature was checked, becomes an event of that source.
//!
//! Without a configured secret there is no such address, unless the caller has a token that may publish. The id of the
//! event is the sender's own where it has one, so that a repetition does nothing.

pub mod completion;
pub mod receipts;
pub mod settings;
pub mod signature;

use std::collections::BTreeMap;

use axum::extract::{FromRequestParts, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header::AUTHORIZATION};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::base::id::{Scope, Tenant, new_id};
use crate::base::invalid::ValidationErrors;
use crate::base::token::Permission;
use crate::domain::event::{ATTRIBUTE_LENGTH, Data, EVENT_BYTES, Event};
use crate::http::HttpState;
use crate::http::api::events::{EventIds, PostedEvents, publish};
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::hooks::settings::{Hook, TOKEN_HEADER};
use crate::http::hooks::signature::{HookKey, Preset, verify};
use crate::http::request::{AuthenticatedCaller, Id, Json, JsonBody, Query, RawBody};

pub use settings::{Settings, check};

/// The type of an event whose hook names none.
const NAMELESS: &str = "hook";
/// Nothing is said of what was wrong: it would help whoever guesses.
const REFUSED: ApiError = ApiError::Unauthorized("the signature is missing, wrong, or not of these five minutes");

/// The configured hooks with their keys made ready.
pub struct Hooks(BTreeMap<String, (Hook, Vec<HookKey>)>);

impl Hooks {
    /// Secrets that can't be used are left out: [`check`] has refused them before.
    pub fn new(settings: &Settings) -> Hooks {
        let keys =
            |hook: &Hook| hook.secrets.iter().filter_map(|secret| HookKey::of(hook.preset, secret).ok()).collect();
        Hooks(settings.iter().map(|(source, hook)| (source.clone(), (hook.clone(), keys(hook)))).collect())
    }
}

/// A caller with a token, if one was sent.
pub struct OptionalCaller(Option<AuthenticatedCaller>);

impl FromRequestParts<HttpState> for OptionalCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<OptionalCaller, ApiError> {
        // an Authorization header of a signed hook is the sender's own affair
        let source = Id::from_request_parts(parts, state).await?.0;
        let signed = state.hooks.0.get(&source).is_some_and(|(_, keys)| !keys.is_empty());
        if signed || !parts.headers.contains_key(AUTHORIZATION) {
            return Ok(OptionalCaller(None));
        }
        AuthenticatedCaller::from_request_parts(parts, state).await.map(|caller| OptionalCaller(Some(caller)))
    }
}

/// Receive a webhook
///
/// Any JSON body becomes an event of this source, for the tenant that `[hooks.<source>]` names. Its signature is
/// checked as the hook's preset has it (Standard Webhooks, GitHub, Stripe, Slack, a shared token). A source without
/// secrets takes requests with a token that has `events:publish` only; an admin's names the tenant in `tenant_id`.
#[utoipa::path(post, path = "/v1/hooks/{source}", tag = "events", security(("bearer" = ["events:publish"]), ()),
    params(("source" = String, Path, example = "github"),
        ("tenant_id" = Option<String>, Query, description = "Tenant of the event; with an admin's token")),
    request_body = Value,
    responses((status = 202, body = EventIds),
        (status = 200, body = Value, description = "Slack asks whether the address is right"),
        (status = 404, body = ProblemDetails, content_type = "application/problem+json", description = "No such hook")))]
pub async fn receive_hook(
    State(state): State<HttpState>,
    OptionalCaller(caller): OptionalCaller,
    Id(source): Id,
    mut query: Query,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<Response, ApiError> {
    let configured = state.hooks.0.get(&source);
    let tenant = match (configured, &caller) {
        (Some((hook, keys)), None) if !keys.is_empty() => {
            let token_header = hook.header.as_deref().unwrap_or(TOKEN_HEADER);
            if let Err(refusal) = verify(hook.preset, keys, token_header, &headers, body.bytes(), state.clock.now()) {
                tracing::warn!(source, ?refusal, "a webhook was refused");
                return Err(REFUSED);
            }
            let tenant = hook.tenant_id.clone().unwrap_or_default();
            Tenant::new(tenant).map_err(|why| ApiError::Internal { log: format!("hooks.{source}.tenant_id: {why}") })?
        }
        (configured, Some(caller)) => {
            caller.may(Permission::EventsPublish)?;
            tenant_of(caller, configured.map(|(hook, _)| hook), query.text("tenant_id"))?
        }
        (_, None) => return Err(ApiError::NotFound("hook")),
    };
    let hook = configured.map(|(hook, _)| hook.clone()).unwrap_or_default();
    let (body, now) = (body.in_name_of(tenant.as_str()), state.clock.now());
    let read = move |sent: RawBody| read_hook(&hook, (tenant, source), &headers, sent.parsed()?, now);
    match body.read_by(read).await? {
        HookCall::Challenge(text) => Ok(Json(json!({ "challenge": text })).into_response()),
        HookCall::Event(batch) => {
            publish(&state, &batch).await?;
            Ok((StatusCode::ACCEPTED, Json(batch.into_ids())).into_response())
        }
    }
}

/// The meaning of a webhook.
enum HookCall {
    /// Slack asks whether the address is right, with a text that is sent back.
    Challenge(Value),
    /// One event, counted.
    Event(PostedEvents),
}

/// Reads a webhook of a source that is a tenant's.
fn read_hook(
    hook: &Hook,
    (tenant, source): (Tenant, String),
    headers: &HeaderMap,
    value: Value,
    now: DateTime<Utc>,
) -> Result<HookCall, ApiError> {
    if hook.preset == Preset::Slack && value["type"] == "url_verification" {
        return Ok(HookCall::Challenge(value["challenge"].clone()));
    }
    let event = Event {
        tenant,
        id: id_of(hook.preset, headers, &value).unwrap_or_else(|| new_id(now).to_string()),
        source,
        kind: kind_of(hook, headers, &value).unwrap_or_else(|| NAMELESS.into()),
        subject: None,
        time: Some(now),
        datacontenttype: Some("application/json".into()),
        dataschema: None,
        data: Data::Json(value),
        extensions: Default::default(),
    };
    // the address may hold what no attribute takes
    let read_back = Event::parse_of_stored_tenant(&event.to_value(), "", &mut ValidationErrors::new());
    read_back.ok_or(ApiError::NotFound("hook"))?;
    if !event.is_small_enough("", &mut ValidationErrors::new()) {
        return Err(ApiError::TooLarge { limit: EVENT_BYTES });
    }
    Ok(HookCall::Event(PostedEvents::of(vec![event])))
}

/// For whom a caller with a token publishes.
fn tenant_of(caller: &AuthenticatedCaller, hook: Option<&Hook>, named: Option<String>) -> Result<Tenant, ApiError> {
    let named = match &caller.scope {
        Scope::Only(own) => return caller.sees(named.as_deref().unwrap_or(own.as_str())),
        Scope::Every => named.or_else(|| hook?.tenant_id.clone()),
    };
    let missing =
        || ApiError::Query(ValidationErrors::one("/tenant_id", "is missing: an admin token names the tenant"));
    Tenant::new(named.ok_or_else(missing)?).map_err(|why| ApiError::Query(ValidationErrors::one("/tenant_id", why)))
}

/// The sender's own id of what it tells, the same when it tells it again.
fn id_of(preset: Preset, headers: &HeaderMap, body: &Value) -> Option<String> {
    match preset {
        Preset::Standard => in_header(headers, "webhook-id"),
        Preset::Github => in_header(headers, "x-github-delivery"),
        Preset::Stripe => attribute(body.get("id")?.as_str()?),
        Preset::Slack => attribute(body.get("event_id")?.as_str()?),
        Preset::Token => in_header(headers, "webhook-id").or_else(|| in_header(headers, "idempotency-key")),
    }
}

/// The type of the event: where the settings say, else where the sender has it.
fn kind_of(hook: &Hook, headers: &HeaderMap, body: &Value) -> Option<String> {
    let in_body = |pointer: &str| attribute(body.pointer(pointer)?.as_str()?);
    match hook.kind.as_deref().map(|kind| kind.split_once(':').unwrap_or(("", kind))) {
        Some(("header", name)) => in_header(headers, name),
        Some(("body", pointer)) => in_body(pointer),
        Some(_) => hook.kind.as_deref().and_then(attribute),
        None => match hook.preset {
            Preset::Github => in_header(headers, "x-github-event"),
            Preset::Slack => in_body("/event/type").or_else(|| in_body("/type")),
            Preset::Standard | Preset::Stripe | Preset::Token => in_body("/type"),
        },
    }
}

fn in_header(headers: &HeaderMap, name: &str) -> Option<String> {
    attribute(headers.get(name)?.to_str().ok()?)
}

/// The text, if an attribute of an event may have it.
fn attribute(text: &str) -> Option<String> {
    let fits = !text.is_empty() && text.chars().count() <= ATTRIBUTE_LENGTH && !text.chars().any(char::is_control);
    fits.then(|| text.to_owned())
}
