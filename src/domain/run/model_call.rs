//! Calls of models, and the tokens that they took.

use serde::{Deserialize, Serialize};

/// Which model answered, and what it counted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ModelCall {
    /// Name of the model in the settings.
    pub model: String,
    /// Tokens of the call.
    pub tokens: ModelTokens,
}

/// Tokens of one call as the provider counted them; zero where it did not say.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ModelTokens {
    /// Tokens that the model read, those of a cache included.
    pub input: i64,
    /// Tokens that the model wrote, thinking included.
    pub output: i64,
    /// The part of `input` that came from the provider's cache.
    #[serde(default)]
    pub cache_read: i64,
    /// The part of `input` that the provider's cache has kept for later calls.
    #[serde(default)]
    pub cache_write: i64,
    /// The part of `output` that is thinking.
    #[serde(default)]
    pub reasoning: i64,
}

impl ModelTokens {
    /// Tokens of which no part is counted apart.
    pub fn of(input: i64, output: i64) -> ModelTokens {
        ModelTokens { input, output, ..ModelTokens::default() }
    }
}

impl std::ops::Add for ModelTokens {
    type Output = ModelTokens;

    fn add(self, more: ModelTokens) -> ModelTokens {
        ModelTokens {
            input: self.input + more.input,
            output: self.output + more.output,
            cache_read: self.cache_read + more.cache_read,
            cache_write: self.cache_write + more.cache_write,
            reasoning: self.reasoning + more.reasoning,
        }
    }
}
