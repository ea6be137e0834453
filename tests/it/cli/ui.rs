//! `reveille ui`, and the link of the first start: a browser that follows one is signed in, once.

use std::time::Duration;

use reqwest::{Client, RequestBuilder, Response};
use reveille::ports::egress::operator_client;
use serde_json::Value;

use super::Shell;
use crate::support::api::Api;
use crate::support::binary::Service;

/// The form of a page of ours, as a browser sends it.
async fn press(http: &Client, link: &str) -> Response {
    sent(http.post(link).header("content-type", "application/x-www-form-urlencoded").header("origin", "null")).await
}

async fn sent(request: RequestBuilder) -> Response {
    request.send().await.expect("an answer")
}

/// Follows a link and presses its button: to look at it changes nothing, and it is spent then.
async fn follow(link: &str) -> String {
    let http = operator_client(Duration::from_secs(30));
    for _ in 0..2 {
        assert_eq!(sent(http.get(link)).await.status().as_u16(), 200);
    }
    let pressed = press(&http, link).await;
    assert_eq!(pressed.status().as_u16(), 303);
    let cookie = pressed.headers()["set-cookie"].to_str().expect("a text").to_owned();
    for again in [press(&http, link).await, sent(http.get(link)).await] {
        assert_eq!(again.status().as_u16(), 410);
    }
    cookie
}

#[tokio::test]
async fn ui_prints_a_link_that_signs_in_as_its_token_once() {
    let mut service = Service::new();
    service.start().await;
    let shell = Shell::beside(&service);
    let printed = shell.ok(&["ui"]).await;
    let (link, note) = printed.split_once('\n').expect("two lines");
    assert_eq!(note, "it signs a browser in once, within 10 minutes\n");
    assert!(link.starts_with(&format!("{}/ui/login/", service.url())), "{link}");
    let cookie = follow(link).await;
    assert!(cookie.starts_with("reveille_session="), "{cookie}");
    let made = shell.json(&["ui"]).await;
    assert!(made["url"].is_string() && made["expires_at"].is_string(), "{made}");
    assert!(!service.log().contains(link.rsplit('/').next().expect("a code")), "{}", service.log());

    let said = Shell { environment: Vec::new(), ..Shell::beside(&service) }.with("REVEILLE_URL", service.url());
    let said = said.refused(&["ui"]).await;
    assert!(said.contains("REVEILLE_TOKEN"), "{said}");
}

#[tokio::test]
async fn first_start_names_the_file_of_a_link_that_signs_in_as_the_first_admin() {
    let mut service = Service::new();
    service.start().await;
    let named = "sign in      in ./data/login.link  (good once, within 10 minutes)";
    assert!(service.announced().contains(named), "{}", service.announced());
    let link = std::fs::read_to_string(service.dir.path().join("data/login.link")).expect("the link");
    let link = link.trim();
    assert!(link.starts_with(&format!("{}/ui/login/", service.url())), "{link}");
    let code = link.rsplit('/').next().expect("a code");
    follow(link).await;
    let tokens = Api::of(&service).get("/v1/tokens").await;
    assert_eq!(tokens["items"].as_array().map(Vec::len), Some(1), "no other token was made: {tokens}");
    let printed = format!("{}{}", service.announced(), service.log());
    assert!(!printed.contains(code), "a service manager keeps what is printed");
    assert!(service.terminate().await.success());
    service.start().await;
    assert!(!service.announced().contains("sign in"), "{}", service.announced());
}

#[tokio::test]
async fn start_with_a_configured_token_makes_no_link() {
    let mut service = Service::new().with("REVEILLE_SERVER__ADMIN_TOKEN", "a token of the operator's own");
    service.start().await;
    assert!(!service.announced().contains("sign in"), "{}", service.announced());
    let api = Api::new(service.url(), "a token of the operator's own");
    let made = api.post("/v1/login-links", &Value::Null).await;
    follow(made["url"].as_str().expect("an address")).await;
}
