//! Rotation under load, broken off again and again: readers and writers never find a credential that does not open.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use reveille::base::id::{Scope, Tenant};
use reveille::base::secret::Secret;
use reveille::domain::credential::Reference;
use reveille::domain::notification::{Addresses, PushAddress, Recipient, SlackAddress, WebhookAddress};
use reveille::ports::channel::{live, push, slack, webhook};
use reveille::ports::vault::rotation::{Cursor, RotationCounts, locked_out, rotate, survey};
use reveille::ports::vault::{SealedPlace, Vault};
use reveille::store::{CredentialRowDraft, Store, StoreError, StoredCredential, next_generation};
use serde_json::json;
use uuid::Uuid;

use crate::conformance::credentials::{credential, vault};
use crate::conformance::on_both;
use crate::conformance::world::StoreHarness;

const CREDENTIALS: u64 = 400;
const RECIPIENTS: u64 = 30;
const TASKS: u64 = 30;
const MESSAGES: u64 = 30;
const SLACK: &str = "https://hooks.slack.com/services/T0/B0/x";
const BROWSERS: [&str; 2] = ["https://push.example.org/1", "https://push.example.org/2"];

on_both!(
    under_load_and_broken_off_again_and_again_every_credential_opens_at_every_moment,
    unrewrappable_secret_is_told_and_left_as_it_is,
    keys_that_open_nothing_of_what_is_stored_are_told_with_those_that_are_needed,
);

fn sealed(vault: &Vault, name: &str, generation: i64, written: u64) -> CredentialRowDraft {
    let reference = Reference::parse(name).unwrap();
    let document = Secret::new(json!({ "name": name, "written": written }).to_string());
    let document = vault.seal_document("a", &reference, generation, &document, None).unwrap();
    CredentialRowDraft {
        service: reference.service,
        account_name: reference.account,
        document: Some(document),
        ..credential("a")
    }
}

fn name(number: u64) -> String {
    format!("service{}/account{number}", number % 7)
}

async fn read(store: &Store, name: &str) -> StoredCredential {
    let Reference { service, account } = Reference::parse(name).unwrap();
    store.get_credential(&Scope::Every, "a", &service, &account).await.unwrap()
}

/// How often it was written, by what its document says; it must open.
fn opened(vault: &Vault, stored: &StoredCredential, name: &str) -> u64 {
    let text = vault.open_document(stored).unwrap_or_else(|error| panic!("{name} does not open: {error}"));
    let document: serde_json::Value = serde_json::from_str(text.expose()).unwrap();
    assert_eq!(document["name"], name);
    document["written"].as_u64().unwrap()
}

/// Recipients, tasks and messages that have a secret, under the vault's first key.
async fn others(world: &StoreHarness, vault: &Vault) {
    for number in 0..RECIPIENTS {
        let tenant = format!("t{number:03}");
        let sealed_secret = webhook::seal_secret(vault, &tenant, &Secret::new("secret")).unwrap();
        let webhook = Some(WebhookAddress { url: "https://hooks.example.org".into(), sealed_secret });
        let sealed_url = slack::seal_url(vault, &tenant, &Secret::new(SLACK)).unwrap();
        let browser = |endpoint: &str| PushAddress::WebPush {
            endpoint: endpoint.into(),
            p256dh: "a key".into(),
            sealed_auth: push::seal_auth(vault, &tenant, endpoint, &Secret::new(endpoint)).unwrap(),
        };
        let topic = PushAddress::Ntfy { topic: "ann".into(), server: None };
        let recipient = Recipient {
            timezone: chrono_tz::Tz::UTC,
            locale: "en".into(),
            addresses: Addresses {
                webhook,
                slack: Some(SlackAddress::Webhook { sealed_url }),
                push: vec![browser(BROWSERS[0]), topic, browser(BROWSERS[1])],
                ..Addresses::default()
            },
            fallback: vec![],
            quiet: Default::default(),
            verified: Default::default(),
        };
        world.store.put_recipient(&Scope::Every, &tenant, &recipient, None).await.unwrap();
    }
    for _ in 0..TASKS {
        let place = SealedPlace::task("a", "webhook", "secret");
        let secret = vault.seal(&place.context(), &Secret::new("secret")).unwrap();
        let config = json!({ "executor": "webhook", "action": { "config": { "sealed_secret": secret } } });
        world.task_with("a", json!({ "interval": "1h" }), config).await;
    }
    for number in 0..MESSAGES {
        let id = Uuid::from_u128(u128::from(number) + 1);
        let sealed = vault.seal(&SealedPlace::live("a", id).context(), &Secret::new("a message")).unwrap();
        world.store.put_live_message(&tenant(), id, false, &sealed).await.unwrap();
    }
}

fn tenant() -> Tenant {
    Tenant::new("a").unwrap()
}

/// Reads every secret of recipients and sessions as its channel does.
async fn assert_channels_read(world: &StoreHarness, vault: &Vault) {
    for row in world.store.sealed_recipients("", 99).await.unwrap() {
        let addresses = world.store.get_recipient(&Scope::Every, &row.id).await.unwrap().recipient.addresses;
        let opened =
            |place: SealedPlace, sealed: &str| vault.unseal(&place.context(), sealed).unwrap().expose().to_owned();
        assert_eq!(opened(SealedPlace::webhook(&row.id), &addresses.webhook.unwrap().sealed_secret), "secret");
        let Some(SlackAddress::Webhook { sealed_url }) = addresses.slack else { panic!("no address of Slack") };
        assert_eq!(opened(SealedPlace::slack(&row.id), &sealed_url), SLACK);
        let browsers = addresses.push.iter().filter_map(|address| match address {
            PushAddress::WebPush { endpoint, sealed_auth, .. } => Some((endpoint, sealed_auth)),
            PushAddress::Ntfy { .. } => None,
        });
        let read: Vec<_> = browsers.map(|(end, sealed)| opened(SealedPlace::push(&row.id, end), sealed)).collect();
        assert_eq!(read, BROWSERS);
    }
    for number in 0..MESSAGES {
        let id = Uuid::from_u128(u128::from(number) + 1);
        let sealed = world.store.take_live_message(&tenant(), id).await.unwrap().expect("a message");
        assert_eq!(live::open(vault, &tenant(), id, &sealed).unwrap().expose(), "a message");
    }
}

async fn under_load_and_broken_off_again_and_again_every_credential_opens_at_every_moment(world: &StoreHarness) {
    let (old, both, new) = (vault(&["old"]), vault(&["new", "old"]), vault(&["new"]));
    let other = world.other_instance().await;
    let first = next_generation(None, world.now());
    for number in 0..CREDENTIALS {
        world.store.put_credential(&Scope::Every, &sealed(&old, &name(number), first, 0), 0).await.unwrap();
    }
    others(world, &old).await;

    let stop = Arc::new(AtomicBool::new(false));
    let (reads, writes) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut load = vec![];
    for worker in 0..2 {
        let (store, vault, stop, reads) = (world.store.clone(), both.clone(), stop.clone(), reads.clone());
        load.push(tokio::spawn(async move {
            let mut seen = vec![0; CREDENTIALS as usize];
            let mut number = worker * 131;
            while !stop.load(Ordering::Relaxed) {
                number = (number * 7 + 3 + worker) % CREDENTIALS;
                let written = opened(&vault, &read(&store, &name(number)).await, &name(number));
                assert!(written >= seen[number as usize], "a document of {} has come back", name(number));
                seen[number as usize] = written;
                reads.fetch_add(1, Ordering::Relaxed);
            }
        }));
    }
    for worker in 0..2 {
        let (store, vault, stop, writes) = (other.clone(), both.clone(), stop.clone(), writes.clone());
        load.push(tokio::spawn(async move {
            let mut number = worker * 57;
            while !stop.load(Ordering::Relaxed) {
                number = (number * 11 + 5 + worker) % CREDENTIALS;
                let stored = read(&store, &name(number)).await;
                let written = opened(&vault, &stored, &name(number));
                let generation = next_generation(Some(&stored), stored.credential.updated_at);
                let next = sealed(&vault, &name(number), generation, written + 1);
                match store.put_credential(&Scope::Every, &next, stored.credential.version).await {
                    Ok(_) => writes.fetch_add(1, Ordering::Relaxed),
                    Err(StoreError::Conflict(_)) => 0,
                    Err(error) => panic!("{error}"),
                };
            }
        }));
    }

    // one instance after the other begins, and dies in the middle
    let mut broken_off = 0;
    for round in 0_u64.. {
        let (store, vault, clock) =
            (if round % 2 == 0 { world.store.clone() } else { other.clone() }, both.clone(), world.clock.clone());
        let rotating = tokio::spawn(async move { rotate(&store, &vault, &clock, Cursor::Start).await.unwrap() });
        // longer each time, so that it comes to its end at last
        let patience = std::time::Duration::from_millis(20 + 60 * round);
        let abort = rotating.abort_handle();
        match tokio::time::timeout(patience, rotating).await {
            Err(_) => {
                abort.abort();
                broken_off += 1;
            }
            Ok(done) => {
                let done = done.unwrap();
                assert_eq!((done.failed, done.next), (RotationCounts::default(), None));
                break;
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    for worker in load {
        worker.await.unwrap();
    }
    assert!(broken_off > 0, "it was never broken off");
    let (reads, writes) = (reads.load(Ordering::Relaxed), writes.load(Ordering::Relaxed));
    assert!(reads > 50 && writes > 20, "{reads} reads, {writes} writes");

    let sealed = survey(&world.store).await.unwrap();
    let all = RotationCounts { credentials: CREDENTIALS, recipients: RECIPIENTS, tasks: TASKS, messages: MESSAGES };
    assert_eq!(sealed, [("new".to_owned(), all)].into());
    for number in 0..CREDENTIALS {
        opened(&new, &read(&world.store, &name(number)).await, &name(number));
    }
    assert_channels_read(world, &new).await;
    other.close().await;
}

async fn unrewrappable_secret_is_told_and_left_as_it_is(world: &StoreHarness) {
    let (lost, both) = (vault(&["lost"]), vault(&["new", "old"]));
    let first = next_generation(None, world.now());
    world.store.put_credential(&Scope::Every, &sealed(&lost, "shop", first, 0), 0).await.unwrap();
    world.store.put_credential(&Scope::Every, &sealed(&vault(&["old"]), "mail", first, 0), 0).await.unwrap();
    // damaged: of another row
    world.store.put_credential(&Scope::Every, &sealed(&vault(&["old"]), "other", first, 0), 0).await.unwrap();
    let damaged = read(&world.store, "mail").await.sealed;
    world.plant(&format!("update credentials set sealed = '{damaged}' where service = 'other'")).await;
    others(world, &lost).await;
    let before = read(&world.store, "shop").await;
    let done = rotate(&world.store, &both, &world.clock, Cursor::Start).await.unwrap();
    assert_eq!(done.rewrapped, RotationCounts { credentials: 1, ..RotationCounts::default() });
    assert_eq!(
        done.failed,
        RotationCounts { credentials: 2, recipients: RECIPIENTS, tasks: TASKS, messages: MESSAGES }
    );
    let failures: Vec<_> =
        done.failures.iter().map(|failure| (failure.subject.as_str(), failure.reason.as_str())).collect();
    assert_eq!(
        failures[..2],
        [
            ("credential shop", "sealed with the master key `lost`, which is not in vault.master_keys"),
            ("credential other", "can't be opened: damaged, or moved from where it belongs"),
        ]
    );
    assert_eq!(failures.len(), 20);
    assert_eq!(read(&world.store, "shop").await, before);
    // nothing is written when nothing is left to do
    let again = rotate(&world.store, &both, &world.clock, Cursor::Start).await.unwrap();
    assert_eq!((again.rewrapped, again.failed), (RotationCounts::default(), done.failed));
}

async fn keys_that_open_nothing_of_what_is_stored_are_told_with_those_that_are_needed(world: &StoreHarness) {
    let needed = async |vault: &Vault| locked_out(&world.store, vault).await.unwrap().unwrap_or_default();
    let (old, both, new) = (vault(&["old"]), vault(&["new", "old"]), vault(&["new"]));
    assert_eq!(needed(&new).await, [].into(), "a store without secrets needs no key");
    world.task(json!({ "interval": "1h" })).await;
    assert_eq!(needed(&new).await, [].into(), "a task without a secret needs none either");
    let message = Uuid::from_u128(7);
    let sealed_message =
        old.seal(&SealedPlace::live("a", message).context(), &Secret::new("gone within the hour")).unwrap();
    world.store.put_live_message(&tenant(), message, false, &sealed_message).await.unwrap();
    assert_eq!(needed(&new).await, [].into());

    // each kind by itself
    let place = SealedPlace::task("a", "webhook", "secret");
    let secret = old.seal(&place.context(), &Secret::new("secret")).unwrap();
    let config = json!({ "executor": "webhook", "action": { "config": { "sealed_secret": secret } } });
    world.task_with("a", json!({ "interval": "1h" }), config).await;
    assert_eq!(needed(&new).await, ["old".to_owned()].into());
    assert_eq!((needed(&old).await, needed(&both).await), ([].into(), [].into()), "a rotation is possible");
    let older = vault(&["older"]);
    let sealed_secret = webhook::seal_secret(&older, "t", &Secret::new("secret")).unwrap();
    let addresses = Addresses {
        webhook: Some(WebhookAddress { url: "https://hooks.example.org".into(), sealed_secret }),
        ..Addresses::default()
    };
    let recipient = Recipient {
        timezone: chrono_tz::Tz::UTC,
        locale: "en".into(),
        addresses,
        fallback: vec![],
        quiet: Default::default(),
        verified: Default::default(),
    };
    world.store.put_recipient(&Scope::Every, "t", &recipient, None).await.unwrap();
    assert_eq!(needed(&new).await, ["old".to_owned(), "older".into()].into());
    assert_eq!(needed(&vault(&["new", "older"])).await, [].into());
    let first = next_generation(None, world.now());
    world.store.put_credential(&Scope::Every, &sealed(&vault(&["oldest"]), "shop", first, 0), 0).await.unwrap();
    assert_eq!(needed(&new).await, ["old".to_owned(), "older".into(), "oldest".into()].into());
    assert_eq!(needed(&vault(&["oldest"])).await, [].into());

    // another key under an id that is needed opens nothing either
    let other = reveille::ports::vault::KeySource::value("old:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
    let settings = reveille::ports::vault::Settings { master_keys: vec![other], accept_lost_keys: false };
    let other = Vault::open(&settings, reveille::ports::vault::WithoutKeys::Refuse).unwrap().0;
    assert_eq!(needed(&other).await, ["old".to_owned(), "older".into(), "oldest".into()].into());
}
