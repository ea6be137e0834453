//! Stored bytes: everything that is kept counts for its tenant and is given back, and a tenant that has stored all that
//! it may is refused more. That the number is the one of the stored bytes, `world::INVARIANTS` asks after every case.

use chrono::TimeDelta;
use reveille::base::id::{Scope, new_id};
use reveille::base::metrics::Metrics;
use reveille::domain::halt::HaltKind;
use reveille::domain::memory::{FactChange, FactOrigin, NewFact};
use reveille::domain::notification::Recipient;
use reveille::domain::quota::{Overrides, Quota, Quotas};
use reveille::domain::run::RunState;
use reveille::domain::run::transcript::{TranscriptEntry, TranscriptMessage};
use reveille::domain::task::Task;
use reveille::domain::task::change::TaskChange;
use reveille::store::{
    AuditFilter, CredentialRowDraft, Finish, Idempotency, NewDeadLetter, NotingKind, StoreError, StoredAnswer,
    TaskFilter,
};
use serde_json::{Value, json};
use sqlx::{Connection, PgConnection};

use super::credentials::{credential, used};
use super::facts::said;
use super::world::{START, StoreHarness, end_of, new_task, tenant_of};
use super::{matching, overrides, retention};

on_both!(
    whatever_is_kept_counts_until_it_is_deleted,
    bytes_up_to_the_quota_are_admitted_and_one_beyond_it_is_refused,
    every_new_thing_of_a_full_tenant_is_refused,
    facts_of_a_full_tenant_are_counted_deleted_and_not_noted,
    entries_of_requests_that_a_tenant_may_repeat_count_and_are_refused_to_a_full_one,
    trials_are_on_the_record_and_count_as_stored_bytes,
    answers_under_keys_count_for_their_tenant_and_those_to_admins_for_none,
    repetition_of_what_was_done_is_answered_to_a_full_tenant,
    tasks_that_a_full_tenant_has_by_their_keys_are_left_as_they_are,
    fires_of_a_full_tenant_are_skipped_and_its_runs_come_to_their_end,
    row_of_a_run_counts_besides_its_parts_until_it_is_forgotten,
    uses_of_credentials_and_keys_of_rules_count_until_they_are_forgotten,
    deletion_makes_room_within_seconds,
    instances_that_count_together_count_everything_once,
    older_rows_are_counted_once_piece_by_piece_whatever_is_written_meanwhile,
    older_rows_that_others_have_locked_are_counted_later,
);

/// Bytes that the row of a run counts besides its parts: `docs/limits.md`, "Stored bytes".
const ROW: u64 = 300;
/// Bytes that a use of a credential counts, and a key of `dedup` or `throttle`.
const SHORT_ROW: u64 = 200;
/// Tables whose older rows are counted, as far as the case fills them.
const SCANNED: [&str; 10] = [
    "tasks",
    "runs",
    "turns",
    "deliveries",
    "credentials",
    "task_state",
    "facts",
    "fact_versions",
    "fact_vectors",
    "audit",
];

/// Makes of everything that is stored what was there before anything was counted, as the upgrade finds it. SQLite has
/// counted it by then.
async fn forget_the_counts(world: &StoreHarness) {
    count(world).await;
    for table in SCANNED {
        world.plant(&format!("update {table} set stored_bytes = 0")).await;
        world.plant(&format!("insert into stored_byte_scans (table_name) values ('{table}')")).await;
    }
    world.plant("update tenant_usage set stored_bytes = 0").await;
}

async fn older_rows_are_counted_once_piece_by_piece_whatever_is_written_meanwhile(world: &StoreHarness) {
    let mut tasks = Vec::new();
    for tenant in ["a", "a", "b", "a", "b", "a"] {
        tasks.push(world.task_with(tenant, json!({ "interval": "1h", "overlap": "allow" }), json!({})).await);
    }
    for task in &tasks[..3] {
        let started = world.started(task).await;
        let message = TranscriptMessage::user("hello ".repeat(20));
        let entry = |seq| TranscriptEntry::new(seq, 0, START, message.clone());
        world.store.append("a", started.lease, &[entry(0), entry(1), entry(2)]).await.unwrap();
        let mut told = retention::message(Some(started.run.id), &format!("told {}", task.id));
        told.text = Some("it is done".into());
        let end =
            Finish { output: Some("y".repeat(50)), deliveries: vec![told], ..end_of(&started, RunState::Succeeded) };
        world.store.finish_runs(&[end]).await.unwrap();
        let tenant = tenant_of(&task.tenant_id);
        world.store.put_task_state(&tenant, task.id, "seen", &json!("z"), world.now()).await.unwrap();
    }
    world.store.put_credential(&Scope::Every, &credential("a"), 0).await.unwrap();
    for text in ["Lives in Vienna.", "Lives in Graz.", "Lives in Linz."] {
        world.store.note_fact(&tenant_of("a"), &said(text, FactOrigin::Person), None).await.unwrap();
    }
    let moved = said("Lives in Rome.", FactOrigin::Person);
    world.store.note_fact(&tenant_of("a"), &moved, Some("Lives in Linz.")).await.unwrap();
    embed(world, 30).await;
    if !world.is_postgres() {
        assert!(!world.store.count_older_rows(1).await.unwrap());
        return;
    }
    let everything = stored(world).await;
    forget_the_counts(world).await;
    assert_eq!((stored_now(world).await, world.store.has_uncounted_bytes().await.unwrap()), (0, true));
    // one that is not counted yet is deleted, others are written anew, and new ones are counted once
    world.store.delete_task(&Scope::Every, tasks[5].id).await.unwrap();
    edit(world, &tasks[3], "say more").await.unwrap();
    let tenant = tenant_of("a");
    world.store.put_task_state(&tenant, tasks[0].id, "seen", &json!("another"), world.now()).await.unwrap();
    let mut pieces = 0;
    let mut restarted = world.other_instance().await;
    loop {
        // two instances at once, of which one is started anew after each piece
        let (here, there) = tokio::join!(world.store.count_older_rows(2), restarted.count_older_rows(2));
        pieces += 1;
        restarted.close().await;
        if !here.unwrap() && !there.unwrap() {
            break;
        }
        world.check().await;
        restarted = world.other_instance().await;
        if pieces == 3 {
            world.task(json!({ "interval": "1h" })).await;
            world.store.delete_task(&Scope::Every, tasks[1].id).await.unwrap();
        }
    }
    assert!(pieces > 6, "{pieces} pieces");
    assert!(!world.store.count_older_rows(2).await.unwrap());
    for table in SCANNED.into_iter().filter(|table| *table != "runs") {
        assert_eq!(world.count(&format!("select count(*) from {table} where stored_bytes = 0")).await, 0, "{table}");
    }
    assert!(stored(world).await > everything / 3);
    // what was counted so is given back when it is deleted, by its task and by its age
    for task in world.store.list_tasks(&Scope::Every, &all_tasks()).await.unwrap() {
        world.store.delete_task(&Scope::Every, task.id).await.unwrap();
    }
    for tenant in ["a", "b"] {
        let _ = world.store.delete_credential(&Scope::Every, tenant, "google", "work", "token:t").await;
    }
    assert_eq!(world.store.delete_facts(&tenant_of("a"), "token:t").await.unwrap(), 3);
    world.pass(3600);
    world.plant("update deliveries set state = 'delivered'").await;
    world.store.forget_runs(world.now(), 9).await.unwrap();
    world.store.forget_deliveries(world.now(), 9).await.unwrap();
    assert_eq!(stored(world).await, recorded(world).await);
}

/// Bytes of the entries of the record of audit that count: they stay for good.
async fn recorded(world: &StoreHarness) -> u64 {
    let recorded = world.count("select cast(coalesce(sum(stored_bytes), 0) as bigint) from audit").await;
    assert!(recorded > 0, "nothing of the record counts");
    recorded as u64
}

/// Gives each fact of `a` that has none a vector of so many bytes.
async fn embed(world: &StoreHarness, bytes: usize) {
    let claimed = world.store.claim_unembedded(&tenant_of("a"), "", 9).await.unwrap();
    let vectors: Vec<_> = claimed.iter().map(|(id, version, _)| (*id, *version, Some(vec![7; bytes]))).collect();
    world.store.keep_vectors(&tenant_of("a"), "s", &vectors).await.unwrap();
}

fn all_tasks() -> TaskFilter {
    TaskFilter { limit: 100, ..TaskFilter::default() }
}

async fn stored_now(world: &StoreHarness) -> i64 {
    world.count("select cast(coalesce(sum(stored_bytes), 0) as bigint) from tenant_usage").await
}

async fn older_rows_that_others_have_locked_are_counted_later(world: &StoreHarness) {
    if !world.is_postgres() {
        // one writer: nothing is locked
        assert!(!world.store.count_older_rows(1).await.unwrap());
        return;
    }
    let (free, locked) = (world.task(json!({ "interval": "1h" })).await, world.task(json!({ "interval": "1h" })).await);
    forget_the_counts(world).await;
    world.plant("delete from stored_byte_scans where table_name <> 'tasks'").await;
    let mut other = PgConnection::connect(&world.url()).await.unwrap();
    let mut holding = other.begin().await.unwrap();
    for statement in [
        "set local reveille.tenant = '*'".to_owned(),
        format!("select 1 from tasks where id = {} for update", world.id(locked.id)),
    ] {
        sqlx::query(sqlx::AssertSqlSafe(statement)).execute(&mut *holding).await.unwrap();
    }
    let counted = async |task: &Task| {
        let counted = format!("select stored_bytes from tasks where id = {}", world.id(task.id));
        world.count(&counted).await > 0
    };
    for _ in 0..2 {
        assert!(world.store.count_older_rows(9).await.unwrap());
        assert_eq!((counted(&free).await, counted(&locked).await), (true, false));
    }
    holding.rollback().await.unwrap();
    assert!(!world.store.count_older_rows(9).await.unwrap());
    assert!(counted(&locked).await);
    other.close().await.unwrap();
}

async fn count(world: &StoreHarness) {
    assert_eq!(world.store.pending_work().await.unwrap().uncounted, world.store.has_uncounted_bytes().await.unwrap());
    while world.store.count_stored_bytes(3).await.unwrap() > 0 {}
    assert!(!world.store.has_uncounted_bytes().await.unwrap());
}

/// Counted bytes of tenant `a` now.
async fn stored(world: &StoreHarness) -> u64 {
    count(world).await;
    world.store.quota_usage("a").await.unwrap().standings[&Quota::StoredBytes].usage.unwrap()
}

async fn limit(world: &StoreHarness, bytes: u64) {
    let overrides = Overrides { stored_bytes: Some(bytes), ..Overrides::default() };
    world.store.put_quotas("a", &overrides, "token:admin").await.unwrap();
}

fn is_full<T: std::fmt::Debug>(result: Result<T, StoreError>) -> (u64, u64) {
    match result {
        Err(StoreError::Quota(over)) if over.quota == Quota::StoredBytes && over.tenant == "a" => {
            (over.limit, over.usage)
        }
        other => panic!("the tenant is not said to be full: {other:?}"),
    }
}

fn listener() -> Value {
    json!({ "type": "event", "source": "shop" })
}

async fn edit(world: &StoreHarness, task: &Task, instruction: &str) -> Result<Task, StoreError> {
    let now = world.get_task(task.id).await;
    let mut spec = now.spec.clone();
    spec.action.instruction = instruction.into();
    let edit = TaskChange::Edit { version: now.version, name: now.name, spec: Box::new(spec) };
    world.store.change_task(&Scope::Every, task.id, &edit).await
}

async fn whatever_is_kept_counts_until_it_is_deleted(world: &StoreHarness) {
    let mut before = 0;
    // each step stores so many bytes at least, in the words of either database
    let mut grown = async |what: &str, least: u64| {
        let now = stored(world).await;
        assert!(now >= before + least, "{what}: {before} became {now}");
        before = now;
    };
    let task = world.task(json!({ "interval": "1h" })).await;
    grown("a task", 100).await;
    edit(world, &task, &"say hello, ".repeat(50)).await.unwrap();
    grown("an edit", 400).await;
    let (run_id, input) = (new_id(world.now()), json!({ "order": "x".repeat(700) }));
    world.store.run_now(&Scope::Every, task.id, run_id, Some(input), world.now(), None).await.unwrap();
    grown("an input", 700).await;
    let claims = super::world::leases(&world.claim().await);
    let started = world.store.start_runs(&claims, world.now() + TimeDelta::minutes(1)).await.unwrap().started.remove(0);
    let message = TranscriptMessage::user("hello ".repeat(100));
    let entry = TranscriptEntry::new(0, 0, START, message);
    for _ in 0..2 {
        world.store.append("a", started.lease, std::slice::from_ref(&entry)).await.unwrap();
    }
    grown("an entry of a transcript", 600).await;
    let mut told = retention::message(Some(started.run.id), "told");
    told.text = Some("it is done ".repeat(50));
    let end = Finish { output: Some("y".repeat(500)), deliveries: vec![told], ..end_of(&started, RunState::Succeeded) };
    world.store.finish_runs(&[end]).await.unwrap();
    grown("an output and its message", 500 + 500).await;
    let state = json!({ "seen": "z".repeat(300) });
    world.store.put_task_state(&tenant_of("a"), task.id, "seen", &state, world.now()).await.unwrap();
    grown("a value", 300).await;
    world.store.put_credential(&Scope::Every, &credential("a"), 0).await.unwrap();
    grown("a credential, and the entry that it was saved", 10 + 100).await;
    let holding = matching::task(world, json!({ "batch": { "size": 9, "wait": "1h" } })).await;
    let event = matching::event("held");
    world.store.publish_events(std::slice::from_ref(&event)).await.unwrap();
    grown("a task and an event", 100).await;
    matching::publish(world, vec![event.clone()]).await;
    grown("an event in a window", 50).await;
    let letter = NewDeadLetter { seq: 1, event: Some(&event), body: "an entry", error: "boom", deliveries: 5 };
    world.store.dead_letter_event(letter).await.unwrap();
    grown("a dead letter", 8).await;
    world.store.keep_events(std::slice::from_ref(&event)).await.unwrap();
    grown("an event that waits for the bus", 50).await;
    world.store.remember_answer(&key("a", "k", 300), world.now()).await.unwrap();
    grown("an answer under a key", 300).await;
    let (of_a, vienna) = (tenant_of("a"), "Lives in Vienna. ".repeat(10));
    let fact = world.store.note_fact(&of_a, &said(&vienna, FactOrigin::Person), None).await.unwrap().fact;
    grown("a fact, as it was said and as it is searched", 2 * 170).await;
    let graz = FactChange { text: Some("Lives in Graz. ".repeat(12)), collection: None };
    world.store.correct_fact(&Scope::Every, fact.id, &graz, "token:t").await.unwrap();
    grown("a correction, with what the fact said and its entry", 170 + 60).await;
    embed(world, 400).await;
    grown("a vector", 400).await;

    // all of it goes, each thing in its own way
    let kept = world.store.kept_events(9).await.unwrap();
    world.store.forget_kept_events(&kept.iter().map(|(seq, _)| *seq).collect::<Vec<_>>()).await.unwrap();
    world.store.forget_answers(world.now() + TimeDelta::days(1), 9).await.unwrap();
    world.store.delete_fact(&Scope::Every, fact.id, "token:t", None).await.unwrap();
    let letter = world.store.list_dead_letters(&Scope::Every, &one()).await.unwrap().rows.remove(0);
    world.store.drop_dead_letter(&Scope::Every, letter.id).await.unwrap();
    world.store.delete_credential(&Scope::Every, "a", "google", "work", "token:t").await.unwrap();
    world.store.delete_task(&Scope::Every, task.id).await.unwrap();
    world.store.delete_task(&Scope::Every, holding.id).await.unwrap();
    world.pass(3600);
    world.plant("update deliveries set state = 'delivered'").await;
    world.store.forget_runs(world.now(), 9).await.unwrap();
    world.store.forget_deliveries(world.now(), 9).await.unwrap();
    world.store.forget_events(world.now(), 9).await.unwrap();
    assert_eq!(stored(world).await, recorded(world).await);
}

fn one() -> reveille::store::StoredDeadLetterFilter {
    reveille::store::StoredDeadLetterFilter { limit: 1, ..Default::default() }
}

async fn bytes_up_to_the_quota_are_admitted_and_one_beyond_it_is_refused(world: &StoreHarness) {
    limit(world, 1_000).await;
    world.store.admit_bytes("a", 400).await.unwrap();
    assert_eq!(is_full(world.store.admit_bytes("a", 601).await), (1_000, 0), "nothing of it is stored yet");
    world.store.admit_bytes("a", 600).await.unwrap();
    is_full(world.store.admit_bytes("a", 1).await);
    // what was admitted and never came counts no more once the number is read anew
    world.pass(1);
    world.store.admit_bytes("a", 1_000).await.unwrap();
    is_full(world.store.admit_bytes("a", 1).await);
    is_full(world.store.admit_bytes("a", 0).await);
    world.store.admit_bytes("b", 1_000).await.unwrap();
    // the first bytes that are stored count as they are
    let (task, nominal) = new_task("a", json!({ "interval": "1h" }), json!({}), world.now());
    let bytes = serde_json::to_string(&task.spec).unwrap().len() as u64;
    limit(world, bytes - 1).await;
    assert_eq!(is_full(world.store.create_task(&task, nominal, None).await), (bytes - 1, 0));
    limit(world, bytes).await;
    world.store.create_task(&task, nominal, None).await.unwrap();
    limit(world, u64::MAX >> 14).await;
    world.store.admit_bytes("a", usize::MAX >> 16).await.unwrap();
}

async fn every_new_thing_of_a_full_tenant_is_refused(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h" })).await;
    let started = world.started(&task).await;
    world.succeed(&started).await;
    let saved = world.store.put_credential(&Scope::Every, &credential("a"), 0).await.unwrap().stored;
    let full = stored(world).await;
    limit(world, full).await;
    let (store, now) = (&world.store, world.now());
    let new = || new_task("a", json!({ "interval": "1h" }), json!({}), now);
    let (other, nominal) = new();
    let refused = (full, full);
    assert_eq!(is_full(store.create_task(&other, nominal, None).await), refused);
    assert_eq!(is_full(store.create_tasks(&[new(), new()]).await), refused);
    let of_b = new_task("b", json!({ "interval": "1h" }), json!({}), now);
    assert_eq!(is_full(store.create_tasks(&[of_b.clone(), new()]).await), refused, "a batch is all or nothing");
    assert_eq!(is_full(edit(world, &task, "say more").await), refused);
    for scope in [Scope::Every, super::world::only("a")] {
        assert_eq!(is_full(store.run_now(&scope, task.id, new_id(now), None, now, None).await), refused);
    }
    assert_eq!(
        is_full(store.retry_run(&Scope::Every, started.run.id, new_id(now), now, |_| Ok(None), None).await),
        refused
    );
    assert_eq!(is_full(store.backfill(&Scope::Every, task.id, new_id(now), &[START], None, None).await), refused);
    assert_eq!(is_full(store.put_credential(&Scope::Every, &credential("a"), saved.credential.version).await), refused);
    assert_eq!(is_full(store.put_task_state(&tenant_of("a"), task.id, "n", &json!(1), now).await), refused);
    assert_eq!(is_full(store.admit_bytes("a", 1).await), refused);
    assert_eq!(stored(world).await, full, "nothing was stored");
    // what frees, and what changes no content, is never refused, nor is another tenant
    world.store.create_tasks(&[of_b]).await.unwrap();
    let paused = TaskChange::Pause { reason: None };
    world.store.change_task(&Scope::Every, task.id, &paused).await.unwrap();
    world.store.delete_task(&Scope::Every, task.id).await.unwrap();
}

/// An answer of so many bytes under a key.
fn key(tenant: &str, key: &str, bytes: usize) -> Idempotency {
    Idempotency {
        tenant: tenant.into(),
        key: key.into(),
        digest: vec![1],
        status: 201,
        body: json!({ "made": "x".repeat(bytes) }).into(),
    }
}

async fn repetition_of_what_was_done_is_answered_to_a_full_tenant(world: &StoreHarness) {
    let (task, nominal) = new_task("a", json!({ "interval": "1h" }), json!({}), world.now());
    let done = key("a", "k", 9);
    world.store.create_task(&task, nominal, Some(&done)).await.unwrap();
    let full = stored(world).await;
    limit(world, full).await;
    let (again, nominal) = new_task("a", json!({ "interval": "1h" }), json!({}), world.now());
    let replayed = StoredAnswer::Replayed { status: 201, body: done.body.value() };
    assert_eq!(world.store.create_task(&again, nominal, Some(&done)).await.unwrap(), replayed);
    assert_eq!(world.store.claim_key(&done, world.now()).await.unwrap(), replayed);
    assert_eq!(world.store.remember_answer(&done, world.now()).await.unwrap(), replayed);
    is_full(world.store.create_task(&again, nominal, Some(&key("a", "other", 9))).await);
    is_full(world.store.claim_key(&key("a", "other", 9), world.now()).await);
    // to pause a task once more, say, changes nothing, and is not refused
    for _ in 0..2 {
        let answer = world.store.remember_answer(&key("a", "other", 9), world.now()).await.unwrap();
        assert_eq!(answer, StoredAnswer::Done(()));
    }
    assert_eq!(world.count("select count(*) from idempotency").await, 1, "nothing new is kept");
    for keeps in [key("*", "k", 9), key("b", "k", 9)] {
        assert_eq!(world.store.claim_key(&keeps, world.now()).await.unwrap(), StoredAnswer::Done(()));
    }
    assert_eq!(world.count("select count(*) from idempotency").await, 3, "others have room");
    // the answer is admitted with the task
    let bytes = serde_json::to_string(&again.spec).unwrap().len() as u64;
    limit(world, full + bytes + 300).await;
    is_full(world.store.create_task(&again, nominal, Some(&key("a", "new", 300))).await);
    world.store.create_task(&again, nominal, Some(&key("a", "new", 200))).await.unwrap();
}

async fn answers_under_keys_count_for_their_tenant_and_those_to_admins_for_none(world: &StoreHarness) {
    world.store.remember_answer(&key("a", "k", 300), world.now()).await.unwrap();
    let first = stored(world).await;
    assert!(first >= 300, "{first}");
    world.store.remember_answer(&key("*", "k", 300), world.now()).await.unwrap();
    assert_eq!((stored(world).await, stored_now(world).await), (first, first as i64));
    // another one takes the place of one that has expired
    world.pass(86_400);
    for tenant in ["a", "*"] {
        world.store.remember_answer(&key(tenant, "k", 900), world.now()).await.unwrap();
    }
    let second = stored(world).await;
    assert!(second >= first + 600, "{first} became {second}");
    assert_eq!(stored_now(world).await, second as i64);
    assert_eq!(world.store.forget_answers(world.now() + TimeDelta::days(1), 9).await.unwrap(), 2);
    assert_eq!((stored(world).await, stored_now(world).await), (0, 0));
}

async fn facts_of_a_full_tenant_are_counted_deleted_and_not_noted(world: &StoreHarness) {
    let (store, of_a) = (&world.store, tenant_of("a"));
    let by_call = |text: &str, key: &str| NewFact { call_key: Some(key.into()), ..said(text, FactOrigin::Person) };
    let fact = store.note_fact(&of_a, &by_call("Lives in Vienna.", "c1"), None).await.unwrap().fact;
    let other = store.note_fact(&of_a, &said("Has a dog.", FactOrigin::Outside), None).await.unwrap().fact;
    let full = stored(world).await;
    limit(world, full).await;
    let refused = (full, full);
    let graz = said("Lives in Graz.", FactOrigin::Person);
    assert_eq!(is_full(store.note_fact(&of_a, &graz, None).await), refused);
    assert_eq!(is_full(store.note_fact(&of_a, &graz, Some("Lives in Vienna.")).await), refused);
    assert_eq!(is_full(store.add_fact(&of_a, &graz).await), refused);
    let change = FactChange { text: Some("Lives in Graz.".into()), collection: None };
    assert_eq!(is_full(store.correct_fact(&Scope::Every, fact.id, &change, "token:t").await), refused);
    let confirmed = said("Has a dog.", FactOrigin::Person);
    assert_eq!(is_full(store.note_fact(&of_a, &confirmed, None).await), refused, "it keeps what was said before");
    assert!(store.claim_unembedded(&of_a, "", 9).await.unwrap().is_empty(), "no vector is made");
    let moved = FactChange { text: None, collection: Some("homes".into()) };
    assert_eq!(is_full(store.correct_fact(&Scope::Every, fact.id, &moved, "token:t").await), refused, "it is recorded");
    let known = said("Lives in Vienna.", FactOrigin::Person);
    assert_eq!(is_full(store.add_fact(&of_a, &known).await), refused, "that it was given is recorded");
    // what stores nothing more is done
    let again = store.note_fact(&of_a, &by_call("Lives in Vienna.", "c1"), None).await.unwrap();
    assert_eq!((again.noted_as, again.fact.mentions), (NotingKind::New, 1), "the same call");
    let known = store.note_fact(&of_a, &by_call("Lives in Vienna.", "c2"), None).await.unwrap();
    assert_eq!((known.noted_as, known.fact.mentions), (NotingKind::Known, 2));
    assert_eq!(stored(world).await, full, "nothing was stored");
    store.delete_fact(&Scope::Every, other.id, "token:t", None).await.unwrap();
    count(world).await;
    world.pass(1);
    store.note_fact(&of_a, &said("A cat.", FactOrigin::Person), None).await.unwrap();
}

async fn entries_of_requests_that_a_tenant_may_repeat_count_and_are_refused_to_a_full_one(world: &StoreHarness) {
    let (store, of_a, every) = (&world.store, tenant_of("a"), &Scope::Every);
    // each adds an entry, however little else it stores
    let mut before = stored(world).await;
    let mut recorded = async |what: &str| {
        let now = stored(world).await;
        assert!(now >= before + 60, "{what}: {before} became {now}");
        before = now;
    };
    let saved = store.put_credential(every, &credential("a"), 0).await.unwrap().stored;
    recorded("a credential is made").await;
    let hosts_alone = CredentialRowDraft { document: None, ..credential("a") };
    let saved = store.put_credential(every, &hosts_alone, saved.credential.version).await.unwrap().stored;
    recorded("a credential is saved without its document").await;
    let fact = store.add_fact(&of_a, &said("Lives in Vienna.", FactOrigin::Person)).await.unwrap().fact;
    recorded("a fact is given").await;
    store.add_fact(&of_a, &said("Lives in Vienna.", FactOrigin::Person)).await.unwrap();
    recorded("a fact is given again").await;
    let moved = FactChange { text: None, collection: Some("homes".into()) };
    store.correct_fact(every, fact.id, &moved, "token:t").await.unwrap();
    recorded("a fact is moved").await;
    store.set_approval_override(&overrides::sample(world, "a"), None).await.unwrap();
    recorded("an override is set").await;
    store.put_recipient(every, "a", &Recipient::default(), None).await.unwrap();
    store.delete_recipient(every, "a", "token:t").await.unwrap();
    recorded("a recipient is deleted").await;

    let wanted = overrides::sample(world, "a");
    let once = key("a", "override", 9);
    store.set_approval_override(&wanted, Some(&once)).await.unwrap();
    let full = stored(world).await;
    limit(world, full).await;
    let refused = (full, full);
    assert_eq!(is_full(store.put_credential(every, &hosts_alone, saved.credential.version).await), refused);
    assert_eq!(is_full(store.add_fact(&of_a, &said("Lives in Vienna.", FactOrigin::Person)).await), refused);
    assert_eq!(is_full(store.correct_fact(every, fact.id, &moved, "token:t").await), refused);
    assert_eq!(is_full(store.set_approval_override(&overrides::sample(world, "a"), None).await), refused);
    assert_eq!(is_full(store.put_recipient(every, "a", &Recipient::default(), None).await), refused);
    assert_eq!(stored(world).await, full, "nothing was recorded");
    let replayed = StoredAnswer::Replayed { status: 201, body: once.body.value() };
    assert_eq!(store.set_approval_override(&wanted, Some(&once)).await.unwrap(), replayed, "it was done before");
    // an override and a credential are taken back, and no entry of that counts: there are as few of them as of those
    // that were made
    let kept = stored(world).await;
    store.remove_approval_override(every, wanted.id, "token:t").await.unwrap();
    store.delete_credential(every, "a", "google", "work", "token:t").await.unwrap();
    store.delete_fact(every, fact.id, "token:t", None).await.unwrap();
    assert!(stored(world).await < kept);
    store.put_recipient(every, "b", &Recipient::default(), None).await.unwrap();
}

async fn trials_are_on_the_record_and_count_as_stored_bytes(world: &StoreHarness) {
    let store = &world.store;
    let before = stored(world).await;
    let body = json!({ "tool": "files.read", "version": "1", "arguments": "a\0b", "confirmed": true });
    store.record_tool_trial("a", "token:t", body.clone()).await.unwrap();
    let full = stored(world).await;
    assert!(full >= before + 60, "{before} became {full}");
    let filter = AuditFilter { action: Some("tool.called".into()), limit: 9, ..AuditFilter::default() };
    for (tenant, count) in [("a", 1), ("b", 0)] {
        let told = store.audit_page(&Scope::Only(tenant_of(tenant)), &filter).await.unwrap().rows;
        let kept = json!({ "tool": "files.read", "version": "1", "arguments": "a\u{FFFD}b", "confirmed": true });
        assert!(told.iter().all(|act| act.actor == "token:t" && act.tenant_id == "a" && act.body == kept), "{told:?}");
        assert_eq!(told.len(), count);
    }
    limit(world, full).await;
    assert_eq!(is_full(store.record_tool_trial("a", "token:t", body.clone()).await), (full, full));
    assert_eq!(stored(world).await, full, "nothing was recorded");
    store.record_tool_trial("b", "token:t", body).await.unwrap();
}

async fn tasks_that_a_full_tenant_has_by_their_keys_are_left_as_they_are(world: &StoreHarness) {
    let keyed = |tenant: &str, key: &str| {
        let (task, nominal) = new_task(tenant, json!({ "interval": "1h" }), json!({}), world.now());
        (Task { key: Some(key.into()), ..task }, nominal)
    };
    let store = &world.store;
    store.create_tasks(&[keyed("a", "one"), keyed("a", "two"), keyed("b", "three")]).await.unwrap();
    let full = stored(world).await;
    limit(world, full).await;
    let metrics = Metrics::new();
    store.show_counts(&metrics);
    for (key, once) in [("one", None), ("two", Some("never asked"))] {
        let (task, nominal) = keyed("a", key);
        let once = once.map(|once| Idempotency {
            tenant: "a".into(),
            key: once.into(),
            digest: vec![1],
            status: 201,
            body: json!({}).into(),
        });
        let conflict = store.create_task(&task, nominal, once.as_ref()).await;
        let why = format!("there is a task with the key `{key}`");
        assert!(matches!(&conflict, Err(StoreError::Conflict(said)) if *said == why), "{conflict:?}");
    }
    assert_eq!(store.create_tasks(&[keyed("a", "two"), keyed("a", "one")]).await.unwrap(), [false; 2]);
    let of_both = [keyed("a", "one"), keyed("b", "one"), keyed("b", "three")];
    assert_eq!(store.create_tasks(&of_both).await.unwrap(), [false, true, false], "the other tenant has room");
    let refusals = metrics.text();
    assert!(!refusals.contains("quota=\"stored_bytes\""), "nothing was refused: {refusals}");
    // the rest goes by what it takes itself
    let (new, nominal) = keyed("a", "four");
    let with_new = [keyed("a", "one"), (new.clone(), nominal), keyed("a", "two")];
    let bytes = serde_json::to_string(&new.spec).unwrap().len() as u64;
    limit(world, full + bytes - 1).await;
    assert_eq!(is_full(store.create_tasks(&with_new).await), (full + bytes - 1, full), "a batch is all or nothing");
    limit(world, full + bytes).await;
    assert_eq!(store.create_tasks(&with_new).await.unwrap(), [false, true, false]);
}

async fn fires_of_a_full_tenant_are_skipped_and_its_runs_come_to_their_end(world: &StoreHarness) {
    let schedule = world.task(json!({ "interval": "1m", "overlap": "allow" })).await;
    let straight = matching::task(world, json!({})).await;
    let by_rules = world.task_with("a", listener(), json!({ "max_runs": 100 })).await;
    let quiet = world.task_with("b", json!({ "interval": "1m", "overlap": "allow" }), json!({})).await;
    let under_way = world.started(&schedule).await;
    limit(world, stored(world).await).await;
    let full = stored(world).await;
    world.pass(60);
    let fired = world.fire().await;
    assert_eq!((fired.recorded, fired.skipped), (1, 1));
    matching::publish(world, vec![matching::event("e1")]).await;
    for task in [&schedule, &straight, &by_rules] {
        let last = world.runs_of(task).await.pop().unwrap();
        assert_eq!((last.state, last.reason.as_deref()), (RunState::Skipped, Some("quota")), "{}", task.name);
        assert_eq!((last.cause, last.input), (None, None), "the record is small");
    }
    assert_eq!(world.runs_of(&quiet).await.pop().unwrap().state, RunState::Queued);
    assert_eq!(stored(world).await, full + 3 * ROW, "the rows of three records");
    matching::publish(world, vec![matching::event("e2"), matching::event("e3")]).await;
    assert_eq!(stored(world).await, full + 3 * ROW, "which count further fires");
    // runs under way are recorded to their end
    let message = TranscriptMessage::user("still here");
    let entry = TranscriptEntry::new(0, 0, START, message);
    world.store.append("a", under_way.lease, &[entry]).await.unwrap();
    let output = Some("a result".to_owned());
    world.store.finish_runs(&[Finish { output, ..end_of(&under_way, RunState::Succeeded) }]).await.unwrap();
    assert_eq!(world.get_run(under_way.run.id).await.output.as_deref(), Some("a result"));
    assert!(stored(world).await > full);
}

async fn row_of_a_run_counts_besides_its_parts_until_it_is_forgotten(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1m", "overlap": "allow" })).await;
    let before = stored(world).await;
    let started = world.started(&task).await;
    assert_eq!(stored(world).await, before + ROW);
    world.succeed(&started).await;
    assert_eq!(stored(world).await, before + ROW, "its end has no parts");
    world.store.halt(HaltKind::Stopped, Some("a"), None, "token:admin").await.unwrap();
    for _ in 0..3 {
        world.pass(60);
        assert_eq!(world.fire().await.skipped, 1);
    }
    assert_eq!(stored(world).await, before + 2 * ROW, "three fires that are skipped have one row");
    world.store.lift_halt(HaltKind::Stopped, Some("a"), "token:admin").await.unwrap();
    world.pass(60);
    let claims = super::world::leases(&world.fire().await.claims);
    assert_eq!(stored(world).await, before + 3 * ROW);
    let started = world.store.start_runs(&claims, world.now() + TimeDelta::minutes(1)).await.unwrap().started.remove(0);
    let output = Some("y".repeat(50));
    world.store.finish_runs(&[Finish { output, ..end_of(&started, RunState::Succeeded) }]).await.unwrap();
    let grown = stored(world).await - before;
    assert!((3 * ROW + 50..3 * ROW + 60).contains(&grown), "{grown}");
    world.pass(3600);
    assert_eq!(world.store.forget_runs(world.now(), 9).await.unwrap(), 3);
    assert_eq!(stored(world).await, before);
}

async fn uses_of_credentials_and_keys_of_rules_count_until_they_are_forgotten(world: &StoreHarness) {
    let rules = json!({ "dedup": { "key": "event.source", "window": "1h" }, "throttle": { "limit": 5, "per": "1m" } });
    let task = matching::task(world, rules).await;
    let before = stored(world).await;
    let uses = [used("a", world.now()), used("a", world.now())];
    for noted in &uses {
        world.store.note_credential_use(noted).await.unwrap();
    }
    world.store.mark_credential_use(uses[0].id, "refused").await.unwrap();
    assert_eq!(stored(world).await, before + 2 * SHORT_ROW);
    world.pass(1);
    assert_eq!(world.store.forget_credential_uses(world.now(), 1).await.unwrap(), 1);
    assert_eq!(stored(world).await, before + SHORT_ROW);
    assert_eq!(world.store.forget_credential_uses(world.now(), 9).await.unwrap(), 1);
    assert_eq!(stored(world).await, before);

    let keys = "select (select count(*) from dedups) + (select count(*) from throttles)";
    matching::publish(world, vec![matching::event("e1")]).await;
    assert_eq!(world.count(keys).await, 2);
    count(world).await;
    world.check().await;
    // a key whose time is over is written anew, and counts as it did
    world.pass(3_600);
    matching::publish(world, vec![matching::event("e2")]).await;
    assert_eq!((world.count(keys).await, world.runs_of(&task).await.len()), (2, 2));
    let full = stored(world).await;
    world.check().await;
    world.pass(3_600);
    assert_eq!(world.store.forget_event_rules(world.now(), START, 9).await.unwrap(), 2);
    assert_eq!(stored(world).await, full - 2 * SHORT_ROW);
    // and those of a task go with it
    matching::publish(world, vec![matching::event("e3")]).await;
    assert_eq!(world.count(keys).await, 2);
    world.store.delete_task(&Scope::Every, task.id).await.unwrap();
    assert_eq!(world.count(keys).await, 0);
    count(world).await;
    world.check().await;
}

async fn deletion_makes_room_within_seconds(world: &StoreHarness) {
    let task = world.task(json!({ "interval": "1h" })).await;
    limit(world, stored(world).await).await;
    is_full(world.store.admit_bytes("a", 1).await);
    world.store.delete_task(&Scope::Every, task.id).await.unwrap();
    // a refusal goes by the figure of a moment ago, and uncounted bytes are not known
    is_full(world.store.admit_bytes("a", 1).await);
    count(world).await;
    is_full(world.store.admit_bytes("a", 1).await);
    world.pass(1);
    world.store.admit_bytes("a", 1).await.unwrap();
}

async fn instances_that_count_together_count_everything_once(world: &StoreHarness) {
    let other = world.other_instance().await;
    for _ in 0..20 {
        world.task(json!({ "interval": "1h" })).await;
    }
    let each = world.store.count_stored_bytes(1).await.unwrap();
    assert_eq!(each, 1);
    loop {
        let (one, two) = tokio::join!(world.store.count_stored_bytes(3), other.count_stored_bytes(3));
        if one.unwrap() + two.unwrap() == 0 {
            break;
        }
    }
    assert!(stored(world).await > 20 * 100);
    assert_eq!(world.store.quotas_of("a").await.unwrap().stored_bytes, Quotas::default().stored_bytes);
    if world.is_postgres() {
        other.close().await;
    }
}
