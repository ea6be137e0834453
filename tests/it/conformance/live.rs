//! Messages for open sessions: each is taken once or withdrawn, never both, and is kept for a while.

use chrono::TimeDelta;
use reveille::base::id::Tenant;
use reveille::store::LiveMessage;
use uuid::Uuid;

use super::world::StoreHarness;

on_both!(
    message_is_laid_out_taken_and_read_by_every_session,
    withdrawn_message_can_not_be_taken_and_a_taken_one_not_withdrawn,
    of_taking_and_withdrawing_one_wins,
    look_sees_what_nobody_has_and_what_is_new,
    another_tenant_sees_and_takes_nothing,
    old_messages_are_forgotten,
    message_is_put_under_another_key_while_it_is_there,
);

const ONE: Uuid = Uuid::from_u128(1);
const TWO: Uuid = Uuid::from_u128(2);

fn tenant(name: &str) -> Tenant {
    Tenant::new(name).unwrap()
}

async fn put(world: &StoreHarness, id: Uuid) -> LiveMessage {
    world.store.put_live_message(&tenant("a"), id, false, &format!("v1:{id}")).await.unwrap();
    LiveMessage { id, created_at: world.now(), has_approval_link: false, taken: false }
}

async fn message_is_laid_out_taken_and_read_by_every_session(world: &StoreHarness) {
    let (ann, message) = (tenant("a"), put(world, ONE).await);
    assert_eq!(world.store.live_message(&ann, ONE).await.unwrap(), Some(message));
    world.pass(1);
    world.store.put_live_message(&ann, ONE, true, "v1:other").await.unwrap();
    assert_eq!(world.store.live_message(&ann, ONE).await.unwrap(), Some(message), "it stays as it is");
    for _ in 0..2 {
        assert_eq!(world.store.take_live_message(&ann, ONE).await.unwrap(), Some(format!("v1:{ONE}")));
        let taken = LiveMessage { taken: true, ..message };
        assert_eq!(world.store.live_message(&ann, ONE).await.unwrap(), Some(taken));
    }
    assert_eq!(world.store.live_message(&ann, TWO).await.unwrap(), None);
    assert_eq!(world.store.take_live_message(&ann, TWO).await.unwrap(), None);
}

async fn withdrawn_message_can_not_be_taken_and_a_taken_one_not_withdrawn(world: &StoreHarness) {
    let ann = tenant("a");
    put(world, ONE).await;
    assert!(world.store.withdraw_live_message(&ann, ONE).await.unwrap());
    assert_eq!(world.store.take_live_message(&ann, ONE).await.unwrap(), None);
    assert!(!world.store.withdraw_live_message(&ann, ONE).await.unwrap());
    put(world, ONE).await;
    world.store.take_live_message(&ann, ONE).await.unwrap().expect("the message");
    assert!(!world.store.withdraw_live_message(&ann, ONE).await.unwrap());
    assert!(world.store.live_message(&ann, ONE).await.unwrap().expect("the message").taken);
}

async fn of_taking_and_withdrawing_one_wins(world: &StoreHarness) {
    let (ann, other) = (tenant("a"), world.other_instance().await);
    for n in 0..10 {
        let id = Uuid::from_u128(100 + n);
        put(world, id).await;
        let (taken, withdrawn) =
            tokio::join!(other.take_live_message(&ann, id), world.store.withdraw_live_message(&ann, id));
        assert_ne!(taken.unwrap().is_some(), withdrawn.unwrap(), "message {n}");
    }
}

async fn look_sees_what_nobody_has_and_what_is_new(world: &StoreHarness) {
    let (ann, start) = (tenant("a"), world.now());
    let waiting = put(world, TWO).await;
    let old = put(world, Uuid::from_u128(3)).await;
    world.store.take_live_message(&ann, old.id).await.unwrap();
    world.pass(10);
    let new = put(world, ONE).await;
    world.store.take_live_message(&ann, new.id).await.unwrap();
    let look = async |since, limit| world.store.live_messages(&ann, since, limit).await.unwrap();
    let (old, new) = (LiveMessage { taken: true, ..old }, LiveMessage { taken: true, ..new });
    assert_eq!(look(world.now(), 10).await, [waiting, new]);
    assert_eq!(look(start, 10).await, [waiting, old, new]);
    assert_eq!(look(start, 1).await, [waiting]);
    assert_eq!(look(world.now() + TimeDelta::seconds(1), 10).await, [waiting]);
}

async fn another_tenant_sees_and_takes_nothing(world: &StoreHarness) {
    let (bob, message) = (tenant("b"), put(world, ONE).await);
    assert_eq!(world.store.live_message(&bob, ONE).await.unwrap(), None);
    assert_eq!(world.store.live_messages(&bob, world.now(), 10).await.unwrap(), []);
    assert_eq!(world.store.take_live_message(&bob, ONE).await.unwrap(), None);
    assert!(!world.store.withdraw_live_message(&bob, ONE).await.unwrap());
    assert_eq!(world.store.live_message(&tenant("a"), ONE).await.unwrap(), Some(message));
}

async fn old_messages_are_forgotten(world: &StoreHarness) {
    for n in 1..=3 {
        put(world, Uuid::from_u128(n)).await;
        world.pass(10);
    }
    let before = world.now() - TimeDelta::seconds(15);
    assert_eq!(world.store.forget_live_messages(before, 1).await.unwrap(), 1);
    assert_eq!(world.store.forget_live_messages(before, 10).await.unwrap(), 1);
    assert_eq!(world.store.forget_live_messages(before, 10).await.unwrap(), 0);
    let left = world.store.live_messages(&tenant("a"), world.now(), 10).await.unwrap();
    assert_eq!(left.iter().map(|message| message.id).collect::<Vec<_>>(), [Uuid::from_u128(3)]);
}

async fn message_is_put_under_another_key_while_it_is_there(world: &StoreHarness) {
    let (one, two) = (put(world, ONE).await, put(world, TWO).await);
    let sealed = |id: Uuid| format!("v1:{id}");
    let page = async |after, limit| world.store.sealed_live_messages(after, limit).await.unwrap();
    assert_eq!(page(None, 1).await, [(one.id, "a".to_owned(), sealed(ONE))]);
    assert_eq!(page(Some(one.id), 9).await, [(two.id, "a".to_owned(), sealed(TWO))]);
    assert_eq!(page(Some(two.id), 9).await, []);
    assert!(world.store.rewrap_live_message(ONE, "v1:new").await.unwrap());
    assert_eq!(world.store.take_live_message(&tenant("a"), ONE).await.unwrap().as_deref(), Some("v1:new"));
    assert_eq!(world.store.take_live_message(&tenant("a"), TWO).await.unwrap(), Some(sealed(TWO)));
    assert!(!world.store.rewrap_live_message(Uuid::from_u128(3), "v1:new").await.unwrap());
}
