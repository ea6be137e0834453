//! Recipients: one document per tenant, written only over the version that was read.

use reveille::id::Scope;
use reveille::notification::{Addresses, Recipient, WebhookAddress};
use reveille::store::{StoreError, StoredRecipient};

use super::world::{World, only};

on_both!(
    a_recipient_reads_back_as_it_was_written,
    a_version_that_is_not_the_stored_one_is_refused,
    of_two_writers_of_one_version_one_wins,
    a_scope_writes_its_own_only,
);

fn recipient(email: &str) -> Recipient {
    let webhook = WebhookAddress { url: "https://hooks.example.org/1".into(), sealed_secret: "v1:abc".into() };
    Recipient {
        timezone: chrono_tz::Tz::Asia__Shanghai,
        locale: "zh-CN".into(),
        addresses: Addresses { email: Some(email.into()), webhook: Some(webhook), ..Addresses::default() },
        fallback: vec!["webhook".into(), "email".into()],
        ..Recipient::default()
    }
}

async fn a_recipient_reads_back_as_it_was_written(world: &World) {
    let none = world.store.get_recipient(&Scope::Every, "a").await;
    assert!(matches!(none, Err(StoreError::NotFound)), "{none:?}");
    for version in [1, 2] {
        world.pass(1);
        let recipient = recipient(&format!("ann{version}@example.org"));
        let stored = world.store.put_recipient(&Scope::Every, "a", &recipient, version - 1).await.unwrap();
        assert_eq!(stored, StoredRecipient { recipient, version, updated_at: world.now() });
        assert_eq!(world.store.get_recipient(&only("a"), "a").await.unwrap(), stored);
    }
}

async fn a_version_that_is_not_the_stored_one_is_refused(world: &World) {
    let put = async |version: i64| world.store.put_recipient(&Scope::Every, "a", &recipient("x@y.z"), version).await;
    let early = put(1).await;
    assert!(matches!(early, Err(StoreError::Conflict(_))), "there is none yet: {early:?}");
    put(0).await.unwrap();
    for version in [0, 2] {
        let refused = put(version).await;
        assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    }
    assert_eq!(world.store.get_recipient(&Scope::Every, "a").await.unwrap().version, 1);
}

async fn of_two_writers_of_one_version_one_wins(world: &World) {
    let other = world.other_instance().await;
    for version in 0..5 {
        let (ours, theirs) = (recipient("ours@example.org"), recipient("theirs@example.org"));
        let (one, two) = tokio::join!(
            world.store.put_recipient(&Scope::Every, "a", &ours, version),
            other.put_recipient(&Scope::Every, "a", &theirs, version)
        );
        assert_ne!(one.is_ok(), two.is_ok());
        let winner = one.or(two).unwrap();
        assert_eq!(world.store.get_recipient(&Scope::Every, "a").await.unwrap(), winner);
    }
}

async fn a_scope_writes_its_own_only(world: &World) {
    let refused = world.store.put_recipient(&only("b"), "a", &recipient("x@y.z"), 0).await;
    assert!(matches!(refused, Err(StoreError::NotFound)), "{refused:?}");
    world.store.put_recipient(&only("a"), "a", &recipient("x@y.z"), 0).await.unwrap();
}
