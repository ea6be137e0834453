//! Due instants are fired at their time, once, and every instant has its record.

use std::collections::BTreeMap;

use chrono::{DateTime, TimeDelta, Utc};
use reveille::domain::run::{Run, RunState};
use reveille::domain::trigger::jitter::spread;
use serde_json::json;

use crate::support::world::{World, at, on_both};

on_both! {
    every_kind_of_schedule_fires_at_its_instants_and_goes_on_after_a_restart
    nothing_starts_before_its_instant_though_it_is_recorded_ahead
    missed_instants_are_caught_up_as_the_task_says
    every_instant_of_an_outage_has_exactly_one_record
    jitter_spreads_tasks_by_their_ids_and_keeps_the_nominal_instant
    task_ends_at_its_limit_and_at_its_end
    excluded_instants_are_recorded_as_such
    scheduler_that_is_behind_fires_two_batches_at_once_and_starts_no_more_than_there_is_room
    trigger_that_can_not_be_read_any_more_stops_only_its_own_task
}

async fn every_kind_of_schedule_fires_at_its_instants_and_goes_on_after_a_restart(world: World) {
    let first = world.instance();
    let schedule = |fields: &str| {
        let mut trigger: serde_json::Value = serde_json::from_str(fields).unwrap();
        trigger["type"] = json!("schedule");
        json!({ "trigger": trigger })
    };
    let cron = first.task(schedule(r#"{ "cron": "*/5 * * * *" }"#)).await;
    world.advance(20.0);
    let interval = first.task(schedule(r#"{ "interval": "7m" }"#)).await;
    let once = first.task(schedule(r#"{ "at": "2027-03-01T10:12:30", "timezone": "Europe/Kyiv" }"#)).await;
    let rrule = first
        .task(schedule(r#"{ "rrule": "FREQ=DAILY;BYHOUR=8;BYMINUTE=3,17", "start_at": "2027-03-01T00:00:00Z" }"#))
        .await;
    let minutes = async |instance: &crate::support::app::Instance, count: usize| {
        for _ in 0..count {
            world.advance(30.0);
            instance.live(0).await;
            world.advance(30.0);
            instance.live(0).await;
        }
    };
    minutes(&first, 9).await;
    first.crash();
    let second = world.instance();
    minutes(&second, 12).await;

    assert_eq!(second.lines(&cron).await, ["08:05 succeeded", "08:10 succeeded", "08:15 succeeded", "08:20 succeeded"]);
    assert_eq!(second.lines(&interval).await, ["08:07:20 succeeded", "08:14:20 succeeded", "08:21:20 succeeded"]);
    assert_eq!(second.lines(&once).await, ["08:12:30 succeeded"]);
    assert_eq!(second.lines(&rrule).await, ["08:03 succeeded", "08:17 succeeded"]);
    let once = second.stored(&once).await;
    assert_eq!((once.status.as_str(), once.status_reason.as_deref()), ("completed", Some("ended")));
    assert_eq!((once.next_fire_at, once.run_count), (None, 1));
    second.finish(&world).await;
}

async fn nothing_starts_before_its_instant_though_it_is_recorded_ahead(world: World) {
    let instance = world.instance();
    let task = instance.task(json!({})).await;
    world.advance(58.4);
    instance.fire().await;
    assert_eq!(instance.lines(&task).await, [] as [&str; 0]);
    world.advance(0.1);
    instance.fire().await;
    assert_eq!(instance.lines(&task).await, ["08:01 queued"], "1.5 s ahead it is recorded, and leased");
    assert_eq!(instance.queue().await, [("claimed".into(), 1)]);
    world.advance(1.499);
    instance.work().await;
    assert_eq!(world.journal.begun(), []);
    world.advance(0.001);
    instance.live(0).await;
    let begun = world.journal.begun();
    assert_eq!(
        begun.iter().map(|b| (b.at, b.fire_key.as_str())).collect::<Vec<_>>(),
        [(at("08:01"), "s:2027-03-01T08:01:00.000Z")]
    );
    instance.finish(&world).await;
}

async fn missed_instants_are_caught_up_as_the_task_says(world: World) {
    let before = world.instance();
    let schedule = |catch_up: &str| {
        let trigger = json!({ "type": "schedule", "interval": "10m", "catch_up": catch_up, "catch_up_window": "35m",
            "overlap": "queue_all" });
        json!({ "trigger": trigger })
    };
    let latest = before.task(schedule("latest")).await;
    let all = before.task(schedule("all")).await;
    let skip = before.task(schedule("skip")).await;
    before.crash();
    world.advance_to("09:05");

    let after = world.instance();
    after.live(0).await;
    assert_eq!(
        after.lines(&latest).await,
        ["08:10..08:20 x2 skipped missed_window", "09:00 succeeded +3 from 08:30..08:50 x3"]
    );
    assert_eq!(
        after.lines(&all).await,
        [
            "08:10..08:20 x2 skipped missed_window",
            "08:30 succeeded",
            "08:40 succeeded",
            "08:50 succeeded",
            "09:00 succeeded"
        ]
    );
    assert_eq!(after.lines(&skip).await, ["08:10..09:00 x6 skipped catch_up_skip"]);
    for task in [latest, all, skip] {
        assert_eq!(after.stored(&task).await.next_fire_at, Some(at("09:10")));
    }
    after.finish(&world).await;
}

async fn every_instant_of_an_outage_has_exactly_one_record(world: World) {
    let mut tasks = Vec::new();
    let before = world.instance();
    for catch_up in ["latest", "all", "skip"] {
        let trigger = json!({ "type": "schedule", "interval": "1m", "catch_up": catch_up, "overlap": "queue_all",
            "exclude": ["*/7 * * * *"] });
        tasks.push(before.task(json!({ "trigger": trigger })).await);
    }
    world.advance(63.0);
    before.live(0).await;
    before.crash();
    // an outage within the window, one far beyond it, and a short one
    let mut instance = world.instance();
    for outage in ["08:20", "02 07:11", "02 07:13"] {
        instance.crash();
        world.advance_to(outage);
        instance = world.instance();
        instance.live(0).await;
    }
    for task in tasks {
        let runs = instance.runs(&task).await;
        let considered = considered(&runs, TimeDelta::minutes(1));
        let instants = (at("02 07:13") - at("08:00")).num_minutes();
        let expected: Vec<_> = (1..=instants).map(|minute| (at("08:00") + TimeDelta::minutes(minute), 1)).collect();
        assert_eq!(considered, expected, "{:?}", task.spec.trigger);
        assert!(runs.iter().all(|run| run.state == RunState::Succeeded || run.state == RunState::Skipped));
    }
    instance.finish(&world).await;
}

/// How many records each instant has: its own, or the one range that stands for it. Counts in ranges must be right.
fn considered(runs: &[Run], every: TimeDelta) -> Vec<(DateTime<Utc>, usize)> {
    let mut records: BTreeMap<DateTime<Utc>, usize> = BTreeMap::new();
    let is_range = |run: &Run| run.fire_key.starts_with("r:");
    for run in runs.iter().filter(|run| !is_range(run)) {
        *records.entry(run.scheduled_for).or_default() += 1;
    }
    let own: Vec<DateTime<Utc>> = records.keys().copied().collect();
    for run in runs.iter().filter(|run| is_range(run) || run.state == RunState::Succeeded) {
        let Some(missed) = &run.missed else { continue };
        let mut stood_for = 0;
        let mut instant = missed.from;
        while instant <= missed.to {
            if own.binary_search(&instant).is_err() {
                *records.entry(instant).or_default() += 1;
                stood_for += 1;
            }
            instant += every;
        }
        assert_eq!(missed.count, Some(stood_for), "{run:#?}");
    }
    records.into_iter().collect()
}

async fn jitter_spreads_tasks_by_their_ids_and_keeps_the_nominal_instant(world: World) {
    let instance = world.instance();
    let trigger = json!({ "type": "schedule", "cron": "5 8 * * *", "jitter": "30s" });
    let mut tasks = Vec::new();
    for _ in 0..20 {
        tasks.push(instance.task(json!({ "trigger": trigger })).await);
    }
    let nominal = at("08:05");
    let expected = |task: &reveille::domain::task::Task| nominal + spread(task.id, nominal, TimeDelta::seconds(30));
    for task in &tasks {
        assert_eq!(task.next_fire_at, Some(expected(task)));
    }
    world.advance_to("08:04:59");
    for _ in 0..64 {
        world.advance(0.5);
        instance.live(0).await;
    }
    let begun = world.journal.begun();
    for task in &tasks {
        let runs = instance.runs(task).await;
        assert_eq!(runs.len(), 1);
        assert_eq!(runs[0].scheduled_for, nominal);
        let at = begun.iter().find(|b| b.run_id == runs[0].id).unwrap().at;
        let late = at - expected(task);
        assert!(late >= TimeDelta::zero() && late < TimeDelta::milliseconds(500), "{late} late");
    }
    instance.finish(&world).await;
}

async fn task_ends_at_its_limit_and_at_its_end(world: World) {
    let instance = world.instance();
    let limited = instance.task(json!({ "max_runs": 2 })).await;
    let trigger = json!({ "type": "schedule", "interval": "1m", "start_at": "2027-03-01T08:02:00Z",
        "end_at": "2027-03-01T08:04:30Z" });
    let bounded = instance.task(json!({ "trigger": trigger })).await;
    for _ in 0..8 {
        world.advance(60.0);
        instance.live(0).await;
    }
    assert_eq!(instance.lines(&limited).await, ["08:01 succeeded", "08:02 succeeded"]);
    assert_eq!(instance.lines(&bounded).await, ["08:02 succeeded", "08:03 succeeded", "08:04 succeeded"]);
    for (task, why) in [(limited, "max_runs"), (bounded, "ended")] {
        let task = instance.stored(&task).await;
        assert_eq!((task.status.as_str(), task.status_reason.as_deref()), ("completed", Some(why)));
        assert_eq!(task.next_fire_at, None);
    }
    instance.finish(&world).await;
}

async fn excluded_instants_are_recorded_as_such(world: World) {
    let instance = world.instance();
    let trigger = json!({ "type": "schedule", "interval": "1m", "exclude": ["2 8 * * *", "2027-03-02"] });
    let task = instance.task(json!({ "trigger": trigger })).await;
    for _ in 0..3 {
        world.advance(60.0);
        instance.live(0).await;
    }
    assert_eq!(instance.lines(&task).await, ["08:01 succeeded", "08:02 skipped excluded", "08:03 succeeded"]);
    assert_eq!(instance.stored(&task).await.run_count, 2);
    instance.finish(&world).await;
}

async fn trigger_that_can_not_be_read_any_more_stops_only_its_own_task(world: World) {
    let instance = world.instance();
    let gone_zone = instance.task(json!({ "name": "gone zone" })).await;
    let no_shape = instance.task(json!({ "name": "no shape" })).await;
    let sound = instance.task(json!({})).await;
    world
        .execute(
            "update tasks set spec = json_set(spec, '$.trigger.timezone', 'Mars/Olympus') where name = 'gone zone'",
            "update tasks set spec = jsonb_set(spec, '{trigger,timezone}', '\"Mars/Olympus\"') where name = 'gone zone'",
        )
        .await;
    world
        .execute(
            "update tasks set spec = json_set(spec, '$.trigger', json('{\"type\":\"astral\"}')) where name = 'no shape'",
            "update tasks set spec = jsonb_set(spec, '{trigger}', '{\"type\":\"astral\"}') where name = 'no shape'",
        )
        .await;
    for _ in 0..2 {
        world.advance(60.0);
        instance.live(0).await;
    }
    assert_eq!(instance.lines(&sound).await, ["08:01 succeeded", "08:02 succeeded"]);
    let disabled = instance.stored(&gone_zone).await;
    assert_eq!(disabled.status.as_str(), "disabled");
    let why = disabled.status_reason.unwrap();
    assert!(why.starts_with("/trigger/timezone: ") && why.contains("Mars/Olympus"), "{why}");
    assert_eq!(world.number("select count(*) from tasks where status = 'disabled'").await, 2);
    assert_eq!(instance.runs(&no_shape).await, []);
    instance.finish(&world).await;
}

async fn scheduler_that_is_behind_fires_two_batches_at_once_and_starts_no_more_than_there_is_room(mut world: World) {
    (world.settings.max_concurrent_runs, world.settings.prefetch) = (800, 0);
    let instance = world.instance();
    let trigger = json!({ "type": "schedule", "interval": "1m", "overlap": "allow" });
    instance.task(json!({ "acts": ["wait"], "trigger": trigger })).await;
    let copies = |id: &str, numbers: &str| {
        format!(
            "{numbers} insert into tasks (id, tenant_id, name, trigger_type, spec, status, epoch, version, anchor_at,
                                         active_since, zone_database, created_at, updated_at)
             select {id}, tenant_id, name, trigger_type, spec, status, epoch, version, anchor_at, active_since,
                    zone_database, created_at, updated_at from tasks, n"
        )
    };
    let numbers = "with recursive n (i) as (select 1 union all select i + 1 from n where i < 1700)";
    world.execute(&copies("randomblob(16)", numbers), &copies("gen_random_uuid()", numbers)).await;
    let due = "insert into due (task_id, kind, next_at, nominal_at, epoch, fire_count, run_count)
        select t.id, d.kind, d.next_at, d.nominal_at, d.epoch, 0, 0 from tasks t, due d where t.id <> d.task_id";
    world.execute(due, due).await;
    world.advance_to("08:01");
    // the first batch is a whole one, so from then on two go side by side
    instance.fire().await;
    assert_eq!(instance.queue().await, [("ready".into(), 901), ("started".into(), 800)]);
    assert_eq!(world.number("select count(distinct task_id) from runs").await, 1701);
    assert_eq!(world.number("select count(*) from runs").await, 1701);
    world.journal.open_gate();
    instance.settle(0).await;
    assert_eq!(world.number("select count(*) from runs where state = 'succeeded'").await, 1701);
    instance.finish(&world).await;
}
