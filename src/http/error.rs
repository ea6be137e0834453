//! The one envelope of errors: RFC 9457 `application/problem+json` with a stable `type`.
//!
//! Whatever goes wrong inside the router comes out in this form, axum's own rejections and fallbacks included. A
//! problem says what the caller can do; what went wrong inside is logged here, once, and never told.

use std::borrow::Cow;
use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, HeaderName, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderValue, Method, StatusCode, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use serde::{Deserialize, Serialize};

use crate::base::invalid::{FieldError, ValidationErrors, shorten_middle};
use crate::domain::quota::{ExceededQuota, Quota};
use crate::store::StoreError;

/// The media type of RFC 9457.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// Longest detail of a problem, in bytes: what a request holds is never sent back whole.
const DETAIL_BYTES: usize = 1_000;
/// Faults of one request that are told; the rest are counted.
const FAULTS: usize = 100;

/// An error as it is sent: RFC 9457.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(example = json!({
    "type": "urn:reveille:problem:invalid", "title": "The request is not valid", "status": 422,
    "detail": "1 fault; see errors",
    "errors": [{"pointer": "/trigger/timezone", "message": "unknown time zone `Europe/Berln`; did you mean `Europe/Berlin`?"}]
}))]
#[schema(as = Problem)]
pub struct ProblemDetails {
    /// Stable, for programs: `urn:reveille:problem:` and a word.
    #[serde(rename = "type")]
    pub kind: Cow<'static, str>,
    /// Title, equal for every problem of this type.
    pub title: Cow<'static, str>,
    /// The HTTP status, repeated.
    pub status: u16,
    /// Detail of this occurrence.
    pub detail: String,
    /// For invalid input: each fault with its place.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// For `quota_exceeded`: which quota, its limit, and how much is used.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// Limit of the quota that refuses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// Usage of the tenant without this request.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<u64>,
    /// Of `/v1/responses`: the error as clients of model vendors read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<VendorError>,
}

/// An error as clients of model vendors read it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct VendorError {
    /// The detail, and each fault with its place.
    pub message: String,
    /// `invalid_request_error`, or `server_error`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The word of the problem.
    pub code: String,
    /// The parameter that is at fault; empty where none is.
    pub param: String,
}

impl VendorError {
    fn of(problem: &ProblemDetails) -> VendorError {
        let faults = problem.errors.iter().map(|fault| format!("{}: {}", fault.pointer, fault.message));
        let is_invalid = (400..500).contains(&problem.status);
        VendorError {
            message: std::iter::once(problem.detail.clone()).chain(faults).collect::<Vec<_>>().join("; "),
            kind: if is_invalid { "invalid_request_error" } else { "server_error" }.into(),
            code: problem.kind.rsplit(':').next().unwrap_or_default().to_owned(),
            param: match problem.errors.first() {
                Some(fault) => fault.pointer.trim_start_matches('/').to_owned(),
                None => problem.detail.split('`').nth(1).unwrap_or_default().to_owned(),
            },
        }
    }
}

/// Longest problem that is read again, in bytes.
const PROBLEM_BYTES: usize = 1 << 20;

/// Beginning of the paths of the facade for clients of model vendors.
const FOR_VENDORS: &str = "/v1/responses";

/// Adds to the problems of the facade what clients of model vendors read; any other answer stays as it is.
pub async fn for_vendors(request: Request, next: Next) -> Response {
    let is_facade = request.uri().path().starts_with(FOR_VENDORS);
    let response = next.run(request).await;
    if !is_facade {
        return response;
    }
    let is_problem =
        response.headers().get(CONTENT_TYPE).is_some_and(|kind| kind.as_bytes() == PROBLEM_JSON.as_bytes());
    if !is_problem {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let body = axum::body::to_bytes(body, PROBLEM_BYTES).await.unwrap_or_default();
    let body = match serde_json::from_slice::<ProblemDetails>(&body) {
        Ok(problem) => {
            let problem = ProblemDetails { error: Some(VendorError::of(&problem)), ..problem };
            serde_json::to_vec(&problem).expect("a problem is plain text and numbers").into()
        }
        Err(_) => body,
    };
    head.headers.remove(CONTENT_LENGTH);
    if head.status != StatusCode::TOO_MANY_REQUESTS {
        // the message may be recorded, and these clients would send it again by themselves
        head.headers.insert("x-should-retry", HeaderValue::from_static("false"));
    }
    Response::from_parts(head, Body::from(body))
}

/// Why a request was not done, by what its sender can do about it.
#[derive(Debug)]
pub enum ApiError {
    /// Send a valid token.
    Unauthorized(&'static str),
    /// Use a token with this permission.
    Forbidden {
        /// The missing permission.
        permission: &'static str,
    },
    /// Use an admin token.
    AdminOnly,
    /// Read, or ask the operator to enable the tenant.
    TenantDisabled,
    /// Nothing of this kind is there for this caller.
    NotFound(&'static str),
    /// There is no such address at all.
    NoRoute {
        /// Path of the request.
        path: String,
    },
    /// The address takes other methods.
    MethodNotAllowed {
        /// Method of the request.
        method: Method,
    },
    /// The stored state stands in the way; read it and decide again.
    Conflict(String),
    /// Ask a person, then say `"confirmed": true`.
    ConfirmationRequired(String),
    /// Correct what is named.
    Invalid(ValidationErrors),
    /// Correct a name or value in the query.
    Query(ValidationErrors),
    /// Send what can be read: malformed JSON, a broken header.
    Malformed(String),
    /// Send JSON.
    UnsupportedMediaType(String),
    /// Send less.
    TooLarge {
        /// The most bytes of a body.
        limit: usize,
    },
    /// Send faster.
    BodyTimeout {
        /// The time for a body.
        limit: Duration,
    },
    /// Wait, then try again.
    TooManyRequests {
        /// The limit, in a sentence.
        detail: &'static str,
        /// Time after which the request may be repeated.
        retry_after: Duration,
    },
    /// The tenant has as much as it may have: make room, or ask for more.
    QuotaExceeded(Box<ExceededQuota>),
    /// Not now: a dependency is away, or this took too long.
    Unavailable {
        /// The part that is away, in a sentence.
        detail: &'static str,
        /// Time after which the request may be repeated.
        retry_after: Duration,
    },
    /// A fault of ours. `log` is written to the log and not told.
    Internal {
        /// The error, for the log alone.
        log: String,
    },
}

/// The fixed part of a problem: status, `type` and title.
struct ErrorKind(StatusCode, &'static str, &'static str);

impl ApiError {
    /// A single fault in the request's body.
    pub fn invalid(pointer: impl Into<String>, message: impl Into<String>) -> ApiError {
        ApiError::Invalid(ValidationErrors::one(pointer, message))
    }

    /// The error for a store's; `NotFound` means that there is no such `what`.
    pub fn of_store(error: StoreError, what: &'static str) -> ApiError {
        match error {
            StoreError::NotFound => ApiError::NotFound(what),
            StoreError::Conflict(why) => ApiError::Conflict(why),
            newer @ StoreError::UnknownFormat { .. } => ApiError::Conflict(newer.to_string()),
            StoreError::Quota(exceeded) => ApiError::QuotaExceeded(exceeded),
            StoreError::Unavailable(cause) | StoreError::TimedOut(cause) => {
                tracing::warn!(cause, "the database is away");
                ApiError::Unavailable { detail: "the database is away", retry_after: Duration::from_secs(1) }
            }
            StoreError::LeaseLost | StoreError::Corrupt(_) => ApiError::Internal { log: error.to_string() },
        }
    }

    /// Logs what is ours to know and makes what is the caller's to see.
    pub fn into_problem(self) -> ProblemDetails {
        let ErrorKind(status, kind, title) = self.kind();
        let (quota, limit, usage) = match &self {
            ApiError::QuotaExceeded(over) => (Some(over.quota), Some(over.limit), Some(over.usage)),
            _ => (None, None, None),
        };
        let (detail, errors) = self.detail_and_faults();
        ProblemDetails {
            kind: kind.into(),
            title: title.into(),
            status: status.as_u16(),
            detail,
            errors,
            quota,
            limit,
            usage,
            error: None,
        }
    }

    fn kind(&self) -> ErrorKind {
        use StatusCode as S;
        match self {
            ApiError::Unauthorized(_) => {
                ErrorKind(S::UNAUTHORIZED, "urn:reveille:problem:unauthorized", "A valid token is needed")
            }
            ApiError::Forbidden { .. } | ApiError::AdminOnly => {
                ErrorKind(S::FORBIDDEN, "urn:reveille:problem:forbidden", "The token does not permit this")
            }
            ApiError::TenantDisabled => {
                ErrorKind(S::FORBIDDEN, "urn:reveille:problem:tenant_disabled", "The tenant is disabled")
            }
            ApiError::NotFound(_) | ApiError::NoRoute { .. } => {
                ErrorKind(S::NOT_FOUND, "urn:reveille:problem:not-found", "Nothing is here")
            }
            ApiError::MethodNotAllowed { .. } => ErrorKind(
                S::METHOD_NOT_ALLOWED,
                "urn:reveille:problem:method-not-allowed",
                "This address takes other methods",
            ),
            ApiError::Conflict(_) => {
                ErrorKind(S::CONFLICT, "urn:reveille:problem:conflict", "The present state stands in the way")
            }
            ApiError::ConfirmationRequired(_) => {
                ErrorKind(S::CONFLICT, "urn:reveille:problem:confirmation_required", "A person has to confirm this")
            }
            ApiError::Invalid(_) => {
                ErrorKind(S::UNPROCESSABLE_ENTITY, "urn:reveille:problem:invalid", "The request is not valid")
            }
            ApiError::Query(_) => {
                ErrorKind(S::BAD_REQUEST, "urn:reveille:problem:invalid-query", "The query is not valid")
            }
            ApiError::Malformed(_) => {
                ErrorKind(S::BAD_REQUEST, "urn:reveille:problem:malformed", "The request can not be read")
            }
            ApiError::UnsupportedMediaType(_) => ErrorKind(
                S::UNSUPPORTED_MEDIA_TYPE,
                "urn:reveille:problem:unsupported-media-type",
                "The body must be JSON",
            ),
            ApiError::TooLarge { .. } => {
                ErrorKind(S::PAYLOAD_TOO_LARGE, "urn:reveille:problem:too-large", "The request is too large")
            }
            ApiError::BodyTimeout { .. } => {
                ErrorKind(S::REQUEST_TIMEOUT, "urn:reveille:problem:request-timeout", "The request came too slowly")
            }
            ApiError::TooManyRequests { .. } => {
                ErrorKind(S::TOO_MANY_REQUESTS, "urn:reveille:problem:too-many-requests", "Too many requests")
            }
            ApiError::QuotaExceeded(_) => ErrorKind(
                S::TOO_MANY_REQUESTS,
                "urn:reveille:problem:quota_exceeded",
                "The tenant has as much as it may have",
            ),
            ApiError::Unavailable { .. } => {
                ErrorKind(S::SERVICE_UNAVAILABLE, "urn:reveille:problem:unavailable", "The service can't do this now")
            }
            ApiError::Internal { .. } => {
                ErrorKind(S::INTERNAL_SERVER_ERROR, "urn:reveille:problem:internal", "The service failed")
            }
        }
    }

    fn detail_and_faults(self) -> (String, Vec<FieldError>) {
        let counted = |mut faults: ValidationErrors| {
            let count = faults.0.len();
            faults.0.truncate(FAULTS);
            match count {
                1 => ("1 fault; see errors".to_owned(), faults.0),
                n if n > FAULTS => (format!("{n} faults; the first {FAULTS} are in errors"), faults.0),
                n => (format!("{n} faults; see errors"), faults.0),
            }
        };
        let detail = match self {
            ApiError::Invalid(faults) | ApiError::Query(faults) => return counted(faults),
            ApiError::Unauthorized(detail) => detail.to_owned(),
            ApiError::Forbidden { permission } => format!("this needs a token with `{permission}`"),
            ApiError::AdminOnly => "this needs an admin token: it concerns every tenant".to_owned(),
            ApiError::TenantDisabled => {
                "the operator has disabled this tenant: its tokens may read, and change nothing".to_owned()
            }
            ApiError::NotFound(what) => format!("there is no such {what}"),
            ApiError::NoRoute { path } => format!("there is no address {path}; see /openapi.json"),
            ApiError::MethodNotAllowed { method } => format!("{method} is not allowed here; see the Allow header"),
            ApiError::Conflict(detail) | ApiError::ConfirmationRequired(detail) => detail,
            ApiError::Malformed(detail) | ApiError::UnsupportedMediaType(detail) => detail,
            ApiError::TooLarge { limit } => format!("at most {limit} bytes are taken here"),
            ApiError::BodyTimeout { limit } => format!("the body must arrive within {} seconds", limit.as_secs()),
            ApiError::TooManyRequests { detail, .. } | ApiError::Unavailable { detail, .. } => detail.to_owned(),
            ApiError::QuotaExceeded(over) => over.to_string(),
            ApiError::Internal { log } => {
                tracing::error!(cause = log, "request failed");
                "the fault is ours, and it is in the log".to_owned()
            }
        };
        (shorten_middle(detail, DETAIL_BYTES), Vec::new())
    }

    fn headers(&self) -> Option<(HeaderName, HeaderValue)> {
        match self {
            ApiError::Unauthorized(_) => {
                Some((WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"reveille\", error=\"invalid_token\"")))
            }
            ApiError::TooManyRequests { retry_after, .. } | ApiError::Unavailable { retry_after, .. } => {
                Some((RETRY_AFTER, retry_after.as_secs().max(1).into()))
            }
            ApiError::QuotaExceeded(over) => Some((RETRY_AFTER, over.retry_after.as_secs().max(1).into())),
            _ => None,
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let extra = self.headers();
        let mut response = self.into_problem().into_response();
        response.headers_mut().extend(extra.map(|(name, value)| (Some(name), value)));
        response
    }
}

impl IntoResponse for ProblemDetails {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let body = serde_json::to_vec(&self).expect("a problem is plain text and numbers");
        let headers = [(CONTENT_TYPE, PROBLEM_JSON), (CACHE_CONTROL, "no-store")];
        (status, headers, Body::from(body)).into_response()
    }
}

impl From<StoreError> for ApiError {
    fn from(error: StoreError) -> ApiError {
        ApiError::of_store(error, "thing")
    }
}

impl From<ValidationErrors> for ApiError {
    fn from(faults: ValidationErrors) -> ApiError {
        ApiError::Invalid(faults)
    }
}

/// For addresses that no route has.
pub async fn no_route(uri: Uri) -> ApiError {
    ApiError::NoRoute { path: uri.path().to_owned() }
}

/// For methods that an address does not take.
pub async fn method_not_allowed(method: Method) -> ApiError {
    ApiError::MethodNotAllowed { method }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_told_with_their_places() {
        let problem = ApiError::invalid("/name", "must not be empty").into_problem();
        assert_eq!(
            serde_json::to_value(problem).unwrap(),
            serde_json::json!({
                "type": "urn:reveille:problem:invalid", "title": "The request is not valid", "status": 422,
                "detail": "1 fault; see errors", "errors": [{"pointer": "/name", "message": "must not be empty"}]
            })
        );
    }

    #[test]
    fn internal_error_is_not_told() {
        let problem = ApiError::Internal { log: "password=hunter2".into() }.into_problem();
        assert!(!serde_json::to_string(&problem).unwrap().contains("hunter2"));
    }

    #[test]
    fn problem_is_bounded_whatever_the_request_holds() {
        let long = "x".repeat(1_000_000);
        let mut faults = ValidationErrors::new();
        (0..1_000).for_each(|n| faults.add(format!("/{n}/{long}"), format!("unknown `{long}`")));
        for error in [
            ApiError::Malformed(long.clone()),
            ApiError::NoRoute { path: long.clone() },
            ApiError::Conflict(long.clone()),
            ApiError::UnsupportedMediaType(long.clone()),
            ApiError::Query(faults.clone()),
            ApiError::Invalid(faults),
        ] {
            let bytes = serde_json::to_vec(&error.into_problem()).unwrap().len();
            assert!(bytes < 200_000, "{bytes}");
        }
    }

    #[test]
    fn overload_says_when_to_come_again() {
        let error = ApiError::Unavailable { detail: "busy", retry_after: Duration::from_millis(200) };
        let response = error.into_response();
        assert_eq!(response.status(), 503);
        assert_eq!(response.headers()[RETRY_AFTER], "1");
        assert_eq!(response.headers()[CONTENT_TYPE], PROBLEM_JSON);
    }

    #[test]
    fn faults_are_told_up_to_a_number_and_counted_beyond_it() {
        let told = |count: usize| {
            let mut faults = ValidationErrors::new();
            (0..count).for_each(|n| faults.add(format!("/{n}"), "is unknown"));
            let problem = ApiError::Invalid(faults).into_problem();
            (problem.errors.len(), problem.detail)
        };
        assert_eq!(told(FAULTS), (FAULTS, "100 faults; see errors".into()));
        assert_eq!(told(FAULTS + 1), (FAULTS, "101 faults; the first 100 are in errors".into()));
        let detail = |bytes: usize| ApiError::Conflict("x".repeat(bytes)).into_problem().detail;
        assert_eq!(detail(DETAIL_BYTES), "x".repeat(DETAIL_BYTES));
        assert!(detail(DETAIL_BYTES + 1).contains('…') && detail(DETAIL_BYTES + 1).len() <= DETAIL_BYTES);
    }
}
