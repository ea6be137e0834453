//! One call, whatever it takes: retry, then the next key of that model, then less thinking, then the next model, then
//! the final error.
//!
//! A refused key is never tried again, nor a model that is not there; a conversation that is too long is told at once,
//! because another model does not shorten it. A model that keeps failing is passed over for a while, where another one
//! answers.

mod measured;

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tracing::{Instrument, Span};

use crate::base::clock::Clock;
use crate::base::compute::ComputeTurn;
use crate::base::metrics::trace;
use crate::domain::budget::CallBound;
use crate::domain::run::Usage;
use crate::ports::llm::retry::{KeyAttempts, check_answer};
use crate::ports::llm::settings::DEFAULT_MAX_TOKENS;
use crate::ports::llm::tokens::TokenCounter;
use crate::ports::llm::{LlmError, Model, ModelAnswer, ModelRequest};

pub use crate::ports::llm::chain_link::{ChainLink, ModelOrigin};
pub use crate::ports::llm::retry::RetryWait;

/// The models that are asked in turn.
pub struct Chain {
    links: Vec<LinkInUse>,
    tenant: String,
    retry: RetryWait,
    clock: Clock,
    /// In which long requests are written and long answers read; `None`: where a model is asked.
    turn: Option<ComputeTurn>,
    /// A budget holds for the calls.
    is_budgeted: bool,
    /// Models are asked to think as little as they can.
    is_plain: bool,
    /// Usage of answers that could not be used and were not taken yet.
    unusable: Mutex<Usage>,
}

/// A completed call of a model: the answer, and what is known of how it came.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelCompletion {
    /// The model's answer.
    pub answer: ModelAnswer,
    /// Which model gave it.
    pub model: String,
    /// Cost of the call, in micro-dollars.
    pub cost_micros: i64,
}

impl ModelCompletion {
    fn of(link: &ChainLink, answer: ModelAnswer) -> ModelCompletion {
        ModelCompletion { model: link.name.clone(), cost_micros: link.rates.cost_micros(answer.tokens), answer }
    }
}

/// Events of a call while it lasts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallProgress<'a> {
    /// A model is asked. What was heard before, in an attempt that failed, is void.
    Asked,
    /// A piece of the text.
    Text(&'a str),
}

/// Hears how a call goes on.
pub type OnProgress<'a> = &'a (dyn Fn(CallProgress) + Send + Sync);

impl Chain {
    /// `links` has at least one.
    pub fn new(links: Vec<Arc<ChainLink>>, tenant: &str, retry: RetryWait, clock: Clock) -> Chain {
        let used = |link| LinkInUse { link, level: AtomicUsize::new(0), measured: Mutex::default() };
        let links = links.into_iter().map(used).collect();
        let tenant = tenant.to_owned();
        let unusable = Mutex::default();
        Chain { links, tenant, retry, clock, turn: None, is_budgeted: false, is_plain: false, unusable }
    }

    /// For calls whose long requests are written and long answers read in this turn.
    pub fn in_turn(self, turn: Option<ComputeTurn>) -> Chain {
        Chain { turn, ..self }
    }

    /// For calls that are paid from a budget: each has a longest answer, and none follows one that was paid for,
    /// because no more than one was reserved.
    pub fn budgeted(self) -> Chain {
        Chain { is_budgeted: true, ..self }
    }

    /// For short answers, all of which thinking would take up.
    pub fn without_thinking(self) -> Chain {
        Chain { is_plain: true, ..self }
    }

    /// The most that one call may come to, whichever model answers.
    pub fn worst_case(&self, request: &ModelRequest) -> CallBound {
        let mut bound = CallBound::default();
        for used in &self.links {
            let (link, (input, output)) = (&used.link, used.most(request));
            bound.most.tokens = bound.most.tokens.max(input + output);
            bound.most.cost_micros = bound.most.cost_micros.max(link.rates.most_micros(input, output));
            if link.rates.is_unknown() {
                bound.unpriced.get_or_insert_with(|| link.name.clone());
            }
        }
        bound
    }

    /// Takes the usage of the answers since the last time that could not be used, whatever came after them.
    pub fn take_unusable(&self) -> Usage {
        std::mem::take(&mut self.unusable.lock().expect("usage lock"))
    }

    /// Names of the models, in the order in which they are tried.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.links.iter().map(|used| used.link.name.as_str())
    }

    /// How the first model counts, as far as that is known by now. The later ones are there for bad days.
    pub fn counter(&self) -> TokenCounter {
        self.links.first().map_or_else(|| TokenCounter::of(""), LinkInUse::counter)
    }

    /// The first model's window in tokens, where its settings name one.
    pub fn context_token_limit(&self) -> Option<u64> {
        self.links.first().and_then(|used| used.link.context_token_limit)
    }

    /// Asks until there is an answer or nobody is left to ask. The error is the first that time may heal, else the
    /// last. A model whose breaker is open is asked once, when nobody else has answered.
    pub async fn complete(
        &self,
        request: &ModelRequest,
        on_progress: OnProgress<'_>,
    ) -> Result<ModelCompletion, LlmError> {
        let mut call = ModelAttempts { request, on_progress, healing: None, last: None };
        let mut passed_over = Vec::new();
        for link in &self.links {
            if !link.link.breaker.allows(self.clock.elapsed()) {
                tracing::info!(model = %link.link.name, "the model keeps failing and is passed over");
                passed_over.push(link);
            } else if let Some(completed) = self.ask_model(link, Patience::Retries, &mut call).await? {
                return Ok(completed);
            }
        }
        for link in passed_over {
            if let Some(completed) = self.ask_model(link, Patience::Once, &mut call).await? {
                return Ok(completed);
            }
        }
        Err(call.error())
    }

    /// Asks one model with all its keys, and again with less thinking where it can be asked for less. `None`: another
    /// model may do.
    async fn ask_model(
        &self,
        link: &LinkInUse,
        patience: Patience,
        call: &mut ModelAttempts<'_>,
    ) -> Result<Option<ModelCompletion>, LlmError> {
        let LinkInUse { link, level, .. } = link;
        let first = level.load(Ordering::Relaxed);
        let mut fails_for_now = false;
        for (index, keys) in link.levels(self.is_plain).into_iter().enumerate().skip(first) {
            let patience = if index == first { patience } else { Patience::Once };
            match self.ask_keys(link, keys, patience, call).await? {
                KeysAnswer::Answered(answer) => {
                    link.breaker.succeeded();
                    // one thinking configuration from here on: what was too much once is not asked for in the next turn
                    level.store(index, Ordering::Relaxed);
                    link.calibration.observe(link.counter, call.request, answer.tokens.input);
                    return Ok(Some(ModelCompletion::of(link, *answer)));
                }
                KeysAnswer::KeysRefused => break,
                KeysAnswer::Failed { for_now } => fails_for_now |= for_now,
            }
        }
        if fails_for_now {
            link.breaker.failed(self.clock.elapsed());
        }
        Ok(None)
    }

    /// Asks one model at one level of thinking with one key after the other.
    async fn ask_keys(
        &self,
        link: &ChainLink,
        keys: &[Arc<dyn Model>],
        patience: Patience,
        call: &mut ModelAttempts<'_>,
    ) -> Result<KeysAnswer, LlmError> {
        let (mut for_now, mut refused) = (false, true);
        for (index, model) in keys.iter().enumerate() {
            match self.ask(link, model.as_ref(), patience, call).await {
                Ok(answer) => return Ok(KeysAnswer::Answered(Box::new(answer))),
                Err(overflow @ LlmError::Overflow { .. }) => return Err(overflow),
                Err(error) if self.is_budgeted && self.has_paid() => return Err(error),
                Err(error) => {
                    tracing::warn!(model = %link.name, key = index, %error, "model call failed");
                    for_now |= error.is_transient();
                    refused &= matches!(error, LlmError::Auth { .. } | LlmError::NoModel { .. });
                    let is_rejected = matches!(error, LlmError::Rejected { .. });
                    call.note(error);
                    if is_rejected {
                        break; // another key of the same model says the same
                    }
                }
            }
        }
        Ok(if refused { KeysAnswer::KeysRefused } else { KeysAnswer::Failed { for_now } })
    }

    /// Asks one key of one model, again where that may help.
    async fn ask(
        &self,
        link: &ChainLink,
        model: &dyn Model,
        patience: Patience,
        call: &ModelAttempts<'_>,
    ) -> Result<ModelAnswer, LlmError> {
        let mut tried = KeyAttempts::default();
        let request = self.bounded(link, call.request);
        loop {
            (call.on_progress)(CallProgress::Asked);
            let on_delta = |text: &str| (call.on_progress)(CallProgress::Text(text));
            let answer = {
                // no error and no reason to ask another model: the run's own time limit bounds the wait
                let _turn = link.turn(&self.tenant).await;
                let span = trace::chat(&link.name, &link.origin.provider, &link.origin.model);
                let cut = CutCall { chain: self, link, request: &request };
                let asked = match &self.turn {
                    Some(turn) => model.complete_in_turn(&request, Some(&on_delta), turn),
                    None => model.complete(&request, Some(&on_delta)),
                };
                let answer = asked.instrument(span.clone()).await;
                std::mem::forget(cut);
                note_on_span(&span, &answer);
                answer
            };
            if matches!(answer, Err(LlmError::Timeout { .. })) {
                self.note_unmetered(link, &request);
            }
            let error = match answer.and_then(|answer| self.check(link, &request, answer)) {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let wait = match patience {
                _ if self.is_budgeted && self.has_paid() => None,
                Patience::Retries => tried.wait(&error, self.retry),
                Patience::Once => None,
            };
            match wait {
                Some(wait) => self.clock.sleep(wait).await,
                None => return Err(error),
            }
        }
    }
}

/// Notes on the span of a call what it came to.
fn note_on_span(span: &Span, answer: &Result<ModelAnswer, LlmError>) {
    match answer {
        Ok(answer) => {
            let tokens = answer.tokens;
            if let Some(failure) = &answer.failure {
                trace::fail(span, failure.error.code());
            }
            span.record("gen_ai.usage.input_tokens", tokens.input);
            span.record("gen_ai.usage.output_tokens", tokens.output);
            span.record("gen_ai.usage.cache_read.input_tokens", tokens.cache_read);
            span.record("gen_ai.usage.cache_creation.input_tokens", tokens.cache_write);
        }
        Err(error) => trace::fail(span, error.code()),
    }
}

impl Chain {
    /// The request as this model is asked it: under a budget it has a longest answer.
    fn bounded<'r>(&self, link: &ChainLink, request: &'r ModelRequest) -> Cow<'r, ModelRequest> {
        match self.is_budgeted && request.max_tokens.or(link.max_output_tokens).is_none() {
            false => Cow::Borrowed(request),
            true => Cow::Owned(ModelRequest { max_tokens: Some(DEFAULT_MAX_TOKENS), ..request.clone() }),
        }
    }

    /// Passes on an answer that can be used, and notes what any other has cost.
    fn check(&self, link: &ChainLink, request: &ModelRequest, answer: ModelAnswer) -> Result<ModelAnswer, LlmError> {
        let (tokens, is_metered) = (answer.tokens, answer.failure.as_ref().is_none_or(|failure| failure.is_metered));
        check_answer(answer).inspect_err(|_| match is_metered {
            true => self.note_unusable(tokens.input, tokens.output, link.rates.cost_micros(tokens)),
            false => self.note_unmetered(link, request),
        })
    }

    /// Notes an answer that nobody has counted: under a budget it counts as the worst, because it may have been that.
    fn note_unmetered(&self, link: &ChainLink, request: &ModelRequest) {
        if self.is_budgeted {
            let (input, output) = self.max_tokens_of(link, request);
            self.note_unusable(input, output, link.rates.most_micros(input, output));
        }
    }

    fn note_unusable(&self, input_tokens: i64, output_tokens: i64, cost_micros: i64) {
        let mut unusable = self.unusable.lock().expect("usage lock");
        *unusable += Usage { turns: 1, tool_calls: 0, input_tokens, output_tokens, cost_micros };
    }

    /// Whether an answer that could not be used was paid for in this call.
    fn has_paid(&self) -> bool {
        *self.unusable.lock().expect("usage lock") != Usage::default()
    }
}

/// A model of a chain, with the level of thinking at which it has answered last.
struct LinkInUse {
    link: Arc<ChainLink>,
    /// The place among the link's levels.
    level: AtomicUsize,
    /// The margin by which a counter estimates what an encoder has counted, where one has.
    measured: Mutex<Option<f64>>,
}

/// How often one key is asked.
#[derive(Clone, Copy)]
enum Patience {
    /// As often as the settings say.
    Retries,
    /// Once: this is an attempt behind others.
    Once,
}

/// How the keys of a model have answered.
enum KeysAnswer {
    Answered(Box<ModelAnswer>),
    /// Each of them is refused, or has no such model: no level of thinking mends that.
    KeysRefused,
    /// `for_now`: the same call may do later.
    Failed {
        for_now: bool,
    },
}

/// A request that is under way. One that nobody waits for any more may have been charged for.
struct CutCall<'a> {
    chain: &'a Chain,
    link: &'a ChainLink,
    request: &'a ModelRequest,
}

impl Drop for CutCall<'_> {
    fn drop(&mut self) {
        self.chain.note_unmetered(self.link, self.request);
    }
}

/// One call, and the errors that it has met.
struct ModelAttempts<'a> {
    request: &'a ModelRequest,
    on_progress: OnProgress<'a>,
    healing: Option<LlmError>,
    last: Option<LlmError>,
}

impl ModelAttempts<'_> {
    fn note(&mut self, error: LlmError) {
        if error.is_transient() {
            self.healing.get_or_insert_with(|| error.clone());
        }
        self.last = Some(error);
    }

    fn error(self) -> LlmError {
        let nobody = || LlmError::Rejected { message: "there is no model to ask".into() };
        self.healing.or(self.last).unwrap_or_else(nobody)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::Mutex;
    use std::time::Duration;

    use chrono::{DateTime, TimeDelta};
    use futures::future::BoxFuture;

    use super::*;
    use crate::base::collections::fair_queue::FairQueue;
    use crate::domain::budget::Spend;
    use crate::ports::llm::breaker::ModelBreaker;
    use crate::ports::llm::pricing::TokenPrices;
    use crate::ports::llm::tokens::calibration::TokenCalibration;
    use crate::ports::llm::{ModelTokens, OfferedTools, OnDelta, StopReason, ToolChoice};

    /// Fails as it is told, then answers with its name; writes down when it was asked.
    struct FailureReport {
        name: &'static str,
        failures: Mutex<VecDeque<LlmError>>,
        asked: Arc<Mutex<Vec<String>>>,
        clock: Clock,
    }

    impl Model for FailureReport {
        fn complete<'a>(
            &'a self,
            _: &'a ModelRequest,
            on_delta: Option<OnDelta<'a>>,
        ) -> BoxFuture<'a, Result<ModelAnswer, LlmError>> {
            let at = (self.clock.now() - DateTime::UNIX_EPOCH).num_milliseconds();
            self.asked.lock().unwrap().push(format!("{} at {at}", self.name));
            if let Some(on_delta) = on_delta {
                on_delta(self.name);
            }
            let answer = ModelAnswer {
                text: Some(self.name.into()),
                tool_calls: vec![],
                stop: StopReason::Done,
                tokens: ModelTokens::of(1000, 10),
                provider_message: None,
                failure: None,
            };
            let failure = self.failures.lock().unwrap().pop_front();
            Box::pin(async move { failure.map_or(Ok(answer), Err) })
        }
    }

    /// The result of a call, and the time at which each model was asked (in milliseconds), for models given as lists of
    /// keys' failures.
    async fn call(models: Vec<Vec<(&'static str, Vec<LlmError>)>>) -> (Result<String, LlmError>, Vec<String>) {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        let asked = Arc::new(Mutex::new(Vec::new()));
        let key = |(name, failures): (&'static str, Vec<LlmError>)| {
            let (asked, clock) = (asked.clone(), clock.clone());
            Arc::new(FailureReport { name, failures: Mutex::new(failures.into()), asked, clock }) as Arc<dyn Model>
        };
        let link = |keys: Vec<_>| {
            Arc::new(ChainLink {
                name: "m".into(),
                keys: keys.into_iter().map(key).collect(),
                lower: vec![],
                plain: vec![],
                origin: ModelOrigin::default(),
                breaker: ModelBreaker::default(),
                calls: None,
                counter: TokenCounter::of("gpt"),
                calibration: TokenCalibration::default(),
                context_token_limit: None,
                max_output_tokens: None,
                rates: TokenPrices::from_dollars(1.0, 1.0),
            })
        };
        let retry = RetryWait { max_retries: 2, base_delay: Duration::from_secs(1) };
        let chain = Chain::new(models.into_iter().map(link).collect(), "a", retry, clock.clone());
        let request = ModelRequest {
            messages: vec![],
            tools: OfferedTools::default(),
            tool_choice: ToolChoice::Auto,
            max_tokens: None,
            temperature: None,
        };
        let passing = async {
            loop {
                tokio::task::yield_now().await;
                clock.advance(TimeDelta::milliseconds(500));
            }
        };
        let result = tokio::select! {
            biased;
            result = chain.complete(&request, &|_| {}) => result,
            () = passing => unreachable!("time passes for ever"),
        };
        let asked = asked.lock().unwrap().clone();
        (result.map(|completed| completed.answer.text.unwrap()), asked)
    }

    fn limited(seconds: Option<u64>) -> LlmError {
        LlmError::RateLimited { retry_after: seconds.map(Duration::from_secs), message: "slow".into() }
    }

    fn timeout() -> LlmError {
        LlmError::Timeout { message: "late".into() }
    }

    fn auth() -> LlmError {
        LlmError::Auth { message: "no".into() }
    }

    fn rejected() -> LlmError {
        LlmError::Rejected { message: "odd".into() }
    }

    #[tokio::test]
    async fn rate_limit_is_waited_for_twice_longer_each_time_then_comes_the_next_key_then_the_next_model() {
        let thrice = || vec![limited(None), limited(None), limited(None)];
        let (result, asked) = call(vec![vec![("a1", thrice()), ("a2", thrice())], vec![("b", vec![])]]).await;
        assert_eq!(result, Ok("b".into()));
        assert_eq!(
            asked,
            ["a1 at 0", "a1 at 1000", "a1 at 3000", "a2 at 3000", "a2 at 4000", "a2 at 6000", "b at 6000"]
        );
    }

    #[tokio::test]
    async fn wait_that_a_provider_asks_for_is_kept_up_to_a_minute_and_passed_over_beyond() {
        let (result, asked) =
            call(vec![vec![("a", vec![limited(Some(30)), limited(Some(61))])], vec![("b", vec![])]]).await;
        assert_eq!(result, Ok("b".into()));
        assert_eq!(asked, ["a at 0", "a at 30000", "b at 30000"]);
    }

    #[tokio::test]
    async fn time_out_is_tried_once_more() {
        let (result, asked) = call(vec![vec![("a", vec![timeout(), timeout()])], vec![("b", vec![])]]).await;
        assert_eq!(result, Ok("b".into()));
        assert_eq!(asked, ["a at 0", "a at 0", "b at 0"]);
    }

    #[tokio::test]
    async fn refused_key_is_not_tried_again_and_a_rejected_request_not_with_another_key() {
        let (result, asked) = call(vec![vec![("a1", vec![auth()]), ("a2", vec![])]]).await;
        assert_eq!((result, asked), (Ok("a2".into()), vec!["a1 at 0".to_owned(), "a2 at 0".into()]));
        let (result, asked) = call(vec![vec![("a1", vec![rejected()]), ("a2", vec![])], vec![("b", vec![])]]).await;
        assert_eq!((result, asked), (Ok("b".into()), vec!["a1 at 0".to_owned(), "b at 0".into()]));
        let missing = || LlmError::NoModel { message: "which?".into() };
        let (result, asked) = call(vec![vec![("a1", vec![missing()]), ("a2", vec![])], vec![("b", vec![])]]).await;
        assert_eq!((result, asked), (Ok("a2".into()), vec!["a1 at 0".to_owned(), "a2 at 0".into()]), "it may use it");
    }

    #[tokio::test]
    async fn overflow_ends_the_call_at_once() {
        let overflow = LlmError::Overflow { message: "long".into() };
        let (result, asked) = call(vec![vec![("a", vec![overflow.clone()])], vec![("b", vec![])]]).await;
        assert_eq!((result, asked), (Err(overflow), vec!["a at 0".to_owned()]));
    }

    #[tokio::test]
    async fn final_error_is_the_one_that_time_may_heal() {
        let limits = vec![limited(Some(90))];
        let (result, _) = call(vec![vec![("a", limits)], vec![("b", vec![auth()])]]).await;
        assert_eq!(result, Err(limited(Some(90))));
        let (result, _) = call(vec![vec![("a", vec![auth()])], vec![("b", vec![rejected()])]]).await;
        assert_eq!(result, Err(rejected()));
    }

    /// Answers with its name once it may.
    struct GatedModel(tokio::sync::watch::Receiver<bool>);

    impl Model for GatedModel {
        fn complete<'a>(
            &'a self,
            _: &'a ModelRequest,
            _: Option<OnDelta<'a>>,
        ) -> BoxFuture<'a, Result<ModelAnswer, LlmError>> {
            let mut may = self.0.clone();
            Box::pin(async move {
                let _ = may.wait_for(|may| *may).await;
                let (tokens, stop) = (ModelTokens::default(), StopReason::Done);
                let text = Some("done".into());
                Ok(ModelAnswer { text, tool_calls: vec![], stop, tokens, provider_message: None, failure: None })
            })
        }
    }

    #[tokio::test]
    async fn call_beyond_the_limit_of_its_model_waits_for_its_turn_and_is_not_sent_to_the_next_model() {
        let (may, held) = tokio::sync::watch::channel(false);
        let link = |name: &str, calls| {
            let keys = vec![Arc::new(GatedModel(held.clone())) as Arc<dyn Model>];
            let counter = TokenCounter::of("");
            let rates = TokenPrices::from_dollars(0.0, 0.0);
            let (lower, breaker, calibration) = Default::default();
            Arc::new(ChainLink {
                origin: ModelOrigin::default(),
                name: name.into(),
                keys,
                lower,
                plain: vec![],
                breaker,
                calls,
                counter,
                calibration,
                context_token_limit: None,
                max_output_tokens: None,
                rates,
            })
        };
        let links = vec![link("first", Some(FairQueue::new(1))), link("second", None)];
        let retry = RetryWait { max_retries: 0, base_delay: Duration::ZERO };
        let chain = |tenant| Chain::new(links.clone(), tenant, retry, Clock::manual(DateTime::UNIX_EPOCH));
        let chains = [chain("a"), chain("a"), chain("b")];
        let (messages, tools) = (vec![], OfferedTools::default());
        let request =
            ModelRequest { messages, tools, tool_choice: ToolChoice::Auto, max_tokens: None, temperature: None };
        let mut calls: Vec<_> = chains.iter().map(|chain| Box::pin(chain.complete(&request, &|_| {}))).collect();
        for call in &mut calls {
            assert!(futures::poll!(call).is_pending());
        }
        assert_eq!(links[0].calls.as_ref().map(FairQueue::waiting), Some(2));
        may.send_replace(true);
        let answered = |done: std::task::Poll<Result<ModelCompletion, LlmError>>| match done {
            std::task::Poll::Ready(done) => Some(done.unwrap().model),
            std::task::Poll::Pending => None,
        };
        let first = answered(futures::poll!(&mut calls[0]));
        let in_turn = [answered(futures::poll!(&mut calls[1])), answered(futures::poll!(&mut calls[2]))];
        let last = answered(futures::poll!(&mut calls[1]));
        let first_model = || Some("first".to_owned());
        assert_eq!(
            (first, in_turn, last),
            (first_model(), [None, first_model()], first_model()),
            "b before a's second"
        );
    }

    #[tokio::test]
    async fn counter_follows_what_the_provider_counts_and_a_reservation_never_falls_below_the_margin() {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        // it says 1,000 tokens, whatever it is sent
        let model =
            FailureReport { name: "m", failures: Mutex::default(), asked: Arc::default(), clock: clock.clone() };
        let link = Arc::new(ChainLink {
            name: "m".into(),
            keys: vec![Arc::new(model) as Arc<dyn Model>],
            lower: vec![],
            plain: vec![],
            origin: ModelOrigin::default(),
            breaker: ModelBreaker::default(),
            calls: None,
            counter: TokenCounter::of(""),
            calibration: TokenCalibration::default(),
            context_token_limit: None,
            max_output_tokens: Some(10),
            rates: TokenPrices::default(),
        });
        let retry = RetryWait { max_retries: 0, base_delay: Duration::ZERO };
        let chain = || Chain::new(vec![link.clone()], "a", retry, clock.clone());
        let text = "x".repeat(40_000);
        let request = ModelRequest {
            messages: vec![crate::domain::run::TranscriptMessage::user(text.clone())],
            tools: OfferedTools::default(),
            tool_choice: ToolChoice::Auto,
            max_tokens: None,
            temperature: None,
        };
        let reserved = chain().worst_case(&request);
        assert_eq!((chain().counter().text(&text), reserved.most.tokens), (12_000, 12_014));
        chain().complete(&request, &|_| {}).await.unwrap();
        assert_eq!(chain().counter().text(&text), 9_000, "another run counts by it, within bounds");
        assert_eq!(chain().worst_case(&request), reserved);
    }

    #[tokio::test]
    async fn answer_has_its_price() {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        let link = ChainLink {
            name: "m".into(),
            keys: vec![],
            lower: vec![],
            plain: vec![],
            origin: ModelOrigin::default(),
            breaker: ModelBreaker::default(),
            calls: None,
            counter: TokenCounter::of(""),
            calibration: TokenCalibration::default(),
            context_token_limit: None,
            max_output_tokens: None,
            rates: TokenPrices::from_dollars(2.0, 10.0),
        };
        let model =
            FailureReport { name: "a", failures: Mutex::default(), asked: Arc::default(), clock: clock.clone() };
        let link = Arc::new(ChainLink { keys: vec![Arc::new(model)], ..link });
        let chain = Chain::new(vec![link], "a", RetryWait { max_retries: 0, base_delay: Duration::ZERO }, clock);
        let request = ModelRequest {
            messages: vec![],
            tools: OfferedTools::default(),
            tool_choice: ToolChoice::Auto,
            max_tokens: None,
            temperature: None,
        };
        let heard = Mutex::new(Vec::new());
        let completed = chain.complete(&request, &|p| heard.lock().unwrap().push(format!("{p:?}"))).await.unwrap();
        assert_eq!((completed.model.as_str(), completed.cost_micros), ("m", 2100));
        assert_eq!(*heard.lock().unwrap(), ["Asked", "Text(\"a\")"]);
    }

    /// Answers nothing at first, then with its name; writes down the longest answers that it was asked for.
    struct EmptyFirst {
        limits: Mutex<Vec<Option<u32>>>,
    }

    impl Model for EmptyFirst {
        fn complete<'a>(
            &'a self,
            request: &'a ModelRequest,
            _: Option<OnDelta<'a>>,
        ) -> BoxFuture<'a, Result<ModelAnswer, LlmError>> {
            let mut limits = self.limits.lock().unwrap();
            limits.push(request.max_tokens);
            let text = (limits.len() > 1).then(|| "done".to_owned());
            let (tokens, stop) = (ModelTokens::of(1000, 10), StopReason::Done);
            Box::pin(async move {
                Ok(ModelAnswer { text, tool_calls: vec![], stop, tokens, provider_message: None, failure: None })
            })
        }
    }

    #[tokio::test]
    async fn answer_that_could_not_be_used_is_counted_and_under_a_budget_nobody_is_asked_after_it() {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        let request = ModelRequest {
            messages: vec![],
            tools: OfferedTools::default(),
            tool_choice: ToolChoice::Auto,
            max_tokens: None,
            temperature: None,
        };
        let asked = async |is_budgeted: bool| {
            let model = Arc::new(EmptyFirst { limits: Mutex::default() });
            let link = Arc::new(ChainLink {
                name: "m".into(),
                keys: vec![Arc::clone(&model) as Arc<dyn Model>],
                lower: vec![],
                plain: vec![],
                origin: ModelOrigin::default(),
                breaker: ModelBreaker::default(),
                calls: None,
                counter: TokenCounter::of(""),
                calibration: TokenCalibration::default(),
                context_token_limit: None,
                max_output_tokens: None,
                rates: TokenPrices::from_dollars(2.0, 10.0),
            });
            let retry = RetryWait { max_retries: 2, base_delay: Duration::ZERO };
            let chain = Chain::new(vec![link], "a", retry, clock.clone());
            let chain = if is_budgeted { chain.budgeted() } else { chain };
            let has_answered = chain.complete(&request, &|_| {}).await.is_ok();
            let usage = chain.take_unusable();
            assert_eq!(chain.take_unusable(), Usage::default(), "taken once");
            let bound = chain.worst_case(&request);
            assert_eq!(bound.most, Spend { tokens: 8192, cost_micros: 81_920 });
            let limits = model.limits.lock().unwrap().clone();
            (has_answered, limits, (usage.turns, usage.input_tokens, usage.cost_micros))
        };
        assert_eq!(asked(false).await, (true, vec![None, None], (1, 1000, 2100)));
        assert_eq!(asked(true).await, (false, vec![Some(8192)], (1, 1000, 2100)));
    }

    /// Fails each time in the same way; without a failure it never answers.
    struct FailingModel(Mutex<usize>, Option<fn() -> Result<ModelAnswer, LlmError>>);

    impl Model for FailingModel {
        fn complete<'a>(
            &'a self,
            _: &'a ModelRequest,
            _: Option<OnDelta<'a>>,
        ) -> BoxFuture<'a, Result<ModelAnswer, LlmError>> {
            *self.0.lock().unwrap() += 1;
            match self.1 {
                Some(failure) => Box::pin(std::future::ready(failure())),
                None => Box::pin(std::future::pending()),
            }
        }
    }

    fn link_of(keys: Vec<Arc<dyn Model>>, plain: Vec<Arc<dyn Model>>) -> Arc<ChainLink> {
        Arc::new(ChainLink {
            name: "m".into(),
            keys,
            lower: vec![],
            plain,
            origin: ModelOrigin::default(),
            breaker: ModelBreaker::default(),
            calls: None,
            counter: TokenCounter::of(""),
            calibration: TokenCalibration::default(),
            context_token_limit: None,
            max_output_tokens: Some(10),
            rates: TokenPrices::from_dollars(1.0, 1.0),
        })
    }

    fn question() -> ModelRequest {
        let (messages, tools) =
            (vec![crate::domain::run::TranscriptMessage::user("x".repeat(400))], Default::default());
        ModelRequest { messages, tools, tool_choice: ToolChoice::None, max_tokens: None, temperature: None }
    }

    /// A call that nobody has counted counts as the worst; one that was refused before its answer counts as nothing.
    #[tokio::test]
    async fn call_that_may_have_been_paid_is_the_last_of_its_reservation_and_is_counted() {
        let metered = || Ok(ModelAnswer::failed(LlmError::Overflow { message: "long".into() }, ModelTokens::of(70, 5)));
        let torn = || {
            let broken = LlmError::Transient { retry_after: None, message: "torn".into() };
            Ok(ModelAnswer::failed(broken, ModelTokens::default()))
        };
        let late = || Err(LlmError::Timeout { message: "late".into() });
        let down = || Err(LlmError::Transient { retry_after: None, message: "down".into() });
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        let asked = async |is_budgeted: bool, failure: fn() -> Result<ModelAnswer, LlmError>| {
            let model = Arc::new(FailingModel(Mutex::default(), Some(failure)));
            let keys: Vec<Arc<dyn Model>> = vec![model.clone(), model.clone()];
            let retry = RetryWait { max_retries: 2, base_delay: Duration::ZERO };
            let chain = Chain::new(vec![link_of(keys, vec![])], "a", retry, clock.clone());
            let chain = if is_budgeted { chain.budgeted() } else { chain };
            chain.complete(&question(), &|_| {}).await.unwrap_err();
            let (usage, worst) = (chain.take_unusable(), chain.worst_case(&question()).most.tokens);
            (*model.0.lock().unwrap(), usage.input_tokens + usage.output_tokens, worst)
        };
        assert_eq!(asked(true, metered).await, (1, 75, 134));
        assert_eq!(asked(true, torn).await, (1, 134, 134));
        assert_eq!(asked(true, late).await, (1, 134, 134));
        assert_eq!(asked(true, down).await, (6, 0, 134));
        assert_eq!(asked(false, metered).await, (1, 75, 134));
        assert_eq!(asked(false, torn).await, (6, 0, 134));
        assert_eq!(asked(false, late).await, (4, 0, 134));
    }

    #[tokio::test]
    async fn call_that_is_cut_off_counts_as_the_worst_under_a_budget() {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        for (is_budgeted, counted) in [(true, 134), (false, 0)] {
            let keys: Vec<Arc<dyn Model>> = vec![Arc::new(FailingModel(Mutex::default(), None))];
            let retry = RetryWait { max_retries: 0, base_delay: Duration::ZERO };
            let chain = Chain::new(vec![link_of(keys, vec![])], "a", retry, clock.clone());
            let chain = if is_budgeted { chain.budgeted() } else { chain };
            let request = question();
            let mut call = Box::pin(chain.complete(&request, &|_| {}));
            assert!(futures::poll!(&mut call).is_pending());
            drop(call);
            let usage = chain.take_unusable();
            assert_eq!(usage.input_tokens + usage.output_tokens, counted);
        }
    }

    #[tokio::test]
    async fn chain_without_thinking_asks_its_models_without_it_and_as_they_are_where_that_is_refused() {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        let (asked, retry) = (Arc::default(), RetryWait { max_retries: 0, base_delay: Duration::ZERO });
        let model = |name: &'static str, failures: Vec<LlmError>| {
            let (asked, clock) = (Arc::clone(&asked), clock.clone());
            Arc::new(FailureReport { name, failures: Mutex::new(failures.into()), asked, clock }) as Arc<dyn Model>
        };
        let refused = LlmError::Rejected { message: "no such effort".into() };
        let plain = vec![model("plain", vec![refused.clone(), refused])];
        let link = link_of(vec![model("thinks", vec![])], plain);
        let chain = || Chain::new(vec![link.clone()], "a", retry, clock.clone());
        let summaries = chain().without_thinking();
        summaries.complete(&question(), &|_| {}).await.unwrap();
        summaries.complete(&question(), &|_| {}).await.unwrap();
        chain().complete(&question(), &|_| {}).await.unwrap();
        chain().without_thinking().complete(&question(), &|_| {}).await.unwrap();
        chain().without_thinking().complete(&question(), &|_| {}).await.unwrap();
        let asked: Vec<String> = asked.lock().unwrap().iter().map(|at| at.replace(" at 0", "")).collect();
        let expected = ["plain", "thinks", "thinks", "thinks", "plain", "thinks", "plain"];
        assert_eq!(asked, expected, "one that has answered is asked again");
    }
}
