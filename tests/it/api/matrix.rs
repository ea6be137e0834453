//! Every operation × who asks: no token, a wrong, revoked or expired one, one without the permission, another tenant.
//!
//! The table is held against the reference: an operation without a line here fails.

use std::collections::BTreeMap;

use chrono::TimeDelta;
use reveille::base::id::new_id;
use reveille::base::token::{Permission, TokenKind, TokenText};
use reveille::domain::notification::{MessageKind, NewDelivery, dedupe};
use reveille::store::{DeliveryFilter, Grant};
use serde_json::{Value, json};

use crate::approvals::harness::{ask, note};

use super::service::{Api, daily, daily_of, on_both, only};

/// Permission of an operation, and the answer to another tenant.
struct Line {
    /// `None`: anybody may.
    permission: Option<Permission>,
    /// Body to send; `{…}` of the path comes from the things of the tenant ann.
    body: Option<Value>,
    /// How another tenant asks for ann's things, and what it is told.
    other: Other,
    /// Status of ann's answer.
    done: u16,
}

enum Other {
    /// At the same address: 404.
    Here,
    /// With `?tenant_id=ann`: 404.
    InQuery,
    /// With `"tenant_id": "ann"` in the body: 422 at that place.
    InBody,
    /// There is nothing of ann's to ask for.
    Nothing,
}

fn line(permission: Permission, other: Other, done: u16, body: Option<Value>) -> Line {
    Line { permission: Some(permission), body, other, done }
}

fn table() -> BTreeMap<&'static str, Line> {
    use Other::*;
    use Permission as P;
    let public = || Line { permission: None, body: None, other: Nothing, done: 200 };
    let range = json!({ "from": "2026-11-18T00:00:00Z", "to": "2026-11-19T00:00:00Z" });
    let recipient = json!({ "timezone": "Europe/Berlin", "addresses": { "email": "ann@example.org" } });
    BTreeMap::from([
        ("create_task", line(P::TasksWrite, InBody, 201, Some(daily()))),
        // a line of another tenant is a bad line: import.rs has the rest
        ("import_tasks", line(P::TasksWrite, Nothing, 200, Some(daily()))),
        ("list_tasks", line(P::TasksRead, InQuery, 200, None)),
        ("get_task", line(P::TasksRead, Here, 200, None)),
        ("update_task", line(P::TasksWrite, Here, 200, Some(json!({ "name": "New" })))),
        ("delete_task", line(P::TasksWrite, Here, 204, None)),
        ("pause_task", line(P::TasksWrite, Here, 200, None)),
        ("resume_task", line(P::TasksWrite, Here, 200, None)),
        ("run_task", line(P::TasksWrite, Here, 201, None)),
        ("backfill_task", line(P::TasksWrite, Here, 202, Some(range))),
        ("list_upcoming_fires", line(P::TasksRead, InQuery, 200, None)),
        ("preview_schedule", line(P::TasksRead, Nothing, 200, Some(json!({ "trigger": daily()["trigger"] })))),
        ("test_condition", line(P::TasksWrite, InBody, 200, Some(condition()))),
        // no engine answers here
        ("send_message", line(P::RunsWrite, InBody, 202, Some(json!({ "message": "Hello" })))),
        ("create_response", line(P::RunsWrite, InBody, 200, Some(json!({ "input": "Hello", "background": true })))),
        ("get_response", line(P::RunsRead, Here, 200, None)),
        ("list_conversations", line(P::RunsRead, InQuery, 200, None)),
        ("get_conversation", line(P::RunsRead, Here, 200, None)),
        ("list_messages", line(P::RunsRead, Here, 200, None)),
        ("delete_conversation", line(P::RunsWrite, Here, 204, None)),
        ("list_runs", line(P::RunsRead, InQuery, 200, None)),
        ("get_run", line(P::RunsRead, Here, 200, None)),
        ("get_transcript", line(P::RunsRead, Here, 200, None)),
        ("stream_run", line(P::RunsRead, Here, 200, None)),
        ("cancel_run", line(P::RunsWrite, Here, 200, None)),
        ("retry_run", line(P::RunsWrite, Here, 201, None)),
        // it waits for none
        ("answer_run", line(P::RunsInput, Here, 409, Some(json!({ "message": "four" })))),
        ("complete_run", line(P::RunsWrite, Here, 409, Some(json!({ "state": "succeeded" })))),
        (
            "dry_run_pipeline",
            line(
                P::TasksWrite,
                InBody,
                200,
                Some(json!({ "config": { "steps": [
            { "name": "one", "map": "1" },
        ] } })),
            ),
        ),
        ("explain_run", line(P::RunsRead, Here, 200, None)),
        ("explain_task", line(P::TasksRead, Here, 200, None)),
        ("explain_event", line(P::EventsRead, InQuery, 404, None)),
        ("list_approvals", line(P::ApprovalsRead, InQuery, 200, None)),
        ("get_approval", line(P::ApprovalsRead, Here, 200, None)),
        ("decide_approval", line(P::ApprovalsDecide, Here, 200, Some(json!({ "decision": "cancel", "digest": "" })))),
        ("connect_credential", line(P::CredentialsWrite, InQuery, 200, None)),
        ("show_client_document", public()),
        // whoever is sent back by a provider may open it; a state that is none is not known, and credentials/ has the
        // rest
        ("show_connection", Line { permission: None, body: None, other: Nothing, done: 404 }),
        ("make_connection", Line { permission: None, body: None, other: Nothing, done: 403 }),
        (
            "set_approval_override",
            line(P::ApprovalsDecide, InBody, 201, Some(json!({ "tool": "http_request", "gate": "confirm" }))),
        ),
        ("list_approval_overrides", line(P::ApprovalsRead, InQuery, 200, None)),
        ("remove_approval_override", line(P::ApprovalsDecide, Here, 204, None)),
        ("add_fact", line(P::FactsWrite, InBody, 201, Some(json!({ "text": "Lives in Vienna." })))),
        ("list_facts", line(P::FactsRead, InQuery, 200, None)),
        ("get_fact", line(P::FactsRead, Here, 200, None)),
        ("correct_fact", line(P::FactsWrite, Here, 200, Some(json!({ "text": "Lives in Graz." })))),
        ("delete_fact", line(P::FactsWrite, Here, 204, None)),
        ("delete_facts", line(P::FactsWrite, Here, 200, None)),
        ("list_grants", line(P::ApprovalsRead, InQuery, 200, None)),
        ("revoke_grant", line(P::ApprovalsDecide, Here, 204, None)),
        ("list_audit_entries", line(P::AuditRead, InQuery, 200, None)),
        // whoever has a link may open it; a link that is none is not known, and approvals/ has the rest
        ("show_approvals", Line { permission: None, body: None, other: Nothing, done: 404 }),
        ("answer_approvals", Line { permission: None, body: None, other: Nothing, done: 404 }),
        ("show_outcome", Line { permission: None, body: None, other: Nothing, done: 404 }),
        ("show_message", Line { permission: None, body: None, other: Nothing, done: 404 }),
        ("list_deliveries", line(P::DeliveriesRead, InQuery, 200, None)),
        ("get_delivery", line(P::DeliveriesRead, Here, 200, None)),
        ("retry_delivery", line(P::DeliveriesWrite, Here, 202, None)),
        ("publish_events", line(P::EventsPublish, InBody, 202, Some(json!({ "source": "mail", "type": "new" })))),
        ("list_events", line(P::EventsRead, InQuery, 200, None)),
        ("get_event", line(P::EventsRead, InQuery, 404, None)),
        ("stream_events", line(P::EventsRead, InQuery, 200, None)),
        ("list_dead_letters", line(P::DeadLettersRead, InQuery, 200, None)),
        ("get_dead_letter", line(P::DeadLettersRead, Here, 200, None)),
        ("drop_dead_letter", line(P::DeadLettersWrite, Here, 204, None)),
        ("replay_dead_letter", line(P::DeadLettersWrite, Here, 202, None)),
        ("replay_dead_letters", line(P::DeadLettersWrite, InBody, 200, Some(json!({})))),
        ("drop_dead_letters", line(P::DeadLettersWrite, InBody, 200, Some(json!({})))),
        // a source that nobody has configured is not there for strangers; hooks.rs has the rest
        ("receive_hook", Line { permission: None, body: Some(json!({})), other: Nothing, done: 404 }),
        // only whoever has the address may report; receipts.rs has the rest
        ("receive_receipt", Line { permission: None, body: None, other: Nothing, done: 404 }),
        ("list_recipients", line(P::RecipientsRead, InQuery, 200, None)),
        ("delete_recipient", line(P::RecipientsWrite, Here, 204, None)),
        ("get_recipient", line(P::RecipientsRead, Here, 200, None)),
        ("put_recipient", line(P::RecipientsWrite, Here, 200, Some(recipient))),
        ("test_recipient", line(P::DeliveriesWrite, Here, 202, None)),
        ("list_credentials", line(P::CredentialsRead, InQuery, 200, None)),
        ("get_credential", line(P::CredentialsRead, InQuery, 200, None)),
        ("put_credential", line(P::CredentialsWrite, InQuery, 200, Some(credential()))),
        ("delete_credential", line(P::CredentialsWrite, InQuery, 204, None)),
        ("list_credential_uses", line(P::CredentialsRead, InQuery, 200, None)),
        // no tenant has a say in the master key
        ("rotate_key", line(P::CredentialsWrite, Nothing, 403, None)),
        ("open_stream", line(P::DeliveriesRead, InQuery, 200, None)),
        // who it is may be said later; live.rs has the rest
        ("open_socket", Line { permission: None, body: None, other: Nothing, done: 400 }),
        ("get_push_key", line(P::RecipientsRead, Nothing, 200, None)),
        ("verify_recipient", line(P::RecipientsWrite, Here, 202, Some(json!({ "channel": "email" })))),
        // any token will do; ui/session.rs has the rest
        ("create_login_link", Line { permission: None, body: None, other: Nothing, done: 401 }),
        ("create_token", line(P::TokensWrite, InBody, 201, Some(json!({ "name": "x", "scopes": ["tokens:write"] })))),
        ("list_tokens", line(P::TokensRead, InQuery, 200, None)),
        ("revoke_token", line(P::TokensWrite, Here, 204, None)),
        ("get_stats", line(P::StatsRead, InQuery, 200, None)),
        ("get_usage", line(P::StatsRead, InQuery, 200, None)),
        // it is over all tenants
        ("get_system", line(P::All, Nothing, 403, None)),
        // a tenant sees its quotas, and has no say in them
        ("get_quotas", line(P::StatsRead, Here, 200, None)),
        ("put_quotas", line(P::All, Here, 403, Some(json!({ "tasks": 5 })))),
        ("reset_quotas", line(P::All, Here, 403, None)),
        // and so with its budgets
        ("get_budgets", line(P::StatsRead, InQuery, 200, None)),
        ("put_budgets", line(P::All, Here, 403, Some(json!({ "run": { "turns": 5 } })))),
        ("reset_budgets", line(P::All, Here, 403, None)),
        ("put_task_budget", line(P::All, Here, 403, Some(json!({ "turns": 5 })))),
        ("reset_task_budget", line(P::All, Here, 403, None)),
        // a tenant sees whether it is halted, and has no say in it, nor in whether its tasks are disabled
        ("get_tenant", line(P::StatsRead, Here, 200, None)),
        ("disable_tenant", line(P::All, Nothing, 403, None)),
        ("enable_tenant", line(P::All, Nothing, 403, None)),
        ("disable_task", line(P::All, Nothing, 403, None)),
        ("enable_task", line(P::All, Nothing, 403, None)),
        ("stop_work", line(P::All, Nothing, 403, Some(json!({ "all": true })))),
        ("start_work", line(P::All, Nothing, 403, Some(json!({ "all": true })))),
        ("list_tools", line(P::TasksRead, InQuery, 200, None)),
        ("get_tool", line(P::TasksRead, InQuery, 200, None)),
        // no tenant has a say in which definitions are accepted
        ("accept_tool", line(P::All, Nothing, 403, None)),
        ("call_tool", line(P::TasksWrite, InBody, 200, Some(json!({ "arguments": { "timezone": "UTC" } })))),
        ("list_agents", line(P::TasksRead, InQuery, 200, None)),
        ("list_suspended", line(P::RunsRead, InQuery, 200, None)),
        // it waits for nobody, and is cancelled already
        ("pause_suspended", line(P::RunsWrite, Here, 409, None)),
        ("resume_suspended", line(P::RunsWrite, Here, 409, None)),
        ("cancel_suspended", line(P::RunsWrite, Here, 200, None)),
        ("list_skills", line(P::TasksRead, Nothing, 200, None)),
        // there are none here; ui/skills.rs has the rest
        ("get_skill", line(P::TasksRead, Nothing, 404, None)),
        ("list_executors", line(P::TasksRead, Nothing, 200, None)),
        ("get_health", public()),
        ("get_readiness", public()),
        ("get_metrics", public()),
    ])
}

fn credential() -> Value {
    json!({ "document": "a canary", "hosts": ["api.example.org"], "inject": { "as": "bearer" } })
}

/// A condition on what is there without a network.
fn condition() -> Value {
    let poll = json!({ "tool": { "name": "current_time" } });
    json!({ "trigger": { "type": "condition", "poll": poll, "interval": "1m", "expression": "value != null" } })
}

/// The things of one tenant, to be asked for.
struct Things {
    task: String,
    /// Cancelled, so that it can be retried, and followed to its end.
    run: String,
    delivery: String,
    letter: String,
    approval: String,
    /// Digest of the approval's question.
    digest: String,
    grant: String,
    /// An override of the approval matrix.
    stored: String,
    token: String,
    conversation: String,
    response: String,
    fact: String,
}

async fn things_of(api: &Api, tenant: &str) -> Things {
    let text = |body: &Value| body["id"].as_str().unwrap().to_owned();
    let task = text(&api.admin("POST", "/v1/tasks", Some(daily_of(tenant))).await.expect(201));
    let run = text(&api.admin("POST", &format!("/v1/tasks/{task}/run"), None).await.expect(201));
    api.admin("POST", &format!("/v1/runs/{run}/cancel"), None).await.expect(200);
    let recipient = json!({ "addresses": { "email": "someone@example.org" } });
    api.admin("PUT", &format!("/v1/recipients/{tenant}"), Some(recipient)).await.expect(200);
    let credentials = format!("/v1/credentials/google/work?tenant_id={tenant}");
    api.admin("PUT", &credentials, Some(credential())).await.expect(200);
    let run_id = run.parse().unwrap();
    let posted = NewDelivery {
        tenant_id: tenant.into(),
        recipient: tenant.into(),
        channel: "email".into(),
        fallback: Vec::new(),
        dedupe_key: dedupe::run_result(run_id),
        run_id: Some(run_id),
        subject_ref: None,
        kind: MessageKind::Result,
        urgency: MessageKind::Result.urgency(),
        subject: None,
        text: None,
    };
    api.store.post_delivery(&posted).await.unwrap();
    let filter = DeliveryFilter { limit: 1, ..DeliveryFilter::default() };
    let delivery = api.store.list_deliveries(&only(tenant), &filter).await.unwrap()[0].id.to_string();
    let letter = api.dead_letter(tenant, "the filter broke").await;
    let token = api.token_until(tenant, &["tasks:read"], None).await.0.to_string();
    let asked = ask(api, tenant, vec![note()]).await;
    let grant = Grant {
        id: new_id(api.clock.now()),
        tenant_id: tenant.into(),
        task_id: asked.task.parse().unwrap(),
        tool: "send_note".into(),
        epoch: 1,
        args: json!({}),
        definition: "0".repeat(64),
        uses_left: None,
        created_at: api.clock.now(),
        created_by: "token:admin".into(),
        expires_at: api.clock.now() + TimeDelta::days(30),
        revoked_at: None,
        revoked_by: None,
    };
    api.store.create_grant(&only(tenant), &grant).await.unwrap();
    let wanted = json!({ "tenant_id": tenant, "tool": "http_send", "gate": "confirm" });
    let stored = text(&api.admin("POST", "/v1/approval-overrides", Some(wanted)).await.expect(201));
    let known = json!({ "tenant_id": tenant, "text": format!("Has read {}.", new_id(api.clock.now())) });
    let fact = text(&api.admin("POST", "/v1/facts", Some(known)).await.expect(201));
    let (approval, digest) = (asked.approvals[0].id.to_string(), asked.approvals[0].digest.clone());
    let said = json!({ "tenant_id": tenant, "message": "Hello" });
    let said = api.admin("POST", "/v1/chat", Some(said)).await.expect(202);
    let conversation = said["conversation_id"].as_str().unwrap().to_owned();
    let response = format!("resp_{}", said["run_id"].as_str().unwrap());
    let grant = grant.id.to_string();
    Things { task, run, delivery, letter, approval, digest, grant, stored, token, conversation, response, fact }
}

/// The body about these things.
fn about(mut body: Value, things: &Things) -> Value {
    if body.get("digest").is_some() {
        body["digest"] = json!(things.digest);
    }
    body
}

/// The address of an operation on these things.
fn url_of(template: &str, tenant: &str, things: &Things) -> String {
    let id = match template.split('/').nth(2).unwrap_or_default() {
        "tasks" => &things.task,
        "runs" | "agents" => &things.run,
        "deliveries" => &things.delivery,
        "dead-letters" => &things.letter,
        "tokens" => &things.token,
        "conversations" => &things.conversation,
        "responses" => &things.response,
        "facts" => &things.fact,
        "approvals" => &things.approval,
        "grants" => &things.grant,
        "approval-overrides" => &things.stored,
        _ => "none",
    };
    template
        .replace("{id}", id)
        .replace("{tenant_id}", tenant)
        .replace("{task_id}", &things.task)
        .replace("{source}", "nowhere")
        .replace("{channel}", "sms")
        .replace("{token}", "none")
        .replace("{ticket}", "none")
        .replace("{service}", "google")
        .replace("{account_name}", "work")
        .replace("{name}", "current_time")
}

on_both! {
    without_a_valid_token_nothing_is_told
    token_without_the_permission_is_told_which_one_it_needs
    another_tenant_s_things_are_not_there
    needed_permission_alone_is_enough
    reading_changes_nothing
}

#[tokio::test]
async fn every_operation_has_a_line_and_every_line_an_operation() {
    let api = Api::new().await;
    let operations: Vec<String> = {
        let mut ids: Vec<String> = api.operations().into_iter().map(|(id, ..)| id).collect();
        ids.sort();
        ids
    };
    let lines: Vec<&str> = table().into_keys().collect();
    assert_eq!(operations, lines);
}

async fn without_a_valid_token_nothing_is_told(api: Api) {
    let ann = things_of(&api, "ann").await;
    let (revoked_id, revoked) = api.token_until("ann", &["*"], None).await;
    api.store.revoke_token(&only("ann"), revoked_id).await.unwrap();
    let (_, expired) = api.token_until("ann", &["*"], Some(api.clock.now() + TimeDelta::seconds(1))).await;
    api.advance(1);
    let unknown = TokenText::new(TokenKind::Admin).expose().to_owned();
    let table = table();
    for (id, method, template) in api.operations() {
        let line = &table[id.as_str()];
        let place = url_of(&template, "ann", &ann);
        if line.permission.is_none() {
            api.ask(&method, &place, None, None).await.expect(line.done);
            continue;
        }
        for (token, detail) in [
            (None, "send `Authorization: Bearer <token>`, once"),
            (Some("nonsense"), "the token is not valid: it is mistyped, or not one of this service"),
            (Some(unknown.as_str()), "the token is not valid"),
            (Some(revoked.as_str()), "the token was revoked"),
            (Some(expired.as_str()), "the token has expired"),
        ] {
            let reply = api.ask(&method, &place, token, line.body.clone()).await;
            assert!(reply.header("www-authenticate").starts_with("Bearer "), "{id}");
            assert_eq!(reply.expect(401)["detail"], detail, "{id}");
        }
    }
}

async fn token_without_the_permission_is_told_which_one_it_needs(api: Api) {
    let ann = things_of(&api, "ann").await;
    let table = table();
    for (id, method, template) in api.operations() {
        let line = &table[id.as_str()];
        let Some(needed) = line.permission else { continue };
        let place = url_of(&template, "ann", &ann);
        let others: Vec<&str> = Permission::ALL
            .into_iter()
            .filter(|held| *held != needed && *held != Permission::All)
            .map(Permission::as_str)
            .collect();
        let narrow = api.token("ann", &others).await;
        let problem = api.ask(&method, &place, Some(&narrow), line.body.clone()).await.expect(403);
        assert_eq!(problem["detail"], format!("this needs a token with `{}`", needed.as_str()), "{id}");
    }
}

async fn another_tenant_s_things_are_not_there(api: Api) {
    let ann = things_of(&api, "ann").await;
    things_of(&api, "bob").await;
    let bob = api.token("bob", &["*"]).await;
    let no = || uuid::Uuid::max().to_string();
    let nothing = Things {
        task: no(),
        run: no(),
        delivery: no(),
        letter: no(),
        approval: no(),
        digest: no(),
        grant: no(),
        stored: no(),
        token: no(),
        fact: no(),
        conversation: no(),
        response: format!("resp_{}", no()),
    };
    let before = api.written().await;
    let table = table();
    for (id, method, template) in api.operations() {
        let line = &table[id.as_str()];
        let place = url_of(&template, "ann", &ann);
        match line.other {
            Other::Nothing => continue,
            Other::Here => {
                let problem = api.ask(&method, &place, Some(&bob), line.body.clone()).await.expect(404);
                // the very words of what does not exist: nothing is learnt from the difference
                let nowhere = self::url_of(&template, "nobody", &nothing);
                let absent = api.ask(&method, &nowhere, Some(&bob), line.body.clone()).await.expect(404);
                assert_eq!(problem, absent, "{id}");
            }
            Other::InQuery => {
                let problem = api.ask(&method, &format!("{place}?tenant_id=ann"), Some(&bob), None).await.expect(404);
                let absent = api.ask(&method, &format!("{place}?tenant_id=no"), Some(&bob), None).await.expect(404);
                assert_eq!(problem, absent, "{id}");
            }
            Other::InBody => {
                let mut body = line.body.clone().unwrap();
                body["tenant_id"] = json!("ann");
                let problem = api.ask(&method, &place, Some(&bob), Some(body.clone())).await.expect(422);
                assert_eq!(problem["errors"][0]["pointer"], "/tenant_id", "{id}");
                body["tenant_id"] = json!("no");
                assert_eq!(problem, api.ask(&method, &place, Some(&bob), Some(body)).await.expect(422), "{id}");
            }
        }
    }
    assert_eq!(api.written().await, before, "a refused request must write nothing");
}

async fn needed_permission_alone_is_enough(api: Api) {
    // a stream that has no end of its own ends with the service
    api.stop.cancel();
    let table = table();
    for (id, method, template) in api.operations() {
        let line = &table[id.as_str()];
        let Some(needed) = line.permission else { continue };
        // fresh things each time: one operation deletes what the next one reads
        let ann = things_of(&api, "ann").await;
        let token = api.token("ann", &[needed.as_str()]).await;
        let body = line.body.clone().map(|body| about(body, &ann));
        let reply = api.ask(&method, &url_of(&template, "ann", &ann), Some(&token), body).await;
        assert_eq!(reply.status.as_u16(), line.done, "{id}: {}", reply.body);
    }
}

async fn reading_changes_nothing(api: Api) {
    api.stop.cancel();
    let ann = things_of(&api, "ann").await;
    let token = api.token("ann", &["*"]).await;
    let before = api.written().await;
    let reads: Vec<_> = api.operations().into_iter().filter(|(_, method, _)| method == "GET").collect();
    assert!(reads.len() > 10, "{reads:?}");
    for (id, method, template) in reads {
        let done = table()[id.as_str()].done;
        api.ask(&method, &url_of(&template, "ann", &ann), Some(&token), None).await.expect(done);
    }
    assert_eq!(api.written().await, before);
}

#[tokio::test]
async fn guessing_tokens_costs_the_guesser_and_nobody_else() {
    use axum::body::Body;
    use axum::http::Request;
    use reveille::http::server::Peer;
    let api = Api::new().await;
    let known = api.token("ann", &["*"]).await;
    let ask = async |address: [u8; 4], token: &str| {
        let request = Request::get("/v1/tasks").header("authorization", format!("Bearer {token}"));
        let request = request.extension(Peer(address.into())).body(Body::empty()).unwrap();
        let reply = api.send(request).await;
        (reply.status.as_u16(), reply.header("retry-after").to_owned())
    };
    let guesser = [192, 0, 2, 7];
    assert_eq!(ask(guesser, &known).await.0, 200);
    for _ in 0..20 {
        assert_eq!(ask(guesser, TokenText::new(TokenKind::Tenant).expose()).await.0, 401);
    }
    let guess = TokenText::new(TokenKind::Tenant);
    assert_eq!(ask(guesser, guess.expose()).await, (429, "60".into()));
    assert_eq!(ask(guesser, &known).await.0, 200, "a token that was right before stays so");
    assert_eq!(ask([192, 0, 2, 8], guess.expose()).await.0, 401, "another address has its own count");
    api.advance(60);
    assert_eq!(ask(guesser, guess.expose()).await.0, 401);
}
