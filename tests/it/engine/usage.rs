//! Usage over whole instances: it is what the model's server has counted, and the metrics say the same.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use reveille::agent as react;
use reveille::base::clock::pause;
use reveille::base::id::Scope;
use reveille::domain::approval::{Category, Consequence};
use reveille::domain::budget::day_of;
use reveille::domain::run::RunState;
use reveille::ports::llm::ModelSettings;
use reveille::ports::tool::{Definition, Tool, ToolContext, ToolError, ToolOutput};
use reveille::store::{UsageFilter, UsageGroup, UsageOrder, UsageSum};
use serde_json::{Value, json};

use crate::support::app::Instance;
use crate::support::metered_model::{INPUT, MeteredModel, OUTPUT};
use crate::support::world::{World, on_both};

on_both! {
    sums_of_usage_equal_what_the_model_server_has_counted
    summaries_fallbacks_and_other_wires_are_in_the_sums_of_two_instances
    calls_of_tools_are_counted_with_who_called_them
}

async fn sums(instance: &Instance, by: UsageGroup) -> Vec<UsageSum> {
    let today = day_of(instance.store.clock().now());
    let filter = UsageFilter {
        by,
        from: today - chrono::TimeDelta::days(1),
        until: today + chrono::TimeDelta::days(1),
        task_id: None,
        order: UsageOrder::Key,
        after: None,
        skip: 0,
        limit: 100,
    };
    instance.on(|store| async move { store.usage_sums(&Scope::Every, &filter).await }).await.unwrap()
}

fn pipeline(steps: Value) -> Value {
    json!({ "executor": "pipeline", "action": { "config": { "steps": steps } },
            "trigger": { "type": "schedule", "interval": "1h" } })
}

/// Agents, steps that ask a model, and answers that are refused, which are paid all the same.
async fn sums_of_usage_equal_what_the_model_server_has_counted(mut world: World) {
    let (good, refusing) = (MeteredModel::start().await, {
        let message = json!({ "role": "assistant", "content": "" });
        MeteredModel::answering(message, "content_filter").await
    });
    world.llm.models.insert("main".to_owned(), good.settings());
    world.llm.models.insert("refusing".to_owned(), refusing.settings());
    let instance = world.instance();
    let agent = |model: &str| {
        json!({ "executor": "orchestrator",
                "action": { "instruction": "Answer.", "config": { "tools": [], "model": model } },
                "trigger": { "type": "schedule", "interval": "1h", "overlap": "allow" } })
    };
    let steps = json!([
        { "name": "first", "llm": { "prompt": "Answer." } },
        { "name": "second", "agent": { "instruction": "Answer.", "tools": [] } },
    ]);
    for task in [agent("main"), agent("main"), agent("refusing"), pipeline(steps)] {
        let task = instance.task(task).await;
        for _ in 0..3 {
            instance.run_now(&task).await;
            instance.settle(0).await;
        }
    }
    let all = sums(&instance, UsageGroup::Tenant).await;
    let [all] = &all[..] else { panic!("one tenant: {all:?}") };
    let answers = good.answers() + refusing.answers();
    assert!(good.answers() == 12 && refusing.answers() >= 3, "{answers} answers");
    assert_eq!((all.input_tokens, all.output_tokens), (answers * INPUT, answers * OUTPUT));
    assert_eq!(all.cost_micros, answers * (INPUT + OUTPUT));
    let of_models: Vec<_> =
        sums(&instance, UsageGroup::Model).await.into_iter().map(|sum| (sum.key, sum.input_tokens)).collect();
    let expected = [("main", good.answers() * INPUT), ("refusing", refusing.answers() * INPUT)];
    assert_eq!(of_models, expected.map(|(model, tokens)| (model.to_owned(), tokens)));
    let text = instance.page("/metrics").await;
    let line = format!(r#"reveille_model_tokens_total{{model="main",kind="input"}} {}"#, good.answers() * INPUT);
    assert!(text.lines().any(|l| l == line), "no `{line}` in:\n{text}");
    instance.finish(&world).await;
}

/// The turn with which the conversation has the messages of `summarise_from_messages`.
const SUMMARISED_AT: i64 = 9;

/// A tool that takes its time in the last turns: a summary that was begun before is done by then.
struct SlowLook(Definition);

impl Tool for SlowLook {
    fn definition(&self) -> &Definition {
        &self.0
    }

    fn call<'a>(&'a self, context: &'a ToolContext, _: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async {
            if context.turn >= SUMMARISED_AT {
                pause(Duration::from_secs(1)).await;
            }
            Ok(ToolOutput::text("nothing new"))
        })
    }
}

/// A model that goes on calling until its turns are used up, with a summary on the way; one that nobody answers for,
/// and the one behind it; one of another wire.
async fn summaries_fallbacks_and_other_wires_are_in_the_sums_of_two_instances(mut world: World) {
    let (calling, small) = (MeteredModel::calling("look").await, MeteredModel::start().await);
    let nobody = ModelSettings { base_url: Some("http://127.0.0.1:9/v1".into()), ..small.settings() };
    let other = ModelSettings { provider: "anthropic".into(), ..small.settings() };
    let models = [("main", calling.settings()), ("small", small.settings()), ("nobody", nobody), ("other", other)];
    world.llm.models.extend(models.map(|(name, model)| (name.to_owned(), model)));
    world.llm.fallback = vec!["small".into()];
    world.context.summary_model = Some("small".into());
    world.context.summarise_from_messages = 18;
    world.tools =
        vec![Arc::new(SlowLook(Definition::new("look", "Looks.", json!({}), Category::Read, Consequence::Low)))];
    world.react = react::Settings { loop_repetitions: 0, llm_max_retries: 0, ..world.react.clone() };
    // SQLite has one instance
    let instances = if world.is_postgres() { vec![world.instance(), world.instance()] } else { vec![world.instance()] };
    let mut tasks = Vec::new();
    for model in ["main", "nobody", "other"] {
        let task = json!({ "executor": "orchestrator",
                           "action": { "instruction": "Answer.", "config": { "tools": ["look"], "model": model } },
                           "trigger": { "type": "schedule", "interval": "1h", "overlap": "allow" } });
        tasks.push(instances[0].task(task).await);
    }
    for instance in &instances {
        for task in &tasks {
            instance.run_now(task).await;
        }
        instance.settle(0).await;
    }
    let per_instance = instances.len() as i64;
    assert_eq!(calling.answers(), 11 * per_instance, "ten turns, and the one that was to answer");
    // an instance that has both conversations writes one summary for them
    let beside_summaries = 2 * per_instance;
    let summaries = small.answers() - beside_summaries;
    assert!((1..=per_instance).contains(&summaries), "{summaries} summaries beside fallbacks and another wire");
    let all = sums(&instances[0], UsageGroup::Tenant).await;
    let [all] = &all[..] else { panic!("one tenant: {all:?}") };
    let answers = calling.answers() + small.answers();
    assert_eq!((all.input_tokens, all.output_tokens), (answers * INPUT, answers * OUTPUT));
    assert_eq!(all.cost_micros, answers * (INPUT + OUTPUT));
    for instance in instances {
        instance.finish(&world).await;
    }
}

async fn calls_of_tools_are_counted_with_who_called_them(world: World) {
    let instance = world.instance();
    let steps = json!([{ "name": "when", "tool": { "name": "current_time", "args": {} } }]);
    let task = instance.task(pipeline(steps)).await;
    let run = instance.run_now(&task).await;
    instance.settle(0).await;
    let run = instance.run(run).await;
    assert_eq!((run.state, run.usage.tool_calls), (RunState::Succeeded, 1), "{run:?}");
    let tools: Vec<_> =
        sums(&instance, UsageGroup::Tool).await.into_iter().map(|sum| (sum.key, sum.tool_calls)).collect();
    assert_eq!(tools, [("current_time".to_owned(), 1)]);
    let shown: Value = serde_json::from_str(&instance.page(&format!("/v1/runs/{}", run.id)).await).unwrap();
    let call = &shown["result"]["tool_calls"][0];
    assert_eq!((&call["name"], &call["success"]), (&json!("current_time"), &json!(true)), "{shown}");
    assert_eq!(call["attribution"], json!({ "step": "when", "turn": 1 }));
    let text = instance.page("/metrics").await;
    assert!(text.contains(r#"reveille_tool_calls_total{tool="current_time",result="ok"} 1"#), "{text}");
    instance.finish(&world).await;
}
