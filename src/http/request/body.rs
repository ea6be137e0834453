//! The body of a request: how large, how slow, and how and where it is read.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue};
use futures::StreamExt;
use futures::future::BoxFuture;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::timeout;
use utoipa::PartialSchema;

use crate::base::compute;
use crate::base::invalid::{ValidationErrors, escape, unknown_fields};
use crate::base::json::typed;
use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::request::RequestKey;
use crate::http::request::auth::ComputedFor;
use crate::http::request::idempotency::OpenKey;

/// Arrays and objects inside each other that a body may have; serde_json reads no more.
const JSON_DEPTH: usize = 127;
/// Bytes of a body that is read on the thread that serves: to parse them and to hold them against a schema takes a part
/// of a millisecond, whatever they say.
const READ_IN_PLACE: usize = 16 * 1_024;

/// A request's body, whole and within the limits, not yet understood.
pub struct JsonBody {
    sent: RawBody,
    state: HttpState,
    /// In whose name it is read where it is long.
    reader: Arc<str>,
    /// Its `Idempotency-Key`, with which it takes effect once.
    pub key: RequestKey,
}

/// The bytes of a body, for what reads them where that may take its time. Cheap to clone.
#[derive(Debug, Clone)]
pub struct RawBody {
    bytes: Bytes,
    json: bool,
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
        let json = is_json(request.headers());
        let key = OpenKey::of(&request)?;
        let caller = request.extensions().get::<ComputedFor>();
        let reader = caller.map_or_else(|| compute::ADMIN.into(), ComputedFor::name);
        let bytes = timeout(limits.body_time, read_body(request, limits.body_bytes))
            .await
            .map_err(|_| ApiError::BodyTimeout { limit: limits.body_time })??;
        let key = key.with_body(&bytes);
        Ok(JsonBody { sent: RawBody { bytes, json }, state: state.clone(), reader, key })
    })
}

impl JsonBody {
    /// Has it read in the name of this tenant: for a request whose caller has no token.
    pub fn in_name_of(self, tenant: &str) -> JsonBody {
        JsonBody { reader: tenant.into(), ..self }
    }

    /// The result of `read`. Of a long body it is computed on a computing thread, in its caller's turn.
    pub async fn read_by<T: Send + 'static>(
        &self,
        read: impl FnOnce(RawBody) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let sent = self.sent.clone();
        match sent.bytes.len() {
            ..=READ_IN_PLACE => read(sent),
            _ => self.state.compute_for(&self.reader, move || read(sent)).await?,
        }
    }

    /// The result of `read` on the body as JSON, as [`JsonBody::read_by`] has it.
    pub async fn read_with<T: Send + 'static, E: Into<ApiError>>(
        &self,
        read: impl FnOnce(Value) -> Result<T, E> + Send + 'static,
    ) -> Result<T, ApiError> {
        self.read_by(move |sent| read(sent.json()?).map_err(Into::into)).await
    }

    /// The body as JSON.
    pub async fn json(&self) -> Result<Value, ApiError> {
        self.read_by(|sent| sent.json()).await
    }

    /// The body as a request of this type.
    pub async fn read<T: PartialSchema + DeserializeOwned + Send + 'static>(&self) -> Result<T, ApiError> {
        self.read_with(|value| typed::body(&value)).await
    }

    /// The body as a request of this type, or an empty one where there is none, or null.
    pub async fn read_or_empty<T: PartialSchema + DeserializeOwned + Send + 'static>(&self) -> Result<T, ApiError> {
        self.read_by(|sent| Ok(typed::body(&sent.json_or_empty()?)?)).await
    }

    /// Refuses a body that has any field.
    pub async fn refuse_fields(&self) -> Result<(), ApiError> {
        self.read_by(|sent| Ok(refuse_fields_of(&sent.json_or_empty()?)?)).await
    }

    /// The body as it came.
    pub fn bytes(&self) -> &[u8] {
        self.sent.bytes()
    }
}

impl RawBody {
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
        serde_json::from_slice(&self.bytes).map_err(|error| {
            ApiError::Malformed(match error.to_string() {
                deep if deep.starts_with("recursion limit") => {
                    format!("the body has more than {JSON_DEPTH} arrays and objects inside each other")
                }
                why => format!("the body is not JSON: {why}"),
            })
        })
    }

    /// The body as it came.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The body as JSON, or an empty object where there is none, or null.
    fn json_or_empty(&self) -> Result<Value, ApiError> {
        let said = if self.bytes.is_empty() { Value::Null } else { self.json()? };
        Ok(if said.is_null() { Value::Object(Default::default()) } else { said })
    }
}

/// Refuses what is no object, and each field.
fn refuse_fields_of(value: &Value) -> Result<(), ValidationErrors> {
    let Some(fields) = value.as_object() else { return Err(ValidationErrors::one("", "the body is a JSON object")) };
    let mut faults = ValidationErrors::new();
    for field in unknown_fields(fields, &[]) {
        faults.add(format!("/{}", escape(field)), "unknown field");
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
}
