//! Runs: read as they were recorded, filtered, cancelled, run again.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};
use tracing::Level;

use super::service::{Api, daily_of};
use crate::support::log::logged;

async fn task(api: &Api, tenant: &str) -> String {
    let task = api.admin("POST", "/v1/tasks", Some(daily_of(tenant))).await.expect(201);
    task["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn log_has_one_line_of_a_run_that_is_cancelled_before_it_starts() {
    let api = Api::new().await;
    let task = task(&api, "ann").await;
    let run = api.admin("POST", &format!("/v1/tasks/{task}/run"), None).await.expect(201);
    let id = run["id"].as_str().unwrap();
    let twice = async {
        for _ in 0..2 {
            api.admin("POST", &format!("/v1/runs/{id}/cancel"), None).await.expect(200);
        }
    };
    let ((), text) = logged(Level::INFO, twice).await;
    let lines: Vec<&str> = text.lines().filter(|line| line.contains("run ended outside of an execution")).collect();
    let [line] = lines[..] else { panic!("one line in:\n{text}") };
    let run_id = format!("run_id={id}");
    let task_id = format!("task_id={task}");
    for part in ["INFO", &run_id, &task_id, "tenant_id=\"ann\"", "state=\"cancelled\"", "duration_ms=0"] {
        assert!(line.contains(part), "{part} in {line}");
    }
}

#[tokio::test]
async fn run_by_hand_is_answered_as_it_is_read() {
    let api = Api::new().await;
    let task = task(&api, "ann").await;
    let run =
        api.admin("POST", &format!("/v1/tasks/{task}/run"), Some(json!({ "input": { "n": 7 } }))).await.expect(201);
    let id = run["id"].as_str().unwrap();
    assert_eq!(
        run,
        json!({
            "id": id, "task_id": task, "tenant_id": "ann", "fire_key": format!("m:{id}"), "trigger_type": "schedule",
            "scheduled_for": "2026-11-21T00:00:00Z", "state": "queued", "reason": null, "blocked_by": null,
            "attempt": 0, "missed": null, "retry_of": null, "event_ids": [], "input": { "n": 7 },
            "created_at": "2026-11-21T00:00:00Z", "started_at": null, "finished_at": null, "output": null, "finish": null,
            "error": null, "usage": { "turns": 0, "tool_calls": 0, "input_tokens": 0, "output_tokens": 0, "cost_usd": 0.0 },
            "approvals": [],
        })
    );
    assert_eq!(api.admin("GET", &format!("/v1/runs/{id}"), None).await.expect(200), run);
    let transcript = api.admin("GET", &format!("/v1/runs/{id}/transcript"), None).await.expect(200);
    assert_eq!(transcript, json!({ "items": [], "next_cursor": null }));
}

#[tokio::test]
async fn run_of_a_paused_task_by_hand_goes_its_way() {
    let api = Api::new().await;
    let task = task(&api, "ann").await;
    api.admin("POST", &format!("/v1/tasks/{task}/pause"), None).await.expect(200);
    let run = api.admin("POST", &format!("/v1/tasks/{task}/run"), None).await.expect(201);
    assert_eq!(run["state"], "queued");
}

#[tokio::test]
async fn cancelled_run_stays_cancelled_and_is_run_again_as_a_new_one() {
    let api = Api::new().await;
    let task = task(&api, "ann").await;
    let run = api.admin("POST", &format!("/v1/tasks/{task}/run"), Some(json!({ "input": "x" }))).await.expect(201);
    let place = format!("/v1/runs/{}", run["id"].as_str().unwrap());
    let problem = api.admin("POST", &format!("{place}/retry"), None).await.expect(409);
    assert_eq!(problem["detail"], "the run is queued, so it can't be retried yet");
    api.advance(7);
    let cancelled = api.admin("POST", &format!("{place}/cancel"), None).await.expect(200);
    assert_eq!(
        (&cancelled["state"], &cancelled["reason"], &cancelled["finished_at"]),
        (&json!("cancelled"), &json!("cancelled by its owner"), &json!("2026-11-21T00:00:07Z"))
    );
    assert_eq!(api.admin("POST", &format!("{place}/cancel"), None).await.expect(200), cancelled);

    let again = api.admin("POST", &format!("{place}/retry"), None).await.expect(201);
    assert_eq!(
        (&again["retry_of"], &again["state"], &again["input"], &again["scheduled_for"], &again["created_at"]),
        (&run["id"], &json!("queued"), &json!("x"), &run["scheduled_for"], &json!("2026-11-21T00:00:07Z"))
    );
    let read = api.admin("GET", &format!("/v1/runs/{}", again["id"].as_str().unwrap()), None).await.expect(200);
    assert_eq!(read, again);
    assert_eq!(api.admin("GET", &place, None).await.expect(200), cancelled, "the old one stays as it is");
}

#[tokio::test]
async fn runs_are_filtered_by_task_state_and_time() {
    let api = Api::new().await;
    let (first, second) = (task(&api, "ann").await, task(&api, "bob").await);
    let mut runs = Vec::new();
    for task in [&first, &second, &first] {
        let run = api.admin("POST", &format!("/v1/tasks/{task}/run"), None).await.expect(201);
        runs.push(run["id"].as_str().unwrap().to_owned());
        api.advance(60);
    }
    api.admin("POST", &format!("/v1/runs/{}/cancel", runs[0]), None).await.expect(200);
    for (query, expected) in [
        ("".to_owned(), vec![2, 1, 0]),
        (format!("task_id={first}"), vec![2, 0]),
        ("tenant_id=bob".into(), vec![1]),
        ("state=cancelled".into(), vec![0]),
        ("since=2026-11-21T00:01:00Z".into(), vec![2, 1]),
        ("until=2026-11-21T00:01:00Z".into(), vec![0]),
        ("since=2026-11-21T00:01:00Z&until=2026-11-21T00:02:00Z".into(), vec![1]),
        ("state=running".into(), vec![]),
    ] {
        let page: Value = api.admin("GET", &format!("/v1/runs?{query}"), None).await.expect(200);
        let ids: Vec<&str> = page["items"].as_array().unwrap().iter().map(|r| r["id"].as_str().unwrap()).collect();
        let expected: Vec<&str> = expected.into_iter().map(|index: usize| runs[index].as_str()).collect();
        assert_eq!(ids, expected, "{query}");
    }
}

#[tokio::test]
async fn figures_count_what_there_is() {
    let api = Api::new().await;
    let first = task(&api, "ann").await;
    task(&api, "bob").await;
    api.admin("POST", &format!("/v1/tasks/{first}/pause"), None).await.expect(200);
    api.admin("POST", &format!("/v1/tasks/{first}/run"), None).await.expect(201);
    let figures = api.admin("GET", "/v1/stats", None).await.expect(200);
    assert_eq!(figures["tasks"], json!({ "active": 1, "paused": 1 }));
    assert_eq!(figures["tasks_at_least"], json!(false));
    assert_eq!((&figures["runs"]["ready"], &figures["pending_deliveries"]), (&json!(1), &json!(0)));
    let bob = api.token("bob", &["stats:read"]).await;
    let own = api.ask("GET", "/v1/stats", Some(&bob), None).await.expect(200);
    assert_eq!(own["tasks"], json!({ "active": 1 }));
    assert_eq!(own["runs"].get("ready"), None);
    // they are counted once in five seconds, and say when
    task(&api, "bob").await;
    assert_eq!(api.ask("GET", "/v1/stats", Some(&bob), None).await.expect(200), own);
    api.advance(5);
    let later = api.ask("GET", "/v1/stats", Some(&bob), None).await.expect(200);
    assert_eq!(later["tasks"], json!({ "active": 2 }));
    let counted = |figures: &Value| figures["as_of"].as_str().unwrap().parse::<DateTime<Utc>>().unwrap();
    assert_eq!(counted(&later) - counted(&own), TimeDelta::seconds(5));
}

#[tokio::test]
async fn registered_executors_and_tools_are_listed() {
    let api = Api::new().await;
    let executors = api.admin("GET", "/v1/executors", None).await.expect(200);
    // the executor of these tests says nothing of its settings
    let idle = json!({ "name": "orchestrator", "default": true, "config_schema": { "type": "object" } });
    assert_eq!(executors, json!({ "items": [idle], "next_cursor": null }));
    let tools = api.admin("GET", "/v1/tools", None).await.expect(200);
    let names: Vec<&str> = tools["items"].as_array().unwrap().iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert!(names.contains(&"current_time") && names.contains(&"http_request"), "{names:?}");
    assert_eq!(tools["next_cursor"], json!(null));
}

#[tokio::test]
async fn tools_and_agents_say_what_is_offered_to_whom() {
    let api = Api::new().await;
    let ann = api.token("ann", &["tasks:read", "tasks:write"]).await;
    let offers = async |query: &str| {
        let tools = api.ask("GET", &format!("/v1/tools{query}"), Some(&ann), None).await.expect(200);
        let of = |tool: &Value| (tool["name"].clone(), tool["offered"].clone(), tool["reason"].clone());
        tools["items"].as_array().unwrap().iter().map(of).collect::<Vec<_>>()
    };
    let all = offers("").await;
    let (last, others) = all.split_last().unwrap();
    assert!(others.iter().all(|(_, offered, reason)| offered == true && reason.is_null()), "{all:?}");
    assert_eq!(*last, (json!("github.merge"), json!(false), json!("not_accepted")), "nobody has accepted it");
    let booker = offers("?agent=booker").await;
    let of_booker = |name: &str| booker.iter().find(|offer| offer.0 == name).unwrap();
    assert_eq!((&of_booker("current_time").1, &of_booker("current_time").2), (&json!(true), &json!(null)));
    assert_eq!(
        (&of_booker("http_request").1, &of_booker("http_request").2),
        (&json!(false), &json!("denied_by_limits"))
    );

    let agents = api.ask("GET", "/v1/agents", Some(&ann), None).await.expect(200);
    let agent = &agents["items"][0];
    assert_eq!((&agent["name"], &agent["usable"]), (&json!("booker"), &json!(false)), "no model is configured here");
    let listed = agent["tools"].as_array().unwrap().iter();
    let listed: Vec<_> = listed.map(|t| (t["name"].clone(), t["offered"].clone(), t["reason"].clone())).collect();
    assert_eq!(listed, booker, "both lists say the same");

    // the executor of these tests asks no model
    let daily = json!({ "name": "d", "trigger": { "type": "schedule", "cron": "0 8 * * *" }, "action": { "instruction": "x" } });
    let made = api.ask("POST", "/v1/tasks", Some(&ann), Some(daily)).await.expect(201);
    let task = made["id"].as_str().unwrap();
    let none = offers(&format!("?task_id={task}")).await;
    assert!(none.iter().all(|(_, offered, reason)| offered == false && reason == "no_agent"), "{none:?}");

    let bob = api.token("bob", &["tasks:read"]).await;
    let told = async |query: String, token: &str| api.ask("GET", &format!("/v1/tools{query}"), Some(token), None).await;
    told(format!("?task_id={task}"), &bob).await.expect(404);
    told("?tenant_id=bob".into(), &ann).await.expect(404);
    let unknown = told("?agent=boker".into(), &ann).await.expect(400);
    assert!(unknown.to_string().contains("did you mean `booker`?"), "{unknown}");
    told(format!("?agent=booker&task_id={task}"), &ann).await.expect(400);
}

#[tokio::test]
async fn runs_are_found_by_how_their_id_their_key_or_the_name_of_their_task_begins() {
    let api = Api::new().await;
    let (task, other) = (task(&api, "ann").await, task(&api, "bob").await);
    let run = async |task: &str| {
        let run = api.admin("POST", &format!("/v1/tasks/{task}/run"), None).await.expect(201);
        run["id"].as_str().unwrap().to_owned()
    };
    let (own, foreign) = (run(&task).await, run(&other).await);
    let ann = api.token("ann", &["runs:read"]).await;
    let found = async |query: &str| -> Vec<(Value, Value)> {
        let page = api.ask("GET", &format!("/v1/runs?{query}"), Some(&ann), None).await.expect(200);
        page["items"].as_array().unwrap().iter().map(|run| (run["id"].clone(), run["task_name"].clone())).collect()
    };
    let expected = [(json!(own), json!("Morning mail"))];
    for q in [own.clone(), format!("m:{own}"), "m:".to_owned(), "morning%20m".to_owned(), "0".to_owned()] {
        assert_eq!(found(&format!("q={q}")).await, expected, "{q}");
        assert_eq!(found(&format!("q={q}&task_id={task}&state=queued")).await, expected, "{q}");
    }
    for q in [foreign.clone(), format!("m:{foreign}"), "mail".to_owned()] {
        assert_eq!(found(&format!("q={q}")).await, Vec::new(), "{q}");
    }
    api.admin("DELETE", &format!("/v1/tasks/{task}"), None).await.expect(204);
    assert_eq!(found(&format!("q={own}")).await, [(json!(own), Value::Null)], "the name went with the task");
}

#[tokio::test]
async fn beginning_of_a_run_is_taken_at_its_longest_and_refused_one_beyond_it() {
    let api = Api::new().await;
    let asked =
        async |characters: usize| api.admin("GET", &format!("/v1/runs?q={}", "%C3%BC".repeat(characters)), None).await;
    assert_eq!(asked(200).await.expect(200)["items"], json!([]));
    let problem = asked(201).await.expect(400);
    assert_eq!(problem["errors"][0], json!({ "pointer": "/q", "message": "must be at most 200 characters" }));
}
