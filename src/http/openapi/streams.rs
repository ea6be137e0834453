//! Streams as the reference shows them: server-sent events, each with its name, its id and its data.
//!
//! An answer that is a stream is a text, and generators of clients take it as one. The `contentSchema` of the text is a
//! list of the events in it. The data of an event is written as JSON in the stream, and stands here as the value that
//! it is.

use utoipa::openapi::schema::{ArrayBuilder, Type};
use utoipa::openapi::{ObjectBuilder, Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

/// The media type of streams.
pub const EVENT_STREAM: &str = "text/event-stream";

/// Schemas by their names, as types add those that they refer to.
pub type NamedSchemas = Vec<(String, RefOr<Schema>)>;

/// The answer that is a stream of these events.
pub fn stream_of(events: RefOr<Schema>) -> RefOr<Schema> {
    let list = ArrayBuilder::new().items(events);
    let text = ObjectBuilder::new().schema_type(Type::String).content_media_type(EVENT_STREAM);
    text.content_schema(Some(list)).into()
}

/// One event: its name, the meaning of its id where it has one, and the schema of its data.
pub fn event(name: &str, id: Option<&str>, data: RefOr<Schema>) -> RefOr<Schema> {
    let word = ObjectBuilder::new().schema_type(Type::String).enum_values(Some([name]));
    let event = ObjectBuilder::new().property("event", word).required("event").property("data", data).required("data");
    let event = match id {
        None => event,
        Some(id) => event.property("id", ObjectBuilder::new().schema_type(Type::String).description(Some(id))),
    };
    event.into()
}

/// The events of a union whose tag is their name: each variant is the data of one.
pub fn events_by_tag<T: PartialSchema>(tag: &str, id: Option<&str>) -> RefOr<Schema> {
    let mut schema = T::schema();
    if let RefOr::T(Schema::OneOf(union)) = &mut schema {
        for variant in &mut union.items {
            let name = word_of(variant, tag).unwrap_or_default();
            *variant = event(&name, id, variant.clone());
        }
    }
    schema
}

/// A reference to the schema of a type, which is added with all that it refers to.
pub fn named<T: ToSchema>(schemas: &mut NamedSchemas) -> RefOr<Schema> {
    schemas.push((T::name().into_owned(), T::schema()));
    T::schemas(schemas);
    Ref::from_schema_name(T::name()).into()
}

/// The word that a variant has in its tag.
fn word_of(variant: &RefOr<Schema>, tag: &str) -> Option<String> {
    let RefOr::T(Schema::Object(variant)) = variant else { return None };
    let RefOr::T(Schema::Object(tag)) = variant.properties.get(tag)? else { return None };
    tag.enum_values.as_ref()?.first()?.as_str().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use serde::Serialize;
    use serde_json::json;

    use super::*;

    /// An event of a test.
    #[derive(Serialize, ToSchema)]
    #[serde(tag = "type", rename_all = "snake_case")]
    #[allow(dead_code, reason = "its schema is looked at, and none is made")]
    enum Rang {
        /// The bell of a door.
        DoorBell {
            times: i64,
        },
        Phone {
            number: String,
        },
    }

    #[test]
    fn variants_of_a_union_become_events_with_their_tags_as_names() {
        let events = serde_json::to_value(events_by_tag::<Rang>("type", Some("the place"))).unwrap();
        let first = &events["oneOf"][0];
        assert_eq!(first["properties"]["event"], json!({ "type": "string", "enum": ["door_bell"] }));
        assert_eq!(first["properties"]["id"], json!({ "type": "string", "description": "the place" }));
        assert_eq!(first["properties"]["data"]["description"], "The bell of a door.");
        assert_eq!(first["properties"]["data"]["required"], json!(["times", "type"]));
        assert_eq!(first["required"], json!(["event", "data"]));
        assert_eq!(events["oneOf"][1]["properties"]["event"]["enum"], json!(["phone"]));
        assert_eq!(events["oneOf"].as_array().unwrap().len(), 2);
    }

    #[test]
    fn stream_is_a_text_whose_content_is_a_list_of_events() {
        let stream = serde_json::to_value(stream_of(event("rang", None, Rang::schema()))).unwrap();
        assert_eq!((&stream["type"], &stream["contentMediaType"]), (&json!("string"), &json!("text/event-stream")));
        let list = &stream["contentSchema"];
        assert_eq!((&list["type"], &list["items"]["required"]), (&json!("array"), &json!(["event", "data"])));
        assert_eq!(list["items"]["properties"].get("id"), None);
    }
}
