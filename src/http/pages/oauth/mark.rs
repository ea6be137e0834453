//! A cookie that says that a browser was shown the page of a flow: the button works in that browser alone.
//!
//! It keeps others from pressing it in a person's name (RFC 6749, section 10.12; RFC 9700, section 4.7): a form that
//! another site has their browser send comes without it, since it is `SameSite=Lax`, also where the browser says
//! nothing of where a form comes from. It proves nothing of who opened the link; for that the page names the tenant and
//! the account. Nothing of it is stored: it is a tag of the vault over the flow, and ends with it.

use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::Response;
use chrono::{DateTime, Utc};

use crate::ports::vault::Vault;
use crate::ports::vault::oauth::OAuthFlow;

const PURPOSE: &str = "oauth/page";
/// Characters of the flow's id that tell the cookie of one page from that of another.
const NAMED: usize = 12;

/// Sets it with the page of a flow.
pub fn set(response: &mut Response, vault: &Vault, flow: &OAuthFlow, public_url: &str, now: DateTime<Utc>) {
    let (name, value) = (name(flow, public_url), vault.tag(PURPOSE, &flow.id.to_string()));
    let place = if is_secure(public_url) { "Path=/; Secure" } else { "Path=/oauth" };
    let left = (flow.expires_at - now).num_seconds().max(0);
    let cookie = format!("{name}={value}; {place}; Max-Age={left}; HttpOnly; SameSite=Lax");
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        response.headers_mut().append(header::SET_COOKIE, cookie);
    }
}

/// Whether a request comes from a browser that has it.
pub fn has_mark(headers: &HeaderMap, vault: &Vault, flow: &OAuthFlow, public_url: &str) -> bool {
    let wanted = name(flow, public_url);
    let lines = headers.get_all(header::COOKIE).iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.filter(|(name, _)| *name == wanted).any(|(_, value)| vault.is_tag(PURPOSE, &flow.id.to_string(), value))
}

/// Over TLS a name that browsers take from this host alone, and not from its neighbours (RFC 6265bis, section 4.1.3.2).
fn name(flow: &OAuthFlow, public_url: &str) -> String {
    let id = flow.id.simple().to_string();
    let prefix = if is_secure(public_url) { "__Host-" } else { "" };
    format!("{prefix}reveille-connect-{}", &id[id.len() - NAMED..])
}

fn is_secure(public_url: &str) -> bool {
    public_url.starts_with("https:")
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;
    use crate::base::id::new_id;
    use crate::domain::credential::Reference;
    use crate::ports::vault::fixture::{OLD, vault};

    const HTTPS: &str = "https://wake.example.org";
    const HTTP: &str = "http://127.0.0.1:7700";

    fn now() -> DateTime<Utc> {
        DateTime::UNIX_EPOCH + TimeDelta::days(20_000)
    }

    fn flow() -> OAuthFlow {
        OAuthFlow::begin(new_id(now()), "ann", &Reference::parse("calendar").unwrap(), "token:t", now()).unwrap()
    }

    /// Name and value, and what stands behind them.
    fn cookie(flow: &OAuthFlow, public_url: &str) -> (String, String) {
        let mut response = Response::default();
        set(&mut response, &vault(&[OLD]), flow, public_url, now());
        let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap().to_owned();
        let (pair, rest) = cookie.split_once("; ").unwrap();
        (pair.to_owned(), rest.to_owned())
    }

    fn is_marked(cookie: &str, flow: &OAuthFlow, public_url: &str) -> bool {
        let headers = HeaderMap::from_iter([(header::COOKIE, cookie.parse().unwrap())]);
        has_mark(&headers, &vault(&[OLD]), flow, public_url)
    }

    #[test]
    fn flow_cookie_is_host_only_short_lived_and_secure_over_tls() {
        let flow = flow();
        let (pair, rest) = cookie(&flow, HTTPS);
        assert!(pair.starts_with("__Host-reveille-connect-"), "{pair}");
        assert_eq!(rest, "Path=/; Secure; Max-Age=600; HttpOnly; SameSite=Lax");
        let (pair, rest) = cookie(&flow, HTTP);
        assert!(pair.starts_with("reveille-connect-"), "{pair}");
        assert_eq!(rest, "Path=/oauth; Max-Age=600; HttpOnly; SameSite=Lax");
    }

    #[test]
    fn flow_cookie_counts_for_its_flow_only() {
        let (one, other) = (flow(), flow());
        let pair = cookie(&one, HTTPS).0;
        assert!(is_marked(&pair, &one, HTTPS));
        assert!(is_marked(&format!("a=b; {pair};c"), &one, HTTPS));
        assert!(is_marked(&format!("{}; {pair}", cookie(&other, HTTPS).0), &one, HTTPS), "two pages are open");
        assert!(!is_marked(&pair, &other, HTTPS));
        // what a neighbouring host or another may set
        assert!(!is_marked(pair.trim_start_matches("__Host-"), &one, HTTPS));
        let (name, value) = pair.split_once('=').unwrap();
        let others = cookie(&other, HTTPS).0;
        for odd in ["", "=", name, &format!("{name}="), &format!("{name}=x"), &format!("x{name}={value}")] {
            assert!(!is_marked(odd, &one, HTTPS), "{odd}");
        }
        assert!(!is_marked(&format!("{name}={}", others.split_once('=').unwrap().1), &one, HTTPS));
        assert!(!has_mark(&HeaderMap::new(), &vault(&[OLD]), &one, HTTPS));
    }
}
