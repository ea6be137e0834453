//! Behaviour of every bus: each case runs on SQLite, on Postgres, and on Redis.

use std::time::Duration;

use reveille::base::id::{Scope, Tenant};
use reveille::ports::bus::{BusBacklog, BusError, DeadLetterFilter, LogFilter, Settings};
use serde_json::json;

use super::world::{
    BusHarness, acknowledge, dead_letters, event, ids_of, log, log_filter, names_of, of, only, read, read_nothing,
};
use crate::conformance::world::StoreHarness;

/// Makes of each case three tests.
macro_rules! on_every_bus {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            use super::*;

            #[tokio::test]
            async fn sqlite() {
                let stage = BusHarness::embedded(StoreHarness::sqlite().await).await;
                super::$case(&stage).await;
                stage.leave().await;
            }

            #[tokio::test]
            async fn postgres() {
                let stage = BusHarness::embedded(StoreHarness::postgres().await).await;
                super::$case(&stage).await;
                stage.leave().await;
            }

            #[tokio::test]
            async fn redis() {
                let stage = BusHarness::redis().await;
                super::$case(&stage).await;
                stage.leave().await;
            }
        }
    )+};
}

on_every_bus!(
    published_events_are_read_in_order_and_once,
    waiting_reader_gets_what_is_published_meanwhile,
    no_more_is_answered_than_was_asked_for,
    events_published_before_the_first_reader_are_read,
    entries_of_a_dead_consumer_come_again_and_are_counted,
    acknowledged_entry_never_comes_again,
    two_consumers_share_what_comes,
    entries_of_a_full_tenant_are_left_uncounted_and_those_behind_them_are_read,
    dead_letter_waits_until_it_is_replayed,
    dead_letters_are_found_by_what_is_asked_for_and_dropped,
    log_goes_on_where_it_ended,
    events_are_found_by_their_ids_and_ids_by_their_beginnings,
    tail_begins_behind_the_newest,
    another_busses_positions_are_refused,
    bus_backlog_is_counted,
);

async fn published_events_are_read_in_order_and_once(stage: &BusHarness) {
    let bus = &*stage.bus;
    read_nothing(bus).await;
    let events: Vec<_> = (0..50).map(|n| event("a", &n.to_string())).collect();
    stage.publish(&events[..20]).await;
    stage.publish(&events[20..]).await;
    let entries = read(bus, 50).await;
    let got: Vec<_> = entries.iter().map(|entry| entry.event.clone().unwrap()).collect();
    assert_eq!(got, events);
    assert!(entries.iter().all(|entry| entry.deliveries == 1));
    read_nothing(bus).await;
}

async fn waiting_reader_gets_what_is_published_meanwhile(stage: &BusHarness) {
    read_nothing(&*stage.bus).await;
    let reader = stage.bus.clone();
    let reading = tokio::spawn(async move { reader.read(10, Duration::from_secs(20)).await });
    reveille::base::clock::pause(Duration::from_millis(50)).await;
    let begun = std::time::Instant::now();
    stage.publish(&[event("a", "1")]).await;
    assert_eq!(ids_of(&reading.await.unwrap().unwrap()), ["1"]);
    assert!(begun.elapsed() < Duration::from_secs(10), "it must not wait until its time is over");
}

async fn no_more_is_answered_than_was_asked_for(stage: &BusHarness) {
    let events: Vec<_> = (0..40).map(|n| event(&format!("tenant_{}", n % 8), &n.to_string())).collect();
    stage.publish(&events).await;
    let mut got = Vec::new();
    while got.len() < 40 {
        let some = stage.bus.read(7, Duration::from_secs(5)).await.unwrap();
        assert!((1..=7).contains(&some.len()), "{some:?}");
        got.extend(some);
    }
    let mut ids: Vec<u32> = ids_of(&got).iter().map(|id| id.parse().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..40).collect::<Vec<_>>());
}

async fn events_published_before_the_first_reader_are_read(stage: &BusHarness) {
    stage.publish(&[event("a", "1")]).await;
    let late = stage.another().await;
    assert_eq!(ids_of(&read(&*late, 1).await), ["1"]);
}

async fn entries_of_a_dead_consumer_come_again_and_are_counted(stage: &BusHarness) {
    stage.publish(&[event("a", "1"), event("a", "2"), event("b", "3")]).await;
    let dead = stage.another().await;
    let held = read(&*dead, 3).await;
    dead.acknowledge(&[held.iter().find(|entry| entry.event.as_ref().unwrap().id == "1").unwrap().id.clone()])
        .await
        .unwrap();
    drop(dead);
    for deliveries in [2, 3] {
        stage.stall().await;
        let again = read(&*stage.bus, 2).await;
        let mut ids = ids_of(&again);
        ids.sort_unstable();
        assert_eq!(ids, ["2", "3"]);
        assert!(again.iter().all(|entry| entry.deliveries == deliveries), "{again:?}");
    }
}

async fn acknowledged_entry_never_comes_again(stage: &BusHarness) {
    stage.publish(&[event("a", "1"), event("a", "2"), event("a", "3")]).await;
    let entries = read(&*stage.bus, 3).await;
    acknowledge(&*stage.bus, &entries[..2]).await;
    acknowledge(&*stage.bus, &entries[..2]).await;
    acknowledge(&*stage.bus, &[]).await;
    stage.stall().await;
    assert_eq!(ids_of(&read(&*stage.bus, 1).await), ["3"]);
    read_nothing(&*stage.bus).await;
    read_nothing(&*stage.another().await).await;
}

async fn two_consumers_share_what_comes(stage: &BusHarness) {
    let other = stage.another().await;
    read_nothing(&*other).await;
    stage.publish(&(0..10).map(|n| event("a", &n.to_string())).collect::<Vec<_>>()).await;
    let mut all = read(&*stage.bus, 4).await;
    all.extend(read(&*other, 6).await);
    assert_eq!(ids_of(&all), (0..10).map(|n| n.to_string()).collect::<Vec<_>>());
}

async fn dead_letter_waits_until_it_is_replayed(stage: &BusHarness) {
    let bus = &*stage.bus;
    let poison = event("a", "1");
    stage.publish(std::slice::from_ref(&poison)).await;
    let [entry] = <[_; 1]>::try_from(read(bus, 1).await).unwrap();
    bus.dead_letter_entry(&entry, "the filter broke").await.unwrap();
    stage.stall().await;
    read_nothing(bus).await;

    let [letter] = <[_; 1]>::try_from(dead_letters(bus, &only("a")).await.unwrap()).unwrap();
    assert_eq!(
        (letter.tenant.as_deref(), letter.error.as_str(), letter.deliveries),
        (Some("a"), "the filter broke", 1)
    );
    assert_eq!(serde_json::from_str::<serde_json::Value>(&letter.body).unwrap(), poison.to_value());
    assert_eq!(bus.dead_letter(&Scope::Every, &letter.id).await.unwrap(), letter);
    for stranger in [bus.dead_letter(&only("b"), &letter.id).await.map(drop), bus.replay(&only("b"), &letter.id).await]
    {
        assert_eq!(stranger, Err(BusError::NotFound));
    }

    bus.replay(&only("a"), &letter.id).await.unwrap();
    assert_eq!(bus.replay(&only("a"), &letter.id).await, Err(BusError::NotFound));
    let [again] = <[_; 1]>::try_from(read(bus, 1).await).unwrap();
    assert_eq!((again.event.unwrap().key(), again.deliveries), (poison.key(), 1));
    assert_eq!(dead_letters(bus, &Scope::Every).await.unwrap(), []);
}

async fn dead_letters_are_found_by_what_is_asked_for_and_dropped(stage: &BusHarness) {
    let bus = &*stage.bus;
    let shop = of(json!({"tenantid": "a", "id": "2", "source": "shop", "type": "order.paid"}));
    for (event, error) in [(event("a", "1"), "Boom"), (shop, "no such thing"), (event("b", "3"), "boom again")] {
        stage.publish(&[event]).await;
        let entries = read(bus, 1).await;
        bus.dead_letter_entry(&entries[0], error).await.unwrap();
    }
    let found = async |scope: Scope, filter: DeadLetterFilter| {
        let letters = bus.dead_letters(&scope, &DeadLetterFilter { limit: 10, ..filter }).await.unwrap();
        letters.into_iter().map(|letter| letter.error).collect::<Vec<_>>()
    };
    let nothing = DeadLetterFilter::default;
    assert_eq!(found(Scope::Every, nothing()).await, ["boom again", "no such thing", "Boom"]);
    assert_eq!(found(only("a"), nothing()).await, ["no such thing", "Boom"]);
    let error = |part: &str| DeadLetterFilter { error: Some(part.into()), ..nothing() };
    assert_eq!(found(Scope::Every, error("BOOM")).await, ["boom again", "Boom"]);
    let kind = |kind: &str| DeadLetterFilter { kind: Some(kind.into()), ..nothing() };
    assert_eq!(found(Scope::Every, kind("order.*")).await, ["no such thing"]);
    let source = |source: &str| DeadLetterFilter { source: Some(source.into()), ..nothing() };
    assert_eq!(found(only("b"), source("mail")).await, ["boom again"]);
    let newest = dead_letters(bus, &Scope::Every).await.unwrap().remove(0);
    let after = DeadLetterFilter { before: Some(newest.id.clone()), ..nothing() };
    assert_eq!(found(Scope::Every, after).await, ["no such thing", "Boom"]);

    assert_eq!(bus.drop_dead_letter(&only("a"), &newest.id).await, Err(BusError::NotFound));
    bus.drop_dead_letter(&Scope::Every, &newest.id).await.unwrap();
    assert_eq!(bus.drop_dead_letter(&Scope::Every, &newest.id).await, Err(BusError::NotFound));
    assert_eq!(bus.drop_dead_letter(&Scope::Every, "no id of ours").await, Err(BusError::NotFound));
    assert_eq!(found(Scope::Every, nothing()).await, ["no such thing", "Boom"]);
}

async fn log_goes_on_where_it_ended(stage: &BusHarness) {
    let bus = &*stage.bus;
    assert_eq!(log(bus, &Scope::Every, &log_filter(5)).await.0, [""; 0]);
    let like = |tenant: &str, id: &str, source: &str, kind: &str| {
        of(json!({"tenantid": tenant, "id": id, "source": source, "type": kind}))
    };
    for event in [
        like("a", "1", "mail", "mail.new"),
        like("b", "2", "mail", "mail.gone"),
        like("a", "3", "shop", "order"),
        like("c", "4", "mail", "mail.new"),
        like("a", "5", "mail", "mail.gone"),
    ] {
        stage.publish(&[event]).await;
        // entries of one millisecond in two streams have no order
        reveille::base::clock::pause(Duration::from_millis(2)).await;
    }
    let (first, position, more) = log(bus, &Scope::Every, &log_filter(2)).await;
    assert_eq!((first, more), (vec!["1".into(), "2".into()], true));
    let rest = LogFilter { after: Some(position), ..log_filter(5) };
    let (second, end, more) = log(bus, &Scope::Every, &rest).await;
    assert_eq!((second, more), (vec!["3".into(), "4".into(), "5".into()], false));
    let nothing = LogFilter { after: Some(end.clone()), ..log_filter(5) };
    assert_eq!(log(bus, &Scope::Every, &nothing).await, (vec![], end, false));

    let ids = async |scope: Scope, source: Option<&str>, kind: Option<&str>| {
        let filter = LogFilter { source: source.map(str::to_owned), kind: kind.map(str::to_owned), ..log_filter(10) };
        log(bus, &scope, &filter).await.0.concat()
    };
    assert_eq!(ids(only("a"), None, None).await, "135");
    assert_eq!(ids(only("d"), None, None).await, "");
    assert_eq!(ids(Scope::Every, Some("mail"), Some("mail.*")).await, "1245");
    assert_eq!(ids(only("a"), Some("mail"), Some("mail.gone")).await, "5");
    assert_eq!(ids(only("a"), None, Some("mail")).await, "");

    // each event has the position behind it
    let all = bus.log(&Scope::Every, &log_filter(10)).await.unwrap();
    let after = LogFilter { after: Some(all.events[2].position.clone()), ..log_filter(10) };
    assert_eq!(log(bus, &Scope::Every, &after).await.0, ["4", "5"]);
}

async fn events_are_found_by_their_ids_and_ids_by_their_beginnings(stage: &BusHarness) {
    let bus = &*stage.bus;
    let like = |tenant: &str, id: &str, source: &str| {
        of(json!({"tenantid": tenant, "id": id, "source": source, "type": "new"}))
    };
    let events = [like("a", "order-1", "mail"), like("a", "order-1", "shop"), like("a", "order-2", "shop")];
    stage.publish(&events).await;
    stage.publish(&[like(&beside_a(), "order-3", "shop")]).await;
    let a = Tenant::new("a").unwrap();
    assert_eq!(bus.find(&a, Some("mail"), "order-1").await.unwrap(), Some(events[0].clone()));
    assert_eq!(bus.find(&a, None, "order-2").await.unwrap(), Some(events[2].clone()));
    assert_eq!(bus.find(&a, None, "order").await.unwrap(), None);
    assert_eq!(bus.find(&a, None, "order-3").await.unwrap(), None);
    let ids = async |source: Option<&str>, beginning: &str| {
        let mut ids = bus.ids(&a, source, beginning).await.unwrap();
        ids.sort();
        ids
    };
    assert_eq!(ids(None, "order").await, ["order-1", "order-2"], "one that two sources have is one id");
    assert_eq!(ids(Some("mail"), "o").await, ["order-1"]);
    assert_eq!(ids(None, "order-2").await, ["order-2"]);
    assert_eq!(ids(None, "order-3").await, [""; 0]);
}

async fn tail_begins_behind_the_newest(stage: &BusHarness) {
    let bus = &*stage.bus;
    let nowhere = bus.end(&Scope::Every).await.unwrap();
    stage.publish(&[event("a", "1"), event("b", "2")]).await;
    let from = |position: String| LogFilter { after: Some(position), ..log_filter(9) };
    let mut both = log(bus, &Scope::Every, &from(nowhere)).await.0;
    both.sort_unstable();
    assert_eq!(both, ["1", "2"]);
    let (every, own) = (bus.end(&Scope::Every).await.unwrap(), bus.end(&only("a")).await.unwrap());
    stage.publish(&[event("b", "3"), event("a", "4"), event("c", "5")]).await;
    let mut new = log(bus, &Scope::Every, &from(every)).await.0;
    new.sort_unstable();
    assert_eq!(new, ["3", "4", "5"]);
    assert_eq!(log(bus, &only("a"), &from(own)).await.0, ["4"]);
}

async fn another_busses_positions_are_refused(stage: &BusHarness) {
    let filter = LogFilter { after: Some("x".into()), ..log_filter(1) };
    assert!(matches!(stage.bus.log(&Scope::Every, &filter).await, Err(BusError::Invalid { .. })));
    let filter = DeadLetterFilter { before: Some("x".into()), limit: 1, ..DeadLetterFilter::default() };
    assert!(matches!(stage.bus.dead_letters(&Scope::Every, &filter).await, Err(BusError::Invalid { .. })));
    assert!(matches!(stage.bus.acknowledge(&["x".into()]).await, Err(BusError::Invalid { .. })));
}

async fn bus_backlog_is_counted(stage: &BusHarness) {
    let bus = &*stage.bus;
    read_nothing(bus).await;
    assert_eq!(bus.backlog().await.unwrap(), BusBacklog::default());
    stage.publish(&[event("a", "1"), event("a", "2"), event("b", "3")]).await;
    assert_eq!(bus.backlog().await.unwrap(), BusBacklog { unread: 3, pending: 0 });
    let entries = read(bus, 3).await;
    acknowledge(bus, &entries[..1]).await;
    assert_eq!(bus.backlog().await.unwrap(), BusBacklog { unread: 0, pending: 2 });
    bus.acknowledge(&names_of(&entries)).await.unwrap();
    assert_eq!(bus.backlog().await.unwrap(), BusBacklog::default());
}

/// A tenant whose events are on the stream of `a`.
fn beside_a() -> String {
    let partition = |tenant: &str| reveille::domain::event::partition(tenant, Settings::default().partitions);
    (0..)
        .map(|number| format!("quiet_{number}"))
        .find(|tenant| partition(tenant) == partition("a"))
        .expect("one of many")
}

async fn entries_of_a_full_tenant_are_left_uncounted_and_those_behind_them_are_read(stage: &BusHarness) {
    let loud: Vec<_> = (0..60).map(|n| event("a", &n.to_string())).collect();
    stage.publish(&loud).await;
    stage.publish(&[event(&beside_a(), "behind")]).await;
    let full = [Tenant::new("a").unwrap()];
    let mut found = Vec::new();
    for _ in 0..4 {
        found.extend(stage.bus.read_except(&full, 20, Duration::ZERO).await.unwrap());
    }
    assert_eq!(ids_of(&found), ["behind"], "within a counted number of reads");
    acknowledge(&*stage.bus, &found).await;
    stage.stall().await;
    let again = read(&*stage.bus, 60).await;
    let mut ids: Vec<u32> = ids_of(&again).iter().map(|id| id.parse().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..60).collect::<Vec<_>>(), "none is lost");
    assert!(again.iter().all(|entry| entry.deliveries == 1), "none is counted");
}
