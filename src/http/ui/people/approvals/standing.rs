//! Decisions about more than one call: standing grants, and overrides of the approval matrix.

use axum::extract::Path;
use chrono::{DateTime, Utc};
use serde_json::{Value, json};

use crate::base::token::Permission;
use crate::http::ui::frame::instant::instant;
use crate::http::ui::frame::names::task_names;
use crate::http::ui::frame::{UiForm, UiList, UiResult, Visit};

/// Address of the grants.
const GRANTS: &str = "/ui/approvals/grants";
/// Address of the overrides.
const OVERRIDES: &str = "/ui/approvals/overrides";

/// Calls that people have allowed for good, with those that have ended.
pub async fn show_grants(visit: Visit) -> UiResult {
    let list = UiList::of(&visit, &["task_id"]);
    let mut view = list.ask(&visit, &["v1", "grants"], GRANTS).await?;
    for grant in view["items"].as_array_mut().into_iter().flatten() {
        grant["state"] = state(grant, visit.now).into();
    }
    show(&visit, "Standing grants", view, "grants").await
}

/// Rules in the place of the approval matrix.
pub async fn show_overrides(visit: Visit) -> UiResult {
    let list = UiList::of(&visit, &["task_id", "agent"]);
    let view = list.ask(&visit, &["v1", "approval-overrides"], OVERRIDES).await?;
    show(&visit, "Approval overrides", view, "overrides").await
}

async fn show(visit: &Visit, title: &str, list: Value, kind: &str) -> UiResult {
    let names = task_names(visit, list["items"].as_array().into_iter().flatten()).await;
    let may_decide = visit.holds(Permission::ApprovalsDecide);
    let page = json!({ "list": list, "kind": kind, "may_decide": may_decide, "names": names });
    visit.show("grants.html", title, page).await
}

/// Takes a grant back: people are asked again.
pub async fn revoke_grant(Path(id): Path<String>, form: UiForm) -> UiResult {
    form.visit.delete(&["v1", "grants", &id], &[]).await?;
    Ok(form.done(GRANTS, "revoked"))
}

/// Takes an override back: the matrix decides again.
pub async fn remove_override(Path(id): Path<String>, form: UiForm) -> UiResult {
    form.visit.delete(&["v1", "approval-overrides", &id], &[]).await?;
    Ok(form.done(OVERRIDES, "revoked"))
}

/// Whether a grant holds, as a word.
fn state(grant: &Value, now: DateTime<Utc>) -> &'static str {
    let ends = instant(&grant["expires_at"]);
    match () {
        _ if grant["revoked_at"].is_string() => "revoked",
        _ if ends.is_some_and(|at| at <= now) => "expired",
        _ if grant["uses_left"] == 0 => "used_up",
        _ => "active",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grant_holds_until_it_is_revoked_expired_or_used_up() {
        let now: DateTime<Utc> = "2026-11-21T00:00:00Z".parse().unwrap();
        let of = |revoked: Option<&str>, ends: &str, uses: Option<u64>| {
            state(&json!({ "revoked_at": revoked, "expires_at": ends, "uses_left": uses }), now)
        };
        let (past, later) = ("2026-11-21T00:00:00Z", "2026-11-21T00:00:00.001Z");
        assert_eq!(of(None, later, None), "active");
        assert_eq!(of(None, later, Some(1)), "active");
        assert_eq!(of(None, later, Some(0)), "used_up");
        assert_eq!(of(None, past, None), "expired");
        assert_eq!(of(Some(past), later, None), "revoked");
    }
}
