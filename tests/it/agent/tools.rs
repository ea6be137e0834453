//! The tools that are always there, called by the loop: through the host, and over real HTTP.

use std::sync::Arc;

use reveille::agent::{Agent, AgentResponse, ApprovalContext};
use reveille::base::invalid::ValidationErrors;
use reveille::domain::approval::policy::Policy;
use reveille::domain::credential::Reference;
use reveille::domain::run::transcript::ToolCall;
use reveille::ports::egress::{self, Egress};
use reveille::ports::tool::access::ToolLimits;
use reveille::ports::tool::{HostError, ToolRegistry, builtin};
use reveille::ports::vault::credentials::Credentials;
use serde_json::{Value, json};
use uuid::Uuid;
use wiremock::matchers::{header, method, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::harness::{AgentHarness, RUN, call, calls, says};
use crate::support::computing::{HeldThreads, until_waiting};

/// A harness whose agent has the built-in tools and makes these calls.
fn stage(asked: Vec<ToolCall>, egress: egress::Settings) -> AgentHarness {
    let mut stage = AgentHarness::new(vec![calls(asked), says("done")], vec![]);
    let tools = builtin::all(&Credentials::none(Egress::new(&egress).unwrap()));
    stage.agent = Agent { tools: Arc::new(ToolRegistry::new(tools).unwrap()), ..stage.agent };
    stage
}

/// The result of one call, as text and whether it is an error.
async fn result(name: &str, arguments: Value) -> (String, bool) {
    let stage = stage(vec![call("c1", name, arguments)], egress::Settings::default());
    stage.answer("go").await;
    let (_, text, is_error) = stage.results().remove(0);
    (text, is_error)
}

async fn asked_of_host(asked: Vec<ToolCall>) -> Vec<Value> {
    let stage = stage(asked, egress::Settings::default());
    stage.answer("go").await;
    assert!(stage.results().iter().all(|(.., is_error)| !is_error), "{:?}", stage.results());
    stage.host.asked.lock().unwrap().clone()
}

#[tokio::test]
async fn tools_for_tasks_act_for_the_run_s_tenant_and_nobody_else() {
    let id = Uuid::from_u128(9);
    let asked = asked_of_host(vec![
        call("c1", "create_task", json!({ "name": "Mail", "instruction": "Read it", "cron": "0 8 * * *" })),
        call("c2", "list_tasks", json!({ "status": "active" })),
        call("c3", "pause_task", json!({ "id": id })),
        call("c4", "delete_task", json!({ "id": id })),
        call("c5", "resume_task", json!({ "id": id })),
        call("c6", "update_task", json!({ "id": id, "instruction": "Sort it", "at": "2027-01-01T08:00:00" })),
        call("c7", "run_task", json!({ "id": id, "input": [1] })),
    ])
    .await;
    let draft = json!({
        "name": "Mail", "trigger": { "type": "schedule", "cron": "0 8 * * *", "timezone": "Europe/Berlin" },
        "action": { "instruction": "Read it" },
    });
    let key_of = |call: &str| reveille::ports::tool::ToolContext::key_of(RUN, 1, call);
    let changes = json!({ "instruction": "Sort it", "trigger": { "type": "schedule", "at": "2027-01-01T08:00:00" } });
    assert_eq!(
        asked,
        [
            json!({ "create": draft, "tenant": "ann", "key": key_of("c1") }),
            json!({ "list": ["active", null, 20], "tenant": "ann" }),
            json!({ "pause": id, "tenant": "ann" }),
            json!({ "delete": id, "tenant": "ann" }),
            json!({ "resume": id, "tenant": "ann" }),
            json!({ "update": id, "changes": changes, "limits": { "allow": null, "deny": [] }, "tenant": "ann" }),
            json!({ "run": id, "input": [1], "key": key_of("c7"), "tenant": "ann" }),
        ]
    );
    let foreign = json!({ "name": "x", "instruction": "x", "cron": "* * * * *", "tenant_id": "bob" });
    let (text, is_error) = result("create_task", foreign).await;
    assert!(is_error && text.contains("'tenant_id' was unexpected"), "{text}");
}

#[tokio::test]
async fn agent_with_few_tools_hands_its_limits_on_and_gives_no_input_to_others() {
    let id = Uuid::from_u128(9);
    let mut asked =
        vec![call("c1", "create_task", json!({ "name": "Mail", "instruction": "Read it", "interval": "1h" }))];
    asked.push(call("c2", "update_task", json!({ "id": id, "name": "Post" })));
    asked.push(call("c3", "run_task", json!({ "id": id, "input": "Send it" })));
    asked.push(call("c4", "run_task", json!({ "id": id })));
    let stage = stage(asked, egress::Settings::default());
    let mut incoming = stage.incoming("go");
    let allow: Vec<String> = ["create_task", "update_task", "run_task"].map(str::to_owned).into();
    let limits = ToolLimits { allow: Some(allow), deny: vec!["http_send".into()] };
    incoming.overrides.tools = Arc::new(limits.clone());
    stage.agent.handle_message(&incoming).await.unwrap();
    let failed: Vec<bool> = stage.results().into_iter().map(|(.., is_error)| is_error).collect();
    assert_eq!(failed, [false, false, true, false]);
    let asked = stage.host.asked.lock().unwrap();
    let config = json!({ "tools": limits.allow, "deny_tools": limits.deny });
    assert_eq!(asked[0]["create"]["action"], json!({ "instruction": "Read it", "config": config }));
    assert_eq!(asked[1]["limits"], json!(limits));
    assert_eq!(asked[2]["input"], Value::Null);
}

#[tokio::test]
async fn change_of_nothing_and_a_mixed_trigger_are_arguments_at_fault() {
    let id = Uuid::from_u128(9);
    let (nothing, is_error) = result("update_task", json!({ "id": id })).await;
    assert!(is_error && nothing.contains("less than 2 properties"), "{nothing}");
    let mixed = json!({ "id": id, "cron": "* * * * *", "trigger": { "type": "event" } });
    let (mixed, is_error) = result("update_task", mixed).await;
    assert!(is_error && mixed.contains("either `trigger`"), "{mixed}");
}

#[tokio::test]
async fn large_arguments_are_validated_on_a_compute_thread() {
    let many = json!({ "type": "report.ready", "data": { "l": vec![0; 20_000] } });
    let stage = stage(vec![call("c1", "publish_event", many)], egress::Settings::default());
    let computing = stage.agent.compute.clone();
    let threads = HeldThreads::all(&computing).await;
    let meanwhile = async {
        until_waiting(&computing, 1).await;
        assert!(stage.host.asked.lock().unwrap().is_empty());
        drop(threads);
    };
    // no time has to pass for it
    let incoming = stage.incoming("go");
    let (handled, ()) = tokio::join!(stage.agent.handle_message(&incoming), meanwhile);
    assert!(matches!(handled, Ok(AgentResponse::Answered(_))), "{handled:?}");
    assert_eq!(stage.host.asked.lock().unwrap().len(), 1, "{:?}", stage.results());
    // few are checked where they are: nothing waits for a thread
    let few = result("list_tasks", json!({ "status": "odd" })).await;
    assert!(few.1, "{few:?}");
}

#[tokio::test]
async fn event_of_an_agent_says_so_and_is_the_same_when_its_call_is_repeated() {
    let stage = stage(
        vec![call("c1", "publish_event", json!({ "type": "report.ready", "data": { "n": 1 }, "subject": "June" }))],
        egress::Settings::default(),
    );
    stage.answer("go").await;
    let asked = stage.host.asked.lock().unwrap().clone();
    let id = reveille::ports::tool::ToolContext::key_of(RUN, 1, "c1");
    let time = asked[0]["publish"]["time"].clone();
    let event = json!({
        "specversion": "1.0", "tenantid": "ann", "source": "agent", "id": id, "type": "report.ready", "subject": "June",
        "data": { "n": 1 }, "time": time,
    });
    assert_eq!(asked, [json!({ "publish": event, "tenant": "ann" })]);
    let forged = json!({ "type": "payment.failed", "source": "stripe" });
    let (text, is_error) = result("publish_event", forged).await;
    assert!(is_error && text.contains("'source' was unexpected"), "{text}");
}

#[tokio::test]
async fn notification_carries_the_key_of_its_call() {
    let asked = asked_of_host(vec![
        call("c1", "send_notification", json!({ "text": "Mail from Ann\nand Bob" })),
        call("c2", "send_notification", json!({ "text": "t", "subject": "s", "channel": "email" })),
    ])
    .await;
    let key = |id| format!("call:{RUN}:1:{id}");
    assert_eq!(
        asked,
        [
            json!({ "notify": ["Mail from Ann", "Mail from Ann\nand Bob", null, key("c1")], "run": RUN, "tenant": "ann" }),
            json!({ "notify": ["s", "t", "email", key("c2")], "run": RUN, "tenant": "ann" }),
        ]
    );
}

#[tokio::test]
async fn refusal_of_the_host_is_told_to_the_model() {
    let table = [
        (HostError::NotFound, "type: not_found\ncode: not_found\nmessage: not found"),
        (
            HostError::Invalid(ValidationErrors::one("/trigger/cron", "has six fields")),
            "type: validation_error\ncode: invalid\nmessage: /trigger/cron: has six fields",
        ),
        (HostError::Conflict("is completed".into()), "type: execution_error\ncode: conflict\nmessage: is completed"),
    ];
    for (failure, told) in table {
        let stage = stage(vec![call("c1", "pause_task", json!({ "id": RUN }))], egress::Settings::default());
        *stage.host.failure.lock().unwrap() = Some(failure);
        stage.answer("go").await;
        assert_eq!(stage.results(), [("c1".into(), format!("Operation failed.\n{told}\ncall: c1"), true)]);
    }
}

#[tokio::test]
async fn store_that_is_away_is_asked_again() {
    let stage = stage(vec![call("c1", "pause_task", json!({ "id": RUN }))], egress::Settings::default());
    *stage.host.failure.lock().unwrap() = Some(HostError::Unavailable);
    stage.answer("go").await;
    assert_eq!(stage.host.asked.lock().unwrap().len(), 2);
    assert!(!stage.results()[0].2);
}

#[tokio::test]
async fn time_is_told_in_the_recipient_s_zone_or_another() {
    let (here, _) = result("current_time", json!({})).await;
    let told: Value = serde_json::from_str(&here).unwrap();
    assert_eq!(
        told,
        json!({
            "local": "2026-12-24T08:00:00+01:00", "timezone": "Europe/Berlin", "weekday": "Thursday",
            "utc": "2026-12-24T07:00:00Z",
        })
    );
    let (there, _) = result("current_time", json!({ "timezone": "Asia/Shanghai" })).await;
    assert!(there.contains("2026-12-24T15:00:00+08:00"), "{there}");
}

/// `http_request` over real HTTP, this machine opened. Real time: the harness's clock stands still meanwhile.
async fn fetched(server: &MockServer, arguments: Value) -> (String, bool) {
    let settings = egress::Settings { allow: vec!["127.0.0.1:*".into()], ..egress::Settings::default() };
    let mut arguments = arguments;
    arguments["url"] = json!(format!("{}{}", server.uri(), arguments["url"].as_str().unwrap()));
    let stage = stage(vec![call("c1", "http_request", arguments)], settings);
    stage.agent.handle_message(&stage.incoming("go")).await.unwrap();
    let (_, text, is_error) = stage.results().remove(0);
    (text.replace(&server.uri(), "http://sink"), is_error)
}

#[tokio::test]
async fn address_is_fetched_with_its_headers_and_json_comes_as_json() {
    let server = MockServer::start().await;
    let inbox = ResponseTemplate::new(200).set_body_json(json!({ "unread": 2 }));
    Mock::given(method("GET"))
        .and(path("/inbox"))
        .and(header("x-wish", "mail"))
        .respond_with(inbox)
        .mount(&server)
        .await;
    let (text, is_error) = fetched(&server, json!({ "url": "/inbox", "headers": { "X-Wish": "mail" } })).await;
    assert!(!is_error, "{text}");
    let told: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        told,
        json!({
            "status": 200, "url": "http://sink/inbox", "content_type": "application/json", "body": { "unread": 2 },
        })
    );
}

#[tokio::test]
async fn long_answer_to_a_tool_is_read_and_shown_on_a_computing_thread() {
    let server = MockServer::start().await;
    let page = ResponseTemplate::new(200).set_body_json(json!({ "text": "x".repeat(20_000) }));
    Mock::given(method("GET")).and(path("/page")).respond_with(page).mount(&server).await;
    let settings = egress::Settings { allow: vec!["127.0.0.1:*".into()], ..egress::Settings::default() };
    let look = call("c1", "http_request", json!({ "url": format!("{}/page", server.uri()) }));
    let stage = stage(vec![look], settings);
    let computing = stage.agent.compute.clone();
    let mut threads = HeldThreads::all_of(&computing, "ann").await;
    let meanwhile = async {
        // it is read, and then written as the model is shown it
        for _ in 0..2 {
            until_waiting(&computing, 1).await;
            assert_eq!(stage.results(), []);
            threads.let_pass().await;
        }
        drop(threads);
    };
    let incoming = stage.incoming("go");
    let (handled, ()) = tokio::join!(stage.agent.handle_message(&incoming), meanwhile);
    assert!(matches!(handled, Ok(AgentResponse::Answered(_))), "{handled:?}");
    let (_, text, is_error) = stage.results().remove(0);
    assert!(!is_error && text.contains(&"x".repeat(1_000)), "{text}");
}

#[tokio::test]
async fn http_send_goes_out_once_with_the_key_of_its_call_and_follows_no_redirect() {
    let server = MockServer::start().await;
    let key = reveille::ports::tool::ToolContext::key_of(RUN, 1, "c1");
    Mock::given(method("PUT"))
        .and(path("/orders/7"))
        .and(header("idempotency-key", key.as_str()))
        .and(header("content-type", "application/json"))
        .and(wiremock::matchers::body_json(json!({ "amount": 5 })))
        .respond_with(ResponseTemplate::new(307).insert_header("location", "/elsewhere"))
        .expect(1)
        .mount(&server)
        .await;
    let arguments = json!({ "url": format!("{}/orders/7", server.uri()), "method": "PUT", "body": { "amount": 5 } });
    let settings = egress::Settings { allow: vec!["127.0.0.1:*".into()], ..egress::Settings::default() };
    let mut stage = stage(vec![call("c1", "http_send", arguments)], settings);
    // the operator lets it through
    let rules = json!({ "tools": { "http_send": { "gate": "auto" } } });
    stage.agent.policy = Policy::new(&serde_json::from_value(rules).unwrap()).unwrap();
    stage.agent.handle_message(&stage.incoming("go")).await.unwrap();
    let (_, text, is_error) = stage.results().remove(0);
    assert!(!is_error && text.contains("\"status\": 307"), "{text}");
}

#[tokio::test]
async fn message_needs_consent() {
    let message = json!({ "url": "https://example.org/", "method": "POST", "body": "x" });
    let stage = stage(vec![call("c1", "http_send", message)], egress::Settings::default());
    let answered = stage.agent.handle_message(&stage.incoming("go")).await.unwrap();
    assert!(matches!(answered, AgentResponse::Suspended(_)), "it went on");
}

#[tokio::test]
async fn credential_that_the_task_does_not_name_is_used_only_with_a_person_s_consent() {
    let look = |credential: &str| json!({ "url": "https://example.org/", "credential": credential });
    let asked = vec![call("c1", "http_request", look("google/work")), call("c2", "http_request", look("shop"))];
    let stage = stage(asked, egress::Settings::default());
    let mut incoming = stage.incoming("go");
    incoming.overrides.credentials = vec![Reference::parse("shop/primary").unwrap()];
    incoming.approval_context = ApprovalContext { task_id: None, source: "trigger", rules: None };
    let AgentResponse::Suspended(suspension) = stage.agent.handle_message(&incoming).await.unwrap() else {
        panic!("it went on")
    };
    let asked: Vec<_> = suspension.asks.iter().map(|(ask, _)| (&*ask.call_id, &*ask.proposal.reasons)).collect();
    let why = [
        "the matrix says auto for read of low consequence".to_owned(),
        "it uses the credential `google/work`, which the task does not name".to_owned(),
    ];
    assert_eq!(asked, [("c1", &why[..])]);
    let (id, text, _) = stage.results().remove(0);
    assert!(id == "c2" && text.contains("code: credential_missing"), "what the task names is used: {text}");
}

#[tokio::test]
async fn header_that_holds_a_secret_is_refused_before_anybody_is_asked() {
    for name in ["Authorization", "cookie", "Proxy-Authorization"] {
        let headers = json!({ name: "Bearer k3y", "X-Wish": "mail" });
        let look = json!({ "url": "https://example.org/", "headers": headers });
        let send = json!({ "url": "https://example.org/", "method": "POST", "headers": headers });
        let stage =
            stage(vec![call("c1", "http_request", look), call("c2", "http_send", send)], egress::Settings::default());
        let mut incoming = stage.incoming("go");
        incoming.approval_context = ApprovalContext { task_id: None, source: "trigger", rules: None };
        let handled = stage.agent.handle_message(&incoming).await.unwrap();
        assert!(matches!(handled, AgentResponse::Answered(_)), "nobody is asked: {handled:?}");
        for (_, text, is_error) in stage.results() {
            let why = format!("message: /headers: `{name}` can't be set here: it holds a secret");
            assert!(is_error && text.contains(&why) && text.contains("in `credential`"), "{text}");
            assert!(!text.contains("k3y"), "{text}");
        }
        assert_eq!(stage.results().len(), 2);
    }
}

#[tokio::test]
async fn failing_address_is_told_as_a_failure() {
    let server = MockServer::start().await;
    let (text, is_error) = fetched(&server, json!({ "url": "/nothing", "method": "HEAD" })).await;
    assert!(is_error);
    assert_eq!(
        text,
        "Operation failed.\ntype: not_found\ncode: http_404\nmessage: http://sink/nothing answered 404 Not Found: \n\
         call: c1"
    );
}

#[tokio::test]
async fn private_addresses_and_methods_that_change_things_are_refused() {
    let stage = stage(
        vec![
            call("c1", "http_request", json!({ "url": "http://127.0.0.1:7700/v1/tasks" })),
            call("c2", "http_request", json!({ "url": "https://example.org", "method": "POST" })),
        ],
        egress::Settings::default(),
    );
    stage.agent.handle_message(&stage.incoming("go")).await.unwrap();
    let results = stage.results();
    assert!(results[0].1.contains("type: permission_denied\ncode: address_denied"), "{}", results[0].1);
    assert!(results[1].1.contains("type: invalid_parameters"), "{}", results[1].1);
}
