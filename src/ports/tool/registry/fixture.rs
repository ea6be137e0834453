//! Tools for the tests of lists: each is listed, and called by nobody.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::{Value, json};

use crate::domain::approval::{Category, Consequence};
use crate::ports::tool::policy::ToolPolicy;
use crate::ports::tool::registry::RegisteredTool;
use crate::ports::tool::{Definition, Tool, ToolContext, ToolError, ToolOutput};

struct UncalledTool(Definition);

impl Tool for UncalledTool {
    fn definition(&self) -> &Definition {
        &self.0
    }

    fn call<'a>(&'a self, _: &'a ToolContext, _: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        unreachable!("it is only listed")
    }
}

/// A tool of this name, which only reads.
pub fn listed_tool(name: &str) -> Arc<RegisteredTool> {
    let definition = Definition::new(name, "", json!({ "type": "object" }), Category::Read, Consequence::Low);
    Arc::new(RegisteredTool::new(Arc::new(UncalledTool(definition)), ToolPolicy::default()).expect("a sound tool"))
}
