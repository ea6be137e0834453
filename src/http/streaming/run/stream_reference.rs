//! The stream of a run, for the reference of the API.

use utoipa::openapi::{Ref, RefOr, Schema};
use utoipa::{PartialSchema, ToSchema};

use crate::domain::run::StreamEvent;
use crate::http::openapi::streams::{self, NamedSchemas};

/// The stream of a run.
pub(in crate::http) struct RunStream;

impl RunStream {
    /// The published name of its events.
    const EVENT: &str = "RunStreamEvent";
    /// The meaning of their ids.
    const ID: &str = "With it as `Last-Event-ID` a stream goes on behind this event. Absent with an event that is told while it \
                      happens, and not again.";
}

impl PartialSchema for RunStream {
    fn schema() -> RefOr<Schema> {
        streams::stream_of(Ref::from_schema_name(RunStream::EVENT).into())
    }
}

impl ToSchema for RunStream {
    fn schemas(schemas: &mut NamedSchemas) {
        schemas.push((RunStream::EVENT.into(), streams::events_by_tag::<StreamEvent>("type", Some(RunStream::ID))));
        StreamEvent::schemas(schemas);
    }
}
