//! Tenants are apart: what lies outside a scope is not found there, can't be changed from there, and is not counted.

use std::fmt::Debug;

use chrono::TimeDelta;
use futures::future::join_all;
use reveille::base::id::{Scope, new_id};
use reveille::domain::approval::{Approval, ApprovalChoice};
use reveille::domain::credential::Reference;
use reveille::domain::notification::{Addresses, Mark, MessageKind, NewDelivery, Recipient};
use reveille::domain::run::transcript::{TranscriptEntry, TranscriptMessage};
use reveille::domain::run::{RunState, Usage};
use reveille::domain::task::change::TaskChange;
use reveille::store::{
    ApprovalFilter, AuditFilter, CredentialFilter, DecisionOutcome, DeliveryFilter, Grant, Idempotency, RunFilter,
    Store, StoreError, StoredToken, TaskFilter, UseFilter,
};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use uuid::Uuid;

use super::asked::{answer, asked};
use super::credentials::{credential, used};
use super::grants::grant;
use super::world::{START, StoreHarness, end_of, only};
use crate::support::outbox::claim_due;

on_both!(
    another_tenants_things_are_not_found_and_not_changed,
    tenant_sees_and_changes_its_own,
    lookups_answer_the_tenants_own_and_nothing_of_another,
    reads_that_follow_one_another_on_a_connection_see_what_is_of_their_own_scope,
);

/// One of everything, all of tenant `a`.
struct Things {
    task: Uuid,
    ended: Uuid,
    queued: Uuid,
    delivery: Uuid,
    token: Uuid,
    asked: Vec<Approval>,
    grant: Grant,
}

fn remembered() -> Idempotency {
    Idempotency { tenant: "a".into(), key: "remembered".into(), digest: vec![1], status: 200, body: json!({}).into() }
}

async fn things(world: &StoreHarness) -> Things {
    let (_, _, asked) = asked(world, &["c1"]).await;
    let task = world.task(json!({"interval": "1h", "overlap": "allow"})).await;
    let ended = world.started(&task).await;
    let (message, usage) = (TranscriptMessage::user("hello"), Usage::default());
    let entry = TranscriptEntry { usage, ..TranscriptEntry::new(0, 0, START, message) };
    world.store.append("a", ended.lease, &[entry]).await.unwrap();
    world.store.remember_answer(&remembered(), START).await.unwrap();
    world.store.finish_runs(&[end_of(&ended, RunState::Failed)]).await.unwrap();
    let queued = world.run_now(&task).await;
    let delivery = NewDelivery {
        tenant_id: "a".into(),
        recipient: "a".into(),
        channel: "email".into(),
        fallback: vec![],
        dedupe_key: "k".into(),
        run_id: Some(ended.run.id),
        subject_ref: None,
        kind: MessageKind::Result,
        urgency: MessageKind::Result.urgency(),
        subject: None,
        text: None,
    };
    world.store.post_delivery(&delivery).await.unwrap();
    let claim = claim_due(&world.store, START + TimeDelta::seconds(60), 9).await.unwrap().remove(0);
    world.store.mark_delivery(&claim, &Mark::Unknown { error: "?".into(), fall_back: None }).await.unwrap();
    let token = StoredToken {
        id: new_id(START),
        tenant_id: Some("a".into()),
        name: "n".into(),
        hash: vec![1],
        scopes: vec![],
        created_at: START,
        expires_at: None,
        revoked_at: None,
        root: None,
    };
    world.store.create_token(&token, None).await.unwrap();
    world.store.put_recipient(&only("a"), "a", &recipient(), None).await.unwrap();
    let grant = grant(&task, START);
    world.store.create_grant(&only("a"), &grant).await.unwrap();
    world.store.put_credential(&only("a"), &credential("a"), 0).await.unwrap();
    world.store.note_credential_use(&used("a", START)).await.unwrap();
    Things { task: task.id, ended: ended.run.id, queued, delivery: claim.delivery.id, token: token.id, asked, grant }
}

fn recipient() -> Recipient {
    let (timezone, addresses) = (chrono_tz::Tz::UTC, Addresses::default());
    Recipient { timezone, locale: "en".into(), addresses, ..Recipient::default() }
}

fn unseen<T: Debug>(what: &str, answer: Result<T, StoreError>) {
    assert!(matches!(answer, Err(StoreError::NotFound)), "{what}: {answer:?}");
}

async fn another_tenants_things_are_not_found_and_not_changed(world: &StoreHarness) {
    let a = things(world).await;
    let (store, b) = (&world.store, &only("b"));
    let before = snapshot(store).await;

    unseen("get_task", store.get_task(b, a.task).await);
    unseen("change_task", store.change_task(b, a.task, &TaskChange::Resume).await);
    unseen("delete_task", store.delete_task(b, a.task).await);
    unseen("run_now", store.run_now(b, a.task, new_id(START), None, START, None).await);
    unseen("backfill", store.backfill(b, a.task, new_id(START), &[START], None, None).await);
    unseen("get_run", store.get_run(b, a.ended).await);
    unseen("retry_run", store.retry_run(b, a.ended, new_id(START), START, |_| Ok(None), None).await);
    unseen("cancel_run", store.cancel_run(b, a.queued, "no").await);
    unseen("get_delivery", store.get_delivery(b, a.delivery).await);
    unseen("find_delivery", store.find_delivery(b, "a", "k").await);
    unseen("retry_delivery", store.retry_delivery(b, a.delivery, |_| Ok(None)).await);
    unseen("get_recipient", store.get_recipient(b, "a").await);
    unseen("put_recipient", store.put_recipient(b, "a", &recipient(), None).await);
    unseen("revoke_token", store.revoke_token(b, a.token).await);
    unseen("get_approval", store.get_approval(b, a.asked[0].id).await);
    let yes = answer(ApprovalChoice::Approve, &a.asked[0], "token:b");
    unseen("decide_approval", store.decide_approval(b, a.asked[0].id, &yes).await);
    unseen("revoke_grant", store.revoke_grant(b, a.grant.id, "token:b").await);
    unseen("get_credential", store.get_credential(b, "a", "google", "work").await);
    unseen("put_credential", store.put_credential(b, &credential("a"), 1).await);
    unseen("delete_credential", store.delete_credential(b, "a", "google", "work", "token:b").await);
    unseen("create_grant", store.create_grant(b, &Grant { id: new_id(START), ..a.grant.clone() }).await);

    // a filter that names the other tenant does not widen the scope
    for tenant in [None, Some("a".to_owned()), Some("b".to_owned())] {
        let tasks = TaskFilter { tenant: tenant.clone(), limit: 9, ..TaskFilter::default() };
        assert_eq!(store.list_tasks(b, &tasks).await.unwrap(), []);
        let runs = RunFilter { tenant: tenant.clone(), limit: 9, ..RunFilter::default() };
        assert_eq!(store.list_runs(b, &runs).await.unwrap(), []);
        let runs = RunFilter { task_id: Some(a.task), limit: 9, ..RunFilter::default() };
        assert_eq!(store.list_runs(b, &runs).await.unwrap(), []);
        let deliveries = DeliveryFilter { tenant: tenant.clone(), limit: 9, ..DeliveryFilter::default() };
        assert_eq!(store.list_deliveries(b, &deliveries).await.unwrap(), []);
        assert_eq!(store.list_tokens(b, tenant.as_deref(), None, 9).await.unwrap().rows, []);
        let approvals = ApprovalFilter { tenant: tenant.clone(), limit: 9, ..ApprovalFilter::default() };
        assert_eq!(store.list_approvals(b, &approvals).await.unwrap(), []);
        let acts = AuditFilter { tenant: tenant.clone(), limit: 9, ..AuditFilter::default() };
        assert_eq!(store.audit_page(b, &acts).await.unwrap().rows, []);
        let credentials = CredentialFilter { tenant: tenant.clone(), limit: 9, ..CredentialFilter::default() };
        assert_eq!(store.list_credentials(b, &credentials).await.unwrap().rows, []);
        let uses = UseFilter { tenant, limit: 9, ..UseFilter::default() };
        assert_eq!(store.credential_uses(b, &uses).await.unwrap(), []);
        assert_eq!(store.list_grants(b, Some(a.task), None, 9).await.unwrap().rows, []);
    }
    // what is named by its id alone
    assert_eq!(store.transcript(b, a.ended, 0, 9).await.unwrap(), []);
    assert_eq!(store.last_runs(b, &[a.task]).await.unwrap(), []);
    let reference = Reference::parse("google/work").unwrap();
    assert_eq!(store.tasks_of_credential(b, "a", &reference, &["look_up"]).await.unwrap(), []);
    assert_eq!(store.recall_answer(b, "remembered", &[1], START).await.unwrap(), None);
    assert_eq!(store.count_tasks(b).await.unwrap(), []);
    assert_eq!(store.count_deliveries(b).await.unwrap(), 0);
    assert!(store.count_runs(b).await.unwrap().iter().all(|(_, count)| *count == 0));
    assert_eq!(snapshot(store).await, before);
}

/// Everything there is, as the service itself sees it.
async fn snapshot(store: &Store) -> String {
    let every = &Scope::Every;
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?}",
        store.list_tasks(every, &TaskFilter { limit: 99, ..TaskFilter::default() }).await.unwrap(),
        store.list_runs(every, &RunFilter { limit: 99, ..RunFilter::default() }).await.unwrap(),
        store.list_deliveries(every, &DeliveryFilter { limit: 99, ..DeliveryFilter::default() }).await.unwrap(),
        store.list_tokens(every, None, None, 99).await.unwrap().rows,
        store.get_recipient(every, "a").await.unwrap(),
        store.get_credential(every, "a", "google", "work").await.unwrap(),
    )
}

async fn tenant_sees_and_changes_its_own(world: &StoreHarness) {
    let things = things(world).await;
    let (store, a) = (&world.store, &only("a"));
    assert_eq!(store.list_tasks(a, &TaskFilter { limit: 9, ..TaskFilter::default() }).await.unwrap().len(), 2);
    assert_eq!(store.list_runs(a, &RunFilter { limit: 9, ..RunFilter::default() }).await.unwrap().len(), 3);
    let deliveries = DeliveryFilter { limit: 9, ..DeliveryFilter::default() };
    assert_eq!(store.list_deliveries(a, &deliveries).await.unwrap().len(), 1);
    assert_eq!(store.list_tokens(a, None, None, 9).await.unwrap().rows.len(), 1);
    assert_eq!(store.count_tasks(a).await.unwrap(), [("active".into(), 2)]);
    assert_eq!(store.count_deliveries(a).await.unwrap(), 0);
    assert_eq!(store.find_delivery(a, "a", "k").await.unwrap().id, things.delivery);
    assert_eq!(store.get_recipient(a, "a").await.unwrap().version, 1);
    store.get_run(a, things.ended).await.unwrap();
    let credentials = CredentialFilter { limit: 9, ..CredentialFilter::default() };
    assert_eq!(store.list_credentials(a, &credentials).await.unwrap().rows.len(), 1);
    assert_eq!(store.credential_uses(a, &UseFilter { limit: 9, ..UseFilter::default() }).await.unwrap().len(), 1);
    store.delete_credential(a, "a", "google", "work", "token:a").await.unwrap();
    assert_eq!(store.transcript(a, things.ended, 0, 9).await.unwrap().len(), 1);
    assert_eq!(store.last_runs(a, &[things.task]).await.unwrap().len(), 1);
    assert!(store.recall_answer(a, "remembered", &[1], START).await.unwrap().is_some());
    store.retry_delivery(a, things.delivery, |_| Ok(None)).await.unwrap();
    store.get_delivery(a, things.delivery).await.unwrap();
    store.cancel_run(a, things.queued, "no").await.unwrap();
    store.retry_run(a, things.ended, new_id(START), START, |_| Ok(None), None).await.unwrap();
    store.run_now(a, things.task, new_id(START), None, START, None).await.unwrap();
    store.backfill(a, things.task, new_id(START), &[START], None, None).await.unwrap();
    let yes = answer(ApprovalChoice::Approve, &things.asked[0], "token:a");
    assert!(matches!(store.decide_approval(a, things.asked[0].id, &yes).await.unwrap(), DecisionOutcome::Done(_)));
    world.pass(3601);
    store.change_task(a, things.task, &TaskChange::Pause { reason: None }).await.unwrap();
    store.get_task(a, things.task).await.unwrap();
    store.revoke_token(a, things.token).await.unwrap();
    assert_eq!(store.list_grants(a, None, None, 9).await.unwrap().rows, std::slice::from_ref(&things.grant));
    store.revoke_grant(a, things.grant.id, "token:a").await.unwrap();
    store.delete_task(a, things.task).await.unwrap();
}

async fn lookups_answer_the_tenants_own_and_nothing_of_another(world: &StoreHarness) {
    let things = things(world).await;
    let store = &world.store;
    for (tenant, is_there) in [("a", true), ("b", false)] {
        let scope = &only(tenant);
        let found = [
            store.find_task(scope, things.task).await.unwrap().is_some(),
            store.find_run(scope, things.ended).await.unwrap().is_some(),
            store.find_recipient(scope, "a").await.unwrap().is_some(),
            store.find_credential(scope, "a", "google", "work").await.unwrap().is_some(),
            store.find_delivery_by_id(scope, things.delivery).await.unwrap().is_some(),
        ];
        assert_eq!(found, [is_there; 5], "{tenant}");
    }
}

/// Nobody waits for the end of a transaction that reads, and the next reader has its connection.
async fn reads_that_follow_one_another_on_a_connection_see_what_is_of_their_own_scope(world: &StoreHarness) {
    for tenant in ["a", "b", "c"] {
        world.task_with(tenant, json!({"interval": "1h"}), json!({})).await;
    }
    let filter = TaskFilter { limit: 9, ..TaskFilter::default() };
    for _ in 0..20 {
        let reads = ["a", "*", "b", "*", "c", "*"].map(|tenant| {
            let (store, filter) = (&world.store, &filter);
            async move {
                let scope = if tenant == "*" { Scope::Every } else { only(tenant) };
                let tasks = store.list_tasks(&scope, filter).await.unwrap();
                assert_eq!(tasks.len(), if tenant == "*" { 3 } else { 1 }, "as {tenant}");
                assert!(tasks.iter().all(|task| tenant == "*" || task.tenant_id == tenant), "as {tenant}");
            }
        });
        join_all(reads).await;
    }
}

/// The tables that only row-level security keeps apart when a predicate is forgotten.
const WALLED: [&str; 39] = [
    "tasks",
    "recipients",
    "deliveries",
    "tokens",
    "idempotency",
    "events",
    "dead_letters",
    "bus_outbox",
    "event_windows",
    "task_state",
    "approvals",
    "approval_links",
    "grants",
    "approval_overrides",
    "facts",
    "fact_versions",
    "fact_vectors",
    "fact_revisions",
    "extractions",
    "audit",
    "credentials",
    "credential_uses",
    "task_credentials",
    "interruptions",
    "verifications",
    "task_alerts",
    "live_messages",
    "tenant_usage",
    "event_task_counts",
    "quota_minutes",
    "stored_byte_changes",
    "resumptions",
    "halts",
    "tenant_budgets",
    "budget_days",
    "budget_reservations",
    "data_files",
    "data_file_chunks",
    "usage_days",
];

/// Walled as well, but for the row of `*`, which everybody may read.
const QUOTAS: &str = "tenant_quotas";

async fn rows(connection: &mut PgConnection, table: &str) -> i64 {
    let sql = sqlx::AssertSqlSafe(format!("select count(*) from {table}"));
    sqlx::query_scalar(sql).fetch_one(connection).await.unwrap()
}

#[tokio::test]
async fn on_postgres_row_level_security_alone_keeps_tenants_apart() {
    let world = StoreHarness::postgres().await;
    things(&world).await;
    let key = reveille::store::Idempotency {
        tenant: "a".into(),
        key: "k".into(),
        digest: vec![1],
        status: 200,
        body: json!({}).into(),
    };
    let (task, nominal) = super::world::new_task("a", json!({"interval": "1h"}), json!({}), START);
    world.store.create_task(&task, nominal, Some(&key)).await.unwrap();
    for planted in [
        "insert into events (event_key, tenant_id, source, type, body, created_at) values ('k', 'a', 's', 't', '{}', now())",
        "insert into dead_letters (id, tenant_id, entry, body, error, deliveries, created_at)
         values (gen_random_uuid(), 'a', '1', '{}', 'e', 1, now())",
        "insert into bus_outbox (tenant_id, body, created_at) values ('a', '{}', now())",
        "insert into event_windows (id, task_id, tenant_id, kind, key, opened_at, events)
         values (gen_random_uuid(), gen_random_uuid(), 'a', 'debounce', '', now(), 1)",
        "insert into task_state (task_id, tenant_id, name, value, updated_at)
         values (gen_random_uuid(), 'a', 'n', '1', now())",
        "insert into approval_links (token_hash, batch_id, tenant_id, recipient, channel, expires_at)
         values ('h', gen_random_uuid(), 'a', 'a', 'email', now())",
        "insert into interruptions (tenant_id, day, sent) values ('a', '2026-03-01', 1)",
        "insert into verifications (tenant_id, channel, address_hash, code_hash, attempts, expires_at)
         values ('a', 'email', '\\x00', '\\x00', 0, now())",
        "insert into task_alerts (task_id, tenant_id) values (gen_random_uuid(), 'a')",
        "insert into live_messages (id, tenant_id, body, has_approval_link, created_at)
         values (gen_random_uuid(), 'a', '{}', false, now())",
        "insert into resumptions (task_id, tenant_id, service, account) values (gen_random_uuid(), 'a', 's', 'p')",
        "insert into task_credentials (task_id, tenant_id, service, account) values (gen_random_uuid(), 'a', 's', 'p')",
        "insert into quota_minutes (tenant_id, quota, minute, used, granted) values ('a', 'fires_per_minute', 1, 1, 1)",
        "insert into approval_overrides (id, tenant_id, subject, tool, gate, created_at, created_by, expires_at)
         values (gen_random_uuid(), 'a', '', 't', 'auto', now(), 't', now())",
        "insert into facts (id, tenant_id, collection, is_profile, text, folded, identity, origin, noted_by, version, mentions,
                            created_at, noted_at, last_used_at)
         values (gen_random_uuid(), 'a', '', false, 't', 't', 'i', 'person', 'agent', 1, 1, now(), now(), now())",
        "insert into fact_versions (fact_id, version, tenant_id, collection, text, origin, noted_by, noted_at, replaced_at)
         values (gen_random_uuid(), 1, 'a', '', 't', 'person', 'agent', now(), now())",
        "insert into fact_vectors (tenant_id, fact_id, space, vector) values ('a', gen_random_uuid(), 's', 'v')",
        "insert into extractions (tenant_id, run_id, due_at, claims, queued_at) values ('a', gen_random_uuid(), now(), 0, now())",
        "insert into halts (tenant_id, kind, halted_by, since) values ('a', 'stopped', 'token:admin', now())",
        "insert into tenant_budgets (tenant_id, limits, updated_at) values ('a', '{}', now())",
        "insert into data_files (id, tenant_id, run_id, call_key, tool, media_type, bytes, summary, created_at, last_used_at)
         values ('00000000-0000-0000-0000-000000000007', 'a', gen_random_uuid(), 'k', 't', 'text/plain', 1, '', now(), now())",
        "insert into data_file_chunks (file_id, number, tenant_id, content)
         values ('00000000-0000-0000-0000-000000000007', 0, 'a', 'x')",
        "insert into budget_days (tenant_id, task_id, day, tokens, cost_micros, reserved_tokens, reserved_cost_micros)
         values ('a', gen_random_uuid(), '2026-03-01', 1, 1, 1, 1)",
        "insert into budget_reservations (id, run_id, lease_token, tenant_id, task_id, day, tokens, cost_micros)
         values (gen_random_uuid(), gen_random_uuid(), 1, 'a', gen_random_uuid(), '2026-03-01', 1, 1)",
        "insert into usage_days (tenant_id, day, task_id, kind, name, calls, failures, duration_ms, input_tokens, output_tokens,
                                 cache_read_tokens, cache_write_tokens, reasoning_tokens, cost_micros, result_chars)
         values ('a', '2026-03-01', gen_random_uuid(), 'tool', 'x', 1, 0, 1, 0, 0, 0, 0, 0, 0, 1)",
        "insert into tenant_quotas (tenant_id, tasks, updated_at) values ('a', 9, now())",
    ] {
        world.plant(planted).await;
    }
    world.task_with("a", json!({"type": "event", "source": "shop"}), json!({})).await;

    let mut connection = PgConnection::connect(&world.url()).await.unwrap();
    for table in WALLED {
        // who names no tenant sees nothing, and neither does one whose name is another's
        assert_eq!(rows(&mut connection, table).await, 0, "{table} without a tenant");
        for (tenant, all) in [("b", false), ("", false), ("a", true), ("*", true)] {
            let mut transaction = connection.begin().await.unwrap();
            sqlx::query("select set_config('reveille.tenant', $1, true)")
                .bind(tenant)
                .execute(&mut *transaction)
                .await
                .unwrap();
            assert_eq!(rows(&mut transaction, table).await > 0, all, "{table} as {tenant:?}");
            let update = sqlx::AssertSqlSafe(format!("delete from {table}"));
            let deleted = sqlx::query(update).execute(&mut *transaction).await.unwrap().rows_affected();
            assert_eq!(deleted > 0, all, "delete from {table} as {tenant:?}");
            transaction.rollback().await.unwrap();
        }
    }
    for (tenant, seen, its_own) in [("b", 1, 0), ("", 1, 0), ("a", 2, 1), ("*", 2, 2)] {
        let mut transaction = connection.begin().await.unwrap();
        sqlx::query("select set_config('reveille.tenant', $1, true)")
            .bind(tenant)
            .execute(&mut *transaction)
            .await
            .unwrap();
        assert_eq!(rows(&mut transaction, QUOTAS).await, seen, "as {tenant:?}");
        let deleted = sqlx::query("delete from tenant_quotas").execute(&mut *transaction).await.unwrap();
        assert_eq!(deleted.rows_affected(), its_own, "as {tenant:?}");
        transaction.rollback().await.unwrap();
    }
    // nobody writes into another tenant, either
    let mut transaction = connection.begin().await.unwrap();
    sqlx::query("select set_config('reveille.tenant', 'b', true)").execute(&mut *transaction).await.unwrap();
    let planted =
        sqlx::query("insert into recipients (tenant_id, body, version, updated_at) values ('c', '{}', 1, now())")
            .execute(&mut *transaction)
            .await;
    assert!(planted.unwrap_err().to_string().contains("row-level security"));
    transaction.rollback().await.unwrap();
    world.leave().await;
}

#[tokio::test]
async fn on_postgres_what_is_made_for_a_tenant_is_written_as_that_tenant() {
    let world = StoreHarness::postgres().await;
    world
        .plant(
            "create function as_its_tenant() returns trigger language plpgsql as $$ begin
                if current_setting('reveille.tenant', true) <> coalesce(new.tenant_id, '*') then
                    raise exception 'written as %', current_setting('reveille.tenant', true);
                end if;
                return new;
             end $$",
        )
        .await;
    for table in ["tasks", "tokens", "deliveries"] {
        let trigger =
            format!("create trigger own before insert on {table} for each row execute function as_its_tenant()");
        world.plant(&trigger).await;
    }
    things(&world).await;
    // an admin's key is everybody's, what it makes is the tenant's
    let key = Idempotency { tenant: "*".into(), ..remembered() };
    let (task, nominal) = super::world::new_task("a", json!({"interval": "1h"}), json!({}), START);
    world.store.create_task(&task, nominal, Some(&key)).await.unwrap();
    let every = world.store.recall_answer(&Scope::Every, &key.key, &key.digest, START).await.unwrap();
    assert!(every.is_some());
    world.leave().await;
}

#[tokio::test]
async fn on_postgres_the_owner_of_the_tables_is_confined_too() {
    let world = StoreHarness::postgres().await;
    let mut connection = PgConnection::connect(&world.url()).await.unwrap();
    let forced: Vec<String> = sqlx::query_scalar(
        "select relname::text from pg_class where relrowsecurity and relforcerowsecurity order by relname",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    let mut expected = [&WALLED[..], &[QUOTAS]].concat();
    expected.sort_unstable();
    assert_eq!(forced, expected);
    // every table that names a tenant is walled, or is one of the hot ones
    let unwalled: Vec<String> = sqlx::query_scalar(
        "select c.relname::text from pg_class c join pg_attribute a on a.attrelid = c.oid
          where c.relkind = 'r' and a.attname = 'tenant_id' and not c.relforcerowsecurity order by 1",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    assert_eq!(unwalled, ["due", "event_queue", "parked", "queue", "runs"]);
    assert!(!world.store.facts().await.unwrap().above_row_security);
    world.leave().await;
}
