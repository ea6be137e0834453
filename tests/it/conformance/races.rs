//! Two writers who meet, on Postgres: one is held before each of its requests in turn while the other does its whole
//! work, or waits for a lock of the first. Whatever the order, both must succeed or say why not, nothing may wait for
//! the other for ever (a deadlock is an error here), and the database must be in order after it.
//! SQLite has one writer, whose transactions can't meet; what two calls do one after the other, the other cases show.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use futures::future::BoxFuture;
use reveille::base::clock;
use reveille::base::id::{Scope, new_id};
use reveille::domain::approval::{Approval, ApprovalAnswer, ApprovalChoice, ApprovalStatus};
use reveille::domain::run::RunState;
use reveille::domain::run::transcript::{TranscriptEntry, TranscriptMessage};
use reveille::domain::task::Task;
use reveille::domain::task::change::TaskChange;
use reveille::store::{
    DecisionOutcome, Finish, Idempotency, RunClaim, RunLimits, StartedRun, Store, StoreError, TakeRequest,
    WaitingOutcome, WaitingUpdate,
};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::asked::{answer, go_on, park, parked as parked_for, question};
use super::world::{LEASE, START, StoreHarness, end_of, leases, open_postgres, spec};
use crate::support::gate::Gate;
use crate::support::world::claim_ready;

/// The act of one of the two, by its name; its answer is what it says of itself.
struct Act(&'static str, Box<dyn Fn(Store, Arc<Scene>) -> ActFuture>);

type ActFuture = BoxFuture<'static, Result<String, StoreError>>;

fn act<F, R>(name: &'static str, what: impl Fn(Store, Arc<Scene>) -> F + 'static) -> Act
where
    F: Future<Output = Result<R, StoreError>> + Send + 'static,
    R: Debug,
{
    let does = move |store, scene| -> ActFuture {
        let doing = what(store, scene);
        Box::pin(async move { doing.await.map(|done| format!("{done:?}")) })
    };
    Act(name, Box::new(does))
}

/// The scene in which the two meet; made anew for each round.
struct Scene {
    task: Task,
    /// The run that has the slot.
    running: StartedRun,
    /// A younger run, leased and not started.
    claim: RunClaim,
    /// The youngest, which nobody has leased.
    ready: Uuid,
    /// One that waits for the slot, where the policy lets one wait.
    parked: Option<Uuid>,
    /// Questions of the running one, where there are any.
    asked: Vec<Approval>,
    /// Of two questions the first was answered, and the run goes on: this is how it would be parked again.
    parks: Option<Finish>,
}

/// Under which policy the two meet, whether a run waits for the slot already, and whether the claimed one was fired
/// ahead of its instant.
#[derive(Clone, Copy)]
struct Setting {
    policy: &'static str,
    one_waits: bool,
    fired_ahead: bool,
    people: People,
}

/// How people come in.
#[derive(Clone, Copy, PartialEq)]
enum People {
    Nobody,
    /// Two questions are open, and the run is parked for them.
    Asked,
    /// One was answered, and the run goes on.
    Answered,
}

impl From<&'static str> for Setting {
    fn from(policy: &'static str) -> Setting {
        Setting { policy, one_waits: true, fired_ahead: false, people: People::Nobody }
    }
}

fn no_run_waits(policy: &'static str) -> Setting {
    Setting { one_waits: false, ..policy.into() }
}

fn fired_ahead(policy: &'static str) -> Setting {
    Setting { fired_ahead: true, ..policy.into() }
}

fn people(people: People) -> Setting {
    Setting { one_waits: false, people, ..Setting::from("allow") }
}

/// A task of this policy with a run that runs, one that waits for it, one that is about to start, and one that is
/// ready.
async fn scene(world: &StoreHarness, setting: Setting) -> Scene {
    let task = world.task(json!({"interval": "1h", "overlap": setting.policy})).await;
    let mut running = world.started(&task).await;
    let (mut asked, mut parks) = (Vec::new(), None);
    if setting.people != People::Nobody {
        asked = ["c1", "c2"].map(|call| question(world, &running, call)).to_vec();
        let asks: Vec<_> = asked.iter().map(|one| (one.clone(), None)).collect();
        park(world, &running, &asks, &[]).await;
    }
    if setting.people == People::Answered {
        world.store.decide_approval(&Scope::Every, asked[0].id, &yes(&asked[0])).await.unwrap();
        running = go_on(world, running.run.id).await;
        world.store.mark_execution_started(running.lease, asked[0].id, &asked[0].digest).await.unwrap();
        parks = Some(parked_for(world, &running, &[], &[asked[1].id]));
    }
    let mut parked = Uuid::nil();
    if setting.one_waits {
        parked = world.run_now(&task).await;
        world.store.start_runs(&leases(&world.claim().await), world.now() + LEASE).await.unwrap();
    }
    let is_parked = world.count(&format!("select count(*) from parked where run_id = '{parked}'")).await == 1;
    let claim = if setting.fired_ahead {
        world.store.fire_due(&world.ask(3600, 9)).await.unwrap().claims[0]
    } else {
        world.run_now(&task).await;
        world.claim().await[0]
    };
    let ready = world.run_now(&task).await;
    Scene { task, running, claim, ready, parked: is_parked.then_some(parked), asked, parks }
}

/// Interleaves the two in every way; `judge` looks at each outcome.
async fn meet(
    setting: impl Into<Setting>,
    first: Act,
    second: Act,
    judge: impl AsyncFn(&StoreHarness, &Scene, [&str; 2]),
) {
    let setting = setting.into();
    let world = StoreHarness::postgres().await;
    let gate = Gate::before(&world.url()).await;
    gate.open().await;
    let held = open_postgres(&gate.url(&world.url()), &world.clock).await;
    let other = world.other_instance().await;
    let mut watcher = PgConnection::connect(&world.url()).await.unwrap();
    for pass in 0.. {
        let scene = Arc::new(scene(&world, setting).await);
        held.ping().await.unwrap();
        gate.hold_after(pass);
        let mut one = tokio::spawn(first.1(held.clone(), Arc::clone(&scene)));
        let ended = tokio::select! {
            done = &mut one => Some(done.unwrap()),
            () = gate.held() => None,
        };
        let last = ended.is_some();
        let two = tokio::spawn(second.1(other.clone(), Arc::clone(&scene)));
        let (one, two) = match ended {
            Some(one) => (one, two.await.unwrap()),
            None => {
                until_stuck_or_done(&mut watcher, &two).await;
                gate.release();
                (one.await.unwrap(), two.await.unwrap())
            }
        };
        let told = [&one, &two].map(|outcome| match outcome {
            Err(error @ (StoreError::Unavailable(_) | StoreError::Corrupt(_))) => {
                panic!("{} held at request {pass} while {}, under {}: {error}", first.0, second.0, setting.policy)
            }
            Err(error) => error.to_string(),
            Ok(done) => done.clone(),
        });
        world.check().await;
        judge(&world, &scene, [&told[0], &told[1]]).await;
        clear(&world, &scene).await;
        if last {
            // what is one statement meets the other before it and after it; a transaction begins and ends besides
            let least = if ["run_now", "claim", "append", "start", "finish"].contains(&first.0) { 1 } else { 3 };
            assert!(pass >= least, "the first makes {pass} requests only");
            break;
        }
    }
    gate.release();
    held.close().await;
    other.close().await;
    world.leave().await;
}

/// Leaves nothing that could be claimed, rescued or waited for in the next round.
async fn clear(world: &StoreHarness, scene: &Scene) {
    match world.store.delete_task(&Scope::Every, scene.task.id).await {
        Ok(()) | Err(StoreError::NotFound) => {}
        Err(error) => panic!("{error}"),
    }
    world.plant("delete from queue").await;
    world
        .plant(
            "update approvals set status = 'cancelled', decided_at = created_at, decided_by = 'service'
              where status = 'pending'",
        )
        .await;
    world.plant("update runs set state = 'cancelled', finished_at = created_at where finished_at is null").await;
}

/// Returns once the other has done its work or waits for a lock.
pub async fn until_stuck_or_done<T>(watcher: &mut PgConnection, other: &tokio::task::JoinHandle<T>) {
    let waits = "select exists(select 1 from pg_locks l join pg_stat_activity a on a.pid = l.pid
                  where not l.granted and a.datname = current_database())";
    while !other.is_finished() {
        if sqlx::query_scalar::<_, bool>(waits).fetch_one(&mut *watcher).await.unwrap() {
            return;
        }
        clock::pause(Duration::from_millis(1)).await;
    }
}

// ---------------------------------------------------------------- what they do

fn finish() -> Act {
    act("finish", |store, scene| async move { store.finish_runs(&[end_of(&scene.running, RunState::Succeeded)]).await })
}

fn start() -> Act {
    act("start", |store, scene| async move {
        let starts = store.start_runs(&[scene.claim.lease], START + LEASE).await?;
        let blocked: Vec<_> = starts.blocked.iter().map(|(_, fate)| *fate).collect();
        Ok((starts.started.len(), blocked))
    })
}

fn claim() -> Act {
    act("claim", |store, _| async move { Ok(claim_ready(&store, super::world::OTHER_WORKER, START, 9).await.len()) })
}

/// Takes what is due, starts it if it has its slot, and else judges what becomes of it.
fn take() -> Act {
    act("take", |store, _| async move {
        let take = TakeRequest {
            worker: super::world::OTHER_WORKER,
            now: START,
            ahead: START,
            lease_until: START + LEASE,
            limit: 9,
            fair: None,
            limits: RunLimits::default(),
            shares: None,
        };
        let taken = store.take_runs(&take).await?;
        let blocked: Vec<_> = taken.starts.blocked.iter().map(|(_, fate)| *fate).collect();
        Ok((taken.starts.started.len(), blocked))
    })
}

fn cancel(whom: fn(&Scene) -> Uuid) -> Act {
    act("cancel", move |store, scene| async move { store.cancel_run(&Scope::Every, whom(&scene), "no").await })
}

fn delete() -> Act {
    act("delete", |store, scene| async move { store.delete_task(&Scope::Every, scene.task.id).await })
}

fn run_now() -> Act {
    act("run_now", |store, scene| async move {
        store.run_now(&Scope::Every, scene.task.id, new_id(START), None, START, None).await
    })
}

fn run_now_once() -> Act {
    act("run_now_once", |store, scene| async move {
        let once = Idempotency {
            tenant: "a".into(),
            key: scene.task.id.to_string(),
            digest: vec![1],
            status: 201,
            body: json!("first").into(),
        };
        store.run_now(&Scope::Every, scene.task.id, new_id(START), None, START, Some(&once)).await
    })
}

/// After its lease has ended, as far as the one that takes it over has seen.
fn take_over() -> Act {
    act("take_over", |store, _| async move {
        let late = START + TimeDelta::seconds(100);
        let taken = store.take_over_expired(late, TimeDelta::zero(), late + LEASE, 9).await?;
        Ok(taken.len())
    })
}

fn beat() -> Act {
    act("beat", |store, scene| async move {
        let held = store.heartbeat(&[scene.running.lease], START + TimeDelta::seconds(200)).await?;
        Ok(held.len())
    })
}

fn append() -> Act {
    act("append", |store, scene| async move {
        let message = TranscriptMessage::user("hello");
        let entry = TranscriptEntry::new(0, 0, START, message);
        store.append("a", scene.running.lease, &[entry]).await
    })
}

fn wake_parked() -> Act {
    act("wake_parked", |store, _| async move { store.wake_parked(START + TimeDelta::seconds(100), 9).await })
}

fn reclaim() -> Act {
    act("reclaim", |store, _| async move { store.requeue_expired_claims(START + TimeDelta::seconds(100)).await })
}

fn pause() -> Act {
    act("pause", |store, scene| async move {
        let paused = store.change_task(&Scope::Every, scene.task.id, &TaskChange::Pause { reason: None }).await?;
        Ok(paused.status)
    })
}

fn edit(interval: &'static str) -> Act {
    act("edit", move |store, scene| async move {
        let spec = Box::new(spec(json!({"interval": interval}), json!({})));
        let edit = TaskChange::Edit { version: 1, name: "n".into(), spec };
        store.change_task(&Scope::Every, scene.task.id, &edit).await.map(|task| task.version)
    })
}

fn fire_ahead() -> Act {
    act("fire_ahead", |store, _| async move {
        let ask = reveille::store::FireDue {
            now: START,
            horizon: Duration::from_secs(3600),
            limit: 9,
            worker: super::world::OTHER_WORKER,
            room: 9,
            start: None,
        };
        let fired = store.fire_due(&ask).await?;
        Ok((fired.recorded, fired.conflicts))
    })
}

fn yes(to: &Approval) -> ApprovalAnswer {
    answer(ApprovalChoice::Approve, to, "token:t")
}

/// Answers the last question so; says whether it was the decision.
fn decide(choice: ApprovalChoice) -> Act {
    act("decide", move |store, scene| async move {
        let asked = scene.asked.last().unwrap();
        let decided = store.decide_approval(&Scope::Every, asked.id, &answer(choice, asked, "token:t")).await?;
        Ok(matches!(decided, DecisionOutcome::Done(_)))
    })
}

/// Answers the first question with a no.
fn refuse_first() -> Act {
    act("refuse", |store, scene| async move {
        let asked = &scene.asked[0];
        let decided =
            store.decide_approval(&Scope::Every, asked.id, &answer(ApprovalChoice::Cancel, asked, "token:u")).await?;
        Ok(matches!(decided, DecisionOutcome::Done(_)))
    })
}

/// Parks the run that goes on, for the question that is left.
fn park_again() -> Act {
    act("park", |store, scene| async move { store.finish_runs(&[scene.parks.clone().unwrap()]).await })
}

/// Looks after the run when the time of its questions is over.
fn expire() -> Act {
    act("expire", |store, scene| async move {
        store.clock().advance(scene.asked[0].expires_at - store.clock().now().min(scene.asked[0].expires_at));
        let wake_at = store.clock().now() + TimeDelta::days(1);
        let update = WaitingUpdate { wake_at, deliveries: vec![], if_expired: vec![] };
        store.settle_waiting(scene.running.run.id, &update).await
    })
}

// ---------------------------------------------------------------- how they meet

/// Nothing but the order of the database is asked for.
async fn any(_: &StoreHarness, _: &Scene, _: [&str; 2]) {}

/// The run that was to start, or one that waited, starts when the slot is free; nobody is forgotten.
async fn successor_starts(world: &StoreHarness, scene: &Scene, told: [&str; 2]) {
    assert!(told.contains(&"[]"), "the end is written: {told:?}");
    let live = format!("select count(*) from queue where task_id = '{}'", scene.task.id);
    let claim = world.get_run(scene.claim.lease.run_id).await;
    assert!(world.count(&live).await > 0 || claim.state.is_final(), "{told:?}, {claim:?}");
    if let Some(parked) = scene.parked {
        let parked = world.get_run(parked).await;
        assert!(!parked.state.is_final() || parked.reason.as_deref() == Some("superseded"), "{told:?}, {parked:?}");
    }
}

#[tokio::test]
async fn end_and_a_start_under_each_policy() {
    for policy in ["skip", "queue_one", "queue_all", "cancel_previous"] {
        meet(policy, start(), finish(), successor_starts).await;
    }
    for policy in ["queue_all", "cancel_previous"] {
        meet(no_run_waits(policy), start(), finish(), successor_starts).await;
    }
}

#[tokio::test]
async fn start_and_an_end_under_each_policy() {
    for policy in ["skip", "queue_all", "cancel_previous"] {
        meet(policy, finish(), start(), successor_starts).await;
    }
    for policy in ["queue_all", "cancel_previous"] {
        meet(no_run_waits(policy), finish(), start(), successor_starts).await;
    }
}

#[tokio::test]
async fn cancel_and_a_start() {
    let judge = async |world: &StoreHarness, scene: &Scene, told: [&str; 2]| {
        // a run that was started is asked to end, one that was not is cancelled; never both
        let run = world.get_run(scene.claim.lease.run_id).await;
        let (asked, started) = (told.contains(&"Asked"), told.contains(&"(1, [])"));
        assert_eq!((asked, run.state == RunState::Running), (started, started), "{told:?}, {run:?}");
    };
    meet("allow", cancel(|scene| scene.claim.lease.run_id), start(), judge).await;
    meet("allow", start(), cancel(|scene| scene.claim.lease.run_id), judge).await;
}

#[tokio::test]
async fn take_that_finds_the_slot_taken_and_whatever_becomes_of_the_run_meanwhile() {
    let ready = |scene: &Scene| scene.ready;
    // what has ended is nowhere any more
    let judge = async |world: &StoreHarness, scene: &Scene, told: [&str; 2]| {
        let run = world.store.get_run(&Scope::Every, scene.ready).await;
        let left = |table: &str| format!("select count(*) from {table} where run_id = '{}'", scene.ready);
        if run.as_ref().map_or(true, |run| run.state.is_final()) {
            for table in ["queue", "parked", "slots"] {
                assert_eq!(world.count(&left(table)).await, 0, "{table}: {told:?}, {run:?}");
            }
        }
    };
    for policy in ["skip", "queue_all", "cancel_previous"] {
        meet(policy, take(), cancel(ready), judge).await;
        meet(policy, take(), finish(), judge).await;
    }
    for policy in ["queue_all", "cancel_previous"] {
        meet(no_run_waits(policy), take(), cancel(ready), judge).await;
        meet(policy, take(), delete(), judge).await;
        meet(policy, take(), pause(), judge).await;
        meet(policy, cancel(ready), take(), judge).await;
        meet(policy, take(), take(), judge).await;
    }
}

#[tokio::test]
async fn cancel_of_one_that_waits_and_the_hand_over_to_it() {
    let parked = |scene: &Scene| scene.parked.unwrap();
    let judge = async |world: &StoreHarness, scene: &Scene, told: [&str; 2]| {
        let run = world.get_run(scene.parked.unwrap()).await;
        assert_eq!((run.state, told.contains(&"Now")), (RunState::Cancelled, true), "{told:?}");
    };
    meet("queue_all", cancel(parked), finish(), judge).await;
    meet("queue_all", finish(), cancel(parked), judge).await;
}

#[tokio::test]
async fn deletion_and_whatever_its_runs_do() {
    let judge = async |world: &StoreHarness, scene: &Scene, told: [&str; 2]| {
        let left = format!(
            "select (select count(*) from slots where task_id = '{0}') + (select count(*) from parked where task_id = '{0}')
                  + (select count(*) from queue where task_id = '{0}' and state <> 'started')",
            scene.task.id
        );
        assert_eq!(world.count(&left).await, 0, "{told:?}");
    };
    for other in [finish, start, run_now] {
        meet("queue_all", delete(), other(), judge).await;
        meet("queue_all", other(), delete(), judge).await;
    }
    meet("cancel_previous", start(), delete(), judge).await;
}

#[tokio::test]
async fn rescue_and_the_holder_who_comes_back() {
    // exactly one of the two has the run afterwards
    let judge = |held: &'static str| {
        async move |_: &StoreHarness, _: &Scene, told: [&str; 2]| {
            let took_over = told[1] == "1";
            assert_ne!(told[0] == held, took_over, "the holder was told {:?}, the rescuer took {}", told[0], told[1]);
        }
    };
    meet("skip", beat(), take_over(), judge("1")).await;
    // an append leaves the lease as it is: what comes before the rescue stands, and what comes after it is refused
    let appended = |holder: usize| {
        async move |world: &StoreHarness, scene: &Scene, told: [&str; 2]| {
            let run = scene.running.run.id;
            let stored = world.count(&format!("select count(*) from turns where run_id = '{run}'")).await;
            assert_eq!((told[1 - holder], stored), ("1", i64::from(told[holder] == "()")), "{told:?}");
        }
    };
    meet("skip", append(), take_over(), appended(0)).await;
    meet("skip", finish(), take_over(), judge("[]")).await;
    let mirrored = |held: &'static str| {
        async move |_: &StoreHarness, _: &Scene, told: [&str; 2]| {
            let took_over = told[0] == "1";
            assert_ne!(told[1] == held, took_over, "the holder was told {:?}, the rescuer took {}", told[1], told[0]);
        }
    };
    meet("skip", take_over(), beat(), mirrored("1")).await;
    meet("skip", take_over(), append(), appended(1)).await;
    meet("skip", take_over(), finish(), mirrored("[]")).await;
    meet("skip", take_over(), take_over(), mirrored("1")).await;
}

#[tokio::test]
async fn look_at_those_who_wait_long_and_a_hand_over() {
    meet("queue_all", wake_parked(), finish(), successor_starts).await;
    meet("queue_all", finish(), wake_parked(), successor_starts).await;
}

#[tokio::test]
async fn claim_that_is_taken_back_while_it_is_started() {
    meet("allow", reclaim(), start(), any).await;
    meet("allow", start(), reclaim(), any).await;
    meet("queue_all", start(), reclaim(), any).await;
}

#[tokio::test]
async fn fire_and_a_pause_of_its_task() {
    // recorded and taken back, or not recorded: a paused task has no fire that is still to come
    let judge = async |world: &StoreHarness, scene: &Scene, told: [&str; 2]| {
        let fires = world.runs_of(&scene.task).await.into_iter().filter(|run| run.fire_key.starts_with("s:")).count();
        let task = world.get_task(scene.task.id).await;
        assert_eq!((fires, task.fire_count, task.next_fire_at), (0, 0, None), "{told:?}");
    };
    meet("allow", fire_ahead(), pause(), judge).await;
    meet("allow", pause(), fire_ahead(), judge).await;
}

#[tokio::test]
async fn start_ahead_of_its_instant_and_a_pause() {
    // it runs and counts, or it was taken back and never was
    let judge = async |world: &StoreHarness, scene: &Scene, told: [&str; 2]| {
        let started = told.contains(&"(1, [])");
        let run = world.store.get_run(&Scope::Every, scene.claim.lease.run_id).await;
        let fired = world.get_task(scene.task.id).await.fire_count;
        assert_eq!((run.is_ok(), fired), (started, i64::from(started)), "{told:?}, {run:?}");
    };
    meet(fired_ahead("allow"), start(), pause(), judge).await;
    meet(fired_ahead("allow"), pause(), start(), judge).await;
}

#[tokio::test]
async fn two_claims_of_one_run() {
    let judge = async |_: &StoreHarness, _: &Scene, told: [&str; 2]| {
        let mut told = told;
        told.sort_unstable();
        assert_eq!(told, ["0", "1"]);
    };
    meet("allow", claim(), claim(), judge).await;
}

#[tokio::test]
async fn two_edits_of_one_version() {
    let judge = async |_: &StoreHarness, _: &Scene, told: [&str; 2]| {
        assert_eq!(told.iter().filter(|told| **told == "2").count(), 1, "one wins: {told:?}");
    };
    meet("allow", edit("2h"), edit("3h"), judge).await;
}

#[tokio::test]
async fn two_requests_with_one_key() {
    let judge = async |world: &StoreHarness, scene: &Scene, told: [&str; 2]| {
        assert_eq!(told.iter().filter(|told| **told == "Done(())").count(), 1, "{told:?}");
        assert_eq!(told.iter().filter(|told| told.starts_with("Replayed")).count(), 1, "{told:?}");
        assert_eq!(world.get_task(scene.task.id).await.run_count, 5, "{told:?}");
    };
    meet("allow", run_now_once(), run_now_once(), judge).await;
}

/// Where a run is, and how its questions stand.
async fn stands(world: &StoreHarness, scene: &Scene) -> (RunState, Vec<ApprovalStatus>) {
    let state = world.get_run(scene.running.run.id).await.state;
    let asked = world.store.approvals_of_turn(scene.running.run.id, 1).await.unwrap();
    (state, asked.iter().map(|one| one.status).collect())
}

#[tokio::test]
async fn two_siblings_that_are_refused_at_once() {
    // neither may think that the other is open still
    let judge = async |world: &StoreHarness, scene: &Scene, told: [&str; 2]| {
        assert_eq!(told, ["true", "true"]);
        let stands = stands(world, scene).await;
        assert_eq!(stands, (RunState::Queued, vec![ApprovalStatus::Cancelled; 2]), "{told:?}");
    };
    meet(people(People::Asked), refuse_first(), decide(ApprovalChoice::Cancel), judge).await;
}

#[tokio::test]
async fn two_answers_to_one_question() {
    let judge = async |world: &StoreHarness, scene: &Scene, told: [&str; 2]| {
        let (state, asked) = stands(world, scene).await;
        let expected = match told {
            ["true", "false"] => (RunState::Queued, ApprovalStatus::Approved),
            ["false", "true"] => (RunState::PendingApproval, ApprovalStatus::Cancelled),
            told => panic!("{told:?}"),
        };
        assert_eq!((state, asked[1]), expected);
    };
    meet(people(People::Asked), decide(ApprovalChoice::Approve), decide(ApprovalChoice::Cancel), judge).await;
}

#[tokio::test]
async fn answer_while_the_run_is_being_parked() {
    // the run goes on by the answer, or was told of it: it never waits for what is settled
    let judge = async |world: &StoreHarness, scene: &Scene, told: [&str; 2]| {
        assert!(told.contains(&"true") && told.contains(&"[]"), "{told:?}");
        assert_eq!(stands(world, scene).await.0, RunState::Queued, "{told:?}");
    };
    for choice in [ApprovalChoice::Approve, ApprovalChoice::Cancel] {
        meet(people(People::Answered), decide(choice), park_again(), judge).await;
        meet(people(People::Answered), park_again(), decide(choice), judge).await;
    }
}

#[tokio::test]
async fn answer_and_an_expiry() {
    let judge = |answer: usize| {
        async move |world: &StoreHarness, scene: &Scene, told: [&str; 2]| {
            let (state, asked) = stands(world, scene).await;
            let in_time = told[answer] == "true";
            let attended = told[1 - answer];
            let expected = if in_time { (RunState::Queued, "Gone") } else { (RunState::Expired, "Expired") };
            assert_eq!((state, attended), expected, "{asked:?}");
            assert_eq!(asked[1].allows(), in_time);
        }
    };
    meet(people(People::Asked), decide(ApprovalChoice::Approve), expire(), judge(0)).await;
    meet(people(People::Asked), expire(), decide(ApprovalChoice::Approve), judge(1)).await;
    let once = async |_: &StoreHarness, _: &Scene, told: [&str; 2]| {
        let mut told = told;
        told.sort_unstable();
        assert_eq!(told, [format!("{:?}", WaitingOutcome::Expired), format!("{:?}", WaitingOutcome::Gone)]);
    };
    meet(people(People::Asked), expire(), expire(), once).await;
}

#[tokio::test]
async fn answer_and_the_end_of_its_run() {
    let ended = async |world: &StoreHarness, scene: &Scene, told: [&str; 2]| {
        let (state, asked) = stands(world, scene).await;
        assert_eq!(state, RunState::Cancelled, "{told:?}");
        assert!(!asked.contains(&ApprovalStatus::Pending), "{told:?}, {asked:?}");
        assert_eq!(asked[1].allows(), told.contains(&"true"), "{told:?}, {asked:?}");
    };
    for other in [|| cancel(|scene| scene.running.run.id), delete] {
        meet(people(People::Asked), decide(ApprovalChoice::Approve), other(), ended).await;
        meet(people(People::Asked), other(), decide(ApprovalChoice::Approve), ended).await;
    }
    // one whose end is asked for while it is being parked is not parked
    let not_parked = async |world: &StoreHarness, scene: &Scene, told: [&str; 2]| {
        assert_eq!(stands(world, scene).await.0, RunState::Cancelled, "{told:?}");
    };
    meet(people(People::Answered), park_again(), cancel(|scene| scene.running.run.id), not_parked).await;
    meet(people(People::Answered), cancel(|scene| scene.running.run.id), park_again(), not_parked).await;
}
