//! The answer of a form about questions: judged as the link page judges it, and put to the API in the reader's name.

use std::sync::Arc;

use axum::extract::Path;
use axum::http::StatusCode;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::base::token::Permission;
use crate::domain::approval::{Approval, arguments};
use crate::http::api::approvals::decision::Decision;
use crate::http::in_process::CallError;
use crate::http::pages::approve::item::FaultPlace;
use crate::http::pages::approve::press::Press;
use crate::http::pages::approve::press_outcome::PressOutcome;
use crate::http::pages::approve::submitted_fields::SubmittedFields;
use crate::http::ui::frame::{UiError, UiForm, UiResult};
use crate::http::ui::people::approvals::question::{AskedQuestion, words};

/// In the place of an edit that the API has no form for.
const NO_NULL: &str = "An argument can’t be set to null. Leave it empty, or reject the call.";

/// A decision that was not taken, and why.
struct RefusedDecision {
    id: Uuid,
    why: String,
    status: StatusCode,
}

/// Decides on what the page has shown. Nothing is decided where anything is wrong with it, or where other questions or
/// other calls are asked about by now.
pub async fn decide(Path(id): Path<String>, form: UiForm) -> UiResult {
    let visit = &form.visit;
    visit.caller.may(Permission::ApprovalsDecide)?;
    let asked = AskedQuestion::read(visit, &id).await?;
    let sent = Arc::new(SubmittedFields::of(form.own_fields()));
    let refuse = |phrase: &str, status: StatusCode| {
        let notice = words().get(phrase).to_owned();
        asked.page(visit, asked.items(), Some(notice), status)
    };
    if !asked.is_nonce(visit, sent.get("nonce").unwrap_or_default()) {
        return refuse("nothing_foreign", StatusCode::CONFLICT).await;
    }
    let Some(press) = sent.get("do").and_then(Press::read) else {
        return refuse("nothing_pressed", StatusCode::UNPROCESSABLE_ENTITY).await;
    };
    let (fill, fields) = (asked.items(), Arc::clone(&sent));
    let filled = move || fill().into_iter().map(|item| item.filled(&fields)).collect::<Vec<_>>();
    let items = visit.state.compute_for(&asked.tenant, filled).await?;
    match press.outcome(&visit.state, items, &sent).await? {
        PressOutcome::Settled(approval) => {
            let notice = format!("{} {}", words().get("nothing_settled"), first(&approval));
            asked.page(visit, asked.items(), Some(notice), StatusCode::CONFLICT).await
        }
        PressOutcome::Shown { items, phrase, status } => {
            asked.page(visit, move || items, Some(words().get(phrase).to_owned()), status).await
        }
        PressOutcome::Decided(decisions) => settle(&form, &asked.id, decisions).await,
    }
}

/// Puts the decisions one after the other, and leads back to the page.
async fn settle(form: &UiForm, id: &str, decisions: Vec<(Arc<Approval>, Decision)>) -> UiResult {
    let mut refused: Vec<RefusedDecision> = Vec::new();
    for (approval, decision) in decisions {
        refused.extend(put(form, &approval, &decision).await?);
    }
    let Some(status) = refused.iter().map(|one| one.status).max() else {
        return Ok(form.done(&format!("/ui/approvals/{id}"), "decided"));
    };
    let visit = &form.visit;
    let again = AskedQuestion::read(visit, id).await?;
    let why: Vec<&str> = refused.iter().map(|one| one.why.as_str()).collect();
    let notice = words().with("refused", &[("why", &why.join(" "))]);
    let initial = again.items();
    let items = move || {
        let mut items = initial();
        for item in &mut items {
            let of_item = refused.iter().filter(|one| one.id == item.approval.id);
            item.other_faults.extend(of_item.map(|one| (FaultPlace::Item, one.why.clone())));
        }
        items
    };
    again.page(visit, items, Some(notice), status).await
}

/// Puts a decision to the API; `None`: it is taken.
async fn put(form: &UiForm, approval: &Approval, decision: &Decision) -> Result<Option<RefusedDecision>, UiError> {
    let refused = |why: String, status: StatusCode| Some(RefusedDecision { id: approval.id, why, status });
    let Some(body) = body_of(decision, approval) else {
        return Ok(refused(NO_NULL.to_owned(), StatusCode::UNPROCESSABLE_ENTITY));
    };
    let id = approval.id.to_string();
    // each decision of a form takes effect once
    let key = form.key().map(|key| format!("{key}:{id}"));
    match form.visit.post(&["v1", "approvals", &id, "decision"], body, key.as_deref()).await {
        Ok(_) => Ok(None),
        Err(error) if error.status == 409 => Ok(refused(told(&error), StatusCode::CONFLICT)),
        Err(error) if error.status == 422 => Ok(refused(told(&error), StatusCode::UNPROCESSABLE_ENTITY)),
        Err(error) => Err(error.into()),
    }
}

/// A decision as the API takes it; `None`: it has no form for it.
fn body_of(decision: &Decision, approval: &Approval) -> Option<Value> {
    let mut body = json!({ "decision": decision.choice, "digest": decision.digest });
    if let Some(wanted) = &decision.arguments {
        body["modifications"] = Value::Object(modifications(&approval.proposal.arguments, wanted)?);
    }
    if let Some(comment) = &decision.comment {
        body["comment"] = comment.as_str().into();
    }
    if let Some(grant) = &decision.grant {
        body["grant"] = json!({ "days": grant.days, "uses": grant.uses, "args": grant.args });
    }
    Some(body)
}

/// The changes that make these arguments of the proposed ones: `null` takes one away. `None`: no changes do.
fn modifications(proposed: &Value, wanted: &Value) -> Option<Map<String, Value>> {
    let (empty, wanted_fields) = (Map::new(), wanted.as_object()?);
    let proposed_fields = proposed.as_object().unwrap_or(&empty);
    let set = wanted_fields.iter().filter(|(name, value)| proposed_fields.get(*name) != Some(*value));
    let gone = proposed_fields.keys().filter(|name| !wanted_fields.contains_key(*name));
    let mut changes: Map<String, Value> = set.map(|(name, value)| (name.clone(), value.clone())).collect();
    changes.extend(gone.map(|name| (name.clone(), Value::Null)));
    (arguments::changed(proposed, &changes) == *wanted).then_some(changes)
}

/// Why the API has refused a decision, with who was first.
fn told(error: &CallError) -> String {
    let (problem, text) = (&error.problem, |value: &Value| value.as_str().unwrap_or_default().to_owned());
    let faults = problem["errors"].as_array().into_iter().flatten();
    let faults = faults.map(|fault| format!("{} {}", text(&fault["pointer"]), text(&fault["message"])));
    let decided = &problem["approval"];
    let before = decided["decided_by"]
        .as_str()
        .map(|by| first_of(by, decided["decided_via"].as_str().unwrap_or_default(), decided["decided_at"].as_str()));
    let sentences = std::iter::once(text(&problem["detail"])).chain(faults).chain(before);
    let ended = sentences.filter(|text| !text.is_empty()).map(|text| format!("{}.", text.trim_end_matches('.')));
    ended.collect::<Vec<_>>().join(" ")
}

/// The sentence about who has decided; empty where nobody has.
fn first(approval: &Approval) -> String {
    let Some(by) = &approval.decided_by else { return String::new() };
    let at = approval.decided_at.map(|at| at.to_rfc3339());
    first_of(by, approval.decided_via.map_or("", |via| via.as_str()), at.as_deref())
}

fn first_of(by: &str, via: &str, at: Option<&str>) -> String {
    format!("{by} was first, by {via}, {}.", at.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_make_the_wanted_arguments_of_the_proposed_ones_or_there_are_none() {
        let proposed = json!({ "a": 1, "b": { "c": [1, 2] }, "d": "x" });
        let wanted = json!({ "a": 2, "b": { "c": [1, 2] }, "e": null });
        assert_eq!(modifications(&proposed, &wanted), None, "null takes away");
        let wanted = json!({ "a": 2, "b": { "c": [1] }, "e": "y" });
        let changes = json!({ "a": 2, "b": { "c": [1] }, "d": null, "e": "y" });
        assert_eq!(modifications(&proposed, &wanted).map(Value::Object), Some(changes));
        assert_eq!(modifications(&proposed, &proposed), Some(Map::new()));
        let null = json!({ "a": null });
        assert_eq!(modifications(&null, &null), Some(Map::new()), "what is left as it was stays");
    }

    #[test]
    fn refusal_says_who_was_first_and_how() {
        let problem = json!({ "detail": "the approval is approved already", "approval": {
            "decided_by": "recipient:ann", "decided_via": "link", "decided_at": "2026-11-21T00:00:00Z" } });
        let expected = "the approval is approved already. recipient:ann was first, by link, 2026-11-21T00:00:00Z.";
        assert_eq!(told(&CallError { status: 409, problem }), expected);
        let errors = json!([{ "pointer": "/comment", "message": "is too long" }]);
        let problem = json!({ "detail": "1 fault", "errors": errors });
        assert_eq!(told(&CallError { status: 422, problem }), "1 fault. /comment is too long.");
    }
}
