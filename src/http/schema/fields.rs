//! Shapes that are put together of described fields.

use utoipa::openapi::{RefOr, Schema};

use crate::base::field::Form;

/// An object with further fields, each as it is described.
pub fn with_fields(object: RefOr<Schema>, fields: &[Form]) -> RefOr<Schema> {
    fields.iter().fold(object, |object, field| joined(object, (field.schema)()))
}

/// A part of an object as a part of its changes. A field that is absent is kept, so nothing is said of a default.
pub fn changes(mut part: RefOr<Schema>) -> RefOr<Schema> {
    if let RefOr::T(Schema::Object(part)) = &mut part {
        part.required.clear();
        part.properties.values_mut().for_each(say_nothing);
    }
    part
}

/// Adds what the shapes of fields refer to.
pub fn parts(fields: &[Form], schemas: &mut Vec<(String, RefOr<Schema>)>) {
    fields.iter().for_each(|field| (field.parts)(schemas));
}

/// An object with the fields of another.
pub fn joined(mut object: RefOr<Schema>, field: RefOr<Schema>) -> RefOr<Schema> {
    if let (RefOr::T(Schema::Object(object)), RefOr::T(Schema::Object(field))) = (&mut object, field) {
        object.properties.extend(field.properties);
        object.required.extend(field.required);
    }
    object
}

/// Takes the description and the default away.
fn say_nothing(schema: &mut RefOr<Schema>) {
    match schema {
        RefOr::Ref(place) => place.description.clear(),
        RefOr::T(Schema::Object(object)) => (object.description, object.default) = (None, None),
        RefOr::T(Schema::Array(array)) => (array.description, array.default) = (None, None),
        RefOr::T(Schema::OneOf(one)) => one.items.iter_mut().for_each(say_nothing),
        RefOr::T(_) => {}
    }
}
