//! Failures between us and a provider, and their effects.

use std::time::Duration;

use chrono::TimeDelta;
use futures::future::join_all;
use reveille::base::clock::to_delta;
use reveille::base::id::Scope;
use reveille::base::secret::Secret;
use reveille::ports::vault::oauth::refresh::LEASE;
use reveille::store::UseFilter;
use serde_json::{Value, json};

use super::harness::{Instance, LIFE, OAuthHarness, ann, text};

/// To within the last minute of the token's life: due, and good.
fn due() -> TimeDelta {
    LIFE - TimeDelta::seconds(30)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn consent_that_is_taken_back_stops_the_credential_tells_its_owner_once_and_is_mended_by_connecting_again() {
    let stage = OAuthHarness::on_postgres().await;
    let (one, two) = (stage.instance().await, stage.instance().await);
    one.recipient().await;
    for times in 1..=2 {
        stage.connect(&one).await;
        assert_eq!((one.call().await, one.status().await), (ann(), ("active", None)));
        stage.server.revoke().await;
        stage.advance(LIFE).await;
        let uses = join_all((0..10).map(|n| [&one, &two][n % 2].fresh())).await;
        let why = "it has to be connected again: its provider says invalid_grant: grant request is invalid";
        for used in uses {
            assert_eq!(used.map(|_| ()).unwrap_err(), why);
        }
        let reason = "its provider says invalid_grant: grant request is invalid";
        assert_eq!(two.status().await, ("needs_consent", Some(reason.into())));
        assert_eq!(stage.server.refused().await.len(), times, "nobody asks again");
        let door = "Please connect calendar again: its access has ended: its provider says invalid_grant: grant request is invalid";
        assert_eq!(one.call().await, Err(door.into()));
        let told = "The account behind the credential `calendar` refuses to be used any longer. Connect the account, and it \
            works again. A task that comes to it before is paused until then. The reason: its provider says invalid_grant: grant request is invalid.";
        let notice = ("Please connect calendar again".to_owned(), told.to_owned());
        assert_eq!(one.notices().await, vec![notice; times]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoint_that_hangs_costs_the_first_use_some_seconds_and_the_others_nothing() {
    let stage = OAuthHarness::on_sqlite().await;
    let one = stage.instance().await;
    stage.connect(&one).await;
    let old = one.token("access_token").await;
    stage.advance(due()).await;
    stage.server.fault("hang", 1, 0).await;
    assert_eq!(text(&one.fresh().await.unwrap(), "access_token"), old);
    assert_eq!(text(&one.fresh().await.unwrap(), "access_token"), old);
    assert_eq!(stage.server.asked().await, 2, "the code, and one refresh: for a while nobody asks again");
    stage.advance(to_delta(LEASE)).await;
    assert_ne!(text(&one.fresh().await.unwrap(), "access_token"), old);
    assert_eq!(one.call().await, ann());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_whose_time_is_over_before_its_token_is_there_was_never_sent_and_says_so() {
    let stage = OAuthHarness::on_sqlite().await;
    let one = stage.instance().await;
    stage.connect(&one).await;
    stage.advance(LIFE + TimeDelta::seconds(1)).await;
    stage.server.fault("slow", 1, 2000).await;
    let told = one.fetch(stage.server.url("/me"), Duration::from_millis(300)).await.unwrap_err();
    let busy = "The credential calendar can't be had now: to have it takes longer than the request may";
    assert_eq!(told, busy);
    let uses =
        one.store.credential_uses(&Scope::Every, &UseFilter { limit: 10, ..UseFilter::default() }).await.unwrap();
    assert_eq!(uses.iter().map(|used| used.outcome.as_str()).collect::<Vec<_>>(), ["busy"]);
}

#[tokio::test]
async fn refresh_reports_an_endpoint_that_is_down_and_retries_at_the_next_use() {
    let stage = OAuthHarness::on_sqlite().await;
    let one = stage.instance().await;
    one.recipient().await;
    stage.connect(&one).await;
    stage.advance(LIFE).await;
    stage.server.fault("down", 2, 0).await;
    for _ in 0..2 {
        let why = one.fresh().await.map(|_| ()).unwrap_err();
        assert_eq!(why, "it can't be renewed now: its token endpoint: it answers 503 Service Unavailable");
    }
    assert_eq!((one.status().await, one.notices().await), (("active", None), vec![]));
    assert_eq!(one.call().await, ann());
}

#[tokio::test]
async fn wrong_client_secret_is_the_operator_s_to_correct_and_no_reason_to_connect_again() {
    let stage = OAuthHarness::on_postgres().await;
    let right = stage.instance().await;
    stage.connect(&right).await;
    right.recipient().await;
    stage.advance(LIFE).await;
    let mut wrong = stage.providers.clone();
    wrong.get_mut("calendar").unwrap().client_secret = Some(Secret::new("canary-secret"));
    let wrong = stage.instance_with(&wrong).await;
    for _ in 0..2 {
        let why = wrong.fresh().await.map(|_| ()).unwrap_err();
        assert_eq!(
            why,
            "it can't be renewed: its provider does not accept the client `reveille`: invalid_client: client authentication failed"
        );
    }
    let operator = "The credential calendar can't be used before whoever runs this service has put something right: ";
    let told = wrong.call().await.unwrap_err();
    assert!(told.starts_with(&format!("{operator}it can't be renewed: its provider does not accept")), "{told}");
    // what the operator took out of the configuration
    let without = stage.instance_with(&Default::default()).await;
    let why = without.fresh().await.map(|_| ()).unwrap_err();
    assert_eq!(why, "it can't be renewed: the operator has not described it in [oauth.calendar]");
    assert_eq!(without.call().await.unwrap_err(), format!("{operator}{why}"));
    let uses =
        right.store.credential_uses(&Scope::Every, &UseFilter { limit: 2, ..UseFilter::default() }).await.unwrap();
    assert!(uses.iter().all(|used| used.outcome == "misconfigured"), "{uses:?}");
    assert_eq!((right.status().await, right.notices().await), (("active", None), vec![]));
    assert_eq!(right.call().await, ann());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refresh_lease_of_a_dead_process_expires_and_another_renews() {
    let stage = OAuthHarness::on_postgres().await;
    let two = stage.instance().await;
    stage.connect(&two).await;
    stage.advance(LIFE).await;
    stage.server.fault("hang", 1, 0).await;
    let (doomed, asked) = (KillableProcess::new(), stage.server.asked().await);
    let one = doomed.within(stage.instance()).await;
    doomed.start(async move { one.call().await });
    while stage.server.asked().await == asked {}
    doomed.kill();

    let waiting = tokio::spawn({
        let two = two.clone();
        async move { two.call().await }
    });
    tokio::task::yield_now().await;
    assert_eq!(stage.server.granted("refresh_token").await, 0, "the dead one's lease holds");
    stage.advance(to_delta(LEASE)).await;
    assert_eq!(waiting.await.unwrap(), ann());
    assert_eq!(stage.server.granted("refresh_token").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refresh_outlives_the_caller_that_waits_for_it() {
    let stage = OAuthHarness::on_sqlite().await;
    let one = stage.instance().await;
    stage.connect(&one).await;
    let old = one.token("access_token").await;
    stage.advance(LIFE).await;
    stage.server.fault("slow", 1, 500).await;
    let asked = stage.server.asked().await;
    let cancelled = tokio::spawn({
        let one = one.clone();
        async move { one.fresh().await }
    });
    while stage.server.asked().await == asked {}
    cancelled.abort();
    assert_ne!(text(&one.fresh().await.unwrap(), "access_token"), old);
    assert_eq!((stage.server.granted("refresh_token").await, stage.server.refused().await), (1, vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answer_that_is_lost_on_the_way_costs_the_refresh_token_and_is_said() {
    let stage = OAuthHarness::on_sqlite().await;
    let one = stage.instance().await;
    one.recipient().await;
    stage.connect(&one).await;
    stage.advance(due()).await;
    stage.server.fault("lose", 1, 0).await;
    assert_eq!(one.call().await, ann(), "the old token is good for a while");
    assert_eq!(stage.server.granted("refresh_token").await, 1, "the provider has rotated");
    stage.advance(to_delta(LEASE)).await;
    // this provider takes a spent refresh token for a stolen one
    let why = one.fresh().await.map(|_| ()).unwrap_err();
    assert!(why.starts_with("it has to be connected again: its provider says invalid_grant"), "{why}");
    assert_eq!((one.status().await.0, one.notices().await.len()), ("needs_consent", 1));
}

#[tokio::test]
async fn token_without_refresh_token_is_used_until_it_expires() {
    let stage = OAuthHarness::on_sqlite().await;
    let one = stage.instance().await;
    one.recipient().await;
    stage.connect(&one).await;
    let mut document: Value = serde_json::from_str(one.stored().await.1.expose()).unwrap();
    document.as_object_mut().unwrap().remove("refresh_token");
    one.put(&document, json!({ "provider": "calendar" }), Some(stage.clock.now() + LIFE)).await;
    stage.advance(due()).await;
    assert_eq!(one.call().await, ann());
    assert_eq!(
        one.renewed().await.map(|_| ()).unwrap_err(),
        "it holds no refresh token, so it can't be renewed",
        "the API may have its own reasons to refuse"
    );
    assert_eq!(one.status().await.0, "active");
    stage.advance(TimeDelta::seconds(30)).await;
    assert_eq!(
        one.fresh().await.map(|_| ()).unwrap_err(),
        "it has to be connected again: it has expired, and there is no refresh token to renew it with"
    );
    assert_eq!((one.status().await.0, one.notices().await.len()), ("needs_consent", 1));
}

/// A process that can be killed: a runtime of its own.
struct KillableProcess(tokio::runtime::Runtime);

impl KillableProcess {
    fn new() -> KillableProcess {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        KillableProcess(runtime.expect("a runtime"))
    }

    async fn within(&self, building: impl Future<Output = Instance>) -> Instance {
        let _in_it = self.0.enter();
        building.await
    }

    fn start<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) {
        drop(self.0.spawn(work));
    }

    fn kill(self) {
        self.0.shutdown_background();
    }
}
