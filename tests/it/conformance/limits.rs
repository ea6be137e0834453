//! Limits on what is under way, over all instances; and the turns that keep one tenant from holding up the others.

use chrono::{DateTime, TimeDelta};
use reveille::domain::quota::{Overrides, Quota};
use reveille::domain::run::RunState;
use reveille::store::{ClaimCursor, RunLimits, StartedRun, Store, TakeRequest, TakeResult};
use serde_json::json;
use uuid::Uuid;

use super::world::{LEASE, OTHER_WORKER, StoreHarness, WORKER, end_of};

on_both!(
    no_take_of_two_workers_goes_beyond_a_limit_and_all_come_to_their_end,
    leases_ahead_count_and_an_end_makes_room,
    tenant_with_ten_thousand_runs_leaves_the_second_take_to_one_that_has_one,
    under_limits_the_first_take_is_shared,
    tenants_that_have_had_their_share_are_passed_over,
    take_with_room_for_few_runs_looks_at_few_tenants_and_the_next_one_goes_on_behind_them,
    waiting_runs_are_counted_by_their_place,
    tenants_own_limit_is_in_the_place_of_everybodys,
);

async fn take(store: &Store, worker: Uuid, limit: i64, fair: Option<ClaimCursor>, limits: RunLimits) -> TakeResult {
    let now = store.clock().now();
    let take = TakeRequest { worker, now, ahead: now, lease_until: now + LEASE, limit, fair, limits, shares: None };
    store.take_runs(&take).await.expect("a take")
}

const BUSIEST: &str = "select coalesce(max(runs), 0) from (
    select count(*) as runs from queue where state <> 'ready' group by tenant_id) q";
const ALL: &str = "select count(*) from queue where state <> 'ready'";

async fn no_take_of_two_workers_goes_beyond_a_limit_and_all_come_to_their_end(world: &StoreHarness) {
    let (limits, other) = (RunLimits::new(5, 8), world.other_instance().await);
    for tenant in ["a", "b", "c"] {
        let task = world.task_with(tenant, json!({"interval": "1h", "overlap": "allow"}), json!({})).await;
        for _ in 0..50 {
            world.run_now(&task).await;
        }
    }
    let (mut running, mut ended, mut most) = (Vec::<StartedRun>::new(), 0, (0, 0));
    loop {
        let (one, two) = tokio::join!(
            take(&world.store, WORKER, 64, Some(ClaimCursor::default()), limits),
            take(&other, OTHER_WORKER, 64, Some(ClaimCursor::default()), limits)
        );
        running.extend(one.starts.started.into_iter().chain(two.starts.started));
        let (busiest, all) = (world.count(BUSIEST).await, world.count(ALL).await);
        assert!(busiest <= 5 && all <= 8, "{busiest} of one tenant, {all} of all");
        assert_eq!(all, running.len() as i64, "what is leased was started");
        most = (most.0.max(busiest), most.1.max(all));
        if running.is_empty() {
            break;
        }
        let half = running.len().div_ceil(2);
        let ends: Vec<_> = running.drain(..half).map(|started| end_of(&started, RunState::Succeeded)).collect();
        ended += ends.len();
        assert_eq!(world.store.finish_runs(&ends).await.expect("ends"), Vec::<Uuid>::new());
    }
    assert_eq!((ended, most.1), (150, 8), "the limit was reached, and everything ended");
    assert!(most.0 >= 3, "{most:?}");
}

async fn leases_ahead_count_and_an_end_makes_room(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1h", "overlap": "allow"})).await;
    for _ in 0..3 {
        world.run_now(&task).await;
    }
    let limits = RunLimits::new(0, 2);
    // an instance that was configured without limits has leased one
    assert_eq!(world.store.fire_due(&world.ask(0, 0)).await.expect("nothing is due").recorded, 0);
    let past = DateTime::UNIX_EPOCH;
    let ahead = TakeRequest {
        worker: OTHER_WORKER,
        now: past,
        ahead: world.now(),
        lease_until: past,
        limit: 1,
        fair: None,
        limits: RunLimits::default(),
        shares: None,
    };
    assert_eq!(world.store.take_runs(&ahead).await.expect("a claim").claims.len(), 1);
    let taken = take(&world.store, WORKER, 9, Some(ClaimCursor::default()), limits).await;
    assert_eq!(taken.starts.started.len(), 1, "one claim and one start are two");
    assert!(take(&world.store, WORKER, 9, Some(ClaimCursor::default()), limits).await.is_empty());
    world.succeed(&taken.starts.started[0]).await;
    assert_eq!(take(&world.store, WORKER, 9, Some(ClaimCursor::default()), limits).await.len(), 1);
}

/// Ten thousand ready runs of `a`, then one of `b` that is as urgent, and younger.
async fn a_crowd_and_one(world: &StoreHarness) -> Uuid {
    let crowd = world.task_with("a", json!({"interval": "1h", "overlap": "allow"}), json!({})).await;
    world.run_now(&crowd).await;
    let statements = match world.is_postgres() {
        true => [
            "insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, created_at)
             select gen_random_uuid(), task_id, tenant_id, 'm:p' || i, trigger_type, scheduled_for, state, created_at
               from runs, generate_series(1, 9999) i",
            "insert into queue (run_id, task_id, tenant_id, epoch, run_at, state)
             select r.id, r.task_id, r.tenant_id, q.epoch, q.run_at, 'ready' from runs r, queue q
              where r.fire_key like 'm:p%'",
        ],
        false => [
            "with recursive n (i) as (select 1 union all select i + 1 from n where i < 9999)
             insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, created_at)
             select randomblob(16), task_id, tenant_id, 'm:p' || i, trigger_type, scheduled_for, state, created_at
               from runs, n",
            "insert into queue (run_id, task_id, tenant_id, epoch, run_at, state)
             select r.id, r.task_id, r.tenant_id, q.epoch, q.run_at, 'ready' from runs r, queue q
              where r.fire_key like 'm:p%'",
        ],
    };
    for statement in statements {
        world.plant(statement).await;
    }
    assert_eq!(world.count("select count(*) from queue").await, 10_000);
    world.pass(1);
    let one = world.task_with("b", json!({"interval": "1h"}), json!({})).await;
    let run = world.run_now(&one).await;
    world.plant("update queue set priority = 0 where priority <> 0").await;
    run
}

fn started(taken: &TakeResult) -> Vec<Uuid> {
    taken.starts.started.iter().map(|started| started.run.id).collect()
}

async fn tenant_with_ten_thousand_runs_leaves_the_second_take_to_one_that_has_one(world: &StoreHarness) {
    let one = a_crowd_and_one(world).await;
    let first = take(&world.store, WORKER, 64, None, RunLimits::default()).await;
    assert_eq!((first.len(), started(&first).contains(&one)), (64, false), "what is oldest is taken");
    // more than could be taken: from now on in turn, as the worker does
    let second = take(&world.store, WORKER, 64, Some(first.turn), RunLimits::default()).await;
    assert!(started(&second).contains(&one));
}

async fn under_limits_the_first_take_is_shared(world: &StoreHarness) {
    let one = a_crowd_and_one(world).await;
    let first = take(&world.store, WORKER, 64, Some(ClaimCursor::default()), RunLimits::new(20, 0)).await;
    assert_eq!(first.len(), 21, "twenty of one tenant, and the other's one");
    assert!(started(&first).contains(&one));
}

async fn tenants_that_have_had_their_share_are_passed_over(world: &StoreHarness) {
    // more tenants than get their share at once, all at their limit but the last
    let trigger = || json!({"interval": "1h", "overlap": "allow"});
    for number in 0..258 {
        let task = world.task_with(&format!("t{number:03}"), trigger(), json!({})).await;
        world.run_now(&task).await;
        world.run_now(&task).await;
    }
    let limits = RunLimits::new(1, 0);
    let first = take(&world.store, WORKER, 1000, Some(ClaimCursor::default()), limits).await;
    assert_eq!(first.len(), 256, "as many tenants as get their share at once");
    // whoever begins anew finds those who have room, though all before them have none
    let second = take(&world.store, WORKER, 1000, Some(ClaimCursor::default()), limits).await;
    let tenants: Vec<&str> = second.starts.started.iter().map(|started| started.run.tenant_id.as_str()).collect();
    assert_eq!(tenants.len(), 2, "{tenants:?}");
    assert!(tenants.contains(&"t256") && tenants.contains(&"t257"), "{tenants:?}");
}

async fn take_with_room_for_few_runs_looks_at_few_tenants_and_the_next_one_goes_on_behind_them(world: &StoreHarness) {
    for number in 0..33 {
        let trigger = json!({"interval": "1h", "overlap": "allow"});
        let task = world.task_with(&format!("t{number:03}"), trigger, json!({})).await;
        world.run_now(&task).await;
        world.run_now(&task).await;
    }
    // of all but the last nothing is due
    let later = (world.now() + TimeDelta::hours(1)).to_rfc3339();
    world.plant(&format!("update queue set run_at = '{later}' where tenant_id < 't032'")).await;
    let take = async |limit: i64, turn| take(&world.store, WORKER, limit, Some(turn), RunLimits::default()).await;
    assert_eq!(take(17, ClaimCursor::default()).await.len(), 1, "the last tenant is among the 34 that are looked at");
    let first = take(1, ClaimCursor::default()).await;
    assert_eq!((first.len(), first.turn == ClaimCursor::default()), (0, false), "32 are looked at, and others follow");
    assert_eq!(take(1, first.turn).await.len(), 1);
}

async fn waiting_runs_are_counted_by_their_place(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1h", "overlap": "allow"})).await;
    let running = world.started(&task).await;
    world.run_now(&task).await;
    let depths = world.store.depths().await.expect("depths");
    assert_eq!((depths.ready, depths.claimed, depths.started, depths.parked), (1, 0, 1, 0));
    assert_eq!((depths.due_late, depths.approvals_open, depths.deliveries_pending), (0, 0, 0));
    world.claim().await;
    world.pass(3606);
    let depths = world.store.depths().await.expect("depths");
    assert_eq!((depths.ready, depths.claimed, depths.due_late), (0, 1, 1));
    world.succeed(&running).await;
    let pools: Vec<_> = world.store.pools().into_iter().map(|pool| (pool.pool, pool.in_use <= pool.most)).collect();
    let names: &[_] =
        if world.is_postgres() { &["shared", "engine", "quick"] } else { &["readers", "tenant_readers", "writer"] };
    assert_eq!(pools, names.iter().map(|name| (*name, true)).collect::<Vec<_>>());
}

async fn own(world: &StoreHarness, tenant: &str, most: u64) {
    let overrides = Overrides { concurrent_runs: Some(most), ..Overrides::default() };
    world.store.put_quotas(tenant, &overrides, "token:admin").await.unwrap();
}

async fn tenants_own_limit_is_in_the_place_of_everybodys(world: &StoreHarness) {
    assert!(!world.store.tenants_have_own_limits().await.unwrap());
    for tenant in ["a", "b", "c"] {
        let task = world.task_with(tenant, json!({"interval": "1h", "overlap": "allow"}), json!({})).await;
        for _ in 0..9 {
            world.run_now(&task).await;
        }
    }
    own(world, "a", 1).await;
    own(world, "b", 5).await;
    assert!(world.store.tenants_have_own_limits().await.unwrap());
    let started = async |limits: RunLimits| {
        let mut started = Vec::new();
        loop {
            let taken = take(&world.store, WORKER, 64, Some(ClaimCursor::default()), limits).await;
            if taken.is_empty() {
                break;
            }
            started.extend(taken.starts.started);
        }
        started
    };
    let of = |started: &[StartedRun], tenant: &str| started.iter().filter(|one| one.run.tenant_id == tenant).count();
    let limits = RunLimits { own: true, ..RunLimits::new(3, 0) };
    let first = started(limits).await;
    assert_eq!(["a", "b", "c"].map(|tenant| of(&first, tenant)), [1, 5, 3]);
    let usage = world.store.quota_usage("b").await.unwrap().standings[&Quota::ConcurrentRuns];
    assert_eq!((usage.limit, usage.usage), (Some(5), Some(5)));
    // a place that frees is taken again, and no other
    let ended = first.iter().find(|one| one.run.tenant_id == "a").unwrap();
    world.succeed(ended).await;
    let next = started(limits).await;
    assert_eq!(["a", "b", "c"].map(|tenant| of(&next, tenant)), [1, 0, 0]);
    // where nobody else has a limit, only the tenants that have one are held to it
    let rest = started(RunLimits { own: true, ..RunLimits::default() }).await;
    assert_eq!(["a", "b", "c"].map(|tenant| of(&rest, tenant)), [0, 0, 6]);
    world.store.reset_quotas("a", "token:admin").await.unwrap();
    world.store.reset_quotas("b", "token:admin").await.unwrap();
    let rest = started(RunLimits::default()).await;
    assert_eq!(["a", "b", "c"].map(|tenant| of(&rest, tenant)), [7, 4, 0]);
}
