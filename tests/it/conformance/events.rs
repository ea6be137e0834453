//! The log and the queue of the embedded bus, and its dead letters.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use futures::FutureExt;
use reveille::base::clock::pause;
use reveille::base::id::{Scope, Tenant};
use reveille::domain::event::Event;
use reveille::store::{
    EventBacklog, EventFilter, LeasedEvent, NewDeadLetter, PendingWork, StoreError, StoredDeadLetter,
    StoredDeadLetterFilter,
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::world::{OTHER_WORKER, START, StoreHarness, WORKER, only, open_postgres};
use crate::support::gate::Gate;

on_both!(
    event_is_taken_once_by_its_key,
    batch_is_taken_whole_or_not_at_all,
    leased_events_go_to_no_other_until_the_lease_is_over,
    tenants_have_turns_in_what_is_leased,
    more_tenants_than_one_look_have_their_turns_after_each_other,
    lease_ends_after_some_mib_of_events_and_each_tenant_has_its_turn,
    log_is_read_by_source_type_tenant_and_place,
    events_have_places_by_the_instants_at_which_they_were_published,
    only_what_is_old_and_acknowledged_is_forgotten,
    entry_is_a_dead_letter_once,
    dead_letters_are_listed_by_what_is_asked_for,
    replayed_event_is_queued_under_its_key,
    dropped_letter_is_gone,
    letter_without_a_tenant_belongs_to_nobody,
    stop_ends_the_wait_of_those_who_read_and_of_those_who_come_later,
);

fn event(tenant: &str, id: &str) -> Event {
    of(json!({"tenantid": tenant, "id": id, "source": "mail", "type": "mail.new", "data": {"n": 1}}))
}

fn of(mut fields: Value) -> Event {
    fields["specversion"] = "1.0".into();
    Event::try_from(fields).expect("an event")
}

async fn lease(world: &StoreHarness, limit: usize) -> Vec<LeasedEvent> {
    let until = world.now() + TimeDelta::seconds(60);
    world.store.lease_events(WORKER, until, limit, "", &[]).await.expect("lease").events
}

fn body(leased: &LeasedEvent) -> Event {
    serde_json::from_str(&leased.body).expect("an event")
}

fn places(entries: &[LeasedEvent]) -> Vec<i64> {
    entries.iter().map(|entry| entry.seq).collect()
}

async fn event_is_taken_once_by_its_key(world: &StoreHarness) {
    let first = event("a", "1");
    assert_eq!(world.store.publish_events(&[first.clone(), first.clone(), event("b", "1")]).await.unwrap(), 2);
    assert_eq!(world.store.publish_events(std::slice::from_ref(&first)).await.unwrap(), 0);
    let entries = lease(world, 10).await;
    assert_eq!(entries.iter().map(body).collect::<Vec<_>>(), [first.clone(), event("b", "1")]);
    assert_eq!(world.pending_work().await, PendingWork { event: true, ..PendingWork::default() });
    world.store.acknowledge_events(&places(&entries)).await.unwrap();
    assert_eq!(world.pending_work().await, PendingWork::default());
    assert_eq!(world.store.publish_events(&[first]).await.unwrap(), 0, "known for as long as the log keeps it");
    assert_eq!(lease(world, 10).await, []);
    assert_eq!(world.store.publish_events(&[]).await.unwrap(), 0);
}

async fn batch_is_taken_whole_or_not_at_all(world: &StoreHarness) {
    let many: Vec<Event> = (0..1201).map(|n| event("a", &n.to_string())).collect();
    assert_eq!(world.store.publish_events(&many).await.unwrap(), 1201);
    let entries = lease(world, 2000).await;
    assert_eq!(
        entries.iter().map(|entry| body(entry).id).collect::<Vec<_>>(),
        many.iter().map(|e| e.id.clone()).collect::<Vec<_>>()
    );
    world.store.acknowledge_events(&places(&entries)).await.unwrap();
    assert_eq!(world.count("select count(*) from event_queue").await, 0);

    // the last row of the batch can't be written: none is
    match world.is_postgres() {
        true => world.plant("alter table events add constraint planted check (source <> 'bad')").await,
        false => {
            world
                .plant("create trigger planted before insert on events when new.source = 'bad' begin select raise(abort, 'planted'); end")
                .await
        }
    }
    let bad = of(json!({"tenantid": "a", "id": "x", "source": "bad", "type": "t"}));
    world.store.publish_events(&[event("a", "good"), bad]).await.unwrap_err();
    assert_eq!(world.count("select count(*) from events").await, 1201);
    assert_eq!(lease(world, 10).await, []);
}

/// Else the log would hide a lower number that is committed after a higher one.
#[tokio::test]
async fn on_postgres_publishers_take_turns_so_that_numbers_are_committed_in_order() {
    let world = StoreHarness::postgres().await;
    world.plant("select pg_advisory_lock(8243101700221)").await;
    let [first, second] = ["1", "2"].map(|id| [event("a", id)]);
    let waits = tokio::time::timeout(Duration::from_millis(200), world.store.publish_events(&first)).await;
    assert!(waits.is_err(), "another is publishing: {waits:?}");
    world.plant("select pg_advisory_unlock_all()").await;
    // a statement that nobody waits for any more may come to its end
    assert_eq!(world.store.publish_events(&second).await.unwrap(), 1);
    world.leave().await;
}

#[tokio::test]
async fn on_postgres_events_are_published_leased_and_acknowledged_without_a_transaction_around_it() {
    let mut world = StoreHarness::postgres().await;
    world.store.close().await;
    let gate = Gate::before(&world.url()).await;
    gate.open().await;
    world.store = open_postgres(&gate.url(&world.url()), &world.clock).await;
    let mut counted = Vec::new();
    for round in 0..4 {
        let events = ["a", "b"].map(|id| event("a", &format!("{id}{round}")));
        let before = gate.requests();
        assert_eq!(world.store.publish_events(&events).await.unwrap(), 2);
        let published = gate.requests();
        // other instances are told of them afterwards
        while gate.requests() == published {
            pause(Duration::from_millis(1)).await;
        }
        let told = gate.requests();
        let entries = lease(&world, 10).await;
        let leased = gate.requests();
        assert_eq!(entries.len(), 2);
        world.store.acknowledge_events(&places(&entries)).await.unwrap();
        counted.push([published - before, leased - told, gate.requests() - leased]);
    }
    // a statement is prepared on each of its connections once, and a read asks for the tenants first
    assert_eq!(counted.last(), Some(&[1, 2, 1]), "{counted:?}");
    world.leave().await;
}

#[tokio::test]
async fn on_sqlite_what_the_dead_process_held_is_free_when_the_next_one_opens() {
    let dir = crate::support::binary::TempDir::new();
    let clock = reveille::base::clock::Clock::manual(START);
    let open = async || {
        let settings = reveille::store::Settings::default();
        reveille::store::Store::open(&settings, dir.path(), clock.clone(), |_| {}).await.expect("a store")
    };
    let until = START + TimeDelta::seconds(60);
    let store = open().await;
    store.publish_events(&[event("a", "1")]).await.unwrap();
    assert_eq!(store.lease_events(WORKER, until, 9, "", &[]).await.unwrap().events.len(), 1);
    store.close().await;
    drop(store);
    let again = open().await.lease_events(OTHER_WORKER, until, 9, "", &[]).await.unwrap().events;
    assert_eq!(again.iter().map(|entry| entry.deliveries).collect::<Vec<_>>(), [2]);
}

async fn leased_events_go_to_no_other_until_the_lease_is_over(world: &StoreHarness) {
    let events = ["1", "2", "3"].map(|id| event("a", id));
    world.store.publish_events(&events).await.unwrap();
    let first = lease(world, 2).await;
    assert_eq!(first.iter().map(|entry| entry.deliveries).collect::<Vec<_>>(), [1, 1]);
    let other = world.other_instance().await;
    let until = world.now() + TimeDelta::seconds(60);
    let second = other.lease_events(OTHER_WORKER, until, 10, "", &[]).await.unwrap().events;
    assert_eq!(second.iter().map(body).collect::<Vec<_>>(), [events[2].clone()]);
    assert_eq!(world.store.event_backlog().await.unwrap(), EventBacklog { unread: 0, leased: 3 });

    world.store.acknowledge_events(&[first[0].seq]).await.unwrap();
    world.pass(60);
    assert_eq!(world.store.event_backlog().await.unwrap(), EventBacklog { unread: 2, leased: 0 });
    let again = lease(world, 10).await;
    assert_eq!(places(&again), [first[1].seq, second[0].seq]);
    assert_eq!(again.iter().map(|entry| entry.deliveries).collect::<Vec<_>>(), [2, 2]);
}

async fn log_is_read_by_source_type_tenant_and_place(world: &StoreHarness) {
    assert_eq!(world.store.last_event(&Scope::Every).await.unwrap(), 0);
    let like = |tenant: &str, id: &str, source: &str, kind: &str| {
        of(json!({"tenantid": tenant, "id": id, "source": source, "type": kind}))
    };
    let all = [
        like("a", "1", "mail", "mail.new"),
        like("a", "2", "mail", "mail.gone"),
        like("a", "3", "shop", "mail.new"),
        like("b", "4", "mail", "mail.new"),
        like("a", "5", "mail", "other"),
    ];
    world.store.publish_events(&all).await.unwrap();
    let ids = async |scope: &Scope, filter: EventFilter| {
        let read = world.store.read_events(scope, &EventFilter { limit: 10, ..filter }).await.unwrap();
        read.iter().map(|(_, body)| serde_json::from_str::<Event>(body).unwrap().id).collect::<String>()
    };
    let filter = |source: Option<&str>, kind: Option<&str>| EventFilter {
        source: source.map(str::to_owned),
        kind: kind.map(str::to_owned),
        ..EventFilter::default()
    };
    assert_eq!(ids(&Scope::Every, filter(None, None)).await, "12345");
    assert_eq!(ids(&only("a"), filter(None, None)).await, "1235");
    assert_eq!(ids(&only("c"), filter(None, None)).await, "");
    assert_eq!(ids(&Scope::Every, filter(Some("mail"), None)).await, "1245");
    assert_eq!(ids(&only("a"), filter(Some("mail"), Some("mail.*"))).await, "12");
    assert_eq!(ids(&only("a"), filter(None, Some("mail.new"))).await, "13");
    assert_eq!(ids(&only("a"), filter(None, Some("*"))).await, "1235");

    let read = world.store.read_events(&Scope::Every, &EventFilter { limit: 2, ..filter(None, None) }).await.unwrap();
    assert_eq!(ids(&Scope::Every, EventFilter { after: read[1].0, ..filter(None, None) }).await, "345");
    let last = world.store.last_event(&only("b")).await.unwrap();
    assert_eq!(ids(&Scope::Every, EventFilter { after: last, ..filter(None, None) }).await, "5");

    let newest = |after: i64, kind: Option<&str>| EventFilter { newest_first: true, after, ..filter(None, kind) };
    assert_eq!(ids(&Scope::Every, newest(i64::MAX, None)).await, "54321");
    assert_eq!(ids(&Scope::Every, newest(last, None)).await, "321");
    assert_eq!(ids(&only("a"), newest(i64::MAX, Some("mail.*"))).await, "321");
    assert_eq!(ids(&only("b"), newest(last, None)).await, "");

    let end = Some(read[1].0);
    assert_eq!(ids(&Scope::Every, EventFilter { end: Some(last), ..filter(None, None) }).await, "123");
    assert_eq!(ids(&only("a"), EventFilter { end, ..newest(i64::MAX, None) }).await, "53");
    assert_eq!(ids(&Scope::Every, EventFilter { after: last, end, ..filter(None, None) }).await, "");

    let now = Some(world.now());
    assert_eq!(ids(&Scope::Every, EventFilter { since: now, ..filter(None, None) }).await, "12345");
    assert_eq!(ids(&only("a"), EventFilter { until: now, ..newest(i64::MAX, None) }).await, "");
    let later = now.map(|now| now + TimeDelta::milliseconds(1));
    assert_eq!(ids(&Scope::Every, EventFilter { since: later, ..filter(None, None) }).await, "");
    assert_eq!(ids(&only("a"), EventFilter { until: later, ..newest(i64::MAX, None) }).await, "5321");
}

async fn events_have_places_by_the_instants_at_which_they_were_published(world: &StoreHarness) {
    let span = async |since: Option<DateTime<Utc>>, until: Option<DateTime<Utc>>| {
        world.store.event_span(since, until).await.unwrap()
    };
    let first = world.now();
    assert_eq!(span(Some(first), Some(first)).await, (Some(0), None), "none is kept");
    world.store.publish_events(&["1", "2"].map(|id| event("a", id))).await.unwrap();
    let of_first = world.store.last_event(&Scope::Every).await.unwrap();
    world.clock.advance(TimeDelta::seconds(60));
    let second = world.now();
    world.store.publish_events(&[event("b", "3")]).await.unwrap();
    let of_second = world.store.last_event(&Scope::Every).await.unwrap();
    assert_eq!(span(None, None).await, (None, None));
    assert_eq!(span(Some(first), Some(second)).await, (Some(0), None));
    assert_eq!(span(Some(second), Some(first)).await, (Some(of_first), Some(of_second)));
    // those whose instants are not in the order of their places are between them
    let near = TimeDelta::seconds(5);
    assert_eq!(span(Some(second + near), Some(second - near)).await, (Some(of_first), None));
}

async fn only_what_is_old_and_acknowledged_is_forgotten(world: &StoreHarness) {
    world.store.publish_events(&["1", "2", "3"].map(|id| event("a", id))).await.unwrap();
    let entries = lease(world, 2).await;
    world.store.acknowledge_events(&[entries[0].seq]).await.unwrap();
    assert_eq!(world.store.forget_events(START, 10).await.unwrap(), 0, "none is old");
    let later = START + TimeDelta::seconds(1);
    assert_eq!(world.store.forget_events(later, 10).await.unwrap(), 1, "one is leased still, one was never read");
    world.store.acknowledge_events(&places(&lease(world, 9).await)).await.unwrap();
    world.store.acknowledge_events(&[entries[1].seq]).await.unwrap();
    assert_eq!(world.store.forget_events(later, 1).await.unwrap(), 1);
    assert_eq!(world.store.forget_events(later, 10).await.unwrap(), 1);
    assert_eq!(world.store.last_event(&Scope::Every).await.unwrap(), 0);
}

/// Publishes an event and makes its entry a dead letter.
async fn dead_letter(world: &StoreHarness, event: &Event, error: &str) -> StoredDeadLetter {
    world.store.publish_events(std::slice::from_ref(event)).await.unwrap();
    let [entry] = <[LeasedEvent; 1]>::try_from(lease(world, 1).await).unwrap();
    let letter = NewDeadLetter { seq: entry.seq, event: Some(event), body: &entry.body, error, deliveries: 5 };
    world.store.dead_letter_event(letter).await.unwrap();
    world.store.dead_letter_event(letter).await.unwrap();
    let filter = StoredDeadLetterFilter { limit: 1, ..StoredDeadLetterFilter::default() };
    world.store.list_dead_letters(&Scope::Every, &filter).await.unwrap().rows.remove(0)
}

async fn entry_is_a_dead_letter_once(world: &StoreHarness) {
    let event = event("a", "1");
    let letter = dead_letter(world, &event, "it \0 broke").await;
    assert_eq!(serde_json::from_str::<Event>(&letter.body).unwrap(), event);
    let shown = (letter.tenant_id.as_deref(), letter.error.as_str(), letter.deliveries, letter.created_at);
    assert_eq!(shown, (Some("a"), "it \u{FFFD} broke", 5, START));
    assert_eq!(world.count("select count(*) from dead_letters").await, 1);
    assert_eq!(world.count("select count(*) from event_queue").await, 0);
    assert_eq!(world.store.get_dead_letter(&only("a"), letter.id).await.unwrap(), letter);
    let other = world.store.get_dead_letter(&only("b"), letter.id).await;
    assert!(matches!(other, Err(StoreError::NotFound)), "{other:?}");
}

async fn dead_letters_are_listed_by_what_is_asked_for(world: &StoreHarness) {
    let mut letters = Vec::new();
    for (tenant, id, error) in [("a", "1", "Boom"), ("a", "2", "100% sure"), ("b", "3", "boom_")] {
        letters.push(dead_letter(world, &event(tenant, id), error).await);
    }
    letters.reverse();
    let list = async |scope: &Scope, filter: StoredDeadLetterFilter| {
        let filter = StoredDeadLetterFilter { limit: 10, ..filter };
        world.store.list_dead_letters(scope, &filter).await.unwrap().rows
    };
    let nothing = StoredDeadLetterFilter::default;
    assert_eq!(list(&Scope::Every, nothing()).await, letters);
    assert_eq!(list(&only("a"), nothing()).await, letters[1..]);
    let with = |error: &str| StoredDeadLetterFilter { error: Some(error.into()), ..nothing() };
    assert_eq!(list(&Scope::Every, with("BOOM")).await, [letters[0].clone(), letters[2].clone()]);
    assert_eq!(list(&Scope::Every, with("m_")).await, letters[..1], "no character stands for any other");
    assert_eq!(list(&Scope::Every, with("0%")).await, letters[1..2]);
    let kind = |kind: &str| StoredDeadLetterFilter { kind: Some(kind.into()), ..nothing() };
    assert_eq!(list(&only("b"), kind("mail.*")).await, letters[..1]);
    assert_eq!(list(&only("b"), kind("mail")).await, []);
    let source = |source: &str| StoredDeadLetterFilter { source: Some(source.into()), ..nothing() };
    assert_eq!(list(&only("b"), source("mail")).await, letters[..1]);
    assert_eq!(list(&only("b"), source("shop")).await, []);
    let after = StoredDeadLetterFilter { before: Some(letters[0].id), ..nothing() };
    assert_eq!(list(&Scope::Every, after).await, letters[1..]);
}

async fn replayed_event_is_queued_under_its_key(world: &StoreHarness) {
    let event = event("a", "1");
    let letter = dead_letter(world, &event, "boom").await;
    let other = world.store.replay_dead_letter(&only("b"), letter.id, &event).await;
    assert!(matches!(other, Err(StoreError::NotFound)), "{other:?}");
    world.store.replay_dead_letter(&only("a"), letter.id, &event).await.unwrap();
    let twice = world.store.replay_dead_letter(&only("a"), letter.id, &event).await;
    assert!(matches!(twice, Err(StoreError::NotFound)), "{twice:?}");
    assert_eq!(
        lease(world, 10).await.iter().map(|entry| (body(entry), entry.deliveries)).collect::<Vec<_>>(),
        [(event.clone(), 1)]
    );

    // an event that the log has forgotten is in it again
    world.plant("delete from event_queue").await;
    world.store.forget_events(START + TimeDelta::seconds(1), 10).await.unwrap();
    let letter = dead_letter(world, &event, "boom").await;
    world.plant("delete from events").await;
    world.store.replay_dead_letter(&Scope::Every, letter.id, &event).await.unwrap();
    assert_eq!(lease(world, 10).await.iter().map(body).collect::<Vec<_>>(), [event]);
    assert_eq!(world.count("select count(*) from dead_letters").await, 0);
}

async fn dropped_letter_is_gone(world: &StoreHarness) {
    let letter = dead_letter(world, &event("a", "1"), "boom").await;
    let other = world.store.drop_dead_letter(&only("b"), letter.id).await;
    assert!(matches!(other, Err(StoreError::NotFound)), "{other:?}");
    world.store.drop_dead_letter(&only("a"), letter.id).await.unwrap();
    let twice = world.store.drop_dead_letter(&only("a"), letter.id).await;
    assert!(matches!(twice, Err(StoreError::NotFound)), "{twice:?}");
    assert_eq!(world.count("select count(*) from dead_letters").await, 0);
}

async fn letter_without_a_tenant_belongs_to_nobody(world: &StoreHarness) {
    let letter = NewDeadLetter { seq: 7, event: None, body: "not an event", error: "it is not JSON", deliveries: 1 };
    world.store.dead_letter_event(letter).await.unwrap();
    let filter = StoredDeadLetterFilter { limit: 9, ..StoredDeadLetterFilter::default() };
    let all = world.store.list_dead_letters(&Scope::Every, &filter).await.unwrap().rows;
    assert_eq!(
        all.iter().map(|letter| (letter.tenant_id.clone(), letter.body.as_str())).collect::<Vec<_>>(),
        [(None, "not an event")]
    );
    assert_eq!(world.store.list_dead_letters(&only("a"), &filter).await.unwrap().rows, []);
    let other: Result<(), StoreError> = world.store.drop_dead_letter(&only("a"), all[0].id).await;
    assert!(matches!(other, Err(StoreError::NotFound)), "{other:?}");
    assert!(matches!(world.store.get_dead_letter(&Scope::Every, Uuid::nil()).await, Err(StoreError::NotFound)));
}

async fn stop_ends_the_wait_of_those_who_read_and_of_those_who_come_later(world: &StoreHarness) {
    let mut waits = Box::pin(world.store.event_reads_stopped());
    assert_eq!((&mut waits).now_or_never(), None);
    world.store.stop_event_reads();
    assert_eq!((waits.now_or_never(), world.store.event_reads_stopped().now_or_never()), (Some(()), Some(())));
    world.store.begin_reads();
    assert_eq!(world.store.event_reads_stopped().now_or_never(), None, "it was started again");
}

/// The tenants of what is leased, with how many of each.
fn tenants_of(entries: &[LeasedEvent]) -> Vec<(String, usize)> {
    let mut counts = std::collections::BTreeMap::new();
    entries.iter().for_each(|entry| *counts.entry(body(entry).tenant.to_string()).or_insert(0) += 1);
    counts.into_iter().collect()
}

async fn tenants_have_turns_in_what_is_leased(world: &StoreHarness) {
    let loud: Vec<Event> = (0..60).map(|id| event("loud", &id.to_string())).collect();
    world.store.publish_events(&loud).await.unwrap();
    world.store.publish_events(&[event("quiet", "1"), event("still", "1"), event("still", "2")]).await.unwrap();
    let first = lease(world, 12).await;
    let pairs =
        |expected: &[(&str, usize)]| expected.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect::<Vec<_>>();
    assert_eq!(tenants_of(&first), pairs(&[("loud", 9), ("quiet", 1), ("still", 2)]));
    assert!(first.is_sorted_by_key(|entry| entry.seq));
    world.store.publish_events(&[event("quiet", "2")]).await.unwrap();
    let until = world.now() + TimeDelta::seconds(60);
    let full = [Tenant::new("loud").unwrap()];
    let beside = world.store.lease_events(WORKER, until, 12, "", &full).await.unwrap();
    assert_eq!(tenants_of(&beside.events), pairs(&[("quiet", 1)]));
    assert_eq!(tenants_of(&lease(world, 200).await), pairs(&[("loud", 51)]), "nothing is lost");
}

async fn more_tenants_than_one_look_have_their_turns_after_each_other(world: &StoreHarness) {
    for id in ["1", "2"] {
        let all: Vec<Event> = ["a", "b", "c", "d", "e"].iter().map(|tenant| event(tenant, id)).collect();
        world.store.publish_events(&all).await.unwrap();
    }
    let until = world.now() + TimeDelta::seconds(60);
    let (mut turn, mut had) = (String::new(), Vec::new());
    for _ in 0..3 {
        let leased = world.store.lease_events(WORKER, until, 2, &turn, &[]).await.unwrap();
        had.extend(tenants_of(&leased.events).into_iter().map(|(tenant, _)| tenant));
        turn = leased.turn;
    }
    assert_eq!(had[..4], ["a", "b", "c", "d"]);
    assert!(had[4..].contains(&"e".to_owned()), "{had:?}");
}

async fn lease_ends_after_some_mib_of_events_and_each_tenant_has_its_turn(world: &StoreHarness) {
    let most = 4 * 1024 * 1024;
    let long = |tenant: &str, id: usize| {
        let data = "x".repeat(250_000);
        of(json!({"tenantid": tenant, "id": id.to_string(), "source": "mail", "type": "mail.new", "data": data}))
    };
    for ids in (0..40).collect::<Vec<usize>>().chunks(10) {
        let some: Vec<Event> = ids.iter().map(|id| long("loud", *id)).collect();
        world.store.publish_events(&some).await.unwrap();
    }
    // more tenants than have room together
    let others: Vec<Event> = (0..20).map(|number| long(&format!("t{number:02}"), number)).collect();
    world.store.publish_events(&others).await.unwrap();
    world.store.publish_events(&[event("zero", "1")]).await.unwrap();
    let until = world.now() + TimeDelta::seconds(60);
    let (mut turn, mut counts, mut leases) = (String::new(), Vec::new(), 0);
    while !counts.iter().any(|(tenant, _)| tenant == "zero") {
        let leased = world.store.lease_events(WORKER, until, 100, &turn, &[]).await.unwrap();
        let bytes: usize = leased.events.iter().map(|entry| entry.body.len()).sum();
        assert!(!leased.events.is_empty() && bytes <= most + 250_100, "{bytes}");
        counts.extend(tenants_of(&leased.events));
        turn = leased.turn;
        leases += 1;
        assert!(leases <= 3, "the last tenant has its turn: {counts:?}");
    }
    let mut all: usize = counts.iter().map(|(_, count)| *count).sum();
    loop {
        let more = lease(world, 100).await.len();
        if more == 0 {
            break;
        }
        all += more;
    }
    assert_eq!(all, 61, "nothing is lost");
}

#[tokio::test]
async fn postgres_waits_for_the_disk_where_an_event_is_published_and_for_none_where_it_would_come_again() {
    let world = StoreHarness::postgres().await;
    let judged = "create function judge_commit () returns trigger language plpgsql as $$ begin
                      if (current_setting('synchronous_commit') = 'off') <> (tg_op <> 'INSERT') then
                          raise exception '% commits with synchronous_commit %', tg_op, current_setting('synchronous_commit');
                      end if;
                      return null;
                  end $$";
    world.plant(judged).await;
    let at_commit = "create constraint trigger judge_commit after insert or update or delete on event_queue
                     deferrable initially deferred for each row execute function judge_commit()";
    world.plant(at_commit).await;
    world.store.publish_events(&[event("a", "1")]).await.unwrap();
    let leased = lease(&world, 10).await;
    world.store.acknowledge_events(&places(&leased)).await.unwrap();
    assert_eq!((leased.len(), lease(&world, 10).await.len()), (1, 0));
    world.leave().await;
}
