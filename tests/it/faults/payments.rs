//! `kill -9` while pipelines pay: a payment whose outcome nobody knows is not made again, and a run that ended has all of
//! its ledger.

use std::time::{Duration, Instant};

use reveille::base::clock::pause;
use serde_json::json;

use super::harness::{FaultHarness, PATIENCE};
use crate::support::postgres::Database;

/// How long a payment takes: kills meet some, and what waits for the end is not stored meanwhile.
const PAYMENT: Duration = Duration::from_millis(600);
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
