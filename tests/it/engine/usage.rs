//! Usage over whole instances: it is what the model's server has counted, and the metrics say the same.

use reveille::base::id::Scope;
use reveille::domain::budget::day_of;
use reveille::domain::run::RunState;
use reveille::store::{UsageFilter, UsageGroup, UsageSum};
use serde_json::{Value, json};

use crate::support::app::Instance;
use crate::support::metered_model::{INPUT, MeteredModel, OUTPUT};
use crate::support::world::{World, on_both};

on_both! {
    sums_of_usage_equal_what_the_model_server_has_counted
    calls_of_tools_are_counted_with_who_called_them
}

async fn sums(instance: &Instance, by: UsageGroup) -> Vec<UsageSum> {
    let today = day_of(instance.store.clock().now());
    let filter = UsageFilter {
        by,
        from: today - chrono::TimeDelta::days(1),
        until: today + chrono::TimeDelta::days(1),
        task_id: None,
        after: None,
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
