//! The list of tools, and whether a call's arguments fit their schema.

#[cfg(test)]
pub(crate) mod fixture;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

use crate::base::invalid::{did_you_mean, is_known_name};
use crate::base::json::length::is_longer_than;
use crate::base::json::schema::JsonSchema;
use crate::domain::approval::proposal::LONGEST_UNDO;
use crate::ports::tool::absence::ToolAbsence;
use crate::ports::tool::access::ToolAccess;
use crate::ports::tool::output::DefaultLevel;
use crate::ports::tool::policy::ToolPolicy;
use crate::ports::tool::{Definition, Tool, ToolError, ToolFailure, ToolStatus};

/// At most this many faults of one call's arguments are told.
const FAULTS_TOLD: usize = 5;
/// Longest arguments of a call, in bytes as JSON.
const MAX_INPUT: usize = 10 * 1_024 * 1_024;

/// A tool, its schema compiled.
pub struct RegisteredTool {
    /// The tool.
    pub tool: Arc<dyn Tool>,
    /// Its parameters, as every request to a model shows them.
    pub parameters: Arc<Value>,
    /// How its calls are repeated, and whether results are kept.
    pub policy: ToolPolicy,
    schema: JsonSchema,
}

/// The tools that models may be offered, in the order in which they are offered, and who may use them.
pub struct ToolRegistry {
    tools: Vec<Arc<RegisteredTool>>,
    /// Tools of MCP servers whose definitions nobody has accepted: they are in no other list.
    waiting: Vec<Arc<RegisteredTool>>,
    access: ToolAccess,
    /// `server.*` for each MCP server.
    servers: Vec<String>,
}

impl ToolRegistry {
    /// All tools for everybody, with the policies that hold where nothing is said.
    ///
    /// Fails when two tools share a name, a schema is none, or an undo window is too long; the sentence names the tool.
    pub fn new(tools: Vec<Arc<dyn Tool>>) -> Result<ToolRegistry, String> {
        let mut registered: Vec<Arc<RegisteredTool>> = Vec::with_capacity(tools.len());
        for tool in tools {
            let name = &tool.definition().name;
            if registered.iter().any(|other| other.definition().name == *name) {
                return Err(format!("two tools are named `{name}`"));
            }
            registered.push(Arc::new(RegisteredTool::new(tool, ToolPolicy::default())?));
        }
        let (access, waiting, servers) = (ToolAccess::default(), Vec::new(), Vec::new());
        Ok(ToolRegistry { tools: registered, waiting, access, servers })
    }

    /// These tools, and names below these servers known, whatever they list.
    pub fn with_servers<'a>(self, servers: impl IntoIterator<Item = &'a str>) -> ToolRegistry {
        let servers = servers.into_iter().map(|server| format!("{server}.*")).collect();
        ToolRegistry { servers, ..self }
    }

    /// These tools and more, which stand behind them.
    pub fn and(&self, more: impl IntoIterator<Item = Arc<RegisteredTool>>) -> ToolRegistry {
        ToolRegistry {
            tools: self.tools.iter().cloned().chain(more).collect(),
            waiting: self.waiting.clone(),
            access: self.access.clone(),
            servers: self.servers.clone(),
        }
    }

    /// These tools, and those that wait until the operator accepts their definitions: nobody is offered them.
    pub fn with_waiting(self, waiting: impl IntoIterator<Item = Arc<RegisteredTool>>) -> ToolRegistry {
        ToolRegistry { waiting: waiting.into_iter().collect(), ..self }
    }

    /// These tools under policies, which name their tools, and with these limits of their use.
    pub fn governed(mut self, policies: &BTreeMap<String, ToolPolicy>, access: &ToolAccess) -> ToolRegistry {
        for tool in &mut self.tools {
            if let (Some(policy), Some(registered)) = (policies.get(&tool.definition().name), Arc::get_mut(tool)) {
                registered.policy = policy.clone();
                registered.take_levels();
            }
        }
        ToolRegistry { access: access.clone(), ..self }
    }

    /// Whether the operator lets the tenant use the tool.
    pub fn allows(&self, tenant: &str, tool: &str) -> bool {
        self.access.allows(tenant, tool)
    }

    /// Whether the operator lets anybody use the tool.
    pub fn allows_any(&self, tool: &str) -> bool {
        self.access.allows_any(tool)
    }

    /// Definitions of all tools, in order.
    pub fn definitions(&self) -> impl Iterator<Item = &Definition> {
        self.tools.iter().map(|registered| registered.tool.definition())
    }

    /// All tools, in order.
    pub fn iter(&self) -> impl Iterator<Item = &RegisteredTool> {
        self.tools.iter().map(Arc::as_ref)
    }

    /// The names of the tools that are there, removed ones aside.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let there = self.definitions().filter(|definition| definition.status != ToolStatus::Removed);
        there.map(|definition| definition.name.as_str())
    }

    /// The names that a task, an agent or a rule may use: those of the tools, and `server.*` for each MCP server.
    pub fn known_names(&self) -> impl Iterator<Item = &str> {
        self.names().chain(self.servers.iter().map(String::as_str))
    }

    /// Whether the name is one below an MCP server, listed or not.
    pub fn is_of_server(&self, name: &str) -> bool {
        self.servers.iter().any(|server| is_known_name(name, &[server.as_str()]))
    }

    /// Whether an MCP server has the name and has not listed the tool.
    pub fn is_unlisted(&self, name: &str) -> bool {
        self.absence(name) == Some(ToolAbsence::Unlisted)
    }

    /// Why a tool is not there whose name is one below an MCP server; `None`: it is there, or the name is none such.
    pub fn absence(&self, name: &str) -> Option<ToolAbsence> {
        if !self.is_of_server(name) || self.find(name).is_some() {
            return None;
        }
        let is_waiting = self.find_waiting(name).is_some();
        Some(if is_waiting { ToolAbsence::NotAccepted } else { ToolAbsence::Unlisted })
    }

    /// The tools that wait until the operator accepts their definitions.
    pub fn waiting(&self) -> impl Iterator<Item = &RegisteredTool> {
        self.waiting.iter().map(Arc::as_ref)
    }

    /// A tool that waits until the operator accepts its definition.
    pub fn find_waiting(&self, name: &str) -> Option<&Arc<RegisteredTool>> {
        self.waiting.iter().find(|registered| registered.definition().name == name)
    }

    /// Whatever its status.
    pub fn find(&self, name: &str) -> Option<&Arc<RegisteredTool>> {
        self.tools.iter().find(|registered| registered.tool.definition().name == name)
    }
}

impl RegisteredTool {
    /// A tool under a policy, its schema compiled.
    ///
    /// # Errors
    /// The schema is none that can be used, or the undo window too long; the sentence names the tool.
    pub fn new(tool: Arc<dyn Tool>, policy: ToolPolicy) -> Result<RegisteredTool, String> {
        let Definition { name, parameters, undo_seconds, .. } = tool.definition();
        if undo_seconds.is_some_and(|seconds| !(1..=LONGEST_UNDO).contains(&seconds)) {
            return Err(format!("`undo_seconds` of tool `{name}` must lie between 1 and {LONGEST_UNDO}"));
        }
        let schema = JsonSchema::read(parameters)
            .map_err(|error| format!("the parameters of tool `{name}` are no JSON Schema that can be used: {error}"))?;
        let parameters = shown_parameters(parameters.clone());
        let mut registered = RegisteredTool { tool, parameters, policy, schema };
        registered.take_levels();
        Ok(registered)
    }

    /// The definition of the tool.
    pub fn definition(&self) -> &Definition {
        self.tool.definition()
    }

    /// The level of a call that names none; `None`: results are shown whole, and a call can't name a level.
    pub fn output_level(&self) -> Option<DefaultLevel> {
        self.policy.output_level.or(self.definition().output_level)
    }

    /// Where the tool has levels, a call may name one.
    fn take_levels(&mut self) {
        let parameters = DefaultLevel::parameters(&self.definition().parameters);
        if self.output_level().is_some()
            && let Ok(schema) = JsonSchema::read(&parameters)
        {
            (self.parameters, self.schema) = (shown_parameters(parameters), schema);
        }
    }

    /// The steps that [`RegisteredTool::check`] takes at most.
    pub fn steps(&self, arguments: &Value) -> u64 {
        self.schema.steps(arguments)
    }

    /// Refuses the arguments of a call, each fault with its place.
    pub fn check(&self, arguments: &Value) -> Result<(), ToolError> {
        if !arguments.is_object() {
            return Err(ToolError::arguments("the arguments must be a JSON object"));
        }
        if is_longer_than(arguments, MAX_INPUT) {
            let message = format!("the arguments are longer than {} MiB", MAX_INPUT / (1_024 * 1_024));
            return Err(ToolError::for_model(ToolFailure::InvalidParameters, "args_too_long", message));
        }
        if !self.tool.checks_schema() {
            return self.tool.check(arguments);
        }
        let fault_text = |error: jsonschema::ValidationError| {
            let place = error.instance_path().to_string();
            // the sentence would quote the value, which may be long or secret
            let why = error.masked_with("the value").to_string();
            if place.is_empty() { why } else { format!("{place}: {why}") }
        };
        let faults = self.schema.faults(arguments).map_err(|why| ToolError::arguments(format!("the value {why}")))?;
        let faults: Vec<String> = faults.take(FAULTS_TOLD).map(fault_text).collect();
        if faults.is_empty() { self.tool.check(arguments) } else { Err(ToolError::arguments(faults.join("; "))) }
    }
}

/// Parameters as models are shown them: without the draft that they are written in, which providers refuse to read.
fn shown_parameters(mut parameters: Value) -> Arc<Value> {
    if let Some(schema) = parameters.as_object_mut() {
        schema.remove("$schema");
    }
    Arc::new(parameters)
}

/// The error for a model that calls a tool which it was not offered.
pub fn unknown_tool<'a>(name: &str, offered: impl IntoIterator<Item = &'a str>) -> ToolError {
    let offered: Vec<&str> = offered.into_iter().collect();
    let hint = did_you_mean(name, offered.iter().copied());
    let there = match offered.is_empty() {
        true => "no tools are available".to_owned(),
        false => format!("available: {}", offered.join(", ")),
    };
    ToolError::for_model(ToolFailure::NotFound, "unknown_tool", format!("there is no tool `{name}`{hint}; {there}"))
}

#[cfg(test)]
mod tests {
    use futures::future::BoxFuture;
    use serde_json::json;

    use super::*;
    use crate::domain::approval::{Category, Consequence};
    use crate::ports::tool::{ToolContext, ToolOutput};

    struct NamedTool(Definition);

    impl Tool for NamedTool {
        fn definition(&self) -> &Definition {
            &self.0
        }

        fn call<'a>(&'a self, _: &'a ToolContext, _: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
            Box::pin(async { Ok(ToolOutput::text("")) })
        }
    }

    fn named(name: &str, status: ToolStatus, parameters: Value) -> Arc<dyn Tool> {
        Arc::new(NamedTool(Definition {
            status,
            ..Definition::new(name, "", parameters, Category::Read, Consequence::Low)
        }))
    }

    fn fault_text(error: ToolError) -> String {
        error.to_string()
    }

    #[test]
    fn arguments_that_do_not_fit_are_told_with_their_places() {
        let schema = json!({
            "type": "object",
            "required": ["to"],
            "properties": { "to": { "type": "string" }, "items": { "type": "array", "items": { "type": "integer" } } },
            "additionalProperties": false,
        });
        let registry = ToolRegistry::new(vec![named("send", ToolStatus::Active, schema)]).unwrap();
        let send = registry.find("send").unwrap();
        assert_eq!(send.check(&json!({ "to": "ann", "items": [1, 2] })), Ok(()));
        let error = send.check(&json!({ "items": [1, "secret"], "too": 1 })).unwrap_err();
        insta::assert_snapshot!(fault_text(error), @r#"invalid_parameters: /items/1: the value is not of type "integer"; Additional properties are not allowed ('too' was unexpected); "to" is a required property"#);
        let error = send.check(&json!("{broken")).unwrap_err();
        assert_eq!(fault_text(error), "invalid_parameters: the arguments must be a JSON object");
    }

    #[test]
    fn arguments_are_taken_at_their_longest_and_refused_one_byte_beyond_it() {
        let registry = ToolRegistry::new(vec![named("send", ToolStatus::Active, json!({ "type": "object" }))]).unwrap();
        let send = registry.find("send").unwrap();
        let frame = json!({ "text": "" }).to_string().len();
        let arguments = |bytes: usize| json!({ "text": "x".repeat(bytes - frame) });
        assert_eq!(send.check(&arguments(MAX_INPUT)), Ok(()));
        let refused = send.check(&arguments(MAX_INPUT + 1)).unwrap_err();
        assert_eq!(fault_text(refused), "invalid_parameters: the arguments are longer than 10 MiB");
    }

    #[test]
    fn unknown_name_is_answered_with_the_near_and_the_known_ones() {
        let error = unknown_tool("crate_task", ["create_task", "list_tasks"]);
        assert_eq!(
            fault_text(error),
            "not_found: there is no tool `crate_task`; did you mean `create_task`?; available: create_task, list_tasks"
        );
        assert_eq!(fault_text(unknown_tool("x", [])), "not_found: there is no tool `x`; no tools are available");
    }

    #[test]
    fn two_tools_of_one_name_and_a_schema_that_is_none_are_refused() {
        let twice = vec![named("a", ToolStatus::Active, json!({})), named("a", ToolStatus::Active, json!({}))];
        assert_eq!(ToolRegistry::new(twice).err().unwrap(), "two tools are named `a`");
        let odd = ToolRegistry::new(vec![named("a", ToolStatus::Active, json!({ "type": 7 }))]).err().unwrap();
        assert!(odd.starts_with("the parameters of tool `a` are no JSON Schema that can be used: "), "{odd}");
    }

    #[test]
    fn undo_window_that_is_none_or_longer_than_a_day_is_refused() {
        let tool = |seconds| -> Arc<dyn Tool> {
            let sound = named("pay", ToolStatus::Active, json!({}));
            Arc::new(NamedTool(Definition { undo_seconds: Some(seconds), ..sound.definition().clone() }))
        };
        for seconds in [1, 86_400] {
            assert!(ToolRegistry::new(vec![tool(seconds)]).is_ok(), "{seconds}");
        }
        for seconds in [0, 86_401] {
            let fault_text = ToolRegistry::new(vec![tool(seconds)]).err();
            assert_eq!(fault_text.as_deref(), Some("`undo_seconds` of tool `pay` must lie between 1 and 86400"));
        }
    }

    #[test]
    fn call_may_name_a_level_where_its_tool_has_one_and_nowhere_else() {
        let schema = json!({ "type": "object", "properties": {}, "additionalProperties": false });
        let tools =
            vec![named("own", ToolStatus::Active, schema.clone()), named("other", ToolStatus::Active, schema.clone())];
        let levelled = ToolPolicy { output_level: Some(DefaultLevel::Auto), ..ToolPolicy::default() };
        let policies = BTreeMap::from([("own".to_owned(), levelled)]);
        let registry = ToolRegistry::new(tools).unwrap().governed(&policies, &ToolAccess::default());
        let (own, other) = (registry.find("own").unwrap(), registry.find("other").unwrap());
        let full = json!({ "output_level": "full" });
        assert_eq!((own.check(&full), own.output_level()), (Ok(()), Some(DefaultLevel::Auto)));
        assert!(own.check(&json!({ "output_level": "most" })).is_err());
        assert!(other.check(&full).is_err() && other.output_level().is_none());
        assert_eq!(*other.parameters, schema);
        assert_eq!(own.definition().parameters, schema, "what people agree to is the tool's own");
    }

    #[test]
    fn draft_of_a_schema_holds_and_is_not_shown() {
        // by draft 4 a bound that excludes itself is a word beside the bound
        let schema = json!({
            "$schema": "http://json-schema.org/draft-04/schema#",
            "type": "object",
            "properties": { "n": { "type": "integer", "minimum": 1, "exclusiveMinimum": true } },
        });
        let tool = || named("count", ToolStatus::Active, schema.clone());
        let levelled = ToolPolicy { output_level: Some(DefaultLevel::Auto), ..ToolPolicy::default() };
        for policy in [ToolPolicy::default(), levelled] {
            let count = RegisteredTool::new(tool(), policy).unwrap();
            assert_eq!((count.parameters.get("$schema"), &count.parameters["type"]), (None, &json!("object")));
            assert_eq!(count.definition().parameters, schema);
            assert!(count.check(&json!({ "n": 1 })).is_err());
            assert_eq!(count.check(&json!({ "n": 2 })), Ok(()));
        }
    }

    #[test]
    fn names_below_a_server_are_known_whatever_it_lists() {
        let registry = ToolRegistry::new(vec![named("look", ToolStatus::Active, json!({}))]).unwrap();
        let registry = registry.with_servers(["github"]).governed(&BTreeMap::new(), &ToolAccess::default());
        assert_eq!(registry.known_names().collect::<Vec<_>>(), ["look", "github.*"]);
        assert_eq!(registry.names().collect::<Vec<_>>(), ["look"]);
        let search = RegisteredTool::new(named("github.search", ToolStatus::Active, json!({})), ToolPolicy::default());
        let more = registry.and([Arc::new(search.unwrap())]);
        assert!(registry.is_unlisted("github.search") && !more.is_unlisted("github.search"));
        assert_eq!(more.known_names().collect::<Vec<_>>(), ["look", "github.search", "github.*"]);
        for registry in [&registry, &more] {
            assert!(registry.is_of_server("github.search") && registry.is_of_server("github.close"));
            assert!(!registry.is_of_server("look") && !registry.is_of_server("gitlab.search"));
            assert!(registry.is_unlisted("github.close") && !registry.is_unlisted("gitlab.search"));
        }
    }

    #[test]
    fn more_tools_stand_behind_the_others_under_the_same_access() {
        let access = ToolAccess { deny: vec!["github.close".into()], ..ToolAccess::default() };
        let registry = ToolRegistry::new(vec![named("look", ToolStatus::Active, json!({}))]).unwrap();
        let registry = registry.governed(&BTreeMap::new(), &access);
        let listed = ["github.search", "github.close"].map(|name| {
            let tool = named(name, ToolStatus::Active, json!({}));
            Arc::new(RegisteredTool::new(tool, ToolPolicy::default()).unwrap())
        });
        let more = registry.and(listed);
        assert_eq!(more.names().collect::<Vec<_>>(), ["look", "github.search", "github.close"]);
        assert!(more.allows("ann", "github.search") && !more.allows("ann", "github.close"));
        assert!(registry.find("github.search").is_none(), "a run that has the registry keeps its tools");
    }

    #[test]
    fn tool_that_waits_is_in_no_list_but_that_of_waiting_ones() {
        let registered = |name: &str| {
            Arc::new(RegisteredTool::new(named(name, ToolStatus::Active, json!({})), ToolPolicy::default()).unwrap())
        };
        let registry = ToolRegistry::new(vec![named("look", ToolStatus::Active, json!({}))]).unwrap();
        let registry = registry.with_servers(["github"]).and([registered("github.search")]);
        let registry = registry.with_waiting([registered("github.close")]);
        for registry in [registry.and([]), registry.governed(&BTreeMap::new(), &ToolAccess::default())] {
            assert!(registry.find("github.close").is_none() && registry.find_waiting("github.search").is_none());
            assert_eq!(registry.names().collect::<Vec<_>>(), ["look", "github.search"]);
            assert_eq!((registry.definitions().count(), registry.iter().count()), (2, 2));
            assert_eq!(registry.known_names().collect::<Vec<_>>(), ["look", "github.search", "github.*"]);
            let waiting: Vec<&str> = registry.waiting().map(|tool| tool.definition().name.as_str()).collect();
            assert_eq!((waiting, registry.find_waiting("github.close").is_some()), (vec!["github.close"], true));
            let absences = ["github.close", "github.open", "github.search", "look", "gitlab.close"];
            let absences = absences.map(|name| registry.absence(name));
            let expected = [Some(ToolAbsence::NotAccepted), Some(ToolAbsence::Unlisted), None, None, None];
            assert_eq!(absences, expected);
            assert!(!registry.is_unlisted("github.close") && registry.is_unlisted("github.open"));
        }
    }

    #[test]
    fn removed_tool_is_found_and_not_named() {
        let tools = vec![named("old", ToolStatus::Removed, json!({})), named("new", ToolStatus::Deprecated, json!({}))];
        let registry = ToolRegistry::new(tools).unwrap();
        assert_eq!(registry.names().collect::<Vec<_>>(), ["new"]);
        assert!(registry.find("old").is_some());
    }
}
