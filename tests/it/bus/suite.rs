//! Behaviour of every bus: each case runs on SQLite, on Postgres, and on Redis.

use std::time::Duration;

use reveille::base::id::{Scope, Tenant};
use reveille::domain::event::written::WrittenEvent;
use reveille::domain::event::{Data, EVENT_BYTES};
use reveille::ports::bus::{
    Bus, BusBacklog, BusError, DeadLetterFilter, LogFilter, LogOrder, NewestFilter, write_entry,
};
use serde_json::json;

use super::world::{
    BusHarness, acknowledge, beside_a, dead_letters, event, ids_of, log, log_filter, long_event, names_of, of, only,
    read, read_nothing,
};
use crate::conformance::world::StoreHarness;
use crate::support::computing::{HeldThreads, until_waiting};

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
    read_of_long_entries_ends_after_some_mib,
    events_published_before_the_first_reader_are_read,
    entries_of_a_dead_consumer_come_again_and_are_counted,
    acknowledged_entry_never_comes_again,
    two_consumers_share_what_comes,
    entries_of_a_full_tenant_are_left_uncounted_and_those_behind_them_are_read,
    dead_letter_waits_until_it_is_replayed,
    dead_letters_are_found_by_what_is_asked_for_and_dropped,
    list_of_dead_letters_goes_on_behind_each_page_and_ends_with_the_oldest,
    log_goes_on_where_it_ended,
    long_entries_are_read_on_computing_threads,
    densest_event_that_may_be_published_is_read_as_it_was_published,
    long_events_are_in_the_log_and_found_by_their_ids,
    events_are_found_by_their_ids_and_ids_by_their_beginnings,
    newest_events_of_a_tenant_are_read_newest_first,
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
    let got: Vec<_> = entries.iter().map(|entry| entry.event.as_ref().unwrap().event()).collect();
    assert_eq!(got, events);
    assert!(entries.iter().all(|entry| entry.deliveries == 1));
    read_nothing(bus).await;
}

async fn long_entries_are_read_on_computing_threads(stage: &BusHarness) {
    let bus = &*stage.bus;
    read_nothing(bus).await;
    let mut long = event("a", "1");
    long.data = Data::Json(json!("x".repeat(20_000)));
    stage.publish(std::slice::from_ref(&long)).await;
    let compute = stage.world.store.computing();
    let let_go = async |threads: HeldThreads| {
        until_waiting(compute, 1).await;
        drop(threads);
    };
    let threads = HeldThreads::all(compute).await;
    let (entries, ()) = tokio::join!(read(bus, 1), let_go(threads));
    assert_eq!(entries[0].event.as_ref().map(WrittenEvent::event), Ok(long.clone()));
    let (scope, filter) = (only("a"), LogFilter { limit: 10, ..LogFilter::default() });
    let threads = HeldThreads::all(compute).await;
    let (log, ()) = tokio::join!(bus.log(&scope, &filter), let_go(threads));
    let log = log.expect("the log");
    assert_eq!(log.events[0].event, long);
    assert!(log.events[0].bytes > 20_000, "{}", log.events[0].bytes);
}

async fn densest_event_that_may_be_published_is_read_as_it_was_published(stage: &BusHarness) {
    let bus = &*stage.bus;
    read_nothing(bus).await;
    let dense = |parts: usize| {
        let mut dense = event("a", "1");
        dense.data = Data::Json(json!(vec![0; parts]));
        dense
    };
    let others = write_entry(&dense(0)).len();
    // a part and its comma are two bytes, and as PostgreSQL stores them three
    let longest = dense((EVENT_BYTES - others) / 2);
    stage.publish(std::slice::from_ref(&longest)).await;
    let entries = read(bus, 1).await;
    assert_eq!(entries[0].event.as_ref().map(WrittenEvent::event), Ok(longest.clone()));
    let found = bus.find(&longest.tenant, None, "1").await.expect("the log");
    assert_eq!(found, Some(longest));
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

async fn read_of_long_entries_ends_after_some_mib(stage: &BusHarness) {
    let long = |id: usize| {
        let data = Data::Json(json!("x".repeat(250_000)));
        reveille::domain::event::Event { data, ..event("a", &id.to_string()) }
    };
    for ids in (0..60).collect::<Vec<usize>>().chunks(10) {
        stage.publish(&ids.iter().map(|id| long(*id)).collect::<Vec<_>>()).await;
    }
    stage.publish(&[event(&beside_a(), "behind")]).await;
    let mut ids = Vec::new();
    while ids.len() < 61 {
        let entries = stage.bus.read(500, Duration::from_secs(1)).await.unwrap();
        let bytes: usize = entries.iter().map(|entry| entry.event.as_ref().unwrap().bytes()).sum();
        assert!(!entries.is_empty() && bytes <= 13 * 1024 * 1024, "{bytes}");
        ids.extend(ids_of(&entries));
    }
    ids.retain(|id| id != "behind");
    assert_eq!(ids, (0..60).map(|id| id.to_string()).collect::<Vec<_>>(), "in their order, and none is lost");
    read_nothing(&*stage.bus).await;
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
        let page = bus.dead_letters(&scope, &DeadLetterFilter { limit: 10, ..filter }).await.unwrap();
        page.letters.into_iter().map(|letter| letter.error).collect::<Vec<_>>()
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

/// Makes dead letters of four events, with the errors `1` to `4`.
async fn add_four_dead_letters(stage: &BusHarness) {
    let bus = &*stage.bus;
    for id in ["1", "2", "3", "4"] {
        stage.publish(&[event("a", id)]).await;
        let entries = read(bus, 1).await;
        bus.dead_letter_entry(&entries[0], id).await.unwrap();
    }
}

/// The errors on each page of the list of dead letters.
async fn pages_of_dead_letters(bus: &dyn Bus, scope: Scope, limit: usize) -> Vec<String> {
    let mut filter = DeadLetterFilter { limit, ..DeadLetterFilter::default() };
    let mut pages = Vec::new();
    loop {
        let page = bus.dead_letters(&scope, &filter).await.unwrap();
        pages.push(page.letters.into_iter().map(|letter| letter.error).collect::<Vec<_>>().concat());
        match page.next {
            Some(next) => filter.before = Some(next),
            None => return pages,
        }
    }
}

async fn list_of_dead_letters_goes_on_behind_each_page_and_ends_with_the_oldest(stage: &BusHarness) {
    add_four_dead_letters(stage).await;
    let pages = async |scope: Scope, limit: usize| pages_of_dead_letters(&*stage.bus, scope, limit).await;
    assert_eq!(pages(only("a"), 3).await, ["432", "1"]);
    assert_eq!(pages(only("a"), 2).await, ["43", "21"], "a full page that is the last says so");
    assert_eq!(pages(Scope::Every, 1).await, ["4", "3", "2", "1"]);
    assert_eq!(pages(Scope::Every, 9).await, ["4321"]);
    assert_eq!(pages(only("b"), 2).await.concat(), "");
}

/// Only SQLite takes an instant that can't be read.
#[tokio::test]
async fn list_of_dead_letters_on_sqlite_goes_on_behind_a_letter_that_cannot_be_read() {
    let stage = BusHarness::embedded(StoreHarness::sqlite().await).await;
    add_four_dead_letters(&stage).await;
    stage.world.plant("update dead_letters set created_at = 'soon' where error = '3'").await;
    let pages = async |limit: usize| pages_of_dead_letters(&*stage.bus, only("a"), limit).await;
    assert_eq!(pages(9).await, ["421"]);
    assert_eq!(pages(2).await, ["42", "1"]);
    assert_eq!(pages(1).await, ["4", "2", "1"]);
    stage.world.plant("update dead_letters set created_at = 'soon' where error = '2'").await;
    assert_eq!(pages(1).await.concat(), "41", "a page of letters that can't be read ends no list");
    stage.leave().await;
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

    let newest = |limit: usize| LogFilter { order: LogOrder::Newest, ..log_filter(limit) };
    let (first, position, more) = log(bus, &Scope::Every, &newest(2)).await;
    assert_eq!((first.concat(), more), ("54".to_owned(), true));
    stage.publish(&["a", "b", "c"].map(|tenant| like(tenant, "6", "mail", "mail.new"))).await;
    let rest = LogFilter { after: Some(position), ..newest(5) };
    let (second, end, more) = log(bus, &Scope::Every, &rest).await;
    assert_eq!((second.concat(), more), ("321".to_owned(), false), "what came meanwhile is before the first page");
    let nothing = LogFilter { after: Some(end), ..newest(5) };
    assert_eq!(log(bus, &Scope::Every, &nothing).await.0, [""; 0]);
    let shop = LogFilter { source: Some("shop".into()), ..newest(5) };
    assert_eq!(log(bus, &only("a"), &newest(9)).await.0.concat(), "6531");
    assert_eq!(log(bus, &only("a"), &shop).await.0, ["3"]);
    assert_eq!(log(bus, &only("d"), &newest(5)).await.0, [""; 0]);
}

async fn long_events_are_in_the_log_and_found_by_their_ids(stage: &BusHarness) {
    let bus = &*stage.bus;
    let events: Vec<_> = (10..30).map(|n| long_event("a", &n.to_string())).collect();
    stage.publish(&events).await;
    let (mut seen, mut filter) = (Vec::new(), log_filter(16));
    loop {
        let (ids, position, more) = log(bus, &only("a"), &filter).await;
        assert!(!ids.is_empty() || !more, "a part that is not the last has one at least");
        seen.extend(ids);
        filter.after = Some(position);
        if !more {
            break;
        }
    }
    assert_eq!(seen, (10..30).map(|n| n.to_string()).collect::<Vec<_>>());
    let a = Tenant::new("a").unwrap();
    assert_eq!(bus.find(&a, None, "10").await.unwrap().as_ref(), events.first());
    assert_eq!(bus.ids(&a, Some("mail"), "29").await.unwrap(), ["29"]);
    assert_eq!(bus.ids(&a, None, "2").await.unwrap().len(), 2);
    assert_eq!(bus.ids(&a, None, "3").await.unwrap(), [""; 0]);
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

async fn newest_events_of_a_tenant_are_read_newest_first(stage: &BusHarness) {
    let like = |tenant: &str, id: usize, source: &str| {
        of(json!({"tenantid": tenant, "id": id.to_string(), "source": source, "type": "order.new"}))
    };
    let a = Tenant::new("a").unwrap();
    let ids = async |source: &str, kind: &str, among: usize, limit: usize| {
        let filter = NewestFilter { source: Some(source.into()), kind: Some(kind.into()), among, limit };
        let newest = stage.bus.newest(&a, &filter).await.unwrap();
        newest.into_iter().map(|event| event.id).collect::<Vec<_>>()
    };
    assert_eq!(ids("*", "*", 100, 5).await, [""; 0]);
    // more than are read at once
    let events: Vec<_> = (0..50).map(|id| like("a", id, if id == 3 { "shop" } else { "mail" })).collect();
    stage.publish(&events).await;
    assert_eq!(ids("*", "*", 100, 3).await, ["49", "48", "47"]);
    assert_eq!(ids("shop", "order.*", 100, 5).await, ["3"]);
    assert_eq!(ids("sh*", "order.new", 47, 5).await, ["3"], "it is the oldest of those that are looked at");
    assert_eq!(ids("shop", "*", 46, 5).await, [""; 0]);
    assert_eq!(ids("shop", "order", 100, 5).await, [""; 0]);
    stage.publish(&[like(&beside_a(), 50, "mail")]).await;
    assert_eq!(ids("*", "*", 100, 1).await, ["49"], "another tenant's is none of them");
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
