//! API tokens: found by their hash, dead at once when revoked.

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::id::{Scope, new_id};
use reveille::store::{StoreError, StoredAnswer, StoredToken};
use uuid::Uuid;

use super::world::{StoreHarness, only};

on_both!(
    token_is_found_by_its_hash,
    hash_is_stored_once,
    revoked_token_says_when_and_stays_so,
    admin_token_counts_until_it_is_revoked,
    tokens_are_listed_newest_first,
);

fn token(tenant: Option<&str>, hash: u8, now: DateTime<Utc>) -> StoredToken {
    StoredToken {
        id: new_id(now),
        tenant_id: tenant.map(Into::into),
        name: "laptop".into(),
        hash: vec![hash; 32],
        scopes: vec!["tasks:write".into(), "runs:read".into()],
        created_at: now,
        expires_at: Some(now + TimeDelta::days(30)),
        revoked_at: None,
        root: None,
    }
}

async fn create(world: &StoreHarness, tenant: Option<&str>, hash: u8) -> StoredToken {
    let token = token(tenant, hash, world.now());
    assert_eq!(world.store.create_token(&token, None).await.unwrap(), StoredAnswer::Done(()));
    token
}

async fn token_is_found_by_its_hash(world: &StoreHarness) {
    let (ours, admins) = (create(world, Some("a"), 1).await, create(world, None, 2).await);
    for token in [&ours, &admins] {
        assert_eq!(world.store.get_token(token.id).await.unwrap().as_ref(), Some(token));
    }
    assert_eq!(world.store.get_token(Uuid::nil()).await.unwrap(), None);
    assert_eq!(world.store.find_token(&[1; 32]).await.unwrap(), Some(ours));
    assert_eq!(world.store.find_token(&[2; 32]).await.unwrap(), Some(admins));
    assert_eq!(world.store.find_token(&[3; 32]).await.unwrap(), None);
    assert_eq!(world.store.find_token(&[]).await.unwrap(), None);
}

async fn hash_is_stored_once(world: &StoreHarness) {
    let first = create(world, Some("a"), 1).await;
    let refused = world.store.create_token(&token(Some("b"), 1, world.now()), None).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    assert_eq!(world.store.find_token(&[1; 32]).await.unwrap(), Some(first));
}

async fn revoked_token_says_when_and_stays_so(world: &StoreHarness) {
    let token = create(world, Some("a"), 1).await;
    let nobody = world.store.revoke_token(&Scope::Every, Uuid::nil()).await;
    assert!(matches!(nobody, Err(StoreError::NotFound)), "{nobody:?}");
    world.pass(5);
    let revoked = StoredToken { revoked_at: Some(world.now()), ..token };
    for _ in 0..2 {
        world.store.revoke_token(&Scope::Every, revoked.id).await.unwrap();
        assert_eq!(world.store.find_token(&[1; 32]).await.unwrap(), Some(revoked.clone()));
        world.pass(5);
    }
}

async fn admin_token_counts_until_it_is_revoked(world: &StoreHarness) {
    create(world, Some("a"), 1).await;
    assert!(!world.store.has_admin_token().await.unwrap());
    let admin = create(world, None, 2).await;
    assert!(world.store.has_admin_token().await.unwrap());
    world.store.revoke_token(&Scope::Every, admin.id).await.unwrap();
    assert!(!world.store.has_admin_token().await.unwrap());
}

async fn tokens_are_listed_newest_first(world: &StoreHarness) {
    let (first, second, third) =
        (create(world, Some("a"), 1).await, create(world, None, 2).await, create(world, Some("b"), 3).await);
    let list = async |scope: &Scope, tenant, before, limit| {
        world.store.list_tokens(scope, tenant, before, limit).await.unwrap().rows
    };
    let every = Scope::Every;
    assert_eq!(list(&every, None, None, 9).await, [third.clone(), second.clone(), first.clone()]);
    assert_eq!(list(&every, None, None, 1).await, std::slice::from_ref(&third));
    assert_eq!(list(&every, None, Some(second.id), 9).await, std::slice::from_ref(&first));
    assert_eq!(list(&every, Some("b"), None, 9).await, [third]);
    assert_eq!(list(&only("a"), None, None, 9).await, [first]);
}
