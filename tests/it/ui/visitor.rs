//! A visitor of the dashboard: signs in with a token, reads pages, and sends their forms as a browser does.

use std::time::Duration;

use reqwest::{Client, RequestBuilder};
use reveille::http::server::{self, ServerLimits};
use reveille::ports::egress::operator_client;
use tokio::net::TcpListener;
use url::form_urlencoded::Serializer;

use crate::api::service::{ADMIN, Api};

/// How long an answer may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(30);

/// Serves the API and the dashboard on a port of this machine for as long as the test goes on; answers the address.
pub async fn served(api: &Api) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let (limits, proxies, metrics) = (ServerLimits::default(), Default::default(), api.metrics.clone());
    tokio::spawn(server::serve(listener, api.app.clone(), limits, proxies, metrics, api.stop.clone()));
    format!("http://{address}")
}

/// Somebody with a token of this tenant with these permissions, signed in.
pub async fn visitor(api: &Api, tenant: &str, scopes: &[&str]) -> Visitor {
    let token = api.token(tenant, scopes).await;
    Visitor::signed_in(&served(api).await, &token).await
}

/// The operator, signed in.
pub async fn admin(api: &Api) -> Visitor {
    Visitor::signed_in(&served(api).await, ADMIN).await
}

/// The service of a test with its dashboard.
pub struct ServedDashboard {
    pub api: Api,
    base: String,
}

impl ServedDashboard {
    pub async fn of(api: Api) -> ServedDashboard {
        let base = served(&api).await;
        ServedDashboard { api, base }
    }

    /// The operator, signed in.
    pub async fn admin(&self) -> Visitor {
        Visitor::signed_in(&self.base, ADMIN).await
    }

    /// Somebody with a token of this tenant with these permissions, signed in.
    pub async fn of_tenant(&self, tenant: &str, scopes: &[&str]) -> Visitor {
        let token = self.api.token(tenant, scopes).await;
        Visitor::signed_in(&self.base, &token).await
    }
}

/// A browser that is signed in.
pub struct Visitor {
    http: Client,
    base: String,
    /// Name and value of the session's cookie.
    cookie: String,
}

/// A page, or where an answer leads.
#[derive(Debug)]
pub struct Shown {
    pub status: u16,
    pub text: String,
    pub location: Option<String>,
}

impl Visitor {
    /// Signs in with a token.
    pub async fn signed_in(base_url: &str, token: &str) -> Visitor {
        let http = operator_client(PATIENCE);
        let answer = form(http.post(format!("{base_url}/ui/login")), &[("token", token)]).send().await;
        let answer = answer.expect("an answer");
        assert_eq!(answer.status().as_u16(), 303, "the token is refused");
        let cookie = answer.headers().get("set-cookie").expect("a cookie").to_str().expect("a text");
        let cookie = cookie.split(';').next().expect("a pair").to_owned();
        Visitor { http, base: base_url.to_owned(), cookie }
    }

    /// Opens a page. A redirect is not followed.
    pub async fn get(&self, path: &str) -> Shown {
        self.send(self.http.get(format!("{}{path}", self.base))).await
    }

    /// Opens a page, and sends these fields to `action` with those that its forms carry.
    pub async fn post(&self, page: &str, action: &str, fields: &[(&str, &str)]) -> Shown {
        let page = self.get(page).await;
        let carried = ["form_token", "key"].map(|name| (name, page.hidden(name)));
        let carried = carried.iter().filter_map(|(name, value)| Some((*name, value.as_deref()?)));
        let given = |name: &str| fields.iter().any(|(given, _)| *given == name);
        let sent: Vec<_> = carried.filter(|(name, _)| !given(name)).chain(fields.iter().copied()).collect();
        self.send(form(self.http.post(format!("{}{action}", self.base)), &sent)).await
    }

    async fn send(&self, request: RequestBuilder) -> Shown {
        let answer = request.header("cookie", &self.cookie).send().await.expect("an answer");
        let location = answer.headers().get("location").map(|place| place.to_str().expect("a text").to_owned());
        Shown { status: answer.status().as_u16(), text: answer.text().await.expect("a page"), location }
    }
}

impl Shown {
    #[track_caller]
    pub fn has(&self, text: &str) {
        assert!(self.text.contains(text), "`{text}` is not in ({}):\n{}", self.status, self.text);
    }

    #[track_caller]
    pub fn lacks(&self, text: &str) {
        assert!(!self.text.contains(text), "`{text}` is in ({}):\n{}", self.status, self.text);
    }

    /// The value of a hidden field.
    pub fn hidden(&self, name: &str) -> Option<String> {
        let (_, rest) = self.text.split_once(&format!("type=\"hidden\" name=\"{name}\" value=\""))?;
        rest.split_once('"').map(|(value, _)| value.to_owned())
    }
}

/// A form as a browser sends it from a page with `Referrer-Policy: no-referrer`.
fn form(request: RequestBuilder, fields: &[(&str, &str)]) -> RequestBuilder {
    let request = request.header("content-type", "application/x-www-form-urlencoded");
    let request = request.header("origin", "null").header("sec-fetch-site", "same-origin");
    request.body(Serializer::new(String::new()).extend_pairs(fields).finish())
}
