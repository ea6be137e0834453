//! An authorization server of one test, over real HTTP: it registers clients, wants PKCE and a resource, gives tokens
//! that live for ten minutes, and rotates refresh tokens. People agree to everything at once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use url::Url;
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate};

/// How long its access tokens live, in seconds.
pub const LIFE: i64 = 600;

/// The parameters of a form or a query.
pub type SentForm = BTreeMap<String, String>;

/// An authorization server, which has the metadata of a resource as well.
pub struct Authority {
    server: MockServer,
    books: Arc<Mutex<AuthorityBooks>>,
}

/// All that it knows.
#[derive(Default)]
struct AuthorityBooks {
    /// Documents by their paths.
    documents: BTreeMap<String, Value>,
    /// The requests of people that were agreed to, by their codes.
    codes: BTreeMap<String, SentForm>,
    /// Refresh tokens that are good.
    refresh: Vec<String>,
    /// Forms that the token endpoint was sent.
    forms: Vec<SentForm>,
    registered: Vec<Value>,
    given: usize,
    is_revoked: bool,
}

/// Where its own metadata is.
const METADATA: &str = "/.well-known/oauth-authorization-server";
/// Where the metadata of the resource is.
const RESOURCE: &str = "/resource";

impl Authority {
    pub async fn start() -> Authority {
        let (server, books) = (MockServer::start().await, Arc::<Mutex<AuthorityBooks>>::default());
        Mock::given(any()).respond_with(AuthorityAnswers(Arc::clone(&books))).mount(&server).await;
        let authority = Authority { server, books };
        let at = |path: &str| format!("{}{path}", authority.issuer());
        let metadata = json!({
            "issuer": authority.issuer(), "authorization_endpoint": at("/authorize"), "token_endpoint": at("/token"),
            "registration_endpoint": at("/register"), "code_challenge_methods_supported": ["S256"],
            "token_endpoint_auth_methods_supported": ["none"], "scopes_supported": ["notes:read", "offline_access"],
            "authorization_response_iss_parameter_supported": true,
        });
        authority.serve(METADATA, metadata);
        authority
    }

    /// Its name for itself.
    pub fn issuer(&self) -> String {
        self.server.uri()
    }

    /// Where the metadata of a resource is that [`Authority::protect`] was told of.
    pub fn resource_metadata(&self) -> String {
        format!("{}{RESOURCE}", self.issuer())
    }

    /// Serves the metadata of this resource, which names it.
    pub fn protect(&self, resource: &str) {
        self.serve(RESOURCE, self.metadata_of(resource));
    }

    /// The metadata of a resource that names it.
    pub fn metadata_of(&self, resource: &str) -> Value {
        json!({ "resource": resource, "authorization_servers": [self.issuer()], "scopes_supported": ["notes:all"] })
    }

    /// Changes its own metadata; `null` takes a field away.
    pub fn change(&self, fields: Value) {
        let mut books = self.books();
        let metadata = books.documents.get_mut(METADATA).and_then(Value::as_object_mut).expect("metadata");
        for (name, value) in fields.as_object().expect("fields") {
            match value {
                Value::Null => drop(metadata.remove(name)),
                value => drop(metadata.insert(name.clone(), value.clone())),
            }
        }
    }

    /// Serves a document.
    pub fn serve(&self, path: &str, document: Value) {
        self.books().documents.insert(path.to_owned(), document);
    }

    /// Agrees as a person does who opens the link; answers where the browser is sent then.
    pub fn agree(&self, link: &Url) -> Url {
        assert!(link.as_str().starts_with(&format!("{}/authorize?", self.issuer())), "{link}");
        let asked: SentForm = link.query_pairs().into_owned().collect();
        assert_eq!((asked["response_type"].as_str(), asked["code_challenge_method"].as_str()), ("code", "S256"));
        let mut books = self.books();
        let code = format!("code-{}", books.codes.len() + 1);
        let mut back = Url::parse(&asked["redirect_uri"]).expect("an address");
        let issuer = self.issuer();
        let pairs = [("code", code.as_str()), ("state", asked["state"].as_str()), ("iss", issuer.as_str())];
        back.query_pairs_mut().extend_pairs(pairs);
        books.codes.insert(code, asked);
        back
    }

    /// The requests of people that were agreed to, in their order.
    pub fn agreed(&self) -> Vec<SentForm> {
        self.books().codes.values().cloned().collect()
    }

    /// Forms that the token endpoint was sent, in their order.
    pub fn forms(&self) -> Vec<SentForm> {
        self.books().forms.clone()
    }

    /// Requests of clients that were registered.
    pub fn registered(&self) -> Vec<Value> {
        self.books().registered.clone()
    }

    /// Takes back everything that it has given.
    pub fn revoke(&self) {
        self.books().is_revoked = true;
    }

    /// The paths that were asked for, in their order.
    pub async fn asked(&self) -> Vec<String> {
        let requests = self.server.received_requests().await.expect("requests");
        requests.iter().map(|request| request.url.path().to_owned()).collect()
    }

    fn books(&self) -> MutexGuard<'_, AuthorityBooks> {
        self.books.lock().expect("the books")
    }
}

/// The access token that is given as the `number`th.
pub fn access_token(number: usize) -> String {
    format!("access-token-{number}")
}

struct AuthorityAnswers(Arc<Mutex<AuthorityBooks>>);

impl Respond for AuthorityAnswers {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let mut books = self.0.lock().expect("the books");
        match (request.method.as_str(), request.url.path()) {
            ("GET", path) => match books.documents.get(path) {
                Some(document) => ResponseTemplate::new(200).set_body_json(document),
                None => ResponseTemplate::new(404),
            },
            ("POST", "/register") => books.register(request),
            ("POST", "/token") => books.give(request),
            _ => ResponseTemplate::new(405),
        }
    }
}

impl AuthorityBooks {
    fn register(&mut self, request: &Request) -> ResponseTemplate {
        self.registered.push(request.body_json().expect("JSON"));
        let id = format!("registered-{}", self.registered.len());
        let answer = json!({ "client_id": id, "token_endpoint_auth_method": "none" });
        ResponseTemplate::new(201).set_body_json(answer)
    }

    fn give(&mut self, request: &Request) -> ResponseTemplate {
        let form: SentForm = url::form_urlencoded::parse(&request.body).into_owned().collect();
        self.forms.push(form.clone());
        let is_good = !self.is_revoked
            && match form.get("grant_type").map(String::as_str) {
                Some("authorization_code") => self.knows_code(&form),
                Some("refresh_token") => self.takes_refresh(&form),
                _ => false,
            };
        if !is_good {
            return ResponseTemplate::new(400).set_body_json(json!({ "error": "invalid_grant" }));
        }
        self.given += 1;
        let refresh = format!("refresh-token-{}", self.given);
        self.refresh.push(refresh.clone());
        let answer = json!({
            "access_token": access_token(self.given), "token_type": "Bearer", "expires_in": LIFE,
            "refresh_token": refresh,
        });
        ResponseTemplate::new(200).set_body_json(answer)
    }

    /// Whether the code was given for this very client, resource and verifier.
    fn knows_code(&self, form: &SentForm) -> bool {
        let Some(asked) = form.get("code").and_then(|code| self.codes.get(code)) else { return false };
        let verifier = form.get("code_verifier").map_or("", String::as_str);
        let challenge = URL_SAFE_NO_PAD.encode(digest(&SHA256, verifier.as_bytes()));
        let is_same = |name: &str| asked.get(name).is_some() && asked.get(name) == form.get(name);
        asked["code_challenge"] == challenge && ["client_id", "redirect_uri", "resource"].into_iter().all(is_same)
    }

    /// Whether the refresh token is good, which it is once.
    fn takes_refresh(&mut self, form: &SentForm) -> bool {
        let sent = form.get("refresh_token");
        let place = self.refresh.iter().position(|good| Some(good) == sent);
        place.map(|place| self.refresh.remove(place)).is_some()
    }
}
