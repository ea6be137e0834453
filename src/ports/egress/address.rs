//! Which IP addresses are public. Pure; whatever is not known to be public is not.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// IPv4 that is not globally reachable, from the IANA special-purpose registry (RFC 6890), multicast and class E.
const NOT_PUBLIC_V4: [(Ipv4Addr, u8, &str); 18] = [
    (Ipv4Addr::new(0, 0, 0, 0), 8, "this network"),
    (Ipv4Addr::new(10, 0, 0, 0), 8, "private"),
    (Ipv4Addr::new(100, 64, 0, 0), 10, "shared by a carrier"),
    (Ipv4Addr::new(127, 0, 0, 0), 8, "loopback"),
    (Ipv4Addr::new(169, 254, 0, 0), 16, "link-local"),
    (Ipv4Addr::new(172, 16, 0, 0), 12, "private"),
    (Ipv4Addr::new(192, 0, 0, 0), 24, "reserved"),
    (Ipv4Addr::new(192, 0, 2, 0), 24, "for documentation"),
    (Ipv4Addr::new(192, 31, 196, 0), 24, "reserved"),
    (Ipv4Addr::new(192, 52, 193, 0), 24, "reserved"),
    (Ipv4Addr::new(192, 88, 99, 0), 24, "a 6to4 relay"),
    (Ipv4Addr::new(192, 168, 0, 0), 16, "private"),
    (Ipv4Addr::new(192, 175, 48, 0), 24, "reserved"),
    (Ipv4Addr::new(198, 18, 0, 0), 15, "for benchmarks"),
    (Ipv4Addr::new(198, 51, 100, 0), 24, "for documentation"),
    (Ipv4Addr::new(203, 0, 113, 0), 24, "for documentation"),
    (Ipv4Addr::new(224, 0, 0, 0), 4, "multicast"),
    (Ipv4Addr::new(240, 0, 0, 0), 4, "reserved"),
];

/// Within 2000::/3, the only global unicast space, what is not globally reachable all the same.
const NOT_PUBLIC_V6: [(Ipv6Addr, u8, &str); 5] = [
    (Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, 0, 0), 23, "for protocols (Teredo among them)"),
    (Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 0), 32, "for documentation"),
    (Ipv6Addr::new(0x2002, 0, 0, 0, 0, 0, 0, 0), 16, "6to4"),
    (Ipv6Addr::new(0x2620, 0x4f, 0x8000, 0, 0, 0, 0, 0), 48, "reserved"),
    (Ipv6Addr::new(0x3fff, 0, 0, 0, 0, 0, 0, 0), 20, "for documentation"),
];

/// Where clouds hand out credentials to whoever asks. Never opened by any setting.
const METADATA: [IpAddr; 9] = [
    IpAddr::V4(Ipv4Addr::new(169, 254, 169, 254)), // AWS, Google, Azure, DigitalOcean, OpenStack, …
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 2)),   // AWS ECS
    IpAddr::V4(Ipv4Addr::new(169, 254, 170, 23)),  // AWS EKS
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)), // Alibaba
    IpAddr::V4(Ipv4Addr::new(192, 0, 0, 192)),     // Oracle
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),   // Azure's wire server, on a public address
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)), // AWS
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x23)), // AWS EKS
    IpAddr::V6(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254)), // Google
];

/// Names of the same, for networks where they resolve to something else.
const METADATA_NAMES: [&str; 7] = [
    "metadata",
    "metadata.google.internal",
    "metadata.goog",
    "metadata.azure.internal",
    "metadata.tencentyun.com",
    "instance-data",
    "instance-data.ec2.internal",
];

/// The address that packets to `ip` go to: IPv4 written inside IPv6 (mapped, or NAT64's well-known prefix) unwrapped.
pub fn canonical(ip: IpAddr) -> IpAddr {
    match ip {
        IpAddr::V6(v6) => match (v6.to_ipv4_mapped(), v6.segments()) {
            (Some(v4), _) => v4.into(),
            (None, [0x64, 0xff9b, 0, 0, 0, 0, high, low]) => v4_of(high, low).into(),
            _ => ip,
        },
        v4 => v4,
    }
}

/// Why `ip` is not public, or `None` where it is. Judges the address and every IPv4 address inside it.
pub fn not_public(ip: IpAddr) -> Option<&'static str> {
    match canonical(ip) {
        IpAddr::V4(v4) => within(&NOT_PUBLIC_V4, |(net, length, _)| prefix_v4(v4, *length) == *net),
        IpAddr::V6(v6) if v6.segments()[0] & 0xe000 != 0x2000 => Some(outside_global_unicast(v6)),
        IpAddr::V6(v6) => within(&NOT_PUBLIC_V6, |(net, length, _)| prefix_v6(v6, *length) == *net)
            .or_else(|| embedded(v6).into_iter().find_map(|v4| not_public(v4.into()))),
    }
}

/// Whether this is a cloud's metadata service, in whatever wrapping.
pub fn is_metadata(ip: IpAddr) -> bool {
    let canonical = canonical(ip);
    METADATA.contains(&canonical)
        || matches!(canonical, IpAddr::V6(v6) if embedded(v6).into_iter().any(|v4| METADATA.contains(&v4.into())))
}

/// Whether this is a name of a cloud's metadata service; `host` in lower case, without a trailing dot.
pub fn is_metadata_name(host: &str) -> bool {
    METADATA_NAMES.contains(&host)
}

fn within<N>(table: &[(N, u8, &'static str)], holds: impl Fn(&&(N, u8, &'static str)) -> bool) -> Option<&'static str> {
    table.iter().find(holds).map(|(_, _, why)| *why)
}

fn outside_global_unicast(ip: Ipv6Addr) -> &'static str {
    match ip.segments()[0] {
        _ if ip.is_loopback() => "loopback",
        _ if ip.is_unspecified() => "unspecified",
        first if first & 0xfe00 == 0xfc00 => "private",
        first if first & 0xffc0 == 0xfe80 => "link-local",
        first if first & 0xffc0 == 0xfec0 => "site-local",
        first if first & 0xff00 == 0xff00 => "multicast",
        _ => "not global unicast",
    }
}

/// IPv4 addresses that a tunnel or a translator would send a packet for `ip` on to: IPv4-compatible, local NAT64,
/// 6to4, Teredo (server, and client, which is written inverted), ISATAP.
fn embedded(ip: Ipv6Addr) -> Vec<Ipv4Addr> {
    match ip.segments() {
        [0, 0, 0, 0, 0, 0, high, low] => vec![v4_of(high, low)],
        [0x64, 0xff9b, 1, .., high, low] => vec![v4_of(high, low)],
        [0x2002, high, low, ..] => vec![v4_of(high, low)],
        [0x2001, 0, s1, s2, _, _, c1, c2] => vec![v4_of(s1, s2), v4_of(!c1, !c2)],
        [_, _, _, _, 0 | 0x200, 0x5efe, high, low] => vec![v4_of(high, low)],
        _ => vec![],
    }
}

fn v4_of(high: u16, low: u16) -> Ipv4Addr {
    Ipv4Addr::from_bits(u32::from(high) << 16 | u32::from(low))
}

fn prefix_v4(ip: Ipv4Addr, length: u8) -> Ipv4Addr {
    Ipv4Addr::from_bits(ip.to_bits() & (u32::MAX << (32 - length)))
}

fn prefix_v6(ip: Ipv6Addr, length: u8) -> Ipv6Addr {
    Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << (128 - length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn both_ends_of_every_range_are_inside_and_their_neighbours_outside() {
        let ranges = [
            ("0.0.0.0", "0.255.255.255"),
            ("10.0.0.0", "10.255.255.255"),
            ("100.64.0.0", "100.127.255.255"),
            ("127.0.0.0", "127.255.255.255"),
            ("169.254.0.0", "169.254.255.255"),
            ("172.16.0.0", "172.31.255.255"),
            ("192.0.0.0", "192.0.0.255"),
            ("192.0.2.0", "192.0.2.255"),
            ("192.31.196.0", "192.31.196.255"),
            ("192.52.193.0", "192.52.193.255"),
            ("192.88.99.0", "192.88.99.255"),
            ("192.168.0.0", "192.168.255.255"),
            ("192.175.48.0", "192.175.48.255"),
            ("198.18.0.0", "198.19.255.255"),
            ("198.51.100.0", "198.51.100.255"),
            ("203.0.113.0", "203.0.113.255"),
            ("224.0.0.0", "255.255.255.255"),
        ];
        for (first, last) in ranges {
            let bits = |text: &str| text.parse::<Ipv4Addr>().unwrap().to_bits();
            let public = |bits: u32| not_public(Ipv4Addr::from_bits(bits).into()).is_none();
            assert!(!public(bits(first)) && !public(bits(last)), "{first} to {last}");
            assert!(bits(first) == 0 || public(bits(first) - 1), "before {first}");
            assert!(bits(last) == u32::MAX || public(bits(last) + 1), "after {last}");
        }
    }

    #[test]
    fn ipv6_is_public_within_global_unicast_only() {
        for public in ["2606:4700:4700::1111", "2a00:1450:4001:81b::200e", "2001:200::1", "3ffe::1"] {
            assert_eq!(not_public(ip(public)), None, "{public}");
        }
        for not in [
            "::",
            "::1",
            "fc00::1",
            "fdff::1",
            "fe80::1",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "100::1",
            "2001::1",
            "2001:db8::1",
            "2001:10::1",
            "2001:20::1",
            "2002:0808:0808::1",
            "3fff::1",
            "5f00::1",
            "4000::1",
            "1fff::1",
            "64:ff9b:1::808:808",
            "2606:4700::5efe:127.0.0.1",
            "2606:4700::200:5efe:10.0.0.1",
        ] {
            assert!(not_public(ip(not)).is_some(), "{not}");
        }
    }

    #[test]
    fn ipv4_inside_ipv6_is_judged_as_ipv4() {
        assert_eq!(not_public(ip("::ffff:8.8.8.8")), None);
        assert_eq!(not_public(ip("64:ff9b::8.8.8.8")), None);
        for inside in ["::ffff:127.0.0.1", "64:ff9b::10.0.0.1", "::127.0.0.1", "2002:7f00:1::", "::ffff:0:127.0.0.1"] {
            assert!(not_public(ip(inside)).is_some(), "{inside}");
        }
    }

    #[test]
    fn metadata_is_known_in_every_wrapping() {
        for wrapped in [
            "169.254.169.254",
            "168.63.129.16",
            "fd00:ec2::254",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "64:ff9b:1::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "::169.254.169.254",
            "2606:4700::5efe:a9fe:a9fe",
            // Teredo: the client's address is written inverted
            "2001:0:808:808::5601:5601",
        ] {
            assert!(is_metadata(ip(wrapped)), "{wrapped}");
        }
        for other in ["169.254.169.253", "8.8.8.8", "fd00:ec2::253", "2606:4700::a9fe:a9fe"] {
            assert!(!is_metadata(ip(other)), "{other}");
        }
    }
}
