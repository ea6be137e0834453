//! The tools that a model is offered. Many requests offer the same ones, so each wire writes them once.

use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock};

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::domain::run::portable_name;
use crate::ports::llm::ModelAnswer;
use crate::ports::llm::text_size::TextSize;

/// A tool as a model sees it.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolSchema {
    /// Name of the tool, for the model.
    pub name: String,
    /// Its effect and when to use it, for the model.
    pub description: String,
    /// JSON Schema of the arguments, an object.
    pub parameters: Arc<Value>,
}

/// Tools in the order in which they are offered. Cheap to clone; all clones share what the wires have written.
#[derive(Debug, Clone, Default)]
pub struct OfferedTools(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    schemas: Vec<ToolSchema>,
    size: OnceLock<TextSize>,
    /// The tools as JSON, by the wire that wrote them.
    written: Mutex<Vec<(&'static str, Arc<RawValue>)>>,
}

impl OfferedTools {
    /// How much text names, descriptions and schemas are.
    pub(super) fn size(&self) -> TextSize {
        *self.0.size.get_or_init(|| {
            let schemas: Vec<String> = self.iter().map(|tool| tool.parameters.to_string()).collect();
            let names = self.iter().flat_map(|tool| [&*tool.name, &*tool.description]);
            TextSize::of(names.chain(schemas.iter().map(String::as_str)))
        })
    }

    /// A JSON array with what a wire makes of each tool; `None`: no tool is offered.
    pub fn written(&self, wire: &'static str, write: fn(&ToolSchema) -> Value) -> Option<Arc<RawValue>> {
        if self.is_empty() {
            return None;
        }
        let mut written = self.0.written.lock().expect("written tools lock");
        if let Some((_, text)) = written.iter().find(|(name, _)| *name == wire) {
            return Some(Arc::clone(text));
        }
        let tools: Vec<Value> = self.iter().map(write).collect();
        let text: Arc<RawValue> = to_raw_value(&tools).expect("a list of values is JSON").into();
        written.push((wire, Arc::clone(&text)));
        Some(text)
    }

    /// The answer with the names of tools as they are here: a provider knows them in a form that it takes. A name that
    /// is of no tool that was offered stays as the model wrote it.
    pub(super) fn own_names(&self, mut answer: ModelAnswer) -> ModelAnswer {
        for call in &mut answer.tool_calls {
            if let Some(own) = self.own_name(&call.name) {
                call.name = own.to_owned();
            }
        }
        answer
    }

    /// The name of the tool that a provider calls so; `None`: it is that of a tool already, or of none.
    fn own_name(&self, called: &str) -> Option<&str> {
        if self.iter().any(|tool| tool.name == called) {
            return None;
        }
        self.iter().map(|tool| tool.name.as_str()).find(|name| portable_name(name) == called)
    }
}

impl From<Vec<ToolSchema>> for OfferedTools {
    fn from(schemas: Vec<ToolSchema>) -> OfferedTools {
        OfferedTools(Arc::new(Inner { schemas, ..Inner::default() }))
    }
}

impl Deref for OfferedTools {
    type Target = [ToolSchema];

    fn deref(&self) -> &[ToolSchema] {
        &self.0.schemas
    }
}

impl PartialEq for OfferedTools {
    fn eq(&self, other: &OfferedTools) -> bool {
        **self == **other
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::domain::run::ToolCall;
    use crate::ports::llm::{ModelTokens, StopReason};

    fn named(names: &[&str]) -> OfferedTools {
        let schema = |name: &&str| ToolSchema {
            name: (*name).into(),
            description: "Tells the time.".into(),
            parameters: json!({ "type": "object" }).into(),
        };
        names.iter().map(schema).collect::<Vec<_>>().into()
    }

    fn tools() -> OfferedTools {
        named(&["a", "b"])
    }

    /// The names of the calls of an answer, as they are here.
    fn own_names(tools: &OfferedTools, called: &[&str]) -> Vec<String> {
        let answer = ModelAnswer {
            text: None,
            tool_calls: called.iter().map(|name| ToolCall::new("c1", *name, json!({}))).collect(),
            stop: StopReason::ToolCalls,
            tokens: ModelTokens::default(),
            provider_message: None,
            failure: None,
        };
        tools.own_names(answer).tool_calls.into_iter().map(|call| call.name).collect()
    }

    #[test]
    fn each_wire_writes_tools_once_and_all_requests_share_its_text() {
        let tools = tools();
        let first = tools.written("one", |tool| json!([tool.name])).unwrap();
        let again = tools.clone().written("one", |_| panic!("written twice")).unwrap();
        assert!(Arc::ptr_eq(&first, &again));
        assert_eq!(first.get(), r#"[["a"],["b"]]"#);
        let other = tools.written("other", |tool| json!(tool.name)).unwrap();
        assert_eq!(other.get(), r#"["a","b"]"#);
        assert!(OfferedTools::default().written("one", |_| panic!("there is none")).is_none());
    }

    #[test]
    fn name_of_an_mcp_tool_goes_to_providers_in_a_form_that_they_take_and_comes_back() {
        let tools = named(&["current_time", "github.create_issue"]);
        let written = tools.written("one", |tool| json!(portable_name(&tool.name))).unwrap();
        assert_eq!(written.get(), r#"["current_time","github__create_issue"]"#);
        let called = ["current_time", "github__create_issue", "github.create_issue", "gitlab__create_issue"];
        let own = ["current_time", "github.create_issue", "github.create_issue", "gitlab__create_issue"];
        assert_eq!(own_names(&tools, &called), own);
    }

    #[test]
    fn tool_that_is_named_as_it_is_called_is_meant_before_one_of_a_name_that_looks_so() {
        let tools = named(&["github.create", "github__create"]);
        assert_eq!(own_names(&tools, &["github__create"]), ["github__create"]);
    }
}
