//! Sessions of the dashboard and the links that begin them: found by their hashes, bounded, and each link spent once.

use chrono::{DateTime, TimeDelta, Utc};
use futures::future::join_all;
use reveille::store::{MOST_LINKS, MOST_SESSIONS, StoreError, StoredLoginLink, UiSession};

use super::world::StoreHarness;

on_both!(
    session_is_found_by_its_hash_until_it_is_ended,
    request_of_a_session_is_noted_and_no_earlier_one_after_it,
    sessions_of_a_token_are_bounded_and_the_oldest_ends,
    ended_sessions_are_forgotten,
    link_is_spent_once_and_only_in_its_time,
    link_that_many_spend_at_once_is_spent_by_one,
    links_of_a_token_are_bounded_and_the_oldest_is_gone,
    expired_links_are_forgotten,
);

/// A hash of these tests, by its number.
fn hash(number: i64) -> Vec<u8> {
    [vec![7; 24], number.to_be_bytes().to_vec()].concat()
}

fn session(token: u8, now: DateTime<Utc>) -> UiSession {
    UiSession { token_hash: vec![token; 32], created_at: now, seen_at: now, ends_at: now + TimeDelta::hours(12) }
}

async fn open(world: &StoreHarness, number: i64, token: u8) -> UiSession {
    let session = session(token, world.now());
    world.store.open_ui_session(&hash(number), &session).await.unwrap();
    session
}

async fn find(world: &StoreHarness, number: i64) -> Option<UiSession> {
    world.store.find_ui_session(&hash(number)).await.unwrap()
}

async fn session_is_found_by_its_hash_until_it_is_ended(world: &StoreHarness) {
    let (one, two) = (open(world, 1, 1).await, open(world, 2, 1).await);
    assert_eq!(find(world, 1).await, Some(one.clone()));
    assert_eq!(find(world, 2).await, Some(two.clone()));
    assert_eq!(find(world, 3).await, None);
    assert_eq!(world.store.find_ui_session(&[]).await.unwrap(), None);
    let again = world.store.open_ui_session(&hash(1), &one).await;
    assert!(matches!(again, Err(StoreError::Conflict(_))), "{again:?}");
    for _ in 0..2 {
        world.store.end_ui_session(&hash(1)).await.unwrap();
        assert_eq!((find(world, 1).await, find(world, 2).await.is_some()), (None, true));
    }
    // on another instance, too
    assert_eq!(world.other_instance().await.find_ui_session(&hash(2)).await.unwrap(), Some(two));
}

async fn request_of_a_session_is_noted_and_no_earlier_one_after_it(world: &StoreHarness) {
    let session = open(world, 1, 1).await;
    let later = session.created_at + TimeDelta::minutes(5);
    for (seen_at, noted) in [(later, later), (later - TimeDelta::minutes(1), later)] {
        world.store.touch_ui_session(&hash(1), seen_at).await.unwrap();
        assert_eq!(find(world, 1).await, Some(UiSession { seen_at: noted, ..session.clone() }));
    }
    // one that was ended meanwhile stays so
    world.store.end_ui_session(&hash(1)).await.unwrap();
    world.store.touch_ui_session(&hash(1), later).await.unwrap();
    assert_eq!(find(world, 1).await, None);
}

async fn sessions_of_a_token_are_bounded_and_the_oldest_ends(world: &StoreHarness) {
    open(world, -1, 2).await;
    for number in 0..MOST_SESSIONS {
        open(world, number, 1).await;
        world.pass(1);
    }
    assert!(find(world, 0).await.is_some());
    open(world, MOST_SESSIONS, 1).await;
    assert!(find(world, 0).await.is_none());
    assert!(find(world, 1).await.is_some() && find(world, MOST_SESSIONS).await.is_some());
    assert!(find(world, -1).await.is_some(), "another token's");
    assert_eq!(world.count("select count(*) from ui_sessions").await, MOST_SESSIONS + 1);
}

async fn ended_sessions_are_forgotten(world: &StoreHarness) {
    let ends_at = open(world, 1, 1).await.ends_at;
    world.pass(60);
    open(world, 2, 1).await;
    let forget = async |before| world.store.forget_ui_sessions(before, 9).await.unwrap();
    assert_eq!(forget(ends_at - TimeDelta::seconds(1)).await, 0);
    assert_eq!(forget(ends_at).await, 1);
    assert_eq!((find(world, 1).await, find(world, 2).await.is_some()), (None, true));
}

async fn make(world: &StoreHarness, number: i64, token: u8) -> DateTime<Utc> {
    let expires_at = world.now() + TimeDelta::minutes(10);
    world.store.make_login_link(&hash(number), &[token; 32], world.now(), expires_at).await.unwrap();
    expires_at
}

async fn find_link(world: &StoreHarness, number: i64) -> Option<StoredLoginLink> {
    world.store.find_login_link(&hash(number)).await.unwrap()
}

async fn link_is_spent_once_and_only_in_its_time(world: &StoreHarness) {
    let expires_at = make(world, 1, 1).await;
    make(world, 2, 2).await;
    let spend = async |number, now| world.store.spend_login_link(&hash(number), now).await.unwrap();
    let made = StoredLoginLink { token_hash: vec![1; 32], made_at: world.now(), expires_at, spent_at: None };
    assert_eq!(find_link(world, 1).await.as_ref(), Some(&made));
    assert_eq!(find_link(world, 3).await, None);
    assert_eq!(spend(3, world.now()).await, None);
    assert_eq!(spend(1, expires_at).await, None, "too late");
    assert_eq!(find_link(world, 1).await.as_ref(), Some(&made));
    let last = expires_at - TimeDelta::milliseconds(1);
    assert_eq!(spend(1, last).await, Some(vec![1; 32]));
    assert_eq!(spend(1, last).await, None, "once");
    assert_eq!(find_link(world, 1).await, Some(StoredLoginLink { spent_at: Some(last), ..made }));
    assert_eq!(spend(2, world.now()).await, Some(vec![2; 32]));
}

async fn link_that_many_spend_at_once_is_spent_by_one(world: &StoreHarness) {
    make(world, 1, 1).await;
    let (other, now, hash) = (world.other_instance().await, world.now(), hash(1));
    let spends = (0..8).map(|n| if n % 2 == 0 { &world.store } else { &other }.spend_login_link(&hash, now));
    let spent = join_all(spends).await.into_iter().filter(|spent| spent.as_ref().unwrap().is_some()).count();
    assert_eq!(spent, 1);
}

async fn links_of_a_token_are_bounded_and_the_oldest_is_gone(world: &StoreHarness) {
    make(world, -1, 2).await;
    for number in 0..MOST_LINKS {
        make(world, number, 1).await;
        world.pass(1);
    }
    assert!(find_link(world, 0).await.is_some());
    make(world, MOST_LINKS, 1).await;
    assert!(find_link(world, 0).await.is_none());
    assert!(find_link(world, 1).await.is_some() && find_link(world, MOST_LINKS).await.is_some());
    assert!(find_link(world, -1).await.is_some(), "another token's");
}

async fn expired_links_are_forgotten(world: &StoreHarness) {
    let expires_at = make(world, 1, 1).await;
    world.pass(60);
    make(world, 2, 1).await;
    let forget = async |before| world.store.forget_login_links(before, 9).await.unwrap();
    assert_eq!(forget(expires_at - TimeDelta::seconds(1)).await, 0);
    assert_eq!(forget(expires_at).await, 1);
    assert_eq!((find_link(world, 1).await, find_link(world, 2).await.is_some()), (None, true));
}
