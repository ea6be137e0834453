//! `null` in the body of a request: in a field that may be left out it is as good as absent, and the reference says so.
//!
//! It is said here once for all bodies, as the readers hold it, and not at each field.

use std::collections::BTreeSet;

use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{AdditionalProperties, ArrayItems, Object, OneOfBuilder, SchemaType, Type};
use utoipa::openapi::{Components, OpenApi, RefOr, Schema};

use crate::http::openapi::SCHEMAS;

/// Fields that may be left out and are never null: what they replace has no default.
const NEVER: [(&str, &str); 2] = [("TaskPatch", "name"), ("TaskPatch", "trigger")];

/// Lets every field that a body may leave out be null as well.
pub fn allow_null(document: &mut OpenApi) {
    let Some(components) = &mut document.components else { return };
    let mut names = BTreeSet::new();
    for item in document.paths.paths.values() {
        let operations = [&item.get, &item.put, &item.post, &item.delete, &item.patch];
        for schema in operations.into_iter().flatten().flat_map(bodies) {
            collect(schema, components, &mut names);
        }
    }
    for name in names {
        if let Some(RefOr::T(schema)) = components.schemas.get_mut(&name) {
            fields(&name, schema);
        }
    }
}

fn bodies(operation: &Operation) -> impl Iterator<Item = &RefOr<Schema>> {
    let body = operation.request_body.as_ref().and_then(inline_schema);
    let contents = body.into_iter().flat_map(|body| body.content.values()).filter_map(inline_schema);
    contents.filter_map(|content| content.schema.as_ref())
}

fn inline_schema<T>(part: &RefOr<T>) -> Option<&T> {
    match part {
        RefOr::T(part) => Some(part),
        RefOr::Ref(_) => None,
    }
}

/// The names of a schema and of all that it is made of.
fn collect(schema: &RefOr<Schema>, components: &Components, names: &mut BTreeSet<String>) {
    let all = |items: &[RefOr<Schema>], names: &mut BTreeSet<String>| {
        items.iter().for_each(|item| collect(item, components, names));
    };
    match schema {
        RefOr::Ref(place) => {
            let Some(name) = place.ref_location.strip_prefix(SCHEMAS) else { return };
            if names.insert(name.to_owned())
                && let Some(schema) = components.schemas.get(name)
            {
                collect(schema, components, names);
            }
        }
        RefOr::T(Schema::Object(object)) => {
            object.properties.values().for_each(|field| collect(field, components, names));
            if let Some(AdditionalProperties::RefOr(each)) = object.additional_properties.as_deref() {
                collect(each, components, names);
            }
        }
        RefOr::T(Schema::Array(array)) => {
            if let ArrayItems::RefOrSchema(item) = &array.items {
                collect(item, components, names);
            }
        }
        RefOr::T(Schema::OneOf(one)) => all(&one.items, names),
        RefOr::T(Schema::AllOf(parts)) => all(&parts.items, names),
        RefOr::T(Schema::AnyOf(any)) => all(&any.items, names),
        RefOr::T(_) => {}
    }
}

fn fields(name: &str, schema: &mut Schema) {
    if let Schema::AllOf(parts) = schema {
        let parts = parts.items.iter_mut().filter_map(|part| if let RefOr::T(part) = part { Some(part) } else { None });
        return parts.for_each(|part| fields(name, part));
    }
    let Schema::Object(Object { properties, required, .. }) = schema else { return };
    for (field, schema) in properties {
        if !required.contains(field) && !NEVER.contains(&(name, field.as_str())) {
            or_null(schema);
        }
    }
}

fn or_null(schema: &mut RefOr<Schema>) {
    match schema {
        RefOr::T(Schema::Object(object)) if object.enum_values.is_none() => add_null(&mut object.schema_type),
        RefOr::T(Schema::Array(array)) => add_null(&mut array.schema_type),
        RefOr::T(Schema::OneOf(one)) => {
            if !one.items.iter().any(is_null) {
                one.items.push(null());
            }
        }
        other => {
            let either = OneOfBuilder::new().item(other.clone()).item(null());
            *other = RefOr::T(Schema::OneOf(either.build()));
        }
    }
}

fn add_null(kind: &mut SchemaType) {
    match kind {
        SchemaType::Type(Type::Null) | SchemaType::AnyValue => {}
        SchemaType::Type(one) => *kind = SchemaType::Array(vec![one.clone(), Type::Null]),
        SchemaType::Array(kinds) if kinds.contains(&Type::Null) => {}
        SchemaType::Array(kinds) => kinds.push(Type::Null),
    }
}

fn null() -> RefOr<Schema> {
    RefOr::T(Schema::Object(Object::with_type(Type::Null)))
}

fn is_null(schema: &RefOr<Schema>) -> bool {
    matches!(schema, RefOr::T(Schema::Object(object)) if matches!(object.schema_type, SchemaType::Type(Type::Null)))
}
