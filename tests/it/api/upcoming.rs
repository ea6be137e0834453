//! The fires that come next, as a client meets them.

use serde_json::{Value, json};

use super::service::{Api, daily_of, on_both};

on_both!(upcoming_fires_are_listed_by_scope_with_their_tasks);

async fn upcoming_fires_are_listed_by_scope_with_their_tasks(api: Api) {
    let hourly = json!({ "type": "schedule", "interval": "1h" });
    for (tenant, name, trigger) in
        [("ann", "Late", None), ("ann", "Soon", Some(&hourly)), ("bob", "His", Some(&hourly))]
    {
        let mut task = daily_of(tenant);
        task["name"] = json!(name);
        if let Some(trigger) = trigger {
            task["trigger"] = trigger.clone();
        }
        api.admin("POST", "/v1/tasks", Some(task)).await.expect(201);
    }
    let names = |answer: &Value| {
        let fires = answer["items"].as_array().unwrap().iter();
        fires.map(|fire| fire["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let ann = api.token("ann", &["tasks:read"]).await;
    let own = api.ask("GET", "/v1/schedules/upcoming", Some(&ann), None).await.expect(200);
    assert_eq!(names(&own), ["Soon", "Late"], "{own:#}");
    assert_eq!(own["next_cursor"], Value::Null);
    let first = api.ask("GET", "/v1/schedules/upcoming?limit=1", Some(&ann), None).await.expect(200);
    assert_eq!(first["items"][0]["tenant_id"], "ann");
    let all = api.admin("GET", "/v1/schedules/upcoming", None).await.expect(200);
    assert_eq!(names(&all).len(), 3);
    let narrowed = api.admin("GET", "/v1/schedules/upcoming?tenant_id=bob", None).await.expect(200);
    assert_eq!(names(&narrowed), ["His"]);
    api.admin("GET", "/v1/schedules/upcoming?limit=0", None).await.expect(400);
}
