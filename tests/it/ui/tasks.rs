//! The pages of tasks: the list, one task with its past and future, why it did not fire, its editor and its buttons.

use reveille::base::id::Scope;
use serde_json::{Value, json};
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::visitor::{Shown, admin, visitor};
use crate::api::service::{Api, daily_of, on_both};

on_both! {
    list_shows_trigger_last_run_and_next_fire_of_the_reader_s_tasks_alone
    task_of_another_tenant_is_not_there
    page_shows_past_and_future_and_the_work
    task_that_did_not_fire_is_explained_two_steps_from_the_list
    task_is_paused_resumed_run_and_backfilled_by_forms
    task_is_deleted_after_a_second_question
    operator_alone_disables_and_enables
    missing_permission_hides_its_part_and_its_buttons
    hostile_text_stays_text
    draft_is_previewed_without_being_saved
    condition_of_a_draft_is_looked_at_once
    pipeline_of_a_draft_is_tried_with_a_sample
    draft_is_saved_or_shown_again_with_its_faults
    edit_of_an_older_version_keeps_what_was_typed
}

/// Makes a task; answers its id.
async fn made(api: &Api, task: Value) -> String {
    let task = api.admin("POST", "/v1/tasks", Some(task)).await.expect(201);
    task["id"].as_str().expect("an id").to_owned()
}

async fn stored(api: &Api, id: &str) -> Value {
    api.admin("GET", &format!("/v1/tasks/{id}"), None).await.expect(200)
}

async fn runs(api: &Api, id: &str) -> Vec<Value> {
    let list = api.admin("GET", &format!("/v1/runs?task_id={id}"), None).await.expect(200);
    list["items"].as_array().expect("a list").clone()
}

#[track_caller]
fn leads_to(shown: &Shown, place: &str) {
    assert_eq!((shown.status, shown.location.as_deref()), (303, Some(place)), "{}", shown.text);
}

#[track_caller]
fn is_shown(shown: &Shown, status: u16) {
    assert_eq!(shown.status, status, "{}", shown.text);
}

async fn list_shows_trigger_last_run_and_next_fire_of_the_reader_s_tasks_alone(api: Api) {
    let id = made(&api, daily_of("ann")).await;
    let run = api.admin("POST", &format!("/v1/tasks/{id}/run"), None).await.expect(201)["id"].clone();
    let mut other = daily_of("bob");
    other["name"] = json!("Evening mail");
    made(&api, other).await;

    let ann = visitor(&api, "ann", &["*"]).await;
    let list = ann.get("/ui/tasks").await;
    is_shown(&list, 200);
    list.has("Morning mail");
    list.has("every day at 08:00 (Asia/Shanghai)");
    list.has(&format!("href=\"/ui/runs/{}\"", run.as_str().unwrap()));
    list.has("2026-11-22 00:00:00 UTC");
    list.has("<svg class=\"strip\"");
    list.has(&format!("href=\"/ui/tasks/{id}#why\""));
    list.lacks("Evening mail");

    ann.get("/ui/tasks?status=paused").await.has("Nothing fits these filters.");
    ann.get("/ui/tasks?q=morning&trigger_type=schedule").await.has("Morning mail");
    ann.get("/ui/tasks?status=novel").await.has("class=\"fault\"");
    visitor(&api, "cy", &["*"]).await.get("/ui/tasks").await.has("reveille task create");

    let all = admin(&api).await;
    let list = all.get("/ui/tasks").await;
    list.has("Evening mail");
    list.has("<td data-label=\"Tenant\">bob</td>");
    all.get("/ui/tasks?tenant_id=ann").await.lacks("Evening mail");
}

async fn task_of_another_tenant_is_not_there(api: Api) {
    let id = made(&api, daily_of("ann")).await;
    let bob = visitor(&api, "bob", &["*"]).await;
    for path in ["", "/edit", "/delete", "?at=2026-11-20T08:00"] {
        let shown = bob.get(&format!("/ui/tasks/{id}{path}")).await;
        is_shown(&shown, 404);
        shown.lacks("Morning mail");
    }
    is_shown(&bob.get("/ui/tasks/novel").await, 404);
    for action in ["pause", "resume", "run", "backfill", "delete", "edit"] {
        let fields = [("draft", "{}"), ("do", "save"), ("from", "2026-11-18T00:00"), ("to", "2026-11-19T00:00")];
        is_shown(&bob.post("/ui/tasks/new", &format!("/ui/tasks/{id}/{action}"), &fields).await, 404);
    }
    assert_eq!((stored(&api, &id).await["status"].clone(), runs(&api, &id).await.len()), (json!("active"), 0));
}

async fn page_shows_past_and_future_and_the_work(api: Api) {
    let mut task = daily_of("ann");
    task["retry"] = json!({ "max_attempts": 4, "backoff_seconds": 90 });
    task["output"] = Value::Null;
    let id = made(&api, task).await;
    let run = api.admin("POST", &format!("/v1/tasks/{id}/run"), None).await.expect(201)["id"].clone();
    api.advance(3_600);
    let shown = visitor(&api, "ann", &["*"]).await.get(&format!("/ui/tasks/{id}")).await;
    is_shown(&shown, 200);
    shown.has("Summarize my unread emails");
    shown.has("<dd>nobody</dd>");
    shown.has("<dd>1 min 30 s</dd>");
    // the run before the present, ten fires behind it
    shown.has(&format!("<a href=\"/ui/runs/{}\" tabindex=\"-1\"><title>queued, 2026-11-21", run.as_str().unwrap()));
    assert_eq!(shown.text.matches("class=\"future\"").count(), 10);
    shown.has("Next fires (10)");
    shown.has("2026-12-01 00:00:00 UTC");
    shown.has("It is due next at 2026-11-22T00:00:00");
}

async fn task_that_did_not_fire_is_explained_two_steps_from_the_list(api: Api) {
    let id = made(&api, daily_of("ann")).await;
    let pause = json!({ "reason": "holiday" });
    api.admin("POST", &format!("/v1/tasks/{id}/pause"), Some(pause)).await.expect(200);
    api.advance(3 * 86_400 + 60);
    let ann = visitor(&api, "ann", &["*"]).await;
    let place = format!("/ui/tasks/{id}");
    ann.get("/ui/tasks").await.has(&format!("href=\"{place}#why\""));
    let shown = ann.get(&place).await;
    shown.has("id=\"why\"");
    shown.has("Its last instant");
    shown.has("2026-11-24 00:00:00 UTC");
    shown.has("2026-11-24T08:00:00+08:00 Asia/Shanghai");
    shown.has("The task was not active.");
    shown.has("It is paused: holiday.");
    shown.has("Somebody resumes it.");

    // as the field sends it, on the clock of the task's zone
    let asked = ann.get(&format!("{place}?at=2026-11-23T08%3A00")).await;
    asked.has("2026-11-23 00:00:00 UTC");
    asked.has("The task was not active.");
    asked.has("value=\"2026-11-23T08:00\"");
    let between = ann.get(&format!("{place}?at=2026-11-23T09:30:00")).await;
    between.has("The trigger does not fire then.");
    between.has("The instant before");
    let unreadable = ann.get(&format!("{place}?at=soon")).await;
    is_shown(&unreadable, 200);
    unreadable.has("read `soon` as a time");
}

async fn task_is_paused_resumed_run_and_backfilled_by_forms(api: Api) {
    let id = made(&api, daily_of("ann")).await;
    let ann = visitor(&api, "ann", &["*"]).await;
    let place = format!("/ui/tasks/{id}");
    let post =
        async |action: &str, fields: &[(&str, &str)]| ann.post(&place, &format!("{place}/{action}"), fields).await;

    leads_to(&post("pause", &[("reason", "holiday")]).await, &format!("{place}?done=paused"));
    let task = stored(&api, &id).await;
    assert_eq!((&task["status"], &task["status_reason"]), (&json!("paused"), &json!("holiday")));
    ann.get(&format!("{place}?done=paused")).await.has("It is paused.");
    leads_to(&post("resume", &[]).await, &format!("{place}?done=resumed"));
    assert_eq!(stored(&api, &id).await["status"], "active");

    leads_to(&post("run", &[("input", "{\"n\": 1}")]).await, &format!("{place}?done=requested"));
    leads_to(&post("run", &[("input", " ")]).await, &format!("{place}?done=requested"));
    let asked = runs(&api, &id).await;
    assert_eq!(asked.len(), 2);
    let with_input = asked.iter().find(|run| run["input_bytes"].is_number()).expect("a run with an input");
    let path = format!("/v1/runs/{}", with_input["id"].as_str().unwrap());
    assert_eq!(api.admin("GET", &path, None).await.expect(200)["input"], json!({ "n": 1 }));
    let wrong = post("run", &[("input", "{n}")]).await;
    is_shown(&wrong, 422);
    wrong.has("is not JSON");
    wrong.has("{n}</textarea>");

    // two instants on the clock of Shanghai
    let range = [("from", "2026-11-18T08:00"), ("to", "2026-11-20T08:00")];
    leads_to(&post("backfill", &range).await, &format!("{place}?done=backfilled"));
    assert_eq!(runs(&api, &id).await.len(), 4);
    let wrong = post("backfill", &[("from", "2026-11-20T08:00"), ("to", "2026-11-18T08:00")]).await;
    is_shown(&wrong, 422);
    wrong.has("must be before `to`");
    wrong.has("value=\"2026-11-20T08:00\"");
    let missing = post("backfill", &[("from", "2026-11-20T08:00")]).await;
    is_shown(&missing, 422);
    missing.has("<code>/to</code> is missing");
    assert_eq!(runs(&api, &id).await.len(), 4);
}

async fn task_is_deleted_after_a_second_question(api: Api) {
    let id = made(&api, daily_of("ann")).await;
    let ann = visitor(&api, "ann", &["*"]).await;
    let place = format!("/ui/tasks/{id}/delete");
    let question = ann.get(&place).await;
    question.has("Morning mail");
    question.has("Leave it as it is");
    assert_eq!(stored(&api, &id).await["status"], "active");
    leads_to(&ann.post(&place, &place, &[]).await, "/ui/tasks?done=deleted");
    is_shown(&ann.get(&format!("/ui/tasks/{id}")).await, 404);
}

async fn operator_alone_disables_and_enables(api: Api) {
    let id = made(&api, daily_of("ann")).await;
    let place = format!("/ui/tasks/{id}");
    let ann = visitor(&api, "ann", &["*"]).await;
    ann.get(&place).await.lacks("For the operator");
    is_shown(&ann.post(&place, &format!("{place}/disable"), &[]).await, 403);
    let operator = admin(&api).await;
    operator.get(&place).await.has("For the operator");
    let disabled = operator.post(&place, &format!("{place}/disable"), &[("reason", "too loud")]).await;
    leads_to(&disabled, &format!("{place}?done=disabled"));
    assert_eq!(stored(&api, &id).await["status"], "disabled");
    ann.get(&place).await.has("too loud");
    let refused = ann.post(&place, &format!("{place}/resume"), &[]).await;
    is_shown(&refused, 409);
    refused.has("class=\"faults\"");
    is_shown(&ann.post(&place, &format!("{place}/enable"), &[]).await, 403);
    let enabled = operator.post(&place, &format!("{place}/enable"), &[]).await;
    leads_to(&enabled, &format!("{place}?done=enabled"));
    assert_eq!(stored(&api, &id).await["status"], "active");
}

async fn missing_permission_hides_its_part_and_its_buttons(api: Api) {
    let id = made(&api, daily_of("ann")).await;
    let place = format!("/ui/tasks/{id}");
    let reader = visitor(&api, "ann", &["tasks:read"]).await;
    let shown = reader.get(&place).await;
    is_shown(&shown, 200);
    shown.has("runs:read");
    shown.has("It is due next at");
    for hidden in ["Run now", "Pause", "/edit", "/delete"] {
        shown.lacks(hidden);
    }
    is_shown(&reader.post("/ui/tasks/new", &format!("{place}/pause"), &[]).await, 403);
    assert_eq!(stored(&api, &id).await["status"], "active");
    is_shown(&visitor(&api, "ann", &["runs:read"]).await.get(&place).await, 403);
}

async fn hostile_text_stays_text(api: Api) {
    let mut task = daily_of("ann");
    task["name"] = json!("<script>alert(1)</script>\u{202e}");
    task["action"]["instruction"] = json!("</pre><img src=x onerror=alert(2)>\u{202e}");
    let id = made(&api, task).await;
    let ann = visitor(&api, "ann", &["*"]).await;
    for path in [
        "/ui/tasks".to_owned(),
        format!("/ui/tasks/{id}"),
        format!("/ui/tasks/{id}/edit"),
        format!("/ui/tasks/{id}/delete"),
    ] {
        let shown = ann.get(&path).await;
        is_shown(&shown, 200);
        shown.lacks("<script>alert");
        shown.lacks("<img src=x");
        shown.has("&lt;script&gt;alert(1)");
        // the editor keeps every character of what it edits; all else makes hidden ones visible
        if !path.ends_with("/edit") {
            shown.lacks("\u{202e}");
        }
    }
}

async fn count(api: &Api) -> i64 {
    let counted = api.store.count_tasks(&Scope::Every).await.expect("counts");
    counted.into_iter().map(|(_, count)| count).sum()
}

async fn draft_is_previewed_without_being_saved(api: Api) {
    let ann = visitor(&api, "ann", &["*"]).await;
    let new = ann.get("/ui/tasks/new").await;
    new.has("Morning summary");
    ann.get("/ui/tasks/new?kind=event").await.has("order.paid");
    let mut task = daily_of("ann");
    let draft = task.to_string();
    let shown = ann.post("/ui/tasks/new", "/ui/tasks/new", &[("draft", draft.as_str()), ("do", "preview")]).await;
    is_shown(&shown, 200);
    shown.has("The draft has no faults.");
    shown.has("every day at 08:00 (Asia/Shanghai)");
    for day in 22..=26 {
        shown.has(&format!("2026-11-{day} 00:00:00 UTC"));
        shown.has(&format!("2026-11-{day}T08:00:00+08:00 Asia/Shanghai"));
    }
    shown.lacks("2026-11-27 00:00:00 UTC");
    shown.has("&quot;Morning mail&quot;");
    assert_eq!(count(&api).await, 0);

    task["timeout_seconds"] = json!(0);
    let draft = task.to_string();
    let shown = ann.post("/ui/tasks/new", "/ui/tasks/new", &[("draft", draft.as_str()), ("do", "preview")]).await;
    is_shown(&shown, 200);
    shown.has("<code>/timeout_seconds</code>");
    // what is not at fault is tried all the same
    shown.has("2026-11-26 00:00:00 UTC");

    let id = made(&api, daily_of("ann")).await;
    let place = format!("/ui/tasks/{id}/edit");
    ann.get(&place).await.has("&quot;cron&quot;: &quot;0 8 * * *&quot;");
    let draft = json!({ "trigger": { "type": "schedule", "cron": "0 9 * * *" } }).to_string();
    let shown = ann.post(&place, &place, &[("draft", draft.as_str()), ("version", "1"), ("do", "preview")]).await;
    shown.has("every day at 09:00 (UTC)");
    shown.has("2026-11-21 09:00:00 UTC");
    assert_eq!(stored(&api, &id).await["version"], 1);
}

async fn condition_of_a_draft_is_looked_at_once(api: Api) {
    let shop = MockServer::start().await;
    Mock::given(any())
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({ "price": 480 })))
        .mount(&shop)
        .await;
    let mut task = daily_of("ann");
    task["trigger"] = json!({ "type": "condition", "poll": { "http": { "url": shop.uri() } }, "interval": "5m",
        "expression": "value.price < 500" });
    let ann = visitor(&api, "ann", &["*"]).await;
    let draft = task.to_string();
    let shown = ann.post("/ui/tasks/new", "/ui/tasks/new", &[("draft", draft.as_str()), ("do", "preview")]).await;
    is_shown(&shown, 200);
    shown.has("The condition, looked at once");
    shown.has("<dt>True</dt><dd>yes</dd>");
    shown.has("<code>value.price</code>");
    shown.has("<code>480</code>");
    assert_eq!((shop.received_requests().await.unwrap().len(), count(&api).await), (1, 0));
}

async fn pipeline_of_a_draft_is_tried_with_a_sample(api: Api) {
    let steps = json!([
        { "name": "large", "filter": "event.data.total > 100" },
        { "name": "told", "notify": { "message": "An order of {{ event.data.total }}" } },
    ]);
    let draft = json!({
        "name": "Orders", "trigger": { "type": "event", "source": "shop" }, "executor": "pipeline",
        "action": { "config": { "steps": steps } },
    })
    .to_string();
    let ann = visitor(&api, "ann", &["*"]).await;
    let sample = json!({ "event": { "data": { "total": 120 } } }).to_string();
    let fields = [("draft", draft.as_str()), ("sample", sample.as_str()), ("do", "preview")];
    let shown = ann.post("/ui/tasks/new", "/ui/tasks/new", &fields).await;
    is_shown(&shown, 200);
    shown.has("The pipeline, tried with the sample");
    shown.has("not executed in a preview");
    shown.has("An order of 120");
    let wrong = [("draft", draft.as_str()), ("sample", "[1]"), ("do", "preview")];
    let shown = ann.post("/ui/tasks/new", "/ui/tasks/new", &wrong).await;
    is_shown(&shown, 422);
    shown.has("The sample is a JSON object");
    shown.has("&quot;Orders&quot;");
}

async fn draft_is_saved_or_shown_again_with_its_faults(api: Api) {
    let ann = visitor(&api, "ann", &["*"]).await;
    let save =
        async |draft: &str| ann.post("/ui/tasks/new", "/ui/tasks/new", &[("draft", draft), ("do", "save")]).await;
    let broken = save("{\"name\": ").await;
    is_shown(&broken, 422);
    broken.has("The draft is not JSON");
    broken.has("{&quot;name&quot;: </textarea>");
    is_shown(&save("[]").await, 422);
    let mut task = daily_of("ann");
    task["trigger"]["cron"] = json!("0 25 * * *");
    let faulty = save(&task.to_string()).await;
    is_shown(&faulty, 422);
    faulty.has("<code>/trigger/cron</code>");
    faulty.has("0 25 * * *");
    assert_eq!(count(&api).await, 0);

    let saved = save(&daily_of("ann").to_string()).await;
    assert_eq!(saved.status, 303, "{}", saved.text);
    let place = saved.location.clone().expect("a place");
    let id = place.strip_prefix("/ui/tasks/").and_then(|rest| rest.strip_suffix("?done=created")).expect("an id");
    assert_eq!((stored(&api, id).await["tenant_id"].clone(), count(&api).await), (json!("ann"), 1));

    // an admin names the tenant in a field of the form
    let mut task = daily_of("bob");
    task.as_object_mut().unwrap().remove("tenant_id");
    let draft = task.to_string();
    let operator = admin(&api).await;
    let without = [("draft", draft.as_str()), ("do", "save")];
    operator.post("/ui/tasks/new", "/ui/tasks/new", &without).await.has("/tenant_id");
    let with = [("draft", draft.as_str()), ("tenant_id", "bob"), ("do", "save")];
    assert_eq!(operator.post("/ui/tasks/new", "/ui/tasks/new", &with).await.status, 303);
    assert_eq!(count(&api).await, 2);
}

async fn edit_of_an_older_version_keeps_what_was_typed(api: Api) {
    let id = made(&api, daily_of("ann")).await;
    let place = format!("/ui/tasks/{id}/edit");
    let ann = visitor(&api, "ann", &["*"]).await;
    ann.get(&place).await.has("name=\"version\" value=\"1\"");
    api.admin("PATCH", &format!("/v1/tasks/{id}"), Some(json!({ "name": "Theirs" }))).await.expect(200);
    let draft = json!({ "name": "Mine", "max_runs": 7 }).to_string();
    let save = async |version: &str| {
        ann.post(&place, &place, &[("draft", draft.as_str()), ("version", version), ("do", "save")]).await
    };
    let refused = save("1").await;
    is_shown(&refused, 409);
    refused.has("it has version 2");
    refused.has("&quot;name&quot;:&quot;Mine&quot;");
    refused.has("<pre class=\"text\">Theirs</pre>");
    refused.has("name=\"version\" value=\"2\"");
    assert_eq!(stored(&api, &id).await["name"], "Theirs");
    leads_to(&save("2").await, &format!("/ui/tasks/{id}?done=saved"));
    let task = stored(&api, &id).await;
    assert_eq!((&task["name"], &task["max_runs"], &task["version"]), (&json!("Mine"), &json!(7), &json!(3)));
}
