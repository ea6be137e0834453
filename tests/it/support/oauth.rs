//! A real OAuth 2 server of one test: oidc-provider, a certified provider, run by `tests/oauth/server.mjs`.
//!
//! It rotates refresh tokens, wants PKCE, takes consent on a page without script, and lives by a clock that the test
//! moves. Its userinfo endpoint is the API that access tokens open.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use chrono::{DateTime, Utc};
use reqwest::{Client, Response, header};
use reveille::ports::egress::operator_client;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;
use url::Url;

/// How long a start or an answer may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(60);
/// The client that shows itself by HTTP Basic.
pub const CLIENT: &str = "reveille";
/// The client that sends its secret in the body.
pub const BODY_CLIENT: &str = "reveille-body";

/// The secret of one of the clients.
pub fn secret_of(client: &str) -> String {
    format!("{client}-secret-{}", "s".repeat(24))
}

/// Killed when dropped.
pub struct OAuthServer {
    base: String,
    http: Client,
    _child: Child,
}

impl OAuthServer {
    /// A server whose access tokens live for `life`, with clients that are sent back to `redirect`.
    pub async fn start(redirect: &str, life: Duration) -> OAuthServer {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/oauth");
        assert!(
            dir.join("node_modules/oidc-provider").is_dir(),
            "run the tests with scripts/test.sh, which installs it"
        );
        let mut child = Command::new("node")
            .args(["server.mjs", &json!({ "redirect": redirect, "ttl": life.as_secs() }).to_string()])
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("start node");
        let mut lines = BufReader::new(child.stdout.take().expect("its stdout")).lines();
        let port = async {
            while let Some(line) = lines.next_line().await.expect("its output") {
                if let Some(port) = serde_json::from_str::<Value>(&line).ok().and_then(|said| said["port"].as_u64()) {
                    return port;
                }
            }
            panic!("the OAuth server ended before it listened");
        };
        let port = timeout(PATIENCE, port).await.expect("the OAuth server starts");
        OAuthServer { base: format!("http://127.0.0.1:{port}"), http: operator_client(PATIENCE), _child: child }
    }

    /// `http://127.0.0.1:port` and a path.
    pub fn url(&self, path: &str) -> String {
        format!("{}{path}", self.base)
    }

    /// `127.0.0.1:port`.
    pub fn host(&self) -> &str {
        self.base.trim_start_matches("http://")
    }

    /// Moves its clock to where the test's stands.
    pub async fn set_clock(&self, now: DateTime<Utc>) {
        self.hand("clock", json!({ "ms": now.timestamp_millis() })).await;
    }

    /// Breaks the next `times` requests to the token endpoint: `hang`, `down`, `lose` (does the work, and the answer is
    /// lost), `slow` (answers after `ms`), `keep` (does the work, and answers when it is released).
    pub async fn fault(&self, mode: &str, times: u32, ms: u64) {
        self.hand("fault", json!({ "mode": mode, "times": times, "ms": ms })).await;
    }

    /// Lets the answer go that it keeps.
    pub async fn release(&self) {
        self.hand("release", json!({})).await;
    }

    /// The person takes every consent back.
    pub async fn revoke(&self) {
        self.hand("revoke", json!({})).await;
    }

    /// How often a grant was given out, by its kind: `refresh_token`, `authorization_code`.
    pub async fn granted(&self, kind: &str) -> u64 {
        self.hand("seen", json!({})).await["granted"][kind].as_u64().unwrap_or(0)
    }

    /// Refusals, as `refresh_token: invalid_grant`.
    pub async fn refused(&self) -> Vec<String> {
        serde_json::from_value(self.hand("seen", json!({})).await["refused"].clone()).expect("a list")
    }

    /// How often the token endpoint was asked.
    pub async fn asked(&self) -> u64 {
        self.hand("seen", json!({})).await["asked"].as_u64().expect("a number")
    }

    /// Logs in as `login` and agrees, as a person does who opens this address; answers where the browser is sent then.
    pub async fn agree(&self, authorize_url: &str, login: &str) -> Url {
        self.answer(authorize_url, &[("login", login), ("do", "agree")]).await
    }

    /// Logs in as [`agree`](Self::agree) does, and refuses.
    pub async fn refuse(&self, authorize_url: &str) -> Url {
        self.answer(authorize_url, &[("do", "refuse")]).await
    }

    async fn answer(&self, authorize_url: &str, form: &[(&str, &str)]) -> Url {
        let mut browser = Browser { server: self, cookies: BTreeMap::new() };
        let page = browser.visit(authorize_url, None).await;
        let page = browser.follow(&page);
        assert!(page.path().starts_with("/interaction/"), "the provider refused the request: {page}");
        let shown = browser.visit(page.as_str(), None).await;
        assert_eq!(shown.status(), 200);
        let mut at = browser.visit(page.as_str(), Some(form)).await;
        loop {
            let next = browser.follow(&at);
            if !next.as_str().starts_with(&self.base) {
                return next;
            }
            at = browser.visit(next.as_str(), None).await;
        }
    }

    async fn hand(&self, what: &str, wish: Value) -> Value {
        let answer = self.http.post(self.url(&format!("/test/{what}"))).json(&wish).send().await.expect("an answer");
        assert_eq!(answer.status(), 200);
        answer.json().await.expect("JSON")
    }
}

/// As much of a browser as a login takes: it keeps cookies.
struct Browser<'a> {
    server: &'a OAuthServer,
    cookies: BTreeMap<String, String>,
}

impl Browser<'_> {
    async fn visit(&mut self, url: &str, form: Option<&[(&str, &str)]>) -> Response {
        let cookies: Vec<String> = self.cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let request = match form {
            Some(form) => self.server.http.post(url).form(form),
            None => self.server.http.get(url),
        };
        let answer = request.header(header::COOKIE, cookies.join("; ")).send().await.expect("an answer");
        for set in answer.headers().get_all(header::SET_COOKIE) {
            let pair = set.to_str().expect("a cookie").split(';').next().expect("a pair");
            let (name, value) = pair.split_once('=').expect("a pair");
            self.cookies.insert(name.to_owned(), value.to_owned());
        }
        answer
    }

    /// Where a redirect leads.
    fn follow(&self, answer: &Response) -> Url {
        assert!(answer.status().is_redirection(), "no redirect: {} from {}", answer.status(), answer.url());
        let location = answer.headers()[header::LOCATION].to_str().expect("an address");
        answer.url().join(location).expect("an address")
    }
}
