//! Migration 0057: each row of `runs` counts 300 bytes besides its long parts. Rows of before count them on SQLite,
//! where the upgrade adds them; on Postgres they stay as they were counted, and so does what their deletion gives back.

use chrono::TimeDelta;
use reveille::base::token::{TokenKind, TokenText};
use serde_json::json;

use super::{in_words, left_by};
use crate::conformance::world::STORED_BYTES;
use crate::support::app::Instance;
use crate::support::world::World;

/// The last schema in which a row without long parts counted nothing.
const BEFORE: i64 = 56;

const ALL: &str = "select count(*) from runs";
const WITH_THEIR_ROW: &str = "select count(*) from runs where stored_bytes >= 300";
const WITHOUT_PARTS: &str =
    "select count(*) from runs where input is null and cause is null and output is null and error is null";

/// A run of before that counted nothing ends with an output.
const ENDS: &str = "update runs set output = 'done' where id = id(1899)";
const OLD: &str = "
    insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, created_at, finished_at)
    values (id(1899), id(1898), 'ann', 's:old', 'schedule', '2027-02-01T00:30:00+00:00', 'succeeded',
            '2027-02-01T00:30:00+00:00', '2027-02-01T00:30:00+00:00'),
           (id(1897), id(1898), 'ann', 's:older', 'schedule', '2027-02-01T00:20:00+00:00', 'succeeded',
            '2027-02-01T00:20:00+00:00', '2027-02-01T00:20:00+00:00')";
const OF_OLD: &str = "select cast(sum(stored_bytes) as bigint) from runs where fire_key in ('s:old', 's:older')";

async fn count(world: &World, instance: &Instance) {
    for _ in 0..20 {
        instance.tick(&instance.engine().byte_counter).await.expect("a tick");
        assert_eq!(world.number(STORED_BYTES).await, 0, "tenants whose number is not what is counted");
    }
}

async fn rows_of_before_give_back_what_they_counted_and_new_ones_count_themselves(postgres: bool) {
    let token = TokenText::new(TokenKind::Tenant);
    let world = left_by(BEFORE, postgres, &token).await;
    let old = in_words(OLD, postgres, &token);
    world.execute(&old, &old).await;
    assert!(world.number(WITHOUT_PARTS).await > 2, "there are more of them");
    let instance = world.instance();
    count(&world, &instance).await;
    assert_eq!(world.number(OF_OLD).await, if postgres { 0 } else { 600 });
    assert!(postgres || world.number(WITH_THEIR_ROW).await == world.number(ALL).await);

    // one that is written anew is measured as it is now
    let ends = in_words(ENDS, postgres, &token);
    world.execute(&ends, &ends).await;
    count(&world, &instance).await;
    let of_old = world.number(OF_OLD).await;
    assert!(of_old > if postgres { 300 } else { 600 }, "{of_old}");
    let before = world.number(WITH_THEIR_ROW).await;
    let task = instance.task(json!({})).await;
    instance.run_now(&task).await;
    count(&world, &instance).await;
    assert_eq!(world.number(WITH_THEIR_ROW).await, before + 1);

    let forgotten = world.clock.now() - TimeDelta::days(1);
    let forget = instance.on(move |store| async move { store.forget_runs(forgotten, 100).await });
    assert!(forget.await.expect("a batch") > 2);
    count(&world, &instance).await;
    // what others left is not this test's
    instance.crash();
}

#[tokio::test]
async fn rows_of_before_give_back_what_they_counted_and_new_ones_count_themselves_on_sqlite() {
    rows_of_before_give_back_what_they_counted_and_new_ones_count_themselves(false).await;
}

#[tokio::test]
async fn rows_of_before_give_back_what_they_counted_and_new_ones_count_themselves_on_postgres() {
    rows_of_before_give_back_what_they_counted_and_new_ones_count_themselves(true).await;
}
