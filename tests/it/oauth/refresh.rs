//! Renewing: ahead of the end, one at a time over all instances, the rotated token kept.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use futures::future::join_all;
use serde_json::{Value, json};

use super::stage::{Instance, LIFE, Stage, ann, text};
use crate::support::oauth::{BODY_CLIENT, secret_of};

/// Twenty uses at once, spread over these.
async fn twenty(instances: &[&Instance]) -> Vec<Result<(u16, Value), String>> {
    let uses = (0..20).map(|n| {
        let instance = instances[n % instances.len()].clone();
        tokio::spawn(async move { instance.call().await })
    });
    join_all(uses).await.into_iter().map(|used| used.expect("a use")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_twenty_uses_over_two_instances_one_renews_and_all_get_the_new_token() {
    let stage = Stage::on_postgres().await;
    let (one, two) = (stage.instance().await, stage.instance().await);
    stage.connect(&one).await;
    assert_eq!(two.call().await, ann());
    for round in 1..=3 {
        let (access, refresh) = (one.token("access_token").await, one.token("refresh_token").await);
        stage.advance(LIFE + TimeDelta::seconds(1)).await;
        stage.server.fault("slow", 1, 300).await;
        assert_eq!(twenty(&[&one, &two]).await, vec![ann(); 20]);
        assert_eq!(stage.server.granted("refresh_token").await, round);
        assert_ne!(two.token("access_token").await, access);
        assert_ne!(two.token("refresh_token").await, refresh, "the provider rotates it, and the new one is kept");
    }
    assert_eq!(stage.server.refused().await, [""; 0]);
    let (stored, _) = one.stored().await;
    assert_eq!(stored.credential.expires_at, Some(stage.clock.now() + LIFE));
    assert_eq!((stored.credential.version, stored.credential.status.as_str()), (4, "active"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_sqlite_as_well() {
    let stage = Stage::on_sqlite().await;
    let one = stage.instance().await;
    stage.connect(&one).await;
    stage.advance(LIFE + TimeDelta::seconds(1)).await;
    stage.server.fault("slow", 1, 300).await;
    assert_eq!(twenty(&[&one]).await, vec![ann(); 20]);
    assert_eq!((stage.server.granted("refresh_token").await, stage.server.refused().await), (1, vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_is_renewed_before_its_end_and_the_others_do_not_wait_for_it() {
    let stage = Stage::on_postgres().await;
    let (one, two) = (stage.instance().await, stage.instance().await);
    stage.connect(&one).await;
    let old = one.token("access_token").await;
    stage.advance(LIFE - TimeDelta::seconds(90)).await;
    assert_eq!(text(&one.fresh().await.unwrap(), "access_token"), old, "a tenth of its life is a minute");
    stage.advance(TimeDelta::seconds(30)).await;
    stage.server.fault("slow", 1, 1000).await;
    let first = tokio::spawn({
        let one = one.clone();
        async move { one.fresh().await }
    });
    while stage.server.asked().await < 2 {}
    let begun = Instant::now();
    assert_eq!(text(&two.fresh().await.unwrap(), "access_token"), old);
    assert!(begun.elapsed() < Duration::from_millis(900), "the old token is good, nobody waits");
    let new = text(&first.await.unwrap().unwrap(), "access_token");
    assert_ne!(new, old);
    assert_eq!(text(&two.fresh().await.unwrap(), "access_token"), new);
    assert_eq!(stage.server.granted("refresh_token").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_the_api_refuses_is_renewed_once_for_all_who_were_refused() {
    let stage = Stage::on_sqlite().await;
    let one = stage.instance().await;
    stage.connect(&one).await;
    // nothing says when it ends: it is never renewed ahead
    let tokens: Value = serde_json::from_str(one.stored().await.1.expose()).unwrap();
    let unending = json!({ "access_token": tokens["access_token"], "refresh_token": tokens["refresh_token"] });
    one.put(&unending, json!({ "provider": "calendar" }), None).await;
    stage.advance(LIFE * 2).await;
    assert_eq!(text(&one.fresh().await.unwrap(), "access_token"), tokens["access_token"].as_str().unwrap());
    assert_eq!(stage.server.granted("refresh_token").await, 0);

    let (stored, document) = one.stored().await;
    let refused = (0..5).map(|_| one.refresher.fresh(&stored, document.clone(), true));
    let renewed: BTreeSet<String> =
        join_all(refused).await.into_iter().map(|renewed| text(&renewed.unwrap(), "access_token")).collect();
    assert_eq!((renewed.len(), stage.server.granted("refresh_token").await), (1, 1));
    assert_eq!(one.call().await, ann());

    // nothing says when this one ends, either: the API's 401 does, and the request is sent once more
    let mut unending: Value = serde_json::from_str(one.stored().await.1.expose()).unwrap();
    unending["expires_in"] = Value::Null;
    one.put(&unending, json!({ "provider": "calendar" }), None).await;
    stage.advance(LIFE + TimeDelta::minutes(1)).await;
    assert_eq!((one.call().await, stage.server.granted("refresh_token").await), (ann(), 2));
}

#[tokio::test]
async fn an_owner_s_own_token_endpoint_is_asked_with_the_secret_of_the_document_and_through_the_egress() {
    let stage = Stage::on_sqlite().await;
    let body_client = super::stage::provider(&stage.server, BODY_CLIENT);
    let one = stage.instance_with(&[("calendar".to_owned(), body_client)].into()).await;
    stage.connect(&one).await;
    let mut document: Value = serde_json::from_str(one.stored().await.1.expose()).unwrap();
    document["client_secret"] = json!(secret_of(BODY_CLIENT));
    document["note"] = json!(["stays"]);
    let oauth = |url: String| json!({ "token_url": url, "client_id": BODY_CLIENT, "client_auth": "body" });
    one.put(&document, oauth(stage.server.url("/token")), Some(stage.clock.now())).await;
    let renewed: Value = serde_json::from_str(one.fresh().await.unwrap().expose()).unwrap();
    assert_eq!(renewed["note"], json!(["stays"]));
    assert_eq!(one.call().await, ann());

    one.put(&renewed, oauth("http://169.254.169.254/token".into()), Some(stage.clock.now())).await;
    let denied = one.fresh().await.unwrap_err();
    assert!(denied.starts_with("it can't be renewed: its token endpoint: the address is not allowed"), "{denied}");
}
