//! Carries out the tool calls of a turn: all at once, each within its own time, each with a result of its own.
//!
//! A call that fails is an observation for the model; only [`ToolError::Abort`] ends the run. Nothing is stored here.

mod absent_tool;
pub mod call_turn;
mod continued;
pub mod delegation;
mod execution;
pub mod notice;
pub mod observation;
pub mod pending_call;
mod policy;
pub mod result_cache;
pub mod shown;

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use futures::FutureExt;
use futures::stream::{FuturesUnordered, Stream};
use serde_json::Value;
use uuid::Uuid;

use crate::agent::calls::call_turn::CallTurn;
use crate::agent::calls::continued::Continued;
use crate::agent::calls::delegation::DelegationOutcome;
use crate::agent::calls::execution::ReadyCall;
use crate::agent::calls::notice::edited_notice;
use crate::agent::calls::observation::{check_turn_limit, observation, truncated_call_error, unknown_outcome_error};
use crate::agent::calls::pending_call::PendingCall;
use crate::agent::calls::policy::{is_removed, permit};
use crate::agent::calls::result_cache::ResultCache;
use crate::agent::calls::shown::{FetchedOutput, ResultView, ShownOutput};
use crate::agent::consent::input::InputVerdict;
use crate::agent::consent::{Consent, ConsentVerdict, EarlierQuestions, REFUSED};
use crate::agent::context::ContextWindow;
use crate::agent::stop::StopSignal;
use crate::agent::stream::{CallWarnings, StreamEmitter};
use crate::agent::{Agent, AgentRequest, SharedSlot};
use crate::base::clock::Clock;
use crate::base::compute::Compute;
use crate::base::id::{Tenant, new_id};
use crate::domain::approval::{Approval, CallOutcome};
use crate::domain::memory::PersonWords;
use crate::domain::run::{ResultNotice, RunError, ToolAttribution, ToolCall, ToolRecord, Usage};
use crate::ports::tool::access::ToolLimits;
use crate::ports::tool::builtin::read_data_file::READ_DATA_FILE;
use crate::ports::tool::output::{DefaultLevel, OutputLevel};
use crate::ports::tool::registry::RegisteredTool;
use crate::ports::tool::{ToolError, ToolHost, ToolRegistry, ToolStatus, UsedSecrets};

/// All that calls of one run have in common.
pub struct ToolRunner<'a> {
    /// The agent that calls, which configured ones are made of.
    pub agent: &'a Agent,
    /// The message that it answers.
    pub incoming: &'a AgentRequest,
    pub tools: &'a ToolRegistry,
    /// The limits of the task and its agent, which what it makes inherits.
    pub limits: &'a Arc<ToolLimits>,
    /// The names that may be called.
    pub callable: &'a [&'a str],
    /// The names that the model was offered.
    pub offered: &'a [&'a str],
    pub tenant: &'a Tenant,
    pub run_id: Uuid,
    /// Its name, and where it stands.
    pub attribution: &'a ToolAttribution,
    pub timezone: Tz,
    pub host: &'a std::sync::Arc<dyn ToolHost>,
    pub clock: &'a Clock,
    pub stop: &'a StopSignal,
    /// The words of a person that the run has read.
    pub words: PersonWords,
    /// The secrets that the run has used so far.
    pub used_secrets: &'a UsedSecrets,
    pub time_limit: Duration,
    pub results: &'a ResultCache,
    /// The limits of the conversation, by which results are shown and cut.
    pub window: ContextWindow,
    /// The level where neither the call nor its tool has one.
    pub usual_level: OutputLevel,
    pub emitter: &'a StreamEmitter,
    pub compute: &'a Compute,
    pub consent: Consent<'a>,
}

/// How much of a result whoever approved it is shown, in characters.
const OUTCOME_SHOWN: usize = 500;

/// A call that was carried out, with its result.
pub struct CompletedCall {
    /// Its place among the calls of the turn.
    pub index: usize,
    pub call: ToolCall,
    /// Words of the service that the model reads before the result, in order.
    pub notices: Vec<ResultNotice>,
    /// As the model is to be shown it, but not cut.
    pub text: String,
    pub is_error: bool,
    /// When the result came from its tool.
    pub fetched_at: DateTime<Utc>,
    /// Whether it must be stored before anything else happens.
    pub unrepeatable: bool,
    /// Why nobody was asked about it.
    pub reasons: Vec<String>,
    /// The account of it.
    pub record: ToolRecord,
}

/// Outcome of one call.
pub enum CallResult {
    Done(Box<CompletedCall>),
    /// A person has to be heard first.
    Open(PendingCall),
    /// The run stops, or can't go on; other calls that have begun come to their end.
    Ended(RunError),
}

/// Outcome of one attempt at a call.
enum Attempt {
    Open(PendingCall),
    Done(AnsweredCall),
    Ended(RunError),
}

/// A call with its result, and the questions by whose answers that came.
struct AnsweredCall {
    result: Result<FetchedOutput, ToolError>,
    questions: Vec<Uuid>,
    /// Why nobody was asked.
    reasons: Vec<String>,
    /// The words that tell the model what a person has answered, and changed.
    notices: Vec<ResultNotice>,
    /// Usage of the agent that was called; `None`: it is another tool.
    agent_usage: Option<Usage>,
}

impl Attempt {
    /// It was not carried out after these questions.
    fn undone(error: ToolError, questions: Vec<Uuid>, reasons: Vec<String>) -> Attempt {
        let (result, notices) = (Err(error), Vec::new());
        Attempt::Done(AnsweredCall { result, questions, reasons, notices, agent_usage: None })
    }

    /// It was not executed.
    fn failed(error: ToolError) -> Attempt {
        Attempt::undone(error, Vec::new(), Vec::new())
    }
}

impl ToolRunner<'_> {
    /// Starts all calls; they come out as they are done. Those that people have approved begin in the order in which
    /// they did.
    pub fn start<'a>(
        &'a self,
        turn: CallTurn<'a>,
        calls: &'a [ToolCall],
        asked: &'a EarlierQuestions,
    ) -> impl Stream<Item = Result<CallResult, RunError>> + Unpin + 'a {
        // questions are in the order of their ids: it is that of the calls, whichever is judged first
        let id = || new_id(self.clock.now());
        let mut order: Vec<(usize, &ToolCall, Uuid)> =
            calls.iter().enumerate().map(|(index, call)| (index, call, id())).collect();
        order.sort_by_key(|(index, call, _)| (asked.of(&call.id).and_then(|approval| approval.decided_at), *index));
        let shared = SharedSlot::of(turn.slot);
        let each = |(index, call, question)| {
            let slot = shared.share();
            async move { self.one(CallTurn { slot: &slot, ..turn }, (index, question), call, asked).await }.boxed()
        };
        order.into_iter().map(each).collect::<FuturesUnordered<_>>()
    }

    /// Whether none of these calls can have an effect: their tools only read or compute, or there are no such tools.
    pub fn only_read(&self, calls: &[ToolCall]) -> bool {
        let reads = |call: &ToolCall| self.tools.find(&call.name).is_none_or(|tool| tool.definition().only_reads());
        calls.iter().all(reads)
    }

    fn view(&self, turn: CallTurn<'_>) -> ResultView<'_> {
        ResultView {
            window: self.window,
            usual_level: self.usual_level,
            is_context_full: turn.is_context_full,
            may_keep: self.callable.contains(&READ_DATA_FILE),
            tenant: self.tenant,
            run_id: self.run_id,
            host: self.host,
            used_secrets: self.used_secrets,
            compute: self.compute,
        }
    }

    /// Whether any of these calls is shown more or less by how full the context is.
    pub fn goes_by_context(&self, calls: &[ToolCall]) -> bool {
        let is_auto = |call: &ToolCall| {
            self.tools.find(&call.name).is_some_and(|tool| tool.output_level() == Some(DefaultLevel::Auto))
        };
        calls.iter().any(is_auto)
    }

    async fn one(
        &self,
        turn: CallTurn<'_>,
        (index, question): (usize, Uuid),
        call: &ToolCall,
        asked: &EarlierQuestions,
    ) -> Result<CallResult, RunError> {
        self.emitter.tool_call(turn.number, call);
        let (begun, warnings) = (self.clock.elapsed(), CallWarnings::of(self.emitter, &call.name));
        let attempt = match check_turn_limit(index) {
            Ok(()) => self.attempt(turn, (question, &warnings), call, asked).await?,
            Err(refused) => Attempt::failed(refused),
        };
        let answered = match attempt {
            Attempt::Open(open) => {
                if let PendingCall::Ask(approval, _) = &open {
                    self.emitter.approval_required(approval);
                }
                return Ok(CallResult::Open(open));
            }
            Attempt::Ended(error) => return Ok(CallResult::Ended(error)),
            Attempt::Done(answered) => answered,
        };
        let duration_ms = self.clock.elapsed().saturating_sub(begun).as_millis() as i64;
        let tool = self.tools.find(&call.name);
        let unrepeatable = tool.is_some_and(|tool| !tool.definition().idempotent);
        let AnsweredCall { result, questions, reasons, mut notices, agent_usage } = answered;
        let fetched_at = result.as_ref().map_or_else(|_| self.clock.now(), |fetched| fetched.at);
        // in words for a person, and for the model
        let (outcome, text, is_error, length) = match result {
            Ok(fetched) => {
                if let Some(instructions) = &fetched.output.instructions {
                    notices.push(ResultNotice::other(format!("{}\n\n", self.window.cut_result(instructions))));
                }
                let shown = self.view(turn).show(turn.number, call, tool.map(Arc::as_ref), fetched).await;
                let ShownOutput { notice, content, beginning, length } = shown;
                notices.extend(notice);
                (beginning, content, false, Some(length))
            }
            Err(ToolError::Abort { code, message }) => return Err(RunError::fail(code, message)),
            Err(ToolError::Tell { code, message, .. }) if code == REFUSED => (message.clone(), message, true, None),
            Err(error) => {
                let (kind, code, message) = error.model_message().expect("what aborts was seen before");
                let observed = observation(kind, code, &message, &call.id);
                (message, observed, true, None)
            }
        };
        for question in questions {
            let text = outcome.chars().take(OUTCOME_SHOWN).collect();
            self.consent.store.note_outcome(question, CallOutcome { is_error, text }).await;
        }
        let attribution = ToolAttribution { turn: turn.number, ..self.attribution.clone() };
        let ended = (!is_error, length.unwrap_or_else(|| text.chars().count()));
        let record = ToolRecord::new((&call.name, tool.is_some()), &call.args, duration_ms, ended, attribution);
        let record = warnings.recorded(record);
        let record = match agent_usage {
            Some(usage) => record.of_agent(usage.into()),
            None => record,
        };
        Ok(CallResult::Done(Box::new(CompletedCall {
            index,
            call: call.clone(),
            notices,
            text,
            is_error,
            fetched_at,
            unrepeatable,
            reasons,
            record,
        })))
    }

    /// Everything that may stand in the way of a call, then the call.
    async fn attempt(
        &self,
        call_turn: CallTurn<'_>,
        (question, warnings): (Uuid, &CallWarnings<'_>),
        call: &ToolCall,
        asked: &EarlierQuestions,
    ) -> Result<Attempt, RunError> {
        let CallTurn { number: turn, resumed, overrides, .. } = call_turn;
        if call.truncated {
            return Ok(Attempt::failed(truncated_call_error()));
        }
        let may = self.callable.contains(&call.name.as_str());
        let approval = asked.of(&call.id);
        warnings.keep_hold(approval);
        let Some(tool) = self.tools.find(&call.name).filter(|tool| may || is_removed(tool)) else {
            return Ok(self.absent(call, asked.last_of(&call.id), resumed));
        };
        let permitted = permit(tool.definition()).and_then(|()| call_turn.skills.admit(call, call_turn.has_one_skill));
        if let Err(refused) = permitted {
            return Ok(Attempt::failed(refused));
        }
        let continued = match self.continued(tool, approval, asked.server_question_of(&call.id)) {
            ControlFlow::Continue(continued) => continued,
            ControlFlow::Break(attempt) => return Ok(attempt),
        };
        if approval.is_none()
            && let Err(refused) = self.check(tool, &call.args).await
        {
            return Ok(Attempt::failed(refused));
        }
        let supplied = self.consent.input((turn, question), call, tool, asked.input_of(&call.id)).await?;
        let (call, answered, supplied_before) = match supplied {
            InputVerdict::Ready { call, notice, begun } => (call, notice, begun),
            InputVerdict::Ask(question) => return self.ask(question, None, false).await,
            InputVerdict::Wait(question) => return Ok(Attempt::Open(PendingCall::Put(question))),
            InputVerdict::Refused(error) => return Ok(Attempt::failed(error)),
        };
        let call = &call;
        let arguments = approval.map_or(&call.args, Approval::arguments);
        if approval.is_some()
            && let Err(refused) = self.check(tool, arguments).await
        {
            return Ok(Attempt::failed(refused));
        }
        // a call that is settled, or has begun, is not looked into any more
        let looks = approval.is_none_or(|approval| approval.status.allows() && approval.execution_started_at.is_none());
        let precheck = match tool.tool.precheck(&self.context(turn, call, self.time_limit, None), arguments) {
            Some(look) if looks => {
                match self.used_secrets.clean_finding(self.limited(self.time_limit, look).await).await {
                    Ok(found) => Some(found),
                    Err(error) => return Ok(Attempt::failed(error)),
                }
            }
            _ => None,
        };
        let (edited, approval, again, reasons) =
            match self.consent.decide((turn, question, overrides), call, tool, approval, precheck).await? {
                ConsentVerdict::Ask(question, replaces) => {
                    let is_supplied = supplied_before.is_some() || continued.is_some();
                    return self.ask(question, replaces, is_supplied).await;
                }
                ConsentVerdict::Wait(question) => return Ok(Attempt::Open(PendingCall::Put(question))),
                ConsentVerdict::Refused(observed) => return Ok(Attempt::failed(observed)),
                ConsentVerdict::Run { arguments, approval, again, reasons } => (arguments, approval, again, reasons),
            };
        let begun_before = match &continued {
            Some(continued) => match self.consent.begin_continuation(continued.asked).await? {
                Some(begun_before) => begun_before,
                None => return Ok(continued.waits()),
            },
            None => again || (approval.is_none() && supplied_before.unwrap_or(resumed)),
        };
        let questions: Vec<Uuid> = approval.into_iter().chain(continued.as_ref().map(Continued::id)).collect();
        if begun_before && !tool.definition().idempotent {
            return Ok(Attempt::undone(unknown_outcome_error(), questions, reasons));
        }
        if tool.definition().status == ToolStatus::Deprecated {
            warnings.warn("the tool is deprecated");
        }
        let (call, edited) = match edited {
            Some(args) => {
                let notice = edited_notice(&args);
                (ToolCall { args, ..call.clone() }, Some(notice))
            }
            None => (call.clone(), None),
        };
        let replied = continued.as_ref().map(Continued::notice);
        let notices: Vec<ResultNotice> = answered.into_iter().chain(edited).chain(replied).collect();
        let Some(agent) = self.agent.called(&call.name) else {
            let continuation = continued.as_ref().map(|continued| &continued.continuation);
            let ready = ReadyCall { turn, call: &call, tool, continuation, warnings };
            let result = match self.call_cached(ready).await {
                Err(ToolError::NeedsInput(needed)) => {
                    let asked = self.consent.server_question((turn, question), &call, tool, *needed);
                    return self.ask_for_server(asked, continued, (questions, reasons)).await;
                }
                result => result,
            };
            return Ok(Attempt::Done(AnsweredCall { result, questions, reasons, notices, agent_usage: None }));
        };
        Ok(match self.delegate(call_turn, &call, agent).await {
            DelegationOutcome::Answered(result, usage, notice) => {
                let notices = notices.into_iter().chain(notice).collect();
                Attempt::Done(AnsweredCall { result, questions, reasons, notices, agent_usage: Some(usage) })
            }
            DelegationOutcome::Waits(calls) => Attempt::Open(PendingCall::Delegated(calls)),
            DelegationOutcome::Ended(error) => Attempt::Ended(error),
        })
    }

    /// Holds arguments against the schema of their tool; what takes long is computed on a thread of its own.
    async fn check(&self, tool: &Arc<RegisteredTool>, arguments: &Value) -> Result<(), ToolError> {
        let (steps, tool, arguments) = (tool.steps(arguments), Arc::clone(tool), arguments.clone());
        let check = move || tool.check(&arguments);
        self.compute.run_if_costly(self.tenant.as_str(), steps, check).await?
    }
}
