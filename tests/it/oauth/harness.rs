//! A provider, a database and any number of instances on one clock, with accounts of the tenant ann.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use http::Method;
use reveille::base::clock::Clock;
use reveille::base::id::{Scope, Tenant};
use reveille::base::secret::{Secret, SecretUrl};
use reveille::domain::credential::{OAuth, Reference};
use reveille::domain::notification::{Addresses, Delivery, MessageKind, Recipient};
use reveille::ports::egress::{self, Egress, EgressRequest};
use reveille::ports::vault;
use reveille::ports::vault::credentials::{Credentials, Use, UsedSecrets};
use reveille::ports::vault::oauth::{self, OAuthConnector, OAuthError, OAuthProvider, Refresher};
use reveille::ports::vault::{KeySource, Vault, WithoutKeys};
use reveille::store::{self, CredentialRowDraft, DeliveryFilter, Store, StoredCredential, next_generation};
use serde_json::{Value, json};
use sqlx::{Connection, Executor, SqliteConnection};

use crate::support::binary::TempDir;
use crate::support::oauth::{CLIENT, OAuthServer, secret_of};
use crate::support::postgres::Database;
use crate::support::proxy::Proxy;
use crate::support::sqlite;

/// How long access tokens live.
pub const LIFE: TimeDelta = TimeDelta::minutes(10);
/// Where the provider sends people back to.
pub const PUBLIC_URL: &str = "http://127.0.0.1:7700";
/// Where the clock stands at first.
const START: &str = "2026-11-21T09:00:00Z";
/// A key that all instances share.
const KEY: &str = "k:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

pub struct OAuthHarness {
    pub clock: Clock,
    pub server: OAuthServer,
    pub providers: oauth::Settings,
    pub dir: TempDir,
    /// `None`: SQLite in the directory, and one instance.
    database: Option<Database>,
}

/// One of the service's processes, as far as credentials go.
#[derive(Clone)]
pub struct Instance {
    pub store: Store,
    pub vault: Vault,
    pub refresher: Refresher,
    pub connector: OAuthConnector,
    credentials: Credentials,
    host: String,
}

/// The operator's description of the provider, for one of its clients.
pub fn provider(server: &OAuthServer, client: &str) -> OAuthProvider {
    OAuthProvider {
        authorize_url: server.url("/auth"),
        token_url: server.url("/token"),
        client_id: client.into(),
        client_secret: Some(Secret::new(secret_of(client))),
        scopes: vec!["openid".into(), "offline_access".into()],
        hosts: vec![server.host().into()],
        ..OAuthProvider::default()
    }
}

impl OAuthHarness {
    pub async fn on_sqlite() -> OAuthHarness {
        OAuthHarness::over(None).await
    }

    pub async fn on_postgres() -> OAuthHarness {
        let migrate = |url: String| async move {
            open(Some(url), Path::new("."), Clock::system()).await.close().await;
        };
        OAuthHarness::over(Some(Database::copy_of("oauth_template", migrate).await)).await
    }

    async fn over(database: Option<Database>) -> OAuthHarness {
        let clock = Clock::manual(START.parse().expect("an instant"));
        let server = OAuthServer::start(&oauth::redirect_uri(PUBLIC_URL), LIFE.to_std().expect("a length")).await;
        server.set_clock(clock.now()).await;
        let providers = oauth::Settings::from([("calendar".to_owned(), provider(&server, CLIENT))]);
        let dir = TempDir::new();
        if database.is_none() {
            sqlite::migrated_copy(dir.path());
        }
        OAuthHarness { clock, server, providers, dir, database }
    }

    /// Changes the schema behind the service's back: `(sqlite, postgres)`.
    pub async fn define(&self, sqlite: &'static str, postgres: &'static str) {
        let defined = match &self.database {
            Some(database) => database.connect().await.execute(postgres).await.map(drop),
            None => {
                let url = format!("sqlite://{}", self.dir.path().join("reveille.db").display());
                SqliteConnection::connect(&url).await.expect("the database").execute(sqlite).await.map(drop)
            }
        };
        defined.expect("a definition");
    }

    /// Another instance. Two need Postgres.
    pub async fn instance(&self) -> Instance {
        self.instance_with(&self.providers).await
    }

    pub fn is_postgres(&self) -> bool {
        self.database.is_some()
    }

    /// A wire to the database that can fail.
    pub async fn proxy(&self) -> Proxy {
        Proxy::before(&self.database.as_ref().expect("Postgres").url).await
    }

    /// Another instance, by such a wire.
    pub async fn instance_by(&self, proxy: &Proxy) -> Instance {
        self.instance_at(Some(proxy.url(&self.database.as_ref().expect("Postgres").url)), &self.providers).await
    }

    pub async fn instance_with(&self, providers: &oauth::Settings) -> Instance {
        self.instance_at(self.database.as_ref().map(|database| database.url.clone()), providers).await
    }

    async fn instance_at(&self, url: Option<String>, providers: &oauth::Settings) -> Instance {
        let store = open(url, self.dir.path(), self.clock.clone()).await;
        let keys = vault::Settings { master_keys: vec![KeySource::value(KEY)], accept_lost_keys: false };
        let (vault, _) = Vault::open(&keys, WithoutKeys::Refuse).expect("a vault");
        let egress = Egress::new(&egress::Settings { allow: vec!["127.0.0.1:*".into()], ..Default::default() });
        let egress = egress.expect("an egress");
        let (refresher, connector) = oauth::open(&store, &vault, &egress, providers, PUBLIC_URL);
        let renewal = Arc::new(refresher.clone());
        let credentials = Credentials::new(store.clone(), vault.clone(), egress, Some(renewal));
        Instance { store, vault, refresher, connector, credentials, host: self.server.host().into() }
    }

    /// Moves the clock here and at the provider.
    pub async fn advance(&self, step: TimeDelta) {
        self.clock.advance(step);
        self.server.set_clock(self.clock.now()).await;
    }

    /// Connects ann's account, as a person does with a link.
    pub async fn connect(&self, instance: &Instance) {
        let started = instance.connector.start("ann", &calendar(), "token:admin").await.expect("a link");
        let back = self.server.agree(started.url.as_str(), "ann-at-the-provider").await;
        let (state, code) = (parameter(&back, "state"), parameter(&back, "code"));
        let flow = instance.connector.offer(&state).await.expect("an offer").flow;
        let connected = instance.connector.finish(flow, Secret::new(code)).await.expect("connected");
        assert!(connected.is_renewable);
    }
}

pub fn calendar() -> Reference {
    Reference::parse("calendar").expect("a reference")
}

/// A parameter of an address.
pub fn parameter(url: &url::Url, name: &str) -> String {
    let found = url.query_pairs().find(|(known, _)| known == name);
    found.unwrap_or_else(|| panic!("no {name} in {url}")).1.into_owned()
}

async fn open(url: Option<String>, dir: &Path, clock: Clock) -> Store {
    let mut settings = store::Settings { max_connections: 8, ..store::Settings::default() };
    if let Some(url) = url {
        settings.url = SecretUrl::new(url);
    }
    Store::open(&settings, dir, clock, |_| {}).await.expect("open a store")
}

impl Instance {
    /// The stored credential, and its document.
    pub async fn stored(&self) -> (StoredCredential, Secret) {
        let stored = self.store.get_credential(&Scope::Every, "ann", "calendar", "primary").await.expect("stored");
        let document = self.vault.open_document(&stored).expect("it opens");
        (stored, document)
    }

    /// A text of the stored document.
    pub async fn token(&self, name: &str) -> String {
        text(&self.stored().await.1, name)
    }

    /// `active` or `needs_consent`, and why.
    pub async fn status(&self) -> (&'static str, Option<String>) {
        let credential = self.stored().await.0.credential;
        (credential.status.as_str(), credential.status_reason)
    }

    /// The document with a good token, or the sentence that says why there is none.
    pub async fn fresh(&self) -> Result<Secret, String> {
        let (stored, document) = self.stored().await;
        self.refresher.fresh(&stored, document, false).await.map_err(|error: OAuthError| error.to_string())
    }

    /// The document after the API has refused the token, or the sentence that says why there is none.
    pub async fn renewed(&self) -> Result<Secret, String> {
        let (stored, document) = self.stored().await;
        self.refresher.fresh(&stored, document, true).await.map_err(|error| error.to_string())
    }

    /// Asks the provider's API who it is, as a poll does that names the credential.
    pub async fn call(&self) -> Result<(u16, Value), String> {
        let tenant = Tenant::new("ann").expect("a tenant");
        let with = Use { tenant: &tenant, reference: &calendar(), run_id: None, task_id: None, by: "poll" };
        let request = EgressRequest::new(Method::GET, format!("http://{}/me", self.host));
        let answer = self
            .credentials
            .fetch(request, Some(&with), &UsedSecrets::default())
            .await
            .map_err(|error| error.to_string())?
            .response;
        Ok((answer.status.as_u16(), serde_json::from_slice(&answer.body).expect("JSON")))
    }

    /// Writes the credential as its owner does: with this document, this OAuth, this end.
    pub async fn put(&self, document: &Value, oauth: Value, expires_at: Option<DateTime<Utc>>) {
        let oauth = Some(serde_json::from_value(oauth).expect("OAuth"));
        self.put_at(self.host.clone(), Some(document), oauth, expires_at).await;
    }

    /// Writes the credential as [`OAuthHarness::put`] does, bound to this host. Without a document the stored one is
    /// kept, without OAuth it is a plain one.
    pub async fn put_at(
        &self,
        host: String,
        document: Option<&Value>,
        oauth: Option<OAuth>,
        expires_at: Option<DateTime<Utc>>,
    ) {
        let old = self.store.get_credential(&Scope::Every, "ann", "calendar", "primary").await.ok();
        let generation = next_generation(old.as_ref(), self.store.clock().now());
        let sealed = document.map(|document| {
            let document = Secret::new(document.to_string());
            self.vault.seal_document("ann", &calendar(), generation, &document, expires_at).expect("sealed")
        });
        let new = CredentialRowDraft {
            tenant_id: "ann".into(),
            service: "calendar".into(),
            account_name: "primary".into(),
            hosts: vec![host],
            inject: Some(OAuthProvider::default().inject()),
            oauth,
            document: sealed,
            by: "token:admin".into(),
        };
        let version = old.map_or(0, |old| old.credential.version);
        self.store.put_credential(&Scope::Every, &new, version).await.expect("written");
    }

    /// Asks this address with the credential, and waits so long.
    pub async fn fetch(&self, url: String, timeout: Duration) -> Result<u16, String> {
        let tenant = Tenant::new("ann").expect("a tenant");
        let with = Use { tenant: &tenant, reference: &calendar(), run_id: None, task_id: None, by: "poll" };
        let request = EgressRequest { timeout, ..EgressRequest::new(Method::GET, url) };
        let answer = self.credentials.fetch(request, Some(&with), &UsedSecrets::default()).await;
        Ok(answer.map_err(|error| error.to_string())?.response.status.as_u16())
    }

    /// Gives ann an address, so that there is somebody to tell.
    pub async fn recipient(&self) {
        let addresses = Addresses { email: Some("ann@example.org".into()), ..Addresses::default() };
        let ann = Recipient {
            timezone: chrono_tz::Tz::UTC,
            locale: "en".into(),
            addresses,
            fallback: vec![],
            quiet: Default::default(),
            verified: Default::default(),
        };
        self.store.put_recipient(&Scope::Every, "ann", &ann, None).await.expect("written");
    }

    /// The notices that ann was sent, as subject and text.
    pub async fn notices(&self) -> Vec<(String, String)> {
        let filter = DeliveryFilter { limit: 100, ..DeliveryFilter::default() };
        let scope = Scope::Only(Tenant::new("ann").expect("a tenant"));
        let sent: Vec<Delivery> = self.store.list_deliveries(&scope, &filter).await.expect("deliveries");
        let notices = sent.into_iter().filter(|delivery| delivery.kind == MessageKind::Notice);
        notices.map(|notice| (notice.subject.unwrap_or_default(), notice.text.unwrap_or_default())).collect()
    }
}

/// A text of a document.
pub fn text(document: &Secret, name: &str) -> String {
    let document: Value = serde_json::from_str(document.expose()).expect("JSON");
    document[name].as_str().unwrap_or_else(|| panic!("no {name}")).to_owned()
}

/// The answer of userinfo.
pub fn ann() -> Result<(u16, Value), String> {
    Ok((200, json!({ "sub": "ann-at-the-provider" })))
}
