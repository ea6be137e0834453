//! The service as the client commands see it: HTTP with a token, answers as JSON, refusals as a person reads them.

mod id_lookup;

use std::time::Duration;

use anyhow::Context;
use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{StreamExt, TryStreamExt};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::Deserialize;
use serde_json::Value;
use sse_stream::{Sse, SseStream};
use url::Url;

use super::failure::CliFailure;
use super::typed::{self, FieldFlags};
use crate::base::invalid::FieldError;
use crate::base::secret::Secret;
use crate::cli::profiles;
use crate::config::Environment;
use crate::ports::egress;

/// Where a service is without being told.
pub const USUAL_URL: &str = "http://127.0.0.1:7700";
/// The service gives itself 30 s for a request.
const TIMEOUT: Duration = Duration::from_secs(40);
/// A stream lasts as long as its run may.
const STREAM_TIMEOUT: Duration = Duration::from_secs(86_400);
/// The part of a service's message about instants that concerns only people who write addresses themselves.
const IN_ADDRESSES: &str = " (a `+` is written %2B)";
/// The text in its place: each such instant may be typed as a length, too.
const AS_LENGTHS: &str = ", or how long ago, such as 2h";
/// Items asked for at once when a list is read to its end.
const PAGE: usize = 200;

/// Longest answer to a message that goes through as it is, in bytes.
const ANSWER_BYTES: usize = 16 * 1_024 * 1_024;

/// Where the service of a command is.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Service")]
pub struct ServicePlace {
    /// Address of the service [default: REVEILLE_URL, else that of the profile, else http://127.0.0.1:7700]
    #[arg(long, value_name = "URL")]
    url: Option<String>,
    /// Profile that `reveille login` has kept [default: REVEILLE_PROFILE, else `default` where REVEILLE_TOKEN is not
    /// set]
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
}

/// Arguments of every client command that prints an answer.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Service")]
pub struct ServiceArgs {
    #[command(flatten)]
    place: ServicePlace,
    /// Print the service's answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// A service that can be asked.
pub struct Client {
    base: Url,
    token: Option<Secret>,
    http: reqwest::Client,
    /// Names of the sent fields in refusals.
    typed: FieldFlags,
}

/// An answer of any status, as it came.
#[derive(Debug)]
pub struct RawAnswer {
    pub status: StatusCode,
    /// The header `Retry-After`, where there is one.
    pub retry_after: Option<String>,
    /// At most 16 MiB.
    pub body: Bytes,
}

/// The filters of a list that were given.
pub fn given_filters<const N: usize>(filters: [(&'static str, Option<String>); N]) -> Vec<(&'static str, String)> {
    filters.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

impl Client {
    /// The service of a command's arguments.
    pub fn new(args: &ServiceArgs, environment: &Environment) -> anyhow::Result<Client> {
        Client::at(&args.place, environment)
    }

    /// From the flags, the environment and the profiles; nothing is sent yet. A profile that is named wins over the
    /// environment, the usual one is for where no token is set. A token of a profile goes to the profile's address
    /// only.
    pub fn at(place: &ServicePlace, environment: &Environment) -> anyhow::Result<Client> {
        let named = place.profile.as_deref().or(environment.get("REVEILLE_PROFILE"));
        let token = environment.get("REVEILLE_TOKEN").map(Secret::new);
        let profile = match (named, &token) {
            (Some(name), _) => Some(profiles::profile(name, environment)?.ok_or_else(|| {
                CliFailure::new(format!("there is no profile `{name}`"))
                    .hint(format!("reveille login --profile {name}"))
            })?),
            (None, Some(_)) => None,
            (None, None) => profiles::profile(profiles::USUAL_PROFILE, environment)?,
        };
        let url = match named {
            Some(_) => place.url.as_deref(),
            None => place.url.as_deref().or(environment.get("REVEILLE_URL")),
        };
        match profile {
            Some(profile) if url.is_none_or(|url| url == profile.url) => Client::to(&profile.url, Some(profile.token)),
            _ => Client::to(url.unwrap_or(USUAL_URL), token),
        }
    }

    /// A client of the service at `url`.
    pub fn to(url: &str, token: Option<Secret>) -> anyhow::Result<Client> {
        let base =
            Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https") && url.has_host()).ok_or_else(
                || CliFailure::new(format!("`{url}` is not an address")).hint(format!("such as {USUAL_URL}")),
            )?;
        Ok(Client { base, token, http: egress::operator_client(STREAM_TIMEOUT), typed: &[] })
    }

    /// Whether requests go out with a token.
    pub fn has_token(&self) -> bool {
        self.token.is_some()
    }

    /// With refusals that name what was typed for the fields that they are about.
    pub fn with_flag_names(self, typed: FieldFlags) -> Client {
        Client { typed, ..self }
    }

    pub async fn get(&self, path: &[&str], query: &[(&str, String)]) -> anyhow::Result<Value> {
        self.json(self.request(Method::GET, path).query(query)).await
    }

    /// The events with which a POST is answered. Sent again with the same key, it takes no further effect.
    pub async fn post_stream(
        &self,
        path: &[&str],
        body: &Value,
        key: &str,
    ) -> anyhow::Result<BoxStream<'static, anyhow::Result<Sse>>> {
        let request = self.request(Method::POST, path).header("idempotency-key", key).json(body);
        self.events_of(request).await
    }

    /// Takes effect once, however often it arrives: each call has a key of its own.
    pub async fn post(&self, path: &[&str], body: &Value) -> anyhow::Result<Value> {
        let key = format!("{:032x}", fastrand::u128(..));
        self.json(self.request(Method::POST, path).header("idempotency-key", key).json(body)).await
    }

    /// Sent once, and without a key: arriving again, it would take effect again.
    pub async fn post_once(&self, path: &[&str], body: &Value) -> anyhow::Result<Value> {
        self.json(self.request(Method::POST, path).json(body)).await
    }

    /// Sends lines of JSON. Sent once: that it is safe to send them again is for the lines to see to.
    pub async fn post_lines(&self, path: &[&str], lines: Vec<u8>) -> anyhow::Result<Value> {
        self.json(self.request(Method::POST, path).header("content-type", "application/x-ndjson").body(lines)).await
    }

    /// Sends a message of JSON as it is, with these headers. An answer of any status is one; it is read up to 16 MiB.
    pub async fn post_message(
        &self,
        path: &[&str],
        headers: &[(&str, String)],
        message: String,
    ) -> anyhow::Result<RawAnswer> {
        let mut request = self.request(Method::POST, path).header("content-type", "application/json").body(message);
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        let mut response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        let retry_after = response.headers().get("retry-after").and_then(|value| value.to_str().ok());
        let retry_after = retry_after.map(str::to_owned);
        let mut body = Vec::new();
        while let Some(chunk) = response.chunk().await.context("the answer broke off")? {
            if body.len() + chunk.len() > ANSWER_BYTES {
                return Err(CliFailure::new(format!("the answer is longer than {ANSWER_BYTES} bytes")).into());
            }
            body.extend_from_slice(&chunk);
        }
        Ok(RawAnswer { status, retry_after, body: body.into() })
    }

    /// A refusal as a person reads it.
    pub fn refusal_of(&self, answer: &RawAnswer) -> CliFailure {
        refusal(answer.status, &answer.body, self.token.is_some(), self.typed)
    }

    /// The result that a POST or a PATCH would have; nothing is changed.
    pub async fn dry_run(&self, method: Method, path: &[&str], body: &Value) -> anyhow::Result<Value> {
        self.json(self.request(method, path).query(&[("dry_run", "true")]).json(body)).await
    }

    pub async fn put(&self, path: &[&str], body: &Value) -> anyhow::Result<Value> {
        self.json(self.request(Method::PUT, path).json(body)).await
    }

    pub async fn put_with(&self, path: &[&str], query: &[(&str, String)], body: &Value) -> anyhow::Result<Value> {
        self.json(self.request(Method::PUT, path).query(query).json(body)).await
    }

    pub async fn patch(&self, path: &[&str], body: &Value) -> anyhow::Result<Value> {
        self.json(self.request(Method::PATCH, path).json(body)).await
    }

    pub async fn delete(&self, path: &[&str]) -> anyhow::Result<Value> {
        self.json(self.request(Method::DELETE, path)).await
    }

    pub async fn delete_with(&self, path: &[&str], query: &[(&str, String)]) -> anyhow::Result<Value> {
        self.json(self.request(Method::DELETE, path).query(query)).await
    }

    /// Up to `limit` items of a list, page by page.
    pub async fn list(&self, path: &[&str], query: &[(&str, String)], limit: usize) -> anyhow::Result<Vec<Value>> {
        let mut items = Vec::new();
        let mut cursor: Option<String> = None;
        while items.len() < limit {
            let page = self.page(path, query, limit - items.len(), cursor).await?;
            items.extend(page.items);
            cursor = page.next_cursor;
            if cursor.is_none() {
                break;
            }
        }
        Ok(items)
    }

    /// Items of a list behind `cursor`, as many as a page holds and at most `limit`.
    pub async fn page(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        limit: usize,
        cursor: Option<String>,
    ) -> anyhow::Result<FetchedPage> {
        let mut query = query.to_vec();
        query.push(("limit", limit.min(PAGE).to_string()));
        query.extend(cursor.clone().map(|cursor| ("cursor", cursor)));
        let mut page: FetchedPage = serde_json::from_value(self.get(path, &query).await?).context("read the list")?;
        // a page may be empty where nothing on it can be read; one that leads to itself leads nowhere
        page.next_cursor = page.next_cursor.filter(|next| cursor.as_ref() != Some(next));
        Ok(page)
    }

    /// The events of an SSE stream, as they come.
    pub async fn stream(&self, path: &[&str]) -> anyhow::Result<BoxStream<'static, anyhow::Result<Sse>>> {
        self.stream_after(path, &[], None).await
    }

    /// The events of an SSE stream with a query, from behind the event that was seen last.
    pub async fn stream_after(
        &self,
        path: &[&str],
        query: &[(&str, String)],
        seen: Option<&str>,
    ) -> anyhow::Result<BoxStream<'static, anyhow::Result<Sse>>> {
        let request = self.request(Method::GET, path).query(query);
        let request = match seen {
            Some(seen) => request.header("last-event-id", seen),
            None => request,
        };
        self.events_of(request).await
    }

    async fn events_of(&self, request: RequestBuilder) -> anyhow::Result<BoxStream<'static, anyhow::Result<Sse>>> {
        let request = request.header("accept", "text/event-stream").timeout(STREAM_TIMEOUT);
        let response = self.send(request).await?;
        let bytes = response.bytes_stream().map_err(std::io::Error::other);
        Ok(SseStream::from_bytes_stream(bytes).map(|event| event.context("the stream broke off")).boxed())
    }

    fn request(&self, method: Method, path: &[&str]) -> RequestBuilder {
        let mut url = self.base.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        let request = self.http.request(method, url).timeout(TIMEOUT);
        match &self.token {
            Some(token) => request.bearer_auth(token.expose()),
            None => request,
        }
    }

    async fn json(&self, request: RequestBuilder) -> anyhow::Result<Value> {
        let response = self.send(request).await?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(Value::Null);
        }
        let body = response.bytes().await.context("read the answer")?;
        serde_json::from_slice(&body).with_context(|| format!("{} did not answer in JSON", self.base))
    }

    /// The answer; one that was lost on its way is asked for once more, where a key makes that safe.
    async fn send(&self, request: RequestBuilder) -> anyhow::Result<Response> {
        let again = request.try_clone();
        let response = match (request.send().await, again) {
            (Err(error), Some(again)) if !error.is_connect() && has_key(&again) => again.send().await,
            (answered, _) => answered,
        };
        let response = response.map_err(|error| self.unreachable(&error))?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = response.bytes().await.unwrap_or_default();
        Err(refusal(status, &body, self.token.is_some(), self.typed).into())
    }

    fn unreachable(&self, error: &reqwest::Error) -> CliFailure {
        let cause = std::iter::successors(std::error::Error::source(error), |cause| cause.source()).last();
        let why = cause.map(|cause| cause.to_string()).unwrap_or_else(|| error.to_string());
        CliFailure::new(format!("can't reach {}: {}", self.base, why))
            .hint("start the service with `reveille serve`, or set REVEILLE_URL to where it is")
    }
}

fn has_key(request: &RequestBuilder) -> bool {
    let built = request.try_clone().and_then(|request| request.build().ok());
    built.is_some_and(|request| request.headers().contains_key("idempotency-key"))
}

/// One page of a list.
#[derive(Deserialize)]
pub struct FetchedPage {
    pub items: Vec<Value>,
    /// For the next page; none behind the last.
    pub next_cursor: Option<String>,
}

/// RFC 9457, as much of it as is shown.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ClientProblem {
    #[serde(rename = "type")]
    kind: String,
    title: String,
    detail: String,
    errors: Vec<FieldError>,
}

/// A problem of the service as a person reads it: each fault with what was typed, not with a pointer.
fn refusal(status: StatusCode, body: &Bytes, with_token: bool, typed: FieldFlags) -> CliFailure {
    let problem: ClientProblem = serde_json::from_slice(body).unwrap_or_default();
    let message = match (problem.detail.as_str(), problem.title.as_str()) {
        _ if !problem.errors.is_empty() => problem.title.clone(),
        ("", "") => format!("the service answered {status}"),
        ("", title) => title.to_owned(),
        (detail, _) => detail.to_owned(),
    };
    let failure = CliFailure::new(lowercase_sentence(&message)).with_status(status.as_u16());
    let mut failure = failure.with_problem(problem.kind);
    for fault in &problem.errors {
        let place = fault.pointer.trim_start_matches('/').replace('/', ".").replace("~1", "/").replace("~0", "~");
        let (named, message) = (typed::flag_name(typed, &place), fault.message.replace(IN_ADDRESSES, AS_LENGTHS));
        failure = failure.detail(if named.is_empty() { message } else { format!("{named}: {message}") });
    }
    match status {
        StatusCode::UNAUTHORIZED if with_token => {
            failure.hint("is it the right token (REVEILLE_TOKEN, or that of the profile), and not revoked?")
        }
        StatusCode::UNAUTHORIZED => {
            failure.hint("`reveille login`, or set REVEILLE_TOKEN; the first `reveille serve` makes an admin token")
        }
        StatusCode::FORBIDDEN => failure.hint("`reveille token create --scope …` makes a token that may"),
        _ => failure,
    }
}

/// Lower case at the start, no full stop at the end.
fn lowercase_sentence(message: &str) -> String {
    let mut chars = message.trim_end_matches('.').chars();
    match chars.next() {
        Some(first) => first.to_lowercase().chain(chars).collect(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_of_a_request_are_shown_with_their_places() {
        let body = Bytes::from_static(
            br#"{"type":"urn:reveille:problem:invalid","title":"The request is not valid","status":422,"detail":"2 faults; see errors",
            "errors":[{"pointer":"/trigger/timezone","message":"unknown time zone `Europe/Berln`; did you mean `Europe/Berlin`?"},
                      {"pointer":"","message":"must be an object"}]}"#,
        );
        assert_eq!(
            refusal(StatusCode::UNPROCESSABLE_ENTITY, &body, true, &[]).to_string(),
            "the request is not valid\n  trigger.timezone: unknown time zone `Europe/Berln`; did you mean `Europe/Berlin`?\n  must be an object"
        );
        let said = refusal(StatusCode::UNPROCESSABLE_ENTITY, &body, true, &typed::TASK).to_string();
        assert!(said.contains("\n  --timezone: unknown time zone"), "{said}");
    }

    #[test]
    fn refused_token_and_a_missing_one_have_different_hints() {
        let body = Bytes::from_static(br#"{"title":"A valid token is needed","detail":"there is no token"}"#);
        let shown = |with_token| refusal(StatusCode::UNAUTHORIZED, &body, with_token, &[]).to_string();
        assert_eq!(
            shown(true),
            "there is no token\nhint: is it the right token (REVEILLE_TOKEN, or that of the profile), and not revoked?"
        );
        assert_eq!(
            shown(false),
            "there is no token\nhint: `reveille login`, or set REVEILLE_TOKEN; the first `reveille serve` makes an admin token"
        );
    }

    #[test]
    fn answer_that_is_no_problem_is_told_by_its_status() {
        let shown = refusal(StatusCode::BAD_GATEWAY, &Bytes::from_static(b"<html>"), true, &[]).to_string();
        assert_eq!(shown, "the service answered 502 Bad Gateway");
    }

    #[tokio::test]
    async fn post_whose_answer_is_lost_is_sent_once_more_with_the_same_key() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};

        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = Client::to(&format!("http://{}", listener.local_addr().unwrap()), None).unwrap();
        let served = async {
            let mut keys = Vec::new();
            for answer in ["", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}"] {
                let (mut socket, _) = listener.accept().await.unwrap();
                let mut request = Vec::new();
                while !request.ends_with(b"{\"n\":1}") {
                    assert_ne!(socket.read_buf(&mut request).await.unwrap(), 0, "the request broke off");
                }
                let request = String::from_utf8(request).unwrap();
                keys.push(request.lines().find(|line| line.starts_with("idempotency-key: ")).unwrap().to_owned());
                socket.write_all(answer.as_bytes()).await.unwrap();
            }
            keys
        };
        let body = serde_json::json!({ "n": 1 });
        let (keys, answer) = tokio::join!(served, client.post(&["v1", "tasks"], &body));
        assert_eq!(answer.unwrap(), serde_json::json!({}));
        assert_eq!(keys[0], keys[1]);
    }

    #[test]
    fn path_parts_can_not_leave_their_segment() {
        let place = ServicePlace { url: Some("http://x.test/base/".into()), profile: None };
        let client = Client::at(&place, &Environment::default()).unwrap();
        let request = client.request(Method::GET, &["v1", "recipients", "a/../b?c"]).build().unwrap();
        assert_eq!(request.url().as_str(), "http://x.test/base/v1/recipients/a%2F..%2Fb%3Fc");
    }
}
