//! API tokens: found by their hash, dead at once when revoked.

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::id::{Scope, new_id};
use reveille::store::{MOST_TOKENS, StoreError, StoredAnswer, StoredToken};
use uuid::Uuid;

use super::world::{StoreHarness, only};

on_both!(
    token_is_found_by_its_hash,
    hash_is_stored_once,
    revoked_token_says_when_and_stays_so,
    admin_token_counts_until_it_is_revoked,
    tokens_are_listed_newest_first,
    tokens_of_a_tenant_are_bounded_and_the_oldest_dead_one_makes_room,
    tokens_of_tenants_that_died_long_ago_are_forgotten,
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

/// A token that was made with another one.
fn descendant(tenant: Option<&str>, hash: u8, now: DateTime<Utc>) -> StoredToken {
    StoredToken { root: Some("token:admin".into()), ..token(tenant, hash, now) }
}

/// So many good tokens of tenant `a`, with ids that come after all that a case makes.
async fn plant(world: &StoreHarness, count: i64) {
    let (id, hash, now) = match world.is_postgres() {
        true => (
            "overlay(gen_random_uuid()::text placing 'ff' from 1)::uuid",
            "sha256(convert_to(n::text, 'UTF8'))",
            "'2026-03-01T00:00:00Z'::timestamptz",
        ),
        false => ("unhex('ff' || hex(randomblob(15)))", "randomblob(32)", "'2026-03-01T00:00:00+00:00'"),
    };
    let sql = format!(
        "insert into tokens (id, tenant_id, name, hash, scopes, created_at, root)
         with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < {count})
         select {id}, 'a', 'planted', {hash}, '[]', {now}, 'token:admin' from numbers"
    );
    world.plant(&sql).await;
}

async fn tokens_of_a_tenant_are_bounded_and_the_oldest_dead_one_makes_room(world: &StoreHarness) {
    let make = async |token: StoredToken| world.store.create_token(&token, None).await;
    let is_kept = async |hash: u8| world.store.find_token(&[hash; 32]).await.unwrap().is_some();
    let is_full = async |hash: u8| {
        let refused = make(descendant(Some("a"), hash, world.now())).await;
        assert!(matches!(&refused, Err(StoreError::Conflict(why)) if why.contains("revoke one")), "{refused:?}");
        assert!(!is_kept(hash).await);
    };
    // no other token made the first, and it says who has asked for runs
    let first = create(world, Some("a"), 1).await;
    let revoked = StoredToken { expires_at: None, ..descendant(Some("a"), 2, world.now()) };
    for token in [&revoked, &descendant(Some("a"), 3, world.now())] {
        make(token.clone()).await.unwrap();
    }
    plant(world, MOST_TOKENS - 4).await;
    world.pass(1);
    make(StoredToken { expires_at: None, ..descendant(Some("a"), 4, world.now()) }).await.unwrap();
    is_full(5).await;
    create(world, Some("b"), 6).await;
    create(world, None, 7).await;

    world.store.revoke_token(&Scope::Every, first.id).await.unwrap();
    is_full(5).await;
    world.store.revoke_token(&Scope::Every, revoked.id).await.unwrap();
    make(descendant(Some("a"), 5, world.now())).await.unwrap();
    assert_eq!([is_kept(1).await, is_kept(2).await, is_kept(3).await], [true, false, true]);
    is_full(8).await;
    // two have expired, and the older one of them goes
    world.clock.advance(TimeDelta::days(31));
    make(descendant(Some("a"), 8, world.now())).await.unwrap();
    assert_eq!([is_kept(1).await, is_kept(3).await, is_kept(4).await, is_kept(5).await], [true, false, true, true]);
    let stored = world.count("select count(*) from tokens where tenant_id = 'a'").await;
    assert_eq!(stored, MOST_TOKENS);
}

async fn tokens_of_tenants_that_died_long_ago_are_forgotten(world: &StoreHarness) {
    let lasting = |tenant, hash| StoredToken { expires_at: None, ..descendant(tenant, hash, world.now()) };
    let first = StoredToken { root: None, ..lasting(Some("a"), 1) };
    let [good, revoked, admins] = [lasting(Some("a"), 2), lasting(Some("b"), 3), lasting(None, 4)];
    let expiring = descendant(Some("a"), 5, world.now());
    for token in [&first, &good, &revoked, &admins, &expiring] {
        world.store.create_token(token, None).await.unwrap();
    }
    let died = world.now();
    for token in [&first, &revoked, &admins] {
        world.store.revoke_token(&Scope::Every, token.id).await.unwrap();
    }
    let forget = async |before| world.store.forget_tokens(before, 9).await.unwrap();
    assert_eq!(forget(died - TimeDelta::seconds(1)).await, 0);
    assert_eq!(forget(died).await, 1);
    assert_eq!(world.store.get_token(revoked.id).await.unwrap(), None);
    assert_eq!(forget(died + TimeDelta::days(30) - TimeDelta::seconds(1)).await, 0);
    assert_eq!(forget(died + TimeDelta::days(30)).await, 1);
    assert_eq!(world.store.get_token(expiring.id).await.unwrap(), None);
    for token in [&first, &good, &admins] {
        assert!(world.store.get_token(token.id).await.unwrap().is_some(), "{token:?}");
    }
}
