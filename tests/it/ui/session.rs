//! The way into the dashboard, how long one stays, and the way out: tokens, links, cookies, and forms of other sites.

use std::net::Ipv4Addr;

use axum::body::Body;
use axum::http::{Method, Request, header};
use chrono::TimeDelta;
use futures::StreamExt;
use reveille::base::id::Scope;
use reveille::base::token::{TokenHash, TokenKind, TokenText, bearer_secret};
use reveille::http::in_process::InProcessApi;
use reveille::http::server::Peer;
use reveille::ports::vault::oauth;
use reveille::store::UiSession;
use serde_json::json;
use tower::ServiceExt;
use tracing::Level;
use url::form_urlencoded::Serializer;

use super::visitor::{Visitor, served};
use crate::api::service::{ADMIN, Api, at, daily_of, on_both, only};
use crate::approvals::harness::BrowserPage;
use crate::support::log::logged;
use crate::support::world::World;

on_both! {
    token_signs_in_until_its_holder_signs_out
    wrong_tokens_are_refused_and_too_many_of_an_address_are_not_looked_at
    session_ends_after_an_hour_without_a_request_and_after_twelve_in_all
    session_that_only_its_page_uses_ends_after_an_hour
    stream_ends_soon_after_its_session
    session_ends_at_once_with_its_token
    session_of_another_admin_token_than_the_configured_one_is_none
    link_signs_in_once_and_to_look_at_it_changes_nothing
    link_is_good_for_ten_minutes_and_as_long_as_its_token
    form_of_another_site_is_not_taken
    form_token_of_another_session_is_not_taken
    tenant_sees_its_own_and_an_admin_sees_all
    disabled_tenant_looks_and_changes_nothing
}

/// How long a stream may take to end on a loaded machine with two cores.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(30);
/// A form as a page of ours sends it.
const OURS: [(&str, &str); 2] = [("origin", "null"), ("sec-fetch-site", "same-origin")];

async fn answer(api: &Api, request: Request<Body>) -> BrowserPage {
    let (parts, body) = api.app.clone().oneshot(request).await.expect("an answer").into_parts();
    let html = axum::body::to_bytes(body, 1 << 22).await.expect("a whole page");
    let html = String::from_utf8(html.to_vec()).expect("UTF-8");
    BrowserPage { status: parts.status.as_u16(), headers: parts.headers, html }
}

/// Opens a page with this cookie.
async fn open(api: &Api, path: &str, cookie: &str) -> BrowserPage {
    answer(api, Request::get(path).header(header::COOKIE, cookie).body(Body::empty()).expect("a request")).await
}

/// Sends a form with this cookie.
async fn send(api: &Api, path: &str, cookie: &str, fields: &[(&str, &str)], headers: &[(&str, &str)]) -> BrowserPage {
    let form = Serializer::new(String::new()).extend_pairs(fields).finish();
    let mut request = Request::post(path).header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
    for (name, value) in headers.iter().chain(&[("cookie", cookie)]) {
        request = request.header(*name, *value);
    }
    answer(api, request.body(Body::from(form)).expect("a request")).await
}

/// The cookie that an answer sets: name and value, and what stands behind them.
fn set_cookie(page: &BrowserPage) -> (String, String) {
    let (pair, rest) = page.header("set-cookie").split_once("; ").unwrap_or_else(|| panic!("no cookie: {page:?}"));
    (pair.to_owned(), rest.to_owned())
}

/// Signs in with a token; the cookie.
async fn sign_in(api: &Api, token: &str) -> String {
    let page = send(api, "/ui/login", "", &[("token", token)], &OURS).await.expect(303);
    assert_eq!(page.header("location"), "/ui");
    set_cookie(&page).0
}

/// Whether a cookie is that of a session: the page on which one signs in leads on then.
async fn is_signed_in(api: &Api, cookie: &str) -> bool {
    let page = open(api, "/ui/login", cookie).await;
    assert!([200, 303].contains(&page.status), "{page:?}");
    page.status == 303
}

/// The text that the forms of a session carry, from the button with which one signs out.
async fn form_token(api: &Api, cookie: &str) -> String {
    open(api, "/ui/tasks", cookie).await.expect(200).hidden("form_token").expect("a form")
}

async fn sign_out(api: &Api, cookie: &str) -> BrowserPage {
    let token = form_token(api, cookie).await;
    send(api, "/ui/logout", cookie, &[("form_token", &token)], &OURS).await
}

/// Makes a link with a token; the path of its page.
async fn link(api: &Api, token: &str) -> String {
    let made = api.ask("POST", "/v1/login-links", Some(token), None).await.expect(201);
    let expires_at = at(made["expires_at"].as_str().expect("an instant"));
    assert_eq!(expires_at, api.clock.now() + TimeDelta::minutes(10));
    let path = made["url"].as_str().expect("an address").strip_prefix("http://127.0.0.1:7700");
    path.expect("where people reach the service").to_owned()
}

async fn token_signs_in_until_its_holder_signs_out(api: Api) {
    let token = api.token("ann", &["tasks:read"]).await;
    let first = open(&api, "/ui/tasks?status=active", "").await.expect(303);
    assert_eq!(first.header("location"), "/ui/login?next=%2Fui%2Ftasks%3Fstatus%3Dactive");
    let page = open(&api, first.header("location"), "").await.expect(200);
    page.shows("type=\"password\" name=\"token\" autocomplete=\"off\"");
    assert_eq!(page.hidden("next").as_deref(), Some("/ui/tasks?status=active"));

    let fields = [("token", format!(" {token} ")), ("next", "/ui/tasks?status=active".to_owned())];
    let fields = fields.each_ref().map(|(name, value)| (*name, value.as_str()));
    let page = send(&api, "/ui/login", "", &fields, &OURS).await.expect(303);
    assert_eq!(page.header("location"), "/ui/tasks?status=active");
    let (cookie, rest) = set_cookie(&page);
    assert_eq!(rest, "Path=/ui; HttpOnly; SameSite=Strict");
    assert!(is_signed_in(&api, &cookie).await);
    let secret = cookie.split_once('=').expect("a value").1;
    let stored = api.store.find_ui_session(TokenHash::of(secret).as_bytes()).await.unwrap().expect("a session");
    assert_eq!(stored.token_hash, TokenHash::of(&token).as_bytes());

    let gone = sign_out(&api, &cookie).await.expect(303);
    assert_eq!(gone.header("location"), "/ui/login?done=signed-out");
    assert_eq!(
        set_cookie(&gone),
        ("reveille_session=".into(), "Path=/ui; HttpOnly; SameSite=Strict; Max-Age=0".into())
    );
    open(&api, gone.header("location"), &cookie).await.expect(200).shows("You are signed out.");
    assert!(!is_signed_in(&api, &cookie).await, "the cookie is worth nothing, whoever has it");
}

async fn wrong_tokens_are_refused_and_too_many_of_an_address_are_not_looked_at(api: Api) {
    let (revoked_id, revoked) = api.token_until("ann", &["*"], None).await;
    api.store.revoke_token(&only("ann"), revoked_id).await.unwrap();
    let unknown = TokenText::new(TokenKind::Admin).expose().to_owned();
    for (token, why) in [
        ("nonsense", "the token is not valid: it is mistyped, or not one of this service"),
        (unknown.as_str(), "the token is not valid"),
        (revoked.as_str(), "the token was revoked"),
        // that of a run, which is good for its completion alone
        ("rv_complete_0123456789abcdef", "the token is not valid"),
    ] {
        let fields = [("token", token), ("next", "/ui/runs")];
        let page = send(&api, "/ui/login", "", &fields, &OURS).await.expect(401);
        page.shows(&format!("You are not signed in: {why}"));
        page.hides(token);
        assert_eq!((page.header("set-cookie"), page.hidden("next").as_deref()), ("", Some("/ui/runs")));
    }
    send(&api, "/ui/login", "", &[("token", "")], &OURS).await.expect(422).shows("Paste a token");

    let from = async |address: Ipv4Addr, token: &str| {
        let form = Serializer::new(String::new()).append_pair("token", token).finish();
        let request = Request::post("/ui/login").header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        let request = request.extension(Peer(address.into())).body(Body::from(form)).expect("a request");
        answer(&api, request).await
    };
    let (guesser, other) = (Ipv4Addr::new(192, 0, 2, 7), Ipv4Addr::new(192, 0, 2, 8));
    for _ in 0..20 {
        from(guesser, TokenText::new(TokenKind::Tenant).expose()).await.expect(401);
    }
    let good = api.token("ann", &["*"]).await;
    let page = from(guesser, &good).await.expect(429);
    assert_eq!(page.header("retry-after"), "60");
    page.shows("too many wrong tokens came from this address");
    from(other, &good).await.expect(303);
    api.advance(60);
    from(guesser, &good).await.expect(303);
}

async fn session_ends_after_an_hour_without_a_request_and_after_twelve_in_all(api: Api) {
    let token = api.token("ann", &["tasks:read"]).await;
    let (idle, busy) = (sign_in(&api, &token).await, sign_in(&api, &token).await);
    api.advance(59 * 60);
    assert!(is_signed_in(&api, &busy).await);
    api.advance(60);
    assert!(!is_signed_in(&api, &idle).await, "an hour without a request");
    for _ in 0..11 {
        assert!(is_signed_in(&api, &busy).await);
        api.advance(58 * 60);
    }
    // 22 minutes before the end
    assert!(is_signed_in(&api, &busy).await);
    api.advance(21 * 60 + 59);
    assert!(is_signed_in(&api, &busy).await);
    api.advance(1);
    assert!(!is_signed_in(&api, &busy).await, "twelve hours in all");
}

async fn session_that_only_its_page_uses_ends_after_an_hour(api: Api) {
    let token = api.token("ann", &["tasks:read", "events:read"]).await;
    let cookie = sign_in(&api, &token).await;
    for _ in 0..2 {
        api.advance(29 * 60);
        let by_itself = Request::get("/ui/tasks").header("x-reveille-live", "1").header(header::COOKIE, &cookie);
        answer(&api, by_itself.body(Body::empty()).expect("a request")).await.expect(200);
        drop(stream(&api, &cookie).await);
    }
    api.advance(2 * 60);
    assert!(!is_signed_in(&api, &cookie).await, "nobody has asked for anything for an hour");
}

/// The stream of the bus, as the script opens it.
async fn stream(api: &Api, cookie: &str) -> axum::body::BodyDataStream {
    let request = Request::get("/ui/events/live").header(header::COOKIE, cookie);
    let request = request.header(header::ACCEPT, "text/event-stream").body(Body::empty()).expect("a request");
    let answer = api.app.clone().oneshot(request).await.expect("an answer");
    assert_eq!(answer.status(), 200);
    answer.into_body().into_data_stream()
}

async fn stream_ends_soon_after_its_session(api: Api) {
    let token = api.token("ann", &["tasks:read", "events:read"]).await;
    let (one, other) = (sign_in(&api, &token).await, sign_in(&api, &token).await);
    let (mut ended, mut open) = (stream(&api, &one).await, stream(&api, &other).await);
    sign_out(&api, &one).await.expect(303);
    let rest = async { while ended.next().await.is_some() {} };
    tokio::time::timeout(PATIENCE, rest).await.expect("a stream without a session ends");
    let body = json!({ "tenant_id": "ann", "source": "mail", "type": "new" });
    api.admin("POST", "/v1/events", Some(body)).await.expect(202);
    let told = async {
        let mut text = String::new();
        while !text.contains("event: event") {
            let part = open.next().await.expect("the stream of the other session goes on").expect("a part");
            text.push_str(std::str::from_utf8(&part).expect("UTF-8"));
        }
    };
    tokio::time::timeout(PATIENCE, told).await.expect("the event is told");
}

#[tokio::test]
async fn browser_that_signs_in_anew_has_one_session() {
    let api = Api::new().await;
    let first = sign_in(&api, ADMIN).await;
    let path = link(&api, ADMIN).await;
    let second = set_cookie(&send(&api, &path, &first, &[], &OURS).await.expect(303)).0;
    assert_ne!(first, second);
    assert!(is_signed_in(&api, &second).await && !is_signed_in(&api, &first).await);
}

#[tokio::test]
async fn form_that_signs_in_is_read_at_its_longest_and_refused_one_byte_beyond_it() {
    let api = Api::new().await;
    let of_length = |length: usize| format!("token={}", "x".repeat(length - "token=".len()));
    for (length, status) in [(16_384, 401), (16_385, 413)] {
        let request = Request::post("/ui/login").header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        answer(&api, request.body(Body::from(of_length(length))).expect("a request")).await.expect(status);
    }
}

async fn session_ends_at_once_with_its_token(api: Api) {
    let (id, token) = api.token_until("ann", &["tasks:read"], None).await;
    let cookies = [sign_in(&api, &token).await, sign_in(&api, &token).await];
    assert_ne!(cookies[0], cookies[1]);
    let other = sign_in(&api, &api.token("ann", &["tasks:read"]).await).await;
    api.store.revoke_token(&only("ann"), id).await.unwrap();
    for cookie in &cookies {
        assert!(!is_signed_in(&api, cookie).await);
        let page = open(&api, "/ui/tasks", cookie).await.expect(303);
        assert_eq!(page.header("location"), "/ui/login?next=%2Fui%2Ftasks");
    }
    assert!(is_signed_in(&api, &other).await);

    let ends_at = api.clock.now() + TimeDelta::minutes(30);
    let (_, ending) = api.token_until("ann", &["tasks:read"], Some(ends_at)).await;
    let cookie = sign_in(&api, &ending).await;
    api.advance(30 * 60 - 1);
    assert!(is_signed_in(&api, &cookie).await);
    api.advance(1);
    assert!(!is_signed_in(&api, &cookie).await);
}

async fn session_of_another_admin_token_than_the_configured_one_is_none(api: Api) {
    let own = sign_in(&api, ADMIN).await;
    assert!(is_signed_in(&api, &own).await);
    let now = api.clock.now();
    let planted = async |token: &str| {
        let (secret, token_hash) = (bearer_secret(), TokenHash::of(token).as_bytes().to_vec());
        let session = UiSession { token_hash, created_at: now, seen_at: now, ends_at: now + TimeDelta::hours(12) };
        api.store.open_ui_session(TokenHash::of(&secret).as_bytes(), &session).await.unwrap();
        format!("reveille_session={}", *secret)
    };
    assert!(is_signed_in(&api, &planted(ADMIN).await).await);
    assert!(!is_signed_in(&api, &planted("the admin token of last year").await).await);
    assert!(!is_signed_in(&api, &format!("reveille_session={}", *bearer_secret())).await);
}

async fn link_signs_in_once_and_to_look_at_it_changes_nothing(api: Api) {
    let token = api.token("ann", &["tasks:read"]).await;
    let path = link(&api, &token).await;
    let before = api.written().await;
    for _ in 0..3 {
        let page = open(&api, &path, "").await.expect(200);
        page.shows("<button type=\"submit\">Sign in</button>");
        assert_eq!(page.header("set-cookie"), "");
        let head = Request::head(&path).body(Body::empty()).expect("a request");
        answer(&api, head).await.expect(200);
    }
    assert_eq!(api.written().await, before, "to look is to change nothing");
    let page = send(&api, &path, "", &[], &OURS).await.expect(303);
    assert_eq!(page.header("location"), "/ui");
    let cookie = set_cookie(&page).0;
    assert!(is_signed_in(&api, &cookie).await);
    let secret = cookie.split_once('=').expect("a value").1;
    let stored = api.store.find_ui_session(TokenHash::of(secret).as_bytes()).await.unwrap().expect("a session");
    assert_eq!(stored.token_hash, TokenHash::of(&token).as_bytes(), "it stands for the token that made the link");

    for page in [open(&api, &path, "").await, send(&api, &path, "", &[], &OURS).await] {
        assert_eq!(page.header("set-cookie"), "");
        page.expect(410).shows("This link was used");
    }
    for unknown in ["/ui/login/x".to_owned(), format!("/ui/login/{}", *bearer_secret())] {
        open(&api, &unknown, "").await.expect(404).shows("This link is not known");
        send(&api, &unknown, "", &[], &OURS).await.expect(404);
    }
}

async fn link_is_good_for_ten_minutes_and_as_long_as_its_token(api: Api) {
    let (id, token) = api.token_until("ann", &["tasks:read"], None).await;
    let [in_time, late] = [link(&api, &token).await, link(&api, &token).await];
    api.advance(10 * 60 - 1);
    send(&api, &in_time, "", &[], &OURS).await.expect(303);
    api.advance(1);
    for page in [open(&api, &late, "").await, send(&api, &late, "", &[], &OURS).await] {
        page.expect(410).shows("This link is too old");
    }
    let path = link(&api, &token).await;
    api.store.revoke_token(&only("ann"), id).await.unwrap();
    let page = send(&api, &path, "", &[], &OURS).await;
    assert_eq!(page.header("set-cookie"), "");
    page.expect(410).shows("the token was revoked");
}

#[tokio::test]
async fn code_of_a_link_and_secret_of_a_session_are_in_no_log() {
    let api = Api::new().await;
    let token = api.token("ann", &["tasks:read"]).await;
    let (secrets, log) = logged(Level::TRACE, async {
        let path = link(&api, &token).await;
        open(&api, &path, "").await.expect(200);
        let cookie = set_cookie(&send(&api, &path, "", &[], &OURS).await.expect(303)).0;
        open(&api, &path, &cookie).await.expect(410);
        sign_in(&api, &token).await;
        let part = |text: &str, end: char| text.rsplit(end).next().expect("a secret").to_owned();
        [part(&path, '/'), part(&cookie, '='), token.clone()]
    })
    .await;
    assert!(log.contains("/ui/login/{code}"), "the route is logged:\n{log}");
    for secret in secrets {
        assert!(!log.contains(&secret), "{secret} is in\n{log}");
    }
}

#[tokio::test]
async fn cookie_is_secure_where_people_come_over_tls() {
    let api = Api::connecting_to(oauth::Settings::default(), "https://wake.example.org").await;
    let page = send(&api, "/ui/login", "", &[("token", ADMIN)], &OURS).await.expect(303);
    assert_eq!(set_cookie(&page).1, "Path=/ui; HttpOnly; SameSite=Strict; Secure");
    let made = api.admin("POST", "/v1/login-links", None).await.expect(201);
    assert!(made["url"].as_str().expect("an address").starts_with("https://wake.example.org/ui/login/"), "{made}");
}

#[tokio::test]
async fn next_page_is_one_of_our_own() {
    let api = Api::new().await;
    for foreign in
        ["https://evil.example.org", "//evil.example.org", "/ui//evil.example.org", "/v1/tasks", "/ui\\x", ""]
    {
        let page = send(&api, "/ui/login", "", &[("token", ADMIN), ("next", foreign)], &OURS).await.expect(303);
        assert_eq!(page.header("location"), "/ui", "{foreign}");
        let query: String = Serializer::new(String::new()).append_pair("next", foreign).finish();
        let page = open(&api, &format!("/ui/login?{query}"), "").await.expect(200);
        assert_eq!(page.hidden("next"), None, "{foreign}");
    }
}

#[tokio::test]
async fn browser_that_comes_from_another_site_is_offered_its_session() {
    let api = Api::new().await;
    let cookie = sign_in(&api, ADMIN).await;
    let from = async |site: &str, cookie: &str| {
        let request = Request::get("/ui/login?next=%2Fui%2Ftasks").header("sec-fetch-site", site);
        answer(&api, request.header(header::COOKIE, cookie).body(Body::empty()).expect("a request")).await
    };
    // it keeps the cookie to itself then
    let page = from("cross-site", "").await.expect(200);
    page.shows("<a href=\"/ui/tasks\">I am signed in already</a>");
    from("none", "").await.expect(200).hides("I am signed in already");
    assert_eq!(from("same-origin", &cookie).await.expect(303).header("location"), "/ui/tasks");
}

async fn form_of_another_site_is_not_taken(api: Api) {
    let token = api.token("ann", &["*"]).await;
    let cookie = sign_in(&api, &token).await;
    let path = link(&api, &token).await;
    let carried = form_token(&api, &cookie).await;
    let foreign: [&[(&str, &str)]; 3] = [
        &[("origin", "https://evil.example.org")],
        &[("origin", "null"), ("sec-fetch-site", "cross-site")],
        &[("sec-fetch-site", "same-site")],
    ];
    let forms = [
        ("/ui/login", ("token", token.as_str())),
        (path.as_str(), ("a", "b")),
        ("/ui/logout", ("form_token", carried.as_str())),
    ];
    for (path, field) in forms {
        for headers in foreign {
            let page = send(&api, path, &cookie, &[field], headers).await;
            assert_eq!(page.header("set-cookie"), "", "{path} {headers:?}");
            page.expect(403).shows("This form was not taken");
        }
        let kinds = ["text/plain", "application/json", "multipart/form-data"];
        for kind in kinds {
            let request = Request::post(path).header(header::CONTENT_TYPE, kind).header(header::COOKIE, &cookie);
            let body = format!("{}={}", field.0, field.1);
            answer(&api, request.body(Body::from(body)).expect("a request")).await.expect(403);
        }
    }
    assert!(is_signed_in(&api, &cookie).await, "nobody has signed out");
    send(&api, &path, "", &[], &OURS).await.expect(303);
    sign_out(&api, &cookie).await.expect(303);
}

async fn form_token_of_another_session_is_not_taken(api: Api) {
    let token = api.token("ann", &["*"]).await;
    let (one, other) = (sign_in(&api, &token).await, sign_in(&api, &token).await);
    let (own, foreign) = (form_token(&api, &one).await, form_token(&api, &other).await);
    assert_ne!(own, foreign);
    for fields in [&[][..], &[("form_token", "")], &[("form_token", foreign.as_str())], &[("form_token", &own[1..])]] {
        send(&api, "/ui/logout", &one, fields, &OURS).await.expect(403).shows("This form was not taken");
    }
    assert!(is_signed_in(&api, &one).await);
    // without a session it leads to the page on which one signs in, and not back to a form
    let page = send(&api, "/ui/logout", "", &[("form_token", &own)], &OURS).await.expect(303);
    assert_eq!(page.header("location"), "/ui/login");
    send(&api, "/ui/logout", &one, &[("form_token", &own)], &OURS).await.expect(303);
}

async fn tenant_sees_its_own_and_an_admin_sees_all(api: Api) {
    for tenant in ["ann", "bob"] {
        let mut task = daily_of(tenant);
        task["name"] = json!(format!("The mail of {tenant}"));
        api.admin("POST", "/v1/tasks", Some(task)).await.expect(201);
    }
    let base = served(&api).await;
    let ann = Visitor::signed_in(&base, &api.token("ann", &["*"]).await).await;
    let page = ann.get("/ui/tasks").await;
    page.has("The mail of ann");
    page.lacks("The mail of bob");
    let page = Visitor::signed_in(&base, ADMIN).await.get("/ui/tasks").await;
    page.has("The mail of ann");
    page.has("The mail of bob");
}

async fn disabled_tenant_looks_and_changes_nothing(api: Api) {
    let task = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    let path = format!("/ui/tasks/{}", task["id"].as_str().expect("an id"));
    let base = served(&api).await;
    let ann = Visitor::signed_in(&base, &api.token("ann", &["*"]).await).await;
    api.admin("POST", "/v1/tenants/ann/disable", None).await.expect(200);
    let before = api.written().await;
    ann.get(&path).await.has("Morning mail");
    let page = ann.post(&path, &format!("{path}/pause"), &[]).await;
    assert_eq!(page.status, 403, "{}", page.text);
    page.has("The tenant is disabled");
    assert_eq!(api.written().await, before);
    let stored = api.store.get_task(&Scope::Every, task["id"].as_str().unwrap().parse().unwrap()).await.unwrap();
    assert_eq!(stored.status.as_str(), "active");
}

#[tokio::test]
async fn root_leads_to_the_dashboard_and_pages_run_no_script_but_ours() {
    let api = Api::new().await;
    let page = open(&api, "/", "").await.expect(303);
    assert_eq!(page.header("location"), "/ui");
    assert_eq!(open(&api, "/ui", "").await.expect(303).header("location"), "/ui/login");
    let cookie = sign_in(&api, ADMIN).await;
    for (path, cookie, status) in [
        ("/ui/login", "", 200),
        ("/ui/login/x", "", 404),
        ("/ui", "", 303),
        ("/ui", cookie.as_str(), 200),
        ("/ui/tasks", cookie.as_str(), 200),
    ] {
        let page = open(&api, path, cookie).await.expect(status);
        let policy = page.header("content-security-policy");
        for part in [
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "form-action 'self'",
            "frame-ancestors 'none'",
        ] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        for (name, value) in [
            ("cache-control", "no-store"),
            ("referrer-policy", "no-referrer"),
            ("x-frame-options", "DENY"),
            ("x-content-type-options", "nosniff"),
        ] {
            assert_eq!(page.header(name), value, "{path}");
        }
        assert!(!page.html.contains("<script>") && !page.html.contains(" style="), "{path}: {}", page.html);
    }
}

#[tokio::test]
async fn link_is_made_with_any_token_and_with_none_is_not() {
    let api = Api::new().await;
    api.ask("POST", "/v1/login-links", None, None).await.expect(401);
    let narrow = api.token("ann", &[]).await;
    api.ask("POST", "/v1/login-links", Some(&narrow), None).await.expect(201);
}

#[tokio::test]
async fn program_that_embeds_the_service_has_no_token_to_sign_in_with() {
    let world = World::sqlite();
    let instance = world.instance();
    let api = InProcessApi::new(instance.http());
    let asked = instance
        .on(|_| async move { api.call(&Scope::Every, (Method::POST, "/v1/login-links"), None, None).await })
        .await;
    assert_eq!(asked.expect_err("there is no token").status, 409);
    instance.finish(&world).await;
}
