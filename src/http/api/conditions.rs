//! Trying a condition before a task is made of it: one poll, and what each part of its expressions says.

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::base::expr::{ExpressionPart, Language, MissingField};
use crate::base::id::{Tenant, new_id};
use crate::base::invalid::ValidationErrors;
use crate::base::json::typed;
use crate::base::token::Permission;
use crate::domain::trigger::Trigger;
use crate::domain::trigger::condition::{
    CompiledCondition, Condition, ConditionSubject, FireOn, PollFault, PollResult,
};
use crate::http::error::ApiError;
use crate::http::request::{AuthenticatedCaller, Call, Json, JsonBody};
use crate::http::{HttpState, schema};
use crate::ports::poll::{PollFailure, PollRequest};

/// Name of the task of a trial in its expressions.
const NAME: &str = "a trial";

/// Result of one poll.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ConditionTrial {
    /// Value that was seen; null where the poll failed.
    #[schema(required, value_type = Option<Value>)]
    pub value: Value,
    /// Result of the expression; null where it failed, or where there is none.
    #[schema(required)]
    pub verdict: Option<bool>,
    /// With `on_change`: whether `watch` differs from what it is of `previous`; null without a `previous`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub changed: Option<bool>,
    /// With `reset`: what it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reset: Option<bool>,
    /// The expression (`watch`, with `on_change`), and everything it is made of, in the order of the text.
    pub parts: Vec<ExpressionPart>,
    /// The field that one of its expressions looked for, and that was not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<MissingField>,
    /// Why the poll failed; such a poll is neither true nor false.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<PollFault>,
}

/// Try a condition
///
/// Polls once, as a task with this trigger would, and says what its expressions make of it. Nothing is saved, and
/// nothing is changed: polls only read.
#[utoipa::path(post, path = "/v1/conditions/test", tag = "tasks", security(("bearer" = ["tasks:write"])),
    request_body = schema::ConditionTest, responses((status = 200, body = ConditionTrial)))]
pub async fn test_condition(Call(state, caller): Call, body: JsonBody) -> Result<Json<ConditionTrial>, ApiError> {
    caller.may(Permission::TasksWrite)?;
    let value = body.json().await?;
    let now = state.clock.now();
    let (shared, to_read) = (state.clone(), caller.clone());
    let read = move || asked(&shared, &to_read, &value, now).map(|asked| (asked, value.get("previous").cloned()));
    let ((tenant, condition, question), previous) = state.compute_for(caller.computes_for(), read).await??;
    let subject = ConditionSubject { id: new_id(now), name: NAME.into(), metadata: Map::new() };
    let ask = PollRequest {
        tenant: &tenant,
        id: subject.id,
        trial: true,
        poll: &condition.poll,
        known: None,
        time_limit: condition.time_limit().to_std().unwrap_or_default(),
    };
    let seen = match state.poller.try_out(&ask).await {
        Ok(PollResult::Value { value, .. }) => Ok(value),
        Ok(PollResult::Unchanged) => {
            Err(PollFault::new("http_304", "the address says that nothing changed, though nothing was known"))
        }
        Err(PollFailure::Fault(fault)) => Err(fault),
        Err(PollFailure::Busy(_)) => {
            Err(PollFault::new("busy", "too many polls of this host at the moment; try again soon"))
        }
    };
    Ok(Json(match seen {
        Ok(value) => {
            let work = move || try_once(&question, &subject, value, previous.as_ref(), now);
            state.compute_for(tenant.as_str(), work).await?
        }
        Err(error) => ConditionTrial { error: Some(error), ..ConditionTrial::empty() },
    }))
}

/// The owner of a trial and its subject, compiled; all that is wrong is told together.
fn asked(
    state: &HttpState,
    caller: &AuthenticatedCaller,
    value: &Value,
    now: DateTime<Utc>,
) -> Result<(Tenant, Condition, CompiledCondition), ValidationErrors> {
    let mut faults = ValidationErrors::new();
    let tenant = caller.acts_for(value).map_err(|why| faults.0.extend(why.0)).ok();
    let trigger = typed::read::<schema::ConditionTest>(value, "", &mut faults)
        .and_then(|asked| Trigger::parse(&asked.trigger, "/trigger", now, &mut faults));
    let condition = match trigger {
        Some(Trigger::Condition(condition)) => Some(condition),
        Some(other) => {
            faults.add("/trigger/type", format!("is `{}`; only a condition can be tried here", other.kind()));
            None
        }
        None => None,
    };
    if let (Some(tenant), Some(condition)) = (&tenant, &condition) {
        (state.validator.poll)(tenant, &condition.poll, "/trigger/poll", &mut faults);
    }
    match (tenant, condition) {
        (Some(tenant), Some(condition)) if faults.is_empty() => {
            let question = condition.compile(&Language::default()).map_err(|fault| ValidationErrors(vec![fault]))?;
            Ok((tenant, condition, question))
        }
        _ => Err(faults),
    }
}

fn try_once(
    question: &CompiledCondition,
    subject: &ConditionSubject,
    value: Value,
    previous: Option<&Value>,
    now: DateTime<Utc>,
) -> ConditionTrial {
    // as at the first poll of a task
    let before = previous.unwrap_or(&value);
    let parts = question.parts(&value, before, subject, now);
    let answers = match question.ask(&value, before, subject, now) {
        Ok(answers) => answers,
        Err(error) => {
            let error = Some(PollFault::new("expression", error.to_string()));
            return ConditionTrial { value, parts, error, ..ConditionTrial::empty() };
        }
    };
    let watched_before = previous
        .and_then(|previous| question.ask(previous, &Value::Null, subject, now).ok().map(|answers| answers.watched));
    let missing = answers.missed.as_ref().map(|missed| question.missing_field(missed, &value, before, subject, now));
    ConditionTrial {
        missing,
        verdict: question.expression.as_ref().map(|_| answers.holds),
        changed: match (question.fire, watched_before) {
            (FireOn::OnChange, Some(before)) => Some(answers.watched != before),
            _ => None,
        },
        reset: answers.reset,
        value,
        parts,
        error: None,
    }
}

impl ConditionTrial {
    fn empty() -> ConditionTrial {
        ConditionTrial {
            value: Value::Null,
            verdict: None,
            changed: None,
            reset: None,
            parts: Vec::new(),
            missing: None,
            error: None,
        }
    }
}
