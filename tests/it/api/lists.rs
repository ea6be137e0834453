//! Lists: bounded in bytes however large the things in them are, and complete page by page.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::service::{Api, daily_of, on_both};

/// Most bytes of a page: its bound, one thing more, and what JSON adds.
const PAGE: usize = 4 * 1024 * 1024;
/// A large text, of those that one request can carry.
const LARGE: usize = 1_000_000;

on_both! {
    list_of_runs_is_short_however_large_their_inputs_are
    list_of_tasks_ends_its_pages_at_a_bound_and_leaves_none_out
    list_of_events_ends_its_pages_at_a_bound_and_leaves_none_out
    empty_value_in_a_query_is_no_filter
    tenant_of_another_form_is_not_made_and_one_that_is_stored_can_be_read
}

/// Every page of a list; each is held to the bound.
async fn pages(api: &Api, path: &str) -> Vec<Vec<Value>> {
    let (mut pages, mut cursor): (Vec<Vec<Value>>, Option<String>) = (Vec::new(), None);
    loop {
        let next = cursor.map_or(String::new(), |cursor| format!("&cursor={cursor}"));
        let page = api.admin("GET", &format!("{path}?limit=200{next}"), None).await.expect(200);
        let bytes = serde_json::to_string(&page).unwrap().len();
        assert!(bytes <= PAGE, "a page of {path} has {bytes} bytes");
        pages.push(page["items"].as_array().unwrap().clone());
        assert!(pages.len() < 100, "{path} does not end");
        match page["next_cursor"].as_str() {
            Some(next) => cursor = Some(next.to_owned()),
            None => return pages,
        }
    }
}

fn ids(pages: &[Vec<Value>]) -> BTreeSet<String> {
    pages.iter().flatten().map(|item| item["id"].as_str().unwrap().to_owned()).collect()
}

/// Runs with a large input, which are read together.
const RUNS: usize = 25;

async fn list_of_runs_is_short_however_large_their_inputs_are(api: Api) {
    let task = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    let place = format!("/v1/tasks/{}/run", task["id"].as_str().unwrap());
    let input = json!({ "text": "x".repeat(LARGE) });
    let mut first = String::new();
    for _ in 0..RUNS {
        let run = api.admin("POST", &place, Some(json!({ "input": input }))).await.expect(201);
        first = run["id"].as_str().unwrap().to_owned();
    }
    let page = api.admin("GET", "/v1/runs?limit=200", None).await.expect(200);
    let items = page["items"].as_array().unwrap();
    assert_eq!((items.len(), &page["next_cursor"]), (RUNS, &Value::Null));
    let bytes = serde_json::to_string(&page).unwrap().len();
    assert!(bytes < RUNS * 2_500, "{RUNS} runs have {bytes} bytes");
    for item in items {
        assert!(item.get("input").is_none(), "{item}");
        assert!(item["input_bytes"].as_u64().unwrap() as usize >= LARGE, "{item}");
    }
    let whole = api.admin("GET", &format!("/v1/runs/{first}"), None).await.expect(200);
    assert_eq!(whole["input"], input, "the whole is in the run itself");
    // a list of tasks names the last run of each, and no more of it
    let tasks = api.admin("GET", "/v1/tasks", None).await.expect(200);
    assert_eq!(tasks["items"][0]["last_run"]["id"], json!(first));
}

async fn list_of_tasks_ends_its_pages_at_a_bound_and_leaves_none_out(api: Api) {
    let mut made = BTreeSet::new();
    for _ in 0..12 {
        let mut task = daily_of("ann");
        task["action"] = json!({ "instruction": "x", "config": { "text": "x".repeat(LARGE - 10_000) } });
        let task = api.admin("POST", "/v1/tasks", Some(task)).await.expect(201);
        made.insert(task["id"].as_str().unwrap().to_owned());
    }
    let pages = pages(&api, "/v1/tasks").await;
    assert!(pages.len() > 2, "{}", pages.len());
    assert!(pages.iter().all(|page| !page.is_empty()), "a page has one thing at least");
    assert_eq!(pages.iter().map(Vec::len).sum::<usize>(), 12, "none comes twice");
    assert_eq!(ids(&pages), made);
}

async fn list_of_events_ends_its_pages_at_a_bound_and_leaves_none_out(api: Api) {
    let text = "x".repeat(250_000);
    for n in 0..30 {
        let event = json!({ "tenant_id": "ann", "source": "s", "type": "t", "id": n.to_string(), "data": text });
        api.admin("POST", "/v1/events", Some(event)).await.expect(202);
    }
    let pages = pages(&api, "/v1/events").await;
    let found = ids(&pages);
    assert_eq!((found.len(), pages.iter().map(Vec::len).sum::<usize>()), (30, 30));
    assert!(pages.len() > 1);
}

async fn empty_value_in_a_query_is_no_filter(api: Api) {
    for (path, name) in [
        ("/v1/runs?task_id=", "task_id"),
        ("/v1/runs?state=", "state"),
        ("/v1/tasks?tenant_id=", "tenant_id"),
        ("/v1/tasks?q", "q"),
        ("/v1/runs?q=", "q"),
        ("/v1/events?source=", "source"),
        ("/v1/deliveries?cursor=", "cursor"),
        ("/v1/approvals?limit=", "limit"),
    ] {
        let problem = api.admin("GET", path, None).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], format!("/{name}"), "{path}: {problem}");
    }
}

async fn tenant_of_another_form_is_not_made_and_one_that_is_stored_can_be_read(api: Api) {
    for odd in ["ta ", " ta", "t\u{200b}a", "\u{ff54}\u{ff41}", "t\u{202e}a"] {
        let problem = api.admin("POST", "/v1/tasks", Some(daily_of(odd))).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], "/tenant_id", "{problem}");
        let token = json!({ "tenant_id": odd, "name": "x", "scopes": ["tasks:read"] });
        let problem = api.admin("POST", "/v1/tokens", Some(token)).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], "/tenant_id", "{problem}");
        let event = json!({ "tenant_id": odd, "source": "s", "type": "t" });
        let problem = api.admin("POST", "/v1/events", Some(event)).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], "/tenant_id", "{problem}");
        let place = format!("/v1/recipients/{}", odd.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>());
        api.admin("PUT", &place, Some(json!({ "addresses": {} }))).await.expect(422);
    }
    // one of the time before there was a form: its token is good, and an admin reads and deletes what it has
    let token = api.token("ta ", &["tasks:read", "tasks:write"]).await;
    let made = api.ask("POST", "/v1/tasks", Some(&token), Some(daily_of("ta "))).await.expect(201);
    let found = api.admin("GET", "/v1/tasks?tenant_id=ta%20", None).await.expect(200);
    assert_eq!(found["items"][0]["id"], made["id"]);
    assert_eq!(api.admin("GET", "/v1/tasks?tenant_id=ta", None).await.expect(200)["items"], json!([]));
    let place = format!("/v1/tasks/{}", made["id"].as_str().unwrap());
    api.admin("DELETE", &place, None).await.expect(204);
}
