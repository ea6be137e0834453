//! Conversations as rows: what is told of earlier runs, who sees them, and how they go.

use chrono::TimeDelta;
use reveille::base::id::{Scope, Tenant, new_id};
use reveille::domain::approval::{Approval, ApprovalChoice};
use reveille::domain::conversation::{KEPT_FOR, RequestEcho, begun_by, new_conversation};
use reveille::domain::run::RunState;
use reveille::domain::run::transcript::{TranscriptEntry, TranscriptMessage};
use reveille::domain::task::Task;
use reveille::store::{ConversationFilter, Finish, RunRequest, StartedRun, StoreError, TaskFilter};
use serde_json::json;
use uuid::Uuid;

use super::asked::{answer, go_on, park, question};
use super::grants::grant;
use super::world::{LEASE, StoreHarness, end_in_log, end_of, leases, only};

on_both!(
    earlier_runs_with_an_answer_are_told_newest_first,
    conversation_is_its_tenants_own_and_no_task,
    parts_of_a_request_that_a_response_repeats_stand_with_its_run,
    deleted_conversation_leaves_nothing_and_its_run_loses_its_lease,
    unused_conversation_goes_after_its_time_unless_a_run_of_it_waits,
    conversation_is_used_when_a_run_of_it_ends_and_kept_from_then_on,
);

/// Another conversation of a tenant.
pub async fn conversation(world: &StoreHarness, tenant: &str) -> Task {
    let (id, tenant) = (begun_by(new_id(world.now())), Tenant::new(tenant).unwrap());
    let task = new_conversation(id, tenant, "hello", world.now()).unwrap();
    world.store.begin_conversation(&task).await.unwrap();
    // its first message may come again
    world.store.begin_conversation(&task).await.unwrap();
    task
}

/// A message in it, sent twice under one id.
pub async fn say(world: &StoreHarness, conversation: &Task, message: &str) -> Uuid {
    let (id, now) = (new_id(world.now()), world.now());
    let scope = only(&conversation.tenant_id);
    for _ in 0..2 {
        let request = RunRequest { input: Some(json!(message)), ..RunRequest::default() };
        world.store.post_message(&scope, conversation.id, id, request, now).await.unwrap();
    }
    id
}

pub async fn started(world: &StoreHarness) -> StartedRun {
    let starts = world.store.start_runs(&leases(&world.claim().await), world.now() + LEASE).await.unwrap();
    let [started] = <[StartedRun; 1]>::try_from(starts.started).expect("one run that starts");
    started
}

/// Says something, and answers it.
async fn exchange(world: &StoreHarness, conversation: &Task, message: &str, answer: Option<&str>) -> Uuid {
    let id = say(world, conversation, message).await;
    let started = started(world).await;
    let state = if answer.is_some() { RunState::Succeeded } else { RunState::Failed };
    let end = Finish { output: answer.map(str::to_owned), ..end_of(&started, state) };
    assert!(world.store.finish_runs(&[end]).await.unwrap().is_empty(), "it has its lease");
    id
}

async fn earlier_runs_with_an_answer_are_told_newest_first(world: &StoreHarness) {
    let task = conversation(world, "a").await;
    let mut said = Vec::new();
    for number in 0..4 {
        said.push(exchange(world, &task, &format!("message {number}"), (number != 1).then_some("yes")).await);
    }
    let last = say(world, &task, "the last").await;
    let earlier = world.store.earlier_runs("a", task.id, last, 2).await.unwrap();
    let told: Vec<_> = earlier.iter().map(|run| (run.input.clone().unwrap(), run.output.as_str())).collect();
    assert_eq!(told, [(json!("message 3"), "yes"), (json!("message 2"), "yes")]);
    assert_eq!(world.store.earlier_runs("a", task.id, last, 20).await.unwrap().len(), 3, "one has failed");
    let others = world.store.earlier_runs("a", task.id, said[2], 20).await.unwrap();
    let others: Vec<Uuid> = others.iter().map(|run| run.id).collect();
    assert_eq!(others, [said[3], said[0]], "recorded behind it and answered before it");
    assert_eq!(world.store.earlier_runs("b", task.id, last, 20).await.unwrap(), []);
}

async fn conversation_is_its_tenants_own_and_no_task(world: &StoreHarness) {
    let (ours, theirs) = (conversation(world, "a").await, conversation(world, "b").await);
    let run = exchange(world, &ours, "hello", Some("hi")).await;
    let all = ConversationFilter { limit: 10, ..ConversationFilter::default() };
    let listed = world.store.list_conversations(&only("a"), &all).await.unwrap();
    let [one] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((one.id, one.title.as_str(), one.last_message_at), (ours.id, "hello", world.now()));
    assert_eq!(&world.store.get_conversation(&only("a"), ours.id).await.unwrap(), one);
    let ids: Vec<Uuid> =
        world.store.list_conversations(&Scope::Every, &all).await.unwrap().iter().map(|c| c.id).collect();
    assert_eq!(ids, [theirs.id, ours.id]);
    let page = ConversationFilter { before: Some(theirs.id), limit: 10 };
    assert_eq!(world.store.list_conversations(&Scope::Every, &page).await.unwrap().len(), 1);
    let messages = world.store.conversation_messages(&only("a"), ours.id, &all).await.unwrap().rows;
    assert_eq!(messages.iter().map(|run| run.id).collect::<Vec<_>>(), [run]);
    assert_eq!(world.store.conversation_messages(&only("b"), ours.id, &all).await.unwrap().rows, []);

    let stranger = only("b");
    assert!(matches!(world.store.get_conversation(&stranger, ours.id).await, Err(StoreError::NotFound)));
    assert!(matches!(world.store.delete_conversation(&stranger, ours.id).await, Err(StoreError::NotFound)));
    let posted = world.store.post_message(&stranger, ours.id, Uuid::nil(), RunRequest::default(), world.now()).await;
    assert!(matches!(posted, Err(StoreError::NotFound)));

    let tasks = TaskFilter { limit: 10, ..TaskFilter::default() };
    assert_eq!(world.store.list_tasks(&Scope::Every, &tasks).await.unwrap(), []);
    assert!(matches!(world.store.get_task(&Scope::Every, ours.id).await, Err(StoreError::NotFound)));
    assert!(matches!(world.store.delete_task(&Scope::Every, ours.id).await, Err(StoreError::NotFound)));
    assert!(world.store.find_task(&Scope::Every, ours.id).await.unwrap().is_some_and(|task| task.is_chat()));
}

async fn parts_of_a_request_that_a_response_repeats_stand_with_its_run(world: &StoreHarness) {
    let task = conversation(world, "a").await;
    let plain = exchange(world, &task, "hello", Some("hi")).await;
    for echo in [
        RequestEcho { background: true, previous: Some(plain) },
        RequestEcho { background: false, previous: Some(plain) },
        RequestEcho { background: true, previous: None },
        RequestEcho::default(),
    ] {
        let (id, now) = (new_id(world.now()), world.now());
        // recorded once more, it is the same run
        for _ in 0..2 {
            let request = RunRequest { input: Some(json!("more")), echo, ..RunRequest::default() };
            world.store.post_message(&only("a"), task.id, id, request, now).await.unwrap();
        }
        let answered = started(world).await;
        assert_eq!(answered.run.id, id);
        let end = end_of(&answered, RunState::Succeeded);
        assert_eq!(world.store.finish_runs(&[end]).await.unwrap(), Vec::<Uuid>::new());
        for scope in [only("a"), Scope::Every] {
            assert_eq!(world.store.request_echo(&scope, id).await.unwrap(), echo);
        }
        assert!(matches!(world.store.request_echo(&only("b"), id).await, Err(StoreError::NotFound)));
    }
    assert_eq!(world.store.request_echo(&only("a"), plain).await.unwrap(), RequestEcho::default());
}

async fn deleted_conversation_leaves_nothing_and_its_run_loses_its_lease(world: &StoreHarness) {
    let (task, other) = (conversation(world, "a").await, conversation(world, "a").await);
    exchange(world, &task, "hello", Some("hi")).await;
    let kept = exchange(world, &other, "hello", Some("hi")).await;
    say(world, &task, "more").await;
    let under_way = started(world).await;
    let entry = TranscriptEntry::new(0, 0, world.now(), TranscriptMessage::user("more"));
    world.store.append("a", under_way.lease, std::slice::from_ref(&entry)).await.unwrap();
    let waiting = say(world, &task, "behind it").await;
    let allowed = [&task, &other].map(|task| grant(task, world.now()));
    for grant in &allowed {
        world.store.create_grant(&only("a"), grant).await.unwrap();
    }
    let (deleted, line) = end_in_log(world.store.delete_conversation(&only("a"), task.id)).await;
    deleted.unwrap();
    assert!(line.contains("runs=2") && line.contains("why=\"conversation_deleted\""), "{line}");
    for id in [under_way.run.id, waiting] {
        assert!(world.store.find_run(&Scope::Every, id).await.unwrap().is_none());
    }
    assert_eq!(world.count("select count(*) from turns").await, 0);
    let grants = world.store.list_grants(&Scope::Every, None, None, 9).await.unwrap().rows;
    assert_eq!(grants, allowed[1..], "nothing is allowed for good in a conversation that is gone");
    let lost = world.store.finish_runs(&[end_of(&under_way, RunState::Succeeded)]).await.unwrap();
    assert_eq!(lost, [under_way.run.id], "what it comes to is recorded nowhere");
    assert!(matches!(world.store.delete_conversation(&only("a"), task.id).await, Err(StoreError::NotFound)));
    assert_eq!(world.get_run(kept).await.state, RunState::Succeeded);
}

async fn unused_conversation_goes_after_its_time_unless_a_run_of_it_waits(world: &StoreHarness) {
    let (unused, used, open) =
        (conversation(world, "a").await, conversation(world, "a").await, conversation(world, "b").await);
    let run = exchange(world, &unused, "hello", Some("hi")).await;
    world.pass(KEPT_FOR.num_seconds() - 60);
    exchange(world, &used, "hello", Some("hi")).await;
    let expire = async || world.store.expire_conversations(world.now() - KEPT_FOR, 10).await.unwrap();
    assert_eq!(expire().await, 0);
    say(world, &open, "hello").await;
    // it was said long ago
    let long_ago = "update tasks set active_since = created_at where tenant_id = 'b'";
    world.plant(long_ago).await;
    world.pass(120);
    assert_eq!(expire().await, 2);
    assert_eq!(expire().await, 0, "the one that waits is looked at again later");
    assert!(matches!(world.store.get_conversation(&Scope::Every, unused.id).await, Err(StoreError::NotFound)));
    assert!(world.store.find_run(&Scope::Every, run).await.unwrap().is_none());
    for kept in [&used, &open] {
        assert!(world.store.get_conversation(&Scope::Every, kept.id).await.is_ok());
    }
    world.clock.advance(TimeDelta::days(1) + TimeDelta::seconds(1));
    assert_eq!(expire().await, 1);
}

async fn conversation_is_used_when_a_run_of_it_ends_and_kept_from_then_on(world: &StoreHarness) {
    let (answered, cancelled) = (conversation(world, "a").await, conversation(world, "a").await);
    let run = say(world, &answered, "hello").await;
    let started = started(world).await;
    let asked = Approval { expires_at: world.now() + KEPT_FOR * 2, ..question(world, &started, "c1") };
    park(world, &started, &[(asked.clone(), None)], &[]).await;
    let waiting = say(world, &cancelled, "hello").await;
    world.pass(KEPT_FOR.num_seconds() + 60);
    let expire = async || world.store.expire_conversations(world.now() - KEPT_FOR, 10).await.unwrap();
    assert_eq!(expire().await, 2, "both are looked at, and a run of each is open");
    let approves = answer(ApprovalChoice::Approve, &asked, "recipient:a");
    world.store.decide_approval(&Scope::Every, asked.id, &approves).await.unwrap();
    world.store.cancel_run(&Scope::Every, waiting, "by_hand").await.unwrap();
    let goes_on = go_on(world, run).await;
    let end = Finish { output: Some("hi".into()), in_conversation: true, ..end_of(&goes_on, RunState::Succeeded) };
    assert!(world.store.finish_runs(&[end]).await.unwrap().is_empty(), "it has its lease");
    world.clock.advance(KEPT_FOR - TimeDelta::seconds(60));
    assert_eq!(expire().await, 0, "it was used less than a week ago");
    for kept in [&answered, &cancelled] {
        assert!(world.store.get_conversation(&Scope::Every, kept.id).await.is_ok());
    }
    world.pass(120);
    assert_eq!(expire().await, 2);
    assert!(matches!(world.store.get_conversation(&Scope::Every, answered.id).await, Err(StoreError::NotFound)));
}
