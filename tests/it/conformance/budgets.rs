//! Ledgers of budgets: what is reserved at once, settled once, and taken back.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use futures::future::join_all;
use reveille::agent::{AgentStore, SummaryCost};
use reveille::base::clock::pause;
use reveille::base::id::new_id;
use reveille::domain::budget::{
    BudgetQuantity, BudgetRefusal, BudgetScope, Budgets, CallBound, DayBudget, DayLimits, RunBudget, Spend, TaskBudget,
    day_of,
};
use reveille::domain::run::transcript::{Compaction, CompactionKind, SUMMARY_UNUSABLE};
use reveille::domain::run::{RunState, TranscriptEntry, TranscriptMessage, Usage};
use reveille::executor::leased_transcript::LeasedTranscript;
use reveille::executor::run_spending::RunSpending;
use reveille::store::{
    BudgetEnd, LedgerStanding, Reservation, ReservationOutcome, Settlement, StartedRun, Store, StoreError,
};
use serde_json::json;
use uuid::Uuid;

use super::world::{StoreHarness, end_of, open_postgres};
use crate::support::gate::Gate;

on_both!(
    calls_at_once_reserve_no_more_than_the_day_has,
    call_is_refused_by_the_ledger_that_has_too_little_and_takes_nothing_of_the_other,
    call_that_nobody_waits_for_is_reserved_if_that_is_left_and_nobody_is_told,
    summary_beside_a_turn_is_settled_by_its_own_entry_or_charged_the_worst_at_the_end,
    summaries_of_two_instances_at_once_cost_no_more_than_their_tenants_hour,
    next_call_is_reserved_with_the_turn_before_it_or_left_to_be_waited_for,
    first_calls_of_a_day_reserve_no_more_than_it_has_on_any_instance,
    first_calls_of_many_tasks_in_a_day_are_reserved_together,
    reservation_of_which_nobody_knows_is_taken_back_with_the_next_append,
    call_that_came_to_nothing_is_in_the_way_of_no_other_of_its_run,
    turns_share_a_reservation_while_less_than_half_of_a_day_is_used,
    run_reserves_as_much_as_the_one_of_its_task_before_it_before_it_has_its_first_call,
    calls_of_a_lost_worker_are_settled_by_the_record_before_the_run_goes_on,
    settling_twice_counts_once_and_what_a_run_has_left_is_taken_back_with_its_end,
    reservation_whose_lease_is_lost_is_taken_back_by_who_comes_to_the_limit,
    ledgers_are_forgotten_after_their_day,
    budgets_of_a_tenant_are_seen_by_every_instance_within_a_second,
    budget_of_a_task_stands_in_place_of_its_tenant_s_until_one_of_them_is_reset,
    tasks_with_budgets_of_their_own_are_bounded,
);

const TOKENS: fn(i64) -> Spend = |tokens| Spend { tokens, cost_micros: tokens * 2 };

async fn started(world: &StoreHarness) -> StartedRun {
    let task = world.task_with("a", json!({"interval": "1h", "overlap": "allow"}), json!({})).await;
    world.started(&task).await
}

fn call(world: &StoreHarness, run: &StartedRun, tokens: i64, tenant: Option<i64>, task: Option<i64>) -> Reservation {
    let limits = |tokens| DayLimits { tokens, cost_micros: None };
    Reservation {
        id: new_id(world.now()),
        lease: run.lease,
        tenant: "a".into(),
        task_id: run.run.task_id,
        day: day_of(world.now()),
        most: TOKENS(tokens),
        from: 0,
        within_half: false,
        tenant_limits: limits(tenant),
        task_limits: limits(task),
        notice: None,
    }
}

async fn standings(world: &StoreHarness, run: &StartedRun) -> (LedgerStanding, LedgerStanding) {
    let usage = world.store.budget_usage("a", day_of(world.now())).await.unwrap();
    let task = run.run.task_id.and_then(|id| usage.tasks.get(&id).copied()).unwrap_or_default();
    (usage.tenant, task)
}

fn standing(used: i64, reserved: i64) -> LedgerStanding {
    LedgerStanding { used: TOKENS(used), reserved: TOKENS(reserved) }
}

async fn calls_at_once_reserve_no_more_than_the_day_has(world: &StoreHarness) {
    let run = started(world).await;
    let stores: [Store; 2] = match world.is_postgres() {
        true => [world.store.clone(), world.other_instance().await],
        false => [world.store.clone(), world.store.clone()],
    };
    let asks = (0..40).map(|n| {
        let (store, call) = (stores[n % 2].clone(), call(world, &run, 100, Some(750), None));
        tokio::spawn(async move { store.reserve_budget(&call).await.expect("an answer") })
    });
    let mut granted = 0;
    for ask in asks.collect::<Vec<_>>() {
        match ask.await.unwrap() {
            ReservationOutcome::Granted => granted += 1,
            other => assert_eq!(other, ReservationOutcome::NotNow, "calls under way have it"),
        }
    }
    assert_eq!(granted, 7);
    assert_eq!(standings(world, &run).await, (standing(0, 700), standing(0, 700)));
    world.store.finish_runs(&[BudgetEnd::default()].map(|end| finish(&run, end))).await.unwrap();
    assert_eq!(standings(world, &run).await, (standing(0, 0), standing(0, 0)));
}

fn finish(run: &StartedRun, budget: BudgetEnd) -> reveille::store::Finish {
    reveille::store::Finish { budget: Some(budget), ..end_of(run, RunState::Succeeded) }
}

async fn summaries_of_two_instances_at_once_cost_no_more_than_their_tenants_hour(world: &StoreHarness) {
    let runs = [started(world).await, started(world).await];
    let other = match world.is_postgres() {
        true => world.other_instance().await,
        false => world.store.clone(),
    };
    let stores = [world.store.clone(), other];
    let asks = (0..20).map(|n| {
        let (store, run) = (stores[n % 2].clone(), &runs[n % 2]);
        let spending = RunSpending::new(store.clone(), run.lease, &run.run, Budgets::default(), None);
        let transcript = LeasedTranscript::new(store, run.lease, &run.run, true).spending(Some(spending));
        let bound = CallBound { most: TOKENS(100), unpriced: None };
        let cost = SummaryCost { bound, turn: TOKENS(300), hourly_micros: 1_100 };
        tokio::spawn(async move { transcript.reserve_summary(cost).await })
    });
    let mut granted = 0;
    for ask in asks.collect::<Vec<_>>() {
        granted += i64::from(ask.await.unwrap());
    }
    assert_eq!(granted, 5, "of 200 micro-dollars each");
}

async fn call_is_refused_by_the_ledger_that_has_too_little_and_takes_nothing_of_the_other(world: &StoreHarness) {
    let run = started(world).await;
    let refused = |scope, quantity| ReservationOutcome::Refused(BudgetRefusal { scope, quantity });
    let short = call(world, &run, 100, Some(500), Some(99));
    assert_eq!(world.store.reserve_budget(&short).await.unwrap(), refused(BudgetScope::Task, BudgetQuantity::Tokens));
    assert_eq!(standings(world, &run).await.0, standing(0, 0));
    let dear = Reservation {
        tenant_limits: DayLimits { tokens: Some(500), cost_micros: Some(199) },
        ..call(world, &run, 100, None, None)
    };
    assert_eq!(world.store.reserve_budget(&dear).await.unwrap(), refused(BudgetScope::Tenant, BudgetQuantity::Cost));
    assert_eq!(
        world.store.reserve_budget(&call(world, &run, 100, Some(100), None)).await.unwrap(),
        ReservationOutcome::Granted
    );
    world.store.finish_runs(&[finish(&run, BudgetEnd::default())]).await.unwrap();
}

async fn call_that_nobody_waits_for_is_reserved_if_that_is_left_and_nobody_is_told(world: &StoreHarness) {
    let run = started(world).await;
    assert!(world.store.reserve_budget_if_left(&call(world, &run, 60, Some(100), None)).await.unwrap());
    assert!(!world.store.reserve_budget_if_left(&call(world, &run, 41, Some(100), None)).await.unwrap());
    assert_eq!(standings(world, &run).await, (standing(0, 60), standing(0, 60)));
    world.store.finish_runs(&[finish(&run, BudgetEnd::default())]).await.unwrap();
    assert_eq!(standings(world, &run).await.0, standing(0, 0));
}

async fn summary_beside_a_turn_is_settled_by_its_own_entry_or_charged_the_worst_at_the_end(world: &StoreHarness) {
    let run = started(world).await;
    let budgets = Budgets {
        run: RunBudget { tokens: Some(1_000), ..RunBudget::default() },
        tenant: DayBudget { tokens_per_day: Some(10_000), ..DayBudget::default() },
        ..Budgets::default()
    };
    let spending = RunSpending::new(world.store.clone(), run.lease, &run.run, budgets, None);
    let transcript = LeasedTranscript::new(world.store.clone(), run.lease, &run.run, true).spending(Some(spending));
    let bound = |tokens| CallBound { most: TOKENS(tokens), unpriced: None };
    let cost = |tokens| SummaryCost { bound: bound(tokens), turn: TOKENS(300), hourly_micros: 1_000 };
    transcript.reserve(1, bound(300)).await.unwrap();
    assert!(!transcript.reserve_summary(cost(401)).await, "another turn would not be left");
    assert!(!transcript.reserve_summary(SummaryCost { hourly_micros: 199, ..cost(100) }).await);
    assert!(transcript.reserve_summary(cost(100)).await);
    assert_eq!(standings(world, &run).await.0, standing(0, 1_300), "four turns, and a summary");

    let entry = |seq, message, turns, tokens| TranscriptEntry {
        usage: Usage { turns, input_tokens: tokens, cost_micros: 2 * tokens, ..Usage::default() },
        ..TranscriptEntry::new(seq, 1, world.now(), message)
    };
    let answer = TranscriptMessage::Assistant {
        text: Some("hm".into()),
        tool_calls: vec![],
        provider_message: None,
        finish: None,
    };
    transcript.append(vec![entry(0, answer, 1, 250)]).await.unwrap();
    assert_eq!(standings(world, &run).await.0, standing(0, 1_300), "the next turn has what the answer has left");
    let by = CompactionKind::Summarised { summary: "s".into(), errors: vec![] };
    let summary = TranscriptMessage::Compaction(Compaction { from: 0, to: 0, pinned: vec![], by });
    transcript.append(vec![entry(1, summary, 0, 40)]).await.unwrap();
    assert_eq!(standings(world, &run).await.0, standing(40, 1_200), "the summary is settled by itself");

    assert!(transcript.reserve_summary(cost(50)).await);
    let unpaid = TranscriptMessage::Unusable { code: SUMMARY_UNUSABLE.into() };
    transcript.append(vec![entry(2, unpaid, 0, 0)]).await.unwrap();
    assert_eq!(standings(world, &run).await.0, standing(40, 1_200), "its model has answered nothing");

    assert!(transcript.reserve_summary(cost(50)).await);
    let (_, end) = transcript.take_deferred();
    world.store.finish_runs(&[finish(&run, end.expect("ledgers"))]).await.unwrap();
    assert_eq!(standings(world, &run).await.0, standing(340, 0), "its model may have been paid");
}

fn said(world: &StoreHarness, seq: i64) -> TranscriptEntry {
    TranscriptEntry::new(seq, 1, world.now(), TranscriptMessage::user("hello"))
}

async fn next_call_is_reserved_with_the_turn_before_it_or_left_to_be_waited_for(world: &StoreHarness) {
    let run = started(world).await;
    let next = |tokens| call(world, &run, tokens, Some(500), Some(400));
    let append = async |seq, lease, settled: Option<(&Reservation, i64)>, reserved: &Reservation| {
        let settled = settled.map(|(call, tokens)| Settlement { id: call.id, spent: TOKENS(tokens), notice: None });
        let settled = settled.into_iter().collect();
        world.store.append_budgeted("a", lease, &[said(world, seq)], settled, Some(reserved.clone())).await
    };
    let (first, second, third) = (next(300), next(250), next(200));
    let early = append(0, run.lease, None, &first).await.unwrap();
    assert!(!early, "nobody has opened the ledgers of the day");
    assert_eq!(world.store.reserve_budget(&first).await.unwrap(), ReservationOutcome::Granted);
    assert_eq!(standings(world, &run).await, (standing(0, 300), standing(0, 300)));

    let settled = append(1, run.lease, Some((&first, 100)), &second).await.unwrap();
    assert!(settled, "what the call before has not come to is left for it");
    assert_eq!(standings(world, &run).await, (standing(100, 250), standing(100, 250)));

    let short = append(2, run.lease, Some((&second, 210)), &third).await.unwrap();
    assert!(!short, "the task has 90 left");
    assert_eq!(standings(world, &run).await, (standing(310, 0), standing(310, 0)), "and what was spent is counted");

    let stale = reveille::store::Lease { token: run.lease.token + 1, ..run.lease };
    assert!(append(3, stale, None, &next(10)).await.is_err());
    assert_eq!(standings(world, &run).await.0, standing(310, 0));
    assert_eq!(world.count("select count(*) from budget_reservations").await, 0);
    let entries = world.store.checkpoint("a", run.run.id, 0, 10).await.unwrap();
    assert_eq!(entries.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [0, 1, 2]);
}

async fn first_calls_of_a_day_reserve_no_more_than_it_has_on_any_instance(world: &StoreHarness) {
    let runs = [started(world).await, started(world).await];
    let other = match world.is_postgres() {
        true => world.other_instance().await,
        false => world.store.clone(),
    };
    let stores = [world.store.clone(), other];
    for day in 0..5 {
        let asks = (0..6).map(|n| {
            let (store, run) = (stores[n % 2].clone(), &runs[n % 2]);
            let call = Reservation {
                day: day_of(world.now()) + TimeDelta::days(day),
                ..call(world, run, 100, Some(250), None)
            };
            tokio::spawn(async move { store.reserve_budget(&call).await.expect("an answer") })
        });
        let mut granted = 0;
        for ask in asks.collect::<Vec<_>>() {
            granted += i64::from(ask.await.unwrap() == ReservationOutcome::Granted);
        }
        assert_eq!(granted, 2, "day {day}");
    }
}

/// As at midnight: the ledgers of many tasks are opened together, and stay one batch.
async fn first_calls_of_many_tasks_in_a_day_are_reserved_together(world: &StoreHarness) {
    const TASKS: usize = 40;
    let mut runs = Vec::new();
    for _ in 0..TASKS {
        runs.push(started(world).await);
    }
    let calls: Vec<Reservation> = runs.iter().map(|run| call(world, run, 100, Some(5_000), Some(1_000))).collect();
    for (number, reserved) in
        join_all(calls.iter().map(|call| world.store.reserve_budget(call))).await.iter().enumerate()
    {
        assert_eq!(*reserved.as_ref().unwrap(), ReservationOutcome::Granted, "{number}");
    }
    for run in &runs {
        assert_eq!(standings(world, run).await, (standing(0, 100 * TASKS as i64), standing(0, 100)));
    }
    if world.is_postgres() {
        let writes = world.count("select count(distinct xmin::text) from budget_days").await;
        assert!(writes <= 5, "{writes} transactions for {TASKS} calls");
    }
}

/// Each is sent once its statement was prepared on its connection.
#[tokio::test]
async fn first_call_of_a_day_opens_its_ledgers_and_is_reserved_by_one_statement() {
    let mut world = StoreHarness::postgres().await;
    world.store.close().await;
    let gate = Gate::before(&world.url()).await;
    gate.open().await;
    world.store = open_postgres(&gate.url(&world.url()), &world.clock).await;
    let run = started(&world).await;
    let mut counted = Vec::new();
    for days in 0..6 {
        let day = day_of(world.now()) + TimeDelta::days(days);
        let first = Reservation { day, ..call(&world, &run, 100, Some(500), Some(300)) };
        let before = gate.requests();
        assert_eq!(world.store.reserve_budget(&first).await.unwrap(), ReservationOutcome::Granted);
        counted.push(gate.requests() - before);
    }
    assert_eq!(counted.iter().min(), Some(&1), "{counted:?}");
    let opened = "select count(*) from budget_days
                   where reserved_tokens = 100 and reserved_cost_micros = 200 and tokens = 0
                     and tokens_limit = case when task_id = '00000000-0000-0000-0000-000000000000' then 500 else 300 end";
    assert_eq!(world.count(opened).await, 12);
    assert_eq!(world.count("select count(*) from budget_reservations").await, 6);
    world.store.close().await;
}

/// Two instances open the ledger of a tenant at once: the later one waits, and goes by what the other has written.
#[tokio::test]
async fn ledger_that_another_instance_opens_meanwhile_has_no_more_than_that_has_left() {
    for (used, is_left) in [(401, false), (400, true)] {
        let world = StoreHarness::postgres().await;
        let run = started(&world).await;
        world.plant("begin").await;
        let day = day_of(world.now());
        let opened = format!(
            "insert into budget_days (tenant_id, task_id, day, tokens, cost_micros, reserved_tokens, reserved_cost_micros)
             values ('a', '00000000-0000-0000-0000-000000000000', '{day}', {used}, {}, 0, 0)",
            2 * used
        );
        world.plant(&opened).await;
        let (store, first) = (world.store.clone(), call(&world, &run, 100, Some(500), Some(300)));
        let reserving = tokio::spawn(async move { store.reserve_budget(&first).await });
        let waits = "select count(*) from pg_locks
                      where not granted and locktype = 'transactionid'
                        and transactionid = cast(pg_current_xact_id() as xid)";
        let began = Instant::now();
        while world.count(waits).await == 0 {
            assert!(began.elapsed() < Duration::from_secs(60), "nobody waits for the ledger");
            pause(Duration::from_millis(2)).await;
        }
        world.plant("commit").await;
        let refusal = BudgetRefusal { scope: BudgetScope::Tenant, quantity: BudgetQuantity::Tokens };
        let outcome = if is_left { ReservationOutcome::Granted } else { ReservationOutcome::Refused(refusal) };
        assert_eq!(reserving.await.unwrap().unwrap(), outcome, "{used}");
        let reserved = if is_left { 100 } else { 0 };
        assert_eq!(standings(&world, &run).await, (standing(used, reserved), standing(0, reserved)), "{used}");
        world.leave().await;
    }
}

async fn reservation_of_which_nobody_knows_is_taken_back_with_the_next_append(world: &StoreHarness) {
    let run = started(world).await;
    let spending = spending_of_a_day(world, &run, 10_000);
    let next = spending.open_behind(&[], Usage::default(), 2, &CallBound { most: TOKENS(600), unpriced: None });
    let next = next.expect("the run's own budget has it");
    // the answer to this is lost
    let made = next.reservation.as_ref().expect("a budget of the day holds");
    assert_eq!(world.store.reserve_budget(made).await.unwrap(), ReservationOutcome::Granted);
    spending.note_reserved(&next, None);
    assert_eq!(standings(world, &run).await.0, standing(0, 2_400));
    let transcript = LeasedTranscript::new(world.store.clone(), run.lease, &run.run, true).spending(Some(spending));
    let bound = CallBound { most: TOKENS(700), unpriced: None };
    assert!(transcript.append_and_reserve(vec![said(world, 0)], 2, bound).await.unwrap());
    assert_eq!(standings(world, &run).await.0, standing(0, 2_800), "half of the day would not have both");
}

fn spending_of_a_day(world: &StoreHarness, run: &StartedRun, tokens: u64) -> RunSpending {
    let tenant = DayBudget { tokens_per_day: Some(tokens), ..DayBudget::default() };
    let budgets = Budgets { tenant, ..Budgets::default() };
    RunSpending::new(world.store.clone(), run.lease, &run.run, budgets, None)
}

/// The transcript of a run whose tenant may spend so many tokens in a day.
fn under_a_day(world: &StoreHarness, run: &StartedRun, tokens: u64) -> LeasedTranscript {
    let spending = spending_of_a_day(world, run, tokens);
    LeasedTranscript::new(world.store.clone(), run.lease, &run.run, true).spending(Some(spending))
}

fn answered(world: &StoreHarness, seq: i64, turn: i64, tokens: i64) -> TranscriptEntry {
    let usage = Usage { turns: 1, input_tokens: tokens, cost_micros: 2 * tokens, ..Usage::default() };
    TranscriptEntry { turn, usage, ..said(world, seq) }
}

async fn call_that_came_to_nothing_is_in_the_way_of_no_other_of_its_run(world: &StoreHarness) {
    let run = started(world).await;
    let transcript = under_a_day(world, &run, 1_000);
    for _ in 0..3 {
        let reserved = transcript.reserve(3, CallBound { most: TOKENS(600), unpriced: None });
        tokio::time::timeout(Duration::from_secs(20), reserved).await.expect("it waits for nobody").unwrap();
        assert_eq!(standings(world, &run).await.0, standing(0, 600));
    }
    transcript.append(vec![answered(world, 0, 3, 250)]).await.unwrap();
    assert_eq!(standings(world, &run).await.0, standing(250, 0), "one call alone is settled with its entry");
    let (_, end) = transcript.take_deferred();
    world.store.finish_runs(&[finish(&run, end.expect("ledgers"))]).await.unwrap();
}

async fn turns_share_a_reservation_while_less_than_half_of_a_day_is_used(world: &StoreHarness) {
    let run = started(world).await;
    let bound = || CallBound { most: TOKENS(100), unpriced: None };
    let transcript = under_a_day(world, &run, 1_000);
    transcript.reserve(1, bound()).await.unwrap();
    assert_eq!(standings(world, &run).await.0, standing(0, 400), "four at once");
    assert_eq!(world.count("select max(tokens_limit) from budget_days").await, 1_000, "owners are told at 80 % of it");
    for (turn, spent) in [(1, 90), (2, 80), (3, 70)] {
        let entries = vec![answered(world, turn, turn, spent)];
        assert!(transcript.append_and_reserve(entries, turn + 1, bound()).await.unwrap());
        assert_eq!(standings(world, &run).await.0, standing(0, 400), "the next one has what the turn has left");
    }
    let spent = vec![answered(world, 4, 4, 95)];
    assert!(!transcript.append_and_reserve(spent, 5, bound()).await.unwrap());
    assert_eq!(
        standings(world, &run).await.0,
        standing(335, 0),
        "65 are left, and no 400 in the first half of the day"
    );
    transcript.reserve(5, bound()).await.unwrap();
    assert_eq!(standings(world, &run).await.0, standing(335, 100), "by itself");
    let exact = vec![answered(world, 5, 5, 65)];
    assert!(transcript.append_and_reserve(exact, 6, bound()).await.unwrap());
    assert_eq!(standings(world, &run).await.0, standing(400, 100));
    let (_, end) = transcript.take_deferred();
    world.store.finish_runs(&[finish(&run, end.expect("ledgers"))]).await.unwrap();
    assert_eq!(standings(world, &run).await, (standing(400, 0), standing(400, 0)));
}

async fn run_reserves_as_much_as_the_one_of_its_task_before_it_before_it_has_its_first_call(world: &StoreHarness) {
    let task = world.task_with("a", json!({"interval": "1h", "overlap": "allow"}), json!({})).await;
    let bound = |tokens| CallBound { most: TOKENS(tokens), unpriced: None };
    let mut runs = Vec::new();
    // the first of them knows of none before it, the third needs more, the fourth asks no model
    let calls = [(Some(100), 0, 400), (Some(100), 800, 800), (Some(500), 1_200, 2_800), (None, 4_800, 4_800)];
    for (call, before, behind) in calls {
        let run = world.started(&task).await;
        let transcript = under_a_day(world, &run, 20_000);
        assert_eq!(transcript.load().await.unwrap(), []);
        until_reserved(world, &run, before).await;
        if let Some(tokens) = call {
            transcript.reserve(1, bound(tokens)).await.unwrap();
        }
        assert_eq!(standings(world, &run).await.0, standing(0, behind), "with {call:?}");
        runs.push((run, transcript));
    }
    // one that has begun before is settled by its record first
    let run = world.started(&task).await;
    let again = LeasedTranscript::new(world.store.clone(), run.lease, &run.run, false);
    assert_eq!(again.spending(Some(spending_of_a_day(world, &run, 20_000))).load().await.unwrap(), []);
    assert_eq!(standings(world, &run).await.0, standing(0, 4_800));
    for (run, transcript) in &runs {
        let (entries, end) = transcript.end().await;
        let end = reveille::store::Finish { entries, ..finish(run, end.expect("ledgers")) };
        assert_eq!(world.store.finish_runs(&[end]).await.unwrap(), Vec::<Uuid>::new());
    }
    assert_eq!(standings(world, &run).await.0, standing(0, 0));
}

/// Returns once so many tokens are reserved: nobody waits for it.
async fn until_reserved(world: &StoreHarness, run: &StartedRun, tokens: i64) {
    let began = Instant::now();
    while standings(world, run).await.0 != standing(0, tokens) {
        assert!(began.elapsed() < Duration::from_secs(30), "not {tokens}: {:?}", standings(world, run).await);
        pause(Duration::from_millis(5)).await;
    }
}

async fn calls_of_a_lost_worker_are_settled_by_the_record_before_the_run_goes_on(world: &StoreHarness) {
    for by_who_goes_on in [true, false] {
        let run = started(world).await;
        let before = standings(world, &run).await.0.used.tokens;
        let bound = || CallBound { most: TOKENS(100), unpriced: None };
        let transcript = under_a_day(world, &run, 10_000);
        transcript.append(vec![answered(world, 0, 0, 7)]).await.unwrap();
        transcript.reserve(1, bound()).await.unwrap();
        for turn in 1..3 {
            let entries = vec![answered(world, turn, turn, 90)];
            assert!(transcript.append_and_reserve(entries, turn + 1, bound()).await.unwrap());
        }
        assert_eq!(standings(world, &run).await.0, standing(before, 400));
        let next = reveille::store::Lease { token: run.lease.token + 1, ..run.lease };
        let (id, token) = (world.id(run.run.id), next.token);
        world.plant(&format!("update queue set lease_token = {token} where run_id = {id}")).await;
        match by_who_goes_on {
            true => world.store.settle_lost_reservations("a", next).await.unwrap(),
            false => assert_eq!(world.store.release_stale_reservations(None, 10).await.unwrap(), 1),
        }
        assert_eq!(standings(world, &run).await.0, standing(before + 180, 0), "what is on the record, and once");
        world.store.settle_lost_reservations("a", next).await.unwrap();
        let run = StartedRun { lease: next, ..run };
        world.store.finish_runs(&[finish(&run, BudgetEnd::default())]).await.unwrap();
        assert_eq!(standings(world, &run).await.0, standing(before + 180, 0));
    }
}

async fn settling_twice_counts_once_and_what_a_run_has_left_is_taken_back_with_its_end(world: &StoreHarness) {
    let run = started(world).await;
    let calls = [call(world, &run, 100, Some(500), None), call(world, &run, 200, Some(500), None)];
    for call in &calls {
        assert_eq!(world.store.reserve_budget(call).await.unwrap(), ReservationOutcome::Granted);
    }
    let entry = said(world, 0);
    let settlement = || vec![Settlement { id: calls[0].id, spent: TOKENS(30), notice: None }];
    for _ in 0..2 {
        world.store.append_budgeted("a", run.lease, std::slice::from_ref(&entry), settlement(), None).await.unwrap();
    }
    assert_eq!(standings(world, &run).await, (standing(30, 200), standing(30, 200)));
    // nor does it without an append
    let alone = call(world, &run, 50, Some(500), None);
    assert_eq!(world.store.reserve_budget(&alone).await.unwrap(), ReservationOutcome::Granted);
    for _ in 0..2 {
        let settlement = Settlement { id: alone.id, spent: TOKENS(20), notice: None };
        world.store.settle_budget("a", &[settlement]).await.unwrap();
        assert_eq!(standings(world, &run).await.0, standing(50, 200));
    }
    // a worker that has lost its lease settles nothing
    let stale = reveille::store::Lease { token: run.lease.token + 1, ..run.lease };
    let late = vec![Settlement { id: calls[1].id, spent: TOKENS(50), notice: None }];
    assert!(world.store.append_budgeted("a", stale, &[entry], late, None).await.is_err());
    assert_eq!(standings(world, &run).await.0, standing(50, 200));
    world.store.finish_runs(&[finish(&run, BudgetEnd::default())]).await.unwrap();
    assert_eq!(standings(world, &run).await, (standing(50, 0), standing(50, 0)));
}

async fn reservation_whose_lease_is_lost_is_taken_back_by_who_comes_to_the_limit(world: &StoreHarness) {
    let (lost, other) = (started(world).await, started(world).await);
    let held = call(world, &lost, 100, Some(150), None);
    assert_eq!(world.store.reserve_budget(&held).await.unwrap(), ReservationOutcome::Granted);
    assert_eq!(
        world.store.reserve_budget(&call(world, &other, 100, Some(150), None)).await.unwrap(),
        ReservationOutcome::NotNow,
        "its call is under way"
    );
    // as a crash leaves it: the run is in the queue again, and knows nothing of what was reserved
    world
        .plant(&format!("update queue set state = 'ready', lease_token = 0 where run_id = {}", world.id(lost.run.id)))
        .await;
    let next = call(world, &other, 100, Some(150), None);
    assert_eq!(world.store.reserve_budget(&next).await.unwrap(), ReservationOutcome::Granted);
    assert_eq!(standings(world, &other).await.0, standing(0, 100));
    assert_eq!(world.store.release_stale_reservations(None, 10).await.unwrap(), 0, "nothing is left of it");
    let (id, token) = (world.id(lost.run.id), lost.lease.token);
    world.plant(&format!("update queue set state = 'started', lease_token = {token} where run_id = {id}")).await;
    world.store.finish_runs(&[&lost, &other].map(|run| finish(run, BudgetEnd::default()))).await.unwrap();
}

async fn ledgers_are_forgotten_after_their_day(world: &StoreHarness) {
    let run = started(world).await;
    let call = call(world, &run, 100, Some(500), None);
    world.store.reserve_budget(&call).await.unwrap();
    let day = day_of(world.now());
    assert_eq!(world.store.forget_budget_days(day, 10).await.unwrap(), 0);
    assert_eq!(world.store.forget_budget_days(day + TimeDelta::days(1), 10).await.unwrap(), 2);
    // a reservation that comes back to a ledger that is gone is taken back all the same
    world.store.finish_runs(&[finish(&run, BudgetEnd::default())]).await.unwrap();
    assert_eq!(world.count("select count(*) from budget_reservations").await, 0);
}

async fn budgets_of_a_tenant_are_seen_by_every_instance_within_a_second(world: &StoreHarness) {
    let other = world.other_instance().await;
    let said = Budgets {
        run: RunBudget { turns: Some(5), ..RunBudget::default() },
        tenant: DayBudget { cost_usd_per_day: Some(2.5), ..DayBudget::default() },
        ..Budgets::default()
    };
    assert_eq!(other.budgets_of("a").await.unwrap(), Budgets::default());
    world.store.put_budgets("a", &said, "token:admin").await.unwrap();
    world.clock.advance(TimeDelta::milliseconds(500));
    for store in [&world.store, &other] {
        assert_eq!(store.budgets_of("a").await.unwrap(), said);
        assert_eq!(store.budgets_of("b").await.unwrap(), Budgets::default());
    }
    world.store.reset_budgets("a", "token:admin").await.unwrap();
    world.clock.advance(TimeDelta::milliseconds(500));
    for store in [&world.store, &other] {
        assert_eq!(store.budgets_of("a").await.unwrap(), Budgets::default());
    }
}

const BY: &str = "token:admin";

/// The tasks of tenant `a` of which an admin has said something.
async fn tasks_with_budgets(world: &StoreHarness) -> Vec<Uuid> {
    let usage = world.store.budget_usage("a", day_of(world.now())).await.unwrap();
    usage.task_overrides.into_keys().collect()
}

async fn budget_of_a_task_stands_in_place_of_its_tenant_s_until_one_of_them_is_reset(world: &StoreHarness) {
    let other = world.other_instance().await;
    let (task, another) = (new_id(world.now()), new_id(world.now()));
    let run = |turns| RunBudget { turns: Some(turns), tokens: Some(9), ..RunBudget::default() };
    let usual = Budgets { run: run(5), ..Budgets::default() };
    let said = TaskBudget { turns: Some(50), tokens_per_day: Some(7), ..TaskBudget::default() };
    world.store.put_budgets("a", &usual, BY).await.unwrap();
    world.store.set_task_budget("a", task, Some(&said), BY).await.unwrap();
    world.clock.advance(TimeDelta::milliseconds(500));
    let expected = Budgets {
        run: run(50),
        task: DayBudget { tokens_per_day: Some(7), ..DayBudget::default() },
        ..Budgets::default()
    };
    for store in [&world.store, &other] {
        assert_eq!(store.budgets_of_task("a", Some(task)).await.unwrap(), expected);
        assert_eq!(store.budgets_of_task("a", Some(another)).await.unwrap(), usual);
        assert_eq!(store.budgets_of_task("b", Some(task)).await.unwrap(), Budgets::default());
        assert_eq!(store.budgets_of("a").await.unwrap(), usual);
    }
    world.store.put_budgets("a", &Budgets::default(), BY).await.unwrap();
    assert_eq!(tasks_with_budgets(world).await, [task], "what is said for the tenant leaves it");
    world.store.set_task_budget("a", another, Some(&said), BY).await.unwrap();
    world.store.set_task_budget("a", task, None, BY).await.unwrap();
    assert_eq!(tasks_with_budgets(world).await, [another]);
    world.clock.advance(TimeDelta::milliseconds(500));
    assert_eq!(other.budgets_of_task("a", Some(task)).await.unwrap(), Budgets::default());
    world.store.reset_budgets("a", BY).await.unwrap();
    assert!(tasks_with_budgets(world).await.is_empty());
}

async fn tasks_with_budgets_of_their_own_are_bounded(world: &StoreHarness) {
    let said = TaskBudget { turns: Some(1), ..TaskBudget::default() };
    let set = async |number: u128| world.store.set_task_budget("a", Uuid::from_u128(number), Some(&said), BY).await;
    for number in 1..=200 {
        set(number).await.unwrap();
    }
    let refused = set(201).await;
    assert!(matches!(refused, Err(StoreError::Conflict(_))), "{refused:?}");
    set(7).await.unwrap();
    world.store.set_task_budget("a", Uuid::from_u128(8), None, BY).await.unwrap();
    set(201).await.unwrap();
    assert_eq!(tasks_with_budgets(world).await.len(), 200);
}
