//! The door itself, over real HTTP: where a credential goes, where it does not, and what comes back of it.

use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use http::Method;
use reveille::base::id::{Scope, Tenant};
use reveille::base::secret::Secret;
use reveille::domain::credential::{CredentialUse, RUN_SECRETS, Reference};
use reveille::ports::egress::{Egress, EgressError, EgressRequest, Response};
use reveille::ports::vault::credentials::{
    CredentialAnswer, CredentialFault, Credentials, FetchError, Renewal, RenewalError, Use, UsedSecrets,
};
use reveille::store::{StoredCredential, UseFilter};
use serde_json::{Value, json};
use uuid::Uuid;
use wiremock::matchers::header;
use wiremock::{Mock, MockServer, Respond, ResponseTemplate};

use super::{echo, open, received, save, save_for, sent, traces};
use crate::support::app::Instance;
use crate::support::world::{World, on_both};

on_both! {
    each_form_arrives_where_it_belongs_and_the_use_is_on_record
    nothing_of_fifty_odd_secrets_comes_back_by_any_path
    key_that_comes_back_in_other_letter_case_is_taken_out
    it_goes_to_its_hosts_alone_and_a_refusal_is_on_record
    redirect_takes_it_nowhere_else
    refused_token_is_renewed_and_the_request_sent_once_more
    unusable_credential_says_why_and_nothing_is_sent
    secret_used_by_a_run_comes_back_by_no_other_request_of_it
    credential_with_more_secrets_than_its_run_may_still_use_is_not_sent
}

const SECRET: &str = "c4nary/+%41&=7Zq";

/// Renews to what it was told, and counts.
struct FakeRenewal {
    to: Value,
    forced: Arc<Mutex<Vec<bool>>>,
}

impl Renewal for FakeRenewal {
    fn fresh<'a>(
        &'a self,
        _: &'a StoredCredential,
        document: Secret,
        force: bool,
    ) -> BoxFuture<'a, Result<Secret, RenewalError>> {
        self.forced.lock().unwrap().push(force);
        let fresh = if force { Secret::new(self.to.to_string()) } else { document };
        Box::pin(async move { Ok(fresh) })
    }
}

async fn fetch_by(
    world: &World,
    instance: &Instance,
    request: EgressRequest,
    name: &str,
    renewal: Option<Arc<dyn Renewal>>,
) -> Result<CredentialAnswer, FetchError> {
    let (vault, egress) = (world.vault(), Egress::new(&world.egress).unwrap());
    let reference = Reference::parse(name).unwrap();
    let answer = instance
        .on(move |store| async move {
            let tenant = Tenant::new("ann").unwrap();
            let with = Use {
                tenant: &tenant,
                reference: &reference,
                run_id: Some(Uuid::from_u128(5)),
                task_id: Some(Uuid::from_u128(6)),
                by: "step:order",
            };
            Credentials::new(store, vault, egress, renewal).fetch(request, Some(&with), &UsedSecrets::default()).await
        })
        .await;
    // uses are listed by their instants
    world.advance(1.0);
    answer
}

async fn fetch(world: &World, instance: &Instance, request: EgressRequest, name: &str) -> Result<Response, FetchError> {
    fetch_by(world, instance, request, name, None).await.map(|answer| answer.response)
}

async fn uses(instance: &Instance) -> Vec<CredentialUse> {
    let filter = UseFilter { limit: 1000, ..UseFilter::default() };
    let mut uses =
        instance.on(|store| async move { store.credential_uses(&Scope::Every, &filter).await }).await.expect("uses");
    uses.reverse();
    uses
}

/// Everything that a caller gets to see.
fn shown(answer: &Result<Response, FetchError>) -> Vec<u8> {
    match answer {
        Ok(Response { headers, body, url, .. }) => {
            let headers =
                headers.iter().flat_map(|(name, value)| [name.as_str().as_bytes(), b": ", value.as_bytes()].concat());
            headers.chain(body.to_vec()).chain(url.as_str().bytes()).collect()
        }
        Err(error) => format!("{error} {error:?}").into_bytes(),
    }
}

fn fault_of(answer: Result<Response, FetchError>) -> CredentialFault {
    match answer {
        Err(FetchError::Credential(error)) => error.kind,
        other => panic!("{other:?}"),
    }
}

async fn each_form_arrives_where_it_belongs_and_the_use_is_on_record(world: World) {
    let world = open(world);
    let (instance, server) = (world.instance(), echo("").await);
    let begun = world.clock.now();
    let document = json!({ "token": SECRET, "login": { "username": "ann", "password": SECRET } });
    for (index, inject) in [
        json!({ "as": "bearer", "from": "/token" }),
        json!({ "as": "basic", "from": "/login" }),
        json!({ "as": "header", "name": "X-Key", "template": "Token {/token}" }),
        json!({ "as": "query", "name": "key", "from": "/token" }),
        json!({ "as": "field", "name": "key", "from": "/token" }),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("shop/n{index}");
        save(&world, &instance, &name, inject, document.clone()).await;
        let request =
            EgressRequest { body: "{}".into(), ..EgressRequest::new(Method::POST, format!("{}/echo", server.uri())) };
        let answer = fetch(&world, &instance, request, &name).await;
        assert_eq!(traces(SECRET, &shown(&answer)), Vec::<String>::new(), "{name}");
        assert!(String::from_utf8_lossy(&answer.unwrap().body).contains("[redacted]"), "{name}");
    }
    let arrived: Vec<String> = received(&server).await.iter().map(sent).collect();
    let basic = "Basic YW5uOmM0bmFyeS8rJTQxJj03WnE=";
    assert_eq!(arrived, [SECRET, basic, &format!("Token {SECRET}"), SECRET, SECRET]);
    let uses = uses(&instance).await;
    assert_eq!(uses.len(), 5);
    let host = format!("127.0.0.1:{}", server.address().port());
    let expected = CredentialUse {
        id: uses[0].id,
        tenant_id: "ann".into(),
        service: "shop".into(),
        account_name: "n0".into(),
        at: begun,
        run_id: Some(Uuid::from_u128(5)),
        task_id: Some(Uuid::from_u128(6)),
        used_by: "step:order".into(),
        host,
        outcome: "used".into(),
    };
    assert_eq!(uses[0], expected);
    let stored = instance.on(|store| async move { store.get_credential(&Scope::Every, "ann", "shop", "n0").await });
    assert_eq!(stored.await.unwrap().credential.last_used_at, Some(begun));
    instance.finish(&world).await;
}

/// Fifty texts on which some escape has something to do.
fn canaries() -> Vec<String> {
    let odd = [
        "", "&", "%", "+", "/", "=", "\"", "'", "\\", "<b>", "%41", "&amp;", "\n", "\r\n", "\t", "é", "密", "🔑",
        "\u{0}", "\u{202e}", " ", "{{x}}", "?#", "::", "\u{7f}",
    ];
    let around =
        odd.iter().enumerate().flat_map(|(n, odd)| [format!("k{n}4n4{odd}ry7{n}"), format!("{odd}Qz{n}w{odd}9x{odd}")]);
    around.map(|text| if text.trim().len() < 6 { format!("{text}~longer") } else { text }).collect()
}

async fn nothing_of_fifty_odd_secrets_comes_back_by_any_path(world: World) {
    let world = open(world);
    let (instance, server) = (world.instance(), echo("").await);
    let canaries = canaries();
    assert_eq!(canaries.len(), 50);
    for (index, canary) in canaries.iter().enumerate() {
        let name = format!("odd/n{index}");
        let inject = json!({ "as": "field", "name": "key", "from": "/key" });
        save(&world, &instance, &name, inject, json!({ "key": canary })).await;
        let post = |path: &str| EgressRequest {
            body: "{}".into(),
            ..EgressRequest::new(Method::POST, format!("{}{path}", server.uri()))
        };
        for path in ["/echo", "/fail", "/refuse", "/odd", "/moved"] {
            let answer = fetch(&world, &instance, post(path), &name).await;
            let seen = shown(&answer);
            assert_eq!(
                traces(canary, &seen),
                Vec::<String>::new(),
                "{canary:?} {path}: {}",
                String::from_utf8_lossy(&seen)
            );
            assert!(String::from_utf8_lossy(&seen).contains("[redacted]"), "{canary:?} {path}");
        }
        let large = EgressRequest { max_bytes: 10, ..post("/echo") };
        let answer = fetch(&world, &instance, large, &name).await;
        assert!(matches!(answer, Err(FetchError::Egress(EgressError::TooLarge { .. }))));
        assert_eq!(traces(canary, &shown(&answer)), Vec::<String>::new());
        let nobody = EgressRequest { body: "{}".into(), ..EgressRequest::new(Method::POST, "http://127.0.0.1:9/") };
        let answer = fetch(&world, &instance, nobody, &name).await;
        assert!(matches!(answer, Err(FetchError::Egress(EgressError::Connect { .. }))), "{answer:?}");
        assert_eq!(traces(canary, &shown(&answer)), Vec::<String>::new());
    }
    let arrived: Vec<String> = received(&server).await.iter().map(sent).collect();
    assert!(canaries.iter().all(|canary| arrived.contains(canary)), "each was sent");
    instance.finish(&world).await;
}

/// A service that knows keys in hexadecimal, and answers with the one that it was asked with, in letters of its own.
struct RecasingService(fn(&str) -> String);

impl Respond for RecasingService {
    fn respond(&self, request: &wiremock::Request) -> ResponseTemplate {
        let echoed = (self.0)(&sent(request));
        let body = json!({ "key": echoed, "hex": hex::encode_upper(&echoed), "in": format!("key={echoed}&n=1") });
        match request.url.path() {
            "/moved" => ResponseTemplate::new(307).insert_header("Location", format!("/echo?was={echoed}").as_str()),
            "/refuse" => ResponseTemplate::new(403).insert_header("X-Echo", echoed.as_str()).set_body_json(body),
            _ => ResponseTemplate::new(200).insert_header("X-Echo", echoed.as_str()).set_body_json(body),
        }
    }
}

async fn key_that_comes_back_in_other_letter_case_is_taken_out(world: World) {
    let world = open(world);
    let instance = world.instance();
    let key = "9f8e7d6c5b4a39281706f5e4d3c2b1a0DEADBEEF";
    save(&world, &instance, "hex", json!({ "as": "bearer", "from": "/key" }), json!({ "key": key })).await;
    let swapped = |text: &str| -> String {
        let other = |c: char| if c.is_lowercase() { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() };
        text.chars().map(other).collect()
    };
    let recasings: [fn(&str) -> String; 3] = [str::to_uppercase, str::to_lowercase, swapped];
    for recase in recasings {
        let server = MockServer::start().await;
        Mock::given(wiremock::matchers::any()).respond_with(RecasingService(recase)).mount(&server).await;
        for path in ["/echo", "/refuse", "/moved"] {
            let get = EgressRequest::new(Method::GET, format!("{}{path}", server.uri()));
            let answer = fetch(&world, &instance, get, "hex").await;
            let seen = String::from_utf8(shown(&answer)).unwrap();
            assert!(!seen.to_lowercase().contains(&key.to_lowercase()[..8]), "{path}: {seen}");
            assert!(!seen.contains(&hex::encode_upper(recase(key))), "{path}: {seen}");
            assert!(seen.contains("[redacted]"), "{path}: {seen}");
        }
        assert!(received(&server).await.iter().all(|request| sent(request) == key), "it was sent as it is");
    }
    instance.finish(&world).await;
}

async fn it_goes_to_its_hosts_alone_and_a_refusal_is_on_record(world: World) {
    let world = open(world);
    let (instance, server) = (world.instance(), echo("").await);
    let port = server.address().port();
    let bearer = json!({ "as": "bearer", "from": "/key" });
    let host_of = |hosts: Value| json!({ "hosts": hosts, "inject": bearer });
    for hosts in [json!([]), json!(["api.example.org"]), json!([format!("127.0.0.1:{}", port ^ 1)]), json!(["*.0.0.1"])]
    {
        save_for(&world, &instance, "shop", host_of(hosts.clone()), json!({ "key": SECRET })).await;
        let get = EgressRequest::new(Method::GET, format!("{}/echo", server.uri()));
        assert_eq!(fault_of(fetch(&world, &instance, get, "shop").await), CredentialFault::NotForHost, "{hosts}");
    }
    assert!(received(&server).await.is_empty());
    assert!(uses(&instance).await.iter().all(|used| used.outcome == "not_for_host"));
    save_for(&world, &instance, "shop", host_of(json!([format!("127.0.0.1:{port}")])), json!({ "key": SECRET })).await;
    let get = EgressRequest::new(Method::GET, format!("{}/echo", server.uri()));
    assert!(fetch(&world, &instance, get, "shop").await.is_ok());
    instance.finish(&world).await;
}

async fn redirect_takes_it_nowhere_else(world: World) {
    let world = open(world);
    let elsewhere = echo("").await;
    let (instance, server) = (world.instance(), echo(&elsewhere.uri()).await);
    for inject in [
        json!({ "as": "bearer", "from": "/key" }),
        json!({ "as": "header", "name": "X-Key", "from": "/key" }),
        json!({ "as": "query", "name": "key", "from": "/key" }),
    ] {
        save(&world, &instance, "shop", inject.clone(), json!({ "key": SECRET })).await;
        let get = |path: &str| EgressRequest::new(Method::GET, format!("{}{path}", server.uri()));
        let stayed = fetch(&world, &instance, get("/moved"), "shop").await;
        assert_eq!(traces(SECRET, &shown(&stayed)), Vec::<String>::new());
        assert_eq!(stayed.unwrap().status, 200);
        let here = received(&server).await;
        assert_eq!(here.iter().rev().take(2).map(sent).collect::<Vec<_>>(), [SECRET, SECRET], "{inject}");
        // both are bound to this machine: another port is another origin all the same
        let left = fetch(&world, &instance, get("/leave"), "shop").await.unwrap();
        assert_eq!((left.status.as_u16(), left.url.port()), (200, Some(elsewhere.address().port())));
        let carried = fetch(&world, &instance, get("/carry"), "shop").await;
        assert_eq!(traces(SECRET, &shown(&carried)), Vec::<String>::new());
        assert_eq!(carried.unwrap().status, 302, "a place that is named with the secret is not visited");
    }
    let there = received(&elsewhere).await;
    assert_eq!(there.len(), 3);
    for request in there {
        assert_eq!((sent(&request), request.url.query()), (String::new(), None));
    }
    instance.finish(&world).await;
}

async fn refused_token_is_renewed_and_the_request_sent_once_more(world: World) {
    let world = open(world);
    let (instance, server) = (world.instance(), MockServer::start().await);
    Mock::given(header("authorization", "Bearer a-new-token"))
        .respond_with(ResponseTemplate::new(200))
        .mount(&server)
        .await;
    let refuses = ResponseTemplate::new(401).set_body_string("the token an-old-token is no good");
    Mock::given(wiremock::matchers::any()).respond_with(refuses).mount(&server).await;
    let oauth = json!({ "token_url": "https://id.example.org/token", "client_id": "reveille" });
    let bearer = json!({ "as": "bearer", "from": "/access_token" });
    let with_oauth = json!({ "hosts": ["127.0.0.1"], "inject": bearer, "oauth": oauth });
    save_for(&world, &instance, "shop", with_oauth, json!({ "access_token": "an-old-token" })).await;
    let renews = |to: &str| {
        let forced = Arc::default();
        let renewal = FakeRenewal { to: json!({ "access_token": to }), forced: Arc::clone(&forced) };
        (Arc::new(renewal) as Arc<dyn Renewal>, forced)
    };
    let get = || EgressRequest::new(Method::GET, server.uri());
    let (renewal, forced) = renews("a-new-token");
    let answer = fetch_by(&world, &instance, get(), "shop", Some(renewal)).await.unwrap();
    assert_eq!((answer.response.status.as_u16(), forced.lock().unwrap().clone()), (200, vec![false, true]));
    assert_eq!(answer.refused, None);
    let (renewal, forced) = renews("another-bad-token");
    let answer = fetch_by(&world, &instance, get(), "shop", Some(renewal)).await.unwrap();
    assert_eq!((answer.response.status.as_u16(), forced.lock().unwrap().clone()), (401, vec![false, true]), "once");
    assert_eq!(String::from_utf8_lossy(&answer.response.body), "the token [redacted] is no good");
    let host = format!("127.0.0.1:{}", server.address().port());
    let told = |answer: &CredentialAnswer| answer.refused.as_ref().map(|error| (error.kind, error.to_string()));
    let refused =
        |name: &str| Some((CredentialFault::Refused, format!("The credential {name} is refused: {host} answered 401")));
    assert_eq!(told(&answer), refused("shop"));
    // without OAuth it is so at once
    save(&world, &instance, "plain", bearer, json!({ "access_token": "an-old-token" })).await;
    let (renewal, forced) = renews("a-new-token");
    let answer = fetch_by(&world, &instance, get(), "plain", Some(renewal)).await.unwrap();
    assert_eq!((answer.response.status.as_u16(), forced.lock().unwrap().len()), (401, 0));
    assert_eq!(String::from_utf8_lossy(&answer.response.body), "the token [redacted] is no good");
    assert_eq!(told(&answer), refused("plain"));
    assert_eq!(received(&server).await.len(), 5);
    let outcomes: Vec<String> = uses(&instance).await.into_iter().map(|used| used.outcome).collect();
    assert_eq!(outcomes, ["refused", "used", "refused", "refused", "refused"]);
    // where it was not sent, nobody has refused it
    let away = MockServer::start().await;
    let moved = ResponseTemplate::new(302).insert_header("Location", format!("{}/x", server.uri()).as_str());
    Mock::given(wiremock::matchers::any()).respond_with(moved).mount(&away).await;
    let left = fetch_by(&world, &instance, EgressRequest::new(Method::GET, away.uri()), "plain", None).await.unwrap();
    assert_eq!((left.response.status.as_u16(), left.refused), (401, None));
    instance.finish(&world).await;
}

async fn unusable_credential_says_why_and_nothing_is_sent(world: World) {
    let world = open(world);
    let (instance, server) = (world.instance(), echo("").await);
    let get = || EgressRequest::new(Method::GET, format!("{}/echo?key=mine", server.uri()));
    let bearer = json!({ "as": "bearer", "from": "/key" });
    assert_eq!(fault_of(fetch(&world, &instance, get(), "shop").await), CredentialFault::Missing);
    save(&world, &instance, "shop", Value::Null, json!({ "key": SECRET })).await;
    assert_eq!(fault_of(fetch(&world, &instance, get(), "shop").await), CredentialFault::NoInject);
    save(&world, &instance, "shop", json!({ "as": "query", "name": "key", "from": "/key" }), json!({ "key": SECRET }))
        .await;
    assert_eq!(fault_of(fetch(&world, &instance, get(), "shop").await), CredentialFault::Taken);
    save(&world, &instance, "shop", bearer.clone(), json!({ "kye": SECRET })).await;
    assert_eq!(fault_of(fetch(&world, &instance, get(), "shop").await), CredentialFault::NoInject);
    // another's is not there at all
    let update = "update credentials set tenant_id = 'bob'";
    save(&world, &instance, "shop", bearer.clone(), json!({ "key": SECRET })).await;
    world.execute(update, update).await;
    assert_eq!(fault_of(fetch(&world, &instance, get(), "shop").await), CredentialFault::Missing);
    // moved to where it was not sealed for, it does not open
    let moved = "update credentials set tenant_id = 'ann', account = 'other' where tenant_id = 'bob'";
    world.execute(moved, moved).await;
    assert_eq!(fault_of(fetch(&world, &instance, get(), "shop/other").await), CredentialFault::Unreadable);
    let stored = save(&world, &instance, "shop", bearer, json!({ "key": SECRET })).await.credential;
    instance
        .on(move |store| async move {
            let until = store.clock().now() + chrono::TimeDelta::minutes(1);
            let lease = store.claim_refresh(stored.id, stored.version, until).await.unwrap().unwrap();
            store.mark_needs_consent(stored.id, lease, "invalid_grant").await.unwrap();
        })
        .await;
    let answer = fetch(&world, &instance, get(), "shop").await;
    let told = answer.as_ref().unwrap_err().to_string();
    assert_eq!(told, "Please connect shop again: its access has ended: invalid_grant");
    assert_eq!(fault_of(answer), CredentialFault::NeedsConsent);
    assert!(received(&server).await.is_empty());
    let outcomes: Vec<String> = uses(&instance).await.into_iter().map(|used| used.outcome).collect();
    let expected = ["missing", "no_inject", "taken", "no_inject", "missing", "unreadable", "needs_consent"];
    assert_eq!(outcomes, expected);
    instance.finish(&world).await;
}

async fn secret_used_by_a_run_comes_back_by_no_other_request_of_it(world: World) {
    let world = open(world);
    let (instance, server) = (world.instance(), MockServer::start().await);
    let says = ResponseTemplate::new(200).set_body_string(format!("kept: {SECRET}"));
    Mock::given(wiremock::matchers::any()).respond_with(says).mount(&server).await;
    save(&world, &instance, "shop", json!({ "as": "bearer", "from": "/key" }), json!({ "key": SECRET })).await;
    let task = instance.task(json!({ "trigger": { "type": "schedule", "interval": "1h" } })).await;
    let id = instance.run_now(&task).await;
    instance.settle(0).await;
    let run = instance.run(id).await;
    let ask = async |used_secrets: UsedSecrets, named: bool| {
        let (vault, egress, url) = (world.vault(), Egress::new(&world.egress).unwrap(), server.uri());
        let answer = instance.on(move |store| async move {
            let (tenant, reference) = (Tenant::new("ann").unwrap(), Reference::parse("shop").unwrap());
            let with = Use { tenant: &tenant, reference: &reference, run_id: Some(id), task_id: None, by: "step:a" };
            let request = EgressRequest::new(Method::GET, url);
            Credentials::new(store, vault, egress, None).fetch(request, named.then_some(&with), &used_secrets).await
        });
        String::from_utf8(answer.await.unwrap().response.body.to_vec()).unwrap()
    };
    let used_secrets = UsedSecrets::of(&run);
    assert_eq!(ask(used_secrets.clone(), false).await, format!("kept: {SECRET}"), "it has used nothing");
    assert_eq!(ask(used_secrets.clone(), true).await, "kept: [redacted]");
    assert_eq!(ask(used_secrets, false).await, "kept: [redacted]");
    // executed once more it recalls what it has used
    assert_eq!(ask(UsedSecrets::of(&run), false).await, "kept: [redacted]");
    assert_eq!(ask(UsedSecrets::default(), false).await, format!("kept: {SECRET}"), "another run has not");

    // a request that was sent before, and is answered after another one of the run has used it
    server.reset().await;
    let says = || ResponseTemplate::new(200).set_body_string(format!("kept: {SECRET}"));
    Mock::given(wiremock::matchers::header_exists("authorization")).respond_with(says()).mount(&server).await;
    let late = says().set_delay(std::time::Duration::from_secs(5));
    Mock::given(wiremock::matchers::any()).respond_with(late).mount(&server).await;
    let together = UsedSecrets::default();
    let (plain, with) = tokio::join!(ask(together.clone(), false), ask(together.clone(), true));
    assert_eq!((plain.as_str(), with.as_str()), ("kept: [redacted]", "kept: [redacted]"));
    instance.finish(&world).await;
}

async fn credential_with_more_secrets_than_its_run_may_still_use_is_not_sent(world: World) {
    let world = open(world);
    let (instance, server) = (world.instance(), echo("").await);
    let bearer = json!({ "as": "bearer", "from": "/key" });
    save(&world, &instance, "shop", bearer.clone(), json!({ "key": SECRET })).await;
    save(&world, &instance, "more", bearer, json!({ "key": "one-s3cret-more" })).await;
    let task = instance.task(json!({ "trigger": { "type": "schedule", "interval": "1h" } })).await;
    let id = instance.run_now(&task).await;
    instance.settle(0).await;
    let run = instance.run(id).await;
    // all but one of the secrets that a run may have
    let with_others = || {
        let used_secrets = UsedSecrets::of(&run);
        let others: Vec<String> = (1..RUN_SECRETS).map(|n| format!("other-{n:04}")).collect();
        used_secrets.add(others.iter().map(String::as_str));
        used_secrets
    };
    let ask = async |used_secrets: &UsedSecrets, name: Option<&str>| {
        let (vault, egress, used_secrets) = (world.vault(), Egress::new(&world.egress).unwrap(), used_secrets.clone());
        let reference = name.map(|name| Reference::parse(name).unwrap());
        let request = EgressRequest::new(Method::GET, format!("{}/echo", server.uri()));
        let answer = instance.on(move |store| async move {
            let tenant = Tenant::new("ann").unwrap();
            let with = reference.as_ref().map(|reference| Use {
                tenant: &tenant,
                reference,
                run_id: Some(id),
                task_id: None,
                by: "step:a",
            });
            Credentials::new(store, vault, egress, None).fetch(request, with.as_ref(), &used_secrets).await
        });
        let answer = answer.await.map(|answer| answer.response);
        world.advance(1.0);
        answer
    };
    let is_shown = |answer: Result<Response, FetchError>| {
        let seen = shown(&answer);
        assert_eq!(traces(SECRET, &seen), Vec::<String>::new());
        String::from_utf8_lossy(&seen).contains("status")
    };
    let used_secrets = with_others();
    assert!(is_shown(ask(&used_secrets, Some("shop")).await), "that is the last one");
    let refused = ask(&used_secrets, Some("more")).await;
    let told = refused.as_ref().unwrap_err().to_string();
    assert!(told.starts_with("The credential more can't be used in this run any more: "), "{told}");
    assert!(told.ends_with("use it in another run, or save documents with fewer texts"), "{told}");
    assert_eq!(fault_of(refused), CredentialFault::TooMany);
    assert!(is_shown(ask(&used_secrets, Some("shop")).await), "its secrets are known already");
    let arrived: Vec<String> = received(&server).await.iter().map(sent).collect();
    assert_eq!(arrived, [SECRET, SECRET]);
    let outcomes: Vec<String> = uses(&instance).await.into_iter().map(|used| used.outcome).collect();
    assert_eq!(outcomes, ["used", "too_many", "used"]);

    // an execution that goes on recalls what was sent, and not what was refused
    assert!(is_shown(ask(&with_others(), None).await), "those that it recalls are as many as it may have");
    let crowded = with_others();
    crowded.add(["one-s3cret-more"]);
    assert!(!is_shown(ask(&crowded, None).await), "where they are more, nothing that it reads is shown");
    instance.finish(&world).await;
}
