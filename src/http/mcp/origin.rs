//! The origin of a message: a page of a foreign site must not call a service that its reader can reach (DNS rebinding).
//!
//! A browser sends `Origin` with each POST, and other programs do not. So a message without one passes, for its token
//! protects it; one with it comes from a page of ours, or from one at the very address that was asked, if that is no
//! name which somebody else could point at us.

use axum::extract::FromRequestParts;
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use url::{Host, Url};

use crate::http::HttpState;
use crate::http::error::ProblemDetails;
use crate::http::pages::approve::origin::{is_at, is_of};

/// The origin of a message is one that may send it. It is asked before the token is looked at.
pub struct AllowedOrigin;

impl FromRequestParts<HttpState> for AllowedOrigin {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &HttpState) -> Result<AllowedOrigin, Response> {
        match is_allowed(&parts.headers, &state.settings.public_url()) {
            true => Ok(AllowedOrigin),
            false => Err(refusal().into_response()),
        }
    }
}

fn refusal() -> ProblemDetails {
    ProblemDetails {
        kind: "urn:reveille:problem:foreign-origin".into(),
        title: "Pages of other sites may not call this".into(),
        status: StatusCode::FORBIDDEN.as_u16(),
        detail: "send no `Origin`, or that of `[server] public_url`".to_owned(),
        errors: Vec::new(),
        quota: None,
        limit: None,
        usage: None,
        error: None,
    }
}

/// Whether each `Origin` is that of `public_url`, or that of the address by which the service was asked.
fn is_allowed(headers: &HeaderMap, public_url: &str) -> bool {
    let mut hosts = headers.get_all(header::HOST).iter();
    let asked = match (hosts.next(), hosts.next()) {
        (Some(host), None) => host.to_str().ok().filter(|host| is_nobody_s_name(host)),
        _ => None,
    };
    headers.get_all(header::ORIGIN).iter().all(|origin| {
        let Ok(origin) = origin.to_str() else { return false };
        is_of(origin, public_url) || asked.is_some_and(|host| is_at(origin, host))
    })
}

/// Whether a host is no name that a foreign DNS server answers for.
fn is_nobody_s_name(host: &str) -> bool {
    match Url::parse(&format!("http://{host}")).as_ref().map(Url::host) {
        Ok(Some(Host::Domain(name))) => name == "localhost",
        Ok(Some(Host::Ipv4(_) | Host::Ipv6(_))) => true,
        Ok(None) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderName;

    use super::*;

    fn may(sent: &[(&'static str, &str)]) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in sent {
            headers.append(HeaderName::from_static(name), value.parse().unwrap());
        }
        is_allowed(&headers, "https://reveille.example.org/base")
    }

    #[test]
    fn pages_of_ours_and_programs_may_call() {
        for allowed in [
            &[][..],
            &[("host", "anything.example.com")],
            &[("host", "a.example.com"), ("origin", "https://reveille.example.org")],
            &[("origin", "https://Reveille.example.org")],
            &[("host", "127.0.0.1:7700"), ("origin", "http://127.0.0.1:7700")],
            &[("host", "localhost:7700"), ("origin", "http://localhost:7700")],
            &[("host", "localhost"), ("origin", "https://localhost")],
            &[("host", "[::1]:7700"), ("origin", "http://[::1]:7700")],
        ] {
            assert!(may(allowed), "{allowed:?}");
        }
    }

    #[test]
    fn pages_of_others_may_not_call() {
        for foreign in [
            &[("host", "evil.example.com"), ("origin", "http://evil.example.com")][..],
            &[("host", "evil.example.com:7700"), ("origin", "http://evil.example.com:7700")],
            &[("host", "localhost.evil.example.com"), ("origin", "http://localhost.evil.example.com")],
            &[("host", "127.0.0.1:7700"), ("origin", "http://evil.example.com")],
            &[("host", "127.0.0.1:7700"), ("origin", "http://127.0.0.1:7701")],
            &[("host", "127.0.0.1:7700"), ("origin", "http://localhost:7700")],
            &[("host", "127.0.0.1:7700"), ("origin", "null")],
            &[("host", "127.0.0.1:7700"), ("origin", "")],
            &[("host", "127.0.0.1:7700"), ("host", "127.0.0.1:7700"), ("origin", "http://127.0.0.1:7700")],
            &[("origin", "http://reveille.example.org")],
            &[("origin", "https://reveille.example.org"), ("origin", "https://evil.example.com")],
            &[("origin", "https://reveille.example.org.evil.com")],
        ] {
            assert!(!may(foreign), "{foreign:?}");
        }
    }
}
