//! The link and the page that people come back to: read by anybody, pressed once, by whom it names.

use chrono::TimeDelta;
use reveille::base::id::Scope;
use reveille::http::server::{self, ServerLimits};
use reveille::ports::vault::Context;
use reveille::ports::vault::oauth::{CALLBACK, OAuthProvider, redirect_uri};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use url::Url;

use super::harness::{LIFE, PUBLIC_URL, parameter, provider};
use crate::api::service::Api;
use crate::approvals::browser::drive;
use crate::approvals::harness::{BrowserPage, fetch, post};
use crate::support::oauth::{CLIENT, OAuthServer};
use crate::support::servers::{chromium, images};

/// A provider, and a service that knows it.
async fn stage() -> (OAuthServer, Api) {
    let (server, api) = stage_at(PUBLIC_URL).await;
    server.set_clock(api.clock.now()).await;
    (server, api)
}

async fn stage_at(public_url: &str) -> (OAuthServer, Api) {
    let server = OAuthServer::start(&redirect_uri(public_url), LIFE.to_std().unwrap()).await;
    let api = Api::connecting_to([("calendar".to_owned(), provider(&server, CLIENT))].into(), public_url).await;
    (server, api)
}

/// The provider's address for ann's account.
async fn link(api: &Api, account: &str) -> String {
    let token = api.token("ann", &["credentials:write"]).await;
    let path = format!("/v1/credentials/calendar/{account}/connect");
    let answer = api.ask("GET", &path, Some(&token), None).await.expect(200);
    assert_eq!(answer["expires_at"], "2026-11-21T00:10:00Z");
    answer["url"].as_str().unwrap().to_owned()
}

/// Where the provider sends a person back to, without the host.
fn path(back: &Url) -> String {
    assert!(back.as_str().starts_with("http://127.0.0.1:7700/oauth/callback?"), "{back}");
    back[url::Position::BeforePath..].to_owned()
}

/// Presses the button of a page.
async fn press(api: &Api, page: &BrowserPage, headers: &[(&str, &str)]) -> BrowserPage {
    let field = |name: &str| page.hidden(name).unwrap_or_else(|| panic!("no field {name}"));
    let (state, code) = (field("state"), field("code"));
    let cookie = cookie(page);
    let headers = [&[("cookie", cookie.as_str())], headers].concat();
    post(api, CALLBACK, &[("state", &state), ("code", &code)], &headers).await
}

/// The cookie that a browser sends back after a page has set it.
fn cookie(page: &BrowserPage) -> String {
    let (pair, rest) = page.header("set-cookie").split_once("; ").expect("a cookie");
    assert!(rest.contains("HttpOnly; SameSite=Lax"), "{rest}");
    pair.to_owned()
}

async fn is_connected(api: &Api, account: &str) -> bool {
    api.store.get_credential(&Scope::Every, "ann", "calendar", account).await.is_ok()
}

#[tokio::test]
async fn account_is_connected_by_its_button_and_by_nothing_else() {
    let (server, api) = stage().await;
    let before = api.written().await;
    let url = link(&api, "work").await;
    let back = server.agree(&url, "ann-at-the-provider").await;
    let token_was_made = api.written().await;
    for _ in 0..3 {
        fetch(&api, "GET", &path(&back)).await.expect(200);
        fetch(&api, "HEAD", &path(&back)).await.expect(200);
    }
    let page = fetch(&api, "GET", &path(&back)).await.expect(200);
    assert_eq!(api.written().await, token_was_made, "to look is to change nothing");
    assert_ne!(before, token_was_made, "the test's own token");
    assert_eq!(server.asked().await, 0, "no code is spent");
    for shown in [
        "Connect your account?",
        "calendar",
        "work",
        "Tasks of <bdi>ann</bdi> will act with your account",
        "10 minutes left",
    ] {
        page.shows(shown);
    }
    page.shows(server.host());
    page.shows("openid, offline_access");
    page.hides("It will be replaced");
    page.hides("<script");
    assert_eq!(
        [page.header("cache-control"), page.header("referrer-policy"), page.header("x-frame-options")],
        ["no-store", "no-referrer", "DENY"]
    );
    let policy = page.header("content-security-policy");
    assert!(policy.starts_with("default-src 'none'; ") && policy.contains("form-action 'self'"), "{policy}");

    for foreign in
        [&[("origin", "https://evil.example.org")][..], &[("origin", "null"), ("sec-fetch-site", "cross-site")]]
    {
        press(&api, &page, foreign).await.expect(403).shows("Nothing was connected");
    }
    assert_eq!((server.asked().await, is_connected(&api, "work").await), (0, false));

    let ours = [("origin", "null"), ("sec-fetch-site", "same-origin")];
    let done = press(&api, &page, &ours).await.expect(200);
    done.shows("<bdi>calendar/work</bdi> of <bdi>ann</bdi> is connected.");
    done.shows("What was granted");
    let stored = api.store.get_credential(&Scope::Every, "ann", "calendar", "work").await.unwrap();
    let credential = serde_json::to_value(&stored.credential).unwrap();
    assert_eq!(credential["hosts"], json!([server.host()]));
    assert_eq!(credential["inject"], json!({ "as": "bearer", "from": "/access_token" }));
    assert_eq!(credential["oauth"], json!({ "provider": "calendar" }));
    assert_eq!((&credential["status"], &credential["expires_at"]), (&json!("active"), &json!("2026-11-21T00:10:00Z")));
    let audit = api.admin("GET", "/v1/audit?action=credential.put", None).await.expect(200);
    let entry = &audit["items"][0];
    assert_eq!((&entry["subject_id"], &entry["tenant_id"]), (&credential["id"], &json!("ann")));
    assert!(entry["actor"].as_str().unwrap().starts_with("token:"), "{entry}");

    // pressed again: a code that is sent twice would make the provider take back what it gave
    press(&api, &page, &ours).await.expect(409).shows("calendar/work of ann is connected. Nothing was done now.");
    assert_eq!((server.asked().await, server.refused().await), (1, vec![]));
    let again = link(&api, "work").await;
    let back = server.agree(&again, "ann-at-the-provider").await;
    let page = fetch(&api, "GET", &path(&back)).await.expect(200);
    page.shows("It will be replaced");
    press(&api, &page, &[]).await.expect(200);
    let replaced = api.store.get_credential(&Scope::Every, "ann", "calendar", "work").await.unwrap();
    assert_eq!((replaced.credential.id, replaced.credential.version), (stored.credential.id, 2));
}

#[tokio::test]
async fn button_works_only_in_the_browser_that_was_shown_the_page() {
    let (server, api) = stage().await;
    // an attacker has a link and a code of their own, and another's browser send the form
    let back = server.agree(&link(&api, "work").await, "the-attacker-at-the-provider").await;
    let fields = [("state", parameter(&back, "state")), ("code", parameter(&back, "code"))];
    let fields = fields.each_ref().map(|(name, value)| (*name, value.as_str()));
    let refused = post(&api, CALLBACK, &fields, &[]).await.expect(403);
    refused.shows("This browser was not shown the page");
    refused.hides(fields[1].1);
    // that browser may have been shown the page of another flow
    let other = server.agree(&link(&api, "work").await, "ann-at-the-provider").await;
    let others = cookie(&fetch(&api, "GET", &path(&other)).await.expect(200));
    post(&api, CALLBACK, &fields, &[("cookie", &others)]).await.expect(403);
    assert_eq!((server.asked().await, is_connected(&api, "work").await), (0, false), "no code is spent");
    let page = fetch(&api, "GET", &path(&back)).await.expect(200);
    let both = format!("{others}; {}", cookie(&page));
    post(&api, CALLBACK, &fields, &[("cookie", &both)]).await.expect(200);
    assert!(is_connected(&api, "work").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connect_pressed_twice_at_once_connects_once() {
    let (server, api) = stage().await;
    let back = server.agree(&link(&api, "primary").await, "ann-at-the-provider").await;
    let page = fetch(&api, "GET", &path(&back)).await.expect(200);
    let (one, two) = tokio::join!(press(&api, &page, &[]), press(&api, &page, &[]));
    let mut statuses = [one.status, two.status];
    statuses.sort();
    assert_eq!((statuses, server.asked().await), ([200, 409], 1));
    assert!(is_connected(&api, "primary").await);
}

#[tokio::test]
async fn person_who_refuses_is_told_what_the_provider_said_escaped() {
    let (server, api) = stage().await;
    let back = server.refuse(&link(&api, "primary").await).await;
    let page = fetch(&api, "GET", &path(&back)).await.expect(200);
    page.shows("The provider says that access was not granted.");
    page.shows("access_denied: End-User &lt;b&gt;aborted&lt;/b&gt; the interaction");
    page.hides("<form");
    // words that nobody can put there without a link of ours
    let foreign = fetch(&api, "GET", "/oauth/callback?state=x&error=e&error_description=call+0123").await.expect(404);
    foreign.hides("0123");
    assert!(!is_connected(&api, "primary").await);
}

#[tokio::test]
async fn state_that_is_old_changed_or_made_for_something_else_leads_nowhere() {
    let (server, api) = stage().await;
    let back = server.agree(&link(&api, "primary").await, "ann-at-the-provider").await;
    let page = fetch(&api, "GET", &path(&back)).await.expect(200);
    let (state, code) = (parameter(&back, "state"), parameter(&back, "code"));
    let sealed_elsewhere = {
        let (vault, _) = reveille::ports::vault::Vault::open(
            &Default::default(),
            reveille::ports::vault::WithoutKeys::KeyFile(api.dir.path()),
        )
        .unwrap();
        let place = Context { tenant: "ann", service: "webhook", account: "primary", field: "secret" };
        vault.seal(&place, &reveille::base::secret::Secret::new("whsec")).unwrap()
    };
    let changed = state.replacen(&state[60..64], "AAAA", 1);
    for odd in ["", "x", &changed, &sealed_elsewhere, &"x".repeat(10_000)] {
        let query = url::form_urlencoded::Serializer::new(String::new())
            .append_pair("state", odd)
            .append_pair("code", &code)
            .finish();
        fetch(&api, "GET", &format!("/oauth/callback?{query}")).await.expect(404).shows("This link is not known");
        post(&api, CALLBACK, &[("state", odd), ("code", &code)], &[]).await.expect(404);
    }
    fetch(&api, "GET", "/oauth/callback").await.expect(404);
    post(&api, CALLBACK, &[("state", &"x".repeat(20_480)), ("code", &code)], &[]).await.expect(413);
    api.advance(600);
    fetch(&api, "GET", &path(&back)).await.expect(410).shows("The time is over");
    press(&api, &page, &[]).await.expect(410);
    assert_eq!((server.asked().await, is_connected(&api, "primary").await), (0, false));
}

#[tokio::test]
async fn link_does_not_outlive_the_token_that_it_was_made_with() {
    let (server, api) = stage().await;
    let end = api.clock.now() + TimeDelta::minutes(3);
    let (revoked, first) = api.token_until("ann", &["credentials:write"], None).await;
    let (_, second) = api.token_until("ann", &["*"], Some(end)).await;
    let mut pages = vec![];
    for token in [&first, &second] {
        let answer = api.ask("GET", "/v1/credentials/calendar/primary/connect", Some(token), None).await.expect(200);
        let back = server.agree(answer["url"].as_str().unwrap(), "ann-at-the-provider").await;
        pages.push((path(&back), fetch(&api, "GET", &path(&back)).await.expect(200)));
    }
    api.store.revoke_token(&Scope::Every, revoked).await.unwrap();
    fetch(&api, "GET", &pages[1].0).await.expect(200);
    for (path, page) in &pages {
        fetch(&api, "GET", path).await.expect(410).shows("The time is over");
        press(&api, page, &[]).await.expect(410).shows("The time is over");
        api.clock.advance(TimeDelta::minutes(3));
    }
    assert_eq!((server.asked().await, is_connected(&api, "primary").await), (0, false), "no code is spent");
}

#[tokio::test]
async fn code_of_another_flow_is_refused_by_the_provider() {
    let (server, api) = stage().await;
    let mine = server.agree(&link(&api, "primary").await, "ann-at-the-provider").await;
    let cookie = cookie(&fetch(&api, "GET", &path(&mine)).await.expect(200));
    let marked = [("cookie", cookie.as_str())];
    let foreign = server.agree(&link(&api, "primary").await, "somebody-else").await;
    let (state, code) = (parameter(&mine, "state"), parameter(&foreign, "code"));
    let refused = post(&api, CALLBACK, &[("state", &state), ("code", &code)], &marked).await.expect(409);
    refused.shows("Nothing was connected");
    refused.shows("invalid_grant");
    refused.hides(&code);
    assert_eq!(server.refused().await, ["authorization_code: invalid_grant"]);
    assert!(!is_connected(&api, "primary").await);
    // and it was used: the person asks for a new link
    post(&api, CALLBACK, &[("state", &state), ("code", &parameter(&mine, "code"))], &marked)
        .await
        .expect(409)
        .shows("This link was used already");
}

#[tokio::test]
async fn link_is_for_a_service_that_is_described_and_a_name_that_can_be_one() {
    let (_server, api) = stage().await;
    let token = api.token("ann", &["credentials:write"]).await;
    let ask = async |path: &str| api.ask("GET", path, Some(&token), None).await;
    let absent = ask("/v1/credentials/mail/primary/connect").await.expect(404);
    assert_eq!(absent["detail"], "there is no such service in [oauth.*]");
    let odd = ask("/v1/credentials/calendar/a%2Fb/connect").await.expect(422);
    assert_eq!(odd["errors"][0]["pointer"], "/account_name");
    let nobody = api.admin("GET", "/v1/credentials/calendar/primary/connect", None).await.expect(400);
    assert_eq!(nobody["errors"][0]["pointer"], "/tenant_id");
    let ann = api.admin("GET", "/v1/credentials/calendar/primary/connect?tenant_id=ann", None).await.expect(200);
    assert!(ann["url"].as_str().unwrap().contains("code_challenge_method=S256"), "{ann}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn person_in_a_real_browser_goes_from_the_link_to_the_provider_and_back_to_the_button() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let (_server, api) = stage_at(&base).await;
    let stop = CancellationToken::new();
    let serving = server::serve(
        listener,
        api.app.clone(),
        ServerLimits::default(),
        Default::default(),
        api.metrics.clone(),
        stop.clone(),
    );
    let serving = tokio::spawn(serving);
    let images = images().unwrap_or_else(|| api.dir.path().join("images").display().to_string());
    let link = link(&api, "primary").await;
    let with = json!({ "chromium": chromium(), "images": images, "base": base, "link": link });
    assert_eq!(drive("connect.mjs", &with).await, Ok(()));
    assert!(is_connected(&api, "primary").await);
    stop.cancel();
    serving.await.unwrap();
}

#[tokio::test]
async fn oauth_callback_needs_the_issuer_of_its_flow() {
    let server = OAuthServer::start(&redirect_uri(PUBLIC_URL), LIFE.to_std().unwrap()).await;
    let own = server.url("");
    let described = OAuthProvider { issuer: Some(own.clone()), ..provider(&server, CLIENT) };
    let api = Api::connecting_to([("calendar".to_owned(), described)].into(), PUBLIC_URL).await;
    server.set_clock(api.clock.now()).await;
    let back = server.agree(&link(&api, "work").await, "ann-at-the-provider").await;
    assert_eq!(parameter(&back, "iss"), own, "this provider says who it is");
    let others: Vec<(String, String)> = back.query_pairs().into_owned().filter(|(name, _)| name != "iss").collect();
    let mut foreign = back.clone();
    foreign.query_pairs_mut().clear().extend_pairs(&others).append_pair("iss", "https://evil.example.org");
    let refused = fetch(&api, "GET", &path(&foreign)).await.expect(403);
    refused.shows("Another provider than the one that was asked has sent you here.");
    refused.hides("<form");
    let mut silent = back.clone();
    silent.query_pairs_mut().clear().extend_pairs(&others);
    let mut doubtful = silent.clone();
    doubtful.query_pairs_mut().append_pair("iss", "");
    for back in [silent, doubtful] {
        let refused = fetch(&api, "GET", &path(&back)).await.expect(403);
        refused.hides("<form");
    }
    let page = fetch(&api, "GET", &path(&back)).await.expect(200);
    press(&api, &page, &[("origin", "null"), ("sec-fetch-site", "same-origin")]).await.expect(200);
    assert!(is_connected(&api, "work").await);
}

#[tokio::test]
async fn pages_of_a_connection_are_in_the_language_of_its_owner() {
    let (server, api) = stage().await;
    api.admin("PUT", "/v1/recipients/ann", Some(json!({ "locale": "de-AT", "addresses": {} }))).await.expect(200);
    let back = server.agree(&link(&api, "work").await, "ann-at-the-provider").await;
    let page = fetch(&api, "GET", &path(&back)).await.expect(200);
    for shown in [
        "<html lang=\"de\"",
        "<title>Ihr Konto verbinden?</title>",
        "Aufgaben von <bdi>ann</bdi> werden mit Ihrem Konto handeln.",
        "Noch 10 Minuten. Ohne Antwort wird nichts verbunden.",
        "<button class=\"yes\">Verbinden</button>",
    ] {
        page.shows(shown);
    }
    let declined = format!("{}&error=access_denied", path(&back));
    fetch(&api, "GET", &declined).await.expect(200).shows("Der Anbieter sagt, dass der Zugang nicht gewährt wurde.");
    let state = page.hidden("state").unwrap();
    let code = page.hidden("code").unwrap();
    let unmarked =
        post(&api, CALLBACK, &[("state", &state), ("code", &code)], &[("origin", "http://127.0.0.1:7700")]).await;
    unmarked.expect(403).shows("Diesem Browser wurde die Seite nicht gezeigt");
    let ours = [("origin", "null"), ("sec-fetch-site", "same-origin")];
    let done = press(&api, &page, &ours).await.expect(200);
    done.shows("<bdi>calendar/work</bdi> von <bdi>ann</bdi> ist verbunden.");
    done.shows("Sie können diese Seite schließen.");
    let again = press(&api, &page, &ours).await.expect(409);
    again.shows("calendar/work von ann ist verbunden. Jetzt wurde nichts getan.");
    again.shows("<html lang=\"de\"");
}
