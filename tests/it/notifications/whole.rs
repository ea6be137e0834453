//! The whole of a message that was cut: behind the link in it, for whoever has the link, and for nobody else.

use axum::body::Body;
use axum::http::{HeaderMap, Request};
use reveille::base::id::Scope;
use reveille::base::secret::Secret;
use reveille::domain::notification::{Delivery, DeliveryState, MessageKind, NewDelivery};
use reveille::domain::task::Urgency;
use reveille::ports::channel::{full_message_url, sms};
use serde_json::json;
use tower::ServiceExt;
use wiremock::matchers::method;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::api::service::Api;
use crate::approvals::harness::fetch_from;
use crate::support::app::Instance;
use crate::support::smtp::MailServer;
use crate::support::world::{ADMIN, PUBLIC, World, on_both};

on_both! {
    link_that_a_provider_quotes_is_recorded_nowhere
    long_answer_is_cut_in_its_mail_and_read_in_full_behind_its_link
    all_messages_of_a_digest_are_read_behind_its_link
    page_of_a_message_names_the_language_in_which_it_speaks
    questions_and_codes_are_not_shown
}

struct WholePage {
    status: u16,
    headers: HeaderMap,
    html: String,
}

/// The answer to a browser without any token.
async fn open(instance: &Instance, method: &str, token: &str) -> WholePage {
    let request = Request::builder().method(method).uri(format!("/messages/{token}")).body(Body::empty());
    let (router, request) = (instance.router(), request.expect("a request"));
    instance
        .on(|_| async move {
            let (parts, body) = router.oneshot(request).await.expect("an answer").into_parts();
            let bytes = axum::body::to_bytes(body, usize::MAX).await.expect("a body");
            let html = String::from_utf8(bytes.to_vec()).expect("UTF-8");
            WholePage { status: parts.status.as_u16(), headers: parts.headers, html }
        })
        .await
}

fn token_at_the_end(text: &str) -> String {
    let link = text.trim_end().lines().last().expect("a last line");
    link.strip_prefix(&format!("{PUBLIC}/messages/")).unwrap_or_else(|| panic!("no link: {link}")).to_owned()
}

/// The token that the page of a delivery would have.
fn token_of(instance: &Instance, delivery: &Delivery) -> String {
    token_at_the_end(full_message_url::full_text_url(&instance.http().vault, PUBLIC, delivery).expose())
}

fn message(kind: MessageKind, tenant: &str, text: &str) -> NewDelivery {
    NewDelivery {
        tenant_id: tenant.into(),
        recipient: tenant.into(),
        channel: "email".into(),
        fallback: vec![],
        dedupe_key: format!("{}:{text}", kind.as_str()),
        run_id: None,
        subject_ref: None,
        kind,
        urgency: Urgency::Normal,
        subject: Some(format!("About {text}")),
        text: Some(text.into()),
    }
}

async fn long_answer_is_cut_in_its_mail_and_read_in_full_behind_its_link(mut world: World) {
    let server = MailServer::start().await;
    world.mail_by(&server);
    let instance = world.instance();
    instance.recipient().await;
    let answer = format!("{}\n\n<b>the very end</b>", "A line of the answer.\n".repeat(6000));
    let output = json!({ "channel": "email" });
    instance.task(json!({ "name": "Mail & more", "acts": [format!("say:{answer}")], "output": output })).await;
    world.advance_to("08:01");
    instance.live(0).await;
    instance.notify().await;

    let [mail] = server.messages().try_into().expect("one message");
    assert!(!mail.text.contains("the very end"), "it was cut");
    let token = token_at_the_end(&mail.text);
    let html = mail.html.as_deref().expect("HTML");
    assert!(html.contains(&format!("href=\"{PUBLIC}/messages/{token}\"")), "its button leads there");

    let before = instance.deliveries().await;
    let page = open(&instance, "GET", &token).await;
    assert_eq!(page.status, 200, "{}", page.html);
    assert!(page.html.contains("Mail &amp; more · due 2027-03-01 08:01 UTC"), "{}", &page.html[..4000]);
    assert_eq!(page.html.matches("A line of the answer.").count(), 6000);
    assert!(page.html.contains("&lt;b&gt;the very end&lt;/b&gt;") && !page.html.contains("<script"));
    let header = |name: &str| page.headers[name].to_str().expect("a text").to_owned();
    assert_eq!((header("cache-control"), header("referrer-policy")), ("no-store".into(), "no-referrer".into()));
    assert!(header("x-robots-tag").starts_with("noindex"));
    assert!(header("content-security-policy").starts_with("default-src 'none'; style-src 'sha256-"));
    let head = open(&instance, "HEAD", &token).await;
    assert_eq!((head.status, head.html.as_str()), (200, ""));
    assert_eq!(instance.deliveries().await, before, "looking changes nothing");
    assert!(!format!("{before:?}").contains(&token));

    // of another tenant, with a page of its own
    let bobs = message(MessageKind::Message, "bob", "for bob");
    let posted = bobs.clone();
    instance.on(|store| async move { store.post_delivery(&posted).await }).await.expect("posted");
    let bobs = instance
        .on(move |store| async move { store.find_delivery(&Scope::Every, "bob", &bobs.dedupe_key).await })
        .await
        .expect("a delivery");
    let other = token_of(&instance, &bobs);
    assert!(open(&instance, "GET", &other).await.html.contains("for bob"));
    let unknown = open(&instance, "GET", "made-up").await;
    assert_eq!(unknown.status, 404);
    // an id and a minute are 27 signs long, the tag is the rest
    let mixed = format!("{}{}", &token[..27], &other[27..]);
    for wrong in [mixed.as_str(), &token[1..], &token.replacen(&token[40..41], "_", 1), &format!("{token}AAAA")] {
        if wrong != token {
            let seen = open(&instance, "GET", wrong).await;
            assert_eq!((seen.status, &seen.html), (404, &unknown.html), "{wrong}");
        }
    }
    world.clock.advance(chrono::TimeDelta::days(30));
    let late = open(&instance, "GET", &token).await;
    assert_eq!((late.status, &late.html), (404, &unknown.html), "its time is over");
    if !world.is_postgres() {
        for file in std::fs::read_dir(world.dir()).expect("the data directory") {
            let path = file.expect("a file").path();
            let bytes = std::fs::read(&path).unwrap_or_default();
            let held = bytes.windows(token.len()).any(|part| part == token.as_bytes());
            assert!(!held, "{} holds the token", path.display());
        }
    }
    instance.crash();
}

async fn all_messages_of_a_digest_are_read_behind_its_link(mut world: World) {
    let server = MailServer::start().await;
    world.mail_by(&server);
    let instance = world.instance();
    let ann = json!({
        "timezone": "Europe/Berlin", "addresses": { "email": "ann@example.org" },
        "quiet_hours": [{ "from": "22:00", "to": "07:00", "channels": ["email"] }],
    });
    assert_eq!(instance.ask("PUT", "/v1/recipients/ann", ADMIN, Some(ann)).await.0, 200);
    world.advance_to("23:00");
    let told: Vec<NewDelivery> =
        (0..53).map(|n| message(MessageKind::Message, "ann", &format!("message number {n}."))).collect();
    for told in told.clone() {
        instance.on(|store| async move { store.post_delivery(&told).await }).await.expect("posted");
    }
    // as many as are claimed at once, and the rest
    for _ in 0..4 {
        instance.notify().await;
    }
    world.advance_to("02 06:00");
    instance.notify().await;
    let [mail] = server.messages().try_into().expect("one message");
    assert_eq!(mail.header("subject"), "53 messages that could wait");
    assert!(mail.text.contains("… and 3 more"), "{}", mail.text);
    let page = open(&instance, "GET", &token_at_the_end(&mail.text)).await;
    assert_eq!(page.status, 200);
    for told in &told {
        let text = told.text.as_deref().expect("a text");
        assert!(page.html.contains(text), "{text} is not in\n{}", page.html);
    }
    assert!(page.html.contains("2027-03-02 00:00 CET"), "in the recipient's zone");
    instance.crash();
}

async fn page_of_a_message_names_the_language_in_which_it_speaks(mut world: World) {
    let server = MailServer::start().await;
    world.mail_by(&server);
    let instance = world.instance();
    for (tenant, locale, lang) in [("ann", "de-AT", "de"), ("bob", "en", "en"), ("cid", "fr", "en")] {
        let put = json!({ "locale": locale, "addresses": { "email": "ann@example.org" } });
        assert_eq!(instance.ask("PUT", &format!("/v1/recipients/{tenant}"), ADMIN, Some(put)).await.0, 200);
        let told = message(MessageKind::Message, tenant, "something");
        let posted = told.clone();
        instance.on(|store| async move { store.post_delivery(&posted).await }).await.expect("posted");
        let delivery = instance
            .on(move |store| async move { store.find_delivery(&Scope::Every, tenant, &told.dedupe_key).await })
            .await
            .expect("a delivery");
        let page = open(&instance, "GET", &token_of(&instance, &delivery)).await;
        assert!(page.html.contains(&format!("<html lang=\"{lang}\" dir=\"ltr\">")), "{locale}: {}", page.html);
    }
    instance.crash();
}

async fn link_that_a_provider_quotes_is_recorded_nowhere(mut world: World) {
    let server = MockServer::start().await;
    let quoting = |request: &wiremock::Request| {
        let (_, text) = url::form_urlencoded::parse(&request.body).find(|(name, _)| name == "Body").expect("a text");
        let quoted = format!("no: {}", text.lines().last().unwrap_or_default());
        ResponseTemplate::new(400).set_body_json(json!({ "code": 21211, "message": quoted, "status": 400 }))
    };
    Mock::given(method("POST")).respond_with(quoting).mount(&server).await;
    world.public_url = Some(PUBLIC.into());
    world.channels.sms = sms::Settings {
        account: Some("AC1".into()),
        token: Some(Secret::new("token")),
        from: Some("+14155550100".into()),
        base_url: Some(server.uri()),
        ..sms::Settings::default()
    };
    let instance = world.instance();
    let ann = json!({ "addresses": { "sms": "+4915112345678" } });
    assert_eq!(instance.ask("PUT", "/v1/recipients/ann", ADMIN, Some(ann)).await.0, 200);
    let long =
        NewDelivery { channel: "sms".into(), ..message(MessageKind::Message, "ann", &"两封邮件，".repeat(200)) };
    instance.on(|store| async move { store.post_delivery(&long).await }).await.expect("posted");
    instance.notify().await;
    let [delivery] = instance.deliveries().await.try_into().expect("one delivery");
    let error = delivery.last_error.clone().expect("an error");
    assert!(error.contains("no: [redacted]") && !error.contains("/messages/"), "{error}");
    assert!(!error.contains(&token_of(&instance, &delivery)), "{error}");
    instance.crash();
}

#[tokio::test]
async fn guessing_links_costs_the_guesser_and_nobody_else() {
    let api = Api::new().await;
    let bobs = message(MessageKind::Message, "bob", "for bob");
    api.store.post_delivery(&bobs).await.expect("posted");
    let bobs = api.store.find_delivery(&Scope::Every, "bob", &bobs.dedupe_key).await.expect("a delivery");
    let address = full_message_url::full_text_url(&api.vault, PUBLIC, &bobs);
    let known = address.expose().strip_prefix(PUBLIC).expect("ours");
    let (guesser, other) = ([192, 0, 2, 7], [192, 0, 2, 8]);
    fetch_from(&api, guesser, known).await.expect(200).shows("for bob");
    for n in 0..20 {
        fetch_from(&api, guesser, &format!("/messages/guess{n}")).await.expect(404);
    }
    assert_eq!(fetch_from(&api, guesser, "/messages/guess").await.expect(429).header("retry-after"), "60");
    fetch_from(&api, guesser, known).await.expect(200);
    fetch_from(&api, other, "/messages/guess").await.expect(404);
}

async fn questions_and_codes_are_not_shown(world: World) {
    let instance = world.instance();
    for kind in [MessageKind::Ask, MessageKind::Reminder, MessageKind::Code] {
        let new = message(kind, "ann", "x");
        let posted = new.clone();
        instance.on(|store| async move { store.post_delivery(&posted).await }).await.expect("posted");
        let stored = instance
            .on(move |store| async move { store.find_delivery(&Scope::Every, "ann", &new.dedupe_key).await })
            .await
            .expect("a delivery");
        assert_eq!(stored.state, DeliveryState::Pending);
        let token = token_of(&instance, &stored);
        assert_eq!(open(&instance, "GET", &token).await.status, 404, "{kind:?}");
    }
    instance.crash();
}
