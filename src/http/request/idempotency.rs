//! `Idempotency-Key`: a request that carries one takes effect once.
//!
//! Its answer is made before the effect and stored in the effect's own transaction, keyed by tenant and key; a
//! repetition gets the same answer, and the same key with another request is refused.

use aws_lc_rs::digest::{Context, SHA256};
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::base::compute::steps_to_serialize;
use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::request::{AuthenticatedCaller, Json};
use crate::store::{AnswerBody, Idempotency, StoredAnswer};

const KEY: HeaderName = HeaderName::from_static("idempotency-key");
/// Said of an answer that was given before.
pub const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");
/// Longest key, in characters.
const KEY_LENGTH: usize = 255;

/// The key that a request was sent with, if any, and what tells another request with the same key from it.
#[derive(Debug)]
pub struct RequestKey {
    key: Option<String>,
    /// SHA-256 over method, path with query, and, where there is a key, body.
    digest: Vec<u8>,
}

/// A request's key before its body is there.
pub(super) struct OpenKey {
    key: Option<String>,
    digest: Context,
}

impl OpenKey {
    pub(super) fn of(request: &Request) -> Result<OpenKey, ApiError> {
        let key = key(request.headers())?;
        let mut digest = Context::new(&SHA256);
        digest.update(request.method().as_str().as_bytes());
        digest.update(b"\n");
        digest.update(request.uri().path_and_query().map_or("", |path| path.as_str()).as_bytes());
        digest.update(b"\n");
        Ok(OpenKey { key, digest })
    }

    pub(super) fn with_body(mut self, body: &[u8]) -> RequestKey {
        // without a key nobody asks for the digest
        if self.key.is_some() {
            self.digest.update(body);
        }
        RequestKey { key: self.key, digest: self.digest.finish().as_ref().to_vec() }
    }
}

/// The id of what a request makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyIdentity {
    /// Id of the made or changed thing.
    pub id: Uuid,
    /// An earlier request with the same key has made it, or was about to.
    pub repeated: bool,
}

/// A response with which a handler ends before its own answer.
#[derive(Debug)]
pub enum EarlyResponse {
    /// The request is refused.
    Refused(ApiError),
    /// The request was answered before, so.
    Answered(Box<Response>),
}

impl<E: Into<ApiError>> From<E> for EarlyResponse {
    fn from(error: E) -> EarlyResponse {
        EarlyResponse::Refused(error.into())
    }
}

impl IntoResponse for EarlyResponse {
    fn into_response(self) -> Response {
        match self {
            EarlyResponse::Refused(error) => error.into_response(),
            EarlyResponse::Answered(answer) => *answer,
        }
    }
}

impl RequestKey {
    /// An id of what this request makes, for effects whose own key in the store makes them happen once: `fresh`, or the
    /// one that was remembered of an earlier request with the same key. It is remembered before the effect, so that a
    /// repetition has the same id even where the answer of the first was lost, and for as long as the key stands for
    /// this request; after that, and for another body, it is another id. Asked once nothing is left to refuse but by
    /// the quota of stored bytes.
    pub async fn identity(
        &self,
        state: &HttpState,
        caller: &AuthenticatedCaller,
        fresh: Uuid,
    ) -> Result<BodyIdentity, ApiError> {
        match self.identity_answer(caller, fresh)? {
            None => Ok(BodyIdentity { id: fresh, repeated: false }),
            Some(once) => identity_of(state.store.claim_key(&once, state.clock.now()).await?, fresh),
        }
    }

    /// As [`RequestKey::identity`], for effects that are never refused. Of a tenant that may store no more nothing new
    /// is remembered: a repetition has another id, and is carried out anew.
    pub async fn identity_if_kept(
        &self,
        state: &HttpState,
        caller: &AuthenticatedCaller,
        fresh: Uuid,
    ) -> Result<BodyIdentity, ApiError> {
        match self.identity_answer(caller, fresh)? {
            None => Ok(BodyIdentity { id: fresh, repeated: false }),
            Some(once) => identity_of(state.store.remember_answer(&once, state.clock.now()).await?, fresh),
        }
    }

    fn identity_answer(&self, caller: &AuthenticatedCaller, fresh: Uuid) -> Result<Option<Idempotency>, ApiError> {
        self.idempotency_in_place(caller, StatusCode::ACCEPTED, &json!({ "identity": fresh }))
    }

    /// The id that [`RequestKey::identity`] has remembered of an earlier request with the same key; `None`: there was
    /// none.
    pub async fn known_identity(
        &self,
        state: &HttpState,
        caller: &AuthenticatedCaller,
    ) -> Result<Option<Uuid>, ApiError> {
        let Some(key) = &self.key else { return Ok(None) };
        match state.store.recall_answer(&caller.scope, key, &self.digest, state.clock.now()).await? {
            None | Some(StoredAnswer::Done(())) => Ok(None),
            Some(StoredAnswer::Replayed { body, .. }) => identity_in(&body).map(Some),
            Some(StoredAnswer::Mismatch) => Err(key_reused()),
        }
    }

    /// The idempotency data with which the store lets this request take effect once, and the answer itself; `None`
    /// where no key was sent. A long answer is written on a computing thread, in the turn of the caller.
    pub async fn idempotency<T: Serialize + Send + 'static>(
        &self,
        state: &HttpState,
        caller: &AuthenticatedCaller,
        status: StatusCode,
        answer: T,
    ) -> Result<(Option<Idempotency>, T), ApiError> {
        let Some(key) = &self.key else { return Ok((None, answer)) };
        let steps = steps_to_serialize(&answer);
        let write = move || (AnswerBody::of(&answer), answer);
        let computed = state.compute.run_if_costly(caller.computes_for(), steps, write).await;
        let (body, answer) = computed.map_err(|panicked| ApiError::Internal { log: panicked.to_string() })?;
        Ok((Some(self.remembered(key, caller, status, body?)), answer))
    }

    /// As [`RequestKey::idempotency`], of an answer that is short, or that is known in the middle of the effect: it is
    /// written here.
    pub fn idempotency_in_place(
        &self,
        caller: &AuthenticatedCaller,
        status: StatusCode,
        answer: &impl Serialize,
    ) -> Result<Option<Idempotency>, ApiError> {
        let Some(key) = &self.key else { return Ok(None) };
        Ok(Some(self.remembered(key, caller, status, AnswerBody::of(answer)?)))
    }

    fn remembered(&self, key: &str, caller: &AuthenticatedCaller, status: StatusCode, body: AnswerBody) -> Idempotency {
        Idempotency {
            tenant: caller.scope.tenant().unwrap_or("*").to_owned(),
            key: key.to_owned(),
            digest: self.digest.clone(),
            status: status.as_u16(),
            body,
        }
    }

    /// The answer of an effect that has happened and that to repeat at once changes nothing (pausing, resuming,
    /// cancelling): it is remembered in a transaction of its own, so that a repetition that comes late, when others
    /// have acted since, is answered and takes no effect. Of a tenant that may store no more it is not remembered.
    pub async fn remember_answer(
        &self,
        state: &HttpState,
        caller: &AuthenticatedCaller,
        status: StatusCode,
        answer: impl Serialize + Send + 'static,
    ) -> Result<Response, EarlyResponse> {
        let (once, answer) = self.idempotency(state, caller, status, answer).await?;
        let fresh = (status, Json(answer)).into_response();
        match once {
            None => Ok(fresh),
            Some(once) => replayed_or(state.store.remember_answer(&once, state.clock.now()).await?, |()| fresh),
        }
    }

    /// Begins a request that takes effect once, about the thing of this id: the caller may make it, and it was not
    /// answered before.
    pub async fn begin(
        &self,
        state: &HttpState,
        caller: &AuthenticatedCaller,
        permission: Permission,
        id: Result<Uuid, ApiError>,
    ) -> Result<Uuid, EarlyResponse> {
        caller.may(permission)?;
        let id = id?;
        self.replay_if_repeated(state, caller).await?;
        Ok(id)
    }

    /// Ends early with the answer that this request got before, if it did. Asked before anything is judged: what was
    /// right then may be refused by now (an instant that has passed), and the answer must be the same.
    pub async fn replay_if_repeated(
        &self,
        state: &HttpState,
        caller: &AuthenticatedCaller,
    ) -> Result<(), EarlyResponse> {
        let Some(key) = &self.key else { return Ok(()) };
        match state.store.recall_answer(&caller.scope, key, &self.digest, state.clock.now()).await? {
            None => Ok(()),
            Some(answer) => {
                let answer = replayed_or(answer, |()| StatusCode::OK.into_response())?;
                Err(EarlyResponse::Answered(Box::new(answer)))
            }
        }
    }
}

/// The answer of an effect that may have happened before.
pub fn replayed_or<T>(answer: StoredAnswer<T>, fresh: impl FnOnce(T) -> Response) -> Result<Response, EarlyResponse> {
    match answer {
        StoredAnswer::Done(done) => Ok(fresh(done)),
        StoredAnswer::Replayed { status, body } => {
            let status = StatusCode::from_u16(status).unwrap_or(StatusCode::OK);
            Ok((status, [(REPLAYED, HeaderValue::from_static("true"))], Json(body)).into_response())
        }
        StoredAnswer::Mismatch => Err(key_reused().into()),
    }
}

/// The id of a request whose key was asked for with this `fresh` one.
fn identity_of(answer: StoredAnswer<()>, fresh: Uuid) -> Result<BodyIdentity, ApiError> {
    match answer {
        StoredAnswer::Done(()) => Ok(BodyIdentity { id: fresh, repeated: false }),
        StoredAnswer::Replayed { body, .. } => Ok(BodyIdentity { id: identity_in(&body)?, repeated: true }),
        StoredAnswer::Mismatch => Err(key_reused()),
    }
}

fn identity_in(body: &Value) -> Result<Uuid, ApiError> {
    body["identity"].as_str().and_then(|id| id.parse().ok()).ok_or_else(key_reused)
}

fn key_reused() -> ApiError {
    ApiError::invalid("", "this Idempotency-Key was used for another request within the last 24 hours")
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
    fn key_is_given_once_and_short() {
        let of = |values: &[&str]| key(&values.iter().map(|v| (KEY, v.parse().unwrap())).collect());
        assert_eq!(of(&[]).unwrap(), None);
        assert_eq!(of(&["a b"]).unwrap(), Some("a b".into()));
        for bad in [&["a", "b"][..], &[""], &[&"x".repeat(256)]] {
            assert!(of(bad).is_err(), "{bad:?}");
        }
    }
}
