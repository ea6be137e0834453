//! Reads of a batch from the tables of Postgres do not grow with what is stored, whatever the planner believes of them:
//! plans of the engine's connections are made once, perhaps of tables that were empty, or looked at in an odd moment.
//!
//! Each step of [`every_step`] and [`every_service`] is held. A statement that looks among all that is stored of a kind
//! reads more than a case allows, and the case says from which table or index. Entries of an index that are passed over
//! because of a later column of it are not counted: the database does not say how many they were.

mod services;

use std::collections::BTreeMap;
use std::time::Duration;

use chrono::TimeDelta;
use futures::future::join_all;
use reveille::base::clock::pause;
use reveille::base::id::{Scope, new_id};
use reveille::domain::budget::{DayLimits, Spend, day_of};
use reveille::domain::data_file::NewDataFile;
use reveille::domain::quota::Overrides;
use reveille::domain::run::transcript::{TranscriptEntry, TranscriptMessage};
use reveille::domain::run::{RunState, Usage};
use reveille::domain::task::Task;
use reveille::store::{
    BudgetEnd, ClaimCursor, EventsFired, Finish, FireDue, ImmediateStart, Lease, OverlapOutcome, Park, RequeuedRun,
    Reservation, ReservationOutcome, RunClaim, RunLimits, Settlement, StartedRun, StoreError, TakeRequest,
};
use serde_json::json;
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use uuid::Uuid;

use super::calls::calls;
use super::matching::{self, MatcherHarness, event, event_with};
use super::message_starts::Places;
use super::world::{
    LEASE, OTHER_WORKER, StoreHarness, WORKER, end_of, leases, new_task, only, open_postgres, tenant_of,
};
use services::{every_service, look, store_for_services};

/// Of each kind: tasks that are due, runs that are ready, started, or wait behind another.
const STORED: i64 = 10_000;
/// Of one kind, how many a batch of these tests has to do with.
const BATCH: i64 = 20;
/// Most rows that may be read, of tables and indexes together, by [`every_step`], or by [`every_service`].
const READ: i64 = 6_000;
/// As [`READ`], with the rounds before the tables were filled; and most rows of one table or index in any case. Less
/// than one look at all that is stored of a kind.
const READ_WITH_ROUNDS: i64 = 8_000;

#[tokio::test]
async fn plans_use_indexes_on_tables_never_analysed() {
    let world = quiet_world().await;
    store_much(&world).await;
    store_for_services(&world).await;
    stays_small(open(&world).await).await;
    services_stay_small(open(&world).await).await;
}

#[tokio::test]
async fn plans_use_indexes_when_planned_on_empty_tables() {
    let world = empty_world().await;
    look(&world).await;
    for _ in 0..2 {
        every_step(&world).await;
        every_service(&world).await;
    }
    store_much(&world).await;
    store_for_services(&world).await;
    let before = read_of(&world).await;
    every_step(&world).await;
    every_service(&world).await;
    reads_little(world, before, 2 * READ_WITH_ROUNDS).await;
}

/// A table that fits on one page is cheap to go through in any order: that of its keys as well.
#[tokio::test]
async fn lists_use_indexes_when_planned_on_tables_with_a_row_or_two() {
    let world = empty_world().await;
    for _ in 0..2 {
        calls(&world).await;
    }
    store_much(&world).await;
    let before = read_of(&world).await;
    calls(&world).await;
    reads_little(world, before, READ).await;
}

/// The few rows that there are may be all of one tenant and of one kind: then an index of ids alone promises as much as
/// that of the tenant.
#[tokio::test]
async fn lists_use_indexes_when_planned_on_tables_analysed_with_a_few_rows() {
    let world = empty_world().await;
    for _ in 0..3 {
        calls(&world).await;
        plant(&world, &["analyze tasks"]).await;
    }
    calls(&world).await;
    store_much(&world).await;
    let before = read_of(&world).await;
    calls(&world).await;
    reads_little(world, before, READ).await;
}

#[tokio::test]
async fn plans_use_indexes_on_tables_analysed_when_full() {
    let world = quiet_world().await;
    store_much(&world).await;
    store_for_services(&world).await;
    plant(&world, &["analyze"]).await;
    stays_small(open(&world).await).await;
    services_stay_small(open(&world).await).await;
}

/// As a service is after a night at rest: nothing is known of the runs that are leased and ready now.
#[tokio::test]
async fn plans_use_indexes_on_tables_analysed_while_idle() {
    let world = quiet_world().await;
    store_much(&world).await;
    let at_night = ["update queue set state = 'later'", "update due set next_at = null", "vacuum analyze"];
    let by_day = [
        "update queue set state = case when lease_token = 0 then 'ready' else 'started' end",
        "update due set next_at = nominal_at",
    ];
    plant(&world, &[&at_night[..], &by_day[..]].concat()).await;
    stays_small(open(&world).await).await;
}

#[tokio::test]
async fn skipped_claims_are_found_by_their_keys_on_tables_that_were_empty_when_the_statements_were_planned() {
    let world = quiet_world().await;
    plant(&world, &["analyze"]).await;
    let world = open(&world).await;
    for _ in 0..2 {
        skip(&world).await;
    }
    store_much(&world).await;
    let before = read_of(&world).await;
    skip(&world).await;
    reads_little(world, before, READ).await;
}

/// Does everything once that the engine does all the time, and looks at what that has read.
async fn stays_small(world: StoreHarness) {
    let before = read_of(&world).await;
    every_step(&world).await;
    reads_little(world, before, READ).await;
}

/// Does everything once that the services do, and looks at what that has read.
async fn services_stay_small(world: StoreHarness) {
    let before = read_of(&world).await;
    every_service(&world).await;
    reads_little(world, before, READ).await;
}

/// Closes the store, and looks at what it has read since: all together, and of each table and index.
async fn reads_little(world: StoreHarness, before: BTreeMap<String, i64>, most: i64) {
    world.store.close().await;
    wait_until_gone(&world, "reveille").await;
    let mut read = read_of(&world).await;
    read.iter_mut().for_each(|(name, tuples)| *tuples -= before.get(name).copied().unwrap_or_default());
    read.retain(|_, tuples| *tuples > 0);
    let (all, longest): (i64, i64) = (read.values().sum(), read.values().copied().max().unwrap_or_default());
    assert!(all > BATCH, "nothing was counted");
    assert!(all < most && longest < READ_WITH_ROUNDS, "{all} read: {read:#?}");
}

/// Tuples read of each table in its order, and of each index, by all who have gone.
async fn read_of(world: &StoreHarness) -> BTreeMap<String, i64> {
    let mut connection = PgConnection::connect(&world.url()).await.unwrap();
    let read: Vec<(String, i64)> = sqlx::query_as(
        "select relname::text, coalesce(seq_tup_read, 0) from pg_stat_user_tables
         union all
         select indexrelname::text, idx_tup_read from pg_stat_user_indexes",
    )
    .fetch_all(&mut connection)
    .await
    .unwrap();
    connection.close().await.unwrap();
    read.into_iter().collect()
}

/// A connection says what it has read when it ends, at the latest.
async fn wait_until_gone(world: &StoreHarness, name: &str) {
    let there = format!(
        "select count(*) from pg_stat_activity where datname = current_database() and application_name = '{name}'"
    );
    while world.count(&there).await > 0 {
        pause(Duration::from_millis(20)).await;
    }
}

/// Changes the database by a connection that has gone then.
async fn plant<S: AsRef<str>>(world: &StoreHarness, statements: &[S]) {
    let mut connection = PgConnection::connect(&world.url()).await.unwrap();
    let first = ["set application_name = 'planter'", "set reveille.tenant = '*'"];
    for statement in first.into_iter().chain(statements.iter().map(AsRef::as_ref)) {
        sqlx::query(AssertSqlSafe(statement.to_owned())).execute(&mut connection).await.unwrap();
    }
    connection.close().await.unwrap();
    wait_until_gone(world, "planter").await;
}

/// A database whose statistics change only where a case says so, and which refuses what would compile statements; its
/// store is closed.
async fn quiet_world() -> StoreHarness {
    let world = StoreHarness::postgres().await;
    world.store.close().await;
    let by_hand = "do $$ declare t text; begin
                     for t in select relname from pg_stat_user_tables loop
                       execute format('alter table %I set (autovacuum_enabled = false)', t);
                     end loop;
                   end $$";
    let refused = "create function refuse_jit () returns trigger language plpgsql as $$ begin
                     if current_setting('jit')::bool and current_setting('application_name') = 'reveille' then
                       raise exception 'costly statements would be compiled at each execution';
                     end if;
                     return null;
                   end $$";
    let everywhere = ["tasks", "due", "runs", "queue"].map(|table| {
        format!("create trigger refuse_jit after insert or update on {table} execute function refuse_jit()")
    });
    let planted: Vec<&str> = [by_hand, refused].into_iter().chain(everywhere.iter().map(String::as_str)).collect();
    plant(&world, &planted).await;
    world
}

/// A quiet world of which the planner believes that nothing is stored; each plan that is made there is kept. Elsewhere
/// one is from the sixth time on that a statement is asked on its connection.
async fn empty_world() -> StoreHarness {
    let world = quiet_world().await;
    let kept_at_once = "do $$ begin
                          execute format('alter database %I set plan_cache_mode = force_generic_plan', current_database());
                        end $$";
    plant(&world, &[kept_at_once, "vacuum analyze"]).await;
    open(&world).await
}

/// The world with a store that has planned nothing yet.
async fn open(world: &StoreHarness) -> StoreHarness {
    let mut world = world.clone();
    world.store = open_postgres(&world.url(), &world.clock).await;
    world
}

async fn store_much(world: &StoreHarness) {
    let now = format!("'{}'::timestamptz", world.now().to_rfc3339());
    // ids that come before all that a case makes
    let older = "overlay(gen_random_uuid()::text placing '00' from 1)::uuid";
    let newer = "overlay(gen_random_uuid()::text placing 'ff' from 1)::uuid";
    let each = format!("generate_series(1, {STORED}) n");
    let spec = r#"'{"trigger": {"type": "schedule", "interval": "1h", "overlap": "allow"}, "executor": "orchestrator",
                    "action": {"instruction": "say hello"}, "max_runs": null, "timeout_seconds": 600, "retry": {},
                    "pause_after_failures": null, "metadata": {}}'::jsonb"#;
    let statements = [
        format!(
            "insert into tasks (id, tenant_id, name, trigger_type, spec, status, epoch, version, anchor_at, active_since,
                                zone_database, created_at, updated_at)
             select {older}, 'tenant-' || n % 100, 'A task', 'schedule', {spec}, 'active', 1, 1, {now}, {now}, 'x',
                    {now}, {now}
               from {each}"
        ),
        format!(
            "insert into due (task_id, tenant_id, kind, next_at, nominal_at, epoch)
             select id, tenant_id, 'schedule', {now}, {now}, 1 from tasks where zone_database = 'x'"
        ),
        // polls that are due, or somebody is at
        format!(
            "insert into due (task_id, tenant_id, kind, next_at, nominal_at, epoch, claimed_until)
             select gen_random_uuid(), 'tenant-' || n % 100, 'condition', {now}, {now}, 1,
                    case when n % 100 = 0 and n <= 2000 then {now} + interval '1 minute' end
               from {each}"
        ),
        // of each task one run that is ready, one that is started, and one that waits behind that
        format!(
            "insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, created_at)
             select {older}, id, tenant_id, 'a:' || state, 'manual', {now}, state, {now}
               from tasks cross join unnest(array['ready', 'started', 'parked']) as state
              where zone_database = 'x'"
        ),
        format!(
            "insert into queue (run_id, task_id, tenant_id, epoch, run_at, state, lease_token, lease_until, worker, deadline_at)
             select id, task_id, tenant_id, 1, {now}, state,
                    case when state = 'started' then nextval('lease_tokens') else 0 end,
                    case when state = 'started' then {now} + interval '1 hour' end,
                    case when state = 'started' then '{OTHER_WORKER}'::uuid end,
                    case when state = 'started' then {now} + interval '1 hour' end
               from runs where state in ('ready', 'started')"
        ),
        format!(
            "insert into recipients (tenant_id, body, version, updated_at) select 'tenant-' || n, '{{}}', 1, {now} from {each}"
        ),
        "insert into slots (task_id, run_id) select task_id, id from runs where state = 'started'".into(),
        format!(
            "insert into budget_days (tenant_id, task_id, day, tokens, cost_micros, reserved_tokens, reserved_cost_micros)
             select 'tenant-' || n, gen_random_uuid(), '2026-03-01', 1, 1, 1, 1 from {each}"
        ),
        format!(
            "insert into budget_reservations (id, run_id, lease_token, tenant_id, task_id, day, tokens, cost_micros)
             select gen_random_uuid(), gen_random_uuid(), n, 'tenant-' || n, gen_random_uuid(), '2026-03-01', 1, 1
               from {each}"
        ),
        // newer than all that a case makes
        format!(
            "insert into tokens (id, tenant_id, name, hash, scopes, created_at, root, revoked_at)
             select {newer}, 'tenant-' || n % 100, 't', sha256(convert_to(cast(n as text), 'UTF8')), '[]', {now},
                    'token:admin', case when n % 2 = 0 then {now} end
               from {each}"
        ),
        format!(
            "insert into approval_overrides (id, tenant_id, subject, tool, gate, created_at, created_by, expires_at)
             select gen_random_uuid(), 'tenant-' || n % 100, 'agent:' || n, 't', 'auto', {now}, 't', {now} + interval '1 day'
               from {each}"
        ),
        format!(
            "insert into usage_days (tenant_id, day, task_id, kind, name, calls, failures, duration_ms, input_tokens,
                                     output_tokens, cache_read_tokens, cache_write_tokens, reasoning_tokens, cost_micros,
                                     result_chars)
             select 'tenant-' || n, '2026-03-01', gen_random_uuid(), 'model', 'main', 1, 0, 1, 1, 1, 0, 0, 0, 1, 0 from {each}"
        ),
        format!(
            "insert into facts (id, tenant_id, collection, is_profile, text, folded, identity, origin, noted_by, version, mentions,
                                created_at, noted_at, last_used_at)
             select gen_random_uuid(), 'tenant-' || n % 1000, 'preferences', n % 10 = 0, 'Fact ' || n, 'fact ' || n, 'i' || n,
                    'person', 'agent', 1, 1, {now}, {now}, {now} from {each}"
        ),
        format!(
            "insert into fact_versions (fact_id, version, tenant_id, collection, text, origin, noted_by, noted_at, replaced_at)
             select gen_random_uuid(), 1, 'tenant-' || n % 1000, '', 'Fact ' || n, 'person', 'agent', {now}, {now} from {each}"
        ),
        // beside those of the tenants of facts, which are raised as these are written
        format!("insert into fact_revisions (tenant_id, revision) select 'revised-' || n, 1 from {each}"),
        // some have a vector of the space that is looked for, and some of another one
        "update facts set embedded = case when abs(hashtext(id::text)) % 10 = 0 then 'm' else 's' end
          where abs(hashtext(id::text)) % 3 > 0"
            .into(),
        format!(
            "insert into fact_vectors (tenant_id, fact_id, space, vector)
             select 'tenant-' || n % 1000, gen_random_uuid(), 's', '\\x00' from {each}"
        ),
        format!(
            "insert into extractions (tenant_id, run_id, due_at, claims, queued_at)
             select 'tenant-' || n % 1000, gen_random_uuid(), {now} - n * interval '1 second', 0,
                    {now} - n * interval '1 second' from {each}"
        ),
        // far fewer than of all else: an instance reads all of them when any has changed
        format!(
            "insert into halts (tenant_id, kind, halted_by, since)
             select 'halted-' || n, 'stopped', 'token:admin', {now} from generate_series(1, 500) n"
        ),
        format!(
            "insert into parked (run_id, task_id, tenant_id, reason, wake_at)
             select id, task_id, tenant_id, case when hashtext(id::text) % 10 = 0 then 'approval' else 'overlap' end,
                    {now} + interval '1 hour'
               from runs where state = 'parked'"
        ),
        format!(
            "insert into window_events (task_id, event_key, window_id, seq, created_at)
             select id, 'shop/e', gen_random_uuid(), 1, {now} from tasks where zone_database = 'x'"
        ),
        format!(
            "insert into turns (run_id, seq, turn, format, body, created_at)
             select id, seq, seq, 1, '{{\"role\": \"user\", \"text\": \"hello\", \"metadata\": {{}}}}', {now}
               from runs cross join generate_series(0, 3) seq where state = 'started'"
        ),
        format!(
            "insert into data_files (id, tenant_id, run_id, call_key, tool, media_type, bytes, summary, created_at,
                                     last_used_at)
             select gen_random_uuid(), 'tenant-' || n, gen_random_uuid(), n, 't', 'text/plain', 1, '', {now}, {now} from {each}"
        ),
        format!(
            "insert into mcp_listed (server, first_listed_at, listed_at) select 'server-' || n, {now}, {now} from {each}
             on conflict do nothing"
        ),
        format!(
            "insert into tool_pins (server, tool, accepted_hash, accepted, accepted_at)
             select 'server-' || n, 't', 'h', '{{}}', {now} from {each} on conflict do nothing"
        ),
        format!(
            "insert into ui_sessions (hash, token_hash, created_at, seen_at, ends_at)
             select sha256(convert_to(cast(n as text), 'UTF8')), sha256(convert_to('t' || n, 'UTF8')), {now}, {now},
                    {now} + interval '1 hour' from {each}"
        ),
        format!(
            "insert into login_links (hash, token_hash, made_at, expires_at)
             select sha256(convert_to(cast(n as text), 'UTF8')), sha256(convert_to('t' || n, 'UTF8')), {now}, {now}
               from {each}"
        ),
        "update runs set state = case state when 'started' then 'running' else 'queued' end
          where state in ('ready', 'started', 'parked')"
            .into(),
        // newer than all that a case makes
        format!(
            "insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, created_at)
             select {newer}, gen_random_uuid(), 'z', 'a:1', 'manual', {now}, 'succeeded', {now} from {each}"
        ),
        format!(
            "with made as (
                 insert into events (event_key, tenant_id, source, type, body, created_at)
                 select 'z/' || n, 'z', 's', 't', jsonb_build_object('id', n::text), {now} from {each} returning seq, tenant_id)
             insert into event_queue (seq, tenant_id) select seq, tenant_id from made"
        ),
        format!(
            "insert into bus_outbox (tenant_id, body, created_at) select 'tenant-' || n % 3, '{{}}', {now} from {each}"
        ),
    ];
    plant(world, &statements).await;
}

/// Every step that the engine does all the time.
async fn every_step(world: &StoreHarness) {
    create(world).await;
    let (started, claims) = fire(world).await;
    end(world, started).await;
    let starts = world.store.start_runs(&leases(&claims), world.now() + LEASE).await.unwrap();
    end(world, starts.started).await;
    for fair in [None, Some(ClaimCursor::default())] {
        let started = take(world, fair).await;
        end(world, started).await;
    }
    ask(world).await;
    start_by_requests(world).await;
    publish(world).await;
    tally(world).await;
    forward(world).await;
    poll(world).await;
    read_pending(world).await;
    calls(world).await;
    keep_files(world).await;
}

/// Data files of a tenant that is full, and a round of the cleaner.
async fn keep_files(world: &StoreHarness) {
    let tenant = tenant_of("a");
    for call in ["k1", "k2", "k3"] {
        let file = NewDataFile {
            run_id: Uuid::from_u128(1),
            call_key: call.into(),
            tool: "look".into(),
            media_type: "text/plain".into(),
            summary: String::new(),
            content: "text".into(),
        };
        let id = world.store.keep_data_file(&tenant, &file, 8, None).await.unwrap();
        let gone = Some(Lease { run_id: file.run_id, token: 0 });
        let late = world.store.keep_data_file(&tenant, &file, 8, gone).await;
        assert!(matches!(late, Err(StoreError::LeaseLost)), "{late:?}");
        assert!(world.store.use_data_file(&tenant, id).await.unwrap().is_some());
        assert!(world.store.data_file_chunk(&tenant, id, 0).await.unwrap().is_some());
    }
    assert_eq!(world.store.forget_data_files(world.now() - TimeDelta::days(1), 1 << 20, BATCH).await.unwrap(), 0);
    assert!(world.store.evict_data_files(1, BATCH).await.unwrap() > 0);
}

/// A few that are due before all others, of which one fires for the last time and one can't be read any more.
async fn create(world: &StoreHarness) {
    let sooner = world.now() - TimeDelta::minutes(2);
    let once = json!({"at": (world.now() - TimeDelta::minutes(1)).to_rfc3339()});
    let mut tasks = vec![new_task("a", once, json!({}), sooner)];
    tasks.extend((0..BATCH).map(|_| new_task("a", json!({"interval": "1m", "overlap": "allow"}), json!({}), sooner)));
    let made = world.store.create_tasks(&tasks).await.unwrap();
    assert!(made.iter().all(|made| *made));
    let unreadable = r#"update tasks set spec = jsonb_set(spec, '{trigger,interval}', '"x"') where id = "#;
    world.plant(&format!("{unreadable} '{}'", tasks[1].0.id)).await;
    world.task(json!({"interval": "1h"})).await;
}

async fn fire(world: &StoreHarness) -> (Vec<StartedRun>, Vec<RunClaim>) {
    let start = ImmediateStart { slots: BATCH as usize / 2, lease_until: world.now() + LEASE, shares: None };
    let ask = FireDue { limit: BATCH, start: Some(start), ..world.ask(0, BATCH as usize) };
    let fired = world.store.fire_due(&ask).await.unwrap();
    assert!(fired.started.len() + fired.claims.len() > BATCH as usize / 2, "{fired:?}");
    // where more is due than a batch has, the next one has tenants in turn, too
    world.store.fire_due(&FireDue { limit: BATCH, ..world.ask(0, 0) }).await.unwrap();
    (fired.started, fired.claims)
}

async fn take(world: &StoreHarness, fair: Option<ClaimCursor>) -> Vec<StartedRun> {
    let (now, lease_until, limits) = (world.now(), world.now() + LEASE, RunLimits::default());
    let take = TakeRequest { worker: WORKER, now, ahead: now, lease_until, limit: BATCH, fair, limits, shares: None };
    world.store.take_runs(&take).await.unwrap().starts.started
}

/// Usage of an entry of [`transcribe`].
const ANSWER: Usage = Usage { turns: 1, tool_calls: 0, input_tokens: 9, output_tokens: 9, cost_micros: 9 };

/// The reads and writes of an agent: where it stands, and how it goes on.
async fn transcribe(world: &StoreHarness, started: &[StartedRun]) {
    let entry = |seq| TranscriptEntry {
        usage: ANSWER,
        ..TranscriptEntry::new(seq, seq, world.now(), TranscriptMessage::user("hello"))
    };
    let appends = started.iter().take(4).map(|started| async move {
        let run = &started.run;
        assert_eq!(world.store.checkpoint(&run.tenant_id, run.id, 0, 100).await.unwrap(), []);
        world.store.append(&run.tenant_id, started.lease, &[entry(0), entry(1)]).await.unwrap();
        assert_eq!(world.store.checkpoint(&run.tenant_id, run.id, 1, 100).await.unwrap().len(), 1);
    });
    join_all(appends).await;
    spend(world, started).await;
    if let Some(StartedRun { run, .. }) = started.first() {
        assert_eq!(world.store.usage_of(run.id).await.unwrap().turns, 2 * ANSWER.turns);
        for scope in [Scope::Every, only(&run.tenant_id)] {
            assert_eq!(world.store.transcript(&scope, run.id, 0, 9).await.unwrap().len(), 2);
        }
    }
}

/// Calls of models under a budget of the day: one is settled with its turn, one is left to the end of its run.
async fn spend(world: &StoreHarness, started: &[StartedRun]) {
    for (place, started) in started.iter().take(4).enumerate() {
        let call = |run_tokens| Reservation {
            id: new_id(world.now()),
            lease: started.lease,
            tenant: started.run.tenant_id.clone(),
            task_id: started.run.task_id,
            day: day_of(world.now()),
            most: Spend { tokens: run_tokens, cost_micros: 1 },
            from: 0,
            within_half: false,
            tenant_limits: DayLimits { tokens: Some(1_000_000), cost_micros: None },
            task_limits: DayLimits::default(),
            notice: None,
        };
        let calls = [call(100), call(200)];
        for call in &calls {
            assert_eq!(world.store.reserve_budget(call).await.unwrap(), ReservationOutcome::Granted);
        }
        let spent = Spend { tokens: 50, cost_micros: 1 };
        let settlement = Settlement { id: calls[0].id, spent, notice: None };
        let (tenant, settled) = (&started.run.tenant_id, vec![settlement]);
        world.store.append_budgeted(tenant, started.lease, &[], settled, None).await.unwrap();
        world
            .store
            .settle_budget(tenant, &[Settlement { id: new_id(world.now()), spent, notice: None }])
            .await
            .unwrap();
        if place == 3 {
            let next = Lease { token: started.lease.token + 1, ..started.lease };
            world.store.settle_lost_reservations(tenant, next).await.unwrap();
        }
    }
}

/// Most have ended, in four batches: some in a transaction, of which one is tried again and one waits for somebody; and
/// some by a statement alone, of which each has a budget, or stores and counts an answer, or none does.
async fn end(world: &StoreHarness, started: Vec<StartedRun>) {
    let held: Vec<_> = started.iter().map(|started| started.lease).collect();
    world.store.heartbeat(&held, world.now() + LEASE).await.unwrap();
    transcribe(world, &started).await;
    let later = world.now() + TimeDelta::hours(1);
    let mut batches = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    let spent = Spend { tokens: 50, cost_micros: 1 };
    let budget = || {
        let settlements = vec![Settlement { id: new_id(world.now()), spent, notice: None }];
        Some(BudgetEnd { settlements })
    };
    let ends = started.iter().enumerate().map(|(place, started)| match place {
        0 => Finish {
            again: Some(RequeuedRun { run_at: later, uses_attempt: true }),
            usage: ANSWER,
            ..end_of(started, RunState::Queued)
        },
        1 => Finish {
            park: Some(Park::Completion { until: later }),
            usage: ANSWER,
            budget: budget(),
            ..end_of(started, RunState::WaitingForCompletion)
        },
        2 | 3 => {
            let is_transcript_settled = true;
            Finish { budget: budget(), usage: ANSWER, is_transcript_settled, ..end_of(started, RunState::Succeeded) }
        }
        4..7 => {
            let entry = TranscriptEntry::new(0, 0, world.now(), TranscriptMessage::user("hello"));
            let entries = vec![TranscriptEntry { usage: ANSWER, ..entry }];
            Finish { entries, usage: ANSWER, is_transcript_settled: true, ..end_of(started, RunState::Succeeded) }
        }
        _ => end_of(started, RunState::Succeeded),
    });
    for (place, end) in ends.enumerate() {
        let batch = if (2..4).contains(&place) { 3 } else { place / 4 % 3 };
        batches[batch].push(end);
    }
    for ends in batches {
        assert_eq!(world.store.finish_runs(&ends).await.unwrap(), Vec::<Uuid>::new());
    }
}

/// Two requests of a task, which are ready.
async fn ask(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1h"})).await;
    join_all([world.run_now(&task), world.run_now(&task)]).await;
}

/// Requests that are recorded together and start with their records, without a slot of their task and with one.
async fn start_by_requests(world: &StoreHarness) {
    let mut asked: Vec<(Task, Scope)> = Vec::new();
    for (tenant, scope) in [("a", only("a")), ("b", Scope::Every)] {
        for overlap in ["allow", "skip", "skip"] {
            let task = world.task_with(tenant, json!({"interval": "1h", "overlap": overlap}), json!({})).await;
            asked.push((task, scope.clone()));
        }
    }
    let places = Places::open(world).await;
    let requests = asked.iter().map(|(task, scope)| {
        let (id, now) = (new_id(world.now()), world.now());
        world.store.run_now(scope, task.id, id, Some(json!("hello")), now, None)
    });
    for answer in join_all(requests).await {
        answer.expect("a request");
    }
    let started = places.all_started();
    assert_eq!(started.len(), asked.len());
    let ends: Vec<_> = started.iter().map(|started| end_of(started, RunState::Succeeded)).collect();
    assert_eq!(world.store.finish_runs(&ends).await.unwrap(), Vec::<Uuid>::new());
    world.store.end_local_starts().await;
}

/// Runs of tasks that have another one under way.
async fn skip(world: &StoreHarness) {
    const TASKS: i64 = 4;
    for _ in 0..TASKS {
        ask(world).await;
    }
    let (now, lease_until, limits) = (world.now(), world.now() + LEASE, RunLimits::default());
    let limit = 3 * TASKS; // they are more urgent than what else is ready
    let take = TakeRequest { worker: WORKER, now, ahead: now, lease_until, limit, fair: None, limits, shares: None };
    let starts = world.store.take_runs(&take).await.unwrap().starts;
    let skipped = starts.blocked.iter().filter(|(_, fate)| *fate == OverlapOutcome::Skipped).count() as i64;
    assert!(skipped >= TASKS, "{skipped}");
    end(world, starts.started).await;
}

/// Once straight, and once by a rule with a memory.
async fn publish(world: &StoreHarness) {
    for rule in [json!({}), json!({"throttle": {"limit": 1, "per": "1h"}})] {
        matching::task(world, rule).await;
        matching::publish(world, vec![event(&new_id(world.now()).to_string())]).await;
    }
    start_by_events(world).await;
}

/// Fires of a tenant beyond its quota: their record is made, and added to.
async fn tally(world: &StoreHarness) {
    let least = Overrides { fires_per_minute: Some(1), ..Overrides::default() };
    world.store.put_quotas("limited", &least, "token:t").await.unwrap();
    let task = world.task_with("limited", json!({"type": "event", "source": "shop"}), json!({})).await;
    for _ in 0..2 {
        let published = || event_with(&new_id(world.now()).to_string(), json!({"tenantid": "limited"}));
        let recorded = matching::publish(world, vec![published(), published()]).await;
        assert!(recorded.skipped > 0, "{recorded:?}");
    }
    let found = world.store.recorded_around(&only("limited"), task.id, world.now()).await.unwrap();
    assert!(found.covering.and_then(|tally| tally.missed?.count) >= Some(3));
}

/// Runs that start with the record of their event, without a slot and with one.
async fn start_by_events(world: &StoreHarness) {
    for overlap in ["allow", "skip"] {
        matching::task(world, json!({"source": "start", "overlap": overlap})).await;
        let published = event_with(&new_id(world.now()).to_string(), json!({"source": "start"}));
        let matching = MatcherHarness::of(world, vec![published]).await;
        let start = ImmediateStart { slots: BATCH as usize, lease_until: world.now() + LEASE, shares: None };
        let fired = matching.record_by(&world.store, BATCH as usize, Some(&start)).await;
        let EventsFired::Done(recorded) = fired else { panic!("nothing has changed meanwhile") };
        assert!(!recorded.started.is_empty() && recorded.claims.is_empty(), "{recorded:?}");
        let ends: Vec<_> = recorded.started.iter().map(|started| end_of(started, RunState::Succeeded)).collect();
        assert_eq!(world.store.finish_runs(&ends).await.unwrap(), Vec::<Uuid>::new());
    }
}

/// An event that is kept while the bus is away, and a batch of those that are: tenants with thousands wait beside it.
async fn forward(world: &StoreHarness) {
    world.store.keep_events(&[event(&new_id(world.now()).to_string())]).await.unwrap();
    for (tenant, waits) in [("a", true), ("nobody", false)] {
        assert_eq!(world.store.keeps_events_of(&tenant_of(tenant)).await.unwrap(), waits, "{tenant}");
    }
    let kept = world.store.kept_events(BATCH).await.unwrap();
    assert!(kept.iter().any(|(_, body)| body.contains("\"a\"")), "{kept:?}");
    world.store.forget_kept_events(&kept.iter().map(|(seq, _)| *seq).collect::<Vec<_>>()).await.unwrap();
}

/// Polls of other tenants stand before that of the one task there is.
async fn poll(world: &StoreHarness) {
    let trigger = json!({"type": "condition", "poll": {"redis": {"source": "s", "key": "k"}}, "interval": "1m",
                         "expression": "value < 500"});
    let (task, _) = new_task("tenant-x", trigger, json!({}), world.now());
    let sooner = world.now() - TimeDelta::minutes(2);
    world.store.create_tasks(&[(Task { next_fire_at: Some(sooner), ..task.clone() }, Some(sooner))]).await.unwrap();
    let now = world.now();
    let due = world.store.due_polls(now, BATCH).await.unwrap();
    let (polls, _) = world.store.polls_in_turn(now, "tenant-5", BATCH).await.unwrap();
    assert!(!due.is_empty() && !polls.is_empty());
    let claimed = world.store.claim_polls(&[task.id], now, now + TimeDelta::seconds(45)).await.unwrap();
    assert_eq!(claimed.len(), 1);
    world.store.next_poll_after(now).await.unwrap();
    world.store.delete_task(&Scope::Every, task.id).await.unwrap();
}

async fn read_pending(world: &StoreHarness) {
    world.store.pending_work().await.unwrap();
    world.store.next_due().await.unwrap();
    assert_eq!(world.store.cancels_asked(WORKER).await.unwrap(), []);
}
