//! The body of a request: how large, how slow, how it is read, and what a repetition of it is answered.
//!
//! A request that carries an `Idempotency-Key` takes effect once. Its answer is made before the effect and stored in
//! the effect's own transaction, keyed by tenant and key; the same key with another request is refused.

use aws_lc_rs::digest::{Context, SHA256};
use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use futures::StreamExt;
use futures::future::BoxFuture;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::timeout;
use utoipa::PartialSchema;
use uuid::Uuid;

use crate::base::invalid::{ValidationErrors, did_you_mean, escape, unknown_fields};
use crate::base::json::typed;
use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::request::auth::AuthenticatedCaller;
use crate::store::{Idempotency, StoredAnswer};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Said of an answer that was given before.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// Longest key, in characters.
const KEY_LENGTH: usize = 255;

/// A request's body, whole and within the limits, not yet understood.
#[derive(Debug)]
pub struct JsonBody {
    bytes: Bytes,
    json: bool,
    key: Option<String>,
    /// SHA-256 over method, path with query, and body.
    digest: Vec<u8>,
}

/// The id of what a request makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyIdentity {
    /// Id of the made or changed thing.
    pub id: Uuid,
    /// An earlier request with the same key has made it, or was about to.
    pub repeated: bool,
}

/// Why a handler ends before its own answer.
#[derive(Debug)]
pub enum Early {
    /// The request is refused.
    Refused(ApiError),
    /// The request was answered before, so.
    Answered(Box<Response>),
}

impl<E: Into<ApiError>> From<E> for Early {
    fn from(error: E) -> Early {
        Early::Refused(error.into())
    }
}

impl IntoResponse for Early {
    fn into_response(self) -> Response {
        match self {
            Early::Refused(error) => error.into_response(),
            Early::Answered(answer) => *answer,
        }
    }
}

impl FromRequest<HttpState> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &HttpState) -> Result<JsonBody, ApiError> {
        received(request, state).await
    }
}

/// Each handler has the future of its extractors in its own. In a box this one is compiled once.
fn received(request: Request, state: &HttpState) -> BoxFuture<'_, Result<JsonBody, ApiError>> {
    Box::pin(async move {
        let limits = &state.limits;
        let key = key(request.headers())?;
        let json = is_json(request.headers());
        let mut digest = Context::new(&SHA256);
        digest.update(request.method().as_str().as_bytes());
        digest.update(b"\n");
        digest.update(request.uri().path_and_query().map_or("", |path| path.as_str()).as_bytes());
        digest.update(b"\n");
        let bytes = timeout(limits.body_time, read_body(request, limits.body_bytes))
            .await
            .map_err(|_| ApiError::BodyTimeout { limit: limits.body_time })??;
        digest.update(&bytes);
        Ok(JsonBody { bytes, json, key, digest: digest.finish().as_ref().to_vec() })
    })
}

impl JsonBody {
    /// The body as JSON.
    pub fn json(&self) -> Result<Value, ApiError> {
        if !self.json {
            let detail = "send the body as JSON, with `Content-Type: application/json`";
            return Err(ApiError::UnsupportedMediaType(detail.into()));
        }
        self.parsed()
    }

    /// The body as JSON, whatever it is called.
    pub fn parsed(&self) -> Result<Value, ApiError> {
        serde_json::from_slice(&self.bytes)
            .map_err(|error| ApiError::Malformed(format!("the body is not JSON: {error}")))
    }

    /// The body as a request of this type.
    pub fn read<T: PartialSchema + DeserializeOwned>(&self) -> Result<T, ApiError> {
        Ok(typed::body(&self.json()?)?)
    }

    /// The body as a request of this type, or an empty one where there is none, or null.
    pub fn read_or_empty<T: PartialSchema + DeserializeOwned>(&self) -> Result<T, ApiError> {
        Ok(typed::body(&self.json_or_empty()?)?)
    }

    /// The body as it came.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The body as JSON, or an empty object where there is none, or null.
    pub fn json_or_empty(&self) -> Result<Value, ApiError> {
        let said = if self.bytes.is_empty() { Value::Null } else { self.json()? };
        Ok(if said.is_null() { Value::Object(Default::default()) } else { said })
    }

    /// An id of what this request makes, for effects whose own key in the store makes them happen once: `fresh`, or the one
    /// that was remembered of an earlier request with the same key. It is remembered before the effect, so that a
    /// repetition has the same id even where the answer of the first was lost, and for as long as the key stands for this
    /// request; after that, and for another body, it is another id. Asked once nothing is left to refuse.
    pub async fn identity(
        &self,
        state: &HttpState,
        caller: &AuthenticatedCaller,
        fresh: Uuid,
    ) -> Result<BodyIdentity, ApiError> {
        let Some(once) = self.idempotency(caller, StatusCode::ACCEPTED, &json!({ "identity": fresh }))? else {
            return Ok(BodyIdentity { id: fresh, repeated: false });
        };
        let body = match state.store.remember_answer(&once, state.clock.now()).await? {
            StoredAnswer::Done(()) => return Ok(BodyIdentity { id: fresh, repeated: false }),
            StoredAnswer::Replayed { body, .. } => body,
            StoredAnswer::Mismatch => return Err(key_reused()),
        };
        let known = body["identity"].as_str().and_then(|id| id.parse().ok());
        known.map(|id| BodyIdentity { id, repeated: true }).ok_or_else(key_reused)
    }

    /// The idempotency data with which the store lets this request take effect once; `None` where no key was sent.
    pub fn idempotency(
        &self,
        caller: &AuthenticatedCaller,
        status: StatusCode,
        answer: &impl Serialize,
    ) -> Result<Option<Idempotency>, ApiError> {
        let Some(key) = &self.key else { return Ok(None) };
        let body = serde_json::to_value(answer).map_err(|error| ApiError::Internal { log: error.to_string() })?;
        Ok(Some(Idempotency {
            tenant: caller.scope.tenant().unwrap_or("*").to_owned(),
            key: key.clone(),
            digest: self.digest.clone(),
            status: status.as_u16(),
            body,
        }))
    }

    /// The answer of an effect that has happened and that to repeat at once changes nothing (pausing, resuming,
    /// cancelling): it is remembered in a transaction of its own, so that a repetition that comes late, when others have
    /// acted since, is answered and takes no effect.
    pub async fn remember_answer(
        &self,
        state: &HttpState,
        caller: &AuthenticatedCaller,
        status: StatusCode,
        answer: &impl Serialize,
    ) -> Result<Response, Early> {
        let fresh = (status, axum::Json(answer)).into_response();
        match self.idempotency(caller, status, answer)? {
            None => Ok(fresh),
            Some(once) => replayed_or(state.store.remember_answer(&once, state.clock.now()).await?, |()| fresh),
        }
    }

    /// Begins a request that takes effect once, about the thing of this id: the caller may make it, and it was not answered
    /// before.
    pub async fn begin(
        &self,
        state: &HttpState,
        caller: &AuthenticatedCaller,
        permission: Permission,
        id: Result<Uuid, ApiError>,
    ) -> Result<Uuid, Early> {
        caller.may(permission)?;
        let id = id?;
        self.replay_if_repeated(state, caller).await?;
        Ok(id)
    }

    /// Ends early with the answer that this request got before, if it did. Asked before anything is judged: what was right
    /// then may be refused by now (an instant that has passed), and the answer must be the same.
    pub async fn replay_if_repeated(&self, state: &HttpState, caller: &AuthenticatedCaller) -> Result<(), Early> {
        let Some(key) = &self.key else { return Ok(()) };
        match state.store.recall_answer(&caller.scope, key, &self.digest, state.clock.now()).await? {
            None => Ok(()),
            Some(answer) => {
                let answer = replayed_or(answer, |()| StatusCode::OK.into_response())?;
                Err(Early::Answered(Box::new(answer)))
            }
        }
    }
}

/// The answer of an effect that may have happened before.
pub fn replayed_or<T>(answer: StoredAnswer<T>, fresh: impl FnOnce(T) -> Response) -> Result<Response, Early> {
    match answer {
        StoredAnswer::Done(done) => Ok(fresh(done)),
        StoredAnswer::Replayed { status, body } => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
            Ok((status, [(REPLAYED, HeaderValue::from_static("true"))], axum::Json(body)).into_response())
        }
        StoredAnswer::Mismatch => Err(key_reused().into()),
    }
}

fn key_reused() -> ApiError {
    ApiError::invalid("", "this Idempotency-Key was used for another request within the last 24 hours")
}

/// A body that is an object with these fields, and no others.
pub fn refuse_unknown_fields(value: &Value, known: &[&str]) -> Result<(), ValidationErrors> {
    let Some(fields) = value.as_object() else { return Err(ValidationErrors::one("", "the body is a JSON object")) };
    let mut faults = ValidationErrors::new();
    for field in unknown_fields(fields, known) {
        let near = did_you_mean(field, known.iter().copied());
        faults.add(format!("/{}", escape(field)), format!("unknown field{near}"));
    }
    faults.into_result(())
}

async fn read_body(request: Request, limit: usize) -> Result<Bytes, ApiError> {
    let announced = request.headers().get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(ApiError::TooLarge { limit });
    }
    let mut parts = request.into_body().into_data_stream();
    let mut bytes = Vec::new();
    while let Some(part) = parts.next().await {
        let part = part.map_err(|_| ApiError::Malformed("the body broke off".into()))?;
        if bytes.len() + part.len() > limit {
            return Err(ApiError::TooLarge { limit });
        }
        bytes.extend_from_slice(&part);
    }
    Ok(bytes.into())
}

/// `application/json` or a type that ends in `+json`, with UTF-8 or no charset.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(Ok(kind)) = headers.get(CONTENT_TYPE).map(HeaderValue::to_str) else { return false };
    let mut parts = kind.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
    let utf8 = parts.all(|part| match part.split_once('=') {
        Some((name, value)) if name.eq_ignore_ascii_case("charset") => {
            value.trim_matches('"').eq_ignore_ascii_case("utf-8")
        }
        _ => true,
    });
    utf8 && (kind == "application/json" || (kind.starts_with("application/") && kind.ends_with("+json")))
}

fn key(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let mut keys = headers.get_all(KEY).iter();
    let Some(key) = keys.next() else { return Ok(None) };
    match key.to_str() {
        Ok(key) if (1..=KEY_LENGTH).contains(&key.len()) && keys.next().is_none() => Ok(Some(key.to_owned())),
        _ => Err(ApiError::Malformed("Idempotency-Key must be given once, with 1 to 255 ASCII characters".into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_known_by_its_type_and_only_in_utf_8() {
        let of = |kind: &str| is_json(&HeaderMap::from_iter([(CONTENT_TYPE, kind.parse().unwrap())]));
        for kind in ["application/json", "Application/JSON; charset=UTF-8", "application/merge-patch+json"] {
            assert!(of(kind), "{kind}");
        }
        for kind in ["text/plain", "application/x-www-form-urlencoded", "application/json; charset=latin1", "x/y+json"]
        {
            assert!(!of(kind), "{kind}");
        }
        assert!(!is_json(&HeaderMap::new()));
    }

    #[test]
    fn key_is_given_once_and_short() {
        let of = |values: &[&str]| key(&values.iter().map(|v| (KEY, v.parse().unwrap())).collect());
        assert_eq!(of(&[]).unwrap(), None);
        assert_eq!(of(&["a b"]).unwrap(), Some("a b".into()));
        for bad in [&["a", "b"][..], &[""], &[&"x".repeat(256)]] {
            assert!(of(bad).is_err(), "{bad:?}");
        }
    }
}
