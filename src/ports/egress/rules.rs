//! The rules of `[egress]`: which scheme, port and address a request may go to. Pure.

use std::net::IpAddr;

use ipnet::IpNet;
use url::{Host, Url};

use crate::base::invalid::{ValidationErrors, bounded, did_you_mean};
use crate::ports::egress::{EgressError, Settings, address};

/// Longest URL of a request, in bytes.
const URL_BYTES: usize = 16 * 1024;

const SCHEMES: [&str; 2] = ["http", "https"];

/// `[egress]`, read.
#[derive(Debug)]
pub struct EgressRules {
    schemes: Vec<String>,
    ports: Vec<u16>,
    opened: Vec<AllowedEntry>,
}

/// One entry of `allow`.
#[derive(Debug, PartialEq)]
struct AllowedEntry {
    place: AllowedPlace,
    ports: Ports,
}

#[derive(Debug, PartialEq)]
enum AllowedPlace {
    Network(IpNet),
    /// In lower case, without a trailing dot.
    Name(String),
    /// `.internal` for `*.internal`.
    Below(String),
}

#[derive(Debug, PartialEq)]
enum Ports {
    /// Those of `ports`.
    Listed,
    One(u16),
    Every,
}

/// An address that has passed what can be checked without looking its name up.
#[derive(Debug, Clone)]
pub struct EgressTarget {
    pub url: Url,
    pub place: TargetPlace,
    pub port: u16,
}

/// The host of an address: a name to look up, or an IP address.
#[derive(Debug, Clone, PartialEq)]
pub enum TargetPlace {
    /// In lower case, as in the URL: a trailing dot is kept.
    Name(String),
    Literal(IpAddr),
}

impl EgressRules {
    /// Reads the rules that `[egress]` sets.
    pub fn read(settings: &Settings) -> Result<EgressRules, ValidationErrors> {
        let mut faults = ValidationErrors::new();
        for (index, scheme) in settings.schemes.iter().enumerate() {
            if !SCHEMES.contains(&scheme.as_str()) {
                let hint = did_you_mean(scheme, SCHEMES);
                faults.add(format!("/egress/schemes/{index}"), format!("unknown scheme `{scheme}`{hint}"));
            }
        }
        let mut opened = vec![];
        for (index, entry) in settings.allow.iter().enumerate() {
            match AllowedEntry::read(entry) {
                Ok(read) => opened.push(read),
                Err(why) => faults.add(format!("/egress/allow/{index}"), why),
            }
        }
        faults.into_result(EgressRules { schemes: settings.schemes.clone(), ports: settings.ports.clone(), opened })
    }

    /// Reads a URL and judges all of it but the addresses of its name.
    pub fn target(&self, text: &str) -> Result<EgressTarget, EgressError> {
        let text = bounded(text, URL_BYTES).map_err(|why| EgressError::Invalid { why: format!("the URL {why}") })?;
        let url = Url::parse(text).map_err(|error| EgressError::Invalid { why: format!("not a URL: {error}") })?;
        self.target_of(url)
    }

    /// Checks a URL that has been read, as the place that a redirect names. The address that is sent is bounded, too:
    /// in a URL that is read, other characters than those of ASCII take up to three times their bytes.
    pub fn target_of(&self, mut url: Url) -> Result<EgressTarget, EgressError> {
        bounded(url.as_str(), URL_BYTES).map_err(|why| EgressError::Invalid { why: format!("the URL {why}") })?;
        if !self.schemes.iter().any(|scheme| scheme == url.scheme()) {
            let known = self.schemes.join(" and ");
            return denied(format!("the scheme `{}` is not one of {known}", url.scheme()));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(EgressError::Invalid { why: "a URL may not hold a user or a password".into() });
        }
        url.set_fragment(None);
        let port = url.port_or_known_default().ok_or(EgressError::Invalid { why: "no port".into() })?;
        let place = match url.host() {
            Some(Host::Domain(name)) => TargetPlace::Name(name.to_owned()),
            Some(Host::Ipv4(ip)) => TargetPlace::Literal(ip.into()),
            Some(Host::Ipv6(ip)) => TargetPlace::Literal(ip.into()),
            None => return Err(EgressError::Invalid { why: "no host".into() }),
        };
        match &place {
            TargetPlace::Literal(ip) => self.judge(None, *ip, port)?,
            TargetPlace::Name(name) => self.judge_name(name, port)?,
        }
        Ok(EgressTarget { url, place, port })
    }

    /// Whether `ip`, found under `name` or written out, may be connected to at `port`.
    pub fn judge(&self, name: Option<&str>, ip: IpAddr, port: u16) -> Result<(), EgressError> {
        let shown = name.map_or(format!("{ip}"), |name| format!("{name} ({ip})"));
        if address::is_metadata(ip) {
            return denied(format!("{shown} is a cloud's metadata service"));
        }
        let opened: Vec<&AllowedEntry> = self.opened.iter().filter(|entry| entry.holds(name, ip)).collect();
        if let Some(kind) = address::not_public(ip)
            && opened.is_empty()
        {
            return denied(format!("{shown} is {kind}; the operator can open it in egress.allow"));
        }
        self.judge_port(port, &opened, &shown)
    }

    /// Whether an entry of `allow` holds the host as it is written, with its port.
    pub fn is_allowed(&self, url: &Url) -> bool {
        let Ok(target) = self.target_of(url.clone()) else { return false };
        let held = |entry: &&AllowedEntry| match &target.place {
            TargetPlace::Literal(ip) => entry.holds(None, *ip),
            TargetPlace::Name(name) => entry.holds_name(name.trim_end_matches('.')),
        };
        let entries: Vec<&AllowedEntry> = self.opened.iter().filter(held).collect();
        !entries.is_empty() && self.judge_port(target.port, &entries, "").is_ok()
    }

    /// Judges a name before it is looked up. A port that only an entry for a network opens passes here and is judged
    /// with the addresses.
    fn judge_name(&self, name: &str, port: u16) -> Result<(), EgressError> {
        let bare = name.trim_end_matches('.');
        if bare.is_empty() {
            return Err(EgressError::Invalid { why: "no host".into() });
        }
        if address::is_metadata_name(bare) {
            return denied(format!("{name} is a cloud's metadata service"));
        }
        let could_open = |entry: &&AllowedEntry| match entry.place {
            AllowedPlace::Network(_) => true,
            _ => entry.holds_name(bare),
        };
        self.judge_port(port, &self.opened.iter().filter(could_open).collect::<Vec<_>>(), name)
    }

    fn judge_port(&self, port: u16, opened: &[&AllowedEntry], shown: &str) -> Result<(), EgressError> {
        let listed = self.ports.contains(&port);
        let open = |entry: &&AllowedEntry| match entry.ports {
            Ports::Listed => listed,
            Ports::One(one) => one == port,
            Ports::Every => true,
        };
        if port != 0 && (listed || opened.iter().any(open)) {
            return Ok(());
        }
        denied(format!("port {port} of {shown} is not open; the operator can open it in egress.ports or egress.allow"))
    }
}

impl AllowedEntry {
    fn read(entry: &str) -> Result<AllowedEntry, String> {
        let (place, ports) = split_port(entry.trim())?;
        Ok(AllowedEntry { place: AllowedPlace::read(place, entry)?, ports })
    }

    fn holds(&self, name: Option<&str>, ip: IpAddr) -> bool {
        match &self.place {
            AllowedPlace::Network(network) => network.contains(&ip) || network.contains(&address::canonical(ip)),
            _ => name.is_some_and(|name| self.holds_name(name.trim_end_matches('.'))),
        }
    }

    fn holds_name(&self, bare: &str) -> bool {
        match &self.place {
            AllowedPlace::Network(_) => false,
            AllowedPlace::Name(name) => name == bare,
            AllowedPlace::Below(suffix) => bare.ends_with(suffix.as_str()),
        }
    }
}

impl AllowedPlace {
    fn read(text: &str, entry: &str) -> Result<AllowedPlace, String> {
        if let Ok(network) = text.parse::<IpNet>() {
            return Ok(AllowedPlace::Network(network.trunc()));
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Ok(AllowedPlace::Network(ip.into()));
        }
        let (below, name) = match text.strip_prefix("*.") {
            Some(rest) => (true, rest),
            None => (false, text),
        };
        let name = name.trim_end_matches('.').to_lowercase();
        match Host::parse(&name) {
            Ok(Host::Domain(name)) if below => Ok(AllowedPlace::Below(format!(".{name}"))),
            Ok(Host::Domain(name)) => Ok(AllowedPlace::Name(name)),
            _ => Err(format!(
                "`{entry}` is neither a network (10.1.0.0/16), an address, nor a host name (hooks.internal, *.internal)"
            )),
        }
    }
}

/// `place`, `place:port`, `place:*`; IPv6 with a port stands in brackets.
fn split_port(entry: &str) -> Result<(&str, Ports), String> {
    let (place, port) = match entry.strip_prefix('[') {
        Some(rest) => match rest.split_once(']') {
            Some((place, "")) => (place, None),
            Some((place, port)) => (place, Some(port.strip_prefix(':').ok_or("expected `]:port`")?)),
            None => return Err(format!("`{entry}` lacks the closing `]`")),
        },
        None => match entry.split_once(':') {
            Some((place, port)) if !port.contains(':') => (place, Some(port)),
            _ => (entry, None),
        },
    };
    let ports = match port {
        None => Ports::Listed,
        Some("*") => Ports::Every,
        Some(port) => Ports::One(port.parse().map_err(|_| format!("`{port}` is not a port (1 to 65535, or `*`)"))?),
    };
    Ok((place, ports))
}

fn denied<T>(why: String) -> Result<T, EgressError> {
    Err(EgressError::Denied { why })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_is_taken_at_its_longest_and_refused_one_beyond_it() {
        let rules = EgressRules::read(&Settings::default()).unwrap();
        let url = |end: &str, bytes: usize| {
            let start = "https://example.org/";
            format!("{start}{}{end}", "a".repeat(bytes - start.len() - end.len()))
        };
        assert_eq!(rules.target(&url("", URL_BYTES)).unwrap().url.as_str().len(), URL_BYTES);
        let beyond = |url: String| match rules.target(&url) {
            Err(EgressError::Invalid { why }) => why,
            other => panic!("{other:?}"),
        };
        assert_eq!(beyond(url("", URL_BYTES + 1)), "the URL must be at most 16384 bytes, has 16385");
        // two bytes, of which six are sent
        assert!(rules.target(&url("é", URL_BYTES - 4)).is_ok());
        assert_eq!(beyond(url("é", URL_BYTES - 3)), "the URL must be at most 16384 bytes, has 16385");
        let redirected = |bytes: usize| rules.target_of(Url::parse(&url("", bytes)).unwrap()).is_ok();
        assert_eq!((redirected(URL_BYTES), redirected(URL_BYTES + 1)), (true, false));
    }
}
