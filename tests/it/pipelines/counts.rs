//! How often a pipeline, or an agent, appends to its transcript before it ends, on both databases.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::BoxFuture;
use reveille::agent::{AgentRequest, AgentResponse, AgentStore, AppendError, TranscriptSlice};
use reveille::base::id::Scope;
use reveille::domain::run::RunState;
use reveille::domain::run::transcript::{LEDGER, TranscriptEntry, TranscriptMessage};
use reveille::executor::leased_transcript::LeasedTranscript;
use reveille::executor::{Executor, Job};
use reveille::store::Finish;
use serde_json::{Value, json};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::harness::{job, pipeline};
use crate::agent::harness::{AgentHarness, FakeTool, call, calls, says};
use crate::conformance::on_both;
use crate::conformance::world::{StoreHarness, end_of};

on_both!(
    appends_of_a_pipeline_are_one_before_each_effect_and_one_after_what_is_not_repeated,
    agent_of_three_turns_whose_calls_only_read_makes_two_appends_and_answers_with_its_end,
    transcript_of_a_first_start_is_not_read_before_it_was_appended_to,
);

/// The transcript of a run, and how often it was appended to.
struct CountingTranscript {
    transcript: LeasedTranscript,
    appends: AtomicUsize,
}

impl AgentStore for CountingTranscript {
    fn load(&self) -> BoxFuture<'_, Result<Vec<TranscriptEntry>, AppendError>> {
        self.transcript.load()
    }

    fn append(&self, entries: Vec<TranscriptEntry>) -> BoxFuture<'_, Result<(), AppendError>> {
        self.appends.fetch_add(1, Ordering::Relaxed);
        self.transcript.append(entries)
    }

    fn defer(&self, entries: Vec<TranscriptEntry>) {
        self.transcript.defer(entries);
    }
}

async fn appends_of_a_pipeline_are_one_before_each_effect_and_one_after_what_is_not_repeated(world: &StoreHarness) {
    let server = MockServer::start().await;
    Mock::given(wiremock::matchers::any()).respond_with(ResponseTemplate::new(200)).mount(&server).await;
    let http = |method: &str| json!({ "name": method, "http": { "method": method, "url": server.uri() } });
    let (filter, map) = (json!({ "name": "filter", "filter": "true" }), json!({ "name": "map", "map": "1" }));
    for (steps, appends, entries) in [
        (json!([filter, map]), 0, 3),
        (json!([filter, http("GET"), map]), 0, 5),
        (json!([filter, http("PUT"), map]), 1, 5),
        (json!([filter, http("POST"), map]), 2, 5),
        (json!([http("GET"), filter, http("PUT"), http("DELETE"), map]), 2, 9),
    ] {
        assert_eq!(counted(world, &steps).await, (appends, entries), "{steps}");
    }
}

/// How many appends a run of these steps makes before its end, and how many entries are stored after it.
async fn counted(world: &StoreHarness, steps: &Value) -> (usize, usize) {
    let started = world.started(&world.task(json!({ "interval": "1h" })).await).await;
    let transcript = LeasedTranscript::new(world.store.clone(), started.lease, &started.run, started.is_first);
    let store = Arc::new(CountingTranscript { transcript, appends: AtomicUsize::new(0) });
    let stage = AgentHarness::new(vec![], vec![]);
    let config = json!({ "steps": steps });
    let job = Job { run: started.run.clone(), ..job(&stage, store.clone(), config, None) };
    pipeline(&stage).execute(job).await.expect("it succeeds");
    let (entries, budget) = store.transcript.take_deferred();
    let end = Finish { entries, budget, ..end_of(&started, RunState::Succeeded) };
    assert!(world.store.finish_runs(&[end]).await.expect("recorded").is_empty());
    let stored = world.store.transcript(&Scope::Every, started.run.id, 0, 100).await.expect("a transcript");
    assert!(stored.iter().zip(0..).all(|(entry, seq)| entry.seq == seq), "{stored:?}");
    (store.appends.load(Ordering::Relaxed), stored.len())
}

/// The agent's clock stands still, so that no call is a slow one however long the database takes.
async fn agent_of_three_turns_whose_calls_only_read_makes_two_appends_and_answers_with_its_end(world: &StoreHarness) {
    let started = world.started(&world.task(json!({ "interval": "1h" })).await).await;
    let transcript = LeasedTranscript::new(world.store.clone(), started.lease, &started.run, started.is_first);
    let store = Arc::new(CountingTranscript { transcript, appends: AtomicUsize::new(0) });
    let asked = |id: &str| calls(vec![call(id, "look", json!({}))]);
    let stage = AgentHarness::new(vec![asked("1"), asked("2"), says("done")], vec![FakeTool::echo("look")]);
    let slice = Arc::new(TranscriptSlice::of_run(store.clone()));
    let request = AgentRequest { run_id: started.run.id, store: slice, ..stage.incoming("go") };
    let answered = stage.agent.handle_message(&request).await.expect("it succeeds");
    let AgentResponse::Answered(result) = answered else { panic!("no answer: {answered:?}") };
    assert_eq!((result.response.as_str(), store.appends.load(Ordering::Relaxed)), ("done", 2));
    let (entries, budget) = store.transcript.take_deferred();
    assert_eq!(entries.len(), 1, "the answer waits for the end: {entries:?}");
    let end = Finish { entries, budget, ..end_of(&started, RunState::Succeeded) };
    assert!(world.store.finish_runs(&[end]).await.expect("recorded").is_empty());
    let stored = world.store.transcript(&Scope::Every, started.run.id, 0, 100).await.expect("a transcript");
    assert_eq!(stored.len(), 7, "question, two calls with their results, and the answer: {stored:?}");
}

async fn transcript_of_a_first_start_is_not_read_before_it_was_appended_to(world: &StoreHarness) {
    let started = world.started(&world.task(json!({ "interval": "1h" })).await).await;
    let of = |is_empty| LeasedTranscript::new(world.store.clone(), started.lease, &started.run, is_empty);
    let entry = |seq: i64| {
        TranscriptEntry::new(
            seq,
            0,
            world.now(),
            TranscriptMessage::Step { name: "one".into(), index: None, ledger: LEDGER },
        )
    };
    assert!(started.is_first);
    let first = of(true);
    // as it cannot be while the lease stands: it shows whether the database is asked
    of(false).append(vec![entry(0)]).await.expect("appended");
    assert_eq!(first.load().await.expect("read").len(), 0);
    first.append(vec![entry(1)]).await.expect("appended");
    assert_eq!(first.load().await.expect("read").len(), 2);
    assert_eq!(of(false).load().await.expect("read").len(), 2);
}
