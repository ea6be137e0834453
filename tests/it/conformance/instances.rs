//! Instances of the service, as rows: each says that it lives, and those that say nothing are forgotten after a day.

use chrono::TimeDelta;
use reveille::store::InstanceRecord;
use uuid::Uuid;

use super::world::{OTHER_WORKER, StoreHarness, WORKER};

on_both!(
    instance_is_listed_with_its_last_sign_until_it_stops,
    instance_that_says_nothing_is_forgotten_after_a_day,
    instance_that_lives_is_listed_beside_any_number_that_died,
);

async fn instance_is_listed_with_its_last_sign_until_it_stops(world: &StoreHarness) {
    let (store, started_at) = (&world.store, world.now());
    assert_eq!(store.list_instances().await.unwrap(), []);
    assert_eq!(store.own_instance(), None);
    store.announce_instance(WORKER, Some("one"), started_at).await.unwrap();
    world.pass(60);
    let other = world.other_instance().await;
    other.announce_instance(OTHER_WORKER, None, world.now()).await.unwrap();
    world.pass(1);
    store.announce_instance(WORKER, Some("one"), started_at).await.unwrap();
    let version = env!("CARGO_PKG_VERSION").to_owned();
    let first = InstanceRecord {
        id: WORKER,
        host: Some("one".into()),
        version: version.clone(),
        started_at,
        seen_at: world.now(),
    };
    let seen_at = world.now() - TimeDelta::seconds(1);
    let second = InstanceRecord { id: OTHER_WORKER, host: None, version, started_at: seen_at, seen_at };
    assert_eq!(store.list_instances().await.unwrap(), [first.clone(), second]);
    assert_eq!(store.own_instance(), Some(WORKER));
    store.withdraw_instance(OTHER_WORKER).await.unwrap();
    assert_eq!(other.list_instances().await.unwrap(), [first]);
}

async fn instance_that_says_nothing_is_forgotten_after_a_day(world: &StoreHarness) {
    let ids = async || {
        let listed = world.store.list_instances().await.unwrap();
        listed.into_iter().map(|instance| instance.id).collect::<Vec<_>>()
    };
    world.store.announce_instance(WORKER, None, world.now()).await.unwrap();
    world.pass(24 * 60 * 60);
    world.store.announce_instance(OTHER_WORKER, None, world.now()).await.unwrap();
    assert_eq!(ids().await, [WORKER, OTHER_WORKER]);
    world.pass(1);
    world.store.announce_instance(OTHER_WORKER, None, world.now()).await.unwrap();
    assert_eq!(ids().await, [OTHER_WORKER]);
}

async fn instance_that_lives_is_listed_beside_any_number_that_died(world: &StoreHarness) {
    for number in 1_000..1_200 {
        world.store.announce_instance(Uuid::from_u128(number), None, world.now()).await.unwrap();
    }
    world.pass(1);
    world.store.announce_instance(WORKER, None, world.now()).await.unwrap();
    let listed = world.store.list_instances().await.unwrap();
    assert_eq!((listed.len(), listed.last().map(|instance| instance.id)), (200, Some(WORKER)));
}
