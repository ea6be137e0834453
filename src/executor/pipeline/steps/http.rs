//! `http`: one request to an address outside, with a credential where one is named.
//!
//! Every request carries an `Idempotency-Key` of its run, step and item. GET, HEAD, PUT, DELETE and OPTIONS are
//! idempotent (RFC 9110, section 9.2.2) and repeated when nobody knows how they went; POST and PATCH are repeated only
//! where nothing was sent, or where the other side says that it did nothing (429, and 503 with Retry-After).

use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::base::compute::{steps_to_parse, steps_to_write};
use crate::base::template::{Template, Tree, UrlTemplate};
use crate::domain::credential::{Reference, settable_header};
use crate::domain::run::RunFault;
use crate::executor::pipeline::kind::{Effect, StepAction, StepError, StepFault, StepKind, StepResult};
use crate::executor::pipeline::reading::{StepReader, given};
use crate::executor::pipeline::schema::HttpStep;
use crate::executor::pipeline::scope::StepScope;
use crate::ports::egress::{EgressError, EgressRequest, Response, retry_after};
use crate::ports::vault::credentials::{CredentialAnswer, FetchError, Use};

const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"];
/// Headers that may be set.
const HEADERS: usize = 30;
/// As much of an error's body as the fault shows, in characters.
const EXCERPT: usize = 300;

#[derive(Clone)]
struct Http {
    method: Method,
    url: UrlTemplate,
    headers: Vec<(HeaderName, Template)>,
    query: Vec<(String, Template)>,
    body: Option<Tree>,
    /// Answers from 400 on that are no failure.
    accept_status: Vec<u16>,
    credential: Option<Reference>,
}

/// A request, everything put in.
struct ResolvedRequest {
    url: String,
    headers: HeaderMap,
    body: Option<Value>,
}

/// Reads a step of this kind.
pub fn read(value: &Value, reading: &mut StepReader) -> Option<Box<dyn StepKind>> {
    let fields = reading.object::<HttpStep>(value)?;
    let method = reading.word(fields, "method", &METHODS).unwrap_or_else(|| "GET".into());
    let method = Method::from_bytes(method.as_bytes()).ok()?;
    let url = url(fields, reading);
    let headers = headers(fields, reading);
    let query = query(fields, reading);
    let body = reading.tree(fields, "body");
    if given(fields, "body").is_some() && matches!(method, Method::GET | Method::HEAD) {
        reading.below("body").fault(format!("a {method} request has no body"));
    }
    let accept_status = match given(fields, "accept_status") {
        None => vec![],
        Some(list) => {
            let place = format!("{}/accept_status", reading.pointer);
            reading.faults.read::<Vec<u16>>(list, &place).unwrap_or_default()
        }
    };
    let credential = credential(fields, reading);
    Some(Box::new(Http { method, url: url?, headers: headers?, query: query?, body, accept_status, credential }))
}

/// Written out: nothing that a run inserts chooses whose secret is sent.
fn credential(fields: &Map<String, Value>, reading: &mut StepReader) -> Option<Reference> {
    let name = reading.text(fields, "credential")?;
    match Reference::parse(&name) {
        Ok(reference) => Some(reference),
        Err(why) => {
            reading.below("credential").fault(why);
            None
        }
    }
}

fn url(fields: &Map<String, Value>, reading: &mut StepReader) -> Option<UrlTemplate> {
    let text = reading.needed_text(fields, "url")?;
    let read = UrlTemplate::read(&text, &reading.parts.templates, reading.names());
    let why = match read {
        Ok(url) => match reading.parts.credentials.egress().check(url.origin()) {
            Ok(_) => return Some(url),
            Err(error) => error.to_string(),
        },
        Err(fault) => {
            reading.below("url").unreadable(fault.to_string());
            return None;
        }
    };
    reading.below("url").fault(why);
    None
}

fn headers(fields: &Map<String, Value>, reading: &mut StepReader) -> Option<Vec<(HeaderName, Template)>> {
    let Some(value) = given(fields, "headers") else { return Some(vec![]) };
    let mut reading = reading.below("headers");
    let Some(written) = value.as_object().filter(|written| written.len() <= HEADERS) else {
        reading.fault(format!("must be an object of at most {HEADERS} headers"));
        return None;
    };
    let mut headers = Vec::new();
    for key in written.keys() {
        match settable_header(key, |_| false) {
            Ok(name) => headers.push((name, reading.template(written, key)?)),
            Err(unsettable) => reading.below(key).fault(unsettable.message()),
        }
    }
    Some(headers)
}

fn query(fields: &Map<String, Value>, reading: &mut StepReader) -> Option<Vec<(String, Template)>> {
    let Some(value) = given(fields, "query") else { return Some(vec![]) };
    let mut reading = reading.below("query");
    let Some(written) = value.as_object() else {
        reading.fault("must be an object of names and texts");
        return None;
    };
    written.keys().map(|key| Some((key.clone(), reading.template(written, key)?))).collect()
}

impl Http {
    fn resolve(&self, scope: &StepScope) -> Result<ResolvedRequest, StepFault> {
        let mut url = self.url.url(&scope.template)?;
        if !self.query.is_empty() {
            let mut parsed: url::Url =
                url.parse().map_err(|error| StepFault::new("invalid_url", format!("the URL: {error}")))?;
            for (key, template) in &self.query {
                parsed.query_pairs_mut().append_pair(key, &template.text(&scope.template)?);
            }
            url = parsed.into();
        }
        let mut headers = HeaderMap::new();
        for (name, template) in &self.headers {
            let text = template.text(&scope.template)?;
            let fault = |_| StepFault::new("invalid_header", format!("the header `{name}` can't carry its value"));
            headers.insert(name, HeaderValue::from_str(&text).map_err(fault)?);
        }
        let body = self.body.as_ref().map(|body| body.value(&scope.template)).transpose()?;
        if let Some(body) = &body
            && !headers.contains_key(header::CONTENT_TYPE)
        {
            let kind = if body.is_string() { "text/plain; charset=utf-8" } else { "application/json" };
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        Ok(ResolvedRequest { url, headers, body })
    }

    async fn send(&self, act: &StepAction<'_>) -> Result<StepResult, StepFault> {
        let literal = self.body.as_ref().and_then(Tree::literal).map_or(0, steps_to_write);
        let (this, steps) = (self.clone(), self.steps(act.scope).saturating_add(literal));
        let resolve = move |scope: &StepScope| -> Result<(String, HeaderMap, Bytes), StepFault> {
            let ResolvedRequest { url, headers, body } = this.resolve(scope)?;
            Ok((url, headers, body.map_or_else(Bytes::new, written)))
        };
        let (url, mut headers, body) = act.compute(steps, resolve).await?;
        let key = HeaderValue::from_str(&act.key()).expect("a digest is a header's value");
        headers.insert(HeaderName::from_static("idempotency-key"), key);
        let request = EgressRequest {
            headers,
            body,
            timeout: act.time_limit,
            // what leads elsewhere may lead a change elsewhere
            follow_redirects: self.effect() == Effect::Read,
            ..EgressRequest::new(self.method.clone(), url)
        };
        let idempotent = self.effect() != Effect::Once;
        let by = format!("step:{}", act.place());
        let is_real = |id: &Uuid| !id.is_nil();
        let with = self.credential.as_ref().map(|reference| Use {
            tenant: &act.world.tenant,
            reference,
            run_id: Some(act.world.run_id).filter(is_real),
            task_id: Some(act.world.task_id).filter(is_real),
            by: &by,
        });
        let fetched = act.world.parts.credentials.fetch(request, with.as_ref(), &act.world.used_secrets).await;
        let CredentialAnswer { response, refused } = fetched.map_err(|error| unfetched(error, idempotent))?;
        match refused {
            Some(error) if !self.accept_status.contains(&response.status.as_u16()) => {
                let StepFault { fault, again, account } = StepFault::credential(&error);
                let message = format!("{}: {}", fault.message, response.excerpt(EXCERPT));
                Err(StepFault { fault: RunFault { message, ..fault }, again, account })
            }
            _ => self.judge(response, idempotent, act).await,
        }
    }

    /// The result or the fault that an answer is. A long answer is read on a computing thread.
    async fn judge(&self, response: Response, idempotent: bool, act: &StepAction<'_>) -> Result<StepResult, StepFault> {
        let status = response.status.as_u16();
        let redirected = response.status.is_redirection() && self.effect() != Effect::Read;
        if (status < 400 && !redirected) || self.accept_status.contains(&status) {
            let (compute, tenant) = (&act.world.parts.compute, act.world.tenant.as_str());
            let steps = steps_to_parse(response.body.len());
            let value = compute.run_if_costly(tenant, steps, move || answer(&response)).await;
            return value
                .map(StepResult::plain)
                .map_err(|panicked| StepFault::new("computation", panicked.to_string()));
        }
        let wished = retry_after(&response.headers, act.world.clock.now());
        let code = format!("http_{status}");
        let message = match redirected {
            true => format!("answered {}; redirects of this method are not followed", response.status),
            false => format!("answered {}: {}", response.status, response.excerpt(EXCERPT)),
        };
        Err(match passes(response.status, idempotent, wished) {
            true => StepFault::passing(code, message, wished),
            false => StepFault::new(code, message),
        })
    }
}

impl StepKind for Http {
    fn effect(&self) -> Effect {
        match self.method {
            Method::GET | Method::HEAD | Method::OPTIONS => Effect::Read,
            Method::PUT | Method::DELETE => Effect::Repeatable,
            _ => Effect::Once,
        }
    }

    fn steps(&self, scope: &StepScope) -> u64 {
        let texts = self.headers.iter().map(|(_, text)| text).chain(self.query.iter().map(|(_, text)| text));
        let texts: u64 = texts.map(|text| text.steps(&scope.template)).sum();
        let body = self.body.as_ref().map_or(0, |body| body.steps(&scope.template));
        texts + body + self.url.steps(&scope.template)
    }

    fn shown(&self, scope: &StepScope) -> Result<Value, StepFault> {
        let ResolvedRequest { url, headers, body } = self.resolve(scope)?;
        let headers: Map<String, Value> = headers
            .iter()
            .map(|(name, value)| (name.to_string(), json!(String::from_utf8_lossy(value.as_bytes()))))
            .collect();
        let mut shown = json!({ "method": self.method.as_str(), "url": url, "headers": headers, "body": body });
        if let Some(credential) = &self.credential {
            shown["credential"] = json!(credential.to_string());
        }
        Ok(shown)
    }

    fn perform<'a>(&'a self, act: &'a StepAction<'a>) -> BoxFuture<'a, Result<StepResult, StepError>> {
        Box::pin(async move { Ok(self.send(act).await?) })
    }
}

/// A body as it is sent.
fn written(body: Value) -> Bytes {
    match body {
        Value::String(text) => Bytes::from(text),
        value => Bytes::from(value.to_string()),
    }
}

/// `{status, headers, body}`.
fn answer(response: &Response) -> Value {
    // cookies are secrets of a conversation that nobody goes on with
    let shown = response.headers.iter().filter(|(name, _)| *name != header::SET_COOKIE);
    let headers: Map<String, Value> =
        shown.map(|(name, value)| (name.to_string(), json!(String::from_utf8_lossy(value.as_bytes())))).collect();
    json!({ "status": response.status.as_u16(), "headers": headers, "body": response.body_value() })
}

/// Whether the same request may do later, and may be made again.
fn passes(status: StatusCode, idempotent: bool, wished: Option<Duration>) -> bool {
    match status.as_u16() {
        429 => true,
        503 => idempotent || wished.is_some(),
        408 | 425 | 500..=599 => idempotent,
        _ => false,
    }
}

fn unfetched(error: FetchError, idempotent: bool) -> StepFault {
    match error {
        FetchError::Egress(error) => unreachable(error, idempotent),
        FetchError::Credential(error) => StepFault::credential(&error),
    }
}

fn unreachable(error: EgressError, idempotent: bool) -> StepFault {
    let (code, message) = (error.code(), error.to_string());
    match error {
        EgressError::Denied { .. }
        | EgressError::Invalid { .. }
        | EgressError::TooLarge { .. }
        | EgressError::TooManyRedirects => StepFault::new(code, message),
        EgressError::Connect { .. } => StepFault::passing(code, message, None),
        EgressError::Timeout { .. } | EgressError::Broken { .. } if idempotent => {
            StepFault::passing(code, message, None)
        }
        EgressError::Timeout { .. } | EgressError::Broken { .. } => {
            StepFault::unknown(format!("{message}; whether the request had its effect is unknown, it is not repeated"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_is_repeated_by_its_method_and_by_the_answer() {
        let asked = Some(Duration::from_secs(3));
        let statuses = |idempotent, wished| -> Vec<u16> {
            (400..600).filter(|code| passes(StatusCode::from_u16(*code).unwrap(), idempotent, wished)).collect()
        };
        assert_eq!(statuses(false, None), [429]);
        assert_eq!(statuses(false, asked), [429, 503]);
        let expected: Vec<u16> = [408, 425, 429].into_iter().chain(500..600).collect();
        assert_eq!(statuses(true, None), expected);
    }

    #[test]
    fn unanswered_request_is_repeated_only_where_harmless() {
        let after = Duration::from_secs(1);
        let fault = |idempotent| {
            [
                EgressError::Connect { why: "refused".into() },
                EgressError::Timeout { after },
                EgressError::Broken { why: "reset".into() },
            ]
            .map(|error| unreachable(error, idempotent).fault.code)
        };
        assert_eq!(fault(true), ["connect", "timeout", "broken_off"]);
        assert_eq!(fault(false), ["connect", "outcome_unknown", "outcome_unknown"]);
    }
}
