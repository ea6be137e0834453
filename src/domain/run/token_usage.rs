//! Tokens of several calls of models, as results show them.

use serde::{Deserialize, Serialize};

use crate::domain::run::Usage;

/// Tokens of several calls of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct TokenUsage {
    /// Tokens that models read.
    pub input_tokens: i64,
    /// Tokens that models wrote.
    pub output_tokens: i64,
    /// The sum of both.
    pub total: i64,
}

impl From<Usage> for TokenUsage {
    fn from(usage: Usage) -> TokenUsage {
        let Usage { input_tokens, output_tokens, .. } = usage;
        TokenUsage { input_tokens, output_tokens, total: input_tokens + output_tokens }
    }
}
