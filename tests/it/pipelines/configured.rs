//! Configured agents in steps, which no other agent may call: their fields, the consent that they need, and their time.

use std::sync::atomic::Ordering;

use reveille::base::template::untrusted::fenced;
use reveille::domain::approval::{Approval, ApprovalLevel, ApprovalStatus, CallOutcome, QuestionKind};
use reveille::domain::run::TranscriptMessage;
use reveille::domain::run::outcome::{RunError, RunOutcome};
use serde_json::{Value, json};

use super::harness::{answer, event, failure, faults, run};
use crate::agent::consent::override_of;
use crate::agent::harness::{AgentHarness, FakeTool, call, calls, passing, says};

/// The only step of a pipeline.
fn step(agent: Value) -> Value {
    json!({ "steps": [{ "name": "work", "agent": agent }] })
}

/// The agent that takes fields.
fn waiter(args: Value) -> Value {
    json!({ "name": "waiter", "instruction": "Book it.", "args": args })
}

/// The agent that a person has to agree to.
fn payer(instruction: &str) -> Value {
    step(json!({ "name": "payer", "instruction": instruction }))
}

/// The only question with which a run waits; it is stored, as the store would.
async fn asked(stage: &AgentHarness, config: &Value, data: Value) -> Approval {
    let ended = run(stage, config.clone(), Some(event(data))).await;
    let Ok(RunOutcome::Asks { asks, open, .. }) = ended else { panic!("nobody is asked: {ended:?}") };
    assert_eq!(open, []);
    let [(question, replaces)] = asks.try_into().expect("one question");
    assert_eq!(replaces, None);
    stage.store.approvals.lock().unwrap().push(question.clone());
    question
}

/// Answers the open question.
fn decide(stage: &AgentHarness, change: impl FnOnce(&mut Approval)) {
    let mut approvals = stage.store.approvals.lock().unwrap();
    change(approvals.iter_mut().find(|one| one.status == ApprovalStatus::Pending).expect("an open question"));
}

fn approve(approval: &mut Approval) {
    approval.status = ApprovalStatus::Approved;
    approval.decided_digest = Some(approval.digest.clone());
}

fn edit(arguments: Value) -> impl FnOnce(&mut Approval) {
    move |approval| {
        approval.status = ApprovalStatus::Edited;
        approval.decided_digest = Some(approval.proposal.digest(&approval.identity(), &arguments));
        approval.modifications = Some(arguments);
    }
}

/// The message that the agent has read.
fn message(stage: &AgentHarness) -> String {
    let requests = stage.model.requests.lock().unwrap();
    let TranscriptMessage::User { text, .. } = &requests[0].messages[1] else { panic!("no message") };
    text.clone()
}

#[test]
fn fields_of_the_agent_of_a_step_are_checked_when_the_task_is_saved() {
    let stage = AgentHarness::new(vec![], vec![]);
    let told = |agent: &Value| faults(&stage, step(agent.clone()));
    let sound = json!({ "email": "ann@example.org", "party": "{{ event.data.party }}" });
    assert_eq!(told(&waiter(sound)), []);
    for (agent, expected) in [
        (json!({ "name": "waiter", "instruction": "x" }), vec![("/email", "is missing"), ("/party", "is missing")]),
        (waiter(json!({ "email": "{{ event.data.email }}", "party": 13 })), vec![("/party", "the value")]),
        (waiter(json!({ "email": "ann", "party": 4 })), vec![("/email", "an address with an @")]),
        (waiter(json!({ "email": null, "party": 4 })), vec![("/email", "is missing")]),
        (waiter(json!({ "email": "{{ nobody }}", "party": 4 })), vec![("/email", "unknown name")]),
        (waiter(json!({ "emial": "ann@example.org", "party": 4 })), vec![("", "did you mean `email`?")]),
        (waiter(json!({ "task_instruction": "x" })), vec![("/task_instruction", "the step's `instruction`")]),
        (waiter(json!("four")), vec![("", "must be an object")]),
        (json!({ "instruction": "x", "args": {} }), vec![("", "goes with `name`")]),
    ] {
        let told = told(&agent);
        assert_eq!(told.len(), expected.len(), "{agent}\n{told:#?}");
        for ((pointer, message), (place, why)) in told.iter().zip(expected) {
            assert_eq!(*pointer, format!("/action/config/steps/0/agent/args{place}"), "{agent}");
            assert!(message.contains(why), "{agent}: {message}");
        }
    }
}

#[tokio::test]
async fn agent_of_a_step_reads_its_fields_and_their_defaults_behind_the_instruction() {
    let stage = AgentHarness::new(vec![says("Booked.")], vec![]);
    let args = json!({ "email": "ann@example.org", "party": "{{ event.data.party }}" });
    let agent = json!({ "name": "waiter", "instruction": "Book for {{ event.data.day }}", "args": args });
    let data = event(json!({ "party": "4", "day": "Monday" }));
    assert_eq!(answer(&stage, step(agent)["steps"].clone(), Some(data)).await, "Booked.");
    let (day, fields) =
        (fenced("value", "Monday"), fenced("fields", r#"{"email":"ann@example.org","party":4,"room":"hall"}"#));
    assert_eq!(message(&stage), format!("Book for {day}\n\nFields:\n{fields}"));
}

#[tokio::test]
async fn field_that_is_missing_or_invalid_when_the_step_runs_is_asked_for() {
    let config = step(waiter(json!({ "email": "{{ event.data.email }}", "party": "{{ event.data.party }}" })));
    let data = || json!({ "email": "", "party": 13 });
    let stage = AgentHarness::new(vec![says("Booked.")], vec![]);
    let question = asked(&stage, &config, data()).await;
    let proposal = &question.proposal;
    assert_eq!((proposal.kind, question.turn, question.call_id.as_str()), (QuestionKind::Input, 1_000, "work"));
    assert_eq!(proposal.summary, "waiter needs to know: email, party");
    assert_eq!(proposal.step.as_deref(), Some("work"));
    assert_eq!(proposal.arguments, json!({ "room": "hall", "task_instruction": "Book it." }));
    assert_eq!(proposal.parameters["required"], json!(["email", "party"]));

    // it is not asked twice
    let again = run(&stage, config.clone(), Some(event(data()))).await;
    let Ok(RunOutcome::Asks { asks, open, .. }) = again else { panic!("it goes on: {again:?}") };
    assert_eq!((asks.len(), open), (0, vec![question.open_question()]));
    assert_eq!(stage.model.asked(), 0);

    let whole = json!({ "email": "bob@example.org", "party": 5, "room": "hall", "task_instruction": "Book it." });
    decide(&stage, edit(whole));
    assert_eq!(answer(&stage, config["steps"].clone(), Some(event(data()))).await, "Booked.");
    assert!(message(&stage).contains(r#"{"email":"bob@example.org","party":5,"room":"hall"}"#), "{}", message(&stage));
    let outcome = stage.store.approvals.lock().unwrap()[0].outcome.clone();
    assert_eq!(outcome, Some(CallOutcome { is_error: false, text: "Booked.".into() }));

    // a field that the data lack is asked for as well
    let stage = AgentHarness::new(vec![], vec![]);
    let question = asked(&stage, &config, json!({ "party": 4 })).await;
    assert_eq!(question.proposal.arguments, json!({ "party": 4, "room": "hall", "task_instruction": "Book it." }));

    // an answer that is invalid after all is no reason to begin
    let stage = AgentHarness::new(vec![], vec![]);
    asked(&stage, &config, data()).await;
    decide(&stage, edit(json!({ "email": "bob", "party": 5, "task_instruction": "Book it." })));
    let ended = run(&stage, config.clone(), Some(event(data()))).await;
    let Err(RunError::Fail { fault }) = ended else { panic!("it went on: {ended:?}") };
    assert!(fault.message.contains("email: an address with an @"), "{}", fault.message);
}

#[tokio::test]
async fn agent_with_approval_works_in_a_step_once_a_person_has_agreed() {
    let (config, data) = (payer("Pay {{ event.data.sum }}"), || json!({ "sum": 5 }));
    for (change, read) in [(None, "Pay 5"), (Some(json!({ "task_instruction": "Pay 4" })), "Pay 4")] {
        let stage = AgentHarness::new(vec![says("Paid.")], vec![]);
        let question = asked(&stage, &config, data()).await;
        let proposal = &question.proposal;
        assert_eq!((proposal.kind, proposal.tool.as_str()), (QuestionKind::Approval, "payer"));
        assert_eq!(proposal.arguments, json!({ "task_instruction": "Pay 5" }));
        assert_eq!(stage.model.asked(), 0);
        match change {
            None => decide(&stage, approve),
            Some(arguments) => decide(&stage, edit(arguments)),
        }
        assert_eq!(answer(&stage, config["steps"].clone(), Some(event(data()))).await, "Paid.");
        assert_eq!(message(&stage), read);
        let outcome = stage.store.approvals.lock().unwrap()[0].outcome.clone();
        assert_eq!(outcome, Some(CallOutcome { is_error: false, text: "Paid.".into() }));
    }
    // a standing grant is an answer, too
    let stage = AgentHarness::new(vec![says("Paid.")], vec![]);
    stage.store.granted.lock().unwrap().push("payer".into());
    assert_eq!(answer(&stage, config["steps"].clone(), Some(event(data()))).await, "Paid.");
}

#[tokio::test]
async fn step_fails_where_a_person_refuses_its_agent_or_can_not_be_asked() {
    let config = payer("Pay 5");
    let stage = AgentHarness::new(vec![], vec![]);
    asked(&stage, &config, json!({})).await;
    decide(&stage, |approval| {
        approval.status = ApprovalStatus::Cancelled;
        approval.comment = Some("too much".into());
    });
    let ended = run(&stage, config.clone(), None).await;
    let Err(RunError::Fail { fault }) = ended else { panic!("it went on: {ended:?}") };
    assert_eq!(fault.code, "refused_by_a_person");
    assert!(fault.message.contains("too much"), "{}", fault.message);

    let stage = AgentHarness::new(vec![], vec![]);
    stage.store.refuses_questions.store(true, Ordering::Relaxed);
    assert_eq!(failure(run(&stage, config, None).await), "retry too_many_suspended None");

    let longest = AgentHarness::new(vec![], vec![]);
    asked(&longest, &payer(&"x".repeat(10_000)), json!({})).await;
    let beyond = run(&AgentHarness::new(vec![], vec![]), payer(&"x".repeat(10_001)), None).await;
    assert_eq!(failure(beyond), "fail invalid_parameters");
}

#[tokio::test]
async fn agent_of_a_step_that_has_begun_goes_on_whatever_rules_come() {
    let reads = FakeTool::echo("pay").with(|tool| tool.requires_confirmation = true);
    let stage = AgentHarness::new(vec![calls(vec![call("c1", "pay", json!({}))]), says("Done.")], vec![reads]);
    let config = step(json!({ "name": "librarian", "instruction": "Look it up." }));
    let question = asked(&stage, &config, json!({})).await;
    assert_eq!(question.proposal.tool, "pay");
    *stage.store.overrides.lock().unwrap() = vec![override_of("librarian", ApprovalLevel::Confirm, None)];
    decide(&stage, approve);
    assert_eq!(answer(&stage, config["steps"].clone(), Some(event(json!({})))).await, "Done.");
}

#[tokio::test]
async fn nobody_is_asked_about_an_agent_with_settings_that_the_question_would_not_show() {
    let stage = AgentHarness::new(vec![], vec![]);
    let changed = |name: &str| step(json!({ "name": name, "instruction": "Go on.", "system_prompt": "Obey." }));
    let told = faults(&stage, changed("payer"));
    assert_eq!(told.len(), 1, "{told:?}");
    assert_eq!(told[0].0, "/action/config/steps/0/agent/system_prompt");
    assert_eq!(faults(&stage, changed("librarian")), [], "nobody has to agree to it");
    *stage.store.overrides.lock().unwrap() = vec![override_of("librarian", ApprovalLevel::Confirm, None)];
    assert_eq!(failure(run(&stage, changed("librarian"), None).await), "fail invalid_parameters");
}

#[tokio::test]
async fn rules_of_a_task_may_be_for_agents_that_steps_alone_may_call() {
    let stage = AgentHarness::new(vec![], vec![]);
    let mut config = step(waiter(json!({ "email": "ann@example.org", "party": 4 })));
    config["approvals"] = json!({ "waiter": { "gate": "confirm" } });
    assert_eq!(faults(&stage, config.clone()), []);
    assert_eq!(asked(&stage, &config, json!({})).await.proposal.kind, QuestionKind::Approval);
    config["approvals"] = json!({ "waitr": { "gate": "confirm" } });
    let told = faults(&stage, config);
    assert_eq!(
        told,
        [("/action/config/approvals/waitr".into(), "unknown tool `waitr`; did you mean `waiter`?".into())]
    );
}

#[tokio::test]
async fn rule_for_the_name_of_an_agent_holds_for_its_steps() {
    let stage = AgentHarness::new(vec![], vec![]);
    *stage.store.overrides.lock().unwrap() = vec![override_of("librarian", ApprovalLevel::Confirm, None)];
    let config = step(json!({ "name": "librarian", "instruction": "Look it up." }));
    let question = asked(&stage, &config, json!({})).await;
    assert_eq!((question.proposal.kind, stage.model.asked()), (QuestionKind::Approval, 0));
}

#[tokio::test]
async fn agent_of_a_step_has_the_time_of_its_entry_unless_the_step_says_another() {
    let args = json!({ "email": "ann@example.org", "party": 4 });
    for (own, limit) in [(json!(null), 25_000), (json!(20), 20_000)] {
        let stage = AgentHarness::new(vec![], vec![]);
        let mut config = step(waiter(args.clone()));
        config["steps"][0]["timeout_seconds"] = own;
        let failed = passing(&stage.clock, run(&stage, config, None)).await;
        assert!(matches!(failed, Err(RunError::Fail { .. } | RunError::Retry { .. })), "{failed:?}");
        assert!((limit..limit + 500).contains(&stage.elapsed()), "{} of {limit}", stage.elapsed());
    }
}
