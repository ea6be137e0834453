//! Usage: each entry is counted once, however often its run goes on, and read as sums by each key.

use chrono::{NaiveDate, TimeDelta};
use reveille::base::id::Scope;
use reveille::domain::budget::day_of;
use reveille::domain::run::transcript::{ModelCall, ModelTokens, TranscriptEntry, TranscriptMessage};
use reveille::domain::run::{RunState, ToolAttribution, ToolRecord, ToolWarning, Usage};
use reveille::store::{Finish, Park, RunAccount, StartedRun, UsageFilter, UsageGroup, UsageOrder, UsageSum};
use serde_json::json;
use uuid::Uuid;

use super::world::{LEASE, StoreHarness, again, end_of, leases, only};

on_both!(
    usage_of_a_run_is_counted_by_its_end_and_read_by_each_key,
    entry_is_counted_once_however_often_its_run_goes_on,
    entries_of_a_process_that_died_are_counted_by_who_ends_the_run,
    end_whose_lease_is_lost_counts_nothing,
    usage_of_runs_that_end_at_once_on_two_instances_adds_up,
    pages_of_usage_go_on_behind_their_last_key,
    largest_sums_of_usage_come_first_and_their_pages_go_on_behind_as_many,
    days_of_usage_are_forgotten_after_their_time,
    tools_that_are_not_there_count_as_one,
    account_of_a_run_has_its_time_and_its_calls_in_order,
);

/// Usage of one answer of [`answered`].
const ANSWER: Usage = Usage { turns: 1, tool_calls: 1, input_tokens: 200, output_tokens: 50, cost_micros: 250 };

fn answered(world: &StoreHarness, seq: i64, model: &str) -> TranscriptEntry {
    let message = TranscriptMessage::Assistant {
        text: Some("hi".into()),
        tool_calls: vec![],
        provider_message: None,
        finish: None,
    };
    let tokens = ModelTokens { input: 200, output: 50, cache_read: 30, cache_write: 20, reasoning: 10 };
    TranscriptEntry {
        usage: ANSWER,
        duration_ms: Some(400),
        model_call: Some(ModelCall { model: model.into(), tokens }),
        ..TranscriptEntry::new(seq, seq + 1, world.now(), message)
    }
}

fn called(world: &StoreHarness, seq: i64, tool: (&str, bool), success: bool) -> TranscriptEntry {
    let message = TranscriptMessage::Tool {
        call_id: format!("c{seq}"),
        name: tool.0.into(),
        content: "cut".into(),
        is_error: !success,
        reasons: vec![],
        fetched_at: None,
        notices: vec![],
    };
    let attribution = ToolAttribution { agent: Some("orchestrator".into()), step: None, turn: seq };
    let record = ToolRecord::new(tool, &json!({ "n": seq }), 70, (success, 900), attribution);
    TranscriptEntry {
        message,
        usage: Usage::default(),
        duration_ms: Some(70),
        model_call: None,
        tool_record: Some(record),
        ..answered(world, seq, "")
    }
}

async fn started(world: &StoreHarness, tenant: &str) -> StartedRun {
    let task = world.task_with(tenant, json!({"interval": "1h", "overlap": "allow"}), json!({})).await;
    world.started(&task).await
}

fn used(run: &StartedRun) -> Finish {
    Finish { usage: ANSWER, is_transcript_settled: true, ..end_of(run, RunState::Succeeded) }
}

fn by(world: &StoreHarness, by: UsageGroup) -> UsageFilter {
    let today = day_of(world.now());
    UsageFilter {
        by,
        from: today,
        until: today + TimeDelta::days(1),
        task_id: None,
        order: UsageOrder::Key,
        after: None,
        skip: 0,
        limit: 100,
    }
}

async fn sums(world: &StoreHarness, scope: &Scope, group: UsageGroup) -> Vec<UsageSum> {
    world.store.usage_sums(scope, &by(world, group)).await.unwrap()
}

/// So many answers, and calls of tools of which so many have failed.
fn sum(key: impl ToString, answers: i64, calls: i64, failures: i64) -> UsageSum {
    UsageSum {
        key: key.to_string(),
        turns: answers,
        model_ms: answers * 400,
        input_tokens: answers * 200,
        output_tokens: answers * 50,
        cache_read_tokens: answers * 30,
        cache_write_tokens: answers * 20,
        reasoning_tokens: answers * 10,
        cost_micros: answers * 250,
        tool_calls: calls,
        tool_failures: failures,
        tool_ms: calls * 70,
        result_chars: calls * 900,
    }
}

async fn usage_of_a_run_is_counted_by_its_end_and_read_by_each_key(world: &StoreHarness) {
    let (ours, theirs) = (started(world, "a").await, started(world, "b").await);
    let entries = [
        answered(world, 0, "main"),
        called(world, 1, ("look", true), true),
        called(world, 2, ("look", true), false),
        answered(world, 3, "spare"),
    ];
    world.store.append("a", ours.lease, &entries[..3]).await.unwrap();
    assert_eq!(sums(world, &Scope::Every, UsageGroup::Day).await, [], "it is under way");
    let end = Finish { entries: entries[3..].to_vec(), ..used(&ours) };
    let other = Finish { entries: vec![answered(world, 0, "main")], ..used(&theirs) };
    world.store.finish_runs(&[end, other]).await.unwrap();
    let today = day_of(world.now());
    let task = |run: &StartedRun| run.run.task_id.unwrap();
    assert_eq!(sums(world, &only("a"), UsageGroup::Day).await, [sum(today, 2, 2, 1)]);
    assert_eq!(sums(world, &Scope::Every, UsageGroup::Day).await, [sum(today, 3, 2, 1)]);
    assert_eq!(sums(world, &only("a"), UsageGroup::Model).await, [sum("main", 1, 0, 0), sum("spare", 1, 0, 0)]);
    assert_eq!(sums(world, &Scope::Every, UsageGroup::Model).await, [sum("main", 2, 0, 0), sum("spare", 1, 0, 0)]);
    assert_eq!(sums(world, &only("a"), UsageGroup::Tool).await, [sum("look", 0, 2, 1)]);
    assert_eq!(sums(world, &only("b"), UsageGroup::Tool).await, []);
    assert_eq!(sums(world, &only("b"), UsageGroup::Task).await, [sum(task(&theirs), 1, 0, 0)]);
    assert_eq!(sums(world, &Scope::Every, UsageGroup::Tenant).await, [sum("a", 2, 2, 1), sum("b", 1, 0, 0)]);
    let of_task = UsageFilter { task_id: Some(task(&theirs)), ..by(world, UsageGroup::Tenant) };
    assert_eq!(world.store.usage_sums(&Scope::Every, &of_task).await.unwrap(), [sum("b", 1, 0, 0)]);
    let before = UsageFilter { from: today - TimeDelta::days(9), until: today, ..by(world, UsageGroup::Day) };
    assert_eq!(world.store.usage_sums(&Scope::Every, &before).await.unwrap(), []);
}

async fn entry_is_counted_once_however_often_its_run_goes_on(world: &StoreHarness) {
    let mut run = started(world, "a").await;
    for seq in 0..3 {
        let entry = answered(world, seq, "main");
        for _ in 0..2 {
            world.store.append("a", run.lease, std::slice::from_ref(&entry)).await.unwrap();
        }
        let end = Finish { usage: ANSWER, ..again(&run, world.now(), true) };
        world.store.finish_runs(&[end]).await.unwrap();
        assert_eq!(sums(world, &only("a"), UsageGroup::Model).await, [sum("main", seq + 1, 0, 0)]);
        let starts = world.store.start_runs(&leases(&world.claim().await), world.now() + LEASE).await.unwrap();
        run = starts.started.into_iter().next().expect("it goes on");
    }
    let park = Some(Park::Completion { until: world.now() + TimeDelta::hours(1) });
    let waits = Finish { usage: ANSWER, park, ..end_of(&run, RunState::WaitingForCompletion) };
    world.store.finish_runs(&[waits]).await.unwrap();
    assert_eq!(sums(world, &only("a"), UsageGroup::Model).await, [sum("main", 3, 0, 0)]);
    world.store.cancel_run(&Scope::Every, run.run.id, "enough").await.unwrap();
    assert_eq!(sums(world, &only("a"), UsageGroup::Model).await, [sum("main", 3, 0, 0)]);
}

async fn entries_of_a_process_that_died_are_counted_by_who_ends_the_run(world: &StoreHarness) {
    let run = started(world, "a").await;
    world.store.append("a", run.lease, &[answered(world, 0, "main")]).await.unwrap();
    world.pass(60);
    let now = world.now();
    let taken = world.store.take_over_expired(now, TimeDelta::seconds(10), now + LEASE_TIME, 9).await.unwrap();
    let end = Finish {
        usage: world.store.usage_of(run.run.id).await.unwrap(),
        crashed: true,
        ..Finish::of(taken[0].lease, run.run.task_id, RunState::Failed)
    };
    world.store.finish_runs(&[end]).await.unwrap();
    assert_eq!(sums(world, &only("a"), UsageGroup::Day).await, [sum(day_of(now), 1, 0, 0)]);
}

const LEASE_TIME: TimeDelta = TimeDelta::seconds(45);

async fn end_whose_lease_is_lost_counts_nothing(world: &StoreHarness) {
    let run = started(world, "a").await;
    world.store.append("a", run.lease, &[answered(world, 0, "main")]).await.unwrap();
    let stale = reveille::store::Lease { token: run.lease.token + 1, ..run.lease };
    let lost = Finish { lease: stale, ..used(&run) };
    assert_eq!(world.store.finish_runs(&[lost]).await.unwrap(), [run.run.id]);
    assert_eq!(sums(world, &Scope::Every, UsageGroup::Day).await, []);
    world.store.finish_runs(&[used(&run)]).await.unwrap();
    assert_eq!(sums(world, &Scope::Every, UsageGroup::Tenant).await, [sum("a", 1, 0, 0)]);
}

/// Every transaction writes rows of two tasks, given in another order each.
async fn usage_of_runs_that_end_at_once_on_two_instances_adds_up(world: &StoreHarness) {
    let allowing = || json!({"interval": "1h", "overlap": "allow"});
    let tasks = [world.task(allowing()).await, world.task(allowing()).await];
    let mut pairs = Vec::new();
    for _ in 0..10 {
        let mut pair = Vec::new();
        for task in &tasks {
            let run = world.started(task).await;
            world.store.append("a", run.lease, &[answered(world, 0, "main")]).await.unwrap();
            pair.push(used(&run));
        }
        pairs.push(pair);
    }
    let stores = [world.store.clone(), world.other_instance().await];
    let ends = pairs.into_iter().enumerate().map(|(n, mut pair)| {
        if n % 2 == 0 {
            pair.reverse();
        }
        let store = stores[n % 2].clone();
        tokio::spawn(async move { store.finish_runs(&pair).await.expect("ends") })
    });
    for end in ends.collect::<Vec<_>>() {
        assert_eq!(end.await.unwrap(), Vec::<Uuid>::new());
    }
    assert_eq!(sums(world, &only("a"), UsageGroup::Tenant).await, [sum("a", 20, 0, 0)]);
}

async fn largest_sums_of_usage_come_first_and_their_pages_go_on_behind_as_many(world: &StoreHarness) {
    let run = started(world, "a").await;
    let tools = ["a", "b", "b", "c", "c", "c"].iter().zip(0..);
    let calls = tools.map(|(tool, seq)| called(world, seq, (tool, true), true));
    let answers = [(9, "dear"), (10, "cheap"), (11, "dear")].map(|(seq, model)| answered(world, seq, model));
    let entries = calls.chain(answers).collect();
    world.store.finish_runs(&[Finish { entries, ..used(&run) }]).await.unwrap();
    let keys = async |group: UsageGroup, skip: i64| {
        let page = UsageFilter { order: UsageOrder::Largest, skip, limit: 2, ..by(world, group) };
        let sums = world.store.usage_sums(&only("a"), &page).await.unwrap();
        sums.into_iter().map(|sum| sum.key).collect::<Vec<_>>()
    };
    assert_eq!(keys(UsageGroup::Tool, 0).await, ["c", "b"]);
    assert_eq!(keys(UsageGroup::Tool, 2).await, ["a"]);
    assert_eq!(keys(UsageGroup::Model, 0).await, ["dear", "cheap"]);
    assert_eq!(keys(UsageGroup::Tenant, 0).await, ["a"]);
}

async fn pages_of_usage_go_on_behind_their_last_key(world: &StoreHarness) {
    let run = started(world, "a").await;
    let tools = ["e", "a", "d", "b", "c"];
    let entries = tools.iter().zip(0..).map(|(tool, seq)| called(world, seq, (tool, true), true));
    let entries = entries.chain([answered(world, 9, "main")]).collect();
    world.store.finish_runs(&[Finish { entries, ..used(&run) }]).await.unwrap();
    let mut seen: Vec<String> = Vec::new();
    loop {
        let page = UsageFilter { after: seen.last().cloned(), limit: 2, ..by(world, UsageGroup::Tool) };
        let page = world.store.usage_sums(&only("a"), &page).await.unwrap();
        assert!(page.len() <= 2);
        if page.is_empty() {
            break;
        }
        seen.extend(page.into_iter().map(|sum| sum.key));
    }
    assert_eq!(seen, ["a", "b", "c", "d", "e"]);
    for group in [UsageGroup::Day, UsageGroup::Task, UsageGroup::Tenant] {
        let all = sums(world, &only("a"), group).await;
        let behind = UsageFilter { after: Some(all[0].key.clone()), ..by(world, group) };
        assert_eq!((all.len(), world.store.usage_sums(&only("a"), &behind).await.unwrap()), (1, vec![]), "{group:?}");
    }
}

async fn days_of_usage_are_forgotten_after_their_time(world: &StoreHarness) {
    let run = started(world, "a").await;
    world.store.finish_runs(&[Finish { entries: vec![answered(world, 0, "main")], ..used(&run) }]).await.unwrap();
    let today: NaiveDate = day_of(world.now());
    assert_eq!(world.store.forget_usage_days(today, 10).await.unwrap(), 0);
    assert_eq!(world.store.forget_usage_days(today + TimeDelta::days(1), 10).await.unwrap(), 1);
    assert_eq!(world.count("select count(*) from usage_days").await, 0);
}

async fn tools_that_are_not_there_count_as_one(world: &StoreHarness) {
    let run = started(world, "a").await;
    let made_up = (0..3).map(|n| called(world, n, (&format!("tool-{n}"), false), false));
    let entries = made_up.chain([answered(world, 3, "main")]).collect();
    world.store.finish_runs(&[Finish { entries, ..used(&run) }]).await.unwrap();
    assert_eq!(sums(world, &only("a"), UsageGroup::Tool).await, [sum("unknown", 0, 3, 3)]);
}

async fn account_of_a_run_has_its_time_and_its_calls_in_order(world: &StoreHarness) {
    let run = started(world, "a").await;
    let mut calls = [called(world, 1, ("look", true), true), called(world, 2, ("send", true), false)];
    calls[0].tool_record.iter_mut().for_each(|record| record.warn("the tool is deprecated"));
    world.store.append("a", run.lease, &[answered(world, 0, "main"), calls[0].clone()]).await.unwrap();
    let read = world.store.checkpoint("a", run.run.id, 1, 9).await.unwrap();
    assert_eq!(read, calls[..1], "a run that goes on has it, too");
    let found = TranscriptMessage::verdict(vec!["U-0001: not certain".into()], vec!["R-0001: it has a secret".into()]);
    let verdict = TranscriptEntry { seq: 90, message: found, tool_record: None, ..calls[0].clone() };
    let ended = calls[1..].iter().chain([&verdict]).cloned().collect();
    let end = Finish { entries: ended, execution_ms: 70, ..used(&run) };
    world.store.finish_runs(&[end]).await.unwrap();
    let warning = |tool: &str, message: &str| ToolWarning { tool: tool.into(), message: message.into() };
    let records: Vec<ToolRecord> = calls.into_iter().filter_map(|call| call.tool_record).collect();
    let account = RunAccount {
        execution_ms: 70,
        tool_records: records,
        tool_warnings: vec![
            warning("look", "the tool is deprecated"),
            warning("U-0001", "not certain"),
            warning("R-0001", "it has a secret"),
        ],
    };
    assert_eq!(world.store.run_account(&only("a"), run.run.id).await.unwrap(), account);
    assert_eq!(world.store.run_account(&only("b"), run.run.id).await.unwrap(), RunAccount::default());
    world.plant("update turns set tool_record = '{\"newer\": 1}' where seq = 1").await;
    let rest = world.store.run_account(&only("a"), run.run.id).await.unwrap();
    assert_eq!(rest.tool_records, account.tool_records[1..], "one that can't be read hides no other");
}
