//! One model of a chain: its keys, its levels of thinking, its limits and prices.

use std::sync::Arc;

use crate::base::collections::fair_queue::{FairQueue, QueuePermit};
use crate::ports::llm::breaker::ModelBreaker;
use crate::ports::llm::pricing::TokenPrices;
use crate::ports::llm::settings::{DEFAULT_MAX_TOKENS, ModelSettings};
use crate::ports::llm::tokens::TokenCounter;
use crate::ports::llm::tokens::calibration::TokenCalibration;
use crate::ports::llm::tokens::encoders::Encoders;
use crate::ports::llm::tokens::exact::OwnEncoder;
use crate::ports::llm::{Model, ModelRequest, OwnModel};

/// One model with all its keys.
pub struct ChainLink {
    /// As in the settings.
    pub name: String,
    /// Names of the provider and of the model there, for traces.
    pub origin: ModelOrigin,
    /// The model, once for each key.
    pub keys: Vec<Arc<dyn Model>>,
    /// Its keys with less thinking, level by level.
    pub lower: Vec<Vec<Arc<dyn Model>>>,
    /// Its keys with as little thinking as it can; none where nothing is said of its thinking.
    pub plain: Vec<Arc<dyn Model>>,
    /// Passes the model over while it keeps failing.
    pub breaker: ModelBreaker,
    /// Places of the calls that are made at once, which tenants have in turn; `None`: there is no limit.
    pub calls: Option<FairQueue<String>>,
    /// Estimates tokens of requests before anything is known of the model.
    pub counter: TokenCounter,
    /// The provider's own counts of them, and exact ones where an embedder's encoder makes them.
    pub calibration: TokenCalibration,
    /// Most tokens of a request; `None`: there is no limit.
    pub context_token_limit: Option<u64>,
    /// Longest answer in tokens; `None`: the provider's own.
    pub max_output_tokens: Option<u32>,
    /// Prices of the model.
    pub rates: TokenPrices,
}

/// Where a model is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelOrigin {
    /// The provider, as in the settings.
    pub provider: String,
    /// The provider's name of the model.
    pub model: String,
}

impl ChainLink {
    /// A model that an embedder has made.
    pub fn of_embedder(OwnModel { name, model }: &OwnModel, (encoders, own): (&Encoders, &[OwnEncoder])) -> ChainLink {
        ChainLink {
            name: name.clone(),
            origin: ModelOrigin { provider: "embedder".into(), model: name.clone() },
            keys: vec![Arc::clone(model)],
            lower: Vec::new(),
            plain: Vec::new(),
            breaker: ModelBreaker::default(),
            counter: encoders.counter(name),
            calibration: TokenCalibration::with_exact(OwnEncoder::counts_of(own, name)),
            calls: None,
            context_token_limit: ModelSettings::default().context_token_limit,
            max_output_tokens: None,
            rates: TokenPrices::default(),
        }
    }

    /// The model with its keys at each level of thinking: as it is configured first, then with less and less. Plain:
    /// from the least on.
    pub fn levels(&self, is_plain: bool) -> Vec<&[Arc<dyn Model>]> {
        let configured = std::iter::once(&self.keys).chain(&self.lower).map(Vec::as_slice);
        match is_plain && !self.plain.is_empty() {
            false => configured.collect(),
            true => configured.chain([self.plain.as_slice()]).rev().collect(),
        }
    }

    /// Most tokens that are read and written in answer to a request.
    pub fn most(&self, request: &ModelRequest) -> (i64, i64) {
        (self.careful_counter().request(request) as i64, i64::from(self.longest_answer(request)))
    }

    /// Most tokens of an answer.
    pub fn longest_answer(&self, request: &ModelRequest) -> u32 {
        request.max_tokens.or(self.max_output_tokens).unwrap_or(DEFAULT_MAX_TOKENS)
    }

    /// Counts as the provider has counted so far.
    pub fn calibrated_counter(&self) -> TokenCounter {
        self.calibration.applied_to(self.counter)
    }

    /// Never estimates less than what is expected of a model of which nothing is known: the reservation must do.
    pub fn careful_counter(&self) -> TokenCounter {
        let calibrated = self.calibrated_counter();
        TokenCounter { margin: calibrated.margin.max(self.counter.margin), ..calibrated }
    }

    /// The place of one call, once it is the tenant's turn.
    pub async fn turn(&self, tenant: &str) -> Option<QueuePermit<String>> {
        match &self.calls {
            Some(calls) => Some(calls.acquire(tenant).await),
            None => None,
        }
    }
}
