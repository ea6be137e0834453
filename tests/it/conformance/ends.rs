//! Ends of runs that are written together, whichever way they take: by one statement on Postgres where nothing else
//! follows from them, and else in a transaction.

use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use futures::future::join_all;
use reveille::agent::AgentStore;
use reveille::base::clock::pause;
use reveille::base::id::{Scope, new_id};
use reveille::domain::approval::{ApprovalChoice, ApprovalStatus};
use reveille::domain::budget::notice::BudgetNotice;
use reveille::domain::budget::{Budgets, CallBound, DayBudget, DayLimits, Spend, day_of};
use reveille::domain::notification::{Addresses, MessageKind, NewDelivery, Recipient};
use reveille::domain::run::transcript::{ModelCall, ModelTokens, TranscriptEntry, TranscriptMessage};
use reveille::domain::run::{RunState, Usage};
use reveille::engine::running::finisher::Finisher;
use reveille::executor::leased_transcript::LeasedTranscript;
use reveille::executor::run_spending::RunSpending;
use reveille::store::{
    BudgetEnd, Finish, Lease, OverlapOutcome, Park, Reservation, ReservationOutcome, Settlement, StartedRun, Store,
    StoreError,
};
use serde_json::json;
use sqlx::{Connection, PgConnection};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::asked::{answer, asked, go_on, parked, question};
use super::world::{LEASE, StoreHarness, again, end_of, leases, open_postgres};
use crate::support::gate::Gate;
use crate::support::proxy::Proxy;

on_both!(
    batch_writes_nothing_of_an_end_whose_lease_is_lost_and_the_others_whole,
    late_end_of_a_run_that_goes_on_writes_nothing_beside_the_end_of_that,
    end_that_frees_a_slot_hands_it_on_beside_ends_that_free_none,
    end_with_a_budget_settles_it_beside_ends_that_have_none,
    owner_is_told_with_the_end_of_a_run_that_most_of_a_day_is_used,
    ends_and_calls_of_a_tenant_on_two_instances_come_to_what_they_have_cost,
    runs_of_one_task_end_in_one_batch_and_are_counted_together,
    end_of_a_run_with_open_questions_closes_them_beside_ends_without_any,
    transcript_whose_append_was_broken_off_is_not_settled,
    end_that_a_try_without_an_answer_has_written_is_not_lost,
    usage_of_a_run_that_goes_on_is_kept_until_its_transcript_is_read,
);

/// Usage of an entry of [`answered`].
const ANSWER: Usage = Usage { turns: 1, tool_calls: 0, input_tokens: 200, output_tokens: 50, cost_micros: 250 };
/// For statements of others to come as far as a lock.
const PATIENCE: Duration = Duration::from_secs(60);

/// A run of a task of its own.
async fn started(world: &StoreHarness) -> StartedRun {
    world.started(&world.task(json!({"interval": "1h"})).await).await
}

fn answered(world: &StoreHarness, seq: i64) -> TranscriptEntry {
    let message = TranscriptMessage::Assistant {
        text: Some("hi".into()),
        tool_calls: vec![],
        provider_message: None,
        finish: None,
    };
    let model_call = Some(ModelCall { model: "main".into(), tokens: ModelTokens::default() });
    TranscriptEntry { usage: ANSWER, model_call, ..TranscriptEntry::new(seq, seq + 1, world.now(), message) }
}

/// An end from which nothing else follows: its answer comes with it.
fn answers(world: &StoreHarness, run: &StartedRun) -> Finish {
    let entries = vec![answered(world, 0)];
    Finish { usage: ANSWER, entries, is_transcript_settled: true, ..end_of(run, RunState::Succeeded) }
}

fn stale(run: &StartedRun) -> Lease {
    Lease { token: run.lease.token + 1000, ..run.lease }
}

fn message(run_id: Uuid) -> NewDelivery {
    NewDelivery {
        tenant_id: "a".into(),
        recipient: "a".into(),
        channel: "email".into(),
        fallback: vec![],
        dedupe_key: format!("run:{run_id}:result"),
        run_id: Some(run_id),
        subject_ref: None,
        kind: MessageKind::Result,
        urgency: MessageKind::Result.urgency(),
        subject: None,
        text: None,
    }
}

async fn stored(world: &StoreHarness, run: &StartedRun) -> usize {
    world.store.transcript(&Scope::Every, run.run.id, 0, 9).await.unwrap().len()
}

/// Calls of models that are counted.
async fn counted(world: &StoreHarness) -> i64 {
    world.count("select cast(coalesce(sum(calls), 0) as bigint) from usage_days").await
}

async fn batch_writes_nothing_of_an_end_whose_lease_is_lost_and_the_others_whole(world: &StoreHarness) {
    for (before, is_told) in [(0, false), (2, true)] {
        let runs = [started(world).await, started(world).await, started(world).await];
        let mut ends = runs.each_ref().map(|run| answers(world, run));
        ends[1].lease = stale(&runs[1]);
        for end in ends.iter_mut().filter(|_| is_told) {
            end.deliveries = vec![message(end.lease.run_id)];
        }
        assert_eq!(world.store.finish_runs(&ends).await.unwrap(), [runs[1].run.id]);
        for (run, written) in runs.iter().zip([true, false, true]) {
            let ended = world.get_run(run.run.id).await.state == RunState::Succeeded;
            assert_eq!((ended, stored(world, run).await), (written, usize::from(written)));
        }
        assert_eq!(counted(world).await, before + 2);
        assert_eq!(world.store.count_deliveries(&Scope::Every).await.unwrap(), if is_told { 2 } else { 0 });
        assert_eq!(world.count("select count(*) from slots").await, 1);
        world.succeed(&runs[1]).await;
    }
}

async fn late_end_of_a_run_that_goes_on_writes_nothing_beside_the_end_of_that(world: &StoreHarness) {
    for (before, is_told) in [(0, false), (1, true)] {
        let run = started(world).await;
        let deliveries = if is_told { vec![message(run.run.id)] } else { vec![] };
        let late = Finish {
            lease: stale(&run),
            entries: vec![answered(world, 0), answered(world, 1)],
            output: Some("late".into()),
            ..answers(world, &run)
        };
        let end = Finish { output: Some("in time".into()), deliveries, ..answers(world, &run) };
        assert_eq!(world.store.finish_runs(&[late, end]).await.unwrap(), Vec::<Uuid>::new());
        assert_eq!(world.get_run(run.run.id).await.output.as_deref(), Some("in time"));
        assert_eq!((stored(world, &run).await, counted(world).await), (1, before + 1));
    }
}

async fn end_that_frees_a_slot_hands_it_on_beside_ends_that_free_none(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1h", "overlap": "queue_all"})).await;
    let first = world.started(&task).await;
    let (second, fate) = world.blocked(&task).await;
    assert_eq!(fate, OverlapOutcome::Behind);
    let other = started(world).await;
    let ends = [answers(world, &first), answers(world, &other)];
    assert_eq!(world.store.finish_runs(&ends).await.unwrap(), Vec::<Uuid>::new());
    assert_eq!((stored(world, &first).await, stored(world, &other).await, counted(world).await), (1, 1, 2));
    let next = world.start_all().await.started;
    assert_eq!(next.iter().map(|started| started.run.id).collect::<Vec<_>>(), [second.id]);
}

async fn end_with_a_budget_settles_it_beside_ends_that_have_none(world: &StoreHarness) {
    // by one statement, and in a transaction
    for (before, is_told) in [(0, false), (1, true)] {
        let [paid, lost, other] = [started(world).await, started(world).await, started(world).await];
        let mut ends = Vec::new();
        for run in [&paid, &lost] {
            let call = reserved(world, run, 100).await;
            // this one is left to the end
            reserved(world, run, 20).await;
            let settlements = vec![Settlement { id: call.id, spent: spend(30), notice: None }];
            ends.push(Finish { budget: Some(BudgetEnd { settlements }), ..answers(world, run) });
        }
        ends.push(answers(world, &other));
        if is_told {
            ends[2].deliveries = vec![message(other.run.id)];
        }
        let in_time = ends[1].clone();
        ends[1].lease = stale(&lost);
        assert_eq!(world.store.finish_runs(&ends).await.unwrap(), [lost.run.id]);
        assert_eq!((ledger(world).await, counted(world).await), ((60 * before + 30, 120), 3 * before + 2));
        assert_eq!(world.store.finish_runs(&[in_time]).await.unwrap(), Vec::<Uuid>::new());
        assert_eq!((ledger(world).await, counted(world).await), ((60 * before + 60, 0), 3 * before + 3));
    }
}

fn spend(tokens: i64) -> Spend {
    Spend { tokens, cost_micros: tokens }
}

/// Tokens that are used and reserved in the tenant's day.
async fn ledger(world: &StoreHarness) -> (i64, i64) {
    let standing = world.store.budget_usage("a", day_of(world.now())).await.unwrap().tenant;
    (standing.used.tokens, standing.reserved.tokens)
}

/// A call that is reserved in a day of 1,000 tokens.
async fn reserved(world: &StoreHarness, run: &StartedRun, tokens: i64) -> Reservation {
    let call = Reservation {
        id: new_id(world.now()),
        lease: run.lease,
        tenant: "a".into(),
        task_id: run.run.task_id,
        day: day_of(world.now()),
        most: spend(tokens),
        from: 0,
        within_half: false,
        tenant_limits: DayLimits { tokens: Some(1_000), cost_micros: None },
        task_limits: DayLimits::default(),
        notice: None,
    };
    assert_eq!(world.store.reserve_budget(&call).await.unwrap(), ReservationOutcome::Granted);
    call
}

async fn owner_is_told_with_the_end_of_a_run_that_most_of_a_day_is_used(world: &StoreHarness) {
    let addresses = Addresses { email: Some("ann@example.org".into()), ..Addresses::default() };
    let owner = Arc::new(Recipient { addresses, ..Recipient::default() });
    let told = async || world.store.count_deliveries(&Scope::Every).await.unwrap();
    for (tokens, expected) in [(799, 0), (1, 1), (100, 1)] {
        let run = started(world).await;
        let call = reserved(world, &run, tokens).await;
        let notice = BudgetNotice::new(run.task.as_deref().expect("its task"), Some(Arc::clone(&owner)));
        let settlement = Settlement { id: call.id, spent: spend(tokens), notice: Some(Arc::new(notice)) };
        let budget = Some(BudgetEnd { settlements: vec![settlement] });
        let end = Finish { budget, ..answers(world, &run) };
        assert_eq!(world.store.finish_runs(&[end]).await.unwrap(), Vec::<Uuid>::new());
        assert_eq!(told().await, expected, "with {tokens} more");
        let warned = "select count(*) from budget_days where warned_at is not null";
        assert_eq!(world.count(warned).await, expected);
    }
    assert_eq!(ledger(world).await, (900, 0));
}

async fn ends_and_calls_of_a_tenant_on_two_instances_come_to_what_they_have_cost(world: &StoreHarness) {
    const RUNS: usize = 20;
    let stores: [Store; 2] = match world.is_postgres() {
        true => [world.store.clone(), world.other_instance().await],
        false => [world.store.clone(), world.store.clone()],
    };
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        runs.push(started(world).await);
    }
    let each = runs.into_iter().enumerate().map(|(number, run)| {
        let store = stores[number % 2].clone();
        let (first, last, end) = (answered(world, 0), answered(world, 1), answers(world, &run));
        tokio::spawn(async move {
            let tenant = DayBudget { tokens_per_day: Some(1_000_000), ..DayBudget::default() };
            let budgets = Budgets { tenant, ..Budgets::default() };
            let spending = RunSpending::new(store.clone(), run.lease, &run.run, budgets, None);
            let transcript = LeasedTranscript::new(store.clone(), run.lease, &run.run, true).spending(Some(spending));
            let bound = || CallBound { most: spend(400), unpriced: None };
            transcript.reserve(1, bound()).await.unwrap();
            assert!(transcript.append_and_reserve(vec![first], 2, bound()).await.unwrap());
            transcript.defer(vec![last]);
            let usage = transcript.usage();
            let (entries, budget) = transcript.end().await;
            let end = Finish { entries, budget, usage, ..end };
            assert_eq!(store.finish_runs(&[end]).await.unwrap(), Vec::<Uuid>::new());
        })
    });
    for ended in join_all(each).await {
        ended.unwrap();
    }
    let calls = 2 * RUNS as i64;
    assert_eq!((ledger(world).await, counted(world).await), ((250 * calls, 0), calls));
    assert_eq!(world.count("select count(*) from budget_reservations").await, 0);
}

async fn runs_of_one_task_end_in_one_batch_and_are_counted_together(world: &StoreHarness) {
    let task = world.task(json!({"interval": "1h", "overlap": "allow"})).await;
    let runs = [world.started(&task).await, world.started(&task).await];
    world.store.append("a", runs[0].lease, &[answered(world, 0), answered(world, 1)]).await.unwrap();
    // the second of them comes with the end once more
    let entries = vec![answered(world, 1), answered(world, 2)];
    let ends = [Finish { entries, ..answers(world, &runs[0]) }, answers(world, &runs[1])];
    assert_eq!(world.store.finish_runs(&ends).await.unwrap(), Vec::<Uuid>::new());
    assert_eq!((stored(world, &runs[0]).await, stored(world, &runs[1]).await, counted(world).await), (3, 1, 4));
    assert_eq!(world.count("select count(*) from usage_days").await, 1);
}

async fn end_of_a_run_with_open_questions_closes_them_beside_ends_without_any(world: &StoreHarness) {
    let (_, run, asks) = asked(world, &["c1", "c2"]).await;
    let approve = answer(ApprovalChoice::Approve, &asks[0], "token:t");
    world.store.decide_approval(&Scope::Every, asks[0].id, &approve).await.unwrap();
    let run = go_on(world, run.run.id).await;
    let other = started(world).await;
    let ends = [answers(world, &run), answers(world, &other)];
    assert_eq!(world.store.finish_runs(&ends).await.unwrap(), Vec::<Uuid>::new());
    let asks = world.store.approvals_of_turn(run.run.id, 1).await.unwrap();
    assert!(asks.len() == 2 && asks.iter().all(|asked| asked.status != ApprovalStatus::Pending), "{asks:?}");
    assert_eq!((stored(world, &run).await, stored(world, &other).await, counted(world).await), (1, 1, 2));
}

async fn transcript_whose_append_was_broken_off_is_not_settled(world: &StoreHarness) {
    let run = started(world).await;
    let transcript = LeasedTranscript::new(world.store.clone(), run.lease, &run.run, true);
    transcript.append(vec![answered(world, 0)]).await.unwrap();
    assert!(transcript.is_settled());
    let hold: &[&str] = match world.is_postgres() {
        true => &["begin", "lock table turns in exclusive mode"],
        false => &["begin immediate"],
    };
    for statement in hold {
        world.plant(statement).await;
    }
    let mut broken = transcript.append(vec![answered(world, 1)]);
    assert!(futures::poll!(&mut broken).is_pending(), "the database is held");
    drop(broken);
    assert!(!transcript.is_settled());
    world.plant("rollback").await;
    transcript.append(vec![answered(world, 2)]).await.unwrap();
    assert!(!transcript.is_settled(), "it is not known of the other");
    assert_eq!(stored(world, &run).await, 3, "the other is written all the same");
}

async fn end_that_a_try_without_an_answer_has_written_is_not_lost(world: &StoreHarness) {
    let [ended, back, waits, held] =
        [started(world).await, started(world).await, started(world).await, started(world).await];
    let park = Some(Park::Completion { until: world.now() + TimeDelta::hours(1) });
    let ends = [
        answers(world, &ended),
        again(&back, world.now(), false),
        Finish { park, ..end_of(&waits, RunState::WaitingForCompletion) },
        answers(world, &held),
    ]
    .map(|end| Finish { attempt: 1, ..end });
    let (first, ids) = (&ends[..3], [ended.run.id, back.run.id, waits.run.id]);
    assert_eq!(world.store.finish_runs(first).await.unwrap(), Vec::<Uuid>::new());
    assert_eq!(world.store.finish_runs(first).await.unwrap(), ids, "nobody asks what became of them");
    // the last of them was not written by the first try
    assert_eq!(world.store.finish_runs_again(&ends).await.unwrap(), Vec::<Uuid>::new());
    assert_eq!((stored(world, &held).await, counted(world).await), (1, 2));
    let others = [
        Finish { state: RunState::Failed, ..ends[0].clone() },
        // of another execution
        Finish { attempt: 2, ..ends[0].clone() },
    ];
    assert_eq!(world.store.finish_runs_again(&others).await.unwrap(), [ended.run.id; 2]);
    assert_eq!(world.claim().await.len(), 1);
    assert_eq!(world.store.finish_runs_again(&ends).await.unwrap(), [back.run.id]);
}

async fn usage_of_a_run_that_goes_on_is_kept_until_its_transcript_is_read(world: &StoreHarness) {
    let run = started(world).await;
    let id = run.run.id;
    let ask = question(world, &run, "c1");
    let waits = parked(world, &run, &[(ask.clone(), None)], &[]);
    let waits = Finish { usage: ANSWER, entries: vec![answered(world, 0)], ..waits };
    assert_eq!(world.store.finish_runs(&[waits]).await.unwrap(), Vec::<Uuid>::new());
    let approve = answer(ApprovalChoice::Approve, &ask, "token:t");
    world.store.decide_approval(&Scope::Every, ask.id, &approve).await.unwrap();
    let transcript_of =
        |run: &StartedRun| LeasedTranscript::new(world.store.clone(), run.lease, &run.run, run.is_first);
    let run = go_on(world, id).await;
    // handed back before anything was read
    let back = Finish { usage: transcript_of(&run).usage(), ..again(&run, world.now(), false) };
    assert_eq!(world.store.finish_runs(&[back]).await.unwrap(), Vec::<Uuid>::new());
    assert_eq!((world.get_run(id).await.usage, counted(world).await), (ANSWER, 1));
    let run = go_on(world, id).await;
    let transcript = transcript_of(&run);
    transcript.load().await.unwrap();
    let usage = transcript.usage();
    let end = Finish { usage, is_transcript_settled: true, ..end_of(&run, RunState::Succeeded) };
    assert_eq!(world.store.finish_runs(&[end]).await.unwrap(), Vec::<Uuid>::new());
    assert_eq!((world.get_run(id).await.usage, counted(world).await), (ANSWER, 1), "nothing is counted twice");
}

/// Each is sent once its statement was prepared on its connection.
#[tokio::test]
async fn end_from_which_nothing_follows_is_one_request() {
    let mut world = StoreHarness::postgres().await;
    world.store.close().await;
    let gate = Gate::before(&world.url()).await;
    gate.open().await;
    world.store = open_postgres(&gate.url(&world.url()), &world.clock).await;
    let mut requests = [Vec::new(), Vec::new()];
    for _ in 0..4 {
        let (plain, answer) = (started(&world).await, started(&world).await);
        let ends = [end_of(&plain, RunState::Succeeded), answers(&world, &answer)];
        for (end, requests) in ends.into_iter().zip(&mut requests) {
            let before = gate.requests();
            assert_eq!(world.store.finish_runs(&[end]).await.unwrap(), Vec::<Uuid>::new());
            requests.push(gate.requests() - before);
        }
    }
    assert_eq!(requests.each_ref().map(|requests| requests.iter().min()), [Some(&1), Some(&1)], "{requests:?}");
    world.store.close().await;
}

/// A row of the queue that nobody else may lock, for as long as a case holds it.
async fn hold_row(world: &StoreHarness, run: &StartedRun) {
    world.plant("begin").await;
    world.plant(&format!("select 1 from queue where run_id = '{}' for update", run.run.id)).await;
}

/// Writes an end; a lock is waited for as long as that takes.
async fn finish(store: Store, end: Finish) -> Vec<Uuid> {
    loop {
        match store.finish_runs(std::slice::from_ref(&end)).await {
            Err(StoreError::TimedOut(_) | StoreError::Unavailable(_)) => {}
            ended => return ended.expect("an end"),
        }
    }
}

/// Returns once so many statements wait for a lock.
async fn until_waiting(watcher: &mut PgConnection, statements: i64) {
    let waiting = "select count(distinct l.pid) from pg_locks l join pg_stat_activity a on a.pid = l.pid
                    where not l.granted and a.datname = current_database()";
    let began = Instant::now();
    while sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut *watcher).await.unwrap() < statements {
        assert!(began.elapsed() < PATIENCE, "nobody waits for the lock");
        pause(Duration::from_millis(2)).await;
    }
}

/// The statement that ends the first run has begun before, so it sees nothing of the second.
#[tokio::test]
async fn run_that_is_parked_while_the_one_before_it_ends_gets_its_slot() {
    let world = StoreHarness::postgres().await;
    let mut watcher = PgConnection::connect(&world.url()).await.unwrap();
    let task = world.task(json!({"interval": "1h", "overlap": "queue_all"})).await;
    let first = world.started(&task).await;
    let second = world.run_now(&task).await;
    let claims = leases(&world.claim().await);
    hold_row(&world, &first).await;
    let ending = tokio::spawn(finish(world.store.clone(), answers(&world, &first)));
    until_waiting(&mut watcher, 1).await;
    let starts = world.store.start_runs(&claims, world.now() + LEASE).await.unwrap();
    assert_eq!(starts.blocked, [(second, OverlapOutcome::Behind)]);
    world.plant("rollback").await;
    assert_eq!(ending.await.unwrap(), Vec::<Uuid>::new());
    assert_eq!((stored(&world, &first).await, counted(&world).await), (1, 1));
    let next = world.start_all().await.started;
    assert_eq!(next.iter().map(|started| started.run.id).collect::<Vec<_>>(), [second]);
    watcher.close().await.unwrap();
    world.leave().await;
}

/// The append was broken off and is under way still, so the statement that writes the end does not count it: that has
/// begun before the append is stored.
#[tokio::test]
async fn append_that_is_stored_while_its_run_ends_is_counted() {
    let world = StoreHarness::postgres().await;
    let mut watcher = PgConnection::connect(&world.url()).await.unwrap();
    let run = started(&world).await;
    hold_row(&world, &run).await;
    let (store, lease, entry) = (world.store.clone(), run.lease, answered(&world, 0));
    let appending = tokio::spawn(async move { store.append("a", lease, &[entry]).await });
    until_waiting(&mut watcher, 1).await;
    let end = Finish { is_transcript_settled: false, entries: vec![], ..answers(&world, &run) };
    let ending = tokio::spawn(finish(world.store.clone(), end));
    until_waiting(&mut watcher, 2).await;
    world.plant("rollback").await;
    appending.await.unwrap().expect("it was first");
    assert_eq!(ending.await.unwrap(), Vec::<Uuid>::new());
    assert_eq!((stored(&world, &run).await, counted(&world).await), (1, 1));
    watcher.close().await.unwrap();
    world.leave().await;
}

/// The answer to a statement that is its own transaction is lost, then that to a commit, each with its connection.
#[tokio::test]
async fn end_whose_answer_is_lost_is_taken() {
    let mut world = StoreHarness::postgres().await;
    world.store.close().await;
    let proxy = Proxy::before(&world.url()).await;
    world.store = open_postgres(&proxy.url(&world.url()), &world.clock).await;
    let (finisher, stop) = (Finisher::new(world.store.clone()), CancellationToken::new());
    let writing = finisher.run(stop.clone());
    for (ended, is_told) in [(1, false), (2, true)] {
        let run = started(&world).await;
        let deliveries = if is_told { vec![message(run.run.id)] } else { vec![] };
        let end = Finish { attempt: run.run.attempt, deliveries, ..answers(&world, &run) };
        match is_told {
            true => proxy.lose_commits(1),
            false => proxy.lose_statements(1),
        }
        let finisher = finisher.clone();
        let ending = tokio::spawn(async move { finisher.finish(Box::new(end)).await });
        let began = Instant::now();
        while world.count("select count(*) from runs where state = 'succeeded'").await < ended {
            assert!(began.elapsed() < PATIENCE, "it is not written");
            pause(Duration::from_millis(2)).await;
        }
        proxy.lose_commits(0);
        proxy.lose_statements(0);
        assert!(ending.await.unwrap(), "it is on the record");
    }
    assert_eq!(counted(&world).await, 2);
    stop.cancel();
    writing.await.unwrap();
    world.leave().await;
}
