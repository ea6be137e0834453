//! `[llm]`: which models there are, which is the default, and which follow when one fails.

mod thinking_settings;

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::base::invalid::{ValidationErrors, did_you_mean, escape};
use crate::base::secret::Secret;
use crate::base::words::words;
use crate::ports::llm::PROVIDERS;
use crate::ports::llm::thinking::{PromptCache, ThinkingEffort, ThinkingMode};

/// Where the APIs of the providers begin by themselves.
const OPENAI_URL: &str = "https://api.openai.com/v1";
const ANTHROPIC_URL: &str = "https://api.anthropic.com/v1";
/// The longest answer where the provider wants a number and the settings name none.
pub const DEFAULT_MAX_TOKENS: u32 = 8192;
/// Longest key of a cache, in characters.
const CACHE_KEY_LENGTH: usize = 64;
/// Calls of a model that may be made at once.
const MOST_CALLS: usize = 100_000;

/// `[llm]`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The model of tasks that name none.
    pub default: String,
    /// The models that are asked in turn when the one before fails.
    pub fallback: Vec<String>,
    /// Models by name.
    pub models: BTreeMap<String, ModelSettings>,
}

words! {
    /// Names of the longest answer in chat completions.
    pub enum MaxTokensField {
        /// As OpenAI has renamed it.
        MaxCompletionTokens = "max_completion_tokens",
        /// As most other servers know it.
        MaxTokens = "max_tokens",
    }
}

/// `[llm.models.<name>]`.
#[derive(Debug, Clone, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSettings {
    /// `openai` (and all that speak its chat completions), `openai-responses` (and all that speak Open Responses),
    /// `anthropic` or `scripted`.
    pub provider: String,
    /// Where the API begins, version included; absent: the provider's own.
    pub base_url: Option<String>,
    /// The provider's name of the model.
    pub model: String,
    /// Key for the provider.
    pub api_key: Option<Secret>,
    /// The environment variable that holds the key.
    pub api_key_env: Option<String>,
    /// More keys of the same model, tried in order when the one before is refused or used up.
    pub api_keys: Vec<Secret>,
    /// In tokens; absent: `[react] context_token_limit`.
    pub context_token_limit: Option<u64>,
    /// In dollars for a million tokens.
    pub price_per_million_input: f64,
    /// Price of a million written tokens, in dollars.
    pub price_per_million_output: f64,
    /// Price of a million read tokens that the provider's cache held, in dollars; absent: as other input.
    pub price_per_million_cache_read: Option<f64>,
    /// Price of a million read tokens that the provider's cache keeps, in dollars; absent: as other input.
    pub price_per_million_cache_write: Option<f64>,
    /// Longest answer in tokens; absent: the provider's own, 8192 where the provider wants a number.
    pub max_output_tokens: Option<u32>,
    /// How much the model thinks; absent: as it has it.
    pub effort: Option<ThinkingEffort>,
    /// Whether it thinks, for `anthropic`; absent: as it has it.
    pub thinking: Option<ThinkingMode>,
    /// Most tokens of thinking, for `thinking = "enabled"`.
    pub thinking_budget_tokens: Option<u32>,
    /// How long `anthropic` keeps the beginning of a conversation for the calls that follow.
    pub prompt_cache: PromptCache,
    /// Calls with the same key share what the provider keeps, for `openai` and `openai-responses`.
    pub prompt_cache_key: Option<String>,
    /// The name under which `openai` is told the longest answer; absent: the one that the server is known to take.
    pub max_tokens_field: Option<MaxTokensField>,
    /// `false` for servers that can't count the tokens of a stream.
    pub stream_usage: bool,
    /// Randomness of answers; absent: the provider's default.
    pub temperature: Option<f64>,
    /// The share of likely words that is picked from; absent: the provider's default.
    pub top_p: Option<f64>,
    /// The number of likely words that is picked from, for `anthropic`; absent: the provider's default.
    pub top_k: Option<u32>,
    /// For the whole of one call, its answer included.
    pub timeout_seconds: u64,
    /// Calls that this instance makes at once; absent: as many as runs ask for.
    pub max_concurrent_calls: Option<usize>,
    /// `false` for servers that can't stream.
    pub stream: bool,
    /// The scenario file of provider `scripted`, TOML or JSON.
    pub scenario: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { default: "main".into(), fallback: vec![], models: BTreeMap::new() }
    }
}

impl Default for ModelSettings {
    fn default() -> ModelSettings {
        ModelSettings {
            provider: "openai".into(),
            base_url: None,
            model: String::new(),
            api_key: None,
            api_key_env: None,
            api_keys: vec![],
            context_token_limit: None,
            price_per_million_input: 0.0,
            price_per_million_output: 0.0,
            price_per_million_cache_read: None,
            price_per_million_cache_write: None,
            max_output_tokens: None,
            effort: None,
            thinking: None,
            thinking_budget_tokens: None,
            prompt_cache: PromptCache::default(),
            prompt_cache_key: None,
            max_tokens_field: None,
            stream_usage: true,
            temperature: None,
            top_p: None,
            top_k: None,
            timeout_seconds: 120,
            max_concurrent_calls: None,
            stream: true,
            scenario: None,
        }
    }
}

impl Settings {
    /// Puts the keys that the environment holds in their places; pointers begin with `/llm`.
    pub fn resolve_keys(&mut self, environment: impl Fn(&str) -> Option<String>) -> Result<(), ValidationErrors> {
        let mut faults = ValidationErrors::new();
        for (name, model) in &mut self.models {
            let Some(variable) = &model.api_key_env else { continue };
            let place = format!("/llm/models/{}/api_key_env", escape(name));
            match environment(variable).filter(|key| !key.trim().is_empty()) {
                _ if model.api_key.is_some() => faults.add(place, "set either `api_key` or `api_key_env`, not both"),
                Some(key) => model.api_key = Some(Secret::new(key.trim())),
                None => faults.add(place, format!("the environment variable `{variable}` is not set")),
            }
        }
        faults.into_result(())
    }

    /// Adds what is wrong with names and numbers; pointers begin with `/llm`.
    pub fn check(&self, added: &[&str], faults: &mut ValidationErrors) {
        let known = || self.models.keys().map(String::as_str).chain(added.iter().copied());
        let is_known = |name: &str| known().any(|known| known == name);
        for name in added.iter().filter(|name| self.models.contains_key(**name)) {
            faults.add(format!("/llm/models/{}", escape(name)), "the program has a model of this name, too");
        }
        for (index, name) in added.iter().enumerate().filter(|(index, name)| added[..*index].contains(*name)) {
            let message = format!("the program has two models `{name}`: the {}th is one too many", index + 1);
            faults.add(format!("/llm/models/{}", escape(name)), message);
        }
        if known().next().is_some() && !is_known(&self.default) {
            let hint = did_you_mean(&self.default, known());
            faults.add("/llm/default", format!("no model `{}` in [llm.models]{hint}", self.default));
        }
        for (index, name) in self.fallback.iter().enumerate().filter(|(_, name)| !is_known(name)) {
            let hint = did_you_mean(name, known());
            faults.add(format!("/llm/fallback/{index}"), format!("no model `{name}` in [llm.models]{hint}"));
        }
        for (name, model) in &self.models {
            model.check(&format!("/llm/models/{}", escape(name)), faults);
        }
    }
}

impl ModelSettings {
    /// Where the API begins, its version included, without a slash at the end; `None`: the provider asks nobody.
    pub fn endpoint(&self) -> Option<String> {
        let own = match self.provider.as_str() {
            "openai" | "openai-responses" => OPENAI_URL,
            "anthropic" => ANTHROPIC_URL,
            _ => return None,
        };
        let base = self.base_url.as_deref().unwrap_or(own).trim_end_matches('/');
        // Anthropic's own clients leave the version out of the base address; both spellings are known
        let version = if self.provider == "anthropic" && !base.ends_with("/v1") { "/v1" } else { "" };
        Some(format!("{base}{version}"))
    }

    /// Whether its provider has an endpoint for vectors.
    pub fn makes_embeddings(&self) -> bool {
        matches!(self.provider.as_str(), "openai" | "openai-responses")
    }

    /// The longest answer, for providers that want a number.
    pub(super) fn most_output_tokens(&self) -> u32 {
        self.max_output_tokens.unwrap_or(DEFAULT_MAX_TOKENS)
    }

    /// The name under which `openai` is told the longest answer. OpenAI itself has renamed it and refuses the old name;
    /// the others know the old one.
    pub fn sent_max_tokens_field(&self) -> MaxTokensField {
        let is_openai =
            || self.endpoint().is_some_and(|endpoint| format!("{endpoint}/").starts_with("https://api.openai.com/"));
        self.max_tokens_field.unwrap_or_else(|| match is_openai() {
            true => MaxTokensField::MaxCompletionTokens,
            false => MaxTokensField::MaxTokens,
        })
    }

    /// All keys in the order in which they are tried.
    pub fn keys(&self) -> impl Iterator<Item = &Secret> {
        self.api_key.iter().chain(&self.api_keys)
    }

    fn check(&self, place: &str, faults: &mut ValidationErrors) {
        if !PROVIDERS.iter().any(|provider| provider.name == self.provider) {
            let hint = did_you_mean(&self.provider, PROVIDERS.iter().map(|provider| provider.name));
            faults.add(format!("{place}/provider"), format!("unknown provider `{}`{hint}", self.provider));
        }
        if self.provider != "scripted" && self.model.is_empty() {
            faults.add(format!("{place}/model"), "is missing: the provider's name of the model");
        }
        if let Some(Err(why)) = self.base_url.as_deref().map(check_base_url) {
            faults.add(format!("{place}/base_url"), why);
        }
        let prices = [
            ("input", Some(self.price_per_million_input)),
            ("output", Some(self.price_per_million_output)),
            ("cache_read", self.price_per_million_cache_read),
            ("cache_write", self.price_per_million_cache_write),
        ];
        for (which, _) in
            prices.into_iter().filter(|(_, price)| price.is_some_and(|price| !(0.0..=1e6).contains(&price)))
        {
            faults.add(format!("{place}/price_per_million_{which}"), "must be from 0 to 1000000 dollars");
        }
        if !(1..=3600).contains(&self.timeout_seconds) {
            faults.add(format!("{place}/timeout_seconds"), "must be from 1 to 3600");
        }
        if self.max_concurrent_calls.is_some_and(|most| !(1..=MOST_CALLS).contains(&most)) {
            faults.add(format!("{place}/max_concurrent_calls"), format!("must be from 1 to {MOST_CALLS}"));
        }
        if self.context_token_limit.is_some_and(|limit| !(1_000..=100_000_000).contains(&limit)) {
            faults.add(format!("{place}/context_token_limit"), "must be from 1000 to 100000000 tokens");
        }
        if self.max_output_tokens.is_some_and(|most| !(1..=10_000_000).contains(&most)) {
            faults.add(format!("{place}/max_output_tokens"), "must be from 1 to 10000000");
        }
        if self.temperature.is_some_and(|temperature| !(0.0..=2.0).contains(&temperature)) {
            faults.add(format!("{place}/temperature"), "must be from 0 to 2");
        }
        if self.top_p.is_some_and(|top_p| !(0.0..=1.0).contains(&top_p)) {
            faults.add(format!("{place}/top_p"), "must be from 0 to 1");
        }
        if self.top_k.is_some() && self.provider != "anthropic" {
            faults.add(format!("{place}/top_k"), "is for provider `anthropic`");
        }
        if self.prompt_cache_key.as_ref().is_some_and(|key| key.chars().count() > CACHE_KEY_LENGTH) {
            faults.add(format!("{place}/prompt_cache_key"), format!("must be at most {CACHE_KEY_LENGTH} characters"));
        }
        self.check_thinking(place, faults);
    }
}

fn check_base_url(text: &str) -> Result<(), String> {
    match url::Url::parse(text) {
        Ok(url) if matches!(url.scheme(), "http" | "https") && url.host().is_some() => Ok(()),
        Ok(_) => Err("must begin with http:// or https:// and name a host".into()),
        Err(error) => Err(format!("is no URL: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Settings {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn key_comes_from_the_environment_where_the_settings_say_so() {
        let mut settings = read("models.main = { model = 'm', api_key_env = 'MY_KEY' }");
        settings.resolve_keys(|name| (name == "MY_KEY").then(|| "k-1\n".to_owned())).unwrap();
        assert_eq!(settings.models["main"].keys().map(Secret::expose).collect::<Vec<_>>(), ["k-1"]);
        assert!(!format!("{settings:?}").contains("k-1"));
    }

    #[test]
    fn key_that_is_missing_or_doubled_is_named() {
        let mut missing = read("models.a = { model = 'm', api_key_env = 'NONE' }");
        let faults = missing.resolve_keys(|_| None).unwrap_err();
        assert_eq!(
            faults,
            ValidationErrors::one("/llm/models/a/api_key_env", "the environment variable `NONE` is not set")
        );
        let mut doubled = read("models.a = { model = 'm', api_key_env = 'K', api_key = 'x' }");
        let faults = doubled.resolve_keys(|_| Some("y".into())).unwrap_err();
        assert_eq!(
            faults,
            ValidationErrors::one("/llm/models/a/api_key_env", "set either `api_key` or `api_key_env`, not both")
        );
    }

    #[test]
    fn every_fault_is_named_at_its_place() {
        let settings = read(
            "default = 'mian'\nfallback = ['main', 'other']\n[models.main]\nprovider = 'opnai'\nbase_url = 'ftp://x'\n\
             price_per_million_input = -1.0\ntimeout_seconds = 0\ncontext_token_limit = 10\nmax_output_tokens = 0\n\
             temperature = 9.0\nmax_concurrent_calls = 0\ntop_p = 1.1\ntop_k = 5\nthinking = 'enabled'",
        );
        let mut faults = ValidationErrors::new();
        settings.check(&[], &mut faults);
        let places: Vec<&str> = faults.0.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(
            places,
            [
                "/llm/default",
                "/llm/fallback/1",
                "/llm/models/main/provider",
                "/llm/models/main/model",
                "/llm/models/main/base_url",
                "/llm/models/main/price_per_million_input",
                "/llm/models/main/timeout_seconds",
                "/llm/models/main/max_concurrent_calls",
                "/llm/models/main/context_token_limit",
                "/llm/models/main/max_output_tokens",
                "/llm/models/main/temperature",
                "/llm/models/main/top_p",
                "/llm/models/main/top_k",
                "/llm/models/main/thinking",
            ]
        );
        assert_eq!(faults.0[0].message, "no model `mian` in [llm.models]; did you mean `main`?");
        assert_eq!(faults.0[2].message, "unknown provider `opnai`; did you mean `openai`?");
    }

    #[test]
    fn no_models_at_all_is_no_fault() {
        let mut faults = ValidationErrors::new();
        Settings::default().check(&[], &mut faults);
        assert_eq!(faults, ValidationErrors::new());
    }
}
