//! Authentication: from the bearer token to the caller's tenant and permissions.
//!
//! A token is looked up by its hash on every request, so that revoking one works at once. A thing outside of a
//! caller's tenant is not found; that it exists is never said.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};

use axum::extract::FromRequestParts;
use axum::http::Uri;
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use serde_json::Value;
use uuid::Uuid;

use crate::base::compute;
use crate::base::id::{Scope, Tenant};
use crate::base::invalid::ValidationErrors;
use crate::base::token::{Permission, TokenHash, TokenText};
use crate::domain::actor::{Actor, EMBEDDER};
use crate::executor::webhook::{TOKEN_PREFIX, is_completion_token};
use crate::http::error::ApiError;
use crate::http::server::Peer;
use crate::http::{HttpState, MCP_PATH};
use crate::store::{StoreError, StoredToken};

/// The caller of a request, with scope and permissions.
#[derive(Debug, Clone)]
pub struct AuthenticatedCaller {
    /// Tenants that the caller sees: all, or one.
    pub scope: Scope,
    /// Permissions within that scope.
    pub permissions: Vec<Permission>,
    /// Their token; `None` is the configured admin token, or the program that the service is a part of.
    pub token_id: Option<Uuid>,
    /// The token that theirs descends from, as the record names it, or the name of that program; `None`: it is their
    /// own.
    root: Option<String>,
    /// When their token ends.
    pub expires_at: Option<DateTime<Utc>>,
    /// Where they are; `None` where no connection is known.
    pub address: Option<IpAddr>,
    hash: TokenHash,
}

impl FromRequestParts<HttpState> for AuthenticatedCaller {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<AuthenticatedCaller, ApiError> {
        authenticated(parts, state).await
    }
}

/// In whose name the body of a request is read and its answer written where they are long: in the caller's, once that
/// is known; see [`AuthenticatedCaller::computes_for`]. All clones are of the one request.
#[derive(Clone, Default)]
pub struct ComputedFor(Arc<OnceLock<Arc<str>>>);

impl ComputedFor {
    /// The name. Where no caller is known it is an admin's.
    pub fn name(&self) -> Arc<str> {
        self.0.get().cloned().unwrap_or_else(|| compute::ADMIN.into())
    }
}

/// A request of a caller: the parts of the service that answer it, and the caller.
pub struct Call(pub HttpState, pub AuthenticatedCaller);

impl FromRequestParts<HttpState> for Call {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<Call, ApiError> {
        Ok(Call(state.clone(), authenticated(parts, state).await?))
    }
}

/// Each handler has the future of its extractors in its own. In a box this one is compiled once.
fn authenticated<'a>(
    parts: &'a mut Parts,
    state: &'a HttpState,
) -> BoxFuture<'a, Result<AuthenticatedCaller, ApiError>> {
    Box::pin(async move {
        // nothing that comes over the network has it
        let in_process = parts.extensions.get::<AuthenticatedCaller>().cloned();
        let (caller, completed) = match in_process {
            Some(caller) => (caller, None),
            None => {
                let text = bearer(parts)?;
                let peer = parts.extensions.get::<Peer>().map(|peer| peer.0);
                let completed = completed_by(&parts.uri, &text);
                (identify_for(state, peer, &text, completed).await?, completed)
            }
        };
        // what a run has come to elsewhere is recorded all the same; what an MCP client changes is a request of its own
        let is_asked_elsewhere = completed.is_some() || parts.uri.path() == MCP_PATH;
        if !parts.method.is_safe() && !is_asked_elsewhere {
            caller.may_write(state).await?;
        }
        let ComputedFor(name) = parts.extensions.get_or_insert_default::<ComputedFor>();
        let _ = name.set(caller.computes_for().into());
        Ok(caller)
    })
}

/// Whom a token stands for that did not come in a header.
pub async fn identify(state: &HttpState, peer: Option<IpAddr>, text: &str) -> Result<AuthenticatedCaller, ApiError> {
    identify_for(state, peer, text, None).await
}

/// Identifies a caller; a completion token stands for its run.
async fn identify_for(
    state: &HttpState,
    peer: Option<IpAddr>,
    text: &str,
    completed: Option<Uuid>,
) -> Result<AuthenticatedCaller, ApiError> {
    let (hash, now) = (TokenHash::of(text), state.clock.elapsed());
    if let Some(retry_after) = peer.and_then(|peer| state.wrong_tokens.wait(peer, &hash, now)) {
        let detail = "too many wrong tokens came from this address";
        return Err(ApiError::TooManyRequests { detail, retry_after });
    }
    let caller = match completed {
        Some(run) => of_run(state, run, text, &hash).await,
        None => known(state, text, &hash).await,
    };
    let caller = caller.map(|caller| AuthenticatedCaller { address: peer, ..caller });
    match (&caller, peer) {
        (Ok(_), _) => state.wrong_tokens.record_success(&hash),
        (Err(ApiError::Unauthorized(_)), Some(peer)) => state.wrong_tokens.record_failure(peer, now),
        _ => {}
    }
    caller
}

#[cfg(test)]
impl AuthenticatedCaller {
    /// A caller with this token, for tests of what is counted by callers.
    pub fn of_test(token: &str, scope: Scope, address: IpAddr) -> AuthenticatedCaller {
        let hash = TokenHash::of(token);
        AuthenticatedCaller {
            scope,
            permissions: Vec::new(),
            token_id: None,
            root: None,
            expires_at: None,
            address: Some(address),
            hash,
        }
    }
}

impl AuthenticatedCaller {
    /// In whose name what this caller writes is computed; see [`crate::base::compute`].
    pub fn computes_for(&self) -> &str {
        self.scope.tenant().unwrap_or(compute::ADMIN)
    }

    /// Whether the caller may do this.
    pub fn may(&self, permission: Permission) -> Result<(), ApiError> {
        match self.holds(permission) {
            true => Ok(()),
            false => Err(ApiError::Forbidden { permission: permission.as_str() }),
        }
    }

    /// Whether the caller is the operator: an admin who may do everything. A tenant has no say in it.
    pub fn is_operator(&self) -> Result<(), ApiError> {
        self.may(Permission::All)?;
        match self.scope {
            Scope::Every => Ok(()),
            Scope::Only(_) => Err(ApiError::AdminOnly),
        }
    }

    /// Whether the caller may change anything: not where the operator has disabled its tenant.
    pub(in crate::http) async fn may_write(&self, state: &HttpState) -> Result<(), ApiError> {
        let Some(tenant) = self.scope.tenant() else { return Ok(()) };
        match state.store.halts().await?.is_disabled(tenant) {
            true => Err(ApiError::TenantDisabled),
            false => Ok(()),
        }
    }

    /// The program that the service is a part of. It may do everything, for all tenants or for one.
    pub fn embedder(scope: Scope) -> AuthenticatedCaller {
        // it counts as another caller for each of its tenants
        let hash = TokenHash::of(&format!("{EMBEDDER}:{}", scope.tenant().unwrap_or_default()));
        AuthenticatedCaller {
            scope,
            permissions: vec![Permission::All],
            token_id: None,
            root: Some(EMBEDDER.to_owned()),
            expires_at: None,
            address: None,
            hash,
        }
    }

    /// Name of the caller for the record: `token:<id>`, `token:admin` for the configured one, or `process:embedder`.
    pub fn name(&self) -> String {
        match (self.token_id, &self.root) {
            (None, Some(embedder)) => embedder.clone(),
            (token, _) => token.map_or(Actor::Admin, Actor::Token).to_string(),
        }
    }

    /// The name of the token that theirs descends from: what they make descends from it, too.
    pub fn root(&self) -> String {
        self.root.clone().unwrap_or_else(|| self.name())
    }

    /// Whether the token is good even now, or was half a second ago: for answers that go on for long.
    pub async fn is_still_known(&self, state: &HttpState) -> Result<bool, StoreError> {
        if self.token_id.is_none() {
            return Ok(true);
        }
        if let Some(is_known) = state.token_checks.recent(&self.hash) {
            return Ok(is_known);
        }
        let began = std::time::Instant::now();
        let token = state.store.find_token(self.hash.as_bytes()).await?;
        let is_known = token.is_some_and(|token| dead(&token, state.clock.now()).is_none());
        state.token_checks.note(&self.hash, began, is_known);
        Ok(is_known)
    }

    /// Whether they have a token: the program that the service is a part of has none.
    pub fn has_token(&self) -> bool {
        self.token_id.is_some() || self.root.is_none()
    }

    /// By which their token is known.
    pub fn hash(&self) -> &TokenHash {
        &self.hash
    }

    /// Whether the caller may do what the permission names.
    pub fn holds(&self, permission: Permission) -> bool {
        self.permissions.iter().any(|held| held.covers(permission))
    }

    /// For whom a body makes something: an admin names the tenant, a tenant need not and can name no other.
    pub fn acts_for(&self, body: &Value) -> Result<Tenant, ValidationErrors> {
        let fault = |message: &str| Err(ValidationErrors::one("/tenant_id", message));
        let named = match body.get("tenant_id") {
            None | Some(Value::Null) => None,
            Some(Value::String(named)) => Some(named.as_str()),
            Some(_) => return fault("must be a text"),
        };
        match (&self.scope, named) {
            (Scope::Only(own), None) => Ok(own.clone()),
            (Scope::Only(own), Some(named)) if own.as_str() == named => Ok(own.clone()),
            (Scope::Only(_), Some(_)) => fault("this token acts for its own tenant only; leave `tenant_id` out"),
            (Scope::Every, Some(named)) => Tenant::new(named).map_err(|why| ValidationErrors::one("/tenant_id", why)),
            (Scope::Every, None) => fault("is missing: an admin token names the tenant"),
        }
    }

    /// The tenant that an address names, as far as the caller sees it. Another's is not found.
    pub fn sees(&self, named: &str) -> Result<Tenant, ApiError> {
        match &self.scope {
            Scope::Only(own) if own.as_str() != named => Err(ApiError::NotFound("tenant")),
            _ => Tenant::stored(named).map_err(|_| ApiError::NotFound("tenant")),
        }
    }

    /// The tenant for which the caller makes something at an address that names one: an admin names it in its only
    /// form.
    pub fn makes_for(&self, named: &str) -> Result<Tenant, ApiError> {
        match &self.scope {
            Scope::Only(_) => self.sees(named),
            Scope::Every => Tenant::new(named).map_err(|why| ApiError::invalid("/tenant_id", why)),
        }
    }

    /// The caller's view, narrowed to the tenant that a query names.
    pub fn narrow_scope(&self, named: Option<&str>) -> Result<Scope, ApiError> {
        match named {
            None => Ok(self.scope.clone()),
            Some(named) => self.sees(named).map(Scope::Only),
        }
    }
}

/// Whether whoever is on record under this name ([`AuthenticatedCaller::name`]) may even now do this for a tenant: for
/// what a token has begun and others end.
pub async fn still_may(
    state: &HttpState,
    name: &str,
    tenant: &str,
    permission: Permission,
) -> Result<bool, StoreError> {
    let id = match Actor::parse(name) {
        Actor::Admin => return Ok(state.admin_token.is_some()),
        Actor::Embedder => return Ok(true),
        Actor::Token(id) => id,
        Actor::Recipient(_) | Actor::Caller(_) | Actor::Service => return Ok(false),
    };
    let Some(token) = state.store.get_token(id).await? else { return Ok(false) };
    let is_theirs = token.tenant_id.as_deref().is_none_or(|own| own == tenant);
    let mut held = token.scopes.iter().filter_map(|word| Permission::parse(word));
    Ok(is_theirs && dead(&token, state.clock.now()).is_none() && held.any(|held| held.covers(permission)))
}

fn bearer(parts: &Parts) -> Result<String, ApiError> {
    let mut sent = parts.headers.get_all(AUTHORIZATION).iter();
    let (Some(header), None) = (sent.next(), sent.next()) else {
        return Err(ApiError::Unauthorized("send `Authorization: Bearer <token>`, once"));
    };
    let token = header.to_str().ok().and_then(|header| header.split_once(' '));
    match token {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty() => {
            Ok(token.trim().to_owned())
        }
        _ => Err(ApiError::Unauthorized("the Authorization header must read `Bearer <token>`")),
    }
}

/// The run that is to be completed, where a completion token is sent: it is good at this one address.
fn completed_by(uri: &Uri, text: &str) -> Option<Uuid> {
    let run = uri.path().strip_prefix("/v1/runs/")?.strip_suffix("/complete")?;
    text.starts_with(TOKEN_PREFIX).then(|| run.parse().ok()).flatten()
}

async fn of_run(state: &HttpState, run: Uuid, text: &str, hash: &TokenHash) -> Result<AuthenticatedCaller, ApiError> {
    let refused = || ApiError::Unauthorized("the token is not this run's completion token");
    if !is_completion_token(&state.vault, run, text) {
        return Err(refused());
    }
    let run = state.store.find_run(&Scope::Every, run).await?.ok_or_else(refused)?;
    let tenant = Tenant::stored(run.tenant_id).map_err(|why| ApiError::Internal { log: why })?;
    let permissions = vec![Permission::RunsWrite];
    Ok(AuthenticatedCaller {
        scope: Scope::Only(tenant),
        permissions,
        token_id: None,
        root: None,
        expires_at: None,
        address: None,
        hash: *hash,
    })
}

/// Whom a token stands for, if it is valid now.
async fn known(state: &HttpState, text: &str, hash: &TokenHash) -> Result<AuthenticatedCaller, ApiError> {
    // a text that can't be a token costs no look-up
    if state.admin_token.as_ref() != Some(hash) && TokenText::parse(text).is_err() {
        return Err(ApiError::Unauthorized("the token is not valid: it is mistyped, or not one of this service"));
    }
    caller_of(state, hash, None).await
}

/// Whom the token with this hash stands for, if it is valid now: for what stands for a token, as sessions do.
pub async fn caller_of(
    state: &HttpState,
    hash: &TokenHash,
    address: Option<IpAddr>,
) -> Result<AuthenticatedCaller, ApiError> {
    if state.admin_token.as_ref() == Some(hash) {
        let permissions = vec![Permission::All];
        return Ok(AuthenticatedCaller {
            scope: Scope::Every,
            permissions,
            token_id: None,
            root: None,
            expires_at: None,
            address,
            hash: *hash,
        });
    }
    let token = state.store.find_token(hash.as_bytes()).await?;
    let token = token.ok_or(ApiError::Unauthorized("the token is not valid"))?;
    if let Some(why) = dead(&token, state.clock.now()) {
        return Err(ApiError::Unauthorized(why));
    }
    let scope = match token.tenant_id {
        None => Scope::Every,
        Some(tenant) => Scope::Only(Tenant::stored(tenant).map_err(|why| ApiError::Internal { log: why })?),
    };
    let permissions = token.scopes.iter().filter_map(|word| Permission::parse(word)).collect();
    Ok(AuthenticatedCaller {
        scope,
        permissions,
        token_id: Some(token.id),
        root: token.root,
        expires_at: token.expires_at,
        address,
        hash: *hash,
    })
}

/// Why a stored token may not be used any more.
fn dead(token: &StoredToken, now: DateTime<Utc>) -> Option<&'static str> {
    if token.revoked_at.is_some() {
        return Some("the token was revoked");
    }
    token.expires_at.is_some_and(|end| end <= now).then_some("the token has expired")
}
