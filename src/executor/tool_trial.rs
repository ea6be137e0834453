//! Trials of tools: one call that a person makes, outside of any run. Whatever keeps an agent from a tool keeps a
//! person from it, too; and a call that acts, or about which the rules ask somebody, is made once the person agrees.
//!
//! Nothing of a call is repeated, kept or told to anybody else. That it was made is on the record before it is.

mod outcome;

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use chrono_tz::Tz;
use futures::FutureExt;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::agent::Agent;
use crate::agent::ruling::RulingRequest;
use crate::base::collections::fair_queue::FairQueue;
use crate::base::compute::steps_to_write;
use crate::base::id::{Tenant, new_id};
use crate::domain::approval::proposal::{canonical_hash, undo_window};
use crate::domain::approval::{ApprovalLevel, Category, Ruling};
use crate::domain::memory::PersonWords;
use crate::domain::quota::{ExceededQuota, Quota};
use crate::executor::tool_trial::outcome::beginning;
use crate::ports::tool::access::ToolLimits;
use crate::ports::tool::builtin::OF_A_RUN;
use crate::ports::tool::output::OutputLevel;
use crate::ports::tool::registry::RegisteredTool;
use crate::ports::tool::{
    Definition, ToolCaller, ToolContext, ToolError, ToolFailure, ToolHost, ToolOutput, ToolSource, ToolStatus,
    UsedSecrets,
};
use crate::store::Store;

pub use outcome::{TrialError, TrialOutcome, TrialRefusal, TrialRequest};

/// Trials that are under way at once, of all tenants.
const AT_ONCE: usize = 16;
/// Of these, the places that a tenant which has one leaves to others.
const LEFT_TO_OTHERS: usize = 4;
/// Longest call: its answer comes before the time of its request is over.
const LIMIT_SECONDS: u64 = 25;

/// Tries tools. Cheap to clone: all clones share the places.
#[derive(Clone)]
pub struct ToolTrials(Arc<TrialParts>);

struct TrialParts {
    agent: Agent,
    host: Arc<dyn ToolHost>,
    store: Store,
    required_approvers: u32,
    places: FairQueue<String>,
}

impl ToolTrials {
    /// Trials of the tools of an agent. `required_approvers`: how many people agree to a call about which the rules
    /// ask.
    pub fn new(agent: Agent, host: Arc<dyn ToolHost>, store: Store, required_approvers: u32) -> ToolTrials {
        let places = FairQueue::with_reserve(AT_ONCE, LEFT_TO_OTHERS);
        ToolTrials(Arc::new(TrialParts { agent, host, store, required_approvers, places }))
    }

    /// Whether the operator's rules let no call of this tool run without a person's consent, whatever its arguments and
    /// its tenant are. Rules of agents and tasks, and overrides, may say otherwise.
    pub fn always_asks(&self, tool: &Definition) -> bool {
        let policy = &self.0.agent.policy;
        tool.requires_confirmation || !policy.may_let_through(&tool.name, tool.category, tool.consequence)
    }

    /// Makes a call, once, and answers what came of it.
    ///
    /// # Errors
    /// The call was not made, for this reason.
    pub async fn call(&self, asked: TrialRequest) -> Result<TrialOutcome, TrialRefusal> {
        let tool = self.find(&asked)?;
        let digest = self.check(&asked, &tool).await.map_err(TrialRefusal::Invalid)?;
        self.refuse_halted(&asked.tenant).await?;
        let ruling = self.rule(&asked, &tool).await?;
        self.confirm(&asked, tool.definition(), &ruling)?;
        let place = self.0.places.try_acquire(asked.tenant.as_str()).ok_or(TrialRefusal::Busy)?;
        let timezone = self.timezone_of(&asked.tenant).await?;
        self.take_fire(&asked.tenant).await?;
        if let Err(why) = self.record(&asked, tool.definition(), digest).await {
            self.0.store.give_fires_back(asked.tenant.as_str(), 1);
            return Err(why);
        }
        let outcome = self.carry_out(asked, &tool, timezone).await;
        drop(place);
        Ok(outcome)
    }

    /// The tool, where this tenant may call it outside of a run, and it is the one that was looked at.
    fn find(&self, asked: &TrialRequest) -> Result<Arc<RegisteredTool>, TrialRefusal> {
        let (tools, name) = (self.0.agent.current_tools(), asked.tool.as_str());
        if let Some(absence) = tools.absence(name) {
            return Err(TrialRefusal::Conflict(absence.message(name)));
        }
        let is_there = |tool: &&Arc<RegisteredTool>| tool.definition().status != ToolStatus::Removed;
        let tool = tools.find(name).filter(is_there).ok_or(TrialRefusal::NoSuchTool)?;
        let offer = tools.offer(Some(asked.tenant.as_str()), &ToolLimits::default(), tool.definition());
        if let Err(why) = offer
            && !why.may_be_called()
        {
            return Err(TrialRefusal::Conflict(format!("`{name}` can't be called: {}", why.message())));
        }
        if let Some(why) = needs_a_run(tool) {
            return Err(TrialRefusal::Conflict(why));
        }
        let version = &tool.definition().version;
        match &asked.version {
            Some(seen) if seen != version => {
                let why = format!("`{name}` has the version {version} by now: look at it again");
                Err(TrialRefusal::Conflict(why))
            }
            _ => Ok(Arc::clone(tool)),
        }
    }

    /// Holds the arguments against the schema, and answers their digest; on a computing thread where that takes long.
    async fn check(&self, asked: &TrialRequest, tool: &Arc<RegisteredTool>) -> Result<String, ToolError> {
        let arguments = asked.arguments.clone();
        let steps = tool.steps(&arguments).saturating_add(steps_to_write(&arguments));
        let tool = Arc::clone(tool);
        let checked = move || tool.check(&arguments).map(|()| canonical_hash(&arguments));
        self.0.agent.compute.run_if_costly(asked.tenant.as_str(), steps, checked).await?
    }

    /// Nothing begins for a tenant that is halted.
    async fn refuse_halted(&self, tenant: &Tenant) -> Result<(), TrialRefusal> {
        match self.0.store.halts().await?.halt_of(tenant.as_str()) {
            None => Ok(()),
            Some(kind) => {
                let why = format!("nothing is called for this tenant now: {}", kind.as_str());
                Err(TrialRefusal::Conflict(why))
            }
        }
    }

    /// The ruling on the call, which is of no task and no agent.
    async fn rule(&self, asked: &TrialRequest, tool: &Arc<RegisteredTool>) -> Result<Ruling, TrialRefusal> {
        let (agent, tenant) = (&self.0.agent, asked.tenant.as_str());
        let overrides = self.0.store.approval_overrides_of_calls(tenant, None, None, &[asked.tool.as_str()]).await?;
        let request = RulingRequest {
            policy: agent.policy.clone(),
            tool: Arc::clone(tool),
            arguments: asked.arguments.clone(),
            tenant: tenant.to_owned(),
            credential: tool.tool.credential_chosen(&asked.arguments),
            agent: None,
            task: None,
            overrides,
        };
        Ok(request.judge(&agent.compute).await)
    }

    /// Whether this person may agree to the call, and has.
    fn confirm(&self, asked: &TrialRequest, tool: &Definition, ruling: &Ruling) -> Result<(), TrialRefusal> {
        let is_ruled = ruling.gate == ApprovalLevel::Confirm;
        if is_ruled && self.0.required_approvers > 1 {
            let why = format!("more than one person agrees to a call of `{}`: make a task that calls it", tool.name);
            return Err(TrialRefusal::Conflict(why));
        }
        if is_ruled && !asked.may_decide {
            return Err(TrialRefusal::NeedsDecider);
        }
        match to_confirm(tool, ruling) {
            Some(why) if !asked.confirmed => Err(TrialRefusal::NeedsConfirmation(why)),
            _ => Ok(()),
        }
    }

    /// The time zone of the tenant's recipient.
    async fn timezone_of(&self, tenant: &Tenant) -> Result<Tz, TrialRefusal> {
        let recipient = self.0.store.recipient_to_tell(tenant.as_str()).await?;
        Ok(recipient.map_or(Tz::UTC, |recipient| recipient.timezone))
    }

    /// Counts the call as a fire of this minute.
    async fn take_fire(&self, tenant: &Tenant) -> Result<(), TrialRefusal> {
        let (store, tenant) = (&self.0.store, tenant.as_str());
        if store.take_fires(tenant, 1).await? == 1 {
            return Ok(());
        }
        // a tenant that has stored all that it may has none either
        store.admit_bytes(tenant, 1).await?;
        let limit = store.quotas_of(tenant).await?.fires_per_minute;
        Err(TrialRefusal::Quota(Box::new(ExceededQuota {
            tenant: tenant.to_owned(),
            quota: Quota::FiresPerMinute,
            limit,
            usage: limit,
            retry_after: Duration::from_secs(60 - store.clock().now().timestamp().rem_euclid(60) as u64),
        })))
    }

    /// Puts the call on the record before it is made: whoever asks may be gone when it ends.
    async fn record(&self, asked: &TrialRequest, tool: &Definition, digest: String) -> Result<(), TrialRefusal> {
        let body = json!({
            "tool": tool.name, "version": tool.version, "arguments": digest, "confirmed": asked.confirmed,
        });
        Ok(self.0.store.record_tool_trial(asked.tenant.as_str(), &asked.by, body).await?)
    }

    /// Makes the call.
    async fn carry_out(&self, asked: TrialRequest, tool: &RegisteredTool, timezone: Tz) -> TrialOutcome {
        let definition = tool.definition();
        let context = self.context(&asked.tenant, definition, timezone);
        let mut arguments = asked.arguments.clone();
        // the level of a call is no matter of its tool
        if tool.output_level().is_some() {
            OutputLevel::take_from(&mut arguments);
        }
        let request = request_of(&context, tool, &arguments).await;
        let begun = context.clock.elapsed();
        let called = self.within_limit(&context, tool, arguments).await;
        let duration_ms = context.clock.elapsed().saturating_sub(begun).as_millis() as i64;
        let shown = match context.used_secrets.clean(called).await {
            Ok(output) => shown(&context, output).await,
            Err(error) => Err(error),
        };
        let (result, truncated, error) = match shown {
            Ok((result, truncated)) => (Some(result), truncated, None),
            Err(error) => (None, false, Some(TrialError::of(&error))),
        };
        TrialOutcome {
            tool: definition.name.clone(),
            version: definition.version.clone(),
            arguments: context.used_secrets.clean_output(ToolOutput::json(asked.arguments)).await.data,
            request: shown_request(&context, request).await,
            result,
            truncated,
            error,
            duration_ms,
        }
    }

    /// The context of a call of no run.
    fn context(&self, tenant: &Tenant, tool: &Definition, timezone: Tz) -> ToolContext {
        let TrialParts { agent, host, store, .. } = &*self.0;
        let usual = Duration::from_secs(agent.settings.tool_execution_timeout.min(LIMIT_SECONDS));
        let (run_id, used_secrets) = (Uuid::nil(), UsedSecrets::default());
        let call_id = format!("trial-{}", new_id(store.clock().now()));
        ToolContext {
            credentials: ToolContext::credentials_of(host, tenant, (None, None), &tool.name, &used_secrets),
            tenant: tenant.clone(),
            run_id,
            task_id: None,
            called_by: ToolCaller::Trial,
            turn: 0,
            idempotency_key: ToolContext::key_of(run_id, 0, &call_id),
            call_id,
            delegation_chain: Vec::new(),
            words: PersonWords::default(),
            limits: Arc::default(),
            timezone,
            time_limit: tool.timeout.unwrap_or(usual).min(usual),
            host: Arc::clone(host),
            clock: store.clock().clone(),
            compute: agent.compute.clone(),
            used_secrets,
            continuation: None,
            progress: Default::default(),
        }
    }

    /// The call within its time, until its tenant is halted. A panic in it is the tool's failure.
    async fn within_limit(
        &self,
        context: &ToolContext,
        tool: &RegisteredTool,
        arguments: Value,
    ) -> Result<ToolOutput, ToolError> {
        let (definition, limit) = (tool.definition(), context.time_limit);
        let called = async { tool.tool.call(context, arguments).await };
        tokio::select! {
            biased;
            done = AssertUnwindSafe(called).catch_unwind() => done.unwrap_or_else(|_| {
                Err(ToolError::for_model(ToolFailure::InternalError, "panicked", "the tool broke down"))
            }),
            () = context.clock.sleep(limit) => {
                let why = format!("no result within {} s", limit.as_secs_f64());
                Err(given_up(definition, (ToolFailure::Timeout, "timeout"), why))
            }
            () = self.0.store.until_halted(context.tenant.as_str()) => {
                let why = "the call was given up: nothing is called for this tenant now".to_owned();
                Err(given_up(definition, (ToolFailure::ResourceError, "halted"), why))
            }
        }
    }
}

/// Why a tool can't be called outside of a run.
fn needs_a_run(tool: &RegisteredTool) -> Option<String> {
    let name = tool.definition().name.as_str();
    match tool.tool.source() {
        ToolSource::Agent => Some(format!("`{name}` is an agent: make a task for it")),
        ToolSource::Builtin if OF_A_RUN.contains(&name) => Some(format!("`{name}` is of use in a run alone")),
        _ if tool.tool.may_need_input() => Some(format!("`{name}` asks a person, which only a run does")),
        _ => None,
    }
}

/// Whether a call may change anything.
fn acts(tool: &Definition) -> bool {
    !matches!(tool.category, Category::Read | Category::Analysis)
}

/// Why a person has to agree to a call; `None`: nobody has to. A rule that lets agents call a tool takes no question
/// away here.
fn to_confirm(tool: &Definition, ruling: &Ruling) -> Option<String> {
    let Definition { name, category, consequence, requires_confirmation, undo_seconds, .. } = tool;
    let asks = ruling.gate == ApprovalLevel::Confirm || *requires_confirmation;
    if !acts(tool) && !asks && undo_window(*undo_seconds).is_none() {
        return None;
    }
    let effect = format!("`{name}` is `{}` of `{}` consequence", category.as_str(), consequence.as_str());
    let effect = match undo_window(*undo_seconds) {
        Some(_) => format!("{effect}, and is not held here as in a run"),
        None => effect,
    };
    Some(match ruling.reasons.last().filter(|_| asks) {
        Some(why) => format!("{effect}; a person has to agree to the call: {why}"),
        None => format!("{effect}; a person has to agree to the call"),
    })
}

/// The failure of a call that was given up while it was under way.
fn given_up(tool: &Definition, (kind, code): (ToolFailure, &str), why: String) -> ToolError {
    match acts(tool) {
        true => {
            let why = format!("{why}; nobody knows whether it has had its effect: look before you call it again");
            ToolError::for_model(kind, "outcome_unknown", why)
        }
        false => ToolError::for_model(kind, code, why),
    }
}

/// The request that a call sends, or the server that it goes to; `None`: its arguments say all.
async fn request_of(context: &ToolContext, tool: &RegisteredTool, arguments: &Value) -> Option<Value> {
    match (tool.tool.source(), tool.definition().name.split_once('.')) {
        (ToolSource::Mcp, Some((server, name))) => Some(json!({ "server": server, "tool": name })),
        _ => tool.tool.shown_request(context, arguments).await,
    }
}

/// The request of a call as it is shown, without the secrets that the call has used; of a long one the beginning.
async fn shown_request(context: &ToolContext, request: Option<Value>) -> Option<Value> {
    let request = context.used_secrets.clean_output(ToolOutput::json(request?)).await.data;
    let (tenant, steps) = (context.tenant.as_str(), steps_to_write(&request));
    Some(context.compute.run_if_costly(tenant, steps, move || beginning(request)).await.ok()?.0)
}

/// A result as it is shown, and whether it is only the beginning; read on a computing thread where it is long.
async fn shown(context: &ToolContext, output: ToolOutput) -> Result<(Value, bool), ToolError> {
    let (value, _) = context.value_of(output).await?;
    let steps = steps_to_write(&value);
    Ok(context.compute.run_if_costly(context.tenant.as_str(), steps, move || beginning(value)).await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::approval::Consequence;

    fn tool(category: Category) -> Definition {
        Definition::new("look", "", json!({ "type": "object" }), category, Consequence::Medium)
    }

    fn ruling(gate: ApprovalLevel, reasons: &[&str]) -> Ruling {
        Ruling { gate, reasons: reasons.iter().map(|why| (*why).to_owned()).collect(), reason_codes: Vec::new() }
    }

    #[test]
    fn trials_are_made_up_to_the_most_at_once_and_a_tenant_leaves_some_to_others() {
        let places: FairQueue<String> = FairQueue::with_reserve(AT_ONCE, LEFT_TO_OTHERS);
        let of = |tenant: &str| std::iter::from_fn(|| places.try_acquire(tenant)).take(AT_ONCE).collect::<Vec<_>>();
        let of_ann = of("ann");
        assert_eq!(of_ann.len(), AT_ONCE - LEFT_TO_OTHERS);
        let others = ["bob", "cem", "dov", "eva"].map(|tenant| places.try_acquire(tenant));
        assert!(others.iter().all(Option::is_some));
        assert!(places.try_acquire("fay").is_none(), "one beyond the most");
        drop(of_ann);
        assert!(places.try_acquire("fay").is_some());
    }

    #[test]
    fn person_agrees_to_what_acts_is_held_or_is_asked_about_and_to_nothing_else() {
        let auto = ruling(ApprovalLevel::Auto, &["a rule lets it through"]);
        let asks = ruling(ApprovalLevel::Confirm, &["by the matrix", "by a rule"]);
        for category in Category::ALL {
            let reads = matches!(category, Category::Read | Category::Analysis);
            assert_eq!(to_confirm(&tool(category), &auto).is_none(), reads, "{category:?}");
            let why = to_confirm(&tool(category), &asks).unwrap();
            assert!(why.contains(category.as_str()) && why.ends_with(": by a rule"), "{why}");
        }
        let held = Definition { undo_seconds: Some(30), ..tool(Category::Read) };
        assert!(to_confirm(&held, &auto).unwrap().contains("is not held here"));
        let strict = Definition { requires_confirmation: true, ..tool(Category::Read) };
        assert!(to_confirm(&strict, &auto).is_some());
    }

    #[test]
    fn call_that_was_given_up_may_have_had_its_effect_where_it_acts() {
        let timeout = |category| given_up(&tool(category), (ToolFailure::Timeout, "timeout"), "no result".into());
        assert_eq!(timeout(Category::Read).code(), "timeout");
        let error = TrialError::of(&timeout(Category::SideEffect));
        assert_eq!((error.kind.as_str(), error.code.as_str()), ("timeout", "outcome_unknown"));
        assert!(error.message.starts_with("no result; nobody knows"), "{error:?}");
    }
}
