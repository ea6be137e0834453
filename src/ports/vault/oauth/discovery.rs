//! From the address of a resource to its authorization server, as the authorization of MCP has it: its challenge, its
//! metadata (RFC 9728), and that of the server (RFC 8414, OpenID Connect Discovery).
//!
//! Every request leaves by egress, no redirect is followed, and the whole has one time limit. What was found is kept
//! for a while by each instance, a failure for a short one, and one request at a time looks for each service.

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde::de::DeserializeOwned;
use tokio::sync::Mutex;
use tokio::time::timeout;
use url::Url;

use crate::ports::egress::{Egress, EgressError, EgressRequest};
use crate::ports::vault::oauth::challenge::BearerChallenge;
use crate::ports::vault::oauth::endpoint::{ANSWER_BYTES, TIMEOUT};
use crate::ports::vault::oauth::metadata::{
    DiscoveredServer, DiscoveryError, ResourceDocument, ServerDocument, address, shown,
};
use crate::ports::vault::oauth::provider::{OAuthProvider, Settings};
use crate::ports::vault::oauth::well_known;

/// How long a discovery may take as a whole: with a registration behind it less than an answer of the API.
pub const DISCOVERED_WITHIN: Duration = Duration::from_secs(12);
/// For so long an instance goes by what it has found.
pub const KEPT_FOR: TimeDelta = TimeDelta::minutes(10);
/// For so long it does where what was found may be over: for a new link, and once a token was refused.
pub const LOOKED_ANEW_AFTER: TimeDelta = TimeDelta::seconds(5);
/// For so long a failure is told without another look.
const FAILED_FOR: TimeDelta = TimeDelta::seconds(10);
/// A message without any effect, which a server that asks for authorisation answers with its challenge.
const PING: &str = r#"{"jsonrpc":"2.0","id":1,"method":"ping"}"#;

/// The findings of an instance, for each service.
pub struct Discoverer {
    egress: Egress,
    kept: BTreeMap<String, Mutex<Option<KeptDiscovery>>>,
}

/// The outcome of a discovery.
struct KeptDiscovery {
    found: Result<DiscoveredServer, DiscoveryError>,
    /// When it was found.
    at: DateTime<Utc>,
    /// When it was looked for the last time.
    looked_at: DateTime<Utc>,
}

impl KeptDiscovery {
    /// Whether it is taken where a finding may be so old.
    fn is_taken(&self, now: DateTime<Utc>, age: TimeDelta) -> bool {
        match self.found {
            Ok(_) => self.is_kept(now) && now < self.looked_at + age,
            Err(_) => now < self.at + FAILED_FOR,
        }
    }

    /// Whether it is a finding that is not over.
    fn is_kept(&self, now: DateTime<Utc>) -> bool {
        self.found.is_ok() && now < self.at + KEPT_FOR
    }
}

impl Discoverer {
    /// Nothing is found yet, for these services.
    pub fn new(egress: &Egress, providers: &Settings) -> Discoverer {
        let kept = providers.keys().map(|name| (name.clone(), Mutex::default())).collect();
        Discoverer { egress: egress.clone(), kept }
    }

    /// The authorization server of a service, as it was found at most `age` ago, or as it is found now. Where a finding
    /// is not over and nobody answers now, it stands.
    pub async fn find(
        &self,
        service: &str,
        provider: &OAuthProvider,
        now: DateTime<Utc>,
        age: TimeDelta,
    ) -> Result<DiscoveredServer, DiscoveryError> {
        let place = self.kept.get(service);
        let place = place.ok_or_else(|| DiscoveryError::Refused(format!("there is no [oauth.{service}]")))?;
        let mut kept = place.lock().await;
        if let Some(known) = kept.as_ref().filter(|known| known.is_taken(now, age)) {
            return known.found.clone();
        }
        let found = discover(&self.egress, provider).await;
        if let (Err(DiscoveryError::Later(_)), Some(known)) = (&found, kept.as_mut())
            && known.is_kept(now)
        {
            known.looked_at = now;
            return known.found.clone();
        }
        *kept = Some(KeptDiscovery { found: found.clone(), at: now, looked_at: now });
        found
    }
}

/// Looks for the authorization server of a provider with a resource.
pub async fn discover(egress: &Egress, provider: &OAuthProvider) -> Result<DiscoveredServer, DiscoveryError> {
    let found = timeout(DISCOVERED_WITHIN, look(egress, provider)).await;
    found.unwrap_or_else(|_| {
        let after = DISCOVERED_WITHIN.as_secs();
        Err(DiscoveryError::Later(format!("where to log in was not found out within {after} s")))
    })
}

async fn look(egress: &Egress, provider: &OAuthProvider) -> Result<DiscoveredServer, DiscoveryError> {
    let resource = address(egress, "`resource`", provider.resource.as_deref().unwrap_or_default())?;
    let challenge = challenge_of(egress, &resource).await?;
    let places = match &challenge.resource_metadata {
        Some(told) => vec![address(egress, "`resource_metadata` of the resource", told)?],
        None => well_known::of_resource(&resource),
    };
    let (metadata, place): (ResourceDocument, Url) = first(egress, &places, "metadata of the resource").await?;
    metadata.check_resource(&resource, &place)?;
    let issuer = metadata.issuer(provider.issuer.as_deref())?;
    let places = well_known::of_issuer(&address(egress, "the authorization server", issuer)?);
    let (server, _): (ServerDocument, Url) = first(egress, &places, "metadata of the authorization server").await?;
    server.judge(egress, issuer, &metadata, challenge.scopes())
}

/// The challenge of a resource to a request without a token; empty where it makes none.
async fn challenge_of(egress: &Egress, resource: &Url) -> Result<BearerChallenge, DiscoveryError> {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::ACCEPT, HeaderValue::from_static("application/json, text/event-stream")),
    ];
    let request = EgressRequest {
        headers: HeaderMap::from_iter(headers),
        body: PING.into(),
        timeout: TIMEOUT,
        follow_redirects: false,
        ..EgressRequest::new(Method::POST, resource.as_str())
    };
    let answer = egress.open(request).await.map_err(|error| unanswered(resource.as_str(), &error))?;
    Ok(match answer.status {
        StatusCode::UNAUTHORIZED => BearerChallenge::of(&answer.headers),
        _ => BearerChallenge::default(),
    })
}

/// The first document that there is at these addresses, and where.
async fn first<T: DeserializeOwned>(egress: &Egress, places: &[Url], name: &str) -> Result<(T, Url), DiscoveryError> {
    let mut misses = Vec::new();
    for place in places {
        match read(egress, place).await? {
            Ok(document) => return Ok((document, place.clone())),
            Err(why) => misses.push(format!("{} {why}", shown(place.as_str()))),
        }
    }
    let hint = "with `authorize_url` and `token_url` none is needed";
    Err(DiscoveryError::Refused(format!("there is no {name}: {}; {hint}", misses.join(", "))))
}

/// The document at an address, or why there is none.
async fn read<T: DeserializeOwned>(egress: &Egress, place: &Url) -> Result<Result<T, String>, DiscoveryError> {
    let request = EgressRequest {
        headers: HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static("application/json"))]),
        timeout: TIMEOUT,
        max_bytes: ANSWER_BYTES,
        follow_redirects: false,
        ..EgressRequest::new(Method::GET, place.as_str())
    };
    let answer = match egress.fetch(request).await {
        Ok(answer) => answer,
        Err(EgressError::TooLarge { .. }) => return Ok(Err(format!("answers more than {ANSWER_BYTES} bytes"))),
        Err(error) => return Err(unanswered(place.as_str(), &error)),
    };
    match answer.status {
        StatusCode::OK => Ok(serde_json::from_slice(&answer.body).map_err(|_| "answers no metadata".into())),
        StatusCode::TOO_MANY_REQUESTS => Err(DiscoveryError::Later(format!("{place} answers {}", answer.status))),
        status if status.is_server_error() => Err(DiscoveryError::Later(format!("{place} answers {status}"))),
        status => Ok(Err(format!("answers {status}"))),
    }
}

/// The error of a request without an answer.
pub fn unanswered(url: &str, error: &EgressError) -> DiscoveryError {
    let why = format!("{}: {error}", shown(url));
    match error {
        EgressError::Timeout { .. } | EgressError::Connect { .. } | EgressError::Broken { .. } => {
            DiscoveryError::Later(why)
        }
        _ => DiscoveryError::Refused(why),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use wiremock::{Mock, MockServer, ResponseTemplate, matchers};

    use super::*;
    use crate::ports::egress::Settings as EgressSettings;

    fn egress() -> Egress {
        Egress::new(&EgressSettings { allow: vec!["127.0.0.1:*".into()], ..EgressSettings::default() }).unwrap()
    }

    /// One server that is both, with these documents by their paths.
    async fn serving(documents: &[(&str, Value)]) -> MockServer {
        let server = MockServer::start().await;
        for (path, document) in documents {
            let text = document.to_string().replace("HOST", &server.uri());
            let answer = ResponseTemplate::new(200).set_body_raw(text, "application/json");
            Mock::given(matchers::method("GET")).and(matchers::path(*path)).respond_with(answer).mount(&server).await;
        }
        server
    }

    fn resource() -> Value {
        json!({ "resource": "HOST/mcp", "authorization_servers": ["HOST/realm"], "scopes_supported": ["a"] })
    }

    fn metadata() -> Value {
        json!({
            "issuer": "HOST/realm", "authorization_endpoint": "HOST/authorize", "token_endpoint": "HOST/token",
            "code_challenge_methods_supported": ["S256"],
        })
    }

    fn provider(server: &MockServer) -> OAuthProvider {
        OAuthProvider { resource: Some(format!("{}/mcp", server.uri())), ..OAuthProvider::default() }
    }

    /// The paths that were asked, in their order.
    async fn asked(server: &MockServer) -> Vec<String> {
        let requests = server.received_requests().await.unwrap();
        requests.iter().map(|request| format!("{} {}", request.method, request.url.path())).collect()
    }

    #[tokio::test]
    async fn addresses_are_asked_in_their_order_until_one_has_the_metadata() {
        let server = serving(&[
            ("/.well-known/oauth-protected-resource", resource()),
            ("/realm/.well-known/openid-configuration", metadata()),
        ])
        .await;
        let found = discover(&egress(), &provider(&server)).await.unwrap();
        assert_eq!((found.issuer, found.scopes), (format!("{}/realm", server.uri()), vec!["a".to_owned()]));
        let expected = [
            "POST /mcp",
            "GET /.well-known/oauth-protected-resource/mcp",
            "GET /.well-known/oauth-protected-resource",
            "GET /.well-known/oauth-authorization-server/realm",
            "GET /.well-known/openid-configuration/realm",
            "GET /realm/.well-known/openid-configuration",
        ];
        assert_eq!(asked(&server).await, expected);
    }

    #[tokio::test]
    async fn challenge_says_where_the_metadata_is_and_which_scopes_are_needed() {
        let server =
            serving(&[("/elsewhere", resource()), ("/.well-known/oauth-authorization-server/realm", metadata())]).await;
        let challenge = format!("Bearer resource_metadata=\"{}/elsewhere\", scope=\"b c\"", server.uri());
        let answer = ResponseTemplate::new(401).insert_header("www-authenticate", challenge.as_str());
        Mock::given(matchers::method("POST")).and(matchers::path("/mcp")).respond_with(answer).mount(&server).await;
        let found = discover(&egress(), &provider(&server)).await.unwrap();
        assert_eq!(found.scopes, ["b", "c"]);
        assert_eq!(asked(&server).await.len(), 3);
        assert!(server.received_requests().await.unwrap()[0].headers.get("authorization").is_none());
    }

    #[tokio::test]
    async fn redirects_and_answers_that_are_no_metadata_are_none_and_each_is_told() {
        let server = serving(&[("/.well-known/oauth-protected-resource/mcp", json!([]))]).await;
        let moved = ResponseTemplate::new(302).insert_header("location", "http://169.254.169.254/");
        let root = matchers::path("/.well-known/oauth-protected-resource");
        Mock::given(matchers::method("GET")).and(root).respond_with(moved).mount(&server).await;
        let told = discover(&egress(), &provider(&server)).await.unwrap_err();
        let place = format!("{}/.well-known/oauth-protected-resource", server.uri());
        assert_eq!(
            told,
            DiscoveryError::Refused(format!(
                "there is no metadata of the resource: {place}/mcp answers no metadata, {place} answers 302 Found; with \
                 `authorize_url` and `token_url` none is needed"
            ))
        );
    }

    #[tokio::test]
    async fn server_that_is_away_or_that_egress_denies_is_told_apart() {
        let away = OAuthProvider { resource: Some("http://127.0.0.1:1/mcp".into()), ..OAuthProvider::default() };
        assert!(matches!(discover(&egress(), &away).await, Err(DiscoveryError::Later(_))));
        let closed = Egress::new(&EgressSettings::default()).unwrap();
        let told = discover(&closed, &away).await.unwrap_err().to_string();
        assert!(told.starts_with("http://127.0.0.1:1/mcp: the address is not allowed"), "{told}");
        let server = serving(&[]).await;
        let down = ResponseTemplate::new(503);
        Mock::given(matchers::method("GET")).respond_with(down).mount(&server).await;
        assert!(matches!(discover(&egress(), &provider(&server)).await, Err(DiscoveryError::Later(_))));
    }

    #[tokio::test]
    async fn finding_is_kept_for_a_while_and_a_failure_for_a_short_one() {
        let server = serving(&[
            ("/.well-known/oauth-protected-resource/mcp", resource()),
            ("/.well-known/oauth-authorization-server/realm", metadata()),
        ])
        .await;
        let services = Settings::from([("notes".to_owned(), provider(&server))]);
        let discoverer = Discoverer::new(&egress(), &services);
        let now: DateTime<Utc> = "2026-11-21T09:00:00Z".parse().unwrap();
        for (at, requests) in [(now, 3), (now + KEPT_FOR - TimeDelta::seconds(1), 3), (now + KEPT_FOR, 6)] {
            discoverer.find("notes", &services["notes"], at, KEPT_FOR).await.unwrap();
            assert_eq!(asked(&server).await.len(), requests);
        }
        let discoverer = Discoverer::new(&egress(), &services);
        server.reset().await;
        let before = asked(&server).await.len();
        for (at, requests) in [(now, 3), (now + FAILED_FOR - TimeDelta::seconds(1), 3), (now + FAILED_FOR, 6)] {
            discoverer.find("notes", &services["notes"], at, LOOKED_ANEW_AFTER).await.unwrap_err();
            assert_eq!(asked(&server).await.len() - before, requests);
        }
        assert!(discoverer.find("other", &services["notes"], now, KEPT_FOR).await.is_err());
    }

    #[tokio::test]
    async fn finding_that_may_be_over_is_looked_for_anew_at_a_rate_and_stands_where_nobody_answers() {
        let server = serving(&[
            ("/.well-known/oauth-protected-resource/mcp", resource()),
            ("/.well-known/oauth-authorization-server/realm", metadata()),
        ])
        .await;
        let services = Settings::from([("notes".to_owned(), provider(&server))]);
        let discoverer = Discoverer::new(&egress(), &services);
        let now: DateTime<Utc> = "2026-11-21T09:00:00Z".parse().unwrap();
        let find = |at| discoverer.find("notes", &services["notes"], at, LOOKED_ANEW_AFTER);
        let again = now + LOOKED_ANEW_AFTER;
        for (at, requests) in [(now, 3), (again - TimeDelta::seconds(1), 3), (again, 6)] {
            find(at).await.unwrap();
            assert_eq!(asked(&server).await.len(), requests);
        }
        server.reset().await;
        let before = asked(&server).await.len();
        let down = ResponseTemplate::new(503);
        Mock::given(matchers::any()).respond_with(down).mount(&server).await;
        let (later, over) = (again + LOOKED_ANEW_AFTER, again + KEPT_FOR);
        for (at, requests) in [(later, 2), (later + TimeDelta::seconds(1), 2), (later + LOOKED_ANEW_AFTER, 4)] {
            find(at).await.unwrap();
            assert_eq!(asked(&server).await.len() - before, requests);
        }
        assert!(matches!(find(over).await, Err(DiscoveryError::Later(_))));
    }
}
