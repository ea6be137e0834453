//! Migration 0060: uses of credentials and keys of `dedup` and `throttle` count 200 bytes each. Those of before count
//! on SQLite, where the upgrade adds them; on Postgres they count nothing, and give nothing back.

use reveille::base::token::{TokenKind, TokenText};

use super::{in_words, left_by};
use crate::conformance::world::STORED_BYTES;
use crate::support::app::Instance;
use crate::support::world::World;

/// The last schema in which none of them counted.
const BEFORE: i64 = 59;

/// A use of ann's, and a key of each rule of a task of hers.
const OLD: [&str; 3] = [
    "insert into credential_uses (id, tenant_id, service, account, at, used_by, host, outcome)
     values (id(1901), 'ann', 'google', 'old', '2027-02-01T00:30:00+00:00', 'poll', 'example.org', 'used')",
    "insert into dedups (task_id, key, event_key, expires_at) values (id(1), 'old', 'e', '2027-02-01T00:30:00+00:00')",
    "insert into throttles (task_id, key, arrival_at) values (id(1), 'old', '2027-02-01T00:30:00+00:00')",
];
const NEW: [&str; 3] = [
    "insert into credential_uses (id, tenant_id, service, account, at, used_by, host, outcome)
     values (id(1902), 'ann', 'google', 'new', '2027-02-01T00:30:00+00:00', 'poll', 'example.org', 'used')",
    "insert into dedups (task_id, key, event_key, expires_at) values (id(1), 'new', 'e', '2027-02-01T00:30:00+00:00')",
    "insert into throttles (task_id, key, arrival_at) values (id(1), 'new', '2027-02-01T00:30:00+00:00')",
];
const GONE: [&str; 3] = [
    "delete from credential_uses where account in ('old', 'new')",
    "delete from dedups where key in ('old', 'new')",
    "delete from throttles where key in ('old', 'new')",
];
const OF_ANN: &str = "select stored_bytes from tenant_usage where tenant_id = 'ann'";

/// Counts, and answers the number of ann; it is what is stored.
async fn count(world: &World, instance: &Instance) -> i64 {
    for _ in 0..20 {
        instance.tick(&instance.engine().byte_counter).await.expect("a tick");
        assert_eq!(world.number(STORED_BYTES).await, 0, "tenants whose number is not what is counted");
    }
    world.number(OF_ANN).await
}

async fn uses_and_keys_of_before_give_back_what_they_counted(postgres: bool) {
    let token = TokenText::new(TokenKind::Tenant);
    let world = left_by(BEFORE, postgres, &token).await;
    for row in OLD.map(|row| in_words(row, postgres, &token)) {
        world.execute(&row, &row).await;
    }
    let instance = world.instance();
    let before = count(&world, &instance).await;
    for row in NEW.map(|row| in_words(row, postgres, &token)) {
        world.execute(&row, &row).await;
    }
    assert_eq!(count(&world, &instance).await, before + 3 * 200);
    for gone in GONE {
        world.execute(gone, gone).await;
    }
    assert_eq!(count(&world, &instance).await, if postgres { before } else { before - 3 * 200 });
    // what others left is not this test's
    instance.crash();
}

#[tokio::test]
async fn uses_and_keys_of_before_give_back_what_they_counted_on_sqlite() {
    uses_and_keys_of_before_give_back_what_they_counted(false).await;
}

#[tokio::test]
async fn uses_and_keys_of_before_give_back_what_they_counted_on_postgres() {
    uses_and_keys_of_before_give_back_what_they_counted(true).await;
}
