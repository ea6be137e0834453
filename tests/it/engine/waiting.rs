//! Runs that wait for a model or a webhook leave their slots to others, as far as there are places to wait in.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use reveille::base::clock::pause;
use reveille::domain::run::RunState;
use reveille::domain::task::Task;
use reveille::engine::scheduling::run_slots::SlotCounts;
use reveille::ports::egress;
use serde_json::{Value, json};

use crate::conditions::{Shop, next_poll, watching};
use crate::support::app::Instance;
use crate::support::slow_model::SlowModel;
use crate::support::world::{World, on_both};

on_both! {
    agents_of_one_instant_are_all_under_way_by_default_and_a_pipeline_beside_them_is_not_held_up
    poll_beside_agents_that_wait_is_made_at_its_instant_and_fires
    runs_beyond_the_waiting_places_keep_their_places_and_nothing_is_lost
    tenant_with_its_share_of_the_waiting_places_leaves_some_to_another
    run_whose_answer_is_here_keeps_its_lease_and_its_time_limit_while_it_waits_for_a_place
    webhook_that_does_not_answer_takes_no_place
    run_whose_agents_wait_at_once_takes_no_place
    run_whose_agent_or_step_is_cut_off_while_it_waits_goes_on_once_it_has_a_place
    calls_of_a_model_are_bounded_and_tenants_have_them_in_turn
    worker_whose_waiting_places_are_taken_looks_once_a_second
    worker_whose_tenant_has_its_limit_looks_once_a_second
    worker_that_leaves_a_place_to_another_tenant_looks_once_a_second
}

/// How long anything may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(30);
/// Between two looks at something that comes by itself.
const LOOK: Duration = Duration::from_millis(2);

/// A world whose default model answers nobody yet.
async fn slow(world: &mut World) -> SlowModel {
    let model = SlowModel::start().await;
    world.llm.models.insert("main".to_owned(), model.settings());
    model
}

fn agent(tenant: &str) -> Value {
    json!({ "tenant": tenant, "executor": "orchestrator", "action": { "instruction": format!("Answer {tenant}.") },
            "trigger": { "type": "schedule", "interval": "1m", "overlap": "allow" }, "max_runs": 1,
            "timeout_seconds": 3600 })
}

fn pipeline(tenant: &str, steps: Value) -> Value {
    json!({ "tenant": tenant, "executor": "pipeline", "action": { "config": { "steps": steps } },
            "trigger": { "type": "schedule", "interval": "1h", "overlap": "allow" }, "timeout_seconds": 3600 })
}

async fn run_often(instance: &Instance, task: &Task, times: usize) {
    for _ in 0..times {
        instance.run_now(task).await;
    }
}

async fn agents_of_one_instant_are_all_under_way_by_default_and_a_pipeline_beside_them_is_not_held_up(
    mut world: World,
) {
    const AGENTS: usize = 300;
    let model = slow(&mut world).await;
    let instance = world.instance();
    for _ in 0..AGENTS {
        instance.task(agent("many")).await;
    }
    let beside = [
        instance.task(pipeline("many", json!([{ "name": "sum", "map": "1 + 1" }]))).await,
        instance.task(pipeline("other", json!([{ "name": "sum", "map": "1 + 1" }]))).await,
    ];
    world.advance(60.0);
    instance.fire().await;
    instance.settle(AGENTS as i64).await;
    model.until_waiting("Answer many", AGENTS).await;
    let all = SlotCounts { computing: 0, waiting: AGENTS, returning: 0, starting: 0 };
    assert_eq!(instance.engine().slot_counts(), all);
    for task in &beside {
        let run = instance.run_now(task).await;
        instance.settle(AGENTS as i64).await;
        assert_eq!(instance.run(run).await.state, RunState::Succeeded);
    }
    assert_eq!(model.waiting("Answer many"), AGENTS, "none of them has ended meanwhile");
    model.answer(AGENTS);
    instance.settle(0).await;
    assert_eq!(world.number("select count(*) from runs where state = 'succeeded'").await, AGENTS as i64 + 2);
    assert_eq!(instance.engine().slot_counts(), SlotCounts::default());
    instance.finish(&world).await;
}

async fn poll_beside_agents_that_wait_is_made_at_its_instant_and_fires(mut world: World) {
    const AGENTS: usize = 40;
    let (model, shop) = (slow(&mut world).await, Shop::open(&mut world).await);
    shop.sells_at(400).await;
    // far fewer slots than runs that wait
    world.settings.max_concurrent_runs = 4;
    let instance = world.instance();
    let agents = instance.task(agent("many")).await;
    run_often(&instance, &agents, AGENTS).await;
    instance.settle(AGENTS as i64).await;
    model.until_waiting("Answer many", AGENTS).await;
    let watched = instance.task(watching(&shop, json!({}))).await;
    // of one look of the watcher
    let known = next_poll(&world, &instance, &watched).await;
    assert_eq!((known.verdict, known.edges), (Some(true), 1));
    assert_eq!(shop.asked().await.len(), 1);
    instance.settle(AGENTS as i64).await;
    let states: Vec<RunState> = instance.runs(&watched).await.iter().map(|run| run.state).collect();
    assert_eq!(states, [RunState::Succeeded]);
    assert_eq!(model.waiting("Answer many"), AGENTS, "none of them has ended meanwhile");
    model.answer(AGENTS);
    instance.settle(0).await;
    assert_eq!(world.number("select count(*) from runs where state = 'succeeded'").await, AGENTS as i64 + 1);
    instance.finish(&world).await;
}

/// A lock of its own keeps the store from recording an end, and from nothing else.
#[tokio::test]
async fn runs_whose_ends_are_being_recorded_take_no_place() {
    let mut world = World::postgres().await;
    world.settings.max_concurrent_runs = 1;
    let instance = world.instance();
    let task = instance.task(pipeline("ann", json!([{ "name": "one", "map": "1" }]))).await;
    let lock = world.begin("lock table turns in exclusive mode").await;
    run_often(&instance, &task, 3).await;
    instance.settle(3).await;
    let begun = Instant::now();
    while instance.engine().slot_counts() != (SlotCounts { computing: 0, waiting: 3, returning: 0, starting: 0 }) {
        assert!(begun.elapsed() < PATIENCE, "{:?}", instance.engine().slot_counts());
        pause(LOOK).await;
    }
    drop(lock);
    instance.settle(0).await;
    assert_eq!(world.number("select count(*) from runs where state = 'succeeded'").await, 3);
    assert_eq!(instance.engine().slot_counts(), SlotCounts::default());
    instance.finish(&world).await;
}

async fn runs_beyond_the_waiting_places_keep_their_places_and_nothing_is_lost(mut world: World) {
    let model = slow(&mut world).await;
    (world.settings.max_concurrent_runs, world.settings.max_waiting_runs) = (2, 3);
    let instance = world.instance();
    let task = instance.task(agent("many")).await;
    run_often(&instance, &task, 12).await;
    instance.settle(5).await;
    model.until_waiting("Answer", 5).await;
    assert_eq!(instance.engine().slot_counts(), SlotCounts { computing: 2, waiting: 3, returning: 0, starting: 0 });
    model.answer(12);
    instance.settle(0).await;
    assert_eq!(world.number("select count(*) from runs where state = 'succeeded'").await, 12);
    assert_eq!(model.most(), 5);
    instance.finish(&world).await;
}

async fn tenant_with_its_share_of_the_waiting_places_leaves_some_to_another(mut world: World) {
    let model = slow(&mut world).await;
    (world.settings.max_concurrent_runs, world.settings.max_waiting_runs) = (8, 16);
    let instance = world.instance();
    let (many, few) = (instance.task(agent("many")).await, instance.task(agent("few")).await);
    run_often(&instance, &many, 40).await;
    // twelve of sixteen without a slot, and six of eight with one
    instance.settle(18).await;
    model.until_waiting("Answer many", 18).await;
    assert_eq!(instance.engine().slot_counts(), SlotCounts { computing: 6, waiting: 12, returning: 0, starting: 0 });
    run_often(&instance, &few, 10).await;
    instance.settle(23).await;
    model.until_waiting("Answer few", 5).await;
    assert_eq!((model.waiting("Answer many"), model.waiting("Answer few")), (18, 5));
    model.answer(50);
    instance.settle(0).await;
    assert_eq!(world.number("select count(*) from runs where state = 'succeeded'").await, 50);
    instance.finish(&world).await;
}

async fn run_whose_answer_is_here_keeps_its_lease_and_its_time_limit_while_it_waits_for_a_place(mut world: World) {
    let model = slow(&mut world).await;
    (world.settings.max_concurrent_runs, world.settings.lease_seconds) = (1, 45.0);
    let instance = world.instance();
    let (agent, hog) = (instance.task(agent("ann")).await, json!({ "acts": ["wait"], "timeout_seconds": 7200 }));
    let hog = instance.task(hog).await;
    let late = instance.run_now(&agent).await;
    instance.settle(1).await;
    model.until_waiting("Answer", 1).await;
    let holds = instance.run_now(&hog).await;
    instance.settle(2).await;
    world.journal.until_begun(holds).await;
    model.answer(1);
    until(&instance, SlotCounts { computing: 1, waiting: 0, returning: 1, starting: 0 }).await;
    for _ in 0..90 {
        world.advance(40.0);
        instance.beat().await;
        instance.rescue().await;
    }
    let run = instance.until(late, |run| run.state.is_final()).await;
    assert_eq!((run.state, run.crashes), (RunState::Failed, 0));
    assert_eq!(run.error.map(|error| error.code), Some("timeout".to_owned()));
    assert!(run.finished_at >= run.started_at.map(|started| started + TimeDelta::seconds(3600)));
    // the next one has its slot once it is free
    let next = instance.run_now(&agent).await;
    world.journal.open_gate();
    // else the run before it is the one that is under way
    instance.until(holds, |run| run.state.is_final()).await;
    instance.settle(1).await;
    model.until_waiting("Answer", 1).await;
    model.answer(1);
    instance.settle(0).await;
    assert_eq!(instance.run(next).await.state, RunState::Succeeded);
    instance.finish(&world).await;
}

async fn webhook_that_does_not_answer_takes_no_place(mut world: World) {
    let model = slow(&mut world).await;
    world.egress = egress::Settings { allow: vec!["127.0.0.1:*".into()], ..egress::Settings::default() };
    world.settings.max_concurrent_runs = 1;
    let instance = world.instance();
    let config = json!({ "url": model.hook(), "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" });
    let hook = instance
        .task(json!({ "executor": "webhook", "action": { "instruction": "Book a table", "config": config } }))
        .await;
    let other = instance.task(json!({ "acts": ["succeed"] })).await;
    let waits = instance.run_now(&hook).await;
    instance.settle(1).await;
    model.until_waiting("Book a table", 1).await;
    let runs = instance.run_now(&other).await;
    instance.settle(1).await;
    assert_eq!(instance.run(runs).await.state, RunState::Succeeded);
    assert_eq!(instance.run(waits).await.state, RunState::Running);
    model.answer(1);
    instance.settle(0).await;
    assert!(instance.run(waits).await.state.is_final());
    instance.finish(&world).await;
}

/// A run that has called two agents at once has no slot while both wait, or while one does and the other has ended.
async fn run_whose_agents_wait_at_once_takes_no_place(mut world: World) {
    let model = SlowModel::start().await;
    world.llm.models.insert("slow".to_owned(), model.settings());
    let called = |name: &str| {
        let written = json!({ "name": name, "instruction": "You help.", "model": "slow", "tools": [] });
        serde_json::from_value(written).expect("an agent")
    };
    world.agents = vec![called("First"), called("Second")];
    let call = |agent: &str| json!({ "tool": agent, "args": { "task_instruction": "Help." } });
    world.follows(&json!({ "steps": [
        { "turn": 1, "calls": [call("First"), call("Second")] },
        { "turn": 2, "text": "Both have helped." },
    ] }));
    world.settings.max_concurrent_runs = 1;
    let instance = world.instance();
    let (caller, other) = (instance.task(agent("ann")).await, instance.task(json!({ "acts": ["succeed"] })).await);
    let calls = instance.run_now(&caller).await;
    instance.settle(1).await;
    model.until_waiting("You help.", 2).await;
    let without_place = SlotCounts { computing: 0, waiting: 1, returning: 0, starting: 0 };
    until(&instance, without_place).await;
    let beside = instance.run_now(&other).await;
    instance.settle(1).await;
    assert_eq!(instance.run(beside).await.state, RunState::Succeeded);
    model.answer(1);
    // what the one that is answered has said is stored in the run's slot, which it leaves to others when it ends
    let began = Instant::now();
    while world.number("select count(*) from turns where delegation is not null and turns > 0").await < 1 {
        assert!(began.elapsed() < PATIENCE, "the answer is not stored");
        pause(LOOK).await;
    }
    until(&instance, without_place).await;
    assert_eq!(model.waiting("You help."), 1);
    model.answer(1);
    instance.settle(0).await;
    let run = instance.run(calls).await;
    assert_eq!((run.state, run.output.as_deref()), (RunState::Succeeded, Some("Both have helped.")));
    until(&instance, SlotCounts::default()).await;
    instance.finish(&world).await;
}

/// The time of an agent that was called, and of a step, ends while their runs have no slot, which another run has.
async fn run_whose_agent_or_step_is_cut_off_while_it_waits_goes_on_once_it_has_a_place(mut world: World) {
    let model = SlowModel::start().await;
    world.llm.models.insert("slow".to_owned(), model.settings());
    let called =
        json!({ "name": "First", "instruction": "You help.", "model": "slow", "tools": [], "timeout_seconds": 5 });
    world.agents = vec![serde_json::from_value(called).expect("an agent")];
    world.follows(&json!({ "steps": [
        { "turn": 1, "calls": [{ "tool": "First", "args": { "task_instruction": "Help." } }] },
        { "turn": 2, "text": "Nobody has helped." },
    ] }));
    world.settings.max_concurrent_runs = 1;
    let instance = world.instance();
    let asks = json!({ "prompt": "You help.", "model": "slow" });
    let ask = json!({ "name": "ask", "llm": asks, "timeout_seconds": 5, "on_error": "continue" });
    let (caller, steps) = (instance.task(agent("ann")).await, instance.task(pipeline("ann", json!([ask]))).await);
    let hog = instance.task(json!({ "acts": ["wait"], "timeout_seconds": 7200 })).await;
    let mut cut_off = Vec::new();
    for (task, waiting) in [(&caller, 1), (&steps, 2)] {
        cut_off.push(instance.run_now(task).await);
        instance.settle(waiting).await;
        model.until_waiting("You help.", waiting as usize).await;
    }
    let holds = instance.run_now(&hog).await;
    instance.settle(3).await;
    world.journal.until_begun(holds).await;
    until(&instance, SlotCounts { computing: 1, waiting: 2, returning: 0, starting: 0 }).await;
    world.advance(6.0);
    until(&instance, SlotCounts { computing: 1, waiting: 0, returning: 2, starting: 0 }).await;
    world.journal.open_gate();
    instance.settle(0).await;
    let [called, asked] = [instance.run(cut_off[0]).await, instance.run(cut_off[1]).await];
    assert_eq!((called.state, called.output.as_deref()), (RunState::Succeeded, Some("Nobody has helped.")));
    assert_eq!((asked.state, model.most()), (RunState::Succeeded, 2));
    until(&instance, SlotCounts::default()).await;
    instance.finish(&world).await;
}

async fn calls_of_a_model_are_bounded_and_tenants_have_them_in_turn(mut world: World) {
    let model = SlowModel::start().await;
    let bounded = reveille::ports::llm::ModelSettings { max_concurrent_calls: Some(2), ..model.settings() };
    world.llm.models.insert("main".to_owned(), bounded);
    let instance = world.instance();
    let (many, few) = (instance.task(agent("many")).await, instance.task(agent("few")).await);
    run_often(&instance, &many, 10).await;
    instance.settle(10).await;
    model.until_waiting("Answer many", 2).await;
    run_often(&instance, &few, 1).await;
    instance.settle(11).await;
    assert_eq!((model.waiting("Answer many"), model.waiting("Answer few")), (2, 0));
    until(&instance, SlotCounts { computing: 0, waiting: 11, returning: 0, starting: 0 }).await;
    // eight of the other tenant wait for a slot, and have asked for it before
    let mut answered = 0;
    while model.waiting("Answer few") == 0 {
        assert!(answered < 8, "all of the other tenant were before it");
        model.answer(1);
        answered += 1;
        model.until_asked(2 + answered).await;
    }
    model.answer(11);
    instance.settle(0).await;
    assert_eq!((model.most(), world.number("select count(*) from runs where state = 'succeeded'").await), (2, 11));
    instance.finish(&world).await;
}

async fn worker_whose_waiting_places_are_taken_looks_once_a_second(mut world: World) {
    let model = slow(&mut world).await;
    (world.settings.max_concurrent_runs, world.settings.max_waiting_runs) = (2, 3);
    let instance = world.instance();
    let task = instance.task(agent("many")).await;
    run_often(&instance, &task, 12).await;
    looks_once_a_second(&world, instance, [7, 5], async || {
        model.until_waiting("Answer", 5).await;
        model.answer(12);
    })
    .await;
}

async fn worker_whose_tenant_has_its_limit_looks_once_a_second(mut world: World) {
    world.settings.max_runs_per_tenant = 2;
    let instance = world.instance();
    let task = instance.task(waiting("many")).await;
    run_often(&instance, &task, 6).await;
    looks_once_a_second(&world, instance, [4, 2], async || world.journal.open_gate()).await;
}

async fn worker_that_leaves_a_place_to_another_tenant_looks_once_a_second(mut world: World) {
    (world.settings.max_concurrent_runs, world.settings.prefetch) = (4, 4);
    let instance = world.instance();
    let task = instance.task(waiting("many")).await;
    instance.task(waiting("few")).await;
    run_often(&instance, &task, 9).await;
    looks_once_a_second(&world, instance, [6, 3], async || world.journal.open_gate()).await;
}

/// A task whose runs wait for the gate.
fn waiting(tenant: &str) -> Value {
    json!({ "tenant": tenant, "acts": ["wait"], "max_runs": 1,
            "trigger": { "type": "schedule", "interval": "1h", "overlap": "allow" } })
}

/// Loops the services of an instance that has as many ready runs, and as many started ones, as it can come to. Its
/// worker looks for more as often as the clock says, and no more often. Then all of the runs come to their ends.
async fn looks_once_a_second(world: &World, mut instance: Instance, runs: [i64; 2], let_them_end: impl AsyncFn()) {
    const SECONDS: u64 = 10;
    let [ready, started] = runs;
    let running = instance.start().await;
    let began = Instant::now();
    while instance.queue().await != [("ready".to_owned(), ready), ("started".to_owned(), started)] {
        assert!(began.elapsed() < PATIENCE, "{:?}", instance.queue().await);
        pause(LOOK).await;
    }
    let (first, others) = (looks(&instance), ticks(&instance, "scheduler"));
    for _ in 0..SECONDS {
        // one that looks again and again does it now
        pause(LOOK * 10).await;
        let before = looks(&instance);
        world.advance(1.0);
        while looks(&instance) == before {
            assert!(began.elapsed() < PATIENCE, "the worker does not look any more");
            pause(LOOK).await;
        }
    }
    let looked = looks(&instance) - first;
    // where the scheduler has the last slots just now, the worker looks once more when they are given back
    let others = ticks(&instance, "scheduler") - others;
    assert!(looked <= SECONDS + others, "{looked} looks in {SECONDS} seconds, beside {others} of the scheduler");
    let_them_end().await;
    while world.number("select count(*) from runs where state = 'succeeded'").await < ready + started {
        assert!(began.elapsed() < PATIENCE, "{:?}", instance.queue().await);
        pause(LOOK).await;
    }
    instance.on(|_| async move { running.stop().await }).await;
    instance.finish(world).await;
}

/// How often the worker has looked for runs that it could take.
fn looks(instance: &Instance) -> u64 {
    ticks(instance, "worker")
}

fn ticks(instance: &Instance, service: &str) -> u64 {
    let ticks = format!("reveille_service_ticks_total{{service=\"{service}\",result=\"ok\"}} ");
    let text = instance.http().metrics.text();
    text.lines().find_map(|line| line.strip_prefix(&ticks)).map_or(0, |count| count.parse().expect("a number"))
}

/// Returns once so many runs are in each phase.
async fn until(instance: &Instance, counts: SlotCounts) {
    let began = Instant::now();
    while instance.engine().slot_counts() != counts {
        assert!(began.elapsed() < PATIENCE, "{:?}", instance.engine().slot_counts());
        pause(LOOK).await;
    }
}
