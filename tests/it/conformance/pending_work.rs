//! Pending work: the counts that idle services go by. What becomes of each kind of work stands beside the cases of that
//! kind.

use chrono::{DateTime, TimeDelta, Utc};
use reveille::store::PendingWork;
use serde_json::json;

use super::world::{START, StoreHarness};

on_both!(pending_work_shows_a_ready_run_then_its_lease_and_time_limit, pending_work_is_shared_by_concurrent_callers,);

fn at(seconds: i64) -> DateTime<Utc> {
    START + TimeDelta::seconds(seconds)
}

async fn pending_work_shows_a_ready_run_then_its_lease_and_time_limit(world: &StoreHarness) {
    assert_eq!(world.pending_work().await, PendingWork::default());
    let task = world.task(json!({"interval": "1h", "overlap": "allow"})).await;
    let tells = PendingWork { fire: Some(at(3600)), ..PendingWork::default() };
    assert_eq!(world.pending_work().await, tells);
    world.run_now(&task).await;
    assert_eq!(world.pending_work().await, PendingWork { ready: true, ..tells });
    let claim = world.claim().await[0];
    assert_eq!(world.pending_work().await, PendingWork { lease: Some(claim.until), ..tells });
    let started = world.store.start_runs(&[claim.lease], at(7200)).await.unwrap().started.remove(0);
    let deadline = Some(started.deadline_at);
    assert_eq!(world.pending_work().await, PendingWork { lease: Some(at(7200)), deadline, ..tells });
    world.succeed(&started).await;
    assert_eq!(world.pending_work().await, tells);
}

async fn pending_work_is_shared_by_concurrent_callers(world: &StoreHarness) {
    let shared = async || world.store.shared_pending_work().await.expect("pending work");
    assert_eq!(shared().await, PendingWork::default());
    world.task(json!({"interval": "1h"})).await;
    assert_eq!(shared().await, PendingWork::default(), "what was seen just now");
    world.pass(1);
    assert_eq!(shared().await.fire, Some(at(3600)));
    world.task(json!({"interval": "1m"})).await;
    assert_eq!(shared().await.fire, Some(at(3600)));
    assert_eq!(world.pending_work().await.fire, Some(at(61)), "who asks for himself is answered as of now");
    assert_eq!(shared().await.fire, Some(at(61)), "and the others share that, too");
}
