//! `llm`: one completion without tools, for "summarise this". Asking twice costs twice and changes nothing else.

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use crate::agent::gate::{GateMessage, GateRefusal};
use crate::agent::{STEP, budget, wait_without_slot};
use crate::base::invalid::did_you_mean;
use crate::base::template::Template;
use crate::base::template::untrusted::RULE;
use crate::domain::run::transcript::ModelCall;
use crate::domain::run::{RunError, TranscriptMessage, Usage};
use crate::executor::pipeline::account::StepAccount;
use crate::executor::pipeline::context::StepContext;
use crate::executor::pipeline::kind::{Effect, StepAction, StepError, StepFault, StepKind, StepResult};
use crate::executor::pipeline::reading::StepReader;
use crate::executor::pipeline::schema::LlmStep;
use crate::executor::pipeline::scope::{OWN_NAMES, StepScope};
use crate::ports::llm::{LlmError, ModelRequest, OfferedTools, StopReason, ToolChoice};

/// Longest answers that may be asked for, in tokens.
const TOKENS: std::ops::RangeInclusive<u64> = 1..=100_000;

#[derive(Clone)]
struct Llm {
    prompt: Template,
    system: Option<Template>,
    model: Option<String>,
    max_tokens: Option<u32>,
}

/// `{"prompt": …, "system"?, "model"?, "max_tokens"?}`.
pub fn read(value: &Value, reading: &mut StepReader) -> Option<Box<dyn StepKind>> {
    let fields = reading.object::<LlmStep>(value)?;
    let model = model(fields, reading);
    let max_tokens = reading.number(fields, "max_tokens", TOKENS).map(|tokens| tokens as u32);
    reading.need(fields, "prompt")?;
    let (prompt, system) = (reading.template(fields, "prompt"), reading.template(fields, "system"));
    Some(Box::new(Llm { prompt: prompt?, system, model, max_tokens }))
}

/// A model that is there, where one is named.
pub fn model(fields: &Map<String, Value>, reading: &mut StepReader) -> Option<String> {
    let name = reading.text(fields, "model")?;
    let models = &reading.parts.agent.models;
    if !models.names().any(|known| known == name) {
        let hint = did_you_mean(&name, models.names());
        reading.below("model").fault(format!("unknown model `{name}`{hint}"));
    }
    Some(name)
}

impl Llm {
    /// The system message as it is configured and the prompt. What they insert from outside is labelled as data.
    fn said(&self, scope: &StepScope) -> Result<(Option<String>, String), StepFault> {
        let own = self.system.as_ref().map(|system| system.prompt(&scope.template, &OWN_NAMES)).transpose()?;
        Ok((own, self.prompt.prompt(&scope.template, &OWN_NAMES)?))
    }

    /// The system message, which says what data is, and the prompt.
    fn texts(&self, scope: &StepScope) -> Result<(Option<String>, String), StepFault> {
        let (own, prompt) = self.said(scope)?;
        let inserts = !self.prompt.is_literal() || self.system.as_ref().is_some_and(|system| !system.is_literal());
        let rule = inserts.then(|| RULE.to_owned());
        let parts: Vec<String> = own.into_iter().chain(rule).collect();
        Ok(((!parts.is_empty()).then(|| parts.join("\n\n")), prompt))
    }

    fn request(&self, scope: &StepScope) -> Result<ModelRequest, StepFault> {
        let (system, prompt) = self.texts(scope)?;
        let system = system.map(TranscriptMessage::system);
        Ok(ModelRequest {
            messages: system.into_iter().chain([TranscriptMessage::user(prompt)]).collect(),
            tools: OfferedTools::default(),
            tool_choice: ToolChoice::None,
            max_tokens: self.max_tokens,
            temperature: None,
        })
    }

    async fn ask(&self, act: &StepAction<'_>) -> Result<StepResult, StepError> {
        let (this, steps) = (self.clone(), self.steps(act.scope));
        let (request, said) = act.compute(steps, move |scope| Ok((this.request(scope)?, this.said(scope)?))).await?;
        admit(act, &[said.0.unwrap_or_default(), said.1].join("\n")).await?;
        let chain = act.world.parts.agent.models.chain(self.model.as_deref(), act.world.tenant.as_str());
        let chain = chain.ok_or_else(|| StepFault::new("unknown_model", "there is no such model in [llm.models]"))?;
        let (store, slot) = (&*act.world.store, &**act.slot);
        let chain = if store.is_budgeted() { chain.budgeted() } else { chain };
        let stop = &act.world.stop;
        // made before the calls, and so dropped after them
        let report = |usage: Usage| match usage == Usage::default() {
            true => store.note_unmade(act.position),
            false => *act.cut.lock().expect("usage lock") += usage,
        };
        let guard = budget::CutOffGuard { chain: &chain, report };
        let asked = (&request, &act.world.parts.compute);
        stop.run_until_stopped(budget::reserve_alone(store, slot, &chain, act.position, asked)).await??;
        let completed = wait_without_slot(slot, chain.complete(&request, &|_| {}));
        let completed = stop.run_until_stopped(completed).await?;
        guard.disarm();
        let mut usage = chain.take_unusable();
        let completed = match completed {
            Ok(completed) => completed,
            Err(error) => {
                if usage == Usage::default() {
                    store.note_unmade(act.position);
                }
                return Err(StepFault { account: Box::new(StepAccount::of_model(usage, None)), ..failed(error) }.into());
            }
        };
        usage += budget::usage_of(completed.answer.tokens, completed.cost_micros);
        let model_call = Some(ModelCall { model: completed.model, tokens: completed.answer.tokens });
        if completed.answer.stop == StopReason::Refused {
            let refused = StepFault::new("llm_refused", "the provider of the model withheld the answer");
            return Err(StepFault { account: Box::new(StepAccount::of_model(usage, model_call)), ..refused }.into());
        }
        let account = StepAccount::of_model(Usage { turns: 1, ..usage }, model_call);
        Ok(StepResult::with_account(json!(completed.answer.text.unwrap_or_default()), account))
    }
}

/// Whether the message may go to a model at all.
async fn admit(act: &StepAction<'_>, text: &str) -> Result<(), StepError> {
    let StepContext { tenant, run_id, task_id, clock, parts, .. } = act.world;
    let message = GateMessage {
        tenant: tenant.as_str(),
        run_id: *run_id,
        task_id: Some(*task_id),
        source: STEP,
        text,
        is_repeated: act.begun_before,
    };
    match parts.agent.gate.admit(message, clock).await {
        Ok(()) => Ok(()),
        Err(GateRefusal::Skip(reason)) => Err(StepFault::new("refused", reason).into()),
        Err(GateRefusal::NotNow) => Err(RunError::HandBack.into()),
    }
}

fn failed(error: LlmError) -> StepFault {
    let code = error.fault_code();
    match error.is_transient() {
        true => StepFault::passing(code, error.to_string(), error.retry_after()),
        false => StepFault::new(code, error.to_string()),
    }
}

impl StepKind for Llm {
    fn effect(&self) -> Effect {
        Effect::Repeatable
    }

    fn steps(&self, scope: &StepScope) -> u64 {
        self.system.iter().chain([&self.prompt]).map(|text| text.steps(&scope.template)).sum()
    }

    fn shown(&self, scope: &StepScope) -> Result<Value, StepFault> {
        let (system, prompt) = self.texts(scope)?;
        Ok(json!({ "model": self.model, "system": system, "prompt": prompt, "max_tokens": self.max_tokens }))
    }

    fn perform<'a>(&'a self, act: &'a StepAction<'a>) -> BoxFuture<'a, Result<StepResult, StepError>> {
        Box::pin(self.ask(act))
    }
}
