//! Redis crashes, is cut off, goes silent: an event that was accepted becomes its run all the same, once.

use std::time::Duration;

use chrono::TimeDelta;
use reveille::base::clock::{machine_now, pause};

use super::harness::FaultHarness;
use crate::support::proxy::{Proxy, Wire};
use crate::support::redis::RedisServer;

/// How long Redis is away, and how long all is well between two faults.
const OUTAGE: Duration = Duration::from_secs(2);
const WELL: Duration = Duration::from_secs(2);

async fn publish(stage: &mut FaultHarness, length: Duration) {
    let begun = std::time::Instant::now();
    while begun.elapsed() < length {
        stage.publish().await;
        pause(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn event_that_was_accepted_outlives_redis_crashes_cuts_and_silence() {
    let mut redis = RedisServer::start(&[]);
    let proxy = Proxy::before(&redis.url()).await;
    let stage = FaultHarness::sqlite().await.with("REVEILLE_BUS__URL", proxy.url(&redis.url()).trim_end_matches('/'));
    let mut stage = stage.with("REVEILLE_BUS__STALLED_AFTER_SECONDS", "2");
    stage.start(0).await;
    stage.busy().await;
    for fault in [None, Some(Wire::Cut), Some(Wire::BlackHole), None, Some(Wire::Cut), Some(Wire::BlackHole)] {
        publish(&mut stage, WELL).await;
        let from = machine_now();
        match fault {
            None => {
                redis.kill();
                publish(&mut stage, OUTAGE).await;
                redis.start_again();
            }
            Some(wire) => {
                proxy.set(wire);
                publish(&mut stage, OUTAGE).await;
                proxy.set(Wire::Whole);
            }
        }
        stage.may_lose_leases(from).await;
    }
    // the connections that there are go silent for ever: others take their place
    let (from, before) = (machine_now(), stage.accepted.len());
    proxy.forsake();
    while stage.accepted.len() < before + 20 {
        assert!(machine_now() - from < TimeDelta::seconds(60), "nothing is accepted\n{}", stage.logs());
        publish(&mut stage, OUTAGE).await;
    }
    stage.may_lose_leases(from).await;
    // and the consumer dies with events in its hands
    for _ in 0..3 {
        publish(&mut stage, Duration::from_millis(500)).await;
        stage.kill(0).await;
        stage.start(0).await;
    }
    publish(&mut stage, WELL).await;
    let accepted = stage.accepted.len();
    let verdict = stage.must_hold(&format!("redis crashed, cut, silent, twice each: {accepted} events accepted")).await;
    assert!(accepted > 100, "{accepted} events were accepted: {verdict}");
}
