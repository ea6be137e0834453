//! The tools that MCP clients may call, and how a call is judged before its tool acts.
//!
//! A tool is a request or two to the API in its caller's name ([`McpCall`]), so it can do what the token may do there
//! and nothing else. None decides an approval, or leads to what does.

pub mod approvals;
pub mod arguments;
pub mod conditions;
pub mod credentials;
pub mod events;
pub mod memory;
pub mod runs;
pub mod schedules;
pub mod tasks;

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};

use crate::base::invalid::did_you_mean;
use crate::base::token::Permission;
use crate::http::in_process::CallError;
use crate::http::mcp::call::McpCall;
use crate::http::mcp::outcome::{Answered, ToolRefusal};
use crate::http::mcp::rpc_error::RpcError;

/// For how long a client may keep the list.
const LISTED_FOR_MS: u32 = 300_000;
/// The argument by which a caller who sees all tenants names one.
const TENANT: &str = "tenant_id";

/// The work of a call.
pub type ToolFuture<'a> = BoxFuture<'a, Result<Answered, ToolFault>>;

/// Why a call has no result: a refusal for the model, or a fault of the request itself.
#[derive(Debug)]
pub enum ToolFault {
    /// The model is told, and can mend it.
    Refused(ToolRefusal),
    /// The client is told.
    Rpc(RpcError),
}

impl From<ToolRefusal> for ToolFault {
    fn from(refusal: ToolRefusal) -> ToolFault {
        ToolFault::Refused(refusal)
    }
}

impl From<CallError> for ToolFault {
    fn from(error: CallError) -> ToolFault {
        ToolFault::Refused(error.into())
    }
}

impl From<RpcError> for ToolFault {
    fn from(error: RpcError) -> ToolFault {
        ToolFault::Rpc(error)
    }
}

/// Effect of a tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolEffect {
    /// It changes nothing.
    Reads,
    /// It makes something new with each call.
    Adds,
    /// It changes something to what is asked for.
    Changes,
    /// It takes something away for good.
    Ends,
}

/// A tool of this service.
pub struct ServedTool {
    /// The name by which it is called.
    pub name: &'static str,
    /// Name for people.
    pub title: &'static str,
    /// Description for models.
    pub description: &'static str,
    /// The permission that its token needs.
    pub permission: Permission,
    /// Its effect.
    pub effect: ToolEffect,
    /// Whether it has `tenant_id` for callers who see all tenants.
    pub names_tenant: bool,
    /// The JSON schema of its arguments.
    pub schema: fn() -> Value,
    /// Its work.
    pub act: for<'a> fn(&'a McpCall, ToolInput) -> ToolFuture<'a>,
}

/// Arguments of a call, and what came with them.
#[derive(Debug, Default)]
pub struct ToolInput {
    /// The arguments.
    pub arguments: Map<String, Value>,
    /// Answers to what the client was asked for.
    pub input_responses: Option<Map<String, Value>>,
    /// State that the client was given with those questions.
    pub request_state: Option<String>,
}

/// Every tool, in an order that stays.
pub fn all() -> Vec<ServedTool> {
    let parts = [
        tasks::tools(),
        schedules::tools(),
        runs::tools(),
        events::tools(),
        conditions::tools(),
        approvals::tools(),
        credentials::tools(),
        memory::tools(),
    ];
    parts.into_iter().flatten().collect()
}

/// `tools/list`: the tools that the caller may use.
pub fn list(call: &McpCall) -> Value {
    let usable = all().into_iter().filter(|tool| call.holds(tool.permission));
    let tools: Vec<Value> = usable.map(|tool| listed(&tool, call.sees_all())).collect();
    json!({ "tools": tools, "ttlMs": LISTED_FOR_MS, "cacheScope": "private" })
}

/// A tool as clients read it.
fn listed(tool: &ServedTool, sees_all: bool) -> Value {
    json!({
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": schema_for(tool, sees_all),
        "annotations": {
            "title": tool.title,
            "readOnlyHint": tool.effect == ToolEffect::Reads,
            "destructiveHint": tool.effect == ToolEffect::Ends,
            "idempotentHint": tool.effect != ToolEffect::Adds,
            "openWorldHint": false,
        },
    })
}

/// The schema of the arguments, with the tenant where the caller has to name one.
fn schema_for(tool: &ServedTool, sees_all: bool) -> Value {
    let mut schema = (tool.schema)();
    if tool.names_tenant && sees_all {
        schema["properties"][TENANT] = json!({ "type": "string", "description": "The tenant for whom it is" });
        match schema["required"].as_array_mut() {
            Some(required) => required.push(TENANT.into()),
            None => schema["required"] = json!([TENANT]),
        }
    }
    schema
}

/// `tools/call`: what comes of the call. A refusal is a result, which says that it is one.
///
/// # Errors
/// There is no such tool, or the parameters are not those of a call.
pub async fn call(call: &McpCall, mut params: Map<String, Value>) -> Result<Value, RpcError> {
    let tool = named_tool(&params)?;
    let input = input_of(&mut params)?;
    let answered = match judge(call, &tool, &input) {
        Ok(()) => (tool.act)(call, input).await,
        Err(refusal) => Err(refusal.into()),
    };
    match answered {
        // a long result is written in the caller's turn
        Ok(Answered::Result(result)) => call.compute(result.steps(), move || result.into_call_result()).await,
        Ok(Answered::Other(answer)) => Ok(answer),
        Err(ToolFault::Refused(refusal)) => Ok(refusal.into_call_result()),
        Err(ToolFault::Rpc(error)) => Err(error),
    }
}

fn named_tool(params: &Map<String, Value>) -> Result<ServedTool, RpcError> {
    let name = params.get("name").and_then(Value::as_str);
    let name = name.ok_or_else(|| RpcError::invalid_params("`name` must be there, the name of a tool"))?;
    let mut tools = all();
    match tools.iter().position(|tool| tool.name == name) {
        Some(place) => Ok(tools.swap_remove(place)),
        None => {
            let near = did_you_mean(name, tools.iter().map(|tool| tool.name));
            Err(RpcError::invalid_params(format!("there is no tool `{name}`, `tools/list` has them{near}")))
        }
    }
}

/// The arguments of a call and what came with them, taken out of its parameters.
fn input_of(params: &mut Map<String, Value>) -> Result<ToolInput, RpcError> {
    let object = |name: &str, value: Option<Value>| match value {
        None => Ok(None),
        Some(Value::Object(fields)) => Ok(Some(fields)),
        Some(_) => Err(RpcError::invalid_params(format!("`{name}` must be an object"))),
    };
    let request_state = match params.remove("requestState") {
        None => None,
        Some(Value::String(state)) => Some(state),
        Some(_) => {
            return Err(RpcError::invalid_params("`requestState` must be the text that came with the questions"));
        }
    };
    Ok(ToolInput {
        arguments: object("arguments", params.remove("arguments"))?.unwrap_or_default(),
        input_responses: object("inputResponses", params.remove("inputResponses"))?,
        request_state,
    })
}

/// Refuses what the tool is never asked: a token without its permission, and arguments that it does not have.
fn judge(call: &McpCall, tool: &ServedTool, input: &ToolInput) -> Result<(), ToolRefusal> {
    if !call.holds(tool.permission) {
        let permission = tool.permission.as_str();
        let why = format!("this needs a token with `{permission}`. Tell the person, and do not try again.");
        return Err(ToolRefusal::new(why));
    }
    // a caller of one tenant may name it
    let also = if tool.names_tenant { &[TENANT][..] } else { &[] };
    arguments::check(&input.arguments, &schema_for(tool, call.sees_all()), also)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn tools_have_names_and_schemas_that_clients_take() {
        let tools = all();
        let names: BTreeSet<&str> = tools.iter().map(|tool| tool.name).collect();
        assert_eq!(names.len(), tools.len(), "a name is one tool's");
        assert_eq!(tools[0].name, "create_task", "the order stays");
        for tool in &tools {
            let plain = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(tool.name.chars().all(plain) && tool.name.len() <= 64, "{}", tool.name);
            assert!(tool.description.ends_with('.') && tool.description.len() <= 1_000, "{}", tool.name);
            for sees_all in [false, true] {
                let schema = schema_for(tool, sees_all);
                assert_eq!((&schema["type"], &schema["additionalProperties"]), (&json!("object"), &json!(false)));
                let properties = schema["properties"].as_object().unwrap();
                let required: Vec<&str> =
                    schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
                assert!(required.iter().all(|name| properties.contains_key(*name)), "{}: {schema}", tool.name);
                assert_eq!(required.contains(&TENANT), sees_all && tool.names_tenant, "{}", tool.name);
                assert!(properties.values().all(Value::is_object), "{}: {schema}", tool.name);
            }
        }
    }

    #[test]
    fn no_tool_is_named_after_a_decision_or_gives_a_right_away() {
        for tool in all() {
            for word in ["decid", "approve", "override", "grant", "token", "allow", "admin"] {
                assert!(!tool.name.contains(word), "{}", tool.name);
            }
            let of_decisions = [Permission::All, Permission::ApprovalsDecide, Permission::TokensWrite];
            assert!(!of_decisions.contains(&tool.permission), "{}", tool.name);
            let about_approvals = tool.permission == Permission::ApprovalsRead;
            assert!(!about_approvals || tool.effect == ToolEffect::Reads, "{}", tool.name);
        }
    }

    #[test]
    fn annotations_follow_the_effect() {
        let hints = |effect: ToolEffect| {
            let mut tool = all().remove(0);
            tool.effect = effect;
            let annotations = listed(&tool, false)["annotations"].clone();
            ["readOnlyHint", "destructiveHint", "idempotentHint"].map(|hint| annotations[hint] == true)
        };
        assert_eq!(hints(ToolEffect::Reads), [true, false, true]);
        assert_eq!(hints(ToolEffect::Adds), [false, false, false]);
        assert_eq!(hints(ToolEffect::Changes), [false, false, true]);
        assert_eq!(hints(ToolEffect::Ends), [false, true, true]);
    }

    #[test]
    fn call_that_is_none_is_a_fault_of_the_request() {
        let read = |params: Value| {
            let Value::Object(mut params) = params else { unreachable!() };
            let tool = named_tool(&params)?;
            input_of(&mut params).map(|input| (tool.name, input.arguments.len()))
        };
        assert_eq!(read(json!({ "name": "list_tasks" })), Ok(("list_tasks", 0)));
        assert_eq!(read(json!({ "name": "list_tasks", "arguments": { "q": "a" }, "task": {} })), Ok(("list_tasks", 1)));
        let unknown = read(json!({ "name": "list_task" })).unwrap_err();
        assert!(unknown.code == -32602 && unknown.message.contains("did you mean `list_tasks`?"), "{unknown:?}");
        for wrong in [
            json!({}),
            json!({ "name": 7 }),
            json!({ "name": "" }),
            json!({ "name": "list_tasks", "arguments": [] }),
            json!({ "name": "list_tasks", "inputResponses": "yes" }),
            json!({ "name": "list_tasks", "requestState": 7 }),
        ] {
            assert_eq!(read(wrong.clone()).unwrap_err().code, -32602, "{wrong}");
        }
    }
}
