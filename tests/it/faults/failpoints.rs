//! The judge is tested by what it is there for: a binary with a bug planted in it (`src/base/failpoint.rs`) must be
//! found out, each bug by a fault under which it shows. The same faults leave no violation without the bug: see the
//! other files.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use reveille::base::clock::{machine_now, pause};
use serde_json::json;
use sqlx::{Executor, PgConnection};

use super::harness::{FaultHarness, PATIENCE};
use super::{payments, stopped};
use crate::support::binary::signal;
use crate::support::postgres::Database;
use crate::support::redis::RedisServer;
use crate::support::servers;

/// Looks again and again until a rule is broken that this bug breaks.
async fn is_caught(stage: &mut FaultHarness, bug: &str, rules: &[&str]) {
    let begun = Instant::now();
    loop {
        let verdict = stage.verdict().await;
        let broken = verdict.rules();
        if rules.iter().any(|rule| broken.contains_key(rule)) {
            println!("{bug} is caught: {broken:?}");
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "{bug} was not caught: {broken:?}, {verdict}\n{}", stage.logs());
        pause(Duration::from_secs(1)).await;
    }
}

#[tokio::test]
async fn firing_without_a_lock_and_a_comparison_is_caught() {
    let database = Database::empty().await;
    let stage = FaultHarness::postgres(3, &database.url, &database.url).await;
    let mut stage = stage.with("REVEILLE_FAILPOINT", "no_compare_and_set");
    stage.start_all().await;
    stage.busy().await;
    is_caught(&mut stage, "no_compare_and_set", &["counted"]).await;
}

#[tokio::test]
async fn claims_without_skip_locked_are_caught() {
    let database = Database::empty().await;
    let stage = FaultHarness::postgres(2, &database.url, &database.url).await;
    let mut stage = stage.with_of(0, "REVEILLE_FAILPOINT", "no_skip_locked");
    stage.effects.releases(0);
    stage.start_all().await;
    // the instance with the bug has seen the run and not taken it yet when the other one, which is as it should be,
    // takes it
    let other = stage.service(1).process_id();
    signal("STOP", other).await;
    let mut lock = database.connect().await;
    lock.execute("select pg_advisory_lock(length('no_skip_locked'))").await.expect("a lock");
    let task = stage.task(json!({ "type": "schedule", "cron": "0 0 1 1 *", "overlap": "allow" })).await;
    stage.post_with_key(&format!("/v1/tasks/{task}/run"), &json!({})).await;
    until_awaited(&mut lock).await;
    signal("CONT", other).await;
    until_begun(&stage, 1).await;
    lock.execute("select pg_advisory_unlock_all()").await.expect("unlocked");
    is_caught(&mut stage, "no_skip_locked", &["place", "fence"]).await;
}

/// Waits until somebody waits for an advisory lock of this database.
async fn until_awaited(connection: &mut PgConnection) {
    let waiting = "select count(*) from pg_locks
                    where locktype = 'advisory' and not granted
                      and database = (select oid from pg_database where datname = current_database())";
    let begun = Instant::now();
    while sqlx::query_scalar::<_, i64>(waiting).fetch_one(&mut *connection).await.expect("a count") == 0 {
        assert!(begun.elapsed() < PATIENCE, "nobody waits for the lock");
        pause(Duration::from_millis(20)).await;
    }
}

/// Waits until so many runs have begun.
async fn until_begun(stage: &FaultHarness, runs: usize) {
    let begun = Instant::now();
    while stage.effects.journal().len() < runs {
        assert!(begun.elapsed() < PATIENCE, "they did not begin\n{}", stage.logs());
        pause(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn start_that_does_not_look_whether_the_task_is_running_is_caught() {
    let database = Database::empty().await;
    let stage = FaultHarness::postgres(1, &database.url, &database.url).await;
    let mut stage = stage.with("REVEILLE_FAILPOINT", "no_slot");
    stage.effects.takes(Duration::from_secs(3));
    stage.start_all().await;
    stage.busy().await;
    is_caught(&mut stage, "no_slot", &["slots"]).await;
}

#[tokio::test]
async fn end_without_a_fence_is_caught() {
    let database = Database::empty().await;
    let stage = FaultHarness::postgres(2, &database.url, &database.url).await;
    let mut stage = stage.with("REVEILLE_FAILPOINT", "no_fence");
    stopped::sleeps_over_its_leases(&mut stage).await;
    is_caught(&mut stage, "no_fence", &["fence"]).await;
}

#[tokio::test]
async fn rescue_without_a_token_is_caught() {
    let database = Database::empty().await;
    let stage = FaultHarness::postgres(3, &database.url, &database.url).await;
    // one of the two rescuers is as it should be, and is always first: the other waits for it
    let mut stage = stage.with_of(1, "REVEILLE_FAILPOINT", "rescue_without_token");
    stage.effects.takes(Duration::from_secs(4));
    leaves_runs(&mut stage).await;
    stage.start(1).await;
    says(&stage, "the rescuer waits until its runs have begun again").await;
    stage.start(2).await;
    is_caught(&mut stage, "rescue_without_token", &["crashes", "fence"]).await;
}

/// The one instance that is there begins 20 runs and dies.
async fn leaves_runs(stage: &mut FaultHarness) {
    stage.start(0).await;
    at_once(stage, 20).await;
    until_begun(stage, 20).await;
    stage.kill(0).await;
}

/// Waits until an instance logs this.
async fn says(stage: &FaultHarness, text: &str) {
    let begun = Instant::now();
    while !stage.logs().contains(text) {
        assert!(begun.elapsed() < PATIENCE, "no instance said {text:?}\n{}", stage.logs());
        pause(Duration::from_millis(50)).await;
    }
}

/// So many runs that are due at one instant, in some seconds.
async fn at_once(stage: &mut FaultHarness, count: usize) {
    let at = (machine_now() + TimeDelta::seconds(8)).to_rfc3339();
    for _ in 0..count {
        stage.task(json!({ "type": "schedule", "at": at, "overlap": "allow" })).await;
    }
}

#[tokio::test]
async fn instants_that_are_missed_in_silence_are_caught() {
    let mut stage = FaultHarness::sqlite().await.with("REVEILLE_FAILPOINT", "silent_miss");
    stage.start(0).await;
    stage.busy().await;
    pause(Duration::from_secs(1)).await;
    stage.kill(0).await;
    pause(Duration::from_secs(4)).await;
    stage.start(0).await;
    is_caught(&mut stage, "silent_miss", &["absent"]).await;
}

#[tokio::test]
async fn event_that_is_acknowledged_before_its_run_is_recorded_is_caught() {
    let mut stage = FaultHarness::sqlite().await.with("REVEILLE_FAILPOINT", "acknowledge_before_commit");
    stage.start(0).await;
    stage.busy().await;
    for _ in 0..5 {
        // the matcher lingers between the two
        pause(Duration::from_millis(500)).await;
        stage.publish().await;
        pause(Duration::from_millis(150)).await;
        stage.kill(0).await;
        stage.start(0).await;
    }
    is_caught(&mut stage, "acknowledge_before_commit", &["absent"]).await;
}

#[tokio::test]
async fn fires_without_a_unique_key_are_caught() {
    let redis = RedisServer::start(&[]);
    let stage = FaultHarness::sqlite().await.with("REVEILLE_FAILPOINT", "no_unique_key");
    let mut stage = stage.with("REVEILLE_BUS__URL", &redis.url());
    stage.start(0).await;
    stage.busy().await;
    for _ in 0..3 {
        stage.publish_as("twice").await;
    }
    is_caught(&mut stage, "no_unique_key", &["one_record"]).await;
}

#[tokio::test]
async fn instance_that_goes_by_its_own_clock_is_caught() {
    let database = Database::empty().await;
    let stage = FaultHarness::postgres(2, &database.url, &database.url).await.with("REVEILLE_FAILPOINT", "local_clock");
    let mut stage = stage.with_of(1, "LD_PRELOAD", &servers::faketime()).with_of(1, "FAKETIME", "+1h").with_of(
        1,
        "FAKETIME_DONT_FAKE_MONOTONIC",
        "1",
    );
    stage.start_all().await;
    stage.busy().await;
    is_caught(&mut stage, "local_clock", &["early"]).await;
}

#[tokio::test]
async fn intent_that_is_written_after_its_effect_is_caught() {
    let mut stage = FaultHarness::sqlite().await.with("REVEILLE_FAILPOINT", "intent_after_effect");
    payments::is_killed_while_it_pays(&mut stage).await;
    is_caught(&mut stage, "intent_after_effect", &["paid_once"]).await;
}

#[tokio::test]
async fn agent_that_stores_the_intent_of_a_payment_late_is_caught() {
    let stage = FaultHarness::sqlite().await.with("REVEILLE_FAILPOINT", "agent_intent_late");
    let mut stage = payments::is_killed_while_an_agent_pays(stage).await;
    is_caught(&mut stage, "agent_intent_late", &["paid_once"]).await;
}

#[tokio::test]
async fn append_without_a_fence_is_caught() {
    let database = Database::empty().await;
    let stage = FaultHarness::postgres(2, &database.url, &database.url).await;
    let mut stage = stage.with("REVEILLE_FAILPOINT", "append_without_fence");
    payments::sleeps_before_it_pays(&mut stage).await;
    is_caught(&mut stage, "append_without_fence", &["paid_once"]).await;
}

/// One call of the store in a hundred fails, before it takes effect or after; the services live with it.
async fn survives_failing_calls(stage: FaultHarness, what: &str) {
    let mut stage = stage.with("REVEILLE_STORE_FAULTS", "0.01,100");
    stage.effects.takes(Duration::from_millis(50));
    stage.start_all().await;
    stage.busy().await;
    let from = machine_now();
    for _ in 0..20 {
        stage.once().await;
        stage.publish().await;
        pause(Duration::from_secs(1)).await;
    }
    stage.may_lose_leases(from).await;
    let verdict = stage.must_hold(what).await;
    assert!(verdict.instants > 60, "{verdict}");
    stage.must_say("a planted fault");
}

#[tokio::test]
async fn on_sqlite_one_call_of_the_store_in_a_hundred_may_fail() {
    survives_failing_calls(FaultHarness::sqlite().await, "sqlite, 1 % of the store's calls fail").await;
}

#[tokio::test]
async fn on_postgres_one_call_of_the_store_in_a_hundred_may_fail() {
    let database = Database::empty().await;
    let stage = FaultHarness::postgres(2, &database.url, &database.url).await;
    survives_failing_calls(stage, "postgres, 1 % of the store's calls fail").await;
}

#[tokio::test]
async fn sqlite_file_that_is_full_keeps_what_it_has_and_goes_on_when_there_is_room() {
    let mut stage = FaultHarness::sqlite().await;
    stage.start(0).await;
    stage.busy().await;
    for _ in 0..2 {
        pause(Duration::from_secs(3)).await;
        stage.kill(0).await;
        let pages = stage.source.number("select page_count from pragma_page_count()").await.unwrap();
        stage.set("REVEILLE_SQLITE_PAGES", &(pages + 8).to_string());
        let from = machine_now();
        stage.start(0).await;
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            stage.publish().await;
        }
        stage.must_say("database or disk is full");
        stage.kill(0).await;
        stage.set("REVEILLE_SQLITE_PAGES", "");
        stage.start(0).await;
        stage.may_lose_leases(from).await;
    }
    let verdict = stage.must_hold("sqlite, its file full twice").await;
    assert!(verdict.instants > 50, "{verdict}");
}

/// Every bug has its test above.
#[test]
fn each_bug_that_can_be_planted_is_looked_for() {
    let here = include_str!("failpoints.rs");
    for bug in reveille::base::failpoint::FAILPOINTS {
        assert!(here.contains(&format!("is_caught(&mut stage, \"{bug}\"")), "{bug} is not looked for");
    }
}
