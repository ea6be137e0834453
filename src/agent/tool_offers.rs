//! The tools that an agent has now, and the selections of them that were offered lately: runs with the same tools share
//! what the wires write of them.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};

use lru::LruCache;

use crate::agent::Agent;
use crate::ports::llm::{OfferedTools, ToolSchema};
use crate::ports::tool::registry::RegisteredTool;
use crate::ports::tool::{ToolCatalog, ToolRegistry};

impl Agent {
    /// The agent with the tools that there are now.
    pub fn current(&self) -> Agent {
        Agent { tools: self.current_tools(), ..self.clone() }
    }

    /// The tools that there are now.
    pub fn current_tools(&self) -> Arc<ToolRegistry> {
        self.catalog.as_ref().map_or_else(|| Arc::clone(&self.tools), ToolCatalog::current)
    }
}

/// Selections that are kept; a task that names its tools has one of its own.
const KEPT: NonZeroUsize = NonZeroUsize::new(64).expect("not zero");

/// Cheap to clone; all clones share what is kept.
#[derive(Clone)]
pub struct ToolOffers(Arc<Mutex<LruCache<Vec<usize>, OfferedTools>>>);

impl ToolOffers {
    /// The tools of these names, as models are shown them; names that the registry does not have are left out.
    pub fn select(&self, tools: &ToolRegistry, names: &[&str]) -> OfferedTools {
        let found: Vec<_> = names.iter().filter_map(|name| tools.find(name)).collect();
        // a selection keeps its schemas, so no other schema is ever at the address of one that is kept
        let key = found.iter().map(|tool| Arc::as_ptr(&tool.parameters) as usize).collect();
        let schema = |tool: &&Arc<RegisteredTool>| ToolSchema {
            name: tool.definition().name.clone(),
            description: tool.definition().description.clone(),
            parameters: Arc::clone(&tool.parameters),
        };
        let schemas = || found.iter().map(schema).collect::<Vec<_>>().into();
        self.0.lock().expect("offers lock").get_or_insert(key, schemas).clone()
    }
}

impl Default for ToolOffers {
    fn default() -> ToolOffers {
        ToolOffers(Arc::new(Mutex::new(LruCache::new(KEPT))))
    }
}
