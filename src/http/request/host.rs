//! The `Host` of a request: there once, and an authority as RFC 9110, section 7.2 has it.
//!
//! It takes part in the check of a form's origin, so nothing is done for a request where it could be read in two ways.

use axum::extract::Request;
use axum::http::header::HOST;
use axum::http::uri::Authority;

use crate::http::error::ApiError;

/// Longest host, in bytes: a name of 253, brackets and a port fit.
const HOST_BYTES: usize = 300;

/// Refuses a request whose `Host` is missing, is there twice, is none, or is another one than its target names.
pub fn check<B>(request: &Request<B>) -> Result<(), ApiError> {
    let refused = |why: &str| Err(ApiError::Malformed(format!("Host {why}")));
    let mut hosts = request.headers().get_all(HOST).iter();
    let (Some(host), None) = (hosts.next(), hosts.next()) else {
        return refused("must be given once, such as `Host: reveille.example.org`");
    };
    let Some(host) = host.to_str().ok().filter(|host| is_host(host)) else {
        return refused("must be a name or an address, and a port where there is one");
    };
    match request.uri().authority() {
        Some(target) if !target.as_str().eq_ignore_ascii_case(host) => refused("must be the one of the target"),
        _ => Ok(()),
    }
}

fn is_host(text: &str) -> bool {
    // a list of hosts, a user or a path is none
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:[]".contains(&byte);
    if text.len() > HOST_BYTES || !text.bytes().all(is_plain) {
        return false;
    }
    let Ok(authority) = text.parse::<Authority>() else { return false };
    let port = text.strip_prefix(authority.host()).unwrap_or(text);
    let is_port = match port.strip_prefix(':') {
        Some(number) => authority.port_u16().is_some() && number.bytes().all(|byte| byte.is_ascii_digit()),
        None => port.is_empty(),
    };
    is_port && url::Host::parse(authority.host()).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(target: &str, hosts: &[&[u8]]) -> Option<String> {
        let mut request = Request::builder().uri(target);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        check(&request.body(()).unwrap()).err().map(|error| error.into_problem().detail)
    }

    #[test]
    fn host_is_there_once_and_can_be_read_in_one_way() {
        let long = |bytes: usize| "a".repeat(bytes);
        assert_eq!(of("/", &[long(HOST_BYTES).as_bytes()]), None);
        assert!(of("/", &[long(HOST_BYTES + 1).as_bytes()]).is_some());
        for good in ["x", "reveille.example.org", "127.0.0.1:7700", "[::1]:7700", "[2001:db8::1]", "LOCALHOST:1"] {
            assert_eq!(of("/", &[good.as_bytes()]), None, "{good}");
        }
        let bad: [&[u8]; 14] = [
            b"",
            b" ",
            b"a b",
            b"a,b",
            b"user@host",
            b"http://host",
            b"host/",
            b"host:",
            b"host:x",
            b"host:99999",
            b"[::1",
            b"[x]",
            b"\xff",
            b"a?b",
        ];
        for bad in bad {
            assert!(of("/", &[bad]).is_some(), "{:?}", String::from_utf8_lossy(bad));
        }
        assert!(of("/", &["x".repeat(HOST_BYTES + 1).as_bytes()]).is_some());
        assert!(of("/", &[]).unwrap().contains("once"));
        assert!(of("/", &[b"a", b"a"]).unwrap().contains("once"));
    }

    #[test]
    fn target_that_names_a_host_names_the_same() {
        assert_eq!(of("http://a:80/x", &[b"A:80"]), None);
        assert!(of("http://a/x", &[b"b"]).is_some());
    }
}
