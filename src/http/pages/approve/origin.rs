//! Whether a form was sent by our own page, as far as the browser says.
//!
//! A page with `Referrer-Policy: no-referrer` sends its forms with `Origin: null` (Fetch, "append a request `Origin`
//! header"), so `null` is no proof against it; then `Sec-Fetch-Site` decides. Where a browser sends neither, the nonce
//! alone does.

use axum::http::{HeaderMap, HeaderName, header};
use url::Url;

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Whether nothing speaks against it that the request comes from a page of `public_url` or of the host it was sent to.
pub fn is_own(headers: &HeaderMap, public_url: &str) -> bool {
    let mut sites = headers.get_all(SITE).iter();
    let site_fits = sites.all(|site| matches!(site.as_bytes(), b"same-origin" | b"none"));
    let mut origins = headers.get_all(header::ORIGIN).iter();
    let host = headers.get(header::HOST).and_then(|host| host.to_str().ok());
    site_fits
        && origins.all(|origin| {
            let Ok(origin) = origin.to_str() else { return false };
            origin == "null" || is_of(origin, public_url) || host.is_some_and(|host| is_at(origin, host))
        })
}

/// Whether the body is said to be that of a form.
pub fn is_form(headers: &HeaderMap) -> bool {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/x-www-form-urlencoded"))
}

/// Whether it is the origin of this address.
pub fn is_of(origin: &str, address: &str) -> bool {
    Url::parse(address).is_ok_and(|address| address.origin().ascii_serialization() == origin.to_ascii_lowercase())
}

/// Whether it is this host's, over either scheme.
pub fn is_at(origin: &str, host: &str) -> bool {
    ["http://", "https://"].iter().any(|scheme| is_of(origin, &format!("{scheme}{host}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_ours(sent: &[(&'static str, &str)]) -> bool {
        let headers = sent.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap()));
        is_own(&headers.collect(), "https://reveille.example.org/")
    }

    #[test]
    fn only_our_own_pages_send_forms() {
        for ours in [
            &[][..],
            &[("origin", "https://reveille.example.org")],
            &[("origin", "https://Reveille.example.org"), ("sec-fetch-site", "same-origin")],
            &[("origin", "null"), ("sec-fetch-site", "same-origin")],
            &[("host", "127.0.0.1:7700"), ("origin", "http://127.0.0.1:7700")],
            &[("sec-fetch-site", "none")],
        ] {
            assert!(is_ours(ours), "{ours:?}");
        }
        for foreign in [
            &[("origin", "https://evil.example.org")][..],
            &[("origin", "http://reveille.example.org")],
            &[("origin", "https://reveille.example.org.evil.org")],
            &[("origin", "https://reveille.example.org"), ("origin", "https://evil.example.org")],
            &[("origin", "null"), ("sec-fetch-site", "cross-site")],
            &[("sec-fetch-site", "same-site")],
            &[("host", "127.0.0.1:7700"), ("origin", "http://127.0.0.1:7701")],
            &[("origin", "")],
        ] {
            assert!(!is_ours(foreign), "{foreign:?}");
        }
    }
}
