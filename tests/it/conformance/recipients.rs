//! Recipients: one document per tenant, written only over the version that was read.

use chrono::TimeDelta;
use reveille::base::id::Scope;
use reveille::domain::notification::{Addresses, MessageKind, NewDelivery, Recipient, WebhookAddress};
use reveille::store::{
    ApprovalLink, AuditFilter, CodeCheck, DeliveryFilter, ListedRecipient, PAGE_BYTES, RecipientFilter, StoreError,
    StoredRecipient, Verification,
};
use uuid::Uuid;

use super::world::{StoreHarness, only};

on_both!(
    recipient_reads_back_as_it_was_written,
    recipients_of_several_tenants_are_read_at_once_without_a_damaged_one,
    version_that_is_not_the_stored_one_is_refused,
    of_two_writers_of_one_version_one_wins,
    scope_writes_its_own_only,
    code_is_good_once_for_its_address_and_for_a_while,
    code_is_good_for_five_tries_and_the_same_again_gives_no_more,
    next_code_comes_after_a_minute,
    there_are_ten_codes_a_day,
    recipients_are_listed_by_tenant_in_pages_of_bounded_size,
    deleted_recipient_leaves_nothing_of_the_person,
    recipient_that_was_made_again_is_not_written_over_by_what_was_read_before,
    deletion_is_for_the_own_scope_and_recorded,
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

async fn recipient_reads_back_as_it_was_written(world: &StoreHarness) {
    let none = world.store.get_recipient(&Scope::Every, "a").await;
    assert!(matches!(none, Err(StoreError::NotFound)), "{none:?}");
    let mut read = None;
    for version in [1, 2] {
        world.pass(1);
        let recipient = recipient(&format!("ann{version}@example.org"));
        let stored = world.store.put_recipient(&Scope::Every, "a", &recipient, read.as_ref()).await.unwrap();
        assert_eq!(stored, StoredRecipient { recipient, version, updated_at: world.now() });
        assert_eq!(world.store.get_recipient(&only("a"), "a").await.unwrap(), stored);
        read = Some(stored);
    }
}

async fn recipients_of_several_tenants_are_read_at_once_without_a_damaged_one(world: &StoreHarness) {
    for tenant in ["a", "b", "c"] {
        world.store.put_recipient(&Scope::Every, tenant, &recipient("x@y.z"), None).await.unwrap();
    }
    world.plant("update recipients set body = '7' where tenant_id = 'b'").await;
    let read = world.store.recipients_by_tenant(&["a", "b", "nobody"]).await.unwrap();
    assert_eq!(read, [("a".to_owned(), recipient("x@y.z"))].into());
    assert!(world.store.recipients_by_tenant(&[]).await.unwrap().is_empty());
}

/// A recipient as somebody has read it now.
fn at_version(world: &StoreHarness, version: i64) -> StoredRecipient {
    StoredRecipient { recipient: recipient("x@y.z"), version, updated_at: world.now() }
}

async fn version_that_is_not_the_stored_one_is_refused(world: &StoreHarness) {
    let put = async |read: Option<StoredRecipient>| {
        world.store.put_recipient(&Scope::Every, "a", &recipient("x@y.z"), read.as_ref()).await
    };
    let early = put(Some(at_version(world, 1))).await;
    assert!(matches!(early, Err(StoreError::Conflict(_))), "there is none yet: {early:?}");
    put(None).await.unwrap();
    for read in [None, Some(at_version(world, 2))] {
        let refused = put(read).await;
        assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    }
    assert_eq!(world.store.get_recipient(&Scope::Every, "a").await.unwrap().version, 1);
}

async fn of_two_writers_of_one_version_one_wins(world: &StoreHarness) {
    let other = world.other_instance().await;
    let mut read = None;
    for _ in 0..5 {
        let (ours, theirs) = (recipient("ours@example.org"), recipient("theirs@example.org"));
        let (one, two) = tokio::join!(
            world.store.put_recipient(&Scope::Every, "a", &ours, read.as_ref()),
            other.put_recipient(&Scope::Every, "a", &theirs, read.as_ref())
        );
        assert_ne!(one.is_ok(), two.is_ok());
        let winner = one.or(two).unwrap();
        assert_eq!(world.store.get_recipient(&Scope::Every, "a").await.unwrap(), winner);
        read = Some(winner);
    }
}

async fn scope_writes_its_own_only(world: &StoreHarness) {
    let refused = world.store.put_recipient(&only("b"), "a", &recipient("x@y.z"), None).await;
    assert!(matches!(refused, Err(StoreError::NotFound)), "{refused:?}");
    world.store.put_recipient(&only("a"), "a", &recipient("x@y.z"), None).await.unwrap();
}

fn code(address: &str, code: &str) -> Verification {
    Verification {
        recipient: "a".into(),
        channel: "email".into(),
        address_hash: address.as_bytes().to_vec(),
        code_hash: code.as_bytes().to_vec(),
    }
}

async fn ask(world: &StoreHarness, asked: &Verification) -> Result<(), StoreError> {
    let message = NewDelivery {
        tenant_id: "a".into(),
        recipient: "a".into(),
        channel: "email".into(),
        fallback: vec![],
        dedupe_key: format!("code:email:{}", String::from_utf8_lossy(&asked.code_hash)),
        run_id: None,
        subject_ref: None,
        kind: MessageKind::Code,
        urgency: MessageKind::Code.urgency(),
        subject: None,
        text: None,
    };
    world.store.ask_verification(&only("a"), asked, &message).await
}

async fn give(world: &StoreHarness, given: &Verification) -> CodeCheck {
    let stored = world.store.get_recipient(&Scope::Every, "a").await.unwrap();
    let mut proved = stored.recipient.clone();
    proved.verified.insert("email".into(), world.now());
    world.store.try_verification(&only("a"), given, &proved, &stored).await.unwrap()
}

async fn code_is_good_once_for_its_address_and_for_a_while(world: &StoreHarness) {
    world.store.put_recipient(&Scope::Every, "a", &recipient("x@y.z"), None).await.unwrap();
    assert_eq!(give(world, &code("x", "1")).await, CodeCheck::Gone, "none was asked for");
    ask(world, &code("x", "1")).await.unwrap();
    let sent = DeliveryFilter { limit: 9, ..DeliveryFilter::default() };
    assert_eq!(world.store.list_deliveries(&only("a"), &sent).await.unwrap().len(), 1);
    assert_eq!(give(world, &code("y", "1")).await, CodeCheck::Gone, "another address");
    let proved = recipient("x@y.z");
    let read = at_version(world, 1);
    let stranger = world.store.try_verification(&only("b"), &code("x", "1"), &proved, &read).await;
    assert!(matches!(stranger, Err(StoreError::NotFound)), "{stranger:?}");
    let read = at_version(world, 7);
    let late = world.store.try_verification(&only("a"), &code("x", "1"), &proved, &read).await;
    assert!(matches!(late, Err(StoreError::Conflict(_))), "the code stays good: {late:?}");
    let CodeCheck::Yes(stored) = give(world, &code("x", "1")).await else { panic!("right") };
    assert_eq!((stored.version, stored.recipient.verified["email"]), (2, world.now()));
    assert_eq!(world.store.get_recipient(&Scope::Every, "a").await.unwrap(), *stored);
    assert_eq!(give(world, &code("x", "1")).await, CodeCheck::Gone);
    ask(world, &code("x", "2")).await.unwrap();
    world.clock.advance(TimeDelta::minutes(10));
    assert_eq!(give(world, &code("x", "2")).await, CodeCheck::Gone, "its time is over");
}

async fn code_is_good_for_five_tries_and_the_same_again_gives_no_more(world: &StoreHarness) {
    world.store.put_recipient(&Scope::Every, "a", &recipient("x@y.z"), None).await.unwrap();
    ask(world, &code("x", "1")).await.unwrap();
    for left in [4, 3, 2] {
        assert_eq!(give(world, &code("x", "9")).await, CodeCheck::Wrong { left });
    }
    ask(world, &code("x", "1")).await.unwrap();
    world.pass(61);
    ask(world, &code("x", "1")).await.unwrap();
    for left in [1, 0] {
        assert_eq!(give(world, &code("x", "9")).await, CodeCheck::Wrong { left });
    }
    assert_eq!(give(world, &code("x", "1")).await, CodeCheck::Gone, "however right it is");
}

async fn there_are_ten_codes_a_day(world: &StoreHarness) {
    world.store.put_recipient(&Scope::Every, "a", &recipient("x@y.z"), None).await.unwrap();
    for number in 0..10 {
        ask(world, &code("x", &number.to_string())).await.unwrap();
        world.pass(60);
    }
    let another = ask(world, &code("x", "more")).await;
    assert!(matches!(&another, Err(StoreError::Conflict(why)) if why.contains("10 codes")), "{another:?}");
    assert!(matches!(give(world, &code("x", "9")).await, CodeCheck::Yes(_)), "the last one is good");
    world.pass(24 * 3600);
    ask(world, &code("x", "more")).await.unwrap();
}

async fn next_code_comes_after_a_minute(world: &StoreHarness) {
    world.store.put_recipient(&Scope::Every, "a", &recipient("x@y.z"), None).await.unwrap();
    ask(world, &code("x", "1")).await.unwrap();
    world.pass(59);
    let early = ask(world, &code("x", "2")).await;
    assert!(matches!(early, Err(StoreError::Conflict(_))), "{early:?}");
    world.pass(1);
    ask(world, &code("x", "2")).await.unwrap();
    assert_eq!(give(world, &code("x", "1")).await, CodeCheck::Wrong { left: 4 }, "the earlier one is good for nothing");
    assert!(matches!(give(world, &code("x", "2")).await, CodeCheck::Yes(_)));
}

async fn listed(world: &StoreHarness, scope: &Scope, after: Option<&str>, limit: i64) -> (Vec<String>, bool) {
    let filter = RecipientFilter { after: after.map(str::to_owned), limit };
    let page = world.store.list_recipients(scope, &filter).await.unwrap();
    (page.rows.into_iter().map(|listed| listed.tenant_id).collect(), page.is_cut)
}

async fn recipients_are_listed_by_tenant_in_pages_of_bounded_size(world: &StoreHarness) {
    for tenant in ["c", "a", "b"] {
        world.store.put_recipient(&Scope::Every, tenant, &recipient("x@y.z"), None).await.unwrap();
    }
    let names = |names: &[&str]| names.iter().map(|name| name.to_string()).collect::<Vec<_>>();
    assert_eq!(listed(world, &Scope::Every, None, 2).await, (names(&["a", "b"]), false));
    assert_eq!(listed(world, &Scope::Every, Some("b"), 2).await, (names(&["c"]), false));
    assert_eq!(listed(world, &only("b"), None, 2).await, (names(&["b"]), false));
    let page = world.store.list_recipients(&only("b"), &RecipientFilter { after: None, limit: 1 }).await.unwrap();
    let stored = world.store.get_recipient(&Scope::Every, "b").await.unwrap();
    assert_eq!(page.rows, [ListedRecipient { tenant_id: "b".into(), stored: Some(stored) }]);

    // what does not fit on a page is behind it
    let wide = Recipient { locale: "x".repeat(PAGE_BYTES as usize), ..recipient("x@y.z") };
    world.store.put_recipient(&Scope::Every, "a", &wide, Some(&at_version(world, 1))).await.unwrap();
    assert_eq!(listed(world, &Scope::Every, None, 3).await, (names(&["a"]), true));
    assert_eq!(listed(world, &Scope::Every, Some("a"), 3).await, (names(&["b", "c"]), false));
}

async fn deleted_recipient_leaves_nothing_of_the_person(world: &StoreHarness) {
    let ann = recipient("ann@example.org");
    world.store.put_recipient(&Scope::Every, "a", &ann, None).await.unwrap();
    ask(world, &code("x", "1")).await.unwrap();
    assert!(world.store.count_interruption("a", "2026-11-21", Some(1)).await.unwrap());
    // of a question of its own, and of another tenant's
    let links = [("a", "a"), ("b", "a"), ("b", "c")].map(|(tenant_id, recipient)| ApprovalLink {
        batch_id: Uuid::from_u128(7),
        tenant_id: tenant_id.into(),
        recipient: recipient.into(),
        channel: "email".into(),
        expires_at: world.now() + TimeDelta::days(1),
    });
    for (link, hash) in links.iter().zip([[1; 32], [2; 32], [3; 32]]) {
        world.store.remember_link(&hash, link).await.unwrap();
    }
    world.store.delete_recipient(&only("a"), "a", "token:admin").await.unwrap();
    let led = async |hash: u8| world.store.approvals_by_link(&[hash; 32], world.now()).await.is_ok();
    assert_eq!((led(1).await, led(2).await, led(3).await), (false, false, true), "its links lead nowhere");
    let gone = world.store.get_recipient(&Scope::Every, "a").await;
    assert!(matches!(gone, Err(StoreError::NotFound)), "{gone:?}");
    assert_eq!(listed(world, &Scope::Every, None, 9).await, (vec![], false));

    // the code that was sent proves nothing any more, and the day begins anew
    world.store.put_recipient(&Scope::Every, "a", &ann, None).await.unwrap();
    assert_eq!(give(world, &code("x", "1")).await, CodeCheck::Gone);
    assert!(world.store.count_interruption("a", "2026-11-21", Some(1)).await.unwrap());
    // what was sent stays on the record
    let filter = DeliveryFilter { limit: 9, ..DeliveryFilter::default() };
    assert_eq!(world.store.list_deliveries(&Scope::Every, &filter).await.unwrap().len(), 1);
}

async fn recipient_that_was_made_again_is_not_written_over_by_what_was_read_before(world: &StoreHarness) {
    let ann = recipient("ann@example.org");
    let read = world.store.put_recipient(&Scope::Every, "a", &ann, None).await.unwrap();
    let sealed = world.store.sealed_recipients("", 9).await.unwrap().remove(0);
    world.store.delete_recipient(&Scope::Every, "a", "token:admin").await.unwrap();
    world.pass(1);
    let again = world.store.put_recipient(&Scope::Every, "a", &recipient("bob@example.org"), None).await.unwrap();
    assert_eq!((read.version, again.version), (1, 1));
    ask(world, &code("x", "1")).await.unwrap();

    let put = world.store.put_recipient(&Scope::Every, "a", &ann, Some(&read)).await;
    assert!(matches!(put, Err(StoreError::Conflict(_))), "{put:?}");
    let proved = world.store.try_verification(&Scope::Every, &code("x", "1"), &ann, &read).await;
    assert!(matches!(proved, Err(StoreError::Conflict(_))), "{proved:?}");
    assert!(!world.store.rewrap_recipient(&sealed, sealed.body.as_ref().unwrap()).await.unwrap());
    assert_eq!(world.store.get_recipient(&Scope::Every, "a").await.unwrap(), again);
}

async fn deletion_is_for_the_own_scope_and_recorded(world: &StoreHarness) {
    for tenant in ["a", "b"] {
        world.store.put_recipient(&Scope::Every, tenant, &recipient("x@y.z"), None).await.unwrap();
    }
    for (scope, tenant) in [(only("b"), "a"), (Scope::Every, "nobody")] {
        let refused = world.store.delete_recipient(&scope, tenant, "token:b").await;
        assert!(matches!(refused, Err(StoreError::NotFound)), "{refused:?}");
    }
    world.store.delete_recipient(&only("b"), "b", "token:b").await.unwrap();
    assert_eq!(listed(world, &Scope::Every, None, 9).await.0, ["a"]);
    let filter = AuditFilter { limit: 9, ..AuditFilter::default() };
    let acts = world.store.audit_page(&Scope::Every, &filter).await.unwrap().rows;
    let told: Vec<_> =
        acts.iter().map(|act| (act.tenant_id.as_str(), act.action.as_str(), act.actor.as_str())).collect();
    assert_eq!(told, [("b", "recipient.deleted", "token:b")]);
    assert_eq!(acts[0].body, serde_json::json!({}), "nothing about the person");
}
