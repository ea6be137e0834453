//! The state of the service: whole for the operator, and what is theirs for tenants.

use reveille::base::id::Scope;
use serde_json::json;
use uuid::Uuid;

use super::visitor::ServedDashboard;
use crate::api::service::{Api, daily_of, on_both};

on_both! {
    operator_sees_instances_queues_and_what_is_not_as_it_should_be
    tenant_sees_its_own_work_and_no_instance
    service_that_is_being_stopped_is_shown_as_not_ready
}

async fn operator_sees_instances_queues_and_what_is_not_as_it_should_be(api: Api) {
    let site = ServedDashboard::of(api).await;
    let (gone, living) = (Uuid::from_u128(7), Uuid::from_u128(8));
    site.api.store.announce_instance(gone, Some("<b>attic</b>"), site.api.clock.now()).await.unwrap();
    site.api.advance(200);
    site.api.store.announce_instance(living, Some("cellar"), site.api.clock.now()).await.unwrap();
    let system = site.admin().await.get("/ui/system").await;
    assert_eq!(system.status, 200);
    let living = living.to_string();
    for text in ["&lt;b&gt;attic&lt;/b&gt;", "cellar", living.as_str(), "missing", "has not been seen since", "lives"] {
        system.has(text);
    }
    for text in [env!("CARGO_PKG_VERSION"), "Runs under way", "Lag of the earliest fire"] {
        system.has(text);
    }
    system.lacks("<b>attic");
}

async fn tenant_sees_its_own_work_and_no_instance(api: Api) {
    let site = ServedDashboard::of(api).await;
    site.api.store.announce_instance(Uuid::from_u128(7), Some("cellar"), site.api.clock.now()).await.unwrap();
    for tenant in ["ann", "bob"] {
        site.api.admin("POST", "/v1/tasks", Some(daily_of(tenant))).await.expect(201);
    }
    let ann = site.of_tenant("ann", &["*"]).await.get("/ui/system").await;
    ann.has("Instances, services and queues of all tenants are for the operator of this service.");
    ann.has("<a href=\"/ui/tasks?status=active\">1</a>");
    ann.lacks("cellar");
    let narrow = site.of_tenant("ann", &["tasks:read"]).await.get("/ui/system").await;
    assert_eq!(narrow.status, 200);
    narrow.has("this needs a token with `stats:read`");
    assert_eq!(site.api.store.list_halts(&Scope::Every).await.unwrap().halts, [], "a look changes nothing");
}

async fn service_that_is_being_stopped_is_shown_as_not_ready(api: Api) {
    let site = ServedDashboard::of(api).await;
    let admin = site.admin().await;
    site.api.admin("POST", "/v1/stop", Some(json!({ "all": true }))).await.expect(200);
    let halted = admin.get("/ui/system").await;
    halted.has("all work is stopped");
    site.api.stopping.cancel();
    let stopping = admin.get("/ui/system").await;
    assert_eq!(stopping.status, 200);
    stopping.has("not ready");
    stopping.has("it is being stopped");
}
