//! A tool of an MCP server, which is called as any other tool is.
//!
//! A call waits for its turn among those of its server, and for the connection; then it goes out once. It says of each
//! failure whether anything was sent, and leaves it to the agent to call again. Where the server asks a person, the
//! call ends with the question, and another one goes on with the answer.

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use rmcp::model::{ElicitRequestParams, ServerResult};
use rmcp::service::ServiceError;
use serde_json::{Map, Value};

use crate::base::unicode_safety::on_one_line;
use crate::domain::approval::{CallContinuation, ContinuationKind};
use crate::ports::tool::exchange::notify_owner;
use crate::ports::tool::mcp::call_result::{output, with_notice};
use crate::ports::tool::mcp::connection::progress::ProgressTeller;
use crate::ports::tool::mcp::connection::{CallAnswers, ToolAnswer, ToolRequest};
use crate::ports::tool::mcp::fault::McpFault;
use crate::ports::tool::mcp::http::call_origin::CallOrigin;
use crate::ports::tool::mcp::input::read::STATE_BYTES;
use crate::ports::tool::mcp::input::{self, Asked, InputRefusal};
use crate::ports::tool::mcp::listed_tool::ListedTool;
use crate::ports::tool::mcp::mcp_metrics::{McpCallMeter, SLOW};
use crate::ports::tool::mcp::server::McpServer;
use crate::ports::tool::{
    Definition, NeededInput, Tool, ToolCaller, ToolContext, ToolError, ToolFailure, ToolOutput, ToolSource,
    tool_changed,
};
use crate::ports::vault::credentials::{CredentialError, CredentialFault};

/// The outcome of a call that went well, for metrics.
const OK: &str = "ok";
/// The error by which a server says that a person has to see to a page first.
const URL_REQUIRED: i32 = -32_042;
/// Most repetitions of a call to which a server hands out a state alone.
pub const STATE_REPEATS: usize = 5;
/// The wait before each of them.
const STATE_WAIT: Duration = Duration::from_secs(1);
/// The code of a call that needs a person whom nobody asks.
const NEEDS_INPUT: &str = "mcp_needs_input";
/// Longest question in the failure of a call that asks nobody, in characters.
const TOLD_CHARS: usize = 2_000;
/// The notice beside the result of a call in whose middle its server has asked.
const NOBODY_CHOSE: &str = "The server asked a person in the middle of this call, and was told that nobody made a \
    choice. What the result says of a person's answer is nobody's answer. The operator can set `repeats_for_input` for \
    this tool.";
/// The notice beside the result of a call in whose middle its server may have asked.
const NOBODY_KNOWS: &str = "The server asked a person while this call and others were under way, and was told that \
    nobody made a choice. If it asked for this call, what the result says of a person's answer is nobody's answer.";

/// A tool of an MCP server.
pub struct McpTool {
    server: Arc<McpServer>,
    listed: ListedTool,
    /// Of the definition that was listed.
    hash: String,
    definition: Definition,
}

/// A call that came to nothing.
enum CallFailure {
    /// The server, or the way there.
    Fault(McpFault),
    /// No answer came in this time.
    Late(Duration),
    /// The tool itself.
    Tool(ToolError),
}

impl McpTool {
    /// A tool as its server lists it, under the settings of the operator.
    pub fn new(server: Arc<McpServer>, listed: ListedTool) -> McpTool {
        let (hash, definition) = (listed.hash(), listed.definition(server.prepared()));
        McpTool { server, listed, hash, definition }
    }

    /// The tool as its server lists it.
    pub fn listed(&self) -> &ListedTool {
        &self.listed
    }

    /// One call, whose time began at this moment.
    async fn call_from(
        &self,
        begun: Duration,
        context: &ToolContext,
        arguments: Value,
    ) -> Result<ToolOutput, CallFailure> {
        let server = self.server.prepared();
        let left = || context.time_limit.saturating_sub(context.clock.elapsed().saturating_sub(begun));
        // with the operator's credential, too, its answers are read in the turn of the tenant that calls
        context.used_secrets.read_in_turn(&context.compute, context.tenant.as_str());
        // a program may print its variables
        context.used_secrets.add(server.secrets());
        let connection = self.server.connection(&context.tenant, left()).await?;
        if left().is_zero() {
            return Err(McpFault::Slow { server: server.name.clone(), after: context.time_limit }.into());
        }
        if self.server.served().is_other(&self.listed.name, &self.hash) {
            return Err(CallFailure::Tool(tool_changed(&self.definition.name)));
        }
        let arguments = match arguments {
            Value::Object(arguments) => arguments,
            _ => Map::new(),
        };
        let mut answers = answers_of(context.continuation.as_deref());
        let mut repeats = StateRepeats::default();
        loop {
            let request = ToolRequest {
                tool: &self.listed.name,
                arguments: arguments.clone(),
                key: &context.idempotency_key,
                origin: origin(context),
                limit: left(),
                answers,
                progress: ProgressTeller { to: context.progress.clone(), used_secrets: context.used_secrets.clone() },
            };
            let answer = connection.call(request).await;
            let Some(state) = repeats.next(&answer.result).map_err(|why| self.protocol(why))? else {
                return self.read(answer, context).await;
            };
            if left() <= STATE_WAIT {
                return Err(CallFailure::Late(context.time_limit));
            }
            context.clock.sleep(STATE_WAIT).await;
            answers = CallAnswers::Continue { responses: Default::default(), request_state: Some(state) };
        }
    }

    /// Reads the answer to a call: a question of its server, or the end of it.
    async fn read(&self, answer: ToolAnswer, context: &ToolContext) -> Result<ToolOutput, CallFailure> {
        let ToolAnswer { result, asked, is_unplaced } = answer;
        let question = match result {
            Ok(ServerResult::InputRequiredResult(result)) => Asked::Result(result),
            Ok(ServerResult::CustomResult(unread)) if unread.0["resultType"] == "input_required" => {
                let why = "the tool asks a person in a form that is not known here, and nobody is asked";
                return Err(self.refused(why.to_owned()));
            }
            Err(ServiceError::McpError(error)) if error.code.0 == URL_REQUIRED => Asked::UrlRequired(error.data),
            result if was_answered(&result) && !asked.is_empty() => {
                return self.ended_asking(result, asked, context).await;
            }
            result if was_answered(&result) && is_unplaced => return self.ended_among_others(result, context).await,
            result => return self.ended(result, context).await,
        };
        Err(self.ask(question, context).await)
    }

    /// The end of a call in whose middle its server has asked, and was told that nobody made a choice.
    async fn ended_asking(
        &self,
        result: Result<ServerResult, ServiceError>,
        asked: Vec<ElicitRequestParams>,
        context: &ToolContext,
    ) -> Result<ToolOutput, CallFailure> {
        if self.may_repeat() {
            return Err(self.ask(Asked::Live(asked), context).await);
        }
        self.count_question("refused");
        self.ended_with(NOBODY_CHOSE, result, context).await
    }

    /// The end of a call while which its server has asked, for this call or for another one.
    async fn ended_among_others(
        &self,
        result: Result<ServerResult, ServiceError>,
        context: &ToolContext,
    ) -> Result<ToolOutput, CallFailure> {
        self.count_question("unplaced");
        if self.may_repeat() {
            let message = "the server asked a person while other calls were under way, and nobody knows for which of \
                           them; a call by itself can be asked about";
            let error = ToolError::for_model(ToolFailure::ResourceError, "mcp_asked_among_others", message);
            return Err(CallFailure::Tool(error));
        }
        self.ended_with(NOBODY_KNOWS, result, context).await
    }

    async fn ended_with(
        &self,
        notice: &str,
        result: Result<ServerResult, ServiceError>,
        context: &ToolContext,
    ) -> Result<ToolOutput, CallFailure> {
        let told = self.ended(result, context).await.map_err(ToolError::from);
        with_notice(told, notice).map_err(CallFailure::Tool)
    }

    /// The end of a call.
    async fn ended(
        &self,
        result: Result<ServerResult, ServiceError>,
        context: &ToolContext,
    ) -> Result<ToolOutput, CallFailure> {
        let result = result.map_err(|error| match error {
            ServiceError::Timeout { timeout } => CallFailure::Late(timeout),
            error => CallFailure::Fault(McpFault::of_call(&self.server.prepared().name, error)),
        })?;
        match result {
            ServerResult::CallToolResult(result) => {
                output(result, context, &self.definition.name).await.map_err(CallFailure::Tool)
            }
            ServerResult::EmptyResult(_) | ServerResult::TaskAckResult(_) => Ok(ToolOutput::text("")),
            _ => Err(self.protocol("its answer is none to a call".to_owned())),
        }
    }

    /// The question to a person by which the call ends; a failure where nobody is asked.
    async fn ask(&self, asked: Asked, context: &ToolContext) -> CallFailure {
        let (server, tool) = (self.server.prepared().name.clone(), self.listed.name.clone());
        let before = context.continuation.clone();
        let read = move || {
            let needed = input::needed(asked, &server, &tool, before.as_deref());
            needed.map(|needed| (input::kept_texts(&needed), needed))
        };
        let (kept, needed) = match context.compute.run(context.tenant.as_str(), read).await {
            Ok(Ok(read)) => read,
            Ok(Err(InputRefusal(why))) => return self.refused(why),
            Err(panicked) => return CallFailure::Tool(panicked.into()),
        };
        for text in kept {
            if context.used_secrets.finds(&text).await {
                return self
                    .refused("the tool asks a person with a secret in its question; nobody is asked".to_owned());
            }
        }
        if context.called_by != ToolCaller::Model {
            return self.refused(told_to_nobody(&needed));
        }
        self.count_question("asked");
        CallFailure::Tool(ToolError::NeedsInput(Box::new(needed)))
    }

    /// The failure of a call that asks a person whom nobody asks.
    fn refused(&self, why: String) -> CallFailure {
        self.count_question("refused");
        CallFailure::Tool(ToolError::for_model(ToolFailure::ExecutionError, NEEDS_INPUT, why))
    }

    fn protocol(&self, why: String) -> CallFailure {
        CallFailure::Fault(McpFault::Protocol { server: self.server.prepared().name.clone(), why })
    }

    fn count_question(&self, outcome: &'static str) {
        self.server.metrics().record_question(&self.server.prepared().name, outcome);
    }

    /// Whether a call may be repeated that was answered without a person.
    fn may_repeat(&self) -> bool {
        self.definition.idempotent || self.server.prepared().settings(&self.listed.name).repeats_for_input
    }

    /// The failure as the run is told of it.
    fn told(&self, failure: CallFailure) -> ToolError {
        let server = self.server.prepared();
        match failure {
            CallFailure::Fault(fault) if !server.is_per_tenant() => fault.of_others_credential(&server.name).into(),
            failure => failure.into(),
        }
    }

    /// Tells the tenant that its credential is missing.
    async fn tell_owner(&self, error: &CredentialError, context: &ToolContext) {
        if context.called_by == ToolCaller::Model && error.kind == CredentialFault::Missing {
            notify_owner(error, context).await;
        }
    }
}

/// How often a server has handed out a state alone: it asks for the call once more with it, and nobody has to answer.
#[derive(Default)]
struct StateRepeats(usize);

impl StateRepeats {
    /// The state with which the call is made again; `None`: the result is no such one.
    ///
    /// # Errors
    /// The state is too long, or was handed out too often.
    fn next(&mut self, result: &Result<ServerResult, ServiceError>) -> Result<Option<String>, String> {
        let Ok(ServerResult::InputRequiredResult(result)) = result else { return Ok(None) };
        let has_requests = result.input_requests.as_ref().is_some_and(|requests| !requests.is_empty());
        let Some(state) = result.request_state.as_ref().filter(|_| !has_requests) else { return Ok(None) };
        self.0 += 1;
        match state.len() {
            _ if self.0 > STATE_REPEATS => Err(format!("it asked for the call again more than {STATE_REPEATS} times")),
            ..=STATE_BYTES => Ok(Some(state.clone())),
            _ => Err(format!("its `requestState` has more than {STATE_BYTES} bytes")),
        }
    }
}

/// The answers with which a call goes on.
fn answers_of(continuation: Option<&CallContinuation>) -> CallAnswers {
    let Some(continued) = continuation else { return CallAnswers::None };
    match continued.question.continuation.kind {
        ContinuationKind::Continue => {
            CallAnswers::Continue { responses: continued.responses(), request_state: continued.request_state() }
        }
        ContinuationKind::Repeat => CallAnswers::Prepared(continued.all_responses()),
    }
}

/// Whether a server has answered a call, be it with an error.
fn was_answered(result: &Result<ServerResult, ServiceError>) -> bool {
    matches!(result, Ok(_) | Err(ServiceError::McpError(_)))
}

/// The question of a call by a step, a condition, or a person who tries the tool.
fn told_to_nobody(needed: &NeededInput) -> String {
    let messages: Vec<String> = needed.question.parts.iter().map(|part| on_one_line(&part.message)).collect();
    let asked: String = messages.join(" / ").chars().take(TOLD_CHARS).collect();
    format!("the tool asks a person, and nobody is asked here; a run of an agent can wait for the answer: {asked}")
}

/// The run that a call is made for, for the record of the credential's use.
fn origin(context: &ToolContext) -> CallOrigin {
    let is_of_run = context.called_by != ToolCaller::Poll && !context.run_id.is_nil();
    CallOrigin {
        tenant: context.tenant.clone(),
        run_id: is_of_run.then_some(context.run_id),
        task_id: context.task_id,
        used_secrets: context.used_secrets.clone(),
    }
}

impl Tool for McpTool {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn source(&self) -> ToolSource {
        ToolSource::Mcp
    }

    fn call<'a>(&'a self, context: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let begun = context.clock.elapsed();
            let _place = self.server.place(&context.tenant).await;
            let mut meter = McpCallMeter::start(self.server.metrics(), &self.server.prepared().name, &context.clock);
            let called = self.call_from(begun, context, arguments).await;
            meter.outcome = called.as_ref().map_or_else(CallFailure::word, |_| OK);
            let called = called.map_err(|failure| self.told(failure));
            if let Err(ToolError::Credential(error)) = &called {
                self.tell_owner(error, context).await;
            }
            called
        })
    }

    fn credential_state<'a>(
        &'a self,
        context: &'a ToolContext,
        _arguments: &'a Value,
    ) -> BoxFuture<'a, Option<String>> {
        Box::pin(async move {
            let Some(credential) = &self.server.prepared().credential else { return Some(String::new()) };
            let owner = credential.owner.as_ref().unwrap_or(&context.tenant);
            context.host.credentials()?.state(owner, &credential.reference).await
        })
    }
}

impl CallFailure {
    /// The outcome of the call, for metrics.
    fn word(&self) -> &'static str {
        match self {
            CallFailure::Fault(fault) => fault.word(),
            CallFailure::Late(_) => SLOW,
            CallFailure::Tool(ToolError::NeedsInput(_)) => "asked",
            CallFailure::Tool(_) => "tool_error",
        }
    }
}

impl From<McpFault> for CallFailure {
    fn from(fault: McpFault) -> CallFailure {
        CallFailure::Fault(fault)
    }
}

impl From<CallFailure> for ToolError {
    fn from(failure: CallFailure) -> ToolError {
        match failure {
            CallFailure::Fault(fault) => fault.into(),
            CallFailure::Late(after) => {
                let message = format!("no result within {} s", after.as_secs_f64());
                ToolError::for_model(ToolFailure::Timeout, "timeout", message)
            }
            CallFailure::Tool(error) => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use rmcp::model::InputRequiredResult;
    use serde_json::json;

    use super::*;
    use crate::domain::approval::ServerAnswer;

    fn result(requests: Option<Value>, state: Option<String>) -> Result<ServerResult, ServiceError> {
        let requests = requests.map(|requests| serde_json::from_value(requests).unwrap());
        Ok(ServerResult::InputRequiredResult(InputRequiredResult::new(requests, state)))
    }

    /// A question about two pages that is put again in this way.
    fn needed(kind: &str) -> NeededInput {
        let pages = json!([
            { "mode": "url", "message": "Go there.", "url": "https://example.org/a" },
            { "mode": "url", "message": "Then\nthere.", "url": "https://example.org/b" },
        ]);
        let mut needed =
            input::needed(Asked::Live(serde_json::from_value(pages).unwrap()), "shop", "order", None).unwrap();
        needed.question.continuation.kind = serde_json::from_value(json!(kind)).unwrap();
        needed
    }

    #[test]
    fn state_alone_is_handed_back_so_often_and_no_more() {
        let mut repeats = StateRepeats::default();
        for n in 0..STATE_REPEATS {
            let state = format!("s{n}");
            assert_eq!(repeats.next(&result(None, Some(state.clone()))), Ok(Some(state)));
        }
        let why = "it asked for the call again more than 5 times".to_owned();
        assert_eq!(repeats.next(&result(Some(json!({})), Some("s".into()))), Err(why));
        let page = json!({ "a": { "method": "elicitation/create", "params": {
            "mode": "url", "message": "Go there.", "url": "https://example.org",
        } } });
        let mut repeats = StateRepeats::default();
        assert_eq!(repeats.next(&result(Some(page.clone()), Some("s".into()))), Ok(None));
        assert_eq!(repeats.next(&result(Some(page), None)), Ok(None));
        assert_eq!(repeats.next(&Err(ServiceError::TransportClosed)), Ok(None));
    }

    #[test]
    fn state_alone_is_taken_at_its_longest_and_refused_one_byte_beyond_it() {
        let next = |bytes: usize| StateRepeats::default().next(&result(None, Some("s".repeat(bytes))));
        assert!(next(STATE_BYTES).is_ok());
        assert_eq!(next(STATE_BYTES + 1), Err("its `requestState` has more than 32768 bytes".to_owned()));
    }

    #[test]
    fn call_goes_on_with_the_answers_in_the_way_that_its_server_asked() {
        assert!(matches!(answers_of(None), CallAnswers::None));
        let of = |kind: &str, state: Option<&str>| {
            let mut question = needed(kind).question;
            question.parts.truncate(1);
            question.parts[0].key = "a".to_owned();
            question.continuation.request_state = state.map(str::to_owned);
            question.continuation.answered.insert("old".to_owned(), json!({ "action": "decline" }));
            answers_of(Some(&CallContinuation { question, answer: ServerAnswer::Accept(json!({})) }))
        };
        let CallAnswers::Continue { responses, request_state } = of("continue", Some("cw==")) else {
            panic!("it goes on with the next request")
        };
        assert_eq!((json!(responses), request_state.as_deref()), (json!({ "a": { "action": "accept" } }), Some("s")));
        let CallAnswers::Continue { request_state, .. } = of("continue", None) else { panic!("it goes on") };
        assert_eq!(request_state, None);
        let CallAnswers::Prepared(prepared) = of("repeat", None) else { panic!("it is repeated") };
        assert_eq!(json!(prepared), json!({ "a": { "action": "accept" }, "old": { "action": "decline" } }));
    }

    #[test]
    fn question_that_is_put_to_nobody_is_told_in_its_words() {
        let told = told_to_nobody(&needed("repeat"));
        assert!(told.ends_with("a run of an agent can wait for the answer: Go there. / Then there."), "{told}");
    }

    #[test]
    fn failure_of_a_call_is_told_and_counted_by_its_kind() {
        let server = || "github".to_owned();
        let tool = ToolError::for_model(ToolFailure::ExecutionError, "mcp_tool_error", "no");
        let cases = [
            (CallFailure::Fault(McpFault::Broken { server: server() }), "broken", "outcome_unknown", false),
            (
                CallFailure::Fault(McpFault::Away { server: server(), why: String::new() }),
                "away",
                "mcp_unavailable",
                true,
            ),
            (CallFailure::Late(Duration::from_secs(30)), "slow", "timeout", false),
            (CallFailure::Tool(tool), "tool_error", "mcp_tool_error", false),
            (CallFailure::Tool(ToolError::NeedsInput(Box::new(needed("continue")))), "asked", "mcp_needs_input", false),
        ];
        for (failure, word, code, is_unsent) in cases {
            assert_eq!(failure.word(), word);
            let error = ToolError::from(failure);
            assert_eq!((error.code(), error.is_unsent()), (code, is_unsent));
        }
    }
}
