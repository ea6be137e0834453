//! Approvals over HTTP: what people are asked, and their answers. The link pages are in
//! [`crate::http::pages::approve`].
//!
//! Reading decides nothing. A decision names the digest of what was shown; the store lets one of two win.

pub mod decision;
pub mod grants;
pub mod overrides;
mod view;

use axum::http::StatusCode;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Map, Value};
use uuid::Uuid;

use crate::base::invalid::ValidationErrors;
use crate::base::json::typed;
use crate::base::token::Permission;
use crate::domain::approval::{Approval, ApprovalStatus, QuestionKind, Via, arguments};
use crate::http::api::approvals::decision::{Decider, Decision, GrantRequest, missing, sentence};
use crate::http::error::{ApiError, PROBLEM_JSON, ProblemDetails};
use crate::http::request::{Call, EarlyResponse, Id, Items, Json, JsonBody, ListPage, Query};
use crate::http::schema;
use crate::store::{ApprovalFilter, DecisionOutcome, Grant};

pub use view::{ApprovalOfRun, ApprovalView};

/// Result of a decision.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct DecidedView {
    /// The approval after the decision.
    #[serde(flatten)]
    pub approval: ApprovalView,
    /// The standing grant that was given with it.
    #[schema(required)]
    pub grant_id: Option<Uuid>,
}

/// A decision that came too late or was about something else, with how things stand.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ApprovalProblem {
    /// The problem that the decision met.
    #[serde(flatten)]
    pub problem: ProblemDetails,
    /// The approval as it is now.
    pub approval: ApprovalView,
}

/// List approvals
#[utoipa::path(get, path = "/v1/approvals", tag = "approvals", security(("bearer" = ["approvals:read"])),
    params(
        ("tenant_id" = Option<String>, Query, description = "This tenant's only"),
        ("status" = Option<ApprovalStatus>, Query), ("kind" = Option<QuestionKind>, Query),
        ("task_id" = Option<Uuid>, Query),
        ("run_id" = Option<Uuid>, Query), ("batch_id" = Option<Uuid>, Query),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<ApprovalView>)))]
pub async fn list_approvals(
    Call(state, caller): Call,
    mut query: Query,
) -> Result<Json<Items<ApprovalView>>, ApiError> {
    caller.may(Permission::ApprovalsRead)?;
    let tenant = query.text("tenant_id");
    let page = ListPage::of(&mut query);
    let filter = ApprovalFilter {
        tenant: None,
        status: query.word("status", &ApprovalStatus::ALL.map(|status| (status.as_str(), status))),
        kind: query.word("kind", &QuestionKind::ALL.map(|kind| (kind.as_str(), kind))),
        task_id: query.id("task_id"),
        run_id: query.id("run_id"),
        batch_id: query.id("batch_id"),
        before: page.before,
        limit: page.fetch(),
    };
    query.done()?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    let approvals = state.store.approvals_page(&scope, &filter).await?;
    Ok(Json(page.within(approvals, |approval| approval.id).map(ApprovalView::of)))
}

/// Read an approval
#[utoipa::path(get, path = "/v1/approvals/{id}", tag = "approvals", security(("bearer" = ["approvals:read"])),
    params(("id" = Uuid, Path)), responses((status = 200, body = ApprovalView)))]
pub async fn get_approval(Call(state, caller): Call, id: Id, query: Query) -> Result<Json<ApprovalView>, ApiError> {
    caller.may(Permission::ApprovalsRead)?;
    query.done()?;
    let approval = state.store.get_approval(&caller.scope, id.of("approval")?).await.map_err(missing)?;
    Ok(Json(ApprovalView::of(approval)))
}

/// Decide on an approval
///
/// Names the digest of the approval that was read, so that the decision is about the call that was shown. An edit is
/// held against the tool's schema and runs as edited. A second decision, or one about another digest, is refused with
/// the approval as it is now. Where several people have to agree, the answer is counted, and the approval stays pending
/// until enough have.
#[utoipa::path(post, path = "/v1/approvals/{id}/decision", tag = "approvals",
    security(("bearer" = ["approvals:decide"])),
    params(("id" = Uuid, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Makes a repetition safe")),
    request_body = schema::NewDecision,
    responses((status = 200, body = DecidedView, description = "Decided, or counted"),
        (status = 409, body = ApprovalProblem, content_type = "application/problem+json",
            description = "It is decided or expired already, or another digest is asked about")))]
pub async fn decide_approval(Call(state, caller): Call, id: Id, body: JsonBody) -> Result<Response, EarlyResponse> {
    let id = body.key.begin(&state, &caller, Permission::ApprovalsDecide, id.of("approval")).await?;
    let approval = state.store.get_approval(&caller.scope, id).await.map_err(missing)?;
    let read = move |value: Value| parse(&value, &approval).map(|decision| (decision, approval));
    let (decision, approval) = body.read_with(read).await?;
    let who = Decider { by: caller.name(), via: Via::Api };
    let (decided, grant) = decision.put(&state, &caller.scope, &approval, who).await?;
    let approval = match decided {
        DecisionOutcome::Done(approval) | DecisionOutcome::Counted(approval) => approval,
        DecisionOutcome::Refused(refusal, approval) => return Ok(refused(&sentence(refusal, &approval), approval)),
    };
    let answer = DecidedView { approval: ApprovalView::of(approval), grant_id: grant.map(|grant: Grant| grant.id) };
    body.key.remember_answer(&state, &caller, StatusCode::OK, answer).await
}

fn refused(why: &str, approval: Approval) -> Response {
    let problem = ApiError::Conflict(why.to_owned()).into_problem();
    let status = StatusCode::from_u16(problem.status).unwrap_or(StatusCode::CONFLICT);
    let answer = ApprovalProblem { problem, approval: ApprovalView::of(approval) };
    (status, [(CONTENT_TYPE, PROBLEM_JSON), (CACHE_CONTROL, "no-store")], Json(answer)).into_response()
}

/// Reads a decision about this approval. A grant that names no arguments is the narrowest: all of them as they are.
fn parse(body: &Value, approval: &Approval) -> Result<Decision, ValidationErrors> {
    let mut faults = ValidationErrors::new();
    let Some(asked) = typed::read::<schema::NewDecision>(body, "", &mut faults) else { return Err(faults) };
    let schema::NewDecision { decision: choice, digest, modifications, comment, grant } = asked;
    let proposed = &approval.proposal.arguments;
    let arguments = modifications.map(|changes| arguments::changed(proposed, &changes));
    let comment = comment.filter(|comment| !comment.trim().is_empty());
    let grant = grant.and_then(|grant| typed::read::<schema::NewGrant>(&grant, "/grant", &mut faults));
    let all = || proposed.as_object().map(Map::keys).into_iter().flatten().cloned().collect();
    let grant = grant.map(|schema::NewGrant { days, uses, args }| {
        let args = args.unwrap_or_else(all);
        GrantRequest { days, uses, args }
    });
    faults.into_result(Decision { choice, digest, arguments, comment, grant })
}
