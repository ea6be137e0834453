//! `[oauth.*]`: the services that the operator has registered this one with, and that people can connect to.

use std::collections::BTreeMap;

use chrono::DateTime;
use serde::{Deserialize, Serialize};
use serde_json::json;
use url::Url;

use crate::base::invalid::{ValidationErrors, escape};
use crate::base::secret::Secret;
use crate::domain::credential::{ClientAuth, CredentialDraft, Inject, InjectForm, check_name};
use crate::ports::vault::credentials::hosts;
use crate::ports::vault::oauth::challenge::is_scope;

/// `[oauth]`: a section per service, by the service's name in references.
pub type Settings = BTreeMap<String, OAuthProvider>;

/// Parameters that the flow itself sets at the provider's login page; `authorize_parameters` may add others, not change
/// these.
const OURS: [&str; 8] = [
    "response_type",
    "client_id",
    "redirect_uri",
    "scope",
    "state",
    "code_challenge",
    "code_challenge_method",
    "resource",
];

/// `[oauth.<service>]`.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct OAuthProvider {
    /// The address that tokens are for (RFC 8707), such as that of an MCP server. Without `authorize_url` and
    /// `token_url` it is asked where people log in (RFC 9728).
    pub resource: Option<String>,
    /// Where people log in and agree (RFC 6749, section 3.1).
    pub authorize_url: String,
    /// Where codes and refresh tokens become access tokens (section 3.2).
    pub token_url: String,
    /// The provider's name for itself in `iss` when it sends people back (RFC 9207): another is refused, and so is one
    /// that gives none. Absent: it is not looked at. Where the addresses are discovered: which of the authorization
    /// servers is asked, absent the first.
    pub issuer: Option<String>,
    /// As the provider has registered us. Empty where addresses are discovered: this service shows itself there.
    pub client_id: String,
    /// Absent: a public client.
    pub client_secret: Option<Secret>,
    /// How the client shows who it is: `basic` or `body`.
    pub client_auth: ClientAuth,
    /// Scopes to ask for.
    pub scopes: Vec<String>,
    /// Further parameters for the login page, such as `access_type = "offline"`.
    pub authorize_parameters: BTreeMap<String, String>,
    /// Hosts that connected accounts may be used at; empty: that of the resource.
    pub hosts: Vec<String>,
    /// How they are put into requests; absent: the access token as bearer.
    pub inject: Option<Inject>,
}

impl OAuthProvider {
    /// How connected accounts are put into requests.
    pub fn inject(&self) -> Inject {
        self.inject.clone().unwrap_or(Inject {
            form: InjectForm::Bearer,
            from: Some("/access_token".into()),
            name: None,
            template: None,
        })
    }

    /// The hosts as credentials have them: in lower case and ASCII.
    pub fn hosts(&self) -> Vec<String> {
        // what can't be read was found when the service started
        self.draft().map_or_else(|_| Vec::new(), |draft| draft.hosts)
    }

    /// Whether the resource is asked where people log in and where tokens come from.
    pub fn is_discovered(&self) -> bool {
        self.resource.is_some() && self.authorize_url.is_empty() && self.token_url.is_empty()
    }

    /// The draft with which connected accounts are put, by the rules for all credentials.
    fn draft(&self) -> Result<CredentialDraft, ValidationErrors> {
        let of_resource = || self.resource.as_deref().and_then(|resource| Url::parse(resource).ok());
        let hosts = match (self.hosts.as_slice(), of_resource()) {
            ([], Some(resource)) => vec![hosts::host_and_port(&resource)],
            (hosts, _) => hosts.to_vec(),
        };
        CredentialDraft::parse(json!({ "hosts": hosts, "inject": self.inject() }), DateTime::UNIX_EPOCH)
    }
}

/// Adds what is wrong; pointers begin with `/oauth`.
pub fn check(settings: &Settings, faults: &mut ValidationErrors) {
    for (name, provider) in settings {
        let place = format!("/oauth/{}", escape(name));
        if let Err(why) = check_name(name) {
            faults.add(&place, why);
        }
        provider.check(&place, faults);
    }
}

impl OAuthProvider {
    fn check(&self, place: &str, faults: &mut ValidationErrors) {
        self.check_addresses(place, faults);
        if self.client_id.is_empty() && !self.is_discovered() {
            faults.add(format!("{place}/client_id"), "is missing: the id that the provider has given this service");
        }
        if self.client_id.is_empty() && self.is_discovered() && self.client_secret.is_some() {
            faults.add(format!("{place}/client_secret"), "needs the `client_id` that it belongs to");
        }
        if !self.client_id.is_empty() && self.is_discovered() && self.client_secret.is_some() && self.issuer.is_none() {
            let why = "is missing: the authorization server that has given the `client_secret`, which else went to any \
                       that the resource names";
            faults.add(format!("{place}/issuer"), why);
        }
        if self.client_secret.as_ref().is_some_and(|secret| secret.expose().trim().is_empty()) {
            faults.add(format!("{place}/client_secret"), "must not be empty; leave it out for a public client");
        }
        if self.hosts.is_empty() && self.resource.is_none() {
            faults
                .add(format!("{place}/hosts"), "is missing: the hosts of the service's API, such as `api.example.org`");
        }
        for fault in self.draft().err().into_iter().flat_map(|faults| faults.0) {
            faults.add(format!("{place}{}", fault.pointer), fault.message);
        }
        for (index, scope) in self.scopes.iter().enumerate() {
            if !is_scope(scope) {
                faults.add(format!("{place}/scopes/{index}"), "must be one scope: no spaces, quotes or backslashes");
            }
        }
        for name in self.authorize_parameters.keys().filter(|name| OURS.contains(&name.as_str())) {
            let place = format!("{place}/authorize_parameters/{}", escape(name));
            faults.add(place, "is set by the flow itself; leave it out");
        }
    }

    fn check_addresses(&self, place: &str, faults: &mut ValidationErrors) {
        let with_resource = self.resource.is_some();
        for (key, url) in [("authorize_url", &self.authorize_url), ("token_url", &self.token_url)] {
            let why = match url.as_str() {
                "" if self.is_discovered() => None,
                "" if with_resource => Some("is missing: with `resource` both addresses stand here, or none does"),
                url => url_fault(url),
            };
            if let Some(why) = why {
                faults.add(format!("{place}/{key}"), why);
            }
        }
        for (key, url) in [("issuer", &self.issuer), ("resource", &self.resource)] {
            if let Some(why) = url.as_deref().and_then(url_fault) {
                faults.add(format!("{place}/{key}"), why);
            }
        }
    }
}

fn url_fault(text: &str) -> Option<&'static str> {
    let right = "must be an address such as `https://id.example.org/authorize`, without a fragment";
    // RFC 6749, sections 3.1 and 3.2
    let open = "must be an https:// address: on http:// whoever is on the way reads secrets and tokens; http:// is for this machine alone";
    let is_good = |url: &Url| matches!(url.scheme(), "http" | "https") && url.has_host() && url.fragment().is_none();
    match Url::parse(text).ok().filter(is_good) {
        Some(url) => hosts::check_encrypted(&url, false).err().map(|_| open),
        None => Some(right),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> OAuthProvider {
        OAuthProvider {
            authorize_url: "https://id.example.org/authorize?tenant=7".into(),
            token_url: "https://id.example.org/token".into(),
            client_id: "reveille".into(),
            scopes: vec!["calendar.read".into()],
            hosts: vec!["api.example.org".into()],
            ..OAuthProvider::default()
        }
    }

    fn faults(name: &str, provider: OAuthProvider) -> Vec<String> {
        let mut faults = ValidationErrors::new();
        check(&Settings::from([(name.to_owned(), provider)]), &mut faults);
        faults.0.into_iter().map(|fault| format!("{}: {}", fault.pointer, fault.message)).collect()
    }

    #[test]
    fn hosts_are_kept_as_requests_name_them_and_there_must_be_one() {
        let provider = OAuthProvider { hosts: vec!["API.example.org".into()], ..good() };
        assert_eq!(provider.hosts(), ["api.example.org"]);
        let found = faults("calendar", OAuthProvider { hosts: vec![], ..good() });
        assert_eq!(
            found,
            ["/oauth/calendar/hosts: is missing: the hosts of the service's API, such as `api.example.org`"]
        );
    }

    #[test]
    fn section_with_a_resource_needs_nothing_else_and_is_used_at_its_host() {
        let bare = |resource: &str| OAuthProvider { resource: Some(resource.into()), ..OAuthProvider::default() };
        let notes = bare("https://MCP.example.org:8443/mcp");
        assert_eq!(faults("notes", notes.clone()), [""; 0]);
        assert!(notes.is_discovered() && !good().is_discovered());
        assert_eq!(notes.hosts(), ["mcp.example.org:8443"]);
        let both = OAuthProvider { resource: notes.resource.clone(), ..good() };
        assert_eq!((faults("notes", both.clone()), both.is_discovered()), (vec![], false));
        let half = OAuthProvider {
            authorize_url: String::new(),
            client_secret: Some(Secret::new("s")),
            resource: Some("http://mcp.example.org/mcp".into()),
            ..good()
        };
        let open = "must be an https:// address: on http:// whoever is on the way reads secrets and tokens; \
                    http:// is for this machine alone";
        assert_eq!(
            faults("notes", half),
            [
                "/oauth/notes/authorize_url: is missing: with `resource` both addresses stand here, or none does"
                    .to_owned(),
                format!("/oauth/notes/resource: {open}"),
            ]
        );
        let issuer = || Some("https://id.example.org".to_owned());
        let secret = |issuer| {
            let (client_id, client_secret) = ("reveille".to_owned(), Some(Secret::new("s")));
            faults("notes", OAuthProvider { client_id, client_secret, issuer, ..notes.clone() })
        };
        assert_eq!(secret(issuer()), [""; 0]);
        let told = "/oauth/notes/issuer: is missing: the authorization server that has given the `client_secret`, which \
                    else went to any that the resource names";
        assert_eq!(secret(None), [told]);
        let nobody = OAuthProvider { client_secret: Some(Secret::new("s")), ..notes };
        assert_eq!(faults("notes", nobody), ["/oauth/notes/client_secret: needs the `client_id` that it belongs to"]);
    }

    #[test]
    fn http_is_good_on_this_machine_only() {
        let at = |url: &str| {
            faults("calendar", OAuthProvider { authorize_url: url.into(), token_url: url.into(), ..good() })
        };
        for here in ["https://id.example.org/t", "http://127.0.0.1:9/t", "http://[::1]/t", "http://localhost/t"] {
            assert_eq!(at(here), [""; 0], "{here}");
        }
        for away in ["http://id.example.org/token", "http://10.0.0.7/t", "http://localhost.example.org/t"] {
            let why = "must be an https:// address: on http:// whoever is on the way reads secrets and tokens; \
                       http:// is for this machine alone";
            let both = ["authorize_url", "token_url"].map(|key| format!("/oauth/calendar/{key}: {why}"));
            assert_eq!(at(away), both, "{away}");
        }
    }

    #[test]
    fn section_says_all_that_the_flow_needs_or_each_thing_that_is_wrong() {
        assert_eq!(faults("calendar", good()), [""; 0]);
        let wrong = OAuthProvider {
            authorize_url: "id.example.org".into(),
            token_url: "https://id.example.org/token#x".into(),
            issuer: Some("id.example.org".into()),
            client_secret: Some(Secret::new(" ")),
            scopes: vec!["read write".into()],
            hosts: vec!["https://api.example.org/".into()],
            inject: Some(Inject { form: InjectForm::Header, from: None, name: None, template: None }),
            authorize_parameters: BTreeMap::from([("state".into(), "x".into()), ("prompt".into(), "consent".into())]),
            ..OAuthProvider::default()
        };
        assert_eq!(
            faults("my/calendar", wrong),
            [
                "/oauth/my~1calendar: a name may hold letters, digits and . _ - @ +, not '/'",
                "/oauth/my~1calendar/authorize_url: must be an address such as `https://id.example.org/authorize`, without a fragment",
                "/oauth/my~1calendar/token_url: must be an address such as `https://id.example.org/authorize`, without a fragment",
                "/oauth/my~1calendar/issuer: must be an address such as `https://id.example.org/authorize`, without a fragment",
                "/oauth/my~1calendar/client_id: is missing: the id that the provider has given this service",
                "/oauth/my~1calendar/client_secret: must not be empty; leave it out for a public client",
                "/oauth/my~1calendar/hosts/0: must be a host without scheme and path, such as `api.example.org`, `*.example.org` or `api.example.org:8443`",
                "/oauth/my~1calendar/inject/name: is needed: the name of the header, query parameter or body field",
                "/oauth/my~1calendar/scopes/0: must be one scope: no spaces, quotes or backslashes",
                "/oauth/my~1calendar/authorize_parameters/state: is set by the flow itself; leave it out",
            ]
        );
    }
}
