//! Which proxies are believed, and whom they speak for.
//!
//! A header says anything that its sender likes. So it is read only where the other side of the connection is a trusted
//! proxy, and from its end: each proxy adds the address that it saw, and what stands before the last trusted one's word
//! is the client's own invention.

use std::net::{IpAddr, SocketAddr};

use axum::http::{HeaderMap, HeaderName};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::base::invalid::ValidationErrors;

/// Proxies that one request is followed through.
const HOPS: usize = 32;

/// The header that the proxies write.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForwardedHeader {
    /// `X-Forwarded-For: client, proxy`
    #[default]
    XForwardedFor,
    /// `Forwarded: for=client, for=proxy` (RFC 7239)
    Forwarded,
}

/// The proxies of `[server]`, read.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies {
    networks: Vec<IpNet>,
    header: ForwardedHeader,
}

impl TrustedProxies {
    /// Reads addresses and networks; a fault names the one that is neither.
    pub fn read(written: &[String], header: ForwardedHeader) -> Result<TrustedProxies, ValidationErrors> {
        let mut faults = ValidationErrors::new();
        let mut networks = Vec::new();
        for (index, text) in written.iter().enumerate() {
            match text.parse::<IpNet>().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from)) {
                Some(network) => networks.push(network),
                None => {
                    let message = format!("`{text}` must be a network such as `10.0.0.0/8`, or an address");
                    faults.add(format!("/server/trusted_proxies/{index}"), message);
                }
            }
        }
        faults.into_result(TrustedProxies { networks, header })
    }

    /// Whether requests from this address may name the client.
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|network| network.contains(&address))
    }

    /// The address that asks: the other side of the connection, or whom a trusted proxy speaks for.
    pub fn client(&self, peer: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = peer;
        for hop in self.hops(headers).into_iter().take(HOPS) {
            if !self.trusts(client) {
                break;
            }
            // what can't be read names nobody: the proxy that passed it on answers for it
            let Some(address) = hop else { break };
            client = address;
        }
        client
    }

    /// The addresses that the header names, the last one first.
    fn hops(&self, headers: &HeaderMap) -> Vec<Option<IpAddr>> {
        let (name, read): (_, fn(&str) -> Option<IpAddr>) = match self.header {
            ForwardedHeader::XForwardedFor => (HeaderName::from_static("x-forwarded-for"), address),
            ForwardedHeader::Forwarded => (HeaderName::from_static("forwarded"), forwarded_for),
        };
        let mut hops = Vec::new();
        for value in headers.get_all(name) {
            match value.to_str() {
                Ok(text) => hops.extend(text.split(',').map(|hop| read(hop.trim()))),
                Err(_) => hops.push(None),
            }
        }
        hops.reverse();
        hops
    }
}

/// An address, with a port or without, an IPv6 one in brackets or not.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    let read = bare.parse::<IpAddr>().ok().or_else(|| text.parse::<SocketAddr>().ok().map(|socket| socket.ip()));
    read.map(|address| address.to_canonical())
}

/// The `for` of one element of `Forwarded` (RFC 7239, section 4).
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let mut pairs = element.split(';').filter_map(|pair| pair.trim().split_once('='));
    let (_, value) = pairs.find(|(name, _)| name.eq_ignore_ascii_case("for"))?;
    address(value.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(header: ForwardedHeader) -> TrustedProxies {
        TrustedProxies::read(&["10.0.0.0/8".into(), "::1".into()], header).unwrap()
    }

    fn client(header: ForwardedHeader, peer: &str, lines: &[(&'static str, &str)]) -> String {
        let headers =
            lines.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect();
        proxies(header).client(peer.parse().unwrap(), &headers).to_string()
    }

    #[test]
    fn forwarded_address_is_the_last_one_that_no_trusted_proxy_has() {
        let of = |peer: &str, lines: &[&str]| {
            let lines: Vec<_> = lines.iter().map(|line| ("x-forwarded-for", *line)).collect();
            client(ForwardedHeader::XForwardedFor, peer, &lines)
        };
        assert_eq!(of("10.0.0.1", &["203.0.113.7"]), "203.0.113.7");
        assert_eq!(of("10.0.0.1", &["198.51.100.9, 203.0.113.7, 10.0.0.2"]), "203.0.113.7", "the first is made up");
        assert_eq!(of("10.0.0.1", &["198.51.100.9", "203.0.113.7"]), "203.0.113.7", "lines are one list");
        assert_eq!(of("::ffff:10.0.0.1", &["203.0.113.7:4711"]), "203.0.113.7");
        assert_eq!(of("::1", &["[2001:db8::7]:4711"]), "2001:db8::7");
        assert_eq!(of("10.0.0.1", &["10.0.0.3, 10.0.0.2"]), "10.0.0.3", "all are proxies: the one farthest away");
        assert_eq!(of("10.0.0.1", &["203.0.113.7, unknown"]), "10.0.0.1", "who can't be read is nobody");
        assert_eq!(of("10.0.0.1", &[]), "10.0.0.1");
    }

    #[test]
    fn untrusted_peer_speaks_for_itself_alone() {
        let lines = [("x-forwarded-for", "203.0.113.7"), ("forwarded", "for=203.0.113.7")];
        for header in [ForwardedHeader::XForwardedFor, ForwardedHeader::Forwarded] {
            assert_eq!(client(header, "192.0.2.1", &lines), "192.0.2.1");
        }
    }

    #[test]
    fn only_the_header_that_the_proxies_write_is_read() {
        let lines =
            [("x-forwarded-for", "203.0.113.7"), ("forwarded", "for=198.51.100.9;proto=https, For=\"[2001:db8::7]\"")];
        assert_eq!(client(ForwardedHeader::XForwardedFor, "10.0.0.1", &lines), "203.0.113.7");
        assert_eq!(client(ForwardedHeader::Forwarded, "10.0.0.1", &lines), "2001:db8::7");
        assert_eq!(client(ForwardedHeader::Forwarded, "10.0.0.1", &lines[..1]), "10.0.0.1");
    }

    #[test]
    fn network_that_is_none_is_a_fault_with_its_place() {
        let faults = TrustedProxies::read(&["10.0.0.1".into(), "10.0.0.0/33".into()], Default::default()).unwrap_err();
        assert_eq!(faults.0[0].pointer, "/server/trusted_proxies/1");
        assert!(faults.0[0].message.contains("such as `10.0.0.0/8`"), "{faults}");
    }

    #[test]
    fn header_is_followed_through_so_many_hops_and_no_further() {
        let client = |proxies: usize| {
            let line = format!("203.0.113.7{}", ", 10.0.0.2".repeat(proxies));
            client(ForwardedHeader::XForwardedFor, "10.0.0.1", &[("x-forwarded-for", &line)])
        };
        assert_eq!(client(HOPS - 1), "203.0.113.7", "the last hop that is read");
        assert_eq!(client(HOPS), "10.0.0.2", "the farthest that was read");
    }
}
