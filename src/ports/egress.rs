//! The only way out over HTTP: one client for addresses that users or models name, one for the operator's own.
//!
//! [`Egress`] reaches public addresses and what `[egress] allow` opens, nothing else: not by another spelling, not by a
//! name that resolves there, not by a redirect, not by a name that changes its mind between check and connection. It
//! never reads proxies from the environment, never follows a redirect unchecked, and never carries credentials to
//! another origin. It keeps nothing; a crash loses nothing.

mod address;
mod fetch;
mod opening;
mod resolve;
mod rules;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chrono::{DateTime, Utc};
use http::{HeaderMap, Method, StatusCode, header};
use rustls_platform_verifier::BuilderVerifierExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use url::Url;

use crate::base::invalid::ValidationErrors;
use crate::base::secret::Secret;
pub use crate::ports::egress::fetch::redirected;
pub use crate::ports::egress::opening::OpenResponse;
pub use crate::ports::egress::resolve::Resolver;
use crate::ports::egress::rules::EgressRules;

/// Longest wait for a connection, TLS included.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection of HTTP/2 with requests under way is asked so often whether the other side is there, and given up after
/// so long without an answer.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// Longest time for a request and its redirects, unless the caller says otherwise.
pub const TOTAL_TIMEOUT: Duration = Duration::from_secs(30);
/// Largest response body, counted after decompression, unless the caller says otherwise.
pub const BODY_LIMIT: usize = 1024 * 1024;
/// How many redirects are followed, each checked like the first address.
pub const REDIRECT_LIMIT: usize = 3;
/// How the service names itself.
const USER_AGENT: &str = concat!("reveille/", env!("CARGO_PKG_VERSION"));

/// `[egress]`: which networks tools, polls and webhooks may reach.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Networks and hosts that are opened although they are not public: `"10.1.0.0/16"`, `"192.168.1.10"`,
    /// `"hooks.internal"`, `"*.internal"`; with `:9000` that port, with `:*` every port, else those of `ports`.
    pub allow: Vec<String>,
    /// Schemes that may be used: `http`, `https`.
    pub schemes: Vec<String>,
    /// Ports that may be used where no entry of `allow` names another.
    pub ports: Vec<u16>,
    /// `http://user:password@proxy:3128`; absent: straight. Proxies from the environment are never used. A proxy
    /// resolves names itself, so with one the last word on where a name leads is the proxy's.
    pub proxy: Option<Secret>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            allow: vec![],
            schemes: vec!["http".into(), "https".into()],
            ports: vec![80, 443, 8080, 8443],
            proxy: None,
        }
    }
}

/// One request to an address that a user or a model named.
#[derive(Debug, Clone)]
pub struct EgressRequest {
    /// Method of the request.
    pub method: Method,
    /// Address of the request.
    pub url: String,
    /// `Host`, lengths and hop-by-hop headers are refused; credentials are dropped at another origin.
    pub headers: HeaderMap,
    /// Body of the request.
    pub body: Bytes,
    /// For everything: names, connections, redirects, body.
    pub timeout: Duration,
    /// Largest response body in bytes, counted after decompression.
    pub max_bytes: usize,
    /// Follow up to [`REDIRECT_LIMIT`]; else a redirect is the response.
    pub follow_redirects: bool,
}

impl EgressRequest {
    /// With the usual limits, no headers, no body; redirects are followed.
    pub fn new(method: Method, url: impl Into<String>) -> EgressRequest {
        EgressRequest {
            method,
            url: url.into(),
            headers: HeaderMap::new(),
            body: Bytes::new(),
            timeout: TOTAL_TIMEOUT,
            max_bytes: BODY_LIMIT,
            follow_redirects: true,
        }
    }
}

/// The answer, whatever its status.
#[derive(Debug, Clone)]
pub struct Response {
    /// Status of the answer.
    pub status: StatusCode,
    /// Headers of the answer.
    pub headers: HeaderMap,
    /// Decompressed.
    pub body: Bytes,
    /// Where it came from in the end, without credentials.
    pub url: Url,
}

impl Response {
    /// The body as a value: JSON as JSON, text as text; of anything else only how long it is.
    pub fn body_value(&self) -> Value {
        let kind = self.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let is_json = kind.split(';').next().is_some_and(|kind| kind.trim().to_ascii_lowercase().ends_with("json"));
        if is_json && let Ok(value) = serde_json::from_slice(&self.body) {
            return value;
        }
        match std::str::from_utf8(&self.body) {
            Ok(text) => json!(text),
            Err(_) => json!(format!("[{} bytes that are no text]", self.body.len())),
        }
    }

    /// The beginning of the body as text, of so many characters at most.
    pub fn excerpt(&self, characters: usize) -> String {
        String::from_utf8_lossy(&self.body).trim().chars().take(characters).collect()
    }
}

/// Why there is no response.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EgressError {
    /// The address may not be reached. Trying again is useless.
    #[error("the address is not allowed: {why}")]
    Denied {
        /// The rule that denies it, in a sentence.
        why: String,
    },
    /// The request makes no sense as it stands. Trying again is useless.
    #[error("invalid request: {why}")]
    Invalid {
        /// The reason, in a sentence.
        why: String,
    },
    /// The request as a whole took longer than `after`.
    #[error("no complete answer within {} s", after.as_secs_f64())]
    Timeout {
        /// The time after which it was given up.
        after: Duration,
    },
    /// The answer has more than `limit` bytes after decompression. `status` had come before it.
    #[error("the answer (status {status}) is larger than {limit} bytes")]
    TooLarge {
        /// Status of the answer.
        status: StatusCode,
        /// The most bytes that are read.
        limit: usize,
    },
    /// No connection: the name is unknown, nothing listens, TLS failed. Nothing was sent.
    #[error("can't connect: {why}")]
    Connect {
        /// The reason, in a sentence.
        why: String,
    },
    /// The connection broke after the request may have been sent.
    #[error("the exchange broke off: {why}")]
    Broken {
        /// The reason, in a sentence.
        why: String,
    },
    /// More than [`REDIRECT_LIMIT`] redirects.
    #[error("redirected more than {REDIRECT_LIMIT} times")]
    TooManyRedirects,
}

impl EgressError {
    /// The code of the error in results of tools and faults of steps.
    pub fn code(&self) -> &'static str {
        match self {
            EgressError::Denied { .. } => "address_denied",
            EgressError::Invalid { .. } => "invalid_request",
            EgressError::Timeout { .. } => "timeout",
            EgressError::TooLarge { .. } => "too_large",
            EgressError::Connect { .. } => "connect",
            EgressError::Broken { .. } => "broken_off",
            EgressError::TooManyRedirects => "too_many_redirects",
        }
    }
}

/// The client for addresses that users and models name. Cheap to clone.
#[derive(Clone)]
pub struct Egress {
    inner: Arc<EgressInner>,
}

struct EgressInner {
    rules: EgressRules,
    proxy: Option<fetch::Proxy>,
    tls: rustls::ClientConfig,
    resolver: Box<dyn Resolver>,
}

impl Egress {
    /// Reads the rules; every fault in the settings is named, with pointers below `/egress`.
    pub fn new(settings: &Settings) -> Result<Egress, ValidationErrors> {
        Egress::with_resolver(settings, resolve::SystemResolver)
    }

    /// Reads the rules as [`Egress::new`] does; names are looked up by `resolver`.
    pub fn with_resolver(settings: &Settings, resolver: impl Resolver + 'static) -> Result<Egress, ValidationErrors> {
        let rules = EgressRules::read(settings)?;
        let proxy = settings.proxy.as_ref().map(fetch::Proxy::read).transpose()?;
        Ok(Egress { inner: Arc::new(EgressInner { rules, proxy, tls: tls(), resolver: Box::new(resolver) }) })
    }

    /// Whether this address could be requested, as far as that can be said without looking its name up: form, scheme,
    /// port, and the address itself where it is a literal. For checking what a person configures; [`Egress::fetch`]
    /// checks again.
    pub fn check(&self, url: &str) -> Result<Url, EgressError> {
        self.inner.rules.target(url).map(|target| target.url)
    }

    /// Whether the operator has opened this very host or address in `allow`. For a name that an entry for a network
    /// would hold it is not known before it is looked up, and so false.
    pub fn is_allowed(&self, url: &Url) -> bool {
        self.inner.rules.is_allowed(url)
    }

    /// Sends the request to an address that has been checked, and reads the whole answer.
    pub async fn fetch(&self, request: EgressRequest) -> Result<Response, EgressError> {
        let after = request.timeout;
        tokio::time::timeout(after, self.inner.fetch_with_redirects(request))
            .await
            .unwrap_or(Err(EgressError::Timeout { after }))
    }
}

/// Longest wait that is read from another side: whoever says more means "never", and no arithmetic of time is to mind.
const LONGEST_WAIT: Duration = Duration::from_secs(30 * 24 * 3600);

/// Retry-After in seconds, of which some servers send fractions, or as a date (RFC 9110, section 10.2.3); nonsense is
/// nothing.
pub fn retry_after(headers: &HeaderMap, now: DateTime<Utc>) -> Option<Duration> {
    let value = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    match value.parse::<f64>() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => DateTime::parse_from_rfc2822(value).ok()?.to_utc().signed_duration_since(now).to_std().ok(),
    }
    .map(|wait| wait.min(LONGEST_WAIT))
}

/// A client for addresses from the operator's configuration (models, identity providers), which may be private. It
/// takes no proxy from the environment and follows no redirect. `timeout` bounds a whole request, its body included.
pub fn operator_client(timeout: Duration) -> reqwest::Client {
    OperatorClients::new(timeout).client()
}

/// Clients of the kind of [`operator_client`], with connections of their own and root certificates that are read once.
pub struct OperatorClients {
    tls: rustls::ClientConfig,
    timeout: Duration,
}

impl OperatorClients {
    /// `timeout` bounds a whole request, its body included.
    pub fn new(timeout: Duration) -> OperatorClients {
        OperatorClients { tls: tls(), timeout }
    }

    /// One more.
    #[allow(clippy::disallowed_methods)] // the owner
    pub fn client(&self) -> reqwest::Client {
        reqwest::Client::builder()
            .user_agent(USER_AGENT)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(CONNECT_TIMEOUT)
            .timeout(self.timeout)
            .http2_keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .http2_keep_alive_timeout(KEEP_ALIVE_TIMEOUT)
            .tls_backend_preconfigured(self.tls.clone())
            .build()
            .expect("nothing in this client comes from outside")
    }
}

/// TLS with the platform's root certificates. Where there are none, every https address fails its check, and plain
/// http (a model on this machine) still works.
fn tls() -> rustls::ClientConfig {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = || {
        rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .expect("the provider has the default protocol versions")
    };
    let mut config = match builder().with_platform_verifier() {
        Ok(verified) => verified.with_no_client_auth(),
        Err(error) => {
            tracing::warn!(%error, "no root certificates found, https addresses can't be reached; install ca-certificates");
            builder().with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    config
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn retry_after_is_read_as_seconds_or_as_a_date() {
        let now: DateTime<Utc> = "2026-12-24T07:00:00Z".parse().unwrap();
        let read = |value: &str| {
            let headers = HeaderMap::from_iter([(header::RETRY_AFTER, HeaderValue::from_str(value).unwrap())]);
            retry_after(&headers, now).map(|wait| wait.as_secs())
        };
        assert_eq!((read("120"), read("1.5")), (Some(120), Some(1)));
        assert_eq!(read("Thu, 24 Dec 2026 07:01:30 GMT"), Some(90));
        for nothing in ["", "-5", "soon", "inf", "Thu, 24 Dec 2026 06:59:00 GMT"] {
            assert_eq!(read(nothing), None, "{nothing}");
        }
    }
}
