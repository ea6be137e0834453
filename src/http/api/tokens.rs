//! Tokens over HTTP: made and shown once, listed without their text, revoked.
//!
//! Nobody can make a token that may do more, see more or live longer than the one it is made with.

pub mod login_links;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;

use crate::base::id::{self, Tenant};
use crate::base::invalid::{ValidationErrors, did_you_mean};
use crate::base::json::typed;
use crate::base::token::{Permission, TokenKind, TokenText};
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::idempotency::replayed_or;
use crate::http::request::{AuthenticatedCaller, Call, EarlyResponse, Id, Items, Json, JsonBody, ListPage, Query};
use crate::http::schema;
use crate::store::StoredToken;

/// Scopes that one request may list.
const MOST_SCOPES: usize = 100;

/// A token as it is answered.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct TokenView {
    /// Id of the token.
    pub id: Uuid,
    /// Owner of the token: admin or tenant.
    pub kind: TokenKind,
    /// `null`: an admin token.
    #[schema(required)]
    pub tenant_id: Option<String>,
    /// Purpose of the token.
    pub name: String,
    /// Permissions of the token; `*` is all.
    #[schema(example = json!(["tasks:read", "tasks:write"]))]
    pub scopes: Vec<String>,
    /// The instant of its creation.
    pub created_at: DateTime<Utc>,
    /// The instant from which it is refused.
    #[schema(required)]
    pub expires_at: Option<DateTime<Utc>>,
    /// The instant at which it was revoked.
    #[schema(required)]
    pub revoked_at: Option<DateTime<Utc>>,
}

/// A token that was made.
#[derive(Debug, Clone, Serialize, utoipa::ToSchema)]
pub struct MadeToken {
    /// The token as lists show it.
    #[serde(flatten)]
    pub view: TokenView,
    /// The text, shown this once; `null` where the answer is repeated for an Idempotency-Key.
    #[schema(required, example = "rv_tenant_0123456789ABCDEFGHIJabcdefghij0Abc12")]
    pub token: Option<String>,
}

impl TokenView {
    fn of(token: &StoredToken) -> TokenView {
        TokenView {
            id: token.id,
            kind: if token.tenant_id.is_some() { TokenKind::Tenant } else { TokenKind::Admin },
            tenant_id: token.tenant_id.clone(),
            name: token.name.clone(),
            scopes: token.scopes.clone(),
            created_at: token.created_at,
            expires_at: token.expires_at,
            revoked_at: token.revoked_at,
        }
    }
}

/// Make a token
///
/// Its text is in the answer, and nowhere else ever. With a `tenant_id` it belongs to that tenant; an admin who names
/// none makes an admin token.
#[utoipa::path(post, path = "/v1/tokens", tag = "operations", security(("bearer" = ["tokens:write"])),
    params(("Idempotency-Key" = Option<String>, Header,
        description = "Makes a repetition safe; the text is not repeated")),
    request_body = schema::NewToken,
    responses((status = 201, body = MadeToken),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json",
            description = "The tenant has as many tokens as it may have, and all of them are good")))]
pub async fn create_token(Call(state, caller): Call, body: JsonBody) -> Result<Response, EarlyResponse> {
    caller.may(Permission::TokensWrite)?;
    body.key.replay_if_repeated(&state, &caller).await?;
    let now = state.clock.now();
    let reader = caller.clone();
    let draft = body.read_with(move |value| TokenDraft::parse(&value, &reader, now)).await?;
    let text = TokenText::new(if draft.tenant.is_some() { TokenKind::Tenant } else { TokenKind::Admin });
    let token = StoredToken {
        id: id::new_id(now),
        tenant_id: draft.tenant.map(|tenant| tenant.as_str().to_owned()),
        name: draft.name,
        hash: text.hash().as_bytes().to_vec(),
        scopes: draft.scopes,
        created_at: now,
        expires_at: draft.expires_at,
        revoked_at: None,
        root: Some(caller.root()),
    };
    let made = MadeToken { view: TokenView::of(&token), token: None };
    let (once, mut made) = body.key.idempotency(&state, &caller, StatusCode::CREATED, made).await?;
    let answer = state.store.create_token(&token, once.as_ref()).await?;
    made.token = Some(text.expose().to_owned());
    let place = [(header::LOCATION, format!("/v1/tokens/{}", token.id))];
    replayed_or(answer, |()| (StatusCode::CREATED, place, Json(made)).into_response())
}

/// List tokens
#[utoipa::path(get, path = "/v1/tokens", tag = "operations", security(("bearer" = ["tokens:read"])),
    params(
        ("tenant_id" = Option<String>, Query, description = "This tenant's only"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<TokenView>)))]
pub async fn list_tokens(Call(state, caller): Call, mut query: Query) -> Result<Json<Items<TokenView>>, ApiError> {
    caller.may(Permission::TokensRead)?;
    let tenant = query.text("tenant_id");
    let page = ListPage::of(&mut query);
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    let tokens = state.store.list_tokens(&scope, None, page.before, page.fetch()).await?;
    Ok(Json(page.within(tokens, |token| token.id).map(|token| TokenView::of(&token))))
}

/// Revoke a token
///
/// It is dead at once, everywhere. To revoke it again changes nothing.
#[utoipa::path(delete, path = "/v1/tokens/{id}", tag = "operations", security(("bearer" = ["tokens:write"])),
    params(("id" = Uuid, Path)), responses((status = 204)))]
pub async fn revoke_token(Call(state, caller): Call, id: Id) -> Result<StatusCode, ApiError> {
    caller.may(Permission::TokensWrite)?;
    let revoked = state.store.revoke_token(&caller.scope, id.of("token")?).await;
    revoked.map_err(|error| ApiError::of_store(error, "token"))?;
    Ok(StatusCode::NO_CONTENT)
}

/// A token as it is asked for, checked against who asks.
struct TokenDraft {
    tenant: Option<Tenant>,
    name: String,
    scopes: Vec<String>,
    expires_at: Option<DateTime<Utc>>,
}

impl TokenDraft {
    fn parse(value: &Value, caller: &AuthenticatedCaller, now: DateTime<Utc>) -> Result<TokenDraft, ValidationErrors> {
        let mut faults = ValidationErrors::new();
        let Some(asked) = typed::read::<schema::NewToken>(value, "", &mut faults) else { return Err(faults) };
        let tenant = match (caller.scope.tenant(), asked.tenant_id) {
            (None, None) => None,
            _ => caller.acts_for(value).map_err(|more| faults.0.extend(more.0)).ok(),
        };
        if asked.name.trim().is_empty() || asked.name.chars().any(char::is_control) {
            faults.add("/name", "must say what the token is for, without control characters");
        }
        let scopes = scopes(&asked.scopes, caller, &mut faults);
        let expires_at = expiry(asked.expires_at, caller, now, &mut faults);
        faults.into_result(TokenDraft { tenant, name: asked.name, scopes, expires_at })
    }
}

fn scopes(listed: &[String], caller: &AuthenticatedCaller, faults: &mut ValidationErrors) -> Vec<String> {
    let words = Permission::WORDS;
    if listed.len() > MOST_SCOPES {
        faults.add("/scopes", format!("must be at most {MOST_SCOPES}"));
        return Vec::new();
    }
    let mut scopes: Vec<Permission> = Vec::new();
    for (index, word) in listed.iter().enumerate() {
        match Permission::parse(word) {
            None => {
                faults.add(
                    format!("/scopes/{index}"),
                    format!("must be one of {}{}", words.join(", "), did_you_mean(word, words)),
                );
            }
            Some(wanted) if !caller.holds(wanted) => {
                faults.add(format!("/scopes/{index}"), format!("the token that you use does not have `{word}` itself"));
            }
            Some(wanted) => scopes.push(wanted),
        }
    }
    scopes.sort();
    scopes.dedup();
    scopes.into_iter().map(|scope| scope.as_str().to_owned()).collect()
}

fn expiry(
    wanted: Option<DateTime<Utc>>,
    caller: &AuthenticatedCaller,
    now: DateTime<Utc>,
    faults: &mut ValidationErrors,
) -> Option<DateTime<Utc>> {
    if wanted.is_some_and(|at| at <= now) {
        faults.add("/expires_at", "must be in the future");
    }
    match (wanted, caller.expires_at) {
        (Some(wanted), Some(own)) if wanted > own => {
            faults.add("/expires_at", format!("must not be after {own}, when the token that you use ends"));
        }
        // what is made with a token that ends, ends with it
        (None, own) => return own,
        _ => {}
    }
    wanted
}
