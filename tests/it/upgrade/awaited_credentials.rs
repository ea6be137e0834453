//! Migration 0033: a task that was paused for want of a credential is known by it, and goes on when it is saved.

use reveille::base::id::Scope;
use reveille::base::token::{TokenKind, TokenText};
use serde_json::json;

use super::{ADMIN, id, in_words, left_by};

/// The last schema in which the reason alone named the credential.
const BEFORE: i64 = 32;

/// Tasks, the reasons for which they are paused, and the credentials that these name.
const PAUSED: [(&str, &str, Option<&str>); 5] = [
    ("1", "credential:shop/work", Some("shop/work")),
    ("2", "credential:shop", Some("shop")),
    ("3", "credential: the new one is missing", None),
    ("4", "credential:a/b/c", None),
    ("5", "holiday", None),
];

const AWAITING: &str = "select count(*) from tasks where awaited_service is not null";

async fn task_that_awaits_a_credential_goes_on_after_the_upgrade(postgres: bool) {
    let token = TokenText::new(TokenKind::Tenant);
    let world = left_by(BEFORE, postgres, &token).await;
    let pause = |(task, reason, _): &(&str, &str, Option<&str>)| {
        let paused = format!("update tasks set status = 'paused', status_reason = '{reason}' where id = id({task})");
        in_words(&paused, postgres, &token)
    };
    for paused in PAUSED.iter().map(pause) {
        world.execute(&paused, &paused).await;
    }
    let instance = world.instance();
    assert_eq!(world.number(AWAITING).await, 2);
    for (task, reason, credential) in PAUSED {
        let stored = instance.on(move |store| async move { store.get_task(&Scope::Every, id(task)).await });
        let stored = stored.await.expect("a task");
        let awaited = stored.awaited_credential.map(|credential| credential.to_string());
        assert_eq!((stored.status_reason.as_deref(), awaited.as_deref()), (Some(reason), credential));
    }
    let status = async |task: &str| {
        let (_, task) = instance.ask("GET", &format!("/v1/tasks/{}", id(task)), ADMIN, None).await;
        task["status"].as_str().expect("a status").to_owned()
    };
    for (account, task) in [("work", "1"), ("primary", "2")] {
        assert_eq!(status(task).await, "paused");
        let body = json!({ "document": "canary", "hosts": [] });
        let path = format!("/v1/credentials/shop/{account}?tenant_id=ann");
        let (saved, answer) = instance.ask("PUT", &path, ADMIN, Some(body)).await;
        assert!(saved < 300, "{saved}: {answer}");
        assert_eq!(status(task).await, "active");
    }
    assert_eq!(world.number(AWAITING).await, 0);
    // what others left is not this test's
    instance.crash();
}

#[tokio::test]
async fn task_that_awaits_a_credential_goes_on_after_the_upgrade_on_sqlite() {
    task_that_awaits_a_credential_goes_on_after_the_upgrade(false).await;
}

#[tokio::test]
async fn task_that_awaits_a_credential_goes_on_after_the_upgrade_on_postgres() {
    task_that_awaits_a_credential_goes_on_after_the_upgrade(true).await;
}
