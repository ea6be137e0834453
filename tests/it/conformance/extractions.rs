//! The queue of extractions: filled by ends of runs, worked off from tenant to tenant, counted, and forgotten.

use chrono::TimeDelta;
use reveille::base::metrics::Metrics;
use reveille::domain::budget::{Budgets, CallBound, DayBudget, Spend, day_of};
use reveille::domain::memory::FactOrigin;
use reveille::domain::quota::Overrides;
use reveille::domain::run::transcript::{ModelCall, ModelTokens};
use reveille::domain::run::{RunState, Usage};
use reveille::domain::task::Task;
use reveille::store::{
    ExtractionCall, ExtractionClaim, ExtractionEnd, FactFilter, Finish, MOST_QUEUED, UsageFilter, UsageGroup,
    UsageOrder,
};
use uuid::Uuid;

use super::conversations::{conversation, say, started};
use super::facts::{said, tenant};
use super::world::{LEASE, StoreHarness, end_of, leases, only};

on_both!(
    end_of_a_run_queues_its_extraction_and_one_of_a_tenant_is_worked_on,
    extractions_are_found_from_tenant_to_tenant,
    call_of_an_extraction_is_counted_and_charged,
    deleted_memory_and_deleted_runs_are_noted_no_more_whoever_reads_them,
    extractions_of_a_tenant_are_bounded_and_forgotten_when_nobody_works_them_off,
    extracted_facts_of_a_full_tenant_are_counted_where_they_are_known_and_else_left_out,
);

/// How long a claim lasts.
const CLAIM: TimeDelta = TimeDelta::seconds(60);

/// Says something, which is answered; facts are to be noted from the run, or not.
async fn answered(world: &StoreHarness, conversation: &Task, extracts: bool) -> Uuid {
    let id = say(world, conversation, "hello").await;
    let started = started(world).await;
    let end = Finish { output: Some("hi".into()), extracts, ..end_of(&started, RunState::Succeeded) };
    assert!(world.store.finish_runs(&[end]).await.unwrap().is_empty(), "it has its lease");
    id
}

async fn in_turn(world: &StoreHarness, after: &str) -> Vec<(String, Option<Uuid>)> {
    world.store.extractions_in_turn(after, 10, world.now()).await.unwrap()
}

async fn claim(world: &StoreHarness, of: &str, run_id: Uuid) -> Option<ExtractionClaim> {
    world.store.claim_extraction(of, run_id, world.now() + CLAIM).await.unwrap()
}

/// A claim that has found a fact.
fn found(text: &str) -> ExtractionEnd {
    ExtractionEnd { facts: vec![(said(text, FactOrigin::Person), None)], ..ExtractionEnd::default() }
}

/// All that is known of `a` is deleted.
async fn store_forgets(world: &StoreHarness) {
    world.store.delete_facts(&tenant("a"), "token:t").await.unwrap();
}

async fn facts_of(world: &StoreHarness, of: &str) -> Vec<(String, i64)> {
    let page = world.store.list_facts(&only(of), &FactFilter { limit: 50, ..FactFilter::default() }).await.unwrap();
    page.rows.into_iter().map(|fact| (fact.text, fact.mentions)).collect()
}

async fn end_of_a_run_queues_its_extraction_and_one_of_a_tenant_is_worked_on(world: &StoreHarness) {
    let task = conversation(world, "a").await;
    answered(world, &task, false).await;
    assert_eq!((in_turn(world, "").await, world.pending_work().await.extraction), (vec![], None));
    let (early, late) = (say(world, &task, "first").await, say(world, &conversation(world, "a").await, "second").await);
    let runs = world.store.start_runs(&leases(&world.claim().await), world.now() + LEASE).await.unwrap().started;
    // the one that was recorded last ends first
    for id in [late, early] {
        world.pass(1);
        let started = runs.iter().find(|started| started.run.id == id).unwrap();
        let end = Finish { extracts: true, ..end_of(started, RunState::Succeeded) };
        assert!(world.store.finish_runs(&[end]).await.unwrap().is_empty(), "it has its lease");
    }
    assert_eq!(world.pending_work().await.extraction, Some(world.now() - TimeDelta::seconds(1)));
    assert_eq!(in_turn(world, "").await, [("a".into(), Some(late))], "in the order of their ends");
    let first = claim(world, "a", late).await.expect("it is due");
    assert_eq!((first.tenant.as_str(), first.run_id, first.claims), ("a", late, 1));
    assert_eq!(claim(world, "a", late).await, None, "it is another's");
    assert_eq!(claim(world, "a", early).await, None, "one of a tenant at a time");
    assert_eq!(in_turn(world, "").await, [("a".into(), None)], "the second one waits for the first");

    world.pass(60);
    let again = claim(world, "a", late).await.expect("the claim has run out");
    assert_eq!(again.claims, 2);
    assert!(!world.store.finish_extraction(&first, &found("Owns a cat.")).await.unwrap(), "it is another's by now");
    assert_eq!(facts_of(world, "a").await, []);
    let again_at = Some(world.now() + TimeDelta::seconds(5));
    let postponed = ExtractionEnd { again_at, ..ExtractionEnd::default() };
    assert!(world.store.finish_extraction(&again, &postponed).await.unwrap());
    assert!(!world.store.finish_extraction(&again, &postponed).await.unwrap(), "once");
    assert_eq!(in_turn(world, "").await, [("a".into(), None)]);
    world.pass(5);
    let last = claim(world, "a", late).await.expect("it is due again");
    assert_eq!(last.claims, 3);
    assert!(world.store.finish_extraction(&last, &found("Owns a dog.")).await.unwrap());
    assert!(!world.store.finish_extraction(&last, &found("Owns a dog.")).await.unwrap(), "noted and counted once");
    assert_eq!(facts_of(world, "a").await, [("Owns a dog.".into(), 1)]);
    assert_eq!(in_turn(world, "").await, [("a".into(), Some(early))]);
}

async fn extractions_are_found_from_tenant_to_tenant(world: &StoreHarness) {
    let mut runs = Vec::new();
    for name in ["a", "b", "c"] {
        let task = conversation(world, name).await;
        runs.push((name.to_owned(), Some(answered(world, &task, true).await)));
        world.pass(1);
        answered(world, &task, true).await;
    }
    assert_eq!(in_turn(world, "").await, runs, "the first of each");
    assert_eq!(in_turn(world, "a").await, runs[1..]);
    assert_eq!(in_turn(world, "c").await, []);
    assert_eq!(world.store.extractions_in_turn("", 2, world.now()).await.unwrap(), runs[..2]);
    // `a` and `B`: whatever the order of names is in the database, each has its turn
    let other = conversation(world, "B").await;
    answered(world, &other, true).await;
    let (mut after, mut turns) = (String::new(), Vec::new());
    while let [(tenant, _)] = &world.store.extractions_in_turn(&after, 1, world.now()).await.unwrap()[..] {
        after.clone_from(tenant);
        turns.push(tenant.clone());
    }
    turns.sort();
    assert_eq!(turns, ["B", "a", "b", "c"]);
}

async fn call_of_an_extraction_is_counted_and_charged(world: &StoreHarness) {
    let task = conversation(world, "a").await;
    let run_id = answered(world, &task, true).await;
    let said =
        Budgets { tenant: DayBudget { tokens_per_day: Some(200), ..DayBudget::default() }, ..Budgets::default() };
    world.store.put_budgets("a", &said, "token:admin").await.unwrap();
    let bound = |tokens, unpriced: Option<&str>| CallBound {
        most: Spend { tokens, cost_micros: 7 },
        unpriced: unpriced.map(str::to_owned),
    };
    let claim = claim(world, "a", run_id).await.unwrap();
    assert_eq!(
        world.store.reserve_extraction(&claim, Some(&task), &bound(101, None)).await.unwrap(),
        None,
        "half of a day is for runs"
    );
    let reserved = world.store.reserve_extraction(&claim, Some(&task), &bound(100, Some("m"))).await.unwrap();
    let reserved = reserved.expect("it is left");
    let reservation = reserved.expect("a budget of the day holds");
    let today = day_of(world.now());
    let ledger = async || {
        let usage = world.store.budget_usage("a", today).await.unwrap();
        assert_eq!(usage.tasks.get(&task.id).copied(), Some(usage.tenant), "the day of its task is charged as well");
        usage.tenant
    };
    assert_eq!(ledger().await.reserved.tokens, 100);
    assert_eq!(world.store.release_stale_reservations(None, 10).await.unwrap(), 0, "its claim stands");
    let other = ExtractionClaim { tenant: tenant("b"), ..claim.clone() };
    let unbounded = world.store.reserve_extraction(&other, None, &bound(101, None)).await.unwrap();
    assert_eq!(unbounded, Some(None), "another tenant has no budget");

    let model_call = ModelCall { model: "small".into(), tokens: ModelTokens::of(30, 12) };
    let usage = Usage { turns: 1, tool_calls: 0, input_tokens: 30, output_tokens: 12, cost_micros: 5 };
    let call = ExtractionCall { task_id: Some(task.id), model_call: Some(model_call), usage, duration_ms: 9 };
    // its provider has counted something else than what is charged
    let charge = Spend { tokens: 43, cost_micros: 6 };
    let reservation = Some((reservation, charge));
    let ended = ExtractionEnd { call: Some(call), reservation, ..ExtractionEnd::default() };
    for is_first in [true, false] {
        assert_eq!(world.store.finish_extraction(&claim, &ended).await.unwrap(), is_first);
    }
    let standing = ledger().await;
    assert_eq!((standing.used, standing.reserved), (charge, Spend::default()));
    let until = today + TimeDelta::days(1);
    let by_model = UsageFilter {
        by: UsageGroup::Model,
        from: today,
        until,
        task_id: None,
        order: UsageOrder::Key,
        after: None,
        skip: 0,
        limit: 10,
    };
    let sums = world.store.usage_sums(&only("a"), &by_model).await.unwrap();
    let [sum] = &sums[..] else { panic!("{sums:?}") };
    assert_eq!((sum.key.as_str(), sum.turns, sum.input_tokens, sum.output_tokens), ("small", 1, 30, 12));
    assert_eq!((sum.cost_micros, sum.model_ms), (5, 9));
    let own = world.store.tokens_of_run(&only("a"), run_id).await.unwrap();
    assert_eq!(own, ModelTokens::default(), "the run's own, without what was read beside it");

    let run_id = answered(world, &task, true).await;
    let left = world.store.claim_extraction("a", run_id, world.now() + CLAIM).await.unwrap().unwrap();
    world.store.reserve_extraction(&left, Some(&task), &bound(50, None)).await.unwrap().expect("it is left");
    let late = ExtractionEnd { call: ended.call.clone(), ..ExtractionEnd::default() };
    store_forgets(world).await;
    for _ in 0..2 {
        assert!(!world.store.finish_extraction(&left, &late).await.unwrap(), "its memory was deleted");
    }
    let sums = world.store.usage_sums(&only("a"), &by_model).await.unwrap();
    assert_eq!(sums[0].turns, 2, "it was paid all the same, once");
    assert_eq!(world.store.release_stale_reservations(None, 10).await.unwrap(), 1, "nobody has the claim any more");
    let money = Budgets { tenant: DayBudget { cost_usd_per_day: Some(1.0), ..DayBudget::default() }, ..said };
    world.store.put_budgets("a", &money, "token:admin").await.unwrap();
    let unpriced = world.store.reserve_extraction(&left, Some(&task), &bound(1, Some("m"))).await.unwrap();
    assert_eq!(unpriced, None, "a model without a price");
    let other = world.other_instance().await;
    assert!(world.store.take_extraction_money("a", 60, 100).await.unwrap());
    assert!(!other.take_extraction_money("a", 41, 100).await.unwrap());
    assert!(other.take_summary_money("a", 100, 100).await.unwrap(), "summaries have their own");
    other.give_extraction_money_back("a", 1).await.unwrap();
    assert!(world.store.take_extraction_money("a", 41, 100).await.unwrap());
    if world.is_postgres() {
        other.close().await;
    }
}

async fn deleted_memory_and_deleted_runs_are_noted_no_more_whoever_reads_them(world: &StoreHarness) {
    let store = &world.store;
    let task = conversation(world, "a").await;
    let read = async || {
        let run_id = answered(world, &task, true).await;
        claim(world, "a", run_id).await.expect("it is due")
    };
    let note =
        async |text: &str| store.note_fact(&tenant("a"), &said(text, FactOrigin::Person), None).await.unwrap().fact;
    let (being_read, _) = (read().await, note("Owns a dog.").await);
    assert_eq!(store.delete_facts(&tenant("a"), "token:t").await.unwrap(), 1);
    assert!(!store.finish_extraction(&being_read, &found("Owns a dog.")).await.unwrap(), "all is deleted");
    assert_eq!(in_turn(world, "").await, [], "and the claim that was called back is over");
    let (being_read, cat) = (read().await, note("Owns a cat.").await);
    store.delete_fact(&only("a"), cat.id, "token:t", None).await.unwrap();
    assert!(!store.finish_extraction(&being_read, &found("Owns a cat.")).await.unwrap(), "one is deleted");
    // a run under way that has heard it before
    let run_id = say(world, &task, "I own a bird.").await;
    let under_way = started(world).await;
    world.pass(1);
    let bird = note("Owns a bird.").await;
    store.delete_fact(&only("a"), bird.id, "token:t", None).await.unwrap();
    let end = Finish { extracts: true, ..end_of(&under_way, RunState::Succeeded) };
    store.finish_runs(&[end]).await.unwrap();
    let late = claim(world, "a", run_id).await.expect("it is due");
    assert!(!store.finish_extraction(&late, &found("Owns a bird.")).await.unwrap(), "it is deleted since");
    let being_read = read().await;
    store.delete_conversation(&only("a"), task.id).await.unwrap();
    store.finish_extraction(&being_read, &found("Owns a fish.")).await.unwrap();
    assert_eq!((facts_of(world, "a").await, in_turn(world, "").await), (vec![], vec![]), "its conversation is deleted");
}

async fn extractions_of_a_tenant_are_bounded_and_forgotten_when_nobody_works_them_off(world: &StoreHarness) {
    let metrics = Metrics::new();
    world.store.show_counts(&metrics);
    let dropped = |count: u64| {
        let line = format!("reveille_extractions_dropped_total {count}\n");
        assert!(metrics.text().contains(&line), "{line}{}", metrics.text());
    };
    let task = conversation(world, "a").await;
    for _ in 0..MOST_QUEUED {
        answered(world, &task, true).await;
    }
    dropped(0);
    answered(world, &task, true).await;
    dropped(1);
    assert_eq!(world.count("select count(*) from extractions").await, MOST_QUEUED);
    answered(world, &task, false).await;
    answered(world, &conversation(world, "b").await, true).await;
    dropped(1);
    assert_eq!(in_turn(world, "a").await.len(), 1, "of another tenant it is read");
    assert_eq!(world.store.forget_extractions(world.now(), 10).await.unwrap(), 0);
    assert_eq!(world.store.forget_extractions(world.now() + TimeDelta::seconds(1), 10).await.unwrap(), 10);
}

async fn extracted_facts_of_a_full_tenant_are_counted_where_they_are_known_and_else_left_out(world: &StoreHarness) {
    let task = conversation(world, "a").await;
    let run_id = answered(world, &task, true).await;
    let cat = world.store.note_fact(&tenant("a"), &said("Owns a cat.", FactOrigin::Person), None).await.unwrap().fact;
    let claim = claim(world, "a", run_id).await.expect("it is due");
    while world.store.count_stored_bytes(100).await.unwrap() > 0 {}
    let little = Overrides { stored_bytes: Some(1), ..Overrides::default() };
    world.store.put_quotas("a", &little, "token:admin").await.unwrap();
    let fact = |text: &str, replaces| (said(text, FactOrigin::Person), replaces);
    let facts = vec![fact("Owns a dog.", None), fact("Owns a bird.", Some(cat.id)), fact("Owns a cat.", None)];
    let end = ExtractionEnd { facts, ..ExtractionEnd::default() };
    assert!(world.store.finish_extraction(&claim, &end).await.unwrap());
    assert_eq!(facts_of(world, "a").await, [("Owns a cat.".into(), 2)]);
    assert_eq!(in_turn(world, "").await, [], "it is over");
}
