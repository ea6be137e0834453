//! Halts: the operator's stop switch and disabled tenants, over whole instances: what is skipped, what does not begin,
//! and what becomes of work under way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use chrono::{DateTime, TimeDelta, Utc};
use futures::future::BoxFuture;
use reveille::base::clock::{Clock, pause, to_delta};
use reveille::base::expr::Language;
use reveille::domain::approval::{Category, Consequence};
use reveille::domain::run::RunState;
use reveille::domain::trigger::Trigger;
use reveille::domain::trigger::condition::{ConditionStep, PollResult, Validators};
use reveille::engine::service::ServiceLoop;
use reveille::ports::egress;
use reveille::ports::tool::{Definition, Tool, ToolContext, ToolError, ToolOutput};
use reveille::store::{PendingWork, PollClaim, RecordedPoll};
use serde_json::{Value, json};
use tokio::sync::watch;

use crate::support::app::Instance;
use crate::support::journal::RecordedEnd;
use crate::support::slow_model::SlowModel;
use crate::support::world::{ADMIN, World, on_both};

on_both! {
    fires_of_a_halted_tenant_are_skipped_nothing_of_it_begins_and_others_go_on
    stop_of_all_skips_every_fire_and_the_start_catches_nothing_up
    event_window_that_closes_while_its_tenant_is_halted_is_skipped
    edge_of_a_poll_that_had_begun_is_skipped
    ready_runs_of_a_halted_tenant_hold_up_no_other_and_go_on_afterwards
    claim_from_before_a_stop_does_not_start_and_its_run_goes_on_afterwards
    model_call_is_cut_off_by_a_stop_and_its_run_goes_on_after_the_start
    webhook_under_way_is_waited_for_and_its_answer_recorded
    tool_call_under_way_is_waited_for_and_is_not_made_again_after_the_start
    stop_whose_wakeup_is_lost_reaches_a_run_by_the_looks_of_a_second
    model_call_of_a_step_is_cut_off_by_a_stop_and_its_run_goes_on_after_the_start
    stop_of_one_tenant_leaves_runs_of_others_alone
    halt_holds_over_a_restart
}

async fn order(instance: &Instance, path: &str, body: Value) {
    let (status, answer) = instance.ask("POST", path, ADMIN, Some(body)).await;
    assert_eq!(status, 200, "{path}: {answer}");
}

async fn stop_all(instance: &Instance) {
    order(instance, "/v1/stop", json!({ "all": true })).await;
}

async fn start_all(instance: &Instance) {
    order(instance, "/v1/start", json!({ "all": true })).await;
}

/// Asks back what is halted, as the loop of the service would.
async fn keep(instance: &Instance) {
    instance.tick(&instance.engine().halt_keeper).await.expect("a look");
}

/// A world whose default model, and whose webhook, answer nobody yet.
async fn slow(world: &mut World) -> SlowModel {
    let model = SlowModel::start().await;
    world.llm.models.insert("main".to_owned(), model.settings());
    world.egress = egress::Settings { allow: vec!["127.0.0.1:*".into()], ..egress::Settings::default() };
    model
}

fn agent() -> Value {
    json!({ "executor": "orchestrator", "action": { "instruction": "Answer." }, "timeout_seconds": 3600 })
}

fn clock_condition() -> Value {
    json!({ "type": "condition", "poll": { "tool": { "name": "current_time" } }, "interval": "1m",
            "expression": "true", "fire": "every_time" })
}

async fn fires_of_a_halted_tenant_are_skipped_nothing_of_it_begins_and_others_go_on(world: World) {
    let instance = world.instance();
    let (ann, bob) = (instance.task(json!({})).await, instance.task(json!({ "tenant": "bob" })).await);
    let event = instance.task(json!({ "trigger": { "type": "event", "source": "shop" } })).await;
    let condition = instance.task(json!({ "trigger": clock_condition() })).await;
    order(&instance, "/v1/tenants/ann/disable", json!({ "reason": "it has not paid" })).await;
    world.advance(60.0);
    instance.fire().await;
    instance.publish(&[json!({ "id": "1" })]).await;
    instance.match_events().await;
    instance.poll().await;
    instance.settle(0).await;
    assert_eq!(instance.lines(&ann).await, ["08:01 skipped tenant_disabled"]);
    assert_eq!(instance.lines(&bob).await, ["08:01 succeeded"]);
    assert_eq!(instance.lines(&event).await, ["08:01 skipped tenant_disabled"]);
    assert_eq!(instance.lines(&condition).await, [""; 0]);
    assert_eq!(instance.condition(&condition).await.last_good_at, None, "it was not polled");

    order(&instance, "/v1/tenants/ann/enable", json!({})).await;
    world.advance(60.0);
    instance.fire().await;
    instance.publish(&[json!({ "id": "2" })]).await;
    instance.match_events().await;
    instance.poll().await;
    instance.settle(0).await;
    assert_eq!(instance.lines(&ann).await, ["08:01 skipped tenant_disabled", "08:02 succeeded"]);
    assert_eq!(instance.lines(&event).await, ["08:01 skipped tenant_disabled", "e 08:02 succeeded"]);
    assert_eq!(instance.lines(&condition).await, ["c 08:02 succeeded"]);
    instance.finish(&world).await;
}

async fn stop_of_all_skips_every_fire_and_the_start_catches_nothing_up(world: World) {
    let instance = world.instance();
    let all = json!({ "trigger": { "type": "schedule", "interval": "1m", "catch_up": "all" } });
    let (ann, bob) = (instance.task(all).await, instance.task(json!({ "tenant": "bob" })).await);
    stop_all(&instance).await;
    for _ in 0..2 {
        world.advance(60.0);
        instance.fire().await;
    }
    let asked = instance.run_now(&ann).await;
    instance.settle(0).await;
    assert_eq!(instance.run(asked).await.state, RunState::Queued, "what is asked for waits");
    start_all(&instance).await;
    instance.fire().await;
    instance.settle(0).await;
    for task in [&ann, &bob] {
        let fired: Vec<String> = instance.lines(task).await.into_iter().filter(|line| !line.starts_with('m')).collect();
        assert_eq!(fired, ["08:01..08:02 x2 skipped stopped"]);
    }
    assert_eq!(instance.run(asked).await.state, RunState::Succeeded);
    instance.finish(&world).await;
}

async fn event_window_that_closes_while_its_tenant_is_halted_is_skipped(world: World) {
    let instance = world.instance();
    let trigger = json!({ "type": "event", "source": "shop", "batch": { "size": 9, "wait": "10s" } });
    let task = instance.task(json!({ "trigger": trigger })).await;
    instance.publish(&[json!({ "id": "1" })]).await;
    instance.match_events().await;
    order(&instance, "/v1/stop", json!({ "tenant_id": "ann" })).await;
    world.advance(11.0);
    instance.close_windows().await;
    instance.settle(0).await;
    let [run] = &instance.runs(&task).await[..] else { panic!("one run") };
    assert_eq!((run.state, run.reason.as_deref()), (RunState::Skipped, Some("stopped")));
    instance.finish(&world).await;
}

async fn edge_of_a_poll_that_had_begun_is_skipped(world: World) {
    let instance = world.instance();
    let task = instance.task(json!({ "trigger": clock_condition() })).await;
    world.advance(60.0);
    let now = world.clock.now();
    let (id, until) = (task.id, now + TimeDelta::seconds(60));
    let claims = instance.on(move |store| async move { store.claim_polls(&[id], now, until).await }).await.unwrap();
    stop_all(&instance).await;
    let [claim] = <[_; 1]>::try_from(claims).expect("one poll");
    let step = edge(&claim, now);
    let recorded =
        instance.on(move |store| async move { store.record_poll(&claim, &step, Some(until), None, now).await }).await;
    assert!(matches!(recorded, Ok(RecordedPoll::Skipped(_))), "{recorded:?}");
    assert_eq!(instance.lines(&task).await, ["08:01 skipped stopped"]);
    assert!(instance.condition(&task).await.last_good_at.is_some(), "what it saw is known");
    instance.finish(&world).await;
}

/// The step of a poll that sees a value.
fn edge(claim: &PollClaim, now: DateTime<Utc>) -> ConditionStep {
    let Ok(Trigger::Condition(condition)) = serde_json::from_value(claim.trigger.clone()) else {
        panic!("a condition: {}", claim.trigger)
    };
    let question = condition.compile(&Language::default()).expect("expressions");
    let seen = PollResult::Value { value: json!(1), validators: Validators::default() };
    claim.state.clone().on_poll(&question, &claim.subject, Ok(seen), now, 0.0)
}

async fn ready_runs_of_a_halted_tenant_hold_up_no_other_and_go_on_afterwards(world: World) {
    const MANY: usize = 40;
    let mut world = world;
    world.settings.max_concurrent_runs = 4;
    let instance = world.instance();
    let many = instance.task(json!({ "trigger": { "type": "schedule", "interval": "1h", "overlap": "allow" } })).await;
    let bob = instance.task(json!({ "tenant": "bob" })).await;
    order(&instance, "/v1/stop", json!({ "tenant_id": "ann" })).await;
    for _ in 0..MANY {
        instance.run_now(&many).await;
    }
    let asked = instance.run_now(&bob).await;
    instance.settle(0).await;
    assert_eq!(instance.run(asked).await.state, RunState::Succeeded);
    assert_eq!(instance.queue().await, [("ready".to_owned(), MANY as i64)], "none of them is claimed");
    order(&instance, "/v1/start", json!({ "tenant_id": "ann" })).await;
    instance.settle(0).await;
    assert_eq!(world.number("select count(*) from runs where state = 'succeeded'").await, MANY as i64 + 1);
    instance.finish(&world).await;
}

async fn claim_from_before_a_stop_does_not_start_and_its_run_goes_on_afterwards(world: World) {
    let instance = world.instance();
    let task = instance.task(json!({ "max_runs": 1 })).await;
    world.advance(59.0);
    instance.fire().await;
    assert_eq!(instance.queue().await, [("claimed".to_owned(), 1)], "leased ahead of its instant");
    stop_all(&instance).await;
    world.advance(2.0);
    instance.work().await;
    world.advance(60.0);
    instance.rescue().await;
    instance.settle(0).await;
    assert_eq!(instance.queue().await, [("ready".to_owned(), 1)]);
    assert_eq!(world.journal.begun().len(), 0);
    start_all(&instance).await;
    instance.settle(0).await;
    assert_eq!(instance.lines(&task).await, ["08:01 succeeded"]);
    instance.finish(&world).await;
}

async fn model_call_is_cut_off_by_a_stop_and_its_run_goes_on_after_the_start(world: World) {
    call_is_cut_off(world, agent()).await;
}

async fn model_call_of_a_step_is_cut_off_by_a_stop_and_its_run_goes_on_after_the_start(world: World) {
    let steps = json!([{ "name": "ask", "llm": { "prompt": "Answer." } }]);
    call_is_cut_off(world, json!({ "executor": "pipeline", "action": { "config": { "steps": steps } } })).await;
}

async fn call_is_cut_off(mut world: World, task: Value) {
    let model = slow(&mut world).await;
    let instance = world.instance();
    let task = instance.task(task).await;
    let run = instance.run_now(&task).await;
    instance.settle(1).await;
    model.until_waiting("Answer", 1).await;
    stop_all(&instance).await;
    keep(&instance).await;
    model.until_waiting("Answer", 0).await;
    let queued = instance.until(run, |run| run.state == RunState::Queued).await;
    assert_eq!(queued.attempt, 0, "no attempt is used up");
    instance.settle(0).await;
    assert_eq!(instance.run(run).await.state, RunState::Queued);
    assert_eq!(model.most(), 1, "nobody asks the model again");
    start_all(&instance).await;
    instance.settle(1).await;
    model.until_waiting("Answer", 1).await;
    // the call that was cut off had the first answer
    model.answer(2);
    instance.settle(0).await;
    assert_eq!(instance.run(run).await.state, RunState::Succeeded);
    instance.finish(&world).await;
}

async fn webhook_under_way_is_waited_for_and_its_answer_recorded(mut world: World) {
    let model = slow(&mut world).await;
    let instance = world.instance();
    let config = json!({ "url": model.hook(), "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" });
    let hook = json!({ "executor": "webhook", "action": { "instruction": "Book a table", "config": config } });
    let hook = instance.task(hook).await;
    let run = instance.run_now(&hook).await;
    instance.settle(1).await;
    model.until_waiting("Book a table", 1).await;
    stop_all(&instance).await;
    keep(&instance).await;
    // longer than a run that is handed back at a shutdown has
    pause(Duration::from_secs(3)).await;
    assert_eq!((model.waiting("Book a table"), instance.run(run).await.state), (1, RunState::Running));
    model.answer(1);
    let ended = instance.until(run, |run| run.state != RunState::Running).await;
    assert!(ended.state.is_final(), "{ended:?}");
    assert_eq!(model.most(), 1, "it was called once");
    instance.settle(0).await;
    instance.finish(&world).await;
}

/// A tool whose calls come to their end when the test opens its gate.
struct GatedLook {
    definition: Definition,
    begun: AtomicUsize,
    gate: watch::Sender<bool>,
}

impl GatedLook {
    fn closed() -> Arc<GatedLook> {
        let definition = Definition::new("look", "Looks.", json!({}), Category::Read, Consequence::Low);
        Arc::new(GatedLook { definition, begun: AtomicUsize::new(0), gate: watch::channel(false).0 })
    }

    fn calls(&self) -> usize {
        self.begun.load(Ordering::Relaxed)
    }
}

impl Tool for GatedLook {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn call<'a>(&'a self, _: &'a ToolContext, _: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            self.begun.fetch_add(1, Ordering::Relaxed);
            let _ = self.gate.subscribe().wait_for(|is_open| *is_open).await;
            Ok(ToolOutput::text("a number"))
        })
    }
}

async fn tool_call_under_way_is_waited_for_and_is_not_made_again_after_the_start(mut world: World) {
    let look = GatedLook::closed();
    world.tools = vec![Arc::clone(&look) as Arc<dyn Tool>];
    world.follows(&json!({ "steps": [
        { "turn": 1, "calls": [{ "tool": "look", "args": {} }] },
        { "text": "It is {{ look }}." },
    ] }));
    let instance = world.instance();
    let action = json!({ "instruction": "Look.", "config": { "tools": ["look"] } });
    let task = json!({ "executor": "orchestrator", "action": action, "timeout_seconds": 3600 });
    let run = instance.run_now(&instance.task(task).await).await;
    instance.settle(1).await;
    let began = Instant::now();
    while look.calls() == 0 {
        assert!(began.elapsed() < Duration::from_secs(60), "the tool is not called");
        pause(Duration::from_millis(2)).await;
    }
    stop_all(&instance).await;
    keep(&instance).await;
    assert_eq!(instance.run(run).await.state, RunState::Running, "a call that has begun is waited for");
    look.gate.send_replace(true);
    let queued = instance.until(run, |run| run.state == RunState::Queued).await;
    assert_eq!(queued.attempt, 0, "no attempt is used up");
    let (_, transcript) = instance.ask("GET", &format!("/v1/runs/{run}/transcript"), ADMIN, None).await;
    let results: Vec<&Value> =
        transcript["items"].as_array().expect("entries").iter().filter(|entry| entry["role"] == "tool").collect();
    assert_eq!(results.len(), 1, "{transcript}");
    assert_eq!((&results[0]["name"], &results[0]["content"]), (&json!("look"), &json!("a number")));
    instance.settle(0).await;
    assert_eq!(instance.run(run).await.state, RunState::Queued);

    start_all(&instance).await;
    instance.settle(0).await;
    let ended = instance.run(run).await;
    assert_eq!((ended.state, look.calls()), (RunState::Succeeded, 1), "{ended:?}");
    assert!(ended.output.as_deref().is_some_and(|output| output.contains("a number")), "{ended:?}");
    instance.finish(&world).await;
}

/// How often a service looks, which must not be less often while it has something to look after.
fn pace_of<S: ServiceLoop>(service: &Arc<S>, now: DateTime<Utc>) -> Duration {
    let rests = |next: Option<DateTime<Utc>>| next.is_none_or(|next| next > now);
    let is_idle = S::IDLE.is_some_and(|idle| rests((idle.next)(service, &PendingWork::default())));
    assert!(!is_idle, "{} rests", S::NAME);
    S::POLL_INTERVAL
}

/// The order is written behind the service's back, so that nobody is woken. Time passes by steps, and as many looks as
/// a second has are enough.
async fn stop_whose_wakeup_is_lost_reaches_a_run_by_the_looks_of_a_second(world: World) {
    let instance = world.instance();
    let task = instance.task(json!({ "acts": ["hang"] })).await;
    let run = instance.run_now(&task).await;
    instance.settle(1).await;
    world.journal.until_begun(run).await;
    // the longest way: it has looked just before, and what it has seen is good for a while
    world.advance(1.0);
    keep(&instance).await;
    let order = "insert into halts (tenant_id, kind, halted_by, since)
                 values ('ann', 'stopped', 'token:admin', '2027-03-01T08:00:00Z')";
    let version = "update halt_version set version = version + 1 where id = 1";
    world.execute(order, order).await;
    world.execute(version, version).await;
    let pace = pace_of(&instance.engine().halt_keeper, world.clock.now());
    let mut waited = pace;
    while waited < Duration::from_secs(1) {
        world.clock.advance(to_delta(pace));
        keep(&instance).await;
        waited += pace;
    }
    // no more time passes
    let queued = instance.until(run, |run| run.state == RunState::Queued).await;
    assert_eq!(queued.attempt, 0, "no attempt is used up");
    let (status, _) = instance.ask("POST", &format!("/v1/runs/{run}/cancel"), ADMIN, None).await;
    assert_eq!(status, 200, "a run that waits can be cancelled");
    instance.settle(0).await;
    instance.finish(&world).await;
}

async fn stop_of_one_tenant_leaves_runs_of_others_alone(world: World) {
    let instance = world.instance();
    let (ann, bob) = (
        instance.task(json!({ "acts": ["hang"] })).await,
        instance.task(json!({ "tenant": "bob", "acts": ["wait"] })).await,
    );
    let (ann, bob) = (instance.run_now(&ann).await, instance.run_now(&bob).await);
    instance.settle(2).await;
    world.journal.until_begun(ann).await;
    order(&instance, "/v1/stop", json!({ "tenant_id": "ann" })).await;
    keep(&instance).await;
    instance.until(ann, |run| run.state == RunState::Queued).await;
    assert_eq!(instance.run(bob).await.state, RunState::Running);
    world.journal.open_gate();
    instance.settle(0).await;
    assert_eq!(instance.run(bob).await.state, RunState::Succeeded);
    assert_eq!(
        (world.journal.ended(ann), instance.run(ann).await.state),
        (vec![RecordedEnd::ByItself], RunState::Queued)
    );
    let (status, _) = instance.ask("POST", &format!("/v1/runs/{ann}/cancel"), ADMIN, None).await;
    assert_eq!(status, 200, "a run that waits can be cancelled");
    instance.settle(0).await;
    instance.finish(&world).await;
}

async fn halt_holds_over_a_restart(world: World) {
    let first = world.instance();
    let task = first.task(json!({})).await;
    stop_all(&first).await;
    let asked = first.run_now(&task).await;
    first.crash();
    let second = world.instance();
    world.advance(60.0);
    second.fire().await;
    second.settle(0).await;
    assert_eq!(second.run(asked).await.state, RunState::Queued);
    let (_, ready) = second.ask("GET", "/readyz", ADMIN, None).await;
    assert_eq!(ready["work_stopped"], true, "{ready}");
    start_all(&second).await;
    second.settle(0).await;
    assert_eq!(second.lines(&task).await, ["m 08:00 succeeded", "08:01 skipped stopped"]);
    second.finish(&world).await;
}

/// The order is given to one instance, and the other one has the run: its own loops find it, with no tick by the test.
/// How soon they do is the matter of [`stop_whose_wakeup_is_lost_reaches_a_run_by_the_looks_of_a_second`], whose time
/// is stepped.
#[tokio::test]
async fn stop_reaches_runs_of_another_instance_and_its_start_too() {
    let mut world = World::postgres().await;
    world.clock = Clock::system();
    let (first, mut second) = (world.instance(), world.instance());
    let task =
        second.task(json!({ "acts": ["hang", "succeed"], "trigger": { "type": "schedule", "interval": "1h" } })).await;
    let running = second.start().await;
    let run = second.run_now(&task).await;
    second.until(run, |run| run.state == RunState::Running).await;
    world.journal.until_begun(run).await;
    stop_all(&first).await;
    let queued = second.until(run, |run| run.state == RunState::Queued).await;
    assert_eq!(queued.attempt, 0);
    start_all(&first).await;
    second.until(run, |run| run.state == RunState::Running).await;
    stop_all(&first).await;
    second.until(run, |run| run.state == RunState::Queued).await;
    second.on(|_| async move { running.stop().await }).await;
    start_all(&first).await;
    second.crash();
    first.crash();
}
