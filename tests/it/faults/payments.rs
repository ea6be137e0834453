//! `kill -9` while pipelines and agents pay: a payment whose outcome nobody knows is not made again, and a run that
//! ended has all of its ledger.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use reveille::base::clock::{machine_now, pause};
use serde_json::json;

use super::harness::{FaultHarness, LEASE_VARIABLE, PATIENCE};
use crate::support::binary::signal;
use crate::support::effects::Effects;
use crate::support::postgres::Database;

/// How long a payment takes: kills meet some, and what waits for the end is not stored meanwhile.
const PAYMENT: Duration = Duration::from_millis(600);
/// How long the payment of an agent takes: the kill comes before its answer, however slow the machine is.
const SLOW_PAYMENT: Duration = Duration::from_secs(20);
/// How long a reservation takes: the instance that reserves is asleep before it has the answer.
const RESERVATION: Duration = Duration::from_secs(3);
/// Runs of an instance that sleeps.
const SLEEPING: usize = 6;
/// Kills of one test.
const KILLS: usize = 4;
/// Entries of a run that went well: its beginning, two values, the intent of the payment and its result.
const ENTRIES: &str = "select count(*) from runs r
                        where state = 'succeeded' and (select count(*) from turns t where t.run_id = r.id) <> 5";
const GAPS: &str =
    "select count(*) from (select run_id from turns group by run_id having count(*) <> max(seq) + 1) as gaps";

/// Tasks that pay, and kills of the one instance that is there, each in the middle of a payment.
pub async fn is_killed_while_it_pays(stage: &mut FaultHarness) {
    stage.effects.takes(PAYMENT);
    stage.start(0).await;
    for _ in 0..3 {
        stage.paying(json!({ "type": "schedule", "interval": "1s", "overlap": "allow" })).await;
    }
    for _ in 0..KILLS {
        let before = stage.effects.payments().len();
        let begun = Instant::now();
        while stage.effects.payments().len() == before {
            assert!(begun.elapsed() < PATIENCE, "nobody pays\n{}", stage.logs());
            pause(Duration::from_millis(10)).await;
        }
        pause(PAYMENT / 3).await;
        stage.kill(0).await;
        stage.start(0).await;
    }
}

/// An agent pays by a call that must not be made twice, and the one instance that is there is killed before the answer.
/// Returns once the run has gone on: it has ended, or pays again.
pub async fn is_killed_while_an_agent_pays(mut stage: FaultHarness) -> FaultHarness {
    let scenario = stage.service(0).dir.path().join("scenario.json");
    let pay = json!({ "method": "POST", "url": stage.effects.url(), "body": { "pays": "{{ user }}" } });
    let steps = json!([
        { "turn": 1, "text": "I pay.", "calls": [{ "tool": "http_send", "args": pay }] },
        { "turn": 2, "text": "Whether it is paid: {{ http_send }}" },
    ]);
    std::fs::write(&scenario, json!({ "steps": steps }).to_string()).expect("a scenario");
    stage = stage
        .with("REVEILLE_LLM__MODELS__MAIN__PROVIDER", "scripted")
        .with("REVEILLE_LLM__MODELS__MAIN__SCENARIO", &scenario.display().to_string())
        .with("REVEILLE_APPROVALS__TOOLS__HTTP_SEND__GATE", "auto");
    stage.effects.takes(SLOW_PAYMENT);
    stage.start(0).await;
    let at = (machine_now() + TimeDelta::seconds(2)).to_rfc3339();
    stage.paying_by_agent(json!({ "type": "schedule", "at": at, "overlap": "allow" })).await;
    until(&stage, "the agent pays", |effects| effects.payments().len() == 1).await;
    stage.kill(0).await;
    stage.effects.takes(Duration::ZERO);
    stage.start(0).await;
    stage.ran(1).await;
    stage
}

/// The first instance sleeps while its pipelines reserve, until another one has taken them over and pays. When it
/// wakes, its reservations are answered, and payments are next.
pub async fn sleeps_before_it_pays(stage: &mut FaultHarness) {
    stage.set(LEASE_VARIABLE, "6");
    stage.effects.takes(RESERVATION);
    stage.start(0).await;
    let at = (machine_now() + TimeDelta::seconds(4)).to_rfc3339();
    for _ in 0..SLEEPING {
        stage.reserving(json!({ "type": "schedule", "at": at, "overlap": "allow" })).await;
    }
    until(stage, "all reserve", |effects| effects.reservations() >= SLEEPING as u64).await;
    let sleeper = stage.service(0).process_id();
    signal("STOP", sleeper).await;
    stage.known.crashes += 1;
    stage.start(1).await;
    until(stage, "all pay", |effects| effects.payments().len() >= SLEEPING).await;
    signal("CONT", sleeper).await;
}

/// Waits until this is so of what arrived.
async fn until(stage: &FaultHarness, what: &str, is_so: impl Fn(&Effects) -> bool) {
    let begun = Instant::now();
    while !is_so(&stage.effects) {
        assert!(begun.elapsed() < PATIENCE, "not so: {what}\n{}", stage.logs());
        pause(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn pipeline_that_sleeps_over_its_lease_does_not_pay_when_it_wakes() {
    let database = Database::empty().await;
    let mut stage = FaultHarness::postgres(2, &database.url, &database.url).await;
    sleeps_before_it_pays(&mut stage).await;
    stage.service(0).until_logged("the lease is lost").await;
    stage.must_hold("postgres, pipelines asleep over their leases").await;
    assert_eq!(stage.effects.payments().len(), SLEEPING);
}

async fn pays_once(mut stage: FaultHarness, what: &str) {
    is_killed_while_it_pays(&mut stage).await;
    stage.ran(10).await;
    stage.must_hold(what).await;
    let records = stage.source.read().await;
    let code = |run: &crate::support::checker::RunRow| run.error.as_ref().map(|error| error.0["code"].clone());
    let failed: Vec<_> = records.runs.iter().filter_map(code).collect();
    assert!(failed.len() >= KILLS, "each kill met a payment: {failed:?}");
    assert!(failed.iter().all(|code| code == "outcome_unknown"), "{failed:?}");
    assert_eq!(stage.source.number(ENTRIES).await.unwrap(), 0, "a run has ended without all of its ledger");
    assert_eq!(stage.source.number(GAPS).await.unwrap(), 0, "entries are missing between others");
}

#[tokio::test]
async fn on_sqlite_a_pipeline_that_is_killed_while_it_pays_does_not_pay_again() {
    pays_once(FaultHarness::sqlite().await, "sqlite, kills while pipelines pay").await;
}

#[tokio::test]
async fn on_postgres_a_pipeline_that_is_killed_while_it_pays_does_not_pay_again() {
    let database = Database::empty().await;
    let stage = FaultHarness::postgres(1, &database.url, &database.url).await;
    pays_once(stage, "postgres, kills while pipelines pay").await;
}

async fn agent_pays_once(stage: FaultHarness, what: &str) {
    let mut stage = is_killed_while_an_agent_pays(stage).await;
    stage.must_hold(what).await;
    assert_eq!(stage.effects.payments().len(), 1);
    let run = stage.source.read().await.runs.remove(0);
    let output = run.output.expect("the agent's answer");
    assert!(output.contains("unknown"), "the model is told that nobody knows: {output}");
}

#[tokio::test]
async fn on_sqlite_an_agent_that_is_killed_while_it_pays_does_not_pay_again() {
    agent_pays_once(FaultHarness::sqlite().await, "sqlite, a kill while an agent pays").await;
}

#[tokio::test]
async fn on_postgres_an_agent_that_is_killed_while_it_pays_does_not_pay_again() {
    let database = Database::empty().await;
    let stage = FaultHarness::postgres(1, &database.url, &database.url).await;
    agent_pays_once(stage, "postgres, a kill while an agent pays").await;
}
