//! Spans that are exported, by the conventions of OpenTelemetry for generative AI: runs, calls of models, calls of
//! tools.
//!
//! They have a target of their own, so that they cost nothing where nobody exports them, and stand in no line of the
//! log. What people, models and tools have said is no part of them unless an operator asks for it.

use std::fmt::Display;

use tracing::field::{Empty, display};
use tracing::{Level, Span, info_span};
use uuid::Uuid;

/// The target of the spans.
pub const SPANS: &str = "reveille_spans";
/// The target that is enabled where spans have content.
pub const CONTENT: &str = "reveille_span_content";
/// Longest text of a span, in bytes; of a longer one the beginning is kept.
pub const CONTENT_BYTES: usize = 4_096;

/// The field of a root by which its trace is found: the run.
pub const RUN_ID: &str = "reveille.run_id";
/// The field of a root that says whether the run was executed before; it is not exported.
pub const IS_FIRST: &str = "reveille.is_first";
/// The field that all spans of a run have: the conversation that it is a message of, else the run itself.
pub const CONVERSATION_ID: &str = "gen_ai.conversation.id";
/// Between the agents of a chain.
const CALLS: &str = " > ";
/// The field with the name of the span; it is not exported.
pub const NAME: &str = "otel.name";
/// The field that says why something failed. A span that has it has failed.
pub const ERROR: &str = "error.type";

/// Texts that a span may have as content.
pub const INPUT: &str = "gen_ai.input.messages";
/// The answer.
pub const OUTPUT: &str = "gen_ai.output.messages";
/// Arguments of a call.
pub const ARGUMENTS: &str = "gen_ai.tool.call.arguments";
/// Its result.
pub const RESULT: &str = "gen_ai.tool.call.result";

/// A run that is executed: the root of a trace.
#[derive(Debug, Clone, Copy)]
pub struct TracedRun<'r> {
    /// The run.
    pub id: Uuid,
    /// The conversation that it is a message of.
    pub conversation_id: Option<Uuid>,
    /// Its task; `None`: it has none.
    pub task_id: Option<Uuid>,
    /// The tenant that owns it.
    pub tenant: &'r str,
    /// Whether it is executed for the first time.
    pub is_first: bool,
}

impl TracedRun<'_> {
    /// The conversation that all its spans name.
    fn conversation(&self) -> Uuid {
        self.conversation_id.unwrap_or(self.id)
    }

    /// The span of an agent that is the whole of the run.
    pub fn invoke_agent(&self, agent: &str) -> Span {
        info_span!(
            target: SPANS, "invoke_agent",
            otel.name = %format_args!("invoke_agent {agent}"),
            gen_ai.operation.name = "invoke_agent",
            gen_ai.agent.name = agent,
            gen_ai.conversation.id = %self.conversation(),
            gen_ai.input.messages = Empty,
            gen_ai.output.messages = Empty,
            reveille.run_id = %self.id,
            reveille.task_id = self.task_id.map(display),
            reveille.tenant_id = self.tenant,
            reveille.is_first = self.is_first,
            "error.type" = Empty,
        )
    }

    /// The span of a pipeline.
    pub fn invoke_workflow(&self, name: &str) -> Span {
        info_span!(
            target: SPANS, "invoke_workflow",
            otel.name = %format_args!("invoke_workflow {name}"),
            gen_ai.operation.name = "invoke_workflow",
            gen_ai.workflow.name = name,
            gen_ai.conversation.id = %self.conversation(),
            reveille.run_id = %self.id,
            reveille.task_id = self.task_id.map(display),
            reveille.tenant_id = self.tenant,
            reveille.is_first = self.is_first,
            "error.type" = Empty,
        )
    }
}

/// The span of an agent that is a part of something else; `chain`: the agents that were called, outermost first, this
/// one last, or none where a step of a pipeline is the agent.
pub fn invoke_agent(agent: &str, chain: &[String]) -> Span {
    info_span!(
        target: SPANS, "invoke_agent",
        otel.name = %format_args!("invoke_agent {agent}"),
        gen_ai.operation.name = "invoke_agent",
        gen_ai.agent.name = agent,
        reveille.delegation_chain = (!chain.is_empty()).then(|| chain.join(CALLS)),
        gen_ai.input.messages = Empty,
        gen_ai.output.messages = Empty,
        "error.type" = Empty,
    )
}

/// The span of one request to a model: its name in the settings, its provider, and its name there.
pub fn chat(name: &str, provider: &str, model: &str) -> Span {
    let model = if model.is_empty() { name } else { model };
    info_span!(
        target: SPANS, "chat",
        otel.name = %format_args!("chat {model}"),
        gen_ai.operation.name = "chat",
        gen_ai.provider.name = provider,
        reveille.model = name,
        gen_ai.request.model = model,
        gen_ai.response.model = Empty,
        gen_ai.usage.input_tokens = Empty,
        gen_ai.usage.output_tokens = Empty,
        gen_ai.usage.cache_read.input_tokens = Empty,
        gen_ai.usage.cache_creation.input_tokens = Empty,
        "error.type" = Empty,
    )
}

/// The span of one call of a tool, its repetitions included.
pub fn execute_tool(tool: &str, call_id: &str) -> Span {
    info_span!(
        target: SPANS, "execute_tool",
        otel.name = %format_args!("execute_tool {tool}"),
        gen_ai.operation.name = "execute_tool",
        gen_ai.tool.name = tool,
        gen_ai.tool.call.id = call_id,
        gen_ai.tool.call.arguments = Empty,
        gen_ai.tool.call.result = Empty,
        "error.type" = Empty,
    )
}

/// Notes on the span of the present request which model answers, in its provider's words.
pub fn answered_by(model: &str) {
    note(&Span::current(), "gen_ai.response.model", model);
}

/// Notes on a span why it has failed: a code.
pub fn fail(span: &Span, code: impl Display) {
    span.record(ERROR, display(code));
}

/// Whether spans have content.
pub fn has_content() -> bool {
    tracing::enabled!(target: CONTENT, Level::INFO)
}

/// Notes a text on a span. It must hold no secret.
pub fn note(span: &Span, field: &str, text: &str) {
    span.record(field, bounded(text));
}

/// The beginning of a text.
fn bounded(text: &str) -> &str {
    &text[..text.floor_char_boundary(CONTENT_BYTES)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_span_is_kept_up_to_its_bound() {
        let text = "x".repeat(CONTENT_BYTES);
        assert_eq!(bounded(&text), text);
        assert_eq!(bounded(&format!("{text}x")), text);
        assert_eq!(bounded(&format!("{}é", &text[1..])), &text[1..], "no half of a character");
    }
}
