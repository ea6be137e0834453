//! Decisions over the API: bound to what was shown, held against the schema, at most once, and nobody else's.

use reveille::agent::configured::agent_tool::AgentTool;
use reveille::base::id::Scope;
use reveille::domain::approval::{ApprovalChoice, CallOutcome, Proposal, QuestionKind};
use reveille::domain::run::RunState;
use serde_json::{Value, json};

use super::harness::{TIME, ask, note, note_of};
use super::servers::survey;
use crate::api::service::{Api, on_both, table_booker};

on_both! {
    approval_is_listed_read_and_approved_and_its_run_goes_on
    questions_are_listed_by_their_kind
    edit_runs_as_edited_and_is_held_against_the_schema
    edited_call_of_an_agent_is_held_against_its_validators
    answer_to_an_agent_whose_fields_have_changed_is_taken_and_no_rule_of_today_stands_in_its_way
    second_decision_is_told_how_things_stand
    decision_about_something_else_changes_nothing
    decision_that_comes_too_late_is_a_no
    of_two_decisions_at_once_one_wins
    where_two_have_to_agree_one_vote_leaves_it_open
    repetition_with_a_key_is_answered_and_decides_nothing
    every_decision_is_in_the_record
    run_says_why_it_waits_and_why_people_were_asked
}

fn decision(approval: &reveille::domain::approval::Approval, word: &str) -> Value {
    json!({ "decision": word, "digest": approval.digest })
}

fn decision_url(approval: &reveille::domain::approval::Approval) -> String {
    format!("/v1/approvals/{}/decision", approval.id)
}

async fn approval_is_listed_read_and_approved_and_its_run_goes_on(api: Api) {
    let asked = ask(&api, "ann", vec![note()]).await;
    let approval = &asked.approvals[0];
    ask(&api, "bob", vec![note()]).await;
    let token = api.token("ann", &["approvals:read", "approvals:decide", "runs:read"]).await;
    let list = api.ask("GET", "/v1/approvals?status=pending", Some(&token), None).await.expect(200);
    let shown = json!({
        "id": approval.id, "kind": "approval", "batch_id": asked.batch, "run_id": asked.run, "turn": 1, "task_id": asked.task,
        "tenant_id": "ann", "digest": approval.digest, "agent_name": "send_note",
        "action_summary": "Send a note to the room lobby", "description": "Send a note to a room.",
        "details": approval.proposal.arguments, "parameters": approval.proposal.parameters,
        "category": "side_effect", "consequence": "medium", "reasons": approval.proposal.reasons,
        "server": null, "answer": null,
        "options": ["approve", "edit", "cancel"], "allow_modification": true, "source": "trigger",
        "delegation_chain": [], "step": null, "status": "pending", "created_at": "2026-11-21T00:00:00Z",
        "expires_at": "2026-11-21T00:30:00Z", "decided_at": null, "decided_by": null, "decided_via": null,
        "comment": null, "modifications": null, "outcome": null, "precheck": null, "required_approvers": 1, "votes": [], "agreed": 0,
        "hold_until": null,
    });
    assert_eq!(list, json!({ "items": [shown], "next_cursor": null }));
    let path = format!("/v1/approvals/{}", approval.id);
    assert_eq!(api.ask("GET", &path, Some(&token), None).await.expect(200), shown);

    api.advance(60);
    let mut body = decision(approval, "approve");
    body["comment"] = json!("go ahead");
    let done = api.ask("POST", &decision_url(approval), Some(&token), Some(body)).await.expect(200);
    assert_eq!(
        json!([done["status"], done["decided_via"], done["comment"], done["decided_at"], done["grant_id"]]),
        json!(["approved", "api", "go ahead", "2026-11-21T00:01:00Z", null])
    );
    assert!(done["decided_by"].as_str().unwrap().starts_with("token:"), "{done}");
    assert_eq!(asked.run_state(&api).await, RunState::Queued, "nothing is open: the loop goes on");

    let outcome = CallOutcome { is_error: false, text: "sent".into() };
    api.store.note_outcome(approval.id, &outcome).await.unwrap();
    let after = api.ask("GET", &path, Some(&token), None).await.expect(200);
    assert_eq!(after["outcome"], json!({ "is_error": false, "text": "sent" }));
    let run = api.ask("GET", &format!("/v1/runs/{}", asked.run), Some(&token), None).await.expect(200);
    assert_eq!(
        run["approvals"],
        json!([{ "id": approval.id, "kind": "approval", "status": "approved", "tool": "send_note" }])
    );
    let pending = api.ask("GET", "/v1/approvals?status=pending", Some(&token), None).await.expect(200);
    assert_eq!(pending["items"], json!([]));
}

async fn questions_are_listed_by_their_kind(api: Api) {
    let (call, input) = (ask(&api, "ann", vec![note()]).await, ask(&api, "ann", vec![survey()]).await);
    ask(&api, "bob", vec![survey()]).await;
    let token = api.token("ann", &["approvals:read"]).await;
    for (kind, asked) in [("approval", &call), ("input", &input)] {
        for status in ["", "&status=pending"] {
            let path = format!("/v1/approvals?kind={kind}{status}");
            let list = api.ask("GET", &path, Some(&token), None).await.expect(200);
            let ids: Vec<&Value> = list["items"].as_array().unwrap().iter().map(|item| &item["id"]).collect();
            assert_eq!(ids, [&json!(asked.approvals[0].id)], "{path}");
        }
    }
    let problem = api.ask("GET", "/v1/approvals?kind=question", Some(&token), None).await.expect(400);
    assert_eq!(problem["errors"][0]["pointer"], "/kind");
}

async fn edit_runs_as_edited_and_is_held_against_the_schema(api: Api) {
    let asked = ask(&api, "ann", vec![note_of(json!({ "room": "lobby", "text": "one", "loud": true }))]).await;
    let approval = &asked.approvals[0];
    let edit = async |modifications: Value| {
        let mut body = decision(approval, "edit");
        body["modifications"] = modifications;
        api.admin("POST", &decision_url(approval), Some(body)).await
    };
    let wrong = edit(json!({ "text": "x".repeat(31), "copies": 0, "room": null, "who": "ann" })).await.expect(422);
    let mut pointers: Vec<&str> =
        wrong["errors"].as_array().unwrap().iter().map(|error| error["pointer"].as_str().unwrap()).collect();
    pointers.sort();
    assert_eq!(pointers, ["/modifications/copies", "/modifications/room", "/modifications/text", "/modifications/who"]);
    assert_eq!(asked.statuses(&api).await, ["pending"]);

    let done = edit(json!({ "text": "two", "loud": null })).await.expect(200);
    assert_eq!(done["status"], "edited");
    assert_eq!(done["modifications"], json!({ "room": "lobby", "text": "two" }));
    let stored = asked.only(&api).await;
    let digest = stored.proposal.digest(&stored.identity(), &json!({ "room": "lobby", "text": "two" }));
    assert_eq!(stored.decided_digest, Some(digest));

    let mut fixed = note();
    fixed.allow_modification = false;
    let asked = ask(&api, "ann", vec![fixed]).await;
    let mut body = decision(&asked.approvals[0], "edit");
    body["modifications"] = json!({ "text": "two" });
    let refused = api.admin("POST", &decision_url(&asked.approvals[0]), Some(body)).await.expect(422);
    assert_eq!(
        refused["errors"],
        json!([{ "pointer": "/decision",
            "message": "the arguments of this call can't be changed: approve it as it is, or reject it" }])
    );
    assert_eq!(asked.statuses(&api).await, ["pending"]);
}

/// A question about a call of the agent that is a tool here.
fn of_agent(arguments: Value, parameters: Value) -> Proposal {
    let version = AgentTool::all(&[table_booker()])[0].schema_version().to_owned();
    let parameters = json!({
        "type": "object", "properties": parameters, "required": ["party"], "additionalProperties": false,
    });
    Proposal { tool: "BookTable".into(), version, arguments, parameters, ..note() }
}

async fn edited_call_of_an_agent_is_held_against_its_validators(api: Api) {
    let arguments = json!({ "party": 4, "email": "ann@example.org" });
    let parameters = json!({ "party": { "type": "integer" }, "email": { "type": "string" } });
    let asked = ask(&api, "ann", vec![of_agent(arguments, parameters)]).await;
    let approval = &asked.approvals[0];
    let token = api.token("ann", &["approvals:decide"]).await;
    let edit = async |changes: Value| {
        let mut body = decision(approval, "edit");
        body["modifications"] = changes;
        api.ask("POST", &decision_url(approval), Some(&token), Some(body)).await
    };
    let refused = edit(json!({ "email": "ann" })).await.expect(422);
    let fault = &refused["errors"][0];
    assert_eq!(
        (&fault["pointer"], &fault["message"]),
        (&json!("/modifications/email"), &json!("an address with an @"))
    );
    assert_eq!(asked.statuses(&api).await, ["pending"]);
    edit(json!({ "email": "bob@example.org" })).await.expect(200);
    assert_eq!(asked.statuses(&api).await, ["edited"]);
}

async fn answer_to_an_agent_whose_fields_have_changed_is_taken_and_no_rule_of_today_stands_in_its_way(api: Api) {
    let now = Proposal {
        kind: QuestionKind::Input,
        options: vec![ApprovalChoice::Edit, ApprovalChoice::Cancel],
        ..of_agent(json!({}), json!({ "party": { "type": "integer" } }))
    };
    let token = api.token("ann", &["runs:input"]).await;
    for (question, status) in [(now.clone(), 422), (Proposal { version: "of old".into(), ..now }, 200)] {
        let asked = ask(&api, "ann", vec![question]).await;
        let path = format!("/v1/runs/{}/input", asked.run);
        let answer =
            api.ask("POST", &path, Some(&token), Some(json!({ "fields": { "party": 4 } }))).await.expect(status);
        let pointer = &answer["errors"][0]["pointer"];
        assert_eq!(pointer.as_str(), (status == 422).then_some("/fields/email"), "{answer}");
    }
}

async fn second_decision_is_told_how_things_stand(api: Api) {
    let asked = ask(&api, "ann", vec![note()]).await;
    let approval = &asked.approvals[0];
    api.admin("POST", &decision_url(approval), Some(decision(approval, "cancel"))).await.expect(200);
    let second = api.admin("POST", &decision_url(approval), Some(decision(approval, "approve"))).await;
    assert_eq!(second.header("content-type"), "application/problem+json");
    let second = second.expect(409);
    assert_eq!(second["type"], "urn:reveille:problem:conflict");
    assert_eq!(second["detail"], "the approval is cancelled already");
    assert_eq!(second["approval"]["status"], "cancelled");
    assert_eq!(second["approval"]["decided_by"], "token:admin");
    assert_eq!(asked.statuses(&api).await, ["cancelled"]);
}

async fn decision_about_something_else_changes_nothing(api: Api) {
    let asked = ask(&api, "ann", vec![note()]).await;
    let approval = &asked.approvals[0];
    let other = json!({ "decision": "approve", "digest": "f".repeat(64) });
    let refused = api.admin("POST", &decision_url(approval), Some(other)).await.expect(409);
    assert_eq!(refused["approval"]["digest"], approval.digest);
    for (body, pointer) in [
        (json!({}), "/decision"),
        (json!({ "decision": "approve" }), "/digest"),
        (json!({ "decision": "maybe", "digest": approval.digest }), "/decision"),
        (json!({ "decision": "edit", "digest": approval.digest }), "/modifications"),
        (json!({ "decision": "approve", "digest": approval.digest, "modifications": {} }), "/modifications"),
        (json!({ "decision": "approve", "digest": approval.digest, "comment": "x".repeat(2001) }), "/comment"),
        (json!({ "decision": "approve", "digest": approval.digest, "digst": 1 }), "/digst"),
    ] {
        let problem = api.admin("POST", &decision_url(approval), Some(body)).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], pointer);
    }
    // another tenant's token finds nothing, whatever it may do
    let bob = api.token("bob", &["*"]).await;
    api.ask("POST", &decision_url(approval), Some(&bob), Some(decision(approval, "approve"))).await.expect(404);
    assert_eq!(asked.statuses(&api).await, ["pending"]);
}

async fn decision_that_comes_too_late_is_a_no(api: Api) {
    let asked = ask(&api, "ann", vec![note()]).await;
    let approval = &asked.approvals[0];
    api.clock.advance(TIME);
    let refused = api.admin("POST", &decision_url(approval), Some(decision(approval, "approve"))).await.expect(409);
    assert_eq!(refused["detail"], "the time to answer is over; no answer is a no");
    assert_eq!(asked.only(&api).await.decided_at, None);
}

async fn of_two_decisions_at_once_one_wins(api: Api) {
    let asked = ask(&api, "ann", vec![note()]).await;
    let approval = &asked.approvals[0];
    let place = decision_url(approval);
    let answers = futures::future::join_all((0..20).map(|n| {
        let word = if n % 2 == 0 { "approve" } else { "cancel" };
        api.admin("POST", &place, Some(decision(approval, word)))
    }))
    .await;
    let mut codes: Vec<u16> = answers.iter().map(|answer| answer.status.as_u16()).collect();
    codes.sort();
    assert_eq!((codes[0], codes[1..].iter().all(|code| *code == 409)), (200, true), "{codes:?}");
    let won = answers.into_iter().find(|answer| answer.status == 200).unwrap().body["status"].clone();
    assert_eq!(asked.statuses(&api).await, [won.as_str().unwrap()]);
}

async fn where_two_have_to_agree_one_vote_leaves_it_open(api: Api) {
    let mut proposal = note();
    proposal.approvers = 2;
    let asked = ask(&api, "ann", vec![proposal]).await;
    let approval = &asked.approvals[0];
    let own = api.token("ann", &["*"]).await;
    let draft = json!({ "name": "the second one", "scopes": ["*"] });
    let minted = api.ask("POST", "/v1/tokens", Some(&own), Some(draft.clone())).await.expect(201);
    let minted = minted["token"].as_str().unwrap();
    let admins = api.admin("POST", "/v1/tokens", Some(draft)).await.expect(201);
    let vote = async |token: &str| {
        api.ask("POST", &decision_url(approval), Some(token), Some(decision(approval, "approve"))).await.expect(200)
    };
    for (token, votes) in [(own.as_str(), 1), (own.as_str(), 1), (minted, 2)] {
        let counted = vote(token).await;
        assert_eq!(json!([counted["status"], counted["agreed"]]), json!(["pending", 1]));
        assert_eq!(counted["votes"].as_array().unwrap().len(), votes);
    }
    // nor is the tenant's link another person
    asked.send(&api, &[("do", "approve:0")]).await.expect(303);
    assert_eq!((asked.statuses(&api).await, asked.only(&api).await.agreed_count()), (vec!["pending"], 1));
    assert_eq!(vote(admins["token"].as_str().unwrap()).await["status"], "approved");
}

async fn repetition_with_a_key_is_answered_and_decides_nothing(api: Api) {
    let asked = ask(&api, "ann", vec![note()]).await;
    let approval = &asked.approvals[0];
    let token = api.token("ann", &["approvals:decide"]).await;
    let send = async || {
        let body = decision(approval, "approve");
        api.ask_with("POST", &decision_url(approval), Some(&token), Some(body), &[("idempotency-key", "once")]).await
    };
    let first = send().await.expect(200);
    let again = send().await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.expect(200), first);
}

async fn every_decision_is_in_the_record(api: Api) {
    let asked = ask(&api, "ann", vec![note(), note()]).await;
    for (approval, word) in asked.approvals.iter().zip(["approve", "cancel"]) {
        api.admin("POST", &decision_url(approval), Some(decision(approval, word))).await.expect(200);
    }
    let token = api.token("ann", &["audit:read"]).await;
    let path = format!("/v1/audit?subject_id={}", asked.approvals[0].id);
    let entries = api.ask("GET", &path, Some(&token), None).await.expect(200);
    let lines: Vec<Value> = entries["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|entry| json!([entry["action"], entry["actor"], entry["via"], entry["body"]["digest"]]))
        .collect();
    let digest = &asked.approvals[0].digest;
    assert_eq!(
        lines,
        [
            json!(["approval.approved", "token:admin", "api", digest]),
            json!(["approval.asked", "service", "service", digest]),
        ]
    );
    let cancelled = api.ask("GET", "/v1/audit?action=approval.cancelled", Some(&token), None).await.expect(200);
    assert_eq!(cancelled["items"][0]["subject_id"], json!(asked.approvals[1].id));
    let bob = api.token("bob", &["audit:read"]).await;
    assert_eq!(api.ask("GET", &path, Some(&bob), None).await.expect(200)["items"], json!([]));
}

async fn run_says_why_it_waits_and_why_people_were_asked(api: Api) {
    let asked = ask(&api, "ann", vec![note()]).await;
    let path = format!("/v1/runs/{}/explain", asked.run);
    let waits = api.admin("GET", &path, None).await.expect(200);
    assert_eq!(
        waits,
        json!({
            "run_id": asked.run, "state": "pending_approval",
            "sentences": [
                "Somebody asked for it at 2026-11-21T00:00:00Z.",
                "It started at its instant.",
                "It waits for people to decide on 1 of its calls, until 2026-11-21T00:30:00Z.",
            ],
            "needs": ["People decide, or the time of what they were asked is over."],
            "calls": [{
                "turn": 1, "call_id": "call_0", "tool": "send_note", "approval_id": asked.approvals[0].id,
                "status": "pending",
                "sentence": "A person has to agree, until 2026-11-21T00:30:00Z. It has no result yet.",
                "reasons": ["the matrix says confirm for side_effect of medium consequence"],
            }],
        })
    );
    api.admin("POST", &decision_url(&asked.approvals[0]), Some(decision(&asked.approvals[0], "cancel")))
        .await
        .expect(200);
    let goes_on = api.admin("GET", &path, None).await.expect(200);
    assert_eq!(goes_on["calls"][0]["sentence"], "token:admin rejected it. It has no result yet.");
    let run = api.store.get_run(&Scope::Every, asked.run).await.unwrap();
    assert_eq!(run.state, RunState::Queued);
}
