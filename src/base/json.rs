//! JSON: its length in bytes, and schemas that it is held against.

pub mod length;
pub mod schema;
