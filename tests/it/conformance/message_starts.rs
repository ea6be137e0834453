//! Messages that start with their record: where the instance that took them has a place, and nothing else of their
//! conversation is under way or waits for its turn. All others are ready for any instance.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use futures::future::BoxFuture;
use reveille::base::clock::pause;
use reveille::base::id::{Scope, new_id};
use reveille::domain::conversation::RequestEcho;
use reveille::domain::halt::HaltKind;
use reveille::domain::notification::Recipient;
use reveille::domain::run::RunState;
use reveille::domain::task::Task;
use reveille::store::{ImmediateStart, LocalStarter, OverlapOutcome, ReservedStart, RunRequest, StartedRun};
use serde_json::json;
use uuid::Uuid;

use super::conversations::{conversation, say};
use super::world::{LEASE, StoreHarness, WORKER, only};

on_both!(
    message_starts_with_its_record_where_its_instance_has_a_place,
    message_to_a_busy_conversation_overtakes_none_before_it,
    message_is_ready_for_any_instance_where_it_may_not_start_here,
    message_that_comes_again_after_its_end_starts_nothing_and_leaves_no_slot,
    message_whose_caller_goes_away_is_executed_all_the_same,
    end_of_starts_waits_for_a_message_that_is_being_recorded,
);

/// How long anything may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at something that comes by itself.
const LOOK: Duration = Duration::from_millis(2);

/// The places of an instance that executes nothing: it keeps what was started.
pub(super) struct Places {
    pub(super) has_place: AtomicBool,
    /// How often places were asked for.
    pub(super) asked: AtomicUsize,
    /// No place is given while it is locked.
    pub(super) gate: tokio::sync::Mutex<()>,
    /// Held once more by each place that is reserved.
    permit: Arc<()>,
    /// Runs that were started, each with the places that were reserved then.
    executed: Mutex<Vec<(StartedRun, usize)>>,
}

impl Places {
    /// Messages and requests of the world's store start in these places from now on.
    pub(super) async fn open(world: &StoreHarness) -> Arc<Places> {
        let places = Arc::new(Places {
            has_place: AtomicBool::new(true),
            asked: AtomicUsize::default(),
            gate: tokio::sync::Mutex::default(),
            permit: Arc::default(),
            executed: Mutex::default(),
        });
        let starter: Arc<dyn LocalStarter> = Arc::<Places>::clone(&places);
        world.store.begin_local_starts(Arc::downgrade(&starter)).await;
        places
    }

    /// How many reservations of places are held.
    pub(super) fn reserved(&self) -> usize {
        Arc::strong_count(&self.permit) - 1
    }

    /// The only run that was started since the last look.
    pub(super) fn started(&self) -> StartedRun {
        let executed = std::mem::take(&mut *self.executed.lock().unwrap());
        let [(started, reserved)] = <[_; 1]>::try_from(executed).expect("one run that has started");
        assert_eq!(reserved, 1, "its place is kept until it is executed");
        started
    }

    /// The runs that were started since the last look.
    pub(super) fn all_started(&self) -> Vec<StartedRun> {
        let executed = std::mem::take(&mut *self.executed.lock().unwrap());
        assert!(executed.iter().all(|(_, reserved)| *reserved > 0), "places are kept until their runs are executed");
        executed.into_iter().map(|(started, _)| started).collect()
    }

    pub(super) fn has_started_none(&self) -> bool {
        self.executed.lock().unwrap().is_empty()
    }

    /// Returns once a place was asked for.
    pub(super) async fn until_asked(&self) {
        let begun = Instant::now();
        while self.asked.load(Ordering::Relaxed) == 0 {
            assert!(begun.elapsed() < PATIENCE, "no place is asked for");
            pause(LOOK).await;
        }
    }
}

impl LocalStarter for Places {
    fn reserve<'a>(&'a self, tenants: &'a [&'a str], now: DateTime<Utc>) -> BoxFuture<'a, Option<ReservedStart>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            let _open = self.gate.lock().await;
            let permit = Box::new(Arc::clone(&self.permit));
            let start = ImmediateStart { slots: tenants.len(), lease_until: now + LEASE, shares: None };
            let place = ReservedStart { worker: WORKER, room: tenants.len(), start, permit };
            self.has_place.load(Ordering::Relaxed).then_some(place)
        })
    }

    fn execute(&self, started: StartedRun) {
        self.executed.lock().unwrap().push((started, self.reserved()));
    }
}

/// A message that starts with its record, and is answered.
pub async fn start_and_answer(world: &StoreHarness) {
    let task = conversation(world, "a").await;
    let places = Places::open(world).await;
    let message = say(world, &task, "hello").await;
    let started = places.started();
    assert_eq!(started.run.id, message);
    world.succeed(&started).await;
    world.store.end_local_starts().await;
}

async fn message_starts_with_its_record_where_its_instance_has_a_place(world: &StoreHarness) {
    let recipient = Recipient { locale: "de".into(), ..Recipient::default() };
    world.store.put_recipient(&Scope::Every, "a", &recipient, None).await.unwrap();
    let task = conversation(world, "a").await;
    world.pass(5);
    let places = Places::open(world).await;
    let (id, now) = (new_id(world.now()), world.now());
    let echo = RequestEcho { background: true, previous: None };
    let request = RunRequest { input: Some(json!("hello")), requested_by: Some("token:t".into()), echo };
    world.store.post_message(&only("a"), task.id, id, request, now).await.unwrap();
    assert_eq!(places.reserved(), 0, "its place is given back");

    let started = places.started();
    assert_eq!(world.get_run(id).await, *started.run, "it is as it is stored");
    assert_eq!((started.run.state, started.run.attempt, started.is_first), (RunState::Running, 1, true));
    assert_eq!((&started.run.input, started.run.started_at), (&Some(json!("hello")), Some(now)));
    let time_limit = TimeDelta::seconds(task.spec.timeout_seconds as i64);
    assert_eq!((started.lease_until, started.deadline_at), (now + LEASE, now + time_limit));
    assert_eq!(started.recipient.as_deref(), Some(&recipient));
    assert!(started.task.as_deref().is_some_and(Task::is_chat));
    assert_eq!(world.store.requester_of(&only("a"), id).await.unwrap().as_deref(), Some("token:t"));
    assert_eq!(world.store.request_echo(&only("a"), id).await.unwrap(), echo);
    let stored = world.store.find_task(&Scope::Every, task.id).await.unwrap().expect("the conversation");
    assert_eq!((stored.run_count, stored.fire_count), (1, 0));

    assert!(world.claim().await.is_empty(), "nobody else gets it");
    assert_eq!(world.store.heartbeat(&[started.lease], now + LEASE).await.unwrap().len(), 1, "its lease holds");
    world.succeed(&started).await;
    // the conversation is idle again; `say` sends it twice
    let next = say(world, &task, "and more").await;
    let started = places.started();
    assert_eq!(started.run.id, next);
    world.succeed(&started).await;
}

async fn message_to_a_busy_conversation_overtakes_none_before_it(world: &StoreHarness) {
    let task = conversation(world, "a").await;
    let places = Places::open(world).await;
    let say_next = async |message: &str| {
        world.pass(1);
        say(world, &task, message).await
    };
    let first = say_next("first").await;
    let under_way = places.started();
    assert_eq!(under_way.run.id, first);
    let second = say_next("second").await;
    let starts = world.start_all().await;
    assert_eq!((starts.started.len(), starts.blocked), (0, vec![(second, OverlapOutcome::Behind)]));
    let third = say_next("third").await;
    world.succeed(&under_way).await;
    // the second has the slot and is ready, the third is ready
    let fourth = say_next("fourth").await;
    assert!(places.has_started_none(), "others are before it");
    let mut answered = Vec::new();
    while answered.len() < 3 {
        let started = world.start_all().await.started;
        let [started] = <[StartedRun; 1]>::try_from(started).expect("one after the other");
        world.succeed(&started).await;
        answered.push(started.run.id);
    }
    assert_eq!(answered, [second, third, fourth]);
    assert!(places.has_started_none());
    let fifth = say_next("fifth").await;
    let started = places.started();
    assert_eq!(started.run.id, fifth, "nothing is before it");
    world.succeed(&started).await;
}

async fn message_is_ready_for_any_instance_where_it_may_not_start_here(world: &StoreHarness) {
    let task = conversation(world, "a").await;
    let places = Places::open(world).await;
    let start_elsewhere = async |message: Uuid| {
        let [started] = <[StartedRun; 1]>::try_from(world.start_all().await.started).expect("one run that is ready");
        assert_eq!(started.run.id, message);
        world.succeed(&started).await;
    };
    places.has_place.store(false, Ordering::Relaxed);
    start_elsewhere(say(world, &task, "there is no place").await).await;
    places.has_place.store(true, Ordering::Relaxed);

    let asked = places.asked.load(Ordering::Relaxed);
    world.store.halt(HaltKind::Stopped, Some("a"), None, "token:admin").await.unwrap();
    let halted = say(world, &task, "its tenant is halted").await;
    assert_eq!(places.asked.load(Ordering::Relaxed), asked, "it takes no place from others");
    world.store.lift_halt(HaltKind::Stopped, Some("a"), "token:admin").await.unwrap();
    start_elsewhere(halted).await;

    world.store.end_local_starts().await;
    start_elsewhere(say(world, &task, "the services are being stopped").await).await;
    assert!(places.has_started_none());
    let gone = Places::open(world).await;
    drop(gone);
    start_elsewhere(say(world, &task, "there is no engine any more").await).await;
}

async fn message_that_comes_again_after_its_end_starts_nothing_and_leaves_no_slot(world: &StoreHarness) {
    let task = conversation(world, "a").await;
    let places = Places::open(world).await;
    let (id, now, scope) = (new_id(world.now()), world.now(), only("a"));
    let post = async || {
        let request = RunRequest { input: Some(json!("hello")), ..RunRequest::default() };
        world.store.post_message(&scope, task.id, id, request, now).await.unwrap();
    };
    post().await;
    let started = places.started();
    world.succeed(&started).await;
    let ended = world.get_run(id).await;
    post().await;
    assert!(places.has_started_none());
    assert_eq!((world.get_run(id).await, places.reserved()), (ended, 0));
    assert_eq!(world.count("select count(*) from slots").await, 0);
    assert_eq!(world.claim().await, []);
    let stored = world.store.find_task(&Scope::Every, task.id).await.unwrap().expect("the conversation");
    assert_eq!(stored.run_count, 1, "it counts once");
}

async fn message_whose_caller_goes_away_is_executed_all_the_same(world: &StoreHarness) {
    let task = conversation(world, "a").await;
    let places = Places::open(world).await;
    let (id, now, scope) = (new_id(world.now()), world.now(), only("a"));
    let request = RunRequest { input: Some(json!("hello")), ..RunRequest::default() };
    let mut posting = Box::pin(world.store.post_message(&scope, task.id, id, request, now));
    assert!(futures::poll!(&mut posting).is_pending());
    drop(posting);
    let begun = Instant::now();
    while places.has_started_none() {
        assert!(begun.elapsed() < PATIENCE, "it was broken off");
        pause(LOOK).await;
    }
    let started = places.started();
    assert_eq!(started.run.id, id);
    world.succeed(&started).await;
}

async fn end_of_starts_waits_for_a_message_that_is_being_recorded(world: &StoreHarness) {
    let task = conversation(world, "a").await;
    let places = Places::open(world).await;
    let closed = places.gate.lock().await;
    let (id, now, store) = (new_id(world.now()), world.now(), world.store.clone());
    let posting = tokio::spawn(async move {
        let request = RunRequest { input: Some(json!("hello")), ..RunRequest::default() };
        store.post_message(&only("a"), task.id, id, request, now).await
    });
    places.until_asked().await;
    let mut ending = Box::pin(world.store.end_local_starts());
    assert!(futures::poll!(&mut ending).is_pending(), "a message has its place and is not recorded");
    drop(closed);
    ending.await;
    let started = places.started();
    assert_eq!(started.run.id, id);
    posting.await.unwrap().unwrap();
    world.succeed(&started).await;
}
