//! One request on its way: look up, judge, pin, connect, and the same again for each redirect.

use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::header::{self, HeaderMap, HeaderName};
use http::{Method, StatusCode};
use url::Url;

use crate::base::invalid::ValidationErrors;
use crate::base::secret::Secret;
use crate::ports::egress::rules::{EgressTarget, TargetPlace};
use crate::ports::egress::{
    CONNECT_TIMEOUT, EgressError, EgressInner, EgressRequest, REDIRECT_LIMIT, Resolver, Response, USER_AGENT,
};

/// Headers that are ours to write, or that would change where or how the request is framed.
const OURS: [HeaderName; 9] = [
    header::HOST,
    header::CONTENT_LENGTH,
    header::TRANSFER_ENCODING,
    header::CONNECTION,
    header::UPGRADE,
    header::TE,
    header::TRAILER,
    header::PROXY_AUTHORIZATION,
    header::EXPECT,
];

/// All that another origin gets to see of a caller's headers. A list of what is harmless, because any other header
/// may hold a key.
const HARMLESS: [HeaderName; 5] =
    [header::ACCEPT, header::ACCEPT_LANGUAGE, header::USER_AGENT, header::RANGE, header::CACHE_CONTROL];

/// The operator's proxy, read.
pub struct Proxy {
    url: Url,
    host: String,
    port: u16,
}

impl Proxy {
    /// Reads the address of a proxy.
    pub fn read(setting: &Secret) -> Result<Proxy, ValidationErrors> {
        let fault = |why: &str| {
            ValidationErrors::one("/egress/proxy", format!("expected http://user:password@host:port, {why}"))
        };
        let url = Url::parse(setting.expose()).map_err(|error| fault(&error.to_string()))?;
        if url.scheme() != "http" {
            return Err(fault("with the scheme http"));
        }
        let host = url.host_str().ok_or_else(|| fault("with a host"))?.to_owned();
        let port = url.port_or_known_default().unwrap_or(80);
        Ok(Proxy { url, host, port })
    }
}

impl EgressInner {
    /// The request and its redirects.
    pub async fn fetch_with_redirects(&self, request: EgressRequest) -> Result<Response, EgressError> {
        check_headers(&request.headers)?;
        let mut target = self.rules.target(&request.url)?;
        let mut hop = Hop { method: request.method, headers: request.headers, body: request.body };
        for _ in 0..=REDIRECT_LIMIT {
            let answer = self.exchange(&hop, &target, request.max_bytes).await?;
            let Some(location) = request.follow_redirects.then(|| redirect(&answer)).flatten() else {
                return Ok(answer);
            };
            let next = self.rules.target_of(location?)?;
            hop = hop.redirected(answer.status, &target.url, &next.url)?;
            target = next;
        }
        Err(EgressError::TooManyRedirects)
    }

    /// One request and its whole answer.
    async fn exchange(&self, hop: &Hop, target: &EgressTarget, limit: usize) -> Result<Response, EgressError> {
        let mut response = self.send(hop, target).await?;
        let status = response.status();
        let headers = std::mem::take(response.headers_mut());
        let body = read(response, limit).await?;
        Ok(Response { status, headers, body, url: target.url.clone() })
    }

    /// One request, with the addresses that were judged and no others; the body of the answer is yet to be read.
    pub(super) async fn send(&self, hop: &Hop, target: &EgressTarget) -> Result<reqwest::Response, EgressError> {
        let pinned = self.addresses(target).await?;
        let client = self.client(target, &pinned).await?;
        let sent = client
            .request(hop.method.clone(), target.url.clone())
            .headers(hop.headers.clone())
            .body(hop.body.clone())
            .send()
            .await;
        let response = sent.map_err(|error| classify_error(&error))?;
        if self.proxy.is_none() {
            check_peer(response.remote_addr(), &pinned)?;
        }
        Ok(response)
    }

    /// The addresses behind a target; one that may not be reached condemns all of them.
    async fn addresses(&self, target: &EgressTarget) -> Result<Vec<SocketAddr>, EgressError> {
        let found = match &target.place {
            TargetPlace::Literal(ip) => vec![*ip],
            TargetPlace::Name(name) => {
                let found = look_up(&*self.resolver, name).await?;
                found.iter().try_for_each(|ip| self.rules.judge(Some(name), *ip, target.port))?;
                found
            }
        };
        Ok(found.into_iter().map(|ip| SocketAddr::new(ip, target.port)).collect())
    }

    /// A client that knows the judged addresses under the target's name, and no other name.
    #[allow(clippy::disallowed_methods)] // egress is the owner
    async fn client(&self, target: &EgressTarget, pinned: &[SocketAddr]) -> Result<reqwest::Client, EgressError> {
        let mut builder = reqwest::Client::builder()
            .user_agent(USER_AGENT)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .connect_timeout(CONNECT_TIMEOUT)
            .pool_max_idle_per_host(0)
            .retry(reqwest::retry::never())
            .tls_backend_preconfigured(self.tls.clone())
            .dns_resolver(Arc::new(EmptyResolver));
        if let TargetPlace::Name(name) = &target.place {
            builder = builder.resolve_to_addrs(name, pinned);
        }
        if let Some(proxy) = &self.proxy {
            let found = look_up(&*self.resolver, &proxy.host).await?;
            let there: Vec<SocketAddr> = found.into_iter().map(|ip| SocketAddr::new(ip, proxy.port)).collect();
            let through = reqwest::Proxy::all(proxy.url.clone()).map_err(|error| connect(&error))?;
            builder = builder.resolve_to_addrs(&proxy.host, &there).proxy(through);
        }
        builder.build().map_err(|error| connect(&error))
    }
}

/// The request of one hop.
pub(super) struct Hop {
    pub(super) method: Method,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

impl Hop {
    /// The request after a redirect (RFC 9110, section 15.4; 301 and 302 turn POST into GET as browsers do).
    fn redirected(mut self, status: StatusCode, from: &Url, to: &Url) -> Result<Hop, EgressError> {
        let keeps = matches!(status, StatusCode::TEMPORARY_REDIRECT | StatusCode::PERMANENT_REDIRECT);
        let turns = status == StatusCode::SEE_OTHER || self.method == Method::POST;
        if !keeps && turns && self.method != Method::HEAD {
            self.method = Method::GET;
            self.body = Bytes::new();
            self.headers.remove(header::CONTENT_TYPE);
            self.headers.remove(header::CONTENT_ENCODING);
        }
        if from.origin() != to.origin() {
            if !self.body.is_empty() {
                let why =
                    format!("the body would be carried on to another origin, {}", to.origin().ascii_serialization());
                return Err(EgressError::Denied { why });
            }
            let kept = HARMLESS.into_iter().filter_map(|name| Some((name.clone(), self.headers.get(&name)?.clone())));
            self.headers = kept.filter(|(_, value)| !value.is_sensitive()).collect();
        }
        Ok(self)
    }
}

/// The next request where an answer to `request` is a redirect; `None` where it is none. The caller checks the new
/// address again.
pub fn redirected(request: &EgressRequest, answer: &Response) -> Option<Result<EgressRequest, EgressError>> {
    let next = |to: Url| {
        let EgressRequest { method, headers, body, .. } = request.clone();
        let hop = Hop { method, headers, body }.redirected(answer.status, &answer.url, &to)?;
        Ok(EgressRequest {
            method: hop.method,
            headers: hop.headers,
            body: hop.body,
            url: to.into(),
            ..request.clone()
        })
    };
    Some(redirect(answer)?.and_then(next))
}

/// Where an answer sends us on to; `None` where it is no redirect, or names no place.
fn redirect(answer: &Response) -> Option<Result<Url, EgressError>> {
    let moved = matches!(answer.status.as_u16(), 301 | 302 | 303 | 307 | 308);
    let location = answer.headers.get(header::LOCATION).filter(|_| moved)?;
    let invalid = || EgressError::Invalid { why: "redirected to something that is not a URL".into() };
    Some(location.to_str().ok().and_then(|text| answer.url.join(text).ok()).ok_or_else(invalid))
}

/// Refuses headers that are ours to write.
pub(super) fn check_headers(headers: &HeaderMap) -> Result<(), EgressError> {
    match OURS.iter().find(|name| headers.contains_key(*name)) {
        Some(name) => Err(EgressError::Invalid { why: format!("the header `{name}` can't be set") }),
        None => Ok(()),
    }
}

async fn look_up(resolver: &dyn Resolver, host: &str) -> Result<Vec<IpAddr>, EgressError> {
    let literal = host.trim_start_matches('[').trim_end_matches(']').parse();
    if let Ok(ip) = literal {
        return Ok(vec![ip]);
    }
    let why = match tokio::time::timeout(CONNECT_TIMEOUT, resolver.lookup(host)).await {
        Ok(Ok(found)) if !found.is_empty() => return Ok(found),
        Ok(Ok(_)) => format!("the name {host} has no address"),
        Ok(Err(error)) => format!("the name {host} can't be looked up: {error}"),
        Err(_) => format!("the name {host} can't be looked up: no answer in time"),
    };
    Err(EgressError::Connect { why })
}

/// The last look: whom we are in fact connected to.
fn check_peer(peer: Option<SocketAddr>, pinned: &[SocketAddr]) -> Result<(), EgressError> {
    match peer {
        Some(peer) if pinned.contains(&peer) => Ok(()),
        _ => Err(EgressError::Denied { why: "connected to another address than the one that was checked".into() }),
    }
}

/// Reads the body, counting what comes out of decompression, never holding more than `limit` and one chunk.
pub(super) async fn read(mut response: reqwest::Response, limit: usize) -> Result<Bytes, EgressError> {
    let status = response.status();
    let mut body = BytesMut::new();
    while let Some(chunk) = response.chunk().await.map_err(|error| classify_error(&error))? {
        if body.len() + chunk.len() > limit {
            return Err(EgressError::TooLarge { status, limit });
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.freeze())
}

/// The error of a request, or of its answer's body.
pub(super) fn classify_error(error: &reqwest::Error) -> EgressError {
    if error.is_connect() {
        return connect(error);
    }
    if error.is_builder() {
        return EgressError::Invalid { why: reason(error) };
    }
    EgressError::Broken { why: reason(error) }
}

fn connect(error: &reqwest::Error) -> EgressError {
    EgressError::Connect { why: reason(error) }
}

/// The innermost cause: the outer ones repeat the URL, whose query may hold a key.
fn reason(error: &reqwest::Error) -> String {
    let mut cause: &dyn Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    match error.source() {
        Some(_) => cause.to_string(),
        None => error.to_string().split(" for url").next().unwrap_or_default().to_owned(),
    }
}

/// Knows no name at all: only what was pinned is ever connected to.
struct EmptyResolver;

impl reqwest::dns::Resolve for EmptyResolver {
    fn resolve(&self, _: reqwest::dns::Name) -> reqwest::dns::Resolving {
        Box::pin(async { Err("this name was not checked".into()) })
    }
}
