//! One authorisation on its way (RFC 6749, section 4.1, with PKCE, RFC 7636): begun here, agreed to at the provider,
//! and ended by whoever is sent back with a code.
//!
//! Nothing of it is stored. All that is needed to end it is in `state`, sealed by the vault: for whom, and the verifier
//! without which the code is of no use. So a flow survives a restart, ends on any instance, and can't be made up.

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use chrono::{DateTime, TimeDelta, Utc};
use serde::{Deserialize, Serialize};
use url::Url;
use uuid::Uuid;
use zeroize::Zeroizing;

use crate::base::secret::Secret;
use crate::domain::credential::{ClientAuth, Reference};
use crate::ports::vault::oauth::client::OAuthClient;
use crate::ports::vault::oauth::provider::OAuthProvider;
use crate::ports::vault::{Context, Vault, VaultError};

/// How long a person has from the link to the button.
pub const LIFE: TimeDelta = TimeDelta::minutes(10);
/// Place for which a state is sealed: nothing else that the vault has sealed opens as one.
const PLACE: Context<'_> = Context { tenant: "", service: "oauth", account: "", field: "connect/state/1" };
/// Bytes of chance in a verifier (RFC 7636, section 4.1, recommends these).
const VERIFIER_BYTES: usize = 32;

/// A connection to make: which account for which tenant.
#[derive(Debug, Clone)]
pub struct OAuthFlow {
    /// Which flow this is; it can be ended once.
    pub id: Uuid,
    /// The tenant for which the account is connected.
    pub tenant: String,
    /// The credential that will be written.
    pub reference: Reference,
    /// The requester of the link: `token:<id>`.
    pub by: String,
    /// The instant from which the link leads nowhere.
    pub expires_at: DateTime<Utc>,
    /// The authorization server that is asked, where it was discovered.
    pub server: Option<FlowServer>,
    verifier: Secret,
}

/// The discovered authorization server of a flow, and who this service is there. A code of another is not sent to it.
#[derive(Debug, Clone)]
pub struct FlowServer {
    /// Its name for itself.
    pub issuer: String,
    /// It says who it is when it sends people back.
    pub names_itself: bool,
    /// This service as it has shown itself there; `None`: as the operator's client.
    pub client: Option<OAuthClient>,
}

/// A flow as it is sealed.
#[derive(Serialize)]
struct SealedFlow<'a> {
    id: Uuid,
    tenant: &'a str,
    service: &'a str,
    account: &'a str,
    by: &'a str,
    until: DateTime<Utc>,
    verifier: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<SealedFlowServer<'a>>,
}

/// The server of a flow as it is sealed.
#[derive(Serialize)]
struct SealedFlowServer<'a> {
    issuer: &'a str,
    names_itself: bool,
    client_id: Option<&'a str>,
    client_secret: Option<&'a str>,
    client_auth: ClientAuth,
}

/// The flow, opened.
#[derive(Deserialize)]
struct OpenFlow {
    id: Uuid,
    tenant: String,
    service: String,
    account: String,
    by: String,
    until: DateTime<Utc>,
    verifier: Secret,
    #[serde(default)]
    server: Option<OpenFlowServer>,
}

/// The server of a flow, opened.
#[derive(Deserialize)]
struct OpenFlowServer {
    issuer: String,
    names_itself: bool,
    client_id: Option<String>,
    client_secret: Option<Secret>,
    client_auth: ClientAuth,
}

impl FlowServer {
    fn sealed(&self) -> SealedFlowServer<'_> {
        let client = self.client.as_ref();
        SealedFlowServer {
            issuer: &self.issuer,
            names_itself: self.names_itself,
            client_id: client.map(|client| client.id.as_str()),
            client_secret: client.and_then(|client| client.secret.as_ref()).map(Secret::expose),
            client_auth: client.map(|client| client.auth).unwrap_or_default(),
        }
    }
}

impl From<OpenFlowServer> for FlowServer {
    fn from(opened: OpenFlowServer) -> FlowServer {
        let OpenFlowServer { issuer, names_itself, client_id, client_secret: secret, client_auth: auth } = opened;
        FlowServer { issuer, names_itself, client: client_id.map(|id| OAuthClient { id, secret, auth }) }
    }
}

/// Why a `state` leads nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StateError {
    /// Not made by us, changed, or made for something else.
    Unknown,
    /// The state is too old.
    Expired,
}

impl OAuthFlow {
    /// Begins one.
    ///
    /// # Errors
    /// The machine has no random bytes.
    pub fn begin(
        id: Uuid,
        tenant: &str,
        reference: &Reference,
        by: &str,
        now: DateTime<Utc>,
    ) -> Result<OAuthFlow, VaultError> {
        let mut bytes = Zeroizing::new([0_u8; VERIFIER_BYTES]);
        aws_lc_rs::rand::fill(&mut *bytes).map_err(|_| VaultError::Keys("no random bytes".into()))?;
        Ok(OAuthFlow {
            id,
            tenant: tenant.to_owned(),
            reference: reference.clone(),
            by: by.to_owned(),
            expires_at: now + LIFE,
            server: None,
            verifier: Secret::new(URL_SAFE_NO_PAD.encode(*bytes)),
        })
    }

    /// The text that goes to the provider as `state`, and comes back.
    pub fn state(&self, vault: &Vault) -> Result<String, VaultError> {
        let sealed = SealedFlow {
            id: self.id,
            tenant: &self.tenant,
            service: &self.reference.service,
            account: &self.reference.account,
            by: &self.by,
            until: self.expires_at,
            verifier: self.verifier.expose(),
            server: self.server.as_ref().map(FlowServer::sealed),
        };
        let text = serde_json::to_string(&sealed).map_err(|_| VaultError::Refused)?;
        vault.seal(&PLACE, &Secret::new(text))
    }

    /// The flow that a `state` came from.
    pub fn read(vault: &Vault, state: &str, now: DateTime<Utc>) -> Result<OAuthFlow, StateError> {
        let text = vault.unseal(&PLACE, state).map_err(|_| StateError::Unknown)?;
        let opened: OpenFlow = serde_json::from_str(text.expose()).map_err(|_| StateError::Unknown)?;
        if opened.until <= now {
            return Err(StateError::Expired);
        }
        Ok(OAuthFlow {
            id: opened.id,
            tenant: opened.tenant,
            reference: Reference { service: opened.service, account: opened.account },
            by: opened.by,
            expires_at: opened.until,
            server: opened.server.map(FlowServer::from),
            verifier: opened.verifier,
        })
    }

    /// Proves to the token endpoint that the code was asked for here.
    pub fn verifier(&self) -> &Secret {
        &self.verifier
    }

    /// Where the person goes to log in and agree; `None` where the provider's address is none.
    pub fn address(&self, provider: &OAuthProvider, redirect_uri: &str, state: &str) -> Option<Url> {
        let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, self.verifier.expose().as_bytes()));
        let mut address = Url::parse(&provider.authorize_url).ok()?;
        let mut query = address.query_pairs_mut();
        query.extend_pairs([
            ("response_type", "code"),
            ("client_id", &provider.client_id),
            ("redirect_uri", redirect_uri),
            ("state", state),
            ("code_challenge", &challenge),
            ("code_challenge_method", "S256"),
        ]);
        if !provider.scopes.is_empty() {
            query.append_pair("scope", &provider.scopes.join(" "));
        }
        if let Some(resource) = &provider.resource {
            query.append_pair("resource", resource);
        }
        query.extend_pairs(&provider.authorize_parameters);
        drop(query);
        Some(address)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use super::*;
    use crate::ports::vault::fixture::{OLD, vault};

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn flow() -> OAuthFlow {
        let reference = Reference::parse("calendar/work").unwrap();
        OAuthFlow::begin(Uuid::from_u128(7), "änn", &reference, "token:admin", at("2026-11-21T09:00:00Z")).unwrap()
    }

    #[test]
    fn state_is_read_back_for_ten_minutes_and_shows_nothing() {
        let (vault, flow) = (vault(&[OLD]), flow());
        let state = flow.state(&vault).unwrap();
        let read = OAuthFlow::read(&vault, &state, at("2026-11-21T09:09:59Z")).unwrap();
        assert_eq!(format!("{read:?}"), format!("{flow:?}"));
        assert_eq!(read.verifier().expose(), flow.verifier().expose());
        assert!(!format!("{read:?}").contains(flow.verifier().expose()));
        assert_eq!(OAuthFlow::read(&vault, &state, at("2026-11-21T09:10:00Z")).unwrap_err(), StateError::Expired);
    }

    #[test]
    fn state_holds_the_server_that_is_asked_and_who_this_service_is_there() {
        let vault = vault(&[OLD]);
        let client = |secret: Option<&str>| OAuthClient {
            id: "registered".into(),
            secret: secret.map(Secret::new),
            auth: ClientAuth::Body,
        };
        for client in [None, Some(client(None)), Some(client(Some("canary")))] {
            let server = FlowServer { issuer: "https://id.example.org".into(), names_itself: true, client };
            let flow = OAuthFlow { server: Some(server), ..flow() };
            let read = OAuthFlow::read(&vault, &flow.state(&vault).unwrap(), at("2026-11-21T09:00:00Z")).unwrap();
            assert_eq!(format!("{read:?}"), format!("{flow:?}"));
            let secret = |flow: &OAuthFlow| {
                let client = flow.server.as_ref().and_then(|server| server.client.clone());
                client.and_then(|client| client.secret).map(|secret| secret.expose().to_owned())
            };
            assert_eq!(secret(&read), secret(&flow));
            assert!(!format!("{read:?}").contains("canary"));
        }
    }

    #[test]
    fn state_that_is_changed_or_was_sealed_for_something_else_is_unknown() {
        let (vault, flow, now) = (vault(&[OLD]), flow(), at("2026-11-21T09:00:00Z"));
        let state = flow.state(&vault).unwrap();
        let unknown = |state: &str| OAuthFlow::read(&vault, state, now).unwrap_err() == StateError::Unknown;
        let flipped = |at: usize| {
            let mut bytes = state.clone().into_bytes();
            bytes[at] ^= 1;
            String::from_utf8(bytes).unwrap()
        };
        for place in 0..state.len() {
            assert!(unknown(&flipped(place)), "byte {place}");
        }
        let text = vault.unseal(&PLACE, &state).unwrap();
        let elsewhere = Context { tenant: "ann", service: "oauth", account: "primary", field: "document/1" };
        assert!(unknown(&vault.seal(&elsewhere, &text).unwrap()));
        assert!(unknown(&vault.seal(&PLACE, &Secret::new("{}")).unwrap()));
        assert!(unknown("") && unknown("v1:k:AA:AA"));
    }

    /// The challenge of RFC 7636, appendix B.
    #[test]
    fn address_holds_the_challenge_and_what_the_operator_adds() {
        let verifier = Secret::new("dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk");
        let flow = OAuthFlow { verifier, ..flow() };
        let provider = OAuthProvider {
            authorize_url: "https://id.example.org/authorize?realm=a%26b".into(),
            client_id: "reveille&co".into(),
            scopes: vec!["calendar.read".into(), "offline_access".into()],
            resource: Some("https://mcp.example.org/mcp".into()),
            authorize_parameters: BTreeMap::from([("prompt".into(), "consent".into())]),
            ..OAuthProvider::default()
        };
        let address = flow.address(&provider, "https://reveille.example.org/oauth/callback", "s:1").unwrap();
        assert!(address.as_str().starts_with("https://id.example.org/authorize?realm=a%26b&"), "{address}");
        let query: HashMap<String, String> = address.query_pairs().into_owned().collect();
        let expected = [
            ("realm", "a&b"),
            ("response_type", "code"),
            ("client_id", "reveille&co"),
            ("redirect_uri", "https://reveille.example.org/oauth/callback"),
            ("state", "s:1"),
            ("code_challenge", "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"),
            ("code_challenge_method", "S256"),
            ("scope", "calendar.read offline_access"),
            ("resource", "https://mcp.example.org/mcp"),
            ("prompt", "consent"),
        ];
        assert_eq!(query, expected.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        assert_ne!(self::flow().verifier().expose(), self::flow().verifier().expose());
        assert_eq!(self::flow().verifier().expose().len(), 43);
    }
}
