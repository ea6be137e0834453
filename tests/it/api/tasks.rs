//! Tasks: what is made of what was sent, and everything that may be wrong with it.

use serde_json::{Value, json};

use super::service::{Api, at, daily, daily_of};

#[tokio::test]
async fn task_is_answered_whole_with_what_was_left_out() {
    let api = Api::new().await;
    let reply = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await;
    let place = reply.header("location").to_owned();
    let task = reply.expect(201);
    assert_eq!(place, format!("/v1/tasks/{}", task["id"].as_str().unwrap()));
    assert_eq!(
        task,
        json!({
            "id": task["id"], "tenant_id": "ann", "key": null, "name": "Morning mail",
            "trigger": { "type": "schedule", "cron": "0 8 * * *", "timezone": "Asia/Shanghai",
                "catch_up": "latest", "overlap": "skip" },
            "executor": "orchestrator",
            "action": { "instruction": "Summarize my unread emails", "config": {} },
            "max_runs": null, "timeout_seconds": 600,
            "retry": { "max_attempts": 3, "backoff_seconds": 10 },
            "pause_after_failures": null, "metadata": {},
            "status": "active", "status_reason": null,
            "next_fire_at": "2026-11-22T00:00:00Z",
            "last_run": null, "run_count": 0,
            "created_at": "2026-11-21T00:00:00Z", "updated_at": "2026-11-21T00:00:00Z", "version": 1,
        })
    );
    let read = api.admin("GET", &place, None).await.expect(200);
    assert_eq!(read, task);
}

#[tokio::test]
async fn everything_that_is_wrong_is_told_at_once_with_its_place() {
    let api = Api::new().await;
    let body = json!({
        "name": "", "trigger": { "type": "schedule", "cron": "0 8 * * *", "timezone": "Europe/Berln" },
        "executor": "orchestrator", "output": { "channel": ["emial", "webhook", "webhook"] },
        "max_runs": 0, "timeout_seconds": 90000, "retry": { "max_attempts": 21, "backof_seconds": 1 },
        "pause_after_failures": "no", "metadata": [], "stauts": 1, "run_count": 4,
    });
    let problem = api.admin("POST", "/v1/tasks", Some(body)).await.expect(422);
    let mut faults: Vec<(&str, &str)> = problem["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|fault| (fault["pointer"].as_str().unwrap(), fault["message"].as_str().unwrap()))
        .collect();
    faults.sort();
    let places: Vec<&str> = faults.iter().map(|(place, _)| *place).collect();
    assert_eq!(
        places,
        [
            "/action/instruction",
            "/max_runs",
            "/metadata",
            "/name",
            "/output/channel/0",
            "/output/channel/2",
            "/pause_after_failures",
            "/retry/backof_seconds",
            "/retry/max_attempts",
            "/run_count",
            "/stauts",
            "/tenant_id",
            "/timeout_seconds",
            "/trigger/timezone",
        ]
    );
    let said = |place: &str| faults.iter().find(|(at, _)| *at == place).unwrap().1;
    assert!(said("/trigger/timezone").contains("did you mean `Europe/Berlin`?"), "{}", said("/trigger/timezone"));
    assert!(said("/output/channel/0").contains("did you mean `email`?"), "{}", said("/output/channel/0"));
    assert_eq!(said("/tenant_id"), "is missing: an admin token names the tenant");
    assert_eq!(said("/timeout_seconds"), "must be a whole number from 1 to 86400");
}

#[tokio::test]
async fn patch_replaces_the_fields_it_has_and_keeps_the_others() {
    let api = Api::new().await;
    let mut body = daily_of("ann");
    body["metadata"] = json!({ "a": 1, "b": 2 });
    body["output"] = Value::Null;
    let task = api.admin("POST", "/v1/tasks", Some(body)).await.expect(201);
    assert_eq!(task["output"], Value::Null);
    let place = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    api.advance(60);
    let patch = json!({
        "metadata": { "c": 3 }, "trigger": { "type": "schedule", "interval": "1h" }, "output": { "channel": "email" },
        "tenant_id": "ann",
    });
    let changed = api.admin("PATCH", &place, Some(patch)).await.expect(200);
    let mut expected = task.clone();
    expected["metadata"] = json!({ "c": 3 });
    expected["output"] = json!({ "channel": "email" });
    expected["trigger"] = json!({ "type": "schedule", "interval": "1h", "catch_up": "latest", "overlap": "skip" });
    expected["next_fire_at"] = json!("2026-11-21T01:00:00Z");
    expected["updated_at"] = json!("2026-11-21T00:01:00Z");
    expected["version"] = json!(2);
    assert_eq!(changed, expected);

    let back = api.admin("PATCH", &place, Some(json!({ "output": {}, "metadata": null }))).await.expect(200);
    assert_eq!((back.get("output"), &back["metadata"]), (None, &json!({})));
}

#[tokio::test]
async fn stale_version_changes_nothing() {
    let api = Api::new().await;
    let task = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    let place = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    api.admin("PATCH", &place, Some(json!({ "name": "First", "version": 1 }))).await.expect(200);
    let problem = api.admin("PATCH", &place, Some(json!({ "name": "Second", "version": 1 }))).await.expect(409);
    assert_eq!(problem["detail"], "the task has version 2 by now");
    assert_eq!(api.admin("GET", &place, None).await.expect(200)["name"], "First");
}

#[tokio::test]
async fn unchangeable_fields_are_named() {
    let api = Api::new().await;
    let task = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    let place = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    for (patch, pointer) in [
        (json!({ "tenant_id": "bob" }), "/tenant_id"),
        (json!({ "status": "paused" }), "/status"),
        (json!({ "name": null }), "/name"),
        (json!({ "version": "1" }), "/version"),
        (json!({ "action": { "instruction": "" } }), "/action/instruction"),
    ] {
        let problem = api.admin("PATCH", &place, Some(patch.clone())).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{patch}: {problem}");
    }
    assert_eq!(api.admin("GET", &place, None).await.expect(200), task);
}

#[tokio::test]
async fn paused_task_waits_and_a_resumed_one_does_not_catch_up() {
    let api = Api::new().await;
    let task = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    let place = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    let paused = api.admin("POST", &format!("{place}/pause"), Some(json!({ "reason": "holiday" }))).await.expect(200);
    assert_eq!(
        (&paused["status"], &paused["status_reason"], &paused["next_fire_at"]),
        (&json!("paused"), &json!("holiday"), &Value::Null)
    );
    api.advance(3 * 86_400);
    let resumed = api.admin("POST", &format!("{place}/resume"), None).await.expect(200);
    assert_eq!((&resumed["status"], &resumed["next_fire_at"]), (&json!("active"), &json!("2026-11-25T00:00:00Z")));
}

#[tokio::test]
async fn deleted_task_is_gone_and_its_runs_stay() {
    let api = Api::new().await;
    let task = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    let place = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    let run = api.admin("POST", &format!("{place}/run"), None).await.expect(201);
    api.admin("DELETE", &place, None).await.expect(204);
    api.admin("GET", &place, None).await.expect(404);
    api.admin("DELETE", &place, None).await.expect(404);
    let run = api.admin("GET", &format!("/v1/runs/{}", run["id"].as_str().unwrap()), None).await.expect(200);
    assert_eq!(run["state"], "cancelled");
}

#[tokio::test]
async fn list_is_filtered_and_paged_newest_first() {
    let api = Api::new().await;
    for (tenant, name) in [("ann", "One mail"), ("ann", "Two"), ("bob", "Three MAILS"), ("ann", "Four")] {
        let mut task = daily_of(tenant);
        task["name"] = json!(name);
        api.admin("POST", "/v1/tasks", Some(task)).await.expect(201);
    }
    let names = |page: &Value| -> Vec<String> {
        page["items"].as_array().unwrap().iter().map(|task| task["name"].as_str().unwrap().to_owned()).collect()
    };
    let first = api.admin("GET", "/v1/tasks?limit=3", None).await.expect(200);
    assert_eq!(names(&first), ["Four", "Three MAILS", "Two"]);
    let cursor = first["next_cursor"].as_str().unwrap();
    let rest = api.admin("GET", &format!("/v1/tasks?limit=3&cursor={cursor}"), None).await.expect(200);
    assert_eq!((names(&rest), &rest["next_cursor"]), (vec!["One mail".to_owned()], &Value::Null));

    for (query, expected) in [
        ("tenant_id=bob", vec!["Three MAILS"]),
        ("q=mail", vec!["Three MAILS", "One mail"]),
        ("status=paused", vec![]),
        ("trigger_type=schedule&tenant_id=ann", vec!["Four", "Two", "One mail"]),
    ] {
        let page = api.admin("GET", &format!("/v1/tasks?{query}"), None).await.expect(200);
        assert_eq!(names(&page), expected, "{query}");
    }
    let ann = api.token("ann", &["tasks:read"]).await;
    let own = api.ask("GET", "/v1/tasks", Some(&ann), None).await.expect(200);
    assert_eq!(names(&own), ["Four", "Two", "One mail"]);
}

#[tokio::test]
async fn task_shows_its_newest_run() {
    let api = Api::new().await;
    let task = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    let place = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    api.admin("POST", &format!("{place}/run"), None).await.expect(201);
    api.advance(5);
    let newest = api.admin("POST", &format!("{place}/run"), None).await.expect(201);
    let expected = json!({
        "id": newest["id"], "state": "queued", "scheduled_for": "2026-11-21T00:00:05Z", "finished_at": null,
    });
    let read = api.admin("GET", &place, None).await.expect(200);
    assert_eq!((&read["last_run"], &read["run_count"]), (&expected, &json!(2)));
    let listed = api.admin("GET", "/v1/tasks", None).await.expect(200);
    assert_eq!(listed["items"][0]["last_run"], expected);
}

#[tokio::test]
async fn backfill_runs_the_instants_of_its_range() {
    let api = Api::new().await;
    let task = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201);
    let place = format!("/v1/tasks/{}/backfill", task["id"].as_str().unwrap());
    let range = json!({ "from": "2026-11-18T00:00:00Z", "to": "2026-11-20T00:00:00Z" });
    let backfill = api.admin("POST", &place, Some(range)).await.expect(202);
    assert_eq!(backfill["fires"], json!(["2026-11-18T00:00:00Z", "2026-11-19T00:00:00Z"]));
    let runs = api.admin("GET", "/v1/runs", None).await.expect(200);
    let mut keys: Vec<&str> =
        runs["items"].as_array().unwrap().iter().map(|run| run["fire_key"].as_str().unwrap()).collect();
    keys.sort();
    let id = backfill["id"].as_str().unwrap();
    assert_eq!(keys, [format!("b:{id}:2026-11-18T00:00:00.000Z"), format!("b:{id}:2026-11-19T00:00:00.000Z")]);

    for (range, pointer) in [
        (json!({ "from": "2026-11-20T00:00:00Z", "to": "2026-11-19T00:00:00Z" }), "/from"),
        (json!({ "from": "2026-11-20T00:00:00Z", "to": "2026-11-22T00:00:00Z" }), "/to"),
        (json!({ "from": "2020-01-01T00:00:00Z", "to": "2026-11-01T00:00:00Z" }), "/to"),
        (json!({ "from": "yesterday", "to": "2026-11-01T00:00:00Z" }), "/from"),
        (json!({ "from": "2026-11-20T00:00:00Z" }), "/to"),
    ] {
        let problem = api.admin("POST", &place, Some(range.clone())).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], pointer, "{range}: {problem}");
    }
}

#[tokio::test]
async fn preview_tells_the_next_fires_and_makes_nothing() {
    let api = Api::new().await;
    let body = json!({ "trigger": daily()["trigger"], "count": 2, "from": "2026-12-24T12:00:00Z" });
    let preview = api.admin("POST", "/v1/schedules/preview", Some(body)).await.expect(200);
    assert_eq!(preview, json!({ "fires": ["2026-12-25T00:00:00Z", "2026-12-26T00:00:00Z"], "truncated": false }));
    let preview = api.admin("POST", "/v1/schedules/preview", Some(json!({ "trigger": daily()["trigger"] }))).await;
    let preview = preview.expect(200);
    assert_eq!(preview["fires"].as_array().unwrap().len(), 5);
    assert!(
        preview["fires"][0].as_str().unwrap().parse::<chrono::DateTime<chrono::Utc>>().unwrap()
            > at("2026-11-21T00:00:00Z")
    );

    // a Sunday, and six days of seconds that are left out
    let sundays = json!({ "type": "schedule", "cron": "* * * * * *", "exclude": ["* * * * 1-6"] });
    let body = json!({ "trigger": sundays, "from": "2026-11-22T23:59:58Z" });
    let preview = api.admin("POST", "/v1/schedules/preview", Some(body)).await.expect(200);
    assert_eq!(preview, json!({ "fires": ["2026-11-22T23:59:59Z"], "truncated": true }));

    let body = json!({ "trigger": { "type": "schedule", "cron": "0 25 * * *" }, "count": 0, "form": 1 });
    let problem = api.admin("POST", "/v1/schedules/preview", Some(body)).await.expect(422);
    assert_eq!(problem["errors"][0]["message"], "unknown field; did you mean `from`?");
    let body = json!({ "trigger": { "type": "schedule", "cron": "0 25 * * *" }, "count": 0 });
    let problem = api.admin("POST", "/v1/schedules/preview", Some(body)).await.expect(422);
    let places: Vec<&str> =
        problem["errors"].as_array().unwrap().iter().map(|fault| fault["pointer"].as_str().unwrap()).collect();
    assert_eq!(places, ["/count", "/trigger/cron"]);
    let tasks = api.admin("GET", "/v1/tasks", None).await.expect(200);
    assert_eq!(tasks, json!({ "items": [], "next_cursor": null }));
}
