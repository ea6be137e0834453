//! The real binary is killed while it changes the master key; it is started again and goes on.

use std::path::Path;

use reveille::base::clock::{Clock, pause};
use reveille::base::id::Scope;
use reveille::base::secret::{Secret, SecretUrl};
use reveille::domain::credential::Reference;
use reveille::ports::vault;
use reveille::ports::vault::rotation::RotationCounts;
use reveille::ports::vault::{KeySource, Vault, WithoutKeys};
use reveille::store::{CredentialRowDraft, Settings, Store, next_generation};
use serde_json::{Value, json};

use crate::support::binary::Service;
use crate::support::postgres::Database;

const OLD: &str = "old:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const NEW: &str = "new:HwECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const CREDENTIALS: u64 = 1_500;
const LOOK: std::time::Duration = std::time::Duration::from_millis(2);

#[tokio::test]
async fn on_sqlite_a_killed_rotation_loses_nothing_and_goes_on() {
    let service = Service::new();
    let url = format!("sqlite://{}/data/reveille.db", service.dir.path().display());
    goes_on(service, &url).await;
}

#[tokio::test]
async fn on_postgres_a_killed_rotation_loses_nothing_and_goes_on() {
    let database = Database::empty().await;
    let service = Service::new().with("REVEILLE_DATABASE__URL", database.url.clone());
    goes_on(service, &database.url).await;
}

fn settings(url: &str) -> Settings {
    Settings { url: SecretUrl::new(url), ..Settings::default() }
}

fn vault(keys: &[&str]) -> Vault {
    let settings = vault::Settings {
        master_keys: keys.iter().map(|key| KeySource::value(*key)).collect(),
        accept_lost_keys: false,
    };
    Vault::open(&settings, WithoutKeys::Refuse).unwrap().0
}

/// Credentials as a service with the old key alone has made them.
async fn fill(url: &str) {
    let store = Store::open(&settings(url), Path::new("/nowhere"), Clock::system(), |_| {}).await.unwrap();
    let old = vault(&[OLD]);
    for number in 0..CREDENTIALS {
        let reference = Reference { service: "shop".into(), account: format!("a{number}") };
        let generation = next_generation(None, store.clock().now());
        let document = Secret::new(json!({ "key": format!("canary {number}") }).to_string());
        let new = CredentialRowDraft {
            tenant_id: "ann".into(),
            service: reference.service.clone(),
            account_name: reference.account.clone(),
            hosts: vec![],
            inject: None,
            oauth: None,
            document: Some(old.seal_document("ann", &reference, generation, &document, None).unwrap()),
            by: "service".into(),
        };
        store.put_credential(&Scope::Every, &new, 0).await.unwrap();
    }
    store.close().await;
}

async fn look_at(url: &str) -> Store {
    Store::open_read_only(&settings(url), Path::new("/nowhere"), Clock::system(), |_| {}).await.unwrap()
}

/// How many are under the new key, looked at beside the running service.
async fn under_new(look: &Store) -> u64 {
    let keys = look.keys_of_credentials().await.unwrap();
    keys.iter().find(|(id, _)| id == "new").map_or(0, |(_, count)| count.unsigned_abs())
}

/// The service opens the document to hold it against the way of use.
async fn opens(client: &reqwest::Client, url: &str, token: &str, number: u64) -> reqwest::Result<u16> {
    let path = format!("{url}/v1/credentials/shop/a{number}?tenant_id=ann");
    let body = json!({ "inject": { "as": "bearer", "from": "/key" } });
    client.put(path).bearer_auth(token).json(&body).send().await.map(|answer| answer.status().as_u16())
}

/// As the command line does it: on to the end. The last answer, and how many were rewrapped in all.
async fn rotate(client: &reqwest::Client, url: &str, token: &str) -> reqwest::Result<(Value, u64)> {
    let path = format!("{url}/v1/credentials/rotate-key");
    let (mut body, mut rewrapped) = (json!({}), 0);
    loop {
        let answer: Value = client.post(&path).bearer_auth(token).json(&body).send().await?.json().await?;
        rewrapped += answer["rewrapped"]["credentials"].as_u64().unwrap();
        if answer["next_cursor"].is_null() {
            return Ok((answer, rewrapped));
        }
        body = json!({ "cursor": answer["next_cursor"] });
    }
}

async fn goes_on(service: Service, url: &str) {
    std::fs::create_dir_all(service.dir.path().join("data")).unwrap();
    fill(url).await;
    let keys = |keys: &[&str]| ("REVEILLE_VAULT__MASTER_KEYS", json!(keys).to_string());
    let client = reveille::ports::egress::operator_client(std::time::Duration::from_secs(60));
    let (name, both) = keys(&[NEW, OLD]);
    let mut service = service.with(name, both);
    service.start().await;
    let token = service.admin_token().unwrap().to_owned();

    let look = look_at(url).await;
    let mut before = 0;
    for kill in 1..=3 {
        let begun = tokio::spawn({
            let (client, address, token) = (client.clone(), service.url().to_owned(), token.clone());
            async move { rotate(&client, &address, &token).await.is_ok() }
        });
        let address = service.url().to_owned();
        // all the while each one that is asked for opens
        let mut asked = kill * 17;
        while under_new(&look).await < before + 100 {
            asked = (asked * 7 + 1) % CREDENTIALS;
            assert_eq!(opens(&client, &address, &token, asked).await.unwrap(), 200, "a{asked}");
            pause(LOOK).await;
        }
        service.kill().await;
        begun.await.unwrap();
        let done = under_new(&look).await;
        assert!((before + 100..CREDENTIALS).contains(&done), "kill {kill} came at {done}: not in the middle");
        service.start().await;
        // a commit that was under way at the kill may have come after that look
        before = under_new(&look).await;
    }
    for number in (0..CREDENTIALS).step_by(10) {
        assert_eq!(opens(&client, service.url(), &token, number).await.unwrap(), 200, "a{number}");
    }
    let (rest, rewrapped) = rotate(&client, service.url(), &token).await.unwrap();
    let none = json!(RotationCounts::default());
    assert_eq!((&rest["failed"], rewrapped), (&none, CREDENTIALS - before));
    let all = json!(RotationCounts { credentials: CREDENTIALS, ..RotationCounts::default() });
    assert_eq!(rest["keys"][0], json!({ "id": "new", "configured": true, "unused": false, "sealed": all }));
    assert_eq!(rest["keys"][1], json!({ "id": "old", "configured": true, "unused": true, "sealed": none }));
    assert!(service.terminate().await.success());

    // with the new key alone
    let (name, new) = keys(&[NEW]);
    let mut service = service.with(name, new);
    service.start().await;
    assert!(!service.log().contains("canary"));
    let alone = vault(&[NEW]);
    for number in 0..CREDENTIALS {
        let stored = look.get_credential(&Scope::Every, "ann", "shop", &format!("a{number}")).await.unwrap();
        let document = alone.open_document(&stored).unwrap();
        assert_eq!(document.expose(), json!({ "key": format!("canary {number}") }).to_string());
    }
    look.close().await;
    assert_eq!(opens(&client, service.url(), &token, 1).await.unwrap(), 200);
}
