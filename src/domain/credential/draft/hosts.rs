//! The hosts of a credential: each a name, an address, or `*.` and a name, with a port or for every port; kept as
//! requests will name them, in lower case and ASCII.

use serde_json::Value;
use url::Host;

use crate::base::invalid::ValidationErrors;

/// How many hosts a credential may go to.
const HOSTS: usize = 50;
const FORM: &str = "such as `api.example.org`, `*.example.org` or `api.example.org:8443`";

/// Reads the hosts of a draft, as they are kept.
pub fn read(hosts: Option<&Value>, faults: &mut ValidationErrors) -> Vec<String> {
    let list = match hosts {
        None => return vec![],
        Some(Value::Array(list)) if list.len() <= HOSTS => list,
        Some(_) => {
            faults.add("/hosts", format!("must be a list of at most {HOSTS} hosts, {FORM}"));
            return vec![];
        }
    };
    let mut read: Vec<String> = vec![];
    for (index, written) in list.iter().enumerate() {
        match written.as_str().ok_or_else(|| format!("must be a text {FORM}")).and_then(host) {
            Ok(host) if read.contains(&host) => {}
            Ok(host) => read.push(host),
            Err(why) => faults.add(format!("/hosts/{index}"), why),
        }
    }
    read
}

/// One host as it is kept. The fault does not repeat it: an address with a password in it may have been meant.
fn host(written: &str) -> Result<String, String> {
    if written.contains("://") {
        return Err(format!("must be a host without scheme and path, {FORM}"));
    }
    if written == "*" {
        return Err("would be every host there is; name the hosts that it is for".into());
    }
    if written.contains(['/', '@', '?', '#', '\\', '%']) || written.chars().any(|c| c.is_whitespace() || c.is_control())
    {
        return Err(format!("must be a host and nothing else, {FORM}"));
    }
    let (name, port) = split_port(written);
    let port = match port.map(|port| port.parse::<u16>().unwrap_or(0)) {
        Some(0) => return Err(format!("has no port from 1 to 65535 behind its colon; expected one {FORM}")),
        port => port,
    };
    let (star, name) = match name.strip_prefix("*.") {
        Some(parent) => ("*.", parent),
        None => ("", name),
    };
    let read = Host::parse(name.trim_end_matches('.')).map_err(|_| format!("is no name of a host, {FORM}"))?;
    match (&read, star) {
        (Host::Domain(name), _) if name.contains('*') => return Err("may have `*.` at its beginning only".into()),
        (Host::Domain(name), _) if !is_name(name) => return Err(format!("is no name of a host, {FORM}")),
        (Host::Domain(name), "*.") if !name.contains('.') => {
            return Err("would be every host of a whole country or kind; name the hosts that it is for".into());
        }
        (Host::Ipv4(_) | Host::Ipv6(_), "*.") => return Err("an address has no names below it; leave `*.` out".into()),
        _ => {}
    }
    Ok(format!("{star}{read}{}", port.map(|port| format!(":{port}")).unwrap_or_default()))
}

/// Whether a list of hosts, as they are kept, lets a credential go wherever this entry would.
pub fn covers(list: &[String], wanted: &str) -> bool {
    let (name, port) = split_port(wanted);
    list.iter().map(|entry| split_port(entry)).any(|(held, held_port)| {
        let named = held == name
            || held.strip_prefix('*').is_some_and(|parent| {
                let below = name.strip_prefix('*').unwrap_or(name);
                below.len() > parent.len() && below.ends_with(parent)
            });
        named && (held_port.is_none() || held_port == port)
    })
}

/// Name and port of an entry: `host:8443`, `[::1]:8443`, `[::1]`. A text that is no entry has the whole of it for a
/// name.
pub fn split_port(entry: &str) -> (&str, Option<&str>) {
    match entry.rsplit_once(':') {
        Some((name, port)) if !port.contains(']') && (name.ends_with(']') || !name.contains(':')) => (name, Some(port)),
        _ => (entry, None),
    }
}

/// RFC 1035's lengths.
fn is_name(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(|label| (1..=63).contains(&label.len()))
}

#[cfg(test)]
mod tests {
    use super::{covers, host};

    #[test]
    fn list_covers_what_goes_nowhere_that_it_does_not_name() {
        for (held, wanted) in [
            ("a.example.org", "a.example.org"),
            ("a.example.org", "a.example.org:8443"),
            ("a.example.org:8443", "a.example.org:8443"),
            ("*.example.org", "*.example.org"),
            ("*.example.org", "a.example.org"),
            ("*.example.org", "*.b.example.org:8443"),
            ("*.example.org:8443", "a.b.example.org:8443"),
            ("[::1]", "[::1]:9000"),
            ("127.0.0.1", "127.0.0.1:9000"),
        ] {
            assert!(covers(&["z.example".into(), held.into()], wanted), "{held} {wanted}");
        }
        for (held, wanted) in [
            ("a.example.org", "b.example.org"),
            ("a.example.org", "*.a.example.org"),
            ("a.example.org", "a.example.org.evil.example"),
            ("a.example.org:8443", "a.example.org"),
            ("a.example.org:8443", "a.example.org:443"),
            ("*.example.org", "example.org"),
            ("*.example.org", "evilexample.org"),
            ("*.example.org:8443", "a.example.org"),
            ("*.a.example.org", "*.example.org"),
            ("[::1]:9000", "[::1]"),
            ("[::1]", "[::2]"),
        ] {
            assert!(!covers(&[held.into()], wanted), "{held} {wanted}");
        }
        assert!(!covers(&[], "a.example.org"));
    }

    #[test]
    fn host_is_kept_as_requests_name_it() {
        for (written, kept) in [
            ("api.example.org", "api.example.org"),
            ("API.Example.ORG.", "api.example.org"),
            ("*.example.org", "*.example.org"),
            ("*.example.org:8443", "*.example.org:8443"),
            ("api.example.org:443", "api.example.org:443"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("*.bücher.example", "*.xn--bcher-kva.example"),
            ("localhost:9000", "localhost:9000"),
            ("127.0.0.1", "127.0.0.1"),
            ("[::1]:9000", "[::1]:9000"),
            ("[2001:DB8::1]", "[2001:db8::1]"),
        ] {
            assert_eq!(host(written).as_deref(), Ok(kept), "{written}");
        }
    }

    #[test]
    fn invalid_hosts_are_refused_without_being_repeated() {
        for written in [
            "",
            "*",
            "*.",
            "*.org",
            "*.127.0.0.1",
            "*.[::1]",
            "a.*.org",
            "*a.example.org",
            "https://canary.example",
            "canary.example/x",
            "u:canary@example.org",
            "canary example",
            "example.org:0",
            "example.org:99999",
            "example.org:",
            "example.org:canary",
            "exa\nmple.org",
            "canary?x",
            "::1",
            "a..b",
            "example%2eorg",
            "**.example.org",
        ] {
            let refused = host(written);
            assert!(refused.as_ref().is_err_and(|why| !why.contains("canary")), "{written}: {refused:?}");
        }
    }
}
