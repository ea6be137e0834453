//! The tools that there are now: those of the start, and those that MCP servers list. A run keeps the ones with which it
//! began.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, Mutex, RwLock};

use crate::domain::run::portable_name;
use crate::ports::tool::registry::{RegisteredTool, ToolRegistry};

/// The list of tools that changes. Cheap to clone; all clones are the one list.
#[derive(Clone)]
pub struct ToolCatalog(Arc<CatalogState>);

struct CatalogState {
    fixed: Arc<ToolRegistry>,
    /// By the names of their servers.
    listed: Mutex<BTreeMap<String, ToolsOfServer>>,
    current: RwLock<Arc<ToolRegistry>>,
}

struct ToolsOfServer {
    /// Those that are offered.
    tools: Vec<Arc<RegisteredTool>>,
    /// Those whose definitions nobody has accepted.
    waiting: Vec<Arc<RegisteredTool>>,
}

/// The lists of all servers, joined into one.
struct FittingTools {
    tools: Vec<Arc<RegisteredTool>>,
    waiting: Vec<Arc<RegisteredTool>>,
    /// Names of one server's tools that are in neither.
    left_out: Vec<String>,
}

impl ToolCatalog {
    /// A catalog of the tools of the start, to which servers add theirs.
    pub fn new(fixed: ToolRegistry) -> ToolCatalog {
        ToolCatalog::from(Arc::new(fixed))
    }

    /// The tools that there are now.
    pub fn current(&self) -> Arc<ToolRegistry> {
        Arc::clone(&self.0.current.read().expect("catalog lock"))
    }

    /// Takes the tools of a server in place of those that it listed before. Answers the names that are left out:
    /// another tool has the name, or one that providers can't tell from it.
    pub fn replace(&self, server: &str, tools: Vec<Arc<RegisteredTool>>) -> Vec<String> {
        self.replace_judged(server, tools, Vec::new())
    }

    /// As [`ToolCatalog::replace`], with tools that wait until the operator accepts their definitions: nobody is
    /// offered them, and none takes the name of one that is.
    pub fn replace_judged(
        &self,
        server: &str,
        tools: Vec<Arc<RegisteredTool>>,
        waiting: Vec<Arc<RegisteredTool>>,
    ) -> Vec<String> {
        // held until the list is in place: of two servers that list at once neither is lost
        let mut listed = self.0.listed.lock().expect("catalog lock");
        listed.insert(server.to_owned(), ToolsOfServer { tools, waiting });
        let FittingTools { tools, waiting, left_out } = self.0.fitting(&listed, server);
        let current = Arc::new(self.0.fixed.and(tools).with_waiting(waiting));
        *self.0.current.write().expect("catalog lock") = current;
        left_out
    }
}

/// A catalog of a registry that does not change.
impl From<Arc<ToolRegistry>> for ToolCatalog {
    fn from(fixed: Arc<ToolRegistry>) -> ToolCatalog {
        let current = RwLock::new(Arc::clone(&fixed));
        ToolCatalog(Arc::new(CatalogState { fixed, listed: Mutex::default(), current }))
    }
}

impl CatalogState {
    /// The tools of all servers, each of a name that none before it has, and the names of this server's others. Those
    /// that wait stand behind all that are offered.
    fn fitting(&self, listed: &BTreeMap<String, ToolsOfServer>, server: &str) -> FittingTools {
        let fixed = self.fixed.definitions().map(|tool| portable_name(&tool.name).into_owned());
        let mut used: HashSet<String> = fixed.collect();
        let mut left_out = Vec::new();
        let mut is_fitting = |owner: &str, tool: &Arc<RegisteredTool>| {
            let name = &tool.definition().name;
            let fits = used.insert(portable_name(name).into_owned());
            if !fits && owner == server {
                left_out.push(name.clone());
            }
            fits
        };
        let (mut tools, mut waiting) = (Vec::new(), Vec::new());
        for (owner, of_server) in listed {
            tools.extend(of_server.tools.iter().filter(|tool| is_fitting(owner, tool)).cloned());
        }
        for (owner, of_server) in listed {
            waiting.extend(of_server.waiting.iter().filter(|tool| is_fitting(owner, tool)).cloned());
        }
        FittingTools { tools, waiting, left_out }
    }
}

#[cfg(test)]
mod tests {
    use futures::future::BoxFuture;
    use serde_json::{Value, json};

    use super::*;
    use crate::domain::approval::{Category, Consequence};
    use crate::ports::tool::policy::ToolPolicy;
    use crate::ports::tool::{Definition, Tool, ToolContext, ToolError, ToolOutput};

    struct NamedTool(Definition);

    impl Tool for NamedTool {
        fn definition(&self) -> &Definition {
            &self.0
        }

        fn call<'a>(&'a self, _: &'a ToolContext, _: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
            unreachable!("it is only listed")
        }
    }

    fn tool(name: &str) -> Arc<dyn Tool> {
        Arc::new(NamedTool(Definition::new(name, "", json!({}), Category::Read, Consequence::Low)))
    }

    fn listed(names: &[&str]) -> Vec<Arc<RegisteredTool>> {
        let registered = |name: &&str| RegisteredTool::new(tool(name), ToolPolicy::default()).unwrap();
        names.iter().map(registered).map(Arc::new).collect()
    }

    fn catalog(names: &[&str]) -> ToolCatalog {
        let tools = names.iter().map(|name| tool(name)).collect();
        ToolCatalog::new(ToolRegistry::new(tools).unwrap().with_servers(["a", "b"]))
    }

    fn names(registry: &ToolRegistry) -> Vec<&str> {
        registry.names().collect()
    }

    #[test]
    fn list_of_a_server_takes_the_place_of_its_earlier_one_and_a_run_keeps_its_own() {
        let catalog = catalog(&["look"]);
        assert!(catalog.replace("b", listed(&["b.one"])).is_empty());
        assert!(catalog.clone().replace("a", listed(&["a.one", "a.two"])).is_empty());
        let of_run = catalog.current();
        assert_eq!(names(&of_run), ["look", "a.one", "a.two", "b.one"]);
        assert!(catalog.replace("a", listed(&["a.two", "a.three"])).is_empty());
        assert_eq!(names(&catalog.current()), ["look", "a.two", "a.three", "b.one"]);
        catalog.replace("a", Vec::new());
        assert_eq!(names(&catalog.current()), ["look", "b.one"]);
        assert!(catalog.current().is_of_server("a.two"), "its names stay known");
        assert_eq!(names(&of_run), ["look", "a.one", "a.two", "b.one"]);
    }

    #[test]
    fn tool_that_is_handed_in_again_stays_the_one_that_it_is() {
        let catalog = catalog(&[]);
        let tools = listed(&["a.one"]);
        catalog.replace("a", tools.clone());
        let before = catalog.current();
        catalog.replace("a", tools);
        let (before, after) = (before.find("a.one").unwrap(), catalog.current().find("a.one").unwrap().clone());
        assert!(Arc::ptr_eq(before, &after));
    }

    #[test]
    fn tool_whose_name_is_taken_is_left_out_and_named() {
        let catalog = catalog(&["b__look", "b.exact"]);
        let left_out = catalog.replace("b", listed(&["b.look", "b.exact", "b.find.one", "b.find__one", "b.more"]));
        assert_eq!(left_out, ["b.look", "b.exact", "b.find__one"]);
        assert_eq!(names(&catalog.current()), ["b__look", "b.exact", "b.find.one", "b.more"]);
        assert!(catalog.replace("a", listed(&["a.one"])).is_empty(), "other servers' are not told again");
        assert_eq!(names(&catalog.current()), ["b__look", "b.exact", "a.one", "b.find.one", "b.more"]);
    }

    #[test]
    fn tool_that_waits_takes_the_name_of_none_that_is_offered() {
        let catalog = catalog(&[]);
        let waiting = |registry: &ToolRegistry| -> Vec<String> {
            registry.waiting().map(|tool| tool.definition().name.clone()).collect()
        };
        let left_out = catalog.replace_judged("a", listed(&["a.one"]), listed(&["a.two", "a.b__look"]));
        assert!(left_out.is_empty());
        assert_eq!((names(&catalog.current()), waiting(&catalog.current()).len()), (vec!["a.one"], 2));
        assert!(catalog.replace("a.b", listed(&["a.b.look"])).is_empty());
        assert_eq!(names(&catalog.current()), ["a.one", "a.b.look"]);
        assert_eq!(waiting(&catalog.current()), ["a.two"], "the other has the name of one that is offered");
        let left_out = catalog.replace_judged("a", listed(&["a.one", "a.two"]), listed(&["a.b__look"]));
        assert_eq!((left_out, waiting(&catalog.current())), (vec!["a.b__look".to_owned()], vec![]));
        assert_eq!(names(&catalog.current()), ["a.one", "a.two", "a.b.look"]);
    }

    #[test]
    fn registry_that_does_not_change_is_handed_out_itself() {
        let fixed = Arc::new(ToolRegistry::new(vec![tool("look")]).unwrap());
        assert!(Arc::ptr_eq(&fixed, &ToolCatalog::from(Arc::clone(&fixed)).current()));
    }
}
