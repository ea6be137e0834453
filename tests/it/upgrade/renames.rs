//! Migration 0031: what was stored under names that it replaces is read under the new ones, and goes on.

use reveille::base::token::{TokenKind, TokenText};
use reveille::domain::event::event_key;
use reveille::domain::notification::kind::HoldReason;
use reveille::domain::run::RunState;
use serde_json::{Value, json};

use super::{ADMIN, STORED_BYTES, Tenant, id, in_words, items, left_by, state};
use crate::support::app::Instance;

/// The last schema with the earlier names.
const BEFORE: i64 = 30;

/// Facts that no answer of the API shows, each a count of one.
const COLUMNS: [&str; 6] = [
    "select count(*) from task_alerts where missing_field_digest = 'digest-of-steps'",
    "select count(*) from approvals where execution_started_at = '2027-02-28T23:20:00+00:00'",
    "select count(*) from event_index where pruned_version = 1",
    "select count(*) from live_messages where has_approval_link and claimed_at is null",
    "select count(*) from verifications where attempts = 3",
    "select count(*) from turns where provider_message is not null",
];

/// Alerts that have met their cause three times.
const COUNTED_ON: &str =
    "select count(*) from task_alerts where replace(cast(alerts as text), ' ', '') like '%\"count\":3,%'";

async fn get(instance: &Instance, path: &str) -> Value {
    let (status, answer) = instance.ask("GET", path, ADMIN, None).await;
    assert_eq!(status, 200, "{path}: {answer}");
    answer
}

async fn rows_of_before_are_read_by_their_new_names(postgres: bool) {
    let token = TokenText::new(TokenKind::Tenant);
    let world = left_by(BEFORE, postgres, &token).await;
    let held = event_key(&Tenant::new("ann").unwrap(), "shop", "parcel-1");
    let rows = include_str!("renamed.sql").replace("key-of-parcel-1", &held);
    let rows = in_words(&rows, postgres, &token);
    world.execute(&rows, &rows).await;
    let instance = world.instance();

    // tasks, and what their owners wrote themselves stays as it is
    let holds = get(&instance, &format!("/v1/tasks/{}", id("41"))).await;
    assert_eq!(
        json!([holds["trigger"]["buffer_while_paused"], holds["trigger"]["overlap_counts_waiting"], holds["metadata"]]),
        json!([true, null, { "hold": "mine" }])
    );
    // `false` is the default, and is not shown
    assert!(holds["trigger"].get("hold").is_none() && holds["trigger"].get("waiting_counts").is_none(), "{holds}");
    let waits = get(&instance, &format!("/v1/tasks/{}", id("42"))).await;
    assert_eq!(
        json!([waits["trigger"]["overlap_counts_waiting"], waits["metadata"]]),
        json!([true, { "waiting_counts": true }])
    );
    for number in COLUMNS {
        assert_eq!(world.number(number).await, 1, "{number}");
    }

    // runs, and their transcripts
    let issue = json!({ "credential": "shop/work", "kind": "missing" });
    let failed = get(&instance, &format!("/v1/runs/{}", id("143"))).await;
    assert_eq!(failed["error"]["credential_issue"], issue, "{failed}");
    let transcript = get(&instance, &format!("/v1/runs/{}/transcript", id("143"))).await;
    assert_eq!(transcript["items"][1]["outcome"]["error"]["credential_issue"], issue, "{transcript}");
    let skipped = get(&instance, &format!("/v1/runs/{}", id("141"))).await;
    assert_eq!(skipped["reason"], "buffer_full");

    // messages
    let deliveries = instance.deliveries().await;
    let of = |digits: &str| deliveries.iter().find(|delivery| delivery.id == id(digits)).expect("a delivery");
    assert_eq!((of("204").hold_reason, of("204").maybe_delivered), (Some(HoldReason::QuietHours), false));
    assert_eq!((of("206").hold_reason, of("206").maybe_delivered), (None, true));

    // two votes with one identity are one person's
    let asked = get(&instance, &format!("/v1/approvals/{}", id("501"))).await;
    assert_eq!(json!([asked["votes"].as_array().map(Vec::len), asked["agreed"]]), json!([2, 1]), "{asked}");

    // events that a paused task had collected become runs when it is resumed
    let resumed = format!("/v1/tasks/{}/resume", id("41"));
    assert_eq!(instance.ask("POST", &resumed, ADMIN, Some(json!({}))).await.0, 200);
    instance.close_windows().await;
    instance.live(0).await;
    let parcels = items(&instance, &format!("/v1/runs?task_id={}&state=succeeded", id("41"))).await;
    assert_eq!(parcels.iter().map(|run| &run["event_ids"]).collect::<Vec<_>>(), [&json!(["parcel-1"])]);
    assert_eq!(world.number("select count(*) from event_windows").await, 0);

    // the run that waits has its task's slot until its time is over; then the last of three fires runs
    world.advance_to("08:05");
    instance.expire().await;
    assert_eq!(state(&instance, "142").await, RunState::WaitingForCompletion);
    world.advance_to("08:15");
    instance.expire().await;
    assert_eq!(state(&instance, "142").await, RunState::Expired);
    world.advance_to("08:30");
    instance.live(0).await;
    let last = items(&instance, &format!("/v1/runs?task_id={}&since=2027-03-01T08:20:00Z", id("42"))).await;
    assert_eq!(last.iter().map(|run| &run["state"]).collect::<Vec<_>>(), [&json!("succeeded")]);
    world.advance_to("08:31");
    instance.fire().await;
    let done = get(&instance, &format!("/v1/tasks/{}", id("42"))).await;
    assert_eq!(json!([done["status"], done["status_reason"]]), json!(["completed", "max_runs"]), "{done}");

    // the owner was told of this cause two hours ago
    let again = items(&instance, &format!("/v1/runs?task_id={}&since=2027-03-01T08:20:00Z", id("43"))).await;
    assert_eq!(again.iter().map(|run| &run["state"]).collect::<Vec<_>>(), [&json!("failed")]);
    let deliveries = instance.deliveries().await;
    let told = |run: &str| deliveries.iter().any(|sent| sent.run_id.is_some_and(|id| id.to_string() == run));
    assert!(!told(again[0]["id"].as_str().expect("an id")), "{deliveries:?}");
    assert_eq!(world.number(COUNTED_ON).await, 1, "it is the third failure of this cause");

    // what triggers have counted is what is stored
    for _ in 0..20 {
        instance.tick(&instance.engine().byte_counter).await.expect("a tick");
    }
    assert_eq!(world.number(STORED_BYTES).await, 0, "tenants whose number is not what is counted");
    // what others left is not this test's
    instance.crash();
}

#[tokio::test]
async fn rows_of_before_are_read_by_their_new_names_on_sqlite() {
    rows_of_before_are_read_by_their_new_names(false).await;
}

#[tokio::test]
async fn rows_of_before_are_read_by_their_new_names_on_postgres() {
    rows_of_before_are_read_by_their_new_names(true).await;
}
