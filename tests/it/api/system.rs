//! How the service stands, for its operator alone.

use chrono::TimeDelta;
use serde_json::json;
use uuid::Uuid;

use super::service::{Api, daily_of, on_both};

on_both!(
    operator_sees_instances_queues_and_findings
    tenant_and_token_without_every_permission_see_nothing_of_it
);

async fn operator_sees_instances_queues_and_findings(api: Api) {
    let (living, gone) = (Uuid::from_u128(1), Uuid::from_u128(2));
    api.store.announce_instance(gone, Some("two"), api.clock.now()).await.unwrap();
    api.advance(151);
    let started_at = api.clock.now() - TimeDelta::seconds(60);
    api.store.announce_instance(living, Some("one"), started_at).await.unwrap();
    let task = api.admin("POST", "/v1/tasks", Some(daily_of("ann"))).await.expect(201)["id"].clone();
    api.admin("POST", &format!("/v1/tasks/{}/run", task.as_str().unwrap()), None).await.expect(201);
    let system = api.admin("GET", "/v1/system", None).await.expect(200);
    let instances = system["instances"].as_array().unwrap();
    let shown: Vec<_> = instances.iter().map(|one| (&one["host"], &one["missing"])).collect();
    assert_eq!(shown, [(&json!("two"), &json!(true)), (&json!("one"), &json!(false))], "{system:#}");
    assert_eq!((&instances[0]["version"], &system["version"]), (&system["version"], &json!(env!("CARGO_PKG_VERSION"))));
    assert_eq!((&system["queue"]["ready"], &system["queue"]["lag_seconds"]), (&json!(1), &json!(0)));
    let findings = system["findings"].as_array().unwrap();
    let about = |name: &str| findings.iter().find(|finding| finding["name"] == name);
    assert!(about("instances").unwrap()["message"].as_str().unwrap().contains(&gone.to_string()), "{findings:?}");
    // nothing fires here, so a fire that was due is one that is late
    assert!(about("fires").is_none());
    api.advance(24 * 60 * 60);
    let late = api.admin("GET", "/v1/system", None).await.expect(200);
    assert!(late["queue"]["lag_seconds"].as_i64().unwrap() > 0, "{late:#}");
    let wrong = late["findings"].as_array().unwrap().iter().find(|finding| finding["name"] == "fires").unwrap();
    assert_eq!(wrong["wrong"], true);
}

async fn tenant_and_token_without_every_permission_see_nothing_of_it(api: Api) {
    let ann = api.token("ann", &["*"]).await;
    let problem = api.ask("GET", "/v1/system", Some(&ann), None).await.expect(403);
    assert!(!problem.to_string().contains("instances"), "{problem}");
    let narrow = api.token("ann", &["stats:read"]).await;
    api.ask("GET", "/v1/system", Some(&narrow), None).await.expect(403);
    api.admin("GET", "/v1/system?tenant_id=ann", None).await.expect(400);
}
