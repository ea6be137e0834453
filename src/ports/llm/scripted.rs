//! `scripted`: an offline model that follows a scenario file, for demos and tests. It understands nothing.
//!
//! A scenario is TOML or JSON: steps, tried from the top; the first whose conditions all hold is the answer.
//!
//! ```toml
//! [[steps]]
//! when = "mail"               # the last user message contains this, whatever the case; absent: any message
//! turn = 1                    # the turn since that message, counting from 1; absent: any turn
//! text = "Let me look."
//! delay_seconds = 0.5         # how long the answer takes
//! [[steps.calls]]
//! tool = "http_request"
//! args = { url = "http://127.0.0.1:9000/inbox" }
//!
//! [[steps]]
//! when = "mail"
//! turn = 2
//! text = "You have {{ http_request/body/unread }} unread mails."
//! ```
//!
//! Placeholders in texts and in the strings of `args`: `{{ user }}` is the last user message, `{{ tool }}` the last
//! result of that tool since then, `{{ tool/pointer }}` a place in it (RFC 6901) when it is JSON. A string that is one
//! placeholder and nothing else takes the value as it is, so that numbers stay numbers. A value that is not there is
//! empty.

use std::path::Path;
use std::time::Duration;

use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::base::clock::Clock;
use crate::domain::run::{ToolCall, TranscriptMessage};
use crate::ports::llm::tokens::TokenCounter;
use crate::ports::llm::{LlmError, Model, ModelAnswer, ModelRequest, ModelTokens, OnDelta, StopReason, ToolChoice};

/// A scenario as it is written down.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Answers with their conditions; the first that fits is given.
    pub steps: Vec<ScriptedStep>,
}

/// One possible answer.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ScriptedStep {
    /// Text that the last message has to hold.
    pub when: Option<String>,
    /// The turn to answer, from 1.
    pub turn: Option<usize>,
    /// Text of the answer.
    pub text: Option<String>,
    /// Calls of tools.
    pub calls: Vec<ScriptedCall>,
    /// Time before the answer.
    pub delay_seconds: f64,
}

/// A tool call of a step.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ScriptedCall {
    /// Name of the tool.
    pub tool: String,
    /// Arguments of the call.
    #[serde(default)]
    pub args: Map<String, Value>,
}

impl Scenario {
    /// Reads a file: JSON if its name ends so, else TOML. The error names the place.
    pub fn load(path: &Path) -> Result<Scenario, String> {
        let text = std::fs::read_to_string(path).map_err(|error| format!("can't read {}: {error}", path.display()))?;
        let is_json = path.extension().is_some_and(|extension| extension == "json");
        let scenario = if is_json { Scenario::from_json(&text) } else { Scenario::from_toml(&text) };
        scenario.map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Reads a scenario in TOML; the error is a sentence.
    pub fn from_toml(text: &str) -> Result<Scenario, String> {
        toml::from_str(text).map_err(|error| error.to_string()).and_then(Scenario::checked)
    }

    /// Reads a scenario in JSON; the error is a sentence.
    pub fn from_json(text: &str) -> Result<Scenario, String> {
        serde_json::from_str(text).map_err(|error| error.to_string()).and_then(Scenario::checked)
    }

    fn checked(self) -> Result<Scenario, String> {
        match self.steps.iter().position(|step| Duration::try_from_secs_f64(step.delay_seconds).is_err()) {
            Some(index) => Err(format!("steps[{index}].delay_seconds must not be negative")),
            None => Ok(self),
        }
    }
}

/// The model.
pub struct ScriptedModel {
    scenario: Scenario,
    clock: Clock,
}

impl ScriptedModel {
    /// A model that answers by a scenario.
    pub fn new(scenario: Scenario, clock: Clock) -> ScriptedModel {
        ScriptedModel { scenario, clock }
    }

    async fn answer(&self, request: &ModelRequest, on_delta: Option<OnDelta<'_>>) -> Result<ModelAnswer, LlmError> {
        let scene = ScriptedScene::of(&request.messages);
        let may_call = request.tool_choice == ToolChoice::Auto;
        let fits = |step: &&ScriptedStep| scene.fits(step) && (may_call || step.calls.is_empty());
        let Some(step) = self.scenario.steps.iter().find(fits) else {
            let message = format!("the scenario has no step for turn {} of {:?}", scene.turn, scene.user);
            return Err(LlmError::Rejected { message });
        };
        if step.delay_seconds > 0.0 {
            self.clock.sleep(Duration::from_secs_f64(step.delay_seconds)).await;
        }
        let text = step.text.as_deref().map(|text| scene.filled(text));
        if let (Some(on_delta), Some(text)) = (on_delta, &text) {
            text.split_inclusive(' ').for_each(on_delta);
        }
        Ok(scene.answered(request, text, &step.calls))
    }
}

impl Model for ScriptedModel {
    fn complete<'a>(
        &'a self,
        request: &'a ModelRequest,
        on_delta: Option<OnDelta<'a>>,
    ) -> BoxFuture<'a, Result<ModelAnswer, LlmError>> {
        Box::pin(self.answer(request, on_delta))
    }
}

/// Where a conversation stands.
struct ScriptedScene<'a> {
    /// The last user message.
    user: &'a str,
    /// Answers since then, and the one that is asked for.
    turn: usize,
    since: &'a [TranscriptMessage],
}

impl<'a> ScriptedScene<'a> {
    fn of(messages: &'a [TranscriptMessage]) -> ScriptedScene<'a> {
        // behind results it is the service that says something, not the person
        let closes = matches!(messages, [.., TranscriptMessage::Tool { .. }, TranscriptMessage::User { .. }]);
        let messages = &messages[..messages.len() - usize::from(closes)];
        let last = messages.iter().rposition(|message| matches!(message, TranscriptMessage::User { .. }));
        let user = match last.map(|at| &messages[at]) {
            Some(TranscriptMessage::User { text, .. }) => text,
            _ => "",
        };
        let since = &messages[last.map_or(0, |at| at + 1)..];
        let answers = since.iter().filter(|message| matches!(message, TranscriptMessage::Assistant { .. })).count();
        ScriptedScene { user, turn: answers + 1, since }
    }

    fn fits(&self, step: &ScriptedStep) -> bool {
        let says = |words: &String| self.user.to_lowercase().contains(&words.to_lowercase());
        step.when.as_ref().is_none_or(says) && step.turn.is_none_or(|turn| turn == self.turn)
    }

    fn answered(&self, request: &ModelRequest, text: Option<String>, calls: &[ScriptedCall]) -> ModelAnswer {
        let call = |(index, call): (usize, &ScriptedCall)| {
            let args = self.filled_value(&Value::Object(call.args.clone()));
            ToolCall::new(format!("call_{}_{}", self.turn, index + 1), call.tool.as_str(), args)
        };
        let tool_calls: Vec<ToolCall> = calls.iter().enumerate().map(call).collect();
        let message = TranscriptMessage::Assistant {
            text: text.clone(),
            tool_calls: tool_calls.clone(),
            provider_message: None,
            finish: None,
        };
        let count = TokenCounter::of("scripted");
        let tokens = ModelTokens::of(count.request(request) as i64, count.message(&message) as i64);
        let stop = if tool_calls.is_empty() { StopReason::Done } else { StopReason::ToolCalls };
        ModelAnswer { text, tool_calls, stop, tokens, provider_message: None, failure: None }
    }

    fn filled_value(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => match only_placeholder(text) {
                Some(name) => self.look_up(name),
                None => Value::String(self.filled(text)),
            },
            Value::Array(items) => items.iter().map(|item| self.filled_value(item)).collect(),
            Value::Object(fields) => {
                let filled = fields.iter().map(|(name, value)| (name.clone(), self.filled_value(value)));
                Value::Object(filled.collect())
            }
            other => other.clone(),
        }
    }

    fn filled(&self, text: &str) -> String {
        let mut filled = String::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once("{{")
            && let Some((name, after)) = behind.split_once("}}")
        {
            filled.push_str(before);
            match self.look_up(name.trim()) {
                Value::String(text) => filled.push_str(&text),
                Value::Null => {}
                other => filled.push_str(&other.to_string()),
            }
            rest = after;
        }
        filled + rest
    }

    fn look_up(&self, name: &str) -> Value {
        if name == "user" {
            return Value::String(self.user.to_owned());
        }
        let (tool, pointer) = name.split_at(name.find('/').unwrap_or(name.len()));
        let result = self.since.iter().rev().find_map(|message| match message {
            TranscriptMessage::Tool { name, content, .. } if name == tool => Some(content),
            _ => None,
        });
        match result {
            None => Value::Null,
            Some(content) if pointer.is_empty() => Value::String(content.clone()),
            Some(content) => {
                let parsed: Value = serde_json::from_str(content).unwrap_or_default();
                parsed.pointer(pointer).cloned().unwrap_or_default()
            }
        }
    }
}

/// The name, if the text is one placeholder and nothing else.
fn only_placeholder(text: &str) -> Option<&str> {
    let name = text.trim().strip_prefix("{{")?.strip_suffix("}}")?;
    (!name.contains("{{") && !name.contains("}}")).then(|| name.trim())
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta};
    use serde_json::json;

    use super::*;
    use crate::ports::llm::OfferedTools;

    const SCENARIO: &str = r#"
        [[steps]]
        when = "MAIL"
        turn = 1
        text = "Let me look."
        [[steps.calls]]
        tool = "inbox"
        args = { query = "from {{ user }}", limit = 3 }

        [[steps]]
        when = "mail"
        turn = 2
        text = "{{ inbox/unread }} unread, the first from {{inbox/first/from}}{{ nothing }}."
        [[steps.calls]]
        tool = "tell"
        args = { count = "{{ inbox/unread }}", list = ["{{ inbox }}"] }

        [[steps]]
        text = "I only know about mail."
    "#;

    fn model() -> ScriptedModel {
        ScriptedModel::new(Scenario::from_toml(SCENARIO).unwrap(), Clock::manual(DateTime::UNIX_EPOCH))
    }

    fn request(messages: Vec<TranscriptMessage>) -> ModelRequest {
        ModelRequest {
            messages,
            tools: OfferedTools::default(),
            tool_choice: ToolChoice::Auto,
            max_tokens: None,
            temperature: None,
        }
    }

    fn result(content: &str) -> TranscriptMessage {
        TranscriptMessage::Tool {
            call_id: "call_1_1".into(),
            name: "inbox".into(),
            notices: vec![],
            content: content.into(),
            is_error: false,
            reasons: vec![],
            fetched_at: None,
        }
    }

    #[tokio::test]
    async fn step_is_picked_by_message_and_turn_and_filled_from_results() {
        let first = model().complete(&request(vec![TranscriptMessage::user("any mail?")]), None).await.unwrap();
        assert_eq!(first.text.as_deref(), Some("Let me look."));
        let arguments = json!({ "query": "from any mail?", "limit": 3 });
        assert_eq!(first.tool_calls, [ToolCall::new("call_1_1", "inbox", arguments)]);
        assert_eq!(first.stop, StopReason::ToolCalls);

        let message = TranscriptMessage::Assistant {
            text: first.text,
            tool_calls: first.tool_calls,
            provider_message: None,
            finish: None,
        };
        let inbox = r#"{"unread":2,"first":{"from":"Ann"}}"#;
        let second = model()
            .complete(&request(vec![TranscriptMessage::user("any mail?"), message, result(inbox)]), None)
            .await
            .unwrap();
        assert_eq!(second.text.as_deref(), Some("2 unread, the first from Ann."));
        assert_eq!(second.tool_calls[0].id, "call_2_1");
        assert_eq!(second.tool_calls[0].args, json!({ "count": 2, "list": [inbox] }));
    }

    #[tokio::test]
    async fn answer_that_must_not_call_tools_comes_from_a_step_without_calls() {
        let mut forced = request(vec![TranscriptMessage::user("mail")]);
        forced.tool_choice = ToolChoice::None;
        let answer = model().complete(&forced, None).await.unwrap();
        assert_eq!(answer.text.as_deref(), Some("I only know about mail."));
        assert_eq!(answer.tool_calls, []);
    }

    #[tokio::test]
    async fn service_text_behind_results_is_not_the_question() {
        let first = model().complete(&request(vec![TranscriptMessage::user("any mail?")]), None).await.unwrap();
        let message = TranscriptMessage::Assistant {
            text: first.text,
            tool_calls: first.tool_calls,
            provider_message: None,
            finish: None,
        };
        let inbox = r#"{"unread":2,"first":{"from":"Ann"}}"#;
        let closing = TranscriptMessage::user("Please provide a final answer.");
        let asked = request(vec![TranscriptMessage::user("any mail?"), message, result(inbox), closing]);
        let answer = model().complete(&asked, None).await.unwrap();
        assert_eq!(answer.text.as_deref(), Some("2 unread, the first from Ann."));
    }

    #[tokio::test]
    async fn scenario_without_a_fitting_step_says_what_was_asked() {
        let scenario = Scenario::from_json(r#"{"steps":[{"when":"mail","text":"x"}]}"#).unwrap();
        let model = ScriptedModel::new(scenario, Clock::manual(DateTime::UNIX_EPOCH));
        let refused = model.complete(&request(vec![TranscriptMessage::user("news")]), None).await;
        let message = "the scenario has no step for turn 1 of \"news\"".to_owned();
        assert_eq!(refused, Err(LlmError::Rejected { message }));
    }

    #[tokio::test]
    async fn text_comes_in_words_after_the_delay() {
        let scenario = Scenario::from_toml("[[steps]]\ntext = 'one two three'\ndelay_seconds = 2").unwrap();
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        let model = ScriptedModel::new(scenario, clock.clone());
        let heard = std::sync::Mutex::new(Vec::new());
        let on_delta = |text: &str| heard.lock().unwrap().push(text.to_owned());
        let request = request(vec![TranscriptMessage::user("go")]);
        let mut answer = model.complete(&request, Some(&on_delta));
        assert!(futures::poll!(&mut answer).is_pending());
        clock.advance(TimeDelta::seconds(2));
        answer.await.unwrap();
        assert_eq!(*heard.lock().unwrap(), ["one ", "two ", "three"]);
    }

    #[test]
    fn scenario_with_an_unknown_key_or_a_negative_delay_is_refused() {
        let unknown = Scenario::from_toml("[[steps]]\ntxt = 'x'").unwrap_err();
        assert!(unknown.contains("txt") && unknown.contains("text"), "{unknown}");
        let negative = Scenario::from_toml("[[steps]]\ndelay_seconds = -1").unwrap_err();
        assert_eq!(negative, "steps[0].delay_seconds must not be negative");
    }
}
