//! The audit record: who did what, newest first.

use axum::Router;
use axum::routing::get;
use serde_json::{Value, json};

use crate::http::HttpState;
use crate::http::ui::frame::{UiList, UiResult, Visit};

/// Acts that are on record, for the field in which one is chosen. Others can be typed.
const ACTIONS: [&str; 31] = [
    "approval.approved",
    "approval.cancelled",
    "approval.edited",
    "approval.expired",
    "approval.stopped",
    "budgets.reset",
    "budgets.set",
    "credential.deleted",
    "credential.put",
    "fact.added",
    "fact.corrected",
    "fact.deleted",
    "facts.deleted",
    "grant.created",
    "grant.revoked",
    "grant.used",
    "master_key.rotated",
    "override.removed",
    "override.set",
    "quotas.reset",
    "quotas.set",
    "recipient.deleted",
    "run.started",
    "task.disabled",
    "task.enabled",
    "tenant.disabled",
    "tenant.enabled",
    "tenant.started",
    "tenant.stopped",
    "tool.accepted",
    "tool.called",
];
/// Bytes of the body of an entry that the page shows.
const BODY_BYTES: usize = 600;
/// Pages of things, by their types on the record.
const PAGES: [(&str, &str); 4] =
    [("approval", "/ui/approvals"), ("delivery", "/ui/deliveries"), ("run", "/ui/runs"), ("task", "/ui/tasks")];

/// The page.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new().route("/ui/audit", get(list_entries))
}

async fn list_entries(visit: Visit) -> UiResult {
    let list = UiList::of(&visit, &["action", "subject_id"]);
    let mut list = list.ask(&visit, &["v1", "audit"], "/ui/audit").await?;
    for entry in list["items"].as_array_mut().into_iter().flatten() {
        entry["href"] = href(entry).into();
        shorten(entry);
    }
    visit.show("audit.html", "Audit", json!({ "list": list, "actions": ACTIONS })).await
}

/// Puts the beginning of its body as text in the place of it: `body`, and whether it `is_cut`.
fn shorten(entry: &mut Value) {
    let whole = match entry["body"].take() {
        Value::Null => return,
        body => serde_json::to_string_pretty(&body).unwrap_or_default(),
    };
    entry["is_cut"] = (whole.len() > BODY_BYTES).into();
    entry["body"] = Value::from(&whole[..whole.floor_char_boundary(BODY_BYTES)]);
}

/// Where the thing is shown that an entry is about.
fn href(entry: &Value) -> Option<String> {
    let (kind, id) = (entry["subject_type"].as_str()?, entry["subject_id"].as_str()?);
    let (_, page) = PAGES.iter().find(|(known, _)| *known == kind)?;
    Some(format!("{page}/{id}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn body_is_shown_at_its_longest_and_cut_one_byte_beyond_it() {
        let shown = |bytes: usize| {
            // with its quotes
            let mut entry = json!({ "body": "x".repeat(bytes - 2) });
            shorten(&mut entry);
            (entry["body"].as_str().unwrap().len(), entry["is_cut"].clone())
        };
        assert_eq!(shown(BODY_BYTES), (BODY_BYTES, json!(false)));
        assert_eq!(shown(BODY_BYTES + 1), (BODY_BYTES, json!(true)));
        let mut without = json!({ "body": null });
        shorten(&mut without);
        assert_eq!(without["body"], Value::Null);
    }

    #[test]
    fn entry_leads_to_its_thing_where_that_has_a_page() {
        let entry = |kind: &str| json!({ "subject_type": kind, "subject_id": "0199" });
        assert_eq!(href(&entry("task")).as_deref(), Some("/ui/tasks/0199"));
        assert_eq!(href(&entry("tenant")), None);
        assert_eq!(href(&json!({})), None);
        assert!(ACTIONS.is_sorted());
    }
}
