//! This service as a client of an authorization server that was discovered: the one that the operator has registered,
//! the document that it serves of itself, or one that it registers there.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::sync::Mutex;

use crate::base::secret::Secret;
use crate::domain::credential::ClientAuth;
use crate::ports::egress::{Egress, EgressRequest};
use crate::ports::vault::oauth::discovery::unanswered;
use crate::ports::vault::oauth::endpoint::{ANSWER_BYTES, TIMEOUT};
use crate::ports::vault::oauth::metadata::{DiscoveredServer, DiscoveryError, shown};
use crate::ports::vault::oauth::provider::{OAuthProvider, Settings};

/// Below `server.public_url`: the document of this service as a client.
pub const CLIENT_DOCUMENT: &str = "/oauth/client";
/// How the service names itself to people.
const CLIENT_NAME: &str = "Reveille";
/// Longest id and longest secret that a registration may give, in bytes: both go into the state of a flow.
const CLIENT_BYTES: usize = 512;
/// For so long an instance uses what it has registered for new links.
const REGISTERED_FOR: TimeDelta = TimeDelta::hours(1);
/// For so long a failure is told without another try.
const FAILED_FOR: TimeDelta = TimeDelta::seconds(10);

/// This service as a client.
#[derive(Debug, Clone)]
pub struct OAuthClient {
    /// Its id at the authorization server.
    pub id: String,
    /// Absent: a public client.
    pub secret: Option<Secret>,
    /// How it shows who it is.
    pub auth: ClientAuth,
}

/// Metadata of this service as a client of OAuth 2.
#[derive(Debug, Serialize, utoipa::ToSchema)]
pub struct ClientDocument {
    /// The address of this document, which is the id of the client.
    pub client_id: String,
    /// Name that people are shown.
    pub client_name: &'static str,
    /// Address of the service.
    pub client_uri: String,
    /// Where people are sent back to.
    pub redirect_uris: Vec<String>,
    /// Kinds of grants that are used.
    pub grant_types: Vec<String>,
    /// Kinds of answers that are asked for.
    pub response_types: Vec<String>,
    /// How it shows who it is at a token endpoint: by nothing but the verifier of PKCE.
    pub token_endpoint_auth_method: &'static str,
    /// `web`, or `native` where people are sent back to their own machine.
    pub application_type: &'static str,
}

impl ClientDocument {
    /// The document of the service at this address, which sends people back there.
    pub fn new(public_url: &str, redirect_uri: &str) -> ClientDocument {
        let public_url = public_url.trim_end_matches('/');
        ClientDocument {
            client_id: format!("{public_url}{CLIENT_DOCUMENT}"),
            client_name: CLIENT_NAME,
            client_uri: public_url.to_owned(),
            redirect_uris: vec![redirect_uri.to_owned()],
            grant_types: ["authorization_code", "refresh_token"].map(str::to_owned).to_vec(),
            response_types: vec!["code".to_owned()],
            token_endpoint_auth_method: "none",
            application_type: if is_https(public_url) { "web" } else { "native" },
        }
    }

    /// Whether authorization servers take it: by https only.
    pub fn is_public(&self) -> bool {
        is_https(&self.client_id)
    }
}

/// Whether a client's id is the address of its document, rather than one that a registration has given.
pub fn is_document(client_id: &str) -> bool {
    is_https(client_id)
}

fn is_https(url: &str) -> bool {
    url.starts_with("https://")
}

/// How this service becomes known to an authorization server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientIdentity<'a> {
    /// The operator has registered it.
    Configured,
    /// By the document that it serves.
    Document,
    /// It registers itself at this address.
    Registration(&'a str),
}

impl ClientIdentity<'_> {
    /// The first one that is possible.
    ///
    /// # Errors
    /// None is; the sentence says what to do.
    pub fn choose<'a>(
        provider: &OAuthProvider,
        server: &'a DiscoveredServer,
        document: &ClientDocument,
    ) -> Result<ClientIdentity<'a>, DiscoveryError> {
        match &server.registration_url {
            _ if !provider.client_id.is_empty() => Ok(ClientIdentity::Configured),
            _ if server.takes_client_documents && document.is_public() => Ok(ClientIdentity::Document),
            Some(url) => Ok(ClientIdentity::Registration(url)),
            None => {
                let redirect = document.redirect_uris.join(", ");
                Err(DiscoveryError::Refused(format!(
                    "the authorization server `{}` lets no client register itself: register this service there, with \
                     the redirect URI {redirect}, and set `client_id`",
                    shown(&server.issuer)
                )))
            }
        }
    }
}

/// The clients that this instance has registered, one for each service.
pub struct ClientRegistry {
    document: ClientDocument,
    registered: BTreeMap<String, Mutex<Option<RegisteredClient>>>,
}

/// A client that was registered, or why none was.
struct RegisteredClient {
    issuer: String,
    client: Result<OAuthClient, DiscoveryError>,
    until: DateTime<Utc>,
}

/// The answer of a registration (RFC 7591, section 3.2.1).
#[derive(Deserialize)]
struct RegistrationAnswer {
    client_id: String,
    #[serde(default)]
    client_secret: Option<Secret>,
    #[serde(default)]
    token_endpoint_auth_method: Option<String>,
}

impl ClientRegistry {
    /// None is registered yet, for these services.
    pub fn new(providers: &Settings, document: ClientDocument) -> ClientRegistry {
        let registered = providers.keys().map(|name| (name.clone(), Mutex::default())).collect();
        ClientRegistry { document, registered }
    }

    /// The client of a service at its server; `None`: the operator's. It is registered where there is none.
    pub async fn client(
        &self,
        egress: &Egress,
        (service, provider): (&str, &OAuthProvider),
        server: &DiscoveredServer,
        now: DateTime<Utc>,
    ) -> Result<Option<OAuthClient>, DiscoveryError> {
        let url = match ClientIdentity::choose(provider, server, &self.document)? {
            ClientIdentity::Configured => return Ok(None),
            ClientIdentity::Document => {
                let (id, auth) = (self.document.client_id.clone(), ClientAuth::default());
                return Ok(Some(OAuthClient { id, secret: None, auth }));
            }
            ClientIdentity::Registration(url) => url,
        };
        let place = self.registered.get(service);
        let place = place.ok_or_else(|| DiscoveryError::Refused(format!("there is no [oauth.{service}]")))?;
        let mut kept = place.lock().await;
        if let Some(known) = kept.as_ref().filter(|known| known.issuer == server.issuer && now < known.until) {
            return known.client.clone().map(Some);
        }
        let client = register(egress, url, &self.document, server).await;
        let until = now + if client.is_ok() { REGISTERED_FOR } else { FAILED_FOR };
        *kept = Some(RegisteredClient { issuer: server.issuer.clone(), client: client.clone(), until });
        client.map(Some)
    }

    /// Shows a client no more in new links that its server does not accept.
    pub async fn forget(&self, client_id: &str) {
        for place in self.registered.values() {
            let mut kept = place.lock().await;
            let is_it = |known: &RegisteredClient| known.client.as_ref().is_ok_and(|client| client.id == client_id);
            if kept.as_ref().is_some_and(is_it) {
                *kept = None;
            }
        }
    }
}

/// Registers this service (RFC 7591, section 3.1).
async fn register(
    egress: &Egress,
    url: &str,
    document: &ClientDocument,
    server: &DiscoveredServer,
) -> Result<OAuthClient, DiscoveryError> {
    let json = HeaderValue::from_static("application/json");
    let request = EgressRequest {
        headers: HeaderMap::from_iter([(header::CONTENT_TYPE, json.clone()), (header::ACCEPT, json)]),
        body: registration(document, server).to_string().into(),
        timeout: TIMEOUT,
        max_bytes: ANSWER_BYTES,
        follow_redirects: false,
        ..EgressRequest::new(Method::POST, url)
    };
    let answer = egress.fetch(request).await.map_err(|error| unanswered(url, &error))?;
    read_registration(url, answer.status, &answer.body)
}

/// The request: the document without an id, and the way in which the client will show itself.
fn registration(document: &ClientDocument, server: &DiscoveredServer) -> Value {
    let mut request = json!(document);
    if let Some(fields) = request.as_object_mut() {
        fields.remove("client_id");
    }
    request["token_endpoint_auth_method"] = auth_method(server.auth_methods.as_deref()).into();
    request
}

/// The simplest way that a server takes; one that names none takes HTTP Basic (RFC 8414, section 2).
fn auth_method(known: Option<&[String]>) -> &'static str {
    let takes = |method: &&str| known.is_some_and(|known| known.iter().any(|one| one == method));
    ["none", "client_secret_basic", "client_secret_post"].into_iter().find(takes).unwrap_or("client_secret_basic")
}

fn read_registration(url: &str, status: StatusCode, body: &[u8]) -> Result<OAuthClient, DiscoveryError> {
    let place = shown(url);
    if !status.is_success() {
        let why = format!("{place} does not register this service: it answers {status}");
        return Err(match status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            true => DiscoveryError::Later(why),
            false => DiscoveryError::Refused(format!("{why}; register it by hand, and set `client_id`")),
        });
    }
    let odd = |why: &str| DiscoveryError::Refused(format!("{place} answers a registration with {why}"));
    let answer: RegistrationAnswer =
        serde_json::from_slice(body).map_err(|_| odd("something else than a client (RFC 7591, section 3.2.1)"))?;
    let is_short = |text: &str| !text.is_empty() && text.len() <= CLIENT_BYTES && !text.contains(char::is_control);
    let secret = answer.client_secret.filter(|secret| !secret.expose().is_empty());
    if !is_short(&answer.client_id) || secret.as_ref().is_some_and(|secret| !is_short(secret.expose())) {
        return Err(odd(&format!(
            "an id or a secret that does not have 1 to {CLIENT_BYTES} bytes without control characters"
        )));
    }
    let (secret, auth) = match answer.token_endpoint_auth_method.as_deref() {
        Some("none") => (None, ClientAuth::Basic),
        Some("client_secret_post") => (secret, ClientAuth::Body),
        None | Some("client_secret_basic") => (secret, ClientAuth::Basic),
        Some(_) => return Err(odd("a way to show itself that is not known here (`token_endpoint_auth_method`)")),
    };
    Ok(OAuthClient { id: answer.client_id, secret, auth })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PUBLIC: &str = "https://wake.example.org/";

    fn document(public_url: &str) -> ClientDocument {
        ClientDocument::new(public_url, "https://wake.example.org/oauth/callback")
    }

    fn server(takes_client_documents: bool, registration_url: Option<&str>) -> DiscoveredServer {
        DiscoveredServer {
            issuer: "https://id.example.org".into(),
            names_itself: true,
            authorize_url: "https://id.example.org/authorize".into(),
            token_url: "https://id.example.org/token".into(),
            registration_url: registration_url.map(str::to_owned),
            takes_client_documents,
            auth_methods: None,
            resource: "https://mcp.example.org/mcp".into(),
            scopes: vec![],
            is_made_offline: false,
        }
    }

    #[test]
    fn operators_client_goes_before_the_document_and_that_before_a_registration() {
        let own = OAuthProvider { client_id: "reveille".into(), ..OAuthProvider::default() };
        let none = OAuthProvider::default();
        let url = Some("https://id.example.org/register");
        let registration = ClientIdentity::Registration("https://id.example.org/register");
        for (provider, server, public_url, expected) in [
            (&own, server(true, url), PUBLIC, ClientIdentity::Configured),
            (&none, server(true, url), PUBLIC, ClientIdentity::Document),
            (&none, server(true, url), "http://127.0.0.1:7700", registration),
            (&none, server(false, url), PUBLIC, registration),
        ] {
            assert_eq!(ClientIdentity::choose(provider, &server, &document(public_url)), Ok(expected));
        }
        let nobody = server(false, None);
        let told = ClientIdentity::choose(&none, &nobody, &document(PUBLIC)).unwrap_err().to_string();
        assert_eq!(
            told,
            "the authorization server `https://id.example.org` lets no client register itself: register this service \
             there, with the redirect URI https://wake.example.org/oauth/callback, and set `client_id`"
        );
    }

    #[test]
    fn document_says_who_the_client_is_and_a_registration_how_it_shows_itself() {
        let written = json!(document(PUBLIC));
        let expected = json!({
            "client_id": "https://wake.example.org/oauth/client", "client_name": "Reveille",
            "client_uri": "https://wake.example.org", "redirect_uris": ["https://wake.example.org/oauth/callback"],
            "grant_types": ["authorization_code", "refresh_token"], "response_types": ["code"],
            "token_endpoint_auth_method": "none", "application_type": "web",
        });
        assert_eq!(written, expected);
        let request = registration(&document("http://127.0.0.1:7700"), &server(false, None));
        assert_eq!([&request["client_id"], &request["application_type"]], [&Value::Null, &json!("native")]);
        assert_eq!(request["token_endpoint_auth_method"], "client_secret_basic");
        let known = |methods: &[&str]| methods.iter().map(|&method| method.to_owned()).collect::<Vec<_>>();
        let chosen = |methods: &[&str]| auth_method(Some(&known(methods)));
        assert_eq!(chosen(&["client_secret_post", "none"]), "none");
        assert_eq!(chosen(&["private_key_jwt", "client_secret_post"]), "client_secret_post");
    }

    #[tokio::test]
    async fn client_that_its_server_does_not_accept_is_shown_no_more() {
        let providers = Settings::from([("notes".to_owned(), OAuthProvider::default())]);
        let registry = ClientRegistry::new(&providers, document("http://127.0.0.1:7700"));
        let (now, server) = (DateTime::UNIX_EPOCH, server(false, Some("http://127.0.0.1:1/register")));
        let client = Ok(OAuthClient { id: "registered".into(), secret: None, auth: ClientAuth::Basic });
        let known = RegisteredClient { issuer: server.issuer.clone(), client, until: now + REGISTERED_FOR };
        *registry.registered["notes"].lock().await = Some(known);
        let egress = Egress::new(&Default::default()).unwrap();
        let shown = async || {
            let client = registry.client(&egress, ("notes", &providers["notes"]), &server, now).await;
            client.map(|client| client.map(|client| client.id))
        };
        registry.forget("another").await;
        assert_eq!(shown().await, Ok(Some("registered".to_owned())));
        registry.forget("registered").await;
        assert!(shown().await.is_err());
    }

    #[test]
    fn registration_is_read_with_its_longest_id_and_told_what_is_odd() {
        let read = |status: u16, body: Value| {
            let status = StatusCode::from_u16(status).unwrap();
            let read = read_registration("https://id.example.org/register", status, body.to_string().as_bytes());
            read.map(|client| (client.id, client.secret.map(|secret| secret.expose().to_owned()), client.auth))
        };
        let longest = "x".repeat(CLIENT_BYTES);
        assert_eq!(read(201, json!({ "client_id": longest })), Ok((longest.clone(), None, ClientAuth::Basic)));
        let post =
            json!({ "client_id": "a", "client_secret": "s", "token_endpoint_auth_method": "client_secret_post" });
        assert_eq!(read(200, post), Ok(("a".into(), Some("s".into()), ClientAuth::Body)));
        let public = json!({ "client_id": "a", "client_secret": "s", "token_endpoint_auth_method": "none" });
        assert_eq!(read(201, public), Ok(("a".into(), None, ClientAuth::Basic)));
        for odd in [
            json!({ "client_id": format!("{longest}x") }),
            json!({ "client_id": "a", "client_secret": format!("{longest}x") }),
            json!({ "client_id": "" }),
            json!({ "client_id": "a\0" }),
            json!({ "client_id": "a", "token_endpoint_auth_method": "tls_client_auth" }),
            json!([]),
        ] {
            assert!(matches!(read(201, odd.clone()), Err(DiscoveryError::Refused(_))), "{odd}");
        }
        assert!(matches!(read(403, json!({})), Err(DiscoveryError::Refused(why)) if why.contains("set `client_id`")));
        assert!(matches!(read(503, json!({})), Err(DiscoveryError::Later(_))));
    }
}
