//! Events that were taken while Redis was away, and forwarded once it is back.

use std::sync::Arc;

use reveille::base::id::Scope;
use reveille::domain::event::Event;
use reveille::engine::events::forwarder::Forwarder;
use reveille::engine::service::{NextTick, ServiceLoop};
use reveille::ports::bus::{BusError, DeadLetterFilter, Settings};

use super::world::{BusHarness, event, ids_of, read, read_nothing};
use crate::support::redis::RedisServer;

fn with_outbox() -> Settings {
    Settings { outbox: true, ..Settings::default() }
}

#[tokio::test]
async fn events_taken_while_redis_was_away_are_forwarded_in_order_at_its_return() {
    let mut server = RedisServer::start(&[]);
    let stage = BusHarness::redis_at(server.url(), with_outbox()).await;
    let forwarder = Arc::new(Forwarder::new(stage.bus.clone(), stage.world.clock.clone()));
    stage.publish(&[event("a", "0")]).await;
    assert_eq!(stage.world.count("select count(*) from bus_outbox").await, 0, "while Redis is there it takes them");
    assert_eq!(forwarder.tick().await.unwrap(), NextTick::OnWake);

    server.kill();
    stage.publish(&[event("a", "1"), event("b", "x")]).await;
    stage.publish(&[event("a", "2")]).await;
    let next = forwarder.tick().await.unwrap();
    assert_eq!(next, NextTick::At(stage.world.now() + chrono::TimeDelta::seconds(1)));
    assert_eq!(stage.world.count("select count(*) from bus_outbox").await, 3);

    server.start_again();
    reveille::base::clock::pause(std::time::Duration::from_millis(300)).await;
    // Redis is back, and what waits goes first: a tenant's new event waits behind it, another tenant's need not
    stage.publish(&[event("a", "3"), event("c", "y")]).await;
    assert_eq!(stage.world.count("select count(*) from bus_outbox").await, 4);
    assert_eq!(forwarder.tick().await.unwrap(), NextTick::Now);
    assert_eq!(forwarder.tick().await.unwrap(), NextTick::OnWake);
    stage.publish(&[event("a", "4")]).await;
    assert_eq!(stage.world.count("select count(*) from bus_outbox").await, 0);
    let entries = read(&*stage.bus, 7).await;
    let of_a: Vec<_> =
        entries.iter().filter(|entry| entry.event.as_ref().unwrap().tenant.as_str() == "a").cloned().collect();
    assert_eq!(ids_of(&of_a), ["0", "1", "2", "3", "4"]);
    stage.leave().await;
}

#[tokio::test]
async fn kept_event_of_a_quiet_tenant_is_forwarded_at_once_however_many_of_another_wait() {
    // more than a `BATCH` of the other tenant waits
    let stage = BusHarness::redis_at(crate::support::servers::redis_url(), with_outbox()).await;
    let many: Vec<Event> = (0..500).map(|n| event("a", &n.to_string())).collect();
    stage.world.store.keep_events(&many).await.unwrap();
    stage.world.store.keep_events(&[event("b", "x")]).await.unwrap();
    assert_eq!(stage.bus.forward().await, Ok(101));
    let entries = read(&*stage.bus, 101).await;
    let of = |tenant: &str| {
        let events = entries.iter().map(|entry| entry.event.as_ref().unwrap());
        let ids = events.filter(|event| event.tenant.as_str() == tenant).map(|event| event.id.clone());
        ids.collect::<Vec<_>>()
    };
    assert_eq!(of("b"), ["x"]);
    assert_eq!(of("a"), (0..100).map(|n| n.to_string()).collect::<Vec<_>>(), "its oldest, in their order");
    stage.leave().await;
}

#[tokio::test]
async fn forwarder_that_died_before_it_forgot_forwards_again() {
    let stage = BusHarness::redis_at(crate::support::servers::redis_url(), with_outbox()).await;
    stage.world.store.keep_events(&[event("a", "1")]).await.unwrap();
    stage.bus.forward().await.unwrap();
    stage.world.store.keep_events(&[event("a", "1")]).await.unwrap();
    stage.bus.forward().await.unwrap();
    let entries = read(&*stage.bus, 2).await;
    let keys: Vec<String> = entries.iter().map(|entry| entry.event.as_ref().unwrap().key()).collect();
    assert_eq!(keys[0], keys[1], "the same event twice, which its key tells");
    stage.leave().await;
}

#[tokio::test]
async fn kept_event_that_can_not_be_read_is_a_dead_letter_and_the_others_are_forwarded() {
    let stage = BusHarness::redis_at(crate::support::servers::redis_url(), with_outbox()).await;
    stage.world.store.keep_events(&[event("a", "1"), event("a", "2"), event("b", "3")]).await.unwrap();
    stage.world.plant("update bus_outbox set body = '7' where seq = (select min(seq) from bus_outbox)").await;
    assert_eq!(stage.bus.forward().await, Ok(3));
    assert_eq!(ids_of(&read(&*stage.bus, 2).await), ["2", "3"]);
    let every = DeadLetterFilter { limit: 9, ..DeadLetterFilter::default() };
    let letters = stage.bus.dead_letters(&Scope::Every, &every).await.unwrap().letters;
    let told: Vec<_> = letters.iter().map(|letter| (letter.body.as_str(), letter.tenant.as_deref())).collect();
    assert_eq!(told, [("7", None)]);
    assert!(letters[0].error.starts_with("it is no CloudEvent"), "{letters:?}");
    assert_eq!(stage.world.count("select count(*) from bus_outbox").await, 0);
    // one that stands alone as well
    stage.world.store.keep_events(&[event("a", "4")]).await.unwrap();
    stage.world.plant("update bus_outbox set body = '7'").await;
    assert_eq!(stage.bus.forward().await, Ok(1));
    assert_eq!(stage.bus.dead_letters(&Scope::Every, &every).await.unwrap().letters.len(), 2);
    stage.leave().await;
}

#[tokio::test]
async fn kept_event_that_redis_refuses_for_good_is_a_dead_letter_and_the_others_are_forwarded() {
    let stage = BusHarness::redis_at(crate::support::servers::redis_url(), with_outbox()).await;
    let refused = stage.stream("a");
    let other = (0..).map(|n| format!("t{n}")).find(|tenant| stage.stream(tenant) != refused).unwrap();
    stage.world.store.keep_events(&[event("a", "1"), event(&other, "2"), event("a", "3")]).await.unwrap();
    stage.redis_server().ask(&["SET", &refused, "no stream"]);
    assert_eq!(stage.bus.forward().await, Ok(3));
    assert_eq!(stage.world.count("select count(*) from bus_outbox").await, 0);
    let every = DeadLetterFilter { limit: 9, ..DeadLetterFilter::default() };
    let letters = stage.bus.dead_letters(&Scope::Every, &every).await.unwrap().letters;
    assert_eq!(letters.len(), 2, "{letters:?}");
    for (letter, id) in letters.iter().zip(["3", "1"]) {
        assert!(letter.body.contains(&format!("\"id\":\"{id}\"")), "{letter:?}");
        assert!(letter.error.contains("the bus refuses it") && letter.error.contains("WRONGTYPE"), "{letter:?}");
    }
    stage.redis_server().ask(&["DEL", &refused]);
    assert_eq!(ids_of(&read(&*stage.bus, 1).await), ["2"]);
    // a person who has mended Redis replays them
    stage.bus.replay(&Scope::Every, &letters[1].id).await.unwrap();
    assert_eq!(stage.bus.dead_letters(&Scope::Every, &every).await.unwrap().letters.len(), 1);
    stage.leave().await;
}

#[tokio::test]
async fn publish_without_outbox_fails_and_leftovers_are_forwarded() {
    let mut server = RedisServer::start(&[]);
    let stage = BusHarness::redis_at(server.url(), Settings::default()).await;
    stage.world.store.keep_events(&[event("a", "left")]).await.unwrap();
    assert_eq!(stage.bus.forward().await, Ok(1));
    assert_eq!(ids_of(&read(&*stage.bus, 1).await), ["left"]);
    server.kill();
    assert!(matches!(stage.bus.publish(&[event("a", "1")]).await, Err(BusError::Unavailable { .. })));
    assert_eq!(stage.world.count("select count(*) from bus_outbox").await, 0);
    stage.leave().await;
}

#[tokio::test]
async fn bus_traffic_is_counted() {
    let stage = BusHarness::redis().await;
    let metrics = reveille::base::metrics::Metrics::new();
    let bus: Arc<dyn reveille::ports::bus::Bus> =
        Arc::new(reveille::ports::bus::counted::CountedBus::new(stage.bus.clone(), &metrics));
    read_nothing(&*bus).await;
    bus.publish(&[event("a", "1"), event("a", "2"), event("a", "3")]).await.unwrap();
    let entries = read(&*bus, 2).await;
    bus.acknowledge(&[entries[0].id.clone()]).await.unwrap();
    bus.dead_letter_entry(&entries[1], "boom").await.unwrap();
    let third = read(&*bus, 1).await;
    bus.publish(&[event("a", "4"), event("a", "5")]).await.unwrap();
    bus.backlog().await.unwrap();
    assert_eq!(ids_of(&third), ["3"]);
    let text = metrics.text();
    for line in [
        "reveille_events_published_total 5",
        "reveille_events_read_total 3",
        "reveille_events_acknowledged_total 1",
        "reveille_events_dead_lettered_total 1",
        "reveille_events_unread 2",
        "reveille_events_pending 1",
    ] {
        assert!(text.lines().any(|l| l == line), "no `{line}` in:\n{text}");
    }
    stage.leave().await;
}
