//! MCP servers whose tenants connect accounts: the authorization server is found by the server's own word, and gives
//! tokens for it alone.

use std::sync::Arc;

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::clock::Clock;
use reveille::base::id::Scope;
use reveille::base::secret::Secret;
use reveille::domain::credential::{CredentialStatus, Reference};
use reveille::ports::vault::credentials::Credentials;
use reveille::ports::vault::oauth::{self, ConnectError, ConnectedAccount, OAuthConnector, OAuthProvider};
use reveille::ports::vault::{self, KeySource, Vault, WithoutKeys};
use reveille::store::{self, Store, StoredCredential};
use serde_json::{Value, json};
use url::Url;

use super::authority::{Authority, LIFE, SentForm, access_token};
use super::harness::{McpHarness, by_url, code, egress, text, with};
use crate::support::binary::{TempDir, reveille};
use crate::support::mcp::{McpFixture, McpHttpServer};
use crate::support::sqlite;
use crate::support::world::MASTER_KEY;

const PUBLIC_URL: &str = "http://127.0.0.1:7700";
/// More tokens than a test is given.
const TOKENS: usize = 20;

/// A server that takes the tokens of an authority, and a service that knows nothing but its address.
struct OAuthStage {
    clock: Clock,
    authority: Authority,
    fixture: McpFixture,
    http: McpHttpServer,
    store: Store,
    vault: Vault,
    providers: oauth::Settings,
    connector: OAuthConnector,
    credentials: Credentials,
    _dir: TempDir,
}

impl OAuthStage {
    /// A server that says in its challenge where its metadata is.
    async fn start() -> OAuthStage {
        OAuthStage::start_with(PUBLIC_URL, OAuthProvider::default()).await
    }

    /// As [`OAuthStage::start`], with these keys besides the resource, at this address of the service.
    async fn start_with(public_url: &str, provider: OAuthProvider) -> OAuthStage {
        let (authority, fixture, dir) = (Authority::start().await, McpFixture::new(), TempDir::new());
        let http = fixture.start_http().await;
        authority.protect(&http.url);
        sqlite::migrated_copy(dir.path());
        let start: DateTime<Utc> = "2026-11-21T09:00:00Z".parse().expect("an instant");
        let clock = Clock::manual(start);
        let opened = Store::open(&store::Settings::default(), dir.path(), clock.clone(), |_| {}).await;
        let store = opened.expect("open a store");
        let keys = vault::Settings { master_keys: vec![KeySource::value(MASTER_KEY)], accept_lost_keys: false };
        let (vault, _) = Vault::open(&keys, WithoutKeys::Refuse).expect("a vault");
        let notes = OAuthProvider { resource: Some(http.url.clone()), ..provider };
        let providers = oauth::Settings::from([("notes".to_owned(), notes)]);
        let (refresher, connector) = oauth::open(&store, &vault, &egress(), &providers, public_url);
        let credentials = Credentials::new(store.clone(), vault.clone(), egress(), Some(Arc::new(refresher)));
        let stage =
            OAuthStage { clock, authority, fixture, http, store, vault, providers, connector, credentials, _dir: dir };
        stage.plan(json!({}));
        stage
    }

    /// Has the server take the authority's tokens, and obey this besides.
    fn plan(&self, more: Value) {
        let tokens: Vec<String> = (1..=TOKENS).map(access_token).collect();
        let metadata = self.authority.resource_metadata();
        let challenge = format!("Bearer resource_metadata=\"{metadata}\", scope=\"notes:read\"");
        self.fixture.set_plan(&with(json!({ "tokens": tokens, "challenge": challenge }), more));
    }

    /// Has the metadata of the server name another authority.
    fn move_to(&self, other: &Authority) {
        let named = json!({ "authorization_servers": [other.issuer()] });
        self.authority.serve("/resource", with(self.authority.metadata_of(&self.http.url), named));
    }

    async fn link(&self, tenant: &str) -> Result<Url, ConnectError> {
        Ok(self.connector.start(tenant, &notes(), "token:admin").await?.url)
    }

    /// The sentence that says why there is no link.
    async fn refused(&self) -> String {
        match self.link("ann").await {
            Err(ConnectError::Misconfigured(why)) => why,
            other => panic!("{other:?}"),
        }
    }

    /// Connects the account of a tenant, as a person does with a link.
    async fn connect(&self, tenant: &str) -> ConnectedAccount {
        self.connect_at(&self.authority, tenant).await
    }

    /// Connects it at an authority that the resource names by now.
    async fn connect_at(&self, authority: &Authority, tenant: &str) -> ConnectedAccount {
        let link = self.link(tenant).await.expect("a link");
        self.finish(&authority.agree(&link)).await.expect("connected")
    }

    /// Ends a flow as the page does once its button is pressed.
    async fn finish(&self, back: &Url) -> Result<ConnectedAccount, ConnectError> {
        let back: SentForm = back.query_pairs().into_owned().collect();
        let offer = self.connector.offer(&back["state"]).await?;
        assert!(self.connector.is_of(&offer.flow, back.get("iss").map(String::as_str)));
        self.connector.finish(offer.flow, Secret::new(back["code"].clone())).await
    }

    async fn stored(&self, tenant: &str) -> StoredCredential {
        self.store.get_credential(&Scope::Every, tenant, "notes", "primary").await.expect("stored")
    }

    /// Connects with the server, whose entry has these keys besides its address and its credential.
    async fn serve(&self, keys: Value) -> McpHarness {
        let server = with(by_url("notes", &self.http.url), with(json!({ "credential": "notes" }), keys));
        McpHarness::start_with(&[server], self.credentials.clone()).await
    }

    /// The tokens of the calls that have come to the tool.
    fn tokens(&self) -> Vec<Value> {
        let lines = self.fixture.journal().into_iter().filter(|line| line.get("echo").is_some());
        lines.map(|line| line["token"].clone()).collect()
    }

    fn forms(&self, kind: &str) -> Vec<SentForm> {
        self.authority.forms().into_iter().filter(|form| form["grant_type"] == kind).collect()
    }
}

fn notes() -> Reference {
    Reference::parse("notes").expect("a reference")
}

fn echo() -> Value {
    json!({ "text": "hello" })
}

#[tokio::test]
async fn account_is_connected_used_renewed_and_its_end_is_told() {
    let stage = OAuthStage::start().await;
    for tenant in ["ops", "ann"] {
        assert!(stage.connect(tenant).await.is_renewable);
    }
    let resource = Some(&stage.http.url);
    for asked in stage.authority.agreed() {
        assert_eq!((asked.get("resource"), asked["client_id"].as_str()), (resource, "registered-1"));
        assert_eq!(asked["scope"], "notes:read offline_access");
    }
    assert_eq!(stage.authority.registered().len(), 1, "one client is enough for many links");
    assert_eq!(stage.authority.registered()[0]["redirect_uris"], json!([format!("{PUBLIC_URL}/oauth/callback")]));
    let stored = stage.stored("ann").await.credential;
    assert_eq!(stored.hosts, [stage.http.host()]);
    let expected = json!({ "provider": "notes", "issuer": stage.authority.issuer(), "client_id": "registered-1" });
    assert_eq!(with(json!(stored.oauth), json!({ "scopes": [] })), with(expected, json!({ "scopes": [] })));

    let harness = stage.serve(json!({ "listed_as": "ops" })).await;
    assert_eq!(text(harness.call("notes.echo", echo()).await), "hello");
    stage.clock.advance(TimeDelta::seconds(LIFE + 1));
    assert_eq!(text(harness.call("notes.echo", echo()).await), "hello");
    let tokens = stage.tokens();
    assert!(tokens.len() == 2 && tokens[0] == access_token(2) && tokens[1] != tokens[0], "{tokens:?}");
    let all = stage.authority.forms();
    assert!(all.iter().all(|form| form.get("resource") == resource && form["client_id"] == "registered-1"), "{all:?}");
    assert!(!stage.forms("refresh_token").is_empty());

    stage.authority.revoke();
    stage.fixture.set_plan(&json!({ "tokens": [] }));
    assert_eq!(code(harness.call("notes.echo", echo()).await), "credential_needs_consent");
    let ended = stage.stored("ann").await.credential;
    assert_eq!(ended.status, CredentialStatus::NeedsConsent);
    assert!(ended.status_reason.is_some_and(|why| why.contains("invalid_grant")));
    harness.stop().await;
}

#[tokio::test]
async fn account_of_the_operator_serves_all_tenants() {
    let stage = OAuthStage::start().await;
    stage.connect("ops").await;
    let harness = stage.serve(json!({ "credential_of": "ops" })).await;
    for tenant in ["ann", "ben"] {
        let called = harness.call_in(&harness.context(tenant), "notes.echo", echo()).await;
        assert_eq!(text(called), "hello");
    }
    harness.stop().await;
    assert_eq!(stage.tokens(), [access_token(1), access_token(1)]);
}

#[tokio::test]
async fn metadata_is_found_below_the_path_of_the_server_and_at_its_root() {
    for path in ["/.well-known/oauth-protected-resource/mcp", "/.well-known/oauth-protected-resource"] {
        let stage = OAuthStage::start().await;
        let metadata = stage.authority.metadata_of(&stage.http.url);
        stage.plan(json!({ "challenge": "Bearer", "documents": { path: metadata } }));
        assert!(stage.connect("ann").await.is_renewable, "{path}");
        assert_eq!(stage.authority.agreed()[0]["scope"], "notes:all offline_access");
    }
}

#[tokio::test]
async fn person_whom_another_server_sends_back_is_refused() {
    let stage = OAuthStage::start().await;
    let link = stage.link("ann").await.unwrap();
    let back: SentForm = stage.authority.agree(&link).query_pairs().into_owned().collect();
    let flow = stage.connector.offer(&back["state"]).await.unwrap().flow;
    let own = stage.authority.issuer();
    assert!(stage.connector.is_of(&flow, Some(&own)));
    for other in [Some("https://evil.example"), Some(""), Some(&*format!("{own}/")), None] {
        assert!(!stage.connector.is_of(&flow, other), "{other:?}");
    }
    // one that says nothing of itself need not, and is never another
    let stage = OAuthStage::start().await;
    stage.authority.change(json!({ "authorization_response_iss_parameter_supported": null }));
    let link = stage.link("ann").await.unwrap();
    let back: SentForm = stage.authority.agree(&link).query_pairs().into_owned().collect();
    let flow = stage.connector.offer(&back["state"]).await.unwrap().flow;
    assert!(stage.connector.is_of(&flow, None) && !stage.connector.is_of(&flow, Some("https://evil.example")));
}

#[tokio::test]
async fn metadata_of_another_resource_is_refused() {
    let stage = OAuthStage::start().await;
    stage.authority.protect("https://evil.example/mcp");
    let place = stage.authority.resource_metadata();
    let told = format!("the metadata at {place} is that of another resource, `https://evil.example/mcp`");
    assert_eq!(stage.refused().await, format!("{told}; `resource` is to be its address"));
}

#[tokio::test]
async fn server_without_s256_or_with_metadata_of_another_is_refused() {
    let stage = OAuthStage::start().await;
    stage.authority.change(json!({ "code_challenge_methods_supported": ["plain"] }));
    let told = stage.refused().await;
    assert!(told.ends_with("does not say that it takes PKCE with S256 (`code_challenge_methods_supported`)"), "{told}");
    let stage = OAuthStage::start().await;
    stage.authority.change(json!({ "issuer": "https://evil.example" }));
    let told = stage.refused().await;
    assert!(told.ends_with("has metadata of another one, `https://evil.example`"), "{told}");
    assert!(stage.authority.registered().is_empty());
}

#[tokio::test]
async fn code_and_refresh_token_go_to_the_server_alone_that_was_asked() {
    let (stage, other) = (OAuthStage::start().await, Authority::start().await);
    stage.connect("ann").await;
    stage.clock.advance(TimeDelta::seconds(4));
    let mut begun = Vec::new();
    for _ in 0..2 {
        begun.push(stage.authority.agree(&stage.link("ann").await.unwrap()));
    }
    stage.move_to(&other);
    stage.clock.advance(TimeDelta::minutes(9));
    assert!(stage.finish(&begun[0]).await.is_ok(), "what was found is good for ten minutes");
    stage.clock.advance(TimeDelta::seconds(58));
    let refused = stage.finish(&begun[1]).await;
    assert!(matches!(&refused, Err(ConnectError::Misconfigured(why)) if why.contains("another one")), "{refused:?}");

    stage.clock.advance(TimeDelta::seconds(LIFE));
    stage.connect_at(&other, "ops").await;
    let harness = stage.serve(json!({ "listed_as": "ops" })).await;
    assert_eq!(code(harness.call("notes.echo", echo()).await), "credential_needs_consent");
    harness.stop().await;
    let why = stage.stored("ann").await.credential.status_reason.unwrap();
    assert!(why.starts_with("its tokens are from `") && why.contains(&other.issuer()), "{why}");
    assert!(other.forms().iter().all(|form| form["grant_type"] == "authorization_code"), "{:?}", other.forms());
}

#[tokio::test]
async fn service_is_known_by_its_document_where_the_server_reads_it_and_by_the_operators_client_before_that() {
    let stage = OAuthStage::start_with("https://wake.example.org", OAuthProvider::default()).await;
    stage.authority.change(json!({ "client_id_metadata_document_supported": true }));
    assert!(stage.connect("ann").await.is_renewable);
    let id = "https://wake.example.org/oauth/client";
    assert_eq!(stage.authority.agreed()[0]["client_id"], id);
    assert_eq!(stage.stored("ann").await.credential.oauth.unwrap().client_id.as_deref(), Some(id));
    assert!(stage.authority.registered().is_empty());

    let own = OAuthProvider { client_id: "reveille".into(), scopes: vec!["mine".into()], ..OAuthProvider::default() };
    let stage = OAuthStage::start_with(PUBLIC_URL, own).await;
    assert!(stage.connect("ann").await.is_renewable);
    let asked = stage.authority.agreed().remove(0);
    assert_eq!((asked["client_id"].as_str(), asked["scope"].as_str()), ("reveille", "mine"));
    assert_eq!(stage.stored("ann").await.credential.oauth.unwrap().client_id, None);
    assert!(stage.authority.registered().is_empty());
}

#[tokio::test]
async fn server_that_registers_nobody_is_told_of_with_what_to_do() {
    let stage = OAuthStage::start().await;
    stage.authority.change(json!({ "registration_endpoint": null }));
    let told = stage.refused().await;
    assert!(
        told.contains(&format!("with the redirect URI {PUBLIC_URL}/oauth/callback, and set `client_id`")),
        "{told}"
    );
}

#[tokio::test]
async fn call_that_needs_more_scopes_is_told_what_to_do() {
    let stage = OAuthStage::start().await;
    stage.connect("ops").await;
    let harness = stage.serve(json!({ "credential_of": "ops" })).await;
    harness.tool("notes.echo").await;
    stage.plan(json!({ "forbid": "Bearer error=\"insufficient_scope\", scope=\"notes:write\"" }));
    let failed = harness.call("notes.echo", echo()).await.unwrap_err();
    let told = "permission_denied: the MCP server `notes` asks for the scopes `notes:write` beyond what its credential was \
                granted: connect the account again; where its [oauth] section names `scopes` or `authorize_url`, name them \
                in `scopes` first";
    assert_eq!((failed.code(), failed.to_string().as_str()), ("mcp_insufficient_scope", told));
    harness.stop().await;
}

/// The scopes that a link asks for.
fn scopes(link: &Url) -> String {
    let asked: SentForm = link.query_pairs().into_owned().collect();
    asked["scope"].clone()
}

/// Has a call of ann, which goes with the account of ops, refused for want of the scope `notes:write`, twice.
async fn call_without_the_scope(stage: &OAuthStage) {
    stage.connect("ops").await;
    let harness = stage.serve(json!({ "credential_of": "ops" })).await;
    harness.tool("notes.echo").await;
    stage.plan(json!({ "forbid": "Bearer error=\"insufficient_scope\", scope=\"notes:write\"" }));
    for _ in 0..2 {
        assert_eq!(code(harness.call("notes.echo", echo()).await), "mcp_insufficient_scope");
    }
    harness.stop().await;
}

#[tokio::test]
async fn scopes_that_a_call_misses_are_asked_for_by_the_next_link_of_the_account_beside_those_that_it_has() {
    let stage = OAuthStage::start().await;
    call_without_the_scope(&stage).await;
    let kept = stage.stored("ops").await.credential;
    assert_eq!(kept.status, CredentialStatus::Active);
    let oauth = kept.oauth.unwrap();
    assert_eq!((oauth.scopes, oauth.missed_scopes), (vec!["notes:read".to_owned()], vec!["notes:write".to_owned()]));
    assert_eq!(scopes(&stage.link("ann").await.unwrap()), "notes:read offline_access");

    let more = "notes:read offline_access notes:write";
    let link = stage.link("ops").await.unwrap();
    assert_eq!(scopes(&link), more);
    let back = stage.authority.agree(&link);
    let sent: SentForm = back.query_pairs().into_owned().collect();
    assert_eq!(stage.connector.offer(&sent["state"]).await.unwrap().scopes.join(" "), more);
    stage.finish(&back).await.unwrap();
    let oauth = stage.stored("ops").await.credential.oauth.unwrap();
    assert_eq!((oauth.scopes.join(" "), oauth.missed_scopes), ("notes:read notes:write".to_owned(), vec![]));
    assert_eq!(scopes(&stage.link("ops").await.unwrap()), more, "what was granted stays");
}

#[tokio::test]
async fn server_gets_no_scopes_beyond_those_that_the_operator_names() {
    let named = OAuthProvider { scopes: vec!["notes:read".into()], ..OAuthProvider::default() };
    let stage = OAuthStage::start_with(PUBLIC_URL, named).await;
    call_without_the_scope(&stage).await;
    assert_eq!(scopes(&stage.link("ops").await.unwrap()), "notes:read");
}

#[tokio::test]
async fn account_whose_token_is_refused_is_connected_anew_where_the_server_names_another_authority() {
    let (stage, other) = (OAuthStage::start().await, Authority::start().await);
    for tenant in ["ops", "ann"] {
        stage.connect(tenant).await;
    }
    let harness = stage.serve(json!({ "listed_as": "ops" })).await;
    assert_eq!(text(harness.call("notes.echo", echo()).await), "hello");
    stage.move_to(&other);
    stage.clock.advance(TimeDelta::seconds(5));
    stage.plan(json!({ "tokens": [] }));
    assert_eq!(code(harness.call("notes.echo", echo()).await), "credential_needs_consent");
    harness.stop().await;
    let why = stage.stored("ann").await.credential.status_reason.unwrap();
    assert!(why.starts_with("its tokens are from `") && why.contains(&other.issuer()), "{why}");
    assert!(stage.forms("refresh_token").is_empty() && other.forms().is_empty(), "nothing is shown to either");

    stage.connect_at(&other, "ann").await;
    assert_eq!(other.registered().len(), 1);
    let oauth = stage.stored("ann").await.credential.oauth.unwrap();
    assert_eq!(oauth.issuer, Some(other.issuer()));
}

#[tokio::test]
async fn link_looks_for_the_authority_anew_and_is_ended_by_an_instance_that_has_looked_before() {
    let (stage, other) = (OAuthStage::start().await, Authority::start().await);
    stage.connect("ann").await;
    stage.move_to(&other);
    stage.clock.advance(TimeDelta::seconds(5));
    let (_, elsewhere) = oauth::open(&stage.store, &stage.vault, &egress(), &stage.providers, PUBLIC_URL);
    let link = elsewhere.start("ann", &notes(), "token:admin").await.unwrap().url;
    stage.finish(&other.agree(&link)).await.unwrap();
    stage.clock.advance(TimeDelta::seconds(5));
    stage.move_to(&stage.authority);
    stage.connect("ann").await;
}

#[tokio::test]
async fn registration_that_has_failed_is_not_tried_again_at_once() {
    let stage = OAuthStage::start().await;
    stage.authority.change(json!({ "registration_endpoint": format!("{}/none", stage.authority.issuer()) }));
    for (seconds, tries) in [(0, 1), (9, 1), (1, 2)] {
        stage.clock.advance(TimeDelta::seconds(seconds));
        let told = stage.refused().await;
        assert!(told.contains("does not register this service"), "{told}");
        let asked = stage.authority.asked().await;
        assert_eq!(asked.iter().filter(|path| *path == "/none").count(), tries);
    }
}

#[tokio::test]
async fn nothing_is_looked_for_before_a_link_is_made_and_once_for_many() {
    let stage = OAuthStage::start().await;
    assert!(stage.authority.asked().await.is_empty());
    for _ in 0..3 {
        stage.link("ann").await.unwrap();
    }
    let expected = ["/resource", "/.well-known/oauth-authorization-server", "/register"];
    assert_eq!(stage.authority.asked().await, expected);
}

#[tokio::test]
async fn check_tells_which_server_was_found_and_how_this_service_becomes_known_there() {
    let stage = OAuthStage::start().await;
    let section = |name: &str, resource: &str| format!("[oauth.{name}]\nresource = \"{resource}\"\n");
    let config = [
        "[egress]\nallow = [\"127.0.0.1:*\"]\n".to_owned(),
        section("away", "http://127.0.0.1:1/mcp"),
        section("notes", &stage.http.url),
    ];
    let dir = TempDir::new();
    std::fs::write(dir.path().join("reveille.toml"), config.concat()).unwrap();
    let done = reveille(dir.path()).args(["check", "--json"]).output().await.unwrap();
    let answer: Value = serde_json::from_slice(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"));
    let found = |name: &str| {
        let findings = answer["checks"].as_array().unwrap();
        let found = findings.iter().find(|finding| finding["name"] == name).cloned();
        found.unwrap_or_else(|| panic!("no {name} in {answer:#}"))
    };
    let (url, issuer) = (&stage.http.url, stage.authority.issuer());
    let told = format!("{url} names {issuer}, where this service registers itself when an account is connected");
    assert_eq!((&found("oauth notes")["verdict"], &found("oauth notes")["message"]), (&json!("fine"), &json!(told)));
    assert_eq!(found("oauth away")["verdict"], "wrong");
    assert!(stage.authority.registered().is_empty(), "a look registers nothing");
}
