//! Deliveries: the list, a page for each, and once more.

use chrono::TimeDelta;
use reveille::base::id::Scope;
use reveille::domain::notification::{Mark, MessageKind, NewDelivery};
use reveille::store::DeliveryFilter;
use uuid::Uuid;

use super::visitor::{Visitor, served};
use crate::api::service::{ADMIN, Api, on_both};
use crate::support::outbox::claim_due;

on_both! {
    list_of_deliveries_shows_those_that_fit_its_address_and_none_of_another_tenant
    message_that_failed_is_sent_again_from_its_page
}

const SCOPES: &[&str] = &["deliveries:read", "deliveries:write", "runs:read"];
const HOSTILE: &str = "Hello <script>alert(1)</script>\u{202e}";

async fn post(api: &Api, tenant: &str, channel: &str, key: &str, run_id: Option<Uuid>) -> String {
    let posted = NewDelivery {
        tenant_id: tenant.into(),
        recipient: tenant.into(),
        channel: channel.into(),
        fallback: Vec::new(),
        dedupe_key: key.into(),
        run_id,
        subject_ref: None,
        kind: MessageKind::Message,
        urgency: MessageKind::Message.urgency(),
        subject: Some(HOSTILE.into()),
        text: Some(format!("There you are, {HOSTILE}")),
    };
    api.store.post_delivery(&posted).await.unwrap();
    let filter = DeliveryFilter { limit: 1, ..DeliveryFilter::default() };
    api.store.list_deliveries(&Scope::Every, &filter).await.unwrap()[0].id.to_string()
}

/// The one that is due fails.
async fn fail(api: &Api) {
    let claim = claim_due(&api.store, api.clock.now() + TimeDelta::minutes(2), 1).await.unwrap().pop().unwrap();
    let mark = Mark::Failed { error: "mailbox <b>unknown".into(), fall_back: None };
    api.store.mark_delivery(&claim, &mark).await.unwrap();
}

async fn list_of_deliveries_shows_those_that_fit_its_address_and_none_of_another_tenant(api: Api) {
    let base = served(&api).await;
    let ann = Visitor::signed_in(&base, &api.token("ann", SCOPES).await).await;
    ann.get("/ui/deliveries").await.has("No message was sent yet.");
    let first = post(&api, "ann", "email", "notice:x:1", None).await;
    fail(&api).await;
    let foreign = post(&api, "bob", "email", "notice:x:2", None).await;
    let second = post(&api, "ann", "webhook", "notice:x:3", None).await;
    let all = ann.get("/ui/deliveries").await;
    assert_eq!(all.status, 200);
    for text in ["&lt;script&gt;alert(1)", "\u{27e6}U+202E\u{27e7}", "mailbox &lt;b&gt;unknown", &first, &second] {
        all.has(text);
    }
    for text in ["<script>alert", "\u{202e}", &foreign, "<th scope=\"col\">Tenant</th>"] {
        all.lacks(text);
    }
    for (query, shown, hidden) in [
        ("state=failed", &first, &second),
        ("channel=webhook", &second, &first),
        ("state=pending&channel=webhook", &second, &first),
    ] {
        let list = ann.get(&format!("/ui/deliveries?{query}")).await;
        list.has(shown);
        list.lacks(hidden);
    }
    ann.get("/ui/deliveries?channel=sms").await.has("Nothing fits these filters.");
    ann.get("/ui/deliveries?run_id=x").await.has("must be a UUID");
    Visitor::signed_in(&base, ADMIN).await.get("/ui/deliveries").await.has(&foreign);

    for id in [foreign.as_str(), "x", "00000000-0000-0000-0000-000000000000"] {
        let none = ann.get(&format!("/ui/deliveries/{id}")).await;
        assert_eq!(none.status, 404, "{id}");
        none.lacks("bob");
        let sent = ann.post(&format!("/ui/deliveries/{first}"), &format!("/ui/deliveries/{id}/retry"), &[]).await;
        assert_eq!(sent.status, 404, "{id}");
    }
    let other = Visitor::signed_in(&base, &api.token("ann", &["runs:read"]).await).await;
    for path in ["/ui/deliveries".to_owned(), format!("/ui/deliveries/{first}")] {
        assert_eq!(other.get(&path).await.status, 403, "{path}");
    }
}

async fn message_that_failed_is_sent_again_from_its_page(api: Api) {
    let base = served(&api).await;
    let run = Uuid::from_u128(7);
    let id = post(&api, "ann", "email", "run:7:result", Some(run)).await;
    let (page, retry) = (format!("/ui/deliveries/{id}"), format!("/ui/deliveries/{id}/retry"));
    let ann = Visitor::signed_in(&base, &api.token("ann", SCOPES).await).await;
    let pending = ann.get(&page).await;
    pending.has("There you are, Hello &lt;script&gt;");
    pending.has(&format!("href=\"/ui/runs/{run}\""));
    for text in ["Send it again", "<script>alert", "On other channels"] {
        pending.lacks(text);
    }
    fail(&api).await;
    // the other way on which the message goes then
    let other = post(&api, "ann", "sms", "run:7:result", Some(run)).await;
    let failed = ann.get(&page).await;
    for text in ["Send it again", "mailbox &lt;b&gt;unknown", "On other channels", &other] {
        failed.has(text);
    }
    let state = async || {
        let delivery = api.admin("GET", &format!("/v1/deliveries/{id}"), None).await.expect(200);
        delivery["state"].as_str().unwrap().to_owned()
    };
    assert_eq!(ann.post(&page, &retry, &[("form_token", "another")]).await.status, 403);
    let reader = Visitor::signed_in(&base, &api.token("ann", &["deliveries:read"]).await).await;
    let shown = reader.get(&page).await;
    assert_eq!(shown.status, 200);
    shown.lacks("Send it again");
    assert_eq!(reader.post(&page, &retry, &[]).await.status, 403);
    assert_eq!(state().await, "failed");

    let sent = ann.post(&page, &retry, &[]).await;
    assert_eq!((sent.status, sent.location.as_deref()), (303, Some(&*format!("{page}?done=retried"))));
    assert_eq!(state().await, "pending");
    ann.get(sent.location.as_deref().unwrap()).await.has("It will be tried again.");
}
