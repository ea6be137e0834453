//! The events of a response's stream, as they are told and as the reference shows them.
//!
//! Source of the shapes: <https://www.openresponses.org>,
//! <https://platform.openai.com/docs/api-reference/responses-streaming>.

use serde::Serialize;
use serde_json::Value;
use utoipa::openapi::{ObjectBuilder, OneOfBuilder, Ref, RefOr, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::http::api::conversations::response_object::{OutputMessage, OutputText, ResponseObject};
use crate::http::openapi::streams::{self, NamedSchemas};

/// The data of the event that ends a stream. It has no name, and its data is no JSON.
pub const DONE: &str = "[DONE]";

/// An event of a response. Its `type` is the name of the server-sent event, and `sequence_number` its place in the
/// stream, from 0.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[serde(tag = "type")]
pub enum ResponseEvent {
    /// The message was taken.
    #[serde(rename = "response.created")]
    Created {
        /// Place of the event.
        sequence_number: u64,
        /// The response, without an output yet.
        response: Box<ResponseObject>,
    },
    /// The agent is about to answer.
    #[serde(rename = "response.in_progress")]
    InProgress {
        /// Place of the event.
        sequence_number: u64,
        /// The response, without an output yet.
        response: Box<ResponseObject>,
    },
    /// A message of the agent begins.
    #[serde(rename = "response.output_item.added")]
    ItemAdded {
        /// Place of the event.
        sequence_number: u64,
        /// Place of the message among those of the stream, from 0.
        output_index: u64,
        /// The message, without a text yet.
        item: OutputMessage,
    },
    /// The text of a message begins.
    #[serde(rename = "response.content_part.added")]
    PartAdded {
        /// Place of the event.
        sequence_number: u64,
        /// Id of the message.
        item_id: String,
        /// Place of the message among those of the stream, from 0.
        output_index: u64,
        /// Always 0: a message has one text.
        content_index: u64,
        /// The text, empty yet.
        part: OutputText,
    },
    /// A piece of a text.
    #[serde(rename = "response.output_text.delta")]
    TextDelta {
        /// Place of the event.
        sequence_number: u64,
        /// Id of the message.
        item_id: String,
        /// Place of the message among those of the stream, from 0.
        output_index: u64,
        /// Always 0: a message has one text.
        content_index: u64,
        /// The piece.
        delta: String,
        /// Always empty.
        logprobs: Vec<Value>,
    },
    /// A text is whole, or as much of it as there will be.
    #[serde(rename = "response.output_text.done")]
    TextDone {
        /// Place of the event.
        sequence_number: u64,
        /// Id of the message.
        item_id: String,
        /// Place of the message among those of the stream, from 0.
        output_index: u64,
        /// Always 0: a message has one text.
        content_index: u64,
        /// The whole text.
        text: String,
        /// Always empty.
        logprobs: Vec<Value>,
    },
    /// The text of a message has ended.
    #[serde(rename = "response.content_part.done")]
    PartDone {
        /// Place of the event.
        sequence_number: u64,
        /// Id of the message.
        item_id: String,
        /// Place of the message among those of the stream, from 0.
        output_index: u64,
        /// Always 0: a message has one text.
        content_index: u64,
        /// The whole text.
        part: OutputText,
    },
    /// A message of the agent has ended.
    #[serde(rename = "response.output_item.done")]
    ItemDone {
        /// Place of the event.
        sequence_number: u64,
        /// Place of the message among those of the stream, from 0.
        output_index: u64,
        /// The message; `incomplete` where the model was asked once more.
        item: OutputMessage,
    },
    /// The answer is there.
    #[serde(rename = "response.completed")]
    Completed {
        /// Place of the event.
        sequence_number: u64,
        /// The response with its output.
        response: Box<ResponseObject>,
    },
    /// A person is waited for, or the agent was stopped at its limit of turns.
    #[serde(rename = "response.incomplete")]
    Incomplete {
        /// Place of the event.
        sequence_number: u64,
        /// The response, with the question or the words of the agent as its output.
        response: Box<ResponseObject>,
    },
    /// There is no answer.
    #[serde(rename = "response.failed")]
    Failed {
        /// Place of the event.
        sequence_number: u64,
        /// The response, with its error.
        response: Box<ResponseObject>,
    },
    /// The stream ends before the response does.
    #[serde(rename = "error")]
    Error {
        /// Place of the event.
        sequence_number: u64,
        /// `stream_ended`.
        code: String,
        /// A sentence for people.
        message: String,
        /// Always `null`.
        #[schema(required)]
        param: Option<String>,
    },
}

/// The stream of a response, for the reference.
pub struct AnswerStream;

impl AnswerStream {
    /// The published name of its events.
    const EVENT: &str = "ResponseStreamEvent";
    /// The published name of the event at its end.
    const END: &str = "ResponseStreamEnd";
}

impl PartialSchema for AnswerStream {
    fn schema() -> RefOr<Schema> {
        let event = Ref::from_schema_name(AnswerStream::EVENT);
        let end = Ref::from_schema_name(AnswerStream::END);
        streams::stream_of(OneOfBuilder::new().item(event).item(end).into())
    }
}

impl ToSchema for AnswerStream {
    fn schemas(schemas: &mut NamedSchemas) {
        schemas.push((AnswerStream::EVENT.into(), streams::events_by_tag::<ResponseEvent>("type", None)));
        ResponseEvent::schemas(schemas);
        let word = ObjectBuilder::new().schema_type(Type::String).enum_values(Some([DONE]));
        let end = ObjectBuilder::new().property("data", word).required("data");
        let end = end.description(Some("The last event of a stream. It has no name, and its data is no JSON."));
        schemas.push((AnswerStream::END.into(), end.into()));
    }
}
