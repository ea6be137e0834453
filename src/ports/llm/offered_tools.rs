//! The tools that a model is offered. Many requests offer the same ones, so each wire writes them once.

use std::ops::Deref;
use std::sync::{Arc, Mutex, OnceLock};

use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

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

    fn tools() -> OfferedTools {
        let schema = |name: &str| ToolSchema {
            name: name.into(),
            description: "Tells the time.".into(),
            parameters: json!({ "type": "object" }).into(),
        };
        vec![schema("a"), schema("b")].into()
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
}
