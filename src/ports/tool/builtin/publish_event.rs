//! `publish_event`: tells the tenant's own tasks that something has happened.
//!
//! Its source is always `agent`: what a model says happened must not look like the word of a payment provider. Category
//! internal, because it reaches nobody but the tenant's own tasks, and each of those has its own rules of consent;
//! consequence medium, because it can set them off.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::base::invalid::ValidationErrors;
use crate::domain::approval::{Category, Consequence};
use crate::domain::event::Event;
use crate::ports::tool::builtin::BuiltinTool;
use crate::ports::tool::{Definition, HostError};

/// Source of the events.
const SOURCE: &str = "agent";

/// Arguments of `publish_event`.
#[derive(Deserialize)]
pub(super) struct Arguments {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    data: Option<Value>,
    #[serde(default)]
    subject: Option<String>,
}

pub(super) fn publish_event() -> BuiltinTool<Arguments> {
    let definition = Definition::new(
        "publish_event",
        "Publish an event on the bus of the person you work for, so that their tasks that wait for it are woken. \
             Its source is `agent`. Do this only when you were told to; it is no message to a person.",
        json!({
            "type": "object",
            "properties": {
                "type": {
                    "type": "string", "minLength": 1, "maxLength": 512,
                    "description": "Type of the event, such as `report.ready`",
                },
                "data": { "description": "Facts that the tasks need to know of it, any JSON" },
                "subject": { "type": "string", "minLength": 1, "maxLength": 512 },
            },
            "required": ["type"],
            "additionalProperties": false,
        }),
        Category::Internal,
        Consequence::Medium,
    );
    BuiltinTool {
        definition,
        act: |context, Arguments { kind, data, subject }| {
            Box::pin(async move {
                let mut fields =
                    Map::from_iter([("source".to_owned(), json!(SOURCE)), ("type".to_owned(), json!(kind))]);
                fields.extend(data.map(|data| ("data".to_owned(), data)));
                fields.extend(subject.map(|subject| ("subject".to_owned(), json!(subject))));
                let (mut faults, now) = (ValidationErrors::new(), context.clock.now());
                // a repeated call is the same event
                let id = &context.idempotency_key;
                let event = Event::read_short(&Value::Object(fields), "", &context.tenant, id, now, &mut faults);
                let event = event.ok_or(HostError::Invalid(faults))?;
                Ok(context.host.publish_event(&context.tenant, event).await?)
            })
        },
    }
}
