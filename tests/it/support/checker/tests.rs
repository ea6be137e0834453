//! The judge is no judge if it finds nothing: each rule is shown what it forbids.

use serde_json::{Value, json};
use sqlx::types::Json;
use uuid::Uuid;

use super::records::{DeliveryRow, EventRow, QueueRow};
use super::*;
use crate::support::effects::answer_to;

const TASK: Uuid = Uuid::from_u128(1);

fn at(seconds: f64) -> DateTime<Utc> {
    let start: DateTime<Utc> = "2027-03-01T08:00:00Z".parse().unwrap();
    start + TimeDelta::milliseconds((seconds * 1000.0) as i64)
}

fn key(seconds: f64) -> String {
    format!("s:{}", at(seconds).to_rfc3339_opts(chrono::SecondsFormat::Millis, true))
}

fn task(trigger: Value, until: f64, fired: i64) -> TaskRow {
    TaskRow {
        id: TASK,
        spec: Json(json!({ "trigger": trigger })),
        status: "paused".into(),
        status_reason: None,
        epoch: 2,
        anchor_at: at(0.0),
        active_since: at(0.0),
        created_at: at(0.0),
        updated_at: at(until),
        due_epoch: 2,
        fire_count: fired,
        next_at: None,
        nominal_at: None,
    }
}

/// The run of an instant: it succeeded.
fn run(seconds: f64) -> RunRow {
    let id = Uuid::from_u128(1000 + (seconds * 1000.0) as u128);
    RunRow {
        id,
        task_id: Some(TASK),
        tenant_id: "ann".into(),
        fire_key: key(seconds),
        scheduled_for: at(seconds),
        state: "succeeded".into(),
        reason: None,
        blocked_by: None,
        attempt: 1,
        crashes: 0,
        infra_retries: 0,
        missed: None,
        created_at: at(seconds - 1.0),
        started_at: Some(at(seconds + 0.01)),
        finished_at: Some(at(seconds + 0.02)),
        output: Some(answer_to(id, 1)),
        error: None,
    }
}

fn skipped(seconds: f64, reason: &str) -> RunRow {
    RunRow {
        state: "skipped".into(),
        reason: Some(reason.into()),
        attempt: 0,
        started_at: None,
        output: None,
        ..run(seconds)
    }
}

fn effect(of: &RunRow, attempt: i64, seconds: f64) -> Effect {
    let (run_id, key) = (of.id, of.id.to_string());
    Effect { run_id, task_id: TASK, attempt, key, scheduled_for: of.scheduled_for, at: at(seconds) }
}

/// Four seconds of a task that runs each second, all well.
fn well() -> (Records, CheckerFacts) {
    let runs: Vec<RunRow> = (1..=4).map(|second| run(f64::from(second))).collect();
    let effects = runs.iter().map(|run| Effect { at: run.started_at.unwrap(), ..effect(run, 1, 0.0) }).collect();
    let tasks = vec![task(json!({ "type": "schedule", "interval": "1s", "overlap": "skip" }), 4.5, 4)];
    let records = Records { tasks, runs, last_token: 10, ..Records::default() };
    (records, CheckerFacts { effects, crashes: 1, ended: true, ..CheckerFacts::default() })
}

fn found(change: impl FnOnce(&mut Records, &mut CheckerFacts)) -> Vec<&'static str> {
    let (mut records, mut known) = well();
    change(&mut records, &mut known);
    judge(&records, &known).rules().into_keys().collect()
}

#[test]
fn sound_records_are_found_sound() {
    let (records, known) = well();
    let verdict = judge(&records, &known);
    assert_eq!((verdict.violations.as_slice(), verdict.instants, verdict.fires), ([].as_slice(), 4, 4));
}

#[test]
fn instant_without_a_record_or_with_two_is_found() {
    assert_eq!(found(|records, _| drop(records.runs.remove(1))), ["absent", "counted", "effects"]);
    let twin = |records: &mut Records, fire_key: String| {
        let twin = RunRow { id: Uuid::from_u128(7), fire_key, state: "failed".into(), ..records.runs[1].clone() };
        records.runs.push(RunRow { error: Some(Json(json!({}))), ..twin });
    };
    assert_eq!(found(|records, _| twin(records, key(2.0))), ["counted", "one_record"]);
    assert_eq!(found(|records, _| twin(records, format!("{}#7", key(2.0)))), ["counted", "one_record"]);
    assert_eq!(found(|records, _| records.tasks[0].fire_count = 5), ["counted"]);
    assert_eq!(found(|records, _| records.tasks[0].due_epoch = 1), ["epochs"]);
}

#[test]
fn record_of_what_was_not_due_is_found() {
    let stray = |seconds: f64| {
        found(|records, known| {
            let stray = run(seconds);
            known.effects.push(effect(&stray, 1, seconds + 0.01));
            records.runs.push(stray);
            records.tasks[0].fire_count += 1;
        })
    };
    assert_eq!(stray(2.5), ["never_due"]);
    assert_eq!(stray(3600.0), ["early"]);
    assert_eq!(found(|records, _| records.runs[0].fire_key = "x:1".into()), ["absent", "counted", "fire_key"]);
}

/// The second of four instants is covered by the run of the third.
fn coalesced(records: &mut Records, known: &mut CheckerFacts, count: u64) {
    records.runs.remove(1);
    known.effects.remove(1);
    records.tasks[0].fire_count = 3;
    let (from, to) = (at(2.0).to_rfc3339(), at(2.0).to_rfc3339());
    records.runs[1].missed = Some(Json(json!({ "from": from, "to": to, "count": count })));
    records.runs[1].created_at = at(60.0);
    records.runs[1].started_at = Some(at(60.0));
    records.runs[1].finished_at = Some(at(60.1));
    known.effects[1].at = at(60.0);
}

#[test]
fn instant_is_owed_by_a_task_that_completed_and_by_none_that_was_paused_before_it() {
    let once = |status: &str, until: f64| {
        found(|records, known| {
            records.tasks[0] = task(json!({ "type": "schedule", "at": at(2.0).to_rfc3339() }), until, 0);
            records.tasks[0].status = status.into();
            records.runs = vec![RunRow { task_id: None, ..run(1.0) }];
            known.effects.clear();
            known.effects.push(Effect { task_id: Uuid::nil(), ..effect(&run(1.0), 1, 1.015) });
        })
    };
    assert_eq!(once("completed", 1.0), ["absent", "effects"]);
    assert_eq!(once("paused", 3.0), ["absent", "effects"]);
    assert_eq!(once("paused", 1.0), ["effects"]);
}

#[test]
fn missed_instants_need_an_outage_their_count_and_their_policy() {
    let outage = |known: &mut CheckerFacts| known.outages.push((at(1.2), at(59.0)));
    let with_outage = |count| {
        found(|records, known| {
            coalesced(records, known, count);
            outage(known);
        })
    };
    assert_eq!(with_outage(1), [""; 0]);
    assert_eq!(with_outage(2), ["range_count"]);
    assert_eq!(found(|records, known| coalesced(records, known, 1)), ["missed"]);
    let then_in_the_way = found(|records, known| {
        coalesced(records, known, 1);
        outage(known);
        known.effects.remove(1);
        let first = Some(records.runs[0].id);
        records.runs[0].finished_at = Some(at(61.0));
        let stands = records.runs[1].clone();
        records.runs[1] = RunRow {
            missed: stands.missed,
            created_at: stands.created_at,
            finished_at: Some(at(60.0)),
            blocked_by: first,
            ..skipped(3.0, "overlap")
        };
    });
    assert_eq!(then_in_the_way, [""; 0], "what is skipped for overlap stands for what it was to run for");
    let with_policy = |policy: &str| {
        found(|records, known| {
            coalesced(records, known, 1);
            outage(known);
            records.tasks[0].spec.0["trigger"]["catch_up"] = json!(policy);
        })
    };
    assert_eq!(with_policy("latest"), [""; 0]);
    assert_eq!(with_policy("all"), ["policy"]);
    assert_eq!(with_policy("skip"), ["policy"]);
    let twice = found(|records, known| {
        coalesced(records, known, 1);
        outage(known);
        records.runs[2].missed = records.runs[1].missed.clone();
    });
    assert_eq!(twice, ["one_record", "range_count"]);
}

#[test]
fn skip_names_its_reason_and_the_run_in_its_way() {
    let skip = |reason: &str, blocked_by: Option<Uuid>| {
        found(|records, known| {
            known.effects.remove(1);
            records.runs[1] = RunRow { blocked_by, ..skipped(2.0, reason) };
        })
    };
    let first = run(1.0).id;
    assert_eq!(skip("no reason", None), ["reason"]);
    assert_eq!(skip("overlap", None), ["overlap"]);
    assert_eq!(skip("overlap", Some(Uuid::from_u128(9))), ["overlap"]);
    let in_the_way = |finished: f64| {
        found(|records, known| {
            known.effects.remove(1);
            records.runs[1] = RunRow { blocked_by: Some(first), ..skipped(2.0, "overlap") };
            records.runs[0].finished_at = Some(at(finished));
        })
    };
    assert_eq!(in_the_way(2.5), [""; 0]);
    assert_eq!(in_the_way(1.5), [""; 0], "clocks agree nearly");
    assert_eq!(in_the_way(0.9), ["overlap"]);
}

#[test]
fn run_that_is_nowhere_or_never_ends_is_found() {
    let queued = |state: &str| QueueRow {
        run_id: run(2.0).id,
        task_id: Some(TASK),
        state: state.into(),
        lease_token: 3,
        has_lease: state != "ready",
        has_deadline: state == "started",
    };
    let state = |records: &mut Records, state: &str| {
        records.runs[1].state = state.into();
        records.runs[1].finished_at = None;
        records.runs[1].output = None;
    };
    assert_eq!(found(|records, _| state(records, "running")), ["ended", "place"]);
    let alive = |change: &dyn Fn(&mut Records)| {
        found(|records, known| {
            state(records, "running");
            records.queue.push(queued("started"));
            known.ended = false;
            change(records);
        })
    };
    assert_eq!(alive(&|_| {}), [""; 0]);
    assert_eq!(alive(&|records| records.queue[0].state = "claimed".into()), ["place", "queue"]);
    assert_eq!(alive(&|records| records.queue[0].lease_token = 11), ["tokens"]);
    assert_eq!(alive(&|records| records.queue[0].has_lease = false), ["queue"]);
    assert_eq!(alive(&|records| records.parked.push((run(2.0).id, "overlap".into()))), ["place"]);
    assert_eq!(alive(&|records| records.slots.push((TASK, run(3.0).id))), ["slots"]);
    let two = |records: &mut Records| {
        records.runs[2].state = "running".into();
        records.runs[2].finished_at = None;
        records.runs[2].output = None;
        records.queue.push(QueueRow { run_id: run(3.0).id, lease_token: 4, ..queued("started") });
    };
    assert_eq!(alive(&two), ["slots"]);
    assert_eq!(found(|records, _| records.slots.push((TASK, run(2.0).id))), ["ended", "slots"]);
}

#[test]
fn execution_after_the_fence_twice_or_unrecorded_is_found() {
    assert_eq!(found(|_, known| known.effects.push(effect(&run(2.0), 1, 2.015))), ["fence"], "twice");
    let two_attempts = |order: [i64; 2], output: i64| {
        found(|records, known| {
            let second = &mut records.runs[1];
            (second.attempt, second.crashes) = (2, 1);
            second.output = Some(answer_to(second.id, output));
            known.effects.remove(1);
            known.effects.extend(order.map(|attempt| effect(&run(2.0), attempt, 2.015)));
        })
    };
    assert_eq!(two_attempts([1, 2], 2), [""; 0]);
    assert_eq!(two_attempts([2, 1], 2), ["fence"], "the zombie went on");
    assert_eq!(two_attempts([1, 2], 1), ["fence"], "the zombie's end was taken");
    let newer = |newer: usize| {
        found(|records, known| {
            records.runs[3].state = "failed".into();
            records.runs[3].error = Some(Json(json!({})));
            known.effects.push(effect(&run(4.0), 2, 4.015));
            known.newer = newer;
        })
    };
    assert_eq!((newer(0), newer(1)), (vec!["effects"], vec![]), "what the database could not know of yet");
    assert_eq!(found(|_, known| known.effects[1].at = at(30.0)), ["fence"], "after its end");
    assert_eq!(found(|_, known| known.effects[1].at = at(0.5)), ["early"]);
    assert_eq!(found(|_, known| drop(known.effects.remove(1))), ["effects"], "nobody saw it");
    assert_eq!(found(|records, _| records.runs[1].crashes = 2), ["crashes"]);
    assert_eq!(found(|records, _| records.runs[1].started_at = Some(at(1.9))), ["early"]);
}

#[test]
fn payment_that_is_made_twice_or_is_missing_is_found() {
    let paid = |payments: &[f64]| {
        found(|records, known| {
            records.tasks[0].spec.0["executor"] = json!("pipeline");
            records.tasks[0].spec.0["action"] = json!({ "config": { "pays": "{{ run.id }}" } });
            known.effects.clear();
            let payment = |seconds: &f64| Payment { run_id: run(*seconds).id, key: "k".into() };
            known.payments = payments.iter().map(payment).collect();
        })
    };
    assert_eq!(paid(&[1.0, 2.0, 3.0, 4.0]), [""; 0]);
    assert_eq!(paid(&[1.0, 2.0, 3.0, 4.0, 2.0]), ["paid_once"]);
    assert_eq!(paid(&[1.0, 2.0, 3.0]), ["effects"]);
}

#[test]
fn doubled_message_and_a_lost_event_are_found() {
    let row = DeliveryRow {
        tenant_id: "ann".into(),
        recipient: "ann".into(),
        channel: "email".into(),
        dedupe_key: format!("run:{}:result", run(1.0).id),
        state: "sent".into(),
    };
    assert_eq!(found(|records, _| records.deliveries.push(row.clone())), [""; 0]);
    assert_eq!(found(|records, _| records.deliveries.extend([row.clone(), row.clone()])), ["deliveries"]);
    let event_task = |with_run: usize, waits: bool| {
        found(|records, known| {
            records.tasks[0] = task(json!({ "type": "event" }), 4.0, 0);
            let (event_key, tenant_id) = ("k".to_owned(), "ann".to_owned());
            records.events.push(EventRow { event_key, tenant_id, event_type: "order".into(), waits });
            records.runs.truncate(with_run);
            known.effects.truncate(with_run);
            records.runs.iter_mut().for_each(|run| run.fire_key = "e:k".into());
        })
    };
    assert_eq!(event_task(1, false), [""; 0]);
    assert_eq!(event_task(2, false), ["one_record"]);
    assert_eq!(event_task(0, false), ["absent", "something_to_judge"]);
    assert_eq!(event_task(0, true), ["ended", "something_to_judge"]);
}

#[test]
fn task_that_is_forgotten_is_found() {
    let lags = |next: f64| {
        found(|records, known| {
            records.tasks[0].status = "active".into();
            records.tasks[0].next_at = Some(at(next));
            known.alive_until = Some(at(100.0));
        })
    };
    assert_eq!(lags(5.0), ["forgotten"]);
    let none = found(|records, known| {
        records.tasks[0].status = "active".into();
        known.alive_until = Some(at(100.0));
    });
    assert_eq!(none, ["forgotten"]);
}

#[test]
fn excluded_instants_are_told_apart_and_never_run() {
    // of four seconds the second and the third
    let excluding = |runs: Vec<RunRow>, fired: i64| {
        found(|records, known| {
            let trigger = json!({ "type": "schedule", "interval": "1s", "exclude": ["2-3 * * * * *"] });
            records.tasks[0] = task(trigger, 4.0, fired);
            known.effects.retain(|effect| runs.iter().any(|run| run.id == effect.run_id && run.state == "succeeded"));
            records.runs = runs;
        })
    };
    let own = || skipped(2.0, "excluded");
    assert_eq!(excluding(vec![run(1.0), own(), skipped(3.0, "excluded"), run(4.0)], 2), [""; 0]);
    assert_eq!(excluding(vec![run(1.0), own(), run(3.0), run(4.0)], 3), ["excluded"]);
    assert_eq!(excluding(vec![run(1.0), own(), run(4.0)], 2), ["absent"]);
    let told = vec![skipped(1.0, "excluded"), own(), skipped(3.0, "excluded"), run(4.0)];
    assert_eq!(excluding(told, 1), ["excluded"]);
}

#[test]
fn one_that_waits_out_its_jitter_is_not_missed_yet_and_one_that_does_not_is() {
    let jittered = |nominal: f64| {
        found(|records, _| {
            let trigger = json!({ "type": "schedule", "interval": "1s", "jitter": "1s" });
            records.tasks[0] = TaskRow { nominal_at: Some(at(nominal)), ..task(trigger, 5.5, 4) };
        })
    };
    assert_eq!(jittered(5.0), [""; 0]);
    assert_eq!(jittered(6.0), ["absent"]);
}
