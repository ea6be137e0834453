//! Quotas on amounts: each at its bound and one beyond, by whoever adds, and back again after a deletion.

use futures::future::join_all;
use reveille::agent::gate::rates::RateSettings;
use reveille::agent::gate::{GateCheck, GateMessage, GateRefusal};
use reveille::agent::{CHAT, FROM_AGENT, STEP, TRIGGER};
use reveille::base::id::Scope;
use reveille::domain::quota::{ExceededQuota, MOST, Overrides, Quota, Quotas};
use reveille::domain::run::Run;
use reveille::domain::task::Task;
use reveille::domain::task::change::TaskChange;
use reveille::executor::quota_check::QuotaCheck;
use reveille::executor::rate_check::RateCheck;
use reveille::store::{NewTask, Store, StoreError};
use serde_json::{Value, json};
use uuid::Uuid;

use super::matching;
use super::world::{START, StoreHarness, new_task};

on_both!(
    tasks_up_to_the_quota_are_stored_and_one_beyond_it_is_refused,
    batch_beyond_a_quota_stores_nothing,
    tenant_at_its_quota_leaves_the_others_of_a_batch_alone,
    polls_are_counted_through_creation_edit_and_deletion,
    event_tasks_are_counted_by_their_source,
    creators_who_meet_at_the_bound_do_not_pass_it_together,
    override_holds_for_its_tenant_until_it_is_reset,
    override_reaches_another_instance_within_seconds,
    overrides_are_on_the_audit_record,
    fires_of_schedules_beyond_the_minute_are_skipped_and_the_next_minute_has_its_own,
    fires_are_counted_over_instances,
    messages_to_models_are_counted_over_instances,
    messages_begin_runs_while_there_is_room_and_those_of_chats_count_as_fires,
    message_of_a_chat_counts_with_the_first_execution_of_its_run,
    message_to_a_model_counts_once_however_often_its_run_or_its_step_is_tried,
    summaries_of_an_hour_cost_no_more_than_the_limit_over_instances,
    events_are_counted_over_instances_all_or_none,
    events_beyond_the_fires_of_a_minute_are_skipped,
);

fn task(tenant: &str, trigger: Value) -> NewTask {
    new_task(tenant, trigger, json!({}), START)
}

fn hourly(tenant: &str) -> NewTask {
    task(tenant, json!({ "interval": "1h" }))
}

fn condition(tenant: &str) -> NewTask {
    let poll = json!({ "tool": { "name": "current_time" } });
    task(tenant, json!({ "type": "condition", "poll": poll, "interval": "1m", "expression": "true" }))
}

fn listener(tenant: &str, source: Option<&str>) -> NewTask {
    match source {
        Some(source) => task(tenant, json!({ "type": "event", "source": source, "event_type": "new" })),
        None => task(tenant, json!({ "type": "event", "event_type": "new" })),
    }
}

async fn create(world: &StoreHarness, (task, nominal_at): NewTask) -> Result<Task, StoreError> {
    world.store.create_task(&task, nominal_at, None).await?;
    Ok(task)
}

/// The quota that refuses, its limit and its usage.
fn refusal<T: std::fmt::Debug>(result: Result<T, StoreError>) -> (Quota, u64, u64, String) {
    match result {
        Err(StoreError::Quota(over)) => {
            let ExceededQuota { quota, limit, usage, tenant, .. } = *over;
            (quota, limit, usage, tenant)
        }
        other => panic!("no quota stands in the way of {other:?}"),
    }
}

async fn limit(world: &StoreHarness, quotas: Quotas) {
    world.store.set_default_quotas(&quotas).await.unwrap();
}

async fn usage(world: &StoreHarness, tenant: &str, quota: Quota) -> Option<u64> {
    world.store.quota_usage(tenant).await.unwrap().standings[&quota].usage
}

async fn edit(world: &StoreHarness, task: &Task, to: &NewTask) -> Result<Task, StoreError> {
    let spec = Box::new(to.0.spec.clone());
    let now = world.get_task(task.id).await;
    let edit = TaskChange::Edit { version: now.version, name: now.name, spec };
    world.store.change_task(&Scope::Every, task.id, &edit).await
}

async fn tasks_up_to_the_quota_are_stored_and_one_beyond_it_is_refused(world: &StoreHarness) {
    limit(world, Quotas { tasks: 2, ..Quotas::default() }).await;
    let first = create(world, hourly("a")).await.unwrap();
    create(world, condition("a")).await.unwrap();
    for one_more in [hourly("a"), condition("a"), listener("a", Some("shop"))] {
        assert_eq!(refusal(create(world, one_more).await), (Quota::Tasks, 2, 2, "a".into()));
    }
    assert_eq!(world.count("select count(*) from tasks").await, 2);
    // another tenant has its own
    create(world, hourly("b")).await.unwrap();
    assert_eq!(usage(world, "a", Quota::Tasks).await, Some(2));
    // what is deleted makes room at once
    world.store.delete_task(&Scope::Every, first.id).await.unwrap();
    assert_eq!(usage(world, "a", Quota::Tasks).await, Some(1));
    create(world, hourly("a")).await.unwrap();
    assert_eq!(refusal(create(world, hourly("a")).await).0, Quota::Tasks);
}

async fn batch_beyond_a_quota_stores_nothing(world: &StoreHarness) {
    limit(world, Quotas { tasks: 3, ..Quotas::default() }).await;
    create(world, hourly("a")).await.unwrap();
    let three = [hourly("a"), hourly("a"), hourly("a")];
    assert_eq!(refusal(world.store.create_tasks(&three).await), (Quota::Tasks, 3, 1, "a".into()));
    assert_eq!(world.count("select count(*) from tasks").await, 1);
    assert_eq!(usage(world, "a", Quota::Tasks).await, Some(1));
    assert_eq!(world.store.create_tasks(&three[..2]).await.unwrap(), [true; 2]);
}

async fn tenant_at_its_quota_leaves_the_others_of_a_batch_alone(world: &StoreHarness) {
    limit(world, Quotas { tasks: 4, ..Quotas::default() }).await;
    for _ in 0..4 {
        create(world, hourly("full")).await.unwrap();
    }
    let mut tasks = Vec::new();
    for n in 0..20 {
        tasks.push(hourly(if n % 2 == 0 { "full" } else { "a" }));
        tasks.push(hourly(&format!("t{n}")));
    }
    let tasks: Vec<NewTask> = tasks.into_iter().take(16).collect();
    let answers = join_all(tasks.iter().map(|(task, nominal)| world.store.create_task(task, *nominal, None))).await;
    for ((task, _), answer) in tasks.iter().zip(answers) {
        match task.tenant_id.as_str() {
            "full" => assert_eq!(refusal(answer), (Quota::Tasks, 4, 4, "full".into())),
            _ => assert!(answer.is_ok(), "{}: {answer:?}", task.tenant_id),
        }
    }
    assert_eq!(usage(world, "a", Quota::Tasks).await, Some(4));
}

async fn polls_are_counted_through_creation_edit_and_deletion(world: &StoreHarness) {
    limit(world, Quotas { polls: 1, ..Quotas::default() }).await;
    let first = create(world, condition("a")).await.unwrap();
    assert_eq!(refusal(create(world, condition("a")).await), (Quota::Polls, 1, 1, "a".into()));
    let schedule = create(world, hourly("a")).await.unwrap();
    assert_eq!(refusal(edit(world, &schedule, &condition("a")).await), (Quota::Polls, 1, 1, "a".into()));
    // an edit that leaves its kind alone is no matter of quotas, nor is a schedule
    edit(world, &first, &condition("a")).await.unwrap();
    limit(world, Quotas { polls: 1, tasks: 3, ..Quotas::default() }).await;
    create(world, hourly("a")).await.unwrap();
    // what ceases to poll makes room
    edit(world, &first, &hourly("a")).await.unwrap();
    assert_eq!(usage(world, "a", Quota::Polls).await, Some(0));
    edit(world, &schedule, &condition("a")).await.unwrap();
    world.store.delete_task(&Scope::Every, schedule.id).await.unwrap();
    assert_eq!(usage(world, "a", Quota::Polls).await, Some(0));
    create(world, condition("a")).await.unwrap();
}

async fn event_tasks_are_counted_by_their_source(world: &StoreHarness) {
    limit(world, Quotas { event_tasks_per_source: 2, ..Quotas::default() }).await;
    let of_shop = [listener("a", Some("shop")), listener("a", Some("shop"))];
    assert_eq!(world.store.create_tasks(&of_shop).await.unwrap(), [true; 2]);
    let beyond = (Quota::EventTasksPerSource, 2, 2, "a".to_owned());
    assert_eq!(refusal(create(world, listener("a", Some("shop"))).await), beyond);
    assert_eq!(refusal(world.store.create_tasks(&[listener("a", None), listener("a", Some("shop"))]).await), beyond);
    let elsewhere = create(world, listener("a", Some("mail"))).await.unwrap();
    assert_eq!(refusal(edit(world, &elsewhere, &listener("a", Some("shop"))).await), beyond);
    // those without a source count together
    for _ in 0..2 {
        create(world, listener("a", None)).await.unwrap();
    }
    assert_eq!(refusal(create(world, listener("a", None)).await), beyond);
    create(world, listener("b", Some("shop"))).await.unwrap();
    // whoever turns to another source, or to the clock, makes room
    edit(world, &of_shop[0].0, &listener("a", Some("mail"))).await.unwrap();
    edit(world, &of_shop[1].0, &hourly("a")).await.unwrap();
    assert_eq!(
        world.count("select count(*) from event_task_counts where source = 'shop' and tenant_id = 'a'").await,
        0
    );
    assert_eq!(refusal(create(world, listener("a", Some("mail"))).await), beyond);
    world.store.delete_task(&Scope::Every, elsewhere.id).await.unwrap();
    create(world, listener("a", Some("mail"))).await.unwrap();
    assert_eq!(usage(world, "a", Quota::EventTasksPerSource).await, Some(2));
}

async fn creators_who_meet_at_the_bound_do_not_pass_it_together(world: &StoreHarness) {
    limit(world, Quotas { tasks: 7, ..Quotas::default() }).await;
    let other = world.other_instance().await;
    let one_by_one = (0..8).map(|n| {
        let (store, (task, nominal)) = (if n % 2 == 0 { &world.store } else { &other }, hourly("a"));
        async move { store.create_task(&task, nominal, None).await.map(|_| 1) }
    });
    let in_batches = (0..4).map(|n| {
        let (store, tasks) = (if n % 2 == 0 { &world.store } else { &other }, [hourly("a"), listener("a", Some("s"))]);
        async move { store.create_tasks(&tasks).await.map(|made| made.len() as i64) }
    });
    let (ones, batches) = tokio::join!(join_all(one_by_one), join_all(in_batches));
    let mut stored = 0;
    for answer in ones.into_iter().chain(batches) {
        match answer {
            Ok(made) => stored += made,
            Err(StoreError::Quota(over)) => assert_eq!((over.quota, over.limit), (Quota::Tasks, 7)),
            Err(error) => panic!("{error}"),
        }
    }
    // a batch of two may have found room for one
    assert!((6..=7).contains(&stored), "{stored}");
    assert_eq!(world.count("select count(*) from tasks").await, stored);
    if world.is_postgres() {
        other.close().await;
    }
}

async fn override_holds_for_its_tenant_until_it_is_reset(world: &StoreHarness) {
    limit(world, Quotas { tasks: 1, ..Quotas::default() }).await;
    create(world, hourly("a")).await.unwrap();
    create(world, hourly("b")).await.unwrap();
    let more = Overrides { tasks: Some(2), streams: Some(MOST), ..Overrides::default() };
    world.store.put_quotas("a", &more, "token:admin").await.unwrap();
    create(world, hourly("a")).await.unwrap();
    assert_eq!(refusal(create(world, hourly("a")).await), (Quota::Tasks, 2, 2, "a".into()));
    assert_eq!(refusal(create(world, hourly("b")).await), (Quota::Tasks, 1, 1, "b".into()));
    let shown = world.store.quota_usage("a").await.unwrap();
    assert_eq!(shown.overrides, more);
    assert_eq!(shown.standings[&Quota::Streams].limit, Some(MOST));
    // a quota that is left out of the next word is as for everybody; tasks that are there already stay
    world.store.put_quotas("a", &Overrides { polls: Some(3), ..Overrides::default() }, "token:admin").await.unwrap();
    assert_eq!(refusal(create(world, hourly("a")).await), (Quota::Tasks, 1, 2, "a".into()));
    world.store.reset_quotas("a", "token:admin").await.unwrap();
    assert_eq!(world.store.quota_usage("a").await.unwrap().overrides, Overrides::default());
    assert_eq!(world.store.quotas_of("a").await.unwrap(), Quotas { tasks: 1, ..Quotas::default() });
    assert_eq!(world.count("select count(*) from tasks where tenant_id = 'a'").await, 2);
}

async fn override_reaches_another_instance_within_seconds(world: &StoreHarness) {
    let other = world.other_instance().await;
    assert_eq!(other.quotas_of("a").await.unwrap(), Quotas::default());
    let less = Overrides { streams: Some(3), ..Overrides::default() };
    world.store.put_quotas("a", &less, "token:admin").await.unwrap();
    assert_eq!(world.store.quotas_of("a").await.unwrap().streams, 3);
    world.pass(5);
    assert_eq!(other.quotas_of("a").await.unwrap().streams, 3);
    assert_eq!(other.quotas_of("b").await.unwrap(), Quotas::default());
    if world.is_postgres() {
        other.close().await;
    }
}

async fn overrides_are_on_the_audit_record(world: &StoreHarness) {
    let said = Overrides { polls: Some(3), ..Overrides::default() };
    world.store.put_quotas("a", &said, "token:1").await.unwrap();
    world.store.reset_quotas("a", "token:2").await.unwrap();
    // nothing was said any more
    world.store.reset_quotas("a", "token:3").await.unwrap();
    let filter = reveille::store::AuditFilter { limit: 10, ..Default::default() };
    let entries = world.store.audit_page(&Scope::Every, &filter).await.unwrap().rows;
    let told: Vec<_> = entries.iter().rev().map(|entry| (entry.action.as_str(), entry.actor.as_str())).collect();
    assert_eq!(told, [("quotas.set", "token:1"), ("quotas.reset", "token:2")]);
}

/// Runs and skipped fires of a task, with their reasons, in the order of their records.
async fn record_of(world: &StoreHarness, task: &Task) -> Vec<String> {
    let fires = |run: Run| {
        let count = run.tallied_fires().map_or(1, |fires| fires.count.expect("a count"));
        std::iter::repeat_n(run.reason.unwrap_or_else(|| run.state.as_str().to_owned()), count as usize)
    };
    world.runs_of(task).await.into_iter().flat_map(fires).collect()
}

fn count_reason(records: &[String], reason: &str) -> usize {
    records.iter().filter(|record| *record == reason).count()
}

async fn fires_of_schedules_beyond_the_minute_are_skipped_and_the_next_minute_has_its_own(world: &StoreHarness) {
    limit(world, Quotas { fires_per_minute: 3, ..Quotas::default() }).await;
    let mut tasks = Vec::new();
    for _ in 0..5 {
        tasks.push(world.task_with("a", json!({ "interval": "1m", "overlap": "allow" }), json!({})).await);
    }
    let quiet = world.task_with("b", json!({ "interval": "1m", "overlap": "allow" }), json!({})).await;
    for minute in 1..=2 {
        world.pass(60);
        let fired = world.fire().await;
        assert_eq!((fired.recorded, fired.skipped), (4, 2), "minute {minute}");
        let mut records = Vec::new();
        for task in &tasks {
            records.extend(record_of(world, task).await);
        }
        assert_eq!((count_reason(&records, "queued"), count_reason(&records, "quota")), (3 * minute, 2 * minute));
        assert_eq!(count_reason(&record_of(world, &quiet).await, "queued"), minute);
        assert_eq!(usage(world, "a", Quota::FiresPerMinute).await, Some(3));
    }
    // nothing is left to be fired again: each instant has its record
    assert_eq!(world.fire().await.tasks, 0);
}

async fn fires_are_counted_over_instances(world: &StoreHarness) {
    limit(world, Quotas { fires_per_minute: 3, ..Quotas::default() }).await;
    let other = world.other_instance().await;
    let mut allowed = 0;
    for n in 0..6 {
        let store = if n % 2 == 0 { &world.store } else { &other };
        allowed += store.take_fires("a", 1).await.unwrap();
    }
    assert_eq!(allowed, 3);
    assert_eq!(other.take_fires("b", 5).await.unwrap(), 3);
    if world.is_postgres() {
        other.close().await;
    }
}

async fn messages_to_models_are_counted_over_instances(world: &StoreHarness) {
    let other = world.other_instance().await;
    let mut allowed = 0;
    for n in 0..6 {
        let store = if n % 2 == 0 { &world.store } else { &other };
        allowed += usize::from(store.take_model_message("a", 3).await.unwrap());
    }
    assert_eq!(allowed, 3);
    assert!(other.take_model_message("b", 1).await.unwrap(), "another tenant has its own");
    assert!(!other.take_model_message("b", 1).await.unwrap());
    world.pass(60);
    assert!(world.store.take_model_message("a", 3).await.unwrap());
    if world.is_postgres() {
        other.close().await;
    }
}

async fn messages_begin_runs_while_there_is_room_and_those_of_chats_count_as_fires(world: &StoreHarness) {
    limit(world, Quotas { fires_per_minute: 2, ..Quotas::default() }).await;
    assert_eq!(world.store.take_fires("a", 1).await.unwrap(), 1, "a schedule fires");
    assert!(world.store.admit_message("a", true).await.unwrap());
    assert_eq!(usage(world, "a", Quota::FiresPerMinute).await, Some(2));
    assert!(!world.store.admit_message("a", true).await.unwrap(), "none is left for a chat");
    assert!(world.store.admit_message("a", false).await.unwrap(), "the fire of a trigger was counted before");
    assert!(world.store.admit_message("b", true).await.unwrap(), "another tenant has its own");
    world.pass(60);
    assert!(world.store.admit_message("a", true).await.unwrap());
    world.task(json!({ "interval": "1h" })).await;
    while world.store.count_stored_bytes(1_000).await.unwrap() > 0 {}
    limit(world, Quotas { stored_bytes: 1, ..Quotas::default() }).await;
    for is_counted in [true, false] {
        assert!(!world.store.admit_message("a", is_counted).await.unwrap(), "it has stored all that it may");
        assert!(world.store.admit_message("b", is_counted).await.unwrap());
    }
}

/// A message of the run with this number.
fn message(run: u128, source: &'static str, is_repeated: bool) -> GateMessage<'static> {
    GateMessage { tenant: "a", run_id: Uuid::from_u128(run), task_id: None, source, text: "Hello.", is_repeated }
}

async fn message_of_a_chat_counts_with_the_first_execution_of_its_run(world: &StoreHarness) {
    limit(world, Quotas { fires_per_minute: 1, ..Quotas::default() }).await;
    let other = world.other_instance().await;
    let (check, elsewhere) = (QuotaCheck(world.store.clone()), QuotaCheck(other.clone()));
    assert_eq!(check.check(message(1, CHAT, false)).await, Ok(()));
    assert_eq!(elsewhere.check(message(1, CHAT, true)).await, Ok(()), "its instance has died");
    assert_eq!(check.check(message(2, CHAT, false)).await, Err(GateRefusal::Skip("quota".into())));
    for source in [TRIGGER, STEP, FROM_AGENT] {
        assert_eq!(check.check(message(3, source, false)).await, Ok(()), "{source}");
    }
    assert_eq!(usage(world, "a", Quota::FiresPerMinute).await, Some(1));
    world.pass(60);
    // a later check has sent it back: it is counted when it comes again
    assert_eq!(check.check(message(2, CHAT, false)).await, Ok(()));
    check.withdraw(message(2, CHAT, false));
    assert_eq!(usage(world, "a", Quota::FiresPerMinute).await, Some(0));
    assert_eq!(check.check(message(2, CHAT, false)).await, Ok(()));
    check.withdraw(message(2, CHAT, true));
    assert_eq!(usage(world, "a", Quota::FiresPerMinute).await, Some(1), "nothing was counted for it this time");
    if world.is_postgres() {
        other.close().await;
    }
}

async fn message_to_a_model_counts_once_however_often_its_run_or_its_step_is_tried(world: &StoreHarness) {
    let other = world.other_instance().await;
    let rates = RateSettings { messages_per_minute: 1, ..RateSettings::default() };
    let of = |store: &Store| RateCheck { store: store.clone(), rates: rates.clone() };
    let (check, elsewhere) = (of(&world.store), of(&other));
    let refused = || Err(GateRefusal::Skip("rate".into()));
    for source in [CHAT, TRIGGER, STEP] {
        world.pass(60);
        assert_eq!(check.check(message(1, source, false)).await, Ok(()), "{source}");
        assert_eq!(elsewhere.check(message(1, source, true)).await, Ok(()), "{source}");
        assert_eq!(check.check(message(2, source, false)).await, refused(), "{source}");
        check.withdraw(message(1, source, false));
        // a step that was sent back has begun, and is not counted when it comes again
        let expected = if source == STEP { refused() } else { Ok(()) };
        assert_eq!(check.check(message(2, source, false)).await, expected, "{source}");
    }
    if world.is_postgres() {
        other.close().await;
    }
}

async fn summaries_of_an_hour_cost_no_more_than_the_limit_over_instances(world: &StoreHarness) {
    let other = world.other_instance().await;
    assert!(!world.store.take_summary_money("a", 101, 100).await.unwrap(), "more than there ever is");
    assert!(world.store.take_summary_money("a", 60, 100).await.unwrap());
    assert!(!other.take_summary_money("a", 41, 100).await.unwrap());
    assert!(other.take_summary_money("a", 40, 100).await.unwrap());
    assert!(other.take_summary_money("b", 100, 100).await.unwrap(), "another tenant has its own");
    world.store.give_summary_money_back("a", 50).await.unwrap();
    assert!(!world.store.take_summary_money("a", 51, 100).await.unwrap());
    assert!(world.store.take_summary_money("a", 50, 100).await.unwrap());
    world.pass(3600);
    world.store.give_summary_money_back("a", 50).await.unwrap();
    assert!(
        world.store.take_summary_money("a", 100, 100).await.unwrap(),
        "an hour later there is all of it, and no more"
    );
    assert!(!world.store.take_summary_money("a", 1, 100).await.unwrap());
    if world.is_postgres() {
        other.close().await;
    }
}

async fn events_are_counted_over_instances_all_or_none(world: &StoreHarness) {
    limit(world, Quotas { events_per_minute: 10, ..Quotas::default() }).await;
    let other = world.other_instance().await;
    world.store.take_events("a", 6).await.unwrap();
    let beyond = (Quota::EventsPerMinute, 10, 6, "a".to_owned());
    assert_eq!(refusal(other.take_events("a", 5).await), beyond);
    other.take_events("a", 4).await.unwrap();
    assert_eq!(refusal(world.store.take_events("a", 1).await).0, Quota::EventsPerMinute);
    world.store.take_events("b", 10).await.unwrap();
    // what came to nothing is there again
    other.give_events_back("a", 4);
    other.take_events("a", 3).await.unwrap();
    world.pass(60);
    world.store.take_events("a", 10).await.unwrap();
    if world.is_postgres() {
        other.close().await;
    }
}

async fn events_beyond_the_fires_of_a_minute_are_skipped(world: &StoreHarness) {
    limit(world, Quotas { fires_per_minute: 2, ..Quotas::default() }).await;
    let straight = matching::task(world, json!({})).await;
    let by_rules = world.task_with("a", json!({ "type": "event", "source": "shop" }), json!({ "max_runs": 100 })).await;
    let recorded = matching::publish(world, vec![matching::event("e1"), matching::event("e2")]).await;
    assert_eq!((recorded.recorded, recorded.skipped), (2, 2));
    let mut records = record_of(world, &straight).await;
    records.extend(record_of(world, &by_rules).await);
    assert_eq!((count_reason(&records, "queued"), count_reason(&records, "quota")), (2, 2));
    world.pass(60);
    let recorded = matching::publish(world, vec![matching::event("e3")]).await;
    assert_eq!((recorded.recorded, recorded.skipped), (2, 0));
}
