//! Parts that tools over HTTP share: the way out, with a credential where one is named, and the answer.

use std::collections::BTreeMap;

use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Value, json};

use crate::base::compute::steps_to_parse;
use crate::domain::credential::{CredentialIssueKind, Reference, SECRET_HEADERS};
use crate::domain::notification::{MessageLanguage, NoticeKind, SubjectRef, credential_notice, dedupe};
use crate::ports::egress::{EgressError, EgressRequest, Response};
use crate::ports::tool::{ToolCaller, ToolContext, ToolError, ToolFailure, ToolNotice, ToolOutput};
use crate::ports::vault::credentials::{CredentialError, CredentialFault, Credentials, FetchError, Use};

/// As much of an error page as the model is shown, in characters.
const ERROR_EXCERPT: usize = 500;

/// The argument that names a credential, as a schema.
pub(super) fn credential_schema() -> Value {
    json!({
        "type": "string", "minLength": 1, "maxLength": 201,
        "description": "a credential of the user's to send it with: `service` or `service/account`, such as `google/work`. \
                        You name it and never see it; it is put into the request for you, so write no key yourself",
    })
}

/// The credential that is named, if one is.
pub(super) fn reference(named: Option<&str>) -> Result<Option<Reference>, ToolError> {
    let fault = |why| ToolError::arguments(format!("/credential: {why}"));
    named.map(Reference::parse).transpose().map_err(fault)
}

/// Refuses headers that hold secrets, before anybody is shown the call.
pub(super) fn check_headers(arguments: &Value) -> Result<(), ToolError> {
    let names = arguments.get("headers").and_then(Value::as_object).into_iter().flat_map(|headers| headers.keys());
    match names.into_iter().find(|name| SECRET_HEADERS.contains(&name.to_ascii_lowercase().as_str())) {
        Some(name) => Err(ToolError::arguments(format!(
            "/headers: `{name}` can't be set here: it holds a secret, and what is written here is kept and shown; name \
             a credential of the user's in `credential`"
        ))),
        None => Ok(()),
    }
}

/// Headers as a model names them.
pub(super) fn headers_of(named: &BTreeMap<String, String>) -> Result<HeaderMap, ToolError> {
    let mut headers = HeaderMap::new();
    for (name, value) in named {
        let fault = || ToolError::arguments(format!("/headers: `{name}` is no header with a value it can carry"));
        let value = HeaderValue::from_str(value).map_err(|_| fault())?;
        headers.insert(name.parse::<HeaderName>().map_err(|_| fault())?, value);
    }
    Ok(headers)
}

impl From<FetchError> for ToolError {
    fn from(error: FetchError) -> ToolError {
        match error {
            FetchError::Egress(error) => unreachable(error),
            FetchError::Credential(error) => ToolError::Credential(error),
        }
    }
}

/// Sends a request of a call. A credential that only its owner can mend is told to them, once.
pub(super) async fn fetch(
    credentials: &Credentials,
    request: EgressRequest,
    credential: Option<&Reference>,
    tool: &str,
    context: &ToolContext,
) -> Result<Response, ToolError> {
    let by = format!("tool:{tool}");
    let with = credential.map(|reference| Use {
        tenant: &context.tenant,
        reference,
        run_id: (context.called_by != ToolCaller::Poll).then_some(context.run_id).filter(|id| !id.is_nil()),
        task_id: context.task_id,
        by: &by,
    });
    match credentials.fetch(request, with.as_ref(), &context.used_secrets).await {
        Ok(answer) => answer.check_accepted().map_err(ToolError::Credential),
        Err(FetchError::Egress(error)) => Err(unreachable(error)),
        Err(FetchError::Credential(error)) => {
            if error.kind == CredentialFault::Missing && context.called_by == ToolCaller::Model {
                notify_owner(&error, context).await;
            }
            Err(ToolError::Credential(error))
        }
    }
}

/// The state of a credential of the tenant, as a text that changes with it; empty: none is named. `None`: it can't be
/// used, or nobody knows now.
pub(super) async fn credential_state(
    credentials: &Credentials,
    credential: Option<&Reference>,
    context: &ToolContext,
) -> Option<String> {
    match credential {
        Some(credential) => credentials.state(&context.tenant, credential).await,
        None => Some(String::new()),
    }
}

/// Tells the owner of a credential that it is missing, once.
pub(super) async fn notify_owner(error: &CredentialError, context: &ToolContext) {
    // the notifier words it anew from its data, in the language of the reader
    let english = MessageLanguage::English;
    let (subject, text) =
        credential_notice::issue_notice(english, &error.reference, CredentialIssueKind::Missing, None);
    let notice = ToolNotice {
        run_id: context.run_id,
        channel: None,
        urgency: None,
        subject,
        text,
        subject_ref: Some(SubjectRef::Credential {
            credential: error.reference.clone(),
            issue: CredentialIssueKind::Missing,
            task_id: None,
            credential_id: None,
        }),
        dedupe_key: dedupe::notice(NoticeKind::Credential, &error.reference, error.last_used),
    };
    if let Err(error) = context.host.notify(&context.tenant, notice).await {
        tracing::debug!(%error, "the owner of a missing credential could not be told");
    }
}

/// The answer for the model. A long one is read on a computing thread, in its tenant's turn.
pub(super) async fn answer(response: Response, context: &ToolContext) -> Result<ToolOutput, ToolError> {
    let steps = steps_to_parse(response.body.len());
    context.compute.run_if_costly(context.tenant.as_str(), steps, move || read_answer(&response)).await?
}

fn read_answer(response: &Response) -> Result<ToolOutput, ToolError> {
    if let Some(kind) = failure(response.status) {
        let code = format!("http_{}", response.status.as_u16());
        let message = format!("{} answered {}: {}", response.url, response.status, response.excerpt(ERROR_EXCERPT));
        return Err(ToolError::for_model(kind, code, message));
    }
    let kind = response.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    Ok(ToolOutput::json(json!({
        "status": response.status.as_u16(),
        "url": response.url.as_str(),
        "content_type": kind,
        "body": response.body_value(),
    })))
}

/// The failure that a status means to the model; `None`: it got what it asked for.
fn failure(status: StatusCode) -> Option<ToolFailure> {
    match status.as_u16() {
        401 | 403 | 407 => Some(ToolFailure::PermissionDenied),
        404 | 410 => Some(ToolFailure::NotFound),
        408 | 504 => Some(ToolFailure::Timeout),
        429 => Some(ToolFailure::RateLimit),
        400..=499 => Some(ToolFailure::ExecutionError),
        500..=599 => Some(ToolFailure::TransientError),
        _ => None,
    }
}

/// The error of a request that had no answer.
pub(super) fn unreachable(error: EgressError) -> ToolError {
    let kind = match error {
        EgressError::Denied { .. } => ToolFailure::PermissionDenied,
        EgressError::Invalid { .. } => ToolFailure::InvalidParameters,
        EgressError::Timeout { .. } => ToolFailure::Timeout,
        EgressError::TooLarge { .. } | EgressError::TooManyRedirects => ToolFailure::ExecutionError,
        EgressError::Connect { .. } | EgressError::Broken { .. } => ToolFailure::TransientError,
    };
    ToolError::for_model(kind, error.code(), error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, kind: &'static str, body: &'static [u8]) -> Response {
        Response {
            status: StatusCode::from_u16(status).unwrap(),
            headers: HeaderMap::from_iter([(header::CONTENT_TYPE, HeaderValue::from_static(kind))]),
            body: bytes::Bytes::from_static(body),
            url: "https://example.org/x".parse().unwrap(),
        }
    }

    #[test]
    fn json_is_answered_as_json_and_text_as_text() {
        let read = |kind, body| -> Value { read_answer(&response(200, kind, body)).unwrap().data };
        assert_eq!(
            read("application/problem+json; charset=utf-8", br#"{"a":[1]}"#),
            json!({
                "status": 200, "url": "https://example.org/x",
                "content_type": "application/problem+json; charset=utf-8", "body": { "a": [1] },
            })
        );
        assert_eq!(read("application/json", b"{broken")["body"], "{broken");
        assert_eq!(read("text/html", b"<p>")["body"], "<p>");
        assert_eq!(read("image/png", b"\xff\xd8\xff")["body"], "[3 bytes that are no text]");
    }

    #[test]
    fn status_that_is_a_failure_is_told_as_one() {
        let message = |status| read_answer(&response(status, "text/plain", b" gone \n")).unwrap_err().to_string();
        assert_eq!(message(404), "not_found: https://example.org/x answered 404 Not Found: gone");
        assert_eq!(message(503), "transient_error: https://example.org/x answered 503 Service Unavailable: gone");
        let kinds = [400, 401, 408, 418, 429, 500, 504].map(|status| failure(StatusCode::from_u16(status).unwrap()));
        use ToolFailure::*;
        let expected = [ExecutionError, PermissionDenied, Timeout, ExecutionError, RateLimit, TransientError, Timeout];
        assert_eq!(kinds, expected.map(Some));
        assert_eq!(failure(StatusCode::NOT_MODIFIED), None);
    }
}
