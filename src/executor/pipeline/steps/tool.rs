//! `tool`: a call of a registered tool, without a model. Nobody can be asked here: a tool that no rule lets through is
//! refused when the task is saved, and a call that the rules do not let through is refused when it is made.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use crate::agent::Agent;
use crate::agent::checkpoint::run_error;
use crate::agent::ruling::RulingRequest;
use crate::base::invalid::did_you_mean;
use crate::base::template::Tree;
use crate::domain::approval::proposal::undo_window;
use crate::domain::approval::{ApprovalLevel, Category};
use crate::domain::credential::Reference;
use crate::domain::memory::PersonWords;
use crate::domain::run::{ToolAttribution, ToolRecord};
use crate::executor::pipeline::account::StepAccount;
use crate::executor::pipeline::kind::{Effect, StepAction, StepError, StepFault, StepKind, StepResult};
use crate::executor::pipeline::reading::{StepReader, given};
use crate::executor::pipeline::schema::ToolStep;
use crate::executor::pipeline::scope::StepScope;
use crate::ports::tool::absence::ToolAbsence;
use crate::ports::tool::registry::{RegisteredTool, unknown_tool};
use crate::ports::tool::{
    Definition, ToolCaller, ToolCatalog, ToolContext, ToolError, ToolFailure, ToolRegistry, ToolSource, ToolStatus,
};

/// Why a call that asks a person does not go on.
const NEEDS_A_PERSON: &str = "it asks a person in the middle of the call, which this step can't; a step `agent` can";

struct ToolExecution {
    name: String,
    arguments: Tree,
    /// An MCP server may say more of its tool after the step was read.
    catalog: ToolCatalog,
    /// The credential that is written out in the arguments: the task names it.
    credential: Option<Reference>,
}

/// `{"name": …, "args": {…}}`.
pub fn read(value: &Value, reading: &mut StepReader) -> Option<Box<dyn StepKind>> {
    let fields = reading.object::<ToolStep>(value)?;
    let name = reading.needed_text(fields, "name")?;
    let tools = reading.parts.tools();
    let Some(tool) = tools.find(&name) else { return read_unlisted(name, fields, &tools, reading) };
    let refused = refused(tool.definition(), &reading.parts.agent).or_else(|| needs_a_person(tool));
    if let Some(why) = refused.or_else(|| (!tools.allows_any(&name)).then(|| denied(&name))) {
        reading.below("name").fault(why);
        return None;
    }
    let arguments = arguments(fields, reading)?;
    if let Some(literal) = arguments.literal()
        && let Err(error) = tool.check(literal)
    {
        reading.below("args").fault(message(&error));
    }
    let credential = given(fields, "args").and_then(|written| tool.tool.credential_chosen(written));
    Some(Box::new(ToolExecution { catalog: reading.parts.catalog(), name, arguments, credential }))
}

/// A step of a tool that is not there. It can't be judged, so no task is saved with it. A run of one whose MCP server
/// does not list it now, or whose definition waits to be accepted, goes on to the step, by which time it may be there.
fn read_unlisted(
    name: String,
    fields: &Map<String, Value>,
    tools: &ToolRegistry,
    reading: &mut StepReader,
) -> Option<Box<dyn StepKind>> {
    let absence = tools.absence(&name);
    if absence.is_some() && !reading.is_saved {
        let arguments = arguments(fields, reading)?;
        return Some(Box::new(ToolExecution { catalog: reading.parts.catalog(), name, arguments, credential: None }));
    }
    reading.below("name").fault(match absence {
        Some(unlisted @ ToolAbsence::Unlisted) => format!("{}; is it up?", unlisted.message(&name)),
        Some(waits @ ToolAbsence::NotAccepted) => waits.message(&name),
        None => format!("unknown tool `{name}`{}", did_you_mean(&name, tools.names())),
    });
    None
}

/// The arguments as they are written; none where nothing is.
fn arguments(fields: &Map<String, Value>, reading: &mut StepReader) -> Option<Tree> {
    match given(fields, "args") {
        None => Some(Tree::Literal(json!({}))),
        Some(_) => reading.tree(fields, "args"),
    }
}

fn effect(tool: &Definition) -> Effect {
    match tool.category {
        _ if tool.only_reads() => Effect::Read,
        Category::Read | Category::Analysis => Effect::Repeatable,
        _ if tool.idempotent => Effect::Repeatable,
        _ => Effect::Once,
    }
}

/// Why a tool can't be a step, whoever calls it and with whatever.
fn refused(tool: &Definition, agent: &Agent) -> Option<String> {
    let Definition { name, category, consequence, requires_confirmation, status, undo_seconds, .. } = tool;
    if *status == ToolStatus::Removed {
        return Some(format!("the tool `{name}` has been removed"));
    }
    if undo_window(*undo_seconds).is_some() {
        return Some(format!(
            "`{name}` is held for a while before it runs, and a step `tool` can't wait; a step `agent` can"
        ));
    }
    let may = !requires_confirmation && agent.policy.may_let_through(name, *category, *consequence);
    (!may).then(|| needs_approval(name))
}

fn needs_a_person(tool: &RegisteredTool) -> Option<String> {
    let name = &tool.definition().name;
    match tool.tool.source() {
        ToolSource::Agent => Some(format!("`{name}` is an agent: use a step `agent` with its name")),
        _ if tool.tool.may_need_input() => {
            Some(format!("`{name}` asks a person, which this step can't; a step `agent` can"))
        }
        _ => None,
    }
}

/// The fault of a call of a tool that is not there.
fn missing(tool: &str, tools: &ToolRegistry) -> StepFault {
    match tools.absence(tool) {
        Some(absence) => StepFault::passing(absence.code(), absence.message(tool), None),
        None => StepFault::new("unknown_tool", message(&unknown_tool(tool, tools.names()))),
    }
}

fn denied(tool: &str) -> String {
    format!("the operator does not let you use `{tool}`")
}

fn needs_approval(tool: &str) -> String {
    format!("`{tool}` needs a person's approval, which a step `tool` can't ask for; a step `agent` can")
}

/// The error in words.
pub fn message(error: &ToolError) -> String {
    match error {
        ToolError::Tell { message, .. } | ToolError::Unsent { message, .. } | ToolError::Abort { message, .. } => {
            message.clone()
        }
        ToolError::Credential(error) => error.to_string(),
        ToolError::NeedsInput(_) => NEEDS_A_PERSON.to_owned(),
    }
}

impl ToolExecution {
    async fn call(&self, act: &StepAction<'_>) -> Result<StepResult, StepError> {
        let tools = act.world.parts.tools();
        let Some(tool) = tools.find(&self.name) else { return Err(missing(&self.name, &tools).into()) };
        // the registry may be another one than when the task was saved
        if let Some(why) = refused(tool.definition(), &act.world.parts.agent) {
            return Err(StepFault::new("tool_refused", why).into());
        }
        if !tools.allows(act.world.tenant.as_str(), &self.name) {
            return Err(StepFault::new("tool_denied", denied(&self.name)).into());
        }
        let (tree, steps) = (self.arguments.clone(), self.steps(act.scope));
        let arguments = act.compute(steps, move |scope| Ok(tree.value(&scope.template)?)).await?;
        let (checked, steps) = (tools.clone(), tool.steps(&arguments));
        let name = self.name.clone();
        let arguments = act
            .compute(steps, move |_| match checked.find(&name).map(|tool| tool.check(&arguments)) {
                Some(Err(error)) => Err(StepFault::new("invalid_args", message(&error))),
                Some(Ok(())) | None => Ok(arguments),
            })
            .await?;
        self.permit(act, tool, &arguments).await?;
        let task_id = Some(act.world.task_id).filter(|id| !id.is_nil());
        let ids = (Some(act.world.run_id).filter(|id| !id.is_nil()), task_id);
        let world = act.world;
        let context = ToolContext {
            credentials: ToolContext::credentials_of(&world.host, &world.tenant, ids, &self.name, &world.used_secrets),
            tenant: act.world.tenant.clone(),
            run_id: act.world.run_id,
            task_id,
            called_by: ToolCaller::Step,
            turn: act.position,
            call_id: act.place(),
            idempotency_key: act.key(),
            delegation_chain: vec![],
            words: PersonWords::default(),
            limits: Arc::default(),
            timezone: act.world.timezone,
            time_limit: act.time_limit,
            host: act.world.host.clone(),
            clock: act.world.clock.clone(),
            compute: act.world.parts.compute.clone(),
            used_secrets: act.world.used_secrets.clone(),
            continuation: None,
            progress: Default::default(),
        };
        let begun = act.world.clock.elapsed();
        let called = async { tool.tool.call(&context, arguments.clone()).await };
        let results = &act.world.parts.agent.results;
        let answered = results.cached_or_call(tool, &context, &arguments, called).await.map(|fetched| fetched.output);
        // none is kept in which there is a secret, so it is taken out afterwards
        let answered = context.used_secrets.clean(answered).await;
        let took = act.world.clock.elapsed().saturating_sub(begun);
        let answered = match answered {
            Ok(output) => context.value_of(output).await.map_err(ToolError::from),
            Err(error) => Err(error),
        };
        let length = answered.as_ref().ok().map(|(_, length)| *length);
        let account = StepAccount::of_tool(self.record(act, &arguments, took, length));
        match answered {
            Ok((value, _)) => Ok(StepResult::with_account(value, account)),
            Err(error) => {
                Err(StepFault { account: Box::new(account), ..failed(effect(tool.definition()), error) }.into())
            }
        }
    }

    /// The account of a call whose result has so many characters; `None`: it has failed.
    fn record(&self, act: &StepAction<'_>, arguments: &Value, took: Duration, length: Option<usize>) -> ToolRecord {
        let attribution = ToolAttribution { agent: None, step: Some(act.place()), turn: act.position };
        let ended = (length.is_some(), length.unwrap_or_default());
        ToolRecord::new((&self.name, true), arguments, took.as_millis() as i64, ended, attribution)
    }

    /// Whether the rules let this call through, for this tenant and with these arguments.
    async fn permit(
        &self,
        act: &StepAction<'_>,
        tool: &Arc<RegisteredTool>,
        arguments: &Value,
    ) -> Result<(), StepError> {
        let chosen = tool.tool.credential_chosen(arguments);
        let overrides = act.world.store.overrides(None, &[self.name.as_str()]).await.map_err(run_error)?;
        let request = RulingRequest {
            policy: act.world.parts.agent.policy.clone(),
            tool: Arc::clone(tool),
            arguments: arguments.clone(),
            tenant: act.world.tenant.as_str().to_owned(),
            credential: chosen.filter(|chosen| self.credential.as_ref() != Some(chosen)),
            agent: None,
            task: act.world.approval_context.rules.clone(),
            overrides,
        };
        let ruling = request.judge(&act.world.parts.compute).await;
        match (ruling.gate, ruling.reasons.last()) {
            (ApprovalLevel::Auto, _) => Ok(()),
            (ApprovalLevel::Confirm, why) => {
                let why = why.map_or(String::new(), |why| format!(": {why}"));
                Err(StepFault::new("tool_refused", needs_approval(&tool.definition().name) + &why).into())
            }
        }
    }
}

/// The fault of a call that failed; `effect`: that of the tool as it was called.
fn failed(effect: Effect, error: ToolError) -> StepFault {
    match error {
        ToolError::Abort { code, message } => StepFault::new(code, message),
        ToolError::Unsent { code, message } => StepFault::passing(code, message, None),
        ToolError::Credential(error) => StepFault::credential(&error),
        // tools know that nobody is asked here
        needs_input @ ToolError::NeedsInput(_) => StepFault::new(needs_input.code(), message(&needs_input)),
        ToolError::Tell { kind, code, message } => match (kind, effect) {
            (ToolFailure::RateLimit, _) => StepFault::passing(code, message, None),
            (ToolFailure::Timeout | ToolFailure::ResourceError | ToolFailure::TransientError, Effect::Once) => {
                StepFault::unknown(message)
            }
            (ToolFailure::Timeout | ToolFailure::ResourceError | ToolFailure::TransientError, _) => {
                StepFault::passing(code, message, None)
            }
            _ => StepFault::new(code, message),
        },
    }
}

impl StepKind for ToolExecution {
    fn effect(&self) -> Effect {
        // nobody knows the effect of a tool that is not there
        self.catalog.current().find(&self.name).map_or(Effect::Once, |tool| effect(tool.definition()))
    }

    fn steps(&self, scope: &StepScope) -> u64 {
        self.arguments.steps(&scope.template)
    }

    fn shown(&self, scope: &StepScope) -> Result<Value, StepFault> {
        Ok(json!({ "name": self.name, "args": self.arguments.value(&scope.template)? }))
    }

    fn perform<'a>(&'a self, act: &'a StepAction<'a>) -> BoxFuture<'a, Result<StepResult, StepError>> {
        Box::pin(self.call(act))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::approval::InputForm;
    use crate::domain::credential::Reference;
    use crate::executor::pipeline::kind::RetryAdvice;
    use crate::ports::tool::NeededInput;
    use crate::ports::tool::registry::fixture::listed_tool;
    use crate::ports::vault::credentials::{CredentialError, CredentialFault};

    #[test]
    fn call_that_was_not_sent_may_be_tried_again_even_where_its_effect_happens_once() {
        let sent = |error| failed(Effect::Once, error);
        let credential = |kind| {
            let reference = Reference::parse("shop").unwrap();
            let error = CredentialError { kind, reference, why: String::new(), last_used: 0, sent_at: None };
            let StepFault { fault, again, .. } = sent(ToolError::Credential(error));
            (fault.code, again == RetryAdvice::No, fault.credential_issue.is_some())
        };
        assert_eq!(credential(CredentialFault::Busy), ("credential_busy".into(), false, false));
        assert_eq!(credential(CredentialFault::Missing), ("credential_missing".into(), true, true));
        let fault = sent(ToolError::for_model(ToolFailure::TransientError, "connect", "gone"));
        assert_eq!((fault.fault.code.as_str(), fault.again), ("outcome_unknown", RetryAdvice::No));
        let away = sent(ToolError::Unsent { code: "mcp_unavailable".into(), message: "it is away".into() });
        assert_eq!((away.fault.code.as_str(), away.again == RetryAdvice::No), ("mcp_unavailable", false));
        let kind = ToolFailure::PermissionDenied;
        let foreign = sent(ToolError::for_model(kind, "credential_missing", "Please connect shop"));
        assert_eq!(foreign.fault.credential_issue, None, "a word of a tool's is none of ours");
    }

    #[test]
    fn call_that_asks_a_person_fails_since_nobody_is_asked_here() {
        let part = json!({ "key": "k", "message": "Sure?", "mode": "form", "fields": [] });
        let question = json!({ "server": "a", "parts": [part], "continuation": { "kind": "continue", "round": 1 } });
        let form = InputForm {
            question: "Sure?".into(),
            description: String::new(),
            parameters: json!({}),
            values: json!({}),
            lacks: Vec::new(),
        };
        let needed = NeededInput { form, question: serde_json::from_value(question).unwrap() };
        let StepFault { fault, again, .. } = failed(Effect::Read, ToolError::NeedsInput(Box::new(needed)));
        assert_eq!((fault.code.as_str(), again == RetryAdvice::No), ("mcp_needs_input", true));
        assert!(fault.message.contains("a step `agent` can"), "{}", fault.message);
    }

    #[test]
    fn tool_that_its_server_does_not_list_is_away_and_any_other_that_is_not_there_unknown() {
        let waiting = [listed_tool("github.close")];
        let tools = ToolRegistry::new(Vec::new()).unwrap().with_servers(["github"]).with_waiting(waiting);
        let told = |name: &str| {
            let fault = missing(name, &tools);
            (fault.fault.code, fault.again == RetryAdvice::No)
        };
        assert_eq!(told("github.search"), ("mcp_unavailable".into(), false));
        assert_eq!(told("github.close"), ("mcp_tool_not_accepted".into(), false));
        assert_eq!(told("gitlab.search"), ("unknown_tool".into(), true));
    }
}
