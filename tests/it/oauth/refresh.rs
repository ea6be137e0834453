//! Renewing: ahead of the end, one at a time over all instances, the rotated token kept.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::TimeDelta;
use futures::future::join_all;
use reveille::base::clock::pause;
use reveille::domain::credential::OAuth;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::timeout;

use super::harness::{Instance, LIFE, OAuthHarness, ann, text};
use crate::support::oauth::{BODY_CLIENT, secret_of};

/// How long an answer may take that nobody waits for: less than a renewal may.
const PATIENCE: Duration = Duration::from_secs(8);

/// Twenty uses at once, spread over these.
async fn use_twenty_times(instances: &[&Instance]) -> Vec<Result<(u16, Value), String>> {
    let uses = (0..20).map(|n| {
        let instance = instances[n % instances.len()].clone();
        tokio::spawn(async move { instance.call().await })
    });
    join_all(uses).await.into_iter().map(|used| used.expect("a use")).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refresh_is_single_flight_over_two_instances() {
    let stage = OAuthHarness::on_postgres().await;
    let (one, two) = (stage.instance().await, stage.instance().await);
    stage.connect(&one).await;
    assert_eq!(two.call().await, ann());
    for round in 1..=3 {
        let (access, refresh) = (one.token("access_token").await, one.token("refresh_token").await);
        stage.advance(LIFE + TimeDelta::seconds(1)).await;
        stage.server.fault("slow", 1, 300).await;
        assert_eq!(use_twenty_times(&[&one, &two]).await, vec![ann(); 20]);
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
async fn refresh_is_single_flight_on_sqlite_too() {
    let stage = OAuthHarness::on_sqlite().await;
    let one = stage.instance().await;
    stage.connect(&one).await;
    stage.advance(LIFE + TimeDelta::seconds(1)).await;
    stage.server.fault("slow", 1, 300).await;
    assert_eq!(use_twenty_times(&[&one]).await, vec![ann(); 20]);
    assert_eq!((stage.server.granted("refresh_token").await, stage.server.refused().await), (1, vec![]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_is_renewed_before_its_end_and_the_others_do_not_wait_for_it() {
    let stage = OAuthHarness::on_postgres().await;
    let (one, two) = (stage.instance().await, stage.instance().await);
    stage.connect(&one).await;
    let old = one.token("access_token").await;
    stage.advance(LIFE - TimeDelta::seconds(90)).await;
    assert_eq!(text(&one.fresh().await.unwrap(), "access_token"), old, "a tenth of its life is a minute");
    stage.advance(TimeDelta::seconds(30)).await;
    stage.server.fault("keep", 1, 0).await;
    let first = tokio::spawn({
        let one = one.clone();
        async move { one.fresh().await }
    });
    while stage.server.asked().await < 2 {}
    let other = timeout(PATIENCE, two.fresh()).await.expect("the old token is good, nobody waits");
    assert_eq!(text(&other.unwrap(), "access_token"), old);
    stage.server.release().await;
    let new = text(&first.await.unwrap().unwrap(), "access_token");
    assert_ne!(new, old);
    assert_eq!(text(&two.fresh().await.unwrap(), "access_token"), new);
    assert_eq!(stage.server.granted("refresh_token").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_that_the_api_refuses_is_renewed_once_for_all_who_were_refused() {
    let stage = OAuthHarness::on_sqlite().await;
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
async fn owner_s_own_token_endpoint_is_asked_with_the_secret_of_the_document_and_through_the_egress() {
    let stage = OAuthHarness::on_sqlite().await;
    let body_client = super::harness::provider(&stage.server, BODY_CLIENT);
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

    one.put(&renewed, oauth("http://id.example.org/token".into()), Some(stage.clock.now())).await;
    let open = "it can't be renewed: its token endpoint: it is sent by https only, but to this machine and to what the \
                operator has opened";
    assert_eq!(one.fresh().await.unwrap_err(), open);

    one.put(&renewed, oauth("https://169.254.169.254/token".into()), Some(stage.clock.now())).await;
    let denied = one.fresh().await.unwrap_err();
    assert!(denied.starts_with("it can't be renewed: its token endpoint: the address is not allowed"), "{denied}");
}

/// The fields that an owner writes in the place of a credential: host, document, OAuth.
type CredentialFields = (String, Option<Value>, Option<OAuth>);

/// A host that holds the first request until the owner has written this, refuses it, and would take the next ones. What
/// it was sent, and what became of the use.
async fn written_while_refused(
    one: &Instance,
    written: impl FnOnce(&str) -> CredentialFields,
) -> (Vec<String>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let old = json!({ "access_token": "old-access", "refresh_token": "old-refresh" });
    let provider = OAuth { provider: Some("calendar".into()), ..OAuth::default() };
    one.put_at(host.clone(), Some(&old), Some(provider), None).await;
    let (sent, owner) = (Arc::new(Mutex::new(vec![])), one.clone());
    let (heard, mut writes) = (sent.clone(), Some(written(&host)));
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            let request = String::from_utf8_lossy(&request[..length]).into_owned();
            let token = request.lines().find_map(|line| line.strip_prefix("authorization: ")).unwrap_or("none");
            heard.lock().unwrap().push(token.to_owned());
            let status = match writes.take() {
                Some((host, document, oauth)) => {
                    owner.put_at(host, document.as_ref(), oauth, None).await;
                    "401 Unauthorized"
                }
                None => "200 OK",
            };
            let answer = format!("HTTP/1.1 {status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    });
    let outcome = one.fetch(format!("http://{host}/me"), Duration::from_secs(30)).await;
    serving.abort();
    let sent = sent.lock().unwrap().clone();
    (sent, outcome.map_or_else(|why| why, |status| status.to_string()))
}

#[tokio::test]
async fn credential_written_while_the_old_token_is_refused_is_not_sent_to_the_old_host() {
    let stage = OAuthHarness::on_sqlite().await;
    let one = stage.instance().await;
    let provider = || Some(OAuth { provider: Some("calendar".into()), ..OAuth::default() });
    let new = || Some(json!({ "access_token": "new-access", "refresh_token": "new-refresh" }));
    let elsewhere = || "api2.example.org".to_owned();
    let busy = "The credential calendar can't be had now: it can't be renewed now: it was written while it was renewed";
    let refused = (vec!["Bearer old-access".to_owned()], busy.to_owned());
    assert_eq!(written_while_refused(&one, |_| (elsewhere(), new(), provider())).await, refused);
    assert_eq!(written_while_refused(&one, |_| (elsewhere(), None, provider())).await, refused);
    // a plain one is nothing to renew, and nothing is said of it
    let plain = |host: &str| (host.to_owned(), Some(json!({ "access_token": "plain-access" })), None);
    assert_eq!(written_while_refused(&one, plain).await, refused);
    assert_eq!(one.status().await, ("active", None));
    assert_eq!((one.token("access_token").await, stage.server.asked().await), ("plain-access".into(), 0));
    // bound as it was: the new one is for this host as well
    let (sent, outcome) = written_while_refused(&one, |host| (host.to_owned(), new(), provider())).await;
    assert_eq!((sent, outcome.as_str()), (vec!["Bearer old-access".into(), "Bearer new-access".into()], "200"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn token_that_is_renewed_while_its_owner_binds_it_elsewhere_is_kept_and_not_handed_out() {
    let stage = OAuthHarness::on_sqlite().await;
    let one = stage.instance().await;
    stage.connect(&one).await;
    let old = one.token("access_token").await;
    stage.server.fault("keep", 1, 0).await;
    let renewing = tokio::spawn({
        let one = one.clone();
        async move { one.renewed().await }
    });
    while stage.server.asked().await < 2 {}
    let oauth = one.stored().await.0.credential.oauth;
    one.put_at("api2.example.org".into(), None, oauth, None).await;
    stage.server.release().await;
    let told = renewing.await.unwrap().unwrap_err();
    assert_eq!(told, "it can't be renewed now: it was written while it was renewed");
    assert_ne!(one.token("access_token").await, old);
}

/// No document is written from now on; on Postgres as if the database was away.
const NO_WRITE: (&str, &str) = (
    "create trigger no_write before update of sealed on credentials begin select raise(abort, 'no'); end",
    "create function no_write() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$;
     create trigger no_write before update of sealed on credentials for each row execute function no_write()",
);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_token_is_handed_out_once_it_is_stored() {
    for stage in [OAuthHarness::on_sqlite().await, OAuthHarness::on_postgres().await] {
        let one = stage.instance().await;
        stage.connect(&one).await;
        let old = one.token("access_token").await;
        stage.define(NO_WRITE.0, NO_WRITE.1).await;
        stage.advance(LIFE + TimeDelta::seconds(1)).await;
        let using = tokio::spawn({
            let one = one.clone();
            async move { one.fresh().await }
        });
        while stage.server.granted("refresh_token").await < 1 {
            pause(Duration::from_millis(5)).await;
        }
        pause(Duration::from_millis(700)).await;
        assert_eq!(one.token("access_token").await, old);
        if stage.is_postgres() {
            assert!(!using.is_finished(), "it is offered to the store, and nobody has it before");
            stage.define("", "drop trigger no_write on credentials").await;
            let given = text(&using.await.unwrap().unwrap(), "access_token");
            assert_eq!(one.token("access_token").await, given);
            assert_ne!(given, old);
        } else {
            // it never can be
            using.await.unwrap().unwrap_err();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn write_that_is_told_as_failed_and_was_done_is_found() {
    let stage = OAuthHarness::on_postgres().await;
    let proxy = stage.proxy().await;
    let one = stage.instance_by(&proxy).await;
    stage.connect(&one).await;
    let old = one.token("access_token").await;
    stage.advance(LIFE + TimeDelta::seconds(1)).await;
    stage.server.fault("keep", 1, 0).await;
    let using = tokio::spawn({
        let one = one.clone();
        async move { one.fresh().await }
    });
    while stage.server.asked().await < 2 {
        pause(Duration::from_millis(5)).await;
    }
    proxy.lose_commits(1);
    stage.server.release().await;
    while proxy.lost_commits() < 1 {
        pause(Duration::from_millis(5)).await;
    }
    proxy.lose_commits(0);
    let given = text(&using.await.unwrap().unwrap(), "access_token");
    assert_eq!((one.token("access_token").await, stage.server.granted("refresh_token").await), (given.clone(), 1));
    assert_ne!(given, old);
}
