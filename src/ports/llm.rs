//! Models: what is asked of them, what they answer, and how a call fails.
//!
//! Owns the port and the registry of providers. Never stores anything and never decides what a conversation is:
//! a call is a function of its request. Nothing here survives a crash.

pub mod anthropic;
pub mod breaker;
mod chain_link;
pub mod connections;
mod failure;
pub mod fallback;
pub mod offered_tools;
pub mod openai;
mod portable_calls;
pub mod pricing;
mod provider_message;
pub mod responses;
mod retry;
pub mod scripted;
pub mod settings;
mod shown_result;
mod text_size;
pub mod thinking;
pub mod tokens;
mod wire;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::base::clock::Clock;
use crate::base::collections::fair_queue::FairQueue;
use crate::base::compute::{Compute, ComputeTurn};
use crate::base::invalid::{FieldError, ValidationErrors, escape};
use crate::base::secret::Secret;
use crate::base::words::words;
use crate::domain::run::transcript::{ProviderMessage, ToolCall, TranscriptMessage};
use crate::ports::llm::breaker::ModelBreaker;
use crate::ports::llm::connections::ModelConnections;
use crate::ports::llm::fallback::{Chain, ChainLink, ModelOrigin, RetryWait};
use crate::ports::llm::scripted::{Scenario, ScriptedModel};
use crate::ports::llm::tokens::calibration::TokenCalibration;
use crate::ports::llm::tokens::encoders::Encoders;

pub use crate::domain::run::transcript::ModelTokens;
pub use crate::ports::llm::offered_tools::{OfferedTools, ToolSchema};
pub use crate::ports::llm::settings::{ModelSettings, Settings};
pub use crate::ports::llm::tokens::exact::{OwnEncoder, TokenEncoder};

words! {
    /// Whether the model may call tools in this answer; the words are those of both wires.
    pub enum ToolChoice {
        /// The model decides whether it calls a tool.
        Auto = "auto",
        /// The tools are named, because the conversation mentions them, and may not be called.
        None = "none",
    }
}

/// One question to a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelRequest {
    /// The conversation, oldest message first.
    pub messages: Vec<TranscriptMessage>,
    /// Tools that the model may call.
    pub tools: OfferedTools,
    /// Whether the model may, must or must not call a tool.
    pub tool_choice: ToolChoice,
    /// Longest answer in tokens; `None`: the model's own setting.
    pub max_tokens: Option<u32>,
    /// Randomness of the answer; `None`: the provider's default.
    pub temperature: Option<f64>,
}

/// Why the model stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StopReason {
    /// The answer is complete.
    Done,
    /// The model waits for results of calls.
    ToolCalls,
    /// The answer was cut at the longest length.
    Length,
    /// The provider withheld the answer.
    Refused,
    /// The model has paused, and goes on when its answer is sent back. No call ends so.
    Paused,
}

/// One answer of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelAnswer {
    /// Text of the answer.
    pub text: Option<String>,
    /// Calls of tools, in order.
    pub tool_calls: Vec<ToolCall>,
    /// The reason for which the model stopped.
    pub stop: StopReason,
    /// Tokens of the call.
    pub tokens: ModelTokens,
    /// The provider's own message, where it is to be sent back as it was.
    pub provider_message: Option<Arc<ProviderMessage>>,
    /// Why it can't be used, though its provider has charged for it, or may have; `None`: it can.
    pub failure: Option<AnswerFailure>,
}

/// An answer that is of no use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerFailure {
    /// The reason.
    pub error: LlmError,
    /// Whether the answer's tokens are what its provider has charged for; else nobody has said.
    pub is_metered: bool,
}

impl ModelAnswer {
    /// An answer that is of no use, with the tokens that its provider has charged for; none: nobody has said.
    pub fn failed(error: LlmError, tokens: ModelTokens) -> ModelAnswer {
        ModelAnswer {
            text: None,
            tool_calls: vec![],
            stop: StopReason::Done,
            tokens,
            provider_message: None,
            failure: Some(AnswerFailure { error, is_metered: tokens != ModelTokens::default() }),
        }
    }
}

/// How a call failed, by what can be done about it. Messages carry no secrets.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LlmError {
    /// Wait and ask again.
    #[error("rate limited: {message}")]
    RateLimited {
        /// The wait that the provider asks for.
        retry_after: Option<Duration>,
        /// The provider's words, redacted.
        message: String,
    },
    /// The conversation does not fit; a shorter one may.
    #[error("the conversation is too long for the model: {message}")]
    Overflow {
        /// The provider's words, redacted.
        message: String,
    },
    /// No answer came in time.
    #[error("no answer in time: {message}")]
    Timeout {
        /// The reason, in a sentence.
        message: String,
    },
    /// This key will not do; another may.
    #[error("the key was refused: {message}")]
    Auth {
        /// The provider's words, redacted.
        message: String,
    },
    /// The provider knows no such model, or none that this key may use; another key may do.
    #[error("there is no such model: {message}")]
    NoModel {
        /// The provider's words, redacted.
        message: String,
    },
    /// The provider or the way to it is broken; later may do.
    #[error("unavailable: {message}")]
    Transient {
        /// The wait that the provider asks for.
        retry_after: Option<Duration>,
        /// The reason, in a sentence.
        message: String,
    },
    /// The request will never do.
    #[error("refused: {message}")]
    Rejected {
        /// The provider's words, redacted.
        message: String,
    },
}

/// Hears the text of an answer piece by piece.
pub type OnDelta<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// One model behind one key.
pub trait Model: Send + Sync {
    /// Asks once; no retries. With `on_delta` the text is told as it comes where the provider can, in one piece
    /// where it can't; the answer is whole in either case.
    fn complete<'a>(
        &'a self,
        request: &'a ModelRequest,
        on_delta: Option<OnDelta<'a>>,
    ) -> BoxFuture<'a, Result<ModelAnswer, LlmError>>;

    /// As [`Model::complete`]. Long requests are written, and long answers read, in this turn on computing threads. A
    /// model that computes little by itself leaves this as it is.
    fn complete_in_turn<'a>(
        &'a self,
        request: &'a ModelRequest,
        on_delta: Option<OnDelta<'a>>,
        _turn: &'a ComputeTurn,
    ) -> BoxFuture<'a, Result<ModelAnswer, LlmError>> {
        self.complete(request, on_delta)
    }
}

/// A model that an embedder has made.
#[derive(Clone)]
pub struct OwnModel {
    /// The name by which `[llm]`, tasks and agents name it.
    pub name: String,
    /// The model.
    pub model: Arc<dyn Model>,
}

/// The parts from which a provider makes a model.
pub struct ModelParts<'a> {
    /// Settings of the model.
    pub settings: &'a ModelSettings,
    /// Key for the provider.
    pub key: Option<&'a Secret>,
    /// Connections for requests.
    pub connections: &'a Arc<ModelConnections>,
    /// Time of the service.
    pub clock: &'a Clock,
}

/// A way to models. A fault's pointer is relative to the model's settings.
pub struct LlmProvider {
    /// Word in the settings.
    pub name: &'static str,
    make: fn(&ModelParts) -> Result<Arc<dyn Model>, FieldError>,
}

/// The providers that settings may name.
pub const PROVIDERS: [LlmProvider; 4] = [
    LlmProvider { name: "openai", make: |offer| Ok(Arc::new(openai::OpenAi::new(offer))) },
    LlmProvider { name: "openai-responses", make: |offer| Ok(Arc::new(responses::Responses::new(offer))) },
    LlmProvider { name: "anthropic", make: |offer| Ok(Arc::new(anthropic::Anthropic::new(offer))) },
    LlmProvider { name: "scripted", make: scripted },
];

fn scripted(parts: &ModelParts) -> Result<Arc<dyn Model>, FieldError> {
    let fault = |message| FieldError { pointer: "/scenario".into(), message };
    let path = parts.settings.scenario.as_deref().ok_or_else(|| fault("is missing: the scenario file".into()))?;
    let scenario = Scenario::load(path).map_err(fault)?;
    Ok(Arc::new(ScriptedModel::new(scenario, parts.clock.clone())))
}

/// The configured models. Cheap to clone.
#[derive(Clone)]
pub struct Models {
    links: Arc<[Arc<ChainLink>]>,
    default: String,
    fallback: Vec<String>,
    retry: RetryWait,
    clock: Clock,
    /// Threads for long requests and answers; `None`: they are written and read where a model is asked.
    compute: Option<Compute>,
}

impl Models {
    /// Makes the models of the settings; all faults at once, with pointers below `/llm`.
    pub fn build(
        settings: &Settings,
        encoders: &Encoders,
        retry: RetryWait,
        clock: &Clock,
    ) -> Result<Models, ValidationErrors> {
        Models::build_with(settings, &[], (encoders, &[]), retry, clock)
    }

    /// Makes the models of the settings, beside those that an embedder has made, with its encoders.
    pub fn build_with(
        settings: &Settings,
        added: &[OwnModel],
        encoders: (&Encoders, &[OwnEncoder]),
        retry: RetryWait,
        clock: &Clock,
    ) -> Result<Models, ValidationErrors> {
        let mut faults = ValidationErrors::new();
        settings.check(&added.iter().map(|own| own.name.as_str()).collect::<Vec<_>>(), &mut faults);
        let mut links = Vec::new();
        let mut providers = HashMap::new();
        for (name, model) in &settings.models {
            // models at one address share what is open there
            let timeout = Duration::from_secs(model.timeout_seconds);
            let connections = providers
                .entry((model.provider.as_str(), model.base_url.as_deref(), timeout))
                .or_insert_with(|| Arc::new(ModelConnections::new(timeout)));
            match link(name, model, encoders, connections, clock) {
                Ok(link) => links.push(link),
                Err(fault) => faults.add(format!("/llm/models/{}{}", escape(name), fault.pointer), fault.message),
            }
        }
        links.extend(added.iter().map(|own| ChainLink::of_embedder(own, encoders)));
        faults.into_result(Models::new(links, &settings.default, settings.fallback.clone(), retry, clock))
    }

    /// Models that were made elsewhere: for embedding and tests.
    pub fn new(links: Vec<ChainLink>, default: &str, fallback: Vec<String>, retry: RetryWait, clock: &Clock) -> Models {
        let links = links.into_iter().map(Arc::new).collect();
        Models { links, default: default.to_owned(), fallback, retry, clock: clock.clone(), compute: None }
    }

    /// These models, whose long requests are written and long answers read on these threads.
    pub fn computing_on(self, compute: &Compute) -> Models {
        Models { compute: Some(compute.clone()), ..self }
    }

    /// The names of all models, as a task may use them.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.links.iter().map(|link| link.name.as_str())
    }

    /// Whether there is a model of this name; `None`: the default.
    pub fn has(&self, name: Option<&str>) -> bool {
        self.names().any(|known| known == name.unwrap_or(&self.default))
    }

    /// The named model, or the default, and those that follow it, for calls of a tenant. `None`: there is no such
    /// model.
    pub fn chain(&self, first: Option<&str>, tenant: &str) -> Option<Chain> {
        let first = first.unwrap_or(&self.default);
        let find = |name: &str| self.links.iter().find(|link| link.name == name).cloned();
        let following = self.fallback.iter().filter(|name| *name != first).filter_map(|name| find(name));
        let links = std::iter::once(find(first)?).chain(following).collect();
        let turn = self.compute.as_ref().map(|compute| ComputeTurn::new(compute, tenant));
        Some(Chain::new(links, tenant, self.retry, self.clock.clone()).in_turn(turn))
    }
}

/// Asks a model once, by its first key and as its settings say: no attempt follows, with less thinking or else.
pub async fn ask_as_configured(
    settings: &ModelSettings,
    request: &ModelRequest,
    clock: &Clock,
) -> Result<ModelAnswer, LlmError> {
    let connections = Arc::new(ModelConnections::new(Duration::from_secs(settings.timeout_seconds)));
    let rejected = |message| LlmError::Rejected { message };
    let models = each_key(settings, &connections, clock).map_err(|fault| rejected(fault.message))?;
    let model = models.first().ok_or_else(|| rejected(format!("unknown provider `{}`", settings.provider)))?;
    retry::check_answer(model.complete(request, Some(&|_| {})).await?)
}

fn link(
    name: &str,
    settings: &ModelSettings,
    (encoders, own): (&Encoders, &[OwnEncoder]),
    connections: &Arc<ModelConnections>,
    clock: &Clock,
) -> Result<ChainLink, FieldError> {
    let plain = settings.without_thinking().map(|settings| each_key(&settings, connections, clock)).transpose()?;
    let lower = settings.effort.into_iter().flat_map(|effort| effort.lower(&settings.provider));
    let lower = lower.map(|effort| each_key(&settings.with_effort(effort), connections, clock));
    Ok(ChainLink {
        name: name.to_owned(),
        origin: ModelOrigin { provider: settings.provider.clone(), model: settings.model.clone() },
        keys: each_key(settings, connections, clock)?,
        lower: lower.collect::<Result<_, _>>()?,
        plain: plain.unwrap_or_default(),
        breaker: ModelBreaker::default(),
        counter: encoders.counter(&settings.model),
        calibration: TokenCalibration::with_exact(OwnEncoder::counts_of(own, &settings.model)),
        calls: settings.max_concurrent_calls.map(FairQueue::new),
        context_token_limit: settings.context_token_limit,
        max_output_tokens: settings.max_output_tokens,
        rates: pricing::TokenPrices::from_dollars(settings.price_per_million_input, settings.price_per_million_output)
            .with_cache(settings.price_per_million_cache_read, settings.price_per_million_cache_write),
    })
}

/// The model, once for each key.
fn each_key(
    settings: &ModelSettings,
    connections: &Arc<ModelConnections>,
    clock: &Clock,
) -> Result<Vec<Arc<dyn Model>>, FieldError> {
    let Some(provider) = PROVIDERS.iter().find(|provider| provider.name == settings.provider) else {
        return Ok(vec![]); // the settings' own check names it
    };
    let make = |key| (provider.make)(&ModelParts { settings, key, connections, clock });
    let models: Vec<_> = settings.keys().map(|key| make(Some(key))).collect::<Result<_, _>>()?;
    if models.is_empty() { Ok(vec![make(None)?]) } else { Ok(models) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn build(text: &str) -> Result<Models, ValidationErrors> {
        let retry = RetryWait { max_retries: 2, base_delay: Duration::from_secs(1) };
        Models::build(&toml::from_str(text).unwrap(), &Encoders::default(), retry, &Clock::system())
    }

    #[test]
    fn chain_begins_with_the_named_model_and_goes_on_with_the_fallback() {
        let models = build(
            "fallback = ['spare', 'main']\n[models.main]\nmodel = 'gpt'\n[models.spare]\nmodel = 'claude'\n\
             provider = 'anthropic'\n[models.other]\nmodel = 'x'",
        )
        .unwrap();
        let names = |first| models.chain(first, "a").map(|chain| chain.names().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(names(None).unwrap(), ["main", "spare"]);
        assert_eq!(names(Some("spare")).unwrap(), ["spare", "main"]);
        assert_eq!(names(Some("other")).unwrap(), ["other", "spare", "main"]);
        assert_eq!(names(Some("none")), None);
    }

    #[test]
    fn model_chain_needs_a_model() {
        assert!(build("").unwrap().chain(None, "a").is_none());
    }

    #[test]
    fn scripted_model_without_its_scenario_is_a_fault_at_its_place() {
        let faults = build("[models.main]\nprovider = 'scripted'").err().unwrap();
        assert_eq!(faults, ValidationErrors::one("/llm/models/main/scenario", "is missing: the scenario file"));
    }
}
