//! The table of spellings: every way to write an address that must not be reached.

use std::net::Ipv4Addr;

use reveille::ports::egress::{Egress, EgressError, EgressRequest, Settings};

use super::{Names, denied, egress, settings};

/// Written by hand: what parsers disagree about.
const ODD: [&str; 92] = [
    "http://localhost.:22/",
    "http://127.1",
    "http://127.0.1",
    "http://127.0.0.1.",
    "http://127.000.000.001",
    "http://0x7f.1",
    "http://0177.1",
    "http://0x7f.0.0x0.01",
    "http://0x7F.0x00.0x00.0x01",
    "http://0x00000000000000007f.0.0.1",
    "http://00000000177.0.0.1",
    "http://0",
    "http://0x0",
    "http://00",
    "http://0.0.0.0",
    "http://0.1",
    "http://0x",
    "http://4294967295",
    "http://4294967296",
    "http://256.256.256.256",
    "http://1.2.3.4.5",
    "http://127.0.0.0x100",
    "http://127.0.0.1.1",
    "http://127..0.1",
    "http://.127.0.0.1",
    "http://１２７.０.０.１",
    "http://①②⑦.⓪.⓪.①",
    "http://127。0。0。1",
    "http://127．0．0．1",
    "http://127｡0｡0｡1",
    "http://%31%32%37.0.0.1",
    "http://127%2e0%2e0%2e1",
    "http://127.0.0.1%00.example.org",
    "http://127.0.0.1%20.example.org",
    "http://12\t7.0.0.1",
    "http://127.0\n.0.1",
    "http://127.0.0.1\r\n",
    "  http://127.0.0.1  ",
    "\u{1}http://127.0.0.1",
    "HTTP://127.0.0.1",
    "hTtP://127.0.0.1",
    "http:127.0.0.1",
    "http:/127.0.0.1",
    "http:///127.0.0.1",
    "http:////127.0.0.1",
    "http:\\\\127.0.0.1",
    "http:/\\127.0.0.1",
    "http://127.0.0.1\\@example.org",
    "http://127.0.0.1\\.example.org",
    "http://127.0.0.1#@example.org",
    "http://127.0.0.1?@example.org",
    "http://127.0.0.1/@example.org",
    "http://example.org@127.0.0.1",
    "http://example.org:80@127.0.0.1",
    "http://example.org%40127.0.0.1@127.0.0.1",
    "http://user:password@example.org",
    "http://user@example.org",
    "http://:password@example.org",
    "http://a@b@127.0.0.1",
    "http://[::1]",
    "http://[::]",
    "http://[0:0:0:0:0:0:0:1]",
    "http://[0000:0000:0000:0000:0000:0000:0000:0001]",
    "http://[::0001]",
    "http://[::ffff:127.0.0.1]",
    "http://[::FFFF:7F00:1]",
    "http://[0:0:0:0:0:ffff:127.0.0.1]",
    "http://[::127.0.0.1]",
    "http://[::7f00:1]",
    "http://[::ffff:0:127.0.0.1]",
    "http://[fe80::1%25eth0]",
    "http://[fe80::1%eth0]",
    "http://[::1",
    "http://::1",
    "http://[::1]]",
    "http://[[::1]]",
    "http://[v1.::1]",
    "http://[127.0.0.1]",
    "http://",
    "http://.",
    "http://..",
    "http://:80",
    "",
    "//127.0.0.1",
    "127.0.0.1",
    "example.org",
    "file:///etc/passwd",
    "ftp://example.org",
    "gopher://127.0.0.1:6379/_INFO",
    "data:text/plain,hello",
    "javascript:alert(1)",
    "ws://example.org",
];

/// Not public, one or more of each kind; the metadata services among them.
const PRIVATE: [Ipv4Addr; 20] = [
    Ipv4Addr::new(0, 1, 2, 3),
    Ipv4Addr::new(10, 0, 0, 1),
    Ipv4Addr::new(10, 255, 255, 254),
    Ipv4Addr::new(100, 64, 0, 1),
    Ipv4Addr::new(100, 100, 100, 200),
    Ipv4Addr::new(127, 0, 0, 1),
    Ipv4Addr::new(127, 255, 255, 254),
    Ipv4Addr::new(169, 254, 1, 1),
    Ipv4Addr::new(169, 254, 169, 254),
    Ipv4Addr::new(169, 254, 170, 2),
    Ipv4Addr::new(172, 16, 0, 1),
    Ipv4Addr::new(172, 31, 255, 254),
    Ipv4Addr::new(192, 0, 0, 192),
    Ipv4Addr::new(192, 0, 2, 1),
    Ipv4Addr::new(192, 168, 1, 1),
    Ipv4Addr::new(198, 18, 0, 1),
    Ipv4Addr::new(203, 0, 113, 1),
    Ipv4Addr::new(224, 0, 0, 1),
    Ipv4Addr::new(240, 0, 0, 1),
    Ipv4Addr::new(255, 255, 255, 255),
];

/// Every spelling of an IPv4 address that the URL standard reads, and every IPv6 address that leads to it.
fn spellings(ip: Ipv4Addr) -> Vec<String> {
    let [a, b, c, d] = ip.octets();
    let n = ip.to_bits();
    let (high, low) = (n >> 16, n & 0xffff);
    vec![
        format!("{ip}"),
        format!("{ip}."),
        format!("{n}"),
        format!("{n:#x}"),
        format!("0{n:o}"),
        format!("0x{a:x}.0x{b:x}.0x{c:x}.0x{d:x}"),
        format!("0{a:o}.0{b:o}.0{c:o}.0{d:o}"),
        format!("{a}.0x{b:x}.0{c:o}.{d}"),
        format!("{a}.{}", n & 0xff_ffff),
        format!("{a}.{b}.{low}"),
        format!("[::ffff:{ip}]"),
        format!("[::ffff:{high:x}:{low:x}]"),
        format!("[::{ip}]"),
        format!("[64:ff9b::{ip}]"),
        format!("[64:ff9b::{high:x}:{low:x}]"),
        format!("[64:ff9b:1::{high:x}:{low:x}]"),
        format!("[2002:{high:x}:{low:x}::1]"),
        format!("[2001:0:808:808::{:x}:{:x}]", !high & 0xffff, !low & 0xffff),
        format!("[2001:0:{high:x}:{low:x}::f7f7:f7f7]"),
        format!("[2606:4700::5efe:{high:x}:{low:x}]"),
    ]
}

/// The whole table, as URLs.
pub fn all() -> Vec<String> {
    let private = PRIVATE.into_iter().flat_map(spellings).map(|host| format!("http://{host}/"));
    ODD.into_iter().map(str::to_owned).chain(private).collect()
}

fn refused(egress: &Egress, url: &str) -> bool {
    matches!(egress.check(url), Err(EgressError::Denied { .. } | EgressError::Invalid { .. }))
}

#[test]
fn no_spelling_of_a_private_address_passes() {
    let egress = egress(&[]);
    let mut tried = 0;
    for host in PRIVATE.into_iter().flat_map(spellings) {
        for url in [format!("http://{host}/"), format!("https://{host}:8443/a?b=c"), format!("http:\\\\{host}\\")] {
            assert!(refused(&egress, &url), "{url}");
            tried += 1;
        }
    }
    assert_eq!(tried, 20 * 20 * 3);
}

#[test]
fn odd_address_spellings_are_denied() {
    let egress = egress(&[]);
    for url in ODD {
        assert!(refused(&egress, url), "{url:?}");
    }
}

#[test]
fn no_setting_opens_a_metadata_service() {
    let everything = ["0.0.0.0/0:*", "[::/0]:*", "*.internal:*", "metadata:*", "169.254.169.254:*", "metadata.goog:*"];
    let egress = egress(&everything);
    let services =
        ["169.254.169.254", "169.254.170.2", "169.254.170.23", "100.100.100.200", "192.0.0.192", "168.63.129.16"];
    for host in services.into_iter().flat_map(|ip| spellings(ip.parse().unwrap())) {
        let why = denied(egress.check(&format!("http://{host}/latest/meta-data")));
        assert!(why.ends_with("is a cloud's metadata service"), "{host}: {why}");
    }
    let named = [
        "metadata.google.internal",
        "METADATA.Google.Internal.",
        "metadata.goog",
        "metadata",
        "instance-data",
        "[fd00:ec2::254]",
        "[FD20:CE:0::254]",
    ];
    for host in named {
        let why = denied(egress.check(&format!("http://{host}/")));
        assert!(why.ends_with("is a cloud's metadata service"), "{host}: {why}");
    }
    assert!(egress.check("http://127.0.0.1:1/").is_ok(), "the settings do open everything else");
}

#[tokio::test]
async fn name_that_leads_to_a_metadata_service_is_denied_where_everything_is_open() {
    let names = Names::default()
        .with("innocent.example", &[&["169.254.169.254"]])
        .with("mapped.example", &[&["::ffff:a9fe:a9fe"]]);
    let egress = Egress::with_resolver(&settings(&["0.0.0.0/0:*", "[::/0]:*", "*.example:*"]), names).unwrap();
    for name in ["innocent.example", "mapped.example"] {
        let why = denied(egress.fetch(EgressRequest::new(http::Method::GET, format!("http://{name}/"))).await);
        assert!(why.ends_with("is a cloud's metadata service"), "{why}");
    }
}

#[test]
fn public_addresses_pass() {
    let egress = egress(&[]);
    for (url, read) in [
        ("https://example.org", "https://example.org/"),
        ("http://8.8.8.8:8080/a?b=c#d", "http://8.8.8.8:8080/a?b=c"),
        ("HTTPS://Bücher.example./x", "https://xn--bcher-kva.example./x"),
        ("https://[2606:4700:4700::1111]:8443/", "https://[2606:4700:4700::1111]:8443/"),
        ("http://[::ffff:8.8.8.8]/", "http://[::ffff:808:808]/"),
        ("http://[64:ff9b::8.8.8.8]/", "http://[64:ff9b::808:808]/"),
    ] {
        assert_eq!(egress.check(url).unwrap().as_str(), read);
    }
}

#[test]
fn egress_allows_listed_ports_only() {
    let egress = egress(&[]);
    for port in [80, 443, 8080, 8443] {
        assert!(egress.check(&format!("http://example.org:{port}")).is_ok(), "{port}");
    }
    for port in [0, 1, 22, 25, 53, 3306, 5432, 6379, 9200, 11211, 65535] {
        let why = denied(egress.check(&format!("http://example.org:{port}")));
        assert!(why.starts_with(&format!("port {port} of example.org is not open")), "{why}");
    }
    assert!(matches!(egress.check("http://example.org:65536"), Err(EgressError::Invalid { .. })));
}

#[test]
fn entry_opens_its_place_and_port_and_nothing_else() {
    let open = |entry: &str, url: &str| egress(&[entry]).check(url).is_ok();
    let cases = [
        ("10.1.0.0/16", "http://10.1.2.3", true),
        ("10.1.0.0/16", "http://10.2.2.3", false),
        ("10.1.0.0/16", "http://10.1.2.3:9000", false),
        ("10.1.0.0/16:9000", "http://10.1.2.3:9000", true),
        ("10.1.0.0/16:9000", "http://10.1.2.3:80", true),
        ("10.1.0.0/16:9000", "http://10.1.2.3:9001", false),
        ("10.1.2.3:*", "http://10.1.2.3:1", true),
        ("10.1.2.3:*", "http://10.1.2.4:1", false),
        ("127.0.0.0/8", "http://[::ffff:127.0.0.1]", true),
        ("127.0.0.0/8", "http://[::1]", false),
        ("::1", "http://[::1]", true),
        ("[::1]:9000", "http://[::1]:9000", true),
        ("fd00::/8", "https://[fd12::1]", true),
        ("2002::/16", "http://[2002:a9fe:a9fe::1]", false),
        ("example.org:9000", "http://example.org:9000", true),
        ("example.org:9000", "http://EXAMPLE.org.:9000", true),
        ("example.org:9000", "http://sub.example.org:9000", false),
        ("*.example.org:9000", "http://sub.example.org:9000", true),
        ("*.example.org:9000", "http://example.org:9000", false),
        ("*.example.org:9000", "http://badexample.org:9000", false),
        // a name does not open the address under which it might be found
        ("hooks.internal", "http://10.1.2.3", false),
    ];
    for (entry, url, expected) in cases {
        assert_eq!(open(entry, url), expected, "allow = [\"{entry}\"] and {url}");
    }
}

#[test]
fn faults_in_the_settings_are_named_by_their_place() {
    let settings = Settings {
        allow: ["10.0.0.0/8", "10.0.0.0/33", "a b", "[::1", "host:99999", "1.2.3.4.5"].map(String::from).to_vec(),
        schemes: vec!["https".into(), "htp".into()],
        ..Settings::default()
    };
    let faults = Egress::new(&settings).err().unwrap();
    let places: Vec<&str> = faults.0.iter().map(|fault| fault.pointer.as_str()).collect();
    assert_eq!(
        places,
        [
            "/egress/schemes/1",
            "/egress/allow/1",
            "/egress/allow/2",
            "/egress/allow/3",
            "/egress/allow/4",
            "/egress/allow/5"
        ]
    );
    assert_eq!(faults.0[0].message, "unknown scheme `htp`; did you mean `http`?");

    let proxy = Settings {
        proxy: Some(reveille::base::secret::Secret::new("socks5://ann:canary@proxy")),
        ..Settings::default()
    };
    let faults = Egress::new(&proxy).err().unwrap().to_string();
    assert_eq!(faults, "/egress/proxy: expected http://user:password@host:port, with the scheme http");
}
