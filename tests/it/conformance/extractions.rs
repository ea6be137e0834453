//! The queue of extractions: filled by ends of runs, worked off from tenant to tenant, counted, and forgotten.

use chrono::TimeDelta;
use reveille::domain::budget::{Budgets, CallBound, DayBudget, Spend, day_of};
use reveille::domain::memory::FactOrigin;
use reveille::domain::run::transcript::{ModelCall, ModelTokens};
use reveille::domain::run::{RunState, Usage};
use reveille::domain::task::Task;
use reveille::store::{ExtractionCall, ExtractionClaim, Finish, UsageFilter, UsageGroup};
use uuid::Uuid;

use super::conversations::{conversation, say, started};
use super::facts::{said, tenant};
use super::world::{StoreHarness, end_of, only};

on_both!(
    end_of_a_run_queues_its_extraction_and_one_of_a_tenant_is_worked_on,
    extractions_are_found_from_tenant_to_tenant,
    call_of_an_extraction_is_counted_and_charged,
    extractions_go_with_the_memory_of_their_tenant_and_when_nobody_works_them_off,
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

async fn end_of_a_run_queues_its_extraction_and_one_of_a_tenant_is_worked_on(world: &StoreHarness) {
    let task = conversation(world, "a").await;
    answered(world, &task, false).await;
    assert_eq!((in_turn(world, "").await, world.pending_work().await.extraction), (vec![], None));
    let (first, second) = (answered(world, &task, true).await, answered(world, &task, true).await);
    assert_eq!(world.pending_work().await.extraction, Some(world.now()));
    assert_eq!(in_turn(world, "").await, [("a".into(), Some(first))]);
    let early = claim(world, "a", first).await.expect("it is due");
    assert_eq!((early.tenant.as_str(), early.run_id, early.claims), ("a", first, 1));
    assert_eq!(claim(world, "a", first).await, None, "it is another's");
    assert_eq!(in_turn(world, "").await, [("a".into(), None)], "the second one waits for the first");

    world.pass(60);
    let late = claim(world, "a", first).await.expect("the claim has run out");
    assert_eq!(late.claims, 2);
    world.store.finish_extraction(&early, None, None).await.unwrap();
    assert_eq!(in_turn(world, "").await, [("a".into(), None)], "an end of before changes nothing");
    let again_at = world.now() + TimeDelta::seconds(5);
    world.store.finish_extraction(&late, None, Some(again_at)).await.unwrap();
    assert_eq!(in_turn(world, "").await, [("a".into(), None)]);
    world.pass(5);
    let last = claim(world, "a", first).await.expect("it is due again");
    assert_eq!(last.claims, 3);
    world.store.finish_extraction(&last, None, None).await.unwrap();
    assert_eq!(in_turn(world, "").await, [("a".into(), Some(second))]);
}

async fn extractions_are_found_from_tenant_to_tenant(world: &StoreHarness) {
    let mut runs = Vec::new();
    for name in ["a", "b", "c"] {
        let task = conversation(world, name).await;
        runs.push((name.to_owned(), Some(answered(world, &task, true).await)));
        answered(world, &task, true).await;
    }
    assert_eq!(in_turn(world, "").await, runs, "the first of each");
    assert_eq!(in_turn(world, "a").await, runs[1..]);
    assert_eq!(in_turn(world, "c").await, []);
    assert_eq!(world.store.extractions_in_turn("", 2, world.now()).await.unwrap(), runs[..2]);
}

async fn call_of_an_extraction_is_counted_and_charged(world: &StoreHarness) {
    let task = conversation(world, "a").await;
    let run_id = answered(world, &task, true).await;
    let said =
        Budgets { tenant: DayBudget { tokens_per_day: Some(100), ..DayBudget::default() }, ..Budgets::default() };
    world.store.put_budgets("a", &said, "token:admin").await.unwrap();
    let bound = |tokens, unpriced: Option<&str>| CallBound {
        most: Spend { tokens, cost_micros: 7 },
        unpriced: unpriced.map(str::to_owned),
    };
    assert!(world.store.has_budget_left("a", &bound(100, Some("m"))).await.unwrap());
    assert!(!world.store.has_budget_left("a", &bound(101, None)).await.unwrap());
    assert!(world.store.has_budget_left("b", &bound(101, None)).await.unwrap(), "another tenant has none");

    let claim = claim(world, "a", run_id).await.unwrap();
    let model_call = ModelCall { model: "small".into(), tokens: ModelTokens::of(30, 12) };
    let usage = Usage { turns: 1, tool_calls: 0, input_tokens: 30, output_tokens: 12, cost_micros: 5 };
    let call = ExtractionCall { task_id: Some(task.id), model_call: Some(model_call), usage, duration_ms: 9 };
    world.store.finish_extraction(&claim, Some(&call), None).await.unwrap();
    let today = day_of(world.now());
    let ledgers = world.store.budget_usage("a", today).await.unwrap();
    assert_eq!(ledgers.tenant.used, Spend { tokens: 42, cost_micros: 5 });
    assert_eq!(ledgers.tasks[&task.id].used.tokens, 42);
    assert!(world.store.has_budget_left("a", &bound(58, None)).await.unwrap());
    assert!(!world.store.has_budget_left("a", &bound(59, None)).await.unwrap());
    let until = today + TimeDelta::days(1);
    let by_model = UsageFilter { by: UsageGroup::Model, from: today, until, task_id: None, after: None, limit: 10 };
    let sums = world.store.usage_sums(&only("a"), &by_model).await.unwrap();
    let [sum] = &sums[..] else { panic!("{sums:?}") };
    assert_eq!((sum.key.as_str(), sum.turns, sum.input_tokens, sum.output_tokens), ("small", 1, 30, 12));
    assert_eq!((sum.cost_micros, sum.model_ms), (5, 9));

    let money = Budgets { tenant: DayBudget { cost_usd_per_day: Some(1.0), ..DayBudget::default() }, ..said };
    world.store.put_budgets("a", &money, "token:admin").await.unwrap();
    assert!(!world.store.has_budget_left("a", &bound(1, Some("m"))).await.unwrap(), "a model without a price");
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

async fn extractions_go_with_the_memory_of_their_tenant_and_when_nobody_works_them_off(world: &StoreHarness) {
    for name in ["a", "b"] {
        let task = conversation(world, name).await;
        answered(world, &task, true).await;
        world.store.note_fact(&tenant(name), &said("Owns a dog.", FactOrigin::Person), None).await.unwrap();
    }
    assert_eq!(world.store.delete_facts(&tenant("a"), "token:t").await.unwrap(), 1);
    let left: Vec<String> = in_turn(world, "").await.into_iter().map(|(tenant, _)| tenant).collect();
    assert_eq!(left, ["b"], "what was deleted is not noted again");
    assert_eq!(world.store.forget_extractions(world.now(), 10).await.unwrap(), 0);
    assert_eq!(world.store.forget_extractions(world.now() + TimeDelta::seconds(1), 10).await.unwrap(), 1);
    assert_eq!(in_turn(world, "").await, []);
}
