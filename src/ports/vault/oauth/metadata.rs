//! Metadata of a protected resource (RFC 9728) and of its authorization server (RFC 8414), judged: whose it is, where
//! people log in, where tokens come from, and what this service may count on.

use serde::Deserialize;
use url::Url;

use crate::base::unicode_safety::on_one_line;
use crate::ports::egress::Egress;
use crate::ports::vault::credentials::hosts;
use crate::ports::vault::oauth::challenge::is_scope;

/// Longest address that is taken from metadata, in bytes: the issuer's goes into the state of a flow.
const ADDRESS_BYTES: usize = 512;
/// How much of a text from outside is shown, in characters.
const SHOWN: usize = 200;
/// The scope for tokens that can be renewed while nobody is there.
pub const OFFLINE: &str = "offline_access";

/// Why nothing was discovered. The texts hold no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DiscoveryError {
    /// The server or the configuration has to be put right first; the sentence says what.
    #[error("{0}")]
    Refused(String),
    /// Nobody answers now.
    #[error("{0}")]
    Later(String),
}

/// The metadata of a resource, as far as it is used.
#[derive(Debug, Deserialize)]
pub struct ResourceDocument {
    resource: String,
    #[serde(default)]
    authorization_servers: Vec<String>,
    #[serde(default)]
    scopes_supported: Vec<String>,
}

/// The metadata of an authorization server, as far as it is used.
#[derive(Debug, Deserialize)]
pub struct ServerDocument {
    issuer: String,
    authorization_endpoint: Option<String>,
    token_endpoint: Option<String>,
    registration_endpoint: Option<String>,
    #[serde(default)]
    code_challenge_methods_supported: Vec<String>,
    token_endpoint_auth_methods_supported: Option<Vec<String>>,
    #[serde(default)]
    scopes_supported: Vec<String>,
    #[serde(default)]
    client_id_metadata_document_supported: bool,
    #[serde(default)]
    authorization_response_iss_parameter_supported: bool,
}

/// An authorization server as its metadata describes it, for one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiscoveredServer {
    /// Its name for itself.
    pub issuer: String,
    /// It says who it is when it sends people back (`iss`, RFC 9207).
    pub names_itself: bool,
    /// Where people log in and agree.
    pub authorize_url: String,
    /// Where codes and refresh tokens become access tokens.
    pub token_url: String,
    /// Where clients register themselves (RFC 7591).
    pub registration_url: Option<String>,
    /// It takes the address of a document as the id of a client.
    pub takes_client_documents: bool,
    /// Ways in which a client may show itself at the token endpoint; `None`: it does not say.
    pub auth_methods: Option<Vec<String>>,
    /// The resource that tokens are asked for (RFC 8707).
    pub resource: String,
    /// Scopes to ask for, where the operator names none.
    pub scopes: Vec<String>,
    /// `offline_access` is one that nobody but us asked for.
    pub is_made_offline: bool,
}

impl ResourceDocument {
    /// Whether it is the metadata of this resource, or of one that this lies below (RFC 9728, section 3.3). `place`:
    /// where it was found.
    pub fn check_resource(&self, resource: &Url, place: &Url) -> Result<(), DiscoveryError> {
        // its very text goes into links and requests
        let is_short = self.resource.len() <= ADDRESS_BYTES;
        if is_short && Url::parse(&self.resource).is_ok_and(|named| holds(&named, resource)) {
            return Ok(());
        }
        let why = format!("the metadata at {place} is that of another resource, `{}`", shown(&self.resource));
        Err(DiscoveryError::Refused(format!("{why}; `resource` is to be its address")))
    }

    /// The authorization server to ask: `wanted`, where the operator names one, else the first.
    pub fn issuer(&self, wanted: Option<&str>) -> Result<&str, DiscoveryError> {
        let servers = &self.authorization_servers;
        let refused = |why: String| Err(DiscoveryError::Refused(why));
        match (wanted, servers.first()) {
            (_, None) => refused("its metadata names no authorization server (`authorization_servers`)".into()),
            (None, Some(first)) => Ok(first),
            (Some(wanted), Some(first)) => match servers.iter().find(|named| is_same(named, wanted)) {
                Some(named) => Ok(named),
                None => refused(format!("its metadata does not name `issuer`, but `{}`", shown(first))),
            },
        }
    }
}

impl ServerDocument {
    /// The server as it is used for a resource, whose challenge named these scopes. `issuer`: whose metadata was asked
    /// for.
    ///
    /// # Errors
    /// It is that of another, or of a server that can't be used safely.
    pub fn judge(
        self,
        egress: &Egress,
        issuer: &str,
        resource: &ResourceDocument,
        challenged: Vec<String>,
    ) -> Result<DiscoveredServer, DiscoveryError> {
        let refused =
            |why: String| DiscoveryError::Refused(format!("the authorization server `{}` {why}", shown(issuer)));
        if !is_same(&self.issuer, issuer) {
            return Err(refused(format!("has metadata of another one, `{}`", shown(&self.issuer))));
        }
        if !self.code_challenge_methods_supported.iter().any(|method| method == "S256") {
            return Err(refused(
                "does not say that it takes PKCE with S256 (`code_challenge_methods_supported`)".into(),
            ));
        }
        let needed = |name: &str, url: Option<&str>| {
            let url = url.ok_or_else(|| refused(format!("names no `{name}`")))?;
            address(egress, &format!("`{name}` of the authorization server"), url).map(String::from)
        };
        let (scopes, is_made_offline) = self.scopes(resource, challenged);
        let registration = self.registration_endpoint.as_deref();
        Ok(DiscoveredServer {
            authorize_url: needed("authorization_endpoint", self.authorization_endpoint.as_deref())?,
            token_url: needed("token_endpoint", self.token_endpoint.as_deref())?,
            registration_url: registration.map(|url| needed("registration_endpoint", Some(url))).transpose()?,
            names_itself: self.authorization_response_iss_parameter_supported,
            takes_client_documents: self.client_id_metadata_document_supported,
            auth_methods: self.token_endpoint_auth_methods_supported,
            resource: resource.resource.clone(),
            issuer: self.issuer,
            scopes,
            is_made_offline,
        })
    }

    /// The scopes of the challenge, else those of the resource; and the one without which nothing can be renewed, where
    /// the server has it. Whether that is ours.
    fn scopes(&self, resource: &ResourceDocument, challenged: Vec<String>) -> (Vec<String>, bool) {
        let supported = || resource.scopes_supported.iter().filter(|scope| is_scope(scope)).cloned().collect();
        let mut scopes: Vec<String> = if challenged.is_empty() { supported() } else { challenged };
        let has = |scopes: &[String]| scopes.iter().any(|scope| scope == OFFLINE);
        let is_made_offline = has(&self.scopes_supported) && !has(&scopes);
        if is_made_offline {
            scopes.push(OFFLINE.to_owned());
        }
        (scopes, is_made_offline)
    }
}

/// An address that was told from outside, where it may be asked: without user, password and fragment, and encrypted.
/// `name`: its name in the error.
pub fn address(egress: &Egress, name: &str, text: &str) -> Result<Url, DiscoveryError> {
    let refused = |why: &str| DiscoveryError::Refused(format!("{name}, `{}`, {why}", shown(text)));
    if text.len() > ADDRESS_BYTES {
        return Err(refused(&format!("must have at most {ADDRESS_BYTES} bytes")));
    }
    let is_plain = |url: &Url| {
        matches!(url.scheme(), "http" | "https")
            && url.has_host()
            && url.username().is_empty()
            && url.password().is_none()
            && url.fragment().is_none()
    };
    // a parser of addresses leaves blanks and line ends out, and some of these texts are used as they came
    let is_bare = !text.contains(|c: char| c.is_whitespace() || c.is_control());
    let url = Url::parse(text).ok().filter(|url| is_bare && is_plain(url));
    let url = url.ok_or_else(|| refused("must be an https address without user, password and fragment"))?;
    match hosts::check_encrypted(&url, egress.is_allowed(&url)) {
        Ok(()) => Ok(url),
        Err(_) => Err(refused("must be an https address, but on this machine and where [egress] allow opens it")),
    }
}

/// The beginning of a text from outside, on one line.
pub fn shown(text: &str) -> String {
    on_one_line(&text.chars().take(SHOWN).collect::<String>())
}

/// Whether a resource is the named one, or lies below it.
fn holds(named: &Url, resource: &Url) -> bool {
    let base = named.path().trim_end_matches('/');
    let is_below = || resource.path().strip_prefix(base).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    let is_base = || named.query().is_none() && named.fragment().is_none();
    named == resource || (named.origin() == resource.origin() && is_base() && is_below())
}

/// Whether both are one issuer: an address without a path may be written with a slash at its end.
fn is_same(one: &str, other: &str) -> bool {
    let bare = |text: &str| text.strip_suffix('/').unwrap_or(text).to_owned();
    let are_equal = || matches!((Url::parse(one), Url::parse(other)), (Ok(one), Ok(other)) if one == other);
    one == other || (bare(one) == bare(other) && are_equal())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const ISSUER: &str = "https://id.example.org";

    fn egress() -> Egress {
        Egress::new(&Default::default()).unwrap()
    }

    fn resource(change: Value) -> ResourceDocument {
        let mut document = json!({
            "resource": "https://mcp.example.org/mcp", "authorization_servers": [ISSUER], "scopes_supported": ["a", "ä"],
        });
        document.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        serde_json::from_value(document).unwrap()
    }

    fn server(change: Value) -> ServerDocument {
        let mut document = json!({
            "issuer": ISSUER, "authorization_endpoint": format!("{ISSUER}/authorize"),
            "token_endpoint": format!("{ISSUER}/token"), "code_challenge_methods_supported": ["plain", "S256"],
        });
        document.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
        serde_json::from_value(document).unwrap()
    }

    fn judged(change: Value) -> Result<DiscoveredServer, String> {
        let judged = server(change).judge(&egress(), ISSUER, &resource(json!({})), vec![]);
        judged.map_err(|error| error.to_string())
    }

    #[test]
    fn metadata_counts_for_the_resource_that_it_names_and_for_what_lies_below() {
        let asked = Url::parse("https://mcp.example.org/mcp").unwrap();
        let is_of = |named: &str| resource(json!({ "resource": named })).check_resource(&asked, &asked).is_ok();
        for own in ["https://mcp.example.org/mcp", "https://mcp.example.org", "https://MCP.example.org:443/"] {
            assert!(is_of(own), "{own}");
        }
        for other in [
            "https://mcp.example.org/mc",
            "https://mcp.example.org/mcp/below",
            "https://mcp.example.org?a=b",
            "https://mcp.example.org#a",
            &format!("https://mcp.example.org/{}mcp", "a/../".repeat(ADDRESS_BYTES / 5)),
            "http://mcp.example.org/mcp",
            "https://example.org/mcp",
            "mcp",
            "",
        ] {
            assert!(!is_of(other), "{other}");
        }
    }

    #[test]
    fn first_authorization_server_is_asked_unless_the_operator_names_another_of_them() {
        let both = resource(json!({ "authorization_servers": [ISSUER, "https://b.example.org/"] }));
        assert_eq!(both.issuer(None), Ok(ISSUER));
        assert_eq!(both.issuer(Some("https://b.example.org")), Ok("https://b.example.org/"));
        let told = |document: &ResourceDocument, wanted| document.issuer(wanted).unwrap_err().to_string();
        let other = "its metadata does not name `issuer`, but `https://id.example.org`";
        assert_eq!(told(&both, Some("https://ID.example.org")), other);
        assert_eq!(told(&both, Some("https://c.example.org")), other);
        let none = resource(json!({ "authorization_servers": [] }));
        assert_eq!(told(&none, None), "its metadata names no authorization server (`authorization_servers`)");
    }

    #[test]
    fn server_is_taken_with_all_that_it_needs_and_told_what_it_lacks() {
        let found = judged(json!({ "registration_endpoint": format!("{ISSUER}/register") })).unwrap();
        assert_eq!(found.token_url, format!("{ISSUER}/token"));
        assert_eq!(found.registration_url, Some(format!("{ISSUER}/register")));
        assert!(!found.names_itself && !found.takes_client_documents);
        let name = format!("the authorization server `{ISSUER}`");
        for (change, told) in [
            (json!({ "issuer": "https://evil.example" }), format!("{name} has metadata of another one, `https://evil.example`")),
            (
                json!({ "code_challenge_methods_supported": ["plain"] }),
                format!("{name} does not say that it takes PKCE with S256 (`code_challenge_methods_supported`)"),
            ),
            (json!({ "token_endpoint": null }), format!("{name} names no `token_endpoint`")),
            (
                json!({ "authorization_endpoint": "javascript:alert(1)" }),
                "`authorization_endpoint` of the authorization server, `javascript:alert(1)`, must be an https address \
                 without user, password and fragment"
                    .into(),
            ),
            (
                json!({ "token_endpoint": "http://id.example.org/token" }),
                "`token_endpoint` of the authorization server, `http://id.example.org/token`, must be an https address, \
                 but on this machine and where [egress] allow opens it"
                    .into(),
            ),
        ] {
            assert_eq!(judged(change), Err(told));
        }
    }

    #[test]
    fn scopes_of_the_challenge_go_before_those_of_the_resource_and_renewal_is_asked_for() {
        let scopes = |change: Value, challenged: &[&str]| {
            let challenged = challenged.iter().map(|&scope| scope.to_owned()).collect();
            let found = server(change).judge(&egress(), ISSUER, &resource(json!({})), challenged).unwrap();
            (found.scopes.join(" "), found.is_made_offline)
        };
        let offline = || json!({ "scopes_supported": ["openid", "offline_access"] });
        assert_eq!(scopes(json!({}), &[]), ("a".into(), false));
        assert_eq!(scopes(json!({}), &["b", "c"]), ("b c".into(), false));
        assert_eq!(scopes(offline(), &[]), ("a offline_access".into(), true));
        assert_eq!(scopes(offline(), &["offline_access"]), ("offline_access".into(), false));
    }

    #[test]
    fn address_is_taken_at_its_longest_and_not_one_byte_beyond_it() {
        let of_length =
            |length: usize| format!("https://a.example/{}", "x".repeat(length - "https://a.example/".len()));
        assert!(address(&egress(), "`resource`", &of_length(ADDRESS_BYTES)).is_ok());
        let told = address(&egress(), "`resource`", &of_length(ADDRESS_BYTES + 1)).unwrap_err().to_string();
        assert!(
            told.starts_with("`resource`, `https://a.example/xxx") && told.ends_with("must have at most 512 bytes"),
            "{told}"
        );
        for odd in [
            "https://ann:pw@a.example/",
            "https://a.example/#x",
            "ftp://a.example/",
            "a.example",
            "https://a.example/\n",
            "https://a.ex\tample/",
        ] {
            assert!(address(&egress(), "`resource`", odd).is_err(), "{odd}");
        }
    }
}
