//! The gate before the models of steps: it is told which messages have come to it before, in this attempt or in an
//! earlier one.

use std::sync::{Arc, Mutex};

use futures::FutureExt;
use futures::future::BoxFuture;
use reveille::agent::gate::{Gate, GateCheck, GateMessage, GateRefusal};
use reveille::agent::{Agent, Settings};
use reveille::domain::approval::{Approval, ApprovalStatus};
use reveille::domain::run::Run;
use reveille::domain::run::outcome::RunOutcome;
use reveille::executor::{Executor, Job};
use reveille::ports::llm::{LlmError, ModelAnswer};
use serde_json::{Value, json};

use super::harness::{answer, job, pipeline, run};
use crate::agent::harness::{AgentHarness, says};

/// Lets every message through, and writes down whether it is said to have come before.
struct Doorkeeper(Arc<Mutex<Vec<bool>>>);

impl GateCheck for Doorkeeper {
    fn name(&self) -> &'static str {
        "doorkeeper"
    }

    fn check<'a>(&'a self, message: GateMessage<'a>) -> BoxFuture<'a, Result<(), GateRefusal>> {
        self.0.lock().unwrap().push(message.is_repeated);
        Box::pin(std::future::ready(Ok(())))
    }
}

/// A stage with these answers of the model, each to one try, and of each message that has come to the gate whether it
/// had before.
fn gated(answers: Vec<Result<ModelAnswer, LlmError>>) -> (AgentHarness, Arc<Mutex<Vec<bool>>>) {
    let settings = Settings { llm_max_retries: 0, ..Settings::default() };
    let stage = AgentHarness::with_settings(answers, vec![], settings);
    let repeated = Arc::<Mutex<Vec<bool>>>::default();
    let gate = Gate::new(vec![Arc::new(Doorkeeper(Arc::clone(&repeated)))]);
    let agent = Agent { gate, ..stage.agent.clone() };
    (AgentHarness { agent, ..stage }, repeated)
}

#[tokio::test]
async fn message_of_a_step_that_is_tried_again_has_come_before() {
    let busy = Err(LlmError::Transient { retry_after: None, message: "busy".into() });
    let (stage, repeated) = gated(vec![busy, says("short"), says("found")]);
    let steps = json!([
        { "name": "short", "llm": { "prompt": "Sum it up." }, "retry": { "count": 1, "backoff_seconds": 0 } },
        { "name": "look", "agent": { "instruction": "Look it up." } },
    ]);
    assert_eq!(answer(&stage, steps, None).await, "found");
    assert_eq!(*repeated.lock().unwrap(), [false, true, false]);
}

/// Whether the messages of this step have come before: in an attempt that dies while its model is asked, and in the
/// next one.
async fn over_a_crash(step: Value) -> Vec<bool> {
    let (stage, repeated) = gated(vec![]);
    let (pipeline, config) = (pipeline(&stage), json!({ "steps": [step] }));
    let mut dies = pipeline.execute(job(&stage, stage.store.clone(), config.clone(), None));
    while stage.model.asked() == 0 {
        assert!((&mut dies).now_or_never().is_none(), "nobody answers it");
        tokio::task::yield_now().await;
    }
    drop(dies);
    stage.model.answers.lock().unwrap().push_back(says("done"));
    let again = job(&stage, stage.store.clone(), config, None);
    let run = Run { attempt: 2, crashes: 1, ..Run::clone(&again.run) };
    let again = Job { run: Arc::new(run), is_first: false, ..again };
    pipeline.execute(again).await.expect("it succeeds");
    repeated.lock().unwrap().clone()
}

#[tokio::test]
async fn message_of_a_step_that_a_crash_has_met_has_come_before() {
    for step in [
        json!({ "name": "short", "llm": { "prompt": "Sum it up." } }),
        json!({ "name": "look", "agent": { "instruction": "Look it up." } }),
    ] {
        assert_eq!(over_a_crash(step.clone()).await, [false, true], "{step}");
    }
}

/// The only question with which a run waits, as it stands once it is approved.
fn approved(ended: RunOutcome) -> Approval {
    let RunOutcome::Asks { asks, .. } = ended else { panic!("nobody is asked: {ended:?}") };
    let [(question, _)] = asks.try_into().expect("one question");
    Approval { status: ApprovalStatus::Approved, decided_digest: Some(question.digest.clone()), ..question }
}

#[tokio::test]
async fn message_of_an_agent_about_which_a_person_was_asked_first_comes_for_the_first_time() {
    let (stage, repeated) = gated(vec![says("Paid.")]);
    let config = json!({ "steps": [{ "name": "work", "agent": { "name": "payer", "instruction": "Pay." } }] });
    let question = approved(run(&stage, config.clone(), None).await.expect("a question"));
    assert_eq!(*repeated.lock().unwrap(), [false; 0], "the person comes before the gate");
    stage.store.approvals.lock().unwrap().push(question);
    assert_eq!(answer(&stage, config["steps"].clone(), None).await, "Paid.");
    assert_eq!(*repeated.lock().unwrap(), [false]);
}
