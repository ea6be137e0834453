//! Definitions of tools that are made in code, and where tools come from.

use serde_json::Value;

use crate::base::words::words;
use crate::domain::approval::{Category, Consequence};
use crate::ports::tool::{Definition, ToolStatus};

words! {
    /// Where a tool comes from.
    #[derive(utoipa::ToSchema)]
    pub enum ToolSource {
        /// It is always there.
        Builtin = "builtin",
        /// It stands in `[[tools]]`.
        Declared = "declared",
        /// It stands in `[[agents]]`.
        Agent = "agent",
        /// An MCP server lists it.
        Mcp = "mcp",
        /// The program that embeds the service brings it.
        Added = "added",
    }
}

impl Definition {
    /// A tool in its first version whose calls may be repeated; the matrix says whether a person is asked.
    pub fn new(
        name: &str,
        description: &str,
        parameters: Value,
        category: Category,
        consequence: Consequence,
    ) -> Definition {
        Definition {
            name: name.into(),
            description: description.into(),
            parameters,
            category,
            consequence,
            requires_confirmation: false,
            timeout: None,
            version: "1.0.0".into(),
            status: ToolStatus::Active,
            idempotent: true,
            summary: None,
            undo_seconds: None,
            output_level: None,
            request: None,
        }
    }
}
