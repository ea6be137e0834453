//! Migration 0034: a run says why it was recorded, which its fire key alone said before.

use reveille::base::token::{TokenKind, TokenText};
use reveille::domain::run::RunOrigin;

use super::{id, in_words, left_by};

/// The last schema without the column.
const BEFORE: i64 = 33;

async fn run_of_before_says_why_it_was_recorded(postgres: bool) {
    let token = TokenText::new(TokenKind::Tenant);
    let world = left_by(BEFORE, postgres, &token).await;
    for (run, key) in [("102", "b:1:2027-03-01T00:30:00.000Z"), ("105", "t:101:1")] {
        let renamed = in_words(&format!("update runs set fire_key = '{key}' where id = id({run})"), postgres, &token);
        world.execute(&renamed, &renamed).await;
    }
    let instance = world.instance();
    for (run, origin) in [
        ("101", RunOrigin::Trigger),
        ("102", RunOrigin::Backfill),
        ("103", RunOrigin::Trigger),
        ("104", RunOrigin::Request),
        ("105", RunOrigin::Retry),
    ] {
        assert_eq!(instance.run(id(run)).await.origin, origin, "{run}");
    }
    // what others left is not this test's
    instance.crash();
}

#[tokio::test]
async fn run_of_before_says_why_it_was_recorded_on_sqlite() {
    run_of_before_says_why_it_was_recorded(false).await;
}

#[tokio::test]
async fn run_of_before_says_why_it_was_recorded_on_postgres() {
    run_of_before_says_why_it_was_recorded(true).await;
}
