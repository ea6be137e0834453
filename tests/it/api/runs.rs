//! Runs: read as they were recorded, filtered, cancelled, run again.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::{Value, json};

use super::service::{Api, daily_of};

async fn task(api: &Api, tenant: &str) -> String {
    let task = api.admin("POST", "/v1/tasks", Some(daily_of(tenant))).await.expect(201);
    task["id"].as_str().unwrap().to_owned()
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
