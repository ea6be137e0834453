//! Runs of the engine with an account at a real provider: a token that has ended is renewed on the way, and an account
//! that is taken back is told of once, whoever comes to it first.

use chrono::TimeDelta;
use reveille::base::id::Scope;
use reveille::base::secret::Secret;
use reveille::domain::notification::MessageKind;
use reveille::domain::run::{Run, RunState};
use reveille::domain::task::{Task, TaskStatus};
use reveille::ports::egress::{self, Egress};
use reveille::ports::vault::oauth;
use serde_json::{Value, json};
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::harness::{LIFE, PUBLIC_URL, calendar, parameter, provider, text};
use crate::support::app::Instance;
use crate::support::oauth::{CLIENT, OAuthServer};
use crate::support::world::{World, on_both};

on_both! {
    run_renews_a_token_that_has_ended_and_the_other_side_gets_the_new_one
    account_that_is_taken_back_is_told_of_once_whoever_comes_to_it_first
}

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// A provider on the world's clock, and a place where its tokens are sent to.
async fn open(mut world: World) -> (World, OAuthServer, MockServer) {
    let server = OAuthServer::start(&oauth::redirect_uri(PUBLIC_URL), LIFE.to_std().unwrap()).await;
    server.set_clock(world.clock.now()).await;
    let sink = MockServer::start().await;
    let taken = ResponseTemplate::new(200).set_body_json(json!({ "output": "taken" }));
    Mock::given(any()).respond_with(taken).mount(&sink).await;
    let mut provider = provider(&server, CLIENT);
    provider.hosts.push(sink.address().to_string());
    world.oauth = [("calendar".to_owned(), provider)].into();
    world.egress = egress::Settings { allow: vec!["127.0.0.1:*".into()], ..egress::Settings::default() };
    world.poll.per_host_per_second = 1000.0;
    world.public_url = Some(PUBLIC_URL.into());
    let email = json!({ "url": "smtp://127.0.0.1:9", "from": "reveille@example.org" });
    world.channels = serde_json::from_value(json!({ "email": email })).unwrap();
    (world, server, sink)
}

/// Connects ann's account, as a person does with a link.
async fn connect(world: &World, instance: &Instance, server: &OAuthServer) {
    let (vault, providers) = (world.vault(), world.oauth.clone());
    let egress = Egress::new(&world.egress).unwrap();
    let (_, connector) = oauth::open(&instance.store, &vault, &egress, &providers, PUBLIC_URL);
    let started = connector.start("ann", &calendar(), "token:admin").await.unwrap();
    let back = server.agree(started.url.as_str(), "ann-at-the-provider").await;
    let (state, code) = (parameter(&back, "state"), parameter(&back, "code"));
    let connected = instance.on(|_| async move {
        let flow = connector.offer(&state).await.expect("an offer").flow;
        connector.finish(flow, Secret::new(code)).await
    });
    assert!(connected.await.expect("connected").is_renewable);
}

/// The access token that is stored.
async fn token(world: &World, instance: &Instance) -> String {
    let stored =
        instance.on(|store| async move { store.get_credential(&Scope::Every, "ann", "calendar", "primary").await });
    text(&world.vault().open_document(&stored.await.expect("stored")).expect("it opens"), "access_token")
}

async fn run(instance: &Instance, task: &Task) -> Run {
    let id = instance.run_now(task).await;
    instance.settle(0).await;
    instance.until(id, |run| run.state.is_final()).await
}

/// The tokens that the sink was sent, in order.
async fn sent(sink: &MockServer) -> Vec<String> {
    let header = |request: &wiremock::Request| request.headers["authorization"].to_str().unwrap().to_owned();
    sink.received_requests().await.unwrap().iter().map(header).collect()
}

async fn advance(world: &World, server: &OAuthServer, step: TimeDelta) {
    world.clock.advance(step);
    server.set_clock(world.clock.now()).await;
}

fn pipeline(urls: &[String]) -> Value {
    let step = |(n, url): (usize, &String)| json!({ "name": format!("s{n}"), "http": { "url": url, "credential": "calendar" } });
    let steps: Vec<Value> = urls.iter().enumerate().map(step).collect();
    let trigger = json!({ "type": "schedule", "interval": "1d" });
    json!({ "executor": "pipeline", "action": { "config": { "steps": steps } }, "trigger": trigger })
}

fn webhook(url: &str) -> Value {
    let config = json!({ "url": url, "secret": SECRET, "credential": "calendar" });
    let trigger = json!({ "type": "schedule", "interval": "1d" });
    json!({ "executor": "webhook", "action": { "config": config }, "trigger": trigger })
}

async fn run_renews_a_token_that_has_ended_and_the_other_side_gets_the_new_one(world: World) {
    let (world, server, sink) = open(world).await;
    let instance = world.instance();
    connect(&world, &instance, &server).await;
    let first = token(&world, &instance).await;
    // the provider's own API opens with the token, so it is a good one
    let steps = instance.task(pipeline(&[format!("{}/steps", sink.uri()), server.url("/me")])).await;
    let hook = instance.task(webhook(&format!("{}/hook", sink.uri()))).await;
    let mut tokens = vec![];
    for task in [&steps, &hook] {
        let old = token(&world, &instance).await;
        advance(&world, &server, LIFE + TimeDelta::seconds(1)).await;
        let run = run(&instance, task).await;
        assert_eq!(run.state, RunState::Succeeded, "{:?}", run.error);
        let new = token(&world, &instance).await;
        assert_ne!(old, new, "it was renewed, and what came was kept");
        tokens.push(format!("Bearer {new}"));
    }
    assert_eq!(sent(&sink).await, tokens);
    assert!(!tokens.contains(&format!("Bearer {first}")));
    assert_eq!((server.granted("refresh_token").await, server.refused().await), (2, vec![]));
    // while it is good it is used as it is
    run(&instance, &hook).await;
    assert_eq!(sent(&sink).await.last(), tokens.last());
    assert_eq!(server.granted("refresh_token").await, 2);
    instance.finish(&world).await;
}

/// Users of an account that is taken back.
#[derive(Debug, Clone, Copy)]
enum AccountUser {
    Steps,
    Agent,
    Poll,
    /// A task whose results take another way than its owner's first.
    Hook,
}

async fn account_that_is_taken_back_is_told_of_once_whoever_comes_to_it_first(world: World) {
    let (mut world, server, sink) = open(world).await;
    let look = json!({ "url": sink.uri(), "credential": "calendar" });
    world.follows(&json!({ "steps": [
        { "turn": 1, "text": "I look.", "calls": [{ "tool": "http_request", "args": look }] },
        { "text": "Could not." },
    ] }));
    let instance = world.instance();
    instance.recipient().await;
    let never = json!({ "type": "schedule", "interval": "1d" });
    let steps = instance.task(pipeline(&[sink.uri()])).await;
    let mut hook = webhook(&sink.uri());
    hook["output"] = json!({ "channel": "webhook" });
    let hook = instance.task(hook).await;
    let action = json!({ "instruction": "Look.", "config": { "credentials": ["calendar"] } });
    let agent = json!({ "executor": "orchestrator", "action": action, "output": null, "trigger": never });
    let agent = instance.task(agent).await;
    let poll = instance
        .task(json!({ "trigger": {
            "type": "condition", "interval": "1m", "expression": "value.output == 'nothing'",
            "poll": { "http": { "url": sink.uri(), "credential": "calendar" } },
        } }))
        .await;
    let orders = [
        [AccountUser::Steps, AccountUser::Agent, AccountUser::Poll, AccountUser::Hook],
        [AccountUser::Agent, AccountUser::Poll, AccountUser::Hook, AccountUser::Steps],
        [AccountUser::Poll, AccountUser::Hook, AccountUser::Steps, AccountUser::Agent],
        [AccountUser::Hook, AccountUser::Steps, AccountUser::Agent, AccountUser::Poll],
    ];
    for (round, order) in orders.into_iter().enumerate() {
        connect(&world, &instance, &server).await;
        for task in [&steps, &hook, &poll] {
            assert_eq!(instance.stored(task).await.status, TaskStatus::Active, "connecting lets it go on");
        }
        server.revoke().await;
        advance(&world, &server, LIFE + TimeDelta::seconds(1)).await;
        for who in order {
            match who {
                AccountUser::Steps | AccountUser::Hook => {
                    let task = if matches!(who, AccountUser::Steps) { &steps } else { &hook };
                    let fault = run(&instance, task).await.error.expect("it fails");
                    assert_eq!(fault.code, "credential_needs_consent", "{}", fault.message);
                    assert_paused(&instance, task).await;
                }
                AccountUser::Agent => {
                    let ended = run(&instance, &agent).await;
                    assert_eq!(ended.output.as_deref(), Some("Could not."), "{:?}", ended.error);
                    let told = instance.page(&format!("/v1/runs/{}/transcript", ended.id)).await;
                    assert!(told.contains("Please connect calendar again"), "{told}");
                }
                AccountUser::Poll => {
                    instance.poll().await;
                    assert_paused(&instance, &poll).await;
                }
            }
            let told = notices(&instance).await;
            assert_eq!(told.len(), round + 1, "{who:?} in {order:?}: {told:#?}");
        }
    }
    let told = notices(&instance).await;
    for (channel, subject, text) in told {
        assert_eq!((channel.as_str(), subject.as_str()), ("email", "Please connect calendar again"));
        assert!(text.contains("A task that comes to it before is paused until then."), "{text}");
        assert!(text.contains("The reason: its provider says invalid_grant"), "{text}");
    }
    assert_eq!(sink.received_requests().await.unwrap().len(), 0);
    instance.finish(&world).await;
}

async fn assert_paused(instance: &Instance, task: &Task) {
    let stored = instance.stored(task).await;
    assert_eq!((stored.status, stored.status_reason.as_deref()), (TaskStatus::Paused, Some("credential:calendar")));
}

/// Channel, subject and text of each notice to ann.
async fn notices(instance: &Instance) -> Vec<(String, String, String)> {
    let sent = instance.deliveries().await.into_iter().filter(|delivery| delivery.kind == MessageKind::Notice);
    sent.map(|d| (d.channel, d.subject.unwrap_or_default(), d.text.unwrap_or_default())).collect()
}
