//! Transcripts: append only, in order, fenced by the lease.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use futures::future::join_all;
use reveille::agent::checkpoint::Checkpoint;
use reveille::base::clock::{Clock, pause};
use reveille::base::id::Scope;
use reveille::domain::run::outcome::RunError;
use reveille::domain::run::transcript::{
    ModelCall, ModelTokens, ProviderMessage, ToolCall, TranscriptEntry, TranscriptMessage,
};
use reveille::domain::run::{ResultNotice, ResultNoticeKind, RunFault, RunFinish, RunState, Usage};
use reveille::executor::leased_transcript::LeasedTranscript;
use reveille::store::{Finish, Lease, PAGE_BYTES, StartedRun, StoreError};
use serde_json::json;
use uuid::Uuid;

use super::world::{START, StoreHarness, again, end_of, open_postgres};
use crate::support::computing::{HeldThreads, until_waiting};
use crate::support::gate::Gate;

on_both!(
    entries_read_back_as_they_were_appended,
    checkpoint_that_is_long_is_read_in_the_turn_of_its_tenant,
    provider_s_message_is_kept_byte_for_byte_for_the_run_alone,
    page_of_a_transcript_ends_at_a_bound_and_goes_on_behind_it,
    appending_again_after_a_lost_answer_changes_nothing,
    appending_leaves_the_lease_to_heartbeats,
    appends_of_many_runs_go_together_and_one_without_its_lease_fails_alone,
    entry_that_the_database_refuses_fails_alone,
    without_the_lease_nothing_is_appended,
    entries_that_waited_come_with_the_end_and_with_no_other,
    usage_of_turns_adds_up,
    call_of_a_model_is_kept_with_its_message,
    row_of_format_1_is_read_without_the_call_of_its_model,
    row_of_an_earlier_format_is_read_with_its_name_of_arguments,
    row_of_an_earlier_format_is_read_with_its_notices_by_their_texts_and_without_facts,
    unknown_format_is_not_guessed_at,
    row_of_a_known_format_with_an_unknown_message_or_agent_is_corrupt,
);

fn entry(seq: i64, message: TranscriptMessage) -> TranscriptEntry {
    let usage = Usage { turns: 1, tool_calls: 2, input_tokens: seq, output_tokens: 3, cost_micros: 4 };
    let at = START + TimeDelta::milliseconds(seq);
    TranscriptEntry { usage, duration_ms: Some(7), ..TranscriptEntry::new(seq, seq, at, message) }
}

fn conversation() -> Vec<TranscriptEntry> {
    let call = ToolCall::new("call_1", "current_time", json!({"zone": "Asia/Tokyo"}));
    let told = TranscriptMessage::Tool {
        call_id: "call_1".into(),
        name: "current_time".into(),
        notices: vec![
            ResultNotice { kind: ResultNoticeKind::Answered, text: "The user answered: {\"hour\":8}\n\n".into() },
            ResultNotice::other("Steps 🕗\n\n"),
        ],
        content: "🕗".into(),
        is_error: false,
        reasons: vec!["why 🕗".into()],
        fetched_at: None,
    };
    let mut instructions = TranscriptMessage::system("You are kind.\n");
    instructions.add_facts("Noted 🕗\n".into());
    vec![
        entry(0, instructions),
        entry(1, TranscriptMessage::user("[Scheduled Task] say hello")),
        entry(
            2,
            TranscriptMessage::Assistant {
                text: None,
                tool_calls: vec![call],
                provider_message: None,
                finish: Some(RunFinish::MaxTurns),
            },
        ),
        TranscriptEntry { duration_ms: None, usage: Usage::default(), ..entry(3, told) },
    ]
}

async fn entries_read_back_as_they_were_appended(world: &StoreHarness) {
    let started = world.started(&world.task(json!({"interval": "1h"})).await).await;
    let entries = conversation();
    world.store.append("a", started.lease, &entries[..1]).await.unwrap();
    world.store.append("a", started.lease, &entries[1..]).await.unwrap();
    assert_eq!(world.store.transcript(&Scope::Every, started.run.id, 0, 100).await.unwrap(), entries);
    assert_eq!(world.store.transcript(&Scope::Every, started.run.id, 2, 1).await.unwrap(), entries[2..3]);
    assert_eq!(world.store.transcript(&Scope::Every, started.run.id, 4, 9).await.unwrap(), []);
    assert_eq!(world.store.transcript(&Scope::Every, Uuid::nil(), 0, 9).await.unwrap(), []);
}

async fn checkpoint_that_is_long_is_read_in_the_turn_of_its_tenant(world: &StoreHarness) {
    let started = world.started(&world.task(json!({"interval": "1h"})).await).await;
    let entries = [entry(0, TranscriptMessage::user("hello")), entry(1, TranscriptMessage::user("x".repeat(20_000)))];
    world.store.append("a", started.lease, &entries).await.unwrap();
    let computing = world.store.computing().clone();
    let threads = HeldThreads::all_of(&computing, "a").await;
    assert_eq!(world.store.checkpoint("a", started.run.id, 0, 1).await.unwrap(), entries[..1], "it is short");
    let mut reading = pin!(world.store.checkpoint("a", started.run.id, 0, 9));
    tokio::select! {
        read = &mut reading => panic!("it was read where it is asked for: {read:?}"),
        () = until_waiting(&computing, 1) => {}
    }
    drop(threads);
    assert_eq!(reading.await.unwrap(), entries);
}

async fn provider_s_message_is_kept_byte_for_byte_for_the_run_alone(world: &StoreHarness) {
    let started = world.started(&world.task(json!({"interval": "1h"})).await).await;
    // order, spaces, doubled fields, escapes, a NUL, a lone surrogate and numbers that no parser would give back
    let raw = r#"{ "z":1,"a":"\u00e9\u0000\\u0000\ud800 🕗","a":"2", "n":1.0e+02, "big":12345678901234567890123 }"#;
    let kept = |address| ProviderMessage { wire: "openai".into(), model: "m".into(), address, raw: raw.into() };
    let said = |provider_message| TranscriptMessage::Assistant {
        text: Some("hi".into()),
        tool_calls: vec![],
        provider_message,
        finish: None,
    };
    let provider_message = Some(Arc::new(kept(Some("0123456789abcdef".to_owned()))));
    let entries = [entry(0, said(provider_message)), entry(1, said(None))];
    world.store.append("a", started.lease, &entries).await.unwrap();
    assert_eq!(world.store.checkpoint("a", started.run.id, 0, 9).await.unwrap(), entries);
    let shown = [entry(0, said(None)), entry(1, said(None))];
    assert_eq!(world.store.transcript(&Scope::Every, started.run.id, 0, 9).await.unwrap(), shown);
    // as an earlier release has stored it, which noted no address
    let earlier = kept(None);
    let stored = json!({ "wire": earlier.wire, "model": earlier.model, "raw": earlier.raw }).to_string();
    world.plant(&format!("update turns set provider_message = '{stored}' where seq = 0")).await;
    let read = world.store.checkpoint("a", started.run.id, 0, 9).await.unwrap();
    assert_eq!(read[0], entry(0, said(Some(Arc::new(earlier)))));
    world.plant("update turns set provider_message = '{' where seq = 0").await;
    let unread = world.store.checkpoint("a", started.run.id, 0, 9).await;
    assert!(matches!(&unread, Err(StoreError::Corrupt(_))), "{unread:?}");
}

async fn call_of_a_model_is_kept_with_its_message(world: &StoreHarness) {
    let started = world.started(&world.task(json!({"interval": "1h"})).await).await;
    let entries = [entry(0, TranscriptMessage::user("hello")), called(1), called(2)];
    world.store.append("a", started.lease, &entries[..2]).await.unwrap();
    let end = Finish { entries: entries[2..].to_vec(), ..end_of(&started, RunState::Succeeded) };
    world.store.finish_runs(&[end]).await.unwrap();
    assert_eq!(world.store.transcript(&Scope::Every, started.run.id, 0, 9).await.unwrap(), entries);
    assert_eq!(world.store.checkpoint("a", started.run.id, 0, 9).await.unwrap(), entries);
}

/// An answer whose model has counted every kind of token.
fn called(seq: i64) -> TranscriptEntry {
    let said = TranscriptMessage::Assistant {
        text: Some("hi".into()),
        tool_calls: vec![],
        provider_message: None,
        finish: None,
    };
    let tokens = ModelTokens { input: seq, output: 3, cache_read: 5, cache_write: 7, reasoning: 11 };
    TranscriptEntry { model_call: Some(ModelCall { model: "main".into(), tokens }), ..entry(seq, said) }
}

async fn row_of_format_1_is_read_without_the_call_of_its_model(world: &StoreHarness) {
    let started = world.started(&world.task(json!({"interval": "1h"})).await).await;
    world.store.append("a", started.lease, &[called(0), called(1)]).await.unwrap();
    world.plant("update turns set format = 1, model = null, cache_read_tokens = 0 where seq = 0").await;
    let read = world.store.checkpoint("a", started.run.id, 0, 9).await.unwrap();
    assert_eq!(read, [TranscriptEntry { model_call: None, ..called(0) }, called(1)]);
}

async fn row_of_an_earlier_format_is_read_with_its_name_of_arguments(world: &StoreHarness) {
    let started = world.started(&world.task(json!({"interval": "1h"})).await).await;
    world.store.append("a", started.lease, &conversation()).await.unwrap();
    let call = json!({ "id": "call_1", "name": "current_time", "arguments": { "zone": "Asia/Tokyo" } });
    let body = json!({ "role": "assistant", "tool_calls": [call], "finish": "max_turns" });
    for format in 1..=3 {
        world.plant(&format!("update turns set format = {format}, body = '{body}' where seq = 2")).await;
        let read = world.store.transcript(&Scope::Every, started.run.id, 0, 9).await.unwrap();
        assert_eq!(read, conversation(), "format {format}");
    }
}

async fn row_of_an_earlier_format_is_read_with_its_notices_by_their_texts_and_without_facts(world: &StoreHarness) {
    let started = world.started(&world.task(json!({"interval": "1h"})).await).await;
    let mut expected = conversation();
    world.store.append("a", started.lease, &expected).await.unwrap();
    let TranscriptMessage::Tool { notices, .. } = &expected[3].message else { panic!("no result") };
    let mut result = serde_json::to_value(&expected[3].message).unwrap();
    let fields = result.as_object_mut().unwrap();
    fields.remove("notices").expect("they are stored by their kinds");
    fields.insert("notice".to_owned(), json!(ResultNotice::joined(notices)));
    let text = "You are kind.\nNoted 🕗\n";
    let instructions = json!({ "role": "system", "text": text });
    expected[0].message = TranscriptMessage::System { text: text.into(), facts: None };
    for format in 1..=3 {
        for (seq, body) in [(0, &instructions), (3, &result)] {
            world.plant(&format!("update turns set format = {format}, body = '{body}' where seq = {seq}")).await;
        }
        let read = world.store.transcript(&Scope::Every, started.run.id, 0, 9).await.unwrap();
        assert_eq!(read, expected, "format {format}");
    }
}

async fn page_of_a_transcript_ends_at_a_bound_and_goes_on_behind_it(world: &StoreHarness) {
    let started = world.started(&world.task(json!({"interval": "1h"})).await).await;
    let large = "x".repeat(PAGE_BYTES as usize * 2 / 3);
    let entries: Vec<TranscriptEntry> = (0..5).map(|seq| entry(seq, TranscriptMessage::user(&large))).collect();
    for entry in &entries {
        world.store.append("a", started.lease, std::slice::from_ref(entry)).await.unwrap();
    }
    let (mut read, mut pages) = (Vec::new(), Vec::new());
    loop {
        let from = read.len() as i64;
        let page = world.store.transcript_page(&Scope::Every, started.run.id, from, 100).await.unwrap();
        pages.push(page.rows.len());
        read.extend(page.rows);
        if !page.is_cut {
            break;
        }
    }
    assert_eq!(pages, [2, 2, 1], "a page ends with the row that goes beyond its bound");
    assert_eq!(read, entries);
    assert_eq!(
        world.store.transcript(&Scope::Every, started.run.id, 0, 100).await.unwrap(),
        entries,
        "whole for the engine"
    );
}

async fn appending_again_after_a_lost_answer_changes_nothing(world: &StoreHarness) {
    let started = world.started(&world.task(json!({"interval": "1h"})).await).await;
    let entries = conversation();
    for known in [2, 4, 4] {
        world.store.append("a", started.lease, &entries[..known]).await.unwrap();
    }
    assert_eq!(world.store.transcript(&Scope::Every, started.run.id, 0, 100).await.unwrap(), entries);
}

async fn appending_leaves_the_lease_to_heartbeats(world: &StoreHarness) {
    let started = world.started(&world.task(json!({"interval": "1h"})).await).await;
    world.store.append("a", started.lease, &conversation()).await.unwrap();
    let stranded = async |seconds: i64| {
        let now = started.lease_until + TimeDelta::seconds(seconds);
        world.store.take_over_expired(now, TimeDelta::seconds(10), now, 9).await.unwrap().len()
    };
    assert_eq!((stranded(0).await, stranded(1).await), (0, 1));
}

/// Runs that are started, each of a task of its own.
async fn many_started(world: &StoreHarness, count: usize) -> Vec<StartedRun> {
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        all.push(world.started(&world.task(json!({"interval": "1h"})).await).await);
    }
    all
}

async fn appends_of_many_runs_go_together_and_one_without_its_lease_fails_alone(world: &StoreHarness) {
    let all = many_started(world, 5).await;
    let entries = conversation();
    let stale = Lease { token: all[0].lease.token + 1000, ..all[0].lease };
    // the same entries twice at once, as after a lost answer; and an old holder beside the new one
    let leases = all.iter().map(|started| started.lease).chain([all[1].lease, stale]);
    let appends = leases.map(|lease| world.store.append("a", lease, &entries));
    let written = join_all(appends).await;
    assert!(written[..6].iter().all(Result::is_ok), "{written:?}");
    assert!(matches!(written[6], Err(StoreError::LeaseLost)), "{written:?}");
    for started in &all {
        assert_eq!(world.store.transcript(&Scope::Every, started.run.id, 0, 100).await.unwrap(), entries);
    }
}

/// Each is sent once its statement was prepared on its connection, and whatever else goes to the database meanwhile.
#[tokio::test]
async fn append_is_one_request_however_many_entries_it_has() {
    let mut world = StoreHarness::postgres().await;
    world.store.close().await;
    let gate = Gate::before(&world.url()).await;
    gate.open().await;
    world.store = open_postgres(&gate.url(&world.url()), &world.clock).await;
    let all = many_started(&world, 4).await;
    let entries = conversation();
    let (mut small, mut large) = (Vec::new(), Vec::new());
    for started in &all {
        for (entries, counted) in [(&entries[..1], &mut small), (&entries[1..], &mut large)] {
            let before = gate.requests();
            world.store.append("a", started.lease, entries).await.unwrap();
            counted.push(gate.requests() - before);
        }
    }
    assert_eq!((small.iter().min(), large.iter().min()), (Some(&1), Some(&1)), "{small:?} {large:?}");
    world.store.close().await;
}

/// A lock keeps the first statement from its end. Those that are asked for meanwhile are one or two more, as one of the
/// waiting lanes takes them along.
#[tokio::test]
async fn appends_that_wait_while_another_is_written_share_a_transaction() {
    const WAITING: usize = 20;
    const PATIENCE: Duration = Duration::from_secs(60);
    let world = StoreHarness::postgres().await;
    let all = many_started(&world, WAITING + 1).await;
    let entries = conversation();
    world.plant("begin").await;
    world.plant("lock table turns in exclusive mode").await;
    let (store, lease, first) = (world.store.clone(), all[0].lease, entries.clone());
    let under_way = tokio::spawn(async move { store.append("a", lease, &first).await });
    let blocked = "select count(*) from pg_locks where not granted and relation = 'turns'::regclass
                      and database = (select oid from pg_database where datname = current_database())";
    let began = Instant::now();
    while world.count(blocked).await == 0 {
        assert!(began.elapsed() < PATIENCE, "the first append is not under way");
        pause(Duration::from_millis(2)).await;
    }
    let waiting = all[1..].iter().map(|started| world.store.append("a", started.lease, &entries));
    let mut waiting = Box::pin(join_all(waiting));
    assert!(futures::poll!(&mut waiting).is_pending(), "all of them are asked for");
    world.plant("rollback").await;
    under_way.await.expect("an answer").expect("appended");
    let written = waiting.await;
    assert!(written.iter().all(Result::is_ok), "{written:?}");
    assert_eq!(world.count("select count(*) from turns").await, ((WAITING + 1) * entries.len()) as i64);
    let transactions = world.count("select count(distinct cast(xmin as text)) from turns").await;
    assert!((2..=3).contains(&transactions), "{transactions} transactions for {} appends", WAITING + 1);
    world.leave().await;
}

async fn entry_that_the_database_refuses_fails_alone(world: &StoreHarness) {
    let all = many_started(world, 3).await;
    world.plant("create unique index planted on turns (run_id) where turn = -7").await;
    let planted = |seq| TranscriptEntry { turn: -7, ..entry(seq, TranscriptMessage::user("refused")) };
    let entries = [vec![entry(0, TranscriptMessage::user("a"))], vec![planted(0), planted(1)], conversation()];
    let appends = all.iter().zip(&entries).map(|(started, entries)| world.store.append("a", started.lease, entries));
    let written = join_all(appends).await;
    assert!(matches!(&written[..], [Ok(()), Err(StoreError::Conflict(_)), Ok(())]), "{written:?}");
    for (started, stored) in all.iter().zip([1, 0, 4]) {
        assert_eq!(world.store.transcript(&Scope::Every, started.run.id, 0, 100).await.unwrap().len(), stored);
    }
}

async fn without_the_lease_nothing_is_appended(world: &StoreHarness) {
    let started = world.started(&world.task(json!({"interval": "1h"})).await).await;
    let stale = Lease { token: started.lease.token + 1, ..started.lease };
    for lease in [stale, Lease { run_id: Uuid::nil(), ..started.lease }] {
        let refused = world.store.append("a", lease, &conversation()).await;
        assert!(matches!(refused, Err(StoreError::LeaseLost)), "{refused:?}");
    }
    world.succeed(&started).await;
    let refused = world.store.append("a", started.lease, &conversation()).await;
    assert!(matches!(refused, Err(StoreError::LeaseLost)), "{refused:?}");
    assert_eq!(world.store.transcript(&Scope::Every, started.run.id, 0, 9).await.unwrap(), []);
}

async fn entries_that_waited_come_with_the_end_and_with_no_other(world: &StoreHarness) {
    let all = many_started(world, 4).await;
    let entries = conversation();
    world.store.append("a", all[1].lease, &entries[..2]).await.unwrap();
    let ends = [
        Finish { entries: entries.clone(), ..end_of(&all[0], RunState::Succeeded) },
        // two of them are stored: nobody knew whether they were
        Finish { entries: entries.clone(), ..again(&all[1], START, false) },
        end_of(&all[2], RunState::Failed),
        Finish { entries: entries.clone(), lease: stale(&all[3]), ..end_of(&all[3], RunState::Succeeded) },
    ];
    assert_eq!(world.store.finish_runs(&ends).await.unwrap(), [all[3].run.id]);
    for (started, stored) in all.iter().zip([&entries[..], &entries[..], &[], &[]]) {
        assert_eq!(world.store.transcript(&Scope::Every, started.run.id, 0, 100).await.unwrap(), stored);
    }
    world.succeed(&all[3]).await;
}

fn stale(started: &StartedRun) -> Lease {
    Lease { token: started.lease.token + 1000, ..started.lease }
}

async fn usage_of_turns_adds_up(world: &StoreHarness) {
    let started = world.started(&world.task(json!({"interval": "1h"})).await).await;
    assert_eq!(world.store.usage_of(started.run.id).await.unwrap(), Usage::default());
    world.store.append("a", started.lease, &conversation()).await.unwrap();
    let sum = Usage { turns: 3, tool_calls: 6, input_tokens: 3, output_tokens: 9, cost_micros: 12 };
    assert_eq!(world.store.usage_of(started.run.id).await.unwrap(), sum);
}

async fn unknown_format_is_not_guessed_at(world: &StoreHarness) {
    let started = world.started(&world.task(json!({"interval": "1h"})).await).await;
    world.store.append("a", started.lease, &conversation()).await.unwrap();
    let body = serde_json::to_string(&conversation()[1].message).unwrap();
    let newer = [
        (99, body.clone(), "null"),
        // a message and an agent of which this release knows nothing
        (5, r#"{"role":"novel","x":1}"#.to_owned(), r#"'{"called":"novel"}'"#),
    ];
    for (format, body, delegation) in newer {
        let planted = format!("format = {format}, body = '{body}', delegation = {delegation}");
        world.plant(&format!("update turns set {planted} where seq = 1")).await;
        let unread = world.store.transcript(&Scope::Every, started.run.id, 0, 9).await;
        assert!(is_newer(&unread, format), "{unread:?}");
        let unread = world.store.checkpoint("a", started.run.id, 0, 9).await;
        assert!(is_newer(&unread, format), "{unread:?}");
        // the run that goes on from it ends, and says why; what is stored stays
        let fault = fault_of_going_on(world, &started).await;
        assert_eq!(fault.code, "unknown_transcript_format");
        let expected = format!("the format {format}, and this release reads up to 4");
        assert!(fault.message.contains(&expected), "{}", fault.message);
    }
    world.plant(&format!("update turns set format = 4, body = '{body}', delegation = null where seq = 1")).await;
    assert_eq!(world.store.checkpoint("a", started.run.id, 0, 9).await.unwrap(), conversation());
}

fn is_newer(unread: &Result<Vec<TranscriptEntry>, StoreError>, format: i16) -> bool {
    matches!(unread, Err(StoreError::UnknownFormat { found, newest: 4 }) if *found == format)
}

async fn row_of_a_known_format_with_an_unknown_message_or_agent_is_corrupt(world: &StoreHarness) {
    let started = world.started(&world.task(json!({"interval": "1h"})).await).await;
    world.store.append("a", started.lease, &conversation()).await.unwrap();
    let body = serde_json::to_string(&conversation()[1].message).unwrap();
    let nested =
        format!(r#"{{"role":"user","text":"x","metadata":{{"deep":{}{}}}}}"#, "[".repeat(200), "]".repeat(200));
    let unknown = [
        (r#"{"role":"novel","x":1}"#, "null"),
        (body.as_str(), r#"'{"called":"novel"}'"#),
        // deeper than JSON is read
        (nested.as_str(), "null"),
    ];
    for (body, delegation) in unknown {
        world.plant(&format!("update turns set body = '{body}', delegation = {delegation} where seq = 1")).await;
        let unread = world.store.transcript(&Scope::Every, started.run.id, 0, 9).await;
        assert!(matches!(unread, Err(StoreError::Corrupt(_))), "{unread:?}");
        let unread = world.store.checkpoint("a", started.run.id, 0, 9).await;
        assert!(matches!(unread, Err(StoreError::Corrupt(_))), "{unread:?}");
        assert_eq!(fault_of_going_on(world, &started).await.code, "store_corrupt");
    }
}

/// The fault of a run that would go on from its transcript.
async fn fault_of_going_on(world: &StoreHarness, started: &StartedRun) -> RunFault {
    let store = Arc::new(LeasedTranscript::new(world.store.clone(), started.lease, &started.run, false));
    match Checkpoint::load(store, Clock::manual(START)).await {
        Err(RunError::Fail { fault }) => fault,
        _ => panic!("it went on"),
    }
}
