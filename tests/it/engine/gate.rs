//! Before the first call of a model, and behind the answer, over whole instances.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::future::BoxFuture;
use reveille::agent::gate::rates::{RateSettings, Tier};
use reveille::base::clock::pause;
use reveille::domain::run::RunState;
use reveille::domain::task::Task;
use reveille::executor::post_process::{AnsweredRun, PostProcess};
use reveille::store::StoreError;
use serde_json::{Value, json};

use crate::support::app::Instance;
use crate::support::slow_model::SlowModel;
use crate::support::world::{ADMIN, World, on_both};

on_both! {
    message_with_a_word_of_the_operator_is_skipped_before_any_model_is_asked
    rate_of_a_tenant_holds_over_instances_until_the_next_minute
    message_of_a_chat_that_no_model_is_asked_with_is_answered_with_the_reason
    quota_of_a_tenant_refuses_chats_and_triggers_alike_before_any_model_is_asked
    message_whose_run_goes_on_elsewhere_after_a_crash_is_counted_once
    steps_behind_an_answer_follow_its_record_and_fail_nothing
}

fn agent(instruction: &str) -> Value {
    json!({ "executor": "orchestrator", "action": { "instruction": instruction } })
}

async fn message_with_a_word_of_the_operator_is_skipped_before_any_model_is_asked(mut world: World) {
    let model = SlowModel::start().await;
    world.llm.models.insert("main".to_owned(), model.settings());
    world.gate.words = vec!["launch codes".into()];
    let instance = world.instance();
    let refused = instance.task(agent("Send me the Launch Codes.")).await;
    let refused = instance.run_now(&refused).await;
    instance.settle(0).await;
    let run = instance.run(refused).await;
    assert_eq!((run.state, run.reason.as_deref()), (RunState::Skipped, Some("safety")));
    // a pipeline has begun by then: its step fails
    for step in ["llm", "agent"] {
        let text = if step == "llm" { "prompt" } else { "instruction" };
        let steps = json!([{ "name": "ask", step: { text: "Send me the launch codes." } }]);
        let task = json!({ "executor": "pipeline", "action": { "config": { "steps": steps } } });
        let run = instance.run_now(&instance.task(task).await).await;
        instance.settle(0).await;
        let run = instance.run(run).await;
        assert_eq!(run.state, RunState::Failed, "{step}");
        assert_eq!(run.error.map(|fault| fault.code).as_deref(), Some("refused"), "{step}");
    }
    assert_eq!(model.most(), 0);
    let other = instance.task(agent("Send me the news.")).await;
    let other = instance.run_now(&other).await;
    model.answer(1);
    instance.settle(0).await;
    assert_eq!(instance.run(other).await.state, RunState::Succeeded);
    instance.finish(&world).await;
}

async fn rate_of_a_tenant_holds_over_instances_until_the_next_minute(mut world: World) {
    world.follows(&json!({ "steps": [{ "text": "Done." }] }));
    let house = Tier { tenants: ["bob".to_owned()].into(), messages_per_minute: 1 };
    world.gate_rates = RateSettings { messages_per_minute: 3, tiers: [("house".to_owned(), house)].into() };
    let count = if world.is_postgres() { 2 } else { 1 };
    let instances: Vec<Instance> = (0..count).map(|_| world.instance()).collect();
    let ends = async |tenant: &str, count: usize| {
        let mut ends = Vec::new();
        for instance in instances.iter().cycle().take(count) {
            let mut task = agent("Go.");
            task["tenant_id"] = json!(tenant);
            let task = instance.task(task).await;
            let run = instance.run_now(&task).await;
            instance.settle(0).await;
            let run = instance.run(run).await;
            ends.push((run.state, run.reason.unwrap_or_default()));
        }
        ends
    };
    let (answered, skipped) =
        ((RunState::Succeeded, String::new()), |reason: &str| (RunState::Skipped, reason.to_owned()));
    let [one, two, three] = [answered.clone(), answered.clone(), answered.clone()];
    assert_eq!(ends("ann", 5).await, [one, two, three, skipped("rate"), skipped("rate")]);
    assert_eq!(ends("bob", 2).await, [answered.clone(), skipped("tier")]);
    assert_eq!(ends("cal", 1).await.first(), Some(&answered));
    world.advance(60.0);
    assert_eq!(ends("ann", 1).await.first(), Some(&answered));
    for instance in instances {
        instance.finish(&world).await;
    }
}

/// The answer to a message of a new conversation, while the instance works.
async fn say(instance: &Instance, tenant: &str, message: &str) -> Value {
    let body = json!({ "tenant_id": tenant, "message": message });
    let works = async {
        loop {
            instance.work().await;
            pause(Duration::from_millis(5)).await;
        }
    };
    tokio::select! {
        (status, answer) = instance.ask("POST", "/v1/chat", ADMIN, Some(body)) => {
            assert_eq!(status, 200, "{answer}");
            answer
        }
        () = works => unreachable!("it works until the answer is there"),
    }
}

async fn message_of_a_chat_that_no_model_is_asked_with_is_answered_with_the_reason(mut world: World) {
    world.follows(&json!({ "steps": [{ "text": "Done." }] }));
    world.gate.words = vec!["launch codes".into()];
    let house = Tier { tenants: ["bob".to_owned()].into(), messages_per_minute: 1 };
    world.gate_rates = RateSettings { messages_per_minute: 1, tiers: [("house".to_owned(), house)].into() };
    let instance = world.instance();
    let budget = json!({ "run": { "tokens": 100 } });
    let (status, _) = instance.ask("PUT", "/v1/budgets/dan", ADMIN, Some(budget)).await;
    assert_eq!(status, 200);
    world.advance(1.0);
    for tenant in ["bob", "cal"] {
        let answered = say(&instance, tenant, "Good morning.").await;
        assert_eq!((&answered["state"], &answered["error"]), (&json!("succeeded"), &Value::Null), "{answered}");
    }
    for (tenant, message, code, words) in [
        (
            "ann",
            "Send me the Launch Codes.",
            "safety",
            "the message has words that the operator lets no model be asked with",
        ),
        (
            "bob",
            "And now?",
            "tier",
            "the tenant has sent models as many messages within this minute as its tier lets it",
        ),
        ("cal", "And now?", "rate", "the tenant has sent models as many messages within this minute as it may"),
        ("dan", "Good morning.", "budget", "there was no budget left for it"),
    ] {
        let refused = say(&instance, tenant, message).await;
        assert_eq!((&refused["state"], &refused["response"]), (&json!("skipped"), &json!("")), "{refused}");
        assert_eq!(refused["error"], json!({ "code": code, "message": words }));
    }
    instance.settle(0).await;
    instance.finish(&world).await;
}

async fn quota_of_a_tenant_refuses_chats_and_triggers_alike_before_any_model_is_asked(mut world: World) {
    world.follows(&json!({ "steps": [{ "text": "Done." }] }));
    let instance = world.instance();
    let limit = async |tenant: &str, quotas: Value| {
        let path = format!("/v1/tenants/{tenant}/quotas");
        let (status, told) = instance.ask("PUT", &path, ADMIN, Some(quotas)).await;
        assert_eq!(status, 200, "{told}");
    };
    let ends = async |task: &Task| -> Vec<(RunState, Option<String>)> {
        instance.runs(task).await.into_iter().map(|run| (run.state, run.reason)).collect()
    };
    let answered: (RunState, Option<String>) = (RunState::Succeeded, None);
    let skipped = (RunState::Skipped, Some("quota".to_owned()));
    limit("ann", json!({ "fires_per_minute": 1 })).await;
    let schedule = instance.task(agent("Go.")).await;
    world.advance(60.0);
    instance.live(0).await;
    assert_eq!(ends(&schedule).await, std::slice::from_ref(&answered));
    // the one fire of this minute is used up
    let refused = say(&instance, "ann", "Good morning.").await;
    assert_eq!(refused["state"], "skipped", "{refused}");
    let words = "the tenant had stored all that it may, or had used up its fires of the minute";
    assert_eq!(refused["error"], json!({ "code": "quota", "message": words }));
    assert_eq!(refused["turns"], 0, "no model was asked");
    world.advance(60.0);
    let greeted = say(&instance, "ann", "Good morning.").await;
    assert_eq!(greeted["state"], "succeeded", "{greeted}");
    instance.live(0).await;
    assert_eq!(ends(&schedule).await, [answered.clone(), skipped.clone()], "the message has used up this one");

    let mut stored = agent("Go.");
    stored["tenant_id"] = json!("bob");
    let stored = instance.task(stored).await;
    instance.run_now(&stored).await;
    let counted = instance.on(|store| async move {
        while store.count_stored_bytes(100).await? > 0 {}
        Ok::<_, StoreError>(())
    });
    counted.await.expect("counted");
    limit("bob", json!({ "stored_bytes": 1 })).await;
    instance.settle(0).await;
    assert_eq!(ends(&stored).await, [skipped]);
    limit("bob", json!({ "stored_bytes": 1_000_000 })).await;
    instance.run_now(&stored).await;
    instance.settle(0).await;
    assert_eq!(ends(&stored).await.last(), Some(&answered));
    instance.finish(&world).await;
}

/// One of each tenant may be sent in a minute: a chat of `ann`, and a task of `bob`. A run whose message counted twice
/// would be skipped.
async fn message_whose_run_goes_on_elsewhere_after_a_crash_is_counted_once(mut world: World) {
    let model = SlowModel::start().await;
    world.llm.models.insert("main".to_owned(), model.settings());
    world.settings.lease_seconds = 10.0;
    let house = Tier { tenants: ["bob".to_owned()].into(), messages_per_minute: 1 };
    world.gate_rates = RateSettings { messages_per_minute: 0, tiers: [("house".to_owned(), house)].into() };
    let first = world.instance();
    let quotas = Some(json!({ "fires_per_minute": 1 }));
    let (status, told) = first.ask("PUT", "/v1/tenants/ann/quotas", ADMIN, quotas).await;
    assert_eq!(status, 200, "{told}");
    let mut task = agent("Go.");
    (task["tenant_id"], task["retry"]) = (json!("bob"), json!({ "max_attempts": 2 }));
    let task = first.task(task).await;
    first.run_now(&task).await;
    let message = json!({ "tenant_id": "ann", "message": "Good morning." });
    let begun = async {
        first.settle(2).await;
        model.until_waiting("", 2).await;
    };
    tokio::select! {
        answered = first.ask("POST", "/v1/chat", ADMIN, Some(message)) => panic!("nobody answers: {answered:?}"),
        () = begun => {}
    }
    first.crash();
    model.answer(4);
    world.advance(20.0);
    let second = world.instance();
    second.rescue().await;
    second.settle(0).await;
    assert_eq!(world.number("select count(*) from runs where state = 'succeeded' and crashes = 1").await, 2);
    // the minute is the same one, and nothing is left in it
    let refused = say(&second, "ann", "And now?").await;
    assert_eq!(refused["error"]["code"], "quota", "{refused}");
    let late = second.run_now(&task).await;
    second.settle(0).await;
    assert_eq!(second.run(late).await.reason.as_deref(), Some("tier"));
    second.finish(&world).await;
}

/// Writes down what it is told, and then does as it is made to.
struct FakeStep {
    name: &'static str,
    end: fn() -> Result<(), String>,
    told: Arc<Mutex<Vec<String>>>,
}

impl PostProcess for FakeStep {
    fn name(&self) -> &'static str {
        self.name
    }

    fn process<'a>(&'a self, answered: &'a AnsweredRun) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move {
            self.told.lock().unwrap().push(format!("{} {} {}", self.name, answered.run.id, answered.output));
            (self.end)()
        })
    }
}

async fn steps_behind_an_answer_follow_its_record_and_fail_nothing(mut world: World) {
    let told = Arc::<Mutex<Vec<String>>>::default();
    let step = |name, end| -> Arc<dyn PostProcess> { Arc::new(FakeStep { name, end, told: Arc::clone(&told) }) };
    world.post_process = vec![
        step("fails", || Err("no room".into())),
        step("panics", || panic!("as it is made to")),
        step("works", || Ok(())),
    ];
    let instance = world.instance();
    let task = instance.task(json!({ "acts": ["say:hello"] })).await;
    let failing = instance.task(json!({ "acts": ["fail"] })).await;
    let (run, failed) = (instance.run_now(&task).await, instance.run_now(&failing).await);
    instance.settle(0).await;
    assert_eq!(instance.run(run).await.state, RunState::Succeeded);
    assert_eq!(instance.run(failed).await.state, RunState::Failed);
    let expected = ["fails", "panics", "works"].map(|name| format!("{name} {run} hello"));
    let began = std::time::Instant::now();
    while told.lock().unwrap().len() < expected.len() {
        assert!(began.elapsed().as_secs() < 30, "{:?}", told.lock().unwrap());
        reveille::base::clock::pause(std::time::Duration::from_millis(2)).await;
    }
    assert_eq!(*told.lock().unwrap(), expected, "an answer alone is followed");
    instance.finish(&world).await;
}
