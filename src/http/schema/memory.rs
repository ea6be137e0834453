//! The shapes of facts.

use serde::Deserialize;
use utoipa::ToSchema;

/// A fact to be noted.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = NewFact, example = json!({"tenant_id": "user_123", "text": "Prefers window seats.", "collection": "preferences/travel"}))]
pub struct NewFactSchema {
    /// The tenant that it is about; a tenant's own token leaves it out.
    pub tenant_id: Option<String>,
    /// One sentence that makes sense by itself.
    #[schema(min_length = 1, max_length = 1000)]
    pub text: String,
    /// A path; facts of `profile` and `preferences`, and of those below them, are told in every run.
    #[schema(max_length = 100)]
    pub collection: Option<String>,
}

/// The fields of a fact to be corrected.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({"text": "Prefers aisle seats."}))]
pub struct FactPatch {
    /// Absent: as it is.
    #[schema(min_length = 1, max_length = 1000)]
    pub text: Option<String>,
    /// Absent: as it is; empty: none.
    #[schema(max_length = 100)]
    pub collection: Option<String>,
}
