//! A run that is followed at several instances: each event is told once, in order, wherever its client comes back.

use chrono::TimeDelta;
use reveille::base::id::new_id;
use reveille::domain::approval::{Approval, ProposalIdentity};
use reveille::domain::run::outcome::RunFault;
use reveille::domain::run::stream::StreamEvent;
use reveille::domain::run::{RunFinish, RunState, TranscriptMessage};
use reveille::store::{Finish, Lease, Park, RequeuedRun};
use serde_json::{Value, json};
use uuid::Uuid;

use super::{Client, StreamSoFar, answer, append, asks_for_time, names, started, time_result};
use crate::api::service::Api;
use crate::approvals::harness::note;
use crate::support::world::claim_ready;

/// The run waits for a person; answers the question.
async fn ask(api: &Api, run: Uuid, lease: Lease) -> Approval {
    let (now, batch) = (api.clock.now(), new_id(api.clock.now()));
    let identity = ProposalIdentity { tenant: "ann", run_id: run, turn: 1, call_id: "call_1" };
    let task = api.store.get_run(&reveille::base::id::Scope::Every, run).await.unwrap().task_id;
    let question = Approval::asked((new_id(now), batch), identity, task, note(), now);
    let park = Park::Approval { wake_at: question.expires_at, asks: vec![(question.clone(), None)], open: vec![] };
    let end = Finish { park: Some(park), ..Finish::of(lease, task, RunState::PendingApproval) };
    assert_eq!(api.store.finish_runs(&[end]).await.unwrap(), [] as [Uuid; 0]);
    question
}

/// The run is executed at this instance now.
async fn start(api: &Api, run: Uuid) -> Lease {
    let now = api.clock.now();
    let claim = claim_ready(&api.store, Uuid::from_u128(2), now, 1).await.pop().expect("the run");
    assert_eq!(claim.lease.run_id, run);
    assert_eq!(api.store.start_runs(&[claim.lease], now + TimeDelta::minutes(1)).await.unwrap().started.len(), 1);
    claim.lease
}

/// The events that are told once, each as its data.
fn told_once(told: &[StreamSoFar]) -> Vec<Value> {
    let passing = ["", "session", "message_start", "message_chunk", "execution_end"];
    told.iter().filter(|told| !passing.contains(&told.name.as_str())).map(|told| told.data.clone()).collect()
}

#[tokio::test]
async fn client_cut_off_behind_any_event_goes_on_at_another_instance_with_the_next() {
    let api = Api::on_postgres().await;
    let beside = api.beside().await;
    let (run, lease) = started(&api).await;
    let mut client = Client::follow(&api, run, None).await;
    let mut told = client.until("state_change").await;
    for event in [
        StreamEvent::MessageStart { turn: 1 },
        StreamEvent::MessageChunk { turn: 1, text: "One ".into() },
        StreamEvent::MessageEnd { turn: 1, text: "One moment".into(), model_call: None },
        StreamEvent::ToolCallStart {
            turn: 1,
            tool: "current_time".into(),
            args: json!({}),
            id: "call_1".into(),
            agent: None,
        },
    ] {
        api.hub.publish(run, || event);
    }
    told.extend(client.until("tool_call_start").await);
    append(&api, lease, 0, 1, asks_for_time()).await;
    let question = ask(&api, run, lease).await;
    let decision = json!({ "decision": "approve", "digest": question.digest });
    beside.admin("POST", &format!("/v1/approvals/{}/decision", question.id), Some(decision)).await.expect(200);
    // the other instance goes on with it
    let lease = start(&beside, run).await;
    append(&beside, lease, 1, 1, time_result()).await;
    append(&beside, lease, 2, 2, answer()).await;
    let verdict = TranscriptMessage::verdict(vec!["U-0001: not certain".into()], vec![]);
    append(&beside, lease, 3, 2, verdict).await;
    let output = Some("Three mails".into());
    let end = Finish { output, finish: Some(RunFinish::MaxTurns), ..Finish::of(lease, None, RunState::Succeeded) };
    assert_eq!(beside.store.finish_runs(&[end]).await.unwrap(), [] as [Uuid; 0]);
    told.extend(client.until("execution_end").await);
    assert_eq!(client.next().await, None);

    let story: Vec<&str> = names(&told).into_iter().filter(|name| !name.is_empty()).collect();
    let expected = [
        "session",
        "state_change",
        "message_start",
        "message_chunk",
        "message_end",
        "tool_call_start",
        "state_change",
        "approval_required",
        "state_change",
        "state_change",
        "tool_result",
        "message_start",
        "message_end",
        "tool_warning",
        "state_change",
        "execution_end",
    ];
    assert_eq!(story, expected);
    let states: Vec<&Value> =
        told.iter().filter(|told| told.name == "state_change").map(|told| &told.data["state"]).collect();
    assert_eq!(states, ["running", "pending_approval", "queued", "running", "succeeded"]);
    let asked = told.iter().find(|told| told.name == "approval_required").unwrap();
    assert_eq!(
        asked.data,
        json!({ "type": "approval_required", "approval_id": question.id, "turn": 1, "tool": "send_note",
            "id": "call_1", "summary": "Send a note to the room lobby" })
    );
    assert_eq!(told.last().unwrap().data["finish"], "max_turns");
    assert_eq!(api.admin("GET", &format!("/v1/runs/{run}"), None).await.expect(200)["finish"], "max_turns");

    for cut in 0..told.len() {
        let seen = told[..=cut].iter().rev().map(|told| told.id.as_str()).find(|id| !id.is_empty());
        let mut back = Client::follow(&beside, run, seen).await;
        let rest = back.until("execution_end").await;
        let known = seen.map_or(0, |_| told_once(&told[..=cut]).len());
        // a client that never saw an id is told all that happened, and the last state
        let expected = match seen {
            Some(_) => told_once(&told)[known..].to_vec(),
            None => {
                let is_last_state = |data: &Value| data["state"].is_null() || data["state"] == "succeeded";
                told_once(&told).into_iter().filter(is_last_state).collect()
            }
        };
        assert_eq!(told_once(&rest), expected, "behind event {cut}, {seen:?}");
    }
}

#[tokio::test]
async fn error_of_each_attempt_is_told_once_at_every_instance() {
    let api = Api::on_postgres().await;
    let beside = api.beside().await;
    let (run, lease) = started(&api).await;
    let mut clients = [Client::follow(&api, run, None).await, Client::follow(&beside, run, None).await];
    let mut told = [vec![], vec![]];
    for (client, told) in clients.iter_mut().zip(&mut told) {
        told.extend(client.until("state_change").await);
    }
    let fault = || Some(RunFault::new("llm_timeout", "the model did not answer"));
    let again = RequeuedRun { run_at: api.clock.now(), uses_attempt: true };
    let end = Finish { error: fault(), again: Some(again), ..Finish::of(lease, None, RunState::Queued) };
    api.store.finish_runs(&[end]).await.unwrap();
    api.hub
        .publish(run, || StreamEvent::Error { code: "llm_timeout".into(), message: "the model did not answer".into() });
    api.hub.publish(run, || StreamEvent::StateChange { state: "queued".into(), reason: None });
    for (client, told) in clients.iter_mut().zip(&mut told) {
        told.extend(client.until("error").await);
    }
    let lease = start(&beside, run).await;
    let end = Finish { error: fault(), ..Finish::of(lease, None, RunState::Failed) };
    beside.store.finish_runs(&[end]).await.unwrap();
    for (client, told) in clients.iter_mut().zip(&mut told) {
        told.extend(client.until("execution_end").await);
        let shown: Vec<&str> =
            told.iter().map(|told| told.data["state"].as_str().unwrap_or(told.name.as_str())).collect();
        let expected = ["session", "running", "queued", "error", "running", "failed", "error", "execution_end"];
        assert_eq!(shown, expected);
    }
}
