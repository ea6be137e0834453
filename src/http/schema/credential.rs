//! Where a change of master keys goes on.

use serde::Deserialize;
use utoipa::ToSchema;

/// Where to go on.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RotateKey {
    /// `next_cursor` of the answer before; left out: from the beginning.
    pub cursor: Option<String>,
}
