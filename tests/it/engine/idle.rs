//! Idle services: each is woken for its own work.

use chrono::{DateTime, TimeDelta, Utc};
use reveille::engine::service::ServiceLoop;
use reveille::store::PendingWork;
use serde_json::json;

use crate::support::world::{World, at};

/// The instant for which it would tick; the least there is: now.
fn next_wake<S: ServiceLoop>(service: &S, pending: PendingWork) -> Option<DateTime<Utc>> {
    (S::IDLE.expect("a service that rests").next)(service, &pending)
}

#[tokio::test]
async fn each_service_goes_by_its_own_work() {
    let world = World::sqlite();
    let instance = world.instance();
    let engine = instance.engine();
    // lost slots are looked for first
    assert_eq!(next_wake(&*engine.rescuer, PendingWork::default()), Some(DateTime::<Utc>::MIN_UTC));
    instance.rescue().await;

    let then = at("09:00");
    let all = PendingWork {
        fire: Some(then),
        poll: Some(then + TimeDelta::seconds(1)),
        parked: Some(then + TimeDelta::seconds(2)),
        delivery: Some(then + TimeDelta::seconds(3)),
        window: Some(then + TimeDelta::seconds(4)),
        ..PendingWork::default()
    };
    let after = |seconds: i64| Some(then + TimeDelta::seconds(seconds));
    assert_eq!(
        next_wake(&*engine.scheduler, all),
        Some(then - TimeDelta::milliseconds(1500)),
        "fires are recorded ahead"
    );
    assert_eq!(next_wake(&*engine.watcher, all), after(1));
    assert_eq!(next_wake(&*engine.approval_reminder, all), after(2));
    assert_eq!(next_wake(&*engine.notifier, all), after(3));
    assert_eq!(next_wake(&*engine.windows, all), after(4));
    assert_eq!(next_wake(&*engine.worker, all), None);
    assert_eq!(next_wake(&*engine.sealer, all), None);
    for pending in [
        PendingWork { ready: true, ..PendingWork::default() },
        PendingWork { unsealed: true, ..PendingWork::default() },
    ] {
        let now = Some(DateTime::<Utc>::MIN_UTC);
        assert_eq!(next_wake(&*engine.worker, pending), now.filter(|_| pending.ready));
        assert_eq!(next_wake(&*engine.sealer, pending), now.filter(|_| pending.unsealed));
    }
    let sent = PendingWork { sent: Some(then), ..PendingWork::default() };
    assert_eq!(
        next_wake(&*engine.expirer, sent),
        Some(then + TimeDelta::hours(24)),
        "so long a provider may be silent"
    );
    assert_eq!(next_wake(&*engine.expirer, PendingWork { parked: Some(then), ..sent }), Some(then));
    let later = |at: DateTime<Utc>| Some(at + TimeDelta::milliseconds(1));
    let left =
        PendingWork { lease: Some(then), deadline: Some(then - TimeDelta::seconds(11)), ..PendingWork::default() };
    assert_eq!(
        next_wake(&*engine.rescuer, left),
        later(then - TimeDelta::seconds(1)),
        "a time limit has ten seconds of grace"
    );
    assert_eq!(next_wake(&*engine.rescuer, PendingWork { deadline: None, ..left }), later(then));
    assert_eq!(next_wake(&*engine.rescuer, PendingWork { parked: Some(then), ..PendingWork::default() }), later(then));
    assert_eq!(next_wake(&*engine.rescuer, PendingWork::default()), None);
    world.advance(60.0);
    assert_eq!(
        next_wake(&*engine.rescuer, PendingWork::default()),
        Some(DateTime::<Utc>::MIN_UTC),
        "lost slots are looked for each minute"
    );
    for none in [
        next_wake(&*engine.scheduler, PendingWork::default()),
        next_wake(&*engine.watcher, PendingWork::default()),
        next_wake(&*engine.approval_reminder, PendingWork::default()),
        next_wake(&*engine.notifier, PendingWork::default()),
        next_wake(&*engine.windows, PendingWork::default()),
        next_wake(&*engine.expirer, PendingWork::default()),
    ] {
        assert_eq!(none, None);
    }
    instance.finish(&world).await;
}

#[tokio::test]
async fn worker_that_holds_or_executes_anything_does_not_rest() {
    let world = World::sqlite();
    let instance = world.instance();
    let next = || next_wake(&*instance.engine().worker, PendingWork::default());
    let now = Some(DateTime::<Utc>::MIN_UTC);
    assert_eq!(next(), None);
    let trigger = json!({ "type": "schedule", "interval": "1m", "overlap": "allow" });
    instance.task(json!({ "acts": ["wait"], "max_runs": 1, "trigger": trigger })).await;
    world.advance(59.5);
    instance.fire().await;
    assert_eq!(next(), now, "it holds a claim");
    world.advance(0.5);
    instance.settle(1).await;
    assert_eq!(next(), now, "it may be asked to cancel what it executes");
    world.journal.open_gate();
    instance.settle(0).await;
    assert_eq!(next(), None);
    instance.finish(&world).await;
}
