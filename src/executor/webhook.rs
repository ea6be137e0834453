//! `webhook`: a signed POST of the fire (Standard Webhooks) to the tenant's own agent runtime, which answers at once or
//! completes the run later.
//!
//! A 2xx with a body ends the run, one without a body as well, without an answer; 202 parks it until
//! `POST /v1/runs/{id}/complete` or its time limit. What may work later is tried again in the waits of deliveries (5 s,
//! 5 min, 30 min, 2 h, 5 h, 10 h), as often as the task's `retry.max_attempts` says. Every attempt of a run carries the
//! same `webhook-id`, the run's id, so that a receiver drops what it has seen; so an attempt of unknown outcome is
//! repeated. Nothing is kept here.

mod report;
pub(super) mod settings;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, SecondsFormat, Utc};
use futures::future::BoxFuture;
use http::{HeaderMap, Method, StatusCode, header};
use serde_json::{Value, json};
use url::Url;
use uuid::Uuid;

use crate::agent::wait_without_slot;
use crate::base::clock::to_delta;
use crate::base::compute::{Compute, steps_to_parse, steps_to_write};
use crate::base::id::Tenant;
use crate::base::invalid::ValidationErrors;
use crate::base::signature;
use crate::domain::notification::delivery;
use crate::domain::run::{Cause, Run, RunError, RunFault, RunOutcome, Usage};
use crate::domain::task::{Action, Task};
use crate::executor::webhook::settings::Settings;
use crate::executor::{Executor, Job};
use crate::ports::egress::{EgressError, EgressRequest, Response, retry_after};
use crate::ports::vault::Vault;
use crate::ports::vault::credentials::{CredentialFault, Credentials, FetchError, Use};

pub use crate::executor::webhook::report::{Completion, RuntimeReport};

/// Prefix of completion tokens.
pub const TOKEN_PREFIX: &str = "rv_complete_";
/// Purpose of the tags of completion tokens; the number changes when old ones are to be void.
const TOKEN_PURPOSE: &str = "complete-run-1";
/// Redirects that are followed on one host.
const REDIRECTS: usize = 3;

/// The executor.
pub struct WebhookExecutor {
    credentials: Credentials,
    vault: Vault,
    /// Where the service is reached, without a slash at the end.
    public_url: String,
    /// Threads for long requests and answers.
    compute: Compute,
}

impl WebhookExecutor {
    /// The executor. `public_url` is the address under which runtimes reach the service. Long requests are written, and
    /// long answers read, on the threads of `compute`.
    pub fn new(credentials: Credentials, vault: Vault, public_url: &str, compute: Compute) -> WebhookExecutor {
        WebhookExecutor { credentials, vault, public_url: public_url.trim_end_matches('/').to_owned(), compute }
    }

    async fn run(&self, job: Job) -> Result<RunOutcome, RunError> {
        let task = job.task.as_ref().ok_or_else(|| RunError::fail("no_task", "the task of the run is gone"))?;
        let settings = Arc::new(Settings::stored(&task.spec.action.config)?);
        let now = job.clock.now();
        let expires_at = now + to_delta(settings.completion_timeout);
        let (body, headers) = self.request(&job, task, &settings, (now, expires_at)).await?;
        let answer = wait_without_slot(&*job.slot, self.post(&job, &settings, headers, body));
        let answer = job.stop.finish_unless_stopped(answer).await?;
        let (length, attempt) = (answer.as_ref().map_or(0, |response| response.body.len()), job.run.attempt);
        let judge = move || judge(answer, expires_at, |hint| again(attempt, hint), now);
        self.compute_for(&job, steps_to_parse(length), judge).await
    }

    /// Computes for the run where it is; in the turn of its tenant, on a thread for that, where it takes long.
    async fn compute_for<T: Send + 'static>(
        &self,
        job: &Job,
        steps: u64,
        work: impl FnOnce() -> Result<T, RunError> + Send + 'static,
    ) -> Result<T, RunError> {
        let computed = self.compute.run_if_costly(&job.run.tenant_id, steps, work).await;
        computed.unwrap_or_else(|panicked| Err(RunError::fail("computation", panicked.to_string())))
    }

    /// The body of the request, and its headers with the signature.
    async fn request(
        &self,
        job: &Job,
        task: &Arc<Task>,
        settings: &Arc<Settings>,
        (now, expires_at): (DateTime<Utc>, DateTime<Utc>),
    ) -> Result<(Bytes, HeaderMap), RunError> {
        let (steps, completion) = (steps_to_post(&job.run, task), self.completion(&job.run, expires_at));
        let (run, task, settings) = (Arc::clone(&job.run), Arc::clone(task), Arc::clone(settings));
        let vault = self.vault.clone();
        let write = move || -> Result<(Bytes, HeaderMap), RunError> {
            let body = Bytes::from(body(&run, &task, completion).to_string());
            let headers = headers(&vault, &run, &settings, now, &body)?;
            Ok((body, headers))
        };
        self.compute_for(job, steps, write).await
    }

    /// How the runtime completes the run later.
    fn completion(&self, run: &Run, expires_at: DateTime<Utc>) -> Value {
        json!({
            "url": format!("{}/v1/runs/{}/complete", self.public_url, run.id),
            "token": completion_token(&self.vault, run.id),
            "expires_at": written_instant(expires_at),
        })
    }

    /// Follows 307 and 308 within the host: the body is signed, and meant for it alone.
    async fn post(
        &self,
        job: &Job,
        settings: &Settings,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<Response, FetchError> {
        let why = "the run's tenant can't be read".to_owned();
        let tenant = Tenant::stored(&job.run.tenant_id).map_err(|_| EgressError::Invalid { why })?;
        let with = settings.credential.as_ref().map(|reference| Use {
            tenant: &tenant,
            reference,
            run_id: Some(job.run.id),
            task_id: job.run.task_id,
            by: "webhook",
        });
        let mut url = settings.url.clone();
        for _ in 0..=REDIRECTS {
            let request = EgressRequest {
                headers: headers.clone(),
                body: body.clone(),
                timeout: settings.timeout,
                follow_redirects: false,
                ..EgressRequest::new(Method::POST, &url)
            };
            let response = self.credentials.fetch(request, with.as_ref(), &job.used_secrets).await?.check_accepted()?;
            match moved(&response) {
                Some(next) => url = next,
                None => return Ok(response),
            }
        }
        Err(EgressError::TooManyRedirects.into())
    }
}

fn headers(
    vault: &Vault,
    run: &Run,
    settings: &Settings,
    now: DateTime<Utc>,
    body: &[u8],
) -> Result<HeaderMap, RunError> {
    let broken = |why: String| RunError::fail("webhook_secret", format!("the webhook's secret {why}"));
    let keys = settings::unseal(vault, &run.tenant_id, &settings.sealed_secret).map_err(broken)?;
    let mut headers = settings.headers.clone();
    headers.extend(signature::headers(&keys, &run.id.to_string(), now, body).map_err(broken)?);
    Ok(headers)
}

/// The body of the request. It is equal at each attempt but for the attempt's own number and times.
fn body(run: &Run, task: &Task, completion: Value) -> Value {
    json!({
        "type": "run.started",
        "timestamp": written_instant(run.created_at),
        "data": {
            "run": {
                "id": run.id, "tenant_id": run.tenant_id, "fire_key": run.fire_key,
                "trigger_type": run.trigger_type, "scheduled_for": written_instant(run.scheduled_for),
                "attempt": run.attempt, "retry_of": run.retry_of, "event_ids": run.event_ids,
            },
            "task": { "id": task.id, "name": task.name, "metadata": task.spec.metadata },
            "instruction": task.spec.action.instruction,
            "cause": run.cause, "input": run.input, "missed": run.missed,
            "completion": completion,
        },
    })
}

fn written_instant(at: DateTime<Utc>) -> String {
    at.to_rfc3339_opts(SecondsFormat::Millis, true)
}

/// The steps that it takes at most to write the body of the request, and to sign it.
fn steps_to_post(run: &Run, task: &Task) -> u64 {
    let texts = task.spec.action.instruction.len() + run.event_ids.iter().map(String::len).sum::<usize>();
    let cause: u64 = match &run.cause {
        None => 0,
        Some(Cause::Event { event, events }) => events.iter().chain([event]).map(steps_to_write).sum(),
        Some(Cause::Condition { value, previous, .. }) => steps_to_write(value) + steps_to_write(previous),
    };
    let values: u64 = task.spec.metadata.values().chain(&run.input).map(steps_to_write).sum();
    steps_to_parse(texts) + cause + values
}

/// The token with which this one run may be completed, and nothing else be done. It is made when it is sent, and never
/// stored.
pub fn completion_token(vault: &Vault, run: Uuid) -> String {
    format!("{TOKEN_PREFIX}{}", vault.tag(TOKEN_PURPOSE, &run.to_string()))
}

/// Whether a text is this run's completion token.
pub fn is_completion_token(vault: &Vault, run: Uuid, text: &str) -> bool {
    text.strip_prefix(TOKEN_PREFIX).is_some_and(|tag| vault.is_tag(TOKEN_PURPOSE, &run.to_string(), tag))
}

/// Where a 307 or 308 leads, if that is the same host, and not from https to http.
fn moved(response: &Response) -> Option<String> {
    if !matches!(response.status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT) {
        return None;
    }
    let from = &response.url;
    let to: Url = from.join(response.headers.get(header::LOCATION)?.to_str().ok()?).ok()?;
    let same = to.host_str() == from.host_str() && to.port_or_known_default() == from.port_or_known_default();
    let upgraded = to.host_str() == from.host_str() && from.scheme() == "http" && to.scheme() == "https";
    ((same && to.scheme() == from.scheme()) || upgraded).then(|| to.into())
}

fn again(attempt: i32, hint: Option<Duration>) -> Option<Duration> {
    // the task says how often; past the table its last wait goes on
    let attempt = attempt.clamp(1, delivery::LAST_WAIT);
    delivery::retry_after(attempt, hint, fastrand::f64())
}

/// Judges an answer, or its absence, for the run.
fn judge(
    answer: Result<Response, FetchError>,
    expires_at: DateTime<Utc>,
    again: impl Fn(Option<Duration>) -> Option<Duration>,
    now: DateTime<Utc>,
) -> Result<RunOutcome, RunError> {
    let later = |code: &str, message: String, hint| {
        Err(RunError::Retry { fault: RunFault::new(code, message), after: again(hint) })
    };
    let response = match answer {
        Ok(response) => response,
        Err(FetchError::Credential(error)) => {
            return match error.kind {
                CredentialFault::Busy => later(error.code(), error.to_string(), None),
                _ => Err(RunError::Fail { fault: error.fault() }),
            };
        }
        Err(FetchError::Egress(error)) => {
            let (code, message) = (error.code(), error.to_string());
            return match error {
                EgressError::Denied { .. } | EgressError::Invalid { .. } => Err(RunError::fail(code, message)),
                // it has taken the run on, whatever else it said
                EgressError::TooLarge { status, .. } if status.as_u16() == 202 => {
                    Ok(RunOutcome::Waits { until: expires_at, usage: Usage::default() })
                }
                EgressError::TooLarge { .. } => Err(RunError::fail(code, message)),
                EgressError::TooManyRedirects => Err(RunError::fail("webhook_redirected", message)),
                EgressError::Timeout { .. } => later("webhook_timeout", message, None),
                EgressError::Connect { .. } | EgressError::Broken { .. } => later("webhook_unreachable", message, None),
            };
        }
    };
    let status = response.status;
    let code = format!("webhook_{}", status.as_u16());
    let message = format!("the webhook answered {status}");
    match status.as_u16() {
        202 => Ok(RunOutcome::Waits { until: expires_at, usage: Usage::default() }),
        200..=299 => RuntimeReport::of_answer(&response.body).outcome(),
        300..=399 => {
            let message = format!("{message}; only 307 and 308 within the same host are followed, set the new address");
            Err(RunError::fail("webhook_redirected", message))
        }
        408 | 425 | 429 | 500..=599 => later(&code, message, retry_after(&response.headers, now)),
        _ => Err(RunError::fail(code, message)),
    }
}

impl Executor for WebhookExecutor {
    fn name(&self) -> &'static str {
        "webhook"
    }

    fn config_schema(&self) -> Value {
        crate::executor::schema::of::<crate::executor::schema::WebhookConfig>()
    }

    fn validate(&self, action: &Action, faults: &mut ValidationErrors) {
        settings::check(&action.config, self.credentials.egress(), faults);
    }

    fn seal(&self, tenant: &Tenant, action: &mut Action, before: Option<&Action>) -> Result<(), ValidationErrors> {
        settings::seal(&self.vault, tenant, action, before)
    }

    fn execute(&self, job: Job) -> BoxFuture<'_, Result<RunOutcome, RunError>> {
        Box::pin(self.run(job))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(status: u16, location: Option<&str>, body: &'static [u8]) -> Response {
        let mut headers = HeaderMap::new();
        if let Some(location) = location {
            headers.insert(header::LOCATION, location.parse().unwrap());
        }
        Response {
            status: StatusCode::from_u16(status).unwrap(),
            headers,
            body: Bytes::from_static(body),
            url: "http://h.example:8080/a".parse().unwrap(),
        }
    }

    #[test]
    fn webhook_redirect_is_followed_on_the_same_host_only() {
        let to = |location| moved(&response(307, Some(location), b""));
        assert_eq!(to("/b").as_deref(), Some("http://h.example:8080/b"));
        assert_eq!(to("https://h.example/b").as_deref(), Some("https://h.example/b"));
        for other in ["http://other.example:8080/", "http://h.example:9090/", "//other.example/", "ftp://h.example/"] {
            assert_eq!(to(other), None, "{other}");
        }
        assert_eq!(moved(&response(302, Some("/b"), b"")), None);
    }

    #[test]
    fn run_that_was_taken_on_waits_however_much_was_said_with_it() {
        let (now, until) = (DateTime::UNIX_EPOCH, DateTime::UNIX_EPOCH + chrono::TimeDelta::hours(1));
        let too_large = |status: u16| {
            let status = StatusCode::from_u16(status).unwrap();
            judge(Err(EgressError::TooLarge { status, limit: 1 }.into()), until, |_| None, now)
        };
        assert_eq!(too_large(202), Ok(RunOutcome::Waits { until, usage: Usage::default() }));
        assert!(matches!(too_large(200), Err(RunError::Fail { fault }) if fault.code == "too_large"));
    }

    #[test]
    fn every_status_has_its_meaning() {
        let now = DateTime::UNIX_EPOCH;
        let meaning = |code| match judge(Ok(response(code, None, b"done")), now, |_| Some(Duration::ZERO), now) {
            Ok(RunOutcome::Waits { .. }) => "waits",
            Ok(RunOutcome::Succeeded { .. }) => "succeeded",
            Err(RunError::Retry { .. }) => "retry",
            Err(RunError::Fail { .. }) => "fail",
            other => panic!("{other:?}"),
        };
        for code in 200..600 {
            let expected = match code {
                202 => "waits",
                200..=299 => "succeeded",
                408 | 425 | 429 | 500..=599 => "retry",
                _ => "fail",
            };
            assert_eq!(meaning(code), expected, "{code}");
        }
    }
}
