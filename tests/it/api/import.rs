//! Tasks by the line: good ones are stored whatever stands in the others, and stable keys make it safe to say it again.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::http::Request;
use reveille::base::clock::pause;
use reveille::http::server::ServerLimits;
use serde_json::{Value, json};

use super::service::{ADMIN, Api, Reply, daily_of, on_both};

on_both! {
    good_lines_are_stored_and_bad_ones_reported_with_their_places
    lines_with_keys_may_be_sent_again
    lines_beyond_a_quota_are_bad_and_those_before_are_stored
    import_of_which_a_quota_allows_nothing_is_refused_as_a_whole
    long_import_is_stored_batch_by_batch
    tenant_imports_for_itself
    key_is_given_once_and_stays
    dry_run_says_what_would_be_and_makes_nothing
    first_event_tasks_of_an_import_are_held_against_kept_events
}

async fn import(api: &Api, token: &str, lines: &str) -> Reply {
    let request = Request::post("/v1/tasks/import").header("authorization", format!("Bearer {token}"));
    api.send(request.header("content-type", "application/x-ndjson").body(Body::from(lines.to_owned())).unwrap()).await
}

fn line(key: &str) -> Value {
    let mut task = daily_of("ann");
    task["key"] = json!(key);
    task
}

async fn count(api: &Api) -> usize {
    let tasks = api.admin("GET", "/v1/tasks?limit=200", None).await.expect(200);
    tasks["items"].as_array().unwrap().len()
}

async fn good_lines_are_stored_and_bad_ones_reported_with_their_places(api: Api) {
    let mut wrong = line("c");
    wrong["trigger"]["timezone"] = json!("Europe/Berln");
    wrong["key"] = json!("");
    let lines = format!("{}\r\n\n{{\"name\":\n{wrong}\n  \n{}\n[1]\n{}", line("a"), line("b"), daily_of("bob"));
    let report = import(&api, ADMIN, &lines).await.expect(200);
    let counts =
        [&report["lines"], &report["created"], &report["unchanged"], &report["rejected"]].map(|n| n.as_u64().unwrap());
    assert_eq!(counts, [6, 3, 0, 3]);
    let bad: Vec<(u64, Vec<&str>)> = report["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|bad| {
            let faults = bad["errors"].as_array().unwrap().iter();
            (bad["line"].as_u64().unwrap(), faults.map(|fault| fault["pointer"].as_str().unwrap()).collect())
        })
        .collect();
    assert_eq!(bad, [(3, vec![""]), (4, vec!["/key", "/trigger/timezone"]), (7, vec!["/tenant_id", ""])]);
    let said = report["errors"][1]["errors"][1]["message"].as_str().unwrap();
    assert!(said.contains("did you mean `Europe/Berlin`?"), "{said}");
    assert_eq!(count(&api).await, 3);
    let found = api.admin("GET", "/v1/tasks?key=b", None).await.expect(200);
    assert_eq!((&found["items"][0]["key"], found["items"].as_array().unwrap().len()), (&json!("b"), 1));
    assert_eq!(found["items"][0]["next_fire_at"], "2026-11-22T00:00:00Z", "it is planned like any other");
}

async fn lines_with_keys_may_be_sent_again(api: Api) {
    let lines = format!("{}\n{}\n{}\n", line("a"), line("b"), line("a"));
    let report = import(&api, ADMIN, &lines).await.expect(200);
    assert_eq!(report, json!({ "lines": 3, "created": 2, "unchanged": 1, "rejected": 0, "errors": [] }));
    let before = api.written().await;
    let report = import(&api, ADMIN, &lines).await.expect(200);
    assert_eq!(report, json!({ "lines": 3, "created": 0, "unchanged": 3, "rejected": 0, "errors": [] }));
    assert_eq!(api.written().await, before, "nothing is changed");
    let report = import(&api, ADMIN, "").await.expect(200);
    assert_eq!(report, json!({ "lines": 0, "created": 0, "unchanged": 0, "rejected": 0, "errors": [] }));
}

async fn lines_beyond_a_quota_are_bad_and_those_before_are_stored(api: Api) {
    api.admin("PUT", "/v1/tenants/ann/quotas", Some(json!({ "tasks": 2 }))).await.expect(200);
    let mut of_bob = daily_of("bob");
    of_bob["key"] = json!("a");
    let lines = format!("{}\n{}\n{}\n{}\n{of_bob}\n", line("a"), line("a"), line("b"), line("c"));
    let report = import(&api, ADMIN, &lines).await.expect(200);
    let counts = [&report["lines"], &report["created"], &report["unchanged"], &report["rejected"]];
    assert_eq!(counts, [&json!(5), &json!(3), &json!(1), &json!(1)], "{report}");
    assert_eq!(report["errors"][0]["line"], 4);
    let said = report["errors"][0]["errors"][0]["message"].as_str().unwrap();
    assert!(said.starts_with("the quota `tasks` is 2, and 2 are used: delete tasks"), "{said}");
    assert_eq!(count(&api).await, 3);
}

async fn import_of_which_a_quota_allows_nothing_is_refused_as_a_whole(api: Api) {
    let limit = async |quotas: Value| {
        api.admin("PUT", "/v1/tenants/ann/quotas", Some(quotas)).await.expect(200);
    };
    limit(json!({ "tasks": 1 })).await;
    import(&api, ADMIN, &line("a").to_string()).await.expect(200);
    for lines in [format!("{}\n", line("b")), format!("no\n{}\n{}\n", line("b"), line("c"))] {
        let reply = import(&api, ADMIN, &lines).await;
        assert_eq!(reply.header("retry-after"), "60");
        let problem = reply.expect(429);
        assert_eq!((&problem["quota"], &problem["limit"], &problem["usage"]), (&json!("tasks"), &json!(1), &json!(1)));
    }
    assert_eq!(count(&api).await, 1);
    // lines that are there already are no matter of quotas
    let report = import(&api, ADMIN, &format!("{}\n", line("a"))).await.expect(200);
    assert_eq!(report, json!({ "lines": 1, "created": 0, "unchanged": 1, "rejected": 0, "errors": [] }));
    // with the first that is stored, each that is not is told with its quota, and counted
    limit(json!({ "tasks": 2 })).await;
    let report = import(&api, ADMIN, &format!("{}\nno\n{}\n{}\n", line("b"), line("c"), line("d"))).await.expect(200);
    let counts = ["lines", "created", "rejected", "over_quota"].map(|name| report[name].as_u64().unwrap());
    assert_eq!(counts, [4, 1, 3, 2]);
    let told: Vec<_> = report["errors"].as_array().unwrap().iter().map(|bad| (&bad["line"], &bad["quota"])).collect();
    let tasks = json!("tasks");
    assert_eq!(told, [(&json!(2), &Value::Null), (&json!(3), &tasks), (&json!(4), &tasks)]);
    assert_eq!(count(&api).await, 2);
}

async fn first_event_tasks_of_an_import_are_held_against_kept_events(api: Api) {
    let event = json!({ "tenant_id": "ann", "source": "shop", "type": "order", "data": { "total": 7 } });
    api.admin("POST", "/v1/events", Some(event)).await.expect(202);
    let on_event = |key: &str, filter: &str| {
        let mut task = line(key);
        task["trigger"] = json!({ "type": "event", "source": "shop", "filter": filter });
        task
    };
    let slip = "event.data.totl > 5";
    let missing = json!({ "expression": slip, "field": "event.data.totl", "did_you_mean": "total" });
    let lines = format!("{}\n\n{}\n{}\n", line("a"), on_event("b", slip), on_event("c", "event.data.total > 5"));
    let report = import(&api, ADMIN, &lines).await.expect(200);
    assert_eq!(report["warnings"], json!([{ "line": 3, "missing": missing }]));
    let again = import(&api, ADMIN, &lines).await.expect(200);
    assert_eq!((&again["unchanged"], again.get("warnings")), (&json!(3), None), "nothing is made");
    // 50 of an import are held against events
    let many: Vec<String> = (0..51).map(|number| on_event(&format!("d{number}"), slip).to_string()).collect();
    let report = import(&api, ADMIN, &many.join("\n")).await.expect(200);
    let told: Vec<u64> =
        report["warnings"].as_array().unwrap().iter().map(|warning| warning["line"].as_u64().unwrap()).collect();
    assert_eq!((&report["created"], told), (&json!(51), (1..51).collect()));
}

async fn long_import_is_stored_batch_by_batch(api: Api) {
    let lines: Vec<String> = (1..=1_203)
        .map(|n| match n {
            1 | 500 | 501 | 1_203 => "no".to_owned(),
            _ => line(&format!("k{n}")).to_string(),
        })
        .collect();
    let report = import(&api, ADMIN, &lines.join("\n")).await.expect(200);
    let bad: Vec<_> = report["errors"].as_array().unwrap().iter().map(|bad| bad["line"].as_u64().unwrap()).collect();
    assert_eq!((&report["created"], bad), (&json!(1_199), vec![1, 500, 501, 1_203]));
    let stats = api.admin("GET", "/v1/tasks?key=k1202", None).await.expect(200);
    assert_eq!(stats["items"].as_array().unwrap().len(), 1);
}

async fn tenant_imports_for_itself(api: Api) {
    let ann = api.token("ann", &["tasks:write"]).await;
    let mut mine = line("mine");
    mine.as_object_mut().unwrap().remove("tenant_id");
    let report = import(&api, &ann, &format!("{mine}\n{}\n", daily_of("bob"))).await.expect(200);
    assert_eq!((&report["created"], &report["rejected"]), (&json!(1), &json!(1)));
    assert_eq!(report["errors"][0]["line"], 2);
    assert_eq!(report["errors"][0]["errors"][0]["pointer"], "/tenant_id");
    let bobs = api.admin("GET", "/v1/tasks?tenant_id=bob", None).await.expect(200);
    assert_eq!(bobs["items"], json!([]));
    let reader = api.token("ann", &["tasks:read"]).await;
    import(&api, &reader, &mine.to_string()).await.expect(403);
}

async fn key_is_given_once_and_stays(api: Api) {
    let task = api.admin("POST", "/v1/tasks", Some(line("mail"))).await.expect(201);
    assert_eq!(task["key"], "mail");
    let problem = api.admin("POST", "/v1/tasks", Some(line("mail"))).await.expect(409);
    assert_eq!(problem["detail"], "there is a task with the key `mail`");
    let mut bobs = line("mail");
    bobs["tenant_id"] = json!("bob");
    api.admin("POST", "/v1/tasks", Some(bobs)).await.expect(201);
    let place = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    let problem = api.admin("PATCH", &place, Some(json!({ "key": "post" }))).await.expect(422);
    assert_eq!(problem["errors"][0]["pointer"], "/key");
    api.admin("PATCH", &place, Some(json!({ "key": null }))).await.expect(422);
    let renamed = api.admin("PATCH", &place, Some(json!({ "key": "mail", "name": "Post" }))).await.expect(200);
    assert_eq!((&renamed["key"], &renamed["name"]), (&json!("mail"), &json!("Post")));
    for bad in [json!("x".repeat(201)), json!("a\nb"), json!(7)] {
        let mut task = line("x");
        task["key"] = bad;
        let problem = api.admin("POST", "/v1/tasks", Some(task)).await.expect(422);
        assert_eq!(problem["errors"][0]["pointer"], "/key");
    }
}

async fn dry_run_says_what_would_be_and_makes_nothing(api: Api) {
    let mut once = line("once");
    once["trigger"] = json!({ "type": "schedule", "at": "2026-11-21T00:01:00Z" });
    let before = api.written().await;
    let tried = api.admin("POST", "/v1/tasks?dry_run=true", Some(once.clone())).await.expect(200);
    assert_eq!((&tried["key"], &tried["next_fire_at"]), (&json!("once"), &json!("2026-11-21T00:01:00Z")));
    api.admin("POST", "/v1/tasks?dry_run=true", Some(json!({ "tenant_id": "ann" }))).await.expect(422);
    api.admin("POST", "/v1/tasks?dry_run=perhaps", Some(once.clone())).await.expect(400);
    assert_eq!(api.written().await, before);

    let task = api.admin("POST", "/v1/tasks", Some(once.clone())).await.expect(201);
    let place = format!("/v1/tasks/{}", task["id"].as_str().unwrap());
    let before = api.written().await;
    let patch = json!({ "name": "Other", "version": 1 });
    let tried = api.admin("PATCH", &format!("{place}?dry_run=true"), Some(patch)).await.expect(200);
    assert_eq!((&tried["name"], &tried["version"]), (&json!("Other"), &json!(1)));
    api.admin("PATCH", &format!("{place}?dry_run=true"), Some(json!({ "version": 9 }))).await.expect(409);
    assert_eq!(api.written().await, before);

    // a trigger that stays as it is may be sent back when its instant has passed; another one in the past may not
    api.advance(120);
    let same = json!({ "trigger": once["trigger"], "name": "Still once" });
    api.admin("PATCH", &place, Some(same)).await.expect(200);
    let past = json!({ "trigger": { "type": "schedule", "at": "2026-11-21T00:00:30Z" } });
    let problem = api.admin("PATCH", &place, Some(past)).await.expect(422);
    assert_eq!(problem["errors"][0]["pointer"], "/trigger/at");
}

#[tokio::test]
async fn import_line_that_is_too_long_is_refused_and_earlier_lines_are_stored() {
    let length = line("a").to_string().len();
    let limits = ServerLimits { body_bytes: length + 20, import_bytes: 4 * length, ..ServerLimits::default() };
    let api = Api::with(limits).await;
    let mut long = line("long");
    long["name"] = json!("x".repeat(30));
    let report = import(&api, ADMIN, &format!("{}\n{long}\n{}\n", line("a"), line("b"))).await.expect(200);
    assert_eq!(
        (&report["created"], &report["rejected"], &report["errors"][0]["line"]),
        (&json!(2), &json!(1), &json!(2))
    );
    let said = report["errors"][0]["errors"][0]["message"].as_str().unwrap();
    assert_eq!(said, format!("must be at most {} bytes long", length + 20));
    // announced: not a byte of it is read
    let lines: Vec<String> = (0..9).map(|n| line(&n.to_string()).to_string()).collect();
    let request = Request::post("/v1/tasks/import").header("authorization", format!("Bearer {ADMIN}"));
    let request = request.header("content-length", lines.join("\n").len()).body(Body::from(lines.join("\n"))).unwrap();
    api.send(request).await.expect(413);
    assert_eq!(count(&api).await, 2);
    // not announced: it is read until it is too much
    let parts: Vec<_> = lines.iter().map(|line| Ok::<_, std::io::Error>(Bytes::from(format!("{line}\n")))).collect();
    let body = Body::from_stream(futures::stream::iter(parts));
    let request = Request::post("/v1/tasks/import").header("authorization", format!("Bearer {ADMIN}")).body(body);
    api.send(request.unwrap()).await.expect(413);
    assert_eq!(count(&api).await, 2 + 3, "what came before is stored");
}

#[tokio::test]
async fn import_may_take_longer_than_other_requests_and_not_for_ever() {
    let short = Duration::from_millis(200);
    // a line each while other requests would be over
    let slow = async |api: &Api, parts: usize| {
        let parts = futures::stream::unfold(0, move |n| async move {
            pause(Duration::from_millis(100)).await;
            (n < parts).then(|| (Ok::<_, std::io::Error>(Bytes::from(format!("{}\n", line(&n.to_string())))), n + 1))
        });
        let request = Request::post("/v1/tasks/import").header("authorization", format!("Bearer {ADMIN}"));
        api.send(request.body(Body::from_stream(parts)).unwrap()).await
    };
    let api = Api::with(ServerLimits { request_time: short, ..ServerLimits::default() }).await;
    assert_eq!(slow(&api, 5).await.expect(200)["created"], 5);
    let api = Api::with(ServerLimits { import_time: short, ..ServerLimits::default() }).await;
    slow(&api, 50).await.expect(503);
}

#[tokio::test]
async fn import_of_nothing_but_empty_or_bad_lines_ends_at_its_bound() {
    let api = Api::with(ServerLimits::default()).await;
    for barren in ["", " \t", "no task"] {
        let key = format!("before {barren:?}");
        let allowed = format!("{}\n{}", line(&key), format!("{barren}\n").repeat(100_000));
        let report = import(&api, ADMIN, &allowed).await.expect(200);
        assert_eq!((&report["created"], report["errors"].as_array().unwrap().len() <= 1_000), (&json!(1), true));
        let more =
            format!("{}\n{}{}", line(&format!("{key} again")), format!("{barren}\n").repeat(110_000), line("never"));
        let problem = import(&api, ADMIN, &more).await.expect(422);
        let said = problem["errors"][0]["message"].as_str().unwrap();
        assert_eq!(said, "must have at most 100000 lines that are empty or no task");
    }
    assert_eq!(count(&api).await, 6, "what came before is stored, what comes behind is not read");
}

#[tokio::test]
async fn import_describes_a_line_with_a_bounded_number_of_faults() {
    let api = Api::with(ServerLimits::default()).await;
    let fields: String = (0..1_000).map(|n| format!("\"f{n}\":0,")).collect();
    let report = import(&api, ADMIN, &format!("{{{fields}\"name\":1}}")).await.expect(200);
    assert_eq!(report["errors"][0]["errors"].as_array().unwrap().len(), 10);
}
