//! Migration 0056: facts, answers under a key, events that wait for the bus and entries of the record of audit count as
//! stored bytes. Those of before are counted by the upgrade itself on SQLite; on Postgres facts and entries little by
//! little, and what goes within a day not at all.

use reveille::base::token::{TokenKind, TokenText};

use super::{ADMIN, in_words, left_by};
use crate::conformance::world::STORED_BYTES;
use crate::support::app::Instance;
use crate::support::world::World;

/// The last schema in which none of it counted.
const BEFORE: i64 = 55;

/// Rows of ann, as a service of that time had stored them.
const ROWS: [&str; 5] = [
    "insert into facts (id, tenant_id, collection, is_profile, text, folded, identity, origin, noted_by, version, mentions,
                        created_at, noted_at, last_used_at)
     values (id(801), 'ann', '', false, 'Lives in Vienna.', 'lives in vienna.', 'i1', 'person', 'agent', 2, 1,
             '2027-02-01T00:30:00+00:00', '2027-02-01T00:30:00+00:00', '2027-02-01T00:30:00+00:00'),
            (id(802), 'ann', '', false, 'Has a dog.', 'has a dog.', 'i2', 'person', 'agent', 1, 1,
             '2027-02-01T00:30:00+00:00', '2027-02-01T00:30:00+00:00', '2027-02-01T00:30:00+00:00')",
    "insert into fact_versions (fact_id, version, tenant_id, collection, text, origin, noted_by, noted_at, replaced_at)
     values (id(801), 1, 'ann', '', 'Lives in Graz.', 'person', 'agent', '2027-02-01T00:30:00+00:00',
             '2027-02-01T00:30:00+00:00')",
    "insert into fact_vectors (tenant_id, fact_id, space, vector) values ('ann', id(801), 's', bytes(0000803f0000803f))",
    "insert into idempotency (tenant_id, key, request_digest, status, body, expires_at)
     values ('ann', 'kept', bytes(0a), 200, '{\"made\": true}', '2027-02-02T00:30:00+00:00'),
            ('*', 'kept', bytes(0a), 200, '{\"made\": true}', '2027-02-02T00:30:00+00:00')",
    "insert into audit (id, tenant_id, at, actor, via, action, subject_type, subject_id, body)
     values (id(811), 'ann', '2027-02-01T00:30:00+00:00', 'token:admin', 'api', 'credential.put', 'credential', id(701), '{}'),
            (id(812), 'ann', '2027-02-01T00:30:00+00:00', 'token:admin', 'api', 'quotas.set', 'tenant', id(0), '{}')",
];
const WAITING: &str =
    "insert into bus_outbox (tenant_id, body, created_at) values ('ann', '{}', '2027-02-01T00:30:00+00:00')";

const UNCOUNTED: &str = "
    select (select count(*) from facts where stored_bytes = 0) + (select count(*) from fact_versions where stored_bytes = 0)
         + (select count(*) from fact_vectors where stored_bytes = 0)
         + (select count(*) from audit where action = 'credential.put' and stored_bytes = 0)";
/// Entries of the record that count; that of an order of the operator does not.
const COUNTED_ENTRIES: &str = "select count(*) from audit where stored_bytes > 0";
const OF_ANN: &str = "select stored_bytes from tenant_usage where tenant_id = 'ann'";

/// Counts, a piece at a time; after each the number is what is stored.
async fn count(world: &World, instance: &Instance) {
    for _ in 0..20 {
        instance.tick(&instance.engine().byte_counter).await.expect("a tick");
        assert_eq!(world.number(STORED_BYTES).await, 0, "tenants whose number is not what is counted");
    }
}

async fn facts_and_entries_of_before_are_counted_after_the_upgrade_and_facts_given_back(postgres: bool) {
    let token = TokenText::new(TokenKind::Tenant);
    let world = left_by(BEFORE, postgres, &token).await;
    for row in ROWS.map(|row| in_words(row, postgres, &token)) {
        world.execute(&row, &row).await;
    }
    world.execute(WAITING, WAITING).await;
    let instance = world.instance();
    assert_eq!(world.number(UNCOUNTED).await > 0, postgres);
    count(&world, &instance).await;
    assert_eq!((world.number(UNCOUNTED).await, world.number(COUNTED_ENTRIES).await), (0, 1));
    assert_eq!(world.number("select count(*) from stored_byte_scans").await, 0);
    let before = world.number(OF_ANN).await;

    let (status, answer) = instance.ask("DELETE", "/v1/tenants/ann/facts", ADMIN, None).await;
    assert_eq!(status, 200, "{answer}");
    for gone in ["delete from idempotency", "delete from bus_outbox"] {
        world.execute(gone, gone).await;
    }
    count(&world, &instance).await;
    // what was said, as it was said and searched, what was said before, and a vector of eight bytes
    let facts = 2 * (16 + 10) + 14 + 8;
    assert!(world.number(OF_ANN).await <= before - facts, "{before}");
    // what others left is not this test's
    instance.crash();
}

#[tokio::test]
async fn facts_and_entries_of_before_are_counted_after_the_upgrade_and_facts_given_back_on_sqlite() {
    facts_and_entries_of_before_are_counted_after_the_upgrade_and_facts_given_back(false).await;
}

#[tokio::test]
async fn facts_and_entries_of_before_are_counted_after_the_upgrade_and_facts_given_back_on_postgres() {
    facts_and_entries_of_before_are_counted_after_the_upgrade_and_facts_given_back(true).await;
}
