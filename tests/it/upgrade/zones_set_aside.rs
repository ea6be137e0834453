//! Migration 0056: a release of zone rules that is set aside has a column that says so. Before, its name began with
//! `-`.

use reveille::base::token::{TokenKind, TokenText};

use super::{in_words, left_by};

/// The last schema in which the name alone said so.
const BEFORE: i64 = 55;

/// Two that were set aside, one of which an instance that has it has stored again since.
const ROWS: &str = "
    insert into zone_releases (release, rules, created_at)
    values ('-2999a', bytes(7b), '2027-02-01T00:30:00+00:00'), ('-2999b', bytes(7b), '2027-02-01T00:30:00+00:00'),
           ('2999b', bytes(7b), '2027-02-01T00:30:00+00:00')";

async fn zone_release_that_was_set_aside_has_its_own_name_after_the_upgrade(postgres: bool) {
    let token = TokenText::new(TokenKind::Tenant);
    let world = left_by(BEFORE, postgres, &token).await;
    let rows = in_words(ROWS, postgres, &token);
    world.execute(&rows, &rows).await;
    let instance = world.instance();
    let aside = instance.on(|store| async move { store.zones_set_aside().await }).await;
    assert_eq!(aside.expect("names"), ["2999a"]);
    let newest = instance.on(|store| async move { store.newest_zones().await }).await;
    assert_eq!(newest.expect("a look").map(|newest| newest.release.to_string()).as_deref(), Some("2999b"));
    let since = "select count(*) from zone_releases where release = '2999a' and set_aside_at = created_at";
    assert_eq!(world.number(since).await, 1);
    // what others left is not this test's
    instance.crash();
}

#[tokio::test]
async fn zone_release_that_was_set_aside_has_its_own_name_after_the_upgrade_on_sqlite() {
    zone_release_that_was_set_aside_has_its_own_name_after_the_upgrade(false).await;
}

#[tokio::test]
async fn zone_release_that_was_set_aside_has_its_own_name_after_the_upgrade_on_postgres() {
    zone_release_that_was_set_aside_has_its_own_name_after_the_upgrade(true).await;
}
