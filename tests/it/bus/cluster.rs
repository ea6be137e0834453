//! A cluster, and a master behind a sentinel.

use std::time::Duration;

use reveille::base::id::Scope;
use reveille::ports::bus::Settings;

use super::world::{
    BusHarness, acknowledge, dead_letters, event, ids_of, log, log_filter, read, read_nothing, waits_end,
};
use crate::support::redis::{Redis, RedisServer};

#[tokio::test]
async fn cluster_takes_keeps_and_hands_over_events() {
    let server = RedisServer::start(&["--cluster-enabled", "yes"]);
    let node = Redis::at(&server.url());
    node.ask(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"]);
    let begun = std::time::Instant::now();
    while !node.ask(&["CLUSTER", "INFO"]).contains("cluster_state:ok") {
        assert!(begun.elapsed() < Duration::from_secs(20), "the cluster does not come up");
        reveille::base::clock::pause(Duration::from_millis(20)).await;
    }
    let stage = BusHarness::redis_at(format!("redis+cluster://127.0.0.1:{}", server.port), Settings::default()).await;
    let bus = &*stage.bus;
    read_nothing(bus).await;
    let events: Vec<_> = (0..40).map(|n| event(&format!("tenant_{}", n % 10), &n.to_string())).collect();
    stage.publish(&events).await;
    let entries = read(bus, 40).await;
    let mut ids: Vec<u32> = ids_of(&entries).iter().map(|id| id.parse().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..40).collect::<Vec<_>>());
    assert_eq!(log(bus, &Scope::Every, &log_filter(100)).await.0.len(), 40);

    bus.dead_letter_entry(&entries[0], "boom").await.unwrap();
    acknowledge(bus, &entries[1..30]).await;
    assert_eq!(bus.backlog().await.unwrap().pending, 10);
    let letters = dead_letters(bus, &Scope::Every).await.unwrap();
    bus.replay(&Scope::Every, &letters[0].id).await.unwrap();
    stage.stall().await;
    let rest = read(bus, 11).await;
    acknowledge(bus, &rest).await;
    let later = reveille::base::clock::Clock::system().now() + chrono::TimeDelta::days(365);
    assert_eq!(bus.trim(later).await.unwrap(), 41);
    assert_eq!(bus.concerns().await.unwrap(), [""; 0]);

    let reader = stage.bus.clone();
    let reading = tokio::spawn(async move { reader.read(1, Duration::from_secs(20)).await });
    reveille::base::clock::pause(Duration::from_millis(50)).await;
    stage.publish(&[event("a", "late")]).await;
    let late = reading.await.unwrap().unwrap();
    assert_eq!(ids_of(&late), ["late"]);
    acknowledge(bus, &late).await;
    waits_end(&stage.bus).await;
    stage.leave().await;
}

#[tokio::test]
async fn master_is_asked_of_a_sentinel() {
    let master = RedisServer::start(&[]);
    let monitor = format!("sentinel monitor main 127.0.0.1 {} 1", master.port);
    let sentinel = RedisServer::start(&["sentinel", &monitor]);
    let url = format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port);
    let stage = BusHarness::redis_at(url, Settings::default()).await;
    stage.publish(&[event("a", "1")]).await;
    assert_eq!(ids_of(&read(&*stage.bus, 1).await), ["1"]);
    let node = Redis::at(&master.url());
    assert_eq!(node.number(&["XLEN", &stage.stream("a")]), 1);
    stage.leave().await;
}
