//! Budgets over whole instances: how far runs, tasks and tenants get with them, who is told, and what a crash leaves
//! behind.

use std::time::{Duration, Instant};

use reveille::base::clock::pause;
use reveille::base::id::Scope;
use reveille::domain::budget::{DayBudget, RunBudget};
use reveille::domain::run::{Run, RunState};
use reveille::domain::task::Task;
use reveille::ports::llm::ModelSettings;
use serde_json::{Value, json};

use crate::support::app::Instance;
use crate::support::metered_model::{MeteredModel, TOKENS};
use crate::support::servers;
use crate::support::slow_model::SlowModel;
use crate::support::world::{ADMIN, World, on_both};

on_both! {
    runs_of_a_tenant_spend_no_more_than_its_day_and_as_much_as_the_model_has_counted
    budget_of_a_task_ends_its_runs_alone_and_the_next_day_begins_anew
    owner_is_told_once_that_most_of_a_day_is_used_and_once_that_all_is
    owner_is_told_of_the_day_of_a_task_by_the_task_s_name
    owner_is_told_once_that_most_of_a_run_s_budget_is_used
    run_that_has_begun_fails_by_its_budget_and_one_that_has_not_is_skipped
    budget_of_money_refuses_a_model_without_a_price_unless_the_operator_allows_it
    override_of_a_tenant_and_what_its_task_says_hold_for_the_next_run
    override_of_a_task_holds_for_its_next_run_alone_also_where_it_is_more
    budget_of_time_cuts_a_model_call_off
    reservation_of_a_crashed_instance_is_taken_back
    refused_answer_is_paid_and_counted
    step_of_a_pipeline_spends_from_the_same_budgets
    step_that_is_cut_off_by_its_time_or_a_stop_is_paid_at_worst
    step_that_is_cut_off_before_its_model_is_asked_is_in_the_way_of_no_later_one
    nothing_is_written_where_no_budget_holds
}

async fn metered(world: &mut World) -> MeteredModel {
    let model = MeteredModel::start().await;
    world.llm.models.insert("main".to_owned(), model.settings());
    model
}

fn agent(config: Value) -> Value {
    let mut config = config;
    if config.get("tools").is_none() {
        config["tools"] = json!([]);
    }
    json!({ "executor": "orchestrator", "action": { "instruction": "Answer.", "config": config },
            "trigger": { "type": "schedule", "interval": "1h", "overlap": "allow" }, "timeout_seconds": 3600 })
}

async fn run_often(instance: &Instance, task: &Task, times: usize) {
    for _ in 0..times {
        instance.run_now(task).await;
    }
}

/// The run after it was asked for and executed.
async fn one_run(instance: &Instance, task: &Task) -> Run {
    let run = instance.run_now(task).await;
    instance.settle(0).await;
    instance.run(run).await
}

fn code(run: &Run) -> Option<&str> {
    run.error.as_ref().map(|error| error.code.as_str())
}

/// The states of a task's runs, each with how many there are.
async fn states(instance: &Instance, task: &Task) -> [(usize, &'static str); 2] {
    let runs = instance.runs(task).await;
    let skipped = |run: &&Run| run.state == RunState::Skipped && run.reason.as_deref() == Some("budget");
    let succeeded = runs.iter().filter(|run| run.state == RunState::Succeeded).count();
    assert_eq!(succeeded + runs.iter().filter(skipped).count(), runs.len(), "{runs:?}");
    [(succeeded, "succeeded"), (runs.len() - succeeded, "skipped")]
}

/// Tokens of all runs, of the ledgers of tenants, and of those of tasks.
async fn tokens(world: &World) -> [i64; 3] {
    [
        world.number("select cast(coalesce(sum(input_tokens + output_tokens), 0) as bigint) from runs").await,
        ledger_of_tenants(world).await,
        world.number("select cast(coalesce(sum(tokens), 0) as bigint) from budget_days").await
            - ledger_of_tenants(world).await,
    ]
}

async fn ledger_of_tenants(world: &World) -> i64 {
    world
        .number(
            "select cast(coalesce(sum(d.tokens), 0) as bigint) from budget_days d
              where not exists (select 1 from tasks t where t.id = d.task_id)",
        )
        .await
}

async fn reserved(world: &World) -> i64 {
    world.number("select count(*) from budget_reservations").await
        + world.number("select cast(coalesce(sum(reserved_tokens), 0) as bigint) from budget_days").await
}

/// Tokens for so many answers, each of which takes 250. Before one, its worst case has to be left, which is above 499
/// (400 of the answer, and the estimate of what is read) and below 750.
fn tokens_for(answers: i64) -> u64 {
    (answers * TOKENS + 499) as u64
}

fn for_ten() -> DayBudget {
    DayBudget { tokens_per_day: Some(tokens_for(10)), cost_usd_per_day: None }
}

async fn runs_of_a_tenant_spend_no_more_than_its_day_and_as_much_as_the_model_has_counted(mut world: World) {
    let model = metered(&mut world).await;
    world.budgets.tenant = for_ten();
    let instance = world.instance();
    let task = instance.task(agent(json!({}))).await;
    run_often(&instance, &task, 100).await;
    instance.settle(0).await;
    assert_eq!(states(&instance, &task).await, [(10, "succeeded"), (90, "skipped")]);
    assert_eq!(tokens(&world).await, [model.tokens(); 3]);
    assert_eq!(model.answers(), 10);
    assert_eq!(reserved(&world).await, 0);
    // a token costs a micro-dollar
    for (metric, value) in [
        (r#"budget_refusals_total{scope="tenant",quantity="tokens"}"#, 90),
        ("budget_tokens_total", model.tokens()),
        ("budget_cost_micros_total", model.tokens()),
        (r#"model_cost_micros_total{model="main"}"#, model.tokens()),
    ] {
        until_counted(&instance, &format!("reveille_{metric} {value}")).await;
    }
    instance.finish(&world).await;
}

/// Returns once the metrics have this line.
async fn until_counted(instance: &Instance, line: &str) {
    let began = Instant::now();
    loop {
        let text = instance.page("/metrics").await;
        if text.lines().any(|one| one == line) {
            return;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "no `{line}` in:\n{text}");
        pause(Duration::from_millis(5)).await;
    }
}

/// Both instances take runs of one queue at once.
#[tokio::test]
async fn runs_on_two_instances_spend_no_more_than_their_tenant_s_day() {
    let runs = servers::drill_runs();
    let mut world = World::postgres().await;
    let model = metered(&mut world).await;
    world.budgets.tenant = for_ten();
    let (first, second) = (world.instance(), world.instance());
    let task = first.task(agent(json!({}))).await;
    run_often(&first, &task, runs).await;
    tokio::join!(first.settle_shared(), second.settle_shared());
    assert_eq!(states(&first, &task).await, [(10, "succeeded"), (runs - 10, "skipped")]);
    assert_eq!(tokens(&world).await, [model.tokens(); 3]);
    assert_eq!(model.answers(), 10);
    assert_eq!(reserved(&world).await, 0);
    first.finish(&world).await;
    second.finish(&world).await;
}

async fn budget_of_a_task_ends_its_runs_alone_and_the_next_day_begins_anew(mut world: World) {
    let model = metered(&mut world).await;
    let instance = world.instance();
    let task = instance.task(agent(json!({ "budget": { "tokens_per_day": tokens_for(2) } }))).await;
    let other = instance.task(agent(json!({ "budget": { "tokens_per_day": 1_000_000 } }))).await;
    run_often(&instance, &task, 5).await;
    instance.settle(0).await;
    assert_eq!(states(&instance, &task).await, [(2, "succeeded"), (3, "skipped")]);
    assert_eq!(one_run(&instance, &other).await.state, RunState::Succeeded);
    world.advance(24.0 * 3600.0);
    assert_eq!(one_run(&instance, &task).await.state, RunState::Succeeded, "another day");
    assert_eq!(model.answers(), 4);
    instance.finish(&world).await;
}

async fn owner_is_told_once_that_most_of_a_day_is_used_and_once_that_all_is(mut world: World) {
    metered(&mut world).await;
    world.budgets.tenant = for_ten();
    let instance = world.instance();
    instance.recipient().await;
    let task = instance.task(agent(json!({}))).await;
    owner_is_told_of_ten_runs(&instance, &task, "all tasks").await;
    instance.finish(&world).await;
}

async fn owner_is_told_of_the_day_of_a_task_by_the_task_s_name(mut world: World) {
    metered(&mut world).await;
    let instance = world.instance();
    instance.recipient().await;
    let task = instance.task(agent(json!({ "budget": for_ten() }))).await;
    owner_is_told_of_ten_runs(&instance, &task, &task.name).await;
    instance.finish(&world).await;
}

/// A day that is enough for ten runs: the owner is told with the tenth, and once more with those that get no more.
async fn owner_is_told_of_ten_runs(instance: &Instance, task: &Task, of: &str) {
    for _ in 0..9 {
        assert_eq!(one_run(instance, task).await.state, RunState::Succeeded);
    }
    assert_eq!(told_of_days(instance).await, [""; 0], "2,250 of 2,999");
    one_run(instance, task).await;
    assert_eq!(told_of_days(instance).await, [format!("Budget at 80 %: {of}")]);
    one_run(instance, task).await;
    run_often(instance, task, 3).await;
    instance.settle(0).await;
    let both = [format!("Budget at 80 %: {of}"), format!("Budget used up: {of}")];
    assert_eq!(told_of_days(instance).await, both);
}

/// Subjects of the notices about budgets of days, sorted.
async fn told_of_days(instance: &Instance) -> Vec<String> {
    let subjects = instance.deliveries().await.into_iter().filter_map(|delivery| delivery.subject);
    let mut of_days: Vec<String> = subjects.filter(|subject| subject.starts_with("Budget")).collect();
    of_days.sort();
    of_days
}

async fn owner_is_told_once_that_most_of_a_run_s_budget_is_used(mut world: World) {
    let model = MeteredModel::calling("current_time").await;
    world.llm.models.insert("main".to_owned(), model.settings());
    let instance = world.instance();
    instance.recipient().await;
    let told = async || {
        let subjects = instance.deliveries().await.into_iter().filter_map(|delivery| delivery.subject);
        subjects.filter(|subject| subject.contains("80 %")).collect::<Vec<_>>()
    };
    let with = |turns: u64| agent(json!({ "tools": ["current_time"], "budget": { "turns": turns } }));
    let (short, long) = (instance.task(with(2)).await, instance.task(with(50)).await);
    assert_eq!(one_run(&instance, &long).await.reason.as_deref(), Some("loop"));
    assert_eq!(told().await, [""; 0]);
    for told_of in [1, 2] {
        assert_eq!(one_run(&instance, &short).await.reason.as_deref(), Some("budget"));
        let expected = format!("A run has used 80 % of its budget: {}", short.name);
        assert_eq!(told().await, vec![expected; told_of], "once a run");
    }
    instance.finish(&world).await;
}

async fn run_that_has_begun_fails_by_its_budget_and_one_that_has_not_is_skipped(mut world: World) {
    let model = MeteredModel::calling("current_time").await;
    world.llm.models.insert("main".to_owned(), model.settings());
    let instance = world.instance();
    let with = |budget: Value| agent(json!({ "tools": ["current_time"], "budget": budget }));
    // with a call and its result the worst case is above 700 and below 950: it is left before the second turn, and not
    // before the third
    for (budget, code_of_end, turns) in [
        (json!({ "turns": 2 }), "budget_run_turns", 2),
        (json!({ "tokens": 1_200 }), "budget_run_tokens", 2),
        (json!({ "cost_usd": 0.001_2 }), "budget_run_cost_usd", 2),
    ] {
        let task = instance.task(with(budget)).await;
        let run = one_run(&instance, &task).await;
        assert_eq!((run.state, run.reason.as_deref()), (RunState::Failed, Some("budget")), "{run:?}");
        assert_eq!((code(&run), run.usage.turns), (Some(code_of_end), turns));
        assert_eq!(run.usage.input_tokens + run.usage.output_tokens, turns * TOKENS);
    }
    let task = instance.task(with(json!({ "tokens": 100 }))).await;
    let run = one_run(&instance, &task).await;
    assert_eq!((run.state, run.reason.as_deref(), code(&run)), (RunState::Skipped, Some("budget"), None));
    assert_eq!(model.answers(), 6);
    instance.finish(&world).await;
}

async fn budget_of_money_refuses_a_model_without_a_price_unless_the_operator_allows_it(mut world: World) {
    let model = MeteredModel::start().await;
    let mut settings = model.settings();
    (settings.price_per_million_input, settings.price_per_million_output) = (0.0, 0.0);
    world.llm.models.insert("main".to_owned(), settings);
    world.budgets.tenant = DayBudget { tokens_per_day: None, cost_usd_per_day: Some(1.0) };
    let first = world.instance();
    let task = first.task(agent(json!({}))).await;
    let refused = one_run(&first, &task).await;
    assert_eq!((refused.state, code(&refused)), (RunState::Failed, Some("unpriced_model")));
    let message = refused.error.expect("an error").message;
    assert!(message.contains("`main`") && message.contains("budgets.allow_unpriced_models"), "{message}");
    assert_eq!(model.answers(), 0);
    first.finish(&world).await;
    world.budgets.allow_unpriced_models = true;
    let second = world.instance();
    assert_eq!(one_run(&second, &task).await.state, RunState::Succeeded);
    second.finish(&world).await;
}

async fn override_of_a_tenant_and_what_its_task_says_hold_for_the_next_run(mut world: World) {
    metered(&mut world).await;
    world.budgets.run = RunBudget { tokens: Some(100), ..RunBudget::default() };
    let instance = world.instance();
    let (task, narrow) =
        (instance.task(agent(json!({}))).await, instance.task(agent(json!({ "budget": { "tokens": 90 } }))).await);
    assert_eq!(one_run(&instance, &task).await.state, RunState::Skipped);
    let said = json!({ "run": { "tokens": 100_000 } });
    let (status, answer) = instance.ask("PUT", "/v1/budgets/ann", ADMIN, Some(said)).await;
    assert_eq!((status, &answer["limits"]["run"]["tokens"]), (200, &json!(100_000)), "{answer}");
    world.advance(1.0);
    assert_eq!(one_run(&instance, &task).await.state, RunState::Succeeded);
    assert_eq!(one_run(&instance, &narrow).await.state, RunState::Skipped, "a task may say less");
    let (status, _) = instance.ask("DELETE", "/v1/budgets/ann", ADMIN, None).await;
    assert_eq!(status, 204);
    world.advance(1.0);
    assert_eq!(one_run(&instance, &task).await.state, RunState::Skipped);
    instance.finish(&world).await;
}

async fn override_of_a_task_holds_for_its_next_run_alone_also_where_it_is_more(mut world: World) {
    let _model = metered(&mut world).await;
    world.budgets.run = RunBudget { tokens: Some(100), ..RunBudget::default() };
    let instance = world.instance();
    let (task, other) = (instance.task(agent(json!({}))).await, instance.task(agent(json!({}))).await);
    assert_eq!(one_run(&instance, &task).await.state, RunState::Skipped);
    let place = format!("/v1/budgets/ann/tasks/{}", task.id);
    let (status, answer) = instance.ask("PUT", &place, ADMIN, Some(json!({ "tokens": 100_000 }))).await;
    assert_eq!((status, &answer["task_overrides"][0]["budget"]["tokens"]), (200, &json!(100_000)), "{answer}");
    world.advance(1.0);
    assert_eq!(one_run(&instance, &task).await.state, RunState::Succeeded);
    assert_eq!(one_run(&instance, &other).await.state, RunState::Skipped, "it is for the one task");
    // what is said for the tenant leaves it as it is
    let (status, answer) = instance.ask("PUT", "/v1/budgets/ann", ADMIN, Some(json!({ "run": { "turns": 9 } }))).await;
    assert_eq!(status, 200, "{answer}");
    world.advance(1.0);
    assert_eq!(one_run(&instance, &task).await.state, RunState::Succeeded);
    let (status, _) = instance.ask("DELETE", &place, ADMIN, None).await;
    assert_eq!(status, 204);
    world.advance(1.0);
    assert_eq!(one_run(&instance, &task).await.state, RunState::Skipped);
    instance.finish(&world).await;
}

async fn slow(world: &mut World) -> SlowModel {
    let model = SlowModel::start().await;
    world.llm.models.insert("main".to_owned(), model.settings());
    model
}

async fn budget_of_time_cuts_a_model_call_off(mut world: World) {
    let model = slow(&mut world).await;
    world.budgets.tenant = DayBudget { tokens_per_day: Some(100_000), cost_usd_per_day: None };
    let instance = world.instance();
    let task = instance.task(agent(json!({ "budget": { "wall_time": 60 } }))).await;
    let run = instance.run_now(&task).await;
    instance.settle(1).await;
    model.until_waiting("Answer", 1).await;
    world.advance(59.0);
    pause(Duration::from_millis(50)).await;
    assert_eq!(model.waiting("Answer"), 1);
    world.advance(2.0);
    let ended = instance.until(run, |run| run.state.is_final()).await;
    assert_eq!((ended.state, ended.reason.as_deref()), (RunState::Failed, Some("budget")));
    assert_eq!(code(&ended), Some("budget_run_wall_time"));
    model.until_waiting("Answer", 0).await;
    instance.settle(0).await;
    assert!(ledger_of_tenants(&world).await > 400, "the call may have been paid");
    assert_eq!(reserved(&world).await, 0);
    instance.finish(&world).await;
}

async fn reservation_of_a_crashed_instance_is_taken_back(mut world: World) {
    let model = slow(&mut world).await;
    world.settings.lease_seconds = 30.0;
    // enough for one call, however much is reserved for another
    world.budgets.tenant = DayBudget { tokens_per_day: Some(9_000), cost_usd_per_day: None };
    let first = world.instance();
    let mut again = agent(json!({}));
    again["retry"] = json!({ "max_attempts": 2 });
    let task = first.task(again).await;
    let run = first.run_now(&task).await;
    first.settle(1).await;
    model.until_waiting("Answer", 1).await;
    assert_eq!(world.number("select count(*) from budget_reservations").await, 1);
    first.crash();
    model.answer(2);
    world.advance(40.0);
    let second = world.instance();
    second.rescue().await;
    second.settle(0).await;
    let ended = second.run(run).await;
    assert_eq!(ended.state, RunState::Succeeded, "{ended:?}");
    assert_eq!(reserved(&world).await, 0);
    // its answer says nothing of tokens, so it has paid what was reserved
    let paid = ledger_of_tenants(&world).await;
    assert!((8_192..9_000).contains(&paid), "{paid}");
    second.finish(&world).await;
}

async fn refused_answer_is_paid_and_counted(mut world: World) {
    let message = json!({ "role": "assistant", "content": null });
    let model = MeteredModel::answering(message, "content_filter").await;
    world.llm.models.insert("main".to_owned(), model.settings());
    world.budgets.tenant = for_ten();
    let instance = world.instance();
    let task = instance.task(agent(json!({}))).await;
    let run = one_run(&instance, &task).await;
    assert_eq!((run.state, code(&run)), (RunState::Failed, Some("llm_refused")));
    assert_eq!(model.answers(), 1);
    assert_eq!(tokens(&world).await, [TOKENS; 3]);
    assert_eq!(reserved(&world).await, 0);
    let told = instance.on(move |store| async move { store.transcript(&Scope::Every, run.id, 0, 10).await }).await;
    let last = serde_json::to_value(told.expect("a transcript").last()).unwrap();
    assert_eq!((&last["role"], &last["code"]), (&json!("unusable"), &json!("llm_refused")));
    assert_eq!(last["model_call"]["model"], "main");
    instance.finish(&world).await;
}

async fn step_of_a_pipeline_spends_from_the_same_budgets(mut world: World) {
    let model = metered(&mut world).await;
    let instance = world.instance();
    let steps = json!([
        { "name": "first", "llm": { "prompt": "Answer." } },
        { "name": "second", "agent": { "instruction": "Answer.", "tools": [] } },
    ]);
    let pipeline = |tokens: i64| {
        json!({ "executor": "pipeline", "action": { "config": { "steps": steps, "budget": { "tokens_per_day": tokens } } },
                "trigger": { "type": "schedule", "interval": "1h" } })
    };
    let (enough, short) = (instance.task(pipeline(10_000)).await, instance.task(pipeline(700)).await);
    assert_eq!(one_run(&instance, &enough).await.state, RunState::Succeeded);
    assert_eq!(tokens(&world).await, [2 * TOKENS; 3]);
    let run = one_run(&instance, &short).await;
    assert_eq!((run.state, run.reason.as_deref()), (RunState::Failed, Some("budget")), "{run:?}");
    assert_eq!(code(&run), Some("budget_task_tokens"));
    assert_eq!(tokens(&world).await, [3 * TOKENS; 3]);
    assert_eq!((model.answers(), reserved(&world).await), (3, 0));
    instance.finish(&world).await;
}

async fn step_that_is_cut_off_by_its_time_or_a_stop_is_paid_at_worst(mut world: World) {
    let model = slow(&mut world).await;
    world.budgets.tenant = DayBudget { tokens_per_day: Some(100_000), cost_usd_per_day: None };
    let instance = world.instance();
    let steps =
        json!([{ "name": "one", "llm": { "prompt": "Answer." }, "timeout_seconds": 5, "on_error": "continue" }]);
    let pipeline = json!({ "executor": "pipeline", "action": { "config": { "steps": steps } },
                           "trigger": { "type": "schedule", "interval": "1h" } });
    let task = instance.task(pipeline).await;
    let run = instance.run_now(&task).await;
    instance.settle(1).await;
    model.until_waiting("Answer", 1).await;
    world.advance(6.0);
    let ended = instance.until(run, |run| run.state.is_final()).await;
    assert_eq!(ended.state, RunState::Succeeded, "{ended:?}");
    let [of_runs, of_tenant, of_task] = tokens(&world).await;
    assert!(of_runs > 400 && [of_tenant, of_task] == [of_runs; 2], "{of_runs} {of_tenant} {of_task}");

    let run = instance.run_now(&task).await;
    instance.settle(1).await;
    model.until_waiting("Answer", 1).await;
    let stop = json!({ "tenant_id": ended.tenant_id });
    assert_eq!(instance.ask("POST", "/v1/stop", ADMIN, Some(stop)).await.0, 200);
    world.advance(1.0);
    instance.tick(&instance.engine().halt_keeper).await.expect("a look");
    let queued = instance.until(run, |run| run.state == RunState::Queued).await;
    assert_eq!(tokens(&world).await, [2 * of_runs; 3], "{queued:?}");
    assert_eq!(reserved(&world).await, 0);
    let start = json!({ "tenant_id": ended.tenant_id });
    assert_eq!(instance.ask("POST", "/v1/start", ADMIN, Some(start)).await.0, 200);
    // two of them for those who wait no more
    model.answer(3);
    instance.settle(0).await;
    instance.finish(&world).await;
}

async fn step_that_is_cut_off_before_its_model_is_asked_is_in_the_way_of_no_later_one(mut world: World) {
    let model = SlowModel::start().await;
    world.llm.models.insert("main".to_owned(), ModelSettings { max_concurrent_calls: Some(1), ..model.settings() });
    // the worst of a call is above 8,192: there is enough for one, and not for two
    world.budgets.run = RunBudget { tokens: Some(16_000), ..RunBudget::default() };
    let instance = world.instance();
    let pipeline = |steps: Value| {
        json!({ "executor": "pipeline", "action": { "config": { "steps": steps } },
                "trigger": { "type": "schedule", "interval": "1h" } })
    };
    let holder = instance.task(pipeline(json!([{ "name": "one", "llm": { "prompt": "Hold." } }]))).await;
    let holder = instance.run_now(&holder).await;
    instance.settle(1).await;
    model.until_waiting("Hold.", 1).await;
    let steps = json!([
        { "name": "first", "llm": { "prompt": "Wait." }, "timeout_seconds": 5, "on_error": "continue" },
        { "name": "second", "agent": { "instruction": "Answer." } },
    ]);
    let waiting = instance.task(pipeline(steps)).await;
    let waiting = instance.run_now(&waiting).await;
    instance.settle(2).await;
    // two entries of the one that holds the model, and four of the other: the intent of its second step is on the
    // record
    let began = Instant::now();
    while world.number("select count(*) from turns").await < 6 {
        assert!(began.elapsed() < Duration::from_secs(30), "the first step does not end");
        world.advance(1.0);
        pause(Duration::from_millis(5)).await;
    }
    model.answer(2);
    instance.settle(0).await;
    for run in [holder, waiting] {
        let run = instance.run(run).await;
        assert_eq!(run.state, RunState::Succeeded, "{run:?}");
    }
    assert_eq!((model.waiting("Wait."), model.most()), (0, 1), "the first step was never asked");
    instance.finish(&world).await;
}

async fn nothing_is_written_where_no_budget_holds(mut world: World) {
    metered(&mut world).await;
    let instance = world.instance();
    let task = instance.task(agent(json!({}))).await;
    assert_eq!(one_run(&instance, &task).await.state, RunState::Succeeded);
    assert_eq!(tokens(&world).await, [TOKENS, 0, 0]);
    assert_eq!(world.number("select count(*) from budget_days").await, 0);
    instance.finish(&world).await;
}
