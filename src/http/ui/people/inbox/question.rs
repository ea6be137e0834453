//! A question for input: the form in which it is answered. The fields are those of the page behind a link.

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Redirect};
use axum::routing::{get, post};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::base::token::Permission;
use crate::domain::approval::{Approval, ApprovalStatus, ArgumentFault};
use crate::http::HttpState;
use crate::http::address::address;
use crate::http::api::runs::server_question::ServerQuestionView;
use crate::http::error::ApiError;
use crate::http::in_process::CallError;
use crate::http::pages::approve::control::Controls;
use crate::http::pages::approve::item::{FaultPlace, ItemView, names};
use crate::http::pages::approve::page_room::{self, PageQuestion};
use crate::http::pages::approve::submitted_fields::SubmittedFields;
use crate::http::ui::frame::names::task_names;
use crate::http::ui::frame::render::secured;
use crate::http::ui::frame::{UiError, UiForm, UiResult, Visit};
use crate::ports::channel::templates::phrases::Phrases;

/// Why nothing came of an answer whose question is another by now.
const OTHER: &str = "What is asked is not what was shown. Look at it again, and answer that.";

/// Where an id of a question or of a run leads.
enum AskedAt {
    /// To this question for input.
    Question(Box<Approval>),
    /// To another page.
    Elsewhere(String),
}

/// The pages.
pub(super) fn routes() -> Router<HttpState> {
    Router::new().route("/ui/inbox/{id}", get(show_question)).route("/ui/inbox/{id}/answer", post(answer))
}

async fn show_question(Path(id): Path<String>, visit: Visit) -> UiResult {
    match asked_at(&visit, &id).await? {
        AskedAt::Elsewhere(href) => Ok(secured(Redirect::to(&href).into_response())),
        AskedAt::Question(question) => {
            let item = item_of(&visit, *question, None).await?;
            show(&visit, &id, &item, StatusCode::OK).await
        }
    }
}

async fn answer(Path(id): Path<String>, form: UiForm) -> UiResult {
    let visit = &form.visit;
    let question = match asked_at(visit, &id).await? {
        AskedAt::Question(question) if form.text("input_id") == question.id.to_string() => question,
        AskedAt::Question(_) | AskedAt::Elsewhere(_) => {
            return Err(UiError::new(StatusCode::CONFLICT, "This answer was not taken", OTHER));
        }
    };
    // the fields of the form are read as the page behind a link reads them
    let sent = SubmittedFields::of(form.own_fields());
    let mut item = item_of(visit, *question, Some(sent)).await?;
    let Some(body) = body_of(&mut item, form.text("do")) else {
        item.take_focus();
        return show(visit, &id, &item, StatusCode::UNPROCESSABLE_ENTITY).await;
    };
    let run = item.approval.run_id.to_string();
    match visit.post(&["v1", "runs", &run, "input"], body, form.key()).await {
        Ok(_) => Ok(form.done("/ui/inbox", "answered")),
        Err(refused) => {
            let status = place_faults(&mut item, refused)?;
            item.take_focus();
            show(visit, &id, &item, status).await
        }
    }
}

/// Looks an id up: of a question, or of a run that has one question for input open. A run with none or several leads
/// to the list of its questions, and a question about a call to its own page.
async fn asked_at(visit: &Visit, id: &str) -> Result<AskedAt, UiError> {
    let refused = match visit.get(&["v1", "approvals", id], &[]).await {
        Ok(found) if found["kind"] == "input" => return question_of(visit, &found["id"]).await,
        Ok(_) => return Ok(AskedAt::Elsewhere(address(&["ui", "approvals", id], &[]))),
        Err(refused) => refused,
    };
    let run = match visit.get(&["v1", "runs", id], &[]).await {
        Ok(run) => run,
        // an id of neither; or of a question that the reader may not see
        Err(error) if error.status == 404 => return Err(refused.into()),
        Err(error) => return Err(error.into()),
    };
    match run["inputs"].as_array().map(Vec::as_slice) {
        Some([only]) => question_of(visit, &only["id"]).await,
        _ => Ok(AskedAt::Elsewhere(address(&["ui", "inbox"], &[("run_id", id.to_owned())]))),
    }
}

/// The question of this id, which the API has shown to the reader: whole, for its form.
async fn question_of(visit: &Visit, id: &Value) -> Result<AskedAt, UiError> {
    let id = id.as_str().and_then(|id| Uuid::try_parse(id).ok()).ok_or_else(UiError::not_found)?;
    let question = visit.state.store.get_approval(&visit.caller.scope, id).await;
    let question = question.map_err(|error| ApiError::of_store(error, "question"))?;
    Ok(AskedAt::Question(Box::new(question)))
}

/// The question with its form, as far as a page has room for it, and what was sent.
async fn item_of(visit: &Visit, question: Approval, sent: Option<SubmittedFields>) -> Result<ItemView, UiError> {
    let tenant = question.tenant_id.clone();
    let make = move || {
        let fitted = page_room::fit(&[PageQuestion::whole(question)]);
        let item = ItemView::new(0, &fitted[0], Phrases::english());
        match sent {
            Some(sent) => item.filled(&sent),
            None => item,
        }
    };
    Ok(visit.state.compute_for(&tenant, make).await?)
}

/// The request for the button that was pressed. `None`: what was sent can't be read, and the form says why.
fn body_of(item: &mut ItemView, press: &str) -> Option<Value> {
    let input = item.approval.id;
    if matches!(press, "decline" | "cancel") {
        item.faults.clear();
        return Some(json!({ "input_id": input, "action": press }));
    }
    if item.refuse_unseen() {
        return None;
    }
    Some(json!({ "input_id": input, "fields": given_by(item)? }))
}

/// The values of the fields; one that was there and is left out now is null.
fn given_by(item: &ItemView) -> Option<Map<String, Value>> {
    let Value::Object(mut given) = item.answer()?.arguments? else { return None };
    for name in names(&item.approval) {
        given.entry(name).or_insert(Value::Null);
    }
    Some(given)
}

/// Puts what the API has against an answer beside the fields; answers the status of the page.
fn place_faults(item: &mut ItemView, refused: CallError) -> Result<StatusCode, UiError> {
    match refused.status {
        409 => {
            let why = refused.problem["detail"].as_str().unwrap_or(OTHER).to_owned();
            item.other_faults.push((FaultPlace::Item, why));
            Ok(StatusCode::CONFLICT)
        }
        422 => {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let fault = |fault: &Value| {
                let pointer = text(&fault["pointer"]).replacen("/fields", "/modifications", 1);
                ArgumentFault::untranslated(pointer, text(&fault["message"]))
            };
            item.assign_faults(refused.problem["errors"].as_array().into_iter().flatten().map(fault).collect());
            Ok(StatusCode::UNPROCESSABLE_ENTITY)
        }
        _ => Err(refused.into()),
    }
}

async fn show(visit: &Visit, id: &str, item: &ItemView, status: StatusCode) -> UiResult {
    let question = view(visit, item)?;
    let names = task_names(visit, std::iter::once(&question)).await;
    let page = json!({
        "question": question, "names": names, "may_answer": visit.holds(Permission::RunsInput),
        "action": address(&["ui", "inbox", id, "answer"], &[]),
    });
    visit.show_as(status, "inbox_question.html", "A question for you", page).await
}

/// All that the page shows of a question.
fn view(visit: &Visit, item: &ItemView) -> Result<Value, UiError> {
    let (approval, proposal) = (&item.approval, &item.approval.proposal);
    let controls = serde_json::to_value(Controls::of(Phrases::english(), item));
    let controls = controls.map_err(|error| UiError::internal(&error.to_string()))?;
    Ok(json!({
        "id": approval.id, "run_id": approval.run_id, "task_id": approval.task_id, "tenant_id": approval.tenant_id,
        "agent": proposal.tool, "chain": proposal.delegation_chain, "step": proposal.step,
        "asked": proposal.summary, "description": proposal.description, "server": ServerQuestionView::of(proposal),
        "status": approval.status, "created_at": approval.created_at, "expires_at": approval.expires_at,
        "decided_at": approval.decided_at, "decided_by": approval.decided_by, "given": approval.modifications,
        "is_open": approval.status == ApprovalStatus::Pending && visit.now < approval.expires_at,
        "left_out": item.left_out, "controls": controls,
    }))
}

#[cfg(test)]
mod tests {
    use url::form_urlencoded::Serializer;

    use super::*;
    use crate::domain::approval::{ApprovalChoice, Proposal, QuestionKind, test_question};

    /// A question for a table, of which the room is there.
    fn item(texts: &[(&str, &str)]) -> ItemView {
        let now = "2027-03-01T08:00:00Z".parse().unwrap();
        let asked = test_question("Book a table", now, now);
        let proposal = Proposal {
            kind: QuestionKind::Input,
            arguments: json!({ "room": "lobby" }),
            parameters: json!({
                "type": "object", "required": ["party"],
                "properties": { "room": { "type": "string" }, "party": { "type": "integer" } },
            }),
            options: vec![ApprovalChoice::Edit, ApprovalChoice::Cancel],
            allow_modification: true,
            ..asked.proposal.clone()
        };
        let question = PageQuestion::whole(Approval { proposal, ..asked });
        let fields = Serializer::new(String::new()).extend_pairs(texts).finish();
        ItemView::new(0, &question, Phrases::english()).filled(&SubmittedFields::parse(fields.as_bytes()))
    }

    #[test]
    fn answer_has_each_field_and_null_for_one_that_was_emptied() {
        let body = |texts: &[(&str, &str)]| body_of(&mut item(texts), "answer").map(|body| body["fields"].clone());
        assert_eq!(body(&[("0.f0", "lobby"), ("0.f1", "4")]), Some(json!({ "room": "lobby", "party": 4 })));
        assert_eq!(body(&[("0.f0", ""), ("0.f1", "4")]), Some(json!({ "room": null, "party": 4 })));
        assert_eq!(body(&[("0.f0", "lobby"), ("0.f1", "four")]), None);
    }

    #[test]
    fn question_is_declined_and_cancelled_whatever_stands_in_its_fields() {
        for press in ["decline", "cancel"] {
            let mut item = item(&[("0.f1", "four")]);
            let expected = json!({ "input_id": item.approval.id, "action": press });
            assert_eq!(body_of(&mut item, press), Some(expected));
        }
    }

    #[test]
    fn faults_of_the_api_stand_beside_their_fields() {
        let mut item = item(&[("0.f0", "lobby"), ("0.f1", "40")]);
        let errors = json!([{ "pointer": "/fields/party", "message": "at most 12" }]);
        let refused = CallError { status: 422, problem: json!({ "errors": errors }) };
        assert_eq!(place_faults(&mut item, refused).unwrap(), StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(item.faults, [(1, "at most 12".to_owned())]);
        let late = CallError { status: 409, problem: json!({ "detail": "the time is over" }) };
        assert_eq!(place_faults(&mut item, late).unwrap(), StatusCode::CONFLICT);
        assert_eq!(item.other_faults, [(FaultPlace::Item, "the time is over".to_owned())]);
    }
}
