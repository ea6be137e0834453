//! When the ledger of a pipeline is stored: seldom, but before anything that must not happen twice.

use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use reveille::agent::AppendError;
use reveille::domain::run::outcome::{RunError, RunOutcome};
use reveille::domain::run::transcript::TranscriptMessage;
use reveille::executor::Executor;
use reveille::ports::tool::ToolOutput;
use serde_json::{Value, json};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use super::harness::{Death, MortalTranscript, job, ledger, pipeline};
use crate::agent::harness::{AgentHarness, FakeTool, Memory};

/// A server that answers how many entries are stored when it is asked.
async fn looks_at(store: &Arc<Memory>) -> MockServer {
    let (server, store) = (MockServer::start().await, store.clone());
    let answer = move |_: &Request| {
        let stored = store.entries.lock().unwrap().len();
        ResponseTemplate::new(200).set_body_string(stored.to_string())
    };
    Mock::given(wiremock::matchers::any()).respond_with(answer).mount(&server).await;
    server
}

/// The outcome of one attempt, how many entries each append brought, and how many came with the end.
async fn run(stage: &AgentHarness, steps: Value) -> (Result<RunOutcome, RunError>, Vec<usize>, usize) {
    let job = job(stage, stage.store.clone(), json!({ "steps": steps }), None);
    let ended = pipeline(stage).execute(job).await;
    let appended = stage.store.appended.lock().unwrap().clone();
    (ended, appended, stage.store.end())
}

fn output(ended: Result<RunOutcome, RunError>) -> String {
    match ended {
        Ok(RunOutcome::Succeeded { output, .. }) => output,
        other => panic!("no answer: {other:?}"),
    }
}

fn stage() -> AgentHarness {
    AgentHarness::new(vec![], vec![])
}

#[tokio::test]
async fn pipeline_of_steps_that_compute_is_stored_with_its_end() {
    let stage = stage();
    let steps = json!([{ "name": "holds", "filter": "true" }, { "name": "said", "map": "1 + 1" }]);
    let (ended, appended, with_end) = run(&stage, steps).await;
    assert_eq!((output(ended).as_str(), appended, with_end), ("2", vec![], 3), "its beginning and two results");
    assert_eq!(ledger(&stage.store), ["holds=true", "said=2"]);
    // and so is one that a filter ends, and one that fails
    for last in [json!({ "name": "last", "filter": "false" }), json!({ "name": "last", "map": "1 / 0" })] {
        let (_, appended, with_end) = run(&self::stage(), json!([{ "name": "one", "map": "1" }, last])).await;
        assert_eq!((appended, with_end), (vec![], 3));
    }
}

#[tokio::test]
async fn step_that_reads_is_stored_with_the_end() {
    let stage = stage();
    let server = looks_at(&stage.store).await;
    let steps = json!([
        { "name": "path", "map": "'a'" },
        { "name": "read", "http": { "url": format!("{}/{{{{ steps.path }}}}", server.uri()) } },
        { "name": "said", "map": "steps.read.body" },
    ]);
    let (ended, appended, with_end) = run(&stage, steps).await;
    assert_eq!((output(ended).as_str(), appended, with_end), ("0", vec![], 5), "nothing was stored when it read");
    assert_eq!(ledger(&stage.store)[1], "read?");
}

#[tokio::test]
async fn effect_finds_all_before_it_stored_and_its_result_waits_unless_it_would_happen_twice() {
    for (method, appended_by_end) in [("PUT", vec![5]), ("POST", vec![5, 1])] {
        let stage = stage();
        let server = looks_at(&stage.store).await;
        let steps = json!([
            { "name": "one", "map": "1" },
            { "name": "read", "http": { "url": server.uri() } },
            { "name": "act", "http": { "method": method, "url": server.uri() } },
            { "name": "said", "map": "[steps.read.body, steps.act.body]" },
        ]);
        let entries = 7;
        let (ended, appended, with_end) = run(&stage, steps).await;
        assert_eq!(output(ended), r#"["0","5"]"#, "{method}: the beginning, a value, a reading and the intent");
        assert_eq!((appended.iter().sum::<usize>() + with_end, appended), (entries, appended_by_end), "{method}");
    }
}

#[tokio::test]
async fn effects_in_a_row_take_an_append_each_with_the_result_of_the_one_before() {
    let stage = stage();
    let server = looks_at(&stage.store).await;
    let steps = json!([
        { "name": "write", "http": { "method": "PUT", "url": server.uri() } },
        { "name": "keep", "store": { "name": "n", "value": "{{ steps.write.body }}" } },
        { "name": "tell", "notify": { "message": "{{ state.n }}" } },
        { "name": "spread", "publish": { "type": "told" } },
    ]);
    let (_, appended, with_end) = run(&stage, steps).await;
    assert_eq!((appended, with_end), (vec![2, 2, 2, 2], 1));
    // of items of a list, too
    let stage = self::stage();
    let server = looks_at(&stage.store).await;
    let put = json!({ "http": { "method": "PUT", "url": server.uri() } });
    let steps = json!([{ "name": "all", "for_each": { "items": "[1, 2, 3]", "do": put } }]);
    let (_, appended, with_end) = run(&stage, steps).await;
    assert_eq!((appended, with_end), (vec![2, 2, 2], 1));
}

#[tokio::test]
async fn results_are_stored_while_a_slow_step_is_executed() {
    let slow = FakeTool::new("slow", |context, _| async move {
        context.clock.sleep(Duration::from_secs(5)).await;
        Ok(ToolOutput::text("1"))
    });
    let stage = AgentHarness::new(vec![], vec![slow]);
    let steps = json!([{ "name": "one", "map": "1" }, { "name": "slow", "tool": { "name": "slow" } }]);
    let mut running = Box::pin(run(&stage, steps));
    assert!(futures::poll!(&mut running).is_pending());
    assert_eq!(*stage.store.appended.lock().unwrap(), [0_usize; 0]);
    stage.clock.advance(TimeDelta::seconds(1));
    for _ in 0..10 {
        assert!(futures::poll!(&mut running).is_pending());
    }
    assert_eq!(*stage.store.appended.lock().unwrap(), [3], "the beginning, a value and the intent");
    stage.clock.advance(TimeDelta::seconds(5));
    let (_, appended, with_end) = running.await;
    assert_eq!((appended, with_end), (vec![3], 1));
}

#[tokio::test]
async fn run_that_is_handed_back_keeps_what_its_steps_gave() {
    let (stage, server) = (stage(), MockServer::start().await);
    let stop = stage.stop.clone();
    let hand_back = move |_: &Request| {
        stop.hand_back();
        ResponseTemplate::new(200)
    };
    Mock::given(wiremock::matchers::any()).respond_with(hand_back).mount(&server).await;
    let steps = json!([{ "name": "read", "http": { "url": server.uri() } }, { "name": "never", "map": "1" }]);
    let (ended, appended, with_end) = run(&stage, steps).await;
    assert_eq!((ended, appended, with_end), (Err(RunError::HandBack), vec![], 3));
}

#[tokio::test]
async fn results_that_are_large_do_not_wait() {
    const DEFERRED_BYTES: usize = 16_384;
    const PART: usize = 900;
    for (parts, expected) in [(15, (vec![], 5)), (17, (vec![4], 1))] {
        assert_eq!(parts * PART + PART + 500 > DEFERRED_BYTES, expected.1 == 1, "the bound lies between the two");
        let stage = stage();
        let steps = json!([
            { "name": "small", "map": "'x'" },
            { "name": "large", "map": format!("'{}'", "x".repeat(PART)) },
            { "name": "larger", "map": vec!["steps.large"; parts].join(" + ") },
            { "name": "last", "map": "'x'" },
        ]);
        let (_, appended, with_end) = run(&stage, steps).await;
        assert_eq!((appended, with_end), expected);
    }
}

#[tokio::test]
async fn result_that_can_t_be_stored_is_offered_with_the_end_and_an_intent_without_its_effect_is_not() {
    let steps = |url: String| json!([{ "name": "one", "map": "1" }, { "name": "pay", "http": { "method": "POST", "url": url } }]);
    let stage = stage();
    let server = looks_at(&stage.store).await;
    stage.store.failures.lock().unwrap().push_back(Some(AppendError::Corrupt));
    let (ended, ..) = run(&stage, steps(server.uri())).await;
    assert!(matches!(ended, Err(RunError::Fail { .. })), "{ended:?}");
    assert_eq!(ledger(&stage.store), ["one=1"]);
    assert_eq!(server.received_requests().await.unwrap().len(), 0, "it did not begin");

    let stage = self::stage();
    let server = looks_at(&stage.store).await;
    stage.store.failures.lock().unwrap().extend([None, Some(AppendError::Corrupt)]);
    let (ended, ..) = run(&stage, steps(server.uri())).await;
    assert!(matches!(ended, Err(RunError::Fail { .. })), "{ended:?}");
    let told = ledger(&stage.store);
    assert!(told.last().unwrap().starts_with("pay={"), "what came of the payment is known: {told:?}");
    let (ended, ..) = run(&stage, steps(server.uri())).await;
    assert!(matches!(ended, Ok(RunOutcome::Succeeded { .. })), "{ended:?}");
    assert_eq!(server.received_requests().await.unwrap().len(), 1);
}

#[tokio::test]
async fn stored_values_are_read_for_steps_that_name_them_alone() {
    let stage = stage();
    stage.host.state.lock().unwrap().insert("n".into(), json!(1));
    for (expression, read) in [("1 + 1", json!({})), ("state.n + 1", json!({ "n": 1 }))] {
        let memory = Arc::new(Memory::default());
        let config = json!({ "steps": [{ "name": "two", "map": expression }] });
        let ended = pipeline(&stage).execute(job(&stage, memory.clone(), config, None)).await;
        assert_eq!(output(ended), "2");
        memory.end();
        match &memory.messages()[0] {
            TranscriptMessage::Pipeline { state, .. } => assert_eq!(*state, read, "{expression}"),
            other => panic!("a pipeline begins with what it knows: {other:?}"),
        }
    }
}

#[tokio::test]
async fn results_that_waited_are_lost_with_the_worker_and_counted_once_all_the_same() {
    let stage = stage();
    stage.host.state.lock().unwrap().insert("n".into(), json!(1));
    let config = json!({ "steps": [
        { "name": "read", "map": "state.n" },
        { "name": "count", "store": { "name": "n", "expression": "steps.read + 1" } },
        { "name": "said", "map": "state.n" },
    ] });
    for (death, kept_before) in [(Death::Before(0), 0), (Death::After(0), 3), (Death::Before(1), 3)] {
        stage.host.state.lock().unwrap().insert("n".into(), json!(1));
        let kept = Arc::new(Memory::default());
        assert!(MortalTranscript::new(kept.clone(), death).execute(&stage, &config).await.is_none());
        assert_eq!(kept.messages().len(), kept_before, "{death:?}");
        let resumed = pipeline(&stage).execute(job(&stage, kept.clone(), config.clone(), None)).await;
        assert_eq!(output(resumed), "2", "{death:?}: counted once, however often it was executed");
        assert_eq!(stage.host.state.lock().unwrap()["n"], json!(2), "{death:?}");
    }
}
