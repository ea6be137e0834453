//! Trials of tools: a call that a person makes.

use std::time::Duration;

use serde_json::Value;

use crate::base::invalid::ValidationErrors;
use crate::base::json::typed;
use crate::base::token::Permission;
use crate::executor::tool_trial::{TrialOutcome, TrialRefusal, TrialRequest};
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::{Call, Id, Json, JsonBody};
use crate::http::schema;

/// Time after which a place may be free again.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Try a tool
///
/// Calls it once, with a tenant's credentials and outside of any run. The answer has the arguments, the request and the
/// result with secrets taken out, or the error of the tool. A call that acts, or about which the approval rules ask somebody, is
/// made only where `confirmed` is true: otherwise this answers 409 `confirmation_required`, and nothing is done. To
/// agree to a call about which the rules ask needs `approvals:decide` as well. Calls that would be held
/// (`undo_seconds`) are made at once. An `Idempotency-Key` has no effect here: a repetition calls again.
#[utoipa::path(post, path = "/v1/tools/{name}/call", tag = "operations", security(("bearer" = ["tasks:write"])),
    params(("name" = String, Path, description = "Name of the tool; that of an MCP server's `server.tool`")),
    request_body = schema::CallTool,
    responses((status = 200, body = TrialOutcome), (status = 409, body = ProblemDetails,
        content_type = "application/problem+json", description = "It has to be confirmed, or can't be called now")))]
pub async fn call_tool(Call(state, caller): Call, name: Id, body: JsonBody) -> Result<Json<TrialOutcome>, ApiError> {
    caller.may(Permission::TasksWrite)?;
    let (may_decide, by) = (caller.holds(Permission::ApprovalsDecide), caller.name());
    let read = move |value: Value| {
        let asked: schema::CallTool = typed::body(&value)?;
        Ok::<_, ValidationErrors>((asked, caller.acts_for(&value)?))
    };
    let (asked, tenant) = body.read_with(read).await?;
    let schema::CallTool { arguments, version, confirmed, .. } = asked;
    let arguments = Value::Object(arguments);
    let asked = TrialRequest { tenant, tool: name.0, arguments, version, confirmed, may_decide, by };
    state.trials.call(asked).await.map(Json).map_err(refused)
}

/// The refusal of a trial as its caller reads it.
fn refused(why: TrialRefusal) -> ApiError {
    match why {
        TrialRefusal::NoSuchTool => ApiError::NotFound("tool"),
        TrialRefusal::Invalid(error) => {
            let message = error.model_message().map_or_else(|| error.to_string(), |(_, _, message)| message);
            ApiError::invalid("/arguments", message)
        }
        TrialRefusal::Conflict(why) => ApiError::Conflict(why),
        TrialRefusal::NeedsConfirmation(why) => ApiError::ConfirmationRequired(why),
        TrialRefusal::NeedsDecider => ApiError::Forbidden { permission: Permission::ApprovalsDecide.as_str() },
        TrialRefusal::Busy => ApiError::TooManyRequests {
            detail: "as many tools are tried at once as may be: try again once one of them is done",
            retry_after: ASK_AGAIN,
        },
        TrialRefusal::Quota(exceeded) => ApiError::QuotaExceeded(exceeded),
        TrialRefusal::Store(error) => ApiError::from(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::tool::ToolError;
    use crate::store::StoreError;

    #[test]
    fn each_refusal_has_its_status_and_says_what_to_do() {
        let problem = |why| {
            let problem = refused(why).into_problem();
            (problem.status, problem.kind.into_owned(), problem.detail)
        };
        let kind = |word: &str| format!("urn:reveille:problem:{word}");
        let cases = [
            (TrialRefusal::NoSuchTool, 404, "not-found", "there is no such tool"),
            (TrialRefusal::Conflict("it has changed".into()), 409, "conflict", "it has changed"),
            (TrialRefusal::NeedsConfirmation("it acts".into()), 409, "confirmation_required", "it acts"),
            (TrialRefusal::NeedsDecider, 403, "forbidden", "this needs a token with `approvals:decide`"),
            (TrialRefusal::Store(StoreError::NotFound), 404, "not-found", "there is no such thing"),
        ];
        for (why, status, word, detail) in cases {
            assert_eq!(problem(why), (status, kind(word), detail.to_owned()));
        }
        assert_eq!(problem(TrialRefusal::Busy).0, 429);
        let invalid = refused(TrialRefusal::Invalid(ToolError::arguments("/n: the value is not of type \"integer\"")));
        let errors = invalid.into_problem().errors;
        let told = (errors[0].pointer.as_str(), errors[0].message.as_str());
        assert_eq!(told, ("/arguments", "/n: the value is not of type \"integer\""));
    }
}
