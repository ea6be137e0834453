//! Crashes: a worker dies before and after each write, another one goes on, and the effects are counted.

use std::sync::{Arc, Mutex};

use reveille::domain::run::RunFinish;
use reveille::domain::run::outcome::{RunError, RunOutcome};
use reveille::executor::Executor;
use serde_json::{Value, json};
use wiremock::matchers::method;
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::harness::{Death, MortalTranscript, event, job, ledger, pipeline, run};
use crate::agent::harness::{AgentHarness, FakeTool, Memory, call, calls, says};

fn steps(url: &str) -> Value {
    json!({ "steps": [
        { "name": "read", "http": { "url": url } },
        { "name": "write", "http": { "method": "PUT", "url": url, "body": { "n": "{{ steps.read.body }}" } } },
        { "name": "pay", "http": { "method": "POST", "url": url } },
        { "name": "keep", "store": { "name": "paid", "value": "{{ steps.pay.body }}" } },
        { "name": "tell", "notify": { "message": "paid {{ state.paid }}" } },
        { "name": "spread", "publish": { "type": "paid" } },
        { "name": "said", "map": "state.paid" },
    ] })
}

/// Requests of a method.
async fn sent(server: &MockServer, verb: &str) -> usize {
    server.received_requests().await.unwrap().iter().filter(|request| request.method.as_str() == verb).count()
}

async fn server() -> MockServer {
    let server = MockServer::start().await;
    for (verb, body) in [("GET", "1"), ("PUT", "2"), ("POST", "3")] {
        Mock::given(method(verb)).respond_with(ResponseTemplate::new(200).set_body_string(body)).mount(&server).await;
    }
    server
}

/// The outcome of another attempt, whose end is recorded.
async fn resumed(stage: &AgentHarness, config: &Value, kept: &Arc<Memory>) -> Result<RunOutcome, RunError> {
    let ended = pipeline(stage).execute(job(stage, kept.clone(), config.clone(), None)).await;
    kept.end();
    ended
}

/// Runs until the worker dies, and then with another one. `None` where it did not die.
async fn crashed(
    stage: &AgentHarness,
    config: &Value,
    death: Death,
) -> Option<(Result<RunOutcome, RunError>, Arc<Memory>)> {
    let kept = Arc::new(Memory::default());
    if MortalTranscript::new(kept.clone(), death).execute(stage, config).await.is_some() {
        return None;
    }
    Some((resumed(stage, config, &kept).await, kept))
}

#[tokio::test]
async fn crash_at_any_write_repeats_what_is_harmless_and_pays_at_most_once() {
    let mut points = 0;
    let (mut unknown, mut unpaid) = (0, 0);
    for n in 0.. {
        let mut died = false;
        for death in [Death::Before(n), Death::After(n)] {
            let server = server().await;
            let stage = AgentHarness::new(vec![], vec![]);
            let config = steps(&server.uri());
            let Some((resumed, kept)) = crashed(&stage, &config, death).await else { continue };
            (died, points) = (true, points + 1);
            let payments = sent(&server, "POST").await;
            assert!(payments <= 1, "{death:?}: paid {payments} times");
            assert!(sent(&server, "GET").await <= 2 && sent(&server, "PUT").await <= 2, "{death:?}");
            match resumed {
                Ok(RunOutcome::Succeeded { output, .. }) => {
                    assert_eq!((output.as_str(), payments), ("3", 1), "{death:?}")
                }
                Err(RunError::Fail { fault }) => {
                    assert_eq!(fault.code, "outcome_unknown", "{death:?}");
                    assert_eq!(ledger(&kept).last().unwrap(), "pay!outcome_unknown");
                    unknown += 1;
                    unpaid += usize::from(payments == 0);
                }
                other => panic!("{death:?}: {other:?}"),
            }
        }
        if !died {
            break;
        }
    }
    // five intents, the payment's result and the end: each before and after
    assert_eq!(points, 14);
    // between the payment's intent and its result, and nowhere else
    assert_eq!((unknown, unpaid), (2, 1));
}

#[tokio::test]
async fn on_error_decides_over_an_unknown_outcome() {
    let server = server().await;
    let config = json!({ "steps": [
        { "name": "pay", "http": { "method": "POST", "url": server.uri() }, "on_error": "continue" },
        { "name": "said", "map": "steps.pay.error.code" },
    ] });
    let stage = AgentHarness::new(vec![], vec![]);
    let (resumed, _) = crashed(&stage, &config, Death::Before(1)).await.expect("it dies");
    assert!(matches!(resumed, Ok(RunOutcome::Succeeded { output, .. }) if output == "outcome_unknown"));
    assert_eq!(sent(&server, "POST").await, 1);
}

#[tokio::test]
async fn repeated_steps_carry_the_same_keys() {
    let server = server().await;
    let stage = AgentHarness::new(vec![], vec![]);
    let config = json!({ "steps": [
        { "name": "write", "http": { "method": "PUT", "url": server.uri() } },
        { "name": "tell", "notify": { "message": "hello" } },
        { "name": "spread", "publish": { "type": "paid" } },
    ] });
    // before the result of each
    for death in [Death::Before(1), Death::Before(2), Death::Before(3)] {
        let (resumed, _) = crashed(&stage, &config, death).await.expect("it dies");
        assert!(matches!(resumed, Ok(RunOutcome::Succeeded { .. })), "{resumed:?}");
    }
    let keys: std::collections::HashSet<String> = server
        .received_requests()
        .await
        .unwrap()
        .iter()
        .map(|request| request.headers["idempotency-key"].to_str().unwrap().to_owned())
        .collect();
    assert_eq!((keys.len(), sent(&server, "PUT").await), (1, 4));
    let asked = stage.host.asked.lock().unwrap();
    let notices: Vec<&Value> = asked.iter().filter_map(|asked| asked.get("notify")).collect();
    let events: Vec<&Value> = asked.iter().filter_map(|asked| asked.get("publish")).collect();
    assert_eq!((notices.len(), events.len()), (4, 4));
    assert!(notices.iter().all(|notice| *notice == notices[0]), "one key, so one message");
    assert!(events.iter().all(|event| *event == events[0]), "one id, so one event");
}

#[tokio::test]
async fn items_that_are_done_are_not_done_again() {
    let server = server().await;
    let config = json!({ "steps": [
        { "name": "all", "for_each": { "items": "[1, 2, 3, 4]", "do": { "http": { "method": "POST", "url": server.uri() } } } },
        { "name": "count", "map": "size(steps.all)" },
    ] });
    let stage = AgentHarness::new(vec![], vec![]);
    // an intent and a result each: after the result of the second
    let (resumed, kept) = crashed(&stage, &config, Death::After(3)).await.expect("it dies");
    assert!(matches!(resumed, Ok(RunOutcome::Succeeded { output, .. }) if output == "4"), "{:?}", ledger(&kept));
    assert_eq!(sent(&server, "POST").await, 4);
}

#[tokio::test]
async fn agent_goes_on_at_its_last_turn_and_two_of_them_have_calls_of_their_own() {
    let asks = |n: i64| calls(vec![call("c1", "echo", json!({ "n": n }))]);
    let config = json!({ "steps": [
        { "name": "one", "agent": { "instruction": "do one" } },
        { "name": "two", "agent": { "instruction": "do two" } },
        { "name": "both", "map": "steps.one + ' ' + steps.two" },
    ] });
    let (mut points, mut n) = (0, 0);
    loop {
        let keys: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = keys.clone();
        let tool = FakeTool::new("echo", move |context, _| {
            heard.lock().unwrap().push(context.idempotency_key);
            async { Ok(reveille::ports::tool::ToolOutput::text("1")) }
        });
        // a stored answer is not asked for again, so four answers are enough wherever it dies
        let stage = AgentHarness::new(vec![asks(1), says("first"), asks(2), says("second")], vec![tool]);
        let kept = Arc::new(Memory::default());
        let died = MortalTranscript::new(kept.clone(), Death::After(n)).execute(&stage, &config).await.is_none();
        if !died {
            break;
        }
        points += 1;
        let resumed = resumed(&stage, &config, &kept).await;
        assert!(
            matches!(&resumed, Ok(RunOutcome::Succeeded { output, .. }) if output == "first second"),
            "{n}: {resumed:?}"
        );
        let keys = keys.lock().unwrap();
        let distinct: std::collections::HashSet<&String> = keys.iter().collect();
        assert_eq!(distinct.len(), 2, "{n}: {keys:?}");
        n += 1;
    }
    // the two intents, two turns of each agent, and the end
    assert_eq!(points, 7);
}

#[tokio::test]
async fn run_ends_at_the_limit_of_turns_of_a_step_s_agent_wherever_its_worker_died() {
    let config = json!({ "steps": [
        { "name": "look", "agent": { "instruction": "Read the mails.", "max_turns": 1 } },
        { "name": "keep", "store": { "name": "read", "value": "{{ steps.look }}" } },
        { "name": "said", "map": "steps.look" },
    ] });
    let (mut behind, mut n) = (0, 0);
    loop {
        let answers = vec![calls(vec![call("c1", "echo", json!({}))]), says("Three of five.")];
        let stage = AgentHarness::new(answers, vec![FakeTool::echo("echo")]);
        let kept = Arc::new(Memory::default());
        let whole = MortalTranscript::new(kept.clone(), Death::After(n)).execute(&stage, &config).await;
        let has_died = whole.is_none();
        behind += usize::from(has_died && ledger(&kept).iter().any(|line| line.starts_with("look=")));
        let ended = match whole {
            Some(ended) => ended,
            None => resumed(&stage, &config, &kept).await,
        };
        let Ok(RunOutcome::Succeeded { output, finish, .. }) = ended else { panic!("{n}: {ended:?}") };
        assert_eq!((output.as_str(), finish), ("Three of five.", Some(RunFinish::MaxTurns)), "{n}");
        if !has_died {
            break;
        }
        n += 1;
    }
    assert!(behind > 0, "it died behind the step as well");
}

#[tokio::test]
async fn quiet_run_ends_at_the_limit_of_turns_of_a_step_s_agent_whatever_its_reason_is() {
    for (last, expected) in [
        (json!({ "name": "many", "filter": "event.data.total > 200" }), "filtered"),
        (json!({ "name": "odd", "map": "event.data.totl > 100", "on_error": "stop" }), "stopped"),
        (json!({ "name": "tell", "notify": { "message": "{{ steps.look }}" } }), "told"),
    ] {
        let answers = vec![calls(vec![call("c1", "echo", json!({}))]), says("Three of five.")];
        let stage = AgentHarness::new(answers, vec![FakeTool::echo("echo")]);
        let look = json!({ "name": "look", "agent": { "instruction": "Read the mails.", "max_turns": 1 } });
        let ended = run(&stage, json!({ "steps": [look, last] }), Some(event(json!({ "total": 120 })))).await;
        let Ok(RunOutcome::Quiet { reason, finish, .. }) = ended else { panic!("{expected}: {ended:?}") };
        assert_eq!((reason.as_str(), finish), (expected, Some(RunFinish::MaxTurns)));
    }
}

#[tokio::test]
async fn run_whose_step_s_agent_answers_within_its_turns_says_nothing_of_a_limit() {
    let stage = AgentHarness::new(vec![says("All five.")], vec![]);
    let config =
        json!({ "steps": [{ "name": "look", "agent": { "instruction": "Read the mails.", "max_turns": 1 } }] });
    let ended = resumed(&stage, &config, &stage.store).await;
    assert!(matches!(ended, Ok(RunOutcome::Succeeded { finish: None, .. })), "{ended:?}");
}
