//! Idempotency keys: the answer is remembered with the effect, for a day, and replayed instead of a second effect.

use chrono::TimeDelta;
use reveille::base::id::{Scope, new_id};
use reveille::store::{Idempotency, StoreError, StoredAnswer, StoredToken};
use serde_json::json;
use uuid::Uuid;

use super::world::{START, StoreHarness, new_task, only};

on_both!(
    every_effect_with_a_key_happens_once_and_is_answered_alike,
    same_key_for_another_request_is_refused,
    keys_of_different_tenants_never_meet,
    answer_is_forgotten_after_a_day,
    effect_that_fails_leaves_its_key_free,
    of_two_at_once_one_takes_effect,
    answer_is_remembered_after_an_effect_that_may_be_repeated,
    answer_is_remembered_when_its_task_is_gone,
);

fn key(tenant: &str, key: &str, digest: u8) -> Idempotency {
    Idempotency {
        tenant: tenant.into(),
        key: key.into(),
        digest: vec![digest; 32],
        status: 201,
        body: json!({"id": key, "nested": {"π": [2.5, null]}}).into(),
    }
}

fn replay(of: &Idempotency) -> StoredAnswer<()> {
    StoredAnswer::Replayed { status: 201, body: of.body.value() }
}

/// Without what it answers when it takes effect.
fn done<T>(answer: StoredAnswer<T>) -> StoredAnswer<()> {
    match answer {
        StoredAnswer::Done(_) => StoredAnswer::Done(()),
        StoredAnswer::Replayed { status, body } => StoredAnswer::Replayed { status, body },
        StoredAnswer::Mismatch => StoredAnswer::Mismatch,
    }
}

fn token() -> StoredToken {
    StoredToken {
        id: new_id(START),
        tenant_id: Some("a".into()),
        name: "n".into(),
        hash: new_id(START).as_bytes().to_vec(),
        scopes: vec![],
        created_at: START,
        expires_at: None,
        revoked_at: None,
        root: None,
    }
}

async fn every_effect_with_a_key_happens_once_and_is_answered_alike(world: &StoreHarness) {
    let ended = world.started(&world.task(json!({"interval": "1h"})).await).await;
    world.succeed(&ended).await;
    let (store, task_id) = (&world.store, ended.run.task_id.unwrap());
    let rows = "select (select count(*) from tasks) + (select count(*) from runs) + (select count(*) from tokens)";
    for round in 0..3 {
        let (task, nominal) = new_task("a", json!({"interval": "1m"}), json!({}), START);
        let keys = ["create", "run", "backfill", "retry", "token"].map(|name| key("a", name, 1));
        let answers = [
            store.create_task(&task, nominal, Some(&keys[0])).await,
            store.run_now(&Scope::Every, task_id, new_id(START), None, START, Some(&keys[1])).await,
            store.backfill(&Scope::Every, task_id, new_id(START), &[START], Some(&keys[2]), None).await,
            store
                .retry_run(&Scope::Every, ended.run.id, new_id(START), START, |_| Ok(Some(keys[3].clone())), None)
                .await
                .map(done),
            store.create_token(&token(), Some(&keys[4])).await,
        ];
        for (key, answer) in keys.iter().zip(answers) {
            assert_eq!(answer.unwrap(), if round == 0 { StoredAnswer::Done(()) } else { replay(key) }, "{}", key.key);
            let recalled = store.recall_answer(&only("a"), &key.key, &key.digest, START).await.unwrap();
            assert_eq!(recalled, Some(replay(key)));
        }
        assert_eq!(world.count(rows).await, 2 + 5);
    }
    assert_eq!(world.get_task(task_id).await.run_count, 4);
}

async fn same_key_for_another_request_is_refused(world: &StoreHarness) {
    let first = key("a", "k", 1);
    world.store.create_token(&token(), Some(&first)).await.unwrap();
    assert_eq!(world.store.create_token(&token(), Some(&key("a", "k", 2))).await.unwrap(), StoredAnswer::Mismatch);
    assert_eq!(world.count("select count(*) from tokens").await, 1);
    let recalled = world.store.recall_answer(&only("a"), "k", &[2; 32], START).await.unwrap();
    assert_eq!(recalled, Some(StoredAnswer::Mismatch));
    assert_eq!(world.store.recall_answer(&only("a"), "other", &[1; 32], START).await.unwrap(), None);
}

async fn keys_of_different_tenants_never_meet(world: &StoreHarness) {
    for (tenant, scope) in [("a", only("a")), ("b", only("b")), ("*", Scope::Every)] {
        assert_eq!(world.store.recall_answer(&scope, "k", &[1; 32], START).await.unwrap(), None);
        let done = world.store.create_token(&token(), Some(&key(tenant, "k", 1))).await.unwrap();
        assert_eq!(done, StoredAnswer::Done(()));
    }
}

async fn answer_is_forgotten_after_a_day(world: &StoreHarness) {
    let day = START + TimeDelta::hours(24);
    let before = day - TimeDelta::milliseconds(1);
    let first = key("a", "k", 1);
    world.store.create_token(&token(), Some(&first)).await.unwrap();
    assert_eq!(world.store.recall_answer(&only("a"), "k", &[1; 32], before).await.unwrap(), Some(replay(&first)));
    assert_eq!(world.store.recall_answer(&only("a"), "k", &[1; 32], day).await.unwrap(), None);
    // an expired entry counts as none, whether it was cleaned away or not
    let late = StoredToken { created_at: day, ..token() };
    let second = key("a", "k", 2);
    assert_eq!(world.store.create_token(&late, Some(&second)).await.unwrap(), StoredAnswer::Done(()));
    assert_eq!(world.store.recall_answer(&only("a"), "k", &[2; 32], day).await.unwrap(), Some(replay(&second)));
    world.store.create_token(&token(), Some(&key("a", "other", 1))).await.unwrap();
    assert_eq!(world.store.forget_answers(before, 9).await.unwrap(), 0);
    world.store.create_token(&token(), Some(&key("a", "third", 1))).await.unwrap();
    assert_eq!(world.store.forget_answers(day, 1).await.unwrap(), 1);
    assert_eq!(world.store.forget_answers(day, 9).await.unwrap(), 1);
    assert_eq!(world.store.forget_answers(day, 9).await.unwrap(), 0);
    assert_eq!(world.count("select count(*) from idempotency").await, 1);
}

async fn effect_that_fails_leaves_its_key_free(world: &StoreHarness) {
    let key = key("a", "k", 1);
    let task = world.task(json!({"interval": "1h"})).await;
    let refused = world.store.create_task(&task, None, Some(&key)).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    let gone = world.store.run_now(&Scope::Every, Uuid::nil(), new_id(START), None, START, Some(&key)).await;
    assert!(matches!(gone, Err(StoreError::NotFound)), "{gone:?}");
    assert_eq!(world.store.recall_answer(&only("a"), "k", &[1; 32], START).await.unwrap(), None);
    assert_eq!(world.store.create_token(&token(), Some(&key)).await.unwrap(), StoredAnswer::Done(()));
}

async fn of_two_at_once_one_takes_effect(world: &StoreHarness) {
    let other = world.other_instance().await;
    for n in 0..10 {
        let key = key("a", &n.to_string(), 1);
        let (one, two) = (token(), token());
        let (one, two) = tokio::join!(world.store.create_token(&one, Some(&key)), other.create_token(&two, Some(&key)));
        let mut answers = [one.unwrap(), two.unwrap()];
        answers.sort_by_key(|answer| *answer != StoredAnswer::Done(()));
        assert_eq!(answers, [StoredAnswer::Done(()), replay(&key)]);
    }
    assert_eq!(world.count("select count(*) from tokens").await, 10);
}

async fn answer_is_remembered_after_an_effect_that_may_be_repeated(world: &StoreHarness) {
    let first = key("a", "k", 1);
    assert_eq!(world.store.remember_answer(&first, START).await.unwrap(), StoredAnswer::Done(()));
    assert_eq!(world.store.recall_answer(&only("a"), "k", &[1; 32], START).await.unwrap(), Some(replay(&first)));
    let later = Idempotency { body: json!({"another": "answer"}).into(), ..first.clone() };
    assert_eq!(world.store.remember_answer(&later, START).await.unwrap(), replay(&first));
    assert_eq!(world.store.remember_answer(&key("a", "k", 2), START).await.unwrap(), StoredAnswer::Mismatch);
}

async fn answer_is_remembered_when_its_task_is_gone(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1h"})).await;
    let run = key("*", "run", 1);
    let ask = async || world.store.run_now(&Scope::Every, task.id, new_id(START), None, START, Some(&run)).await;
    assert_eq!(done(ask().await.unwrap()), StoredAnswer::Done(()));
    world.store.delete_task(&Scope::Every, task.id).await.unwrap();
    assert_eq!(done(ask().await.unwrap()), replay(&run));
}
