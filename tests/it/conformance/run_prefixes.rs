//! Runs by the beginning of their id, of their fire key, or of the name of their task: by indexes while few begin so,
//! and among the newest runs otherwise.

use std::collections::HashMap;

use reveille::base::id::Scope;
use reveille::domain::run::RunState;
use reveille::domain::task::Task;
use reveille::store::{RunFilter, RunOverview, SCANNED, TaskName};
use serde_json::json;
use uuid::Uuid;

use super::conversations::conversation;
use super::world::{StoreHarness, new_task, only};

on_both!(
    runs_are_found_by_the_beginning_of_their_id_their_key_or_the_name_of_their_task,
    search_by_a_beginning_goes_with_the_other_filters_and_page_by_page,
    runs_are_looked_up_at_the_most_keys_tasks_and_tenants_and_found_among_the_newest_beyond,
    names_of_tasks_are_those_of_the_scope,
);

/// Runs that are looked up by their keys at most.
const KEYS: usize = 100;
/// Tasks that are looked up by their names at most.
const TASKS: usize = 50;
/// Tenants whose runs are looked up at most.
const SEARCHED_TENANTS: usize = 50;

async fn named(world: &StoreHarness, tenant: &str, name: &str) -> Task {
    let (mut task, nominal) = new_task(tenant, json!({ "interval": "1h", "overlap": "allow" }), json!({}), world.now());
    task.name = name.into();
    world.store.create_task(&task, nominal, None).await.unwrap();
    task
}

/// A run that is newer than those before.
async fn run_of(world: &StoreHarness, task: &Task) -> Uuid {
    world.pass(1);
    world.run_now(task).await
}

fn beginning(q: &str) -> RunFilter {
    RunFilter { q: Some(q.into()), limit: 1_000, ..RunFilter::default() }
}

fn ids(runs: &[RunOverview]) -> Vec<Uuid> {
    runs.iter().map(|summary| summary.run.id).collect()
}

async fn found(world: &StoreHarness, scope: &Scope, filter: &RunFilter) -> Vec<Uuid> {
    let page = world.store.run_summaries(scope, filter).await.unwrap();
    assert_eq!(page.behind, None, "{filter:?}");
    ids(&page.rows)
}

async fn runs_are_found_by_the_beginning_of_their_id_their_key_or_the_name_of_their_task(world: &StoreHarness) {
    let morning = named(world, "a", "Morning mail").await;
    let evening = named(world, "a", "Evening 100%_report").await;
    let others = named(world, "b", "Morning mail").await;
    let (first, second) = (run_of(world, &morning).await, run_of(world, &evening).await);
    let (third, theirs) = (run_of(world, &morning).await, run_of(world, &others).await);
    let (a, b) = (&only("a"), &only("b"));
    let of = async |scope: &Scope, q: &str| found(world, scope, &beginning(q)).await;
    for scope in [a, &Scope::Every] {
        for text in [first.to_string(), first.simple().to_string(), first.to_string().to_uppercase()] {
            assert_eq!(of(scope, &text).await, [first], "{text}");
            assert_eq!(of(scope, &text[..24]).await, [first], "{text}");
        }
        assert_eq!(of(scope, &format!("m:{first}")).await, [first]);
        assert_eq!(of(scope, &format!("m:{}", &second.to_string()[..24])).await, [second]);
        for text in ["Evening", "eVENING 100%_", "evening 100%_report"] {
            assert_eq!(of(scope, text).await, [second], "{text}");
        }
    }
    assert_eq!(of(a, "m:").await, [third, second, first]);
    assert_eq!(of(a, "MORN").await, [third, first]);
    assert_eq!(of(a, "m").await, [third, first]);
    assert_eq!(of(b, "morning").await, [theirs]);
    assert_eq!(of(&Scope::Every, "morning").await, [theirs, third, first]);
    let of_b = RunFilter { tenant: Some("b".into()), ..beginning("morning") };
    assert_eq!(found(world, &Scope::Every, &of_b).await, [theirs]);
    // another tenant's, parts that are no beginning, and what would mean something else in a pattern or a statement
    for text in [first.to_string(), format!("m:{first}")] {
        assert_eq!(of(b, &text).await, Vec::<Uuid>::new(), "{text}");
    }
    for text in ["mail", "evening 100x", "evening%", "%", "_", "'", "\0", "m:%", "ffffffff", "\u{10ffff}"] {
        assert_eq!(of(a, text).await, Vec::<Uuid>::new(), "{text}");
    }
    // a run without its task has its key
    world.store.delete_task(a, evening.id).await.unwrap();
    assert_eq!(of(a, "evening").await, Vec::<Uuid>::new());
    assert_eq!(of(a, &format!("m:{second}")).await, [second]);
}

async fn search_by_a_beginning_goes_with_the_other_filters_and_page_by_page(world: &StoreHarness) {
    let (task, other) = (named(world, "a", "Mail").await, named(world, "a", "Mail of others").await);
    let (first, second) = (run_of(world, &task).await, run_of(world, &other).await);
    let third = run_of(world, &task).await;
    world.store.cancel_run(&Scope::Every, first, "no").await.unwrap();
    let third_at = world.now();
    for (scope, q) in [(only("a"), "mail"), (only("a"), "m:"), (Scope::Every, "mail"), (Scope::Every, "0")] {
        let of = async |filter: RunFilter| found(world, &scope, &filter).await;
        assert_eq!(of(beginning(q)).await, [third, second, first], "{q}");
        assert_eq!(of(RunFilter { task_id: Some(task.id), ..beginning(q) }).await, [third, first], "{q}");
        for (state, expected) in [(RunState::Queued, vec![third, second]), (RunState::Cancelled, vec![first])] {
            assert_eq!(of(RunFilter { state: Some(state), ..beginning(q) }).await, expected, "{q}");
        }
        assert_eq!(of(RunFilter { since: Some(third_at), ..beginning(q) }).await, [third], "{q}");
        assert_eq!(of(RunFilter { until: Some(third_at), ..beginning(q) }).await, [second, first], "{q}");
        let mut paged = Vec::new();
        for _ in 0..3 {
            let before = paged.last().copied();
            let page = RunFilter { before, limit: 1, ..beginning(q) };
            paged.extend(ids(&world.store.run_summaries(&scope, &page).await.unwrap().rows));
        }
        assert_eq!(paged, [third, second, first], "{q}");
    }
}

async fn runs_are_looked_up_at_the_most_keys_tasks_and_tenants_and_found_among_the_newest_beyond(world: &StoreHarness) {
    let old = run_of(world, &named(world, "a", "Old work").await).await;
    plant(world, "ff", "'a'", "n:", 1..=SCANNED as usize).await;
    // keys
    plant(world, "00", "'a'", "x:", 1..=KEYS).await;
    let (a, keys) = (only("a"), beginning("x:"));
    assert_eq!(found(world, &a, &keys).await.len(), KEYS);
    plant(world, "00", "'a'", "x:", KEYS + 1..=KEYS + 1).await;
    assert_eq!(among_the_newest(world, &a, &keys).await.len(), KEYS + 1);
    // tasks
    for number in 1..TASKS {
        named(world, "a", &format!("Old work {number}")).await;
    }
    let names = beginning("old w");
    assert_eq!(found(world, &a, &names).await, [old]);
    let one_more = named(world, "a", "Old work of another").await;
    assert_eq!(among_the_newest(world, &a, &names).await, [old]);
    world.store.delete_task(&a, one_more.id).await.unwrap();
    // tenants
    plant(world, "fe", "'t' || i", "n:t", 1..=SEARCHED_TENANTS - 1).await;
    assert_eq!(found(world, &Scope::Every, &names).await, [old]);
    plant(world, "fe", "'u' || i", "n:u", 1..=1).await;
    assert_eq!(among_the_newest(world, &Scope::Every, &names).await, [old]);
    assert_eq!(found(world, &a, &names).await, [old], "one tenant's are looked up, however many there are");
    let whole = beginning(&old.to_string());
    assert_eq!(found(world, &Scope::Every, &whole).await, [old], "an id is looked up in any case");
    world.plant("delete from runs where fire_key like 'n:%' or fire_key like 'x:%'").await;
}

/// The runs of a search whose first page has read other, newer runs alone.
async fn among_the_newest(world: &StoreHarness, scope: &Scope, filter: &RunFilter) -> Vec<Uuid> {
    let first = world.store.run_summaries(scope, filter).await.unwrap();
    assert_eq!(ids(&first.rows), Vec::<Uuid>::new(), "{filter:?}");
    assert!(first.behind.is_some(), "the list is not over");
    let mut filter = RunFilter { before: first.behind, ..filter.clone() };
    let mut listed = Vec::new();
    while filter.before.is_some() {
        let page = world.store.run_summaries(scope, &filter).await.unwrap();
        listed.extend(ids(&page.rows));
        filter.before = page.behind;
    }
    listed
}

/// Ended runs of no task, with ids that begin with these digits, of tenants and with keys that `i` tells apart.
async fn plant(world: &StoreHarness, digits: &str, tenant: &str, key: &str, numbers: std::ops::RangeInclusive<usize>) {
    let (from, to) = (numbers.start(), numbers.end());
    let rows = match world.is_postgres() {
        true => format!("with n (i) as (select generate_series({from}, {to}))"),
        false => format!("with recursive n (i) as (select {from} union all select i + 1 from n where i < {to})"),
    };
    // a key tells rows apart that have the same digits and number
    let apart = key.bytes().last().unwrap_or_default();
    let id = match world.is_postgres() {
        true => format!("overlay(lpad(to_hex(i), 32, '0') placing '{digits}{apart:02x}' from 1)::uuid"),
        false => format!("unhex('{digits}{apart:02x}' || printf('%028x', i))"),
    };
    world
        .plant(&format!(
            "{rows} insert into runs (id, tenant_id, fire_key, trigger_type, scheduled_for, state, created_at)
             select {id}, {tenant}, '{key}' || i, r.trigger_type, r.scheduled_for, 'succeeded', r.created_at
               from (select * from runs where fire_key like 'm:%' limit 1) r, n"
        ))
        .await;
}

async fn names_of_tasks_are_those_of_the_scope(world: &StoreHarness) {
    let (ours, theirs) = (named(world, "a", "Ours").await, named(world, "b", "Theirs").await);
    let asked = [ours.id, theirs.id, Uuid::nil()];
    let name = |name: &str| TaskName { name: name.into(), is_conversation: false };
    let (our, their) = ((ours.id, name("Ours")), (theirs.id, name("Theirs")));
    let names = async |scope: &Scope, ids: &[Uuid]| world.store.task_names(scope, ids).await.unwrap();
    assert_eq!(names(&only("a"), &asked).await, HashMap::from([our.clone()]));
    assert_eq!(names(&Scope::Every, &asked).await, HashMap::from([our, their]));
    assert_eq!(names(&only("a"), &[]).await, HashMap::new());
    let conversation = conversation(world, "a").await;
    let title = TaskName { name: conversation.name, is_conversation: true };
    assert_eq!(names(&only("a"), &[conversation.id]).await, HashMap::from([(conversation.id, title)]));
}
