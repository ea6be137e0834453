//! Halts as rows: who sees them and when, what is taken meanwhile, and what the record has.

use std::pin::pin;
use std::time::Duration;

use chrono::TimeDelta;
use reveille::base::clock::pause;
use reveille::base::id::Scope;
use reveille::domain::halt::{Halt, HaltKind};
use reveille::domain::run::RunState;
use reveille::domain::task::TaskStatus;
use reveille::domain::task::change::TaskChange;
use reveille::store::{AuditFilter, ClaimCursor, RunLimits, StartedRun, Store, StoreError, TakeRequest, event_shard};
use serde_json::json;
use tokio::task::yield_now;
use tokio::time::timeout;

use super::world::{LEASE, StoreHarness, WORKER, end_of, only};

on_both!(
    take_in_turn_passes_over_halted_tenants_until_they_are_lifted,
    instance_that_was_not_woken_sees_a_halt_within_a_second,
    work_that_is_no_run_is_told_of_a_halt_of_its_tenant_alone,
    work_that_is_no_run_is_told_of_a_halt_whose_wakeup_is_lost,
    halts_are_listed_by_scope_and_repeated_orders_recorded_once,
    list_of_halts_says_how_many_more_hold,
    skips_of_halted_tenants_count_for_no_quota_of_fires,
    task_that_is_disabled_takes_back_what_is_recorded_ahead,
    event_task_that_is_disabled_leaves_the_index_until_it_is_enabled,
    task_that_an_operator_has_disabled_is_no_one_else_s_to_resume,
);

const BY: &str = "token:admin";
const STOPPED: HaltKind = HaltKind::Stopped;
const DISABLED: HaltKind = HaltKind::TenantDisabled;

async fn taken(store: &Store, limits: RunLimits) -> Vec<StartedRun> {
    let now = store.clock().now();
    let fair = Some(ClaimCursor::default());
    let take = TakeRequest {
        worker: WORKER,
        now,
        ahead: now,
        lease_until: now + LEASE,
        limit: 64,
        fair,
        limits,
        shares: None,
    };
    store.take_runs(&take).await.expect("a take").starts.started
}

async fn take_in_turn_passes_over_halted_tenants_until_they_are_lifted(world: &StoreHarness) {
    let mut asked = Vec::new();
    for tenant in ["a", "b", "c"] {
        let task = world.task_with(tenant, json!({"interval": "1h", "overlap": "allow"}), json!({})).await;
        for _ in 0..3 {
            asked.push(world.run_now(&task).await);
        }
    }
    let tenants = |started: &[StartedRun]| {
        let mut tenants: Vec<String> = started.iter().map(|one| one.run.tenant_id.clone()).collect();
        tenants.sort();
        tenants.dedup();
        tenants
    };
    let end = async |started: Vec<StartedRun>| {
        let ends: Vec<_> = started.iter().map(|one| end_of(one, RunState::Succeeded)).collect();
        world.store.finish_runs(&ends).await.expect("ends");
    };
    world.store.halt(STOPPED, None, None, BY).await.unwrap();
    assert_eq!(taken(&world.store, RunLimits::default()).await, []);
    world.store.lift_halt(STOPPED, None, BY).await.unwrap();
    world.store.halt(STOPPED, Some("a"), None, BY).await.unwrap();
    world.store.halt(DISABLED, Some("b"), None, BY).await.unwrap();
    // with limits and without: either goes by the rows
    for limits in [RunLimits::new(1, 0), RunLimits::default()] {
        let started = taken(&world.store, limits).await;
        assert_eq!(tenants(&started), ["c"]);
        end(started).await;
    }
    world.store.lift_halt(DISABLED, Some("b"), BY).await.unwrap();
    let started = taken(&world.store, RunLimits::default()).await;
    assert_eq!((tenants(&started), started.len()), (vec!["b".to_owned()], 3));
    end(started).await;
    world.store.lift_halt(STOPPED, Some("a"), BY).await.unwrap();
    let started = taken(&world.store, RunLimits::default()).await;
    assert_eq!((tenants(&started), started.len()), (vec!["a".to_owned()], 3));
    end(started).await;
    for run in asked {
        assert_eq!(world.get_run(run).await.state, RunState::Succeeded);
    }
}

async fn instance_that_was_not_woken_sees_a_halt_within_a_second(world: &StoreHarness) {
    assert!(world.store.halts().await.unwrap().is_empty());
    // as another instance does it whose wake-up is lost
    let since = world.now().to_rfc3339();
    world
        .plant(&format!(
            "insert into halts (tenant_id, kind, halted_by, since) values ('a', 'stopped', 'x', '{since}')"
        ))
        .await;
    world.plant("update halt_version set version = version + 1").await;
    assert!(world.store.halts().await.unwrap().is_empty(), "it has just looked");
    world.clock.advance(TimeDelta::milliseconds(500));
    assert_eq!(world.store.halts().await.unwrap().halt_of("a"), Some(STOPPED));
    // a kind of a newer release keeps everything from beginning, too
    world.plant("update halts set kind = 'frozen'").await;
    world.plant("update halt_version set version = version + 1").await;
    world.clock.advance(TimeDelta::milliseconds(500));
    assert_eq!(world.store.halts().await.unwrap().halt_of("a"), Some(STOPPED));
    world.plant("delete from halts").await;
    world.plant("update halt_version set version = version + 1").await;
    let other = world.other_instance().await;
    world.clock.advance(TimeDelta::milliseconds(500));
    for store in [&world.store, &other] {
        assert!(store.halts().await.unwrap().is_empty());
    }
}

/// How long anything may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(60);

async fn work_that_is_no_run_is_told_of_a_halt_of_its_tenant_alone(world: &StoreHarness) {
    for halted in [Some("a"), None] {
        let mut told = pin!(world.store.until_halted("a"));
        let others = async {
            world.store.halt(STOPPED, Some("b"), None, BY).await.unwrap();
            for _ in 0..20 {
                assert_eq!(world.store.halts().await.unwrap().halt_of("a"), None);
                yield_now().await;
            }
        };
        tokio::select! {
            () = told.as_mut() => panic!("it is another one's"),
            () = others => {}
        }
        // no time passes: it is woken
        let (told, ordered) =
            tokio::join!(timeout(PATIENCE, told), world.store.halt(STOPPED, halted, Some("it is too loud"), BY));
        ordered.unwrap();
        told.expect("told in time");
        world.store.lift_halt(STOPPED, halted, BY).await.unwrap();
    }
}

async fn work_that_is_no_run_is_told_of_a_halt_whose_wakeup_is_lost(world: &StoreHarness) {
    assert!(world.store.halts().await.unwrap().is_empty());
    let since = world.now().to_rfc3339();
    let row = format!(
        "insert into halts (tenant_id, kind, halted_by, since) values ('a', 'tenant_disabled', 'x', '{since}')"
    );
    world.plant(&row).await;
    world.plant("update halt_version set version = version + 1").await;
    let passing = async {
        for _ in 0..30_000 {
            world.clock.advance(TimeDelta::milliseconds(100));
            pause(Duration::from_millis(2)).await;
        }
    };
    tokio::select! {
        () = world.store.until_halted("a") => {}
        () = passing => panic!("it is not told"),
    }
}

async fn list_of_halts_says_how_many_more_hold(world: &StoreHarness) {
    for number in 0..203 {
        world.store.halt(STOPPED, Some(&format!("t{number:03}")), None, BY).await.unwrap();
    }
    let page = world.store.list_halts(&Scope::Every).await.unwrap();
    assert_eq!((page.halts.len(), page.more), (200, 3));
    let own = world.store.list_halts(&only("t202")).await.unwrap();
    assert_eq!((own.halts.len(), own.more), (1, 0));
}

async fn halts_are_listed_by_scope_and_repeated_orders_recorded_once(world: &StoreHarness) {
    let halt = |tenant: Option<&str>, kind, reason: &str, seconds: i64| Halt {
        tenant: tenant.map(str::to_owned),
        kind,
        reason: Some(reason.to_owned()),
        by: BY.into(),
        since: world.now() - TimeDelta::seconds(seconds),
    };
    for reason in ["first", "second"] {
        world.store.halt(STOPPED, None, Some(reason), BY).await.unwrap();
        world.store.halt(DISABLED, Some("a"), Some(reason), BY).await.unwrap();
        world.store.halt(STOPPED, Some("b"), Some(reason), BY).await.unwrap();
        world.pass(10);
    }
    let all = halt(None, STOPPED, "first", 20);
    let (a, b) = (halt(Some("a"), DISABLED, "first", 20), halt(Some("b"), STOPPED, "first", 20));
    assert_eq!(world.store.list_halts(&Scope::Every).await.unwrap().halts, [all.clone(), a.clone(), b]);
    assert_eq!(world.store.list_halts(&only("a")).await.unwrap().halts, [all, a]);
    for _ in 0..2 {
        world.store.lift_halt(STOPPED, None, BY).await.unwrap();
        world.store.lift_halt(DISABLED, Some("a"), BY).await.unwrap();
        world.store.lift_halt(STOPPED, Some("b"), BY).await.unwrap();
    }
    assert_eq!(world.store.list_halts(&Scope::Every).await.unwrap().halts, []);
    let filter = AuditFilter { limit: 99, ..AuditFilter::default() };
    let mut entries: Vec<_> = world.store.audit_page(&Scope::Every, &filter).await.unwrap().rows;
    entries.reverse();
    let entries: Vec<_> = entries.iter().map(|entry| (entry.tenant_id.as_str(), entry.action.as_str())).collect();
    let expected = [
        ("*", "tenant.stopped"),
        ("a", "tenant.disabled"),
        ("b", "tenant.stopped"),
        ("*", "tenant.started"),
        ("a", "tenant.enabled"),
        ("b", "tenant.started"),
    ];
    assert_eq!(entries, expected);
}

async fn skips_of_halted_tenants_count_for_no_quota_of_fires(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m"})).await;
    world.store.halt(DISABLED, Some("a"), None, BY).await.unwrap();
    world.pass(60);
    let fired = world.fire().await;
    assert_eq!((fired.recorded, fired.skipped, fired.claims.len()), (0, 1, 0));
    let [run] = &world.runs_of(&task).await[..] else { panic!("one record") };
    let count = run.tallied_fires().expect("a tally").count;
    assert_eq!((run.state, run.reason.as_deref(), count), (RunState::Skipped, Some("tenant_disabled"), Some(1)));
    let standings = world.store.quota_usage("a").await.unwrap().standings;
    assert_eq!(standings[&reveille::domain::quota::Quota::FiresPerMinute].usage, Some(0));
}

async fn task_that_is_disabled_takes_back_what_is_recorded_ahead(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m"})).await;
    world.pass(59);
    let ahead = world.store.fire_due(&world.ask(2, 10)).await.unwrap();
    assert_eq!(ahead.claims.len(), 1);
    let disabled = world.store.disable_task_for(task.id, Some("too much".into()), BY).await.unwrap();
    assert_eq!((disabled.status, disabled.disabled_by.as_deref()), (TaskStatus::Disabled, Some(BY)));
    assert_eq!(world.runs_of(&task).await, []);
    world.pass(3600);
    assert_eq!(world.fire().await.tasks, 0);
    let stored = world.get_task(task.id).await;
    assert_eq!((stored.status_reason.as_deref(), stored.disabled_by.as_deref()), (Some("too much"), Some(BY)));
    let enabled = world.store.enable_task(task.id, BY).await.unwrap();
    assert_eq!((enabled.status, &enabled.disabled_by, &enabled.status_reason), (TaskStatus::Active, &None, &None));
    assert!(enabled.next_fire_at > Some(world.now()));
    let [missed] = &world.runs_of(&task).await[..] else { panic!("one record of what was missed") };
    assert_eq!((missed.state, missed.reason.as_deref()), (RunState::Skipped, Some("paused")));
    assert_eq!(world.store.enable_task(task.id, BY).await.unwrap(), world.get_task(task.id).await, "nothing to enable");
}

async fn event_task_that_is_disabled_leaves_the_index_until_it_is_enabled(world: &StoreHarness) {
    let task = world.task(json!({"type": "event", "source": "shop"})).await;
    let live = async || world.store.event_tasks(event_shard("a"), 0, 9, false).await.unwrap().live.len();
    assert_eq!(live().await, 1);
    world.store.disable_task_for(task.id, None, BY).await.unwrap();
    assert_eq!(live().await, 0);
    world.store.enable_task(task.id, BY).await.unwrap();
    assert_eq!(live().await, 1);
}

async fn task_that_an_operator_has_disabled_is_no_one_else_s_to_resume(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1m"})).await;
    world.store.disable_task_for(task.id, None, BY).await.unwrap();
    for change in [TaskChange::Resume, TaskChange::ResumeDropping, TaskChange::Pause { reason: None }] {
        for scope in [only("a"), Scope::Every] {
            let refused = world.store.change_task(&scope, task.id, &change).await;
            assert!(matches!(refused, Err(StoreError::Conflict(_))), "{change:?}: {refused:?}");
        }
    }
    assert_eq!(world.get_task(task.id).await.status, TaskStatus::Disabled);
    // one that has come to its end has nothing to disable
    let once = world.task(json!({"at": (world.now() + TimeDelta::seconds(1)).to_rfc3339()})).await;
    world.pass(2);
    world.fire().await;
    assert!(matches!(world.store.disable_task_for(once.id, None, BY).await, Err(StoreError::Conflict(_))));
}
