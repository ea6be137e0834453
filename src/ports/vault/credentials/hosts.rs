//! Whether an address is one that a credential may be sent to. Pure.

use url::{Host, Url};

use crate::domain::credential::draft::split_port;

/// `opened`: the operator has opened this address in `[egress] allow`.
///
/// # Errors
/// The end of a sentence that says why not.
pub fn check_bound(hosts: &[String], url: &Url, opened: bool) -> Result<(), String> {
    if hosts.is_empty() {
        return Err("it is bound to no host (`hosts`)".into());
    }
    if !hosts.iter().any(|entry| holds(entry, url)) {
        return Err(format!("{} is none of its hosts", host_and_port(url)));
    }
    check_encrypted(url, opened)
}

/// Whether nobody on the way reads what is sent there; what stays on this machine, and what the operator has opened,
/// needs no encryption.
///
/// # Errors
/// The end of a sentence that says why not.
pub fn check_encrypted(url: &Url, opened: bool) -> Result<(), String> {
    match url.scheme() == "https" || is_loopback(url) || opened {
        true => Ok(()),
        false => Err("it is sent by https only, but to this machine and to what the operator has opened".into()),
    }
}

/// Host, and port where it is not the usual one.
pub fn host_and_port(url: &Url) -> String {
    let host = bare(url.host_str().unwrap_or_default());
    url.port().map_or(host.clone(), |port| format!("{host}:{port}"))
}

fn holds(entry: &str, url: &Url) -> bool {
    let (name, port) = split_port(entry);
    let host = bare(url.host_str().unwrap_or_default());
    let named = match name.strip_prefix("*.") {
        // an address has no names below it
        Some(parent) => {
            matches!(url.host(), Some(Host::Domain(_)))
                && host.strip_suffix(&bare(parent)).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
        }
        None => bare(name) == host,
    };
    named && port.is_none_or(|port| url.port_or_known_default().map(|known| known.to_string()).as_deref() == Some(port))
}

fn bare(host: &str) -> String {
    host.trim_end_matches('.').to_ascii_lowercase()
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        Some(Host::Domain(name)) => bare(name) == "localhost",
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn goes(entry: &str, url: &str) -> bool {
        check_bound(&[entry.to_owned()], &url.parse().unwrap(), false).is_ok()
    }

    #[test]
    fn credential_goes_to_its_hosts_and_to_no_others() {
        for (entry, url) in [
            ("api.example.org", "https://api.example.org/x"),
            ("api.example.org", "https://API.example.org./x"),
            ("api.example.org", "https://api.example.org:8443/x"),
            ("API.Example.org", "https://api.example.org/x"),
            ("api.example.org:8443", "https://api.example.org:8443/"),
            ("api.example.org:443", "https://api.example.org/"),
            ("*.example.org", "https://a.example.org/"),
            ("*.example.org", "https://a.b.example.org/"),
            ("*.example.org:8443", "https://a.example.org:8443/"),
            ("127.0.0.1", "http://127.0.0.1:9000/"),
            ("127.0.0.1:9000", "http://127.0.0.1:9000/"),
            ("[::1]", "http://[::1]:9000/"),
            ("[::1]:9000", "http://[::1]:9000/"),
            ("localhost", "http://localhost:9000/"),
        ] {
            assert!(goes(entry, url), "{entry} {url}");
        }
        for (entry, url) in [
            ("api.example.org", "https://example.org/"),
            ("api.example.org", "https://xapi.example.org/"),
            ("api.example.org", "https://api.example.org.evil.example/"),
            ("api.example.org", "https://evil.example/api.example.org"),
            ("api.example.org", "https://evil.example/?https://api.example.org"),
            ("api.example.org:8443", "https://api.example.org/"),
            ("api.example.org:443", "https://api.example.org:8443/"),
            ("*.example.org", "https://example.org/"),
            ("*.example.org", "https://badexample.org/"),
            ("*.example.org", "https://a.example.org.evil/"),
            ("*.0.0.1", "http://127.0.0.1/"),
            ("127.0.0.1:9000", "http://127.0.0.1:9001/"),
            ("*", "https://api.example.org/"),
            ("", "https://api.example.org/"),
            ("api.example.org", "http://api.example.org/"),
            ("10.0.0.1", "http://10.0.0.1/"),
        ] {
            assert!(!goes(entry, url), "{entry} {url}");
        }
        assert!(check_bound(&[], &"https://a.example/".parse().unwrap(), true).is_err());
    }

    #[test]
    fn host_that_the_operator_opened_may_be_reached_without_encryption() {
        let url = "http://10.0.0.1/".parse().unwrap();
        assert_eq!(check_bound(&["10.0.0.1".into()], &url, true), Ok(()));
        assert!(check_bound(&["10.0.0.2".into()], &url, true).is_err());
    }
}
