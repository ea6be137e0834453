//! Migration 0035: stored fields that it renames are read under their new names.

use reveille::base::id::Scope;
use reveille::base::token::{TokenKind, TokenText};
use reveille::domain::approval::reason_code::ReasonCode;
use serde_json::{Value, json};

use super::{id, in_words, left_by};

/// The last schema with the earlier names.
const BEFORE: i64 = 34;

/// A condition that has fired, and whose polls fail by now.
fn condition() -> Value {
    json!({
        "format": 1, "verdict": true, "since": null, "value": 7, "previous": 6, "validators": {}, "watched": null,
        "last_poll_at": null, "last_good_at": null, "held_ms": 4500, "spent": true, "cooldown_until": null,
        "failing": { "since": "2027-03-01T08:00:00Z", "count": 4, "told": true,
                     "error": { "kind": "timeout", "message": "too late" } },
        "missing_told": true,
    })
}

async fn stored_fields_of_before_are_read_by_their_new_names(postgres: bool) {
    let token = TokenText::new(TokenKind::Tenant);
    let world = left_by(BEFORE, postgres, &token).await;
    let with_reasons = r#"replace(cast(proposal as text), '"send_note"', '"send_note","barred":"recipient:ann",
        "why":[{"kind":"held"},{"kind":"rule","by":"task","gate":"confirm"}]')"#;
    let with_reasons = if postgres { format!("cast({with_reasons} as jsonb)") } else { with_reasons.to_owned() };
    for statement in [
        format!("update approvals set proposal = {with_reasons} where id = id(501)"),
        format!(
            "insert into condition_state (task_id, version, edges, body, updated_at)
             values (id(12), 1, 3, '{}', '2027-03-01T08:00:00+00:00')",
            condition()
        ),
    ] {
        let statement = in_words(&statement, postgres, &token);
        world.execute(&statement, &statement).await;
    }
    let instance = world.instance();
    let states = instance.on(|store| async move { store.condition_states(&Scope::Every, &[id("12")]).await });
    let state = states.await.expect("states").remove(&id("12")).expect("a state");
    assert_eq!((state.edges, state.true_for_ms, state.latched, state.missing_notified), (3, 4500, true, true));
    assert!(state.failing.is_some_and(|failing| failing.notified && failing.count == 4));
    let asked = instance.on(|store| async move { store.get_approval(&Scope::Every, id("501")).await });
    let proposal = asked.await.expect("an approval").proposal;
    assert_eq!(proposal.excluded_approver.as_deref(), Some("recipient:ann"));
    assert!(
        matches!(proposal.reason_codes[..], [ReasonCode::UndoWindow, ReasonCode::Rule { .. }]),
        "{:?}",
        proposal.reason_codes
    );
    assert_eq!(world.number("select count(*) from runs where execution_ms > 0").await, 3);
    // what others left is not this test's
    instance.crash();
}

#[tokio::test]
async fn stored_fields_of_before_are_read_by_their_new_names_on_sqlite() {
    stored_fields_of_before_are_read_by_their_new_names(false).await;
}

#[tokio::test]
async fn stored_fields_of_before_are_read_by_their_new_names_on_postgres() {
    stored_fields_of_before_are_read_by_their_new_names(true).await;
}
