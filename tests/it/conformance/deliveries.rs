//! The outbox: each message once, each attempt by one worker, and its end on the record.

use chrono::{DateTime, TimeDelta, Utc};
use futures::future::join_all;
use reveille::base::id::Scope;
use reveille::domain::notification::{
    Delivery, DeliveryClaim, DeliveryReport, DeliveryState, HoldReason, Mark, MessageKind, NewDelivery, ReportedFate,
    SubjectRef,
};
use reveille::store::{DeliveryFilter, PendingWork, QueuedDelivery, StoreError, StoredAnswer};
use uuid::Uuid;

use super::approvals::{plan, quick_plan};
use super::world::{START, StoreHarness, only};
use crate::support::outbox::claim_due;

on_both!(
    message_is_stored_once_for_each_key_and_channel,
    recipient_of_its_own_has_messages_of_its_own,
    deliveries_are_claimed_in_order_and_by_one_worker,
    two_instances_never_claim_the_same,
    claim_that_was_never_marked_is_claimed_again_and_says_so,
    due_deliveries_are_read_in_due_order_line_by_line,
    requested_wait_and_doubt_of_a_delivery_are_kept,
    doubt_falls_back_in_the_same_transaction,
    deliveries_are_looked_up_by_indexes_among_many,
    outcome_of_an_attempt_is_recorded,
    waiting_uses_up_no_attempt,
    held_delivery_joins_a_digest_and_shares_its_outcome,
    digest_that_falls_back_takes_its_messages_along,
    digest_that_cannot_be_read_takes_no_message_more_and_leaves_out_what_cannot,
    interruptions_are_counted_up_to_a_limit,
    counts_and_codes_are_forgotten,
    failed_one_falls_back_in_the_same_transaction,
    late_mark_changes_nothing,
    marks_that_are_written_at_once_have_each_its_own_answer,
    failed_or_doubtful_one_is_sent_again,
    pending_or_delivered_message_is_not_sent_again,
    report_settles_what_was_taken_on_once,
    report_of_failure_falls_back_in_the_same_transaction,
    report_that_comes_before_the_attempt_is_recorded_stands,
    report_after_a_second_try_is_told_from_one_on_the_first,
    doubt_is_settled_by_a_late_report,
    doubtful_digest_is_settled_with_its_messages_by_a_late_report,
    messages_whose_next_digest_has_gone_already_fail_with_theirs,
    deliveries_without_a_report_become_unknown_in_batches,
    deliveries_are_listed_newest_first_by_every_filter,
    reference_of_a_delivery_is_read_as_it_stands,
);

async fn reference_of_a_delivery_is_read_as_it_stands(world: &StoreHarness) {
    let task = world.task(serde_json::json!({"interval": "1h"})).await;
    let run = world.run_now(&task).await;
    let told = post(world, &NewDelivery { run_id: Some(run), ..message("k1") }).await;
    let referred = world.store.referred(&told).await.unwrap();
    assert_eq!(referred.run, Some(world.get_run(run).await));
    assert_eq!((referred.task_name.as_deref(), referred.credential), (Some("Morning mail"), None));
    let gone = post(world, &message("k2")).await;
    let referred = world.store.referred(&gone).await.unwrap();
    assert_eq!((referred.run, referred.task_name, referred.credential), (None, None, None));
}

fn at(seconds: i64) -> DateTime<Utc> {
    START + TimeDelta::seconds(seconds)
}

fn message(key: &str) -> NewDelivery {
    NewDelivery {
        tenant_id: "a".into(),
        recipient: "a".into(),
        channel: "email".into(),
        fallback: vec!["webhook".into()],
        dedupe_key: key.into(),
        run_id: Some(Uuid::from_u128(5)),
        subject_ref: Some(SubjectRef::Questions { batch_id: Uuid::from_u128(6) }),
        kind: MessageKind::Message,
        urgency: MessageKind::Message.urgency(),
        subject: Some("Hello".into()),
        text: Some("Good morning".into()),
    }
}

async fn post(world: &StoreHarness, message: &NewDelivery) -> Delivery {
    world.store.post_delivery(message).await.unwrap();
    world.store.find_delivery(&Scope::Every, "a", &message.dedupe_key).await.unwrap()
}

async fn claim(world: &StoreHarness) -> Vec<DeliveryClaim> {
    claim_due(&world.store, world.now() + TimeDelta::seconds(60), 100).await.unwrap()
}

async fn get(world: &StoreHarness, id: Uuid) -> Delivery {
    world.store.get_delivery(&Scope::Every, id).await.unwrap()
}

async fn listed(world: &StoreHarness, filter: DeliveryFilter) -> Vec<Delivery> {
    world.store.list_deliveries(&Scope::Every, &DeliveryFilter { limit: 9, ..filter }).await.unwrap()
}

async fn message_is_stored_once_for_each_key_and_channel(world: &StoreHarness) {
    let posted = post(world, &message("k")).await;
    let expected = Delivery {
        id: posted.id,
        tenant_id: "a".into(),
        recipient: "a".into(),
        channel: "email".into(),
        fallback: vec!["webhook".into()],
        dedupe_key: "k".into(),
        run_id: Some(Uuid::from_u128(5)),
        subject_ref: Some(SubjectRef::Questions { batch_id: Uuid::from_u128(6) }),
        kind: MessageKind::Message,
        urgency: MessageKind::Message.urgency(),
        subject: Some("Hello".into()),
        text: Some("Good morning".into()),
        state: DeliveryState::Pending,
        attempts: 0,
        next_at: Some(START),
        hold_reason: None,
        due_at: None,
        digest_id: None,
        maybe_delivered: false,
        last_error: None,
        provider_id: None,
        created_at: START,
        sent_at: None,
        delivered_at: None,
    };
    assert_eq!(posted, expected);
    world.pass(1);
    world.store.post_delivery(&NewDelivery { text: Some("other".into()), ..message("k") }).await.unwrap();
    assert_eq!(listed(world, DeliveryFilter::default()).await, std::slice::from_ref(&posted));
    world.store.post_delivery(&NewDelivery { channel: "webhook".into(), ..message("k") }).await.unwrap();
    world
        .store
        .post_delivery(&NewDelivery { tenant_id: "b".into(), recipient: "b".into(), ..message("k") })
        .await
        .unwrap();
    assert_eq!(world.store.count_deliveries(&Scope::Every).await.unwrap(), 3);
    assert_eq!(world.store.find_delivery(&Scope::Every, "a", "k").await.unwrap(), posted);
    let none = world.store.find_delivery(&Scope::Every, "a", "other").await;
    assert!(matches!(none, Err(StoreError::NotFound)), "{none:?}");
}

async fn recipient_of_its_own_has_messages_of_its_own(world: &StoreHarness) {
    world.store.post_delivery(&message("k")).await.unwrap();
    world.store.post_delivery(&NewDelivery { recipient: "ann".into(), ..message("k") }).await.unwrap();
    let recipients: Vec<String> =
        listed(world, DeliveryFilter::default()).await.into_iter().map(|d| d.recipient).collect();
    assert_eq!(recipients, ["ann", "a"]);
}

async fn deliveries_are_claimed_in_order_and_by_one_worker(world: &StoreHarness) {
    assert_eq!(world.store.next_delivery().await.unwrap(), None);
    let first = post(world, &message("1")).await;
    world.pass(1);
    let second = post(world, &message("2")).await;
    assert_eq!(world.store.next_delivery().await.unwrap(), Some(START));
    assert_eq!(world.pending_work().await, PendingWork { delivery: Some(START), ..PendingWork::default() });
    let one = claim_due(&world.store, at(61), 1).await.unwrap();
    let claimed = Delivery { attempts: 1, ..first.clone() };
    assert_eq!((one.len(), &one[0].delivery, one[0].interrupted), (1, &claimed, false));
    assert_eq!(get(world, first.id).await, Delivery { attempts: 1, next_at: Some(at(61)), ..first });
    let rest = claim(world).await;
    assert_eq!((rest.len(), rest[0].delivery.id), (1, second.id));
    assert_eq!(claim(world).await, []);
    assert_eq!(world.store.next_delivery().await.unwrap(), Some(at(61)));
    assert_ne!(one[0].lease_token, rest[0].lease_token);
}

async fn two_instances_never_claim_the_same(world: &StoreHarness) {
    for n in 0..30 {
        world.store.post_delivery(&message(&n.to_string())).await.unwrap();
    }
    let other = world.other_instance().await;
    let (ours, theirs) = tokio::join!(claim_due(&world.store, at(60), 20), claim_due(&other, at(60), 20));
    let mut all = [ours.unwrap(), theirs.unwrap()].concat();
    all.extend(claim(world).await);
    let ids: std::collections::BTreeSet<Uuid> = all.iter().map(|claim| claim.delivery.id).collect();
    assert_eq!((all.len(), ids.len()), (30, 30));
}

async fn claim_that_was_never_marked_is_claimed_again_and_says_so(world: &StoreHarness) {
    post(world, &message("k")).await;
    let first = claim(world).await.remove(0);
    world.pass(60);
    let second = claim(world).await.remove(0);
    assert_eq!((second.interrupted, second.delivery.attempts), (true, 2));
    assert_ne!(second.lease_token, first.lease_token);
}

async fn due_deliveries_are_read_in_due_order_line_by_line(world: &StoreHarness) {
    let of = |tenant: &str, channel: &str, key: &str| NewDelivery {
        tenant_id: tenant.into(),
        recipient: tenant.into(),
        channel: channel.into(),
        ..message(key)
    };
    for (tenant, channel) in [("b", "sms"), ("a", "sms"), ("b", "email"), ("a", "sms")] {
        world.store.post_delivery(&of(tenant, channel, &world.now().to_string())).await.unwrap();
        world.pass(1);
    }
    let due = world.store.due_deliveries(3).await.unwrap();
    let shown = |waiting: &QueuedDelivery| (waiting.channel.clone(), waiting.tenant_id.clone(), waiting.next_at);
    let line = |channel: &str, tenant: &str, seconds| (channel.to_owned(), tenant.to_owned(), at(seconds));
    let expected = [line("sms", "b", 0), line("sms", "a", 1), line("email", "b", 2)];
    assert_eq!(due.iter().map(shown).collect::<Vec<_>>(), expected);
    let next = async |channel: &str, tenant: Option<&str>| {
        world.store.next_queue(channel, tenant).await.unwrap().as_ref().map(shown)
    };
    assert_eq!(next("", None).await, Some(line("email", "b", 2)));
    assert_eq!(next("email", Some("b")).await, Some(line("sms", "a", 1)), "the first of two");
    assert_eq!(next("sms", Some("a")).await, Some(line("sms", "b", 0)));
    assert_eq!((next("sms", Some("b")).await, next("sms", None).await), (None, None));
    assert_eq!(next("email", None).await, Some(line("sms", "a", 1)), "the next channel");
    // claimed deliveries are in their lines until then, and not due
    let ids: Vec<Uuid> = due.iter().map(|waiting| waiting.id).collect();
    assert_eq!(world.store.claim_deliveries(&ids, at(60)).await.unwrap().len(), 3);
    assert_eq!(world.store.claim_deliveries(&ids, at(60)).await.unwrap(), []);
    assert_eq!(world.store.claim_deliveries(&[], at(60)).await.unwrap(), []);
    assert_eq!(world.store.due_deliveries(9).await.unwrap().len(), 1);
    assert_eq!(next("", None).await, Some(line("email", "b", 60)));
}

async fn requested_wait_and_doubt_of_a_delivery_are_kept(world: &StoreHarness) {
    let posted = post(world, &message("k")).await;
    let day = |days: i64| at(days * 86_400);
    let mark = |at, asked, maybe_delivered| Mark::Retry { at, error: "busy".into(), asked, maybe_delivered };
    let first = claim(world).await.remove(0);
    world.store.mark_delivery(&first, &mark(day(1), true, false)).await.unwrap();
    let stands = get(world, posted.id).await;
    assert_eq!(
        (stands.due_since(), stands.maybe_delivered),
        (day(1), false),
        "its age counts from when it was asked for"
    );
    world.clock.advance(day(1) - world.now());
    let second = claim(world).await.remove(0);
    world.store.mark_delivery(&second, &mark(day(2), false, true)).await.unwrap();
    world.clock.advance(day(2) - world.now());
    let third = claim(world).await.remove(0);
    assert_eq!((third.delivery.due_since(), third.may_have_been_sent(), third.interrupted), (day(1), true, false));
    world.store.mark_delivery(&third, &mark(day(2), false, false)).await.unwrap();
    assert!(get(world, posted.id).await.maybe_delivered, "doubt stays");
    // an attempt whose process died leaves doubt, though nothing was sent after it
    let died = post(world, &message("died")).await;
    claim(world).await;
    world.pass(60);
    let again = claim(world).await.into_iter().find(|claim| claim.delivery.id == died.id).unwrap();
    let wait = Mark::Wait { at: world.now(), hold_reason: None, error: None };
    world.store.mark_delivery(&again, &wait).await.unwrap();
    let stands = get(world, died.id).await;
    assert_eq!((stands.maybe_delivered, stands.due_at), (true, None));
}

async fn doubt_falls_back_in_the_same_transaction(world: &StoreHarness) {
    let posted = post(world, &message("k")).await;
    let claimed = claim(world).await.remove(0);
    let fall_back = claimed.delivery.fall_back().map(Box::new);
    let mark = Mark::Unknown { error: "no answer".into(), fall_back };
    assert_eq!(world.store.mark_delivery(&claimed, &mark).await.unwrap(), DeliveryState::Unknown);
    let next = listed(world, DeliveryFilter { channel: Some("webhook".into()), ..DeliveryFilter::default() }).await;
    assert_eq!((next.len(), next[0].dedupe_key.as_str(), next[0].state), (1, "k", DeliveryState::Pending));
    assert_eq!(get(world, posted.id).await.state, DeliveryState::Unknown);
}

async fn deliveries_are_looked_up_by_indexes_among_many(world: &StoreHarness) {
    let posted = post(world, &message("k")).await;
    let (numbers, key) = match world.is_postgres() {
        true => ("select n from generate_series(1, 20000) as n (n)", "md5(cast(n.n as text))::uuid"),
        false => (
            "with recursive n (n) as (select 1 union all select n + 1 from n where n < 20000) select n from n",
            "unhex(printf('%032x', n.n))",
        ),
    };
    // nearly all have arrived; of those that wait, nearly all are of one tenant on one channel
    world
        .plant(&format!(
            "insert into deliveries (id, tenant_id, recipient, channel, dedupe_key, kind, subject, body, fallback, state,
                                     next_at, created_at, urgency)
             select {key}, d.tenant_id, d.recipient, 'sms', n.n, d.kind, d.subject, d.body, d.fallback,
                    case when n.n % 20 = 0 then 'pending' when n.n % 1000 = 1 then 'failed' else 'delivered' end,
                    case when n.n % 20 = 0 then d.next_at end, d.created_at, d.urgency
               from deliveries d, ({numbers}) as n where d.dedupe_key = 'k'"
        ))
        .await;
    world.plant("analyze").await;
    let failed = DeliveryFilter { state: Some(DeliveryState::Failed), ..DeliveryFilter::default() };
    let mut last = listed(world, failed.clone()).await;
    let mut count = 0;
    while let Some(before) = last.last().map(|delivery| delivery.id) {
        count += last.len();
        last = listed(world, DeliveryFilter { before: Some(before), ..failed.clone() }).await;
    }
    assert_eq!((count, world.store.next_queue("email", None).await.unwrap().unwrap().channel), (20, "sms".into()));
    let after = "and d.id < ".to_owned() + if world.is_postgres() { "gen_random_uuid()" } else { "randomblob(16)" };
    let columns = "select d.id from deliveries d";
    for (of_whom, index) in [("and d.tenant_id = 'a'", "deliveries_of_tenant_state"), ("", "deliveries_of_state")] {
        for page in ["", &after] {
            let list =
                format!("{columns} where true {of_whom} and d.state = 'failed' {page} order by d.id desc limit 50");
            let plan = plan(world, &list).await;
            let sorts = plan.contains("TEMP B-TREE") || plan.contains("Sort");
            let by_index = ["deliveries_of_tenant_state", "deliveries_of_state"].iter().any(|name| plan.contains(name));
            assert!(by_index && !sorts && !plan.contains("Seq Scan"), "{index}: {plan}");
        }
    }
    let waiting = "state = 'pending' and next_at is not null";
    for (statement, index) in [
        (
            format!(
                "select id from deliveries where {waiting} and (channel, tenant_id) > ('sms', 'a')
                  order by channel, tenant_id, next_at limit 1"
            ),
            "deliveries_pending_of_tenant",
        ),
        (
            format!(
                "select id from deliveries where {waiting} and channel > 'email'
                  order by channel, tenant_id, next_at limit 1"
            ),
            "deliveries_pending_of_tenant",
        ),
        (
            "select id from deliveries where state = 'pending' and next_at <= '2999-01-01' order by next_at limit 256"
                .to_owned(),
            "deliveries_next",
        ),
    ] {
        let plan = quick_plan(world, &statement).await;
        let sorts = plan.contains("TEMP B-TREE") || plan.contains("Sort");
        assert!(plan.contains(index) && !sorts && !plan.contains("Seq Scan"), "{index}: {plan}");
    }
    assert_eq!(get(world, posted.id).await, posted);
}

async fn outcome_of_an_attempt_is_recorded(world: &StoreHarness) {
    let named = || Some("queued as 7".to_owned());
    let error = || "mailbox full".to_owned();
    let marks = [
        (Mark::Delivered { provider_id: named() }, DeliveryState::Delivered),
        (Mark::Sent { provider_id: named() }, DeliveryState::Sent),
        (Mark::Retry { at: at(90), error: error(), asked: false, maybe_delivered: false }, DeliveryState::Pending),
        (Mark::Failed { error: error(), fall_back: None }, DeliveryState::Failed),
        (Mark::Unknown { error: error(), fall_back: None }, DeliveryState::Unknown),
    ];
    for (n, (mark, state)) in marks.into_iter().enumerate() {
        let posted = post(world, &message(&n.to_string())).await;
        let claimed = claim(world).await.remove(0);
        world.pass(1);
        assert_eq!(world.store.mark_delivery(&claimed, &mark).await.unwrap(), state);
        let (now, went) = (Some(world.now()), matches!(state, DeliveryState::Sent | DeliveryState::Delivered));
        let expected = Delivery {
            state,
            attempts: 1,
            next_at: (state == DeliveryState::Pending).then_some(at(90)),
            last_error: (!went).then(error),
            provider_id: if went { named() } else { None },
            sent_at: if went { now } else { None },
            delivered_at: if state == DeliveryState::Delivered { now } else { None },
            ..posted
        };
        assert_eq!(get(world, expected.id).await, expected);
    }
    assert_eq!(world.store.count_deliveries(&Scope::Every).await.unwrap(), 1);
    // an attempt that was ended is no interrupted one
    world.clock.advance(at(90) - world.now());
    let again = claim(world).await;
    assert_eq!((again.len(), again[0].interrupted, again[0].delivery.attempts), (1, false, 2));
}

async fn waiting_uses_up_no_attempt(world: &StoreHarness) {
    let posted = post(world, &message("k")).await;
    let until = world.now() + TimeDelta::seconds(30);
    for (hold_reason, error) in [(Some(HoldReason::QuietHours), None), (None, Some("left alone".to_owned()))] {
        let claimed = claim(world).await.remove(0);
        assert_eq!((claimed.delivery.attempts, claimed.interrupted), (1, false));
        let at = world.now() + TimeDelta::seconds(30);
        let mark = Mark::Wait { at, hold_reason, error: error.clone() };
        assert_eq!(world.store.mark_delivery(&claimed, &mark).await.unwrap(), DeliveryState::Pending);
        let expected = Delivery {
            next_at: Some(at),
            hold_reason: Some(HoldReason::QuietHours),
            due_at: Some(until),
            last_error: error,
            ..posted.clone()
        };
        assert_eq!(get(world, posted.id).await, expected);
        world.pass(30);
    }
}

/// Claims what is due, and holds it until `at`; answers the digest.
async fn hold(world: &StoreHarness, at: DateTime<Utc>) -> Delivery {
    for claimed in claim(world).await {
        let digest = Box::new(claimed.delivery.digest(at));
        let mark = Mark::Hold { hold_reason: HoldReason::Budget, digest, at };
        assert_eq!(world.store.mark_delivery(&claimed, &mark).await.unwrap(), DeliveryState::Pending);
    }
    let digests = listed(world, DeliveryFilter::default()).await;
    digests.into_iter().find(|delivery| delivery.kind == MessageKind::Digest).expect("a digest")
}

async fn held_delivery_joins_a_digest_and_shares_its_outcome(world: &StoreHarness) {
    let first = post(world, &message("1")).await;
    let second = post(world, &NewDelivery { fallback: vec!["sms".into()], ..message("2") }).await;
    let digest = hold(world, at(600)).await;
    assert_eq!(
        (digest.next_at, &digest.fallback[..], digest.attempts),
        (Some(at(600)), &["webhook".to_owned(), "sms".into()][..], 0)
    );
    let held = |posted: &Delivery| Delivery {
        hold_reason: Some(HoldReason::Budget),
        digest_id: Some(digest.id),
        next_at: None,
        ..posted.clone()
    };
    assert_eq!(get(world, first.id).await, held(&first));
    let (members, count) = world.store.digest_members(&Scope::Every, digest.id, 1).await.unwrap();
    assert_eq!((members, count), (vec![held(&first)], 2));
    let (of_others, none) = world.store.digest_members(&only("b"), digest.id, 9).await.unwrap();
    assert_eq!((of_others, none), (vec![], 0));
    let of_it = DeliveryFilter { digest_id: Some(digest.id), ..DeliveryFilter::default() };
    assert_eq!(listed(world, of_it).await, [held(&second), held(&first)]);
    assert_eq!(world.store.next_delivery().await.unwrap(), Some(at(600)));

    world.pass(600);
    let claimed = claim(world).await;
    assert_eq!((claimed.len(), claimed[0].delivery.id), (1, digest.id));
    // whoever comes now is due by itself
    let late = post(world, &message("3")).await;
    let late_claim = claim(world).await.remove(0);
    let digest_again = Box::new(late.digest(at(600)));
    let mark = Mark::Hold { hold_reason: HoldReason::Budget, digest: digest_again, at: at(600) };
    world.store.mark_delivery(&late_claim, &mark).await.unwrap();
    assert_eq!(get(world, late.id).await, Delivery { next_at: Some(at(600)), due_at: Some(at(600)), ..late });

    let error = || Some("mailbox full".to_owned());
    let mark = Mark::Failed { error: error().unwrap(), fall_back: None };
    world.store.mark_delivery(&claimed[0], &mark).await.unwrap();
    for posted in [&first, &second] {
        let failed = Delivery { state: DeliveryState::Failed, last_error: error(), ..held(posted) };
        assert_eq!(get(world, posted.id).await, failed);
    }
    // again, with all that it tells
    world.store.retry_delivery(&Scope::Every, digest.id, |_| Ok(None)).await.unwrap();
    assert_eq!(world.store.digest_members(&Scope::Every, digest.id, 9).await.unwrap().1, 2);
    let again = claim(world).await.into_iter().find(|claim| claim.delivery.id == digest.id).unwrap();
    world.store.mark_delivery(&again, &Mark::Delivered { provider_id: None }).await.unwrap();
    let done = Delivery {
        state: DeliveryState::Delivered,
        sent_at: Some(at(600)),
        delivered_at: Some(at(600)),
        ..held(&first)
    };
    assert_eq!(get(world, first.id).await, done);
}

async fn digest_that_falls_back_takes_its_messages_along(world: &StoreHarness) {
    let posted = post(world, &message("1")).await;
    let digest = hold(world, at(60)).await;
    world.pass(60);
    let claimed = claim(world).await.remove(0);
    let fall_back = claimed.delivery.fall_back().map(Box::new);
    world.store.mark_delivery(&claimed, &Mark::Failed { error: "no".into(), fall_back }).await.unwrap();
    let next = claim(world).await.remove(0);
    assert_eq!((next.delivery.kind, next.delivery.channel.as_str()), (MessageKind::Digest, "webhook"));
    assert_ne!(next.delivery.id, digest.id);
    let moved = get(world, posted.id).await;
    assert_eq!((moved.state, moved.digest_id), (DeliveryState::Pending, Some(next.delivery.id)));
    // whoever got the first of them finds there what it told
    for told in [&digest, &next.delivery] {
        let (named, count) = world.store.digest_messages(told, 9).await.unwrap();
        assert_eq!((named.iter().map(|one| one.id).collect::<Vec<_>>(), count), (vec![posted.id], 1));
    }
    world.store.mark_delivery(&next, &Mark::Unknown { error: "who knows".into(), fall_back: None }).await.unwrap();
    assert_eq!(get(world, posted.id).await.state, DeliveryState::Unknown);
    assert_eq!(get(world, digest.id).await.state, DeliveryState::Failed);
}

async fn digest_that_cannot_be_read_takes_no_message_more_and_leaves_out_what_cannot(world: &StoreHarness) {
    let (first, second) = (post(world, &message("1")).await, post(world, &message("2")).await);
    let digest = hold(world, at(600)).await;
    world.plant("update deliveries set kind = 'telepathy' where dedupe_key = '1'").await;
    let (members, count) = world.store.digest_members(&Scope::Every, digest.id, 9).await.unwrap();
    let ids = |found: &[Delivery]| found.iter().map(|one| one.id).collect::<Vec<_>>();
    assert_eq!((ids(&members), count), (vec![second.id], 2));
    let (told, count) = world.store.digest_messages(&digest, 9).await.unwrap();
    assert_eq!((ids(&told), count), (vec![second.id], 2), "all but {}", first.id);
    let fallback = r#"update deliveries set fallback = '{"no": "list"}' where kind = 'digest'"#;
    world.plant(fallback).await;
    let late = post(world, &message("3")).await;
    let claimed = claim(world).await.remove(0);
    let again = Box::new(claimed.delivery.digest(at(600)));
    let mark = Mark::Hold { hold_reason: HoldReason::Budget, digest: again, at: at(600) };
    assert_eq!(world.store.mark_delivery(&claimed, &mark).await.unwrap(), DeliveryState::Pending);
    let held = get(world, late.id).await;
    assert_eq!((held.next_at, held.hold_reason), (Some(at(600)), Some(HoldReason::Budget)), "it waits by itself");
    assert_eq!(held.digest_id, None);
}

async fn interruptions_are_counted_up_to_a_limit(world: &StoreHarness) {
    let count = async |day: &str, limit| world.store.count_interruption("ann", day, limit).await.unwrap();
    assert!(!count("2026-03-01", Some(0)).await);
    assert!(count("2026-03-01", Some(2)).await && count("2026-03-01", Some(2)).await);
    assert!(!count("2026-03-01", Some(2)).await);
    assert!(count("2026-03-01", None).await, "what is urgent counts and goes through");
    assert!(!count("2026-03-01", Some(3)).await && count("2026-03-01", Some(4)).await);
    assert!(count("2026-03-02", Some(1)).await, "another day");
    world.store.uncount_interruption("ann", "2026-03-02").await.unwrap();
    world.store.uncount_interruption("ann", "2026-03-02").await.unwrap();
    assert!(count("2026-03-02", Some(1)).await && !count("2026-03-02", Some(1)).await, "given back, and once only");
    assert!(world.store.count_interruption("bob", "2026-03-01", Some(1)).await.unwrap());
    let other = world.other_instance().await;
    let (one, two) = tokio::join!(
        world.store.count_interruption("eve", "2026-03-01", Some(1)),
        other.count_interruption("eve", "2026-03-01", Some(1))
    );
    assert_ne!(one.unwrap(), two.unwrap());
}

async fn counts_and_codes_are_forgotten(world: &StoreHarness) {
    for day in ["2026-02-26", "2026-02-27", "2026-02-28"] {
        world.store.count_interruption("ann", day, None).await.unwrap();
    }
    let before = world.now() - TimeDelta::days(1);
    assert_eq!(world.store.forget_counts(before, 1).await.unwrap(), 1);
    assert_eq!(world.store.forget_counts(before, 9).await.unwrap(), 1);
    assert_eq!(world.store.forget_counts(before, 9).await.unwrap(), 0);
    assert!(!world.store.count_interruption("ann", "2026-02-28", Some(1)).await.unwrap(), "this one is still known");
}

async fn failed_one_falls_back_in_the_same_transaction(world: &StoreHarness) {
    let posted = post(world, &message("k")).await;
    let claimed = claim(world).await.remove(0);
    let fall_back = posted.fall_back().map(Box::new);
    let mark = Mark::Failed { error: "no such user".into(), fall_back };
    world.store.mark_delivery(&claimed, &mark).await.unwrap();
    let [next, failed] = <[Delivery; 2]>::try_from(listed(world, DeliveryFilter::default()).await).unwrap();
    assert_eq!((failed.id, failed.state), (posted.id, DeliveryState::Failed));
    assert_eq!((next.channel.as_str(), next.dedupe_key.as_str(), next.state), ("webhook", "k", DeliveryState::Pending));
    assert_eq!((next.fallback, next.text), (Vec::<String>::new(), posted.text));
}

async fn late_mark_changes_nothing(world: &StoreHarness) {
    post(world, &message("k")).await;
    let late = claim(world).await.remove(0);
    world.pass(60);
    let now = claim(world).await.remove(0);
    let fall_back = late.delivery.fall_back().map(Box::new);
    let mark = Mark::Failed { error: "late".into(), fall_back };
    let refused = world.store.mark_delivery(&late, &mark).await;
    assert!(matches!(refused, Err(StoreError::LeaseLost)), "{refused:?}");
    assert_eq!(world.store.count_deliveries(&Scope::Every).await.unwrap(), 1);
    world.store.mark_delivery(&now, &Mark::Delivered { provider_id: None }).await.unwrap();
    // and a mark that is repeated because its answer was lost
    let refused = world.store.mark_delivery(&now, &Mark::Unknown { error: "twice".into(), fall_back: None }).await;
    assert!(matches!(refused, Err(StoreError::LeaseLost)), "{refused:?}");
    assert_eq!(get(world, now.delivery.id).await.state, DeliveryState::Delivered);
}

async fn marks_that_are_written_at_once_have_each_its_own_answer(world: &StoreHarness) {
    for key in 0..80 {
        post(world, &message(&key.to_string())).await;
    }
    let claims = claim(world).await;
    // one was claimed by somebody else meanwhile, of one the provider has said already that it came
    let (late, reported) = (&claims[7], &claims[8]);
    world.plant("update deliveries set lease_token = lease_token + 1 where dedupe_key = '7'").await;
    world.plant("update deliveries set state = 'delivered', next_at = null where dedupe_key = '8'").await;
    let retry = Mark::Retry { at: at(300), error: "busy".into(), asked: false, maybe_delivered: false };
    let mark = |place: usize| match place % 2 {
        0 => retry.clone(),
        _ => Mark::Sent { provider_id: Some(place.to_string()) },
    };
    let marks: Vec<Mark> = (0..claims.len()).map(mark).collect();
    let answers = join_all(claims.iter().zip(&marks).map(|(claim, mark)| world.store.mark_delivery(claim, mark))).await;
    assert_eq!(answers.len(), 80);
    for (place, (claim, answer)) in claims.iter().zip(answers).enumerate() {
        let stands = get(world, claim.delivery.id).await;
        match answer {
            Err(StoreError::LeaseLost) => assert_eq!(claim.delivery.id, late.delivery.id),
            Ok(state) => {
                assert_eq!(stands.state, state, "{place}");
                let expected = match place % 2 {
                    _ if claim.delivery.id == reported.delivery.id => DeliveryState::Delivered,
                    0 => DeliveryState::Pending,
                    _ => DeliveryState::Sent,
                };
                assert_eq!(state, expected, "{place}");
                let provider_id = (place % 2 == 1).then(|| place.to_string());
                assert_eq!(stands.provider_id, provider_id);
            }
            Err(error) => panic!("{place}: {error}"),
        }
    }
    assert_eq!((late.delivery.dedupe_key.as_str(), reported.delivery.dedupe_key.as_str()), ("7", "8"));
}

async fn failed_or_doubtful_one_is_sent_again(world: &StoreHarness) {
    for mark in [
        Mark::Failed { error: "no".into(), fall_back: None },
        Mark::Unknown { error: "who knows".into(), fall_back: None },
    ] {
        let posted = post(world, &message(&format!("{mark:?}"))).await;
        let claimed = claim(world).await.remove(0);
        world.store.mark_delivery(&claimed, &mark).await.unwrap();
        world.pass(5);
        let StoredAnswer::Done(again) =
            world.store.retry_delivery(&Scope::Every, posted.id, |_| Ok(None)).await.unwrap()
        else {
            panic!("no key was sent")
        };
        assert_eq!((again.state, again.attempts, again.next_at), (DeliveryState::Pending, 0, Some(world.now())));
        assert_eq!((again.due_since(), &again), (world.now(), &get(world, posted.id).await));
        let claimed = claim(world).await.remove(0);
        assert_eq!(
            (claimed.delivery.id, claimed.delivery.attempts, claimed.may_have_been_sent()),
            (posted.id, 1, false)
        );
    }
}

async fn pending_or_delivered_message_is_not_sent_again(world: &StoreHarness) {
    let posted = post(world, &message("k")).await;
    for _ in 0..2 {
        let refused = world.store.retry_delivery(&Scope::Every, posted.id, |_| Ok(None)).await;
        assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
        if let [claimed] = claim(world).await.as_slice() {
            world.store.mark_delivery(claimed, &Mark::Delivered { provider_id: None }).await.unwrap();
        }
    }
    assert_eq!(get(world, posted.id).await.state, DeliveryState::Delivered);
    let nobody = world.store.retry_delivery(&Scope::Every, Uuid::nil(), |_| Ok(None)).await;
    assert!(matches!(nobody, Err(StoreError::NotFound)), "{nobody:?}");
}

async fn deliveries_are_listed_newest_first_by_every_filter(world: &StoreHarness) {
    let first = post(world, &message("1")).await;
    let second = post(world, &NewDelivery { channel: "webhook".into(), run_id: None, ..message("2") }).await;
    world
        .store
        .post_delivery(&NewDelivery { tenant_id: "b".into(), recipient: "b".into(), ..message("3") })
        .await
        .unwrap();
    let claimed = claim(world).await;
    let mine = claimed.iter().find(|claim| claim.delivery.id == first.id).unwrap();
    world.store.mark_delivery(mine, &Mark::Delivered { provider_id: None }).await.unwrap();
    let ids =
        async |filter: DeliveryFilter| -> Vec<Uuid> { listed(world, filter).await.iter().map(|d| d.id).collect() };
    let all = ids(DeliveryFilter::default()).await;
    assert_eq!((all.len(), &all[1..]), (3, [second.id, first.id].as_slice()));
    let every = DeliveryFilter { limit: 9, ..DeliveryFilter::default() };
    let page = world.store.delivery_summaries(&Scope::Every, &every).await.unwrap();
    let whole = listed(world, DeliveryFilter::default()).await;
    let told = |delivery: &Delivery| (delivery.clone(), delivery.text.as_ref().map(|text| text.len() as i64));
    let summaries: Vec<_> = page.rows.into_iter().map(|summary| (summary.delivery, summary.text_bytes)).collect();
    assert_eq!(summaries, whole.iter().map(told).collect::<Vec<_>>());
    let filter = DeliveryFilter { limit: 1, ..DeliveryFilter::default() };
    assert_eq!(world.store.list_deliveries(&Scope::Every, &filter).await.unwrap().len(), 1);
    assert_eq!(ids(DeliveryFilter { before: Some(second.id), ..DeliveryFilter::default() }).await, [first.id]);
    assert_eq!(ids(DeliveryFilter { tenant: Some("b".into()), ..DeliveryFilter::default() }).await, all[..1]);
    assert_eq!(ids(DeliveryFilter { run_id: Some(Uuid::from_u128(5)), ..DeliveryFilter::default() }).await.len(), 2);
    assert_eq!(ids(DeliveryFilter { channel: Some("webhook".into()), ..DeliveryFilter::default() }).await, [second.id]);
    let delivered = DeliveryFilter { state: Some(DeliveryState::Delivered), ..DeliveryFilter::default() };
    assert_eq!(ids(delivered).await, [first.id]);
}

fn report(provider_id: &str, fate: ReportedFate) -> DeliveryReport {
    DeliveryReport { provider_id: Some(provider_id.into()), fate }
}

fn failed() -> ReportedFate {
    ReportedFate::Failed { why: "no such number".into() }
}

fn sent(provider_id: &str) -> Mark {
    Mark::Sent { provider_id: Some(provider_id.into()) }
}

/// A delivery that the provider took on as `SM1`.
async fn taken_on(world: &StoreHarness, key: &str) -> Delivery {
    let posted = post(world, &message(key)).await;
    let claimed = claim(world).await.remove(0);
    assert_eq!(claimed.delivery.id, posted.id);
    world.store.mark_delivery(&claimed, &sent("SM1")).await.unwrap();
    get(world, posted.id).await
}

async fn receive(world: &StoreHarness, id: Uuid, report: &DeliveryReport) -> DeliveryState {
    world.store.receive_receipt(id, "email", report).await.unwrap()
}

async fn report_settles_what_was_taken_on_once(world: &StoreHarness) {
    let taken = taken_on(world, "k").await;
    world.pass(5);
    assert_eq!(receive(world, taken.id, &report("SM1", ReportedFate::UnderWay)).await, DeliveryState::Sent);
    assert_eq!(get(world, taken.id).await, taken, "what is under way changes nothing");
    assert_eq!(receive(world, taken.id, &report("SM1", ReportedFate::Delivered)).await, DeliveryState::Delivered);
    let delivered = Delivery { state: DeliveryState::Delivered, delivered_at: Some(at(5)), ..taken.clone() };
    assert_eq!(get(world, taken.id).await, delivered);
    world.pass(5);
    for late in [ReportedFate::Delivered, ReportedFate::UnderWay, failed()] {
        assert_eq!(receive(world, taken.id, &report("SM1", late)).await, DeliveryState::Delivered);
    }
    assert_eq!(get(world, taken.id).await, delivered, "what comes after the end changes nothing");
    assert_eq!(world.store.count_deliveries(&Scope::Every).await.unwrap(), 0);
    for (id, channel) in [(taken.id, "webhook"), (Uuid::nil(), "email")] {
        let nobody = world.store.receive_receipt(id, channel, &report("SM1", failed())).await;
        assert!(matches!(nobody, Err(StoreError::NotFound)), "{nobody:?}");
    }
}

async fn report_of_failure_falls_back_in_the_same_transaction(world: &StoreHarness) {
    let taken = taken_on(world, "k").await;
    world.pass(5);
    for _ in 0..2 {
        assert_eq!(receive(world, taken.id, &report("SM1", failed())).await, DeliveryState::Failed);
    }
    let [next, failed] = <[Delivery; 2]>::try_from(listed(world, DeliveryFilter::default()).await).unwrap();
    let last_error = Some("no such number".to_owned());
    assert_eq!(failed, Delivery { state: DeliveryState::Failed, last_error, ..taken });
    assert_eq!((next.channel.as_str(), next.dedupe_key.as_str(), next.state), ("webhook", "k", DeliveryState::Pending));
    assert_eq!((next.next_at, next.fallback), (Some(at(5)), vec![]));
}

async fn report_that_comes_before_the_attempt_is_recorded_stands(world: &StoreHarness) {
    // whatever the worker makes of its attempt: the provider knows better
    let fall_back = |posted: &Delivery| posted.fall_back().map(Box::new);
    for (n, fate) in [ReportedFate::Delivered, failed()].into_iter().enumerate() {
        for kind in 0..4 {
            let posted = post(world, &message(&format!("{n} {kind}"))).await;
            let claimed = claim(world).await.into_iter().find(|claim| claim.delivery.id == posted.id).unwrap();
            let settled = receive(world, posted.id, &report("SM1", fate.clone())).await;
            let error = "no answer".to_owned();
            let mark = match kind {
                0 => sent("SM1"),
                1 => Mark::Unknown { error, fall_back: None },
                2 => Mark::Retry { at: at(60), error, asked: false, maybe_delivered: false },
                _ => Mark::Failed { error, fall_back: fall_back(&posted) },
            };
            assert_eq!(world.store.mark_delivery(&claimed, &mark).await.unwrap(), settled);
            let stands = get(world, posted.id).await;
            let told = if n == 0 { None } else { Some("no such number") };
            assert_eq!((stands.state, stands.last_error.as_deref(), stands.next_at), (settled, told, None));
            assert_eq!(stands.provider_id.as_deref(), Some("SM1"));
            let filter = DeliveryFilter { channel: Some("webhook".into()), ..DeliveryFilter::default() };
            let fell_back = listed(world, filter).await.iter().filter(|d| d.dedupe_key == posted.dedupe_key).count();
            assert_eq!(fell_back, n, "a fall-back is made for a failure, once");
            let late = world.store.mark_delivery(&claimed, &mark).await;
            assert!(matches!(late, Err(StoreError::LeaseLost)), "{late:?}");
        }
    }
}

async fn report_after_a_second_try_is_told_from_one_on_the_first(world: &StoreHarness) {
    let taken = taken_on(world, "k").await;
    world.store.lose_receipts(at(0), 10).await.unwrap();
    world.store.retry_delivery(&Scope::Every, taken.id, |_| Ok(None)).await.unwrap();
    let second = claim(world).await.remove(0);
    assert!(!second.interrupted);
    assert_eq!(receive(world, taken.id, &report("SM1", failed())).await, DeliveryState::Pending);
    world.store.mark_delivery(&second, &sent("SM2")).await.unwrap();
    assert_eq!(receive(world, taken.id, &report("SM1", failed())).await, DeliveryState::Sent);
    assert_eq!(receive(world, taken.id, &report("SM2", failed())).await, DeliveryState::Failed);
    // a report may settle an attempt whose worker has died; the next try is no interrupted one
    world.store.retry_delivery(&Scope::Every, taken.id, |_| Ok(None)).await.unwrap();
    claim(world).await;
    assert_eq!(receive(world, taken.id, &report("SM3", failed())).await, DeliveryState::Failed);
    world.store.retry_delivery(&Scope::Every, taken.id, |_| Ok(None)).await.unwrap();
    let next = claim(world).await.into_iter().find(|claim| claim.delivery.id == taken.id).unwrap();
    assert!(!next.interrupted);
}

async fn doubt_is_settled_by_a_late_report(world: &StoreHarness) {
    for (key, fate, state) in
        [("1", ReportedFate::Delivered, DeliveryState::Delivered), ("2", failed(), DeliveryState::Failed)]
    {
        let posted = post(world, &message(key)).await;
        let claimed = claim(world).await.into_iter().find(|claim| claim.delivery.id == posted.id).unwrap();
        world
            .store
            .mark_delivery(&claimed, &Mark::Unknown { error: "no answer".into(), fall_back: None })
            .await
            .unwrap();
        assert_eq!(receive(world, posted.id, &report("SM1", fate)).await, state);
        let settled = get(world, posted.id).await;
        assert_eq!((settled.state, settled.provider_id.as_deref()), (state, Some("SM1")));
    }
}

/// A digest of one message that was taken on as `SM1` and never reported on; the message, and the digest.
async fn doubtful_digest(world: &StoreHarness, key: &str) -> (Uuid, Uuid) {
    let posted = post(world, &message(key)).await;
    let digest = hold(world, world.now()).await;
    let claimed = claim(world).await.remove(0);
    assert_eq!(claimed.delivery.id, digest.id);
    world.store.mark_delivery(&claimed, &sent("SM1")).await.unwrap();
    assert_eq!(world.store.lose_receipts(world.now(), 10).await.unwrap(), 2, "it and its message");
    assert_eq!(get(world, posted.id).await.state, DeliveryState::Unknown);
    (posted.id, digest.id)
}

async fn doubtful_digest_is_settled_with_its_messages_by_a_late_report(world: &StoreHarness) {
    let (message, digest) = doubtful_digest(world, "1").await;
    assert_eq!(receive(world, digest, &report("SM1", ReportedFate::Delivered)).await, DeliveryState::Delivered);
    let told = get(world, message).await;
    assert_eq!((told.state, told.delivered_at), (DeliveryState::Delivered, Some(world.now())));

    world.pass(60);
    let (message, digest) = doubtful_digest(world, "2").await;
    assert_eq!(receive(world, digest, &report("SM1", failed())).await, DeliveryState::Failed);
    let next = claim(world).await.remove(0);
    assert_eq!((next.delivery.kind, next.delivery.channel.as_str()), (MessageKind::Digest, "webhook"));
    let moved = get(world, message).await;
    assert_eq!((moved.state, moved.digest_id), (DeliveryState::Pending, Some(next.delivery.id)));
}

async fn messages_whose_next_digest_has_gone_already_fail_with_theirs(world: &StoreHarness) {
    let fail = async |claimed: &DeliveryClaim| {
        let fall_back = claimed.delivery.fall_back().map(Box::new);
        world.store.mark_delivery(claimed, &Mark::Failed { error: "no".into(), fall_back }).await.unwrap();
    };
    post(world, &message("1")).await;
    let digest = hold(world, START).await;
    fail(&claim(world).await.remove(0)).await;
    let next = claim(world).await.remove(0);
    world.store.mark_delivery(&next, &Mark::Delivered { provider_id: None }).await.unwrap();
    // somebody sends the digest again, another message joins it, and it fails again
    let late = post(world, &message("2")).await;
    let late_claim = claim(world).await.remove(0);
    world.store.retry_delivery(&Scope::Every, digest.id, |_| Ok(None)).await.unwrap();
    let mark = Mark::Hold { hold_reason: HoldReason::Budget, digest: Box::new(late.digest(START)), at: START };
    world.store.mark_delivery(&late_claim, &mark).await.unwrap();
    assert_eq!(get(world, late.id).await.digest_id, Some(digest.id));
    fail(&claim(world).await.remove(0)).await;
    let late = get(world, late.id).await;
    assert_eq!((late.state, late.last_error.as_deref()), (DeliveryState::Failed, Some("no")));
}

async fn deliveries_without_a_report_become_unknown_in_batches(world: &StoreHarness) {
    let mut taken = Vec::new();
    for n in 0..3 {
        taken.push(taken_on(world, &n.to_string()).await);
        world.pass(1);
    }
    let states = async || {
        let mut states = Vec::new();
        for delivery in &taken {
            states.push(get(world, delivery.id).await.state);
        }
        states
    };
    use DeliveryState::{Sent, Unknown};
    assert_eq!(world.pending_work().await.sent, Some(at(0)));
    assert_eq!(world.store.lose_receipts(at(-1), 10).await.unwrap(), 0);
    assert_eq!(world.store.lose_receipts(at(1), 1).await.unwrap(), 1);
    assert_eq!(states().await, [Unknown, Sent, Sent], "the oldest first");
    assert_eq!(world.store.lose_receipts(at(1), 10).await.unwrap(), 1);
    assert_eq!(states().await, [Unknown, Unknown, Sent]);
    assert_eq!(world.pending_work().await.sent, Some(at(2)));
    let why = "the provider took it on and never said whether it arrived";
    assert_eq!(get(world, taken[0].id).await.last_error.as_deref(), Some(why));
    assert_eq!(listed(world, DeliveryFilter::default()).await.len(), 3, "what may have arrived falls back nowhere");
}
