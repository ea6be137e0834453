//! The record of who did what: written with what it tells of, chained afterwards, by one at a time.

use reveille::base::id::Scope;
use reveille::store::{AuditEntry, AuditFilter};
use serde_json::json;

use super::asked::{answer, asked};
use super::world::{StoreHarness, only};

on_both!(
    act_is_on_record_as_it_was,
    entries_are_chained_in_their_order_and_keep_their_places,
    of_two_who_seal_none_gives_a_place_twice,
);

/// A hash that shows what it was made of.
fn hash(before: &str, entry: &AuditEntry) -> String {
    let before = before.rsplit('>').next().unwrap();
    format!("{before}>{}.{}", entry.position.unwrap(), entry.action)
}

async fn act_is_on_record_as_it_was(world: &StoreHarness) {
    let (_, started, asked) = asked(world, &["c1"]).await;
    world.pass(5);
    let comment = Some("not \0 now".to_owned());
    let no = reveille::domain::approval::ApprovalAnswer {
        comment,
        ..answer(reveille::domain::approval::ApprovalChoice::Cancel, &asked[0], "token:t")
    };
    world.store.decide_approval(&only("a"), asked[0].id, &no).await.unwrap();
    let filter = AuditFilter { limit: 9, ..AuditFilter::default() };
    let entries = world.store.audit_page(&only("a"), &filter).await.unwrap().rows;
    let expected = AuditEntry {
        id: entries[0].id,
        tenant_id: "a".into(),
        at: world.now(),
        actor: "token:t".into(),
        via: "api".into(),
        action: "approval.cancelled".into(),
        subject_type: "approval".into(),
        subject_id: asked[0].id,
        body: json!({
            "tool": "mail.send", "digest": asked[0].digest, "decided_digest": null, "batch_id": asked[0].batch_id,
            "run_id": started.run.id, "comment": "not \u{FFFD} now",
        }),
        position: None,
        hash: None,
    };
    assert_eq!(entries.len(), 2);
    assert_eq!(entries[0], expected);
    let page = world.store.audit_page(&only("a"), &filter).await.unwrap();
    assert_eq!((page.rows, page.is_cut), (entries.clone(), false));
    let list = async |filter: AuditFilter| world.store.audit_page(&Scope::Every, &filter).await.unwrap().rows.len();
    assert_eq!(list(AuditFilter { limit: 1, ..filter.clone() }).await, 1);
    assert_eq!(list(AuditFilter { before: Some(entries[0].id), ..filter.clone() }).await, 1);
    assert_eq!(list(AuditFilter { action: Some("approval.asked".into()), ..filter.clone() }).await, 1);
    assert_eq!(list(AuditFilter { tenant: Some("b".into()), ..filter.clone() }).await, 0);
    assert_eq!(list(AuditFilter { subject_id: Some(started.run.id), ..filter }).await, 0);
    world.store.cancel_run(&Scope::Every, started.run.id, "no").await.unwrap();
}

async fn entries_are_chained_in_their_order_and_keep_their_places(world: &StoreHarness) {
    assert_eq!(world.store.audit_end().await.unwrap(), (0, String::new(), 0));
    assert_eq!(world.store.seal_audit(&hash, 9).await.unwrap(), 0);
    let (_, started, _) = asked(world, &["c1", "c2", "c3"]).await;
    assert_eq!(world.store.audit_end().await.unwrap(), (0, String::new(), 3));
    assert!(world.pending_work().await.unsealed);
    assert_eq!(world.store.seal_audit(&hash, 2).await.unwrap(), 2);
    let second = "1.approval.asked>2.approval.asked".to_owned();
    assert_eq!(world.store.audit_end().await.unwrap(), (2, second.clone(), 1));
    world.store.cancel_run(&Scope::Every, started.run.id, "no").await.unwrap();
    assert_eq!(world.store.seal_audit(&hash, 9).await.unwrap(), 4);
    assert_eq!(world.store.seal_audit(&hash, 9).await.unwrap(), 0);
    assert!(!world.pending_work().await.unsealed);
    let last = "5.approval.cancelled>6.approval.cancelled".to_owned();
    assert_eq!(world.store.audit_end().await.unwrap(), (6, last, 0));
    let chain = world.store.audit_chain(0, 9).await.unwrap();
    let places: Vec<_> = chain.iter().map(|entry| entry.position).collect();
    assert_eq!(places, [1, 2, 3, 4, 5, 6].map(Some));
    assert_eq!(chain[0].hash.as_deref(), Some(">1.approval.asked"));
    assert_eq!(chain[1].hash, Some(second));
    assert!(chain.is_sorted_by_key(|entry| entry.id));
    let part = world.store.audit_chain(2, 2).await.unwrap();
    assert_eq!(part, chain[2..4]);
    // the text that is hashed is the one that is read again
    for pair in chain.windows(2) {
        assert_eq!(pair[1].hash, Some(hash(pair[0].hash.as_ref().unwrap(), &pair[1])));
    }
}

async fn of_two_who_seal_none_gives_a_place_twice(world: &StoreHarness) {
    let other = world.other_instance().await;
    let (_, started, _) = asked(world, &["c1", "c2", "c3", "c4", "c5", "c6"]).await;
    let (a, b, c) =
        tokio::join!(world.store.seal_audit(&hash, 3), other.seal_audit(&hash, 3), world.store.seal_audit(&hash, 3),);
    assert_eq!(a.unwrap() + b.unwrap() + c.unwrap(), 6);
    assert_eq!(world.store.audit_end().await.unwrap().0, 6);
    assert_eq!(world.count("select count(distinct position) from audit").await, 6);
    world.store.cancel_run(&Scope::Every, started.run.id, "no").await.unwrap();
}
