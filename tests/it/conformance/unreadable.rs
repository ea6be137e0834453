//! A row that can't be read holds up no other: it is left out, set aside, and not found again at once.
//!
//! Each table of the schema is in one of two lists: a row that can't be read is planted in it, and a good one beside it
//! is served; or no service could meet one, and the list says why.

use std::collections::BTreeSet;

use chrono::TimeDelta;
use reveille::base::id::Scope;
use reveille::base::metrics::Metrics;
use reveille::domain::approval::ApprovalChoice;
use reveille::domain::budget::{Budgets, RunBudget};
use reveille::domain::credential::{CredentialIssue, CredentialIssueKind, Reference};
use reveille::domain::event::Event;
use reveille::domain::notification::run_notification::NotifiedOutcome;
use reveille::domain::notification::{Addresses, MessageKind, NewDelivery, Recipient};
use reveille::domain::quota::Overrides;
use reveille::domain::run::RunState;
use reveille::domain::task::change::{FaultyPart, TaskChange};
use reveille::domain::task::{DependentTask, Task, TaskStatus};
use reveille::domain::trigger::zone::ZoneRelease;
use reveille::store::{
    AuditEntry, CredentialRowDraft, EventsRecorded, Finish, Park, PauseResult, RecipientFilter, RunLimits,
    SealedDocument, SeenTask, TakeRequest, event_shard,
};
use serde_json::{Value, json};
use uuid::Uuid;

use super::asked::{LIMIT, answer, asked};
use super::unreadable_instants::{
    event_task_that_is_no_json_is_out_of_the_index_and_the_others_are_in_it,
    event_that_is_no_text_is_left_to_its_lease_and_the_others_are_handed_out,
    instants_behind_all_others_are_set_aside_by_the_rescuer, lease_that_cannot_be_read_is_renewed_by_its_worker,
    services_read_on_where_the_first_instant_cannot_be_read, unreadable_claim_is_set_aside_and_the_others_start,
    unreadable_count_of_an_event_task_disables_it_and_the_others_fire,
    unreadable_dead_letter_is_out_of_the_list_and_hides_no_other,
    unreadable_event_of_a_window_is_left_out_and_the_other_windows_close,
    unreadable_first_instants_are_set_aside_and_those_behind_them_are_read,
    unreadable_instant_of_a_delivery_is_passed_over_in_its_line,
    unreadable_instant_of_a_ready_run_is_set_aside_and_the_others_are_taken,
    unreadable_lease_is_mended_and_the_others_are_taken_over,
    unreadable_number_of_a_quota_keeps_no_run_from_being_taken, unreadable_rate_of_a_throttle_begins_anew,
    unreadable_running_time_counts_as_none_and_its_run_starts,
    unreadable_window_closes_with_its_events_and_the_next_one_begins,
};
use super::world::{LEASE, StoreHarness, WORKER, end_of, tenant_of};
use super::zones::zone_release_that_cannot_be_read_is_set_aside_and_fires_go_on;
use super::{alerts, credentials, grants, matching};
use crate::support::outbox::claim_due;

/// Makes two tests of each case, and keeps which tables there are cases for.
macro_rules! planted_in {
    ($($table:literal => $case:ident,)+) => {
        on_both!(each_table_has_a_case_or_says_why_not, $($case),+);
        const PLANTED: &[&str] = &[$($table),+];
    };
}

planted_in!(
    "approvals" => unreadable_question_keeps_no_other_run_waiting,
    "audit" => unreadable_audit_entry_is_passed_over_and_those_behind_it_are_sealed,
    "bus_outbox" => unreadable_kept_event_is_read_beside_the_others,
    "condition_state" => unreadable_state_of_a_condition_leaves_the_other_polls,
    "credentials" => unreadable_credential_is_left_out_and_the_others_are_renewed,
    "dead_letters" => unreadable_dead_letter_is_out_of_the_list_and_hides_no_other,
    "deliveries" => unreadable_delivery_is_not_claimed_and_those_beside_it_are,
    "deliveries" => unreadable_instant_of_a_delivery_is_passed_over_in_its_line,
    "due" => services_read_on_where_the_first_instant_cannot_be_read,
    "due" => unreadable_count_of_an_event_task_disables_it_and_the_others_fire,
    "due" => unreadable_due_row_is_put_aside_and_the_others_fire,
    "due" => task_that_is_mended_before_it_is_locked_is_not_put_aside,
    "event_queue" => event_that_is_no_text_is_left_to_its_lease_and_the_others_are_handed_out,
    "event_queue" => instants_behind_all_others_are_set_aside_by_the_rescuer,
    "event_windows" => unreadable_window_closes_with_its_events_and_the_next_one_begins,
    "event_windows" => unreadable_window_is_set_aside,
    "events" => unreadable_event_is_handed_out_beside_the_others,
    "events" => unreadable_event_hides_no_other_from_a_search_by_id,
    "extractions" => unreadable_first_instants_are_set_aside_and_those_behind_them_are_read,
    "grants" => unreadable_grant_covers_nothing_and_another_covers_the_call,
    "live_messages" => unreadable_message_hides_no_other_from_a_session,
    "live_messages" => unreadable_message_is_passed_over_by_a_change_of_the_master_key,
    "parked" => unreadable_run_that_waits_for_a_completion_lets_the_others_expire,
    "queue" => lease_that_cannot_be_read_is_renewed_by_its_worker,
    "queue" => unreadable_claim_is_set_aside_and_the_others_start,
    "queue" => unreadable_instant_of_a_ready_run_is_set_aside_and_the_others_are_taken,
    "queue" => unreadable_lease_is_mended_and_the_others_are_taken_over,
    "recipients" => unreadable_recipient_is_listed_as_damaged_and_hides_no_other,
    "recipients" => unreadable_recipient_is_none_and_the_others_are_told,
    "runs" => unreadable_running_time_counts_as_none_and_its_run_starts,
    "runs" => unreadable_run_is_not_started_and_the_others_are,
    "task_alerts" => unreadable_record_of_what_was_told_keeps_no_run_from_its_end,
    "tasks" => event_task_that_is_no_json_is_out_of_the_index_and_the_others_are_in_it,
    "tasks" => unreadable_bound_disables_its_schedule_and_the_others_fire,
    "tasks" => unreadable_time_limit_starts_with_the_usual_one_and_the_others_start_beside_it,
    "tasks" => unreadable_task_keeps_no_other_claim_from_being_resolved,
    "tasks" => unreadable_task_is_disabled_by_its_version,
    "tasks" => unreadable_task_lets_its_run_go_on_after_an_answer,
    "tasks" => unreadable_task_that_waits_for_a_credential_keeps_no_other_from_going_on,
    "tasks" => unreadable_event_task_is_out_of_the_index_and_the_others_of_its_shard_are_in_it,
    "tasks" => unreadable_zone_of_a_task_leaves_the_others_to_be_planned_anew,
    "tenant_budgets" => unreadable_budget_is_the_usual_one,
    "tenant_quotas" => unreadable_number_of_a_quota_keeps_no_run_from_being_taken,
    "tenant_quotas" => unreadable_quota_is_the_usual_one,
    "throttles" => unreadable_rate_of_a_throttle_begins_anew,
    "window_events" => unreadable_event_of_a_window_is_left_out_and_the_other_windows_close,
    "window_events" => unreadable_held_event_is_set_aside_and_the_others_are_released,
    "zone_releases" => zone_release_that_cannot_be_read_is_set_aside_and_fires_go_on,
);

/// Tables in which no service could meet a row that it can't read.
const FREE: &[(&str, &str)] = &[
    ("approval_links", "one is read, by its hash, for who follows it"),
    ("approval_overrides", "a degree or a condition that is not known asks a person"),
    ("approval_votes", "votes are counted where one question is answered"),
    ("audit_chain", "positions and hashes; `check` says where they do not fit"),
    ("budget_days", "numbers, counted by tenant and task"),
    ("budget_reservations", "ids and numbers"),
    ("credential_uses", "written, counted and listed"),
    ("data_file_chunks", "bytes of one file, read for the call that asks for it"),
    ("data_files", "one is read, by its id, for the call that asks for it"),
    ("dedups", "keys and instants, looked at by key"),
    ("event_index", "numbers"),
    ("fact_revisions", "numbers, raised by triggers"),
    ("fact_versions", "read with their fact, for a person; an origin that is not known counts as text from outside"),
    ("fact_vectors", "numbers; those of another length are compared with nothing"),
    ("facts", "an origin that is not known counts as text from outside"),
    ("event_task_counts", "numbers, counted by triggers"),
    ("event_tasks", "numbers; the task stands in `tasks`"),
    ("grant_uses", "one is read, by its call"),
    ("halt_version", "one number"),
    ("halts", "texts; a kind that is not known is a stop, too"),
    ("idempotency", "one is read, by its key, for who repeats a request"),
    ("instances", "listed for the operator; each is written anew within a minute"),
    ("interruptions", "numbers, counted by recipient"),
    ("lease_tokens", "one number"),
    ("login_links", "one is read, by its hash, for whoever opens it"),
    ("mcp_listed", "one is held, by its name, and not read"),
    ("quota_minutes", "numbers, counted by tenant"),
    ("resumptions", "ids and names; the task stands in `tasks`"),
    ("slots", "ids"),
    ("stored_byte_changes", "numbers, written and added up by triggers"),
    ("stored_byte_scans", "names of our own tables, and keys of their rows"),
    ("task_credentials", "names that are compared"),
    ("task_state", "one is read, by its task and key, within its run"),
    ("tenant_usage", "numbers, counted by triggers"),
    ("tool_pin_version", "one number"),
    ("tool_pins", "texts, hashes and instants; a tool of which one can't be read waits for the operator"),
    ("tokens", "one is read, by its hash, for who shows it"),
    ("turns", "read within their run, whose end it is"),
    ("ui_sessions", "one is read, by its hash, for the browser that shows it"),
    ("usage_days", "names and numbers, added up by key"),
    ("verifications", "one is read, by its recipient and address"),
];

async fn each_table_has_a_case_or_says_why_not(world: &StoreHarness) {
    let free: BTreeSet<&str> = FREE.iter().map(|(table, _)| *table).collect();
    let planted: BTreeSet<&str> = PLANTED.iter().copied().collect();
    assert_eq!(free.intersection(&planted).collect::<Vec<_>>(), [&""; 0]);
    let (tables, own) = match world.is_postgres() {
        true => ("information_schema.tables where table_schema = current_schema()", "table_name"),
        false => ("sqlite_master where type = 'table' and name not like 'sqlite_%'", "name"),
    };
    let listed = free.union(&planted).map(|table| format!("'{table}'")).collect::<Vec<_>>().join(", ");
    let count = async |more: &str| world.count(&format!("select count(*) from {tables} and {own} {more}")).await;
    // on Postgres the tokens of leases are a sequence
    let expected = free.len() + planted.len() - usize::from(world.is_postgres());
    assert_eq!(count(&format!("in ({listed})")).await as usize, expected);
    assert_eq!(count(&format!("not in ({listed}, '_sqlx_migrations')")).await, 0, "a table is in neither list");
}

/// A change of the stored spec of a task behind the store's back.
async fn respecified(world: &StoreHarness, task: &Task, change: impl FnOnce(&mut Value)) {
    let mut spec = serde_json::to_value(&task.spec).unwrap();
    change(&mut spec);
    world.plant(&format!("update tasks set spec = '{spec}' where id = {}", world.id(task.id))).await;
}

/// How many tasks are disabled for a reason that contains this.
async fn disabled_for(world: &StoreHarness, why: &str) -> i64 {
    world.count(&format!("select count(*) from tasks where status = 'disabled' and status_reason like '%{why}%'")).await
}

async fn unreadable_bound_disables_its_schedule_and_the_others_fire(world: &StoreHarness) {
    let mut tasks = Vec::new();
    for _ in 0..4 {
        tasks.push(world.task(json!({ "interval": "1h" })).await);
    }
    respecified(world, &tasks[0], |spec| spec["max_runs"] = json!("many")).await;
    respecified(world, &tasks[1], |spec| spec["timeout_seconds"] = json!("soon")).await;
    if !world.is_postgres() {
        world.plant(&format!("update tasks set spec = '{{' where id = {}", world.id(tasks[2].id))).await;
    }
    world.pass(3600);
    world.fire().await;
    assert_eq!(world.runs_of(&tasks[3]).await.len(), 1, "a good one beside them");
    assert_eq!(world.runs_of(&tasks[1]).await.len(), 1, "the usual time limit goes for it");
    assert_eq!(world.runs_of(&tasks[0]).await.len(), 0, "it might have run often enough");
    assert_eq!(disabled_for(world, "max_runs").await, 1);
    if !world.is_postgres() {
        assert_eq!(disabled_for(world, "trigger").await, 1);
    }
    assert_eq!(world.fire().await.tasks, 0, "none is found again");
}

async fn unreadable_due_row_is_put_aside_and_the_others_fire(world: &StoreHarness) {
    if world.is_postgres() {
        return; // the types of its columns let nothing in that can't be read
    }
    let (bad, good) = (world.task(json!({ "interval": "1h" })).await, world.task(json!({ "interval": "1h" })).await);
    world.plant(&format!("update due set nominal_at = 'soon' where task_id = {}", world.id(bad.id))).await;
    world.pass(3600);
    assert_eq!(world.fire().await.tasks, 1);
    assert_eq!(world.runs_of(&good).await.len(), 1);
    assert_eq!(disabled_for(world, "can''t be read").await, 1);
}

async fn task_that_is_mended_before_it_is_locked_is_not_put_aside(world: &StoreHarness) {
    if world.is_postgres() {
        return; // the types of its columns let nothing in that can't be read
    }
    let task = world.task(json!({ "interval": "1h" })).await;
    let set = async |nominal_at: &str| {
        world.plant(&format!("update due set nominal_at = {nominal_at} where task_id = {}", world.id(task.id))).await;
    };
    set("'soon'").await;
    world.pass(3600);
    let metrics = Metrics::new();
    world.store.show_counts(&metrics);
    // who mends it holds the writer, and lets go once it was read as it was
    world.plant("begin immediate").await;
    set("next_at").await;
    let mended = async {
        while !metrics.text().contains("reveille_unreadable_rows_total{table=\"tasks\"} 1") {
            tokio::task::yield_now().await;
        }
        world.plant("commit").await;
    };
    let (fired, ()) = tokio::join!(world.fire(), mended);
    assert_eq!((fired.tasks, world.get_task(task.id).await.status), (0, TaskStatus::Active));
    assert_eq!(world.fire().await.tasks, 1, "it fires as it is now");
}

async fn unreadable_state_of_a_condition_leaves_the_other_polls(world: &StoreHarness) {
    let condition = json!({
        "type": "condition", "poll": { "redis": { "source": "s", "key": "k" } }, "interval": "1m",
        "expression": "value < 500",
    });
    let (bad, good) = (world.task(condition.clone()).await, world.task(condition).await);
    let body = if world.is_postgres() { "[7]" } else { "{" };
    let row = format!(
        "insert into condition_state (task_id, version, edges, body, updated_at)
         select id, 1, 0, '{body}', created_at from tasks where id = {}",
        world.id(bad.id)
    );
    world.plant(&row).await;
    world.pass(600);
    let now = world.now();
    let claims = world.store.claim_polls(&[bad.id, good.id], now, now + LEASE).await.unwrap();
    assert!(claims.iter().any(|claim| claim.subject.id == good.id), "{claims:?}");
    // a list of tasks shows it without one, and an edit begins anew
    let states = world.store.condition_states(&Scope::Every, &[bad.id, good.id]).await.unwrap();
    assert_eq!(states.len(), usize::from(world.is_postgres()), "on Postgres each is a document");
    let other = json!({
        "type": "condition", "poll": { "redis": { "source": "s", "key": "k2" } }, "interval": "1m",
        "expression": "value < 500",
    });
    let (version, name) = (world.get_task(bad.id).await.version, bad.name.clone());
    let edit = TaskChange::Edit { version, name, spec: Box::new(super::world::spec(other, json!({}))) };
    world.store.change_task(&Scope::Every, bad.id, &edit).await.unwrap();
    let states = world.store.condition_states(&Scope::Every, &[bad.id]).await.unwrap();
    assert_eq!(states.len(), 1);
}

async fn unreadable_zone_of_a_task_leaves_the_others_to_be_planned_anew(world: &StoreHarness) {
    let mut tasks = Vec::new();
    for _ in 0..3 {
        tasks.push(world.task(json!({ "cron": "0 8 * * *", "timezone": "Europe/Berlin" })).await);
    }
    world.plant("update tasks set zone_database = '2025b'").await;
    respecified(world, &tasks[0], |spec| spec["trigger"]["timezone"] = json!(7)).await;
    if !world.is_postgres() {
        world.plant(&format!("update tasks set spec = '{{' where id = {}", world.id(tasks[1].id))).await;
    }
    let found = world.store.tasks_planned_before(&ZoneRelease::parse("2026f").unwrap(), Uuid::nil(), 9).await.unwrap();
    assert!(found.found.contains(&(tasks[2].id, "Europe/Berlin".to_owned())), "{found:?}");
    for task in &tasks[..2] {
        respecified(world, task, |_| {}).await;
    }
}

async fn unreadable_task_keeps_no_other_claim_from_being_resolved(world: &StoreHarness) {
    let (bad, good) = (world.task(json!({ "interval": "1h" })).await, world.task(json!({ "interval": "1h" })).await);
    for task in [&bad, &good] {
        world.started(task).await;
    }
    for task in [&bad, &good] {
        world.run_now(task).await;
    }
    let leases = super::world::leases(&world.claim().await);
    let broken = if world.is_postgres() { "7" } else { "{" };
    world.plant(&format!("update tasks set spec = '{broken}' where id = {}", world.id(bad.id))).await;
    let blocked = world.store.start_runs(&leases, world.now() + LEASE).await.unwrap().blocked;
    assert_eq!(blocked.len(), 2, "both found their slot taken: {blocked:?}");
    assert_eq!(world.runs_of(&good).await.pop().unwrap().state, RunState::Skipped);
    respecified(world, &bad, |_| {}).await;
}

async fn unreadable_task_is_disabled_by_its_version(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h" })).await;
    let broken = if world.is_postgres() { "7" } else { "{" };
    world.plant(&format!("update tasks set spec = '{broken}' where id = {}", world.id(task.id))).await;
    let seen = SeenTask::Version(task.version);
    assert!(world.store.disable_task(task.id, seen, FaultyPart::Action, "its pipeline can't be read").await.unwrap());
    assert_eq!(disabled_for(world, "pipeline").await, 1);
    respecified(world, &task, |_| {}).await;
}

async fn unreadable_task_lets_its_run_go_on_after_an_answer(world: &StoreHarness) {
    let (task, started, questions) = asked(world, &["c1"]).await;
    let broken = if world.is_postgres() { "7" } else { "{" };
    world.plant(&format!("update tasks set spec = '{broken}' where id = {}", world.id(task.id))).await;
    let yes = answer(ApprovalChoice::Approve, &questions[0], "token:b");
    world.store.decide_approval(&Scope::Every, questions[0].id, &yes).await.unwrap();
    assert_eq!(world.get_run(started.run.id).await.state, RunState::Queued);
    respecified(world, &task, |_| {}).await;
    world.store.cancel_run(&Scope::Every, started.run.id, "no").await.unwrap();
}

async fn unreadable_task_that_waits_for_a_credential_keeps_no_other_from_going_on(world: &StoreHarness) {
    let lack = CredentialIssue {
        credential: Reference::parse("google/work").unwrap(),
        kind: CredentialIssueKind::Missing,
        sent_at: None,
    };
    let (bad, good) = (world.task(json!({ "interval": "1h" })).await, world.task(json!({ "interval": "1h" })).await);
    for task in [&bad, &good] {
        assert_eq!(world.store.pause_for_credential(task.id, &lack).await.unwrap(), PauseResult::Paused);
    }
    respecified(world, &bad, |spec| spec["metadata"] = json!(7)).await;
    let saved = world.store.put_credential(&Scope::Every, &credentials::credential("a"), 0).await.unwrap();
    let going = world.get_task(good.id).await;
    assert_eq!((saved.resumed, going.status), (vec![DependentTask::of(&going)], TaskStatus::Active));
}

async fn unreadable_credential_is_left_out_and_the_others_are_renewed(world: &StoreHarness) {
    let mut ids = Vec::new();
    for account in ["one", "two", "three", "four"] {
        let new = CredentialRowDraft { account_name: account.into(), ..credentials::credential("a") };
        ids.push(world.store.put_credential(&Scope::Every, &new, 0).await.unwrap().stored);
    }
    for bad in &ids[..2] {
        let id = world.id(bad.credential.id);
        world.plant(&format!("update credentials set status = 'perhaps' where id = {id}")).await;
    }
    // a page of two is full behind two that can't be read, so the reading does not end with it
    let page = world.store.credentials_not_under("new", None, 2).await.unwrap();
    assert_eq!(
        page.iter().map(|stored| stored.credential.id).collect::<Vec<_>>(),
        [ids[2].credential.id, ids[3].credential.id]
    );
    let good = &page[0];
    let until = world.now() + LEASE;
    let lease = world.store.claim_refresh(good.credential.id, good.credential.version, until).await.unwrap();
    let document = SealedDocument {
        sealed: "v1:old:two".into(),
        generation: good.generation + 1,
        key_id: "old".into(),
        expires_at: None,
    };
    let renewed = world.store.store_refreshed(good.credential.id, lease, &document).await.unwrap();
    assert_eq!(renewed.sealed, "v1:old:two");
    // it is nobody's to renew
    let bad = &ids[0].credential;
    assert_eq!(world.store.claim_refresh(bad.id, bad.version, until).await.unwrap(), None);
}

async fn unreadable_grant_covers_nothing_and_another_covers_the_call(world: &StoreHarness) {
    let (task, bad) = grants::granted(world, |_| {}).await;
    let good = grants::grant(&task, world.now());
    world.store.create_grant(&Scope::Every, &good).await.unwrap();
    let arguments = if world.is_postgres() { "[7]" } else { "{" };
    world.plant(&format!("update grants set arguments = '{arguments}' where id = {}", world.id(bad.id))).await;
    assert_eq!(grants::used(world, &task, json!({ "to": "ann" })).await, Some(good.id));
}

async fn unreadable_message_is_passed_over_by_a_change_of_the_master_key(world: &StoreHarness) {
    let (bad, good) = (Uuid::from_u128(1), Uuid::from_u128(2));
    for id in [bad, good] {
        world.store.put_live_message(&tenant_of("a"), id, false, "v1:old:1").await.unwrap();
    }
    world.plant(&format!("update live_messages set body = '7' where id = {}", world.id(bad))).await;
    let page = world.store.sealed_live_messages(None, 9).await.unwrap();
    assert_eq!(page[1], (good, "a".to_owned(), "v1:old:1".to_owned()));
    assert_eq!((page.len(), page[0].2.as_str()), (2, "7"), "no key has sealed that");
}

async fn unreadable_recipient_is_none_and_the_others_are_told(world: &StoreHarness) {
    let addresses = Addresses { email: Some("ann@example.org".into()), ..Addresses::default() };
    let ann = Recipient { timezone: chrono_tz::Tz::UTC, locale: "en".into(), addresses, ..Recipient::default() };
    for tenant in ["a", "b", "c"] {
        world.store.put_recipient(&Scope::Every, tenant, &ann, None).await.unwrap();
        world.task_with(tenant, json!({ "interval": "1h" }), json!({})).await;
    }
    world.plant("update recipients set body = '7' where tenant_id = 'a'").await;
    let none = if world.is_postgres() { "[]" } else { r#"{"sealed_"# };
    world.plant(&format!("update recipients set body = '{none}' where tenant_id = 'b'")).await;
    world.pass(3600);
    let claims = super::world::leases(&world.fire().await.claims);
    let started = world.store.start_runs(&claims, world.now() + LEASE).await.unwrap().started;
    let mut reached: Vec<_> = started.iter().map(|one| (one.run.tenant_id.as_str(), one.recipient.is_some())).collect();
    reached.sort_unstable();
    assert_eq!(reached, [("a", false), ("b", false), ("c", true)]);
    for one in &started {
        world.succeed(one).await;
    }
    let pages = world.store.sealed_recipients("", 9).await.unwrap();
    assert_eq!(pages.len(), 3, "a change of the master key comes to the last");
    let told = async |tenant: &str| world.store.recipient_to_tell(tenant).await.unwrap();
    assert_eq!((told("a").await, told("c").await), (None, Some(ann)));
}

async fn unreadable_recipient_is_listed_as_damaged_and_hides_no_other(world: &StoreHarness) {
    let ann = Recipient { timezone: chrono_tz::Tz::UTC, locale: "en".into(), ..Recipient::default() };
    for tenant in ["a", "b", "c"] {
        world.store.put_recipient(&Scope::Every, tenant, &ann, None).await.unwrap();
    }
    world.plant("update recipients set body = '7' where tenant_id = 'a'").await;
    if !world.is_postgres() {
        world.plant("update recipients set updated_at = 'soon' where tenant_id = 'b'").await;
    }
    let all = RecipientFilter { limit: 9, ..RecipientFilter::default() };
    let listed = world.store.list_recipients(&Scope::Every, &all).await.unwrap().rows;
    let readable: Vec<_> = listed.iter().map(|one| (one.tenant_id.as_str(), one.stored.is_some())).collect();
    assert_eq!(readable, [("a", false), ("b", world.is_postgres()), ("c", true)]);
}

async fn unreadable_message_hides_no_other_from_a_session(world: &StoreHarness) {
    if world.is_postgres() {
        return; // the types of its columns let nothing in that can't be read
    }
    for id in [1, 2] {
        world.store.put_live_message(&tenant_of("a"), Uuid::from_u128(id), false, "v1:old:1").await.unwrap();
    }
    let bad = world.id(Uuid::from_u128(1));
    world.plant(&format!("update live_messages set created_at = 'soon' where id = {bad}")).await;
    let found = world.store.live_messages(&tenant_of("a"), world.now(), 9).await.unwrap();
    assert_eq!(found.iter().map(|message| message.id).collect::<Vec<_>>(), [Uuid::from_u128(2)]);
}

async fn unreadable_run_is_not_started_and_the_others_are(world: &StoreHarness) {
    let (bad, good) = (world.task(json!({ "interval": "1h" })).await, world.task(json!({ "interval": "1h" })).await);
    let lost = world.run_now(&bad).await;
    world.run_now(&good).await;
    let leases = super::world::leases(&world.claim().await);
    world.plant(&format!("update runs set missed = '7' where id = {}", world.id(lost))).await;
    let started = world.store.start_runs(&leases, world.now() + LEASE).await.unwrap().started;
    assert_eq!(started.iter().map(|one| one.run.task_id).collect::<Vec<_>>(), [Some(good.id)]);
    // it is taken over when its lease has ended, and those beside it are not held up by that either
    world.pass(60);
    let taken = world.store.take_over_expired(world.now(), TimeDelta::zero(), world.now() + LEASE, 9).await.unwrap();
    assert_eq!(taken.iter().map(|one| one.run.task_id).collect::<Vec<_>>(), [Some(good.id)]);
    world.plant("update runs set missed = null").await;
}

async fn unreadable_record_of_what_was_told_keeps_no_run_from_its_end(world: &StoreHarness) {
    let (bad, good) = (world.task(json!({ "interval": "1h" })).await, world.task(json!({ "interval": "1h" })).await);
    let mut ends = Vec::new();
    for (task, row) in [(&bad, Some("[7]")), (&good, None)] {
        let started = world.started(task).await;
        let said = NotifiedOutcome::Failure { code: "llm_auth".into() };
        let tells = alerts::tells(task, started.run.id, said);
        ends.push(Finish { tells, ..end_of(&started, RunState::Failed) });
        if let Some(alerts) = row {
            let id = world.id(task.id);
            let row = format!("insert into task_alerts (task_id, tenant_id, alerts) values ({id}, 'a', '{alerts}')");
            world.plant(&row).await;
        }
    }
    assert_eq!(world.store.finish_runs(&ends).await.unwrap(), Vec::<Uuid>::new());
    for task in [&bad, &good] {
        assert_eq!(world.runs_of(task).await[0].state, RunState::Failed);
    }
    assert_eq!(world.count("select count(*) from deliveries").await, 2, "as if nothing had been told before");
}

async fn unreadable_quota_is_the_usual_one(world: &StoreHarness) {
    if world.is_postgres() {
        return; // the types of its columns let nothing in that can't be read
    }
    for tenant in ["a", "b"] {
        let less = Overrides { fires_per_minute: Some(7), ..Overrides::default() };
        world.store.put_quotas(tenant, &less, "token:admin").await.unwrap();
        world.task_with(tenant, json!({ "interval": "1h" }), json!({})).await;
    }
    world.plant("update tenant_quotas set fires_per_minute = 'many' where tenant_id = 'a'").await;
    world.pass(3600);
    assert_eq!(world.fire().await.recorded, 2);
    assert_eq!(world.store.quotas_of("b").await.unwrap().fires_per_minute, 7);
}

async fn unreadable_budget_is_the_usual_one(world: &StoreHarness) {
    let said = Budgets { run: RunBudget { turns: Some(7), ..RunBudget::default() }, ..Budgets::default() };
    for tenant in ["a", "b"] {
        world.store.put_budgets(tenant, &said, "token:admin").await.unwrap();
    }
    world.plant("update tenant_budgets set limits = '{\"run\": 7}' where tenant_id = 'a'").await;
    world.pass(1);
    assert_eq!(world.store.budgets_of("a").await.unwrap(), Budgets::default());
    assert_eq!(world.store.budgets_of("b").await.unwrap(), said);
}

fn event(id: &str) -> Event {
    let fields = json!({ "specversion": "1.0", "tenantid": "a", "id": id, "source": "a", "type": "t" });
    Event::try_from(fields).unwrap()
}

async fn unreadable_kept_event_is_read_beside_the_others(world: &StoreHarness) {
    world.store.keep_events(&[event("1"), event("2")]).await.unwrap();
    world.plant("update bus_outbox set body = '7' where seq = (select min(seq) from bus_outbox)").await;
    let kept = world.store.kept_events(9).await.unwrap();
    assert_eq!((kept.len(), kept[0].1.as_str()), (2, "7"), "the bus makes a dead letter of it");
    assert_eq!(serde_json::from_str::<Event>(&kept[1].1).unwrap().id, "2");
}

async fn unreadable_event_is_handed_out_beside_the_others(world: &StoreHarness) {
    world.store.publish_events(&[event("1"), event("2")]).await.unwrap();
    let bad = if world.is_postgres() { "[7]" } else { "{" };
    world.plant(&format!("update events set body = '{bad}' where seq = (select min(seq) from events)")).await;
    let leased = world.store.lease_events(WORKER, world.now() + LEASE, 9, "", &[]).await.unwrap();
    let bodies: Vec<&str> = leased.events.iter().map(|one| one.body.as_str()).collect();
    assert_eq!((bodies.len(), bodies[0]), (2, bad), "the matcher makes a dead letter of it");
}

async fn unreadable_event_hides_no_other_from_a_search_by_id(world: &StoreHarness) {
    world.store.publish_events(&[event("1"), event("2")]).await.unwrap();
    let bad = if world.is_postgres() { "[7]" } else { "{" };
    world.plant(&format!("update events set body = '{bad}' where seq = (select min(seq) from events)")).await;
    let tenant = tenant_of("a");
    let found = async |id: &str| {
        let body = world.store.find_event(&tenant, None, id).await.unwrap();
        body.map(|body| serde_json::from_str::<Value>(&body).unwrap()["id"].clone())
    };
    assert_eq!((found("1").await, found("2").await), (None, Some(json!("2"))));
    assert_eq!(world.store.event_ids(&tenant, None, "").await.unwrap(), ["2"]);
}

async fn unreadable_held_event_is_set_aside_and_the_others_are_released(world: &StoreHarness) {
    let bad = matching::paused(world, json!({ "buffer_while_paused": true })).await;
    let good = matching::paused(world, json!({ "buffer_while_paused": true })).await;
    matching::publish(world, vec![matching::event("e1"), matching::event("e2")]).await;
    let body = if world.is_postgres() { "[7]" } else { "{" };
    let of_bad = world.id(bad.id);
    world.plant(&format!("update window_events set body = '{body}' where task_id = {of_bad} and seq = 1")).await;
    for task in [&bad, &good] {
        let resume = reveille::domain::task::change::TaskChange::Resume;
        world.store.change_task(&Scope::Every, task.id, &resume).await.unwrap();
    }
    let recorded: usize = matching::release(world, None).await.iter().map(|recorded| recorded.recorded).sum();
    assert_eq!(recorded, 3, "both of the one, and one of the other");
    // the last one can't be read: it is looked at again in an hour, not at once and again
    assert_eq!(matching::release(world, None).await, [EventsRecorded::default()], "the other window goes");
    assert_eq!(matching::release(world, None).await, []);
    assert_eq!(world.store.next_window().await.unwrap(), Some(world.now() + TimeDelta::hours(1)));
    world.plant(&format!("delete from window_events where task_id = {of_bad} and body is not null")).await;
}

async fn unreadable_delivery_is_not_claimed_and_those_beside_it_are(world: &StoreHarness) {
    for key in ["a", "b", "c"] {
        let message = NewDelivery {
            tenant_id: "a".into(),
            recipient: "a".into(),
            channel: "email".into(),
            fallback: Vec::new(),
            dedupe_key: key.into(),
            run_id: None,
            subject_ref: None,
            kind: MessageKind::Message,
            urgency: MessageKind::Message.urgency(),
            subject: None,
            text: Some(key.into()),
        };
        world.store.post_delivery(&message).await.unwrap();
    }
    world.plant("update deliveries set kind = 'telepathy' where dedupe_key = 'a'").await;
    world.plant(r#"update deliveries set fallback = '{"no": "list"}' where dedupe_key = 'b'"#).await;
    let claimed = claim_due(&world.store, world.now() + TimeDelta::seconds(60), 100).await.unwrap();
    let keys: Vec<_> = claimed.iter().map(|claim| claim.delivery.dedupe_key.as_str()).collect();
    assert_eq!(keys, ["c"]);
    assert_eq!(world.store.due_deliveries(9).await.unwrap(), []);
    world.pass(3600);
    assert_eq!(world.store.due_deliveries(9).await.unwrap().len(), 3, "a newer release may read them");
}

async fn unreadable_question_keeps_no_other_run_waiting(world: &StoreHarness) {
    let (_, bad, broken) = asked(world, &["c1"]).await;
    let (_, good, _) = asked(world, &["c1"]).await;
    let (_, lost, _) = asked(world, &["c1"]).await;
    let status = format!("update approvals set status = 'perhaps' where id = {}", world.id(broken[0].id));
    world.plant(&status).await;
    world.plant(&format!("update runs set missed = '7' where id = {}", world.id(lost.run.id))).await;
    world.pass(LIMIT);
    let waiting = world.store.waiting_for_people(world.now(), 1).await.unwrap();
    assert!(waiting.is_empty(), "the first is set aside");
    let waiting = world.store.waiting_for_people(world.now(), 9).await.unwrap();
    assert_eq!(waiting.iter().map(|waiting| waiting.run.id).collect::<Vec<_>>(), [good.run.id]);
    let again = world.store.waiting_for_people(world.now(), 1).await.unwrap();
    assert_eq!(again.len(), 1, "the others do not stand before it any more");
    world.plant(&status.replace("perhaps", "pending")).await;
    world.plant("update runs set missed = null").await;
    for started in [bad, good, lost] {
        world.store.cancel_run(&Scope::Every, started.run.id, "no").await.unwrap();
    }
}

async fn unreadable_run_that_waits_for_a_completion_lets_the_others_expire(world: &StoreHarness) {
    let mut runs = Vec::new();
    for _ in 0..2 {
        let task = world.task(json!({ "interval": "1h" })).await;
        let started = world.started(&task).await;
        let park = Some(Park::Completion { until: world.now() + TimeDelta::seconds(60) });
        let end = Finish { park, ..end_of(&started, RunState::WaitingForCompletion) };
        assert!(world.store.finish_runs(&[end]).await.unwrap().is_empty());
        runs.push(started.run.id);
        world.pass(1);
    }
    world.plant(&format!("update runs set missed = '7' where id = {}", world.id(runs[0]))).await;
    // one that is not due was parked anew since somebody read it, and is left as it is
    world.store.set_aside_parked(runs[1], &"it can't be ended").await.unwrap();
    world.pass(60);
    assert_eq!(world.store.overdue_completions(world.now(), 1).await.unwrap(), []);
    let overdue = world.store.overdue_completions(world.now(), 1).await.unwrap();
    assert_eq!(overdue[0].0.id, runs[1], "the first does not stand before it");
    // so it is with a run that was read, and that nobody can look after
    world.store.set_aside_parked(runs[1], &"it can't be ended").await.unwrap();
    assert_eq!(world.store.overdue_completions(world.now(), 1).await.unwrap(), []);
    world.plant("update runs set missed = null").await;
}

async fn unreadable_event_task_is_out_of_the_index_and_the_others_of_its_shard_are_in_it(world: &StoreHarness) {
    let mut tasks = Vec::new();
    for _ in 0..3 {
        tasks.push(matching::task(world, json!({})).await);
    }
    for (task, field, value) in [(&tasks[0], "metadata", json!(7)), (&tasks[1], "max_runs", json!("many"))] {
        let mut spec = serde_json::to_value(&task.spec).unwrap();
        spec[field] = value;
        world.plant(&format!("update tasks set spec = '{spec}' where id = {}", world.id(task.id))).await;
    }
    let changes = world.store.event_tasks(event_shard("a"), 0, 10, false).await.unwrap();
    assert_eq!(changes.live.iter().map(|task| task.task_id).collect::<Vec<_>>(), [tasks[2].id]);
    assert_eq!((changes.gone, changes.more), (vec![tasks[0].id, tasks[1].id], false));
    let page = world.store.event_tasks(event_shard("a"), 0, 2, false).await.unwrap();
    assert!(page.live.is_empty() && page.more, "a page of others ends no reading");
}

async fn unreadable_time_limit_starts_with_the_usual_one_and_the_others_start_beside_it(world: &StoreHarness) {
    let bad = world.task(json!({ "interval": "1h" })).await;
    let good = world.task(json!({ "interval": "1h" })).await;
    for task in [&bad, &good] {
        world.run_now(task).await;
    }
    let mut spec = serde_json::to_value(&bad.spec).unwrap();
    spec["timeout_seconds"] = json!("soon");
    world.plant(&format!("update tasks set spec = '{spec}' where id = {}", world.id(bad.id))).await;
    let now = world.now();
    let take = TakeRequest {
        worker: WORKER,
        now,
        ahead: now,
        lease_until: now + LEASE,
        limit: 9,
        fair: None,
        limits: RunLimits::default(),
        shares: None,
    };
    let taken = world.store.take_runs(&take).await.unwrap();
    let mut started: Vec<_> = taken.starts.started.iter().map(|one| (one.run.task_id, one.deadline_at - now)).collect();
    started.sort_unstable();
    let usual = TimeDelta::seconds(600);
    assert_eq!(started, [(Some(bad.id), usual), (Some(good.id), usual)]);
    for started in &taken.starts.started {
        world.succeed(started).await;
    }
}

async fn unreadable_audit_entry_is_passed_over_and_those_behind_it_are_sealed(world: &StoreHarness) {
    if world.is_postgres() {
        return; // the types of its columns let nothing in that can't be read
    }
    let (_, started, _) = asked(world, &["c1", "c2", "c3"]).await;
    world.plant("update audit set body = 'no document' where id in (select id from audit order by id limit 2)").await;
    let hash = |before: &str, entry: &AuditEntry| format!("{}+{}", before.len(), entry.action);
    assert_eq!(world.store.seal_audit(&hash, 2).await.unwrap(), 1, "behind a page of two");
    assert_eq!(world.store.seal_audit(&hash, 2).await.unwrap(), 0);
    let (position, _, unsealed) = world.store.audit_end().await.unwrap();
    assert_eq!((position, unsealed), (1, 2));
    world.store.cancel_run(&Scope::Every, started.run.id, "no").await.unwrap();
}

async fn unreadable_window_is_set_aside(world: &StoreHarness) {
    let task = matching::task(world, json!({ "batch": { "size": 5, "wait": "1m" } })).await;
    matching::publish(world, vec![matching::event("e1")]).await;
    world.pass(60);
    let due = world.store.due_windows(world.now(), 9).await.unwrap();
    assert_eq!(due.iter().map(|window| window.task_id).collect::<Vec<_>>(), [task.id]);
    world.store.set_aside_window(due[0].id, &"it can't be read").await.unwrap();
    assert_eq!(world.store.due_windows(world.now(), 9).await.unwrap(), []);
    world.pass(1);
    world.store.set_aside_window(due[0].id, &"it can't be read").await.unwrap();
    world.pass(3599);
    assert_eq!(world.store.due_windows(world.now(), 9).await.unwrap().len(), 1);
    if world.is_postgres() {
        return;
    }
    // one whose row can't be read is not due at each look either
    world.plant("update event_windows set tenant_id = x'ff'").await;
    assert_eq!(world.store.due_windows(world.now(), 9).await.unwrap(), []);
    assert_eq!(world.store.next_window().await.unwrap(), Some(world.now() + TimeDelta::hours(1)));
}
