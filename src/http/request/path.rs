//! Parts of addresses. An id that can't be one is not found, like one that is not there.

use axum::extract::{FromRequestParts, RawPathParams};
use axum::http::request::Parts;
use uuid::Uuid;

use crate::http::error::ApiError;

/// The one parameter of an address, as text.
#[derive(Debug, Clone)]
pub struct Id(pub String);

impl<S: Send + Sync> FromRequestParts<S> for Id {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Id, ApiError> {
        let found = RawPathParams::from_request_parts(parts, state).await;
        let params = found.map_err(|_| ApiError::Malformed("the address is not UTF-8".into()))?;
        Ok(Id(params.iter().next().map(|(_, value)| value.to_owned()).unwrap_or_default()))
    }
}

/// The two parameters of an address, as text.
#[derive(Debug, Clone)]
pub struct Pair(pub String, pub String);

impl<S: Send + Sync> FromRequestParts<S> for Pair {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Pair, ApiError> {
        let found = RawPathParams::from_request_parts(parts, state).await;
        let params = found.map_err(|_| ApiError::Malformed("the address is not UTF-8".into()))?;
        let mut values = params.iter().map(|(_, value)| value.to_owned());
        Ok(Pair(values.next().unwrap_or_default(), values.next().unwrap_or_default()))
    }
}

impl Id {
    /// The id of a `what`.
    pub fn of(&self, what: &'static str) -> Result<Uuid, ApiError> {
        Uuid::try_parse(&self.0).map_err(|_| ApiError::NotFound(what))
    }
}
