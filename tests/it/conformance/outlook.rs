//! The outlook: what services at rest go by. What becomes of each kind of work stands beside the cases of that kind.

use chrono::{DateTime, TimeDelta, Utc};
use reveille::store::PendingWork;
use serde_json::json;

use super::world::{START, StoreHarness};

on_both!(of_a_run_it_shows_that_it_is_ready_then_its_lease_and_its_time_limit, concurrent_callers_share_one_outlook,);

fn at(seconds: i64) -> DateTime<Utc> {
    START + TimeDelta::seconds(seconds)
}

async fn of_a_run_it_shows_that_it_is_ready_then_its_lease_and_its_time_limit(world: &StoreHarness) {
    assert_eq!(world.outlook().await, PendingWork::default());
    let task = world.task(json!({"interval": "1h", "overlap": "allow"})).await;
    let tells = PendingWork { fire: Some(at(3600)), ..PendingWork::default() };
    assert_eq!(world.outlook().await, tells);
    world.run_now(&task).await;
    assert_eq!(world.outlook().await, PendingWork { ready: true, ..tells });
    let claim = world.claim().await[0];
    assert_eq!(world.outlook().await, PendingWork { lease: Some(claim.until), ..tells });
    let started = world.store.start_runs(&[claim.lease], at(7200)).await.unwrap().started.remove(0);
    let deadline = Some(started.deadline_at);
    assert_eq!(world.outlook().await, PendingWork { lease: Some(at(7200)), deadline, ..tells });
    world.succeed(&started).await;
    assert_eq!(world.outlook().await, tells);
}

async fn concurrent_callers_share_one_outlook(world: &StoreHarness) {
    let shared = async || world.store.shared_outlook().await.expect("an outlook");
    assert_eq!(shared().await, PendingWork::default());
    world.task(json!({"interval": "1h"})).await;
    assert_eq!(shared().await, PendingWork::default(), "what was seen just now");
    world.pass(1);
    assert_eq!(shared().await.fire, Some(at(3600)));
    world.task(json!({"interval": "1m"})).await;
    assert_eq!(shared().await.fire, Some(at(3600)));
    assert_eq!(world.outlook().await.fire, Some(at(61)), "who asks for himself is answered as of now");
    assert_eq!(shared().await.fire, Some(at(61)), "and the others share that, too");
}
